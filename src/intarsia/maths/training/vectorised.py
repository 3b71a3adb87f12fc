"""Local training of many learners at once: stacked, one batched step for all instead of one each.

A cohort has one module structure and equal shapes, apart from axes declared `ragged`, which are
filled up with zeros; what is filled stays exactly 0. Learners that differ in more train in cohorts
of their own. A cohort goes through in chunks, its learners sorted by their number of steps, so
that those still at work are a prefix. Engines:

    loop       `local_training.train_alone`, one learner after the other; always works
    vmap       torch.vmap over the objective, then one backward pass
    compiled   vmap and gradient in one compiled function; a chunk is always full, because each new
               number of learners would compile anew (20 s or more), while ragged axes need not

All train on the same batches and agree up to rounding, whatever the chunks.
"""

from __future__ import annotations

import copy
import inspect
import math
import os
import shutil
import threading
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, get_args

from intarsia.errors import ExperimentError
from intarsia.maths.training.layers import ConvolutionsAsProducts
from intarsia.maths.training.local_training import (
    Batch,
    Learner,
    LocalTraining,
    Parameters,
    Trained,
    check_learner,
    objective,
    parameter_slots,
    place_parameters,
    train_alone,
)
from intarsia.maths.training.locks import unrounded
from intarsia.maths.training.stacked_learners import Chunk, Given, Gradients, Layout
from intarsia.maths.training.torch_import import Tensor, nn, torch

Engine = Literal["auto", "loop", "vmap", "compiled"]
Objective = Callable[[Parameters, Parameters, Parameters, Batch], Tensor]

_CHUNK_BYTES = 1 << 28  # of the stacked parameters, moments and rows, and of what is drawn
_PLACE_BYTES = 12  # of a row's place in a batch, and its weight
# Steps of learners in one call: compiling takes 20 to 60 s and saves some 80 µs a step.
_WORTH_COMPILING = 500_000
_LARGE = (
    100_000  # parameters of a learner: stacked with others', these no longer stay in the caches
)
# Seconds: of a step for any number of learners, of a learner's layer, of a parameter and row.
_A_STEP, _A_PRODUCT, _A_VALUE = 550e-6, 25e-6, 0.12e-9


class UnbatchableWarning(UserWarning):
    """The learners train one after the other, because something cannot be batched."""


class _UnbatchableError(Exception):
    """Says what cannot be batched."""


def train(
    training: LocalTraining,
    learners: Sequence[Learner],
    *,
    engine: Engine = "auto",
    chunk: int | None = None,
    rate: float | None = None,
) -> list[Trained]:
    """Train every learner; the result of each depends on it alone, up to rounding.

    Use one LocalTraining for all rounds: compiled functions are kept for each. `chunk` is how many
    learners share a step at most; by default 128, compiled 64, with batches above 32 half and a
    quarter of it, and fewer where parameters are many. `rate` stands in for the optimiser's.

    Warns
    -----
    UnbatchableWarning
        Where an operation does not batch, which it names, or the objective reads what was filled
        up; then the loop trains.
    """
    if engine not in get_args(Engine):
        raise ExperimentError(
            f"There is no engine {engine!r}; choose from {', '.join(get_args(Engine))}."
        )
    if chunk is not None and chunk < 1:
        raise ExperimentError(f"chunk is {chunk}; it must be at least 1.")
    for learner in learners:
        check_learner(training, learner)
    results: dict[int, Trained] = {}
    for places in _cohorts(training, learners):
        cohort = [learners[place] for place in places]
        with unrounded(_device(training, cohort)):
            found = _train_cohort(training, cohort, engine, chunk, rate)
        results |= zip(places, found, strict=True)
    return [results[place] for place in range(len(learners))]


def choose(training: LocalTraining, learners: Sequence[Learner]) -> Engine:
    """Return the engine that "auto" takes for a cohort, by its shape and by measured costs.

    Only this call's steps count: whoever trains for many rounds may ask for "compiled" all the
    same. See the section on local training in benchmarks/RESULTS.md.
    """
    if len(learners) < 2 and not training.stacked:
        return "loop"
    if _device(training, learners).type == "cpu":
        convolutions = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
        if any(isinstance(part, convolutions) for part in training.model.modules()):
            return "loop"
        if any(trains_alone(learner.parameters) for learner in learners):
            return "loop"
    steps = sum(training.steps_of(learner) for learner in learners)
    return "compiled" if steps >= _WORTH_COMPILING and _compiler() is not None else "vmap"


