"""Stochastic dual coordinate ascent (SDCA) for L2-regularised linear models.

    primal  P(w) = λ/2 ‖w‖² + 1/N Σ_i l(wᵀx_i, y_i)
    dual    D(α) = -λ/2 ‖w(α)‖² - 1/N Σ_i l*(-α_i),   w(α) = 1/(λN) Σ_i α_i x_i

One step maximises D exactly in one α_i and moves w along x_i. P(w(α)) - D(α) bounds the distance
of both from the optimum; it is the stopping rule. One-vs-rest models carry a class axis first:
weights (outputs, features), duals and labels (outputs, samples). A row is read once for all
outputs.

Source: Shalev-Shwartz and Zhang, "Stochastic Dual Coordinate Ascent Methods for Regularized Loss
Minimization", JMLR 14 (2013), Procedure SDCA. The slice kernel is the local method of HyFDCA.

Symbols: x rows, y labels, w weights, α `alpha`, λ `regularisation`, N samples, z scores.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, issparse

from intarsia.errors import ExperimentError, TableError
from intarsia.maths.jit import ask_for_row, is_missing, reassociated
from intarsia.maths.linear.local_sdca import ascend_on_rows
from intarsia.maths.linear.losses import (
    SQUARED,
    dual_step,
    minus_conjugate,
    value,
    weighted_step,
)
from intarsia.maths.linear.products import (
    Arrays,
    add_row,
    arrays,
    gather,
    multiply_row,
    row_norms,
    scores,
)

Array = NDArray[np.float64]
Order = NDArray[np.int64]
Rows = Any  # Array (samples, features), C-contiguous; or csr_array of float64 with int32 indices


@dataclass(frozen=True, eq=False)
class Fit:
    """A solution with its certificate; the objectives are summed over the outputs."""

    w: Array  # (outputs, features)
    alpha: Array  # (outputs, samples)
    primal: float
    dual: float
    epochs: int  # passes over the rows
    tolerance: float

    @property
    def gap(self) -> float:
        """Return the relative duality gap (P - D)/P, an upper bound of P's relative error."""
        return _relative_gap(self.primal, self.dual)

    @property
    def converged(self) -> bool:
        """Return whether the gap is within the tolerance."""
        return self.gap <= self.tolerance


def _relative_gap(primal: float, dual: float) -> float:
    return (primal - dual) / max(abs(primal), float(np.finfo(float).tiny))


def as_rows(x: Any) -> Rows:
    """Return a table in the layout of the kernels, without a copy if it has it already.

    Raises
    ------
    TableError
        If a sparse table has too many entries for 32-bit indices.
    """
    if not issparse(x):
        return np.ascontiguousarray(x, np.float64)
    rows = csr_array(x)
    if not rows.has_canonical_format:
        rows = rows.copy()  # the caller's table stays as it is
        rows.sum_duplicates()
    if rows.nnz > np.iinfo(np.int32).max or rows.shape[1] > np.iinfo(np.int32).max:
        raise TableError(
            f"The sparse table has {rows.nnz} entries and {rows.shape[1]} columns; at most "
            f"{np.iinfo(np.int32).max} of each fit: split the table by rows or columns."
        )
    return csr_array(
        (
            rows.data.astype(np.float64, copy=False),
            rows.indices.astype(np.int32, copy=False),
            rows.indptr.astype(np.int32, copy=False),
        ),
        shape=rows.shape,
    )


def weights_from_duals(x: Rows, alpha: Array, regularisation: float) -> Array:
    """Return w(α) = 1/(λN) Σ_i α_i x_i, (outputs, features)."""
    return gather(x, np.atleast_2d(alpha)) / (regularisation * int(alpha.shape[-1]))


def primal_objective(
    z: Array,
    y: Array,
    w: Array,
    *,
    regularisation: float,
    loss: int,
    shape: float = 0.0,
    weights: Array | None = None,
) -> float:
    """Return P(w) from the scores z_i = wᵀx_i, (outputs, samples), summed over the outputs.

    `weights`, (samples,), multiply the losses.
    """
    data = float(value(loss, z, y, weights, shape=shape).sum()) / int(y.shape[-1])
    return data + 0.5 * regularisation * float(np.vdot(w, w))


def dual_objective(
    alpha: Array,
    y: Array,
    w: Array,
    *,
    regularisation: float,
    loss: int,
    shape: float = 0.0,
    weights: Array | None = None,
) -> float:
    """Return D(α), summed over the outputs; `w` must be w(α).

    `weights`, (samples,), multiply the losses.
    """
    data = float(minus_conjugate(loss, alpha, y, weights, shape=shape).sum()) / int(y.shape[-1])
    return data - 0.5 * regularisation * float(np.vdot(w, w))


def ascend(
    x: Rows,
    y: Array,
    norms: Array,
    alpha: Array,
    w: Array,
    order: Order,
    *,
    regularisation: float,
    loss: int,
    shape: float = 0.0,
    weights: Array | None = None,
) -> None:
    """Take one exact dual step on each row of `order`, updating `alpha` and `w` in place.

    `norms` are the squared norms of the rows. On entry and on return w = w(α). One output may be
    given without its axis: y, alpha (samples,), w (features,). `weights`, (samples,), multiply the
    losses.
    """
    y, alpha, w = np.atleast_2d(y, alpha, w)
    scale = 1.0 / (regularisation * y.shape[1])
    _ascend(arrays(x), y, norms, alpha, w, order, scale, loss, shape, weights)


