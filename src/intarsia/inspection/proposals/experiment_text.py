"""Write a proposal as the commented text of an experiment file."""

from __future__ import annotations

import json
import os
import re
import textwrap
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from intarsia.data.reader import relative_url
from intarsia.errors import printable, several
from intarsia.inspection.proposals.proposal import Proposal
from intarsia.inspection.proposals.table_proposal import TableProposal
from intarsia.inspection.recommend import Advice

_WIDTH = 100
# what keys of a client's table are written, in this order, where they are set
_KEYS = (
    *("encoding", "decimal", "thousands", "missing", "id", "id_type", "split_by"),
    *("label", "label_map", "categorical", "least_rows", "units", "limits"),
)
_TEST = 0.2  # share of the rows
LEAST_PENALTY, _MOST_PENALTY = 1e-3, 0.1
_TAILS = {  # what may be better where a few values are far from the rest
    "above": ("above the rest", "log(1 + value)"),
    "away": ("from the rest, some negative", "cut values, or sign(value) · log(1 + |value|),"),
}
_MOST_LISTED = 40  # columns of a kind that a comment names
_SUCH_AS = re.compile(r""" \(such as ('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")\)""")
_SIGN = re.compile(r"[^\w\s]")  # which tells nothing of a row, such as %
_QUOTED = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""")  # as repr writes it


def experiment_text(
    proposal: Proposal,
    advice: Advice,
    algorithm: str,
    place: Path,
    *,
    kind: str,
    asked: bool = False,
    numbers: bool,
    labels: bool = True,
    regularisation: float = LEAST_PENALTY,
) -> str:
    """Return the text of the experiment file at `place`, in the folder where it lies.

    `algorithm` is its name, and `kind` that of its models; `asked`: the user named it; `advice`
    says which fits, and why; `numbers`: the labels are numbers to predict; `labels`: what they are
    in all tables together is known; `regularisation`: that of a linear model.
    """
    names = [table.source.name for table in proposal.tables]
    grouped = any(table.source.split_by is not None for table in proposal.tables)
    runs = "It does not run yet" if advice.obstacle else "It runs as it is"
    networks, linear = kind == "networks", kind == "linear"
    stops = networks and max(map(_labelled_rows, proposal.tables), default=0) >= _LEAST_TO_STOP
    parts = [
        *_comment(
            f"Written by intarsia init from the tables of {', '.join(names)}. {runs}; "
            "read what was taken for what, and correct it. All keys: "
            "docs/reference/experiment-file.md."
        ),
        *(_comment(f"a run would stop: {advice.obstacle}") if advice.obstacle else ()),
        *_comment(*(f"check: {note}" for note in proposal.notes)),
        "",
        *_algorithm(
            *(advice, algorithm),
            linear=linear,
            asked=asked,
            numbers=numbers or (proposal.grades and labels),
            counts=proposal.counts and labels,
            on_label=_advice_on_label(proposal),
            regularisation=regularisation,
        ),
        *(_EARLY if stops else ()),
        "",
        "[split]",
        f"test = {_TEST}  # of the {'groups of ' * grouped}rows, to score the model on",
        *(_STOPPING if stops else _STOPPING_LATER if networks else ()),
        *(_PREPROCESSING if linear else ()),
        *(_labels(proposal) if labels else ()),
    ]
    dictionary = bool(dictionary_text(proposal))
    if proposal.normalise or dictionary:
        parts += ["", "[alignment]"]
    if proposal.normalise:
        parts += _set("normalise", proposal.normalise, "ids of different tables are the same so")
    if dictionary:
        own = dictionary_of(place).name
        parts += _set("dictionary", own, "which columns and values are one")
    parts += ["", *_comment('privacy = "masked" in the first line keeps the sums from the server.')]
    columns = _columns(proposal)
    for table in proposal.tables:
        name = f"name = {toml(table.source.name)}"
        parts += ["", "[[client]]", name, *_client(table, place.parent, columns)]
    return "\n".join(parts) + "\n"


def table_text(proposal: Proposal, folder: Path) -> str:
    """Return the [table] of a site's file in a folder, of a proposal for its table alone."""
    (table,) = proposal.tables
    notes = _comment(*(f"check: {note}" for note in proposal.notes))
    return "\n".join(["[table]", *notes, *_client(table, folder, _columns(proposal)), ""])


def _columns(proposal: Proposal) -> list[str]:
    every = [one for table in proposal.tables for one in (*table.columns, table.source.label)]
    return [one for one in every if one is not None]


