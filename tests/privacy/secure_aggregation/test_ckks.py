from __future__ import annotations

import functools
import itertools
import os
import struct
import subprocess
import sys
import tempfile
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from intarsia.errors import (
    ExperimentError,
    KeyMaterialError,
    RangeError,
    ReplayError,
    SealedError,
    TamperedError,
)
from intarsia.privacy.secure_aggregation import ckks
from intarsia.privacy.secure_aggregation.ckks import (
    CkksAdder,
    CkksKeys,
    CkksOrMasks,
    CkksOrMasksAdder,
    CkksSealer,
)
from intarsia.privacy.secure_aggregation.ckks_ciphertexts import Ciphertexts
from intarsia.privacy.secure_aggregation.ckks_parameters import CkksParameters, parameters
from intarsia.privacy.secure_aggregation.fixed_point import FixedPoint
from intarsia.privacy.secure_aggregation.masking import MaskedAdder, MaskedSealer
from intarsia.privacy.secure_aggregation.protocol import Piece, Stream

pytest.importorskip("tenseal")

CLIENTS = ("a", "b", "c", "d", "e")
RANGES = (1.0, 2.0**14, 2.0**22)


@functools.cache
def keys_for(range: float) -> CkksKeys:
    return CkksKeys.create(parameters(range, len(CLIENTS)))


def sealer_for(range: float = 2.0**14, *, token_key: bytes = b"t" * 32) -> CkksSealer:
    return CkksSealer(keys_for(range), clients=CLIENTS, token_key=token_key)


def adder_for(range: float = 2.0**14) -> CkksAdder:
    return CkksAdder(keys_for(range).public_bytes())


def stream(sequence: int = 0, **other: object) -> Stream:
    named = {
        "session": "5e551",
        "sequence": sequence,
        "round": 1,
        "function": "train",
        "field": "dual",
        "cell": 0,
    }
    return Stream(**(named | other))


def total_of(adder: CkksAdder, pieces: list[Piece]) -> Piece:
    return functools.reduce(adder.add, pieces)


def with_parts(piece: Piece, *parts: object) -> Piece:
    return replace(piece, content=Ciphertexts(parts))


# sums


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_total_is_within_the_stated_error(data):
    range = data.draw(st.sampled_from(RANGES))
    sealer, adder = sealer_for(range), adder_for(range)
    limit = sealer.parameters.limit
    axes = st.one_of(
        st.lists(st.integers(0, 70), max_size=3).map(tuple),
        st.sampled_from([(8190,), (8191,), (8192,), (4096, 4), (16382,)]),
    )
    shape = data.draw(axes)
    owners = data.draw(st.permutations(CLIENTS))[: data.draw(st.integers(1, len(CLIENTS)))]
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    size = 10.0 ** -data.draw(st.integers(0, 12))
    name = stream(data.draw(st.integers(0, 2**60)), cell=data.draw(st.integers(0, 99)))
    values = {c: np.asarray(rng.uniform(-size, size, shape) * limit) for c in owners}
    for column in values.values():  # the extremes too
        column[rng.random(shape) < 0.05] = rng.choice([-limit, limit, 0.0])
    pieces = [sealer.seal(c, name, values[c]) for c in owners]
    present = data.draw(st.integers(1, len(owners)))  # the others drop out
    piece = total_of(adder, data.draw(st.permutations(pieces[:present])))
    opened = sealer.open(piece)
    assert opened.shape == shape
    assert piece.contributors == tuple(sorted(owners[:present]))
    exact = sum(values[c].astype(np.longdouble) for c in owners[:present])
    assert np.all(np.abs(opened - exact) <= sealer.parameters.error(present))
    again = sealer_for(range)
    others = [again.seal(c, name, values[c]) for c in owners[:present]]
    np.testing.assert_array_equal(again.open(total_of(adder, others)), opened)


@settings(max_examples=25, deadline=None)
@given(
    st.sets(st.sampled_from(CLIENTS), min_size=1),
    st.sets(st.sampled_from(CLIENTS), min_size=1),
    st.integers(1, 9000),
)
def test_a_total_of_other_contributors_than_it_names_is_refused(sealed, named, count):
    sealer, adder = sealer_for(), adder_for()
    pieces = [sealer.seal(c, stream(), np.ones(count)) for c in sorted(sealed)]
    piece = replace(total_of(adder, pieces), contributors=tuple(sorted(named)))
    if sealed == named:
        assert np.abs(sealer.open(piece) - len(sealed)).max() <= sealer.parameters.error(5)
    else:
        with pytest.raises(TamperedError, match="is not the sum"):
            sealer.open(piece)


