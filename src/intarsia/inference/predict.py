"""Predict the rows of a new table by the model of a finished run.

A linear model is one for all clients. Where each client has a network of its own, the table is that
of the client that is named, or else of the one client whose columns it has.

A column that the table lacks, a missing value and a level that training did not see count as the
feature's mean over the training samples, or as 0 where that stood for it in training (`standardise
= false`, a category of many levels that training rows lacked, and sparse columns in models of
earlier versions). In a libsvm file what is not written
is 0.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, hstack
from scipy.special import expit

from intarsia.core.block import RARE, Array, Block, ClientId, Labels
from intarsia.core.text_tables import csv_writer, without_formula
from intarsia.data.labels import OTHER, LabelColumn, encode_labels, positive_class
from intarsia.data.parsing import ascending, canonical
from intarsia.data.source import Format, Source
from intarsia.data.table import Table
from intarsia.errors import ExperimentError, TableError, listed, nearest, nearest_column
from intarsia.experiment.feature_dictionary import Dictionary
from intarsia.inference import new_table
from intarsia.inference.new_table import NAMED, TableSettings
from intarsia.maths.figures import CROSS_ENTROPY
from intarsia.maths.linear.losses import loss_code, mean_of, shape_of
from intarsia.models.feature_mapping import (
    Levels,
    RawColumns,
    check_names,
    encode_known,
    known_columns_of,
)
from intarsia.models.linear import LinearClassifier, LinearRegressor
from intarsia.models.serialization import CLIENTS, NAME, NETWORKS, read_model
from intarsia.protocols.evaluation import evaluate_scores
from intarsia.results.figure_text import number
from intarsia.results.result import Score, load

if TYPE_CHECKING:
    from intarsia.models.networks import ClientNetwork
    from intarsia.models.serialization import LinearModel, Model


_SERVER = "server"  # the server's network, where no client has this name


@dataclass(frozen=True, eq=False)
class Predictions:
    """What a model says about each row of a table."""

    ids: Sequence[Any]  # (rows,) as in the table, or the row number from 1
    scores: Array  # (rows,) > 0 for the second of two classes; of the best class; or the prediction
    labels: NDArray[Any] | None  # (rows,) None for regression
    probabilities: Array | None  # (rows,) logistic loss: of the second of two classes, or the best
    notes: tuple[str, ...]  # what counted as missing, and what was left aside
    # (rows,) what each rests on where the columns were spread over clients: "all" values, "means"
    # for those that nobody has, or a client's name
    basis: Sequence[str] | None = None
    score: Score | None = None  # of the rows that have a label, where the table has one
    positive: str | None = None  # the second of two classes
    classes: tuple[str, ...] = ()  # of the model, in order

    @property
    def header(self) -> tuple[str, ...]:
        """Return the names of the columns of `rows`."""
        return tuple(self._columns())

    @property
    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Return the rows in the order of the table."""
        return zip(*self._columns().values(), strict=True)

    def _columns(self) -> dict[str, list[Any]]:
        numbers = {"label": self.labels, "probability": self.probabilities}
        found = {"id": list(self.ids), "score": self.scores.tolist()}
        found |= {name: own.tolist() for name, own in numbers.items() if own is not None}
        return found if self.basis is None else {**found, "basis": list(self.basis)}

    def write(self, file: TextIO) -> None:
        """Write the rows as CSV with a header.

        A label, or a client's name, that a spreadsheet would take for a formula has an apostrophe
        before it: they are other clients'. Ids stay as the table has them.
        """
        writer = csv_writer(file)
        writer.writerow(self.header)
        writer.writerows((own, *map(without_formula, more)) for own, *more in self.rows)


