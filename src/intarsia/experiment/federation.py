"""The blocks that an experiment's clients train and are tested on, from their tables or a data set.

A client's own table takes these steps one after the other, each in one file below this one:

1. Columns or a matrix from a file, a database or a DataFrame: `data.reader` and its formats.
2. A `Table` of what each column is for, `data.column_roles`, and holds, `data.column_types`.
3. The features' names and units: `feature_dictionary`.
4. Normalised ids, and pseudonyms in their place: `entity_alignment`. Nothing public has an id.
5. A train and a test part, by a hash of the pseudonym: with another key it is other samples.
6. A `Block` of each, once all clients agree on levels and classes: `data.encoding`.

A data set is split by its own ids before `partition` deals it to clients, which begin at step 4.
"""

from __future__ import annotations

import math
import tempfile
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from intarsia.core.block import (
    Block,
    ClientId,
    Labels,
    distinct_of,
    same_arrays,
)
from intarsia.core.memory import LIBRARIES, disk_for, give_back
from intarsia.core.schema import Schema
from intarsia.core.side_by_side import is_large, side_by_side
from intarsia.data.dataset import Dataset
from intarsia.data.encoding import (
    agreed,
    encode,
    notes_on_levels,
    notes_on_other,
    notes_on_words,
    stored_labels,
)
from intarsia.data.labels import (
    classes_at,
    notes_on_codes,
    notes_on_label_columns,
    notes_on_label_maps,
    notes_on_labels,
    notes_on_marked,
    with_weights,
)
from intarsia.data.parsing import date_orders
from intarsia.data.reader import read, values_size
from intarsia.data.source import Source
from intarsia.data.table import Hashes, Held, Table, split
from intarsia.datasets import registry as datasets
from intarsia.errors import ExperimentError, FederationError, TableError, listed, several
from intarsia.experiment import checks, entity_alignment, feature_dictionary
from intarsia.experiment.checksums import checksum
from intarsia.experiment.config import Alignment, Experiment, NamedDataset, Split
from intarsia.experiment.entity_alignment import Names, notes_on_ids, same_numbers
from intarsia.partition.client_clusters import Structure
from intarsia.partition.registry import deal
from intarsia.privacy.entity_matching.normalisation import look, rules_that_match
from intarsia.privacy.entity_matching.pseudonyms import drawn_key
from intarsia.protocols.preprocessing import few_values, standardisation

T = TypeVar("T")
Groups = Mapping[ClientId, NDArray[Any]]  # (samples,) what a client's rows are split by
Tables = Mapping[ClientId, Table] | Callable[[], Mapping[ClientId, Table]]


@dataclass(frozen=True, eq=False)
class Federation:
    """The clients of an experiment, before any exchange."""

    train: Mapping[ClientId, Block]
    test: Mapping[ClientId, Block]  # the same clients; blocks may be empty
    schema: Schema
    test_schema: Schema
    labels: Labels
    notes: tuple[str, ...] = ()
    # the clients' own, kept from the server: what pseudonyms come from, so that a run that goes on
    # later needs it again; None with plain ids
    secret: bytes | None = field(default=None, repr=False)
    structure: Structure | None = None  # who is dealt alike, in a simulation that says so
    # the same clients, for early stopping; {}: nothing is held out for it
    validation: Mapping[ClientId, Block] = field(default_factory=dict[str, Block])
    side_by_side: int = 1  # blocks that are worked on at once, in threads

    @property
    def tested(self) -> bool:
        """Return whether there is a test part."""
        return any(len(block.samples) for block in self.test.values())

    @property
    def schemas(self) -> dict[str, Schema]:
        """Return the schema of each part that there is."""
        held = {"validation": Schema.of(self.validation, self.labels)} if self.validation else {}
        test = {"test": self.test_schema} if self.tested else {}
        return {"train": self.schema, **held, **test}

    @property
    def parts(self) -> dict[str, dict[ClientId, Block]]:
        """Return the blocks of each part that there is, in mappings of their own."""
        held = {"validation": dict(self.validation)} if self.validation else {}
        test = {"test": dict(self.test)} if self.tested else {}
        return {"train": dict(self.train), **held, **test}

    def fingerprint(self) -> str:
        """Return a checksum of everything the clients hold, and of how rare levels are scaled.

        A run that another version began, which scaled them otherwise, does not go on.
        """
        total = 0
        for blocks in (self.train, self.test, self.validation):
            total = checksum(blocks, total, self.side_by_side)
        if any(block.indicators is not None for block in self.train.values()):
            total = zlib.crc32(f"{standardisation.RAREST}".encode(), total)
        return f"{total:08x}"


