"""`intarsia init`: an experiment file for a newcomer's tables, or an example with its data."""

from __future__ import annotations

import importlib.util
import os
import shlex
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import intarsia
from intarsia.cli.console import console, say
from intarsia.errors import ExperimentError, FederationError, listed, nearest

if TYPE_CHECKING:
    from intarsia.api import Inspection
    from intarsia.experiment.config import Experiment
    from intarsia.inspection.proposals.proposal import Proposal
    from intarsia.inspection.proposals.table_proposal import TableProposal

_FILE = Path("mine.toml")  # unless --out names another
_EXAMPLES = ("credit", "heart")


def write_proposal(
    tables: Sequence[str],
    out: Path | None,
    ids: Sequence[str],
    labels: Sequence[str],
    algorithm: str | None = None,
    *,
    overwrite: bool,
) -> None:
    """Write the experiment file that is proposed for tables; show what it describes.

    `algorithm` is the name of the one that it is to have; None: one that fits.

    Raises
    ------
    UserError
        If there is no such algorithm, a table cannot be read, nothing can be learned from them, or
        a file would be replaced.
    """
    from intarsia import api
    from intarsia.core.memory import give_back
    from intarsia.core.schema import Schema
    from intarsia.core.settings import toml_tree
    from intarsia.experiment.config import from_dict
    from intarsia.experiment.federation import parties, read_tables
    from intarsia.inspection.proposals.experiment_text import (
        dictionary_of,
        dictionary_text,
        experiment_text,
        penalty,
    )
    from intarsia.inspection.proposals.proposal import propose
    from intarsia.inspection.recommend import Advice, fitting
    from intarsia.training.registry import algorithm_named

    if algorithm is not None:
        algorithm_named(algorithm)  # before the tables are read
    file = _to_write(out or _FILE, overwrite=overwrite)
    proposal = propose(tables, ids, labels, file)
    give_back()  # what the tables were read into: they are read again
    dictionary, columns = dictionary_of(file), dictionary_text(proposal)
    if columns:
        _to_write(dictionary, overwrite=overwrite)

    place = file.parent.resolve() / file.name
    with tempfile.TemporaryDirectory(prefix="intarsia-") as folder:
        if columns:  # it is written with the file, or not at all
            (Path(folder) / dictionary.name).write_text(columns, encoding="utf-8")

        def text_of(advice: Advice, name: str, **how: Any) -> str:
            kind, asked = algorithm_named(name).model.kind, algorithm is not None
            return experiment_text(proposal, advice, name, place, kind=kind, asked=asked, **how)

        def written(advice: Advice, name: str, **how: Any) -> tuple[str, Experiment]:
            text = text_of(advice, name, **how)
            described = from_dict(toml_tree(text, file), file.parent, file.stem)
            if columns:
                now = replace(described.alignment, dictionary=str(Path(folder) / dictionary.name))
                described = replace(described, alignment=now)
            return text, described

        text, described = written(Advice("hyfdca", ""), "hyfdca", numbers=False)
        try:  # to know what fits
            read = read_tables(described)  # as all files that follow say them
            blocks, meant, _ = parties(described, read.copy)
            schema = Schema.of(blocks, meant)
            del blocks
        except FederationError as problem:  # labels in other words, say: the file says what to do
            why = "what fits is known once a run would begin."
            unfit = Advice("hyfdca", why, obstacle=str(problem))
            how: dict[str, Any] = {"numbers": proposal.numbers, "labels": False}
            text, found = text_of(unfit, algorithm or "hyfdca", **how), None
            obstacle = str(problem)
        else:
            advice = fitting(schema)
            if advice.algorithm is None:
                checked = "".join(f" Check: {note}" for note in proposal.notes)
                raise ExperimentError(
                    f"Nothing can be learned from these tables together: {advice.why.rstrip('.')}; "
                    f"see whether --id or --label names the right columns.{checked}"
                )
            by_itself = advice.algorithm == "flic" and _has_torch()
            chosen = algorithm or (advice.algorithm if by_itself else "hyfdca")
            labelled = int((schema.label_holders > 0).sum())
            how = {
                "numbers": schema.labels.task == "regression",
                "regularisation": penalty(len(schema.features.ids), labelled),
            }
            text, described = written(advice, chosen, **how)
            found = api.inspection_of(described, read.copy, chosen)
            obstacle = found.advice.obstacle
            if obstacle:
                text, _ = written(replace(advice, obstacle=obstacle), chosen, **how)
    if columns:
        _write(dictionary, columns.encode())
    _write(file, text.encode())
    if found is not None:
        _show(found)
    _tell(proposal, file, dictionary if columns else None, obstacle)


