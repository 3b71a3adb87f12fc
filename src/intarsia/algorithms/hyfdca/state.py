"""Hyperparameters of HyFDCA, and the states of its server and clients."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import NDArray

from intarsia.algorithms.hyfdca import dual_newton, minibatch_ascent
from intarsia.algorithms.hyfdca.minibatch_ascent import find_read
from intarsia.algorithms.hyfdca.newton import client as newton_client
from intarsia.algorithms.hyfdca.newton import interior_point as newton_interior
from intarsia.algorithms.hyfdca.newton import point as newton_point
from intarsia.algorithms.hyfdca.newton import server as newton
from intarsia.algorithms.hyfdca.newton import shares as newton_shares
from intarsia.algorithms.hyfdca.partial_participation import Partial
from intarsia.core.block import Array, Block, ClientId, places_of
from intarsia.core.client_functions import evolve
from intarsia.core.disclosure import Release
from intarsia.core.schema import Index, Schema
from intarsia.core.settings import (
    Between,
    NotNegative,
    Penalty,
    Positive,
    PositiveFraction,
    check_ranges,
)
from intarsia.errors import ExperimentError
from intarsia.maths.linear import losses

_LEAST_RATIO = 1e-12  # share of absolute weights in the penalty, where there is one


@dataclass(frozen=True, kw_only=True)
class HyFDCA:
    """Hyperparameters, with the paper's meaning."""

    # hinge, squared_hinge, logistic; for numbers squared, huber, quantile, poisson, gamma
    loss: str = "hinge"
    huber_delta: Positive = 1.35  # δ of the Huber loss, in the unit of the labels
    quantile: Between = 0.5  # τ of the quantile loss
    regularisation: Penalty = 1e-3  # λ
    l1_ratio: NotNegative = 0.0  # ρ of the penalty λ((1-ρ)/2 ‖w‖² + ρ‖w‖₁), below 1
    method: Literal["auto", "newton", "ascent"] = "auto"
    # auto: where all clients are there Newton's method, for sparse tables with more features than
    # samples in the dual and after ascent in chunks; else dual ascent
    # newton: as auto, but in the primal for all tables; ascent: the paper's alone
    frame: bool = True  # solve Newton's system exactly, up to 512 features
    # how the system is made: shares: by secret sharing, nobody sees another's rows
    # encrypted: the same without the server's words, so that it and a co-owner see none either
    # rows: of rows in a random frame; auto: shares where sums are sealed, else rows
    system: Literal["auto", "shares", "encrypted", "rows"] = "auto"
    local_method: Literal["practical", "paper"] = "practical"  # Algorithm 5 corrected, Algorithm 3
    local_samples: PositiveFraction = 1.0  # H as a share: samples that a client steps on in a round
    step: Literal["line_search", "fixed"] = "line_search"
    gamma: PositiveFraction = 0.3  # γ, the fixed step, where there is no line search
    proximal: Positive = 0.0015  # ρ over the mean ‖x_i‖², in rounds with clients away
    ascents: Annotated[int, Ge(1), Le(20)] = 8  # dual ascents within such a round, at most
    # σ, damps a client's steps against those that others take at the same time
    sigma: Annotated[Positive, "1 trusts the steps, γ times the number of clients is safe"] = 1.0

    # with one of them above 0, auto takes what is estimated to be the fastest over such a network,
    # of Newton's system solved exactly, by conjugate gradients, and dual ascent
    latency_seconds: NotNegative = 0.0  # of an exchange, there and back
    megabytes_per_second: NotNegative = 0.0  # of a client's line; 0: bytes cost no time

    # standard errors of the weights at the end, by the shared system: what they disclose is
    # declared, and one more system is solved; so who wants them asks for them
    errors: bool = False

    retired: ClassVar[frozenset[str]] = frozenset({"owners"})

    def __post_init__(self) -> None:
        losses.loss_code(self.loss)
        check_ranges(self)
        if self.l1_ratio:
            _check_l1(self)
        if self.errors:
            _check_errors(self)
        if self.network_told:
            _check_network(self)

    @property
    def network_told(self) -> bool:
        """Return whether the network is to choose the method."""
        return self.latency_seconds > 0 or self.megabytes_per_second > 0

    @property
    def ridge(self) -> float:
        """Return λ(1-ρ), what ½‖w‖² is multiplied by."""
        return self.regularisation * (1 - self.l1_ratio)

    @property
    def threshold(self) -> float:
        """Return ρ/(1-ρ), how far w(α) is from the sum that it is made of."""
        return self.l1_ratio / (1 - self.l1_ratio)