def trains_alone(parameters: Mapping[str, Any]) -> bool:
    """Return whether networks of these arrays train no slower one by one than stacked, on a CPU.

    Large ones do, and images' convolutions, which batched over learners were half as fast.
    """
    shapes = [tuple(values.shape) for values in parameters.values()]
    return sum(map(math.prod, shapes)) > _LARGE or any(len(shape) > 3 for shape in shapes)


def own_cost(parameters: Mapping[str, Any], batch_size: int) -> float:
    """Return what a step of a stacked learner costs, by what one costs for any number of them.

    Estimated for a core of a processor, from the arrays' shapes, to a factor of two.
    """
    shapes = [tuple(values.shape) for values in parameters.values()]
    products = sum(len(shape) > 1 for shape in shapes)
    values = sum(map(math.prod, shapes))
    return (_A_PRODUCT * products + _A_VALUE * values * batch_size) / _A_STEP


def _device(training: LocalTraining, learners: Sequence[Learner]) -> Any:
    return learners[0].parameters[training.trained[0]].device


def _cohorts(training: LocalTraining, learners: Sequence[Learner]) -> list[list[int]]:
    """Return the places of the learners of each cohort, those with most steps first."""
    found: dict[Any, list[int]] = {}
    for place, learner in enumerate(learners):
        found.setdefault(_signature(training, learner), []).append(place)
    return [
        sorted(places, key=lambda place: -training.steps_of(learners[place]))
        for places in found.values()
    ]


def _signature(training: LocalTraining, learner: Learner) -> Any:
    """Return what learners of one cohort have in common."""
    parts = (
        (learner.parameters, 0),
        (learner.rows, 1),
        (learner.constants, 0),
        ({name: learner.starts[name] for name in training.pulls}, 0),
    )
    return tuple(
        (
            name,
            values.dtype,
            values.device,
            tuple(
                size
                for axis, size in enumerate(values.shape)
                if axis >= first and axis != training.ragged.get(name)
            ),
        )
        for named, first in parts
        for name, values in named.items()
    )


def _train_cohort(
    training: LocalTraining,
    learners: list[Learner],
    engine: Engine,
    chunk: int | None,
    rate: float | None,
) -> list[Trained]:
    engine = choose(training, learners) if engine == "auto" else engine
    if engine == "loop":
        return [train_alone(training, learner, rate=rate) for learner in learners]
    if engine == "compiled" and _compiler() is None:
        raise ExperimentError(
            "engine = 'compiled' needs a C++ compiler, and neither the variable CXX nor the path "
            "names one; install g++ or take engine = 'vmap'."
        )
    fixed = engine == "compiled"
    wanted = chunk or _wanted_chunk(training, learners, compiled_steps=fixed)
    size = _chunk_size(training, learners, wanted, fixed=fixed)
    layout = Layout.of(training, learners)
    gradients = compiled(training, layout) if fixed else batched(training, layout)
    results: list[Trained] = []
    for start in range(0, len(learners), size):
        part = Chunk.of(training, learners[start : start + size], layout, size if fixed else 0)
        try:
            if start == 0 and layout.key not in _probed(training):
                _probe(training, part)
                _probed(training).add(layout.key)
        except _UnbatchableError as reason:
            warnings.warn(
                f"{len(learners)} learners train one after the other, not at once: {reason}",
                UnbatchableWarning,
                stacklevel=3,
            )
            return [train_alone(training, learner, rate=rate) for learner in learners]
        results += part.train(training, gradients, rate)
    return results


def _wanted_chunk(training: LocalTraining, learners: list[Learner], *, compiled_steps: bool) -> int:
    """Return how many learners should share a step.

    On a CPU, eager steps cost mostly Python's time, which many should share, as small compiled ones
    do. Large compiled ones cost memory traffic; and a full chunk also works for those that are
    done. An accelerator takes as many as fit.
    """
    if _device(training, learners).type != "cpu":
        return len(learners)
    small = training.batch_size <= 32
    if not compiled_steps:
        return 128 if small else 64
    return 64 if small else 16


