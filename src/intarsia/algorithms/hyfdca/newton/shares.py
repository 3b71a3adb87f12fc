"""Newton's system by secret sharing: no client sees a row of another, in whatever frame.

    H = 1/N Σ_i h_i x_i x_iᵀ = Σ_A X_Aᵀ D X_A + Σ_{A<B} (X_Aᵀ D X_B + its transpose),  D = h / N

X_A are the rows of client A, values divided by their number of holders. The owners of a feature
group share a secret basis P, and all that follows is of X P, of P d' = d and of the ridge λ PᵀP.
The server deals what is random, and solves for d':

1. Each client that has samples in common with others turns √D X_A P into fixed-point words, takes
   the words U_A off, of which the server gave it the seed, and sends the rest sealed to its
   co-owners: G_A = √D X_A P - U_A. The server cannot open it, and to a co-owner it is random.
2. Of a pair the client whose turn comes first computes (√D X_A P)ᵀ G_B, the other G_Aᵀ U_B. The
   server gave the latter U_Aᵀ U_B + M beside it, for words M that it alone knows. These shares,
   what each client has of its own, and words of the server's over that, add up in a sealed sum.
3. The server opens the sum, which to the client that opens it for the server is random, takes off
   its words, and solves. Clients get the coefficients d' of their own features.

The server sees H and the gradient, in units of their size, in the secret basis of each feature
group, which is turned at random in each step: totals over all samples, never a row. Clients see
nothing but d. The words cancel modulo 2^64, so that the result has the same bits whatever they are.
Turns are such that co-owners of a sample have different ones; of four turns the rows cross in one
exchange.

What would be a server's to choose is the client's own: its places and partners come of its own
index sets, the number of a step of what it measured, and the size of the system of a total that it
opens. Else shares would not cancel, or the parts of all but one be rounded away.

No words hide two things. They come from the dealer's seed and from a nonce of the client, which it
derives by its own secret from what they are to hide, and announces. So a step that is done again,
from an earlier checkpoint or by a server that deals a seed twice, has the same words only if it
has the same rows and curvatures.

Trust: a server that deals wrong words spoils a step, which the certificate shows; it reads nothing
by it. A share of one client alone, or shares by words that were not dealt together, would tell the
rows of a co-owner in the basis: G_Aᵀ U_B is known words times rows. So all are asked together, and
each masks its rows once in a step and multiplies by what was masked last. A server together with
one client can read the rows of those that share samples with it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lapack

from intarsia import core as fl
from intarsia.algorithms.hyfdca.newton.client import penalty_curvature, power_above
from intarsia.algorithms.hyfdca.newton.frame import counts_by_cell, turn_basis
from intarsia.algorithms.hyfdca.newton.point import Overlap, Partner, Point
from intarsia.core.block import INTERCEPT, Array, Block, ClientId
from intarsia.core.schema import Schema
from intarsia.errors import RefusedError
from intarsia.maths.linear.products import project_rows
from intarsia.maths.linear.word_products import (
    BITS,
    ROOM,
    add_block,
    add_own,
    joined_words,
    multiply_words,
    pack,
    product_values,
    product_words,
    split_words,
    unpack,
    write_words,
)

_NONE = 1e-300  # what keeps a system of zeros from having no solution
_SPAN = 64.0  # that sums of a row of zeros are divided by, so that they stay in their range
_FARTHEST = 1e6  # standard deviations between a column's mean and 0
_UNSURE = 0.02  # relative, of a variance: 1 % of its root
SAMPLES_OF_COLUMN = 10  # least samples, common to two clients, for each column of either
TURNS = ("first", "second", "third", "fourth")  # fields of those whose rows cross at once


@dataclass(frozen=True)
class Dealer:
    """What the server knows to deal words, from the public index sets; and its secret."""

    secret: bytes  # drawn from the system: the result does not depend on it
    features: int
    cells: int  # of samples
    overlaps: Mapping[ClientId, Overlap]
    deals: bool = True  # False: clients multiply under encryption, in place of words

    retired: ClassVar[frozenset[str]] = frozenset({"holders", "widest"})


@dataclass(frozen=True)
class Sharing:
    """A client's state while the system is found."""

    point: Point
    rows: Array  # (selected, features) in the secret basis
    own: NDArray[np.uint64]  # those of shared cells, weighted: (outputs, samples, features) by cell
    drawn: NDArray[np.uint64]  # the dealer's words, likewise; none where products are encrypted
    nonce: bytes  # that they are bound to; where products are encrypted what keys come of
    part: int = 0  # up to which rows have crossed
    # by name of a partner whose ciphertexts were multiplied last, (outputs, its features, own)
    shares: Mapping[ClientId, NDArray[np.uint64]] = field(
        default_factory=dict[ClientId, NDArray[np.uint64]]
    )

    @property
    def options(self) -> Any:
        """Return the hyperparameters."""
        return self.point.options


