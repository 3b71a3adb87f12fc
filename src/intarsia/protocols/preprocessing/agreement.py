"""Find labels and copies of values that differ between clients, by numbers that hide them.

0. `draw_words`, `compare_labels`: whether the clients that have a label of the same sample have the
   same one, of rows to train on and of those to evaluate. They are compared in a row, each with the
   next. The words are of all that hold a sample's label, each of which adds some. What two of them
   send of a sample adds up to 0 where their labels are equal. Labels are rounded in two ways to a
   relative 1e-12 or so: numbers that differ by how they were written are equal in one of them.
1. `find_lacking`, `count_copies`, `compare_copies`: the clients tell each other which columns lack
   a value of a shared row, and add up random words. For every set of features that several clients
   hold, those that share a sample add up who lacks a value of these columns. A value with c copies
   counts 1/c at each. Whether copies are equal the server finds by numbers that hide them: of each
   row an owner o has a projection v of the values that all have, a whole number modulo a prime M.
   It sends k_o v + t_o, with k and t from the owners' words and 0 over the owners, Σ k_o = Σ t_o =
   0. What they send adds up to 0 if all have the same v, and else to any other number. Projections
   are taken of values on a scale that is logarithmic but near 0, so that a feature of small values
   counts as one of large values does, and rounded in two ways, as labels are.

What crosses at step 0: the server learns which two clients differ, and in how many samples; no
client learns a label, also not one that makes up labels.

What crosses at step 1: a co-owner of a sample learns which of the shared values the others lack,
and nothing of the values: else one that makes up a column of another's name would read that column.
A co-owner of a column learns at how many clients it lacks a value of a shared row. The server
learns how many samples of each overlap group disagree and, from the size of what crosses, about how
many columns lack a value. Together with an owner of the columns it has the other owners' v.

Which samples and columns count, each client tells from the schema: a server that chose them would
count values. All that are compared are asked together.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from intarsia import core as fl
from intarsia.core.block import INTERCEPT, Array, Block, ClientId, Labels, row_weights, stored
from intarsia.core.memory import pieces
from intarsia.core.schema import Schema
from intarsia.errors import FederationError, RefusedError, SiteError, listed, several
from intarsia.protocols.preprocessing.few_values import few_everywhere
from intarsia.protocols.preprocessing.preparation import (
    Positions,
    Preparation,
    holders_of,
    may_lack,
    places_of,
)
from intarsia.protocols.untrained_levels import put

Words = NDArray[np.uint64]
_Pair = tuple[ClientId, ClientId, Positions]
_function = partial(fl.client_function, protocol="preprocessing")
_FINEST = 2.0**-30  # relative difference from which values differ; below this size, times it
_DIGITS = 39  # bits of labels to which these are rounded: half of the last is some 1e-12
_PRIME = 2**31 - 1  # M: a difference of copies is missed with a chance of 1/M
_BITS = 12  # of a word: 1,024 clients may add up such numbers within the default privacy.range
_WORDS = 11  # of a set of features: they hide as keys of 128 bits do


@dataclass(frozen=True)
class AskWords:
    """Ask for words to hide labels by."""


@fl.describe("random numbers")
class LabelWords:
    """Words for all that hold the label of a sample, of one that has the sample, or the totals."""

    words: fl.PerLabelledScore  # (words, samples) whole numbers of 12 bits


@fl.describe("numbers that hide labels of each shared row")
class HiddenLabels:
    """What two clients' numbers of a sample add up to is 0 modulo M if their labels are equal.

    And so are their weights, where rows have some.
    """

    # (6, or with weights 12, samples that both label of each pair): three for each way of rounding
    numbers: NDArray[np.uint32]


@dataclass(frozen=True)
class AskLacking:
    """Ask which columns lack a value of a shared row, and for words."""


@fl.describe(columns="which columns lack a value of a shared row", words="random numbers")
class Lacking:
    """The columns in which this client lacks a value that another client may have."""

    columns: fl.PerFeature  # (1, features) 1: lacks one
    words: fl.PerFeature  # (words, features) whole numbers of 12 bits, as the client drew them


@dataclass(frozen=True)
class SharedFeatures:
    """One set of shared features."""

    cell: int  # its number among the feature cells of the schema
    lacking: fl.PerFeature  # (1, features) at how many clients the column lacks a value


@fl.describe("marks of which values of each shared row are missing")
class Copied:
    """Which of the shared values this client lacks, in columns that lack some.

    A number has the marks of several columns: their sum times 1, b, b², … with b = 1 + owners, so
    that the total over the owners has a digit for each column.
    """

    lacking: fl.PerSample  # (numbers, samples)


@dataclass(frozen=True)
class CopiedTotals:
    """The totals of Copied over the owners, for the owners, and those of their words."""

    cell: int
    columns: fl.PerFeature  # as in SharedFeatures
    lacking: fl.PerSample
    words: fl.PerFeature


@fl.describe("numbers that hide copies of each shared row")
class HiddenCopies:
    """What the owners' numbers of a row add up to is 0 modulo M if its copies are equal."""

    numbers: NDArray[np.uint32]  # (2, shared samples) of values rounded down, and to the nearest


