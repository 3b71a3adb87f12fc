"""The terminal while a run goes on: how far it is."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.text import Text

from intarsia.results.comparison import duration, gap, number, percent, size

if TYPE_CHECKING:
    from intarsia.training import loop as training


_SECONDS_BETWEEN_LINES = 3.0


class Watch:
    """Show a run's progress: a bar on a terminal, else a line every few seconds."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last = 0.0
        self._bar: Progress | None = None
        self._task = TaskID(0)
        if console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.fields[phase]}", markup=False),
                BarColumn(bar_width=16),
                TextColumn("{task.fields[figures]}", markup=False),
                console=console,
                transient=True,
            )
            self._task = self._bar.add_task("", total=None, phase="reading tables", figures="")

    def __enter__(self) -> Watch:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

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
        now = time.monotonic()
        if now - self._last >= _SECONDS_BETWEEN_LINES:
            self._last = now
            self._console.print(Text(f"{progress.phase or 'training'}: {figures}"), soft_wrap=True)


def _figures(progress: training.Progress) -> str:
    parts = [f"round {progress.round}/{progress.rounds}"]
    if progress.loss is not None:
        parts.append(f"loss {number(progress.loss)}")
    if progress.gap_relative is not None:
        parts.append(f"gap {gap(progress.gap_relative)}")
    if progress.accuracy is not None:
        parts.append(f"accuracy {percent(progress.accuracy)}")
    parts.append(size(progress.bytes))
    if progress.seconds_left is not None:
        parts.append(f"{duration(progress.seconds_left)} left")
    return "  ".join(parts)
