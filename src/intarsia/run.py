"""An experiment → rounds, evaluation, checkpoints → a `Result`."""

from __future__ import annotations

import dataclasses
import json
import platform
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np
from threadpoolctl import threadpool_info

from intarsia import __version__, experiment, picture, result, yardsticks
from intarsia.algorithm import Algorithm, Conclusion, Info, RandomKey
from intarsia.algorithms import preparation
from intarsia.algorithms.evaluation import Grades, evaluate
from intarsia.algorithms.hyfdca import HYFDCA
from intarsia.checkpoint import Checkpoints, write_atomically
from intarsia.data import ClientId, Schema
from intarsia.engines.in_process import InProcess, SealedRecord
from intarsia.errors import CheckpointError, ConvergenceError, ExperimentError
from intarsia.experiment import Experiment, hyperparameters
from intarsia.federation import Federation, build
from intarsia.linear import LinearClassifier, LinearRegressor
from intarsia.maths import losses
from intarsia.model_file import LinearModel, write_model
from intarsia.result import Certificate, Metrics, Result, Score
from intarsia.spelling import nearest
from intarsia.tables import Table

__all__ = ["ALGORITHMS", "Progress", "resume", "run"]

ALGORITHMS: Mapping[str, Algorithm] = {one.name: one for one in (HYFDCA,)}
_PATIENCE = 300  # rounds without a smaller gap after which training has stalled


@dataclass(frozen=True)
class Progress:
    """How far a run is, after a round."""

    round: int
    rounds: int
    seconds: float
    loss: float | None
    gap_relative: float | None
    accuracy: float | None
    bytes: int
    exchanges: int
    phase: str
    seconds_left: float | None


@dataclass
class _Clock:
    """Seconds by part."""

    seconds: dict[str, float] = field(default_factory=dict[str, float])

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


@dataclass
class _Training:
    """What changes from round to round, apart from the states."""

    round: int = 0
    finished: result.Finished | None = None
    scores: dict[str, float] = field(default_factory=dict[str, float])
    best: float = np.inf  # smallest gap
    best_round: int = 0
    first: float = np.inf  # the first gap and when it was


def run(
    description: Experiment | str | Path,
    *,
    tables: Mapping[ClientId, Table] | None = None,
    progress: Callable[[Progress], None] | None = None,
    out: str | Path | None = "",
) -> Result:
    """Train what an experiment describes, beside its two yardsticks.

    Parameters
    ----------
    description
        An experiment or the path of its file.
    tables
        The parties' tables, instead of the sources that the experiment names.
    progress
        Called after every round.
    out
        Output folder; "" = the experiment's, None = nothing is written.

    Raises
    ------
    UserError
        If the experiment, a table or the output folder is wrong.
    ConvergenceError
        If training diverges or stalls.
    """
    if not isinstance(description, Experiment):
        description = experiment.load(description)
    if out != "" and out is not None:
        description = replace(description, out=str(Path(out).resolve()))
    folder = None if out is None else Path(description.out)
    if folder is not None:
        _claim(folder)
    return _train(description, tables, folder, progress, fresh=True)


def resume(folder: str | Path, *, progress: Callable[[Progress], None] | None = None) -> Result:
    """Go on with a run that was stopped, to the same bits; a finished one is returned as it is.

    Raises
    ------
    CheckpointError
        If the folder holds no run, or the tables changed since it was started.
    """
    folder = Path(folder)
    path = folder / "experiment.json"
    if not path.is_file():
        raise CheckpointError(
            f"{folder} holds no experiment.json; give the output folder of a run that was stopped."
        )
    if (folder / "result.json").is_file():
        return result.load(folder)
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as problem:
        raise CheckpointError(
            f"{path} is no JSON ({problem}); run the experiment again with --overwrite."
        ) from None
    description = experiment.from_dict(tree, folder)
    return _train(replace(description, out=str(folder)), None, folder, progress, fresh=False)


