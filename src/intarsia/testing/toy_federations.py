"""Small federations to check an algorithm on: a pooled table dealt to clients, and rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, issparse

from intarsia.core.algorithm import Algorithm, FinalResult
from intarsia.core.block import Array, Block, ClientId, Labels, Values
from intarsia.core.client_functions import Clients, SecretKey
from intarsia.core.schema import Schema
from intarsia.engines.simulation import Simulation

BINARY = Labels("binary", ("no", "yes"))
CLASSES = Labels("multiclass", ("a", "b", "c"))
NUMBERS = Labels("regression")


@dataclass(frozen=True, eq=False)
class ToyFederation:
    """A few clients with small tables, and how long they train."""

    name: str  # as findings call it
    blocks: Mapping[ClientId, Block]  # standardised, as after the set-up of a run
    labels: Labels
    rounds: int = 6  # at most
    away: tuple[int, ...] = ()  # rounds without the first client


def small_federations() -> tuple[ToyFederation, ...]:
    """Return what an algorithm is checked on unless other clients are given.

    Clients share rows and columns or have rows of their own, dense or sparse, with two classes,
    three, or numbers to predict. They are of different sizes. An algorithm may refuse some of these
    in a sentence.
    """
    numbers: Array = np.random.default_rng(1).standard_normal(_ROWS)
    return (
        ToyFederation("shared rows and columns, two classes", overlapping(), BINARY),
        ToyFederation("shared rows and columns, three classes", overlapping(THREE), CLASSES),
        ToyFederation("shared rows and columns, numbers", overlapping(numbers), NUMBERS),
        ToyFederation("sparse rows of many columns", overlapping(wide=True), BINARY),
        ToyFederation("a client away in rounds 2 and 3", overlapping(), BINARY, away=(2, 3)),
        ToyFederation("rows of their own, two classes", rows_apart("binary"), BINARY),
        ToyFederation("rows of their own, three classes", rows_apart("classes"), CLASSES),
        ToyFederation("rows of their own, numbers", rows_apart("numbers"), NUMBERS),
    )


_ROWS = 61  # an odd number, so that clients are of different sizes; so are those of columns
THREE: Array = np.arange(float(_ROWS)) % 3


def overlapping(y: Array | None = None, *, wide: bool = False) -> dict[ClientId, Block]:
    """Return four clients that share some rows and columns with their neighbours."""
    x, signs = table(_ROWS, 91 if wide else 9)
    values = csr_array(x * (abs(x) > 0.8)) if wide else x
    y = signs if y is None else y
    return rectangles(values, y, 2, 2, shared_rows=3, shared_columns=1)


def rows_apart(kind: str) -> dict[ClientId, Block]:
    """Return clients with rows of their own: "binary", "classes", or "numbers", in one block."""
    rng, made = np.random.default_rng(0), {}
    centres = 3 * rng.normal(size=(3, 4))
    for number, rows in enumerate((30, 27, 33, 24)):
        classes = np.arange(rows) % 3
        x = centres[classes] + rng.normal(size=(rows, 4))
        y: Array = classes.astype(float)
        if kind == "numbers":
            y = x[:, 0] + rng.standard_normal(rows)
        elif kind == "binary":
            y = np.where(classes > 0, 1.0, -1.0)
        held = tuple(f"f{place}" for place in range(4))
        made[f"c{number}"] = Block(100 * number + np.arange(rows), held, x, y, {"f": held})
    return made


def with_other_values(federation: ToyFederation) -> dict[ClientId, Block]:
    """Return clients with the same rows, columns and places of labels, and other values."""
    last = len(federation.labels.classes) - 1 if federation.labels.task == "multiclass" else 0
    return {
        name: replace(one, x=one.x * 0.9, y=None if one.y is None else last - one.y)
        for name, one in federation.blocks.items()
    }


def names(columns: Iterable[int]) -> tuple[str, ...]:
    """Return the names of a pooled table's columns."""
    return tuple(f"f{column:04d}" for column in columns)


