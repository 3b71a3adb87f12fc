"""Choose the columns that tell rows apart, by which rows of several tables are one sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.core.block import Block, ClientId
from intarsia.data.column_types import ids_of
from intarsia.data.formats.parquet import ParquetColumns, row_numbers
from intarsia.data.parsing import date_orders, day, number
from intarsia.data.reader import ending_of
from intarsia.data.texts import Texts
from intarsia.errors import TableError, listed, several
from intarsia.experiment.entity_alignment import notes_on_ids
from intarsia.inspection.proposals.column_names import (
    is_amount,
    is_code,
    is_group,
    is_id,
    numbers_rows,
)
from intarsia.inspection.proposals.table_proposal import (
    LEAST_SHARED,
    MOST_ROWS,
    Column,
    Matched,
    TableProposal,
    in_words,
    other_words,
    tried,
)
from intarsia.privacy.entity_matching.normalisation import (
    Rule,
    fewest_rules,
    look,
)

_NEARLY_ALL = 0.9  # of a column's values are different: it was to be an id, and a few repeat
_BY_CHANCE = 0.2  # share of the fewer rows below which numbers may have values in common by chance
_COUNTED = 1.5  # by how much two columns that may number rows are less likely than others
_FEWEST_ROWS = 20  # of which all have different numbers, so that these may be ids
_FEWEST_GROUPS = 10  # different values of a column that may tell persons, or machines


def with_ids(
    tables: Sequence[TableProposal], wanted: Sequence[str]
) -> tuple[list[TableProposal], tuple[Rule, ...], Matched, list[str]]:
    """Return the tables with the columns of their ids, the rules of alignment, and notes.

    And which rows of them have the same id.
    """
    notes: list[str] = []
    if wanted:
        chosen = {
            one.source.name: next(name for name in wanted if name in one.columns)
            for one in tables
            if any(name in one.columns for name in wanted)
        }
    else:
        chosen = _matching(tables, notes)
    tables = [
        one.with_keys({}, id=chosen[one.source.name]) if one.source.name in chosen else one
        for one in tables
    ]
    ids: dict[ClientId, NDArray[Any]] = {}
    for one in tables:
        if one.source.id is not None and one.columns:
            try:
                own = ids_of(one.values(one.source.id), one.rows, one.source)
            except TableError as problem:
                raise problem.retold(where=problem.where, advice=problem.without_settings) from None
            ids[one.source.name] = own
    rules = _rules(tables)
    notes += () if rules else notes_on_ids(ids)
    matched = Matched(tables, rules)
    notes += () if wanted else _notes_on_keys_of_two(tables)
    if not wanted:
        tables = _apart_where_values_differ(tables, matched, notes)
        matched.keep({one.source.name for one in tables if one.source.id is not None})
    whole = {name: own.dtype.kind != "U" for name, own in ids.items()}
    tables = _alike(tables, whole, rules)
    return [_told_ids(one, tables, matched, wanted) for one in tables], rules, matched, notes


def notes_on_ids_as_features(blocks: Mapping[ClientId, Block]) -> tuple[str, ...]:
    """Return a note on features that are named as ids, with another whole number in every row."""
    found: dict[str, list[ClientId]] = {}
    for client, block in blocks.items():
        if len(block.samples) < _FEWEST_ROWS:
            continue
        for at in block.written_out:
            name = block.features[at]
            if numbers_rows(name) or (is_id(name) and not is_amount(name)):
                own = np.sort(block.dense(np.array([at]))[:, 0])
                if (own == np.round(own)).all() and (np.diff(own) > 0).all():
                    found.setdefault(name, []).append(client)
    if not found:
        return ()
    told = "; ".join(f"{name!r} of {listed(own, 4)}" for name, own in [*found.items()][:5])
    several = len(found) > 1
    return (
        f"{told} {'have' if several else 'has'} another whole number in every row, as an id has, "
        f"and {'are' if several else 'is'} learned as a feature. Name it as id where it tells rows "
        "apart: rows of two clients with one id are one sample. Else list it in exclude.",
    )


def _notes_on_keys_of_two(tables: Sequence[TableProposal]) -> list[str]:
    """Return notes on tables without an id whose rows two columns tell apart together."""
    told: list[str] = []
    for one, other in combinations([one for one in tables if one.source.id is None], 2):
        for pair in [pair for pair in one.keys_of_two if pair in other.keys_of_two]:
            first, second = (
                {*zip(*(table.columns[name].canonical().tolist() for name in pair), strict=True)}
                for table in (one, other)
            )
            shared, most = len(first & second), min(one.rows, other.rows)
            if shared >= _BY_CHANCE * most:
                told.append(
                    f"{shared} of {most} rows have the same {pair[0]!r} and {pair[1]!r} at "
                    f"{one.source.name} and {other.source.name}. If these are the same samples, "
                    "write both into one column of each table, such as 101-2, and name it as id."
                )
                break
    return told


def refuse_row_numbers(tables: Sequence[TableProposal], wanted: Sequence[str]) -> None:
    """Raise where the ids of a table were the index of a DataFrame, which its file has not.

    They are those asked for, or a column of another table.
    """
    for one in tables:
        place = Path(one.source.path or "")
        if not one.columns or ending_of(place) not in (".parquet", ".pq"):
            continue
        others = {name for other in tables if other is not one for name in other.columns}
        known = {*wanted} if wanted else {name for name in others if is_id(name)}
        for name in row_numbers(place):
            if name in known and not known & {*one.columns}:
                ParquetColumns(place, replace(one.source, id=name))


def with_groups(
    tables: Sequence[TableProposal], matched: Matched, notes: list[str]
) -> list[TableProposal]:
    """Return the tables with the column whose rows of one value are split together.

    It is named as the id of a person or a machine, and has values that repeat. Where a table that
    shares rows lacks it a note says so, as a run would stop.
    """
    found = {one.source.name: _repeated_groups(one) for one in tables}
    every = dict.fromkeys(name for own in found.values() for name in own)
    if not every:
        return list(tables)
    having = {name: [n for n, own in found.items() if name in own] for name in every}
    column = max(having, key=lambda name: len(having[name]))
    there = {one.source.name for one in tables if column in one.columns}
    lacking = [
        one.source.name
        for one in tables
        if one.source.name not in there
        and any(len(matched.rows(one.source.name, name)[0]) for name in there)
    ]
    gaps = [
        n for n in there if next(t for t in tables if t.source.name == n).columns[column].missing
    ]
    said = (
        f"rows of {in_words(having[column])} with the same {column!r} may be of one person or "
        "machine, which is then among training and test rows, and scores are too good. "
    )
    if lacking or gaps:
        advice = (
            f"{in_words(lacking)} would need it too" if lacking else "some rows have no value of it"
        )
        notes.append(f"{said}split_by = {column!r} would hold them out together, but {advice}.")
        return list(tables)
    why = "its values repeat: rows of one are held out together, and nothing is learned from it"
    return [
        one.with_keys({"split_by": why}, split_by=column) if one.source.name in there else one
        for one in tables
    ]


def _repeated_groups(one: TableProposal) -> list[str]:
    """Return the columns of a table that name a person or a machine, with values that repeat."""
    apart = {one.source.id, one.source.label}
    return [
        name
        for name, own in one.columns.items()
        if name not in apart
        and is_group(name)
        and (own.figures is None or own.whole)
        and 2 * sum(any(map(str.isdigit, text)) for text in own.texts) > len(own.texts)
        and _FEWEST_GROUPS <= len(own.texts) < _NEARLY_ALL * (own.codes >= 0).sum()
    ]


def _matching(tables: Sequence[TableProposal], notes: list[str]) -> dict[str, str]:
    """Return the column by which each table's rows are most likely known to the others."""
    candidates = {
        one.source.name: {
            name: own
            for name, own in one.columns.items()
            if own.distinct
            and (own.figures is None or own.whole)
            and not (own.whole and numbers_rows(name))
        }
        for one in tables
    }
    beside = {one.source.name: one.ids_beside for one in tables if one.ids_beside is not None}
    candidates |= {name: {ids.name: ids} for name, ids in beside.items()}
    found: list[tuple[float, str, str, str, str]] = []
    for a, b in combinations(candidates, 2):
        for first in candidates[a].values():
            for second in candidates[b].values():
                score = _likeness(first, second)
                if score > 0:
                    found.append((score, a, first.name, b, second.name))
    found.sort(key=lambda one: -one[0])
    chosen: dict[str, str] = {}
    for _, a, first_name, b, second_name in found:
        if chosen.get(a, first_name) == first_name and chosen.get(b, second_name) == second_name:
            chosen.update({a: first_name, b: second_name})
    for one in tables:
        if one.source.name in chosen or not one.columns:
            continue
        # without a row in common, ids still keep the rows' own numbers out of the features
        own = candidates[one.source.name]
        known = [name for name in own if name in chosen.values()]
        likely = known or [n for n in own if is_id(n) and not _codes_elsewhere(n, one, tables)]
        if likely:
            chosen[one.source.name] = likely[0]
    for one in tables:
        if one.source.name not in chosen:
            _refuse_repeats(one, tables, chosen, candidates)
    return chosen


