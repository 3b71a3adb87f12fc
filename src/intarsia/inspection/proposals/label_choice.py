"""Choose the columns to predict, and the columns that say the same as they do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from intarsia.data.labels import says_yes
from intarsia.errors import ExperimentError, listed
from intarsia.inspection.proposals.column_names import (
    LABELS,
    is_amount,
    is_plain_label,
    is_trait,
    label_rank,
    words,
)
from intarsia.inspection.proposals.table_proposal import (
    LEAST_SHARED,
    Column,
    Matched,
    TableProposal,
    other_words,
)
from intarsia.privacy.entity_matching.normalisation import look

_MOST_CLASSES = 10  # of text, of a label that only its name tells from a feature
_MOST_TOLD = 4  # columns that may be the label too
_DOUBTFUL = 2
_BY_NAME = "by its name"
_ALONE = "the only column beside the ids"


def labelled(one: TableProposal) -> bool:
    """Return whether a table has a column to predict."""
    return one.source.label is not None and bool(one.columns)


def with_labels(
    tables: Sequence[TableProposal], wanted: Sequence[str], matched: Matched
) -> list[TableProposal]:
    """Return the tables with the columns to predict, and why they are these."""
    names, why = (list(wanted), "as asked for") if wanted else _label_name(tables, matched)
    found = []
    for one in tables:
        own = [name for name in names if name in one.columns and name != one.source.id]
        if not own and not wanted:  # one that is written otherwise here
            own = [name for name in one.columns if look(name) in {*map(look, names)}]
        own = [name for name in own if one.columns[name].texts]
        if own:
            one = one.with_keys({}, label=own[0])
        for name in [*own[1:], *(_other_labels(one) if not wanted else ())]:
            one = one.without(name, f"may be a label too: --label {name} takes it instead")
        if not own:
            found.append(one)
            continue
        # where a name tells it, what other tables have beside it needs no word
        asked = [] if wanted else [one] if why in (_BY_NAME, _ALONE) else [one, *tables]
        likely = [name for each in asked for name in _alternatives(each, names)]
        likely += [name for name in _classes_of_several(asked) if name not in names]
        if len(asked) > 1:
            likely += [name for name in _beside_ids_alone(tables) if name not in names]
        others = list(dict.fromkeys(likely))
        more = f"; {listed(others, _MOST_TOLD)} may be it too" if others else ""
        found.append(one.with_keys({"label": why + more}))
    return _without_other_labels(_with_one_spelling(found), matched)


def _with_one_spelling(tables: Sequence[TableProposal]) -> list[TableProposal]:
    """Return the tables with labels mapped to one spelling: of no and yes, and of words by case.

    It is the first table's for no and yes, and what most rows have of words that differ in case.
    """
    rows = rows_by_class(tables)
    usual: dict[str, str] = {}  # class in small letters -> how most rows write it
    for text in sorted(rows, key=lambda text: -rows[text]):
        usual.setdefault(text.casefold(), text)
    found: list[TableProposal] = []
    first: dict[bool, str] = {}
    for one in tables:
        written = [*one.columns[str(one.source.label)].written] if labelled(one) else []
        said = {text: says_yes(text) for text in written}
        named = {text: usual[text.casefold()] for text in written}
        why = "the same class, whatever the case"
        if {*said.values()} == {False, True}:
            first = first or {
                bool(said[text]): usual[text.casefold()] for text in reversed(written)
            }
            named, why = (
                {text: first[bool(said[text])] for text in written},
                "as the others write it",
            )
        if named := {text: to for text, to in named.items() if to != text}:
            one = one.with_keys({"label_map": why}, label_map=named)
        found.append(one)
    return found


def rows_by_class(tables: Sequence[TableProposal]) -> Counter[str]:
    """Return how many rows have each label, as the tables write them."""
    rows: Counter[str] = Counter()
    for one in tables:
        if labelled(one):
            own = one.columns[str(one.source.label)]
            counts = np.bincount(own.codes[own.codes >= 0], minlength=len(own.texts))
            for text, count in zip(own.written, counts, strict=True):
                rows[str(one.source.label_map.get(text, text))] += int(count)
    return rows


def _label_name(tables: Sequence[TableProposal], matched: Matched) -> tuple[list[str], str]:
    """Return the columns to predict, and why; ExperimentError if none can be told.

    A name that is a label's goes first, then a column that is alone beside its table's ids, unless
    another table's last one has two values, then the only column of two values, then that which
    stands last in its table, then numbers called y.
    Where tables share no row, a column of two values is to be in all of them: one table's labels
    tell the others nothing.
    """
    apart = len(tables) > 1 and not any(
        len(matched.rows(one.source.name, other.source.name)[0])
        for one, other in combinations(tables, 2)
    )
    named = [{*map(look, one.columns)} for one in tables if one.columns]
    everywhere = set.intersection(*named) if named else set()
    ranked: list[tuple[int, int, int, int, str]] = []
    twos: list[str] = []
    last: dict[str, None] = {}
    weak: list[str] = []
    alike: list[tuple[str, str]] = []
    # what is the same in all rows of a table says which table it is
    constant = {name for one in tables for name, own in one.columns.items() if len(own.texts) == 1}
    for one in tables:
        own = [
            column
            for name, column in one.columns.items()
            if name not in (one.source.id, *one.left_out) and column.kinds
        ]
        alike += [
            (name, column.texts[0])
            for name, column in one.columns.items()
            if len(column.texts) == 1 and label_rank(name, two=True) is not None
        ]
        for place, column in enumerate(own):
            kind = ("two", "few", "numbers").index(column.kinds)
            twos += [column.name] * (kind == 0 and column.name not in constant)
            rank = _label_rank(column)
            if rank is not None and kind == 2 and words(column.name) == ("y",):
                weak.append(column.name)  # as coordinates are too
            elif rank is not None:
                ranked.append((_doubt(column), rank, kind, -place, column.name))
        final = [column for column in own[-1:] if column.name == list(one.columns)[-1]]
        last |= {one.name: None for one in final if one.kinds == "two" and one.name not in constant}
    best = min(ranked, default=None)
    if best is not None and best[0] < _DOUBTFUL:
        return [best[-1]], _BY_NAME
    own_labels = any(not one.columns and "label" in one.reasons for one in tables)
    tables = [one for one in tables if one.columns]
    if own_labels or not tables:
        return [], ""
    if alike and best is None:
        raise ExperimentError(
            f"The column {alike[0][0]!r} is named like a label and has {alike[0][1]!r} in every "
            "row that has one, so that there is nothing to tell apart; give tables with rows of "
            "both classes, or say which other column is to be predicted: --label COLUMN."
        )
    found = list(dict.fromkeys(twos))
    telling = [name for name in found if not apart or look(name) in everywhere]
    ends = [name for name in last if not apart or look(name) in everywhere]
    alone = _beside_ids_alone(tables)
    if len(alone) == 1 and all(name in alone or is_trait(name) for name in ends):
        return alone, _ALONE
    if len(telling) == 1 and not is_trait(telling[0]):
        return telling, "the only column of two values"
    if len(ends) == 1 and not is_trait(ends[0]):
        return ends, "the last column, of two values"
    if best is not None:
        return [best[-1]], _BY_NAME
    if weak:
        return [weak[0]], _BY_NAME
    shared, numbers = _common_to_all(tables), _last_numbers(tables)
    if len(shared) == 1 and numbers:
        raise ExperimentError(
            f"No column is named like a label ({listed(LABELS[:5])}, …), and it may be "
            f"{shared[0]!r}, the only column with classes that all tables have, or {numbers!r}, "
            "their last one; say which column is to be predicted: --label COLUMN."
        )
    if len(shared) == 1:
        return shared, "the only column with classes that all tables have"
    columns = [own for one in tables for own in one.columns.values()]
    columns.sort(key=lambda own: (own.kinds not in ("two", "few"), own.figures is not None))
    every = list(dict.fromkeys(own.name for own in columns))  # those with classes first
    shown = f"those of two values: {listed(found)}" if found else f"there are {listed(every)}"
    raise ExperimentError(
        f"No column is named like a label ({listed(LABELS[:5])}, …), and {shown}; say which "
        "column is to be predicted: --label COLUMN."
    )


def _beside_ids_alone(tables: Sequence[TableProposal]) -> list[str]:
    """Return the columns that a table has beside its ids and nothing else, and no other has."""
    names = Counter(name for one in tables for name in one.columns)
    return [
        name
        for one in tables
        if one.source.id is not None and len(one.columns) == 2 and len(tables) > 1
        for name, own in one.columns.items()
        if name != one.source.id and own.kinds and names[name] == 1 and not is_trait(name)
    ]


def _last_numbers(tables: Sequence[TableProposal]) -> str:
    """Return the column of whole numbers that is the last one of all tables; "": there is none."""
    last = [[*one.columns.values()][-1] for one in tables]
    same = len({own.name for own in last}) == 1 and all(own.whole for own in last)
    return last[0].name if same else ""


def _common_to_all(tables: Sequence[TableProposal]) -> list[str]:
    """Return the columns with classes, no person's sex, that several tables all have."""
    first, *others = tables
    counters = {second for one in tables for _, second in one.keys_of_two}  # such as of visits
    return [
        name
        for name, own in first.columns.items()
        if others
        and name not in counters
        and own.kinds in ("two", "few")
        and not (is_trait(name) or is_amount(name))
        and all(name in one.columns and one.columns[name].kinds == own.kinds for one in others)
        and not any(name in (one.source.id, *one.left_out) for one in tables)
    ]


