"""An experiment over sites on other machines → set-up, rounds, evaluation → a `Result`.

The server reads no table and has no key. It goes on where it was killed, within an exchange too:
from a checkpoint of its own state, with the journal of what sites answered since.
"""

from __future__ import annotations

import dataclasses
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from intarsia.core.algorithm import Algorithm
from intarsia.core.atomic_files import write_atomically
from intarsia.core.block import INTERCEPT, ClientId, Labels
from intarsia.core.feature_blocks import doubled
from intarsia.core.schema import Holding, Schema
from intarsia.data.labels import notes_on_labels
from intarsia.deployment.client_models import Scales, server_model, told
from intarsia.deployment.client_setup import DEAL, ENCODE, READ, SETTLE, TRANSFORM, Dealt, Settled
from intarsia.deployment.table_metadata import Held, Sketch, agreed
from intarsia.engines import codec
from intarsia.engines.remote.caller import Caller, Patience, Transport
from intarsia.engines.remote.journal import Journal
from intarsia.engines.remote.server import Remote
from intarsia.engines.remote.wire import KEEP, PROTOCOL
from intarsia.engines.transcript import Transcript
from intarsia.errors import (
    CheckpointError,
    CodecError,
    ExperimentError,
    FederationError,
    VersionError,
)
from intarsia.experiment import config as experiment
from intarsia.experiment.checks import check_forgotten_ids, check_kinds
from intarsia.experiment.config import Experiment
from intarsia.experiment.federation import labelled_somewhere
from intarsia.partition.client_clusters import Structures, of_models
from intarsia.privacy.secure_aggregation import setup as modes
from intarsia.protocols import differential_privacy, preprocessing
from intarsia.results import audit, run_folder
from intarsia.results.result import Result
from intarsia.training import checks as caveats
from intarsia.training import loop as training
from intarsia.training import outputs, privacy_guarantee, timing
from intarsia.training.checks import check_task
from intarsia.training.loop import Progress
from intarsia.training.outcome import Outcome, result_of
from intarsia.training.registry import choose
from intarsia.training.run import trained
from intarsia.training.setup import declare_exchanges
from intarsia.training.timing import Clock

Watcher = Callable[[Progress], None]


@dataclass(frozen=True)
class SetUp:
    """What the set-up came to: a run that goes on does not do it again."""

    schemas: Mapping[str, Schema]
    tested: bool
    notes: tuple[str, ...]
    sequence: int
    exchange: int
    versions: Mapping[str, int]
    counts: str  # traffic and crossings, as JSON


def run_over(
    description: Experiment,
    transport: Transport,
    clients: Sequence[ClientId],
    folder: Path,
    *,
    patience: Patience | None = None,
    progress: Watcher | None = None,
    overwrite: bool = False,
) -> Result:
    """Train what an experiment describes over sites.

    Parameters
    ----------
    clients
        The sites, in the federation's order: sums are over them in this order.
    folder
        Output folder.

    Raises
    ------
    UserError
        If the experiment, a site's table or the output folder is wrong.
    BusyError
        If another process works on a run in the output folder.
    AbsentError
        If sites do not answer; `resume_over` goes on from there.
    ConvergenceError
        If training diverges.
    """
    if not overwrite:
        run_folder.claim(folder)
    algorithm, _ = choose(description)
    if not algorithm.federated:
        raise ExperimentError(
            f"{description.algorithm!r} pools the data, which sites do not send; choose an "
            "algorithm of a federation."
        )
    own = {"run": secrets.token_hex(16), "clients": list(clients), "protocol": PROTOCOL}
    described = replace(description, out=str(folder))
    with run_folder.alone_in(folder):
        run_folder.start(folder, described, "sites", overwrite=overwrite, sites=own)
        return _resumed(folder, transport, patience, progress)


