"""Who reads one client's update of a network on a category of many levels reads which it has.

A column that is 0 in all rows of a client moves no weight of the first layer. Levels of few
training rows count as missing before that, so that none of these is told. `femam` shows the server
single clients' models where it is to find groups, and sums.md says so.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import intarsia
from intarsia.algorithms.femam import clustering
from intarsia.algorithms.networks import client_network
from intarsia.core.client_functions import RandomKey
from intarsia.training.registry import algorithm_named

pytest.importorskip("torch")
LEVELS, ROWS, HIDDEN = 80, 300, 8


def tables():
    """Return three clients' rows, each at some of the shops, and the shops of five rows or more."""
    found = {}
    for number in range(3):
        rng = np.random.default_rng(number)
        own = rng.choice(LEVELS, 20, replace=False)
        shops = rng.choice(own, ROWS, p=rng.dirichlet(np.full(20, 0.7)))
        a = rng.normal(size=ROWS)
        frame = {"id": np.arange(ROWS) + 1000 * number, "a": a, "shop": [f"s{k}" for k in shops]}
        frame["label"] = (a + shops % 3 - 1 > 0).astype(int)
        found[f"c{number}"] = pd.DataFrame(frame)
    often = {}
    for name, one in found.items():
        counts = one["shop"].value_counts()
        often[name] = {*counts.index[counts >= 5]}
    return found, often


@pytest.mark.usefixtures("sparse_tables")
def test_an_update_tells_the_levels_of_five_rows_and_no_others(monkeypatch):
    own, often = tables()
    read = []

    def kept(clients):
        read.append((models_of(clients), clients.schema()))
        return read[-1][0]

    models_of = clustering.models_of
    monkeypatch.setattr(clustering, "models_of", kept)
    small = {"hidden": HIDDEN, "latent": 4, "local_epochs": 1, "final_epochs": 0}
    given = {"id": "id", "label": "label", "test": 0.0, "yardsticks": False, "rounds": 12}
    intarsia.run(tables=own, algorithm="femam", **given, **small, warm_up=1, patience=1)
    updates, schema = read[0]
    assert len(set.union(*often.values())) > 20  # of fewer all columns are centred
    options = algorithm_named("femam").hyperparameters(**small)
    for name, update in updates.items():
        features = schema.features.ids[schema.features.own(name)]
        alike = client_network.drawn(len(features), 2, options, RandomKey((0,)))
        first = client_network.with_parts(alike, ("*",), update)["embedding.0.weight"]
        moved = features[first.any(axis=0)].tolist()
        told = {one.removeprefix("shop=") for one in moved if one.startswith("shop=s")}
        assert told == often[name]
