from __future__ import annotations

import numpy as np
import pandas
import pytest
from scipy.optimize import minimize
from scipy.sparse import csr_array

import intarsia
from federations import ON_SIGNS
from intarsia.core.block import Block, Labels
from intarsia.core.schema import Schema
from intarsia.engines.simulation import Simulation
from intarsia.errors import ConvergenceError, ExperimentError, FederationError
from intarsia.maths.linear import losses, sdca
from intarsia.results import comparison
from intarsia.training import baselines as yardsticks
from intarsia.training import registry as catalogue

LOSSES = sorted(ON_SIGNS)
WEIGHT = 1e-2


def grid(samples=160, features=6, seed=0, sparse=False):
    """Return 2 × 2 clients of one table, the whole table and its labels."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(samples, features))
    if sparse:
        x[rng.random(x.shape) < 0.5] = 0.0
    y = (x @ rng.normal(size=features) + 0.5 * rng.normal(size=samples) > 0).astype(int)
    names = [f"f{column}" for column in range(features)]
    tables, settings = {}, {}
    for r, rows in enumerate(np.array_split(np.arange(samples), 2)):
        for c, columns in enumerate(np.array_split(np.arange(features), 2)):
            own = x[np.ix_(rows, columns)]
            tables[f"r{r}c{c}"] = (csr_array(own) if sparse else own, y[rows])
            settings[f"r{r}c{c}"] = {"samples": rows, "names": [names[one] for one in columns]}
    return tables, settings, x, y


def trained(algorithm, loss, sparse=False, **settings):
    tables, own, *_ = grid(sparse=sparse)
    return intarsia.run(
        tables=tables,
        table_settings=own,
        algorithm=algorithm,
        loss=loss,
        regularisation=WEIGHT,
        standardise=False,
        **{"rounds": 2000, "tolerance": 1e-7, "test": 0.0, **settings},
    )


def objective(model, loss):
    """Return the objective of a fitted model on the whole table, intercept and all."""
    _, _, x, y = grid()
    order = [int(name[1:]) for name in model.feature_names_in_]
    w = np.append(np.ravel(model.coef_), model.intercept_)
    z = x[:, order] @ w[:-1] + w[-1]
    values = losses.value(losses.loss_code(loss), z, 2.0 * y - 1)
    return values.mean() + WEIGHT / 2 * w @ w


@pytest.mark.parametrize("loss", LOSSES)
def test_hyfdca_and_the_baselines_reach_one_optimum(loss):
    by_name = {
        name: trained(name, loss, yardsticks=False)
        for name in ("centralised", "hyfdca", "liblinear")
    }
    values = {name: objective(result.model, loss) for name, result in by_name.items()}
    assert values["centralised"] == pytest.approx(values["liblinear"], rel=1e-6)
    assert values["hyfdca"] == pytest.approx(values["liblinear"], rel=1e-6)
    found = by_name["centralised"]
    assert found.finished == "tolerance"
    assert found.certificate.dual <= values["liblinear"] * (1 + 1e-9)
    assert found.certificate.primal == pytest.approx(values["centralised"], rel=1e-9)


@pytest.mark.parametrize("loss", ["logistic", "squared", "squared_hinge"])
def test_liblinear_is_certified_where_its_scores_give_a_dual_point(loss):
    found = trained("liblinear", loss, yardsticks=False)
    assert 0 <= found.certificate.gap_relative + 1e-12 <= 1e-5
    assert any(note.startswith("The objective is ") for note in found.notes)


def test_liblinear_reads_sparse_tables():
    dense = trained("liblinear", "logistic")
    sparse = trained("liblinear", "logistic", sparse=True)
    assert sparse.finished == dense.finished == "algorithm"
    assert sparse.metrics.server.accuracy > 0.7


def test_liblinear_that_stops_early_says_so():
    found = trained("liblinear", "hinge", precision=1e-12, iterations=3, yardsticks=False)
    assert "without convergence" in found.notes[-1]


def test_the_centralised_baseline_is_its_own_yardstick():
    found = trained("centralised", "logistic")
    assert found.metrics.centralised == found.metrics.server
    assert found.metrics.clients.keys() == {"r0c0", "r0c1", "r1c0", "r1c1"}
    assert found.metrics.standalone.keys() == found.metrics.clients.keys()
    assert (found.exchanges, found.bytes["up"], found.bytes["down"]) == (0, 0, 0)
    assert any(one.startswith("No federation") for one in found.notes)


def test_few_rounds_leave_a_gap_that_is_said():
    found = trained("centralised", "hinge", rounds=2, yardsticks=False)
    assert (found.rounds, found.finished) == (2, "rounds")
    assert "above the tolerance" in found.notes[-1]


def test_standalone_is_each_client_on_its_own_columns():
    tables, *_ = grid()
    found = trained("standalone", "squared")
    x, y = tables["r0c0"]
    design, sign = np.hstack([x, np.ones((80, 1))]), 2.0 * y - 1
    w = np.linalg.solve(design.T @ design / 80 + WEIGHT * np.eye(4), design.T @ sign / 80)
    alone = found.metrics.clients["r0c0"]
    assert alone.loss == pytest.approx((0.5 * (design @ w - sign) ** 2).mean(), abs=1e-3)
    assert alone.accuracy == ((design @ w > 0) == (sign > 0)).mean()
    assert found.metrics.standalone == found.metrics.clients
    assert found.metrics.server is None
    assert found.model is None


@pytest.mark.parametrize("name", [*catalogue.ALGORITHMS, *yardsticks.BASELINES])
def test_every_algorithm_gives_the_same_keys(name):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 3))
    y = (x[:, 0] > 0).astype(int)
    tables = {"a": (x[:60], y[:60]), "b": (x[60:], y[60:])}
    settings = {"loss": "logistic", "regularisation": 0.1, "rounds": 100}
    found = intarsia.run(tables=tables, algorithm=name, **settings).to_dict()
    reference = intarsia.run(tables=tables, algorithm="hyfdca", **settings).to_dict()
    assert found.keys() == reference.keys()
    assert found["metrics"].keys() == reference["metrics"].keys()
    assert found["metrics"]["clients"].keys() == {"a", "b"}
    centralised, known = (one["metrics"]["centralised"] for one in (found, reference))
    figures, expected = centralised.pop("figures"), known.pop("figures")
    assert centralised == pytest.approx(known, abs=2e-3)
    for one in ("auc", "average_precision", "brier", "sensitivity", "specificity"):
        assert figures[one] == pytest.approx(expected[one], abs=2e-3), one


def test_compare_shows_algorithms_beside_each_other():
    results = [trained(name, "logistic") for name in ("hyfdca", "fedavg", "standalone")]
    groups = comparison.compare(results)
    assert [group.algorithm for group in groups] == ["hyfdca", "fedavg", "standalone"]
    assert groups[0].federated.mean >= groups[1].federated.mean > 0.5


def test_liblinear_needs_samples_of_both_classes():
    x = np.arange(40.0)[:, None]
    y = np.where(np.arange(40) == 7, 1, 0)
    own = {"samples": np.arange(40), "names": ["x"]}
    settings = {"algorithm": "liblinear", "test": 0.5, "yardsticks": False}
    tables = {"a": (x, y)}
    # by the salt, the one sample of its class is held out or not
    assert intarsia.run(tables=tables, table_settings={"a": own}, salt="2", **settings).model
    with pytest.raises(FederationError, match="one class"):
        intarsia.run(tables=tables, table_settings={"a": own}, salt="0", **settings)


@pytest.mark.parametrize(
    ("algorithm", "key", "value"),
    [
        ("centralised", "regularisation", 0.0),
        ("standalone", "loss", "hing"),
        ("liblinear", "precision", 0.0),
        ("liblinear", "iterations", 0),
    ],
)
def test_a_wrong_hyperparameter_is_one_sentence(algorithm, key, value):
    kind = yardsticks.BASELINES[algorithm].hyperparameters
    with pytest.raises(ExperimentError) as caught:
        kind(**{key: value})
    assert str(value) in str(caught.value)


# -- baselines


def table(samples=200, features=5, outputs=1, scale=1.0):
    rng = np.random.default_rng(3)
    x = scale * rng.normal(size=(samples, features))
    z = x @ rng.normal(size=(features, max(outputs, 2)))
    if outputs == 1:
        y = np.sign(z[:, 0] + 0.1)
        return Block(np.arange(samples), tuple("abcde"), x, y), Labels("binary", ("0", "1"))
    y = z.argmax(axis=1).astype(float)
    return Block(np.arange(samples), tuple("abcde"), x, y), Labels("multiclass", tuple("012"))


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("loss", LOSSES)
def test_newton_s_method_takes_over_where_dual_ascent_is_slow(loss, outputs):
    block, labels = table(outputs=outputs, scale=10.0)
    quick = yardsticks.optimum(
        block, labels, loss=loss, regularisation=1e-4, seed=0, tolerance=1e-6, epochs=1
    )
    slow = yardsticks.optimum(
        block, labels, loss=loss, regularisation=1e-4, seed=0, tolerance=1e-5, epochs=5000
    )
    assert quick.gap <= 1e-6
    assert quick.primal == pytest.approx(slow.primal, rel=1e-5)


def test_the_smooth_optimum_is_that_of_a_general_solver():
    block, labels = table()
    y, code = block.y[None, :], losses.LOGISTIC

    def primal(w):
        return sdca.primal_objective(
            (block.x @ w)[None, :], y, w[None, :], regularisation=WEIGHT, loss=code
        )

    found = yardsticks.optimum(block, labels, loss="logistic", regularisation=WEIGHT, seed=0)
    assert found.primal == pytest.approx(minimize(primal, np.zeros(5), tol=1e-12).fun, rel=1e-5)


def test_a_yardstick_that_does_not_converge_is_said(monkeypatch):
    def fail(*_):
        raise ConvergenceError("The objective is nan.")

    monkeypatch.setattr(yardsticks, "_EPOCHS", 1)
    monkeypatch.setattr(yardsticks, "_by_newton", fail)
    kept = yardsticks.optimum.__kwdefaults__
    monkeypatch.setattr(
        yardsticks.optimum, "__kwdefaults__", {**kept, "tolerance": 1e-5, "epochs": 1}
    )
    found = trained("hyfdca", "hinge")
    assert "centralised baseline did not converge" in found.notes[-2]
    assert "stand-alone models of 4 clients did not converge" in found.notes[-1]


def test_sparse_tables_that_overlap_are_pooled_entry_by_entry():
    rng = np.random.default_rng(3)
    x = np.where(rng.random((40, 6)) < 0.4, rng.normal(size=(40, 6)), 0.0)
    names = [f"f{column}" for column in range(6)]
    held = {"one": (slice(0, 30), slice(0, 4)), "two": (slice(20, 40), slice(2, 6))}
    blocks = {
        client: Block(
            np.arange(40)[rows],
            tuple(names[columns]),
            csr_array(x[rows, columns]),
            np.where(np.arange(40)[rows] % 2, 1.0, -1.0),
        )
        for client, (rows, columns) in held.items()
    }
    schema = Schema.of(blocks, Labels("binary", ("0", "1")))
    found = yardsticks.pooled(Simulation({"train": (schema, blocks)}, 0))
    whole = np.zeros_like(x)
    for rows, columns in held.values():
        whole[rows, columns] = x[rows, columns]
    at = [names.index(name) for name in found.features]
    np.testing.assert_allclose(found.x.toarray(), whole[found.samples][:, at], rtol=1e-15)
    assert found.x.has_canonical_format


def test_the_pooled_table_is_the_table_that_was_dealt():
    rng = np.random.default_rng(5)
    x = rng.normal(size=(300, 4))
    y = np.where(x[:, 0] > 0, "b", "a")
    names = ["p", "q", "r", "s"]
    frame = pandas.DataFrame(x, columns=names).assign(id=np.arange(300), y=y)
    tables = {
        "left": frame.loc[:199, ["id", "p", "q", "r", "y"]],
        "right": frame.loc[100:, ["id", "q", "r", "s", "y"]],
        "rest": frame.loc[:99, ["id", "s"]],
        "back": frame.loc[200:, ["id", "p"]],
    }
    whole = {"all": frame}
    settings = {"id": "id", "label": "y", "algorithm": "centralised", "loss": "logistic"}
    dealt = intarsia.run(tables=tables, **settings, regularisation=1e-2, rounds=500)
    pooled = intarsia.run(tables=whole, **settings, regularisation=1e-2, rounds=500)
    assert dealt.certificate.primal == pytest.approx(pooled.certificate.primal, rel=1e-5)
    assert dealt.metrics.server.accuracy == pooled.metrics.server.accuracy
