"""FeMAM: what it is with some levels only, against other algorithms and by hand, and its levels."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import federations  # noqa: E402
import intarsia  # noqa: E402  after the skip where torch is missing
from intarsia.algorithms.femam import client as femam_client  # noqa: E402
from intarsia.algorithms.femam import validation  # noqa: E402
from intarsia.algorithms.femam.algorithm import FEMAM  # noqa: E402
from intarsia.algorithms.femam.hyperparameters import FeMAM  # noqa: E402
from intarsia.algorithms.networks.architecture import levels_of  # noqa: E402
from intarsia.algorithms.networks.targets import odds  # noqa: E402
from intarsia.algorithms.personalised.fedrep import FEDAVG_FT, FedAvgFT  # noqa: E402
from intarsia.core.algorithm import RoundMetrics  # noqa: E402
from intarsia.core.block import Block, Labels  # noqa: E402
from intarsia.engines import codec  # noqa: E402
from intarsia.engines.communication_log import RECORDS  # noqa: E402
from intarsia.errors import ExperimentError, SealedError  # noqa: E402
from plain_descent import forward, mean, split, stepped, tensors  # noqa: E402

LABELS = Labels("multiclass", ("a", "b", "c"))
NETWORK = {"embedding": "perceptron", "hidden": 6, "latent": 4}
DOUBLE = {"precision": "double", "engine": "loop"}
# batches of all rows, so that their order is of no account
PLAIN = {"local_epochs": 2, "batch": 100, "rate": 0.05, **DOUBLE}
TRAINING = {**PLAIN, "optimiser": "adam", "validation": 0.0, "prune": "never"}
EQUAL = {**TRAINING, "weights": "equal"}


def clients(count=4, samples=20, permuted=lambda number: (0, 1, 2), spread=1.0):
    """Return clients of three classes, whose names may be permuted from client to client."""
    rng = np.random.default_rng(0)
    centres = 3 * rng.normal(size=(3, 3))
    made = {}
    for number in range(count):
        y = np.arange(samples + 2 * number) % 3
        x = centres[y] + spread * rng.normal(size=(len(y), 3))
        y = np.array(permuted(number))[y]
        rows = 1000 * number + np.arange(len(y))
        made[f"c{number}"] = Block(rows, ("f0", "f1", "f2"), x, y + 0.0)
    return made


def started(algorithm, options, blocks, seed=0):
    return federations.started(algorithm, options, blocks, LABELS, seed)


def run(algorithm, options, blocks=None, rounds=4, present=lambda number: None, seed=0):
    """Return the engine after some rounds, the server's state and the conclusion."""
    engine, server = started(algorithm, options, clients() if blocks is None else blocks, seed)
    for number in range(1, rounds + 1):
        engine.begin_round(number, present(number))
        server, info = algorithm.round(server, engine, engine.key())
        if info.finished:
            break
    engine.begin_round(number + 1)
    return engine, server, algorithm.conclude(server, engine, engine.key())


def networks(engine, algorithm=FEMAM):
    return {name: algorithm.model.network(state) for name, state in engine.get_states().items()}


def without(front, parameters):
    return {n.removeprefix(front): v for n, v in parameters.items() if n.startswith(front)}


def close(one, other, atol=1e-12):
    assert one.keys() == other.keys()
    for name, values in one.items():
        np.testing.assert_allclose(values, other[name], atol=atol, err_msg=name)


# ---- exact reductions


@pytest.mark.parametrize(
    "network", [NETWORK, {"embedding": "linear"}], ids=["perceptron", "linear"]
)
@pytest.mark.parametrize(("level", "final"), [("global", 0), (1, 0), ("all", 0), ("global", 3)])
def test_one_level_for_all_is_federated_averaging(level, final, network):
    groups = {"all": {f"c{number}": "everybody" for number in range(4)}}
    present = {2: ("c1", "c3")}.get
    average = FedAvgFT(**PLAIN, **network, optimiser="adam", final_epochs=final, weights="clients")
    other, _, expected = run(FEDAVG_FT, average, present=present)
    # level 1 has no level before it to start from: it starts as federated averaging does
    options = FeMAM(
        level_schedule="paper",
        levels=(level,),
        groups=groups,
        final_epochs=final,
        **EQUAL,
        **network,
    )
    engine, _, found = run(FEMAM, options, present=present)
    for name, parameters in networks(engine).items():
        close(without("levels.1.", parameters), networks(other, FEDAVG_FT)[name])
    assert found.info.loss == pytest.approx(expected.info.loss, abs=1e-12)


