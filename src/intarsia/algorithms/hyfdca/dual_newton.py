"""Federated Newton's method in the dual: the phase of HyFDCA that certifies where N < M.

    F(w) = λ/2 ‖w‖² + 1/N Σ_i φ_i(x_iᵀw)

φ is the loss; the hinge is smoothed around a dual centre c with weight s, so that its dual point
β = clip(c + s(1 - yz), 0, 1) stays in its box. With h = φ″ and the samples F where h > 0, Newton's
direction for w is d = w(α) - w - X_Fᵀu/(λN), where

    (1/h + X_F X_Fᵀ/(λN)) u = X_F (w(α) - w)

is as large as F has samples, and well conditioned where rows are nearly orthogonal. The centre of
the hinge moves at each step, with extrapolation: the accelerated proximal point method in the
dual (Güler 1992). The point w and the dual point α give the certificate P(w) - D(α).

The server sees scalars only; every vector is a sealed total for the owners of its entries. A
round is one step:

1. u by conjugate gradients: each iteration is one sum over features (X_Fᵀp), one over samples
   (X_F of that), and two scalars; then X_Fᵀu
2. scores of the direction, and the slopes of F along it for the line search
3. new scores, centre, dual points and curvatures at one holder of each label
4. w(α), and the norms that make the certificate

Each output of a one-vs-rest model has its own point and step; the exchanges carry them all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from intarsia.algorithms.hyfdca import dual_newton_client
from intarsia.algorithms.hyfdca.dual_newton_client import (
    Anchor,
    CountDuals,
    DualWeights,
    MoveCentre,
    Report,
    Residual,
    Settlement,
    centre_duals,
    count_duals,
    measure_duals,
    report_scores,
    report_weights,
    search,
    settle_down,
    solve,
)
from intarsia.core.algorithm import Clients, RoundMetrics, evolve
from intarsia.core.block import Array, ClientId
from intarsia.maths.linear import losses
from intarsia.maths.linear.row_products import PackedRows

_WEIGHT = 2.0  # s at first as a multiple of λN over the mean ‖x_i‖²
_RESIDUAL_HINGE, _RESIDUAL_SMOOTH = 0.005, 0.03  # where conjugate gradients stop
_MOST, _DELAY = 0.4, 6.0  # θ at most, and the steps after which it would be a half
_PATIENCE = 150  # steps within which the gap must halve


@dataclass(frozen=True)
class DualNewton:
    """The server's state; arrays are (outputs,)."""

    loss: int
    regularisation: float
    samples: int  # N
    labelled: tuple[ClientId, ...]  # clients that hold labels
    weight: Array  # s
    pulled: Array  # steps since the extrapolation started
    previous: Array  # D at the last point
    best: Array  # largest D so far
    primal: Array
    dual: Array
    mark: tuple[float, int] = (np.inf, 0)  # gap and step where progress was last checked
    steps: int = 0
    still: int = 0  # steps without descent
    stalled: bool = False
    alpha: Any = None  # sealed (outputs, samples)
    dual_weights: Any = None  # sealed (outputs, features) w(α)


def begin(
    clients: Clients,
    *,
    alpha: Any,
    w: Any,
    loss: int,
    regularisation: float,
    samples: int,
    outputs: int,
    labelled: tuple[ClientId, ...],
) -> DualNewton:
    """Start the phase from duals and w(α); return the state at that point."""
    settlement = Settlement(alpha=alpha, w=w)
    found = clients.sum(settle_down, dict.fromkeys(clients.ids, settlement))
    # discloses the mean of ‖x_i‖²
    square = float(clients.reveal(found.norms)[0]) / samples
    weight = _WEIGHT * regularisation * samples / square if square > 0 else 1.0
    low = np.full(outputs, -np.inf)
    newton = DualNewton(
        loss=loss,
        regularisation=regularisation,
        samples=samples,
        labelled=labelled,
        weight=np.full(outputs, weight),
        pulled=np.zeros(outputs),
        previous=low,
        best=low,
        primal=-low,
        dual=low,
        alpha=alpha,
        dual_weights=w,
    )
    return _at(newton, clients, np.zeros(outputs), np.full(outputs, -1.0), z=found.z)