_LEAST_TO_STOP = 100  # labelled rows of one client, of which rounds are compared by a dozen
_EARLY = (
    "",
    "[experiment]",
    "# Networks mostly learn rows by heart in 200 rounds. So rounds are compared by the rows of",
    "# stopping below; early_stopping = 0 and stopping = 0 train for all rounds on all rows.",
    "early_stopping = 20  # rounds without a better one",
    "evaluate_every = 2  # often the best round is one of the first",
)
_STOPPING = ("stopping = 0.15  # of the training rows, which no network trains on",)
_STOPPING_LATER = (
    "# stopping = 0.15  # of the training rows: with early_stopping = 20 in [experiment] training",
    "# ends where the loss on them no longer falls, sooner and with better probabilities",
)


_PREPROCESSING = (
    "",
    "[preprocessing]",
    "intercept = 10  # a constant column of 10, so that the penalty hardly holds for its weight",
)


def _labelled_rows(table: TableProposal) -> int:
    """Return how many rows of a table have a label; all, of a matrix."""
    if not table.columns:
        return table.rows
    label = table.columns.get(table.source.label or "")
    return 0 if label is None else int((label.codes >= 0).sum())


def dictionary_of(place: Path) -> Path:
    """Return where the dictionary of an experiment file lies that is proposed with it."""
    return place.with_name(f"{place.stem}-columns.toml")


def dictionary_text(proposal: Proposal) -> str:
    """Return the text of the dictionary that a proposal needs; "": it needs none."""
    lines: list[str] = []
    for table in proposal.tables:
        own = {name: one for name, one in table.renamed.items() if name not in table.left_out}
        if own:
            lines += ["", f"[client.{toml(table.source.name)}]"]
            lines += [f"{toml(name)} = {toml(one)}" for name, one in own.items()]
    for name in proposal.no_and_yes:
        lines += ["", f"[feature.{toml(name)}]"]
        lines += ["no_and_yes = true  # no and yes in other words are one"]
    for name in proposal.ignore_case:
        lines += ["", f"[feature.{toml(name)}]"]
        lines += ["ignore_case = true  # values that differ in case alone are one"]
    said = (
        "Written by intarsia init. It is the dictionary of [alignment] of the experiment file: a "
        "party's columns, and the feature that each is."
    )
    return "\n".join([*_comment(said), *lines, ""]) if lines else ""


def toml(value: Any) -> str:
    """Return a text, a whole number, a list of texts or a table of texts as TOML."""
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        if '"' in value and "'" not in value and value.isprintable():
            return f"'{value}'"
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{toml(key)} = {toml(own)}" for key, own in value.items()) + " }"
    return "[" + ", ".join(map(toml, value)) + "]"


def _advice_on_label(proposal: Proposal) -> str:
    """Return what to compare where labels have a few values far from the rest, at any table."""
    named = [(table.columns, table.source.label or "") for table in proposal.tables]
    advice = [columns[label].advice_on_label for columns, label in named if label in columns]
    return next(filter(None, advice), "")


def penalty(features: int, labelled: int) -> float:
    """Return a regularisation for so many features, and samples with a label, to one digit.

    It is a tenth of the features for each training sample: 0.1 p / n.
    """
    trained = max((1 - _TEST) * labelled, 1)
    found = min(max(0.1 * features / trained, LEAST_PENALTY), _MOST_PENALTY)
    return float(f"{found:.0e}")


def _algorithm(
    advice: Advice,
    algorithm: str,
    *,
    linear: bool,
    asked: bool,
    numbers: bool,
    counts: bool,
    on_label: str,
    regularisation: float,
) -> list[str]:
    why = f"fits: {advice.algorithm or 'nothing'}: {advice.why}"
    if asked:
        why += f" Here {algorithm}, as asked for."
    elif advice.algorithm not in (algorithm, None):
        why += f" Here {algorithm}, which needs no further library, to begin with."
    lines = ["[algorithm]", *_comment(why), f"name = {toml(algorithm)}"]
    if not linear:
        return lines
    loss = "poisson" if counts else "squared" if numbers else "logistic"
    said = "the label is a number" if numbers else "the label has classes"
    if counts:
        said = "the label is a count: most are small, and fewer and fewer are large"
    if numbers and on_label and not counts:
        lines += _comment(f"The label has a few values far {on_label}")
    return [
        *lines,
        f"loss = {toml(loss)}  # {said}",
        f"regularisation = {regularisation:g}  # more for many features and few rows; intarsia "
        "tune looks for it",
    ]


def _labels(proposal: Proposal) -> list[str]:
    """Return the table [labels], as a comment where nothing needs to be set."""
    classes = proposal.classes
    if proposal.positive is not None:
        why = "scores and coefficients speak for it"
        if proposal.rarer is not None:
            why += f"; {proposal.rarer} has fewer rows"
        return ["", "[labels]", *_set("positive", proposal.positive, why)]
    if classes is None or len(classes) < 3:
        return []
    if proposal.counts or proposal.grades:
        words = 'or, if the numbers are classes: task = "multiclass" and loss = "logistic"'
        return ["", "[labels]", 'task = "regression"', *_comment(words)]
    whole = all(one.lstrip("-").isdecimal() for one in classes)
    return [
        "",
        "[labels]",
        'task = "multiclass"',
        *(
            _comment(f"or one class against all others: positive = {toml(one)}")[0]
            for one in proposal.usual[-1:]
        ),
        *(
            _comment(
                'or, if they are amounts: task = "regression" and loss = "squared", or "poisson"'
            )
            if whole
            else ()
        ),
    ]


