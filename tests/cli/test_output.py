"""What the command line writes where: warnings, results, files that a user names."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest

from command_line import one_error, said
from intarsia.cli import main as cli
from intarsia.cli.main import main

EXPERIMENT = """
[experiment]
name = "one"
rounds = 30
checkpoint_seconds = 0
yardsticks = false

[algorithm]
name = "hyfdca"
loss = "logistic"

[[client]]
name = "bank"
path = "bank.csv"
id = "customer"
label = "default"
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return a folder with a client's table and an experiment, as the working directory."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 2))
    y = (x[:, 0] > 0).astype(int)
    (tmp_path / "bank.csv").write_text(
        "customer,age,income,default\n"
        + "".join(f"{k},{a},{b},{c}\n" for k, ((a, b), c) in enumerate(zip(x, y, strict=True)))
    )
    (tmp_path / "one.toml").write_text(EXPERIMENT)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def finished_run(folder, capfd):
    """Return the output folder of a finished run."""
    assert main(["run", "one.toml", "--quiet"]) == 0
    said(capfd)
    return folder / "runs" / "one"


def intarsia(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", "intarsia", *map(str, arguments)],
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=120,
        **options,
    )


@pytest.mark.filterwarnings("default")
def test_a_warning_is_a_line_on_standard_error(folder, monkeypatch, capfd):
    def warned(*_):
        warnings.warn("the first line\n   and the second", RuntimeWarning, stacklevel=2)
        raise SystemExit(0)

    monkeypatch.setattr(cli, "_load", warned)
    with pytest.raises(SystemExit):
        main(["run", "one.toml"])
    out, err = said(capfd)
    assert out == ""
    assert err == "warning: the first line and the second\n"