@dataclass(frozen=True)
class Mask:
    """The seed of the words that hide a client's rows, and what the Hessian's size follows from."""

    seed: bytes
    bounds: Array  # (outputs, 2) the total, which each client opens for itself
    part: int = 0  # whose rows cross: those of four turns


@fl.describe(
    "chosen rows less random numbers",
    counts="numbers of values for chosen rows",
    announced="numbers of chosen rows and public random numbers",
)
class MaskedRows:
    """A client's rows with curvature less its words: cell by cell, (outputs, samples, features)."""

    first: fl.PerSelected | None  # at the clients whose turn it is
    second: fl.PerSelected | None
    third: fl.PerSelected | None
    fourth: fl.PerSelected | None
    counts: fl.Counts
    # (sample cells + 4 · clients of the federation,) samples with curvature of shared cells; the
    # nonces of the words, each as four numbers of 32 bits
    announced: Array


@dataclass(frozen=True)
class Factors:
    """Co-owners' masked rows by turn, and what the dealer has for the client."""

    part: int  # whose rows these are: those of four turns
    bounds: Array  # (outputs, 2) the total, which each client opens for itself
    blind: bytes | None  # seed of words over the client's own part; None: it sent that before
    shares: Mapping[str, NDArray[np.uint64]]  # by co-owner, (outputs, its features, own features)
    first: fl.PerSelected | None = None
    second: fl.PerSelected | None = None
    third: fl.PerSelected | None = None
    fourth: fl.PerSelected | None = None


@fl.describe("gradient and curvature of the loss in a secret basis")
class SystemShare:
    """A client's share of half the Hessian and of the gradient, as halves of words.

    Behind these are the nonces of the words over what clients have of their own.
    """

    system: fl.Halves  # (2, outputs · features · (features + 3) / 2 + 2 · clients)


@dataclass(frozen=True)
class InverseRoot:
    """Columns R of a root of the inverse system, RᵀR, in units of the system's size.

    They are those of the client's own features in the secret basis, and turned at random.
    """

    root: Array  # (outputs, features, own features)


@fl.describe(
    "how exactly each model weight is known",
    zero="the score of zeros in a secret basis",
    far="numbers of columns that lie far from zero",
)
class OwnVariances:
    """A client's share of the inverse Hessian's diagonal, and of what a row of zeros varies by."""

    variances: fl.PerFeature  # (outputs, features)
    zero: Array  # (outputs, features) R P c for the row c of zeros in the tables, over `_SPAN`
    far: Array  # (1,) own features of which c is larger than `_FARTHEST`


@dataclass(frozen=True)
class ZeroTotal:
    """What a row of zeros varies by, of all clients."""

    zero: Array  # (outputs, features) the total, which each client opens for itself


@fl.describe("how exactly the score of zeros is known")
class ZeroDeviation:
    """A client's share of √(cᵀ H⁻¹ c), which all clients know."""

    deviation: Array  # (outputs,)


Words = NDArray[np.uint64]
# (clients, dealer, sealed bounds, outputs, secret of the round, seeds of the words over what
# clients have of their own): the sealed total of all shares, and the words in it beside those of
# the seeds, (outputs, entries)
Share = Callable[
    [fl.Clients, Dealer, Any, int, fl.SecretKey, Mapping[ClientId, bytes]], tuple[Any, Words]
]


def deal_overlaps(schema: Schema, *, deals: bool = True) -> Dealer:
    """Return who has which samples in common with whom, and a secret of the dealer's own."""
    index = schema.samples
    return Dealer(
        secret=fl.SecretKey.draw().to_file(),
        features=len(schema.features),
        cells=len(index.cells),
        overlaps={name: find_overlap(schema, name) for name in schema.clients},
        deals=deals,
    )


