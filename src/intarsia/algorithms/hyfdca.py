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

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from intarsia.algorithm import (
    Algorithm,
    Clients,
    Conclusion,
    Info,
    PerFeature,
    PerSample,
    RandomKey,
    client_function,
    evolve,
)
from intarsia.algorithms import newton
from intarsia.data import Array, Block, ClientId, Index, Schema, targets
from intarsia.errors import ConvergenceError, ExperimentError
from intarsia.maths import losses
from intarsia.maths.products import gather, row_norms, scores
from intarsia.maths.sdca import ascend_slice

__all__ = ["HYFDCA", "HyFDCA"]

_STEPS = np.concatenate(
    [[0.0], 2.0 ** np.arange(-10, 1)]
)  # where the line search knows the conjugates


@dataclass(frozen=True, kw_only=True)
class HyFDCA:
    """Hyperparameters, with the paper's meaning."""

    loss: str = "hinge"  # hinge, squared_hinge, logistic, squared
    regularisation: float = 1e-3  # λ
    method: Literal["auto", "newton", "ascent"] = "auto"
    # auto: Newton's method where all clients are there, else dual ascent; ascent: the paper's alone
    local_method: Literal["practical", "paper"] = "practical"  # Algorithm 5 corrected, Algorithm 3
    local_samples: float = 1.0  # H as a share of the samples that a client steps on in a round
    owners: Literal["assign", "average"] = "assign"  # who steps on a shared sample
    step: Literal["line_search", "fixed"] = "line_search"
    gamma: float = 0.3  # γ, the fixed step, where there is no line search
    sigma: float = 1.0  # σ, damps a client's steps against those that others take at the same time

    def __post_init__(self) -> None:
        losses.loss_code(self.loss)
        if not self.regularisation > 0:
            raise ExperimentError(
                f"algorithm.regularisation is {self.regularisation}; it must be positive, "
                "for example 1e-3."
            )
        if not 0 < self.local_samples <= 1:
            raise ExperimentError(
                f"algorithm.local_samples is {self.local_samples}; it is the share of its samples "
                "that a client steps on in a round: choose it above 0, up to 1."
            )
        if not 0 < self.gamma <= 1:
            raise ExperimentError(
                f"algorithm.gamma is {self.gamma}; choose the step above 0, up to 1."
            )
        if not self.sigma > 0:
            raise ExperimentError(
                f"algorithm.sigma is {self.sigma}; it must be positive: 1 trusts the clients' "
                "steps, γ times the number of clients is safe."
            )


@dataclass(frozen=True)
class Server:
    """The server's state: sealed totals, and the scalars it has seen."""

    options: HyFDCA
    samples: int  # N
    clients: int
    horizontal: bool  # no sample is shared
    vertical: bool  # no feature is shared
    alpha: Any = None  # sealed (outputs, samples)
    w: Any = None  # sealed (outputs, features)
    z: Any = None  # sealed (outputs, samples)
    present: tuple[ClientId, ...] = ()  # in the round before
    taken: float = 1.0  # the share of the last trial that the line search took
    lowest: float = np.inf  # lowest primal so far
    features: int = 0
    outputs: int = 1
    labelled: tuple[ClientId, ...] = ()  # clients that hold labels
    sparse: bool = False
    newton: newton.Newton | None = None  # the state of that phase, while it lasts


@dataclass(frozen=True)
class Client:
    """A client's state, in the order of its aligned block."""

    options: HyFDCA
    name: ClientId
    samples: int  # N
    counted: NDArray[np.int64]  # samples whose label counts at this client: one holder of each
    sample_cells: tuple[tuple[int, int, int, int], ...]  # start, stop, holders, own rank
    feature_cells: tuple[tuple[int, int], ...]  # start, stop
    order: NDArray[np.int64]  # samples of each cell, from its start, evenly spread
    feature_share: Array  # (features,) 1 / holders
    label_share: Array  # (samples,) 1 / holders of the label, 0 without one
    label_key: NDArray[np.uint64]  # (samples,) the same at every holder of the label
    label_cell: NDArray[np.int64]  # (samples,) -1 without a label
    label_owners: tuple[tuple[ClientId, ...], ...]  # by label cell
    norms: Array  # (samples,) ‖x_i‖² over all owners
    row_scale: Array  # (samples,) ‖x_i‖ / ‖x_{k,i}‖
    alpha: Array  # (outputs, samples) duals that this client's part of w counts
    w: Array  # (outputs, features) weights that its part of z counts
    alpha_trial: Array  # the same after the current trial
    w_trial: Array


