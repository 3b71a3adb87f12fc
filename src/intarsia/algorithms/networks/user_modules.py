"""Modules that users bring: found by their names, made, and tried before anything trains."""

from __future__ import annotations

import copy
import importlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.algorithms.networks.architecture import Arrays, no_blocks
from intarsia.algorithms.networks.targets import odds
from intarsia.algorithms.networks.training_rows import columns, dense
from intarsia.core.block import Array, Block, Labels
from intarsia.errors import ExperimentError, nearest
from intarsia.maths.training.locks import applied, drawing_from
from intarsia.maths.training.torch_import import Tensor, nn, torch


@dataclass(frozen=True)
class Named:
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

    def first_layer(
        self, parameters: Arrays, blocks: Sequence[str], block: Block
    ) -> dict[str, Array]:
        """Refuse: there are no feature blocks."""
        raise no_blocks()

    def scores_of(self, parameters: Arrays, total: Array) -> Array:
        """Refuse: there are no feature blocks."""
        raise no_blocks()

    def grown(self, parameters: Arrays) -> Named:
        """Return the network as it came out of training."""
        return self

    def reordered(
        self, parameters: Arrays, constant: NDArray[np.bool_], order: NDArray[np.intp]
    ) -> Arrays:
        """Return the parameters: a module gets its columns by name, and no constant."""
        return parameters

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return what stands in a network's own file."""
        return {"module": np.array(self.module)}

    def to_dict(self) -> None:
        """Return nothing: each network has its own."""


@lru_cache(maxsize=256)
def named(name: str) -> Any:
    """Return what "package.module:name" names; modules in the current folder are found too.

    Raises
    ------
    ExperimentError
        If there is no such module, or no such name in it.
    """
    home, colon, last = name.partition(":")
    if not (home and colon and last):
        raise ExperimentError(
            f"{name!r} names nothing; write the module and the name in it, such as "
            '"networks:Network" for the class Network in networks.py.'
        )
    here = str(Path.cwd())
    sys.path.append(here)
    try:
        module = importlib.import_module(home)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{home}.".startswith(f"{error.name}."):
            raise  # it is there, and imports what is not
        raise ExperimentError(
            f"There is no module {error.name!r} for {name!r}; run where it lies, install it, or "
            "correct the name."
        ) from None
    finally:
        del sys.path[len(sys.path) - 1 - sys.path[::-1].index(here)]
    if not hasattr(module, last):
        raise ExperimentError(
            f"The module {home!r} has no {last!r}; {nearest(last, _public(module))}."
        )
    return getattr(module, last)


def _public(module: Any) -> list[str]:
    """Return the names of what a module offers to be called."""
    names = sorted(vars(module))
    return [one for one in names if one[0] != "_" and callable(getattr(module, one))]


def made(name: str, features: int, outputs: int, seed: int) -> nn.Module:
    """Return a new module, as torch draws it from a seed."""
    with drawing_from(seed):
        module = named(name)(features, outputs)
    if not isinstance(module, nn.Module):
        raise ExperimentError(
            f"{name}({features}, {outputs}) is {type(module).__name__}; it must be a "
            "torch.nn.Module."
        )
    return module


@lru_cache(maxsize=512)
def structure(name: str, features: int, outputs: int) -> nn.Module:
    """Return a module whose own values are not read, once it was tried on two rows.

    Raises
    ------
    ExperimentError
        If it does not give two rows of scores.
    """
    module = made(name, features, outputs, 0)
    try:
        with torch.no_grad():
            scores = copy.deepcopy(module).eval()(torch.zeros(2, features))
    except RuntimeError as error:
        raise ExperimentError(
            f"{name}({features}, {outputs}) cannot take 2 rows of {features} features: {error}."
        ) from error
    if not isinstance(scores, Tensor) or scores.shape != (2, outputs):
        said = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
        raise ExperimentError(
            f"{name}({features}, {outputs}) gives {said} for 2 rows; it must give scores of shape "
            f"{2, outputs}."
        )
    return module


@lru_cache(maxsize=512)
def judging(name: str, features: int, outputs: int) -> nn.Module:
    """Return the same for predictions, in which dropout and the like rest."""
    return copy.deepcopy(structure(name, features, outputs)).eval()


def scores(name: str, parameters: Arrays, block: Block, outputs: int) -> Array:
    """Return the scores that a module with these parameters gives, (samples, outputs)."""
    own = columns(block.features)
    tensors = {key: torch.from_numpy(values) for key, values in parameters.items()}
    double = any(values.dtype == np.float64 for values in parameters.values())
    x = torch.from_numpy(dense(block)[:, own]).to(torch.float64 if double else torch.float32)
    with torch.no_grad():
        found = applied(judging(name, len(own), outputs), tensors, x)
    array: Array = found.double().numpy()
    return array
