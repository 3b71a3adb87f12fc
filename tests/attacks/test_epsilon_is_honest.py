"""Epsilon and delta hold for what an attacker sees, faults and rounds begun again among it.

Many small runs are made on one federation and on its neighbour, which differs in one unit as much
as the clip allows. The attacker is a client: it knows the rest, takes its own part away, and sees
each release that it can provoke. From half of the runs it learns the likelihood ratio of the two,
as that of normal distributions, and the best threshold. The other half tells how often it accuses
the neighbour rightly and wrongly: of (ε, δ) the first is at most e^ε times the second plus δ. The
bounds of Clopper and Pearson make that exact: a mechanism that keeps its promise fails one of these
tests in fewer than one of 10^6 times.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import math
from functools import partial

import numpy as np
import pytest
from scipy.stats import beta, binomtest

from federations import BINARY, block, started, train
from intarsia import core as fl
from intarsia.algorithms.hyfdca import algorithm as hyfdca
from intarsia.algorithms.hyfdca.algorithm import HYFDCA, HyFDCA
from intarsia.algorithms.linear.fedavg import FEDAVG, FedAvg
from intarsia.core.schema import Schema
from intarsia.engines.release_ledger import ReleaseLedger
from intarsia.errors import SealedError
from intarsia.experiment import config
from intarsia.privacy.accounting import minimiser_sensitivity, noise_multiplier
from intarsia.protocols import certified_release, differential_privacy
from intarsia.protocols.certified_release import Propose, ShareOut
from intarsia.training import privacy_guarantee

pytest.importorskip("dp_accounting", reason="dp-accounting is not installed")

# large, so that few runs tell noise of half the deviation from what was promised
EPSILON, DELTA = 0.5, 0.2
ROUNDS = 3
CLIP = 1e-3
SURE = 1e-6  # chance that a bound is off
ATTACKER, TARGET = "c0", "c1"
QUICK, MANY = 700, 5000  # runs on each of the two federations, in each half


@pytest.fixture(params=["as it is", "halved", pytest.param("repeated", marks=pytest.mark.slow)])
def honest(request, monkeypatch):
    """Let the noise be what it is, or not; return whether the promise is to hold."""
    if request.param == "halved":
        draw = differential_privacy.draw_noise

        def halved(release, key, shape):
            return 0.5 * draw(release, key, shape)

        for place in (differential_privacy, *_users()):
            monkeypatch.setattr(place, "draw_noise", halved)
    if request.param == "repeated":
        monkeypatch.setattr(ReleaseLedger, "key", _repeated)
    return request.param == "as it is"


def _users():
    """Return the modules that have drawn in the function by its name."""
    from intarsia.algorithms.linear import fedavg

    yield fedavg
    try:
        from intarsia.algorithms.networks import parameter_sharing
    except ImportError:
        return
    yield parameter_sharing


def _repeated(ledger, client, secret, public, parts):
    """Return a key whose noise and count go back with the client's state."""
    return fl.NoiseKey(public, secret.fold_in(ledger._nonce.hex(), client, public.words[1]), 1)


def ledgers():
    """Yield a ledger for each run; the noise of a test is the same whenever it runs."""
    for number in itertools.count():
        found = ReleaseLedger()
        found._nonce = b"%16d" % number
        yield found


# ---- the test of the promise


def largest_excess(one, other, epsilon):
    """Return how far the attacker is above (ε, 0) at least: δ must not be below.

    Parameters
    ----------
    one, other
        (2, runs, numbers) what it sees in each run on the two federations, in two halves.
    """
    (one, one_tried), (other, other_tried) = one, other
    spread = np.cov(np.concatenate([one - one.mean(0), other - other.mean(0)]).T)
    spread = np.atleast_2d(spread)
    # normal numbers at several scales leave nothing of the noise: its spread is 0 in a direction
    spread += 1e-9 * np.trace(spread) / len(spread) * np.eye(len(spread))
    ratio = np.linalg.solve(spread, one.mean(0) - other.mean(0))
    right, wrong = np.sort(one @ ratio), np.sort(other @ ratio)
    thresholds = np.quantile(np.concatenate([right, wrong]), np.linspace(0.01, 0.99, 99))
    above = [
        np.mean(right > limit) - math.exp(epsilon) * np.mean(wrong > limit) for limit in thresholds
    ]
    limit = thresholds[int(np.argmax(above))]
    least = clopper_pearson(int((one_tried @ ratio > limit).sum()), len(one_tried))[0]
    most = clopper_pearson(int((other_tried @ ratio > limit).sum()), len(other_tried))[1]
    return least - math.exp(epsilon) * most