def build(
    experiment: Experiment,
    tables: Tables | None = None,
    secret: bytes | None = None,
    *,
    only: Collection[ClientId] | None = None,
    some: bool = False,
    levels: Mapping[str, tuple[str, ...]] | None = None,
) -> Federation:
    """Return the clients that an experiment describes (or that the given tables are).

    Samples that nobody has a label of are left out of training. A function that returns the tables
    is called here, so that nobody else keeps them in memory. `secret` is that of the federation
    before, where a run goes on. Of the clients `only` these take part, and of them those who have a
    training sample with a label at one of them; None: all. `some`: as for `aligned`. `levels` are
    those of categorical columns that others had before; None: those of the tables alone.

    Raises
    ------
    UserError
        If a table cannot be read, or the tables do not fit together.
    """
    hidden = experiment.alignment.ids != "plain"
    secret = (secret or drawn_key()) if hidden else b""
    if experiment.dataset is not None and tables is None:
        train, test, labels, notes, structure, groups = _dealt(experiment, experiment.dataset)
        train, test = _among(train, only), _among(test, only)
        train, test, names = _renamed(experiment, train, test, secret)
        for name, block in (*train.items(), *test.items()):
            checks.check_label_values(experiment, labels, name, block.y, rows=False)
    else:
        some = some or only is not None
        how = (only, some, levels or {})
        train, test, labels, names, marked, groups = _own(experiment, tables, secret, *how)
        notes, structure = [*_note_on_memory(experiment), *marked], None
        notes += notes_on_codes(classes_at(train, labels), labels, experiment.labels)
    start, end = experiment.split.evaluated
    checks.check_evaluated(experiment.split, sum(len(one.samples) for one in test.values()))
    if end:
        notes.append(
            f"Scores are of {100 * (end - start):g} % of the training samples, held out for "
            "validation; the test part was not used."
        )
    if only is not None:
        train = _among(train, _with_labels(train))
        test = _among(test, train)
    validation = _for_stopping(train, experiment.split, groups)
    held = [{n: one.samples for n, one in part.items()} for part in (train, validation, test)]
    checks.check_parts(groups, held)
    notes += _note_on_share(experiment.split, groups, held) if groups else ()
    labels = with_weights(labels, experiment.labels, weighted=labels.weighted)
    checks.check_features(train)
    left = _drop_unlabelled(train)
    if left:
        notes.append(left_out(left))
    schema, tested = Schema.of(train, labels), Schema.of(test, labels)
    # where each sample has its label at one client there is nothing to compare
    if groups or validation or any((one.labelled.holders > 1).any() for one in (schema, tested)):
        checks.check_labels((train, validation, test), names, labels)
    sparse = {name: block.sparse and block.indicators is None for name, block in train.items()}
    for one in (schema, tested):
        checks.check_kinds(one, sparse, standardise=experiment.preprocessing.standardise)
    notes.extend((*notes_on_labels(schema, experiment.labels), *notes_on_levels(schema)))
    notes.extend(few_values.notes_on_few(schema, sparse))
    own = secret if hidden else None
    return Federation(
        *(train, test, schema, tested, labels, tuple(notes), own, structure, validation),
        side_by_side=experiment.side_by_side,
    )


def parties(
    experiment: Experiment, tables: Tables | None = None
) -> tuple[dict[ClientId, Block], Labels, tuple[str, ...]]:
    """Return all that the clients hold, test samples and unlabelled ones too, and notes on it.

    With their own ids, normalised: this is for those who see all tables anyway.
    """
    if experiment.dataset is None or tables is not None:
        found, encoding = agreed(aligned(experiment, tables), experiment.labels)
        notes = notes_on_other(found, encoding) + notes_on_words(_public_levels(found))
        notes += (*_notes_on_label_columns(found), *notes_on_ids(_ids_of(found)))
        notes += _notes_on_groups(found)
        # who only looks at them writes out no rows of levels
        blocks = {n: encode(found.pop(n), encoding, later=True) for n in list(found)}
        return blocks, encoding.labels, notes
    whole = replace(experiment, split=Split(test=0.0))
    blocks, _, labels, *_ = _dealt(whole, experiment.dataset)
    return blocks, labels, ()