@pytest.mark.filterwarnings("default")
def test_a_damaged_checkpoint_is_warned_of_and_the_one_before_is_taken(folder, capfd, monkeypatch):
    from intarsia.training import loop as training

    save, saved = training._save, []

    def stop_after(*arguments):
        save(*arguments)
        saved.append(True)
        if len(saved) == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(training, "_save", stop_after)
    assert main(["run", "one.toml", "--quiet", "-c", "experiment.tolerance=0"]) == 130
    said(capfd)
    monkeypatch.setattr(training, "_save", save)
    run = folder / "runs" / "one"
    newest = max((run / "checkpoints").iterdir())
    whole = (newest / "clients.state").read_bytes()
    (newest / "clients.state").write_bytes(whole[: len(whole) // 2])
    assert main(["resume", str(run), "--quiet"]) == 0
    _, err = said(capfd)
    assert err.startswith("warning: ")
    assert newest.name in err or "checkpoint" in err
    assert "Traceback" not in err
    assert (run / "result.json").is_file()


def test_results_that_standard_output_has_no_room_for_are_one_sentence(finished_run):
    with Path("/dev/full").open("w") as full:
        found = intarsia("predict", finished_run, "bank.csv", stdout=full)
    assert found.returncode == 2
    assert found.stderr.splitlines()[-1] == (
        "error: standard output: No space left on device; send the results elsewhere."
    )
    assert "Traceback" not in found.stderr


def test_a_command_that_is_started_without_standard_streams_gives_their_numbers_to_no_file(
    tmp_path,
):
    code = (
        "import os, sys; place = sys.argv.pop(); sys.argv[1:] = ['schema']\n"
        "from intarsia.__main__ import main\n"
        "status, made = main(), os.open(place, os.O_CREAT | os.O_WRONLY)\n"
        "os.write(made, b'%d %s' % (status, b'own' if made > 2 else b'standard'))"
    )
    words = ["sh", "-c", 'exec "$0" -c "$1" "$2" <&- >&- 2>&-', sys.executable, code]
    assert subprocess.run([*words, tmp_path / "file"], check=False).returncode == 0
    assert (tmp_path / "file").read_bytes() == b"0 own"


def test_who_has_seen_enough_of_the_results_is_told_nothing(finished_run):
    reading, writing = os.pipe()
    os.close(reading)
    found = intarsia("predict", finished_run, "bank.csv", stdout=writing)
    os.close(writing)
    assert found.returncode == 1
    assert "error:" not in found.stderr
    assert "Traceback" not in found.stderr


def test_predictions_go_into_what_a_name_stands_for(finished_run, capfd):
    assert main(["predict", str(finished_run), "bank.csv"]) == 0
    expected = said(capfd)[0]
    # the file that a link leads to
    Path("elsewhere").mkdir()
    Path("elsewhere/real.csv").write_text("old")
    Path("link.csv").symlink_to("elsewhere/real.csv")
    assert main(["predict", str(finished_run), "bank.csv", "--out", "link.csv"]) == 0
    assert Path("link.csv").is_symlink()
    assert Path("elsewhere/real.csv").read_text() == expected
    # a pipe with somebody at its end
    os.mkfifo("pipe")
    found = []
    reader = threading.Thread(target=lambda: found.append(Path("pipe").read_text()))
    reader.start()
    assert main(["predict", str(finished_run), "bank.csv", "--out", "pipe"]) == 0
    reader.join()
    assert found == [expected]
    assert stat.S_ISFIFO(Path("pipe").stat().st_mode)


def test_a_device_stays_what_it_is(finished_run, capfd):
    # a link, so that a mistake here replaces the link and not the device
    Path("full").symlink_to("/dev/full")
    assert main(["predict", str(finished_run), "bank.csv", "--out", "full"]) == 2
    assert "full: No space left on device" in said(capfd)[1]
    assert Path("full").is_symlink()


@pytest.mark.parametrize("name", ["out.parquet", "out.XLSX", "result.json", "one.toml"])
def test_predictions_under_the_name_of_another_format_are_refused(finished_run, capfd, name):
    for path in (Path(name), finished_run / name):
        before = path.read_bytes() if path.exists() else None
        for command in (["predict", str(finished_run), "bank.csv"], ["coefficients", finished_run]):
            assert main([*map(str, command), "--out", str(path)]) == 2
            assert "are written as CSV; name it .csv" in one_error(said(capfd)[1])
        assert (path.read_bytes() if path.exists() else None) == before


def test_a_key_that_cannot_be_used_leaves_no_half_of_a_run(folder, capfd):
    sealed = ["-c", "privacy.mode=masked", "-c", "privacy.key=mine.key"]
    assert main(["run", "one.toml", "--quiet", *sealed]) == 2
    assert "mine.key" in one_error(said(capfd)[1])
    assert not (folder / "runs").exists()


WRONG = [
    ["nosuch"],
    ["run"],
    ["run", "--wrong"],
    ["run", "run.toml", "-c"],
    ["rounds", "--out"],
    ["federation"],
    ["predict", "out", "a.csv", "b.csv"],
    ["run", "missing.toml"],
]
# typer is there with the click that it brought, and no other can be imported, as where it has a
# copy of its own
WITHOUT_CLICK = f"""
import sys
import typer
sys.modules["click"] = None
from intarsia.cli.main import main
print([main(arguments) for arguments in {WRONG}])
"""


def test_wrong_arguments_are_one_sentence_each_without_another_click_than_typers():
    command = [sys.executable, "-c", WITHOUT_CLICK]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.stdout.strip() == str([2] * len(WRONG)), found.stderr
    lines = found.stderr.splitlines()
    assert len(lines) == len(WRONG)
    assert all(line.startswith("error: ") for line in lines)


def test_a_command_in_a_notebook_draws_without_the_notebooks_backend():
    code = "import os; from intarsia.cli.main import main; main(); import matplotlib.pyplot"
    given = {**os.environ, "MPLBACKEND": "module://is_nowhere.backend"}
    command = [sys.executable, "-c", code, "--version"]
    found = subprocess.run(command, capture_output=True, text=True, check=False, env=given)
    assert (found.returncode, found.stderr) == (0, "")


@pytest.mark.parametrize("command", ["inspect", "coefficients", "compare", "audit", "doctor"])
def test_an_answer_is_all_of_standard_output_and_json_takes_its_place(command, answers, capfd):
    given = {"doctor": [], "inspect": [str(answers / "mine.toml")]}
    arguments = [command, *given.get(command, [str(answers / "run")])]
    assert main(arguments) == 0
    table, err = capfd.readouterr()
    assert table.strip()
    assert err == ""
    assert main([*arguments, "--json"]) == 0
    line, again = capfd.readouterr()
    assert len(line.splitlines()) == 1
    json.loads(line)
    assert again.splitlines()[0].strip() == table.splitlines()[0].strip()


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """Return a folder with an experiment and its run."""
    place = tmp_path_factory.mktemp("answers")
    rows = "".join(f"{at},{at % 7},{'yes' if at % 3 else 'no'}\n" for at in range(60))
    (place / "a.csv").write_text(f"id,x,y\n{rows}")
    (place / "mine.toml").write_text(
        '[experiment]\nrounds = 3\nyardsticks = false\nout = "run"\n'
        '[algorithm]\nname = "hyfdca"\nloss = "logistic"\n'
        '[[client]]\nname = "a"\npath = "a.csv"\nid = "id"\nlabel = "y"\n'
    )
    assert main(["run", str(place / "mine.toml"), "-q"]) == 0
    return place
