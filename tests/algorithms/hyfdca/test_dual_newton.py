"""HyFDCA on sparse tables with more features than samples: chunks, then Newton in the dual."""

from __future__ import annotations

from types import SimpleNamespace

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
    train,
)
from intarsia.algorithms.hyfdca import dual_newton, minibatch_ascent
from intarsia.algorithms.hyfdca.algorithm import HYFDCA
from intarsia.algorithms.hyfdca.state import HyFDCA
from intarsia.core.block import Labels
from intarsia.core.client_functions import RandomKey, evolve
from intarsia.engines import codec
from intarsia.maths.linear import losses
from intarsia.maths.linear.minibatch_sdca import coupled_steps

EVERY_LOSS = pytest.mark.parametrize("loss", ON_SIGNS)
GRIDS = {
    "one client": {"rows": 1, "columns": 1},
    "horizontal": {"rows": 3, "columns": 1},
    "vertical": {"rows": 1, "columns": 3},
    "grid": {"rows": 2, "columns": 2},
    "overlaps": {"rows": 2, "columns": 2, "shared_rows": 9, "shared_columns": 20},
    "labels at some": {"rows": 2, "columns": 2, "shared_rows": 9, "labels": "first"},
}
EVERY_GRID = pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS)
WEIGHT = 0.003  # λ


def text(samples=90, features=150, seed=0):
    """Return sparse rows of few positive entries and unit length, and labels."""
    rng = np.random.default_rng(seed)
    x = rng.random((samples, features)) * (rng.random((samples, features)) < 0.08)
    x[:, :3] += 0.2
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    y = np.sign(x @ rng.normal(size=features) + 0.02 * rng.normal(size=samples))
    return csr_array(x), np.where(y == 0, 1.0, y)


def options(**given):
    return HyFDCA(**{"regularisation": WEIGHT, **given})


def infos(engine, server, rounds, present=lambda number: None, first=1):
    found = []
    for number in range(first, first + rounds):
        engine.begin_round(number, present(number))
        server, info = HYFDCA.round(server, engine, engine.key())
        found.append(info)
    return server, found


@EVERY_LOSS
@EVERY_GRID
def test_it_reaches_the_optimum_that_other_libraries_find(loss, grid):
    x, y = text()
    engine, server = started(HYFDCA, options(loss=loss), rectangles(x, y, **grid))
    found = train(HYFDCA, engine, server, 150, tolerance=1e-7)
    assert found.info.phase == "dual newton"
    assert found.info.gap_relative < 1e-6
    code = losses.loss_code(loss)
    best = optimum(x, y, loss=code, regularisation=WEIGHT)
    w = in_order(engine.schema("train"), found.weights)[0]
    primal = objective(x, y, w, loss=code, regularisation=WEIGHT)
    assert primal == pytest.approx(found.info.primal, rel=1e-9)
    assert primal <= objective(x, y, best, loss=code, regularisation=WEIGHT) * (1 + 1e-6)
    np.testing.assert_allclose(w, best, atol=5e-3 * abs(best).max())


@EVERY_LOSS
def test_each_output_of_a_multiclass_model_is_solved(loss):
    if loss == "squared":
        pytest.skip("one-vs-rest is for classification")
    x, _ = text()
    y = np.arange(90) % 3 + 0.0
    blocks = rectangles(x, y, 2, 2, shared_rows=5)
    labels = Labels("multiclass", ("a", "b", "c"))
    engine, server = started(HYFDCA, options(loss=loss), blocks, labels)
    found = train(HYFDCA, engine, server, 150, tolerance=1e-7)
    assert found.info.gap_relative < 1e-6
    code = losses.loss_code(loss)
    weights = in_order(engine.schema("train"), found.weights)
    for c in range(3):
        signs = np.where(y == c, 1.0, -1.0)
        best = optimum(x, signs, loss=code, regularisation=WEIGHT)
        primal = objective(x, signs, weights[c], loss=code, regularisation=WEIGHT)
        assert primal <= objective(x, signs, best, loss=code, regularisation=WEIGHT) * (1 + 1e-5)


@EVERY_LOSS
def test_chunks_never_lower_the_dual(loss):
    x, y = text()
    engine, server = started(HYFDCA, options(loss=loss), rectangles(x, y, 2, 2, shared_rows=5))
    duals = []
    for number in range(1, 4):
        engine.begin_round(number)
        server, info = HYFDCA.round(server, engine, engine.key())
        assert isinstance(server.phase, minibatch_ascent.ChunkAscent)
        _, certified = HYFDCA.certify(server, engine, engine.key("certify"))
        duals.append(certified.dual)
        assert info.dual == pytest.approx(certified.dual, rel=1e-12)
        if minibatch_ascent.exhausted(server.phase):
            break
    if loss != "logistic":
        assert (np.diff(duals) > -1e-12).all()


