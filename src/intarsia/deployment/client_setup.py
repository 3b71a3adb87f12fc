"""Do a site's steps of a run: from its own table to blocks and functions that may be called.

The set-up is a sequence of steps, each a call of the server, and so is the end. What a site says in
them is public: see `table_metadata`. A site refuses what its own settings do not allow.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from intarsia.core.block import INTERCEPT, Block, ClientId, Labels, places_of
from intarsia.core.client_functions import RandomKey
from intarsia.core.files.json_text import parse_json
from intarsia.core.schema import Holding, Schema
from intarsia.data.encoding import Encoding, encode, stored_labels
from intarsia.data.labels import check_classes_at, check_meaning
from intarsia.data.table import Hashes, Table
from intarsia.deployment import client_folder, client_models
from intarsia.deployment.client_folder import SiteSettings
from intarsia.deployment.client_models import Ended, Scales
from intarsia.deployment.earlier_jobs import (
    JoinedRows,
    ToldLevels,
    TrainedRows,
    TrainedValues,
    hashed,
)
from intarsia.deployment.job_requests import Requests, asked_of
from intarsia.deployment.policy import (
    READ_TABLES,
    RoundCount,
    check_clients,
    check_evaluated,
    check_experiment,
    check_job,
    check_rows,
    check_table,
    forbidden_by_site,
)
from intarsia.deployment.table_metadata import Held, check_levels, describe
from intarsia.engines import codec
from intarsia.engines.remote.declared import Declared
from intarsia.engines.remote.site import Site
from intarsia.engines.remote.wire import BEGIN, KEEP, PROTOCOL, Call
from intarsia.engines.sums.plain import Geometry
from intarsia.errors import (
    ExperimentError,
    KeyMaterialError,
    RefusedError,
    StaleError,
    VersionError,
    listed,
)
from intarsia.experiment import config as experiment
from intarsia.experiment import entity_alignment
from intarsia.experiment.checks import check_label_values
from intarsia.experiment.checksums import TableSums, checksum
from intarsia.experiment.config import Experiment
from intarsia.experiment.entity_alignment import Names
from intarsia.experiment.federation import (
    build,
    held_for_stopping,
    held_out,
    table_of,
    trains_on,
)
from intarsia.privacy.entity_matching.pseudonyms import shown
from intarsia.privacy.secure_aggregation import setup as modes
from intarsia.privacy.secure_aggregation.protocol import Sealing
from intarsia.protocols import evaluation, evaluation_rows, preprocessing
from intarsia.protocols.evaluation_rows import LEAST_ROWS
from intarsia.protocols.preprocessing import few_values
from intarsia.protocols.preprocessing.rare_values import without_rare
from intarsia.training import privacy_guarantee
from intarsia.training.registry import choose
from intarsia.training.setup import (
    TRANSFORMS,
    constant_of,
    declare_exchanges,
    evaluated_parts,
    first_key,
    reads_alone,
    settle_block,
    transform_block,
)
from intarsia.training.timing import Limit

READ: Final = "read"  # the experiment → the metadata of the site's table
DEAL: Final = "deal"  # the experiment, a simulation → what the client was dealt
ENCODE: Final = "encode"  # the encoding → what the site holds
SETTLE: Final = "settle"  # the schemas → aligned blocks, a state to prepare them with, greetings
MEET: Final = "meet"  # the greetings of all others → sealed sums, where each two have a key
TRANSFORM: Final = "transform"  # the state → prepared, or clipped, blocks

if TYPE_CHECKING:
    from intarsia.privacy.keys.key_exchange import Card, Identity
    from intarsia.privacy.keys.pair_keys import PairKeys

    # the own identity, the others' cards, who own cells, what all and what each other must know
    Acquaintances = tuple[Identity, dict[str, Card], list[tuple[str, ...]], bytes, dict[str, bytes]]

# each is done once in a run, in this order; those of TRANSFORM by their own names
_ORDER: Final = (READ, DEAL, ENCODE, SETTLE, MEET, *TRANSFORMS, BEGIN, KEEP)
_MOST_EXPERIMENT: Final = 1 << 20  # bytes, which a site writes into its log and as a request
_OF_SERVER = ("out", "memory", "state_megabytes", "workers", "ray", "trackers")


@dataclass(frozen=True)
class Dealt:
    """What a simulated client was dealt."""

    held: Held
    labels: Labels
    protocol: int  # of the site's version; another is refused


@dataclass(frozen=True)
class Settled:
    """What all clients know before the first exchange."""

    schemas: Mapping[str, Schema]
    kept: Any  # (the client's training samples,) bool: those with a label anywhere


@dataclass(frozen=True)
class Greeted:
    """A client's state between its own greetings and those of the others."""

    prepared: preprocessing.Preparation
    secret: bytes  # that it drew for the run


