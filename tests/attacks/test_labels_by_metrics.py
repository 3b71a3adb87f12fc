"""A server that asks for the metrics of rows that it chooses, one at a time: it had all labels.

The loss and the number of correct rows of one row are its label. The server chose by a weight of
each row, and on the training rows too.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import sites
from federations import BINARY, block, table
from intarsia.core.schema import Schema
from intarsia.engines.simulation import Simulation
from intarsia.errors import StaleError, TableError
from intarsia.maths.linear import losses
from intarsia.privacy.secure_aggregation import setup as modes
from intarsia.privacy.settings import Privacy
from intarsia.protocols import evaluation, evaluation_rows
from intarsia.training.registry import ALGORITHMS
from intarsia.training.setup import declare_exchanges

FEDAVG = ALGORITHMS["fedavg"]
OPTIONS = FEDAVG.hyperparameters(loss="logistic", regularisation=0.1)
X, Y = table(40, 4)
KEYS = modes.keys(Privacy(mode="masked"), ("a",), None, "test")


def parts(few):
    """Return train and test rows of two clients, of which the second has few for a test."""
    held = {"a": (range(15), range(15, 25)), "b": (range(25, 35), range(35, 35 + few))}
    return [{n: block(X, Y, rows[k], range(4)) for n, rows in held.items()} for k in (0, 1)]


def federation(few=5):
    train, test = parts(few)
    made = sites.federation(
        *(FEDAVG, OPTIONS, train, BINARY),
        tested=test,
        sealing=lambda: modes.sealing(Privacy(mode="masked"), ["a", "b"], KEYS),
        more=lambda schemas: declare_exchanges(FEDAVG, OPTIONS, schemas)[
            len(FEDAVG.disclosure.sends) :
        ],
    )
    sites.begun(made, FEDAVG, OPTIONS)
    return made


def evaluated(made, part):
    schema = made.engine.schema(part)
    return evaluation.evaluate(
        made.engine, schema, FEDAVG.model.predict, losses.LOGISTIC, part=part
    )


def test_no_training_rows_are_evaluated_where_there_are_others():
    made = federation()
    every, own = evaluated(made, "test")
    assert every.samples == 15
    assert own.keys() == {"a", "b"}
    with pytest.raises(StaleError):
        evaluated(made, "train")


def test_without_a_test_part_training_rows_are_evaluated():
    train, _ = parts(5)
    schema = Schema.of(train, BINARY)
    found = declare_exchanges(FEDAVG, OPTIONS, {"train": schema})
    assert "send_metrics" in {one.function.name for one in found}


def test_a_message_says_nothing_of_rows():
    """Which rows count, and by what weight, a client tells from the schema."""
    assert [one.name for one in dataclasses.fields(evaluation.Totals)] == ["z"]
    assert not dataclasses.fields(evaluation.Ask)


@pytest.mark.parametrize("few", [1, evaluation_rows.LEAST_ROWS - 1])
def test_a_client_with_few_labelled_rows_is_not_asked_and_does_not_answer(few, monkeypatch):
    made = federation(few)
    every, own = evaluated(made, "test")
    assert own.keys() == {"a"}
    assert every.samples == 10
    for module in (evaluation, evaluation_rows):
        monkeypatch.setattr(module, "enough", lambda evaluated: bool(evaluated.any()))
    with pytest.raises(AssertionError):  # the sites are in this process: nobody refuses any more
        assert evaluated(made, "test")[1].keys() == {"a"}


def test_a_site_refuses_metrics_over_few_rows_that_the_server_asks_for(monkeypatch):
    made = federation(3)
    # the server asks all, the sites hold what they did
    monkeypatch.setattr(evaluation, "evaluated_clients", lambda schema, *_: ["a", "b"])
    with pytest.raises(TableError, match="At client 'b'"):
        evaluated(made, "test")


@pytest.mark.parametrize("loss", [losses.LOGISTIC, losses.HINGE, evaluation.CROSS_ENTROPY])
def test_metrics_of_classes_hold_no_sum_of_labels(loss):
    """With how many rows there are, the sum of y tells how many are of each class."""
    _, test = parts(5)
    schema = Schema.of(test, BINARY)
    sends = evaluation.sends(
        *(lambda state, one: np.zeros((1, one.shape[0])), loss, schema), part="test", additive=True
    )
    metric = next(one.function for one in sends if one.function.name == "send_metrics")
    _, found = metric.call(
        None, schema.align("a", test["a"]), evaluation.Totals(np.ones((1, 10))), None
    )
    for name in ("label", "square", "error"):
        assert not np.any(getattr(found, name)), name


def test_weights_of_shared_labels_are_as_they_were():
    """Each label counts once over all clients, whoever computes by how much."""
    blocks = {"a": block(X, Y, range(20), [0, 1]), "b": block(X, Y, range(10, 40), [2, 3])}
    schema = Schema.of(blocks, BINARY)
    engine = Simulation({"train": (schema, blocks)}, 0)
    engine.make_states(lambda name: name)

    def predict(state, one):
        return np.ones((1, one.shape[0])) if state == "a" else np.zeros((1, one.shape[0]))

    every, _ = evaluation.evaluate(engine, schema, predict, losses.LOGISTIC, part="train")
    z = np.where(np.arange(40) < 20, 1.0, 0.0)
    assert every.loss == pytest.approx(np.logaddexp(0, -Y * z).mean(), rel=1e-12)
    assert every.samples == 40
