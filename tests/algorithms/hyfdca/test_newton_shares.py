"""Newton's system by secret sharing: the right system, whoever holds what; and who reads what."""

from __future__ import annotations

import dataclasses
from functools import partial

import numpy as np
import pytest
from scipy.sparse import csr_array

from federations import (
    BINARY,
    block,
    heavy_tailed,
    ill_conditioned,
    in_order,
    rectangles,
    secrets_of,
    started,
    table,
    train,
)
from intarsia.algorithms.hyfdca.algorithm import HYFDCA
from intarsia.algorithms.hyfdca.newton import client as newton_client
from intarsia.algorithms.hyfdca.newton import encrypted as newton_encrypted
from intarsia.algorithms.hyfdca.newton import server as newton
from intarsia.algorithms.hyfdca.newton import shares as newton_shares
from intarsia.algorithms.hyfdca.newton.point import Point
from intarsia.algorithms.hyfdca.state import HyFDCA
from intarsia.core.block import Labels
from intarsia.core.schema import Schema
from intarsia.engines.simulation import Simulation
from intarsia.errors import ExperimentError, RangeError, RefusedError
from intarsia.maths import encrypted_products
from intarsia.maths.linear import losses
from intarsia.privacy.secure_aggregation import setup as modes
from intarsia.privacy.settings import Privacy

CLASSES = Labels("multiclass", ("a", "b", "c"))


def federation(kind, samples=240, features=9, seed=0):
    """Return clients that split a table by columns, by rows, or both, and hold copies or none."""
    x, y = table(samples, features, seed)
    x[:, 1] = np.random.default_rng(seed).random(samples) < 0.03  # a rare category
    x[:, 4] *= 1e-3
    x[:, 7] *= 1e3
    if kind == "sparse":
        x = csr_array(x * (abs(x) > 0.7))
    shape, more = {
        "columns": ((1, 3), {}),
        "many columns": ((1, 9), {}),
        "rows": ((3, 1), {}),
        "two owners": ((2, 1), {}),
        "grid": ((2, 2), {}),
        "copies": ((2, 3), {"shared_rows": 40, "shared_columns": 2}),
        "sparse": ((2, 2), {"shared_rows": 40, "shared_columns": 2}),
        "alone": ((1, 1), {}),
    }[kind]
    return x, y, rectangles(x, y, *shape, **more)


KINDS = ("columns", "many columns", "rows", "two owners", "grid", "copies", "sparse", "alone")
EVERY_KIND = pytest.mark.parametrize("kind", KINDS)


def engine_over(blocks, mode="plain", labels=BINARY, secrets=None):
    schema = Schema.of(blocks, labels)
    sealing = None
    if mode != "plain":
        settings = Privacy(mode=mode)
        keys = modes.keys(settings, list(blocks), None, "test")
        sealing = modes.sealing(settings, list(blocks), keys)
    secrets = secrets_of(blocks) if secrets is None else secrets
    return Simulation({"train": (schema, blocks)}, 3, sealing, secrets=secrets)


def begun(engine, options):
    engine.count_once()
    engine.begin(HYFDCA, options)
    key = engine.key("init")
    server = HYFDCA.init_server(options, engine.schema("train"), key)
    return HYFDCA.setup(server, engine, key)


class Solved:
    """Takes down the systems that the server solves, and what it gives to clients."""

    def __init__(self, monkeypatch):
        self.systems = []
        solve = np.linalg.solve

        def watched(hessian, gradient):
            self.systems.append((hessian, gradient))
            return solve(hessian, gradient)

        monkeypatch.setattr(newton_shares.np.linalg, "solve", watched)


def whole_basis(engine):
    """Return P, (features, features), put together from what all clients have."""
    index = engine.schema("train").features
    found = np.zeros((len(index), len(index)))
    for name, state in engine.get_states().items():
        own = index.own(name)
        for start, stop in state.feature_cells:
            cell = np.ix_(own[start:stop], own[start:stop])
            found[cell] = state.frame[start:stop, start:stop].T
    return found


def pooled_curvatures(engine):
    """Return h of each sample as the clients' points have it, (samples,)."""
    index = engine.schema("train").samples
    found = np.zeros(len(index))
    for name, state in engine.get_states().items():
        found[index.own(name)[state.selected]] = state.curvature[0]
    return found


