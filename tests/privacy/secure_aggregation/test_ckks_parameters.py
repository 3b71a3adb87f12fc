from __future__ import annotations

import functools

import numpy as np
import pytest

from intarsia.errors import ExperimentError
from intarsia.privacy.secure_aggregation.ckks import CkksKeys
from intarsia.privacy.secure_aggregation.ckks_ciphertexts import Arithmetic, Ciphertexts, Secret
from intarsia.privacy.secure_aggregation.ckks_parameters import parameters

pytest.importorskip("tenseal")

CLIENTS = ("a", "b", "c", "d", "e")
RANGES = (1.0, 2.0**14, 2.0**22)


@pytest.mark.parametrize("power", [-20, 0, 13, 14, 18, 22, 30, 40, 50, 60])
def test_parameters_are_secure_and_leave_room_for_the_largest_total(power):
    for addends in (1, 2, 16, 300):
        found = parameters(2.0**power, addends)
        assert sum(found.coeff_mod_bit_sizes) <= 218  # 128-bit security at degree 8,192
        bits = sum(found.coeff_mod_bit_sizes[:-1]) or found.coeff_mod_bit_sizes[0]
        assert np.sqrt(2) * found.range * found.scale <= 2.0 ** (bits - 2)
        assert found.error(addends) <= addends * max(2.0**-27, 2.0**power * 2.0**-46)
        assert found.capacity >= 4096 - 1


def test_sums_up_to_ten_thousand_are_within_6e_8_with_one_prime():
    found = parameters(1e4, 16)
    assert found.coeff_mod_bit_sizes == (60,)
    assert found.error(16) <= 6e-8


def test_a_wider_error_takes_a_shorter_modulus():
    assert len(parameters(2.0**22, 4).coeff_mod_bit_sizes) == 3
    assert parameters(2.0**22, 8, error=1e-5).coeff_mod_bit_sizes == (60,)


@pytest.mark.parametrize("power", [0, 14, 22, 40])
@pytest.mark.parametrize("addends", [2, 16, 300])
def test_a_step_of_the_grid_is_wider_than_two_noises_are_apart(power, addends):
    found = parameters(2.0**power, addends)
    deviation = 3.2 * np.sqrt(8192 / 2 * addends) / found.scale
    assert found.grid / 4 >= 9 * deviation
    assert found.grid / 2 >= 9 * deviation + 19 * 2.0**-53 * found.range
    assert found.grid == 2.0**-found.grid_bits


@pytest.mark.parametrize(
    ("range", "addends", "error", "words"),
    [
        (0.0, 2, None, r"privacy\.range is 0\.0"),
        (float("nan"), 2, None, r"privacy\.range is nan"),
        (2.0**62, 2, None, r"privacy\.range"),
        (1.0, 0, None, "over 0 clients"),
        (1e4, 4, 1e-12, "within 1e-12"),
    ],
)
def test_impossible_parameters_are_refused(range, addends, error, words):
    with pytest.raises(ExperimentError, match=words):
        parameters(range, addends, error=error)


@pytest.mark.parametrize("range", RANGES)
def test_noise_has_the_stated_width_and_never_leaves_its_bound(range):
    keys = CkksKeys.create(parameters(range, len(CLIENTS)))
    arithmetic = Arithmetic(keys.parameters)
    secret = Secret(arithmetic, keys.secret)
    rng = np.random.default_rng(0)
    limit = keys.parameters.limit
    shapes = (
        rng.uniform(-limit, limit, 8192),
        np.full(8192, limit),
        limit * rng.choice([-1.0, 1.0], 8192),
        np.zeros(8192),
    )
    for values in shapes:
        off = []
        for _ in CLIENTS:
            total = functools.reduce(
                arithmetic.added, [Ciphertexts((secret.encrypted(values),)) for _ in CLIENTS]
            )
            off.append(secret.decrypted(total.parts[0]) - len(CLIENTS) * values)
        assert np.max(np.abs(off)) <= keys.parameters.noise(len(CLIENTS))
    deviation = 3.2 * np.sqrt(8192 / 2 * len(CLIENTS)) * 2.0**-keys.parameters.scale_bits
    assert np.std(off) == pytest.approx(deviation, rel=0.05)  # of zeros: no rounding of float64
