"""Real numbers as words modulo 2^64, set up so that no total of the parties' values can wrap.

With the range R (largest |total|) a word has f = 62 - ⌈log₂ R⌉ bits after the point, so that a
total within the range is an integer of at most 62 bits. Each of n addends may be at most R/n.
Rounding adds half a unit for each addend: a total is off by at most n·2^-(f+1), and by the rounding
of float64 to 53 bits where it is written out. With the default range that is n·2^-41.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from intarsia.errors import ExperimentError, RangeError
from intarsia.privacy.secure_aggregation.fixed_point import decode_words, encode_words

__all__ = ["FixedPoint"]

_TOTAL_BITS = 62  # of 63: rounding and the sign need room
_SMALLEST, _LARGEST = 2.0**-64, 2.0**61


@dataclass(frozen=True, kw_only=True)
class FixedPoint:
    """How values become words.

    Parameters
    ----------
    range
        The largest absolute value of a total.
    addends
        The number of values that a total may have; each may be at most range / addends.

    Raises
    ------
    ExperimentError
        If the range is not between 2^-64 and 2^61, or there is no addend.
    """

    range: float = 2.0**22
    addends: int

    def __post_init__(self) -> None:
        if not _SMALLEST <= self.range <= _LARGEST:
            raise ExperimentError(
                f"privacy.range is {self.range}; it is the largest absolute value that a sum over "
                f"the parties may have, and must be from {_SMALLEST:.3g} to {_LARGEST:.3g}."
            )
        if self.addends < 1:
            raise ExperimentError(
                f"A sealed sum over {self.addends} parties was asked for; it needs at least one."
            )

    @cached_property
    def fractional_bits(self) -> int:
        """Return the number of bits after the point."""
        mantissa, exponent = math.frexp(self.range)
        return _TOTAL_BITS - (exponent - 1 if mantissa == 0.5 else exponent)

    @cached_property
    def limit(self) -> float:
        """Return the largest absolute value of an addend."""
        return self.range / self.addends

    @cached_property
    def step(self) -> float:
        """Return the distance between neighbouring words."""
        return math.ldexp(1.0, -self.fractional_bits)

    def error(self, contributors: int, total: float = 0.0) -> float:
        """Return how far a decoded total can be from the exact sum of its addends."""
        return contributors * self.step / 2 + abs(total) * 2.0**-53

    def encode(self, values: NDArray[np.float64]) -> NDArray[np.uint64]:
        """Return the words of values, in their shape.

        Raises
        ------
        RangeError
            If a value is not finite, or beyond the limit of an addend.
        """
        flat = np.asarray(values, np.float64, order="C")
        words = np.empty(flat.shape, np.uint64)
        self.encode_into(flat.reshape(-1), words.reshape(-1))
        return words

    def encode_into(self, values: NDArray[np.float64], words: NDArray[np.uint64]) -> None:
        """Write the words of values over `words`; both are vectors of one length.

        Raises
        ------
        RangeError
            If a value is not finite, or beyond the limit of an addend.
        """
        if not encode_words(values, 1.0 / self.step, self.limit, words):
            raise RangeError(self.complaint(values))

    def decode(self, words: NDArray[np.uint64]) -> NDArray[np.float64]:
        """Return the values of words or of their totals modulo 2^64, in their shape."""
        flat = np.asarray(words, np.uint64, order="C")
        values = np.empty(flat.shape)
        decode_words(flat.reshape(-1), self.step, values.reshape(-1))
        return values

    def complaint(self, values: NDArray[np.float64]) -> str:
        """Return what is to be said of values of which some are beyond the limit of an addend."""
        odd = values[~np.isfinite(values)]
        if len(odd):
            return (
                f"{len(odd)} of {len(values)} values to be sealed are not finite (the first is "
                f"{odd[0]}); check the table for huge values and whether training diverged."
            )
        worst = float(values[np.argmax(np.abs(values))])
        return (
            f"The value {worst:.6g} cannot be sealed: with privacy.range = {self.range:.6g} and "
            f"{self.addends} parties each value must be within ±{self.limit:.6g}; set "
            f"privacy.range to at least {abs(worst) * self.addends:.3g}."
        )
