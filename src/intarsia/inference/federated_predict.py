"""Predict samples whose columns are spread over clients, by sums of what each adds.

Each client has a table of its own; what it adds to a score leaves it in a sum alone, sealed as in
the run. A linear model is a sum over columns, a network of feature blocks one over blocks up to its
first layer. Where nobody has some of a sample's columns, a rule says what stands for them. Where a
column's value is missing at all that have it, its mean does. Each row of the output says what it
rests on ("all", "means" or a client's name):

refuse
    Nothing does: it is an error.
mean
    Their means over the training samples.
own
    The network of a client that has the sample says it alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from intarsia.core.block import Array, Block, ClientId, Labels
from intarsia.core.memory import slices
from intarsia.core.schema import Schema
from intarsia.data.source import Format, Source
from intarsia.data.table import Table
from intarsia.engines.simulation import Simulation
from intarsia.errors import ExperimentError, TableError, listed, nearest
from intarsia.experiment import feature_dictionary
from intarsia.experiment.config import Experiment
from intarsia.experiment.federation import aligned, read_tables
from intarsia.inference import new_table
from intarsia.inference.predict import Predictions, from_scores
from intarsia.models.feature_mapping import check_names, encode_known, known_columns_of
from intarsia.models.linear import LinearClassifier, LinearRegressor
from intarsia.models.serialization import read_model
from intarsia.protocols import inference
from intarsia.protocols.untrained_levels import without_untrained
from intarsia.results.result import load
from intarsia.results.run_folder import describe
from intarsia.training.setup import sealed_sums

if TYPE_CHECKING:
    from intarsia.models.networks import ClientNetwork, Networks
    from intarsia.models.serialization import LinearModel, Model


ABSENT = ("refuse", "mean", "own")

_ALL, _MEANS = "all", "means"


@dataclass(frozen=True, eq=False)
class _Spread:
    """The clients over their new tables, and whose columns are whose."""

    engine: Simulation
    schema: Schema
    holders: Mapping[str, tuple[ClientId, ...]]  # of each feature of the model, or feature block
    notes: tuple[str, ...]


def predict_federated(
    folder: Path | str,
    tables: Mapping[ClientId, Path | str],
    absent: str = "refuse",
    missing: Sequence[str] = (),
    *,
    decimal: str | None = None,
    allow_modules: Collection[str] = (),
) -> Predictions:
    """Return the predictions of a finished run for all samples of the clients' new tables.

    Parameters
    ----------
    folder
        The output folder of the run: of a linear model, or of `hyfem`.
    tables
        A file by the name of the client (CSV, Parquet, libsvm or npz), or a table of a database,
        as `intarsia init` takes it; columns, ids and units are as in the run.
    absent
        What stands for columns that nobody has of a sample.
    missing
        What counts as missing in these tables, beside what did in the client's of the run.
    decimal
        The decimal mark of numbers that are text in these tables, "." or ","; None: as in the run.
    allow_modules
        Those that networks may be made of, where the folder names some.

    Raises
    ------
    CheckpointError
        If the folder holds no finished run, or names a module that is not allowed.
    TableError
        If a table cannot be read or has no column of the model, or a sample lacks columns and
        `absent` is "refuse".
    ExperimentError
        If the run has no such client, or its model cannot be added up.
    """
    folder = Path(folder)
    if absent not in ABSENT:
        raise ExperimentError(f"absent is {absent!r}; {nearest(absent, ABSENT)}.")
    load(folder)  # says what is wrong with a folder that holds no finished run
    model = read_model(folder / "model", allow_modules)
    described = describe(folder, allow_modules)
    every, networks = _additive(model, described, absent)
    places = {name: new_table.place_of(folder, one) for name, one in tables.items()}
    read, written = _read(folder, described, places, every, missing, decimal)
    spread = _make_parties(described, read, every, networks)
    gaps = inference.lacking(spread.schema, spread.holders)
    cells = spread.schema.samples.cell_of
    incomplete = np.isin(cells, list(gaps))
    if incomplete.any() and absent == "refuse":
        raise _refusal(spread, gaps, int(incomplete.sum()))
    scores = _scores(spread, every, gaps)
    basis = np.where(incomplete | _by_means(spread), _MEANS, _ALL).astype(object)
    if absent == "own" and networks is not None and incomplete.any():
        speakers = _speakers(spread, gaps)
        for client, own in _alone(spread, speakers).items():
            at = np.array([speakers.get(cell) == client for cell in cells.tolist()])
            scores[:, at], basis[at] = own, client
    ids = spread.schema.samples.ids
    order = np.argsort(ids, kind="stable")
    known = (
        new_table.trained_on(folder, place, new_table.owner_of(folder, place))
        for place in places.values()
    )
    notes = (*chain.from_iterable(known), *spread.notes, *_note_basis(basis))
    found = from_scores(every, scores[:, order], _as_written(ids[order], read, written), notes)
    return replace(found, basis=basis[order].tolist())


def _additive(
    model: Model, described: Experiment, absent: str
) -> tuple[LinearModel | ClientNetwork, Networks | None]:
    """Return the model of all clients, and where there are some their own networks."""
    if isinstance(model, LinearClassifier | LinearRegressor):
        if absent == "own":
            raise ExperimentError(
                "absent is 'own', but the run has one linear model for all clients and none of "
                'their own; use "mean" or "refuse".'
            )
        return model, None
    server: ClientNetwork | None = getattr(model, "server", None)
    if server is None:
        raise ExperimentError(
            f"The run is one of {described.algorithm!r}, where each client has a model of its own "
            "columns and there is none of all; predict each client's table by itself "
            "(intarsia predict DIR TABLE --client NAME)."
        )
    return server, cast("Networks", model)  # which alone have a server


def _read(
    folder: Path,
    described: Experiment,
    tables: Mapping[ClientId, Source],
    every: LinearModel | ClientNetwork,
    missing: Sequence[str],
    decimal: str | None,
) -> tuple[dict[ClientId, Table], dict[ClientId, NDArray[Any]]]:
    """Return the clients' new tables, read and aligned as those of the run were, and their ids."""
    if not tables:
        raise ExperimentError(
            "No client has a table; give one or more as NAME=FILE, e.g. bank=bank.csv."
        )
    known = {source.name: source for source in described.clients}
    if not known:
        raise ExperimentError(
            "The run dealt out one data set to simulated clients, which have no tables of their "
            "own; predict a table with all columns (intarsia predict DIR TABLE)."
        )
    sources = []
    dictionary = feature_dictionary.load(described.alignment.dictionary)
    for name, table in tables.items():
        if name not in known:
            raise ExperimentError(f"The run has no client {name!r}; {nearest(name, known)}.")
        settings = new_table.table_settings(folder, name)
        new_table.check_levels(every, settings)
        settings = new_table.written_with(settings, decimal)
        kind = new_table.check_table(table, settings)
        names = new_table.column_names(table, settings, kind)
        feature = {one: dictionary.column(name, one, {}).feature for one in names}
        source = _source(known[name], table, kind, settings, feature, every)
        separator = new_table.separator_of(table, settings, kind)
        marks = {"decimal": settings.reading.get("decimal", "."),
                 "thousands": settings.reading.get("thousands")}  # fmt: skip
        more = (*source.missing, *missing)
        sources.append(replace(source, separator=separator, missing=more, **marks))
    with new_table.advice_for_new_tables():
        described = replace(described, clients=tuple(sources))
        found = read_tables(described)
        written = {name: table.samples for name, table in found.items()}
        return aligned(described, found, some=True, lacking=True), written