def predict(
    folder: Path | str,
    table: Path | str,
    id: str | None = None,
    client: ClientId | None = None,
    missing: Sequence[str] = (),
    *,
    decimal: str | None = None,
    allow_modules: Collection[str] = (),
) -> Predictions:
    """Return the predictions of a finished run for the rows of a file.

    Parameters
    ----------
    table
        The file: CSV, Parquet, libsvm or npz, by its ending or as the run's tables of this ending.
        Or a table of a database, as `intarsia init` takes it: "loans.db#customers".
        Where it has the run's label column, the model is scored on the rows with a label; of a
        column with none of the model's classes there is a note.
    id
        The column with the ids; None: the one of the experiment, where the table has it. Of libsvm
        and npz files "row", or "samples" where the file has this array.
    client
        Whose network predicts, where each client has one, also that of a client that joined later,
        or "server", where this has one; None:
        that of the client whose columns the table has, the server's for those of all. With one
        linear model for all: whose table the file is written like (decimal, label_map, ...); None:
        that of the client whose table it is, if the run was trained with this file, or whose file
        has this name.
    missing
        What counts as missing, beside what did in training: in the table of the client whose
        network predicts, else in those of all.
    decimal
        The decimal mark of numbers that are text, "." or ","; None: as in training.
    allow_modules
        Those that networks may be made of, where the folder names some.

    Raises
    ------
    CheckpointError
        If the folder holds no finished run, or names a module that is not allowed.
    TableError
        If the table is no file, cannot be read, or has no column that the model knows.
    ExperimentError
        If there is no such client, or the table may be that of several.
    """
    if not isinstance(table, str | PathLike):
        raise TableError(
            f"The table is of the kind {type(table).__name__}; expected the path of a file, or a "
            "text that names a table of a database: a "
            "DataFrame is predicted by intarsia.load(folder).model.predict(table), or, where each "
            "client has a model of its own, by intarsia.load(folder).model[client].predict(table)."
        )
    folder, where = Path(folder), str(table)
    if not any((folder / "model" / name).is_file() for name in (NAME, NETWORKS, CLIENTS)):
        load(folder)  # says what is wrong with a folder that holds no finished run
    found_model = read_model(folder / "model", allow_modules)
    later = {path.parent.name: path.parent for path in folder.glob("joined/*/result.json")}
    if client in later and isinstance(found_model, Mapping) and client not in found_model:
        how: dict[str, Any] = {"decimal": decimal, "allow_modules": allow_modules}
        return predict(*(later[client], where, id, client, missing), **how)
    if client is not None:
        _check_client(folder, found_model, client, later)
    of_all, learned = isinstance(found_model, LinearClassifier | LinearRegressor), list[str]()
    if not isinstance(found_model, Mapping):
        features = [str(name) for name in found_model.feature_names_in_]
        learned = _columns_of(features, found_model.levels_)
    place = new_table.place_of(folder, where)
    header = _read_header(folder, place, client, decimal, learned)
    names = [*header.column_of]
    model, owner, taken = _estimator(found_model, place.place, names, client, later, header)
    if of_all:
        owner = header.reader or header.guessed  # whose table it is like
        if header.guessed is not None:
            taken = (_note_guessed(header.guessed, header.alike_by),)
    settings = new_table.table_settings(folder, owner)
    new_table.check_levels(model, settings)
    settings = new_table.written_with(new_table.read_as_utf8(place, settings, header.kind), decimal)
    known, levels, left = _known_columns(folder, place.place, header, model, id)
    rest = [name for name in names if name not in known]
    id = new_table.id_of(place, header.kind, id, rest, settings.ids)
    label = _label_of(header.kind, names, known, id, settings)
    source = replace(
        place,
        format=header.kind,
        separator=header.separator,
        id=id,
        label=label,
        label_map={} if label is None else settings.label_map,
        features=tuple(header.column_of.get(name, name) for name in known),
        exclude=tuple(
            name for name in new_table.left_out(place, settings, header.kind) if name not in known
        ),
        categorical=tuple(header.column_of.get(name, name) for name in levels),
        missing=(*settings.missing, *missing),
        **settings.amounts([header.column_of.get(name, name) for name in (*known, label or "")]),
        **settings.reading,
    )
    with _advice_to_name_a_client(folder, None if header.guessed == owner else owner):
        found = new_table.read_table(source)
        found = new_table.translated(found, header.dictionary, header.units)
    block = encode_known(replace(found, labels=None), levels, f"{place.place}: column ")
    if header.kind == "libsvm":
        block = _with_zeros(block, [str(name) for name in model.feature_names_in_], _centres(model))
        known = [*known, *block.features[len(known) :]]
    ids = found.samples.tolist() if id is not None else range(1, len(found.samples) + 1)
    aside = [name for name in names if name in left]
    kept = [name for name in names if name not in left]
    notes = (
        *taken,
        *(_marks_as_values(found, new_table.marks_of_some(folder)) if owner is None else ()),
        *(new_table.notes_on_units(folder, known) if owner is None else ()),
        *new_table.notes_on_dictionary(folder),
        *new_table.trained_on(folder, place, header.trained, scored=label is not None),
        *_notes(_means_of(model), model.levels_, kept, known, levels, block, id, settings),
        *((f"Left aside, as in training: {_list_names(aside)}.",) if aside else ()),
        *_counted_as_rest(found, levels),
        *_far_from_training(model, block),
    )
    advice = ""
    if owner is None and new_table.labels_mapped(folder):
        advice = "; name the client whose label_map says what they mean (--client)"
    truth = None if label is None else found.labels
    if len(getattr(model, "classes_", ())) == 0:  # numbers to predict
        values = model.predict(block)
        made = Predictions(ids, values, None, None, notes)
        if isinstance(model, LinearRegressor):
            values = model.linear_predictor(block)
        return _scored(made, truth, settings, model, block, np.atleast_2d(values))
    scores = np.atleast_2d(model.decision_function(block).T)
    made = from_scores(model, scores, ids, notes)
    return _scored(made, truth, settings, model, block, scores, advice)


