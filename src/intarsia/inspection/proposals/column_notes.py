"""Note what whoever knows the data is to check in columns that are learned from."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import combinations

import numpy as np

from intarsia.data.labels import spelled_apart
from intarsia.data.parsing import unit_of
from intarsia.data.source import LEAST_ROWS
from intarsia.data.texts import Texts
from intarsia.inspection.proposals.codes_or_amounts import MOST_CODES, MOST_LEVELS
from intarsia.inspection.proposals.column_names import (
    is_code,
    is_exposure,
    is_id,
    is_time_until,
    is_weight,
)
from intarsia.inspection.proposals.label_choice import labelled
from intarsia.inspection.proposals.table_proposal import TableProposal, in_words

_TWO_NUMBERS = re.compile(
    r"\d{1,3} ?/ ?\d{1,3}|\d{1,4} ?[^\W\d]{1,9},? \d{1,4} ?[^\W\d]{1,9}"  # 120/80, 3 h 20 min
)
_BRACKETED = re.compile(r"\[.*\]|\{.*\}", re.DOTALL)  # as JSON and Python write lists and fields
_LEAST_GROUPS = 20  # values whose rows have one label each; of fewer that may be chance
_LEAST_TEXTS = 10  # different ones; what fewer have in common may be chance


def no_class_in_common(tables: Sequence[TableProposal]) -> list[str]:
    """Return a note of two tables whose labels have no class in common, where a run takes both."""
    found: dict[str, set[str]] = {}
    for one in tables:
        if labelled(one):
            own = one.columns[str(one.source.label)]
            if own.kinds == "numbers":
                return []
            mapped = one.source.label_map
            found[one.source.name] = {str(mapped.get(text, text)) for text in own.values_there}
    if any(spelled_apart(found)):
        return []
    for first, second in combinations([name for name in found if len(found[name]) > 1], 2):
        if found[first].isdisjoint(found[second]):
            return [
                f"the labels of {first} and {second} have no class in common, and count as "
                f"{len(found[first] | found[second])} different classes. If they mean the same, "
                f"say so by label_map at {second}; if not, list all in [labels] classes."
            ]
    return []


def times_until_label(tables: Sequence[TableProposal]) -> list[str]:
    """Return a note of columns that seem to be the time until an event, which the label is."""
    labels = {str(one.source.label): one for one in tables if labelled(one)}
    found = {
        own.name: ""
        for one in tables
        for own in one.features
        if own.figures is not None and is_time_until(own.name)
    }
    if not found or not any(one.columns[name].kinds == "two" for name, one in labels.items()):
        return []
    return [
        f"{in_words([*map(repr, found)])} may be the time until {in_words([*map(repr, labels)])} "
        "was seen, or a row was no longer followed, which is known only once the label is. If so, "
        "list it in exclude: scores would be too good, and no new row has it."
    ]


def codes_as_amounts(tables: Sequence[TableProposal]) -> list[str]:
    """Return a note of whole numbers that are named like codes and are learned from as amounts."""
    found = {
        f"{own.name!r} of {one.source.name}": ""
        for one in tables
        for own in one.features
        if own.whole and is_code(own.name) and len(own.texts) > MOST_CODES
        if own.name not in one.source.categorical
    }
    if not found:
        return []
    return [
        f"{in_words([*found])} {'is' if len(found) == 1 else 'are'} named like codes and learned "
        "from as amounts. Of codes a larger number means nothing: list them in categorical, if "
        "their values tell nothing of single rows, or in exclude."
    ]


def names_that_leave(tables: Sequence[TableProposal]) -> list[str]:
    """Return a note of categories of many values, whose frequent ones other parties learn."""
    found = {
        repr(own.name): ""
        for one in tables
        if one.source.least_rows is not None
        for own in one.features
        if own.name in one.source.categorical and len(own.texts) > MOST_LEVELS
    }
    if not found:
        return []
    have, are, them = ("has", "is", "it") if len(found) == 1 else ("have", "are", "them")
    return [
        f"{in_words([*found])} {have} many different values, and {are} learned from: the other "
        f"parties learn which values {LEAST_ROWS} rows or more of a table have. List {them} in "
        "exclude if the values are names or ids of persons."
    ]


def left_out_at_some(tables: Sequence[TableProposal]) -> list[str]:
    """Return a note of columns that are left out at some tables and learned from at others."""
    learned: dict[str, list[str]] = {}
    for one in tables:
        for own in one.features:
            learned.setdefault(one.feature(own), []).append(one.source.name)
    found: dict[str, list[str]] = {}
    for one in tables:
        for name, why in one.left_out.items():
            if name in learned and not why.startswith("missing in "):  # nearly all do anyway
                found.setdefault(name, []).append(one.source.name)
    return [
        f"{name!r} is left out at {in_words(some)} and learned from at {in_words(learned[name])}: "
        "the rows of the former count as missing. Have it in exclude at all tables, or at none."
        for name, some in found.items()
    ]


def of_one_label(tables: Sequence[TableProposal]) -> list[str]:
    """Return a note of columns whose rows of one value all have the same label.

    They may be of one person or machine, which a random split has among training and test rows.
    """
    found: dict[str, None] = {}
    for one in tables:
        if not labelled(one) or one.source.split_by is not None:
            continue
        label = one.columns[str(one.source.label)]
        if label.kinds not in ("two", "few"):
            continue
        for own in one.features:
            text = own.figures is None or own.name in one.source.categorical
            known = (own.codes >= 0) & (label.codes >= 0)
            codes, labels = own.codes[known].astype(np.int64), label.codes[known]
            values = len(np.unique(codes))
            many = _LEAST_GROUPS <= values <= len(codes) / LEAST_ROWS
            if many and (text or (own.whole and is_id(own.name))):
                pairs = np.unique(codes * len(label.texts) + labels)
                if len(pairs) == values and labels.min() < labels.max():
                    found[repr(own.name)] = None
    if not found:
        return []
    return [
        f"rows with the same {in_words([*found])} all have the same label. If they are of one "
        "person, machine or the like, which is then among training and test rows, scores are too "
        "good: set split_by to this column at the tables that have it."
    ]


def weights_of_rows(tables: Sequence[TableProposal]) -> list[str]:
    """Return a note of columns that seem to say how much each row counts, as of a survey.

    They are named a weight, above 0, and about 1 on the average, which no body's weight is.
    """
    found = {
        own.name: one
        for one in tables
        for own in one.features
        if is_weight(own.name) and own.figures is not None and not own.missing and not own.whole
        if min(own.figures) > 0 and 0.5 < np.array(own.figures)[own.codes].mean() < 2
    }
    said = "may say how much each row counts, as its numbers are about 1 on the average"
    apart = "list it in exclude there: weights are of the table that has the labels."
    return [
        f"{name!r} of {one.source.name} {said}: it is learned from as it is. If so, "
        + (f"set weights = {_quoted(name)} there." if labelled(one) else apart)
        for name, one in found.items()
    ]


def exposures(tables: Sequence[TableProposal]) -> list[str]:
    """Return a note of columns that seem to say in which time a row's events were counted."""
    found = {
        own.name: label.name
        for one in tables
        if labelled(one)
        for label in [one.columns[str(one.source.label)]]
        if label.whole and len(label.texts) > 2 and min(label.figures or (1.0,)) == 0
        for own in one.features
        if is_exposure(own.name) and own.figures is not None and min(own.figures) > 0
    }
    return [
        f"{name!r} may say in which time {label!r} was counted. If so, write {label} / {name} into "
        f"a column of the table, name it as label, and set weights = {_quoted(name)} and "
        'loss = "poisson": the model predicts counts for each unit of time. As it is, it is '
        "learned from as any amount is."
        for name, label in found.items()
    ]


