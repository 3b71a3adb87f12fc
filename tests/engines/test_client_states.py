"""States in a mapped file are those in memory, and no state changes when a new one is kept."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from intarsia.engines import client_states as states
from intarsia.engines import codec
from intarsia.engines.client_states import States


@dataclass(frozen=True)
class Inner:
    step: int
    moments: tuple[np.ndarray, ...]


@dataclass(frozen=True)
class State:
    parameters: Mapping[str, Any]
    inner: Inner
    name: str
    nothing: None = None


def state(seed: int, size: int = 50) -> State:
    rng = np.random.default_rng(seed)
    return State(
        {
            "w": rng.normal(size=(size, 3)).astype(np.float32),
            "by column": np.asfortranarray(rng.normal(size=(4, size))),
            "empty": np.zeros((0, 2)),
            "number": np.array(seed),
            "names": np.array(["a", "bcd"]),
        },
        Inner(seed, (rng.normal(size=size), rng.integers(0, 9, size))),
        f"c{seed}",
    )


@pytest.mark.parametrize("budget", [0, 5000, None])
def test_what_is_kept_comes_back_to_the_bit(budget, tmp_path):
    kept = States(budget, tmp_path)
    kept.begin((f"c{k}", state(k, 20 + k)) for k in range(10))
    kept.replace("c3", state(33, 7))
    assert kept.mapped == {0: 10, None: 0}.get(budget, kept.mapped)
    assert list(kept) == [f"c{k}" for k in range(10)]
    for k in range(10):
        expected = state(33, 7) if k == 3 else state(k, 20 + k)
        found = kept[f"c{k}"]
        assert codec.encode(found) == codec.encode(expected)
        assert found.parameters["by column"].flags.f_contiguous
    assert not list(tmp_path.iterdir())  # the file has no name


def test_those_within_the_budget_stay_in_memory():
    each = States(None)
    each.begin([("a", state(1))])
    size = each.needs("a").size
    kept = States(3 * size)
    kept.begin((name, state(1)) for name in "abcde")
    assert kept.mapped == 2
    kept.begin((name, Inner(0, ())) for name in "abcde")  # the next training has small states
    assert kept.mapped == 0


def test_memory_is_given_back_where_states_are_more_than_the_budget(monkeypatch):
    given = []
    monkeypatch.setattr(states, "give_back", lambda: given.append(len(given)))
    monkeypatch.setattr(states, "_RESIDENT", 3 * states._size(state(0)))
    size = states._size(state(0))
    for most, clients in ((2 * size, "abcd"), (4 * size, "abcd"), (None, "abcd")):
        given.clear()
        kept = States(most)
        kept.begin((name, state(0)) for name in clients)
        for round in range(4):
            for name in clients:
                kept.replace(name, state(round))
        # eight states in memory were replaced, of which three may be left
        assert len(given) == (2 if most == 2 * size else 0)


def test_a_state_that_somebody_holds_never_changes():
    kept = States(0)
    kept.begin([("a", state(0))])
    before = kept["a"]
    view = before.parameters["w"][5:7, 1]
    bytes_before = codec.encode(before)
    for seed in range(1, 40):
        # part of the new state is the old one's own memory
        kept.replace("a", replace(state(seed), inner=kept["a"].inner))
    assert codec.encode(before) == bytes_before
    np.testing.assert_array_equal(view, state(0).parameters["w"][5:7, 1])
    assert kept["a"].inner.step == 0
    np.testing.assert_array_equal(kept["a"].inner.moments[0], state(0).inner.moments[0])


def test_rows_that_nobody_holds_are_taken_again(monkeypatch):
    monkeypatch.setattr(states, "_SEGMENT", 1 << 16)
    kept = States(0)
    kept.begin((name, state(0)) for name in "abcd")
    rows = kept._rows
    assert rows is not None
    for seed in range(300):
        kept.replace("abcd"[seed % 4], state(seed))
    gc.collect()
    assert sum(len(segment) for segment in rows._segments) == 1 << 16


def large(seed: int, more: int = 0) -> State:
    return state(seed, states._LARGE // 8 + more)


def test_a_large_array_stays_where_it_lies_until_another_takes_its_place():
    kept = States(0)
    kept.begin([("a", large(0))])
    for seed in range(1, 20):
        before = kept["a"]
        after = replace(large(seed), inner=replace(before.inner, step=seed))
        kept.replace("a", after)
        moments = before.inner.moments, kept["a"].inner.moments
        assert all(np.shares_memory(one, now) for one, now in zip(*moments, strict=True))
        assert not np.shares_memory(before.parameters["w"], kept["a"].parameters["w"])
        assert codec.encode(kept["a"]) == codec.encode(after)
    part = replace(kept["a"].inner, moments=(kept["a"].inner.moments[0][1:],))
    expected = codec.encode(part)
    kept.replace("a", part)  # of a view the row would hold what nobody has
    assert part.moments[0].base is not None
    assert not np.shares_memory(part.moments[0], kept["a"].moments[0])
    assert codec.encode(kept["a"]) == expected


def test_a_state_that_grows_beyond_the_budget_goes_to_the_file():
    size = states._size(large(0))
    kept = States(3 * size)
    kept.begin((name, large(0)) for name in "ab")
    assert kept.mapped == 0
    kept.replace("a", large(1, more=3000))
    assert kept.mapped == 0
    kept.replace("b", large(2, more=40_000))
    assert kept.mapped == 1
    kept.replace("a", large(3, more=3001))  # there is room for it now
    assert kept.mapped == 1
    assert codec.encode(kept["a"]) == codec.encode(large(3, more=3001))
    assert codec.encode(kept["b"]) == codec.encode(large(2, more=40_000))


def test_rows_of_a_state_that_grows_are_taken_again(monkeypatch):
    monkeypatch.setattr(states, "_SEGMENT", 1 << 16)
    kept = States(0)
    kept.begin([("a", large(0))])
    for more in range(0, 4000, 10):
        kept.replace("a", large(1, more))
    gc.collect()
    rows = kept._rows
    assert rows is not None
    # of 400 states
    assert sum(map(len, rows._segments)) < 12 * states._size(kept["a"])


def test_pages_come_back_from_the_file(monkeypatch):
    monkeypatch.setattr(states, "_RESIDENT", 1 << 14)
    kept = States(0)
    kept.begin((f"c{k}", state(k, 300)) for k in range(30))
    for k in reversed(range(30)):
        assert codec.encode(kept[f"c{k}"]) == codec.encode(state(k, 300))


def test_a_row_larger_than_a_segment_fits(monkeypatch):
    monkeypatch.setattr(states, "_SEGMENT", 1 << 12)
    kept = States(0)
    kept.begin([("a", np.arange(5000.0)), ("b", np.arange(10.0))])
    np.testing.assert_array_equal(kept["a"], np.arange(5000.0))
    np.testing.assert_array_equal(kept["b"], np.arange(10.0))


def test_a_full_disk_is_an_error_and_no_crash(monkeypatch):
    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        States(0).begin([("a", np.arange(5.0))])


def test_the_file_lies_in_the_folder(tmp_path):
    with pytest.raises(FileNotFoundError):
        States(0, Path(tmp_path) / "missing").begin([("a", np.arange(5.0))])
