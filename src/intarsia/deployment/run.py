"""Run an experiment over sites on other machines: the server's side.

The server reads no table and has no key. It goes on where it was killed, within an exchange too:
from a checkpoint of its own state, with the journal of what sites answered since.
"""

from __future__ import annotations

import dataclasses
import json
import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from intarsia.core.block import Array, ClientId, Labels
from intarsia.core.files.atomic_files import write_atomically
from intarsia.core.files.json_text import check_kind
from intarsia.core.schema import Holding, Schema
from intarsia.data.encoding import Encoding, notes_on_levels, notes_on_words
from intarsia.data.labels import notes_on_codes, notes_on_labels
from intarsia.data.parsing import canonical
from intarsia.deployment.client_models import Scales, broadcast_end, server_model
from intarsia.deployment.client_setup import (
    DEAL,
    ENCODE,
    MEET,
    READ,
    SETTLE,
    TRANSFORM,
    Dealt,
    Settled,
)
from intarsia.deployment.table_metadata import Held, TableMetadata, agree, check_keys
from intarsia.engines import codec
from intarsia.engines.remote.caller import Caller, RetryPolicy, Transport
from intarsia.engines.remote.replies import malformed
from intarsia.engines.remote.server import Remote
from intarsia.engines.remote.server_journal import Journal
from intarsia.engines.remote.wire import KEEP, PROTOCOL
from intarsia.engines.transcript import Transcript
from intarsia.errors import (
    CheckpointError,
    CodecError,
    ExperimentError,
    FederationError,
    SiteError,
    VersionError,
    listed,
)
from intarsia.experiment import config as experiment
from intarsia.experiment.checks import (
    check_evaluated,
    check_forgotten_ids,
    check_kinds,
    check_names,
    check_parts,
    check_split_columns,
)
from intarsia.experiment.config import Experiment
from intarsia.experiment.federation import NARROW, labelled_somewhere, left_out
from intarsia.partition.client_clusters import Structure
from intarsia.privacy.secure_aggregation import setup as modes
from intarsia.protocols.preprocessing import few_values
from intarsia.results import run_folder
from intarsia.results.checkpoint import Checkpoints
from intarsia.results.result import Result, load
from intarsia.training import privacy_guarantee, timing
from intarsia.training.checks import check_clients, check_stopping, check_task, check_weights
from intarsia.training.loop import Listeners, Progress
from intarsia.training.outcome import Outcome
from intarsia.training.registry import choose
from intarsia.training.run import Plan, Ready, Watcher, run_at
from intarsia.training.setup import Engine, Step, set_up, without_intercept

if TYPE_CHECKING:
    from intarsia.models.serialization import Trained


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


def check_algorithm(description: Experiment) -> None:
    """Raise ExperimentError unless sites can train what an experiment names, as it says."""
    algorithm, _ = choose(description)
    if not algorithm.federated:
        raise ExperimentError(
            f"{description.algorithm!r} pools the data, which sites do not send; choose an "
            "algorithm of a federation."
        )