def _as_written(
    ids: NDArray[Any], read: Mapping[ClientId, Table], written: Mapping[ClientId, NDArray[Any]]
) -> list[Any]:
    """Return ids as the first table that has them writes them; by rules they may be others."""
    if all(table.samples is written[name] for name, table in read.items()):
        return list(ids.tolist())
    own: dict[Any, Any] = {}
    for name, table in read.items():
        for one, text in zip(table.samples.tolist(), written[name].tolist(), strict=True):
            own.setdefault(one, text)
    return [own.get(one, one) for one in ids.tolist()]


def _source(
    known: Source,
    table: Source,
    kind: Format,
    settings: new_table.TableSettings,
    feature: Mapping[str, str],
    every: LinearModel | ClientNetwork,
) -> Source:
    """Return how a client's table was read, for a new one with these columns: name -> feature."""
    leave = {known.id, known.label}
    wanted = feature if known.features is None else known.features
    columns = [name for name in wanted if name in feature and name not in leave]
    levels = _known(every, [feature[name] for name in columns])[1]
    categorical = {*known.categorical, *(name for name in columns if feature[name] in levels)}
    return replace(
        known,
        path=table.path,
        format=kind,
        url=table.url,
        query=table.query,
        label=None,
        weights=None,
        split_by=None,
        split_by_pattern=None,
        label_map={},
        features=tuple(name for name in columns if name not in known.exclude),
        exclude=tuple(
            name for name in new_table.left_out(table, settings, kind) if name not in columns
        ),
        categorical=tuple(name for name in columns if name in categorical),
        groups={},
        units={name: unit for name, unit in known.units.items() if name in columns},
        limits=tuple(name for name in known.limits if name in columns),
    )


