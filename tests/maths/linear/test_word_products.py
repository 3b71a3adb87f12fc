"""Products modulo 2^64: exact, whatever is random in their parts."""

from __future__ import annotations

import numpy as np
import pytest

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

SHAPES = [(0, 3, 2), (1, 1, 1), (7, 3, 5), (8, 4, 4), (203, 31, 17)]


def words(rng, *shape):
    return rng.integers(0, 2**64, shape, np.uint64)


@pytest.mark.parametrize(("rows", "width", "across"), SHAPES)
def test_a_product_of_words_is_that_of_whole_numbers_modulo_two_to_the_64(rows, width, across):
    rng = np.random.default_rng(rows)
    one, other = words(rng, rows, width), words(rng, rows, across)
    found = multiply_words(one, other)
    exact = np.zeros((width, across), object) + one.astype(object).T @ other.astype(object)
    assert (found.astype(object) == exact % 2**64).all()


def factors(seed, samples=9000, widths=(37, 26)):
    """Return columns of unit length, some of them of few rows, and curvatures that sum to one."""
    rng = np.random.default_rng(seed)
    made = []
    for width in widths:
        x = rng.standard_normal((samples, width))
        x[:, : width // 3] = rng.random((samples, width // 3)) < 0.01
        made.append(x / np.sqrt((x**2).mean(axis=0)))
    curvature = rng.random(samples)
    return *made, curvature / curvature.sum()


def as_words(x, curvature):
    found = np.empty(x.shape, np.uint64)
    write_words(x, np.sqrt(curvature), found)
    return found


@pytest.mark.parametrize("seed", range(3))
def test_two_parts_add_up_to_the_weighted_product(seed):
    one, other, curvature = factors(seed)
    a, b = as_words(one, curvature), as_words(other, curvature)
    rng = np.random.default_rng(seed)
    u, v = words(rng, *a.shape), words(rng, *b.shape)
    first = multiply_words(a, b - v)
    second = multiply_words(a - u, v) + multiply_words(u, v)
    truth = one.T @ (curvature[:, None] * other)
    scale = np.sqrt(np.outer(curvature @ one**2, curvature @ other**2))
    assert (abs(product_values(first + second) - truth) / scale).max() < 1e-7


def test_the_sum_does_not_depend_on_what_is_random():
    one, other, curvature = factors(5, samples=1003)
    a, b = as_words(one, curvature), as_words(other, curvature)
    sums = []
    for seed in range(2):
        rng = np.random.default_rng(seed)
        u, v = words(rng, *a.shape), words(rng, *b.shape)
        parts = multiply_words(a, b - v), multiply_words(a - u, v) + multiply_words(u, v)
        sums.append(parts[0] + parts[1])
    np.testing.assert_array_equal(*sums)


def test_the_largest_product_that_has_room_does_not_wrap():
    largest = np.array([2.0**ROOM, -(2.0**ROOM)])
    np.testing.assert_array_equal(product_values(product_words(largest)), largest)
    assert 2 * BITS + ROOM < 63


def test_a_block_is_added_with_its_transpose():
    rng = np.random.default_rng(0)
    size, rows, columns = 9, np.array([0, 3, 4, 8]), np.array([1, 3, 7])
    block = rng.integers(0, 1000, (4, 3)).astype(np.uint64)
    half = np.zeros(size * (size + 3) // 2, np.uint64)
    add_block(half, size, block, rows, columns)
    whole = np.zeros((size, size))
    whole[np.ix_(rows, columns)] += block
    whole[np.ix_(columns, rows)] += block.T
    np.testing.assert_array_equal(unpack(half.astype(float), size)[0], whole)


def test_what_a_client_has_of_its_own_is_added_where_it_lies():
    rng = np.random.default_rng(0)
    size, places = 7, np.array([1, 2, 5])
    block, vector = rng.integers(0, 9, (3, 3)) + 0.0, rng.integers(0, 9, 3) + 0.0
    block += block.T
    total = np.zeros(size * (size + 3) // 2, np.uint64)
    add_own(total, size, pack(block, vector).astype(np.uint64), places)
    whole, all_of = np.zeros((size, size)), np.zeros(size)
    whole[np.ix_(places, places)], all_of[places] = block, vector
    found = unpack(total.astype(float), size)
    np.testing.assert_array_equal(found[0], whole)
    np.testing.assert_array_equal(found[1], all_of)


def test_halves_of_words_add_up_modulo_two_to_the_64():
    rng = np.random.default_rng(0)
    some = words(rng, 30, 11)
    total = sum(split_words(one).astype(float) for one in some)
    np.testing.assert_array_equal(joined_words(total), some.sum(axis=0))
