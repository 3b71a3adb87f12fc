from __future__ import annotations

import contextlib
import csv
import errno
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import intarsia
from command_line import finished, one_error, said
from intarsia import __version__
from intarsia.cli import main as cli
from intarsia.cli import tables
from intarsia.cli.main import main
from intarsia.core.files.atomic_files import write_atomically
from intarsia.errors import ConvergenceError
from intarsia.results.checkpoint import Checkpoints

EXPERIMENT = """
[experiment]
rounds = 60
tolerance = 1e-4

[algorithm]
name = "hyfdca"
loss = "logistic"
regularisation = 1e-2

[[client]]
name = "bank"
path = "bank.csv"
id = "customer"
label = "default"

[[client]]
name = "shop"
path = "shop.csv"
id = "customer"
"""


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    """Two clients: customers 0-89 at the bank, 30-119 at the shop; the shop's column decides."""
    rng = np.random.default_rng(0)
    age, income, basket = rng.normal(size=(3, 120))
    label = (0.5 * age + 2.0 * basket > 0).astype(int)
    with (tmp_path / "bank.csv").open("w") as bank:
        bank.write("customer,age,income,default\n")
        for i in range(90):
            bank.write(f"{i},{age[i]:.6f},{income[i]:.6f},{label[i]}\n")
    with (tmp_path / "shop.csv").open("w") as shop:
        shop.write("customer,basket,town\n")
        for i in range(30, 120):
            shop.write(f"{i},{basket[i]:.6f},{'north' if i % 2 else 'south'}\n")
    file = tmp_path / "two.toml"
    file.write_text(EXPERIMENT)
    return file


# -- usage


def test_the_version_goes_to_standard_output(capfd):
    assert main(["--version"]) == 0
    assert said(capfd) == (f"intarsia {__version__}\n", "")


def test_ctrl_c_while_the_command_line_is_imported_is_one_sentence():
    """As somebody does who presses it within the first third of a second."""
    code = (
        "import sys\n"
        "class Pressed:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'typer': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Pressed())\n"
        "from importlib.metadata import EntryPoint\n"
        "import tomllib\n"
        "known = tomllib.load(open(sys.argv[1], 'rb'))['project']['scripts']['intarsia']\n"
        "sys.exit(EntryPoint('intarsia', known, 'console_scripts').load()())\n"
    )
    project = Path(__file__).parents[2] / "pyproject.toml"
    done = subprocess.run(
        [sys.executable, "-c", code, project], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "stopped; give the same command again\n"


def test_without_a_command_the_help_is_shown(capfd):
    assert main([]) == 2
    out, err = said(capfd)
    assert out == ""
    assert "inspect" in err
    assert "predict" in err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["run"], "Missing argument 'FILE'"),
        (["rum"], "No such command 'rum'; use 'run' (the nearest of 'init', "),
        (["federation", "stauts"], "No such command 'stauts'; use 'status'"),
        (
            ["coefficients", "x.toml"],
            "'x.toml' is not a folder (there is none of that name); give the output",
        ),
        (["run", "x.toml", "--loud"], "No such option"),
        (["compare"], "Missing argument"),
        (["run", "x.toml"], "x.toml"),
        (["inspect", "x.toml"], "x.toml"),
        (["resume", "nowhere"], "'nowhere' is not a folder (there is none of that name)"),
        (["audit", "nowhere"], "'nowhere' is not a folder (there is none of that name)"),
        (["run", "."], ". is a folder; name the experiment file, such as mine.toml"),
        (["compare", "nowhere"], "'nowhere' is not a folder"),
        (["predict", "nowhere", "x.csv"], "'nowhere' is not a folder"),
    ],
)
def test_a_wrong_call_is_one_sentence(arguments, expected, capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    out, err = said(capfd)
    assert out == ""
    assert expected in one_error(err)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("experiment.round=3", "'rounds'"),
        ("rounds=3", "table.key=value"),
        ("experiment.rounds=many", "many"),
        ("client.bnak.path=x.csv", "'bank'"),
        ("experiment.rounds=" + "[" * 20_000, "too deep"),
        ("experiment.rounds=" + "9" * 5_000, "too long a number"),
        ('experiment.name="../../x"', "a name without slashes"),
        ('experiment.name=".."', "a name without slashes"),
    ],
)
def test_a_wrong_override_is_one_sentence(experiment, override, expected, capfd):
    assert main(["run", str(experiment), "-c", override]) == 2
    assert expected in one_error(said(capfd)[1])


