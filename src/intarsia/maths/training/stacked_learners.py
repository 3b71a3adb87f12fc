"""Learners of a cohort stacked: their parameters and moments, their rows, and the steps they take.

Parameters are (learners, ...), with zeros where a ragged axis is longer than the learner's own.
What moves alike lies in one array, of which they are parts: to take a step of many small arrays
costs mostly Python's and torch's time for each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from intarsia.maths.training.local_training import (
    Batch,
    Learner,
    LocalTraining,
    NoiseStream,
    Parameters,
    Trained,
    batch_order,
    clip_factor,
    own_state,
)
from intarsia.maths.training.optimisers import Moving, OptimiserState, optimiser_over
from intarsia.maths.training.sparse_rows import in_full
from intarsia.maths.training.torch_import import Tensor, torch

Axes = dict[str, int | None]  # 0: stacked, None: one for all
Given = tuple[Parameters, Parameters, Parameters, Batch]  # trained, frozen, references, batch
# by name, and the objectives; both without the squared distances of proximal terms
Gradients = Callable[[Given], tuple[Mapping[str, Tensor], Tensor]]


@dataclass(frozen=True)
class Layout:
    """What is stacked, and what is one for all because all learners give the very same tensor."""

    frozen: Axes
    references: Axes
    batch: Axes

    @staticmethod
    def of(training: LocalTraining, learners: Sequence[Learner]) -> Layout:
        """Return the layout of a cohort."""
        first = learners[0]
        frozen = [name for name in first.parameters if name not in training.trained]
        # buffers are never one for all: a layer may write into them
        buffers: Axes = {name: 0 for name, _ in training.model.named_buffers()}
        stacked: Axes = dict.fromkeys([*first.rows, *training.noise, "weight"], 0)
        return Layout(
            frozen=_axes([learner.parameters for learner in learners], frozen) | buffers,
            references=_axes([learner.starts for learner in learners], training.pulls),
            batch=stacked | _axes([one.constants for one in learners], first.constants),
        )

    @property
    def key(self) -> tuple[tuple[tuple[str, int | None], ...], ...]:
        """Return the layout as something that can be a key."""
        return tuple(tuple(axes.items()) for axes in (self.frozen, self.references, self.batch))

    @property
    def axes(self) -> tuple[int, Axes, Axes, Axes]:
        """Return the axes of what the objective is given."""
        return 0, self.frozen, self.references, self.batch


@dataclass(frozen=True)
class Together:
    """Trained parameters of one decay and one pull, one behind the other: (learners, values)."""

    names: tuple[str, ...]
    values: Tensor
    moments: tuple[Tensor, ...]
    references: Tensor | None  # of squared distances; (values,) where they are one for all
    pull: float
    decay: float

    @staticmethod
    def of(
        training: LocalTraining,
        parameters: Parameters,
        moments: Sequence[Parameters],
        references: Parameters,
        layout: Layout,
    ) -> list[Together]:
        """Return copies of stacked parameters and moments, those that move alike in one array."""
        alike: dict[Any, list[str]] = {}
        for name in training.trained:
            pull = training.pulls.get(name, 0.0) if training.squared else 0.0
            one_for_all = pull > 0.0 and layout.references[name] is None
            kind = (training.decay_of(name), pull, one_for_all, parameters[name].dtype)
            alike.setdefault(kind, []).append(name)
        return [
            Together(
                names=tuple(names),
                values=_behind(parameters, names),
                moments=tuple(_behind(moment, names) for moment in moments),
                references=_behind(references, names, 0 if one_for_all else 1) if pull else None,
                pull=pull,
                decay=decay,
            )
            for (decay, pull, one_for_all, _), names in alike.items()
        ]

    def parts(self, values: Tensor, like: Parameters) -> Parameters:
        """Return the parameters, as parts of such an array, in the shapes of others."""
        sizes = [like[name][0].numel() for name in self.names]
        parts = values.split(sizes, 1)
        return {
            name: part.view(like[name].shape) for name, part in zip(self.names, parts, strict=True)
        }

    def slope(self, slopes: Mapping[str, Tensor]) -> Tensor:
        """Return the gradient, (learners, values)."""
        return _behind(slopes, self.names)

    def pulled(self, slope: Tensor, objectives: Tensor) -> Tensor:
        """Return the objectives with the squared distances; change the gradient, too."""
        if self.references is None:
            return objectives
        count = len(slope)
        away = self.values[:count] - self.references[: count if self.references.dim() > 1 else None]
        slope.add_(away, alpha=self.pull)
        return objectives + self.pull / 2 * away.square_().sum(1)


def _behind(parameters: Mapping[str, Tensor], names: Sequence[str], axis: int = 1) -> Tensor:
    each = [parameters[name] for name in names]
    return torch.cat([values.reshape(*values.shape[:axis], -1) for values in each], axis)


@dataclass(frozen=True)
class Chunk:
    """Some learners of a cohort, those with most steps first.

    A chunk may be filled up to a size: the first learner stands again at its end, computes in
    every step, and nothing is kept of it.
    """

    learners: Sequence[Learner]
    counts: Sequence[int]  # steps of each learner
    layout: Layout
    together: Sequence[Together]
    trained: Parameters  # parts of these
    frozen: Parameters
    references: Parameters
    constants: Parameters
    moments: tuple[Parameters, ...]
    before: Sequence[int]  # steps of each learner's optimiser before this training
    rows: Parameters  # of all learners, (samples, ...)
    places: Tensor  # of the rows in each batch, (steps, learners, batch size)
    weight: Tensor  # likewise; 0 where a batch is filled up
    filled: bool

    @staticmethod
    def of(
        training: LocalTraining, learners: Sequence[Learner], layout: Layout, size: int = 0
    ) -> Chunk:
        """Stack learners, filled up to a size."""
        everyone = [*learners, *[learners[0]] * (size - len(learners))]
        ragged = training.ragged
        like = learners[0].parameters[training.trained[0]]
        states = [own_state(training, learner) for learner in everyone]
        moving: Axes = dict.fromkeys(training.trained, 0)
        parameters = [learner.parameters for learner in everyone]
        places, weight = _places(training, learners, len(everyone))
        constants = {name: layout.batch[name] for name in learners[0].constants}
        stacked = _stacked(parameters, moving, ragged)
        references = _stacked([one.starts for one in everyone], layout.references, ragged)
        together = Together.of(
            training,
            stacked,
            [
                _stacked([state.moments[number] for state in states], moving, ragged)
                for number in range(len(training.optimiser.moments))
            ],
            references,
            layout,
        )
        return Chunk(
            learners=learners,
            counts=[training.steps_of(learner) for learner in learners],
            layout=layout,
            together=together,
            trained={k: v for one in together for k, v in one.parts(one.values, stacked).items()},
            frozen=_stacked(parameters, layout.frozen, ragged),
            references=references,
            constants=_stacked([one.constants for one in everyone], constants, ragged),
            moments=tuple(
                {
                    name: values
                    for one in together
                    for name, values in one.parts(one.moments[number], stacked).items()
                }
                for number in range(len(training.optimiser.moments))
            ),
            before=[state.steps for state in states[: len(learners)]],
            rows={
                name: torch.cat(_widened([in_full(one.rows[name]) for one in learners], axis))
                for name, axis in ((name, ragged.get(name)) for name in learners[0].rows)
            },
            places=places.to(like.device),
            weight=weight.to(like.device, like.dtype),
            filled=size > 0,
        )

    def streams(self, training: LocalTraining) -> list[NoiseStream]:
        """Return the streams of the learners' noise, at their start; none where none is drawn."""
        if not training.noise:
            return []
        return [
            NoiseStream(learner.key, training.noise, training.batch_size, self.weight.dtype)
            for learner in self.learners
        ]

    def first(self, count: int) -> Given:
        """Return what the objective of the first `count` learners is given in every step.

        The trained parameters are leaves that share their memory with those that move.
        """
        return (
            {name: values[:count].detach() for name, values in self.trained.items()},
            _cut(self.frozen, self.layout.frozen, count),
            _cut(self.references, self.layout.references, count),
            _cut(self.constants, self.layout.batch, count),
        )

    def given(
        self, first: Given, places: Tensor, weight: Tensor, streams: Sequence[NoiseStream]
    ) -> Given:
        """Return what the objective of the first learners is given in one step.

        `places` and `weight` are (learners, batch size); the streams move on.
        """
        trained, frozen, references, constants = first
        count = len(weight)
        flat = places.reshape(-1)
        batch = {
            name: values.index_select(0, flat).view(count, -1, *values.shape[1:])
            for name, values in self.rows.items()
        }
        batch |= _noise(streams, count, weight.device) | constants
        batch["weight"] = weight
        return trained, frozen, references, {name: batch[name] for name in self.layout.batch}

    def train(
        self, training: LocalTraining, gradients: Gradients, rate: float | None = None
    ) -> list[Trained]:
        """Take all steps, at the optimiser's rate or another. What is stacked moves in place."""
        streams = self.streams(training)
        losses = self.weight.new_zeros(self.weight.shape[:2])
        for first, last, active in _stretches(self.counts):
            computing = self.weight.shape[1] if self.filled else active
            take_step, parts = self._optimiser(training, active, first, rate)
            same = self.first(computing)
            places, weight = self.places[:, :computing], self.weight[:, :computing]
            for step in range(first, last):
                given = self.given(same, places[step], weight[step], streams[:active])
                found, values = gradients(given)
                slopes = [one.slope(found)[:active] for one in self.together]
                values = values[:active]
                for one, slope in zip(self.together, slopes, strict=True):
                    values = one.pulled(slope, values)
                losses[step, :active] = values
                if training.gradient_clip < math.inf:
                    factor = clip_factor(slopes, training.gradient_clip, learners=True)
                    for slope in slopes:
                        slope.mul_(factor[:, None])
                for number, place, moved in parts:
                    moved.grad = slopes[number] if place is None else slopes[number][place]
                take_step()
        return [self._result(training, number, losses) for number in range(len(self.learners))]

    def _optimiser(
        self, training: LocalTraining, active: int, done: int, rate: float | None
    ) -> tuple[Callable[[], None], list[tuple[int, int | None, Tensor]]]:
        """Return what takes a step over views of the first learners' parameters, and these views.

        Learners whose optimisers have taken different numbers of steps move one by one.
        """
        alike = len(set(self.before[:active])) == 1
        keys: list[Any] = [slice(active)] if alike else list(range(active))
        moving: list[Moving] = []
        parts: list[tuple[int, int | None, Tensor]] = []
        for number, one in enumerate(self.together):
            for key in keys:
                view = one.values[key].detach()
                moving.append(
                    Moving(
                        values=view,
                        moments=tuple(moment[key] for moment in one.moments),
                        steps=self.before[0 if alike else key] + done,
                        decay=one.decay,
                    )
                )
                parts.append((number, None if alike else key, view))
        return optimiser_over(training.optimiser, moving, rate), parts

    def _result(self, training: LocalTraining, number: int, losses: Tensor) -> Trained:
        learner = self.learners[number]
        count = self.counts[number]

        def own(stacked: Parameters, name: str) -> Tensor:
            """Return a copy of what is the learner's, without what was filled up."""
            shape = learner.parameters[name].shape
            return stacked[name][number][tuple(slice(size) for size in shape)].clone()

        return Trained(
            parameters={
                name: own(self.trained, name) if name in self.trained else values.clone()
                for name, values in learner.parameters.items()
            },
            state=OptimiserState(
                steps=self.before[number] + count,
                moments=tuple(
                    {name: own(moment, name) for name in training.trained}
                    for moment in self.moments
                ),
            ),
            losses=losses[:count, number].clone(),
        )


