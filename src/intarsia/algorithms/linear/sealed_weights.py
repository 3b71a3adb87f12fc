"""Weights that the server holds sealed: how a baseline's model starts, and how it is revealed.

The server adds up changes of the weights without reading them. `setup` makes the zeros that it
adds to, `conclude` opens the sum when training is over. The states of server and clients have them
as `w`; a client's are those that it saw last.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from intarsia.core import algorithm as fl
from intarsia.core.block import Array, Block
from intarsia.maths.linear.products import scores


@dataclass(frozen=True)
class Start:
    """Ask for the zeros that the total starts from."""


@fl.describe("model weights or their changes")
@dataclass(frozen=True)
class Weights:
    """The model."""

    w: fl.PerFeature


@fl.client_function
def send_zeros(client: Any, block: Block, message: Start, rng: fl.RandomKey) -> tuple[Any, Weights]:
    """Send the zeros that the total starts from."""
    return client, Weights(np.zeros_like(client.w))


def setup(server: Any, clients: fl.Clients, rng: fl.RandomKey) -> Any:
    """Start from weights of zero."""
    zeros = clients.sum(send_zeros, dict.fromkeys(clients.ids, Start()))
    return fl.evolve(server, w=zeros.w)


def predict(client: Any, block: Block) -> Array:
    """Return the client's part of the scores of a block's samples, (outputs, samples)."""
    return scores(block.x, client.w)


def conclude(
    server: Any,
    clients: fl.Clients,
    rng: fl.RandomKey,
    *,
    certify: Callable[[Any, fl.Clients, fl.RandomKey], tuple[Any, fl.RoundMetrics]],
) -> fl.FinalResult:
    """Evaluate the final model as the algorithm does, and reveal it."""
    server, info = certify(server, clients, rng)
    # discloses the model: the server may predict with it
    return fl.FinalResult(info, clients.reveal(server.w))
