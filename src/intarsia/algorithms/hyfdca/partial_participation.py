"""Proximal dual ascent: the phase of HyFDCA for rounds with clients away.

With some clients away the weights w(α) = 1/(λN) Σ_i α_i x_i cannot be brought up to the duals: what
is missing is divided by λN, and steps of any fixed length stall or diverge. Here the server keeps
the model u apart from the counted weights w, and a round is one step of the proximal point method
(Rockafellar 1976) on the saddle function

    L(u, α) = λ/2 ‖u‖² - 1/N Σ_k α_kᵀX_k u_k - 1/N Σ_i l*(-α_i)

in u, over the clients k that are there; the products X_k u_k and X_kᵀα_k of those that are away
stay in the totals z and w as they were counted last. At its solution nothing moves, whoever is
there: u = w(α) and each α_i maximises its term. One round:

1. clients that return count the duals they missed into w
2. draw: the clients move u_j of their features to (ρ_j u_j + λw_j)/(λ + ρ_j) and count it into z
3. up to `ascents` times, while it gains enough: local dual ascent with λ + ρ_j in place of λ, what
   w and z change by, line search along the change among the clients that are there; u_j moves by
   λ/(λ + ρ_j) times what w_j does
4. settling: the clients keep what the last search took; the server averages u and α over the
   rounds, late ones weighing more

ρ_j is a multiple of r_j^1.5, where r_j is the part that feature j has in the mean ‖x_i‖²: the
curvature along u_j that the clients that are away would add grows with it, so that rare words may
move further than common ones. The mean of the ρ_j, weighted by r_j, is ρ, a share of the mean
‖x_i‖². A diagonal metric as in Pock and Chambolle, "Diagonal preconditioning for first order
primal-dual algorithms", ICCV 2011; the power 1.5 is by experiment (1 is slower on text, none is
better on standardised tables).

The certificate takes the best of the last, the average and the models certified before as P, and of
their duals, scaled to the best length, as D. The server sees scalars only.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from intarsia.algorithms.hyfdca.partial_participation_client import (
    AscendThere,
    Candidate,
    Draw,
    Keep,
    KeepTrial,
    Missed,
    Model,
    ModelTotals,
    Partial,
    Place,
    Trial,
    ascend_locally,
    count_missed,
    count_trial,
    draw_model,
    keep_model,
    keep_trial,
    multiply_trial,
    part_of_dual,
    part_of_objectives,
    search_points,
)
from intarsia.core.algorithm import Clients, RandomKey, RoundMetrics
from intarsia.core.block import Array
from intarsia.errors import ConvergenceError
from intarsia.maths.linear import losses

_WORTHWHILE = 0.05  # a dual ascent that gains less than this share of the round's gain is its last
_RECENT = 4.0  # the average over n rounds gives the last one the weight 4/(n + 3)

STATES = (Partial, Place)


def step(partial: Partial, clients: Clients, rng: RandomKey) -> tuple[Partial, RoundMetrics]:
    """Take a proximal step among the clients that are there; all of them have a Place.

    A client counts as away if no owner of its samples is there with labels: their duals stand
    still, so that its features would follow them unchecked.
    """
    labellers, ids = dict(partial.labellers), set(clients.ids)
    there = tuple(name for name in clients.ids if ids.intersection(labellers[name]))
    if not there:
        return partial, RoundMetrics(phase="proximal ascent")
    alpha, w, z, u = partial.alpha, partial.w, partial.z, partial.u
    # step 1: catching up
    returning = [name for name in there if name not in partial.present]
    if returning:
        w = w + clients.sum(count_missed, dict.fromkeys(returning, Missed(alpha))).w
    # step 2: drawing
    drawn = clients.sum(draw_model, dict.fromkeys(there, Draw(u, w, there)))
    u, z = u + drawn.u, z + drawn.z
    # step 3: dual ascent
    taken, gained = 1.0, 0.0
    for number in range(partial.ascents):
        message = AscendThere(
            alpha=alpha,
            z=z,
            taken=taken,
            draw=rng.fold_in("owners", number).integer(),
            present=there,
        )
        steps = clients.sum(ascend_locally, dict.fromkeys(there, message))
        trial = Trial(alpha + steps.alpha)
        change = clients.sum(count_trial, dict.fromkeys(there, trial))
        model = Model(u + change.u, there)
        products = clients.sum(multiply_trial, dict.fromkeys(there, model))
        # discloses the dual's linear and data term at a few points of the line, and ‖Δu‖²
        along = clients.reveal(steps.along) / partial.samples
        taken, gain = _best_step(along, float(clients.reveal(products.square)[0]), partial.loss)
        alpha, w = alpha + steps.alpha * taken, w + change.w * taken
        u, z = u + change.u * taken, z + products.z * taken
        gained += gain
        if gain <= _WORTHWHILE * gained:
            break
    # step 4: settling
    settled = clients.sum(keep_trial, dict.fromkeys(there, KeepTrial(taken, z, there)))
    # discloses the data loss of the samples that are there, and their number
    loss = float(clients.reveal(settled.at)[0])
    if not math.isfinite(loss):
        raise ConvergenceError(
            f"The loss is {loss} after {partial.rounds + 1} rounds with clients away: the steps "
            "overshoot. Raise algorithm.proximal or algorithm.regularisation."
        )
    weight = _RECENT / (partial.rounds + _RECENT)
    partial = replace(
        partial,
        alpha=alpha,
        w=w,
        z=z,
        u=u,
        alpha_mean=partial.alpha_mean + (alpha - partial.alpha_mean) * weight,
        u_mean=partial.u_mean + (u - partial.u_mean) * weight,
        rounds=partial.rounds + 1,
        present=there,
    )
    # no objective: the loss is that of the samples that are there only
    return partial, RoundMetrics(phase="proximal ascent")


def metric(proximal: float, sizes: Array, features: int) -> float:
    """Return ρ_j/r_j^1.5 from ρ, and from Σ_j r_j and F^¾ Σ_j r_j^2.5 over the F features.

    It makes ρ the mean of the ρ_j, weighted by r_j.
    """
    total, power = sizes.tolist()
    return float(proximal * total * features**0.75 / power) if power > 0 else proximal


def _best_step(along: Array, square: float, loss: int) -> tuple[float, float]:
    """Return the step s in [0, 1] that maximises along(s) - s²/2·square, and what it gains.

    `along` is a quadratic of the step for all losses but the logistic, where the best of twelve
    points is taken.
    """
    points = search_points(loss)
    dual = along - 0.5 * points**2 * square
    if loss == losses.LOGISTIC:
        best = int(np.argmax(dual))
        return float(points[best]), float(dual[best] - dual[0])
    start, middle, end = dual
    curvature = 4 * (start - 2 * middle + end)  # second derivative
    slope = 4 * middle - 3 * start - end
    if curvature >= 0:
        step = 1.0 if end > start else 0.0
    else:
        step = float(np.clip(-slope / curvature, 0.0, 1.0))
    return step, float(slope * step + 0.5 * curvature * step**2)


def certify(partial: Partial, clients: Clients) -> tuple[Partial, RoundMetrics, Any]:
    """Return the objectives of the best of the last, the average and the models before.

    The third item is the sealed total of its weights.

    Raises
    ------
    ConvergenceError
        If that model is worse than a model of zeros.
    """
    start, primal, dual = 0.0, partial.lowest, -math.inf
    weights = partial.u if partial.best is None else partial.best
    for u, alpha in ((partial.u, partial.alpha), (partial.u_mean, partial.alpha_mean)):
        start, above, below = _objectives(partial, clients, u, alpha)
        dual = max(dual, below)
        if above < primal:
            primal, weights = above, u
    if not primal <= start * (1 + 1e-9):
        raise ConvergenceError(
            f"The primal objective is {primal:.3g} after {partial.rounds} rounds with clients "
            f"away, above the {start:.3g} of a model of zeros: run more rounds, or raise "
            "algorithm.proximal."
        )
    clients.ask(keep_model, dict.fromkeys(clients.ids, Keep(weights)))
    gap = (primal - dual) / max(primal, 1e-300)
    info = RoundMetrics(primal=primal, dual=dual, gap_relative=gap, phase="proximal ascent")
    return replace(partial, best=weights, lowest=primal), info, weights


def _objectives(
    partial: Partial, clients: Clients, u: Any, alpha: Any
) -> tuple[float, float, float]:
    """Return P(0), P(u) and the highest D(sα) for s from 0 to 1."""
    ridge = partial.regularisation
    parts = clients.sum(part_of_dual, dict.fromkeys(clients.ids, Candidate(u, alpha)))
    totals = ModelTotals(u=u, w=parts.w, z=parts.z)
    sums = clients.sum(part_of_objectives, dict.fromkeys(clients.ids, totals))
    # discloses the dual's data term at a few points, Σ l(z_i), Σ l(0), ‖u‖², ‖w(α)‖²
    conjugates = clients.reveal(parts.conjugates) / partial.samples
    loss, zero, square, square_dual = clients.reveal(sums.at).tolist()
    scale, _ = _best_step(conjugates, ridge * square_dual, partial.loss)
    # the data term is concave along the line: between two points it is at least their chord
    data = float(np.interp(scale, search_points(partial.loss), conjugates))
    primal = loss / partial.samples + 0.5 * ridge * square
    return zero / partial.samples, primal, data - 0.5 * ridge * scale**2 * square_dual