def _check_l1(options: HyFDCA) -> None:
    if options.l1_ratio < _LEAST_RATIO:
        raise ExperimentError(
            f"algorithm.l1_ratio is {options.l1_ratio:g}, which float64 does not tell from 0; set "
            f"it to 0, or to {_LEAST_RATIO:g} or more."
        )
    if options.l1_ratio > 1:
        raise ExperimentError(
            f"algorithm.l1_ratio is {options.l1_ratio:g}, and it is the share of absolute weights "
            "in the penalty: set l1_ratio from 0 to below 1, e.g. 0.5."
        )
    if options.l1_ratio == 1:
        raise ExperimentError(
            "algorithm.l1_ratio is 1, a penalty of absolute weights alone; "
            "how far a model is from the best one is known by the part with squared weights, which "
            "must be above 0: set l1_ratio below 1, e.g. 0.99."
        )
    for key, value, needed, why in (
        ("method", options.method, options.method != "ascent", "in Newton's method alone"),
        ("system", options.system, options.system != "rows", "with Newton's system in shares"),
        ("errors", options.errors, not options.errors, "without standard errors of the weights"),
    ):
        if not needed:
            raise ExperimentError(
                f"algorithm.l1_ratio is {options.l1_ratio:g} and algorithm.{key} = "
                f"{json.dumps(value)}, and weights are set to 0 {why}; remove algorithm.{key}, or "
                "set l1_ratio = 0."
            )


def _check_errors(options: HyFDCA) -> None:
    if options.loss not in ("logistic", "squared", "poisson", "gamma"):
        raise ExperimentError(
            f"algorithm.errors asks for standard errors of the loss {options.loss!r}, which is no "
            'likelihood; set algorithm.loss = "logistic", "squared", "poisson" or "gamma", or '
            "errors = false."
        )
    for key, value, needed in (
        ("method", options.method, options.method != "ascent"),
        ("frame", options.frame, options.frame),
        ("system", options.system, options.system != "rows"),
    ):
        if not needed:
            raise ExperimentError(
                f"algorithm.errors asks for standard errors, which Newton's shared system gives, "
                f"and algorithm.{key} = {json.dumps(value)} does without it; remove "
                f"algorithm.{key}, or set errors = false."
            )


def _check_network(options: HyFDCA) -> None:
    given = "latency_seconds" if options.latency_seconds else "megabytes_per_second"
    for key, value, free in (
        ("method", options.method, options.method == "auto"),
        ("frame", options.frame, options.frame),
        ("step", options.step, options.step == "line_search"),
        ("l1_ratio", options.l1_ratio, not options.l1_ratio),
        ("errors", options.errors, not options.errors),
    ):
        if not free:
            raise ExperimentError(
                f"algorithm.{given} lets the network choose the method, and algorithm.{key} = "
                f"{json.dumps(value)} has chosen it; remove one of them."
            )


