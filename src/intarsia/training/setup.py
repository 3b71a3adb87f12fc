"""Set up a run: intercept, alignment, preparation, clipping and single counting, as one sequence.

The clients do the steps, each with its own rows: in this process, or at sites on other machines.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from intarsia.core.algorithm import Algorithm
from intarsia.core.block import INTERCEPT, RARE, Block, ClientId
from intarsia.core.client_functions import Part, RandomKey, SecretKey
from intarsia.core.disclosure import Release, Sends, each
from intarsia.core.schema import Schema
from intarsia.core.side_by_side import is_large, side_by_side
from intarsia.engines import codec
from intarsia.engines.client_states import States
from intarsia.engines.release_ledger import ReleaseLedger
from intarsia.engines.remote.server import Remote
from intarsia.engines.simulation import Simulation
from intarsia.engines.transcript import Recorder, Transcript
from intarsia.engines.workers import Cluster
from intarsia.errors import ExperimentError, KeyMaterialError, listed, several
from intarsia.experiment.config import Experiment, Preprocessing
from intarsia.maths.linear import losses
from intarsia.privacy.keys.secret_file import drawn_once
from intarsia.privacy.secure_aggregation import setup as modes
from intarsia.privacy.secure_aggregation.protocol import Sealing
from intarsia.protocols import differential_privacy, evaluation, evaluation_rows, preprocessing
from intarsia.protocols.preprocessing.rare_values import with_one_number, without_rare
from intarsia.protocols.untrained_levels import rows_of_untrained
from intarsia.results import run_folder
from intarsia.training.baselines import Baseline
from intarsia.training.registry import NAMED, Named

Step = Literal["prepared", "clipped", "counted once"]  # what a client makes of its blocks
Engine = Simulation | Remote


class Parties(Protocol):
    """The clients in a set-up: each does a step with its own rows, wherever it is."""

    def settle(self, schemas: Mapping[str, Schema]) -> Engine:
        """Let each bring its blocks into the order of the schemas; return the engine over them."""
        ...

    def transform(self, step: Step) -> None:
        """Let each replace its blocks by what `transform_block` makes of them."""
        ...


# what transforms the clients' blocks, in this order
TRANSFORMS = ("prepared", "clipped", "counted once")


def set_up(
    parties: Parties,
    settings: Preprocessing,
    schemas: Mapping[str, Schema],
    *,
    clip: float | None = None,
    additive: bool = False,
) -> tuple[Engine, tuple[str, ...]]:
    """Let clients get ready to train; return the engine over them, and notes.

    `schemas` are what the clients hold of each part, without an intercept, `clip` is the largest
    norm of a training row (None: rows stay as they are), and `additive` says whether each training
    value is to count once, over all that hold it.
    """
    if settings.intercept:
        schemas = {part: with_intercept(schema) for part, schema in schemas.items()}
    engine = parties.settle(schemas)
    notes = preprocessing.prepare(engine, schemas, standardise=settings.standardise)
    parties.transform("prepared")
    if clip is not None:
        differential_privacy.clip_rows(engine, clip)
        parties.transform("clipped")
    if additive:
        parties.transform("counted once")
    return engine, notes


def with_intercept(schema: Schema) -> Schema:
    """Return the schema of blocks with an intercept, which every client has."""
    held = schema.holdings.items()
    return schema.with_features({name: (*one.features, INTERCEPT) for name, one in held})


def without_intercept(schema: Schema) -> Schema:
    """Return the schema that `with_intercept` was given."""
    held = schema.holdings.items()
    return schema.with_features({name: one.features[:-1] for name, one in held})


def settle_block(block: Block, client: ClientId, schema: Schema, settings: Preprocessing) -> Block:
    """Return a client's block as the schema has it: with the intercept, and in order."""
    return schema.align(client, block, intercept=settings.constant > 0)


