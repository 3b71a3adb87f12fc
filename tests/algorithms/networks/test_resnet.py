"""The residual network of FeMAM's code: its size, its images, and how clients train it."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402  after the skip where torch is missing

import intarsia  # noqa: E402
from intarsia.algorithms.networks.architecture import Architecture, Network  # noqa: E402
from intarsia.algorithms.networks.client_network import network_scores  # noqa: E402
from intarsia.algorithms.networks.resnet import Residual  # noqa: E402
from intarsia.algorithms.personalised.fedrep import FEDAVG_FT, FedAvgFT  # noqa: E402
from intarsia.core.block import Block, Labels  # noqa: E402
from intarsia.core.schema import Schema  # noqa: E402
from intarsia.engines.simulation import Simulation  # noqa: E402
from intarsia.errors import FederationError  # noqa: E402
from intarsia.maths.training import vectorised  # noqa: E402
from intarsia.maths.training.local_training import (  # noqa: E402
    Learner,
    LocalTraining,
    batch_order,
    initial_parameters,
)
from intarsia.maths.training.optimisers import SGD  # noqa: E402

functional = torch.nn.functional
BOTH = ["residual", "residual-batch"]


class PlainBlock(nn.Module):
    """A block of the authors' code, of torch's own layers."""

    def __init__(self, channels, out, stride, norm):
        super().__init__()
        self.first = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.first_norm = norm(out)
        self.second = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.second_norm = norm(out)
        self.beside = nn.Sequential()
        if stride != 1:
            self.beside = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), norm(out))

    def forward(self, x):
        inner = self.first_norm(self.first(x)).relu()
        return (self.second_norm(self.second(inner)) + self.beside(x)).relu()


class PlainEmbedding(nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, 1, 1, bias=False), norm(8)
        sizes = ((8, 8, 1), (8, 16, 2), (16, 32, 2), (32, 64, 2))
        self.blocks = nn.Sequential(*(PlainBlock(*size, norm) for size in sizes))

    def forward(self, x):
        side = int((x.shape[1] // 3) ** 0.5)
        x = self.norm(self.first(x.reshape(-1, 3, side, side))).relu()
        return functional.adaptive_avg_pool2d(self.blocks(x), 1).flatten(1)


class Plain(nn.Module):
    """The network of torch's own layers, under the same names."""

    def __init__(self, kind, outputs):
        super().__init__()
        batch = kind == "residual-batch"
        norm = nn.BatchNorm2d if batch else lambda count: nn.GroupNorm(count // 4, count)
        self.embedding, self.classifier = PlainEmbedding(norm), nn.Linear(64, outputs)

    def forward(self, x):
        return self.classifier(self.embedding(x))

    @staticmethod
    def of(kind, parameters):
        """Return the network with parameters, in double precision."""
        plain = Plain(kind, len(parameters["classifier.bias"])).double()
        left, odd = plain.load_state_dict(parameters, strict=False)
        assert not odd
        assert all(name.endswith("num_batches_tracked") for name in left)
        return plain

    def trained(self, x, y, order, rate):
        """Return the state after steps of plain gradient descent."""
        optimiser = torch.optim.SGD(self.parameters(), lr=rate)
        for places in order:
            rows = places[places >= 0]
            optimiser.zero_grad()
            functional.cross_entropy(self(x[rows]), y[rows]).backward()
            optimiser.step()
        return self.state_dict()


def network(kind, outputs=3):
    torch.manual_seed(0)
    return Network(192, outputs, Architecture(hidden=1, latent=1, embedding=kind)).double()


def cross_entropies(model, batch):
    return functional.cross_entropy(model(batch["x"])[1], batch["y"], reduction="none")


@pytest.mark.parametrize("engine", ["auto", "loop"])
@pytest.mark.parametrize("kind", BOTH)
def test_it_trains_as_a_plain_loop_over_torchs_layers_does(kind, engine):
    model = network(kind)
    training = LocalTraining(
        model=model, loss=cross_entropies, optimiser=SGD(rate=0.1), epochs=2, batch_size=8
    )
    learners = []
    for key in range(5):  # auto would take more than three perceptrons at once
        x, y = torch.randn(11 + key, 192, dtype=torch.float64), torch.arange(11 + key) % 3
        starts = initial_parameters(model)
        learners.append(Learner(parameters=starts, rows={"x": x, "y": y}, key=key))
    for learner, found in zip(
        learners, vectorised.train(training, learners, engine=engine), strict=True
    ):
        order = batch_order(learner.key, learner.samples, 8, training.steps_of(learner))
        plain = Plain.of(kind, learner.parameters)
        expected = plain.trained(learner.rows["x"], learner.rows["y"], order, 0.1)
        for name, values in found.parameters.items():
            torch.testing.assert_close(values.detach(), expected[name], rtol=1e-9, atol=1e-11)
        made_of = Architecture(hidden=1, latent=1, embedding=kind)
        arrays = {name: values.detach().numpy() for name, values in found.parameters.items()}
        rows = learner.rows["x"].numpy()
        block = Block(np.arange(len(rows)), tuple(f"{j:03}" for j in range(192)), rows, None)
        with torch.no_grad():
            scores = plain.eval()(learner.rows["x"]).numpy()
        np.testing.assert_allclose(network_scores(arrays, made_of, block), scores, rtol=1e-9)


def test_statistics_of_batches_are_averaged_with_the_weights():
    rng = np.random.default_rng(0)
    names, rows = tuple(f"{j:03}" for j in range(192)), np.arange(6)
    blocks = {
        name: Block(10 * at + rows, names, rng.normal(at, 1 + at, (6, 192)), rows % 3.0)
        for at, name in enumerate("ab")
    }
    options = FedAvgFT(
        embedding="residual-batch", local_epochs=2, final_epochs=0, optimiser="sgd", rate=0.1,
        batch=6, precision="double",
    )  # fmt: skip
    schema = Schema.of(blocks, Labels("multiclass", ("x", "y", "z")))
    engine = Simulation({"train": (schema, blocks)}, 0)
    engine.make_states(
        lambda name: FEDAVG_FT.init_client(
            options, schema, name, engine.block(name), engine.client_key(name)
        )
    )
    server = FEDAVG_FT.init_server(options, schema, engine.key("init"))
    server = FEDAVG_FT.setup(server, engine, engine.key("init"))
    engine.begin_round(1)
    start = engine.get_states()["a"].parameters
    vector = server.start.shared
    server, _ = FEDAVG_FT.round(server, engine, engine.key())
    engine.begin_round(2)
    FEDAVG_FT.conclude(server, engine, engine.key())
    ends = np.cumsum([start[name].size for name in sorted(start)])
    begin = {
        name: torch.from_numpy(piece.reshape(start[name].shape))
        for name, piece in zip(sorted(start), np.split(vector, ends[:-1]), strict=True)
    }
    each = [
        Plain.of("residual-batch", begin).trained(
            torch.from_numpy(block.x), torch.from_numpy(block.y.astype(int)), [rows, rows], 0.1
        )
        for block in blocks.values()
    ]  # fmt: skip
    for state in engine.get_states().values():
        assert any(name.endswith("running_var") for name in state.parameters)
        for name, values in state.parameters.items():
            expected = (each[0][name] + each[1][name]) / 2
            np.testing.assert_allclose(values, expected.numpy(), rtol=1e-9, atol=1e-11)


def test_it_has_as_many_parameters_as_the_authors_has():
    made_of = Architecture(hidden=1, latent=1, embedding="residual")
    network = Network(3 * 32 * 32, 100, made_of)
    assert sum(values.numel() for values in network.parameters()) == 83_852
    assert list(network.buffers()) == []
    batch = Network(3 * 32 * 32, 100, dataclasses.replace(made_of, embedding="residual-batch"))
    assert sum(values.numel() for values in batch.parameters()) == 83_852


@pytest.mark.parametrize("channels", [1, 3])
def test_it_is_what_its_layers_say(channels):
    torch.manual_seed(0)
    module = Residual(channels * 64).double()
    w = dict(module.named_parameters())
    images = torch.randn(2, channels, 8, 8, dtype=torch.float64)

    def normed(x, name):
        return functional.group_norm(x, x.shape[1] // 4, w[f"{name}.weight"], w[f"{name}.bias"])

    x = functional.conv2d(images, w["first.weight"], padding=1)
    x = normed(x, "norm").relu()
    for place in range(4):
        name, stride = f"blocks.{place}", 1 if place == 0 else 2
        inner = functional.conv2d(x, w[f"{name}.first.weight"], stride=stride, padding=1)
        inner = normed(inner, f"{name}.first_norm").relu()
        inner = functional.conv2d(inner, w[f"{name}.second.weight"], padding=1)
        inner = normed(inner, f"{name}.second_norm")
        if place:
            x = functional.conv2d(x, w[f"{name}.beside.0.weight"], stride=stride)
            x = normed(x, f"{name}.beside.1")
        x = (inner + x).relu()
    expected = x.flatten(2).mean(2)
    assert expected.shape == (2, 64)
    torch.testing.assert_close(module(images.reshape(2, -1)), expected)


def test_columns_that_are_no_image_are_named():
    with pytest.raises(
        FederationError, match=r"has 65 columns, and algorithm\.embedding is 'resid"
    ):
        Residual(65)
    with pytest.raises(FederationError, match="at least 8 × 8 pixels"):
        Residual(3 * 49)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("femam", "residual"), ("fedavg-ft", "residual"), ("femam", "residual-batch")],
)
def test_clients_train_it_and_its_model_predicts(tmp_path, name, kind):
    rng = np.random.default_rng(0)
    y = np.arange(24) % 2
    x = rng.normal(size=(24, 192)) + 2.0 * y[:, None]
    tables = {"a": (x[:12], y[:12]), "b": (x[12:], y[12:])}
    settings = {"name": name, "embedding": kind, "local_epochs": 1, "rate": 0.01}
    if name == "femam":
        settings |= {"levels": ["global", "personal"], "first_rounds": 2, "level_rounds": 1}
        settings |= {"validation": 0.2, "window": 0, "level_schedule": "paper", "batch": 32}
    result = intarsia.run(
        tables=tables, algorithm=settings, classes=["0", "1"], rounds=3, yardsticks=False,
        intercept=False, out=tmp_path / "run",
    )  # fmt: skip
    again = intarsia.load(tmp_path / "run").model
    for client, (rows, _) in tables.items():
        found = result.model[client].decision_function(rows)
        assert np.isfinite(found).all()
        np.testing.assert_array_equal(again[client].decision_function(rows), found)
