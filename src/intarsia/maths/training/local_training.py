"""Gradient training of one client, declared: what is minimised, by which steps, on which batches.

A `LocalTraining` says how; a `Learner` is one client's side: its parameters, its rows, the key of
its random stream. `train_alone` is the plain loop, the reference: a module, torch.optim and one
step after the other. `vectorised.train` runs the same record for many learners at once.

The objective of a step is

    Σ_i c_i l_i(w) / Σ_i c_i + penalty(w) + Σ_p η_p/2 ‖w_p - r_p‖²    (or η_p ‖w_p - r_p‖)

over the rows i of a batch with weights c (1, or 0 where an engine filled a batch up), the
parameters p of a proximal term and their references r.

The batches that a client trains on, and the numbers that it draws: by its own key alone.

No engine, chunk or other client has a part in them, so that all engines train on the same.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.errors import ExperimentError
from intarsia.maths.training.locks import drawing_from
from intarsia.maths.training.optimisers import SGD, Adam, Moving, OptimiserState, optimiser_over
from intarsia.maths.training.sparse_rows import Rows, SparseRows
from intarsia.maths.training.torch_import import Tensor, nn, torch

_BLOCK = 8  # steps whose numbers are drawn at once; another number gives other streams


def step_count(samples: int, batch_size: int, epochs: int, steps: int | None) -> int:
    """Return the steps of a training: `steps` if given, else those of the epochs."""
    return steps if steps is not None else epochs * -(-samples // batch_size)


def batch_order(key: int, samples: int, batch_size: int, steps: int) -> NDArray[np.int64]:
    """Return the rows of each step, (steps, batch size), -1 where a batch is not full.

    Each epoch takes every row once, in an order of its own; its last batch may be smaller.
    """
    generator = np.random.Generator(np.random.Philox(key=key))
    each = step_count(samples, batch_size, 1, None)
    epochs = -(-steps // each)
    order = np.full((epochs, each * batch_size), -1, np.int64)
    for epoch in order:
        epoch[:samples] = generator.permutation(samples)
    return order.reshape(-1, batch_size)[:steps]


class NoiseStream:
    """A client's standard normal numbers, step by step."""

    def __init__(
        self, key: int, shapes: Mapping[str, tuple[int, ...]], batch_size: int, dtype: Any
    ) -> None:
        self._shapes = {name: (_BLOCK, batch_size, *shape) for name, shape in shapes.items()}
        self._dtype = dtype
        # torch draws these twice as fast as NumPy does, from the key's lower 32 bits
        self._generator = torch.Generator().manual_seed(key)
        self._block: dict[str, Tensor] = {}
        self._step = 0

    def step(self) -> dict[str, Tensor]:
        """Return the next step's numbers by name, each (batch size, ...), on the CPU."""
        if self._step % _BLOCK == 0:
            self._block = {
                name: torch.randn(shape, generator=self._generator, dtype=self._dtype)
                for name, shape in self._shapes.items()
            }
        drawn = {name: values[self._step % _BLOCK] for name, values in self._block.items()}
        self._step += 1
        return drawn


Parameters = dict[str, Tensor]  # of a module, buffers included, by their dotted names
Batch = dict[str, Tensor]  # the rows by name, the noise, the constants, and "weight", (rows,)
Slots = dict[str, list[tuple[dict[str, Any], str]]]
Loss = Callable[[nn.Module, Batch], Tensor | tuple[Tensor, Tensor]]


