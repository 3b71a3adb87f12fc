from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from intarsia.tuning.choice import chosen, grey_relational, pareto_front

numbers = st.integers(0, 6).map(float)


def test_the_coefficients_are_those_computed_by_hand():
    # accuracy up, rounds down; scaled: (1, 0), (0.5, 0.75), (0, 1); Δ: (0, 1), (0.5, 0.25), (1, 0)
    values = [[0.9, 50.0], [0.8, 20.0], [0.7, 10.0]]
    found = grey_relational(values, [True, False])
    by_hand = [(1 + 1 / 2) / 2, (1 / 1.5 + 1 / 1.25) / 2, (1 / 2 + 1) / 2]
    assert found == pytest.approx(by_hand, abs=1e-15)
    assert chosen(values, [True, False]) == 0  # 0.75, 0.733 and 0.75: the first of equals


def test_an_objective_that_is_the_same_everywhere_counts_as_best():
    assert grey_relational([[1.0, 3.0], [2.0, 3.0]], [False, False]).tolist() == [1.0, 0.75]
    assert grey_relational([[1.0], [1.0]], [True]).tolist() == [1.0, 1.0]


@given(st.lists(st.tuples(numbers, numbers, numbers), min_size=1, max_size=12))
def test_no_row_is_better_than_one_of_the_front(rows):
    better = [True, False, False]
    front = pareto_front(rows, better)
    assert front.any()

    def dominates(a, b):
        signed = [(x, y) if up else (-x, -y) for x, y, up in zip(a, b, better, strict=True)]
        return all(x >= y for x, y in signed) and any(x > y for x, y in signed)

    for row, on in zip(rows, front, strict=True):
        assert on == (not any(dominates(other, row) for other in rows))
    assert front[chosen(rows, better)]


@given(st.lists(numbers, min_size=1, max_size=12), st.booleans())
def test_with_one_objective_the_best_row_is_chosen(values, more):
    best = np.argmax(values) if more else np.argmin(values)
    assert chosen([[one] for one in values], [more]) == best
