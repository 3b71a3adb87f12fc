"""Make the result of a run from what training came to and cost, and write what it leaves."""

from __future__ import annotations

import dataclasses
import json
import platform
import subprocess
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from threadpoolctl import threadpool_info

from intarsia import __version__
from intarsia import core as fl
from intarsia.core.block import ClientId, Labels
from intarsia.core.files.atomic_files import write_atomically
from intarsia.core.plugins import package_of
from intarsia.core.schema import Schema
from intarsia.data.labels import positive_class
from intarsia.errors import several
from intarsia.experiment.config import Experiment
from intarsia.inspection.holdings import NAME as HOLDINGS
from intarsia.inspection.holdings import Holdings
from intarsia.partition.client_clusters import Structures
from intarsia.plots.runs import pictures
from intarsia.plots.runs.artist import Artist
from intarsia.plots.runs.pictures import Held, Shown
from intarsia.protocols.evaluation import Evaluation
from intarsia.results import audit, run_folder
from intarsia.results import result as results

if TYPE_CHECKING:
    from intarsia.models.serialization import Trained


@dataclass(frozen=True, eq=False)
class Outcome:
    """What training came to, and how good it is."""

    rounds: int
    finished: results.Finished
    conclusion: fl.FinalResult
    every: Evaluation | None  # of the model on every client's columns
    own: Mapping[ClientId, Evaluation]  # on each client's own samples
    notes: tuple[str, ...] = ()
    best_round: int | None = None  # whose model it is; None: the last one's
    helps: str = ""  # what does where the last rounds hardly lowered the gap; "": more rounds
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
    labels: Labels,
    *,
    trained: Trained | None = None,
    privacy: results.Guarantee | None = None,
    structure: Structures | None = None,
    folder: Path | None = None,
) -> results.Result:
    """Return the result of a run."""
    clients = {name: results.Score(**vars(one)) for name, one in outcome.own.items()}
    standalone = {name: results.Score(**vars(one)) for name, one in outcome.standalone.items()}
    info = outcome.conclusion.info
    gap, certificate = info.gap_relative, None
    if info.primal is not None and info.dual is not None and gap is not None:
        certificate = results.Certificate(info.primal, info.dual, gap)
    notes = (*outcome.notes, *outcome.conclusion.notes)
    if gap is not None and gap > description.tolerance > 0:
        notes = (*notes, *_above(outcome, gap, description.tolerance))
    return results.Result(
        algorithm=description.algorithm,
        experiment=description.name,
        seed=description.seed,
        rounds=outcome.rounds,
        finished=outcome.finished,
        best_round=outcome.best_round,
        seconds=results.with_total(cost.seconds),
        bytes=cost.bytes,
        exchanges=cost.exchanges,
        certificate=certificate,
        metrics=results.Metrics(
            server=results.Score.of(outcome.every),
            clients=clients,
            clients_mean=results.mean(clients),
            clients_worst=results.worst(clients),
            clients_deciles=results.deciles(clients),
            centralised=results.Score.of(outcome.centralised),
        ).beside(standalone),
        environment=environment(cost.started, description.algorithm),
        hyperparameters=dataclasses.asdict(options),
        notes=notes,
        trained=trained,
        folder=folder,
        privacy=privacy or results.Guarantee(),
        structure=structure or Structures(),
        positive_class=positive_class(labels),
    )


def _above(outcome: Outcome, gap: float, tolerance: float) -> tuple[str, ...]:
    """Return why the certificate is above the tolerance, where the algorithm does not say it."""
    if outcome.finished == "rounds":
        helps = "raise experiment.rounds"
        if outcome.helps:
            helps = f"the last rounds hardly lowered it, more may not either; {outcome.helps}"
        return (
            f"Stopped after {several(outcome.rounds, 'round')} at a relative gap of "
            f"{gap:.1e}, above the tolerance {tolerance:.0e}: {helps}.",
        )
    if outcome.finished == "tolerance":
        return (
            f"The relative gap was within the tolerance {tolerance:.0e} after round "
            f"{outcome.rounds}; measured once more it is {gap:.2e}: the difference is rounding.",
        )
    return ()


def environment(started: datetime, algorithm: str) -> dict[str, Any]:
    """Return where a result was made, and by which package's algorithm if not by one of ours."""
    package = package_of("algorithm", algorithm)
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
        **({"package": package} if package else {}),
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


def finish_run(
    result: results.Result,
    *,
    held: Held | None = None,
    audited: tuple[str, Mapping[str, Any], Iterable[fl.Sends]] | None = None,
    whole: tuple[Experiment, str] | None = None,
    artist: Artist | None = None,
) -> results.Result:
    """Write what a run came to into its folder, where it has one; return the result.

    Parameters
    ----------
    held
        Who holds what, to be drawn; None: nobody asks.
    audited
        The mode of the sums, what crossed, and what is declared; None: nothing crossed.
    whole
        The experiment and the tables' checksum of what was done in one go, which is described when
        it is done: there is nothing to resume before.
    artist
        Who draws, beside this process, and has been told who holds what; None: this one does.
    """
    folder = result.folder
    if folder is None:
        return result
    with nullcontext() if whole is None else run_folder.alone_in(folder):
        if whole is not None:
            run_folder.clear(folder)
        if held is not None:
            _keep_holdings(folder, held.schema)
        if audited is not None:
            audit.write(folder, *audited)
        if result.trained is not None:
            from intarsia.models.serialization import (
                write_model,
            )  # here: of networks it takes torch

            write_model(result.trained, folder / "model")
        # pictures come after what is needed: their library takes half a second and 150 MB
        shown = Shown.of(result)
        if artist is None or not artist.draws(folder, shown):
            if held is not None:
                pictures.write_holdings(folder, pictures.drawn_holdings(held))
            pictures.draw(folder, shown)
        result.write(folder)  # last: it says that the run is done
        if whole is not None:
            run_folder.keep_description(folder, *whole)
    return result


def _keep_holdings(folder: Path, schema: Schema) -> None:
    """Write who holds what of the training rows into the folder."""
    text = json.dumps(Holdings.of(schema).to_dict(), ensure_ascii=False)
    write_atomically(folder / HOLDINGS, text.encode())
