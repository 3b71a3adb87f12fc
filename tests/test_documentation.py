"""The documents name tests and files that exist, every package and every algorithm."""

from __future__ import annotations

import dataclasses
import importlib
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

import intarsia
from intarsia import api
from intarsia.algorithms.hyfdca.state import HyFDCA
from intarsia.core.settings import toml_text
from intarsia.data.labels import LabelSettings
from intarsia.data.source import Source
from intarsia.deployment.client_folder import SiteSettings
from intarsia.deployment.policy import Policy
from intarsia.experiment.config import Alignment, Experiment, Preprocessing, Split
from intarsia.experiment.published import Published
from intarsia.experiment.search import Search
from intarsia.inference import new_client
from intarsia.privacy.settings import Privacy
from intarsia.training import registry as catalogue

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


# a file of tests is named by its name, with as much of its folder as tells it from others
TEST = re.compile(r"((?:\w+/)*test_\w+\.py)(?:::(test_\w+))?")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_test_that_a_document_names_exists(document):
    text = document.read_text(encoding="utf-8")
    tests = {path: path.read_text(encoding="utf-8") for path in ROOT.glob("tests/**/test_*.py")}
    for file, name in TEST.findall(text):
        found = [path for path in tests if f"/{path.as_posix()}".endswith(f"/{file}")]
        if name:
            found = [path for path in found if f"\ndef {name}(" in tests[path]]
        assert len(found) == 1, (file, name, found)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_module_that_a_document_names_exists(document):
    text = document.read_text(encoding="utf-8")
    for module in re.findall(r"`((?:\w+/)+\w+\.py)`", text):
        homes = (ROOT / "src/intarsia", ROOT / "tests", ROOT)
        assert any((home / module).is_file() for home in homes), module


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_name_of_the_package_in_a_document_is_public(document):
    """What is written `intarsia.x.y`, or imported, is had from a package, not from a module."""
    text = document.read_text(encoding="utf-8")
    if document.name == "CHANGELOG.md":  # of what was
        return
    imports = re.findall(r"^from (intarsia(?:\.\w+)*) import (.+)$", text, re.MULTILINE)
    named = re.findall(r"`(intarsia(?:\.\w+)*)\.(\w+)\b", text)
    for package, names in [*imports, *named]:
        for name in names.split(", "):
            assert name in importlib.import_module(package).__all__, f"{package}.{name}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_file_that_a_document_links_to_exists(document):
    text = document.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        assert "://" in target or (document.parent / target).exists(), target


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_no_sentence_of_a_document_has_more_than_45_words(document):
    """Outside of tables, blocks and comments; a line of a list is a sentence of its own."""
    if document.name == "CHANGELOG.md":
        return
    text = document.read_text(encoding="utf-8")
    prose = re.sub(r"^ *```.*?^ *```|<!--.*?-->|^\|.*?$|\]\([^)]*\)", "", text, flags=re.M | re.S)
    for paragraph in re.split(r"\n\s*\n|\n *(?:-|\d+\.) ", prose):
        for sentence in re.split(r"(?<=[.!?:;])\s+", paragraph):
            assert len(sentence.split()) <= 45, sentence


def test_the_document_on_privacy_names_tests_and_is_linked_to():
    text = (ROOT / "docs/explanations/privacy.md").read_text(encoding="utf-8")
    pages = [*(ROOT / "docs/explanations/privacy").glob("*.md")]
    assert all(f"](privacy/{page.name})" in text for page in pages)
    assert sum(page.read_text(encoding="utf-8").count("::test_") for page in pages) > 20
    assert len(text.splitlines()) < 110, "two screens: details go behind a link"
    assert "docs/explanations/privacy.md" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_architecture_has_every_package():
    text = (ROOT / "docs/explanations/architecture.md").read_text(encoding="utf-8")
    source = ROOT / "src/intarsia"
    packages = {
        ".".join(path.parent.relative_to(source).parts) for path in source.glob("*/**/__init__.py")
    }
    assert {package for package in packages if f"`{package}`" not in text} == set()


def test_run_and_join_name_every_algorithm_that_they_take():
    names = {*catalogue.ALGORITHMS, *catalogue.BASELINES, *catalogue._PERSONAL}
    assert {name for name in names if f'"{name}"' not in api.run.__doc__} == set()
    first_line = api.join.__doc__.partition("\n")[0]
    assert all(re.search(rf"\b{name}\b", first_line) for name in new_client._JOINABLE)


# heading → what holds the keys of the table below it, and those that have tables of their own
KEYS = {
    "reference/experiment-file.md": {
        "`[experiment]`": (Experiment, {"algorithm", "hyperparameters", "own_algorithm",
                                        "clients", "dataset",
                                        "partition", "published", "split", "preprocessing",
                                        "labels", "alignment", "privacy", "tune"}),
        "`[split]`": (Split, set()),
        "`[preprocessing]`": (Preprocessing, set()),
        "`[labels]`": (LabelSettings, set()),
        "`[alignment]`": (Alignment, set()),
        "`[privacy]`": (Privacy, set()),
        "`[[client]]`": (Source, set()),
        "`[tune]`": (Search, {"ranges"}),
        "`[[published]]`": (Published, set()),
    },
    "how-to/owner.md": {
        "`[policy]`": (Policy, set()),
        "`[site]`": (SiteSettings, {"table", "policy"}),
    },
    "reference/hyfdca.md": {"Keys": (HyFDCA, set())},
}  # fmt: skip


@pytest.mark.parametrize(
    ("document", "heading"), [(name, one) for name, known in KEYS.items() for one in known]
)
def test_every_key_is_in_its_table_with_its_default(document, heading):
    text = (ROOT / "docs" / document).read_text(encoding="utf-8")
    section = text.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| (.+?) \| .+ \|$", section, re.MULTILINE)
    kind, apart = KEYS[document][heading]
    known = [one for one in dataclasses.fields(kind) if one.name not in apart]
    assert sorted(name for name, _, _ in rows) == sorted(one.name for one in known)
    told = {name: default for name, _, default in rows}
    for one in known:
        if kind is Experiment and one.name in ("name", "out"):  # by the file, in words
            continue
        assert told[one.name] == _default(one), one.name


def _default(one: dataclasses.Field) -> str:
    value = one.default if one.default_factory is dataclasses.MISSING else one.default_factory()
    if value is dataclasses.MISSING:
        return "needed"
    if value is None:
        return "–"
    return "`{}`" if isinstance(value, Mapping) else f"`{toml_text(value)}`"


def test_who_cites_names_this_version_and_every_paper():
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {intarsia.__version__}\n" in text
    named = re.findall(r"the algorithm (\w+)\"", text)
    assert sorted(named) == ["femam", "flic", "hyfdca", "hyfem"]


def test_the_experiment_file_is_linked_to():
    assert "docs/reference/experiment-file.md" in (ROOT / "README.md").read_text(encoding="utf-8")
