"""Federated Newton's method: the phase of HyFDCA that finishes with a certificate.

    F(w) = λ/2 ‖w‖² + 1/N Σ_i φ_i(x_iᵀw)

φ is the loss; the hinge is smoothed around a dual centre that moves (proximal point in the dual,
Rockafellar 1976), so that its dual point β = clip(c + s(1 - yz), 0, 1) stays in its box. So is the
quantile loss, whose s is in units of one over the mean loss, as labels have a unit. Each dual
point α with the primal point w gives the certificate P(w) - D(α). The two sums that Newton's
method needs, Xv over the owners of a sample and Xᵀ(h∘Xv) over the owners of a feature, are those
that the federation has; the split of the data changes nothing in its convergence.

The server sees scalars only; every vector is a sealed total for the owners of its entries. A
round is one Newton step:

1. direction: solve (λI + 1/N X_Fᵀ h X_F) d = λ(w(α) - w) over the samples F with curvature
   - up to 512 features: exactly. Where sums are sealed, the system is found by secret sharing and
     solved by the server in secret bases (`shares`). Elsewhere one client solves it in a
     frame P that only the owners of each feature know, from rows in the frame. Bases and frame
     divide by the columns' sizes
   - more: by conjugate gradients on a sample of F (on F in sparse tables, and of losses whose
     curvature jumps in wide ones), preconditioned by the diagonals of each feature cell's own
     Gram matrix of it; where these take many iterations by the whole (in cells of at most 2048
     features), once iterations sent as much as that takes. A sample is taken with a probability in
     proportion to its curvature times its squared norm
   The sample doubles where F bends far more along the direction than it says, or where the gap
   stays: it then misses what bends F, such as columns of which it has no row. Where it misses
   nearly all, all rows are taken instead of more than half. In a frame such a step is not taken
   (but of the hinge, the quantile loss and the elastic net): it would go so far that curvature is
   lost. Of a loss with curvature everywhere fewer rows in a frame come at first: more cost more
   than they save in steps
   Short steps far from the optimum, and tiny ones anywhere, smooth the hinge more (in a shared
   system tiny ones, once it stands still; in a frame none); with the other
   losses they tell that samples gain curvature on the way, so that from then on those count that
   had any some steps ago, or at the end of a short step's direction, or (logistic) in the mean on
   the way. Products of
   dense rows are in single precision until conjugate gradients end at their limit
2. scores of the direction, q = Xd, and the slopes of F along it for an exact line search; with the
   log link it looks for steps of any shortness, and clients say which are too far for them
3. step: new scores, dual points and curvatures at the one client that reads a sample's scores, of
   those that hold its label; its owners get the dual point. The hinge moves its
   centre to the dual point when the inner problem is solved well enough
4. w(α), and the norms that make the certificate

Conjugate gradients go on where the rounding of an exact solve hides how F bends: in a frame, and of
a shared system with the elastic net where sums are not sealed. Where they are, the interior point
method cannot go on: where steps are tiny and P hardly falls, λ is raised by 8^5 once for Huber's
loss and the squared hinge. It is divided by 8 whenever the gap there is below 0.01: a path of
easier problems leads to the small λ. The certificate is that of the model's λ throughout. w(α) is
added up with the model's λ, and each client divides it: no total is scaled by the server.

Each output of a one-vs-rest model has its own point, step and smoothing; the exchanges carry them
all. Several numbers below were chosen on public data sets; they steer speed, not the result.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.algorithms.hyfdca.newton import client, direction, encrypted, shares
from intarsia.algorithms.hyfdca.newton.client import (
    LIFT,
    LOWER,
    SAMPLES,
    SHARED_SAMPLES,
    Gather,
    MeasurePoint,
    ModelScores,
    Move,
    Refresh,
    Start,
    enter,
    evaluate_model,
    gather_point,
    keep_scores,
    measure_point,
    move_duals,
    own_scores,
    share_weights,
)
from intarsia.algorithms.hyfdca.newton.direction import (
    FEW,
    MOST,
    Coefficients,
    Search,
    line_search,
    multiply,
    multiply_conjugate,
    multiply_exact,
)
from intarsia.algorithms.hyfdca.newton.encrypted import share_encrypted
from intarsia.algorithms.hyfdca.newton.frame import OwnFrame, keep_frame
from intarsia.algorithms.hyfdca.newton.interior_point import fits_frame, lost_digits
from intarsia.algorithms.hyfdca.newton.point import Overlap, Partner, Point
from intarsia.algorithms.hyfdca.newton.shares import (
    Dealer,
    Share,
    Sharing,
    reveal_variances,
    share_by_dealer,
    solve_shared,
)
from intarsia.core.algorithm import RoundMetrics
from intarsia.core.block import Array, ClientId
from intarsia.core.client_functions import Clients, RandomKey, evolve
from intarsia.maths.linear import losses
from intarsia.maths.linear.elastic_net import stiffness

PHASE = "newton"
MOST_FEATURES = 512  # most features for the exact solve
_IN_FRAME = 2**25  # most values of the rows in the frame at first: of more, some stand for all
_AT_FIRST, _FOR_EACH = 2**23, 300  # fewer, or so many rows for each feature, of curved losses
_COPIED = 2**27  # values of the rows that conjugate gradients copy at first, in single precision
_WIDE = 40  # samples for each feature up to which a sample saves little
_WIDE_SPARSE = 10  # and to which steps on all rows of a sparse table in a frame take no longer
_COLD, _WARM, _HIGHEST = 0.3, 3.0, 1e5  # weight of the smoothing: first, after dual ascent, last
_COLD_CONJUGATE = 1.0  # first where each step costs many exchanges: fewer steps
_LOWEST_CONJUGATE = 0.01  # least where short steps ask for a smoother inner problem
_LOWEST_ELASTIC = 1e-4  # where the interior point method cannot go on
_FAR, _COARSE, _FINE = 1e-2, 0.2, 0.1  # relative gap above which less will do
_SHORT, _TINY = 0.25, 1 / 64  # step below which many samples change sides, or nearly all
_RETURN = 0.25  # step below which samples are looked for on the whole way, there and back
_MISSED = 2.0  # how much more than the sample says F bends along the direction, at most
_MISSED_FAR = 16.0  # where a sample of more than half of the rows will not do
_HIDDEN, _HIDES = 0.8, 3  # share of the bend that an exact solve says, so often, that tells of it
_LOST = 1e6  # times that a frame says, that tells of it at once
_EIGHT, _STUCK = 8, 0.3  # steps, and what they leave of the gap where smoothing does not get on
_TURNS = 2  # tiny steps of the four after eight: samples change sides by turns
_FALLING = 1.08  # of P after eight steps that after four, where twelve may not be enough
_SOLVED = 1e-9  # relative gap at which rounding may keep it where it is
ENDS = 1e-6  # one at which no more steps may be asked for
_TINIES, _FLAT = 4, 0.9  # tiny steps of eight, and what these leave of P where it stands still
_FLATS = 2  # so often, one after another
_SHORTS = 2  # short steps, one after another, where samples change sides on and on
_AWAY = 1.0  # relative gap above which smoothing has a long way to go
_HOPELESS = 10.0  # relative gap that counts as that before at most
_SOLVING = 0.01  # part of the gap that is an inner error, where smoothing more may help
_INNER = 30.0  # how much larger than the proximal term an inner error may be


@dataclass(frozen=True)
class Newton:
    """The server's state: sealed totals, scalars, and what steers the outer loop.

    Arrays of scalars are (outputs,).
    """

    loss: int
    regularisation: float  # λ of the model, of the elastic net κ
    samples: int  # N
    labelled: tuple[ClientId, ...]  # clients that read scores
    framed: bool  # solve exactly in a frame
    budget: int  # samples in the Hessian
    weight: Array  # s
    centred_at: Array  # the number of Newton steps since the centre moved
    inner: Array  # tolerance of the inner problem
    eager: NDArray[np.bool_]  # whether to move the centre with the step
    best: Array  # largest dual so far
    error: Array  # ‖w - w(α)‖² at the last point
    gap: Array  # relative, at the last point
    mark: Array  # (2, outputs) gap and step where progress was last checked
    moved: Array  # Σ (β - c)² at the last point
    curved: float  # samples with curvature
    steps: int = 0
    still: int = 0  # steps without descent
    stalled: bool = False  # whether the interior point method is to go on
    eases: bool = False  # whether tiny steps smooth more in a shared system, too
    shorts: int = 0  # short steps, one after another
    hidden: int = 0  # steps, one after another, that rounding hid F's bend from
    tiny: int = 0  # steps of the last eight, at most
    eighth: float = np.inf  # relative gap where that was last checked
    eighth_primal: float = np.inf  # and the primal objective
    fourth_primal: float = 0.0  # that four steps later
    flat: int = 0  # how often, one after another, that hardly fell meanwhile
    features: int = 0
    peak: float = 0.0  # largest P since scores were counted afresh
    diagonal: bool = False  # sparse and wide: of Gram matrices the diagonals do
    faded: bool = False  # whether samples count that had curvature some steps ago
    refresh: bool = True  # whether to renew the preconditioner
    whole: bool = False  # whether it has more than diagonals: where these take many iterations
    iterations: int = 0  # of conjugate gradients after the last renewal
    since: int = 0  # all of them since whole Gram matrices were sent, or from the start
    grams: float = 0.0  # how many send as much as these
    single: bool = True  # whether they may go in single precision
    alpha: Any = None  # sealed (outputs, samples)
    dual_weights: Any = None  # sealed (outputs, features) w(α) with the model's regularisation
    gradient: Any = None  # sealed, in the frame
    hessian: Any = None  # sealed, in the frame
    gram: Any = None  # sealed; None: the clients keep their preconditioner
    dealer: Dealer | None = None  # where the system is shared
    bounds: Any = None  # sealed, of its size at the last point
    ended: bool = False  # whether there is nothing of a system at the last point
    # whether samples' curvatures are sent beside their duals, as they do not follow from these
    told: bool = False
    threshold: float = 0.0  # τ of the elastic net
    leaves: bool = False  # whether it is left sooner far from the optimum: see `begin`
    lift: float = 1.0  # the regularisation now over that of the model
    lifted: bool = False  # whether it was raised before
    drift: Array = field(default_factory=lambda: np.zeros(1))  # ‖ξ - c‖² at the last point
    primal: Array = field(default_factory=lambda: np.zeros(1))
    dual: Array = field(default_factory=lambda: np.zeros(1))
    # (outputs,) with the model's regularisation
    model_primal: Array = field(default_factory=lambda: np.zeros(1))
    model_dual: Array = field(default_factory=lambda: np.zeros(1))
    # Where sums are sealed their rounding makes steps near the optimum of many lengths, and the gap
    # goes up and down: the clients keep the weights of the best point, and here are
    keeps: bool = False  # whether they do
    least: float = np.inf  # P - D there
    kept: Any = None  # sealed, its duals; None: the last point is the best
    # (outputs,) what residuals are measured in: 1, of the quantile loss the mean loss
    unit: Array = field(default_factory=lambda: np.ones(1))


def begin(
    clients: Clients,
    *,
    alpha: Any,
    w: Any,
    z: Any,
    warm: bool,
    loss: int,
    regularisation: float,
    samples: int,
    features: int,
    outputs: int,
    labelled: tuple[ClientId, ...],
    sparse: bool,
    frame: bool = True,
    rows: bool = False,
    grams: float = 0.0,
    dealer: Dealer | None = None,
    told: bool = False,
    threshold: float = 0.0,
) -> Newton:
    """Start the phase from duals, w(α) and their scores; return the state at that point.

    `rows` says whether the interior point method may send rows in a frame; `dealer` is there where
    an exact solve is to be shared; `told` says that samples' curvatures are to be sent.
    """
    framed = solves_exactly(frame, features)
    dealer = dealer if framed else None
    size = features if framed else 0
    if dealer is not None:  # a basis for each cell of features
        size = next(iter(dealer.overlaps.values())).widest
    start = Start(alpha=alpha, w=w, warm=warm, frame=size, shared=dealer is not None)
    drawn = clients.sum(enter, start)
    if framed:
        own = OwnFrame(drawn.frame, drawn.squares)
        clients.ask(keep_frame, own)
    if warm:  # else the scores are 0
        clients.ask(keep_scores, dict.fromkeys(labelled, Refresh(z=z)))
    ones = np.ones(outputs)
    # the interior point method takes fewer steps there than smoothing by conjugate gradients
    most = (_WIDE_SPARSE if sparse else _WIDE) * features
    wide = not framed and fits_frame(samples, features) and samples <= most
    newton = Newton(
        loss=loss,
        regularisation=regularisation,
        samples=samples,
        features=features,
        labelled=labelled,
        framed=framed,
        budget=_first_budget(
            samples, features, loss, shared=dealer is not None, whole=framed != sparse
        ),
        weight=ones * (_WARM if warm else _COLD if framed else _COLD_CONJUGATE),
        centred_at=np.zeros(outputs),
        inner=ones * _INNER,
        eager=np.ones(outputs, bool),
        best=-np.inf * ones,
        error=np.inf * ones,
        gap=np.inf * ones,
        mark=np.stack([np.inf * ones, 0 * ones]),
        moved=np.zeros(outputs),
        curved=0.0,
        alpha=alpha,
        dual_weights=w,
        dealer=dealer,
        diagonal=sparse and features > MOST_FEATURES,
        # small, or more exact where sums are in fixed point
        whole=features <= MOST_FEATURES or clients.sealed,
        told=told,
        threshold=threshold,
        grams=0.0 if loss in losses.SMOOTHED or clients.sealed else grams,
        # a smoothed loss after short steps, one whose curvature jumps by what twelve leave
        leaves=(loss in losses.SMOOTHED or loss in losses.BENT)
        and (wide and rows and not (clients.sealed or threshold)),
        drift=np.zeros(outputs),
        keeps=clients.sealed and not threshold,
    )
    newton = _at(newton, clients, np.zeros(outputs), np.zeros(outputs))
    if loss == losses.QUANTILE:  # now that the unit is known; the first dual point had none
        newton = evolve(newton, weight=newton.weight / newton.unit, best=-np.inf * ones)
        newton = _at(newton, clients, np.zeros(outputs), np.zeros(outputs))
    return newton


def solves_exactly(frame: bool, features: int) -> bool:
    """Return whether the phase solves Newton's system exactly."""
    return frame and features <= MOST_FEATURES


