"""Clients' classifiers, which server neuron each of their neurons is, and what follows from that.

A classifier has layers x ↦ Wx + b with an activation between them. A client's neurons are some of
the server's, in an order of its own; it has some of the server's inputs (the columns of the blocks
that it holds), and the output rows of some classes count (those that it has seen). With Π_m the
selection of client m's weights from the server's, weights p_m,

    w_0 = argmin Σ_m p_m/2 ‖w_m - Π_m w_0‖² = (Σ_m p_m Π_mᵀΠ_m)⁻¹ Σ_m p_m Π_mᵀ w_m

is the mean of each weight over those who have it (Zhang et al., "Hybrid Federated Learning for
Feature & Sample Heterogeneity", TMLR 2024, Algorithm 1; extractors: equation (10)).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.errors import ExperimentError, FederationError

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Classifier:
    """The layers of a classifier, and which of the server's inputs and outputs it has."""

    weights: tuple[Array, ...]  # (out, in) of each layer; two layers have one hidden layer between
    biases: tuple[Array, ...]  # (out,) of each layer
    inputs: Array  # (in,) the server's number of each input
    outputs: Array  # (classes,) bool: classes whose rows count

    @property
    def hidden(self) -> tuple[int, ...]:
        """Return the widths of the hidden layers."""
        return tuple(len(weight) for weight in self.weights[:-1])


@dataclass(frozen=True)
class Matching:
    """Which server neuron each neuron of each client is."""

    neurons: tuple[tuple[Array, ...], ...]  # of each client and hidden layer: (client's neurons,)
    widths: tuple[int, ...]  # of the server's hidden layers
    objectives: tuple[float, ...] = ()  # before the passes, and after each; none was made: empty
    # of each hidden layer: (width,) the neurons' numbers where it started, of new ones beyond these
    numbers: tuple[Array, ...] = ()


def same_order(classifiers: Sequence[Classifier]) -> Matching:
    """Return the matching where neuron j of every client is neuron j of the server."""
    check_classifiers(classifiers)
    return Matching(
        tuple(tuple(np.arange(width) for width in one.hidden) for one in classifiers),
        tuple(max(widths) for widths in zip(*(one.hidden for one in classifiers), strict=True)),
    )


def aggregate(
    classifiers: Sequence[Classifier],
    matching: Matching,
    shares: Sequence[float] | None = None,
    *,
    inputs: int,
    otherwise: Classifier | None = None,
) -> Classifier:
    """Return the server's classifier: the mean of each weight over the clients that have it.

    Parameters
    ----------
    shares
        p_m, in any unit; None: all the same.
    inputs
        The number of the server's inputs.
    otherwise
        Gives the weights that no client has (rows of classes that nobody saw, columns of blocks
        that no owner of a neuron holds); None: zeros.

    Raises
    ------
    FederationError
        If the classifiers do not fit together.
    """
    check_classifiers(classifiers)
    weighted = check_shares(shares, len(classifiers))
    widths = (inputs, *matching.widths, len(classifiers[0].outputs))
    shapes = [(after, before) for before, after in pairwise(widths)]
    totals = [(np.zeros(shape), np.zeros(shape[0])) for shape in shapes]
    masses = [(np.zeros(shape), np.zeros(shape[0])) for shape in shapes]
    for one, neurons, share in zip(classifiers, matching.neurons, weighted, strict=True):
        counted = np.flatnonzero(one.outputs)
        places = (one.inputs, *neurons, counted)
        for layer, (before, after) in enumerate(pairwise(places)):
            last = layer + 1 == len(shapes)
            rows = counted if last else slice(None)
            cells = np.ix_(after, before)
            totals[layer][0][cells] += share * one.weights[layer][rows]
            totals[layer][1][after] += share * one.biases[layer][rows]
            masses[layer][0][cells] += share
            masses[layer][1][after] += share
    if otherwise is not None and [weight.shape for weight in otherwise.weights] != shapes:
        raise FederationError(
            "The classifier that fills in what no client has is of shapes "
            f"{[weight.shape for weight in otherwise.weights]}, and the matching asks for "
            f"{shapes}; give one of the same widths."
        )
    dtype = np.result_type(*(one.weights[0] for one in classifiers))
    filling = totals if otherwise is None else _layers(otherwise)
    means = [
        [_mean(*each).astype(dtype) for each in zip(*layer, strict=True)]
        for layer in zip(totals, masses, filling, strict=True)
    ]
    return Classifier(
        tuple(weight for weight, _ in means),
        tuple(bias for _, bias in means),
        np.arange(inputs),
        np.any([one.outputs for one in classifiers], axis=0),
    )


def _layers(one: Classifier) -> list[tuple[Array, Array]]:
    return list(zip(one.weights, one.biases, strict=True))


def _mean(total: Array, mass: Array, otherwise: Array) -> Array:
    mean: Array = np.where(mass > 0, total / np.where(mass > 0, mass, 1.0), otherwise)
    return mean


def project(server: Classifier, neurons: Sequence[Array], inputs: Array) -> Classifier:
    """Return Π_m w_0: a client's part of the server's classifier.

    Parameters
    ----------
    neurons
        The server's numbers of the client's neurons, of each hidden layer.
    inputs
        The server's numbers of the client's inputs, (in,).
    """
    places = (inputs, *neurons, np.arange(len(server.outputs)))
    return Classifier(
        tuple(
            weight[np.ix_(after, before)]
            for weight, (before, after) in zip(server.weights, pairwise(places), strict=True)
        ),
        tuple(bias[after] for bias, after in zip(server.biases, places[1:], strict=True)),
        np.asarray(inputs),
        server.outputs,
    )


def check_shares(shares: Sequence[float] | None, clients: int) -> Array:
    """Return p_m as shares of one, (clients,).

    Raises
    ------
    ExperimentError
        If there is not one positive, finite weight for each client.
    """
    given = np.ones(clients) if shares is None else np.asarray(shares, float)
    if given.shape != (clients,) or not np.isfinite(given).all() or (given <= 0).any():
        raise ExperimentError(
            f"The clients' weights are {given.tolist()}; give {clients} positive numbers, one for "
            "each client."
        )
    fractions: Array = given / given.sum()
    return fractions


def check_classifiers(classifiers: Sequence[Classifier]) -> None:
    """Say whether classifiers can be matched.

    Raises
    ------
    FederationError
        If layers do not fit, depths or classes differ, or a weight is not finite.
    """
    if not classifiers:
        raise FederationError("There is no classifier to match; at least one client must take part")
    depth, classes = len(classifiers[0].weights), len(classifiers[0].outputs)
    for number, one in enumerate(classifiers):
        if (len(one.weights), len(one.outputs)) != (depth, classes):
            raise FederationError(
                f"Classifier {number} has {len(one.weights)} layers and {len(one.outputs)} "
                f"classes, classifier 0 has {depth} and {classes}; all need the same."
            )
        widths = (len(one.inputs), *one.hidden, classes)
        expected = [(after, before) for before, after in pairwise(widths)]
        if [weight.shape for weight in one.weights] != expected or [
            bias.shape for bias in one.biases
        ] != [(after,) for after, _ in expected]:
            raise FederationError(
                f"Classifier {number} has weights of shapes {[w.shape for w in one.weights]} and "
                f"biases of {[b.shape for b in one.biases]}; expected {expected} from its inputs, "
                "hidden widths and classes, and a bias for each row."
            )
        if not all(np.isfinite(values).all() for values in (*one.weights, *one.biases)):
            raise FederationError(
                f"Classifier {number} has a weight that is not finite: its training diverged; "
                "lower the learning rate."
            )
