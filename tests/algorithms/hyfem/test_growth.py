"""Growth of HyFEM's server: neurons that matching opens, and that all clients download."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import intarsia  # noqa: E402  after the skip where torch is missing
from intarsia.algorithms.hyfem import algorithm as hyfem  # noqa: E402
from intarsia.algorithms.hyfem import network as block_network  # noqa: E402
from intarsia.algorithms.hyfem.algorithm import HYFEM  # noqa: E402
from intarsia.algorithms.hyfem.extractors import extractor  # noqa: E402
from intarsia.algorithms.hyfem.hyperparameters import HyFEM  # noqa: E402
from intarsia.algorithms.hyfem.matching import OwnClassifier, joined  # noqa: E402
from intarsia.algorithms.hyfem.network import Composition, Parts  # noqa: E402
from intarsia.engines import codec  # noqa: E402
from intarsia.engines.communication_log import RECORDS  # noqa: E402
from intarsia.errors import ExperimentError  # noqa: E402
from intarsia.inference.predict import predict  # noqa: E402
from intarsia.maths.matching.neuron_assignment import BetaBernoulli, SquaredDistance  # noqa: E402
from intarsia.training import run as running  # noqa: E402
from tests.algorithms.hyfem.test_hyfem import SMALL, clients, networks, run, started  # noqa: E402
from tests.algorithms.hyfem.test_hyfem_run import SETTINGS, tables, whole  # noqa: E402

FEATURES, UNITS, CLASSES = 3, 6, 4
GROWING = HyFEM(
    **{**SMALL, "hidden": (6,), "steps": 2},
    start="matched",
    growth="everybody",
    price=0.5,
    engine="loop",
)


def composition(hidden=(UNITS,)):
    columns = (("a0", "a1"), ("b0", "b1"))
    kinds = tuple(extractor(name, "linear", (2,), FEATURES, ()) for name in "ab")
    return Composition(("a", "b"), columns, kinds, hidden, CLASSES)


def sent(neurons, outputs, held="ab", seen=None):
    """Return a client's classifier from its neurons: a row of columns | bias | outgoing each."""
    starts = np.cumsum([FEATURES] * len(held))
    parts = np.split(neurons, [*starts, starts[-1] + 1], axis=1)
    rest = [parts[-2].ravel(), parts[-1].T.ravel(), outputs]
    counted = np.ones(CLASSES, bool) if seen is None else np.isin(np.arange(CLASSES), seen)
    return OwnClassifier(dict(zip(held, parts, strict=False)), np.concatenate(rest), counted)


def before(made_of, fill=9.0):
    [units] = made_of.hidden
    columns = {name: np.full((units, FEATURES), fill) for name in made_of.blocks}
    return Parts({}, columns, np.full(units * (1 + CLASSES) + CLASSES, fill))


def neurons_of(made_of, parts):
    """Return the server's neurons as rows of columns | bias | outgoing."""
    biases, weights = block_network.split_rest(parts.rest, (*made_of.hidden, CLASSES))
    return np.hstack([*parts.columns.values(), biases[0][:, None], weights[0].T])


@pytest.mark.parametrize("price", [0.0, 0.02, 0.1, 0.5, 2.0])
def test_a_neuron_is_opened_exactly_where_that_is_cheaper(price):
    """Of two clients at ½ each: ⅛ ‖w - v‖² to be one neuron, or the price of its weights."""
    rng = np.random.default_rng(0)
    own = 4 * rng.normal(size=(UNITS, 2 * FEATURES + 1 + CLASSES))
    towards = rng.normal(size=own.shape)
    towards /= np.linalg.norm(towards, axis=1, keepdims=True)
    theirs = own + towards * np.array([0.5, 1.0, 2.0, 3.0, 5.0, 7.0])[:, None]
    split = np.split(np.stack([own, theirs]) ** 2 / 2, [2 * FEATURES, 2 * FEATURES + 1], axis=2)
    new = price / 2 * sum(part.mean() * part.shape[2] for part in split)
    apart = ((own - theirs) ** 2).sum(axis=1) / 8
    expected = UNITS + int((apart > new).sum())
    replies = {"c0": sent(own, np.zeros(CLASSES)), "c1": sent(theirs, np.zeros(CLASSES))}

    made_of = composition()
    found, parts = joined(
        made_of,
        replies,
        {"c0": 0.5, "c1": 0.5},
        before(made_of),
        cost=SquaredDistance(price=price),
        widest=(math.inf,),
    )

    assert found.hidden == (expected,)
    rows = {tuple(np.round(row, 9)) for row in neurons_of(found, parts)}
    one = apart <= new
    kept = np.vstack([(own[one] + theirs[one]) / 2, own[~one], theirs[~one]])
    assert rows == {tuple(np.round(row, 9)) for row in kept}


