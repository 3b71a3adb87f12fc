from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np

from intarsia.inspection.proposal import propose


def test_a_proposal_takes_no_more_memory_of_python_than_some_times_the_file(tmp_path: Path) -> None:
    """Texts of Python, one for each number, took 18 times the file."""
    rows = np.random.default_rng(0).standard_normal((20_000, 10)).round(6)
    names = ",".join([*(f"x{at}" for at in range(10)), "default"])
    lines = [",".join(map(str, row)) + f",{row[0] > 0:d}" for row in rows.tolist()]
    path = tmp_path / "bank.csv"
    path.write_text("\n".join([names, *lines]) + "\n")
    propose([path])  # which imports what it needs
    tracemalloc.start()
    proposal = propose([path])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert proposal.tables[0].source.label == "default"
    assert peak < 4 * path.stat().st_size
