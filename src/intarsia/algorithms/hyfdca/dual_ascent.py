"""Dual ascent of HyFDCA: the exchanges of Algorithm 1, at the server and at the clients.

One round is local dual ascent (Algorithm 5, or 3), primal aggregation (Algorithm 4, duals → w),
secure inner products (Algorithm 2, w → scores), and a line search between the old duals and the
new. `algorithm` says what is corrected.

What a client counted last is a trial: the server takes a share of it (the step that its line search
finds, or all), and says so with the next message; `settle_trial` is the client's side of that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia import core as fl
from intarsia.algorithms.hyfdca.minibatch_ascent import find_read
from intarsia.algorithms.hyfdca.state import Client, InPhase, Server, choose_by_network
from intarsia.core.block import Array, Block, ClientId, targets
from intarsia.errors import ConvergenceError, RefusedError
from intarsia.maths.linear import losses
from intarsia.maths.linear.local_sdca import feature_squares
from intarsia.maths.linear.products import gather, row_norms, scores
from intarsia.maths.linear.sdca import ascend_slice

PHASE = "dual ascent"
# where the line search knows the conjugates
_STEPS = np.concatenate([[0.0], 2.0 ** np.arange(-10, 1)])
_APART = 16.0  # by how many times squared lengths of rows differ that are told apart


@dataclass(frozen=True)
class Duals:
    """Duals to count into the weights."""

    alpha: fl.PerSample
    taken: float


@dataclass(frozen=True)
class Weights:
    """Weights to count into the scores."""

    w: fl.PerFeature
    taken: float | None  # None: the duals of this trial were counted just before


@fl.describe(w="model weights or their changes", conjugates="terms of the training objective")
class PrimalChange:
    """What a client's part of w changed by; the conjugates on the way there."""

    w: fl.PerFeature
    conjugates: Array  # (12,) Σ -l*(-α_i) from the old duals to the new


@fl.describe(z="each row's model score", line="terms of the training objective")
class ScoreChange:
    """What a client's part of z changed by; scalars for the line search."""

    z: fl.PerScore
    line: Array  # (2,) w·Δw and ‖Δw‖², each feature once


@fl.describe(
    w="model weights or their changes",
    z="each row's model score",
    conjugates="terms of the training objective",
    line="terms of the training objective",
)
class Change:
    """PrimalChange and ScoreChange in one, where no feature is shared."""

    w: fl.PerFeature
    z: fl.PerScore
    conjugates: Array
    line: Array


def own_scores(server: Server) -> bool:
    """Return whether each client has the scores of its samples from w: no inner products then."""
    options = server.options
    return server.horizontal and options.method == "ascent" and options.step == "fixed"


def catch_up(server: Server, clients: fl.Clients) -> Server:
    """Let clients that were away count the duals they missed, then all the weights."""
    returning = [name for name in clients.ids if name not in server.present]
    w = server.w
    if returning:
        w = w + clients.sum(aggregate_primal, _duals(server, returning)).w
    if own_scores(server):
        return replace(server, w=w)
    stayed, back = Weights(w, server.taken), Weights(w, 1.0)
    messages = {name: stayed if name in server.present else back for name in clients.ids}
    change = clients.sum(inner_products, messages)
    known = {**server.earlier, **dict.fromkeys(server.present, server.taken)}
    away = {name: taken for name, taken in known.items() if name not in messages}
    return replace(server, w=w, z=server.z + change.z, taken=1.0, earlier=away)


def _duals(server: Server, names: Sequence[ClientId]) -> dict[ClientId, Duals]:
    """Return the duals for some clients, each with what was taken of its own last trial."""
    taken = {
        name: server.taken if name in server.present else server.earlier.get(name, 1.0)
        for name in names
    }
    messages = {one: Duals(alpha=server.alpha, taken=one) for one in set(taken.values())}
    return {name: messages[one] for name, one in taken.items()}


def aggregate(server: Server, clients: fl.Clients) -> Server:
    """Bring w up to the duals, at the clients that are there."""
    change = clients.sum(aggregate_primal, _duals(server, clients.ids))
    return replace(server, w=server.w + change.w)


def count(server: Server, clients: fl.Clients) -> Server:
    """Bring w and z up to the duals, at the clients that are there."""
    if server.vertical and len(server.present) == server.clients:
        both = clients.sum(aggregate_and_multiply, _duals(server, clients.ids))
        return replace(server, w=server.w + both.w, z=server.z + both.z)
    server = aggregate(server, clients)
    if own_scores(server):
        return server
    products = clients.sum(inner_products, Weights(server.w, None))
    return replace(server, z=server.z + products.z)