def check_agreement(clients: fl.Clients, schema: Schema, part: str = "train") -> None:
    """Refuse labels of one sample of a part that differ between clients.

    A client that made up labels of another's test rows would change how these count in metrics, and
    the metrics of two runs would tell how a model does on a row.

    Raises
    ------
    FederationError
        If the labels of two clients do; it names both.
    """
    pairs = _pairs(schema)
    if not pairs:
        return
    draw_words, compare_labels = _labels(schema, part)
    words = clients.sum(draw_words, AskWords()).words
    # discloses which two clients have labels that differ, and in how many samples
    told = clients.ask(compare_labels, dict.fromkeys(_compared(schema), LabelWords(words)))
    kinds = 2 if _weighted(schema, part) else 1
    height = kinds * 2 * 3
    widths: Counter[ClientId] = Counter()
    for *both, shared in pairs:
        widths.update(dict.fromkeys(both, len(shared)))
    for name, one in told.items():
        width = widths[name]
        if (one.numbers.dtype, one.numbers.shape) != (np.uint32, (height, width)):
            raise _odd_numbers(name, f"labels of {width} samples", one.numbers)
    wrong: list[_Pair] = []
    weighed: list[_Pair] = []
    taken = dict.fromkeys(told, 0)
    for first, second, shared in pairs:
        total = np.zeros((height, len(shared)), np.uint64)
        for name in (first, second):
            start = taken[name]
            taken[name] += len(shared)
            total += told[name].numbers[:, start : taken[name]]
        other: NDArray[np.bool_] = (total % _PRIME > 0).reshape(kinds, 2, 3, -1)
        other = np.any(other, axis=2)
        unlike = other[:, 0] & other[:, 1]  # whichever way they are rounded
        if unlike.any():
            (wrong if unlike[0].any() else weighed).append((first, second, shared))
    if not wrong and weighed:
        first, second, shared = weighed[0]
        raise FederationError(
            f"{first!r} and {second!r} have different weights of one or more of the {len(shared)} "
            "samples that both label; give both the same column of weights, or only one of them "
            "the labels."
        )
    if wrong:
        first, second, shared = wrong[0]
        more = f", and so do {len(wrong) - 1} more pairs of clients" if len(wrong) > 1 else ""
        raise FederationError(
            f"{first!r} and {second!r} have different labels of one or more of the {len(shared)} "
            f"{'' if part == 'train' else f'{part} '}samples that both label{more}; "
            f"{correct_labels(schema.labels)}."
        )


def _pairs(schema: Schema) -> Sequence[_Pair]:
    """Return clients that label the same samples, the first, the next and which (positions)."""
    latest = np.full(len(schema.samples), -1, np.intp)  # who labelled a sample before
    found: list[_Pair] = []
    for number, name in enumerate(schema.clients):
        labelled = schema.samples.own(name)[schema.labelled_at(name)]
        before = latest[labelled]
        for other in np.unique(before[before >= 0]):
            found.append((schema.clients[other], name, labelled[before == other]))
        latest[labelled] = number
    return found


def _compared(schema: Schema) -> tuple[ClientId, ...]:
    """Return the clients of pairs, in the order of the schema."""
    found = {name for *names, _ in _pairs(schema) for name in names}
    return tuple(name for name in schema.clients if name in found)


def _weighted(schema: Schema, part: str) -> bool:
    """Return whether weights of rows are compared: they count in training alone."""
    return schema.labels.weighted and part == "train"