def _axes(parts: Sequence[Mapping[str, Tensor]], names: Any) -> Axes:
    return {
        name: None if all(part[name] is parts[0][name] for part in parts) else 0 for name in names
    }


def _cut(stacked: Parameters, axes: Axes, count: int) -> Parameters:
    return {name: values[:count] if axes[name] == 0 else values for name, values in stacked.items()}


def _stacked(
    parts: Sequence[Mapping[str, Tensor]], axes: Axes, ragged: Mapping[str, int]
) -> Parameters:
    return {
        name: parts[0][name]
        if axis is None
        else torch.stack(_widened([part[name].detach() for part in parts], ragged.get(name)))
        for name, axis in axes.items()
    }


def _widened(parts: list[Tensor], axis: int | None) -> list[Tensor]:
    """Return tensors of one width along an axis, with zeros after their own."""
    if axis is None:
        return parts
    width = max(part.shape[axis] for part in parts)
    wide = []
    for part in parts:
        shape = list(part.shape)
        shape[axis] = width - shape[axis]
        wide.append(torch.cat([part, part.new_zeros(shape)], axis))
    return wide


def _places(
    training: LocalTraining, learners: Sequence[Learner], size: int
) -> tuple[Tensor, Tensor]:
    """Return the rows of each batch and their weights, (steps, size, batch size).

    Where a batch is filled up stands the learner's own first row, so that none sees another's.
    """
    counts = [training.steps_of(learner) for learner in learners]
    places = np.zeros((max(counts), size, training.batch_size), np.int64)
    weight = np.ones(places.shape, np.float32)
    offset = 0
    for number, (learner, count) in enumerate(zip(learners, counts, strict=True)):
        samples = learner.samples
        order = batch_order(learner.key, samples, training.batch_size, count)
        places[:count, number] = np.maximum(order, 0)
        weight[:count, number] = order >= 0
        places[:, number] += offset
        offset += samples
    return torch.from_numpy(places), torch.from_numpy(weight)


def _noise(streams: Sequence[NoiseStream], count: int, device: Any) -> Batch:
    """Return a step's noise of each stream, (count, batch size, ...)."""
    if not streams:
        return {}
    drawn = [stream.step() for stream in streams]
    drawn += drawn[:1] * (count - len(drawn))
    return {name: torch.stack([one[name] for one in drawn]).to(device) for name in drawn[0]}


def _stretches(counts: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return from which step to which how many learners are active; `counts` fall."""
    ends = sorted(set(counts))
    return [
        (first, last, sum(count >= last for count in counts))
        for first, last in zip([0, *ends], ends, strict=False)
    ]
