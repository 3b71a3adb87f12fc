"""Score a server's network of all feature blocks, which no client has whole.

1. `partial_layer`: each client adds its blocks' terms of the first layer of the server's network,
   each block of a sample once; nobody but the sample's owners opens the sum.
2. `grade_server`: clients with labels go on from there.

Samples count that somebody has the label of, and of which the clients together hold every block;
of others no term crosses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from intarsia.core.algorithm import ClientFunction, Clients, RandomKey, ServerModel
from intarsia.core.block import Array, Block, ClientId
from intarsia.core.feature_blocks import feature_blocks
from intarsia.core.schema import Schema
from intarsia.protocols.evaluation import (
    Ask,
    Grades,
    PartialScores,
    Totals,
    asked_scores,
    asking,
    graded,
    grading,
    label_shares,
)

__all__ = ["evaluate_server", "functions", "whole_samples"]


def functions(
    server: ServerModel,
    schema: Schema,
    loss: int,
    *,
    part: Literal["train", "test"],
) -> tuple[ClientFunction, ...]:
    """Return the client functions of `evaluate_server`."""
    return (
        *grading(_server_scores(server), loss, schema.labels, part, "_server"),
        _partial_layer(server, schema, part),
    )


def _server_scores(server: ServerModel) -> Callable[[Any, Block, Any], Array]:
    return lambda state, _, z: server.scores(state, z)


def evaluate_server(
    clients: Clients,
    schema: Schema,
    server: ServerModel,
    blocks: Sequence[str],
    loss: int,
    *,
    part: Literal["train", "test"],
) -> Grades | None:
    """Return the grades of a server's network over all samples; `blocks` are those that it takes.

    None if the clients together hold all blocks of no labelled sample.
    """
    whole = whole_samples(schema, blocks)
    grading = {
        name: share * whole[schema.samples.own(name)]
        for name, share in label_shares(clients, schema).items()
    }
    grading = {name: share for name, share in grading.items() if share.any()}
    if not grading:
        return None
    holding = [name for name in clients.ids if len(schema.holdings[name].samples)]
    messages = asking(schema, holding, whole & (schema.label_holders > 0))
    total = clients.sum(_partial_layer(server, schema, part), messages)
    # discloses how well the server's network does on each client's labelled samples
    return graded(
        clients,
        schema,
        _server_scores(server),
        {name: Totals(total.z, share) for name, share in grading.items()},
        loss,
        part=part,
        suffix="_server",
    )[0]


def whole_samples(schema: Schema, blocks: Sequence[str]) -> NDArray[np.bool_]:
    """Return of which samples the clients together hold every block, (samples,)."""
    known = feature_blocks(schema)
    nobody: frozenset[ClientId] = frozenset()
    holders = [frozenset(known[name].owners) if name in known else nobody for name in blocks]
    cells = [all(owners & some for some in holders) for owners in schema.samples.owner_sets]
    return np.array(cells, bool)[schema.samples.cell_of]


def _partial_layer(server: ServerModel, schema: Schema, part: str) -> ClientFunction:
    known = feature_blocks(schema)

    def partial_layer(
        state: Any, block: Block, message: Ask, rng: RandomKey
    ) -> tuple[Any, PartialScores]:
        total: Any = 0.0
        for name, term in server.part(state, block).items():
            total = total + term / _holders(block, known[name].features[0])
        return state, PartialScores(asked_scores(message, np.asarray(total, np.float64)))

    return ClientFunction("partial_layer", partial_layer, "test" if part == "test" else "train")


def _holders(block: Block, feature: str) -> Array | float:
    """Return how many clients hold each value of a feature, (samples,)."""
    copies = block.copies
    if copies is None:
        return 1.0
    column = block.features.index(feature)
    held: Array = copies.counts[copies.rows, copies.columns[column]]
    return held
