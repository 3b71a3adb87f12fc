"""How much noise makes a release (ε, δ)-differentially private, in plain numbers.

Two federations are neighbours if they differ in one unit: in all values and the label of one
sample, or in all values and labels of one client. How many samples, features and clients there
are, and who holds which, is public and the same in both.

Output perturbation (Chaudhuri, Monteleoni and Sarwate, "Differentially Private Empirical Risk
Minimization", JMLR 2011), for the unit of a sample and

    P(w) = λ/2 ‖w‖² + 1/N Σ_i l(x_iᵀw, y_i)

Let w* and v* be the minimisers of two neighbours P and Q that differ in sample n. P is λ-strongly
convex, so its subgradients g of P at v* and 0 at w* give λ ‖v* - w*‖ ≤ ‖g‖; and since 0 is a
subgradient of Q at v*, there is such a g of norm ‖l'_P x - l'_Q x̃‖ / N. With rows of norm at most c
and |l'| ≤ L there, the minimisers are at most 2Lc/(λN) apart. The hinge and the logistic loss have
L = 1 everywhere. The slope of the squared hinge is at most 2(1 + |z|) and that of the squared loss
with labels ±1 at most 1 + |z|; at v*, λ/2 ‖v*‖² ≤ Q(v*) ≤ Q(0) = l(0) bounds |z| by c √(2 l(0)/λ).
Labels without a bound leave the squared loss without one.

K outputs are K such problems; a sample is in all, so that the outputs together move by √K as much.
A model whose objective is within G of the minimum (over all outputs) is within √(2G/λ) of the
minimiser; that of the neighbour too, so that the models are at most 2√(2G/λ) further apart. G must
be the same for both: it comes from the tolerance, never from the gap that a run happened to reach.

The noise is that of the analytic Gaussian mechanism (Balle and Wang, "Improving the Gaussian
Mechanism for Differential Privacy", ICML 2018, Theorem 8). T releases, each with noise of z times
its sensitivity and each chosen with the ones before in view, are together as private as one release
with noise of z/√T (Dong, Roth and Su, "Gaussian Differential Privacy", JRSS B 2022, Corollary 2).
"""

from __future__ import annotations

import math
from typing import Literal

from intarsia.errors import ExperimentError

_SURPLUS = 1e-9  # relative: the library finds its root from either side
_AT_ZERO = {"hinge": 1.0, "squared_hinge": 1.0, "logistic": math.log(2.0), "squared": 0.5}  # l(0)


def noise_multiplier(epsilon: float, delta: float, releases: int = 1) -> float:
    """Return the least noise, as a multiple of the sensitivity, for a number of releases together.

    Raises
    ------
    ExperimentError
        If the library dp-accounting is not installed.
    """
    try:
        import dp_accounting
    except ModuleNotFoundError as error:
        raise ExperimentError(
            "privacy.epsilon needs the library dp-accounting, which is not installed; run "
            'pip install "intarsia[privacy]".'
        ) from error
    found = float(dp_accounting.get_sigma_gaussian(epsilon, delta))
    return found * (1 + _SURPLUS) * math.sqrt(releases)


def largest_slope(
    loss: str,
    *,
    clip: float,
    regularisation: float,
    task: Literal["binary", "multiclass", "regression"],
) -> float:
    """Return L, the largest |l'| at a minimiser where rows have a norm of at most `clip`.

    Raises
    ------
    ExperimentError
        If the loss has no such bound: the squared loss on labels of any size.
    """
    if loss in ("hinge", "logistic"):
        return 1.0
    if task == "regression":
        raise ExperimentError(
            f"privacy.epsilon was set for the loss {loss!r} on labels that are numbers, which may "
            "be of any size, so that one sample may move the model by any amount; use classes as "
            'labels with the loss "hinge" or "logistic", or set epsilon = 0.'
        )
    score = clip * math.sqrt(2 * _AT_ZERO[loss] / regularisation)
    return (2.0 if loss == "squared_hinge" else 1.0) * (1 + score)


def largest_gap(loss: str, *, tolerance: float, outputs: int) -> float:
    """Return a bound of P - D for every model of a relative gap of at most `tolerance` < 1.

    P - D ≤ tolerance · P, and P less its gap is at most the objective of a model of zeros.
    """
    return tolerance * outputs * _AT_ZERO[loss] / (1 - tolerance)


def largest_norm(loss: str, *, regularisation: float) -> float:
    """Return the largest norm of one output's minimiser: λ/2 ‖w*‖² ≤ P(w*) ≤ P(0) = l(0)."""
    return math.sqrt(2 * _AT_ZERO[loss] / regularisation)


def minimiser_sensitivity(
    slope: float,
    *,
    clip: float,
    regularisation: float,
    samples: int,
    outputs: int = 1,
    gap: float = 0.0,
) -> float:
    """Return how far apart, in the 2-norm of all weights, two neighbours' models can be.

    `slope` is L, `clip` the largest norm of a row, and λ, N and K follow; `gap` is G, the largest
    P - D of a model that is released, summed over the outputs.
    """
    apart = 2 * slope * clip / (regularisation * samples) * math.sqrt(outputs)
    return apart + 2 * math.sqrt(2 * gap / regularisation)
