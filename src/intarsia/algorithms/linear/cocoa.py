"""CoCoA: dual coordinate ascent over clients that hold different samples of the same features.

Smith, Forte, Ma, Takáč, Jordan and Jaggi, "CoCoA: A General Framework for Communication-Efficient
Distributed Optimization", JMLR 18 (2017/18), Algorithm 1 and the local problem (9). HyFDCA is its
extension to hybrid data.

    primal  P(w) = λ/2 ‖w‖² + 1/N Σ_i l(x_iᵀw, y_i)
    dual    D(α) = -λ/2 ‖w(α)‖² - 1/N Σ_i l*(-α_i),   w(α) = 1/(λN) Σ_i α_i x_i

The duals of a sample stay at its owner. One round:

1. local dual ascent: a client opens w and steps on its samples, the quadratic term of its own
   steps weighed by σ'; it keeps γ of its steps and sends what w moves by
2. the server adds γ times the total

γ = 1 with σ' = γK is CoCoA⁺ (adding), γ = 1/K with σ' = 1 is the first CoCoA (averaging); K counts
all clients, so that it is safe whoever is there. The server never reads w before the end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np

from intarsia import core as fl
from intarsia.algorithms.linear import sealed_weights
from intarsia.algorithms.linear.sealed_weights import Weights, send_zeros
from intarsia.core.block import Array, Block, ClientId, targets
from intarsia.core.schema import Schema
from intarsia.core.settings import Between, Penalty, Positive, PositiveFraction, check_ranges
from intarsia.errors import FederationError, several
from intarsia.maths.linear import losses
from intarsia.maths.linear.products import gather, row_norms, scores
from intarsia.maths.linear.sdca import ascend_slice
from intarsia.protocols import certified_release
from intarsia.protocols.certified_release import Certifying, Propose, Proposed

_PHASE = "dual ascent"
_W = ("PrimalChange.w", "Weights.w")  # the weights are a combination of these totals


@dataclass(frozen=True, kw_only=True)
class CoCoA:
    """Hyperparameters, with the paper's meaning."""

    # hinge, squared_hinge, logistic; for numbers squared, huber, quantile, poisson, gamma
    loss: str = "hinge"
    huber_delta: Positive = 1.35  # δ of the Huber loss, in the unit of the labels
    quantile: Between = 0.5  # τ of the quantile loss
    regularisation: Penalty = 1e-3  # λ
    gamma: PositiveFraction = 1.0  # γ, the share of the steps that counts; 1 adds, 1/K averages
    # σ'; None: γK
    sigma: Annotated[Positive, "γ times the number of clients is safe"] | None = None
    local_samples: PositiveFraction = 1.0  # share of its samples that a client steps on in a round

    def __post_init__(self) -> None:
        losses.loss_code(self.loss)
        check_ranges(self)


@dataclass(frozen=True)
class Server:
    """The server's state."""

    options: CoCoA
    samples: int  # N
    w: Any = None  # sealed (outputs, features)


@dataclass(frozen=True)
class Client:
    """A client's state, in the order of its aligned block."""

    options: CoCoA
    samples: int  # N
    clients: int  # K
    alpha: Array  # (outputs, samples)
    w: Array  # (outputs, features) the weights as this client saw them last
    noise: fl.Release | None = None  # of what the model is released with


@dataclass(frozen=True)
class Ascend:
    """Weights to step from."""

    w: fl.PerFeature


@fl.describe("model weights or their changes")
class PrimalChange:
    """What w moves by from a client's steps."""

    w: fl.PerFeature


@fl.describe("terms of the training objective")
class Objectives:
    """A client's part of the objectives."""

    at: Array  # (3,) Σ l(z_i), Σ -l*(-α_i), ‖w‖² / K


def init_client(
    options: CoCoA,
    schema: Schema,
    client: ClientId,
    block: Block,
    *,
    release: fl.Release | None = None,
) -> Client:
    """Return a client's state: duals and weights of zero."""
    losses.check_labels(losses.loss_code(options.loss), block.y, f"client {client!r}")
    outputs, (samples, features) = schema.labels.outputs, block.shape
    return Client(
        options,
        len(schema.samples),
        len(schema.clients),
        np.zeros((outputs, samples)),
        np.zeros((outputs, features)),
        release,
    )


@fl.told_the_same
@fl.client_function
def local_dual_ascent(
    client: Client, block: Block, message: Ascend, rng: fl.RandomKey
) -> tuple[Client, PrimalChange]:
    """Step on this client's local problem; keep the steps, send what w moves by."""
    options, regularised = client.options, client.options.regularisation * client.samples
    samples = block.shape[0]
    order = rng.generator().permutation(samples)
    order = order[: math.ceil(options.local_samples * samples)]
    steps = ascend_slice(
        block.x,
        targets(block, len(message.w)),
        client.alpha,
        scores(block.x, message.w),
        row_norms(block.x) / regularised,
        np.ones(samples),
        order,
        # the client's own: a server that chose it could let all but one stand still
        sigma=options.gamma * client.clients if options.sigma is None else options.sigma,
        regularised_samples=regularised,
        loss=losses.loss_code(options.loss),
        shape=losses.shape_of(options),
    )
    client = replace(client, alpha=client.alpha + options.gamma * steps, w=message.w)
    return client, PrimalChange(gather(block.x, steps) / regularised)


