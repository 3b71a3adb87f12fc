"""Tell codes from amounts: columns listed as categories, and how rows spread over numbers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from intarsia.data.source import LEAST_ROWS
from intarsia.inspection.proposals.column_names import is_amount
from intarsia.inspection.proposals.table_proposal import Column, TableProposal
from intarsia.inspection.tails import LEAST_COUNTS

MOST_CODES = 12  # whole numbers of so many different values may be codes
MOST_LEVELS = 50  # of a column that is text at one client and numbers at another
_CODES = "few different whole numbers, or text elsewhere: taken for codes, not for amounts"
_OF_MANY = "many different values; most rows have one that other rows have too"
_LEAST = 'values of fewer rows count as "other", and nobody else learns which they are'
_THIN_TAIL = 0.02  # share of the rows that the largest of counts has less than


def as_one_kind(tables: Sequence[TableProposal]) -> list[TableProposal]:
    """Return the tables with the columns listed as categories that are codes or text somewhere."""
    held: dict[str, list[Column]] = {}
    for one in tables:
        for own in one.features:
            held.setdefault(one.feature(own), []).append(own)
    categories: dict[str, str] = {}
    unlike: dict[str, str] = {}
    coded = {one.renamed.get(name, name) for one in tables for name in one.source.categorical}
    # categories of many levels are in tables that have least_rows
    of_many = {
        one.renamed.get(name, name)
        for one in tables
        if one.source.least_rows is not None
        for name in one.source.categorical
    }
    amounts = {
        one.renamed.get(name, name)
        for one in tables
        for name in (*one.answers, *one.source.units, *one.source.limits)
    }
    for name, some in held.items():
        mixed = len({own.figures is None and not own.truths for own in some}) > 1
        if not (mixed or name in coded or all(own.whole for own in some)):
            continue
        levels = {text for own in some for text in own.written}
        if name in coded and len(levels) > MOST_LEVELS:
            of_many.add(name)
        if mixed and name not in of_many and len(levels) > MOST_LEVELS:
            unlike[name] = f"numbers here and text elsewhere, {len(levels):,} different ones"
        elif mixed or name in coded or (name not in amounts and _codes(name, some, levels)):
            categories[name] = ""
    found = []
    for one in tables:
        for own in one.features:
            if one.feature(own) in unlike:
                one = one.without(own.name, unlike[one.feature(own)])
        own_codes = tuple(own.name for own in one.features if one.feature(own) in categories)
        one = one.with_keys({"categorical": _CODES}, categorical=own_codes) if own_codes else one
        if {one.renamed.get(name, name) for name in own_codes} & of_many:
            many = {"categorical": _OF_MANY, "least_rows": _LEAST}
            one = one.with_keys(many, least_rows=LEAST_ROWS)
        found.append(one)
    return found


def _codes(name: str, some: Sequence[Column], levels: set[str]) -> bool:
    """Return whether a column's whole numbers are few enough to be codes, and no amounts."""
    rows = sum(own.rows for own in some)
    few = 3 <= len(levels) <= MOST_CODES and rows >= 5 * len(levels)
    if not few or not all(own.whole for own in some) or is_amount(name):
        return False
    return not counted(some)


def counted(some: Sequence[Column]) -> bool:
    """Return whether whole numbers are spread as counts of events are.

    They begin at 0, and the rows of five values or more rise to one peak and fall to a thin tail.
    Codes whose numbers say nothing of an order do so rarely. What may stand for a missing value is
    left aside.
    """
    rows = rows_of_numbers(some)
    values = sorted(rows)
    if len(values) < LEAST_COUNTS or values[0] != 0:
        return False
    peaked = has_one_peak([rows[one] for one in values])
    return peaked and rows[values[-1]] < _THIN_TAIL * rows.total()


def rows_of_numbers(some: Sequence[Column]) -> Counter[float]:
    """Return how many rows of columns have each number, but for what may stand for none."""
    rows: Counter[float] = Counter()
    for own in some:
        counts = np.bincount(own.codes[own.codes >= 0], minlength=len(own.texts))
        for figure, count in zip(own.figures or (), counts, strict=True):
            if figure not in own.stand_ins:
                rows[figure] += int(count)
    return rows


def has_one_peak(rows: Sequence[int], deviations: float = 1.0) -> bool:
    """Return whether rows of ascending values rise to one peak and fall, but for chance.

    Chance is what so many standard deviations of the difference of two counts may be.
    """
    height = [one for one in rows if one >= 5]  # of fewer, the order is chance
    if not height:
        return False
    peak = height.index(max(height))
    up, down = height[: peak + 1], height[peak:]
    steps = [*pairwise(up), *((two, one) for one, two in pairwise(down))]
    return all(low - high <= deviations * math.sqrt(low + high) for low, high in steps)
