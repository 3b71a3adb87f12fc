"""HyFDCA: hybrid federated dual coordinate ascent.

Overman, Blum and Klabjan, "A Primal-Dual Algorithm for Hybrid Federated Learning", AAAI 2024.

    primal  P(w) = λ/2 ‖w‖² + 1/N Σ_i l(x_iᵀw, y_i)
    dual    D(α) = -λ/2 ‖w(α)‖² - 1/N Σ_i l*(-α_i),   w(α) = 1/(λN) Σ_i α_i x_i

Clients hold rectangles of X. The server keeps three sealed totals: the duals α (over samples),
the weights w = w(α) (over features), the scores z = Xw (over samples). One round (Algorithm 1):

1. local dual ascent: a client opens α and z of its samples and steps on them; the steps are added
2. primal aggregation: a client opens α, sends what its part of w(α) changed by
3. secure inner products: a client opens w of its features, sends what its part of z changed by
4. line search: the server scales the three changes by the step that maximises D

Steps 2 and 3 are one exchange where no feature is shared (vertical), step 3 is local where no
sample is shared (horizontal) and there is no line search. With some clients away, those that
return first catch up by steps 2 and 3; there is no line search then, and a fixed step instead.

Departures from the paper (without the first two it stalls or diverges): the update has y and
‖x_i‖² in it; a client follows the scores through its own steps of a round, its rows scaled by
‖x_i‖/‖x_{k,i}‖; one holder of a sample's label alone opens its score and steps on it
(`find_read`), where the paper averages over the owners; the server never reads w before the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from intarsia import core as fl
from intarsia.algorithms.hyfdca import (
    dual_ascent,
    dual_newton,
    minibatch_ascent,
    partial_participation,
)
from intarsia.algorithms.hyfdca.dual_ascent import Measure, settle_trial, with_norms
from intarsia.algorithms.hyfdca.minibatch_ascent import earlier_version, find_read
from intarsia.algorithms.hyfdca.newton import client as newton_client
from intarsia.algorithms.hyfdca.newton import direction as newton_direction
from intarsia.algorithms.hyfdca.newton import interior_point as newton_interior
from intarsia.algorithms.hyfdca.newton import point as newton_point
from intarsia.algorithms.hyfdca.newton import server as newton
from intarsia.algorithms.hyfdca.newton import shares as newton_shares
from intarsia.algorithms.hyfdca.partial_participation import Partial, Place
from intarsia.algorithms.hyfdca.state import (
    Client,
    HyFDCA,
    InPhase,
    Server,
    init_client,
    init_server,
)
from intarsia.core.block import Array, Block, ClientId
from intarsia.core.schema import Schema
from intarsia.errors import ExperimentError
from intarsia.maths.linear import losses
from intarsia.maths.linear.products import scores
from intarsia.protocols import certificate, certified_release
from intarsia.protocols.certified_release import Certifying, Propose, Proposed

# The module of each phase that runs where all clients are there.
_PHASES: Mapping[type, Any] = MappingProxyType(
    {
        minibatch_ascent.ChunkAscent: minibatch_ascent,
        dual_newton.DualNewton: dual_newton,
        newton.Newton: newton,
        newton_interior.InteriorPoint: newton_interior,
    }
)


# Losses for which Newton's method in the dual is not made: one kink off 0, or steep exponentials.
_PRIMAL = (losses.QUANTILE, *losses.LOG_LINK)

# Huber's δ is far below the errors where fewer samples are within it and their mean is larger; it
# matters where the penalty's slope takes more of what the losses fall by from zero weights
_FEW_WITHIN, _TIMES_DELTA, _HELD = 0.1, 5.0, 0.5

_SOLVED = 1e-3  # relative gap up to which zeros are about the optimum
_HARDLY = 1e-6  # of P: zeros are no better by what may be rounding

_COUNTS = 1e8  # mean count above which float64 keeps the gap of Poisson's loss wide
_CANCELS = 1e-6  # of P at zeros: below it what float64 rounds is counted into certificates


@dataclass(frozen=True)
class Enter:
    """What a client needs for proximal rounds."""

    taken: float  # the share of the last trial that the line search took
    shares: fl.PerFeature  # (features,) r_j, the part in the mean ‖x_i‖² that a feature has
    metric: float  # ρ_j = metric · r_j^1.5
    squares: fl.PerSample | None = None  # (samples,) ‖x_i‖² over all owners; None: it was told


def round(server: Server, clients: fl.Clients, rng: fl.RandomKey) -> tuple[Server, fl.RoundMetrics]:
    """Run Algorithm 1 once."""
    server, info = _round(server, clients, rng)
    return server, _rounded(server, clients, info)


def _round(
    server: Server, clients: fl.Clients, rng: fl.RandomKey
) -> tuple[Server, fl.RoundMetrics]:
    _check_readers(server)
    complete = len(clients.ids) == server.clients
    everyone = complete and len(server.present) == server.clients
    if server.partial is not None and everyone and server.options.method != "ascent":
        server = _start_afresh(server, clients)
    if server.partial is not None or (not complete and server.options.step == "line_search"):
        server, partial = _enter_partial(server, clients)
        partial, info = partial_participation.step(partial, clients)
        return replace(server, partial=partial, present=tuple(clients.ids)), info
    if complete and server.options.method != "ascent":
        return _finishing_round(server, clients, rng)
    if server.phase is not None:
        server = _leave(server)
    return dual_ascent.ascend_once(server, clients, rng)


def _check_readers(server: Server) -> None:
    """Raise CheckpointError for a state of an earlier version in which others open scores, too."""
    alone = server.horizontal or len(server.labelled) == 1
    if not server.readers and not (alone and isinstance(server.phase, newton.Newton)):
        raise earlier_version()


def _problem(server: Server) -> dict[str, Any]:
    """Return what the state of every phase says of P and D."""
    options = server.options
    loss = losses.loss_code(options.loss)
    return {"loss": loss, "regularisation": options.ridge, "samples": server.samples}


def _enter_partial(server: Server, clients: fl.Clients) -> tuple[Server, Partial]:
    """Go on with proximal rounds from the present duals, at the clients that are there."""
    if server.options.l1_ratio:
        raise ExperimentError(
            f"algorithm.l1_ratio is {server.options.l1_ratio:g} and only {len(clients.ids)} of "
            f"{server.clients} clients are there, and weights are set to 0 where all clients are; "
            "set participation = 1 and wait for all of them, or set l1_ratio = 0."
        )
    if server.phase is not None:
        server = _leave(server)
    state, options = server.partial, server.options
    if state is None:
        state = Partial(
            **_problem(server),
            # discloses how unevenly the features share in ‖x_i‖²: Σ_j r_j^2.5 over all features
            metric=partial_participation.metric(
                options.proximal * server.square, clients.reveal(server.sizes), server.features
            ),
            ascents=options.ascents,
            alpha=server.alpha,
            w=server.w,
            z=server.z,
            u=server.w,
            alpha_mean=server.alpha,
            u_mean=server.w,
            labellers=server.labellers,
            present=server.present,
        )
    fresh = [name for name in clients.ids if name not in state.entered]
    if fresh:
        taken = {name: server.earlier.get(name, server.taken) for name in fresh}
        told = server.shares, state.metric, server.norms
        messages = {name: Enter(taken[name], *told) for name in fresh}
        clients.ask(enter_partial, messages)
        state = replace(state, entered=(*state.entered, *fresh))
    return replace(server, partial=state), state


def _start_afresh(server: Server, clients: fl.Clients) -> Server:
    """Forget the proximal rounds: with all clients back, the finish from zero is the shortest."""
    clients.ask(forget, Measure())
    return replace(
        server,
        partial=None,
        alpha=server.alpha * 0.0,
        w=server.w * 0.0,
        z=server.z * 0.0,
        taken=1.0,
        earlier={},
        lowest=np.inf,
    )


def _finishing_round(
    server: Server, clients: fl.Clients, rng: fl.RandomKey
) -> tuple[Server, fl.RoundMetrics]:
    """Run a round of the phase that suits the tables, from the present duals."""
    phase = server.phase
    if isinstance(phase, dual_newton.DualNewton) and phase.stalled:
        server = replace(_leave(server), wide=False)
        if not (phase.dual > 0).all():  # worse than zeros: scores would lose their digits
            server = replace(server, alpha=server.alpha * 0.0)
        server = _begin_newton(server, clients, warm=True)
    elif phase is None or (
        isinstance(phase, minibatch_ascent.ChunkAscent) and minibatch_ascent.exhausted(phase)
    ):
        server = _begin(server, clients)
    phase = server.phase
    if isinstance(phase, newton.Newton) and phase.stalled:
        rows, zeros = _sends_rows(server.options), server.at_zeros
        phase = newton_interior.begin(phase, clients, frame=rows, at_zeros=zeros)
    phase, info = _PHASES[type(phase)].step(phase, clients, rng)
    return replace(server, phase=phase, present=tuple(clients.ids)), info


def _begin(server: Server, clients: fl.Clients) -> Server:
    """Start the next phase: for wide tables ascent in chunks from zero, then Newton in the dual."""
    warm = bool(np.isfinite(server.lowest))
    code = losses.loss_code(server.options.loss)
    if not server.wide or server.options.method == "newton" or code in _PRIMAL:
        return _begin_newton(server, clients, warm=warm)
    problem = _problem(server)
    if server.phase is None and not warm:
        chunks = minibatch_ascent.ChunkAscent(**problem, labelled=server.counting)
        return replace(server, phase=minibatch_ascent.begin(chunks, clients))
    if server.phase is None:
        server = dual_ascent.catch_up(server, clients)
    else:
        server = replace(server, alpha=server.phase.alpha, w=server.phase.dual_weights)
    problem = {**problem, "labelled": server.counting}
    dual = dual_newton.begin(clients, problem, server.alpha, server.w, server.outputs)
    return replace(server, phase=dual)


def _sends_rows(options: HyFDCA) -> bool:
    """Return whether rows may be sent in a frame where sums are not sealed."""
    return options.frame and options.system in ("auto", "rows")


def _begin_newton(server: Server, clients: fl.Clients, *, warm: bool) -> Server:
    """Go on with Newton's method in the primal from the present duals."""
    if warm:
        server = dual_ascent.catch_up(server, clients)
    options = server.options
    shared = options.system in ("shares", "encrypted") or options.errors or options.l1_ratio > 0
    phase = newton.begin(
        clients,
        alpha=server.alpha,
        w=server.w,
        z=server.z,
        warm=warm,
        **_problem(server),
        features=server.features,
        outputs=server.outputs,
        labelled=server.counting,
        sparse=server.sparse,
        frame=options.frame,
        rows=_sends_rows(options),
        grams=server.grams,
        threshold=options.threshold,
        dealer=server.dealer if shared or clients.sealed else None,
        told=server.weighted or server.options.loss == "poisson",
    )
    if not warm:
        server = replace(server, at_zeros=float(phase.model_primal.sum()))
    return replace(server, phase=phase)


