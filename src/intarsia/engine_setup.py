"""The parties' blocks → an engine over prepared blocks, with sums sealed as the experiment asks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from intarsia.algorithms import clipping, preparation
from intarsia.data import Block, ClientId, Labels, Schema
from intarsia.engines.in_process import InProcess
from intarsia.engines.states import States
from intarsia.engines.transcript import Recorder, Transcript
from intarsia.experiment import Experiment
from intarsia.privacy import modes
from intarsia.privacy.sealing import Sealing

__all__ = ["Prepared", "SealedSums", "prepared_engine", "sealed_sums"]


@dataclass(frozen=True, eq=False)
class Prepared:
    """The engine over prepared blocks."""

    engine: InProcess
    scaling: Mapping[ClientId, preparation.Preparation]
    tested: bool  # whether there is a test part
    notes: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class SealedSums:
    """How the engine keeps its sums from the server, and who takes down what crosses."""

    sealing: Sealing | None = None
    recorder: Recorder | None = None


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
                blocks[name] = preparation.add_intercept(block)
        schemas[part] = Schema.of(blocks, labels)
        for name, block in blocks.items():
            blocks[name] = schemas[part].align(name, block)
    engine = InProcess(
        {part: (schemas[part], blocks) for part, blocks in parts.items()},
        description.seed,
        sealed.sealing,
        sealed.recorder,
        states,
    )
    for blocks in parts.values():
        blocks.clear()
    engine.make_states(lambda name: preparation.initial(engine.block(name)))
    notes = preparation.prepare(
        engine,
        schemas,
        standardise=description.preprocessing.standardise,
        rng=engine.key("preparation"),
    )
    scaling = engine.get_states()
    engine.transform(lambda name, part, block: preparation.prepared(scaling[name], part, block))
    if clip is not None:
        clipping.clip_rows(engine, clip)
        scaling = engine.get_states()
        engine.transform(lambda name, part, block: clipping.clipped(scaling[name], part, block))
    return Prepared(engine, scaling, tested, notes)