@dataclass(frozen=True)
class Measure:
    """Ask for what a client can measure alone."""


@dataclass(frozen=True)
class Norms:
    """Squared norms of a client's slices of its samples, or their totals."""

    squares: PerSample  # (samples,)


@dataclass(frozen=True)
class Ready:
    """The client has what it needs."""


@dataclass(frozen=True)
class Zeros:
    """What the totals start from."""

    alpha: PerSample
    w: PerFeature
    z: PerSample
    sparse: float  # 1 where the client's table is sparse


@dataclass(frozen=True)
class Ascend:
    """Duals and scores to step from."""

    alpha: PerSample
    z: PerSample
    taken: float
    draw: int  # decides which owner steps on a shared sample
    present: tuple[ClientId, ...]


@dataclass(frozen=True)
class Steps:
    """A client's dual steps, and its part of the objectives where the round started."""

    alpha: PerSample
    at: Array  # (3,) Σ l(z_i), Σ -l*(-α_i), ‖w‖²: each sample and each feature once


@dataclass(frozen=True)
class Duals:
    """Duals to count into the weights."""

    alpha: PerSample
    taken: float


@dataclass(frozen=True)
class Weights:
    """Weights to count into the scores."""

    w: PerFeature


@dataclass(frozen=True)
class PrimalChange:
    """What a client's part of w changed by; the conjugates on the way there."""

    w: PerFeature
    conjugates: Array  # (12,) Σ -l*(-α_i) from the old duals to the new


@dataclass(frozen=True)
class ScoreChange:
    """What a client's part of z changed by; scalars for the line search."""

    z: PerSample
    line: Array  # (2,) w·Δw and ‖Δw‖², each feature once


@dataclass(frozen=True)
class Change:
    """PrimalChange and ScoreChange in one, where no feature is shared."""

    w: PerFeature
    z: PerSample
    conjugates: Array
    line: Array


@dataclass(frozen=True)
class Scores:
    """Duals and scores to evaluate the objectives at."""

    alpha: PerSample
    z: PerSample
    taken: float


@dataclass(frozen=True)
class Objectives:
    """A client's part of the objectives."""

    at: Array  # (3,) as in Steps


def init_server(options: HyFDCA, schema: Schema, rng: RandomKey) -> Server:
    """Return the server's state before the set-up."""
    return Server(
        options,
        len(schema.samples),
        len(schema.clients),
        horizontal=bool((schema.samples.holders == 1).all()),
        vertical=bool((schema.features.holders == 1).all()),
        features=len(schema.features),
        outputs=schema.labels.outputs,
        labelled=schema.labelled.owners,
    )


def init_client(
    options: HyFDCA, schema: Schema, client: ClientId, block: Block, rng: RandomKey
) -> Client:
    """Return a client's state: what the public index sets say about its samples; zeros."""
    samples, features = block.shape
    labelled = schema.labelled
    mine = np.flatnonzero(~np.isnan(block.y)) if block.y is not None else np.zeros(0, np.intp)
    places = labelled.own(client)
    places = places[_ranks(labelled.ids[places], block.samples[mine])]
    key = np.zeros(samples, np.uint64)
    cell = np.full(samples, -1, np.int64)
    share = np.zeros(samples)
    key[mine] = places
    cell[mine] = labelled.cell_of[places]
    share[mine] = 1 / labelled.holders[places]
    outputs = schema.labels.outputs
    duals, weights = np.zeros((outputs, samples)), np.zeros((outputs, features))
    return Client(
        options=options,
        name=client,
        samples=len(schema.samples),
        counted=mine[places % labelled.holders[places] == labelled.rank(client, places)],
        sample_cells=schema.samples.own_cells(client),
        feature_cells=tuple(cell[:2] for cell in schema.features.own_cells(client)),
        order=_spread(schema.samples, client),
        feature_share=1 / schema.features.holders[schema.features.own(client)],
        label_share=share,
        label_key=key,
        label_cell=cell,
        label_owners=tuple(cell.owners for cell in labelled.cells),
        norms=np.zeros(samples),
        row_scale=np.zeros(samples),
        alpha=duals,
        w=weights,
        alpha_trial=duals,
        w_trial=weights,
    )