def _leave(server: Server) -> Server:
    """Go on with dual ascent from the dual point of the phase.

    The clients do so when they are next asked; each counts its part of z from zero.
    """
    assert server.phase is not None
    return replace(
        server,
        phase=None,
        alpha=server.phase.alpha,
        w=server.phase.dual_weights,
        z=server.z * 0.0,
        present=(),
        taken=1.0,
        earlier={},
    )


def certify(server: Server, clients: fl.Clients) -> tuple[Server, fl.RoundMetrics]:
    """Bring w and z up to the duals at all clients; return the objectives there."""
    if _is_afresh(server, clients):
        server, info, _ = _certify_afresh(server, clients)
        return server, info
    return _certify_as_carried(server, clients)


def _certify_as_carried(server: Server, clients: fl.Clients) -> tuple[Server, fl.RoundMetrics]:
    """Return the state and the certificate by what each phase carries on."""
    _check_readers(server)
    if server.partial is not None:
        server, partial = _enter_partial(server, clients)
        partial, info, _, _ = partial_participation.certify(partial, clients)
        return replace(server, partial=partial, present=tuple(clients.ids)), info
    if server.phase is not None:
        phase, info = _PHASES[type(server.phase)].certify(server.phase, clients)
        return replace(server, phase=phase), info
    return dual_ascent.certify(server, clients)


