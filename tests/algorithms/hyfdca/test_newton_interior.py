"""The interior point phase of HyFDCA: losses with a kink and a small λ."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.sparse import csr_array

from federations import BINARY, ill_conditioned, in_order, rectangles, started, table, train
from intarsia.algorithms.hyfdca.algorithm import HYFDCA
from intarsia.algorithms.hyfdca.newton import interior_point as newton_interior
from intarsia.algorithms.hyfdca.newton import server as newton
from intarsia.algorithms.hyfdca.newton.interior_point import InteriorPoint
from intarsia.algorithms.hyfdca.state import HyFDCA
from intarsia.core.block import Labels
from intarsia.core.schema import Schema
from intarsia.engines import codec
from intarsia.engines.communication_log import RECORDS
from intarsia.engines.simulation import Simulation
from intarsia.maths.linear import losses, sdca

NUMBERS = Labels("regression")
FRAMES = pytest.mark.parametrize("frame", [True, False], ids=["frame", "conjugate"])


def at_once(monkeypatch):
    """Let Newton's method hand over before its first step."""
    begin = newton.begin

    def handed_over(*args, **terms):
        return dataclasses.replace(begin(*args, **terms), stalled=True)

    monkeypatch.setattr(newton, "begin", handed_over)


def certificate(x, y, engine, conclusion, options):
    """Return P and D of a run on the pooled table, by formulas of their own."""
    schema = engine.schema("train")
    alpha = np.zeros((1, len(schema.samples)))
    for name, state in engine.get_states().items():
        alpha[:, schema.samples.own(name)] = state.alpha
    alpha = alpha[:, np.argsort(schema.samples.ids)]
    w = in_order(schema, conclusion.weights)
    code, shape = losses.loss_code(options.loss), losses.shape_of(options)
    given = {"regularisation": options.regularisation, "loss": code, "shape": shape}
    primal = sdca.primal_objective(w @ x.T, y[None], w, **given)
    implied = sdca.weights_from_duals(x, alpha, options.regularisation)
    return primal, sdca.dual_objective(alpha, y[None], implied, **given)


def least_loss(x, y, loss, level=0.5):
    """Return the smallest mean loss without a penalty, by linear programming."""
    samples, features = x.shape
    rows = x * y[:, None] if loss == "hinge" else x
    upper, lower = (1.0, 0.0) if loss == "hinge" else (level, 1 - level)
    target = np.ones(samples) if loss == "hinge" else y
    cost = np.concatenate([np.zeros(features), np.full(samples, upper), np.full(samples, lower)])
    equal = np.hstack([rows, np.eye(samples), -np.eye(samples)])
    bounds = [(None, None)] * features + [(0, None)] * (2 * samples)
    return linprog(cost, A_eq=equal, b_eq=target, bounds=bounds).fun / samples


def uneven(samples, features, seed=0):
    """Return columns of sizes from 0.1 to 10, one of them with few entries."""
    x, y = table(samples, features, seed)
    x *= 10 ** np.random.default_rng(seed).uniform(-1, 1, features)
    x[5:, 0] = 0.0
    return x, y


@FRAMES
@pytest.mark.parametrize("loss", [pytest.param("hinge", marks=pytest.mark.slow), "quantile"])
def test_small_penalties_come_to_the_optimum_of_linear_programming(loss, frame):
    """At λ 1e-9 the penalty is less than 1e-5 of the loss; an optimum is between the two."""
    x, y = uneven(120, 7)
    if loss == "quantile":
        y = y + 5.0 + x[:, 1]
    options = HyFDCA(loss=loss, regularisation=1e-9, quantile=0.3, frame=frame)
    labels = BINARY if loss == "hinge" else NUMBERS
    engine, server = started(HYFDCA, options, rectangles(x, y, 2, 2, shared_rows=5), labels)
    conclusion = train(HYFDCA, engine, server, 80, tolerance=1e-6)
    assert conclusion.info.phase == "interior point"
    assert conclusion.info.gap_relative <= 1e-6
    primal, dual = certificate(x, y, engine, conclusion, options)
    assert conclusion.info.primal == pytest.approx(primal, rel=1e-9)
    assert conclusion.info.dual == pytest.approx(dual, rel=1e-9)
    least = least_loss(x, y, loss, 0.3)
    assert least * (1 - 1e-9) <= primal <= least * (1 + 1e-4)


