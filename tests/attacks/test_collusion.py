"""The server and all clients but two pool what they have, and cannot tell these two apart.

A run of 16 clients in a 4 × 4 grid. What the server gets of each client is there, and every key
that a client other than the two has. Under one key of all clients the same attack reads each
contribution exactly.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from federations import BINARY, rectangles, table
from intarsia.core.schema import Schema
from intarsia.engines.simulation import Simulation
from intarsia.engines.sums import secure
from intarsia.errors import KeyMaterialError, TamperedError
from intarsia.privacy.keys.crypto import pseudorandom
from intarsia.privacy.keys.pair_keys import PairKeys
from intarsia.privacy.secure_aggregation import setup as modes
from intarsia.privacy.secure_aggregation.fixed_point import PRIME, FixedPoint, check
from intarsia.privacy.secure_aggregation.masking import MaskedAdder, MaskedSealer
from intarsia.privacy.secure_aggregation.pairwise import PairMasks, neighbours
from intarsia.privacy.secure_aggregation.protocol import Parties, Piece, Stream
from intarsia.privacy.settings import Privacy
from intarsia.training.registry import ALGORITHMS

HYFDCA = ALGORITHMS["hyfdca"]
# two in one row of the grid, in one column, and in neither
HONEST = [("r0c0", "r0c1"), ("r1c2", "r3c2"), ("r0c0", "r2c3")]
COLLUDERS = 16


@dataclass(frozen=True, eq=False)
class Sent:
    """A contribution: what the server has of it, and the truth, for the test alone."""

    client: str
    piece: Piece
    parties: Parties
    values: np.ndarray


@dataclass(frozen=True, eq=False)
class Run:
    """What crossed in a run, and the clients' keys."""

    keys: modes.Keys
    sealing: Any
    sent: list[Sent]

    def of_both(self, one: str, other: str) -> list[tuple[Sent, Sent]]:
        """Return what two clients sent to the same totals."""
        found: dict[Stream, dict[str, Sent]] = {}
        for each in self.sent:
            if {one, other} <= set(each.parties.contributors):
                found.setdefault(each.piece.stream, {})[each.client] = each
        return [(both[one], both[other]) for both in found.values()]


def run_under(trust: str, **given: Any) -> Run:
    """Train for some rounds; return what crossed."""
    x, y = table(48, 12)
    blocks = rectangles(x, y, 4, 4)
    settings = Privacy(mode="masked", trust=trust, colluders=COLLUDERS)
    keys = modes.keys(settings, list(blocks), None, "test")
    sealing = modes.sealing(settings, list(blocks), keys, fresh=True)
    sent: list[Sent] = []
    seal = secure.sealed

    def noted(sealing, client, stream, values, parties, *parts):
        piece = seal(sealing, client, stream, values, parties, *parts)
        sent.append(Sent(client, piece, parties, values.copy()))
        return piece

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(secure, "sealed", noted)
        engine = Simulation({"train": (Schema.of(blocks, BINARY), blocks)}, 0, sealing)
        options = HYFDCA.hyperparameters(loss="logistic", regularisation=0.1, **given)
        engine.begin(HYFDCA, options)
        server = HYFDCA.init_server(options, engine.schema("train"), engine.key("init"))
        server = HYFDCA.setup(server, engine, engine.key("init"))
        for number in range(1, 7):
            engine.begin_round(number)
            server, _ = HYFDCA.round(server, engine, engine.key())
    return Run(keys, sealing, sent)


@pytest.fixture(scope="module")
def runs():
    """Return what crossed in a run under each kind of trust."""
    found = {trust: run_under(trust) for trust in ("pairs", "clients")}
    return {**found, "encrypted": run_under("pairs", system="encrypted")}


