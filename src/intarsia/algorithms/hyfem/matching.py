"""Classifiers of clients that start on their own, put together neuron by neuron.

A hidden neuron's number means nothing between networks that were drawn or trained apart. After the
first round (`start` = "matched"), or after every round (`matching` = "rounds", Algorithm 3), each
client sends its classifier; the server matches them (`maths.neuron_matching`), averages what is
matched, and everybody goes on from there in the server's order, which is where the matching of the
next round starts. A neuron that is opened because that is cheaper (`growth`) has everybody too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from intarsia import core as fl
from intarsia.algorithms.hyfem.network import Composition, Parts, split_rest
from intarsia.core.block import Array, ClientId
from intarsia.errors import ConvergenceError, SiteError, shown
from intarsia.maths.matching.matched_classifiers import Classifier, Matching, aggregate, same_order
from intarsia.maths.matching.neuron_matching import match

if TYPE_CHECKING:
    from intarsia.maths.matching.neuron_assignment import Cost

_LARGEST = 1e15  # weight of a classifier, so that networks in float32 come to numbers by it


@fl.describe("network parameters or their changes", classes="which classes a client has rows of")
class OwnClassifier:
    """A client's classifier, and the classes that it has rows of."""

    columns: Mapping[str, Array]  # block → (units, features), of the first layer
    rest: Array  # β_1, W_2, β_2, …
    classes: NDArray[np.bool_]  # (outputs,)


def joined(
    made_of: Composition,
    replies: Mapping[ClientId, OwnClassifier],
    shares: Mapping[ClientId, float],
    before: Parts,
    *,
    cost: Cost | None = None,
    in_order: bool = False,
    again: bool = False,
    passes: int = 10,
    widest: Sequence[float] | None = None,
    outgoing: bool = True,
) -> tuple[Composition, Parts]:
    """Return the server's classifier from those of the clients, with the extractors of `before`.

    A weight that none of them has is the server's as it was, and 0 where its neuron is a new one.

    Parameters
    ----------
    made_of, before
        The server's network, and what of it the server has, or has drawn.
    shares
        p_m of the clients.
    cost
        Of a match; None: squared distances.
    in_order
        Neurons of one number are taken for one, for comparison.
    again
        Whether the matching goes on from neurons of one number, rather than from nothing.
    widest
        How many neurons the server may come to have in each hidden layer; None: as many as clients.
    outgoing
        Whether outgoing weights count in a match, else layers are matched one after the other.

    Raises
    ------
    SiteError
        If a client's classifier is none of the server's layers over blocks that there are.
    ConvergenceError
        If one has a weight that is not finite, or too large for distances.
    """
    clients = sorted(replies)
    for client, one in replies.items():
        _check_sent(made_of, client, one)
    found = [
        classifier_of(made_of, Parts({}, one.columns, one.rest), one.classes)
        for one in (replies[client] for client in clients)
    ]
    weights = [shares[client] for client in clients]
    matching = same_order(found)
    if not in_order:
        start = matching if again else None
        known: dict[str, Any] = {"cost": cost, "start": start, "widths": widest}
        matching = match(found, weights, **known, passes=passes, outgoing=outgoing)
    starts = _starts(made_of)
    was = classifier_of(made_of, before, np.ones(made_of.outputs, bool))
    otherwise = _widened(was, _numbers(matching, made_of.hidden, drawn=not again))
    server = aggregate(found, matching, weights, inputs=starts[-1], otherwise=otherwise)
    ends = dict(zip(made_of.blocks, pairwise(starts), strict=True))
    rest = [server.biases[0]]
    for weight, bias in zip(server.weights[1:], server.biases[1:], strict=True):
        rest += [weight, bias]
    return replace(made_of, hidden=server.hidden), Parts(
        before.extractors,
        {name: server.weights[0][:, start:end] for name, (start, end) in ends.items()},
        np.concatenate([piece.ravel() for piece in rest]),
    )


def _check_sent(made_of: Composition, client: ClientId, sent: OwnClassifier) -> None:
    """Refuse what is no classifier of the server's layers, by the client's name."""
    first, *_ = units = (*made_of.hidden, made_of.outputs)
    wide = dict(zip(made_of.blocks, (one.width for one in made_of.extractors), strict=True))
    shapes = {name: np.shape(one) for name, one in sent.columns.items()}
    size = sum(units) + sum(into * out for into, out in pairwise(units))
    if (
        not shapes
        or not shapes.items() <= {name: (first, width) for name, width in wide.items()}.items()
        or (sent.rest.shape, sent.classes.shape) != ((size,), (made_of.outputs,))
        or sent.classes.dtype != bool
    ):
        raise SiteError(
            f"{client!r} sends a classifier with columns of the shapes {shown(shapes, 200)}, "
            f"{sent.rest.shape} other weights and {sent.classes.shape} classes, where {first} "
            f"units, {size} and {made_of.outputs} were expected; install the same version of "
            "intarsia there, or see who runs the site."
        )
    if not all(
        np.abs(one).max(initial=0.0) < _LARGEST for one in (*sent.columns.values(), sent.rest)
    ):
        raise ConvergenceError(
            f"{client!r} sends a classifier with weights that are no numbers, or beyond "
            f"{_LARGEST:g}; lower algorithm.rate, or see who runs the site."
        )


def _numbers(matching: Matching, hidden: Sequence[int], drawn: bool) -> list[Array]:
    """Return the numbers that the server's neurons had before, -1: it is a new one.

    Of a network that was drawn and has trained nowhere, neurons that all clients have take the
    numbers in their order.
    """
    found: list[Array] = []
    for layer, (width, before) in enumerate(zip(matching.widths, hidden, strict=True)):
        if drawn or not matching.numbers:
            owners = np.bincount(
                np.concatenate([own[layer] for own in matching.neurons]), minlength=width
            )
            numbers = np.where(owners == len(matching.neurons), np.arange(width), -1)
        else:
            numbers = matching.numbers[layer]
        found.append(np.where(numbers < before, numbers, -1))
    return found


def _widened(server: Classifier, numbers: Sequence[Array]) -> Classifier:
    """Return a classifier whose neurons have these numbers in the server's; new ones are 0."""
    places = (server.inputs, *numbers, np.arange(len(server.outputs)))
    weights, biases = [], []
    for weight, bias, (into, out) in zip(
        server.weights, server.biases, pairwise(places), strict=True
    ):
        known = (out >= 0)[:, None] & (into >= 0)
        weights.append(np.where(known, weight[np.ix_(out, into)], 0.0))
        biases.append(np.where(out >= 0, bias[out], 0.0))
    return Classifier(tuple(weights), tuple(biases), server.inputs, server.outputs)


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