class Work:
    """What a client has of one run: by its own settings, with its models in its own folder."""

    def __init__(
        self,
        settings: SiteSettings,
        folder: Path,
        record: Callable[[dict[str, Any]], None] = lambda _: None,  # into the site's log
    ) -> None:
        self._settings, self._folder = settings, folder
        self._requests = Requests(folder, record)
        self._rounds = RoundCount(folder, settings.policy.rounds_a_day)
        self._trained = TrainedRows(folder / "trained.rows", settings.policy.least_changed)
        self._read_rows = TrainedRows(folder / "read.rows", settings.policy.least_changed)
        least = settings.policy.least_changed
        self._values = TrainedValues(folder / "trained.values", self._trained, least)
        self._evaluated = TrainedRows(folder / "graded.rows", least)  # of any part
        self._joined = JoinedRows(folder / "joined.rows", least)
        self._levels = ToldLevels(folder / "told.levels", least)
        # names of the job's rows and their hashed ids, to compare them with other jobs'
        self._rows: tuple[NDArray[Any], NDArray[np.uint64]] | None = None
        self._read_ids: NDArray[np.uint64] | None = None  # of its table, without those that wait
        self._joined_rows: dict[str, Any] = {}  # as `JoinedRows` keeps them
        self._waiting = 0  # rows of the table, for a job that differs by more
        self._evaluated_ids: dict[str, NDArray[np.uint64]] = {}  # hashed, by the part
        self._labels_out = 0  # of rows that are not trained on, which wait too
        self._values_out = 0  # values of columns, which wait too
        self._record = record
        self._call: Call | None = None  # that is being done
        self._step = -1  # of the set-up, that was done last
        self._clip: float | None = None  # to which norm rows are to be clipped; None: not
        self._lacking: tuple[str, ...] = ()  # what is to be made of the blocks before training
        self._anchor: int | None = None  # of the calls before the first round, once training began
        self._said: dict[str, bytes] = {}  # what all sites are told alike, by the step
        self._asked: tuple[str, ...] = ()  # all clients that were asked to take part
        self._let_in = ""  # digest of the job, once it is
        # the table and its ids while the owner is to decide, and which job it is read for
        self._taken: tuple[bytes, tuple[Table, Names, NDArray[Any]]] | None = None
        self._splits: Hashes | None = None  # of its rows, by which they are split
        self._names: Names | None = None  # of rows with ids, until all clients have met
        self._alone = False  # whether the table has no ids: no other client has its rows
        self._met: Acquaintances | None = None  # between the greetings that it sends and reads
        self._prove: Callable[[str, str], bytes] | None = None  # that a client has a level
        self.seed = 0
        self.schemas: Mapping[str, Schema] = {}
        self.sealing: Sealing | None = None
        self.states: tuple[type, ...] = (preprocessing.Preparation, Greeted)
        self._drawn = b""  # for the run, in this process
        self.fingerprint = b""
        self.described = b""
        self.told: tuple[str, ...] = ()
        self._blocks: dict[str, Block] = {}
        self._table: Table | None = None
        self._labels: Labels | None = None  # as the table was encoded
        self._declared: Declared | None = None
        self._limit: Limit | None = None  # as the run's experiment says
        self._goes_on = False  # whether rounds go on without clients that do not answer
        self._steps: Mapping[str, Callable[[Any, bytes], tuple[Any, Any]]] = {
            READ: self._read,
            DEAL: self._deal,
            ENCODE: self._encode,
            SETTLE: self._settle,
            MEET: self._meet,
            TRANSFORM: self._transform,
            BEGIN: self._begin,
            KEEP: self._keep,
        }

    def declared(self) -> Declared:
        """Return what the server may ask; StaleError before the schemas are known."""
        if self._declared is None:
            raise StaleError("A client function was called before the set-up was done.")
        return self._declared

    def block(self, part: str) -> Block:
        """Return the client's block of a part."""
        return self._blocks[part]

    def enter(self, call: Call) -> None:
        """Make ready for a call, in this thread; PolicyError where the owner does not allow it."""
        self._call = call
        if call.kind != "stage" or call.function not in (READ, DEAL):
            if not self._let_in:
                raise StaleError("The job was not let in; nothing of it is done.")
            self._requests.check_goes_on(call.run, self._let_in)
        if call.kind in ("ask", "sum"):
            most = self._experiment.rounds + 1  # in the last one, what training came to is told
            if not 0 <= call.round <= most:
                raise RefusedError(
                    f"A call is of round {call.round}, and the job was let in with "
                    f"{self._experiment.rounds} rounds; begin a new run for more."
                )
            if not call.round and self._anchor not in (None, call.anchor):
                raise RefusedError(
                    "A call begins a round that has no number after training began; run the "
                    "algorithm as it is at the server."
                )
            # what an algorithm sets up belongs to the first round: a server that numbers all rounds
            # so trains in them
            number = call.round if self._anchor is None else max(call.round, 1)
            repeats = self.declared().sends(call).repeats
            self._rounds.begin(replace(call, round=number), repeats=repeats)
        if self._limit is not None:
            self._limit.set()

    def stage(self, name: str, state: Any, message: bytes) -> tuple[Any, bytes]:
        """Do a step of the set-up, which may change the blocks; return the state and a reply."""
        said = codec.decode(message) if name == TRANSFORM else name
        if name not in self._steps or said not in _ORDER:
            raise StaleError(f"{str(said)[:80]!r} is no step of a run's set-up.")
        step = _ORDER.index(said)
        if step <= self._step:
            raise RefusedError(
                f"The step {said!r} of the set-up came after {_ORDER[self._step]!r}, and a run is "
                "set up once: totals of two would tell rows in which they differ; begin a new run."
            )
        if name == BEGIN and self._lacking:
            raise RefusedError(
                f"Training was to begin on rows that are not {' and not '.join(self._lacking)}, "
                "as the experiment has it; set the run up as the algorithm says."
            )
        self.told = ()
        state, reply = self._steps[name](state, message)
        self._step = step
        self._lacking = tuple(one for one in self._lacking if one != said)
        if name == BEGIN and self._call is not None:
            self._anchor = self._call.anchor
        if name in (READ, DEAL, ENCODE):
            self._said[name] = message
        return state, codec.encode(reply)

    def changes(self, described: bytes) -> str:
        """Return what the table that was read has otherwise than one described so, in words."""
        before, now = (codec.decode(one, TableSums) for one in (described, self.described))
        return "; ".join(before.changes(now))

    def _take_experiment(self, message: bytes) -> Experiment:
        """Take the experiment; refuse what the site's settings, or its policy, do not allow."""
        self._let_in = ""
        if len(message) > _MOST_EXPERIMENT:
            raise RefusedError(
                f"The experiment has {len(message):,} bytes, and a site keeps one of at most "
                f"{_MOST_EXPERIMENT:,}; leave out what a run over sites does not need."
            )
        tree = parse_json(message)
        if tree.get("protocol", 1) != PROTOCOL:
            raise VersionError(
                f"The server's calls are of version {tree.get('protocol', 1)} and this site's of "
                f"version {PROTOCOL}; install the same version of intarsia at both, and begin the "
                "run anew."
            )
        settings = self._settings
        own_table = settings.table is not None
        check_experiment(settings.policy, tree, settings.modules, own_table=own_table)
        more = ("client",) if own_table else ("dataset", "partition")
        own = {key: value for key, value in tree.items() if key in (*READ_TABLES, *more)}
        privacy, names = dict(own.get("privacy", {})), dict(own.get("alignment", {}))
        if privacy.get("mode", "plain") == "plain" and not settings.plain:
            raise forbidden_by_site(
                "plain",
                "takes no part in sums that are not sealed",
                'privacy.mode = "masked" in the experiment, or plain = true at the site',
            )
        hidden = names.get("ids", "plain") != "plain"
        if settings.table is not None and not hidden and not settings.ids:
            raise forbidden_by_site(
                "ids",
                "shows the server no ids of rows",
                'alignment.ids = "pseudonyms" in the experiment, or ids = true at the site',
            )
        self._goes_on = tree.get("absent", "wait") != "wait"
        sealed = privacy.get("mode", "plain") != "plain"
        if sealed and privacy.get("trust", "pairs") != "pairs" and settings.trust == "pairs":
            raise forbidden_by_site(
                "trust",
                "takes no part in sums that are sealed with one key of all clients",
                'privacy.trust = "pairs" in the experiment, or trust = "clients" at the site',
            )
        privacy["key"] = settings.key if sealed else ""
        names["key"] = settings.key if hidden else None
        if (sealed or names["key"] == "") and not settings.key:
            raise forbidden_by_site(
                "key",
                "has not named the clients' shared key, which the run needs",
                "it to that file",
            )
        if names.get("dictionary") is not None:
            if not settings.dictionary:
                raise forbidden_by_site(
                    "dictionary",
                    "has not named the dictionary of columns that the run uses",
                    "it to the site's copy of that file",
                )
            names["dictionary"] = settings.dictionary
        # where and how a site computes is its own: not the server's folders, memory or clusters
        asked = dict(own.get("experiment", {}))
        own["experiment"] = {key: one for key, one in asked.items() if key not in _OF_SERVER}
        own["privacy"] = privacy
        own["alignment"] = {key: value for key, value in names.items() if value is not None}
        if settings.table is not None:
            own["client"] = [{"name": settings.name}]
        tables = () if settings.table is None else (settings.table,)
        found = replace(experiment.from_dict(own, self._folder), clients=tables)
        self._experiment, self.seed = found, found.seed
        algorithm, self._options = choose(found)
        if not algorithm.federated:
            raise ExperimentError(f"{found.algorithm!r} pools the data; it runs in one place only.")
        assert self._call is not None
        check_job(
            *(settings.policy, settings.plain, found, algorithm, self._options),
            len(self._call.asked),
        )
        self._algorithm = algorithm
        self.states = (*algorithm.states, preprocessing.Preparation, Greeted)
        self._limit = Limit(found.threads)
        self._limit.set()
        return found

    def _read(self, state: Any, message: bytes) -> tuple[Any, Any]:
        job = self._take_experiment(message)
        if self._taken is None or self._taken[0] != message:
            self._taken = message, table_of(job)
        self._table, names, written = self._taken[1]
        columns = self._table.columns
        check_table(self._settings.policy, columns, len(self._table.samples))
        self._admit(message, columns)
        self._taken = None
        client, self._splits = self._table.client, Hashes()
        # as the table has them: a job chooses the rules that it matches ids by
        every = hashed(written)
        training = np.flatnonzero(trains_on(self._table, job.split, self._splits))
        # with noise, too: the model has some, and not what other clients open in training
        self._read_ids, wait = self._read_rows.settle(every[training])
        self._waiting = int(wait.sum())
        if self._waiting:
            kept = np.delete(np.arange(len(every)), training[wait])
            self._table, names = self._table.take(kept), names.take(client, kept)
            every = every[kept]
        self._rows = names.public[client], every
        self.described = codec.encode(TableSums.of(self._table, every))
        self._alone = self._table.generated
        hidden = job.alignment.ids == "pseudonyms" and not self._alone
        self._names = names if hidden else None
        own = self._settings.table
        id, by = (None, None) if own is None else (own.id, own.split_by)
        self._prove = self._level_proofs(message)
        levels = self._levels.settle(every, self._table.categorical)
        said = describe(self._table, levels, id, job.labels, self._prove, by, self._key_proof())
        self.fingerprint = b"%08x" % zlib.crc32(codec.encode(said))  # nothing else counts so far
        more = (
            ("units of columns", said.units or said.label_unit),
            ("levels of text columns", said.levels),
            ("classes of labels", said.classes),
        )
        self.told = ("names of columns", *(words for words, there in more if there))
        return state, said

    def _deal(self, state: Any, message: bytes) -> tuple[Any, Any]:
        job = self._take_experiment(message)
        if self._settings.table is not None:  # which `_read` alone compares with earlier jobs'
            raise RefusedError(
                "This site has a table of its own, and was asked for what a simulated client is "
                "dealt; run the algorithm as it is at the server."
            )
        self._admit(message, ())
        found = build(job)
        self._labels = found.labels
        name = self._settings.name
        if name not in found.train:
            raise ExperimentError(f"The simulation has no client {name!r}.")
        held = {"validation": found.validation[name]} if found.validation else {}
        self._hold(found.train[name], found.test[name], held)
        self.told = ("what a simulated client was dealt",)
        return state, Dealt(self._holdings(), found.labels, PROTOCOL)

    def _admit(self, message: bytes, columns: Sequence[str]) -> None:
        """Let the job in, if the owner does: nothing of the table has left before."""
        assert self._call is not None
        job, tree = self._experiment, parse_json(message)
        asked = asked_of(*(job, self._algorithm, self._options, tree, self._call.asked, columns))
        policy = self._settings.policy
        self._let_in = self._requests.admit(self._call.run, asked, policy).digest
        self._asked = asked.clients

    def _encode(self, state: Any, message: bytes) -> tuple[Any, Any]:
        if self._table is None:
            raise StaleError("An encoding came before the site's table was read.")
        encoding = codec.decode(message, Encoding, Labels)
        if self._prove is not None:
            check_levels(encoding, self._prove)
        check_meaning(encoding.labels, encoding.codes, self._experiment.labels)
        check_classes_at(self._table.labels, encoding.labels)
        if self._table.weights is not None and not encoding.labels.weighted:
            raise RefusedError(  # no noise is measured for weights
                "The site's rows have weights, and the labels were to be told as of rows without "
                "any; run the algorithm as it is at the server."
            )
        self._labels = encoding.labels
        table, self._table = self._table, None
        if encoding.text_ids and table.samples.dtype.kind in "iu":
            table = replace(table, samples=table.samples.astype(np.str_))
            if self._rows is not None:
                self._rows = self._rows[0].astype(np.str_), self._rows[1]
        y, name = stored_labels(table, encoding), self._settings.name
        check_label_values(self._experiment, encoding.labels, name, y)
        settings, held = self._experiment.split, {}
        parts, self._splits = held_out(table, settings, self._splits), None
        train, test = (encode(part, encoding, later=True) for part in parts)
        by = parts[0].split_by
        del table, parts
        if settings.stopping:
            train, held["validation"] = held_for_stopping(train, settings, by)
        self._hold(train, test, held)
        self.told = ("which rows and columns the site holds",)
        return state, self._holdings()

    def _level_proofs(self, message: bytes) -> Callable[[str, str], bytes] | None:
        """Return what shows to other clients of the job that one of them sent a level of a column.

        All make the same of a level, so that nobody is told which client sent it. None: the run
        has no keys.
        """
        privacy = self._experiment.privacy
        if privacy.mode == "plain":
            return None
        from intarsia.privacy.keys.crypto import pseudorandom  # here: it imports cryptography
        from intarsia.privacy.keys.shared_key import SharedKey

        assert self._call is not None
        key = SharedKey.load(Path(privacy.key)).derive("levels")
        job = pseudorandom(key, self._call.run, message, *self._call.asked)
        return lambda column, level: pseudorandom(job, column, level)

    def _key_proof(self) -> bytes:
        """Return what shows to the server which sites have one key; b"": the run has none."""
        shared = self._experiment.privacy.key or self._experiment.alignment.key
        if not shared:
            return b""
        from intarsia.privacy.keys.crypto import pseudorandom  # as above
        from intarsia.privacy.keys.shared_key import SharedKey

        assert self._call is not None
        return pseudorandom(SharedKey.load(Path(shared)).derive("same key"), self._call.run)

    def _hold(self, train: Block, test: Block, held: Mapping[str, Block]) -> None:
        least = self._settings.policy.least_rows
        evaluated = {
            part: _to_evaluate(self._without_few_labels(part, one), least)
            for part, one in {**held, "test": test}.items()
        }
        self._blocks = {"train": train, **evaluated}
        self.fingerprint = b"%08x" % checksum(self._blocks)

    def _without_few_labels(self, part: str, block: Block) -> Block:
        """Return a block to evaluate on, without labels of few rows that no job had evaluated."""
        if self._rows is None or block.y is None:
            return block
        own = np.flatnonzero(~np.isnan(block.y))
        rows, out = self._evaluated.settle_evaluated(self._hashes_of(block.samples[own]))
        if len(rows) >= LEAST_ROWS:  # of fewer nobody is told
            self._evaluated_ids[part] = rows
        self._labels_out += int(out.sum())
        y = block.y.copy()
        y[own[out]] = np.nan
        return replace(block, y=y)

    def _hashes_of(self, samples: NDArray[Any]) -> NDArray[np.uint64]:
        """Return the hashed ids of some rows of the table, (samples,)."""
        assert self._rows is not None
        public, every = self._rows
        at = np.argsort(public)
        return every[at[np.searchsorted(public[at], samples)]]

    def _holdings(self) -> Held:
        own = {part: Holding.of(block) for part, block in self._blocks.items()}
        return Held(own["train"], own["test"], own.get("validation"))

    def _settle(self, state: Any, message: bytes) -> tuple[Any, Any]:
        settled = codec.decode(message, Settled, Schema, Holding, Labels)
        self.schemas, self.sealing, self._declared = settled.schemas, None, None
        settings, name = self._experiment, self._settings.name
        self._check_settled(settled)
        if not settled.kept.all():
            kept = np.flatnonzero(settled.kept)
            self._blocks["train"] = self._blocks["train"].take(kept)
        rows = None if self._rows is None else self._compare_rows()
        for part in {**self._blocks}:
            block = self._blocks.pop(part)
            if part in self.schemas:
                own = settle_block(block, name, self.schemas[part], settings.preprocessing)
                self._blocks[part] = own
        schema = self.schemas["train"]
        values = {} if self._rows is None else self._leave_values_out(schema)
        standardise = settings.preprocessing.standardise
        train = without_rare(self._blocks["train"], name, schema, standardise=standardise)
        self._blocks["train"] = train
        self._take_noise(schema)
        self._begin_job(rows, values)
        prepared = preprocessing.initial(
            *(name, self._blocks["train"], schema),
            alone=reads_alone(self._algorithm, self._options),
            constant=constant_of(self._algorithm, settings.preprocessing),
        )
        if settings.privacy.mode == "plain" or settings.privacy.trust == "clients":
            self._names = None
            self._seal(None)
            return prepared, None
        from intarsia.privacy.keys import pair_keys  # here: it imports cryptography

        self._drawn = pair_keys.drawn_secret()
        self._met = self._acquaintances()
        me, cards, owner_sets, agreed, known = self._met
        greetings = pair_keys.greetings(me, cards, self._drawn, owner_sets, agreed, known)
        return Greeted(prepared, self._drawn), greetings

    def _check_settled(self, settled: Settled) -> None:
        """Refuse schemas that are not of the site's table, or that its owner does not allow."""
        if not self._blocks:
            raise StaleError("Schemas came before the site's table was encoded.")
        check_clients(self._settings.policy, len(self.schemas["train"].clients))
        labelled = Holding.of(self._blocks["train"]).labelled.sum()
        check_rows(self._settings.policy, int(np.sum(settled.kept)), int(labelled))
        self._check_asked(settled.schemas)
        if any(schema.labels != self._labels for schema in settled.schemas.values()):
            raise RefusedError(
                "The schemas have other labels than the site's table was encoded with; run the "
                "algorithm as it is at the server."
            )
        _check_own(self._blocks, settled, self._settings.name)
        if self._alone:
            _check_alone(settled.schemas, self._settings.name)
        self._check_evaluated()

    def _compare_rows(self) -> NDArray[np.uint64]:
        """Return the hashed ids of the training rows, which differ enough from earlier jobs'."""
        train = self._blocks["train"]
        rows = self._trained.check(self._hashes_of(train.samples))
        index, own = self.schemas["train"].samples, self._settings.name
        at = index.own(own)
        every, cells = self._hashes_of(index.ids[at]), index.cell_of[at]
        shared = {
            other: every[np.isin(cells, index.cells_of[other])]
            for other in self.schemas["train"].clients
            if other != own
        }
        self._joined_rows = self._joined.check(self._experiment.alignment.normalise, shared)
        if "train" in evaluated_parts(self.schemas) and train.y is not None:
            evaluated = self._hashes_of(train.samples[~np.isnan(train.y)])
            self._evaluated_ids["train"] = self._evaluated.check(evaluated)
        return rows

    def _take_noise(self, schema: Schema) -> None:
        """Take the algorithm's private form where noise is asked for, and what is left to do."""
        settings = self._experiment
        privacy_guarantee.check_summands(settings, self._algorithm, self._options, schema)
        release, _ = privacy_guarantee.guarantee(settings, self._algorithm, self._options, schema)
        clip = release is not None and self._algorithm.disclosure.dp_unit == "sample"
        self._clip = release.clip if clip and release is not None else None
        made = {"prepared": True, "clipped": clip, "counted once": self._algorithm.model.additive}
        self._lacking = tuple(name for name, needed in made.items() if needed)
        if release is not None and self._algorithm.private is not None:
            self._algorithm = self._algorithm.private(release)

    def _begin_job(
        self,
        rows: NDArray[np.uint64] | None,
        values: Mapping[str, NDArray[np.uint64] | None],
    ) -> None:
        """Note that the job begins, on which rows and values, and how many new ones wait."""
        assert self._call is not None
        job = self._call.run, self._let_in, self._settings.policy
        taking_part = {part: len(block.samples) for part, block in self._blocks.items()}
        self._requests.begin(*job, self._agreed().hex(), taking_part)
        if rows is None or self._read_ids is None:
            return
        self._read_rows.keep(self._read_ids)
        self._trained.keep(rows)
        self._joined.keep(self._joined_rows)
        self._values.keep(values, rows)
        for evaluated in self._evaluated_ids.values():
            self._evaluated.keep(evaluated)
        waiting = {"rows": self._waiting, "values": self._values_out, "labels": self._labels_out}
        for what, count in waiting.items():
            if count:
                self._record({"event": f"new {what} wait", "run": self._call.run, what: count})

    def _leave_values_out(self, schema: Schema) -> dict[str, NDArray[np.uint64] | None]:
        """Leave few new values of columns that others have, too, out; return those that train.

        The means of all columns are told where the server gets them.
        """
        block, given = self._blocks["train"], self._settings.scales
        places = few_values.shared_columns(block, self._settings.name, schema, alone=given)
        values, waiting = self._values.settle(
            self._hashes_of(block.samples), few_values.observed(block, places)
        )
        self._values_out = sum(int(out.sum()) for out in waiting.values())
        if self._values_out:
            self._blocks["train"] = few_values.without_values(block, places, waiting)
        return values

    def _check_asked(self, schemas: Mapping[str, Schema]) -> None:
        """Refuse other clients than the job was let in with; fewer, where it may do without."""
        for schema in schemas.values():
            found = set(schema.clients)
            without = set(self._asked) - found
            if found - {*self._asked} or (without and not self._goes_on):
                raise RefusedError(
                    f"The job was let in with the clients {', '.join(self._asked)[:200]}, and is "
                    f"set up with {', '.join(sorted(found))[:200]}; begin a new run."
                )

    def _check_evaluated(self) -> None:
        """Refuse to be evaluated on fewer rows than the owner asks for, by the schemas alone."""
        model = self._algorithm.model
        server = evaluation.server_blocks(model, self._options, self.schemas["train"])
        for part in evaluated_parts(self.schemas):
            schema = self.schemas[part]
            rows = evaluation_rows.rows_evaluated_at(schema, self._settings.name, server)
            check_evaluated(self._settings.policy, part, rows)

    def _meet(self, state: Any, message: bytes) -> tuple[Any, Any]:
        if not isinstance(state, Greeted):
            raise StaleError("Greetings came to a site that has sent none.")
        from intarsia.privacy.keys import pair_keys

        met, self._met = self._met or self._acquaintances(), None
        me, cards, owner_sets, agreed, known = met
        given = me, cards, state.secret, owner_sets, agreed, known, codec.decode(message)
        self._names = None
        # a site that was started again has the state of before: it may have sealed with these keys
        self._seal(pair_keys.met(*given), fresh=state.secret == self._drawn)
        return state.prepared, None

    def _acquaintances(self) -> Acquaintances:
        """Return the own identity, the others' cards, who own cells, and what names all of it.

        The last is what each of the others must know as well as this client.
        """
        from intarsia.privacy.keys.keyring import KeyFolder

        settings, schemas = self._experiment.privacy, self.schemas
        me, cards = KeyFolder(Path(settings.key).parent).others(schemas["train"].clients)
        if me.name != self._settings.name:
            raise KeyMaterialError(
                f"The identity beside the key of site.toml is that of {me.name!r}, and the site is "
                f"{self._settings.name!r}; name the key in the site's own folder of keys."
            )
        owner_sets = sorted(Geometry(schemas).owner_sets())
        return me, cards, owner_sets, self._agreed(), self._shown(cards)

    def _shown(self, others: Collection[ClientId]) -> dict[ClientId, bytes]:
        """Return for each other client what shows the ids of the rows that both are to have.

        All clients see pseudonyms, and under one key they stay the same: one that saw them in an
        earlier run could claim these rows.
        """
        if self._names is None:
            return dict.fromkeys(others, b"")
        key = entity_alignment.key_in_file(self._experiment.alignment, "ids of rows that two have")
        assert key is not None  # as the alignment has pseudonyms, see `_take_experiment`
        own, found = self._settings.name, self._names
        ids: dict[ClientId, list[NDArray[Any]]] = {other: [] for other in others}
        for schema in self.schemas.values():
            index = schema.samples  # in the same order at all clients
            rows = index.own(own)
            own_ids = found.ids[own][places_of(index.ids[rows], found.public[own])]
            cells = index.cell_of[rows]
            for other, known in ids.items():
                both = np.zeros(len(index.cells), bool)
                both[index.cells_of[other]] = True
                known.append(own_ids[both[cells]])
        return {other: shown(np.concatenate(known), key) for other, known in ids.items()}

    def _agreed(self) -> bytes:
        """Return a digest of what all sites must have been told alike: a site's own is not in it.

        That is the experiment as the server sent it, the encoding, the schemas, who was asked, the
        run and the version of its calls.
        """
        assert self._call is not None
        told = {
            "protocol": PROTOCOL,
            "run": self._call.run,
            "asked": self._asked,
            "colluders": self._experiment.privacy.colluders,
            "said": self._said,
            "schemas": dict(self.schemas),
        }
        return hashlib.sha256(codec.encode(told)).digest()

    def _seal(self, pairs: PairKeys | None, *, fresh: bool = False) -> None:
        """Have what seals sums, where they are sealed, and take calls of client functions."""
        settings, clients = self._experiment, self.schemas["train"].clients
        keys = modes.keys(settings.privacy, clients, None, settings.name, pairs)
        if keys is not None and settings.privacy.trust == "clients":
            # sites that were told of different jobs have different keys, and nothing is opened
            own = keys.shared.derive(f"run {self._agreed().hex()}")
            keys = replace(keys, shared=replace(keys.shared, secret=own))
        if keys is not None:
            self.sealing = modes.sealing(settings.privacy, clients, keys, fresh=fresh)
        self._declared = self._declare(clients)

    def _transform(self, state: Any, message: bytes) -> tuple[Any, Any]:
        self._scaling, step = state, codec.decode(message)
        if (step == "clipped" and state.clip != self._clip) or (
            step == "prepared" and state.row_scale is not None
        ):
            raise RefusedError(
                f"Rows were to be {step} where their norms were not measured between both steps, "
                f"or for the bound {state.clip} where the experiment has {self._clip}; set the "
                "run up as the algorithm says."
            )
        for part, block in self._blocks.items():
            self._blocks[part] = transform_block(step, state, part, block)
        return state, None

    def _begin(self, state: Any, message: bytes) -> tuple[Any, Any]:
        key = RandomKey((self.seed, "init", self._settings.name))
        known = self._options, self.schemas["train"], self._settings.name, self._blocks["train"]
        return self._algorithm.init_client(*known, key), None

    def _keep(self, state: Any, message: bytes) -> tuple[Any, Any]:
        ended = codec.decode(message, Ended)
        settings, name = self._settings, self._settings.name
        model = client_models.model_of_site(
            *(self._experiment, self._algorithm, self._options, self.schemas["train"], name),
            *(state, self._scaling, ended),
        )
        if model is not None:
            assert self._call is not None
            client_models.keep(model, self._experiment, self._folder, self._call.run)
        # where sums are not sealed the server can read them anyway
        given = settings.scales or self._experiment.privacy.mode == "plain"
        scaling = self._scaling
        self.told = ("means and scales of columns",) if given else ()
        own = Scales(scaling.mean, scaling.scale, scaling.average) if given else Scales()
        return state, own

    def _declare(self, clients: Sequence[ClientId]) -> Declared:
        """Return what the server may ask."""
        algorithm, options, settings = self._algorithm, self._options, self._experiment
        standardise = settings.preprocessing.standardise
        sends = declare_exchanges(algorithm, options, self.schemas, standardise=standardise)
        apart = privacy_guarantee.keeps_apart(settings, algorithm, options)
        least = settings.privacy.least_clients if apart else 1
        server = algorithm.begin(options, self.schemas["train"], first_key(settings.seed))
        all_there = settings.participation == 1.0 and not self._goes_on
        allowed = dict(algorithm.disclosure.allowed(server, self._settings.name))
        if self.sealing is not None:
            # other steps at all clients but one would leave nothing of theirs in the total
            entries = preprocessing.entries_summed(self.schemas["train"])
            step = self.sealing.rounding(entries, len(clients)).step
            allowed["MeasureFeatures.step"] = (step,)
        return Declared(
            *(self._settings.name, Geometry(self.schemas), clients, sends),
            *(algorithm.name, options, least),
            # an algorithm that needs all has them, whatever the job says
            complete=not algorithm.absences or all_there,
            rounds=settings.rounds,
            allowed=allowed,
        )