def after_a_round(kind, loss):
    """Return the engine and the server after a round; the pooled rows, Hessian and gradient."""
    x, _, blocks = federation(kind)
    weight = 1e-2
    engine = engine_over(blocks)
    options = HyFDCA(loss=loss, regularisation=weight, method="newton", system="shares")
    server = begun(engine, options)
    engine.begin_round(1)
    server, _ = HYFDCA.round(server, engine, engine.key())
    schema = engine.schema("train")
    columns = np.array([int(str(name)[1:]) for name in schema.features.ids])
    rows = (x.toarray() if kind == "sparse" else x)[schema.samples.ids][:, columns]
    h = pooled_curvatures(engine)
    hessian = rows.T @ (h[:, None] * rows) / len(rows) + weight * np.eye(len(columns))
    gradient = np.zeros(len(columns))
    for name, state in engine.get_states().items():
        gradient[schema.features.own(name)] = state.residual[0]
    return engine, server, rows, hessian, gradient


@EVERY_KIND
@pytest.mark.parametrize("loss", ["logistic", "hinge"])
def test_the_system_is_that_of_the_pooled_table(monkeypatch, kind, loss):
    engine, server, _, truth, gradient = after_a_round(kind, loss)
    seen = Solved(monkeypatch)
    engine.begin_round(2)
    HYFDCA.round(server, engine, engine.key())
    basis = whole_basis(engine)
    truth = basis.T @ truth @ basis
    (found, slope), *_ = seen.systems
    sizes = {(*state.system_scale, *state.system_slope) for state in engine.get_states().values()}
    ((scale, size_of_slope),) = sizes  # all clients have the same
    size = np.sqrt(np.outer(np.diag(truth), np.diag(truth)))
    assert (abs(found * scale - truth) / size).max() < 5e-7
    slope = slope * size_of_slope
    np.testing.assert_allclose(slope, basis.T @ gradient, rtol=0, atol=1e-12 * abs(slope).max())


@EVERY_KIND
def test_the_direction_is_that_of_a_direct_solve(monkeypatch, kind):
    engine, server, rows, hessian, gradient = after_a_round(kind, "logistic")
    truth = np.linalg.solve(hessian, gradient)
    engine.begin_round(2)
    HYFDCA.round(server, engine, engine.key())
    for name, state in engine.get_states().items():
        own = engine.schema("train").features.own(name)
        scores = rows[:, own] @ (state.direction[0] - truth[own])
        assert abs(scores).max() < 1e-5 * abs(rows @ truth).max()


@EVERY_KIND
@pytest.mark.parametrize("loss", ["logistic", "hinge"])
def test_the_optimum_is_that_of_rows_in_a_frame(kind, loss):
    _, _, blocks = federation(kind)
    found = {}
    for system in ("rows", "shares"):
        options = HyFDCA(loss=loss, regularisation=1e-2, method="newton", system=system)
        engine, server = started(HYFDCA, options, blocks)
        found[system] = train(HYFDCA, engine, server, 60, tolerance=1e-8)
        assert found[system].info.gap_relative <= 1e-8
    assert found["shares"].info.primal == pytest.approx(found["rows"].info.primal, rel=2e-8)


@pytest.mark.parametrize("smoothed", [True, False])
def test_axes_that_rounding_made_up_are_not_followed(smoothed):
    direction = partial(newton_shares._direction, smoothed=smoothed)
    hessian, gradient = np.diag([1.0, 1e-3, -1e-9]), np.array([1.0, 1.0, 1e-9])
    found = direction(hessian, gradient, 1e-8)
    np.testing.assert_allclose(found, [1.0, 1e3, 0.1], rtol=1e-12)
    sure = direction(np.diag([1.0, 1e-3, 1e-7]), gradient, 1e-8)
    np.testing.assert_allclose(sure, [1.0, 1e3, 1e-2], rtol=1e-12)
    doubtful = direction(np.diag([1.0, 1e-3, 1e-9]), gradient, 1e-8)
    np.testing.assert_allclose(doubtful, [1.0, 1e3, 1.0 if smoothed else 0.1], rtol=1e-12)
    assert np.isfinite(direction(np.zeros((3, 3)), np.zeros(3), 0.0)).all()


