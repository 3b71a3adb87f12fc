"""Columns with a few values far from the rest, which a linear model follows badly as they are.

A number that several rows have and that is far from all others, such as 999 among ages, may stand
for a missing value. It is told apart from amounts, of which the logarithm may be better.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from intarsia.core.block import Array, Block, ClientId, Labels
from intarsia.data.source import LEAST_ROWS
from intarsia.errors import listed

_FAR: Final = 8.0  # a normal column has 1.7, an exponential one 3.6, one whose logarithm is normal
# with a deviation of 1, such as many amounts, 6.4
LABELS_FAR: Final = 5.0  # of labels, whose largest values squares follow most
_LEAST_ROWS: Final = 50
LEAST_COUNTS: Final = 5  # different whole numbers that may be seen to be counts of events
_LEAST_AMOUNTS: Final = 10  # different ones, beside numbers that may stand for a missing value
_MOST_CODES: Final = 3  # such numbers at one end, as 997, 998 and 999
_MOST_ROWS: Final = 20_000  # that are looked at
_MOST_COLUMNS: Final = 500  # of a table of measurements; pixels and words are not looked at


Tail = Literal["", "above", "away"]


def amounts_of(values: Array) -> tuple[Array, tuple[int, ...]]:
    """Return the amounts in a column, (rows,), and what may stand for a missing value.

    That are whole numbers at one end, each in several rows, that are farther from the amounts than
    these are wide; or that alone are below 0. The amounts have ten values, or are counts with five.
    """
    known = values[np.isfinite(values)]
    codes = stand_ins_among(*np.unique(known, return_counts=True))
    return amounts_among(known, codes), codes


def amounts_among(values: Array, stand_ins: Sequence[int]) -> Array:
    """Return the numbers of a column, (rows,), that do not stand for a missing value."""
    known = values[np.isfinite(values)]
    return known[~np.isin(known, stand_ins)] if stand_ins else known


def stand_ins_among(amounts: Array, counts: NDArray[np.intp]) -> tuple[int, ...]:
    """Return what `amounts_of` says may stand for a missing value.

    Of different numbers, ascending, and how many rows have each: (numbers,) both.
    """
    often = (counts >= LEAST_ROWS) & (amounts == np.round(amounts)) & (amounts != 0)
    codes: list[int] = []
    if not often.any():
        return ()
    for sign in (1, -1, 1):  # from below, from above, and without what is there once more
        own, repeated = (sign * amounts)[::sign], often[::sign]
        for many in range(1, min(_MOST_CODES, len(own) - LEAST_COUNTS) + 1):
            if len(own) - many < _LEAST_AMOUNTS and not _are_counts(own[many:] * sign):
                continue
            gap, width = own[many] - own[many - 1], own[-1] - own[many]
            below = sign > 0 and own[many - 1] < 0 <= own[many]
            if repeated[:many].all() and (gap > width or below):
                codes += [int(sign * one) for one in own[:many]]
                kept = ~np.isin(amounts, codes)
                amounts, often = amounts[kept], often[kept]
                break
    return tuple(sorted(codes))


def _are_counts(values: Array) -> bool:
    """Return whether different numbers are whole, from 0 or 1 on."""
    return bool(values.min() in (0, 1) and (values == np.round(values)).all())


def tail_of(known: Array, far_from: float = _FAR) -> Tail:
    """Return where amounts, (rows,), have a few values far from the rest.

    The way from the median to the 99th hundredth, or to the first, is then more than eight times
    (`far_from`) that between the quartiles: "above" where no value is below 0, so that
    log(1 + value) exists, else "away".
    """
    if len(known) < _LEAST_ROWS:
        return ""
    near, low, middle, high, far = np.quantile(known, (0.01, 0.25, 0.5, 0.75, 0.99))
    if not (high > low and max(far - middle, middle - near) > far_from * (high - low)):
        return ""
    if known.min() < 0:
        return "away"
    return "above" if far - middle > far_from * (high - low) else ""


def notes_on_tails(blocks: Mapping[ClientId, Block]) -> tuple[str, ...]:
    """Return notes that name the columns of clients' tables with values far from the rest."""
    found = {
        name: tail
        for _, name, values, _ in _columns(blocks, _LEAST_ROWS)
        if (tail := tail_of(amounts_of(values)[0]))
    }
    above, away = ([name for name in found if found[name] == one] for one in ("above", "away"))
    notes = []
    if above:
        notes.append(
            f"{listed(above, 5)} {_have(above)} a few values far above the rest. A linear model "
            "may follow the logarithm better: write log(1 + value) into the table, and compare the "
            "test scores."
        )
    if away:
        notes.append(
            f"{listed(away, 5)} {_have(away)} a few values far from the rest, some of them "
            "negative. A linear model may follow them better if the table has them cut at a least "
            "and a most value, or sign(value) · log(1 + |value|) instead; compare the test scores."
        )
    return tuple(notes)