def pooled(keys: PairKeys, honest: tuple[str, str]) -> PairKeys:
    """Return all keys that anybody but the honest two has; zeros in place of the others."""

    def pair(one: str, other: str) -> bytes:
        return bytes(32) if {one, other} == set(honest) else keys.pair(one, other)

    def owners(names: tuple[str, ...]) -> bytes:
        return bytes(32) if set(names) <= set(honest) else keys.owners(names)

    return PairKeys(pair, owners)


def stripped(masks: PairMasks, sent: Sent) -> np.ndarray:
    """Return the words of a contribution and its check, less the masks that somebody can make."""
    words = sent.piece.content.copy()
    count = len(words)
    found, added, _ = masks.of_contribution(sent.client, sent.piece.stream, sent.parties, count)
    for number, mask in enumerate(found):
        sign = 1 if number < added else -1
        words[:-1] -= np.uint64(sign % 2**64) * mask[: count - 1]
        words[-1] = (int(words[-1]) - sign * int(mask[count - 1])) % PRIME
    return words


def read(run: Run, piece: Piece, words: np.ndarray) -> np.ndarray:
    """Return clear words as the numbers that they stand for."""
    if piece.digits == 3:
        return words[:-1].astype(float)
    sealer = next(iter(run.sealing.exact.values()))
    values = sealer._fixed.decode(words[:-1])
    if piece.digits == 2:
        digits = run.sealing.digits
        high, low = np.split(values, 2)
        values = high * (digits.size / digits.unit) + low
    return values


def is_found(found: np.ndarray, truth: np.ndarray) -> bool:
    """Return whether an attack came to what a client sent, but for the rounding of words."""
    flat = np.asarray(truth, float).reshape(-1)
    finite = np.isfinite(flat)
    scale = max(1.0, float(np.abs(flat[finite]).max(initial=0.0)))
    return bool((np.abs(found - flat)[finite] < 1e-9 * scale).all())


@pytest.mark.parametrize("system", ["pairs", "encrypted"])
@pytest.mark.parametrize("honest", HONEST)
def test_with_all_other_clients_keys_no_contribution_of_two_is_read(runs, honest, system):
    run = runs[system]
    masks = PairMasks(pooled(run.keys.pairs, honest), COLLUDERS)
    tried = 0
    for pair in run.of_both(*honest):
        if pair[0].piece.digits == 0:
            continue
        cleared = [stripped(masks, one) for one in pair]
        for one, words in zip(pair, cleared, strict=True):
            if one.values.size:
                tried += 1
                assert not is_found(read(run, one.piece, words), one.values)
        # what they learn is the total of the two: their masks are off in it
        total = cleared[0] + cleared[1]
        if pair[0].piece.digits == 1 and set(pair[0].parties.owners) - set(honest):
            truth = pair[0].values + pair[1].values
            assert is_found(read(run, pair[0].piece, total), truth)
    assert tried > 25


@pytest.mark.parametrize("honest", HONEST)
def test_under_one_key_each_contribution_is_read_exactly(runs, honest):
    run = runs["clients"]
    sealer = run.sealing.exact["r3c3"]  # any other client's
    tried = 0
    for one in itertools.chain.from_iterable(run.of_both(*honest)):
        if one.piece.digits == 2:
            found = sealer.open_digits(one.piece, run.sealing.digits)
        elif one.piece.digits == 1:
            found = sealer.open(one.piece)
        elif one.piece.digits == 3:
            found = sealer.open_words(one.piece).astype(float)
        else:
            continue
        tried += 1
        assert is_found(found.reshape(-1), one.values)
    assert tried > 25


class Chosen:
    """Writes words that are given, in place of those of a key."""

    def __init__(self) -> None:
        self.words = np.zeros(0, np.uint64)

    def __call__(self, clear: Any, encrypted: np.ndarray) -> None:
        encrypted[: len(clear)] = self.words.view(np.uint8)[: len(clear)]


