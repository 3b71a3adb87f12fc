"""Where and how a site computes is its own: no job names folders, memory or clusters."""

from __future__ import annotations

import json

import pytest

from intarsia.core import memory
from intarsia.data.source import Source
from intarsia.deployment.client_folder import SiteSettings
from intarsia.deployment.client_setup import READ, Work
from intarsia.engines.remote.wire import PROTOCOL, Call


@pytest.mark.parametrize(
    "asked", [{"memory": "1MB"}, {"workers": 64}, {"ray": "10.0.0.1:6379"}], ids=str
)
def test_a_job_chooses_no_folder_memory_or_cluster_at_a_site(tmp_path, asked):
    """With a folder and a memory of its choice it learned whether the table is larger, too."""
    own, elsewhere = tmp_path / "site", tmp_path / "elsewhere"
    own.mkdir()
    elsewhere.mkdir()
    table = own / "table.csv"
    lines = "".join(f"{row},{row / 7},{row % 2}\n" for row in range(200))
    table.write_text(f"id,a,y\n{lines}")
    source = Source(name="A", path=str(table), id="id", label="y")
    work = Work(SiteSettings(name="A", plain=True, ids=True, table=source), own)
    tree = {
        "protocol": PROTOCOL,
        "experiment": {"name": "x", "seed": 1, "rounds": 2, "out": str(elsewhere), **asked},
        "algorithm": {"name": "fedavg"},
        "privacy": {"mode": "plain"},
    }
    said = json.dumps(tree).encode()
    work._call = Call("ab", 1, 0, 0, 0, 0, "stage", READ, "", ("A", "B", "C"), said)
    work._read(None, said)
    assert memory.folder_of(work._table.values) is None
    found = work._experiment
    assert (found.memory, found.workers, found.ray) == ("", 0, "")
    assert str(elsewhere) not in found.out