def search(server: Server, clients: fl.Clients, alpha: Any) -> Server:
    """Move to the best point between the old duals and `alpha`."""
    trial = Duals(alpha=alpha, taken=server.taken)
    if server.vertical:
        change = clients.sum(aggregate_and_multiply, trial)
        primal = products = change
    else:
        primal = clients.sum(aggregate_primal, trial)
        weights = Weights(server.w + primal.w, None)
        products = clients.sum(inner_products, weights)
    # discloses the dual's data term at twelve points of the line, w·Δw and ‖Δw‖²
    data = clients.reveal(primal.conjugates) / server.samples
    cross, square = clients.reveal(products.line).tolist()
    options = server.options
    dual = data - options.regularisation * (_STEPS * cross + 0.5 * _STEPS**2 * square)
    step, _ = losses.best_step(losses.loss_code(options.loss), _STEPS, dual)
    return replace(
        server,
        alpha=server.alpha + (alpha - server.alpha) * step,
        w=server.w + primal.w * step,
        z=server.z + products.z * step,
        taken=step,
    )


def settle_trial(client: Client | InPhase, taken: float) -> Client:
    """Count what the server took of the last trial."""
    if isinstance(client, InPhase):
        zeros = np.zeros_like(client.w)
        before: Client = client.before
        return fl.evolve(
            before, alpha=client.alpha, alpha_trial=client.alpha, w=zeros, w_trial=zeros
        )
    if client.alpha is client.alpha_trial and client.w is client.w_trial:
        return client
    if not 0.0 <= taken <= 1.0:  # nor for nan; beyond it weights would outgrow their noise
        raise RefusedError(
            f"The share of the last trial that was taken is {taken:g}, and shares are from 0 to 1; "
            "run the algorithm as it is at the server."
        )
    alpha = client.alpha + taken * (client.alpha_trial - client.alpha)
    w = client.w + taken * (client.w_trial - client.w)
    return fl.evolve(client, alpha=alpha, w=w, alpha_trial=alpha, w_trial=w)


@fl.client_function
def aggregate_primal(client: Client, block: Block, message: Duals) -> tuple[Client, PrimalChange]:
    """Count the duals into this client's part of w (Algorithm 4)."""
    client = settle_trial(client, message.taken)
    change = message.alpha - client.alpha
    w = gather(block.x, change) / (client.options.regularisation * client.samples)
    reply = PrimalChange(w, _conjugates(client, block, change))
    return fl.evolve(client, alpha_trial=message.alpha), reply


def _conjugates(client: Client, block: Block, change: Array) -> Array:
    loss, held = losses.loss_code(client.options.loss), client.label_share > 0
    y, weights = targets(block, len(change))[:, held], block.weights_of(held)
    share, start, move = client.label_share[held], client.alpha[:, held], change[:, held]
    duals = [start + step * move for step in _STEPS]
    known: dict[str, Any] = {"shape": losses.shape_of(client.options), "slack": losses.EDGE}
    terms = [losses.minus_conjugate(loss, alpha, y, weights, **known) @ share for alpha in duals]
    return np.array([float(term.sum()) for term in terms])


@fl.client_function
def inner_products(client: Client, block: Block, message: Weights) -> tuple[Client, ScoreChange]:
    """Count the weights into this client's part of the scores (Algorithm 2)."""
    if message.taken is not None:
        client = settle_trial(client, message.taken)
    return _multiply(client, block, message.w)


def _multiply(client: Client, block: Block, w: Array) -> tuple[Client, ScoreChange]:
    change = w - client.w
    products = [client.w * change, change**2]
    line = np.array([float((one @ client.feature_share).sum()) for one in products])
    return fl.evolve(client, w_trial=w), ScoreChange(scores(block.x, change), line)


@fl.client_function
def aggregate_and_multiply(
    client: Client, block: Block, message: Duals, rng: fl.RandomKey
) -> tuple[Client, Change]:
    """Do both steps at once where this client alone holds its features."""
    client, primal = aggregate_primal.call(client, block, message, rng)
    client, products = _multiply(client, block, client.w + primal.w)
    return client, Change(primal.w, products.z, primal.conjugates, products.line)


@dataclass(frozen=True)
class Measure:
    """Ask for what a client can measure alone."""

    sizes: bool = False  # whether of rows about how long they are, too


