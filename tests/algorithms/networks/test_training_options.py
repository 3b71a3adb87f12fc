"""Options of gradient steps that all algorithms on networks have, against PyTorch's own."""

from __future__ import annotations

import copy
import dataclasses
import math
from functools import lru_cache

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import federations  # noqa: E402
import intarsia  # noqa: E402  after the skip where torch is missing
import oracle_network as oracle  # noqa: E402
from intarsia.algorithms.networks import options as options_of  # noqa: E402
from intarsia.algorithms.networks.options import TrainingOptions  # noqa: E402
from intarsia.algorithms.personalised.fedrep import FEDPROX, FedProx  # noqa: E402
from intarsia.core.block import Block, Labels  # noqa: E402
from intarsia.engines import codec  # noqa: E402
from intarsia.engines.communication_log import RECORDS  # noqa: E402
from intarsia.errors import ExperimentError, TableError  # noqa: E402
from intarsia.training.registry import _PERSONAL, algorithm_named  # noqa: E402

NAMES = [name for name in _PERSONAL if name not in ("flic-linear", "femam-flic")]
QUICK = ("fedrep", "fedhenn", "femam", "hyfem")  # one of each way to share; others are slow tests
SHORT = {
    "latent": 3,
    "features": 3,
    "local_epochs": 1,
    "own_epochs": 1,
    "pretraining_epochs": 1,
    "final_epochs": 1,
    "level_schedule": "paper",
    "local_rounds": 2,
    "clusters": 2,
    "steps": 2,
    "batch": 7,
    "levels": ("global", "personal"),
    "first_rounds": 2,
    "level_rounds": 2,
    "prune": "never",
    "shared": ("weight",),
    "model": f"{__name__}:linear",
    "extractor_hidden": (4,),
    "precision": "double",
}
ALL = {
    "gradient_clip": 0.05,
    "label_smoothing": 0.2,
    "class_weights": "balanced",
    "schedule": "cosine",
    "schedule_rounds": 3,
}


def linear(features, classes):
    return torch.nn.Linear(features, classes)


def made(name, **settings):
    """Return an algorithm and options that keep a run of it short."""
    algorithm = algorithm_named(name)
    fields = {one.name for one in dataclasses.fields(algorithm.hyperparameters)}
    given = {key: value for key, value in SHORT.items() if key in fields}
    if "hidden" in fields:
        given["hidden"] = (5,) if name == "hyfem" else 5
    if settings.get("momentum") and "optimiser" in fields:
        given["optimiser"] = "sgd"
    return algorithm, algorithm.hyperparameters(**{**given, **settings})


def clients():
    """Return clients with many rows, three, and some of one class."""
    rng = np.random.default_rng(1)
    found = {}
    for number, y in enumerate(([0] * 9 + [1, 2] * 4, [2, 0, 1], [1] * 6)):
        x = rng.normal(size=(len(y), 4)) + np.array(y)[:, None]
        rows = 100 * number + np.arange(len(y))
        names = tuple(f"f{j}" for j in range(4))
        found[f"c{number}"] = Block(rows, names, x, np.array(y, float))
    return found


def after(algorithm, options, rounds=3, cut=None):
    """Return the clients' networks after some rounds; `cut`: by way of bytes after that round."""
    labels = Labels("multiclass", ("a", "b", "c"))
    engine, server = federations.started(algorithm, options, clients(), labels)
    for number in range(1, rounds + 1):
        engine.begin_round(number)
        server, _ = algorithm.round(server, engine, engine.key())
        if number == cut:
            written = codec.encode((engine.books.seal(server), engine.get_states()))
            sealed, states = codec.decode(written, *algorithm.states, *RECORDS)
            engine, _ = federations.started(algorithm, options, clients(), labels)
            engine.set_states(states)
            server = engine.books.unseal(sealed)
    engine.begin_round(rounds + 1)
    algorithm.conclude(server, engine, engine.key("conclude"))
    return {
        client: dict(algorithm.model.network(state))
        for client, state in engine.get_states().items()
    }


def far(one, other):
    return max(
        float(np.abs(own - other[client][name]).max())
        for client, held in one.items()
        for name, own in held.items()
    )


@pytest.mark.parametrize(
    "name",
    [pytest.param(one, marks=[pytest.mark.slow] * (one not in QUICK)) for one in NAMES],
)
def test_one_after_the_other_or_together_all_options_come_to_the_same(name):
    """Also for a client with three rows, and one with one class."""
    settings = dict(ALL)
    algorithm, plain = made(name)
    if getattr(plain, "optimiser", "") or name == "hyfem":
        settings["momentum"] = 0.7
    alone = after(*made(name, engine="loop", **settings))
    together = after(*made(name, engine="vmap", **settings))
    assert far(alone, together) < 1e-9
    assert all(np.isfinite(own).all() for held in alone.values() for own in held.values())
    del algorithm