@FRAMES
@pytest.mark.parametrize("loss", ["hinge", "squared_hinge"])
def test_the_phase_alone_solves_problems_with_more_penalty(monkeypatch, frame, loss):
    at_once(monkeypatch)
    x, y = uneven(200, 6)
    for regularisation in (1.0, 1e-3):
        options = HyFDCA(loss=loss, regularisation=regularisation, frame=frame)
        engine, server = started(HYFDCA, options, rectangles(x, y, 2, 2))
        conclusion = train(HYFDCA, engine, server, 40, tolerance=1e-8)
        primal, dual = certificate(x, y, engine, conclusion, options)
        assert (primal - dual) / primal <= 1e-8


@pytest.mark.slow
def test_weights_of_rows_count_as_copies(monkeypatch):
    at_once(monkeypatch)
    x, y = table(60, 4)
    found = []
    weighted = dataclasses.replace(BINARY, weighted=True)
    for weights in (1.0 + np.arange(60) % 2, None):
        blocks = rectangles(x, y, 2, 2)
        if weights is None:  # every other row twice
            more = np.concatenate([np.arange(60), np.arange(1, 60, 2)])
            blocks = rectangles(x[more], y[more], 2, 2)
        else:
            blocks = {
                name: dataclasses.replace(one, weights=weights[one.samples])
                for name, one in blocks.items()
            }
        # 1/N of the losses: 60 rows, or 90
        options = HyFDCA(regularisation=1e-3 * (1 if weights is None else 1.5))
        labels = BINARY if weights is None else weighted
        engine, server = started(HYFDCA, options, blocks, labels)
        conclusion = train(HYFDCA, engine, server, 40, tolerance=1e-10)
        found.append(in_order(engine.schema("train"), conclusion.weights))
    np.testing.assert_allclose(*found, rtol=1e-3)


def test_classes_have_barriers_of_their_own():
    x, _ = uneven(150, 6)
    y = np.arange(150) % 3 + 0.0
    options = HyFDCA(regularisation=1e-6)
    labels = Labels("multiclass", ("a", "b", "c"))
    engine, server = started(HYFDCA, options, rectangles(x, y, 2, 2), labels)
    conclusion = train(HYFDCA, engine, server, 60, tolerance=1e-6)
    assert conclusion.info.phase == "interior point"
    assert conclusion.info.gap_relative <= 1e-6


@pytest.mark.slow
def test_sparse_tables_beyond_the_frame_go_on_by_conjugate_gradients(monkeypatch):
    monkeypatch.setattr(newton_interior, "MOST_FEATURES", 5)
    monkeypatch.setattr(newton, "MOST_FEATURES", 5)
    x, y = uneven(150, 8)
    options = HyFDCA(regularisation=1e-5)
    engine, server = started(HYFDCA, options, rectangles(csr_array(x), y, 2, 2))
    conclusion = train(HYFDCA, engine, server, 80, tolerance=1e-6)
    assert conclusion.info.gap_relative <= 1e-6
    primal, dual = certificate(x, y, engine, conclusion, options)
    assert (primal - dual) / primal <= 1.001e-6


@FRAMES
def test_a_run_that_is_cut_in_the_phase_comes_to_the_same_bits(frame):
    x, y = uneven(100, 6)
    options = HyFDCA(regularisation=1e-6, frame=frame)
    blocks = rectangles(x, y, 2, 2)
    found = []
    for cut in (None, 18):
        engine, server = started(HYFDCA, options, blocks)
        for number in range(1, 21):
            engine.begin_round(number)
            server, _ = HYFDCA.round(server, engine, engine.key())
            if number != cut:
                continue
            assert isinstance(server.phase, InteriorPoint)
            written = codec.encode((engine.books.seal(server), engine.get_states()))
            engine = Simulation({"train": (Schema.of(blocks, BINARY), blocks)}, 0)
            engine.count_once()
            sealed, states = codec.decode(written, *HYFDCA.states, *RECORDS)
            engine.set_states(states)
            server = engine.books.unseal(sealed)
        engine.begin_round(21)
        found.append(HYFDCA.conclude(server, engine, engine.key("conclude")).weights)
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("loss", ["squared_hinge", "logistic"])
def test_columns_of_very_different_sizes_leave_the_frame_its_digits(loss):
    """Columns' sizes differ by up to 10^6, and columns are nearly dependent."""
    x, y = ill_conditioned(600, 80, seed=0)
    x = x * 10 ** np.random.default_rng(0).uniform(-3, 3, 80)
    options = HyFDCA(loss=loss, regularisation=1e-7)
    engine, server = started(HYFDCA, options, rectangles(x, y, 2, 2), BINARY)
    info = train(HYFDCA, engine, server, 10, tolerance=1e-6)
    assert info.info.gap_relative <= 1e-6


