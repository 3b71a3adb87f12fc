"""Traces of the roots of the classes' covariances in a batch, in the space of the samples.

A class with the centred, weighted rows X, (n, k), has the covariance XᵀX, and W₂ needs

    tr (XᵀX)^½ = ‖X‖_*        tr (B^½ XᵀX B^½)^½ = ‖XYᵀ‖_*  for  B = YᵀY

the sums of singular values. MᵀM and MMᵀ have the same eigenvalues but for zeros, so that the
smaller one is decomposed; and classes that a batch does not have cost nothing. Which rows are whose
differs from learner to learner, hence an operation of its own, which takes the rows of many
learners at once: compiled on a CPU (`inverse_roots`), elsewhere in torch's functions. It gives the
slopes too, (MMᵀ + ε)^-½ M Y of M = XYᵀ for the smoothed roots √(λ + ε) - √ε.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from intarsia.errors import ConvergenceError
from intarsia.maths.matching.inverse_roots import inverse_roots_of_classes
from intarsia.maths.matching.learner_operations import define_operation, stack_of
from intarsia.maths.training.torch_import import Tensor, nn, torch

_STEP = 8  # classes of so many rows more are decomposed together, filled up with zeros


def root_trace(
    rows: Tensor, y: Tensor, classes: int, smoothing: float, others: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return Σ √(λ + ε) - √ε over all classes, λ the eigenvalues of XYᵀYXᵀ, and its slopes.

    The slopes, (rows, k), are those along X. They are finite, and do not depend on the choice of
    basis vectors where eigenvalues agree. Several learners may stand in front of all axes.

    Parameters
    ----------
    rows
        X of all classes, (rows, k), without gradients.
    y
        Each row's class, (rows,); `classes` for rows that do not count.
    smoothing
        ε > 0
    others
        Y, (rows, k), with as many rows in each class; None: YᵀY is the identity.

    Raises
    ------
    ConvergenceError
        If a covariance has no eigenvalues, as where it is not finite.
    """
    found: tuple[Tensor, Tensor] = _roots(
        rows, y, rows[..., :0] if others is None else others, classes, smoothing
    )
    return found


