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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from intarsia.algorithms import chunk_ascent, dual_newton, newton, newton_point, partial
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
    # auto: where all clients are there Newton's method, for sparse tables with more features than
    # samples in the dual and after ascent in chunks; else dual ascent
    # newton: as auto, but in the primal for all tables; ascent: the paper's alone
    local_method: Literal["practical", "paper"] = "practical"  # Algorithm 5 corrected, Algorithm 3
    local_samples: float = 1.0  # H as a share of the samples that a client steps on in a round
    owners: Literal["assign", "average"] = "assign"  # who steps on a shared sample
    step: Literal["line_search", "fixed"] = "line_search"
    gamma: float = 0.3  # γ, the fixed step, where there is no line search
    proximal: float = 0.002  # ρ over the mean ‖x_i‖², in rounds with clients away
    ascents: int = 8  # dual ascents within such a round
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
        if not (self.proximal > 0 and math.isfinite(self.proximal)):
            raise ExperimentError(
                f"algorithm.proximal is {self.proximal}; it must be positive and finite: the "
                "smaller, the longer the steps of rounds with clients away, for example 0.002."
            )
        if self.ascents < 1:
            raise ExperimentError(
                f"algorithm.ascents is {self.ascents}; choose a whole number from 1 up."
            )
        if not self.sigma > 0:
            raise ExperimentError(
                f"algorithm.sigma is {self.sigma}; it must be positive: 1 trusts the clients' "
                "steps, γ times the number of clients is safe."
            )


Phase = chunk_ascent.ChunkAscent | dual_newton.DualNewton | newton.Newton
InPhase = chunk_ascent.Walker | dual_newton.Anchor | newton.Point  # a client in such a phase


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
    earlier: Mapping[ClientId, float] = field(default_factory=dict[ClientId, float])
    # the same of the last trial of a client that is away since
    lowest: float = np.inf  # lowest primal so far
    features: int = 0
    outputs: int = 1
    labelled: tuple[ClientId, ...] = ()  # clients that hold labels
    sparse: bool = False
    wide: bool = False  # sparse with more features than samples
    shared_labels: bool = False  # whether every owner of a labelled sample has its label
    phase: Phase | None = None  # what runs where all clients are there, while it lasts
    square: float = 0.0  # mean ‖x_i‖²
    partial: partial.Partial | None = None  # the state of that phase, once it began
    labellers: tuple[tuple[ClientId, tuple[ClientId, ...]], ...] = ()
    # for each client, the clients with labels among the owners of its samples


@dataclass(frozen=True)
class Client:
    """A client's state, in the order of its aligned block."""

    options: HyFDCA
    name: ClientId
    samples: int  # N
    counted: NDArray[np.int64]  # samples whose label counts at this client: one holder of each
    sample_cells: tuple[tuple[int, int, int, int], ...]  # start, stop, holders, own rank
    feature_cells: tuple[tuple[int, int], ...]  # start, stop
    gram_height: int  # rows that the Gram matrices of the federation's feature cells need
    order: NDArray[np.int64]  # samples of each cell, from its start, evenly spread
    feature_share: Array  # (features,) 1 / holders
    feature_turn: NDArray[np.int64]  # (runs, 2) start, stop: features that it counts for all owners
    label_share: Array  # (samples,) 1 / holders of the label, 0 without one
    label_key: NDArray[np.uint64]  # (samples,) the same at every holder of the label
    label_cell: NDArray[np.int64]  # (samples,) -1 without a label
    label_owners: tuple[tuple[ClientId, ...], ...]  # by label cell, of this client's cells
    feature_cell: NDArray[np.int64]  # (features,)
    feature_owners: tuple[tuple[ClientId, ...], ...]  # by feature cell, of this client's cells
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
    total: float = 0.0  # over the samples


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
class Enter:
    """The share of the last trial that the line search took."""

    taken: float


@dataclass(frozen=True)
class Duals:
    """Duals to count into the weights."""

    alpha: PerSample
    taken: float


@dataclass(frozen=True)
class Weights:
    """Weights to count into the scores."""

    w: PerFeature
    taken: float | None  # None: the duals of this trial were counted just before


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
        labellers=_labellers(schema),
        shared_labels=bool(
            np.isin(schema.samples.holders - schema.label_holders, 0)[
                schema.label_holders > 0
            ].all()
        ),
    )


