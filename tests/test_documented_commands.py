"""Every command and every line of Python in the documents is run, page by page."""

from __future__ import annotations

import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from intarsia.cli.main import app, main

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs/scripts"))
api_pages = importlib.import_module("api_pages")
pages = importlib.import_module("pages")
plots = importlib.import_module("plots")

PAGES = {
    path.relative_to(ROOT).as_posix(): pages.blocks(path.read_text(encoding="utf-8"))
    for path in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
    if path.name != "CHANGELOG.md"
}
WITH_BLOCKS = [page for page, found in PAGES.items() if any(one.runs for one in found)]
QUICK = {"docs/tutorials/own-tables.md"}
SHOWN = {*QUICK, "docs/tutorials/different-columns.md"}  # linear models: the same everywhere
LANGUAGES = {"", "csv", "ini", "python", "sh", "text", "toml"}
REASONS = {
    "development": "what a checkout makes of itself, tests among it",
    "installs": "make test-installs tries it in fresh environments",
    "several machines": "the tutorial across organisations runs a server and sites",
    "fingerprints": "they are others each time; the same tutorial exchanges keys",
    "its own test": "test_hyfem_run.py runs it with tables of its own",
    "an installed package": "test_own_algorithm.py and its NVFLARE twin run it by name",
    "another library": "flwr-datasets and a download: make test-flower",
}
MOST_NOT_RUN = 20
BEFORE = {"docs/how-to/operations.md": "docs/how-to/deployment.md"}  # whose federation it keeps
COMMANDS = typer.main.get_command(app)
NEEDS = {"docs/how-to/export.md": "onnxruntime", "docs/how-to/trackers.md": "mlflow"}


def _marks(page: str) -> list[pytest.MarkDecorator]:
    slow = [] if page in QUICK else [pytest.mark.slow]
    # what the libraries of an extra warn of is theirs
    return [*slow, *([pytest.mark.filterwarnings("ignore")] if page in NEEDS else [])]


def test_a_block_is_of_a_known_language_and_has_a_known_reason_where_it_is_not_run():
    every = [(page, one) for page, found in PAGES.items() for one in found]
    assert {one.language for _, one in every} <= LANGUAGES
    left = [(page, one.line, one.reason) for page, one in every if one.reason]
    assert {reason for *_, reason in left} <= set(REASONS), left
    assert len(left) <= MOST_NOT_RUN, left
    # a test installs nothing into the environment that it runs in
    assert [one for one in every if one[1].runs and "pip install" in one[1].text] == []


def test_what_a_page_shows_of_a_file_stands_there():
    parts = [(page, one) for page, found in PAGES.items() for one in found if one.source]
    assert parts
    for page, one in parts:
        assert one.text in (ROOT / one.source).read_text(encoding="utf-8"), (page, one.line)


def _parameters(words: list[str]) -> set[str] | None:
    """Return the options of the command that a line begins with; None: there is no such one."""
    command = COMMANDS
    known = {"--help", "--version", "--install-completion"}
    for word in words:
        below = getattr(command, "commands", None)
        if below is None:
            break
        if word not in below:
            return known if word.startswith("-") or word == "COMMAND" else None
        command = below[word]
    return known | {name for one in command.params for name in (*one.opts, *one.secondary_opts)}


@pytest.mark.parametrize("page", PAGES)
def test_every_command_in_a_page_is_one_and_has_its_options(page):
    """Of all, whether they are run or not, and those in the text too."""
    text = (ROOT / page).read_text(encoding="utf-8")
    shown = [one.text.replace("\\\n", " ") for one in PAGES[page] if one.language == "sh"]
    lines = [line for block in shown for line in re.findall(r"\bintarsia (?!\.)[^\n;|>)]+", block)]
    lines += [one.replace("\n", " ") for one in re.findall(r"`(intarsia [^`]+)`", text)]
    for line in lines:
        words = re.sub(r"\[|\]|\\?\|", " ", line.partition("#")[0]).split()[1:]
        known = _parameters(words)
        assert known is not None, line
        options = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
        assert options - known == set(), line