def _spread(index: Index, client: ClientId) -> NDArray[np.int64]:
    """Return the places of each cell's samples in an order that is the same at all its owners.

    It steps through a cell by its golden section, so that every stretch covers the cell evenly.
    """
    found: list[NDArray[np.int64]] = []
    for start, stop, _, _ in index.own_cells(client):
        size = stop - start
        stride = max(1, int(0.618 * size))
        while math.gcd(stride, size) > 1:
            stride += 1
        found.append(np.arange(size) * stride % size)
    return np.concatenate(found)


def _ranks(ids: NDArray[Any], wanted: NDArray[Any]) -> NDArray[np.intp]:
    order = np.argsort(ids, kind="stable")
    return order[np.searchsorted(ids[order], wanted)]


def setup(server: Server, clients: Clients, rng: RandomKey) -> Server:
    """Give every client the norms of its samples over all owners; start from zero."""
    norms = clients.sum(measure_norms, dict.fromkeys(clients.ids, Measure()))
    clients.ask(settle_norms, dict.fromkeys(clients.ids, Norms(norms.squares)))
    zeros = clients.sum(send_zeros, dict.fromkeys(clients.ids, Measure()))
    # discloses whether the tables are sparse
    sparse = clients.reveal(zeros.sparse) > 0
    return replace(
        server,
        alpha=zeros.alpha,
        w=zeros.w,
        z=zeros.z,
        present=tuple(clients.ids),
        sparse=sparse,
    )


def round(server: Server, clients: Clients, rng: RandomKey) -> tuple[Server, Info]:
    """Run Algorithm 1 once."""
    complete = len(clients.ids) == server.clients
    if complete and server.options.method != "ascent":
        if server.newton is None:
            server = _begin_newton(server, clients)
        assert server.newton is not None
        phase, info = newton.step(server.newton, clients)
        return replace(server, newton=phase, present=tuple(clients.ids)), info
    if server.newton is not None:
        server = _leave_newton(server)
    if not complete or len(server.present) < server.clients:
        server = _catch_up(server, clients)
    # step 1: local dual ascent
    ascend = Ascend(
        alpha=server.alpha,
        z=server.z,
        taken=server.taken,
        draw=rng.fold_in("owners").integer(),
        present=tuple(clients.ids),
    )
    steps = clients.sum(local_dual_ascent, dict.fromkeys(clients.ids, ascend))
    # discloses the data loss, the dual's data term and ‖w‖² where the round started
    info = _objectives(server, clients.reveal(steps.at))
    server = _watch(server, info)
    server = replace(server, present=tuple(clients.ids))
    if complete and server.options.step == "line_search":
        # steps 2 to 4
        return _search(server, clients, server.alpha + steps.alpha), info
    # steps 2 and 3 of the clients that are there, at the fixed step
    server = replace(server, alpha=server.alpha + steps.alpha * server.options.gamma, taken=1.0)
    return (_count(server, clients) if complete else _aggregate(server, clients)), info


def _begin_newton(server: Server, clients: Clients) -> Server:
    """Go on with Newton's method from the present duals."""
    warm = np.isfinite(server.lowest)
    if warm:
        server = _catch_up(server, clients)
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
        labelled=server.labelled,
        sparse=server.sparse,
    )
    return replace(server, newton=phase)


def _leave_newton(server: Server) -> Server:
    """Go on with dual ascent from the dual point of Newton's method.

    The clients do so when they are next asked; each counts its part of z from zero.
    """
    assert server.newton is not None
    phase = server.newton
    return replace(
        server,
        newton=None,
        alpha=phase.alpha,
        w=phase.dual_weights,
        z=server.z * 0.0,
        present=(),
        taken=1.0,
    )