def seal_again(run: Run, sealer: MaskedSealer, one: Sent, values: np.ndarray) -> Piece:
    """Return the contribution of a client with other values, as its own code seals it."""
    given = one.client, one.piece.stream, values
    if one.piece.digits == 3:
        return sealer.seal_words(*given, one.parties)
    if one.piece.digits == 2:
        return sealer.seal_digits(*given, run.sealing.digits, one.parties)
    return sealer.seal(*given, one.parties)


@pytest.mark.parametrize("system", ["pairs", "encrypted"])
@pytest.mark.parametrize("honest", HONEST)
def test_for_swapped_contributions_there_are_masks_that_give_the_same_view(
    runs, honest, system, monkeypatch
):
    """All that the server and the other clients have is the same, to the bit.

    The two have a mask in common that nobody else can make. For each choice of it there is exactly
    one under which the two have sent each other's values, so that one is as likely as the other.
    """
    run = runs[system]
    keys, fixed = run.keys.pairs, FixedPoint(range=2.0**22, addends=16)
    first, second = sorted(honest)
    chosen = Chosen()
    pair = PairMasks._pair

    def shown(self, one, other):
        return chosen if (one, other) == (first, second) else pair(self, one, other)

    # the same contributions, as they are sealed with words of the test's own
    monkeypatch.setattr(PairMasks, "_pair", shown)
    again = MaskedSealer(PairMasks(keys, COLLUDERS), fixed, 16)
    tried = 0
    for both in run.of_both(first, second):
        if both[0].piece.digits == 0 or not len(both[0].values.reshape(-1)):
            continue
        # what is hidden: values and check, by the masks that all but the two can make
        clear = []
        for one in both:
            chosen.words = np.zeros(len(one.piece.content) + 1, np.uint64)
            bare = MaskedSealer(PairMasks(keys, COLLUDERS), fixed, 16)
            clear.append(seal_again(run, bare, one, one.values).content)
        swapped = []
        for one, other in (both, both[::-1]):
            chosen.words = np.zeros(len(one.piece.content) + 1, np.uint64)
            bare = MaskedSealer(PairMasks(keys, COLLUDERS), fixed, 16)
            swapped.append(seal_again(run, bare, one, other.values).content)
        # the mask of the two under which they sent what they did, and the one of swapped values
        mask = both[0].piece.content - clear[0]
        mask[-1] = (int(both[0].piece.content[-1]) - int(clear[0][-1])) % PRIME
        other = both[0].piece.content - swapped[0]
        other[-1] = (int(both[0].piece.content[-1]) - int(swapped[0][-1])) % PRIME
        # the same words: what differs by less than a step may be sealed alike
        alike = np.allclose(both[0].values, both[1].values, rtol=0, atol=fixed.step)
        assert (mask != other).any() or alike
        for words, senders in ((mask, both), (other, both[::-1])):
            chosen.words = np.append(words, np.uint64(0))
            for one, giver in zip(both, senders, strict=True):
                again._ledger = type(again._ledger)()
                piece = seal_again(run, again, one, giver.values)
                np.testing.assert_array_equal(piece.content, one.piece.content)
                assert (piece.nonces, piece.owners) == (one.piece.nonces, one.piece.owners)
        tried += 1
    assert tried > 25


# ---- fresh keys: what one contribution looks like to all others together

NAMES = ("bank", "clinic", "hospital", "insurer")
STREAM = Stream("5e", 4, 2, "local_duals", "weights", 1)
WHOLE = Parties(NAMES, NAMES)
FIXED = FixedPoint(addends=4)


def drawn(number: int) -> PairKeys:
    """Return keys of all, other ones for each number."""
    root = number.to_bytes(32, "little")
    return PairKeys(
        lambda one, other: pseudorandom(root, "pair", *sorted((one, other))),
        lambda owners: pseudorandom(root, "owners", *owners),
    )


