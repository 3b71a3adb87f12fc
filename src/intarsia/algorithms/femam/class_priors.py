"""Class priors: the level "shares" of `femam` moves a client's scores by its own class shares.

A client of which the classes are known that it mostly has errs less if told so. Its scores get

    w log(π_ik / p_k),   π_i = (ρ n_i + (1 - ρ) p) / (ρ Σ_k n_ik + 1 - ρ)

with n_i its rows of each class that models are trained on, and p the shares of all clients' rows:
log-odds move so where classes are commoner at a client than among those a model was trained on, and
nothing else differs (Saerens, Latinne and Decaestecker, Neural Computation 2002). π_i is the mean
of what is known of a client's shares, where those of clients scatter about p so that two rows of
one client correlate by ρ (Dirichlet; ρ by its moments, and 0 where clients differ by no more than
chance has it once in a hundred). Levels may know some of it already, so that the weight w
is the one of least loss on the rows for validation of all clients; at w = 0 the level is no change.

The round of such a level:

1. `count_rows`: the rows of each class over all clients, and so the shares
2. `compare_shares`: how much clients' own differ
3. `try_offsets`: how much of them the rows for validation of all clients bear out
4. `take_offset`: each client takes the bias that is its own
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from scipy.special import chdtri

from intarsia import core as fl
from intarsia.algorithms.femam import state
from intarsia.algorithms.femam.client import Client, combined, labelled, rows_told_of
from intarsia.algorithms.femam.validation import losses_with
from intarsia.core.block import Array, Block, ClientId
from intarsia.errors import CheckpointError
from intarsia.maths.shrinkage import CHANCE

WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0)


def counted(y: Array, outputs: int) -> Array:
    """Return how many rows a client has of each class, (outputs,), from their labels, (rows,)."""
    return np.bincount(np.maximum(y, 0.0).astype(np.intp), minlength=outputs).astype(np.float64)


def shares_of(rows: Array) -> Array:
    """Return the shares of the classes, (outputs,), from the sum of `counted`."""
    shares: Array = rows / max(float(rows.sum()), 1.0)
    return shares


def differences(rows: Array, shares: Array) -> Array:
    """Return a client's part of the sums that `correlation` takes, (4,).

    They are its rows, 1, and Σ_k n_ik² / n_i and Σ_k n_ik² / (n_i p_k), over all classes and
    rounded: from the exact sums, whose denominators n_i are known, each client's n_ik can be had.
    """
    number = float(rows.sum())
    if not number:
        return np.zeros(4)
    known = shares > 0
    squares = rows[known] ** 2 / number
    found = [number, 1.0, squares.sum(), (squares / shares[known]).sum()]
    return np.round(np.array(found))


def correlation(total: Array, shares: Array) -> float:
    """Return how two rows of one client correlate, from the sum of `differences`.

    Σ_k n_ik² / n_i is 1 + (n_i - 1) (S + ρ (1 - S)) in the mean, where S = Σ_k p_k². That clients
    do not differ is Pearson's χ² test of homogeneity.
    """
    number, holders, squares, weighed = (float(one) for one in total)
    freedom = (holders - 1) * (int((shares > 0).sum()) - 1)
    if freedom < 1 or number <= holders or weighed - number <= chdtri(freedom, CHANCE):
        return 0.0
    by_chance = float((shares**2).sum())
    alike = (squares - holders) / (number - holders)
    found = (alike - by_chance) / (1 - by_chance)
    # of a class that a client has none of it may have some, in as many rows as all have
    return min(max(found, 0.0), 1 - 1 / (number + 1))


def offsets(rows: Array, shares: Array, alike: float) -> Array:
    """Return what a client's scores get at w = 1, (outputs,); 0 for classes that nobody has.

    `rows` are the client's of each class, (outputs,), and `alike` is the `correlation`.
    """
    known = shares > 0
    own = alike * rows + (1 - alike) * shares
    found = np.zeros(len(shares))
    found[known] = np.log(own[known] / own.sum() / shares[known])
    return found


def losses_by_weight(scores: Array, moved: Array, y: Array) -> Array:
    """Return how many rows there are, and the sum of their losses with each weight of `offsets`.

    `scores` are (rows, outputs), `moved` (outputs,) and the labels `y` (rows,).
    """
    return losses_with([scores + weight * moved for weight in WEIGHTS], y)


def best_weight(total: Array) -> float:
    """Return the weight of the least loss, from the sum of `losses_by_weight`; 0 without rows."""
    return WEIGHTS[int(np.argmin(total[1:]))] if total[0] else 0.0


@fl.client_function
def count_rows(client: Client, block: Block, message: state.Ask) -> tuple[Client, state.Counted]:
    """Send how many rows of each class models are trained on, for a sum over clients."""
    return client, state.Counted(_rows(client, block))


@fl.told_the_same
@fl.client_function
def compare_shares(
    client: Client, block: Block, message: state.Common
) -> tuple[Client, state.Differences]:
    """Send how much the client's shares of the classes differ, for a sum over clients."""
    shares = shares_of(message.counts)
    return client, state.Differences(differences(_rows(client, block), shares))


