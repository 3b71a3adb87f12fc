"""A run in MLflow: settings as parameters, metrics by round, scores, and the files it leaves."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

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

_LOG: Final = logging.getLogger(__name__)
_LONGEST_NAME = 200  # letters of a model or client in a metric, which has up to 250
_LONGEST = 500  # letters of a parameter that all versions take
_SECONDS = 1.0  # between what is sent
_AT_ONCE = 100  # parameters, and fewer than the metrics that are taken


class MLflow:
    """Tell MLflow how a run goes; one that goes on is the same run there.

    Parameters
    ----------
    tracking_uri
        Where to; None: as MLflow's own settings say (MLFLOW_TRACKING_URI).
    experiment
        The name of MLflow's experiment; None: as MLFLOW_EXPERIMENT_NAME says, else "intarsia".
    files
        Whether report, result, figures and model are sent too.

    Raises
    ------
    ExperimentError
        If the library mlflow is not installed.
    """

    def __init__(
        self,
        *,
        tracking_uri: str | None = None,
        experiment: str | None = None,
        files: bool = True,
    ) -> None:
        # what the library would tell its makers is not the user's wish
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        self._mlflow = library("mlflow", "mlflow")
        self._uri, self._files = tracking_uri, files
        self._experiment = experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or "intarsia"
        self._client: Any = None
        self._run = ""
        self._waiting: list[Any] = []
        self._sent = 0.0

    def on_start(self, description: Experiment) -> None:
        """Begin a run with the settings, or go on with that of the folder."""
        self._client = self._mlflow.MlflowClient(tracking_uri=self._uri)
        folder = folder_of(description)
        before = kept_id(folder, "mlflow")
        if before is not None and self._goes_on(before):
            return
        known = self._client.get_experiment_by_name(self._experiment)
        home = known.experiment_id if known else self._client.create_experiment(self._experiment)
        self._run = self._client.create_run(home, run_name=description.name).info.run_id
        keep_id(folder, "mlflow", self._run)
        param = self._mlflow.entities.Param
        told = [param(key, str(one)[:_LONGEST]) for key, one in settings_of(description).items()]
        for start in range(0, len(told), _AT_ONCE):
            self._client.log_batch(self._run, params=told[start : start + _AT_ONCE])

    def _goes_on(self, run: str) -> bool:
        try:
            self._client.update_run(run, status="RUNNING")
        except self._mlflow.exceptions.MlflowException:
            return False  # it is of another server, or was removed
        self._run = run
        return True

    def on_round(self, now: Progress) -> None:
        """Send a round's metrics, those of quick rounds together."""
        self._add(metrics_of(now), now.round)
        if time.monotonic() - self._sent >= _SECONDS or len(self._waiting) >= _AT_ONCE:
            self._send()

    def _add(self, metrics: dict[str, float], step: int) -> None:
        at, metric, keys = int(time.time() * 1000), self._mlflow.entities.Metric, _keys(metrics)
        self._waiting += [metric(keys[name], one, at, step) for name, one in metrics.items()]

    def _send(self) -> None:
        waiting, self._waiting, self._sent = self._waiting, [], time.monotonic()
        if waiting and self._run:
            self._client.log_batch(self._run, metrics=waiting)

    def on_end(self, result: Result) -> None:
        """Send scores and files, and end the run whatever comes of them.

        Raises
        ------
        Exception
            The first that sending raised, once all else is sent.
        """
        problems: list[Exception] = []

        def each(send: Callable[[Any], object], those: Iterable[Any]) -> None:
            for one in those:
                try:
                    send(one)
                except Exception as problem:  # whatever the library raises: the rest is sent
                    problems.append(problem)

        self._add(scores_of(result), result.rounds)
        waiting, self._waiting = self._waiting, []
        starts = range(0, len(waiting), _AT_ONCE)
        batches = [waiting[start : start + _AT_ONCE] for start in starts]
        each(self._send_all, batches)
        if self._files:
            try:
                with files_of(result) as folder:
                    each(lambda path: self._send_file(path, folder), sorted(folder.rglob("*")))
            except Exception as problem:  # the report is made last
                problems.append(problem)
        each(lambda said: self._client.set_tag(self._run, "finished", said), [result.finished])
        self._client.set_terminated(self._run, "FINISHED")
        if problems:
            raise problems[0]

    def _send_all(self, metrics: list[Any]) -> None:
        """Send metrics, one by one where they are refused together; raise if one is not sent."""
        try:
            self._client.log_batch(self._run, metrics=metrics)
        except self._mlflow.exceptions.MlflowException as first:
            refused: Exception | None = None
            for one in metrics if len(metrics) > 1 else ():
                try:
                    self._client.log_batch(self._run, metrics=[one])
                except self._mlflow.exceptions.MlflowException as problem:
                    refused = refused or problem
            if refused is not None or len(metrics) == 1:
                raise refused or first from None

    def _send_file(self, path: Path, folder: Path) -> None:
        if path.is_file():
            inside = path.parent.relative_to(folder).as_posix()
            self._client.log_artifact(self._run, str(path), None if inside == "." else inside)

    def on_stop(self, error: BaseException) -> None:
        """End the run as stopped or failed, whether or not what is left can be sent."""
        try:
            self._send()
        finally:
            if self._run:
                stopped = isinstance(error, KeyboardInterrupt)
                self._client.set_terminated(self._run, "KILLED" if stopped else "FAILED")


def _keys(names: Iterable[str]) -> dict[str, str]:
    """Return a metric's name in MLflow for each, "model.figure", so that no two models are one.

    MLflow refuses long names, those with other letters than these, and those that are paths; names
    of clients may be all of it.
    """
    names = list(names)
    models = list(dict.fromkeys(name.rpartition(".")[0] for name in names))
    fitting = {
        one: "".join(c if c.isalnum() or c in "_-. " else "_" for c in one)[:_LONGEST_NAME]
        for one in models
    }
    taken: set[str] = set()
    for one in sorted(models, key=lambda one: fitting[one] != one):  # first those that fit
        bare, number = fitting[one], 1
        while fitting[one].casefold() in taken:
            number += 1
            fitting[one] = f"{bare}_{number}"
        taken.add(fitting[one].casefold())
        if fitting[one] != one:
            _LOG.info("the metrics of %r are %r in MLflow", one, fitting[one])
    return {
        name: ".".join(filter(None, (fitting[model], figure)))
        for name in names
        for model, _, figure in (name.rpartition("."),)
    }