def _labels(schema: Schema, part: str) -> tuple[fl.ClientFunction, fl.ClientFunction]:
    """Return the client functions of step 0 on a part of the rows."""

    @cache  # found at the first call, once for all clients
    def smallest() -> int:
        return min((len(shared) for *_, shared in _pairs(schema)), default=1)

    @cache
    def pairs() -> Mapping[ClientId, Sequence[_Pair]]:
        found: dict[ClientId, list[_Pair]] = {name: [] for name in schema.clients}
        for pair in _pairs(schema):
            for name in pair[:2]:
                found[name].append(pair)
        return found

    def draw_words(
        state: Preparation, block: Block, message: AskWords, key: fl.SecretKey
    ) -> tuple[Preparation, LabelWords]:
        return state, LabelWords(_drawn_words(key, smallest(), block.shape[0]))

    def compare_labels(
        state: Preparation, block: Block, message: LabelWords, rng: fl.RandomKey
    ) -> tuple[Preparation, HiddenLabels]:
        own = schema.samples.own(state.client)
        kinds = [block.y, row_weights(block)] if _weighted(schema, part) else [block.y]
        numbers = [np.zeros((6 * len(kinds), 0), np.uint64)]
        for first, second, shared in pairs()[state.client]:
            rows = np.searchsorted(own, shared)
            key = _secret_of(message.words[:, rows]).fold_in(first, second)
            values = np.concatenate([_whole_numbers(one[rows]) for one in kinds if one is not None])
            numbers.append(_hidden(values, key, [first, second].index(state.client), 2))
        return state, HiddenLabels(np.concatenate(numbers, axis=1).astype(np.uint32))

    at: Any = part
    draw, compare = (_function(one, part=at) for one in (draw_words, compare_labels))
    return replace(draw, secret=True), compare


def correct_labels(labels: Labels) -> str:
    """Return the advice where two clients have different labels of a sample."""
    if labels.task != "regression":
        return "correct one of the tables"
    return (
        "correct one of the tables: numbers must agree in thirteen digits (single precision has "
        "seven), or let one client alone have the labels"
    )


def rounded_labels(values: Array) -> Array:
    """Return values rounded in two ways, (2, values): those that differ by less agree in one."""
    mantissas, exponents = np.frexp(values)
    ways = [way(mantissas * 2.0**_DIGITS) for way in (np.floor, np.rint)]
    return np.stack([np.ldexp(one, exponents - _DIGITS) for one in ways]) + 0.0  # no -0


def _whole_numbers(values: Array) -> Words:
    """Return three numbers for each way of rounding a value, (6, values); 0 is 0."""
    bits = rounded_labels(values).view(np.uint64)
    parts = [bits >> np.uint64(22 * at) & np.uint64(2**22 - 1) for at in range(3)]
    return np.stack(parts, axis=1).reshape(6, -1)


def count_shared(clients: fl.Clients, schema: Schema, part: str) -> list[str]:
    """Let the owners count the copies of each shared value; return notes of copies that differ."""
    shared = _shared_features(schema, part)
    if not shared:
        return []
    functions = _copies(schema, part)
    found = clients.sum(functions[0], dict.fromkeys(_sharing(schema, part), AskLacking()))
    notes = []
    for number in shared:
        cell = schema.features.cells[number]
        conflicts = _count_conflicts(clients, schema, functions, number, found)
        if not conflicts:
            continue
        every = map(str, schema.features.ids[cell.start : cell.stop])
        names = [name for name in every if name != INTERCEPT]
        which = f"the feature {names[0]}"
        if len(names) > 1:
            which = (
                f"one or more of the features {listed(names, 6)} (no one learns in which, as they "
                "are compared by sums over all of them)"
            )
        notes.append(
            f"{several(conflicts, f'{part} sample has', f'{part} samples have')} different copies "
            f"at {', '.join(cell.owners)} in {which}; their average is used: compare these tables. "
            "Where all tables are in one place, intarsia inspect names the columns."
        )
    return notes


def _count_conflicts(
    clients: fl.Clients,
    schema: Schema,
    functions: tuple[fl.ClientFunction, ...],
    number: int,
    found: Any,
) -> int:
    """Let the owners of a set of features compare copies; return how many samples have others."""
    _, count_copies, compare_copies = functions
    owners = schema.features.cells[number].owners
    marks = clients.sum(count_copies, dict.fromkeys(owners, SharedFeatures(number, found.columns)))
    message = CopiedTotals(number, found.columns, marks.lacking, found.words)
    # discloses how many shared samples of an overlap group disagree in this set of features
    told = clients.ask(compare_copies, dict.fromkeys(owners, message))
    total = np.zeros((2, len(schema.samples)), np.uint64)
    for name, one in told.items():
        runs = [rows for *_, rows in _sharers(schema, number, name)]
        shared = schema.samples.own(name)[np.concatenate([np.zeros(0, np.intp), *runs])]
        numbers = one.numbers
        if (numbers.dtype, numbers.shape) != (np.uint32, (2, len(shared))):
            raise _odd_numbers(name, f"copies of {len(shared)} samples", numbers)
        total[:, shared] += numbers
    return int((total % _PRIME > 0).all(axis=0).sum())


