"""A server that reads the model between steps of its own choice, or asks again for variances.

Newton's system comes to the server in a secret basis. A step along one coefficient changes the
weights by one row of that basis, and so do the variances of a matrix that the server made up. With
the basis the server has Xᵀ h X in the columns' own terms; where it drives the scores so far that
two rows are left with curvature, it has these rows. So a site trains no more once the model was
opened, and answers about the variances once.
"""

from __future__ import annotations

import numpy as np
import pytest

from departures import Departing
from federations import block, table
from intarsia.algorithms.hyfdca.algorithm import HYFDCA
from intarsia.algorithms.hyfdca.newton import server as newton
from intarsia.algorithms.hyfdca.newton import shares as newton_shares
from intarsia.algorithms.hyfdca.newton.direction import Coefficients, multiply
from intarsia.engines.remote.declared import Declared, Sums
from intarsia.errors import RefusedError
from intarsia.training.registry import ALGORITHMS

WEIGHT, FEATURES = 1e-3, 7
NAMES = (0, "a"), (20, "b")


def departing(*, errors=False):
    rng = np.random.default_rng(5)
    x = rng.normal(size=(200, FEATURES))
    y = np.sign(x @ rng.normal(size=FEATURES) + 0.5 * rng.normal(size=200))
    blocks = {
        "bank": block(x, y, range(200), range(4)),
        "shop": block(x, y, range(200), range(4, 7), labels=False),
    }
    options = HYFDCA.hyperparameters(
        loss="logistic", regularisation=WEIGHT, method="newton", system="shares", errors=errors
    )
    made = Departing(HYFDCA, options, "shop", blocks=blocks, complete=True)
    return x, made, made.rounds(3).phase


def forgetful(monkeypatch):
    """Take from sites that training ends with the model."""
    monkeypatch.setattr(Declared, "check_ended", lambda self, one, message, call, sums, state: sums)


def tell(engine, phase, y):
    own = phase.dealer.overlaps.items()
    given = {name: Coefficients(np.ascontiguousarray(y[None, one.features])) for name, one in own}
    engine.sum(multiply, given)


def read_system(made, phase):
    """Return XᵀhX + λI in the columns' own terms, up to a factor, as the server works it out."""
    engine = made.made.engine
    engine.begin_round(4)
    found = newton_shares._open_system(
        engine, phase.dealer, phase.bounds, 1, engine.key(), newton_shares.share_by_dealer
    )
    ((system, _),) = found
    basis, before = np.zeros((FEATURES, FEATURES)), None
    for k in range(FEATURES):
        tell(engine, phase, np.eye(FEATURES)[k])
        before = (
            newton.open_weights(engine, newton.share_model(engine).w)[0]
            if before is None
            else before
        )
        phase = newton._at(phase, engine, np.ones(1), np.zeros(1))
        after = newton.open_weights(engine, newton.share_model(engine).w)[0]
        basis[k], before = after - before, after
    inverse = np.linalg.inv(basis)
    return inverse @ system @ inverse.T


def test_without_that_rule_the_server_reads_the_products_of_columns(monkeypatch):
    forgetful(monkeypatch)
    x, made, phase = departing()
    z = x @ np.concatenate([state.w[0] for state in made.made.states().values()])
    h = np.exp(-z) / (1 + np.exp(-z)) ** 2
    truth = (x.T * (h / len(x))) @ x + WEIGHT * np.eye(FEATURES)
    read = read_system(made, phase)
    np.testing.assert_allclose(read * truth[0, 0] / read[0, 0], truth, atol=1e-6)


def test_once_the_model_was_opened_no_site_trains_on():
    _, made, phase = departing()
    with pytest.raises(RefusedError, match="move_duals: The site refused"):
        read_system(made, phase)


def test_what_a_site_knows_of_it_is_on_its_shelf_and_does_not_go_back_with_its_state():
    sums = Sums({}, {}, True, {"own_variances": ["ab", "bank"]})
    for one in (Sums.of(sums.to_text()), sums.back_to(0)):
        assert one.ended
        assert one.once == {"own_variances": ["ab", "bank"]}
    assert Sums.of("[{}, [], {}]") == Sums({}, {})  # of an earlier version


@pytest.mark.parametrize("guarded", [True, False])
@pytest.mark.parametrize("name", ["fedavg", "cocoa"])
def test_of_a_baseline_too(name, guarded, monkeypatch):
    """Else the server reads the model after each round, and by it each round's change."""
    if not guarded:
        forgetful(monkeypatch)
    baseline = ALGORITHMS[name]
    made = Departing(
        *(baseline, baseline.hyperparameters(loss="logistic"), "a"),
        blocks={one: block(*table(40, 4), range(k, k + 20), range(4)) for k, one in NAMES},
        complete=True,
    )
    server, engine = made.rounds(1), made.made.engine
    assert np.any(engine.reveal(server.w))
    engine.begin_round(2)
    if guarded:
        with pytest.raises(RefusedError, match="The site refused"):
            baseline.round(server, engine, engine.key())
        assert "ends the training" in str(made.made.errors[-1])
    else:
        baseline.round(server, engine, engine.key())


@pytest.mark.parametrize("name", [n for n, one in ALGORITHMS.items() if one.federated])
def test_what_ends_a_run_is_declared_as_the_model(name):
    """What a linear model's `conclude` opens; else a server opens it when it likes."""
    algorithm = ALGORITHMS[name]
    if algorithm.model.kind == "linear":
        totals = [one for one in algorithm.disclosure.sends if "w" in one.reveals]
        assert totals
        assert all("w" in one.model for one in totals)


def variances_of(made, phase, matrix):
    """Ask all for the variances by the root of a matrix that the server made up."""
    engine, own = made.made.engine, phase.dealer.overlaps.items()
    given = {
        name: newton_shares.InverseRoot(np.ascontiguousarray(matrix[None][:, :, one.features]))
        for name, one in own
    }
    return engine.reveal(engine.sum(newton_shares.own_variances, given).variances)[0]


@pytest.mark.parametrize("works", [False, True])
def test_variances_are_told_of_one_matrix_alone(works, monkeypatch):
    if works:
        forgetful(monkeypatch)
    _, made, phase = departing(errors=True)
    engine = made.made.engine
    engine.begin_round(4)
    newton_shares._open_system(
        engine, phase.dealer, phase.bounds, 1, engine.key(), newton_shares.share_by_dealer
    )
    unit = np.zeros((FEATURES, FEATURES))
    unit[0, 0] = 1.0
    first = variances_of(made, phase, unit)
    assert first[:4].all()
    np.testing.assert_array_equal(variances_of(made, phase, unit), first)  # lost on the way
    if works:
        # a root goes into them twice
        assert variances_of(made, phase, 2 * unit)[0] == pytest.approx(4 * first[0])
        return
    with pytest.raises(RefusedError, match="own_variances: The site refused"):
        variances_of(made, phase, 2 * unit)
