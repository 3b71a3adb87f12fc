"""The codes of the losses of linear models, by which kernels know them."""

from __future__ import annotations

from typing import Final

HINGE: Final = 0
SQUARED_HINGE: Final = 1
LOGISTIC: Final = 2
SQUARED: Final = 3
HUBER: Final = 4
QUANTILE: Final = 5
POISSON: Final = 6
GAMMA: Final = 7
LOSSES: Final = {
    "hinge": HINGE,
    "squared_hinge": SQUARED_HINGE,
    "logistic": LOGISTIC,
    "squared": SQUARED,
    "huber": HUBER,
    "quantile": QUANTILE,
    "poisson": POISSON,
    "gamma": GAMMA,
}
