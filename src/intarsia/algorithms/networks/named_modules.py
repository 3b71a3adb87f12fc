"""Functions of users that make modules: found by their names, and tried before anything trains."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from intarsia.errors import ExperimentError, first_line, nearest
from intarsia.maths.training.torch_import import Tensor, nn, torch


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
    if not (home and colon and last.isidentifier()):  # nothing is imported for what is no name
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


def averaged(
    name: str, given: tuple[Any, ...], size: tuple[int, str], width: int, what: str
) -> nn.Module:
    """Return a module of the user's that clients average, once it was tried on two rows.

    Parameters
    ----------
    given
        What its function takes.
    size
        How many numbers a row has that the module takes, and what these are.
    width
        How many features it is to give.
    what
        What the function is to be, in words.

    Raises
    ------
    ExperimentError
        If the function gives no module, one of other numbers, or one that keeps buffers.
    """
    call = f"{name}({', '.join(map(str, given))})"
    function = named(name)
    try:
        module: Any = function(*given)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ExperimentError(f"{call} failed ({first_line(error)}); it must be {what}.") from error
    buffers = [own for own, _ in checked(module, call).named_buffers()]
    if buffers:
        raise ExperimentError(
            f"{call} has the buffer {buffers[0]!r}, which no average of parameters carries to "
            "other clients; use GroupNorm or LayerNorm in place of BatchNorm."
        )
    resting = copy.deepcopy(module).eval()
    try_on_two_rows(resting, call, size, (width, "features"))
    return checked(module, call)


def embedding(name: str, features: int, latent: int) -> nn.Module:
    """Return a user's embedding of so many features in a latent space of so many dimensions."""
    what = "a function of the numbers of features that come in and go out -> torch.nn.Module"
    return averaged(name, (features, latent), (features, "features"), latent, what)
