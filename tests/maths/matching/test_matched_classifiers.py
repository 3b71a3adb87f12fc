"""Averages of matched weights against least squares, and what clients download."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from intarsia.errors import ExperimentError, FederationError
from intarsia.maths.matching.matched_classifiers import (
    Classifier,
    Matching,
    aggregate,
    project,
    same_order,
)


def classifier(rng, inputs, hidden, outputs):
    widths = (len(inputs), *hidden, len(outputs))
    return Classifier(
        tuple(rng.normal(size=(b, a)) for a, b in itertools.pairwise(widths)),
        tuple(rng.normal(size=b) for b in widths[1:]),
        np.asarray(inputs),
        np.asarray(outputs, bool),
    )


def flat(one):
    return np.concatenate([values.ravel() for values in (*one.weights, *one.biases)])


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 2))
def test_the_servers_weights_are_the_least_squares_solution(seed, layers):
    """Π_m as a matrix, from projecting the server's weights' own numbers."""
    rng = np.random.default_rng(seed)
    inputs, classes, widths = 4, 3, (5, 4)[:layers]
    clients, places = [], []
    for _ in range(3):
        hidden = [int(rng.integers(1, width + 1)) for width in widths]
        held = rng.permutation(inputs)[: rng.integers(1, inputs + 1)]
        clients.append(classifier(rng, held, hidden, rng.random(classes) < 0.7))
        places.append(tuple(rng.permutation(w)[:h] for w, h in zip(widths, hidden, strict=True)))
    shares = rng.uniform(0.5, 2.0, size=3)
    matching = Matching(tuple(places), widths)
    previous = classifier(rng, range(inputs), widths, [True] * classes)

    server = aggregate(clients, matching, shares, inputs=inputs, otherwise=previous)

    size = len(flat(previous))
    count = itertools.count()
    numbered = Classifier(
        tuple(np.array([next(count) for _ in w.flat]).reshape(w.shape) for w in previous.weights),
        tuple(np.array([next(count) for _ in b]) for b in previous.biases),
        previous.inputs,
        previous.outputs,
    )
    rows, targets = [], []
    for one, place, share in zip(clients, places, shares, strict=True):
        counted = np.ones(len(flat(one)), bool)
        counts = Classifier(
            tuple(np.ones(w.shape, bool) for w in one.weights),
            tuple(np.ones(b.shape, bool) for b in one.biases),
            one.inputs,
            one.outputs,
        )
        counts.weights[-1][~one.outputs] = False
        counts.biases[-1][~one.outputs] = False
        counted = flat(counts).astype(bool)
        chosen = flat(project(numbered, place, one.inputs)).astype(int)[counted]
        rows.append(np.sqrt(share) * np.eye(size)[chosen])
        targets.append(np.sqrt(share) * (flat(one)[counted] - flat(previous)[chosen]))
    step = np.linalg.lstsq(np.vstack(rows), np.concatenate(targets), rcond=None)[0]
    # the solution nearest to the previous server: what nobody has stays
    assert np.allclose(flat(server), flat(previous) + step, rtol=0, atol=1e-9)


def test_with_one_block_and_one_order_it_is_the_weighted_mean():
    rng = np.random.default_rng(0)
    clients = [classifier(rng, range(3), (4,), [True] * 2) for _ in range(3)]

    server = aggregate(clients, same_order(clients), (1, 2, 5), inputs=3)

    expected = (flat(clients[0]) + 2 * flat(clients[1]) + 5 * flat(clients[2])) / 8
    assert np.allclose(flat(server), expected, rtol=0, atol=1e-15)


def test_columns_that_a_client_lacks_are_not_diluted():
    rng = np.random.default_rng(0)
    first, second = (classifier(rng, held, (2,), [True]) for held in ([0, 1], [1, 2]))

    server = aggregate([first, second], same_order([first, second]), inputs=3)

    assert np.array_equal(server.weights[0][:, 0], first.weights[0][:, 0])
    assert np.array_equal(server.weights[0][:, 2], second.weights[0][:, 1])
    middle = (first.weights[0][:, 1] + second.weights[0][:, 0]) / 2
    assert np.allclose(server.weights[0][:, 1], middle, rtol=0, atol=1e-16)


def test_rows_of_classes_that_nobody_saw_come_from_elsewhere():
    rng = np.random.default_rng(0)
    clients = [classifier(rng, [0], (2,), [True, False]) for _ in range(2)]
    before = classifier(rng, [0], (2,), [True, True])

    kept = aggregate(clients, same_order(clients), inputs=1, otherwise=before)
    plain = aggregate(clients, same_order(clients), inputs=1)

    assert np.array_equal(kept.weights[1][1], before.weights[1][1])
    assert kept.biases[1][1] == before.biases[1][1]
    assert not plain.weights[1][1].any()
    assert not plain.biases[1][1]
    assert plain.outputs.tolist() == [True, False]


def test_a_client_downloads_its_part_of_the_server():
    rng = np.random.default_rng(0)
    server = classifier(rng, range(4), (5, 3), [True] * 2)
    neurons, inputs = (np.array([4, 0]), np.array([2, 1])), np.array([3, 0])

    part = project(server, neurons, inputs)
    back = aggregate([part], Matching((neurons,), (5, 3)), inputs=4, otherwise=server)

    assert part.weights[0].tolist() == server.weights[0][[4, 0]][:, [3, 0]].tolist()
    assert part.weights[1].tolist() == server.weights[1][[2, 1]][:, [4, 0]].tolist()
    assert part.biases[1].tolist() == server.biases[1][[2, 1]].tolist()
    assert np.array_equal(flat(back), flat(server))


def test_single_precision_stays_so():
    rng = np.random.default_rng(0)
    one = classifier(rng, [0], (2,), [True])
    single = Classifier(
        tuple(w.astype(np.float32) for w in one.weights),
        tuple(b.astype(np.float32) for b in one.biases),
        one.inputs,
        one.outputs,
    )

    server = aggregate([single], same_order([single]), inputs=1)

    assert {values.dtype for values in (*server.weights, *server.biases)} == {np.dtype("float32")}
    assert np.array_equal(flat(server), flat(single))


def test_classifiers_that_do_not_fit_are_refused():
    rng = np.random.default_rng(0)
    one = classifier(rng, [0, 1], (3,), [True] * 2)
    deeper = classifier(rng, [0, 1], (3, 2), [True] * 2)
    wrong = Classifier(one.weights, one.biases, np.arange(3), one.outputs)
    lost = Classifier(
        (one.weights[0] * np.nan, one.weights[1]), one.biases, *[one.inputs, one.outputs]
    )

    with pytest.raises(FederationError, match="has 3 layers"):
        same_order([one, deeper])
    with pytest.raises(FederationError, match="weights of shapes"):
        same_order([wrong])
    with pytest.raises(FederationError, match="not finite"):
        same_order([lost])
    with pytest.raises(FederationError, match="no classifier"):
        same_order([])
    with pytest.raises(FederationError, match="of the same widths"):
        aggregate([one], same_order([one]), inputs=2, otherwise=deeper)
    with pytest.raises(ExperimentError, match="one for each client"):
        aggregate([one], same_order([one]), [1, 2], inputs=2)
