"""Mean and deviation of the labels over all clients, for networks that learn numbers.

1. `count_labels`: each client sends how many labels it has, and their sum
2. `square_labels`: it opens the totals, and sends its squared deviations from the mean
3. `settle_labels`: it opens the total of these, and keeps mean and deviation

The server reads none of it. Every client knows mean and deviation then; of two, each knows the
other's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from intarsia import core as fl
from intarsia.algorithms.networks.training_rows import is_labelled
from intarsia.core.block import Array, Block


@dataclass(frozen=True)
class CountLabels:
    """Ask for the number and the sum of the labels."""


@fl.describe("the number and the sum of labels")
class LabelSums:
    """A client's part of them, or the total."""

    at: Array  # (2,) labels, Σ y


@fl.describe("the sum of squared deviations of labels")
class LabelSquares:
    """A client's part of the squared deviations."""

    at: Array  # (1,) Σ (y - mean)²


@dataclass(frozen=True)
class LabelSpread:
    """The totals of both."""

    sums: Array
    squares: Array


@dataclass(frozen=True)
class Settled:
    """Says that the client has the scale."""


def settle(clients: fl.Clients) -> None:
    """Let all clients know mean and deviation of the labels."""
    sums = clients.sum(count_labels, CountLabels()).at
    squares = clients.sum(square_labels, LabelSums(sums)).at
    clients.ask(settle_labels, LabelSpread(sums, squares))


def on_scale(client: Any, block: Block) -> Block:
    """Return a block with its labels in units of the federation, as networks learn them."""
    if client.outputs > 1 or block.y is None:
        return block
    return replace(block, y=(block.y - client.centre) / client.spread)


def _labels(block: Block) -> Array:
    return np.zeros(0) if block.y is None else block.y[is_labelled(block)]


@fl.client_function
def count_labels(client: Any, block: Block, message: CountLabels) -> tuple[Any, LabelSums]:
    """Send the number of labels and their sum."""
    y = _labels(block)
    return client, LabelSums(np.array([float(len(y)), float(y.sum())]))


@fl.told_the_same
@fl.client_function
def square_labels(client: Any, block: Block, message: LabelSums) -> tuple[Any, LabelSquares]:
    """Keep the mean; send the squared deviations from it."""
    centre = float(message.at[1] / message.at[0])
    squares = float(((_labels(block) - centre) ** 2).sum())
    return fl.evolve(client, centre=centre), LabelSquares(np.array([squares]))


@fl.client_function
def settle_labels(client: Any, block: Block, message: LabelSpread) -> tuple[Any, Settled]:
    """Keep the deviation; labels that are all the same stay as they are."""
    spread = float(np.sqrt(message.squares[0] / message.sums[0]))
    return fl.evolve(client, spread=spread or 1.0), Settled()


SENDS = fl.opening(
    {
        "LabelSpread.squares": "LabelSquares.at",
        "LabelSpread.sums": "LabelSums.at",
        "LabelSums.at": "LabelSums.at",
    },
    # before the first round all are there: a total of one is the mean of its labels
    (*fl.each(fl.sums(count_labels, square_labels), together="all"), *fl.asks(settle_labels)),
)
