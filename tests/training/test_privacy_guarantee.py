"""What [privacy] epsilon makes of a run: its noise, its result, its files."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import dp_accounting
import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from federations import BINARY, block, table
from intarsia.algorithms.hyfdca.algorithm import HYFDCA
from intarsia.algorithms.hyfdca.state import HyFDCA
from intarsia.algorithms.linear.cocoa import COCOA
from intarsia.algorithms.linear.fedavg import FEDAVG, FedAvg
from intarsia.cli.tables import show_result
from intarsia.core.block import Block, Labels
from intarsia.core.schema import Schema
from intarsia.datasets import registry as datasets
from intarsia.errors import ConvergenceError, ExperimentError
from intarsia.experiment import config as experiment
from intarsia.experiment.federation import build
from intarsia.privacy.settings import Privacy
from intarsia.training import loop as training
from intarsia.training import privacy_guarantee as guarantee
from intarsia.training.registry import choose
from intarsia.training.run import load, resume, run

EXAMPLES = Path(__file__).parents[2] / "examples" / "data"


def scaled(name, folder):
    """Write a data set with features on like scales; the constants pass for public ones."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.csv"
    if not path.exists():
        dataset = datasets.load(name, folder=EXAMPLES)
        x = np.asarray(dataset.x, np.float64)
        mean = np.nanmean(x, axis=0)
        x = np.where(np.isnan(x), 0.0, (x - mean) / np.nanstd(x, axis=0))
        lines = [",".join([*(f'"{one}"' for one in dataset.features), "label"])]
        for row, label in zip(x, dataset.y, strict=True):
            lines.append(",".join([*map(repr, row.tolist()), str(label)]))
        path.write_text("\n".join(lines))
    return path


def tree(folder, algorithm="hyfdca", *, data="breast_cancer", privacy=None, **changes):
    settings = {"rounds": 200, "tolerance": 1e-8, "yardsticks": False, "out": str(folder / "run")}
    columns = 1 if algorithm in ("cocoa", "fedavg") else 2
    return {
        "experiment": {**settings, **changes},
        "algorithm": {"name": algorithm, "regularisation": 0.03},
        "preprocessing": {"standardise": False},
        "dataset": {"path": str(scaled(data, folder)), "format": "csv", "label": "label"},
        "partition": {"kind": "grid", "rows": 2, "columns": columns},
        "privacy": {"epsilon": 1.0, **(privacy or {})},
    }


def trained(folder, *args, **kwargs):
    return run(experiment.from_dict(tree(folder, *args, **kwargs), folder), overwrite=True)


def small(labels=BINARY, clients=2):
    x, y = table(40)
    y = np.arange(40) % 3.0 if labels.task == "multiclass" else y
    rows = np.array_split(np.arange(40), clients)
    return Schema.of({f"c{k}": block(x, y, own, range(6)) for k, own in enumerate(rows)}, labels)


def described(folder, *args, **kwargs):
    return experiment.from_dict(tree(folder, *args, **kwargs), folder)


# ---- the terms


def test_without_epsilon_there_is_no_noise(tmp_path):
    description = described(tmp_path, privacy={"epsilon": 0.0, "mode": "masked"})
    release, found = guarantee.guarantee(description, HYFDCA, HyFDCA(), small())
    assert release is None
    assert (found.mode, found.epsilon, found.covers, found.does_not_cover) == (
        "masked",
        None,
        (),
        (),
    )


def test_the_noise_of_hyfdca_is_that_of_its_sensitivity(tmp_path):
    description = described(tmp_path, privacy={"epsilon": 2.0, "delta": 1e-6, "clip": 0.7})
    options = HyFDCA(loss="logistic", regularisation=0.03)
    release, found = guarantee.guarantee(description, HYFDCA, options, small())
    gap = 1e-8 * math.log(2) / (1 - 1e-8)
    apart = 2 * 0.7 / (0.03 * 40) + 2 * math.sqrt(2 * gap / 0.03)
    assert found.sensitivity == pytest.approx(apart, rel=1e-12)
    assert release.gap == pytest.approx(gap)
    assert (release.clip, release.releases, found.unit) == (0.7, 1, "sample")
    assert found.noise == release.deviation
    spent = dp_accounting.get_epsilon_gaussian(found.noise / apart, 1e-6)
    assert spent == pytest.approx(2.0, rel=1e-6)