def step(newton: Newton, clients: Clients, rng: RandomKey) -> tuple[Newton, RoundMetrics]:
    """Take one Newton step; return the state and the certificate at the new point."""
    if newton.ended:  # a certificate was asked for, and was not good enough
        newton = _at(newton, clients, np.zeros_like(newton.weight), np.zeros_like(newton.weight))
    if newton.lift > 1 and (newton.gap.max() < _FAR or newton.still > 3):
        newton = _lift(newton, clients, max(newton.lift / LOWER, 1.0))
    elastic, weight = newton.threshold > 0, newton.regularisation * newton.lift
    newton, products = _find_direction(newton, clients, weight, rng)
    length, bend = line_search(
        *(clients, newton.labelled, products, newton.weight),
        samples=newton.samples,
        regularisation=weight,
        steep=newton.loss in losses.LOG_LINK,
        elastic=elastic,
    )
    if newton.loss == losses.LOGISTIC and not newton.framed:
        # a longer step takes samples so far that their curvature is lost: the way back is tiny
        length = np.minimum(length, 1 / np.clip(bend, 0.25, 1.0))
    newton, length = _judge_length(newton, length, bend, sealed=clients.sealed)
    # the new point, with a new centre at once where the step was a full one
    centred = newton.loss in losses.SMOOTHED or elastic
    full = newton.eager & (newton.gap > 1e-2) & (length >= 0.8) & (length <= 1.2)
    eager = (full | (length == 0)) & centred
    newton = _ease(newton, length, eager, weight)
    newton = _move(newton, clients, length, bend, eager)
    allowed = newton.inner * newton.moved / (2 * newton.weight * newton.samples)
    if elastic:
        stiff = stiffness(newton.threshold, newton.weight)
        allowed = allowed + newton.inner * weight * newton.drift / (2 * stiff)
    good = 0.5 * weight * newton.error <= allowed
    if newton.hidden >= _HIDES:
        newton = _leave_exact(newton, clients)
    settled = centred & ~eager & (newton.centred_at >= 1) & good
    if settled.any():
        newton = _at(newton, clients, np.zeros_like(length), np.where(settled, newton.weight, 0.0))
    if lost_digits(newton):
        newton, _ = certify(newton, clients, ends=False)
    return newton, info(newton)