def _make_parties(
    described: Experiment,
    tables: Mapping[ClientId, Table],
    every: LinearModel | ClientNetwork,
    networks: Networks | None,
) -> _Spread:
    """Return the clients, each with its part of the model."""
    features = [str(name) for name in every.feature_names_in_]
    notes: list[str] = []
    blocks: dict[ClientId, Block] = {}
    units: dict[ClientId, tuple[str, ...]] = {}
    for name, table in tables.items():
        block = _block(table, every)
        whole = _whole_blocks(every, block)
        units[name] = tuple(block.features) if whole is None else tuple(whole)
        blocks[name] = block if whole is None else replace(block, groups=whole)
        aside = [column for column in table.columns if column not in _columns(block, table)]
        if aside:
            notes.append(f"Columns of {name!r} that the model does not know are left aside: "
                         f"{listed(aside)}.")  # fmt: skip
        gaps = int(block.rows_that_lack().sum())
        if gaps:
            notes.append(
                f"{gaps} rows of {name!r} lack values; where no other client has one, its mean in "
                "training stands for it, or 0 where the model has none."
            )
    with new_table.advice_for_new_tables():
        schema = Schema.of(blocks, Labels("regression"))
    # fresh keys: masks of a key that was used before would tell the difference of two sums
    privacy = replace(described.privacy, key="", transcript=False)
    sealing, _ = sealed_sums(replace(described, privacy=privacy), schema.clients, None)
    engine = Simulation({"train": (schema, blocks)}, described.seed, sealing)
    engine.begin_round(0)
    engine.make_states(lambda name: _party(engine.block(name), every, networks, name))
    named = features if networks is None else cast("Any", every).architecture.blocks
    holders = {unit: tuple(name for name, own in units.items() if unit in own) for unit in named}
    return _Spread(engine, schema, holders, tuple(notes))


def _known(
    every: LinearModel | ClientNetwork, names: Sequence[str]
) -> tuple[list[str], dict[str, tuple[str, ...]]]:
    """Return which of a table's columns the model knows, and the levels of categorical ones."""
    return known_columns_of([str(name) for name in every.feature_names_in_], names, every.levels_)


def _block(table: Table, every: LinearModel | ClientNetwork) -> Block:
    """Return a client's table as the model's features; a level that it does not know is missing."""
    known, levels = _known(every, table.columns)
    features = [str(name) for name in every.feature_names_in_]
    check_names(f"The table of {table.client!r}", table.columns, features, every.levels_)
    if not known:
        raise TableError(
            f"The table of {table.client!r} has the columns {listed(table.columns)}, of which the "
            f"model knows none; it knows {listed(every.feature_names_in_.tolist())}: name the "
            "columns as in training."
        )
    numeric = [name for name in table.numeric if name in known]
    at = [table.numeric.index(name) for name in numeric]
    kept = replace(
        table,
        columns=tuple(known),
        values=table.values[:, at],
        categorical={name: one for name, one in table.categorical.items() if name in known},
        labels=None,
        groups={},
        shapes={},
    )
    block = encode_known(kept, levels, "Column ", f" of {table.client!r}")
    if isinstance(every, LinearClassifier | LinearRegressor):
        return block  # whose model has no level that training lacked
    scale = dict(zip(every.features, every.scales.tolist(), strict=True))
    return without_untrained(block, np.array([scale[name] > 0 for name in block.features]))


def _columns(block: Block, table: Table) -> set[str]:
    return {*block.features, *block.levels}.intersection(table.columns)


def _whole_blocks(
    every: LinearModel | ClientNetwork, block: Block
) -> dict[str, tuple[str, ...]] | None:
    """Return the feature blocks that a client holds whole, by their columns; None: linear."""
    if isinstance(every, LinearClassifier | LinearRegressor):
        return None
    made_of: Any = every.architecture  # of hyfem: a composition
    held = set(block.features)
    return {
        name: columns
        for name, columns in zip(made_of.blocks, made_of.columns, strict=True)
        if held.issuperset(columns)
    }


