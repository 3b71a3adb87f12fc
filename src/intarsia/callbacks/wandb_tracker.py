"""A run in Weights & Biases: settings, metrics by round, scores, and the files it leaves."""

from __future__ import annotations

import os
from typing import Any

from intarsia.callbacks.contents import (
    files_of,
    folder_of,
    keep_id,
    kept_id,
    metrics_of,
    scores_of,
    settings_of,
)
from intarsia.callbacks.trackers import library
from intarsia.experiment.config import Experiment
from intarsia.results.result import Result
from intarsia.training.loop import Progress


class WeightsAndBiases:
    """Tell Weights & Biases how a run goes; one that goes on is the same run there.

    Parameters
    ----------
    project
        The project; None: as WANDB_PROJECT says, else "intarsia".
    files
        Whether report, result, figures and model are sent too.
    settings
        Of `wandb.init`, before what its own settings say (WANDB_MODE, WANDB_ENTITY …).

    Raises
    ------
    ExperimentError
        If the library wandb is not installed.
    """

    def __init__(self, *, project: str | None = None, files: bool = True, **settings: Any) -> None:
        # what the library would tell its makers is not the user's wish
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        self._wandb = library("wandb", "wandb")
        self._project = project or os.environ.get("WANDB_PROJECT") or "intarsia"
        self._files, self._settings = files, settings
        self._run: Any = None

    def on_start(self, description: Experiment) -> None:
        """Begin a run with the settings, or go on with that of the folder."""
        folder = folder_of(description)
        given = {
            "project": self._project,
            "name": description.name,
            "config": settings_of(description),
            "id": kept_id(folder, "wandb"),
            "resume": "allow",
            # not the command and its arguments, folders, the code's repository, what a terminal
            # shows, nor how busy the machine is
            "settings": self._wandb.Settings(
                x_disable_meta=True,
                x_disable_machine_info=True,
                x_disable_stats=True,
                disable_git=True,
                disable_code=True,
                save_code=False,
                console="off",
            ),
            **self._settings,
        }
        if folder is not None:
            given.setdefault("dir", str(folder))
        self._run = self._wandb.init(**given)
        keep_id(folder, "wandb", self._run.id)

    def on_round(self, now: Progress) -> None:
        """Send a round's metrics."""
        self._run.log(metrics_of(now), step=now.round)

    def on_end(self, result: Result) -> None:
        """Send scores and files, and end the run."""
        self._run.summary.update(scores_of(result))
        if self._files:
            with files_of(result) as folder:
                made = self._wandb.Artifact(f"run-{self._run.id}", type="run")
                made.add_dir(str(folder))
                self._run.log_artifact(made)
                self._run.finish()  # it reads the files until then
        else:
            self._run.finish()
        self._run = None

    def on_stop(self, error: BaseException) -> None:
        """End the run as stopped."""
        run, self._run = self._run, None
        if run is not None:
            run.finish(exit_code=1)
