"""The parameters of CKKS for sums: polynomial degree, modulus and scale from range and error.

A ciphertext of degree N holds N real values: two in each of its N/2 complex slots. With scale s,
a slot of a fresh ciphertext is off by a normal error of standard deviation σ √(N/2) / s in each of
its two values, σ = 3.2 being the width of the noise that is added to each coefficient, and n
ciphertexts added are off by √n times as much. The coefficients are at most √2 · range · s and must
stay below a quarter of the modulus q, so that a larger range takes a smaller scale or a longer q.

A decrypted total carries that noise, and noise and ciphertext together give the secret key away:
the noise is the secret of CKKS (Li and Micciancio, "On the security of homomorphic encryption on
approximate numbers", Eurocrypt 2021). Each client therefore rounds its values to the multiples of a
power of two, the grid, before it seals them, and a total is rounded to the nearest of these, and
refused where it is farther from it than noise takes it. The grid is at least four times as wide as
any noise, so that what is opened is the sum of the rounded values exactly, the same bits whatever
the noise was; and of a total that a server has moved by a part of a step no two noises, if they are
opened, give two results. That it was refused is all that tells of the noise.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, replace

from intarsia.core.files.json_text import parse_json
from intarsia.errors import ExperimentError, KeyMaterialError
from intarsia.privacy.secure_aggregation.protocol import check_range

_DEGREE = 8192  # 8,192 values in a ciphertext; 128-bit security up to a modulus of 218 bits
# Primes of the modulus by bits. With more than one, SEAL keeps the last for its own use, and
# ciphertexts have the others. 40-bit primes are the shortest to write out; 60 is the longest.
_MODULI = ((60,), (40, 40, 40), (50, 50, 50), (60, 60, 60))
_NOISE = 3.3  # σ of the noise and of rounding the coefficients to integers
_DEVIATIONS = 9  # of a normal error beyond which no value ever is: 2e-19 of them
# Encoding and decoding in float64 are off by up to 19 · 2^-53 of the largest value (measured with
# constant, random, alternating and single values); a value is taken for lost at 32 · 2^-53.
_ROUNDING = 2.0**-48
_FINEST = 2.0**-27  # step of the grid that is aimed at where the range allows it
_SMALLEST = 2.0**-20  # range: below, a check would be lost in its noise


@dataclass(frozen=True, kw_only=True)
class CkksParameters:
    """How values become ciphertexts; known to the server."""

    poly_modulus_degree: int  # values in a ciphertext, one of them for its check
    coeff_mod_bit_sizes: tuple[int, ...]  # bits of the primes whose product is the modulus
    scale_bits: int  # log₂ of the factor of values before they are rounded to integers
    grid_bits: int  # sealed values, and so opened totals, are multiples of 2^-grid_bits
    range: float  # the largest absolute value of a total
    addends: int  # largest number of contributions to a total, each at most range / addends

    @property
    def scale(self) -> float:
        """Return the factor by which values are multiplied before they are rounded."""
        return math.ldexp(1.0, self.scale_bits)

    @property
    def grid(self) -> float:
        """Return the distance between neighbouring values."""
        return math.ldexp(1.0, -self.grid_bits)

    @property
    def limit(self) -> float:
        """Return the largest absolute value of an addend."""
        return self.range / self.addends

    @property
    def capacity(self) -> int:
        """Return the number of values in a ciphertext, without its check."""
        return self.poly_modulus_degree - 1

    def ciphertexts(self, values: int) -> int:
        """Return the number of ciphertexts for so many values; at least one, for the check."""
        return max(1, -(-values // self.capacity))

    def noise(self, contributors: int) -> float:
        """Return how far a decrypted total is off from the sum of what was sealed, at most."""
        return _DEVIATIONS * self._deviation(contributors) + _ROUNDING * self.range

    def error(self, contributors: int) -> float:
        """Return how far an opened total of so many contributions can be off.

        Each is rounded up or down, by less than a step of the grid.
        """
        return contributors * self.grid

    def covers(self) -> bool:
        """Return whether the grid is so wide that an opened total says nothing of the noise."""
        return self.grid >= self._least_grid()

    def to_bytes(self) -> bytes:
        """Return the parameters as JSON."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> CkksParameters:
        """Return the parameters that `to_bytes` wrote.

        Raises
        ------
        KeyMaterialError
            If the bytes are something else.
        """
        try:
            fields = parse_json(data)
            fields["coeff_mod_bit_sizes"] = tuple(int(b) for b in fields["coeff_mod_bit_sizes"])
            return cls(**fields)
        except (KeyError, TypeError, ValueError) as error:
            raise KeyMaterialError(
                f"{bytes(data[:40])!r}… are no CKKS parameters; take the bytes that "
                "CkksKeys.public_bytes returned."
            ) from error

    def _least_grid(self) -> float:
        """Return the least step of a grid: more than noises can differ, and be taken for theirs.

        Only the noise of the cipher is a secret, the rounding of float64 is not.
        """
        noise = _DEVIATIONS * self._deviation(self.addends)
        return 2 * self.noise(self.addends) + 2 * noise

    def finest(self) -> CkksParameters:
        """Return the parameters with the finest grid that covers."""
        return replace(self, grid_bits=math.floor(-math.log2(self._least_grid())))

    def _deviation(self, contributors: int) -> float:
        return _NOISE * math.sqrt(self.poly_modulus_degree / 2 * contributors) / self.scale


def parameters(range: float, addends: int, *, error: float | None = None) -> CkksParameters:
    """Return the cheapest parameters that keep every total within an error.

    By default that is 2^-27 for each addend, or range · 2^-46 where float64 allows no less.

    Raises
    ------
    ExperimentError
        If the range is not between 2^-20 and 2^61, there is no addend, or no modulus gives the
        error.
    """
    check_range(range, addends, _SMALLEST)
    least = 4 * _ROUNDING * range  # of a step: twice what float64 may be off by, and some noise
    wanted = addends * max(_FINEST, least) if error is None else error
    for sizes in _MODULI:
        found = _within(sizes, float(range), addends, wanted)
        if found is not None:
            return found
    raise ExperimentError(
        f"CKKS cannot keep sums up to {range:.6g} over {addends} clients within {wanted:.3g}; "
        f"ask for an error of at least {1.01 * addends * least:.3g}, or lower privacy.range."
    )


def _within(
    sizes: tuple[int, ...], range: float, addends: int, error: float
) -> CkksParameters | None:
    """Return the parameters with this modulus, or None if they miss the error."""
    bits = sum(sizes[:-1]) or sizes[0]
    # SEAL refuses coefficients above q/4, and a scale near q.
    scale_bits = min(math.floor(bits - 2.5 - math.log2(range)), bits - 3)

    found = CkksParameters(
        poly_modulus_degree=_DEGREE,
        coeff_mod_bit_sizes=sizes,
        scale_bits=scale_bits,
        grid_bits=0,
        range=range,
        addends=addends,
    ).finest()
    return found if found.error(addends) <= error else None
