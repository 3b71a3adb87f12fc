"""FLIC and its baselines: against each other, against the formulas, and against the plain loop."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from scipy.linalg import sqrtm
from scipy.special import log_softmax, softmax

torch = pytest.importorskip("torch")

import federations  # noqa: E402
from intarsia.algorithms.flic import algorithm as flic  # noqa: E402
from intarsia.algorithms.flic import barycentre  # noqa: E402
from intarsia.algorithms.flic import objective as flic_objective  # noqa: E402  after the skip
from intarsia.algorithms.flic.algorithm import FLIC, Flic  # noqa: E402
from intarsia.algorithms.networks import (  # noqa: E402  after the skip
    client_network,
    label_scaling,
    parameter_sharing,
    targets,
)
from intarsia.algorithms.personalised.fedrep import HETFEDREP, LOCAL, HetFedRep, Local  # noqa: E402
from intarsia.core.block import Block, Labels  # noqa: E402
from intarsia.core.disclosure import Release  # noqa: E402
from intarsia.core.schema import Schema  # noqa: E402
from intarsia.engines import codec  # noqa: E402
from intarsia.engines.communication_log import RECORDS  # noqa: E402
from intarsia.engines.simulation import Simulation  # noqa: E402
from intarsia.errors import ExperimentError, FederationError, SealedError, TableError  # noqa: E402
from intarsia.maths.matching import distribution_distances  # noqa: E402

LABELS = Labels("multiclass", ("a", "b", "c"))
SMALL = {"hidden": 8, "latent": 4, "local_epochs": 1, "final_epochs": 1, "batch": 12}
# with a layer that all share, and without decay
PLAIN = {"variant": "hl", "anchor_scale": 1.0, "weight_decay": 0.0, "embedding_decay": 0.0}
FLIC_SMALL = {
    **{**SMALL, **PLAIN, "pretraining_epochs": 2},
    **{"alignment_weight": 0.1, "calibration_weight": 0.1},
}
DOUBLE = {"precision": "double", "engine": "loop"}
PRESENT = {1: ("c1", "c3"), 2: ("c0", "c1", "c2")}  # the clients of a round; else all
WIDTHS = (3, 2, 5, 4)


def clients(samples=30, seed=0, shift=2.0):
    """Return four clients with features of their own, and two or three of three classes."""
    rng = np.random.default_rng(seed)
    centres = shift * rng.normal(size=(3, 6))
    made = {}
    for number, width in enumerate(WIDTHS):
        classes = [0, 1, 2] if number == 3 else [number % 3, (number + 1) % 3]
        y = np.array(classes)[rng.integers(0, len(classes), samples + 5 * number)]
        x = (centres[y] + rng.normal(size=(len(y), 6))) @ rng.normal(size=(6, width))
        x /= x.std(0)
        rows = 1000 * number + np.arange(len(y))
        made[f"c{number}"] = Block(rows, tuple(f"f{j}" for j in range(width)), x, y + 0.0)
    return made


def started(algorithm, options, blocks=None, labels=LABELS, seed=0):
    blocks = clients() if blocks is None else blocks
    return federations.started(algorithm, options, blocks, labels, seed)


def rounds(algorithm, engine, server, first=1, last=2):
    for number in range(first, last + 1):
        engine.begin_round(number, PRESENT.get(number))
        server, _ = algorithm.round(server, engine, engine.key())
    return server


def concluded(algorithm, engine, server, last=2):
    engine.begin_round(last + 1)
    return algorithm.conclude(server, engine, engine.key())


def parameters(engine):
    return {name: state.parameters for name, state in engine.get_states().items()}


def embedded(state, block):
    return state.options.architecture.outputs(state.parameters, block)[0]


def by_name(engine, vector, client="c0"):
    """Return what all share by the names of the parameters."""
    own = engine.get_states()[client]
    names = own.options.shared_parts
    found = client_network.with_parts(own.parameters, names, vector)
    return {name: found[name] for name in found if found[name] is not own.parameters[name]}


def largest_difference(one, other):
    return max(
        float(np.abs(own - other[client][name]).max())
        for client, held in one.items()
        for name, own in held.items()
        if name in other[client]
    )


@pytest.mark.parametrize(
    ("variant", "baseline", "options"),
    [("hl", HETFEDREP, HetFedRep), ("class", LOCAL, Local)],
    ids=["hetfedrep", "local"],
)
def test_without_weights_and_pretraining_flic_is_the_baseline_to_the_bit(
    variant, baseline, options
):
    off = {"alignment_weight": 0.0, "calibration_weight": 0.0, "pretraining_epochs": 0}
    off |= {**PLAIN, "variant": variant}
    found = {}
    for name, algorithm, made in (
        ("flic", FLIC, Flic(**SMALL, **off)),
        ("baseline", baseline, options(**SMALL)),
        ("aligned", FLIC, Flic(**SMALL, **{**off, "alignment_weight": 1e-3})),
    ):
        engine, server = started(algorithm, made)
        server = rounds(algorithm, engine, server)
        conclusion = concluded(algorithm, engine, server)
        found[name] = parameters(engine), conclusion.info.loss
    assert largest_difference(found["baseline"][0], found["flic"][0]) == 0.0
    assert found["baseline"][1] == found["flic"][1]
    assert largest_difference(found["baseline"][0], found["aligned"][0]) > 0.0


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"variant": "class", "alignment": "sample", "anchor_classes": "all"},
        {"anchor_covariance": "learned", "anchor_classes": "all"},
        {"alignment": "transport", "alignment_epochs": 1},
        {"alignment": "energy", "anchor_covariance": "learned"},
        {"scheme": "fedavg-ft"},
        {"scheme": "l2gd"},
        {"dropout": 0.4},
    ],
    ids=lambda given: " ".join(given) or "plain",
)
def test_clients_that_train_together_come_to_what_each_comes_to_alone(given):
    found = {}
    for engine_name in ("loop", "vmap"):
        options = Flic(**{**FLIC_SMALL, **given, "precision": "double", "engine": engine_name})
        engine, server = started(FLIC, options)
        server = rounds(FLIC, engine, server)
        concluded(FLIC, engine, server)
        found[engine_name] = parameters(engine)
    assert largest_difference(found["loop"], found["vmap"]) < 1e-10


def test_a_client_function_alone_is_the_one_for_several():
    options = Flic(**FLIC_SMALL, **DOUBLE)
    engine, server = started(FLIC, options)
    expected = parameters(engine)
    one_by_one = dataclasses.replace(flic.pretrain, together=None)
    blocks = clients()
    schema = Schema.of(blocks, LABELS)
    other = Simulation({"train": (schema, blocks)}, 0)
    other.set_states(
        {
            name: flic.init_client(options, schema, name, other.block(name), other.client_key(name))
            for name in other.ids
        }
    )
    server = flic.init_server(options, schema, other.key("init"))
    messages = dict.fromkeys(other.ids, parameter_sharing.Start())
    messages["c0"] = server.start
    total = other.sum(parameter_sharing.send_start, messages)
    told = parameter_sharing.Shared(shared=total.shared, round=0)
    other.ask(one_by_one, dict.fromkeys(other.ids, told))
    assert largest_difference(expected, parameters(other)) == 0.0


def objective_by_hand(options, state, block, noise):
    """Return F_i of all rows, term by term, in NumPy; `noise` is (rows, k)."""
    own = state.parameters
    z = options.architecture.outputs(own, block)[0]
    y = block.y.astype(int)

    def log_chances(points):
        hidden = points @ own["shared.0.weight"].T + own["shared.0.bias"]
        hidden = np.maximum(hidden, 0) + 0.01 * np.minimum(hidden, 0)
        return log_softmax(hidden @ own["classifier.weight"].T + own["classifier.bias"], axis=1)

    value = -log_chances(z)[np.arange(len(y)), y].mean()
    e = options.anchor_variance
    for c in np.unique(y):
        m, S = z[y == c].mean(0), np.cov(z[y == c].T, ddof=0)
        centre = own["anchors.means"][c]
        bures = np.trace(S) + e * len(S) - 2 * np.sqrt(e) * np.trace(np.real(sqrtm(S)))
        value += options.alignment_weight * (((m - centre) ** 2).sum() + bures)
        points = centre + np.sqrt(e) * noise[y == c]  # a sample for each row
        value += options.calibration_weight * -log_chances(points)[:, c].mean()
    return value


def test_the_objective_is_that_of_the_paper(monkeypatch):
    monkeypatch.setattr(distribution_distances.to_gaussians, "__defaults__", (1e-16,))
    monkeypatch.setattr(distribution_distances.to_samples, "__defaults__", (1e-16,))
    options = Flic(**{**FLIC_SMALL, "anchor_variance": 2.0, "anchor_scale": 1.0}, **DOUBLE)
    engine, _ = started(FLIC, options)
    state, block = engine.get_states()["c2"], clients()["c2"]
    model = client_network.Network(block.shape[1], 3, options.architecture).double()
    model.load_state_dict({k: torch.from_numpy(v) for k, v in state.parameters.items()})
    noise = np.random.default_rng(0).normal(size=(block.shape[0], 4))
    batch = {
        "x": torch.from_numpy(block.x),
        "y": torch.from_numpy(block.y.astype(int)),
        "noise": torch.from_numpy(noise),
        "weight": torch.ones(block.shape[0], dtype=torch.float64),
    }
    each, penalty = flic_objective.objective(options)(model, batch)
    expected = objective_by_hand(options, state, block, noise)
    assert float((each.mean() + penalty).detach()) == pytest.approx(expected, abs=1e-6)
    sampled = dataclasses.replace(options, alignment="sample", calibration_weight=0.0)
    _, penalty = flic_objective.objective(sampled)(model, batch)
    z, total = options.architecture.outputs(state.parameters, block)[0], 0.0
    for c in np.unique(block.y).astype(int):
        own = block.y == c
        points = state.parameters["anchors.means"][c] + np.sqrt(2.0) * noise[own]
        S, A = np.cov(z[own].T, ddof=1), np.cov(points.T, ddof=1)
        root = np.real(sqrtm(A))
        total += ((z[own].mean(0) - points.mean(0)) ** 2).sum() + np.trace(S) + np.trace(A)
        total -= 2 * np.trace(np.real(sqrtm(root @ S @ root)))
    expected = options.alignment_weight * total
    assert float(penalty.detach()) == pytest.approx(expected, abs=1e-6)


def test_anchors_step_towards_the_class_means_and_the_server_averages_the_steps():
    given = {**FLIC_SMALL, "calibration_weight": 0.0, "batch": 100, "rate": 0.01}
    engine, server = started(FLIC, Flic(**{**given, "variant": "class"}, **DOUBLE))
    before = by_name(engine, server.start.shared)["anchors.means"]
    engine.begin_round(1, ("c0", "c1"))
    server, _ = FLIC.round(server, engine, engine.key())
    steps = np.zeros_like(before)
    for name in ("c0", "c1"):
        block = engine.block(name)
        z = embedded(engine.get_states()[name], block)
        for c in np.unique(block.y).astype(int):
            # Adam's first step is as long as the rate, against the sign of the slope
            steps[c] += 0.01 * np.sign(z[block.y == c].mean(0) - before[c]) / 2
    after = by_name(engine, engine.reveal(server.shared))["anchors.means"]
    np.testing.assert_allclose(after - before, steps, atol=1e-5)


def test_fedavg_averages_the_heads_that_the_clients_come_to_and_tunes_the_average():
    options = Flic(**{**FLIC_SMALL, "scheme": "fedavg-ft"}, **DOUBLE)
    engine, server = started(FLIC, options)
    engine.begin_round(1, ("c0", "c1"))
    server, _ = FLIC.round(server, engine, engine.key())
    found, own = by_name(engine, engine.reveal(server.shared)), parameters(engine)
    assert {"classifier.weight", "shared.0.weight", "anchors.means"} <= set(found)
    for name in ("classifier.weight", "shared.0.bias"):
        expected = (own["c0"][name] + own["c1"][name]) / 2
        np.testing.assert_allclose(found[name], expected, atol=1e-12)
        assert np.abs(own["c0"][name] - own["c1"][name]).max() > 1e-4
    concluded(FLIC, engine, server, last=1)
    tuned = parameters(engine)
    assert np.abs(tuned["c2"]["classifier.weight"] - found["classifier.weight"]).max() > 1e-4


def test_fedavg_with_one_client_and_no_anchors_is_plain_training():
    off = {"alignment_weight": 0.0, "calibration_weight": 0.0, "pretraining_epochs": 0}
    blocks, found = {"c3": clients()["c3"]}, []
    for algorithm, options in (
        (FLIC, Flic(scheme="fedavg-ft", **{**SMALL, **PLAIN, **off, "variant": "class"}, **DOUBLE)),
        (LOCAL, Local(**SMALL, **DOUBLE)),
    ):
        engine, server = started(algorithm, options, blocks)
        if algorithm is FLIC:  # the server draws the head that all start from
            head = by_name(engine, server.start.shared, "c3")
        else:
            state = engine.get_states()["c3"]
            start = {name: head[name] for name in ("classifier.weight", "classifier.bias")}
            state = dataclasses.replace(state, parameters={**state.parameters, **start})
            engine.set_states({"c3": state})
        for number in (1, 2, 3):
            engine.begin_round(number)
            server, _ = algorithm.round(server, engine, engine.key())
        concluded(algorithm, engine, server, last=3)
        found.append(parameters(engine))
    assert largest_difference(found[1], found[0]) < 1e-12


@pytest.mark.parametrize("mixing", [0.25, 1.0])
def test_l2gd_scores_by_the_mixture_of_the_common_head_and_the_own(mixing):
    options = Flic(**{**FLIC_SMALL, "scheme": "l2gd", "mixing": mixing}, **DOUBLE)
    engine, server = started(FLIC, options)
    before = parameters(engine)["c1"]
    server = rounds(FLIC, engine, server)
    concluded(FLIC, engine, server)
    state = engine.get_states()["c1"]
    own, z = state.parameters, embedded(state, engine.block("c1"))

    def mixed(name):
        return mixing * own[f"common.{name}"] + (1 - mixing) * own[name]

    z = z @ mixed("shared.0.weight").T + mixed("shared.0.bias")
    z = np.where(z > 0, z, 0.01 * z)
    chances = softmax(z @ mixed("classifier.weight").T + mixed("classifier.bias"), axis=1)
    odds = FLIC.model.predict(state, engine.block("c1"))
    np.testing.assert_allclose(1 / (1 + np.exp(-odds)).T, chances, atol=1e-9)
    moved = np.abs(own["classifier.weight"] - before["classifier.weight"]).max()
    assert (moved > 1e-4) == (mixing < 1.0)  # an own head that counts for nothing stays
    common = by_name(engine, engine.reveal(server.shared))["common.classifier.weight"]
    start = by_name(engine, server.start.shared)["common.classifier.weight"]
    assert np.abs(common - start).max() > 1e-4
    np.testing.assert_array_equal(own["common.classifier.weight"], common)


def privately(release, names=("c0", "c1", "c3")):
    """Return what a private round changes of what all share, times the number of clients."""
    algorithm = FLIC.private(release)
    engine, server = started(algorithm, Flic(**{**FLIC_SMALL, "rate": 0.01}, **DOUBLE))
    engine.begin_round(1, names)
    server, _ = algorithm.round(server, engine, engine.key())
    change = engine.reveal(server.shared) - server.start.shared
    return change * len(names), engine, server


def test_clipping_bounds_what_a_client_can_change():
    free, _, _ = privately(Release(0.0, 1e9))
    found, _, _ = privately(Release(0.0, 1e-3), names=("c0",))
    assert np.linalg.norm(free) > 0.01
    assert np.linalg.norm(found) == pytest.approx(1e-3)


def test_the_noise_of_a_round_is_that_of_the_release_without_any_one_share():
    found, engine, server = privately(Release(5.0, 1e-6, releases=1))
    # of several runs, as the noise is the system's and the numbers of one are few
    more = [privately(Release(5.0, 1e-6, releases=1))[0] for _ in range(15)]
    every = np.concatenate([found, *more], axis=None)
    # three clients, of which two have the variance that was asked for
    bound = 5 / np.sqrt(2 * every.size)  # standard errors of a standard deviation
    assert bound < 0.2
    assert every.std() == pytest.approx(5.0 * np.sqrt(3 / 2), rel=bound)
    engine.begin_round(2, ("c0",))
    with pytest.raises(SealedError, match="epsilon"):
        FLIC.private(Release(5.0, 1e-6, releases=1)).round(server, engine, engine.key())


def test_learned_covariances_step_towards_those_of_the_classes_and_are_averaged():
    given = {**FLIC_SMALL, "calibration_weight": 0.0, "batch": 100, "rate": 0.01}
    given |= {"anchor_covariance": "learned", "pretraining_epochs": 0}
    engine, server = started(FLIC, Flic(**{**given, "variant": "class"}, **DOUBLE))
    before = by_name(engine, server.start.shared)["anchors.factors"]
    np.testing.assert_array_equal(before, np.tile(np.eye(4), (3, 1, 1)))
    engine.begin_round(1, ("c0", "c1"))  # with the classes 0 and 1, and 1 and 2
    server, _ = FLIC.round(server, engine, engine.key())
    after = by_name(engine, engine.reveal(server.shared))["anchors.factors"]
    # a new network takes all samples to nearly one point: the spread of each class is below 1
    falls = np.einsum("cii->ci", before - after)
    for c, holders in enumerate((1, 2, 1)):
        np.testing.assert_allclose(falls[c], 0.01 * holders / 2, rtol=1e-3)
    assert not np.triu(after, 1).any()


def test_an_absent_client_makes_up_for_the_alignment_of_the_rounds_that_it_missed():
    away = {}
    for epochs in (0, 1, 5):
        given = {**FLIC_SMALL, "rate": 0.02, "local_epochs": 1, "final_epochs": 1}
        options = Flic(alignment_epochs=epochs, **given, **DOUBLE)
        engine, server = started(FLIC, options)
        for number in (1, 2, 3):
            engine.begin_round(number, ("c0", "c1"))
            server, _ = FLIC.round(server, engine, engine.key())
        assert {name: one.aligned for name, one in engine.get_states().items()} == {
            "c0": 2 * (epochs > 0),
            "c1": 2 * (epochs > 0),
            "c2": 0,
            "c3": 0,
        }
        concluded(FLIC, engine, server, last=3)
        states = engine.get_states()
        assert all(one.aligned == 3 * (epochs > 0) for one in states.values())
        z, y = embedded(states["c3"], engine.block("c3")), engine.block("c3").y
        means = states["c3"].parameters["anchors.means"]
        away[epochs] = sum(((z[y == c].mean(0) - means[c]) ** 2).sum() for c in range(3))
    assert away[5] < away[1] < away[0]


def test_pretraining_brings_the_classes_to_their_anchors():
    blocks = clients(samples=60)
    away = {}
    for epochs in (0, 120):
        given = {**FLIC_SMALL, "pretraining_epochs": epochs, "rate": 0.02, "anchor_scale": 3.0}
        engine, server = started(FLIC, Flic(**given), blocks)
        total = 0.0
        means = by_name(engine, server.start.shared)["anchors.means"]
        for name, state in engine.get_states().items():
            z, y = embedded(state, engine.block(name)), blocks[name].y
            total += sum(((z[y == c].mean(0) - means[int(c)]) ** 2).sum() for c in np.unique(y))
        away[epochs] = total
    assert away[120] < 0.05 * away[0]


def test_every_client_learns_its_classes():
    given = {"rate": 0.01, "pretraining_epochs": 30, "local_epochs": 20, "hidden": 16, "latent": 8}
    given |= {"engine": "vmap"}
    engine, server = started(FLIC, Flic(**given), clients(shift=8.0))
    server = rounds(FLIC, engine, server)
    concluded(FLIC, engine, server)
    for name, state in engine.get_states().items():
        block = engine.block(name)
        assert (FLIC.model.predict(state, block).argmax(0) == block.y).mean() > 0.9


@pytest.mark.parametrize("algorithm", [FLIC, HETFEDREP, LOCAL], ids=lambda one: one.name)
def test_a_run_read_back_from_bytes_goes_on_to_the_same_bits(algorithm):
    given = FLIC_SMALL if algorithm is FLIC else SMALL
    options = algorithm.hyperparameters(**given, engine="loop")
    engine, server = started(algorithm, options)
    server = rounds(algorithm, engine, server)
    expected = concluded(algorithm, engine, server)
    other, server = started(algorithm, options)
    server = rounds(algorithm, other, server, last=1)
    written = codec.encode((other.books.seal(server), other.get_states()))
    sealed, states = codec.decode(written, *algorithm.states, *RECORDS)
    again, _ = started(algorithm, options)
    again.set_states(states)
    server = rounds(algorithm, again, again.books.unseal(sealed), first=2)
    assert concluded(algorithm, again, server) == expected
    assert largest_difference(parameters(engine), parameters(again)) == 0.0


def test_the_server_cannot_read_what_clients_share():
    engine, server = started(FLIC, Flic(**FLIC_SMALL))
    server = rounds(FLIC, engine, server, last=1)
    with pytest.raises(SealedError):
        np.asarray(server.shared)


@pytest.mark.parametrize("spread", [1.0, 30.0, 900.0])
def test_log_odds_are_those_of_a_class_against_all_others(spread):
    scores = spread * np.random.default_rng(0).normal(size=(40, 7))
    scores[0] = 3.0  # all alike
    scores[1, 2:4] = scores[1].max() + 1.0  # two largest
    found = targets.odds(scores)
    for k in range(7):
        others = np.delete(scores, k, axis=1)
        most = others.max(axis=1)
        expected = scores[:, k] - most - np.log(np.exp(others.T - most).sum(axis=0))
        np.testing.assert_allclose(found[k], expected, rtol=1e-12, atol=1e-12)


def test_log_odds_name_the_class_that_softmax_does():
    engine, _ = started(FLIC, Flic(**FLIC_SMALL))
    state, block = engine.get_states()["c3"], engine.block("c3")
    odds = FLIC.model.predict(state, block)
    chances = 1 / (1 + np.exp(-odds))
    np.testing.assert_allclose(chances.sum(0), 1.0, atol=1e-6)
    scores = state.options.architecture.outputs(state.parameters, block)[1]
    total, count = targets.loss_of_scores(scores, block)
    y = block.y.astype(int)
    assert count == len(y)
    assert total == pytest.approx(-np.log(chances[y, np.arange(len(y))]).sum(), rel=1e-5)


def test_predictions_are_those_of_the_network_by_hand():
    options = Flic(**FLIC_SMALL, **DOUBLE)
    engine, _ = started(FLIC, options)
    state, block = engine.get_states()["c3"], engine.block("c3")
    own, z = state.parameters, block.x
    for number in (0, 2, 4):
        z = z @ own[f"embedding.{number}.weight"].T + own[f"embedding.{number}.bias"]
        z = np.maximum(z, 0.0) if number < 4 else z
    np.testing.assert_allclose(embedded(state, block), z, atol=1e-12)
    hidden = z @ own["shared.0.weight"].T + own["shared.0.bias"]
    hidden = np.where(hidden > 0, hidden, 0.01 * hidden)  # the slope of torch's LeakyReLU
    chances = softmax(hidden @ own["classifier.weight"].T + own["classifier.bias"], axis=1)
    odds = FLIC.model.predict(state, block)
    np.testing.assert_allclose(1 / (1 + np.exp(-odds)).T, chances, atol=1e-12)


def test_two_classes_and_rows_without_labels_train():
    blocks = {}
    for name, block in clients().items():
        y = np.where(block.y == 1, 1.0, -1.0)
        y[:3] = np.nan
        blocks[name] = dataclasses.replace(block, y=y)
    labels = Labels("binary", ("no", "yes"))
    engine, server = started(FLIC, Flic(**FLIC_SMALL), blocks, labels)
    server = rounds(FLIC, engine, server)
    concluded(FLIC, engine, server)
    found = FLIC.model.predict(engine.get_states()["c0"], blocks["c0"])
    assert found.shape == (1, 30)


def test_what_cannot_train_is_said():
    blocks = clients()
    bare = {**blocks, "c1": dataclasses.replace(blocks["c1"], y=None)}
    with pytest.raises(FederationError, match="c1"):
        FLIC.init_server(Flic(), Schema.of(bare, LABELS), None)
    shared = {**blocks, "again": blocks["c1"]}
    with pytest.raises(FederationError, match="again"):
        FLIC.init_server(Flic(), Schema.of(shared, LABELS), None)
    x = blocks["c1"].x.copy()
    x[0, 0] = np.nan
    with pytest.raises(TableError, match="1 value is missing"):
        started(FLIC, Flic(), {**blocks, "c1": dataclasses.replace(blocks["c1"], x=x)})
    with pytest.raises(ExperimentError, match="sample"):
        Flic(anchor_covariance="learned", alignment="sample")
    with pytest.raises(ExperimentError, match="mixing"):
        Flic(mixing=0.0)
    for wrong in ({"rate": 0.0}, {"batch": 0}, {"variant": "x"}, {"alignment_weight": -1.0}):
        with pytest.raises(ExperimentError, match=next(iter(wrong))):
            Flic(**wrong)


def one_round(**given):
    """Return what α and the anchors are before and after a first round of c0 and c1."""
    options = Flic(**{**FLIC_SMALL, "pretraining_epochs": 0, "rate": 0.01, **given}, **DOUBLE)
    engine, server = started(FLIC, options)
    engine.begin_round(1, ("c0", "c1"))
    server, _ = FLIC.round(server, engine, engine.key())
    both = server.start.shared, engine.reveal(server.shared)
    before, after = (by_name(engine, vector) for vector in both)
    names = ("shared.0.weight", "anchors.means")
    return tuple(before[n] for n in names), tuple(after[n] for n in names), engine


def test_the_shared_layer_stays_as_drawn_until_its_round():
    before, after, _ = one_round(shared_from=2)
    np.testing.assert_allclose(after[0], before[0], atol=1e-12)
    assert np.abs(after[1] - before[1]).max() > 0.001
    _, after, _ = one_round(shared_from=1)
    assert np.abs(after[0] - before[0]).max() > 0.001


def test_an_epoch_on_what_is_shared_goes_further_than_a_step():
    # a step of Adam is at most as long as the rate, and c0 has three batches in an epoch
    step, epoch = (
        np.abs(after[1] - before[1]).max()
        for before, after, _ in (one_round(shared_epochs=0), one_round(shared_epochs=1))
    )
    assert step <= 0.01 * (1 + 1e-6)
    assert epoch > 0.02


def test_anchors_of_classes_that_a_client_lacks_move_only_if_asked():
    alone = {"alignment_weight": 0.0, "variant": "hl"}
    engine, server = started(FLIC, Flic(**{**FLIC_SMALL, **alone}, **DOUBLE))
    for classes, moves in (("held", False), ("all", True)):
        options = Flic(**{**FLIC_SMALL, **alone, "anchor_classes": classes}, **DOUBLE)
        engine, server = started(FLIC, options)
        engine.begin_round(1, ("c0",))  # it has the classes 0 and 1
        server, _ = FLIC.round(server, engine, engine.key())
        after, before = engine.reveal(server.shared), server.start.shared
        change = np.abs(by_name(engine, after - before)["anchors.means"]).max(1)
        assert (change[:2] > 1e-4).all()
        assert (change[2] > 1e-4) == moves


@pytest.mark.parametrize("algorithm", [FLIC, HETFEDREP, LOCAL], ids=lambda one: one.name)
@pytest.mark.parametrize("key", ["weight_decay", "embedding_decay"])
def test_each_decay_is_of_its_own_layers_alone(algorithm, key):
    off = {"alignment_weight": 0.0, "calibration_weight": 0.0, "pretraining_epochs": 0}
    given = {**SMALL, "local_epochs": 1, "batch": 100, **(off if algorithm is FLIC else {})}
    given |= {"weight_decay": 0.0, "embedding_decay": 0.0}
    found = {}
    for decay in (0.0, 1e6):  # Adam then follows the decay alone: every weight falls by the rate
        options = algorithm.hyperparameters(**{**given, key: decay}, **DOUBLE)
        engine, server = started(algorithm, options)
        engine.begin_round(1, ("c0",))
        algorithm.round(server, engine, engine.key())
        found[decay] = parameters(engine)["c0"]
    of, spared = "classifier.weight", "embedding.0.weight"
    if key == "embedding_decay":
        of, spared = spared, of
    assert np.abs(found[1e6][of]).sum() < np.abs(found[0.0][of]).sum()
    np.testing.assert_array_equal(found[0.0][spared], found[1e6][spared])


@pytest.mark.parametrize("algorithm", [FLIC, HETFEDREP, LOCAL], ids=lambda one: one.name)
def test_dropout_is_of_training_alone(algorithm):
    found = {}
    for dropout in (0.0, 0.5):
        given = FLIC_SMALL if algorithm is FLIC else SMALL
        options = algorithm.hyperparameters(**given, dropout=dropout, **DOUBLE)
        engine, server = started(algorithm, options)
        rounds(algorithm, engine, server)
        found[dropout] = parameters(engine)
        state, block = engine.get_states()["c0"], engine.block("c0")
        plain = dataclasses.replace(state, options=dataclasses.replace(options, dropout=0.0))
        np.testing.assert_array_equal(
            algorithm.model.predict(state, block), algorithm.model.predict(plain, block)
        )
    assert largest_difference(found[0.0], found[0.5]) > 1e-4


def test_a_chance_of_dropout_that_leaves_nothing_is_refused():
    with pytest.raises(ExperimentError, match=r"dropout is 1\.0; it must be at least 0"):
        Local(dropout=1.0)


@pytest.mark.parametrize("labels", [LABELS, Labels("regression")], ids=lambda one: one.task)
@pytest.mark.parametrize("algorithm", [FLIC, HETFEDREP, LOCAL], ids=lambda one: one.name)
def test_messages_and_replies_come_back_from_bytes(algorithm, labels):
    given = {**FLIC_SMALL, "keep_own": True} if algorithm is FLIC else SMALL
    unused = barycentre.SENDS
    if labels is LABELS:
        unused = label_scaling.SENDS
        if algorithm is FLIC:
            given = {**given, "anchor_covariance": "learned", "anchor_average": "barycentre"}
    options = algorithm.hyperparameters(**given, **DOUBLE)
    engine, server = started(algorithm, options, labels=labels)
    watched = federations.ThroughBytes(engine)
    server = algorithm.setup(server, watched, engine.key())
    server, _ = algorithm.round(server, watched, engine.key())
    algorithm.conclude(server, watched, engine.key())
    every = {fn.name for fn in algorithm.disclosure.functions}
    assert watched.called == every - {one.function.name for one in unused}
