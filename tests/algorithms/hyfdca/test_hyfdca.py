"""HyFDCA by the paper: dual ascent, its reductions, and clients that are away."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_array

from federations import (
    BINARY,
    ON_SIGNS,
    block,
    in_order,
    objective,
    optimum,
    rectangles,
    started,
    table,
    train,
)
from intarsia.algorithms.hyfdca.algorithm import HYFDCA
from intarsia.algorithms.hyfdca.state import HyFDCA
from intarsia.core.block import Block, Labels
from intarsia.core.client_functions import RandomKey
from intarsia.errors import ConvergenceError, ExperimentError
from intarsia.maths.linear import losses, sdca
from intarsia.maths.linear.products import row_norms

EVERY_LOSS = pytest.mark.parametrize("loss", ON_SIGNS)
LAYOUTS = pytest.mark.parametrize("layout", [np.ascontiguousarray, csr_array])
GRIDS = {
    "one client": {"rows": 1, "columns": 1},
    "horizontal": {"rows": 3, "columns": 1},
    "vertical": {"rows": 1, "columns": 3},
    "grid": {"rows": 2, "columns": 2},
    "overlaps": {"rows": 2, "columns": 2, "shared_rows": 9, "shared_columns": 2},
}
EVERY_GRID = pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS)


def ascent(**options):
    return HyFDCA(**{"method": "ascent", "regularisation": 0.1, **options})


def weights(blocks, options, *, rounds=40, labels=BINARY, present=lambda number: None, seed=0):
    """Return the weights after some rounds, in the order of the pooled table's columns."""
    engine, server = started(HYFDCA, options, blocks, labels, seed)
    conclusion = train(HYFDCA, engine, server, rounds, present=present)
    return in_order(engine.schema("train"), conclusion.weights), conclusion


# -- reductions


@EVERY_LOSS
@LAYOUTS
def test_one_client_is_dual_coordinate_ascent(loss, layout):
    x, y = table()
    options = ascent(loss=loss, step="fixed", gamma=1.0)
    engine, server = started(HYFDCA, options, {"only": block(layout(x), y, range(60), range(6))})
    alpha, w = np.zeros((1, 60)), np.zeros((1, 6))
    for number in range(1, 11):
        engine.begin_round(number)
        server, _ = HYFDCA.round(server, engine, engine.key())
        # the order that the client drew in this round
        order = RandomKey((0, number, 1, "only", "local_dual_ascent")).generator().permutation(60)
        sdca.ascend(
            layout(x),
            y,
            row_norms(x),
            alpha,
            w,
            order,
            regularisation=0.1,
            loss=losses.loss_code(loss),
        )
        state = engine.get_states()["only"]
        np.testing.assert_allclose(state.alpha_trial, alpha, rtol=0, atol=1e-12)
        np.testing.assert_allclose(state.w_trial, w, rtol=0, atol=1e-12)


@EVERY_GRID
def test_permuted_tables_change_no_bit(grid):
    x, y = table()
    blocks = rectangles(x, y, **grid)
    rng = np.random.default_rng(3)
    mixed = {
        name: one.take(rng.permutation(one.shape[0]), rng.permutation(one.shape[1]))
        for name, one in blocks.items()
    }
    first, second = (weights(held, ascent(), rounds=5)[0] for held in (blocks, mixed))
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("method", ["practical", "paper"])
def test_classes_are_as_many_binary_trainings(method):
    x, _ = table()
    classes = np.arange(60) % 3 + 0.0
    options = ascent(step="fixed", gamma=0.5, local_method=method)
    three, _ = weights(
        rectangles(x, classes, 2, 2), options, labels=Labels("multiclass", ("a", "b", "c"))
    )
    for number in range(3):
        own = np.where(classes == number, 1.0, -1.0)
        alone, _ = weights(rectangles(x, own, 2, 2), options)
        np.testing.assert_allclose(three[number], alone[0], rtol=0, atol=1e-12)