def test_a_new_neuron_has_zeros_for_what_its_owner_lacks():
    rng = np.random.default_rng(0)
    wide = 10 * rng.normal(size=(UNITS, 2 * FEATURES + 1 + CLASSES))
    narrow = 10 * rng.normal(size=(UNITS, FEATURES + 1 + CLASSES))
    narrow[:4] = wide[:4, FEATURES:]  # four are neurons of the other's, as far as it goes
    seen = (0, 2)
    replies = {
        "c0": sent(wide, np.zeros(CLASSES), seen=(0, 1, 2)),
        "c1": sent(narrow, np.zeros(CLASSES), held="b", seen=seen),
    }
    made_of = composition()
    found, parts = joined(
        made_of,
        replies,
        {"c0": 0.5, "c1": 0.5},
        before(made_of),
        cost=SquaredDistance(price=0.1),
        widest=(math.inf,),
    )

    assert found.hidden == (UNITS + 2,)
    rows = neurons_of(found, parts)
    outgoing = rows[:, -CLASSES:]
    # class 3 is nobody's: what the server had, but for neurons that not all clients own
    assert sorted(outgoing[:, 3]) == [0.0] * 4 + [9.0] * 4
    new = np.flatnonzero(~rows[:, :FEATURES].any(axis=1))
    assert len(new) == 2
    assert not outgoing[new][:, [1, 3]].any()
    found_rows = rows[new][:, FEATURES:]
    for row in narrow[4:]:
        row[FEATURES + 1 + np.array([1, 3])] = 0.0
    assert {tuple(row) for row in found_rows} == {tuple(row) for row in narrow[4:]}


def test_in_later_rounds_the_servers_neurons_keep_what_nobody_there_has():
    rng = np.random.default_rng(0)
    own = 10 * rng.normal(size=(UNITS, FEATURES + 1 + CLASSES))
    theirs = own.copy()
    theirs[2] = -own[2]
    replies = {
        name: sent(neurons, np.zeros(CLASSES), held="b", seen=(0, 1, 2))
        for name, neurons in (("c0", own), ("c1", theirs))
    }
    made_of = composition()
    found, parts = joined(
        made_of,
        replies,
        {"c0": 0.5, "c1": 0.5},
        before(made_of),
        cost=SquaredDistance(price=0.1),
        again=True,
        widest=(UNITS + 1,),
    )

    assert found.hidden == (UNITS + 1,)
    rows = neurons_of(found, parts)
    of_class = rows[:, -1]
    # nobody has block a or class 3: these are the server's, and 0 in the new neuron
    np.testing.assert_array_equal(of_class, [9.0] * UNITS + [0.0])
    np.testing.assert_array_equal(rows[:, :FEATURES], [[9.0] * 3] * UNITS + [[0.0] * 3])
    both = {tuple(rows[place, FEATURES:-1]) for place in (2, UNITS)}
    assert both == {tuple(own[2, :-1]), tuple(theirs[2, :-1])}


@pytest.mark.parametrize(
    "options",
    [
        dataclasses.replace(GROWING, price=math.inf),
        dataclasses.replace(GROWING, price=math.inf, matching="rounds"),
        dataclasses.replace(GROWING, price=math.inf, matching="rounds", start="common"),
    ],
)
def test_at_an_infinite_price_it_is_the_fixed_width_to_the_bit(options):
    found = run(options, clients(), rounds=2)[2].network
    fixed = run(dataclasses.replace(options, growth="none", price=4.0), clients(), rounds=2)[2]
    for name, values in fixed.network.items():
        np.testing.assert_array_equal(found[name], values)


@pytest.mark.parametrize("matching", ["none", "rounds"])
def test_all_clients_download_what_was_opened(matching):
    options = dataclasses.replace(GROWING, matching=matching)
    present = {1: ("c0", "c3"), 2: ("c1", "c2")}
    engine, server, conclusion = run(options, clients(), rounds=2, present=present)

    [units] = server.made_of.hidden
    assert units > 6
    assert len(conclusion.network["classifier.0.bias"]) == units
    for own in networks(engine).values():
        for name, values in own.items():
            if name != "classifier.0.weight":
                np.testing.assert_array_equal(values, conclusion.network[name])
        assert own["classifier.0.weight"].shape[0] == units
    assert {state.made_of.hidden for state in engine.get_states().values()} == {(units,)}


def test_the_server_is_no_wider_than_it_may_be():
    free = run(GROWING, clients(), rounds=1)[1].made_of.hidden
    bound = run(dataclasses.replace(GROWING, most_hidden=(7,)), clients(), rounds=1)[1]
    assert free > (7,)
    assert bound.made_of.hidden == (7,)


def test_each_cost_has_its_own_width():
    changes = [
        {"cost": "squared"},
        {"cost": "squared", "price": 0.1},
        {"cost": "pfnm", "sigma2": 0.05, "sigma02": 0.2},
        {"cost": "marginal", "sigma2": 0.05, "sigma02": 0.2},
    ]
    widths = [
        run(dataclasses.replace(GROWING, **change), clients(), rounds=1)[1].made_of.hidden
        for change in changes
    ]
    assert len(set(widths)) == len(widths)
    assert all((6,) <= width <= (24,) for width in widths)