@pytest.mark.parametrize(
    ("l1_ratio", "mode"),
    [
        pytest.param(0.0, "masked", marks=pytest.mark.slow),
        (0.5, "masked"),
    ],
)
def test_shared_systems_come_down_from_a_larger_penalty_where_they_stand_still(l1_ratio, mode):
    """Each certificate on the way is that of the model.

    Where sums are not sealed the interior point method goes on there.
    """
    x, y = heavy_tailed()
    blocks = rectangles(x, y, 2, 2, shared_rows=20)
    engine = engine_over(blocks, mode, Labels("regression"))
    options = HyFDCA(loss="huber", regularisation=1e-6, l1_ratio=l1_ratio, system="shares")
    server, lifts, found = begun(engine, options), [], []
    for number in range(1, 100):
        engine.begin_round(number)
        server, info = HYFDCA.round(server, engine, engine.key())
        lifts.append(server.phase.lift)
        found.append(info)
        if info.gap_relative <= 1e-7:
            break
    assert info.gap_relative <= 1e-7
    assert sorted({*lifts}) == [1, 8, 64, 512, 4096, 32768]
    assert lifts[-1] == 1
    assert all(one.dual <= info.primal and one.primal >= info.dual for one in found)
    engine.begin_round(number + 1)
    conclusion = HYFDCA.conclude(server, engine, engine.key("conclude"))
    weights = in_order(engine.schema("train"), conclusion.weights)
    loss = losses.value(losses.HUBER, weights @ x.T, y[None], shape=losses.shape_of(options))
    penalty = 0.5 * (weights**2).sum() + options.threshold * np.abs(weights).sum()
    assert loss.mean() + options.ridge * penalty == pytest.approx(info.primal, rel=1e-6)


@pytest.mark.parametrize("lift", [0.5, 3.0, 2 * newton_client.LIFT, np.nan])
def test_a_client_refuses_a_penalty_that_the_algorithm_never_raises_to(monkeypatch, lift):
    x, y = table(60, 4)
    engine = engine_over(rectangles(x, y, 2, 1), "masked")
    server, gather = begun(engine, HyFDCA(loss="squared_hinge")), newton.Gather
    monkeypatch.setattr(newton, "Gather", lambda **given: gather(**{**given, "lift": lift}))
    engine.begin_round(1)
    with pytest.raises(RefusedError, match=r"times the model's was told after"):
        HYFDCA.round(server, engine, engine.key())


def test_a_client_refuses_a_penalty_that_rises_again(monkeypatch):
    """Of w(α) at many penalties norms of it tell more than at the few on the way down."""
    x, y = table(60, 4)
    engine = engine_over(rectangles(x, y, 2, 1), "masked")
    server = begun(engine, HyFDCA(loss="squared_hinge", regularisation=1e-2))
    for number in (1, 2):
        engine.begin_round(number)
        server, _ = HYFDCA.round(server, engine, engine.key())
    phase = newton._lift(server.phase, engine, newton_client.LIFT)
    for lift in (4096.0, 4096.0, 8.0):
        phase = newton._lift(phase, engine, lift)
    with pytest.raises(RefusedError, match="of 64 times the model's was told after one of 8 times"):
        newton._lift(phase, engine, 64.0)


def test_errors_on_the_way_down_are_those_of_the_models_penalty():
    x, y = table(200, 5)
    found = []
    for lift in (1.0, 64.0):
        engine = engine_over(rectangles(x, y, 2, 1))
        server = begun(engine, HyFDCA(loss="squared", regularisation=1e-2, errors=True))
        for number in (1, 2):
            engine.begin_round(number)
            server, _ = HYFDCA.round(server, engine, engine.key())
        server = dataclasses.replace(server, phase=newton._lift(server.phase, engine, lift))
        found.append(HYFDCA.conclude(server, engine, engine.key("conclude")).errors)
    np.testing.assert_allclose(*found, rtol=1e-6)


@pytest.mark.parametrize("l1_ratio", [0.0, 0.5])
def test_norms_too_large_to_be_sealed_bound_nothing_and_the_run_goes_on(l1_ratio):
    """At zero weights ‖w(α)‖² is about 1e24 with a column of 1e7 at λ 1e-5."""
    x, y = table(200, 6)
    x[:, 2] *= 1e7
    engine = engine_over(rectangles(x, y, 2, 2, shared_rows=20), "masked")
    options = HyFDCA(loss="logistic", regularisation=1e-5, l1_ratio=l1_ratio)
    info = train(HYFDCA, engine, begun(engine, options), 40, tolerance=1e-6).info
    assert info.primal < 0.5  # log 2 at zeros
    assert -1 < info.dual <= info.primal