def transform_block(
    step: str,
    state: Any,
    part: str,
    block: Block,
    *,
    at_once: bool = False,
    in_place: bool = False,
) -> Block:
    """Return what a step of the set-up makes of a client's block; another step leaves it.

    `at_once`: when training values are prepared, they count once. `in_place` prepares them where
    they lie: the block is then of no use.
    """
    if step == "prepared":
        once = at_once and part == "train"
        return preprocessing.prepared(state, part, block, once=once, in_place=in_place)
    if step == "clipped":
        return differential_privacy.clipped(state, part, block)
    return block.counted_once() if step == "counted once" and part == "train" else block


def reads_alone(algorithm: Algorithm | Baseline, options: Any) -> bool:
    """Return whether each client alone trains what reads its columns."""
    nothing = getattr(options, "shares", "") == "nothing"
    nothing |= getattr(options, "shared_parts", None) == ()
    return algorithm.model.kind != "linear" and (algorithm.model.own_feature_space or nothing)


def constant_of(algorithm: Algorithm | Baseline, settings: Preprocessing) -> float:
    """Return the value of the constant feature: 1 for networks, whose penalty does not hold it."""
    return 1.0 if algorithm.model.kind == "networks" else settings.constant


def client_secrets(
    algorithm: Algorithm | Baseline,
    clients: Sequence[ClientId],
    folder: Path | None,
    given: Mapping[ClientId, SecretKey] | None = None,
) -> Mapping[ClientId, SecretKey] | None:
    """Return a simulated client's own secret each; None if no function of the algorithm asks.

    They are those of the run in the folder, if it has some. Else those that are given are kept
    there, or such as come from the user's own, so that two runs of a seed by one user come to the
    same bits. A deployment's sites have their own.
    """
    if not algorithm.federated:
        return None
    if not any(fn.secret or fn.releases for fn in algorithm.disclosure.functions):
        return None
    found = None if folder is None else run_folder.read_client_secrets(folder)
    if found is None:
        if given is None:
            root = _users_secret()
            given = {name: root.fold_in(name) for name in clients}
        found = dict(given)
        if folder is not None:
            run_folder.keep_client_secrets(folder, found)
    return found


def _users_secret() -> SecretKey:
    """Return the secret in the user's state folder; where none can be kept, one for this run."""
    given = os.environ.get("XDG_STATE_HOME", "")
    try:
        # the standard asks for an absolute path, and has others ignored
        state = Path(given) if Path(given).is_absolute() else Path.home() / ".local" / "state"
        own = state / "intarsia"
        own.mkdir(mode=0o700, parents=True, exist_ok=True)
        return SecretKey(drawn_once(own / "secret", "secret of simulations", SecretKey.SIZE))
    except (OSError, RuntimeError, KeyMaterialError):  # RuntimeError: the user has no home
        return SecretKey.draw()


def workers_of(description: Experiment) -> int | None:
    """Return how many processes compute for simulated clients; None: as many as pay.

    A fork cannot go on with the threads of a library.
    """
    if description.threads > 1:
        return 1
    return description.workers or None


def cluster_of(
    description: Experiment, algorithm: Algorithm | Baseline, release: Release | None
) -> AbstractContextManager[Cluster | None]:
    """Return the cluster that computes for simulated clients, once it is entered; None: none.

    Raises
    ------
    ExperimentError
        If Ray is not installed or cannot be used, or the algorithm is none that has a name.
    """
    if not description.ray or not algorithm.federated:
        return nullcontext()
    if description.own_algorithm is not None:
        raise ExperimentError(
            f"[experiment] ray is {description.ray!r}, and the algorithm {algorithm.name!r} is "
            "given as an object, which other machines cannot find; let a package that is installed "
            'on all of them name it, or set ray = "".'
        )
    try:
        from intarsia.engines.transports.ray import RayCluster
    except ModuleNotFoundError as absent:
        raise ExperimentError(
            f"[experiment] ray is {description.ray!r}, and the package {absent.name} is not "
            'installed; run pip install "intarsia[ray]".'
        ) from None
    named = Named(description.algorithm, description.early_stopping > 0, release)
    return RayCluster(description.ray, description.workers, NAMED, codec.encode(named)).connected()