def test_one_vs_rest_is_covered_together(tmp_path):
    labels = Labels("multiclass", ("a", "b", "c"))
    known = described(tmp_path), HYFDCA, HyFDCA(regularisation=0.03)
    two, three = (guarantee.guarantee(*known, small(one))[1] for one in (BINARY, labels))
    # the gap bound is that of the sum over the outputs, so that its root grows as theirs
    assert three.sensitivity == pytest.approx(math.sqrt(3) * two.sensitivity)


def test_the_noise_of_fedavg_is_composed_over_the_rounds(tmp_path):
    description = described(tmp_path, "fedavg", rounds=25, privacy={"clip": 0.2})
    release, found = guarantee.guarantee(description, FEDAVG, FedAvg(), small())
    assert (found.unit, found.releases, release.releases) == ("client", 25, 25)
    assert found.sensitivity == 0.4
    spent = dp_accounting.get_epsilon_gaussian(found.noise / 0.4 / math.sqrt(25), 1e-5)
    assert spent == pytest.approx(1.0, rel=1e-6)


@pytest.mark.parametrize("pattern", ["random", "cyclic"])
def test_clients_that_are_away_release_nothing_in_that_round(tmp_path, pattern):
    changes = {"participation": 0.5, "participation_pattern": pattern, "rounds": 30}
    description, clients = described(tmp_path, **changes), ("a", "b", "c", "d")
    there = [training.present(description, clients, number) for number in range(1, 31)]
    counts = [sum(name in names for names in there) for name in clients]
    assert guarantee.most_rounds(description, clients) == max(counts) < 30


def refusal(folder, algorithm, options=None, *, labels=BINARY, **changes):
    description = described(folder, algorithm, **changes)
    kind, own = choose(description)
    with pytest.raises(ExperimentError) as caught:
        guarantee.guarantee(description, kind, options or own, small(labels))
    return str(caught.value)


def test_what_cannot_be_bounded_is_refused_in_a_sentence(tmp_path):
    assert "'liblinear' adds no noise" in refusal(tmp_path, "liblinear")
    assert "tolerance is 0" in refusal(tmp_path, "hyfdca", tolerance=0)
    regression = Labels("regression", ())
    said = refusal(tmp_path, "hyfdca", HyFDCA(loss="squared"), labels=regression)
    assert '"hinge" or "logistic"' in said
    with_errors = HyFDCA(loss="logistic", errors=True)
    assert "released without noise" in refusal(tmp_path, "hyfdca", with_errors)
    coarse = {"mode": "masked", "range": 2.0**50}
    assert "privacy.range" in refusal(tmp_path, "hyfdca", privacy=coarse)


def summands(folder, algorithm, clients=4, given=None, *, privacy, quorum=None, **changes):
    """Raise where a round of so many clients tells what another one sent."""
    made = tree(folder, algorithm, privacy={"epsilon": 0.0, **privacy}, **changes)
    made["algorithm"] = {"name": algorithm, **(given or {})}
    description = experiment.from_dict(made, folder)
    if isinstance(clients, int):  # with the same columns
        clients = dict.fromkeys([f"c{number}" for number in range(clients)], "u")
    guarantee.check_summands(description, *choose(description), holding(clients), quorum)


def holding(held):
    """Return the schema of clients that hold feature blocks of one column each."""
    blocks = {}
    for number, (name, own) in enumerate(held.items()):
        rows, groups = np.arange(10 * number, 10 * number + 2), {one: (f"{one}0",) for one in own}
        columns = tuple(column for some in groups.values() for column in some)
        blocks[name] = Block(rows, columns, np.ones((2, len(own))), np.ones(2), groups)
    return Schema.of(blocks, Labels("binary", ("0", "1")))