@dataclass(frozen=True)
class _Header:
    """What is known of a table by its header, and as whose table it is read."""

    trained: ClientId | None  # with whose table, this very file, the run was trained
    alike: ClientId | None  # whose file has its name, where none is named
    reader: ClientId | None  # as whose it is read: who is named, or `trained`
    guessed: ClientId | None  # as whose it is read for its name alone, where that matters
    kind: Format
    separator: str | None
    column_of: Mapping[str, str]  # by the feature that it is
    dictionary: Dictionary
    units: Mapping[str, str]

    @property
    def alike_by(self) -> str:
        """Return by what the table is `alike` one of training."""
        return "its database" if self.kind == "sql" else "its file's name"


def _read_header(
    folder: Path,
    table: Source,
    client: ClientId | None,
    decimal: str | None,
    learned: Collection[str],
) -> _Header:
    """Return what a table's header says; a party's columns may have other names than features.

    `learned` are the columns of a model of all clients.
    """
    trained = new_table.owner_of(folder, table)
    alike = new_table.like_of(folder, table) if client is None and trained is None else None
    reader = trained if client is None else client
    differ = new_table.reading_differs(folder, ("encoding", *new_table.WRITTEN_BY))
    guessed = alike if reader is None and differ else None
    settings = new_table.table_settings(folder, reader or guessed)
    kind = new_table.check_table(table, settings)
    settings = new_table.written_with(new_table.read_as_utf8(table, settings, kind), decimal)
    with _advice_to_name_a_client(folder, reader):
        columns = new_table.column_names(table, settings, kind)
    if reader is None and alike and new_table.columns_differ(folder, alike, columns, learned):
        guessed = alike
        settings = new_table.table_settings(folder, guessed)
    dictionary, units = new_table.dictionary_of(folder, reader or guessed)
    column_of = {dictionary.column("", name, {}).feature: name for name in columns}
    separator = new_table.separator_of(table, settings, kind)
    return _Header(trained, alike, reader, guessed, kind, separator, column_of, dictionary, units)


