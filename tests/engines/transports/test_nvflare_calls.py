"""Calls over NVIDIA FLARE: short ones are one message and its reply, long ones are streamed."""

from __future__ import annotations

import gc
import json
import threading
import weakref
from types import SimpleNamespace

import pytest

pytest.importorskip("nvflare", reason="nvflare is not installed: pip install intarsia[nvflare]")
from nvflare.apis.signal import Signal
from nvflare.collab.api.exceptions import RunAborted
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.cellnet.utils import make_reply
from nvflare.fuel.f3.message import Message

from intarsia.engines.transports import connection, nvflare

SHORT = nvflare._SHORT


class Site:
    """A site in a job, which `says` what a call comes to, and takes calls in one message or not."""

    def __init__(self, says, *, code=ReturnCode.OK):
        self.name, self.code, self.said = "bank", code, []
        self._side = nvflare.SiteSide()
        self._side._site = SimpleNamespace(handle=lambda data: self.said.append(data) or says(data))
        cell = SimpleNamespace(send_request=self._send)
        self.backend = SimpleNamespace(
            cell=SimpleNamespace(core_cell=cell), target_fqcn="bank.job", abort_signal=Signal()
        )

    def _send(self, channel, topic, target, request, timeout):
        assert (target, timeout) == ("bank.job", min(7.0, nvflare._LOST))
        self.said.append("one message")
        if self.code != ReturnCode.OK:
            return make_reply(self.code)
        request.set_header(MessageHeaderKey.ORIGIN, "server.job")
        return self._side._handle_short(request, None, "server.job")

    def __call__(self, timeout):
        self.timeout = timeout

        def handle(data):
            self.said.append("stream")
            return self._side._answer(None, data)

        return SimpleNamespace(handle=handle)


class Replying(Site):
    """A site of another program, which replies with what it likes."""

    def __init__(self, reply):
        super().__init__(None)
        self._reply = reply

    def _send(self, *given, **more):
        return make_reply(ReturnCode.OK, body=self._reply)

    def __call__(self, timeout):
        return SimpleNamespace(handle=lambda data: self._reply)


def answer(site, data):
    return nvflare.Lines([site]).send("bank", data, 7.0)


@pytest.mark.parametrize(
    ("call", "reply", "ways"),
    [
        (b"", b"there", ["one message", b""]),
        (b"c" * SHORT, b"r" * SHORT, ["one message", b"c" * SHORT]),
        # the reply is made once, and asked for once more
        (b"c", b"r" * (SHORT + 1), ["one message", b"c", "stream"]),
        (b"c" * (SHORT + 1), b"r", ["stream", b"c" * (SHORT + 1)]),
    ],
)
def test_what_is_short_is_one_message_and_what_is_long_a_stream(call, reply, ways):
    site = Site(lambda _: reply)
    assert answer(site, call) == reply
    assert site.said == ways


def test_a_long_reply_is_kept_for_its_own_call_alone_and_given_out_once():
    site = Site(lambda data: data * (SHORT + 1))
    assert (
        site._send(nvflare._CHANNEL, nvflare._CALL, "bank.job", Message({}, b"a"), 7.0).payload
        == b""
    )
    assert site(timeout=7.0).handle(b"b") == b"b" * (SHORT + 1)
    for _ in range(2):
        assert answer(site, b"a") == b"a" * (SHORT + 1)
    assert [one for one in site.said if isinstance(one, bytes)] == [b"a", b"b", b"a", b"a"]


def test_a_site_that_takes_no_calls_in_one_message_is_called_by_a_stream():
    site = Site(lambda _: b"r", code=ReturnCode.PROCESS_EXCEPTION)
    assert answer(site, b"c") == b"r"
    assert site.said == ["one message", "stream", b"c"]


def test_a_site_that_cannot_be_reached_is_an_error_that_names_it():
    with pytest.raises(ConnectionError, match="bank did not answer"):
        answer(Site(lambda _: b"r", code=ReturnCode.TARGET_UNREACHABLE), b"c")


MUCH = 1 << 62  # zeros that `bytes` would make of it