def _to_evaluate(block: Block, least: int) -> Block:
    """Return a block that models are evaluated on: without labels where these are of too few rows.

    The owner may ask for more of them than others do. Nobody is told of labels then.
    """
    labelled = 0 if block.y is None else np.count_nonzero(~np.isnan(block.y))
    return replace(block, y=None) if LEAST_ROWS <= labelled < least else block


def _check_own(held: Mapping[str, Block], settled: Settled, client: ClientId) -> None:
    """Refuse a set-up that leaves out rows of a client's own: totals would differ by them.

    Without a test part models are evaluated on the training rows.
    """
    kept, own = settled.kept, Holding.of(held["train"])
    lacking = [
        part for part, block in held.items() if len(block.samples) and (part not in settled.schemas)
    ]
    if lacking:
        raise RefusedError(
            f"The set-up leaves out the {lacking[0]} part, of which this site has rows; run the "
            "algorithm as it is at the server."
        )
    if not isinstance(kept, np.ndarray) or kept.dtype != bool or kept.shape != own.samples.shape:
        raise RefusedError(
            f"What says which training rows have a label is no {own.samples.shape} of truth "
            "values; install the same version of intarsia at the server."
        )
    if (own.labelled & ~kept).any():
        raise RefusedError(
            "The set-up leaves out training rows whose labels this site has, and a total without "
            "a row would tell it; run the algorithm as it is at the server."
        )
    for part, schema in settled.schemas.items():
        own, told = Holding.of(held[part]), schema.holdings[client]
        some = kept if part == "train" else np.ones(len(own.samples), bool)
        if not (
            np.array_equal(told.samples, own.samples[some])
            and np.array_equal(told.labelled, own.labelled[some])
            and told.features in (own.features, (*own.features, INTERCEPT))
            and dict(told.groups) == dict(own.groups)
            and dict(told.shapes) == dict(own.shapes)
            and dict(told.levels) == dict(own.levels)
        ):
            raise RefusedError(
                f"The schema of the part {part[:80]!r} has other rows, labels, columns or feature "
                "blocks of this site than it said; run the algorithm as it is at the server."
            )


