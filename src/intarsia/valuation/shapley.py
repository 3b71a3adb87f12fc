"""What each player of a game is worth: by leaving it out, and by its Shapley value.

A game has a value for each coalition of players, v(S). A coalition is written as a number whose bit
k says whether player k is in it. Values may be arrays, such as one number for each replicate of a
bootstrap: what is computed is linear in them.

Source: L. S. Shapley, "A value for n-person games", Contributions to the Theory of Games II (1953),
307-317.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def left_out(values: Mapping[int, Array], players: Sequence[int]) -> dict[int, Array]:
    """Return by player what the coalition of all loses without it: v(N) - v(N without it)."""
    every = sum(1 << one for one in players)
    return {one: values[every] - values[every & ~(1 << one)] for one in players}


def shapley_values(values: Mapping[int, Array], players: Sequence[int]) -> dict[int, Array]:
    """Return by player its Shapley value; they add up to v(all) - v(none).

    It is the mean, over all orders in which the players may come, of what the coalition gains when
    the player comes: Σ_S |S|! (n - |S| - 1)! / n! · (v(S with it) - v(S)), over the coalitions S
    without it.

    Parameters
    ----------
    values
        v of every coalition of the players, none and all included.
    players
        The bits that are players; others are in no coalition.
    """
    count, found = len(players), {}
    for one in players:
        others = [player for player in players if player != one]
        total: Array = np.zeros_like(values[0])
        for number in range(1 << len(others)):
            coalition = sum(1 << player for at, player in enumerate(others) if number >> at & 1)
            size = number.bit_count()
            share = 1 / (count * math.comb(count - 1, size))
            total = total + share * (values[coalition | 1 << one] - values[coalition])
        found[one] = total
    return found