def test_the_secure_sums_are_exact_under_overlaps():
    # w is the sum of α_i x_i/(λN) over the pooled table, z its product with the weights
    x, y = table()
    blocks = rectangles(x, y, 2, 2, shared_rows=9, shared_columns=2)
    blocks["copy"] = blocks["r0c0"]
    engine, server = started(HYFDCA, ascent(), blocks)
    for number in range(1, 6):
        engine.begin_round(number)
        server, _ = HYFDCA.round(server, engine, engine.key())
    schema = engine.schema("train")
    alpha, w, z = (engine.reveal(total)[0] for total in (server.alpha, server.w, server.z))
    rows = schema.samples.ids
    expected = x[rows].T @ alpha / (0.1 * 60)
    np.testing.assert_allclose(in_order(schema, w[None])[0], expected, rtol=0, atol=1e-13)
    np.testing.assert_allclose(z, x[rows] @ expected, rtol=0, atol=1e-12)


# -- convergence of dual ascent alone


@pytest.mark.parametrize(
    ("grid", "loss"),
    [
        pytest.param(
            GRIDS[grid],
            loss,
            id=f"{grid}-{loss}",
            marks=[pytest.mark.slow] * (grid != "overlaps" and loss != "hinge"),
        )
        for grid in GRIDS
        for loss in ON_SIGNS
    ],
)
def test_dual_ascent_reaches_the_optimum(loss, grid):
    x, y = table()
    code = losses.loss_code(loss)
    best = objective(
        x, y, optimum(x, y, loss=code, regularisation=0.1), loss=code, regularisation=0.1
    )
    w, conclusion = weights(rectangles(x, y, **grid), ascent(loss=loss), rounds=150)
    primal = objective(x, y, w[0], loss=code, regularisation=0.1)
    assert conclusion.info.primal == pytest.approx(primal, rel=1e-11)
    assert conclusion.info.dual <= best * (1 + 1e-6)
    assert primal == pytest.approx(best, rel=2e-3)


def test_the_dual_never_falls_with_the_line_search():
    x, y = table()
    engine, server = started(HYFDCA, ascent(), rectangles(x, y, 2, 2, shared_rows=5))
    duals = []
    for number in range(1, 30):
        engine.begin_round(number)
        server, info = HYFDCA.round(server, engine, engine.key())
        duals.append(info.dual)
    assert (np.diff(duals) >= -1e-14).all()
    assert duals[-1] > duals[1]


@pytest.mark.parametrize(
    "options",
    [
        {"local_samples": 0.3},
        {"local_method": "paper", "step": "fixed", "gamma": 0.3},
        {"step": "fixed", "gamma": 0.3},
    ],
    ids=str,
)
def test_every_variant_of_the_paper_makes_the_gap_small(options):
    x, y = table(200, 6)
    _, conclusion = weights(rectangles(x, y, 2, 2), ascent(**options), rounds=150)
    assert conclusion.info.gap_relative < 0.05


# -- partial participation


def random_there(share, names, seed=0):
    def present(number):
        drawn = np.random.default_rng([seed, number]).permutation(len(names))
        return [names[k] for k in sorted(drawn[: max(1, round(share * len(names)))])]

    return present


def cyclic(turns, names):
    return lambda number: [n for k, n in enumerate(names) if k % turns == (number - 1) % turns]


@pytest.mark.parametrize(
    ("loss", "pattern", "shared"),
    [
        pytest.param("hinge", "half", 0, marks=pytest.mark.slow),
        ("hinge", "cyclic", 9),
        ("logistic", "quarter", 9),
        pytest.param("squared", "half", 0, marks=pytest.mark.slow),
    ],
)
def test_with_clients_away_the_gap_becomes_small(loss, pattern, shared):
    x, y = table(120, 6)
    blocks = rectangles(x, y, 2, 2, shared_rows=shared)
    names = list(blocks)
    present = {
        "half": random_there(0.5, names),
        "quarter": random_there(0.25, names),
        "cyclic": cyclic(2, names),
    }[pattern]
    w, conclusion = weights(blocks, ascent(loss=loss), rounds=200, present=present)
    code = losses.loss_code(loss)
    primal = objective(x, y, w[0], loss=code, regularisation=0.1)
    assert conclusion.info.primal == pytest.approx(primal, rel=1e-11)
    assert conclusion.info.gap_relative < 0.02


