"""Prepare every client's table for training: copies counted once, features standardised, by sums.

0. and 1. Labels of one sample, or weights, that differ between clients are refused, and copies of
   values are counted: see `agreement`.
2. `measure_features`, `centre`, `settle_scale`: count, total and centred squares of each feature
   are summed over the clients that hold it; only they open the totals. The server learns no mean;
   of two holders, each knows the other's. So who has few values of a feature tells none of them
   there, see `least_holders`. A constant feature becomes 0, a missing value the mean.
   A level of a category of many that few rows have is scaled as if more had it, see `RAREST`.
   A feature that is not centred is 0 where a training row has no value of it; its mean is kept for
   new tables that lack it.
3. `count_classes`, `settle_weights`: where rows have weights, or classes, the clients with labels
   open the sum of the weights of each class over the federation. They multiply by the classes'
   weights, and divide by the mean, so that λ means what it does without weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from intarsia import core as fl
from intarsia.core.block import Array, Block, ClientId, Copies, places_of, row_weights
from intarsia.core.memory import pieces
from intarsia.core.schema import Schema
from intarsia.errors import TableError, listed
from intarsia.protocols.preprocessing import agreement
from intarsia.protocols.preprocessing.few_values import ownership
from intarsia.protocols.preprocessing.preparation import (
    FEWEST,
    Preparation,
    is_intercept,
    least_holders,
    with_observed,
)

_function = partial(fl.client_function, protocol="preprocessing")
_FINER = 2.0**40  # what is left of a sum is told in units that are finer by this
_UNITS = 4  # of a sum that is rounded, finer and finer
_NONE = 1e-3  # counted values, below which there are none: a sealed sum may be inexact
_IS_CONSTANT = "Constant over all training samples, or but for fewer than least_rows at each client"
_OF_FEW_ROWS = (
    "Levels of which no client has least_rows training rows (their rows count as missing; set "
    "least_rows = 1 if the model may tell of few rows)"
)
_UNTOLD = f"Of fewer than {FEWEST} training values at each client that has it"
_CONSTANT = 1e-12  # a feature whose deviation is below this share of its size is constant
# The share of rows that a level of a category of many levels counts as having at least, when it is
# scaled: a twentieth, as of a level of those that are centred. By its own deviation a level of one
# row in ten thousand would be 100 where it is, and its weight as good as not penalised: the rows of
# rare levels would be learned by heart.
RAREST = 0.05
_ALL_HAVE_ONE = (
    0.999  # what the shares of the levels of a category add up to, where all rows have one
)


@dataclass(frozen=True)
class MeasureFeatures:
    """Ask for the moments of the features."""

    step: float = 0.0  # what sums of them are rounded to; 0: they are not


@fl.describe("counts and sums of columns")
class Moments:
    """Sums over observed values, each counted once."""

    count: fl.PerFeature  # (1, features)
    total: fl.PerFeature  # (units, features), see `_in_units`


@fl.describe("squared deviations of columns")
class Squares:
    """Sums over observed values of the squared deviation, each counted once."""

    squares: fl.PerFeature  # (units, features), see `_in_units`


@dataclass(frozen=True)
class Spread:
    """The totals that settle_scale mean and scale at the owners."""

    squares: fl.PerFeature
    count: fl.PerFeature


@fl.describe("which columns are constant")
class Constant:
    """Which features are constant over the federation."""

    features: fl.PerFeature  # (2, features) 1 where constant, and where no value was told of


def prepare(
    clients: fl.Clients, schemas: Mapping[str, Schema], *, standardise: bool
) -> tuple[str, ...]:
    """Run the exchanges of the preparation; return notes for the user.

    Each client's `Preparation` state then says what `prepared` makes of its blocks.

    Raises
    ------
    FederationError
        If two clients have different labels of a sample.
    TableError
        If the squares of a feature are too large for 64-bit numbers.
    """
    notes: list[str] = []
    # step 0: labels
    for part, schema in schemas.items():
        agreement.check_agreement(clients, schema, part)
    # step 1: what lacks, then one exchange and its check for every set of shared features
    for part, schema in schemas.items():
        notes += agreement.count_shared(clients, schema, part)
    # step 2: nobody but the owners of a feature opens its count, total and squares
    if standardise:
        step = clients.rounding(entries_summed(schemas["train"])).step
        moments = clients.sum(measure_features, MeasureFeatures(step))
        message = Moments(moments.count, moments.total)
        squares = clients.sum(centre, message)
        spread = Spread(squares.squares, moments.count)
        found = clients.sum(settle_scale, spread)
        # discloses which features have one value over all clients' training samples
        zero, untold = clients.reveal(found).features > 0
        features = schemas["train"].features.ids
        few = zero & ~untold & _is_level_beside(~zero, schemas["train"])
        constant = zero & ~untold & ~few
        for some, why in (constant, _IS_CONSTANT), (few, _OF_FEW_ROWS), (untold, _UNTOLD):
            if some.any():
                notes.append(f"{why}, so left at 0: {listed(map(str, features[some]), 6)}.")
    # step 3: nobody but the clients with labels opens the totals of the classes
    labels = schemas["train"].labels
    if labels.weighted:
        count_classes, settle_weights = _weighing(schemas["train"])
        labellers = schemas["train"].labelled.owners
        counted = clients.sum(count_classes, dict.fromkeys(labellers, CountClasses()))
        clients.ask(settle_weights, dict.fromkeys(labellers, ClassTotals(counted.totals)))
    return tuple(notes)


def entries_summed(schema: Schema) -> int:
    """Return how many entries a sum over features has: that says what it is rounded to."""
    return _UNITS * len(schema.features)


def _is_level_beside(some: NDArray[np.bool_], schema: Schema) -> NDArray[np.bool_]:
    """Return which features are levels of a category that has one of some features, too."""
    place = {str(name): at for at, name in enumerate(schema.features.ids)}
    found = np.zeros(len(place), bool)
    for column, levels in {pair for one in schema.holdings.values() for pair in one.levels.items()}:
        own = [place[f"{column}={level}"] for level in levels]
        found[own] |= bool(some[own].any())
    return found


@dataclass(frozen=True)
class CountClasses:
    """Ask for the weights of the classes."""


@fl.describe("summed weights of rows by class")
class ClassWeights:
    """A client's part of the weights of the classes; of numbers to predict all are one class."""

    totals: Array  # (classes,)


