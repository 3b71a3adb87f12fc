"""A server that lists numbers to predict as classes, so that each row is a class of its own.

The weights of a class of one row are this row, times a number that the intercept tells. Sites of a
regression encoded their labels by whatever classes the experiment listed. So one job's final model
told labels and features of nearly all training rows, also where one site has the labels and others
have the columns.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import sites
from intarsia.core.block import INTERCEPT, Labels
from intarsia.core.schema import Holding, Schema
from intarsia.data.labels import LabelColumn, LabelSettings, check_classes_at, check_meaning
from intarsia.deployment import client_setup
from intarsia.deployment import run as remote_running
from intarsia.deployment.client_setup import site_in
from intarsia.deployment.site_log import load
from intarsia.engines import codec
from intarsia.errors import FederationError, PolicyError
from intarsia.experiment import config
from intarsia.results import run_folder
from key_folders import exchanged

NAMES = ("alfa", "beta", "gamma")
COLUMNS = [f"c{at}" for at in range(5)]
VALUES = [at / 10 for at in range(100, 125)]  # a laboratory's, with one decimal


def table():
    """Return a table of 24 rows whose labels are numbers, each once."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(24, 5)) * [1, 10, 3, 0.5, 200] + [5, 50, 0, 1, 1000]
    labels = rng.permutation(VALUES)[:24]
    return pd.DataFrame(x, columns=COLUMNS).assign(y=labels, row=np.arange(24))


def rows_apart(whole):
    return {name: whole.iloc[at::3] for at, name in enumerate(NAMES)}


def columns_apart(whole):
    own = (["c0", "y"], ["c1", "c2", "c3"], ["c4"])
    return {name: whole[["row", *some]] for name, some in zip(NAMES, own, strict=True)}


def run(folder, tables, labels):
    """Run a job over sites in folders; return its output folder."""
    exchanged(folder, NAMES, "four")
    for name, one in tables.items():
        one.to_csv(folder / f"{name}.csv", index=False)
        own = f'[site]\nname = "{name}"\nids = true\nkey = "{folder}/keys/{name}/shared.key"\n'
        label = 'label = "y"\n' if "y" in one else ""
        read = f'[table]\npath = "{folder}/{name}.csv"\nid = "row"\n{label}'
        (folder / name).mkdir()
        (folder / name / "site.toml").write_text(f"{own}\n{read}")
    clients = [
        {"name": name, "path": f"{folder}/{name}.csv", "id": "row"}
        | ({"label": "y"} if "y" in one else {})
        for name, one in tables.items()
    ]
    tree = {
        "experiment": {"rounds": 3, "evaluate_every": 0, "yardsticks": False},
        "split": {"test": 0.0},
        "algorithm": {"name": "hyfdca", "loss": "logistic", "regularisation": 10.0},
        "labels": labels,
        "privacy": {"mode": "masked", "key": str(folder / "shared.key")},
        "client": clients,
    }
    found = sites.Lines({name: site_in(folder / name) for name in NAMES})
    made = config.from_dict(tree, folder)
    kept = {}  # by a server, while the run goes on
    out = folder / "server"
    remote_running.run_over(
        *(made, found, NAMES, out),
        patience=sites.HASTY,
        progress=lambda _: kept.update(set_up=(out / run_folder.SET_UP).read_bytes()),
    )
    return out, kept["set_up"]


def read(out, set_up):
    """Return the labels that a server tells to occur, and the rows of features that it makes."""
    w = np.atleast_2d(codec.decode((out / run_folder.CONCLUSION).read_bytes())["weights"])
    kinds = remote_running.SetUp, Schema, Holding, Labels
    schema = codec.decode(set_up, *kinds).schemas["train"]
    names = [str(one) for one in schema.features.ids]
    apart = w - np.median(w, axis=0)  # most classes have no row, and the same weights
    classes = np.array([float(one) for one in schema.labels.classes])
    size = np.linalg.norm(apart, axis=1)
    there = size > 1e-6 * size.max()
    apart = apart[there]
    rows = apart[:, [names.index(one) for one in COLUMNS]] / apart[:, [names.index(INTERCEPT)]]
    return dict(zip(classes[there].tolist(), rows, strict=True))


MANY = {"task": "multiclass", "classes": [str(at / 10) for at in range(80, 140)]}


@pytest.mark.parametrize("apart", [rows_apart, columns_apart])
def test_a_site_makes_no_classes_of_its_numbers(apart, tmp_path, monkeypatch):
    whole = table()
    with pytest.raises(
        PolicyError, match=r"^Site 'alfa': the site's labels are numbers to predict"
    ):
        run(tmp_path, apart(whole), MANY)
    (refused,) = load(tmp_path / "alfa").of("refused")
    number = len(apart(whole)["alfa"])
    assert str(number) not in refused["sentence"]
    assert f"'y' has {number} different" in (tmp_path / "alfa" / "errors.log").read_text()
    # without the check
    monkeypatch.setattr(client_setup, "check_classes_at", lambda *given: None)
    again = tmp_path / "again"
    again.mkdir()
    found = read(*run(again, apart(whole), MANY))
    assert found.keys() == set(whole["y"])
    truth = whole.set_index("y")[COLUMNS]
    truth = (truth - truth.mean()) / truth.std(ddof=0)
    rows = pd.DataFrame(found, COLUMNS).T
    alike = [np.corrcoef(rows.loc[y], truth.loc[y])[0, 1] for y in truth.index]
    assert np.median(alike) > 0.99


def numbers(*some):
    return LabelColumn("y", np.array(some))


def test_what_a_site_takes_for_classes():
    several, ages = Labels("multiclass", tuple("0123456789"), "y"), [*map(float, range(30, 80))]
    text = [str(one) for one in ages]
    for one in (
        *(None, numbers(0.0, 1.0, np.nan), numbers(*map(float, range(10)))),
        *(numbers(*map(float, range(20))), numbers("c250.01", "250.01", "yes")),
        numbers(*(f"ward {age}" for age in text)),  # as its owner's label_map says
    ):
        check_classes_at(one, several)
    for one in (numbers(*ages), numbers(0.5, 1.0), numbers(*text, "unknown")):
        check_classes_at(one, Labels("regression", (), "y"))
        for labels in (several, Labels("binary", ("other", "57"), "y")):
            with pytest.raises(PolicyError, match="numbers to predict"):
                check_classes_at(one, labels)


@pytest.mark.parametrize("listed", [True, False])
def test_a_site_without_labels_takes_no_more_than_a_thousand_classes(listed):
    def told(number):
        names = tuple(map(str, range(number)))
        codes = {name: float(at) for at, name in enumerate(names)}
        settings = LabelSettings(task="multiclass", classes=names if listed else ())
        check_meaning(Labels("multiclass", names, "y"), codes, settings)

    told(1000)
    with pytest.raises(FederationError, match=r"1001 classes .* 1000 are the most"):
        told(1001)