def _labellers(schema: Schema) -> tuple[tuple[ClientId, tuple[ClientId, ...]], ...]:
    able = set(schema.labelled.owners)
    found: dict[ClientId, set[ClientId]] = {name: set() for name in schema.clients}
    for cell in schema.samples.cells:
        for name in cell.owners:
            found[name].update(able.intersection(cell.owners))
    return tuple((name, tuple(sorted(names))) for name, names in found.items())


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
    numbers, cell[mine] = np.unique(labelled.cell_of[places], return_inverse=True)
    features_own = schema.features.cell_of[schema.features.own(client)]
    feature_numbers, feature_cell = np.unique(features_own, return_inverse=True)
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
        gram_height=newton_point.height(schema.features.cells),
        order=_spread(schema.samples, client),
        feature_share=1 / schema.features.holders[schema.features.own(client)],
        feature_turn=_turns(schema.features, client),
        label_share=share,
        label_key=key,
        label_cell=cell,
        label_owners=tuple(labelled.cells[number].owners for number in numbers),
        feature_cell=feature_cell,
        feature_owners=tuple(schema.features.cells[number].owners for number in feature_numbers),
        norms=np.zeros(samples),
        row_scale=np.zeros(samples),
        alpha=duals,
        w=weights,
        alpha_trial=duals,
        w_trial=weights,
    )


