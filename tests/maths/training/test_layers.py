"""Normalisation, layers of stacked learners, and convolutions as products, against torch's own."""

from __future__ import annotations

import itertools

import pytest

torch = pytest.importorskip("torch")

from intarsia.maths.training import layers  # noqa: E402
from intarsia.maths.training.layers import (  # noqa: E402
    ConvolutionsAsProducts,
    affine,
    normalised,
    normalised_alike,
)

functional = torch.nn.functional
SHAPES = [(3, 8, 8, 8), (2, 64, 1, 2), (5, 12, 3, 3), (40, 8, 16, 16)]  # the last: sums in parts


def given(shape, kind, *, seed=0):
    """Return images far from 0, weight, bias, what is beside them, and slopes."""
    torch.manual_seed(seed)
    images = 3 * torch.randn(shape, dtype=kind) + 5
    weight, bias = torch.randn(2, shape[1], dtype=kind)
    beside, slopes = torch.randn(2, *shape, dtype=kind)
    leaves = [one.clone().requires_grad_() for one in (images, weight, bias, beside)]
    return *leaves, slopes


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", [torch.float64, torch.float32], ids=["double", "single"])
@pytest.mark.parametrize("alike", [False, True], ids=["image", "batch"])
def test_values_and_gradients_are_those_of_torchs_operations(shape, kind, alike):
    tolerance = 1e-12 if kind == torch.float64 else 1e-5
    for added, relu, last in itertools.product((False, True), repeat=3):
        images, weight, bias, beside, slopes = given(shape, kind)
        if last:  # the layout that needs no copy
            images = images.detach().contiguous(memory_format=torch.channels_last).requires_grad_()
        leaves = [images, weight, bias, *[beside] * added]
        extra = beside if added else None
        if alike:
            found = normalised_alike(images, weight, bias, beside=extra, relu=relu)[0]
            expected = functional.batch_norm(images, None, None, weight, bias, training=True)
        else:
            found = normalised(images, weight, bias, 4, beside=extra, relu=relu)
            expected = functional.group_norm(images, shape[1] // 4, weight, bias)
        expected = expected + beside if added else expected
        expected = expected.relu() if relu else expected
        pairs = [(found, expected)]
        pairs += zip(
            torch.autograd.grad(found, leaves, slopes),
            torch.autograd.grad(expected, leaves, slopes),
            strict=True,
        )
        for mine, theirs in pairs:
            scale = float(theirs.detach().abs().max())
            torch.testing.assert_close(mine, theirs, rtol=0, atol=tolerance * scale)


def test_statistics_of_a_batch_are_its_means_and_variances():
    images, weight, bias, _, _ = given((6, 8, 5, 5), torch.float64)
    _, means, variances = normalised_alike(images, weight, bias)
    torch.testing.assert_close(means, images.detach().mean((0, 2, 3)))
    expected = images.detach().var((0, 2, 3), correction=0)
    torch.testing.assert_close(variances, expected, rtol=1e-10, atol=0)
    assert not means.requires_grad
    assert not variances.requires_grad


def test_stacked_learners_are_normalised_each_by_itself():
    images, weight, bias, _, _ = given((12, 8, 4, 4), torch.float64)
    learners = images.detach().reshape(3, 4, 8, 4, 4)
    weights = torch.stack([weight, 2 * weight, -weight])
    found = torch.vmap(lambda x, w: normalised(x, w, bias, 4))(learners, weights)
    for mine, x, w in zip(found, learners, weights, strict=True):
        torch.testing.assert_close(mine, normalised(x, w, bias, 4))
    everyone = torch.vmap(lambda x, w: normalised_alike(x, w, bias)[0])(learners, weights)
    for mine, x, w in zip(everyone, learners, weights, strict=True):
        torch.testing.assert_close(mine, normalised_alike(x, w, bias)[0])


CONVOLUTIONS = {
    1: (torch.nn.Conv1d, (7,)),
    2: (torch.nn.Conv2d, (7, 6)),
    3: (torch.nn.Conv3d, (5, 6, 4)),
}


def over_learners(layer, sides, batched=True):
    """Return what a layer makes of five learners' images, its leaves, and how to call it again."""
    torch.manual_seed(0)
    own = {
        name: torch.randn(5, *values.shape, dtype=torch.float64, requires_grad=True)
        if batched
        else values.detach().double().requires_grad_()
        for name, values in layer.named_parameters()
    }
    x = torch.randn(5, 2, 4, *sides, dtype=torch.float64, requires_grad=True)

    def call(weights, images):
        return torch.func.functional_call(layer, weights, (images,))

    return [x, *own.values()], lambda: torch.vmap(call, (0 if batched else None, 0))(own, x)


def products(monkeypatch):
    """Return the list of the convolutions that become products from now on."""
    found, product = [], layers.patches_product
    monkeypatch.setattr(layers, "patches_product", lambda *a: found.append(a) or product(*a))
    return found


@pytest.mark.parametrize("axes", CONVOLUTIONS)
@pytest.mark.parametrize("bias", [False, True])
def test_a_product_of_patches_has_the_values_and_gradients_of_the_convolution(
    axes, bias, monkeypatch
):
    kind, sides = CONVOLUTIONS[axes]
    done = products(monkeypatch)
    cases = list(itertools.product((1, 2, 3), (1, 2), (0, 1, "valid")))
    for patch, stride, padding in cases:
        layer = kind(4, 3, patch, stride, padding, bias=bias)
        leaves, call = over_learners(layer, sides)
        expected = call()
        with ConvolutionsAsProducts():
            found = call()
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-11)
        slopes = torch.randn_like(expected)
        pairs = zip(
            torch.autograd.grad(found, leaves, slopes),
            torch.autograd.grad(expected, leaves, slopes),
            strict=True,
        )
        for mine, theirs in pairs:
            torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-10)
    assert len(done) == len(cases)


@pytest.mark.parametrize(
    ("settings", "batched"),
    [({}, False), ({"groups": 2}, True), ({"dilation": 2}, True), ({"padding": "same"}, True)],
    ids=["one for all", "groups", "dilated", "same size"],
)
def test_other_convolutions_stay_those_of_torch(settings, batched, monkeypatch):
    done = products(monkeypatch)
    _, call = over_learners(torch.nn.Conv2d(4, 2, 3, **settings), (7, 6), batched)
    with ConvolutionsAsProducts():
        found = call()
    assert torch.equal(found, call())
    assert not done


@pytest.mark.parametrize("rows", [1, 6, 101])
def test_a_layer_that_is_not_stacked_has_the_bits_of_torch_s_own(rows):
    # whose rows depend less on where in a table they stand
    torch.manual_seed(0)
    x, weight, bias = torch.randn(rows, 64), torch.randn(33, 64), torch.randn(33)
    assert torch.equal(affine(x, weight, bias), functional.linear(x, weight, bias))
    several = torch.stack([x, x + 1])
    found = affine(several, torch.stack([weight, -weight]), torch.stack([bias, bias]))
    torch.testing.assert_close(found[0], affine(x, weight, bias))
    torch.testing.assert_close(found[1], functional.linear(x + 1, -weight, bias))
