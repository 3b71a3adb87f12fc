"""Each client with its own network is evaluated by it, however the samples are dealt."""

from __future__ import annotations

import dataclasses
import json

import pandas as pd
import pytest
from sklearn.metrics import accuracy_score, log_loss

torch = pytest.importorskip("torch")

import intarsia  # noqa: E402  after the skip where torch is missing
from intarsia.errors import FederationError  # noqa: E402
from intarsia.experiment import config as experiment  # noqa: E402
from intarsia.experiment import federation  # noqa: E402
from intarsia.partition.registry import KINDS  # noqa: E402
from intarsia.training.registry import _PERSONAL, algorithm_named  # noqa: E402

OWN = [name for name in _PERSONAL if name != "flic-linear"]  # which learns numbers
SHORT = {
    "model": f"{__name__}:linear",
    "latent": 4,
    "features": 4,
    "batch": 64,
    "local_epochs": 1,
    "own_epochs": 1,
    "pretraining_epochs": 1,
    "final_epochs": 1,
    "level_schedule": "paper",
    "levels": ["global", "personal"],
    "clusters": 2,
    "steps": 1,
    "local_rounds": 1,
    "engine": "loop",
}
# a kind of partition, and its keys
DEALT = {
    "blocks": ('samples = "disjoint"', "clients = 2", "blocks = 2", "classes = 3"),
    "clusters": ("clients = 3", "clusters = 2", 'relabel = "all"'),
    "dirichlet": ("clients = 2", "alpha = 5.0", "minimum = 3"),
    "grid": ("rows = 2", "columns = 2"),
    "horizontal": ("clients = 2",),
    "iid": ("clients = 2",),
    "levels": ("clients = 4", "groups = [1, 2]", "classes = [1, 1]"),
    "overlap": ("rows = 2", "columns = 1", "shared_rows = 0.5", "shared_columns = 0.0"),
    "prior_shift": ("clients = 2", "classes = 3"),
    "vertical": ("clients = 2",),
}
SAME_ROWS = {"grid", "overlap", "vertical"}  # whose clients have samples in common


def linear(features, classes):
    return torch.nn.Linear(features, classes)


def described(folder, name, kind):
    fields = {one.name for one in dataclasses.fields(algorithm_named(name).hyperparameters)}
    given = {key: value for key, value in SHORT.items() if key in fields}
    if "hidden" in fields:
        given["hidden"] = [5] if name == "hyfem" else 5
    lines = ["[experiment]", "rounds = 1", "yardsticks = false", "evaluate_every = 0"]
    lines += ["[algorithm]", f'name = "{name}"']
    lines += [f"{key} = {json.dumps(value)}" for key, value in given.items()]
    lines += ["[dataset]", 'name = "gaussians"', "classes = 3", "features = 4", "deviation = 2.0"]
    lines += ["train_samples = 40", "test_samples = 16"]
    lines += ['groups = { left = ["x0", "x1"], right = ["x2", "x3"] }'] * (kind == "blocks")
    lines += ["[partition]", f'kind = "{kind}"', *DEALT[kind]]
    path = folder / "run.toml"
    path.write_text("\n".join(lines))
    return path


def takes(name, kind):
    """Return whether an algorithm trains on clients that are dealt so."""
    return kind not in SAME_ROWS or name == "hyfem"


def is_quick(name, kind):
    """Return whether no other quick test is alike; the others are slow tests.

    Of kinds that deal rows alike it is the horizontal one, of algorithms those that read clusters
    and columns in a way of their own.
    """
    own = name in ("femam", "hyfem", "flic")
    return kind in ("horizontal", "blocks", *SAME_ROWS) or (own and kind in ("levels", "clusters"))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        pytest.param(name, kind, marks=[pytest.mark.slow] * (not is_quick(name, kind)))
        for name in OWN
        for kind in DEALT
    ],
)
def test_a_client_is_evaluated_by_what_its_own_network_predicts(tmp_path, name, kind):
    file = described(tmp_path, name, kind)
    if not takes(name, kind):
        with pytest.raises(FederationError, match="samples of their own"):
            intarsia.run(file, out=None)
        return
    found = intarsia.run(file, out=None)
    parties = federation.build(experiment.load(file))
    for client, block in parties.test.items():
        model, score = found.model[client], found.metrics.clients[client]
        table = pd.DataFrame(block.x, columns=[str(one) for one in block.features])
        y = model.classes_[block.y.astype(int)]
        assert score.samples == len(y)
        assert score.accuracy == pytest.approx(accuracy_score(y, model.predict(table)))
        loss = log_loss(y, model.predict_proba(table), labels=model.classes_)
        assert score.loss == pytest.approx(loss, rel=1e-4)


def test_no_kind_of_partition_is_left_out():
    assert set(KINDS) - set(DEALT) == {
        "flower",  # needs another library
        "natural",  # needs a data set whose samples have owners: dealt as horizontal deals them
    }