def _find_direction(
    newton: Newton, clients: Clients, weight: float, rng: RandomKey
) -> tuple[Newton, Any]:
    """Solve Newton's system under a ridge penalty; return the rows' products with the direction."""
    if newton.dealer is not None:
        given = clients, newton.dealer, newton.bounds, len(newton.weight), rng
        smoothed = newton.loss in losses.SMOOTHED
        found = solve_shared(*given, _share(newton.dealer), smoothed=smoothed)
        return newton, clients.sum(multiply, {name: Coefficients(y) for name, y in found.items()})
    if newton.framed:
        known = newton.labelled[0], newton.gradient, newton.hessian
        return newton, multiply_exact(clients, *known)
    products, used = multiply_conjugate(
        clients,
        newton.gram,
        samples=newton.samples,
        regularisation=weight,
        residual=_COARSE if newton.gap.max() > _FAR else _FINE,
        single=newton.single,
    )
    sent = newton.gram is not None
    since = used + (0 if sent and newton.whole else newton.since)
    newton = evolve(newton, single=newton.single and used < MOST, since=since)
    pays = since >= newton.grams  # whole Gram matrices are no more than was sent without
    if used >= FEW and pays and not newton.whole:
        newton = evolve(newton, whole=True, refresh=True)
    elif sent:
        newton = evolve(newton, iterations=used, refresh=False)
    else:
        worse = used > 1.3 * newton.iterations + 3 and (pays or not newton.whole)
        newton = evolve(newton, refresh=newton.refresh or worse)
    return newton, products


