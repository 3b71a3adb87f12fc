"""FedAvg for hybrid data: local gradient descent, weights averaged where features overlap.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data",
AISTATS 2017, as Overman, Blum and Klabjan, AAAI 2024, carry it over to hybrid data for comparison.

    P(w) = λ/2 ‖w‖² + 1/N Σ_i l(x_iᵀw, y_i)

A client descends λ/2 ‖w_k‖² + 1/N_k Σ_i l(x_{k,i}ᵀw_k, y_i) on its own rows and its own columns,
as if there were no others; that is the baseline's flaw, not this implementation's. One round:

1. local descent: a client opens w of its features, takes `local_steps` steps of the rate
   a/(b + √t), t the number of the round, and sends the change of its weights, divided by the
   number of clients that are there, hold the feature and have labels
2. the server adds the total: the weights of a feature are averaged over these clients; those of
   a feature that nobody there holds stay

Who holds what is public, so the counts need no sum. The server never reads w before the end.

With client-level differential privacy (McMahan et al., "Learning Differentially Private Recurrent
Language Models", ICLR 2018) a client scales the change of its weights down to a norm of at most
`clip` and adds its share of the noise before it divides: the sum of the changes of a feature has
noise of the deviation that the accountant asks for, even less the share of any one client.

Scores of the model add up over the owners of a sample, so the algorithm is additive and its
blocks come with each value divided by its number of holders; local descent multiplies it back.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from intarsia import core as fl
from intarsia.algorithms.linear import sealed_weights
from intarsia.algorithms.linear.sealed_weights import Weights, send_zeros
from intarsia.core.block import INTERCEPT, Array, Block, ClientId, Copies, Values, targets
from intarsia.core.schema import Learners, Schema
from intarsia.core.settings import Between, Count, NotNegative, Penalty, Positive, check_ranges
from intarsia.errors import ConvergenceError, FederationError, listed
from intarsia.maths.linear import losses
from intarsia.maths.linear.products import scores
from intarsia.maths.linear.sgd import descend
from intarsia.protocols.differential_privacy import clip_change, draw_noise, noise_of


@dataclass(frozen=True, kw_only=True)
class FedAvg:
    """Hyperparameters, with the paper's meaning."""

    # hinge, squared_hinge, logistic; for numbers squared, huber, quantile, poisson, gamma
    loss: str = "hinge"
    huber_delta: Positive = 1.35  # δ of the Huber loss, in the unit of the labels
    quantile: Between = 0.5  # τ of the quantile loss
    regularisation: Penalty = 1e-3  # λ
    local_steps: Count = 100  # gradient steps that a client takes in a round
    batch: Count = 1  # samples per step
    a: Positive = 1.0  # numerator of the rate a/(b + √t)
    b: Annotated[NotNegative, "the rate is a/(b + √t)"] = 1.0  # delay of its decay

    def __post_init__(self) -> None:
        losses.loss_code(self.loss)
        check_ranges(self)


@dataclass(frozen=True)
class Server:
    """The server's state."""

    options: FedAvg
    samples: int  # N
    w: Any = None  # sealed (outputs, features)
    rounds: int = 0


@dataclass(frozen=True)
class Client:
    """A client's state, in the order of its aligned block."""

    options: FedAvg
    feature_cell: NDArray[np.intp]  # (features,)
    learners: tuple[Learners, ...]  # by cell, those that have labels
    feature_share: Array  # (features,) 1 / holders
    label_share: Array  # (samples,) 1 / holders of the label, 0 without one
    copies: Copies | None  # by what the values of its block were divided
    w: Array  # (outputs, features) the model as this client saw it last
    clip: float = math.inf  # largest norm of the change of its weights in a round
    noise: fl.Release | None = None  # of what this change is released with


@dataclass(frozen=True)
class Descend:
    """Weights to descend from."""

    w: fl.PerFeature
    number: int  # of the round, which says how long steps are
    present: tuple[ClientId, ...]


@fl.describe("model weights or their changes")
class Change:
    """A client's part of the change of the average."""

    w: fl.PerFeature


@fl.describe("each row's model score")
class Scores:
    """A client's part of the scores, or their total."""

    z: fl.PerLabelledScore


