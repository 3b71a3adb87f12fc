"""The plain loop against closed forms and against torch's own optimisers."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402  after the skip where torch is missing
from torch.nn import functional  # noqa: E402

from intarsia.errors import ExperimentError  # noqa: E402
from intarsia.maths.training.local_training import (  # noqa: E402
    Learner,
    LocalTraining,
    NoiseStream,
    batch_order,
    initial_parameters,
    train_alone,
)
from intarsia.maths.training.optimisers import SGD, Adam  # noqa: E402


def squared(model, batch):
    return (model(batch["x"]).squeeze(-1) - batch["y"]).square() / 2


def line(features=3):
    torch.manual_seed(0)
    return nn.Linear(features, 1).double()


def learner(model, samples=7, seed=0, key=5, **given):
    rng = np.random.default_rng(seed)
    features = model.weight.shape[1] if isinstance(model, nn.Linear) else 3
    rows = {
        "x": torch.from_numpy(rng.normal(size=(samples, features))),
        "y": torch.from_numpy(rng.normal(size=samples)),
    }
    return Learner(parameters=initial_parameters(model), rows=rows, key=key, **given)


def deep():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()


def test_a_step_of_gradient_descent_is_that_of_the_formula():
    model = line()
    one = learner(model, references={"weight": torch.ones(1, 3).double()})
    training = LocalTraining(
        model=model,
        loss=squared,
        optimiser=SGD(rate=0.1),
        decay={"weight": 0.3},
        proximal={"weight": 0.7},
        batch_size=7,
    )
    trained = train_alone(training, one)
    w, b = one.parameters["weight"], one.parameters["bias"]
    error = one.rows["x"] @ w[0] + b - one.rows["y"]
    slope = error @ one.rows["x"] / 7 + 0.3 * w + 0.7 * (w - 1.0)
    torch.testing.assert_close(trained.parameters["weight"], w - 0.1 * slope, atol=1e-14, rtol=0)
    torch.testing.assert_close(
        trained.parameters["bias"], b - 0.1 * error.mean(), atol=1e-14, rtol=0
    )
    value = error.square().mean() / 2 + 0.35 * (w - 1.0).square().sum()
    torch.testing.assert_close(trained.losses, value[None], atol=1e-14, rtol=0)


def test_momentum_is_that_of_the_formula():
    model = line()
    one = learner(model)
    training = LocalTraining(
        model=model, loss=squared, optimiser=SGD(rate=0.1, momentum=0.9), epochs=3, batch_size=9
    )
    w, b = one.parameters["weight"][0].clone(), one.parameters["bias"].clone()
    kept = torch.zeros(3).double(), torch.zeros(1).double()
    for _ in range(3):
        error = one.rows["x"] @ w + b - one.rows["y"]
        kept = 0.9 * kept[0] + error @ one.rows["x"] / 7, 0.9 * kept[1] + error.mean()
        w, b = w - 0.1 * kept[0], b - 0.1 * kept[1]
    trained = train_alone(training, one)
    torch.testing.assert_close(trained.parameters["weight"][0], w, atol=1e-14, rtol=0)
    torch.testing.assert_close(trained.parameters["bias"], b, atol=1e-14, rtol=0)


def test_adam_is_that_of_torch_on_the_same_batches():
    model = deep()
    one = learner(model, samples=23, key=9)
    training = LocalTraining(
        model=model, loss=squared, optimiser=Adam(rate=0.01), epochs=4, batch_size=5
    )
    trained = train_alone(training, one)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    for places in batch_order(9, 23, 5, 20):
        rows = torch.from_numpy(places[places >= 0])
        optimiser.zero_grad()
        error = model(one.rows["x"][rows]).squeeze(-1) - one.rows["y"][rows]
        (error.square().mean() / 2).backward()
        optimiser.step()
    for name, values in model.named_parameters():
        torch.testing.assert_close(trained.parameters[name], values.detach(), atol=1e-13, rtol=0)


def test_an_epoch_takes_every_row_once_in_an_order_of_the_key():
    order = batch_order(3, 23, 5, 10)
    assert order.shape == (10, 5)
    for epoch in (order[:5], order[5:]):
        rows = epoch[epoch >= 0]
        assert sorted(rows) == list(range(23))
        assert (epoch[-1] >= 0).sum() == 3
    assert (order[:5] != order[5:]).any()
    np.testing.assert_array_equal(order, batch_order(3, 23, 5, 10))
    assert (order != batch_order(4, 23, 5, 10)).any()
    np.testing.assert_array_equal(order[:7], batch_order(3, 23, 5, 7))


def test_noise_depends_on_the_key_and_the_step_alone():
    def steps(key, count):
        stream = NoiseStream(key, {"a": (2,), "b": ()}, 3, torch.float64)
        return [stream.step() for _ in range(count)]

    long, short = steps(1, 20), steps(1, 10)
    assert long[0]["a"].shape == (3, 2)
    assert long[0]["b"].shape == (3,)
    for mine, other in zip(long, short, strict=False):
        assert torch.equal(mine["a"], other["a"])
        assert torch.equal(mine["b"], other["b"])
    drawn = torch.cat([step["a"] for step in long])
    assert len(drawn.unique()) == 120
    assert not torch.equal(steps(2, 1)[0]["a"], long[0]["a"])


@pytest.mark.parametrize("optimiser", [Adam(rate=0.01), SGD(rate=0.01, momentum=0.9)])
def test_a_training_in_two_parts_that_keeps_its_optimiser_has_the_bits_of_one(optimiser):
    model = deep()
    whole = LocalTraining(model=model, loss=squared, optimiser=optimiser, epochs=6, batch_size=7)
    half = replace(whole, epochs=3)
    one = learner(model)  # as many rows as a batch: shuffles change the order of a sum only
    one = replace(one, rows={name: values[:1] for name, values in one.rows.items()})
    expected = train_alone(whole, one)
    first = train_alone(half, one)
    second = train_alone(half, replace(one, parameters=first.parameters, state=first.state))
    assert second.state.steps == 6
    for name, values in expected.parameters.items():
        assert torch.equal(second.parameters[name], values)
    fresh = train_alone(half, replace(one, parameters=first.parameters))
    assert any(
        not torch.equal(fresh.parameters[name], v) for name, v in expected.parameters.items()
    )


def test_frozen_parts_do_not_move_and_nothing_given_changes():
    model = deep()
    one = learner(model, samples=20)
    before = {name: values.clone() for name, values in one.parameters.items()}
    training = LocalTraining(
        model=model, loss=squared, train=("2.*",), decay={"*": 0.1}, batch_size=4
    )
    trained = train_alone(training, one)
    for name, values in before.items():
        assert torch.equal(one.parameters[name], values)
        assert torch.equal(trained.parameters[name], values) == name.startswith("0.")
    assert set(trained.state.moments[0]) == {"2.weight", "2.bias"}
    again = train_alone(training, one)
    assert all(torch.equal(again.parameters[n], v) for n, v in trained.parameters.items())


def test_the_penalty_and_the_constants_are_part_of_the_objective():
    model = line()
    one = learner(model, constants={"pull": torch.tensor(2.0).double()})
    training = LocalTraining(
        model=model,
        loss=lambda model, batch: (
            0.0 * squared(model, batch),
            batch["pull"] * model.weight.sum(),
        ),
        optimiser=SGD(rate=0.5),
        batch_size=7,
    )
    moved = train_alone(training, one).parameters["weight"] - one.parameters["weight"]
    torch.testing.assert_close(moved, torch.full((1, 3), -1.0).double())


def test_tied_weights_stay_tied():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(3, 3)
            self.second = nn.Linear(3, 3)
            self.second.weight = self.first.weight

        def forward(self, x):
            return self.second(torch.tanh(self.first(x))).sum(-1, keepdim=True)

    torch.manual_seed(0)
    model = Tied().double()
    one = learner(model)
    training = LocalTraining(model=model, loss=squared, optimiser=SGD(rate=0.1), batch_size=7)
    trained = train_alone(training, one)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    squared(model, one.rows).mean().backward()
    optimiser.step()
    for name, values in model.named_parameters():
        torch.testing.assert_close(trained.parameters[name], values.detach(), atol=1e-14, rtol=0)


def test_dropout_draws_from_the_clients_stream():
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 1)).double()
    training = LocalTraining(model=model, loss=squared, batch_size=4)
    state = torch.get_rng_state()
    first = train_alone(training, learner(model))
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(77)
    assert torch.equal(train_alone(training, learner(model)).losses, first.losses)


def test_what_does_not_fit_is_said():
    model = line()
    good = {"model": model, "loss": squared}
    for given, said in (
        ({"batch_size": 0}, "batch_size is 0"),
        ({"train": ("embedding.*",)}, "it has weight, bias"),
        ({"decay": {"weight": -1.0}}, "-1.0; it must be at least 0"),
    ):
        with pytest.raises(ExperimentError, match=said):
            LocalTraining(**good, **given)
    training = LocalTraining(**good)
    one = learner(model)
    for wrong, said in (
        (replace(one, rows={**one.rows, "y": one.rows["y"][:3]}), "lengths {'x': 7, 'y': 3}"),
        (replace(one, parameters={"weight": one.parameters["weight"]}), "both have bias"),
        (replace(one, constants={"x": torch.ones(1)}), "hold x twice"),
    ):
        with pytest.raises(ExperimentError, match=said):
            train_alone(training, wrong)
    mean = LocalTraining(
        model=model, loss=lambda model, b: functional.mse_loss(model(b["x"])[:, 0], b["y"])
    )
    with pytest.raises(ExperimentError, match=r"shape \(\) for a batch of 7 rows"):
        train_alone(mean, one)


def test_a_missing_torch_is_named_with_the_extra_that_brings_it():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import intarsia\n"
        "try:\n    import intarsia.maths.training.local_training\n"
        "except intarsia.errors.ExperimentError as error:\n    print(error)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 'pip install "intarsia[torch]"' in found.stdout