def _judge_length(
    newton: Newton, length: Array, bend: Array, *, sealed: bool
) -> tuple[Newton, Array]:
    """Count the step by its length, and take more samples where those taken missed too much.

    Return the state and the length, 0 where the system is to be solved again from here. `bend` is
    how much more than the solved system says F bends along the direction.
    """
    elastic = newton.threshold > 0
    if newton.dealer is None:  # in a frame
        blind = (bend < _HIDDEN) & (newton.gap > _SOLVED)
        hidden = newton.framed and newton.curved <= newton.budget
    else:
        blind = (bend < _HIDDEN) | ((length < _TINY) & (bend > 1 / _TINY) & (newton.steps > _EIGHT))
        hidden = elastic and not sealed
    hidden = hidden and bool((_matters(newton) & blind).any())
    some = newton.dealer is None and newton.curved > newton.budget  # some samples are left out
    missed = _matters(newton) & (bend > _MISSED) & some
    # what the sample misses would go so far that its curvature is lost: solve again from here
    stays = missed & newton.framed & (newton.loss not in losses.SMOOTHED) & (not elastic)
    went = _matters(newton) & ~stays
    newton = evolve(
        newton,
        hidden=newton.hidden + 1 if hidden else 0,
        steps=newton.steps + 1,
        centred_at=newton.centred_at + 1,
        still=newton.still + 1 if not length.any() else 0,
        shorts=newton.shorts + 1 if (went & (length < _SHORT)).any() else 0,
        tiny=newton.tiny + bool((went & (length < _TINY)).any()),
    )
    if missed.any():
        newton = _grow(newton, far=bool((missed & (bend > _MISSED_FAR)).any()))
    return newton, np.where(stays, 0.0, length)


