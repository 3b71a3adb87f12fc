"""The table [privacy] of an experiment: how sums are sealed, and what is written down of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Mode", "Privacy"]

Mode = Literal["plain", "masked", "ckks"]


@dataclass(frozen=True, kw_only=True)
class Privacy:
    """How a federation keeps its sums from the server.

    The range is checked where it is used: by the number formats of the modes.
    """

    mode: Mode = "plain"  # plain: whoever runs the server can read every contribution
    range: float = 2.0**22  # largest |total| of a sum over the clients
    key: str = ""  # file of the clients' shared key; "" = drawn for the run, beside its results
    transcript: bool = False  # write down every byte that the server could read