def _is_afresh(server: Server, clients: fl.Clients) -> bool:
    """Return whether all that a certificate is made of is counted afresh, and not carried on.

    Sealed sums are rounded, and with the log link duals and w(α) begin as large as labels are: of
    numbers that large there is too much rounding left in small ones. So it is where the objective
    fell far from that of zeros, as with labels far from 0 whose spread is small.
    """
    if clients.sealed or losses.loss_code(server.options.loss) in losses.LOG_LINK:
        return True
    phase, at_zeros = server.phase, server.at_zeros
    if not isinstance(phase, newton.Newton | newton_interior.InteriorPoint):
        return False
    return math.isfinite(at_zeros) and float(phase.primal.sum()) < _CANCELS * at_zeros


def _certify_afresh(
    server: Server, clients: fl.Clients, *, final: bool = False
) -> tuple[Server, fl.RoundMetrics, dict[str, Any]]:
    """Return the state, a certificate that counts what sums are rounded by, and the model.

    That is of sealed totals: weights, w, and of the elastic net which are not 0, nonzero. The
    `final` one is the best that Newton's method came by, and training is over.
    """
    _check_readers(server)
    model: dict[str, Any]
    if server.partial is not None:
        server, partial = _enter_partial(server, clients)
        partial, info, weights, alpha = partial_participation.certify(partial, clients)
        server = replace(server, partial=partial, present=tuple(clients.ids))
        model = {"w": weights}
    elif (phase := server.phase) is not None:
        phase, info = _PHASES[type(phase)].certify(phase, clients)
        server, alpha = replace(server, phase=phase), phase.alpha
        if isinstance(phase, newton.Newton | newton_interior.InteriorPoint):
            kept = phase.kept if final and isinstance(phase, newton.Newton) else None
            alpha = alpha if kept is None else kept
            own = newton.share_model(clients, best=kept is not None)
            model = {"w": own.w, "nonzero": own.nonzero}
        elif isinstance(phase, dual_newton.DualNewton):
            model = {"w": dual_newton.share_model(clients)}
        else:
            model = {"w": phase.dual_weights}
    else:
        server, info = dual_ascent.certify(server, clients)
        alpha, model = server.alpha, {"w": server.w}
    return server, _bound(server, clients, model["w"], alpha, info.phase), model


