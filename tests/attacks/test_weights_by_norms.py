"""A server that reads how large each weight is from norms and slopes of the elastic net.

‖S(cv)‖² of the sum v that w(α) is made of begins where c times its largest entry is the threshold,
and bends at each further one. So with factors of its own the server had the sizes of all entries
between steps. A client measures each v that was counted once, goes along one direction there, and
looks at no more steps along it than the algorithm does.
"""

from __future__ import annotations

import numpy as np
import pytest

from departures import Departing
from federations import block
from intarsia.algorithms.hyfdca.algorithm import HYFDCA
from intarsia.algorithms.hyfdca.newton import client as newton_client
from intarsia.algorithms.hyfdca.newton import direction as newton_direction
from intarsia.algorithms.hyfdca.newton import server as newton
from intarsia.algorithms.hyfdca.newton.client import Gather, MeasurePoint, Start
from intarsia.algorithms.hyfdca.newton.direction import Coefficients, Line, TrialSteps
from intarsia.engines.remote.declared import Declared
from intarsia.errors import RefusedError
from intarsia.protocols import certificate

RATIO, FEATURES = 0.5, 6


def departing(rounds=2):
    rng = np.random.default_rng(3)
    x = rng.normal(size=(200, FEATURES))
    y = np.sign(x @ rng.normal(size=FEATURES) + 0.5 * rng.normal(size=200))
    blocks = {
        "bank": block(x, y, range(200), range(3)),
        "shop": block(x, y, range(200), range(3, 6), labels=False),
    }
    options = HYFDCA.hyperparameters(loss="logistic", regularisation=1e-2, l1_ratio=RATIO)
    made = Departing(HYFDCA, options, "shop", blocks=blocks, complete=True)
    server = made.rounds(rounds)
    made.made.engine.begin_round(rounds + 1)
    return made, server


def norm_of(engine, total):
    """Return ‖S(v)‖² of a total in the place of v, as a server reads it."""
    message = dict.fromkeys(engine.ids, MeasurePoint(w=total, rows=None))
    return engine.reveal(engine.sum(newton_client.measure_point, message).norms)[0, 4]


def test_where_the_server_chooses_the_factor_it_reads_the_largest_entry(monkeypatch):
    """As it was: the server told the sum itself, times a factor of its own, again and again."""
    monkeypatch.setattr(Declared, "check_message", lambda *given: None)
    made, server = departing()
    engine, total = made.made.engine, server.phase.dual_weights
    largest = max(
        np.abs(one.alpha @ made.blocks[name].x).max() / (one.options.ridge * one.samples)
        for name, one in made.made.states().items()
    )
    low, high = 0.0, 8.0
    for _ in range(30):
        again(engine, server.phase)
        middle = 0.5 * (low + high)
        low, high = (low, middle) if norm_of(engine, total * middle) > 1e-13 else (middle, high)
    threshold = server.options.threshold
    assert 8 * largest > threshold
    assert threshold / high == pytest.approx(largest, rel=1e-3)


def again(engine, phase, **given):
    """Count the duals of the present point once more."""
    still = newton_client.Move(np.zeros(1), phase.weight, np.zeros(1))
    point = engine.sum(newton_client.move_duals, dict.fromkeys(phase.labelled, still))
    told = Gather(
        **{
            **{"alpha": point.alpha, "weight": phase.weight, "step": np.zeros(1)},
            **{"budget": phase.budget, "framed": False, "gram": False, "recentre": np.zeros(1)},
            **given,
        }
    )
    return engine.sum(newton_client.gather_point, dict.fromkeys(engine.ids, told)).w


@pytest.mark.parametrize("wrong", ["a factor", "an earlier one"])
def test_the_sum_times_a_factor_and_an_earlier_one_are_refused(wrong):
    made, server = departing()
    engine, phase = made.made.engine, server.phase
    counted = again(engine, phase)
    total = counted * 3.0 if wrong == "a factor" else phase.dual_weights
    with pytest.raises(RefusedError, match="measure_point: The site refused"):
        norm_of(engine, total)
    assert norm_of(engine, counted) > 0


def test_a_point_is_measured_once():
    made, server = departing()
    engine, phase = made.made.engine, server.phase
    counted = again(engine, phase)
    assert norm_of(engine, counted) > 0
    with pytest.raises(RefusedError, match="measure_point: The site refused"):
        norm_of(engine, counted)


def test_duals_times_a_factor_are_not_counted():
    made, server = departing()
    with pytest.raises(RefusedError, match="gather_point: The site refused"):
        again(made.made.engine, server.phase, alpha=server.phase.alpha * 3.0)


def test_a_certificate_is_of_the_clients_own_duals():
    """‖S(cv)‖² for factors c of the server's would tell the entries of v here, too."""
    made, server = departing()
    engine, phase = made.made.engine, server.phase

    def norm(factor):
        told = certificate.LastDuals(phase.alpha * factor, 0.0)
        rounded = engine.sum(certificate.round_duals, dict.fromkeys(engine.ids, told))
        w = newton.share_model(engine).w
        model = certificate.LastModel(w, rounded.alpha)
        found = engine.sum(certificate.score_both, dict.fromkeys(engine.ids, model))
        totals = certificate.LastTotals(w, rounded.alpha, found.z, found.w, 0.0)
        bounds = engine.sum(certificate.bound_objectives, dict.fromkeys(engine.ids, totals))
        return engine.reveal(bounds.at)[4]

    assert norm(3.0) == norm(1.0) > 0


@pytest.mark.parametrize("field", ["alpha", "w"])
def test_the_elastic_net_begins_at_zeros_alone(field):
    made, server = departing()
    phase = server.phase
    given = {"alpha": server.alpha, "w": server.w}
    given[field] = phase.alpha if field == "alpha" else phase.dual_weights
    size = next(iter(phase.dealer.overlaps.values())).widest
    message = Start(**given, warm=False, frame=size, shared=True)
    with pytest.raises(RefusedError, match="enter: The site refused"):
        made.made.engine.sum(newton_client.enter, dict.fromkeys(phase.dealer.overlaps, message))


def along(engine, phase, directions=1):
    own = phase.dealer.overlaps.items()
    for k in range(directions):
        unit = np.eye(FEATURES)[k]
        told = {
            name: Coefficients(np.ascontiguousarray(unit[None, one.features])) for name, one in own
        }
        products = engine.sum(newton_direction.multiply, told)
    return products


def test_one_direction_is_gone_along_at_a_point():
    made, server = departing()
    with pytest.raises(RefusedError, match="multiply: The site refused"):
        along(made.made.engine, server.phase, 2)


@pytest.mark.parametrize(("steps", "before"), [(14, 0), (13, 2)])
def test_no_more_steps_are_looked_at_than_the_algorithm_does(steps, before):
    made, server = departing()
    engine, phase = made.made.engine, server.phase
    products, tried = along(engine, phase), np.linspace(0, 1, steps)[None]
    penalty = newton_direction.slope_of_penalty, dict.fromkeys(engine.ids, TrialSteps(tried))
    first, again = (
        (
            newton_direction.slope_along,
            dict.fromkeys(phase.labelled, Line(z, tried, phase.weight)),
        )
        for z in (products.z, None)
    )
    for call in (first, again, penalty)[: 3 if before else 0]:
        engine.sum(*call)
    for call in (again if before else first, penalty):
        with pytest.raises(RefusedError, match=f"{call[0].name}: The site refused"):
            engine.sum(*call)