@fl.describe("terms of the training objective")
class Objective:
    """A client's part of the objective."""

    at: Array  # (2,) Σ l(z_i), ‖w‖²: each sample and each feature once


def init_client(
    options: FedAvg,
    schema: Schema,
    client: ClientId,
    block: Block,
    *,
    release: fl.Release | None = None,
) -> Client:
    """Return a client's state: what the public index sets say, and weights of zero."""
    losses.check_labels(losses.loss_code(options.loss), block.y, f"client {client!r}")
    features = schema.features
    held = np.zeros(block.shape[0], bool) if block.y is None else ~np.isnan(block.y)
    holders = schema.label_holders[schema.samples.own(client)]
    return Client(
        options=options,
        feature_cell=features.cell_of[features.own(client)],
        learners=schema.learners,
        feature_share=1 / features.holders[features.own(client)],
        label_share=held / np.maximum(holders, 1),
        copies=block.divided,
        w=np.zeros((schema.labels.outputs, block.shape[1])),
        clip=math.inf if release is None else release.clip,
        noise=release,
    )


@fl.told_the_same
@fl.client_function
def local_descent(
    client: Client, block: Block, message: Descend, rng: fl.RandomKey
) -> tuple[Client, Change]:
    """Take the steps of one round on this client's own rows and columns."""
    change = _descend(client, block, message, rng)
    return replace(client, w=message.w), Change(change / _counts(client, message))


@fl.told_the_same
@fl.noise_function
@fl.client_function
def noisy_descent(
    client: Client, block: Block, message: Descend, key: fl.NoiseKey
) -> tuple[Client, Change]:
    """Take the same steps; clip the change of the weights and add this client's noise.

    A client knows its own share: the others' alone must do, so that they split the variance.
    """
    noise = noise_of(client.noise)
    counts = _counts(client, message)
    change = clip_change(_descend(client, block, message, key.public), client.clip)
    if client.label_share.any():
        share = noise.deviation / np.sqrt(np.maximum(counts - 1, 1))
        change = change + share * draw_noise(noise, key, change.shape)
    return replace(client, w=message.w), Change(change / counts)


noisy_descent = replace(noisy_descent, stream=local_descent.name)


def _descend(client: Client, block: Block, message: Descend, rng: fl.RandomKey) -> Array:
    """Return the change of the weights in a round; without labels there is none."""
    options = client.options
    mine = np.flatnonzero(client.label_share > 0)
    if not len(mine):
        return np.zeros_like(message.w)
    w = descend(
        _restore_values(client, block),
        targets(block, len(message.w)),
        message.w,
        mine[_draw(rng, len(mine), options.local_steps * options.batch)],
        rate=options.a / (options.b + math.sqrt(message.number)),
        regularisation=options.regularisation,
        loss=losses.loss_code(options.loss),
        shape=losses.shape_of(options),
        batch=options.batch,
    )
    return w - message.w


def _counts(client: Client, message: Descend) -> NDArray[np.int64]:
    """Return how many clients that are there change the weight of each feature, at least one."""
    named = any(owners.names for owners in client.learners)
    # of very many, a set at each client takes longer than its training
    present = frozenset(message.present) if named else message.present
    cells = np.array([owners.among(present) for owners in client.learners])
    counts: NDArray[np.int64] = np.maximum(cells, 1)[client.feature_cell]
    return counts


def _restore_values(client: Client, block: Block) -> Values:
    """Return the values as this client holds them."""
    if client.copies is None:
        return block.x
    if not block.sparse:
        return block.x * client.copies.dense()
    x = block.x.copy()
    x.data *= client.copies.of_entries(x)
    return x


def _draw(rng: fl.RandomKey, rows: int, length: int) -> NDArray[np.int64]:
    """Return `length` row numbers, every row once before any comes again."""
    generator = rng.generator()
    passes = [generator.permutation(rows) for _ in range(math.ceil(length / rows))]
    return np.concatenate(passes)[:length]


@fl.told_the_same
@fl.client_function
def part_of_scores(client: Client, block: Block, message: Weights) -> tuple[Client, Scores]:
    """Keep the model; send this client's part of the scores."""
    return replace(client, w=message.w), Scores(scores(block.x, message.w))