def several_in_one(tables: Sequence[TableProposal]) -> list[str]:
    """Return notes of columns of text of which each text is more than one word of a category."""
    found: dict[str, dict[str, str]] = {}  # what their texts have -> columns
    for one in tables:
        apart = (one.source.id, one.source.label, one.source.split_by)
        for own in one.columns.values():
            if own.figures is None and own.name not in apart:
                left_out = own.name in one.left_out  # why, says which units it has
                said = _parts_of(own.texts) or ("" if left_out else _units_of(own.texts))
                found.setdefault(said, {})[repr(own.name)] = ""
    found.pop("", None)
    return [
        f"{in_words([*names])} {'has' if len(names) == 1 else 'have'} {said}"
        for said, names in found.items()
    ]


def _parts_of(texts: Texts) -> str:
    """Return what texts of several parts have in each, and what to do; "": they are none."""
    if len(texts) < _LEAST_TEXTS:
        return ""
    if all(map(_TWO_NUMBERS.fullmatch, texts)):
        return (
            "two numbers in each text, as 120/80 is, or 3 h 20 min, which are not read as numbers: "
            "write them into two columns of the table, or as one number in one unit."
        )
    as_list = "a list in each text, and each list is a level of its own: write a column of 0 and 1 "
    as_list += "for each thing that lists have, or a libsvm file, and leave the lists out."
    if all(map(_BRACKETED.fullmatch, texts)):
        fields = "several fields in each text, and each text is a level of its own: write each "
        fields += "field into a column, and leave the texts out."
        return fields if texts[0].startswith("{") else as_list
    for mark in ";|,":
        parts = [[part.strip() for part in one.split(mark)] for one in texts]
        several = sum(len(own) > 1 for own in parts)
        different_parts = {part for own in parts for part in own}
        if 2 * several >= len(texts) >= 2 * len(different_parts):
            return as_list
    return ""


def _units_of(texts: Texts) -> str:
    """Return in which units texts have numbers, and what to do; "": in none, or in one."""
    if len(texts) > MOST_LEVELS:
        return ""
    units = {unit_of([one], 0) for one in texts}
    # letters alone are as those of 1a, 1b and 2a, which are no units
    if "" in units or len(units) < 2 or max(map(len, units)) < 2 or units & {"st", "nd", "rd"}:
        return ""
    return (
        f"numbers with {in_words([*map(repr, sorted(units))])}, and each text is a level of its "
        "own: if they are amounts, write all in one unit; init then reads them as numbers."
    )


def _quoted(name: str) -> str:
    """Return a name as an experiment file writes it."""
    return json.dumps(name, ensure_ascii=False)
