"""Train some of the parties of a federation, and keep what their model says of their test rows.

A coalition is a number whose bit k says whether party k is in it. Its run is that of the experiment
with the other parties left out, to the same bits. Of the parties those take no part who have no
training sample with a label in the coalition: they add nothing to it.
"""

from __future__ import annotations

import io
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from intarsia.core.algorithm import Algorithm
from intarsia.core.block import Block, ClientId, Labels
from intarsia.core.files.atomic_files import write_atomically
from intarsia.core.files.json_text import parse_json
from intarsia.core.files.npz import check_npz
from intarsia.core.memory import give_back
from intarsia.engines.simulation import Simulation
from intarsia.errors import CheckpointError, ConvergenceError, ExperimentError, UserError
from intarsia.experiment.config import Experiment
from intarsia.experiment.federation import Tables
from intarsia.maths.linear.losses import mean_of
from intarsia.protocols.evaluation import evaluation_loss
from intarsia.training import loop, timing
from intarsia.training.loop import Progress
from intarsia.training.run import InThisProcess, conclude, prepare, set_up
from intarsia.training.timing import Clock

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Coalition:
    """What a run of some parties came to."""

    number: int  # bit k: whether party k is in it
    trained: bool
    note: str = ""  # why it could not be trained, or how it ended
    rounds: int = 0
    seconds: float = 0.0
    # of each party that took part, of its test rows in the order of their ids, (rows,): the score
    # of two classes, the number of the class, or the predicted number
    said: Mapping[ClientId, Array] = field(default_factory=dict[ClientId, Array])


_KINDS: Mapping[str, Any] = {
    "trained": bool,
    "note": str,
    "rounds": int,
    "seconds": (int, float),
}  # of a record


def members(number: int, parties: Sequence[ClientId]) -> tuple[ClientId, ...]:
    """Return the parties of a coalition."""
    return tuple(name for at, name in enumerate(parties) if number >> at & 1)


