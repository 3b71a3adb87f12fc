"""The parties' blocks → an engine over prepared blocks, with sums sealed as the experiment asks."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from intarsia.core.algorithm import Algorithm, SecretKey, Sends
from intarsia.core.block import Block, ClientId, Labels
from intarsia.core.schema import Schema
from intarsia.engines.client_states import States
from intarsia.engines.simulation import InProcess
from intarsia.engines.transcript import Recorder, Transcript
from intarsia.errors import KeyMaterialError
from intarsia.experiment.config import Experiment
from intarsia.privacy.keys.secret_file import drawn_once
from intarsia.privacy.secure_aggregation import setup as modes
from intarsia.privacy.secure_aggregation.protocol import Sealing
from intarsia.protocols import differential_privacy, evaluation, preprocessing
from intarsia.results import run_folder
from intarsia.training.baselines import Baseline


@dataclass(frozen=True, eq=False)
class Prepared:
    """The engine over prepared blocks."""

    engine: InProcess
    scaling: Mapping[ClientId, preprocessing.Preparation]
    tested: bool  # whether there is a test part
    notes: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class SealedSums:
    """How the engine keeps its sums from the server, and who takes down what crosses.

    Beside it what the clients hide other things by; None: nobody asks for it.
    """

    sealing: Sealing | None = None
    recorder: Recorder | None = None
    secrets: Mapping[ClientId, SecretKey] | None = None


def client_secrets(
    algorithm: object,
    clients: Sequence[ClientId],
    folder: Path | None,
    given: Mapping[ClientId, SecretKey] | None = None,
) -> Mapping[ClientId, SecretKey] | None:
    """Return a simulated client's own secret each; None if no function of the algorithm asks.

    They are those of the run in the folder, if it has some. Else those that are given are kept
    there, or such as come from the user's own, so that two runs of a seed by one user come to the
    same bits. A deployment's sites have their own.
    """
    if not isinstance(algorithm, Algorithm):
        return None
    if not any(fn.secret for fn in algorithm.disclosure.functions):
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
        secret = drawn_once(own / "secret", "secret of simulations", SecretKey.SIZE)
        return SecretKey(secret)
    except (OSError, RuntimeError, KeyMaterialError):  # RuntimeError: the user has no home
        return SecretKey.draw()


def sealed_sums(
    description: Experiment, clients: Sequence[ClientId], folder: Path | None
) -> SealedSums:
    """Return how the experiment's sums are sealed; keys and transcript go to the folder."""
    settings = description.privacy
    own = None if folder is None else folder / "keys"
    found = modes.keys(settings, clients, own, description.name)
    recorder = None
    if settings.transcript and folder is not None:
        recorder = Transcript(folder / "transcript.bin")
    return SealedSums(None if found is None else modes.sealing(settings, clients, found), recorder)


def prepared_engine(
    description: Experiment,
    parts: dict[str, dict[ClientId, Block]],
    labels: Labels,
    sealed: SealedSums,
    clip: float | None,
    states: States,
) -> Prepared:
    """Return the engine over prepared blocks; `parts` is emptied, so that each is there once."""
    tested = any(len(block.samples) for block in parts["test"].values())
    if not tested:
        del parts["test"]
    schemas: dict[str, Schema] = {}
    for part, blocks in parts.items():
        if description.preprocessing.intercept:
            for name, block in blocks.items():
                blocks[name] = preprocessing.add_intercept(block)
        schemas[part] = Schema.of(blocks, labels)
        for name, block in blocks.items():
            blocks[name] = schemas[part].align(name, block)
    engine = InProcess(
        {part: (schemas[part], blocks) for part, blocks in parts.items()},
        description.seed,
        sealed.sealing,
        sealed.recorder,
        states,
        sealed.secrets,
    )
    for blocks in parts.values():
        blocks.clear()
    engine.make_states(lambda name: preprocessing.initial(engine.block(name)))
    notes = preprocessing.prepare(
        engine,
        schemas,
        standardise=description.preprocessing.standardise,
        rng=engine.key("preparation"),
    )
    scaling = engine.get_states()
    engine.transform(lambda name, part, block: preprocessing.prepared(scaling[name], part, block))
    if clip is not None:
        differential_privacy.clip_rows(engine, clip)
        scaling = engine.get_states()
        engine.transform(
            lambda name, part, block: differential_privacy.clipped(scaling[name], part, block)
        )
    return Prepared(engine, scaling, tested, notes)


def declare_exchanges(
    algorithm: Algorithm | Baseline, options: Any, schemas: Mapping[str, Schema]
) -> tuple[Sends, ...]:
    """Return all that may cross in a run: of the algorithm, and of the steps that runs share."""
    model, loss = algorithm.model, evaluation.grading_loss(options.loss)
    found = [*algorithm.disclosure.sends, *preprocessing.SENDS, *differential_privacy.SENDS]
    for name, schema in schemas.items():
        part = cast(Literal["train", "test"], name)
        found += evaluation.sends(
            model.predict, loss, schema.labels, part=part, additive=model.additive
        )
        if model.server_model is not None:
            found += evaluation.server_sends(model.server_model, schema, loss, part=part)
    return tuple(found)
