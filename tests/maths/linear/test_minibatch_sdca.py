"""Dual steps that are coupled through the mean row, against steps on such a Gram matrix."""

import numpy as np
import pytest

from federations import ON_SIGNS
from intarsia.maths.linear import losses
from intarsia.maths.linear.minibatch_sdca import (
    add_at,
    advanced,
    coupled_steps,
    line_products,
    span_products,
)

EVERY_LOSS = pytest.mark.parametrize("loss", ON_SIGNS)


def problem(loss, outputs=1):
    rng = np.random.default_rng(3)
    y = np.where(rng.random(8) < 0.5, 1.0, -1.0)
    labels = np.arange(8.0) % 3 if outputs > 1 else y
    signs = np.where(labels == np.arange(outputs)[:, None], 1.0, -1.0) if outputs > 1 else y[None]
    alpha = 0.3 * signs * rng.random((outputs, 8))
    z = rng.normal(size=(outputs, 8))
    return labels, signs, alpha, z, 0.5 + rng.random(8), rng.normal(size=8) * 0.4


@EVERY_LOSS
def test_one_walk_is_coordinate_ascent_where_rows_differ_along_the_mean_alone(loss):
    labels, signs, alpha, z, norms, along = problem(loss)
    code, scale = losses.loss_code(loss), 0.7
    everyone = np.ones(8, bool)
    rows = np.array([5, 0, 3, 1])
    steps, sums = coupled_steps(
        code, labels, alpha, z[:, rows], norms, along, rows,
        np.array([0, 4]), np.ones(1), scale, everyone, everyone,
    )  # fmt: skip
    gram = np.outer(along, along)
    np.fill_diagonal(gram, norms)
    new, score = alpha[0].copy(), z[0].copy()
    for i in rows:
        step = losses.dual_step(code, new[i], signs[0, i], score[i], scale * gram[i, i])
        new[i] += step
        score += scale * gram[i] * step
    np.testing.assert_allclose(steps[0], (new - alpha[0])[rows], atol=1e-12)
    # slope and bend rebuild the dual's data term
    before = losses.minus_conjugate(code, alpha[0, rows], signs[0, rows]).sum()
    after = losses.minus_conjugate(code, new[rows], signs[0, rows]).sum()
    if loss != "logistic":
        assert sums[0, 0] - 0.5 * sums[0, 1] == pytest.approx(after - before, abs=1e-12)


@EVERY_LOSS
def test_the_slope_is_that_of_the_dual(loss):
    labels, signs, alpha, z, norms, along = problem(loss)
    code, everyone, rows = losses.loss_code(loss), np.ones(8, bool), np.arange(8)
    steps, sums = coupled_steps(
        code, labels, alpha, z, norms, along, rows,
        np.array([0, 8]), np.ones(1), 0.7, everyone, everyone,
    )  # fmt: skip
    values = [
        losses.minus_conjugate(code, alpha + share * steps, signs).sum() for share in (0, 1e-6)
    ]
    assert sums[0, 0] == pytest.approx((values[1] - values[0]) / 1e-6, rel=1e-3, abs=1e-5)


def test_walks_do_not_see_each_other_and_outputs_are_apart():
    labels, signs, alpha, z, norms, along = problem("hinge", outputs=3)
    active = np.array([True] * 7 + [False])
    rows = np.arange(8)

    def walk(rows, edges, peers):
        return coupled_steps(
            losses.HINGE, labels, alpha, z[:, rows], norms, along, rows, edges,
            peers, 0.7, active, active,
        )[0]  # fmt: skip

    both = walk(rows, np.array([0, 3, 8]), np.array([2.0, 4.0]))
    first = walk(rows[:3], np.array([0, 3]), np.array([2.0]))
    second = walk(rows[3:], np.array([0, 5]), np.array([4.0]))
    np.testing.assert_array_equal(both, np.concatenate([first, second], axis=1))
    assert (both[:, 7] == 0).all()
    beta = signs * (alpha + both)
    assert ((beta >= 0) & (beta <= 1)).all()


def test_vector_kernels():
    rng = np.random.default_rng(0)
    w, change = rng.normal(size=(2, 7)), rng.normal(size=(2, 7))
    share, spans = np.array([0.5, 2.0]), np.array([[0, 2], [4, 5]])
    held = [0, 1, 4]
    np.testing.assert_allclose(advanced(w, change, share), w + share[:, None] * change)
    np.testing.assert_allclose(span_products(w, change, spans), (w * change)[:, held].sum(axis=1))
    expected = [w * change, change**2]
    np.testing.assert_allclose(
        line_products(w, change, spans),
        np.stack([e[:, held].sum(axis=1) for e in expected], 1),
    )
    moved = w.copy()
    moved[:, [6, 1]] += share[:, None] * change[:, :2]
    np.testing.assert_allclose(add_at(w, np.array([6, 1]), change[:, :2], share), moved)
