"""Cost of sealed sums for each value: CKKS and masks beside python-paillier, in one process.

Run with OMP_NUM_THREADS=1. python-paillier (phe) and gmpy2 are needed for this benchmark only.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tables import number, show, write
from threadpoolctl import threadpool_limits

from intarsia.privacy.secure_aggregation.ckks import CkksAdder, CkksKeys, CkksSealer
from intarsia.privacy.secure_aggregation.ckks_parameters import parameters
from intarsia.privacy.secure_aggregation.fixed_point import FixedPoint
from intarsia.privacy.secure_aggregation.masking import MaskedAdder, MaskedSealer
from intarsia.privacy.secure_aggregation.protocol import Aggregator, Piece, Sealer, Stream

__all__ = ["measure_all"]

_CLIENTS = ("a", "b", "c", "d")
_COLUMNS = (
    "scheme",
    "values",
    "seal µs",
    "add µs",
    "open µs",
    "bytes",
    "error",
    "stated error",
    "seal + add + open, times cheaper",
)
_NOTES = (
    "CPU microseconds for each value (median of the repetitions, the schemes in turn): a client "
    "seals its contribution, the server adds one to another, a client opens the sum of four. "
    "Bytes: of a sealed value on the wire. Error: the largest of the opened sums of values up to "
    "a quarter of the range (Paillier's: of values up to 2,500). The last column compares with "
    "python-paillier. A ciphertext of CKKS holds 8,191 values and costs the same half full."
)
_PRECISION = 2.0**-40  # Paillier's, so that all its numbers have one exponent


@dataclass
class Cost:
    """CPU seconds for each value, by repetition, and what came out."""

    seal: list[float] = field(default_factory=list[float])
    add: list[float] = field(default_factory=list[float])
    open: list[float] = field(default_factory=list[float])
    bytes: float = 0.0
    error: float = 0.0
    stated: float | None = None

    def whole(self) -> float:
        """Return the median cost of sealing, adding and opening a value."""
        return float(sum(np.median(part) for part in (self.seal, self.add, self.open)))


class Scheme:
    """A mode of sealed sums at the clients and the server."""

    def __init__(
        self,
        name: str,
        sealer: Sealer,
        adder: Aggregator,
        *,
        limit: float,
        stated: float,
        size: Callable[[Piece], int],
    ) -> None:
        self.name = name
        self._sealer, self._adder, self._size = sealer, adder, size
        self._limit, self._stated = limit, stated
        self._sequence = 0

    def measure(self, cost: Cost, count: int, rng: np.random.Generator) -> None:
        """Seal, add and open once."""
        values = rng.uniform(-self._limit, self._limit, (len(_CLIENTS), count))
        self._sequence += 1
        stream = Stream("0", self._sequence, 1, "train", "dual", 0)
        start = time.process_time()
        pieces = [
            self._sealer.seal(name, stream, own) for name, own in zip(_CLIENTS, values, strict=True)
        ]
        sealed = time.process_time()
        total = pieces[0]
        for piece in pieces[1:]:
            total = self._adder.add(total, piece)
        added = time.process_time()
        opened = self._sealer.open(total)
        end = time.process_time()
        cost.seal.append((sealed - start) / len(_CLIENTS) / count)
        cost.add.append((added - sealed) / (len(_CLIENTS) - 1) / count)
        cost.open.append((end - added) / count)
        cost.bytes = self._size(total) / count
        exact = values.astype(np.longdouble).sum(axis=0)
        cost.error = max(cost.error, float(np.abs(opened - exact).max()))
        cost.stated = self._stated


def paillier(count: int, rng: np.random.Generator, bits: int) -> Cost:
    """Return the cost with python-paillier."""
    try:
        import gmpy2  # noqa: F401  (phe is several times slower without it, and does not say so)
        from phe import EncodedNumber, generate_paillier_keypair
    except ModuleNotFoundError as error:
        raise SystemExit(
            f"This benchmark compares with python-paillier, and {error.name} is not installed; "
            "run pip install phe gmpy2."
        ) from error
    public, private = generate_paillier_keypair(n_length=bits)
    values: NDArray[np.float64] = rng.uniform(-2500.0, 2500.0, (2, count))
    cost, start = Cost(), time.process_time()
    encrypted: list[list[Any]] = [
        [
            public.encrypt(EncodedNumber.encode(public, float(value), precision=_PRECISION))
            for value in own
        ]
        for own in values
    ]
    sealed = time.process_time()
    totals = [one + other for one, other in zip(*encrypted, strict=True)]
    added = time.process_time()
    opened = [private.decrypt(total) for total in totals]
    end = time.process_time()
    cost.seal.append((sealed - start) / 2 / count)
    cost.add.append((added - sealed) / count)
    cost.open.append((end - added) / count)
    cost.bytes = 2 * bits / 8
    cost.error = float(np.abs(np.array(opened) - values.sum(axis=0)).max())
    cost.stated = 2 * _PRECISION
    return cost


def measure_all(arguments: argparse.Namespace) -> None:
    """Measure every scheme at every length and show the table."""
    rng = np.random.default_rng(arguments.seed)
    measured: list[tuple[str, str, Cost]] = []
    schemes = [_ckks(14), _ckks(22), _masks(22)]
    for count in arguments.values:
        costs = [Cost() for _ in schemes]
        for scheme in schemes:
            scheme.measure(Cost(), count, rng)  # kernels loaded, keys set up
        for _ in range(arguments.repetitions):
            for scheme, cost in zip(schemes, costs, strict=True):
                scheme.measure(cost, count, rng)
        measured += [
            (scheme.name, f"{count:,}", cost) for scheme, cost in zip(schemes, costs, strict=True)
        ]
    beside = paillier(arguments.paillier_values, rng, arguments.paillier_bits)
    name = f"python-paillier + gmpy2, {arguments.paillier_bits} bits"
    measured.append((name, f"{arguments.paillier_values:,}", beside))
    rows = [_row(name, count, cost, beside) for name, count, cost in measured]
    title = "Sealed sums, cost of a value"
    show(title, _COLUMNS, rows)
    if arguments.write:
        write(title, _COLUMNS, rows, seed=arguments.seed, notes=_NOTES)


def _ckks(power: int) -> Scheme:
    found = parameters(2.0**power, len(_CLIENTS))
    keys = CkksKeys.create(found)
    sealer = CkksSealer(keys, clients=_CLIENTS, token_key=bytes(32))
    return Scheme(
        f"ckks, range 2^{power}",
        sealer,
        CkksAdder(keys.public_bytes()),
        limit=found.limit,
        stated=found.error(len(_CLIENTS)),
        size=sealer.size,
    )


def _masks(power: int) -> Scheme:
    fixed = FixedPoint(range=2.0**power, addends=len(_CLIENTS))
    return Scheme(
        f"masks, range 2^{power}",
        MaskedSealer(bytes(32), fixed, len(_CLIENTS)),
        MaskedAdder(),
        limit=fixed.limit,
        stated=fixed.error(len(_CLIENTS), fixed.range),
        size=lambda piece: int(piece.content.nbytes),
    )


def _row(name: str, count: str, cost: Cost, beside: Cost) -> Sequence[str]:
    parts = (number(1e6 * float(np.median(part))) for part in (cost.seal, cost.add, cost.open))
    cheaper = "–" if cost is beside else f"{beside.whole() / cost.whole():,.0f}"
    return [
        name,
        count,
        *parts,
        f"{cost.bytes:.4g}",
        number(cost.error, 2),
        number(cost.stated, 2),
        cheaper,
    ]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--values", type=int, nargs="+", default=[4096, 15_000])
    parser.add_argument("--repetitions", type=int, default=30)
    parser.add_argument("--paillier-values", type=int, default=100)
    parser.add_argument("--paillier-bits", type=int, default=2048)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true", help="write a section of RESULTS.md")
    return parser.parse_args()


if __name__ == "__main__":
    with threadpool_limits(1):
        measure_all(_arguments())