def _chunk_size(
    training: LocalTraining, learners: list[Learner], wanted: int, *, fixed: bool
) -> int:
    """Return how many learners share a step.

    Where all chunks are of one size, because each size compiles anew, they are as full as whole
    fours allow, so that not too many sizes come up.
    """
    copies = 2 + len(training.optimiser.moments)  # values, gradients, moments
    each: int = max(
        copies * sum(learner.parameters[name].nbytes for name in training.trained)
        + sum(values.nbytes for values in learner.rows.values())
        + _PLACE_BYTES * training.steps_of(learner) * training.batch_size
        for learner in learners
    )
    room = _CHUNK_BYTES
    if _device(training, learners).type == "cuda":
        room = torch.cuda.mem_get_info()[0] // 4  # what the backward pass needs stays beside it
    size = max(1, min(wanted, len(learners), room // each))
    chunks = -(-len(learners) // size)
    even = -(-len(learners) // chunks)
    return min(-(-even // 4) * 4, wanted) if fixed else even


def _compiler() -> str | None:
    return os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")


@lru_cache(maxsize=64)
def _probed(training: LocalTraining) -> set[Any]:
    """Return the layouts that were found to batch; asking anew took as long as some steps."""
    return set()


def _probe(training: LocalTraining, chunk: Chunk) -> None:
    """Raise where the objective does not batch, or depends on what is filled up."""
    # each learner's last batch of an epoch: the one that is filled up most
    last = [-(-one.samples // training.batch_size) - 1 for one in chunk.learners]
    steps = torch.tensor(
        [min(pair) for pair in zip(last, [count - 1 for count in chunk.counts], strict=True)]
    )
    among = torch.arange(len(steps))
    weight = chunk.weight[steps, among]
    first, streams = chunk.first(len(steps)), chunk.streams(training)
    given = chunk.given(first, chunk.places[steps, among], weight, streams)
    try:
        _, values = batched(training, chunk.layout)(given)
    except RuntimeError as error:
        raise _UnbatchableError(_sentence(error)) from error
    for name, _ in training.model.named_buffers():
        if any(
            not torch.equal(values[tuple(slice(size) for size in own.shape)], own)
            for values, own in zip(
                chunk.frozen[name], (one.parameters[name] for one in chunk.learners), strict=False
            )
        ):
            raise _UnbatchableError(f"the model writes into its buffer {name!r}.")
    fullness = [_width(training, learner) for learner in chunk.learners]
    candidates = {int(weight.sum(1).argmin()), fullness.index(min(fullness))}
    kind = torch.bfloat16 if training.bf16 else values.dtype
    tolerance = torch.finfo(kind).eps ** 0.6
    for number in candidates:
        with torch.no_grad():
            alone = float(
                objective_of(training, squares=False)(*_own(training, chunk, given, number))
            )
        found = float(values[number])
        if abs(found - alone) > tolerance * max(abs(alone), 1.0):
            raise _UnbatchableError(
                f"the objective is {found:g} with rows or features filled up and {alone:g} "
                'without; weigh what is taken from rows by batch["weight"].'
            )


def _width(training: LocalTraining, learner: Learner) -> int:
    """Return how much a learner has along the ragged axes."""
    return sum(
        values.shape[training.ragged[name]]
        for name, values in (learner.parameters | dict(learner.rows)).items()
        if name in training.ragged
    )


def _own(training: LocalTraining, chunk: Chunk, given: Given, number: int) -> Given:
    """Return what one learner's objective is given, without what is filled up."""
    learner, layout = chunk.learners[number], chunk.layout
    batch = {
        name: values[number] if layout.batch[name] == 0 else values
        for name, values in given[3].items()
    }
    rows = batch["weight"] > 0
    for name in ("weight", *training.noise):
        batch[name] = batch[name][rows]
    for name, values in learner.rows.items():
        shape = values.shape[1:]
        batch[name] = batch[name][rows][(slice(None), *(slice(size) for size in shape))]
    batch |= learner.constants
    trained = {name: learner.parameters[name] for name in training.trained}
    frozen = {name: one for name, one in learner.parameters.items() if name not in trained}
    return trained, frozen, {name: learner.starts[name] for name in training.pulls}, batch


def _sentence(error: RuntimeError) -> str:
    """Return what failed: the user's line and what torch says of it."""
    ours, theirs = str(Path(__file__).parents[2]), str(Path(torch.__file__).parent)
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((ours, theirs))
    ]
    said = str(error).strip().partition("\n")[0]
    if not frames:
        return said
    frame = frames[-1]
    return f"{frame.line} ({Path(frame.filename).name}:{frame.lineno}): {said}"


class _Objective(nn.Module):
    """The objective as a module, so that torch puts the learner's parameters into its model."""

    def __init__(self, training: LocalTraining, *, squares: bool) -> None:
        super().__init__()
        self.training_record, self.squares = training, squares
        # a copy: it holds the learner's parameters meanwhile, and other threads train by the record
        self.model = copy.deepcopy(training.model)

    def forward(self, trained: Parameters, references: Parameters, batch: Batch) -> Tensor:
        given = trained, references, batch
        return objective(self.training_record, self.model, *given, squares=self.squares)


def objective_of(training: LocalTraining, *, squares: bool = True) -> Objective:
    """Return one learner's objective as a function of what it is given, with squares or without."""
    module = _Objective(training, squares=squares)

    def value(
        trained: Parameters, frozen: Parameters, references: Parameters, batch: Batch
    ) -> Tensor:
        model = {f"model.{name}": values for name, values in {**trained, **frozen}.items()}
        found: Tensor = torch.func.functional_call(module, model, (trained, references, batch))
        return found

    return value


def batched(training: LocalTraining, layout: Layout) -> Gradients:
    """Return the gradients of all learners: one batched objective, one backward pass."""
    objectives: Any
    if training.stacked:
        objectives = _OF_THREAD.stacked_objectives(training)
    else:
        alone = objective_of(training, squares=False)
        objectives = torch.func.vmap(alone, in_dims=layout.axes)

    def gradients(given: Given) -> tuple[Mapping[str, Tensor], Tensor]:
        trained, frozen, references, batch = given
        leaves = list(trained.values())
        for leaf in leaves:
            leaf.requires_grad_()
        with _convolving(leaves[0].device.type):
            values = objectives(trained, frozen, references, batch)
        # no learner's value depends on another's parameters: the sum's gradient is that of each
        found = torch.autograd.grad(values.sum(), leaves, allow_unused=True, materialize_grads=True)
        return dict(zip(trained, found, strict=True)), values.detach()

    return gradients


def _convolving(device: str) -> AbstractContextManager[Any]:
    """Return how convolutions of stacked learners are computed on a device: where fast."""
    return nullcontext() if device == "cpu" else ConvolutionsAsProducts()


def _stacked_objectives(training: LocalTraining) -> Objective:
    """Return the objectives of a training that takes learners stacked, (learners,).

    They are one thread's: its module holds the learners' parameters.
    """
    model = copy.deepcopy(training.model)
    slots = parameter_slots(model)

    def values(
        trained: Parameters, frozen: Parameters, references: Parameters, batch: Batch
    ) -> Tensor:
        place_parameters(slots, {**trained, **frozen})
        return objective(training, model, trained, references, batch, squares=False)

    return values


class _OfThread(threading.local):
    """What is kept for each thread: several sites of one process train by one record at once."""

    def __init__(self) -> None:
        self.stacked_objectives = lru_cache(maxsize=64)(_stacked_objectives)


_OF_THREAD = _OfThread()


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
    gradient = torch.func.grad_and_value(objective_of(training, squares=False))
    function = torch.func.vmap(gradient, in_dims=layout.axes)
    # torch counts all compiled forms of a function together, unless told not to, and stops at 8
    known = inspect.signature(torch.compile).parameters
    apart = {"isolate_recompiles": True} if "isolate_recompiles" in known else {}
    # dynamic: the widths of ragged axes differ from chunk to chunk
    return torch.compile(function, dynamic=dynamic, fullgraph=True, **apart)
