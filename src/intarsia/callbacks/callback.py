"""What a callback hears of a run."""

from __future__ import annotations

from intarsia.experiment.config import Experiment
from intarsia.results.result import Result
from intarsia.training.loop import Progress


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
