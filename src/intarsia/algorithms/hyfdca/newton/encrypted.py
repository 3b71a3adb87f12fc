"""Shares of Newton's system that nobody deals: products of two clients' rows under encryption.

`shares` has the whole; this is its step 1 and 2 with algorithm.system = "encrypted". Of a
pair of co-owners the client whose turn comes first encrypts, the other multiplies:

1. Each client that has samples in common with one of a later turn draws a key, and sends
   √D X_A P, in fixed-point words, encrypted under it to the co-owners of the samples.
2. The other multiplies the ciphertexts by its own √D X_B P in the clear, hides what they then say
   (`maths/encrypted_products.py`), and sends them back. What it hid by is its share.
3. The first decrypts: its share. Shares, and what each client has of its own, add up in a sealed
   sum, as where the server deals.

All of it crosses in sealed sums, so that the server can neither read ciphertexts nor put others in
their place. The server and all clients but two have ciphertexts of these two, under keys of the two
alone. The shares are exact modulo 2^64: the system has the same bits as with dealt words.

No randomness hides two things. Keys and noise come from the client's own secret and from all that
they are to hide: a step that is done again has the same ciphertexts only if it has the same rows,
curvatures and, at who multiplies, ciphertexts of the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia import core as fl
from intarsia.algorithms.hyfdca.newton.point import Overlap, Partner, Point
from intarsia.algorithms.hyfdca.newton.shares import (
    TURNS,
    Dealer,
    Sharing,
    SystemShare,
    Words,
    basis_rows,
    begin_share,
    begin_step,
    cells_of,
    digest_of,
    no_words,
    weighted_rows,
)
from intarsia.core.block import Array, Block, ClientId
from intarsia.errors import RangeError, RefusedError
from intarsia.maths import encrypted_products
from intarsia.maths.encrypted_products import (
    CIPHERTEXT,
    LARGEST,
    REPLY,
    ROWS,
    Encrypted,
    layout,
    replies_of,
)
from intarsia.maths.linear.word_products import BITS, add_block, split_words


@dataclass(frozen=True)
class Encrypt:
    """What the Hessian's size follows from."""

    bounds: Array  # (outputs, 2) the total, which each client opens for itself
    part: int = 0  # whose rows cross: those of four turns


@fl.describe(
    "chosen rows encrypted under a key of their client", counts="numbers of ciphertexts of rows"
)
class EncryptedRows:
    """Ciphertexts of a client's rows with curvature, cell by cell; see `_headed`."""

    first: fl.PerSelected | None  # (words, ciphertexts) at the clients whose turn it is
    second: fl.PerSelected | None
    third: fl.PerSelected | None
    fourth: fl.PerSelected | None
    counts: fl.Counts


@dataclass(frozen=True)
class ToMultiply:
    """Co-owners' ciphertexts by turn."""

    part: int  # whose these are: those of four turns
    back: int  # who multiplies them: those of four turns
    first: fl.PerSelected | None = None
    second: fl.PerSelected | None = None
    third: fl.PerSelected | None = None
    fourth: fl.PerSelected | None = None


@fl.describe(
    "products of columns under encryption less random numbers",
    counts="numbers of ciphertexts of products",
)
class EncryptedProducts:
    """What the others decrypt, in the first cell that a pair has in common; see `_headed`."""

    first: fl.PerSelected | None  # (words, ciphertexts) of the clients whose turn it is
    second: fl.PerSelected | None
    third: fl.PerSelected | None
    fourth: fl.PerSelected | None
    counts: fl.Counts


@dataclass(frozen=True)
class ToShare:
    """Products that were multiplied last, by the turn of who did; as `Factors` otherwise."""

    part: int  # who decrypts
    back: int  # who multiplied
    bounds: Array  # (outputs, 2) the total, which each client opens for itself
    blind: bytes | None  # seed of words over the client's own part; None: it sent that before
    first: fl.PerSelected | None = None
    second: fl.PerSelected | None = None
    third: fl.PerSelected | None = None
    fourth: fl.PerSelected | None = None


