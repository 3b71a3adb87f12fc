"""Mini-batch dual ascent, coupled through the mean row: the phase of HyFDCA that starts on text.

The clients' walks over their samples come first, the phase at the server after them.

Rows of a sparse table with more features than samples are nearly orthogonal but for what each has
of the mean row. So many samples can step at the same time: the clients correct their steps for
the mean row alone, and the server takes the share γ of them that maximises the dual D. D never
falls (but for rounding, and but for the logistic loss, whose bend along the step is estimated).

A round passes once over the samples, in chunks of a fifth of each cell, drawn anew each round.
The server sees scalars only; every vector is a sealed total. For each chunk:

1. scores: a client sends its part of the scores of the chunk at w, and of those at Δw, which is
   what the last chunk's steps change w by; scalars that give their share γ
2. steps: the one client that reads a sample's scores, of those that hold its label, takes the dual
   step at the scores of w + γΔw, and sends D's slope and bend along it
3. change: the owners of the samples get the steps, and send their part of what these change w by

A last pair of exchanges settles the round: α and w, sealed.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from intarsia import core as fl
from intarsia.core.block import Array, Block, ClientId, row_weights, targets
from intarsia.errors import CheckpointError
from intarsia.maths.linear import losses
from intarsia.maths.linear.minibatch_sdca import (
    add_at,
    advanced,
    coupled_steps,
    line_products,
    span_products,
)
from intarsia.maths.linear.products import gather, scores
from intarsia.maths.linear.row_products import gather_rows, score_pairs, score_rows

PHASE = "chunk ascent"
CHUNKS = 5  # in a round
_START = 0.01  # β of the logistic loss at first, whose dual has no slope at 0


@dataclass(frozen=True)
class Walker:
    """A client's state in this phase, in the order of its aligned block."""

    before: Any  # the client's state of dual ascent, to return to
    alpha: Array  # (outputs, samples)
    w: Array  # (outputs, features)
    along: Array  # (samples,) what x_i has of the mean row, where this client reads scores
    counted: NDArray[np.bool_]  # (samples,) whether this client reads its score, and steps on it
    number: int = -1  # of the present chunk
    chunks: tuple[NDArray[np.int64], ...] = ()  # samples by chunk, by cell of scores
    edges: NDArray[np.int64] | None = None  # (chunks, cells of scores + 1)
    change: Array | None = None  # (outputs, features) what the last chunk changes w by
    rows: NDArray[np.int64] | None = None  # the last chunk
    steps: Array | None = None  # (outputs, rows) its steps

    retired: ClassVar[frozenset[str]] = frozenset({"active", "peers"})


def find_read(client: Any, there: Collection[ClientId] | None = None) -> NDArray[np.int64]:
    """Return the samples whose scores a client reads, of those that are there (None: of all).

    Of the holders of a sample's label one opens its score, the same in every round in which it is
    there. Several holders divide an overlap group; where one is away, the next stands in for it.

    Raises
    ------
    CheckpointError
        If the state is of an earlier version, which did not say who reads what.
    """
    if client.readers is None:
        raise earlier_version()
    starts = [0, *client.score_stops[:-1]]
    found = [
        client.score_order[start:stop]
        for start, stop, names in zip(starts, client.score_stops, client.readers, strict=True)
        if next((name for name in names if there is None or name in there), None) == client.name
    ]
    reads = np.zeros(len(client.score_order), bool)
    for some in found:
        reads[some] = True
    return np.flatnonzero(reads)


def earlier_version() -> CheckpointError:
    """Return the error about a run that showed scores to all that hold a label."""
    return CheckpointError(
        "The run was begun by an earlier version, in which all that hold the label of a sample "
        "open its score, and in this one a single client does; start it anew with --overwrite."
    )


@dataclass(frozen=True)
class Survey:
    """Ask for the sum of a client's rows."""


@fl.describe(
    total="sums of columns",
    alpha="each row's dual variable",
    sums="terms of the training objective",
)
class RowSum:
    """A client's part of the sum of all rows; the duals to start from."""

    total: fl.PerFeature  # (1, features)
    alpha: fl.PerSample
    sums: Array  # (outputs,) Σ -l*(-α_i)


@dataclass(frozen=True)
class Direction:
    """The sum of all rows and the duals to start from."""

    total: fl.PerFeature
    alpha: fl.PerSample


@fl.describe(
    z="each row's product with a step's direction",
    w="model weights or their changes",
    square="terms of the training objective",
)
class DirectionScores:
    """A client's part of the scores of the sum of all rows."""

    z: fl.PerScore  # (1, samples)
    w: fl.PerFeature  # w(α) of the first duals
    square: Array  # (1,) of the sum of all rows