def read_tables(experiment: Experiment) -> dict[ClientId, Table]:
    """Return the tables of the clients' sources, as they are there."""
    shared = feature_dictionary.load(experiment.alignment.dictionary)
    folder = _disk_for(experiment)
    sources = [feature_dictionary.with_categories(one, shared) for one in experiment.clients]
    if folder is not None:  # each takes some times its file while it is read
        return {source.name: read(source, folder) for source in sources}
    tables = side_by_side(read, sources, _AT_ONCE, lambda _: True)
    return {one.name: table for one, table in zip(sources, tables, strict=True)}


_AT_ONCE = 2  # tables that are read side by side


# times the tables' values that a run takes at its peak, where they are in memory
_COPIES, _COPIES_COMPARED = 2.5, 4.0  # without, and with reference models


def _note_on_memory(experiment: Experiment) -> tuple[str, ...]:
    memory = experiment.memory_bytes
    if memory is None or memory >= LIBRARIES:
        return ()
    return (
        f'experiment.memory is "{experiment.memory}", and libraries alone take about '
        f"{LIBRARIES / 1e6:.0f} MB: the tables lie on disk, and the process takes more than it "
        "says.",
    )


def _disk_for(experiment: Experiment) -> Path | None:
    """Return the folder on whose disk the tables' values are to lie; None: memory is enough.

    It is the one in which the output folder is, or will be made: what lies there has no name.
    """
    memory = experiment.memory_bytes
    copies = _COPIES_COMPARED if experiment.yardsticks else _COPIES
    # what nobody knows the size of is large to who says what there is, and else small
    sizes = [size for size in map(values_size, experiment.clients) if memory or size < math.inf]
    place = Path(experiment.out or tempfile.gettempdir())
    return disk_for(copies * sum(sizes), place, memory)


def aligned(
    experiment: Experiment, tables: Tables | None, *, some: bool = False, lacking: bool = False
) -> dict[ClientId, Table]:
    """Return the clients' tables with the features' names and units, and normalised ids.

    `some`: clients that the dictionary names need not be there; `lacking`: nor need their columns.
    """
    return _with_ids(experiment.alignment, _translated(experiment, tables, some, lacking))


def _with_ids(settings: Alignment, tables: Mapping[ClientId, Table]) -> dict[ClientId, Table]:
    """Return the clients' tables with ids by the declared rules."""
    return {**tables} | {
        name: replace(tables[name], samples=own)
        for name, own in entity_alignment.normalised(settings, _ids_of(tables)).items()
    }


def _translated(
    experiment: Experiment, tables: Tables | None, some: bool, lacking: bool = False
) -> dict[ClientId, Table]:
    """Return the clients' tables with the features' names and units, as in `aligned`."""
    settings = experiment.alignment
    sources = {source.name: source for source in experiment.clients}
    shared = feature_dictionary.load(settings.dictionary)
    if some:
        own = {name: columns for name, columns in shared.columns.items() if name in sources}
        shared = replace(shared, columns=own)
    if tables is None:
        found = read_tables(experiment)
    else:
        found = dict(tables() if callable(tables) else tables)
    checks.check_forgotten_ids(
        {
            name: (table.columns, sources[name].id if name in sources else None, table.generated)
            for name, table in found.items()
        }
    )
    checks.check_split_columns(
        {name: table.columns for name, table in found.items()},
        {name: sources[name].split_by if name in sources else None for name in found},
    )
    if lacking:
        there = {name: {*table.columns} for name, table in found.items()}
        held = {
            name: {column: one for column, one in columns.items() if column in there[name]}
            for name, columns in shared.columns.items()
        }
        shared = replace(shared, columns=held)
    found = feature_dictionary.translate(found, sources, shared)
    checks.check_names({name: table.columns for name, table in found.items()})
    give_back()
    return {**found}


def _ids_of(tables: Mapping[ClientId, Table]) -> dict[ClientId, NDArray[Any]]:
    """Return the ids of the clients that have some."""
    return {name: table.samples for name, table in tables.items() if not table.generated}


def _public_levels(tables: Mapping[ClientId, Table]) -> dict[ClientId, dict[str, tuple[str, ...]]]:
    """Return the levels of each table's categories that others may know."""
    return {
        client: {column: one.public_levels for column, one in table.categorical.items()}
        for client, table in tables.items()
    }


