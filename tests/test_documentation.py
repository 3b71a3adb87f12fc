"""The documents name tests that exist, and files that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

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
