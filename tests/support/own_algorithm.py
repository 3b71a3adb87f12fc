"""The package of `examples/own-algorithm`: installed into a folder, or its module alone."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

EXAMPLE = Path(__file__).parents[2] / "examples" / "own-algorithm"
NAMES = ("bank", "branch", "telecom", "retailer")
LAMBDA = 0.01  # as in its ridge.toml


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


def install(folder):
    """Build the package and install it into a folder; nothing is fetched."""
    how = ["--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "install", "-q", *how, "--target", str(folder)]
    done = subprocess.run([*command, str(EXAMPLE)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def closed_form():
    """Return the joined table, and what ridge regression on it says of each customer."""
    x, z, _, w = _solved()
    return x, z @ w


def least_objective():
    """Return the least value of λ/2 ‖w‖² + 1/2N Σ (z_iᵀw - y_i)² on the joined table."""
    _, z, y, w = _solved()
    return (LAMBDA * w @ w + np.square(z @ w - y).mean()) / 2


@cache
def _solved():
    """Return the joined table, its standardised columns, the labels, and the weights."""
    tables = [pd.read_csv(EXAMPLE / f"{name}.csv", index_col="customer") for name in NAMES]
    joined = tables[0]
    for one in tables[1:]:
        joined = joined.combine_first(one)
    joined = joined.sort_index()
    x = joined.drop(columns="spend")
    z = ((x - x.mean()) / x.std(ddof=0)).fillna(0.0).assign(intercept=1.0).to_numpy()
    y, count = joined["spend"].to_numpy(), len(joined)
    w = np.linalg.solve(z.T @ z / count + LAMBDA * np.eye(z.shape[1]), z.T @ y / count)
    return x, z, y, w


def site_toml(client, folder, modules='"intarsia_ridge:RIDGE"', more=""):
    """Return what a site takes part with; `client` is its table in ridge.toml."""
    own = {**client, "path": str(EXAMPLE / client["path"])}
    lines = [f'{key} = "{value}"' for key, value in own.items() if key != "name"]
    return (
        f'[site]\nname = "{client["name"]}"\nids = true\nmodules = [{modules}]\n{more}'
        f'key = "{folder}/keys/{client["name"]}/shared.key"\n[table]\n' + "\n".join(lines)
    )
