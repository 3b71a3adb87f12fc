"""A server that has noise added to a model far from the optimum, for which it is too little.

The noise is measured for models whose duality gap is at most that of the tolerance: by it no sample
moves the model by more than the noise hides. Only the server knew the gap. Of a step 1,000 times
too long it got weights beside which the noise was nothing, and so the step itself: the gradient of
the data. Clients now find the gap of the very model, and see it.
"""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import numpy as np
import pytest

from departures import Departing
from federations import BINARY, block, names, rectangles, started, table
from intarsia.algorithms.hyfdca import algorithm as hyfdca
from intarsia.algorithms.hyfdca.algorithm import HYFDCA, HyFDCA
from intarsia.algorithms.hyfdca.newton import server as newton
from intarsia.algorithms.linear import cocoa
from intarsia.algorithms.linear.cocoa import COCOA, CoCoA
from intarsia.core.disclosure import Release
from intarsia.engines.communication_log import addressed
from intarsia.engines.remote.declared import Declared
from intarsia.errors import ConvergenceError, RefusedError
from intarsia.maths.linear import losses
from intarsia.protocols import certified_release as release
from intarsia.protocols.certified_release import FinalModel, FinalTotals, Propose, ShareOut

GAP, NOISE, WEIGHT, LONG = 1e-6, 0.3, 0.05, 1e3
OPTIONS = HyFDCA(loss="logistic", regularisation=WEIGHT, method="newton")


def departing(gap=GAP, *, rounds=5, complete=True):
    """Return a federation of sites, and the server's state after some rounds."""
    algorithm = HYFDCA.private(Release(NOISE, clip=10.0, gap=gap))
    made = Departing(algorithm, OPTIONS, "r0c0", complete=complete)
    server = made.rounds(rounds)
    made.made.engine.begin_round(rounds + 1)
    return made, server


def far(engine, phase):
    """Go along the last direction far beyond the optimum; return the phase there."""
    return newton._at(phase, engine, np.full(1, LONG), np.zeros(1))


def gap_of(engine, message=Propose(), propose=hyfdca.propose):  # noqa: B008 - it is frozen
    return release.find_gap(engine, message, propose)


def noisy(engine, gap):
    return engine.sum(release.add_noise, dict.fromkeys(engine.ids, ShareOut(gap))).w


def weights_of(made, schema):
    """Return the weights that clients have, in the schema's order."""
    whole = np.zeros(len(schema.features))
    for name, state in made.made.states().items():
        whole[schema.features.own(name)] = state.w[0]
    return whole


def test_where_sites_do_not_see_the_gap_noise_is_added_to_any_weights():
    """As it was: any gap will do."""
    made, server = departing(gap=np.inf, rounds=1)
    engine = made.made.engine
    before = weights_of(made, engine.schema("train"))
    far(engine, server.phase)
    direction = (weights_of(made, engine.schema("train")) - before) / LONG
    found = (engine.reveal(noisy(engine, gap_of(engine)))[0] - before) / LONG
    # what the server wanted: the step, by which one sample tells, with a thousandth of the noise
    np.testing.assert_allclose(found, direction, atol=6 * NOISE / LONG)
    assert abs(direction).max() > 60 * NOISE / LONG


def test_no_noise_is_added_to_weights_far_from_the_optimum():
    made, server = departing(rounds=1)
    engine = made.made.engine
    far(engine, server.phase)
    total = gap_of(engine)
    with pytest.raises(RefusedError, match="add_noise: The site refused"):
        noisy(engine, total)
    with pytest.raises(ConvergenceError, match=r"not released.*experiment\.rounds"):
        made.algorithm.conclude(server, engine, engine.key())


def several_are_proposed(monkeypatch):
    """Take from sites that they take one proposal."""
    monkeypatch.setattr(Declared, "check_ended", lambda self, one, message, call, sums, state: sums)


def test_one_model_is_proposed_in_a_run():
    """Gaps at many points of a line bend where a row does."""
    made, server = departing()
    engine = made.made.engine
    gap_of(engine)
    with pytest.raises(RefusedError, match="propose: The site refused"):
        gap_of(engine, Propose(w=server.phase.dual_weights * 8.0))


def numbers(engine, other):
    return noisy(engine, 0.0)


def that_of_the_model_before(engine, other):
    total = gap_of(engine)
    gap_of(engine, other)
    return noisy(engine, total)


def that_before_another_was_proposed(engine, other):
    total = gap_of(engine)
    engine.sum(hyfdca.propose, dict.fromkeys(engine.ids, other))
    return noisy(engine, total)


WAYS = [numbers, that_of_the_model_before, that_before_another_was_proposed]


@pytest.mark.parametrize("way", WAYS, ids=lambda one: one.__name__)
def test_the_gap_is_that_of_the_model_that_noise_is_added_to(way, monkeypatch):
    several_are_proposed(monkeypatch)
    made, server = departing()
    with pytest.raises(RefusedError, match="The site refused"):
        way(made.made.engine, Propose(w=server.phase.dual_weights * 8.0))