def _codes_elsewhere(name: str, one: TableProposal, tables: Sequence[TableProposal]) -> bool:
    """Return whether a name is that of a code whose values repeat in another table.

    Then it says what rows are about, such as a product, and tells the few rows of `one` apart by
    chance.
    """
    if not is_code(name):  # patients have several visits elsewhere
        return False
    others = (other.columns.get(name) for other in tables if other is not one)
    return any(own and len(own.texts) < _NEARLY_ALL * own.rows for own in others)


def _likeness(first: Column, second: Column) -> float:
    """Return how likely two columns tell the same rows apart; 0: not at all."""
    same = first.name.casefold() == second.name.casefold()
    named = same or (is_id(first.name) and is_id(second.name))
    most = min(first.rows, second.rows)
    shared = first.values_there.shared(second.values_there)
    written = any(own.coded or own.figures is None for own in (first, second))  # as a rule changes
    if 2 * shared < most and (named or written):
        shared = _most_shared(first, second)
    share = shared / most
    if same and not written and not is_id(first.name) and share < _BY_CHANCE:
        return 0.0  # amounts, such as incomes, of which some are the same
    if not shared or (not named and (share < _BY_CHANCE or shared < 10)):
        return 0.0
    counted = _count_rows(first, second)
    if (not named and counted) or (2 * shared < most and _times_by_chance(first, second)):
        return 0.0
    score = share + same + (is_id(first.name) and is_id(second.name))
    # a key that each table numbers by itself, or numbers of which few are shared, beside one that
    # others know
    by_chance = counted or (not written and share < _BY_CHANCE)
    return max(score - _COUNTED, 0.01) if by_chance else score


