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
‖x_i‖/‖x_{k,i}‖; each sample of a round is given to one of its owners, drawn anew each round,
where the paper averages over the owners (`owners = "average"`); the server never reads w before
the end.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial as bound

import numpy as np

from intarsia.algorithms.hyfdca import (
    dual_ascent,
    dual_newton,
    minibatch_ascent,
    newton,
    partial_participation,
    partial_participation_client,
)
from intarsia.algorithms.hyfdca.dual_ascent import Measure, ascend_once, catch_up, settled, setup
from intarsia.algorithms.hyfdca.state import (
    Client,
    HyFDCA,
    InPhase,
    Phase,
    Server,
    init_client,
    init_server,
)
from intarsia.core.algorithm import (
    Algorithm,
    Clients,
    Disclosure,
    FinalResult,
    Model,
    PerFeature,
    RandomKey,
    Ready,
    Release,
    RoundMetrics,
    asks,
    client_function,
    evolve,
    sums,
)
from intarsia.core.block import Array, Block
from intarsia.maths.linear import losses
from intarsia.maths.linear.products import scores
from intarsia.protocols import differential_privacy
from intarsia.protocols.differential_privacy import NoiseShare, NoisyWeights, ShareOut


@dataclass(frozen=True)
class Enter:
    """What a client needs for proximal rounds."""

    taken: float  # the share of the last trial that the line search took
    shares: PerFeature  # (features,) r_j, the part in the mean ‖x_i‖² that a feature has
    metric: float  # ρ_j = metric · r_j^1.5


def round(server: Server, clients: Clients, rng: RandomKey) -> tuple[Server, RoundMetrics]:
    """Run Algorithm 1 once."""
    complete = len(clients.ids) == server.clients
    everyone = complete and len(server.present) == server.clients
    if server.partial is not None and everyone and server.options.method != "ascent":
        server = _start_afresh(server, clients)
    if server.partial is not None or (not complete and server.options.step == "line_search"):
        server = _enter_partial(server, clients)
        assert server.partial is not None
        state, info = partial_participation.step(server.partial, clients, rng)
        return replace(server, partial=state, present=tuple(clients.ids)), info
    if complete and server.options.method != "ascent":
        return _finishing_round(server, clients, rng)
    if server.phase is not None:
        server = _leave(server)
    return ascend_once(server, clients, rng)


def _enter_partial(server: Server, clients: Clients) -> Server:
    """Go on with proximal rounds from the present duals, at the clients that are there."""
    if server.phase is not None:
        server = _leave(server)
    state = server.partial
    if state is None:
        options = server.options
        state = partial_participation_client.Partial(
            loss=losses.loss_code(options.loss),
            regularisation=options.regularisation,
            # discloses how unevenly the features share in ‖x_i‖²: Σ_j r_j^2.5 over all features
            metric=partial_participation.metric(
                options.proximal * server.square, clients.reveal(server.sizes), server.features
            ),
            ascents=options.ascents,
            samples=server.samples,
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
        messages = {
            name: Enter(
                taken=server.earlier.get(name, server.taken),
                shares=server.shares,
                metric=state.metric,
            )
            for name in fresh
        }
        clients.ask(enter_partial, messages)
        state = replace(state, entered=(*state.entered, *fresh))
    return replace(server, partial=state)


def _start_afresh(server: Server, clients: Clients) -> Server:
    """Forget the proximal rounds: with all clients back, the finish from zero is the shortest."""
    clients.ask(forget, dict.fromkeys(clients.ids, Measure()))
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
    server: Server, clients: Clients, rng: RandomKey
) -> tuple[Server, RoundMetrics]:
    """Run a round of the phase that suits the tables, from the present duals."""
    phase = server.phase
    if isinstance(phase, dual_newton.DualNewton) and phase.stalled:
        server = _begin_newton(replace(_leave(server), wide=False), clients, warm=True)
    elif phase is None or (
        isinstance(phase, minibatch_ascent.ChunkAscent) and minibatch_ascent.exhausted(phase)
    ):
        server = _begin(server, clients)
    phase, info = _step(server.phase, clients, rng)
    return replace(server, phase=phase, present=tuple(clients.ids)), info


def _step(phase: Phase | None, clients: Clients, rng: RandomKey) -> tuple[Phase, RoundMetrics]:
    if isinstance(phase, minibatch_ascent.ChunkAscent):
        return minibatch_ascent.step(phase, clients, rng)
    if isinstance(phase, dual_newton.DualNewton):
        return dual_newton.step(phase, clients)
    assert phase is not None
    return newton.step(phase, clients)


def _begin(server: Server, clients: Clients) -> Server:
    """Start the next phase: for wide tables ascent in chunks from zero, then Newton in the dual."""
    warm = bool(np.isfinite(server.lowest))
    if not server.wide or server.options.method == "newton":
        return _begin_newton(server, clients, warm=warm)
    loss = losses.loss_code(server.options.loss)
    if server.phase is None and not warm:
        chunks = minibatch_ascent.begin(
            clients,
            loss=loss,
            regularisation=server.options.regularisation,
            samples=server.samples,
            shared_labels=server.shared_labels,
        )
        return replace(server, phase=chunks)
    if server.phase is None:
        server = catch_up(server, clients)
    else:
        server = replace(server, alpha=server.phase.alpha, w=server.phase.dual_weights)
    dual = dual_newton.begin(
        clients,
        alpha=server.alpha,
        w=server.w,
        loss=loss,
        regularisation=server.options.regularisation,
        samples=server.samples,
        outputs=server.outputs,
        labelled=server.labelled,
    )
    return replace(server, phase=dual)


