"""Who holds which feature block, and sums that are laid out by blocks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from intarsia.core.block import INTERCEPT, Block, Labels
from intarsia.core.client_functions import PerBlock, client_function
from intarsia.core.feature_blocks import doubled, feature_blocks
from intarsia.core.schema import Schema
from intarsia.engines import codec
from intarsia.engines.communication_log import RECORDS
from intarsia.engines.simulation import Simulation
from intarsia.errors import FederationError
from intarsia.privacy.keys.shared_key import SharedKey
from intarsia.privacy.secure_aggregation import setup as modes
from intarsia.privacy.settings import Privacy

LABELS = Labels("binary", ("no", "yes"))
VIEWS = {"view10": ("p1", "p2"), "view2": ("p3",), "wide": ("w10", "w9", "w1")}


def holder(names, number, *, extra=(), groups=VIEWS):
    own = {name: groups[name] for name in names}
    columns = tuple(sorted({*extra, *(c for some in own.values() for c in some)}))
    rows = 10 * number + np.arange(4)
    return Block(rows, columns, np.full((4, len(columns)), number + 1.0), rows % 2 * 2.0 - 1, own)


def holders():
    held = {"a": ("view10", "view2"), "b": ("view2", "wide"), "c": ("view2",), "d": ("wide",)}
    return {name: holder(own, at) for at, (name, own) in enumerate(held.items())}


def test_blocks_have_their_columns_and_owners_and_come_in_the_order_of_names_and_numbers():
    found = feature_blocks(Schema.of(holders(), LABELS))
    assert list(found) == ["view2", "view10", "wide"]
    assert found["wide"].features == ("w10", "w9", "w1")
    assert [one.owners for one in found.values()] == [("a", "b", "c"), ("a",), ("b", "d")]


def test_columns_without_a_name_are_blocks_by_who_holds_them():
    made = {
        "a": holder(("view2",), 0, extra=("age", "sex", INTERCEPT)),
        # what a table's own columns are called (see `description.feature_groups`)
        "b": holder(("b",), 1, extra=("sex", INTERCEPT), groups={"b": ("age", "height")}),
        "c": holder((), 2, extra=(INTERCEPT,)),
    }
    found = feature_blocks(Schema.of(made, LABELS))
    assert {name: one.features for name, one in found.items()} == {
        "view2": ("p3",),
        "a+b": ("age", "sex"),
        "b": ("height",),
    }
    alike = {name: holder((), at, extra=("x2", "x10")) for at, name in enumerate("ab")}
    [only] = feature_blocks(Schema.of(alike, LABELS)).values()
    assert (only.name, only.features, only.owners) == ("features", ("x2", "x10"), ("a", "b"))


def test_a_block_that_is_cut_is_refused_with_its_columns():
    made = {"a": holder(("wide",), 0), "b": holder(("wide",), 1, groups={"wide": ("w1", "w9")})}
    with pytest.raises(FederationError, match=r"'wide' has 3 columns at 'a' and 2 at 'b'.*w10"):
        feature_blocks(Schema.of(made, LABELS))


# -- sums


@dataclass(frozen=True)
class Ask:
    """Ask for what the client has of its blocks."""


@dataclass(frozen=True)
class Sent:
    """Values by block, of whatever shape."""

    values: PerBlock


@dataclass(frozen=True)
class Held:
    """A server's state."""

    values: Any


@dataclass(frozen=True)
class Kept:
    """A client's state."""

    values: Any = None


@client_function
def send(state, block, message, rng):
    own = block.x[0, 0]
    values = {name: own * np.ones((2, len(names))) for name, names in block.groups.items()}
    return state, Sent(values)


@client_function
def keep(state, block, message, rng):
    return Kept(message.values), Ask()


def engine_over(blocks, mode):
    sealing = None
    if mode != "plain":
        keys = modes.in_one_process(SharedKey(bytes(range(32)), "tests"))
        if mode == "ckks":
            from intarsia.privacy.secure_aggregation.ckks import CkksKeys
            from intarsia.privacy.secure_aggregation.ckks_parameters import parameters

            secret = CkksKeys.create(parameters(2.0**22, len(blocks))).secret_bytes()
            keys = replace(keys, ckks=secret)
        sealing = replace(modes.sealing(Privacy(mode=mode), list(blocks), keys), long=1)
    engine = Simulation({"train": (Schema.of(blocks, LABELS), blocks)}, 0, sealing)
    engine.set_states(dict.fromkeys(blocks, Kept()))
    return engine


@pytest.mark.parametrize("mode", ["plain", "masked", "ckks"])
def test_a_total_by_block_is_that_of_its_holders_and_survives_a_checkpoint(mode):
    engine = engine_over(holders(), mode)
    every = engine.sum(send, dict.fromkeys(engine.ids, Ask())).values
    some = engine.sum(send, {"b": Ask()}).values
    total = every + some * 2.0 - some
    for _ in range(5):  # more terms than are forwarded
        total = total + engine.sum(send, {"c": Ask()}).values * 0.0
    written = codec.encode(engine.books.seal(Held(total)))
    total = engine.books.unseal(codec.decode(written, Held, *RECORDS)).values
    engine.ask(keep, dict.fromkeys(engine.ids, Sent(total)))
    opened = {name: state.values for name, state in engine.get_states().items()}
    expected = {"view10": 1.0, "view2": 1.0 + 2 * 2 + 3, "wide": 2 * 2.0 + 4}
    assert {name: sorted(own) for name, own in opened.items()} == {
        "a": ["view10", "view2"],
        "b": ["view2", "wide"],
        "c": ["view2"],
        "d": ["wide"],
    }
    for own in (*opened.values(), engine.reveal(total)):
        for name, values in own.items():
            assert values.shape == (2, len(VIEWS[name]))
            np.testing.assert_allclose(values, expected[name], atol=1e-9)
    assert engine.books.crossings.summary()["reveals"]["Sent.values"]["values"] == 12


def test_a_block_of_which_nobody_sent_anything_is_not_there():
    for mode in ("plain", "masked"):
        engine = engine_over(holders(), mode)
        engine.ask(keep, dict.fromkeys("ab", Sent(engine.sum(send, {"c": Ask()}).values)))
        opened = engine.get_states()
        assert list(opened["a"].values) == list(opened["b"].values) == ["view2"]


def test_columns_that_two_clients_name_otherwise_are_told():
    lab = {"lab": ("l1", "l2", "l10")}
    made = {
        "a": holder(("lab",), 0, extra=("age",), groups=lab),
        "b": holder(("blood", "x"), 1, groups={"blood": ("l1", "l2"), "x": ("x",)}),
        # what is named after the client is in no block
        "c": holder(("c", "lab"), 2, groups={"c": ("x", "age"), "lab": ("l1", "l2", "l10")}),
    }
    told = doubled(Schema.of(made, LABELS))
    assert [sentence.split(": networks")[0] for sentence in told] == [
        "The columns 'l1', 'l2' are of the feature block 'lab' at 'a' and of the feature block "
        "'blood' at 'b'",
        "The column 'x' is of the feature block 'x' at 'b' and in no block at 'c'",
    ]
    assert doubled(Schema.of(holders(), LABELS)) == ()
