from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from scipy.sparse import csr_array
from scipy.special import expit, log_softmax, logit
from sklearn.metrics import accuracy_score, f1_score, log_loss, r2_score

from federations import BINARY, block, rectangles, table
from intarsia.core.block import Block, Labels
from intarsia.core.schema import Schema
from intarsia.engines.simulation import Simulation
from intarsia.maths.linear import losses
from intarsia.protocols.evaluation import CROSS_ENTROPY, evaluate, evaluate_scores, evaluation_loss

THREE = Labels("multiclass", ("a", "b", "c"))


def predict(state, one):
    """Return the scores of the client's part of the model in its state."""
    return state.w @ (one.x.T.toarray() if one.sparse else one.x.T)


def evaluated(blocks, w, labels=BINARY, loss=losses.LOGISTIC, part="train"):
    """Return the metrics of pooled weights, (outputs, columns), over all and by client."""
    schema = Schema.of(blocks, labels)
    engine = Simulation({"train": (schema, blocks), "test": (schema, blocks)}, 0)
    engine.set_states(
        {
            name: SimpleNamespace(w=w[:, [int(f[1:]) for f in engine.block(name).features]])
            for name in engine.ids
        }
    )
    return evaluate(engine, schema, predict, loss, part=part)


@pytest.mark.parametrize("part", ["train", "test"])
@pytest.mark.parametrize("layout", [np.ascontiguousarray, csr_array])
def test_the_metrics_of_a_federation_are_those_of_the_pooled_table(layout, part):
    x, y = table(40, 6)
    w = np.random.default_rng(1).normal(size=(1, 6))
    blocks = rectangles(layout(x), y, 2, 2, shared_rows=6, shared_columns=1)
    every, own = evaluated(blocks, w, part=part)
    z = w[0] @ x.T
    assert every.loss == pytest.approx(np.logaddexp(0, -y * z).mean(), rel=1e-12)
    assert every.accuracy == accuracy_score(y, np.where(z > 0, 1.0, -1.0))
    assert every.r2 is None
    for name, one in blocks.items():
        rows = one.samples
        assert own[name].loss == pytest.approx(np.logaddexp(0, -y * z)[rows].mean(), rel=1e-12)
        assert own[name].accuracy == np.mean(np.where(z > 0, 1.0, -1.0)[rows] == y[rows])


def test_classes_are_told_by_their_largest_score():
    x, _ = table(40, 6)
    y = np.arange(40) % 3 + 0.0
    w = np.random.default_rng(1).normal(size=(3, 6))
    every, _ = evaluated(rectangles(x, y, 2, 2, shared_rows=6), w, THREE, losses.HINGE)
    z = w @ x.T
    signs = np.where(np.arange(3)[:, None] == y, 1.0, -1.0)
    assert every.accuracy == np.mean(z.argmax(axis=0) == y)
    assert every.loss == pytest.approx(np.maximum(0, 1 - signs * z).sum(axis=0).mean(), rel=1e-12)


def test_numbers_are_evaluated_by_their_explained_variance():
    x, _ = table(40, 6)
    y = x @ np.arange(6.0) + np.random.default_rng(0).normal(size=40)
    w = np.arange(6.0)[None, :] * 0.9
    blocks = rectangles(x, y, 2, 2, shared_rows=6)
    every, own = evaluated(blocks, w, Labels("regression"), losses.SQUARED)
    z = w[0] @ x.T
    assert every.r2 == pytest.approx(r2_score(y, z), rel=1e-12)
    assert every.accuracy is None
    assert every.loss == pytest.approx(0.5 * np.mean((z - y) ** 2), rel=1e-12)
    rows = blocks["r1c0"].samples
    assert own["r1c0"].r2 == pytest.approx(r2_score(y[rows], z[rows]), rel=1e-12)


def test_only_samples_with_a_label_count_and_shared_labels_once():
    x, y = table(20, 4)
    some = np.where(np.arange(20) < 15, y, np.nan)
    blocks = {
        "a": block(x, some, range(20), [0, 1]),
        "b": block(x, y, range(5), [2]),
        "c": block(x, y, range(20), [3], labels=False),
    }
    blocks["a"] = Block(blocks["a"].samples, blocks["a"].features, blocks["a"].x, some)
    w = np.ones((1, 4))
    every, own = evaluated(blocks, w)
    held = x.copy()
    held[5:, 2] = 0.0  # nobody has it
    z = held.sum(axis=1)
    assert every.loss == pytest.approx(np.logaddexp(0, -y * z)[:15].mean(), rel=1e-12)
    assert set(own) == {"a", "b"}
    assert own["b"].loss == pytest.approx(np.logaddexp(0, -y * z)[:5].mean(), rel=1e-12)


