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
2. steps: the owners of a sample take its dual step at the scores of w + γΔw (all the same one, as
   all know the label), and send their part of what the steps change w by, with D's slope and bend
   along them

Where some owners lack the label, those that have it take the steps, and forward them to the
owners in one exchange more. A last pair of exchanges settles the round: α and w, sealed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.core import algorithm as fl
from intarsia.core.block import Array, Block, targets
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

CHUNKS = 5  # in a round
_START = 0.01  # β of the logistic loss at first, whose dual has no slope at 0


@dataclass(frozen=True)
class Walker:
    """A client's state in this phase, in the order of its aligned block."""

    before: Any  # the client's state of dual ascent, to return to
    alpha: Array  # (outputs, samples)
    w: Array  # (outputs, features)
    along: Array  # (samples,) what x_i has of the mean row
    active: NDArray[np.bool_]  # (samples,) whether this client steps on the sample
    counted: NDArray[np.bool_]  # (samples,) whether it counts the sample in sums
    peers: Array  # (cells,) walks taken at the same time
    number: int = -1  # of the present chunk
    chunks: tuple[NDArray[np.int64], ...] = ()  # samples by chunk, cell by cell
    edges: NDArray[np.int64] | None = None  # (chunks, cells + 1)
    change: Array | None = None  # (outputs, features) what the last chunk changes w by
    rows: NDArray[np.int64] | None = None  # the last chunk
    steps: Array | None = None  # (outputs, rows) its steps


@dataclass(frozen=True)
class Survey:
    """Ask for the sum of a client's rows."""


@fl.describe(
    total="sums of columns",
    alpha="each row's dual variable",
    sums="terms of the training objective",
)
@dataclass(frozen=True)
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
    shared_labels: bool


@fl.describe(
    z="each row's product with a step's direction",
    w="model weights or their changes",
    square="terms of the training objective",
)
@dataclass(frozen=True)
class DirectionScores:
    """A client's part of the scores of the sum of all rows."""

    z: fl.PerSample  # (1, samples)
    w: fl.PerFeature  # w(α) of the first duals
    square: Array  # (1,) of the sum of all rows


@dataclass(frozen=True)
class Departure:
    """Where the phase starts."""

    z: fl.PerSample
    w: fl.PerFeature
    scale: float  # makes the sum of all rows a unit vector


@fl.describe("terms of the training objective")
@dataclass(frozen=True)
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
@dataclass(frozen=True)
class ChunkScores:
    """A client's part of the scores; scalars for the share of the last steps."""

    z: fl.PerSelected | None  # (outputs, chunk) at w
    moved: fl.PerSelected | None  # the same of the last steps' change of w
    counts: fl.Counts | None
    line: Array | None  # (outputs, 2) w·Δw, ‖Δw‖²


@dataclass(frozen=True)
class ChunkTotals:
    """The scores of a chunk, and the share of the last steps."""

    z: fl.PerSelected  # at w
    moved: fl.PerSelected | None  # of the last steps' change of w; None: there were none
    taken: Array  # (outputs,) γ


@fl.describe(w="model weights or their changes", sums="terms of the training objective")
@dataclass(frozen=True)
class ChunkChange:
    """What the steps change a client's part of w by."""

    w: fl.PerFeature
    sums: Array  # (outputs, 2) slope and bend of the dual's data term


@fl.describe(
    alpha="each row's dual variable",
    counts="numbers of chosen rows",
    sums="terms of the training objective",
)
@dataclass(frozen=True)
class ChunkSteps:
    """The steps, where only some owners know the labels."""

    alpha: fl.PerSelected
    counts: fl.Counts
    sums: Array


@dataclass(frozen=True)
class TakenSteps:
    """The steps for the owners of the samples."""

    alpha: fl.PerSelected


@dataclass(frozen=True)
class Settle:
    """The share of the last steps of the round."""

    taken: Array


@fl.describe(
    alpha="each row's dual variable",
    w="model weights or their changes",
    sums="terms of the training objective",
)
@dataclass(frozen=True)
class Settled:
    """The duals that count at a client, and its share of w; sums for the dual."""

    alpha: fl.PerSample
    w: fl.PerFeature
    sums: Array  # (outputs, 2) Σ -l*(-α_i), ‖w‖²


