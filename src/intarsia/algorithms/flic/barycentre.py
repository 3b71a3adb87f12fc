"""The Wasserstein barycentre of the clients' anchors, by sums that the server does not read.

With `anchor_average` = "barycentre" of `flic`, an anchor's covariance after a round is that of the
barycentre of the clients' Gaussians, S = argmin Σ_i B²(S, A_i), and not the average of their
factors; B is the Bures distance (see `distribution_distances`). It is found by the iteration of
Álvarez-Esteban, del Barrio, Cuesta-Albertos and Matrán, "A fixed-point approach to barycenters in
Wasserstein space", Journal of Mathematical Analysis and Applications 2016, with the maps T_i that
take N(0, S) to N(0, A_i):

    S ← T̄ S T̄,   T̄ = Σ_i ω_i T_i,   T_i = S^-½ (S^½ A_i S^½)^½ S^-½

with the weights ω_i of the clients that are there, which add up to 1 (`weights`).

A map is computed where A_i is, and only their sums cross. From the covariance of the round before:

1. `send_maps`, as often as `barycentre_steps` says: each client opens the mean of the maps before,
   takes S a step on, and sends its maps from there
2. `settle_factors`: all clients open the last mean; one of them sends by how much the triangular
   factor of S has changed, for all, as each of them knows it
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from intarsia import core as fl
from intarsia.algorithms.networks import parameter_sharing as sharing
from intarsia.algorithms.networks.architecture import Arrays
from intarsia.algorithms.networks.client_network import part_vector
from intarsia.algorithms.networks.parameter_sharing import Client, ClientTask, Server
from intarsia.core.block import Array, Block
from intarsia.errors import ConvergenceError

_FACTORS = "anchors.factors"
_LEAST = 1e-10  # eigenvalue of a covariance that has an inverse, as a part of the largest


@dataclass(frozen=True)
class Step:
    """The mean of the maps at the step before."""

    maps: Array | None  # (anchors, k, k); None: there was none


@fl.describe("matrices that lead to the mean covariance of each class")
class Maps:
    """One client's maps, or their total."""

    maps: Array  # (anchors, k, k)


@dataclass(frozen=True)
class Last:
    """The mean of the maps at the last step."""

    maps: Array  # (anchors, k, k)
    send: bool  # whether this client sends what it comes to


def settled(server: Server, clients: fl.Clients) -> Server:
    """Return the server with the barycentres' factors, which it does not read."""
    mean: Any = None
    for _ in range(server.options.barycentre_steps):
        total = clients.sum(send_maps, Step(mean))
        mean = total.maps * (1 / sharing.weight_of_sum(server, clients))
    first = next(iter(clients.ids))
    messages = {name: Last(maps=mean, send=name == first) for name in clients.ids}
    return fl.evolve(server, shared=server.shared + clients.sum(settle_factors, messages).shared)


def begun(client: Client, moved: ClientTask) -> tuple[Client, ClientTask]:
    """Return a client that keeps what its anchors came to, and what it sends the change of.

    The factors of the latter have not moved: they go by maps, and not into the average.
    """
    before = client.parameters[_FACTORS]
    own = _covariances(moved.client.parameters[_FACTORS])
    parameters: Arrays = {**moved.client.parameters, _FACTORS: before}
    sent = moved._replace(client=fl.evolve(moved.client, parameters=parameters))
    return fl.evolve(client, barycentre=(own, _covariances(before))), sent


def _covariances(factors: Any) -> Array:
    lower = np.tril(factors.astype(np.float64))
    found: Array = lower @ lower.swapaxes(-1, -2)
    return found


@fl.told_the_same
@fl.client_function
def send_maps(client: Client, block: Block, message: Step) -> tuple[Client, Maps]:
    """Take the covariances a step on; send the maps from there to the client's own."""
    own, covariances = client.barycentre
    covariances = _after(covariances, message.maps)
    client = fl.evolve(client, barycentre=(own, covariances))
    values, vectors = np.linalg.eigh(covariances)
    if not (values[..., 0] > _LEAST * values[..., -1]).all():
        raise ConvergenceError(
            f"The covariance of an anchor has the eigenvalue {values[..., 0].min():g}, too near to "
            "0 for a barycentre; lower algorithm.rate, or set algorithm.anchor_average = "
            '"factors".'
        )
    sizes = np.sqrt(values)[..., None, :]
    root = (vectors * sizes) @ vectors.swapaxes(-1, -2)
    inverse = (vectors / sizes) @ vectors.swapaxes(-1, -2)
    return client, Maps(client.weight * (inverse @ _root(root @ own @ root) @ inverse))


def _after(covariances: Array, maps: Array | None) -> Array:
    """Return T̄ S T̄, or S where there are no maps yet."""
    if maps is None:
        return covariances
    found = maps @ covariances @ maps
    return (found + found.swapaxes(-1, -2)) / 2


def _root(matrices: Array) -> Array:
    """Return the symmetric roots of symmetric matrices without negative eigenvalues."""
    values, vectors = np.linalg.eigh((matrices + matrices.swapaxes(-1, -2)) / 2)
    found: Array = (vectors * np.sqrt(values.clip(0))[..., None, :]) @ vectors.swapaxes(-1, -2)
    return found


@fl.client_function
def settle_factors(client: Client, block: Block, message: Last) -> tuple[Client, sharing.Change]:
    """Send by how much the factors changed, if this client is to."""
    _, covariances = client.barycentre
    client = fl.evolve(client, barycentre=())
    if not message.send:
        return client, sharing.Change(None)
    factors = np.linalg.cholesky(_after(covariances, message.maps))
    still = {name: np.zeros_like(one) for name, one in client.parameters.items()}
    moved: Arrays = {**still, _FACTORS: factors - client.parameters[_FACTORS]}
    return client, sharing.Change(part_vector(moved, client.options.shared_parts))


settle_factors = fl.one_sender(settle_factors, "shared")


SENDS = fl.opening(
    dict.fromkeys(["Last.maps", "Step.maps"], ("Maps.maps",)),
    (
        *fl.each(fl.sums(send_maps, pooled=sharing.shares), repeats=True),  # until it settles
        *fl.sums(settle_factors, pooled=sharing.shares),
    ),
)
