"""Frames: bases in which others see rows and the Hessian, and that the features' owners alone know.

In plain mode one frame is shared by all owners, and chosen samples in it make the Hessian. Where
Newton's system is shared each feature cell has a secret basis, which turns in each step.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lapack
from scipy.sparse import csr_array

from intarsia import core as fl
from intarsia.algorithms.hyfdca.newton.point import Point
from intarsia.core.block import Array, Block, Values
from intarsia.maths.linear.products import project_rows, row_norms

LARGEST = 2.0  # what a secret basis stretches by, at most
_AT_ONCE = 8192  # rows in the frame that are copied at once


@fl.describe(frame="random directions", squares="mean squares of columns")
class Frame:
    """A client's random part of the frame."""

    frame: fl.PerFeature  # (frame, features)
    squares: fl.PerFeature | None = None  # (features,) mean squares, where there is a frame


@dataclass(frozen=True)
class OwnFrame:
    """The totals of Frame for the owners of the features."""

    frame: fl.PerFeature
    squares: fl.PerFeature | None = None


@fl.client_function
def keep_frame(point: Point, block: Block, message: OwnFrame) -> tuple[Point, fl.Ready]:
    """Keep the frame of the client's own features."""
    assert message.squares is not None
    scale = column_scale(message.squares, point.regularisation)
    if point.shared:
        basis = _secret_basis(message.frame, point.feature_cells, scale)
        reach = LARGEST**2 * row_norms(_scaled(block.x, scale))
        turns = tuple(
            hashlib.blake2b(
                np.ascontiguousarray(message.frame[:, start:stop]).tobytes(),
                digest_size=fl.SecretKey.SIZE,
            ).digest()
            for start, stop in point.feature_cells
        )
        given = {"scale": scale, "reach": reach, "basis": basis, "turns": turns}
        return fl.evolve(point, **given), fl.Ready()
    # columns of very different sizes would leave the system no digits
    return _in_frame(point, message.frame / scale), fl.Ready()


def _in_frame(point: Point, frame: Array) -> Point:
    """Return the state with another frame, and the ridge in it."""
    frame = np.ascontiguousarray(frame.T).T
    ridge = point.regularisation * ((frame * point.feature_share) @ frame.T)
    return fl.evolve(point, frame=frame, ridge=ridge)


def turn_basis(point: Point, number: int) -> Point:
    """Return the state in the secret basis of a step: that of the phase, turned at random.

    The owners of a feature cell turn it alike. Who sees matrices in two of these bases cannot tell
    which directions of the one are which of the other.
    """
    frame = np.zeros_like(point.basis)
    for (start, stop), secret in zip(point.feature_cells, point.turns, strict=True):
        size = stop - start
        words = fl.SecretKey(secret).fold_in(number).words(size * size).view(np.int64)
        factors, scalars, _, _ = lapack.dgeqrf(words.reshape(size, size) * 2.0**-63)
        turn, _, _ = lapack.dorgqr(factors, scalars)
        frame[start:stop, start:stop] = turn.T @ point.basis[start:stop, start:stop]
    return _in_frame(point, frame)


def column_scale(squares: Array, regularisation: float) -> Array:
    """Return about the size of each column, a power of 2; not less than matters to the ridge."""
    return np.asarray(np.exp2(np.rint(0.5 * np.log2(np.maximum(squares, regularisation)))))


def _scaled(x: Values, scale: Array) -> Values:
    """Return values with each column divided by its size."""
    if isinstance(x, csr_array):
        return csr_array((x.data / scale[x.indices], x.indices, x.indptr), shape=x.shape)
    return x / scale


def _secret_basis(drawn: Array, cells: Sequence[tuple[int, int]], scale: Array) -> Array:
    """Return Pᵀ, a block for each feature cell, of normal numbers that its owners share.

    P divides by the columns' sizes, then turns, stretches by ½ to 2, and turns again.
    """
    basis = np.zeros((len(scale), len(scale)))
    for start, stop in cells:
        size = stop - start
        numbers = drawn[:size, start:stop] * np.sqrt(len(drawn) / size)
        left, stretch, right = np.linalg.svd(numbers)
        block = (left * np.clip(stretch, 1 / LARGEST, LARGEST)) @ right
        basis[start:stop, start:stop] = (block / scale[start:stop, None]).T
    return basis


def project_new(
    point: Point, block: Block, selected: NDArray[np.int64]
) -> tuple[Array, NDArray[np.int64]]:
    """Return the rows in the frame of samples not selected before, and how many of each cell."""
    new = selected[~point.known[selected]]
    return project_rows(block.x, new, point.frame), counts_by_cell(point, new)


def counts_by_cell(point: Point, selected: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how many of some ascending samples are in each of the client's cells."""
    if len(point.sample_cells) == 1:
        return np.array([len(selected)])
    return np.diff(np.searchsorted(selected, [cell[1] for cell in point.sample_cells]), prepend=0)


def remember(point: Point, rows: Array) -> Point:
    """Keep the newly selected samples whose turn is this client's."""
    new = point.selected[~point.known[point.selected]]
    if not len(new):
        return point
    turn = turn_of(point, new)
    known, slot = point.known.copy(), point.slot.copy()
    known[new] = True
    slot[new[turn]] = len(point.framed) + np.arange(len(turn))
    framed = np.empty((len(point.framed) + len(turn), len(rows)))
    framed[: len(point.framed)] = point.framed
    for start in range(0, len(turn), _AT_ONCE):
        some = turn[start : start + _AT_ONCE]
        framed[len(point.framed) + start :][: len(some)] = rows[:, some].T
    return fl.evolve(point, known=known, slot=slot, framed=framed)


def turn_of(point: Point, selected: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the places of the ascending samples that this client adds up for their owners."""
    places: list[NDArray[np.int64]] = []
    begin = 0
    for start, stop, holders, rank in point.sample_cells:
        end = int(np.searchsorted(selected, stop))
        # by the place in the cell, which is the same at all its owners
        places.append(begin + ((selected[begin:end] - start) % holders == rank).nonzero()[0])
        begin = end
    return places[0] if len(places) == 1 else np.concatenate(places)


def hessian_in_frame(point: Point) -> Array:
    """Return this client's part of the Hessian in the frame, (outputs, frame, frame)."""
    turn = turn_of(point, point.selected)
    slots = point.slot[point.selected[turn]]
    outputs, size = len(point.curvature), len(point.frame)
    scale = np.sqrt(point.curvature[:, turn] / point.samples)
    hessian = np.zeros((outputs, size, size))
    for start in range(0, len(slots), _AT_ONCE):
        some = slice(start, start + _AT_ONCE)
        rows = point.framed[slots[some]]
        for c in range(outputs):
            scaled = np.multiply(rows, scale[c, some, None], out=rows if c == outputs - 1 else None)
            hessian[c] += scaled.T @ scaled
    hessian += point.ridge
    return hessian
