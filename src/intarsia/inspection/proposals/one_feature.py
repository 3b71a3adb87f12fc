"""Find columns of different tables that are one feature, under other names or in other words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from intarsia.data.labels import are_no_and_yes, spelled_apart
from intarsia.inspection.proposals.table_proposal import (
    LEAST_SHARED,
    MOST_ROWS,
    Column,
    Matched,
    TableProposal,
    different,
    in_words,
    other_words,
)
from intarsia.privacy.entity_matching.normalisation import look

_NEAR = 0.5  # of the way from a column's first tenth to its last
_MOST_SHARED = 200  # rows by which all columns of two tables are compared
_SAME = 0.95  # of the rows that two columns share


def named_alike(
    tables: Sequence[TableProposal], matched: Matched, notes: list[str]
) -> list[TableProposal]:
    """Give one name to columns whose names look alike and are not: `Age` here, `age` there.

    It is the one that the most tables have. Where rows that are shared have other values they are
    two columns, of which one is learned from. A table that has both tells them apart on purpose.
    """
    holders: dict[str, dict[str, list[str]]] = {}  # by what a name looks like: name -> tables
    for one in tables:
        for own in one.features:
            holders.setdefault(look(own.name), {}).setdefault(own.name, []).append(one.source.name)
    by_name = {one.source.name: one for one in tables}
    several: list[str] = []  # what nobody can tell, in words
    same: dict[str, str] = {}  # what is written otherwise
    other: dict[str, str] = {}
    for some in holders.values():
        held = [name for names in some.values() for name in names]
        kept = max(some, key=lambda name: len(some[name]))
        if len(some) == 1:
            continue
        if len(set(held)) < len(held):  # a table tells them apart
            by_table = [{name for name in some if of in some[name]} for of in dict.fromkeys(held)]
            if any(one.isdisjoint(two) for one, two in combinations(by_table, 2)):
                several.append(" and ".join(f"{name!r} at {in_words(some[name])}" for name in some))
            continue
        for name, client in ((name, of) for name, its in some.items() for of in its):
            if name == kept:
                continue
            one, said = by_name[client], f"{name!r} of {client} for {kept!r}"
            if any(_says_other(one, name, by_name[of], kept, matched) for of in some[kept]):
                other[said] = ""
                why = f"looks like {kept!r} elsewhere, with other values in shared rows"
                by_name[client] = one.without(name, why)
            else:
                same[said] = ""
                by_name[client] = replace(one, renamed={**one.renamed, name: kept})
    if same:
        notes.append(
            "names that differ in case, blanks or alphabet alone are taken for one column, by the "
            f"dictionary of [alignment]: {in_words([*same])}; where two are different, rename one "
            "in its table."
        )
    if other:
        notes.append(
            f"names look alike and shared rows have other values, so that one is left out: "
            f"{in_words([*other])}; rename what is a column of its own in its table."
        )
    if several:
        notes.append(
            "names look alike, and one table has several of them, so that each is a column of its "
            f"own: {'; '.join(several)}; give columns that are one the same name, or say so in a "
            "dictionary of [alignment]."
        )
    return [*by_name.values()]


def _says_other(
    one: TableProposal, name: str, other: TableProposal, kept: str, matched: Matched
) -> bool:
    """Return whether most rows that two tables share have other values in a column of each."""
    first, second = matched.rows(one.source.name, other.source.name)
    some = slice(None, None, 1 + len(first) // MOST_ROWS)
    a = one.columns[name].canonical(first[some])
    b = other.columns[kept].canonical(second[some])
    known = (a != "") & (b != "")
    same = np.char.lower(a) == np.char.lower(b)
    return int(known.sum()) >= LEAST_SHARED and bool(same[known].mean() < 0.5)


def in_other_words(
    tables: Sequence[TableProposal], matched: Matched, known: Sequence[str]
) -> list[str]:
    """Return a note of features that have the same values in other words in rows that are shared.

    Those of a label are mapped (`label_map`), and those that differ in case alone, or are `known`
    as no and yes, by a dictionary.
    """
    found: dict[str, list[str]] = {}
    for one, other in combinations(tables, 2):
        first, second = matched.rows(one.source.name, other.source.name)
        theirs = {other.feature(own): own for own in other.features if own.figures is None}
        for own in one.features if len(first) >= LEAST_SHARED else ():
            name = one.feature(own)
            if own.figures is not None or name not in theirs or name in known:
                continue
            words = other_words(own.canonical(first), theirs[name].canonical(second))
            if any(text.casefold() != to.casefold() for text, to in words.items()):
                found.setdefault(name, []).extend((one.source.name, other.source.name))
    if not found:
        return []
    told = [f"{name!r} of {in_words([*dict.fromkeys(some)])}" for name, some in found.items()]
    return [
        "rows of one id have the same values in other words, which count as different: "
        f"{'; '.join(told)}; write them alike in these tables."
    ]


def in_other_languages(tables: Sequence[TableProposal], notes: list[str]) -> tuple[str, ...]:
    """Return the features of text with no and yes in other words, as "ja" here and "1" there."""
    held: dict[str, dict[str, Column]] = {}
    for one in tables:
        for own in one.features:
            held.setdefault(one.feature(own), {})[one.source.name] = own
    found = []
    for name, some in held.items():
        if all(own.figures is not None or own.truths for own in some.values()):
            continue
        # of many values, three are enough to tell
        levels = {client: different(own.written, 3) for client, own in some.items()}
        if all(map(are_no_and_yes, levels.values())) and any(spelled_apart(levels)):
            found.append(name)
    if found:
        notes.append(
            f"{in_words([*map(repr, found)])} {'has' if len(found) == 1 else 'have'} no and yes in "
            "other words, which are taken for the same: no_and_yes in the dictionary of "
            "[alignment]; take it out there if they mean something else."
        )
    return tuple(found)


def alike_but_for_case(
    tables: Sequence[TableProposal], apart: Sequence[str], notes: list[str]
) -> tuple[str, ...]:
    """Return the features of text with values that differ in case alone, as "m" and "M" do."""
    levels: dict[str, set[str]] = {}
    for one in tables:
        for own in one.features:
            if own.figures is None or own.name in one.source.categorical:
                levels.setdefault(one.feature(own), set()).update(own.written)
    found = tuple(
        name
        for name, some in levels.items()
        if name not in apart and len({one.casefold() for one in some}) < len(some)
    )
    if found:
        notes.append(
            f"values of {in_words([*map(repr, found)])} differ in case alone, and are taken for "
            "one: ignore_case in the dictionary of [alignment]; take it out there where case tells "
            "them apart."
        )
    return found


def under_other_names(tables: Sequence[TableProposal], matched: Matched) -> list[str]:
    """Return a note of columns that may be one under two names, of tables that share no row.

    One table alone has the one, and all others the other one, with numbers that lie alike.
    """
    if len(tables) < 2 or any(
        len(matched.rows(one.source.name, other.source.name)[0])
        for one, other in combinations(tables, 2)
    ):
        return []
    spans = {
        one.source.name: {one.feature(own): own.span for own in one.features} for one in tables
    }
    found: list[str] = []
    for client, own in spans.items():
        others = [theirs for name, theirs in spans.items() if name != client]
        alone = [name for name in own if not any(name in theirs for theirs in others)]
        lacking = [name for name in others[0] if name not in own]
        lacking = [name for name in lacking if all(name in theirs for theirs in others)]
        for name in alone if len(tables) > 2 or len(own) > len(alone) else ():
            near = [one for one in lacking if _alike(own[name], [its[one] for its in others])]
            if len(near) == 1:
                found.append(f"{name!r} of {client}, elsewhere {near[0]!r}")
    if not found:
        return []
    return [
        "columns have numbers alike under two names, and no table has both: "
        f"{'; '.join(found[:6])}. Where two are one, give them one name in the tables, or by the "
        "dictionary of [alignment]; as it is, each is learned for itself."
    ]


def same_in_shared_rows(tables: Sequence[TableProposal], matched: Matched) -> list[str]:
    """Return a note of columns that say the same under two names, in the rows two tables share."""
    found: list[str] = []
    for one, other in combinations(tables, 2):
        places = matched.rows(one.source.name, other.source.name)
        if len(places[0]) < LEAST_SHARED:
            continue
        known = [{table.feature(own) for own in table.columns.values()} for table in (one, other)]
        mine, theirs = (
            [
                (own.name, own.canonical(rows[:_MOST_SHARED]))
                for own in table.features
                if len(own.texts) > 2 and table.feature(own) not in there
            ]
            for table, there, rows in zip((one, other), reversed(known), places, strict=True)
        )
        if not mine or not theirs:
            continue
        every = np.stack([values for _, values in (*mine, *theirs)])
        codes = np.unique(every, return_inverse=True)[1].reshape(every.shape)
        codes[every == ""] = -1
        for (name, _), own in zip(mine, codes, strict=False):
            rest = codes[len(mine) :]
            levels, counts = np.unique(own[own >= 0], return_counts=True)
            if len(levels) <= 2:
                continue
            # rare events have in common that most rows have none of either
            usual = (own == rest) & (own == levels[counts.argmax()])
            there = (own >= 0) & (rest >= 0) & ~usual
            same = ((own == rest) & there).sum(axis=1)
            often = (there.sum(axis=1) >= LEAST_SHARED) & (same >= _SAME * there.sum(axis=1))
            found += [
                f"{name!r} of {one.source.name} and {theirs[at][0]!r} of {other.source.name}"
                for at in np.flatnonzero(often)
            ]
    if not found:
        return []
    more = f" and {len(found) - 6} more" if len(found) > 6 else ""
    return [
        f"columns say the same under two names in rows that tables share: {'; '.join(found[:6])}"
        f"{more}. Give them one name in the tables, or by the dictionary of [alignment]; as it is, "
        "each is learned for itself, and rows that only one table has count one of them alone."
    ]


def _alike(own: NDArray[np.float64] | None, others: Sequence[NDArray[np.float64] | None]) -> bool:
    """Return whether tenths, middle and nine tenths of columns' numbers are near each other's."""
    if own is None or own[2] == own[0]:
        return False
    return all(
        one is not None and np.abs(one - own).max() < _NEAR * (own[2] - own[0]) for one in others
    )
