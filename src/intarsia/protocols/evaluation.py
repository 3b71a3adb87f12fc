"""Score models on the samples that the clients hold out.

`evaluate`: one model whose parts lie with the clients.

1. `partial_scores`: each client adds its part of the scores of its samples, each value once.
2. `grade`: clients with labels open the scores of their samples, and send counts and sums.
3. `count_classes`, of networks: how often each class is there, is said, and both, over all clients.

`evaluate_own`: clients' own models, which nothing is added to. `grade_own` and `count_classes_own`
are steps 2 and 3, each client's with the scores of its own model.

The loss of a linear model is its own, of several classes the sum of one against the rest for each.
That of networks is the cross-entropy of the class that a sample has, or half the squared error.

Score a server's network of all feature blocks, which no client has whole.

1. `partial_layer`: each client adds its blocks' terms of the first layer of the server's network,
   each block of a sample once; nobody but the sample's owners opens the sum.
2. `grade_server`: clients with labels go on from there.

Samples count that somebody has the label of, and of which the clients together hold every block;
of others no term crosses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from intarsia.core.algorithm import (
    ClientFunction,
    Clients,
    PerSample,
    RandomKey,
    Sends,
    ServerModel,
    asks,
    client_function,
    sums,
)
from intarsia.core.block import Array, Block, ClientId, Labels, targets
from intarsia.core.feature_blocks import feature_blocks
from intarsia.core.schema import Schema
from intarsia.maths.linear import losses

_function = partial(client_function, protocol="evaluation")
Part = Literal["train", "test"]

CROSS_ENTROPY: Final = len(losses.LOSSES)  # of networks, whose scores are log-odds of the classes


@dataclass(frozen=True)
class Ask:
    """Ask for the client's part of the scores of some of its samples, or of all."""

    graded: NDArray[np.bool_] | None = None  # (samples,) somebody has the label; None: all


@dataclass(frozen=True)
class PartialScores:
    """A client's part of the scores."""

    z: PerSample  # (outputs, samples) 0 where it was not asked for


@dataclass(frozen=True)
class Totals:
    """The scores over all owners, or what they come from, and how often each label counts."""

    z: PerSample
    share: Array  # (samples,) 1 / holders of the label; 0 without one


@dataclass(frozen=True)
class Sums:
    """Sums over a client's labelled samples; the second row counts shared labels once."""

    count: Array  # (2,)
    loss: Array  # (2,) of all outputs
    correct: Array  # (2,)
    label: Array  # (2,) Σ y
    square: Array  # (2,) Σ y²
    error: Array  # (2,) Σ (y - z)²
    macro_f1: Array  # () of the client's own samples; 0 for regression


@dataclass(frozen=True)
class ClassCounts:
    """How many samples of each class there are, shared ones once."""

    held: Array  # (classes,) that have it as their label
    said: Array  # (classes,) that the model takes for it
    right: Array  # (classes,) both


@dataclass(frozen=True)
class Evaluation:
    """Loss, and accuracy or R², of one model on one set of samples."""

    loss: float
    accuracy: float | None
    r2: float | None
    macro_f1: float | None = None  # mean over the classes that are there or are said
    samples: int = 0  # that were graded; shared ones once where they are all clients'


def grading_loss(name: str) -> int:
    """Return the code of the loss that an algorithm's scores are graded by.

    Raises
    ------
    ExperimentError
        If no loss has that name.
    """
    return CROSS_ENTROPY if name == "cross_entropy" else losses.loss_code(name)


def evaluate(
    clients: Clients,
    schema: Schema,
    predict: Callable[[Any, Block], Array],
    loss: int,
    *,
    part: Part,
) -> tuple[Evaluation | None, dict[ClientId, Evaluation]]:
    """Return the grades of an additive model over all samples of a part, and over each client's.

    Every sample that somebody has the label of is scored by all clients that hold a part of it; of
    the others no score crosses.
    """
    score = _partial_scores(predict, part)
    holding = [name for name in clients.ids if len(schema.holdings[name].samples)]
    if not holding:
        return None, {}
    total = clients.sum(score, asking(schema, holding, schema.label_holders > 0))
    messages = {
        name: Totals(z=total.z, share=share)
        for name, share in label_shares(clients, schema).items()
    }
    # discloses how well the model does on each client's own labelled samples, and how many they
    # are; for regression also Σy and Σy²
    return graded(clients, schema, _given_scores, messages, loss, part=part)


