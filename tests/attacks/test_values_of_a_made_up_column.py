"""A client that makes up a column, of zeros and of another client's name for one, to read that one.

Copies of a value that several clients hold are compared before training. The owners used to open
random projections of each row's shared values. Two owners know each other's by subtraction, the
directions are public, and of a single column 36 bits of each value remained: a client that called a
column of zeros "salary" had the salaries of all rows that it shared, 300 of 300, in every mode. So
had an honest one wherever copies differed. Owners now learn nothing of values; the server learns in
how many rows they differ, by numbers that it cannot read.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from federations import BINARY, block, secrets_of
from intarsia.core.schema import Schema
from intarsia.engines import client_host, codec
from intarsia.engines.simulation import Simulation
from intarsia.errors import SiteError
from intarsia.privacy.secure_aggregation import setup as modes
from intarsia.privacy.settings import Privacy
from intarsia.protocols import preprocessing

ROWS = 200
M = 2**31 - 1


def federation(values, made_up, owners=2):
    """Return clients that share rows: the first has the values, the others what they made up."""
    rng = np.random.default_rng(0)
    x = np.column_stack([values, rng.normal(size=ROWS)])
    y = np.sign(rng.normal(size=ROWS))
    found = {"bank": block(x, y, range(ROWS), [0, 1])}
    for number in range(1, owners):
        other = np.column_stack([made_up, x[:, 1]])
        found[f"evil{number}"] = block(other, y, range(ROWS), [0], labels=False)
    return found


def compared(blocks, monkeypatch, mode="masked", secret="one"):
    """Compare the copies; return what clients opened, the numbers that they sent, and the notes."""
    opened, sent = [], {}
    replies = client_host.Host.replies

    def watched(self, fn, messages, *given):
        found = list(replies(self, fn, messages, *given))
        for client, answer in zip(messages, found, strict=True):
            opened.append((client, fn.name, codec.encode(messages[client])))
            if fn.name == "compare_copies":
                sent[client] = answer.numbers
        return found

    monkeypatch.setattr(client_host.Host, "replies", watched)
    schema = Schema.of(blocks, BINARY)
    sealing = None
    if mode != "plain":
        settings = Privacy(mode=mode)
        keys = modes.keys(settings, schema.clients, None, "made up")
        sealing = modes.sealing(settings, schema.clients, keys)
    secrets = {name: key.fold_in(secret) for name, key in secrets_of(blocks).items()}
    engine = Simulation({"train": (schema, blocks)}, 0, sealing, secrets=secrets)
    states = {name: preprocessing.initial(name, engine.block(name)) for name in engine.ids}
    engine.set_states(states)
    notes = preprocessing.prepare(engine, {"train": schema}, standardise=False)
    return opened, sent, notes


def salaries(seed):
    return np.random.default_rng(seed).integers(10_000, 200_000, ROWS).astype(float)


@pytest.mark.parametrize("owners", [2, 3])
@pytest.mark.parametrize("mode", ["plain", "masked"])
def test_what_owners_open_is_the_same_whatever_the_others_values_are(mode, owners, monkeypatch):
    zeros, seen = np.zeros(ROWS), []
    for seed in (1, 2):
        opened, _, notes = compared(federation(salaries(seed), zeros, owners), monkeypatch, mode)
        monkeypatch.undo()
        assert notes[0].startswith(f"{ROWS} train samples have different copies")
        seen.append(opened)
    assert len(seen[0]) >= 3 * owners
    assert seen[0] == seen[1]


@pytest.mark.parametrize("value", [0.0, 7e4])
def test_the_server_cannot_tell_values_from_what_owners_send(value, monkeypatch):
    """Each owner's numbers lie evenly over all that they can be, of rows with one value too."""
    values = np.full(ROWS, value)
    _, sent, _ = compared(federation(values, values), monkeypatch)
    for numbers in sent.values():
        assert len(np.unique(numbers)) == 2 * ROWS
        share = np.sort(numbers.ravel()) / M
        apart = abs(share - (np.arange(2 * ROWS) + 0.5) / (2 * ROWS)).max()
        assert apart < 1.95 / np.sqrt(2 * ROWS)  # Kolmogorov, one in a thousand
    total = sum(numbers.astype(np.uint64) for numbers in sent.values())
    assert not (total % M).any()


@pytest.mark.parametrize("owners", [2, 3, 5])
def test_what_differs_adds_up_to_numbers_that_say_nothing_of_it(owners, monkeypatch):
    """The differences of 100 rows are one and the same; what the server adds up lies evenly."""
    values = salaries(1)
    other = values.copy()
    other[:100] *= 2
    _, sent, notes = compared(federation(values, other, owners), monkeypatch)
    assert notes[0].startswith("100 train samples have different copies")
    total = sum(numbers.astype(np.uint64) for numbers in sent.values()) % M
    differs = (total > 0).all(axis=0)
    assert differs.sum() == 100
    assert not differs[:100].all()  # nor which rows they are
    share = np.sort(total[:, differs].ravel()) / M
    assert abs(share - (np.arange(200) + 0.5) / 200).max() < 1.95 / np.sqrt(200)


def test_other_words_hide_by_other_numbers(monkeypatch):
    blocks, found = federation(salaries(1), salaries(1)), []
    for secret in ("one", "other"):
        found.append(compared(blocks, monkeypatch, secret=secret)[1])
        monkeypatch.undo()
    for name, numbers in found[0].items():
        assert not np.isin(numbers, found[1][name]).any()


def test_a_client_that_compares_other_rows_is_named(monkeypatch):
    replies = client_host.Host.replies

    def cut(self, fn, messages, *given):
        found = list(replies(self, fn, messages, *given))
        if fn.name == "compare_copies":
            found[-1] = replace(found[-1], numbers=found[-1].numbers[:, 1:])
        return found

    monkeypatch.setattr(client_host.Host, "replies", cut)
    with pytest.raises(SiteError, match="'evil1' compares copies of 200 samples"):
        compared(federation(salaries(1), salaries(1)), monkeypatch)