def notes_on_label(blocks: Mapping[ClientId, Block], labels: Labels) -> tuple[str, ...]:
    """Return a note where numbers to predict have a few values far from the rest."""
    held = [one.y for one in blocks.values() if one.y is not None]
    if labels.task != "regression" or not held:
        return ()
    values = np.concatenate(held).astype(np.float64)
    known = amounts_of(values)[0]
    zero = float((known == 0).mean()) if len(known) >= _LEAST_ROWS and known.min() >= 0 else 0.0
    if zero > 0.5 and (known > 0).any():
        return (
            f"{100 * zero:.0f} % of the labels {labels.name!r} are 0, and none is below it: "
            'compare loss = "poisson", which predicts nothing below 0, or predict which are 0.',
        )
    tail = tail_of(known, LABELS_FAR)
    if not tail:
        return ()
    low, high = np.quantile(known, (0.25, 0.75))
    advice = advice_on_label(tail, f"{float(f'{high - low:.1g}'):g}", positive=known.min() > 0)
    return (f"The label {labels.name!r} has a few values far {advice}",)


def advice_on_label(tail: Tail, delta: str, *, positive: bool) -> str:
    """Return what to compare for labels that have a tail; `positive`: all are above 0."""
    huber = f'loss = "huber" with huber_delta = {delta}'
    if tail == "away":
        return f"from the rest, which squares follow most: compare {huber}."
    log = "gamma" if positive else "poisson"
    return (
        f'above the rest, which squares follow most: compare loss = "{log}", {huber}, or the '
        f"logarithm of {'' if positive else '1 + '}the label in the table."
    )


def notes_on_stand_ins(
    blocks: Mapping[ClientId, Block], marks: Mapping[ClientId, Sequence[str]], rows: str = "rows"
) -> tuple[str, ...]:
    """Return a note that names the numbers which may stand for a missing value, and their rows.

    `marks` are what stands for one now, by client.
    """
    found: list[str] = []
    codes: dict[ClientId, dict[int, None]] = {}
    for client, name, values, at in _columns(blocks, LEAST_ROWS + LEAST_COUNTS, _repeats):
        for code in amounts_of(values)[1]:
            many = np.count_nonzero(blocks[client].dense(np.array([at])) == code)
            found.append(f"{code} in {name!r} of {client} ({many:,} {rows})")
            codes.setdefault(client, {})[code] = None
    if not found:
        return ()
    more = f" and {len(found) - 5} more" if len(found) > 5 else ""
    client, own = next(iter(codes.items()))
    known = [one for one in marks.get(client, ("?",)) if one]
    texts = ", ".join(f'"{one}"' for one in (*known, *own))
    return (
        f"{', '.join(found[:5])}{more} may stand for a missing value, far from all others as it "
        f"is. If so, add it to the client's missing, as in missing = [{texts}] of {client}.",
    )


