"""Simulations of clients that form groups, from the file to the output folder."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

import intarsia
from command_line import one_error, said
from intarsia.cli.main import main
from intarsia.cli.tables import show_result
from intarsia.partition.client_clusters import Structures, of_models
from intarsia.plots.runs import pictures
from intarsia.plots.runs.pictures import Shown

FILE = """
[experiment]
rounds = 4
tolerance = 0.0
evaluate_every = 2
yardsticks = false

[dataset]
name = "digits"
train_per_class = 30

[partition]
kind = "clusters"
clients = 4
clusters = 2
classes = 5

[split]
test = 0.5

[algorithm]
name = "fedavg"
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    home = tmp_path_factory.mktemp("run")
    (home / "a.toml").write_text(FILE)
    intarsia.run(home / "a.toml", out=home / "out")
    return home / "out"


def test_a_result_has_who_was_dealt_alike_and_scores_of_the_worst(folder):
    found = json.loads((folder / "result.json").read_text())
    assert found["structure"]["truth"] == {"clusters": [0, 0, 1, 1]}
    assert found["structure"]["learned"] is None
    assert found["structure"]["agreement"] == {}
    assert not (folder / "structure.png").exists()  # nothing was learned of it
    metrics = found["metrics"]
    worst = min(score["accuracy"] for score in metrics["clients"].values())
    assert metrics["clients_worst"]["accuracy"] == worst
    assert 0 < metrics["clients_mean"]["macro_f1"] <= 1


def test_what_was_learned_is_drawn_and_said(folder, tmp_path):
    result = intarsia.load(folder)
    clients = result.structure.truth.clients
    learned = of_models(
        clients,
        [dict.fromkeys(clients, 0), dict(zip(clients, (3, 3, 1, 1), strict=True))],
        ("global", "2 clusters"),
    )
    truth = result.structure.truth
    some = replace(result, structure=Structures(truth, learned), trained=None)
    pictures.draw(tmp_path, Shown.of(some))
    assert (tmp_path / "structure.png").is_file()
    console = Console(file=io.StringIO(), width=120)
    show_result(console, some, tmp_path)
    said_so = console.file.getvalue()
    assert (
        "structure: level 2 (2 clusters) is most like clusters (adjusted Rand index 1.00)"
        in said_so
    )
    alone = Structures(*(one.among(clients[:1]) for one in (truth, learned)))
    show_result(console, replace(some, structure=alone), tmp_path)
    pruned = of_models(clients, [dict(zip(clients, (3, 3, 1), strict=False))])
    show_result(console, replace(some, structure=Structures(truth, pruned)), tmp_path)
    assert "index 0.57; 1.00 of those with a part in it)" in console.file.getvalue()


def test_the_rounds_of_runs_are_drawn(folder, tmp_path, capfd):
    target = tmp_path / "new" / "rounds.png"
    assert main(["rounds", str(folder), str(folder), "-o", str(target)]) == 0
    assert str(target) in said(capfd)[1]
    assert target.stat().st_size > 10_000
    assert main(["rounds", str(tmp_path)]) == 2
    assert "holds no history.jsonl" in one_error(said(capfd)[1])