def test_classes_have_systems_of_their_own():
    x, _ = table(150, 7)
    blocks = rectangles(x, np.arange(150) % 3 + 0.0, 2, 2, shared_rows=9, shared_columns=1)
    found = []
    for system in ("rows", "shares"):
        options = HyFDCA(loss="logistic", regularisation=1e-2, method="newton", system=system)
        engine, server = started(HYFDCA, options, blocks, CLASSES)
        found.append(train(HYFDCA, engine, server, 30, tolerance=1e-9))
    weights = [in_order(engine.schema("train"), one.weights) for one in found]
    np.testing.assert_allclose(weights[1], weights[0], atol=1e-4)


# ---- modes, words, resuming


def weights_of(engine, server, rounds=6):
    found = train(HYFDCA, engine, server, rounds)
    return found.weights


def test_the_words_that_are_dealt_do_not_show_in_a_bit_of_the_result():
    _, _, blocks = federation("copies")
    options = HyFDCA(loss="logistic", regularisation=1e-2, method="newton", system="shares")
    found, secrets = [], set()
    for _ in range(2):
        engine = engine_over(blocks)
        server = begun(engine, options)
        secrets.add(server.dealer.secret)
        found.append(weights_of(engine, server))
    assert len(secrets) == 2
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("mode", ["masked", "ckks"])
@pytest.mark.parametrize("kind", ["columns", "many columns", "copies", "rows"])
def test_sealed_sums_give_the_model_of_plain_ones(mode, kind):
    if mode == "ckks":
        pytest.importorskip("tenseal")
    _, _, blocks = federation(kind)
    found = {}
    for one, system in (("plain", "shares"), (mode, "auto")):
        options = HyFDCA(loss="logistic", regularisation=1e-2, method="newton", system=system)
        engine = engine_over(blocks, one)
        server = begun(engine, options)
        found[one] = weights_of(engine, server)
        assert all(isinstance(state.overlap.turn, int) for state in engine.get_states().values())
    np.testing.assert_allclose(found[mode], found["plain"], atol=1e-5)


@EVERY_KIND
def test_products_under_encryption_give_the_bits_of_dealt_words(kind):
    _, _, blocks = federation(kind)
    found, secrets = [], secrets_of(blocks)
    for system in ("shares", "encrypted"):
        options = HyFDCA(loss="logistic", regularisation=1e-2, method="newton", system=system)
        engine = engine_over(blocks, secrets=secrets)
        found.append(weights_of(engine, begun(engine, options), 3))
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("mode", ["masked", "ckks"])
def test_products_under_encryption_are_sealed_and_give_the_same_bits(mode):
    if mode == "ckks":
        pytest.importorskip("tenseal")
    x, _ = table(90, 7)
    blocks = rectangles(x, np.arange(90) % 3 + 0.0, 2, 2, shared_rows=9, shared_columns=1)
    found, secrets = [], secrets_of(blocks)
    for system, one in (("shares", "masked"), ("encrypted", mode)):
        options = HyFDCA(loss="logistic", regularisation=1e-2, method="newton", system=system)
        engine = engine_over(blocks, one, CLASSES, secrets=secrets)
        found.append(weights_of(engine, begun(engine, options), 2))
    if mode == "masked":
        np.testing.assert_array_equal(*found)
    else:
        np.testing.assert_allclose(*found, atol=1e-5)


def test_standard_errors_are_the_same_with_products_under_encryption():
    found = []
    for system in ("shares", "encrypted"):
        given = {"loss": "logistic", "regularisation": 0.1, "errors": True, "system": system}
        found.append(concluded("columns", "masked", rounds=4, **given)[2].errors)
    np.testing.assert_allclose(*found, rtol=1e-12)


@pytest.mark.parametrize("function", ["encrypt", "multiply"])
@pytest.mark.parametrize("way", ["too large", "too few"])
def test_malformed_ciphertexts_are_refused_with_the_name_of_who_sent_them(
    monkeypatch, function, way
):
    """The first of two encrypts, the second multiplies."""
    x, y = table(60, 4)
    blocks = {
        "bank": block(x, y, range(60), range(2)),
        "shop": block(x, y, range(60), range(2, 4), labels=False),
    }
    engine = engine_over(blocks, "masked")
    server = begun(engine, HyFDCA(loss="logistic", method="newton", system="encrypted"))
    real = getattr(encrypted_products, function)

    def broken(words):
        if way == "too few":
            return words[:-1]
        words = words.copy()
        words[-1, -1] = 2**64 - 1
        return words

    def departing(*given):
        if function == "encrypt":
            return broken(real(*given))
        return [(broken(replies), share) for replies, share in real(*given)]

    monkeypatch.setattr(encrypted_products, function, departing)
    engine.begin_round(1)
    culprit = "bank" if function == "encrypt" else "shop"
    with pytest.raises(RefusedError, match=f"Client '{culprit}' sent ciphertexts"):
        HYFDCA.round(server, engine, engine.key())


