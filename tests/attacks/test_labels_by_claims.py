"""A client that makes up labels of rows that it shares, to read those of another client.

A label that two clients hold counts half in the metrics of each. Labels of training rows were
compared, those of test rows were not: a client that claimed labels of six test rows in one job, and
of five in the next, changed what the other's sixth row counts for. The sums that the server reads
of the other differed by half of that row's loss. Who claims a label opens the row's score, too, and
with both it had the label. They also made the metrics those of labels that nobody has.
"""

from __future__ import annotations

import numpy as np
import pytest

from federations import BINARY, block, secrets_of, table
from intarsia.core.schema import Schema
from intarsia.engines.simulation import Simulation
from intarsia.errors import FederationError
from intarsia.maths.linear import losses
from intarsia.protocols import evaluation, preprocessing
from intarsia.protocols.preprocessing import agreement

X, Y = table(60, 4)
WEIGHTS = np.array([[0.5, -1.0, 1.0, 0.0]])
SCORES = (WEIGHTS @ X.T)[0]
TRAIN, TEST = range(30), range(30, 60)
GUESSED = 36  # the row whose label the other client is after


def job(claims, part="test"):
    """Return what the server reads of the bank in a job; `claims` are the shop's labels of rows."""
    parts = {}
    for name, rows in ("train", TRAIN), ("test", TEST):
        y = np.full(60, np.nan)
        for row, label in claims.items() if name == part else ():
            y[row] = label
        blocks = {
            "bank": block(X, Y, rows, range(3)),
            "shop": block(X, y, rows, [3]),
        }
        parts[name] = Schema.of(blocks, BINARY), blocks
    schemas = {name: schema for name, (schema, _) in parts.items()}
    engine = Simulation(parts, 0, secrets=secrets_of(parts["train"][1]))
    engine.set_states(
        {name: preprocessing.initial(name, engine.block(name)) for name in engine.ids}
    )
    preprocessing.prepare(engine, schemas, standardise=False)
    read, ask = {}, engine.ask

    def listening(function, messages):
        found = ask(function, messages)
        read.update(found)
        return found

    def scored(state, own):
        return WEIGHTS[:, [int(name[1:]) for name in own.features]] @ own.x.T

    engine.ask = listening
    given = engine, schemas["test"], scored, losses.LOGISTIC
    evaluation.evaluate(*given, part="test")
    return read["bank"]


@pytest.mark.parametrize("works", [False, True])
def test_made_up_labels_of_test_rows_are_refused_by_name(works, monkeypatch):
    claims = {row: -Y[row] for row in range(31, GUESSED + 1)}
    if not works:
        with pytest.raises(FederationError, match="'bank' and 'shop' have different labels of one"):
            job(claims)
        return
    check = agreement.check_agreement
    monkeypatch.setattr(
        agreement,
        "check_agreement",
        lambda clients, schema, part="train": part != "train" or check(clients, schema, part),
    )
    more, less = job(claims), job({row: one for row, one in claims.items() if row != GUESSED})
    told = 2 * (less.loss - more.loss)[1]
    guesses = [losses.value(losses.LOGISTIC, SCORES[[GUESSED]], np.array([y]))[0] for y in (-1, 1)]
    assert told == pytest.approx(guesses[int(Y[GUESSED] > 0)], abs=1e-9)
    assert abs(guesses[0] - guesses[1]) > 0.1


@pytest.mark.parametrize("part", ["train", "test"])
def test_who_knows_the_other_labels_of_rows_tells_by_a_job_whether_a_guess_is_right(part):
    """Open: docs/explanations/privacy/site-refusals.md says so. The wrong guess is named."""
    first = 0 if part == "train" else 31
    claims = {row: Y[row] for row in range(first, first + 6)}
    job(claims, part)
    with pytest.raises(FederationError, match=r"'bank' and 'shop' .* the 6 "):
        job({**claims, first + 5: -Y[first + 5]}, part)