def resume_over(
    folder: Path,
    transport: Transport,
    *,
    patience: Patience | None = None,
    progress: Watcher | None = None,
) -> Result:
    """Go on with a run over sites, to the same bits.

    Raises
    ------
    CheckpointError
        If the folder holds no such run.
    BusyError
        If another process works on the run.
    """
    run_folder.describe(folder)  # says what is wrong with a folder that holds no run
    with run_folder.alone_in(folder):
        return _resumed(folder, transport, patience, progress)


def _resumed(
    folder: Path, transport: Transport, patience: Patience | None, progress: Watcher | None
) -> Result:
    """Go on with a run over sites, from its beginning too; nobody else works on it."""
    description = run_folder.describe(folder)
    path = folder / run_folder.RUN
    if not path.is_file():
        raise CheckpointError(
            f"{folder} holds no run over sites; go on with it by intarsia resume."
        )
    known = json.loads(path.read_text(encoding="utf-8"))
    if known.get("protocol", 1) != PROTOCOL:
        raise VersionError(
            f"The run in {folder} began with calls of version {known.get('protocol', 1)}, and this "
            f"version of intarsia makes those of version {PROTOCOL}; begin it anew with "
            "--overwrite, or go on with the version that it began with."
        )
    choose(description)  # imports torch, if the algorithm needs it
    journal = Journal(folder / run_folder.JOURNAL)
    caller = Caller(
        known["run"], tuple(known["clients"]), transport, patience or Patience(), journal
    )
    try:
        with timing.limited(description.threads):
            return _run(description, caller, folder, progress)
    finally:
        journal.close()


def _run(description: Experiment, caller: Caller, folder: Path, progress: Watcher | None) -> Result:
    clock, started = Clock(), datetime.now(UTC)
    algorithm, options = choose(description)
    assert algorithm.federated
    store = run_folder.reopen(folder, "sites")
    with clock.part("preprocessing"):
        engine, ready = _engine(description, algorithm, options, caller, folder)
    release, promise = privacy_guarantee.guarantee(
        description, algorithm, options, engine.schema("train")
    )
    if release is not None and algorithm.private is not None:
        algorithm = algorithm.private(release)
    part: Literal["train", "test"] = "test" if ready.tested else "train"
    noted = _noting(caller, folder, progress)
    task = training.Task(description, algorithm, options, engine, part, store, clock, noted)
    outcome = trained(task)
    sizes = len(engine.schema("train").samples), len(engine.schema("train").clients)
    schema, conclusion = engine.schema("train"), outcome.conclusion
    with clock.part("model"):
        bodies = {name: codec.encode(one) for name, one in told(schema, conclusion).items()}
        scales = _stage(caller, KEEP, bodies, Scales)
        model, lacking = server_model(description, algorithm, options, schema, conclusion, scales)
    notes = (
        *ready.notes,
        *(doubled(schema) if algorithm.model.server_model is not None else ()),
        *caveats.unsealed(description, algorithm, sites=True),
        *caveats.read_all_the_same(description, algorithm, options),
        *caveats.unmeasured(description, algorithm),
        *caveats.named_alike(description, algorithm, schema),
        *privacy_guarantee.notes(promise, options, *sizes),
        *outcome.notes,
        *lacking,
    )
    made = result_of(
        description,
        options,
        replace(outcome, notes=notes),
        model=model,
        seconds=clock.seconds,
        traffic=engine.books.traffic.summary(),
        exchanges=engine.books.traffic.exchanges,
        started=started,
        folder=folder,
        privacy=promise,
        structure=Structures(
            None, of_models(schema.clients, conclusion.structure, conclusion.level_words)
        ),
    )
    (folder / run_folder.AWAY).unlink(missing_ok=True)
    _keep_conclusion(folder, outcome)
    outputs.draw(folder, schema)
    crossed = engine.books.crossings.summary()
    declared = declare_exchanges(algorithm, options, {"train": schema})
    audit.write(folder, engine.books.mode, crossed, declared)
    outputs.finish(folder, made)
    return made