def test_what_the_gap_is_made_of_is_told_as_it_is():
    """Half of the weights of the duals, or of the scores, would make a gap that is too small."""
    made, server = departing()
    engine, ask = made.made.engine, made.made.engine.sum
    places = [("score_model", "w"), ("score_model", "alpha"), ("measure_gap", "z")]
    for name, field in [*places, ("measure_gap", "w"), ("add_noise", "gap")]:

        def altered(fn, messages, name=name, field=field):
            messages = addressed(engine, fn, messages)
            if fn.name == name:
                half = getattr(next(iter(messages.values())), field) * 0.5
                messages = {one: replace(told, **{field: half}) for one, told in messages.items()}
            return ask(fn, messages)

        engine.sum = altered
        with pytest.raises(RefusedError, match=f"{name}: The site refused"):
            noisy(engine, gap_of(engine))
    engine.sum = ask
    found = made.algorithm.conclude(server, engine, engine.key())
    assert found.weights.shape == (1, 6)


@pytest.mark.parametrize("step", ["propose", "score_model", "measure_gap", "add_noise"])
def test_all_clients_find_the_gap_together_wherever_some_may_be_away(step):
    """Of fewer the gap is that of some rows and columns, and there is less noise."""
    made, _ = departing(complete=False)
    engine = made.made.engine
    whole = engine.sum

    def of_some(fn, messages):
        messages = addressed(engine, fn, messages)
        names = [*messages][:-1] if fn.name == step else messages
        return whole(fn, {name: messages[name] for name in names})

    engine.sum = of_some
    with pytest.raises(RefusedError, match=rf"{step}: The site refused"):
        noisy(engine, gap_of(engine))


def test_no_function_of_training_has_a_name_for_what_is_certified():
    """They change their own states' fields by name, whatever state they are called with."""
    own = {one.name for one in dataclasses.fields(release.Certifying)}
    for algorithm in (HYFDCA, COCOA):
        for kind in algorithm.states:
            assert own.isdisjoint(one.name for one in dataclasses.fields(kind)), kind


# ---- the gap itself


def grid():
    x, y = table(40, 6)
    return x, y, rectangles(x, y, 2, 2, shared_rows=4, shared_columns=1)


def by_rows():
    x, y = table(40, 6)
    rows = np.array_split(np.arange(40), 3)
    return x, y, {f"c{k}": block(x, y, own, range(6)) for k, own in enumerate(rows)}


CASES = {
    "hyfdca": (HYFDCA, HyFDCA, hyfdca.propose, grid),
    "cocoa": (COCOA, CoCoA, cocoa.propose, by_rows),
}


@pytest.mark.parametrize("loss", ["hinge", "logistic", "squared_hinge", "squared"])
@pytest.mark.parametrize("name", CASES)
def test_the_gap_is_that_of_the_pooled_table_whatever_weights_and_duals_are_told(name, loss):
    """Duals outside their box certify nothing: they are moved to its edge.

    Owners of a feature that have been told different weights release their mean.
    """
    algorithm, kind, propose, make = CASES[name]
    x, y, blocks = make()
    options = kind(loss=loss, regularisation=WEIGHT)
    engine, _ = started(algorithm.private(Release(NOISE, clip=10.0)), options, blocks, BINARY)
    rng, schema = np.random.default_rng(2), engine.schema("train")
    w, alpha = rng.normal(size=(1, 6)), 3 * rng.normal(size=(1, 40))
    states, mean = engine.get_states(), np.zeros_like(w)
    for k, (client, state) in enumerate(states.items()):
        features, samples = (index.own(client) for index in (schema.features, schema.samples))
        own = w[:, features] + k
        mean[:, features] += own / schema.features.holders[features]
        states[client] = replace(state, w=own, alpha=alpha[:, samples])
    engine.set_states(states)
    gap = float(engine.reveal(gap_of(engine, propose=propose))) / 40
    rows, code = schema.samples.ids, losses.loss_code(loss)
    columns = [names(range(6)).index(one) for one in schema.features.ids]
    y, x = y[rows], x[np.ix_(rows, columns)]
    inside = losses.project(code, alpha, y)
    implied = inside @ x / (WEIGHT * 40)
    data = losses.value(code, mean @ x.T, y) - losses.minus_conjugate(code, inside, y)
    expected = data.mean() + 0.5 * WEIGHT * ((mean**2).sum() + (implied**2).sum())
    assert gap == pytest.approx(expected, rel=1e-10)
    assert gap > 0


def test_steps_are_taken_once_each_and_in_their_order():
    made, _ = departing(rounds=1)
    engine = made.made.engine
    model = engine.sum(hyfdca.propose, dict.fromkeys(engine.ids, Propose()))
    message = dict.fromkeys(engine.ids, FinalModel(model.w, model.alpha))
    found = engine.sum(release.score_model, message)
    with pytest.raises(RefusedError, match="score_model: The site refused"):
        engine.sum(release.score_model, message)
    told = dict.fromkeys(engine.ids, FinalTotals(found.z, found.w))
    engine.sum(release.measure_gap, told)
    with pytest.raises(RefusedError, match="measure_gap: The site refused"):
        engine.sum(release.measure_gap, told)
