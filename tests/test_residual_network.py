"""The residual network of FeMAM's code: its size, its images, and how clients train it."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import intarsia  # noqa: E402  after the skip where torch is missing
from intarsia.algorithms.network_structure import Architecture, Network  # noqa: E402
from intarsia.algorithms.residual_network import Residual  # noqa: E402
from intarsia.errors import FederationError  # noqa: E402

functional = torch.nn.functional


def test_it_has_as_many_parameters_as_the_authors_has():
    made_of = Architecture(hidden=1, latent=1, embedding="residual")
    network = Network(3 * 32 * 32, 100, made_of)
    assert sum(values.numel() for values in network.parameters()) == 83_852
    assert list(network.buffers()) == []


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


@pytest.mark.parametrize("name", ["femam", "fedavg-ft"])
def test_clients_train_it_and_its_model_predicts(tmp_path, name):
    rng = np.random.default_rng(0)
    y = np.arange(24) % 2
    x = rng.normal(size=(24, 192)) + 2.0 * y[:, None]
    tables = {"a": (x[:12], y[:12]), "b": (x[12:], y[12:])}
    settings = {"name": name, "embedding": "residual", "local_epochs": 1, "rate": 0.01}
    if name == "femam":
        settings |= {"levels": ["global", "personal"], "first_rounds": 2, "level_rounds": 1}
        settings |= {"validation": 0.2, "window": 0}
    result = intarsia.run(
        tables=tables, algorithm=settings, classes=["0", "1"], rounds=3, yardsticks=False,
        intercept=False, out=tmp_path / "run",
    )  # fmt: skip
    again = intarsia.load(tmp_path / "run").model
    for client, (rows, _) in tables.items():
        found = result.model[client].decision_function(rows)
        assert np.isfinite(found).all()
        np.testing.assert_array_equal(again[client].decision_function(rows), found)