def one_hot(samples, levels):
    """Return standardised columns of three categories, many levels of them rare, and scores."""
    rng = np.random.default_rng(1)
    chance = np.arange(1, levels + 1) ** -1.3
    drawn = [rng.choice(levels, samples, p=chance / chance.sum()) for _ in range(3)]
    x = np.hstack([rng.standard_normal((samples, 3)), *(np.eye(levels)[one] for one in drawn)])
    score = x[:, :3] @ np.array([1.0, -0.7, 0.4]) + rng.logistic(size=samples)
    score = score + sum(rng.standard_normal(levels)[one] for one in drawn)
    x = x[:, x.any(axis=0)]
    return (x - x.mean(axis=0)) / x.std(axis=0), score


def test_wide_dense_tables_are_left_to_the_phase_after_two_short_steps():
    x, score = one_hot(2000, 250)
    assert x.shape[1] > newton.MOST_FEATURES
    y = np.where(score > np.quantile(score, 0.85), 1.0, -1.0)
    options = HyFDCA(loss="hinge", regularisation=1e-3)
    engine, server = started(HYFDCA, options, rectangles(x, y, 2, 2))
    conclusion = train(HYFDCA, engine, server, 20, tolerance=1e-6)  # 30 where smoothing goes on
    assert conclusion.info.phase == "interior point"
    primal, dual = certificate(x, y, engine, conclusion, options)
    assert (primal - dual) / primal <= 1.001e-6


def test_smoothing_goes_on_near_the_optimum_and_where_rows_fit_no_frame(monkeypatch):
    x, y = table(60, 520)

    def begun(values, **terms):
        options = HyFDCA(regularisation=1e-4, method="newton", **terms)
        engine, server = started(HYFDCA, options, rectangles(values, y, 2, 2))
        engine.begin_round(1)
        return HYFDCA.round(server, engine, engine.key())[0].phase, engine

    some = csr_array(np.where(abs(x) > 1.5, x, 0.0))
    sparse, _ = begun(some)
    monkeypatch.setattr(newton, "_WIDE_SPARSE", 0.1)  # many rows: steps in a frame take long
    one, clients = begun(x)
    others = begun(x, frame=False), begun(x, system="shares"), begun(some)
    for phase, gap, leaves in (
        *((phase, gap, gap > 1) for phase in (one, sparse) for gap in (2.0, 0.5)),
        *((other, 2.0, False) for other, _ in others),
    ):
        short = dataclasses.replace(phase, shorts=2, steps=3, gap=np.array([gap]))
        assert newton._check_progress(short, clients).stalled is leaves


def sparse_levels(samples, levels, categories, power):
    """Return three numeric columns and categories of many levels, sparse, and labels."""
    rng = np.random.default_rng(0)
    chance = np.arange(1, levels + 1) ** -power
    numeric = rng.standard_normal((samples, 3))
    score = numeric @ np.array([1.0, -0.7, 0.4]) + rng.logistic(size=samples)
    parts = [numeric]
    for _ in range(categories):
        level = rng.choice(levels, samples, p=chance / chance.sum())
        score += rng.standard_normal(levels)[level]
        parts.append(np.eye(levels)[level])
    x = np.hstack(parts)
    return x[:, x.any(axis=0)], np.where(score > np.quantile(score, 0.7), 1.0, -1.0)


# 924 and 360 MB, 297 and 544 exchanges in a frame at once; the second by conjugate gradients alone
# 1094 exchanges; 463 and 845 where the barrier begins as large as P
@pytest.mark.parametrize(
    ("levels", "categories", "power", "framed", "megabytes", "exchanges"),
    [(1300, 1, 0.5, False, 20, 400), (250, 3, 1.3, True, 250, 750)],
)
def test_rows_of_sparse_tables_go_in_a_frame_where_iterations_are_many(
    levels, categories, power, framed, megabytes, exchanges
):
    x, y = sparse_levels(2000, levels, categories, power)
    assert x.shape[1] > newton.MOST_FEATURES
    options = HyFDCA(loss="squared_hinge", regularisation=1e-6)
    engine, server = started(HYFDCA, options, rectangles(csr_array(x), y, 2, 2))
    conclusion = train(HYFDCA, engine, server, 60, tolerance=1e-6)
    assert conclusion.info.phase == "interior point"
    primal, dual = certificate(x, y, engine, conclusion, options)
    assert (primal - dual) / primal <= 1.001e-6
    traffic = engine.books.traffic
    assert ("SmallSystem" in traffic.down) == framed
    assert traffic.exchanges < exchanges
    assert sum(traffic.up.values()) + sum(traffic.down.values()) < megabytes * 1e6