def run_over(
    description: Experiment,
    transport: Transport,
    clients: Sequence[ClientId],
    folder: Path,
    *,
    patience: RetryPolicy | None = None,
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
    VersionError
        If a site has a version of this package that does not go together with the server's.
    AbsentError
        If sites do not answer, or their owners do not allow the run (`PolicyError`) or have not
        decided about it (`PendingError`); `resume_over` goes on from there.
    ConvergenceError
        If training diverges.
    """
    if not overwrite:
        run_folder.claim(folder)
    check_algorithm(description)
    own = {"run": secrets.token_hex(16), "clients": list(clients), "protocol": PROTOCOL}
    described = replace(description, out=str(folder))
    with run_folder.alone_in(folder):
        run_folder.start(folder, described, "sites", overwrite=overwrite, sites=own)
        return _go_on(folder, transport, patience, progress)


def resume_over(
    folder: Path,
    transport: Transport,
    *,
    patience: RetryPolicy | None = None,
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
    run_folder.describe(folder, None)  # says what is wrong with a folder that holds no run
    with run_folder.alone_in(folder):
        if (folder / "result.json").is_file():  # it came to its end: the sites are asked no more
            return load(folder)
        return _go_on(folder, transport, patience, progress)


def _go_on(
    folder: Path, transport: Transport, patience: RetryPolicy | None, progress: Watcher | None
) -> Result:
    """Go on with a run over sites, from its beginning too; nobody else works on it."""
    description = run_folder.describe(folder, None)
    path = folder / run_folder.RUN
    if not path.is_file():
        raise CheckpointError(
            f"{folder} holds no run over sites; go on with it by intarsia resume."
        )
    known = json.loads(path.read_text(encoding="utf-8"))
    if known.get("protocol", 1) != PROTOCOL and not _was_answered(folder):
        # it was refused for its version alone, and each side has another since
        known |= {"run": secrets.token_hex(16), "protocol": PROTOCOL}
        write_atomically(path, json.dumps(known).encode())
    if known.get("protocol", 1) != PROTOCOL:
        raise VersionError(
            f"The run in {folder} began with calls of version {known.get('protocol', 1)}, and this "
            f"version of intarsia makes those of version {PROTOCOL}; begin it anew with "
            "--overwrite, or go on with the version that it began with."
        )
    choose(description)  # imports torch, if the algorithm needs it
    journal = Journal(folder / run_folder.JOURNAL)
    sites = tuple(known["clients"])
    waits = partial(_note_pending, folder / run_folder.PENDING)
    caller = Caller(known["run"], sites, transport, patience or RetryPolicy(), journal, waits)
    waits({})
    try:
        with timing.limited(description.threads):
            watcher = _note_away(caller, folder, progress)
            at_sites = AtSites(caller, folder, caller.compare_versions())
            found = run_at(at_sites, description, folder, Listeners(watcher))
        journal.remove()
        # the names of all rows, ids or pseudonyms: of a finished run nobody asks for them again
        (folder / run_folder.SET_UP).unlink(missing_ok=True)
        return found
    finally:
        journal.close()


def _was_answered(folder: Path) -> bool:
    """Return whether the server has any answer to a call of a run, or what came of answers."""
    journals = (folder / run_folder.JOURNAL).glob("*.journal")
    kept = (folder / run_folder.SET_UP).exists() or Checkpoints(folder).newest_line()
    return bool(kept) or any(one.stat().st_size for one in journals)


def _note_pending(path: Path, waiting: Mapping[ClientId, str]) -> None:
    """Write down which sites wait for their owners, and what they say."""
    if waiting:
        write_atomically(path, json.dumps(waiting).encode())
    else:
        path.unlink(missing_ok=True)


def _note_away(caller: Caller, folder: Path, progress: Watcher | None) -> Watcher:
    """Return what writes down after each round who is away; in a new process nobody is."""
    known: set[ClientId] = set()
    away = folder / run_folder.AWAY
    away.unlink(missing_ok=True)

    def noted(found: Progress) -> None:
        nonlocal known
        if caller.away != known:
            known = set(caller.away)
            if known:
                write_atomically(away, json.dumps(sorted(known)).encode())
            else:
                away.unlink(missing_ok=True)
        if progress is not None:
            progress(found)

    return noted


class AtSites:
    """The clients of a run at sites on other machines; nobody else works on the output folder."""

    sites = True
    truth: Structure | None = None
    missing: Mapping[ClientId, Array] = MappingProxyType({})

    def __init__(self, caller: Caller, folder: Path, versions: tuple[str, ...]) -> None:
        self._caller, self._folder = caller, folder
        self._versions = versions  # notes on those of sites
        self.notes: tuple[str, ...] = ()
        self._set_up: SetUp | None = None  # of a run that goes on
        self._schemas: Mapping[str, Schema] = {}
        self._kept: Mapping[ClientId, Any] = {}
        self._make: Callable[[Mapping[str, Schema]], Remote] | None = None
        self._pairs = False  # whether each two sites have a key

    def build(self, description: Experiment) -> Schema:
        """Let the sites read their tables, and agree on what is public of them."""
        path = self._folder / run_folder.SET_UP
        if path.is_file():
            self._set_up = codec.decode(path.read_bytes(), SetUp, Schema, Holding, Labels)
            self._schemas = self._set_up.schemas
            self.notes = tuple(dict.fromkeys((*self._set_up.notes, *self._versions)))
            train = self._schemas["train"]
            return without_intercept(train) if description.preprocessing.intercept else train
        tree = {**experiment.to_dict(description), "protocol": PROTOCOL}
        tree["absent"] = self._caller.patience.absent
        tree["experiment"] = {key: v for key, v in tree["experiment"].items() if key != "out"}
        shown = {key: v for key, v in tree.items() if key not in ("client", "published")}
        said = json.dumps(shown).encode()
        sparse: Mapping[ClientId, bool] = {}
        coded: tuple[str, ...] = ()
        if description.dataset is not None:
            dealt = self._stage(DEAL, said, Dealt, Held, Holding, Labels, refusable=True)
            held = {name: one.held for name, one in dealt.items()}
            labels = next(iter(dealt.values())).labels
            self._kept = {n: np.ones(len(one.train.samples), bool) for n, one in held.items()}
        else:
            tables = self._stage(READ, said, TableMetadata, refusable=True)
            check_keys(tables)
            encoding = _agree(tables, description)
            labels = encoding.labels
            held = self._stage(ENCODE, codec.encode(encoding), Held, Holding)
            _check_ids(tables, held, text=encoding.text_ids)
            sparse = {name: one.sparse for name, one in tables.items()}
            classes = {name: tuple(map(canonical, one.classes)) for name, one in tables.items()}
            coded = notes_on_codes(classes, labels, description.labels)
            coded += notes_on_words({name: one.levels for name, one in tables.items()})
            samples = {name: one.train.samples for name, one in held.items()}
            by = [name for name, one in tables.items() if one.split_by is not None]
            coded += (f"Rows are held out by groups at {listed(by)}. {NARROW}",) if by else ()
            check_parts(by, [_samples(held, part) for part in ("train", "validation", "test")])
            self._kept = labelled_somewhere(samples, [one.train.labelled for one in held.values()])
        train = Schema({n: _take(one.train, self._kept[n]) for n, one in held.items()}, labels)
        tested = any(len(one.test.samples) for one in held.values())
        check_evaluated(description.split, int(tested))
        test = {"test": Schema({name: one.test for name, one in held.items()}, labels)}
        late = {name: one.validation for name, one in held.items() if one.validation is not None}
        if description.early_stopping and len(late) < len(held):
            raise SiteError(
                f"{listed([*held.keys() - late.keys()])} held out no rows for early stopping; "
                "install the same version of intarsia there, and begin the run anew."
            )
        stopping = {"validation": Schema(late, labels)} if late else {}
        self._schemas = {"train": train, **stopping, **(test if tested else {})}
        about = *coded, *notes_on_labels(train, description.labels), *notes_on_levels(train)
        self.notes = (*self._versions, *_left_out(held, self._kept), *about)
        self.notes += few_values.notes_on_few(train, sparse)
        self.notes += tuple(f"{one} The run goes on without it." for one in self._caller.refused)
        for schema in self._schemas.values() if sparse else ():
            check_kinds(schema, sparse, standardise=description.preprocessing.standardise)
        return train

    def check(self, plan: Plan) -> None:
        """Refuse what the algorithm has against these clients; a run that goes on was checked."""
        if self._set_up is not None:
            return
        description, options, schema = plan.description, plan.options, plan.schema
        assert plan.algorithm.federated
        check_task(description, schema, options)
        check_stopping(description, self._schemas)
        check_weights(description, plan.algorithm, schema)
        check_clients(description, plan.algorithm, options, schema)
        patience = self._caller.patience
        quorum = patience.quorum if patience.absent == "continue" else None
        privacy_guarantee.check_summands(description, plan.algorithm, options, schema, quorum)

    def open(self, plan: Plan) -> Checkpoints:
        """Return where checkpoints go: the folder was begun before."""
        return run_folder.reopen(self._folder, "sites")

    def set_up(self, plan: Plan) -> Ready:
        """Let the sites prepare their blocks; what it comes to is kept, and not done again."""
        description, caller = plan.description, self._caller
        privacy, folder = description.privacy, self._folder
        self._pairs = privacy.mode != "plain" and privacy.trust == "pairs"
        self._make = partial(
            Remote,
            caller,
            seed=description.seed,
            sealing=modes.adding(privacy, self._schemas["train"].clients),
            recorder=Transcript(folder / "transcript.bin") if privacy.transcript else None,
            algorithm=plan.algorithm.name,
            apart=privacy_guarantee.keeps_apart(description, plan.algorithm, plan.options),
            bounds=plan.algorithm.model.additive,
        )
        found = self._set_up
        if found is not None:
            engine = self._make(found.schemas)
            caller.sequence, caller.versions = found.sequence, dict(found.versions)
            counts = json.loads(found.counts)
            engine.books.exchange = found.exchange
            engine.books.restore_traffic(counts["traffic"])
            engine.books.crossings.restore(counts["crossings"])
        else:
            given = self, description.preprocessing, self._schemas
            made, notes = set_up(*given, clip=plan.clip, additive=plan.additive)
            assert isinstance(made, Remote)
            engine, self.notes = made, (*self.notes, *notes)
            books = engine.books
            traffic, crossings = dataclasses.asdict(books.traffic), books.crossings.summary()
            counts = {"traffic": traffic, "crossings": crossings}
            kept = SetUp(
                *(self._schemas, "test" in self._schemas, self.notes, caller.sequence),
                *(books.exchange, dict(caller.versions), json.dumps(counts)),
            )
            write_atomically(folder / run_folder.SET_UP, codec.encode(kept))
        caller.anchor()
        return Ready(engine, "test" if "test" in self._schemas else "train")

    def settle(self, schemas: Mapping[str, Schema]) -> Remote:
        """Let the sites bring their blocks into the order of the schemas."""
        assert self._make is not None
        self._schemas = schemas
        kept = {name: Settled(schemas, self._kept[name]) for name in self._caller.clients}
        said = self._call(SETTLE, {name: codec.encode(one) for name, one in kept.items()})
        if self._pairs:
            self._call(MEET, _forwarded(said))
        return self._make(schemas)

    def transform(self, step: Step) -> None:
        """Let the sites replace their blocks."""
        self._stage(TRANSFORM, codec.encode(step))

    def keep(self, plan: Plan, engine: Engine) -> None:
        """Keep nothing: the sites have their models."""

    def model(
        self, plan: Plan, schema: Schema, outcome: Outcome
    ) -> tuple[Trained | None, tuple[str, ...]]:
        """Let the sites keep their own models; return the server's, and a note if it has none."""
        assert plan.algorithm.federated
        found = outcome.conclusion
        bodies = {name: codec.encode(one) for name, one in broadcast_end(schema, found).items()}
        scales = self._call(KEEP, bodies, Scales)
        (self._folder / run_folder.AWAY).unlink(missing_ok=True)
        # the weights that the server has: of prepared features, whose scales it may not have
        network = None if found.network is None else dict(found.network)
        kept = {"weights": found.weights, "network": network}
        write_atomically(self._folder / run_folder.CONCLUSION, codec.encode(kept))
        return server_model(plan, schema, found, scales)

    def _stage(
        self, name: str, body: bytes, *classes: type, refusable: bool = False
    ) -> dict[ClientId, Any]:
        """Let all sites do a step, of which they are told the same; see `Caller.call`."""
        bodies = dict.fromkeys(self._caller.clients, body)
        return self._call(name, bodies, *classes, refusable=refusable)

    def _call(
        self,
        name: str,
        bodies: Mapping[ClientId, bytes],
        *classes: type,
        refusable: bool = False,
    ) -> dict[ClientId, Any]:
        self._caller.anchor()
        found: dict[ClientId, Any] = {}
        for client, answer in self._caller.call("stage", name, bodies, refusable=refusable).items():
            try:
                found[client] = codec.decode(answer.body, *classes)
            except CodecError as problem:
                raise _other_version(client, name, problem.args[0].rstrip(".")) from None
            theirs = getattr(found[client], "protocol", PROTOCOL)
            if theirs != PROTOCOL:
                raise _other_version(client, name, f"its calls are {theirs}, not {PROTOCOL}")
            try:
                _check_said(found[client], *classes)
            except ValueError as problem:
                raise malformed(client, name, "answer", problem) from None
        return found


def _check_said(found: Any, *classes: type) -> None:
    """Raise ValueError unless an answer is of the first of some classes, with sound holdings."""
    for kind in classes[:1]:
        check_kind(found, kind, kind.__name__)
    if isinstance(found, TableMetadata) and found.numbers:
        np.array(found.classes, np.float64)  # ValueError: one is no number
    held = found.held if isinstance(found, Dealt) else found
    for one in vars(held).values() if isinstance(held, Held) else ():
        if one is None:
            continue
        samples, labelled = one.samples, one.labelled
        if samples.ndim != 1 or samples.dtype.kind not in "iuSU":
            raise ValueError(f"samples of type {samples.dtype} and shape {samples.shape}")
        if labelled.dtype != bool or labelled.shape != samples.shape:
            raise ValueError(f"marks of labels of shape {labelled.shape} for {len(samples)} rows")
        if len(np.unique(samples)) < len(samples) or len({*one.features}) < len(one.features):
            raise ValueError("a row or a column is there twice")
        if _columns(one) != _columns(held.train):
            raise ValueError("other columns or feature blocks to evaluate on than to train on")
        grouped = [name for names in one.groups.values() for name in names]
        of_levels = {f"{column}={level}" for column, own in one.levels.items() for level in own}
        if len({*grouped}) < len(grouped) or not {*grouped, *of_levels} <= {*one.features}:
            raise ValueError("a column of a feature block or a level is none, or there twice")
        for name, shape in one.shapes.items():
            if min(shape, default=0) < 1 or math.prod(shape) != len(one.groups.get(name, ())):
                raise ValueError(f"the shape {shape} of a feature block of other columns")


def _columns(held: Holding) -> tuple[object, ...]:
    """Return what a client's parts have alike: columns, feature blocks, their shapes, levels."""
    return held.features, dict(held.groups), dict(held.shapes), dict(held.levels)


def _forwarded(said: Mapping[ClientId, Any]) -> dict[ClientId, bytes]:
    """Return for each site the greetings of all others, which the server cannot open."""
    for name, own in said.items():
        if not isinstance(own, Mapping) or own.keys() != said.keys() - {name}:
            raise SiteError(
                f"{name!r} sent no greeting to some of {sorted(said.keys() - {name})}; install the "
                "same version of intarsia there, or see who runs the site."
            )
        for one in own.values():
            if type(one) is not bytes:
                raise malformed(name, SETTLE, "greeting", f"a {type(one).__name__}")
    return {
        name: codec.encode({other: own[name] for other, own in said.items() if other != name})
        for name in said
    }


def _other_version(client: ClientId, name: str, how: str) -> VersionError:
    return VersionError(
        f"What {client!r} answers to {name!r} is of another version of intarsia ({how}); install "
        "the same version at the site and the server, and begin the run anew."
    )


def _agree(tables: Mapping[ClientId, TableMetadata], description: Experiment) -> Encoding:
    """Return the encoding that fits the tables of all sites."""
    own = {name: one.whole_ids for name, one in tables.items() if not one.generated}
    if len({*own.values()}) > 1:
        numbers, texts = (
            listed([name for name, whole in own.items() if whole is kind]) for kind in (True, False)
        )
        raise FederationError(
            f"Sample ids are whole numbers at {numbers} and text at {texts}; set id_type in the "
            "site.toml of each to the same."
        )
    check_forgotten_ids({n: (one.columns, one.id, one.generated) for n, one in tables.items()})
    columns = {name: one.columns for name, one in tables.items()}
    check_split_columns(columns, {name: one.split_by for name, one in tables.items()})
    check_names(columns)
    return agree(tables, description.labels)


def _check_ids(
    tables: Mapping[ClientId, TableMetadata], held: Mapping[ClientId, Held], *, text: bool
) -> None:
    """Raise SiteError where a site's ids are not numbers, or text, as all were told."""
    for name, one in held.items():
        whole = tables[name].whole_ids and not text
        parts = [part.samples for part in (one.train, one.test, one.validation) if part is not None]
        if any(len(own) and (own.dtype.kind in "iu") is not whole for own in parts):
            said = "whole numbers" if whole else "text"
            raise malformed(name, ENCODE, "answer", f"its ids are not {said}, as it was told")


def _samples(held: Mapping[ClientId, Held], part: str) -> dict[ClientId, Any]:
    """Return the samples of each client's part; it may have none for early stopping."""
    found = {name: getattr(one, part) for name, one in held.items()}
    return {name: one.samples for name, one in found.items() if one is not None}


def _left_out(held: Mapping[ClientId, Held], kept: Mapping[ClientId, Any]) -> tuple[str, ...]:
    """Return a note of how many training samples have a label nowhere."""
    without: set[object] = set()
    for name, one in held.items():
        without.update(one.train.samples[~kept[name]].tolist())
    if not without:
        return ()
    return (left_out(len(without)),)


def _take(holding: Holding, kept: Any) -> Holding:
    return replace(holding, samples=holding.samples[kept], labelled=holding.labelled[kept])
