"""Published figures in an experiment file, and beside the runs that they are for."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from command_line import finished, said
from intarsia.cli.main import main
from intarsia.errors import ExperimentError
from intarsia.experiment import config as experiment
from intarsia.experiment.published import Published, matching, of_tables
from intarsia.results import comparison
from intarsia.results.result import load

FILE = """
[dataset]
name = "breast_cancer"

[partition]
kind = "horizontal"
clients = 4

[algorithm]
name = "hyfdca"
loss = "hinge"

[[published]]
algorithm = "hyfdca"
accuracy = 0.8
source = "a paper, Table 1"

[[published]]
algorithm = "hyfdca"
accuracy = 0.95
deviation = 0.01
source = "a paper, Table 2"
when = { partition.clients = 4, algorithm.loss = "hinge" }

[[published]]
algorithm = "fedavg"
accuracy = 0.7
source = "a paper, Table 1"
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(FILE)
    return path


def ran(folder, file, seed, accuracy, *overrides, algorithm="hyfdca"):
    """Make a folder as a run of the file leaves it."""
    found = experiment.load(file, overrides)
    finished(folder, seed, accuracy, algorithm, **found.hyperparameters)
    text = json.dumps(experiment.to_dict(replace(found, algorithm=algorithm)))
    (folder / "experiment.json").write_text(text)
    return folder


def test_the_figures_of_a_file_survive_its_resolved_copy(file):
    found = experiment.load(file)
    assert [one.accuracy for one in found.published] == [0.8, 0.95, 0.7]
    assert found.published[1].when == {"partition": {"clients": 4}, "algorithm": {"loss": "hinge"}}
    again = experiment.from_dict(json.loads(json.dumps(experiment.to_dict(found))), file.parent)
    assert again.published == found.published


def test_the_figure_with_most_conditions_that_hold_is_taken():
    general = Published(algorithm="flic", accuracy=0.5, source="a")
    special = replace(general, accuracy=0.6, when={"partition": {"clients": 9, "keep": [0.1, 1]}})
    other = replace(general, accuracy=0.7, when={"partition": {"clients": 8}})
    figures = (special, general, other)
    assert matching(figures, "flic", {"partition": {"clients": 9, "keep": (0.1, 1)}}) == special
    assert matching(figures, "flic", {"partition": {"clients": 9}}) == general
    assert matching(figures, "flic", {}) == general
    assert matching(figures, "local", {}) is None
    assert matching((other,), "flic", {}) is None


def test_compare_sets_the_published_figure_beside_the_mean_over_clients(file, tmp_path, capfd):
    folders = [
        ran(tmp_path / "one", file, 0, 0.90),
        ran(tmp_path / "two", file, 1, 0.94),
        ran(tmp_path / "few", file, 0, 0.85, "partition.clients=2"),
        ran(tmp_path / "other", file, 0, 0.75, algorithm="fedavg"),
    ]
    groups = comparison.compare(map(load, folders))
    assert [len(group.seeds) for group in groups] == [2, 1, 1]
    assert [group.settings for group in groups] == [
        {"partition.clients": 4},
        {"partition.clients": 2},
        {},
    ]
    assert [group.published.accuracy for group in groups] == [0.95, 0.8, 0.7]
    assert main(["compare", *map(str, folders)]) == 0
    table = said(capfd)[0]
    assert "beside published figures" in table
    line = next(line for line in table.splitlines() if "a paper, Table 2" in line)
    assert "95.00 ± 1.00 %" in line
    assert "-3.00 %" in line  # (0.90 + 0.94) / 2 - 0.95
    assert main(["compare", str(folders[0]), "--json"]) == 0
    found = json.loads(said(capfd)[0])
    assert found[0]["published"]["source"] == "a paper, Table 2"
    assert found[0]["clients"]["mean"] == pytest.approx(0.9)


def test_runs_with_other_labels_or_columns_are_no_seeds_of_one_experiment(tmp_path):
    file = tmp_path / "own.toml"
    file.write_text(
        'algorithm = { name = "hyfdca" }\n[[client]]\nname = "bank"\npath = "bank.csv"\n'
        'label = "y"\n'
    )
    changes = ["experiment.seed=1", "labels.class_weight=balanced", 'client.bank.exclude=["age"]']
    folders = [ran(tmp_path / str(n), file, n, 0.9, one) for n, one in enumerate(changes)]
    groups = comparison.compare(map(load, folders))
    assert [len(group.seeds) for group in groups] == [1, 1, 1]
    assert [group.settings["client.bank.exclude"] for group in groups] == [[], [], ["age"]]
    assert groups[1].settings["labels.class_weight"] == "balanced"


def test_runs_that_differ_in_their_test_rows_alone_are_averaged(file, tmp_path):
    salts = ["", "second", "third"]
    folders = [
        ran(tmp_path / str(n), file, 0, 0.7 + n / 10, f"split.salt={salt}")
        for n, salt in enumerate(salts)
    ]
    groups = comparison.compare(map(load, folders))
    (group,) = groups
    assert group.salts == ("", "second", "third")
    assert group.clients.mean == pytest.approx(0.8)
    assert group.clients.deviation == pytest.approx(0.1)
    assert "in 3 ways (split.salt)" in str(groups)
    assert "more than one run" not in str(groups)
    again = comparison.compare(map(load, [*folders, folders[0]]))
    assert "more than one run has the seed 0" in str(again)


def test_without_published_figures_nothing_is_shown_of_them(tmp_path, capfd):
    folder = finished(tmp_path / "one", 0, 0.9)
    assert main(["compare", str(folder)]) == 0
    assert "published" not in said(capfd)[0]


SOUND = {"algorithm": "flic", "accuracy": 0.9, "source": "a"}


@pytest.mark.parametrize(
    ("tables", "sentence"),
    [
        ({"algorithm": "flic"}, 'published is {algorithm = "flic"}; expected tables [[published]]'),
        ([{**SOUND, "accuracy": 97.5}], "of 'flic': accuracy is 97.5; it must be from 0 to 1"),
        ([{**SOUND, "deviation": 1.5}], "of 'flic': deviation is 1.5"),
        ([{**SOUND, "acuracy": 1.0}], "unknown key 'acuracy'"),
        ([{"algorithm": "flic", "accuracy": 0.9}], "has no 'source'"),
        ([{**SOUND, "when": {"partitions": {"clients": 3}}}], "names the table 'partitions'"),
        ([{**SOUND, "when": {"partition": 3}}], "when is {partition = 3}; expected a table"),
        ([SOUND, SOUND], "Two tables [[published]] are for 'flic'"),
    ],
)
def test_a_wrong_figure_is_said(tables, sentence):
    with pytest.raises(ExperimentError) as found:
        of_tables(tables)
    assert sentence in str(found.value)