@EVERY_LOSS
def test_auto_falls_back_to_ascent_and_returns_to_newton(loss):
    x, y = table(120, 8)
    blocks = rectangles(x, y, 2, 2, shared_rows=9, shared_columns=2)
    names = list(blocks)
    options = HyFDCA(loss=loss, regularisation=0.1)
    engine, server = started(HYFDCA, options, blocks)
    away = random_there(0.5, names)
    phases = []
    for number in range(1, 60):
        complete = number <= 2 or number > 20
        engine.begin_round(number, None if complete else away(number))
        server, info = HYFDCA.round(server, engine, engine.key())
        phases.append(info.phase)
        if number > 21 and info.gap_relative is not None and info.gap_relative < 1e-9:
            break
    assert phases[1] == "newton"
    assert set(phases[2:21]) == {"proximal ascent"}  # one round more, lest one client blinks
    assert set(phases[21:]) == {"newton"}
    engine.begin_round(99)
    conclusion = HYFDCA.conclude(server, engine, engine.key())
    w = in_order(engine.schema("train"), conclusion.weights)[0]
    code = losses.loss_code(loss)
    best = optimum(x, y, loss=code, regularisation=0.1)
    found, bound = (objective(x, y, v, loss=code, regularisation=0.1) for v in (w, best))
    assert found == pytest.approx(bound, rel=1e-7)
    assert conclusion.info.gap_relative < 1e-8


@pytest.mark.parametrize("grid", ["horizontal", "vertical", "overlaps"])
def test_who_returns_catches_up_with_what_it_missed(grid):
    x, y = table()
    blocks = rectangles(x, y, **GRIDS[grid])
    names = list(blocks)
    engine, server = started(HYFDCA, ascent(step="fixed"), blocks)
    # away from the start; away after a whole round; two that return at different times
    there = {1: names[1:], 2: names[1:], 5: names[:-1], 6: names[1:-1], 7: names[1:], 10: names[1:]}
    for number in range(1, 11):
        engine.begin_round(number, there.get(number))
        server, _ = HYFDCA.round(server, engine, engine.key())
    engine.begin_round(12)
    server, info = HYFDCA.certify(server, engine, engine.key())
    schema = engine.schema("train")
    alpha, w = (engine.reveal(total)[0] for total in (server.alpha, server.w))
    expected = x[schema.samples.ids].T @ alpha / (0.1 * 60)
    np.testing.assert_allclose(in_order(schema, w[None])[0], expected, rtol=0, atol=1e-12)
    if grid != "horizontal":  # there the clients have the scores from w
        z = engine.reveal(server.z)[0]
        np.testing.assert_allclose(z, x[schema.samples.ids] @ expected, rtol=0, atol=1e-12)
    primal = objective(x, y, expected, loss=losses.HINGE, regularisation=0.1)
    assert info.primal == pytest.approx(primal, rel=1e-11)


# -- who has labels, ids and features


@pytest.mark.parametrize("options", [ascent(), HyFDCA(regularisation=0.1)], ids=["ascent", "auto"])
def test_one_party_with_labels_is_enough(options):
    x, y = table(120, 8)
    everywhere = rectangles(x, y, 1, 3)
    first = rectangles(x, y, 1, 3, labels="first")
    assert [name for name, one in first.items() if one.y is not None] == ["r0c0"]
    (_, one), (_, other) = (weights(held, options, rounds=60) for held in (everywhere, first))
    assert other.info.primal == pytest.approx(one.info.primal, rel=1e-2)
    best = optimum(x, y, loss=losses.HINGE, regularisation=0.1)
    bound = objective(x, y, best, loss=losses.HINGE, regularisation=0.1)
    assert other.info.primal == pytest.approx(bound, rel=1e-2)


