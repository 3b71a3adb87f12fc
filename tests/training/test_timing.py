from __future__ import annotations

import gc
import json
import threading

import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits

from intarsia.deployment.client_folder import SiteSettings
from intarsia.deployment.client_setup import DEAL, TRANSFORM, Work, site_in
from intarsia.engines import codec
from intarsia.engines.remote.wire import PROTOCOL, Answer, Call

ONE_THREAD = {
    "protocol": PROTOCOL,
    "experiment": {"name": "x", "threads": 1},
    "algorithm": {"name": "fedavg-ft"},
    "dataset": {"name": "digits"},
    "partition": {"kind": "iid", "clients": 2},
}


def counts():
    blas = [one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"]
    return {torch.get_num_threads(), *blas}


@pytest.fixture(autouse=True)
def two_threads():
    """Let everything compute with two threads before a test, and as before it afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    with threadpool_limits(limits=2, user_api="blas"):
        yield
    torch.set_num_threads(before)


def workplace(folder):
    """Return a site's workplace in a run with one thread, whose set-up has begun."""
    found = Work(SiteSettings(name="client0", plain=True, ids=True), folder)
    body = json.dumps(ONE_THREAD).encode()
    found.enter(Call("ab", 1, 0, 0, 0, 0, "stage", DEAL, "train", ("client0",), body))
    found.stage(DEAL, None, body)
    return found


def test_a_site_computes_with_the_threads_of_its_run_when_a_workplace_before_is_gone(tmp_path):
    assert counts() == {2}
    found = [workplace(tmp_path), workplace(tmp_path)]  # another after an error, or for a next run
    del found[0]
    gc.collect()
    assert counts() == {1}


def test_a_site_computes_with_the_threads_of_its_run_in_every_thread_that_calls_it(tmp_path):
    (tmp_path / "site.toml").write_text('[site]\nname = "client0"\nplain = true\nids = true\n')
    site = site_in(tmp_path)

    def called(sequence, step, body):
        places = ("ab", sequence, sequence - 1, sequence - 1, 0, 0)
        call = Call(*places, "stage", step, "train", ("client0",), body)
        answer = codec.decode(site.handle(codec.encode(call)), Answer)
        assert not answer.error, answer.sentence

    computed, begun = threading.Event(), threading.Event()
    seen = []

    def another():
        seen.append(torch.get_num_threads())  # from here on torch keeps a number for this thread
        computed.set()
        begun.wait()
        seen.append(torch.get_num_threads())
        called(2, TRANSFORM, codec.encode("counted once"))
        seen.append(torch.get_num_threads())

    thread = threading.Thread(target=another)
    thread.start()
    computed.wait()
    called(1, DEAL, json.dumps(ONE_THREAD).encode())
    assert counts() == {1}
    begun.set()
    thread.join()
    assert seen == [2, 2, 1]