@pytest.mark.parametrize(
    "name",
    [pytest.param(one, marks=[pytest.mark.slow] * (one not in QUICK)) for one in NAMES],
)
def test_a_scheduled_run_goes_on_from_bytes_to_the_same_bits(name):
    how = made(name, engine="loop", **ALL)
    assert far(after(*how), after(*how, cut=2)) == 0.0


@pytest.mark.parametrize("option", [*ALL][:4])
@pytest.mark.parametrize("name", NAMES)
def test_each_option_has_a_part_in_each_algorithm(name, option):
    settings = {option: ALL[option]}
    if option == "schedule":
        settings["schedule_rounds"] = 2
    found = after(*made(name, engine="loop", **settings), rounds=2)
    assert far(without_options(name), found) > 0


@lru_cache
def without_options(name):
    return after(*made(name, engine="loop"), rounds=2)


def averaged(steps=1, rounds=1, rows="unequal", **settings):
    """Return the network that FedProx without a pull comes to, and what it started from."""
    blocks = oracle.clients(oracle.ROWS[rows])
    known = {"local_epochs": steps, "optimiser": "sgd", "rate": 0.3, "proximal": 0.0}
    options = FedProx(**known, **oracle.NETWORK, **settings)
    engine, server = oracle.begun(FEDPROX, options, blocks)
    start = oracle.net_of_vector(server.start.shared)
    for number in range(1, rounds + 1):
        server = oracle.one_round(FEDPROX, engine, server, number)
    return oracle.shared_at_a_client(engine, server), start, blocks


def by_hand(start, blocks, steps=1, *, rate=0.3, momentum=0.0, clip=0.0, loss=None):
    """Return what torch.optim and torch.nn.utils come to, averaged by rows."""
    own = []
    for block in blocks.values():
        net, (x, y) = copy.deepcopy(start), oracle.tensors(block)
        step = torch.optim.SGD(net.parameters(), lr=rate, momentum=momentum)
        for _ in range(steps):
            step.zero_grad()
            (loss or torch.nn.functional.cross_entropy)(net(x), y).backward()
            if clip:
                torch.nn.utils.clip_grad_norm_(net.parameters(), clip)
            step.step()
        own.append(net)
    return oracle.average(own, oracle.weights_of(blocks, "samples"))


def test_momentum_is_that_of_torch():
    found, start, blocks = averaged(4, momentum=0.8)
    oracle.close(found, by_hand(start, blocks, 4, momentum=0.8))


def test_gradients_are_clipped_as_torch_clips_them():
    found, start, blocks = averaged(3, gradient_clip=0.05)
    # torch adds 1e-6 to the norm that it divides by
    oracle.close(found, by_hand(start, blocks, 3, clip=0.05), accuracy=1e-5)
    oracle.close(averaged(3, gradient_clip=1e6)[0], by_hand(start, blocks, 3))


def test_smoothed_labels_are_those_of_torch():
    found, start, blocks = averaged(2, label_smoothing=0.3)
    smoothed = torch.nn.CrossEntropyLoss(label_smoothing=0.3)
    oracle.close(found, by_hand(start, blocks, 2, loss=smoothed))


def test_balanced_classes_count_alike():
    found, start, blocks = averaged(2, class_weights="balanced")

    def loss(scores, y):
        counts = torch.bincount(y, minlength=3).double()
        weights = len(y) / (int((counts > 0).sum()) * counts.clamp(min=1))
        each = torch.nn.functional.cross_entropy(scores, y, weights, reduction="none")
        return each.sum() / len(y)

    oracle.close(found, by_hand(start, blocks, 2, loss=loss))


@pytest.mark.parametrize("kind", ["cosine", "step"])
def test_a_schedule_sets_the_rate_of_each_round(kind):
    settings = {"schedule": kind, "schedule_rounds": 2, "schedule_factor": 0.2}
    found, net, blocks = averaged(2, rounds=4, **settings)
    factors = {"cosine": (1.0, 0.6, 0.2, 0.2), "step": (1.0, 1.0, 0.2, 0.2)}[kind]
    for factor in factors:
        net = by_hand(net, blocks, 2, rate=0.3 * factor)
    oracle.close(found, net)


def test_a_rate_falls_by_the_formula():
    made_of = TrainingOptions(schedule="cosine", schedule_rounds=10, schedule_factor=0.1)
    for number in (1, 4, 11, 50):
        part = min((number - 1) / 10, 1.0)
        expected = 0.1 + 0.9 * (1 + math.cos(math.pi * part)) / 2
        assert made_of.rate_factor(number) == pytest.approx(expected)


@pytest.mark.parametrize("name", NAMES)
def test_all_options_are_off_by_default(name):
    found = algorithm_named(name).hyperparameters
    for one in dataclasses.fields(TrainingOptions):
        assert {own.name: own.default for own in dataclasses.fields(found)}[one.name] == one.default
    assert TrainingOptions().clip == math.inf
    assert TrainingOptions().rate_factor(7) == 1.0


