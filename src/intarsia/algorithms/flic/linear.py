"""FLIC where all is linear and Gaussian: the embedding in closed form, then FedRep.

Rakotomamonjy, Vono, Medina Ruiz and Ralaivola, "Personalised Federated Learning On Heterogeneous
Feature Spaces", Transactions on Machine Learning Research 2024, Algorithm S3. Client i has samples
x of N(m_i, Σ_i) in a space of its own, and numbers y = (A*β*_i)ᵀφ*_i(x) with an embedding φ*_i that
takes x to N(0, I_k), and a representation A*, (k, d) with orthonormal columns, that is common to
all. With Σ_i = PDPᵀ, eigenvalues in decreasing order,

    φ̂_i(x) = D_k^-½ (Pᵀ(x - m_i))_1..k

and only A and the β_i remain to be learned. Before the first round, A(0) is what the d largest
eigenvectors of 1/b Σ_i 1/n_i Σ_j y_j² φ̂_i(x_j) φ̂_i(x_j)ᵀ span. A round, at the clients that are
there:

1. β_i = argmin Σ_j (y_j - β_iᵀAᵀφ̂_i(x_j))²
2. A_i = A - η ∇_A 1/(2n_i) Σ_j (y_j - β_iᵀAᵀφ̂_i(x_j))²
3. the server averages the A_i; who opens the average makes its columns orthonormal (QR)

Theorem 1: the distance of A(t), the sine of the largest principal angle, to QA* falls as
(1 - ηE₀σ²/2)^(t/2), where Q is a diagonal matrix of ±1, E₀ = 1 - dist²(A(0), QA*), η ≤ 1/(4σ_max²),
and σ², σ_max² are the least and the largest eigenvalue of the average of the β*_i β*_iᵀ.

Departures from the paper
- Algorithm S3 descends the sum of squares over a client's samples; the bound on η is that of half
  their mean, which is descended here. Theorem S3 calls the whole factor κ and takes 1 - κ of it:
  the rate is that of the factor itself, as in Collins et al., ICML 2021.
- An eigenvector's sign is free, and Q must be one for all clients: here the entry of the largest
  modulus is positive. Where clients' true embeddings do not share such a rule, no common A exists.
- m_i and Σ_i are those of the client's own samples.
- Labels have a mean: each client takes its own mean label off them, and adds it to what it
  predicts. Embedded samples have mean 0, so that no other constant fits better.
- The server reads neither the sums nor A: clients that open them decompose them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from intarsia import core as fl
from intarsia.algorithms.networks.training_rows import dense, is_labelled, labels_of
from intarsia.core.block import Array, Block, ClientId
from intarsia.core.schema import Schema
from intarsia.core.settings import Positive, check_ranges
from intarsia.errors import ExperimentError, FederationError, TableError, several


@dataclass(frozen=True, kw_only=True)
class FlicLinear:
    """Hyperparameters, with the paper's meaning."""

    loss: ClassVar[str] = "squared"  # that the scores are evaluated by

    latent: int  # k, at most the features of the client that has the fewest
    rank: int  # d, the columns of A
    step: Positive = 0.1  # η

    def __post_init__(self) -> None:
        if not 1 <= self.rank <= self.latent:
            raise ExperimentError(
                f"algorithm.rank is {self.rank} and algorithm.latent {self.latent}; the rank must "
                "be from 1 to the width of the latent space."
            )
        check_ranges(self)


@dataclass(frozen=True)
class Server:
    """The server's state."""

    options: FlicLinear
    average: Any = None  # sealed (k, d)
    rounds: int = 0


@dataclass(frozen=True)
class Client:
    """A client's state."""

    options: FlicLinear
    mean: Array  # (features,) m
    projection: Array  # (features, k) φ̂(x) = projectionᵀ(x - m)
    representation: Array  # (k, d) A
    head: Array  # (d,) β
    label: float = 0.0  # mean of its labels


@dataclass(frozen=True)
class Ask:
    """Ask for the client's part of the moment."""

    clients: int  # b, that are there


@fl.describe("label-weighted second moments of embedded rows")
class Moment:
    """A client's part of the moment that A starts from, or the total."""

    moment: Array  # (k, k)


@dataclass(frozen=True)
class Decompose:
    """The moment; one client decomposes it for all."""

    moment: Array | None  # (k, k) None: another does


@fl.describe("model parameters or their changes")
class Average:
    """The average of the A_i, or one client's part of it."""

    average: Array | None  # (k, d)


@fl.describe("counts and summed losses of training rows")
class Errors:
    """A client's part of the mean squared error."""

    at: Array  # (2,) Σ (y - ŷ)²/2, labelled samples


def init_client(options: FlicLinear, schema: Schema, client: ClientId, block: Block) -> Client:
    """Return a client's state: its embedding from its own samples' mean and covariance.

    Raises
    ------
    TableError
        If a value is missing, or the samples span fewer dimensions than the latent space has.
    """
    x, y = dense(block), labels_of(block)
    mean = x.mean(0)
    values, vectors = np.linalg.eigh(np.cov(x.T, ddof=0).reshape(x.shape[1], x.shape[1]))
    values, vectors = values[::-1][: options.latent], vectors[:, ::-1][:, : options.latent]
    if not values[-1] > 1e-12 * values[0]:
        raise TableError(
            f"The samples of client {client!r} vary in fewer than {options.latent} directions; "
            "lower algorithm.latent."
        )
    largest = vectors[np.abs(vectors).argmax(0), np.arange(options.latent)]
    return Client(
        options=options,
        mean=mean,
        projection=vectors * np.sign(largest) / np.sqrt(values),
        representation=np.eye(options.latent, options.rank),
        head=np.zeros(options.rank),
        label=float(y.mean()) if len(y) else 0.0,
    )