def _ease(newton: Newton, length: Array, eager: NDArray[np.bool_], weight: float) -> Newton:
    """Make the inner problem smoother where a step was short, under a ridge penalty."""
    hinge, elastic = newton.loss in losses.SMOOTHED, newton.threshold > 0
    # with the log link each sample has curvature wherever it is
    loses = not hinge and newton.loss not in losses.LOG_LINK
    if loses and not newton.framed and (_matters(newton) & (length < _SHORT)).any():
        newton = evolve(newton, faded=True)
    if not hinge or not (newton.eases or not newton.framed):
        return newton
    # many samples change sides within a short step: a smoother inner problem, the centre stays
    bent = np.full(len(length), newton.curved > 0)
    if elastic:
        # at zeros no sample has curvature, and the first step is short for that; where the
        # inner problem is solved to what matters, steps are short by its rounding
        left = 0.5 * weight * newton.error > _SOLVING * (newton.primal - newton.best)
        bent = (newton.steps > 1) & left
    tiny = (length < _TINY) & bent
    short = (length < _SHORT) & (newton.gap > _FAR) & bent & (not newton.framed)
    eased = np.where(tiny, _fallen(newton, 8), np.where(short, _fallen(newton), newton.weight))
    return evolve(newton, weight=np.where(eager, newton.weight, eased))


def _move(
    newton: Newton, clients: Clients, length: Array, bend: Array, eager: NDArray[np.bool_]
) -> Newton:
    """Go so far along the direction, and choose by the new point what the next system takes in."""
    previous, curved = newton.error, newton.curved
    if newton.faded and (tiny := length < _RETURN).any():
        # there and back: samples that gain curvature on the whole way count from now on
        newton = _at(newton, clients, tiny.astype(np.float64), np.zeros_like(length))
        length = np.asarray(length - tiny, np.float64)
    newton = _at(newton, clients, length, np.where(eager, newton.weight, 0.0))
    slow = (length > 0) & ~eager & (newton.error > 0.1 * previous)
    # far away steps are slow, too, because F is not quadratic: a large sample is not to blame
    small = newton.framed and newton.dealer is None
    small = small and newton.budget < _FOR_EACH * newton.features
    near = small or newton.gap.max() <= _FAR
    if slow.any() and near and newton.curved > 1.01 * newton.budget:
        newton = _grow(newton)
    newton = _check_progress(newton, clients)
    if newton.framed and newton.dealer is None and newton.curved == curved > 0:
        # far more than an exact solve says, and not by samples that gain curvature
        lost = _matters(newton) & (bend > _LOST) & (newton.gap > _SOLVED)
        newton = evolve(newton, hidden=_HIDES if lost.any() else newton.hidden)
    return newton


def _leave_exact(newton: Newton, clients: Clients) -> Newton:
    """Go on by conjugate gradients, from the present point."""
    newton = evolve(newton, dealer=None, framed=False, whole=True, refresh=True)
    newton = evolve(newton, hidden=0, shorts=0, stalled=False)
    return _at(newton, clients, np.zeros_like(newton.weight), np.zeros_like(newton.weight))


def _share(dealer: Dealer) -> Share:
    """Return how clients come to shares of products: by words of the server's, or by their own."""
    return share_by_dealer if dealer.deals else share_encrypted


