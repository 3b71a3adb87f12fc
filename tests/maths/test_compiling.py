"""Compiled kernels are those of the sources as they are."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import intarsia

PROGRAM = """
import numpy as np
from scipy.sparse import csr_array
from intarsia.maths.linear.sdca import as_rows
from intarsia.maths.linear.row_products import score_rows
x = as_rows(csr_array(np.array([[1.0, 0.0, 2.0]])))
print(score_rows(x, np.zeros(1, np.int64), np.ones((1, 3)))[0, 0])
"""

ROOTS = """
import numpy as np
from intarsia.maths.matching.inverse_roots import distances_of_classes
draw = np.random.default_rng(0)
points = draw.normal(size=(3, 40, 8)).astype(np.float32)
means = draw.normal(size=(3, 3, 8)).astype(np.float32)
found = distances_of_classes(points, draw.integers(3, size=(3, 40)), means, 0.5, 1e-6)
print(b"".join(part.tobytes() for part in found[:3]).hex())
"""


def printed(folder: Path, program: str = PROGRAM, warns: str = "", **settings: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(folder), **settings}
    environment.pop("NUMBA_CACHE_DIR", None)
    shown = "always" if warns else "error"
    command = [sys.executable, "-W", shown, "-c", program]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    if warns:
        assert found.stderr.count("Warning: ") == found.stderr.count(warns) == 1, found.stderr
    else:
        assert not found.stderr
    return found.stdout.strip()


def copied(folder: Path) -> Path:
    package, ignored = folder / "intarsia", shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(intarsia.__file__).parent, package, ignore=ignored)
    return package


def test_kernels_run_where_no_folder_can_be_written_to_keep_them(tmp_path):
    package = copied(tmp_path)
    for module in {*package.rglob("*.py")}:  # a file, as root may write into every folder
        (module.parent / "__pycache__").touch()
    (tmp_path / "home").touch()
    nowhere = str(tmp_path / "home" / "user")
    found = printed(tmp_path, HOME=nowhere, XDG_CACHE_HOME=nowhere, warns="set NUMBA_CACHE_DIR")
    assert found == "3.0"
    assert not list(tmp_path.rglob("*.nbi"))


def test_nothing_is_kept_in_a_working_folder_where_a_user_has_no_home(tmp_path, monkeypatch):
    """As in a container whose user is not known there: the home is "~" as it is written."""
    package = copied(tmp_path)
    for module in {*package.rglob("*.py")}:
        (module.parent / "__pycache__").touch()
    monkeypatch.chdir(tmp_path)
    found = printed(tmp_path, XDG_CACHE_HOME="~/.cache", warns="set NUMBA_CACHE_DIR")
    assert found == "3.0"
    assert not (tmp_path / "~").exists()


def test_a_kernel_is_compiled_anew_when_one_that_it_calls_has_changed(tmp_path):
    package = copied(tmp_path)
    assert printed(tmp_path) == "3.0"
    assert list((package / "maths" / "linear" / "__pycache__").glob("row_products._score-*.nbi"))
    called = package / "maths" / "linear" / "products.py"
    text, total = called.read_text(encoding="utf-8"), "return (first + second)"
    assert total in text
    called.write_text(text.replace(total, "return 100.0 + (first + second)"), encoding="utf-8")
    assert printed(tmp_path) == "103.0"


@pytest.mark.slow
def test_a_run_that_compiles_kernels_has_the_bits_of_one_that_loads_them(tmp_path):
    copied(tmp_path)
    assert printed(tmp_path, ROOTS) == printed(tmp_path, ROOTS)