def table(samples: int = 60, features: int = 6, seed: int = 0) -> tuple[Array, Array]:
    """Return a table, (samples, features), and labels of ±1 that a linear function nearly tells."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(samples, features))
    y = np.sign(x @ rng.normal(size=features) + 0.5 * rng.normal(size=samples))
    return x, np.where(y == 0, 1.0, y)


def block(x: Values, y: Array, rows: Any, columns: Any, *, labels: bool = True) -> Block:
    """Return the client that holds the given rows and columns of a pooled table."""
    rows, columns = np.asarray(rows, np.int64), np.asarray(columns, np.int64)
    if issparse(x):
        own: Any = csr_array(x[rows][:, columns])
    else:
        own = np.ascontiguousarray(x[np.ix_(rows, columns)])
    return Block(rows, names(columns), own, y[rows] if labels else None)


def rectangles(
    x: Values,
    y: Array,
    rows: int,
    columns: int,
    *,
    shared_rows: int = 0,
    shared_columns: int = 0,
    labels: str = "all",
) -> dict[ClientId, Block]:
    """Return rows × columns clients; each also holds the first rows (columns) of its neighbour."""
    row_runs = np.array_split(np.arange(x.shape[0]), rows)
    column_runs = np.array_split(np.arange(x.shape[1]), columns)
    made = {}
    for r in range(rows):
        own_rows = np.union1d(row_runs[r], row_runs[(r + 1) % rows][:shared_rows])
        for c in range(columns):
            own_columns = np.union1d(
                column_runs[c], column_runs[(c + 1) % columns][:shared_columns]
            )
            labelled = labels == "all" or c == 0
            made[f"r{r}c{c}"] = block(x, y, own_rows, own_columns, labels=labelled)
    return made


def secret_of(client: str) -> SecretKey:
    """Return what a client would draw from the system, but the same in each test."""
    return SecretKey(client.encode().ljust(SecretKey.SIZE, b"."))


def secrets_of(clients: Iterable[ClientId]) -> dict[ClientId, SecretKey]:
    """Return a secret for each client, for runs that are to come to the same bits."""
    return {name: secret_of(name) for name in clients}


def initialise(
    algorithm: Algorithm, options: Any, engine: Simulation, clients: Clients | None = None
) -> Any:
    """Return the server's state after the set-up; `clients` stands in for the engine."""
    schema = engine.schema("train")
    if algorithm.model.additive:
        engine.count_once()
    engine.set_states(
        {
            name: algorithm.init_client(
                options, schema, name, engine.block(name), engine.client_key(name)
            )
            for name in schema.clients
        }
    )
    engine.expect(algorithm)
    server = algorithm.begin(options, schema, engine.key("init"))
    return algorithm.prepare(server, clients or engine, engine.key("init"))


def train(
    algorithm: Algorithm,
    engine: Simulation,
    server: Any,
    rounds: int,
    *,
    tolerance: float = 0.0,
    present: Callable[[int], Sequence[str] | None] = lambda number: None,
    first: int = 1,
) -> FinalResult:
    """Run rounds until the gap is within the tolerance; return the conclusion with all clients."""
    number = first - 1
    for number in range(first, first + rounds):
        engine.begin_round(number, present(number))
        server, info = algorithm.round(server, engine, engine.key())
        complete = present(number) is None
        if info.finished or (complete and (info.gap_relative or np.inf) <= tolerance):
            break
    engine.begin_round(number + 1)
    return algorithm.conclude(server, engine, engine.key("conclude"))


def by_name(schema: Schema, weights: NDArray[Any]) -> Mapping[str, NDArray[Any]]:
    """Return each feature's weights, (outputs,), by its name."""
    return {str(name): weights[:, at] for at, name in enumerate(schema.features.ids)}