@fl.told_the_same
@fl.client_function
def part_of_objective(client: Client, block: Block, message: Scores) -> tuple[Client, Objective]:
    """Send this client's part of the objective."""
    held = client.label_share > 0
    y = targets(block, len(message.z))[:, held]
    code, shape = losses.loss_code(client.options.loss), losses.shape_of(client.options)
    loss = losses.value(code, message.z[:, held], y, shape=shape)
    square = (client.w**2 @ client.feature_share).sum()
    return client, Objective(np.array([(loss @ client.label_share[held]).sum(), square]))


def init_server(options: FedAvg, schema: Schema) -> Server:
    """Return the server's state before the set-up.

    Raises
    ------
    FederationError
        If no client has both labels and features.
    """
    able = {name: held.features for name, held in schema.holdings.items() if held.labelled.any()}
    if not any(set(features) - {INTERCEPT} for features in able.values()):
        raise FederationError(
            f"No client with labels has a feature (labels: {listed(able)}), and fedavg learns the "
            "weights of a client's own columns from its own labels; give one of them columns, or "
            'use "hyfdca".'
        )
    return Server(options, len(schema.samples))


def round(
    server: Server,
    clients: fl.Clients,
    *,
    descent: fl.ClientFunction = local_descent,
) -> tuple[Server, fl.RoundMetrics]:
    """Let the clients that are there descend; average where their features overlap."""
    number = server.rounds + 1
    message = Descend(w=server.w, number=number, present=tuple(clients.ids))
    # step 1: local descent
    change = clients.sum(descent, message)
    # step 2: averaging
    return replace(server, w=server.w + change.w, rounds=number), fl.RoundMetrics(phase="averaging")


def certify(server: Server, clients: fl.Clients) -> tuple[Server, fl.RoundMetrics]:
    """Return the objective of the model over all clients; there is no dual to bound it from."""
    products = clients.sum(part_of_scores, Weights(server.w))
    parts = clients.sum(part_of_objective, Scores(products.z))
    # discloses the data loss and ‖w‖²
    loss, square = clients.reveal(parts.at).tolist()
    primal = loss / server.samples + 0.5 * server.options.regularisation * square
    if not math.isfinite(primal):
        raise ConvergenceError(
            f"The objective is {primal} after {server.rounds} rounds: the steps of local descent "
            "are too long. Lower algorithm.a, raise algorithm.b, standardise the features, or set "
            "intercept = true if it is a number."
        )
    return server, fl.RoundMetrics(primal=primal, loss=loss / server.samples, phase="averaging")


def private(release: fl.Release) -> fl.Algorithm:
    """Return FedAvg with clipped changes of the weights, and noise in them."""
    return replace(
        FEDAVG,
        init_client=partial(init_client, release=release),
        round=partial(round, descent=noisy_descent),
        disclosure=_disclosure(noisy_descent),
    )


def _disclosure(descent: fl.ClientFunction) -> fl.Disclosure:
    moved, start = (
        fl.each(fl.sums(one, reveals=("w",), opens=("w",)), model=("w",), trains=one is descent)
        for one in (descent, send_zeros)
    )
    return fl.Disclosure(
        sends=fl.opening(
            {
                **dict.fromkeys(["Descend.w", "Weights.w"], ("Change.w", "Weights.w")),
                "Scores.z": "Scores.z",
            },
            (
                *start,
                *fl.each(moved, present="present", number="number"),
                *fl.each(fl.sums(part_of_scores), renews=True),
                *fl.each(fl.sums(part_of_objective, reveals=("at",)), each_round=1),
            ),
        ),
        rows=lambda options: options.local_steps * options.batch,
        dp_unit="client",
    )


FEDAVG = fl.Algorithm(
    name="fedavg",
    hyperparameters=FedAvg,
    init_server=init_server,
    init_client=init_client,
    setup=sealed_weights.setup,
    round=round,
    certify=certify,
    absences=True,
    states=(Server, Client, FedAvg, Copies, Learners, fl.Release),
    model=fl.Model(additive=True, kind="linear"),
    disclosure=_disclosure(local_descent),
    private=private,
)
