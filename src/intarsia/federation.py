"""An experiment's parties: tables or a dealt data set → blocks to train and to test on."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from intarsia import datasets
from intarsia.data import Block, ClientId, Labels, Schema
from intarsia.datasets import Dataset
from intarsia.description import Source
from intarsia.errors import ExperimentError, FederationError, TableError
from intarsia.experiment import Experiment, NamedDataset
from intarsia.partition import partition
from intarsia.sources import read
from intarsia.tables import Table, assemble, split

__all__ = ["Federation", "Tables", "build", "parties"]

Tables = Mapping[ClientId, Table] | Callable[[], Mapping[ClientId, Table]]


@dataclass(frozen=True, eq=False)
class Federation:
    """The parties of an experiment, before any exchange."""

    train: Mapping[ClientId, Block]
    test: Mapping[ClientId, Block]  # the same clients; blocks may be empty
    schema: Schema
    test_schema: Schema
    labels: Labels
    notes: tuple[str, ...] = ()

    def fingerprint(self) -> str:
        """Return a checksum of everything the parties hold."""
        total = 0
        for blocks in (self.train, self.test):
            for name, block in blocks.items():
                total = zlib.crc32(f"{name} {block.features}".encode(), total)
                x = block.x
                parts = (x.data, x.indices, x.indptr) if block.sparse else (x,)
                for array in (block.samples, *parts, block.y):
                    if array is not None:
                        total = zlib.crc32(np.ascontiguousarray(array).view(np.uint8).data, total)
        return f"{total:08x}"


def build(experiment: Experiment, tables: Tables | None = None) -> Federation:
    """Return the parties that an experiment describes (or that the given tables are).

    Samples that nobody has a label of are left out of training. A function that returns the tables
    is called here, so that nobody else keeps them in memory.

    Raises
    ------
    UserError
        If a table cannot be read, or the tables do not fit together.
    """
    if experiment.dataset is not None and tables is None:
        train, test, labels, notes = _dealt(experiment, experiment.dataset)
    else:
        train, test, labels = _own(experiment, tables)
        notes = []
    if experiment.preprocessing.standardise:
        _check_kinds(train)
    left = _drop_unlabelled(train)
    if left:
        notes.append(f"{left} training samples have a label at no client; they are left out.")
    _check_labels(train)
    return Federation(
        train, test, Schema.of(train, labels), Schema.of(test, labels), labels, tuple(notes)
    )


def _check_kinds(blocks: Mapping[ClientId, Block]) -> None:
    """Refuse to standardise a feature that is sparse at one client and dense at another.

    An absent entry is 0 in the one and missing in the other, and only the dense one can be centred.
    """
    kinds: dict[str, tuple[ClientId, bool]] = {}
    for name, block in blocks.items():
        for feature in block.features:
            other, sparse = kinds.setdefault(feature, (name, block.sparse))
            if sparse != block.sparse:
                first, second = (other, name) if sparse else (name, other)
                raise FederationError(
                    f"Feature {feature!r} is in a sparse table at client {first!r} and in a dense "
                    f"one at client {second!r}, so that it cannot be standardised alike; give both "
                    "one kind, or set standardise = false in [preprocessing]."
                )


def parties(
    experiment: Experiment, tables: Tables | None = None
) -> tuple[dict[ClientId, Block], Labels]:
    """Return all that the parties hold, test samples and unlabelled ones too.

    Raises
    ------
    UserError
        If a table cannot be read, or the tables do not fit together.
    """
    if experiment.dataset is None or tables is not None:
        return _assembled(experiment, tables)
    whole = replace(experiment, split=replace(experiment.split, test=0.0))
    blocks, _, labels, _ = _dealt(whole, experiment.dataset)
    return blocks, labels


def _assembled(
    experiment: Experiment, tables: Tables | None
) -> tuple[dict[ClientId, Block], Labels]:
    """Return the parties' own tables as blocks."""
    if tables is None:
        tables = {source.name: read(source) for source in experiment.clients}
    return assemble(tables() if callable(tables) else tables, experiment.labels)


def _own(
    experiment: Experiment, tables: Tables | None
) -> tuple[dict[ClientId, Block], dict[ClientId, Block], Labels]:
    """Return the train and the test blocks of the parties' own tables."""
    blocks, labels = _assembled(experiment, tables)
    train: dict[ClientId, Block] = {}
    test: dict[ClientId, Block] = {}
    for name in list(blocks):
        try:
            train[name], test[name] = split(
                blocks.pop(name), experiment.split.test, experiment.split.salt
            )
        except TableError as problem:
            raise TableError(f"Client {name!r}: {problem}") from None
    return train, test, labels


