"""Clients with few rows, one class, or missing values, in every algorithm on networks."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("torch")

import intarsia
from tests.algorithms.networks.test_named_modules import OWN

PAPER = {"levels": ["global", "personal"], "first_rounds": 2, "level_schedule": "paper"}
ALGORITHMS = {
    **OWN,
    "femam-flic": {"flic": {"pretraining_epochs": 2}, "femam": PAPER},
    "hyfem": {"features": 4, "extractor_hidden": [8], "hidden": [8], "steps": 4},
}
QUICK = ("fedavg-ft",)
KINDS = ("three rows", "one row", "one class", "missing values", "a missing column")


def tables(kind):
    """Return three clients, of which the first is meagre; values are missing at all."""
    rng, found = np.random.default_rng(0), {}
    for client in "abc":
        few = {"three rows": 3, "one row": 1}.get(kind, 40) if client == "a" else 40
        x = rng.normal(size=(few, 3))
        yes = x[:, 0] > 0
        if kind == "one class" and client == "a":
            yes[:] = True
        if kind == "missing values":
            x[rng.random(x.shape) < 0.2] = np.nan
        if kind == "a missing column" and client == "a":
            x[:, 1] = np.nan
        frame = pd.DataFrame(x, columns=["p", "q", "r"])
        found[client] = frame.assign(label=np.where(yes, "yes", "no"))
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "name",
    [pytest.param(one, marks=() if one in QUICK else pytest.mark.slow) for one in ALGORITHMS],
)
def test_meagre_clients_train_networks_that_are_sound(name, kind):
    """Values are finite, and every client names the classes of every client's rows by chances."""
    own = {"engine": "loop"} if name != "femam-flic" else {}
    algorithm = {"name": name, **ALGORITHMS[name], **own}
    settings = {"rounds": 2, "yardsticks": False, "test": 0.0}
    data = tables(kind)
    found = intarsia.run(tables=data, label="label", algorithm=algorithm, **settings)
    for client in "abc":
        model = found.model[client]
        for values in model.parameters.values():
            assert values.dtype.kind != "f" or np.isfinite(values).all()
        for frame in data.values():
            chance = model.predict_proba(frame.drop(columns="label"))
            assert chance.shape == (len(frame), 2)
            np.testing.assert_allclose(chance.sum(axis=1), 1.0, rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "labelled", "advice"),
    [
        (
            "flic",
            "a",
            "; use hyfdca, whose linear model learns from the columns of rows that others label.",
        ),
        ("femam", "ab", " of rows that others label, or leave it out."),
        ("femam", "abc", "; use hyfdca, whose linear model learns from the columns of all"),
    ],
)
def test_clients_that_networks_cannot_learn_from_are_led_to_what_works(name, labelled, advice):
    whole = tables("")["a"].assign(row=np.arange(40))  # all clients have the same rows
    data = {client: whole.rename(columns={"p": client}) for client in "abc"}
    for client in {*data} - {*labelled}:
        del data[client]["label"]
    settings = {"rounds": 1, "yardsticks": False, "test": 0.0}
    with pytest.raises(intarsia.FederationError) as caught:
        intarsia.run(tables=data, label="label", id="row", algorithm={"name": name}, **settings)
    assert advice in str(caught.value)
