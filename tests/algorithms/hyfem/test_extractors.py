"""What takes a block's values to features: shapes, kinds by shape, modules of the user's own."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402  after the skip where torch is missing

from intarsia.algorithms.hyfem.extractors import extractor, module_of  # noqa: E402
from intarsia.errors import ExperimentError, FederationError  # noqa: E402

HERE = __name__


def scaled(shape, width):
    return nn.Sequential(nn.Linear(math.prod(shape), width), nn.LayerNorm(width))


def remembering(shape, width):
    return nn.Sequential(nn.Linear(math.prod(shape), width), nn.BatchNorm1d(width))


def bare(shape):
    return nn.Linear(math.prod(shape), 5)


def narrow(shape, width):
    return nn.Linear(math.prod(shape), width - 1)


@pytest.mark.parametrize(
    ("kind", "shape", "width"),
    [
        ("perceptron", (7,), 5),
        ("perceptron", (2, 3, 4), 5),
        ("linear", (7,), 5),
        ("identity", (7,), 7),
        ("convolutional", (1, 14, 14), 5),
        ("convolutional", (3, 5, 9), 5),
        ("convolutional-1d", (2, 11), 5),
        ("resnet18", (3, 16, 16), 5),
        (f"{HERE}:scaled", (3, 4), 5),
    ],
)
def test_an_extractor_gives_its_width_for_every_row_and_each_row_by_itself(kind, shape, width):
    made_of = extractor("block", kind, shape, 5, (6,))
    assert made_of.width == width
    torch.manual_seed(0)
    module = module_of(made_of).double()
    rows = torch.randn(3, math.prod(shape), dtype=torch.float64)
    found = module(rows)
    assert found.shape == (3, width)
    torch.testing.assert_close(found[1:2], module(rows[1:2]))
    assert not list(module.named_buffers())


@pytest.mark.parametrize(
    ("shape", "kind"),
    [((9,), "perceptron"), ((2, 9), "convolutional-1d"), ((1, 9, 9), "convolutional")],
)
def test_the_kind_goes_by_the_shape(shape, kind):
    assert extractor("block", "auto", shape, 5, ()).kind == kind


def test_those_of_vectors_take_learners_stacked():
    made_of = extractor("block", "perceptron", (4,), 3, (6,))
    assert made_of.stacked
    alone = [module_of(made_of) for _ in range(2)]
    together = module_of(made_of)
    rows = torch.randn(2, 5, 4)
    stacked = {
        name: torch.stack([dict(one.named_parameters())[name] for one in alone])
        for name, _ in together.named_parameters()
    }
    found = torch.func.functional_call(together, stacked, (rows,))
    for number, one in enumerate(alone):
        torch.testing.assert_close(found[number], one(rows[number]))
    assert not extractor("block", "convolutional", (1, 8, 8), 3, ()).stacked


def test_a_kind_that_does_not_fit_is_said_with_the_shape():
    for kind, shape in (("convolutional", (9,)), ("resnet18", (3, 9)), ("convolutional-1d", (9,))):
        with pytest.raises(FederationError, match="'scan' has values of shape"):
            extractor("scan", kind, shape, 5, ())
    with pytest.raises(FederationError, match="at least 4 along each side"):
        extractor("scan", "convolutional", (1, 3, 9), 5, ())


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("remembering", "buffer '1.running_mean'"),
        ("narrow", r"gives \(2, 4\) for 2 rows"),
        ("bare", r"takes 1 positional argument but 2 were given.*\(shape, width\) -> torch.nn"),
    ],
)
def test_a_module_that_cannot_be_the_servers_is_refused(name, sentence):
    with pytest.raises(ExperimentError, match=sentence):
        module_of(extractor("block", f"{HERE}:{name}", (3,), 5, ()))