def test_two_seals_of_the_same_values_differ_and_open_to_the_same_bits():
    values = np.linspace(-1.0, 1.0, 5000)
    one, other = sealer_for(), sealer_for()
    pieces = [sealer.seal("a", stream(), values) for sealer in (one, other)]
    first, second = (one.to_bytes(piece) for piece in pieces)
    assert first != second
    opened = one.open(pieces[0])
    assert np.abs(opened - values).max() <= one.parameters.error(1)
    for sealer, piece in itertools.product((one, other), pieces):
        np.testing.assert_array_equal(sealer.open(piece), opened)


@pytest.mark.parametrize("range", RANGES)
def test_values_are_rounded_to_the_grid_without_a_bias(range):
    sealer = sealer_for(range)
    grid = sealer.parameters.grid
    value = 0.1 + 0.3 * grid
    opened = sealer.open(sealer.seal("a", stream(), np.full(8191, value)))
    steps = opened / grid
    np.testing.assert_array_equal(steps, np.rint(steps))
    assert len(np.unique(steps)) == 2
    # a share p of them is rounded up, with deviation √(p (1 - p) / n)
    assert abs(opened.mean() - value) <= 5 * grid * 0.5 / np.sqrt(len(opened))


@pytest.mark.parametrize(
    ("range", "clients", "error"),
    [
        (2.0**14, 3, None),
        pytest.param(2.0**14, 16, None, marks=pytest.mark.slow),
        pytest.param(1e6, 4, None, marks=pytest.mark.slow),
        (2.0**22, 3, 1e-5),
    ],
)
def test_what_a_moved_total_opens_to_says_nothing_of_its_noise(range, clients, error):
    """A server that moves values by part of a step sees in no total which way noise took them."""
    found = parameters(range, clients, error=error)
    names = [f"c{k}" for k in np.arange(clients)]
    keys = CkksKeys.create(found)
    sealer = CkksSealer(keys, clients=names, token_key=bytes(32))
    adder = CkksAdder(keys.public_bytes())
    slots = np.arange(0, 8191, 512)
    refused = 0
    for place, part in enumerate(np.linspace(0.05, 0.95, 19)):
        moved = np.zeros(8192)
        moved[slots] = part * found.grid
        opened = set()
        for trial in np.arange(3):
            name = stream(10 * place + int(trial))
            pieces = [sealer.seal(one, name, np.zeros(8191)) for one in names]
            total = total_of(adder, pieces)
            amount = Ciphertexts((sealer._secret.encrypted(moved),))
            total = replace(total, content=sealer._arithmetic.added(total.content, amount))
            try:
                opened |= set((sealer.open(total) / found.grid)[slots].tolist())
            except TamperedError:
                refused += 1
        assert opened <= {0.0} if part < 0.5 else opened <= {1.0}
    assert refused >= 3  # those by half a step, at the least


def test_keys_whose_grid_does_not_cover_the_noise_are_refused():
    found = sealer_for().parameters
    keys = CkksKeys.create(replace(found, grid_bits=found.grid_bits + 1))
    with pytest.raises(KeyMaterialError, match="does not cover the noise; draw new"):
        CkksSealer(keys, clients=CLIENTS, token_key=bytes(32))
    with pytest.raises(KeyMaterialError, match="by an earlier version"):
        CkksKeys.from_secret_bytes(b"INTK\x01" + keys.secret_bytes()[5:])


@pytest.mark.parametrize("range", RANGES)
def test_multiples_of_the_grid_stay_as_they_are(range):
    sealer = sealer_for(range)
    limit = sealer.parameters.limit
    steps = np.random.default_rng(0).integers(-limit / 8, limit / 8, 8191) if limit > 8 else 0
    values = np.full(8191, limit / 2 - sealer.parameters.grid) - steps
    values = np.rint(values / sealer.parameters.grid) * sealer.parameters.grid
    opened = sealer.open(sealer.seal("a", stream(), values))
    np.testing.assert_array_equal(opened, values)