def _count_rows(first: Column, second: Column) -> bool:
    """Return whether two columns may number the rows of each table, the same ones by chance."""
    if not (first.numbered and second.numbered):
        return False
    starts = [min(own.figures or (0.0,)) for own in (first, second)]
    return max(starts) <= 1 or starts[0] == starts[1]


def _times_by_chance(first: Column, second: Column) -> bool:
    """Return whether two columns have dates or times of which some are the same by chance.

    Of the same rows most are the same, where both columns have any.
    """
    if first.figures is not None or second.figures is not None:
        return False
    orders = date_orders(first.texts, second.texts)
    if not orders:
        return False
    a, b = ({day(text, orders[0]) or 0.0 for text in one.texts} for one in (first, second))
    start, end = max(min(a), min(b)), min(max(a), max(b))
    fewer = min(sum(start <= one <= end for one in own) for own in (a, b))
    return 2 * len(a & b) < fewer


def _shared(columns: Sequence[Column], rules: Sequence[Rule]) -> int:
    """Return how many values the pairs of columns have in common after rules."""
    own = [
        Texts.of({*tried(np.array([*one.values_there], np.str_), rules)})
        if rules
        else one.values_there
        for one in columns
    ]
    return sum(one.shared(other) for one, other in combinations(own, 2))