def _dealt(
    experiment: Experiment, described: NamedDataset | Source
) -> tuple[dict[ClientId, Block], dict[ClientId, Block], Labels, list[str]]:
    """Return the train and the test blocks of simulated clients, and notes.

    The compact data set is split before it is dealt, so that each value is a float64 once.
    """
    if experiment.partition is None:
        raise ExperimentError(
            "The experiment has [dataset] but no [partition]; say how to deal it to clients, "
            'for example kind = "grid", rows = 2, columns = 2.'
        )
    if isinstance(described, Source):
        dataset, labels = datasets.of_file(described, experiment.labels)
    else:
        raw = datasets.load(described.name, **described.options)
        dataset, labels = datasets.encoded(raw, experiment.labels)
        del raw
    notes = [f"Data set: {dataset.departures}."] if dataset.departures else []
    train, test = _held_out(dataset, experiment.split.test, experiment.split.salt)
    del dataset
    kind, keys = experiment.partition.kind, experiment.partition.options
    blocks = partition(kind, train, **{"seed": experiment.seed, **keys})
    del train
    if test is None:
        none = np.zeros(0, np.intp)
        return blocks, {name: block.take(none) for name, block in blocks.items()}, labels, notes
    try:
        return blocks, partition(kind, test, **{"seed": experiment.seed, **keys}), labels, notes
    except ExperimentError as problem:
        raise ExperimentError(
            f"The test part has {len(test.samples)} samples and cannot be dealt as the training "
            f"part is ({str(problem).rstrip('.')}); raise test in [split], or set it to 0."
        ) from None


def _held_out(dataset: Dataset, share: float, salt: str) -> tuple[Dataset, Dataset | None]:
    """Return the official parts of a data set where it has some, else those by hash."""
    if share == 0:
        return dataset, None
    if dataset.test is not None:
        return dataset.split()
    ids = Block(dataset.samples, (), np.zeros((len(dataset.samples), 0)))
    chosen = np.isin(dataset.samples, split(ids, share, salt)[1].samples)
    if not chosen.any():
        return dataset, None
    return dataset.take(np.flatnonzero(~chosen)), dataset.take(np.flatnonzero(chosen))


def _drop_unlabelled(blocks: dict[ClientId, Block]) -> int:
    """Take the samples that no client has a label of out of the blocks; return their number."""
    known = [b.samples[~np.isnan(b.y)] for b in blocks.values() if b.y is not None]
    labelled = np.unique(np.concatenate(known)) if known else np.zeros(0)
    if not len(labelled):
        raise FederationError(
            "No training sample has a label at any client; name a label column at one of them."
        )
    without: set[object] = set()
    for name, block in blocks.items():
        keep = np.isin(block.samples, labelled)
        if keep.all():
            continue
        if not keep.any():
            raise FederationError(
                f"Client {name!r} has {len(block.samples)} training samples, none of which has a "
                "label at any client; give it samples that others know, or labels."
            )
        without.update(block.samples[~keep].tolist())
        blocks[name] = block.take(np.flatnonzero(keep))
    return len(without)


def _check_labels(blocks: Mapping[ClientId, Block]) -> None:
    """Refuse labels of one sample that differ between clients."""
    names = [name for name, block in blocks.items() if block.y is not None]
    ids = np.concatenate([blocks[name].samples for name in names])
    labels = np.concatenate([np.asarray(blocks[name].y) for name in names])
    client = np.repeat(np.arange(len(names)), [len(blocks[name].samples) for name in names])
    known = ~np.isnan(labels)
    ids, labels, client = ids[known], labels[known], client[known]
    order = np.argsort(ids, kind="stable")
    ids, labels, client = ids[order], labels[order], client[order]
    wrong = np.flatnonzero((ids[1:] == ids[:-1]) & (labels[1:] != labels[:-1]))
    if len(wrong):
        first = wrong[0]
        raise FederationError(
            f"{len(wrong)} samples have different labels at two clients (first: sample "
            f"{ids[first].item()!r} at {names[client[first]]!r} and {names[client[first + 1]]!r}); "
            "correct one of the tables."
        )
