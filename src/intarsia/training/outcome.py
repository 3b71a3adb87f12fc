"""Make the result of a run from what training came to and cost, and write what it leaves."""

from __future__ import annotations

import dataclasses
import itertools
import json
import platform
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
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
from intarsia.engines import codec
from intarsia.engines.forks import Channel, Fork, failure_of
from intarsia.engines.simulation import Simulation
from intarsia.errors import WorkerError, several
from intarsia.experiment.config import Experiment
from intarsia.inspection.holdings import NAME as HOLDINGS
from intarsia.inspection.holdings import Holdings
from intarsia.inspection.overlap import Parties
from intarsia.maths.figures import has_curves
from intarsia.partition.client_clusters import Structures
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
    holdings: Parties | None = None,
    audited: tuple[str, Mapping[str, Any], Iterable[fl.Sends]] | None = None,
    whole: tuple[Experiment, str] | None = None,
    artist: Artist | None = None,
) -> results.Result:
    """Write what a run came to into its folder, where it has one; return the result.

    Parameters
    ----------
    holdings
        Who holds what, to be drawn; None: it is drawn, or nobody asks.
    audited
        The mode of the sums, what crossed, and what is declared; None: nothing crossed.
    whole
        The experiment and the tables' checksum of what was done in one go, which is described when
        it is done: there is nothing to resume before.
    artist
        Who draws, beside this process; None: this one does.
    """
    folder = result.folder
    if folder is None:
        return result
    with nullcontext() if whole is None else run_folder.alone_in(folder):
        if whole is not None:
            run_folder.clear(folder)
        if holdings is not None:
            keep_holdings(folder, holdings)
        if audited is not None:
            audit.write(folder, *audited)
        if result.trained is not None:
            from intarsia.models.serialization import (
                write_model,
            )  # here: of networks it takes torch

            write_model(result.trained, folder / "model")
        # pictures come after what is needed: their library takes half a second and 150 MB
        if artist is None or not artist.draws(result):
            if holdings is not None:
                draw_holdings(folder, holdings)
            draw(folder, result, _classes(result))
        result.write(folder)  # last: it says that the run is done
        if whole is not None:
            run_folder.keep_description(folder, *whole)
    return result


def keep_holdings(folder: Path, parties: Parties) -> None:
    """Write who holds what of the training rows into the folder."""
    text = json.dumps(Holdings.of(parties).to_dict(), ensure_ascii=False)
    write_atomically(folder / HOLDINGS, text.encode())


def draw_holdings(folder: Path, parties: Parties) -> None:
    """Draw who holds what of the training rows."""
    from intarsia.plots.overlap import holdings_picture

    holdings_picture(parties, folder / "holdings.png", which="training rows")


def draw(folder: Path, result: results.Result, classes: Sequence[str] = ()) -> None:
    """Draw who was found to belong together, and how the scores rank, where there is such."""
    if result.structure.learned is not None:
        from intarsia.plots.client_clusters import structure_picture

        title = f"{result.experiment}: who belongs together, by {result.algorithm}"
        structure_picture(result.structure, folder / "structure.png", title=title)
    score = result.metrics.server
    if score is not None and score.figures is not None and has_curves(score.figures):
        from intarsia.plots.score_curves import scores_picture

        scores_picture(
            score.figures,
            folder / "figures.png",
            title=f"{result.experiment}: {result.algorithm}",
            whose=f"{score.samples:,} samples of all clients, in ranges of five or more",
            classes=classes,
        )


def _classes(result: results.Result) -> tuple[str, ...]:
    """Return the classes of the model, as its pictures name them."""
    trained = getattr(result.trained, "any", result.trained)  # of clients' models all have the same
    known = getattr(trained, "classes", getattr(trained, "classes_", None))
    return () if known is None else tuple(str(one) for one in known)


class Artist:
    """Draws a run's pictures in a fork, which loads their library while this process trains.

    Parameters
    ----------
    folder
        The run's.
    holdings
        Who holds what, which is drawn at once; None: nobody asks.
    """

    def __init__(self, folder: Path, holdings: Parties | None) -> None:
        self._fork = Fork("drew pictures", partial(_draw_when_told, folder, holdings))

    def draws(self, result: results.Result) -> bool:
        """Let it draw what a result shows; return whether it is done: not if the fork is gone.

        Raises
        ------
        Exception
            What went wrong there: a full disk, or a folder that cannot be written to.
        """
        try:
            self._fork.send(json.dumps(result.to_dict()), _classes(result))
            self._fork.receive()
        except WorkerError:
            return False
        return True

    def close(self) -> None:
        """End the fork, wherever it is."""
        self._fork.close()


def artist_beside(
    folder: Path | None, engine: object, schema: Schema, *, drawn: bool
) -> AbstractContextManager[Artist | None]:
    """Return who draws beside this process, where there are cores for it and tables are small.

    A fork holds what large tables leave when they are given back, and further runs of a process
    load the library once. `drawn` says that the picture of who holds what is there.
    """
    small = len(schema.samples) * len(schema.features) <= _SMALL
    spreads = isinstance(engine, Simulation) and engine.spreads
    if folder is None or not small or not spreads or next(_RUNS):
        return nullcontext()
    try:
        return closing(Artist(folder, None if drawn else schema))
    except OSError:  # the system gives no more processes
        return nullcontext()


def _draw_when_told(folder: Path, holdings: Parties | None, channel: Channel) -> None:
    """Draw who holds what, and then what a result shows that comes over the channel."""
    answer: list[Any] = [None]
    try:
        from intarsia.plots import score_curves  # noqa: F401 - while there is time

        if holdings is not None:
            draw_holdings(folder, holdings)
        told, classes = (codec.decode_unchecked(one) for one in channel.receive())
        draw(folder, results.of_dict(json.loads(told), folder), classes)
    except EOFError:  # nobody asks any more
        return
    except Exception as error:
        answer = [failure_of(error)]
    channel.send(answer)


_SMALL = 1 << 21  # values of all tables: 16 MB
_RUNS = itertools.count()  # of this process whose pictures could be drawn beside it
