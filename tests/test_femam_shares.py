"""FeMAM's level of shares: a bias by the classes that a client mostly has."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from scipy.stats import chi2_contingency

pytest.importorskip("torch")

from intarsia.algorithms import femam_client
from intarsia.algorithms.femam import FEMAM
from intarsia.algorithms.femam_options import FeMAM
from intarsia.algorithms.femam_shares import (
    WEIGHTS,
    best_weight,
    counted,
    losses_by_weight,
    offsets,
    spread,
)
from intarsia.algorithms.network_structure import levels_of
from intarsia.data import Block, Labels, Schema
from intarsia.engines import codec
from intarsia.engines.in_process import RECORDS, InProcess
from intarsia.errors import SealedError

LABELS = Labels("multiclass", ("a", "b", "c"))
OPTIONS = FeMAM(
    levels=("global", "shares"), first_rounds=12, level_rounds=2, window=0, validation=0.3,
    rate=0.1, hidden=6, latent=4, precision="double", engine="loop",
)  # fmt: skip
SHARES = ((0.9, 0.05, 0.05), (0.05, 0.9, 0.05), (0.05, 0.05, 0.9), (0.45, 0.45, 0.1))


def clients(shares=SHARES, samples=60, seed=0):
    """Return clients that differ by their shares of three classes, which overlap."""
    rng = np.random.default_rng(seed)
    made = {}
    for number, own in enumerate(shares):
        y = rng.choice(3, samples, p=own)
        x = np.eye(3)[y] + rng.normal(size=(samples, 3))
        made[f"c{number}"] = Block(1000 * number + np.arange(samples), ("a", "b", "c"), x, y + 0.0)
    return made


def started(options, blocks):
    schema = Schema.of(blocks, LABELS)
    engine = InProcess({"train": (schema, blocks)}, 0)
    engine.make_states(
        lambda name: FEMAM.init_client(
            options, schema, name, engine.block(name), engine.client_key(name)
        )
    )
    server = FEMAM.init_server(options, schema, engine.key("init"))
    return engine, FEMAM.setup(server, engine, engine.key("init"))


def run(options, blocks, present=lambda number: None, cut=0):
    """Return the engine after all rounds, the server's state and the conclusion."""
    engine, server = started(options, blocks)
    for number in range(1, 100):
        engine.begin_round(number, present(number))
        server, info = FEMAM.round(server, engine, engine.key())
        if number == cut:
            written = codec.encode((engine.books.seal(server), engine.get_states()))
            sealed, states = codec.decode(written, *FEMAM.states, *RECORDS)
            engine, _ = started(options, blocks)
            engine.set_states(states)
            server = engine.books.unseal(sealed)
        if info.finished:
            break
    engine.begin_round(number + 1)
    return engine, server, FEMAM.conclude(server, engine, engine.key())


def posterior(x, prior):
    """Return the logarithm of p(y | x), up to a constant of the row, of `clients`."""
    return x + np.log(prior)  # -½|x - e_k|² = x_k + a constant of the row


def drawn(shares, samples, seed):
    rng = np.random.default_rng(seed)
    y = rng.choice(3, samples, p=shares)
    return np.eye(3)[y] + rng.normal(size=(samples, 3)), y


# ---- the numbers


def test_a_client_counts_its_rows_of_each_class():
    y = np.array([0, 2, 2, 0, 2]) + 0.0
    assert counted(y, 3).tolist() == [2, 0, 3, 4 / 5, 0, 9 / 5, 1]
    assert not counted(y[:0], 3).any()


@pytest.mark.parametrize("correlation", [0.75, 0.3, 0.05])
def test_the_correlation_of_drawn_shares_is_found(correlation):
    rng = np.random.default_rng(1)
    p = np.array([0.5, 0.3, 0.2])
    total = np.zeros(7)
    for own in rng.dirichlet((1 / correlation - 1) * p, 4000):
        total += counted(rng.choice(3, rng.integers(1, 60), p=own) + 0.0, 3)
    shares, found = spread(total)
    np.testing.assert_allclose(shares, p, atol=0.02)
    assert found == pytest.approx(correlation, rel=0.05)


