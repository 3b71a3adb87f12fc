"""Reports in a real browser: numbers, no error, no request, keyboard, light and dark.

`make test-browser` sets up what it needs; without it these tests are skipped. With the setting
INTARSIA_SCREENSHOTS, a folder, each page is left there as a picture, to be looked at.
"""

from __future__ import annotations

import json
import os
import shutil
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


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["credit", "heart", "seeds", "older"])
def test_a_browser_shows_the_result_and_asks_for_nothing(name, scheme, browser, runs, tmp_path):
    out = tmp_path / f"{name}.html"
    assert main(["report", *map(str, runs[name]), "--out", str(out)]) == 0
    page = browser.new_page(color_scheme=scheme, viewport={"width": 1000, "height": 900})
    problems, requests = [], []
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(out.as_uri())

    values = page.eval_on_selector_all("data", "all => all.map(one => Number(one.value))")
    for folder in runs[name]:
        metrics = json.loads((folder / "result.json").read_text())["metrics"]
        assert metrics["server"]["accuracy"] in values
        assert metrics["standalone_mean"]["accuracy"] in values
        shown = f"{100 * metrics['server']['accuracy']:.2f} %"
        assert page.locator("dd data", has_text=shown).first.is_visible()

    of = "one => getComputedStyle(one)"
    paper = luminance(page.eval_on_selector("body", f"{of}.backgroundColor"))
    ink = luminance(page.eval_on_selector("svg text[fill=currentColor]", f"{of}.fill"))
    assert (paper > 0.9 and ink < 0.3) if scheme == "light" else (paper < 0.2 and ink > 0.7)

    # nothing is wider than a narrow screen, but what scrolls by itself
    page.set_viewport_size({"width": 400, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    page.set_viewport_size({"width": 1000, "height": 900})

    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.getAttribute('href')") == "#main"
    summary = page.locator("summary").first
    summary.focus()
    before = page.locator("details[open]").count()
    page.keyboard.press("Enter")
    assert page.locator("details[open]").count() != before

    assert problems == []
    assert requests == [out.as_uri()]
    pictures = os.environ.get("INTARSIA_SCREENSHOTS")
    if pictures:
        page.screenshot(path=Path(pictures) / f"{name}-{scheme}.png", full_page=True)
