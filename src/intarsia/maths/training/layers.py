"""Normalisation of images, what is added to it and the ReLU after it, in one pass each way.

    y = max(0, (x - µ) / √(σ² + ε) · w + b + beside)

µ and σ² are over the pixels and some channels of one image (group normalisation), or over the
pixels of one channel in all images of a batch (batch normalisation). On a CPU torch takes each of
these operations from memory and back; beside convolutions with channels last they cost a third of
a step. Here they are compiled, for images whose channels lie side by side.

A linear layer that may be those of several learners, stacked in front of all axes.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from intarsia.maths.jit import compiled, reassociated
from intarsia.maths.training.torch_import import Tensor, nn, torch

EPSILON = 1e-5  # as torch has it
_FEW = 256  # rows whose values are added up in the images' own precision
_LANES = 64  # values that a kernel takes at once, so that short rows of channels fill its vectors


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
    if not _compiled_here(images):
        return _as_torch_has_it(images, weight, bias, beside, together, relu=relu)
    like = images.to(weight.dtype)
    found: Tensor = _Normalisation.apply(like, weight, bias, beside, together, relu)[0]
    return found


def normalised_alike(
    images: Tensor,
    weight: Tensor,
    bias: Tensor,
    *,
    beside: Tensor | None = None,
    relu: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return images with each channel normalised over a batch; its means and variances there.

    The statistics, (channels,), are without a gradient; variances are over n, not n - 1.
    """
    images = images.to(weight.dtype)
    if not _compiled_here(images):
        variances, means = torch.var_mean(images.detach(), (0, 2, 3), correction=0)
        found = torch.nn.functional.batch_norm(
            images, None, None, weight, bias, training=True, eps=EPSILON
        )
        found = found if beside is None else found + beside
        return (found.relu() if relu else found), means, variances
    found, means, scales = _Normalisation.apply(images, weight, bias, beside, 0, relu)
    return found, means[0].to(weight.dtype), (scales[0] ** -2 - EPSILON).to(weight.dtype)


def _compiled_here(images: Tensor) -> bool:
    """Return whether the compiled normalisation takes images: not those of stacked learners."""
    if images.device.type != "cpu" or torch.compiler.is_compiling():
        return False
    # torch asks the same before it calls any function of its own; there is no public way to
    return not torch._C._are_functorch_transforms_active()


def _as_torch_has_it(
    images: Tensor,
    weight: Tensor,
    bias: Tensor,
    beside: Tensor | None,
    together: int,
    *,
    relu: bool,
) -> Tensor:
    groups = images.shape[1] // together
    found = torch.nn.functional.group_norm(images, groups, weight, bias, EPSILON)
    found = found if beside is None else found + beside
    return found.relu() if relu else found


class _Rows(NamedTuple):
    """Images as rows of whole pixels, and how many channels are normalised together."""

    values: NDArray[Any]  # (images, rows, lanes); one image for all of a batch
    channels: int
    together: int


