"""The list of mutations in benchmarks/security_mutations.py is of the code as it is."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def listed():
    path = ROOT / "benchmarks" / "security_mutations.py"
    spec = importlib.util.spec_from_file_location("security_mutations", path)
    module = sys.modules["security_mutations"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.MUTATIONS


def test_each_mutation_changes_a_text_that_is_there_and_names_tests_that_are():
    found = listed()
    assert len(found) >= 60
    assert len({one.name for one in found}) == len(found)
    for one in found:
        text = (ROOT / "src" / "intarsia" / one.file).read_text()
        assert one.before in text, one.name
        assert one.before != one.after, one.name
        assert one.tests, one.name
        assert all((ROOT / name).exists() for name in one.tests), one.name
