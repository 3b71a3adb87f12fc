from __future__ import annotations

import ast
import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

import intarsia

ROOT = Path(intarsia.__file__).parent
MODULES = sorted(path for path in ROOT.rglob("*.py") if path.stat().st_size)


def named(module: Path) -> str:
    return module.relative_to(ROOT).as_posix()


def test_the_version_is_the_installed_one():
    assert intarsia.__version__ == importlib.metadata.version("intarsia")


@pytest.mark.parametrize("module", MODULES, ids=named)
def test_public_names_are_sorted_and_there(module):
    tree = ast.parse(module.read_text(encoding="utf-8"))
    top = {
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
    }
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names = ast.literal_eval(node.value)
            assert names == sorted(names, key=_constants_first)
            assert len(names) == len(set(names))
            assert names
            break
    else:
        assert not top, f"{named(module)} has public names but no __all__"


def _constants_first(name: str) -> tuple[int, str]:
    """The order of ruff's RUF022: CONSTANTS, Classes, functions."""
    return (0 if name.isupper() else 1 if name[:1].isupper() else 2), name


@pytest.mark.parametrize("module", MODULES, ids=named)
def test_a_module_says_what_it_is_for(module):
    if module.name != "__init__.py":
        assert ast.get_docstring(ast.parse(module.read_text(encoding="utf-8")))


def test_no_file_is_a_bin():
    bins = {"utils", "util", "helpers", "common", "misc", "base", "types", "manager", "factory"}
    assert not bins & {module.stem for module in MODULES}


def test_the_command_line_starts_without_the_heavy_libraries():
    code = "import sys, intarsia.cli; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"numba", "sklearn", "matplotlib", "scipy", "pyarrow", "polars", "sqlalchemy", "torch"}
    assert not heavy & set(found.stdout.split())
