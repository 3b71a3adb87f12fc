"""FLIC from an experiment to a result: sealed, stopped and gone on, on clients of their own."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

torch = pytest.importorskip("torch")

from sklearn.datasets import load_digits  # noqa: E402
from sklearn.metrics import log_loss  # noqa: E402

import intarsia  # noqa: E402  after the skip where torch is missing
from intarsia.errors import ConvergenceError, ExperimentError  # noqa: E402

SETTINGS = {
    "hidden": 8,
    "latent": 4,
    "rate": 0.02,
    "local_epochs": 3,
    "batch": 64,
    "precision": "double",
    "engine": "loop",
    "rounds": 2,
    "evaluate_every": 1,
    "participation": 0.7,
    "yardsticks": False,
}
FLIC = {**SETTINGS, "algorithm": "flic", "pretraining_epochs": 5, "variant": "hl"}


def tables(seed=0):
    rng = np.random.default_rng(seed)
    made = {}
    for name, width in (("a", 2), ("b", 5), ("c", 3)):
        y = rng.integers(0, 3, 80)
        x = (4 * np.eye(3)[y] + rng.normal(size=(80, 3))) @ rng.normal(size=(3, width))
        made[name] = (x / x.std(0), y)
    return made


def sealing(mode):
    """Return the sealing of rounds of two: each then knows the other's part."""
    return {"mode": mode, "least_clients": 2}


