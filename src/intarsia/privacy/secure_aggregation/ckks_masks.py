"""Masks over ciphertexts: those of pairs, as residues that cancel in the sum.

The secret key of CKKS is one that all clients have: with it alone each would open the contribution
of any other. Under `trust = "pairs"` the first polynomial of a ciphertext carries masks as words do
(see `intarsia.privacy.secure_aggregation.pairwise`): uniform modulo each prime of the modulus, they
cancel in the sum but for that of the owners, who take it off before they decrypt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from intarsia.maths.jit import compiled
from intarsia.privacy.secure_aggregation.ckks_ciphertexts import Arithmetic
from intarsia.privacy.secure_aggregation.masking import Words
from intarsia.privacy.secure_aggregation.pairwise import PairMasks
from intarsia.privacy.secure_aggregation.protocol import Parties, Piece, Stream

# Words beyond the residues of a ciphertext: one of 2^19 at most is not below its prime, and is left
# out, so that those which are kept are uniform.
_SPARE = 64


class CiphertextMasks:
    """A client's masks over ciphertexts."""

    def __init__(self, masks: PairMasks, arithmetic: Arithmetic) -> None:
        self.masks = masks
        self._arithmetic = arithmetic
        self._primes = np.array(arithmetic.primes, np.uint64)
        self._degree = arithmetic.parameters.poly_modulus_degree
        self._words = self._degree * len(self._primes) + _SPARE  # of a ciphertext

    def hide(
        self, client: str, stream: Stream, parties: Parties, parts: Sequence[Any]
    ) -> tuple[Any, ...]:
        """Return a contribution's ciphertexts under masks; errors as for `PairMasks`."""
        return tuple(
            self._moved(
                part,
                *self.masks.of_contribution(client, _of_part(stream, k), parties, self._words)[:2],
            )
            for k, part in enumerate(parts)
        )

    def uncover(self, piece: Piece, parts: Sequence[Any]) -> tuple[Any, ...]:
        """Return a total's ciphertexts without the masks that have not cancelled."""
        found: list[Any] = []
        for k, part in enumerate(parts):
            here = part
            own = replace(piece, stream=_of_part(piece.stream, k))
            for words, _ in self.masks.of_total(own, self._words):
                here = self._moved(here, words, 0)
            found.append(here)
        return tuple(found)

    def _moved(self, part: Any, words: Words, added: int) -> Any:
        sums = np.empty(self._degree * len(self._primes), np.uint64)
        add_residues(words[:, : self._words], added, self._primes, sums)
        return self._arithmetic.moved(part, sums)


def _of_part(stream: Stream, number: int) -> Stream:
    return replace(stream, field=f"{stream.field} ciphertext {number}")


@compiled
def add_residues(words: Words, added: int, primes: Words, sums: Words) -> None:
    """Write the sums of masks as residues, (primes · degree,), prime by prime.

    Those of `words`, (masks, words), after the first `added` are taken off.
    """
    sums[:] = 0
    degree = len(sums) // len(primes)
    spare = words.shape[1] - len(sums)
    for c in range(len(words)):
        place = 0
        for k in range(len(primes)):
            prime, low = primes[k], np.uint64(1)
            while low < prime:
                low = (low << np.uint64(1)) | np.uint64(1)
            for j in range(k * degree, (k + 1) * degree):
                residue = words[c, place] & low
                place += 1
                while residue >= prime and place <= j + spare:
                    residue = words[c, place] & low
                    place += 1
                residue %= prime
                if c >= added and residue:
                    residue = prime - residue
                residue += sums[j]
                sums[j] = residue - prime if residue >= prime else residue
