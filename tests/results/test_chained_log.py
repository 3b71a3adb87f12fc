"""What is done to a log after it was written is found, and where."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import tracemalloc

import pytest

from intarsia.errors import CheckpointError
from intarsia.results import chained_log
from intarsia.results.chained_log import ChainedLog, Head, read_chain, read_head


@pytest.fixture
def log(tmp_path):
    """A log of ten entries: its two files."""
    path, head = tmp_path / "log" / "site.log", tmp_path / "site.head"
    written = ChainedLog(path, head)
    for number in range(10):
        written.append({"event": "answered", "value": number})
    return path, head


def faults(log, **noted):
    return list(read_chain(*log, **noted).faults)


def lines(log):
    return log[0].read_bytes().splitlines(keepends=True)


def put(log, changed):
    log[0].write_bytes(b"".join(changed))


def test_a_log_that_nobody_touched_is_whole(log):
    found = read_chain(*log)
    assert found.faults == ()
    assert [one["value"] for one in found.entries] == list(range(10))
    assert [one["n"] for one in found.entries] == list(range(1, 11))
    assert found.head == read_head(log[1])
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in log)


def test_a_long_log_is_verified_in_the_memory_of_a_few_entries(log):
    written = ChainedLog(*log)
    for _ in range(400):
        written.append({"event": "answered", "cells": list(range(1000))})
    tracemalloc.start()
    try:
        found = read_chain(*log)
        numbers = [one["n"] for one in found.entries]
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert numbers == list(range(1, 411))
    assert (len(found.entries), found.faults, found.head.number) == (410, (), 410)
    assert most < log[0].stat().st_size / 4


@pytest.mark.parametrize("number", range(1, 11))
def test_an_edit_of_any_entry_is_found_and_located(log, number):
    before = lines(log)
    changed = before[number - 1].replace(b'"value":', b'"value":1')
    put(log, [*before[: number - 1], changed, *before[number:]])
    (found,) = faults(log)
    words = f"Entry {number} was altered after it was written" if number < 10 else "Entry 10 is not"
    assert found.startswith(words)


@pytest.mark.parametrize(("first", "last"), [(1, 1), (1, 4), (5, 5), (3, 9)])
def test_entries_that_were_taken_out_are_found_and_located(log, first, last):
    before = lines(log)
    put(log, [*before[: first - 1], *before[last:]])
    (found,) = faults(log)
    several = f"Entries {first} to {last} are missing"
    assert found.startswith(several if last > first else f"Entry {first} is missing")


def test_an_edit_that_hides_itself_by_new_hashes_is_found_by_the_head(log):
    rewritten = chain_of({"value": 99 if number == 3 else number} for number in range(10))
    put(log, rewritten)
    (found,) = faults(log)
    assert found == "Entry 10 is not the one that the head knows: it was altered."


def chain_of(entries):
    """Return the lines of a chain that is right in itself."""
    found, before = [], chained_log.START
    for number, entry in enumerate(entries, 1):
        one = {"n": number, "at": "2026-01-01", "before": before, "event": "answered", **entry}
        line = json.dumps(one, separators=(",", ":")).encode()
        before = chained_log._digest(line)
        found.append(line + b"\n")
    return found


@pytest.mark.parametrize("count", [1, 6, 10])
def test_entries_that_were_cut_off_at_the_end_are_found_by_the_head(log, count):
    put(log, lines(log)[: 10 - count])
    (found,) = faults(log)
    assert found.endswith(f"there were 10: the last {count} are missing.")
    assert faults((log[0], None)) == []  # nobody else would know


def test_a_gap_at_the_end_stays_to_be_found_when_the_log_goes_on(log):
    put(log, lines(log)[:6])
    ChainedLog(*log).append({"event": "answered"})
    assert [*read_chain(*log).entries][-1]["n"] == 11
    (found,) = faults(log)
    assert found.startswith("Entries 7 to 10 are missing")


def test_a_log_that_is_gone_as_a_whole_is_missed_too(log):
    log[0].unlink()
    with pytest.raises(CheckpointError, match="does not exist"):
        read_chain(*log)
    ChainedLog(*log).append({"event": "answered"})
    (found,) = faults(log)
    assert found.startswith("Entries 1 to 10 are missing")


def test_a_head_that_was_noted_elsewhere_finds_a_log_that_was_written_anew(log):
    noted = Head.of(str(read_head(log[1])))
    assert faults(log, noted=noted) == []
    ChainedLog(*log).append({"event": "answered"})
    assert faults(log, noted=noted) == []
    put(log, chain_of({"value": 0} for _ in range(12)))
    log[1].unlink()
    ChainedLog(*log).append({"event": "answered"})
    assert faults(log) == []  # with its head it is right in itself
    (found,) = faults(log, noted=noted)
    assert found.startswith("Entry 10 is not the one that was noted")
    put(log, lines(log)[:5])
    assert any("noted" in one for one in faults(log, noted=noted))


def test_a_head_that_is_missing_or_damaged_is_said(log):
    for text in (None, "", "10", "ten:aa", f"10:{'g' * 64}"):
        log[1].unlink(missing_ok=True)
        if text is not None:
            log[1].write_text(text)
        (found,) = faults(log)
        assert "missing or damaged" in found


def test_entries_that_were_moved_or_put_in_are_found(log):
    before = lines(log)
    put(log, [*before[:4], before[5], before[4], *before[6:]])
    assert any("moved, or put in" in one for one in faults(log))
    put(log, [*before[:4], before[3], *before[4:]])
    assert any("moved, or put in" in one for one in faults(log))
    put(log, [b"junk\n", *before])
    assert faults(log)[0] == "Line 1 is no entry: it was altered."


def test_a_line_that_a_killed_process_left_is_cut_away(log):
    with log[0].open("ab") as file:
        file.write(b'{"n":11,"at":"20')
    assert faults(log) == ["The last line was cut in the middle."]
    ChainedLog(*log).append({"event": "answered"})
    assert faults(log) == []
    assert len(read_chain(*log).entries) == 11


def test_a_long_entry_is_found_again_at_the_end(log):
    ChainedLog(*log).append({"event": "answered", "asked": ["client"] * 40_000})
    with log[0].open("ab") as file:
        file.write(b"x" * 200_000)
    ChainedLog(*log).append({"event": "answered"})
    assert faults(log) == []


def test_a_head_behind_the_log_is_no_fault(log):
    """A machine that lost its power may have kept the log and not the head."""
    before = log[1].read_text()
    ChainedLog(*log).append({"event": "answered"})
    log[1].write_text(before)
    assert faults(log) == []
    ChainedLog(*log).append({"event": "answered"})
    assert faults(log) == []


def _append(paths, count):
    log = ChainedLog(*paths)
    for _ in range(count):
        log.append({"event": "answered", "by": os.getpid()})


def test_processes_that_write_one_log_make_one_chain(log):
    context = multiprocessing.get_context("fork")
    some = [context.Process(target=_append, args=(log, 25)) for _ in range(3)]
    for one in some:
        one.start()
    for one in some:
        one.join()
    assert faults(log) == []
    assert len(read_chain(*log).entries) == 85


def test_a_full_disk_leaves_the_log_as_it_was(log, monkeypatch):
    written = ChainedLog(*log)

    def full(path, file, data):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(chained_log, "append", full)
        with pytest.raises(OSError, match="No space"):
            written.append({"event": "answered"})
    written.append({"event": "answered"})
    assert faults(log) == []
    assert len(read_chain(*log).entries) == 11
