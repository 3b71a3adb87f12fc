"""The adaptive schedule of FeMAM: when levels begin and end, the groups it finds, what is kept."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from scipy.special import logsumexp

torch = pytest.importorskip("torch")

import federations  # noqa: E402 - torch may be missing, and is asked for first
from intarsia.algorithms.femam import client as at_client  # noqa: E402
from intarsia.algorithms.femam import clustering  # noqa: E402
from intarsia.algorithms.femam.algorithm import FEMAM, gains_no_more  # noqa: E402
from intarsia.algorithms.femam.clustering import (  # noqa: E402
    averages_of,
    averages_of_others,
    clearest,
    common_part,
    counts_tried,
    found_by_halves,
    groupings,
    separated,
    silhouette,
    towards,
)
from intarsia.algorithms.femam.hyperparameters import FeMAM  # noqa: E402
from intarsia.algorithms.femam.state import Closing, Groupings  # noqa: E402
from intarsia.algorithms.femam.validation import decided, stands_alone, worse_than  # noqa: E402
from intarsia.algorithms.networks import client_network as networks  # noqa: E402
from intarsia.algorithms.networks.architecture import levels_of  # noqa: E402
from intarsia.core.block import Block, Labels  # noqa: E402
from intarsia.core.client_functions import RandomKey  # noqa: E402
from intarsia.engines import codec  # noqa: E402
from intarsia.engines.communication_log import RECORDS  # noqa: E402
from intarsia.errors import ConvergenceError, ExperimentError, RefusedError  # noqa: E402
from intarsia.maths import shrinkage  # noqa: E402

LABELS = Labels("multiclass", ("a", "b", "c"))
OPTIONS = FeMAM(
    hidden=8, latent=6, rate=0.02, batch=40, local_epochs=10, validation=0.2, candidates=(2, 3),
    engine="vmap", precision="double",
)  # fmt: skip


def clients(count=8, permuted=True, samples=40, spread=1.0):
    """Return clients of three classes; those of odd numbers have their columns in another order."""
    rng = np.random.default_rng(0)
    centres = 3 * rng.normal(size=(3, 6))
    order = np.array([1, 2, 3, 4, 5, 0])
    made = {}
    for number in range(count):
        y = np.arange(samples) % 3
        x = centres[y] + spread * rng.normal(size=(samples, 6))
        x = x[:, order] if permuted and number % 2 else x
        names = tuple(f"f{place}" for place in range(6))
        made[f"c{number}"] = Block(1000 * number + np.arange(samples), names, x, y + 0.0)
    return made


def begun(blocks, options=OPTIONS):
    return federations.started(FEMAM, options, blocks, LABELS, 0)


def trained(blocks, options=OPTIONS, rounds=40, present=lambda number: None):
    """Return the engine, the server's state and the conclusion after the last round."""
    engine, server = begun(blocks, options)
    for number in range(1, rounds + 1):
        engine.begin_round(number, present(number))
        server, info = FEMAM.round(server, engine, engine.key())
        if info.finished:
            break
    engine.begin_round(number + 1)
    return engine, server, FEMAM.conclude(server, engine, engine.key())


# ---- rules


@pytest.mark.parametrize(
    ("accuracies", "over"),
    [
        ([50.0, 60.0, 60.0], False),  # not one more round than the patience, 3
        ([50.0, 60.0, 60.0, 61.0], False),
        ([60.0, 50.0, 60.0, 55.0], True),
        ([50.0, 60.0, 60.0, 60.0], False),  # the first of the last three was better
        ([50.0, 60.0, 60.0, 60.0, 60.0], True),
    ],
)
def test_a_level_is_done_once_no_round_of_the_last_is_better(accuracies, over):
    assert gains_no_more(accuracies, 3) is over


def test_the_silhouette_is_that_of_the_definition():
    points = np.array([[0.0], [1.0], [10.0], [12.0]])
    # 0: 1 to its own, 11 to the others; 1: 1 and 10; 10: 2 and 9.5; 12: 2 and 11.5
    expected = np.mean([10 / 11, 9 / 10, 7.5 / 9.5, 9.5 / 11.5])
    assert silhouette(points, np.array([0, 0, 1, 1])) == pytest.approx(expected)


