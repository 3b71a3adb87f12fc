"""The two yardsticks of a result: all data pooled, and each party alone.

They need the pooled data, so they exist for simulations and tests only. Both are trained by
centralised dual coordinate ascent on the prepared features, to a certified gap.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from scipy.sparse import csr_array

from intarsia.algorithms.evaluation import Grades, grade_scores
from intarsia.data import Array, Block, ClientId, Schema, Values, targets
from intarsia.engines.in_process import InProcess
from intarsia.maths import sdca
from intarsia.maths.products import scores

__all__ = ["both", "pooled"]

_TOLERANCE = 1e-5  # relative gap: far below what a score shows
_EPOCHS = 1000


def pooled(schema: Schema, blocks: Mapping[ClientId, Block]) -> tuple[Values, Array]:
    """Return x (samples, features) and y (samples,) of all parties in the schema's order.

    `blocks` are aligned, and hold each value divided by its number of holders.
    """
    shape = (len(schema.samples), len(schema.features))
    y = np.full(shape[0], np.nan)
    rows: list[Any] = []
    columns: list[Any] = []
    data: list[Any] = []
    sparse = any(block.sparse for block in blocks.values())
    x = np.zeros((0, 0)) if sparse else np.zeros(shape)
    for name, block in blocks.items():
        own, features = schema.samples.own(name), schema.features.own(name)
        if block.y is not None:
            known = ~np.isnan(block.y)
            y[own[known]] = block.y[known]
        if sparse:
            entries = csr_array(block.x).tocoo()
            rows.append(own[entries.coords[0]])
            columns.append(features[entries.coords[1]])
            data.append(entries.data)
        else:
            x[np.ix_(own, features)] += block.x
    if not sparse:
        return x, y
    places = (np.concatenate(rows), np.concatenate(columns))
    return sdca.as_rows(csr_array((np.concatenate(data), places), shape=shape)), y


def both(
    engine: InProcess,
    schemas: Mapping[str, Schema],
    loss: int,
    regularisation: float,
    part: Literal["train", "test"],
    *,
    seed: int,
) -> tuple[Grades | None, dict[ClientId, Grades]]:
    """Return the grades of the centralised model, and of each labelled client's own model."""
    labels = schemas["train"].labels

    def trained(x: Values, block: Block) -> Array:
        y = targets(block, labels.outputs)
        found = sdca.fit(
            x,
            y,
            loss=loss,
            regularisation=regularisation,
            tolerance=_TOLERANCE,
            epochs=_EPOCHS,
            rng=np.random.default_rng(seed),
        )
        return found.w

    def everything(which: str) -> Block:
        schema = schemas[which]
        blocks = {name: engine.block(name, which).counted_once() for name in schema.clients}
        x, y = pooled(schema, blocks)
        return Block(schema.samples.ids, tuple(map(str, schema.features.ids)), x, y)

    train = everything("train")
    held = everything(part) if part == "test" else train
    centralised = grade_scores(held, scores(held.x, trained(train.x, train)), loss, labels)
    alone: dict[ClientId, Grades] = {}
    for name in schemas["train"].clients:
        own, tested = engine.whole_block(name, "train"), engine.whole_block(name, part)
        known = np.zeros(0, bool) if own.y is None else ~np.isnan(own.y)
        if not known.any():
            continue
        own = own.take(np.flatnonzero(known))
        grades = grade_scores(tested, scores(tested.x, trained(own.x, own)), loss, labels)
        if grades is not None:
            alone[name] = grades
    return centralised, alone
