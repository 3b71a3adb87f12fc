"""Runs over the nodes of a Flower federation, which is simulated in processes of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from intarsia.deployment.client_folder import read_settings
from intarsia.experiment import config as experiment

TESTS = Path(__file__).parents[2] / "support"
PROJECT = TESTS.parents[1]
SOURCE = PROJECT / "src" / "intarsia"


def test_the_example_over_flower_is_the_experiment_credit() -> None:
    root = PROJECT
    one = experiment.load(root / "experiments" / "credit.toml")
    app = root / "examples" / "flower-app"
    over = experiment.load(app / "credit_app" / "credit.toml")
    tables = {
        source.name: read_settings(app / "sites" / source.name).table for source in one.clients
    }
    assert [source.name for source in over.clients] == list(tables)
    assert tuple(tables.values()) == one.clients
    assert replace(over, clients=one.clients, out=one.out) == one


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "mode", "where"),
    [
        ("hyfdca", "plain", "context"),
        ("hyfdca", "masked", "disk"),
        ("hyfdca", "ckks", "disk"),
        ("flic", "plain", "disk"),
        ("hyfem", "plain", "disk"),
        ("femam", "plain", "disk"),
    ],
)
def test_flowers_simulation_comes_to_the_bits_of_the_in_process_engine(
    tmp_path: Path, name: str, mode: str, where: str
) -> None:
    pytest.importorskip("flwr", reason="flwr is not installed")
    pytest.importorskip("ray", reason="the simulation of flwr is not installed")
    pytest.importorskip("torch")
    place = "context" if where == "context" else str(tmp_path / "sites")
    path = [str(TESTS), str(PROJECT), str(SOURCE.parent), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, str(TESTS / "flower_federation.py"), name, mode, place],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path), "FLWR_TELEMETRY_ENABLED": "0"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["odd"] == []
    assert told["rounds"] == 4
    assert ("states" in told["compared"]) == (where == "disk")
