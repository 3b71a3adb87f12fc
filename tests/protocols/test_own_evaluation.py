"""Clients' own models are evaluated by what each says of its client's samples, however dealt."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import accuracy_score, f1_score, log_loss

torch = pytest.importorskip("torch")

import intarsia  # noqa: E402  after the skip where torch is missing
from federations import names as feature_names  # noqa: E402
from intarsia.algorithms.flic.linear import FLIC_LINEAR, FlicLinear  # noqa: E402
from intarsia.cli.main import main  # noqa: E402
from intarsia.core.block import Block, Labels  # noqa: E402
from intarsia.core.schema import Schema  # noqa: E402
from intarsia.data.source import Source  # noqa: E402
from intarsia.engines.simulation import Simulation  # noqa: E402
from intarsia.experiment import config as experiment  # noqa: E402
from intarsia.experiment import federation  # noqa: E402
from intarsia.maths.figures import share_interval  # noqa: E402
from intarsia.protocols.evaluation_rows import LEAST_ROWS  # noqa: E402
from intarsia.training import loop as training  # noqa: E402
from intarsia.training import registry as catalogue  # noqa: E402
from intarsia.training.timing import Clock  # noqa: E402

OWN = [name for name in catalogue._PERSONAL if name != "flic-linear"]  # which learns numbers
# what keeps a run short, of an algorithm that has it
SHORT = {
    "model": f"{__name__}:linear",
    "hidden": 8,
    "latent": 4,
    "features": 4,
    "batch": 20,
    "local_epochs": 1,
    "pretraining_epochs": 1,
    "final_epochs": 1,
    "level_schedule": "paper",
    "first_rounds": 2,
    "level_rounds": 1,
    "levels": ["global", "personal"],
    "clusters": 2,
    "steps": 2,
    "local_rounds": 1,
    "engine": "loop",
}
SAME, OTHER = (["left", "right"], ["left", "right"]), (["left"], ["left", "right"])


def named(name, **settings):
    party = Source(name="a", path="a.csv")
    return experiment.Experiment(name="e", algorithm=name, clients=(party,), **settings)


def linear(features, classes):
    return torch.nn.Linear(features, classes)


def described(tmp_path, name, samples="disjoint"):
    """Return an experiment of two clients with their own samples to train on, and one test part."""
    kind = catalogue.kind_of(named(name))
    settings = {f.name for f in dataclasses.fields(kind.hyperparameters)}
    given = {key: value for key, value in SHORT.items() if key in settings}
    if name == "hyfem":
        given["hidden"] = [8]
    lines = ["[experiment]", "rounds = 3", "yardsticks = false", "[algorithm]", f'name = "{name}"']
    lines += [f"{key} = {json.dumps(value)}" for key, value in given.items()]
    lines += ["[dataset]", 'name = "gaussians"', "classes = 3", "features = 4", "deviation = 2.0"]
    lines += ["train_samples = 40", "test_samples = 15"]
    lines += ['groups = { left = ["x0", "x1"], right = ["x2", "x3"] }']
    lines += ["[partition]", 'kind = "blocks"', f'samples = "{samples}"']
    blocks = OTHER if kind.model.own_feature_space or kind.model.server_model is not None else SAME
    for client, own in zip("ab", blocks, strict=True):
        lines += ["[[partition.client]]", f'name = "{client}"', f"blocks = {json.dumps(own)}"]
        lines += ['classes = ["0", "1", "2"]']
    (tmp_path / "run.toml").write_text("\n".join(lines))
    return tmp_path / "run.toml"


def by_hand(model, block, classes):
    """Return loss, accuracy and macro F1 of one client's network on its samples."""
    table = pd.DataFrame(block.x, columns=[str(name) for name in block.features])
    y = np.array(classes)[block.y.astype(int)]
    chances = model.predict_proba(table)
    taken = np.array(classes)[chances.argmax(axis=1)]
    loss = log_loss(y, chances, labels=list(classes))
    return loss, accuracy_score(y, taken), f1_score(y, taken, average="macro")


def check(found, blocks, classes):
    truth = {name: by_hand(found.model[name], block, classes) for name, block in blocks.items()}
    for name, (loss, accuracy, macro_f1) in truth.items():
        score = found.metrics.clients[name]
        assert score.loss == pytest.approx(loss, rel=1e-4)
        assert score.accuracy == pytest.approx(accuracy)
        assert score.macro_f1 == pytest.approx(macro_f1)
        assert score.samples == len(blocks[name].samples)
    return truth


@pytest.mark.parametrize("name", OWN)
def test_a_client_is_evaluated_by_its_own_network_where_test_samples_are_at_both(tmp_path, name):
    file = described(tmp_path, name)
    parties = federation.build(experiment.load(file))
    assert not np.intersect1d(*(block.samples for block in parties.train.values())).size
    a, b = (block.samples.tolist() for block in parties.test.values())
    assert a == b
    found = intarsia.run(file, out=None)
    truth = check(found, parties.test, parties.labels.classes)
    if name == "hyfem":  # the server's network says all samples
        return
    every = found.metrics.server
    assert every.samples == len(a) == 45
    means = np.mean(list(truth.values()), axis=0)
    assert (every.loss, every.accuracy) == pytest.approx(tuple(means[:2]), rel=1e-4)


def test_clients_of_hyfem_that_train_on_the_same_samples_are_evaluated_alone_too(tmp_path):
    file = described(tmp_path, "hyfem", samples="shared")
    parties = federation.build(experiment.load(file))
    check(intarsia.run(file, out=None), parties.test, parties.labels.classes)