def find_overlap(schema: Schema, name: ClientId) -> Overlap:
    """Return who has which samples in common with a client, and where its columns lie."""
    index, turns = schema.samples, schema.turns
    cells = index.cells_of[name].astype(np.int64)
    own = [index.cells[number] for number in cells.tolist()]
    common: dict[ClientId, list[int]] = {}  # the places of cells among the client's
    for place, cell in enumerate(own):
        for other in cell.owners:
            if other != name:
                common.setdefault(other, []).append(place)
    features = {one: schema.features.own(one).astype(np.int64) for one in (name, *common)}
    return Overlap(
        number=schema.clients.index(name),
        all_clients=len(schema.clients),
        turn=turns[name],
        features=features[name],
        cells=cells,
        partners=tuple(
            Partner(
                other,
                turns[other],
                features[other],
                np.bincount(places, minlength=len(cells)) > 0,
                sum(own[place].stop - own[place].start for place in places),
            )
            for other, places in common.items()
        ),
        all_features=len(schema.features),
        all_cells=len(index.cells),
        holders=max((len(cell.owners) for cell in index.cells), default=1),
        widest=max((cell.stop - cell.start for cell in schema.features.cells), default=1),
    )


def too_wide(overlap: Overlap) -> Partner | None:
    """Return a partner with whom the samples are too few for standard errors; None without one.

    A client's part of the inverse system has the rank of what others' columns explain of its own.
    With as many columns as common samples it holds the space of these columns, row by row.
    """
    for one in overlap.partners:
        if SAMPLES_OF_COLUMN * max(len(overlap.features), len(one.features)) > one.samples:
            return one
    return None


def solve_shared(
    clients: fl.Clients,
    dealer: Dealer,
    bounds: Any,
    outputs: int,
    rng: fl.RandomKey,
    share: Share,
    *,
    smoothed: bool,
) -> dict[ClientId, Array]:
    """Return the Newton direction's coefficients for each client's features, (outputs, features).

    They are in units of the system's size, which each client knows; parameters as `_open_system`.
    `smoothed` says that the loss is smoothed around a centre that moves.
    """
    y = np.empty((outputs, dealer.features))
    systems = _open_system(clients, dealer, bounds, outputs, rng, share)
    for c, (hessian, gradient) in enumerate(systems):
        y[c] = _direction(hessian, gradient, _noise(hessian, dealer), smoothed=smoothed)
    return {name: np.ascontiguousarray(y[:, own.features]) for name, own in dealer.overlaps.items()}


def _direction(hessian: Array, gradient: Array, noise: float, *, smoothed: bool) -> Array:
    """Solve the system; along its axes that rounding may have made up, as if they bent by that.

    With a smoothed loss only where the system is not positive definite: its centre moves by many
    steps, and gets nowhere along such axes otherwise (benchmarks/RESULTS.md, small penalties).
    """
    surely = hessian - (0.0 if smoothed else noise) * np.eye(len(hessian))
    if lapack.dpotrf(surely, lower=1, overwrite_a=1)[1] == 0:
        return np.asarray(np.linalg.solve(hessian, gradient))
    values, vectors = np.linalg.eigh(hessian)
    return np.asarray(vectors @ ((gradient @ vectors) / np.maximum(values, max(noise, _NONE))))


def _noise(system: Array, dealer: Dealer) -> float:
    """Return about the norm of what the rounding of its shares adds to a system.

    It is about a matrix of independent entries: each is a sum over rows of which both factors were
    rounded, or a client's own, rounded once. A diagonal below 0, of clients that answer nonsense,
    counts as one above.
    """
    bits = BITS if any(own.partners for own in dealer.overlaps.values()) else 2 * BITS
    return float(2 * np.sqrt(len(system) / 6 * np.abs(np.diag(system)).max()) * 2.0**-bits)