def _bound(server: Server, clients: fl.Clients, w: Any, alpha: Any, phase: str) -> fl.RoundMetrics:
    """Return the certificate of a model, all of it counted afresh."""
    return certificate.certify(
        *(clients, w, alpha),
        ridge=server.options.ridge,
        samples=server.samples,
        features=server.features,
        outputs=server.outputs,
        phase=phase,
    )


def _rounded(server: Server, clients: fl.Clients, info: fl.RoundMetrics) -> fl.RoundMetrics:
    """Return a round's metrics with what its objectives, sealed totals, were rounded by.

    What came in before is counted where a model is certified.
    """
    if not clients.sealed or info.primal is None or info.dual is None:
        return info
    off = server.outputs * clients.rounding(1).error
    apart = off / server.samples + 0.5 * server.options.ridge * off
    given = info.primal + apart, info.dual - apart, info.phase
    return replace(fl.RoundMetrics.certified(*given, 2 * apart), finished=info.finished)


def conclude(server: Server, clients: fl.Clients, rng: fl.RandomKey) -> fl.FinalResult:
    """Certify the final model and reveal it, with standard errors where they are asked for."""
    why = _lacks_errors(server) if server.options.errors else None
    final = _conclude(server, clients, rng, errors=server.options.errors and why is None)
    notes = [server.choice] if server.choice else []
    if final.weights is not None and server.at_zeros < np.inf and not final.weights.any():
        notes.extend(_only_zeros(server, final.info))
    if why is not None:
        notes.append(f"No standard errors (algorithm.errors): {why}.")
    if server.options.loss == "huber":
        notes.extend(_small_delta(server, final))
    if server.options.loss == "poisson":
        notes.extend(_large_counts(server, final.info))
    return replace(final, notes=(*final.notes, *notes))


def _large_counts(server: Server, info: fl.RoundMetrics) -> tuple[str, ...]:
    """Return a note where counts are so large that float64 leaves their duals few digits.

    A dual is y - eᶻ, and P at zeros the mean of y log y - y + 1.
    """
    at_zeros = server.at_zeros
    large = math.isfinite(at_zeros) and at_zeros > _COUNTS * math.log(_COUNTS)
    if not large or info.gap_relative is None or info.gap_relative <= newton.ENDS:
        return ()
    told = 10 ** math.floor(math.log10(at_zeros / math.log(at_zeros)))
    return (
        f"Counts are of the order of {told:.0e}, of which float64 knows the differences from their "
        "means to few digits: the gap says that, and the model may be at the optimum; divide the "
        "counts by a power of ten, or raise algorithm.regularisation.",
    )


def _only_zeros(server: Server, info: fl.RoundMetrics) -> tuple[str, ...]:
    """Return a note where training came to no weights that are better than zeros, or none is."""
    if info.gap_relative is None:
        return ()
    if info.gap_relative <= _SOLVED:
        if not server.options.l1_ratio:
            return ()
        return (
            "All weights of the model are 0: with this penalty no other model has a smaller "
            "objective; lower algorithm.regularisation or algorithm.l1_ratio.",
        )
    helps = "standardise, raise algorithm.regularisation"
    helps += ", or lower algorithm.l1_ratio" if server.options.l1_ratio else ""
    return (
        "All weights of the model are 0: training came to none with a smaller objective, and the "
        f"optimum may be lower by {info.gap_relative:.1e} of it; take more rounds, {helps}.",
    )