def test_rows_are_encrypted_once_in_a_step():
    _, _, blocks = federation("columns")
    engine = engine_over(blocks)
    begun(engine, HyFDCA(loss="logistic", method="newton", system="encrypted"))
    with pytest.raises(RefusedError, match="Part 1 of the encrypted rows"):
        newton_encrypted.encrypt_rows.call(
            *(after_a_round("columns", "logistic")[0].get_states()["r0c0"], None),
            *(newton_encrypted.Encrypt(np.ones((1, 2)), 1), None),
        )


def test_rows_too_large_for_exact_products_are_refused(monkeypatch):
    monkeypatch.setattr(newton_encrypted, "LARGEST", 1 << 20)
    _, _, blocks = federation("columns")
    engine = engine_over(blocks)
    server = begun(engine, HyFDCA(loss="logistic", method="newton", system="encrypted"))
    engine.begin_round(1)
    with pytest.raises(RangeError, match="would not be exact"):
        HYFDCA.round(server, engine, engine.key())


@pytest.mark.parametrize("system", ["shares", pytest.param("encrypted", marks=pytest.mark.slow)])
def test_a_step_made_again_from_a_checkpoint_has_the_same_bits(system):
    _, _, blocks = federation("copies")
    options = HyFDCA(loss="hinge", regularisation=1e-2, method="newton", system=system)
    engine = engine_over(blocks)
    server = begun(engine, options)
    for number in range(1, 4):
        engine.begin_round(number)
        server, _ = HYFDCA.round(server, engine, engine.key())
    kept, states = server, engine.get_states()
    ends = []
    for _ in range(2):
        engine.set_states(states)
        server = kept
        for number in range(4, 7):
            engine.begin_round(number)
            server, info = HYFDCA.round(server, engine, engine.key())
        ends.append((info, engine.get_states()))
    assert ends[0][0] == ends[1][0]
    for name, state in ends[0][1].items():
        np.testing.assert_array_equal(state.w, ends[1][1][name].w)


def test_clients_that_come_back_share_the_system_again():
    _, _, blocks = federation("copies")
    options = HyFDCA(loss="logistic", regularisation=1e-2, method="newton", system="shares")
    engine, server = started(HYFDCA, options, blocks)
    names = tuple(engine.schema("train").clients)
    conclusion = train(
        HYFDCA,
        engine,
        server,
        40,
        tolerance=1e-8,
        present=lambda number: names[1:] if number in (2, 3) else None,
    )
    assert conclusion.info.gap_relative <= 1e-8
    assert all(isinstance(state, Point) for state in engine.get_states().values())


# ---- who has which turn


def test_co_owners_of_a_sample_have_different_turns_and_few_turns_do():
    x, y = table(60, 8)
    grid = newton_shares.deal_overlaps(Schema.of(rectangles(x, y, 4, 4), BINARY))
    assert {one.turn for one in grid.overlaps.values()} == {0, 1, 2, 3}
    blocks = {
        "a": block(x, y, range(30), range(4)),
        "b": block(x, y, range(20, 60), range(4, 8)),
        "c": block(x, y, range(40, 60), range(4)),
    }
    dealer = newton_shares.deal_overlaps(Schema.of(blocks, BINARY))
    turns = {name: one.turn for name, one in dealer.overlaps.items()}
    assert turns["a"] == turns["c"] == 0
    assert turns["b"] == 1
    assert [one.name for one in dealer.overlaps["b"].partners] == ["a", "c"]
    assert not dealer.overlaps["a"].partners[0].cells.all()


def test_a_frame_of_rows_is_not_drawn_where_the_system_is_shared():
    _, _, blocks = federation("grid")
    options = HyFDCA(loss="logistic", regularisation=1e-2, system="shares")
    engine, server = started(HYFDCA, options, blocks)
    engine.begin_round(1)
    HYFDCA.round(server, engine, engine.key())
    for state in engine.get_states().values():
        assert len(state.framed) == 0
        assert not state.known.any()