def sealed_sums(
    description: Experiment, clients: Sequence[ClientId], folder: Path | None
) -> tuple[Sealing | None, Recorder | None]:
    """Return how sums are kept from the server, and who takes down what crosses; None: nobody.

    Keys and transcript go to the folder.
    """
    settings = description.privacy
    own = None if folder is None else folder / "keys"
    found = modes.keys(settings, clients, own, description.name)
    recorder = None
    if settings.transcript and folder is not None:
        recorder = Transcript(folder / "transcript.bin")
    made = None if found is None else modes.sealing(settings, clients, found, fresh=True)
    return made, recorder


@dataclass(eq=False)
class LocalParties:
    """The clients of a set-up in this process."""

    experiment: Experiment  # says how to prepare, and the seed
    parts: Mapping[str, dict[ClientId, Block]]  # emptied, so that each block is there once
    sealing: Sealing | None = None
    recorder: Recorder | None = None
    secrets: Mapping[ClientId, SecretKey] | None = None  # what each hides other things by
    states: States | None = None
    ledger: ReleaseLedger | None = None  # of what they released with noise; None: nothing so far
    keep: bool = False  # blocks with whole values, beside those that count once
    at_once: bool = False  # training values are to count once, and do so when they are prepared
    cluster: Cluster | None = None  # computes for them; None: this machine does
    accelerated: bool = False  # whether their networks train on an accelerator
    alone: bool = False  # whether each alone trains what reads its columns
    constant: float = 1.0  # value of the constant feature
    engine: Simulation | None = None
    # part and client of the values that nobody else has
    copied: set[tuple[str, ClientId]] = field(default_factory=set)
    scaling: Mapping[ClientId, preprocessing.Preparation] = field(default_factory=dict)
    # column -> at whom how many rows to evaluate have a level of it that training had not
    untrained: dict[str, Counter[ClientId]] = field(default_factory=dict)
    # column -> where few training rows have another number than the rest, as not everywhere
    rare: dict[str, list[ClientId]] = field(default_factory=dict)

    def settle(self, schemas: Mapping[str, Schema]) -> Simulation:
        """Return the engine over the blocks in the order of the schemas."""
        settings, parts = self.experiment.preprocessing, self.parts
        rare: dict[ClientId, tuple[str, ...]] = {}

        def settle(which: tuple[str, ClientId]) -> None:
            part, name = which
            block = parts[part][name]
            made = settle_block(block, name, schemas[part], settings)
            if part == "train":
                how = {"standardise": settings.standardise}
                whole = made
                made = without_rare(made, name, schemas[part], **how)
                rare[name] = with_one_number(whole, made)
            parts[part][name] = made
            if parts[part][name].x is not block.x:
                self.copied.add(which)

        for schema in schemas.values():
            schema.find_cells()  # once, before several clients ask for them
        every = [(part, name) for part in schemas for name in parts[part]]
        threads = self.experiment.side_by_side
        side_by_side(settle, every, threads, lambda one: is_large(parts[one[0]][one[1]].x))
        for name in schemas["train"].clients:
            for column in rare.get(name, ()):
                self.rare.setdefault(column, []).append(name)
        if self.rare:
            features = schemas["train"].features
            holders = dict(zip(features.ids.tolist(), features.holders.tolist(), strict=True))
            self.rare = {one: own for one, own in self.rare.items() if len(own) < holders[one]}
        self.engine = engine = Simulation(
            {part: (schema, self.parts[part]) for part, schema in schemas.items()},
            *(self.experiment.seed, self.sealing, self.recorder, self.states, self.secrets),
            ledger=self.ledger,
            aligned=True,
            workers=workers_of(self.experiment),
            cluster=self.cluster,
            accelerated=self.accelerated,
        )
        for blocks in self.parts.values():
            blocks.clear()
        engine.make_states(
            lambda name: preprocessing.initial(
                name,
                engine.block(name),
                schemas["train"],
                alone=self.alone,
                constant=self.constant,
            )
        )
        return engine

    def transform(self, step: Step) -> None:
        """Replace every block."""
        assert self.engine is not None
        threads = self.experiment.side_by_side
        self.scaling = states = self.engine.get_states()
        if step == "counted once" and self.keep:
            self.engine.count_once(threads)
            return
        if step == "prepared":
            self._count_untrained(self.engine)
        at_once = self.at_once
        self.engine.transform(
            lambda name, part, block: transform_block(
                *(step, states[name], part, block),
                at_once=at_once,
                in_place=(part, name) in self.copied,
            ),
            threads,
        )

    def _count_untrained(self, engine: Simulation) -> None:
        """Count the rows with levels of categories that training had not."""
        for part in [one for one in self.parts if one != "train"]:
            for name in engine.schema(part).clients:
                block, trained = engine.block(name, part), self.scaling[name].scale > 0
                for column, *_, rows in rows_of_untrained(block, trained):
                    self.untrained.setdefault(column, Counter())[name] += len(rows)

    @property
    def notes(self) -> tuple[str, ...]:
        """Return in sentences which values count as others."""
        return (*self._of_rare_numbers(), *self._of_untrained_levels())

    def _of_rare_numbers(self) -> tuple[str, ...]:
        """Return in a sentence where rare numbers do not train that train at others."""
        if not self.rare:
            return ()
        told = [f"{column!r} at {listed(own, 6)}" for column, own in self.rare.items()]
        more = f" and {several(len(told) - 6, 'column')} more" if told[6:] else ""
        return (
            "Numbers that fewer than least_rows training rows of a client have, where the others "
            "have one and the same, count as that one there, or as missing, and train where "
            f"more rows have them: {'; '.join(told[:6])}{more}. Set least_rows = 1 for the client "
            "if the model may tell of few rows.",
        )

    def _of_untrained_levels(self) -> tuple[str, ...]:
        """Return in a sentence which rows have a level that training had not."""
        if not self.untrained:
            return ()
        of = " of the client" if self.alone else ""
        told = [
            f"{column} ({', '.join(own[:6])}{f' and at {len(own) - 6} more' if own[6:] else ''})"
            for column, counts in self.untrained.items()
            for own in [[f"{rows:,} at {name!r}" for name, rows in counts.items()]]
        ]
        return (
            f"Rows to evaluate have a level that no training row{of} had, or too few: "
            f"{'; '.join(told)}. It counts as {RARE!r} where training rows had that, else as "
            "missing.",
        )