def _noting(caller: Caller, folder: Path, progress: Watcher | None) -> Watcher:
    """Return what writes down after each round who is away; in a new process nobody is."""
    known: set[ClientId] = set()
    (folder / run_folder.AWAY).unlink(missing_ok=True)

    def noted(found: Progress) -> None:
        nonlocal known
        if caller.away != known:
            known = set(caller.away)
            if known:
                write_atomically(folder / run_folder.AWAY, json.dumps(sorted(known)).encode())
            else:
                (folder / run_folder.AWAY).unlink(missing_ok=True)
        if progress is not None:
            progress(found)

    return noted


def _keep_conclusion(folder: Path, outcome: Outcome) -> None:
    """Write the weights that the server has: of prepared features, whose scales it has not."""
    found = outcome.conclusion
    kept = {
        "weights": found.weights,
        "network": None if found.network is None else dict(found.network),
    }
    write_atomically(folder / run_folder.CONCLUSION, codec.encode(kept))


# -- the set-up


def _engine(
    description: Experiment, algorithm: Algorithm, options: Any, caller: Caller, folder: Path
) -> tuple[Remote, SetUp]:
    """Return the engine over sites that are ready for the algorithm to begin."""
    path = folder / run_folder.SET_UP
    recorder = Transcript(folder / "transcript.bin") if description.privacy.transcript else None
    made = partial(
        Remote,
        caller,
        seed=description.seed,
        sealing=modes.adding(description.privacy, caller.clients),
        recorder=recorder,
        algorithm=algorithm.name,
        apart=privacy_guarantee.keeps_apart(description, algorithm, options),
    )
    if path.is_file():
        ready = codec.decode(path.read_bytes(), SetUp, Schema, Holding, Labels)
        engine = made(ready.schemas)
        caller.sequence, caller.versions = ready.sequence, dict(ready.versions)
        caller.anchor()
        engine.books.exchange = ready.exchange
        counts = json.loads(ready.counts)
        engine.books.restore_traffic(counts["traffic"])
        engine.books.crossings.restore(counts["crossings"])
        return engine, ready
    schemas, tested, notes = _agreed(description, caller)
    # what the algorithm has against these parties it says before anything is computed
    check_task(description, schemas["train"], options)
    engine = made(schemas)
    algorithm.init_server(options, schemas["train"], engine.key())
    patience = caller.patience
    privacy_guarantee.check_summands(
        description,
        algorithm,
        options,
        schemas["train"],
        patience.quorum if patience.absent == "continue" else None,
    )
    notes += _prepared(description, algorithm, options, engine, caller, schemas)
    counts = {
        "traffic": dataclasses.asdict(engine.books.traffic),
        "crossings": engine.books.crossings.summary(),
    }
    ready = SetUp(
        schemas,
        tested,
        notes,
        caller.sequence,
        engine.books.exchange,
        dict(caller.versions),
        json.dumps(counts),
    )
    write_atomically(path, codec.encode(ready))
    caller.anchor()  # as after reading it
    return engine, ready