def test_the_secret_basis_is_well_conditioned_and_one_for_all_owners_of_a_feature():
    _, _, blocks = federation("copies")
    options = HyFDCA(loss="logistic", regularisation=1e-2, system="shares")
    engine, server = started(HYFDCA, options, blocks)
    engine.begin_round(1)
    HYFDCA.round(server, engine, engine.key())
    index, seen = engine.schema("train").features, {}
    for name, state in engine.get_states().items():
        scaled = state.scale[:, None] * state.frame.T
        assert np.linalg.cond(scaled) <= 4 * (1 + 1e-9)
        own = index.own(name)
        for start, stop in state.feature_cells:
            key = index.cell_of[own[start]]
            basis = state.frame[start:stop, start:stop]
            np.testing.assert_array_equal(seen.setdefault(key, basis), basis)


def test_options_of_the_system_are_checked():
    with pytest.raises(Exception, match="system"):
        dataclasses.replace(HyFDCA(), system="frame")


# -- standard errors

SHAPES = {
    "columns": ((1, 3), {}),
    "rows": ((3, 1), {}),
    "copies": ((2, 3), {"shared_rows": 40, "shared_columns": 2}),
}


def away_from_zero(block):
    """Return a block of columns in whose units zeros are ten times the first row of the table."""
    row = table(240, 6, 0)[0][0]
    return dataclasses.replace(block, zero=10 * row[[int(f[1:]) for f in block.features]])


def concluded(shape, mode="plain", labels=BINARY, rounds=12, change=away_from_zero, **options):
    x, y = table(240, 6, 0)
    if labels.task == "regression":
        y = x @ np.linspace(-1, 1, 6) + 0.3 * np.sin(np.arange(240))
    grid, more = SHAPES[shape]
    blocks = {name: change(one) for name, one in rectangles(x, y, *grid, **more).items()}
    engine = engine_over(blocks, mode, labels)
    server = begun(engine, HyFDCA(**options))
    for number in range(1, rounds + 1):
        engine.begin_round(number)
        server, _ = HYFDCA.round(server, engine, engine.key())
    final = HYFDCA.conclude(server, engine, engine.key())
    schema = engine.schema("train")
    columns = np.array([int(str(name)[1:]) for name in schema.features.ids])
    return x[:, columns], y, final


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mode", ["plain", "masked", "ckks"])
@pytest.mark.parametrize("weight", [1e-6, pytest.param(0.1, marks=pytest.mark.slow)])
def test_errors_are_those_of_the_penalised_fisher_information_of_the_pooled_table(
    shape, mode, weight
):
    if mode == "ckks":
        pytest.importorskip("tenseal")
    given = {"loss": "logistic", "regularisation": weight, "errors": True}
    x, y, final = concluded(shape, mode, **given)
    w = final.weights[0]
    p = 1 / (1 + np.exp(-x @ w))
    gradient = x.T @ (p - (y > 0)) / len(x) + weight * w
    assert abs(gradient).max() < 1e-7  # the optimum
    information = x.T @ ((p * (1 - p))[:, None] * x) + weight * len(x) * np.eye(len(w))
    covariances = np.linalg.inv(information)
    np.testing.assert_allclose(final.errors[0], np.sqrt(np.diag(covariances)), rtol=1e-6)
    zero = 10 * x[0]
    assert final.zero_errors[0] == pytest.approx(np.sqrt(zero @ covariances @ zero), rel=1e-6)


def test_errors_without_a_penalty_are_those_of_ordinary_least_squares():
    given = {"loss": "squared", "regularisation": 1e-10, "errors": True}
    x, y, final = concluded("columns", labels=Labels("regression"), **given)
    found, squares, _, _ = np.linalg.lstsq(x, y, rcond=None)
    variance = squares[0] / (len(x) - x.shape[1])
    expected = np.sqrt(variance * np.diag(np.linalg.inv(x.T @ x)))
    np.testing.assert_allclose(final.weights[0], found, rtol=1e-6)
    np.testing.assert_allclose(final.errors[0], expected, rtol=1e-6)
    assert final.degrees_of_freedom[0] == pytest.approx(len(x) - x.shape[1], abs=1e-4)


def penalised_logistic(x, y, weights, penalty):
    """Return the weighted fit by Newton's method, and the inverse of its information."""
    w = np.zeros(x.shape[1])
    for _ in range(12):
        p = 1 / (1 + np.exp(-x @ w))
        inverse = np.linalg.inv((x.T * (weights * p * (1 - p))) @ x + penalty * np.eye(len(w)))
        w -= inverse @ (x.T @ (weights * (p - y)) + penalty * w)
    return w, inverse


