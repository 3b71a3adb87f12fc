"""The barycentre of the clients' anchors, found by sums: against its equation and closed forms."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.linalg import sqrtm

torch = pytest.importorskip("torch")

import federations  # noqa: E402
import intarsia  # noqa: E402  after the skip where torch is missing
from intarsia.algorithms.flic import barycentre  # noqa: E402
from intarsia.algorithms.flic.algorithm import FLIC, Flic  # noqa: E402
from intarsia.algorithms.networks.client_network import with_parts  # noqa: E402
from intarsia.core.block import Block, Labels  # noqa: E402
from intarsia.core.client_functions import RandomKey, evolve  # noqa: E402
from intarsia.core.disclosure import Release  # noqa: E402
from intarsia.core.schema import Schema  # noqa: E402
from intarsia.errors import ConvergenceError, ExperimentError, SealedError  # noqa: E402

LABELS = Labels("binary", ("no", "yes"))
K = 3
OPTIONS = {
    "hidden": 8,
    "latent": K,
    "local_epochs": 2,
    "shared_epochs": 2,
    "final_epochs": 0,
    "pretraining_epochs": 2,
    "alignment_weight": 1.0,
    "rate": 0.02,
    "batch": 20,
    "variant": "hl",
    "anchor_scale": 1.0,
    "weight_decay": 0.0,
    "embedding_decay": 0.0,
    "anchor_covariance": "learned",
    "anchor_average": "barycentre",
    "precision": "double",
    "engine": "loop",
}


def clients():
    rng, made = np.random.default_rng(0), {}
    for number, width in enumerate((3, 5, 4)):
        y = rng.integers(0, 2, 40)
        x = rng.normal(size=(40, width)) * [0.5 + number] + y[:, None]
        rows = 1000 * number + np.arange(40)
        made[f"c{number}"] = Block(rows, tuple(f"f{j}" for j in range(width)), x, 2.0 * y - 1)
    return made


def started(**given):
    return federations.started(FLIC, Flic(**{**OPTIONS, **given}), clients(), LABELS)


def shared(engine, server):
    """Return what all share by name, as the engine may read it."""
    own = engine.get_states()["c0"]
    return with_parts(own.parameters, own.options.shared_parts, engine.reveal(server.shared))


def settled(own, start, steps):
    """Return the factors that the exchanges come to, from the clients' own covariances."""
    engine, server = started(barycentre_steps=steps)
    states = {}
    for (name, state), covariances in zip(engine.get_states().items(), own, strict=True):
        factors = np.linalg.cholesky(start)
        parameters = {**state.parameters, "anchors.factors": factors}
        both = (covariances, start)
        states[name] = evolve(state, parameters=parameters, barycentre=both)
    engine.set_states(states)
    engine.begin_round(1)
    before = shared(engine, server)["anchors.factors"]
    after = shared(engine, barycentre.settled(server, engine))["anchors.factors"]
    return np.linalg.cholesky(start) + after - before


def covariances(seed):
    factors = np.random.default_rng(seed).normal(size=(2, K, K + 2))
    return factors @ factors.swapaxes(-1, -2) / (K + 2)


def middle(S, own):
    """Return the right side of the barycentre's equation S = 1/n Σ (S^½ A_i S^½)^½."""
    root = np.real(sqrtm(S))
    return np.mean([np.real(sqrtm(root @ one @ root)) for one in own], axis=0)


def test_the_exchanges_come_to_the_barycentre():
    own, start = [covariances(seed) for seed in (1, 2, 3)], covariances(4)
    factors = settled(own, start, steps=30)
    for anchor in range(2):
        S = factors[anchor] @ factors[anchor].T
        np.testing.assert_allclose(S, middle(S, [one[anchor] for one in own]), atol=1e-10)
        assert (np.diag(factors[anchor]) > 0).all()
        np.testing.assert_array_equal(np.triu(factors[anchor], 1), 0.0)


def test_the_exchanges_come_to_what_pot_does():
    ot = pytest.importorskip("ot")
    own, start = [covariances(seed) for seed in (1, 2, 3)], covariances(4)
    factors = settled(own, start, steps=30)
    for anchor in range(2):
        parts = np.stack([one[anchor] for one in own])
        _, expected = ot.gaussian.bures_wasserstein_barycenter(np.zeros((3, K)), parts)
        np.testing.assert_allclose(factors[anchor] @ factors[anchor].T, expected, atol=1e-6)


