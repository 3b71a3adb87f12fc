"""A client's share of the noise that makes a release differentially private.

Each client draws a secret from the operating system's random numbers when its state is made, and
keeps it with that state. The noise of its n-th release is a function of the secret and n: a run
that was stopped and goes on releases the same again, not a second sample around the same model. The
server does not know the secret, and the run's seed says nothing about it; two runs with one seed
differ. Normal numbers come from SHAKE-256 by the inverse of their distribution: 52 bits each, so
that none is beyond 8.2 deviations (a tail of 2e-16).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import ndtri

from intarsia.core.block import Array
from intarsia.errors import SealedError

__all__ = ["NoiseShare", "draw_share", "normal_numbers", "spend"]

_BYTES = 32  # of a secret


@dataclass(frozen=True)
class NoiseShare:
    """What a client adds noise by; it never leaves the client."""

    secret: bytes
    deviation: float  # of the noise of all owners of a value together
    releases: int  # how many times this client may add noise
    spent: int = 0  # how many times it has


def draw_share(
    deviation: float, releases: int, source: Callable[[int], bytes] = os.urandom
) -> NoiseShare:
    """Return a share with a fresh secret; `source` gives so many random bytes."""
    return NoiseShare(source(_BYTES), deviation, releases)


def spend(share: NoiseShare, shape: tuple[int, ...]) -> tuple[NoiseShare, Array]:
    """Return standard normal numbers for one release, and the share with that release counted.

    Raises
    ------
    SealedError
        If the client has released as often as its noise was measured for.
    """
    if share.spent >= share.releases:
        raise SealedError(
            f"A release with noise was asked for after the {share.releases} that epsilon and delta "
            "were measured for; one more would tell more than they promise: start a new run."
        )
    count = int(np.prod(shape))
    label = share.secret + share.spent.to_bytes(8, "little")
    normal = normal_numbers(hashlib.shake_256(label).digest(8 * count))
    return replace(share, spent=share.spent + 1), normal.reshape(shape)


def normal_numbers(stream: bytes) -> Array:
    """Return a standard normal number for every 8 random bytes."""
    words = np.frombuffer(stream, "<u8")
    # in the middle of the 2^52 steps between 0 and 1: neither end, which would be infinite
    normal: Array = ndtri(((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52)
    return normal
