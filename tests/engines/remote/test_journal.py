from __future__ import annotations

import errno
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from intarsia.engines.remote.server_journal import Journal
from intarsia.errors import CheckpointError

CALL = b"what was asked"


def written(folder, count=3):
    journal = Journal(folder)
    for sequence in range(1, count + 1):
        journal.add(sequence, "a", CALL, bytes([sequence]) * 50)
    return journal


@given(kept=st.integers(0, 400))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_entries_after_one_that_was_cut_short_are_found_again(tmp_path_factory, kept):
    folder = tmp_path_factory.mktemp("journal")
    written(folder).close()
    (path,) = folder.glob("*.journal")
    whole = path.stat().st_size
    os.truncate(path, min(kept, whole))
    again = Journal(folder)
    there = [one for one in (1, 2, 3) if again.answer(one, "a", CALL) is not None]
    assert there == list(range(1, len(there) + 1))
    assert len(there) == min(kept, whole) * 3 // whole
    for sequence in range(len(there) + 1, 6):
        again.add(sequence, "a", CALL, bytes([sequence]) * 50)
    again.close()
    third = Journal(folder)
    found = [third.answer(one, "a", CALL) for one in range(1, 6)]
    assert found == [bytes([one]) * 50 for one in range(1, 6)]
    third.close()


def test_the_first_entry_after_a_checkpoint_may_be_cut_short_too(tmp_path):
    journal = written(tmp_path)
    journal.checkpoint(3)
    journal.add(4, "a", CALL, b"x" * 100)
    journal.close()
    last = max(tmp_path.glob("*.journal"))
    os.truncate(last, last.stat().st_size - 1)
    again = Journal(tmp_path)
    assert again.answer(4, "a", CALL) is None
    again.add(4, "a", CALL, b"y")
    again.close()
    third = Journal(tmp_path)
    assert third.answer(4, "a", CALL) == b"y"
    third.close()


def test_a_full_disk_leaves_no_half_of_an_entry(tmp_path, monkeypatch):
    journal = written(tmp_path)
    write = os.write

    def half(file, data):
        if len(data) > 40:
            return write(file, bytes(data[:40]))
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", half)
    with pytest.raises(OSError, match="No space"):
        journal.add(4, "a", CALL, b"x" * 60)
    monkeypatch.undo()
    assert journal.answer(4, "a", CALL) is None
    journal.add(5, "a", CALL, b"z")
    journal.close()
    again = Journal(tmp_path)
    assert [again.answer(one, "a", CALL) for one in (3, 4, 5)] == [b"\3" * 50, None, b"z"]
    again.close()


def test_a_run_that_begins_anew_again_and_again_finds_all_answers_since_its_checkpoint(tmp_path):
    journal = Journal(tmp_path)
    for sequence in range(1, 11):
        journal.add(sequence, "a", CALL, b"x")
        if sequence in (2, 4):
            journal.checkpoint(sequence)
    journal.close()
    for reached in range(11, 16):  # processes that end early, all from the checkpoint after 4
        journal = Journal(tmp_path)
        assert all(journal.answer(one, "a", CALL) for one in range(5, reached))
        journal.add(reached, "a", CALL, b"x")
        journal.close()
    journal = Journal(tmp_path)
    journal.checkpoint(6)  # one that gets as far as a checkpoint, and goes on
    assert all(journal.answer(one, "a", CALL) for one in range(7, 16))
    journal.add(16, "a", CALL, b"x")
    journal.close()
    again = Journal(tmp_path)
    assert all(again.answer(one, "a", CALL) for one in range(7, 17))
    for sequence in (16, 17, 18):
        again.add(sequence, "a", CALL, b"x")
        again.checkpoint(sequence)
    assert again.answer(16, "a", CALL) is None  # no checkpoint that is kept goes back to it
    assert again.answer(17, "a", CALL)
    assert len(list(tmp_path.glob("*.journal"))) <= 3
    again.close()


def test_an_answer_to_another_call_of_the_same_number_is_refused(tmp_path):
    journal = written(tmp_path)
    with pytest.raises(CheckpointError, match="answered to another call 2 than the one"):
        journal.answer(2, "a", b"something else")
    assert journal.answer(2, "b", b"something else") is None
    journal.close()


def test_of_who_was_away_what_was_written_last_counts(tmp_path):
    journal = Journal(tmp_path)
    journal.leave_out(4, {"a", "b"})
    journal.leave_out(4, {"b"})  # a came back while a round waited for the quorum
    journal.close()
    again = Journal(tmp_path)
    assert again.away(4) == {"b"}
    again.close()


def test_that_nobody_was_away_is_told_from_not_known(tmp_path):
    journal = written(tmp_path)
    journal.leave_out(4, {"b", "a"})
    journal.leave_out(5, ())
    journal.close()
    again = Journal(tmp_path)
    assert [again.away(number) for number in (4, 5, 6)] == [{"a", "b"}, set(), None]
    again.close()
