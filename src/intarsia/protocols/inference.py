"""Score new samples whose columns are spread over clients, by a model that all clients know.

    linear:   z_i = b + Σ_j w_j x̄_j + Σ_p Σ_(j at p) w_j (x_ij - x̄_j) / n_ij
    network:  z_i = f(s Σ_p Σ_(block b at p) W_1b h_b(x_ib) / n_ib + s Σ_(b at nobody) W_1b h_b(0))

with n_ij the clients that hold value j of sample i. What nobody holds counts as its mean.

1. `count_values`, linear, where clients hold the same values: how many hold each. Sealed; only the
   sample's owners open it.
2. `add_part`: each client adds its part of the scores, or of the network's first layer.
3. The server reveals the total: of a sample of one client alone that is this client's part.
4. `say_alone`, where a client's own network is to say what others are absent for: its scores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from intarsia import core as fl
from intarsia.core.block import Array, Block, ClientId
from intarsia.core.memory import slices
from intarsia.core.schema import Schema
from intarsia.protocols.evaluation import holders_of

_function = partial(fl.client_function, protocol="inference")


@dataclass(frozen=True)
class Linear:
    """A client's part of a linear model, in the order of its block's features."""

    weights: Array  # (outputs, features)
    means: Array  # (features,)


@dataclass(frozen=True)
class Network:
    """A client's part of a network: what its blocks add to the first layer, by block."""

    part: Callable[[Block], Mapping[str, Array]]  # each (units, samples)
    units: int


@dataclass(frozen=True)
class Party:
    """What a client predicts with."""

    of_all: Linear | Network
    alone: Callable[[Block], Array] | None = None  # its own network, (outputs, samples)


@dataclass(frozen=True)
class CountValues:
    """Ask which of the features that several clients hold have a value."""

    columns: NDArray[np.int64]  # (shared features,) of the client's block, -1: not there


@fl.describe("marks of which values of each row are there")
class Counted:
    """Which values are there: 1, or 0."""

    values: fl.PerSample  # (shared features, samples)


@dataclass(frozen=True)
class Holders:
    """How many clients have each value, for the owners of the sample."""

    columns: NDArray[np.int64]
    values: fl.PerSample | None  # None: as the public index sets say


@fl.describe("each row's model score or terms of it")
class Part:
    """A client's part of the scores, or of the first layer."""

    z: fl.PerSample  # (outputs or units, samples)


@dataclass(frozen=True)
class SayAlone:
    """Ask for the scores of some samples by the client's own network."""

    rows: NDArray[np.int64]


@fl.describe("each row's model score")
class Said:
    """The scores of these samples."""

    z: Array  # (outputs, rows)


def lacking(schema: Schema, units: Mapping[str, Sequence[ClientId]]) -> dict[int, tuple[str, ...]]:
    """Return which units nobody holds of the samples of each cell; cells that lack none are out.

    `units` are the model's features, or its blocks, and who holds each.
    """
    found = {
        cell: tuple(name for name, holders in units.items() if owners.isdisjoint(holders))
        for cell, owners in enumerate(schema.samples.owner_sets)
    }
    return {cell: names for cell, names in found.items() if names}


def linear_scores(clients: fl.Clients, schema: Schema) -> Array:
    """Return Σ_p Σ_j w_j (x_ij - x̄_j) / n_ij of each sample, (outputs, samples)."""
    shared = [
        name
        for cell in schema.features.cells
        if len(cell.owners) > 1
        for name in schema.features.ids[cell.start : cell.stop]
    ]
    columns = {name: _columns(schema, name, shared) for name in clients.ids}
    values = None
    if shared and any(len(owners) > 1 for owners in schema.samples.owner_sets):
        asked = {name: CountValues(own) for name, own in columns.items()}
        values = clients.sum(count_values, asked).values
    return _revealed(clients, {name: Holders(own, values) for name, own in columns.items()})


def network_layer(clients: fl.Clients) -> Array:
    """Return Σ_p Σ_b W_1b h_b(x_ib) / n_ib of each sample, (units, samples)."""
    nothing = Holders(np.zeros(0, np.int64), None)
    return _revealed(clients, dict.fromkeys(clients.ids, nothing))


def _revealed(clients: fl.Clients, messages: Mapping[ClientId, Holders]) -> Array:
    # discloses the scores, which are asked for, or for networks what they are made of; where a
    # sample has one owner, this is the part of that owner
    total: Array = clients.reveal(clients.sum(add_part, messages)).z
    return total


def own_scores(
    clients: fl.Clients, rows: Mapping[ClientId, NDArray[np.int64]]
) -> Mapping[ClientId, Array]:
    """Return the scores of some of the clients' samples by their own networks.

    `rows` are positions in the client's own order, and not empty.
    """
    asked = {name: SayAlone(own) for name, own in rows.items()}
    # discloses what each client's own network says of samples whose scores are asked for
    return {name: said.z for name, said in clients.ask(say_alone, asked).items()}


def _columns(schema: Schema, client: ClientId, shared: Sequence[str]) -> NDArray[np.int64]:
    own = schema.features.ids[schema.features.own(client)]
    place = {name: column for column, name in enumerate(own)}
    return np.array([place.get(name, -1) for name in shared], np.int64)


@_function
def count_values(
    state: Party, block: Block, message: CountValues, rng: fl.RandomKey
) -> tuple[Party, Counted]:
    """Say which values are there."""
    held = message.columns >= 0
    values = np.zeros((len(held), block.shape[0]))
    values[held] = block.observed(message.columns[held]).T
    return state, Counted(values)


@_function
def add_part(state: Party, block: Block, message: Holders, rng: fl.RandomKey) -> tuple[Party, Part]:
    """Give the client's part of the total, each value by its share."""
    if isinstance(state.of_all, Network):
        total = np.zeros((state.of_all.units, block.shape[0]))
        for name, term in state.of_all.part(block).items():
            total += term / holders_of(block, block.groups[name][0])
        return state, Part(total)
    weights, means = state.of_all.weights, state.of_all.means
    copies = block.copies
    if copies is not None and message.values is not None:
        held = message.columns >= 0
        places = np.full(block.shape[1], -1, np.intp)
        places[message.columns[held]] = np.arange(held.sum())
        # whole numbers, up to the rounding of encrypted sums
        observed = np.rint(message.values[held]).T
        copies = replace(copies, observed=observed, places=places)
    gaps = block.without_level()
    total = np.zeros((len(weights), block.shape[0]))
    for some in slices(block.shape[0], block.shape[0] * block.shape[1]):  # some rows are dense
        values = block.x[some].toarray() if block.sparse else block.x[some]
        x = np.where(np.isnan(values), 0.0, values - means)
        for levels, rows in gaps:
            x[np.ix_(rows[some], levels)] = 0.0
        if copies is not None:
            x = copies.take(some, None).divide(x)
        total[:, some] = weights @ x.T
    return state, Part(total)


@_function
def say_alone(
    state: Party, block: Block, message: SayAlone, rng: fl.RandomKey
) -> tuple[Party, Said]:
    """Give the scores of some samples by the client's own network."""
    assert state.alone is not None
    return state, Said(state.alone(block.take(message.rows)))


SENDS = (*fl.sums(count_values), *fl.sums(add_part, reveals=("z",)), *fl.asks(say_alone))