@dataclass(frozen=True, kw_only=True, eq=False)
class LocalTraining:
    """How a client trains; any engine can run it.

    `loss(model, batch)` gives each row's loss, (rows,), or a pair of these and a scalar that is
    added as it is: the penalty, which must weigh what it takes from rows by `batch["weight"]`. It
    reads nothing but its arguments, and should compute what both need only once.

    Where `stacked` is set, model and loss also take learners in front of all axes (parameters,
    rows, noise and weights (learners, ...); what is one for all as it is) and give (learners, rows)
    and (learners,): a plain call then serves all, in a fraction of the time of torch.vmap. Rows of
    one learner that are stored sparse then come as a `SparseBatch`, which linear layers take.

    `train`, `decay` and `proximal` name parameters by patterns such as "embedding.*"; the first
    that fits counts. Decay is added to the gradient, as torch.optim does it.
    """

    model: nn.Module  # the structure; its own values are not read
    loss: Loss
    optimiser: Adam | SGD = field(default_factory=Adam)
    epochs: int = 1
    steps: int | None = None  # where given, it counts instead of the epochs
    batch_size: int = 100  # the last batch of an epoch may be smaller
    # products of the objective and its gradient in bfloat16, by torch.autocast; parameters, moments
    # and sums over rows stay in single precision
    bf16: bool = False
    train: tuple[str, ...] = ("*",)  # the parameters that move; all others are frozen
    decay: Mapping[str, float] = field(default_factory=dict[str, float])
    proximal: Mapping[str, float] = field(default_factory=dict[str, float])  # η
    squared: bool = True  # whether distances of the proximal terms are
    # largest norm of a step's gradient over all that is trained; a longer one is shortened to it
    gradient_clip: float = math.inf
    # name in the batch → shape of one row's standard normal numbers, fresh in each step
    noise: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    # name of rows, a constant or a parameter → its axis that may differ from client to client
    # (axis 0 of rows is that of the rows); zeros there must not change the objective
    ragged: Mapping[str, int] = field(default_factory=dict[str, int])
    stacked: bool = False
    names: frozenset[str] = field(init=False)  # of the module's parameters and buffers
    trained: tuple[str, ...] = field(init=False)  # what `train` names, in the module's order
    pulls: Mapping[str, float] = field(init=False)  # η > 0 of what is trained

    def __post_init__(self) -> None:
        """Check what is given."""
        for name in ("epochs", "steps", "batch_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ExperimentError(f"{name} is {value}; it must be at least 1.")
        known = [name for name, _ in self.model.named_parameters()]
        for pattern in (*self.train, *self.decay, *self.proximal):
            if not any(fnmatchcase(name, pattern) for name in known):
                raise ExperimentError(
                    f"No parameter of the model fits {pattern!r}; it has {', '.join(known)}."
                )
        if not self.gradient_clip > 0.0:
            raise ExperimentError(
                f"gradient_clip is {self.gradient_clip}; it must be above 0 (inf: no limit)."
            )
        if not self.train:
            raise ExperimentError("train is empty; name the parameters that move.")
        for pattern, value in (*self.decay.items(), *self.proximal.items()):
            if not value >= 0.0:
                raise ExperimentError(
                    f"decay or proximal of {pattern!r} is {value}; it must be at least 0."
                )
        trained = tuple(n for n in known if any(fnmatchcase(n, p) for p in self.train))
        pulls = {name: _first(self.proximal, name) for name in trained}
        buffers = [name for name, _ in self.model.named_buffers()]
        object.__setattr__(self, "names", frozenset([*known, *buffers]))
        object.__setattr__(self, "trained", trained)
        object.__setattr__(self, "pulls", {n: pull for n, pull in pulls.items() if pull > 0.0})

    def decay_of(self, name: str) -> float:
        """Return the weight decay of a parameter."""
        return _first(self.decay, name)

    def steps_of(self, learner: Learner) -> int:
        """Return how many steps a learner takes."""
        return step_count(learner.samples, self.batch_size, self.epochs, self.steps)


@dataclass(frozen=True, kw_only=True, eq=False)
class Learner:
    """One client's side of a training; nothing of it is changed."""

    parameters: Parameters
    rows: Mapping[str, Rows]  # each (samples, ...)
    key: int  # of the client's random stream, 0 to 2^63 - 1
    constants: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])  # in every batch
    references: Mapping[str, Tensor] | None = None  # r; None: the parameters it starts from
    state: OptimiserState | None = None  # None: a fresh optimiser

    @property
    def samples(self) -> int:
        """Return the number of rows."""
        return len(next(iter(self.rows.values())))

    @property
    def starts(self) -> Mapping[str, Tensor]:
        """Return what proximal terms pull to."""
        return self.parameters if self.references is None else self.references


@dataclass(frozen=True, kw_only=True, eq=False)
class Trained:
    """What a learner comes to."""

    parameters: Parameters
    state: OptimiserState
    losses: Tensor  # (steps,) the objective of each step's batch, before the step


def initial_parameters(model: nn.Module) -> Parameters:
    """Return copies of a module's parameters and buffers."""
    named = [*model.named_parameters(), *model.named_buffers()]
    return {name: value.detach().clone() for name, value in named}