@dataclass(frozen=True)
class Evaluate:
    """Scores to evaluate the objectives at; None: send this client's part of them."""

    z: fl.PerSample | None


@fl.describe("each row's model score")
@dataclass(frozen=True)
class WalkerScores:
    """A client's part of the scores."""

    z: fl.PerSample


@fl.describe("terms of the training objective")
@dataclass(frozen=True)
class DataTerms:
    """Sums for the objectives."""

    sums: Array  # (2,) Σ l, Σ -l*
    square: Array  # (1,) ‖w‖²


@fl.client_function
def sum_rows(before: Any, block: Block, message: Survey, rng: fl.RandomKey) -> tuple[Any, RowSum]:
    """Send the sum of this client's rows, and the duals to start from."""
    loss = losses.loss_code(before.options.loss)
    y = targets(block, len(before.alpha))
    alpha = np.zeros_like(before.alpha)
    mine = before.counted
    if loss == losses.LOGISTIC:
        alpha[:, mine] = _START * y[:, mine]
    sums = losses.minus_conjugate(loss, alpha[:, mine], y[:, mine]).sum(axis=1)
    return before, RowSum(gather(block.x, np.ones((1, block.shape[0]))), alpha, sums)


@fl.client_function
def score_direction(
    before: Any, block: Block, message: Direction, rng: fl.RandomKey
) -> tuple[Walker, DirectionScores]:
    """Leave dual ascent; send this client's part of the scores of the mean row."""
    samples = block.shape[0]
    counted = np.zeros(samples, bool)
    counted[before.counted] = True
    active = before.label_share > 0 if message.shared_labels else counted
    sizes = np.array([active[start:stop].sum() for start, stop, *_ in before.sample_cells])
    scale = 1 / (before.options.regularisation * before.samples)
    w = gather(block.x, message.alpha) * scale
    walker = Walker(
        before=before,
        alpha=message.alpha,
        w=w,
        along=np.zeros(samples),
        active=active,
        counted=counted,
        peers=before.samples / np.maximum(sizes, 1.0),
    )
    square = span_products(message.total, message.total, before.feature_turn)
    return walker, DirectionScores(scores(block.x, message.total), w, square)


@fl.client_function
def depart(
    walker: Walker, block: Block, message: Departure, rng: fl.RandomKey
) -> tuple[Walker, SquaredNorm]:
    """Keep the first weights and what each sample has of the mean row."""
    w = np.ascontiguousarray(message.w)
    walker = fl.evolve(walker, w=w, along=message.z[0] * message.scale)
    return walker, SquaredNorm(span_products(w, w, walker.before.feature_turn))


def _draw_chunks(walker: Walker, draw: int) -> Walker:
    """Assign each cell's samples to chunks; all owners of a cell assign them alike."""
    parts: list[list[NDArray[np.int64]]] = []
    for start, stop, *_ in walker.before.sample_cells:
        order = fl.RandomKey(("chunks", draw)).generator().permutation(stop - start)
        parts.append(np.array_split(start + order, CHUNKS))
    if len(parts) == 1:
        chunks = tuple(parts[0])
    else:
        chunks = tuple(np.concatenate([cell[k] for cell in parts]) for k in range(CHUNKS))
    sizes = np.array([[len(cell[k]) for cell in parts] for k in range(CHUNKS)])
    edges = np.concatenate([np.zeros((CHUNKS, 1), np.int64), sizes.cumsum(axis=1)], axis=1)
    return fl.evolve(walker, chunks=chunks, edges=edges)


@fl.client_function
def score_chunk(
    walker: Walker, block: Block, message: Chunk, rng: fl.RandomKey
) -> tuple[Walker, ChunkScores]:
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


