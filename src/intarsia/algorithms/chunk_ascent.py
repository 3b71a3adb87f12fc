"""Dual ascent in chunks, coupled through the mean row: the phase of HyFDCA that starts on text.

Rows of a sparse table with more features than samples are nearly orthogonal but for what each has
of the mean row. So many samples can step at the same time: the clients correct their steps for
the mean row alone, and the server takes the share γ of them that maximises the dual D. D never
falls (but for rounding, and but for the logistic loss, whose bend along the step is estimated).

A round passes once over the samples, in chunks of a tenth of each cell, drawn anew each round.
The server sees scalars only; every vector is a sealed total. For each chunk:

1. scores: a client sends its part of the scores of the chunk at w + γ'Δw, Δw being what the last
   chunk's steps change w by and γ' a guess of its share; scalars that give γ
2. steps: the owners of a sample take its dual step (all the same one, as all know the label),
   and send their part of what the steps change w by, with D's slope and bend along them

Where some owners lack the label, those that have it take the steps, and forward them to the
owners in one exchange more. A last pair of exchanges settles the round: α and w, sealed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.algorithm import (
    Clients,
    Counts,
    Info,
    PerFeature,
    PerSample,
    PerSelected,
    RandomKey,
    client_function,
    evolve,
)
from intarsia.data import Array, Block, targets
from intarsia.maths import losses
from intarsia.maths.coupled_steps import add_at, advanced, coupled_steps, span_products
from intarsia.maths.products import gather, scores
from intarsia.maths.selected_rows import gather_rows, score_along, score_rows

__all__ = [
    "FUNCTIONS",
    "STATES",
    "ChunkAscent",
    "Walker",
    "begin",
    "certify",
    "conclude",
    "exhausted",
    "step",
]

_CHUNKS = 10  # in a round
_RUN = 8  # neighbouring samples that are drawn together, as they lie together in memory
_RISE = 0.003  # of the dual in a round, below which the phase has done its part
_ROUNDS = 40  # at most
_START = 0.01  # β of the logistic loss, whose dual is flat nowhere else


# ---- states


@dataclass(frozen=True)
class ChunkAscent:
    """The server's state; arrays are (outputs,)."""

    loss: int
    regularisation: float
    samples: int  # N
    shared_labels: bool  # whether every owner of a labelled sample has its label
    dual: Array  # D
    taken: Array  # γ of the last chunk that is known
    rise: float = np.inf  # of the dual in the last round, relative
    rounds: int = 0
    alpha: Any = None  # sealed (outputs, samples)
    dual_weights: Any = None  # sealed (outputs, features) w(α)


@dataclass(frozen=True)
class Walker:
    """A client's state in this phase, in the order of its aligned block."""

    before: Any  # the client's state of dual ascent, to return to
    alpha: Array  # (outputs, samples)
    w: Array  # (outputs, features)
    mean: Array  # (1, features) unit vector along the mean row
    along: Array  # (samples,) x_iᵀ mean
    active: NDArray[np.bool_]  # (samples,) whether this client steps on the sample
    counted: NDArray[np.bool_]  # (samples,) whether it counts the sample in sums
    peers: Array  # (cells,) walks taken at the same time
    chunks: tuple[NDArray[np.int64], ...] = ()  # samples by chunk, cell by cell
    edges: NDArray[np.int64] | None = None  # (chunks, cells + 1)
    change: Array | None = None  # (outputs, features) what the last chunk changes w by
    rows: NDArray[np.int64] | None = None  # the last chunk
    steps: Array | None = None  # (outputs, rows) its steps

    @property
    def options(self) -> Any:
        """Return the hyperparameters."""
        return self.before.options


# ---- messages


@dataclass(frozen=True)
class Survey:
    """Ask for the sum of a client's rows."""


@dataclass(frozen=True)
class RowSum:
    """A client's part of the sum of all rows; the duals to start from."""

    total: PerFeature  # (1, features)
    alpha: PerSample
    sums: Array  # (outputs,) Σ -l*(-α_i)