def test_wide_sparse_tables_are_left_to_the_phase_after_two_short_steps():
    x, y = sparse_levels(2000, 250, 3, 1.3)
    options = HyFDCA(loss="hinge", regularisation=1e-6)
    engine, server = started(HYFDCA, options, rectangles(csr_array(x), y, 2, 2))
    # 44 rounds and 1404 exchanges where smoothing goes on
    conclusion = train(HYFDCA, engine, server, 32, tolerance=1e-6)
    primal, dual = certificate(x, y, engine, conclusion, options)
    assert (primal - dual) / primal <= 1.001e-6
    assert engine.books.traffic.exchanges < 1000


def rounds_to_optimum(monkeypatch, correctors, ahead=0.3):
    """Return the rounds from zeros to 1e-6, and whether directions were left out."""
    monkeypatch.setattr(newton_interior, "CORRECTORS", correctors)
    monkeypatch.setattr(newton_interior, "_AHEAD", ahead)
    at_once(monkeypatch)
    left_out, go = [], newton_interior._at

    def watched(*args, last=None, **terms):
        left_out.append(last is not None and not last.all())
        return go(*args, last=last, **terms)

    monkeypatch.setattr(newton_interior, "_at", watched)
    x, score = one_hot(1000, 80)
    y = np.where(score > np.quantile(score, 0.85), 1.0, -1.0)
    options = HyFDCA(regularisation=1e-6)
    engine, server = started(HYFDCA, options, rectangles(x, y, 2, 2))
    for number in range(1, 60):
        engine.begin_round(number)
        server, info = HYFDCA.round(server, engine, engine.key())
        # scores and duals that were moved along are those of the weights
        again = newton_interior.certify(server.phase, engine)[1]
        assert again.primal == pytest.approx(info.primal, rel=1e-6)
        assert again.dual == pytest.approx(info.dual, rel=1e-6)
        if info.gap_relative <= 1e-6:
            break
    return number, left_out


def test_more_directions_take_fewer_rounds_where_rare_levels_keep_steps_short(monkeypatch):
    none, _ = rounds_to_optimum(monkeypatch, 0)  # 27
    some, left_out = rounds_to_optimum(monkeypatch, 3)  # 22
    assert some <= 0.9 * none
    assert any(left_out)


def first_rounds(monkeypatch, loss, many, *, sparse=True):
    """Return P, D and Σ (pu + mv) / N after each of two rounds, and when a frame was there."""
    monkeypatch.setattr(newton, "MOST_FEATURES", 5)
    monkeypatch.setattr(newton_interior, "_MANY", many)
    at_once(monkeypatch)
    x, y = uneven(150, 8)
    options = HyFDCA(loss=loss, regularisation=1e-5)
    engine, server = started(HYFDCA, options, rectangles(csr_array(x) if sparse else x, y, 2, 2))
    found, framed = [], []
    for number in (1, 2):
        engine.begin_round(number)
        server, info = HYFDCA.round(server, engine, engine.key())
        found.append((info.primal, info.dual, server.phase.products))
        framed.append(server.phase.framed)
    return found, framed


@pytest.mark.parametrize("loss", ["hinge", "squared_hinge"])
def test_the_phase_goes_on_from_its_point_when_it_goes_to_a_frame(monkeypatch, loss):
    # the first direction takes no more iterations than that, both together do
    monkeypatch.setattr(newton_interior, "CORRECTORS", 0)  # there are none without a frame
    found, framed = first_rounds(monkeypatch, loss, {"hinge": 4, "squared_hinge": 6}[loss])
    others, never = first_rounds(monkeypatch, loss, 10**6)
    assert (framed, never) == ([True, True], [False, False])
    # the first round ends at one point; the second has exact directions, or nearly
    for one, other in zip(found[0], others[0], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9)
    assert found[1][0] == pytest.approx(others[1][0], rel=0.3)