def ascend_slice(
    x: Rows,
    y: Array,
    alpha: Array,
    z: Array,
    curvature: Array,
    row_scale: Array,
    order: Order,
    *,
    sigma: float,
    regularised_samples: float,
    loss: int,
    shape: float = 0.0,
    weights: Array | None = None,
) -> Array:
    """Return the steps Δα, (outputs, samples), that one client takes on its slices of the rows.

    The client sees x_{k,i}, a part of x_i. It multiplies it by `row_scale`, ‖x_i‖/‖x_{k,i}‖, so
    that its Gram matrix has the true diagonal, and follows the scores through its own steps:
    z_i + σ/(λN) x̃_iᵀ Σ_j Δα_j x̃_j. Where ‖x_{k,i}‖ = 0 give the scale 0.

    Parameters
    ----------
    x : the client's slices, (samples, features)
    y, alpha, z : (outputs, samples), labels, duals and full scores x_iᵀw at the start
    curvature : (samples,), ‖x_i‖²/(λN) of the full rows; multiplied by σ here
    row_scale : (samples,)
    order : row numbers to step on, in this order; a row may come more than once
    sigma : σ ≥ 1 damps the steps against those that others take at the same time; with 1, one
        client and row scale 1 this is `ascend`
    regularised_samples : λN, N counting the samples of all clients
    weights : (samples,), multiply the losses; None: 1
    """
    y, alpha, z = np.atleast_2d(y, alpha, z)
    coupling = sigma / regularised_samples
    given = (y, alpha, z, sigma * curvature, row_scale, order, coupling, loss, shape)
    return ascend_on_rows(arrays(x), *given, None, x.shape[1], weights)


def fit(
    x: Rows,
    y: Array,
    *,
    loss: int,
    shape: float = 0.0,
    regularisation: float,
    tolerance: float = 1e-6,
    epochs: int = 1000,
    rng: np.random.Generator,
    weights: Array | None = None,
    watch: Callable[[int], object] | None = None,
) -> Fit:
    """Return the optimum for all outputs, to the relative duality gap `tolerance`.

    Stops after `epochs` passes at the latest; `Fit.converged` tells which. y is (outputs, samples)
    or (samples,), -1 and +1 for the losses of classification. `weights`, (samples,), above 0,
    multiply the losses, whose sum is divided by N all the same. `watch` is called after each pass
    with its number.

    Raises
    ------
    ExperimentError
        If `regularisation` is not a positive number.
    TableError
        If there is no row.
    """
    if not (regularisation > 0.0 and np.isfinite(regularisation)):
        raise ExperimentError(
            f"regularisation is {regularisation}; it must be a positive finite number, "
            "for example 1e-3."
        )
    x = as_rows(x)
    y = np.ascontiguousarray(np.atleast_2d(y), np.float64)
    outputs, samples = y.shape
    if samples == 0:
        raise TableError("The table has 0 rows; training needs at least one labelled sample.")
    problem: dict[str, Any] = {"regularisation": regularisation, "loss": loss, "shape": shape}
    problem["weights"] = weights
    objective = partial(_objectives, problem, x, y)
    norms = row_norms(x)
    alpha, w = np.zeros((outputs, samples)), np.zeros((outputs, x.shape[1]))
    primal, dual = objective(alpha, w)
    done, check = 0, 1
    while done < epochs:
        order = rng.permutation(samples)
        ascend(x, y, norms, alpha, w, order, **problem)
        done += 1
        if watch is not None:
            watch(done)
        if done in (check, epochs):
            primal, dual = objective(alpha, w)
            if _relative_gap(primal, dual) <= tolerance or done == epochs:
                # w has gathered the rounding of every step: certify w(α) itself
                w = weights_from_duals(x, alpha, regularisation)
                primal, dual = objective(alpha, w)
                if _relative_gap(primal, dual) <= tolerance:
                    break
            # a check costs about half an epoch: at most a tenth of the work
            check = done + min(max(1, done // 4), 10)
    return Fit(w, alpha, primal, dual, done, tolerance)


def lacks_kernels() -> bool:
    """Return whether `fit` would have to compile what could be kept on disk."""
    return is_missing(_ascend)


def compile_kernels(*, sparse: bool, weighted: bool) -> None:
    """Let `fit` compile what it runs for tables of a kind, by fitting a small one."""
    rows = csr_array(np.eye(2)) if sparse else np.eye(2)
    fit(
        rows,
        np.ones((1, 2)),
        loss=SQUARED,
        regularisation=1.0,
        epochs=1,
        rng=np.random.default_rng(0),
        weights=np.ones(2) if weighted else None,
    )


def _objectives(
    problem: dict[str, Any], x: Rows, y: Array, alpha: Array, w: Array
) -> tuple[float, float]:
    return primal_objective(scores(x, w), y, w, **problem), dual_objective(alpha, y, w, **problem)


@reassociated
def _ascend(
    x: Arrays,
    y: Array,
    norms: Array,
    alpha: Array,
    w: Array,
    order: Order,
    scale: float,
    loss: int,
    shape: float,
    weights: Array | None,
) -> None:
    for turn in range(len(order)):
        ask_for_row(x, order, turn)
        i = order[turn]
        for c in range(y.shape[0]):
            z = multiply_row(x, i, w[c])
            if weights is None:
                step = dual_step(loss, alpha[c, i], y[c, i], z, norms[i] * scale, shape)
            else:
                q, weight = norms[i] * scale, weights[i]
                step = weighted_step(loss, alpha[c, i], y[c, i], z, q, weight, shape)
            if step != 0.0:
                alpha[c, i] += step
                add_row(x, i, step * scale, w[c])