def _check_alone(schemas: Mapping[str, Schema], client: ClientId) -> None:
    """Refuse other holders of a client's rows, which have no ids.

    Their names are made under the clients' key, so that each client can make those of another's.
    """
    for schema in schemas.values():
        held = schema.samples.holders[schema.samples.own(client)] > 1
        if held.any():
            cells = [schema.samples.cells[at] for at in schema.samples.cells_of[client]]
            others = sorted({name for cell in cells for name in cell.owners} - {client})
            raise RefusedError(
                f"{held.sum()} rows of this site, whose table has no ids, are said to be rows of "
                f"{listed(others)} too, and nobody else can have them; see who "
                "runs that site."
            )


def site_in(folder: Path, report: Callable[[Exception], None] | None = None) -> Site:
    """Return the site whose configuration and states lie in a folder.

    `report` is told of every error; None: they are written into the folder, see `errors_in`.

    Raises
    ------
    ExperimentError
        If its site.toml is wrong.
    """
    settings = client_folder.read_settings(folder)
    return _site(folder, settings.name, lambda: settings, report)


def site_of_kit(folder: Path) -> Site:
    """Return the site of a kit, by the kit's folder `local`.

    A site.toml that is wrong, as its owner changed it since the start, is said in the site's log,
    and in the answers to calls.
    """
    name = folder.resolve().parent.name
    return _site(folder, name, lambda: client_folder.read_settings(folder, name))


def _site(
    folder: Path,
    name: str,
    settings: Callable[[], client_folder.SiteSettings],
    report: Callable[[Exception], None] | None = None,
) -> Site:
    log = client_folder.log_of(folder)
    return Site(
        name,
        lambda run: client_folder.FolderShelf(folder / "runs" / run),
        lambda: Work(settings(), folder, log.append),
        lambda: client_folder.secret_of(folder),
        lambda run: client_folder.ledger_of(folder, run),
        client_folder.errors_in(folder) if report is None else report,
        lambda: client_folder.alone_in(folder),
        log.append,
    )
