"""The table [privacy] of an experiment: how sums are sealed, and how much the model may tell."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

from intarsia.errors import ExperimentError

Mode = Literal["plain", "masked", "ckks"]
Trust = Literal["pairs", "clients"]
# of which float64 gives the noise; beyond them it may be too little by orders of magnitude
EPSILONS: Final = (1e-6, 1e6)
DELTA: Final = 1e-100  # the least
_EPS: Final = f"0 (no noise), or a number from {EPSILONS[0]:g} to {EPSILONS[1]:g}"


@dataclass(frozen=True, kw_only=True)
class Privacy:
    """How a federation keeps its sums from the server, and its samples from readers of the model.

    The range is checked where it is used: by the number formats of the modes.

    Raises
    ------
    ExperimentError
        If error, colluders, least_clients, epsilon, delta or clip is outside its range.
    """

    mode: Mode = "plain"  # plain: whoever runs the server can read every contribution
    # pairs: each two clients have a key, and none opens another's contribution, together with the
    # server either; clients: all have one key, and each opens everything together with the server
    trust: Trust = "pairs"
    colluders: int = 16  # clients that may pool what they have with the server, under "pairs"
    range: float = 2.0**22  # largest |total| of a sum over the clients
    error: float = 0.0  # of a total under CKKS, at most; 0 = as little as the range allows
    key: str = ""  # file of the clients' shared key; "" = drawn for the run, beside its results
    transcript: bool = False  # write down every byte that the server could read
    # of a round, whose parts a total of networks has at least; with fewer, one tells another's
    least_clients: int = 3
    epsilon: float = 0.0  # ε of differential privacy for what is released; 0 = no noise
    delta: float = 1e-5  # δ, well below 1 / samples (1 / clients where clients are protected)
    clip: float = 1.0  # largest norm of a sample's row (HyFDCA), of a client's update (FedAvg)

    def __post_init__(self) -> None:
        for key, sound, expected, example in (
            ("error", 0 <= self.error < math.inf, "a number of at least 0 (0: the least)", "2e-5"),
            ("colluders", self.colluders >= 1, "a whole number from 1 up", "16"),
            ("least_clients", self.least_clients >= 1, "a whole number from 1 up", "3"),
            ("epsilon", self.epsilon == 0 or EPSILONS[0] <= self.epsilon <= EPSILONS[1], _EPS, "1"),
            ("delta", DELTA <= self.delta < 1, f"a probability from {DELTA:g} to below 1", "1e-5"),
            ("clip", 0 < self.clip < math.inf, "a finite number above 0", "1"),
        ):
            if not sound:
                raise ExperimentError(
                    f"[privacy] {key} is {getattr(self, key)}; expected {expected}: set e.g. "
                    f"{key} = {example}."
                )
