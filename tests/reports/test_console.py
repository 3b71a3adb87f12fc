"""The console shows how federations stand, to who has its token, and nothing else to anybody."""

from __future__ import annotations

import html
import re
import shutil
import socket
from pathlib import Path
from urllib.parse import quote

import pytest

pytest.importorskip("nvflare", reason="nvflare is not installed: pip install intarsia[nvflare]")
pytest.importorskip("starlette", reason="pip install intarsia[console]")
pytest.importorskip("uvicorn", reason="pip install intarsia[console]")

from command_line import one_error
from intarsia.cli.federation import _standing
from intarsia.cli.main import main
from intarsia.errors import ExperimentError
from intarsia.reports import console
from watched_kits import Browser, served_kits, watched_kits

SECRET = "SECRET-BESIDE-THE-RUNS"


@pytest.fixture(scope="module")
def kits(tmp_path_factory):
    return watched_kits(tmp_path_factory.mktemp("kits"))


@pytest.fixture(scope="module")
def browser(kits):
    with served_kits(*kits) as found:
        yield found


def words_of(page):
    return " ".join(re.sub(r"<[^>]*>", " ", page.partition("<body>")[2]).split())


def test_the_first_page_says_how_server_and_site_stand(browser):
    status, _, page = browser.ask("/")
    said = words_of(page)
    assert status == 200
    for words in (
        "credit: the server",
        "bank connected 20",  # and when its certificate ends
        "12 days left: let the site renew it",
        "shop not connected not seen so far",
        "calm running",
        "7 0.257812 1.0e-07 7,000",
        "UTC 3 of 50 at most",
        "shop: its request waits to be signed",
        "branch: its request has not come",
        "calm: bank: its owner has not decided.",
        "credit: the site bank",
        "credit waits: what it asks for",
        "the server reads the loss (Totals.loss)",
    ):
        assert words in said, said
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


def test_what_waits_and_goes_on_stands_before_the_runs_that_ended(browser):
    _, _, page = browser.ask("/")
    said = words_of(page)
    places = [
        said.index(one) for one in ("Approvals", "calm running", "early waiting", "heart fin")
    ]
    assert places == sorted(places)
    assert re.search(r"heart finished \d{4}-\d\d-\d\d \d\d:\d\d UTC", said)


def test_no_run_goes_on_where_the_server_does_not(kits):
    """Neither page says so: what has a job in its folder waits for the server."""
    server, _ = kits
    watched = [console.Watched(server, lambda: _standing(server, None))]  # nothing runs here
    with console.served(watched, 0) as address:
        browser = Browser(address).enter()
        for path in ("/", "/kits/0/runs/calm"):
            said = words_of(browser.ask(path)[2])
            assert "goes on when the server is started" in said
            assert "is running" not in said
            assert "calm running" not in said


def test_a_large_loss_is_written_out(browser, kits):
    runs = kits[0] / "local" / "runs"
    (runs / "wage" / "out").mkdir(parents=True)
    (runs / "wage" / "out" / "history.jsonl").write_text('{"round": 1, "loss": 95779466.2}\n')
    try:
        for path in ("/", "/kits/0/runs/wage"):
            assert " 95,779,466 " in words_of(browser.ask(path)[2])
    finally:
        shutil.rmtree(runs / "wage")


def test_a_report_is_opened_from_the_console_and_a_run_that_goes_on_is_drawn(browser):
    _, _, page = browser.ask("/")
    assert f'href="{browser.home}kits/0/runs/heart/report"' in page
    status, headers, report = browser.ask("/kits/0/runs/heart/report")
    assert status == 200
    assert "The result beside stand-alone and centralised" in report
    assert "default-src 'none'" in headers["content-security-policy"]
    status, _, page = browser.ask("/kits/0/runs/calm")
    assert status == 200
    assert 'aria-label="Objective of training by round"' in page
    status, _, page = browser.ask("/kits/0/runs/calm/report")  # it is not finished
    assert status == 404
    assert "holds no result" in words_of(page)


def test_nobody_without_the_token_gets_in(browser):
    for cookie in ("", "intarsia_console=x", browser.cookie[:-1], browser.cookie + "0"):
        for path in ("/", "/kits/0/runs/heart/report", "/nothing"):
            status, headers, page = browser.ask(path, cookie=cookie or "a=b")
            assert (status, headers["set-cookie"]) == (401, None)
            assert "heart" not in page
    for token in ("", "x", "%00", "%ff", "é".encode().hex(), browser.token[:-1]):
        status, headers, _ = browser.ask(f"?token={token}")
        assert (status, headers["set-cookie"]) == (403, None)


def test_each_start_draws_another_token(browser, kits):
    with console.served([], 0) as address:
        assert Browser(address).token != browser.token
        assert len(browser.token) >= 43  # of 32 bytes from the system
        assert Browser(address).ask("/", cookie=browser.cookie)[0] == 401


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example:{}", "evil.example:{}", "", "10.0.0.1:{}"]
)
def test_a_name_that_leads_here_from_elsewhere_is_refused(browser, host):
    status, headers, _ = browser.ask("/", host=host.format(browser.port))
    assert (status, headers["set-cookie"]) == (400, None)
    status, headers, _ = browser.ask(f"?token={browser.token}", host=host.format(browser.port))
    assert (status, headers["set-cookie"]) == (400, None)
    assert browser.ask("/", host=f"localhost:{browser.port}")[0] == 200


