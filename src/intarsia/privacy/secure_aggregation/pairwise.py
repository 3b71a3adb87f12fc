"""Masks that cancel between pairs of contributors: no client opens another's contribution.

A contribution to a cell carries

* for each neighbour among the other contributors a mask under the key of the two alone, which the
  one that comes first by name adds and the other takes off: in the sum they cancel;
* from the first contributor a mask under a key that the owners of the cell alone have. It is all
  that is left in the sum, and the owners take it off. A contributor that is alone has only this.

The keys are those of `intarsia.privacy.keys.pair_keys`, one for each pair of clients and for the
owners of each cell. The places in the counter are as in `masking`: a hash under the owners' key of
session, sequence, round, function, field, cell and the names of all contributors.

Neighbours
----------
With up to `colluders` + log₂ n other contributors these are all of them. With more, the n
contributors stand in a circle by name, and each has as many neighbours as that, half of them on
either side: Harary's graph. It stays in one piece whichever clients are taken out, as long as they
are fewer than a client has neighbours. (Bell, Bonawitz, Gascón, Lepoint and Raykova 2020,
https://doi.org/10.1145/3372297.3417885, put the clients into the circle at random, so that fewer
neighbours do with high probability; what is said here holds for sure.)

What protects whom
------------------
Of the contributions to a total, words that the server and some clients hold

* are uniform to the server and to clients that do not own the cell, all together;
* to the server and owners say the total of the honest contributors and nothing else, as long as
  those that collude are `colluders` or fewer: the honest ones are connected by masks that nobody
  else can make. For any other contributions with the same total there are masks, as likely, that
  give the same words. The check in a piece is under the same masks, modulo its prime.

A total lacks a contributor: nothing of it can be opened, and the exchange begins anew under another
number, with other masks, among those who are left. A part that comes late is of use only with all
others of its own exchange. What remains: if it reaches the server all the same, the server and an
owner of the cell have two totals, with it and without.

A site that was started again keeps its keys. A server that asks it for the same exchange once more,
after its folder went back to an older state, would see two values under one mask. Such a site adds
a mask of the owners' key under a nonce of its own to each contribution, so that only an owner that
colludes with the server could tell the two values' difference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import numpy as np

from intarsia.errors import KeyMaterialError, SealedError, TamperedError
from intarsia.privacy.keys.crypto import BlockCipher, pseudorandom
from intarsia.privacy.keys.pair_keys import PairKeys
from intarsia.privacy.secure_aggregation import fixed_point
from intarsia.privacy.secure_aggregation.masking import BLOCK_WORDS, Room, Session, Words
from intarsia.privacy.secure_aggregation.protocol import Parties, Piece, Stream

_Write = Callable[[Any, Any], None]
_LONG = 2**15  # words
_PLANS = 2**15  # sets of contributors and owners whose ciphers are kept, by client
_PAIRS = 2**15  # clients whose ciphers are kept
_HERE = np.zeros((1, BLOCK_WORDS), np.uint64)  # at the start


class PairMasks:
    """Masks of pairs and of owners (see `masking.Masks`).

    `nonce` is b"" where nothing was sealed with these keys before. Masks of `residues` are other
    ones, and each is returned by itself.
    """

    def __init__(
        self, keys: PairKeys, colluders: int, *, nonce: bytes = b"", residues: bool = False
    ) -> None:
        self._keys, self._colluders = keys, colluders
        self._nonce, self._residues = nonce, residues
        self._purpose = "residues" if residues else "words"
        self._room = Room()
        self._session = ""
        self._owned: dict[tuple[str, ...], Session] = {}
        self._pairs: dict[tuple[str, str], BlockCipher] = {}
        self._plans: dict[tuple[str, Parties], tuple[Session, list[_Write], int]] = {}

    def of_contribution(
        self, client: str, stream: Stream, parties: Parties, count: int
    ) -> tuple[Words, int, Words]:
        """Return the masks of a contribution, how many are added, and factors of the check.

        Raises
        ------
        SealedError
            If the client is none of the contributors, or these are not among the owners.
        KeyMaterialError
            If it has no key in common with them.
        """
        self._enter(stream.session)
        plan = self._plans.get((client, parties))
        if plan is None:
            if len(self._plans) >= _PLANS or len(self._pairs) >= _PAIRS:
                self._plans.clear()
                self._pairs.clear()
            plan = self._plans[client, parties] = self._planned(client, parties)
        owned, writes, added = plan
        extra = 1 if self._nonce else 0
        number, blocks = len(writes) + extra, (count + 1) // BLOCK_WORDS
        # of long arrays the masks are added up one by one: all of them would fill the memory
        folded = number > 2 and number * count > _LONG and not self._residues
        here, clear, rows, masks = self._room.rows(2 if folded else number, blocks)
        start = owned.start(stream, parties.contributors)
        if extra:
            fixed_point.counters(start, owned.places((client,), (self._nonce,)), blocks, here)
            owned.cipher.write(clear, rows[0])
        fixed_point.counters(start, _HERE, blocks, here)
        factors = owned.factors(count)
        if not folded:
            for row, write in enumerate(writes, extra):
                write(clear, rows[row])
            return masks, added + extra, factors
        if not extra:
            masks[0] = 0
        for at, write in enumerate(writes):
            write(clear, rows[1])
            fixed_point.fold(masks[0], masks[1], 1 if at < added else -1, count)
        return masks[:1], 1, factors

    def of_total(self, piece: Piece, count: int) -> Iterator[tuple[Words, bool]]:
        """Yield the masks of the owners' key: those of pairs have cancelled."""
        owned = self._of_owners(piece)
        start = owned.start(piece.stream, piece.contributors)
        names, nonces = ("",), (b"",)  # the first contributor's
        if any(piece.nonces):
            both = zip(piece.contributors, piece.nonces, strict=True)
            more = [(name, nonce) for name, nonce in both if nonce]
            names, nonces = zip(("", b""), *more, strict=True)
        yield owned.masks(start, names, nonces, count), True

    def factors(self, piece: Piece, count: int) -> Words:
        """Return the factors of the check of a total: from the owners' key."""
        return self._of_owners(piece).factors(count)

    def nonce(self, client: str) -> bytes:
        """Return the nonce of all contributions; b"": these have none."""
        return self._nonce

    def owners(self, parties: Parties) -> tuple[str, ...]:
        """Return the owners: those who have the key."""
        return parties.owners

    def _enter(self, session: str) -> None:
        if self._session != session:
            self._session = session
            for kept in (self._owned, self._pairs, self._plans):
                kept.clear()

    def _of_owners(self, piece: Piece) -> Session:
        self._enter(piece.stream.session)
        names, owners = piece.contributors, piece.owners
        if list(owners) != sorted(set(owners)) or not set(names) <= set(owners):
            raise TamperedError(
                f"A total of {piece.stream} by {list(names)} is said to be owned by "
                f"{list(owners)}; contributors are owners, each named once and in order: it was "
                "altered, resume the run."
            )
        try:
            return self._owned_by(owners)
        except KeyMaterialError as error:
            raise TamperedError(
                f"A total of {piece.stream} is said to be owned by {list(owners)}, whose key this "
                "client does not have; it was altered, or is another client's."
            ) from error

    def _owned_by(self, owners: tuple[str, ...]) -> Session:
        found = self._owned.get(owners)
        if found is None:
            key = pseudorandom(self._keys.owners(owners), self._purpose)
            found = self._owned[owners] = Session(key, self._session, self._room)
        return found

    def _planned(self, client: str, parties: Parties) -> tuple[Session, list[_Write], int]:
        """Return the owners' session, what writes each mask, and how many of these are added."""
        names, owners = parties
        if client not in names or not set(names) <= set(owners):
            raise SealedError(
                f"Client {client!r} was to seal a contribution to a total of {list(names)} that "
                f"{list(owners)} own; name the client among the contributors, and these among the "
                "owners."
            )
        owned, at = self._owned_by(owners), names.index(client)
        others = neighbours(len(names), at, self._colluders)
        after = [self._pair(client, names[one]) for one in others if one > at]
        before = [self._pair(names[one], client) for one in others if one < at]
        first = [owned.cipher.write] if at == 0 else []
        return owned, [*first, *after, *before], len(first) + len(after)

    def _pair(self, one: str, other: str) -> _Write:
        found = self._pairs.get((one, other))
        if found is None:
            secret = pseudorandom(self._keys.pair(one, other), self._purpose, self._session)
            found = self._pairs[one, other] = BlockCipher(secret)
        return found.write


@lru_cache(maxsize=4096)
def neighbours(contributors: int, at: int, colluders: int) -> tuple[int, ...]:
    """Return with whom a contributor has a mask in common, all by their places in order.

    Whichever `colluders` of all are taken out, the others are connected.
    """
    wanted = colluders + math.ceil(math.log2(max(contributors, 2)))
    if wanted >= contributors - 1:
        return tuple(one for one in range(contributors) if one != at)
    half = -(-wanted // 2)
    steps = (*range(-half, 0), *range(1, half + 1))
    return tuple(sorted({(at + step) % contributors for step in steps} - {at}))