def asking(
    schema: Schema, clients: Sequence[ClientId], graded: NDArray[np.bool_]
) -> dict[ClientId, Ask]:
    """Return the message to each client; `graded` says which samples are asked for, (samples,)."""
    every = bool(graded.all())
    return {name: Ask(None if every else graded[schema.samples.own(name)]) for name in clients}


def asked_scores(message: Ask, z: Array) -> Array:
    """Return a client's scores, (outputs, samples), with 0 for those that were not asked for."""
    return z if message.graded is None else np.where(message.graded, z, 0.0)


def evaluate_own(
    clients: Clients,
    schema: Schema,
    predict: Callable[[Any, Block], Array],
    loss: int,
    *,
    part: Part,
) -> tuple[Evaluation | None, dict[ClientId, Evaluation]]:
    """Return the grades of the clients' own models over all samples of a part, and of each client.

    Each model says the client's own samples, whoever else has these. Over all samples one that
    several clients have the label of counts once: as the mean over them.
    """
    messages = {
        name: Totals(np.zeros((0, len(share))), share)
        for name, share in label_shares(clients, schema).items()
    }
    # discloses how well each client's model does on its own labelled samples, and how many they
    # are; for regression also Σy and Σy²
    return graded(clients, schema, _own_scores(predict), messages, loss, part=part, suffix="_own")


def sends(
    predict: Callable[[Any, Block], Array],
    loss: int,
    labels: Labels,
    *,
    part: Part,
    additive: bool,
) -> tuple[Sends, ...]:
    """Return what crosses in `evaluate` of an additive model, else in `evaluate_own`."""
    if not additive:
        return _grades_sent(*grading(_own_scores(predict), loss, labels, part, "_own"))
    score = _partial_scores(predict, part)
    return *sums(score), *_grades_sent(*grading(_given_scores, loss, labels, part, ""))


def _grades_sent(grade: ClientFunction, count_classes: ClientFunction) -> tuple[Sends, ...]:
    names = tuple(one.name for one in fields(ClassCounts))
    return *asks(grade), *sums(count_classes, reveals=names)


def _given_scores(state: Any, block: Block, z: Array) -> Array:
    return z


def _own_scores(predict: Callable[[Any, Block], Array]) -> Callable[[Any, Block, Any], Array]:
    return lambda state, block, _: predict(state, block)


def graded(
    clients: Clients,
    schema: Schema,
    scores: Callable[[Any, Block, Any], Array],
    messages: Mapping[ClientId, Totals],
    loss: int,
    *,
    part: Part,
    suffix: str = "",
) -> tuple[Evaluation | None, dict[ClientId, Evaluation]]:
    """Return the grades of `scores(state, block, z)` over all samples, and over each client's own.

    `suffix` ends the names of the client functions, where there is more than one model.
    """
    grade, count_classes = grading(scores, loss, schema.labels, part, suffix)
    replies: Mapping[ClientId, Sums] = clients.ask(grade, messages)
    if not replies:
        return None, {}
    own = {name: _grades(sums, 0, schema.labels) for name, sums in replies.items()}
    every = Sums(*(sum(getattr(s, f) for s in replies.values()) for f in Sums.__annotations__))
    macro_f1 = None
    if len(own) == 1:
        macro_f1 = next(iter(own.values())).macro_f1
    elif loss == CROSS_ENTROPY:
        # discloses how many samples of each class all clients hold, and the model sees, together
        macro_f1 = _macro_f1(clients.reveal(clients.sum(count_classes, messages)))
    return replace(_grades(every, 1, schema.labels), macro_f1=macro_f1), own


