"""pFedMe: a network of each client's own, from the Moreau envelope of its loss.

Dinh, Tran and Nguyen, "Personalized Federated Learning with Moreau Envelopes", NeurIPS 2020
(Algorithm 1). The clients' own networks are θ_i(w), and what all share is w:

    min_w 1/n Σ_i min_θ_i F_i(θ_i) + λ/2 ‖θ_i - w‖²

A round, at the clients that are there:

1. open w_i = w, and θ_i = w. `local_rounds` times: θ_i by `steps` steps on a batch of rows, on
   F_i(θ_i) + λ/2 ‖θ_i - w_i‖²; then w_i ← w_i - ηλ (w_i - θ_i). Send the change of w_i
2. the server steps to the average, w ← (1-β) w + β/n Σ_i w_i, which it never reads

A client's model is the last θ_i. As in the authors' code θ_i goes on from where it was within a
round. Until a client was there its θ_i is the w that the server drew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from intarsia.algorithms.networks import parameter_sharing as sharing
from intarsia.algorithms.networks.architecture import Arrays
from intarsia.algorithms.networks.client_network import changed, part_vector, training_of
from intarsia.algorithms.networks.options import NetworkOptions
from intarsia.algorithms.networks.parameter_sharing import (
    Change,
    Client,
    ClientTask,
    Server,
    Shared,
)
from intarsia.algorithms.networks.targets import plain_loss
from intarsia.algorithms.networks.training_rows import is_labelled
from intarsia.algorithms.personalised.ditto import conclude, part_of_own_loss
from intarsia.core.algorithm import (
    ClientCall,
    Clients,
    RandomKey,
    RoundMetrics,
    asks,
    evolve,
    sums,
    vectorised_function,
)
from intarsia.core.settings import Count, NotNegative, Positive
from intarsia.maths.training.local_training import LocalTraining


@dataclass(frozen=True, kw_only=True)
class PFedMe(NetworkOptions):
    """Hyperparameters, with the defaults of the paper's code for its digits."""

    pull: NotNegative = 15.0  # λ
    local_rounds: Count = 20  # R
    steps: Count = 5  # K, on one batch
    step_size: NotNegative = 0.005  # η, of w
    mixing: NotNegative = 1.0  # β
    rate: Positive = 0.05  # of the steps of θ
    optimiser: Literal["adam", "sgd"] = "sgd"
    batch: Count = 20


@lru_cache(maxsize=32)
def _training(options: PFedMe, outputs: int) -> LocalTraining:
    """Return how θ trains on one batch: each epoch is a step; kept, for compiled functions."""
    return training_of(
        options, outputs, plain_loss, ("*",), epochs=options.steps, proximal=options.pull
    )


def _on_batch(seat: ClientTask, number: int) -> ClientTask:
    """Return a client with the rows of one batch."""
    rows = np.flatnonzero(is_labelled(seat.block))
    draws = seat.rng.fold_in("batch", number).generator()
    chosen = np.sort(draws.permutation(rows)[: seat.client.options.batch])
    return seat._replace(block=seat.block.take(chosen), rng=seat.rng.fold_in(number))


@vectorised_function
def train_envelope(visits: Sequence[ClientCall[Shared]]) -> list[tuple[Client, Change]]:
    """Step with w towards own networks; send its change, and keep the own network."""
    options = visits[0][0].options
    # step 1: θ, then w, in turn
    before = sharing.opened(visits)
    common: list[Arrays] = [dict(seat.client.parameters) for seat in before]
    seats = before
    for number in range(options.local_rounds):
        batches = [_on_batch(seat, number) for seat in seats]
        training = _training(options, visits[0][0].outputs)
        found = sharing.trained(training, batches, "own", references=common)
        seats = [seat._replace(client=one.client) for seat, one in zip(seats, found, strict=True)]
        common = [
            _stepped(own, seat.client.parameters, options.step_size * options.pull)
            for own, seat in zip(common, seats, strict=True)
        ]
    parts = options.shared_parts
    return [
        (seat.client, Change(part_vector(changed(old.client.parameters, new), parts)))
        for seat, old, new in zip(seats, before, common, strict=True)
    ]


def _stepped(common: Arrays, own: Arrays, share: float) -> Arrays:
    return {name: values - share * (values - own[name]) for name, values in common.items()}


def round(server: Server, clients: Clients, rng: RandomKey) -> tuple[Server, RoundMetrics]:
    """Let the clients that are there step with w; step to the average."""
    server = evolve(server, rounds=server.rounds + 1)
    total = clients.sum(train_envelope, sharing.told(server, clients))
    # step 2: (1-β) w + β w̄ = w + β times the average of the changes
    share = server.options.mixing / len(clients.ids)
    return evolve(server, shared=server.shared + total.shared * share), RoundMetrics(
        phase="averaging"
    )


PFEDME = sharing.network_algorithm(
    "pfedme",
    PFedMe,
    round,
    sends=(
        *sums(sharing.send_start),
        *asks(sharing.take_start),
        *sums(train_envelope, pooled=sharing.shares),
    ),
    part_of_loss=part_of_own_loss,
    setup=sharing.started_alike,
    conclude=conclude,
)