def _shared_features(schema: Schema, part: str) -> list[int]:
    """Return the numbers of the feature cells of which two owners share a sample."""
    together = [owners for owners in schema.samples.owner_sets if len(owners) > 1]
    return [
        number
        for number, cell in enumerate(schema.features.cells)
        if (
            cell.stop > cell.start + 1
            or schema.features.ids[cell.start] != INTERCEPT
            or (part == "train" and few_everywhere(schema, number))  # else all have it
        )
        and any(len(owners & schema.features.owner_sets[number]) > 1 for owners in together)
    ]


def _sharing(schema: Schema, part: str) -> tuple[ClientId, ...]:
    """Return the owners of the sets of features that are shared."""
    shared = _shared_features(schema, part)
    owners = {name for number in shared for name in schema.features.cells[number].owners}
    return tuple(name for name in schema.clients if name in owners)


def _sharers(
    schema: Schema, cell: int, client: ClientId
) -> Iterator[tuple[int, Sequence[ClientId], Positions]]:
    """Yield the overlap groups of a client's samples that others have the features of, too.

    Each with its number, all that have both, and where its samples stand among the client's own.
    """
    owners = schema.features.owner_sets[cell]
    groups = schema.samples.cell_of[schema.samples.own(client)]
    for group in np.unique(groups).tolist():
        sharing = sorted(owners & schema.samples.owner_sets[group])
        if len(sharing) > 1:
            yield group, sharing, np.flatnonzero(groups == group)


def _always(parties: tuple[ClientId, ...], schema: Schema, message: Any) -> tuple[ClientId, ...]:
    return parties


def _copies(schema: Schema, part: str) -> tuple[fl.ClientFunction, ...]:
    """Return the client functions of step 1 on a part of the rows."""
    cells, shared = schema.features.cells, cache(partial(_shared_features, schema, part))
    smallest = min((cells[number].stop - cells[number].start for number in shared()), default=1)

    def columns_of(client: ClientId, cell: int) -> Positions:
        """Return the client's positions of a set of features that it shares."""
        if cell not in shared() or client not in schema.features.owner_sets[cell]:
            raise RefusedError(
                f"Copies of feature cell {cell} were to be compared at {client!r}, which shares "
                "none there; run the preparation as it is at the server."
            )
        positions = np.arange(cells[cell].start, cells[cell].stop)
        return np.searchsorted(schema.features.own(client), positions)

    def find_lacking(
        state: Preparation, block: Block, message: AskLacking, key: fl.SecretKey
    ) -> tuple[Preparation, Lacking]:
        lacking = _lacking_columns(block).astype(np.float64)
        return state, Lacking(lacking[None, :], _drawn_words(key, smallest, block.shape[1]))

    def count_copies(
        state: Preparation, block: Block, message: SharedFeatures, rng: fl.RandomKey
    ) -> tuple[Preparation, Copied]:
        columns = columns_of(state.client, message.cell)
        marks = _lacks(block, columns[message.lacking[0, columns] > 0])
        marks &= holders_of(block, columns)[:, None] > 1
        state = replace(state, comparing=(part, message.cell))
        return state, Copied(_packed(marks.T, len(cells[message.cell].owners)))

    def totals_of(state: Preparation, message: CopiedTotals) -> tuple[Positions, Positions, Array]:
        """Return the shared columns, those that lack values, how many lack each, by samples."""
        columns, owners = columns_of(state.client, message.cell), len(cells[message.cell].owners)
        if state.comparing != (part, message.cell):  # of others they would count values
            raise RefusedError(
                f"Copies of feature cell {message.cell} were to be compared at {state.client!r} by "
                "the marks of another; run the preparation as it is at the server."
            )
        some = columns[message.columns[0, columns] > 0]
        return columns, some, _unpacked(message.lacking, len(some), owners).T

    def compare_copies(
        state: Preparation, block: Block, message: CopiedTotals, rng: fl.RandomKey
    ) -> tuple[Preparation, HiddenCopies]:
        columns, some, lacking = totals_of(state, message)
        held = holders_of(block, columns)
        own = _projections(block, message.cell, columns, some, lacking)
        secret = _secret_of(message.words[:, columns])
        numbers = [np.zeros((2, 0), np.uint64)]
        for group, sharing, rows in _sharers(schema, message.cell, state.client):
            # other marks make other values of the same rows, which other numbers hide
            marked = _digest(np.searchsorted(columns, some)) + _digest(lacking[rows])
            key = secret.fold_in(part, message.cell, group, marked.hex())
            numbers.append(_hidden(own[:, rows], key, sharing.index(state.client), len(sharing)))
        if block.copies is not None and lacking.any():
            every = may_lack(block)
            before = state.observed.get(part)
            observed = block.copies.take(None, every).dense() if before is None else before.copy()
            places = places_of(block, observed.shape[1])[some]
            known = places >= 0
            # not from what was there: asked again, it comes to the same
            observed[:, places[known]] = held[:, None] - lacking[:, known]
            state = replace(state, observed={**state.observed, part: observed})
        return state, HiddenCopies(np.concatenate(numbers, axis=1).astype(np.uint32))

    at: Any = part
    lack, *others = (
        _function(one, part=at) for one in (find_lacking, count_copies, compare_copies)
    )
    return replace(lack, secret=True), *others