def test_of_covariances_that_commute_one_step_averages_the_roots():
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(K, K)))[0]
    sizes = np.random.default_rng(1).uniform(0.5, 3.0, size=(4, 2, K))
    own = [turn @ (one[:, :, None] ** 2 * turn.T) for one in sizes[:3]]
    factors = settled(own, turn @ (sizes[3][:, :, None] ** 2 * turn.T), steps=1)
    expected = turn @ (sizes[:3].mean(0)[:, :, None] ** 2 * turn.T)
    np.testing.assert_allclose(factors @ factors.swapaxes(-1, -2), expected, atol=1e-10)


def test_a_round_ends_at_the_barycentre_of_what_its_clients_came_to():
    engine, server = started(barycentre_steps=8)
    before = shared(engine, server)
    kept, call = {}, barycentre.begun

    def watched(client, moved):
        kept[len(kept)] = moved.client.parameters["anchors.factors"]
        return call(client, moved)

    barycentre.begun = watched
    try:
        engine.begin_round(1, ("c0", "c2"))
        server, _ = FLIC.round(server, engine, engine.key())
    finally:
        barycentre.begun = call
    after = shared(engine, server)
    own = [np.tril(one) @ np.tril(one).swapaxes(-1, -2) for one in kept.values()]
    assert len(own) == 2
    for anchor in range(2):
        S = after["anchors.factors"][anchor] @ after["anchors.factors"][anchor].T
        np.testing.assert_allclose(S, middle(S, [one[anchor] for one in own]), atol=1e-9)
    assert np.abs(after["anchors.factors"] - before["anchors.factors"]).max() > 0.01
    # means and layers are averaged as ever
    plain, other = started(anchor_average="factors")
    plain.begin_round(1, ("c0", "c2"))
    other, _ = FLIC.round(other, plain, plain.key())
    for name in ("anchors.means", "shared.0.weight"):
        np.testing.assert_allclose(after[name], shared(plain, other)[name], atol=1e-12)
    factors = shared(plain, other)["anchors.factors"]
    assert np.abs(np.abs(factors) - np.abs(after["anchors.factors"])).max() > 1e-6
    assert all(state.barycentre == () for state in engine.get_states().values())


def test_the_server_reads_no_map_and_no_factor():
    engine, server = started()
    engine.begin_round(1)
    server, _ = FLIC.round(server, engine, engine.key())
    with pytest.raises(SealedError):
        np.asarray(server.shared)
    read = engine.books.traffic.summary()["by_message"]
    assert {"Maps", "Step", "Last"} <= set(read)


@pytest.mark.parametrize("mode", ["masked", "ckks"])
def test_sealed_sums_train_to_what_plain_ones_do(mode):
    tables = {name: (one.x, one.y) for name, one in clients().items()}
    given = {**OPTIONS, "algorithm": "flic", "rounds": 2, "yardsticks": False}
    plain = intarsia.run(tables=tables, **given)
    sealed = intarsia.run(tables=tables, privacy=mode, **given)
    assert sealed.metrics.server.loss == pytest.approx(plain.metrics.server.loss, rel=1e-4)
    assert sealed.metrics.server.loss != plain.metrics.server.loss  # masks round


def test_what_has_no_barycentre_is_said():
    with pytest.raises(ExperimentError, match="learned"):
        Flic(anchor_average="barycentre")
    with pytest.raises(ConvergenceError, match='anchor_average = "factors"'):
        settled([covariances(1)] * 3, np.stack([np.eye(K), np.diag([1.0, 1e-12, 1.0])]), steps=1)
    blocks = clients()
    schema = Schema.of(blocks, LABELS)
    with pytest.raises(ExperimentError, match=r"privacy\.epsilon"):
        FLIC.init_client(
            Flic(**OPTIONS),
            schema,
            "c0",
            blocks["c0"],
            RandomKey(("c0",)),
            release=Release(1.0, 1.0),
        )
