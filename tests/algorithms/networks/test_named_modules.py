"""An embedding of the user's own, "module:name", in every algorithm on networks."""

from __future__ import annotations

import importlib.util

import numpy as np
import pandas as pd
import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is missing", allow_module_level=True)
from torch import nn

import intarsia
from intarsia.algorithms.networks.embeddings import Perceptron
from intarsia.errors import ExperimentError

HERE = __name__
LATENT = {"latent": 4, "hidden": 8}
# beside what all have: short trainings, of all that an algorithm does
OWN = {
    "ditto": {},
    "fedavg-ft": {},
    "fedhenn": {},
    "fedprox": {},
    "fedrep": {"shared_layers": 1},
    "femam": {"warm_up": 2},
    "fesem": {"clusters": 2, "first_clustering": 2},
    "flic": {"pretraining_epochs": 2, "variant": "class"},
    "hetfedrep": {},
    "ifca": {"clusters": 2},
    "l2gd": {},
    "local": {},
    "pfedme": {"local_rounds": 2},
}
# fedrep shares the layers of its own embedding one by one; the server of hetfedrep draws what all
# share behind an embedding of another width
OTHERS = ("fedrep", "hetfedrep")
APART = ("fedhenn", "flic", "hetfedrep", "local")  # whose clients may have features of their own


def same(features, latent):
    """Return the embedding that the algorithms have of themselves."""
    return Perceptron(features, 8, latent, 0.0)


def fixed(features, latent):
    """Return an embedding that takes rows of one width alone, as pictures are."""
    layers = nn.Conv1d(1, 2, 3, padding=1), nn.GroupNorm(1, 2), nn.Tanh(), nn.Flatten()
    return nn.Sequential(nn.Unflatten(1, (1, features)), *layers, nn.Linear(2 * features, latent))


def normed(features, latent):
    return nn.Sequential(nn.Linear(features, latent), nn.BatchNorm1d(latent))


def narrow(features, latent):
    return nn.Linear(features, latent - 1)


def tables(apart=False):
    """Return three clients, whose columns are their own where they are `apart`."""
    rng, found = np.random.default_rng(0), {}
    for number, client in enumerate("abc"):
        width = 3 + number * apart
        x = rng.normal(size=(40, width))
        names = [f"{client}{at}" if apart else f"x{at}" for at in range(width)]
        frame = pd.DataFrame(x, columns=names)
        found[client] = frame.assign(label=np.where(x[:, 0] > 0, "yes", "no"))
    return found


def ran(name, embedding, *, apart=False, **settings):
    algorithm = {"name": name, "embedding": embedding, **LATENT, **OWN.get(name, {})}
    algorithm |= settings.pop("more", {"engine": "loop", "precision": "double"})
    settings = {"rounds": 2, "yardsticks": False, "intercept": False, "seed": 3, **settings}
    return intarsia.run(tables=tables(apart), label="label", algorithm=algorithm, **settings)


def check_same(name):
    apart = name in APART
    own = ran(name, f"{HERE}:same", apart=apart)
    known = ran(name, "perceptron", apart=apart)
    for client, frame in tables(apart).items():
        x = frame.drop(columns="label")
        found = own.model[client].predict_proba(x)
        np.testing.assert_allclose(found, known.model[client].predict_proba(x), rtol=1e-9)
    assert own.metrics.clients.keys() == known.metrics.clients.keys()


@pytest.mark.parametrize("name", [pytest.param("fedavg-ft", marks=pytest.mark.slow), "flic"])
def test_the_same_embedding_by_name_comes_to_the_same_networks(name):
    check_same(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(OWN.keys() - {"fedavg-ft", "flic", *OTHERS}))
def test_the_same_embedding_by_name_does_so_in_every_algorithm(name):
    check_same(name)


@pytest.mark.parametrize(
    ("name", "engine"),
    [("flic", "vmap"), *(pytest.param(one, "vmap", marks=pytest.mark.slow) for one in OWN)],
)
def test_clients_with_other_widths_train_an_embedding_that_takes_one(name, engine, tmp_path):
    """The saved model predicts as the one in memory, once its module is allowed."""
    apart, how = name in APART, {"engine": engine}
    found = ran(name, f"{HERE}:fixed", apart=apart, more=how, intercept=True, out=tmp_path)
    kept = intarsia.load(tmp_path, allow_modules=[HERE]).model
    for client, frame in tables(apart).items():
        x = frame.drop(columns="label")
        chance = found.model[client].predict_proba(x)
        np.testing.assert_array_equal(kept[client].predict_proba(x), chance)
        # columns are known by their names
        turned = found.model[client].predict_proba(x[x.columns[::-1]])
        np.testing.assert_array_equal(turned, chance)


def test_heads_over_an_embedding_by_name_train_too():
    flic = {"embedding": f"{HERE}:fixed", **LATENT, "pretraining_epochs": 2}
    femam = {"levels": ["global", "personal"], "first_rounds": 2, "level_schedule": "paper"}
    algorithm = {"name": "femam-flic", "flic": flic, "femam": femam}
    settings = {"rounds": 3, "yardsticks": False, "label": "label"}
    found = intarsia.run(tables=tables(apart=True), algorithm=algorithm, **settings)
    assert found.metrics.clients_mean.accuracy > 0.4


@pytest.mark.parametrize(
    ("embedding", "more", "said"),
    [
        ("normed", {}, "has the buffer '1.running_mean', which no average"),
        ("narrow", {}, r"gives \(2, 3\) for 2 rows; it must give features of shape \(2, 4\)"),
        ("none", {}, "has no 'none'"),
        ("fixed", {"dropout": 0.2}, "is your own; leave units out there"),
    ],
)
def test_an_embedding_that_does_not_fit_is_said_before_anything_trains(embedding, more, said):
    with pytest.raises(ExperimentError, match=said):
        ran("fedavg-ft", f"{HERE}:{embedding}", more=more)


@pytest.mark.parametrize(("name", "kind"), [("flic", "residual"), ("ditto", "perceptrn")])
def test_another_word_is_refused_with_those_that_there_are(name, kind):
    with pytest.raises(ExperimentError, match=f"embedding is '{kind}'; .*perceptron"):
        ran(name, kind)
