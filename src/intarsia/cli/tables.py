"""The terminal: tables of who holds what and of results, and how far a run is."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.text import Text

from intarsia.core.text_tables import MOST_LINES, Part, add_more, new_table, show
from intarsia.experiment.search import SCORES
from intarsia.results import comparison as figures
from intarsia.results import figure_text
from intarsia.results import tables as results

if TYPE_CHECKING:
    from intarsia.deployment.site_log import SiteLog
    from intarsia.results.comparison import Group
    from intarsia.results.result import Result
    from intarsia.training import loop as training
    from intarsia.training.yardsticks import YardstickProgress
    from intarsia.tuning.study import Trial, Tuned


_SECONDS_BETWEEN_LINES = 3.0


def show_result(console: Console, result: Result, folder: Path) -> None:
    """Show a finished run: the three-way comparison, the certificate, what it cost."""
    show(console, *results.result_parts(result, folder))


def show_comparison(console: Console, groups: Sequence[Group]) -> None:
    """Show groups of runs beside each other: scores, then costs."""
    show(console, *results.comparison_parts(groups))


def show_joined(console: Console, result: Result) -> None:
    """Show a client that joined a finished run, beside what it learns alone."""
    rows = figures.three_way(result)[:-1]  # it has no line for all samples
    scores = [score for row in rows for score in (row.standalone, row.federated)]
    console.print(results.three_way_table(result, rows, figures.measure_of(scores)))
    epochs = result.hyperparameters.get("final_epochs")  # hyfem has none: a note says what it took
    if epochs is not None:
        name = result.experiment
        show(console, f"{name}: {epochs:,} epochs on its own rows; what all share stays as it is")
    show(console, *(f"note: {note}" for note in result.notes))
    if result.folder is not None:
        show(console, f"folder: {result.folder}")


def show_tuned(console: Console, tuned: Tuned) -> None:
    """Show the trials of a search, the chosen one first, then as they were made."""
    keys = list(dict.fromkeys(key for one in tuned.trials for key in one.values))
    held = f"{tuned.folds} folds" if tuned.folds else "the validation part"
    what = "mean ± standard error" if tuned.folds else "mean"
    title = f"{tuned.experiment}: {len(tuned.trials)} trials, {what} over {held}"
    scores = {name: name in SCORES and tuned.folds > 1 for name in tuned.objectives}
    columns = [one for name, known in scores.items() for one in (name, "± error")[: 1 + known]]
    table = new_table(title, "trial", *keys, *columns)
    others = [one for one in tuned.trials if one.number != tuned.best]
    for one in (tuned.chosen, *others[: MOST_LINES - 1]):
        name = f"{one.number + 1} (the file's)" if one.number == 0 else str(one.number + 1)
        table.add_row(
            f"{name}, chosen" if one.number == tuned.best else name,
            *(_valued(one.values.get(key)) for key in keys),
            *(
                text
                for name, known in scores.items()
                for text in (_valued(one.scores.get(name, "diverged"), 7), _error(one, name))[
                    : 1 + known
                ]
            ),
        )
    add_more(table, len(tuned.trials))
    console.print(table)
    show(console, *(f"note: {note}" for note in tuned.notes))


def _error(trial: Trial, objective: str) -> str:
    return _valued(trial.error(objective) if trial.scores else None, 2)


def _valued(value: object, digits: int = 4) -> str:
    if isinstance(value, float):
        return f"{value:.{digits}g}"
    return "–" if value is None else str(value)


def log_parts(log: SiteLog, said: Sequence[str]) -> list[Part]:
    """Return what left a site by its log: in sentences, then field by field."""
    parts: list[Part] = [*results.numbered(said)]
    title = f"Jobs that began at {log.name}"
    jobs = new_table(title, "began (UTC)", "job", "algorithm", "sums")
    for column in jobs.columns[1:]:
        column.justify = "left"
    for part in ("rows to train", "to test"):
        jobs.add_column(part, justify="right")
    for one in log.jobs:
        known = one["rows"]
        rows = [f"{known[part]:,}" if part in known else "–" for part in ("train", "test")]
        began = one["at"][:16].replace("T", " ")
        jobs.add_row(*map(Text, (began, one["job"], one["algorithm"], one["sums"])), *rows)
    parts += [jobs] if log.jobs else []
    fields = [(words, field) for (function, field), words in log.contents.items() if function]
    totals = [(log.contents["", total], field) for field, total, _ in log.opened]
    kinds = results.kinds_table((*fields, *totals))
    parts += [] if kinds is None else [kinds]
    title = f"What left {log.name}"
    table = new_table(title, "field", "in", "layout", "protection", "opened by")
    table.add_column("times", justify="right")
    for column in table.columns[1:5]:
        column.justify = "left"
    for key, times in sorted(log.left.items()):
        table.add_row(*map(Text, key), f"{times:,}")
    opened = new_table(f"What {log.name} opened", "in", "totals", "to", "times")
    for column in opened.columns[1:3]:
        column.justify = "left"
    for total, times in sorted(log.opened.items()):
        opened.add_row(*map(Text, total), f"{times:,}")
    parts += [one for one in (table, opened) if one.row_count]
    for entry in log.tally.refused:
        parts.append(f"refused {entry['at'][:19]}: {entry['sentence'] or entry['error']}")
    return [*parts, f"head: {log.chain.head} (note it: --noted proves later what was before it)"]


class Watch:
    """Show a run's progress: a bar on a terminal, else a line every few seconds."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last = 0.0
        self._told = ExitStack()
        self._bar: Progress | None = None
        self._task = TaskID(0)
        # a notebook would keep each state of a bar: megabytes an hour
        if console.is_terminal and "JPY_PARENT_PID" not in os.environ:
            self._bar = Progress(
                TextColumn("{task.fields[phase]}", markup=False),
                BarColumn(bar_width=16),
                TextColumn("{task.fields[figures]}", markup=False),
                console=console,
                transient=True,
            )
            self._task = self._bar.add_task("", total=None, phase="reading tables", figures="")

    def __enter__(self) -> Watch:
        from intarsia.maths.jit import compiling_told  # here: numba takes half a second

        self._told.enter_context(compiling_told(self._compiling))
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._told.close()
        if self._bar is not None:
            self._bar.stop()

    def _compiling(self) -> None:
        said = "compiling what is not compiled yet: once, up to half a minute"
        show(self._console, f"{said} (intarsia doctor --warm does it beforehand)")

    def __call__(self, progress: training.Progress) -> None:
        """Show how far the run is."""
        figures = _figures(progress)
        if self._bar is not None:
            self._bar.update(
                self._task,
                total=progress.rounds or None,
                completed=progress.round,
                phase=progress.phase or "training",
                figures=figures,
            )
            return
        self._line(f"{progress.phase or 'training'}: {figures}")

    def beside(self, progress: YardstickProgress) -> None:
        """Show how far a reference model is; the run itself is done."""
        if not progress.step:
            said = f"the model is written; now a reference model, {progress.trained_on}"
            show(self._console, f"{said} (Ctrl-C stops it, intarsia resume goes on)")
        step = f"{progress.step} {progress.done}/{progress.most}" if progress.step else ""
        if self._bar is not None:
            self._bar.update(
                self._task,
                total=progress.most or None,
                completed=progress.done,
                phase=progress.trained_on,
                figures=step,
            )
        elif step:
            self._line(f"{progress.trained_on}: {step}")

    def _line(self, text: str) -> None:
        now = time.monotonic()
        if now - self._last >= _SECONDS_BETWEEN_LINES:
            self._last = now
            self._console.print(Text(text), soft_wrap=True)


def _figures(progress: training.Progress) -> str:
    parts = [f"round {progress.round}/{progress.rounds}"]
    if progress.loss is not None:
        parts.append(f"loss {figure_text.number(progress.loss)}")
    if progress.gap_relative is not None:
        parts.append(f"gap {figure_text.gap(progress.gap_relative)}")
    if progress.accuracy is not None:
        parts.append(f"accuracy {figure_text.percent(progress.accuracy)}")
    parts.append(figure_text.size(progress.bytes))
    if progress.seconds_left is not None:
        parts.append(f"{figure_text.duration(progress.seconds_left)} left")
    return "  ".join(parts)