def _decomposed(
    rows: Tensor, y: Tensor, others: Tensor, classes: int, smoothing: float
) -> tuple[Tensor, Tensor]:
    """Return the sum of the traces, (...,), and the slopes, (..., rows, k)."""
    width, length = rows.shape[-1], y.shape[-1]
    owner = y.reshape(-1, length).cpu().numpy()
    first = classes * np.arange(len(owner))[:, None]
    label = np.where(owner < classes, owner + first, len(owner) * classes).reshape(-1)
    laid = _Laid.of(label, len(owner) * classes)
    order = torch.from_numpy(laid.order).to(rows.device)
    # the row behind all others is zero: classes of similar size are filled up with it
    own = nn.functional.pad(rows.reshape(-1, width), (0, 0, 0, 1)).index_select(0, order)
    other = None
    if others.numel():
        other = nn.functional.pad(others.reshape(-1, width), (0, 0, 0, 1)).index_select(0, order)
    slopes, traces = torch.zeros_like(own), [rows.new_zeros(0)]
    for start, size, count in laid.groups:
        part = slice(start, start + size * count)
        theirs = None if other is None else other[part].view(count, size, width)
        trace, slope = _roots_of(own[part].view(count, size, width), theirs, smoothing)
        traces.append(trace)
        slopes[part] = slope.view(-1, width)
    learner = torch.from_numpy(laid.classes // classes).to(rows.device)
    total = rows.new_zeros(len(owner)).index_add_(0, learner, torch.cat(traces))
    back = torch.from_numpy(laid.back).to(rows.device)
    return total.view(y.shape[:-1]), slopes.index_select(0, back).view(rows.shape)


def diverging() -> ConvergenceError:
    """Return what says that there are no eigenvalues."""
    return ConvergenceError(
        "The covariance of a class's embedded rows has no eigenvalues that can be found, as where "
        "it is not finite: training diverges; lower algorithm.rate, or standardise the features."
    )


def _on_cpu(
    rows: Tensor, y: Tensor, others: Tensor, classes: int, smoothing: float
) -> tuple[Tensor, Tensor]:
    """Return the same by a compiled function, which takes a third of the time on a CPU."""
    arrays = (stack_of(rows, 2), stack_of(others, 2), stack_of(y, 1))
    traces, slopes, found = inverse_roots_of_classes(*arrays, classes, smoothing)
    if not found:
        raise diverging()
    return torch.from_numpy(traces).view(y.shape[:-1]), torch.from_numpy(slopes).view(rows.shape)


def _shaped(
    rows: Tensor, y: Tensor, others: Tensor, classes: int, smoothing: float
) -> tuple[Tensor, Tensor]:
    """Return tensors of the shapes of the result, for the compiler."""
    slopes = torch.empty_like(rows, memory_format=torch.contiguous_format)
    return rows.new_empty(y.shape[:-1]), slopes


_roots, _LIBRARY = define_operation(
    "intarsia",
    "covariance_roots(Tensor rows, Tensor y, Tensor others, int classes, float smoothing)"
    " -> (Tensor, Tensor)",
    _decomposed,
    _shaped,
    _on_cpu,
)


@dataclass(frozen=True, eq=False)
class _Laid:
    """The rows of all learners' classes one after the other, those of similar size together."""

    order: NDArray[np.int64]  # the row at each place
    back: NDArray[np.int64]  # each row's place; a row of no class has a place without one
    groups: list[tuple[int, int, int]]  # first place, rows of a class, number of classes
    classes: NDArray[np.int64]  # which they are

    @staticmethod
    def of(label: NDArray[np.int64], classes: int) -> _Laid:
        """Return where rows with these classes lie; `classes` stands for none."""
        sorted_rows = np.argsort(label, kind="stable")
        counts = np.bincount(label, minlength=classes + 1)
        starts = np.cumsum(counts) - counts
        sizes = -(-counts[:classes] // _STEP) * _STEP
        by_size = np.argsort(sizes, kind="stable")
        firsts = np.zeros(classes + 1, np.int64)
        firsts[by_size] = np.cumsum(sizes[by_size]) - sizes[by_size]
        length = int(sizes.sum())
        firsts[classes] = length  # behind all classes
        inside = np.arange(len(label)) - starts[label[sorted_rows]]
        places = firsts[label[sorted_rows]] + inside
        order = np.full(length + int(counts[classes]) + 1, len(label))
        order[places] = np.where(label[sorted_rows] < classes, sorted_rows, len(label))
        back = np.empty(len(label), np.int64)
        back[sorted_rows] = places
        there = by_size[sizes[by_size] > 0]
        found, counted = np.unique(sizes[there], return_counts=True)
        begins = np.cumsum(found * counted) - found * counted
        groups = list(zip(begins.tolist(), found.tolist(), counted.tolist(), strict=True))
        return _Laid(order, back, groups, there)


def _roots_of(rows: Tensor, others: Tensor | None, smoothing: float) -> tuple[Tensor, Tensor]:
    """Return the traces, (classes,), and the slopes, (classes, n, k), of stacked rows."""
    product = rows if others is None else rows @ others.mT
    small = product.shape[1] <= product.shape[2]
    squares = product @ product.mT if small else product.mT @ product
    try:  # to look at every number before would take a sixteenth of the decomposition's time
        values, vectors = torch.linalg.eigh(squares)
    except torch.linalg.LinAlgError:
        raise diverging() from None
    roots = values.clamp_(min=0.0).add_(smoothing).sqrt_()
    inverse = (vectors / roots[:, None, :]) @ vectors.mT
    slopes = inverse @ product if small else product @ inverse
    traces = roots.sum(1) - roots.shape[1] * smoothing**0.5
    return traces, slopes if others is None else slopes @ others
