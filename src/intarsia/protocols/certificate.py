"""Certify a linear model by sums that are rounded: its bounds count all of it.

    P(w) = κ(½‖w‖² + τ‖w‖₁) + 1/N Σ_i l(x_iᵀw),   D(α) = -κ/2 ‖S(v)‖² - 1/N Σ_i l*(-α_i)

with v = 1/(κN) Σ_i α_i x_i, and S as in `intarsia.maths.linear.elastic_net`; without the absolute
weights τ is 0 and S(v) = v. In training totals are carried on for many rounds, and each addition
rounds them anew. Here all is counted afresh, in three exchanges:

1. duals: of each sample the one client that reads its score takes its dual into the box, and
   towards 0 to what sums leave as it is. So the total is that very dual, which bounds P from below
2. scores: the owners open model and duals, and send their parts of the scores Xw, and of v
3. objectives: a score may be off by what its sum is rounded by, and a convex loss is at most the
   larger one at the two ends. The server adds what the last sums are rounded by, and what v is

Sealed sums are in fixed point. Others are rounded in float64 alone, which matters where large terms
cancel, as of labels far from 0 or of separable rows: with scores and v the clients then send the
same sums of absolute values, and a sum is taken to be off by 4 unit roundoffs of that. Partial sums
of terms that cancel are so small that by chance it is 0.4 (Higham and Mary, "A New Approach to
Probabilistic Rounding Error Analysis", SIAM J. Scientific Computing 41, 2019).

The model is a sealed total as it is: the server reads the same numbers when it is opened.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from intarsia import core as fl
from intarsia.core.block import Array, Block, targets
from intarsia.errors import RefusedError
from intarsia.maths.linear import losses
from intarsia.maths.linear.elastic_net import soft_threshold
from intarsia.maths.linear.products import gather, scores

_SEALABLE = 2.0**60  # what a sealed number may reach
_ROUNDED = 4 * 2.0**-53  # how far a sum that cancels may be off, over the sizes of its terms
_AT_ONCE = 8192  # rows of which absolute values are taken at once


@dataclass(frozen=True)
class LastDuals:
    """The duals to certify by, and what sums make their entries multiples of."""

    alpha: fl.PerSample
    step: float


@fl.describe("each row's dual variable")
class RoundedDuals:
    """The duals of the samples whose scores a client reads, in their box and on the steps."""

    alpha: fl.PerSample


@dataclass(frozen=True)
class LastModel:
    """The model, and the duals to certify it by."""

    w: fl.PerFeature
    alpha: fl.PerSample
    sizes: bool = False  # whether sums of absolute values are sent: never where sums are sealed


@fl.describe(
    z="each row's model score",
    w="model weights or their changes",
    z_size="each row's model score",
    w_size="model weights or their changes",
)
class LastScores:
    """A client's part of the scores Xw, and of v; of the same sums of absolute values."""

    z: fl.PerScore
    w: fl.PerFeature
    z_size: fl.PerScore | None = None
    w_size: fl.PerFeature | None = None


@dataclass(frozen=True)
class LastTotals:
    """Model, duals, and the totals of `LastScores`."""

    model: fl.PerFeature
    alpha: fl.PerSample
    z: fl.PerScore
    w: fl.PerFeature
    off: float  # how far a score may be off
    z_size: fl.PerScore | None = None
    w_size: fl.PerFeature | None = None


@fl.describe("terms of the training objective")
class Bounds:
    """A client's part of the objectives, each sample and each feature once."""

    # (7,) Σ l(z_i), the most that it may be, Σ -l*(-α_i), ‖w‖² + 2τ‖w‖₁, ‖S(v)‖², and what float64
    # may take from the third and ‖v‖²; -inf says that ‖S(v)‖² is too large to be sealed
    at: Array


def _training(state: Any) -> Any:
    """Return a client's state of training, of the phase that it is in."""
    return getattr(state, "before", state)


def _check_step(step: float) -> float:
    """Refuse a step that no sum has: duals that are far from the client's own tell of rows."""
    if not 0.0 <= step < 1.0:  # nor for nan
        raise RefusedError(
            f"Sums were said to be rounded to steps of {step:g}, and a certificate needs steps "
            "below 1; run the algorithm as it is at the server, and lower privacy.range."
        )
    return step


