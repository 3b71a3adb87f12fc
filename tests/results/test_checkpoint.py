from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from intarsia.core.files.atomic_files import write_atomically
from intarsia.errors import CheckpointError
from intarsia.results import checkpoint
from intarsia.results.checkpoint import Checkpoints


@dataclass(frozen=True)
class State:
    duals: np.ndarray
    step: float


def saved(folder: Path, *rounds: int) -> Checkpoints:
    checkpoints = Checkpoints(folder)
    for number in rounds:
        states = {"a": State(np.full(3, float(number)), 0.1), "b": State(np.zeros(0), number / 3)}
        checkpoints.save(number, State(np.arange(2.0), float(number)), states, {"sigma": 0.5})
    return checkpoints


def test_what_was_saved_comes_back(tmp_path):
    found = saved(tmp_path, 4).latest([State])
    assert found is not None
    assert found.round == 4
    assert found.server.step == 4.0
    assert list(found.clients) == ["a", "b"]
    np.testing.assert_array_equal(found.clients["a"].duals, [4.0, 4.0, 4.0])
    assert found.clients["b"].step == 4 / 3
    assert found.extra == {"sigma": 0.5}


def test_an_empty_folder_has_no_checkpoint(tmp_path):
    assert Checkpoints(tmp_path).latest([State]) is None
    assert Checkpoints(tmp_path).rounds == ()
    assert Checkpoints(tmp_path).history() == []


def test_only_the_last_two_are_kept(tmp_path):
    assert saved(tmp_path, 1, 2, 3, 10).rounds == (3, 10)


class Made(Mapping):
    """States that are made when they are asked for; takes down by which thread."""

    def __init__(self, sizes):
        self.sizes, self.threads = sizes, []

    def __getitem__(self, client):
        self.threads.append(threading.get_ident())
        if self.sizes[client] < 0:
            raise ValueError(f"no state of {client}")
        return State(np.full(self.sizes[client], float(len(client))), 0.5)

    def __iter__(self):
        return iter(self.sizes)

    def __len__(self):
        return len(self.sizes)


@pytest.mark.parametrize("at_once", [1, 300, 1 << 22])
def test_records_made_ahead_are_the_same_bytes_in_the_same_order(at_once, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "_AT_ONCE", at_once)
    found = {}
    for ahead in (False, True):
        states = Made({"c" * number: 7 * number % 40 for number in range(1, 30)})
        folder = tmp_path / f"{ahead}"
        Checkpoints(folder).save(1, 0, states, {}, ahead=ahead)
        found[ahead] = (folder / "checkpoints/round-00000001/clients.state").read_bytes()
        held = Checkpoints(folder).latest([State]).clients
        assert [len(held[name].duals) for name in states] == [*states.sizes.values()]
        several = at_once < 1000
        assert any(one != threading.get_ident() for one in states.threads) == (ahead and several)
    assert found[False] == found[True]


@pytest.mark.parametrize("ahead", [False, True])
def test_a_state_that_cannot_be_made_is_told_and_leaves_no_checkpoint(ahead, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "_AT_ONCE", 1)
    store = Checkpoints(tmp_path)
    with pytest.raises(ValueError, match="no state of b"):
        store.save(1, 0, Made({"a": 5, "b": -1, "c": 5}), {}, ahead=ahead)
    assert store.rounds == ()
    store.save(2, 0, Made({"a": 5}), {}, ahead=ahead)
    assert store.rounds == (2,)


def test_no_state_is_asked_for_once_a_checkpoint_could_not_be_written(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "_AT_ONCE", 1)
    states, begun = Made(dict.fromkeys("abcdef", 5)), threading.Event()

    class Slow(Made):
        def __getitem__(self, client):
            if client == "b":
                begun.set()
            return super().__getitem__(client)

    def full(path, pieces, **how):
        if path.name == "clients.state":
            next(pieces)  # the record is there, and the next one is being made
            assert begun.wait(20)
            raise OSError(errno.ENOSPC, "No space left on device")

    states = Slow(states.sizes)
    monkeypatch.setattr(checkpoint, "write", full)
    with pytest.raises(OSError, match="No space") as raised:
        Checkpoints(tmp_path).save(1, 0, states, {}, ahead=True)
    assert raised.traceback  # which holds the frames
    assert len(states.threads) == 2
    assert not [one for one in threading.enumerate() if one.ident in states.threads[1:]]