def _walk(
    walker: Walker, block: Block, message: ChunkTotals
) -> tuple[Walker, NDArray[np.int64], Array, Array]:
    """Take the dual steps on the present chunk; return its samples, the steps and their sums."""
    walker = _count_steps(walker, message.taken)
    assert walker.edges is not None
    rows, outputs = walker.chunks[walker.number], len(walker.alpha)
    if block.y is None:
        return walker, rows, np.zeros((outputs, len(rows))), np.zeros((outputs, 2))
    before, z = walker.before, message.z
    if message.moved is not None:
        z = z + message.taken[:, None] * message.moved
    steps, sums = coupled_steps(
        losses.loss_code(before.options.loss),
        block.y,
        walker.alpha,
        np.ascontiguousarray(z),
        before.norms,
        walker.along,
        rows,
        walker.edges[walker.number],
        walker.peers,
        1 / (before.options.regularisation * before.samples),
        walker.active,
        walker.counted,
    )
    return walker, rows, steps, sums


def _gather_steps(walker: Walker, block: Block, rows: NDArray[np.int64], steps: Array) -> Array:
    """Return what steps change this client's part of w by."""
    scale = 1 / (walker.before.options.regularisation * walker.before.samples)
    return gather_rows(block.x, rows, steps * scale)


@fl.client_function
def step_chunk(
    walker: Walker, block: Block, message: ChunkTotals, rng: fl.RandomKey
) -> tuple[Walker, ChunkChange]:
    """Step on a chunk; send what the steps change this client's part of w by."""
    walker, rows, steps, sums = _walk(walker, block, message)
    walker = fl.evolve(walker, rows=rows, steps=steps)
    return walker, ChunkChange(_gather_steps(walker, block, rows, steps), sums)


@fl.client_function
def find_steps(
    walker: Walker, block: Block, message: ChunkTotals, rng: fl.RandomKey
) -> tuple[Walker, ChunkSteps]:
    """Step on the samples of a chunk whose label counts here; send the steps."""
    walker, _, steps, sums = _walk(walker, block, message)
    assert walker.edges is not None
    return walker, ChunkSteps(steps, np.diff(walker.edges[walker.number]), sums)


@fl.client_function
def take_steps(
    walker: Walker, block: Block, message: TakenSteps, rng: fl.RandomKey
) -> tuple[Walker, ChunkChange]:
    """Take the steps that were found where the labels are."""
    rows, steps = walker.chunks[walker.number], np.ascontiguousarray(message.alpha)
    walker = fl.evolve(walker, rows=rows, steps=steps)
    return walker, ChunkChange(_gather_steps(walker, block, rows, steps), np.zeros((len(steps), 2)))


@fl.client_function
def settle(
    walker: Walker, block: Block, message: Settle, rng: fl.RandomKey
) -> tuple[Walker, Settled]:
    """Count the last steps; send the duals that count here, and this client's share of w."""
    walker = fl.evolve(_count_steps(walker, message.taken), chunks=(), edges=None)
    spans, mine = walker.before.feature_turn, walker.before.counted
    w = np.zeros_like(walker.w)
    for start, stop in spans:
        w[:, start:stop] = walker.w[:, start:stop]
    y, own = targets(block, len(w))[:, mine], walker.alpha[:, mine]
    loss = losses.loss_code(walker.before.options.loss)
    sums = [losses.minus_conjugate(loss, own, y).sum(axis=1), span_products(w, w, spans)]
    alpha = np.zeros_like(walker.alpha)
    alpha[:, mine] = own
    return walker, Settled(alpha, w, np.stack(sums, axis=1))


@fl.client_function
def score_all(
    walker: Walker, block: Block, message: Evaluate, rng: fl.RandomKey
) -> tuple[Walker, WalkerScores]:
    """Send this client's part of the scores of all its samples."""
    return walker, WalkerScores(scores(block.x, walker.w))


@fl.client_function
def evaluate(
    walker: Walker, block: Block, message: Evaluate, rng: fl.RandomKey
) -> tuple[Walker, DataTerms]:
    """Send the losses and the dual terms of the samples that count here."""
    assert message.z is not None
    loss, mine = losses.loss_code(walker.before.options.loss), walker.before.counted
    y = targets(block, len(message.z))[:, mine]
    sums = [
        losses.value(loss, message.z[:, mine], y).sum(),
        losses.minus_conjugate(loss, walker.alpha[:, mine], y).sum(),
    ]
    square = span_products(walker.w, walker.w, walker.before.feature_turn).sum()
    return walker, DataTerms(np.array(sums), np.array([square]))