def test_samples_with_labels_at_one_of_several_owners_count_once():
    x, y = table(120, 8)
    blocks = rectangles(x, y, 2, 2, shared_rows=20)
    rng = np.random.default_rng(0)
    for name in ("r0c1", "r1c0"):
        one = blocks[name]
        y_own = np.where(rng.random(len(one.samples)) < 0.5, one.y, np.nan)
        blocks[name] = Block(one.samples, one.features, one.x, y_own)
    w, conclusion = weights(blocks, HyFDCA(regularisation=0.1), rounds=60)
    primal = objective(x, y, w[0], loss=losses.HINGE, regularisation=0.1)
    assert conclusion.info.primal == pytest.approx(primal, rel=1e-11)
    best = optimum(x, y, loss=losses.HINGE, regularisation=0.1)
    bound = objective(x, y, best, loss=losses.HINGE, regularisation=0.1)
    assert primal == pytest.approx(bound, rel=1e-6)


@pytest.mark.parametrize("options", [ascent(), HyFDCA(regularisation=0.1)], ids=["ascent", "auto"])
def test_a_row_of_zeros_at_one_client_or_at_all_is_harmless(options):
    x, y = table(60, 6)
    x[3], x[7, :3], x[9, 3:] = 0.0, 0.0, 0.0
    w, conclusion = weights(rectangles(x, y, 2, 2), options, rounds=60)
    primal = objective(x, y, w[0], loss=losses.HINGE, regularisation=0.1)
    assert conclusion.info.primal == pytest.approx(primal, rel=1e-11)
    assert conclusion.info.gap_relative < 1e-2


def test_text_ids_train_as_numbers_do():
    x, y = table()
    number = rectangles(x, y, 2, 2, shared_rows=5)
    text = {
        name: Block(np.char.mod("id %04d", one.samples), one.features, one.x, one.y)
        for name, one in number.items()
    }
    first, second = (weights(held, ascent(), rounds=5)[0] for held in (number, text))
    np.testing.assert_array_equal(first, second)


def test_numbers_are_predicted_with_the_squared_loss():
    x, _ = table()
    y = x @ np.arange(1.0, 7.0) + 3.0
    w, conclusion = weights(
        rectangles(x, y, 2, 2),
        HyFDCA(loss="squared", regularisation=0.1),
        rounds=3,
        labels=Labels("regression"),
    )
    ridge = np.linalg.solve(x.T @ x / 60 + 0.1 * np.eye(6), x.T @ y / 60)
    np.testing.assert_allclose(w[0], ridge, rtol=1e-9)
    assert conclusion.info.gap_relative < 1e-10


# -- exchanges and errors


@pytest.mark.parametrize(("grid", "exchanges"), [("grid", 3), ("vertical", 2), ("overlaps", 3)])
def test_a_round_takes_as_many_exchanges_as_the_paper_says(grid, exchanges):
    x, y = table()
    engine, server = started(HYFDCA, ascent(), rectangles(x, y, **GRIDS[grid]))
    before = engine.books.traffic.exchanges
    engine.begin_round(1)
    HYFDCA.round(server, engine, engine.key())
    assert engine.books.traffic.exchanges - before == exchanges


def test_divergence_is_an_error_that_names_the_cause():
    x, y = table(60, 40, seed=4)
    # all clients take whole steps at the same time, undamped
    blocks = {f"p{k}": block(x, y, range(60), range(5 * k, 5 * k + 5)) for k in range(8)}
    options = ascent(loss="squared", regularisation=1e-4, step="fixed", gamma=1.0, sigma=1e-3)
    engine, server = started(HYFDCA, options, blocks)
    with (
        np.errstate(over="ignore", invalid="ignore"),
        pytest.raises(ConvergenceError, match=r"overshoot\. Lower algorithm\.gamma"),
    ):
        train(HYFDCA, engine, server, 200)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("regularisation", 0.0),
        ("regularisation", float("nan")),
        ("local_samples", 0.0),
        ("local_samples", 1.5),
        ("gamma", 0.0),
        ("gamma", 2.0),
        ("sigma", 0.0),
    ],
)
def test_impossible_settings_are_refused(key, value):
    with pytest.raises(ExperimentError, match=rf"algorithm\.{key} is {value}"):
        HyFDCA(**{key: value})


def test_an_unknown_loss_is_refused_with_the_nearest():
    with pytest.raises(ExperimentError, match="hinge"):
        HyFDCA(loss="hing")