def train(
    description: Experiment,
    tables: Tables | None,
    number: int,
    parties: Sequence[ClientId],
    labels: Labels,
    *,
    secret: bytes | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Coalition:
    """Train a coalition; one that cannot be trained says why.

    Parameters
    ----------
    labels
        What the labels of all parties mean: those of some of them may lack a class.
    secret
        What the pseudonyms of all parties come from, so that test rows are the same.

    Raises
    ------
    UserError, ConvergenceError
        If the coalition of all parties cannot be trained.
    """
    began = time.perf_counter()
    whole = number == (1 << len(parties)) - 1
    try:
        with timing.limited(description.threads), ExitStack() as held:
            place = InThisProcess(
                *(tables, None, held),
                fresh=True,
                secret=secret,
                only=None if whole else members(number, parties),
            )
            found = _run(place, description, labels, progress)
    except (UserError, ConvergenceError) as problem:
        if whole:
            raise
        spent = time.perf_counter() - began
        return Coalition(number, False, note=" ".join(str(problem).split()), seconds=spent)
    return replace(found, number=number, seconds=time.perf_counter() - began)


def _run(
    place: InThisProcess,
    description: Experiment,
    labels: Labels,
    progress: Callable[[Progress], None] | None,
) -> Coalition:
    clock = Clock()
    plan = prepare(place, description, clock)
    _, ready = set_up(place, plan, clock)
    give_back()
    algorithm, engine = plan.algorithm, ready.engine
    assert algorithm.federated
    assert isinstance(engine, Simulation)
    given = (description, algorithm, plan.options, engine, ready.part, None, clock, progress)
    task = loop.Task(*given, plan.release)
    server, state = loop.train(task, *loop.start(task))
    conclude(task, server, state)
    note = {
        "stalled": "training stalled",
        "rounds": "training ended at the limit of rounds" if description.tolerance else "",
    }.get(state.finished or "", "")
    loss = evaluation_loss(plan.options.loss)
    return Coalition(0, True, note, state.round, said=_said(engine, algorithm, labels, loss))


def _said(
    engine: Simulation, algorithm: Algorithm, labels: Labels, loss: int
) -> dict[ClientId, Array]:
    """Return what the models say of each party's test rows, in the order of their ids."""
    schema, states, model = engine.schema("test"), engine.get_states(), algorithm.model
    own, blocks = {}, {name: engine.block(name, "test") for name in schema.clients}
    if model.additive:
        total = np.zeros((schema.labels.outputs, len(schema.samples)))
        for name, block in blocks.items():
            part = model.predict(states[name], block.counted_once())
            total[:, schema.samples.own(name)] += part
        own = {name: total[:, schema.samples.own(name)] for name in schema.clients}
    else:
        own = {name: model.predict(states[name], block) for name, block in blocks.items()}
    found = {}
    for name, scores in own.items():
        found[name] = _as_labels(scores[:, order_of_ids(blocks[name])], schema.labels, labels, loss)
    return found


def order_of_ids(block: Block) -> NDArray[np.intp]:
    """Return the order of a block's rows by their ids as text, (rows,).

    Ids are whole numbers or text by whoever takes part, and as text they are the same. Pseudonyms
    are bytes, which are no text.
    """
    ids = block.samples
    return np.argsort(ids if ids.dtype.kind == "S" else ids.astype(str), kind="stable")


def _as_labels(scores: Array, own: Labels, labels: Labels, loss: int) -> Array:
    """Return scores, (outputs, rows), as `Coalition.said` has them; `own` may lack a class."""
    if labels.task == "regression":
        return np.asarray(mean_of(loss, scores[0]))
    if labels.task == "binary":
        if own.classes != labels.classes:
            raise ExperimentError(
                f"its labels have the classes {', '.join(own.classes)}, those of all parties "
                f"{', '.join(labels.classes)}"
            )
        return np.asarray(scores[0])
    best = scores.argmax(axis=0) if len(scores) > 1 else (scores[0] > 0).astype(np.intp)
    place = np.array([labels.classes.index(one) for one in own.classes], np.float64)
    return np.asarray(place[best])


def write(found: Coalition, parties: Sequence[ClientId], folder: Path) -> None:
    """Keep a coalition in a folder, whole or not at all."""
    record = {
        "trained": found.trained,
        "note": found.note,
        "rounds": found.rounds,
        "seconds": found.seconds,
        "order": "text",  # of the ids that the scores are in; earlier versions: none
    }
    arrays: dict[str, Any] = {"record": np.array(json.dumps(record))}
    arrays |= {f"party{parties.index(name)}": own for name, own in found.said.items()}
    data = io.BytesIO()
    np.savez(data, allow_pickle=False, **arrays)
    write_atomically(_file(found.number, folder), data.getvalue(), private=True)


def read(
    number: int, parties: Sequence[ClientId], folder: Path, rows: Mapping[ClientId, int]
) -> Coalition | None:
    """Return the coalition that is kept in a folder; None: it is not there, or in another order.

    Parameters
    ----------
    rows
        How many test rows each party has.

    Raises
    ------
    CheckpointError
        If the file is not what was written.
    """
    path = _file(number, folder)
    if not path.is_file():
        return None
    try:
        check_npz(path, packed=False)
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as file:
            record: dict[str, Any] = parse_json(str(file["record"]))
            if record.pop("order", "") != "text":
                return None
            names = [name for name in file.files if name != "record"]
            said = {parties[int(name.removeprefix("party"))]: file[name] for name in names}
            for name, own in said.items():
                if own.dtype != np.float64 or own.shape != (rows.get(name, 0),):
                    raise ValueError(f"the scores of {name} are {own.dtype} {own.shape}")
            for key, kind in _KINDS.items():
                if not isinstance(record[key], kind) or record[key] == math.inf:
                    raise TypeError(f"{key} is {record[key]!r}")
            return Coalition(number, said=said, **record)
    except (OSError, ValueError, LookupError, TypeError, BadZipFile) as problem:
        raise CheckpointError(
            f"{path} is not what this version wrote ({problem}); remove the file, and the same "
            "command trains these parties again."
        ) from None


def _file(number: int, folder: Path) -> Path:
    return folder / f"{number}.npz"