def _most_shared(first: Column, second: Column) -> int:
    """Return how many values two columns have in common by the rules that match most."""
    shared = first.values_there.shared(second.values_there)
    if first.under_all_rules.shared(second.under_all_rules) <= shared:
        return shared  # no rule makes more alike
    return _shared([first, second], _fewest_rules([first, second]))


def _fewest_rules(columns: Sequence[Column]) -> tuple[Rule, ...]:
    """Return the fewest rules by which most values of columns are alike."""
    values = [own.values_there for own in columns]
    return fewest_rules(lambda rules: _shared(columns, rules), values, date_orders)


def _refuse_repeats(
    one: TableProposal,
    tables: Sequence[TableProposal],
    chosen: Mapping[str, str],
    candidates: Mapping[str, Mapping[str, Column]],
) -> None:
    """Raise if a table has the ids of another in rows that repeat."""
    repeating: list[tuple[Column, bool, bool]] = []
    for own in one.columns.values():
        if not own.distinct and own.missing <= 0.5:
            words = own.figures is None and not _mostly_numbers(own)
            telling = words or own.coded or is_id(own.name)
            repeating.append((own, telling, telling and 2 * len(own.texts) >= own.rows))
    for other in tables:
        if other is one or not other.columns:
            continue
        known = chosen.get(other.source.name)
        ids_there = candidates[other.source.name]
        if known is None:  # where ids repeat in both tables, neither has a candidate
            ids_there = {**other.columns, **ids_there}
        in_common = {*map(str.casefold, one.columns)} & {*map(str.casefold, other.columns)}
        for name, ids in ids_there.items():
            if known not in (None, name):
                continue
            for own, telling, mostly in repeating:
                apart = in_common <= {own.name.casefold()}  # else both may list the same codes
                if telling and apart and _repeats_ids(own, ids):
                    raise _repeated(one, own, other.source.name)
                if own.name != name and not mostly:
                    continue  # few values, or plain numbers, may be the same by chance
                if known is None and not (telling and own.name == name):
                    continue  # of another table's columns with a value for each row it may be any
                shared = own.values_there.shared(ids.values_there)
                if (ids.distinct and 2 * shared > len(own.texts)) or (
                    telling and _meant_as_id(own, ids)
                ):
                    raise _repeated(one, own, other.source.name)


def _meant_as_id(own: Column, ids: Column) -> bool:
    """Return whether nearly all values of a column are different, and some are another's ids.

    Of a column with another name, a fifth of them.
    """
    for column in (own, ids):
        few = len(column.texts) < _NEARLY_ALL * column.rows
        if few or not (column.figures is None or column.whole):
            return False
    if _times_by_chance(own, ids):
        return False
    same = own.name.casefold() == ids.name.casefold()
    shared = _most_shared(own, ids)
    return shared > 0 if same else shared >= max(10, 0.2 * len(own.texts))


def _repeats_ids(own: Column, ids: Column) -> bool:
    """Return whether most of some words with figures, such as MX-01, are in a column of such ids.

    There nearly every row has a value of its own.
    """
    few = min(len(own.texts), len(ids.texts))
    if few < _FEWEST_ROWS or len(ids.texts) < _NEARLY_ALL * ids.rows:
        return False
    coded = all(
        column.figures is None
        and column.texts.all_like(r"\p{Nd}")
        and not date_orders(column.texts)
        for column in (own, ids)
    )
    return coded and 2 * _most_shared(own, ids) > len(own.texts)


def _mostly_numbers(own: Column) -> bool:
    """Return whether most texts of a column are numbers, as beside "<100" in measurements."""
    return 2 * sum(number(one) is not None for one in own.texts) > len(own.texts)