@dataclass(frozen=True)
class Direction:
    """The sum of all rows and the duals to start from."""

    total: PerFeature
    alpha: PerSample
    shared_labels: bool


@dataclass(frozen=True)
class DirectionScores:
    """A client's part of the scores of the sum of all rows."""

    z: PerSample  # (1, samples)
    w: PerFeature  # w(α) of the first duals
    square: Array  # (1,) of the sum of all rows


@dataclass(frozen=True)
class Departure:
    """Where the phase starts."""

    z: PerSample
    w: PerFeature
    scale: float  # makes the sum of all rows a unit vector


@dataclass(frozen=True)
class SquaredNorm:
    """‖w‖², each feature once."""

    square: Array  # (outputs,)


@dataclass(frozen=True)
class Chunk:
    """Ask for the scores of a chunk after the last one's steps."""

    change: PerFeature | None  # what they change w by; None: settled
    guess: Array  # (outputs,) γ'
    number: int  # of the chunk; -1: none
    draw: int  # decides the chunks of this round


@dataclass(frozen=True)
class ChunkScores:
    """A client's part of the scores; scalars for the share of the last steps."""

    z: PerSelected  # (outputs, chunk)
    counts: Counts
    line: Array  # (outputs, 3) w·Δw, ‖Δw‖², mean·Δw


@dataclass(frozen=True)
class ChunkTotals:
    """The scores of a chunk, and the share of the last steps."""

    z: PerSelected
    taken: Array  # (outputs,) γ
    shift: Array  # (outputs,) (γ - γ') mean·Δw


@dataclass(frozen=True)
class ChunkChange:
    """What the steps change a client's part of w by."""

    w: PerFeature
    sums: Array  # (outputs, 2) slope and bend of the dual's data term


@dataclass(frozen=True)
class ChunkSteps:
    """The steps, where only some owners know the labels."""

    alpha: PerSelected
    counts: Counts
    sums: Array


@dataclass(frozen=True)
class TakenSteps:
    """The steps for the owners of the samples."""

    alpha: PerSelected


@dataclass(frozen=True)
class Settle:
    """The share of the last steps of the round."""

    taken: Array


@dataclass(frozen=True)
class Settled:
    """The duals that count at a client, and its share of w."""

    alpha: PerSample
    w: PerFeature


@dataclass(frozen=True)
class Evaluate:
    """Scores to evaluate the objectives at; None: send this client's part of them."""

    z: PerSample | None


@dataclass(frozen=True)
class WalkerScores:
    """A client's part of the scores."""

    z: PerSample


@dataclass(frozen=True)
class DataTerms:
    """Sums for the objectives."""

    sums: Array  # (2,) Σ l, Σ -l*
    square: Array  # (1,) ‖w‖²


# ---- the server


def begin(
    clients: Clients,
    *,
    loss: int,
    regularisation: float,
    samples: int,
    outputs: int,
    shared_labels: bool,
) -> ChunkAscent:
    """Start the phase from zero (the logistic loss: from small duals)."""
    found = clients.sum(sum_rows, dict.fromkeys(clients.ids, Survey()))
    direction = Direction(total=found.total, alpha=found.alpha, shared_labels=shared_labels)
    measured = clients.sum(score_direction, dict.fromkeys(clients.ids, direction))
    # discloses the norm of the mean row; the dual's data term of the first duals and their ‖w‖²
    square = float(clients.reveal(measured.square)[0])
    departure = Departure(
        z=measured.z, w=measured.w, scale=1 / np.sqrt(square) if square > 0 else 0.0
    )
    ready = clients.sum(depart, dict.fromkeys(clients.ids, departure))
    conjugates, ridge = clients.reveal(found.sums), clients.reveal(ready.square)
    return ChunkAscent(
        loss=loss,
        regularisation=regularisation,
        samples=samples,
        shared_labels=shared_labels,
        dual=conjugates / samples - 0.5 * regularisation * ridge,
        taken=np.ones(outputs),
        alpha=found.alpha,
        dual_weights=measured.w,
    )


def exhausted(ascent: ChunkAscent) -> bool:
    """Return whether the phase has done its part."""
    return ascent.rise < _RISE or ascent.rounds >= _ROUNDS