def _claim(folder: Path) -> None:
    if (folder / "result.json").is_file():
        raise CheckpointError(
            f"{folder} already holds a result; choose another folder with -c experiment.out=..., "
            "or replace it with --overwrite."
        )
    if (folder / "experiment.json").is_file():
        raise CheckpointError(
            f"{folder} holds an unfinished run; go on with `intarsia resume {folder}`, or replace "
            "it with --overwrite."
        )


def choose(description: Experiment) -> tuple[Algorithm, Any]:
    """Return the algorithm that an experiment names, and its hyperparameters."""
    name = description.algorithm
    if name not in ALGORITHMS:
        raise ExperimentError(f"[algorithm] name is {name!r}; {nearest(name, ALGORITHMS)}.")
    algorithm = ALGORITHMS[name]
    options = hyperparameters(algorithm.hyperparameters, description.hyperparameters, "[algorithm]")
    return algorithm, options


def _train(
    description: Experiment,
    tables: Mapping[ClientId, Table] | None,
    folder: Path | None,
    progress: Callable[[Progress], None] | None,
    *,
    fresh: bool,
) -> Result:
    clock = _Clock()
    started = datetime.now(UTC)
    algorithm, options = choose(description)
    with clock.part("tables"):
        federation = build(description, tables)
        _check_task(federation, options)
    store = None
    if folder is not None:
        with clock.part("checkpoints"):
            store = _open_store(folder, description, federation, fresh)
    engine, schemas, notes = _assemble(description, algorithm, federation, clock)
    scaling = engine.get_states()
    server, training = _start(description, algorithm, options, federation, engine, store, clock)
    with clock.part("training"):
        server = _rounds(
            description, algorithm, server, engine, schemas, store, training, clock, progress
        )
        engine.begin_round(training.round + 1)
        conclusion = algorithm.conclude(server, engine, engine.key("conclude"))
    model = _model(schemas["train"], conclusion, scaling, options)
    part: Literal["train", "test"] = "test" if len(schemas) > 1 else "train"
    with clock.part("evaluation"):
        every, own = _grade(algorithm, options, schemas, engine, part)
    with clock.part("yardsticks"):
        pooled, alone = (
            yardsticks.both(
                engine,
                schemas,
                losses.loss_code(options.loss),
                options.regularisation,
                part,
                seed=description.seed,
            )
            if description.yardsticks
            else (None, {})
        )
    clients = {name: _score(grades) for name, grades in own.items()}
    standalone = {name: _score(grades) for name, grades in alone.items()}
    info = conclusion.info
    if (
        training.finished == "rounds"
        and info.gap_relative is not None
        and (info.gap_relative > description.tolerance)
    ):
        notes = (
            *notes,
            f"Stopped after {training.round} rounds at a relative gap of {info.gap_relative:.1e}, "
            f"above the tolerance {description.tolerance:.0e}: raise experiment.rounds.",
        )
    made = Result(
        algorithm=algorithm.name,
        experiment=description.name,
        seed=description.seed,
        rounds=training.round,
        finished=training.finished or "rounds",
        seconds={**clock.seconds, "total": sum(clock.seconds.values())},
        bytes=engine.traffic.summary(),
        exchanges=engine.traffic.exchanges,
        certificate=_certificate(info),
        metrics=Metrics(
            server=None if every is None else _score(every),
            clients=clients,
            clients_mean=result.mean(clients),
            centralised=None if pooled is None else _score(pooled),
            standalone=standalone,
            standalone_mean=result.mean(standalone),
        ),
        environment=_environment(started),
        hyperparameters=dataclasses.asdict(options),
        notes=notes,
        model=model,
        folder=folder,
    )
    if folder is not None:
        if model is not None:
            write_model(model, folder / "model")
        made.write(folder)
    return made


def _check_task(federation: Federation, options: Any) -> None:
    regression = federation.labels.task == "regression"
    if regression and options.loss != "squared":
        raise ExperimentError(
            f"The labels are numbers to predict (regression) but the loss is {options.loss!r}; set "
            'algorithm.loss = "squared", or labels.task for classes.'
        )