def share_encrypted(
    clients: fl.Clients,
    dealer: Dealer,
    bounds: Any,
    outputs: int,
    secret: fl.SecretKey,
    blinds: Mapping[ClientId, bytes],
) -> tuple[Any, Words]:
    """Let clients share the system by ciphertexts of their own; see `shares.Share`."""
    overlaps = dealer.overlaps
    sharing = [name for name, one in overlaps.items() if one.partners]
    parts = sorted({overlaps[name].turn // len(TURNS) for name in sharing}) or [0]
    total = rows = products = None
    for part in parts:
        if sharing:
            rows = clients.sum(encrypt_rows, {name: Encrypt(bounds, part) for name in sharing})
        for back in parts[part:]:
            if sharing:
                given = {
                    name: ToMultiply(
                        part, back, **_of_turns(rows, name, dealer, back, part, earlier=True)
                    )
                    for name in sharing
                }
                products = clients.sum(multiply_encrypted, given)
            messages = {
                name: ToShare(
                    *(part, back, bounds, None if part or back else blinds[name]),
                    **_of_turns(products, name, dealer, part, back, earlier=False),
                )
                for name in overlaps
            }
            share = clients.sum(share_products, messages).system
            total = share if total is None else total + share
    return total, no_words(dealer, outputs)


def _of_turns(
    reply: Any, name: ClientId, dealer: Dealer, own: int, theirs: int, *, earlier: bool
) -> dict[str, Any]:
    """Return what a client of some four turns gets of partners of some others, by field."""
    overlap = dealer.overlaps[name]
    if overlap.turn // len(TURNS) != own:
        return {}
    sends = [one for one in _met(overlap, theirs) if (one.turn < overlap.turn) == earlier]
    return {
        field: getattr(reply, field) for field in {TURNS[one.turn % len(TURNS)] for one in sends}
    }


@fl.secret_function
def encrypt_rows(
    state: Point | Sharing, block: Block, message: Encrypt, rng: fl.SecretKey
) -> tuple[Sharing, EncryptedRows]:
    """Send the weighted rows, encrypted, to the co-owners of later turns.

    Raises
    ------
    RefusedError
        If they were sent before in this step, or their turn is not come.
    """
    before = state.part + 1 if isinstance(state, Sharing) else 0
    if message.part != before:
        raise RefusedError(
            f"Part {message.part} of the encrypted rows was asked for where part {before} comes "
            "next; run the algorithm as it is at the server."
        )
    if isinstance(state, Point):
        point = begin_step(state, message.bounds)
        rows = basis_rows(point, block)
        own = weighted_rows(point, rows)
        drawn = rng.fold_in("rows", digest_of(point.selected, own))
        state = Sharing(point, rows, own, own[:0], drawn.to_file())
    state = fl.evolve(state, part=message.part, shares={})
    overlap = state.point.overlap
    sent: dict[int, list[Words]] = {}
    if overlap.turn // len(TURNS) == message.part:
        key = encrypted_products.draw_key(fl.SecretKey(state.nonce).fold_in("key"))
        later = [one.cells for one in overlap.partners if one.turn > overlap.turn]
        for at, number, words in _own_words(state):
            if any(cells[at] for cells in later):
                drawn = fl.SecretKey(state.nonce).fold_in("cell", number)
                found = encrypted_products.encrypt(key, words, drawn)
                sent[at] = [_headed(overlap.turn, number, found)]
    fields, counts = _laid_out(state.point, sent, message.part, CIPHERTEXT)
    return state, EncryptedRows(**fields, counts=counts)


# of one of four turns in each cell; a cell has the public key beside the ciphertexts of its rows
encrypt_rows = fl.one_sender(encrypt_rows, *TURNS, beside=1)


def _own_words(state: Sharing) -> Iterator[tuple[int, int, Words]]:
    """Yield the place and the number of each cell of `cells_of`, with the client's weighted rows.

    These are (outputs, samples, features).
    """
    point, begin = state.point, 0
    for at, number, start, stop in cells_of(point):
        shape = len(point.w), stop - start, len(point.overlap.features)
        end = begin + int(np.prod(shape))
        yield at, number, state.own[begin:end].reshape(shape)
        begin = end


def _headed(turn: int, cell: int, words: Words) -> Words:
    """Return ciphertexts as columns, each below a word that says for, or of, whom it is and where.

    That is the turn of who encrypts or decrypts, which in a cell is one client, and the cell.
    """
    header = np.full((len(words), 1), turn << 32 | cell, np.uint64)
    return np.concatenate([header, words], axis=1).T


def _laid_out(
    point: Point, sent: Mapping[int, Sequence[Words]], part: int, size: int
) -> tuple[dict[str, Any], NDArray[np.int64]]:
    """Return columns by cell as fields of a reply, and how many there are of each own cell."""
    overlap = point.overlap
    fields: dict[str, Any] = dict.fromkeys(TURNS)
    counts = np.zeros(len(overlap.cells), np.int64)
    for at, columns in sent.items():
        counts[at] = sum(one.shape[1] for one in columns)
    if overlap.turn // len(TURNS) == part:
        found = [one for at in sorted(sent) for one in sent[at]]
        empty = np.zeros((1 + size, 0), np.uint64)
        fields[TURNS[overlap.turn % len(TURNS)]] = np.concatenate([empty, *found], axis=1)
    return fields, counts


def _read(message: Any, one: Partner, turn: int, cell: int, size: int, count: int) -> Words:
    """Return the ciphertexts that a partner sent, (count, words).

    Raises
    ------
    RefusedError
        If they are not there; it names the partner.
    """
    found = getattr(message, TURNS[one.turn % len(TURNS)])
    if isinstance(found, np.ndarray) and found.dtype == np.uint64 and found.ndim == 2:
        mine = found[1:, found[0] == np.uint64(turn << 32 | cell)] if len(found) else found
        if mine.shape == (size, count):
            return np.ascontiguousarray(mine.T)
    raise _malformed(one.name)


def _malformed(name: ClientId) -> RefusedError:
    return RefusedError(
        f"Client {name!r} sent ciphertexts of other numbers or sizes than its columns and the "
        "samples in common give; run the same version of intarsia there, and ask its owner."
    )


@fl.secret_function
def multiply_encrypted(
    state: Point | Sharing, block: Block, message: ToMultiply, rng: fl.SecretKey
) -> tuple[Sharing, EncryptedProducts]:
    """Multiply the ciphertexts of co-owners of earlier turns by this client's rows, and hide it.

    Raises
    ------
    RefusedError
        If ciphertexts are malformed, or this client's rows were not encrypted before.
    RangeError
        If rows are so large that products would not be exact.
    """
    if isinstance(state, Point):
        raise RefusedError(
            "Products of encrypted rows were asked for before rows were encrypted; run the "
            "algorithm as it is at the server."
        )
    point = state.point
    overlap = point.overlap
    sent: dict[int, list[Words]] = {}
    shares: dict[ClientId, Words] = {}
    met = [one for one in _met(overlap, message.part) if one.turn < overlap.turn]
    if overlap.turn // len(TURNS) == message.back and met:
        rows, firsts = _in_blocks(state)
        drawn = rng.fold_in("products", state.nonce.hex())  # it follows from this client's rows
        found = [(one, _ciphertexts_of(one, message, point, firsts, drawn)) for one in met]
        found = [(one, given) for one, given in found if given]
        replies: dict[ClientId, list[Words]] = {one.name: [] for one, _ in found}
        for c, words in enumerate(rows):
            products = encrypted_products.multiply([given[c] for _, given in found], words)
            for (one, _), (reply, share) in zip(found, products, strict=True):
                replies[one.name].append(reply)
                kept = shares.setdefault(
                    one.name,
                    np.empty((len(rows), len(one.features), len(overlap.features)), np.uint64),
                )
                kept[c] = share[: len(one.features)]
        for one, _ in found:
            at, number, *_ = next(_common(point, one))
            columns = _headed(one.turn, number, np.concatenate(replies[one.name]))
            sent.setdefault(at, []).append(columns)
    fields, counts = _laid_out(point, sent, message.back, REPLY)
    return fl.evolve(state, shares=shares), EncryptedProducts(**fields, counts=counts)


# of one of four turns in each cell; products have as many for a cell of one sample as for others
multiply_encrypted = fl.one_sender(multiply_encrypted, *TURNS, beside=1 << 18)


def _met(overlap: Overlap, part: int) -> list[Partner]:
    """Return a client's partners of some four turns."""
    return [one for one in overlap.partners if one.turn // len(TURNS) == part]


def _common(point: Point, one: Partner) -> Iterator[tuple[int, int, int, int]]:
    """Yield the cells that a client has in common with a partner, as `cells_of`."""
    return (cell for cell in cells_of(point) if one.cells[cell[0]])


def _in_blocks(state: Sharing) -> tuple[Words, dict[int, int]]:
    """Return rows in whole blocks, (outputs, blocks, ROWS, features); the first of each cell."""
    point, firsts, blocks = state.point, dict[int, int](), 0
    for at, _, words in _own_words(state):
        firsts[at] = blocks
        blocks += layout(words.shape[1], 1)[0]
    outputs, columns = len(point.w), len(point.overlap.features)
    found = np.zeros((outputs, blocks * ROWS, columns), np.uint64)
    for at, _, words in _own_words(state):
        found[:, firsts[at] * ROWS :][:, : words.shape[1]] = words
    sizes = np.abs(found.view(np.int64).astype(np.float64)).sum(axis=1)
    if (sizes > LARGEST).any():
        raise RangeError(
            f"Chosen rows add up to {sizes.max() * 2.0**-BITS:.3g} in a column, more than "
            f"{LARGEST * 2.0**-BITS:.3g}, and their products under encryption would not be exact",
            'set algorithm.system = "shares"',
        )
    return found.reshape(outputs, blocks, ROWS, columns), firsts


def _ciphertexts_of(
    one: Partner,
    message: ToMultiply,
    point: Point,
    firsts: Mapping[int, int],
    drawn: fl.SecretKey,
) -> list[Encrypted]:
    """Return what a partner encrypted for each output; [] without samples in common."""
    outputs, public = len(point.w), None
    found: list[list[NDArray[np.uint32]]] = [[] for _ in range(outputs)]
    places: list[NDArray[np.int64]] = []
    read: list[Words] = []
    for at, number, start, stop in _common(point, one):
        blocks, groups = layout(stop - start, len(one.features))
        count = 1 + outputs * blocks * groups
        read.append(_read(message, one, one.turn, number, CIPHERTEXT, count))
        expanded = encrypted_products.expand(read[-1])
        if expanded is None:
            raise _malformed(one.name)
        public = expanded[0] if public is None else public
        parts = expanded[1:].reshape(outputs, blocks, groups, *expanded.shape[1:])
        for c in range(outputs):
            found[c].append(parts[c])
        places.append(firsts[at] + np.arange(blocks))
    if public is None:
        return []
    key = drawn.fold_in(one.name, digest_of(*read))
    return [
        Encrypted(public, np.concatenate(some), np.concatenate(places), key.fold_in(c))
        for c, some in enumerate(found)
    ]


@fl.secret_function
def share_products(
    state: Point | Sharing, block: Block, message: ToShare, rng: fl.SecretKey
) -> tuple[Point | Sharing, SystemShare]:
    """Send this client's share of the system: what it decrypts, and what it hid products by.

    Raises
    ------
    RefusedError
        If products are malformed.
    """
    if isinstance(state, Point):
        state = begin_step(state, message.bounds)
    point = state.point if isinstance(state, Sharing) else state
    rows = state.rows if isinstance(state, Sharing) else None
    whole, total = begin_share(point, block, rows, message.blind, rng)
    if not isinstance(state, Sharing):
        return state, SystemShare(split_words(whole))
    overlap, size = point.overlap, point.overlap.all_features
    for one in overlap.partners:
        for c, words in enumerate(state.shares.get(one.name, ())):
            add_block(total[c], size, words, one.features, overlap.features)
    if overlap.turn // len(TURNS) == message.part:
        key = encrypted_products.draw_key(fl.SecretKey(state.nonce).fold_in("key"))
        for one in _met(overlap, message.back):
            cell = next(_common(point, one), None)
            if one.turn < overlap.turn or cell is None:
                continue
            sizes = len(overlap.features), len(one.features)
            count = len(total) * replies_of(*sizes)
            given = _read(message, one, overlap.turn, cell[1], REPLY, count)
            for c, replies in enumerate(np.split(given, len(total))):
                found = encrypted_products.decrypt(key, replies, *sizes)
                if found is None:
                    raise _malformed(one.name)
                add_block(total[c], size, found, overlap.features, one.features)
    return fl.evolve(state, shares={}), SystemShare(split_words(whole))


SENDS = fl.each(
    fl.sums(encrypt_rows, multiply_encrypted) + fl.sums(share_products, reveals=("system",)),
    needed=lambda options: options.system == "encrypted",
)