@pytest.mark.parametrize("matching", ["none", "rounds"])
def test_a_grown_run_that_is_cut_goes_on_to_the_same_bits(matching):
    options = dataclasses.replace(GROWING, matching=matching)
    expected = run(options, clients(), rounds=2)[2]
    engine, server = started(options, clients())
    engine.begin_round(1)
    server, _ = HYFEM.round(server, engine, engine.key())
    assert server.made_of.hidden > (6,)
    written = codec.encode((engine.books.seal(server), engine.get_states()))
    again, _ = started(options, clients())
    sealed, states = codec.decode(written, *HYFEM.states, *RECORDS)
    again.set_states(states)
    again.begin_round(2)
    server, _ = HYFEM.round(again.books.unseal(sealed), again, again.key())
    again.begin_round(3)
    found = HYFEM.conclude(server, again, again.key())
    for name, values in expected.network.items():
        np.testing.assert_array_equal(found.network[name], values)


def test_a_grown_server_adds_up_under_the_seal():
    plain, sealed = (run(GROWING, clients(), 2, mode=mode)[2] for mode in ("plain", "masked"))
    for name, values in plain.network.items():
        np.testing.assert_allclose(sealed.network[name], values, atol=1e-8)


def test_a_run_that_grows_is_written_read_and_joined_at_its_width(tmp_path):
    found = intarsia.run(
        tables=tables(),
        id="row",
        label="kind",
        algorithm="hyfem",
        rounds=2,
        out=tmp_path / "run",
        start="matched",
        growth="everybody",
        price=0.5,
        **SETTINGS,
    )
    table = whole()
    read = running.load(tmp_path / "run").model
    [units] = read.server.architecture.hidden
    assert units > SETTINGS["hidden"][0]
    assert all(own.architecture.hidden == (units,) for own in read.values())
    for one, other in ((read.server, found.model.server), (read["east"], found.model["east"])):
        np.testing.assert_array_equal(one.decision_function(table), other.decision_function(table))
    table.to_csv(tmp_path / "all.csv", index=False)
    predicted = predict(tmp_path / "run", tmp_path / "all.csv", client="server")
    np.testing.assert_array_equal(predicted.labels, found.model.server.predict(table))
    assert found.metrics.standalone.keys() == found.metrics.clients.keys()
    north = tables()["north"]
    north.assign(row=north["row"] + 1000).to_csv(tmp_path / "new.csv", index=False)
    new = intarsia.join(
        tmp_path / "run", tmp_path / "new.csv", label="kind", id="row", out=tmp_path / "out"
    )
    assert new.model["new"].architecture.hidden == (units,)
    np.testing.assert_allclose(
        new.model["new"].decision_function(north), read["north"].decision_function(north), atol=1e-5
    )


def test_a_first_matching_begins_with_nothing_and_a_later_one_where_the_server_is(monkeypatch):
    given = []

    def noted(*of, **settings):
        given.append({key: settings[key] for key in ("again", "passes", "in_order")})
        return joined(*of, **settings)

    monkeypatch.setattr(hyfem, "joined", noted)
    options = dataclasses.replace(GROWING, matching="rounds", passes=3)
    run(options, clients(), rounds=2)
    once = {"passes": 3, "in_order": False}
    assert given == [{"again": again, **once} for again in (False, True, True)]
    given.clear()
    run(dataclasses.replace(options, start="common"), clients(), rounds=1)
    assert given == [{"again": True, **once}]


def test_the_constants_reach_the_cost():
    pfnm = {"sigma2": 0.2, "sigma02": 0.3, "gamma": 4.0}
    assert HyFEM(price=0.7).matching_cost == SquaredDistance(price=0.7)
    assert HyFEM(cost="pfnm", **pfnm).matching_cost == BetaBernoulli(**pfnm)
    assert HyFEM(cost="marginal", **pfnm).matching_cost == BetaBernoulli(**pfnm, marginal=True)
    kinds = itertools.product(("none", "everybody"), ((), (9,)))
    widest = [
        HyFEM(hidden=(8,), start="matched", growth=growth, most_hidden=most).widest
        for growth, most in kinds
        if growth != "none" or not most
    ]
    assert widest == [None, (math.inf,), (9,)]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"start": "common"}, 'growth is "everybody" and nothing is matched'),
        ({"start": "unmatched"}, 'start "unmatched"'),
        ({"price": -1.0}, "price is -1.0"),
        ({"price": math.nan}, "price is nan"),
        ({"passes": 0}, "passes is 0"),
        ({"most_hidden": (5,)}, r"most_hidden is \[5\] and hidden \[6\]"),
        ({"most_hidden": (9, 9)}, r"most_hidden is \[9, 9\] and hidden \[6\]"),
        ({"most_hidden": (9,), "growth": "none"}, r'most_hidden is \[9\] and growth "none"'),
        ({"growth": "owner"}, "growth is 'owner'"),
        ({"cost": "marginal", "gamma": 0.0}, "gamma is 0"),
    ],
)
def test_a_growth_that_cannot_be_is_refused(change, sentence):
    with pytest.raises(ExperimentError, match=sentence):
        dataclasses.replace(GROWING, **change)
