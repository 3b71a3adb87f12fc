"""The trackers that an experiment names."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from intarsia.errors import ExperimentError, IntarsiaError
from intarsia.results import run_folder

_HOMES = {
    "mlflow": ("intarsia.callbacks.mlflow_tracker", "MLflow"),
    "tensorboard": ("intarsia.callbacks.tensorboard_tracker", "TensorBoard"),
    "wandb": ("intarsia.callbacks.wandb_tracker", "WeightsAndBiases"),
}


def named(trackers: Sequence[str]) -> list[Any]:
    """Return the trackers with these names, as their own environment settings say.

    Raises
    ------
    ExperimentError
        If a tracker's library is not installed.
    """
    return [getattr(importlib.import_module(_HOMES[one][0]), _HOMES[one][1])() for one in trackers]


def of_run(folder: str | Path) -> list[Any]:
    """Return the trackers of the run in a folder; none where the folder does not say."""
    try:
        description = run_folder.described(Path(folder))
    except IntarsiaError:
        return []  # who goes on with the run says what is wrong
    return [] if description is None else named(description.trackers)


def library(name: str, extra: str) -> Any:
    """Return a tracker's library.

    Raises
    ------
    ExperimentError
        If it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        raise ExperimentError(
            f"The tracker {extra!r} needs the library {extra}, which is not installed; run "
            f'pip install "intarsia[{extra}]", or leave it out of experiment.trackers.'
        ) from None