def test_the_same_place_in_another_exchange_is_rounded_anew():
    sealer = sealer_for()
    grid = sealer.parameters.grid
    base = np.full(4000, 0.3 * grid)
    ups = []
    for exchange in np.arange(40):
        values = base.copy()
        values[-1] = exchange * grid  # something differs
        ups.append(sealer.open(sealer.seal("a", stream(int(exchange)), values))[:-1] / grid)
    # 40 draws of chance 0.3 each: alike, they would be all or none
    assert np.std(np.sum(ups, axis=0)) == pytest.approx(np.sqrt(40 * 0.21), rel=0.1)


# what is refused when sealing


@pytest.mark.parametrize("range", RANGES)
def test_the_limit_can_be_sealed_and_the_next_number_cannot(range):
    sealer, adder = sealer_for(range), adder_for(range)
    limit = sealer.parameters.limit
    pieces = [sealer.seal(c, stream(), np.full(4, -limit)) for c in CLIENTS]
    opened = sealer.open(total_of(adder, pieces))
    assert np.abs(opened + range).max() <= sealer.parameters.error(5)
    for value in (np.nextafter(limit, np.inf), -1e300):
        with pytest.raises(RangeError, match=r"privacy\.range"):
            sealer.seal("a", stream(1), np.array([0.0, value]))


def test_a_value_beyond_the_range_is_named_with_the_range_to_set():
    with pytest.raises(RangeError, match=r"value -4000 .* ±3276\.8; set .* at least 2e\+04"):
        sealer_for().seal("a", stream(), np.array([1.0, -4000.0]))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_no_numbers_are_refused(value):
    with pytest.raises(RangeError, match=r"1 of 3 values .* not finite .*privacy\.range"):
        sealer_for().seal("a", stream(), np.array([1.0, value, 2.0]))


def test_a_stream_is_sealed_once_by_each_client():
    sealer = sealer_for()
    sealer.seal("a", stream(3), np.ones(2))
    sealer.seal("b", stream(3), np.ones(2))
    sealer.seal("a", stream(3, cell=1), np.ones(2))
    for again in (stream(3), stream(2)):
        with pytest.raises(ReplayError, match="'a'"):
            sealer.seal("a", again, np.ones(2))


def test_a_client_that_is_not_known_is_refused():
    with pytest.raises(SealedError, match="'z' is not among the 5 clients"):
        sealer_for().seal("z", stream(), np.ones(2))


# what is refused when adding and opening


def test_pieces_of_different_totals_are_not_added():
    sealer, adder = sealer_for(), adder_for()
    piece = sealer.seal("a", stream(), np.ones(3))
    for other in (
        sealer.seal("a", stream(1), np.ones(3)),
        sealer.seal("b", stream(2), np.ones(3)),
        piece,
    ):
        with pytest.raises(SealedError):
            adder.add(piece, other)


def test_a_total_renamed_reshaped_or_put_together_anew_is_refused():
    sealer, adder = sealer_for(), adder_for()
    one = sealer.seal("a", stream(), np.zeros(16382))
    earlier = sealer.seal("b", stream(), np.zeros(16382))
    first, second = one.content.parts
    doubled = adder.add(one, replace(one, contributors=("b",)))
    for odd in (
        replace(one, stream=stream(1)),
        replace(one, shape=(2, 8191)),
        replace(one, contributors=("b",)),
        replace(one, contributors=()),
        replace(one, contributors=("a", "a")),
        replace(one, contributors=("z",)),
        replace(doubled, contributors=("a", "b")),
        with_parts(one, second, first),
        with_parts(one, first),
        with_parts(one, first, earlier.content.parts[1]),
        replace(one, content=np.zeros(16384, np.uint64)),
    ):
        with pytest.raises(TamperedError):
            sealer.open(odd)
    assert not np.any(np.abs(sealer.open(one)) > sealer.parameters.error(1))


