"""Batched engines against the plain loop: layers, ragged data, and what a result depends on."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402  after the skip where torch is missing
from torch.nn import functional  # noqa: E402

from intarsia.errors import ExperimentError  # noqa: E402
from intarsia.maths.training import vectorised  # noqa: E402
from intarsia.maths.training.layers import ConvolutionsAsProducts  # noqa: E402
from intarsia.maths.training.local_training import (  # noqa: E402
    Learner,
    LocalTraining,
    initial_parameters,
    train_alone,
)
from intarsia.maths.training.optimisers import SGD, Adam  # noqa: E402
from intarsia.maths.training.vectorised import UnbatchableWarning, train  # noqa: E402

CLASSES, SIDE = 3, 6
ADAM = Adam(rate=0.01)
STEP = 1e-12  # the project's target for one step


def loss(model, batch):
    return functional.cross_entropy(model(batch["x"]), batch["y"], reduction="none")


def dropped(model, batch):
    """Return cross-entropies with dropout of hidden units by the client's own numbers."""
    kept = (torch.special.ndtr(batch["drawn"]) > 0.3).to(batch["x"].dtype)
    hidden = torch.relu(model[0](batch["x"])) * kept / 0.7
    return functional.cross_entropy(model[2](hidden), batch["y"], reduction="none")


def dense():
    return nn.Sequential(nn.Linear(SIDE * SIDE, 8), nn.ReLU(), nn.Linear(8, CLASSES)).double()


def normed():
    return nn.Sequential(
        nn.Linear(SIDE * SIDE, 8), nn.GroupNorm(2, 8), nn.ReLU(), nn.Linear(8, CLASSES)
    ).double()


def layer_normed():
    return nn.Sequential(
        nn.Linear(SIDE * SIDE, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, CLASSES)
    ).double()


def convolution():
    return nn.Sequential(
        nn.Unflatten(1, (1, SIDE, SIDE)),
        nn.Conv2d(1, 4, 3),
        nn.GroupNorm(2, 4),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(16, CLASSES),
    ).double()


MODELS = {
    "dense": (dense, loss, {}),
    "group norm": (normed, loss, {}),
    "layer norm": (layer_normed, loss, {}),
    "convolution": (convolution, loss, {}),
    "dropout": (dense, dropped, {"noise": {"drawn": (8,)}}),
}
# rows: one, fewer than a batch, a whole one, one more than a batch (a batch of one row), more
SAMPLES = (1, 3, 5, 6, 11, 17)


def record(name, **given):
    made, objective, settings = MODELS[name]
    return LocalTraining(
        **{
            "model": made(),
            "loss": objective,
            "optimiser": ADAM,
            "batch_size": 5,
            "epochs": 2,
            **settings,
            **given,
        }
    )


def learners(name, samples=SAMPLES, classes=CLASSES):
    rng = np.random.default_rng(1)
    found = []
    for number, count in enumerate(samples):
        torch.manual_seed(number)
        rows = {
            "x": torch.from_numpy(rng.normal(size=(count, SIDE * SIDE))),
            "y": torch.from_numpy(rng.integers(0, classes, count)),
        }
        parameters = initial_parameters(MODELS[name][0]())
        found.append(Learner(parameters=parameters, rows=rows, key=50 + number))
    return found


def assert_same(found, expected, atol):
    for mine, other in zip(found, expected, strict=True):
        for name, values in other.parameters.items():
            torch.testing.assert_close(mine.parameters[name], values, atol=atol, rtol=0)
        torch.testing.assert_close(mine.losses, other.losses, atol=atol, rtol=0)


def assert_same_bits(found, expected):
    assert_same(found, expected, 0)


