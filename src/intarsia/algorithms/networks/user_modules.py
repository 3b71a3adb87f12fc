"""Whole networks that users bring: modules that take features to scores."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.algorithms.networks.architecture import Arrays, TrainedArchitecture, as_tensors
from intarsia.algorithms.networks.named_modules import checked, named, try_on_two_rows
from intarsia.algorithms.networks.targets import odds
from intarsia.algorithms.networks.training_rows import blocks_of_rows, check_whole, columns, rows_of
from intarsia.core.block import Array, Block, Labels
from intarsia.errors import ExperimentError
from intarsia.maths.training.locks import applied, drawing_from
from intarsia.maths.training.sparse_rows import in_full
from intarsia.maths.training.torch_import import Tensor, nn, torch


@dataclass(frozen=True)
class Named(TrainedArchitecture):
    """A network that is what a function of the user's makes."""

    module: str  # "package.module:name"

    def predict(self, parameters: Arrays, block: Block, labels: Labels) -> Array:
        """Return the log-odds of the classes, (outputs, samples)."""
        return odds(scores(self.module, parameters, block, max(2, len(labels.classes))))

    def embed(self, parameters: Arrays, block: Block) -> Array:
        """Refuse: only the user knows a latent space."""
        raise ExperimentError(
            f"The network is {self.module}, of which only you know the latent "
            "space; build it and load parameters into it."
        )

    def as_module(self, parameters: Arrays, features: Sequence[str], outputs: int) -> nn.Module:
        """Return the module of torch that the user's function makes, with these parameters."""
        order = columns(tuple(features))
        found = copy.deepcopy(structure(self.module, len(order), outputs)).eval()
        found.load_state_dict(as_tensors(parameters), strict=False)
        return _Ordered(found, order)

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return what stands in a network's own file."""
        return {"module": np.array(self.module)}


class _Ordered(nn.Module):
    """A module that takes its features in the order of their names."""

    def __init__(self, inner: nn.Module, order: NDArray[np.intp]) -> None:
        super().__init__()
        self.inner, self._order = inner, order

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores of rows, (rows, outputs)."""
        found: Tensor = self.inner(x[:, self._order])
        return found


def made(name: str, features: int, outputs: int, seed: int) -> nn.Module:
    """Return a new module, as torch draws it from a seed."""
    with drawing_from(seed):
        module = named(name)(features, outputs)
    return checked(module, f"{name}({features}, {outputs})")


@lru_cache(maxsize=512)
def structure(name: str, features: int, outputs: int) -> nn.Module:
    """Return a module whose own values are not read, once it was tried on two rows."""
    module = made(name, features, outputs, 0)
    try_on_two_rows(
        lambda rows: copy.deepcopy(module).eval()(rows),
        f"{name}({features}, {outputs})",
        (features, "features"),
        (outputs, "scores"),
    )
    return module


@lru_cache(maxsize=512)
def _judging(name: str, features: int, outputs: int) -> nn.Module:
    """Return the same for predictions, in which dropout and the like rest."""
    return copy.deepcopy(structure(name, features, outputs)).eval()


def scores(name: str, parameters: Arrays, block: Block, outputs: int) -> Array:
    """Return the scores that a module with these parameters gives, (samples, outputs)."""
    own = columns(block.features)
    double = any(values.dtype == np.float64 for values in parameters.values())
    kind = np.float64 if double else np.float32
    module, tensors = _judging(name, len(own), outputs), as_tensors(parameters)
    check_whole(block)
    found: list[Array] = []
    with torch.no_grad():
        for some in blocks_of_rows(block):
            x = in_full(rows_of(some.x, kind, own))
            found.append(applied(module, tensors, x).double().numpy())
    return np.concatenate(found)