Phase = (
    minibatch_ascent.ChunkAscent
    | dual_newton.DualNewton
    | newton.Newton
    | newton_interior.InteriorPoint
)
# a client in such a phase
InPhase = minibatch_ascent.Walker | dual_newton.Anchor | newton_point.Point


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
    # those that read scores where all clients are there: one for most overlap groups
    counting: tuple[ClientId, ...] = ()
    sparse: bool = False
    wide: bool = False  # sparse with more features than samples, and what is then done is there
    phase: Phase | None = None  # what runs where all clients are there, while it lasts
    square: float = 0.0  # mean ‖x_i‖²
    norms: Any = None  # sealed (samples,), ‖x_i‖² where clients have not been told it
    shares: Any = None  # sealed (features,), r_j, the part in it that a feature has
    sizes: Any = None  # sealed (2,), Σ_j r_j and F^¾ Σ_j r_j^2.5 over the F features, estimates
    partial: Partial | None = None  # the state of that phase, once it began
    labellers: tuple[tuple[ClientId, tuple[ClientId, ...]], ...] = ()
    # for each client, the clients with labels among the owners of its samples
    dealer: newton_shares.Dealer | None = None
    readers: bool = False  # whether one client alone reads each score: False in an earlier version
    weighted: bool = False  # whether rows have weights
    at_zeros: float = np.inf  # P at zero weights where Newton's method began there; inf: elsewhere
    grams: float = 0.0  # iterations of conjugate gradients that send as much as Gram matrices
    choice: str = ""  # which method the network chose and why, in a sentence; "": it chose none

    retired: ClassVar[frozenset[str]] = frozenset({"shared_labels"})


@dataclass(frozen=True)
class Client:
    """A client's state, in the order of its aligned block."""

    options: HyFDCA
    name: ClientId
    samples: int  # N
    counted: NDArray[np.int64]  # samples whose scores it reads where all clients are there
    sample_cells: tuple[tuple[int, int, int, int], ...]  # start, stop, holders, own rank
    feature_cells: tuple[tuple[int, int], ...]  # start, stop
    gram_height: int  # rows that the Gram matrices of the federation's feature cells need
    order: NDArray[np.int64]  # samples of each cell, from its start, evenly spread
    feature_share: Array  # (features,) 1 / holders
    kept_features: Array  # (features,) 1 where the cell counts at this client, else 0
    kept_samples: tuple[bool, ...]  # whether a cell of sample_cells counts at this client
    feature_turn: NDArray[np.int64]  # (runs, 2) start, stop: features that it counts for all owners
    label_share: Array  # (samples,) 1 / holders of the label, 0 without one
    label_cell: NDArray[np.int64]  # (samples,) -1 without a label
    label_owners: tuple[tuple[ClientId, ...], ...]  # by label cell, of this client's cells
    feature_cell: NDArray[np.int64]  # (features,)
    feature_owners: tuple[tuple[ClientId, ...], ...]  # by feature cell, of this client's cells
    norms: Array  # (samples,) ‖x_i‖² over all owners; empty where it was not told
    row_scale: Array  # (samples,) ‖x_i‖ / ‖x_{k,i}‖, likewise
    alpha: Array  # (outputs, samples) duals that this client's part of w counts
    w: Array  # (outputs, features) weights that its part of z counts
    alpha_trial: Array  # the same after the current trial
    w_trial: Array
    noise: Release | None = None  # of what the model is released with
    # (samples,) about ‖x_i‖², to choose samples by; empty where it was told as it is from the start
    sizes: Array = field(default_factory=lambda: np.zeros(0))
    # (samples,) ‖x_{k,i}‖² until norms or sizes are told; (features,) Σ_i x_{k,ij}²; empty: unread
    own_squares: Array = field(default_factory=lambda: np.zeros(0))
    feature_squares: Array = field(default_factory=lambda: np.zeros(0))
    # samples by cell of scores, and where each ends; who reads it, the first that is there
    score_order: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    score_stops: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    readers: tuple[tuple[ClientId, ...], ...] | None = None  # None: an earlier version
    overlap: newton_point.Overlap | None = None  # where a system can be shared

    retired: ClassVar[frozenset[str]] = frozenset({"counted_cells", "label_key"})

    @property
    def reads(self) -> NDArray[np.int64]:
        """Return the samples whose scores it reads where all clients are asked."""
        return find_read(self)


def init_server(options: HyFDCA, schema: Schema) -> Server:
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
        counting=tuple(schema.labelled.counting),
        labellers=_find_labellers(schema),
        dealer=(
            newton_shares.deal_overlaps(schema, deals=options.system != "encrypted")
            if _shares(options, schema)
            else None
        ),
        readers=True,
        weighted=schema.labels.weighted,
        grams=_cost_of_grams(schema),
    )


