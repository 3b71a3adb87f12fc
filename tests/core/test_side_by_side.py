from __future__ import annotations

import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
from scipy.sparse import csr_array

from intarsia.core import side_by_side as module
from intarsia.core.memory import kept
from intarsia.core.side_by_side import Threads, interruptible, is_large, side_by_side
from intarsia.engines.forks import Errand
from stopped_query import ctrl_c

WAIT = 20  # seconds, for what comes at once


def always(_):
    return True


def test_two_are_made_at_once_and_come_in_order():
    second = threading.Event()

    def make(number):
        if number == 1:
            second.set()
        else:
            assert second.wait(WAIT)  # all others end after it
        return 10 * number

    assert side_by_side(make, range(5), 2, always) == [0, 10, 20, 30, 40]


@pytest.mark.parametrize(
    ("threads", "large"), [(1, always), (2, lambda _: False), (2, lambda one: one == 3)]
)
def test_small_ones_and_those_of_one_thread_are_made_where_they_are_asked_for(threads, large):
    found = side_by_side(lambda _: threading.get_ident(), range(5), threads, large)
    assert {*found} == {threading.get_ident()}


def test_small_ones_among_large_ones_keep_their_place():
    here = threading.get_ident()

    def make(number):
        return number, threading.get_ident() == here

    found = side_by_side(make, range(6), 2, lambda one: one % 2 == 0)
    assert found == [(number, number % 2 == 1) for number in range(6)]


@pytest.mark.parametrize("large", [always, lambda one: one > 0])
def test_the_error_is_the_first_ones_and_nothing_is_begun_after_it(large, monkeypatch):
    cancelled, last, begun = threading.Event(), threading.Event(), []

    class Pool(ThreadPoolExecutor):
        def shutdown(self, wait=True, *, cancel_futures=False):
            super().shutdown(wait=False, cancel_futures=cancel_futures)
            cancelled.set()
            super().shutdown(wait=wait)

    monkeypatch.setattr(module, "ThreadPoolExecutor", Pool)

    def fail(number):
        begun.append(number)
        if number == 0:
            assert last.wait(WAIT)  # the second fails sooner
        else:
            last.set()
        if number > 1:  # which a thread goes on with until others are told not to
            assert cancelled.wait(WAIT)
        raise ValueError(f"number {number}")

    with pytest.raises(ValueError, match="number 0"):
        side_by_side(fail, range(50), 2, large)
    assert {0, 1} <= {*begun} <= {0, 1, 2, 3}


def test_a_fork_takes_no_threads():
    def work(tell):
        found = side_by_side(lambda _: threading.get_ident(), range(4), 2, always)
        return {*found} == {threading.get_ident()}

    assert Errand("looked", work).result(lambda: None)


def test_tables_in_memory_of_some_megabytes_are_large(tmp_path):
    few, many = np.zeros((100, 10)), np.zeros((100_000, 10))
    assert [is_large(one) for one in (few, many, kept(many, tmp_path))] == [False, True, False]
    assert not is_large(csr_array((100_000, 10)))
    assert is_large(csr_array(many + 1))


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_jobs_are_begun_in_turn_and_few_results_wait(threads):
    begun, taken = [], []

    def jobs():
        for number in range(20):
            begun.append(number)
            yield partial(int, number)

    for number in Threads(threads).in_turn(jobs()):
        assert len(begun) - len(taken) <= threads + 1
        taken.append(number)
    assert taken == [*range(20)]


def test_jobs_compute_beside_each_other():
    meet = threading.Barrier(2, timeout=WAIT)
    assert sorted(Threads(2).in_turn([meet.wait] * 4)) == [0, 0, 1, 1]


def test_after_a_job_that_fails_or_an_end_no_more_are_begun():
    begun = []

    def jobs():
        for number in range(50):
            begun.append(number)
            yield (lambda: 1 / 0) if number == 3 else (lambda: 1)

    found = Threads(2).in_turn(jobs())
    with pytest.raises(ZeroDivisionError):
        list(found)
    assert len(begun) <= 7
    begun.clear()
    ended = Threads(2).in_turn(jobs())
    next(ended)
    ended.close()
    assert len(begun) <= 3


def test_a_call_that_takes_long_is_interrupted_by_ctrl_c_and_by_the_end_of_those_beside_it():
    stop = threading.Event()

    def wait_long():
        signal.raise_signal(signal.SIGINT)
        assert stop.wait(WAIT)

    with ctrl_c(), pytest.raises(KeyboardInterrupt):
        interruptible(wait_long, stop.set)
    begun, ended = threading.Event(), threading.Event()

    def make(number):
        if number == 1:
            interruptible(lambda: (begun.set(), ended.wait(WAIT)), ended.set)
        assert begun.wait(WAIT)
        raise ValueError(number)

    with pytest.raises(ValueError, match="0"):
        side_by_side(make, range(2), 2, always)
    assert ended.is_set()


def test_a_call_is_interrupted_until_it_ends_and_its_own_error_is_told():
    stops = threading.Semaphore(0)

    def wait_twice():
        signal.raise_signal(signal.SIGINT)
        assert all(stops.acquire(timeout=WAIT) for _ in range(2))

    with ctrl_c(), pytest.raises(KeyboardInterrupt):
        interruptible(wait_twice, stops.release)
    with pytest.raises(ZeroDivisionError):
        interruptible(lambda: 1 / 0, stops.release)
    assert interruptible(lambda: 3, stops.release) == 3
