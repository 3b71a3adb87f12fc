"""Propose what an experiment file says of tables: ids, labels, categories, and what to leave out.

`propose` looks at the tables of all clients together. Each choice has a reason in plain words, so
that who knows the data can correct it. What a column may be as a feature is decided by the reader
itself (`data.column_types`): what it would refuse is left out, for the reason that it gives.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

from intarsia.core.memory import disk_for
from intarsia.core.side_by_side import side_by_side
from intarsia.data.labels import positive_last
from intarsia.data.parsing import ascending
from intarsia.data.reader import values_size
from intarsia.data.source import LEAST_ROWS
from intarsia.errors import ExperimentError, nearest_column
from intarsia.inspection.named_tables import sources_named
from intarsia.inspection.proposals.codes_or_amounts import (
    MOST_CODES,
    as_one_kind,
    counted,
    has_one_peak,
    rows_of_numbers,
)
from intarsia.inspection.proposals.column_names import words
from intarsia.inspection.proposals.column_notes import (
    codes_as_amounts,
    exposures,
    left_out_at_some,
    names_that_leave,
    no_class_in_common,
    of_one_label,
    several_in_one,
    times_until_label,
    weights_of_rows,
)
from intarsia.inspection.proposals.first_look import looked_at, with_units_of_amounts
from intarsia.inspection.proposals.id_choice import refuse_row_numbers, with_groups, with_ids
from intarsia.inspection.proposals.label_choice import (
    labelled,
    rows_by_class,
    with_labels,
    without_copies,
)
from intarsia.inspection.proposals.one_feature import (
    alike_but_for_case,
    in_other_languages,
    in_other_words,
    named_alike,
    same_in_shared_rows,
    under_other_names,
)
from intarsia.inspection.proposals.table_proposal import Column, TableProposal
from intarsia.inspection.proposals.unfit_columns import (
    with_no_label,
    without_constants,
    without_unfit,
)
from intarsia.privacy.entity_matching.normalisation import Rule


@dataclass(frozen=True, eq=False)
class Proposal:
    """What is proposed for all tables, in the order in which they were given."""

    tables: tuple[TableProposal, ...]
    normalise: tuple[Rule, ...]  # of [alignment]
    notes: tuple[str, ...]  # sentences that whoever knows the data is to check
    ignore_case: tuple[str, ...] = ()  # features whose values differ in case alone
    no_and_yes: tuple[str, ...] = ()  # features whose values are no and yes in other words

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Return the different labels of all tables; None: numbers to predict, or of a matrix."""
        rows = self._rows_of_classes
        return None if rows is None else ascending(rows)

    @property
    def positive(self) -> str | None:
        """Return that of two classes which is +1; None: there are not two.

        It is the one that the label is named for, as "Canceled" is of `is_canceled`, or that a run
        takes for +1.
        """
        classes = self.classes
        if classes is None or len(classes) != 2:
            return None
        name = {one for table in self.tables for one in words(table.source.label or "")}
        named = [one for one in classes if name & {*words(one)}]
        return named[0] if len(named) == 1 else positive_last(classes)[-1]

    @property
    def counts(self) -> bool:
        """Return whether the labels are spread as counts of events are, at all tables together."""
        return counted(self._whole_labels)

    @property
    def grades(self) -> bool:
        """Return whether the labels are more whole numbers than codes, around one peak."""
        rows = [many for _, many in sorted(rows_of_numbers(self._whole_labels).items())]
        return (
            len(rows) > MOST_CODES
            and 2 * max(rows[0], rows[-1]) < max(rows)  # classes are about as many, or in no order
            and has_one_peak(rows, 2.0)
        )

    @property
    def _whole_labels(self) -> list[Column]:
        """Return the labels of all tables, none where some are no whole numbers."""
        found = [one.columns[str(one.source.label)] for one in self.tables if labelled(one)]
        plain = all(to == "" for one in self.tables for to in one.source.label_map.values())
        return found if plain and all(one.whole for one in found) else []

    @property
    def numbers(self) -> bool:
        """Return whether the labels of all tables are numbers that are more than a few."""
        found = [one.columns[str(one.source.label)] for one in self.tables if labelled(one)]
        return bool(found) and all(one.kinds == "numbers" for one in found)

    @property
    def usual(self) -> tuple[str, ...]:
        """Return the classes that enough rows have for their words to stand in a file."""
        rows = self._rows_of_classes or Counter[str]()
        return tuple(one for one in self.classes or () if rows[one] >= LEAST_ROWS)

    @property
    def rarer(self) -> str | None:
        """Return the class other than the positive one, if fewer rows have it."""
        rows, positive = self._rows_of_classes, self.positive
        if rows is None or positive is None:
            return None
        return next((one for one in rows if rows[one] < rows[positive]), None)

    @cached_property
    def _rows_of_classes(self) -> Counter[str] | None:
        found = [one for one in self.tables if labelled(one)]
        labels = [one.columns[str(one.source.label)] for one in found]
        if not found or any(one.kinds == "numbers" for one in labels):
            return None
        return rows_by_class(self.tables)