@dataclass(frozen=True)
class ClassTotals:
    """The weights of the classes over the federation, for the clients with labels."""

    totals: Array  # (classes,)


def _weighing(schema: Schema) -> tuple[fl.ClientFunction, ...]:
    """Return the client functions of step 3."""
    labels, count = schema.labels, max(len(schema.labels.classes), 1)

    def class_of(block: Block) -> NDArray[np.intp]:
        """Return the number of each sample's class; of those without a label the number 0."""
        if block.y is None or labels.task == "regression":
            return np.zeros(block.shape[0], np.intp)
        y = np.nan_to_num(block.y, nan=-1.0)
        return (np.maximum(y, 0) if labels.task == "multiclass" else y > 0).astype(np.intp)

    def count_classes(
        state: Preparation, block: Block, message: CountClasses, rng: fl.RandomKey
    ) -> tuple[Preparation, ClassWeights]:
        holders = schema.label_holders[schema.samples.own(state.client)]
        told = _labels_told(schema, state.client)
        each = np.where(told, row_weights(block) / np.maximum(holders, 1), 0.0)
        return state, ClassWeights(np.bincount(class_of(block), each, count).astype(np.float64))

    def settle_weights(
        state: Preparation, block: Block, message: ClassTotals, rng: fl.RandomKey
    ) -> tuple[Preparation, fl.Ready]:
        totals, given = np.asarray(message.totals), labels.class_weights
        if totals.sum() < _NONE:
            raise TableError(
                f"Each client has fewer than {FEWEST} labels that another one lacks, so nobody is "
                "told what classes weigh; leave class_weight and weights out, or let one client "
                "alone label the rows."
            )
        factors = np.ones(count)
        if given == "balanced":
            factors = totals.sum() / (count * np.where(totals > 0, totals, np.inf))
        elif given is not None:
            factors = np.array(given)
        mean = float(totals @ factors) / len(schema.samples)
        weights = row_weights(block) * factors[class_of(block)] / mean
        return replace(state, weights=weights), fl.Ready()

    return tuple(_function(one) for one in (count_classes, settle_weights))