def _known_columns(
    folder: Path,
    table: str,
    header: _Header,
    model: LinearModel | ClientNetwork,
    id: str | None,
) -> tuple[list[str], dict[str, tuple[str, ...]], set[str]]:
    """Return a table's columns that a model knows, with levels, and those left out in training."""
    names = [*header.column_of]
    features = [str(name) for name in model.feature_names_in_]
    # what that client left out in training, however it is called, is no feature
    settings = new_table.table_settings(folder, header.reader or header.guessed)
    read_by = _read_by(model)
    known = known_columns_of(features, names, read_by)[0]
    left = {
        name
        for name, column in header.column_of.items()
        if column in settings.exclude or (name in known and settings.leaves_out(column))
    }
    kept = [name for name in names if name not in left]
    known, levels = known_columns_of(features, kept, read_by)
    if header.kind in NAMED:
        own_names = [name for name in kept if name != id]
        try:
            check_names(table, own_names, features, model.levels_)
        except TableError as problem:
            raise new_table.advice_on_left_out(folder, own_names, problem) from None
    if not known:
        raise TableError(
            f"{table} has the columns {listed(names)} but the model knows "
            f"{listed(_columns_of(features, model.levels_))}; name the columns as in training."
        )
    if id is not None and id not in names and header.kind in NAMED:
        raise TableError(f"{table} has no column {id!r}; {nearest_column(id, names)}.")
    return known, levels, left


def _read_by(model: LinearModel | ClientNetwork) -> Levels:
    """Return the levels of categorical columns by which tables are read."""
    if not isinstance(model, LinearClassifier | LinearRegressor):
        return model.trained_levels
    levels: Levels = model.levels_
    return levels


def _check_client(
    folder: Path, model: Model, client: ClientId, later: Collection[ClientId]
) -> None:
    """Raise ExperimentError if a run has no such client."""
    if not isinstance(model, Mapping):
        new_table.check_client(folder, client)
    elif client not in model and not (client == _SERVER and getattr(model, "server", None)):
        raise ExperimentError(
            f"The run has no client {client!r}; {nearest(client, [*model, *later])}. A client "
            "that joined with --out has its own folder, DIR of predict."
        )


def _marks_as_values(table: Table, marks: Mapping[float, Sequence[ClientId]]) -> Iterator[str]:
    """Yield notes on numbers of a table that stood for a missing value at some clients alone."""
    if not isinstance(table.values, np.ndarray):
        return
    for mark, clients in marks.items():
        rows = (table.values == mark).sum(axis=0).tolist()
        told = [f"{name} ({n})" for name, n in zip(table.numeric, rows, strict=True) if n]
        if told:
            yield (
                f"{mark:g} is taken for a value: {_list_names(told)}. It stood for a missing one "
                f"at {listed(clients)}: if so here, name the client whose table this is (--client "
                f"{' or '.join(clients)}), or say --missing={mark:g}."
            )


_FAR = 8.0  # by which one column moves the score of the usual row: odds of 3000 to 1
_LEAST_ROWS = 5


def _far_from_training(model: LinearModel | ClientNetwork, block: Block) -> Iterator[str]:
    """Yield notes on columns that are so far from training's that their unit may be another."""
    if not isinstance(model, LinearClassifier | LinearRegressor):
        return
    if model.loss not in ("logistic", "poisson", "gamma"):  # of others nothing says what is far
        return
    coef = np.abs(np.atleast_2d(model.coef_)).max(axis=0)
    place = {str(name): at for at, name in enumerate(model.feature_names_in_)}
    for at in block.written_out:
        name, column = block.features[at], block.dense(np.array([at]))
        known = column[~np.isnan(column)]
        if name not in place or len(known) < _LEAST_ROWS:
            continue
        usual, mean = float(np.median(known)), float(model.means_[place[name]])
        if coef[place[name]] * abs(usual - mean) > _FAR:
            yield (
                f"{name} is far from what training had: its median is {number(usual)} here, and "
                f"its mean was {number(mean)} there. See whether it has the same unit, and is "
                "written as it was; the scores rest on it."
            )