@pytest.mark.parametrize(
    ("algorithm", "shares", "alone"),
    [
        ("flic", {}, None),
        ("hetfedrep", {}, None),
        ("fedrep", {}, {"shared_layers": 0}),
        ("fedavg-ft", {}, None),
        ("fedhenn", {}, {"similarity_weight": 0.0}),
        ("l2gd", {}, {"mixing": 0.0}),
        ("local", None, {}),
        ("flic-linear", {"latent": 2, "rank": 1}, None),
    ],
)
def test_rounds_that_tell_a_client_another_one_s_part_are_refused(
    tmp_path, algorithm, shares, alone
):
    if algorithm != "flic-linear":
        pytest.importorskip("torch")
    few = {"mode": "masked"}
    if shares is not None:
        given, cyclic = {"given": shares}, {"participation_pattern": "cyclic"}
        for mode in ("masked", "ckks"):
            with pytest.raises(ExperimentError, match=r"2 of 2 clients.*each of the two gets"):
                summands(tmp_path, algorithm, 2, privacy={"mode": mode}, **given)
        with pytest.raises(ExperimentError, match=r"1 of 4.*one client's own.*least_clients = 1"):
            summands(tmp_path, algorithm, 4, privacy=few, participation=0.25, **given)
        with pytest.raises(ExperimentError, match=r"1 of 4"):
            summands(tmp_path, algorithm, 4, privacy=few, participation=1 / 3, **cyclic, **given)
        summands(tmp_path, algorithm, 3, privacy=few, **given)
        summands(tmp_path, algorithm, 2, privacy={"mode": "masked", "least_clients": 2}, **given)
        summands(tmp_path, algorithm, 2, privacy={"mode": "plain"}, **given)
        summands(tmp_path, algorithm, 2, privacy={"mode": "masked", "epsilon": 1.0}, **given)
        with pytest.raises(ExperimentError, match=r"4 of 4 clients.*5 or more"):
            summands(tmp_path, algorithm, privacy={"mode": "masked", "least_clients": 5}, **given)
    if alone is not None:
        summands(tmp_path, algorithm, 2, privacy=few, given=alone)


def test_holders_of_a_block_are_counted_for_themselves(tmp_path):
    pytest.importorskip("torch")
    held = {"a": "uv", "b": "uv", "c": "uvw", "d": "uw"}
    masked, two = {"mode": "masked"}, {"mode": "masked", "least_clients": 2}
    with pytest.raises(
        ExperimentError, match=r"'w' is held by 2 of 4 clients.* have 2: .*each of"
    ) as of:
        summands(tmp_path, "hyfem", held, privacy=masked)
    assert "more take part" not in str(of.value)  # nobody else holds it
    summands(tmp_path, "hyfem", held, privacy=two)
    summands(tmp_path, "hyfem", held, privacy={"mode": "plain"})
    summands(tmp_path, "hyfem", held, privacy=masked, given={"blocks": "common"})
    summands(tmp_path, "hyfem", held, privacy=masked, given={"shares": "nothing"})
    # what one client alone holds nobody else downloads
    summands(tmp_path, "hyfem", {**held, "d": "u"}, privacy=masked)
    # in turns a and c are there, or b and d: one of the three that hold v, and none or one of w
    turns = {"participation": 0.5, "participation_pattern": "cyclic"}
    with pytest.raises(ExperimentError, match=r"'v' is held by 3 of 4.* 1: .*one client's own"):
        summands(tmp_path, "hyfem", held, privacy=two, **turns)
    many = {f"c{k}": "uv" if k < 4 else "u" for k in range(8)}
    with pytest.raises(ExperimentError, match=r"'v' is held by 4 of 8.* 1: .*more take part"):
        summands(tmp_path, "hyfem", many, privacy=two, participation=0.5)
    apart = {"a": "uv", "b": "u", "c": "uv", "d": "u"}  # those with v are there together
    summands(tmp_path, "hyfem", apart, privacy=two, **turns)


