"""A server that chose steps so long that a client's update overflows if a value is large enough.

The run ended then, and named the client: one exact answer about its table in a run that promises
noise, and by the rate of each further run one digit more. An update that is no number was not
clipped either.
"""

from __future__ import annotations

import numpy as np
import pytest

import sites
from federations import block, table
from intarsia.algorithms.linear import fedavg
from intarsia.core.block import Labels
from intarsia.core.disclosure import Release
from intarsia.errors import IntarsiaError
from intarsia.privacy.secure_aggregation import setup as modes
from intarsia.privacy.settings import Privacy
from intarsia.protocols.differential_privacy import clip_change
from intarsia.training.registry import ALGORITHMS

NAMES = ["bank", "shop"]
NOISE = Release(deviation=0.1, clip=0.5, releases=20)
FEDAVG = ALGORITHMS["fedavg"]
PRIVATE = FEDAVG.private(NOISE)
X, _ = table(60, 4)
Y = X @ [3.0, -1.0, 0.5, 0.0]


def total_of_a_round(largest, mode, a):
    """Return the total of the first round, where the largest value of the bank is such a one."""
    options = FEDAVG.hyperparameters(loss="squared", local_steps=400, batch=1, a=a)
    x = X.copy()
    x[0, 0] = largest
    blocks = {
        "bank": block(x, Y, range(40), range(4)),
        "shop": block(x, Y, range(40, 60), range(4)),
    }
    privacy = Privacy(mode=mode)
    keys = modes.keys(privacy, ("bank",), None, "test")
    sealing = None if keys is None else lambda: modes.sealing(privacy, NAMES, keys)
    made = sites.federation(
        *(PRIVATE, options, blocks, Labels("regression")), complete=True, sealing=sealing
    )
    server = sites.begun(made, PRIVATE, options)
    made.engine.begin_round(1)
    told = fedavg.Descend(server.w, 1, tuple(NAMES))
    return made.engine.reveal(made.engine.sum(fedavg.noisy_descent, told).w)


@pytest.mark.parametrize("mode", ["plain", "masked"])
def test_a_round_with_noise_does_not_tell_whether_an_update_overflows(mode, monkeypatch):
    for largest in (1.0, 1e60):  # as large as a table may have them, nearly
        total = total_of_a_round(largest, mode, a=1.0)
        assert np.abs(total).max() < NOISE.clip + 8 * NOISE.deviation

    def clipped_as_before(change, clip):
        with np.errstate(all="ignore"):
            return change * min(1.0, clip / max(float(np.linalg.norm(change)), 1e-300))

    monkeypatch.setattr(fedavg, "clip_change", clipped_as_before)
    total_of_a_round(1.0, mode, a=1.0)
    with pytest.raises(IntarsiaError, match="bank"):
        total_of_a_round(1e60, mode, a=1.0)


@pytest.mark.parametrize("odd", [np.nan, np.inf, 1e200])
def test_what_is_no_number_is_no_change(odd):
    change = np.array([[3.0, odd, 4.0]])
    np.testing.assert_array_equal(clip_change(change, 1.0), np.zeros((1, 3)))
    np.testing.assert_allclose(clip_change(np.array([[3.0, 4.0]]), 1.0), [[0.6, 0.8]])
