"""Match the neurons of clients' classifiers to those of one server classifier.

A client's neuron in a hidden layer is its incoming weights, its bias and its outgoing weights. In
the server's coordinates (the inputs through P_m, hidden neurons through the matchings of the layers
beside, outputs by class) neurons of different clients can be compared. Which of them are one
neuron of the server is found client by client (Zhang et al., TMLR 2024, Algorithm 3):

1. take the client's neurons out; server neurons that nobody else has are gone
2. the cost of each pair of a server neuron and a client's neuron: how much the energy rises when
   the one joins the other, the best server weights before and after (`matching_cost`)
3. the best assignment, where a neuron may also be a new one of the server, as long as the width
   allows it

Departures from the paper. The cost is the rise of the whole objective (11), in which the server's
weights follow the assignment, rather than the distance to the others' mean: with many clients they
agree, and this one never raises the objective. Outgoing weights count too, as (11) has them;
without them (`outgoing=False`) layers are matched one after the other, as FedMA does (Wang et al.,
ICLR 2020, Algorithm 1). Clients take turns in their order rather than at random.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from intarsia.errors import ExperimentError, FederationError
from intarsia.maths.matching.matched_classifiers import (
    Classifier,
    Matching,
    check_classifiers,
    check_shares,
)
from intarsia.maths.matching.neuron_assignment import Arrangement, Cost, SquaredDistance


def match(
    classifiers: Sequence[Classifier],
    shares: Sequence[float] | None = None,
    *,
    cost: Cost | None = None,
    start: Matching | None = None,
    widths: Sequence[float] | float | None = None,
    passes: int = 10,
    outgoing: bool = True,
) -> Matching:
    """Return which neuron of the server each client's neuron is; every one of them has an owner.

    Ties and rounding keep the neurons where they are. It ends before `passes` passes when one
    changes nothing.

    Parameters
    ----------
    shares
        p_m, in any unit; None: all the same.
    cost
        None: `SquaredDistance()`, whose price hardly ever opens a neuron.
    start
        From an earlier round; None: clients join one by one, the widest first.
    widths
        The most neurons that the server may have, in every hidden layer or for each; math.inf: as
        many as the cost asks for; None: the largest client's.
    passes
        How often each client takes its turn at most, after all have joined.
    outgoing
        Whether outgoing weights count; else layers are matched one after the other.

    Raises
    ------
    FederationError
        If the classifiers do not fit together, or not to `start`.
    ExperimentError
        If a width is too small for a client, or another argument is out of range.
    """
    check_classifiers(classifiers)
    layers = len(classifiers[0].hidden)
    if passes < 0:
        raise ExperimentError(f"The number of passes is {passes}; set it to 0 or more.")
    if layers == 0:  # output rows are matched by class, inputs by P_m
        return Matching(tuple(() for _ in classifiers), (), (0.0,))
    limits = _limits(classifiers, widths)
    arrangement = Arrangement(
        classifiers,
        check_shares(shares, len(classifiers)),
        SquaredDistance() if cost is None else cost,
        limits,
        outgoing,
    )
    if start is not None:
        arrangement.place(_checked(start, classifiers, limits))
    together = [list(range(layers))] if outgoing else [[layer] for layer in range(layers)]
    curves = [_matched(arrangement, run, passes, start is None) for run in together]
    longest = max(map(len, curves))
    neurons, numbers = arrangement.places()
    return Matching(
        neurons,
        tuple(map(len, numbers)),
        tuple(sum(curve[min(k, len(curve) - 1)] for curve in curves) for k in range(longest)),
        numbers,
    )


def _matched(
    arrangement: Arrangement, layers: Sequence[int], passes: int, joining: bool
) -> list[float]:
    """Let clients take turns; return the objective before the passes and after each."""
    turns = range(len(arrangement.classifiers))
    if joining:
        sizes = [arrangement.size(client, layers) for client in turns]
        for client in np.argsort(-np.array(sizes), kind="stable"):
            arrangement.turn(int(client), layers)
    objectives = [arrangement.objective(layers)]
    for _ in range(passes):
        changed = [arrangement.turn(client, layers) for client in turns]
        if not any(changed):
            break
        objectives.append(arrangement.objective(layers))
    return objectives


def _limits(
    classifiers: Sequence[Classifier], widths: Sequence[float] | float | None
) -> tuple[int, ...]:
    """Return the most server neurons in each hidden layer."""
    hidden = list(zip(*(one.hidden for one in classifiers), strict=True))
    if widths is None:
        return tuple(max(layer) for layer in hidden)
    given = list(widths) if isinstance(widths, Sequence) else [widths] * len(hidden)
    if len(given) != len(hidden) or any(
        width < max(layer) for width, layer in zip(given, hidden, strict=False)
    ):
        raise ExperimentError(
            f"The server's hidden layers may have {given} neurons, and the largest client's have "
            f"{[max(layer) for layer in hidden]}; give each layer at least as many."
        )
    return tuple(int(min(w, sum(layer))) for w, layer in zip(given, hidden, strict=True))


def _checked(start: Matching, classifiers: Sequence[Classifier], limits: Sequence[int]) -> Matching:
    sizes = [tuple(len(places) for places in neurons) for neurons in start.neurons]
    expected = [one.hidden for one in classifiers]
    if sizes != expected:
        raise FederationError(
            f"The matching to start from has {sizes} neurons, the classifiers have {expected}; "
            "give one of the same clients in the same order."
        )
    for neurons in start.neurons:
        for places, limit in zip(neurons, limits, strict=True):
            unique = np.unique(places)
            if len(unique) < len(places) or unique[0] < 0 or unique[-1] >= limit:
                raise FederationError(
                    f"A matching to start from has {len(unique)} different server neurons up to "
                    f"{unique[-1]} for {len(places)} of a client; each needs its own, below the "
                    f"server's width, {limit}."
                )
    return start