def _repeated(one: TableProposal, own: Column, other: str) -> TableError:
    """Return the error that a table has the ids of another in rows that repeat."""
    if own.missing and len(own.texts) == int((own.codes >= 0).sum()):
        empty = np.flatnonzero(own.codes < 0)
        return one.source.error(
            f"the column {own.name!r} has the ids of {other!r}, but none in "
            f"{several(len(empty), 'row')} (first: row {empty[0] + 1})",
            "fill in what is missing, drop the row, or name another column that tells the rows "
            "apart: --id COLUMN",
        )
    rows = np.bincount(own.codes[own.codes >= 0], minlength=len(own.texts))
    most = int(rows.argmax())
    where = (np.flatnonzero(own.codes == most) + 1).tolist()
    copies = all(
        len(np.unique(column.codes[own.codes == most])) == 1 for column in one.columns.values()
    )
    count = int((rows > 1).sum())
    many = f"{own.texts[most]!r} is"
    if count > 1:
        many = f"{count:,} ids repeat, most often {own.texts[most]!r}"
    told = " and ".join(map(str, where)) if len(where) < 3 else f"{where[0]}, {where[1]}, …"
    alike = ", which are copies of each other" if copies else ""
    advice = "drop the rows that repeat" if copies else "write one row for each, of sums or means"
    return one.source.error(
        f"the column {own.name!r} has the ids of {other!r}, but {many} in {len(where)} rows "
        f"({told}{alike}), and every id needs one row",
        f"{advice}, or name another column that tells the rows apart: --id COLUMN",
    )


def _rules(tables: Sequence[TableProposal]) -> tuple[Rule, ...]:
    """Return the rules by which most ids of different tables are the same."""
    columns = [own for one in tables if (own := one.ids) is not None]
    most = sum(min(one.rows, other.rows) for one, other in combinations(columns, 2))
    shared = _shared(columns, ())
    pairs = combinations(columns, 2)
    if shared == most or shared >= sum(
        one.under_all_rules.shared(other.under_all_rules) for one, other in pairs
    ):
        return ()
    return _fewest_rules(columns)


def _alike(
    tables: Sequence[TableProposal], whole: Mapping[ClientId, bool], rules: Sequence[Rule]
) -> list[TableProposal]:
    """Return the tables with ids of one type: text, where one of them has text."""
    kept = [one.source.name for one in tables if one.source.id in one.columns]
    kinds = {name: whole[name] for name in kept}
    if len(set(kinds.values())) < 2 or "zeros" in rules:
        return list(tables)
    texts = next(name for name, numbers in kinds.items() if not numbers)
    return [
        one.with_keys({"id_type": f"{texts} has text"}, id_type="text")
        if kinds.get(one.source.name)
        else one
        for one in tables
    ]


