"""Classifiers of clients that start on their own, put together neuron by neuron.

A hidden neuron's number means nothing between networks that were drawn or trained apart. After the
first round (`start` = "matched"), or after every round (`matching` = "rounds", Algorithm 3), each
client sends its classifier; the server matches them (`maths.neuron_matching`), averages what is
matched, and everybody goes on from there in the server's order, which is where the matching of the
next round starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from intarsia.algorithms.block_network import Composition, Parts, split_rest
from intarsia.data import Array, ClientId
from intarsia.maths.matched_classifiers import Classifier, aggregate, same_order
from intarsia.maths.neuron_matching import match

if TYPE_CHECKING:
    from intarsia.maths.matching_cost import Cost

__all__ = ["OwnClassifier", "classifier_of", "joined"]


@dataclass(frozen=True)
class OwnClassifier:
    """A client's classifier, and the classes that it has rows of."""

    columns: Mapping[str, Array]  # block → (units, features), of the first layer
    rest: Array  # β_1, W_2, β_2, …
    classes: NDArray[np.bool_]  # (outputs,)


def joined(
    made_of: Composition,
    replies: Mapping[ClientId, OwnClassifier],
    shares: Mapping[ClientId, float],
    drawn: Parts,
    *,
    cost: Cost | None = None,
    in_order: bool = False,
    passes: int | None = None,
) -> Parts:
    """Return the server's classifier from those of the clients, with the extractors of `drawn`.

    Parameters
    ----------
    made_of
        The server's network.
    shares
        p_m of the clients.
    drawn
        Gives what no client has: columns of blocks and rows of classes that nobody holds.
    cost
        Of a match; None: squared distances.
    in_order
        Neurons of one number are taken for one, for comparison.
    passes
        From neurons of one number on; None: from nothing, as many as it takes.
    """
    clients = sorted(replies)
    found = [
        classifier_of(made_of, Parts({}, one.columns, one.rest), one.classes)
        for one in (replies[client] for client in clients)
    ]
    weights = [shares[client] for client in clients]
    matching = same_order(found)
    if not in_order and passes is None:
        matching = match(found, weights, cost=cost)
    elif not in_order:
        matching = match(found, weights, cost=cost, start=matching, passes=passes or 0)
    starts = _starts(made_of)
    otherwise = classifier_of(made_of, drawn, np.ones(made_of.outputs, bool))
    server = aggregate(found, matching, weights, inputs=starts[-1], otherwise=otherwise)
    ends = dict(zip(made_of.blocks, pairwise(starts), strict=True))
    rest = [server.biases[0]]
    for weight, bias in zip(server.weights[1:], server.biases[1:], strict=True):
        rest += [weight, bias]
    return Parts(
        drawn.extractors,
        {name: server.weights[0][:, start:end] for name, (start, end) in ends.items()},
        np.concatenate([piece.ravel() for piece in rest]),
    )


def _starts(made_of: Composition) -> list[int]:
    """Return where each block's features start among the inputs of the first layer, and the end."""
    return [0, *accumulate(one.width for one in made_of.extractors)]


def classifier_of(made_of: Composition, parts: Parts, classes: NDArray[np.bool_]) -> Classifier:
    """Return a network's classifier in the coordinates of the server's, `made_of`."""
    starts = dict(zip(made_of.blocks, pairwise(_starts(made_of)), strict=True))
    held = [name for name in made_of.blocks if name in parts.columns]
    biases, weights = split_rest(parts.rest, (*made_of.hidden, made_of.outputs))
    return Classifier(
        (np.concatenate([parts.columns[name] for name in held], axis=1), *weights),
        tuple(biases),
        np.concatenate([np.arange(*starts[name]) for name in held]),
        classes,
    )