def step(ascent: ChunkAscent, clients: Clients, rng: RandomKey) -> tuple[ChunkAscent, Info]:
    """Pass once over the samples; return the state and the dual there."""
    draw = rng.fold_in("chunks").integer()
    everyone = clients.ids
    start, dual, taken = ascent.dual, ascent.dual, ascent.taken
    change: Any = None
    gain = np.zeros((len(dual), 2))
    for number in [*range(_CHUNKS), -1]:
        guess = taken
        chunk = Chunk(change=change, guess=guess, number=number, draw=draw)
        found = clients.sum(score_chunk, dict.fromkeys(everyone, chunk))
        shift = np.zeros(len(dual))
        if number != 0:
            # discloses w·Δw, ‖Δw‖², the mean row's product with Δw, and the data term's rise
            line = clients.reveal(found.line)
            slope = gain[:, 0] / ascent.samples - ascent.regularisation * line[:, 0]
            bend = gain[:, 1] / ascent.samples + ascent.regularisation * line[:, 1]
            taken = np.divide(slope, bend, out=np.zeros_like(slope), where=bend > 0)
            taken = np.clip(taken, 0.0, 1.0)
            dual = dual + taken * slope - 0.5 * taken**2 * bend
            shift = (taken - guess) * line[:, 2]
        if number < 0:
            break
        totals = ChunkTotals(z=found.z, taken=taken, shift=shift)
        if ascent.shared_labels:
            moved = clients.sum(step_chunk, dict.fromkeys(everyone, totals))
            gain = clients.reveal(moved.sums)
        else:
            steps = clients.sum(find_steps, dict.fromkeys(everyone, totals))
            gain = clients.reveal(steps.sums)
            moved = clients.sum(take_steps, dict.fromkeys(everyone, TakenSteps(alpha=steps.alpha)))
        change = moved.w
    settled = clients.sum(settle, dict.fromkeys(everyone, Settle(taken=taken)))
    rise = float((dual - start).sum() / max(abs(float(dual.sum())), 1e-300))
    ascent = evolve(
        ascent,
        dual=dual,
        taken=taken,
        rise=rise,
        rounds=ascent.rounds + 1,
        alpha=settled.alpha,
        dual_weights=settled.w,
    )
    return ascent, Info(dual=float(dual.sum()), phase="chunk ascent")


def certify(ascent: ChunkAscent, clients: Clients) -> tuple[ChunkAscent, Info]:
    """Compute the objectives at the present point."""
    found = clients.sum(score_all, dict.fromkeys(clients.ids, Evaluate(z=None)))
    terms = clients.sum(evaluate, dict.fromkeys(clients.ids, Evaluate(z=found.z)))
    # discloses the data loss, the dual's data term and ‖w‖²
    loss, conjugate = clients.reveal(terms.sums) / ascent.samples
    ridge = 0.5 * ascent.regularisation * float(clients.reveal(terms.square)[0])
    primal, dual = float(loss) + ridge, float(conjugate) - ridge
    return ascent, Info(
        primal=primal,
        dual=dual,
        gap_relative=(primal - dual) / max(primal, 1e-300),
        phase="chunk ascent",
    )


def conclude(ascent: ChunkAscent, clients: Clients) -> Any:
    """Return the sealed weights."""
    return ascent.dual_weights


# ---- at the clients


@client_function
def sum_rows(before: Any, block: Block, message: Survey, rng: RandomKey) -> tuple[Any, RowSum]:
    """Send the sum of this client's rows, and the duals to start from."""
    loss = losses.loss_code(before.options.loss)
    y = targets(block, len(before.alpha))
    alpha = np.zeros_like(before.alpha)
    mine = before.counted
    if loss == losses.LOGISTIC:
        alpha[:, mine] = _START * y[:, mine]
    sums = losses.minus_conjugate(loss, alpha[:, mine], y[:, mine]).sum(axis=1)
    return before, RowSum(gather(block.x, np.ones((1, block.shape[0]))), alpha, sums)


