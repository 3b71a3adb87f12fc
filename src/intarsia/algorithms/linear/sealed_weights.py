"""Weights that the server holds sealed: how a baseline's model starts, and how it is revealed.

The server adds up changes of the weights without reading them. `setup` makes the zeros that it
adds to, `conclude` opens the sum when training is over.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np

from intarsia.core.algorithm import (
    Clients,
    FinalResult,
    PerFeature,
    RandomKey,
    RoundMetrics,
    client_function,
    evolve,
)
from intarsia.core.block import Array, Block


class Server(Protocol):
    """A server's state that has the weights."""

    @property
    def w(self) -> Any:
        """Return the sealed weights, (outputs, features)."""
        ...


class Client(Protocol):
    """A client's state that has the weights as the client saw them last."""

    @property
    def w(self) -> Array:
        """Return the weights of the client's features, (outputs, features)."""
        ...


S = TypeVar("S", bound=Server)
C = TypeVar("C", bound=Client)


@dataclass(frozen=True)
class Start:
    """Ask for the zeros that the total starts from."""


@dataclass(frozen=True)
class Weights:
    """The model."""

    w: PerFeature


@client_function
def send_zeros(client: C, block: Block, message: Start, rng: RandomKey) -> tuple[C, Weights]:
    """Send the zeros that the total starts from."""
    return client, Weights(np.zeros_like(client.w))


def setup(server: S, clients: Clients, rng: RandomKey) -> S:
    """Start from weights of zero."""
    zeros = clients.sum(send_zeros, dict.fromkeys(clients.ids, Start()))
    return evolve(server, w=zeros.w)


def conclude(
    server: S,
    clients: Clients,
    rng: RandomKey,
    *,
    certify: Callable[[S, Clients, RandomKey], tuple[S, RoundMetrics]],
) -> FinalResult:
    """Evaluate the final model as the algorithm does, and reveal it."""
    server, info = certify(server, clients, rng)
    # discloses the model: the server may predict with it
    return FinalResult(info, clients.reveal(server.w))
