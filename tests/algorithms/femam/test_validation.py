"""How sure the levels of FeMAM are before the next begins, by rows that none was trained on."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

pytest.importorskip("torch")

from federations import started
from intarsia.algorithms.femam import client as femam_client
from intarsia.algorithms.femam.algorithm import FEMAM
from intarsia.algorithms.femam.hyperparameters import FeMAM
from intarsia.algorithms.femam.validation import FACTORS, best_factor, losses_by_factor
from intarsia.core.block import Block, Labels

OPTIONS = FeMAM(
        level_schedule="paper",
    levels=("global", "personal"), first_rounds=20, level_rounds=2, local_epochs=5, window=0,
    prune="never", validation=0.3, rate=0.2, hidden=6, latent=4, precision="double", engine="loop",
)  # fmt: skip


def clients(seed=0):
    """Return clients of two classes that overlap: rows learned by heart tell little of others."""
    rng = np.random.default_rng(seed)
    made = {}
    for number in range(4):
        y = np.arange(20) % 2
        x = 0.7 * y[:, None] + rng.normal(size=(20, 3))
        made[f"c{number}"] = Block(100 * number + np.arange(20), ("a", "b", "c"), x, y + 0.0)
    return made


def run(options, blocks, present=lambda number: None):
    """Return the engine and the server's state once level 2 has begun at all clients."""
    engine, server = started(FEMAM, options, blocks, Labels("multiclass", ("0", "1")))
    for number in range(1, options.first_rounds + options.level_rounds + 1):
        engine.begin_round(number, present(number))
        server, _ = FEMAM.round(server, engine, engine.key())
    return engine, server


def scores(state, block, level=1):
    """Return a level's scores, by the network that the client keeps."""
    own = femam_client.levels_of(FEMAM.model.network(state))[level]
    return femam_client.network_scores(own, OPTIONS.architecture, block)


@pytest.mark.parametrize("factor", [0.2, 0.5, 1.0, 1.5])
def test_the_factor_is_the_one_that_rows_bear_out(factor):
    """Rows whose labels are drawn by chances that the scores, times the factor, say."""
    rng = np.random.default_rng(0)
    scores = 4.0 * rng.normal(size=(20_000, 3))
    chances = np.exp(factor * scores)
    chances /= chances.sum(axis=1, keepdims=True)
    y = (rng.random((len(scores), 1)) > chances.cumsum(axis=1)).sum(axis=1) + 0.0
    parts = [losses_by_factor(scores[rows], y[rows]) for rows in np.split(np.arange(20_000), 4)]
    assert best_factor(np.sum(parts, axis=0)) == factor


def test_without_rows_nothing_is_scaled():
    assert best_factor(losses_by_factor(np.zeros((0, 2)), np.zeros(0))) == 1.0


def test_a_level_that_knows_its_rows_by_heart_is_made_less_sure_and_names_the_same_classes():
    blocks = clients()
    engine, server = run(OPTIONS, blocks)
    plain, _ = run(dataclasses.replace(OPTIONS, calibrated=False), blocks)
    factor = server.levels[0].factor
    assert factor in FACTORS
    assert factor < 1
    for name, state in engine.get_states().items():
        other = plain.get_states()[name]
        found, before = scores(state, blocks[name]), scores(other, blocks[name])
        np.testing.assert_allclose(found, factor * before, rtol=1e-12)
        # what the next level is trained upon is what the network says
        np.testing.assert_allclose(state.base, found, atol=1e-12)
        assert not np.allclose(state.latest["classifier.bias"], other.latest["classifier.bias"])


def test_the_factor_is_that_of_least_loss_over_all_clients():
    blocks = clients()
    plain, _ = run(dataclasses.replace(OPTIONS, calibrated=False), blocks)
    _, server = run(OPTIONS, blocks)
    rows, labels = [], []
    for name, state in plain.get_states().items():
        rows.append(scores(state, blocks[name])[state.held_out])
        labels.append(blocks[name].y[state.held_out])
    z, y = np.concatenate(rows), np.concatenate(labels).astype(int)

    def loss(factor):
        return (np.log(np.exp(factor * z).sum(axis=1)) - factor * z[np.arange(len(y)), y]).mean()

    assert server.levels[0].factor == min(FACTORS, key=loss)


def test_who_comes_late_takes_the_factor_of_those_that_were_there():
    first = OPTIONS.first_rounds + 1
    engine, server = run(OPTIONS, clients(), present=lambda n: ("c0", "c2") if n == first else None)
    plain = dataclasses.replace(OPTIONS, calibrated=False)
    other, _ = run(plain, clients(), present=lambda n: ("c0", "c2") if n == first else None)
    blocks = clients()
    for name, state in engine.get_states().items():
        before = scores(other.get_states()[name], blocks[name])
        found = scores(state, blocks[name])
        np.testing.assert_allclose(found, server.levels[0].factor * before, rtol=1e-12)


def test_the_last_level_is_left_as_it_is():
    engine, server = run(OPTIONS, clients())
    engine.begin_round(99)
    FEMAM.conclude(server, engine, engine.key())
    assert server.levels[1].factor is None
