"""Experiments on networks, killed at any moment, go on to the same bits."""

from __future__ import annotations

import hashlib
import json
import os
import signal
from pathlib import Path

import pytest

pytest.importorskip("torch")

from intarsia.cli.main import main
from tests.training.test_resume import lines_of, rounds_done, stopped

ROOT = Path(__file__).parents[2]
# how many rounds each is cut to, and where it is killed: in which round, and how far in it
EXPERIMENTS = {
    "early-stopping": (90, (8.5, 57.3)),  # before the best round, and after it
    "rate-schedule": (12, (5.4,)),
    "device-auto": (6, (2.6,)),
    "own-module": (6, (3.2,)),
}
SAME = ("rounds", "best_round", "finished", "bytes", "exchanges", "metrics", "notes")


def files_of(model: Path) -> dict[str, str]:
    """Return a checksum of each file of a model."""
    found = sorted(path for path in model.rglob("*") if path.is_file())
    return {
        str(path.relative_to(model)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in found
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "moment"), [(name, at) for name, (_, all_of) in EXPERIMENTS.items() for at in all_of]
)
def test_an_experiment_killed_goes_on_to_the_same_bits(tmp_path, monkeypatch, name, moment):
    examples = str(ROOT / "examples")
    monkeypatch.setenv("PYTHONPATH", f"{examples}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.syspath_prepend(examples)
    rounds, _ = EXPERIMENTS[name]
    file, whole, killed = ROOT / f"experiments/{name}.toml", tmp_path / "whole", tmp_path / "killed"
    cut = ["-c", f"experiment.rounds={rounds}", "-c"]
    assert main(["run", str(file), *cut, f"experiment.out={whole}", "--quiet"]) == 0
    given = "run", file, *cut, f"experiment.out={killed}"
    status, said = stopped("SIGKILL", killed, moment, *given)
    assert status == -signal.SIGKILL, said
    assert rounds_done(killed) == int(moment)
    assert not (killed / "result.json").exists()
    assert main(["resume", str(killed), "--allow-module", "own_embedding", "--quiet"]) == 0
    assert lines_of(whole) == lines_of(killed)
    one, other = (json.loads((out / "result.json").read_text()) for out in (whole, killed))
    assert {key: one[key] for key in SAME} == {key: other[key] for key in SAME}
    assert files_of(whole / "model") == files_of(killed / "model")
    if name == "early-stopping":
        assert one["finished"] == "early_stopping"
