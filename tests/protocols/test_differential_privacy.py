"""Models that are released with noise: the right weights, the right noise, and no way around it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.sparse import csr_array
from scipy.stats import chi2

from federations import BINARY, block, initialise, rectangles, started, table, train
from intarsia.algorithms.hyfdca.algorithm import HYFDCA
from intarsia.algorithms.hyfdca.state import HyFDCA
from intarsia.algorithms.linear import fedavg
from intarsia.algorithms.linear.cocoa import COCOA, CoCoA
from intarsia.algorithms.linear.fedavg import FEDAVG, FedAvg
from intarsia.core.client_functions import NoiseKey, SecretKey
from intarsia.core.disclosure import Release
from intarsia.core.schema import Schema
from intarsia.engines import codec
from intarsia.engines.release_ledger import ReleaseLedger
from intarsia.engines.simulation import Simulation
from intarsia.errors import ConvergenceError, SealedError
from intarsia.privacy.secure_aggregation import setup as modes
from intarsia.privacy.settings import Privacy

WEIGHT = 0.05
NONE = Release(deviation=0.0, clip=10.0)
SOME = Release(deviation=0.3, clip=10.0)


def partly(number):
    return ("r0c0", "r1c1") if number % 3 else None


def shared(sparse=False):
    x, y = table(40, 6)
    x = csr_array(np.where(abs(x) > 0.4, x, 0.0)) if sparse else x
    return rectangles(x, y, 2, 2, shared_rows=4, shared_columns=1)


def wide():
    x, y = table(24, 60)
    x = csr_array(np.where(abs(x) > 0.8, x, 0.0))
    return rectangles(x, y, 2, 2, shared_rows=3, shared_columns=4)


def horizontal():
    x, y = table(40, 6)
    return {
        "a": block(x, y, range(13), range(6)),
        "b": block(x, y, range(13, 28), range(6)),
        "c": block(x, y, range(28, 40), range(6)),
    }


WAYS = {
    "newton": (HYFDCA, HyFDCA(regularisation=WEIGHT), shared, 30, None),
    "ascent": (HYFDCA, HyFDCA(regularisation=WEIGHT, method="ascent"), shared, 30, None),
    "fixed": (
        HYFDCA,
        HyFDCA(regularisation=WEIGHT, method="ascent", step="fixed"),
        horizontal,
        30,
        None,
    ),
    "proximal": (HYFDCA, HyFDCA(regularisation=WEIGHT), shared, 29, partly),
    "chunks": (HYFDCA, HyFDCA(regularisation=WEIGHT), wide, 1, None),
    "text": (HYFDCA, HyFDCA(regularisation=WEIGHT), wide, 40, None),
    "cocoa": (COCOA, CoCoA(regularisation=WEIGHT), horizontal, 30, None),
}


def concluded(way, release):
    """Return the engine, the revealed weights and the phase at the end of a run."""
    algorithm, options, blocks, rounds, present = WAYS[way]
    algorithm = algorithm if release is None else algorithm.private(release)
    engine, server = started(algorithm, options, blocks())
    there = {} if present is None else {"present": present}
    found = train(algorithm, engine, server, rounds, tolerance=1e-9, **there)
    return engine, found


@pytest.mark.parametrize("way", WAYS)
def test_the_released_model_is_the_trained_one_and_noise_that_every_owner_has(way):
    _, plain = concluded(way, None)
    engine, exact = concluded(way, NONE)
    assert exact.info.phase == plain.info.phase
    assert exact.weights == pytest.approx(plain.weights, abs=1e-12)
    engine, noisy = concluded(way, SOME)
    away = noisy.weights - plain.weights
    assert abs(away).min() > 0
    assert abs(away).max() < 6 * SOME.deviation
    algorithm, schema = WAYS[way][0], engine.schema("train")
    for name, state in engine.get_states().items():
        own = noisy.weights[:, schema.features.own(name)]
        assert (state.w == own).all()
        x = engine.block(name).x
        assert algorithm.model.predict(state, engine.block(name)) == pytest.approx(own @ x.T)


def test_the_ways_above_end_in_every_phase():
    phases = {concluded(way, NONE)[1].info.phase for way in WAYS}
    assert phases == {
        "newton",
        "dual ascent",
        "proximal ascent",
        "chunk ascent",
        "dual newton",
    }


@pytest.mark.parametrize("way", ["newton", "cocoa"])
def test_a_model_with_noise_comes_without_the_certificate_of_the_one_without(way):
    info = concluded(way, SOME)[1].info
    assert (info.primal, info.dual, info.gap_relative, info.loss) == (None,) * 4


@pytest.mark.parametrize("way", ["newton", "proximal", "text", "cocoa"])
def test_a_model_farther_from_the_optimum_than_accounted_for_is_not_released(way):
    with pytest.raises(ConvergenceError, match=r"not released.*experiment\.rounds"):
        concluded(way, replace(SOME, gap=1e-18))


def known_ledger(number):
    """Return a ledger that draws the same in each test."""
    ledger = ReleaseLedger()
    ledger._nonce = b"%16d" % number
    return ledger


def test_a_client_releases_once():
    algorithm, options, blocks, _, _ = WAYS["newton"]
    algorithm = algorithm.private(SOME)
    engine, server = started(algorithm, options, blocks())
    server, _ = algorithm.round(server, engine, engine.key())
    states = engine.get_states()
    engine.begin_round(2)
    first = algorithm.conclude(server, engine, engine.key("conclude"))
    engine.set_states({name: replace(one, alpha=one.alpha * 0.5) for name, one in states.items()})
    with pytest.raises(SealedError, match="after the 1 that epsilon"):
        algorithm.conclude(server, engine, engine.key("conclude"))
    # a run that goes on from a checkpoint has the states before the release
    engine.set_states(states)
    engine.begin_round(2)
    again = algorithm.conclude(server, engine, engine.key("conclude"))
    assert (again.weights == first.weights).all()


def test_noise_of_two_runs_with_one_seed_differs():
    one, other = (concluded("newton", SOME)[1].weights for _ in range(2))
    assert abs(one - other).min() > 0


def test_the_noise_of_released_weights_has_the_deviation():
    algorithm, options, blocks, _, _ = WAYS["newton"]
    algorithm = algorithm.private(SOME)
    engine, server = started(algorithm, options, blocks())
    server, _ = algorithm.round(server, engine, engine.key())
    states, draws = engine.get_states(), []
    for number in range(200):
        engine.set_states(states)
        engine._ledger = known_ledger(number)
        draws.append(algorithm.conclude(server, engine, engine.key("conclude")).weights[0])
    engine._ledger = known_ledger(200)
    quiet = {
        name: replace(point, before=replace(point.before, noise=NONE))
        for name, point in states.items()
    }
    engine.set_states(quiet)
    exact = algorithm.conclude(server, engine, engine.key("conclude")).weights[0]
    noise = (np.array(draws) - exact) / SOME.deviation  # features of one and of two owners
    holders = engine.schema("train").features.holders
    assert set(holders) == {2, 4}
    low, high = chi2.ppf([1e-4, 1 - 1e-4], len(noise)) / len(noise)
    assert ((low < noise.var(axis=0)) & (noise.var(axis=0) < high)).all()
    correlation = np.corrcoef(noise.T) - np.eye(len(holders))
    assert abs(correlation).max() < 4.5 / np.sqrt(len(noise))


# ---- what the server has


class Records:
    def __init__(self):
        self.crossed = []

    def record(self, crossed):
        self.crossed.append(crossed)


def recorded(algorithm, options, blocks, rounds):
    """Train under masks; return all that the server had, and what was revealed of the model."""
    schema = Schema.of(blocks, BINARY)
    settings = Privacy(mode="masked")
    keys = modes.keys(settings, schema.clients, None, "test")
    records = Records()
    sealing = modes.sealing(settings, schema.clients, keys)
    engine = Simulation({"train": (schema, blocks)}, 0, sealing, records)
    server = initialise(algorithm, options, engine)
    return records.crossed, train(algorithm, engine, server, rounds, tolerance=1e-9).weights


def numbers_in(crossed):
    """Return every number that stands in the clear in what the server had."""
    found = [np.zeros(0)]
    for one in crossed:
        for value in one.fields.values():
            if isinstance(value, int | float | np.ndarray) and not isinstance(value, bool):
                found.append(np.ravel(np.asarray(value, np.float64)))
            elif isinstance(value, dict):
                for piece in value.values():
                    raw = piece if isinstance(piece, bytes) else b""
                    for shift in range(8):
                        whole = raw[shift : shift + (len(raw) - shift) // 8 * 8]
                        found.append(np.frombuffer(whole, "<f8"))
    return np.concatenate(found)


@pytest.mark.parametrize("way", ["newton", "ascent", "cocoa"])
def test_the_server_never_has_a_weight_without_noise(way):
    algorithm, options, blocks, rounds, _ = WAYS[way]
    known, exact = recorded(algorithm, options, blocks(), rounds)
    # without noise the model stands in the transcript: what is looked for can be found
    assert np.isclose(numbers_in(known)[:, None], exact[0], rtol=1e-9, atol=0).any(axis=0).all()
    crossed, noisy = recorded(algorithm.private(SOME), options, blocks(), rounds)
    seen = numbers_in(crossed)
    seen = seen[np.isfinite(seen)]
    assert np.isclose(seen[:, None], noisy[0], rtol=1e-12, atol=0).any(axis=0).all()
    assert not np.isclose(seen[:, None], exact[0], rtol=1e-9, atol=0).any()
    # nor the noise, which the difference to the model would give
    assert not np.isclose(seen[:, None], (noisy - exact)[0], rtol=1e-9, atol=0).any()


# ---- averaged updates


def averaging(release):
    algorithm = FEDAVG if release is None else FEDAVG.private(release)
    return algorithm, started(algorithm, FedAvg(local_steps=20), horizontal())


def one_round(algorithm, engine, server):
    engine.begin_round(1)
    server, _ = algorithm.round(server, engine, engine.key())
    engine.begin_round(2)
    return algorithm.conclude(server, engine, engine.key("conclude")).weights[0]


def test_clipping_without_noise_limits_each_clients_change():
    exact = one_round(FEDAVG, *averaging(None)[1])
    algorithm, (engine, server) = averaging(Release(0.0, 1e6))
    assert one_round(algorithm, engine, server) == pytest.approx(exact)
    clip = 1e-3
    algorithm, (engine, server) = averaging(Release(0.0, clip))
    changes = {}
    for name in engine.ids:
        state = engine.get_states()[name]
        message = fedavg.Descend(w=state.w, number=1, present=tuple(engine.ids))
        key = NoiseKey(engine.key(), SecretKey.draw(), 1)
        _, change = fedavg.noisy_descent.call(state, engine.block(name), message, key)
        changes[name] = change.w[0] * 3
    assert [np.linalg.norm(one) for one in changes.values()] == pytest.approx([clip] * 3)
    assert np.linalg.norm(one_round(algorithm, engine, server)) <= clip


@pytest.mark.parametrize("clients", [1, 2, 3])
def test_a_round_has_the_noise_of_all_but_one_client(clients):
    x, y = table(30, 4)
    rows = np.array_split(np.arange(30), clients)
    blocks = {f"c{k}": block(x, y, own, range(4)) for k, own in enumerate(rows)}
    release = Release(0.8, 0.5)
    draws = []
    for number in range(150):
        algorithm = FEDAVG.private(release)
        engine, server = started(algorithm, FedAvg(local_steps=2), blocks)
        engine._ledger = known_ledger(number)
        draws.append(one_round(algorithm, engine, server))
    # any one client can take its own share away: what is left is the deviation asked for, over n
    share = release.deviation**2 / max(clients - 1, 1)
    expected = share * clients / clients**2  # of the mean over the clients
    noise = np.array(draws)
    low, high = chi2.ppf([1e-4, 1 - 1e-4], len(noise)) / len(noise)
    spread = noise.var(axis=0) / expected
    assert ((low < spread) & (spread < high)).all()


def test_no_round_has_noise_beyond_those_accounted_for():
    algorithm, (engine, server) = averaging(Release(0.5, 1.0, releases=2))
    for number in (1, 2):
        engine.begin_round(number)
        server, _ = algorithm.round(server, engine, engine.key())
    engine.begin_round(3)
    with pytest.raises(SealedError, match="after the 2 that epsilon"):
        algorithm.round(server, engine, engine.key())


def test_no_state_holds_a_secret_of_the_noise():
    algorithm, options, blocks, _, _ = WAYS["newton"]
    algorithm = algorithm.private(SOME)
    states = []
    for _ in range(2):
        engine, _ = started(algorithm, options, blocks())
        states.append([codec.encode(one) for one in engine.get_states().values()])
    assert states[0] == states[1]


def test_what_sends_without_noise_cannot_be_called_in_a_private_run():
    for algorithm in (FEDAVG, COCOA, HYFDCA):
        private = algorithm.private(SOME).disclosure
        noisy = [one.function for one in private.sends if one.function.releases]
        assert len(noisy) == 1
        assert not any(fn.releases for fn in algorithm.disclosure.functions)
    assert fedavg.local_descent not in FEDAVG.private(SOME).disclosure.functions
    for algorithm in (COCOA, HYFDCA):  # the server reads no weights but those with noise
        sends = algorithm.private(SOME).disclosure.sends
        named = {one.function.name for one in sends if {"w", "u"}.intersection(one.reveals)}
        assert named == {"add_noise"}
    called = {fn.name for fn in HYFDCA.private(SOME).disclosure.functions}
    assert called.isdisjoint({"share_weights", "report_weights"})
