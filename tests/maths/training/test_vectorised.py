"""Batched engines against the plain loop, in float64."""

from __future__ import annotations

import math
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402  after the skip where torch is missing
from torch.nn import functional  # noqa: E402

from intarsia.errors import ExperimentError  # noqa: E402
from intarsia.maths.training import vectorised as cohort  # noqa: E402
from intarsia.maths.training.layers import StackedLinear  # noqa: E402
from intarsia.maths.training.local_training import (  # noqa: E402
    Learner,
    LocalTraining,
    add_squares,
    initial_parameters,
)
from intarsia.maths.training.optimisers import SGD, Adam  # noqa: E402
from intarsia.maths.training.vectorised import (  # noqa: E402
    UnbatchableWarning,
    choose,
    train,
    trains_alone,
)

CLASSES, LATENT = 3, 4
RAGGED = {"x": 1, "embedding.0.weight": 1}
FEATURES, SAMPLES = (2, 5, 3, 7, 4), (9, 24, 3, 17, 10)
# the target of the project for a step; these trainings take up to 15 steps
CLOSE = {"atol": 1e-12, "rtol": 0}


class Network(nn.Module):
    """An embedding of the client's own features and a classifier."""

    def __init__(self, features):
        super().__init__()
        self.embedding = nn.Sequential(
            nn.Linear(features, 6), nn.ReLU(), nn.Linear(6, LATENT)
        ).double()
        self.classifier = nn.Linear(LATENT, CLASSES).double()


def cross_entropy(model, batch):
    scores = model.classifier(model.embedding(batch["x"]))
    return functional.cross_entropy(scores, batch["y"], reduction="none")


def aligned(model, batch):
    """Return cross-entropies, and the distance of class means to noisy anchors."""
    latent = model.embedding(batch["x"])
    share = (batch["y"][:, None] == torch.arange(CLASSES)).double() * batch["weight"][:, None]
    anchors = batch["anchors"][batch["y"]] + batch["noise"]
    away = share.T @ (latent - anchors) / share.sum(0).clamp(min=1.0)[:, None]
    each = functional.cross_entropy(model.classifier(latent), batch["y"], reduction="none")
    return each, 0.1 * away.square().sum()


def training(**given):
    return LocalTraining(
        **{
            "model": Network(2),
            "loss": aligned,
            "optimiser": Adam(rate=0.01),
            "epochs": 3,
            "batch_size": 5,
            "decay": {"embedding.*": 0.0, "*": 0.01},
            "proximal": {"classifier.*": 0.2},
            "noise": {"noise": (LATENT,)},
            "ragged": RAGGED,
            **given,
        }
    )


def learners(features=FEATURES, samples=SAMPLES):
    rng = np.random.default_rng(0)
    anchors = torch.from_numpy(rng.normal(size=(CLASSES, LATENT)))
    found = []
    for number, (width, count) in enumerate(zip(features, samples, strict=True)):
        torch.manual_seed(number)
        rows = {
            "x": torch.from_numpy(rng.normal(size=(count, width))),
            "y": torch.from_numpy(rng.integers(0, CLASSES, count)),
        }
        found.append(
            Learner(
                parameters=initial_parameters(Network(width)),
                rows=rows,
                key=100 + number,
                constants={"anchors": anchors},
            )
        )
    return found


def assert_same(found, expected, **tolerance):
    tolerance = tolerance or CLOSE
    for mine, other in zip(found, expected, strict=True):
        assert set(mine.parameters) == set(other.parameters)
        for name, values in other.parameters.items():
            torch.testing.assert_close(mine.parameters[name], values, **tolerance)
        torch.testing.assert_close(mine.losses, other.losses, **tolerance)
        assert mine.state.steps == other.state.steps
        for moments, others in zip(mine.state.moments, other.state.moments, strict=True):
            for name, values in others.items():
                torch.testing.assert_close(moments[name], values, **tolerance)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"optimiser": SGD(rate=0.05, momentum=0.9)},
        {"optimiser": SGD(rate=0.05)},
        {"steps": 7},
        {"train": ("embedding.*",), "proximal": {}},
        {"train": ("classifier.*",)},
    ],
    ids=["adam", "momentum", "sgd", "steps", "embedding", "classifier"],
)
def test_the_batched_steps_are_those_of_the_loop(given):
    record = training(**given)
    expected = train(record, learners(), engine="loop")
    assert_same(train(record, learners(), engine="vmap"), expected)
    moved = expected[0].parameters["classifier.bias"]
    assert torch.equal(moved, learners()[0].parameters["classifier.bias"]) == (
        given.get("train") == ("embedding.*",)
    )


