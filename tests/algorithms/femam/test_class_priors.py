"""FeMAM's level of shares: a bias by the classes that a client mostly has."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from scipy.stats import chi2_contingency

pytest.importorskip("torch")

from federations import started
from intarsia.algorithms.femam import class_priors
from intarsia.algorithms.femam import client as femam_client
from intarsia.algorithms.femam.algorithm import FEMAM
from intarsia.algorithms.femam.class_priors import (
    WEIGHTS,
    best_weight,
    correlation,
    counted,
    differences,
    losses_by_weight,
    offsets,
    shares_of,
)
from intarsia.algorithms.femam.hyperparameters import FeMAM
from intarsia.algorithms.networks.architecture import levels_of
from intarsia.core.block import Block, Labels
from intarsia.engines import codec
from intarsia.engines.communication_log import RECORDS
from intarsia.errors import SealedError

LABELS = Labels("multiclass", ("a", "b", "c"))
OPTIONS = FeMAM(
        level_schedule="paper",
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


def run(options, blocks, present=lambda number: None, cut=0):
    """Return the engine after all rounds, the server's state and the conclusion."""
    engine, server = started(FEMAM, options, blocks, LABELS)
    for number in range(1, 100):
        engine.begin_round(number, present(number))
        server, info = FEMAM.round(server, engine, engine.key())
        if number == cut:
            written = codec.encode((engine.books.seal(server), engine.get_states()))
            sealed, states = codec.decode(written, *FEMAM.states, *RECORDS)
            engine, _ = started(FEMAM, options, blocks, LABELS)
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


def spread(tables):
    """Return the shares of the classes over clients of these rows, and their correlation."""
    shares = shares_of(np.sum(tables, axis=0))
    return shares, correlation(sum(differences(rows, shares) for rows in tables), shares)


def test_a_client_counts_its_rows_of_each_class():
    y = np.array([0, 2, 2, 0, 2]) + 0.0
    assert counted(y, 3).tolist() == [2, 0, 3]
    p = np.array([0.5, 0.25, 0.25])
    assert differences(counted(y, 3), p).tolist() == [5, 1, 3, 9]  # 13 / 5, 4 / 2.5 + 9 / 1.25
    assert not differences(counted(y[:0], 3), p).any()


@pytest.mark.parametrize("alike", [0.75, 0.3, 0.05])
def test_the_correlation_of_drawn_shares_is_found(alike):
    rng = np.random.default_rng(1)
    p = np.array([0.5, 0.3, 0.2])
    every = rng.dirichlet((1 / alike - 1) * p, 4000)
    shares, found = spread(
        [counted(rng.choice(3, rng.integers(1, 60), p=a) + 0.0, 3) for a in every]
    )
    np.testing.assert_allclose(shares, p, atol=0.02)
    assert found == pytest.approx(alike, rel=0.05)


def test_whether_clients_differ_is_the_test_of_homogeneity():
    rng = np.random.default_rng(2)
    kept = 0
    for _ in range(400):
        tables = np.array([rng.multinomial(30, (0.5, 0.3, 0.2)) for _ in range(6)]) + 0.0
        found = spread(tables)[1]
        pvalue = chi2_contingency(tables).pvalue
        if not 0.006 < pvalue < 0.016:  # rounding moves six numbers by a half at most
            assert (pvalue < 0.01) == (found > 0)
        kept += found > 0
    assert kept < 12  # four of 400 by chance


def test_clients_that_do_not_differ_get_nothing():
    shares, found = spread([np.array([10.0, 10.0, 10.0])] * 5)
    assert found == 0.0
    assert not offsets(np.array([30.0, 0.0, 0.0]), shares, found).any()


@pytest.mark.parametrize("rows", [[0.0, 0.0], [5.0, 0.0]])
def test_one_class_or_no_rows_say_nothing_of_clients(rows):
    shares, found = spread([np.array(rows)] * 3)
    assert found == 0.0
    assert np.isfinite(shares).all()


