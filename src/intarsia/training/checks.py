"""Checks of an experiment against its clients, and notes that a reader of a result must know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.core.algorithm import Algorithm
from intarsia.core.block import INTERCEPT, Block, ClientId, Labels, taken
from intarsia.core.client_functions import RandomKey
from intarsia.core.schema import Schema
from intarsia.data.labels import check_classes
from intarsia.errors import ExperimentError, listed
from intarsia.experiment.config import Experiment, NamedDataset
from intarsia.inspection.overlap import block_classes
from intarsia.maths.linear import losses
from intarsia.privacy.secure_aggregation import setup as modes
from intarsia.protocols import evaluation, evaluation_rows
from intarsia.training import loop, privacy_guarantee
from intarsia.training.baselines import Baseline


def unsealed(
    description: Experiment, algorithm: Algorithm | Baseline, *, sites: bool = False
) -> tuple[str, ...]:
    """Return a note where clients with tables of their own would show a server what they send.

    A simulation, and tables in the memory of one person, have no server to keep anything from;
    `sites` have one, wherever their tables are.
    """
    apart = sites or any(source.path or source.url for source in description.clients)
    if description.privacy.mode != "plain" or not apart or not algorithm.federated:
        return ()
    return (
        "The sums are not sealed: whoever runs the server can read what each client contributes; "
        'set privacy = "masked" to keep it from them.',
    )


def sealed_by_one_key(description: Experiment, algorithm: Algorithm | Baseline) -> tuple[str, ...]:
    """Return a note where one client and the server could open what the others send."""
    privacy = description.privacy
    if privacy.mode == "plain" or privacy.trust == "pairs" or not algorithm.federated:
        return ()
    return (
        "The sums are sealed with one key that all clients have: any of them, together with the "
        'server, can open what each of the others sends; set privacy.trust = "pairs" to keep it '
        "from them.",
    )


def read_all_the_same(
    description: Experiment, algorithm: Algorithm | Baseline, options: Any
) -> tuple[str, ...]:
    """Return a note where the server reads something of single clients though sums are sealed."""
    what = algorithm.disclosure.server_reads(options)
    if description.privacy.mode == "plain" or not what:
        return ()
    return (f"The sums are sealed, but the server reads {what}: intarsia audit lists it.",)


def steps_along_gradients(description: Experiment, options: Any) -> bool:
    """Return whether a linear model is trained by steps that a large constant slows down."""
    return getattr(options, "method", "ascent") == "ascent" or description.participation < 1


def slowed_by_constant(
    description: Experiment, algorithm: Algorithm | Baseline, options: Any
) -> tuple[str, ...]:
    """Return a note where steps along gradients meet a larger constant than 1."""
    constant = description.preprocessing.constant
    trained = algorithm.federated and algorithm.model.kind == "linear"
    if constant <= 1 or not trained or not steps_along_gradients(description, options):
        return ()
    return (
        f"[preprocessing] intercept is {constant:g}, and {algorithm.name} steps along gradients "
        "here, which needs far more rounds with it, or diverges: set intercept = true, or train by "
        'hyfdca with method = "auto" and all clients in each round.',
    )


def unmeasured(description: Experiment, algorithm: Algorithm | Baseline) -> tuple[str, ...]:
    """Return a note where the baselines are asked for and would not be of the same kind."""
    model = algorithm.model
    if not description.yardsticks or model.kind == "linear" or model.local_baseline is not None:
        return ()
    other = '"standalone" with loss = "squared"'
    if model.kind == "networks":
        networks = "" if algorithm.name == "local" else '"local" (networks) or '
        other = f'{networks}"standalone" (linear models)'
    return (
        f"The baselines are linear models of all columns and {algorithm.name} trains models of "
        "each client's own: there are none beside it; to compare with each client alone run "
        f"algorithm.name = {other}.",
    )


def evaluated_in_training(description: Experiment, part: str) -> tuple[str, ...]:
    """Return a note where clients' tables have no rows that models are scored on alone.

    `part` is that on which they are.
    """
    split = description.split
    if description.dataset is not None or split.evaluated[1]:
        return ()
    if split.test:
        told = (
            f"No row fell into the test part, a share of {split.test:g} of few rows or of few "
            "groups of split_by: the scores are of rows that the model was trained on, and better "
            "than those of new rows will be; set another salt, or a higher test, in [split].",
        )
        return told if part == "train" else ()
    return (
        "No rows are held out (test in [split] is 0): the scores are of rows that the model was "
        "trained on, and better than those of new rows will be.",
    )


def seen_in_training(
    train: Mapping[ClientId, Block], test: Mapping[ClientId, Block]
) -> tuple[str, ...]:
    """Return a note on test rows whose values are all those of a training row.

    Of clients with measurements, so that few rows are the same by chance; with the same columns
    another client's training rows count, too.
    """
    known: dict[tuple[str, ...], list[NDArray[np.uint64]]] = {}
    for block in train.values():
        if _has_measurements(block):
            known.setdefault(tuple(sorted(block.features)), []).append(_row_hashes(block))
    # once for all clients, ascending: there may be 100,000 of them
    sorted_rows = {columns: np.sort(np.concatenate(rows)) for columns, rows in known.items()}
    told: list[str] = []
    for name, block in test.items():
        rows = sorted_rows.get(tuple(sorted(block.features)))
        if rows is None or not len(block.samples) or not _has_measurements(train[name]):
            continue
        own = _row_hashes(block)
        places = np.searchsorted(rows, own)
        seen = int((rows[np.minimum(places, len(rows) - 1)] == own).sum())
        if seen >= max(_LEAST_SEEN, _SHARE_SEEN * len(block.samples)):
            told.append(f"{seen:,} of {len(block.samples):,} at {name!r}")
    if not told:
        return ()
    return (
        f"Test rows have the values of a training row in all columns of their client "
        f"({'; '.join(told[:6])}), so that scores are too good: leave copied rows out of the "
        "tables, or, if they are of one patient or the like, name that column in split_by.",
    )


_LEAST_SEEN, _SHARE_SEEN = 5, 0.02  # rows of a client's test part, and share of them
_MEASURED, _DIFFERENT = 3, 10  # columns that have so many different values in some rows
_LOOKED_AT, _MOST_VALUES = 1_000, 5_000_000  # rows, and values of a block


def _has_measurements(block: Block) -> bool:
    """Return whether rows of a block are hardly the same by chance, and few enough to compare."""
    places = block.written_out
    if len(block.samples) * len(places) > _MOST_VALUES:
        return False
    some = np.sort(block.dense(places, _LOOKED_AT), axis=0)  # NaN is last
    different = (some[1:] > some[:-1]).sum(axis=0) + ~np.isnan(some[:1]).any(axis=0)
    return int((different >= _DIFFERENT).sum()) >= _MEASURED


def _row_hashes(block: Block) -> NDArray[np.uint64]:
    """Return a number for the values of each row, in the order of the features' names, (rows,)."""
    found, names = np.zeros(len(block.samples), np.uint64), np.array(block.features)
    numbers = block.written_out
    own = block.dense(numbers[np.argsort(names[numbers])]).T
    kinds = [places[np.argsort(names[places])] for places in block.kinds_of_levels()]
    levels = [
        taken(block.x, None, places) @ np.arange(1.0, len(places) + 1)  # the number of the level
        for places in sorted(kinds, key=lambda places: str(names[places[0]]))
    ]
    own = np.vstack([own, *levels]) + 0.0  # -0 is 0
    own[np.isnan(own)] = np.nan  # of one kind
    for values in np.ascontiguousarray(own).view(np.uint64):
        found = (found ^ (found >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
        found = (found ^ values) * np.uint64(0x94D049BB133111EB)
    return found


def untracked(description: Experiment, *, sites: bool) -> tuple[str, ...]:
    """Return a note where trackers are named for a run over sites, which tells them nothing."""
    if not sites or not description.trackers:
        return ()
    return (
        f"experiment.trackers names {listed(description.trackers)}, which are told of runs in one "
        "process alone; read history.jsonl and result.json of this one.",
    )


def named_alike(
    description: Experiment, algorithm: Algorithm | Baseline, schema: Schema
) -> tuple[str, ...]:
    """Return a note where clients with columns of their own have some of the same name.

    These are standardised together, which is right for the same quantity and wrong for others.
    """
    together = description.preprocessing.standardise and description.dataset is None
    if not algorithm.model.own_feature_space or not together:
        return ()
    shared = [
        (cell, schema.features.ids[cell.start : cell.stop].tolist())
        for cell in schema.features.cells
        if len(cell.owners) > 1
    ]
    names = sorted(name for _, some in shared for name in some if name != INTERCEPT)
    if not names:
        return ()
    owners = [one for one in schema.clients if any(one in cell.owners for cell, _ in shared)]
    several = len(names) > 1
    return (
        f"The column{'s' * several} {listed(names, 4)} {'are' if several else 'is'} at several of "
        f"{listed(owners, 4)} and standardised over them together: rename what is not the same "
        "quantity everywhere.",
    )


def check_fit(
    description: Experiment, algorithm: Algorithm | Baseline, options: Any, schema: Schema
) -> None:
    """Refuse clients that the algorithm, its loss or the privacy settings are not for."""
    check_task(description, schema, options)
    check_weights(description, algorithm, schema)
    _check_constant(description, algorithm)
    if algorithm.federated:
        check_clients(description, algorithm, options, schema)
        modes.adding(description.privacy, schema.clients)
        modes.check_key(description.privacy)
    privacy_guarantee.check_summands(description, algorithm, options, schema)


def _check_constant(description: Experiment, algorithm: Algorithm | Baseline) -> None:
    """Refuse a larger constant than 1 where rows are clipped to a length in which it counts."""
    constant, epsilon = description.preprocessing.constant, description.privacy.epsilon
    if constant > 1 and epsilon > 0 and algorithm.model.kind != "networks":
        raise ExperimentError(
            f"[preprocessing] intercept is {constant:g} and [privacy] epsilon {epsilon:g}: rows "
            "are clipped to a length in which the constant counts, and little of the columns would "
            "be left; set intercept = true."
        )


def check_clients(
    description: Experiment, algorithm: Algorithm, options: Any, schema: Schema
) -> None:
    """Refuse what the algorithm has against its clients, or against rounds with some of them."""
    algorithm.begin(options, schema, RandomKey((description.seed,)))
    algorithm.check_present(loop.fewest(description, schema.clients), len(schema.clients))


def unheld(blocks: Mapping[ClientId, Block], labels: Labels) -> tuple[str, ...]:
    """Return a note that names the pairs of a feature block and a class that no client holds.

    What a network over blocks says of such a class by such a block, no row ever taught.
    """
    counted = block_classes(blocks, labels)
    if counted is None or not counted.unused:
        return ()
    lacking = [
        f"{name} of {listed([one for one, held in row.items() if not held], 4)}"
        for name, row in counted.counts.items()
        if not all(row.values())
    ]
    pairs = int((counted.clients == 0).sum())
    return (
        f"{pairs} of {counted.clients.size} pairs of a feature block and a class are with nobody: "
        f"{'; '.join(lacking[:6])}{'; …' if len(lacking) > 6 else ''}. The server's network is "
        "worse there, and so are clients on classes that they have no rows of.",
    )


def check_stopping(description: Experiment, schemas: Mapping[str, Schema]) -> None:
    """Refuse early stopping where no client holds out enough labelled rows to be evaluated on."""
    if not description.early_stopping:
        return
    schema = schemas["validation"]
    evaluated = evaluation_rows.evaluated_clients(schema, evaluation_rows.rows_to_evaluate(schema))
    if not evaluated:
        raise ExperimentError(
            f"[split] stopping is {description.split.stopping:g}, which holds out at most "
            f"{max(int(one.labelled.sum()) for one in schema.holdings.values())} labelled rows of "
            f"a client, and rounds are compared by clients with {evaluation_rows.LEAST_ROWS} or "
            "more; raise stopping, or set early_stopping = 0 and stopping = 0."
        )


def check_weights(description: Experiment, algorithm: Algorithm | Baseline, schema: Schema) -> None:
    """Refuse weights of rows that the algorithm would leave aside."""
    if schema.labels.weighted and not algorithm.model.row_weights:
        known = any(one.name == "class_weights" for one in fields(algorithm.hyperparameters))
        instead = '; all classes alike are algorithm.class_weights = "balanced"' if known else ""
        raise ExperimentError(
            f"Rows have weights (weights of a client, or class_weight of [labels]), which "
            f'{algorithm.name} does not know; use "hyfdca", "centralised", "standalone" or '
            f'"liblinear", or remove them{instead}.'
        )


def check_task(description: Experiment, schema: Schema, options: Any) -> None:
    """Refuse labels that the loss is not for, and classes that are as many as samples."""
    if not isinstance(description.dataset, NamedDataset):  # whose classes are meant
        check_classes(schema, description.labels)
    check_loss(schema.labels, options)


def check_loss(labels: Labels, options: Any) -> None:
    """Refuse a loss that does not exist, and labels that it is not for."""
    evaluation.evaluation_loss(options.loss)
    numbers = [name for name, code in losses.LOSSES.items() if code in losses.NUMBERS]
    if labels.task != "regression" and options.loss in numbers:
        raise ExperimentError(
            f"The labels are {len(labels.classes)} classes but the loss {options.loss!r} is "
            'for numbers to predict; set labels.task = "regression" (from Python '
            'task="regression"), or another loss.'
        )
    known = ("squared", "cross_entropy", *numbers)
    if labels.task == "regression" and options.loss not in known:
        raise ExperimentError(
            f"The labels are numbers to predict (regression) but the loss is {options.loss!r}; set "
            'algorithm.loss = "squared" or labels.task for classes (from Python loss= or task=).'
        )
