"""The key that the clients share and the server never has.

All secrets of a federation are derived from 32 random bytes, each for one purpose, so that one key
is exchanged, stored, compared and replaced. Whoever has it opens every sealed sum of its generation
and links pseudonyms to ids: it stays in a file that only its owner reads, and leaves a client only
as `intarsia.privacy.keys.key_exchange` wraps it.

A rotation ends what an old key can open: sums sealed from then on. What was recorded before stays
open to whoever has the old key. Pseudonyms change as well, so that rows are aligned again.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Self

from intarsia.errors import KeyMaterialError
from intarsia.privacy.keys.crypto import KEY_BYTES, derive, joined_texts, new_secret
from intarsia.privacy.keys.secret_file import read_private, write_private

_KIND: Final = "shared key"
_SHOWN: Final = 16  # bytes of the hash, in groups of two


def fingerprint(kind: str, *material: str | bytes) -> str:
    """Return 8 groups of 4 hex digits that people compare, one of 2^128."""
    digest = hashlib.sha256(joined_texts("intarsia fingerprint", kind, *material)).digest()
    return digest[:_SHOWN].hex(" ", 2)


@dataclass(frozen=True)
class SharedKey:
    """A federation's key of one generation.

    Raises
    ------
    KeyMaterialError
        If the secret has another length, or the generation is below 1.
    """

    secret: bytes = field(repr=False)  # 32, random
    federation: str  # its name, which every derived key depends on
    generation: int = 1  # of the first key, one more at each rotation

    def __post_init__(self) -> None:
        if len(self.secret) != KEY_BYTES:
            raise KeyMaterialError(
                f"The shared key of {self.federation!r} has {len(self.secret)} bytes; it must have "
                f"{KEY_BYTES}."
            )
        if self.generation < 1:
            raise KeyMaterialError(
                f"The shared key of {self.federation!r} has generation {self.generation}; "
                "generations count from 1."
            )

    @classmethod
    def draw(cls, federation: str) -> Self:
        """Return a fresh key of generation 1."""
        return cls(new_secret(), federation)

    @property
    def fingerprint(self) -> str:
        """Return what clients read to one another to see that they have the same key."""
        return fingerprint(_KIND, self.derive("fingerprint"))

    def derive(self, purpose: str) -> bytes:
        """Return 32 bytes for one purpose, such as "masks", "pseudonyms" or "ckks"."""
        return derive(self.secret, _KIND, self.federation, str(self.generation), purpose)

    def rotate(self) -> Self:
        """Return a fresh key of the next generation; nothing of the old one is in it."""
        return replace(self, secret=new_secret(), generation=self.generation + 1)

    def store(self, path: Path) -> None:
        """Write the key to a file of its owner's alone; KeyMaterialError if it cannot be."""
        public = {"federation": self.federation, "generation": self.generation}
        write_private(path, _KIND, public, self.secret)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Return the key in a file; KeyMaterialError if others may read it, or it changed."""
        public, secret = read_private(path, _KIND)
        return cls(secret, public["federation"], public["generation"])
