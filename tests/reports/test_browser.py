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


# page → experiments whose runs it shows, and settings that make them short
SHOWN = {
    "credit": [("credit", ())],
    "heart": [("heart", ())],
    "seeds": [("heart", (f"experiment.seed={seed}",)) for seed in (0, 1, 2)],
    "flic": [("flic-bci", ("experiment.rounds=2", "algorithm.pretraining_epochs=1"))],
    "hyfem": [("hyfem-mfeat", ("experiment.rounds=5",))],
    "femam": [
        (
            "femam-mnist-pair",
            ("experiment.rounds=20", "experiment.evaluate_every=2", "algorithm.first_rounds=8",
             "algorithm.level_rounds=4", "algorithm.first_clustering=2"),
        )
    ],
}  # fmt: skip
NETWORKS = {"flic", "hyfem", "femam"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory, request):
    """What gives the folders of a page: runs, or one of an older version."""
    place, made = tmp_path_factory.mktemp("runs"), {}

    def run(name: str, settings: tuple[str, ...]) -> Path:
        if (name, settings) not in made:
            out = place / str(len(made))
            path = ROOT / f"experiments/{name}.toml"
            arguments = [part for one in settings for part in ("-c", one)]
            assert main(["run", str(path), *arguments, "--out", str(out), "--quiet"]) == 0
            made[name, settings] = out
        return made[name, settings]

    def of(page: str) -> list[Path]:
        if page == "older":
            return [OLDER / "hyfdca"]
        if page in NETWORKS:
            pytest.importorskip("torch")
            request.getfixturevalue("data_folder")
        return [run(*one) for one in SHOWN[page]]

    return of


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
@pytest.mark.parametrize("name", [*SHOWN, "older"])
def test_a_browser_shows_the_result_and_asks_for_nothing(name, scheme, browser, folders, tmp_path):
    out, runs = tmp_path / f"{name}.html", folders(name)
    assert main(["report", *map(str, runs), "--out", str(out)]) == 0
    assert out.stat().st_size < 2_000_000
    page, problems, requests = watched_page(browser, scheme)
    page.goto(out.as_uri())

    values = page.eval_on_selector_all("data", "all => all.map(one => Number(one.value))")
    for folder in runs:
        result = json.loads((folder / "result.json").read_text())
        metrics = result["metrics"]
        figures, own = metrics["server"].get("figures") or {}, metrics["server"]["accuracy"]
        alone = metrics["standalone_mean"]
        if (figures.get("majority") or 0) < 0.75:
            shown = f"{100 * own:.2f} %"
            assert own in values
            assert alone is None or alone["accuracy"] in values
        else:  # the AUC in the cards, and the accuracy in a table of figures
            shown = f"{figures['auc']:.4g}"
            assert figures["auc"] in values
            assert alone is None or alone["figures"]["auc"] in values
            row = page.locator("tr", has=page.get_by_text("accuracy", exact=True))
            assert f"{own:.4g}" in row.first.inner_text()
        assert {result["bytes"]["up"], result["rounds"], result["seed"]} <= {*values}
        assert page.locator("dd data", has_text=shown).first.is_visible()

    assert page.locator("#anchors").count() == (name == "flic")
    assert page.locator("#groups").count() == (name == "femam")
    if name == "femam":  # a cell for each client at each level, as dealt and as found
        structure = result["structure"]
        rows = sum(len(structure[one]) for one in ("truth", "learned"))
        assert page.locator("#groups rect").count() == rows * len(structure["clients"])

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
