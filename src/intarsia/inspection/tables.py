"""What an inspection found as tables and lines of text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

from rich.table import Table
from rich.text import Text

from intarsia.core.block import Labels
from intarsia.core.schema import Schema
from intarsia.core.text_tables import MOST_LINES, Part, add_more, new_table
from intarsia.inspection.overlap import BlockClasses, HoldingsRow, OverlapCounts
from intarsia.inspection.recommend import Advice


def holdings_parts(
    schema: Schema,
    rows: Sequence[HoldingsRow],
    overlaps: OverlapCounts,
    advice: Advice,
) -> list[Part]:
    """Return who holds what, what overlaps, and which algorithm fits."""
    table = new_table(
        "Who holds what", "client", "rows", "features", "labels", "shared rows", "shared features"
    )
    with_missing = any(row.missing is not None for row in rows)
    if with_missing:
        table.add_column("missing", justify="right")
    for row in rows[:MOST_LINES]:
        cells = [
            row.client,
            f"{row.samples:,}",
            f"{row.features:,}",
            f"{row.labelled:,}" if row.labelled else "–",
            f"{row.shared_samples:,}",
            f"{row.shared_features:,}",
        ]
        if with_missing:
            cells.append("–" if row.missing is None else f"{row.missing:.1f} %")
        table.add_row(*map(Text, cells))
    add_more(table, len(rows))
    labelled = int((schema.label_holders > 0).sum())
    table.add_section()
    table.add_row("all", *(f"{n:,}" for n in (len(schema.samples), len(schema.features), labelled)))
    parts: list[Part] = [table]
    counts = overlaps.samples + overlaps.features
    if len(overlaps.clients) > 1 and counts.sum() > counts.trace():  # two have something in common
        parts += [_pairs(overlaps), _depths(schema)]
    parts += [f"note: {remark}" for remark in advice.remarks]
    fits = f"{advice.algorithm or 'nothing that is available'}: {advice.why}"
    if advice.obstacle:
        parts.append(f"a run would stop: {advice.obstacle}")
    return [*parts, f"{'as far as the tables go, ' if advice.obstacle else ''}fits: {fits}"]


def classes_line(labels: Labels, counts: Mapping[str, int]) -> str:
    """Return how many samples have each class."""
    told = [f"{name} ({count:,})" for name, count in counts.items()]
    more = f" and {len(told) - MOST_LINES} more" if len(told) > MOST_LINES else ""
    shown = ", ".join(told[:MOST_LINES]) + more
    return f"labels: {labels.name}: {shown or 'numbers to predict'}"


def blocks_table(held: BlockClasses) -> Table:
    """Return how many clients hold each feature block, and the classes of which nobody does."""
    columns = ("block", "holders of a class: fewest", "most", "classes of nobody")
    table = new_table("Feature blocks", *columns)
    for name, counts in list(held.counts.items())[:MOST_LINES]:
        few, most = min(counts.values()), max(counts.values())
        nobody = [one for one, count in counts.items() if not count]
        shown = ", ".join(nobody[:8]) + (f" and {len(nobody) - 8} more" if len(nobody) > 8 else "")
        table.add_row(*map(Text, (name, str(few), str(most), shown or "–")))
    add_more(table, len(held.blocks))
    return table


def _pairs(overlaps: OverlapCounts) -> Table:
    table = new_table("In common", "clients", "rows", "features", "entries")
    counts = (overlaps.entries, overlaps.samples, overlaps.features)
    pairs = [
        (*(int(one[a, b]) for one in counts), a, b)
        for a, b in combinations(range(len(overlaps.clients)), 2)
    ]
    pairs.sort(key=lambda pair: (-pair[0], -pair[1], -pair[2], pair[3], pair[4]))
    for entries, samples, features, a, b in pairs[:MOST_LINES]:
        names = f"{overlaps.clients[a]}, {overlaps.clients[b]}"
        table.add_row(Text(names), f"{samples:,}", f"{features:,}", f"{entries:,}")
    add_more(table, len(pairs))
    return table


def _depths(schema: Schema) -> Table:
    """Return how many samples and features are held by how many clients."""
    table = new_table("Held by how many", "clients", "rows", "features")
    counts: dict[int, list[int]] = {}
    for position, index in enumerate((schema.samples, schema.features)):
        for cell in index.cells:
            counts.setdefault(len(cell.owners), [0, 0])[position] += cell.stop - cell.start
    for holders in sorted(counts)[:MOST_LINES]:
        table.add_row(str(holders), *(f"{count:,}" for count in counts[holders]))
    add_more(table, len(counts))
    return table
