"""Who knows scores of samples, and what a run tells of them, tells their labels.

The loss has full precision: of a few samples one set of labels comes to it. And ranges of a curve
may have one class only. So a client that has some columns of a sample, and not its label, opens no
score of it. The attack is seen to succeed where all owners of a sample open its score.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from departures import Departing, with_total
from federations import BINARY, block, table
from intarsia.core.schema import Schema, ScoreCell
from intarsia.engines import codec
from intarsia.engines.simulation import Simulation
from intarsia.engines.sums.plain import Geometry
from intarsia.maths.linear import losses
from intarsia.protocols import evaluation
from intarsia.protocols.evaluation_rows import LEAST_ROWS
from intarsia.training.registry import ALGORITHMS

X, Y = table(80, 4)
WEIGHTS = np.linalg.lstsq(X, Y, rcond=None)[0]


@pytest.fixture(params=["holders of the label", "all owners"])
def works(request, monkeypatch):
    """Let holders of a label open its score, or all owners; return whether the attack works."""
    if request.param == "all owners":
        monkeypatch.setattr(Geometry, "hidden", lambda *given: None)
    return request.param == "all owners"


def evaluated(rows, labelled):
    """Return the metrics, and the scores that client "guest", who lacks labels, opens."""
    blocks = {name: block(X, Y, own, [2, 3]) for name, own in zip("ab", labelled, strict=False)} | {
        "guest": block(X, Y, rows, [0, 1], labels=False)
    }
    schema = Schema.of(blocks, BINARY)
    engine = Simulation({"train": (schema, blocks)}, 0)
    engine.make_states(lambda name: None)
    places, opened, add = schema.samples.own("guest"), [], engine.sum

    def listening(function, messages):
        opened.append(add(function, messages))
        return opened[-1]

    engine.sum = listening

    def predict(_, one):
        return WEIGHTS[[int(name[1:]) for name in one.features]][None] @ one.x.T

    every, own = evaluation.evaluate(
        engine, schema, predict, losses.LOGISTIC, part="train", with_figures=True
    )
    ids = schema.samples.ids[places].astype(int)
    z = engine._totals.own("guest", opened[0].z, ["a", "b"][: len(labelled)])[0]
    return every, own, ids, z[0]


def test_the_loss_of_a_few_samples_and_their_scores_tell_each_label(works):
    _, own, ids, z = evaluated(range(12), [range(12), range(12, 80)])
    found = [
        signs
        for signs in itertools.product((-1.0, 1.0), repeat=12)
        if abs(np.logaddexp(0, -np.array(signs) * z).mean() - own["a"].loss) < 1e-12
    ]
    assert np.array_equal(found, [Y[ids]]) == works


def test_ranges_of_a_curve_with_one_class_and_the_scores_tell_labels(works):
    every, _, ids, z = evaluated(range(80), [range(40), range(40, 80)])
    assert z.any() == works
    below, told = np.argsort(-z), 0
    for true, false in every.figures.curves[0]:
        assert true + false >= LEAST_ROWS
        some, below = below[: round(true + false)], below[round(true + false) :]
        if true == 0 or false == 0:
            told += len(some) if (Y[ids[some]] == (1.0 if true else -1.0)).all() else 0
    assert (told > 20) == works


@pytest.mark.parametrize("guarded", [True, False])
def test_a_site_opens_no_score_of_a_training_row_whose_label_it_has_not(monkeypatch, guarded):
    fedavg = ALGORITHMS["fedavg"]
    blocks = {
        "bank": block(X, Y, range(80), [0, 1]),
        "guest": block(X, Y, range(80), [2, 3], labels=False),
    }
    options = fedavg.hyperparameters(loss="logistic")
    made = Departing(fedavg, options, "guest", blocks=blocks)
    fedavg.certify(made.rounds(1), made.made.engine, None)
    call = made.of("fedavg.part_of_objective")[-1]
    message = made.message(call)
    assert not any(message.z.value.cells)
    theirs = made.message(made.of("fedavg.part_of_objective", "bank")[-1]).z.value.cells
    if not guarded:
        monkeypatch.setattr(ScoreCell, "reader", lambda self, there=None: "guest")
        made.made.restart("guest")
    found = made.ask(call, body=codec.encode(with_total(message, "z", cells=theirs)))
    assert found.error == ("RefusedError" if guarded else ""), found.sentence
