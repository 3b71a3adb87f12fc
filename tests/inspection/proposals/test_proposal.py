from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.testing import assert_array_equal
from pyarrow import csv, parquet

from intarsia.core import memory
from intarsia.data.formats import csv as formats_csv
from intarsia.data.formats import pieces
from intarsia.inspection.proposals.proposal import propose


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


def _one_column(path: Path, cells: list[str]) -> Path:
    lines = [f"{20 + at % 40},{cell},{at % 2}" for at, cell in enumerate(cells)]
    path.write_text("\n".join(["age,debt,default", *lines]) + "\n")
    return path


@pytest.mark.parametrize("rows", [60, 600])
def test_a_column_without_a_value_is_left_out_and_the_others_are_proposed(
    tmp_path: Path, rows: int
) -> None:
    proposal = propose([_one_column(tmp_path / "bank.csv", [""] * rows)])
    assert proposal.tables[0].left_out == {"debt": "empty in every row"}
    assert [own.name for own in proposal.tables[0].features] == ["age"]


@pytest.mark.parametrize("cell", ["1" * 400, "+nan"])
def test_whole_numbers_beside_one_that_is_not_finite_are_looked_at(
    tmp_path: Path, cell: str
) -> None:
    column = propose([_one_column(tmp_path / "bank.csv", [*("123" * 20), cell])])
    assert not column.tables[0].columns["debt"].whole


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_tables_that_are_large_for_the_memory_lie_on_disk_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    path = _one_column(tmp_path / "bank.csv", [f"{at % 97}.5" for at in range(600)])
    if ending == "parquet":
        parquet.write_table(csv.read_csv(path), path := tmp_path / "bank.parquet")
    usual, folders = propose([path]), []
    found = pieces.gathered

    def gathered(schema: pa.Schema, batches: Any, folder: Path | None) -> pa.Table:
        folders.append(folder)
        return found(schema, batches, folder)

    monkeypatch.setattr(memory, "free_memory", lambda: 1)
    monkeypatch.setattr(formats_csv, "gathered", gathered)
    monkeypatch.setattr(formats_csv, "PIECE", 64)  # a table of more is read in pieces
    own = propose([path], place=tmp_path / "mine.toml")
    assert set(folders) == ({tmp_path} if ending == "csv" else set())
    assert own.tables[0].source == usual.tables[0].source
    for name, column in usual.tables[0].columns.items():
        assert_array_equal(own.tables[0].columns[name].canonical(), column.canonical())
    assert sorted(one.name for one in tmp_path.iterdir()) == sorted({"bank.csv", path.name})