def _begin_newton(server: Server, clients: Clients, *, warm: bool) -> Server:
    """Go on with Newton's method in the primal from the present duals."""
    if warm:
        server = catch_up(server, clients)
    phase = newton.begin(
        clients,
        alpha=server.alpha,
        w=server.w,
        z=server.z,
        warm=warm,
        loss=losses.loss_code(server.options.loss),
        regularisation=server.options.regularisation,
        samples=server.samples,
        features=server.features,
        outputs=server.outputs,
        labelled=server.counting,
        sparse=server.sparse,
        frame=server.options.frame,
    )
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


def certify(server: Server, clients: Clients, rng: RandomKey) -> tuple[Server, RoundMetrics]:
    """Bring w and z up to the duals at all clients; return the objectives there."""
    if server.partial is not None:
        server = _enter_partial(server, clients)
        assert server.partial is not None
        state, info, _ = partial_participation.certify(server.partial, clients)
        return replace(server, partial=state, present=tuple(clients.ids)), info
    if server.phase is not None:
        phase, info = _certify(server.phase, clients)
        return replace(server, phase=phase), info
    return dual_ascent.certify(server, clients)


def _certify(phase: Phase, clients: Clients) -> tuple[Phase, RoundMetrics]:
    if isinstance(phase, minibatch_ascent.ChunkAscent):
        return minibatch_ascent.certify(phase, clients)
    if isinstance(phase, dual_newton.DualNewton):
        return dual_newton.certify(phase, clients)
    return newton.certify(phase, clients)


def conclude(server: Server, clients: Clients, rng: RandomKey) -> FinalResult:
    """Certify the final model and reveal it."""
    if server.partial is not None:
        server = _enter_partial(server, clients)
        assert server.partial is not None
        _, info, weights = partial_participation.certify(server.partial, clients)
        # discloses the model: the server may predict with it
        return FinalResult(info, clients.reveal(weights))
    server, info = certify(server, clients, rng)
    if isinstance(server.phase, newton.Newton):
        return FinalResult(info, newton.reveal_weights(clients))
    if isinstance(server.phase, dual_newton.DualNewton):
        return FinalResult(info, dual_newton.reveal_weights(clients))
    w = server.w if server.phase is None else server.phase.dual_weights
    # discloses the model: the server may predict with it
    return FinalResult(info, clients.reveal(w))


def conclude_private(
    server: Server, clients: Clients, rng: RandomKey, *, terms: Release
) -> FinalResult:
    """Certify the final model and reveal it with noise."""
    _, info = certify(server, clients, rng)
    return differential_privacy.conclude(
        info, clients, terms, add_noise=add_noise, keep_noisy=keep_noisy
    )


def private(terms: Release) -> Algorithm:
    """Return HyFDCA with noise in the model that it releases."""
    return replace(
        HYFDCA,
        init_client=bound(init_client, release=terms),
        conclude=bound(conclude_private, terms=terms),
    )


def predict(client: Client | InPhase | partial_participation_client.Place, block: Block) -> Array:
    """Return the client's part of the scores of a block's samples, (outputs, samples)."""
    return scores(block.x, client.w)


@client_function
def enter_partial(
    client: Client | InPhase, block: Block, message: Enter, rng: RandomKey
) -> tuple[partial_participation_client.Place, Ready]:
    """Go on with proximal rounds."""
    before = settled(client, message.taken)
    return partial_participation_client.enter(
        before, block, message.shares, message.metric
    ), Ready()


@client_function
def forget(
    client: Client | InPhase | partial_participation_client.Place,
    block: Block,
    message: Measure,
    rng: RandomKey,
) -> tuple[Client, Ready]:
    """Go back to zero duals and weights."""
    before = (
        client.before
        if isinstance(client, partial_participation_client.Place)
        else settled(client, 1.0)
    )
    alpha, w = np.zeros_like(before.alpha), np.zeros_like(before.w)
    return evolve(before, alpha=alpha, w=w, alpha_trial=alpha, w_trial=w), Ready()


@client_function
def add_noise(
    client: Client | InPhase | partial_participation_client.Place,
    block: Block,
    message: ShareOut,
    rng: RandomKey,
) -> tuple[Client, NoisyWeights]:
    """Send this client's share of the weights with its share of the noise."""
    before: Client = client if isinstance(client, Client) else client.before
    assert before.noise is not None
    noise, w = differential_privacy.with_noise(client.w, before.feature_share, before.noise)
    return evolve(before, w=client.w, noise=noise), NoisyWeights(w)


@client_function
def keep_noisy(
    client: Client, block: Block, message: NoisyWeights, rng: RandomKey
) -> tuple[Client, Ready]:
    """Keep the released weights in place of the client's own."""
    return evolve(client, w=message.w), Ready()


HYFDCA = Algorithm(
    name="hyfdca",
    hyperparameters=HyFDCA,
    init_server=init_server,
    init_client=init_client,
    setup=setup,
    round=round,
    certify=certify,
    conclude=conclude,
    states=(
        Server,
        Client,
        HyFDCA,
        NoiseShare,
        *minibatch_ascent.STATES,
        *dual_newton.STATES,
        *newton.STATES,
        *partial_participation.STATES,
    ),
    model=Model(predict=predict, additive=True, kind="linear"),
    disclosure=Disclosure(
        sends=(
            *asks(enter_partial, forget, keep_noisy),
            *sums(add_noise, reveals=("w",), opens=("w",)),
            *dual_ascent.SENDS,
            *minibatch_ascent.SENDS,
            *dual_newton.SENDS,
            *newton.SENDS,
            *partial_participation_client.SENDS,
        ),
        dp_unit="sample",
    ),
    private=private,
)
