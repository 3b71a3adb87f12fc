"""Numbers and levels of categories side by side in the rows of a table, compiled."""

from __future__ import annotations

from typing import Any

import numpy as np

from intarsia.maths.jit import compiled


@compiled
def write_entries(
    values: Any, levels: Any, source: Any, stops: Any, wide: Any, data: Any, columns: Any
) -> Any:
    """Write the entries of all rows one after the other; return where each row ends and begins.

    A row stores its level of a wide category, if it has one, and all of its other values.

    Parameters
    ----------
    values
        (rows, numeric columns)
    levels
        (categories, rows), -1 where there is none: NaN in all columns of one that is not wide.
    source
        (columns,) the column of `values`, or -1 less the category.
    stops
        (columns,) where the features of each end.
    wide
        (columns,) whether a row stores its own level alone.
    data, columns
        With room for all entries.
    """
    ends, at = np.zeros(len(values) + 1, np.int32), 0
    for row in range(len(values)):
        start = 0
        for place in range(len(source)):
            stop, origin = stops[place], source[place]
            if origin >= 0:
                data[at], columns[at] = values[row, origin], start
                at += 1
            elif wide[place]:
                level = levels[-1 - origin, row]
                if level >= 0:
                    data[at], columns[at] = 1.0, start + level
                    at += 1
            else:
                level = levels[-1 - origin, row]
                for feature in range(start, stop):
                    data[at] = np.nan if level < 0 else 1.0 * (feature - start == level)
                    columns[at] = feature
                    at += 1
            start = stop
        ends[row + 1] = at
    return ends


@compiled
def write_rows(values: Any, levels: Any, source: Any, stops: Any, wide: Any, rows: Any) -> None:
    """Write the same into dense rows of zeros, (rows, features)."""
    for row in range(len(values)):
        start = 0
        for place in range(len(source)):
            stop, origin = stops[place], source[place]
            if origin >= 0:
                rows[row, start] = values[row, origin]
            else:
                level = levels[-1 - origin, row]
                if level >= 0:
                    rows[row, start + level] = 1.0
                elif not wide[place]:
                    rows[row, start:stop] = np.nan
            start = stop
