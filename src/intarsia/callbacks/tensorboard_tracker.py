"""A run in TensorBoard: metrics by round, and the scores at the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from intarsia.callbacks.contents import folder_of, metrics_of, scores_of
from intarsia.callbacks.trackers import library
from intarsia.experiment.config import Experiment
from intarsia.results.result import Result
from intarsia.training.loop import Progress


class TensorBoard:
    """Write files that TensorBoard shows, into tensorboard/ of the output folder.

    Parameters
    ----------
    folder
        Where to, instead; where a run writes no folder, None is tensorboard/NAME in this one.

    Raises
    ------
    ExperimentError
        If the library tensorboard is not installed.
    """

    def __init__(self, *, folder: str | Path | None = None) -> None:
        self._summary = library("tensorboard.summary", "tensorboard")
        self._folder = folder
        self._writer: Any = None

    def on_start(self, description: Experiment) -> None:
        """Begin a file; that of a run that goes on is shown behind the one before."""
        own = folder_of(description)
        inside = Path("tensorboard", description.name) if own is None else own / "tensorboard"
        self._writer = self._summary.Writer(str(self._folder or inside))

    def on_round(self, now: Progress) -> None:
        """Write a round's metrics."""
        for name, one in metrics_of(now).items():
            self._writer.add_scalar(f"round/{name}", one, now.round)

    def on_end(self, result: Result) -> None:
        """Write the scores, and end the file."""
        for name, one in scores_of(result).items():
            model, _, figure = name.rpartition(".")
            self._writer.add_scalar(f"{model}/{figure}", one, result.rounds)
        self._close()

    def on_stop(self, error: BaseException) -> None:
        """End the file."""
        self._close()

    def _close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