def test_every_client_gets_a_model_of_its_own_columns(tmp_path):
    settings = {**FLIC, "yardsticks": True}
    found = intarsia.run(tables=tables(), out=tmp_path, final_epochs=80, **settings)
    assert found.metrics.centralised is None
    assert set(found.metrics.standalone) == {"a", "b", "c"}
    assert found.metrics.standalone != found.metrics.clients
    assert not any("baselines" in note for note in found.notes)
    assert found.rounds == 2
    assert list(found.model) == ["a", "b", "c"]
    assert set(found.metrics.clients) == {"a", "b", "c"}
    assert found.metrics.clients_mean.accuracy > 0.7
    assert found.metrics.server.accuracy > 0.7  # pooled over the clients' samples
    lines = [json.loads(line) for line in (tmp_path / "history.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines if line["loss"] is not None] == [1, 2]


@pytest.mark.parametrize(
    "algorithm",
    ["flic", *(pytest.param(one, marks=pytest.mark.slow) for one in ("local", "fedhenn"))],
)
def test_the_loss_of_a_result_is_that_of_the_history(tmp_path, algorithm):
    given = {**(FLIC if algorithm == "flic" else SETTINGS), "algorithm": algorithm}
    found = intarsia.run(tables=tables(), out=tmp_path, test=0.0, final_epochs=0, **given)
    last = json.loads((tmp_path / "history.jsonl").read_text().splitlines()[-1])
    assert found.metrics.server.loss == pytest.approx(last["loss"], rel=1e-9)
    pairs = [
        (y, own.predict_proba(x[:, [int(feature[1:]) for feature in own.features]]))
        for name, (x, y) in tables().items()
        for own in [found.model[name]]
    ]
    truth = log_loss(*(np.concatenate(part) for part in zip(*pairs, strict=True)))
    assert last["loss"] == pytest.approx(truth, rel=1e-9)


@pytest.mark.parametrize("mode", ["masked", "ckks"])
def test_sealed_sums_train_to_what_plain_ones_do(mode):
    settings = {**FLIC, "pretraining_epochs": 1, "final_epochs": 2, "anchor_covariance": "learned"}
    plain = intarsia.run(tables=tables(), **settings)
    sealed = intarsia.run(tables=tables(), privacy=sealing(mode), **settings)
    assert sealed.metrics.server.loss == pytest.approx(plain.metrics.server.loss, rel=1e-4)
    assert sealed.metrics.server.loss != plain.metrics.server.loss  # masks round


def test_networks_train_with_the_threads_of_the_experiment():
    seen, before = [], torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        intarsia.run(
            tables=tables(), progress=lambda _: seen.append(torch.get_num_threads()), **FLIC
        )
        assert set(seen) == {1}
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_what_all_share_may_be_differentially_private_for_each_client():
    terms = {"mode": "masked", "epsilon": 8.0, "delta": 1e-3, "clip": 0.1}
    found = intarsia.run(tables=tables(), privacy=terms, standardise=False, **FLIC)
    assert found.privacy.unit == "client"
    assert found.privacy.releases == 2
    assert found.privacy.covers[0] == "what all clients share in model/"
    assert any("each client's own network" in one for one in found.privacy.does_not_cover)
    assert any("what all clients share in model/" in note for note in found.notes)


class StopError(Exception):
    pass


@pytest.mark.parametrize("algorithm", ["flic", "local"])
def test_a_stopped_run_goes_on_to_the_same_bits(tmp_path, algorithm):
    settings = {**(FLIC if algorithm == "flic" else SETTINGS), "algorithm": algorithm}
    whole = intarsia.run(tables=tables(), out=tmp_path / "whole", **settings)

    def stop(progress):
        if progress.round == 1:
            raise StopError

    with pytest.raises(StopError):
        intarsia.run(
            tables=tables(),
            out=tmp_path / "stopped",
            progress=stop,
            checkpoint_seconds=0,
            **settings,
        )
    again = intarsia.resume(tmp_path / "stopped", tables=tables())
    assert again.metrics == whole.metrics


def test_states_on_disk_give_the_same_bits_and_can_be_gone_on_from(tmp_path):
    whole = intarsia.run(tables=tables(), **FLIC)

    def stop(progress):
        if progress.round == 1:
            raise StopError

    with pytest.raises(StopError):
        intarsia.run(
            tables=tables(),
            out=tmp_path / "run",
            progress=stop,
            checkpoint_seconds=0,
            state_megabytes=0,
            **FLIC,
        )
    assert intarsia.resume(tmp_path / "run", tables=tables()).metrics == whole.metrics


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_models_of_states_on_disk_are_made_when_asked_for_and_written_alike(workers, tmp_path):
    inside = intarsia.run(tables=tables(), out=tmp_path / "inside", **FLIC)
    outside = intarsia.run(
        tables=tables(), out=tmp_path / "outside", state_megabytes=0, workers=workers, **FLIC
    )
    written = sorted(path for path in (tmp_path / "inside/model").rglob("*") if path.is_file())
    assert len(written) > len(inside.model)
    for path in written:
        other = tmp_path / "outside" / path.relative_to(tmp_path / "inside")
        assert path.read_bytes() == other.read_bytes(), path.name
    assert isinstance(outside.model["a"].parameters, dict)
    assert inside.model["a"] is inside.model["a"]
    assert outside.model["a"] is not outside.model["a"]  # nobody keeps what is beyond the memory
    with pytest.raises(KeyError, match="no network of a client 'd'"):
        outside.model["d"]


def test_a_setting_of_the_algorithm_with_the_name_of_a_table_is_given_in_a_mapping():
    rest = {key: value for key, value in FLIC.items() if key != "algorithm"}
    chosen = {"name": "flic", "alignment": "transport"}
    found = intarsia.run(tables=tables(), algorithm=chosen, **rest)
    assert found.hyperparameters["alignment"] == "transport"
    assert found.hyperparameters["hidden"] == 8
    assert found.metrics != intarsia.run(tables=tables(), **FLIC).metrics
    with pytest.raises(ExperimentError, match=r"algorithm=\{.*'alignment': 'transport'"):
        intarsia.run(tables=tables(), alignment="transport", **FLIC)
    with pytest.raises(ExperimentError, match=r"unknown key 'alignmend'.*alignment"):
        intarsia.run(tables=tables(), algorithm={"name": "flic", "alignmend": "energy"}, **rest)
    with pytest.raises(ExperimentError, match="name is 3"):
        intarsia.run(tables=tables(), algorithm={"name": 3}, **rest)


@pytest.mark.parametrize("alignment", ["gaussian", "transport", "energy"])
@pytest.mark.parametrize("engine", ["loop", "vmap"])
@pytest.mark.parametrize("mode", ["plain", "masked"])
def test_training_that_diverges_ends_in_a_sentence(alignment, engine, mode):
    chosen = {"name": "flic", "alignment": alignment}
    settings = {**FLIC, "algorithm": chosen, "rate": 1e200, "engine": engine}
    with pytest.raises(ConvergenceError, match=r"not finite.*lower algorithm\.rate, or standard"):
        intarsia.run(tables=tables(), privacy=sealing(mode), **settings)


def test_the_defaults_for_images_of_few_rows_are_not_worse_than_networks_alone():
    """Six clients of three digits and 150 rows each: with the others' defaults 40 % are right."""
    digits = load_digits()
    x = np.kron(digits.images / 16, np.ones((2, 2))).reshape(-1, 256)
    rng = np.random.default_rng(0)
    given = {}
    for name in "abcdef":
        held = np.flatnonzero(np.isin(digits.target, rng.choice(10, 3, replace=False)))
        rows = rng.choice(held, 150, replace=False)
        given[name] = (x[rows], digits.target[rows].astype(str))
    reached = {}
    for algorithm in ("local", "flic"):
        found = intarsia.run(
            tables=given,
            algorithm=algorithm,
            embedding="convolutional",
            rounds=5,
            standardise=False,
            intercept=False,
            yardsticks=False,
        )
        reached[algorithm] = found.metrics.clients_mean.accuracy
    assert reached["flic"] > max(0.9, reached["local"])


@pytest.mark.parametrize("values", [[1, 0], [3, 3], [np.nan, np.nan]])
def test_a_client_trains_whose_rows_of_a_class_are_alike(values):
    rng = np.random.default_rng(0)
    labels = np.array(["no", "yes"])
    y = rng.integers(0, 2, 80)
    full = pd.DataFrame({"a": rng.normal(size=80) + y, "b": rng.normal(size=80), "y": labels[y]})
    few = pd.DataFrame({"c": np.array(values)[np.arange(80) % 2], "y": labels[y]})
    how = {"label": "y", "algorithm": "flic", "rounds": 2, "yardsticks": False, "out": None}
    found = intarsia.run(tables={"full": full, "few": few}, **how)
    assert np.isfinite([one.loss for one in found.metrics.clients.values()]).all()