@pytest.mark.parametrize(
    "page",
    [pytest.param(one, marks=_marks(one)) for one in WITH_BLOCKS],
)
def test_the_blocks_of_a_page_run_in_their_order(page, tmp_path, monkeypatch, capfd):
    pytest.importorskip("torch")
    if page in NEEDS:
        pytest.importorskip(NEEDS[page], reason="make test-outputs runs this page")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    for folder in ("experiments", "examples"):  # as in a checkout; what runs write stays here
        shutil.copytree(ROOT / folder, folder, ignore=shutil.ignore_patterns("runs"))
    monkeypatch.syspath_prepend(str(tmp_path))
    names, said = {"__name__": "page"}, []
    try:
        for block in [*PAGES.get(BEFORE.get(page, ""), []), *PAGES[page]]:
            if block.title:
                Path(block.title).parent.mkdir(parents=True, exist_ok=True)
                Path(block.title).write_text(block.text, encoding="utf-8")
            elif block.runs and block.language == "python":
                exec(compile(block.text, f"{page}:{block.line}", "exec"), names)
            elif block.runs:
                _commands(block, page)
            elif block.language == "text" and page in SHOWN:
                said += [_words(line) for line in "".join(capfd.readouterr()).splitlines()]
                for line in filter(_words, block.text.splitlines()):
                    shown = _words(line)
                    assert any(one[: len(shown)] == shown for one in said), line
    finally:
        for kit in Path("kits").glob("*"):  # what a page started and, where it failed, did not stop
            main(["federation", "stop", str(kit)])


def _words(line):
    """Return the words of a line of output, and two digits of each number that is not tiny."""
    found = re.findall(r"[A-Za-z][\w-]*|-?\d+(?:\.\d+)?(?:e-\d+)?", line)
    numbers = (one if one[0].isalpha() else f"{float(one):.2g}" for one in found)
    return [one for one in numbers if "e-" not in one or one[0].isalpha()]


def _commands(block, page):
    """Run commands: those of intarsia in this process, as its start takes longest."""
    lines = [one for one in block.text.replace("\\\n", " ").splitlines() if one.strip()]
    if all(re.fullmatch(r"intarsia [^;|<>&$`*]*", one.partition(" #")[0]) for one in lines):
        for line in lines:
            arguments = shlex.split(line, comments=True)[1:]
            assert main(arguments) == 0, (page, block.line, line)
        return
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block.text], capture_output=True, text=True
    )
    assert done.returncode == 0, (page, block.line, done.stdout[-2000:] + done.stderr[-2000:])


def test_the_reference_of_the_api_has_every_public_name():
    found = api_pages.pages()
    packages = {
        ".".join(path.parent.relative_to(ROOT / "src").parts)
        for path in ROOT.glob("src/intarsia/**/__init__.py")
    }
    public = {one: getattr(importlib.import_module(one), "__all__", []) for one in packages}
    for package, names in public.items():
        page = found.get(f"{package}.md", "")
        there = re.findall(rf"^::: {package}\.(\w+)$|^- `(\w+)`: see \[", page, re.MULTILINE)
        assert sorted(a or b for a, b in there) == sorted(names), package
    assert set(found) == {"index.md", *(f"{one}.md" for one, names in public.items() if names)}
    assert "intarsia.run" in found["intarsia.md"]


def test_the_reference_of_commands_has_every_command():
    text = (ROOT / "docs/reference/commands.md").read_text(encoding="utf-8")

    def paths(command, path):
        for name, below in getattr(command, "commands", {}).items():
            if not below.hidden:
                yield from (
                    paths(below, f"{path} {name}")
                    if hasattr(below, "commands")
                    else [f"{path} {name}"]
                )

    every = set(paths(typer.main.get_command(app), "intarsia"))
    assert len(every) > 30
    assert {one for one in every if not re.search(rf"`{one}\b", text)} == set()


def test_the_navigation_of_the_site_has_every_page():
    listed = re.findall(r"[-:] ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    there = [path.relative_to(ROOT / "docs").as_posix() for path in ROOT.glob("docs/**/*.md")]
    assert sorted(listed) == sorted(there)


def test_the_page_of_results_has_the_numbers_of_the_benchmarks():
    text = plots.PAGE.read_text(encoding="utf-8")
    assert text == plots.filled(text), "python docs/scripts/plots.py --write"
    for plot in plots.PLOTS:
        drawn = (plots.IMAGES / f"results-{plot.name}.svg").read_text(encoding="utf-8")
        numbers = [f"{value:.1f}" for row in plots.numbers(plot).values() for value in row]
        assert len(plots.numbers(plot)) == len(plot.rows)
        assert set(numbers) - set(re.findall(r">(\d+\.\d)<", drawn)) == set()