def test_the_inverse_information_covers_the_truth_without_weights_alone():
    """Hence there are no errors with weights; 200 fits of a balanced class of four percent."""
    truth, covered = np.array([0.8, -0.5, 0.3, -3.2]), {False: 0, True: 0}
    for seed in range(200):
        rng = np.random.default_rng(seed)
        x = np.column_stack([rng.normal(size=(1500, 3)), np.ones(1500)])
        y = 1.0 * (rng.random(1500) < 1 / (1 + np.exp(-x @ truth)))
        balanced = np.where(y > 0, 0.5 / y.mean(), 0.5 / (1 - y.mean()))
        for told, weights in ((False, np.ones(1500)), (True, balanced)):
            w, inverse = penalised_logistic(x, y, weights, 1e-6 * 1500)
            reach = 1.96 * np.sqrt(np.diag(inverse))
            covered[told] += (abs(w - truth) < reach)[:3].mean() / 200
    assert 0.91 < covered[False] < 0.98
    assert covered[True] < 0.8


@pytest.mark.parametrize("loss", ["logistic", "squared"])
def test_with_weights_a_note_says_why_there_are_none(loss):
    labels = Labels("regression") if loss == "squared" else BINARY
    labels = dataclasses.replace(labels, weighted=True)

    def change(one):
        return dataclasses.replace(one, weights=np.where(one.samples % 2, 0.5, 1.5))

    _, _, final = concluded("columns", "plain", labels, 4, change, loss=loss, errors=True)
    assert final.errors is None
    (note,) = final.notes
    assert note.startswith("No standard errors (algorithm.errors): rows or classes have weights")


@pytest.mark.parametrize(("samples", "has"), [(60, True), (59, False)])
def test_of_few_common_samples_for_the_columns_of_a_client_there_are_none(samples, has):
    """A part of the inverse as wide as there are samples holds the other's columns row by row."""
    x, y = table(400, 8, 0)
    blocks = {
        "wide": block(x, y, range(340 + samples), range(6)),
        "narrow": block(x, y, range(340, 400), range(6, 8), labels=False),
    }
    engine = engine_over(blocks, "masked")
    server = begun(engine, HyFDCA(loss="logistic", errors=True))
    engine.begin_round(1)
    server, _ = HYFDCA.round(server, engine, engine.key())
    final = HYFDCA.conclude(server, engine, engine.key())
    assert (final.errors is not None) == has
    if not has:
        (note,) = final.notes
        assert "'wide' with 6 columns and 'narrow' with 2 have 59 samples in common" in note


def test_a_client_refuses_errors_of_few_common_samples():
    x, y = table(59, 8, 0)
    blocks = {
        "wide": block(x, y, range(59), range(6)),
        "narrow": block(x, y, range(59), range(6, 8), labels=False),
    }
    engine = engine_over(blocks, "masked")
    server = begun(engine, HyFDCA(loss="logistic", errors=True))
    engine.begin_round(1)
    server, _ = HYFDCA.round(server, engine, engine.key())
    phase = newton.take_all(server.phase)
    with pytest.raises(RefusedError, match="59 samples are common to this client"):
        newton.reveal_errors(phase, engine, newton.share_model(engine).w, engine.key())


@pytest.mark.parametrize(("weight", "known"), [(1e-6, True), (1e-9, False)])
def test_errors_are_told_to_one_percent_or_not_at_all(weight, known):
    """Columns 0 and 4 of two clients are equal: their errors are those of the penalty."""
    x, y = table(400, 6, 0)
    x[:, 4] = x[:, 0]
    engine = engine_over(rectangles(x, y, 1, 3), "masked")
    given = {"loss": "logistic", "regularisation": weight, "errors": True, "method": "newton"}
    server = begun(engine, HyFDCA(**given))
    for number in range(1, 13):
        engine.begin_round(number)
        server, _ = HYFDCA.round(server, engine, engine.key())
    final = HYFDCA.conclude(server, engine, engine.key())
    _, inverse = penalised_logistic(x, y > 0, np.ones(400), weight * 400)
    truth = np.sqrt(np.diag(inverse))
    told = in_order(engine.schema("train"), final.errors)[0]
    assert np.isnan(told[[0, 4]]).all() != known
    there = ~np.isnan(told)
    np.testing.assert_allclose(told[there], truth[there], rtol=0.01)
    assert len(final.notes) == (not known)