def _small_delta(server: Server, final: fl.FinalResult) -> tuple[str, ...]:
    """Return a note where Huber's δ is far below the errors and the penalty holds the weights.

    The loss of an error e beyond δ is δe - δ²/2, so the mean of losses tells that of errors. From
    w = 0 to the optimum the losses fall by w·∂penalty(w) or more, as they are convex. They fall by
    no more where no error changes its sign: the penalty alone then ends the fit.
    """
    options, phase, info = server.options, server.phase, final.info
    if not isinstance(phase, newton.Newton | newton_interior.InteriorPoint):
        return ()
    assert info.gap_relative is not None
    if phase.curved >= _FEW_WITHIN * server.samples or info.gap_relative > 0.1:
        return ()
    weights, delta = final.weights, options.huber_delta
    assert weights is not None
    assert info.primal is not None
    half = options.ridge * (weights**2).sum() / 2
    slope = 2 * half + options.regularisation * options.l1_ratio * np.abs(weights).sum()
    loss = info.primal - (slope - half)
    error = loss / delta + delta / 2
    if error <= _TIMES_DELTA * delta or slope < _HELD * (server.at_zeros - loss):
        return ()
    told = f"{float(f'{error:.2g}'):g}"
    return (
        f"The mean training error is about {told}, and algorithm.huber_delta = {delta:g}, in the "
        "same unit, is so far below it that errors count by little more than their sign and the "
        f"penalty holds the weights near 0; set huber_delta = {told}, and where labels vary by "
        "much less than that, subtract a usual label from them first.",
    )


def _lacks_errors(server: Server) -> str | None:
    """Return why the run has no standard errors; None where it has."""
    if server.features > newton.MOST_FEATURES:
        return f"there are {server.features} features, more than {newton.MOST_FEATURES}"
    phase = server.phase
    if not isinstance(phase, newton.Newton) or phase.dealer is None:
        return "the run did not end in Newton's method with a shared system"
    if server.weighted:
        return (
            "rows or classes have weights, with which the inverse of the information is not how "
            "the estimates vary"
        )
    for name, own in phase.dealer.overlaps.items():
        if (one := newton_shares.too_wide(own)) is not None:
            return (
                f"{name!r} with {len(own.features)} columns and {one.name!r} with "
                f"{len(one.features)} have {one.samples} samples in common, fewer than "
                f"{newton_shares.SAMPLES_OF_COLUMN} for each column"
            )
    return None


def _unsure_errors(server: Server, errors: Array, left: Array) -> tuple[str, ...]:
    """Return a note where errors are not known."""
    if server.options.loss == "squared" and (left < 1).any():
        return (
            f"No standard errors (algorithm.errors): {server.samples} samples leave "
            f"{left.min():.2g} degrees of freedom for the residuals of {server.features} features.",
        )
    unsure = int(np.isnan(errors).any(axis=0).sum())
    if not unsure:
        return ()
    return (
        f"No standard errors (algorithm.errors) of {unsure} of {server.features} features: columns "
        f"are so nearly collinear at regularisation {server.options.regularisation:g} that a "
        "system in fixed point does not give these to 1 %; leave columns out, or penalise more.",
    )


def _conclude(
    server: Server, clients: fl.Clients, rng: fl.RandomKey, *, errors: bool
) -> fl.FinalResult:
    afresh = _is_afresh(server, clients)
    if afresh and not errors:
        server, info, model = _certify_afresh(server, clients, final=True)
        if _is_worse_than_zeros(server, info):
            assert server.phase is not None
            own = newton.share_model(clients, zeros=True)
            model = {"w": own.w, "nonzero": own.nonzero}
            info = _bound(server, clients, own.w, server.phase.alpha, info.phase)
        nonzero = model.get("nonzero") if server.options.l1_ratio else None
        return fl.FinalResult(info, newton.open_weights(clients, model["w"], nonzero))
    if server.partial is not None:
        _, partial = _enter_partial(server, clients)
        _, info, weights, _ = partial_participation.certify(partial, clients)
        # discloses the model: the server may predict with it
        return fl.FinalResult(info, clients.reveal(weights))
    if errors and isinstance(server.phase, newton.Newton):
        _check_readers(server)
        phase, info = newton.certify(newton.take_all(server.phase), clients, ends=False)
        own = newton.share_model(clients)
        if afresh:
            info = _bound(server, clients, own.w, phase.alpha, info.phase)
        found = newton.reveal_errors(phase, clients, own.w, rng)
        return fl.FinalResult(info, *found, notes=_unsure_errors(server, *found[1:3]))
    server, info = certify(server, clients)
    if isinstance(server.phase, newton.Newton | newton_interior.InteriorPoint):
        zeros = _is_worse_than_zeros(server, info)
        own = newton.share_model(clients, zeros=zeros)
        if zeros:
            assert info.dual is not None
            info = fl.RoundMetrics.certified(server.at_zeros, info.dual, info.phase)
        nonzero = own.nonzero if server.options.l1_ratio else None
        return fl.FinalResult(info, newton.open_weights(clients, own.w, nonzero))
    if isinstance(server.phase, dual_newton.DualNewton):
        w = dual_newton.share_model(clients)
        # discloses the model: the server may predict with it
        return fl.FinalResult(info, clients.reveal(w))
    w = server.w if server.phase is None else server.phase.dual_weights
    # discloses the model: the server may predict with it
    return fl.FinalResult(info, clients.reveal(w))