@fl.told_the_same
@fl.client_function
def try_offsets(client: Client, block: Block, message: state.Prior) -> tuple[Client, state.Tried]:
    """Send the losses of the rows for validation with each weight of the client's shares.

    Where the server reads models, a client of fewer than five such rows sends zeros.
    """
    _, y = labelled(block)
    rows = rows_told_of(client)
    scores = combined(client, client.base[rows], client.count + 1)
    return client, state.Tried(losses_by_weight(scores, _offsets(client, block, message), y[rows]))


@fl.client_function
def take_offset(client: Client, block: Block, message: state.Weighed) -> tuple[Client, fl.Ready]:
    """Take for the latest level a network of which only the bias counts."""
    weight, bias = client.start["classifier.weight"], client.start["classifier.bias"]
    moved = message.weight * _offsets(client, block, message)
    moved /= combined(client, np.ones(1), client.count + 1)  # a mean of levels takes part of it
    own = {
        "classifier.weight": np.zeros_like(weight),
        "classifier.bias": moved.astype(bias.dtype).reshape(bias.shape),
    }
    return fl.evolve(client, latest={**client.start, **own}), fl.Ready()


def _rows(client: Client, block: Block) -> Array:
    """Return how many rows of each class the client's models are trained on, (outputs,)."""
    _, y = labelled(block)
    return counted(y[~client.held_out], client.outputs)


def _offsets(client: Client, block: Block, prior: state.Prior) -> Array:
    """Return what the client's scores get at a weight of 1, (outputs,)."""
    shares = shares_of(prior.counts)
    return offsets(_rows(client, block), shares, correlation(prior.compared, shares))


def with_offset(level: state.Level, clients: fl.Clients) -> state.Level:
    """Return the level of shares, which the clients that are there have found and taken."""

    def total_of(part: fl.ClientFunction, message: Any) -> Any:
        return clients.sum(part, message).at

    counts = total_of(count_rows, state.Ask())
    compared = total_of(compare_shares, state.Common(counts))
    prior = state.Prior(counts, compared)
    # discloses how many rows of each class all clients together train on
    shares = shares_of(clients.reveal(counts))
    # discloses how much clients' shares differ, in two whole numbers over all classes and clients
    alike = correlation(clients.reveal(compared), shares)
    # discloses the losses of all rows for validation with each weight
    weight = best_weight(clients.reveal(total_of(try_offsets, prior)))
    offset = state.Offset(shares, alike, weight, prior)
    tell_offset(offset, clients, clients.ids)
    return fl.evolve(level, rounds=level.rounds + 1, offset=offset)


def tell_offset(offset: state.Offset, clients: fl.Clients, asked: Iterable[ClientId]) -> None:
    """Let clients take the bias of a level of shares.

    CheckpointError if an earlier version found it, which told clients numbers of the server's.
    """
    if offset.prior is None:
        raise CheckpointError(
            "The run was begun by an earlier version, and its level of shares is not told to "
            "clients that come later; begin it again."
        )
    told = state.Weighed(offset.prior.counts, offset.prior.compared, offset.weight)
    clients.ask(take_offset, dict.fromkeys(asked, told))