def _doubt(column: Column) -> int:
    """Return how doubtful a column is that is named like a label: 0, 1, or 2 the most.

    `diagnosis` and `class` are names of features as well, mostly of many values.
    """
    if is_plain_label(column.name) or column.kinds == "two":
        return 0
    text = column.figures is None
    return _DOUBTFUL if text and len(column.texts) > _MOST_CLASSES else 1


def _label_rank(column: Column) -> int | None:
    """Return how much a column's name is that of a label, 0 the most; None: not at all."""
    rank = label_rank(column.name, two=column.kinds == "two")
    # what has classes and is called y is a label as much as an outcome is
    y = column.kinds in ("two", "few") and words(column.name) == ("y",)
    return LABELS.index("outcome") if y else rank


def _other_labels(one: TableProposal) -> Iterator[str]:
    """Yield the columns beside the label that are named like one and have few values."""
    for own in one.columns.values():
        named = _label_rank(own)
        weak = own.name.casefold() in ("class", "event", "response", "klasse", "classe", "clase")
        if own.name != one.source.label and named is not None and own.kinds == "two" and not weak:
            yield own.name


def _alternatives(one: TableProposal, labels: Sequence[str]) -> list[str]:
    """Return the columns beside the labels that may be it: named like one, or of two values."""
    taken = (*labels, one.source.label)
    others = [own for own in one.columns.values() if own.kinds and own.name not in taken]
    others = [own for own in others if own.name != one.source.id and not is_trait(own.name)]
    named = [own.name for own in others if _label_rank(own) is not None]
    return list(dict.fromkeys((*named, *(own.name for own in others if own.kinds == "two"))))