def _catch_up(server: Server, clients: Clients) -> Server:
    """Let clients that were away count the duals they missed, then all the weights."""
    returning = [name for name in clients.ids if name not in server.present]
    if returning:
        change = clients.sum(aggregate_primal, dict.fromkeys(returning, _duals(server)))
        server = replace(server, w=server.w + change.w)
    change = clients.sum(inner_products, dict.fromkeys(clients.ids, Weights(server.w)))
    return replace(server, z=server.z + change.z, taken=1.0)


def _duals(server: Server) -> Duals:
    return Duals(alpha=server.alpha, taken=server.taken)


def _aggregate(server: Server, clients: Clients) -> Server:
    change = clients.sum(aggregate_primal, dict.fromkeys(clients.ids, _duals(server)))
    return replace(server, w=server.w + change.w)


def _count(server: Server, clients: Clients) -> Server:
    """Bring w and z up to the duals, at the clients that are there."""
    if server.vertical:
        both = clients.sum(aggregate_and_multiply, dict.fromkeys(clients.ids, _duals(server)))
        return replace(server, w=server.w + both.w, z=server.z + both.z)
    server = _aggregate(server, clients)
    products = clients.sum(inner_products, dict.fromkeys(clients.ids, Weights(server.w)))
    return replace(server, z=server.z + products.z)


def _search(server: Server, clients: Clients, alpha: Any) -> Server:
    """Move to the best point between the old duals and `alpha`."""
    trial = Duals(alpha=alpha, taken=server.taken)
    if server.vertical:
        change = clients.sum(aggregate_and_multiply, dict.fromkeys(clients.ids, trial))
        primal = products = change
    else:
        primal = clients.sum(aggregate_primal, dict.fromkeys(clients.ids, trial))
        weights = Weights(server.w + primal.w)
        products = clients.sum(inner_products, dict.fromkeys(clients.ids, weights))
    # discloses the dual's data term at twelve points of the line, w·Δw and ‖Δw‖²
    step = _best_step(
        server, clients.reveal(primal.conjugates), *clients.reveal(products.line).tolist()
    )
    return replace(
        server,
        alpha=server.alpha + (alpha - server.alpha) * step,
        w=server.w + primal.w * step,
        z=server.z + products.z * step,
        taken=step,
    )


def _best_step(server: Server, conjugates: Array, cross: float, square: float) -> float:
    """Return the step in [0, 1] that maximises D along the line.

    The data term is a quadratic of the step for all losses but the logistic, where the best of
    twelve points is taken.
    """
    weight = server.options.regularisation
    dual = conjugates / server.samples - weight * (_STEPS * cross + 0.5 * _STEPS**2 * square)
    if server.options.loss == "logistic":
        return float(_STEPS[int(np.argmax(dual))])
    start, middle, end = dual[0], dual[-2], dual[-1]
    curvature = 4 * (start - 2 * middle + end)  # second derivative
    slope = 4 * middle - 3 * start - end
    if curvature >= 0:
        return 1.0 if end > start else 0.0
    return float(np.clip(-slope / curvature, 0.0, 1.0))


def _objectives(server: Server, at: Array) -> Info:
    loss, conjugate, square = at.tolist()
    ridge = 0.5 * server.options.regularisation * square
    primal, dual = ridge + loss / server.samples, conjugate / server.samples - ridge
    return Info(
        primal=primal,
        dual=dual,
        gap_relative=(primal - dual) / max(primal, 1e-300),
        phase="dual ascent",
    )


def _watch(server: Server, info: Info) -> Server:
    """Raise an error where training diverges."""
    assert info.primal is not None
    if not np.isfinite(info.primal) or info.primal > 1e3 * max(server.lowest, 1e-12):
        raise ConvergenceError(
            f"The primal objective is {info.primal:.3g} and was {server.lowest:.3g} before: "
            "the dual steps of co-owners overshoot. Lower algorithm.gamma or "
            "algorithm.local_samples, or raise algorithm.regularisation."
        )
    return replace(server, lowest=min(server.lowest, info.primal))


def certify(server: Server, clients: Clients, rng: RandomKey) -> tuple[Server, Info]:
    """Bring w and z up to the duals at all clients; return the objectives there."""
    if server.newton is not None:
        phase, info = newton.certify(server.newton, clients)
        return replace(server, newton=phase), info
    server = _count(server, clients)
    at = clients.sum(objectives, dict.fromkeys(clients.ids, _scores(server)))
    # discloses the data loss, the dual's data term and ‖w‖²
    return replace(server, taken=1.0, present=tuple(clients.ids)), _objectives(
        server, clients.reveal(at.at)
    )


