"""Federated ridge regression by conjugate gradients, on tables that overlap in part.

    P(w) = λ/2 ‖w‖² + 1/2N Σ_i (x_iᵀw - y_i)²,  so that A w = b with A = XᵀX/N + λ and b = Xᵀy/N

One round is one step of conjugate gradients (Hestenes and Stiefel, 1952), of which A p is all that
clients compute. They send their parts of X p, which the server adds up without reading them: owners
of a row open its entry of the total. They send their parts of Xᵀ(X p)/N, of which it reads the sum.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

import intarsia.core as fl
from intarsia import FederationError


@dataclass(frozen=True, kw_only=True)
class Ridge:
    """Hyperparameters."""

    loss: str = "squared"  # by which models are graded
    regularisation: fl.Positive = 1e-3  # λ

    def __post_init__(self) -> None:
        fl.check_ranges(self)


@dataclass(frozen=True)
class Server:
    """The server's state; vectors are (features,), in the schema's order."""

    options: Ridge
    own: dict[fl.ClientId, NDArray[np.intp]]  # the places of each client's features
    w: fl.Array
    p: fl.Array  # the direction of the next step
    r: fl.Array  # b - A w
    b: fl.Array
    start: float = 0.0  # P(0)


@dataclass(frozen=True)
class Client:
    """A client's state, in the order of its block."""

    w: fl.Array  # (features,) what it was told last: in the end the model
    samples: int  # N
    row_share: fl.Array  # (samples,) 1 / holders of the row
    label_share: fl.Array  # (samples,) 1 / holders of its label, 0 without one


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


@fl.describe("sums over all rows, for each feature or in one number")
@dataclass(frozen=True)
class Slope:
    """A client's part of Xᵀz/N and of ‖z‖²/2N."""

    g: fl.PerFeature
    square: fl.Array  # (1,)


@fl.client_function
def score(
    client: Client, block: fl.Block, message: Vector, rng: fl.RandomKey
) -> tuple[Client, Scores]:
    """Keep the vector; send this client's part of X v, or of the labels."""
    y = 0.0 if block.y is None else np.nan_to_num(block.y)
    z = block.x @ message.v + message.labels * client.label_share * y
    return replace(client, w=message.v), Scores(z)


@fl.client_function
def slope(
    client: Client, block: fl.Block, message: Scores, rng: fl.RandomKey
) -> tuple[Client, Slope]:
    """Send this client's part of Xᵀz/N and ‖z‖²/2N."""
    square = np.array([client.row_share @ message.z**2 / (2 * client.samples)])
    return client, Slope(block.x.T @ message.z / client.samples, square)


def init_server(options: Ridge, schema: fl.Schema, rng: fl.RandomKey) -> Server:
    """Return the server's state before the set-up."""
    if schema.labels.outputs > 1:
        raise FederationError(
            f"The labels are {schema.labels.outputs} classes, and ridge predicts one number; use "
            '"hyfdca".'
        )
    own = {name: schema.features.own(name) for name in schema.clients}
    zero = np.zeros(len(schema.features.ids))
    return Server(options, own, zero, zero, zero, zero)


def init_client(
    options: Ridge, schema: fl.Schema, client: fl.ClientId, block: fl.Block, rng: fl.RandomKey
) -> Client:
    """Return a client's state, from what is public and from which labels it has."""
    rows = schema.samples.own(client)
    known = np.zeros(len(rows)) if block.y is None else 1.0 - np.isnan(block.y)
    label_share = known / np.maximum(schema.label_holders[rows], 1)
    row_share = 1 / schema.samples.holders[rows]
    return Client(np.zeros(block.shape[1]), len(schema.samples), row_share, label_share)


def scores(server: Server, clients: fl.Clients, v: fl.Array, labels: float = 0.0) -> Scores:
    """Return the sealed scores of all rows by a vector."""
    if len(clients.ids) < len(server.own):
        raise FederationError(
            f"{len(clients.ids)} of {len(server.own)} clients take part in a round, and ridge "
            "needs all; set experiment.participation = 1."
        )
    told = {name: Vector(v[at], labels) for name, at in server.own.items()}
    sealed: Scores = clients.sum(score, told)
    return sealed


def slopes(clients: fl.Clients, sealed: Scores) -> Slope:
    """Return Xᵀz/N and ‖z‖²/2N of sealed scores z."""
    # discloses both, which are of all rows together and never of one
    found: Slope = clients.reveal(clients.sum(slope, dict.fromkeys(clients.ids, Scores(sealed.z))))
    return found


def setup(server: Server, clients: fl.Clients, rng: fl.RandomKey) -> Server:
    """Begin at w = 0, where b is the direction of steepest descent."""
    found = slopes(clients, scores(server, clients, server.w, labels=1.0))
    return replace(server, p=found.g, r=found.g, b=found.g, start=float(found.square[0]))


def round(server: Server, clients: fl.Clients, rng: fl.RandomKey) -> tuple[Server, fl.RoundMetrics]:
    """Take a step of conjugate gradients."""
    p = server.p
    q = slopes(clients, scores(server, clients, p)).g + server.options.regularisation * p  # A p
    step = server.r @ p / (p @ q)
    r = server.r - step * q
    server = replace(server, w=server.w + step * p, r=r, p=r - (r @ q) / (p @ q) * p)
    return certify(server, clients, rng)


def certify(
    server: Server, clients: fl.Clients, rng: fl.RandomKey
) -> tuple[Server, fl.RoundMetrics]:
    """Return P(w), and a bound below its optimum: P is λ-strongly convex and has the slope -r."""
    primal = float(server.start - server.w @ (server.b + server.r) / 2)
    dual = primal - float(server.r @ server.r) / (2 * server.options.regularisation)
    done = bool(server.r @ server.r <= 1e-24 * (server.b @ server.b))
    info = fl.RoundMetrics.certified(primal, dual, "conjugate gradients")
    return server, replace(info, finished=done)


def conclude(server: Server, clients: fl.Clients, rng: fl.RandomKey) -> fl.FinalResult:
    """Let the clients have the model, and return it."""
    scores(server, clients, server.w)
    return fl.FinalResult(certify(server, clients, rng)[1], server.w[None])


def predict(client: Client, block: fl.Block) -> fl.Array:
    """Return a client's part of the scores, (1, samples)."""
    return np.atleast_2d(block.x @ client.w)


DISCLOSURE = fl.Disclosure(
    sends=fl.opening(
        # the server has vectors in the clear; scores it forwards as they are
        {"Vector.v": (fl.PUBLIC,), "Scores.z": "Scores.z"},
        fl.sums(score) + fl.sums(slope, reveals=("g", "square")),
    )
)
RIDGE = fl.Algorithm(
    name="ridge",
    hyperparameters=Ridge,
    init_server=init_server,
    init_client=init_client,
    setup=setup,
    round=round,
    certify=certify,
    conclude=conclude,
    states=(Server, Client, Ridge),
    model=fl.Model(predict=predict, additive=True, kind="linear"),
    disclosure=DISCLOSURE,
)