def test_holders_of_a_block_that_a_quorum_lets_be_away_are_not_counted(tmp_path):
    pytest.importorskip("torch")
    held = {"a": "uv", "b": "uv", "c": "uv", "d": "uv", "e": "u", "f": "u"}
    masked, two = {"mode": "masked"}, {"mode": "masked", "least_clients": 2}
    summands(tmp_path, "hyfem", held, privacy=masked, quorum=5)  # three of the four that hold v
    summands(tmp_path, "hyfem", held, privacy=two, quorum=4)
    with pytest.raises(ExperimentError, match=r"'v' is held by 4 of 6.* have 2: .*quorum"):
        summands(tmp_path, "hyfem", held, privacy=masked, quorum=4)
    # all that hold v may be away, but one of them may be there too
    with pytest.raises(ExperimentError, match=r"'v' is held by 4 of 6.* have 1: .*one client's"):
        summands(tmp_path, "hyfem", held, privacy=two, quorum=2)
    # in turns three of six are there, with two that hold v, and none need be away
    turns = {"participation": 0.5, "participation_pattern": "cyclic"}
    summands(tmp_path, "hyfem", held, privacy=two, quorum=3, **turns)


@pytest.mark.parametrize("over", [None, "flic"])
def test_members_of_a_cluster_that_is_given_are_counted_for_themselves(tmp_path, over):
    pytest.importorskip("torch")
    masked, two = {"mode": "masked"}, {"mode": "masked", "least_clients": 2}

    def check(members, privacy, **changes):
        region = {f"c{number}": name for number, name in enumerate(members)}
        given = {
            "levels": ["global", "region"],
            "groups": {"region": region},
            "level_schedule": "paper",
        }
        name = "femam" if over is None else "femam-flic"
        given = given if over is None else {"femam": given}
        summands(tmp_path, name, len(members), privacy=privacy, given=given, **changes)

    with pytest.raises(
        ExperimentError,
        match=r"cluster 'n' of 'region' is held by 2 of 5 .* 2: .*each of the two.*let more hold",
    ):
        check("nnsss", masked)
    check("nnsss", two)
    check("nnsss", {"mode": "plain"})
    check("nsss", masked)  # nobody else opens the model of c0's
    check("nnnsss", masked)
    turns = {"participation": 0.5, "participation_pattern": "cyclic"}
    with pytest.raises(ExperimentError, match=r"'n' of 'region' .*let more take part"):
        check("nnnsss", {"mode": "masked", "least_clients": 3}, **turns)


@pytest.mark.parametrize("name", ["ifca", "femam", "femam-flic"])
def test_clusters_that_clients_choose_promise_nobody_company(tmp_path, name):
    pytest.importorskip("torch")

    def check(clusters, **privacy):
        chosen = {"clustering": "loss", "start": "random", "equal_starts": False}
        given = {"levels": ["global", clusters], **chosen, "level_schedule": "paper"}
        given = {"ifca": {"clusters": clusters}, "femam": given, "femam-flic": {"femam": given}}
        summands(tmp_path, name, 8, privacy=privacy, given=given[name])

    for mode in ("masked", "ckks"):
        with pytest.raises(
            ExperimentError, match=rf"clients of {name} choose.* 2 or more .*least_clients = 1"
        ):
            check(2, mode=mode, least_clients=2)
        check(2, mode=mode, least_clients=1)
        check(1, mode=mode)
    check(2, mode="plain")


def test_clusters_of_models_that_the_server_reads_are_not_counted(tmp_path):
    pytest.importorskip("torch")
    masked = {"mode": "masked"}
    summands(tmp_path, "fesem", 4, privacy=masked)
    summands(tmp_path, "femam", 4, privacy=masked, given={"levels": ["global", 2, "auto"]})


def test_sums_over_the_owners_of_a_cell_may_be_of_one(tmp_path):
    for algorithm in ("hyfdca", "cocoa", "fedavg", "standalone"):
        summands(tmp_path, algorithm, 2, privacy={"mode": "masked"})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("least_clients", 0),
        ("epsilon", -1.0),
        ("epsilon", math.inf),
        ("epsilon", math.nan),
        ("delta", 0.0),
        ("delta", 1.0),
        ("clip", 0.0),
        ("clip", math.inf),
        ("clip", math.nan),
    ],
)
def test_settings_outside_their_range_are_refused(key, value):
    with pytest.raises(ExperimentError, match=rf"\[privacy\] {key} is {value}.*set e\.g\. {key}"):
        Privacy(**{key: value})


