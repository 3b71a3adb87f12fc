"""The package of `examples/own-algorithm`: installed into a folder, or its module alone."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "own-algorithm"


@cache
def ridge():
    """Return the module, without its package: no entry point tells its name."""
    spec = importlib.util.spec_from_file_location("intarsia_ridge", EXAMPLE / "intarsia_ridge.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault("intarsia_ridge", module)
    spec.loader.exec_module(module)
    return module


def add_package(folder, name, entry_points, modules, version="1.0"):
    """Put a package into a folder as an installer does: its modules, and what says of it.

    `entry_points` are lines by group, `modules` texts by name.
    """
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    groups = [f"[{group}]\n" + "\n".join(lines) for group, lines in entry_points.items()]
    (info / "entry_points.txt").write_text("\n".join(groups) + "\n")
    for module, text in modules.items():
        (folder / f"{module}.py").write_text(text)