@pytest.mark.parametrize("found", [MUCH, [0], "text"])
def test_an_answer_that_is_no_bytes_is_an_error_that_names_the_site(found):
    """A site that answered a large number had the server's job end for want of memory."""
    with pytest.raises(ConnectionError, match=f"bank sent a {type(found).__name__} where bytes"):
        answer(Replying(found), b"c")
    with pytest.raises(ConnectionError, match=f"bank sent a {type(found).__name__} where bytes"):
        answer(Replying(found), b"c" * (SHORT + 1))


@pytest.mark.parametrize("call", [MUCH, [0], "text"])
def test_a_call_that_is_no_bytes_comes_to_nothing_at_a_site(call):
    site = Site(lambda _: b"r")
    with pytest.raises(ConnectionError, match="server sent a"):
        site._send(nvflare._CHANNEL, nvflare._CALL, "bank.job", Message({}, call), 7.0)
    assert site.said == ["one message"]


@pytest.mark.parametrize(("took", "left"), [(3.0, 4.0), (7.0, None)])
def test_a_reply_that_is_lost_is_asked_for_by_a_stream_in_the_time_that_is_left(
    monkeypatch, took, left
):
    site, now = Site(lambda _: b"r", code=ReturnCode.TIMEOUT), [0.0]
    send = site.backend.cell.core_cell.send_request

    def late(**given):
        now[0] += took
        return send(**given)

    site.backend.cell.core_cell.send_request = late
    monkeypatch.setattr(nvflare, "_LOST", took)
    monkeypatch.setattr(nvflare.time, "monotonic", lambda: now[0])
    if left is None:
        with pytest.raises(ConnectionError, match="bank did not answer"):
            answer(site, b"c")
    else:
        assert answer(site, b"c") == b"r"
        assert site.timeout == left


def test_a_connection_that_breaks_is_an_error_that_names_the_site():
    def broken(_):
        raise OSError("no route")

    site = Site(broken)
    with pytest.raises(ConnectionError, match="bank did not answer"):
        answer(site, b"c")


@pytest.mark.parametrize("side", [nvflare.SiteSide, lambda: nvflare.ServerSide("run")])
def test_what_a_job_cannot_import_is_told_as_the_job_begins(tmp_path, monkeypatch, side):
    """With no process that waited for it, which would have told."""
    (tmp_path / "local").mkdir()
    entry = json.dumps({"job": "intarsia.numpie.site"})
    (tmp_path / "local" / "entry_points.json").write_text(entry)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(nvflare, "without_tensors", lambda: None)  # of this process, which may
    side()
    for thread in threading.enumerate():
        if thread.name == "imports":
            thread.join(60)
    (said,) = connection.take_ends(tmp_path)
    assert "cannot import what it needs (No module named 'intarsia.numpie'); install " in said


def test_a_job_that_is_to_end_waits_for_no_reply():
    begun, over = threading.Event(), threading.Event()

    def slow(_):
        begun.set()
        over.wait()
        return b"late"

    site = Site(slow)
    stopping = threading.Thread(
        target=lambda: begun.wait() and site.backend.abort_signal.trigger(True)
    )
    stopping.start()
    with pytest.raises(RunAborted):
        answer(site, b"c")
    over.set()
    stopping.join()


class Cycle:
    """What only a collection frees."""

    def __init__(self):
        self.own = self


def test_server_and_site_free_every_so_many_calls_what_python_alone_would_keep(monkeypatch):
    monkeypatch.setattr(nvflare, "_CALLS", 3)
    made = []

    def says(_):
        made.append(weakref.ref(Cycle()))
        return b"r"

    site = Site(says)
    lines = nvflare.Lines([site])
    gc.disable()
    try:
        left = []
        for _ in range(7):
            lines.send("bank", b"c", 7.0)
            left.append(sum(one() is not None for one in made))
    finally:
        gc.enable()
    # the site's third call ends before the server's
    assert left == [1, 2, 0, 1, 2, 0, 1]
    alone = nvflare.Lines([Site(lambda _: b"r"), SimpleNamespace(name="branch")])
    assert alone._freed._every == 6  # calls: as often as exchanges of a site