def info(newton: Newton) -> RoundMetrics:
    """Return the certificate at the present point, summed over the outputs."""
    primal, dual = float(newton.model_primal.sum()), float(newton.model_dual.sum())
    return RoundMetrics(
        finished=newton.lift == 1 and newton.still > 3 and newton.budget >= newton.samples,
        primal=primal,
        dual=dual,
        gap_relative=(primal - dual) / max(primal, 1e-300),
        phase=PHASE,
    )


def _at(
    newton: Newton, clients: Clients, length: Array, recentre: Array, *, ends: bool = False
) -> Newton:
    """Move by a step, move the centre (where `recentre` is not 0), and measure the point.

    Where no step follows (`ends`) there is nothing of Newton's system, which costs most of it.
    """
    weight, centred_at = newton.weight, newton.centred_at
    moves = recentre > 0
    if moves.any():
        # the smoothing fades while the inner problems are easy
        grown = np.minimum(2 * weight, _HIGHEST / newton.unit)
        weight = np.where(moves & (centred_at <= 2), grown, weight)
        weight = np.where(moves & (centred_at >= 6), _fallen(newton), weight)
        weight = np.where(moves, np.maximum(weight, _least(newton)), weight)
        centred_at = np.where(moves, 0, centred_at)
    move = Move(length, weight, recentre, newton.told)
    point = clients.sum(move_duals, dict.fromkeys(newton.labelled, move))
    # discloses for each output: losses, dual terms, the proximal term (of the Gamma loss Pearson's
    # χ²), the number of samples with curvature
    sums = clients.reveal(point.sums)
    curved = float(sums[:, 3].max())
    # without curvature, as at zero weights, there is nothing to precondition with
    renew = newton.refresh and not newton.framed and curved > 0 and not ends
    framed = newton.framed and newton.dealer is None and not ends
    message = Gather(
        alpha=point.alpha,
        weight=weight,
        step=length,
        budget=newton.budget,
        framed=framed,
        gram=renew,
        whole=newton.whole,
        faded=newton.faded,
        curvature=point.curvature if newton.told else None,
        recentre=recentre if newton.threshold else None,
        lift=newton.lift,
        keep=newton.keeps and newton.kept is None,
        ends=ends,
    )
    gathered = clients.sum(gather_point, message)
    rows = gathered.rows if framed else None
    measured = clients.sum(measure_point, MeasurePoint(w=gathered.w, rows=rows))
    # discloses for each output ‖w - w(α)‖², ‖w‖² and ‖w(α)‖²; the elastic net as `_measure_l1`
    norms = clients.reveal(measured.norms)
    norms = np.where(np.isneginf(norms), np.inf, norms)
    ridge, least = 0.5 * newton.regularisation * newton.lift, 0.5 * newton.regularisation
    loss, drift = sums[:, 0], newton.drift
    if newton.threshold:
        evaluated = dict.fromkeys(newton.labelled, ModelScores(z=measured.z))
        # discloses for each output the losses of the model, whose weights have their zeros
        loss, drift = clients.reveal(clients.sum(evaluate_model, evaluated).sums), norms[:, 3]
    implied = norms[:, 4] if newton.threshold else norms[:, 2] * newton.lift**2
    primal = ridge * norms[:, 1] + loss / newton.samples
    dual = sums[:, 1] / newton.samples - ridge * norms[:, 2]
    best = np.maximum(newton.best, dual)
    unit = newton.unit
    if newton.loss == losses.QUANTILE:
        unit = np.maximum(sums[:, 0] / newton.samples, 1e-100)
    found = evolve(
        newton,
        unit=unit,
        weight=weight,
        centred_at=centred_at,
        best=best,
        error=norms[:, 0],
        gap=(primal - best) / np.maximum(primal, 1e-300),
        moved=sums[:, 2],
        drift=drift,
        curved=curved,
        alpha=point.alpha,
        dual_weights=gathered.w,
        gradient=measured.gradient,
        hessian=measured.hessian,
        bounds=measured.bounds,
        gram=gathered.gram if renew else None,
        ended=ends,
        primal=primal,
        peak=max(newton.peak, float(primal.sum())),
        dual=dual,
        model_primal=least * norms[:, 1] + loss / newton.samples,
        model_dual=sums[:, 1] / newton.samples - least * implied,
    )
    return _with_best(found, newton.alpha) if newton.keeps else found


def _with_best(newton: Newton, alpha: Any) -> Newton:
    """Return the state that knows the best point: the last one, or one before with the duals."""
    gap = float((newton.model_primal - newton.model_dual).sum())
    if gap <= newton.least:
        return evolve(newton, least=gap, kept=None)
    return newton if newton.kept is not None else evolve(newton, kept=alpha)