def _cost_of_grams(schema: Schema) -> float:
    """Return how many iterations of conjugate gradients send as much as Gram matrices do."""
    rows, columns = (
        sum(len(index.own(name)) for name in schema.clients)
        for index in (schema.samples, schema.features)
    )
    return newton_client.height(schema.features.cells) * columns / (rows + columns)


def _shares(options: HyFDCA, schema: Schema) -> bool:
    """Return whether Newton's system can be found by secret sharing."""
    return newton.solves_exactly(options.frame, len(schema.features)) and options.system != "rows"


@dataclass(frozen=True)
class Cost:
    """What a method is estimated to take to a relative gap of 1e-6, of the slowest client."""

    exchanges: float
    bytes: float
    seconds: float  # of computing


def choose_by_network(server: Server, square: float, *, sealed: bool) -> tuple[HyFDCA, str]:
    """Return the options with the method that is fastest over the network that they tell, and why.

    `square` is the mean ‖x_i‖².
    """
    options = server.options
    found = estimate_costs(server, square, sealed=sealed)

    def seconds(method: str) -> float:
        cost, rate = found[method], 1e6 * options.megabytes_per_second
        line = cost.bytes / rate if rate else 0.0
        return cost.seconds + cost.exchanges * options.latency_seconds + line

    chosen, *others = sorted(found, key=seconds)
    told = [f"{options.latency_seconds:g} s for an exchange"] if options.latency_seconds else []
    if options.megabytes_per_second:
        told.append(f"{options.megabytes_per_second:g} megabytes a second")
    beside = " and ".join(f"{seconds(one):.2g} s by {_METHODS[one]}" for one in others)
    why = (
        f"Over a network with {' and '.join(told)} the run takes {_METHODS[chosen]}: an estimated "
        f"{seconds(chosen):.2g} s, against {beside}."
    )
    kept = replace(
        options,
        method="ascent" if chosen == "ascent" else "newton",
        frame=chosen != "gradients",
        latency_seconds=0.0,
        megabytes_per_second=0.0,
    )
    return kept, why


_METHODS = {
    "exact": "Newton's method with its whole system",
    "gradients": "Newton's method by gradients (frame = false)",
    "ascent": "dual ascent",
}


def estimate_costs(server: Server, square: float, *, sealed: bool) -> Mapping[str, Cost]:
    """Return what each method is estimated to cost: "exact", "gradients", "ascent".

    The numbers are fitted to runs of dense problems at 2 × 2 clients (benchmarks/RESULTS.md, HyFDCA
    by method); κ, the largest curvature over λ, tells how many steps each of them needs.
    """
    options, samples, features = server.options, server.samples, server.features
    steep = 0.25 if options.loss == "logistic" else 1.0  # l'' at most
    kappa = max(steep * square / options.ridge, 1.0)
    clients = server.clients
    across = clients if server.horizontal else 1 if server.vertical else math.sqrt(clients)
    vector = 8 * (samples / across + features * across / clients)  # of rows and columns of one
    cells, times = samples * features / clients, 2 if sealed else 1
    rounds = max(1.4 + 0.6 * math.log10(kappa), 1.0)
    found = {}
    if newton.solves_exactly(True, features):
        exchanges = times * (8 + 6 * rounds)
        system = 8 * features**2 * rounds
        moved = (
            2 * vector * exchanges + 3.0 * system
            if sealed
            else 44 * cells + 1.3 * system + 1.8 * vector * rounds
        )
        work = 5e-5 * exchanges + 1.4e-10 * samples * features**2 * rounds
        found["exact"] = Cost(exchanges, moved, work)
    exchanges = times * (rounds + 0.7) * (8 + 4 * kappa**0.18)
    work = exchanges * (5e-5 + 1e-9 * cells)
    found["gradients"] = Cost(exchanges, vector * (exchanges + 30), work)
    ascents = 6 + 20 * min(1.0, kappa / 100) + 20 * kappa / samples
    exchanges = ascents * (10 if sealed else 3)
    moved = ascents * vector * (150 if sealed else 5)
    found["ascent"] = Cost(exchanges, moved, exchanges * (5e-5 + 5e-9 * cells))
    return found


