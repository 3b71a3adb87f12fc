"""The linear and Gaussian case of FLIC against its theorem."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest
from scipy.linalg import subspace_angles

import intarsia
from intarsia.algorithms.flic.linear import FLIC_LINEAR, FlicLinear
from intarsia.core.block import Block, Labels
from intarsia.core.schema import Schema
from intarsia.data.table import split
from intarsia.engines import codec
from intarsia.engines.communication_log import RECORDS
from intarsia.engines.simulation import Simulation
from intarsia.errors import CheckpointError, ExperimentError, FederationError, TableError
from intarsia.inference.predict import predict

K, D, CLIENTS, SAMPLES = 6, 2, 20, 1000
SIGNS = np.array([1, -1, 1, 1, -1, -1.0])  # Q
REGRESSION = Labels("regression")


def problem(seed=0, samples=SAMPLES, extra=3):
    """Return clients whose samples have exactly the moments of their Gaussians, A* and the β*_i."""
    rng = np.random.default_rng(seed)
    truth, _ = np.linalg.qr(rng.normal(size=(K, D)))
    heads = rng.normal(size=(CLIENTS, D))
    heads *= np.sqrt(D) / np.linalg.norm(heads, axis=1, keepdims=True)
    blocks = {}
    for number in range(CLIENTS):
        width = K + number % (extra + 1)
        u = rng.normal(size=(samples, width))
        u -= u.mean(0)
        u = u @ np.linalg.inv(np.linalg.cholesky(u.T @ u / samples)).T
        turn, _ = np.linalg.qr(rng.normal(size=(width, width)))
        turn *= np.sign(turn[np.abs(turn).argmax(0), np.arange(width)])
        x = rng.normal(size=width) + (u * np.sqrt(np.arange(width, 0, -1.0))) @ turn.T
        y = (SIGNS * u[:, :K]) @ truth @ heads[number]  # φ*(x) = Q u
        names = tuple(f"c{number}f{j}" for j in range(width))
        blocks[f"c{number:02d}"] = Block(10_000 * number + np.arange(samples), names, x, y)
    return blocks, truth, heads


def started(blocks, options, seed=0):
    schema = Schema.of(blocks, REGRESSION)
    engine = Simulation({"train": (schema, blocks)}, seed)
    engine.set_states(
        {
            name: FLIC_LINEAR.init_client(options, schema, name, engine.block(name), None)
            for name in engine.ids
        }
    )
    server = FLIC_LINEAR.init_server(options, schema, engine.key())
    return engine, FLIC_LINEAR.setup(server, engine, engine.key())


def distance(engine, server, truth):
    """Return the sine of the largest principal angle."""
    return float(np.sin(subspace_angles(engine.reveal(server.average), truth)[0]))


@pytest.mark.parametrize("share", [pytest.param(1.0, marks=pytest.mark.slow), 0.5])
def test_the_principal_angle_falls_as_fast_as_the_theorem_says(share):
    blocks, truth, heads = problem()
    spread = np.linalg.eigvalsh(heads.T @ heads / CLIENTS)
    step = 1 / (4 * spread[-1])
    engine, server = started(blocks, FlicLinear(latent=K, rank=D, step=step))
    found = [distance(engine, server, SIGNS[:, None] * truth)]
    plain = distance(engine, server, truth)
    rng = np.random.default_rng(1)
    for number in range(1, 201):
        drawn = sorted(rng.permutation(list(blocks))[: int(share * CLIENTS)])
        engine.begin_round(number, drawn)
        server, _ = FLIC_LINEAR.round(server, engine, engine.key())
        found.append(distance(engine, server, SIGNS[:, None] * truth))
    factor = 1 - step * (1 - found[0] ** 2) * spread[0] / 2
    rounds = np.arange(201)
    assert (np.array(found) <= factor ** (rounds / 2) * found[0] + 1e-12).all()
    assert found[-1] < 1e-9  # and on to A* itself, with Q
    assert min(plain, distance(engine, server, truth)) > 0.1  # not without it
    # geometrically: the logarithm falls along a line
    slopes = -np.diff(np.log(found))[10:100]
    assert slopes.mean() > 0.05
    assert slopes.std() < 0.5 * slopes.mean()


def test_every_client_predicts_exactly_once_the_representation_is_found():
    blocks, _, _ = problem(samples=100)
    engine, server = started(blocks, FlicLinear(latent=K, rank=D, step=0.25))
    for number in range(1, 201):
        engine.begin_round(number)
        server, _ = FLIC_LINEAR.round(server, engine, engine.key())
    engine.begin_round(201)
    conclusion = FLIC_LINEAR.conclude(server, engine, engine.key())
    assert conclusion.info.loss < 1e-16
    for name, state in engine.get_states().items():
        block = engine.block(name)
        np.testing.assert_allclose(FLIC_LINEAR.model.predict(state, block)[0], block.y, atol=1e-6)


def test_embedded_samples_are_standard_and_only_the_largest_directions_stay():
    blocks, _, _ = problem(samples=100)
    engine, _ = started(blocks, FlicLinear(latent=K, rank=D))
    for name, state in engine.get_states().items():
        z = (engine.block(name).x - state.mean) @ state.projection
        np.testing.assert_allclose(z.mean(0), 0, atol=1e-10)
        np.testing.assert_allclose(np.cov(z.T, ddof=0), np.eye(K), atol=1e-10)


def test_a_run_read_back_from_bytes_goes_on_to_the_same_bits():
    blocks, _, _ = problem(samples=50)
    options = FlicLinear(latent=K, rank=D)
    engine, server = started(blocks, options)
    written = codec.encode((engine.books.seal(server), engine.get_states()))
    sealed, states = codec.decode(written, *FLIC_LINEAR.states, *RECORDS)
    again, _ = started(blocks, options)
    again.set_states(states)
    found = []
    for one, at in ((engine, server), (again, again.books.unseal(sealed))):
        one.begin_round(1)
        at, _ = FLIC_LINEAR.round(at, one, one.key())
        found.append(one.reveal(at.average))
    assert np.array_equal(*found)


def test_a_run_on_tables_reaches_numbers_that_no_client_shares_a_column_for():
    blocks, _, _ = problem(samples=100)
    settings = {"latent": K, "rank": D, "step": 0.25, "rounds": 150, "yardsticks": False}
    found = intarsia.run(
        tables={name: (block.x, block.y) for name, block in blocks.items()},
        algorithm="flic-linear",
        test=0.0,  # the moments are exact over all samples
        standardise=False,
        intercept=False,
        task="regression",
        **settings,
    )
    assert min(one.r2 for one in found.metrics.clients.values()) > 1 - 1e-6


def tables(samples=60):
    """Return the clients' tables, with columns that no two have in common."""
    found = {}
    for name, block in problem(samples=samples)[0].items():
        columns = [f"{name}-{j}" for j in range(block.shape[1])]
        found[name] = pd.DataFrame(100 + 7 * block.x, columns=columns)
        found[name]["y"] = block.y
        found[name]["row"] = [f"{name}:{k}" for k in range(len(block.y))]
    return found