def _open_store(
    folder: Path, description: Experiment, federation: Federation, fresh: bool
) -> Checkpoints:
    folder.mkdir(parents=True, exist_ok=True)
    fingerprint = federation.fingerprint()
    if fresh:
        picture.holdings_picture(federation.train, folder / "holdings.png")
        tree = experiment.to_dict(description)
        tree["experiment"]["out"] = "."
        (folder / "history.jsonl").unlink(missing_ok=True)
        write_atomically(folder / "tables.crc", fingerprint.encode())
        write_atomically(folder / "experiment.json", json.dumps(tree, indent=2).encode())
    else:
        known = folder / "tables.crc"
        if not known.is_file() or known.read_text() != fingerprint:
            raise CheckpointError(
                f"The tables of {folder} are not those the run was started with; put them back, "
                "or start again with --overwrite."
            )
    return Checkpoints(folder)


def _assemble(
    description: Experiment, algorithm: Algorithm, federation: Federation, clock: _Clock
) -> tuple[InProcess, dict[str, Any], tuple[str, ...]]:
    """Return the engine over prepared blocks, the schemas of its parts, and notes."""
    with clock.part("preprocessing"):
        train, test = dict(federation.train), dict(federation.test)
        if description.preprocessing.intercept:
            train = {name: preparation.add_intercept(block) for name, block in train.items()}
            test = {name: preparation.add_intercept(block) for name, block in test.items()}
        parts = {"train": train}
        if any(len(block.samples) for block in test.values()):
            parts["test"] = test
        schemas = {
            part: type(federation.schema).of(blocks, federation.labels)
            for part, blocks in parts.items()
        }
        engine = InProcess(
            {part: (schemas[part], blocks) for part, blocks in parts.items()}, description.seed
        )
        engine.set_states({name: preparation.initial(engine.block(name)) for name in engine.ids})
        notes = preparation.prepare(
            engine,
            schemas,
            standardise=description.preprocessing.standardise,
            rng=engine.key("preparation"),
        )
        states = engine.get_states()
        engine.transform(lambda name, part, block: preparation.prepared(states[name], part, block))
        del train, test, parts
    return engine, schemas, (*federation.notes, *notes)


def _start(
    description: Experiment,
    algorithm: Algorithm,
    options: Any,
    federation: Federation,
    engine: InProcess,
    store: Checkpoints | None,
    clock: _Clock,
) -> tuple[Any, _Training]:
    """Return the server's state and where training stands: new, or as a checkpoint has it."""
    schema = engine.schema("train")
    if algorithm.additive:
        engine.count_once()
    found = None if store is None else store.latest((*algorithm.states, SealedRecord))
    if found is not None:
        engine.set_states(found.clients)
        engine.restore_traffic(found.extra["traffic"])
        clock.seconds["training"] = found.extra["seconds"]
        assert store is not None
        store.truncate_history(found.round)
        return engine.unseal(found.server), _Training(**found.extra["training"])
    with clock.part("training"):
        key = engine.key("init")
        server = algorithm.init_server(options, schema, key)
        engine.set_states(
            {
                name: algorithm.init_client(
                    options, schema, name, engine.block(name), engine.client_key(name)
                )
                for name in engine.ids
            }
        )
        server = algorithm.setup(server, engine, key)
    training = _Training()
    if store is not None:
        with clock.part("checkpoints"):
            _save(store, engine, server, training, clock)
    return server, training


