"""What parties are worth to each other, as tables and lines of text."""

from __future__ import annotations

from collections.abc import Mapping

from rich.text import Text

from intarsia.core.block import ClientId
from intarsia.core.text_tables import MOST_LINES, Part, add_more, new_table
from intarsia.results.figure_text import number
from intarsia.valuation.study import OTHERS, Contribution, Table, Worth

WORDS = {"auc": "AUC", "accuracy": "accuracy", "r2": "R²", "mae": "mean absolute error"}
_ACROSS = 6  # parties beside each other; more stand below each other


def contribution_parts(found: Contribution) -> list[Part]:
    """Return the values of each party, then what each of the others is worth to it."""
    title = f"{found.experiment}: {found.algorithm}, {WORDS[found.measure]} on own test rows"
    table = new_table(title, "party", "rows", "without\na model", "alone", "with all", "95 %")
    for name in found.parties[:MOST_LINES]:
        whole = found.together.get(name)
        table.add_row(
            Text(name),
            f"{found.rows[name]:,}" if found.rows[name] else "no label",
            number(found.baseline.get(name)),
            number(found.alone[name].value) if name in found.alone else "–",
            number(None if whole is None else whole.value),
            "" if whole is None else f"{number(whole.low)} to {number(whole.high)}",
        )
    add_more(table, len(found.parties))
    parts: list[Part] = [table]
    gain = "less error" if found.measure == "mae" else "gain"
    if found.shapley is not None:
        title = f"Shapley values: each party's share in the {gain}, against each alone"
        parts += _worths(title, found.shapley, found.parties, found.sums)
    title = f"Left out: what is lost without a party ({gain} by it)"
    parts += _worths(title, found.left_out, found.parties, {})
    return [*parts, *(f"note: {note}" for note in found.notes)]


def _worths(
    title: str, worth: Table, parties: tuple[ClientId, ...], sums: Mapping[str, float]
) -> list[Part]:
    """Return a table of who is worth what to whom."""
    if len(parties) <= _ACROSS:
        table = new_table(title, "to", *(f"of {name}" for name in parties))
        if sums:
            table.add_column("sum", justify="right")
        only = len(worth) == 3  # one party has test rows, and its line is the mean
        for to, own in worth.items():
            if to == OTHERS and only:
                continue
            cells = [_cell(own.get(name)) for name in parties]
            table.add_row(Text(to), *cells, *([_signed(sums[to])] if sums else []))
        return [table]
    *_, others, every = worth  # of many the averages alone
    table = new_table(title, "party", f"to {others}", f"to {every}")
    for name in parties[:MOST_LINES]:
        cells = [_cell(worth[to].get(name)).replace("\n", " ") for to in (others, every)]
        table.add_row(Text(name), *cells)
    add_more(table, len(parties))
    return [table]


def _cell(one: Worth | None) -> str:
    if one is None:
        return "–"
    return f"{_signed(one.value)}\n{_signed(one.low)} to {_signed(one.high)}"


def _signed(value: float) -> str:
    return f"{value:+.4f}" if abs(value) < 1 else f"{value:+.4g}"
