"""reference/hyperparameters.md, against the code: each key of each algorithm, and nothing else."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
import sys
from pathlib import Path

import pytest

from intarsia.training.registry import algorithm_named, algorithm_names

pytest.importorskip("torch")
SCRIPT = Path(__file__).parents[1] / "docs" / "scripts" / "hyperparameters.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("hyperparameters", SCRIPT)
    module = sys.modules["hyperparameters"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_code_says(script):
    assert script.PAGE.read_text(encoding="utf-8") == script.page(), (
        "python docs/scripts/hyperparameters.py --write"
    )


def test_every_key_of_every_algorithm_stands_there_with_its_default(script):
    text = script.PAGE.read_text(encoding="utf-8")
    sections = dict(
        zip(*[iter(re.split(r"^## (.+)$", text, flags=re.MULTILINE)[1:])] * 2, strict=True)
    )
    described = _defaults(sections.pop("Common keys"))
    assert list(sections) == algorithm_names()
    for name, section in sections.items():
        usual = re.findall(r"`(\w+)`", _after(script._USUAL, section))
        other = re.findall(
            r"`(\w+)` ([^,(]+)(?: \([^)]*\))?(?:, |$)", _after(script._OTHER, section)
        )
        assert {*usual, *dict(other)} <= set(described), name
        found = [*_defaults(section).items(), *((key, described[key]) for key in usual), *other]
        assert sorted(found) == sorted((key, default) for key, default, *_ in script.rows(name))


def _defaults(section: str) -> dict[str, str]:
    found = re.findall(r"^\| `(\w+)` \| (.+?) \|", section, re.MULTILINE)
    assert len(dict(found)) == len(found)
    return dict(found)


def _after(head: str, section: str) -> str:
    """Return the paragraph of a section that begins in these words, without them."""
    return " ".join(section.partition(head)[2].partition("\n\n")[0].split())


def test_every_line_of_a_table_has_its_columns(script):
    tables = re.findall(r"(?:^\|.*\n)+", script.PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    for table in tables:
        assert len({line.count("|") for line in table.splitlines()}) == 1, table


def test_a_key_that_allows_other_values_than_the_common_one_says_so(script):
    common = script.common()
    for name in algorithm_names():
        section = script.page().split(f"\n## {name}\n")[1].split("\n## ")[0]
        for key, default, allowed, meaning, _ in script.rows(name):
            if (key, meaning) in common and common[key, meaning][1] != allowed:
                assert f"`{key}` {default} ({allowed})" in " ".join(section.split()), (name, key)


def test_nothing_is_said_of_a_key_that_no_algorithm_has(script):
    known = set()
    for name in algorithm_names():
        for one in dataclasses.fields(algorithm_named(name).hyperparameters):
            own = f"{name}.{one.name}"
            known.add(own if own in script.SAID else one.name)
    assert set(script.SAID) == known


def test_a_key_without_words_is_refused(script, monkeypatch):
    monkeypatch.delitem(script.SAID, "rate")
    with pytest.raises(KeyError, match="rate"):
        script.page()


def test_no_decay_is_to_be_lowered_where_clients_overfit(script):
    for name in algorithm_names():
        for key, default, _, _, advice in script.rows(name):
            if key in ("weight_decay", "embedding_decay") and float(default) > 0:
                named = re.findall(r"\d\S*", advice.partition("from 0 to")[0])
                assert [one for one in named if float(one) <= float(default)] == [], (name, key)