def test_means_and_scales_of_the_data_are_refused(tmp_path):
    """One sample would move them, and through them every row and the weights."""
    for algorithm in ("hyfdca", "cocoa", "fedavg"):
        given = tree(tmp_path, algorithm)
        given["preprocessing"] = {"standardise": True}
        description = experiment.from_dict(given, tmp_path)
        kind, own = choose(description)
        with pytest.raises(ExperimentError, match="standardise = false"):
            guarantee.guarantee(description, kind, own, small())


def test_one_sample_moves_a_whole_run_by_no_more_than_the_sensitivity(tmp_path, monkeypatch):
    """Two runs on tables that differ in one wild sample, without the noise."""
    x, y = table(60)
    x = np.column_stack([x, y])
    models = []
    for name, first in (("one", x[0]), ("other", np.array([1e4] * 6 + [-x[0, 6]]))):
        rows = np.vstack([first, x[1:]])
        path = tmp_path / f"{name}.csv"
        np.savetxt(path, rows, delimiter=",", header="a,b,c,d,e,f,label", comments="")
        given = tree(tmp_path, privacy={"clip": 0.8})
        given["dataset"]["path"] = str(path)
        given["split"] = {"test": 0.0}
        description = experiment.from_dict(given, tmp_path)
        terms, found = guarantee.guarantee(
            description, HYFDCA, HyFDCA(regularisation=0.03), small()
        )
        silent = replace(terms, deviation=0.0)
        monkeypatch.setattr(guarantee, "guarantee", lambda *_: (silent, found))  # noqa: B023
        models.append(run(description, out=None).model)
        monkeypatch.undo()
    moved = np.linalg.norm(
        np.append(models[0].coef_, models[0].intercept_)
        - np.append(models[1].coef_, models[1].intercept_)
    )
    assert 0 < moved <= 2 * 0.8 / (0.03 * 60) * (1 + 1e-3)


def test_a_delta_that_lets_one_sample_out_is_noted(tmp_path):
    for delta, noted in ((0.03, True), (1e-4, False)):
        description = described(tmp_path, privacy={"delta": delta})
        _, found = guarantee.guarantee(description, HYFDCA, HyFDCA(), small())
        said = guarantee.notes(found, HyFDCA(), samples=40, clients=2)
        assert any("not below 1/40" in note for note in said) is noted


def test_noise_as_large_as_the_weights_may_be_is_noted(tmp_path):
    for rate, noted in ((1e-3, True), (30.0, False)):
        description, options = described(tmp_path), HyFDCA(regularisation=rate)
        _, found = guarantee.guarantee(description, HYFDCA, options, small())
        said = guarantee.notes(found, options, samples=40, clients=2)
        assert any("may be of no use" in note for note in said) is noted


# ---- whole runs


@pytest.mark.parametrize("mode", [pytest.param("plain", marks=pytest.mark.slow), "masked"])
@pytest.mark.parametrize("epsilon", [1.0, 10.0])
def test_a_private_run_says_what_it_promises_and_keeps_its_accuracy(tmp_path, mode, epsilon):
    result = trained(tmp_path, privacy={"epsilon": epsilon, "mode": mode})
    found = json.loads((tmp_path / "run/result.json").read_text())["privacy"]
    assert list(found) == [
        "mode",
        "epsilon",
        "delta",
        "mechanism",
        "unit",
        "noise",
        "sensitivity",
        "clip",
        "releases",
        "covers",
        "does_not_cover",
    ]
    assert (found["mode"], found["epsilon"], found["unit"]) == (mode, epsilon, "sample")
    assert result.certificate is None
    assert math.isnan(result.model.gap_)
    # 0.98 without noise; of 50 runs with ε = 1 the worst had 0.82, with ε = 10 it was 0.95
    assert result.metrics.server.accuracy > (0.6 if epsilon == 1.0 else 0.88)
    said = " ".join(found["does_not_cover"])
    assert ("whoever runs the server" in said) is (mode == "plain")
    assert load(tmp_path / "run").privacy == result.privacy


