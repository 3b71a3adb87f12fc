"""Federated ridge regression by conjugate gradients, on tables that overlap in part.

    P(w) = λ/2 ‖w‖² + 1/2N Σ_i (x_iᵀw - y_i)²,  so that A w = b with A = XᵀX/N + λ and b = Xᵀy/N

One round is one step of conjugate gradients (Hestenes and Stiefel, 1952), of which A p is all that
clients compute. They send their parts of z = X p, which the server adds up without reading them:
owners of a row open its entry of the total. They send their parts of Xᵀz, of which it reads the
sum. The labels are one more column, so that the same two steps give b and the gradient of P.
"""

from dataclasses import dataclass, replace

import numpy as np

import intarsia.core as fl


@dataclass(frozen=True, kw_only=True)
class Ridge:
    """Hyperparameters."""

    loss: str = "squared"  # by which models are evaluated
    regularisation: fl.Positive = 1e-3  # λ


@dataclass(frozen=True)
class Server:
    """The server's state; vectors are (features,), in the schema's order."""

    options: Ridge
    w: fl.Array
    p: fl.Array  # the direction of the next step
    r: fl.Array  # b - A w


@fl.describe("sums over all rows, for each feature and for the labels")
class Vector:
    """An entry for each feature, and one for the column of labels."""

    v: fl.PerFeature
    labels: float


@fl.describe("each row's label, or its score by a direction or the model, or their difference")
class Scores:
    """A client's part of z, or the total."""

    z: fl.PerSample


@fl.client_function
def score(own: fl.LinearClient, block: fl.Block, told: Vector) -> tuple[fl.LinearClient, Scores]:
    """Keep the vector; send this client's part of z = X v + labels · y."""
    return replace(own, w=told.v), Scores(block.x @ told.v + told.labels * own.labels)


@fl.client_function
def slope(own: fl.LinearClient, block: fl.Block, told: Scores) -> tuple[fl.LinearClient, Vector]:
    """Send this client's part of Xᵀz and yᵀz."""
    return own, Vector(block.x.T @ told.z, own.labels @ told.z)


def multiply(options: Ridge, clients: fl.Clients, v: fl.Array, labels: float) -> Vector:
    """Return A v + labels · b, and yᵀz/N of z = X v + labels · y."""
    sealed = clients.sum(score, Vector(v, labels))
    total = clients.sum(slope, Scores(sealed.z))
    # discloses a sum over all rows for each feature and the labels, and never one of a row
    found, samples = clients.reveal(total), len(clients.schema().samples)
    return Vector(found.v / samples + options.regularisation * v, found.labels / samples)


def setup(options: Ridge, clients: fl.Clients) -> Server:
    """Begin at w = 0, where b is the direction of steepest descent."""
    zero = np.zeros(len(clients.schema().features))
    b = multiply(options, clients, zero, labels=1.0).v
    return Server(options, w=zero, p=b, r=b)


def round(server: Server, clients: fl.Clients) -> tuple[Server, fl.RoundMetrics]:
    """Take a step of conjugate gradients."""
    p = server.p
    q = multiply(server.options, clients, p, labels=0.0).v  # A p
    step = server.r @ p / (p @ q)
    w, r = server.w + step * p, server.r - step * q
    done = bool(np.linalg.norm(step * p) <= 1e-12 * np.linalg.norm(w))
    return replace(server, w=w, r=r, p=r - (r @ q) / (p @ q) * p), fl.RoundMetrics(finished=done)


def certify(server: Server, clients: fl.Clients) -> tuple[Server, fl.RoundMetrics]:
    """Let the clients have the model; bound its objective: P(w) - min P ≤ ‖∇P(w)‖²/2λ."""
    gradient = multiply(server.options, clients, server.w, labels=-1.0)
    primal = (server.w @ gradient.v - gradient.labels) / 2
    gap = gradient.v @ gradient.v / (2 * server.options.regularisation)
    return server, fl.RoundMetrics.certified(primal, primal - gap, "conjugate gradients")


SENDS = fl.opening(
    # the server has vectors in the clear; scores it forwards as they are
    {"Vector.v": (fl.PUBLIC,), "Scores.z": "Scores.z"},
    fl.sums(score) + fl.sums(slope, reveals=["v", "labels"]),
)
RIDGE = fl.Algorithm(
    name="ridge",
    hyperparameters=Ridge,
    setup=setup,
    round=round,
    certify=certify,
    model=fl.Model(additive=True, kind="linear", tasks=("binary", "regression")),
    disclosure=fl.Disclosure(sends=SENDS),
)
