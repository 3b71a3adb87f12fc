"""Layers of networks: normalised images and a ReLU, and layers of stacked learners."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from intarsia.maths.training.sparse_rows import Picked, SparseBatch
from intarsia.maths.training.torch_import import Tensor, nn, torch

EPSILON = 1e-5  # as torch has it


def normalised(
    images: Tensor,
    weight: Tensor,
    bias: Tensor,
    together: int,
    *,
    beside: Tensor | None = None,
    relu: bool = True,
) -> Tensor:
    """Return images with each group of channels normalised, image by image.

    Parameters
    ----------
    images
        (images, channels, height, width).
    weight, bias
        (channels,).
    together
        Channels of a group.
    beside
        Is added before the ReLU; of the images' shape.
    """
    groups = images.shape[1] // together
    images = images.to(weight.dtype)
    found = nn.functional.group_norm(images, groups, weight, bias, EPSILON)
    return _add_beside(found, beside, relu=relu)


def normalised_alike(
    images: Tensor, weight: Tensor, bias: Tensor, *, beside: Tensor | None = None, relu: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """Return images with each channel normalised over a batch; its means and variances there.

    The statistics, (channels,), are without a gradient; variances are over n, not n - 1.
    """
    # torch.nn.functional.batch_norm is the same, and refuses a batch of one pixel
    found, means, scales = torch.native_batch_norm(
        images.to(weight.dtype), weight, bias, None, None, True, 0.0, EPSILON
    )
    return _add_beside(found, beside, relu=relu), means.detach(), scales.detach() ** -2 - EPSILON


def _add_beside(images: Tensor, beside: Tensor | None, *, relu: bool) -> Tensor:
    """Return images with what is beside them added, and without what is negative."""
    found = images if beside is None else images + beside
    return found.relu() if relu else found


def affine(x: Picked, weight: Tensor, bias: Tensor) -> Tensor:
    """Return x Wᵀ + b, (..., rows, units)."""
    if isinstance(x, SparseBatch):
        weight, x = weight.index_select(-1, x.columns), x.values
    if weight.dim() == 2 and bias.dim() == 1:
        return nn.functional.linear(x, weight, bias)
    # this way round the gradient of W lies as W does
    if x.dim() == weight.dim() == 3:
        return torch.baddbmm(bias.unsqueeze(-1), weight, x.mT).mT
    found: Tensor = (weight @ x.mT + bias.unsqueeze(-1)).mT
    return found


class StackedLinear(nn.Linear):
    """x Wᵀ + b with W (..., units, features) and b (..., units); drawn as torch's own layer is."""

    def forward(self, x: Picked) -> Tensor:
        """Return (..., rows, units) for rows (..., rows, features)."""
        return affine(x, self.weight, self.bias)


class ConvolutionsAsProducts(torch.overrides.TorchFunctionMode):
    """Within it a convolution under torch.vmap is a product, where learners differ in its weights.

    torch makes of it one convolution in groups, whose kernels took an accelerator twice as long.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Call a function of torch, or what gives the same."""
        if func in _CONVOLUTIONS:
            return _convolved(func, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


_CONVOLUTIONS = (torch.conv1d, torch.conv2d, torch.conv3d)


def _convolved(
    func: Any,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """Return a convolution, its parameters named as torch names them."""
    axes = weight.dim() - 2
    strides, edges, gaps = (_each(one, axes) for one in (stride, padding, dilation))
    stacked = torch._C._functorch.is_batchedtensor(weight)
    plain = groups == 1 and set(gaps) == {1} and edges != "same" and input.dim() == axes + 2
    if not (stacked and plain):
        found: Tensor = func(input, weight, bias, stride, padding, dilation, groups)
        return found
    return patches_product(input, weight, bias, strides, edges)


def _each(given: Any, axes: int) -> Any:
    """Return what is given for each of some axes, as torch reads it."""
    if isinstance(given, str):
        return (0,) * axes if given == "valid" else given
    parts = (given,) if isinstance(given, int) else tuple(given)
    return parts * axes if len(parts) == 1 else parts


def patches_product(
    images: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    strides: Sequence[int],
    edges: Sequence[int],
) -> Tensor:
    """Return a convolution as the product of its weights and all patches of the images.

    Parameters
    ----------
    images
        (images, channels, height, width), with one axis, two, or three behind the channels.
    weight, bias
        (out, channels, height, width) of a patch; (out,).
    strides, edges
        From patch to patch, and zeros around the images, for each axis.
    """
    axes = len(strides)
    if any(edges):
        around = [edge for each in reversed(edges) for edge in (each, each)]
        images = nn.functional.pad(images, around)
    for axis, stride in enumerate(strides, start=2):
        images = images.unfold(axis, weight.shape[axis], stride)
    rows, sides = images.shape[0], images.shape[2 : 2 + axes]
    behind = range(2 + axes, 2 + 2 * axes)  # of a patch
    patches = images.permute(1, *behind, 0, *range(2, 2 + axes))
    patches = patches.reshape(math.prod(weight.shape[1:]), -1)
    found = (weight.flatten(1) @ patches).view(-1, rows, *sides).transpose(0, 1)
    return found if bias is None else found + bias.view(-1, *[1] * axes)
