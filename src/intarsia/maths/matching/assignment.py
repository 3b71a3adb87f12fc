"""The best assignment of points to as many others, class by class, for many learners at once."""

from __future__ import annotations

import numpy as np
from scipy.optimize import linear_sum_assignment

from intarsia.errors import ConvergenceError
from intarsia.maths.training.torch_import import Tensor, torch

_LIBRARY = torch.library.Library("intarsia_assignment", "DEF")
_LIBRARY.define("assigned(Tensor points, Tensor others, Tensor y, int classes) -> Tensor")
_assigned = torch.ops.intarsia_assignment.assigned


def assigned(points: Tensor, others: Tensor, y: Tensor, classes: int) -> Tensor:
    """Return which other each point is assigned to, (rows,): a permutation in each class.

    It minimises Σ ‖x - y‖². A row of no class (`y` = `classes`) is assigned to itself. Several
    learners may stand in front of all axes.

    Parameters
    ----------
    points, others
        (rows, k), without gradients.
    y
        The class of both, (rows,).

    Raises
    ------
    ConvergenceError
        If a distance is not finite.
    """
    found: Tensor = _assigned(points, others, y, classes)
    return found


def _solved(points: Tensor, others: Tensor, y: Tensor, classes: int) -> Tensor:
    rows, width = points.shape[-2:]
    costs = torch.cdist(points.reshape(-1, rows, width), others.reshape(-1, rows, width)).square()
    label = y.reshape(-1, rows).cpu().numpy()
    found = np.tile(np.arange(rows), (len(label), 1))
    for learner, cost in enumerate(costs.cpu().numpy()):
        for number in range(classes):
            own = np.flatnonzero(label[learner] == number)
            among = cost[np.ix_(own, own)]
            if not np.isfinite(among).all():
                raise ConvergenceError(
                    "A distance between embedded rows and samples of an anchor is not finite: "
                    "training diverges; lower algorithm.rate, or standardise the features."
                )
            if len(own):
                found[learner, own] = own[linear_sum_assignment(among)[1]]
    return torch.from_numpy(found).to(points.device).view(y.shape)


def _shaped(points: Tensor, others: Tensor, y: Tensor, classes: int) -> Tensor:
    return torch.empty_like(y, memory_format=torch.contiguous_format)


def _stacked(
    info: object,
    axes: tuple[int | None, ...],
    points: Tensor,
    others: Tensor,
    y: Tensor,
    classes: int,
) -> tuple[Tensor, int]:
    given = list(zip((points, others, y), axes, strict=False))
    count = next(values.shape[axis] for values, axis in given if axis is not None)
    stacked = [
        values.expand(count, *values.shape) if axis is None else values.movedim(axis, 0)
        for values, axis in given
    ]
    return _assigned(*stacked, classes), 0


_LIBRARY.impl("assigned", _solved, "CompositeExplicitAutograd")
torch.library.register_fake("intarsia_assignment::assigned", _shaped, lib=_LIBRARY)
torch.library.register_vmap("intarsia_assignment::assigned", _stacked, lib=_LIBRARY)