@dataclass(frozen=True)
class Departure:
    """Where the phase starts."""

    w: fl.PerFeature


@dataclass(frozen=True)
class Along:
    """The scores of the sum of all rows."""

    z: fl.PerScore
    scale: float  # makes the sum of all rows a unit vector


@fl.describe("terms of the training objective")
class SquaredNorm:
    """‖w‖², each feature once."""

    square: Array  # (outputs,)


@dataclass(frozen=True)
class Chunk:
    """Ask for the scores of a chunk after the last one's steps."""

    change: fl.PerFeature | None  # what they change w by; None: settled
    number: int  # of the chunk; -1: none
    draw: int  # decides the chunks of this round


@fl.describe(
    z="each row's model score",
    moved="each row's model score",
    counts="numbers of chosen rows",
    line="terms of the training objective",
)
class ChunkScores:
    """A client's part of the scores; scalars for the share of the last steps."""

    z: fl.PerSelectedScore | None  # (outputs, chunk) at w
    moved: fl.PerSelectedScore | None  # the same of the last steps' change of w
    counts: fl.Counts | None
    line: Array | None  # (outputs, 2) w·Δw, ‖Δw‖²


@dataclass(frozen=True)
class ChunkTotals:
    """The scores of a chunk, and the share of the last steps."""

    z: fl.PerSelectedScore  # at w, of the samples of the chunk that the client reads
    moved: fl.PerSelectedScore | None  # of the last steps' change of w; None: there were none
    taken: Array  # (outputs,) γ


@fl.describe("model weights or their changes")
class ChunkChange:
    """What the steps change a client's part of w by."""

    w: fl.PerFeature


@fl.describe(
    alpha="each row's dual variable",
    counts="numbers of chosen rows",
    sums="terms of the training objective",
)
class ChunkSteps:
    """The steps."""

    alpha: fl.PerSelected
    counts: fl.Counts
    sums: Array  # (outputs, 2) slope and bend of the dual's data term


@dataclass(frozen=True)
class TakenSteps:
    """The steps for the owners of the samples, and the share of those before."""

    alpha: fl.PerSelected
    taken: Array  # (outputs,) γ


@dataclass(frozen=True)
class Settle:
    """The share of the last steps of the round."""

    taken: Array


@fl.describe(
    alpha="each row's dual variable",
    w="model weights or their changes",
    sums="terms of the training objective",
)
class Settled:
    """The duals that count at a client, and its share of w; sums for the dual."""

    alpha: fl.PerSample
    w: fl.PerFeature
    sums: Array  # (outputs, 2) Σ -l*(-α_i), ‖w‖²


@dataclass(frozen=True)
class Evaluate:
    """Scores to evaluate the objectives at; None: send this client's part of them."""

    z: fl.PerScore | None


@fl.describe("each row's model score")
class WalkerScores:
    """A client's part of the scores."""

    z: fl.PerScore


@fl.describe("terms of the training objective")
class DataTerms:
    """Sums for the objectives."""

    sums: Array  # (2,) Σ l, Σ -l*
    square: Array  # (1,) ‖w‖²


@fl.client_function
def sum_rows(before: Any, block: Block, message: Survey) -> tuple[Any, RowSum]:
    """Send the sum of this client's rows, and the duals to start from."""
    loss = losses.loss_code(before.options.loss)
    y = targets(block, len(before.alpha))
    alpha = np.zeros_like(before.alpha)
    mine = before.counted
    if loss == losses.LOGISTIC:
        alpha[:, mine] = _START * y[:, mine] * row_weights(block)[mine]
    given: dict[str, Any] = {
        "weights": block.weights_of(mine),
        "shape": losses.shape_of(before.options),
    }
    sums = losses.minus_conjugate(loss, alpha[:, mine], y[:, mine], **given).sum(axis=1)
    return before, RowSum(gather(block.x, np.ones((1, block.shape[0]))), alpha, sums)


@fl.client_function
def score_direction(
    before: Any, block: Block, message: Direction
) -> tuple[Walker, DirectionScores]:
    """Leave dual ascent; send this client's part of the scores of the mean row."""
    samples = block.shape[0]
    counted = np.zeros(samples, bool)
    counted[before.counted] = True
    scale = 1 / (before.options.regularisation * before.samples)
    w = gather(block.x, message.alpha) * scale
    walker = Walker(
        before=before,
        alpha=message.alpha,
        w=w,
        along=np.zeros(samples),
        counted=counted,
    )
    square = span_products(message.total, message.total, before.feature_turn)
    return walker, DirectionScores(scores(block.x, message.total), w, square)


