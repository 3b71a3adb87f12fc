"""Which samples count in metrics, so that no sums over clients' rows tell those of few.

The server reads sums over each client's labelled rows, and the same with labels that several
clients hold counted once. Where clients label the same samples, one such sum less another is that
over the rows in which they differ: of a single row its label and its loss.

Samples are of one kind if the same clients hold their labels; each sum is one of kinds with factors
that the schema gives. A sum that factors of all of them bring down to a few kinds, with fewer than
`least` samples together, tells of these: they do not count at any client. Clients tell it by
themselves, from the schema.
"""

from __future__ import annotations

from itertools import combinations
from math import comb

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from intarsia.core.block import Array
from intarsia.core.schema import Schema

Mask = NDArray[np.bool_]

_MOST_SETS = 100_000  # of kinds that are looked at one by one; of more all are left out
_MOST_KINDS = 2_000  # whose sums are combined (7 s); of more the small ones are left out
_EXACT = 1e-9


def rows_that_count(schema: Schema, least: int, whole: Mask | None = None) -> Mask:
    """Return which samples count in metrics, (samples,): with a label, and not told by sums.

    `whole`: on which samples a server's network is evaluated too, those of them that count.
    """
    labelled = schema.label_holders > 0
    taken = np.ones(len(labelled), bool) if whole is None else whole
    kinds, held, takes = _kinds(schema, taken)
    counts = np.bincount(kinds[labelled], minlength=held.shape[0])
    while len(told := _told(held, takes, counts, least)):
        counts[told] = 0
    found: Mask = labelled & (counts[kinds] > 0) if held.shape[0] else labelled
    return found


def _kinds(schema: Schema, taken: Mask) -> tuple[NDArray[np.intp], csr_array, Mask]:
    """Return each sample's kind, (samples,), and of the kinds who holds the labels, and `taken`.

    (kinds, clients), 1 or 0, and (kinds,). Samples without a label are of kind 0.
    """
    numbers: dict[tuple[frozenset[str], bool], int] = {}
    kinds = np.zeros(len(schema.samples), np.intp)
    for cell in schema.score_cells:
        for side in (False, True) if cell.readers else ():
            own = cell.positions[taken[cell.positions] == side]
            if len(own):
                key = frozenset(cell.readers), side
                kinds[own] = numbers.setdefault(key, len(numbers))
    places = {name: at for at, name in enumerate(schema.clients)}
    columns = [sorted(places[name] for name in names) for names, _ in numbers]
    ends = np.cumsum([0, *map(len, columns)])
    every = np.array([at for own in columns for at in own], np.intp)
    held = csr_array((np.ones(len(every), np.intp), every, ends), (len(columns), len(places)))
    return kinds, held, np.array([side for _, side in numbers], bool)


def _told(held: csr_array, takes: Mask, counts: NDArray[np.intp], least: int) -> NDArray[np.intp]:
    """Return kinds of fewer than `least` samples together that sums tell."""
    few = (counts > 0) & (counts < least) if held.shape[0] else np.zeros(0, bool)
    few[few] = held[few] @ (counts @ held >= least) > 0  # of a client that is evaluated
    if not few.any():
        return np.zeros(0, np.intp)
    near, before = few, 0  # these, and all kinds that clients have sums of together with them
    while near.sum() > before:
        before = near.sum()
        near = (counts > 0) & (held @ (near @ held > 0) > 0)
    if near.sum() > _MOST_KINDS:
        return np.flatnonzero(few)
    met = np.flatnonzero(near @ held)
    some, own = held[near][:, met].toarray().astype(np.float64), counts[near]
    sums = _sums(some, own, least)
    if not takes.all():
        sums = np.concatenate([sums, _sums(some * takes[near, None], own, least)])
    _, sizes, rows = np.linalg.svd(sums, full_matrices=False)
    rows = rows[sizes > _EXACT * sizes[0]]
    span: Array = rows.T @ rows  # takes to the nearest of all combinations of the sums
    return np.flatnonzero(near)[_within(span, few[near], own, least)]


def _sums(some: Array, counts: NDArray[np.intp], least: int) -> Array:
    """Return over which kinds the sums of each evaluated client are, (2 · clients, kinds)."""
    evaluated = counts @ some >= least
    once = some / np.maximum(some.sum(axis=1, keepdims=True), 1.0)
    return np.concatenate([some[:, evaluated].T, once[:, evaluated].T])


def _within(span: Array, few: Mask, counts: NDArray[np.intp], least: int) -> NDArray[np.intp]:
    """Return the kinds of small sets that a combination of the sums is of alone.

    There is one where the projection, cut down to the set, has an eigenvalue of 1.
    """
    share = np.diag(span)
    for size in range(1, least):
        most = share[few].max(initial=0.0) * (size - 1)
        possible = np.flatnonzero(few & (counts <= least - size) & (share + most >= 1 - _EXACT))
        if comb(len(possible), size) > _MOST_SETS:
            return possible
        sets = np.array(list(combinations(possible, size)), np.intp).reshape(-1, size)
        sets = sets[(counts[sets].sum(axis=1) < least) & (share[sets].sum(axis=1) >= 1 - _EXACT)]
        parts = span[sets[:, :, None], sets[:, None, :]]
        told = sets[np.linalg.eigvalsh(parts).max(axis=1, initial=0.0) >= 1 - _EXACT]
        if len(told):
            return np.unique(told)
    return np.zeros(0, np.intp)