def reveal_variances(
    clients: fl.Clients,
    dealer: Dealer,
    bounds: Any,
    outputs: int,
    rng: fl.RandomKey,
    share: Share,
) -> tuple[Array, NDArray[np.bool_], Array | None]:
    """Return the diagonal of H⁻¹ = (λI + 1/N Xᵀ h X)⁻¹, (outputs, features), and cᵀ H⁻¹ c.

    Between these, (outputs, features), which entries of the diagonal the rounding of the system
    cannot change by more than 2 %. cᵀ H⁻¹ c, (outputs,), is of the row c that is 0 in all columns
    of the tables: the variance of the intercept there. It is NaN where an entry is not as sure, and
    None where a column's mean is too many standard deviations from 0. Given as `solve_shared`.

    The server inverts the system in its secret basis P, (P H Pᵀ)⁻¹ = M, and takes a root of it that
    it turns at random, M = RᵀR. It tells each client the columns of R of its own features. H⁻¹ =
    Pᵀ M P: who owns a feature knows its column of P, so that the clients have the diagonal, and
    R P c in a sum that they open. Its length is √(cᵀ H⁻¹ c). The server sees no more of c, nor does
    a client of the others' part than one vector that is turned.
    """
    systems = _open_system(clients, dealer, bounds, outputs, rng, share)
    secret = fl.SecretKey(dealer.secret).fold_in(*rng.words, "root")
    found = [_turned_root(one, dealer, secret.fold_in(c)) for c, (one, _) in enumerate(systems)]
    roots = np.stack([root for root, _ in found])
    known = np.stack([one for _, one in found])
    own = {
        name: InverseRoot(np.ascontiguousarray(roots[:, :, one.features]))
        for name, one in dealer.overlaps.items()
    }
    total = clients.sum(own_variances, own)
    # discloses how exactly each weight is known, beside the weight itself
    diagonal: Array = clients.reveal(total.variances)
    # discloses how many columns, of all clients together, are as good as constant beside their mean
    if np.rint(clients.reveal(total.far))[0] > 0:
        return diagonal, known, None
    # discloses how exactly the intercept is known where all columns are 0
    deviation: Array = clients.reveal(clients.sum(zero_deviation, ZeroTotal(total.zero)).deviation)
    return diagonal, known, np.where(known.all(axis=1), deviation**2, np.nan)


def _turned_root(
    system: Array, dealer: Dealer, secret: fl.SecretKey
) -> tuple[Array, NDArray[np.bool_]]:
    """Return R with RᵀR = M the inverse of the system H, whose rows say nothing by themselves.

    And of which features the diagonal of the inverse is known, (features,). Rounding E of the
    system changes pᵀ M p by pᵀ M E M p, which is at most ‖E‖ pᵀ M² p; p is a column of the secret
    basis, of which the server knows alone that it has the features of one client. So the worst of
    these counts.
    """
    size = len(system)
    words = secret.words(size * size).view(np.int64).reshape(size, size)
    turn, _ = np.linalg.qr(words * 2.0**-63)
    values, vectors = np.linalg.eigh(system)
    noise = _noise(system, dealer)
    scales = 1 / np.sqrt(np.maximum(values, noise))
    known = np.zeros(size, bool)
    for own in dealer.overlaps.values():
        span, _ = np.linalg.qr((vectors[own.features] * scales).T)
        known[own.features] |= noise * np.linalg.norm(span * scales[:, None], 2) ** 2 < _UNSURE
    return turn @ (vectors * scales).T, known


def _open_system(
    clients: fl.Clients,
    dealer: Dealer,
    bounds: Any,
    outputs: int,
    rng: fl.RandomKey,
    share: Share,
) -> list[tuple[Array, Array]]:
    """Return each output's Hessian and gradient in secret bases, in units of the system's size.

    Parameters
    ----------
    bounds
        The sealed total of Measured.bounds, for the clients.
    outputs
        Columns of the weights.
    rng
        The server's key of this round: it names the words, and makes none of them.
    share
        How clients come to their shares: `share_by_dealer`, or `share_encrypted`.
    """
    secret = fl.SecretKey(dealer.secret).fold_in(*rng.words)
    blinds = {name: secret.fold_in("own", name).to_file() for name in dealer.overlaps}
    total, taken = share(clients, dealer, bounds, outputs, secret, blinds)
    # step 3
    # discloses Newton's system, in the secret basis of each feature group; and the nonces
    opened = joined_words(clients.reveal(total))
    last = opened[taken.size :].astype("<u8").reshape(-1, 2)
    for name, own in dealer.overlaps.items():
        blind = _bound(blinds[name], last[own.number].tobytes())
        _blind(taken, own.features, blind, dealer.features)
    words = opened[: taken.size].reshape(taken.shape) - taken
    return [unpack(values, dealer.features) for values in product_values(words)]