def views(values: tuple[float, float], trials: int, trust: str = "pairs") -> np.ndarray:
    """Return the stripped words and check of the first honest client, under fresh keys each."""
    honest, found = ("bank", "hospital"), []
    for number in range(trials):
        if trust == "clients":
            sealer = MaskedSealer(pseudorandom(number.to_bytes(32, "little"), "x"), FIXED, 4)
            piece = sealer.seal("bank", STREAM, np.array([values[0]]))
            found.append([*sealer.open(piece).view(np.uint64), 0])
            continue
        keys = drawn(number)
        piece = MaskedSealer(PairMasks(keys, 16), FIXED, 4).seal(
            "bank", STREAM, np.array([values[0]]), WHOLE
        )
        known = PairMasks(pooled(keys, honest), 16)
        found.append(stripped(known, Sent("bank", piece, WHOLE, np.zeros(1))))
    return np.array(found)


@pytest.mark.parametrize("place", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_swapped_contributions_look_alike_under_fresh_keys(place):
    one, other = views((3.0, -5.0), 1500), views((-5.0, 3.0), 1500)
    for shift in (56, 0):
        counts = [
            np.bincount((some[:, place] >> np.uint64(shift)).astype(int) & 15, minlength=16)
            for some in (one, other)
        ]
        for some in counts:
            assert stats.chisquare(some).pvalue > 1e-4
        assert stats.chi2_contingency(counts).pvalue > 1e-4


def test_under_one_key_swapped_contributions_do_not_look_alike():
    one, other = views((3.0, -5.0), 20, "clients"), views((-5.0, 3.0), 20, "clients")
    assert not set(one[:, 0].tolist()) & set(other[:, 0].tolist())


def test_what_an_owner_sees_of_a_total_is_the_same_whoever_gave_what():
    """Also the check: it adds up modulo its prime, and no carry tells of a part."""
    rng = np.random.default_rng(0)
    masks = PairMasks(drawn(1), 16)
    total = rng.normal(size=8) * 1000
    seen = set()
    for _ in range(200):
        parts = [FIXED.decode(FIXED.encode(rng.normal(size=8) * 1000)) for _ in NAMES[1:]]
        whole = FIXED.decode(FIXED.encode(total))
        sealer = MaskedSealer(masks, FIXED, 4)
        given = [whole - np.sum(parts, axis=0), *parts]
        pieces = [
            sealer.seal(name, STREAM, values, WHOLE)
            for name, values in zip(NAMES, given, strict=True)
        ]
        piece = MaskedAdder().add(*pieces)
        words = piece.content.copy()
        ((mask, _),) = masks.of_total(piece, len(words))
        words[:-1] -= mask[0, : len(words) - 1]
        words[-1] = (int(words[-1]) - int(mask[0, len(words) - 1])) % PRIME
        assert int(words[-1]) == check(words[:-1], masks.factors(piece, len(words))[1:])
        seen.add(words.tobytes())
    assert len(seen) == 1


# ---- who is there, and who opens


def pieces_of(names, parties=WHOLE, stream=STREAM, nonce=b""):
    sealer = MaskedSealer(PairMasks(drawn(0), 16, nonce=nonce), FIXED, 4)
    return [sealer.seal(name, stream, np.full(3, 1.0 + at), parties) for at, name in names]


def test_a_total_that_lacks_a_contributor_is_opened_by_nobody():
    pieces = pieces_of(enumerate(NAMES))
    opener = MaskedSealer(PairMasks(drawn(0), 16), FIXED, 4)
    np.testing.assert_allclose(opener.open(MaskedAdder().add(*pieces)), 10.0)
    for size in (1, 2, 3):
        for some in itertools.combinations(pieces, size):
            with pytest.raises(TamperedError):
                opener.open(MaskedAdder().add(*some))


def test_an_exchange_among_those_who_are_left_has_other_masks():
    left, later = Parties(NAMES[:3], NAMES), replace(STREAM, sequence=5)
    first = pieces_of(enumerate(NAMES))[:3]
    second = pieces_of(list(enumerate(NAMES))[:3], left, stream=later)
    opener = MaskedSealer(PairMasks(drawn(0), 16), FIXED, 4)
    np.testing.assert_allclose(opener.open(MaskedAdder().add(*second)), 6.0)
    for mixed in list(itertools.product(*zip(second, first, strict=True)))[1:]:
        for stream in (STREAM, later):
            named = [replace(one, stream=stream) for one in mixed]
            with pytest.raises(TamperedError):
                opener.open(MaskedAdder().add(*named))


def test_who_does_not_own_a_cell_opens_no_total_of_it():
    parties = Parties(NAMES[:3], NAMES[:3])
    piece = MaskedAdder().add(*pieces_of(list(enumerate(NAMES))[:3], parties))
    keys = drawn(0)

    def owners(names):
        if "insurer" not in names:
            raise KeyMaterialError("none in common")
        return keys.owners(names)

    outsider = MaskedSealer(PairMasks(PairKeys(keys.pair, owners), 16), FIXED, 4)
    for named in (NAMES[:3], NAMES, NAMES[::-1], ()):
        with pytest.raises(TamperedError):
            outsider.open(replace(piece, owners=named))
    np.testing.assert_allclose(MaskedSealer(PairMasks(keys, 16), FIXED, 4).open(piece), 6.0)


def test_a_site_that_was_started_again_adds_up_with_the_others():
    names = list(enumerate(NAMES))
    for again in ((0,), (2,), (0, 3), (0, 1, 2, 3)):
        found = [
            one
            for at, name in names
            for one in pieces_of([(at, name)], nonce=b"n" * 16 if at in again else b"")
        ]
        opener = MaskedSealer(PairMasks(drawn(0), 16), FIXED, 4)
        np.testing.assert_allclose(opener.open(MaskedAdder().add(*found)), 10.0)


def connected(nodes: set[int], edges: list[tuple[int, ...]]) -> bool:
    found = waiting = {next(iter(nodes))}
    while waiting:
        waiting = {one for at in waiting for one in edges[at] if one in nodes} - found
        found = found | waiting
    return found == nodes


@pytest.mark.parametrize(("contributors", "colluders"), [(6, 1), (9, 2), (11, 3), (12, 4)])
def test_whoever_colludes_the_others_are_connected(contributors, colluders):
    edges = [neighbours(contributors, at, colluders) for at in range(contributors)]
    for at, some in enumerate(edges):
        assert all(at in edges[one] for one in some)
    for out in itertools.combinations(range(contributors), colluders):
        assert connected(set(range(contributors)) - set(out), edges)


def test_of_many_contributors_each_masks_against_a_few():
    rng = np.random.default_rng(0)
    for contributors in (17, 40, 1000):
        edges = [neighbours(contributors, at, 16) for at in range(contributors)]
        assert max(map(len, edges)) <= min(contributors - 1, 16 + 11)
        assert all(at in edges[one] for at, some in enumerate(edges) for one in some)
        for _ in range(20):  # neighbours of one and the same, as many as may collude
            at = int(rng.integers(contributors))
            out = set(rng.permutation(edges[at])[:16].tolist())
            assert connected(set(range(contributors)) - out, edges)


@pytest.mark.parametrize("count", [5, 9_000, 40_000])  # masks apart, added up one by one
@pytest.mark.parametrize("nonce", [b"", b"n" * 16])
def test_long_contributions_add_up_as_short_ones(count, nonce):
    masks = PairMasks(drawn(0), 16, nonce=nonce)
    sealer = MaskedSealer(masks, FIXED, 4)
    values = np.arange(count, dtype=float) / 7
    pieces = [sealer.seal(name, STREAM, values * at, WHOLE) for at, name in enumerate(NAMES)]
    np.testing.assert_allclose(sealer.open(MaskedAdder().add(*pieces)), 6 * values, atol=1e-9)
    for some in itertools.combinations(pieces, 3):
        with pytest.raises(TamperedError):
            sealer.open(MaskedAdder().add(*some))