def _note_guessed(client: ClientId, by: str) -> str:
    return f"The table is taken for one of {client!r} by {by}; name another client if it is not."


def _centres(model: LinearModel | ClientNetwork) -> Array:
    """Return what training took off each feature, (features,)."""
    if isinstance(model, LinearClassifier | LinearRegressor):
        own: Array = model.means_ if model.centres_ is None else model.centres_
        return own
    return model.centres


def _with_zeros(block: Block, features: Sequence[str], centres: Array) -> Block:
    """Return a libsvm file's block with the columns beyond its largest index, which are 0.

    Those that were centred were no column of such a file in training, and are lacking.
    """
    last = max(int(name) for name in block.features)
    sparse = (name for name, centre in zip(features, centres, strict=True) if centre == 0)
    beyond = [name for name in sparse if name.isdecimal() and int(name) > last]
    zeros = csr_array((block.shape[0], len(beyond)))
    x = hstack([csr_array(block.x), zeros], format="csr")
    return Block(block.samples, (*block.features, *beyond), csr_array(x))


@contextmanager
def _advice_to_name_a_client(folder: Path, owner: ClientId | None) -> Iterator[None]:
    """Let errors of reading a table advise so, where clients' tables are written differently.

    Of numbers with another decimal mark they name the option that says so.
    """
    try:
        yield
    except TableError as problem:
        said = problem.problem
        keys = ("encoding",) if "UTF-8" in said else new_table.WRITTEN_BY
        advice = new_table.other_decimals(problem)
        # as whose table it is read makes no rows, and no other kind of file
        useless = re.match(r"this is |the file is empty|the table has \d+ columns but 0", said)
        if owner is None and not useless and new_table.reading_differs(folder, keys):
            like = new_table.clients_like(folder, problem)
            option = "--client" + (f" {' or '.join(like)}" if like else "")
            advice = (
                f"name the client whose tables are written like this one ({option}), or {advice}"
            )
        raise problem.retold(where=problem.where, advice=advice) from problem


def _label_of(
    kind: str, names: Sequence[str], known: Sequence[str], id: str | None, settings: TableSettings
) -> str | None:
    """Return the label column of the run that a table has, None without one or with several."""
    found = [name for name in settings.labels if name in names and name not in (*known, id)]
    return found[0] if kind in NAMED and len(found) == 1 else None


def _scored(
    made: Predictions,
    column: LabelColumn | None,
    settings: TableSettings,
    model: LinearModel | ClientNetwork,
    block: Block,
    scores: Array,
    advice: str = "",
) -> Predictions:
    """Return predictions with the score of those rows that have a label of the model's.

    `advice` is for a column that has none of the model's classes.
    """
    if column is None:
        return made
    names = [canonical(str(one)) for one in getattr(model, "classes_", ())]
    labels = Labels("regression" if not names else "binary", tuple(names), column.name)
    if len(names) > 2:
        labels = replace(labels, task="multiclass")
    stored = (-1.0, 1.0) if len(names) == 2 else tuple(map(float, range(len(names))))
    codes = dict(zip(names, stored, strict=True))
    if len(names) == 2 and settings.positives:
        codes |= {canonical(one): 1.0 for one in settings.positives}
        if names[0] == OTHER:
            codes |= dict.fromkeys(column.found - {*codes}, -1.0)
    if names and not column.found & {*codes}:
        if not column.found:  # a place for labels to come
            return made
        note = (
            f"The rows are not scored: the label column {column.name!r} has "
            f"{listed(ascending(column.found), 3)}, and the model's classes are "
            f"{listed(names, 5)}{advice}."
        )
        return replace(made, notes=(*made.notes, note))
    loss, shape = CROSS_ENTROPY, 0.0
    if isinstance(model, LinearClassifier | LinearRegressor):
        loss, shape = loss_code(model.loss), shape_of(model)
    try:
        y = encode_labels(column, "table", labels, codes)
        evaluated = evaluate_scores(replace(block, y=y), scores, loss, labels, shape=shape, least=1)
    except TableError as odd:
        note = f"The rows are not scored by the column {column.name!r}: {odd}"
        return replace(made, notes=(*made.notes, note))
    made = replace(made, positive=positive_class(labels), classes=labels.classes)
    return made if evaluated is None else replace(made, score=Score(**vars(evaluated)))