def first_key(seed: int) -> RandomKey:
    """Return what the server's state before the set-up is drawn from."""
    return RandomKey((seed, 0, "server", "init"))


def evaluated_parts(schemas: Collection[str]) -> list[Part]:
    """Return the parts that models are evaluated on.

    That is the test part, and the training rows only where there is none; with early stopping the
    rows held out for it, too.
    """
    parts: list[Part] = ["test" if "test" in schemas else "train"]
    if "validation" in schemas:
        parts.append("validation")
    return parts


def declare_exchanges(
    algorithm: Algorithm | Baseline,
    options: Any,
    schemas: Mapping[str, Schema],
    *,
    standardise: bool = True,
) -> tuple[Sends, ...]:
    """Return all that may cross in a run: of the algorithm, and of the steps that runs share."""
    model, loss = algorithm.model, evaluation.evaluation_loss(options.loss)
    blocks = evaluation.server_blocks(algorithm.model, options, schemas["train"])
    found = [
        *algorithm.disclosure.needed(options),
        *preprocessing.sends(schemas, standardise=standardise),
    ]
    found += differential_privacy.SENDS
    for part in evaluated_parts(schemas):
        how: Any = {"part": part, "trained": model.trained_classes}
        metrics = evaluation.sends(
            *(model.predict, loss, schemas[part]),
            additive=model.additive,
            shape=losses.shape_of(options),
            server=blocks,
            **how,
        )
        models = evaluation_rows.times_evaluated(schemas[part], blocks) + 1  # the last at the end
        if model.server_model is not None and blocks is not None:
            given = model.server_model, schemas[part], blocks, loss
            metrics += evaluation.server_sends(*given, **how)
            models += 1  # then there are the server's and clients' own
        found += each(metrics, models=models)
    return tuple(found)