def _labels_told(schema: Schema, client: ClientId) -> NDArray[np.bool_]:
    """Return which of a client's rows count for the weights of classes, (client samples,).

    Another client with labels takes off what its own rows add, and these copies. Of fewer than
    `FEWEST` labels that it lacks it would have them.
    """
    told, labelled = schema.labelled_at(client).copy(), schema.labelled
    if told.sum() < FEWEST:  # a site takes part in no such job
        return told
    rows, places = np.flatnonzero(told), labelled.own(client)
    ids = schema.samples.ids[schema.samples.own(client)[rows]]
    cells = labelled.cell_of[places[places_of(ids, labelled.ids[places])]]
    groups, of = np.unique(cells, return_inverse=True)
    near = frozenset[ClientId]().union(*(labelled.owner_sets[cell] for cell in groups)) - {client}
    lacks = ~ownership(labelled.owner_sets, groups, near)
    if len(labelled.owners) == len(near) + 1:
        lacks = lacks[:, :-1]  # there is nobody with none of these labels
    counts = np.bincount(of)
    while True:
        lacked = counts @ lacks
        few = lacks[:, (lacked > 0) & (lacked < FEWEST)].any(axis=1)
        if not few.any():
            break
        counts[few] = 0
    told[rows] = counts[of] > 0
    return told


@_function
def measure_features(
    state: Preparation, block: Block, message: MeasureFeatures, rng: fl.RandomKey
) -> tuple[Preparation, Moments]:
    """Add up the observed values of each feature."""
    block, step = with_observed(state, "train", block), message.step
    least = least_holders(state, block)
    count, total = _sums(block, np.zeros(block.shape[1]), 1, least)
    state = replace(state, step=step, least=least)
    return state, Moments(count[None, :], _in_units(total, step))


def _in_units(sums: Array, step: float) -> Array:
    """Return sums, (features,), in units of 1, 1 / `_FINER`, …, (units, features).

    Sealed sums are rounded to steps, below which the sums of small numbers lie, and the squares of
    these far below. So each unit has whole steps, and what is left is told in the next. Where
    nothing is rounded there is one unit.
    """
    if not step:
        return sums[None, :]
    found = []
    for _ in range(_UNITS):
        with np.errstate(over="ignore"):  # what is infinite is not rounded
            whole = np.where(np.isfinite(sums / step), np.rint(sums / step) * step, sums)
        found.append(whole)
        sums = np.nan_to_num(sums - whole, nan=0.0) * _FINER
    return np.stack(found)


def _of_units(totals: Array) -> Array:
    """Return the sums that totals of `_in_units` are, (features,)."""
    found = totals[-1]
    for total in totals[-2::-1]:
        found = total + found / _FINER
    return np.asarray(found)


@_function
def centre(
    state: Preparation, block: Block, message: Moments, rng: fl.RandomKey
) -> tuple[Preparation, Squares]:
    """Take the mean over the federation; add up the squared deviations from it."""
    block = with_observed(state, "train", block)
    mean = _of_units(message.total) / np.maximum(message.count[0], 1.0)
    average = mean.copy()
    for levels in block.kinds_of_levels():
        if average[levels].sum() < _ALL_HAVE_ONE:  # what lacks one counted as 0 in training
            average[levels] = 0.0
    mean[block.scaled_only] = 0.0  # centring would fill every entry
    mean[is_intercept(block)] = 0.0
    _, squares = _sums(block, mean, 2, state.least)
    state = replace(state, mean=mean, average=average)
    return state, Squares(_in_units(squares, state.step))