@pytest.mark.parametrize("place", [0, 17, 8190])
@pytest.mark.parametrize("amount", [1e-3, 1.0, 1000.0])
def test_an_amount_that_the_server_adds_to_a_value_is_found_out(place, amount):
    import tenseal.sealapi as seal

    sealer, adder = sealer_for(), adder_for()
    piece = sealer.seal("a", stream(), np.zeros(8191))
    context = adder._arithmetic.context
    slots = np.zeros(8192)
    slots[place] = amount
    plain, forged = seal.Plaintext(), seal.Ciphertext()
    encoder = seal.CKKSEncoder(context)
    encoder.encode(slots.view(complex).tolist(), adder.parameters.scale, plain)
    seal.Evaluator(context).add_plain(piece.content.parts[0], plain, forged)
    with pytest.raises(TamperedError, match="is not the sum"):
        sealer.open(with_parts(piece, forged))


def test_a_total_under_another_key_is_refused():
    piece = sealer_for().seal("a", stream(), np.ones(5))
    fresh = CkksKeys.create(keys_for(2.0**14).parameters)
    with pytest.raises(TamperedError):
        CkksSealer(fresh, clients=CLIENTS, token_key=b"t" * 32).open(piece)
    with pytest.raises(TamperedError):
        sealer_for(token_key=b"u" * 32).open(piece)
    with pytest.raises(TamperedError):
        sealer_for(2.0**22).open(piece)
    with pytest.raises(TamperedError):
        adder_for(2.0**22).add(piece, replace(piece, contributors=("b",)))


# bytes


@pytest.mark.parametrize("shape", [(), (0,), (3, 5), (9000,)])
@pytest.mark.parametrize("range", RANGES)
def test_a_piece_survives_its_bytes(range, shape):
    sealer, adder = sealer_for(range), adder_for(range)
    values = np.linspace(-0.1, 0.1, int(np.prod(shape))).reshape(shape)
    piece = sealer.seal("a", stream(), values)
    data = sealer.to_bytes(piece)
    read = adder.from_bytes(data)
    assert (read.stream, read.shape, read.contributors) == (stream(), shape, ("a",))
    np.testing.assert_array_equal(sealer.open(read), sealer.open(piece))
    assert adder.size(piece) == pytest.approx(len(data), rel=0.01)
    assert sealer.size(read) == pytest.approx(len(data), rel=0.01)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_bytes_that_were_cut_or_altered_are_refused(data):
    raw = bytearray(a_piece())
    kind = data.draw(st.sampled_from(["cut", "bit", "more", "other"]))
    place = data.draw(st.integers(0, len(raw) - 1))
    if kind == "cut":
        del raw[place:]
    elif kind == "bit":
        raw[place] ^= 1 << data.draw(st.integers(0, 7))
    elif kind == "more":
        raw += b"\0"
    else:
        raw = bytearray(data.draw(st.binary(max_size=200)))
    with pytest.raises(TamperedError):
        adder_for().from_bytes(bytes(raw))


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_altered_bytes_with_a_new_checksum_open_to_an_error_or_the_true_total(data):
    body = bytearray(ckks.unchecked(b"INTC\x01", a_piece()))
    for _ in range(data.draw(st.integers(1, 3))):
        last = data.draw(st.sampled_from([4, 120, 400, len(body) - 1]))
        body[data.draw(st.integers(0, last))] ^= 1 << data.draw(st.integers(0, 7))
    sealer = sealer_for()
    try:
        opened = sealer.open(sealer.from_bytes(ckks.checked(b"INTC\x01", bytes(body))))
    except TamperedError:
        return
    assert np.abs(opened - 0.5).max() <= sealer.parameters.error(1)


def test_a_ciphertext_of_another_scale_is_refused():
    keys = keys_for(2.0**14)
    known = keys.parameters
    coarser = replace(known, scale_bits=known.scale_bits - 1, grid_bits=known.grid_bits - 1)
    other = CkksSealer(CkksKeys(coarser, keys.secret), clients=CLIENTS, token_key=b"t" * 32)
    data = other.to_bytes(other.seal("a", stream(), np.ones(3)))
    with pytest.raises(TamperedError, match="another scale"):
        adder_for().from_bytes(data)