def _is_worse_than_zeros(server: Server, info: fl.RoundMetrics) -> bool:
    """Return whether weights of 0 have a smaller objective than Newton's method ended with."""
    return info.primal is not None and info.primal > server.at_zeros * (1 + _HARDLY)


def private(release: fl.Release) -> fl.Algorithm:
    """Return HyFDCA with noise in the model that it releases.

    Its clients certify that model, and tell no weights but those with noise.
    """
    sends = tuple(one for one in HYFDCA.disclosure.sends if one.function not in _OF_MODELS)
    told = replace(HYFDCA.disclosure, sends=sends)
    return certified_release.private(
        *(replace(HYFDCA, certify=_certify_as_carried, disclosure=told), release),
        proposal=_find_proposal,
        propose=propose,
        origins={"Propose.w": _W, "Propose.alpha": _ALPHA},
        weights=("w", "u", "nonzero"),
    )


def _find_proposal(server: Server, clients: fl.Clients) -> tuple[Propose, str]:
    """Return what is to be released with noise, and the phase that it is of."""
    _check_readers(server)
    if server.partial is not None:
        _, partial = _enter_partial(server, clients)
        _, _, weights, duals = partial_participation.certify(partial, clients)
        return Propose(weights, duals), partial_participation.PHASE
    if server.phase is not None:
        return Propose(), _PHASES[type(server.phase)].PHASE
    server = dual_ascent.count(server, clients)
    return Propose(server.w, server.alpha), dual_ascent.PHASE


def predict(client: Client | InPhase | Place | Certifying, block: Block) -> Array:
    """Return the client's part of the scores of a block's samples, (outputs, samples)."""
    return scores(block.x, client.model if isinstance(client, newton_point.Point) else client.w)


@fl.client_function
def enter_partial(client: Client | InPhase, block: Block, message: Enter) -> tuple[Place, fl.Ready]:
    """Go on with proximal rounds."""
    before = settle_trial(client, message.taken)
    if message.squares is not None:
        before = with_norms(before, block, message.squares)
    place = partial_participation.enter(before, block, message.shares, message.metric)
    return place, fl.Ready()


@fl.told_the_same
@fl.client_function
def forget(
    client: Client | InPhase | Place, block: Block, message: Measure
) -> tuple[Client, fl.Ready]:
    """Go back to zero duals and weights."""
    before = client.before if isinstance(client, Place) else settle_trial(client, 1.0)
    alpha, w = np.zeros_like(before.alpha), np.zeros_like(before.w)
    return fl.evolve(before, alpha=alpha, w=w, alpha_trial=alpha, w_trial=w), fl.Ready()


@fl.client_function
def propose(
    client: Client | InPhase | Place | Certifying, block: Block, message: Propose
) -> tuple[Certifying, Proposed]:
    """Send this client's share of the model, and the duals of the samples that it reads."""
    training: Client = client if isinstance(client, Client) else client.before
    return certified_release.propose(
        *(message, block),
        training=training,
        w=client.w,
        alpha=client.alpha,
        reads=find_read(training),
        shares=training.feature_share,
    )


