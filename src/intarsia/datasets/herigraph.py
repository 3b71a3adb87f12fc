"""HeriGraph: photographs of heritage sites as four blocks of features (Bai et al., 2022).

The folder is one city's of the authors' `dataset`, with three tables of tab-separated values:
`Visual_Features.csv` (`ID`, `Vis_Feat_…`, `SCE_…`, `ATT_…`), `Textual_Features.csv` (`index`,
`BERT_…`, empty where a photograph has no text) and `Attribute_Labels.csv` (`ID`, `category`,
`labelled`). Samples are those that the authors count as labelled; the classes are nine categories
of what a photograph shows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.csv
from numpy.typing import NDArray

from intarsia.data.dataset import Dataset
from intarsia.datasets.files import file_in
from intarsia.errors import ExperimentError, first_line, listed

# feature block: table, its column of ids, how the names of the block's columns begin
_BLOCKS = {
    "text": ("Textual_Features.csv", "index", "BERT_"),
    "visual": ("Visual_Features.csv", "ID", "Vis_Feat_"),
    "scenes": ("Visual_Features.csv", "ID", "SCE_"),
    "attributes": ("Visual_Features.csv", "ID", "ATT_"),
}
_LABELS = "Attribute_Labels.csv"


def herigraph(home: Path) -> Dataset:
    """Read HeriGraph, with NaN where a photograph has no text."""
    labels = _table(home, _LABELS, "ID")
    for column in ("category", "labelled"):
        if column not in labels.column_names:
            raise ExperimentError(f"{home / _LABELS} has no column {column!r}; put its own there.")
    known = np.array([str(one) in ("True", "true") for one in labels["labelled"].to_pylist()])
    known &= np.array([one is not None for one in labels["category"].to_pylist()])
    samples = np.array([str(one) for one in labels["ID"].to_pylist()])[known]
    y = np.array([str(one) for one in labels["category"].to_pylist()])[known]
    parts: list[NDArray[np.float32]] = []
    groups: dict[str, tuple[str, ...]] = {}
    read: dict[str, Any] = {}
    for name, (file, key, prefix) in _BLOCKS.items():
        if file not in read:
            read[file] = _table(home, file, key)
        columns = [one for one in read[file].column_names if one.startswith(prefix)]
        if not columns:
            raise ExperimentError(
                f"{home / file} has no column {prefix}… (but {listed(read[file].column_names)}); "
                "put the set's own file there."
            )
        groups[name] = tuple(columns)
        parts.append(_rows(read[file], home / file, key, columns, samples))
    return Dataset(
        "herigraph",
        samples,
        tuple(feature for names in groups.values() for feature in names),
        np.concatenate(parts, axis=1),
        y,
        groups=groups,
    )


def _table(home: Path, name: str, key: str) -> pyarrow.Table:
    path = file_in(home, name)
    try:
        table = pyarrow.csv.read_csv(
            path,
            # a photograph's text may have line breaks
            parse_options=pyarrow.csv.ParseOptions(delimiter="\t", newlines_in_values=True),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types={key: pyarrow.string()}, strings_can_be_null=True
            ),
        )
    except pyarrow.ArrowException as error:
        raise ExperimentError(
            f"{path} is no table of tab-separated values ({first_line(error)}); put the set's own "
            "file there."
        ) from error
    if key not in table.column_names:
        raise ExperimentError(
            f"{path} has no column {key!r} (it has {listed(table.column_names)}); put the set's "
            "own file there."
        )
    return table


def _rows(
    table: pyarrow.Table, path: Path, key: str, columns: list[str], samples: NDArray[np.str_]
) -> NDArray[np.float32]:
    """Return the values of samples, (samples, columns), NaN where they have none."""
    names = [str(one) for one in table[key].to_pylist()]
    place = {one: at for at, one in enumerate(names)}
    if len(place) < len(names):
        twice = next(one for at, one in enumerate(names) if place[one] != at)
        raise ExperimentError(
            f"{path} has the photograph {twice!r} more than once; leave one of its rows."
        )
    rows = np.array([place.get(one, -1) for one in samples.tolist()], np.intp)
    values = np.column_stack([_numbers(table, path, name) for name in columns])
    found = np.full((len(samples), len(columns)), np.nan, np.float32)
    found[rows >= 0] = values[rows[rows >= 0]]
    return found


def _numbers(table: pyarrow.Table, path: Path, name: str) -> NDArray[np.float32]:
    """Return a column's numbers, NaN where it has none."""
    try:
        found: NDArray[np.float32] = table[name].cast(pyarrow.float32()).to_numpy()
    except pyarrow.ArrowException as error:
        raise ExperimentError(
            f"The column {name!r} of {path} has something else than numbers "
            f"({first_line(error)}); correct it, or put the set's own file there."
        ) from error
    return found