def step(newton: DualNewton, clients: Clients) -> tuple[DualNewton, RoundMetrics]:
    """Take one step; return the state and the certificate at the new point."""
    # step 1: u
    hinge = newton.loss == losses.HINGE
    solved = solve(
        clients,
        regularised_samples=newton.regularisation * newton.samples,
        residual=_RESIDUAL_HINGE if hinge else _RESIDUAL_SMOOTH,
        outputs=len(newton.weight),
    )
    # step 2: line search
    length = search(
        clients,
        newton.labelled,
        solved,
        weight=newton.weight,
        regularisation=newton.regularisation,
        samples=newton.samples,
    )
    # steps 3 and 4
    momentum = np.full(len(length), -1.0)
    if hinge:
        # the extrapolation starts again where it made the dual fall
        pulled = np.where(newton.dual < newton.previous, 0.0, newton.pulled)
        momentum = np.minimum(pulled / (pulled + _DELAY), _MOST)
        newton = evolve(newton, pulled=pulled + 1, previous=newton.dual)
    newton = _at(newton, clients, length, momentum)
    still = 0 if length.any() else newton.still + 1
    newton = _check_progress(evolve(newton, steps=newton.steps + 1, still=still))
    return newton, info(newton)


def info(newton: DualNewton) -> RoundMetrics:
    """Return the certificate at the present point, summed over the outputs."""
    primal, dual = float(newton.primal.sum()), float(newton.dual.sum())
    return RoundMetrics(
        primal=primal,
        dual=dual,
        gap_relative=(primal - dual) / max(primal, 1e-300),
        phase="dual newton",
    )


def certify(newton: DualNewton, clients: Clients) -> tuple[DualNewton, RoundMetrics]:
    """Compute the scores afresh at the primal point, then the certificate."""
    found = clients.sum(report_scores, dict.fromkeys(clients.ids, Report()))
    none = np.zeros(len(newton.weight))
    newton = _at(newton, clients, none, none - 1, z=found.z)
    return newton, info(newton)


def reveal_weights(clients: Clients) -> Array:
    """Open the primal point to the server, (outputs, features)."""
    own = clients.sum(report_weights, dict.fromkeys(clients.ids, Report()))
    # discloses the model: the server may predict with it
    weights: Array = clients.reveal(own.w)
    return weights


def _at(
    newton: DualNewton, clients: Clients, length: Array, momentum: Array, z: Any = None
) -> DualNewton:
    """Move by a step, move the centre, and measure the point."""
    move = MoveCentre(z=z, step=length, weight=newton.weight, momentum=momentum)
    point = clients.sum(centre_duals, dict.fromkeys(newton.labelled, move))
    count = CountDuals(alpha=point.alpha, curvature=point.curvature, step=length)
    changed = clients.sum(count_duals, dict.fromkeys(clients.ids, count))
    dual_weights = newton.dual_weights + changed.w
    measured = clients.sum(measure_duals, dict.fromkeys(clients.ids, DualWeights(w=dual_weights)))
    # discloses for each output: losses, dual terms, the proximal term, the number of samples with
    # curvature, ‖w‖² and ‖w(α)‖²
    sums, norms = clients.reveal(point.sums), clients.reveal(measured.norms)
    ridge = 0.5 * newton.regularisation
    dual = sums[:, 1] / newton.samples - ridge * norms[:, 1]
    return evolve(
        newton,
        primal=ridge * norms[:, 0] + sums[:, 0] / newton.samples,
        dual=dual,
        best=np.maximum(newton.best, dual),
        alpha=point.alpha,
        dual_weights=dual_weights,
    )


def _check_progress(newton: DualNewton) -> DualNewton:
    """Give up where the gap did not halve for long, or no step descends."""
    gap = float((newton.primal - newton.best).sum())
    stalled = newton.still > 3 or not np.isfinite(gap)
    mark = newton.mark
    if newton.steps - mark[1] >= _PATIENCE:
        stalled = stalled or gap > 0.5 * mark[0]
        mark = (gap, newton.steps)
    elif newton.steps == 1:
        mark = (gap, 1)
    return evolve(newton, mark=mark, stalled=stalled)


SENDS = dual_newton_client.SENDS
STATES = (DualNewton, Anchor, Residual, PackedRows)