def test_auto_takes_an_accelerator_that_has_the_precision(monkeypatch):
    single, double = FedProx(device="auto"), FedProx(device="auto", precision="double")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert options_of.device_of(single) == options_of.device_of(double) == "cuda"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert (options_of.device_of(single), options_of.device_of(double)) == ("mps", "cpu")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert options_of.device_of(single) == "cpu"
    assert options_of.device_of(FedProx()) == "cpu"


@pytest.mark.parametrize("name", NAMES)
def test_learners_train_and_predict_where_the_device_says(name, monkeypatch):
    """The meta device computes nothing: what fails on it, or comes back from it, was there."""
    moved, scored = set(), set()
    from intarsia.algorithms.hyfem import network
    from intarsia.algorithms.networks import architecture, client_network

    def noted(learner, device, kept):
        moved.add(device)
        return learner

    def noting(computed):
        def here(*given):
            scored.add(given[-1])
            return computed(*given[:-1], "cpu")

        return here

    monkeypatch.setattr(client_network, "_moved", noted)
    for module, function in ((architecture, "outputs_of"), (network, "scores")):
        monkeypatch.setattr(module, function, noting(getattr(module, function)))
    after(*made(name, engine="loop", device="meta"), rounds=1)
    assert moved == {"meta"}
    assert scored == (set() if name == "own-networks" else {"meta"})


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("fedprox", {"momentum": 0.9, "optimiser": "adam"}, "moments of its own"),
        ("fedhenn", {"momentum": 0.9}, "moments of its own"),
        ("fedprox", {"momentum": 1.0}, "momentum is 1"),
        ("fedprox", {"gradient_clip": -1.0}, "gradient_clip is -1"),
        ("fedprox", {"schedule": "linear"}, "constant, cosine, step"),
        ("hyfem", {"label_smoothing": 0.1, "softmax": "held"}, "held"),
        ("own-networks", {"label_smoothing": 0.1, "objective": f"{__name__}:far"}, "your own"),
        ("femam", {"device": "cuda:99"}, "torch cannot use here"),
    ],
)
def test_options_that_do_not_fit_are_refused_in_a_sentence(name, settings, words):
    with pytest.raises(ExperimentError, match=words):
        made(name, **settings)


def test_of_what_torch_says_of_a_device_that_is_not_there_one_sentence_is_told(monkeypatch):
    said = "Could not run 'empty' with 'MPS'. This could be because of much else. See [CPU, Meta]."

    def missing(*shape, **settings):
        raise NotImplementedError(said)

    monkeypatch.setattr(torch, "empty", missing)
    words = r"cannot use here \(Could not run 'empty' with 'MPS'\); set \"cpu\"\.$"
    with pytest.raises(ExperimentError, match=words):
        made("femam", device="mps")


def test_numbers_have_no_classes_to_weigh_or_smooth():
    x = np.arange(12.0).reshape(-1, 1)
    tables = {"a": (x[:6], x[:6, 0] / 7), "b": (x[6:], x[6:, 0] / 7)}
    for settings in ({"class_weights": "balanced"}, {"label_smoothing": 0.1}):
        with pytest.raises(ExperimentError, match="numbers to predict, which have no classes"):
            intarsia.run(tables=tables, algorithm={"name": "fedprox", **settings}, rounds=1)


@pytest.mark.parametrize("name", ["fedprox", "flic", "femam", "hyfem", "femam-flic"])
def test_large_networks_and_those_of_the_loop_are_trained_client_by_client(name):
    """So that several processes have some each: stacked, they would be no faster."""

    def alone(engine, hidden):
        settings = {"engine": engine, "hidden": (50 * hidden,) if name == "hyfem" else hidden}
        if name == "femam-flic":
            algorithm = algorithm_named(name)
            options = algorithm.hyperparameters(flic=made("flic", **settings)[1])
        else:
            algorithm, options = made(name, **settings)
        labels = Labels("multiclass", ("a", "b", "c"))
        engine, _ = federations.started(algorithm, options, clients(), labels)
        return {state.own_cost == math.inf for state in engine.get_states().values()}

    assert alone("auto", 5) == alone("vmap", 500) == {False}
    assert alone("auto", 500) == alone("loop", 5) == {True}


@pytest.mark.parametrize("name", NAMES)
def test_missing_values_are_named_or_filled(name):
    blocks = clients()
    x = blocks["c0"].x.copy()
    x[0, 0] = np.nan
    blocks["c0"] = dataclasses.replace(blocks["c0"], x=x)
    algorithm, options = made(name, engine="loop")
    with pytest.raises(TableError, match=r"standardise = true"):
        federations.started(algorithm, options, blocks, Labels("multiclass", ("a", "b", "c")))


@pytest.mark.parametrize("name", NAMES)
def test_products_may_be_in_bfloat16(name):
    single = after(*made(name, precision="single"), rounds=1)
    half = after(*made(name, precision="bf16"), rounds=1)
    assert 0 < far(single, half) < 0.1
    assert {own.dtype.name for held in half.values() for own in held.values()} == {"float32"}
