"""Who reads one client's model, and has a list of rows, finds which of them the client has: open.

Where the server finds clusters it reads single clients' models (`fesem`, `femam`). All of a
client's training but its rows comes of the seed, so that any set of rows can be tried. A set that
has some of the right rows comes nearer to the model than others, and so the rows are found one by
one: it takes some hundred tries, not all sets that there are. Of `ifca` any other client does so of
one that is alone in its cluster, as all open the models of all clusters.
docs/explanations/privacy/few-rows.md says so.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch")

import federations
from intarsia.algorithms.femam import algorithm as femam
from intarsia.algorithms.femam import client as at_client
from intarsia.algorithms.femam import clustering
from intarsia.core.block import Block, Labels
from intarsia.training.registry import algorithm_named

FESEM = algorithm_named("fesem")
COLUMNS, CANDIDATES, ROWS = 8, 40, 5


def read(x, y, mine, monkeypatch):
    """Return a client's model as the server reads it, and what the seed tells of its training."""
    names = tuple(f"f{place}" for place in range(COLUMNS))
    rng, blocks = np.random.default_rng(1), {"few": Block(np.arange(ROWS), names, x[mine], y[mine])}
    for number in (1, 2):
        other = rng.normal(size=(30, COLUMNS))
        ids = 100 * number + np.arange(30)
        blocks[f"other{number}"] = Block(ids, names, other, np.arange(30) % 2 + 0.0)
    calls, models = [], []
    honest, models_of = at_client.train_level, clustering.models_of

    def together(given):
        calls.extend(call for call in given if len(call[1].samples) == ROWS)
        return honest.together(given)

    def told(clients):
        models.append(models_of(clients)["few"])
        return {name: np.zeros_like(models[-1]) for name in blocks}

    watched = replace(honest, together=together, call=lambda *call: together([call])[0])
    monkeypatch.setattr(femam, "train_level", watched, raising=False)
    monkeypatch.setattr(at_client, "train_level", watched)
    monkeypatch.setattr(clustering, "models_of", told)
    options = FESEM.hyperparameters(clusters=2, first_clustering=1)
    labels = Labels("multiclass", ("no", "yes"))
    engine, server = federations.started(FESEM, options, blocks, labels)
    engine.begin_round(1)
    FESEM.round(server, engine, engine.key())
    [call], [model] = calls, models
    return model, call, honest


def test_all_five_rows_are_found_among_candidates(monkeypatch):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(CANDIDATES, COLUMNS)), rng.integers(0, 2, CANDIDATES) + 0.0
    mine = rng.choice(CANDIDATES, ROWS, replace=False)
    model, (client, block, *more), honest = read(x, y, mine, monkeypatch)
    np.testing.assert_array_equal(x[mine], block.x)  # as all rows are prepared

    def off(sets):
        tried = [replace(block, x=x[some], y=y[some]) for some in sets]
        found = honest.together([(client, one, *more) for one in tried])
        return [np.abs(at_client._told(state) - model).mean() for state, _ in found]

    found, least = nearest(off, rng)
    assert set(found) == set(mine.tolist())
    assert least < 1e-6


def nearest(off, rng, *, starts=5, among=lambda some: True):
    """Return the set of candidates that comes nearest, and how near.

    From each of some sets that are drawn one row is put in another's place until none comes nearer.
    """
    for _ in range(starts):
        found, least = rng.choice(CANDIDATES, ROWS, replace=False).tolist(), np.inf
        place = still = 0
        while still < ROWS and least > 1e-6:
            others = [one for one in range(CANDIDATES) if one not in found]
            sets = [[*found[:place], one, *found[place + 1 :]] for one in others]
            sets = [some for some in sets if among(some)]
            each = off(sets) if sets else [np.inf]
            if min(each) < least:
                least, found, still = min(each), sets[int(np.argmin(each))], 0
            place, still = (place + 1) % ROWS, still + 1
        if least < 1e-6:
            break
    return found, least


def test_a_client_that_is_alone_in_a_cluster_of_ifca_has_its_rows_found_by_others(monkeypatch):
    calls, own, told = [], [], []
    honest, tried = at_client.train_level, at_client.try_model

    def together(given):
        found = honest.together(given)
        for call, (state, _) in zip(given, found, strict=True):
            if len(call[1].samples) == ROWS:
                calls.append(call)
                own.append(at_client._told(state))
        return found

    def compared(client, block, message, key):
        if len(block.samples) != ROWS:  # another client
            told.append(np.asarray(message.model))
        return tried.call(client, block, message, key)

    watched = replace(honest, together=together, call=lambda *call: together([call])[0])
    monkeypatch.setattr(femam, "train_level", watched, raising=False)
    monkeypatch.setattr(at_client, "train_level", watched)
    monkeypatch.setattr(at_client, "try_model", replace(tried, call=compared))
    names = tuple(f"f{place}" for place in range(COLUMNS))
    for seed in range(20):  # until it is alone after the first round
        rng = np.random.default_rng(seed)
        x, y = rng.normal(size=(CANDIDATES, COLUMNS)), rng.integers(0, 2, CANDIDATES) + 0.0
        mine = rng.choice(CANDIDATES, ROWS, replace=False)
        blocks = {"few": Block(np.arange(ROWS), names, x[mine], y[mine])}
        for number in (1, 2):
            ids, other = 100 * number + np.arange(30), rng.normal(size=(30, COLUMNS))
            blocks[f"other{number}"] = Block(ids, names, other, np.arange(30) % 2 + 0.0)
        for some in (calls, own, told):
            some.clear()
        ifca = algorithm_named("ifca")
        labels = Labels("multiclass", ("no", "yes"))
        engine, server = federations.started(ifca, ifca.hyperparameters(clusters=3), blocks, labels)
        for number in (1, 2):
            engine.begin_round(number)
            server, _ = ifca.round(server, engine, engine.key())
        opened = [model for model in told if np.allclose(model, own[0], atol=1e-7)]
        if opened:
            break
    client, block, *more = calls[0]

    def off(sets):
        given = [replace(block, x=x[some], y=y[some]) for some in sets]
        found = honest.together([(client, one, *more) for one in given])
        return [np.abs(at_client._told(state) - opened[0]).mean() for state, _ in found]

    found, least = nearest(off, rng)
    assert set(found) == set(mine.tolist())
    assert least < 1e-6