def _turns(index: Index, client: ClientId) -> NDArray[np.int64]:
    """Return the runs of features that fall to this client when owners share out each cell."""
    found = [
        (start + (stop - start) * rank // holders, start + (stop - start) * (rank + 1) // holders)
        for start, stop, holders, rank in index.own_cells(client)
    ]
    return np.array(found, np.int64).reshape(-1, 2)


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
    # discloses whether the tables are sparse, and the mean squared norm of a sample
    sparse = clients.reveal(zeros.sparse) > 0
    square = float(clients.reveal(norms.total)) / server.samples
    return replace(
        server,
        alpha=zeros.alpha,
        w=zeros.w,
        z=zeros.z,
        present=tuple(clients.ids),
        sparse=sparse,
        square=square,
        wide=sparse and server.features > server.samples,
    )


def round(server: Server, clients: Clients, rng: RandomKey) -> tuple[Server, Info]:
    """Run Algorithm 1 once."""
    complete = len(clients.ids) == server.clients
    everyone = complete and len(server.present) == server.clients
    if server.partial is not None and everyone and server.options.method != "ascent":
        server = _start_afresh(server, clients)
    if server.partial is not None or (not complete and server.options.step == "line_search"):
        server = _enter_partial(server, clients)
        assert server.partial is not None
        state, info = partial.step(server.partial, clients, rng)
        return replace(server, partial=state, present=tuple(clients.ids)), info
    if complete and server.options.method != "ascent":
        return _finishing_round(server, clients, rng)
    if server.phase is not None:
        server = _leave(server)
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


def _enter_partial(server: Server, clients: Clients) -> Server:
    """Go on with proximal rounds from the present duals, at the clients that are there."""
    if server.phase is not None:
        server = _leave(server)
    state = server.partial
    if state is None:
        options = server.options
        state = partial.Partial(
            loss=losses.loss_code(options.loss),
            regularisation=options.regularisation,
            proximal=options.proximal * server.square,
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
        taken = {name: Enter(server.earlier.get(name, server.taken)) for name in fresh}
        clients.ask(enter_partial, taken)
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


def _finishing_round(server: Server, clients: Clients, rng: RandomKey) -> tuple[Server, Info]:
    """Run a round of the phase that suits the tables, from the present duals."""
    phase = server.phase
    if isinstance(phase, dual_newton.DualNewton) and phase.stalled:
        server = _begin_newton(replace(_leave(server), wide=False), clients, warm=True)
    elif phase is None or (
        isinstance(phase, chunk_ascent.ChunkAscent) and chunk_ascent.exhausted(phase)
    ):
        server = _begin(server, clients)
    phase, info = _step(server.phase, clients, rng)
    return replace(server, phase=phase, present=tuple(clients.ids)), info


def _step(phase: Phase | None, clients: Clients, rng: RandomKey) -> tuple[Phase, Info]:
    if isinstance(phase, chunk_ascent.ChunkAscent):
        return chunk_ascent.step(phase, clients, rng)
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
        chunks = chunk_ascent.begin(
            clients,
            loss=loss,
            regularisation=server.options.regularisation,
            samples=server.samples,
            outputs=server.outputs,
            shared_labels=server.shared_labels,
        )
        return replace(server, phase=chunks)
    if server.phase is None:
        server = _catch_up(server, clients)
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


def _catch_up(server: Server, clients: Clients) -> Server:
    """Let clients that were away count the duals they missed, then all the weights."""
    returning = [name for name in clients.ids if name not in server.present]
    w = server.w
    if returning:
        w = w + clients.sum(aggregate_primal, _duals(server, returning)).w
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


def _aggregate(server: Server, clients: Clients) -> Server:
    change = clients.sum(aggregate_primal, _duals(server, clients.ids))
    return replace(server, w=server.w + change.w)


def _count(server: Server, clients: Clients) -> Server:
    """Bring w and z up to the duals, at the clients that are there."""
    if server.vertical and len(server.present) == server.clients:
        both = clients.sum(aggregate_and_multiply, _duals(server, clients.ids))
        return replace(server, w=server.w + both.w, z=server.z + both.z)
    server = _aggregate(server, clients)
    products = clients.sum(inner_products, dict.fromkeys(clients.ids, Weights(server.w, None)))
    return replace(server, z=server.z + products.z)


def _search(server: Server, clients: Clients, alpha: Any) -> Server:
    """Move to the best point between the old duals and `alpha`."""
    trial = Duals(alpha=alpha, taken=server.taken)
    if server.vertical:
        change = clients.sum(aggregate_and_multiply, dict.fromkeys(clients.ids, trial))
        primal = products = change
    else:
        primal = clients.sum(aggregate_primal, dict.fromkeys(clients.ids, trial))
        weights = Weights(server.w + primal.w, None)
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
    if server.partial is not None:
        server = _enter_partial(server, clients)
        assert server.partial is not None
        state, info, _ = partial.certify(server.partial, clients)
        return replace(server, partial=state, present=tuple(clients.ids)), info
    if server.phase is not None:
        phase, info = _certify(server.phase, clients)
        return replace(server, phase=phase), info
    server = _count(server, clients)
    at = clients.sum(objectives, dict.fromkeys(clients.ids, _scores(server)))
    # discloses the data loss, the dual's data term and ‖w‖²
    return replace(server, taken=1.0, earlier={}, present=tuple(clients.ids)), _objectives(
        server, clients.reveal(at.at)
    )


def _certify(phase: Phase, clients: Clients) -> tuple[Phase, Info]:
    if isinstance(phase, chunk_ascent.ChunkAscent):
        return chunk_ascent.certify(phase, clients)
    if isinstance(phase, dual_newton.DualNewton):
        return dual_newton.certify(phase, clients)
    return newton.certify(phase, clients)


def _scores(server: Server) -> Scores:
    return Scores(alpha=server.alpha, z=server.z, taken=1.0)


def conclude(server: Server, clients: Clients, rng: RandomKey) -> Conclusion:
    """Certify the final model and reveal it."""
    if server.partial is not None:
        server = _enter_partial(server, clients)
        assert server.partial is not None
        _, info, weights = partial.certify(server.partial, clients)
        # discloses the model: the server may predict with it
        return Conclusion(info, clients.reveal(weights))
    server, info = certify(server, clients, rng)
    if isinstance(server.phase, newton.Newton):
        return Conclusion(info, newton.reveal_weights(clients))
    if isinstance(server.phase, dual_newton.DualNewton):
        return Conclusion(info, dual_newton.reveal_weights(clients))
    w = server.w if server.phase is None else server.phase.dual_weights
    # discloses the model: the server may predict with it
    return Conclusion(info, clients.reveal(w))


def predict(client: Client | InPhase | partial.Place, block: Block) -> Array:
    """Return the client's part of the scores of a block's samples, (outputs, samples)."""
    return scores(block.x, client.w)


# ---- at the clients


@client_function
def measure_norms(
    client: Client, block: Block, message: Measure, rng: RandomKey
) -> tuple[Client, Norms]:
    """Send ‖x_{k,i}‖²."""
    own = row_norms(block.x)
    return evolve(client, norms=own), Norms(own, float(own.sum()))


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


def _settled(client: Client | InPhase, taken: float) -> Client:
    """Count what the server took of the last trial."""
    if isinstance(client, InPhase):
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
    if message.taken is not None:
        client = _settled(client, message.taken)
    return _multiplied(client, block, message.w)


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


@client_function
def enter_partial(
    client: Client | InPhase, block: Block, message: Enter, rng: RandomKey
) -> tuple[partial.Place, Ready]:
    """Go on with proximal rounds."""
    return partial.place(_settled(client, message.taken)), Ready()


@client_function
def forget(
    client: Client | InPhase | partial.Place, block: Block, message: Measure, rng: RandomKey
) -> tuple[Client, Ready]:
    """Go back to zero duals and weights."""
    before = client.before if isinstance(client, partial.Place) else _settled(client, 1.0)
    alpha, w = np.zeros_like(before.alpha), np.zeros_like(before.w)
    return evolve(before, alpha=alpha, w=w, alpha_trial=alpha, w_trial=w), Ready()


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
        *chunk_ascent.FUNCTIONS,
        *dual_newton.FUNCTIONS,
        enter_partial,
        forget,
        *newton.FUNCTIONS,
        *partial.FUNCTIONS,
    ),
    states=(
        Server,
        Client,
        HyFDCA,
        *chunk_ascent.STATES,
        *dual_newton.STATES,
        *newton.STATES,
        *partial.STATES,
    ),
)