@pytest.mark.parametrize("verb", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"])
def test_no_verb_changes_anything(browser, verb):
    for cookie in (browser.cookie, "a=b"):
        status, headers, _ = browser.ask("/kits/0/runs/heart", verb, cookie=cookie)
        assert (status, headers["allow"]) == (405, "GET, HEAD")


def test_every_answer_lets_a_page_load_nothing_and_be_kept_nowhere(browser):
    for path, cookie in (("/", None), ("/", "a=b"), ("/nothing", None)):
        _, headers, _ = browser.ask(path, cookie=cookie)
        assert headers["content-security-policy"] == (
            "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; "
            "frame-ancestors 'none'"
        )
        assert headers["cache-control"] == "no-store"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["x-content-type-options"] == "nosniff"
    _, _, page = browser.ask("/")
    assert not re.findall(r"<script|<form|<img|<link|https?://", page)


def test_no_path_leads_out_of_the_runs(browser, kits):
    server, _ = kits
    runs = server / "local" / "runs"
    (server / "local" / "secret").mkdir(exist_ok=True)
    shutil.copytree(runs / "heart" / "out", server / "local" / "secret" / "out", dirs_exist_ok=True)
    result = server / "local" / "secret" / "out" / "result.json"
    result.write_text(re.sub(r'("experiment": ")[^"]*', rf"\g<1>{SECRET}", result.read_text()))
    assert SECRET in result.read_text()
    (server / "local" / "secret.txt").write_text(SECRET)
    up = ["../secret", "..", ".", "heart/../../secret", "heart/out", "../../server/local/secret"]
    up += [str(server / "local" / "secret"), "heart\0", "heart/", "HEART", "ping", "*", "he?rt"]
    for one in up:
        for written in {
            quote(one, safe="/"),
            quote(one, safe=""),
            quote(quote(one, safe=""), safe=""),
            one.replace("/", "%5c").replace("\0", "%00").replace("?", "%3f"),
            one.replace("..", "%2e%2e").replace("\0", "%00").replace("?", "%3f"),
            one.replace("..", "%c0%ae%c0%ae").replace("\0", "%00").replace("?", "%3f"),
        }:
            for path in (f"/kits/0/runs/{written}", f"/kits/0/runs/{written}/report"):
                status, _, page = browser.ask(path)
                assert status in (307, 404), path
                assert SECRET not in page
    for path in ("/kits/7/runs/heart", "/kits/-1/runs/heart", "/kits/1/runs/heart", "/etc/passwd"):
        assert browser.ask(path)[0] == 404
    assert browser.ask("//127.0.0.2/", whole=True)[0] == 404


@pytest.mark.parametrize("place", ["run", "out", "file", "folder"])
def test_a_link_out_of_a_run_is_not_followed(browser, kits, place, tmp_path):
    server, _ = kits
    runs = server / "local" / "runs"
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(runs / "heart", elsewhere)
    audit = elsewhere / "out" / "audit.json"
    own = runs / "led"
    if place == "run":
        own.symlink_to(elsewhere)
    else:
        own.mkdir()
        if place == "out":
            (own / "out").symlink_to(elsewhere / "out")
        else:
            shutil.copytree(elsewhere / "out", own / "out")
            led = own / "out" / ("audit.json" if place == "file" else "model")
            shutil.rmtree(led) if led.is_dir() else led.unlink()
            led.symlink_to(audit if place == "file" else elsewhere / "out" / "model")
    try:
        for path in ("/kits/0/runs/led", "/kits/0/runs/led/report"):
            assert browser.ask(path)[0] == 404
    finally:
        own.unlink() if own.is_symlink() else shutil.rmtree(own)


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("startup/server.crt", "no certificate", "server.crt is no certificate"),
        ("startup/fed_server.json", "{}", "a file of it is damaged (KeyError: 'servers')"),
        ("startup/fed_server.json", "{", "a file of it is damaged (JSONDecodeError"),
    ],
)
def test_a_kit_whose_files_are_damaged_is_told_and_the_others_are_shown(
    tmp_path, kits, file, content, said
):
    _, bank = kits
    broken = tmp_path / "server"
    shutil.copytree(kits[0], broken)
    (broken / file).write_text(content)
    watched = [console.Watched(one, lambda one=one: _standing(one, None)) for one in (broken, bank)]
    with console.served(watched, 0) as address:
        _, _, page = Browser(address).enter().ask("/")
    assert said in html.unescape(words_of(page))
    assert "credit: the site bank" in words_of(page)


def test_a_port_that_is_taken_and_a_folder_that_is_no_kit_are_said(tmp_path, capfd):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        served = console.served([], taken.getsockname()[1])
        with pytest.raises(ExperimentError, match=r"cannot have 127\.0\.0\.1:\d+"), served:
            pass
    assert main(["federation", "console", str(tmp_path)]) == 2
    assert "is no kit" in one_error(capfd.readouterr().err)


def test_only_this_machine_reaches_the_port(browser):
    others = [one for one in _addresses() if not one.startswith("127.")]
    for address in others:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((address, browser.port), timeout=5).close()
    assert Path(console.__file__).read_text().count("bind((ADDRESS, port))") == 1


def _addresses() -> list[str]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        try:
            one.connect(("192.0.2.1", 9))  # sends nothing: which address would be taken
        except OSError:
            return []
        return [one.getsockname()[0]]
