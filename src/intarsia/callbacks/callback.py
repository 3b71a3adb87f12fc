"""What a callback hears of a run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from intarsia.errors import ExperimentError, listed
from intarsia.experiment.config import Experiment
from intarsia.results.result import Result
from intarsia.training.loop import Progress

METHODS = ("on_start", "on_round", "on_end", "on_stop")


def checked(callbacks: Sequence[Any]) -> tuple[Any, ...]:
    """Return objects that hear of a run; ExperimentError if one of them hears nothing."""
    if isinstance(callbacks, str) or not isinstance(callbacks, Iterable):
        raise ExperimentError(
            f"callbacks is {repr(callbacks)[:80]}; give a list of objects, such as "
            "[intarsia.callbacks.MLflow()]."
        )
    for one in callbacks:
        if isinstance(one, type) or not any(callable(getattr(one, n, None)) for n in METHODS):
            raise ExperimentError(
                f"callbacks has {repr(one)[:80]}, which hears nothing of a run; give an object "
                f"with one of the methods {listed(METHODS)}, such as intarsia.callbacks.MLflow()."
            )
    return tuple(callbacks)


class Callback:
    """What a run tells while it goes on; give those of these methods that you need.

    An error in one is told in a warning, and training goes on.
    """

    def on_start(self, description: Experiment) -> None:
        """Hear that training begins, or goes on; `out` is "" where nothing is written."""

    def on_round(self, now: Progress) -> None:
        """Hear how far the run is, after each round."""

    def on_end(self, result: Result) -> None:
        """Hear what the run came to, once its reference models are trained too."""

    def on_stop(self, error: BaseException) -> None:
        """Hear that the run was stopped, or failed, before its end: KeyboardInterrupt, or why."""