def propose(
    named: Sequence[str | Path],
    ids: Sequence[str] = (),
    labels: Sequence[str] | None = (),
    place: Path | None = None,
) -> Proposal:
    """Return what an experiment file may say of tables.

    Parameters
    ----------
    named
        The tables, as `sources_named` takes them.
    ids, labels
        Columns that tell rows apart, and columns to predict: of each table the first that it has.
        Empty: they are looked for. None: no table has labels.
    place
        On whose disk the tables lie meanwhile, if they are large for the memory that is free.

    Raises
    ------
    UserError
        If a table cannot be read, a named column is in no table, or no label can be told.
    """
    sources = sources_named(named)
    size = _COPIES * sum(map(values_size, sources))
    folder = disk_for(size, (place or Path(tempfile.gettempdir())).absolute())
    large = {one.name: folder is None and values_size(one) >= _LARGE for one in sources}
    tables = side_by_side(
        partial(looked_at, folder=folder), sources, _AT_ONCE, lambda one: large[one.name]
    )
    refuse_row_numbers(tables, ids)
    for key, wanted in (("id", ids), ("label", labels or ())):
        _check_named(key, wanted, tables)
    tables, rules, matched, notes = with_ids(tables, ids)
    try:
        tables = tables if labels is None else with_labels(tables, labels, matched)
    except ExperimentError as problem:  # it may be that no rows are known to be the same
        raise ExperimentError(
            " ".join([str(problem), *(f"Check: {one}" for one in notes)])
        ) from None
    tables = [with_no_label(one) for one in tables]
    tables = with_groups(tables, matched, notes)
    tables = without_unfit(without_copies(tables, matched))
    tables = named_alike(tables, matched, notes)
    no_and_yes = in_other_languages(tables, notes)
    notes += [*in_other_words(tables, matched, no_and_yes), *no_class_in_common(tables)]
    notes += [
        *times_until_label(tables),
        *weights_of_rows(tables),
        *exposures(tables),
        *several_in_one(tables),
        *under_other_names(tables, matched),
        *same_in_shared_rows(tables, matched),
    ]
    tables = as_one_kind(without_constants(tables))
    notes += [
        *names_that_leave(tables),
        *codes_as_amounts(tables),
        *left_out_at_some(tables),
        *of_one_label(tables),
    ]
    for one in tables:
        if one.left_out and not one.features and one.source.label is None:
            raise one.source.error(
                "no column is left to learn from: "
                + "; ".join(f"{name!r} {why}" for name, why in one.left_out.items()),
                "mend one of them, or leave the table out",
            )
    ignore_case = alike_but_for_case(tables, no_and_yes, notes)
    tables = [replace(with_units_of_amounts(one), read=None) for one in tables]
    return Proposal(tuple(tables), rules, tuple(notes), ignore_case, no_and_yes)


_LARGE, _AT_ONCE = 1 << 22, 2  # bytes of tables that are looked at side by side, and how many
_COPIES = 4  # times the tables' values that a proposal takes, where they are in memory


def _check_named(key: str, wanted: Sequence[str], tables: Sequence[TableProposal]) -> None:
    """Raise if a column that was named is in no table."""
    every = list(dict.fromkeys(name for one in tables for name in one.columns))
    for name in wanted:
        if name not in every:
            raise ExperimentError(
                f"--{key} {name!r} is a column of no table; {nearest_column(name, every)}."
            )