def notes_on_units(blocks: Mapping[ClientId, Block], labels: Labels) -> tuple[str, ...]:
    """Return a note on numbers that seem to be in another unit at one client than at others.

    Their medians differ by a factor of eight and their ranges do not meet; or of 1.5, and the way
    between the ranges is more than each is wide, as with degrees of two scales.
    """
    spans: dict[str, dict[ClientId, Array]] = {}
    columns = [
        (client, name, values) for client, name, values, _ in _columns(blocks, _LEAST_OF_UNIT)
    ]
    if labels.task == "regression":
        held = {name: one.y for name, one in blocks.items() if one.y is not None}
        columns += [(name, f"label {labels.name}", own) for name, own in held.items()]
    holders = Counter(name for _, name, _ in columns)
    for client, name, values in columns:
        if holders[name] < 2:
            continue
        known = values[:_ROWS_OF_UNIT]
        known = known[np.isfinite(known)]
        if len(known) >= _LEAST_OF_UNIT and len(np.unique(known)) >= _LEAST_AMOUNTS:
            spans.setdefault(name, {})[client] = np.quantile(known, (0.02, 0.5, 0.98))
    found: list[str] = []
    for name, own in spans.items():
        small, large = (end(own, key=lambda one: abs(own[one][1])) for end in (min, max))
        times = _times_as_large(own[small], own[large])
        if times:
            about = float(f"{times:.2g}")
            found.append(f"{name!r} is about {about:g} times as large at {large} as at {small}")
    if not found:
        return ()
    more = f"; and {len(found) - 5} more" if len(found) > 5 else ""
    return (
        f"{'; '.join(found[:5])}{more}, as in another unit. If so, multiply it in one of the "
        "tables, or by factors in the dictionary of [alignment]; all learn it as one quantity.",
    )


def _times_as_large(small: Array, large: Array) -> float:
    """Return by what two columns' medians differ, if it seems to be a unit; 0: it does not."""
    if small[1] * large[1] <= 0:
        return 0.0
    times = float(large[1] / small[1])
    # of the same sign: their sizes are what is compared, from 0 on where a range has both signs
    (near, far), (low, high) = (
        (0.0, sizes.max()) if one[0] * one[2] < 0 else (sizes.min(), sizes.max())
        for one in (small, large)
        for sizes in (np.abs(one[[0, 2]]),)
    )
    gap = low - far
    wide = max(far - near, high - low)
    apart = gap > 0 and (times >= _FACTOR or (times >= _OTHER_SCALE and gap > wide))
    return times if apart else 0.0


_LEAST_OF_UNIT: Final = 20  # rows of a client by which a column's unit is looked at, at least
_ROWS_OF_UNIT: Final = 2_000  # and at most
_FACTOR, _OTHER_SCALE = 8.0, 1.5


def _repeats(rows: Array) -> NDArray[np.bool_]:
    """Return in which columns several rows have the same whole number, (columns,)."""
    own = np.sort(rows, axis=0)
    last, first = own[LEAST_ROWS - 1 :], own[: 1 - LEAST_ROWS]
    same = (last == first) & (last == np.round(last)) & (last != 0)
    return np.asarray(same.any(axis=0))


def _columns(
    blocks: Mapping[ClientId, Block],
    least: int,
    looked_at: Callable[[Array], NDArray[np.bool_]] | None = None,
) -> Iterator[tuple[ClientId, str, Array, int]]:
    """Yield columns of clients' tables of measurements: client, feature, first rows, and place.

    Tables of fewer than `least` rows are left out, and columns that `looked_at` says no to. So are
    the levels of categories that have many, beside which a table's numbers are sparse too.
    """
    for client, block in blocks.items():
        if len(block.samples) < least:
            continue
        places = block.written_out
        if not 0 < len(places) <= _MOST_COLUMNS:
            continue
        rows = block.dense(places, _MOST_ROWS)
        every = range(len(places))
        for own in every if looked_at is None else np.flatnonzero(looked_at(rows)).tolist():
            at = int(places[own])
            yield client, block.features[at], rows[:, own], at


def _have(names: Sequence[str]) -> str:
    return "has" if len(names) == 1 else "have"