@pytest.mark.parametrize("loss", ["hinge", "squared_hinge"])
def test_a_direction_of_many_iterations_is_given_up_for_the_one_in_a_frame(monkeypatch, loss):
    found, framed = first_rounds(monkeypatch, loss, 1)
    # dense tables are in a frame from the start
    others, _ = first_rounds(monkeypatch, loss, 1, sparse=False)
    assert framed == [True, True]
    for one, other in zip(found[0] + found[1], others[0] + others[1], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_the_squared_hinge_is_left_on_wide_sparse_tables_where_twelve_steps_leave_most():
    x, y = sparse_levels(2000, 250, 4, 1.0)
    options = HyFDCA(loss="squared_hinge", regularisation=1e-6)
    engine, server = started(HYFDCA, options, rectangles(csr_array(x), y, 2, 2))
    # 31 rounds and 3598 exchanges where it goes on until two steps are short
    conclusion = train(HYFDCA, engine, server, 25, tolerance=1e-6)
    primal, dual = certificate(x, y, engine, conclusion, options)
    assert (primal - dual) / primal <= 1.001e-6
    assert engine.books.traffic.exchanges < 1200


@pytest.mark.parametrize(
    ("gap", "fell", "sparse", "left"),
    [(5, 1.1, True, True), (5, 1.05, True, False), (2, 1.1, True, False), (5, 1.1, False, False)],
)
def test_it_is_left_far_away_where_the_objective_fell_late_on_sparse_tables(
    monkeypatch, gap, fell, sparse, left
):
    monkeypatch.setattr(newton, "MOST_FEATURES", 20)
    x, y = sparse_levels(200, 30, 1, 1.0)
    options = HyFDCA(loss="squared_hinge", regularisation=1e-4, method="newton")
    engine, server = started(HYFDCA, options, rectangles(csr_array(x) if sparse else x, y, 2, 2))
    engine.begin_round(1)
    server, _ = HYFDCA.round(server, engine, engine.key())
    phase = dataclasses.replace(
        server.phase,
        steps=12,
        gap=np.array([float(gap)]),
        fourth_primal=fell,
        eighth_primal=1.0,
    )
    assert newton._check_progress(phase, engine).stalled is left


@pytest.mark.parametrize(
    ("gap", "tiny", "steps", "sparse", "left"),
    [
        *((5, 2, 12, False, True), (5, 1, 12, False, False), (2, 2, 12, False, False)),
        *((5, 2, 4, False, False), (5, 2, 12, True, False)),
    ],
)
def test_it_is_left_far_away_where_long_and_tiny_steps_take_turns_on_dense_tables(
    monkeypatch, gap, tiny, steps, sparse, left
):
    monkeypatch.setattr(newton, "MOST_FEATURES", 20)
    x, y = sparse_levels(200, 30, 1, 1.0)
    options = HyFDCA(loss="squared_hinge", regularisation=1e-4, method="newton")
    engine, server = started(HYFDCA, options, rectangles(csr_array(x) if sparse else x, y, 2, 2))
    engine.begin_round(1)
    phase = HYFDCA.round(server, engine, engine.key())[0].phase
    far = {"gap": np.array([float(gap)]), "fourth_primal": 1.0, "eighth_primal": 1.0}
    phase = dataclasses.replace(phase, steps=steps, tiny=tiny, shorts=1, **far)
    assert newton._check_progress(phase, engine).stalled is left


@pytest.mark.slow
def test_where_smoothing_ends_far_away_the_phase_begins_from_zeros():
    """Rare levels and λ 1e-7: Newton's method hands over at a gap of ten thousands."""
    rng = np.random.default_rng(0)
    chance = np.arange(1, 173) ** -1.3
    levels = [rng.choice(172, 800, p=chance / chance.sum()) for _ in range(5)]
    x = np.hstack([rng.standard_normal((800, 5)), *(np.eye(172)[level] for level in levels)])
    x = x[:, x.any(axis=0)]
    score = x[:, :4] @ np.array([1.0, -0.7, 0.4, 0.1])
    score += sum(rng.standard_normal(172)[level] for level in levels) + rng.logistic(size=800)
    y = np.where(score > np.quantile(score, 0.9), 1.0, -1.0)
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    options = HyFDCA(loss="hinge", regularisation=1e-7)
    engine, server = started(HYFDCA, options, rectangles(x, y, 2, 2), BINARY)
    info = train(HYFDCA, engine, server, 80, tolerance=1e-6)
    assert info.info.gap_relative <= 1e-6