def _apart_where_values_differ(
    tables: Sequence[TableProposal], matched: Matched, notes: list[str]
) -> list[TableProposal]:
    """Take the ids from tables whose rows of the same id have nothing alike: they are others."""
    apart: dict[tuple[str, ...], dict[str, None]] = {}  # by the columns whose values differ
    doubtful: dict[str, dict[str, None]] = {}  # by the only column that two tables have in common
    for one, other in combinations(tables, 2):
        first, second = matched.rows(one.source.name, other.source.name)
        alike = chance = 0.0
        compared = []
        pairs = _comparable(one, other) if len(first) >= LEAST_SHARED else {}
        some = slice(None, None, 1 + len(first) // MOST_ROWS)
        for name, its in pairs.items():
            a, b = (
                np.char.lower(table.columns[own].canonical(rows[some]))
                for table, own, rows in ((one, name, first), (other, its, second))
            )
            known = (a != "") & (b != "")
            a, b = a[known], b[known]
            words = other_words(b, a)
            if words:  # labels of which each table has its own words say the same
                b = np.array([words[text] for text in b.tolist()], np.str_)
            if len(a) and (by_chance := _by_chance(a, b)) < 0.9:
                alike += float((a == b).mean())
                chance += by_chance
                compared.append(name)
        if compared and alike - chance < 0.2 * (len(compared) - chance):
            both = dict.fromkeys((one.source.name, other.source.name))
            if len(compared) == 1 and not _alike_by_chance(one, other):
                doubtful.setdefault(compared[0], {}).update(both)
            else:
                apart.setdefault(tuple(compared), {}).update(both)
    notes += [
        f"rows of one id have other values of {column!r} at {in_words(list(some))}. If they are "
        "the same samples, these are columns of their own: rename them in the tables, or exclude "
        "them. If not, take id out of these tables."
        for column, some in doubtful.items()
    ]
    notes += [
        f"{in_words(list(some))} have ids in common, but the rows of one id have other values of "
        f"{listed(list(columns), 3)}: they are other samples, and the ids are left out."
        for columns, some in apart.items()
    ]
    every = {name for some in apart.values() for name in some}
    return [_without_ids(one) if one.source.name in every else one for one in tables]


def _without_ids(one: TableProposal) -> TableProposal:
    """Return a table without its ids, which other tables have for other samples."""
    name = str(one.source.id)
    why = "numbers the rows of this table alone: the same number is another sample elsewhere"
    if _has_times(one.columns[name]):
        why = (
            "tells the rows of this table alone apart: at the same time is another sample elsewhere"
        )
    return one.without(name, why).with_keys({}, id=None)


def _alike_by_chance(one: TableProposal, other: TableProposal) -> bool:
    """Return whether two tables may have the same ids for other samples.

    So it is with times, and where each numbers its rows from the same number on, with no gap. Else
    ids are rarely the same by chance, and one column that differs says little.
    """
    ids = [table.columns[str(table.source.id)] for table in (one, other)]
    starts = {min(own.figures) for own in ids if own.numbered and own.figures}
    numbered = all(own.numbered for own in ids) and len(starts) == 1
    return numbered or all(map(_has_times, ids))


def _has_times(ids: Column) -> bool:
    """Return whether all values are dates or times."""
    return ids.figures is None and bool(date_orders(ids.texts))


def _comparable(one: TableProposal, other: TableProposal) -> dict[str, str]:
    """Return the columns, no ids, that two tables have in common with values written alike.

    By the name at the first, that at the other, which may differ in what names that look alike do.
    """
    alike = {look(name): name for name in other.columns}
    pairs = {
        name: name if name in other.columns else alike[look(name)]
        for name in one.columns
        if look(name) in alike
    }
    return {
        name: its
        for name, its in pairs.items()
        if name != one.source.id
        and its != other.source.id
        and (one.columns[name].figures is None) == (other.columns[its].figures is None)
    }


def _by_chance(first: NDArray[Any], second: NDArray[Any]) -> float:
    """Return which share of rows would have the same values if rows had nothing in common."""
    levels, counts = np.unique(first, return_counts=True)
    others = dict(
        zip(*(part.tolist() for part in np.unique(second, return_counts=True)), strict=True)
    )
    same = sum(
        count * others.get(level, 0)
        for level, count in zip(levels.tolist(), counts.tolist(), strict=True)
    )
    return float(same / len(first) ** 2)


def _told_ids(
    one: TableProposal,
    tables: Sequence[TableProposal],
    matched: Matched,
    wanted: Sequence[str],
) -> TableProposal:
    """Return a table with why its ids are its ids."""
    name = one.source.name
    if one.source.id is None or not one.columns:
        stated = {str(other.source.id) for other in tables if other.source.id} & set(one.columns)
        for column in stated:
            one = one.without(column, "the id of other tables, which does not tell its rows apart")
        if one.source.id is None and not one.left_out:
            why = "no column tells its rows apart, so that they belong to this client alone"
            return one.with_keys({"id": why})
        return one
    shared = [
        f"{len(matched.rows(name, other.source.name)[0]):,} are at {other.source.name} too"
        for other in tables
        if other is not one and other.source.name != name and other.source.name in matched.ids
    ]
    why = "as asked for" if wanted else "another value in every row"
    if len(tables) > 1 and all(said.startswith("0 ") for said in shared):
        shared = ["none of them is in another table"]
    return one.with_keys({"id": "; ".join([why, *shared])})