def _scores(server: Server) -> Scores:
    return Scores(alpha=server.alpha, z=server.z, taken=1.0)


def conclude(server: Server, clients: Clients, rng: RandomKey) -> Conclusion:
    """Certify the final model and reveal it."""
    server, info = certify(server, clients, rng)
    if server.newton is not None:
        return Conclusion(info, newton.reveal_weights(clients))
    # discloses the model: the server may predict with it
    return Conclusion(info, clients.reveal(server.w))


def predict(client: Client | newton.Point, block: Block) -> Array:
    """Return the client's part of the scores of a block's samples, (outputs, samples)."""
    return scores(block.x, client.w)


# ---- at the clients


@client_function
def measure_norms(
    client: Client, block: Block, message: Measure, rng: RandomKey
) -> tuple[Client, Norms]:
    """Send ‖x_{k,i}‖²."""
    own = row_norms(block.x)
    return evolve(client, norms=own), Norms(own)


@client_function
def settle_norms(
    client: Client, block: Block, message: Norms, rng: RandomKey
) -> tuple[Client, Ready]:
    """Keep ‖x_i‖² and the row scale ‖x_i‖/‖x_{k,i}‖ (0 for a slice of zeros)."""
    own = client.norms
    ratio = np.divide(message.squares, own, out=np.zeros_like(own), where=own > 0)
    return evolve(client, norms=message.squares, row_scale=np.sqrt(ratio)), Ready()


@client_function
def send_zeros(
    client: Client, block: Block, message: Measure, rng: RandomKey
) -> tuple[Client, Zeros]:
    """Send the zeros that the totals start from."""
    return client, Zeros(client.alpha, client.w, np.zeros_like(client.alpha), float(block.sparse))


@client_function
def local_dual_ascent(
    client: Client, block: Block, message: Ascend, rng: RandomKey
) -> tuple[Client, Steps]:
    """Take dual steps on the samples that this client is to step on (Algorithms 3 and 5)."""
    options, regularised = client.options, client.options.regularisation * client.samples
    client = _settled(client, message.taken)
    loss = losses.loss_code(options.loss)
    y = targets(block, len(message.alpha))
    mine, share = _mine(client, message)
    generator = rng.generator()
    order = mine[generator.permutation(len(mine))]
    order = order[: max(1, math.ceil(options.local_samples * len(order)))]
    curvature = client.norms / regularised
    local = options.local_method == "practical"
    steps = ascend_slice(
        block.x,
        y,
        message.alpha,
        message.z,
        curvature,
        client.row_scale if local else np.zeros_like(curvature),
        order,
        sigma=options.sigma,
        regularised_samples=regularised,
        loss=loss,
    )
    if not local:
        # Algorithm 3: no further than c_k = N_k/N of the way to -l'(z)
        reach = losses.dual_from_scores(loss, message.z, y) - message.alpha
        reach = np.nan_to_num(reach) * (block.shape[0] / client.samples)
        steps = np.clip(steps, np.minimum(reach, 0), np.maximum(reach, 0))
    at = _at(client, block, message.alpha, message.z)
    return client, Steps(steps * share, at)


def _settled(client: Client | newton.Point, taken: float) -> Client:
    """Count what the server took of the last trial."""
    if isinstance(client, newton.Point):
        zeros = np.zeros_like(client.w)
        before: Client = client.before
        return evolve(before, alpha=client.alpha, alpha_trial=client.alpha, w=zeros, w_trial=zeros)
    if client.alpha is client.alpha_trial and client.w is client.w_trial:
        return client
    alpha = client.alpha + taken * (client.alpha_trial - client.alpha)
    w = client.w + taken * (client.w_trial - client.w)
    return evolve(client, alpha=alpha, w=w, alpha_trial=alpha, w_trial=w)


