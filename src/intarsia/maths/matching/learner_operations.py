"""Operations of PyTorch's dispatcher on the tensors of many learners, who stand in front."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from intarsia.maths.training.torch_import import Tensor, torch


def define_operation(
    namespace: str,
    schema: str,
    function: Callable[..., Any],
    shapes: Callable[..., Any],
    on_cpu: Callable[..., Any] | None = None,
) -> tuple[Any, Any]:
    """Return an operation, and the library that must be kept as long as it is in use.

    `torch.library.custom_op` does the same, and imports torch's compiler at its first call (3 s).

    Parameters
    ----------
    schema
        Its name, arguments and results, as torch writes them.
    function
        Takes several learners, in front of the axes of all tensors.
    shapes
        Gives tensors of the shapes of the results, for the compiler.
    on_cpu
        Does the same on a CPU; None: the function does.
    """
    name = schema.partition("(")[0]
    library = torch.library.Library(namespace, "DEF")
    library.define(schema)
    operation = getattr(getattr(torch.ops, namespace), name)

    def stack(info: Any, axes: tuple[int | None, ...], *given: Any) -> Any:
        """Return the results of learners that torch.vmap has stacked, and their axes."""
        tensors = [
            (values, axis)
            for values, axis in zip(given, axes, strict=False)
            if isinstance(values, Tensor)
        ]
        others = given[len(tensors) :]
        count = next(values.shape[axis] for values, axis in tensors if axis is not None)
        stacked = [
            values.expand(count, *values.shape) if axis is None else values.movedim(axis, 0)
            for values, axis in tensors
        ]
        found = operation(*stacked, *others)
        return found, 0 if isinstance(found, Tensor) else (0,) * len(found)

    library.impl(name, function, "CompositeExplicitAutograd")
    if on_cpu is not None:
        library.impl(name, on_cpu, "CPU")
    torch.library.register_fake(f"{namespace}::{name}", shapes, lib=library)
    torch.library.register_vmap(f"{namespace}::{name}", stack, lib=library)
    return operation, library


def stack_of(values: Tensor, axes: int) -> Any:
    """Return the values of all learners as one array, (learners, ...), before so many last axes."""
    learners = values.shape[: values.ndim - axes].numel()
    return values.reshape(learners, *values.shape[values.ndim - axes :]).contiguous().numpy()