@fl.client_function
def depart(walker: Walker, block: Block, message: Departure) -> tuple[Walker, SquaredNorm]:
    """Keep the first weights."""
    w = np.ascontiguousarray(message.w)
    walker = fl.evolve(walker, w=w)
    return walker, SquaredNorm(span_products(w, w, walker.before.feature_turn))


@fl.client_function
def keep_along(walker: Walker, block: Block, message: Along) -> tuple[Walker, fl.Ready]:
    """Keep what each sample has of the mean row."""
    return fl.evolve(walker, along=message.z[0] * message.scale), fl.Ready()


def _walk_sizes(walker: Walker, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how many samples a client steps on in each overlap group that it reads something of.

    `sizes` are those of its cells of scores, all of which are read by it, or none. They are parts
    of the groups, in their order. One walk passes over all that is read of a group: shorter walks
    at the same time would know less of each other's steps.
    """
    before = walker.before
    first = before.score_order[np.concatenate([[0], before.score_stops[:-1]])]
    group = np.searchsorted([cell[1] for cell in before.sample_cells], first, side="right")
    read = walker.counted[first]
    walks: NDArray[np.int64] = np.zeros(len(before.sample_cells), np.int64)
    np.add.at(walks, group[read], sizes[read])
    return walks[np.isin(np.arange(len(walks)), group[read])]


def _draw_chunks(walker: Walker, draw: int) -> Walker:
    """Assign the samples of each cell of scores to chunks; all its owners assign them alike."""
    parts: list[list[NDArray[np.int64]]] = []
    before, start = walker.before, 0
    for stop in before.score_stops.tolist():
        order = fl.RandomKey(("chunks", draw)).generator().permutation(stop - start)
        parts.append(np.array_split(before.score_order[start + order], CHUNKS))
        start = stop
    if len(parts) == 1:
        chunks = tuple(parts[0])
    else:
        chunks = tuple(np.concatenate([cell[k] for cell in parts]) for k in range(CHUNKS))
    sizes = np.array([[len(cell[k]) for cell in parts] for k in range(CHUNKS)])
    edges = np.concatenate([np.zeros((CHUNKS, 1), np.int64), sizes.cumsum(axis=1)], axis=1)
    return fl.evolve(walker, chunks=chunks, edges=edges)


@fl.client_function
def score_chunk(walker: Walker, block: Block, message: Chunk) -> tuple[Walker, ChunkScores]:
    """Send this client's part of the scores of a chunk after the last one's steps."""
    if message.number == 0:
        walker = _draw_chunks(walker, message.draw)
    w, change = walker.w, message.change
    z = moved = counts = line = None
    if change is not None:
        change = np.ascontiguousarray(change)
        line = line_products(w, change, walker.before.feature_turn)
    if message.number >= 0:
        rows = walker.chunks[message.number]
        assert walker.edges is not None
        counts = np.diff(walker.edges[message.number])
        if change is None:
            z = score_rows(block.x, rows, w)
        else:
            z, moved = score_pairs(block.x, rows, w, change)
    # `rows` still names the chunk before: its steps are counted when their share is known
    walker = fl.evolve(walker, change=change, number=message.number)
    return walker, ChunkScores(z, moved, counts, line)


def _count_steps(walker: Walker, taken: Array) -> Walker:
    """Count the share of the last steps that the server took."""
    if walker.rows is None or walker.steps is None or walker.change is None:
        return walker
    return fl.evolve(
        walker,
        alpha=add_at(walker.alpha, walker.rows, walker.steps, taken),
        w=advanced(walker.w, walker.change, taken),
        change=None,
        rows=None,
        steps=None,
    )


@fl.client_function
def find_steps(
    walker: Walker, block: Block, message: ChunkTotals, rng: fl.RandomKey
) -> tuple[Walker, ChunkSteps]:
    """Step on the samples of a chunk whose scores this client reads; send the steps."""
    walker = _count_steps(walker, message.taken)
    assert walker.edges is not None
    assert block.y is not None
    before, z = walker.before, message.z
    if message.moved is not None:
        z = z + message.taken[:, None] * message.moved
    rows, sizes = walker.chunks[walker.number], np.diff(walker.edges[walker.number])
    edges = np.concatenate([[0], np.cumsum(_walk_sizes(walker, sizes))])
    whole = _walk_sizes(walker, before.score_stops - [0, *before.score_stops[:-1]])
    # cells follow the order of the samples, which may be that of their classes
    drawn = rng.generator()
    walks = [start + drawn.permutation(stop - start) for start, stop in pairwise(edges.tolist())]
    order = np.concatenate([np.zeros(0, np.int64), *walks])
    here = np.flatnonzero(walker.counted[rows])[order]
    found, sums = coupled_steps(
        losses.loss_code(before.options.loss),
        block.y,
        walker.alpha,
        np.ascontiguousarray(z[:, order]),
        before.norms,
        walker.along,
        rows[here],
        edges,
        before.samples / whole,  # walks like this one at the same time
        1 / (before.options.regularisation * before.samples),
        walker.counted,
        walker.counted,
        block.weights,
        losses.shape_of(before.options),
    )
    steps = np.zeros((len(found), len(rows)))
    steps[:, here] = found
    stops = [cell[1] for cell in before.sample_cells]
    at = np.searchsorted(stops, rows, side="right")
    return walker, ChunkSteps(steps, np.bincount(at, minlength=len(stops)), sums)


@fl.client_function
def take_steps(walker: Walker, block: Block, message: TakenSteps) -> tuple[Walker, ChunkChange]:
    """Take the steps that were found where the scores are read."""
    walker = _count_steps(walker, message.taken)
    rows, steps = walker.chunks[walker.number], np.ascontiguousarray(message.alpha)
    scale = 1 / (walker.before.options.regularisation * walker.before.samples)
    walker = fl.evolve(walker, rows=rows, steps=steps)
    return walker, ChunkChange(gather_rows(block.x, rows, steps * scale))


@fl.client_function
def settle(walker: Walker, block: Block, message: Settle) -> tuple[Walker, Settled]:
    """Count the last steps; send the duals that count here, and this client's share of w."""
    walker = fl.evolve(_count_steps(walker, message.taken), chunks=(), edges=None)
    spans, mine = walker.before.feature_turn, walker.before.counted
    w = np.zeros_like(walker.w)
    for start, stop in spans:
        w[:, start:stop] = walker.w[:, start:stop]
    y, own = targets(block, len(w))[:, mine], walker.alpha[:, mine]
    loss = losses.loss_code(walker.before.options.loss)
    given: dict[str, Any] = {
        "weights": block.weights_of(mine),
        "shape": losses.shape_of(walker.before.options),
    }
    slack = losses.EDGE  # sealed steps are rounded
    conjugates = losses.minus_conjugate(loss, own, y, **given, slack=slack)
    sums = [conjugates.sum(axis=1), span_products(w, w, spans)]
    alpha = np.zeros_like(walker.alpha)
    alpha[:, mine] = own
    return walker, Settled(alpha, w, np.stack(sums, axis=1))


@fl.client_function
def score_all(walker: Walker, block: Block, message: Evaluate) -> tuple[Walker, WalkerScores]:
    """Send this client's part of the scores of all its samples."""
    return walker, WalkerScores(scores(block.x, walker.w))


@fl.client_function
def evaluate(walker: Walker, block: Block, message: Evaluate) -> tuple[Walker, DataTerms]:
    """Send the losses and the dual terms of the samples whose scores this client reads."""
    assert message.z is not None
    loss, mine = losses.loss_code(walker.before.options.loss), find_read(walker.before)
    y = targets(block, len(message.z))[:, mine]
    given: dict[str, Any] = {
        "weights": block.weights_of(mine),
        "shape": losses.shape_of(walker.before.options),
    }
    slack = losses.EDGE  # sealed steps are rounded
    sums = [
        losses.value(loss, message.z[:, mine], y, **given).sum(),
        losses.minus_conjugate(loss, walker.alpha[:, mine], y, **given, slack=slack).sum(),
    ]
    square = span_products(walker.w, walker.w, walker.before.feature_turn).sum()
    return walker, DataTerms(np.array(sums), np.array([square]))


SENDS = (
    *fl.asks(keep_along),
    *fl.sums(sum_rows, find_steps, reveals=("sums",)),
    *fl.sums(score_direction, depart, reveals=("square",)),
    *fl.sums(score_chunk, reveals=("line",)),
    *fl.sums(take_steps),
    *fl.each(fl.sums(settle, reveals=("sums", "w"), opens=("alpha", "w")), model=("w",)),
    *fl.sums(score_all),
    *fl.sums(evaluate, reveals=("sums", "square")),
)


_RISE = 0.02  # of the dual in a round, below which the phase has done its part
_ROUNDS = 40  # at most


@dataclass(frozen=True)
class ChunkAscent:
    """The server's state; arrays are (outputs,)."""

    loss: int
    regularisation: float
    samples: int  # N
    labelled: tuple[ClientId, ...] = ()  # clients that read scores
    dual: Array = field(default_factory=lambda: np.zeros(1))  # D
    rise: float = np.inf  # of the dual in the last round, relative
    rounds: int = 0
    alpha: Any = None  # sealed (outputs, samples)
    dual_weights: Any = None  # sealed (outputs, features) w(α)

    retired: ClassVar[frozenset[str]] = frozenset({"shared_labels"})


def begin(ascent: ChunkAscent, clients: fl.Clients) -> ChunkAscent:
    """Start the phase from zero (the logistic loss: from small duals)."""
    found = clients.sum(sum_rows, Survey())
    direction = Direction(found.total, found.alpha)
    measured = clients.sum(score_direction, direction)
    # discloses the norm of the mean row; the dual's data term of the first duals and their ‖w‖²
    square = float(clients.reveal(measured.square)[0])
    along = Along(measured.z, 1 / np.sqrt(square) if square > 0 else 0.0)
    clients.ask(keep_along, dict.fromkeys(ascent.labelled, along))
    ready = clients.sum(depart, Departure(measured.w))
    conjugates, ridge = clients.reveal(found.sums), clients.reveal(ready.square)
    dual = conjugates / ascent.samples - 0.5 * ascent.regularisation * ridge
    return fl.evolve(ascent, dual=dual, alpha=found.alpha, dual_weights=measured.w)


def exhausted(ascent: ChunkAscent) -> bool:
    """Return whether the phase has done its part."""
    return ascent.rise < _RISE or ascent.rounds >= _ROUNDS


def step(
    ascent: ChunkAscent, clients: fl.Clients, rng: fl.RandomKey
) -> tuple[ChunkAscent, fl.RoundMetrics]:
    """Pass once over the samples; return the state and the dual there."""
    draw = rng.fold_in("chunks").integer()
    everyone = clients.ids
    start = ascent.dual
    taken = np.zeros(len(start))
    change: Any = None
    gain = np.zeros((len(start), 2))
    for number in [*range(CHUNKS), -1]:
        chunk = Chunk(change=change, number=number, draw=draw)
        found = clients.sum(score_chunk, dict.fromkeys(everyone, chunk))
        if number != 0:
            # discloses w·Δw, ‖Δw‖², and the data term's rise
            line = clients.reveal(found.line)
            slope = gain[:, 0] / ascent.samples - ascent.regularisation * line[:, 0]
            bend = gain[:, 1] / ascent.samples + ascent.regularisation * line[:, 1]
            taken = np.divide(slope, bend, out=np.zeros_like(slope), where=bend > 0)
            taken = np.clip(taken, 0.0, 1.0)
        if number < 0:
            break
        totals = ChunkTotals(z=found.z, moved=found.moved if number else None, taken=taken)
        steps = clients.sum(find_steps, dict.fromkeys(ascent.labelled, totals))
        gain = clients.reveal(steps.sums)
        forwarded = TakenSteps(alpha=steps.alpha, taken=taken)
        change = clients.sum(take_steps, dict.fromkeys(everyone, forwarded)).w
    settled = clients.sum(settle, dict.fromkeys(everyone, Settle(taken=taken)))
    # discloses the dual's data term and ‖w‖²
    sums = clients.reveal(settled.sums)
    dual = sums[:, 0] / ascent.samples - 0.5 * ascent.regularisation * sums[:, 1]
    rise = float((dual - start).sum() / max(abs(float(dual.sum())), 1e-300))
    point = {"dual": dual, "alpha": settled.alpha, "dual_weights": settled.w}
    ascent = fl.evolve(ascent, rise=rise, rounds=ascent.rounds + 1, **point)
    return ascent, fl.RoundMetrics(dual=float(dual.sum()), phase=PHASE)


def certify(ascent: ChunkAscent, clients: fl.Clients) -> tuple[ChunkAscent, fl.RoundMetrics]:
    """Compute the objectives at the present point."""
    found = clients.sum(score_all, Evaluate(z=None))
    terms = clients.sum(evaluate, Evaluate(z=found.z))
    # discloses the data loss, the dual's data term and ‖w‖²
    loss, conjugate = clients.reveal(terms.sums) / ascent.samples
    ridge = 0.5 * ascent.regularisation * float(clients.reveal(terms.square)[0])
    primal, dual = float(loss) + ridge, float(conjugate) - ridge
    return ascent, fl.RoundMetrics.certified(primal, dual, PHASE)


STATES = (ChunkAscent, Walker)