class Rounded(Network):
    """The network in single precision, where nearly each product rounds."""

    def __init__(self, features):
        super().__init__(features)
        self.float()


def test_pulls_have_the_bits_of_differentiation():
    pulls = {"embedding.*": 0.07, "classifier.*": 0.3}
    record = training(model=Rounded(2), loss=cross_entropy, proximal=pulls, noise={})
    torch.manual_seed(0)
    start = {name: values.float() for name, values in initial_parameters(Rounded(2)).items()}
    trained = {name: values + torch.randn_like(values) for name, values in start.items()}
    batch = {
        "x": torch.randn(5, 2),
        "y": torch.tensor([0, 1, 2, 0, 1]),
        "weight": torch.ones(5),
    }
    differentiated = torch.func.grad_and_value(cohort.objective_of(record))
    slopes, value = differentiated(trained, {}, start, batch)
    without = torch.func.grad_and_value(cohort.objective_of(record, squares=False))
    own, loss = without(trained, {}, start, batch)
    found = dict(own)
    assert add_squares(record, trained, start, loss, found).item() == value.item()
    for name, slope in slopes.items():
        assert torch.equal(found[name], slope), name
        pull = 0.07 if name.startswith("embedding") else 0.3
        # beside the slopes of the loss there are those of η/2 ‖w - r‖², which is η (w - r)
        away = (trained[name] - start[name]).double()
        torch.testing.assert_close(slope.double(), own[name].double() + pull * away)


@pytest.mark.parametrize("one_for_all", [True, False])
@pytest.mark.parametrize("active", [3, 2])
def test_stacked_pulls_are_those_of_each_learner(one_for_all, active):
    torch.manual_seed(1)
    record = training(proximal={"embedding.*": 0.07, "classifier.weight": 0.3}, ragged={})
    everyone = learners(features=(4,) * 5, samples=(9,) * 5)[:3]
    references = [
        {name: values + torch.randn_like(values) for name, values in one.parameters.items()}
        for one in everyone
    ]
    if one_for_all:
        references = references[:1] * 3
    everyone = [replace(one, references=own) for one, own in zip(everyone, references, strict=True)]
    chunk = cohort.Chunk.of(record, everyone, cohort.Layout.of(record, everyone))
    found, objectives = {}, torch.zeros(active, dtype=torch.float64)
    for one in chunk.together:
        slope = torch.ones_like(one.values[:active])
        objectives = one.pulled(slope, objectives)
        found |= one.parts(slope, {name: chunk.trained[name][:active] for name in one.names})
    assert set(found) == set(record.trained)
    for number, own in enumerate(references[:active]):
        value = 0.0
        for name, slope in found.items():
            pull = {"classifier.bias": 0.0, "classifier.weight": 0.3}.get(name, 0.07)
            away = everyone[number].parameters[name] - own[name]
            torch.testing.assert_close(slope[number], 1 + pull * away)
            value += pull / 2 * float(away.square().sum())
        assert objectives[number].item() == pytest.approx(value, rel=1e-12)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_compiled_steps_are_those_of_the_loop():
    record = training(steps=9)
    mixed = learners()
    expected = train(record, mixed, engine="loop")
    # chunks of four: the second is filled up, and its features are fewer
    assert_same(train(record, mixed, engine="compiled", chunk=4), expected)
    kept = [
        replace(one, parameters=done.parameters, state=done.state)
        for one, done in zip(mixed, expected, strict=True)
    ]
    assert_same(train(record, kept, engine="compiled", chunk=4), train(record, kept, engine="loop"))
    again = train(record, mixed, engine="compiled", chunk=4)
    for mine, other in zip(again, train(record, mixed, engine="compiled", chunk=4), strict=True):
        assert all(torch.equal(mine.parameters[n], v) for n, v in other.parameters.items())