def _own(
    experiment: Experiment,
    tables: Tables | None,
    secret: bytes,
    only: Collection[ClientId] | None,
    some: bool,
    levels: Mapping[str, tuple[str, ...]],
) -> tuple[dict[ClientId, Block], dict[ClientId, Block], Labels, Names, tuple[str, ...], Groups]:
    """Return the train and the test blocks of the clients' own tables, and notes on labels.

    Groups are of the rows to train on, where a client's are split by groups.
    """
    if only is not None:
        sources = tuple(one for one in experiment.clients if one.name in only)
        experiment = replace(experiment, clients=sources)
        if tables is not None:
            tables = _among(tables() if callable(tables) else tables, only)
    found = aligned(experiment, tables, some=some)  # steps 1 to 4
    marked = (
        *_notes_on_label_columns(found),
        *notes_on_ids(_ids_of(found)),
        *_notes_on_groups(found),
    )
    found, names = _named_publicly(experiment.alignment, found, secret)
    found, encoding = agreed(found, experiment.labels)
    encoding = replace(encoding, levels={**encoding.levels, **levels})
    marked += notes_on_words(_public_levels(found))
    hashes, every = Hashes(), list(found)
    groups: dict[ClientId, NDArray[Any]] = {}

    def parts_of(name: ClientId) -> list[Block]:
        table = found.pop(name)
        checks.check_label_values(experiment, encoding.labels, name, stored_labels(table, encoding))
        try:
            parts = held_out(table, experiment.split, hashes)  # step 5
        except TableError as problem:
            raise TableError(f"Client {name!r}: {problem}") from None
        del table
        if parts[0].split_by is not None:
            groups[name] = parts[0].split_by
        return [encode(part, encoding, later=True) for part in parts]  # step 6

    threads = experiment.side_by_side
    made = side_by_side(parts_of, every, threads, lambda name: is_large(found[name].values))
    train, test = (
        {name: parts[at] for name, parts in zip(every, made, strict=True)} for at in (0, 1)
    )
    return train, test, encoding.labels, names, marked, groups


def table_of(experiment: Experiment) -> tuple[Table, Names, NDArray[Any]]:
    """Return the table of the only client that an experiment describes, for a site of its own.

    And what stands for its samples, with their ids; and these as the table has them, which no rule
    of the experiment changes, (samples,).
    """
    settings = experiment.alignment
    if settings.ids == "psi":
        raise ExperimentError(
            '[alignment] ids is "psi", which two clients run together; across sites set ids = '
            '"pseudonyms".'
        )
    translated = _translated(experiment, None, some=True)
    (written,) = (table.samples for table in translated.values())
    found = _with_ids(settings, translated)
    # rows without ids are named by what is the same whenever a site starts
    secret = entity_alignment.key_in_file(settings, "rows") or drawn_key()
    named, names = _named_publicly(settings, found, secret)
    (table,) = named.values()
    return table, names, written


def _named_publicly(
    settings: Alignment, tables: Mapping[ClientId, Table], secret: bytes
) -> tuple[dict[ClientId, Table], Names]:
    """Return the tables with what stands for their samples in everything public."""
    ids = {name: table.samples for name, table in tables.items()}
    generated = [name for name, table in tables.items() if table.generated]
    names = entity_alignment.public_names(settings, ids, secret, generated)
    own = {name: one.split_by for name, one in tables.items() if one.split_by is not None}
    groups = entity_alignment.public_groups(settings, own, secret)
    named = {
        name: replace(tables[name], samples=public, split_by=groups.get(name))
        for name, public in names.public.items()
    }
    return named, names


def held_out(table: Table, settings: Split, hashes: Hashes | None = None) -> tuple[Table, Table]:
    """Return what a client trains on, and what it is tested on; TableError if none is left.

    `hashes` are those that were made for other clients. A table is divided before it is encoded, so
    that the rows of a block are written once.
    """
    by = table.split_by
    train, test = split(table, settings.test, settings.salt, by=by, hashes=hashes)
    start, end = settings.evaluated
    if end:
        how: dict[str, Any] = {"start": start, "by": train.split_by, "hashes": hashes}
        train, test = split(train, end, settings.validation_salt, **how)
    return train, test