@fl.told_the_same
@fl.client_function
def part_of_moment(client: Client, block: Block, message: Ask) -> tuple[Client, Moment]:
    """Send the embedded samples' second moment, weighted by the squares of their labels."""
    z, y = _embedded(client, block)
    return client, Moment(1 / message.clients * (z.T * y**2) @ z / len(y))


@fl.client_function
def decompose(client: Client, block: Block, message: Decompose) -> tuple[Client, Average]:
    """Send the d largest eigenvectors of the moment, which A starts from."""
    if message.moment is None:
        return client, Average(None)
    _, vectors = np.linalg.eigh(message.moment)
    return client, Average(vectors[:, ::-1][:, : client.options.rank].copy())


decompose = fl.one_sender(decompose, "average")


@fl.told_the_same
@fl.client_function
def descend(client: Client, block: Block, message: Average) -> tuple[Client, Average]:
    """Fit β, then take the step on A; send what it comes to."""
    client, z, error = _fit(client, block, message)
    slope = np.outer(error @ z, client.head) / len(z)
    return client, Average(client.representation - client.options.step * slope)


@fl.told_the_same
@fl.client_function
def part_of_errors(client: Client, block: Block, message: Average) -> tuple[Client, Errors]:
    """Keep A and the β that fits it; send this client's part of the error."""
    client, _, error = _fit(client, block, message)
    return client, Errors(np.array([0.5 * float(error @ error), float(len(error))]))


def _fit(client: Client, block: Block, message: Average) -> tuple[Client, Array, Array]:
    """Return the client with A from the average, and the β that fits it; samples and errors."""
    assert message.average is not None
    representation, triangle = np.linalg.qr(message.average)
    representation = representation * np.where(np.diag(triangle) < 0, -1.0, 1.0)
    z, y = _embedded(client, block)
    head = np.linalg.lstsq(z @ representation, y, rcond=None)[0]
    error: Array = z @ representation @ head - y
    return fl.evolve(client, representation=representation, head=head), z, error


def _embedded(client: Client, block: Block) -> tuple[Array, Array]:
    """Return the embedded labelled samples, (samples, k), and their labels less the mean."""
    x, y = dense(block)[is_labelled(block)], labels_of(block)
    return (x - client.mean) @ client.projection, y - client.label


def predict(client: Client, block: Block) -> Array:
    """Return the model's numbers for a block's samples, (1, samples)."""
    z = (dense(block) - client.mean) @ client.projection
    found: Array = (client.label + z @ client.representation @ client.head)[None, :]
    return found


def own_weights(client: Client) -> tuple[Array, float]:
    """Return the weights of a client's features, (features,), and the intercept."""
    weights: Array = client.projection @ client.representation @ client.head
    return weights, client.label - float(client.mean @ weights)


def init_server(options: FlicLinear, schema: Schema) -> Server:
    """Return the server's state before the set-up.

    Raises
    ------
    FederationError
        If a client has no labels or fewer features than the latent space.
    """
    for name, held in schema.holdings.items():
        if len(held.features) < options.latent or not held.labelled.any():
            raise FederationError(
                f"Client {name!r} has {several(len(held.features), 'feature')} and "
                f"{several(int(held.labelled.sum()), 'label')}; it needs {options.latent} features "
                "(algorithm.latent) and labels: lower the one, or leave the client out."
            )
    return Server(options)


def setup(server: Server, clients: fl.Clients) -> Server:
    """Start from what the labels say of the representation."""
    total = clients.sum(part_of_moment, Ask(len(clients.ids)))
    messages = dict.fromkeys(clients.ids, Decompose(None))
    messages[next(iter(clients.ids))] = Decompose(total.moment)
    return fl.evolve(server, average=clients.sum(decompose, messages).average)


def round(server: Server, clients: fl.Clients) -> tuple[Server, fl.RoundMetrics]:
    """Let the clients that are there fit and descend; average what they come to."""
    # steps 1 and 2: fit, descend
    total = clients.sum(descend, Average(server.average))
    # step 3: average
    average = total.average * (1 / len(clients.ids))
    server = fl.evolve(server, average=average, rounds=server.rounds + 1)
    return server, fl.RoundMetrics(phase="averaging")


def certify(server: Server, clients: fl.Clients) -> tuple[Server, fl.RoundMetrics]:
    """Return half the mean squared error over all clients, each with the β that fits A."""
    parts = clients.sum(part_of_errors, Average(server.average))
    # discloses the squared error and the number of labelled samples
    total, count = clients.reveal(parts.at).tolist()
    return server, fl.RoundMetrics(loss=total / count, phase="averaging")


def conclude(server: Server, clients: fl.Clients, rng: fl.RandomKey) -> fl.FinalResult:
    """Let every client fit its β to the last A; the models stay at the clients."""
    _, info = certify(server, clients)
    return fl.FinalResult(info)


FLIC_LINEAR = fl.Algorithm(
    name="flic-linear",
    hyperparameters=FlicLinear,
    init_server=init_server,
    init_client=init_client,
    setup=setup,
    round=round,
    certify=certify,
    conclude=conclude,
    absences=True,
    states=(Server, Client, FlicLinear),
    model=fl.Model(
        predict=predict,
        kind="client_linear",
        tasks=("regression",),
        own_feature_space=True,
        own_weights=own_weights,
    ),
    disclosure=fl.Disclosure(
        sends=fl.opening(
            {"Average.average": ("Average.average",), "Decompose.moment": "Moment.moment"},
            (
                *fl.each(fl.sums(part_of_moment, pooled=lambda options: True), present="clients"),
                *fl.sums(decompose, descend, pooled=lambda options: True),
                *fl.each(fl.sums(part_of_errors, reveals=("at",)), each_round=1),
            ),
        )
    ),
)