@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_another_rate_stands_in_for_the_optimisers(engine):
    slower = train(training(optimiser=SGD(rate=0.01)), learners(), engine="loop")
    found = train(training(optimiser=SGD(rate=0.5)), learners(), engine=engine, rate=0.01)
    assert_same(found, slower)
    assert_same(
        train(training(), learners(), engine=engine, rate=0.01), train(training(), learners())
    )


def test_the_result_depends_neither_on_the_chunks_nor_on_the_other_learners():
    record = training()
    everyone = learners()
    expected = train(record, everyone, engine="vmap")
    for chunk in (1, 2, 3):
        assert_same(train(record, everyone, engine="vmap", chunk=chunk), expected)
    assert_same(train(record, everyone[::-1], engine="vmap")[::-1], expected)
    assert_same(train(record, everyone[1:3], engine="vmap"), expected[1:3])


class Stacked(nn.Module):
    """A network with one hidden layer that takes learners stacked."""

    def __init__(self, features):
        super().__init__()
        self.embedding = nn.Sequential(StackedLinear(features, 6), nn.ReLU())
        self.classifier = StackedLinear(6, CLASSES)


def stacked_cross_entropy(model, batch):
    scores = model.classifier(model.embedding(batch["x"])).log_softmax(-1)
    return -scores.gather(-1, batch["y"][..., None])[..., 0]


@pytest.mark.parametrize("model", [Network, Stacked])
def test_several_threads_train_by_one_record_to_the_bits_of_one_thread(model):
    """As several sites of one process do."""
    how = {"model": model(2).double(), "loss": cross_entropy, "noise": {}, "epochs": 30}
    if model is Stacked:
        how |= {"loss": stacked_cross_entropy, "stacked": True}
    record = training(**how)
    own = []
    for one in learners(samples=(40,) * 5):
        parameters = initial_parameters(model(one.rows["x"].shape[1]).double())
        own.append([replace(one, parameters=parameters, constants={})])
    expected = [train(record, one, engine="vmap") for one in own]
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda one: train(record, one, engine="vmap"), own * 3))
    for some, wanted in zip(found, expected * 3, strict=True):
        for name, values in wanted[0].parameters.items():
            assert torch.equal(some[0].parameters[name], values)


def test_another_learners_missing_values_stay_its_own():
    record = training()
    everyone = learners()
    expected = train(record, everyone, engine="vmap")
    rows = {**everyone[1].rows, "x": torch.full_like(everyone[1].rows["x"], torch.nan)}
    everyone[1] = replace(everyone[1], rows=rows)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = train(record, everyone, engine="vmap")
    assert found[1].losses.isnan().all()
    assert_same([found[0], *found[2:]], [expected[0], *expected[2:]])


@pytest.mark.parametrize("optimiser", [Adam(rate=0.01), SGD(rate=0.01, momentum=0.9)])
def test_what_is_filled_up_stays_exactly_zero(optimiser):
    record = training(optimiser=optimiser)
    layout = cohort.Layout.of(record, learners())
    everyone = sorted(learners(), key=lambda one: -record.steps_of(one))
    chunk = cohort.Chunk.of(record, everyone, layout)
    chunk.train(record, cohort.batched(record, layout))
    for number, one in enumerate(everyone):
        width = one.rows["x"].shape[1]
        for stacked in (chunk.trained, *chunk.moments):
            weights = stacked["embedding.0.weight"][number]
            assert weights.shape == (6, 7)
            assert (weights[:, :width] != 0).any()
            assert (weights[:, width:] == 0).all()


class Tempered(Network):
    """A network with a parameter of no axis, one without values, and one that nothing reads."""

    def __init__(self, features):
        super().__init__(features)
        self.temperature = nn.Parameter(torch.tensor(1.5, dtype=torch.float64))
        self.empty = nn.Parameter(torch.zeros(0, 3, dtype=torch.float64))
        self.unread = nn.Parameter(torch.ones(2, dtype=torch.float64))


def tempered(model, batch):
    scores = model.classifier(model.embedding(batch["x"])) / model.temperature
    return functional.cross_entropy(scores, batch["y"], reduction="none")