def test_whether_clients_differ_is_the_test_of_homogeneity():
    rng = np.random.default_rng(2)
    kept = 0
    for _ in range(400):
        tables = [rng.multinomial(30, (0.5, 0.3, 0.2)) for _ in range(6)]
        total = sum(counted(np.repeat(np.arange(3), own) + 0.0, 3) for own in tables)
        assert (chi2_contingency(np.array(tables)).pvalue < 0.01) == (spread(total)[1] > 0)
        kept += spread(total)[1] > 0
    assert kept < 12  # four of 400 by chance


def test_clients_that_do_not_differ_get_nothing():
    total = 5 * counted(np.arange(30) % 3 + 0.0, 3)
    shares, correlation = spread(total)
    assert correlation == 0.0
    assert not offsets(np.array([30.0, 0.0, 0.0]), shares, correlation).any()


@pytest.mark.parametrize("y", [[], [0.0] * 5])
def test_one_class_or_no_rows_say_nothing_of_clients(y):
    shares, correlation = spread(3 * counted(np.array(y), 2))
    assert correlation == 0.0
    assert np.isfinite(shares).all()


def test_offsets_are_the_odds_of_the_shares():
    p = np.array([0.5, 0.3, 0.2, 0.0])
    rows = np.array([8.0, 1.0, 1.0, 0.0])
    np.testing.assert_allclose(
        offsets(rows, p, 1.0)[:3], np.log(np.array([0.8, 0.1, 0.1]) / p[:3]), rtol=1e-14
    )
    pulled = (rows[:3] + 5 * p[:3]) / 15  # as if by five rows more: ρ = 1 / (5 + 1)
    np.testing.assert_allclose(offsets(rows, p, 1 / 6), [*np.log(pulled / p[:3]), 0.0], rtol=1e-12)


def test_of_a_class_that_a_client_lacks_the_odds_are_finite():
    total = counted(np.zeros(9), 2) + counted(np.ones(9), 2)
    shares, correlation = spread(total)
    assert correlation == 1 - 1 / 19
    moved = offsets(np.array([9.0, 0.0]), shares, correlation)
    assert moved[0] == pytest.approx(np.log(2), abs=0.01)
    assert -6 < moved[1] < -4


def test_scores_that_know_nothing_of_clients_call_for_all_of_it():
    """The Bayes rule of each client is that of all clients with its own shares."""
    p = np.mean(SHARES[:3], axis=0)
    total = np.zeros(1 + len(WEIGHTS))
    hits = [0, 0]
    for number, shares in enumerate(SHARES[:3]):
        x, y = drawn(shares, 20_000, number)
        moved = offsets(np.array(shares), p, 1.0)
        total += losses_by_weight(posterior(x, p), moved, y + 0.0)
        hits[0] += (posterior(x, shares).argmax(1) == y).sum()
        hits[1] += ((posterior(x, p) + moved).argmax(1) == y).sum()
    assert best_weight(total) == 1.0
    assert hits[0] == hits[1]


def test_scores_that_know_it_all_call_for_none():
    total = np.zeros(1 + len(WEIGHTS))
    for number, shares in enumerate(SHARES[:3]):
        x, y = drawn(shares, 20_000, number)
        moved = offsets(np.array(shares), np.mean(SHARES[:3], axis=0), 1.0)
        total += losses_by_weight(posterior(x, shares), moved, y + 0.0)
    assert best_weight(total) == 0.0


def test_without_rows_there_is_no_weight():
    assert best_weight(losses_by_weight(np.zeros((0, 3)), np.zeros(3), np.zeros(0))) == 0.0


# ---- the level


