"""What a client knows of its own features after the preparation, and its blocks by that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from intarsia.core.block import INTERCEPT, Array, Block, ClientId, Copies, stored, with_data
from intarsia.core.memory import made_like, pieces
from intarsia.core.schema import Schema
from intarsia.protocols.untrained_levels import (
    levels_without_rows,
    with_levels,
    without_untrained,
)

Positions = NDArray[np.intp]
FEWEST = 5  # values of a client that others are told of


@dataclass(frozen=True)
class Preparation:
    """What a client knows about its own features after the preparation."""

    mean: Array  # (features,)
    scale: Array  # (features,) 0 = constant feature
    observed: Mapping[str, Array] = field(default_factory=dict[str, Array])
    # part -> (samples, `may_lack`): holders that have a value, where some holder lacks one
    row_scale: Array | None = None  # (training samples,) by what their rows are clipped
    clip: float | None = None  # to which norm; None: no bound was told
    client: ClientId = ""  # whose it is
    comparing: tuple[str, int] = ("", -1)  # part and cell of features whose copies are compared
    weights: Array | None = None  # (training samples,) with mean 1 over the federation
    # (features,) what a new row that lacks it counts as: its mean, or 0 for the levels of a
    # category that training rows lacked, as these counted so; None: it was not measured
    average: Array | None = None
    step: float = 0.0  # what sums of moments are rounded to; 0: they are not
    shared: NDArray[np.bool_] | None = None  # (features,) that others hold, too; None: not known
    # (features,) holders that a value must have so that moments are told of it: 1; 2 where the
    # client alone has few; infinitely many where it has few at all; None: not known
    least: Array | None = None


def initial(
    client: ClientId,
    block: Block,
    schema: Schema | None = None,
    *,
    alone: bool = False,
    constant: float = 1.0,
) -> Preparation:
    """Return the preparation that changes nothing, from a client's training block.

    By the schema it knows which columns others hold, too. `alone` says that the client alone trains
    what reads its columns: levels of a category that none of its own rows has are then 0, as
    constant features are. `constant` is the value that the intercept is to have.
    """
    scale = np.ones(block.shape[1])
    scale[is_intercept(block)] = 1 / (constant or 1.0)
    if alone:
        scale[levels_without_rows(block)] = 0.0
    shared = None
    if schema is not None:
        shared = schema.features.holders[schema.features.own(client)] > 1
    return Preparation(np.zeros(block.shape[1]), scale, client=client, shared=shared)


def prepared(
    state: Preparation, part: str, block: Block, *, once: bool = False, in_place: bool = False
) -> Block:
    """Return a client's block, standardised, missing values replaced by the mean (0).

    Training rows have their weights of mean 1, and lack the values that others are not told of, see
    `least_holders`. `once`: each value is divided by its number of
    holders, without a copy more. `in_place` writes over the values: the block is then of no use.
    """
    block = with_observed(state, part, block)
    if state.weights is not None and part == "train":
        block = replace(block, weights=state.weights)
    if part != "train":
        return _evaluated(state, block)
    least = least_holders(state, block) if state.least is None else state.least
    untold = np.zeros(0, np.intp) if least is None else np.flatnonzero(least > 1)
    return _standardised(state, block, untold, once=once, in_place=in_place)


def _evaluated(state: Preparation, block: Block) -> Block:
    """Return a block on which models are evaluated: as new tables of `predict` are read.

    A row without a level of a category of many has its mean, where all training rows have one. Of
    rows that others hold too, those that all lack it are such, and the holders' parts add up.
    """
    lacked = dict(enumerate(rows for _, rows in block.without_level()))
    block = without_untrained(block, state.scale > 0)
    found = _standardised(state, block, np.zeros(0, np.intp))
    inverse = np.divide(1.0, state.scale, out=np.zeros_like(state.scale), where=state.scale > 0)
    for number, (levels, rows) in enumerate(block.without_level()):
        if state.average is None or not rows.any() or not state.average[levels].any():
            continue
        share, holders = rows.astype(np.float64), holders_of(block, levels)
        if block.copies is not None and block.copies.observed is not None:
            told = block.copies.observed[:, block.copies.take(None, levels).arrays[3][0]]
            alone = np.where(told == 0, 1 / holders, 0.0)
            share = np.where(lacked[number] & (holders > 1), alone, share)
        own = np.flatnonzero(share)
        means = (state.average * inverse)[levels]
        found = with_levels(found, own, levels, means, share[own])
    return found


def _standardised(
    state: Preparation,
    block: Block,
    untold: Positions,
    *,
    once: bool = False,
    in_place: bool = False,
) -> Block:
    """Return a block less the means, in units of the scales.

    Values that the client alone has are 0, as missing ones are, in the columns `untold`.
    """
    inverse = np.divide(1.0, state.scale, out=np.zeros_like(state.scale), where=state.scale > 0)
    if state.mean.any() or (state.scale != 1).any():
        block = replace(block, zero=(is_intercept(block) - state.mean) * inverse)
    plain = not state.mean.any() and (state.scale == 1).all() and not len(untold)
    if plain and not any(np.isnan(stored(own)).any() for _, own in pieces(block.x)):
        return block.counted_once(in_place=in_place) if once else block
    x = block.x if in_place else with_data(block.x, made_like(block.x, stored(block.x).shape))
    held = Copies.alone(*block.shape) if block.copies is None else block.copies
    for (rows, own), (_, found) in zip(pieces(block.x), pieces(x), strict=True):
        if block.sparse:
            from intarsia.maths.moments import standardise_entries  # imports numba

            data = own.data
            if len(untold):
                few = np.isin(own.indices, untold)
                few &= held.take(rows, None).of_entries(own) <= 1
                data = np.where(few, np.nan, data)
            standardise_entries(data, own.indices, state.mean, inverse, found.data)
            continue
        values = np.subtract(own, state.mean, out=found)
        values *= inverse
        np.nan_to_num(values, copy=False)
        if len(untold):
            values[:, untold] *= held.take(rows, untold).of_entries(own[:, untold]) > 1
    block = replace(block, x=x, checked=(x, block.samples))  # all are finite now
    return block.counted_once(in_place=True) if once else block


def is_intercept(block: Block) -> NDArray[np.bool_]:
    """Return which feature is the constant one, (features,)."""
    return np.array([name == INTERCEPT for name in block.features], bool)


def least_holders(state: Preparation, block: Block) -> Array | None:
    """Return how many holders a value must have so that others are told of it, (features,).

    Moments of one value or two are these, and so is what they add to weights in training. Of few
    values that the client alone has, only those are told that others have, too. Absent entries that
    are 0 are values, and a client of few rows has few of all. None: it has no column in common.
    """
    if state.shared is None or not state.shared.any():
        return None
    count = block.shape[1]
    if (block.sparse and block.indicators is None) or block.shape[0] < FEWEST:
        return np.ones(count)
    both = np.zeros((2, count))  # all values, and those that others have, too
    without = [] if block.sparse else [*block.without_level()]
    copies = block.copies
    if copies is not None and not (copies.counts > 1).any():
        copies = None
    for rows, x in pieces(block.x):
        if block.sparse:
            there = ~np.isnan(x.data)
            all_there = bool(there.all())  # which is quick to see, and spares a copy
            both[0] += np.bincount(x.indices if all_there else x.indices[there], minlength=count)
            if copies is not None:
                there &= copies.take(rows, None).of_entries(x) > 1
                both[1] += np.bincount(x.indices[there], minlength=count)
            continue
        observed = ~np.isnan(x)
        for levels, absent in without:
            observed[np.ix_(absent[rows], levels)] = False
        both[0] += observed.sum(axis=0)
        if copies is not None:
            both[1] += (observed & (copies.take(rows, None).of_entries(x) > 1)).sum(axis=0)
    (values, others), alone = both, both[0] - both[1]
    none = (values < FEWEST) | ((alone < FEWEST) & (others < FEWEST))
    least = np.where(none, np.inf, np.where((alone > 0) & (alone < FEWEST), 2.0, 1.0))
    told = block.scaled_only if block.sparse else np.zeros(count, bool)
    return np.where(state.shared & ~told, least, 1.0)


def with_observed(state: Preparation, part: str, block: Block) -> Block:
    """Return a block in which copies of values that holders lack do not count."""
    if part not in state.observed or block.copies is None:
        return block
    observed = state.observed[part]
    places = places_of(block, observed.shape[1])
    return replace(block, copies=replace(block.copies, observed=observed, places=places))


def may_lack(block: Block) -> Positions:
    """Return the columns that may lack values; in others an absent entry is 0.

    A category of many levels lacks a value where a row has none of them: the first of its columns
    stands for all, and these come last.
    """
    first = [levels[0] for levels in block.kinds_of_levels()]
    return np.concatenate([np.flatnonzero(~block.scaled_only), np.array(first, np.intp)])


def places_of(block: Block, width: int) -> Positions:
    """Return where each column is in `Preparation.observed`, -1 where nowhere, (features,).

    `width` is how many columns that has: it lacks the last ones in runs of earlier versions.
    """
    places = np.full(block.shape[1], -1, np.intp)
    places[may_lack(block)[:width]] = np.arange(width)
    for levels in block.kinds_of_levels():
        places[levels] = places[levels[0]]
    return places


def holders_of(block: Block, columns: Positions) -> Array:
    """Return how many clients hold each sample's values of a set of features, (samples,)."""
    if block.copies is None:
        return np.ones(block.shape[0])
    found: Array = block.copies.counts[block.copies.rows, block.copies.columns[columns[0]]]
    return found