@fl.describe(
    squares="each row's squared length",
    total="the sum of rows' squared lengths",
    sizes="which rows are far longer or shorter than most",
)
class Norms:
    """Squared norms of a client's slices of its samples, or their totals."""

    squares: fl.PerSample  # (samples,)
    total: float = 0.0  # over the samples
    sizes: fl.PerSample | None = None  # (samples,) about each, as `_sizes`


@dataclass(frozen=True)
class Sizes:
    """About the squared norms of samples."""

    sizes: fl.PerSample  # (samples,)


@dataclass(frozen=True)
class MeanSquare:
    """The mean ‖x_i‖², to begin with."""

    square: float
    features: int  # of all clients
    totals: bool  # whether this client is to send the zeros that totals start from


@fl.describe(
    alpha="each row's dual variable",
    w="model weights or their changes",
    z="each row's model score",
    shares="each column's part in the rows' mean squared length",
    sizes="sums of the columns' squared lengths",
    sparse="how many tables are sparse",
)
class Zeros:
    """What the totals start from, at one client."""

    alpha: fl.PerSample | None
    w: fl.PerFeature | None
    z: fl.PerScore | None
    shares: fl.PerFeature  # (features,) r_{k,j}, the parts in the mean ‖x_i‖² that features have
    sizes: Array  # (2,) Σ_j r_j and F^¾ Σ_j r_j^2.5 over the F features, each once
    sparse: float  # 1 where the client's table is sparse


@dataclass(frozen=True)
class Ascend:
    """Duals and scores to step from."""

    alpha: fl.PerSample
    z: fl.PerScore | None  # None: no sample is shared, and the client has the scores from w
    w: fl.PerFeature | None
    taken: float
    present: tuple[ClientId, ...]


@fl.describe(alpha="each row's dual variable", at="terms of the training objective")
class Steps:
    """A client's dual steps, and its part of the objectives where the round started."""

    alpha: fl.PerSample
    at: Array  # (3,) Σ l(z_i), Σ -l*(-α_i), ‖w‖²: each sample and each feature once


@dataclass(frozen=True)
class Scores:
    """Duals and scores to evaluate the objectives at."""

    alpha: fl.PerSample
    z: fl.PerScore | None  # as in Ascend
    w: fl.PerFeature | None
    taken: float


@fl.describe("terms of the training objective")
class Objectives:
    """A client's part of the objectives."""

    at: Array  # (3,) as in Steps


def setup(server: Server, clients: fl.Clients) -> Server:
    """Give every client the norms of its samples over all owners; start from zero."""
    asked_for = server.options.system in ("shares", "encrypted")
    shared = (clients.sealed or asked_for) and _needs_no_norms(server)
    norms = clients.sum(measure_norms, Measure(shared))
    # discloses the mean squared norm of a sample
    square = float(clients.reveal(norms.total)) / server.samples
    first = clients.ids[0]
    zeros = clients.sum(
        send_zeros,
        {name: MeanSquare(square, server.features, name == first) for name in clients.ids},
    )
    # discloses whether the tables are sparse
    sparse = clients.reveal(zeros.sparse) > 0
    wide = sparse and server.features > server.samples and not server.options.l1_ratio
    if server.options.network_told and not wide:
        options, why = choose_by_network(server, square, sealed=clients.sealed)
        exact = options.method == "newton" and options.frame
        dealer = server.dealer if exact else None
        server = replace(server, options=options, dealer=dealer, choice=why)
    untold = shared and not wide and _needs_no_norms(server)
    if untold:
        clients.ask(settle_sizes, Sizes(norms.sizes))
    else:
        clients.ask(settle_norms, Norms(norms.squares))
    return replace(
        server,
        alpha=zeros.alpha,
        w=zeros.w,
        z=zeros.z,
        present=tuple(clients.ids),
        sparse=sparse,
        square=square,
        shares=zeros.shares,
        sizes=zeros.sizes,
        wide=wide,
        norms=norms.squares if untold else None,
    )


def _needs_no_norms(server: Server) -> bool:
    """Return whether rounds of all clients are of Newton's method with a shared system alone.

    They go by scores and duals, and choose samples by about how long rows are.
    """
    options = server.options
    return (
        server.dealer is not None and options.method != "ascent" and options.step == "line_search"
    )


