"""Who knows scores of test samples, and what a run tells of them, tells their labels.

A client without labels that has some columns of a test sample opens its score, as all owners do.
The loss has full precision: of a few samples one set of labels comes to it. And ranges of a curve
may have one class only. Either needs what the server has, so that a client alone does not: what
docs/explanations/privacy.md says of clients and server together. These tests show how far it goes.
"""

from __future__ import annotations

import itertools

import numpy as np

from federations import BINARY, block, table
from intarsia.core.schema import Schema
from intarsia.engines.simulation import Simulation
from intarsia.maths.linear import losses
from intarsia.protocols import evaluation
from intarsia.protocols.evaluation import LEAST_ROWS

X, Y = table(80, 4)
WEIGHTS = np.linalg.lstsq(X, Y, rcond=None)[0]


def evaluated(rows, labelled):
    """Return the grades, and the scores that client "guest", without labels, opens."""
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
    return every, own, ids, X[ids] @ WEIGHTS


def test_the_loss_of_a_few_samples_and_their_scores_tell_each_label():
    _, own, ids, z = evaluated(range(12), [range(12), range(12, 80)])
    found = [
        signs
        for signs in itertools.product((-1.0, 1.0), repeat=12)
        if abs(np.logaddexp(0, -np.array(signs) * z).mean() - own["a"].loss) < 1e-12
    ]
    np.testing.assert_array_equal(found, [Y[ids]])


def test_ranges_of_a_curve_with_one_class_and_the_scores_tell_labels():
    every, _, ids, z = evaluated(range(80), [range(40), range(40, 80)])
    below, told = np.argsort(-z), 0
    for true, false in every.figures.curves[0]:
        assert true + false >= LEAST_ROWS
        some, below = below[: round(true + false)], below[round(true + false) :]
        if true == 0 or false == 0:
            np.testing.assert_array_equal(Y[ids[some]], 1.0 if true else -1.0)
            told += len(some)
    assert told > 20