def test_who_is_alone_counts_a_quarter_of_what_it_would_beside_typical_others():
    points = np.array([[0.0], [1.0], [10.0], [30.0]])
    # 0 and 1: 1 to each other, 10 and 9 to the next; as if 10 and 30 had others of theirs at 1,
    # which are 9.5 and 20 away from the next
    expected = np.mean([9 / 10, 8 / 9, 0.25 * 8.5 / 9.5, 0.25 * 19 / 20])
    assert silhouette(points, np.array([0, 0, 1, 2])) == pytest.approx(expected)
    assert silhouette(points, np.arange(4)) == 0.0  # nobody has others


def test_groups_that_are_apart_are_found_and_counted():
    points = np.concatenate([np.eye(3)[np.arange(12) % 3], 0.1 * np.eye(12)], axis=1)
    labels, clear = separated(points, (2, 3, 4), 0.1, np.random.default_rng(0))
    assert labels.tolist() == [0, 1, 2] * 4
    assert clear > 0.8  # √0.02 to the own, √2.02 to the others
    # each as far from any other: no groups
    none, _ = separated(np.eye(12), (2, 3, 4), 0.1, np.random.default_rng(0))
    assert none.tolist() == [0] * 12


def test_groups_by_whither_are_found_where_lengths_differ():
    """Two directions, in each of which clients move by 1 to 64: as they are, long ones group."""
    lengths = 4.0 ** np.array([0, 1, 2, 3, 0, 1, 2, 3])
    directions = np.repeat([[1.0, 0.0], [-1.0, 0.0]], 4, axis=0)
    labels, clear = separated(lengths[:, None] * directions, (2,), 0.1, np.random.default_rng(0))
    assert labels.tolist() == [0] * 4 + [1] * 4
    assert clear == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("alone", "joined", "decision"),
    [
        (0.02, 0.03, "alone"),  # the mean is better by less than an error of 0.02
        (0.02, 0.05, "joined"),
        (-0.01, 0.03, "joined"),
        (-0.01, 0.01, "neither"),
        (0.0, 0.0, "neither"),
        (-0.01, -0.02, "neither"),
    ],
)
def test_a_network_takes_the_place_of_others_or_joins_them_where_that_pays(alone, joined, decision):
    assert decided(alone, joined, 0.02**2, 1.0, good=alone > 0) == decision


@pytest.mark.parametrize(
    ("worth", "kind", "good"),
    [
        (0.01, "", True),
        (0.0, "", False),
        (-0.02, "clusters", True),  # worse by a standard error, which is doubtful
        (-0.021, "clusters", False),
        (0.02, "after_groups", False),
        (0.021, "after_groups", True),
    ],
)
def test_groups_are_left_for_what_is_better_beyond_a_standard_error(worth, kind, good):
    said = {name: name == kind for name in ("clusters", "after_groups")}
    assert stands_alone(worth, 0.02**2, 1.0, **said) == good


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"validation": 0.0}, r"algorithm\.validation is 0\.0 .* set validation = 0\.1"),
        ({"levels": ("global", "shares")}, r"algorithm\.levels is \['global', 'shares'\]"),
        ({"levels": (2,)}, r"algorithm\.levels is \[2\]"),
        ({"clustering": "nearest"}, r"algorithm\.clustering is 'nearest'"),
        ({"prune": "never"}, r"algorithm\.prune is 'never'"),
        ({"final_epochs": 2}, r"algorithm\.final_epochs is 2"),
    ],
)
def test_what_the_paper_s_schedule_alone_has_is_refused(wrong, said):
    with pytest.raises(ExperimentError, match=rf'{said}.* set level_schedule = "paper"'):
        FeMAM(**wrong)


def test_local_training_is_by_default_that_of_the_schedule():
    names = ("local_epochs", "optimiser", "rate", "batch")
    found = {one: FeMAM(level_schedule=one) for one in ("adaptive", "paper")}
    assert [getattr(found["adaptive"], name) for name in names] == [10, "adam", 1e-3, 100]
    assert [getattr(found["paper"], name) for name in names] == [2, "sgd", 0.01, 32]
    assert FeMAM(rate=0.5).rate == 0.5
    decays = {name: (one.weight_decay, one.embedding_decay) for name, one in found.items()}
    assert decays == {"adaptive": (0.01, 0.01), "paper": (0.0, 0.0)}


# ---- decays


def test_decays_fall_as_the_rows_of_all_clients_grow_beyond_those_of_the_option():
    blocks = clients(count=8, samples=40)  # 320 rows
    found = {}
    for rows in (160, 320, 640):
        engine, _ = begun(blocks, dataclasses.replace(OPTIONS, decay_rows=rows))
        (found[rows],) = {
            (one.options.weight_decay, one.options.embedding_decay)
            for one in engine.get_states().values()
        }
    assert found == {160: (0.005, 0.005), 320: (0.01, 0.01), 640: (0.01, 0.01)}


