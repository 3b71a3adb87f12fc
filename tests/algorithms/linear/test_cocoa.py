"""CoCoA by itself, and as the horizontal case of HyFDCA."""

import numpy as np
import pytest
from scipy.sparse import csr_array

import federations
from federations import ON_SIGNS
from intarsia.algorithms.hyfdca.algorithm import HYFDCA
from intarsia.algorithms.hyfdca.state import HyFDCA
from intarsia.algorithms.linear.cocoa import COCOA, CoCoA
from intarsia.core.block import Block, Labels
from intarsia.core.client_functions import RandomKey
from intarsia.errors import ExperimentError, FederationError
from intarsia.maths.linear import losses, sdca
from intarsia.maths.linear.products import row_norms

SEED = 5
LABELS = Labels("binary", ("no", "yes"))
NAMES = tuple(f"f{c}" for c in range(6))
ALL = pytest.mark.parametrize("loss", ON_SIGNS)


def table(samples=90, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(samples, 6))
    return x, np.sign(x @ rng.normal(size=6) + 0.5 * rng.normal(size=samples))


def horizontal(x, y, clients=3, layout=np.ascontiguousarray):
    groups = np.array_split(np.arange(len(x)), clients)
    return {f"c{k}": Block(rows, NAMES, layout(x[rows]), y[rows]) for k, rows in enumerate(groups)}


def started(algorithm, options, blocks):
    return federations.started(algorithm, options, blocks, LABELS, SEED)


def iterates(algorithm, options, blocks, rounds, present=None):
    """Return the weights after each round."""
    engine, server = started(algorithm, options, blocks)
    path = []
    for number in range(1, rounds + 1):
        engine.begin_round(number, present(number) if present else None)
        server, _ = algorithm.round(server, engine, engine.key())
        path.append(engine.reveal(server.w))
    engine.begin_round(rounds + 1)
    return np.array(path), algorithm.conclude(server, engine, engine.key())


@ALL
@pytest.mark.parametrize("layout", [np.ascontiguousarray, csr_array], ids=["dense", "csr"])
def test_hyfdca_on_horizontal_data_is_cocoa(loss, layout):
    x, y = table()
    blocks = horizontal(x, y, layout=layout)
    keys = {"loss": loss, "regularisation": 0.01, "local_samples": 0.5}
    cocoa, _ = iterates(COCOA, CoCoA(gamma=0.7, sigma=1.9, **keys), blocks, 12)
    hyfdca, _ = iterates(
        HYFDCA, HyFDCA(method="ascent", gamma=0.7, sigma=1.9, step="fixed", **keys), blocks, 12
    )
    np.testing.assert_allclose(hyfdca, cocoa, atol=1e-12 * abs(cocoa).max())


@ALL
def test_hyfdca_with_one_client_is_dual_ascent(loss):
    x, y = table()
    options = HyFDCA(loss=loss, regularisation=0.01, method="ascent", step="fixed", gamma=1.0)
    path, _ = iterates(HYFDCA, options, horizontal(x, y, clients=1), 8)
    alpha, w, expected = np.zeros((1, 90)), np.zeros((1, 6)), []
    for number in range(1, 9):
        key = RandomKey((SEED, number, 1, "c0", "local_dual_ascent"))
        order = key.generator().permutation(90)
        sdca.ascend(
            x, y, row_norms(x), alpha, w, order,
            regularisation=0.01, loss=losses.loss_code(loss),
        )  # fmt: skip
        expected.append(w.copy())
    np.testing.assert_allclose(path, expected, atol=1e-12 * abs(w).max())


@ALL
@pytest.mark.parametrize("averaging", [False, True], ids=["adding", "averaging"])
def test_cocoa_reaches_the_centralised_optimum(loss, averaging):
    x, y = table()
    best = sdca.fit(
        x, y, loss=losses.loss_code(loss), regularisation=0.05, rng=np.random.default_rng(0)
    )
    options = CoCoA(loss=loss, regularisation=0.05, gamma=1 / 3 if averaging else 1.0)
    _, conclusion = iterates(COCOA, options, horizontal(x, y), 300)
    assert conclusion.info.gap_relative < 1e-3
    assert conclusion.info.primal == pytest.approx(best.primal, rel=1e-3)
    assert conclusion.info.dual <= best.primal + 1e-12


def test_cocoa_reaches_the_optimum_with_one_client_at_a_time():
    x, y = table()
    options = CoCoA(loss="squared_hinge", regularisation=0.05)
    _, conclusion = iterates(
        COCOA, options, horizontal(x, y), 300, lambda number: [f"c{number % 3}"]
    )
    assert conclusion.info.gap_relative < 1e-3


def test_safe_adding_never_lowers_the_dual():
    x, y = table()
    engine, server = started(COCOA, CoCoA(regularisation=0.01), horizontal(x, y))
    duals = []
    for number in range(1, 15):
        engine.begin_round(number)
        server, _ = COCOA.round(server, engine, engine.key())
        server, info = COCOA.certify(server, engine, engine.key())
        duals.append(info.dual)
    assert (np.diff(duals) >= -1e-14).all()


def test_other_features_are_refused():
    x, y = table()
    blocks = horizontal(x, y)
    blocks["c2"] = blocks["c2"].take(None, np.arange(5))
    with pytest.raises(FederationError, match="'c0' and 'c2' differ in 1 feature"):
        started(COCOA, CoCoA(), blocks)


def test_shared_samples_are_refused():
    x, y = table()
    blocks = {"a": Block(np.arange(50), NAMES, x[:50], y[:50])}
    blocks["b"] = Block(np.arange(40, 90), NAMES, x[40:], y[40:])
    with pytest.raises(FederationError, match="10 samples are held by more than one client"):
        started(COCOA, CoCoA(), blocks)


def test_samples_without_a_label_are_refused():
    x, y = table()
    y[:4] = np.nan
    with pytest.raises(FederationError, match="4 training samples have no label"):
        started(COCOA, CoCoA(), horizontal(x, y))


@pytest.mark.parametrize(
    ("key", "value"),
    [("regularisation", -1.0), ("gamma", 1.5), ("sigma", 0.0), ("local_samples", 0.0)],
)
def test_impossible_settings_are_refused(key, value):
    with pytest.raises(ExperimentError, match=rf"algorithm\.{key} is {value}"):
        CoCoA(**{key: value})