def clopper_pearson(found, trials):
    """Return bounds of a probability, each of which is off once in 2 · 10^6 times at most."""
    low = beta.ppf(SURE / 2, found, trials - found + 1) if found else 0.0
    high = beta.ppf(1 - SURE / 2, found + 1, trials - found) if found < trials else 1.0
    return low, high


def check(honest, one, other):
    excess = largest_excess(one, other, EPSILON)
    assert excess <= DELTA if honest else excess > DELTA


def test_the_attacker_comes_near_what_a_gaussian_mechanism_allows():
    rng = np.random.default_rng(0)
    noise = noise_multiplier(EPSILON, DELTA)
    one, other = (mean + noise * rng.normal(size=(2, 200_000, 1)) for mean in (0.5, -0.5))
    assert 0.6 * DELTA < largest_excess(one, other, EPSILON) <= DELTA
    one, other = (mean + 0.9 * noise * rng.normal(size=(2, 200_000, 1)) for mean in (0.5, -0.5))
    assert largest_excess(one, other, EPSILON) > DELTA


def test_the_bounds_are_those_of_clopper_and_pearson():
    for found, trials in ((0, 50), (3, 50), (50, 50), (400, 1000)):
        exact = binomtest(found, trials).proportion_ci(1 - SURE, "exact")
        assert clopper_pearson(found, trials) == pytest.approx((exact.low, exact.high), abs=1e-9)


# ---- what an attacker sees of averaged updates


def release_of(algorithm, options, schema):
    """Return the noise that a run of so many rounds has, as the accountant says."""
    tree = {
        "experiment": {"rounds": ROUNDS},
        "algorithm": {"name": algorithm.name},
        "preprocessing": {"standardise": False},
        "privacy": {"epsilon": EPSILON, "delta": DELTA, "clip": CLIP},
        "dataset": {"name": "heart"},
    }
    return privacy_guarantee.guarantee(config.from_dict(tree), algorithm, options, schema)[0]


class Attempts:
    """Rounds that begin again in several ways, and what the attacker has of them."""

    def __init__(self, algorithm, engine, server, field):
        self._algorithm, self._engine, self._server = algorithm, engine, server
        self._field, self._ledgers = field, ledgers()
        self._states = engine.get_states()
        everyone = tuple(engine.ids)
        less = tuple(name for name in everyone if name != ATTACKER)
        # (round, who is there, whether the round before is taken back)
        self._ways = [
            *((1, everyone, False), (1, less, True), (1, less, True)),
            *((2, everyone, False), (2, less, True)),  # the last is one too many
        ]

    def seen(self, own):
        """Return the sum of the others' updates in each total that was opened, less `own` parts.

        The target's table is along the first of the numbers that all share.
        """
        engine, found = self._engine, []
        engine._ledger = next(self._ledgers)
        engine.set_states(self._states)
        server = after = self._server
        before = self._states
        for round, there, again in self._ways:
            if again:
                engine.set_states(before)
            else:
                server, before = after, engine.get_states()
            own.clear()
            engine.begin_round(round, there)
            try:
                after, _ = self._algorithm.round(server, engine, engine.key())
            except SealedError:
                found.append(0.0)  # the clients have released what they may
                continue
            total = getattr(after, self._field).content - getattr(server, self._field).content
            total = np.ravel(total * len(there))[0]
            found.append(float(total - sum(own)))
        return found


def watched(algorithm, field, own):
    """Return the private algorithm; the attacker notes what it sends itself."""
    (noisy,) = [fn for fn in algorithm.disclosure.functions if fn.releases]
    divided = algorithm.name == "fedavg"

    def call(state, block, message, key):
        after, reply = noisy.call(state, block, message, key)
        if key.public.words[3] == ATTACKER:
            factor = len(message.present) if divided else 1
            own.append(float(np.ravel(getattr(reply, field))[0]) * factor)
        return after, reply

    seen = dataclasses.replace(noisy, call=call, together=None)
    whole = inspect.unwrap(algorithm.round)
    keywords = {name: seen for name, one in whole.keywords.items() if one is noisy}
    return dataclasses.replace(algorithm, round=partial(whole.func, **keywords))


def averaged(algorithm, options, blocks, labels, field, runs, stub=lambda: None):
    """Return what an attacker sees in (2, runs) runs; `stub` is called before the first."""
    release = release_of(algorithm, options, Schema.of(blocks, labels))
    assert release.releases == ROUNDS
    own = []
    private = watched(algorithm.private(release), field, own)
    stub()
    engine, server = started(private, options, blocks, labels)
    attempts = Attempts(private, engine, server, field)
    seen = np.array([attempts.seen(own) for _ in range(2 * runs)])
    return seen.reshape(2, runs, -1)


