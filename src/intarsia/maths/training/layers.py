"""Layers of networks: normalised images and a ReLU, and linear layers of stacked learners."""

from __future__ import annotations

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


def affine(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return x Wᵀ + b, (..., rows, units)."""
    found: Tensor = x @ weight.mT + bias.unsqueeze(-2)
    return found


class StackedLinear(nn.Linear):
    """x Wᵀ + b with W (..., units, features) and b (..., units); drawn as torch's own layer is."""

    def forward(self, x: Tensor) -> Tensor:
        """Return (..., rows, units) for rows (..., rows, features)."""
        return affine(x, self.weight, self.bias)