def _rounds(
    description: Experiment,
    algorithm: Algorithm,
    server: Any,
    engine: InProcess,
    schemas: Mapping[str, Any],
    store: Checkpoints | None,
    training: _Training,
    clock: _Clock,
    progress: Callable[[Progress], None] | None,
) -> Any:
    """Run rounds until the tolerance is met, the algorithm is done, or the limit is reached."""
    began = time.perf_counter() - clock.seconds.get("training", 0.0)
    saved = time.perf_counter()
    clients = tuple(engine.ids)
    while training.finished is None:
        number = training.round + 1
        engine.begin_round(number, _present(description, clients, number))
        server, info = algorithm.round(server, engine, engine.key())
        training.round = number
        every = description.evaluate_every
        if len(engine.ids) < len(clients) and every and number % every == 0:
            # a gap counts only where all clients are up to date
            engine.begin_round(number, clients)
            server, info = algorithm.certify(server, engine, engine.key("certify"))
        elif len(engine.ids) < len(clients):
            info = replace(info, primal=None, dual=None, gap_relative=None, loss=info.primal)
        _judge(description, training, info)
        if every and number % every == 0 and training.finished is None:
            with clock.part("evaluation"):
                part: Literal["train", "test"] = "test" if len(schemas) > 1 else "train"
                found, _ = _grade(algorithm, None, schemas, engine, part)
                training.scores = _plain_scores(found)
        line = _line(training, info, engine, time.perf_counter() - began)
        if store is not None:
            store.append_history(line)
            due = time.perf_counter() - saved >= description.checkpoint_seconds
            if due or training.finished is not None:
                _save(store, engine, server, training, clock, time.perf_counter() - began)
                saved = time.perf_counter()
        if progress is not None:
            progress(_progress(description, training, info, engine, line["seconds"]))
    return server


def _present(
    description: Experiment, clients: Sequence[ClientId], number: int
) -> tuple[ClientId, ...] | None:
    """Return the clients that take part in a round, in the federation's order; None: all."""
    share, count = description.participation, len(clients)
    if share == 1.0:
        return None
    if description.participation_pattern == "cyclic":
        turns = max(1, round(1 / share))
        return tuple(clients[k] for k in range(count) if k % turns == (number - 1) % turns)
    drawn = RandomKey((description.seed, number, "participation")).generator().permutation(count)
    return tuple(clients[k] for k in sorted(drawn[: max(1, round(share * count))].tolist()))


def _judge(description: Experiment, training: _Training, info: Info) -> None:
    """Decide whether training is done, or has stalled."""
    gap = info.gap_relative
    if gap is not None:
        training.first = min(training.first, gap) if np.isfinite(training.first) else gap
        if gap < 0.99 * training.best:
            training.best, training.best_round = gap, training.round
        if gap <= description.tolerance:
            training.finished = "tolerance"
        elif training.round - training.best_round >= _PATIENCE:
            raise ConvergenceError(
                f"The relative duality gap has stayed at {training.best:.1e} for "
                f"{_PATIENCE} rounds, above the tolerance {description.tolerance:.0e}: the problem "
                "is too badly conditioned for this method, or the tolerance is below what float64 "
                "can show; raise experiment.tolerance or algorithm.regularisation."
            )
    if training.finished is None and info.finished:
        training.finished = "algorithm"
    if training.finished is None and training.round >= description.rounds:
        training.finished = "rounds"


def _grade(
    algorithm: Algorithm,
    options: Any,
    schemas: Mapping[str, Any],
    engine: InProcess,
    part: Literal["train", "test"],
) -> tuple[Grades | None, dict[ClientId, Grades]]:
    """Return the grades of the federated model; the exchanges of it are not training's."""
    engine.begin_round(engine.round)
    with engine.unmetered():
        states = engine.get_states()
        loss = next(iter(states.values())).options.loss
        return evaluate(engine, schemas[part], algorithm.predict, losses.loss_code(loss), part=part)


def _plain_scores(found: Grades | None) -> dict[str, float]:
    if found is None:
        return {}
    return {key: value for key, value in dataclasses.asdict(found).items() if value is not None}