def test_a_client_steps_on_the_scores_of_the_rows_that_it_reads():
    # another client reads the first two rows of the chunk; no row has anything of the mean row
    everyone, z = np.arange(6), np.array([[0.3, -0.2, 0.9, 0.1]])
    before = SimpleNamespace(
        options=options(loss="squared"),
        samples=6,
        norms=0.5 + 0.1 * everyone,
        score_order=everyone,
        score_stops=np.array([2, 4, 6]),
        sample_cells=((0, 2), (2, 6)),
    )
    x, y = text(samples=6)
    walker = minibatch_ascent.Walker(
        before=before,
        alpha=np.zeros((1, 6)),
        w=np.zeros((1, 150)),
        along=np.zeros(6),
        counted=everyone >= 2,
        number=0,
        chunks=(everyone,),
        edges=np.array([[0, 2, 4, 6]]),
    )
    totals = minibatch_ascent.ChunkTotals(z=z, moved=None, taken=np.zeros(1))
    _, found = minibatch_ascent.find_steps.call(
        walker, block(x, y, range(6), range(150)), totals, RandomKey((0,))
    )
    # the maximum of D along each α_i: α_i = (y_i - z_i)/(1 + ‖x_i‖²/(λN))
    expected = np.zeros(6)
    expected[2:] = (y[2:] - z[0]) / (1 + before.norms[2:] / (WEIGHT * 6))
    np.testing.assert_allclose(found.alpha[0], expected, rtol=1e-12)


@pytest.mark.parametrize("columns", [1, 3])
def test_one_walk_passes_over_an_overlap_group_however_many_hold_its_labels(columns, monkeypatch):
    walks = []

    def spied(*given):
        walks.append((len(given[6]), given[7].tolist(), given[8].tolist()))
        return coupled_steps(*given)

    monkeypatch.setattr(minibatch_ascent, "coupled_steps", spied)
    x, y = text()
    engine, server = started(HYFDCA, options(), rectangles(x, y, 2, columns))
    infos(engine, server, 1)
    # 45 rows a group in five chunks: two walks at the same time, and no other
    assert walks == [(9, [0, 9], [2.0])] * 10


def test_labels_at_some_owners_give_the_steps_of_labels_at_all():
    # where one client counts all labels of its rows, it walks as the co-owners would
    x, y = text()
    duals = []
    for columns in ([range(150)], [range(70), range(70, 150)]):
        blocks = {
            f"c{k}": block(x, y, range(90), own, labels=k == 0) for k, own in enumerate(columns)
        }
        engine, server = started(HYFDCA, options(), blocks)
        _, found = infos(engine, server, 2)
        duals.append([info.dual for info in found])
    np.testing.assert_allclose(duals[0], duals[1], rtol=1e-9)


def test_clients_may_be_away_in_any_phase():
    x, y = text()

    def present(number):
        return ["r0c0", "r0c1", "r1c0"] if number in (2, 3, 9, 10) else None

    engine, server = started(HYFDCA, options(), rectangles(x, y, 2, 2, shared_rows=5))
    server, found = infos(engine, server, 12, present)
    assert [info.phase for info in found[:5]] == [
        "chunk ascent",
        "proximal ascent",
        "proximal ascent",
        "proximal ascent",  # all are back, and stay
        "chunk ascent",
    ]
    # what away clients lack is made up for when they are back
    found = train(HYFDCA, engine, server, 100, tolerance=1e-7, first=13)
    assert found.info.gap_relative < 1e-6


def test_a_stall_is_handed_to_newtons_method_in_the_primal():
    x, y = text()
    engine, server = started(HYFDCA, options(), rectangles(x, y, 2, 2))
    number = 1
    while not isinstance(server.phase, dual_newton.DualNewton):
        engine.begin_round(number)
        server, _ = HYFDCA.round(server, engine, engine.key())
        number += 1
    stalled = evolve(server.phase, stalled=True)
    server = evolve(server, phase=stalled)
    found = train(HYFDCA, engine, server, 150, tolerance=1e-6, first=number)
    assert found.info.phase == "newton"
    assert found.info.gap_relative < 1e-5


@pytest.mark.parametrize("stop", [1, 2, 12])
def test_a_resumed_run_takes_the_same_steps(stop):
    x, y = text()
    engine, server = started(HYFDCA, options(), rectangles(x, y, 2, 2, shared_rows=5))
    _, whole = infos(engine, server, 16)
    engine, server = started(HYFDCA, options(), rectangles(x, y, 2, 2, shared_rows=5))
    server, _ = infos(engine, server, stop)

    def written(state):
        kinds = (*HYFDCA.states, type(engine.books.seal(server).alpha))
        return codec.decode(codec.encode(state), *kinds)

    server = engine.books.unseal(written(engine.books.seal(server)))
    engine.set_states({name: written(state) for name, state in engine.get_states().items()})
    _, rest = infos(engine, server, 16 - stop, first=stop + 1)
    assert [info.dual for info in rest] == [info.dual for info in whole[stop:]]


def test_rows_of_zeros_and_samples_without_a_label_are_let_be():
    x, y = text()
    x = x.toarray()
    x[4] = 0.0
    rows = rectangles(csr_array(x), y, 2, 2)
    engine, server = started(HYFDCA, options(), rows)
    found = train(HYFDCA, engine, server, 150, tolerance=1e-7)
    assert found.info.gap_relative < 1e-6


def test_duals_without_curvature_leave_nothing_to_solve():
    # with so much regularisation every β is 1: no sample has curvature
    x, y = text()
    engine, server = started(HYFDCA, options(regularisation=50.0), rectangles(x, y, 2, 2))
    found = train(HYFDCA, engine, server, 30, tolerance=1e-9)
    assert found.info.gap_relative < 1e-8
    w = in_order(engine.schema("train"), found.weights)[0]
    np.testing.assert_allclose(w, x.T @ y / (50.0 * 90), rtol=1e-6, atol=1e-12)


def test_method_newton_stays_in_the_primal():
    x, y = text()
    engine, server = started(HYFDCA, options(method="newton"), rectangles(x, y, 2, 2), BINARY)
    _, found = infos(engine, server, 2)
    assert [info.phase for info in found] == ["newton", "newton"]