@pytest.mark.parametrize("standardise", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_run_leaves_a_model_of_each_client_that_predicts_what_was_evaluated(
    tmp_path, standardise
):
    out, known = tmp_path / "run", tables()
    known["c00"].loc[:9, "y"] = np.nan  # rows without a label count for the embedding
    found = intarsia.run(
        tables=known,
        algorithm="flic-linear",
        id="row",
        label="y",
        latent=K,
        rank=D,
        rounds=3,
        test=0.0,
        standardise=standardise,
        out=out,
    )
    model = intarsia.load(out).model
    assert list(model) == list(known) == list(found.model)
    assert (out / "model" / "clients").stat().st_mode & 0o077 == 0
    for name, table in known.items():
        held = table["y"].notna()
        error = model[name].predict(table[held]) - table["y"][held]
        assert (error**2).mean() / 2 == pytest.approx(found.metrics.clients[name].loss, rel=1e-6)
        np.testing.assert_array_equal(model[name].predict(table), found.model[name].predict(table))
    known["c01"].to_csv(tmp_path / "new.csv", index=False)
    told = predict(out, tmp_path / "new.csv")
    np.testing.assert_allclose(told.scores, model["c01"].predict(known["c01"]), rtol=1e-9)
    assert any("'c01'" in note for note in told.notes)
    with pytest.raises(ExperimentError, match="no client 'c77'"):
        predict(out, tmp_path / "new.csv", client="c77")
    with pytest.raises(KeyError, match="'c77'"):
        model["c77"]
    (out / "model" / "clients" / "00001.json").unlink()
    with pytest.raises(CheckpointError, match=r"00001\.json is not there"):
        predict(out, tmp_path / "new.csv")


def test_labels_have_a_mean_and_a_representation_of_full_rank_is_least_squares():
    rng = np.random.default_rng(0)
    known, expected = {}, {}
    for name, far in (("a", 5000.0), ("b", -300.0)):
        x = rng.normal(size=(80, 3)) @ rng.normal(size=(3, 3)) + 10
        y = far + x @ [3.0, -2, 1] + rng.normal(size=80)
        columns = [f"{name}{number}" for number in range(3)]
        known[name] = pd.DataFrame(x, columns=columns).assign(y=y)
        design = np.column_stack([x, np.ones(80)])
        expected[name] = design @ np.linalg.lstsq(design, y, rcond=None)[0]
    how = {"label": "y", "rounds": 2, "test": 0.0, "yardsticks": False, "out": None}
    found = intarsia.run(tables=known, algorithm="flic-linear", latent=3, rank=3, **how)
    for name, table in known.items():
        np.testing.assert_allclose(found.model[name].predict(table), expected[name], rtol=1e-9)
        rest = table["y"] - expected[name]
        assert found.metrics.clients[name].loss == pytest.approx((rest**2).mean() / 2, rel=1e-9)


def test_a_level_that_only_test_rows_have_is_none_of_the_model_that_is_written(tmp_path):
    known = tables(80)
    rows = Block(known["c00"]["row"].to_numpy(str), (), np.zeros((80, 0)))
    held = np.isin(rows.samples, split(rows)[1].samples)
    known["c00"]["kind"] = np.where(held, "rare", np.array(["one", "two"])[np.arange(80) % 2])
    out = tmp_path / "run"
    how = {"id": "row", "label": "y", "rounds": 1, "yardsticks": False, "out": out}
    found = intarsia.run(tables=known, algorithm="flic-linear", latent=K, rank=D, **how)
    read = intarsia.load(out).model["c00"]
    assert read.levels_ == {"kind": ("one", "two")}
    np.testing.assert_array_equal(
        read.predict(known["c00"]), found.model["c00"].predict(known["c00"])
    )


def test_a_run_names_the_baseline_to_compare_with(tmp_path):
    settings = {"id": "row", "label": "y", "rounds": 2}
    found = intarsia.run(tables=tables(), algorithm="flic-linear", latent=K, rank=D, **settings)
    advised = next(note for note in found.notes if "baselines" in note)
    assert advised.endswith('run algorithm.name = "standalone" with loss = "squared".')
    given = {"id": "row", "label": "y", "loss": "squared", "out": tmp_path / "alone"}
    alone = intarsia.run(tables=tables(), algorithm="standalone", **given)
    assert list(alone.metrics.standalone) == list(found.metrics.clients)
    (tmp_path / "new.csv").write_text("x0,x1\n1,2\n")
    with pytest.raises(CheckpointError, match="is finished and has no model: those of standalone"):
        predict(tmp_path / "alone", tmp_path / "new.csv")


def test_what_cannot_train_is_said():
    blocks, _, _ = problem(samples=20)
    schema = Schema.of(blocks, REGRESSION)
    with pytest.raises(FederationError, match="c00"):
        FLIC_LINEAR.init_server(FlicLinear(latent=7, rank=2), schema, None)
    with pytest.raises(FederationError, match="binary"):
        FLIC_LINEAR.begin(
            FlicLinear(latent=2, rank=2), Schema.of(blocks, Labels("binary", ("a", "b"))), None
        )
    flat = dataclasses.replace(blocks["c00"], x=blocks["c00"].x * (np.arange(6) < 2))
    with pytest.raises(TableError, match="c00"):
        started({**blocks, "c00": flat}, FlicLinear(latent=3, rank=2))
    with pytest.raises(ExperimentError, match="rank"):
        FlicLinear(latent=2, rank=3)
    with pytest.raises(ExperimentError, match="step"):
        FlicLinear(latent=2, rank=2, step=0.0)