SENDS = (
    *fl.sums(sum_rows, find_steps, reveals=("sums",)),
    *fl.sums(score_direction, depart, reveals=("square",)),
    *fl.sums(score_chunk, reveals=("line",)),
    *fl.sums(step_chunk, take_steps, reveals=("sums",)),
    *fl.sums(settle, reveals=("sums", "w"), opens=("alpha", "w")),
    *fl.sums(score_all),
    *fl.sums(evaluate, reveals=("sums", "square")),
)


_RISE = 0.002  # of the dual in a round, below which the phase has done its part
_ROUNDS = 40  # at most


@dataclass(frozen=True)
class ChunkAscent:
    """The server's state; arrays are (outputs,)."""

    loss: int
    regularisation: float
    samples: int  # N
    shared_labels: bool  # whether every owner of a labelled sample has its label
    dual: Array = field(default_factory=lambda: np.zeros(1))  # D
    rise: float = np.inf  # of the dual in the last round, relative
    rounds: int = 0
    alpha: Any = None  # sealed (outputs, samples)
    dual_weights: Any = None  # sealed (outputs, features) w(α)


def begin(ascent: ChunkAscent, clients: fl.Clients) -> ChunkAscent:
    """Start the phase from zero (the logistic loss: from small duals)."""
    found = clients.sum(sum_rows, dict.fromkeys(clients.ids, Survey()))
    direction = Direction(found.total, found.alpha, ascent.shared_labels)
    measured = clients.sum(score_direction, dict.fromkeys(clients.ids, direction))
    # discloses the norm of the mean row; the dual's data term of the first duals and their ‖w‖²
    square = float(clients.reveal(measured.square)[0])
    departure = Departure(measured.z, measured.w, 1 / np.sqrt(square) if square > 0 else 0.0)
    ready = clients.sum(depart, dict.fromkeys(clients.ids, departure))
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
        if ascent.shared_labels:
            moved = clients.sum(step_chunk, dict.fromkeys(everyone, totals))
            gain = clients.reveal(moved.sums)
        else:
            steps = clients.sum(find_steps, dict.fromkeys(everyone, totals))
            gain = clients.reveal(steps.sums)
            moved = clients.sum(take_steps, dict.fromkeys(everyone, TakenSteps(alpha=steps.alpha)))
        change = moved.w
    settled = clients.sum(settle, dict.fromkeys(everyone, Settle(taken=taken)))
    # discloses the dual's data term and ‖w‖²
    sums = clients.reveal(settled.sums)
    dual = sums[:, 0] / ascent.samples - 0.5 * ascent.regularisation * sums[:, 1]
    rise = float((dual - start).sum() / max(abs(float(dual.sum())), 1e-300))
    point = {"dual": dual, "alpha": settled.alpha, "dual_weights": settled.w}
    ascent = fl.evolve(ascent, rise=rise, rounds=ascent.rounds + 1, **point)
    return ascent, fl.RoundMetrics(dual=float(dual.sum()), phase="chunk ascent")


def certify(ascent: ChunkAscent, clients: fl.Clients) -> tuple[ChunkAscent, fl.RoundMetrics]:
    """Compute the objectives at the present point."""
    found = clients.sum(score_all, dict.fromkeys(clients.ids, Evaluate(z=None)))
    terms = clients.sum(evaluate, dict.fromkeys(clients.ids, Evaluate(z=found.z)))
    # discloses the data loss, the dual's data term and ‖w‖²
    loss, conjugate = clients.reveal(terms.sums) / ascent.samples
    ridge = 0.5 * ascent.regularisation * float(clients.reveal(terms.square)[0])
    primal, dual = float(loss) + ridge, float(conjugate) - ridge
    return ascent, fl.RoundMetrics.certified(primal, dual, "chunk ascent")


STATES = (ChunkAscent, Walker)