@client_function
def score_direction(
    before: Any, block: Block, message: Direction, rng: RandomKey
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
        mean=message.total,
        along=np.zeros(samples),
        active=active,
        counted=counted,
        peers=before.samples / np.maximum(sizes, 1.0),
    )
    square = span_products(message.total, message.total, before.feature_turn)
    return walker, DirectionScores(scores(block.x, message.total), w, square)


@client_function
def depart(
    walker: Walker, block: Block, message: Departure, rng: RandomKey
) -> tuple[Walker, SquaredNorm]:
    """Keep the first weights and what each sample has of the mean row."""
    w = np.ascontiguousarray(message.w)
    walker = evolve(
        walker, w=w, mean=walker.mean * message.scale, along=message.z[0] * message.scale
    )
    return walker, SquaredNorm(span_products(w, w, walker.before.feature_turn))


def _drawn(walker: Walker, draw: int) -> Walker:
    """Deal each cell's samples to the chunks of a round; all owners of a cell deal alike."""
    parts: list[list[NDArray[np.int64]]] = []
    for start, stop, *_ in walker.before.sample_cells:
        runs = -(-(stop - start) // _RUN)
        order = RandomKey(("chunks", draw)).generator().permutation(runs)
        rows = (start + order[:, None] * _RUN + np.arange(_RUN)).ravel()
        parts.append(np.array_split(rows[rows < stop], _CHUNKS))
    if len(parts) == 1:
        chunks = tuple(parts[0])
    else:
        chunks = tuple(np.concatenate([cell[k] for cell in parts]) for k in range(_CHUNKS))
    sizes = np.array([[len(cell[k]) for cell in parts] for k in range(_CHUNKS)])
    edges = np.concatenate([np.zeros((_CHUNKS, 1), np.int64), sizes.cumsum(axis=1)], axis=1)
    return evolve(walker, chunks=chunks, edges=edges)


@client_function
def score_chunk(
    walker: Walker, block: Block, message: Chunk, rng: RandomKey
) -> tuple[Walker, ChunkScores]:
    """Send this client's part of the scores of a chunk after the last one's steps."""
    if message.number == 0:
        walker = _drawn(walker, message.draw)
    w, change, spans = walker.w, message.change, walker.before.feature_turn
    line = np.zeros((len(w), 3))
    if change is not None:
        change = np.ascontiguousarray(change)
        line[:, 0] = span_products(w, change, spans)
        line[:, 1] = span_products(change, change, spans)
        line[:, 2] = mean_products(walker.mean, change, spans)
    if message.number < 0:
        counts = np.zeros(len(walker.peers), np.int64)
        return evolve(walker, change=change), ChunkScores(np.zeros((len(w), 0)), counts, line)
    rows = walker.chunks[message.number]
    assert walker.edges is not None
    counts = np.diff(walker.edges[message.number])
    if change is None:
        z = score_rows(block.x, rows, w)
    else:
        z = score_along(block.x, rows, w, change, message.guess)
    # `rows` still names the chunk before: its steps are counted when their share is known
    return evolve(walker, change=change), ChunkScores(z, counts, line)


def mean_products(mean: Array, change: Array, spans: NDArray[np.int64]) -> Array:
    """Return the product of the mean row with each output's change, (outputs,)."""
    if len(change) == 1:
        return span_products(mean, change, spans)
    return span_products(np.repeat(mean, len(change), axis=0), change, spans)


def _counted(walker: Walker, taken: Array) -> Walker:
    """Count the share of the last steps that the server took."""
    if walker.rows is None or walker.steps is None or walker.change is None:
        return walker
    return evolve(
        walker,
        alpha=add_at(walker.alpha, walker.rows, walker.steps, taken),
        w=advanced(walker.w, walker.change, taken),
        change=None,
        rows=None,
        steps=None,
    )


def _next_chunk(walker: Walker) -> int:
    raise NotImplementedError


def _walk(
    walker: Walker, block: Block, message: ChunkTotals, number: int
) -> tuple[NDArray[np.int64], Array, Array]:
    raise NotImplementedError
