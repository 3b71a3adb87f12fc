from __future__ import annotations

import numpy as np
import pytest

from intarsia.valuation.shapley import left_out, shapley_values


def test_the_glove_game_has_its_published_values():
    """Player 0 has a left glove, 1 and 2 a right one each; a pair is worth 1 (Shapley 1953)."""
    values = {s: np.array(float(s & 1 and s & 6 != 0)) for s in range(8)}
    found = shapley_values(values, [0, 1, 2])
    assert [float(found[one]) for one in range(3)] == pytest.approx([2 / 3, 1 / 6, 1 / 6])
    assert [float(one) for one in left_out(values, [0, 1, 2]).values()] == [1.0, 0.0, 0.0]


def test_shapley_values_are_means_over_all_orders_and_add_up():
    from itertools import permutations

    rng = np.random.default_rng(0)
    players = [0, 2, 3, 5]  # others are in no coalition
    numbers = [sum(1 << one for at, one in enumerate(players) if s >> at & 1) for s in range(16)]
    values = {number: rng.normal(size=3) for number in numbers}
    wanted = {one: np.zeros(3) for one in players}
    for order in permutations(players):
        before = 0
        for one in order:
            wanted[one] += (values[before | 1 << one] - values[before]) / 24
            before |= 1 << one
    found = shapley_values(values, players)
    for one in players:
        np.testing.assert_allclose(found[one], wanted[one], atol=1e-12)
    np.testing.assert_allclose(sum(found.values()), values[numbers[-1]] - values[0], atol=1e-12)
