"""Let a new client join a finished run of hyfem: it takes the extractors of its blocks (Remark 2).

It takes the server's network as far as it has its blocks, those of which its table has every
column, on the federation's means and scales. With `epochs` it goes on from there on its own rows.
Beside it a network of the same blocks learns alone, for as many rounds as the federation had.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from intarsia.core.algorithm import FinalResult, RoundMetrics
from intarsia.core.block import Block, ClientId, Labels, held_levels
from intarsia.core.client_functions import RandomKey
from intarsia.engines.simulation import Simulation
from intarsia.errors import ExperimentError, FederationError, listed
from intarsia.experiment.federation import Federation
from intarsia.models.build import client_networks
from intarsia.protocols.evaluation import Evaluation
from intarsia.protocols.preprocessing.preparation import Preparation
from intarsia.training.loop import Part, evaluate_clients, simulate
from intarsia.training.outcome import Outcome

if TYPE_CHECKING:
    from intarsia.models.networks import ClientNetwork, Networks


def join_blocks(
    model: Networks, found: Federation, options: Any, seed: int, *, epochs: int, rounds: int
) -> tuple[Outcome, Networks]:
    """Give the one client of a federation the server's network of its blocks.

    It goes on for `epochs` on its own rows, and a network alone beside it has `rounds`; `options`
    are the run's hyperparameters. ExperimentError if the run left no network of the server;
    FederationError if the table has the columns of no block whole.
    """
    from intarsia.algorithms.hyfem import client as hyfem_client  # here: they import torch
    from intarsia.algorithms.hyfem import network as block_network

    server = model.server
    if server is None:
        raise ExperimentError(
            "The run left no network of the server, from which a new client takes its blocks; join "
            'a run with algorithm.shares = "all".'
        )
    [name] = found.train
    made_of = _composition_of(server, found.train[name], scaled=options.scaling)
    parts = {
        part: {name: _standardise(server, made_of, blocks[name])}
        for part, blocks in (("train", found.train), ("test", found.test))
        if len(blocks[name].samples)
    }
    block = parts["train"][name]
    kind = np.float64 if options.precision == "double" else np.float32
    drawn = block_network.drawn(made_of, kind, RandomKey((seed, name)))
    whole: Any = server.architecture
    given = block_network.parts_of(whole, block_network.numbered(whole, server.parameters))
    taken = block_network.assembled(made_of, given, drawn)
    classes = hyfem_client.held_classes(block, made_of.outputs)
    client = hyfem_client.Client(options, made_of, taken, classes)
    each = options.steps * options.batch
    goes_on = math.ceil(epochs * block.shape[0] / each)
    done, metrics = _train_alone(client, name, parts, model.labels, goes_on, seed)
    # alone it has no use for the width that a server grew for all
    own = replace(made_of, scale=1.0, hidden=tuple(options.hidden))
    first = block_network.drawn(own, kind, RandomKey((seed, name)))
    client = hyfem_client.Client(options, own, first, classes)
    _, alone = _train_alone(client, name, parts, model.labels, rounds, seed)
    schema, final = done.schema("train"), FinalResult(RoundMetrics())
    # in the order of the schema, which is that of the names and not of the blocks
    kept = [server.features.index(one) for one in schema.features.ids[schema.features.own(name)]]
    centres, means = server.centres[kept], server.means[kept]
    scaling = {name: Preparation(centres, server.scales[kept], average=means)}
    notes = [f"It has the server's extractors of its blocks {listed(made_of.blocks)}."]
    left = [one for one in found.train[name].features if one not in block.features]
    if left:
        notes.append(
            f"Its columns {listed(left, 6)} are in no block of the run of which it has every "
            "column; they are left aside."
        )
    missing = sum(_count_missing(made_of, blocks[name]) for blocks in (found.train, found.test))
    if missing:
        notes.append(
            f"{missing:,} values of its blocks are missing, or levels that the run had not; the "
            "federation's means stand in."
        )
    own_network = {name: hyfem_client.network(done.get_states()[name])}
    networks = client_networks("hyfem", schema, lambda _: made_of, own_network, scaling)
    outcome = Outcome(0, "algorithm", final, None, metrics, tuple(notes), standalone=alone)
    return outcome, networks


def _composition_of(server: ClientNetwork, block: Block, *, scaled: bool) -> Any:
    """Return the network of the blocks whose columns a table has."""
    whole: Any = server.architecture
    blocks, features = zip(whole.blocks, whole.columns, strict=True), {*block.features}
    held = [name for name, columns in blocks if features.issuperset(columns)]
    if not held:
        raise FederationError(
            f"The table has the columns {listed(block.features, 6)}, and no block of the run whole "
            f"({listed(whole.blocks)}); name the columns as in the run."
        )
    return whole.of(held, len(whole.blocks) / len(held) if scaled else 1.0)


def _standardise(server: ClientNetwork, made_of: Any, block: Block) -> Block:
    """Return the columns of the blocks as the server's network takes those of a new table."""
    features = tuple(dict.fromkeys(name for columns in made_of.columns for name in columns))
    x = server.standardised(block.written()).x[
        :, [server.features.index(name) for name in features]
    ]
    levels = held_levels(features, block.levels)
    return Block(block.samples, features, x, block.y, levels=levels)


def _count_missing(made_of: Any, block: Block) -> int:
    """Return how many values of the network's columns are missing; of a category one in a row."""
    own = {name for columns in made_of.columns for name in columns}
    lacking = dict(zip(block.features, block.missing().tolist(), strict=True))
    category = {f"{of}={level}": of for of, levels in block.levels.items() for level in levels}
    return sum({category.get(name, name): lacking[name] for name in own}.values())


def _train_alone(
    client: Any,
    name: ClientId,
    parts: Mapping[str, Mapping[ClientId, Block]],
    labels: Labels,
    rounds: int,
    seed: int,
) -> tuple[Simulation, dict[ClientId, Evaluation]]:
    """Let the one client go on from a state by itself; return how good it is."""
    from intarsia.algorithms.hyfem.algorithm import HYFEM, Server  # here: they import torch
    from intarsia.algorithms.hyfem.client import Whole

    assert HYFEM.model.local_baseline is not None
    options = HYFEM.model.local_baseline.options(HYFEM.hyperparameters, client.options)
    server = Server(options, client.made_of, {}, {name: 1.0}, Whole(), Whole())
    alone = replace(
        HYFEM,
        init_server=lambda *_: server,
        init_client=lambda *_: client,
        conclude=lambda *_: FinalResult(RoundMetrics()),
    )
    done = simulate(alone, options, parts, labels, rounds=rounds, seed=seed)
    part: Part = "test" if "test" in parts else "train"
    return done.engine, evaluate_clients(done.engine, alone, options, part)
