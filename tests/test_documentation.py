"""The documents name tests and files that exist, every room and every algorithm."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from intarsia import api, catalogue, joining

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_test_that_a_document_names_exists(document):
    text = document.read_text(encoding="utf-8")
    for file, name in re.findall(r"\b(test_\w+\.py)(?:::(test_\w+))?", text):
        found = ROOT / "tests" / file
        assert found.is_file(), file
        assert not name or f"\ndef {name}(" in found.read_text(encoding="utf-8"), (file, name)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_file_that_a_document_links_to_exists(document):
    text = document.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        assert "://" in target or (document.parent / target).exists(), target


def test_the_document_on_privacy_names_tests_and_is_linked_to():
    assert (ROOT / "docs/privacy.md").read_text(encoding="utf-8").count("::test_") > 20
    assert "docs/privacy.md" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_architecture_has_every_room():
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    rooms = {path.stem for path in (ROOT / "src/intarsia").glob("[!_]*.py")}
    assert {room for room in rooms if f"`{room}`" not in text} == set()


def test_run_and_join_name_every_algorithm_that_they_take():
    names = {*catalogue.ALGORITHMS, *catalogue.BASELINES, *catalogue._PERSONAL}
    assert {name for name in names if f'"{name}"' not in api.run.__doc__} == set()
    first_line = api.join.__doc__.partition("\n")[0]
    assert all(re.search(rf"\b{name}\b", first_line) for name in joining._JOINABLE)
