"""Turn what training came to, and what it cost, into a `Result`."""

from __future__ import annotations

import dataclasses
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from threadpoolctl import threadpool_info

from intarsia import __version__
from intarsia.core.algorithm import FinalResult, RoundMetrics
from intarsia.core.block import ClientId
from intarsia.experiment.config import Experiment
from intarsia.partition.client_clusters import Structures
from intarsia.protocols.evaluation import Evaluation
from intarsia.results.result import (
    Certificate,
    Finished,
    Guarantee,
    Metrics,
    Result,
    Score,
    deciles,
    mean,
    worst,
)

if TYPE_CHECKING:
    from intarsia.models.serialization import Model


@dataclass(frozen=True, eq=False)
class Outcome:
    """What training came to, and how good it is."""

    rounds: int
    finished: Finished
    conclusion: FinalResult
    every: Evaluation | None  # of the model on every client's columns
    own: Mapping[ClientId, Evaluation]  # on each client's own samples
    notes: tuple[str, ...] = ()
    centralised: Evaluation | None = None
    standalone: Mapping[ClientId, Evaluation] = field(default_factory=dict[ClientId, Evaluation])


@dataclass(frozen=True)
class Cost:
    """What a run took."""

    started: datetime
    seconds: Mapping[str, float]  # by part
    bytes: Mapping[str, Any] = field(default_factory=lambda: {"up": 0, "down": 0, "by_message": {}})
    exchanges: int = 0


def result_of(
    description: Experiment,
    options: Any,
    outcome: Outcome,
    cost: Cost,
    *,
    model: Model | None = None,
    privacy: Guarantee | None = None,
    structure: Structures | None = None,
    folder: Path | None = None,
) -> Result:
    """Return the result of a run."""
    clients = {name: _score(grades) for name, grades in outcome.own.items()}
    standalone = {name: _score(grades) for name, grades in outcome.standalone.items()}
    info = outcome.conclusion.info
    notes = (*outcome.notes, *outcome.conclusion.notes)
    gap = info.gap_relative
    if gap is not None and gap > description.tolerance > 0:
        notes = (*notes, *_above(outcome, gap, description.tolerance))
    return Result(
        algorithm=description.algorithm,
        experiment=description.name,
        seed=description.seed,
        rounds=outcome.rounds,
        finished=outcome.finished,
        seconds={**cost.seconds, "total": sum(cost.seconds.values())},
        bytes=cost.bytes,
        exchanges=cost.exchanges,
        certificate=_certificate(info),
        metrics=Metrics(
            server=None if outcome.every is None else _score(outcome.every),
            clients=clients,
            clients_mean=mean(clients),
            clients_worst=worst(clients),
            clients_deciles=deciles(clients),
            centralised=None if outcome.centralised is None else _score(outcome.centralised),
            standalone=standalone,
            standalone_mean=mean(standalone),
        ),
        environment=environment(cost.started),
        hyperparameters=dataclasses.asdict(options),
        notes=notes,
        model=model,
        folder=folder,
        privacy=privacy or Guarantee(),
        structure=structure or Structures(),
    )


def _above(outcome: Outcome, gap: float, tolerance: float) -> tuple[str, ...]:
    """Return why the certificate is above the tolerance, where the algorithm does not say it."""
    if outcome.finished == "rounds":
        return (
            f"Stopped after {outcome.rounds} rounds at a relative gap of {gap:.1e}, above the "
            f"tolerance {tolerance:.0e}: raise experiment.rounds.",
        )
    if outcome.finished == "tolerance":
        return (
            f"The relative gap was within the tolerance {tolerance:.0e} after round "
            f"{outcome.rounds}; measured once more it is {gap:.2e}: the difference is rounding.",
        )
    return ()


def _certificate(info: RoundMetrics) -> Certificate | None:
    if info.primal is None or info.dual is None or info.gap_relative is None:
        return None
    return Certificate(info.primal, info.dual, info.gap_relative)


def _score(grades: Evaluation) -> Score:
    return Score(grades.loss, grades.accuracy, grades.r2, grades.macro_f1, grades.samples)


def environment(started: datetime) -> dict[str, Any]:
    """Return where a result was made."""
    return {
        "version": __version__,
        "commit": _commit(),
        "machine": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "threads": max(
            (pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"),
            default=1,
        ),
        "started": started.isoformat(timespec="seconds"),
    }


def _commit() -> str | None:
    """Return the commit of the checkout that this code runs from, None for an installed copy."""
    root = Path(__file__).parents[3]
    if not (root / "pyproject.toml").is_file():  # an environment inside somebody's own repository
        return None
    try:
        found = subprocess.run(
            ["git", "-C", str(root), "rev-parse", "--short", "HEAD"],
            capture_output=True,
            text=True,
            timeout=5,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None