def _classes_of_several(tables: Sequence[TableProposal]) -> list[str]:
    """Return the columns of words that are few classes, and that several of the tables have."""
    found = Counter(
        own.name
        for one in {one.source.name: one for one in tables}.values()
        for own in one.columns.values()
        if own.kinds == "few" and own.figures is None and not is_trait(own.name)
    )
    return [name for name, count in found.items() if count > 1]


def _without_other_labels(tables: Sequence[TableProposal], matched: Matched) -> list[TableProposal]:
    """Take the label from tables that say something else of rows that they share."""
    found: list[TableProposal] = []
    for one in tables:
        for other in found:
            if not (labelled(one) and labelled(other)):
                continue
            first, second = matched.rows(one.source.name, other.source.name)
            a, b = _mapped_labels(one)[first], _mapped_labels(other)[second]
            wrong = int(((a != b) & (a != "") & (b != "")).sum())
            same = {} if one.source.label_map else other_words(a, b)
            if wrong and same.keys() >= {*one.columns[str(one.source.label)].written} - {""}:
                why = f"as {other.source.name} writes it in all {len(a):,} shared rows"
                one = one.with_keys({"label_map": why}, label_map=same)
            elif wrong:
                label = str(one.source.label)
                why = f"says something else than {other.source.name} of {wrong:,} shared rows"
                one = one.with_keys({}, label=None, label_map={}).without(label, why)
        found.append(one)
    return found


def _mapped_labels(one: TableProposal) -> NDArray[np.str_]:
    """Return a table's labels as its map writes them."""
    labels = one.columns[str(one.source.label)].canonical().tolist()
    return np.array([str(one.source.label_map.get(text, text)) for text in labels], np.str_)


def without_copies(tables: Sequence[TableProposal], matched: Matched) -> list[TableProposal]:
    """Leave out the columns that say what the label says, here or of shared rows elsewhere."""
    found = []
    for one in tables:
        for other in tables:
            if not labelled(other):
                continue
            label = other.columns[str(other.source.label)]
            if other.source.name == one.source.name:
                first = second = np.arange(one.rows)
            else:
                first, second = matched.rows(one.source.name, other.source.name)
            for own in one.features:
                if _says_the_same(own, first, label, second):
                    where = "" if one is other else f" of {other.source.name}"
                    one = one.without(own.name, f"a copy of the label {label.name!r}{where}")
        found.append(one)
    return found


def _says_the_same(
    own: Column, rows: NDArray[np.intp], label: Column, labels: NDArray[np.intp]
) -> bool:
    """Return whether each value of a column goes with one label, and each label with one value."""
    a, b = own.codes[rows], label.codes[labels].astype(np.int64)
    known = (a >= 0) & (b >= 0)
    a, b = a[known], b[known]
    values, kinds = (int(np.count_nonzero(np.bincount(one))) for one in (a, b))
    if len(a) < LEAST_SHARED or kinds < 2:
        return False
    if label.kinds == "numbers":
        if own.figures is None or label.figures is None:
            return False
        x, y = np.array(own.figures)[a], np.array(label.figures)[b]
        return bool(np.ptp(x) > 0 and abs(np.corrcoef(x, y)[0, 1]) > 1 - 1e-9)
    return values == kinds == len(np.unique(a * (b.max() + 1) + b))