def objective(
    training: LocalTraining,
    model: nn.Module,
    parameters: Mapping[str, Tensor],
    references: Mapping[str, Tensor],
    batch: Batch,
    *,
    squares: bool = True,
) -> Tensor:
    """Return the objective of a batch; `parameters` are those that `model` computes with.

    It is (learners,) where a training that takes learners stacked is given several. Without
    `squares` it lacks the squared distances of the proximal terms: see `add_squares`.
    """
    weight = batch["weight"]
    with torch.autocast(weight.device.type, torch.bfloat16, enabled=training.bf16):
        found = training.loss(model, batch)
    each, penalty = found if isinstance(found, tuple) else (found, None)
    if each.shape != weight.shape:
        raise ExperimentError(
            f"The loss has shape {tuple(each.shape)} for a batch of {weight.shape[-1]} rows; it "
            'must give one number for each row (in torch.nn.functional, reduction="none").'
        )
    value = (each * weight).sum(-1) / weight.sum(-1)
    if penalty is not None:
        value = value + penalty
    for name, pull in training.pulls.items() if squares or not training.squared else ():
        away = (parameters[name] - references[name]).reshape(*value.shape, -1)
        if training.squared:
            value = value + pull / 2 * away.square().sum(-1)
        else:  # of slope 0 where it starts, as torch has it
            value = value + pull * torch.linalg.vector_norm(away, dim=-1)
    return value


def add_squares(
    training: LocalTraining,
    parameters: Mapping[str, Tensor],
    references: Mapping[str, Tensor],
    value: Tensor,
    slopes: dict[str, Tensor],
) -> Tensor:
    """Return an objective with the squared distances of the proximal terms; change its slopes, too.

    Their slopes are known. To the same bits, differentiating would go over all parameters several
    times more, and take as long as all else of a step of small networks.
    """
    if training.squared:
        with torch.no_grad():
            for name, pull in training.pulls.items():
                away = parameters[name] - references[name]
                value = value + pull / 2 * away.reshape(*value.shape, -1).square().sum(-1)
                slopes[name] = away.mul_(pull).add_(slopes[name])
    return value


def train_alone(training: LocalTraining, learner: Learner, *, rate: float | None = None) -> Trained:
    """Train one learner, step by step, at the optimiser's rate or at another one.

    Raises
    ------
    ExperimentError
        Where the learner does not fit the training.
    """
    check_learner(training, learner)
    model = _module_of(training, learner.parameters)
    parameters = dict(model.named_parameters())
    state = own_state(training, learner)
    take_step = optimiser_over(
        training.optimiser,
        (
            Moving(
                values=parameters[name],
                moments=tuple(moment[name] for moment in state.moments),
                steps=state.steps,
                decay=training.decay_of(name),
            )
            for name in training.trained
        ),
        rate,
    )
    losses: list[Tensor] = []
    # what draws numbers by itself, such as dropout, draws from a stream of the client's too
    with drawing_from(learner.key, next(iter(learner.parameters.values())).device):
        for batch in _batches(training, learner):
            for name in training.trained:
                parameters[name].grad = None
            value = objective(training, model, parameters, learner.starts, batch, squares=False)
            value.backward()
            slopes = {}
            for name in training.trained:
                found = parameters[name].grad
                if found is None:  # the objective does not read it
                    found = torch.zeros_like(parameters[name])
                slopes[name] = found
            value = add_squares(training, parameters, learner.starts, value.detach(), slopes)
            for name, slope in slopes.items():
                parameters[name].grad = slope
            if training.gradient_clip < math.inf:
                factor = clip_factor(slopes.values(), training.gradient_clip, learners=False)
                for name in training.trained:
                    parameters[name].grad *= factor
            with torch.no_grad():
                take_step()
            losses.append(value)
    return Trained(
        parameters=initial_parameters(model),
        state=OptimiserState(steps=state.steps + len(losses), moments=state.moments),
        losses=torch.stack(losses),
    )


def clip_factor(slopes: Iterable[Tensor], most: float, *, learners: bool) -> Tensor:
    """Return what a gradient is multiplied by for a norm of at most `most`.

    With `learners` they stand in front of all axes, and have a factor each, (learners,).
    """
    total: Any = 0.0
    for slope in slopes:
        squares = slope.detach().square()
        total = total + (squares.flatten(1).sum(1) if learners else squares.sum())
    norm = total.sqrt()
    found: Tensor = most / torch.clamp(norm, min=most)
    return found


