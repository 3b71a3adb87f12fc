"""A disk that is full, at each stage of a run and of what is written beside runs."""

from __future__ import annotations

import errno
import json
import os
import resource
from pathlib import Path

import pytest

import four_sites
from command_line import one_error, said
from intarsia.cli import main as cli
from intarsia.core.files import atomic_files as whole_files
from intarsia.engines import record_file

FULL = OSError(errno.ENOSPC, "No space left on device")


EXPERIMENT = """
[experiment]
name = "small"
rounds = 4
tolerance = 0.0
checkpoint_seconds = 0.0
evaluate_every = 1
yardsticks = false
[algorithm]
name = "hyfdca"
loss = "logistic"
regularisation = 0.01
method = "ascent"
"""


def write_experiment(folder):
    """Write an experiment with a checkpoint after each round; return the words that run it."""
    described = four_sites.write_tables("hyfdca", folder / "tables")
    clients = "".join(f'[[client]]\nname = "{name}"\n{one}' for name, one in described.items())
    (folder / "small.toml").write_text(EXPERIMENT + clients)
    return ["run", str(folder / "small.toml"), "--quiet", "-c"]


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Return the words that run an experiment into `out` of the current folder."""
    monkeypatch.chdir(tmp_path)
    return [*write_experiment(tmp_path), "experiment.out=out"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of the run on a disk that has room."""
    folder = tmp_path_factory.mktemp("whole")
    assert cli.main([*write_experiment(folder), f"experiment.out={folder / 'out'}"]) == 0
    return folder / "out"


class Disk:
    """A disk that has room for so many writes to the files of a name, and for half of one more."""

    def __init__(self, patch):
        self._patch, self._write, self._append = patch, whole_files.write, os.write
        self.name, self.left = "", 0

    def fill(self, name, left=0):
        self.name, self.left = name, left
        self._patch.setattr(whole_files, "write", self._written)
        self._patch.setattr("intarsia.results.checkpoint.write", self._written)
        self._patch.setattr(record_file.os, "write", self._appended)

    def make_room(self):
        self._patch.undo()

    def _has_room(self, name):
        if self.name not in name:
            return True
        self.left -= 1
        return self.left >= 0

    def _written(self, path, pieces, **mode):
        data = b"".join(pieces)
        if self._has_room(str(path)):
            self._write(path, [data], **mode)
            return
        path.write_bytes(data[: len(data) // 2])
        raise OSError(*FULL.args)

    def _appended(self, file, data):
        if self._has_room(str(Path(f"/proc/self/fd/{file}").readlink())):
            return self._append(file, data)
        if len(data) < 2:
            raise OSError(*FULL.args)
        self.left = 0
        return self._append(file, data[: len(data) // 2])


@pytest.fixture
def disk():
    with pytest.MonkeyPatch.context() as patch:
        yield Disk(patch)


def lines(folder):
    found = [json.loads(one) for one in (folder / "history.jsonl").read_text().splitlines()]
    return [{**one, "seconds": 0} for one in found]


def result(folder):
    found = json.loads((folder / "result.json").read_text())
    return {key: found[key] for key in ("certificate", "metrics", "rounds")}


STAGES = {  # how many times a file can be written, and from which round the run then goes on
    "tables.crc": (0, None),
    "experiment.json": (0, None),
    "history.jsonl": (2, 1),
    "server.state": (2, 1),
    "clients.state": (1, 0),
    "extra.json": (3, 2),
    "holdings.png": (0, 4),
    "figures.png": (0, 4),
    "linear.json": (0, 4),
    "result.json": (0, 4),
}


# of files of one stage, one; the others are slow tests
ALIKE = {"tables.crc", "server.state", "extra.json", "holdings.png", "linear.json"}


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=[pytest.mark.slow] * (one in ALIKE)) for one in STAGES]
)
def test_a_run_on_a_full_disk_ends_in_a_sentence_and_goes_on_to_the_same_result(
    run, whole, disk, capfd, name
):
    writes, round = STAGES[name]
    disk.fill(name, writes)
    assert cli.main(run) == 2
    sentence = one_error(said(capfd)[1])
    assert "No space left on device; make room there: nothing that was written" in sentence
    how = f"goes on from round {round}" if round else "begins with the first one"
    go_on = f"this {how}: intarsia resume {Path('out').resolve()}"
    assert ("the same command begins again" if round is None else go_on) in sentence
    disk.make_room()
    assert not [one for one in Path("out").rglob("*") if ".tmp" in one.name]
    for one in lines(Path("out")) if Path("out/history.jsonl").exists() else ():
        assert "round" in one  # no half of a line
    again = run if round is None else ["resume", "out", "--quiet"]
    assert cli.main(again) == 0
    assert result(Path("out")) == result(whole)
    assert lines(Path("out")) == lines(whole)


def test_a_limit_of_a_files_length_is_told_as_one_and_not_as_a_full_disk(run, whole, capfd):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 12, before[1]))
    try:
        assert cli.main(run) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    sentence = one_error(said(capfd)[1])
    assert "File too large; let files be longer (ulimit -f, or LimitFSIZE= of its" in sentence
    assert "the same command begins again" in sentence
    assert cli.main(run) == 0
    assert result(Path("out")) == result(whole)


@pytest.mark.parametrize("before", [pytest.param("", marks=pytest.mark.slow), "as it was"])
def test_predictions_and_pictures_are_written_whole_or_not_at_all(run, disk, capfd, before):
    assert cli.main(run) == 0
    said(capfd)
    commands = {
        "found.csv": ["predict", "out", "tables/bank.csv", "--out", "found.csv"],
        "rounds.png": ["rounds", "out", "--out", "rounds.png"],
        "holdings.png": ["inspect", "small.toml", "-c", "experiment.out=."],
        "report.html": ["report", "out", "--out", "report.html"],
    }
    for name, command in commands.items():
        if before:
            Path(name).write_text(before)
        disk.fill(name)
        assert cli.main(command) == 2
        disk.make_room()
        error = said(capfd)[1].splitlines()[-1]
        assert error.startswith("error: ")
        assert error.endswith(f"{name}: No space left on device; make room there.")
        assert Path(name).exists() == bool(before)
        assert not before or Path(name).read_text() == before
