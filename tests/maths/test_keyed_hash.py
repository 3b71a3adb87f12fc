"""Hashes of many texts are those of hashlib."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from intarsia.core.block import Block
from intarsia.data.table import split
from intarsia.maths.keyed_hash import keyed_hashes

TEXTS = [b"", b"a", b"P10000001", b"x" * 127, b"y" * 128, b"z" * 129, b"w" * 300, b"a\0b", b"\xff"]


@pytest.mark.parametrize("key", [b"k", b"short", bytes(range(64))], ids=len)
@pytest.mark.parametrize("size", [1, 7, 8, 64])
def test_hashes_are_those_of_hashlib(key, size):
    expected = []
    for text in TEXTS:
        digest = hashlib.blake2b(text, key=key, digest_size=size).digest()[:8]
        expected.append(int.from_bytes(digest, "little"))
    found = keyed_hashes(np.array(TEXTS), key, size)
    assert found.tolist() == expected


@pytest.mark.parametrize(
    "ids",
    [
        np.array(["P7", "é", "日本", "ü1", "ü2", "ü3", "x" * 200]),
        np.array([0, -5, 7, 2**62]),
        np.array(TEXTS[1:]),
    ],
)
def test_the_test_part_is_chosen_by_the_keyed_hash_of_each_id(ids):
    key = hashlib.blake2b(b"salt").digest()
    chosen = []
    for one in ids.tolist():
        text = one if isinstance(one, bytes) else str(one).encode()
        digest = hashlib.blake2b(text, key=key, digest_size=7).digest()
        if int.from_bytes(digest, "big") / 2**56 < 0.5:
            chosen.append(one)
    assert 0 < len(chosen) < len(ids)
    _, tested = split(Block(ids, (), np.zeros((len(ids), 0))), 0.5, "salt")
    assert sorted(tested.samples.tolist()) == sorted(chosen)