class _Normalisation(torch.autograd.Function):
    """The compiled normalisation; `together` 0 = each channel over the batch.

    Beside the images it returns means and 1/√(σ² + ε), (images or 1, groups).
    """

    @staticmethod
    def forward(
        context: Any,
        images: Tensor,
        weight: Tensor,
        bias: Tensor,
        beside: Any,
        together: int,
        relu: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        rows = _rows_of(images, together)
        shape = (len(rows.values), rows.channels // rows.together)
        means, scales = np.empty(shape), np.empty(shape)
        _measure(*rows, means, scales)
        found = np.empty_like(rows.values)
        added = rows.values[:0] if beside is None else _rows_of(beside, together).values
        factors, shifts = weight.detach().numpy(), bias.detach().numpy()
        _put(*rows, means, scales, factors, shifts, added, relu, found)
        output = _images_of(found, images), torch.from_numpy(means), torch.from_numpy(scales)
        context.together, context.relu, context.has_beside = together, relu, beside is not None
        context.mark_non_differentiable(*output[1:])
        context.save_for_backward(images, weight, *output)
        return output

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]  # torch says no more
    def backward(context: Any, slope: Tensor, *_: Tensor) -> Any:
        images, weight, found, means, scales = context.saved_tensors
        rows = _rows_of(images, context.together)
        slopes = _rows_of(slope, context.together).values
        if context.relu:
            slopes = np.empty_like(slopes)
            outputs = _rows_of(found, context.together).values
            _cut_off(_rows_of(slope, context.together).values, outputs, slopes)
        of_images = np.empty_like(rows.values)
        of_weight, of_bias = np.zeros((2, rows.channels))
        _pull_back(
            *rows, slopes, means.numpy(), scales.numpy(), weight.detach().numpy(),
            of_images, of_weight, of_bias,
        )  # fmt: skip
        return (
            _images_of(of_images, images),
            torch.from_numpy(of_weight).to(weight.dtype),
            torch.from_numpy(of_bias).to(weight.dtype),
            _images_of(slopes, images) if context.has_beside else None,
            None,
            None,
        )


def _rows_of(images: Tensor, together: int) -> _Rows:
    count, channels, height, width = images.shape
    last = images.detach().permute(0, 2, 3, 1).contiguous().numpy()
    pixels = height * width * (1 if together else count)
    lanes = channels * math.gcd(pixels, max(1, _LANES // channels))
    return _Rows(last.reshape(count if together else 1, -1, lanes), channels, together or 1)


def _images_of(rows: NDArray[Any], like: Tensor) -> Tensor:
    count, channels, height, width = like.shape
    return torch.from_numpy(rows.reshape(count, height, width, channels)).permute(0, 3, 1, 2)


@reassociated
def _measure(
    values: NDArray[Any],
    channels: int,
    together: int,
    means: NDArray[np.float64],
    scales: NDArray[np.float64],
) -> None:
    """Write each group's mean and 1/√(σ² + ε); sums of more than some rows are in float64."""
    images, rows, lanes = values.shape
    count = rows * (lanes // channels) * together
    sums, centre = np.empty(lanes, values.dtype), np.empty(lanes, values.dtype)
    for image in range(images):
        means[image] = 0.0
        for first in range(0, rows, _FEW):
            sums[:] = 0
            for row in range(first, min(first + _FEW, rows)):
                for lane in range(lanes):
                    sums[lane] += values[image, row, lane]
            for lane in range(lanes):
                means[image, lane % channels // together] += sums[lane]
        for group in range(len(means[image])):
            means[image, group] /= count
        for lane in range(lanes):
            centre[lane] = means[image, lane % channels // together]
        scales[image] = 0.0
        for first in range(0, rows, _FEW):
            sums[:] = 0
            for row in range(first, min(first + _FEW, rows)):
                for lane in range(lanes):
                    away = values[image, row, lane] - centre[lane]
                    sums[lane] += away * away
            for lane in range(lanes):
                scales[image, lane % channels // together] += sums[lane]
        for group in range(len(scales[image])):
            scales[image, group] = 1.0 / math.sqrt(scales[image, group] / count + EPSILON)


@compiled
def _put(
    values: NDArray[Any],
    channels: int,
    together: int,
    means: NDArray[np.float64],
    scales: NDArray[np.float64],
    weight: NDArray[Any],
    bias: NDArray[Any],
    beside: NDArray[Any],
    relu: bool,
    found: NDArray[Any],
) -> None:
    """Write the normalised images, with what is beside them added, if there is any."""
    images, rows, lanes = values.shape
    centre, factor, shift = np.empty((3, lanes), values.dtype)
    least = values.dtype.type(0.0 if relu else -np.inf)
    for image in range(images):
        for lane in range(lanes):
            channel = lane % channels
            centre[lane] = means[image, channel // together]
            factor[lane] = scales[image, channel // together] * weight[channel]
            shift[lane] = bias[channel]
        for row in range(rows):
            if len(beside):
                for lane in range(lanes):
                    away = values[image, row, lane] - centre[lane]
                    whole = away * factor[lane] + shift[lane] + beside[image, row, lane]
                    found[image, row, lane] = max(whole, least)
            else:
                for lane in range(lanes):
                    away = values[image, row, lane] - centre[lane]
                    found[image, row, lane] = max(away * factor[lane] + shift[lane], least)


@compiled
def _cut_off(slopes: NDArray[Any], found: NDArray[Any], kept: NDArray[Any]) -> None:
    """Write the slopes where the ReLU lets pass what it found, else 0."""
    images, rows, lanes = found.shape
    zero = found.dtype.type(0)
    for image in range(images):
        for row in range(rows):
            for lane in range(lanes):
                slope = slopes[image, row, lane]
                kept[image, row, lane] = slope if found[image, row, lane] > zero else zero


@reassociated
def _pull_back(
    values: NDArray[Any],
    channels: int,
    together: int,
    slopes: NDArray[Any],
    means: NDArray[np.float64],
    scales: NDArray[np.float64],
    weight: NDArray[Any],
    of_values: NDArray[Any],
    of_weight: NDArray[np.float64],
    of_bias: NDArray[np.float64],
) -> None:
    """Write the slopes in the images; add those in weight and bias.

    With x̂ = (x - µ) s, of group's n values: s (w g - mean(w g) - x̂ mean(w g x̂)).
    """
    images, rows, lanes = values.shape
    count = rows * (lanes // channels) * together
    centre, plain, tilted = np.empty((3, lanes), values.dtype)
    factor, along, shift = np.empty((3, lanes), values.dtype)
    groups = channels // together
    for image in range(images):
        for lane in range(lanes):
            centre[lane] = means[image, lane % channels // together]
        whole, turned = np.zeros(channels), np.zeros(channels)
        for first in range(0, rows, _FEW):
            plain[:] = 0
            tilted[:] = 0
            for row in range(first, min(first + _FEW, rows)):
                for lane in range(lanes):
                    slope = slopes[image, row, lane]
                    plain[lane] += slope
                    tilted[lane] += slope * (values[image, row, lane] - centre[lane])
            for lane in range(lanes):
                whole[lane % channels] += plain[lane]
                turned[lane % channels] += tilted[lane]
        level, tilt = np.zeros(groups), np.zeros(groups)
        for channel in range(channels):
            group = channel // together
            turned[channel] *= scales[image, group]
            of_bias[channel] += whole[channel]
            of_weight[channel] += turned[channel]
            level[group] += weight[channel] * whole[channel] / count
            tilt[group] += weight[channel] * turned[channel] / count
        for lane in range(lanes):
            group = lane % channels // together
            factor[lane] = scales[image, group] * weight[lane % channels]
            along[lane] = -scales[image, group] * scales[image, group] * tilt[group]
            shift[lane] = -scales[image, group] * level[group]
        for row in range(rows):
            for lane in range(lanes):
                away = values[image, row, lane] - centre[lane]
                of_values[image, row, lane] = (
                    slopes[image, row, lane] * factor[lane] + away * along[lane] + shift[lane]
                )


def affine(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return x Wᵀ + b, (..., rows, units)."""
    found: Tensor = x @ weight.mT + bias.unsqueeze(-2)
    return found


class StackedLinear(nn.Linear):
    """x Wᵀ + b with W (..., units, features) and b (..., units); drawn as torch's own layer is."""

    def forward(self, x: Tensor) -> Tensor:
        """Return (..., rows, units) for rows (..., rows, features)."""
        return affine(x, self.weight, self.bias)