@_function
def settle_scale(
    state: Preparation, block: Block, message: Spread, rng: fl.RandomKey
) -> tuple[Preparation, Constant]:
    """Take the standard deviation over the federation as the scale; 0 for a constant feature."""
    wrong = np.flatnonzero(~np.isfinite(message.squares[0]))
    if len(wrong):
        raise TableError(
            f"The squares of feature {block.features[wrong[0]]!r} add up to "
            f"{message.squares[0, wrong[0]]}: its values are too large for 64-bit numbers; divide "
            "them by a power of ten at every client."
        )
    squares = np.maximum(_of_units(message.squares), 0.0)
    deviation = np.sqrt(squares / np.maximum(message.count[0], 1.0))
    scale = np.where(deviation > _CONSTANT * np.maximum(abs(state.mean), 1e-300), deviation, 0.0)
    for levels in block.kinds_of_levels():
        own = scale[levels]
        scale[levels] = np.where(own > 0, np.maximum(own, np.sqrt(RAREST)), 0.0)
    untold = message.count[0] < _NONE
    scale[untold] = 0.0
    scale = np.where(is_intercept(block), state.scale, scale)
    constant = Constant(np.stack([scale == 0, untold]).astype(np.float64))
    return replace(state, scale=np.where(state.scale > 0, scale, 0.0)), constant


def _sums(block: Block, mean: Array, power: int, least: Array | None = None) -> tuple[Array, Array]:
    """Return Σ 1 and Σ (x - mean)^power over observed values, each (features,).

    Of those that have the `least` number of holders, (features,); None: of all.
    """
    total, rows_told = np.zeros((2, block.shape[1])), np.zeros(block.shape[1])
    held = Copies.alone(*block.shape) if block.copies is None else block.copies
    for rows, x in pieces(block.x):
        copies = held.take(rows, None)
        if block.sparse:
            from intarsia.maths.moments import entry_sums  # imports numba

            data = x.data
            if least is not None and (least > 1).any():
                data = np.where(copies.of_entries(x) >= least[x.indices], data, np.nan)
            entries = data, x.indices, x.indptr
            total += entry_sums(entries, copies.arrays, mean, power)
            continue
        holders = copies.of_entries(x)
        told = 1 / holders if least is None else np.where(holders >= least, 1 / holders, 0.0)
        observed = ~np.isnan(x)
        share = observed * told
        deviation = x - mean
        deviation[~observed] = 0.0
        with np.errstate(over="ignore"):  # `settle_scale` refuses what is infinite
            total += share.sum(axis=0), (share * deviation**power).sum(axis=0)
        if least is not None:
            rows_told += np.broadcast_to(told, x.shape).sum(axis=0)
    count, total = total
    zeros = block.scaled_only  # where an absent entry is an observed 0
    every = _row_shares(block)
    if least is not None and not block.sparse:
        every = np.where(least > 1, rows_told, every)
    count[zeros] = every[zeros]
    return count, total


def _row_shares(block: Block) -> Array:
    """Return Σ over the samples of 1/holders for each feature, (features,)."""
    if block.copies is None:
        return np.full(block.shape[1], float(block.shape[0]))
    kinds = np.bincount(block.copies.rows, minlength=len(block.copies.counts))
    return (kinds @ (1 / block.copies.counts))[block.copies.columns]


def sends(schemas: Mapping[str, Schema], *, standardise: bool = True) -> tuple[fl.Sends, ...]:
    """Return what crosses in `prepare`."""
    found = [*agreement.sends(schemas)]
    if standardise:
        found += fl.sums(measure_features, centre)
        found += fl.sums(settle_scale, reveals=("features",))
    if schemas["train"].labels.weighted:
        count_classes, settle_weights = _weighing(schemas["train"])
        weighing = (*fl.sums(count_classes), *fl.asks(settle_weights))
        found += fl.each(weighing, parties=lambda schema, _: schema.labelled.owners)
    return fl.each(fl.opening(_TOTALS, found), together="all")


_TOTALS: Mapping[str, fl.Origin] = {
    **agreement.TOTALS,
    "ClassTotals.totals": "ClassWeights.totals",
    "Moments.count": "Moments.count",
    "Moments.total": "Moments.total",
    "Spread.count": "Moments.count",
    "Spread.squares": "Squares.squares",
}