def test_what_is_disclosed_fits_many_federations():
    """The server knows each client's rows; from exact sums it would know who has which classes."""
    rng = np.random.default_rng(5)
    sizes = np.array((61, 53, 47, 40))
    tables = np.array([rng.multinomial(size, (0.5, 0.5)) for size in sizes]) + 0.0
    shares = shares_of(tables.sum(axis=0))
    every = np.stack(np.meshgrid(*(np.arange(size + 1.0) for size in sizes[:3])), -1).reshape(-1, 3)
    ones = np.column_stack([every, tables[:, 0].sum() - every.sum(axis=1)])
    ones = ones[(ones[:, 3] >= 0) & (ones[:, 3] <= sizes[3])]
    squares = np.stack([ones**2, (sizes - ones) ** 2]) / sizes  # of class, federation and client
    told = np.sum([differences(rows, shares) for rows in tables], axis=0)
    parts = squares.sum(axis=0), np.einsum("kfc,k->fc", squares, 1 / shares)
    fits = [np.round(part).sum(axis=1) == said for part, said in zip(parts, told[2:], strict=True)]
    exact = ((tables**2).sum(axis=1) / sizes).sum()
    assert (abs(parts[0].sum(axis=1) - exact) < 1e-9).sum() <= 2  # it and its mirror image
    assert (fits[0] & fits[1]).sum() > 50


def test_offsets_are_the_odds_of_the_shares():
    p = np.array([0.5, 0.3, 0.2, 0.0])
    rows = np.array([8.0, 1.0, 1.0, 0.0])
    np.testing.assert_allclose(
        offsets(rows, p, 1.0)[:3], np.log(np.array([0.8, 0.1, 0.1]) / p[:3]), rtol=1e-14
    )
    pulled = (rows[:3] + 5 * p[:3]) / 15  # as if by five rows more: ρ = 1 / (5 + 1)
    np.testing.assert_allclose(offsets(rows, p, 1 / 6), [*np.log(pulled / p[:3]), 0.0], rtol=1e-12)


def test_of_a_class_that_a_client_lacks_the_odds_are_finite():
    shares, found = spread([np.array([9.0, 0.0]), np.array([0.0, 9.0])])
    assert found == 1 - 1 / 19
    moved = offsets(np.array([9.0, 0.0]), shares, found)
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
    squares = sum(round((n**2).sum() / n.sum()) for n in rows.values())
    alike = (squares - 4) / (together.sum() - 4)
    a = (1 - (p**2).sum()) / (alike - (p**2).sum()) - 1  # as if by so many rows more
    right = [0, 0]
    for name, block in blocks.items():
        first = femam_client.network_scores(
            levels_of(FEMAM.model.network(states[name]))[1], options.architecture, block
        )
        if combination == "mean":
            first = first / 2
        own = weight * np.log((rows[name] + a * p) / (rows[name].sum() + a) / p)
        found = FEMAM.model.predict(states[name], block)
        scores = first + own
        expected = np.array(
            [scores[:, k] - np.log(np.exp(np.delete(scores, k, 1)).sum(1)) for k in range(3)]
        )
        np.testing.assert_allclose(found, expected, atol=1e-8)
        # on rows of its kind that nobody has seen
        x, y = drawn(SHARES[int(name[1])], 3000, 7)
        fresh = Block(np.arange(3000), block.features, x, y + 0.0)
        right[0] += (FEMAM.model.predict(states[name], fresh).argmax(0) == y).sum()
        one = dataclasses.replace(
            states[name],
            count=1,
            kept={n: v for n, v in states[name].kept.items() if n.startswith("levels.1.")},
        )
        right[1] += (FEMAM.model.predict(one, fresh).argmax(0) == y).sum()
    assert right[0] > right[1] + 0.02 * 12_000