def test_the_model_on_disk_and_its_accuracy_are_those_with_noise(tmp_path):
    result = trained(tmp_path, privacy={"epsilon": 0.05})
    exact = trained(tmp_path / "exact", privacy={"epsilon": 0.0})
    weights = load(tmp_path / "run").model.coef_
    assert (weights == result.model.coef_).all()
    assert not np.isclose(weights, exact.model.coef_, rtol=1e-9).any()
    dataset = datasets.load("breast_cancer")
    lines = np.loadtxt(scaled("breast_cancer", tmp_path), delimiter=",", skiprows=1, dtype=str)
    x = lines[:, :-1].astype(float)
    held = build(described(tmp_path)).test_schema.samples.ids
    rows = np.array([int(one.removeprefix("dataset:")) for one in held])
    held_rows = pd.DataFrame(x[rows], columns=list(dataset.features))
    right = result.model.predict(held_rows) == lines[rows, -1]
    assert right.mean() == pytest.approx(result.metrics.server.accuracy)


@pytest.mark.parametrize(
    "algorithm",
    ["hyfdca", *(pytest.param(one, marks=pytest.mark.slow) for one in ("cocoa", "fedavg"))],
)
def test_a_run_that_goes_on_releases_the_same_model(tmp_path, algorithm):
    changes = {"checkpoint_seconds": 0.0, "rounds": 12, "tolerance": 0.1, "evaluate_every": 4}
    first = trained(tmp_path, algorithm, **changes)
    # killed after the release, before the result was written
    (tmp_path / "run/result.json").unlink()
    again = resume(tmp_path / "run")
    assert (again.model.coef_ == first.model.coef_).all()
    assert again.metrics == first.metrics
    new = trained(tmp_path, algorithm, **changes)
    assert not np.isclose(new.model.coef_, first.model.coef_, rtol=1e-9).any()


def test_a_run_killed_between_rounds_makes_the_noise_of_a_round_again(tmp_path):
    changes = {"checkpoint_seconds": 0.0, "rounds": 12}
    first = trained(tmp_path, "fedavg", **changes)
    (tmp_path / "run/result.json").unlink()
    newest = max((tmp_path / "run/checkpoints").iterdir())
    for file in newest.rglob("*.state"):
        file.write_bytes(b"")  # the checkpoint of the round before is taken
    with pytest.warns(UserWarning, match="damaged"):
        again = resume(tmp_path / "run")
    assert (again.model.coef_ == first.model.coef_).all()


def test_a_run_short_of_its_tolerance_releases_nothing(tmp_path):
    with pytest.raises(ConvergenceError, match="not released"):
        trained(tmp_path, rounds=1, tolerance=1e-9)
    assert not (tmp_path / "run/model").exists()


def test_the_summary_has_a_line_on_privacy(tmp_path):
    console = Console(record=True, width=200)
    show_result(console, trained(tmp_path, "fedavg", rounds=3), tmp_path)
    text = console.export_text()
    assert "privacy: ε 1, δ 1e-05 for each client, of the released weights" in text
    show_result(console, trained(tmp_path, "fedavg", rounds=3, privacy={"epsilon": 0.0}), tmp_path)
    assert "privacy: ε" not in console.export_text()


def test_unlike_labels_of_one_vs_rest_go_through_a_private_run(tmp_path):
    result = trained(tmp_path, data="heart", privacy={"epsilon": 10.0}, tolerance=1e-7)
    exact = trained(tmp_path / "exact", data="heart", privacy={"epsilon": 0.0})
    assert result.model.coef_.shape == exact.model.coef_.shape == (5, 13)
    assert result.metrics.server.accuracy > exact.metrics.server.accuracy - 0.15


def test_every_algorithm_says_whom_it_protects():
    assert (HYFDCA.disclosure.dp_unit, COCOA.disclosure.dp_unit, FEDAVG.disclosure.dp_unit) == (
        "sample",
        "sample",
        "client",
    )
