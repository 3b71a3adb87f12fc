"""Another user of the machine reads the console; a run's folder that was prepared ends its pages.

A browser keeps cookies by host, not by port. Another user who serves a page at another port of
127.0.0.1, and has the console's user open it, is sent the cookies of all paths that it asks for.
"""

from __future__ import annotations

import contextlib
import http.cookiejar
import shutil
import socket
import urllib.request
from email.message import Message

import pytest

pytest.importorskip("nvflare", reason="nvflare is not installed: pip install intarsia[nvflare]")
pytest.importorskip("starlette", reason="pip install intarsia[console]")
pytest.importorskip("uvicorn", reason="pip install intarsia[console]")

from intarsia.reports import console
from watched_kits import served_kits, watched_kits

SECRET = "SENTENCE-OF-ANOTHER-FOLDER"


@pytest.fixture(scope="module")
def kits(tmp_path_factory):
    return watched_kits(tmp_path_factory.mktemp("kits"))


@pytest.fixture(scope="module")
def browser(kits):
    with served_kits(*kits) as found:
        yield found


@pytest.fixture
def calm(kits, tmp_path):
    """Give the folder of a run that goes on, and put it back as it was."""
    own = kits[0] / "local" / "runs" / "calm"
    shutil.copytree(own, tmp_path / "calm")
    yield own
    own.unlink() if own.is_symlink() else shutil.rmtree(own)
    shutil.copytree(tmp_path / "calm", own)


class _Answer:
    def __init__(self, headers: Message) -> None:
        self._headers = headers

    def info(self) -> Message:
        return self._headers


def test_a_server_at_another_port_is_sent_no_cookie(browser):
    jar = http.cookiejar.CookieJar()
    _, headers, _ = browser.ask(f"?token={browser.token}")
    own = f"http://127.0.0.1:{browser.port}"
    jar.extract_cookies(_Answer(headers), urllib.request.Request(f"{own}{browser.home}"))

    def sent(address: str) -> str | None:
        asked = urllib.request.Request(address)
        jar.add_cookie_header(asked)
        return asked.get_header("Cookie")

    other = f"http://127.0.0.1:{browser.port + 1}"
    for path in ("/", "/start", "/kits/0/runs/heart/report", browser.home[:-1], browser.home[1:]):
        assert sent(f"{other}{path}") is None, path
        assert sent(f"{own}{path}") is None, path
    # who served the very path would have it, and nothing by which to come in anew
    assert (cookie := sent(f"{other}{browser.home}")) == sent(f"{own}{browser.home}kits/0")
    assert browser.token not in cookie
    assert len(browser.home) >= 43  # 32 bytes from the system


def test_a_path_without_the_drawn_one_says_nothing(browser):
    for path in ("/", "/kits/0/runs/heart", browser.home[:-1], f"{browser.home[:-2]}x/", "//"):
        for verb in ("GET", "HEAD", "POST"):
            for cookie in (None, "a=b"):
                for query in ("", f"?token={browser.token}", "?token=x"):
                    status, headers, page = browser.ask(
                        f"{path}{query}", verb, cookie=cookie, whole=True
                    )
                    assert (status, page, headers["set-cookie"]) == (404, "", None)
                    assert headers["location"] is None


@pytest.mark.parametrize(("at_once", "seconds", "ended"), [(20, 600.0, 30), (1000, 0.5, 60)])
def test_requests_that_never_end_are_ended_and_keep_nobody_out(
    kits, monkeypatch, at_once, seconds, ended
):
    monkeypatch.setattr(console, "_AT_ONCE", at_once)
    monkeypatch.setattr(console, "_SECONDS", seconds)
    with contextlib.ExitStack() as opened, served_kits(*kits) as browser:
        every = []
        for begun in (b"GET / HT", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nGET /", b"") * 20:
            one = socket.create_connection(("127.0.0.1", browser.port), timeout=60)
            every.append(opened.enter_context(one))
            with contextlib.suppress(OSError):  # it may be sent away already
                one.sendall(begun)
        assert browser.ask("/")[0] == 200
        for one in every[:ended]:
            with contextlib.suppress(ConnectionResetError):
                while one.recv(4096):
                    pass


# run, file → what stands in the place of what a run writes there
DAMAGED = {
    ("calm", "out/history.jsonl"): (
        b'{"round": 1, "bytes": "x"}', b'{"round": 1, "bytes": null}',
        b'{"round": 1, "loss": "<b>"}',
    ),
    ("calm", "failure.json"): (b"[1]", b"{", b'{"again": false, "sentence": [1]}', b"[" * 9999),
    ("calm", "out/pending.json"): (b"{", b'{"bank": 7}', b"[1]", b"\xff\xfe"),
    ("calm", "out/away.json"): (b"7", b"[7]"),
    ("early", "silent.json"): (b"7",),
    ("early", "request.json"): (b"{", b"{}", b"[]", b'{"sites": 7, "patience": {}}'),
    ("calm", "out/experiment.json"): (b"\xff", b'{"experiment": [], "client": 3}'),
    ("heart", "out/history.jsonl"): (b"\xff\xfe",),
    ("heart", "out/audit.json"): (b"[1]",),
    ("heart", "out/model/linear.json"): (b'{"features": {"a": 1}}',),
}  # fmt: skip
NOT_FATAL = ("out/experiment.json", "out/audit.json", "out/model/linear.json")


@pytest.mark.parametrize(("run", "file"), DAMAGED)
def test_a_damaged_run_is_named_and_the_others_are_shown(browser, kits, run, file, tmp_path):
    own = kits[0] / "local" / "runs" / run
    shutil.copytree(own, tmp_path / run)
    for content in DAMAGED[run, file]:
        (own / file).write_bytes(content)
        for path in ("", f"kits/0/runs/{run}", f"kits/0/runs/{run}/report"):
            status, _, page = browser.ask(path)
            assert status in ((200, 404) if path else (200,)), (content, path)
            assert path or all(f">{one}<" in page for one in ("calm", "early", "heart"))
            if not path and run != "heart" and file not in NOT_FATAL:
                assert "Its folder cannot be read: a file of it is damaged" in page, content
    shutil.rmtree(own)
    shutil.copytree(tmp_path / run, own)


PLACES = ("run", "out", "failure.json", "out/pending.json", "deep", "loop")


@pytest.mark.parametrize("place", PLACES)
def test_what_a_link_leads_to_is_not_shown(browser, calm, place, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "out").mkdir(parents=True)
    (elsewhere / "job.id").write_text("one")
    failure = f'{{"error": "X", "sentence": "{SECRET}", "again": false}}'
    (elsewhere / "failure.json").write_text(failure)
    (elsewhere / "out" / "pending.json").write_text(f'{{"bank": "{SECRET}"}}')
    if place == "run":
        shutil.rmtree(calm)
        calm.symlink_to(elsewhere)
    elif place == "loop":
        (calm / "loop").symlink_to("loop")
    elif place == "deep":
        (calm / "out" / "model").mkdir()
        (calm / "out" / "model" / "linear.json").symlink_to(elsewhere / "failure.json")
    else:
        own = calm / place
        shutil.rmtree(own) if own.is_dir() else own.unlink(missing_ok=True)
        own.symlink_to(elsewhere / place)
    for path in ("", "kits/0/runs/calm", "kits/0/runs/calm/report"):
        status, _, page = browser.ask(path)
        assert status == (404 if path.endswith("report") or (path and place != "loop") else 200)
        assert SECRET not in page
        if not path and place not in ("deep", "loop"):
            assert "leads out of the run&#39;s folder" in page
