"""`intarsia federation table`: what a site's file says of its table; what others learn of it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from intarsia.cli.console import say
from intarsia.cli.first_steps import tell_table
from intarsia.errors import ExperimentError, listed, several

if TYPE_CHECKING:
    from intarsia.data.table import Table

# a [table] with its subtables, but for comments above what follows it
_TABLE = re.compile(
    r"^\[\s*table\s*[\].].*?(?=^(?:#[^\n]*\n(?:#[^\n]*\n|[ \t]*\n)*)?\[(?!\s*table\s*[\].])|\Z)",
    re.M | re.S,
)
# what stands in its place until there is one
_NO_TABLE = re.compile(r"^# \[table\].*\n(?:# (?:path|id|label) = .*\n)*", re.M)
_MOST_TOLD = 12  # columns


def write_site_table(
    kit: Path, named: str, ids: Sequence[str], labels: Sequence[str] | None, *, overwrite: bool
) -> None:
    """Write what a table is into the file of a kit's site; say what others learn of it.

    Parameters
    ----------
    kit
        The site's kit, in which local/site.toml lies.
    named
        The table: a file, or a database's table as `intarsia init` takes it.
    ids, labels
        As of `propose`: the first column that the table has; `labels` None: it has no labels.
    overwrite
        Whether a [table] that is there may be replaced.

    Raises
    ------
    UserError
        If there is no site's file, or it names a table already; if the table cannot be read, or no
        label can be told.
    """
    from intarsia.core.files.atomic_files import write_atomically
    from intarsia.data.reader import read
    from intarsia.deployment.client_folder import read_settings, table_of
    from intarsia.inspection.proposals.experiment_text import table_text
    from intarsia.inspection.proposals.proposal import propose

    folder = kit / "local"
    settings = read_settings(folder, kit.name)
    file = folder / "site.toml"
    if settings.table is not None and not overwrite:
        raise ExperimentError(
            f"{file} has a [table] already, of {_place(settings.table.path)}; add --overwrite to "
            "replace it."
        )
    try:
        proposal = propose([named], ids, labels, file)
    except ExperimentError as problem:
        if labels is None or "--label" not in str(problem):
            raise
        raise ExperimentError(
            f"{str(problem).rstrip('.')}; or --no-label, where the site has no labels."
        ) from None
    (table,) = proposal.tables
    table = replace(table, source=replace(table.source, name=settings.name))
    before = file.read_text(encoding="utf-8")
    own = table_text(replace(proposal, tables=(table,)), folder.resolve())
    source = table_of(tomllib.loads(own)["table"], settings.name, folder, file)
    seen = read(source)
    after = f"{_NO_TABLE.sub('', _TABLE.sub('', before)).rstrip()}\n\n{own}"
    if _beside(after) != _beside(before):
        raise ExperimentError(
            f"{file} has its [table] written in a way that cannot be replaced here; take it out, "
            "and run this again."
        )
    write_atomically(file, after.encode(), private=True)
    for note in proposal.notes:
        say(f"check: {note}")
    tell_table(table)
    for line in _told_of(seen, source.id):
        say(line)
    say(f"wrote [table] into {file}: read it, and change what is not so.")
    say(f"It holds from the next start on: intarsia federation site {kit}")


def _place(path: str | None) -> str:
    return "a database" if path is None else Path(path).name


def _beside(text: str) -> dict[str, object] | None:
    """Return what a site's file says but for its table; None: it is no TOML."""
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError:  # as where the table was not found, and is there twice
        return None
    return {key: own for key, own in tree.items() if key != "table"}


def _told_of(table: Table, own_id: str | None) -> list[str]:
    """Return in sentences what the server and other sites learn of a table before the first sum."""
    from intarsia.deployment.table_metadata import classes_of

    texts = [
        f"{len(one.public_levels):,} of {name!r}"
        + (" (all)" if one.least_rows <= 1 else f" (those of {one.least_rows} rows or more)")
        for name, one in table.categorical.items()
    ]
    more = len(texts) - _MOST_TOLD
    texts[_MOST_TOLD:] = [f"those of {several(more, 'column')} more"] if more > 0 else []
    named = [] if table.labels is None else [f"the label {table.labels.name!r}"]
    named += [] if own_id is None else [f"the id {own_id!r}"]
    if table.labels is not None and (found := classes_of(table.labels)):
        texts.append(
            f"{several(len(found), 'class', 'classes')} of {table.labels.name!r}: "
            f"{listed(found, _MOST_TOLD)}"
        )
    texts += ["units of columns"] if table.units else []
    said = [
        f"{several(len(table.samples), 'row')}. Before the first sum the server and the other "
        f"sites learn the names of {several(len(table.columns), 'column')}: "
        f"{listed(table.columns, _MOST_TOLD)}{'; of ' if named else ''}{' and '.join(named)}."
    ]
    if texts:
        said.append(f"They learn these texts: {', '.join(texts)}.")
    return said