def ascend_once(
    server: Server, clients: fl.Clients, rng: fl.RandomKey
) -> tuple[Server, fl.RoundMetrics]:
    """Run Algorithm 1 once."""
    complete = len(clients.ids) == server.clients
    if not complete or len(server.present) < server.clients:
        server = catch_up(server, clients)
    # step 1: local dual ascent
    ascend = Ascend(
        alpha=server.alpha,
        **_scored_by(server),
        taken=server.taken,
        present=tuple(clients.ids),
    )
    steps = clients.sum(local_dual_ascent, ascend)
    # discloses the data loss, the dual's data term and ‖w‖² where the round started
    info = _objectives(server, clients.reveal(steps.at))
    if complete:
        server = _watch(server, info)
    server = replace(server, present=tuple(clients.ids))
    if complete and server.options.step == "line_search":
        # steps 2 to 4
        return search(server, clients, server.alpha + steps.alpha), info
    # steps 2 and 3 of the clients that are there, at the fixed step
    server = replace(server, alpha=server.alpha + steps.alpha * server.options.gamma, taken=1.0)
    return (count(server, clients) if complete else aggregate(server, clients)), info


def _objectives(server: Server, at: Array) -> fl.RoundMetrics:
    loss, conjugate, square = at.tolist()
    ridge = 0.5 * server.options.regularisation * square
    primal, dual = ridge + loss / server.samples, conjugate / server.samples - ridge
    return fl.RoundMetrics.certified(primal, dual, PHASE)


def _watch(server: Server, info: fl.RoundMetrics) -> Server:
    """Raise an error where training diverges."""
    assert info.primal is not None
    if not np.isfinite(info.primal) or info.primal > 1e3 * max(server.lowest, 1e-12):
        raise ConvergenceError(
            f"The primal objective is {info.primal:.3g} and was {server.lowest:.3g} before: "
            "the dual steps of co-owners overshoot. Lower algorithm.gamma or "
            "algorithm.local_samples, or raise algorithm.regularisation."
        )
    return replace(server, lowest=min(server.lowest, info.primal))


def _scored_by(server: Server) -> dict[str, Any]:
    """Return what clients take the scores from: z, or w where each has them from that."""
    own = own_scores(server)
    return {"z": None if own else server.z, "w": server.w if own else None}


def certify(server: Server, clients: fl.Clients) -> tuple[Server, fl.RoundMetrics]:
    """Bring w and z up to the duals at all clients; return the objectives there."""
    server = count(server, clients)
    message = Scores(alpha=server.alpha, **_scored_by(server), taken=1.0)
    parts = clients.sum(objectives, message)
    # discloses the data loss, the dual's data term and ‖w‖²
    info = _objectives(server, clients.reveal(parts.at))
    return replace(server, taken=1.0, earlier={}, present=tuple(clients.ids)), info


@fl.client_function
def measure_norms(client: Client, block: Block, message: Measure) -> tuple[Client, Norms]:
    """Send ‖x_{k,i}‖²."""
    own = row_norms(block.x)
    found = Norms(own, float(own.sum()), _sizes(own) if message.sizes else None)
    return fl.evolve(client, own_squares=own), found


def _sizes(squares: Array) -> Array:
    """Return about how long rows are: all as their mean, but for far longer and far shorter ones.

    A sample is chosen for the Hessian the more often the longer its row is, or rare columns would
    be missed. Exact lengths would tell co-owners more: of one categorical column the category.
    """
    unit = 2.0 ** math.ceil(math.log2(squares.mean())) if squares.any() else 1.0
    powers = np.rint(np.log(np.maximum(squares / unit, 1 / _APART)) / math.log(_APART))
    return np.asarray(unit * _APART**powers)


@fl.client_function
def settle_sizes(client: Client, block: Block, message: Sizes) -> tuple[Client, fl.Ready]:
    """Keep about how long rows are."""
    return fl.evolve(client, sizes=message.sizes, own_squares=np.zeros(0)), fl.Ready()


@fl.client_function
def settle_norms(client: Client, block: Block, message: Norms) -> tuple[Client, fl.Ready]:
    """Keep ‖x_i‖² and the row scale ‖x_i‖/‖x_{k,i}‖ (0 for a slice of zeros)."""
    return with_norms(client, block, message.squares), fl.Ready()


def with_norms(client: Client, block: Block, squares: Array) -> Client:
    """Return a client that knows ‖x_i‖², (samples,)."""
    own = client.own_squares if len(client.own_squares) else row_norms(block.x)
    ratio = np.divide(squares, own, out=np.zeros_like(own), where=own > 0)
    scale = np.sqrt(ratio, out=ratio)
    return fl.evolve(client, norms=squares, row_scale=scale, own_squares=np.zeros(0))


