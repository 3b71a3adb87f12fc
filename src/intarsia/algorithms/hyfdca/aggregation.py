"""Primal aggregation and secure inner products: Algorithms 4 and 2 of HyFDCA, duals → w → scores.

What a client counted last is a trial: the server takes a share of it (the step that its line search
finds, or all), and says so with the next message; `settled` is the client's side of that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from intarsia.algorithms.hyfdca.state import Client, InPhase, Server
from intarsia.core.algorithm import (
    Clients,
    PerFeature,
    PerSample,
    RandomKey,
    client_function,
    evolve,
)
from intarsia.core.block import Array, Block, ClientId, targets
from intarsia.maths.linear import losses
from intarsia.maths.linear.products import gather, scores

__all__ = [
    "FUNCTIONS",
    "aggregate",
    "catch_up",
    "count",
    "own_scores",
    "search",
    "settled",
]

# where the line search knows the conjugates
_STEPS = np.concatenate([[0.0], 2.0 ** np.arange(-10, 1)])


@dataclass(frozen=True)
class Duals:
    """Duals to count into the weights."""

    alpha: PerSample
    taken: float


@dataclass(frozen=True)
class Weights:
    """Weights to count into the scores."""

    w: PerFeature
    taken: float | None  # None: the duals of this trial were counted just before


@dataclass(frozen=True)
class PrimalChange:
    """What a client's part of w changed by; the conjugates on the way there."""

    w: PerFeature
    conjugates: Array  # (12,) Σ -l*(-α_i) from the old duals to the new


@dataclass(frozen=True)
class ScoreChange:
    """What a client's part of z changed by; scalars for the line search."""

    z: PerSample
    line: Array  # (2,) w·Δw and ‖Δw‖², each feature once


@dataclass(frozen=True)
class Change:
    """PrimalChange and ScoreChange in one, where no feature is shared."""

    w: PerFeature
    z: PerSample
    conjugates: Array
    line: Array


# ---- at the server


def own_scores(server: Server) -> bool:
    """Return whether each client has the scores of its samples from w: no inner products then."""
    options = server.options
    return server.horizontal and options.method == "ascent" and options.step == "fixed"


def catch_up(server: Server, clients: Clients) -> Server:
    """Let clients that were away count the duals they missed, then all the weights."""
    returning = [name for name in clients.ids if name not in server.present]
    w = server.w
    if returning:
        w = w + clients.sum(aggregate_primal, _duals(server, returning)).w
    if own_scores(server):
        return replace(server, w=w)
    stayed, back = Weights(w, server.taken), Weights(w, 1.0)
    messages = {name: stayed if name in server.present else back for name in clients.ids}
    change = clients.sum(inner_products, messages)
    known = {**server.earlier, **dict.fromkeys(server.present, server.taken)}
    away = {name: taken for name, taken in known.items() if name not in messages}
    return replace(server, w=w, z=server.z + change.z, taken=1.0, earlier=away)


def _duals(server: Server, names: Sequence[ClientId]) -> dict[ClientId, Duals]:
    """Return the duals for some clients, each with what was taken of its own last trial."""
    taken = {
        name: server.taken if name in server.present else server.earlier.get(name, 1.0)
        for name in names
    }
    messages = {one: Duals(alpha=server.alpha, taken=one) for one in set(taken.values())}
    return {name: messages[one] for name, one in taken.items()}


def aggregate(server: Server, clients: Clients) -> Server:
    """Bring w up to the duals, at the clients that are there."""
    change = clients.sum(aggregate_primal, _duals(server, clients.ids))
    return replace(server, w=server.w + change.w)


def count(server: Server, clients: Clients) -> Server:
    """Bring w and z up to the duals, at the clients that are there."""
    if server.vertical and len(server.present) == server.clients:
        both = clients.sum(aggregate_and_multiply, _duals(server, clients.ids))
        return replace(server, w=server.w + both.w, z=server.z + both.z)
    server = aggregate(server, clients)
    if own_scores(server):
        return server
    products = clients.sum(inner_products, dict.fromkeys(clients.ids, Weights(server.w, None)))
    return replace(server, z=server.z + products.z)