@pytest.fixture(autouse=True)
def _nothing_falls_back():
    with warnings.catch_warnings():
        warnings.simplefilter("error", UnbatchableWarning)
        yield


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("optimiser", [ADAM, SGD(rate=0.1, momentum=0.9)], ids=["adam", "sgd"])
def test_a_batched_step_is_that_of_the_loop(name, optimiser):
    training = record(name, optimiser=optimiser, steps=1)
    everyone = learners(name)
    found = train(training, everyone, engine="vmap")
    assert_same(found, train(training, everyone, engine="loop"), STEP)
    for one, done in zip(everyone, found, strict=True):  # they did move
        assert any((done.parameters[n] != v).any() for n, v in one.parameters.items())


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_compiled_step_is_that_of_the_loop(name):
    training = record(name, steps=1)
    everyone = learners(name)
    found = train(training, everyone, engine="compiled", chunk=4)
    assert_same(found, train(training, everyone, engine="loop"), STEP)


@pytest.mark.parametrize("name", MODELS)
def test_ragged_batches_train_to_what_the_loop_does(name):
    # up to 8 steps, in which rounding grows where a unit is near its bend
    training = record(name)
    found = train(training, learners(name), engine="vmap")
    assert_same(found, train(training, learners(name), engine="loop"), 1e-10)
    assert [one.state.steps for one in found] == [2, 2, 2, 4, 6, 8]


@pytest.mark.parametrize("name", MODELS)
def test_a_result_depends_on_the_learner_alone(name):
    training = record(name)
    everyone = learners(name)
    expected = train(training, everyone, engine="vmap")
    for chunk in (1, 2, 4):
        assert_same(train(training, everyone, engine="vmap", chunk=chunk), expected, 1e-10)
    backwards = train(training, everyone[::-1], engine="vmap")[::-1]
    assert_same(backwards, expected, 1e-10)
    some = train(training, everyone[2:5], engine="vmap")
    assert_same(some, expected[2:5], 1e-10)


@pytest.mark.parametrize("engine", ["loop", "vmap"])
@pytest.mark.parametrize("name", MODELS)
def test_training_again_gives_the_same_bits(name, engine):
    training = record(name)
    first = train(training, learners(name), engine=engine)
    torch.rand(7)  # whatever else draws
    assert_same_bits(train(training, learners(name), engine=engine), first)


@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_each_client_drops_units_of_its_own(engine):
    training = record("dropout", optimiser=SGD(rate=0.1), steps=1)
    one = learners("dropout", samples=(5,))[0]
    twins = [one, replace(one, key=one.key + 1), one]
    found = train(training, twins, engine=engine)
    assert torch.equal(found[0].losses, found[2].losses)
    # the same rows in another order give the same loss but for what is dropped
    assert (found[0].losses - found[1].losses).abs() > 1e-3
    plain = record("dense", optimiser=SGD(rate=0.1), steps=1)
    alike = train(plain, twins, engine=engine)
    torch.testing.assert_close(alike[0].losses, alike[1].losses, atol=STEP, rtol=0)


@pytest.mark.parametrize("name", ["dense", "group norm"])
def test_clients_of_one_class_train_as_in_the_loop(name):
    training = record(name)
    everyone = learners(name, classes=1)
    assert all((one.rows["y"] == 0).all() for one in everyone)
    found = train(training, everyone, engine="vmap")
    assert_same(found, train(training, everyone, engine="loop"), 1e-10)
    assert all(one.losses[-1] < one.losses[0] for one in found)


def test_a_convolution_trains_in_the_loop_on_a_processor_unless_asked():
    assert vectorised.choose(record("convolution"), learners("convolution")) == "loop"
    assert vectorised.choose(record("group norm"), learners("group norm")) == "vmap"


@pytest.mark.parametrize("optimiser", [ADAM, SGD(rate=0.1)], ids=["adam", "sgd"])
def test_a_step_with_convolutions_as_products_is_that_of_the_loop(optimiser, monkeypatch):
    monkeypatch.setattr(vectorised, "_convolving", lambda device: ConvolutionsAsProducts())
    training = record("convolution", optimiser=optimiser, steps=1)
    everyone = learners("convolution")
    found = train(training, everyone, engine="vmap")
    assert_same(found, train(training, everyone, engine="loop"), STEP)


# -- bfloat16


def singles(name):
    return [
        replace(
            one,
            parameters={n: v.float() for n, v in one.parameters.items()},
            rows={n: v.float() if n == "x" else v for n, v in one.rows.items()},
        )
        for one in learners(name)
    ]