def _lacks(block: Block, columns: Positions) -> NDArray[np.bool_]:
    """Return where columns of `may_lack` lack a value, (samples, columns)."""
    own = block.x[:, columns]
    found: NDArray[np.bool_] = np.isnan(own.toarray() if block.sparse else own)
    if np.intersect1d(columns, np.flatnonzero(block.scaled_only)).size:
        for levels, rows in block.without_level():
            found[:, columns == levels[0]] = rows[:, None]
    return found


def _lacking_columns(block: Block) -> NDArray[np.bool_]:
    """Return which columns lack a value that another client may have, (features,)."""
    found = np.zeros(block.shape[1], bool)
    if block.copies is None:
        return found
    for rows, own in pieces(block.x):
        missing = np.isnan(stored(own))
        if not missing.any():
            continue
        missing &= block.copies.take(rows, None).of_entries(own) > 1
        if block.sparse:
            found[own.indices[missing]] = True
        else:
            found |= missing.any(axis=0)
    found &= ~block.scaled_only
    for levels, absent in block.without_level():
        found[levels[0]] = bool((absent & (holders_of(block, levels) > 1)).any())
    return found


def _packed(marks: NDArray[np.bool_], owners: int) -> Array:
    """Return marks (columns, samples) as digits of numbers, (numbers, samples)."""
    digits = _digits(owners)
    shape = -(-len(marks) // digits), digits, marks.shape[1]
    padded = np.zeros((shape[0] * digits, shape[2]))
    padded[: len(marks)] = marks
    places = (owners + 1.0) ** np.arange(digits)
    found: Array = np.einsum("d,nds->ns", places, padded.reshape(shape))
    return found


def _unpacked(numbers: Array, columns: int, owners: int) -> Array:
    """Return the digits of totals, (columns, samples)."""
    places = (owners + 1.0) ** np.arange(_digits(owners))
    digits = np.rint(numbers)[:, None, :] // places[:, None] % (owners + 1)
    found: Array = digits.reshape(len(numbers) * len(places), numbers.shape[1])[:columns]
    return found


def _digits(owners: int) -> int:
    """Return how many digits make a total no larger than that of words."""
    return max(1, int(math.log(2.0 ** (_BITS - 1) * owners, owners + 1) + 1e-9))


def _projections(
    block: Block, cell: int, columns: Positions, some: Positions, lacking: Array
) -> Words:
    """Return Σ_j r_j g(x_j) modulo M, rounded down and to the nearest, (2, samples).

    A value that a holder of the sample lacks counts as 0. The factors r, from 1 to 2 but for their
    signs, are the same at every owner and in every run: they catch mistakes, not malice.
    """
    own, wide = block.x[:, columns].copy(), block.scaled_only[some]
    rows, places = np.nonzero(lacking * ~wide)
    if len(rows):
        own[rows, np.searchsorted(columns, some)[places]] = 0.0
    for levels in block.kinds_of_levels() if wide.any() else ():
        for absent in lacking[:, some == levels[0]].T > 0:
            put(own, absent, np.flatnonzero(np.isin(columns, levels)))
    entries = own.data if isinstance(own, csr_array) else own
    entries[np.isnan(entries)] = 0.0  # of a sample that no other client holds
    generator = fl.RandomKey(("copies", cell)).generator()
    factors = generator.uniform(1.0, 2.0, len(columns)) * generator.choice(
        [-1.0, 1.0], len(columns)
    )
    with np.errstate(divide="ignore"):  # of 0 the logarithm is -inf, and g is 0
        # g(x) = sign(x) log(1 + |x| / finest) / finest, where x / finest itself may be too large
        sizes = np.logaddexp(0.0, np.log(abs(entries)) - np.log(_FINEST))
    sizes *= np.sign(entries) / _FINEST
    if isinstance(own, csr_array):
        own.data = np.fmod(sizes * factors[own.indices], _PRIME)
    else:
        own = np.fmod(sizes * factors, _PRIME)
    total = np.asarray(own.sum(axis=1), np.float64)
    return (np.stack([np.floor(total), np.rint(total)]) % _PRIME).astype(np.uint64)


def _odd_numbers(client: ClientId, what: str, numbers: NDArray[Any]) -> SiteError:
    return SiteError(
        f"{client!r} compares {what} by numbers of the kind {numbers.dtype} and the shape "
        f"{numbers.shape}; install the same version of intarsia there, or see who runs the site."
    )


def _drawn_words(key: fl.SecretKey, smallest: int, count: int) -> Array:
    """Return random words, (words, count), of which so few columns are a key together."""
    shape = -(-_WORDS // smallest), count
    words = key.words(math.prod(shape)).view(np.int64) >> (64 - _BITS)
    return words.reshape(shape).astype(np.float64)


def _secret_of(words: Array) -> fl.SecretKey:
    """Return what the words of all are a key to."""
    return fl.SecretKey(_digest(np.rint(words) % 2**_BITS))


def _digest(array: NDArray[Any]) -> bytes:
    data = np.ascontiguousarray(array).tobytes()
    return hashlib.blake2b(data, digest_size=fl.SecretKey.SIZE).digest()


def _hidden(values: Words, key: fl.SecretKey, place: int, owners: int) -> Words:
    """Return k v + t modulo M of the owner at a place, in an order that the owners alone know.

    k and t are differences between neighbours in a circle, so that those of all add up to 0.
    """
    first, second = (
        (key.fold_in(at % owners).words(2 * values.size) % _PRIME).reshape(2, *values.shape)
        for at in (place, place + 1)
    )
    factors, shifts = (first + (_PRIME - second)) % _PRIME
    order = np.argsort(key.fold_in("order").words(values.shape[1]), kind="stable")
    found: Words = ((factors * values + shifts) % _PRIME)[:, order]
    return found


def sends(schemas: Mapping[str, Schema]) -> tuple[fl.Sends, ...]:
    """Return what crosses in `check_agreement` and `count_shared`."""
    found: list[fl.Sends] = []
    for part, schema in schemas.items():
        draw_words, compare_labels = _labels(schema, part)
        compared = cache(partial(_compared, schema))
        repeats = len(schemas) > 1  # for each part
        found += fl.each(fl.sums(draw_words), repeats=repeats)
        found += fl.each(
            fl.asks(compare_labels), parties=lambda *_, own=compared: own(), repeats=repeats
        )
        cells = schema.features.cells
        find_lacking, count_copies, compare_copies = _copies(schema, part)
        sharing = _sharing(schema, part)
        if sharing:
            found += fl.each(
                fl.sums(find_lacking),
                parties=partial(_always, sharing),
                repeats=True,  # for each part
            )
        copies = *fl.sums(count_copies), *fl.asks(compare_copies)
        # a number that is no cell's is refused by the client
        found += fl.each(
            copies,
            parties=lambda _, message, cells=cells: (
                cells[message.cell].owners if 0 <= message.cell < len(cells) else ()
            ),
            repeats=True,  # for each feature that several have
        )
    return tuple(found)


TOTALS: Mapping[str, fl.Origin] = {
    "CopiedTotals.columns": "Lacking.columns",
    "CopiedTotals.lacking": "Copied.lacking",
    "CopiedTotals.words": "Lacking.words",
    "LabelWords.words": "LabelWords.words",
    "SharedFeatures.lacking": "Lacking.columns",
}