def _estimator(
    model: Model,
    table: str,
    names: Sequence[str],
    client: ClientId | None,
    later: Collection[ClientId],
    header: _Header,
) -> tuple[LinearModel | ClientNetwork, ClientId | None, tuple[str, ...]]:
    """Return what predicts the rows of a table with these columns, whose it is, and notes.

    It is nobody's where it is for all; where it was found there is a note. The client is the one
    whose columns the table has, all of them and more of them than it has of any other's; of several
    the one whose table in the run was this one, or is like it.
    """
    if not isinstance(model, Mapping):
        return model, None, ()
    server: ClientNetwork | None = getattr(model, "server", None)
    if client is not None:
        if client == _SERVER and client not in model and server is not None:
            return server, None, ()
        return model[client], client, ()
    if len(model) == 1:
        [(only, network)] = model.items()
        return network, only, ()
    if server is not None and not model:  # a run over sites
        return server, None, ()
    if server is not None and not {*_columns_of(server.features, server.levels_, names)}.difference(
        names
    ):
        note = "The table has the columns of all clients, and the server's network predicts; "
        return server, None, (f"{note}name a client for its own.",)
    columns = {
        name: set(_columns_of([str(own) for own in one.feature_names_in_], one.levels_, names))
        for name, one in model.items()
    }
    lacking = {name: own.difference(names) for name, own in columns.items()}
    whole = [name for name in model if not lacking[name]]
    if not whole:
        nearly = min(model, key=lambda name: len(lacking[name]) / max(1, len(columns[name])))
        raise ExperimentError(
            f"{table} has the columns of no client (nearest is {nearly!r}, and it lacks "
            f"{listed(sorted(lacking[nearly]))}), and each client has a model of its own; name "
            "the client that the table is of (--client)"
            + (f", which may be one that joined later ({listed(later)})." if later else ".")
        )
    most = max(len(columns[name]) for name in whole)
    best = [name for name in whole if len(columns[name]) == most]
    alike = header.trained or header.alike
    if len(best) > 1 and alike is not None and alike in best:
        return model[alike], alike, (_note_guessed(alike, header.alike_by),)
    if len(best) > 1:
        raise ExperimentError(
            f"{table} has the columns of {len(best)} clients ({listed(best)}), and each has a "
            "model of its own; name the client that the table is of (--client)."
        )
    return model[best[0]], best[0], (_note_guessed(best[0], "its columns"),)


def from_scores(
    model: LinearModel | ClientNetwork, scores: Array, ids: Sequence[Any], notes: tuple[str, ...]
) -> Predictions:
    """Return what a model's scores, (outputs, rows), come to: as the model itself would say it."""
    if isinstance(model, LinearRegressor):
        said = mean_of(loss_code(model.loss), scores[0])
        return Predictions(ids, said, None, None, notes)
    single = len(scores) == 1
    best = (scores[0] > 0).astype(np.intp) if single else scores.argmax(axis=0)
    labels = np.asarray(model.classes_[best])
    top = scores.max(axis=0)
    probabilities: Array | None = None
    if isinstance(model, LinearClassifier):
        if model.loss == "logistic":
            each = np.maximum(expit(scores), np.finfo(float).tiny)
            probabilities = expit(top) if single else expit(top) / each.sum(axis=0)
    else:
        probabilities = expit(top)
    return Predictions(ids, top, labels, probabilities, notes)