def search(server: Server, clients: Clients, alpha: Any) -> Server:
    """Move to the best point between the old duals and `alpha`."""
    trial = Duals(alpha=alpha, taken=server.taken)
    if server.vertical:
        change = clients.sum(aggregate_and_multiply, dict.fromkeys(clients.ids, trial))
        primal = products = change
    else:
        primal = clients.sum(aggregate_primal, dict.fromkeys(clients.ids, trial))
        weights = Weights(server.w + primal.w, None)
        products = clients.sum(inner_products, dict.fromkeys(clients.ids, weights))
    # discloses the dual's data term at twelve points of the line, w·Δw and ‖Δw‖²
    step = _best_step(
        server, clients.reveal(primal.conjugates), *clients.reveal(products.line).tolist()
    )
    return replace(
        server,
        alpha=server.alpha + (alpha - server.alpha) * step,
        w=server.w + primal.w * step,
        z=server.z + products.z * step,
        taken=step,
    )


def _best_step(server: Server, conjugates: Array, cross: float, square: float) -> float:
    """Return the step in [0, 1] that maximises D along the line.

    The data term is a quadratic of the step for all losses but the logistic, where the best of
    twelve points is taken.
    """
    weight = server.options.regularisation
    dual = conjugates / server.samples - weight * (_STEPS * cross + 0.5 * _STEPS**2 * square)
    if server.options.loss == "logistic":
        return float(_STEPS[int(np.argmax(dual))])
    start, middle, end = dual[0], dual[-2], dual[-1]
    curvature = 4 * (start - 2 * middle + end)  # second derivative
    slope = 4 * middle - 3 * start - end
    if curvature >= 0:
        return 1.0 if end > start else 0.0
    return float(np.clip(-slope / curvature, 0.0, 1.0))


# ---- at the clients


def settled(client: Client | InPhase, taken: float) -> Client:
    """Count what the server took of the last trial."""
    if isinstance(client, InPhase):
        zeros = np.zeros_like(client.w)
        before: Client = client.before
        return evolve(before, alpha=client.alpha, alpha_trial=client.alpha, w=zeros, w_trial=zeros)
    if client.alpha is client.alpha_trial and client.w is client.w_trial:
        return client
    alpha = client.alpha + taken * (client.alpha_trial - client.alpha)
    w = client.w + taken * (client.w_trial - client.w)
    return evolve(client, alpha=alpha, w=w, alpha_trial=alpha, w_trial=w)


@client_function
def aggregate_primal(
    client: Client, block: Block, message: Duals, rng: RandomKey
) -> tuple[Client, PrimalChange]:
    """Count the duals into this client's part of w (Algorithm 4)."""
    client = settled(client, message.taken)
    change = message.alpha - client.alpha
    w = gather(block.x, change) / (client.options.regularisation * client.samples)
    return evolve(client, alpha_trial=message.alpha), PrimalChange(
        w, _conjugates(client, block, change)
    )


def _conjugates(client: Client, block: Block, change: Array) -> Array:
    loss, held = losses.loss_code(client.options.loss), client.label_share > 0
    y = targets(block, len(change))[:, held]
    share, start, move = client.label_share[held], client.alpha[:, held], change[:, held]
    return np.array(
        [
            float(
                (
                    losses.minus_conjugate(loss, start + step * move, y, slack=losses.EDGE) @ share
                ).sum()
            )
            for step in _STEPS
        ]
    )


@client_function
def inner_products(
    client: Client, block: Block, message: Weights, rng: RandomKey
) -> tuple[Client, ScoreChange]:
    """Count the weights into this client's part of the scores (Algorithm 2)."""
    if message.taken is not None:
        client = settled(client, message.taken)
    return _multiplied(client, block, message.w)


def _multiplied(client: Client, block: Block, w: Array) -> tuple[Client, ScoreChange]:
    change = w - client.w
    line = np.array(
        [
            float(((client.w * change) @ client.feature_share).sum()),
            float((change**2 @ client.feature_share).sum()),
        ]
    )
    return evolve(client, w_trial=w), ScoreChange(scores(block.x, change), line)


@client_function
def aggregate_and_multiply(
    client: Client, block: Block, message: Duals, rng: RandomKey
) -> tuple[Client, Change]:
    """Do both steps at once where this client alone holds its features."""
    client, primal = aggregate_primal.call(client, block, message, rng)
    client, products = _multiplied(client, block, client.w + primal.w)
    return client, Change(primal.w, products.z, primal.conjugates, products.line)


FUNCTIONS = (aggregate_primal, inner_products, aggregate_and_multiply)