def _find_labellers(schema: Schema) -> tuple[tuple[ClientId, tuple[ClientId, ...]], ...]:
    able = set(schema.labelled.owners)
    found: dict[ClientId, set[ClientId]] = {name: set() for name in schema.clients}
    for cell in schema.samples.cells:
        for name in cell.owners:
            found[name].update(able.intersection(cell.owners))
    return tuple((name, tuple(sorted(names))) for name, names in found.items())


def init_client(
    options: HyFDCA,
    schema: Schema,
    client: ClientId,
    block: Block,
    *,
    release: Release | None = None,
) -> Client:
    """Return a client's state: what the public index sets say about its samples; zeros."""
    samples, features = block.shape
    labelled = schema.labelled
    mine = np.flatnonzero(~np.isnan(block.y)) if block.y is not None else np.zeros(0, np.intp)
    places = labelled.own(client)
    places = places[_find_ranks(labelled.ids[places], block.samples[mine])]
    cell = np.full(samples, -1, np.int64)
    share = np.zeros(samples)
    numbers, cell[mine] = _find_distinct(labelled.cell_of[places])
    features_own = schema.features.cell_of[schema.features.own(client)]
    feature_numbers, feature_cell = _find_distinct(features_own)
    share[mine] = 1 / labelled.holders[places]
    outputs = schema.labels.outputs
    duals, weights = np.zeros((outputs, samples)), np.zeros((outputs, features))
    order, stops = schema.score_order(client)
    losses.check_labels(losses.loss_code(options.loss), block.y, f"client {client!r}")
    made = Client(
        options=options,
        name=client,
        samples=len(schema.samples),
        counted=np.zeros(0, np.int64),
        sample_cells=schema.samples.own_cells(client),
        feature_cells=tuple(cell[:2] for cell in schema.features.own_cells(client)),
        gram_height=newton_client.height(schema.features.cells),
        order=_spread_evenly(schema.samples, client),
        feature_share=1 / schema.features.holders[schema.features.own(client)],
        kept_features=np.array(
            _find_kept(schema.features, client, feature_numbers.tolist()), float
        )[feature_cell],
        kept_samples=_find_kept(schema.samples, client, schema.samples.cells_of[client].tolist()),
        feature_turn=_assign_turns(schema.features, client),
        label_share=share,
        label_cell=cell,
        label_owners=tuple(labelled.cells[number].owners for number in numbers),
        feature_cell=feature_cell,
        feature_owners=tuple(schema.features.cells[number].owners for number in feature_numbers),
        norms=np.zeros(0),
        row_scale=np.zeros(0),
        alpha=duals,
        w=weights,
        alpha_trial=duals,
        w_trial=weights,
        noise=release,
        score_order=order,
        score_stops=stops,
        overlap=newton_shares.find_overlap(schema, client) if _shares(options, schema) else None,
        readers=tuple(schema.score_cells[one].readers for one in schema.score_cells_of[client]),
    )
    return evolve(made, counted=find_read(made, labelled.counting))


def _find_kept(index: Index, client: ClientId, cells: Iterable[int]) -> tuple[bool, ...]:
    """Return for some cells whether they count at this client; their owners take turns."""
    return tuple(index.keepers[number] == client for number in cells)


def _assign_turns(index: Index, client: ClientId) -> NDArray[np.int64]:
    """Return the runs of features that fall to this client when owners share out each cell."""
    found = [
        (start + (stop - start) * rank // holders, start + (stop - start) * (rank + 1) // holders)
        for start, stop, holders, rank in index.own_cells(client)
    ]
    return np.array(found, np.int64).reshape(-1, 2)


def _spread_evenly(index: Index, client: ClientId) -> NDArray[np.int64]:
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


def _find_distinct(cells: NDArray[np.intp]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the cell numbers that occur, ascending, and the place of each entry's among them."""
    occurs = np.bincount(cells) > 0
    return np.flatnonzero(occurs), (np.cumsum(occurs) - 1)[cells]


def _find_ranks(ids: NDArray[Any], wanted: NDArray[Any]) -> NDArray[np.intp]:
    if np.array_equal(ids, wanted):
        return np.arange(len(ids))
    return places_of(wanted, ids)