def _agreed(
    description: Experiment, caller: Caller
) -> tuple[dict[str, Schema], bool, tuple[str, ...]]:
    """Let the sites read their tables, and return what is public about the federation."""
    tree = {**experiment.to_dict(description)}
    tree["experiment"] = {key: v for key, v in tree["experiment"].items() if key != "out"}
    for key in ("client", "published"):
        tree.pop(key, None)
    text = json.dumps({**tree, "protocol": PROTOCOL}).encode()
    everyone = dict.fromkeys(caller.clients, text)
    notes: list[str] = []
    sparse: dict[ClientId, bool] = {}
    if description.dataset is not None:
        dealt = _stage(caller, DEAL, everyone, Dealt, Held, Holding, Labels)
        held = {name: one.held for name, one in dealt.items()}
        labels = next(iter(dealt.values())).labels
        kept = {name: np.ones(len(one.train.samples), bool) for name, one in held.items()}
    else:
        sketches = _stage(caller, READ, everyone, Sketch)
        if len({one.whole_ids for one in sketches.values() if not one.generated}) > 1:
            raise FederationError(
                "Some sites have whole numbers as sample ids and others text; set id_type in the "
                "site.toml of each to the same."
            )
        check_forgotten_ids(
            {n: (one.columns, one.id, one.generated) for n, one in sketches.items()}
        )
        encoding = agreed(sketches, description.labels)
        labels = encoding.labels
        bodies = dict.fromkeys(caller.clients, codec.encode(encoding))
        held = _stage(caller, ENCODE, bodies, Held, Holding)
        sparse = {name: one.sparse for name, one in sketches.items()}
        kept = labelled_somewhere(
            {name: one.train.samples for name, one in held.items()},
            [one.train.labelled for one in held.values()],
        )
        left = _left_out(held, kept)
        if left:
            notes.append(f"{left} training samples have a label at no client; they are left out.")
    tested = any(len(one.test.samples) for one in held.values())
    schemas = {"train": Schema({n: _taken(one.train, kept[n]) for n, one in held.items()}, labels)}
    notes.extend(notes_on_labels(schemas["train"], description.labels))
    if tested:
        schemas["test"] = Schema({name: one.test for name, one in held.items()}, labels)
    for schema in schemas.values() if sparse else ():
        check_kinds(schema, sparse, standardise=description.preprocessing.standardise)
    if description.preprocessing.intercept:
        schemas = {part: Schema(_with_intercept(one), labels) for part, one in schemas.items()}
    bodies = {name: codec.encode(Settled(schemas, kept[name])) for name in caller.clients}
    _stage(caller, SETTLE, bodies)
    return schemas, tested, tuple(notes)


def _prepared(
    description: Experiment,
    algorithm: Algorithm,
    options: Any,
    engine: Remote,
    caller: Caller,
    schemas: Mapping[str, Schema],
) -> tuple[str, ...]:
    """Let the sites prepare their blocks, through sums."""
    notes = preprocessing.prepare(
        engine,
        schemas,
        standardise=description.preprocessing.standardise,
        rng=engine.key("preparation"),
    )
    _transform(caller, "prepared")
    release, _ = privacy_guarantee.guarantee(description, algorithm, options, schemas["train"])
    if (
        release is not None
        and algorithm.private is not None
        and algorithm.disclosure.dp_unit == "sample"
    ):
        differential_privacy.clip_rows(engine, release.clip)
        _transform(caller, "clipped")
    if algorithm.model.additive:
        _transform(caller, "counted once")
    return notes


def _transform(caller: Caller, name: str) -> None:
    _stage(caller, TRANSFORM, dict.fromkeys(caller.clients, codec.encode(name)))


def _stage(
    caller: Caller, name: str, bodies: Mapping[ClientId, bytes], *classes: type
) -> dict[ClientId, Any]:
    caller.anchor()
    found: dict[ClientId, Any] = {}
    for client, answer in caller.call("stage", name, bodies).items():
        try:
            found[client] = codec.decode(answer.body, *classes)
        except CodecError as problem:
            raise VersionError(
                f"What {client!r} answers to {name!r} is of another version of intarsia "
                f"({problem.args[0].rstrip('.')}); install the same version at the site and the "
                "server, and begin the run anew."
            ) from None
    return found


def _left_out(held: Mapping[ClientId, Held], kept: Mapping[ClientId, Any]) -> int:
    """Return how many training samples have a label nowhere."""
    without: set[object] = set()
    for name, one in held.items():
        without.update(one.train.samples[~kept[name]].tolist())
    return len(without)


def _taken(holding: Holding, kept: Any) -> Holding:
    return replace(holding, samples=holding.samples[kept], labelled=holding.labelled[kept])


def _with_intercept(schema: Schema) -> dict[ClientId, Holding]:
    return {
        name: replace(one, features=(*one.features, INTERCEPT))
        for name, one in schema.holdings.items()
    }