@pytest.mark.parametrize("clip", [math.inf, 0.1])
def test_parameters_of_any_shape_train_stacked(clip):
    record = training(
        model=Tempered(2), loss=tempered, noise={}, proximal={"*": 0.2}, gradient_clip=clip
    )
    everyone = [
        replace(one, parameters=initial_parameters(Tempered(one.rows["x"].shape[1])))
        for one in learners()
    ]
    found = train(record, everyone, engine="vmap")
    assert_same(found, train(record, everyone, engine="loop"))
    assert found[0].parameters["temperature"].shape == ()
    assert found[0].parameters["temperature"] != 1.5


@pytest.mark.parametrize("optimiser", [Adam(rate=0.01), SGD(rate=0.01, momentum=0.9)])
def test_learners_go_on_from_optimisers_of_different_age(optimiser):
    record = training(optimiser=optimiser)
    first = train(record, learners(), engine="loop")
    later = [
        replace(one, parameters=done.parameters, state=done.state, key=one.key + 50)
        for one, done in zip(learners(), first, strict=True)
    ]
    assert len({one.state.steps for one in later}) > 2
    expected = train(record, later, engine="loop")
    assert_same(train(record, later, engine="vmap"), expected)
    again = train(record, later, engine="vmap")
    for mine, other in zip(again, train(record, later, engine="vmap"), strict=True):
        assert all(torch.equal(mine.parameters[n], v) for n, v in other.parameters.items())


@pytest.mark.parametrize("optimiser", [Adam(rate=0.01), SGD(rate=0.01, momentum=0.9)])
def test_a_training_in_two_parts_that_keeps_its_optimiser_has_the_bits_of_one(optimiser):
    # one row each, and no noise: all steps are on the same batch, whatever the stream
    record = training(optimiser=optimiser, loss=cross_entropy, noise={}, proximal={}, epochs=6)
    half = replace(record, epochs=3)
    everyone = learners(samples=(1, 1, 1, 1, 1))
    expected = train(record, everyone, engine="vmap")
    first = train(half, everyone, engine="vmap")
    second = train(
        half,
        [
            replace(one, parameters=done.parameters, state=done.state)
            for one, done in zip(everyone, first, strict=True)
        ],
        engine="vmap",
    )
    assert_same(
        [replace(one, losses=whole.losses) for one, whole in zip(second, expected, strict=True)],
        expected,
        atol=0,
        rtol=0,
    )


def test_learners_of_other_shapes_train_in_cohorts_of_their_own():
    record = training(ragged={})
    mixed = learners(features=(2, 5, 2, 5, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = train(record, mixed, engine="vmap")
    assert_same(found, train(record, mixed, engine="loop"))


def test_a_frozen_part_that_all_share_is_kept_once():
    record = training(train=("embedding.*",), proximal={})
    everyone = learners()
    shared = {name: v for name, v in everyone[0].parameters.items() if "classifier" in name}
    everyone = [replace(one, parameters=one.parameters | shared) for one in everyone]
    layout = cohort.Layout.of(record, everyone)
    assert layout.frozen == {"classifier.weight": None, "classifier.bias": None}
    assert layout.batch["anchors"] is None
    assert_same(train(record, everyone, engine="vmap"), train(record, everyone, engine="loop"))


def with_one_hot(model, batch):
    shown = functional.one_hot(batch["y"])
    scores = model.classifier(model.embedding(batch["x"]))
    return -(functional.log_softmax(scores, -1)[:, : shown.shape[1]] * shown).sum(-1)


def with_item(model, batch):
    return cross_entropy(model, batch) * batch["x"].mean().item()


def unweighted(model, batch):
    return cross_entropy(model, batch), model.embedding(batch["x"]).square().mean()


def counting_features(model, batch):
    return model.embedding(batch["x"] / batch["x"].shape[1]).square().mean(1)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"loss": with_one_hot}, r"functional\.one_hot\(batch\[\"y\"\]\) \(test_vectorised"),
        ({"loss": with_item}, r"item\(\)"),
        ({"loss": unweighted}, "with rows or features filled up"),
        ({"loss": counting_features}, "with rows or features filled up"),
    ],
    ids=["one_hot", "item", "unweighted", "features"],
)
def test_what_does_not_batch_is_named_and_trains_in_the_loop(given, named):
    record = training(**given)
    with pytest.warns(UnbatchableWarning, match=named):
        found = train(record, learners(), engine="vmap")
    assert_same(found, train(record, learners(), engine="loop"), atol=0, rtol=0)


