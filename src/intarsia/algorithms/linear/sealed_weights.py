"""Weights that the server holds sealed: how a baseline's model starts.

The server adds up changes of the weights without reading them. `setup` makes the zeros that it
adds to; what opens the sum when training is over is every linear model's (`fl.Algorithm`). The
states of server and clients have them as `w`; a client's are those that it saw last.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from intarsia import core as fl
from intarsia.core.block import Block


@dataclass(frozen=True)
class Start:
    """Ask for the zeros that the total starts from."""


@fl.describe("model weights or their changes")
class Weights:
    """The model."""

    w: fl.PerFeature


@fl.client_function
def send_zeros(client: Any, block: Block, message: Start) -> tuple[Any, Weights]:
    """Send the zeros that the total starts from."""
    return client, Weights(np.zeros_like(client.w))


def setup(server: Any, clients: fl.Clients) -> Any:
    """Start from weights of zero."""
    zeros = clients.sum(send_zeros, Start())
    return fl.evolve(server, w=zeros.w)