@pytest.mark.parametrize("combination", ["sum", "mean"])
def test_the_level_moves_scores_by_the_shares_of_the_rows_that_are_trained_on(combination):
    options = dataclasses.replace(OPTIONS, combination=combination, start="zero-output")
    blocks = clients()
    engine, server, conclusion = run(options, blocks)
    states = engine.get_states()
    assert [len(kept) for kept in conclusion.structure] == [4, 4]
    assert conclusion.structure[1] == {name: place for place, name in enumerate(blocks)}
    weight = server.levels[1].offset.weight
    assert weight > 0
    rows = {
        name: np.bincount(block.y[~states[name].held_out].astype(int), minlength=3)
        for name, block in blocks.items()
    }
    together = np.sum(list(rows.values()), axis=0)
    p = together / together.sum()
    squares = sum((n**2).sum() / n.sum() for n in rows.values())
    alike = (squares - 4) / (together.sum() - 4)
    correlation = (alike - (p**2).sum()) / (1 - (p**2).sum())
    a = 1 / correlation - 1  # as if by so many rows more
    right = [0, 0]
    for name, block in blocks.items():
        first = femam_client.network_scores(
            levels_of(FEMAM.network(states[name]))[1], options.architecture, block
        )
        if combination == "mean":
            first = first / 2
        own = weight * np.log((rows[name] + a * p) / (rows[name].sum() + a) / p)
        found = FEMAM.predict(states[name], block)
        scores = first + own
        expected = np.array(
            [scores[:, k] - np.log(np.exp(np.delete(scores, k, 1)).sum(1)) for k in range(3)]
        )
        np.testing.assert_allclose(found, expected, atol=1e-8)
        # on rows of its kind that nobody has seen
        x, y = drawn(SHARES[int(name[1])], 3000, 7)
        fresh = Block(np.arange(3000), block.features, x, y + 0.0)
        right[0] += (FEMAM.predict(states[name], fresh).argmax(0) == y).sum()
        one = dataclasses.replace(
            states[name],
            count=1,
            kept={n: v for n, v in states[name].kept.items() if n.startswith("levels.1.")},
        )
        right[1] += (FEMAM.predict(one, fresh).argmax(0) == y).sum()
    assert right[0] > right[1] + 0.02 * 12_000


def test_equal_populations_drop_the_level():
    _, _, conclusion = run(OPTIONS, clients(shares=[(0.4, 0.3, 0.3)] * 4))
    assert not conclusion.structure[1]


def test_who_comes_late_gets_its_own_shares():
    blocks = clients()
    engine, server, conclusion = run(
        OPTIONS, blocks, present=lambda n: ("c0", "c1", "c2") if n > OPTIONS.first_rounds else None
    )
    last = levels_of(FEMAM.network(engine.get_states()["c3"]))[2]
    prior = server.levels[1].offset
    state = engine.get_states()["c3"]
    own = np.bincount(blocks["c3"].y[~state.held_out].astype(int), minlength=3) + 0.0
    expected = server.levels[1].offset.weight * offsets(own, prior.shares, prior.correlation)
    np.testing.assert_allclose(last["classifier.bias"], expected, rtol=1e-12)
    assert set(conclusion.structure[1]) == set(blocks)


def test_a_later_level_learns_what_is_left():
    options = dataclasses.replace(OPTIONS, levels=("global", "shares", "personal"))
    engine, _, conclusion = run(options, clients())
    assert len(conclusion.structure) == 3
    for name, state in engine.get_states().items():
        # the rows' scores are those of the networks, calibrated together
        own = clients()[name]
        each = [
            femam_client.network_scores(one, options.architecture, own)
            for one in levels_of(FEMAM.network(state)).values()
        ]
        np.testing.assert_allclose(state.base, np.sum(each, axis=0), atol=1e-10)


def test_the_server_reads_sums_over_all_clients_only():
    engine, _, _ = run(OPTIONS, clients())
    summary = engine.books.crossings.summary()
    for function in ("count_classes", "try_offsets"):
        asked = [one for one in summary["exchanges"].values() if one["function"] == function]
        assert [(one["kind"], one["with"]) for one in asked] == [("sum", {})]
    # where one class is known: 2 x 3 + 1 numbers, and of each weight a loss
    assert summary["reveals"]["Counted.at"]["values"] == 7
    total = engine.sum(femam_client.count_classes, dict.fromkeys(engine.ids, femam_client.Ask()))
    with pytest.raises(SealedError):
        np.asarray(total.at)


@pytest.mark.parametrize("cut", [11, 12, 13])
def test_a_run_read_back_from_bytes_goes_on_to_the_same_bits(cut):
    blocks = clients()
    options = dataclasses.replace(OPTIONS, levels=("global", "shares", "personal"))
    whole, _, expected = run(options, blocks)
    again, _, found = run(options, blocks, cut=cut)
    assert found == expected
    for name, state in whole.get_states().items():
        for key, values in FEMAM.network(state).items():
            np.testing.assert_array_equal(FEMAM.network(again.get_states()[name])[key], values)