def trains_on(table: Table, settings: Split, hashes: Hashes) -> NDArray[np.bool_]:
    """Return which of its rows a client trains on, (rows,); `hashes`: as for `held_out`."""
    none = np.zeros((len(table.samples), 0))
    rows = Table(table.client, table.samples, (), none, split_by=table.split_by)
    train, _ = held_out(rows, settings, hashes)
    if settings.stopping:
        train, _ = held_for_stopping(train, settings, train.split_by)
    return np.isin(table.samples, train.samples)


def held_for_stopping(
    block: Held, settings: Split, by: NDArray[Any] | None = None
) -> tuple[Held, Held]:
    """Return what a client trains on, and what early stopping compares rounds by.

    `by` is what its rows are split by, if not by their ids. TableError if nothing is left to train
    on.
    """
    try:
        return split(block, settings.stopping, settings.stopping_salt, by=by)
    except TableError:
        raise TableError(
            f"All {len(block.samples)} rows to train on are held out for early stopping; set "
            "stopping lower or change salt in [split], or leave the client out."
        ) from None


def _for_stopping(
    train: dict[ClientId, Block], settings: Split, groups: Groups
) -> dict[ClientId, Block]:
    """Take out of the blocks what early stopping compares rounds by, and return it."""
    found: dict[ClientId, Block] = {}
    for name, block in train.items() if settings.stopping else ():
        try:
            train[name], found[name] = held_for_stopping(block, settings, groups.get(name))
        except TableError as problem:
            raise TableError(f"Client {name!r}: {problem}") from None
    return found


def _renamed(
    experiment: Experiment, train: dict[ClientId, Block], test: dict[ClientId, Block], secret: bytes
) -> tuple[dict[ClientId, Block], dict[ClientId, Block], Names]:
    """Return the blocks of simulated clients with what stands for their samples."""
    settings = experiment.alignment
    ids = {name: np.concatenate([train[name].samples, test[name].samples]) for name in train}
    names = entity_alignment.public_names(
        settings, entity_alignment.normalised(settings, ids), secret
    )
    if names.public is ids:
        return train, test, names
    for name, public in names.public.items():
        rows = len(train[name].samples)
        train[name] = replace(train[name], samples=public[:rows])
        test[name] = replace(test[name], samples=public[rows:])
    return train, test, names


def _dealt(
    experiment: Experiment, described: NamedDataset | Source
) -> tuple[
    dict[ClientId, Block], dict[ClientId, Block], Labels, list[str], Structure | None, Groups
]:
    """Return the train and the test blocks of simulated clients, notes, and who is dealt alike.

    Groups are of the rows to train on, where the data set is split by groups.

    The compact data set is split before it is dealt, so that each value is a float64 once.
    """
    if experiment.partition is None:
        raise ExperimentError(
            "The experiment has [dataset] but no [partition]; say how to deal it to clients, "
            'for example kind = "grid", rows = 2, columns = 2.'
        )
    if isinstance(described, Source):
        dataset, labels = datasets.of_file(described, experiment.labels)
        sets = [dataset]
        del dataset
    else:
        raw = [
            datasets.load(name, drawn_from=experiment.seed, **described.options)
            for name in described.names
        ]
        sets, labels = datasets.encoded_alike(datasets.apart(raw), experiment.labels)
        del raw
    notes = [f"Data set: {one.departures}." for one in sets if one.departures]
    parts = [_held_out(one, experiment.split.test, experiment.split.salt) for one in sets]
    del sets
    start, end = experiment.split.evaluated
    if end:
        salt = experiment.split.validation_salt
        parts = [_held_out(replace(kept, test=None), end, salt, start) for kept, _ in parts]
    kind, keys = experiment.partition.kind, experiment.partition.options
    test = [held for _, held in parts if held is not None]
    train = [kept for kept, _ in parts]
    del parts
    dealt = deal(kind, train, **{"seed": experiment.seed, **keys})
    blocks = dealt.to_clients(train)
    groups = _groups_of(blocks, train)
    every = len(test) == len(train)
    del train
    if not every:
        held = {name: block.take(np.zeros(0, np.intp)) for name, block in blocks.items()}
        return blocks, held, labels, notes, dealt.structure, groups
    try:
        held = dealt.to_clients(test)
    except ExperimentError as problem:
        raise ExperimentError(
            f"The test part has {sum(len(one.samples) for one in test)} samples and cannot be "
            f"dealt as the training part is ({str(problem).rstrip('.')}); raise test in [split], "
            "or set it to 0."
        ) from None
    # a client of a few samples may have all of them in one part
    alone = len(held.keys() - blocks.keys())
    if alone:
        one, more = (
            "client has no training sample and is",
            "clients have no training sample and are",
        )
        notes.append(f"{several(alone, one, more)} left out.")
    none = np.zeros(0, np.intp)
    found = {name: held.get(name, block.take(none)) for name, block in blocks.items()}
    return blocks, found, labels, notes, dealt.structure, groups