def _mine(client: Client, message: Ascend) -> tuple[NDArray[np.intp], Array]:
    """Return the rows that this client steps on, and the share of a step that counts."""
    present = set(message.present)
    owners = np.zeros(len(client.label_owners) + 1, np.uint64)
    rank = np.zeros(len(client.label_owners) + 1, np.uint64)
    for number, names in enumerate(client.label_owners):
        there = [name for name in names if name in present]
        owners[number] = max(len(there), 1)
        rank[number] = there.index(client.name) if client.name in there else 0
    held = client.label_cell >= 0
    count = owners[client.label_cell]
    if client.options.owners == "average":
        return np.flatnonzero(held), held / np.maximum(count, 1)
    chosen = held & (
        _mix(client.label_key, message.draw) % np.maximum(count, 1) == rank[client.label_cell]
    )
    return np.flatnonzero(chosen), np.ones(len(count))


def _mix(key: NDArray[np.uint64], draw: int) -> NDArray[np.uint64]:
    """Return well-mixed words (the finaliser of splitmix64), the same at every co-owner."""
    word = key + np.uint64(draw)
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


def _at(client: Client, block: Block, alpha: Array, z: Array) -> Array:
    """Return the client's share of Σ l(z_i), Σ -l*(-α_i) and ‖w‖²."""
    loss, held = losses.loss_code(client.options.loss), client.label_share > 0
    y = targets(block, len(z))[:, held]
    share = client.label_share[held]
    return np.array(
        [
            float((losses.value(loss, z[:, held], y) @ share).sum()),
            float((losses.minus_conjugate(loss, alpha[:, held], y) @ share).sum()),
            float((client.w**2 @ client.feature_share).sum()),
        ]
    )


@client_function
def aggregate_primal(
    client: Client, block: Block, message: Duals, rng: RandomKey
) -> tuple[Client, PrimalChange]:
    """Count the duals into this client's part of w (Algorithm 4)."""
    client = _settled(client, message.taken)
    change = message.alpha - client.alpha
    w = gather(block.x, change) / (client.options.regularisation * client.samples)
    return evolve(client, alpha_trial=message.alpha), PrimalChange(
        w, _conjugates(client, block, change)
    )


def _conjugates(client: Client, block: Block, change: Array) -> Array:
    loss, held = losses.loss_code(client.options.loss), client.label_share > 0
    y = targets(block, len(change))[:, held]
    share, start, move = client.label_share[held], client.alpha[:, held], change[:, held]
    return np.array(
        [
            float((losses.minus_conjugate(loss, start + step * move, y) @ share).sum())
            for step in _STEPS
        ]
    )


@client_function
def inner_products(
    client: Client, block: Block, message: Weights, rng: RandomKey
) -> tuple[Client, ScoreChange]:
    """Count the weights into this client's part of the scores (Algorithm 2)."""
    return _multiplied(_settled(client, 1.0), block, message.w)


def _multiplied(client: Client, block: Block, w: Array) -> tuple[Client, ScoreChange]:
    change = w - client.w
    line = np.array(
        [
            float(((client.w * change) @ client.feature_share).sum()),
            float((change**2 @ client.feature_share).sum()),
        ]
    )
    return evolve(client, w_trial=w), ScoreChange(scores(block.x, change), line)


@client_function
def aggregate_and_multiply(
    client: Client, block: Block, message: Duals, rng: RandomKey
) -> tuple[Client, Change]:
    """Do both steps at once where this client alone holds its features."""
    client, primal = aggregate_primal.call(client, block, message, rng)
    client, products = _multiplied(client, block, client.w + primal.w)
    return client, Change(primal.w, products.z, primal.conjugates, products.line)


@client_function
def objectives(
    client: Client, block: Block, message: Scores, rng: RandomKey
) -> tuple[Client, Objectives]:
    """Send this client's part of the objectives."""
    client = _settled(client, message.taken)
    return client, Objectives(_at(client, block, message.alpha, message.z))


HYFDCA = Algorithm(
    name="hyfdca",
    hyperparameters=HyFDCA,
    init_server=init_server,
    init_client=init_client,
    setup=setup,
    round=round,
    certify=certify,
    conclude=conclude,
    predict=predict,
    additive=True,
    client_functions=(
        measure_norms,
        settle_norms,
        send_zeros,
        local_dual_ascent,
        aggregate_primal,
        inner_products,
        aggregate_and_multiply,
        objectives,
        *newton.FUNCTIONS,
    ),
    states=(Server, Client, HyFDCA, *newton.STATES),
)
