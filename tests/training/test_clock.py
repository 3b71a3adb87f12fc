from __future__ import annotations

import time

import pytest

from intarsia.training import timing
from intarsia.training.timing import Clock


@pytest.fixture
def ticks(monkeypatch):
    """A clock that the test moves."""
    now = [100.0]
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])
    return now


def test_a_part_inside_another_is_not_counted_in_it(ticks):
    watch = Clock()
    with watch.part("training"):
        ticks[0] += 3
        with watch.part("checkpoints"):
            ticks[0] += 4
        ticks[0] += 5
        assert watch.seconds == {"checkpoints": 4, "training": 8}
    ticks[0] += 100
    assert watch.seconds == {"checkpoints": 4, "training": 8}


def test_a_part_that_fails_is_counted(ticks):
    watch = Clock({"training": 1.0})

    def fail():
        with watch.part("training"):
            ticks[0] += 2
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fail()
    watch.add({"training": 10.0, "tables": 1.0})
    assert watch.seconds == {"training": 13.0, "tables": 1.0}


def test_seconds_are_those_of_the_wall():
    watch, start = Clock(), time.perf_counter()
    with watch.part("a"), watch.part("b"):
        sum(range(1000))
    assert 0 < sum(watch.seconds.values()) <= time.perf_counter() - start
