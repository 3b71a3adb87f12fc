"""Numbers and levels of categories side by side in the rows of a table, compiled."""

from __future__ import annotations

from typing import Any

import numpy as np

from intarsia.maths.jit import compiled


@compiled
def write_entries(
    values: Any,
    levels: Any,
    some: Any,
    fixed: Any,
    wide: Any,
    place: Any,
    data: Any,
    columns: Any,
) -> Any:
    """Write the entries of some rows one after the other, by column; return where each row ends.

    A row stores its level of a wide category, if it has one, and all of its other values.

    Parameters
    ----------
    values
        (rows, numeric columns)
    levels
        (categories, rows), -1 where there is none: NaN in all columns of one that is not wide.
    some
        The first row, and the one behind the last.
    fixed
        Of each entry that every row has, by column: the column of `values`, or -1 less the category
        (below all of these: a constant 1), the level, and the column that it is written to.
    wide
        The wide categories, and where their features begin in `place`.
    place
        (features,) the column that each feature is written to, -1: none.
    data, columns
        With room for all entries.
    """
    origins, numbers, places = fixed
    categories, starts = wide
    (start, stop), at = some, 0
    ends, own = np.zeros(stop - start + 1, np.int64), np.zeros(len(categories), np.int32)
    for row in range(start, stop):
        many = 0
        for which in range(len(categories)):
            level = levels[categories[which], row]
            where = place[starts[which] + level] if level >= 0 else -1
            if where >= 0:
                slot = many
                while slot > 0 and own[slot - 1] > where:
                    own[slot] = own[slot - 1]
                    slot -= 1
                own[slot] = where
                many += 1
        turn = 0
        for entry in range(len(places)):
            while turn < many and own[turn] < places[entry]:
                data[at], columns[at] = 1.0, own[turn]
                at, turn = at + 1, turn + 1
            origin = origins[entry]
            if origin >= 0:
                data[at] = values[row, origin]
            elif origin < -len(levels):
                data[at] = 1.0
            else:
                level = levels[-1 - origin, row]
                data[at] = np.nan if level < 0 else 1.0 * (level == numbers[entry])
            columns[at] = places[entry]
            at += 1
        while turn < many:
            data[at], columns[at] = 1.0, own[turn]
            at, turn = at + 1, turn + 1
        ends[row - start + 1] = at
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
