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


def test_every_key_of_every_algorithm_stands_there(script):
    text = script.PAGE.read_text(encoding="utf-8")
    sections = dict(
        zip(*[iter(re.split(r"^## (.+)$", text, flags=re.MULTILINE)[1:])] * 2, strict=True)
    )
    assert list(sections) == algorithm_names()
    for name, section in sections.items():
        fields = dataclasses.fields(algorithm_named(name).hyperparameters)
        assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == [one.name for one in fields]
        assert all(line.count("|") == 6 for line in section.splitlines() if line.startswith("| `"))


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