def _columns_of(features: Sequence[str], recorded: Levels, names: Sequence[str] = ()) -> list[str]:
    """Return the columns that features come from: of `names`, or as the model recorded them."""
    known, levels = known_columns_of(features, names, recorded)
    coded = [RawColumns.of(features, recorded).categories, levels]
    column = {f"{name}={level}": name for one in coded for name in one for level in one[name]}
    column.update({name: name for name in known if name not in levels})
    return list(dict.fromkeys(column.get(name, name) for name in features))


def _means_of(model: LinearModel | ClientNetwork) -> dict[str, float]:
    """Return the features' means over the training samples."""
    own = model.means_ if isinstance(model, LinearClassifier | LinearRegressor) else model.means
    return dict(zip((str(one) for one in model.feature_names_in_), own.tolist(), strict=True))


def _notes(
    means: Mapping[str, float],
    recorded: Levels,
    names: Sequence[str],
    known: Sequence[str],
    levels: dict[str, tuple[str, ...]],
    block: Block,
    id: str | None,
    settings: TableSettings,
) -> tuple[str, ...]:
    notes = []
    coded = {f"{name}={level}": name for name in levels for level in levels[name]}
    covered = {*known, *coded}
    if recorded is not None:  # levels that training lacked are no columns of a table's own
        covered.update(f"{name}={level}" for name in levels for level in recorded[name])
    every = len(_columns_of(list(means), recorded, names))
    for what, some in _by_what_they_count(means, [one for one in means if one not in covered]):
        lacking = _columns_of(some, recorded)
        notes.append(
            f"The table lacks {len(lacking)} of the model's {every} columns; each counts as "
            f"{what.format('its')}: {_list_names(lacking)}."
        )
    count = dict(zip(block.features, block.missing().tolist(), strict=True))
    for what, some in _by_what_they_count(means, [one for one in count if count[one]]):
        counts: Counter[str] = Counter()
        for feature in some:
            column = coded.get(feature, feature)
            counts[column] = max(counts[column], count[feature])
        gaps = [f"{name} ({number})" for name, number in counts.items()]
        notes.append(
            f"Missing values and unknown levels count as {what.format('the')}: {_list_names(gaps)}."
        )
    aside = [
        name
        for name in names
        if name not in known and name != id and name not in (*settings.labels, *settings.splits)
    ]
    if aside:
        notes.append(f"Columns that the model does not know are left aside: {_list_names(aside)}.")
    return tuple(notes)


def _by_what_they_count(
    means: Mapping[str, float], features: Sequence[str]
) -> list[tuple[str, list[str]]]:
    """Return the features whose missing values count as a mean, and those where it is 0."""
    centred = [name for name in features if means[name] != 0]
    others = [name for name in features if means[name] == 0]
    kinds = (("{} mean", centred), ("0, as in training", others))
    return [(what, some) for what, some in kinds if some]


def _counted_as_rest(table: Table, levels: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Return in a sentence which levels without a feature of their own count as `RARE`."""
    found: list[str] = []
    for name, own in table.categorical.items():
        if RARE in levels.get(name, ()):
            others = [at for at, one in enumerate(own.levels) if one not in levels[name]]
            rows = int(np.isin(own.codes, others).sum())
            found += [f"{name} ({rows})"] if rows else []
    if not found:
        return ()
    return (
        f"Levels of which training had few rows or none count as {RARE!r}: {_list_names(found)}.",
    )


def _list_names(names: Sequence[str]) -> str:
    shown = ", ".join(names[:20])
    return f"{shown} and {len(names) - 20} more" if len(names) > 20 else shown