@fl.told_the_same
@fl.client_function
def round_duals(state: Any, block: Block, message: LastDuals) -> tuple[Any, RoundedDuals]:
    """Send the duals of the samples whose scores this client reads, as sums leave them.

    With the absolute weights in the penalty they are the client's own, of its last point: ‖S(v)‖²
    of other multiples would tell how large each entry of v is.
    """
    training, step = _training(state), _check_step(message.step)
    read, options = training.reads, training.options
    told = state.alpha if options.threshold else message.alpha
    loss, y = losses.loss_code(options.loss), targets(block, len(told))[:, read]
    weights = block.weights_of(read)
    factor = 1.0 if weights is None else weights
    inside = losses.project(loss, told[:, read] / factor, y, shape=losses.shape_of(options))
    alpha = np.zeros_like(told)
    # every box has 0 in it
    alpha[:, read] = np.trunc(inside * factor / step) * step if step else inside * factor
    return state, RoundedDuals(alpha)


@fl.told_the_same
@fl.client_function
def score_both(state: Any, block: Block, message: LastModel) -> tuple[Any, LastScores]:
    """Send this client's part of Xw and of v."""
    training = _training(state)
    ridge = training.options.ridge * training.samples
    z, v = scores(block.x, message.w), gather(block.x, message.alpha) / ridge
    if not message.sizes:
        return state, LastScores(z, v)
    z_size, v_size = np.empty_like(z), np.zeros_like(v)
    w, alpha = np.abs(message.w), np.abs(message.alpha) / ridge
    for start in range(0, z.shape[1], _AT_ONCE):
        some = slice(start, start + _AT_ONCE)
        x = abs(block.x[some])
        z_size[:, some] = scores(x, w)
        v_size += gather(x, np.ascontiguousarray(alpha[:, some]))
    return state, LastScores(z, v, z_size, v_size)


@fl.told_the_same
@fl.client_function
def bound_objectives(state: Any, block: Block, message: LastTotals) -> tuple[Any, Bounds]:
    """Send this client's part of the objectives."""
    training, off = _training(state), _check_step(message.off)
    options, read, kept = training.options, training.reads, training.kept_features
    loss, y = losses.loss_code(options.loss), targets(block, len(message.z))[:, read]
    known: dict[str, Any] = {"weights": block.weights_of(read), "shape": losses.shape_of(options)}
    z, alpha, model = message.z[:, read], message.alpha[:, read], message.model
    square = float((soft_threshold(message.w, options.threshold) ** 2 @ kept).sum())
    away, less, lost = np.full(z.shape, off), 0.0, 0.0
    if message.z_size is not None and message.w_size is not None:
        away = away + _ROUNDED * message.z_size[:, read]
        less = _ROUNDED * losses.conjugate_size(loss, alpha, y).sum()
        lost = ((_ROUNDED * message.w_size) ** 2 @ kept).sum()
    at = (
        losses.value(loss, z, y, **known).sum(),
        losses.value(loss, z, y, **known, off=away).sum(),
        losses.minus_conjugate(loss, alpha, y, **known).sum(),
        ((model**2 + 2 * options.threshold * np.abs(model)) @ kept).sum(),
        square if square < _SEALABLE or message.w_size is not None else -math.inf,
        less,
        lost,
    )
    return state, Bounds(np.array(at, np.float64))


def certify(
    clients: fl.Clients,
    w: Any,
    alpha: Any,
    *,
    ridge: float,
    samples: int,
    features: int,
    outputs: int,
    phase: str,
) -> fl.RoundMetrics:
    """Return the certificate of a model by some duals, which need not be in their box.

    Both are sealed totals; `ridge` is κ, `samples` N.
    """
    rows = clients.rounding(outputs * samples)
    columns, one = clients.rounding(outputs * features), clients.rounding(1).error
    rounded = clients.sum(round_duals, LastDuals(alpha, rows.step))
    found = clients.sum(score_both, LastModel(w, rounded.alpha, not clients.sealed))
    totals = LastTotals(w, rounded.alpha, found.z, found.w, rows.error)
    if not clients.sealed:
        totals = replace(totals, z_size=found.z_size, w_size=found.w_size)
    # discloses the losses, the most that they may be, the dual's data term, the penalty, ‖S(v)‖²,
    # where sums are not sealed what float64 may take from two of them
    sums = clients.reveal(clients.sum(bound_objectives, totals).at).tolist()
    loss, most, conjugate, penalty, square, less, lost = sums
    square = math.inf if square == -math.inf else max(square, 0.0)
    away = math.sqrt(outputs * features) * columns.error  # of v, and so of S(v), at most
    away += math.sqrt(max(lost, 0.0))
    primal = (most + one) / samples + ridge / 2 * (penalty + one)
    dual = (conjugate - less - one) / samples - ridge / 2 * (math.sqrt(square + one) + away) ** 2
    apart = (loss - conjugate) / samples + ridge / 2 * (penalty + square)
    rounding = primal - dual - apart if math.isfinite(dual) else 0.0
    return fl.RoundMetrics.certified(primal, dual, phase, rounding)


SENDS = (
    *fl.sums(round_duals, score_both),
    *fl.sums(bound_objectives, reveals=("at",)),
)