@fl.client_function
def send_zeros(client: Client, block: Block, message: MeanSquare) -> tuple[Client, Zeros]:
    """Send the parts that features have in ‖x_i‖², and the zeros that the totals start from.

    Zeros that nobody sends are zero too, so that one client sends them.
    """
    client = fl.evolve(client, feature_squares=feature_squares(block.x))
    shares = client.feature_squares / max(client.samples * message.square, 1e-300)
    # the other holders' parts are taken to be like one's own
    likely = shares / client.feature_share
    # the factor keeps the sum in the range of sealed numbers, whatever the shares: r_j sums to 1
    powers = message.features**0.75 * likely**2 * np.sqrt(likely)  # a power takes ten times as long
    first = message.totals
    zeros = Zeros(
        alpha=client.alpha if first else None,
        w=client.w if first else None,
        z=np.zeros_like(client.alpha) if first else None,
        shares=shares,
        sizes=np.array([likely, powers]) @ client.feature_share,
        sparse=float(block.sparse),
    )
    return client, zeros


send_zeros = fl.one_sender(send_zeros, "alpha", "w", "z")


@fl.client_function
def local_dual_ascent(
    client: Client, block: Block, message: Ascend, rng: fl.RandomKey
) -> tuple[Client, Steps]:
    """Take dual steps on the samples that this client is to step on (Algorithms 3 and 5)."""
    options, regularised = client.options, client.options.regularisation * client.samples
    client, z = _find_scores(client, block, message)
    loss, shape = losses.loss_code(options.loss), losses.shape_of(options)
    y = targets(block, len(message.alpha))
    mine = find_read(client, message.present)
    generator = rng.generator()
    order = mine[generator.permutation(len(mine))]
    order = order[: max(1, math.ceil(options.local_samples * len(order)))]
    curvature = client.norms / regularised
    local = options.local_method == "practical"
    steps = ascend_slice(
        block.x,
        y,
        message.alpha,
        z,
        curvature,
        client.row_scale if local else np.zeros_like(curvature),
        order,
        sigma=options.sigma,
        regularised_samples=regularised,
        loss=loss,
        shape=shape,
        weights=block.weights,
    )
    if not local:
        # Algorithm 3: no further than c_k = N_k/N of the way to -l'(z)
        reach = losses.dual_from_scores(loss, z, y, block.weights, shape=shape) - message.alpha
        reach = np.nan_to_num(reach) * (block.shape[0] / client.samples)
        steps = np.clip(steps, np.minimum(reach, 0), np.maximum(reach, 0))
    return client, Steps(steps, _at(client, block, message.alpha, z, mine))


def _find_scores(client: Client, block: Block, message: Ascend | Scores) -> tuple[Client, Array]:
    """Return the scores of the client's samples: those of all owners, or its own from w."""
    client = settle_trial(client, message.taken)
    if message.z is not None:
        return client, message.z
    assert message.w is not None
    return fl.evolve(client, w=message.w, w_trial=message.w), scores(block.x, message.w)


def _at(client: Client, block: Block, alpha: Array, z: Array, mine: NDArray[np.int64]) -> Array:
    """Return Σ l(z_i) and Σ -l*(-α_i) of some samples, and the client's share of ‖w‖²."""
    loss, y = losses.loss_code(client.options.loss), targets(block, len(z))[:, mine]
    weights, shape = block.weights_of(mine), losses.shape_of(client.options)
    terms = (
        losses.value(loss, z[:, mine], y, weights, shape=shape),
        losses.minus_conjugate(loss, alpha[:, mine], y, weights, shape=shape, slack=losses.EDGE),
        client.w**2 @ client.feature_share,
    )
    return np.array([float(term.sum()) for term in terms])


@fl.client_function
def objectives(client: Client, block: Block, message: Scores) -> tuple[Client, Objectives]:
    """Send this client's part of the objectives."""
    client, z = _find_scores(client, block, message)
    return client, Objectives(_at(client, block, message.alpha, z, find_read(client)))


SENDS = (
    *fl.asks(settle_norms, settle_sizes),
    *fl.sums(measure_norms, reveals=("total",)),
    *fl.sums(local_dual_ascent, objectives, reveals=("at",)),
    *fl.sums(inner_products, reveals=("line",)),
    *fl.each(
        (
            *fl.sums(
                send_zeros, reveals=("sparse", "sizes", "w"), opens=("alpha", "w", "z", "shares")
            ),
            *fl.sums(aggregate_primal, reveals=("conjugates", "w"), opens=("w",)),
            *fl.sums(aggregate_and_multiply, reveals=("conjugates", "line", "w"), opens=("w", "z")),
        ),
        model=("w",),
        trains=True,
    ),
)