def _client(table: TableProposal, folder: Path, names: Collection[str]) -> list[str]:
    source = table.source
    size = f"{several(table.rows, 'row')}, {several(table.width, 'column')}"
    lines: list[str] = []
    if source.path is None:
        lines += [f"url = {toml(relative_url(source, folder))}"]
        lines += _set("query", source.query, size)
    else:
        place = Path(os.path.relpath(source.path, folder)).as_posix()
        place = f"./{place}" if place.startswith("~") else place  # else it would be the user's home
        lines += [f"path = {toml(place)}  # {size}"]
    for key in _KEYS:
        value = getattr(source, key)
        why = table.reasons.get(key, "")
        unset = value in (None, (), {}) or (key, value) == ("decimal", ".")
        if unset or (key == "missing" and "missing" not in table.reasons):
            lines += _comment(f"no {key}: {why}") if key == "id" and why else []
            lines += (
                _comment(f"label: {why}") if key == "label" and why and not table.columns else []
            )
            continue
        lines += _set(key, value, why)
    lines += _learned(table)
    kept = {*names, "days", "day first", "month first"}
    if table.left_out:
        lines += ["exclude = ["]
        # others get the file: cells and counts are told on the terminal
        for name, why in table.left_out.items():
            told = _QUOTED.sub(
                lambda one: (
                    one[0] if one[0][1:-1] in kept or _SIGN.fullmatch(one[0][1:-1]) else "..."
                ),
                _SUCH_AS.sub("", why),
            )
            lines += _behind(f"{toml(name)},", told, indent="  ")
        lines += ["]"]
    return lines


def _set(key: str, value: Any, why: str) -> list[str]:
    """Return a key with its value, and why: behind it, or above it where the line is long."""
    return _behind(f"{key} = {toml(value)}", why)


def _behind(line: str, why: str, indent: str = "") -> list[str]:
    """Return a line, and why: behind it, or above it where that is long."""
    line = indent + line
    behind = f"{line}  # {_plain(why)}" if why else line
    return [behind] if len(behind) <= _WIDTH else [*_comment(why, indent=indent), line]


def _learned(table: TableProposal) -> list[str]:
    """Return a comment of what is learned from."""
    if not table.columns:
        return []
    kinds: Mapping[str, list[str]] = {"numbers": [], "text, as categories": []}
    for own in table.features:
        if own.name not in table.source.categorical:
            plain = own.figures is not None or own.truths
            kinds["numbers" if plain else "text, as categories"].append(own.name)
    said = []
    for kind, some in kinds.items():
        more = f" and {len(some) - _MOST_LISTED:,} more" if len(some) > _MOST_LISTED else ""
        if some:
            said.append(f"{kind}: {', '.join(some[:_MOST_LISTED])}{more}")
    numbers = [own for own in table.features if own.name in kinds["numbers"]]
    if answers := [own.name for own in numbers if own.name in table.answers]:
        said.append(
            f"taken for answers on one scale: {', '.join(answers)}; list in categorical what are "
            "codes without an order"
        )
    label = [table.columns[name] for name in (table.source.label,) if name is not None]
    amounts = [*numbers, *(one for one in label if one.kinds == "numbers")]
    for own in (*table.features, *label):
        doubtful = [] if own.doubtful_code is None else [own.doubtful_code]
        for code in dict.fromkeys((*(own.stand_ins if own in amounts else ()), *doubtful)):
            advice = f"add {toml(str(code))} to missing, which holds for all features of the table"
            if own.name == table.source.label:
                advice = f'set label_map = {{ {toml(str(code))} = "" }}, which is no label'
            said.append(f"{own.name}: {code} may stand for a missing value; if so, {advice}")
    for tail, (where, better) in _TAILS.items():
        tails = [own.name for own in numbers if own.tail == tail]
        if tails:
            said.append(
                f"with a few values far {where}: {', '.join(tails)}; {better} may be better"
            )
    return _comment(*said)


def _comment(*sentences: str, indent: str = "") -> list[str]:
    begin = f"{indent}# "
    return [
        f"{begin}{line}"
        for one in sentences
        for line in textwrap.wrap(_plain(one), _WIDTH - len(begin), break_long_words=False)
    ]


def _plain(text: str) -> str:
    """Return text on one line that a comment may have."""
    return printable(" ".join(text.split()))