def _groups_of(blocks: Mapping[ClientId, Block], sets: Sequence[Dataset]) -> Groups:
    """Return the groups of the rows that clients were dealt; {}: the data set has none."""
    if len(sets) != 1 or sets[0].split_by is None:
        return {}
    order = np.argsort(sets[0].samples, kind="stable")
    ids, by = sets[0].samples[order], sets[0].split_by[order]
    return {name: by[np.searchsorted(ids, one.samples)] for name, one in blocks.items()}


def _held_out(
    dataset: Dataset, share: float, salt: str, start: float = 0.0
) -> tuple[Dataset, Dataset | None]:
    """Return the official parts of a data set where it has some, else those by hash."""
    if share == 0:
        return dataset, None
    if dataset.test is not None:
        return dataset.split()
    ids = Block(dataset.samples, (), np.zeros((len(dataset.samples), 0)))
    how: dict[str, Any] = {"start": start, "by": dataset.split_by}
    chosen = np.isin(dataset.samples, split(ids, share, salt, **how)[1].samples)
    if not chosen.any():
        return dataset, None
    return replace(dataset, test=chosen).split()


def _among(held: Mapping[ClientId, T], only: Collection[ClientId] | None) -> dict[ClientId, T]:
    """Return what some clients hold; None: all."""
    return {name: own for name, own in held.items() if only is None or name in only}


def _with_labels(blocks: Mapping[ClientId, Block]) -> list[ClientId]:
    """Return the clients that have a sample with a label at any of them; all without any label."""
    labelled: set[object] = set()
    for block in blocks.values():
        if block.y is not None:
            labelled.update(block.samples[~np.isnan(block.y)].tolist())
    known = [name for name in blocks if not labelled.isdisjoint(blocks[name].samples.tolist())]
    return known or list(blocks)


def _notes_on_label_columns(tables: Mapping[ClientId, Table]) -> tuple[str, ...]:
    """Return notes on marks among the labels, label_map, and label columns of different names."""
    columns = {name: one.labels for name, one in tables.items()}
    labelled = {name: one for name, one in columns.items() if one is not None}
    return (
        *notes_on_marked(columns),
        *notes_on_label_maps(labelled),
        *notes_on_label_columns(labelled),
    )


def _note_on_share(
    settings: Split, groups: Collection[ClientId], parts: Sequence[Mapping[ClientId, NDArray[Any]]]
) -> tuple[str, ...]:
    """Return a note where other rows than were asked for are held out, as groups are no rows."""
    train, stopping, test = (sum(len(part.get(n, ())) for n in groups) for part in parts)
    start, end = settings.evaluated
    asked = end - start if end else settings.test
    share = test / max(train + stopping + test, 1)
    if not test or asked / 2 <= share <= min(2 * asked, (1 + asked) / 2):
        return ()
    return (
        f"Scores are of {100 * share:.0f} % of the rows of clients that are split by groups, where "
        f"{100 * asked:g} % of the groups were asked for: these are few, or of very different "
        "sizes; another salt in [split] holds out others.",
    )


NARROW = (
    "Intervals of scores and errors of coefficients take rows for independent: they are too narrow "
    "where rows of a group are alike."
)


def left_out(unlabelled: int) -> str:
    """Return a note of how many training samples have a label nowhere."""
    one, more = (
        "training sample has a label at no client; it is",
        "training samples have a label at no client; they are",
    )
    return f"{several(unlabelled, one, more)} left out."


