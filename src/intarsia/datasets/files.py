"""Find the files of named data sets, and read tables of numbers among them."""

from __future__ import annotations

import gzip
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.csv
from numpy.typing import NDArray

from intarsia.errors import ExperimentError


def home_of(name: str, folder: str | Path | None, path: str | Path | None) -> Path:
    """Return the folder of a set's files: the path, or without one that of its name in `folder`."""
    if path is not None:
        if not Path(str(path)).is_dir():
            raise ExperimentError(
                f"The data set {name!r} has path = {str(path)!r}, which is no folder; name the "
                "folder that holds the set's files."
            )
        return Path(str(path))
    beside = Path(__file__).resolve().parents[4] / "shared" / "data"
    home = Path((os.environ.get("INTARSIA_DATA") or beside) if folder is None else folder) / name
    if not home.is_dir():
        raise ExperimentError(
            f"The data set {name!r} is not at {home}, which is no folder; set INTARSIA_DATA to the "
            f"folder that holds {home.name}/ (nothing is downloaded)."
        )
    return home


def file_in(home: Path, name: str) -> Path:
    """Return the path of one of a set's files."""
    path = home / name
    if not path.is_file():
        raise ExperimentError(
            f"The file {name} is missing in {home}; put the set's own file there or set "
            "INTARSIA_DATA to a folder that has it (nothing is downloaded)."
        )
    return path


def number_columns(path: Path, missing: tuple[str, ...] = ()) -> dict[str, NDArray[np.float64]]:
    """Read a table of numbers: column name to float64 values, NaN where missing."""
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
        names = [name.strip('"') for name in next(lines).rstrip("\n").split(",")]
    # as float64 from the start: a few whole numbers are written as 1e+05
    options = pyarrow.csv.ConvertOptions(
        column_types=dict.fromkeys(names, pyarrow.float64()), null_values=["", *missing]
    )
    table = pyarrow.csv.read_csv(path, convert_options=options)
    return {name: table[name].to_numpy() for name in names}


def whole_numbers(
    columns: Mapping[str, NDArray[np.float64]], kind: type[np.integer[Any]]
) -> NDArray[Any]:
    """Stack columns of whole numbers in a compact type."""
    x = np.empty((len(next(iter(columns.values()))), len(columns)), kind)
    for place, values in enumerate(columns.values()):
        x[:, place] = values
    return x
