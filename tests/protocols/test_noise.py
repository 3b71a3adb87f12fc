from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.stats import chi2, kstest

from federations import secret_of
from intarsia.core.client_functions import NoiseKey, RandomKey
from intarsia.core.disclosure import Release
from intarsia.errors import SealedError
from intarsia.protocols.differential_privacy import add_to_weights, draw_noise

ONE = Release(deviation=1.0, clip=1.0)


def key(name, number=1):
    """Return a key that draws the same in each test."""
    return NoiseKey(RandomKey(()), secret_of(name), number)


def test_the_numbers_are_standard_normal():
    normal = draw_noise(ONE, key("a"), (4, 25_000))
    assert normal.shape == (4, 25_000)
    assert kstest(normal.ravel(), "norm").pvalue > 0.01
    assert abs(np.corrcoef(normal[0, 1:], normal[0, :-1])[0, 1]) < 4 / np.sqrt(25_000)


def test_equal_keys_repeat_a_release_and_no_two_others_are_alike():
    names = ("a", "b", "c", "d")
    releases = [draw_noise(ONE, key(name), (50,)) for name in names]
    assert all(
        (draw_noise(ONE, key(name), (50,)) == found).all()
        for name, found in zip(names, releases, strict=True)
    )
    for one, other in itertools.combinations(releases, 2):
        assert not np.isclose(one, other).any()


def test_a_release_more_than_was_accounted_for_is_refused():
    draw_noise(ONE, key("a", 1), (3,))
    with pytest.raises(SealedError, match="after the 1 that epsilon"):
        draw_noise(ONE, key("a", 2), (3,))


@pytest.mark.parametrize("owners", [1, 2, 5])
def test_the_owners_shares_add_up_to_the_weights_and_the_deviation(owners):
    w, release, count = np.full((2, 20_000), 3.0), Release(deviation=0.7, clip=1.0), 40_000
    total = sum(
        add_to_weights(w, np.full(20_000, 1 / owners), release, key(f"owner {k}"))
        for k in range(owners)
    )
    noise = (total - w).ravel()
    assert abs(noise.mean()) < 4 * release.deviation / np.sqrt(count)
    low, high = chi2.ppf([1e-4, 1 - 1e-4], count) / count
    assert low < noise.var() / release.deviation**2 < high


def test_without_deviation_a_release_is_the_weights():
    none = Release(deviation=0.0, clip=1.0)
    shared = add_to_weights(np.ones((1, 4)), np.full(4, 0.5), none, key("a"))
    assert (shared == 0.5).all()