def of_fedavg(label):
    """Return clients of which the target has one row; its label turns its update around."""
    x, y = np.array([[4.0], [4.0], [4.0]]), np.array([1.0, label, -1.0])
    blocks = {f"c{k}": block(x, y, [k], [0]) for k in range(3)}
    options = FedAvg(local_steps=1, regularisation=1e-6)
    return FEDAVG, options, blocks, BINARY, "w"


def of_flic(label):
    """Return clients whose training is not done: by how much they move says the label."""
    from intarsia.algorithms.flic import algorithm as flic
    from tests.algorithms.flic.test_flic import DOUBLE, FLIC_SMALL, LABELS, clients

    made = dict(list(clients().items())[:3])
    options = flic.Flic(**{**FLIC_SMALL, "pretraining_epochs": 0}, **DOUBLE)
    moves = dict(zip(made, (1.0, label, -1.0), strict=True))

    def together(visits):
        found = []
        for client, _, message, rng in visits:
            moved = np.zeros(len(message.shared))
            moved[0] = 2 * CLIP * moves[rng.words[3]]
            found.append((client, flic.Change(moved)))
        return found

    stub = dataclasses.replace(flic.local_training, together=together)
    return flic.FLIC, options, made, LABELS, "shared", stub


def seen_of(name, label, runs, monkeypatch):
    if name == "fedavg":
        return averaged(*of_fedavg(label), runs)
    pytest.importorskip("torch")
    from intarsia.algorithms.flic import algorithm as flic

    *given, stub = of_flic(label)
    with monkeypatch.context() as patch:
        return averaged(*given, runs, lambda: patch.setattr(flic, "local_training", stub))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavg", "flic"])
def test_epsilon_of_a_client_is_honest(name, honest, monkeypatch):
    one, other = (seen_of(name, label, QUICK, monkeypatch) for label in (1.0, -1.0))
    check(honest, one, other)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavg", "flic"])
def test_epsilon_of_a_client_is_honest_in_many_runs(name, honest, monkeypatch):
    one, other = (seen_of(name, label, MANY, monkeypatch) for label in (1.0, -1.0))
    check(honest, one, other)


# ---- what an attacker sees of a model that is released once


def measured(engine):
    """Return the states of clients that found the gap of their model, and its total."""
    before = engine.get_states()
    gap = certified_release.find_gap(engine, Propose(), hyfdca.propose)
    found = engine.get_states()
    engine.set_states(before)
    return found, gap


def models(label, runs):
    """Return the released models of (2, runs) runs; a second one is asked for, at other weights.

    Regularisation is so strong that every sample is inside its margin: a model is the mean of the
    labels, and a label moves it by as much as any sample can.
    """
    samples, clip, weight = 5, 1.0, 4.0
    x, y = np.full((samples, 1), clip), np.ones(samples)
    y[0] = label
    blocks = {ATTACKER: block(x, y, [3, 4], [0]), TARGET: block(x, y, [0, 1, 2], [0])}
    options = HyFDCA(regularisation=weight)
    tree = {
        "experiment": {"tolerance": 1e-12},
        "algorithm": {"name": "hyfdca", "regularisation": weight},
        "preprocessing": {"standardise": False},
        "privacy": {"epsilon": EPSILON, "delta": DELTA, "clip": clip},
        "dataset": {"name": "heart"},
    }
    description, schema = config.from_dict(tree), Schema.of(blocks, BINARY)
    release, _ = privacy_guarantee.guarantee(description, HYFDCA, options, schema)
    release = dataclasses.replace(release, gap=math.inf)  # else no other weights are released
    bound = minimiser_sensitivity(1.0, clip=clip, regularisation=weight, samples=samples)
    private = HYFDCA.private(release)
    engine, server = started(private, options, blocks)
    start = measured(engine)
    found = train(HYFDCA, engine, server, 20, tolerance=1e-12).weights
    assert abs(found - clip * y.mean() / weight) < 1e-3 * bound
    trained = measured(engine)

    def released(known):
        states, gap = known
        engine.set_states(states)
        engine.begin_round(1)
        try:
            asked = dict.fromkeys(engine.ids, ShareOut(gap))
            total = engine.sum(certified_release.add_noise, asked)
        except SealedError:
            return 0.0  # the clients have released what they may
        return float(total.w.content[0, 0])

    seen, fresh = [], ledgers()
    for _ in range(2 * runs):
        engine._ledger = next(fresh)
        seen.append([released(trained), released(trained), released(start)])
    return np.array(seen).reshape(2, runs, -1)


def test_epsilon_of_a_sample_is_honest(honest):
    one, other = (models(label, QUICK) for label in (1.0, -1.0))
    check(honest, one, other)


@pytest.mark.slow
def test_epsilon_of_a_sample_is_honest_in_many_runs(honest):
    one, other = (models(label, MANY) for label in (1.0, -1.0))
    check(honest, one, other)
