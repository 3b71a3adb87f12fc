"""An experiment's parties: tables or a dealt data set → blocks to train and to test on."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from intarsia import datasets
from intarsia.data import Block, ClientId, Labels, Schema
from intarsia.description import Source
from intarsia.errors import ExperimentError, FederationError
from intarsia.experiment import Experiment
from intarsia.partition import partition
from intarsia.sources import read
from intarsia.tables import Table, assemble, split

__all__ = ["Federation", "build"]


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
                parts = (block.x.data, block.x.indices) if block.sparse else (block.x,)
                for array in (block.samples, *parts, block.y):
                    if array is not None:
                        total = zlib.crc32(np.ascontiguousarray(array).view(np.uint8).data, total)
        return f"{total:08x}"


def build(experiment: Experiment, tables: Mapping[ClientId, Table] | None = None) -> Federation:
    """Return the parties that an experiment describes (or that the given tables are).

    Samples that nobody has a label of are left out of training.

    Raises
    ------
    UserError
        If a table cannot be read, or the tables do not fit together.
    """
    share, salt = experiment.split.test, experiment.split.salt
    official = None
    if experiment.dataset is not None and tables is None:
        if experiment.partition is None:
            raise ExperimentError(
                "The experiment has [dataset] but no [partition]; say how to deal it to clients, "
                'for example kind = "grid", rows = 2, columns = 2.'
            )
        if isinstance(experiment.dataset, Source):
            dataset, labels = datasets.of_file(experiment.dataset, experiment.labels)
        else:
            named = experiment.dataset
            raw = datasets.load(named.name, **named.options)
            dataset, labels = datasets.encoded(raw, experiment.labels)
        if dataset.test is not None:
            official = dataset.samples[dataset.test] if share > 0 else None
        keys = {"seed": experiment.seed, **experiment.partition.options}
        blocks = partition(experiment.partition.kind, dataset, **keys)
        departures = dataset.departures
        del dataset
        notes = [f"Data set: {departures}."] if departures else []
    else:
        if tables is None:
            tables = {source.name: read(source) for source in experiment.clients}
        blocks, labels = assemble(tables, experiment.labels)
        notes = []
    parts = {name: split(block, share, salt, official) for name, block in blocks.items()}
    test = {name: part[1] for name, part in parts.items()}
    train, left = _labelled({name: part[0] for name, part in parts.items()})
    if left:
        notes.append(f"{left} training samples have a label at no client; they are left out.")
    _check_labels(train)
    return Federation(
        train, test, Schema.of(train, labels), Schema.of(test, labels), labels, tuple(notes)
    )


def _labelled(blocks: Mapping[ClientId, Block]) -> tuple[dict[ClientId, Block], int]:
    """Return the blocks without the samples that no client has a label of, and their number."""
    known = [b.samples[~np.isnan(b.y)] for b in blocks.values() if b.y is not None]
    labelled = np.unique(np.concatenate(known)) if known else np.zeros(0)
    if not len(labelled):
        raise FederationError(
            "No training sample has a label at any client; name a label column at one of them."
        )
    kept: dict[ClientId, Block] = {}
    without: set[object] = set()
    for name, block in blocks.items():
        keep = np.isin(block.samples, labelled)
        if not keep.any():
            raise FederationError(
                f"Client {name!r} has {len(block.samples)} training samples, none of which has a "
                "label at any client; give it samples that others know, or labels."
            )
        without.update(block.samples[~keep].tolist())
        kept[name] = block if keep.all() else block.take(np.flatnonzero(keep))
    return kept, len(without)


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
