"""Clients that label the same samples but for one: the server had that one's label and loss.

It reads sums over each client's rows. One client's less another's, or all rows of a client less
those with shared labels counted once, are sums over the rows in which they differ.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from federations import BINARY, block, table
from intarsia.core.block import Labels
from intarsia.core.schema import Schema
from intarsia.engines.simulation import Simulation
from intarsia.errors import TableError
from intarsia.maths.linear import losses
from intarsia.protocols import evaluation, evaluation_rows
from intarsia.protocols.evaluation_rows import LEAST_ROWS, rows_that_count

X, Y = table(60, 4)
NUMBERS = X @ np.array([1.0, -2.0, 3.0, 0.5])
WEIGHTS = np.array([[0.5, -1.0, 1.0, 0.0]])
LOSSES = np.logaddexp(0, -Y * (WEIGHTS @ X.T)[0])  # of each sample
PAIRS = {
    "one more": {"a": range(20), "b": range(21)},
    "one shared": {"a": range(20), "b": range(19, 39)},
    "one of its own": {"a": range(21), "b": range(1, 30)},
    "by way of a third": {"a": range(10), "b": range(10, 20), "c": range(21)},
}
FACTORS = np.array(list(itertools.product((-2, -1, 0, 1, 2), repeat=6)))


def federation(held, labels=BINARY):
    y = NUMBERS if labels.task == "regression" else Y
    blocks = {name: block(X, y, rows, range(4)) for name, rows in held.items()}
    return Schema.of(blocks, labels), blocks


def read_of(held, labels=BINARY, loss=losses.LOGISTIC):
    """Return the sums that an honest server reads of each client."""
    schema, blocks = federation(held, labels)
    engine = Simulation({"train": (schema, blocks)}, 0)
    engine.make_states(lambda name: None)
    read, ask = {}, engine.ask

    def listening(function, messages):
        found = ask(function, messages)
        read.update(found)
        return found

    engine.ask = listening
    evaluation.evaluate(engine, schema, lambda _, one: WEIGHTS @ one.x.T, loss, part="train")
    return list(read.values())


def tells_one(read, name, each):
    """Return whether sums of two or three clients, added and subtracted, are of one sample."""
    for some in itertools.combinations(read, min(len(read), 3)):
        factors = FACTORS[np.any(FACTORS[:, : 2 * len(some)], axis=1)][:, : 2 * len(some)]
        counts, sums = (
            factors @ np.concatenate([getattr(one, field) for one in some])
            for field in ("count", name)
        )
        found = sums[np.abs(counts - 1) < 1e-9]
        if np.abs(found[:, None] - each).min(initial=np.inf) < 1e-9:
            return True
    return False


@pytest.mark.parametrize("held", PAIRS.values(), ids=PAIRS)
def test_no_sums_of_clients_tell_a_label_or_a_loss(held, monkeypatch):
    numbers = Labels("regression")
    assert not tells_one(read_of(held, numbers, losses.SQUARED), "label", NUMBERS)
    assert not tells_one(read_of(held), "loss", LOSSES)
    monkeypatch.setattr(
        evaluation_rows, "rows_that_count", lambda schema, *_: schema.label_holders > 0
    )
    assert tells_one(read_of(held, numbers, losses.SQUARED), "label", NUMBERS)
    assert tells_one(read_of(held), "loss", LOSSES)


def spans(rows):
    return np.linalg.matrix_rank(rows, tol=1e-9) if rows.size else 0


def smallest(schema, counted, whole):
    """Return of how few samples a sum is that clients' sums combine to, by ranks."""
    label = {name: schema.labelled_at(name) for name in schema.clients}
    sums = []
    for part in [counted] if whole is None else [counted, counted & whole]:
        for name in schema.clients:
            own = np.zeros(len(counted))
            own[schema.samples.own(name)[label[name]]] = 1
            own *= part
            if own.sum() >= LEAST_ROWS:
                sums += [own, own / np.maximum(schema.label_holders, 1)]
    sums = np.array(sums).reshape(-1, len(counted))
    kinds, place = np.unique(sums, axis=1, return_inverse=True)
    counts = np.bincount(place)
    some = np.flatnonzero(np.any(kinds, axis=0))
    every, found = spans(kinds), [LEAST_ROWS]
    for size in range(1, LEAST_ROWS):
        for told in itertools.combinations(some, size):
            if counts[list(told)].sum() < LEAST_ROWS and spans(np.delete(kinds, told, 1)) < every:
                found.append(counts[list(told)].sum())
    return min(found)


def drawn(seed):
    """Return a schema of up to four clients that share a few samples, and which are whole."""
    rng = np.random.default_rng(seed)
    names = "abcd"[: rng.integers(2, 5)]
    sets = [one for k in range(1, 5) for one in itertools.combinations(names, k)]
    held, at = {name: [] for name in names}, 0
    for owners in sets:
        count = int(rng.choice([0, 1, 2, 3, 6, 9]))
        for name in owners:
            held[name] += range(at, at + count)
        at += count
    held = {name: rows for name, rows in held.items() if rows}
    x, y = table(at + 1, 1, seed)
    schema = Schema.of({n: block(x, y, rows, [0]) for n, rows in held.items()}, BINARY)
    return schema, None if seed % 2 else rng.random(len(schema.samples)) < 0.8


@pytest.mark.parametrize("seed", range(12))
def test_whatever_clients_share_sums_are_of_enough_samples(seed):
    schema, whole = drawn(seed)
    counted = rows_that_count(schema, LEAST_ROWS, whole)
    assert smallest(schema, counted, whole) == LEAST_ROWS
    labelled = schema.label_holders > 0
    if smallest(schema, labelled, whole) == LEAST_ROWS:
        np.testing.assert_array_equal(counted, labelled)


@pytest.mark.parametrize("seed", range(12))
def test_where_too_many_sums_would_be_combined_no_fewer_rows_are_left_out(seed, monkeypatch):
    schema, whole = drawn(seed)
    exact = rows_that_count(schema, LEAST_ROWS, whole)
    monkeypatch.setattr(evaluation_rows, "_MOST_KINDS", 0)
    counted = rows_that_count(schema, LEAST_ROWS, whole)
    assert smallest(schema, counted, whole) == LEAST_ROWS
    assert not np.any(counted & ~exact)


def test_a_site_leaves_out_the_rows_whatever_it_is_asked():
    """Which rows count it tells from its own schema."""
    schema, blocks = federation({"a": range(20), "b": range(21)})
    sends = evaluation.sends(lambda *_: None, losses.LOGISTIC, schema, part="train", additive=True)
    metric = next(one.function for one in sends if one.function.name == "send_metrics")
    message = evaluation.Totals(WEIGHTS @ X[:21].T)
    found = metric.call(None, schema.align("b", blocks["b"]), message, None)[1]
    np.testing.assert_array_equal(found.count, [20, 10])
    few, own = federation({"a": range(20), "b": range(16, 22)})
    refused = evaluation.sends(lambda *_: None, losses.LOGISTIC, few, part="train", additive=True)
    metric = next(one.function for one in refused if one.function.name == "send_metrics")
    with pytest.raises(TableError, match=r"Metrics over [0-4] of 6 rows"):
        metric.call(None, few.align("b", own["b"]), evaluation.Totals(WEIGHTS @ X[16:22].T), None)