def _party(
    block: Block, every: LinearModel | ClientNetwork, networks: Networks | None, name: ClientId
) -> inference.Party:
    """Return what a client predicts with; the model of all is known to all."""
    if isinstance(every, LinearClassifier | LinearRegressor):
        place = {str(name): at for at, name in enumerate(every.feature_names_in_)}
        own = [place[feature] for feature in block.features]
        return inference.Party(
            inference.Linear(np.atleast_2d(every.coef_)[:, own], every.means_[own])
        )
    layer = inference.Network(
        lambda some: every.first_layer(some, tuple(some.groups)), every.first_units
    )
    if networks is None or name not in networks:
        return inference.Party(layer, None)
    network = networks[name]
    return inference.Party(layer, lambda some: np.atleast_2d(network.decision_function(some).T))


def _scores(
    spread: _Spread, every: LinearModel | ClientNetwork, missing: Mapping[int, tuple[str, ...]]
) -> Array:
    """Return the scores of all samples, in the schema's order; what is missing counts as mean."""
    if isinstance(every, LinearClassifier | LinearRegressor):
        coef, constant = np.atleast_2d(every.coef_), np.atleast_1d(every.intercept_)
        deviation = inference.linear_scores(spread.engine, spread.schema)
        own: Array = deviation + (constant + coef @ every.means_)[:, None]
        return own
    total = inference.network_layer(spread.engine)
    made_of: Any = every.architecture
    means = every.first_layer(None, made_of.blocks)
    for cell, names in missing.items():
        run = spread.schema.samples.cells[cell]
        total[:, run.start : run.stop] += sum(means[name] for name in names)
    found: Array = every.scores_of(total)
    return found


def _by_means(spread: _Spread) -> NDArray[np.bool_]:
    """Return of which samples the clients that have a column lack its value, all of them."""
    schema, engine = spread.schema, spread.engine
    rows, columns = schema.samples, schema.features
    gaps = np.zeros(len(rows), bool)
    for name in schema.clients:
        gaps[rows.own(name)] |= engine.block(name).rows_that_lack()
    found, odd = np.zeros(len(rows), bool), np.flatnonzero(gaps)
    for some in slices(len(odd), len(odd) * len(columns)):
        there = np.zeros((len(odd[some]), len(columns)), bool)
        asked = there.copy()
        for name in schema.clients:
            _, own, places = np.intersect1d(rows.own(name), odd[some], return_indices=True)
            at = np.ix_(places, columns.own(name))
            there[at] |= engine.block(name).take(own).observed()
            asked[at] = True
        found[odd[some]] = (asked & ~there).any(axis=1)
    return found


def _speakers(spread: _Spread, missing: Mapping[int, tuple[str, ...]]) -> dict[int, ClientId]:
    """Return who speaks for the samples of each incomplete cell: who has the most of the model."""
    held = {
        name: sum(name in holders for holders in spread.holders.values())
        for name in spread.schema.clients
    }
    owners = spread.schema.samples.owner_sets
    return {cell: min(owners[cell], key=lambda name: (-held[name], name)) for cell in missing}


def _alone(spread: _Spread, speakers: Mapping[int, ClientId]) -> Mapping[ClientId, Array]:
    """Return what each client's own network says of the samples that it speaks for."""
    samples = spread.schema.samples
    rows: dict[ClientId, NDArray[np.int64]] = {}
    for name in set(speakers.values()):
        cells = [cell for cell, speaker in speakers.items() if speaker == name]
        rows[name] = np.flatnonzero(np.isin(samples.cell_of[samples.own(name)], cells))
    return inference.own_scores(spread.engine, rows)


def _refusal(spread: _Spread, missing: Mapping[int, tuple[str, ...]], count: int) -> TableError:
    cell, names = next(iter(missing.items()))
    first = spread.schema.samples.ids[spread.schema.samples.cells[cell].start]
    return TableError(
        f"Of {count} of {len(spread.schema.samples)} samples the clients together lack columns "
        f"that the model needs (first: {first!s}, of which nobody has {listed(names, 5)}); add the "
        "tables that have it, or choose what stands for it: --absent mean, or for hyfem "
        "--absent own."
    )


def _note_basis(basis: NDArray[Any]) -> tuple[str, ...]:
    names, counts = np.unique(basis.astype(str), return_counts=True)
    if list(names) == [_ALL]:
        return ()
    told = ", ".join(f"{name} {count:,}" for name, count in zip(names, counts, strict=True))
    return (f"What the predictions rest on: {told} (column basis).",)
