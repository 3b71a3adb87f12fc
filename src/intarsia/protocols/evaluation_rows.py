"""Which samples count in metrics, at which clients, and of how many models.

No sums over clients' rows are to tell those of few, and no losses of many models these rows.

The server reads sums over each client's labelled rows, and the same with labels that several
clients hold counted once. Where clients label the same samples, one such sum less another is that
over the rows in which they differ: of a single row its label and its loss.

Samples are of one kind if the same clients hold their labels; each sum is one of kinds with factors
that the schema gives. A sum that factors of all of them bring down to a few kinds, with fewer than
`least` samples together, tells of these: they do not count at any client. Clients tell it by
themselves, from the schema.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import comb
from typing import Final
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from intarsia.core.block import Array, ClientId
from intarsia.core.feature_blocks import feature_blocks
from intarsia.core.schema import Schema

Mask = NDArray[np.bool_]

LEAST_ROWS: Final = 5  # of a client that are evaluated, if any; figures: on each side of a class
# rows that are evaluated, by the feature blocks of a server's network: asked for many times
_TO_GRADE: Final = WeakKeyDictionary[Schema, dict[tuple[str, ...] | None, Mask]]()
_MOST_SETS = 100_000  # of kinds that are looked at one by one; of more all are left out
_MOST_KINDS = 2_000  # whose sums are combined (7 s); of more the small ones are left out
_EXACT = 1e-9


def rows_to_evaluate(schema: Schema, server: Sequence[str] | None = None) -> Mask:
    """Return which samples are evaluated, (samples,).

    `server` are the feature blocks of a server's network that is evaluated beside clients' own.
    """
    known = _TO_GRADE.setdefault(schema, {})
    key = None if server is None else tuple(server)
    if key not in known:
        whole = None if server is None else whole_samples(schema, server)
        known[key] = rows_that_count(schema, LEAST_ROWS, whole)
        known[key].flags.writeable = False
    return known[key]


def whole_to_evaluate(schema: Schema, server: Sequence[str]) -> Mask:
    """Return which samples a server's network is evaluated on, (samples,)."""
    return rows_to_evaluate(schema, server) & whole_samples(schema, server)


def whole_samples(schema: Schema, blocks: Sequence[str]) -> NDArray[np.bool_]:
    """Return of which samples the clients together hold every block, (samples,)."""
    known = feature_blocks(schema)
    nobody: frozenset[ClientId] = frozenset()
    holders = [frozenset(known[name].owners) if name in known else nobody for name in blocks]
    cells = [all(owners & some for some in holders) for owners in schema.samples.owner_sets]
    return np.array(cells, bool)[schema.samples.cell_of]


def evaluated_clients(
    schema: Schema, wanted: Mask, clients: Sequence[ClientId] | None = None
) -> list[ClientId]:
    """Return those of some clients (None: of all) that have enough rows to be evaluated."""
    return [
        name
        for name in (schema.clients if clients is None else clients)
        if enough(wanted[schema.samples.own(name)] & schema.labelled_at(name))
    ]


def too_few(schema: Schema, wanted: Mask) -> tuple[ClientId, ...]:
    """Return the clients that have labels, but of too few rows to be evaluated."""
    labelled = [name for name in schema.clients if schema.labelled_at(name).any()]
    evaluated = evaluated_clients(schema, wanted, labelled)
    return tuple(name for name in labelled if name not in evaluated)


def enough(evaluated: NDArray[np.bool_]) -> bool:
    """Return whether so many rows of a client are evaluated that it answers, (samples,)."""
    return int(np.count_nonzero(evaluated)) >= LEAST_ROWS


def rows_evaluated_at(schema: Schema, client: ClientId, server: Sequence[str] | None) -> int:
    """Return of how many rows a client sends metrics: the fewest of those that it sends; 0: none.

    `server` are the feature blocks of the server's network, None where there is none.
    """
    wanted = [rows_to_evaluate(schema, server)]
    if server is not None:
        wanted.append(whole_to_evaluate(schema, server))
    own, labelled = schema.samples.own(client), schema.labelled_at(client)
    rows = [int(np.count_nonzero(one[own] & labelled)) for one in wanted]
    return min((number for number in rows if number >= LEAST_ROWS), default=0)


def samples_evaluated(schema: Schema, wanted: Mask) -> tuple[int, int]:
    """Return how many samples are evaluated, and how many without the client that has the most."""
    held = {one: schema.samples.own(one) for one in evaluated_clients(schema, wanted)}
    rows = [own[wanted[own] & schema.labelled_at(one)] for one, own in held.items()]
    every = len(np.unique(np.concatenate(rows)))
    return every, every - max(map(len, rows))


def labelled_samples(schema: Schema, wanted: Mask) -> int:
    """Return how many samples count that somebody has the label of."""
    return int((wanted & (schema.label_holders > 0)).sum())


def times_evaluated(schema: Schema, server: Sequence[str] | None) -> int:
    """Return by how many models metrics over all samples are told in training.

    `server` are the feature blocks of the server's network, None where there is none.
    """
    whole = np.zeros(0, bool) if server is None else whole_to_evaluate(schema, server)
    return models_evaluated(schema, whole if whole.any() else rows_to_evaluate(schema, server))


def models_evaluated(schema: Schema, wanted: Mask) -> int:
    """Return by how many models `sum_metrics` is answered: few, beside the rows.

    One for each two rows. Of several clients those of the one with the most do not count: it could
    take them away from the total.
    """
    rows = [
        int((wanted[schema.samples.own(name)] & schema.labelled_at(name)).sum())
        for name in evaluated_clients(schema, wanted)
    ]
    every = labelled_samples(schema, wanted)
    others = every - max(rows, default=0)
    return max(1, (others or every) // 2)


def is_due(turn: int, most: int) -> bool:
    """Return whether to evaluate at a turn (1, 2, …) of a training that may be long, `most` times.

    At each turn until half of the times are over, then at every second one until half of those that
    are left are, and so on.
    """
    began, step = 0, 1
    while most > 0:
        some = -(-most // 2)
        if turn <= began + some * step:
            return (turn - began) % step == 0
        began, step, most = began + some * step, 2 * step, most - some
    return False


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
