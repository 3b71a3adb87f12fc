"""What every algorithm passes: the rules of `intarsia.testing`, and more for linear models."""

from __future__ import annotations

import dataclasses
from functools import cache

import numpy as np
import pytest
from scipy.sparse import csr_array

from federations import BINARY, block, initialise, rectangles, table, train
from intarsia.core.algorithm import Algorithm
from intarsia.core.schema import Schema
from intarsia.engines.simulation import Simulation
from intarsia.engines.sums.sealed import SealedTotal
from intarsia.errors import SealedError
from intarsia.testing import rules, trials
from intarsia.testing.toy_federations import CLASSES, ToyFederation
from intarsia.testing.watched_clients import Between
from intarsia.training.registry import ALGORITHMS

# the hyperparameters that lead an algorithm through each of its phases
VARIANTS = {
    "hyfdca": [
        {},
        {"system": "shares"},
        {"system": "encrypted"},
        {"method": "ascent"},
        {"method": "ascent", "step": "fixed", "gamma": 0.3},
    ],
    "fedavg": [{}, {"batch": 4}],
    "cocoa": [{}],
}
CASES = [
    pytest.param(algorithm, {"regularisation": 0.1, **options}, id=f"{name} {options or ''}")
    for name, algorithm in ALGORITHMS.items()
    for options in VARIANTS.get(name, [{}])
]
EVERY = pytest.mark.parametrize(("algorithm", "options"), CASES)
ROUNDS = 4
# text: sparse, with more features than samples
KINDS = ["dense", "sparse", "wide", "text", "classes"]
OF_EVERY_KIND = pytest.mark.parametrize(
    ("algorithm", "options", "kind"),
    [
        pytest.param(
            *one.values,
            kind,
            id=f"{one.id}-{kind}",
            # of systems that are shared or encrypted the dense one stands for all; ascent reads
            # wide tables as narrow ones, and networks read all kinds alike
            marks=[pytest.mark.slow]
            * (
                (kind != "dense" and "system" in one.id)
                or (kind in ("wide", "text") and "ascent" in one.id)
                or (kind in ("wide", "sparse") and one.values[0].name not in VARIANTS)
            ),
        )
        for one in CASES
        for kind in KINDS
    ],
)


def horizontal_only(algorithm: Algorithm) -> bool:
    return algorithm.name == "cocoa"


def federation(algorithm: Algorithm, kind: str):
    """Return small clients that an algorithm can train on: dense or sparse, wide or narrow."""
    columns = 1 if horizontal_only(algorithm) else 2
    x, y = table(60, {"wide": 140, "text": 90}.get(kind, 8))
    labels = BINARY
    if kind == "classes":
        y, labels = np.arange(60) % 3 + 0.0, CLASSES
    if kind in ("sparse", "text"):
        x = csr_array(x * (abs(x) > 0.8))
    shared = 0 if horizontal_only(algorithm) else 3
    more = 0 if columns == 1 else 1
    return rectangles(x, y, 2, columns, shared_rows=shared, shared_columns=more), labels


OVER_SITES = (rules.sites_refuse_nothing, rules.masks_change_rounding_alone)


@cache
def trial(name, options, kind):
    """Return an algorithm with clients of a kind, of whom one is away in rounds 2 and 3."""
    algorithm = ALGORITHMS[name]
    blocks, labels = federation(algorithm, kind)
    made = algorithm.hyperparameters(**dict(options))
    toy = ToyFederation(kind, blocks, labels, ROUNDS, away=(2, 3))
    return trials.Trial(algorithm, made, toy)


def test_every_algorithm_has_its_name():
    assert all(name == algorithm.name for name, algorithm in ALGORITHMS.items())
    assert "hyfdca" in ALGORITHMS


@OF_EVERY_KIND
@pytest.mark.parametrize(
    "rule",
    [
        rules.ends_as_it_should,
        # sites are in test_disclosure.py, the declaration too
        *(one for one in rules.RULES if one not in OVER_SITES),
    ],
    ids=lambda rule: rule.__name__,
)
def test_an_algorithm_keeps(rule, algorithm, options, kind):
    assert [*rule(trial(algorithm.name, tuple(options.items()), kind))] == []


@EVERY
def test_hyperparameters_are_frozen_and_by_keyword_with_defaults(algorithm, options):
    assert [*rules.usable_in_a_run(algorithm, algorithm.hyperparameters())] == []


class Peeking(Between):
    """Clients that read every total before the server has it."""

    def sum(self, fn, messages):
        total = super().sum(fn, messages)
        assert isinstance(total, SealedTotal)
        for field in dataclasses.fields(total.reply_class):
            with pytest.raises(SealedError):
                np.asarray(getattr(total, field.name))
        return total


@EVERY
def test_no_total_can_be_read_without_reveal(algorithm, options):
    trial(algorithm.name, tuple(options.items()), "dense").trained(Peeking)


@pytest.mark.parametrize(
    ("algorithm", "options", "kind"),
    [
        pytest.param(
            *one.values,
            kind,
            id=f"{one.id}-{kind}",
            # of systems that are shared or encrypted the dense one stands for all
            marks=[pytest.mark.slow] * (kind != "dense" and "system" in one.id),
        )
        for one in CASES
        for kind in ("dense", "sparse", "classes")
    ],
)
def test_the_loss_falls(algorithm, options, kind):
    blocks, labels = federation(algorithm, kind)
    made = algorithm.hyperparameters(**options)
    engine = Simulation({"train": (Schema.of(blocks, labels), blocks)}, 0)
    conclusion = train(algorithm, engine, initialise(algorithm, made, engine), 30)
    assert conclusion.info.primal is not None
    assert conclusion.info.primal < len(conclusion.weights)  # the hinge at w = 0 is 1


@EVERY
def test_the_models_objective_is_the_one_that_is_reported(algorithm, options):
    blocks, labels = federation(algorithm, "dense")
    made = algorithm.hyperparameters(**options)
    schema = Schema.of(blocks, labels)
    engine = Simulation({"train": (schema, blocks)}, 0)
    conclusion = train(algorithm, engine, initialise(algorithm, made, engine), ROUNDS)
    x, y = table(60, 8)
    w = np.empty(8)
    w[[int(str(name)[1:]) for name in schema.features.ids]] = conclusion.weights[0]
    loss = np.maximum(0, 1 - y * (x @ w)).mean()
    primal = loss + 0.5 * made.regularisation * w @ w
    assert made.loss == "hinge"
    assert conclusion.info.primal == pytest.approx(primal, rel=1e-10)


@EVERY
def test_a_single_client_can_train(algorithm, options):
    x, y = table(40, 5)
    schema = Schema.of({"only": block(x, y, range(40), range(5))}, BINARY)
    engine = Simulation({"train": (schema, {"only": block(x, y, range(40), range(5))})}, 0)
    server = initialise(algorithm, algorithm.hyperparameters(**options), engine)
    conclusion = train(algorithm, engine, server, ROUNDS)
    assert conclusion.weights.shape == (1, 5)
    assert conclusion.info.primal < 1.0  # that of w = 0