def test_a_checkpoint_is_in_force_once_the_disk_has_it(tmp_path, monkeypatch):
    checkpoints, disk, asked, fsync = saved(tmp_path, 1), threading.Event(), [], os.fsync

    def slow(descriptor: int) -> None:
        asked.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        assert disk.wait(60)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", slow)
    checkpoints.append_history({"round": 2})
    checkpoints.save(2, None, {"a": 1}, {}, wait=False)
    assert checkpoints.seconds == math.inf
    assert checkpoints.rounds == (1,)
    disk.set()
    checkpoints.settle()
    assert 0 < checkpoints.seconds < math.inf
    assert checkpoints.rounds == (1, 2)
    names = {"server.state", "clients.state", "extra.json", "history.jsonl", "checkpoints"}
    assert {one.name for one in asked} == {*names, "round-00000002.tmp"}
    assert asked[-1].name == "checkpoints"


def test_a_folder_that_is_emptied_while_the_disk_takes_a_checkpoint_is_said(tmp_path, monkeypatch):
    checkpoints = saved(tmp_path / "run", 1)
    checkpoints.append_history({"round": 1})
    put_in_force = checkpoints._put_in_force

    def emptied(*given):
        for path in [*(tmp_path / "run").iterdir()]:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        return put_in_force(*given)

    monkeypatch.setattr(checkpoints, "_put_in_force", emptied)
    checkpoints.save(2, None, {"a": 1}, {}, wait=False)
    with pytest.raises(CheckpointError, match="was moved, removed or replaced while the run went"):
        checkpoints.settle()
    assert not any((tmp_path / "run").iterdir())


@pytest.mark.parametrize("told", ["settle", "save", "latest"])
def test_a_disk_that_fails_later_is_told_and_leaves_the_checkpoint_before(
    tmp_path, monkeypatch, told
):
    checkpoints = saved(tmp_path, 1)

    def full(_: int) -> None:
        raise OSError(errno.EIO, "disk fails")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        checkpoints.save(2, None, {}, {}, wait=False)
        ask = {
            "settle": checkpoints.settle,
            "save": lambda: checkpoints.save(3, None, {}, {}),
            "latest": lambda: checkpoints.latest([State]),
        }
        with pytest.raises(OSError, match=r"disk fails.*round-00000002"):
            ask[told]()
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["round-00000001"]
    checkpoints.save(2, None, {}, {})
    assert checkpoints.rounds == (1, 2)


def test_a_round_may_be_saved_again(tmp_path):
    checkpoints = saved(tmp_path, 1, 2)
    checkpoints.save(2, "again", {}, {})
    found = checkpoints.latest([])
    assert found is not None
    assert found.server == "again"
    assert checkpoints.rounds == (1, 2)


@given(st.lists(st.text(max_size=300), unique=True, max_size=4))
def test_any_client_name_is_safe_as_a_file(tmp_path_factory, names):
    checkpoints = Checkpoints(tmp_path_factory.mktemp("run"))
    names = [name.encode("utf-8", "ignore").decode() for name in names]
    checkpoints.save(1, None, {name: name for name in names}, {})
    found = checkpoints.latest([])
    assert found is not None
    assert found.clients == {name: name for name in names}


@pytest.mark.parametrize("name", ["..", "../../x", "a/b", "CON", "", "\0", "é" * 200])
def test_a_client_name_never_becomes_a_path(tmp_path, name):
    checkpoints = Checkpoints(tmp_path / "run")
    checkpoints.save(1, None, {name: 1}, {})
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    found = checkpoints.latest([])
    assert found is not None
    assert found.clients == {name: 1}


def test_a_half_written_checkpoint_is_ignored_and_removed(tmp_path):
    checkpoints = saved(tmp_path, 1)
    half = tmp_path / "checkpoints" / "round-00000002.tmp"
    half.mkdir(parents=True)
    (half / "clients.state").write_bytes(b"half")
    found = checkpoints.latest([State])
    assert found is not None
    assert found.round == 1
    assert not half.exists()


