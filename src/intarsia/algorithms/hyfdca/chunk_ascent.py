"""Dual ascent in chunks, coupled through the mean row: the phase of HyFDCA that starts on text.

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

from dataclasses import dataclass
from typing import Any

import numpy as np

from intarsia.algorithms.hyfdca import minibatch_ascent
from intarsia.algorithms.hyfdca.minibatch_ascent import (
    CHUNKS,
    Chunk,
    ChunkTotals,
    Departure,
    Direction,
    Evaluate,
    Settle,
    Survey,
    TakenSteps,
    Walker,
    depart,
    evaluate,
    find_steps,
    score_all,
    score_chunk,
    score_direction,
    settle,
    step_chunk,
    sum_rows,
    take_steps,
)
from intarsia.core.algorithm import Clients, Info, RandomKey, evolve
from intarsia.core.block import Array

__all__ = [
    "FUNCTIONS",
    "STATES",
    "ChunkAscent",
    "Walker",
    "begin",
    "certify",
    "exhausted",
    "step",
]

_RISE = 0.002  # of the dual in a round, below which the phase has done its part
_ROUNDS = 40  # at most


@dataclass(frozen=True)
class ChunkAscent:
    """The server's state; arrays are (outputs,)."""

    loss: int
    regularisation: float
    samples: int  # N
    shared_labels: bool  # whether every owner of a labelled sample has its label
    dual: Array  # D
    rise: float = np.inf  # of the dual in the last round, relative
    rounds: int = 0
    alpha: Any = None  # sealed (outputs, samples)
    dual_weights: Any = None  # sealed (outputs, features) w(α)


def begin(
    clients: Clients,
    *,
    loss: int,
    regularisation: float,
    samples: int,
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
    ascent = evolve(
        ascent,
        dual=dual,
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


FUNCTIONS = minibatch_ascent.FUNCTIONS
STATES = (ChunkAscent, *minibatch_ascent.STATES)