def _first_budget(samples: int, features: int, loss: int, *, shared: bool, whole: bool) -> int:
    """Return how many samples to take into the Hessian at first."""
    if shared:  # the samples that tell most: few will do
        return max(SHARED_SAMPLES, 12 * features)
    # in the frame a sample misses the rare columns of a dense table; conjugate gradients take all
    # rows of a sparse one at little more cost
    few = max(SAMPLES, 6 * features)
    if not whole and loss in losses.BENT and samples <= _WIDE * features:
        # which samples have curvature changes with a step: all tell it, at little more cost
        return min(samples, max(few, _COPIED // features))
    if not whole:
        return min(samples, few)
    most = _IN_FRAME // features
    if loss in losses.CURVED:
        most = min(most, max(_AT_FIRST // features, _FOR_EACH * features))
    return min(samples, max(few, most))


def _fallen(newton: Newton, times: float = 2) -> Array:
    """Return a fraction of the weight of the smoothing, or its least, (outputs,)."""
    return np.maximum(newton.weight / times, _least(newton))


def _least(newton: Newton) -> Array:
    """Return the least weight of the smoothing, (outputs,)."""
    low = _LOWEST_ELASTIC if newton.threshold else _LOWEST_CONJUGATE
    return np.asarray((_COLD if newton.framed else low) / newton.unit)


def _matters(newton: Newton) -> NDArray[np.bool_]:
    """Return the outputs that have more than a hundredth of the gap, (outputs,)."""
    left = newton.primal - newton.best
    matters: NDArray[np.bool_] = (left > 0.01 * left.sum()) | np.isinf(left)
    return matters


def _grow(newton: Newton, *, far: bool = False) -> Newton:
    """Take twice the samples into the Hessian, where some were left out.

    Where the sample was `far` from what F bends, all are taken instead of more than half.
    """
    if newton.budget >= newton.samples:
        return newton
    twice = 2 * newton.budget
    taken = newton.samples if far and 2 * twice > newton.samples else min(twice, newton.samples)
    return evolve(newton, budget=taken, refresh=True)


def _check_progress(newton: Newton, clients: Clients) -> Newton:
    """Take more samples where twelve steps did not halve the gap; look whether to go on elsewhere.

    The inner problems of the hinge are then solved more strictly.
    """
    # sums in fixed point and a shared system have no digits for the interior point method
    inside = not clients.sealed and (newton.dealer is None or newton.threshold > 0)
    gap, primal = float(newton.gap.max()), float(newton.primal.sum())
    leaves = newton.loss in losses.BENT or (newton.leaves and gap > _AWAY)
    stuck = leaves and newton.shorts >= _SHORTS
    if newton.steps % _EIGHT == _EIGHT // 2:
        # on a dense table by turns of long and tiny steps, on a sparse one by how P falls
        turns = newton.loss == losses.SQUARED_HINGE and newton.tiny >= _TURNS
        turns &= newton.steps > _EIGHT
        fell = newton.fourth_primal > _FALLING * newton.eighth_primal
        far = newton.leaves and gap > _STUCK * _HOPELESS
        stuck |= newton.loss in losses.BENT and far and (fell if newton.diagonal else turns)
        newton = evolve(newton, fourth_primal=primal)
    if newton.steps % _EIGHT == 0:
        # exact steps are cheap: they get eight more
        patient = newton.framed and newton.steps == _EIGHT
        before = np.inf if patient else min(newton.eighth, _HOPELESS)
        stuck |= newton.loss in losses.SMOOTHED and gap > _STUCK * before
        flat = newton.tiny >= _TINIES and gap > 1 and primal > _FLAT * newton.eighth_primal
        flats = newton.flat + 1 if flat else 0
        newton = evolve(newton, eighth=gap, eighth_primal=primal, tiny=0, flat=flats)
    if stuck and not newton.framed and newton.curved > newton.budget:
        # short steps may come of what the sample misses
        newton, stuck = evolve(_grow(newton), shorts=0), newton.loss in losses.SMOOTHED
    ends = newton.flat >= _FLATS
    ends |= newton.still > 3 and gap > ENDS and not newton.threshold
    if ends and not inside and not newton.lifted and newton.loss in losses.BENT:
        return _lift(evolve(newton, lifted=True), clients, LIFT)
    if stuck and gap > _SOLVED and newton.features and (inside or not newton.threshold):
        newton = evolve(newton, stalled=inside, eases=not inside)
    due = newton.steps - newton.mark[1] >= 12
    if not due.any():
        return newton
    slow = due & (newton.gap > 0.5 * newton.mark[0])
    if (slow & _matters(newton)).any():
        newton = _grow(newton)
    mark = np.where(
        due, np.stack([newton.gap, np.full_like(newton.gap, newton.steps)]), newton.mark
    )
    return evolve(
        newton,
        mark=mark,
        inner=np.where(slow, np.maximum(newton.inner / 10, 0.1), newton.inner),
        eager=newton.eager & ~slow,
    )


def _lift(newton: Newton, clients: Clients, lift: float) -> Newton:
    """Go to so many times the model's regularisation, from the present point."""
    zeros = np.zeros_like(newton.weight)
    newton = evolve(
        newton,
        lift=lift,
        best=zeros - np.inf,
        still=0,
        shorts=0,
        refresh=True,
        mark=np.stack([zeros + np.inf, zeros + newton.steps]),
    )
    return _at(newton, clients, zeros, zeros)


def certify(newton: Newton, clients: Clients, *, ends: bool = True) -> tuple[Newton, RoundMetrics]:
    """Compute the scores afresh at the primal point, then the certificate; `ends` as for `_at`."""
    own = clients.sum(own_scores, Refresh(z=None))
    clients.ask(keep_scores, dict.fromkeys(newton.labelled, Refresh(z=own.z)))
    outputs = len(newton.weight)
    newton = evolve(newton, peak=0.0)
    newton = _at(newton, clients, np.zeros(outputs), np.zeros(outputs), ends=ends)
    return newton, info(newton)


def take_all(newton: Newton) -> Newton:
    """Return the state that takes all samples into the Hessian, with the model's regularisation."""
    return evolve(newton, budget=newton.samples, faded=False, lift=1.0)


def reveal_errors(
    newton: Newton, clients: Clients, w: Any, rng: RandomKey
) -> tuple[Array, Array, Array, Array | None]:
    """Return the weights, their standard errors, degrees of freedom, and the errors at zeros.

    Twice (outputs, features), (outputs,) that are left, and (outputs,) of the score where all
    columns of the tables are 0, at a point with all samples in the Hessian. The weights are opened
    last: once they are told, no site answers about the system any more.

        V = σ² (λI + 1/N Xᵀ h X)⁻¹ / N

    is the inverse of the penalised Fisher information λN I + Xᵀ h X: of the posterior with the
    prior N(0, 1/(λN)) on each weight (Wahba 1983, Nychka 1988), without a penalty that of
    maximum likelihood. σ² is 1 for the logistic and the Poisson loss. For the squared loss it is
    the residual sum of squares over N - tr((Xᵀ h X + λN I)⁻¹ Xᵀ h X), the degrees of freedom that
    are left; for the Gamma loss Pearson's χ² over these, and the information is the observed one.
    It is NaN where less than one is left. An error is NaN, too, that is not known to 1 % for the
    rounding of the system.
    """
    assert newton.dealer is not None
    outputs, samples = len(newton.weight), newton.samples
    given = clients, newton.dealer, newton.bounds, outputs, rng
    diagonal, known, zero = reveal_variances(*given, _share(newton.dealer))
    weights = open_weights(clients, w)
    taken = (1 - newton.regularisation * diagonal).clip(0, 1).sum(axis=1)
    left = np.maximum(samples - taken, 0.0)
    variance = np.ones(outputs)
    if newton.loss == losses.SQUARED:
        ridge = 0.5 * newton.regularisation * (weights**2).sum(axis=1)
        squares = 2 * samples * (newton.primal - ridge)
        variance = np.divide(squares, left, out=np.full(outputs, np.nan), where=left >= 1)
    if newton.loss == losses.GAMMA:
        variance = np.divide(newton.moved, left, out=np.full(outputs, np.nan), where=left >= 1)
    at_zero = None if zero is None else np.sqrt(variance * zero / samples)
    errors = np.sqrt(variance[:, None] * diagonal / samples)
    return weights, np.where(known, errors, np.nan), left, at_zero


def share_model(clients: Clients, *, best: bool = False, zeros: bool = False) -> Any:
    """Return the sealed totals of the primal point, w, and of which weights are 0, nonzero.

    With `best` the clients go back to the best one, with `zeros` to weights of 0.
    """
    return clients.sum(share_weights, Refresh(z=None, best=best, zeros=zeros))


def open_weights(clients: Clients, w: Any, nonzero: Any = None) -> Array:
    """Open the model to the server, (outputs, features); with its zeros exact where `nonzero`."""
    # discloses the model: the server may predict with it
    weights: Array = clients.reveal(w)
    if nonzero is not None:
        # discloses which weights are 0: sealed sums are as exact as their mode
        weights = np.where(clients.reveal(nonzero) > 0.5, weights, 0.0)
    return weights


SENDS = (
    *client.SENDS,
    *direction.SENDS,
    *shares.SENDS,
    *encrypted.SENDS,
)
STATES = (Newton, Point, Search, Sharing, Dealer, Overlap, Partner)