def _batches(training: LocalTraining, learner: Learner) -> Iterator[Batch]:
    """Yield the learner's batches."""
    like = learner.parameters[training.trained[0]]
    noise = NoiseStream(learner.key, training.noise, training.batch_size, like.dtype)
    steps = training.steps_of(learner)
    for places in batch_order(learner.key, learner.samples, training.batch_size, steps):
        picked = torch.from_numpy(places[places >= 0]).to(like.device)
        drawn = {name: part[: len(picked)].to(like.device) for name, part in noise.step().items()}
        yield {
            **{name: _picked(training, values, picked) for name, values in learner.rows.items()},
            **drawn,
            **learner.constants,
            "weight": torch.ones(len(picked), dtype=like.dtype, device=like.device),
        }


def _picked(training: LocalTraining, rows: Rows, picked: Tensor) -> Any:
    """Return rows as the training's model takes them."""
    sparse = training.stacked and isinstance(rows, SparseRows)
    return rows.batch(picked) if sparse else rows[picked]


def check_learner(training: LocalTraining, learner: Learner) -> None:
    """Raise where a learner does not fit the training."""
    counts = {name: len(values) for name, values in learner.rows.items()}
    if len(set(counts.values())) != 1 or 0 in counts.values():
        raise ExperimentError(
            f"A learner's rows have lengths {counts}; all must have the same, at least 1."
        )
    taken = [*learner.rows, *training.noise, *learner.constants, "weight"]
    twice = sorted({name for name in taken if taken.count(name) > 1})
    if twice:
        raise ExperimentError(f"The batch would hold {', '.join(twice)} twice; rename one.")
    different = learner.parameters.keys() ^ training.names
    if different:
        raise ExperimentError(
            f"A learner and the model do not both have {', '.join(sorted(different))}; take the "
            "parameters from initial_parameters(model)."
        )
    kind = learner.parameters[training.trained[0]].dtype
    if training.bf16 and kind != torch.float32:
        raise ExperimentError(
            f"A learner's parameters are {kind}, and products in bfloat16 go with torch.float32; "
            "convert them, or set bf16 = False."
        )
    unpulled = [name for name in training.pulls if name not in learner.starts]
    if unpulled:
        raise ExperimentError(f"A learner has no reference for {', '.join(unpulled)}; add it.")
    state = learner.state
    if state is not None and (
        len(state.moments) != len(training.optimiser.moments)
        or any(set(moment) != set(training.trained) for moment in state.moments)
    ):
        raise ExperimentError(
            "A learner's optimiser state is of another optimiser or of other parameters; leave it "
            "out to start afresh."
        )


def own_state(training: LocalTraining, learner: Learner) -> OptimiserState:
    """Return copies of the learner's moments, or a fresh state."""
    if learner.state is not None:
        copies = tuple(
            {name: values.clone() for name, values in moment.items()}
            for moment in learner.state.moments
        )
        return OptimiserState(steps=learner.state.steps, moments=copies)
    fresh = tuple(
        {name: torch.zeros_like(learner.parameters[name]) for name in training.trained}
        for _ in training.optimiser.moments
    )
    return OptimiserState(steps=0, moments=fresh)


def _module_of(training: LocalTraining, parameters: Parameters) -> nn.Module:
    """Return a module of its own with copies of the parameters, those that are frozen fixed."""
    model = copy.deepcopy(training.model)
    moving = set(training.trained)
    new = {
        name: nn.Parameter(parameters[name].detach().clone(), requires_grad=name in moving)
        for name, _ in model.named_parameters()
    }
    place_parameters(parameter_slots(model), new)
    for name, _ in list(model.named_buffers()):
        place, _, last = name.rpartition(".")
        model.get_submodule(place)._buffers[last] = parameters[name].detach().clone()
    return model


def parameter_slots(model: nn.Module) -> Slots:
    """Return where a module holds its parameters: each name's places, of which it may have two."""
    names = {id(values): name for name, values in reversed(list(model.named_parameters()))}
    slots: Slots = {name: [] for name in names.values()}
    for part in model.modules():
        for last, values in part._parameters.items():
            if values is not None:
                slots[names[id(values)]].append((part._parameters, last))
    return slots


def place_parameters(slots: Slots, parameters: Mapping[str, Tensor]) -> None:
    """Let a module compute with these parameters."""
    for name, places in slots.items():
        for held, last in places:
            held[last] = parameters[name]


def _first(factors: Mapping[str, float], name: str) -> float:
    """Return the factor of the first pattern that fits, else 0."""
    return next((value for pattern, value in factors.items() if fnmatchcase(name, pattern)), 0.0)
