"""Choose the clients that take part in a round."""

from __future__ import annotations

from collections.abc import Sequence

from intarsia.core.algorithm import RandomKey
from intarsia.core.block import ClientId
from intarsia.experiment.config import Experiment


def present(
    description: Experiment, clients: Sequence[ClientId], number: int
) -> tuple[ClientId, ...] | None:
    """Return the clients that take part in a round, in the federation's order; None: all.

    There is always at least one.
    """
    share, count = description.participation, len(clients)
    if share == 1.0:
        return None
    if description.participation_pattern == "cyclic":
        turns = _turns(description, count)
        chosen = tuple(clients[k] for k in range(count) if k % turns == (number - 1) % turns)
    else:
        key = RandomKey((description.seed, number, "participation"))
        drawn = key.generator().permutation(count)[: max(1, round(share * count))]
        chosen = tuple(clients[k] for k in sorted(drawn.tolist()))
    return None if len(chosen) == count else chosen


def fewest(description: Experiment, clients: Sequence[ClientId]) -> int:
    """Return how many clients a round has at least."""
    cyclic = description.participation_pattern == "cyclic"
    # drawn clients are as many in each round
    rounds = _turns(description, len(clients)) if cyclic else 1
    numbers = range(1, min(rounds, description.rounds) + 1)
    return min(len(present(description, clients, number) or clients) for number in numbers)


def _turns(description: Experiment, count: int) -> int:
    """Return after how many rounds every client was there, in the cyclic pattern."""
    return min(count, max(1, round(1 / description.participation)))