def test_bf16_rounds_the_products_and_keeps_the_parameters():
    """A step is that of a linear model whose rows and weights were rounded for its scores."""
    model = nn.Linear(SIDE * SIDE, CLASSES)
    torch.manual_seed(3)
    x, y = 4 * torch.randn(5, SIDE * SIDE), torch.tensor([0, 1, 2, 0, 1])
    one = Learner(parameters=initial_parameters(model), rows={"x": x, "y": y}, key=1)
    training = LocalTraining(
        model=model, loss=loss, optimiser=SGD(rate=0.5), batch_size=5, steps=1, bf16=True
    )
    done = train_alone(training, one)
    w, b = one.parameters["weight"], one.parameters["bias"]
    scores = functional.linear(x.bfloat16(), w.bfloat16(), b.bfloat16())
    value = functional.cross_entropy(scores.float(), y)
    torch.testing.assert_close(done.losses[0], value, atol=1e-6, rtol=0)
    exact = train_alone(replace(training, bf16=False), one)
    assert 1e-5 < abs(float(exact.losses[0] - done.losses[0])) < 0.02
    moved, there = (end.parameters["weight"] - w for end in (done, exact))
    assert moved.dtype == torch.float32
    # a gradient has 8 bits, what it is added to has 24
    assert 1e-4 < float((moved - there).norm() / there.norm()) < 0.02
    gradient = -moved / 0.5
    torch.testing.assert_close(gradient, gradient.bfloat16().float(), atol=1e-6, rtol=1e-3)


@pytest.mark.parametrize("name", ["dense", "group norm"])
def test_engines_agree_in_bf16_as_far_as_it_goes(name):
    model = MODELS[name][0]().float()
    training = record(name, model=model, bf16=True, steps=3)
    loop = train(training, singles(name), engine="loop")
    found = train(training, singles(name), engine="vmap")
    for mine, other in zip(found, loop, strict=True):
        torch.testing.assert_close(mine.losses, other.losses, atol=0.02, rtol=0.02)
        assert all(v.dtype == torch.float32 for v in mine.parameters.values())
        assert all(v.dtype == torch.float32 for m in mine.state.moments for v in m.values())


def test_bf16_goes_with_single_precision():
    with pytest.raises(ExperimentError, match=r"torch\.float64, and products in bfloat16"):
        train(record("dense", bf16=True), learners("dense"))


@pytest.mark.gpu
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_an_accelerator_takes_the_steps_of_the_processor(name, engine):
    training = record(name, steps=1)
    there = [
        replace(
            one,
            parameters={n: v.cuda() for n, v in one.parameters.items()},
            rows={n: v.cuda() for n, v in one.rows.items()},
        )
        for one in learners(name)
    ]
    found = train(training, there, engine=engine)
    back = [
        replace(
            one,
            parameters={n: v.cpu() for n, v in one.parameters.items()},
            losses=one.losses.cpu(),
        )
        for one in found
    ]
    assert_same(back, train(training, learners(name), engine="loop"), 1e-10)


@pytest.mark.gpu
@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_an_accelerator_convolves_in_single_precision(engine):
    """With products of ten bits (TF32), a residual network's losses came to be off by 3e-3."""
    model = nn.Sequential(
        *(nn.Unflatten(1, (1, SIDE, SIDE)), nn.Conv2d(1, 64, 3, padding=1), nn.ReLU()),
        *(nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Flatten(), nn.Linear(1024, CLASSES)),
    )
    training = record("convolution", model=model, optimiser=SGD(rate=1.0), steps=3)
    torch.manual_seed(0)
    start = {name: 2 * values for name, values in initial_parameters(model).items()}
    here = [replace(one, parameters=start) for one in singles("convolution")]
    there = [
        replace(
            one,
            parameters={n: v.cuda() for n, v in one.parameters.items()},
            rows={n: v.cuda() for n, v in one.rows.items()},
        )
        for one in here
    ]
    for mine, other in zip(
        train(training, there, engine=engine), train(training, here, engine="loop"), strict=True
    ):
        torch.testing.assert_close(mine.losses[0].cpu(), other.losses[0], atol=1e-5, rtol=1e-6)