def test_a_wrong_setting_is_said_before_a_result_that_is_there(experiment, capfd):
    out = experiment.parent / "out"
    call = ["run", str(experiment), "--out", str(out), "--quiet", "--no-yardsticks"]
    assert main(call) == 0
    said(capfd)
    assert main(call) == 2
    assert "already holds a result" in one_error(said(capfd)[1])
    for wrong, told in (
        ("algorithm.regularisaton=1", "unknown key 'regularisaton'; use 'regularisation'"),
        ("algorithm.regularisation=-1", "algorithm.regularisation is -1"),
        ("algorithm.rounds=5", "unknown key 'rounds'; 'rounds' is a key of [experiment]."),
        ("algorithm.name=hyfcda", "'hyfdca'"),
    ):
        assert main([*call, "-c", wrong]) == 2
        assert told in one_error(said(capfd)[1])


def test_a_shell_completes_commands():
    words = {"COMP_WORDS": "intarsia ins", "COMP_CWORD": "1", "_INTARSIA_COMPLETE": "complete_bash"}
    command = [sys.executable, "-m", "intarsia"]
    environment = {**os.environ, **words}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["inspect"]


def test_paragraphs_of_help_are_as_wide_as_the_terminal():
    command = [sys.executable, "-m", "intarsia", "predict", "--help"]
    done = subprocess.run(
        command, env={**os.environ, "COLUMNS": "80"}, capture_output=True, text=True, check=True
    )
    assert "\n npz file with a client's own columns, or with all of them; or a database and" in (
        done.stdout
    )


