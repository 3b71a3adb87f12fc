"""Ledger of releases with noise: it counts them, and binds the noise of each to its attempt.

Differential privacy holds for so many releases, each with noise of its own. A client goes back to
an earlier state when a round begins again or a process was killed; what it released does not go
back. So the ledger lies apart from the states, and only grows.

The noise of a release comes from the client's secret and from all that the release is computed
from: the call, and the state that it goes on from. The same call at the same state is the same
release: it comes to the same numbers and counts once. Any other has fresh noise, whatever the
ledger knows, so that no two totals differ by less than noise even where the ledger was lost or put
back. What is lost with it is the count alone.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Sequence
from pathlib import Path

from intarsia.core.block import ClientId
from intarsia.core.client_functions import NoiseKey, RandomKey, SecretKey
from intarsia.engines.record_file import append, framed, whole_records

_NONCE = 16  # bytes by which the noise of two runs with the same secrets differs
_MARK = 16  # bytes that tell a release from others; they tell nothing of what it was


class ReleaseLedger:
    """What clients released with noise in a run.

    Parameters
    ----------
    path
        The file that it is kept in, which is made at the first release; None: it is kept in memory.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._size = 0  # of what was read of the file, or written to it
        self._nonce = b""
        self._numbers: dict[ClientId, dict[bytes, int]] = {}
        self._waiting: list[bytes] = []  # records that are not in the file yet

    def key(
        self, client: ClientId, secret: SecretKey, public: RandomKey, parts: Sequence[bytes]
    ) -> NoiseKey:
        """Return what a release draws from, and count it if it is a new one.

        Nothing of the release may leave before `settle` was called.

        Parameters
        ----------
        parts
            All that the release is computed from beside the client's table.
        """
        self._read()
        if not self._nonce:
            self._nonce = secrets.token_bytes(_NONCE)
            self._waiting.append(framed(self._nonce))
        digest = hashlib.blake2b(digest_size=32)
        for part in (repr(public.words).encode(), *parts):
            digest.update(len(part).to_bytes(8, "little") + part)
        own = secret.fold_in("noise", self._nonce.hex(), client, digest.hexdigest())
        mark = own.fold_in("mark").stream(_MARK)
        known = self._numbers.setdefault(client, {})
        if mark not in known:
            known[mark] = len(known) + 1
            self._waiting.append(framed(mark + client.encode()))
        return NoiseKey(public, own.fold_in("normal"), known[mark])

    def settle(self) -> None:
        """Come back when all that was counted is durable.

        Raises
        ------
        OSError
            If it cannot be written; then nothing may be released.
        """
        if self._path is None or not self._waiting:
            self._waiting = []
            return
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = os.open(self._path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
        try:
            os.ftruncate(file, self._size)  # a record that a process was killed in is cut
            append(self._path, file, b"".join(self._waiting))
            os.fsync(file)
            self._size = os.fstat(file).st_size
        finally:
            os.close(file)
        self._waiting = []

    def _read(self) -> None:
        """Read the file, unless it is as this left it: another process may have gone on since."""
        if self._path is None or self._waiting:
            return
        try:
            if self._path.stat().st_size == self._size:
                return
            with self._path.open("rb") as file:
                nonce, *marks = [*whole_records(file)] or [b""]
                self._size = file.tell()
        except FileNotFoundError:
            return  # what is in memory still counts
        self._nonce, self._numbers = nonce, {}
        for record in marks:
            known = self._numbers.setdefault(record[_MARK:].decode(), {})
            known.setdefault(record[:_MARK], len(known) + 1)
