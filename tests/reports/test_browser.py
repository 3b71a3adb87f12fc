"""Reports and the console in a real browser: numbers, no error, keyboard, light and dark.

`make test-browser` sets up what it needs; without it these tests are skipped. With the setting
INTARSIA_SCREENSHOTS, a folder, each page is left there as a picture, to be looked at.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import shutil
import threading
from pathlib import Path

import pytest

from intarsia.cli.main import main

playwright = pytest.importorskip(
    "playwright.sync_api", reason="playwright is not installed: make test-browser"
)

ROOT = Path(__file__).parents[2]
OLDER = ROOT / "tests/fixtures/574201d"
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as started:
        try:
            # root may not start its sandbox, and the pages are ours
            arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
            made = started.chromium.launch(executable_path=CHROMIUM, args=arguments)
        except playwright.Error as problem:
            pytest.skip(f"no Chromium can be started: {str(problem).splitlines()[0]}")
        yield made
        made.close()


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, list[Path]]:
    """The runs of the demo, three seeds beside each other, and a folder of an older version."""
    place = tmp_path_factory.mktemp("runs")
    found = {"older": [OLDER / "hyfdca"]}
    for name, seeds in (("credit", (0,)), ("heart", (0, 1, 2))):
        for seed in seeds:
            out = place / f"{name}{seed}"
            arguments = ["-c", f"experiment.seed={seed}", "--out", str(out), "--quiet"]
            assert main(["run", str(ROOT / f"experiments/{name}.toml"), *arguments]) == 0
            found.setdefault(name, []).append(out)
    return {"seeds": found["heart"], **{name: some[:1] for name, some in found.items()}}


def luminance(colour: str) -> float:
    red, green, blue = (int(one) for one in colour[colour.index("(") + 1 : -1].split(",")[:3])
    return (0.2126 * red + 0.7152 * green + 0.0722 * blue) / 255


def watched_page(browser, scheme):
    """Return a new page, what goes wrong on it, and the addresses that it asks for."""
    page = browser.new_page(color_scheme=scheme, viewport={"width": 1000, "height": 900})
    problems, requests = [], []
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    return page, problems, requests


def check_look(page, scheme, text, ink):
    """Check the colours of paper and text, and that a page fits a narrow screen."""
    of = "one => getComputedStyle(one)"
    paper = luminance(page.eval_on_selector("body", f"{of}.backgroundColor"))
    ink = luminance(page.eval_on_selector(text, f"{of}.{ink}"))
    assert (paper > 0.9 and ink < 0.3) if scheme == "light" else (paper < 0.2 and ink > 0.7)
    # nothing is wider, but what scrolls by itself
    page.set_viewport_size({"width": 400, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    page.set_viewport_size({"width": 1000, "height": 900})


def take_picture(page, name):
    if pictures := os.environ.get("INTARSIA_SCREENSHOTS"):
        page.screenshot(path=Path(pictures) / f"{name}.png", full_page=True)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["credit", "heart", "seeds", "older"])
def test_a_browser_shows_the_result_and_asks_for_nothing(name, scheme, browser, runs, tmp_path):
    out = tmp_path / f"{name}.html"
    assert main(["report", *map(str, runs[name]), "--out", str(out)]) == 0
    page, problems, requests = watched_page(browser, scheme)
    page.goto(out.as_uri())

    values = page.eval_on_selector_all("data", "all => all.map(one => Number(one.value))")
    for folder in runs[name]:
        metrics = json.loads((folder / "result.json").read_text())["metrics"]
        assert metrics["server"]["accuracy"] in values
        assert metrics["standalone_mean"]["accuracy"] in values
        shown = f"{100 * metrics['server']['accuracy']:.2f} %"
        assert page.locator("dd data", has_text=shown).first.is_visible()

    check_look(page, scheme, "svg text[fill=currentColor]", "fill")

    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.getAttribute('href')") == "#main"
    summary = page.locator("summary").first
    summary.focus()
    before = page.locator("details[open]").count()
    page.keyboard.press("Enter")
    assert page.locator("details[open]").count() != before

    assert problems == []
    assert requests == [out.as_uri()]
    take_picture(page, f"{name}-{scheme}")


@pytest.fixture(scope="module")
def console(tmp_path_factory):
    """Serve the console of a server and a site, of whose kits the runs are; give its address."""
    for library in ("nvflare", "starlette", "uvicorn"):
        pytest.importorskip(library, reason="pip install intarsia[console,nvflare]")
    from intarsia.cli.federation import _standing
    from intarsia.reports.console import Watched, served
    from watched_kits import watched_kits

    kits = watched_kits(tmp_path_factory.mktemp("kits"))
    watched = [Watched(one, lambda one=one: _standing(one, None)) for one in kits]
    with served(watched, 0) as address:
        yield address


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_browser_opens_reports_from_the_console(scheme, browser, console):
    page, problems, requests = watched_page(browser, scheme)
    page.goto(console)
    home = console.partition("?")[0]
    assert page.url == home  # without the token
    assert page.locator("h2").all_inner_texts() == ["credit: the server", "credit: the site bank"]
    assert page.locator("li", has_text="its request waits to be signed").is_visible()
    check_look(page, scheme, "td", "color")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.getAttribute('href')") == "#main"
    assert page.evaluate("document.cookie") == ""  # no script reads it
    take_picture(page, f"console-{scheme}")

    page.get_by_role("link", name="calm").press("Enter")
    page.get_by_role("heading", name="calm, a run of credit").wait_for()
    assert page.locator("figure svg").count() == 2
    check_look(page, scheme, "svg text[fill=currentColor]", "fill")
    take_picture(page, f"console-run-{scheme}")
    page.get_by_role("link", name="All federations").click()
    page.get_by_role("link", name="report of heart").click()
    page.locator("#result-title").wait_for()
    assert problems == []
    assert all(one.startswith(home) for one in requests)


def test_a_page_from_elsewhere_gets_nothing_of_the_console(browser, console):
    page, problems, _ = watched_page(browser, "light")
    page.goto(console)
    home = console.partition("?")[0]
    assert page.locator("h2").count() == 2  # the cookie is there
    with elsewhere(home) as address:  # the same browser, another site
        page.goto(address)
        assert page.evaluate("fetch(document.links[0].href).then(() => 1, () => 0)") == 0
        frame = next(one for one in page.frames if one != page.main_frame)
        assert "credit" not in frame.content()
        page.locator("a").click()
        page.wait_for_url(home)
        assert "Open the address" in page.inner_text("body")
    assert problems  # the browser says that it refused


@contextlib.contextmanager
def elsewhere(home):
    """Serve a page of another site with a link to the console, and the console in a frame."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(f'<a href="{home}">x</a><iframe src="{home}"></iframe>'.encode())

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://localhost:{server.server_port}/"
        server.shutdown()
        thread.join()
