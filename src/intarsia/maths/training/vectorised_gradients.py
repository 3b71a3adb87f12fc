"""Objectives and gradients of many learners in one call: batched, and compiled on top of it."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from intarsia.maths.training.local_training import (
    Batch,
    LocalTraining,
    Parameters,
    objective,
    parameter_slots,
    place_parameters,
)
from intarsia.maths.training.stacked_learners import Given, Gradients, Layout
from intarsia.maths.training.torch_import import (
    Tensor,
    functional_call,
    grad_and_value,
    nn,
    torch,
    vmap,
)

Objective = Callable[[Parameters, Parameters, Parameters, Batch], Tensor]


class _Objective(nn.Module):
    """The objective as a module, so that torch puts the learner's parameters into its model."""

    def __init__(self, training: LocalTraining) -> None:
        super().__init__()
        self.training_record = training
        self.model = training.model

    def forward(self, trained: Parameters, references: Parameters, batch: Batch) -> Tensor:
        return objective(self.training_record, self.model, trained, references, batch)


def objective_of(training: LocalTraining) -> Objective:
    """Return one learner's objective as a function of what it is given."""
    module = _Objective(training)

    def value(
        trained: Parameters, frozen: Parameters, references: Parameters, batch: Batch
    ) -> Tensor:
        model = {f"model.{name}": values for name, values in {**trained, **frozen}.items()}
        found: Tensor = functional_call(module, model, (trained, references, batch))
        return found

    return value


def batched(training: LocalTraining, layout: Layout) -> Gradients:
    """Return the gradients of all learners: one batched objective, one backward pass."""
    objectives: Any
    if training.stacked:
        objectives = _stacked_objectives(training)
    else:
        objectives = vmap(objective_of(training), in_dims=layout.axes)

    def gradients(given: Given) -> tuple[Mapping[str, Tensor], Tensor]:
        trained, *others = given
        leaves = {name: values.detach().requires_grad_() for name, values in trained.items()}
        values = objectives(leaves, *others)
        # no learner's value depends on another's parameters: the sum's gradient is that of each
        slopes = torch.autograd.grad(
            values.sum(), list(leaves.values()), allow_unused=True, materialize_grads=True
        )
        return dict(zip(leaves, slopes, strict=True)), values.detach()

    return gradients


@lru_cache(maxsize=64)
def _stacked_objectives(training: LocalTraining) -> Objective:
    """Return the objectives of a training that takes learners stacked, (learners,)."""
    model = copy.deepcopy(training.model)
    slots = parameter_slots(model)

    def values(
        trained: Parameters, frozen: Parameters, references: Parameters, batch: Batch
    ) -> Tensor:
        place_parameters(slots, {**trained, **frozen})
        return objective(training, model, trained, references, batch)

    return values


def compiled(training: LocalTraining, layout: Layout) -> Gradients:
    """Return the same as one compiled function, which is kept for the training.

    Layers that cannot be compiled for sizes that vary, such as normalisation by groups after a
    convolution, are compiled anew for each size.
    """
    fixed, key = _fixed(training), layout.key

    def gradients(given: Given) -> tuple[Mapping[str, Tensor], Tensor]:
        found: tuple[Mapping[str, Tensor], Tensor]
        if key not in fixed:
            try:
                found = _compiled(training, key, True)(*given)
            # what torch raises of a layer that cannot be compiled for sizes that vary; an error of
            # the training itself, or of memory, is another
            except torch._dynamo.exc.TorchRuntimeError:
                fixed.add(key)
        if key in fixed:
            found = _compiled(training, key, False)(*given)
        return found

    return gradients


@lru_cache(maxsize=64)
def _fixed(training: LocalTraining) -> set[Any]:
    """Return the layouts that are compiled anew for each size."""
    return set()


@lru_cache(maxsize=32)
def _compiled(training: LocalTraining, key: Any, dynamic: bool) -> Any:
    layout = Layout(*(dict(axes) for axes in key))
    function = vmap(grad_and_value(objective_of(training)), in_dims=layout.axes)
    # torch counts all compiled forms of a function together, unless told not to, and stops at 8
    known = inspect.signature(torch.compile).parameters
    apart = {"isolate_recompiles": True} if "isolate_recompiles" in known else {}
    # dynamic: the widths of ragged axes differ from chunk to chunk
    return torch.compile(function, dynamic=dynamic, fullgraph=True, **apart)