@pytest.mark.parametrize("start", ["zero-output", "level-1"])
@pytest.mark.parametrize("weights", ["samples", "equal"])
@pytest.mark.parametrize("pull", [0.0, 0.3], ids=["free", "pulled"])
def test_global_and_personal_is_the_residual_model_of_two_levels(start, weights, pull):
    """Against plain PyTorch: averaged descent, then each client on the residual."""
    blocks = clients(3)
    plan = {"first_rounds": 3, "level_rounds": 2, "window": 0}
    descent = {**TRAINING, "optimiser": "sgd"}
    options = FeMAM(
        level_schedule="paper",
        levels=("global", "personal"), start=start, weights=weights, **plan, **descent, **NETWORK,
        proximal=pull, proximal_norm="plain", proximal_levels="all",
    )  # fmt: skip
    engine, server = started(FEMAM, options, blocks)
    rows = {
        name: (torch.from_numpy(block.x), torch.from_numpy(block.y.astype(int)))
        for name, block in blocks.items()
    }

    def to(held):
        return {"pull": pull, "to": held, "plain": True}

    w = split(server.levels[0].models[0], engine.get_states()["c0"].start)
    count = {name: len(y) if weights == "samples" else 1 for name, (_, y) in rows.items()}
    for _ in range(3):
        each = [stepped(w, x, y, 2, 0.05, **to(w)) for x, y in rows.values()]
        w = mean(each, list(count.values()))
    engine, _, conclusion = run(FEMAM, options, blocks, rounds=10)
    assert conclusion.structure == ({"c0": 0, "c1": 0, "c2": 0}, {"c0": 0, "c1": 1, "c2": 2})
    for client, (x, y) in rows.items():
        base = forward(w, x)
        second = dict(w)
        if start == "zero-output":
            for name in ("classifier.weight", "classifier.bias"):
                second[name] = torch.zeros_like(w[name])
        for _ in range(2):
            second = stepped(second, x, y, 2, 0.05, base=base, **to(second))
        found = networks(engine)[client]
        close(without("levels.1.", found), {n: v.numpy() for n, v in w.items()})
        close(without("levels.2.", found), {n: v.numpy() for n, v in second.items()})
        scores = (base + forward(second, x)).numpy()
        odds = FEMAM.model.predict(engine.get_states()[client], blocks[client])
        p = np.exp(scores - scores.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        np.testing.assert_allclose(odds.T, np.log(p / (1 - p)), atol=1e-10)


@pytest.mark.slow
def test_equal_populations_prune_to_level_1():
    options = FeMAM(
        level_schedule="paper",
        levels=("global", 2, "personal"), validation=0.3, first_rounds=25, level_rounds=3,
        local_epochs=2, batch=16, rate=0.05, embedding="linear", optimiser="adam", **DOUBLE,
    )  # fmt: skip
    blocks = clients(8, samples=60, spread=3.0)
    _, _, conclusion = run(FEMAM, options, blocks, rounds=100)
    first, *others = conclusion.structure
    assert len(first) == 8
    assert sum(map(len, others)) <= 1  # of 16: a test at 1 in 20 may err


@pytest.mark.parametrize("levels", [("region",), ("global", "region")])
def test_given_clusters_are_averages_of_their_own(levels):
    """A level of two clusters trains as if each were a federation with the same level 1."""
    groups = {"region": {"c0": "north", "c1": "south", "c2": "north", "c3": "south"}}
    plan = {"first_rounds": 2, "level_rounds": 2, "window": 0}
    options = FeMAM(
        level_schedule="paper", levels=levels, groups=groups, **plan, **TRAINING, **NETWORK
    )
    both, _, conclusion = run(FEMAM, options, rounds=9)
    assert conclusion.structure[-1] == {"c0": 0, "c1": 1, "c2": 0, "c3": 1}
    for members in (("c0", "c2"), ("c1", "c3")):
        # the others are away after level 1: what is left is one model for those that are there
        alone = dataclasses.replace(options, levels=(*levels[:-1], "global"), groups={})
        first = 0 if len(levels) == 1 else 2
        engine, *_ = run(
            FEMAM, alone, rounds=9, present=lambda n, first=first, own=members: own * (n > first)
            or None,
        )  # fmt: skip
        for name in members:
            close(networks(engine)[name], networks(both)[name])


# ---- levels


PERMUTED = {"permuted": lambda number: ((0, 1, 2), (1, 2, 0), (2, 0, 1))[number % 3]}
LEVELS = {
    "first_rounds": 4, "level_rounds": 5, "window": 0, "local_epochs": 1, "batch": 12,
    "optimiser": "adam", "rate": 0.02, "validation": 0.2, "first_clustering": 2,
    **DOUBLE, **NETWORK,
}  # fmt: skip


def accuracies(engine, blocks):
    return [
        float(np.mean(FEMAM.model.predict(state, blocks[name]).argmax(0) == blocks[name].y))
        for name, state in engine.get_states().items()
    ]


@pytest.mark.parametrize(
    "more",
    [
        pytest.param({}, marks=pytest.mark.slow),
        pytest.param({"cluster_on": "last", "scaled": True}, marks=pytest.mark.slow),
        {"start": "random"},
    ],
)
def test_clusters_of_permuted_classes_are_found_and_pay(more):
    blocks = clients(9, **PERMUTED)
    settings = {**LEVELS, "level_rounds": 12, "local_epochs": 3, "rate": 0.03, "prune": "never"}
    settings["engine"] = "vmap"
    one, _, _ = run(
        FEMAM, FeMAM(level_schedule="paper", levels=("global",), **settings), blocks, rounds=16
    )
    options = FeMAM(level_schedule="paper", levels=("global", 3), **settings, **more)
    engine, _, conclusion = run(FEMAM, options, blocks, 30)
    level = conclusion.structure[1]
    assert len(level) == 9
    assert all(level[f"c{n}"] == level[f"c{n % 3}"] for n in range(9))
    assert len(set(level.values())) == 3
    assert np.mean(accuracies(engine, blocks)) > 0.8 > 0.5 > np.mean(accuracies(one, blocks))


def test_clusters_are_found_once_clients_trained_models_of_their_own():
    """Before that the server gets no model, and a client goes on with the one it has."""
    blocks = clients(3)
    options = FeMAM(
        level_schedule="paper",
        levels=("global", 2),
        **{**LEVELS, "prune": "never", "first_rounds": 1, "first_clustering": 3, "batch": 100},
    )
    apart = dataclasses.replace(options, levels=("global", "personal"), level_rounds=2)
    engine, server = started(FEMAM, options, blocks)
    other, alone = started(FEMAM, apart, blocks)
    for number in (1, 2, 3):
        for one in (engine, other):
            one.begin_round(number)
        server, _ = FEMAM.round(server, engine, engine.key())
        alone, _ = FEMAM.round(alone, other, other.key())
        server, _ = FEMAM.certify(server, engine, engine.key())  # a look at it changes nothing
    assert server.levels[1].models == (None, None)
    assert "send_model" not in str(engine.books.crossings.summary()["exchanges"])
    for name, state in engine.get_states().items():
        close(state.latest, other.get_states()[name].latest, atol=0.0)
    engine.begin_round(4)
    server, _ = FEMAM.round(server, engine, engine.key())
    assert set(server.levels[1].groups) == set(blocks)
    assert all(isinstance(model, np.ndarray) for model in server.levels[1].models)


@pytest.mark.slow
def test_the_number_of_clusters_is_chosen_by_validation():
    blocks = clients(9, samples=40, **PERMUTED)
    settings = {**LEVELS, "level_rounds": 4, "local_epochs": 3, "rate": 0.03, "prune": "never"}
    settings["engine"] = "vmap"
    options = FeMAM(
        level_schedule="paper", levels=("global", "auto"), candidates=(2, 3, 4, 6), **settings
    )
    _, server, conclusion = run(FEMAM, options, blocks, 30)
    level = conclusion.structure[1]
    assert len(server.levels[1].models) == 3 == len(set(level.values()))
    assert all(level[f"c{n}"] == level[f"c{n % 3}"] for n in range(9))
    (said,) = conclusion.notes
    assert said.startswith("Level 2 has 3 clusters")


def test_levels_that_come_to_nothing_are_named():
    groups = {"region": dict.fromkeys(("c0", "c1", "c2"), "north")}
    options = FeMAM(level_schedule="paper", levels=("global", 5), groups=groups, **LEVELS)
    _, server, conclusion = run(FEMAM, options, clients(3), 30)
    assert len(server.levels[1].models) == 3
    assert conclusion.level_words == ("global", "3 clusters")
    unnamed, narrow = conclusion.notes
    assert unnamed.startswith("No level names 'region'")
    assert narrow.startswith("Level 2 was to have 5 clusters and has 3, one for each client")


def test_a_new_level_begins_as_no_change():
    blocks = clients(3)
    options = FeMAM(
        level_schedule="paper",
        levels=("global", 2),
        **{**LEVELS, "first_rounds": 1, "prune": "never", "rate": 1e-9},
    )
    engine, server = started(FEMAM, options, blocks)
    before = {}
    for number in (1, 2, 3):
        engine.begin_round(number)
        server, _ = FEMAM.round(server, engine, engine.key())
        if number == 1:
            server, _ = FEMAM.certify(server, engine, engine.key())  # level 2 begins
            for name, state in engine.get_states().items():
                before[name] = FEMAM.model.predict(state, blocks[name])
                (first,) = levels_of(state.kept).values()
                scores = forward(tensors(first), torch.from_numpy(blocks[name].x)).numpy()
                np.testing.assert_allclose(before[name], odds(scores), atol=1e-12)
    for name, state in engine.get_states().items():
        assert state.level == 2
        assert state.latest
        np.testing.assert_allclose(
            FEMAM.model.predict(state, blocks[name]), before[name], atol=1e-5
        )


def test_the_scores_of_frozen_levels_are_computed_once_a_level(monkeypatch):
    calls = []
    original = femam_client.network_scores

    def counted(parameters, made_of, block, device):
        calls.append(any(parameters is one for one in frozen))
        return original(parameters, made_of, block, device)

    frozen = []
    monkeypatch.setattr(femam_client, "network_scores", counted)
    options = FeMAM(
        level_schedule="paper", levels=("global", 2, "personal"), **{**LEVELS, "prune": "never"}
    )
    engine, _, _ = run(FEMAM, options, clients(3, 30), rounds=100)
    # three clients, each of five rows for validation or more, which are counted at each round:
    # 4 + 5 + 5 rounds open a model, three levels close, one loss at the end that
    # adds up three levels
    assert len(calls) == 3 * (14 + 3 + 3)
    for name, state in engine.get_states().items():
        block = clients(3, 30)[name]
        each = [
            original(own, options.architecture, block)
            for own in levels_of(FEMAM.model.network(state)).values()
        ]
        assert len(each) == 3
        np.testing.assert_allclose(state.base, np.sum(each, axis=0), atol=1e-12)


def test_a_level_that_is_frozen_stays():
    plan = {**LEVELS, "prune": "never"}
    options = FeMAM(
        level_schedule="paper", levels=("global", 2, "personal"), calibrated=False, **plan
    )
    short, *_ = run(FEMAM, dataclasses.replace(options, levels=("global", 2)), rounds=100)
    whole, *_ = run(FEMAM, options, rounds=100)
    for name, parameters in networks(short).items():
        found = networks(whole)[name]
        close({key: found[key] for key in parameters}, parameters, atol=0.0)


def test_the_mean_of_levels_is_a_mean():
    options = FeMAM(
        level_schedule="paper",
        levels=("global", "personal"), combination="mean", start="level-1",
        **{**LEVELS, "prune": "never"},
    )  # fmt: skip
    blocks = clients(2)
    engine, *_ = run(FEMAM, options, blocks, rounds=100)
    for name, state in engine.get_states().items():
        each = levels_of(FEMAM.model.network(state)).values()
        scores = np.mean(
            [forward(tensors(own), torch.from_numpy(blocks[name].x)).numpy() for own in each],
            axis=0,
        )
        np.testing.assert_allclose(
            FEMAM.model.predict(state, blocks[name]), odds(scores), atol=1e-10
        )


def test_clients_that_were_away_make_up_for_levels():
    options = FeMAM(
        level_schedule="paper", levels=("global", 2, "personal"), **{**LEVELS, "prune": "never"}
    )
    blocks = clients(5)
    plan = {"present": lambda n: ("c0", "c1", "c2", "c3") if n <= 5 else ("c1", "c2", "c4")}
    engine, _, conclusion = run(FEMAM, options, blocks, rounds=100, **plan)
    assert all(set(level) == set(blocks) for level in conclusion.structure)
    states = engine.get_states()
    first = [without("levels.1.", own) for own in networks(engine).values()]
    for other in first[1:]:
        close(first[0], other, atol=0.0)
    assert all(state.level == 3 and not state.latest for state in states.values())
    # c0 trained no personal level: it is no change
    assert not networks(engine)["c0"]["levels.3.classifier.weight"].any()
    assert networks(engine)["c4"]["levels.3.classifier.weight"].any()


def test_a_level_ends_when_its_accuracy_is_steady():
    options = FeMAM(
        level_schedule="paper",
        levels=("global", 2),
        **{**LEVELS, "window": 3, "steadiness": 1e9, "first_clustering": 1},
    )
    _, server, _ = run(FEMAM, options, rounds=100)
    assert [level.rounds for level in server.levels] == [4, 3]
    never = dataclasses.replace(options, steadiness=0.0)
    _, server, _ = run(FEMAM, never, rounds=100)
    assert [level.rounds for level in server.levels] == [4, 5]
    assert len(server.levels[1].accuracies) == 3


def test_a_run_that_is_evaluated_in_its_last_round_ends_there():
    """`certify` says it too: training takes what it says for what the round said."""
    options = FeMAM(level_schedule="paper", levels=("global", 2), **LEVELS)
    engine, server = started(FEMAM, options, clients())
    for number in range(1, 10):
        engine.begin_round(number)
        server, info = FEMAM.round(server, engine, engine.key())
        server, certified = FEMAM.certify(server, engine, engine.key())
        assert (info.finished, certified.finished) == (number == 9,) * 2


@pytest.mark.parametrize(
    ("prune", "margin", "falls", "kept"),
    [
        ("margin", 0.1, 0.2, True),
        ("margin", 0.3, 0.2, False),
        ("paired", 9.0, 0.2, True),
        ("paired", 0.0, 0.05, False),
        ("never", 9.0, -1.0, True),
    ],
)
def test_a_client_keeps_a_level_that_lowers_its_loss(prune, margin, falls, kept):
    """Losses fall by 0.2 ± 0.1 (twice 0.1 / √20 is 0.045), or by 0.05 ± 0.2."""
    blocks = clients(1, samples=100)
    options = FeMAM(
        level_schedule="paper",
        levels=("global", "personal"),
        prune=prune,
        criterion="loss",
        margin=margin,
        **{**LEVELS, "validation": 0.2},
    )
    client = run(FEMAM, options, blocks, rounds=1)[0].get_states()["c0"]
    rng = np.random.default_rng(0)
    deviation = 0.1 if falls == 0.2 else 0.25
    drawn = rng.normal(size=100)
    rows = client.held_out
    assert rows.sum() == 20
    drawn[rows] = (drawn[rows] - drawn[rows].mean()) / drawn[rows].std()
    y = blocks["c0"].y.astype(int)
    # scores (0, s, …): two classes that weigh log(2 + e^s) - s
    before = np.zeros((100, 3))
    after = np.zeros((100, 3))
    wanted = np.log(3) - falls - deviation * drawn  # of the loss
    after[np.arange(100), y] = np.log(2) - np.log(np.expm1(np.maximum(wanted, 1e-9)))
    client = dataclasses.replace(client, base=before)
    fallen = femam_client._falls(client, after, y)
    assert validation.helps(options, fallen, None) is kept


@pytest.mark.parametrize(
    ("prune", "mended", "spoilt", "kept"),
    [
        ("paired", 3, 0, True),  # 3 of 20: 0.15 ± 0.08
        ("paired", 2, 0, False),  # 0.1 ± 0.07
        ("paired", 9, 4, False),  # 0.25 ± 0.18
        ("margin", 1, 0, True),  # 0.05
        ("margin", 4, 4, False),
    ],
)
def test_a_client_keeps_a_level_that_lowers_its_errors(prune, mended, spoilt, kept):
    """Whatever the loss: of the rows that are spoilt it is large."""
    options = FeMAM(
        level_schedule="paper",
        levels=("global", "personal"),
        prune=prune,
        **{**LEVELS, "validation": 0.2},
    )
    blocks = clients(1, samples=100)
    client = run(FEMAM, options, blocks, rounds=1)[0].get_states()["c0"]
    y = blocks["c0"].y.astype(int)
    right, wrong = np.eye(3)[y], np.eye(3)[(y + 1) % 3]
    rows = np.flatnonzero(client.held_out)
    before, after = right.copy(), right.copy()
    before[rows[:mended]] = wrong[rows[:mended]]
    after[rows[mended : mended + spoilt]] = 50 * wrong[rows[mended : mended + spoilt]]
    client = dataclasses.replace(client, base=before)
    fallen = femam_client._falls(client, after, y + 0.0)
    assert validation.helps(options, fallen, None) is kept


# ---- what crosses, engines, files


EVERY = FeMAM(
    level_schedule="paper",
    levels=("global", "auto", "region", "personal"),
    candidates=(2, 3),
    groups={"region": {"c0": "n", "c1": "s", "c2": "n", "c3": "s"}},
    **{**LEVELS, "first_rounds": 2, "level_rounds": 3, "local_epochs": 1},
)


def test_the_server_reads_models_at_levels_of_clusters_only():
    engine, server, _ = run(FEMAM, EVERY, rounds=100)
    first, second, third, fourth = server.levels
    for sealed in (*first.models, *third.models):
        with pytest.raises(SealedError):
            np.asarray(sealed)
    assert all(isinstance(model, np.ndarray) for model in second.models)
    assert fourth.models == (None,)
    only = dataclasses.replace(EVERY, levels=("global", "region", "personal"))
    quiet, *_ = run(FEMAM, only, rounds=100)
    sent = {engine: engine.books.traffic.summary()["by_message"] for engine in (engine, quiet)}
    assert "Model" in sent[quiet]
    asked = [str(one) for one in quiet.books.crossings.summary()["exchanges"]]
    assert not any("send_model" in one for one in asked)


def test_clients_that_train_together_come_to_what_each_comes_to_alone():
    loop, *_ = run(FEMAM, EVERY, rounds=100)
    together, *_ = run(FEMAM, dataclasses.replace(EVERY, engine="vmap"), rounds=100)
    for name, parameters in networks(loop).items():
        close(parameters, networks(together)[name], atol=1e-10)


@pytest.mark.parametrize(
    "cut", [3, 6, *(pytest.param(one, marks=pytest.mark.slow) for one in (1, 4, 9))]
)
def test_a_run_read_back_from_bytes_goes_on_to_the_same_bits(cut):
    whole, last, expected = run(FEMAM, EVERY, rounds=10)
    assert len(last.levels[1].trials) == 2  # a number of clusters was chosen
    engine, server = started(FEMAM, EVERY, clients())
    for number in range(1, 11):
        engine.begin_round(number)
        server, _ = FEMAM.round(server, engine, engine.key())
        if number == cut:
            written = codec.encode((engine.books.seal(server), engine.get_states()))
            sealed, states = codec.decode(written, *FEMAM.states, *RECORDS)
            engine, _ = started(FEMAM, EVERY, clients())
            engine.set_states(states)
            server = engine.books.unseal(sealed)
    engine.begin_round(11)
    assert FEMAM.conclude(server, engine, engine.key()) == expected
    for name, parameters in networks(whole).items():
        close(parameters, networks(engine)[name], atol=0.0)


def test_messages_come_back_from_bytes_and_all_functions_are_named():
    loss = {"clustering": "loss", "start": "random", "equal_starts": False, "final_epochs": 1}
    seen = functions_called(EVERY)
    seen |= functions_called(dataclasses.replace(EVERY, levels=("global", 2), **loss))
    seen |= functions_called(dataclasses.replace(EVERY, levels=("global", "shares")))
    seen |= functions_called(dataclasses.replace(EVERY, schedule="step"))
    adaptive = {"level_schedule": "adaptive", "prune": "pooled", "final_epochs": 0, "patience": 1}
    whole = {"levels": ("global", 2, "personal"), **adaptive}
    seen |= functions_called(dataclasses.replace(EVERY, **whole))
    grouped = {**adaptive, "levels": ("global", "auto", "global", "personal"), "warm_up": 1}
    seen |= functions_called(dataclasses.replace(EVERY, **grouped))
    assert seen == {fn.name for fn in FEMAM.disclosure.functions}


def functions_called(options):
    """Return which client functions a run calls, every message of which goes through bytes."""
    engine, server = started(FEMAM, options, clients())
    watched, info = federations.ThroughBytes(engine), RoundMetrics()
    while not info.finished:
        engine.begin_round(server.rounds + 1)
        server, info = FEMAM.round(server, watched, engine.key())
    FEMAM.conclude(server, watched, engine.key())
    return watched.called


@pytest.mark.parametrize("mode", [pytest.param("plain", marks=pytest.mark.slow), "masked"])
def test_a_run_leaves_networks_that_predict(tmp_path, mode):
    blocks = clients()
    tables = {client: (block.x, block.y.astype(int)) for client, block in blocks.items()}
    settings = {
        "name": "femam", "level_schedule": "paper",
        "levels": ["global", 2, "region", "personal", "shares"],
        "hidden": 6, "latent": 4, "groups": EVERY.groups, "first_rounds": 3, "level_rounds": 2,
        "optimiser": "adam",
        "rate": 0.02, "prune": "margin", "validation": 0.2, "engine": "loop",
    }  # fmt: skip
    result = intarsia.run(
        tables=tables, algorithm=settings, classes=["0", "1", "2"], rounds=20, yardsticks=False,
        evaluate_every=3, privacy={"mode": mode, "least_clients": 2}, out=tmp_path / "run",
    )  # fmt: skip
    assert (result.rounds, result.finished) == (10, "algorithm")
    again = intarsia.load(tmp_path / "run").model
    for name, block in blocks.items():
        odds_of = result.model[name].decision_function(block.x)
        np.testing.assert_array_equal(again[name].decision_function(block.x), odds_of)
        right = result.model[name].predict(block.x).astype(int) == block.y
        assert np.mean(right) > 0.5  # by chance a third


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"levels": ()}, "algorithm.levels is empty"),
        ({"levels": ("global", 0)}, "has 0; a level has at least 1 cluster"),
        ({"levels": ("global", "regions")}, "has 'regions'; use 'region'"),
        ({"levels": (3, 2)}, "begins with 3 and algorithm.start is 'zero-output'"),
        ({"validation": 0.0}, "validation is 0 and algorithm.prune is 'pooled'"),
        ({"validation": 1.0}, "validation is 1.0"),
        ({"levels": ("global", "auto"), "candidates": (3, 2)}, r"candidates is \[3, 2\]; give"),
        ({"levels": ("global", "auto"), "candidates": (0, 2)}, r"candidates is \[0, 2\]; give"),
        ({"levels": ("global", "auto"), "clustering": "nearest"}, '"auto" with validation = 0.1'),
        ({"clustering": "loss"}, 'clustering is "loss", by which'),
        ({"levels": ("shares", "global")}, 'begins with "shares"; begin with'),
        (
            {"levels": ("global", "shares"), "validation": 0.0, "prune": "never"},
            '"shares" with validation = 0',
        ),
        ({"levels": ("global", "shares"), "final_epochs": 2}, 'ends with "shares", and final'),
        ({"levels": ("global", "shares", "shares")}, 'name "shares" once'),
        ({"groups": {"shares": {"c0": "a"}}}, "algorithm.groups has 'shares', which"),
        ({"steadiness": -1.0}, "steadiness is -1"),
        ({"rate": 0.0}, "rate is 0.0"),
        ({"combination": "product"}, "combination is 'product'"),
    ],
)
def test_a_wrong_hyperparameter_is_named(wrong, said):
    groups = {"region": {"c0": "a"}}
    with pytest.raises(ExperimentError, match=said):
        FeMAM(level_schedule="paper", **{"groups": groups, **wrong})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"c0": "a"}, "algorithm.groups.region has no cluster for 'c1', 'c2'"),
        ({f"c{n}": "a" for n in range(4)} | {"c9": "b"}, "names the client 'c9'"),
    ],
)
def test_clusters_that_do_not_fit_the_clients_are_named(given, said):
    options = FeMAM(level_schedule="paper", levels=("region",), groups={"region": given})
    with pytest.raises(ExperimentError, match=said):
        started(FEMAM, options, clients())
