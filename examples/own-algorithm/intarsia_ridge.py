"""Federated ridge regression by conjugate gradients, on tables that overlap in part.

    P(w) = λ/2 ‖w‖² + 1/2N Σ_i (x_iᵀw - y_i)²,  so that A w = b with A = XᵀX/N + λ and b = Xᵀy/N

One round is one step of conjugate gradients (Hestenes and Stiefel, 1952). The server chooses a
direction p. Clients send their parts of X p, which are added up sealed: owners of a row open its
entry. They send their parts of Xᵀ(X p)/N, of which the server reads the sum.
"""

from dataclasses import dataclass, replace

import numpy as np

from intarsia.core import algorithm as fl
from intarsia.core.block import Array, Block, ClientId
from intarsia.core.schema import Schema
from intarsia.core.settings import Positive, check_ranges
from intarsia.errors import FederationError


@dataclass(frozen=True, kw_only=True)
class Ridge:
    """Hyperparameters."""

    loss: str = "squared"  # by which the model is graded
    regularisation: Positive = 1e-3  # λ

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True)
class Server:
    """The server's state: vectors are (features,), in the schema's order."""

    options: Ridge
    samples: int  # N
    own: dict[ClientId, Array]  # the places of each client's features
    w: Array
    p: Array  # the direction of the next step
    r: Array  # b - A w
    b: Array
    square: float = 0.0  # ‖y‖²


@dataclass(frozen=True)
class Client:
    """A client's state, in the order of its block."""

    w: Array  # (features,) the model, as it was told last
    samples: int  # N
    label_share: Array  # (samples,) 1 / holders of the label, 0 without one
    row_share: Array  # (samples,) 1 / holders of the row


@dataclass(frozen=True)
class Direction:
    """A direction to multiply by, and the model so far: a client's own entries."""

    p: fl.PerFeature
    w: fl.PerFeature


@fl.describe("each row's label, or its score by a direction")
@dataclass(frozen=True)
class Scores:
    """A client's part of a number for each row, or the total."""

    z: fl.PerSample


@fl.describe("sums over rows, by feature or in all")
@dataclass(frozen=True)
class Slope:
    """A client's part of Xᵀz/N and of ‖z‖²."""

    g: fl.PerFeature
    square: Array  # (1,)


def init_server(options: Ridge, schema: Schema, rng: fl.RandomKey) -> Server:
    """Return the server's state before the set-up."""
    if schema.labels.outputs > 1:
        raise FederationError(
            f"The labels are {schema.labels.outputs} classes, and ridge predicts one number; use "
            '"hyfdca".'
        )
    zero = np.zeros(len(schema.features.ids))
    own = {name: schema.features.own(name) for name in schema.clients}
    return Server(options, len(schema.samples), own, zero, zero, zero, zero)


def init_client(
    options: Ridge, schema: Schema, client: ClientId, block: Block, rng: fl.RandomKey
) -> Client:
    """Return a client's state: what the public index says, and weights of zero."""
    rows = schema.samples.own(client)
    known = np.zeros(len(rows), bool) if block.y is None else ~np.isnan(block.y)
    label_share = known / np.maximum(schema.label_holders[rows], 1)
    zero = np.zeros(block.shape[1])
    return Client(zero, len(schema.samples), label_share, 1 / schema.samples.holders[rows])


@fl.client_function
def labels(client: Client, block: Block, message: fl.Ready, rng: fl.RandomKey) -> tuple[Client, Scores]:
    y = np.zeros(len(client.label_share)) if block.y is None else np.nan_to_num(block.y)
    return client, Scores(client.label_share * y)


@fl.client_function
def score(client: Client, block: Block, message: Direction, rng: fl.RandomKey) -> tuple[Client, Scores]:
    return replace(client, w=message.w), Scores(block.x @ message.p)


@fl.client_function
def slope(client: Client, block: Block, message: Scores, rng: fl.RandomKey) -> tuple[Client, Slope]:
    square = np.array([client.row_share @ message.z**2])
    return client, Slope(block.x.T @ message.z / client.samples, square)


def gather(clients: fl.Clients, z: fl.Sealed) -> Slope:
    # discloses Xᵀz/N and ‖z‖²: of all rows together, never of one
    return clients.reveal(clients.sum(slope, dict.fromkeys(clients.ids, Scores(z.z))))


def setup(server: Server, clients: fl.Clients, rng: fl.RandomKey) -> Server:
    """Begin at w = 0, where the direction of steepest descent is b."""
    found = gather(clients, clients.sum(labels, dict.fromkeys(clients.ids, fl.Ready())))
    return replace(server, p=found.g, r=found.g, b=found.g, square=float(found.square[0]))


def tell(server: Server, clients: fl.Clients) -> fl.Sealed:
    """Let all clients know the model; return their scores by the direction, sealed."""
    if len(clients.ids) < len(server.own):
        raise FederationError(
            f"{len(clients.ids)} of {len(server.own)} clients take part in a round, and ridge needs "
            "all; set experiment.participation = 1."
        )
    told = {name: Direction(server.p[at], server.w[at]) for name, at in server.own.items()}
    return clients.sum(score, told)


def round(server: Server, clients: fl.Clients, rng: fl.RandomKey) -> tuple[Server, fl.RoundMetrics]:
    """Take a step of conjugate gradients."""
    p = server.p
    q = gather(clients, tell(server, clients)).g + server.options.regularisation * p  # A p
    step = server.r @ p / (p @ q)
    w, r = server.w + step * p, server.r - step * q
    server = replace(server, w=w, r=r, p=r - (r @ q) / (p @ q) * p)
    return certify(server, clients, rng)


def certify(server: Server, clients: fl.Clients, rng: fl.RandomKey) -> tuple[Server, fl.RoundMetrics]:
    """Return P(w) and a bound of its optimum: P is λ-strongly convex with the gradient -r."""
    primal = server.square / server.samples / 2 - server.w @ (server.b + server.r) / 2
    dual = primal - server.r @ server.r / (2 * server.options.regularisation)
    done = server.r @ server.r <= 1e-24 * (server.b @ server.b)
    info = fl.RoundMetrics.certified(float(primal), float(dual), "conjugate gradients")
    return server, replace(info, finished=bool(done))


def conclude(server: Server, clients: fl.Clients, rng: fl.RandomKey) -> fl.FinalResult:
    """Let the clients have the final model, and return it."""
    tell(server, clients)
    return fl.FinalResult(certify(server, clients, rng)[1], server.w[None])


def predict(client: Client, block: Block) -> Array:
    """Return a client's part of the scores, (1, samples)."""
    return (block.x @ client.w)[None]


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
    disclosure=fl.Disclosure(
        sends=fl.opening(
            {"Direction.p": (fl.PUBLIC,), "Direction.w": (fl.PUBLIC,), "Scores.z": "Scores.z"},
            fl.sums(labels, score) + fl.sums(slope, reveals=("g", "square")),
        )
    ),
)
