"""A server that asks for Newton's system at a point that was counted without the system's rows.

A certificate needs no rows (`Gather.ends`). The system there is λPPᵀ alone, in the secret basis P:
of a client's only column the size of its one number, but for a power of 2. Beside the system of a
step it gives xᵀhx in the column's own terms.
"""

from __future__ import annotations

import numpy as np
import pytest

from departures import Departing
from federations import block
from intarsia.algorithms.hyfdca.algorithm import HYFDCA
from intarsia.algorithms.hyfdca.newton import server as newton
from intarsia.algorithms.hyfdca.newton import shares as newton_shares
from intarsia.algorithms.hyfdca.newton.direction import Coefficients, multiply
from intarsia.errors import RefusedError

WEIGHT, FEATURES = 1e-3, 4


def departing(system):
    rng = np.random.default_rng(5)
    x = rng.normal(size=(200, FEATURES)) * 3
    y = np.sign(x @ rng.normal(size=FEATURES) + rng.normal(size=200))
    blocks = {
        "bank": block(x, y, range(200), range(3)),
        "shop": block(x, y, range(200), [3], labels=False),
    }
    options = HYFDCA.hyperparameters(
        loss="squared_hinge", regularisation=WEIGHT, method="newton", system=system
    )
    made = Departing(HYFDCA, options, "shop", blocks=blocks, complete=True)
    return x, made, made.rounds(3).phase


def system_at(made, phase, number, *, ends):
    """Return the entry of the shop's column in the system, as the server opens it."""
    engine, zeros = made.made.engine, np.zeros(1)
    engine.begin_round(number)
    phase = newton._at(phase, engine, zeros, zeros, ends=ends)
    given = engine, phase.dealer, phase.bounds, 1, engine.key()
    ((system, _),) = newton_shares._open_system(*given, newton._share(phase.dealer))
    own = phase.dealer.overlaps.items()
    stays = {name: Coefficients(np.zeros((1, len(one.features)))) for name, one in own}
    engine.sum(multiply, stays)
    return system[-1, -1]


def test_without_that_rule_the_server_reads_a_column_in_its_own_terms(monkeypatch):
    monkeypatch.setattr(newton_shares, "_check_rows", lambda point: None)
    x, made, phase = departing("shares")
    whole = system_at(made, phase, 4, ends=False)
    point = made.made.states()["shop"]
    truth = WEIGHT + point.curvature[0] @ x[point.selected, 3] ** 2 / len(x)
    read = WEIGHT * whole / system_at(made, phase, 5, ends=True)
    times = np.log2(read / truth)
    assert times == pytest.approx(np.rint(times), abs=1e-4)


@pytest.mark.parametrize("system", ["shares", "encrypted"])
def test_a_client_refuses_the_system_at_a_point_without_rows(system):
    _, made, phase = departing(system)
    with pytest.raises(RefusedError, match=r"(mask|encrypt)_rows: The site refused"):
        system_at(made, phase, 4, ends=True)
    assert system_at(made, phase, 5, ends=False) > 0