def test_help_is_shown_without_the_libraries_that_are_slow_to_import():
    command = [sys.executable, "-X", "importtime", "-m", "intarsia", "--help"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    imported = {line.rpartition("|")[2].strip() for line in listed.splitlines()}
    assert "intarsia.cli.main" in imported
    slow = {"numba", "numpy", "sklearn", "matplotlib", "scipy", "pyarrow", "polars", "torch"}
    assert not slow & imported


# -- stops and failures, with a run that stops or fails at once


def test_a_command_on_a_table_of_duckdb_ends_without_a_word_of_the_library(tmp_path):
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect(str(tmp_path / "bank.duckdb")) as bank:
        bank.sql("create table t as select i as id, i % 7 as a, i % 2 as y from range(60) r(i)")
    (tmp_path / "bank.toml").write_text(
        '[experiment]\nname = "bank"\n[algorithm]\nname = "hyfdca"\nloss = "logistic"\n'
        '[[client]]\nname = "bank"\nurl = "duckdb:///bank.duckdb"\nquery = "select * from t"\n'
        'id = "id"\nlabel = "y"\n'
    )
    words = [sys.executable, "-m", "intarsia", "inspect", "bank.toml"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def pretend(
    monkeypatch: pytest.MonkeyPatch,
    problem: BaseException,
    begin: Callable[[], object] = lambda: None,
) -> None:
    def fail(*_: object, **__: object) -> None:
        begin()
        raise problem

    module = ModuleType("intarsia.training.run")
    module.run = module.resume = fail  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "intarsia.training.run", module)


def begun(folder: Path, rounds: int) -> None:
    """Leave what a run leaves that was stopped after some rounds."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "experiment.json", b"{}")
    Checkpoints(folder).save(rounds, None, {}, {})


def test_ctrl_c_says_how_to_go_on(experiment, monkeypatch, capfd):
    folder = experiment.parent / "runs" / "two"
    pretend(monkeypatch, KeyboardInterrupt(), lambda: begun(folder, 17))
    assert main(["run", str(experiment), "--quiet"]) == 130
    go_on = f"stopped; this goes on from round 17: intarsia resume {folder}\n"
    assert said(capfd)[1] == go_on
    assert main(["run", str(experiment), "--quiet", "--overwrite"]) == 130  # one before it
    assert said(capfd)[1] == go_on
    pretend(monkeypatch, KeyboardInterrupt())
    assert main(["resume", str(folder), "--quiet"]) == 130
    assert said(capfd)[1] == go_on


def test_ctrl_c_before_the_run_before_is_replaced_says_that_it_is_there(
    experiment, monkeypatch, capfd
):
    folder = experiment.parent / "runs" / "two"
    begun(folder, 17)
    pretend(monkeypatch, KeyboardInterrupt())
    assert main(["run", str(experiment), "--quiet", "--overwrite"]) == 130
    assert said(capfd)[1] == (f"stopped before it began; the run before is in {folder} as it was\n")
    # its checkpoints alone are of nothing that can go on
    pretend(monkeypatch, KeyboardInterrupt(), (folder / "experiment.json").unlink)
    assert main(["run", str(experiment), "--quiet", "--overwrite"]) == 130
    assert "before the first checkpoint" in said(capfd)[1]


def test_ctrl_c_before_the_first_checkpoint(experiment, monkeypatch, capfd):
    pretend(monkeypatch, KeyboardInterrupt())
    assert main(["run", str(experiment), "--quiet"]) == 130
    assert "before the first checkpoint" in said(capfd)[1]


def test_a_run_that_was_stopped_before_its_first_checkpoint_begins_again(
    experiment, monkeypatch, capfd
):
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    folder = experiment.parent / "runs" / "two"
    with monkeypatch.context() as context:
        context.setattr("intarsia.training.run.train_to_end", stop)
        assert main(["run", str(experiment), "--quiet"]) == 130
    assert said(capfd)[1].endswith("before the first checkpoint; the same command begins again\n")
    assert (folder / "experiment.json").is_file()
    (folder / "notes.txt").write_text("mine")
    assert main(["run", str(experiment), "--quiet"]) == 0
    assert (folder / "result.json").is_file()
    assert (folder / "notes.txt").read_text() == "mine"


def test_ctrl_c_before_training_is_one_word(experiment, monkeypatch, capfd):
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("intarsia.experiment.config.load", stop)
    assert main(["run", str(experiment), "--quiet"]) == 130
    assert said(capfd) == ("", "stopped; give the same command again\n")


def test_a_diverged_run_exits_with_status_1(experiment, monkeypatch, capfd):
    pretend(monkeypatch, ConvergenceError("The loss is inf\nin round 3; lower the step."))
    assert main(["run", str(experiment), "--quiet"]) == 1
    assert one_error(said(capfd)[1]) == "error: The loss is inf in round 3; lower the step."


def test_a_stalled_run_exits_with_status_1_and_leaves_its_model(experiment, monkeypatch, capfd):
    monkeypatch.setattr("intarsia.training.loop.PATIENCE", 5)
    # the shop is never there together with the bank, which has the labels
    keys = {"participation": 0.5, "participation_pattern": "cyclic", "evaluate_every": 1}
    changes = [f"experiment.{key}={value}" for key, value in keys.items()]
    changes = [word for change in changes for word in ("-c", change)]
    assert main(["run", str(experiment), "--quiet", "--json", *changes]) == 1
    out, err = said(capfd)
    found = json.loads(out)
    [folder] = experiment.parent.glob("**/result.json")
    folder = folder.parent
    assert found["finished"] == "stalled"
    assert err.splitlines()[-1] == (
        f"stalled after round {found['rounds']}, above the tolerance: the model and the reason are "
        f"in {folder}"
    )
    assert main(["resume", str(folder), "--quiet"]) == 1
    assert main(["predict", str(folder), str(experiment.parent / "bank.csv")]) == 0


def test_a_folder_that_cannot_be_written_is_one_sentence(experiment, monkeypatch, capfd):
    pretend(monkeypatch, PermissionError(13, "Permission denied", "/out"))
    assert main(["run", str(experiment), "--quiet"]) == 2
    assert one_error(said(capfd)[1]).startswith("error: /out: Permission denied;")


@pytest.mark.parametrize(
    ("problem", "lacking"),
    [
        (RuntimeError("can't start new thread"), "threads and processes"),
        (
            BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"),
            "threads and processes",
        ),
        (OSError(errno.EMFILE, "Too many open files", "/a.csv"), "open files (ulimit -n)"),
    ],
)
def test_a_limit_of_the_system_is_one_sentence(problem, lacking, experiment, monkeypatch, capfd):
    pretend(monkeypatch, problem)
    assert main(["run", str(experiment), "--quiet"]) == 2
    line = one_error(said(capfd)[1])
    assert line.startswith(f"error: The system gives this process no more {lacking}")


def test_overwriting_leaves_other_files_alone(experiment):
    folder = experiment.parent / "runs" / "two"
    (folder / "checkpoints").mkdir(parents=True)
    for name in ("result.json", "experiment.json", "history.jsonl", "notes.txt"):
        (folder / name).write_text("old")
    assert main(["run", str(experiment), "--quiet", "--overwrite"]) == 0
    assert (folder / "notes.txt").read_text() == "old"
    assert json.loads((folder / "result.json").read_text())["experiment"] == "two"


# -- compare


def test_compare_gives_mean_and_deviation_over_seeds(tmp_path, capfd):
    folders = [
        finished(tmp_path / "a", 0, 0.80),
        finished(tmp_path / "b", 1, 0.84),
        finished(tmp_path / "c", 0, 0.70, "fedavg"),
    ]
    assert main(["compare", *map(str, folders), "--json"]) == 0
    out, err = said(capfd)
    first, second = json.loads(out)
    assert (first["algorithm"], first["seeds"]) == ("hyfdca", [0, 1])
    assert first["federated"]["mean"] == pytest.approx(0.82)
    assert first["federated"]["deviation"] == pytest.approx(0.02 * 2**0.5)
    assert first["centralised"]["mean"] == pytest.approx(0.9)
    assert first["standalone"]["mean"] == pytest.approx(0.6)
    assert (second["algorithm"], second["federated"]["deviation"]) == ("fedavg", None)
    assert "82.00 ± 2.83 %" in err


def test_compare_names_the_mean_over_clients_and_the_score_over_all_samples(tmp_path, capfd):
    folder = finished(tmp_path / "a", 0, 0.80, "flic")
    file = folder / "result.json"
    found = json.loads(file.read_text())
    found["metrics"]["clients_mean"]["accuracy"] = 0.71  # smaller clients do worse
    file.write_text(json.dumps(found))
    alone = finished(tmp_path / "b", 0, 0.80, "standalone")
    found["metrics"]["server"] = None
    found["algorithm"] = "standalone"
    (alone / "result.json").write_text(json.dumps(found))
    assert main(["compare", str(folder), str(alone), "--json"]) == 0
    out, err = said(capfd)
    first, second = json.loads(out)
    assert (first["clients"]["mean"], first["federated"]["mean"]) == (0.71, 0.80)
    assert (second["clients"]["mean"], second["federated"]) == (0.71, None)
    _, names, over, _, line, *_ = err.splitlines()
    heads = zip(names.split("┃")[3:], over.split("┃")[3:], strict=True)
    assert [f"{one.strip()}, {other.strip()}" for one, other in heads] == [
        "stand-alone, mean of clients",
        "federated, mean of clients",
        "federated, all samples",
        "centralised, all samples",
    ]
    assert line.index("60.00 %") < line.index("71.00 %") < line.index("80.00 %")


def test_compare_shows_figures_with_their_intervals(tmp_path, capfd):
    folders = [finished(tmp_path / name, seed, 0.8) for seed, name in enumerate("ab")]
    folders.append(finished(tmp_path / "c", 0, 0.7, "fedavg"))
    for folder, auc in zip(folders, (0.8, 0.9, 0.6), strict=True):
        file = folder / "result.json"
        found = json.loads(file.read_text())
        ranges = {"auc": [auc - 0.1, auc + 0.05], "accuracy": [0.5, 1.0]}
        found["metrics"]["server"]["figures"] = {"auc": auc, "brier": 0.2, "intervals": ranges}
        file.write_text(json.dumps(found))
    assert main(["compare", *map(str, folders), "--json"]) == 0
    out, err = said(capfd)
    first, second = json.loads(out)
    assert first["figures"]["auc"]["value"]["mean"] == pytest.approx(0.85)
    assert first["figures"]["auc"]["interval"] == pytest.approx([0.75, 0.9])
    assert first["figures"]["accuracy"]["interval"] == pytest.approx([0.5, 1.0])
    assert first["figures"]["brier"]["interval"] is None
    assert "rmse" not in first["figures"]
    assert second["figures"]["auc"]["value"] == {"mean": 0.6, "deviation": None, "runs": 1}
    assert "AUC" in err
    assert "RMSE" not in err
    assert "0.85 ± 0.07071" in err
    assert "0.75 – 0.9" in err


@pytest.mark.parametrize(
    "command",
    ["run x.toml --out", "predict run x.csv --out", "report --card", "compare --picture"],
)
def test_an_empty_path_is_not_the_working_folder(tmp_path, monkeypatch, capfd, command):
    monkeypatch.chdir(tmp_path)
    assert main([*command.split(), ""]) == 2
    after = command.split()[-1]
    assert f"argument after {after!r} is empty; write what it is to be" in capfd.readouterr().err
    assert main([*command.split()[:-1], f"{after}="]) == 2
    assert not list(tmp_path.iterdir())


def test_compare_shows_the_worst_client_and_macro_f1_where_they_are_known(tmp_path, capfd):
    folders = [finished(tmp_path / name, seed, 0.8) for seed, name in enumerate("ab")]
    for folder, worst in zip(folders, (0.2, 0.4), strict=True):
        file = folder / "result.json"
        found = json.loads(file.read_text())
        score = found["metrics"]["clients_mean"]
        found["metrics"]["clients_worst"] = {**score, "accuracy": worst}
        score["macro_f1"] = 0.55
        file.write_text(json.dumps(found))
    assert main(["compare", *map(str, folders), "--json"]) == 0
    out, err = said(capfd)
    (group,) = json.loads(out)
    assert group["worst"]["mean"] == pytest.approx(0.3)
    assert group["macro_f1"]["mean"] == pytest.approx(0.55)
    assert "30.00 ± 14.14 %" in err
    assert "55.00 ± 0.00 %" in err
    same = "accuracy and loss of the federated model are the same in all 2 runs"
    assert f"hyfdca: the seeds (0, 1) make no difference: {same}" in err


def test_compare_keeps_other_hyperparameters_apart(tmp_path, capfd):
    folders = [
        finished(tmp_path / "a", 0, 0.80, loss="hinge", gamma=1.0),
        finished(tmp_path / "b", 1, 0.84, loss="hinge", gamma=1.0),
        finished(tmp_path / "c", 0, 0.70, loss="logistic", gamma=1.0),
    ]
    assert main(["compare", *map(str, folders), "--json"]) == 0
    out, err = said(capfd)
    first, second = json.loads(out)
    assert (first["settings"], first["seeds"]) == ({"loss": "hinge"}, [0, 1])
    assert (second["settings"], second["seeds"]) == ({"loss": "logistic"}, [0])
    assert second["federated"]["mean"] == pytest.approx(0.7)
    assert "hyfdca (loss=logistic)" in err
    assert err.count("note:") == 1
    assert "hyfdca (loss=hinge): the seeds (0, 1) make a difference: accuracy 82.00 ± 2.83 %" in err


def test_compare_says_where_a_seed_counts_twice(tmp_path, capfd):
    folder = finished(tmp_path / "a", 7, 0.80)
    assert main(["compare", str(folder), str(folder)]) == 0
    assert "note: credit, hyfdca: more than one run has the seed 7" in said(capfd)[0]


# -- the whole way, through run.py


def test_inspect_counts_draws_and_advises(experiment, capfd):
    assert main(["inspect", str(experiment), "--json"]) == 0
    out, err = said(capfd)
    found = json.loads(out)
    assert len(out.splitlines()) == 1
    by_name = {row["client"]: row for row in found["clients"]}
    assert (by_name["bank"]["samples"], by_name["bank"]["features"]) == (90, 2)
    assert (by_name["shop"]["samples"], by_name["shop"]["labelled"]) == (90, 0)
    assert found["common_samples"] == [[90, 60], [60, 90]]
    assert found["algorithm"] == "hyfdca"
    assert Path(found["picture"]).read_bytes()[:4] == b"\x89PNG"
    assert "fits: hyfdca: hybrid" in err
    assert "30 of 120 samples have a label at no client" in err


def test_inspect_shows_of_which_classes_nobody_holds_a_block(tmp_path, capfd):
    file = tmp_path / "views.toml"
    file.write_text(
        """
        algorithm = { name = "hyfdca" }
        dataset = { name = "digits", blocks = "quadrants" }
        [partition]
        kind = "blocks"
        [[partition.client]]
        blocks = ["top-left", "bottom-right"]
        classes = [0, 1, 2, 3, 4, 5, 6]
        [[partition.client]]
        blocks = ["top-left"]
        classes = [6, 7, 8, 9]
        """
    )
    assert main(["inspect", str(file), "--json"]) == 0
    out, err = said(capfd)
    blocks = json.loads(out)["blocks"]
    assert blocks["top-left"] == {str(digit): 1 + (digit == 6) for digit in range(10)}
    assert [digit for digit, count in blocks["bottom-right"].items() if not count] == list("789")
    assert "7, 8, 9" in err
    assert "holdings-blocks.png" in err


def test_inspect_says_what_the_algorithm_has_against_the_parties(experiment, capfd):
    bank = experiment.parent / "bank.csv"
    head, *lines = bank.read_text().splitlines()
    assert head.endswith(",default")
    numbers = [f"{line.rpartition(',')[0]},{at}.5" for at, line in enumerate(lines)]
    bank.write_text("\n".join([head, *numbers]) + "\n")
    for loss, expected in (
        ("logistic", "the loss is 'logistic'; set algorithm.loss"),
        ("squared", ""),
    ):
        arguments = [str(experiment), "--json", "-c", f"algorithm.loss={loss}"]
        assert main(["inspect", *arguments]) == 0
        out, err = said(capfd)
        obstacle = json.loads(out)["obstacle"]
        assert expected in obstacle
        assert bool(obstacle) == bool(expected)
        assert ("as far as the tables go, fits: hyfdca" in err) == bool(expected)
        assert "labels: default: numbers to predict" in err
        assert main(["run", *arguments[:1], *arguments[2:], "--quiet"]) == (2 if expected else 0)
        assert obstacle in said(capfd)[1]


def test_inspect_says_what_the_python_interface_does(experiment, capfd):
    shop = experiment.parent / "shop.csv"
    shop.write_text(shop.read_text().replace("town", "default"))
    assert main(["inspect", str(experiment), "--json"]) == 0
    out, err = said(capfd)
    found = json.loads(out)
    expected = intarsia.inspect(experiment)
    assert found["notes"] == list(expected.advice.remarks)
    assert found["common_features"] == expected.overlaps.features.tolist()
    assert "note: Column 'default' has the labels of 'bank' and is a feature at 'shop'" in err


def test_run_prints_the_result_as_one_line_of_json(experiment, capfd):
    assert main(["run", str(experiment), "--json", "-c", "experiment.seed=3"]) == 0
    out, err = said(capfd)
    assert len(out.splitlines()) == 1
    found = json.loads(out)
    assert (found["algorithm"], found["experiment"], found["seed"]) == ("hyfdca", "two", 3)
    assert found["certificate"]["gap_relative"] <= 1e-4
    metrics = found["metrics"]
    assert metrics["server"]["accuracy"] > metrics["standalone"]["bank"]["accuracy"]
    folder = experiment.parent / "runs" / "two"
    assert json.loads((folder / "result.json").read_text()) == found
    for column in ("stand-alone", "federated", "centralised"):
        assert column in err
    assert f"folder: {folder}" in err


def test_the_ten_lines_of_the_readme_train(experiment, capfd):
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    lines = readme.split("```toml\n")[1].split("```")[0]
    assert len(lines.splitlines()) == 10
    file = experiment.parent / "mine.toml"
    file.write_text(lines)
    assert main(["run", str(file), "--quiet"]) == 0
    assert said(capfd)[0] == ""
    assert (experiment.parent / "runs" / "mine" / "result.json").is_file()


def test_a_quiet_run_says_nothing(experiment, capfd):
    assert main(["run", str(experiment), "--quiet"]) == 0
    assert said(capfd) == ("", "")


def test_a_finished_run_is_not_replaced_without_a_word(experiment, capfd):
    assert main(["run", str(experiment), "--quiet"]) == 0
    said(capfd)
    assert main(["run", str(experiment), "--quiet"]) == 2
    assert "--overwrite" in one_error(said(capfd)[1])
    assert main(["run", str(experiment), "--quiet", "--overwrite"]) == 0


def test_predict_after_run_knows_the_parties_columns(experiment, capfd):
    assert main(["run", str(experiment), "--quiet"]) == 0
    folder = experiment.parent / "runs" / "two"
    said(capfd)
    assert main(["predict", str(folder), str(experiment.parent / "shop.csv")]) == 0
    out, err = said(capfd)
    rows = list(csv.DictReader(io.StringIO(out)))
    assert len(rows) == 90
    assert rows[0]["id"] == "30"
    assert "age, income" in err
    # The basket decides: its client alone predicts well with the federation's model.
    basket = {
        row["customer"]: float(row["basket"])
        for row in csv.DictReader(io.StringIO((experiment.parent / "shop.csv").read_text()))
    }
    right = sum((row["label"] == "1") == (basket[row["id"]] > 0) for row in rows)
    assert right / len(rows) > 0.9


def test_a_run_that_is_stopping_is_not_ended_by_a_second_signal(experiment, monkeypatch):
    held, undisturbed = [], cli._end_undisturbed

    def watched():
        held.append(signal.getsignal(signal.SIGTERM))
        undisturbed()

    def stop(*_):
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(cli, "_end_undisturbed", watched)
    monkeypatch.setattr(tables.Watch, "__call__", stop)
    before = signal.getsignal(signal.SIGTERM)
    assert main(["run", str(experiment)]) == 130
    assert held == [signal.default_int_handler]
    assert signal.getsignal(signal.SIGTERM) is before


def test_ctrl_c_after_the_results_does_not_break_what_a_library_does_at_the_end():
    code = """
import atexit, os, signal, sys
atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))
from intarsia.cli.main import main
sys.argv = ["intarsia", "--version"]
sys.exit(main())
"""
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout == f"intarsia {__version__}\n"


@pytest.mark.parametrize(
    ("ending", "pressed"),
    [
        (signal.SIGINT, "once"),
        pytest.param(signal.SIGINT, "until it ends", marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, "once", marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, "until it ends", marks=pytest.mark.slow),
    ],
)
def test_a_run_that_is_stopped_says_how_to_go_on(experiment, ending, pressed):
    # no gap is looked at before the end: nothing stops it
    endless = [
        "-c",
        "experiment.rounds=1000000",
        "-c",
        "experiment.participation=0.5",
        "-c",
        "experiment.evaluate_every=0",
    ]
    with subprocess.Popen(
        [sys.executable, "-m", "intarsia", "run", str(experiment), *endless],
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        process.stderr.readline()  # the first line of progress: training has begun
        process.send_signal(ending)
        while pressed != "once" and process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.003)
            process.send_signal(ending)
        _, err = process.communicate(timeout=600)
    folder = experiment.parent / "runs" / "two"
    assert process.returncode == 130
    assert f"intarsia resume {folder}" in err
    assert "Traceback" not in err


_THREADS = """
import os, resource, sys
if sys.argv.pop(1) == "limited":
    resource.setrlimit(resource.RLIMIT_DATA, (8 << 30, 8 << 30))
from intarsia.__main__ import main
main()
import numpy, scipy.linalg
from threadpoolctl import threadpool_info
print(sorted({one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"}))
"""


def threads_of(limit: str, **variables: str) -> str:
    """Return how many threads BLAS libraries have beside a command."""
    counts = {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"}
    environment = {name: value for name, value in os.environ.items() if name not in counts}
    command = [sys.executable, "-c", _THREADS, limit, "--version"]
    how = {"capture_output": True, "text": True, "check": True}
    found = subprocess.run(command, env=environment | variables, **how)
    return found.stdout.splitlines()[-1]


@pytest.mark.skipif(os.cpu_count() == 1, reason="BLAS has one thread on one core")
def test_under_a_limit_of_what_is_mapped_blas_libraries_map_for_one_thread():
    assert threads_of("limited") == "[1]"
    assert threads_of("limited", OPENBLAS_NUM_THREADS="2") == "[2]"
    assert threads_of("not") != "[1]"