def _notes_on_groups(tables: Mapping[ClientId, Table]) -> tuple[str, ...]:
    """Return a note of the groups by which clients' rows are split; none: each row is one."""
    told: list[str] = []
    repeated = False
    for name, one in tables.items():
        if one.split_by is not None:
            rows = np.unique(one.split_by, return_counts=True)[1]
            told.append(
                f"{len(rows)} in {several(rows.sum(), 'row')} at {name!r} (up to "
                f"{several(rows.max(), 'row')})"
            )
            repeated |= bool(rows.max() > 1)
    if not told:
        return ()
    alone = [name for name, one in tables.items() if one.split_by is None]
    each = f" Those of {listed(alone)} are split one by one." if alone else ""
    return (
        f"Rows are held out by groups: {'; '.join(told)}.{each}{f' {NARROW}' if repeated else ''}",
    )


def _drop_unlabelled(blocks: dict[ClientId, Block]) -> int:
    """Take the samples that no client has a label of out of the blocks; return their number."""
    known = [
        np.zeros(len(block.samples), bool) if block.y is None else ~np.isnan(block.y)
        for block in blocks.values()
    ]
    kept = labelled_somewhere({name: block.samples for name, block in blocks.items()}, known)
    without: set[object] = set()
    for name, keep in kept.items():
        if not keep.all():
            without.update(blocks[name].samples[~keep].tolist())
            blocks[name] = blocks[name].take(np.flatnonzero(keep))
    return len(without)


def labelled_somewhere(
    samples: Mapping[ClientId, NDArray[Any]], known: Sequence[NDArray[np.bool_]]
) -> dict[ClientId, NDArray[np.bool_]]:
    """Return which of each client's samples have a label at any; `known` are those at itself.

    FederationError if there is no label, or a client has none of the samples with one.
    """
    if not any(one.any() for one in known):
        raise FederationError(
            "No training sample has a label at any client; name a label column at one of them."
        )
    ids = list(samples.values())
    same = same_arrays(ids)
    whole = {same[at] for at, own in enumerate(known) if len(own) and own.all()}
    if whole.issuperset(same):  # every client has the samples of one that has all their labels
        return {name: np.ones(len(own), bool) for name, own in samples.items()}
    # all at once: each block by itself would be compared with all labelled samples
    found, numbers = distinct_of(ids)
    labelled = np.zeros(len(found), bool)
    for number, own in zip(numbers, known, strict=True):
        labelled[number[own]] = True
    kept = [labelled[number] for number in numbers]
    for name, keep in zip(samples, kept, strict=True):
        if not keep.any():
            others = np.concatenate(ids)[np.concatenate(known)]
            raise FederationError(
                f"Client {name!r} has {several(len(keep), 'training sample')}, none of which has a "
                f"label at any client; {_unmatched(name, samples[name], others)}"
            )
    return dict(zip(samples, kept, strict=True))


def _unmatched(client: ClientId, own: NDArray[Any], labelled: NDArray[Any]) -> str:
    """Return what to do about a client's samples of which nobody has a label."""
    if own.dtype.kind == "U" and np.char.startswith(own, f"{client}:").all():  # made by number
        return (
            "its rows have no ids that others know: set id to the column that says which sample "
            "each row is, or label to that of its labels; if it has neither, take the client out, "
            "and predict its rows by the model."
        )
    if rows := same_numbers(own, labelled):
        return (
            f"{rows} of their ids are those of samples with a label, written as 1.50 is for 1.5: "
            "write them alike in both tables."
        )
    if own.dtype.kind == labelled.dtype.kind == "U":
        rules, alike = rules_that_match(own, labelled, date_orders)
        if rules:
            said = ", ".join(f'"{rule}"' for rule in rules)
            how = "without zeros in front" if rules == ("zeros",) else "by a rule"
            return (
                f"{how} {alike} of their ids are those of samples with a label: "
                f"set normalise = [{said}] in [alignment]."
            )
        looks = {look(one) for one in labelled.tolist()}
        same = next((one for one in own.tolist() if look(one) in looks), None)
        if same is not None:
            odd = next((one for one in same if not one.isascii()), "")
            code = f" (such as U+{ord(odd):04X})" if odd else ""
            return (
                f"ids such as {same!r} look like those of samples with a label, in letters of "
                f"another alphabet{code} at one of the clients: write them in one alphabet."
            )
    if own.dtype.kind in "iuU":  # no pseudonyms
        return (
            f"its ids (such as {own[0].item()!r}) and theirs (such as {labelled[0].item()!r}) have "
            "nothing in common: name the column with the ids that both know, give the client rows "
            "that others know, or labels."
        )
    return "give it samples that others know, or labels."