def test_without_a_label_there_are_no_metrics():
    x, y = table(10, 2)
    assert evaluated({"a": block(x, y, range(10), [0, 1], labels=False)}, np.ones((1, 2))) == (
        None,
        {},
    )
    unlabelled = block(x, np.full(10, np.nan), range(10), [0])
    assert evaluate_scores(unlabelled, np.zeros((1, 10)), losses.HINGE, BINARY) is None


def test_given_scores_are_evaluated_on_the_labelled_samples():
    one = Block(np.arange(4), ("f",), np.zeros((4, 1)), np.array([1.0, -1.0, np.nan, 1.0]))
    found = evaluate_scores(one, np.array([[2.0, 1.0, 9.0, -0.5]]), losses.HINGE, BINARY)
    assert found.accuracy == pytest.approx(1 / 3)
    assert found.loss == pytest.approx((0 + 2 + 1.5) / 3)


def test_a_constant_target_has_no_explained_variance():
    one = Block(np.arange(2), ("f",), np.zeros((2, 1)), np.ones(2))
    found = evaluate_scores(one, np.zeros((1, 2)), losses.SQUARED, Labels("regression"))
    assert found.r2 is None
    assert found.loss == 0.5


@pytest.mark.parametrize("labels", [BINARY, THREE], ids=["binary", "three"])
def test_the_cross_entropy_is_that_of_the_class_alone(labels):
    rng = np.random.default_rng(0)
    classes = len(labels.classes)
    y = rng.integers(0, classes, 20)
    scores = rng.normal(size=(20, classes))
    chances = np.exp(log_softmax(scores, axis=1))
    z = logit(chances).T if classes > 2 else logit(chances[:, 1])[None, :]
    stored = y + 0.0 if classes > 2 else 2.0 * y - 1
    one = Block(np.arange(20), ("f",), np.zeros((20, 1)), stored)
    found = evaluate_scores(one, z, evaluation_loss("cross_entropy"), labels)
    assert found.loss == pytest.approx(log_loss(y, chances), rel=1e-12)
    # one against the rest adds the other classes' share
    every = evaluate_scores(one, z, losses.LOGISTIC, labels)
    rest = np.where(y == np.arange(classes)[:, None], 0.0, -np.log1p(-expit(logit(chances).T)))
    extra = rest.sum(0).mean() if classes > 2 else 0.0
    assert every.loss == pytest.approx(found.loss + extra, rel=1e-9)


@pytest.mark.parametrize("classes", [2, 3, 5])
@pytest.mark.parametrize("loss", [losses.LOGISTIC, CROSS_ENTROPY])
def test_macro_f1_is_over_the_classes_that_are_there_or_are_said(classes, loss):
    x, y = table(40, 6)
    labels = BINARY
    if classes > 2:  # some of which are nowhere
        labels = Labels("multiclass", tuple("abcdefg"))
        y = np.random.default_rng(2).integers(0, classes, 40) * 1.0
    w = np.random.default_rng(1).normal(size=(labels.outputs, 6))
    blocks = rectangles(x, y, 2, 2, shared_rows=6)
    every, own = evaluated(blocks, w, labels, loss)
    z = w @ x.T
    said = z.argmax(axis=0) * 1.0 if classes > 2 else np.where(z[0] > 0, 1.0, -1.0)
    for name, one in blocks.items():
        truth = f1_score(y[one.samples], said[one.samples], average="macro")
        assert own[name].macro_f1 == pytest.approx(truth, rel=1e-12)
    if loss == CROSS_ENTROPY:  # networks; shared samples count once
        assert every.macro_f1 == pytest.approx(f1_score(y, said, average="macro"), rel=1e-12)
    else:
        assert every.macro_f1 is None


def test_macro_f1_of_a_single_client_needs_no_counts():
    x, y = table(40, 6)
    w = np.random.default_rng(1).normal(size=(1, 6))
    every, own = evaluated({"a": block(x, y, range(40), range(6))}, w)
    assert every.macro_f1 == own["a"].macro_f1 > 0
    x, y = x[:10], x[:10, 0]
    blocks = {"a": block(x, y, range(10), range(6))}
    assert evaluated(blocks, w, Labels("regression"), losses.SQUARED)[0].macro_f1 is None
