"""A run that is stopped at any moment goes on to the same bits."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from intarsia.errors import CheckpointError
from intarsia.experiment.config import Experiment, from_dict
from intarsia.results.checkpoint import Checkpoints
from intarsia.training import loop
from intarsia.training.run import resume, run

EXPERIMENT = """
[experiment]
name = "killed"
seed = 5
rounds = {rounds}
tolerance = {tolerance}
participation = {participation}
checkpoint_seconds = 0
evaluate_every = 3
out = "{out}"

[algorithm]
name = "hyfdca"
loss = "{loss}"
regularisation = 1e-3
method = "{method}"

[[client]]
name = "bank"
path = "bank.csv"
id = "customer"
label = "default"

[[client]]
name = "shop"
path = "shop.csv"
id = "customer"

[[client]]
name = "phone"
path = "phone.csv"
id = "customer"
label = "default"
"""
# the ways that a run can take: exact Newton steps, dual ascent alone, clients that come and go
KINDS = {
    "newton": {"rounds": 40, "tolerance": 1e-12, "method": "auto", "loss": "hinge"},
    "ascent": {"rounds": 60, "tolerance": 0.0, "method": "ascent", "loss": "logistic"},
    "partial": {"rounds": 60, "tolerance": 0.0, "method": "auto", "participation": 0.67},
    "wide": {"rounds": 20, "tolerance": 1e-12, "method": "auto", "loss": "squared_hinge"},
}

STOPPED_RUN = Path(__file__).parents[1] / "support" / "stopped_run.py"
STEPS = 12  # about so many files are opened, made, renamed or removed in a round
HANGS = 600  # seconds


def write_tables(folder: Path, wide: bool) -> None:
    """Write three clients that share customers and a column; wide: more than 128 columns."""
    rng = np.random.default_rng(8)
    customers, columns = 240, 150 if wide else 18
    x = rng.normal(size=(customers, columns))
    default = (x @ rng.normal(size=columns) + rng.normal(size=customers) > 0).astype(int)
    third = columns // 3
    held = {
        "bank": (range(160), range(third), True),
        "shop": (range(60, 240), range(third, 2 * third), False),
        "phone": (range(100, 240), range(2 * third - 2, columns), True),
    }
    for name, (rows, own, labelled) in held.items():
        with (folder / f"{name}.csv").open("w") as file:
            header = ["customer", *(f"f{c}" for c in own), *(["default"] if labelled else [])]
            file.write(",".join(header) + "\n")
            for i in rows:
                cells = [str(i), *(f"{x[i, c]:.5f}" for c in own)]
                file.write(",".join([*cells, *([str(default[i])] if labelled else [])]) + "\n")


def write_experiment(folder: Path, kind: str, out: str) -> Path:
    if not (folder / "bank.csv").exists():
        write_tables(folder, kind == "wide")
    settings = {"participation": 1.0, "loss": "hinge", **KINDS[kind], "out": out}
    path = folder / f"{out}.toml"
    path.write_text(EXPERIMENT.format(**settings))
    return path


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """The folders of runs that nobody stopped, made when they are first asked for."""
    made: dict[str, Path] = {}

    def of(kind: str) -> Path:
        if kind not in made:
            folder = tmp_path_factory.mktemp(kind)
            run(write_experiment(folder, kind, "whole"))
            made[kind] = folder
        return made[kind]

    return of


def lines_of(out: Path) -> list[dict]:
    """Return the history without the seconds."""
    lines = [json.loads(line) for line in (out / "history.jsonl").read_text().splitlines()]
    for line in lines:
        line.pop("seconds")
    return lines


def check_identical(one: Path, two: Path) -> None:
    assert (one / "model/linear.json").read_bytes() == (two / "model/linear.json").read_bytes()
    assert lines_of(one) == lines_of(two)
    found, other = (json.loads((out / "result.json").read_text()) for out in (one, two))
    for key in ("rounds", "finished", "bytes", "exchanges", "certificate", "metrics", "notes"):
        assert found[key] == other[key], key


def rounds_done(out: Path) -> int:
    history = out / "history.jsonl"
    return history.read_bytes().count(b"\n") if history.exists() else 0


def stopped(how: str, out: Path, rounds: float, *command: object) -> tuple[int, str]:
    """Stop a command that many rounds on, within a round by its fraction; return its status."""
    place = [how, out, int(rounds), int(rounds % 1 * STEPS)]
    found = subprocess.run(
        [sys.executable, STOPPED_RUN, *map(str, place), *map(str, command), "--quiet"],
        capture_output=True,
        text=True,
        check=False,
        timeout=HANGS,
    )
    return found.returncode, found.stderr


def killed_and_resumed(folder: Path, kind: str, moment: float, rounds: int, name: str) -> Path:
    out = folder / name
    path = write_experiment(folder, kind, name)
    status, said = stopped("SIGKILL", out, moment * rounds, "run", path)
    assert status == -signal.SIGKILL, said
    assert not (out / "result.json").exists()
    assert rounds_done(out) == int(moment * rounds)
    resume(out)
    return out


def moments(count: int) -> list[float]:
    """Return shares of a run, one in each of `count` equal stretches of it."""
    drawn = np.random.default_rng(2026).random(count)
    return ((np.arange(count) + drawn) / count * 0.97).round(4).tolist()


def check_kill(uninterrupted, kind, moment):
    folder = uninterrupted(kind)
    rounds = len(lines_of(folder / "whole"))
    out = killed_and_resumed(folder, kind, moment, rounds, f"killed-{moment}")
    check_identical(folder / "whole", out)


@pytest.mark.parametrize(
    ("kind", "moment"),
    [
        pytest.param(kind, moment, marks=[pytest.mark.slow] * (kind != "newton"))
        for kind, moment in zip(["newton", "ascent", "partial"], moments(3), strict=True)
    ],
)
def test_a_killed_run_goes_on_to_the_same_bits(uninterrupted, kind, moment):
    check_kill(uninterrupted, kind, moment)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("moment", moments(10))
def test_a_run_killed_at_ten_moments_goes_on_to_the_same_bits(uninterrupted, kind, moment):
    check_kill(uninterrupted, kind, moment)


@pytest.mark.slow
def test_a_run_may_be_killed_twice(uninterrupted):
    folder = uninterrupted("ascent")
    out = folder / "twice"
    path = write_experiment(folder, "ascent", "twice")
    assert stopped("SIGKILL", out, 18, "run", path)[0] == -signal.SIGKILL
    assert stopped("SIGKILL", out, 24.5, "resume", out)[0] == -signal.SIGKILL
    assert rounds_done(out) >= 41
    assert not (out / "result.json").exists()
    resume(out)
    check_identical(folder / "whole", out)


def test_a_run_whose_tables_changed_since_is_not_gone_on_with(tmp_path):
    def stop(progress):
        if progress.round == 4:
            raise KeyboardInterrupt

    path = write_experiment(tmp_path, "ascent", "changed")
    with pytest.raises(KeyboardInterrupt):
        run(path, progress=stop)
    shop = tmp_path / "shop.csv"
    before = shop.read_text()
    first, *rest = before.splitlines(keepends=True)
    for other in (
        "".join([first, *rest[:-1]]),  # a row less
        before.replace("60,", "60,1", 1),  # another number
        before.replace("f6", "f6x", 1),  # another name
    ):
        shop.write_text(other)
        with pytest.raises(CheckpointError, match=r"changed are not those .* put them back"):
            resume(tmp_path / "changed")
    shop.write_text(before)
    assert resume(tmp_path / "changed").rounds == KINDS["ascent"]["rounds"]


def test_ctrl_c_says_how_to_go_on(uninterrupted):
    folder = uninterrupted("newton")
    out = folder / "stopped"
    path = write_experiment(folder, "newton", "stopped")
    status, said = stopped("SIGINT", out, 4, "run", path)
    assert status == 130
    assert f"intarsia resume {out}" in said
    assert "Traceback" not in said
    resume(out)
    check_identical(folder / "whole", out)


class StoppedError(Exception):
    """Stops a run from inside."""


def interrupted(folder: Path, kind: str, name: str, after: int) -> Path:
    """Return the folder of a run that stopped after some rounds."""

    def watch(progress):
        if progress.round == after:
            raise StoppedError

    with pytest.raises(StoppedError):
        run(write_experiment(folder, kind, name), progress=watch)
    return folder / name


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=[pytest.mark.slow] * (kind not in ("newton", "partial")))
        for kind in KINDS
    ],
)
@pytest.mark.parametrize("after", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_a_run_that_stopped_between_rounds_goes_on_to_the_same_bits(uninterrupted, kind, after):
    folder = uninterrupted(kind)
    out = interrupted(folder, kind, f"after-{after}", after)
    assert rounds_done(out) == after
    resume(out)
    check_identical(folder / "whole", out)


def test_without_a_checkpoint_the_run_starts_anew(uninterrupted):
    folder = uninterrupted("newton")
    out = interrupted(folder, "newton", "bare", 2)
    shutil.rmtree(out / "checkpoints")
    resume(out)
    check_identical(folder / "whole", out)


def test_a_damaged_checkpoint_is_said_and_the_one_before_is_taken(uninterrupted):
    folder = uninterrupted("newton")
    out = interrupted(folder, "newton", "damaged", 4)
    state = out / "checkpoints/round-00000004/server.state"
    state.write_bytes(state.read_bytes()[:-9])
    with pytest.warns(UserWarning, match="going on from round 3"):
        resume(out)
    check_identical(folder / "whole", out)


def test_a_finished_run_is_returned_as_it_is(uninterrupted):
    out = uninterrupted("newton") / "whole"
    before = (out / "result.json").read_bytes()
    assert resume(out).rounds == len(lines_of(out))
    assert (out / "result.json").read_bytes() == before


@pytest.mark.parametrize("party", ["bank", "shop", "phone"])
def test_a_changed_table_is_refused(uninterrupted, tmp_path, party):
    for name in ("bank", "shop", "phone"):
        shutil.copy(uninterrupted("newton") / f"{name}.csv", tmp_path)
    out = interrupted(tmp_path, "newton", "changed", 2)
    table = tmp_path / f"{party}.csv"
    lines = table.read_text().splitlines()
    cells = lines[20].split(",")
    cells[2] = "0.12345"
    lines[20] = ",".join(cells)
    table.write_text("\n".join(lines) + "\n")
    with pytest.raises(CheckpointError, match="not those the run was started with"):
        resume(out)
    assert not (out / "result.json").exists()


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"holds no experiment\.json"):
        resume(tmp_path)


def test_a_broken_description_is_refused(tmp_path):
    (tmp_path / "experiment.json").write_text("{")
    with pytest.raises(CheckpointError, match="is no JSON"):
        resume(tmp_path)


def test_an_unfinished_folder_is_not_run_over(uninterrupted):
    folder = uninterrupted("newton")
    out = interrupted(folder, "newton", "kept", 2)
    before = lines_of(out)
    with pytest.raises(CheckpointError, match="intarsia resume"):
        run(folder / "kept.toml")
    assert lines_of(out) == before


def masked_averaging(folder: Path, **settings) -> Experiment:
    """Return how to train by masked sums, in rounds that take far less than a second."""
    write_tables(folder, wide=False)
    tables = {
        name: {"path": str(folder / f"{name}.csv"), "id": "customer", "label": "default"}
        for name in ("bank", "phone")
    }
    tree = {
        "experiment": {"rounds": 60, "evaluate_every": 0, "yardsticks": False, **settings},
        "algorithm": {"name": "fedavg", "loss": "logistic"},
        "privacy": {"mode": "masked"},
        "client": [{"name": name, **one} for name, one in tables.items()],
    }
    return from_dict(tree, folder, "masked")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_within_a_round_keeps_all_rounds_to_its_end(tmp_path, monkeypatch, number):
    whole = run(masked_averaging(tmp_path), out=tmp_path / "whole")
    through, pressed = loop._round, []

    def stopped_within(task, server):
        if task.engine.books.round == 40 and not pressed:
            pressed.append(task)
            os.kill(os.getpid(), number)
            os.kill(os.getpid(), number)  # which is easily pressed twice
        return through(task, server)

    monkeypatch.setattr(loop, "_round", stopped_within)
    monkeypatch.setattr(loop, "_STOPPING", 1e6)
    out, before = tmp_path / "stopped", signal.signal(number, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt, match="this goes on with the run") as stopped:
            run(masked_averaging(tmp_path, checkpoint_seconds=1e6), out=out)
        assert f"intarsia.resume({str(out)!r})" in str(stopped.value)
        assert signal.getsignal(number) is signal.default_int_handler
    finally:
        signal.signal(number, before)
    assert Checkpoints(out).rounds[-1] == 40
    found = resume(out)
    assert (out / "model/linear.json").read_bytes() == (
        tmp_path / "whole/model/linear.json"
    ).read_bytes()
    assert (found.metrics, found.bytes) == (whole.metrics, whole.bytes)


def test_a_stop_at_the_first_line_of_progress_keeps_that_round(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "_STOPPING", 1e6)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            run(
                masked_averaging(tmp_path, checkpoint_seconds=1e6),
                out=tmp_path / "out",
                progress=lambda _: os.kill(os.getpid(), signal.SIGINT),
            )
    finally:
        signal.signal(signal.SIGINT, before)
    assert Checkpoints(tmp_path / "out").rounds[-1] == 1


def test_a_stop_in_a_long_round_does_not_wait_for_its_end(tmp_path, monkeypatch):
    through, ended = loop._round, []

    def stopped_within(task, server):
        if task.engine.books.round == 4:
            os.kill(os.getpid(), signal.SIGTERM)
        ended.append(task.engine.books.round)
        return through(task, server)

    monkeypatch.setattr(loop, "_round", stopped_within)
    monkeypatch.setattr(loop, "_STOPPING", 0.0)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            run(masked_averaging(tmp_path, checkpoint_seconds=0.0), out=tmp_path / "out")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ended == [1, 2, 3]
    assert Checkpoints(tmp_path / "out").rounds[-1] == 3


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("replaced", [False, True])
def test_a_run_whose_folder_goes_writes_no_part_of_a_result(tmp_path, last, replaced):
    """As by `mv`, with another folder in its place or none."""
    out, there = tmp_path / "out", tmp_path / "there"
    description = masked_averaging(tmp_path, rounds=6, checkpoint_seconds=0.0)

    def goes(now):
        if now.round == (6 if last else 3):
            out.rename(there)
            if replaced:
                out.mkdir()

    with pytest.raises(CheckpointError, match=r"out was moved, removed or replaced .* resume the"):
        run(description, out=out, progress=goes)
    assert list(tmp_path.rglob("result.json")) == []
    assert resume(there).metrics == run(description, out=tmp_path / "whole").metrics


def test_a_run_whose_folder_is_emptied_does_not_go_on_there(tmp_path):
    """`rm -rf` leaves the folder where a file came into it meanwhile."""
    out = tmp_path / "out"

    def empty(now):
        if now.round == 3:
            for path in [*out.iterdir()]:
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    with pytest.raises(CheckpointError, match="was moved, removed or replaced"):
        run(masked_averaging(tmp_path, rounds=6), out=out, progress=empty)
    assert list(out.iterdir()) == []
