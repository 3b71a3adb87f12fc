from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import chi2, kstest

from intarsia.engines import codec
from intarsia.errors import SealedError
from intarsia.protocols.differential_privacy import draw_share, spend, with_noise


def source(seed):
    """Return a source of random bytes that repeats."""
    return np.random.default_rng(seed).bytes


def test_the_numbers_are_standard_normal():
    _, normal = spend(draw_share(1.0, 1, source(3)), (4, 25_000))
    assert normal.shape == (4, 25_000)
    assert kstest(normal.ravel(), "norm").pvalue > 0.01
    assert abs(np.corrcoef(normal[0, 1:], normal[0, :-1])[0, 1]) < 4 / np.sqrt(25_000)


def test_equal_secrets_repeat_a_release_and_no_two_releases_are_alike():
    share = draw_share(1.0, 3, source(3))
    releases = []
    for _ in range(3):
        before = share
        share, normal = spend(share, (50,))
        assert (spend(before, (50,))[1] == normal).all()
        releases.append(normal)
    releases.append(spend(draw_share(1.0, 3, source(4)), (50,))[1])
    for one, other in itertools.combinations(releases, 2):
        assert not np.isclose(one, other).any()


def test_secrets_come_from_the_system_and_differ():
    shares = [draw_share(1.0, 1) for _ in range(20)]
    assert len({share.secret for share in shares}) == 20
    assert {len(share.secret) for share in shares} == {32}


def test_a_release_more_than_was_accounted_for_is_refused():
    share, _ = spend(draw_share(1.0, 1), (3,))
    with pytest.raises(SealedError, match="after the 1 that epsilon"):
        spend(share, (3,))


def test_a_share_is_the_same_after_a_checkpoint():
    share = draw_share(0.3, 5)
    assert codec.decode(codec.encode(share), type(share)) == share


@pytest.mark.parametrize("owners", [1, 2, 5])
def test_the_owners_shares_add_up_to_the_weights_and_the_deviation(owners):
    w, deviation, count = np.full((2, 20_000), 3.0), 0.7, 40_000
    total = sum(
        with_noise(w, np.full(20_000, 1 / owners), draw_share(deviation, 1, source(7 + k)))[1]
        for k in range(owners)
    )
    noise = (total - w).ravel()
    assert abs(noise.mean()) < 4 * deviation / np.sqrt(count)
    low, high = chi2.ppf([1e-4, 1 - 1e-4], count) / count
    assert low < noise.var() / deviation**2 < high


def test_without_deviation_a_release_is_the_weights():
    share = replace(draw_share(1.0, 1), deviation=0.0)
    _, shared = with_noise(np.ones((1, 4)), np.full(4, 0.5), share)
    assert (shared == 0.5).all()