@functools.cache
def a_piece() -> bytes:
    sealer = sealer_for()
    return sealer.to_bytes(sealer.seal("a", stream(), np.full(50, 0.5)))


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"[]",
        b'[["s",0,1,"f","x",0],[50],["a"],[0]]',
        b'[["s",0,1,"f","x",0],[50],["a"],[1e400]]',
        b'[["s",0,1,"f","x",0],[-50],["a"],[3]]',
        b'[["s",0,1,"f","x",0],[50],[3],[3]]',
        b'[["s",0,1,"f","x"],[50],["a"],[3]]',
        b'[["s",0,1,"f",null,0],[50],["a"],[3]]',
        b'[["s",0,1,"f","x",0],[50],["a"],[3]]',
        b'[["s",0,1,"f","x",0],50,"a",3]',
        b"[" * 100_000,
    ],
)
def test_heads_that_no_party_writes_are_refused(head):
    body = struct.pack("<I", len(head)) + head + b"xyz"
    with pytest.raises(TamperedError):
        adder_for().from_bytes(ckks.checked(b"INTC\x01", body))


def test_ciphertexts_are_written_without_files_in_memory_too(monkeypatch, tmp_path):
    monkeypatch.delattr(os, "memfd_create", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    sealer = CkksSealer(CkksKeys.create(parameters(1e4, 5)), clients=CLIENTS, token_key=b"t" * 32)
    piece = sealer.seal("a", stream(), np.ones(4))
    opened = sealer.open(sealer.from_bytes(sealer.to_bytes(piece)))
    assert np.abs(opened - 1.0).max() <= sealer.parameters.error(1)
    assert list(tmp_path.iterdir()) == []


# keys


def test_keys_survive_their_bytes_and_open_what_they_sealed():
    keys = keys_for(2.0**14)
    read = CkksKeys.from_secret_bytes(keys.secret_bytes())
    assert read.parameters == keys.parameters
    piece = sealer_for().seal("a", stream(), np.ones(4))
    other = CkksSealer(read, clients=CLIENTS, token_key=b"t" * 32)
    assert np.abs(other.open(piece) - 1.0).max() <= other.parameters.error(1)


def test_keys_that_were_cut_altered_or_are_none_are_refused():
    data = keys_for(2.0**14).secret_bytes()
    flipped = data[:-1] + bytes([data[-1] ^ 1])
    short = ckks.checked(b"INTK\x01", b"")
    for odd in (b"", data[:-1], flipped, keys_for(2.0**14).public_bytes(), short):
        with pytest.raises(KeyMaterialError):
            CkksKeys.from_secret_bytes(odd)
    hollow = CkksKeys(keys_for(2.0**14).parameters, b"nothing")
    with pytest.raises(KeyMaterialError, match="7 bytes are no secret key"):
        CkksSealer(hollow, clients=CLIENTS, token_key=b"t" * 32)


def test_parameters_that_are_none_or_insecure_are_refused():
    for odd in (b"", b"{}", b"[1]", b'{"coeff_mod_bit_sizes": 3}'):
        with pytest.raises(KeyMaterialError):
            CkksAdder(odd)
    weak = replace(keys_for(1.0).parameters, coeff_mod_bit_sizes=(60, 60, 60, 60))
    with pytest.raises(KeyMaterialError, match="128-bit"):
        CkksAdder(weak.to_bytes())


def test_more_clients_than_the_keys_are_for_or_a_short_token_key_are_refused():
    keys = keys_for(2.0**14)
    with pytest.raises(KeyMaterialError, match="sums over 5 clients, but there are 6"):
        CkksSealer(keys, clients=(*CLIENTS, "f"), token_key=b"t" * 32)
    with pytest.raises(KeyMaterialError, match="3 bytes"):
        CkksSealer(keys, clients=CLIENTS, token_key=b"abc")


def test_the_secret_is_neither_shown_nor_public():
    keys = keys_for(2.0**14)
    assert "secret" not in repr(keys)
    assert len(keys.public_bytes()) < 200  # parameters; a key takes 64 KiB
    assert CkksParameters.from_bytes(keys.public_bytes()) == keys.parameters


SERVER = """
import sys
from pathlib import Path
import numpy as np
import tenseal.sealapi as seal
from intarsia.errors import KeyMaterialError, TamperedError
from intarsia.privacy.secure_aggregation.ckks import CkksAdder, CkksKeys, CkksSealer

public, one, other = (Path(name).read_bytes() for name in sys.argv[1:4])
adder = CkksAdder(public)
piece = adder.add(adder.from_bytes(one), adder.from_bytes(other))
Path(sys.argv[4]).write_bytes(adder.to_bytes(piece))
try:
    CkksKeys.from_secret_bytes(public)
except KeyMaterialError:
    print("no secret key in the public bytes")
context = adder._arithmetic.context
try:
    seal.Decryptor(context, seal.SecretKey())
except ValueError:
    print("no decryptor without a key")
plain = seal.Plaintext()
seal.Decryptor(context, seal.KeyGenerator(context).secret_key()).decrypt(
    piece.content.parts[0], plain
)
slots = np.array(seal.CKKSEncoder(context).decode_complex(plain)).view(float)[:8191]
print(abs(np.corrcoef(slots, np.linspace(-1, 1, 8191))[0, 1]) < 0.06)
guess = CkksSealer(CkksKeys.create(adder.parameters), clients=("a", "b"), token_key=bytes(32))
try:
    guess.open(piece)
except TamperedError:
    print("another key opens nothing")
"""


def test_a_server_process_adds_from_its_serialised_state_but_cannot_open(tmp_path):
    sealer = sealer_for()
    values = np.linspace(-1.0, 1.0, 8191)
    state = {"public": keys_for(2.0**14).public_bytes()}
    for client in ("a", "b"):
        state[client] = sealer.to_bytes(sealer.seal(client, stream(), values))
    for name, data in state.items():
        assert keys_for(2.0**14).secret[-1000:] not in data
        (tmp_path / name).write_bytes(data)
    script = tmp_path / "server.py"
    script.write_text(SERVER)
    paths = [str(tmp_path / name) for name in (*state, "total")]
    run = subprocess.run(
        [sys.executable, str(script), *paths], capture_output=True, text=True, check=True
    )
    assert run.stdout.splitlines() == [
        "no secret key in the public bytes",
        "no decryptor without a key",
        "True",
        "another key opens nothing",
    ]
    opened = sealer.open(sealer.from_bytes((tmp_path / "total").read_bytes()))
    assert np.abs(opened - 2 * values).max() <= sealer.parameters.error(2)


# what masks keep, and the library


def masks_for():
    return MaskedSealer(b"m" * 32, FixedPoint(range=2.0**14, addends=5), 5)


def test_a_client_s_own_array_under_masks_opens_beside_totals_in_ciphertexts():
    sealer = CkksOrMasks(sealer_for(), masks_for())
    adder = CkksOrMasksAdder(adder_for(), MaskedAdder())
    values = np.linspace(-1, 1, 5000)
    total = functools.reduce(adder.add, (sealer.seal(c, stream(0), values) for c in CLIENTS))
    assert isinstance(total.content, Ciphertexts)
    assert np.abs(sealer.open(total) - 5 * values).max() <= sealer.ckks.parameters.error(5)
    alone = masks_for().seal("a", stream(1), values)
    assert not isinstance(alone.content, Ciphertexts)
    assert np.abs(sealer.open(alone) - values).max() <= 2.0**-45


def test_a_piece_of_the_other_scheme_is_refused():
    adder = CkksOrMasksAdder(adder_for(), MaskedAdder())
    sealer = CkksOrMasks(sealer_for(), masks_for())
    pieces = [sealer.seal("a", stream(), np.ones(5)), masks_for().seal("b", stream(), np.ones(5))]
    with pytest.raises(TamperedError, match="only one is in ciphertexts"):
        adder.add(*pieces)
    # the server says that the other client had a part in it
    for piece in pieces:
        with pytest.raises(TamperedError):
            sealer.open(replace(piece, contributors=("a", "b")))


def test_without_the_library_one_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "tenseal", None)
    monkeypatch.setitem(sys.modules, "tenseal.sealapi", None)
    with pytest.raises(ExperimentError, match=r'pip install "intarsia\[privacy\]"'):
        CkksKeys.create(parameters(1.0, 2))
    with pytest.raises(ExperimentError, match="tenseal"):
        CkksAdder(parameters(1.0, 2).to_bytes())


def test_the_library_is_loaded_when_it_is_used_only():
    code = "import sys, intarsia.privacy.secure_aggregation.ckks; print('tenseal' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