def test_decays_fall_as_clients_become_more_than_those_of_the_option():
    found = {}
    for count, rows in ((8, 2000), (16, 2000), (16, 160), (16, 480)):  # 640 rows of 16 clients
        options = dataclasses.replace(OPTIONS, decay_rows=rows)
        engine, _ = begun(clients(count), options)
        found[count, rows] = {
            (one.options.weight_decay, one.options.embedding_decay)
            for one in engine.get_states().values()
        }
    # the smaller of the two shares
    expected = {(8, 2000): 0.01, (16, 2000): 0.005, (16, 160): 0.0025, (16, 480): 0.005}
    assert found == {case: {(decay, decay)} for case, decay in expected.items()}


def test_decays_of_the_paper_s_schedule_are_as_they_are_given():
    options = FeMAM(level_schedule="paper", weight_decay=0.3, decay_rows=1)
    engine, _ = begun(clients(), options)
    assert {one.options.weight_decay for one in engine.get_states().values()} == {0.3}


def test_new_rows_of_small_noisy_tables_are_less_of_a_surprise_with_the_default_decays():
    """Log-odds are linear, and networks without decays learn the noise by heart."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4 * 180, 20))
    scores = x @ rng.normal(size=(20, 3)) + 2 * rng.gumbel(size=(len(x), 3))
    names = tuple(f"f{place:02d}" for place in range(20))
    y = scores.argmax(axis=1) + 0.0
    parts = {f"c{n}": Block(np.arange(180) + 180 * n, names, x[n::4], y[n::4]) for n in range(4)}
    tables = {name: part.take(np.arange(60)) for name, part in parts.items()}
    surprise = {}
    for decay in (FeMAM().weight_decay, 0.0):
        options = FeMAM(rate=5e-3, hidden=32, latent=32, weight_decay=decay, embedding_decay=decay)
        engine, _, _ = trained(tables, options, rounds=14)
        losses = []
        for name, state in engine.get_states().items():
            rows = parts[name].take(np.arange(60, 180))
            odds = FEMAM.model.predict(state, rows)[rows.y.astype(int), np.arange(120)]
            losses.append(np.logaddexp(0.0, -odds).mean())
        surprise[decay] = np.mean(losses)
    assert surprise[0.01] < 0.8 * surprise[0.0]


@pytest.mark.parametrize(
    ("levels", "decays"),
    [(("global", 2), [0.0] * 5 + [0.01] * 2), (("global", "personal"), [0.01] * 7)],
)
def test_there_are_no_decays_until_groups_are_found(monkeypatch, levels, decays):
    used = []
    train_learners = networks.train_learners

    def read(trainings, *given):
        used.append({one.decay_of("embedding.0.weight") for one in trainings})
        return train_learners(trainings, *given)

    monkeypatch.setattr(networks, "train_learners", read)
    options = dataclasses.replace(OPTIONS, levels=levels)
    engine, server = begun(clients(), options)
    for number in range(1, len(decays) + 1):
        engine.begin_round(number)
        server, _ = FEMAM.round(server, engine, engine.key())
    assert used == [{one} for one in decays]


# ---- runs


def test_groups_with_other_orders_of_columns_are_found_early():
    blocks = clients()
    engine, server, conclusion = trained(blocks)
    assert server.levels[0].rounds == OPTIONS.warm_up
    assert [server.levels[1].groups[f"c{n}"] for n in range(8)] == [0, 1] * 4
    for name, state in engine.get_states().items():
        found = FEMAM.model.predict(state, blocks[name]).argmax(0)
        assert (found == blocks[name].y).mean() > 0.9
    assert any(note.startswith("Level 2 has 2 clusters: their mean") for note in conclusion.notes)


def with_few_alike(seed):
    """Return nine clients of two of five classes, of which few are alike, and their groups.

    Three sets of clients name the classes otherwise. The last two are alike.
    """
    rng = np.random.default_rng(seed)
    centres = 3 * rng.normal(size=(5, 6))
    names = tuple(f"f{place}" for place in range(6))
    made, kinds = {}, []
    for number in (*range(8), 7):
        held = np.random.default_rng([seed, number]).permutation(5)[:2]
        called = np.roll(np.arange(5), number % 3)
        y = held[np.arange(60) % 2]
        x = centres[y] + rng.normal(size=(60, 6))
        kinds.append((*sorted(held), number % 3))
        made[f"c{len(made)}"] = Block(1000 * len(made) + np.arange(60), names, x, called[y] + 0.0)
    return made, [kinds.index(kind) for kind in kinds]


@pytest.mark.parametrize("seed", [0, 3, 29])
def test_a_pair_that_is_alike_is_found_among_clients_that_are_alone(seed):
    blocks, groups = with_few_alike(seed)
    options = dataclasses.replace(OPTIONS, candidates=FeMAM().candidates)
    engine, server = federations.started(
        FEMAM, options, blocks, Labels("multiclass", tuple("abcde")), 0
    )
    for number in range(1, OPTIONS.warm_up + 2):
        engine.begin_round(number)
        server, _ = FEMAM.round(server, engine, engine.key())
    found = [server.levels[1].groups[name] for name in blocks]
    assert [found.index(group) for group in found] == groups


def test_without_groups_one_model_is_averaged_and_read_by_nobody():
    """The server looks twice: after the warm-up, and once the model of all gains no more."""
    blocks = clients(16, permuted=False, spread=4.0)
    engine, server, conclusion = trained(blocks)
    assert len(server.levels[1].models) == 1
    # each client's model is read twice: after the warm-up, and once the average gains no more
    read = engine.books.crossings.summary()["exchanges"]["ask send_model ()"]
    assert read["exchanges"] == 2
    assert server.levels[1].looked
    assert server.levels[2].rounds == 0  # the level of all again is what level 2 is already
    assert any(note.startswith("Level 2 has 1 cluster: no groups") for note in conclusion.notes)


def test_a_personal_level_that_no_round_came_to_is_trained_at_the_end():
    engine, server, conclusion = trained(clients(), rounds=OPTIONS.warm_up + 1)
    assert len(server.levels) == 2
    assert len(conclusion.structure) == 4
    state = engine.get_states()["c0"]
    assert set(levels_of(state.kept)) == {1, 2, 3, 4}
    own, before = (levels_of(state.kept)[number] for number in (4, state.origin))
    assert not np.allclose(own["classifier.weight"], before["classifier.weight"])


def test_a_personal_level_that_has_only_begun_is_trained_at_the_end():
    levels = ("global", "personal")
    options = dataclasses.replace(OPTIONS, levels=levels, final_rounds=0)
    for rounds in range(4, 30):
        engine, server, _ = trained(clients(), options, rounds)
        if len(server.levels) == 2:
            break
    assert server.levels[1].rounds == 0
    for state in engine.get_states().values():
        common, own = (levels_of(state.kept)[number] for number in (1, 2))
        assert not np.allclose(own["classifier.weight"], common["classifier.weight"])


def closing(before, latest, wrong_of_all):
    """Return which levels a client of 20 rows keeps after level 2, which is worth nothing to all.

    `before` and `latest`: which class the network that it keeps, and the one of level 2, name for
    each of its rows, all of class 0; `wrong_of_all`: errors of level 2 in all clients' 100 rows.
    """
    names = np.eye(3)
    client = at_client.Client(
        options=OPTIONS, outputs=3, start={}, latest={"classifier.bias": np.zeros(3)},
        held_out=np.arange(20) < 2, base=names[before], kept={}, count=1, chosen=(1,), level=2,
    )  # fmt: skip
    none = shrinkage.summary(np.repeat([1.0, -1.0, -1.0], 20))  # worse by a third of its rows
    none[1] = 100.0
    summary = np.array([*none, *none, wrong_of_all])
    message = Closing(None, client.level, summary)
    return at_client._chosen(client, names[latest], np.zeros(20), message).chosen


@pytest.mark.parametrize(
    ("before", "latest", "wrong_of_all", "kept"),
    [
        # all of its rows named wrongly by what was trained on them: a group that it is not of
        ([1] * 20, [0] * 20, 10.0, (2,)),
        ([1] * 20, [2] * 20, 10.0, (1,)),  # and by level 2 as well
        ([1] * 20, [0] * 20, 99.0, (1,)),  # others' new rows are no better off
        ([0] * 20, [0] * 20, 10.0, (1,)),
        ([0] * 18 + [1] * 2, [0] * 20, 10.0, (1,)),  # two errors of 18 may be chance
    ],
)
def test_who_is_in_a_wrong_group_goes_on_alone(before, latest, wrong_of_all, kept):
    assert closing(before, latest, wrong_of_all) == kept


@pytest.mark.parametrize(
    ("share", "expected", "rows", "said"),
    [
        (1.0, 0.1, 20, True),
        (0.2, 0.1, 20, False),  # expected 3 of 22, with an error of 0.077
        (0.35, 0.1, 20, True),  # 0.136 + 2.5 · 0.077 = 0.328
        (1.0, 0.0, 1, False),  # of one row
    ],
)
def test_errors_are_too_many_where_chance_does_not_explain_them(share, expected, rows, said):
    assert worse_than(share, expected, rows) is said


def test_levels_that_are_kept_train_at_the_end_with_the_rows_for_validation(monkeypatch):
    counts = []
    train = networks.train_learners

    def watched(trainings, learners, *how):
        counts.append({len(one.rows["y"]) for one in learners})
        return train(trainings, learners, *how)

    monkeypatch.setattr(networks, "train_learners", watched)
    _, _, conclusion = trained(clients(samples=40), rounds=3)
    in_use = sum(bool(level) for level in conclusion.structure)
    assert counts[:3] == [{32}] * 3
    assert counts[-in_use:] == [{40}] * in_use


def test_a_point_belongs_to_the_centre_that_it_is_on_the_way_to():
    centres = np.array([[10.0, 8.0], [10.0, -2.0]])  # from their mean, (10, 3), up and down
    assert towards(np.array([1.0, 0.5]), centres) == 0
    assert towards(np.array([1.0, -0.5]), centres) == 1  # nearer to 0.5 than to any centre


def test_who_was_away_joins_its_group():
    away = tuple(f"c{n}" for n in range(7))  # c7, until the groups are found
    _, server, _ = trained(clients(), present=lambda number: away if number < 5 else None)
    assert server.levels[1].groups["c7"] == server.levels[1].groups["c1"]


@pytest.mark.parametrize("cut", [3, *(pytest.param(one, marks=pytest.mark.slow) for one in (1, 6))])
def test_a_run_read_back_from_bytes_goes_on_to_the_same_bits(cut):
    blocks = clients(4)
    ends = []
    for stop in (None, cut):
        engine, server = begun(blocks)
        for number in range(1, 9):
            engine.begin_round(number)
            server, _ = FEMAM.round(server, engine, engine.key())
            if number == stop:
                written = codec.encode((engine.books.seal(server), engine.get_states()))
                sealed, states = codec.decode(written, *FEMAM.states, *RECORDS)
                engine, _ = begun(blocks)
                engine.set_states(states)
                server = engine.books.unseal(sealed)
        engine.begin_round(9)
        conclusion = FEMAM.conclude(server, engine, engine.key())
        ends.append((engine.get_states(), conclusion.structure))
    (one, structure), (other, again) = ends
    assert structure == again
    for name, state in one.items():
        for key, values in FEMAM.model.network(state).items():
            np.testing.assert_array_equal(values, FEMAM.model.network(other[name])[key])


def test_what_a_client_keeps_is_what_it_predicts_with():
    blocks = clients()
    engine, _, conclusion = trained(blocks)
    for name, state in engine.get_states().items():
        kept = {int(key.split(".")[1]) for key in FEMAM.model.network(state)}
        assert kept == set(state.chosen)
        for number in state.chosen:
            assert name in conclusion.structure[number - 1]
        # the mean of the levels' scores
        scores = [
            networks.network_scores(own, OPTIONS.architecture, blocks[name])
            for number, own in levels_of(state.kept).items()
            if number in state.chosen
        ]
        odds = FEMAM.model.predict(state, blocks[name])
        mean = np.mean(scores, axis=0)
        others = [logsumexp(np.delete(mean, label, axis=1), axis=1) for label in range(3)]
        np.testing.assert_allclose(odds.T, mean - np.stack(others, axis=1), rtol=1e-3)


def test_a_number_of_groups_may_be_given():
    options = dataclasses.replace(OPTIONS, levels=("global", 2, "personal"))
    _, server, _ = trained(clients(), options)
    assert [server.levels[1].groups[f"c{n}"] for n in range(8)] == [0, 1] * 4


@pytest.mark.parametrize("count", [4, 6])
def test_as_many_groups_as_clients_or_more_are_one_for_each(count):
    options = dataclasses.replace(OPTIONS, levels=("global", count))
    _, server, conclusion = trained(clients(4), options, rounds=6)
    assert server.levels[1].groups == {f"c{n}": n for n in range(4)}
    said = [note for note in conclusion.notes if "one for each client: it groups nobody" in note]
    assert len(said) == (count > 4)


# ---- which grouping clients' rows speak for


def compared(shares, rows=None, own=0.1):
    """Return the sums over clients for groupings with these shares of errors in 1000 rows."""
    rows = np.full(len(shares), 1000.0) if rows is None else np.array(rows, float)
    return np.array([100.0, 102 * own - 1, *rows, *(rows * shares)])


def never(place: int) -> bool:
    """Say that no grouping is stable."""
    return False


@pytest.mark.parametrize(
    ("shares", "clear", "taken"),
    [
        ([0.5, 0.2, 0.3], [0.0, 0.3, 0.3], 1),  # as far apart, and fewer errors
        ([0.5, 0.20, 0.21], [0.0, 0.12, 0.2], 2),  # hardly more errors, and further apart
        ([0.5, 0.2, 0.09], [0.0, 0.3, 0.2], 2),  # errors count what silhouettes do
        ([0.5, 0.2, 0.11], [0.0, 0.3, 0.2], 1),
        ([0.5, 0.2, 0.12], [0.0, 0.4, 0.1], 1),  # more groups err less, and are not apart
        ([0.5, 0.21, 0.20], [0.0, 0.04, 0.05], 1),  # none apart: the fewest groups
        ([0.5, 0.49, 0.49], [0.0, 0.2, 0.0], 1),  # apart, and no worse than one group
        ([0.5, 0.45, 0.45], [0.0, 0.05, 0.0], 0),  # not apart, and fewer by a tenth alone
        ([0.5, 0.51, 0.6], [0.0, 0.9, 0.0], 0),  # apart, and worse
        ([0.5, 0.51, 0.4], [0.0, 0.9, 0.2], 2),  # of those that may be taken
        ([0.6, 0.65, 0.65], [0.0, 0.2, 0.05], 1),  # one group errs on most rows: a tenth more
        ([0.6, 0.67, 0.67], [0.0, 0.2, 0.05], 0),
        ([0.02, 0.016, 0.016], [0.0, 0.0, 0.0], 0),  # fewer by a fifth, which is chance
    ],
)
def test_a_grouping_is_taken_where_the_others_of_a_group_err_less(shares, clear, taken):
    assert clearest(compared(shares, own=0.6), (1, 2, 3), clear, 0.14, never) == taken


def test_groups_are_not_taken_where_own_networks_err_less():
    """Two standard errors of a share of 0.2 in 102 rows are 0.08."""
    shares, clear = [0.5, 0.3], [0.0, 0.3]
    assert clearest(compared(shares, own=0.23), (1, 2), clear, 0.14, never) == 1
    assert clearest(compared(shares, own=0.2), (1, 2), clear, 0.14, never) == 0


def test_clients_alone_in_their_group_count_with_the_errors_of_own_networks():
    """A pair among ten clients: 2 % of its rows are named wrongly, and 10 % by own networks."""
    total = compared([0.9, 0.02, 0.3], rows=[1000, 200, 1000])
    assert clearest(total, (1, 9, 3), [0.0, 0.01, 0.3], 0.14, never) == 1
    assert clearest(compared([0.9, 0.3], rows=[1000, 200]), (1, 9), [0.0, 0.01], 0.14, never) == 0


@pytest.mark.parametrize(
    ("all_together", "own", "taken"),
    [
        (0.8, 0.4, 1),  # less by half
        (0.8, 0.66, 0),  # less by a sixth, and by less than chance
        (0.45, 0.1, 0),  # one model names most rows rightly
    ],
)
def test_each_client_is_by_itself_where_others_err_on_most_rows(all_together, own, taken):
    total = compared([all_together, 0.0], rows=[1000, 0], own=own)
    assert clearest(total, (1, 4), [0.0, 0.0], 0.14, never) == taken


def test_each_client_by_itself_is_tried_of_four_at_most():
    assert counts_tried((2, 3, 4, 5, 6), 4) == [2, 3, 4]
    assert counts_tried((2, 3, 4, 5, 6), 5) == [2, 3, 4]


@pytest.mark.parametrize("count", [2, 3])
def test_few_clients_that_have_nothing_in_common_are_each_by_itself(count):
    """Each names the three classes otherwise: what the others know is wrong in most rows."""
    blocks = clients(count, permuted=False)
    blocks = {
        name: dataclasses.replace(block, y=(block.y + place) % 3)
        for place, (name, block) in enumerate(blocks.items())
    }
    options = dataclasses.replace(OPTIONS, rate=0.005)
    engine, server, conclusion = trained(blocks, options)
    assert len(server.levels[1].models) == count
    assert "one for each client, as what the others" in conclusion.notes[0]
    states = engine.get_states()
    right = [
        (at_client.predict(states[name], block).argmax(axis=0) == block.y).mean()
        for name, block in blocks.items()
    ]
    assert min(right) > 0.9


def test_no_rows_and_no_groupings_speak_for_no_groups():
    assert clearest(np.zeros(6), (1, 2), [0.0, 0.5], 0.14, never) == 0
    assert clearest(compared([0.5]), (1,), [0.0], 0.14, never) == 0


@pytest.mark.parametrize(
    ("shares", "clear", "taken"),
    [
        ([0.7, 0.66, 0.69], [0.0, 0.06, 0.09], 2),  # stable, and the furthest apart
        ([0.7, 0.71, 0.72], [0.0, 0.06, 0.09], 0),  # errs more than one group
        ([0.7, 0.69, 0.69], [0.0, 0.01, 0.02], 0),  # not apart at all
        ([0.45, 0.44, 0.44], [0.0, 0.06, 0.09], 0),  # one group errs on less than half of the rows
        ([0.7, 0.69, 0.69], [0.0, 0.2, 0.09], 1),  # one is far apart
    ],
)
def test_where_one_model_errs_on_most_rows_stable_groups_are_taken(shares, clear, taken):
    total = compared(shares, own=0.72)
    assert clearest(total, (1, 2, 3), clear, 0.14, lambda place: True) == taken


def test_stable_groups_are_not_taken_where_own_networks_err_less():
    total = compared([0.7, 0.66], own=0.6)
    assert clearest(total, (1, 2), [0.0, 0.09], 0.14, lambda place: True) == 0


def test_planted_groups_are_found_again_by_half_of_the_parameters_and_chance_is_not():
    rng = np.random.default_rng(3)
    labels = np.arange(24) % 4
    chance = rng.normal(size=(24, 300))
    planted = chance + 0.9 * rng.normal(size=(4, 300))[labels]
    assert found_by_halves(planted, labels, rng) > 0.95
    by_chance = max(groupings(chance, (4,), rng), key=lambda one: one[1])[0]
    assert found_by_halves(chance, by_chance, rng) < 0.5
    mostly_alone = np.minimum(np.arange(24), 12)
    assert found_by_halves(planted, mostly_alone, rng) == 0


def test_averages_of_others_leave_out_a_client_s_own():
    told = np.array([[1.0], [2.0], [4.0], [8.0]])
    found = averages_of_others(told, np.array([1.0, 3.0, 1.0, 1.0]), np.array([0, 0, 0, 1]))
    np.testing.assert_allclose(found[:, 0], [(3 * 2 + 4) / 4, (1 + 4) / 2, (1 + 3 * 2) / 4, 0.0])


def test_averages_of_others_are_those_of_each_client_s_others():
    rng = np.random.default_rng(0)
    told, shares, groups = rng.normal(size=(9, 5)), rng.integers(1, 50, 9) * 1.0, np.arange(9) % 4
    shares[4] = 0.0  # of a client without rows
    found = averages_of_others(told, shares, groups)
    for one in range(9):
        others = (groups == groups[one]) & (np.arange(9) != one) & (shares > 0)
        expected = np.average(told[others], axis=0, weights=shares[others]) if others.any() else 0
        np.testing.assert_allclose(found[one], expected, atol=1e-12)


@pytest.mark.parametrize("odd", [np.nan, np.inf, 1e160])
def test_a_model_that_has_no_distances_to_others_is_told_with_its_client(monkeypatch, odd):
    def sent(client, *rest):
        client, reply = original(client, *rest)
        model = np.full_like(reply.model, odd) if client.name == "c2" else reply.model
        return client, type(reply)(model)

    original = at_client.send_model.call
    altered = dataclasses.replace(at_client.send_model, call=sent)
    monkeypatch.setattr(clustering, "send_model", altered)
    with pytest.raises(ConvergenceError, match=r"The model of 'c2' is not finite, or beyond"):
        trained(clients(), rounds=12)


# ---- what the models of groups have in common


@pytest.mark.parametrize(
    ("shares", "part"),
    [
        ((0.30, 0.25, 0.33), 0.3),  # twice the part errs a tenth more, as it may
        ((0.30, 0.25, 0.35), 0.0),
        ((0.30, 0.30, 0.30), 0.0),  # no better
        ((0.50, 0.45, 0.45), 0.3),
        ((0.51, 0.45, 0.45), 0.0),  # on most rows
        ((0.0, 0.0, 0.0), 0.0),
    ],
)
def test_groups_share_a_part_where_they_err_less_with_it(shares, part):
    assert common_part(np.array([100.0, 10.0, *[100.0] * 3, *(100 * np.array(shares))])) == part
    assert common_part(np.zeros(8)) == 0.0  # clients that are all alone


def test_a_part_of_a_group_s_average_is_that_of_all():
    told, groups = np.array([[1.0], [3.0], [7.0]]), np.array([0, 0, 1])
    found = averages_of(told, np.array([1.0, 1.0, 2.0]), groups, 0.25)
    # of the groups 2 and 7, of all (1 + 3 + 14) / 4 = 4.5
    assert {group: average[0] for group, average in found.items()} == {0: 2.625, 1: 6.375}


def test_groups_with_shifted_columns_are_better_with_a_part_in_common(monkeypatch):
    """Twelve clients of 20 rows in four groups: a quarter of them say little of 16 columns."""
    rng = np.random.default_rng(2)
    centres, moves = 0.5 * rng.normal(size=(3, 16)), rng.normal(size=(4, 16))
    names = tuple(f"f{place:02d}" for place in range(16))
    tables, tests = {}, {}
    for number in range(12):
        y = np.arange(320) % 3
        x = centres[y] + moves[number % 4] + rng.normal(size=(320, 16))
        block = Block(1000 * number + np.arange(320), names, x, y + 0.0)
        tables[f"c{number:02d}"] = block.take(np.arange(20))
        tests[f"c{number:02d}"] = block.take(np.arange(20, 320))
    options = dataclasses.replace(OPTIONS, candidates=(4,), rate=5e-3, hidden=16, latent=16)
    right = []
    for part in (0.3, 0.0):
        monkeypatch.setattr(clustering, "common_part", lambda total, part=part: part)
        engine, server, _ = trained(tables, options, 14)
        assert len(server.levels[1].models) == 4
        each = [
            (FEMAM.model.predict(state, tests[name]).argmax(0) == tests[name].y).mean()
            for name, state in engine.get_states().items()
        ]
        right.append(np.mean(each))
    assert right[0] > right[1] + 0.015  # 0.735 and 0.696


def test_groups_with_columns_in_another_order_have_nothing_in_common():
    engine, server, _ = trained(clients(), rounds=6)
    assert len(server.levels[1].models) == 2
    assert server.levels[1].common == 0.0
    # one look for groups, and one for what they have in common
    exchanges = engine.books.crossings.summary()["exchanges"]
    asked = [one["exchanges"] for name, one in exchanges.items() if "compare_groups" in name]
    assert asked == [2]


def counts_of(message, blocks):
    engine, server = begun(blocks, dataclasses.replace(OPTIONS, warm_up=1))
    for number in (1, 2):  # the second level is found by itself
        engine.begin_round(number)
        server, _ = FEMAM.round(server, engine, engine.key())
    total = engine.sum(at_client.compare_groups, dict.fromkeys(engine.ids, message))
    return engine.reveal(total.at)


def blank():
    """Return the parameters of a network that begins as no change."""
    return np.zeros(networks.part_vector(networks.drawn(6, 3, OPTIONS, RandomKey(())), ("*",)).size)


def test_a_client_counts_all_its_rows_for_models_of_others_and_new_ones_for_its_own():
    message = Groupings(np.stack([blank(), blank()]), np.array([0.0, 1.0]), 3)
    held, wrong, *counted = counts_of(message, clients(2, samples=30))
    assert held == 12  # a fifth of each client's rows
    assert 0 <= wrong <= 12
    rows, errors = counted[:2], counted[2:]
    assert rows == [60, 0]  # of the second each is alone
    assert 0 < errors[0] <= 60
    assert errors[1] == 0


@pytest.mark.parametrize("models", [np.zeros((6, 4)), np.zeros(4)])
def test_no_more_groupings_are_answered_than_are_tried(models):
    """`candidates` (2, 3), each on two scales, and one group of all."""
    with pytest.raises(RefusedError, match="there are at most 5"):
        counts_of(Groupings(models, np.zeros(6), 3), clients(2))


@pytest.mark.parametrize("look", [-1, 2, 5, 10**12])
def test_groupings_are_compared_at_the_latest_level_where_it_is_to_be_found(look):
    with pytest.raises(
        RefusedError, match=r"at level -?\d+, by a client at level 2 of global, auto"
    ):
        counts_of(Groupings(blank()[None], np.zeros(1), look), clients(2))
