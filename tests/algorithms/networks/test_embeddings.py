from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from scipy.signal import correlate2d  # noqa: E402  after the skip where torch is missing
from scipy.stats import norm  # noqa: E402

import intarsia  # noqa: E402
from intarsia.algorithms.networks.embeddings import Convolutional, embedding  # noqa: E402
from intarsia.errors import FederationError  # noqa: E402
from intarsia.models.serialization import read_model  # noqa: E402


def by_hand(image, module):
    """Return the latent point of one image, with another library's correlation."""
    maps = [image]
    for layer in (module.first, module.second):
        weight, bias = layer.weight.detach().numpy(), layer.bias.detach().numpy()
        found = []
        for kernels, shift in zip(weight, bias, strict=True):
            total = shift + sum(
                correlate2d(one, kernel, mode="valid")
                for one, kernel in zip(maps, kernels, strict=True)
            )
            side = total.shape[0] // 2
            pooled = total[: 2 * side, : 2 * side].reshape(side, 2, side, 2).max((1, 3))
            found.append(1 / (1 + np.exp(-pooled)))
        maps = found
    flat = np.concatenate([one.ravel() for one in maps])
    return module.last.weight.detach().numpy() @ flat + module.last.bias.detach().numpy()


@pytest.mark.parametrize("side", [16, 19, 28])
def test_the_convolutional_embedding_is_what_its_layers_say(side):
    torch.manual_seed(0)
    module = Convolutional(side * side, 7).double()
    images = np.random.default_rng(0).random((2, side, side))
    found = module(torch.from_numpy(images.reshape(2, -1))).detach().numpy()
    for mine, image in zip(found, images, strict=True):
        np.testing.assert_allclose(mine, by_hand(image, module), atol=1e-12)


def test_dropout_leaves_out_the_units_with_the_lowest_numbers_and_scales_the_others():
    generator = torch.Generator().manual_seed(0)
    module = embedding("perceptron", 3, 4, 2, 0.25).double()
    x, drawn = (torch.randn(5, size, generator=generator, dtype=torch.float64) for size in (3, 8))
    kept = (drawn > norm.ppf(0.25)) / 0.75
    hidden = torch.relu(module[0](x)) * kept[:, :4]
    expected = module[4](torch.relu(module[2](hidden)) * kept[:, 4:])
    torch.testing.assert_close(module(x, drawn), expected)


def test_dropout_of_images_leaves_out_channels_of_the_second_convolution():
    module = Convolutional(256, 3, 0.5).double()
    module.second.bias.data.fill_(1.0)
    images = torch.rand(2, 256, dtype=torch.float64)
    drawn = torch.ones(2, 20, dtype=torch.float64)
    drawn[1] = -1.0  # every channel of the second image: the sigmoid of 0 is left
    found = module(images, drawn)
    seen = {}
    module.second.register_forward_hook(lambda layer, given, made: seen.update(made=made))
    module(images)
    kept = torch.nn.functional.max_pool2d(2 * seen["made"][:1], 2).sigmoid()
    torch.testing.assert_close(found[:1], module.last(kept.flatten(1)))
    torch.testing.assert_close(found[1], module.last(torch.full((20,), 0.5, dtype=torch.float64)))


def test_the_papers_sizes_for_mnist_and_usps_follow_from_the_images():
    assert embedding("convolutional", 784, 64, 64).last.in_features == 320
    assert embedding("convolutional", 256, 64, 64).last.in_features == 20


@pytest.mark.parametrize("features", [255, 225])
def test_what_is_no_large_enough_square_is_said(features):
    with pytest.raises(FederationError, match=f"has {features} columns.*dataset.side"):
        Convolutional(features, 4)


def test_clients_with_images_of_two_sizes_train_together_whatever_the_engine(tmp_path):
    rng = np.random.default_rng(0)
    tables = {}
    for name, side in (("a", 16), ("b", 18), ("c", 16)):
        y = rng.integers(0, 3, 12)
        x = rng.normal(size=(12, side, side)) * 0.1
        for row, label in enumerate(y):
            x[row, 4 * label : 4 * label + 4] += 1
        tables[name] = (x.reshape(12, -1), y)
    settings = {
        "algorithm": "flic",
        "embedding": "convolutional",
        "latent": 4,
        "rate": 0.02,
        "precision": "double",
        "pretraining_epochs": 1,
        "local_epochs": 1,
        "final_epochs": 1,
        "rounds": 1,
        "batch": 20,
        "standardise": False,
        "intercept": False,
        "yardsticks": False,
    }
    found = [
        intarsia.run(tables=tables, engine=engine, out=tmp_path / engine, **settings)
        for engine in ("loop", "vmap")
    ]
    for name, score in found[0].metrics.clients.items():
        assert found[1].metrics.clients[name].loss == pytest.approx(score.loss, abs=1e-8)
    again = read_model(tmp_path / "loop" / "model")
    for name, (x, _) in tables.items():
        np.testing.assert_array_equal(again[name].predict(x), found[0].model[name].predict(x))