def no_words(dealer: Dealer, outputs: int) -> Words:
    """Return no words in a total of shares, (outputs, entries)."""
    return np.zeros((outputs, dealer.features * (dealer.features + 3) // 2), np.uint64)


def share_by_dealer(
    clients: fl.Clients,
    dealer: Dealer,
    bounds: Any,
    outputs: int,
    secret: fl.SecretKey,
    blinds: Mapping[ClientId, bytes],
) -> tuple[Any, Words]:
    """Let clients share the system by words of the server's; see `Share`."""
    overlaps = dealer.overlaps
    seeds = {name: secret.fold_in("rows", name).to_file() for name in overlaps}
    # step 1
    sharing = [name for name, one in overlaps.items() if one.partners]
    bound: dict[ClientId, bytes] = {}
    shares: Mapping[tuple[ClientId, ClientId], NDArray[np.uint64]] = {}
    taken, rows, total = no_words(dealer, outputs), None, None
    announced = np.zeros(dealer.cells + 4 * len(overlaps))
    for part in sorted({overlaps[name].turn // len(TURNS) for name in sharing}) or (0,):
        if sharing:
            masks = {name: Mask(seeds[name], bounds, part) for name in sharing}
            rows = clients.sum(mask_rows, masks)
        if not part:
            if rows is not None:
                # discloses how many samples of each overlap group have curvature: as many words
                # are dealt; and what the clients' words are bound to, which says nothing
                announced = clients.reveal(rows.announced)
            counts = np.rint(announced[: dealer.cells]).astype(np.int64)
            nonces = np.rint(announced[dealer.cells :]).astype("<u4").reshape(-1, 4)
            bound = {
                name: _bound(seeds[name], nonces[own.number].tobytes())
                for name, own in overlaps.items()
            }
            shares, taken = _deal_products(dealer, bound, counts, outputs, secret)
        # step 2
        messages: dict[ClientId, Factors] = {}
        for name, own in overlaps.items():
            met = [one for one in own.partners if one.turn // len(TURNS) == part]
            blind = None if part else blinds[name]
            fields = {TURNS[one.turn % len(TURNS)] for one in met}
            given = {one.name: shares[one.name, name] for one in met if one.turn < own.turn}
            found = {field: getattr(rows, field) for field in fields}
            messages[name] = Factors(part, bounds, blind, given, **found)
        share = clients.sum(multiply_rows, messages).system
        total = share if total is None else total + share
    return total, taken


def _deal_products(
    dealer: Dealer,
    seeds: Mapping[ClientId, bytes],
    counts: NDArray[np.int64],
    outputs: int,
    secret: fl.SecretKey,
) -> tuple[dict[tuple[ClientId, ClientId], NDArray[np.uint64]], NDArray[np.uint64]]:
    """Return UᵀV plus words of each pair by their turns, and the sum of those words."""
    size = dealer.features
    taken = np.zeros((outputs, size * (size + 3) // 2), np.uint64)
    shares: dict[tuple[ClientId, ClientId], NDArray[np.uint64]] = {}
    meeting: dict[int, list[ClientId]] = {}
    for name, own in dealer.overlaps.items():
        for one in own.partners:
            if own.turn < one.turn:
                shape = outputs, len(own.features), len(one.features)
                # the other party knows what the words are added to once it has these twice: they
                # are bound to both nonces
                pair = secret.fold_in("pair", seeds[name].hex(), seeds[one.name].hex())
                drawn = pair.words(int(np.prod(shape)))
                shares[name, one.name] = block = drawn.reshape(shape)
                for c in range(outputs):
                    add_block(taken[c], size, block[c], own.features, one.features)
        for number in own.cells[shared_cells(own)]:
            meeting.setdefault(int(number), []).append(name)
    for number, names in meeting.items():
        if not counts[number]:
            continue
        drawn_by = {
            name: _row_words(seeds[name], number, outputs, counts[number], dealer.overlaps[name])
            for name in names
        }
        turns = {name: dealer.overlaps[name].turn for name in names}
        for first in names:
            for second in names:
                if turns[first] < turns[second]:
                    for c in range(outputs):
                        found = multiply_words(drawn_by[first][c], drawn_by[second][c])
                        shares[first, second][c] += found
    return shares, taken


def digest_of(*hidden: NDArray[Any]) -> str:
    """Return what differs as soon as one of the arrays does."""
    digest = hashlib.blake2b(digest_size=32)
    for one in hidden:
        digest.update(repr(one.shape).encode())
        digest.update(np.ascontiguousarray(one).data)
    return digest.hexdigest()


def _nonce(key: fl.SecretKey, *hidden: NDArray[Any]) -> bytes:
    """Return 16 bytes that differ as soon as what is to be hidden does; they tell nothing of it."""
    return key.fold_in("nonce", digest_of(*hidden)).stream(16)


def _bound(seed: bytes, nonce: bytes) -> bytes:
    """Return the dealer's seed bound to a client's nonce."""
    return fl.SecretKey(seed).fold_in(nonce.hex()).to_file()


def shared_cells(overlap: Overlap) -> NDArray[np.bool_]:
    """Return which of a client's cells others hold, too, (own cells,)."""
    found = np.zeros(len(overlap.cells), bool)
    for one in overlap.partners:
        found |= one.cells
    return found


def _row_words(
    seed: bytes, cell: int, outputs: int, count: int, overlap: Overlap
) -> NDArray[np.uint64]:
    """Return the words that hide a client's rows of a cell, (outputs, samples, features)."""
    shape = outputs, int(count), len(overlap.features)
    key = fl.SecretKey(seed).fold_in(int(cell))
    return key.words(int(np.prod(shape))).reshape(shape)


def _blind(total: NDArray[np.uint64], features: NDArray[np.int64], seed: bytes, size: int) -> None:
    """Add the words of a seed to what a client has of its own in the system."""
    count = len(features) * (len(features) + 3) // 2
    words = fl.SecretKey(seed).words(len(total) * count).reshape(len(total), count)
    for c in range(len(total)):
        add_own(total[c], size, words[c], features)


def cells_of(point: Point) -> Iterator[tuple[int, int, int, int]]:
    """Yield each of the client's shared cells that has samples with curvature.

    It comes as its place among the client's cells, its number, and where its samples start and
    stop among those with curvature.
    """
    stops = np.cumsum(counts_by_cell(point, point.selected))
    for at in np.flatnonzero(shared_cells(point.overlap)):
        start, stop = int(stops[at - 1]) if at else 0, int(stops[at])
        if start < stop:
            yield int(at), int(point.overlap.cells[at]), start, stop


def begin_step(point: Point, bounds: Array) -> Point:
    """Return the client in the secret basis of this step, with the sizes of the system.

    Who is told other sizes than the others adds nothing: all take them from one total.
    """
    _check_rows(point)
    return fl.evolve(
        turn_basis(point, point.measured),
        system_slope=power_above(2 * np.sqrt(bounds[:, 0])),
        system_scale=power_above(bounds[:, 1] * point.overlap.holders / 2**ROOM),
    )


def _check_rows(point: Point) -> None:
    """Refuse a system without rows: it is the ridge, which tells of the secret basis alone."""
    if point.ended:
        raise RefusedError(
            "Newton's system was asked for at a point that was said to be the last, of which no "
            "rows were chosen; run the algorithm as it is at the server."
        )


def basis_rows(point: Point, block: Block) -> Array:
    """Return the client's rows with curvature in the secret basis, (samples, features)."""
    return np.ascontiguousarray(project_rows(block.x, point.selected, point.frame).T)


def weights_of_rows(point: Point) -> Array:
    """Return what rows are multiplied by, (outputs, selected): √D in units of the system's size."""
    return np.sqrt(point.curvature / (point.samples * point.system_scale[:, None]))


def weighted_rows(point: Point, rows: Array) -> NDArray[np.uint64]:
    """Return the words of weighted rows, (outputs, samples, features) by cell of `cells_of`."""
    factors, found = weights_of_rows(point), [np.zeros(0, np.uint64)]
    for _, _, start, stop in cells_of(point):
        words = np.empty((len(factors), stop - start, rows.shape[1]), np.uint64)
        for one, to in zip(factors, words, strict=True):
            write_words(rows[start:stop], one[start:stop], to)
        found.append(words.ravel())
    return np.concatenate(found)


@fl.secret_function
def mask_rows(
    state: Point | Sharing, block: Block, message: Mask, rng: fl.SecretKey
) -> tuple[Sharing, MaskedRows]:
    """Send the weighted rows less the dealer's words to the co-owners of their samples.

    Raises
    ------
    RefusedError
        If they were masked before in this step, or their turn is not come.
    """
    before = state.part + 1 if isinstance(state, Sharing) else 0
    if message.part != before:
        raise RefusedError(
            f"Part {message.part} of the masked rows was asked for where part {before} comes next; "
            "run the algorithm as it is at the server."
        )
    if isinstance(state, Point):
        state = _draw_words(state, block, message, rng)
    state = fl.evolve(state, part=message.part)
    point = state.point
    overlap, counts = point.overlap, counts_by_cell(point, point.selected)
    shared = shared_cells(overlap)
    announced = np.zeros(overlap.all_cells + 4 * overlap.all_clients)
    kept = shared & np.array(point.kept_samples)
    announced[overlap.cells[kept]] = counts[kept]
    at = overlap.all_cells + 4 * overlap.number
    announced[at : at + 4] = np.frombuffer(state.nonce, "<u4")
    fields: dict[str, Any] = dict.fromkeys(TURNS)
    if overlap.turn // len(TURNS) == message.part:
        fields[TURNS[overlap.turn % len(TURNS)]] = state.own - state.drawn
    entries = np.where(shared, counts, 0) * (len(point.w) * len(overlap.features))
    return state, MaskedRows(**fields, counts=entries, announced=announced)


def _draw_words(point: Point, block: Block, message: Mask, rng: fl.SecretKey) -> Sharing:
    """Return the client with its rows as words, and the words that hide them."""
    point = begin_step(point, message.bounds)
    overlap, outputs = point.overlap, len(point.w)
    rows = basis_rows(point, block)
    nonce = _nonce(rng, weights_of_rows(point), point.selected, point.frame)
    seed = _bound(message.seed, nonce)
    own = weighted_rows(point, rows)
    drawn = [
        _row_words(seed, number, outputs, stop - start, overlap).ravel()
        for _, number, start, stop in cells_of(point)
    ]
    return Sharing(point, rows, own, np.concatenate([own[:0], *drawn]), nonce)


mask_rows = fl.one_sender(mask_rows, *TURNS)  # co-owners have different turns


@fl.secret_function
def multiply_rows(
    state: Point | Sharing, block: Block, message: Factors, rng: fl.SecretKey
) -> tuple[Point | Sharing, SystemShare]:
    """Send this client's share of the system, from what its co-owners sent of their rows.

    Raises
    ------
    RefusedError
        If the words are not for the partners and columns that the client's index sets give.
    """
    if isinstance(state, Point):
        state = begin_step(state, message.bounds)
    point = state.point if isinstance(state, Sharing) else state
    overlap, outputs = point.overlap, len(point.w)
    size = overlap.all_features
    rows = state.rows if isinstance(state, Sharing) else None
    whole, total = begin_share(point, block, rows, message.blind, rng)
    met = [one for one in overlap.partners if one.turn // len(TURNS) == message.part]
    if isinstance(state, Sharing):
        for one, products in zip(met, _pair_products(state, message, met), strict=True):
            pair = (one.features, overlap.features)
            pair = pair if one.turn < overlap.turn else pair[::-1]
            for c in range(outputs):
                add_block(total[c], size, products[c], *pair)
    return state, SystemShare(split_words(whole))


def begin_share(
    point: Point, block: Block, rows: Array | None, blind: bytes | None, rng: fl.SecretKey
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return a share of the system, and it without nonces, (outputs, entries), to be added to.

    It has what the client has of its own, under the words of a seed, or None of that.
    """
    overlap, outputs = point.overlap, len(point.w)
    size = overlap.all_features
    whole = np.zeros(outputs * (size * (size + 3) // 2) + 2 * overlap.all_clients, np.uint64)
    total = whole[: -2 * overlap.all_clients].reshape(outputs, -1)
    if blind is not None:
        own = _own_part(point, basis_rows(point, block) if rows is None else rows)
        nonce = _nonce(rng, own)
        whole[len(whole) - 2 * (overlap.all_clients - overlap.number) :][:2] = np.frombuffer(
            nonce, "<u8"
        )
        for c in range(outputs):
            add_own(total[c], size, own[c], overlap.features)
        _blind(total, overlap.features, _bound(blind, nonce), size)
    return whole, total


def _pair_products(
    state: Sharing, message: Factors, met: Sequence[Partner]
) -> list[NDArray[np.uint64]]:
    """Return this client's share of the products with each partner, by their turns."""
    overlap, outputs = state.point.overlap, len(state.point.w)
    shapes = {
        one.name: (outputs, len(one.features), len(overlap.features))
        for one in met
        if one.turn < overlap.turn
    }
    if {name: words.shape for name, words in message.shares.items()} != shapes:
        raise RefusedError(
            f"Words came for products with {sorted(message.shares)} where this client's own index "
            f"sets ask for {sorted(shapes)}, one for each two columns; run the algorithm as it is "
            "at the server."
        )
    products = [
        message.shares[one.name].copy()
        if one.turn < overlap.turn
        else np.zeros((outputs, len(overlap.features), len(one.features)), np.uint64)
        for one in met
    ]
    read, at = dict.fromkeys(TURNS, 0), 0
    for cell, _, start, stop in cells_of(state.point):
        shape = outputs, stop - start, len(overlap.features)
        here = slice(at, at := at + int(np.prod(shape)))
        own, drawn = state.own[here].reshape(shape), state.drawn[here].reshape(shape)
        for one, product in zip(met, products, strict=True):
            if not one.cells[cell]:
                continue
            turn, theirs = (
                TURNS[one.turn % len(TURNS)],
                (outputs, stop - start, len(one.features)),
            )
            begin, read[turn] = read[turn], read[turn] + int(np.prod(theirs))
            masked = getattr(message, turn)[begin : read[turn]].reshape(theirs)
            for c in range(outputs):
                if one.turn < overlap.turn:
                    product[c] += multiply_words(masked[c], drawn[c])
                else:
                    product[c] += multiply_words(own[c], masked[c])
    return products


def _own_part(point: Point, rows: Array) -> NDArray[np.uint64]:
    """Return what a client has of its own: products of its rows, its part of ridge and gradient."""
    gradient = point.residual @ (point.frame * point.feature_share).T
    curved = penalty_curvature(point) if point.threshold else None
    parts: list[NDArray[np.uint64]] = []
    for c, scale in enumerate(point.system_scale):
        weighted = rows * np.sqrt(point.curvature[c] / (point.samples * scale))[:, None]
        ridge = point.ridge
        if curved is not None:
            ridge = (point.frame * (curved[c] * point.feature_share)) @ point.frame.T
        gram = weighted.T @ weighted + ridge / scale
        parts.append(product_words(pack(gram, gradient[c] / point.system_slope[c])))
    return np.stack(parts)


@fl.client_function
def own_variances(
    state: Point | Sharing, block: Block, message: InverseRoot
) -> tuple[Point, OwnVariances]:
    """Send this client's share of the inverse Hessian's diagonal, and of the row of zeros.

    Raises
    ------
    RefusedError
        If the experiment did not ask for standard errors, or two clients have too few samples in
        common for them.
    """
    point = _asked_for_errors(state)
    far = abs(zeros := zero_row(block)) > _FARTHEST
    # of a feature that several own each counts its share
    variances, zero = np.empty_like(point.w), np.empty(message.root.shape[:2])
    for c, root in enumerate(message.root):
        variances[c] = ((root @ point.frame) ** 2).sum(axis=0)
        zero[c] = root @ (point.feature_share * (point.frame @ np.where(far, 0.0, zeros)))
    variances *= point.feature_share / point.system_scale[:, None]
    return point, OwnVariances(variances, zero / _SPAN, np.array([1.0 * far.sum()]))


def zero_row(block: Block) -> Array:
    """Return the row of a block for 0 in all columns of the tables, (features,)."""
    if block.zero is not None:
        return block.zero
    return np.array([name == INTERCEPT for name in block.features], np.float64)


@fl.client_function
def zero_deviation(
    state: Point | Sharing, block: Block, message: ZeroTotal
) -> tuple[Point, ZeroDeviation]:
    """Send this client's share of the length of what a row of zeros varies by.

    Raises
    ------
    RefusedError
        If the experiment did not ask for standard errors, or two clients have too few samples in
        common for them.
    """
    point = _asked_for_errors(state)
    length = _SPAN * np.linalg.norm(message.zero, axis=1) / np.sqrt(point.system_scale)
    return point, ZeroDeviation(length / point.overlap.all_clients)


def _asked_for_errors(state: Point | Sharing) -> Point:
    """Return the client's state, if the experiment asks for standard errors."""
    point = state.point if isinstance(state, Sharing) else state
    if not point.options.errors:
        raise RefusedError(
            "Standard errors were asked for where algorithm.errors of this experiment is false; "
            "run the algorithm as it is at the server, or set algorithm.errors = true."
        )
    if (one := too_wide(point.overlap)) is not None:
        raise RefusedError(
            f"Standard errors were asked for where {one.samples} samples are common to this client "
            f"of {len(point.overlap.features)} columns and {one.name!r} of {len(one.features)}, "
            f"and they take {SAMPLES_OF_COLUMN} for each column; run the algorithm as it is at the "
            "server, or set algorithm.errors = false."
        )
    return point


SENDS = (
    *fl.each(
        fl.sums(mask_rows, reveals=("announced",)) + fl.sums(multiply_rows, reveals=("system",)),
        needed=lambda options: options.system != "encrypted",
    ),
    *fl.each(
        fl.each(
            fl.sums(own_variances, reveals=("variances", "far")), model=("variances",), once=True
        )
        + fl.each(fl.sums(zero_deviation, reveals=("deviation",)), model=("deviation",)),
        needed=lambda options: options.errors,
    ),
)