@pytest.mark.parametrize("file", ["server.state", "clients.state", "extra.json"])
@pytest.mark.parametrize("damage", ["truncated", "altered", "missing"])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(tmp_path, file, damage):
    checkpoints = saved(tmp_path, 1, 2)
    path = tmp_path / "checkpoints" / "round-00000002" / file
    data = path.read_bytes()
    if damage == "truncated":
        path.write_bytes(data[: len(data) // 2])
    elif damage == "altered":
        path.write_bytes(data[:-3] + bytes([data[-3] ^ 1]) + data[-2:])
    else:
        path.unlink()
    with pytest.warns(UserWarning, match="going on from round 1"):
        found = checkpoints.latest([State])
    assert found is not None
    assert found.round == 1


def test_damage_everywhere_is_said(tmp_path):
    checkpoints = saved(tmp_path, 1, 2)
    for path in (tmp_path / "checkpoints").glob("*/server.state"):
        path.write_bytes(b"")
    with pytest.raises(CheckpointError, match="All 2 checkpoints"):
        checkpoints.latest([State])


def test_the_history_is_cut_at_the_round_of_the_checkpoint(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    for number in range(1, 6):
        checkpoints.append_history({"round": number, "loss": 1 / number})
    checkpoints.truncate_history(3)
    assert [line["round"] for line in checkpoints.history()] == [1, 2, 3]
    checkpoints.append_history({"round": 4, "loss": 0.25})
    assert [line["loss"] for line in checkpoints.history()] == [1.0, 1 / 2, 1 / 3, 1 / 4]


def test_a_line_of_the_history_has_null_for_what_json_lacks(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.append_history({"round": 1, "dual": -np.inf, "loss": np.float64("nan"), "gap": 0.5})
    assert checkpoints.history() == [{"round": 1, "dual": None, "loss": None, "gap": 0.5}]


@pytest.mark.parametrize("rest", ["", '{"round": 20, "lo', "\n", "\n\nno line\n"])
@pytest.mark.parametrize("count", [0, 1, 20])
@pytest.mark.parametrize("letters", [1, 3000, 20_000])
def test_the_newest_line_of_the_history_is_the_last_whole_one(tmp_path, rest, count, letters):
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.newest_line() == {}
    lines = [{"round": number, "note": str(number % 10) * letters} for number in range(count)]
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    (tmp_path / "history.jsonl").write_text(text + rest)
    assert checkpoints.newest_line() == (lines[-1] if lines else {})
    assert checkpoints.history() == lines


def test_a_half_written_line_of_the_history_is_dropped(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.append_history({"round": 1})
    with (tmp_path / "history.jsonl").open("a") as history:
        history.write('{"round": 2, "lo')
    assert checkpoints.history() == [{"round": 1}]
    checkpoints.truncate_history(9)
    checkpoints.append_history({"round": 2})
    assert checkpoints.history() == [{"round": 1}, {"round": 2}]


def test_a_failed_replacement_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "result.json"
    write_atomically(path, b"old")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "disk full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"disk full.*result\.json"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


_WRITER = """
import sys, numpy as np
from pathlib import Path
from intarsia.results.checkpoint import Checkpoints
checkpoints = Checkpoints(Path(sys.argv[1]))
print("ready", flush=True)
for round in range(1, 1_000_000):
    checkpoints.append_history({"round": round})
    state = np.full(20_000, float(round))
    wait = sys.argv[2] == "wait"
    checkpoints.save(round, state, {name: state for name in "abc"}, {"round": round}, wait=wait)
"""


@pytest.mark.parametrize("seconds", [0.02, 0.05, 0.11])
@pytest.mark.parametrize("way", ["wait", "meanwhile"])
def test_a_kill_at_any_moment_leaves_a_whole_checkpoint(tmp_path, seconds, way):
    with subprocess.Popen(
        [sys.executable, "-c", _WRITER, str(tmp_path), way], stdout=subprocess.PIPE
    ) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        while writer.poll() is None and not Checkpoints(tmp_path).rounds:
            pass
        # The moment of the kill is what varies; the wait is for nothing to become true.
        with contextlib.suppress(subprocess.TimeoutExpired):
            writer.wait(seconds)
        writer.send_signal(signal.SIGKILL)
    checkpoints = Checkpoints(tmp_path)
    found = checkpoints.latest([])  # any damage would warn, and a warning is an error here
    assert found is not None
    assert found.extra == {"round": found.round}
    for state in (found.server, *found.clients.values()):
        np.testing.assert_array_equal(state, np.full(20_000, float(found.round)))
    checkpoints.truncate_history(found.round)
    assert [line["round"] for line in checkpoints.history()] == [*range(1, found.round + 1)]
    assert [path.name for path in (tmp_path / "checkpoints").glob("*.tmp")] == []
