"""Federated ridge regression by conjugate gradients, on tables that overlap in part.

    P(w) = λ/2 ‖w‖² + 1/2N Σ_i (x_iᵀw - y_i)²,  so that A w = b with A = XᵀX/N + λ and b = Xᵀy/N

One round is one step of conjugate gradients (Hestenes and Stiefel, 1952), of which A p is all that
clients compute. They send their parts of X p, which the server adds up without reading them: owners
of a row open its entry of the total. They send their parts of Xᵀ(X p), of which it reads the sum.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

import intarsia.core as fl


@dataclass(frozen=True, kw_only=True)
class Ridge:
    """Hyperparameters."""

    loss: str = "squared"  # by which models are graded
    regularisation: fl.Positive = 1e-3  # λ


@dataclass(frozen=True)
class Server:
    """The server's state; vectors are (features,), in the schema's order."""

    options: Ridge
    own: dict[fl.ClientId, NDArray[np.intp]]  # the places of each client's features
    samples: int  # N
    w: fl.Array
    p: fl.Array  # the direction of the next step
    r: fl.Array  # b - A w


@dataclass(frozen=True)
class Client:
    """A client's state, in the order of its block."""

    w: fl.Array  # (features,) what it was told last: in the end the model
    y: fl.Array  # (samples,) its part of the labels


@dataclass(frozen=True)
class Vector:
    """A client's own entries of a vector, and how often labels are added to the scores by it."""

    v: fl.PerFeature
    labels: float = 0.0


@fl.describe("each row's label, or its score by a direction or the model")
@dataclass(frozen=True)
class Scores:
    """A client's part of z, or the total."""

    z: fl.PerSample


@fl.describe("sums over all rows, for each feature")
@dataclass(frozen=True)
class Slope:
    """A client's part of Xᵀz."""

    g: fl.PerFeature


@fl.client_function
def score(own: Client, block: fl.Block, told: Vector, rng: fl.RandomKey) -> tuple[Client, Scores]:
    """Keep the vector; send this client's part of X v, or of the labels."""
    return replace(own, w=told.v), Scores(block.x @ told.v + told.labels * own.y)


@fl.client_function
def slope(own: Client, block: fl.Block, told: Scores, rng: fl.RandomKey) -> tuple[Client, Slope]:
    """Send this client's part of Xᵀz."""
    return own, Slope(block.x.T @ told.z)


def init_server(options: Ridge, schema: fl.Schema, rng: fl.RandomKey) -> Server:
    """Return the server's state before the set-up."""
    fl.check_tasks(schema, "ridge", "binary", "regression")
    own = {name: schema.features.own(name) for name in schema.clients}
    zero = np.zeros(len(schema.features))
    return Server(options, own, len(schema.samples), zero, zero, zero)


def init_client(
    options: Ridge, schema: fl.Schema, client: fl.ClientId, block: fl.Block, rng: fl.RandomKey
) -> Client:
    """Return a client's state."""
    return Client(np.zeros(block.shape[1]), schema.part_of_labels(client, block))


def scores(server: Server, clients: fl.Clients, v: fl.Array, labels: float = 0.0) -> Scores:
    """Return the sealed scores of all rows by a vector."""
    fl.check_everyone(clients, server.own, "ridge")
    return clients.sum(score, {name: Vector(v[at], labels) for name, at in server.own.items()})


def slopes(server: Server, clients: fl.Clients, sealed: Scores) -> fl.Array:
    """Return Xᵀz/N of sealed scores z."""
    total = clients.sum(slope, dict.fromkeys(clients.ids, Scores(sealed.z)))
    # discloses a sum over all rows for each feature, and never one of a row
    return clients.reveal(total).g / server.samples


def setup(server: Server, clients: fl.Clients, rng: fl.RandomKey) -> Server:
    """Begin at w = 0, where b is the direction of steepest descent."""
    b = slopes(server, clients, scores(server, clients, server.w, labels=1.0))
    return replace(server, p=b, r=b)


def round(server: Server, clients: fl.Clients, rng: fl.RandomKey) -> tuple[Server, fl.RoundMetrics]:
    """Take a step of conjugate gradients."""
    p, λ = server.p, server.options.regularisation
    q = slopes(server, clients, scores(server, clients, p)) + λ * p  # A p
    step = server.r @ p / (p @ q)
    w, r = server.w + step * p, server.r - step * q
    done = bool(np.linalg.norm(step * p) <= 1e-12 * np.linalg.norm(w))
    return replace(server, w=w, r=r, p=r - (r @ q) / (p @ q) * p), fl.RoundMetrics(finished=done)


def conclude(server: Server, clients: fl.Clients, rng: fl.RandomKey) -> fl.FinalResult:
    """Let the clients have the model, and return it."""
    scores(server, clients, server.w)
    return fl.FinalResult(fl.RoundMetrics(), server.w[None])


def predict(client: Client, block: fl.Block) -> fl.Array:
    """Return a client's part of the scores, (1, samples)."""
    return np.atleast_2d(block.x @ client.w)


RIDGE = fl.Algorithm(
    name="ridge",
    hyperparameters=Ridge,
    init_server=init_server,
    init_client=init_client,
    setup=setup,
    round=round,
    conclude=conclude,
    model=fl.Model(predict=predict, additive=True, kind="linear"),
    disclosure=fl.Disclosure(
        sends=fl.opening(
            # the server has vectors in the clear; scores it forwards as they are
            {"Vector.v": (fl.PUBLIC,), "Scores.z": "Scores.z"},
            fl.sums(score) + fl.sums(slope, reveals=["g"]),
        )
    ),
)