# Each exchange moves duals, weights and scores: they are combinations of these totals.
_ALPHA = (
    "CentredDuals.alpha",
    "DualInside.alpha",
    "DualPoint.alpha",
    "Settled.alpha",
    "Steps.alpha",
    "StepsThere.alpha",
    "Zeros.alpha",
)
_W = (
    *(
        "Change.w",
        "Counted.w",
        "CountedInside.w",
        "Drawn.u",
        "DualChange.w",
        "Gathered.w",
        "PrimalChange.w",
    ),
    *("Pulled.u", "Pulled.w", "Settled.w", "Zeros.w"),
)
_MODELS = ("OwnWeights.w", "ShareOfWeights.w")
_Z = ("Change.z", "Drawn.z", "ScoreChange.z", "TrialScores.z", "Zeros.z")
_TOTALS: Mapping[str, fl.Origin] = {
    **dict.fromkeys(
        [
            *("Ascend.alpha", "AscendThere.alpha", "Candidate.alpha", "CountInside.alpha"),
            *("Duals.alpha",),
            *("Missed.alpha", "Scores.alpha", "Settlement.alpha"),
            *("Start.alpha", "Trial.alpha"),
        ],
        _ALPHA,
    ),
    **dict.fromkeys(
        [
            *("Candidate.u", "Draw.u", "Draw.w", "DualWeights.w", "Keep.u"),
            "MeasureInside.w",
            *("Model.u", "ModelTotals.u", "Settlement.w", "Start.w", "Weights.w"),
        ],
        _W,
    ),
    **dict.fromkeys(["Ascend.z", "AscendThere.z", "KeepTrial.z", "Scores.z"], _Z),
    "LastDuals.alpha": _ALPHA,
    "LastModel.alpha": "RoundedDuals.alpha",
    "LastModel.w": (*_W, *_MODELS),
    "LastTotals.alpha": "RoundedDuals.alpha",
    "LastTotals.model": (*_W, *_MODELS),
    "LastTotals.w": "LastScores.w",
    "LastTotals.w_size": "LastScores.w_size",
    "LastTotals.z": "LastScores.z",
    "LastTotals.z_size": "LastScores.z_size",
    "FeatureSum.w": ("DualChange.w", "GatheredRows.w"),
    "MoveCentre.z": ("FirstScores.z", "ShareOfScores.z"),
    "Advance.product": "Curved.product",
    "AdvanceResidual.z": "SelectedScores.z",
    "Chunk.change": "ChunkChange.w",
    "ChunkTotals.moved": "ChunkScores.moved",
    "ChunkTotals.z": "ChunkScores.z",
    "Coefficients.y": ("Coefficients.y", fl.PUBLIC),  # the server solves what is shared
    "Conjugate.products": "Applied.products",
    "CountInside.aim": ("Correction.aim", "DualInside.aim"),
    "CountInside.curvature": "DualInside.curvature",
    "CountDuals.alpha": "CentredDuals.alpha",
    "CountDuals.curvature": "CentredDuals.curvature",
    "Along.z": "DirectionScores.z",
    "Departure.w": "DirectionScores.w",
    "Direction.alpha": "RowSum.alpha",
    "Direction.total": "RowSum.total",
    "Enter.shares": ("Zeros.shares",),
    "Enter.squares": "Norms.squares",
    "Sizes.sizes": "Norms.sizes",
    "Evaluate.z": "WalkerScores.z",
    "Factors.bounds": "Measured.bounds",
    "Factors.first": "MaskedRows.first",
    "Factors.fourth": "MaskedRows.fourth",
    "Factors.second": "MaskedRows.second",
    "Factors.third": "MaskedRows.third",
    "Encrypt.bounds": "Measured.bounds",
    **{f"ToMultiply.{turn}": f"EncryptedRows.{turn}" for turn in newton_shares.TURNS},
    **{f"ToShare.{turn}": f"EncryptedProducts.{turn}" for turn in newton_shares.TURNS},
    "ToShare.bounds": "Measured.bounds",
    "OwnFrame.frame": "Frame.frame",
    "OwnFrame.squares": "Frame.squares",
    "Gather.alpha": "DualPoint.alpha",
    "Gather.curvature": "DualPoint.curvature",
    "ModelScores.z": "Measured.z",
    "Line.z": "Products.z",
    "Mask.bounds": "Measured.bounds",
    "MeasureInside.pull": "CountedInside.pull",
    "MeasureInside.rows": "CountedInside.rows",
    "MeasurePoint.rows": "Gathered.rows",
    "MeasurePoint.w": "Gathered.w",
    "Reach.z": "Products.z",
    "ModelTotals.w": "Evaluated.w",
    "ModelTotals.z": "Evaluated.z",
    "Norms.squares": "Norms.squares",
    "Precondition.gram": ("Gathered.gram",),
    "Refresh.z": ("OwnScores.z", *_Z),
    "SmallSystem.gradient": ("Measured.gradient",),
    "SmallSystem.hessian": ("Measured.hessian",),
    "TakenSteps.alpha": "ChunkSteps.alpha",
    "TrySteps.z": "DirectionProducts.z",
    "ZeroTotal.zero": "OwnVariances.zero",
}