@pytest.mark.parametrize(
    ("extra", "samples", "named"),
    [
        (nn.Dropout(0.5), SAMPLES, "test_vectorised.*random"),
        (nn.BatchNorm1d(LATENT), (10, 25, 5, 15, 10), "buffer 'embedding.3.running_mean'"),
        (nn.BatchNorm1d(LATENT, track_running_stats=False), (9, 24, 4, 17, 10), "filled up"),
    ],
    ids=["dropout", "remembers", "filled"],
)
def test_layers_that_draw_or_remember_train_in_the_loop(extra, samples, named):
    def changed(width):
        model = Network(width)
        model.embedding.append(extra.double())
        return model

    everyone = [
        replace(one, parameters=initial_parameters(changed(one.rows["x"].shape[1])))
        for one in learners(samples=samples)
    ]
    record = training(model=changed(2))
    expected = train(record, everyone, engine="loop")
    with pytest.warns(UnbatchableWarning, match=named):
        found = train(record, everyone, engine="vmap")
    assert_same(found, expected, atol=0, rtol=0)


def test_the_engine_is_chosen_by_shape():
    record = training()
    assert choose(record, learners()[:1]) == "loop"
    assert choose(record, learners()[:2]) == "vmap"
    assert choose(record, learners()) == "vmap"
    assert choose(replace(record, steps=200_000), learners()) in ("compiled", "vmap")
    wide = [replace(one, parameters=initial_parameters(Network(20_000))) for one in learners()]
    assert choose(record, wide) == "loop"  # large ones
    assert not trains_alone(wide[0].parameters | {"embedding.0.weight": torch.ones(2, 2)})
    pictures = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten()).double()
    convolution = LocalTraining(model=pictures, loss=cross_entropy)
    given = [replace(one, parameters=initial_parameters(pictures)) for one in learners()]
    assert choose(convolution, given) == "loop"
    assert trains_alone(given[0].parameters)
    assert_same(train(record, learners()), train(record, learners(), engine="loop"))
    assert train(record, []) == []


def test_a_chunk_has_as_many_learners_as_fit_into_memory(monkeypatch):
    record = training(epochs=100)  # of 24 rows at most, in batches of 5: 500 steps
    assert cohort._chunk_size(record, learners(), 64, fixed=False) == 5
    # 30 kB of places, and 4 kB of parameters and rows
    monkeypatch.setattr(cohort, "_CHUNK_BYTES", 100_000)
    assert cohort._chunk_size(record, learners(), 64, fixed=False) == 2
    assert cohort._chunk_size(training(epochs=1000), learners(), 64, fixed=False) == 1


def test_only_what_cannot_be_compiled_for_sizes_that_vary_is_compiled_for_each(monkeypatch):
    from torch._dynamo.exc import TorchRuntimeError

    asked = []

    def compiled(training, key, dynamic):
        def steps(*given):
            asked.append(dynamic)
            if dynamic:
                raise error
            return {}, torch.zeros(2)

        return steps

    monkeypatch.setattr(cohort, "_compiled", compiled)
    record, layout = training(), cohort.Layout({}, {}, {})
    error = RuntimeError("out of memory")
    with pytest.raises(RuntimeError, match="out of memory"):
        cohort.compiled(record, layout)(({}, {}, {}, {}))
    assert asked == [True]
    error = TorchRuntimeError("Cannot call sizes() on tensor with symbolic sizes/strides", [])
    gradients = cohort.compiled(record, layout)
    gradients(({}, {}, {}, {}))
    gradients(({}, {}, {}, {}))
    assert asked == [True, True, False, False]


def test_a_wrong_engine_and_a_missing_compiler_are_said(monkeypatch):
    with pytest.raises(ExperimentError, match="choose from auto, loop, vmap, compiled"):
        train(training(), learners(), engine="jax")
    with pytest.raises(ExperimentError, match="chunk is 0"):
        train(training(), learners(), chunk=0)
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ExperimentError, match="needs a C\\+\\+ compiler"):
        train(training(), learners(), engine="compiled")
    assert choose(replace(training(), steps=200_000), learners()) == "vmap"
