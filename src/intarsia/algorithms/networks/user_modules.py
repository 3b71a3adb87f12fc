"""Modules that users bring: found by their names, made, and tried before anything trains."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.algorithms.networks.architecture import Arrays, TrainedArchitecture, as_tensors
from intarsia.algorithms.networks.targets import odds
from intarsia.algorithms.networks.training_rows import columns, dense
from intarsia.core.block import Array, Block, Labels
from intarsia.errors import ExperimentError, nearest
from intarsia.maths.training.locks import applied, drawing_from
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

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return what stands in a network's own file."""
        return {"module": np.array(self.module)}


@lru_cache(maxsize=256)
def named(name: str) -> Any:
    """Return what "package.module:name" names, where Python finds it: installed, or on its path.

    The current folder is not searched, as anybody may have written what lies there.

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
    try:
        module = importlib.import_module(home)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{home}.".startswith(f"{error.name}."):
            raise  # it is there, and imports what is not
        raise ExperimentError(
            f"There is no module {error.name!r} for {name!r}; set PYTHONPATH to the folder where "
            "it lies (the current one is not searched), install it, or correct the name."
        ) from None
    if not hasattr(module, last):
        public = sorted(n for n, one in vars(module).items() if n[0] != "_" and callable(one))
        raise ExperimentError(f"The module {home!r} has no {last!r}; {nearest(last, public)}.")
    return getattr(module, last)


def made(name: str, features: int, outputs: int, seed: int) -> nn.Module:
    """Return a new module, as torch draws it from a seed."""
    with drawing_from(seed):
        module = named(name)(features, outputs)
    return checked(module, f"{name}({features}, {outputs})")


def checked(module: Any, call: str) -> nn.Module:
    """Return what a call of a user's function gave, if it is a module."""
    if not isinstance(module, nn.Module):
        raise ExperimentError(f"{call} is {type(module).__name__}; it must be a torch.nn.Module.")
    return module


def try_on_two_rows(
    forward: Callable[[Tensor], Any], call: str, width: tuple[int, str], given: tuple[int, str]
) -> None:
    """Raise unless a module takes two rows of so many numbers to two rows of so many others.

    The error names the numbers as the pairs do.
    """
    try:
        with torch.no_grad():
            found = forward(torch.zeros(2, width[0]))
    except (RuntimeError, TypeError, IndexError) as error:
        raise ExperimentError(
            f"{call} cannot take 2 rows of {width[0]} {width[1]}: {error}."
        ) from error
    if not isinstance(found, Tensor) or found.shape != (2, given[0]):
        said = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise ExperimentError(
            f"{call} gives {said} for 2 rows; it must give {given[1]} of shape {(2, given[0])}."
        )


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
    x = torch.from_numpy(dense(block)[:, own]).to(torch.float64 if double else torch.float32)
    with torch.no_grad():
        found = applied(_judging(name, len(own), outputs), as_tensors(parameters), x)
    array: Array = found.double().numpy()
    return array
