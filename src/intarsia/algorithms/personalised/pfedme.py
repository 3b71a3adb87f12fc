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
from typing import Literal

import numpy as np

from intarsia import core as fl
from intarsia.algorithms.networks import parameter_sharing as sharing
from intarsia.algorithms.networks.architecture import Arrays, named_width
from intarsia.algorithms.networks.client_network import changed, part_vector, training_of
from intarsia.algorithms.networks.options import NetworkOptions, Weights
from intarsia.algorithms.networks.parameter_sharing import Change, Client, Server, Shared
from intarsia.algorithms.networks.targets import smoothed
from intarsia.algorithms.networks.training_rows import is_labelled
from intarsia.algorithms.personalised.ditto import conclude, part_of_own_loss
from intarsia.core.settings import Count, NotNegative, Positive


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
    weights: Weights = "clients"  # of clients in the average


def _on_batch(task: sharing.ClientTask, number: int) -> sharing.ClientTask:
    """Return a client with the rows of one batch."""
    rows = np.flatnonzero(is_labelled(task.block))
    draws = task.rng.fold_in("batch", number).generator()
    chosen = np.sort(draws.permutation(rows)[: task.client.options.batch])
    return task._replace(block=task.block.take(chosen), rng=task.rng.fold_in(number))


@fl.told_the_same
@fl.vectorised_function
def train_envelope(calls: Sequence[fl.ClientCall[Shared]]) -> list[tuple[Client, Change]]:
    """Step with w towards own networks; send its change, and keep the own network."""
    options = calls[0][0].options
    # each epoch is a step on one batch
    width = named_width(options.architecture, calls[0][1])
    known = {"epochs": options.steps, "proximal": options.pull, "features": width}
    loss = smoothed(options.label_smoothing)
    training = training_of(options, calls[0][0].outputs, loss, ("*",), **known)
    share = options.step_size * options.pull
    # step 1: θ, then w, in turn
    before = sharing.open_messages(calls)
    common: list[Arrays] = [dict(task.client.parameters) for task in before]
    tasks = before
    for number in range(options.local_rounds):
        batches = [_on_batch(task, number) for task in tasks]
        found = sharing.train(training, batches, "own", references=common)
        tasks = [task._replace(client=one.client) for task, one in zip(tasks, found, strict=True)]
        common = [
            {name: w - share * (w - one.client.parameters[name]) for name, w in own.items()}
            for own, one in zip(common, tasks, strict=True)
        ]
    parts = options.shared_parts
    return [
        (
            task.client,
            Change(task.client.weight * part_vector(changed(old.client.parameters, new), parts)),
        )
        for task, old, new in zip(tasks, before, common, strict=True)
    ]


def round(server: Server, clients: fl.Clients) -> tuple[Server, fl.RoundMetrics]:
    """Let the clients that are there step with w; step to the average."""
    server = fl.evolve(server, rounds=server.rounds + 1)
    total = clients.sum(train_envelope, sharing.broadcast(server, clients))
    # step 2: (1-β) w + β w̄ = w + β times the average of the changes
    share = server.options.mixing / sharing.weight_of_sum(server, clients)
    server = fl.evolve(server, shared=server.shared + total.shared * share)
    return server, fl.RoundMetrics(phase="averaging")


PFEDME = sharing.network_algorithm(
    "pfedme",
    PFedMe,
    training=train_envelope,
    sends=fl.asks(sharing.take_start),
    round=round,
    part_of_loss=part_of_own_loss,
    setup=sharing.start_alike,
    conclude=conclude,
)