@pytest.mark.parametrize(("mode", "rows"), [("masked", 15), ("plain", 4)])
def test_hyfem_tells_classes_in_training_from_others_where_both_have_five_rows(
    tmp_path, mode, rows
):
    """`rows` are those of each class for testing, at both clients."""
    file = described(tmp_path, "hyfem")
    text = file.read_text().replace("test_samples = 15", f"test_samples = {rows}")
    text = text.replace("steps = 2", "steps = 24").replace("deviation = 2.0", "deviation = 1.0")
    held = {"a": ["0", "1"], "b": ["1", "2"]}
    for own in held.values():
        text = text.replace('classes = ["0", "1", "2"]', f"classes = {json.dumps(own)}", 1)
    file.write_text(f'{text}\n[privacy]\nmode = "{mode}"\nleast_clients = 2\n')
    parties = federation.build(experiment.load(file))
    found = intarsia.run(file, out=None)
    shares = []
    for name, block in parties.test.items():
        y = np.array(parties.labels.classes)[block.y.astype(int)]
        own = np.isin(y, held[name])
        assert own.sum() == 2 * rows
        share = []
        both = parties.test["b"]  # it has all columns, and the same samples
        for model, of in ((found.model[name], block), (found.model.server, both)):
            table = pd.DataFrame(of.x, columns=list(of.features))
            right = model.predict(table).astype(str) == y
            share.append((right[own].mean(), right[~own].mean()))
        shares.append(share)
        figures = found.metrics.clients[name].figures
        told = figures.trained_classes, figures.untrained_classes
        if rows < LEAST_ROWS:
            assert told == (None, None)
            assert "trained_classes" not in figures.intervals
            continue
        assert told == pytest.approx(share[0])
        ends = share_interval(figures.untrained_classes, rows)
        assert figures.intervals["untrained_classes"] == pytest.approx(ends)
    server, mean = found.metrics.server.figures, found.metrics.clients_mean.figures
    if rows < LEAST_ROWS:
        assert server.trained_classes is mean.untrained_classes is None
        return
    of_clients, of_server = np.mean(shares, axis=0)
    assert of_server[1] > of_clients[1] > 0
    assert (mean.trained_classes, mean.untrained_classes) == pytest.approx(tuple(of_clients))
    assert (server.trained_classes, server.untrained_classes) == pytest.approx(tuple(of_server))


def test_the_result_on_disk_is_what_predict_says_of_a_clients_table(tmp_path):
    file = described(tmp_path, "local")
    parties = federation.build(experiment.load(file))
    intarsia.run(file, out=tmp_path / "out")
    scores = json.loads((tmp_path / "out" / "result.json").read_text())["metrics"]["clients"]
    for name, block in parties.test.items():
        table = tmp_path / f"{name}.csv"
        pd.DataFrame(block.x, columns=list(block.features)).to_csv(table, index=False)
        out = tmp_path / f"{name}.predictions.csv"
        given = (tmp_path / "out", table, "--client", name, "--out", out)
        assert main(["predict", *map(str, given)]) == 0
        taken = pd.read_csv(out)["label"].astype(str)
        y = np.array(parties.labels.classes)[block.y.astype(int)]
        assert scores[name]["accuracy"] == pytest.approx(accuracy_score(y, taken))


@pytest.mark.parametrize("shared", [0, 5, 10])  # of fewer no metrics are told
def test_own_linear_models_are_evaluated_alone_where_test_samples_are_at_both(shared):
    """The clients share a column too, values of which must count whole."""
    rng = np.random.default_rng(0)
    x, columns = rng.normal(size=(60, 5)), {"a": [0, 1, 2], "b": [2, 3, 4]}
    y = x.sum(axis=1)

    def blocks(rows):
        return {
            name: Block(rows[name], feature_names(own), x[np.ix_(rows[name], own)], y[rows[name]])
            for name, own in columns.items()
        }

    learnt = blocks({"a": np.arange(20), "b": np.arange(20, 40)})
    tested = blocks({"a": np.arange(40, 50), "b": np.arange(50 - shared, 60 - shared)})
    parts = {"train": learnt, "test": tested}
    labels = Labels("regression")
    engine = Simulation({part: (Schema.of(own, labels), own) for part, own in parts.items()}, 0)
    options = FlicLinear(latent=2, rank=1)
    description = named("flic-linear", rounds=2)
    task = training.Task(description, FLIC_LINEAR, options, engine, "test", None, Clock())
    training.train(task, *training.start(task))
    every, own = training.evaluate(task)
    errors = {}
    for name, state in engine.get_states().items():
        weights, intercept = FLIC_LINEAR.model.own_weights(state)
        errors[name] = (tested[name].y - tested[name].x @ weights - intercept) ** 2
        assert own[name].loss == pytest.approx(errors[name].mean() / 2, rel=1e-9)
        spread = ((tested[name].y - tested[name].y.mean()) ** 2).sum()
        assert own[name].r2 == pytest.approx(1 - errors[name].sum() / spread, rel=1e-9)
    at, count = np.concatenate([one.samples for one in tested.values()]), 20 - shared
    assert every.samples == count == len(np.unique(at))
    # a sample at both counts as the mean over them
    each = pd.Series(np.concatenate(list(errors.values()))).groupby(at).mean()
    assert every.loss == pytest.approx(each.mean() / 2, rel=1e-9)