def _tell(proposal: Proposal, file: Path, dictionary: Path | None, obstacle: str) -> None:
    """Say what was taken for what, what was written, and what is to be done next."""
    for note in proposal.notes:
        say(f"check: {note}")
    for table in proposal.tables:
        tell_table(table)
    wrote = f"wrote {file}{'' if dictionary is None else f' and {dictionary}'}"
    if obstacle:
        say(f"{wrote}, which does not run yet: {obstacle}")
        _what_next("mend that in the file, and change what is not so; then", file)
    else:
        it = "it" if dictionary is None else "them"
        _what_next(f"{wrote}: read {it}, and change what is not so; then", file)


def tell_table(table: TableProposal) -> None:
    """Say what was taken for what in a table, and what is left out and why."""
    from intarsia.data.source import Source

    said = {"id": table.source.id, "label": table.source.label}
    told = [f"{key} {name!r}" for key, name in said.items() if name is not None]
    if told and table.source.label is not None and "label" in table.reasons:
        told[-1] += f" ({table.reasons['label']})"
    elif not table.columns and "label" in table.reasons:
        told.append(table.reasons["label"])
    by = table.source.split_by
    told += [] if by is None else [f"rows of one {by!r} are held out together"]
    if "missing" in table.reasons:
        marks = [one for one in table.source.missing if one not in Source.missing]
        told += [f"takes for missing {listed(marks)}"]
    codes = table.source.categorical
    kind = "codes" if table.source.least_rows is None else "categories"
    told += [f"takes for {kind} {listed(codes)}"] if codes else []
    told += [f"leaves out {listed(table.left_out)}"] if table.left_out else []
    say(f"{table.source.name}: {'; '.join(told) or 'no id and no label'}")
    for name, why in table.left_out.items():
        say(f"  {name!r}: {why}")


def write_example(name: str, out: Path | None, *, overwrite: bool) -> None:
    """Write an example's experiment file, and its tables into a folder beside it.

    ExperimentError if there is none of that name, or a file would be replaced.
    """
    from intarsia import api

    if name not in _EXAMPLES:
        raise ExperimentError(f"--example {name!r} is none; {nearest(name, _EXAMPLES)}.")
    text, tables = _example(name)
    file = out or Path(f"{name}.toml")
    folder = file.parent / name
    for path in (file, *(folder / table.name for table in tables)):
        _to_write(path, overwrite=overwrite)
    folder.mkdir(parents=True, exist_ok=True)
    for table in tables:
        _write(folder / table.name, table.read_bytes())
    _write(file, text.replace(f"../examples/data/{name}/", f"{name}/").encode())
    _show(api.inspect(file))
    _what_next(f"wrote {file}: its tables are in {folder}; now", file)


def _example(name: str) -> tuple[str, list[Path]]:
    """Return the experiment file and the tables of an example: the package's, or the checkout's."""
    package = Path(intarsia.__file__).parent
    root = package.parents[1]
    for file, data in (
        (package / f"examples/{name}.toml", package / f"examples/data/{name}"),
        (root / f"experiments/{name}.toml", root / f"examples/data/{name}"),
    ):
        if file.is_file() and data.is_dir():
            return file.read_text(encoding="utf-8"), sorted(data.glob("*.csv*"))
    raise ExperimentError("This installation has no examples; install the package anew.")


def _has_torch() -> bool:
    return importlib.util.find_spec("torch") is not None


def _to_write(file: Path, *, overwrite: bool) -> Path:
    """Return a path that may be written; ExperimentError if it may not."""
    if file.is_dir():
        raise ExperimentError(f"{file} is a folder; name a file in it.")
    if file.exists() and not overwrite:
        raise ExperimentError(
            f"{file} is there already; name another file with --out, or add --overwrite."
        )
    if file.suffix == ".toml" and not file.parent.is_dir():
        raise ExperimentError(f"{file.parent} is no folder; make it first, or name another file.")
    return file


def _write(file: Path, content: bytes) -> None:
    from intarsia.core.files.atomic_files import write_over

    write_over(file, content)


def _show(found: Inspection) -> None:
    """Show what `intarsia inspect` shows."""
    from intarsia.core.text_tables import show

    show(console(), *found.parts())


def _what_next(before: str, file: Path) -> None:
    say(f"{before}:")
    say(f"  intarsia run {shlex.quote(os.fspath(file))}")
