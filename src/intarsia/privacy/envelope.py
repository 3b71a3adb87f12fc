"""Messages between the server and a client that nobody in between reads, alters or plays again.

Each direction of a link has an `Envelope` at both ends, from a key that the two ends share (see
`intarsia.privacy.key_exchange.link_key`). A message is encrypted with AES-256-GCM under a key of
the session and the direction, and carries its number, which both ends count from 0.

Protected: from outsiders on the way, all but the length and the number of the messages. Not
protected: from the server itself, which is one end; sealed sums are for that. An outsider can stop
the messages, and both ends see that they stop.
"""

from __future__ import annotations

import struct
from typing import Final

from intarsia.errors import KeyMaterialError, ReplayError, TamperedError
from intarsia.privacy.ciphers import KEY_BYTES, decrypt, derive, encrypt, joined_texts

__all__ = ["Envelope"]

_NUMBER: Final = struct.Struct("<Q")


class Envelope:
    """One end of one direction of a link.

    Parameters
    ----------
    key
        32 bytes that only the two ends have.
    sender, receiver
        Their names; the other direction has them the other way round.
    session
        What both ends agreed to start from 0 with, fresh at each start; an empty one for a link
        whose `next_number` is kept for good.
    next_number
        The number of the next message, as `next_number` was when the state was stored. A sender
        stores it before it sends, a receiver after it has dealt with a message.

    Raises
    ------
    KeyMaterialError
        If the key is not 32 bytes.
    """

    def __init__(
        self, key: bytes, sender: str, receiver: str, *, session: str = "", next_number: int = 0
    ) -> None:
        if len(key) != KEY_BYTES:
            raise KeyMaterialError(
                f"The key of the link from {sender!r} to {receiver!r} has {len(key)} bytes; it "
                f"must have {KEY_BYTES}."
            )
        self._addresses = joined_texts("envelope", session, sender, receiver)
        self._key = derive(key, self._addresses)
        self._link = f"from {sender!r} to {receiver!r}"
        self._next = next_number

    @property
    def next_number(self) -> int:
        """Return the number of the next message: all the state there is."""
        return self._next

    def seal(self, message: bytes) -> bytes:
        """Return the next message as it goes over the link."""
        number = _NUMBER.pack(self._next)
        self._next += 1
        return number + encrypt(self._key, message, number + self._addresses)

    def open(self, sealed: bytes) -> bytes:
        """Return the next message.

        Raises
        ------
        TamperedError
            If it was altered, cut, or meant for another link or direction.
        ReplayError
            If it was opened before, or messages before it are missing.
        """
        if len(sealed) < _NUMBER.size:
            raise TamperedError(
                f"A message {self._link} has {len(sealed)} bytes, fewer than its number takes; it "
                "was cut on its way, send it again."
            )
        raw, rest = sealed[: _NUMBER.size], sealed[_NUMBER.size :]
        # First whether it is the sender's: the number of a forged message says nothing.
        message = decrypt(self._key, rest, raw + self._addresses)
        (number,) = _NUMBER.unpack(raw)
        if number < self._next:
            raise ReplayError(
                f"Message {number} {self._link} came again; {self._next} was expected. Somebody "
                "repeats messages, or an end went back to an old state: start a new session."
            )
        if number > self._next:
            raise ReplayError(
                f"Message {number} {self._link} came when {self._next} was expected; messages were "
                "lost or put into another order: send them again from there."
            )
        self._next += 1
        return message