def test_without_a_degree_of_freedom_a_note_says_why_there_are_none():
    x, _ = table(12, 20, 0)
    engine = engine_over(rectangles(x, x[:, 0], 2, 1), labels=Labels("regression"))
    server = begun(engine, HyFDCA(loss="squared", regularisation=1e-6, errors=True))
    engine.begin_round(1)
    server, _ = HYFDCA.round(server, engine, engine.key())
    final = HYFDCA.conclude(server, engine, engine.key())
    assert np.isnan(final.errors).all()
    (note,) = final.notes
    assert "12 samples leave" in note


def test_with_more_features_than_a_shared_system_takes_a_note_says_why_there_are_none(monkeypatch):
    monkeypatch.setattr(newton, "MOST_FEATURES", 5)
    _, _, final = concluded("columns", loss="logistic", rounds=3, errors=True)
    assert final.errors is None
    (note,) = final.notes
    assert note == "No standard errors (algorithm.errors): there are 6 features, more than 5."


def test_without_being_asked_for_there_are_none():
    _, _, final = concluded("columns", loss="logistic", rounds=2)
    assert final.errors is None
    assert final.notes == ()


@pytest.mark.parametrize(
    "options",
    [
        {"loss": "hinge"},
        {"loss": "logistic", "method": "ascent"},
        {"loss": "logistic", "frame": False},
        {"loss": "logistic", "system": "rows"},
    ],
)
def test_errors_are_refused_where_nothing_gives_them(options):
    with pytest.raises(ExperimentError, match="standard errors"):
        HyFDCA(errors=True, **options)


def test_a_client_refuses_errors_that_the_experiment_did_not_ask_for():
    engine = after_a_round("columns", "logistic")[0]
    states = engine.get_states()
    messages = {
        name: newton_shares.InverseRoot(np.zeros((1, len(one.frame), len(one.frame))))
        for name, one in states.items()
    }
    with pytest.raises(RefusedError, match=r"algorithm\.errors of this experiment is false"):
        engine.sum(newton_shares.own_variances, messages)
    total = dict.fromkeys(messages, newton_shares.ZeroTotal(np.zeros((1, 6))))
    with pytest.raises(RefusedError, match=r"algorithm\.errors of this experiment is false"):
        engine.sum(newton_shares.zero_deviation, total)


def test_a_column_too_far_from_zero_has_no_error_of_the_intercept_there():
    def far(block):
        return dataclasses.replace(block, zero=np.full(len(block.features), -2e6))

    given = {"loss": "logistic", "regularisation": 1e-3, "errors": True}
    _, _, final = concluded("columns", "masked", rounds=3, change=far, **given)
    assert final.errors is not None
    assert final.zero_errors is None


def test_a_client_refuses_a_hessian_of_so_few_samples_that_it_tells_of_each():
    engine = after_a_round("columns", "logistic")[0]

    def gathered(budget):
        told = {"weight": np.ones(1), "step": np.zeros(1), "budget": budget, "framed": False}
        return engine.sum(
            newton_client.gather_point,
            {
                name: newton_client.Gather(one.alpha, **told, gram=False, faded=False)
                for name, one in engine.get_states().items()
            },
        )

    with pytest.raises(RefusedError, match="A budget of 239 samples was told for the Hessian"):
        gathered(239)  # of 240, which are fewer than the least
    gathered(240)


@pytest.mark.slow
def test_a_shared_system_smooths_more_where_smoothing_stands_still():
    """Nearly dependent columns, outlying rows and λ 1e-7."""
    x, y = ill_conditioned(1500, 150, seed=5)
    options = HyFDCA(loss="hinge", regularisation=1e-7, system="shares")
    engine, server = started(HYFDCA, options, rectangles(x, y, 2, 2), BINARY)
    info = train(HYFDCA, engine, server, 120, tolerance=1e-6)
    assert info.info.gap_relative <= 1e-6


def test_a_system_of_nonsense_comes_to_numbers(monkeypatch):
    schema = Schema.of(federation("grid")[2], BINARY)
    dealer = newton_shares.deal_overlaps(schema)
    system = -np.diag(np.arange(1.0, len(schema.features) + 1))  # what no sum of squares comes to
    opened = [(system, np.ones(len(system)))]
    monkeypatch.setattr(newton_shares, "_open_system", lambda *_: opened)
    found = newton_shares.solve_shared(None, dealer, None, 1, None, None, smoothed=False)
    assert all(np.isfinite(one).all() for one in found.values())
