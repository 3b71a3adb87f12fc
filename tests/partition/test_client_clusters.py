from __future__ import annotations

from itertools import combinations
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from intarsia.errors import FederationError
from intarsia.partition.client_clusters import Structure, Structures, agreement, of_models


def names(number):
    return tuple(f"c{one}" for one in range(number))


def one(groups):
    return Structure(names(len(groups)), {"level": tuple(groups)})


def rand_by_pairs(a, b):
    """Hubert and Arabie's index from the pairs of clients that are together in both groupings."""
    n = len(a)
    pairs = list(combinations(range(n), 2))
    in_a, in_b = ({p for p in pairs if g[p[0]] == g[p[1]]} for g in (a, b))
    expected = len(in_a) * len(in_b) / comb(n, 2)
    largest = (len(in_a) + len(in_b)) / 2
    return 1.0 if largest == expected else (len(in_a & in_b) - expected) / (largest - expected)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=2, max_size=12))
def test_the_index_counts_the_pairs_of_clients_that_are_together_in_both(groups):
    a, b = zip(*groups, strict=True)
    found = agreement(one(a), one(b))["level"]["level"]
    assert found == pytest.approx(rand_by_pairs(a, b), abs=1e-12)


def test_each_true_level_is_compared_with_each_learned_one_whatever_the_numbers():
    clients = names(6)
    truth = Structure(clients, {"coarse": (0, 0, 0, 1, 1, 1), "fine": (0, 0, 1, 1, 2, 2)})
    learned = Structure(
        clients[::-1],  # in another order
        {"level 1": (0,) * 6, "level 2": (7, 7, 7, 3, 3, 3), "level 3": (5, 5, 9, 9, 1, 1)},
    )
    found = agreement(truth, learned)
    assert found["coarse"]["level 2"] == found["fine"]["level 3"] == 1.0
    assert found["coarse"]["level 1"] == 0.0
    assert found["coarse"]["level 3"] < 0.5


def test_a_client_without_a_part_in_a_level_is_a_group_of_its_own():
    truth = one((0, 0, 0, 1, 1, 1))
    assert agreement(truth, one((4, 4, 4, None, None, None)))["level"]["level"] == pytest.approx(
        rand_by_pairs((0, 0, 0, 1, 1, 1), (4, 4, 4, 5, 6, 7))
    )
    assert agreement(one((0, 1, 2)), one((None,) * 3))["level"]["level"] == 1.0
    some = Structures(truth, one((4, 4, 4, None, 7, 7)))
    assert some.agreement["level"]["level"] < 1
    assert some.agreement_of_members["level"]["level"] == 1.0
    nobody = Structures(truth, one((4, None, None, None, None, None)))
    assert nobody.agreement_of_members == {"level": {}}
    assert Structures(truth).agreement_of_members == {}


def test_structures_of_other_clients_or_with_groups_missing_are_refused():
    with pytest.raises(FederationError, match="groups of 2 clients and there are 3"):
        Structure(names(3), {"level": (0, 1)})
    with pytest.raises(FederationError, match="compare structures of the same clients"):
        agreement(one((0, 1)), one((0, 1, 1)))
    with pytest.raises(FederationError, match="no client 'x'; it has 'c0', 'c1'"):
        one((0, 1)).among(("x",))
    assert one((0, 1)).among(("c1",)).levels == {"level": (1,)}


def test_models_of_levels_form_a_structure():
    found = of_models(names(3), [dict.fromkeys(names(3), 0), {"c2": 1, "c0": 4}])
    assert found == Structure(names(3), {"level 1": (0, 0, 0), "level 2": (4, None, 1)})
    assert found.said("level 2") == "level 2"
    worded = of_models(names(3), [dict.fromkeys(names(3), 0)], ("global",))
    assert worded.words == {"level 1": "global"}
    assert worded.among(("c1",)).said("level 1") == "level 1 (global)"
    assert of_models(names(3), ()) is None
    assert Structures(found, None).agreement == {}
    assert Structures(one((0, 1, 1)), one((1, 0, 0))).agreement == {"level": {"level": 1.0}}