def grade_scores(block: Block, z: Array, loss: int, labels: Labels) -> Evaluation | None:
    """Return the grades of given scores (outputs, samples) on a block's labelled samples."""
    if block.y is None or np.isnan(block.y).all():
        return None
    sums = _sums(block, Totals(z=z, share=(~np.isnan(block.y)).astype(np.float64)), loss, labels)
    return _grades(sums, 0, labels)


def label_shares(clients: Clients, schema: Schema) -> dict[ClientId, Array]:
    """Return how often each label counts, of the clients that have some.

    It is 1 / holders of the label, in the aligned order of the client's samples; 0 without a label.
    """
    found: dict[ClientId, Array] = {}
    for name in clients.ids:
        if schema.holdings[name].labelled.any():
            holders = schema.label_holders[schema.samples.own(name)]
            found[name] = np.where(schema.labelled_at(name), 1 / np.maximum(holders, 1), 0.0)
    return found


def _partial_scores(predict: Callable[[Any, Block], Array], part: Part) -> ClientFunction:
    def partial_scores(
        state: Any, block: Block, message: Ask, rng: RandomKey
    ) -> tuple[Any, PartialScores]:
        return state, PartialScores(asked_scores(message, predict(state, block.counted_once())))

    return _function(partial_scores, part=part)


def grading(
    scores: Callable[[Any, Block, Any], Array], loss: int, labels: Labels, part: Part, suffix: str
) -> tuple[ClientFunction, ClientFunction]:
    """Return the client functions of `graded`."""

    def grade(state: Any, block: Block, message: Totals, rng: RandomKey) -> tuple[Any, Sums]:
        found = replace(message, z=scores(state, block, message.z))
        return state, _sums(block, found, loss, labels)

    def count_classes(
        state: Any, block: Block, message: Totals, rng: RandomKey
    ) -> tuple[Any, ClassCounts]:
        found = replace(message, z=scores(state, block, message.z))
        return state, _class_counts(block, found, labels, message.share)

    return (
        _function(grade, name=f"grade{suffix}", part=part),
        _function(count_classes, name=f"count_classes{suffix}", part=part),
    )


def _sums(block: Block, message: Totals, loss: int, labels: Labels) -> Sums:
    held = message.share > 0
    z = message.z[:, held]
    raw = np.zeros(0) if block.y is None else block.y[held]
    if loss == CROSS_ENTROPY and labels.task == "regression":
        loss = losses.SQUARED
    if loss == CROSS_ENTROPY:
        each = _cross_entropy(z, raw)
    else:
        each = losses.value(loss, z, targets(block, len(z))[:, held]).sum(axis=0)
    correct = _said(z, labels) == raw
    error = (raw - z[0]) ** 2
    if labels.task != "regression":  # only R² needs them: else they would tell the label counts
        raw, error = 0.0 * raw, 0.0 * error
    weights = np.stack([np.ones(held.sum()), message.share[held]])
    f1 = 0.0
    if labels.task != "regression":
        f1 = _macro_f1(_class_counts(block, message, labels, held.astype(np.float64)))
    terms = (np.ones(len(raw)), each, correct, raw, raw**2, error)
    return Sums(*[*(weights @ term for term in terms), np.array(f1)])


def _said(z: Array, labels: Labels) -> Array:
    """Return what a model takes samples for, as a block codes it, (samples,)."""
    if labels.task == "multiclass":
        return np.asarray(z.argmax(axis=0), np.float64)
    return np.asarray(np.where(z[0] > 0, 1.0, -1.0))


def _class_counts(block: Block, message: Totals, labels: Labels, share: Array) -> ClassCounts:
    """Return the counts of a client's labelled samples, each counted by its share."""
    held = share > 0
    raw = np.zeros(0) if block.y is None else block.y[held]
    said, share = _said(message.z[:, held], labels), share[held]
    codes = np.arange(len(labels.classes)) if labels.task == "multiclass" else np.array([-1, 1])
    real, taken = codes[:, None] == raw, codes[:, None] == said  # (classes, samples)
    return ClassCounts(real @ share, taken @ share, (real & taken) @ share)