# Who is asked together, where these are not all: those that read scores, or that share samples.
_PARTIES: Mapping[str, Callable[[Schema, Any], Collection[ClientId]]] = {
    **dict.fromkeys(
        [
            *("centre_duals", "find_steps", "keep_along", "keep_scores", "move_duals"),
            *("correct_aim", "evaluate_model", "reach_boundary", "slope_along", "slope_of_steps"),
            "step_inside",
        ],
        lambda schema, _: schema.labelled.counting,
    ),
    **dict.fromkeys(
        ("encrypt_rows", "mask_rows", "multiply_encrypted"),
        lambda schema, _: {
            name for cell in schema.samples.cells if len(cell.owners) > 1 for name in cell.owners
        },
    ),
}
_OF_SOME = ("solve",)  # by one client
_OF_MODELS = (  # what sends the model, and certifies it
    *(one.function for one in certificate.SENDS),
    newton_client.share_weights,
    dual_newton.report_weights,
)
_REPEATED = (  # in a round: searches, inner iterations, chunks, and where a phase follows another
    *("aggregate_and_multiply", "aggregate_primal", "inner_products", "objectives"),
    *("ascend_locally", "count_trial", "multiply_trial", "part_of_dual", "part_of_objectives"),
    *("evaluate", "find_steps", "score_all", "score_chunk", "take_steps"),
    *("advance_search", "curve", "gather_point", "keep_scores", "mask_rows", "measure_point"),
    *("evaluate_model", "move_duals", "multiply_rows", "own_scores", "slope_along"),
    *("encrypt_rows", "multiply_encrypted", "share_products"),
    *("slope_of_penalty", "count_inside", "measure_inside", "reach_boundary", "solve"),
    *("correct_aim", "multiply_second", "start_search", "step_inside"),
    *("centre_duals", "count_duals", "measure_duals", "multiply_sum", "report_scores", "sweep"),
)


# How often a round has sums over training rows at most: of losses, of terms of the dual, and of
# slopes along a line. A phase may begin and certify in it, and its steps may be short.
_OBJECTIVES: Mapping[str, int] = {
    **dict.fromkeys(("evaluate", "keep_trial", "local_dual_ascent", "objectives", "settle"), 2),
    "reach_boundary": 2 + newton_interior.CORRECTORS,
    "slope_of_steps": 2,
    "centre_duals": 3,
    **dict.fromkeys(("aggregate_primal", "aggregate_and_multiply", "step_inside"), 4),
    "bound_objectives": 2,
    **dict.fromkeys(("find_steps", "part_of_dual", "part_of_objectives"), 5),
    "score_chunk": 6,
    **dict.fromkeys(("evaluate_model", "move_duals"), 7),
    "ascend_locally": 1,  # of each ascent
    "slope_along": 1 + newton_direction.SEARCHES,
}
_TIMES: Mapping[str, str] = {"ascend_locally": "ascents"}


def _with_parties(one: fl.Sends) -> fl.Sends:
    name = one.function.name
    return replace(
        one,
        parties=_PARTIES.get(name),
        together="some" if name in _OF_SOME else one.together,
        repeats=name in _REPEATED,
        each_round=_OBJECTIVES.get(name, 0),
        each_round_times=_TIMES.get(name, ""),
    )


HYFDCA = fl.Algorithm(
    name="hyfdca",
    hyperparameters=HyFDCA,
    init_server=init_server,
    init_client=init_client,
    setup=dual_ascent.setup,
    round=round,
    certify=certify,
    conclude=conclude,
    absences=True,
    states=(
        Server,
        Client,
        HyFDCA,
        fl.Release,
        *minibatch_ascent.STATES,
        *dual_newton.STATES,
        *newton.STATES,
        *newton_interior.STATES,
        *partial_participation.STATES,
    ),
    model=fl.Model(predict=predict, additive=True, kind="linear", row_weights=True),
    disclosure=fl.Disclosure(
        sends=tuple(
            _with_parties(one)
            for one in fl.opening(
                _TOTALS,
                (
                    *fl.asks(enter_partial, forget),
                    *dual_ascent.SENDS,
                    *minibatch_ascent.SENDS,
                    *dual_newton.SENDS,
                    *newton.SENDS,
                    *newton_interior.SENDS,
                    *partial_participation.SENDS,
                    *certificate.SENDS,
                ),
            )
        ),
        dp_unit="sample",
        # where sums are sealed nobody gets rows in a frame, unless the experiment asks for them,
        # and the interior point method is not run
        allowed=lambda server, client: {
            "LastModel.sizes": (False,),
            **(
                {}
                if server.options.system == "rows"
                else {"CountInside.framed": (), "Gather.framed": (False,)}
            ),
        },
    ),
    private=private,
)