def test_equal_populations_drop_the_level():
    _, _, conclusion = run(OPTIONS, clients(shares=[(0.4, 0.3, 0.3)] * 4))
    assert not conclusion.structure[1]


@pytest.mark.parametrize("start", ["zero-output", "level-1"])
def test_an_evaluation_before_the_level_changes_nothing(start):
    options = dataclasses.replace(OPTIONS, start=start)
    late = ("c0", "c1", "c2")
    found = []
    for evaluated in (False, True):
        engine, server = started(FEMAM, options, clients(), LABELS)
        for number in range(1, options.first_rounds + 1):
            engine.begin_round(number)
            server, _ = FEMAM.round(server, engine, engine.key())
        if evaluated:
            server, _ = FEMAM.certify(server, engine, engine.key())
        engine.begin_round(number + 1, late)
        server, info = FEMAM.round(server, engine, engine.key())
        assert info.finished
        engine.begin_round(number + 2)
        FEMAM.conclude(server, engine, engine.key())
        found.append([FEMAM.model.network(state) for state in engine.get_states().values()])
    for one, other in zip(*found, strict=True):
        assert one.keys() == other.keys()
        assert one["levels.2.classifier.bias"].any()
        assert not one["levels.2.classifier.weight"].any()
        for name, values in one.items():
            np.testing.assert_array_equal(values, other[name])


def test_the_result_says_what_was_chosen_and_which_levels_never_began():
    engine, server = started(FEMAM, OPTIONS, clients(), LABELS)
    engine.begin_round(1)
    server, _ = FEMAM.round(server, engine, engine.key())
    [note] = FEMAM.conclude(server, engine, engine.key()).notes
    assert note.startswith("Of 2 levels 1 began: the run ended after 1 rounds")
    assert note.endswith("set experiment.rounds = 13.")
    _, server, conclusion = run(OPTIONS, clients())
    weight = server.levels[1].offset.weight
    assert conclusion.notes[0].startswith(f"Level 2 moves scores by {weight:g} times")
    assert len(conclusion.notes) == 1


def test_who_comes_late_gets_its_own_shares():
    blocks = clients()
    engine, server, conclusion = run(
        OPTIONS, blocks, present=lambda n: ("c0", "c1", "c2") if n > OPTIONS.first_rounds else None
    )
    last = levels_of(FEMAM.model.network(engine.get_states()["c3"]))[2]
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
            for one in levels_of(FEMAM.model.network(state)).values()
        ]
        np.testing.assert_allclose(state.base, np.sum(each, axis=0), atol=1e-10)


def test_the_server_reads_sums_over_all_clients_only():
    engine, _, _ = run(OPTIONS, clients())
    summary = engine.books.crossings.summary()
    for function in ("count_rows", "compare_shares", "try_offsets"):
        asked = [one for one in summary["exchanges"].values() if one["function"] == function]
        assert [(one["kind"], one["with"]) for one in asked] == [("sum", {})]
    reveals = {name: one["values"] for name, one in summary["reveals"].items()}
    assert (reveals["Counted.at"], reveals["Differences.at"]) == (3, 4)
    total = engine.sum(class_priors.count_rows, dict.fromkeys(engine.ids, class_priors.state.Ask()))
    with pytest.raises(SealedError):
        np.asarray(total.at)


@pytest.mark.parametrize(
    "cut", [12, *(pytest.param(one, marks=pytest.mark.slow) for one in (11, 13))]
)
def test_a_run_read_back_from_bytes_goes_on_to_the_same_bits(cut):
    blocks = clients()
    options = dataclasses.replace(OPTIONS, levels=("global", "shares", "personal"))
    whole, _, expected = run(options, blocks)
    again, _, found = run(options, blocks, cut=cut)
    assert found == expected
    for name, state in whole.get_states().items():
        for key, values in FEMAM.model.network(state).items():
            np.testing.assert_array_equal(
                FEMAM.model.network(again.get_states()[name])[key], values
            )
