"""The point of Newton's method: what a client keeps of it, in the order of its aligned block.

It is primal (w, with its scores z) and dual (α, with the w(α) that it gives).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from intarsia.core.block import Array, ClientId
from intarsia.errors import RefusedError


@dataclass(frozen=True)
class Partner:
    """A client that has samples in common with another."""

    name: ClientId
    turn: int
    features: NDArray[np.int64]  # (its features,) their places among the federation's
    cells: NDArray[np.bool_]  # (the other's cells,) which of them it holds, too
    samples: int = 0  # in these


@dataclass(frozen=True)
class Overlap:
    """Where a client's rows and columns lie in the federation, and who has some of its samples."""

    number: int  # of the client among all
    all_clients: int
    turn: int  # another one than those of its partners
    features: NDArray[np.int64]  # (features,) their places among the federation's
    cells: NDArray[np.int64]  # (sample cells,) their numbers in the federation
    partners: tuple[Partner, ...]
    all_features: int
    all_cells: int
    holders: int  # most of a sample in the federation
    widest: int  # features of the federation's largest feature cell


@dataclass(frozen=True)
class Point:
    """A client's state in the Newton phase, in the order of its aligned block."""

    before: Any  # the client's state of dual ascent, to return to
    regularisation: float
    samples: int  # N
    loss: int
    mine: NDArray[np.int64]  # samples whose label counts at this client
    sample_cells: tuple[tuple[int, int, int, int], ...]  # start, stop, holders, own rank
    feature_cells: tuple[tuple[int, int], ...]  # start, stop
    feature_share: Array  # (features,) 1 / holders
    kept_features: Array  # (features,) 1 where the cell counts at this client, else 0
    kept_samples: tuple[bool, ...]  # whether a cell of sample_cells counts at this client
    w: Array  # (outputs, features) primal point
    direction: Array  # (outputs, features)
    alpha: Array  # (outputs, samples) dual point that this client's part of w(α) counts
    z: Array  # (outputs, samples) scores at w
    q: Array  # (outputs, samples) scores of the direction
    centre: Array  # (outputs, samples) c
    residual: Array  # (outputs, features) λ (w(α) - w)
    selected: NDArray[np.int64]  # samples in the Hessian
    curvature: Array  # (outputs, selected) h, scaled up to all samples with curvature
    order: NDArray[np.int64]  # samples of each cell in the order of their turn for the Hessian
    frame: Array  # (frame, features) P
    ridge: Array  # (frame, frame) λ P Pᵀ, this client's share
    known: NDArray[np.bool_]  # (samples,) whether the owners have seen the sample in the frame
    slot: NDArray[np.int64]  # (samples,) row in `framed`, -1 without one
    framed: Array  # (slots, frame) samples in the frame, each at one of its owners
    preconditioner: Array  # (outputs, rows, features) inverse Gram matrices, cell by cell
    # where Newton's system is shared: `frame` is then (features, features), a secret basis for each
    # of the client's feature cells
    shared: bool = False
    scale: Array = field(default_factory=lambda: np.ones(0))  # (features,) size of a column
    reach: Array = field(default_factory=lambda: np.zeros(0))  # (samples,) bound of ‖x P‖²
    # (outputs, samples) h, or a tenth of it for each step since it was there
    faded: Array = field(default_factory=lambda: np.zeros((1, 1)))
    basis: Array = field(default_factory=lambda: np.zeros((0, 0)))  # what each step's basis turns
    turns: tuple[bytes, ...] = ()  # a secret of the owners of each feature cell, that turns come of
    measured: int = 0  # how often a point was measured in this phase: it numbers the turns
    directed: int = -1  # the number of the point that the direction was told at
    looks: int = 0  # how often steps along the direction were tried, by the losses
    penalty_looks: int = 0  # and by the penalty
    gathered: bool = False  # whether w(α) was counted, and is to be told next
    ended: bool = False  # whether that was for a certificate alone, without rows for a system
    system_slope: Array = field(default_factory=lambda: np.ones(1))  # (outputs,) of the gradient
    system_scale: Array = field(default_factory=lambda: np.ones(1))  # (outputs,) of the Hessian
    threshold: float = 0.0  # τ of the elastic net; `regularisation` is its κ
    lift: float = 1.0  # `regularisation` over the model's
    lifted: bool = False  # whether it was raised in this phase
    # (outputs, features) the centre that τ|w| is smoothed around, and s, (outputs,)
    pull: Array = field(default_factory=lambda: np.zeros((1, 0)))
    # (outputs, features) the mean curvature of τ|w| over κ on short steps' directions, fading
    passed: Array = field(default_factory=lambda: np.zeros((1, 0)))
    stiff: Array = field(default_factory=lambda: np.zeros(1))
    # in the interior point phase: of the samples that this client reads; the directions before
    inner: Any = None
    inner_l1: Any = None  # the same of τ|w|, of the client's features
    # (outputs, features) which of its weights are 0 in the model
    at_zero: NDArray[np.bool_] = field(default_factory=lambda: np.zeros((1, 0), bool))
    first: Array = field(default_factory=lambda: np.zeros((1, 0)))  # (outputs, features)
    # these and q without the last direction, within a round
    inner_before: Any = None
    # (outputs, features) weights of the best point so far, where it was another one
    kept: Array = field(default_factory=lambda: np.zeros((1, 0)))
    q_before: Array = field(default_factory=lambda: np.zeros((1, 0)))

    retired: ClassVar[frozenset[str]] = frozenset({"implied", "overlap"})

    @property
    def options(self) -> Any:
        """Return the hyperparameters."""
        return self.before.options

    @property
    def inside(self) -> NDArray[np.bool_]:
        """Return where τ|w| is smooth, (outputs, features): its slope is inside."""
        return np.asarray(np.abs(self.pull + self.stiff[:, None] * self.w) < self.threshold)

    @property
    def model(self) -> Array:
        """Return the weights of the certificate, (outputs, features)."""
        return np.where(self.at_zero, 0.0, self.w) if self.threshold else self.w

    @property
    def overlap(self) -> Overlap:
        """Return where this client stands in the shared system, as its own schema says.

        Raises
        ------
        RefusedError
            If its system is not shared, or the run is of a version that took this of the server.
        """
        if not self.shared or self.before.overlap is None:
            raise RefusedError(
                "Newton's system was asked for in shares where this client's run does not share "
                "it (or an earlier version began the run): begin the run again."
            )
        found: Overlap = self.before.overlap
        return found
