"""What it costs that neurons of several clients are one neuron of the server.

Both costs are energies of a server neuron, a sum over its weights: with a the precision of a
client's weight w, A = Σa and S = Σaw over the clients that have the weight,

    min_θ Σ a/2 (w - θ)² + τ/2 θ²  =  ½ (Σ a w² - S²/(τ + A))

plus what it costs that the server has the weight, plus an energy of the number of its owners. So
every candidate for a client's neuron explains all the weights of that neuron: those that the
candidate's owners lack cost as much there as in a new neuron, and few common columns do not look
like a good match.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from intarsia.errors import ExperimentError

__all__ = ["BetaBernoulli", "Cost", "SquaredDistance"]

Array = NDArray[Any]


class Cost(Protocol):
    """The constants of an energy."""

    @property
    def prior(self) -> float:
        """Return τ, the precision of a server weight's prior around 0."""
        ...

    def precisions(self, shares: Array) -> Array:
        """Return a of each client, (clients,), from weights p_m that sum to 1."""
        ...

    def weight_price(self, squares: float) -> float:
        """Return the unit of `held` in a layer with this mean of p_m w²."""
        ...

    def held(self, masses: Array, prices: Array) -> Array:
        """Return what server weights cost that clients of these A in all have."""
        ...

    def owners(self, clients: int) -> Array:
        """Return the energy of a server neuron with 0, 1, ... owners, (clients + 1,)."""
        ...


@dataclass(frozen=True, kw_only=True)
class SquaredDistance:
    """Σ_m p_m/2 ‖w_m - Π_m w_0‖², and a price for each weight of the server (equation (11))."""

    price: float = 4.0  # of a server weight, in halves of the layer's mean p_m w²

    def __post_init__(self) -> None:
        if not 0 <= self.price < np.inf:
            raise ExperimentError(
                f"The price of a neuron is {self.price}; set it to 0 or more, and the width to the "
                "largest client's where none is to be opened."
            )

    @property
    def prior(self) -> float:
        """Return τ."""
        return 0.0

    def precisions(self, shares: Array) -> Array:
        """Return p_m."""
        return shares

    def weight_price(self, squares: float) -> float:
        """Return the price of a server weight."""
        return self.price / 2 * squares

    def held(self, masses: Array, prices: Array) -> Array:
        """Return the price where any client has the weight."""
        return prices * (masses > 0)

    def owners(self, clients: int) -> Array:
        """Return zeros: any number of owners is as good."""
        return np.zeros(clients + 1)


@dataclass(frozen=True, kw_only=True)
class BetaBernoulli:
    """The negative logarithm of PFNM's posterior, up to a constant.

    Server neurons are atoms of a Beta process of mass γ, θ ~ N(0, σ0² I); a client has an atom with
    the atom's probability, and w ~ N(θ, σ²/(M p_m) I) where it has it
    (Yurochkin et al., "Bayesian Nonparametric Federated Learning of Neural Networks", ICML 2019).
    At its best value, as published, θ explains the weights of one client alone too well: noise
    σ = 0.3 σ0 is enough for most neurons to be thought the client's own, whatever γ. Integrated out
    (`marginal`), it adds ½ ln(1 + A/τ) for each weight, and they are told apart.

    The posterior is that of the set of atoms. The publication's term for the rank of a new neuron
    among a client's new ones counts the orders of one and the same set, and is left out: it belongs
    to no energy of all clients, so that passes could not be held to descent.
    """

    sigma2: float = 1.0  # σ²
    sigma02: float = 1.0  # σ0²
    gamma: float = 1.0  # γ
    marginal: bool = False  # θ integrated out, rather than at its best value

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name != "marginal" and not 0 < value < np.inf:
                raise ExperimentError(f"{name} is {value}; set it to a positive number.")

    @property
    def prior(self) -> float:
        """Return 1/σ0²."""
        return 1 / self.sigma02

    def precisions(self, shares: Array) -> Array:
        """Return M p_m/σ²."""
        return shares * (len(shares) / self.sigma2)

    def weight_price(self, squares: float) -> float:
        """Return 1."""
        return 1.0

    def held(self, masses: Array, prices: Array) -> Array:
        """Return ½ ln(1 + A/τ) if θ is integrated out; at its best value the prior is the price."""
        return prices * np.log1p(masses * self.sigma02) / 2 if self.marginal else 0.0 * masses

    def owners(self, clients: int) -> Array:
        """Return -ln(γ (m - 1)! (M - m)!/M!) for m owners of M clients, and 0 for none."""
        m = np.arange(1, clients + 1)
        some = gammaln(clients + 1) - gammaln(m) - gammaln(clients - m + 1) - np.log(self.gamma)
        return np.concatenate(([0.0], some))