@fl.told_the_same
@fl.client_function
def objectives(client: Client, block: Block, message: Weights) -> tuple[Client, Objectives]:
    """Keep the model; send this client's part of the objectives."""
    loss, w = losses.loss_code(client.options.loss), message.w
    y, shape = targets(block, len(w)), losses.shape_of(client.options)
    at = (
        losses.value(loss, scores(block.x, w), y, shape=shape).sum(),
        losses.minus_conjugate(loss, client.alpha, y, shape=shape).sum(),
        np.vdot(w, w) / client.clients,
    )
    return replace(client, w=w), Objectives(np.array(at, np.float64))


@fl.client_function
def propose(
    client: Client | Certifying, block: Block, message: Propose
) -> tuple[Certifying, Proposed]:
    """Send this client's share of the model, and its duals."""
    training = client.training if isinstance(client, Certifying) else client
    return certified_release.propose(
        *(message, block),
        training=training,
        w=client.w,
        alpha=client.alpha,
        reads=np.arange(block.shape[0]),
        shares=np.full(block.shape[1], 1 / training.clients),
    )


def init_server(options: CoCoA, schema: Schema) -> Server:
    """Return the server's state before the set-up.

    Raises
    ------
    FederationError
        If the clients' features differ, two hold one sample, or a sample has no label.
    """
    first, *others = schema.clients
    features = set(schema.holdings[first].features)
    for name in others:
        odd = features ^ set(schema.holdings[name].features)
        if odd:
            raise FederationError(
                f"Clients {first!r} and {name!r} differ in {several(len(odd), 'feature')} "
                f'(first: {min(odd)!r}); cocoa needs the same features everywhere: use "hyfdca".'
            )
    shared = int((schema.samples.holders > 1).sum())
    if shared:
        raise FederationError(
            f"{several(shared, 'sample is', 'samples are')} held by more than one client; cocoa "
            'needs each sample at one: drop the copies or use "hyfdca".'
        )
    bare = int((schema.label_holders == 0).sum())
    if bare:
        raise FederationError(
            f"{several(bare, 'training sample has', 'training samples have')} no label; cocoa "
            "needs one for each: drop what has none."
        )
    return Server(options, len(schema.samples))


def round(server: Server, clients: fl.Clients) -> tuple[Server, fl.RoundMetrics]:
    """Run Algorithm 1 once."""
    message = Ascend(w=server.w)
    # step 1: local dual ascent
    change = clients.sum(local_dual_ascent, message)
    # step 2: aggregation
    w = server.w + change.w * server.options.gamma
    return replace(server, w=w), fl.RoundMetrics(phase=_PHASE)


def certify(server: Server, clients: fl.Clients) -> tuple[Server, fl.RoundMetrics]:
    """Return the objectives over all clients."""
    parts = clients.sum(objectives, Weights(server.w))
    # discloses the data loss, the dual's data term and ‖w‖²
    loss, conjugate, square = clients.reveal(parts.at).tolist()
    ridge = 0.5 * server.options.regularisation * square
    primal, dual = ridge + loss / server.samples, conjugate / server.samples - ridge
    return server, fl.RoundMetrics.certified(primal, dual, _PHASE)


def private(release: fl.Release) -> fl.Algorithm:
    """Return CoCoA with noise in the model that it releases."""
    return certified_release.private(
        *(COCOA, release),
        proposal=lambda server, clients: (Propose(server.w), _PHASE),
        propose=propose,
        origins={"Propose.w": _W},
    )


COCOA = fl.Algorithm(
    name="cocoa",
    hyperparameters=CoCoA,
    init_server=init_server,
    init_client=init_client,
    setup=sealed_weights.setup,
    round=round,
    certify=certify,
    absences=True,
    states=(Server, Client, CoCoA, fl.Release),
    model=fl.Model(additive=True, kind="linear"),
    disclosure=fl.Disclosure(
        sends=fl.opening(
            dict.fromkeys(["Ascend.w", "Weights.w"], _W),
            (
                *fl.each(
                    fl.sums(send_zeros, local_dual_ascent, reveals=("w",), opens=("w",)),
                    model=("w",),
                    trains=True,
                ),
                *fl.each(fl.sums(objectives, reveals=("at",)), renews=True, each_round=1),
            ),
        ),
        dp_unit="sample",
    ),
    private=private,
)