def _macro_f1(counts: ClassCounts) -> float:
    both = counts.held + counts.said
    there = both > 1e-9  # a sum under encryption is 0 up to its rounding
    return float((2 * counts.right[there] / both[there]).mean()) if there.any() else 0.0


def _cross_entropy(z: Array, y: Array) -> Array:
    """Return -log p of each sample's class, (samples,), from log p/(1-p), (outputs, samples)."""
    own = y * z[0] if len(z) == 1 else z[y.astype(np.int64), np.arange(len(y))]
    found: Array = np.logaddexp(0.0, -own)
    return found


def _grades(sums: Sums, row: int, labels: Labels) -> Evaluation:
    count = float(sums.count[row])
    loss = float(sums.loss[row]) / count
    if labels.task == "regression":
        spread = float(sums.square[row] - sums.label[row] ** 2 / count)
        r2 = 1 - float(sums.error[row]) / spread if spread > 0 else None
        return Evaluation(loss, None, r2, samples=round(count))
    accuracy = float(sums.correct[row]) / count
    return Evaluation(loss, accuracy, None, float(sums.macro_f1), round(count))


def server_sends(
    server: ServerModel,
    schema: Schema,
    loss: int,
    *,
    part: Part,
) -> tuple[Sends, ...]:
    """Return what crosses in `evaluate_server`."""
    return (
        *_grades_sent(*grading(_server_scores(server), loss, schema.labels, part, "_server")),
        *sums(_partial_layer(server, schema, part)),
    )


def _server_scores(server: ServerModel) -> Callable[[Any, Block, Any], Array]:
    return lambda state, _, z: server.scores(state, z)


def evaluate_server(
    clients: Clients,
    schema: Schema,
    server: ServerModel,
    blocks: Sequence[str],
    loss: int,
    *,
    part: Part,
) -> Evaluation | None:
    """Return the grades of a server's network over all samples; `blocks` are those that it takes.

    None if the clients together hold all blocks of no labelled sample.
    """
    whole = whole_samples(schema, blocks)
    grading = {
        name: share * whole[schema.samples.own(name)]
        for name, share in label_shares(clients, schema).items()
    }
    grading = {name: share for name, share in grading.items() if share.any()}
    if not grading:
        return None
    holding = [name for name in clients.ids if len(schema.holdings[name].samples)]
    messages = asking(schema, holding, whole & (schema.label_holders > 0))
    total = clients.sum(_partial_layer(server, schema, part), messages)
    # discloses how well the server's network does on each client's labelled samples
    return graded(
        clients,
        schema,
        _server_scores(server),
        {name: Totals(total.z, share) for name, share in grading.items()},
        loss,
        part=part,
        suffix="_server",
    )[0]


def whole_samples(schema: Schema, blocks: Sequence[str]) -> NDArray[np.bool_]:
    """Return of which samples the clients together hold every block, (samples,)."""
    known = feature_blocks(schema)
    nobody: frozenset[ClientId] = frozenset()
    holders = [frozenset(known[name].owners) if name in known else nobody for name in blocks]
    cells = [all(owners & some for some in holders) for owners in schema.samples.owner_sets]
    return np.array(cells, bool)[schema.samples.cell_of]


def _partial_layer(server: ServerModel, schema: Schema, part: Part) -> ClientFunction:
    known = feature_blocks(schema)

    def partial_layer(
        state: Any, block: Block, message: Ask, rng: RandomKey
    ) -> tuple[Any, PartialScores]:
        total: Any = 0.0
        for name, term in server.part(state, block).items():
            total = total + term / _holders(block, known[name].features[0])
        return state, PartialScores(asked_scores(message, np.asarray(total, np.float64)))

    return _function(partial_layer, part=part)


def _holders(block: Block, feature: str) -> Array | float:
    """Return how many clients hold each value of a feature, (samples,)."""
    copies = block.copies
    if copies is None:
        return 1.0
    column = block.features.index(feature)
    held: Array = copies.counts[copies.rows, copies.columns[column]]
    return held