def _line(training: _Training, info: Info, engine: InProcess, seconds: float) -> dict[str, Any]:
    traffic = engine.traffic.summary()
    return {
        "round": training.round,
        "phase": info.phase,
        "primal": info.primal,
        "dual": info.dual,
        "gap_relative": info.gap_relative,
        "loss": info.primal if info.loss is None else info.loss,
        "accuracy": training.scores.get("accuracy"),
        "bytes": traffic["up"] + traffic["down"],
        "exchanges": engine.traffic.exchanges,
        "seconds": seconds,
    }


def _progress(
    description: Experiment, training: _Training, info: Info, engine: InProcess, seconds: float
) -> Progress:
    traffic = engine.traffic
    return Progress(
        round=training.round,
        rounds=description.rounds,
        seconds=seconds,
        loss=info.primal if info.loss is None else info.loss,
        gap_relative=info.gap_relative,
        accuracy=training.scores.get("accuracy"),
        bytes=sum(traffic.up.values()) + sum(traffic.down.values()),
        exchanges=traffic.exchanges,
        phase=info.phase,
        seconds_left=_seconds_left(description, training, info.gap_relative, seconds),
    )


def _seconds_left(
    description: Experiment, training: _Training, gap: float | None, seconds: float
) -> float | None:
    """Return the time to the round limit, or to the tolerance if the gap falls on as it did."""
    if training.finished is not None:
        return 0.0
    limit = seconds * (description.rounds - training.round) / training.round
    if gap is None or not 0 < gap < training.first or description.tolerance <= 0:
        return limit
    left = np.log(gap / description.tolerance) / np.log(training.first / gap)
    return float(min(limit, seconds * left))


def _save(
    store: Checkpoints,
    engine: InProcess,
    server: Any,
    training: _Training,
    clock: _Clock,
    seconds: float = 0.0,
) -> None:
    extra = {
        "traffic": dataclasses.asdict(engine.traffic),
        "seconds": seconds,
        "training": dataclasses.asdict(training),
    }
    with clock.part("checkpoints"):
        store.save(training.round, engine.seal(server), engine.get_states(), extra)


def _model(
    schema: Schema, conclusion: Conclusion, scaling: Mapping[ClientId, Any], options: Any
) -> LinearModel | None:
    """Return the model that was revealed, on the features as the parties' tables have them."""
    if conclusion.weights is None:
        return None
    names = [str(name) for name in schema.features.ids]
    weights = dict(zip(names, conclusion.weights.T, strict=True))
    means: dict[str, float] = {}
    scales: dict[str, float] = {}
    for client, state in scaling.items():
        for name, mean, scale in zip(
            schema.features.ids[schema.features.own(client)], state.mean, state.scale, strict=True
        ):
            means[name], scales[name] = float(mean), float(scale) or 1.0
    intercept = weights.pop(preparation.INTERCEPT, np.zeros(len(conclusion.weights)))
    known = {"means": means, "scales": scales, "regularisation": options.regularisation}
    gap = conclusion.info.gap_relative
    if schema.labels.task == "regression":
        plain = {name: float(weight[0]) for name, weight in weights.items()}
        return LinearRegressor.from_weights(plain, intercept=float(intercept[0]), gap=gap, **known)
    classes = list(schema.labels.classes)
    return LinearClassifier.from_weights(
        weights, intercept=intercept, classes=classes, loss=options.loss, gap=gap, **known
    )


def _certificate(info: Info) -> Certificate | None:
    if info.primal is None or info.dual is None or info.gap_relative is None:
        return None
    return Certificate(info.primal, info.dual, info.gap_relative)


def _score(grades: Grades) -> Score:
    return Score(grades.loss, grades.accuracy, grades.r2)


def _environment(started: datetime) -> dict[str, Any]:
    return {
        "version": __version__,
        "commit": _commit(),
        "machine": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "threads": max((pool["num_threads"] for pool in threadpool_info()), default=1),
        "started": started.isoformat(timespec="seconds"),
    }


def _commit() -> str | None:
    """Return the commit of the checkout that this code runs from, None for an installed copy."""
    try:
        found = subprocess.run(
            ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"],
            capture_output=True,
            text=True,
            timeout=5,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None
