"""HyFEM from classifiers of the clients' own: put together neuron by neuron, or in their order."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.optimize import minimize

torch = pytest.importorskip("torch")

from intarsia.algorithms.hyfem.algorithm import HYFEM  # noqa: E402
from intarsia.algorithms.hyfem.extractors import extractor  # noqa: E402
from intarsia.algorithms.hyfem.hyperparameters import HyFEM  # noqa: E402
from intarsia.algorithms.hyfem.hyperparameters import composition as composition_for  # noqa: E402
from intarsia.algorithms.hyfem.matching import OwnClassifier, joined  # noqa: E402
from intarsia.algorithms.hyfem.network import (  # noqa: E402
    Composition,
    Parts,
    drawn,
    parts_of,
    split_rest,
)
from intarsia.core.block import Block, Labels  # noqa: E402
from intarsia.core.client_functions import RandomKey  # noqa: E402
from intarsia.core.schema import Schema  # noqa: E402
from intarsia.engines.simulation import Simulation  # noqa: E402
from intarsia.errors import ExperimentError  # noqa: E402
from intarsia.maths.matching.neuron_assignment import BetaBernoulli, SquaredDistance  # noqa: E402

BLOCKS = ("a", "b", "c")
HELD = (("a", "b"), ("b", "c"), ("a", "c"))
CLASSES = 4


def composition(hidden=(6, 5)):
    columns = tuple(tuple(f"{name}{k}" for k in range(3)) for name in BLOCKS)
    kinds = tuple(extractor(name, "linear", (3,), 2, ()) for name in BLOCKS)
    return Composition(BLOCKS, columns, kinds, hidden, CLASSES)


def shuffled(made_of, parts, held, rng):
    """Return a client's classifier: the server's with its neurons in another order."""
    first, second = (rng.permutation(width) for width in made_of.hidden)
    at, pieces = 0, []
    widths = (*made_of.hidden, made_of.outputs)
    for layer, width in enumerate(widths):
        if layer:
            size = widths[layer - 1] * width
            pieces.append(parts.rest[at : at + size].reshape(width, widths[layer - 1]))
            at += size
        pieces.append(parts.rest[at : at + width])
        at += width
    bias1, weight2, bias2, weight3, bias3 = pieces
    rest = (bias1[first], weight2[second][:, first], bias2[second], weight3[:, second], bias3)
    return OwnClassifier(
        {name: parts.columns[name][first] for name in held},
        np.concatenate([piece.ravel() for piece in rest]),
        np.ones(CLASSES, bool),
    )


def test_shuffled_classifiers_give_the_one_that_they_come_from():
    made_of, rng = composition(), np.random.default_rng(0)
    parts = parts_of(made_of, drawn(made_of, np.float64, RandomKey((0,))))
    other = parts_of(made_of, drawn(made_of, np.float64, RandomKey((1,))))
    replies = {f"c{k}": shuffled(made_of, parts, held, rng) for k, held in enumerate(HELD)}
    shares = {"c0": 0.2, "c1": 0.5, "c2": 0.3}

    _, found = joined(made_of, replies, shares, other)
    _, plain = joined(made_of, replies, shares, other, in_order=True)

    # the first client's order is the server's
    expected = replies["c0"]
    assert np.allclose(found.rest, expected.rest, rtol=0, atol=1e-12)
    for name in HELD[0]:
        assert np.allclose(found.columns[name], expected.columns[name], rtol=0, atol=1e-12)
    rows = {tuple(np.round(row, 9)) for row in parts.columns["c"]}
    assert {tuple(np.round(row, 9)) for row in found.columns["c"]} == rows
    assert found.extractors is other.extractors
    assert not np.allclose(plain.rest, expected.rest, rtol=0, atol=1e-3)


def test_what_no_client_has_is_the_servers_own_draw():
    made_of, rng = composition(), np.random.default_rng(0)
    parts = parts_of(made_of, drawn(made_of, np.float64, RandomKey((0,))))
    other = parts_of(made_of, drawn(made_of, np.float64, RandomKey((1,))))
    one = shuffled(made_of, parts, HELD[0], rng)
    blind = OwnClassifier(one.columns, one.rest, np.arange(CLASSES) != 2)

    _, found = joined(made_of, {"c0": blind}, {"c0": 1.0}, other)

    assert np.array_equal(found.columns["c"], other.columns["c"])
    assert np.array_equal(found.columns["a"], one.columns["a"])
    last, mine = (some.rest[-CLASSES:] for some in (found, one))
    assert found.rest[-CLASSES:][2] == other.rest[-CLASSES:][2]
    assert np.array_equal(np.delete(last, 2), np.delete(mine, 2))


def federation(seed=0, samples=120):
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(CLASSES, 9))
    found = {}
    for client, held in enumerate(HELD):
        y = rng.integers(CLASSES, size=samples)
        names = {name: tuple(f"{name}{k}" for k in range(3)) for name in held}
        columns = [3 * BLOCKS.index(name) + k for name in held for k in range(3)]
        x = centres[y][:, columns] + 0.7 * rng.normal(size=(samples, len(columns)))
        rows = np.arange(client * samples, (client + 1) * samples)
        flat = tuple(name for group in names.values() for name in group)
        found[f"c{client}"] = Block(rows, flat, x, y.astype(float), names)
    return found


def loss_after_setup(start, seed):
    blocks = federation()
    labels = Labels("multiclass", tuple(map(str, range(CLASSES))))
    schema = Schema.of(blocks, labels)
    options = HyFEM(
        start=start, hidden=(16,), features=4, steps=16, extractor="linear", rate=0.3, engine="loop"
    )
    engine = Simulation({"train": (schema, blocks)}, seed)
    server = HYFEM.init_server(options, schema, engine.key("init"))
    engine.make_states(
        lambda name: HYFEM.init_client(
            options, schema, name, engine.block(name), engine.client_key(name)
        )
    )
    server = HYFEM.setup(server, engine, engine.key("init"))
    return HYFEM.certify(server, engine, engine.key())[1].loss


def test_classifiers_of_the_clients_own_are_better_matched_than_in_their_order():
    matched, unmatched = (
        [loss_after_setup(start, seed) for seed in range(3)] for start in ("matched", "unmatched")
    )

    assert np.mean(matched) < 0.9 * np.mean(unmatched)
    assert all(one < other for one, other in zip(matched, unmatched, strict=True))


@pytest.mark.parametrize("options", [{"shares": "extractors"}, {"hidden": ()}])
def test_nothing_to_match_is_said(options):
    with pytest.raises(ExperimentError, match=r'algorithm\.start is "matched"'):
        HyFEM(start="matched", **options)


# ---- the exact minimisers


def energy(clients, places, width, shares, cost):
    """Return the least over the server's weights of the cost of one layer's neurons, by scipy."""
    total, a = 0.0, cost.precisions(shares)
    sizes = [np.split(np.square(own), [4, 5], axis=1) for own in clients]
    means = [
        np.mean([p * part for p, part in zip(shares, parts, strict=True)])
        for parts in zip(*sizes, strict=True)
    ]
    units = np.repeat([cost.weight_price(mean) for mean in means], (4, 1, 3))
    for neuron in range(width):
        owned = [
            (p, own[place == neuron][0])
            for p, own, place in zip(a, clients, places, strict=True)
            if (place == neuron).any()
        ]

        def of(theta, owned=owned):
            return sum(p / 2 * ((w - theta) ** 2).sum() for p, w in owned) + (
                cost.prior / 2 * (theta**2).sum()
            )

        total += minimize(of, np.zeros(8), method="BFGS").fun
        total += cost.held(np.full(8, sum(p for p, _ in owned)), units).sum()
        total += cost.owners(len(clients))[len(owned)]
    return total


def assignments(units, most):
    """Yield the neurons of a second client beside the first one's, new ones at the end."""
    for chosen in itertools.product((*range(units), None), repeat=units):
        known = [one for one in chosen if one is not None]
        width = 2 * units - len(known)
        if len(set(known)) == len(known) and width <= most:
            new = itertools.count(units)
            yield np.array([next(new) if one is None else one for one in chosen]), width


COSTS = (
    SquaredDistance(price=0.6),
    BetaBernoulli(sigma2=0.6, sigma02=1.0, gamma=1.0),
    BetaBernoulli(sigma2=0.3, sigma02=1.0, gamma=0.5, marginal=True),
)


@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("most", [3, 6])
def test_of_unequal_clients_it_is_the_best_assignment_and_their_weighted_mean(cost, most):
    rng = np.random.default_rng(4)
    units, shares = 3, np.array([0.85, 0.15])
    first = rng.normal(size=(units, 8))  # four columns, the bias, three outgoing weights
    second = first[[2, 0, 1]] + np.array([0.3, 0.6, 1.5])[:, None] * rng.normal(size=(units, 8))
    ends = rng.normal(size=(2, 3))
    made_of = Composition(
        ("a",),
        (("a0",),),
        (extractor("a", "linear", (1,), 4, ()),),
        (units,),
        3,
    )
    replies = {
        name: OwnClassifier(
            {"a": own[:, :4]},
            np.concatenate([own[:, 4], own[:, 5:].T.ravel(), end]),
            np.ones(3, bool),
        )
        for name, own, end in zip("pq", (first, second), ends, strict=True)
    }
    start = Parts({}, {"a": np.zeros((units, 4))}, np.zeros(units * 4 + 3))
    every = [
        (energy((first, second), (np.arange(units), place), width, shares, cost), place, width)
        for place, width in assignments(units, most)
    ]
    _, place, width = min(every, key=lambda one: one[0])

    found, parts = joined(made_of, replies, {"p": 1.7, "q": 0.3}, start, cost=cost, widest=(most,))

    expected = np.zeros((width, 8))
    for neuron in range(width):
        both = zip(shares, (first, second), (np.arange(units), place), strict=True)
        own = [(p, w[at == neuron][0]) for p, w, at in both if neuron in at]
        expected[neuron] = sum(p * w for p, w in own) / sum(p for p, _ in own)
    biases, weights = split_rest(parts.rest, (width, 3))
    rows = np.hstack([parts.columns["a"], biases[0][:, None], weights[0].T])
    assert found.hidden == (width,)
    np.testing.assert_allclose(rows, expected, rtol=0, atol=1e-12)
    np.testing.assert_allclose(biases[1], shares @ ends, rtol=0, atol=1e-12)


def test_where_all_have_orders_of_their_own_a_second_pass_puts_right_what_one_leaves():
    made_of, errors = composition((20,)), []
    parts = parts_of(made_of, drawn(made_of, np.float64, RandomKey((0,))))
    for passes in (1, 2):
        wrong = 0
        for seed in range(8):
            rng = np.random.default_rng(seed)
            replies = {f"c{k}": alike(made_of, parts, rng) for k in range(4)}
            shares = dict.fromkeys(replies, 0.25)
            _, found = joined(made_of, replies, shares, parts, again=True, passes=passes)
            rows = {tuple(np.round(row, 9)) for row in parts.columns["a"]}
            wrong += sum(tuple(np.round(row, 9)) not in rows for row in found.columns["a"])
        errors.append(wrong)
    assert errors[0] > 0
    assert errors[1] == 0


def alike(made_of, parts, rng):
    """Return a client's classifier: the server's of one hidden layer with its neurons shuffled."""
    [units] = made_of.hidden
    order = rng.permutation(units)
    biases, weights = split_rest(parts.rest, (units, CLASSES))
    rest = np.concatenate([biases[0][order], weights[0][:, order].ravel(), biases[1]])
    columns = {name: own[order] for name, own in parts.columns.items()}
    return OwnClassifier(columns, rest, np.ones(CLASSES, bool))


# ---- a round


class Heard:
    """Clients whose classifiers are kept as they were sent."""

    def __init__(self, engine):
        self.ids, self.sum, self.engine, self.replies = engine.ids, engine.sum, engine, {}

    def ask(self, fn, messages):
        self.replies = self.engine.ask(fn, messages)
        return self.replies


@pytest.mark.parametrize("weights", ["equal", "samples"])
@pytest.mark.parametrize("unseen_rows", ["kept", "averaged"])
def test_a_matched_round_averages_each_weight_over_those_who_have_it(weights, unseen_rows):
    """From a common start, where neurons keep their numbers; what nobody there has stays."""
    blocks = federation(samples=40)
    seen = {"c0": (0, 1, 2, 3), "c1": (0, 1), "c2": (1, 2)}
    for name, own in seen.items():
        blocks[name].y[:] = np.array(own)[blocks[name].y.astype(int) % len(own)]
    blocks["c1"] = blocks["c1"].take(np.arange(10))
    p = {"c0": 40, "c1": 10, "c2": 40} if weights == "samples" else dict.fromkeys(seen, 1)
    options = HyFEM(
        matching="rounds", weights=weights, unseen_rows=unseen_rows, hidden=(16,), features=4,
        steps=4, extractor="linear", rate=0.05, precision="double", engine="loop",
    )  # fmt: skip
    schema = Schema.of(blocks, Labels("multiclass", tuple(map(str, range(CLASSES)))))
    engine = Simulation({"train": (schema, blocks)}, 0)
    server = HYFEM.init_server(options, schema, engine.key("init"))
    engine.make_states(
        lambda name: HYFEM.init_client(
            options, schema, name, engine.block(name), engine.client_key(name)
        )
    )
    server = HYFEM.setup(server, engine, engine.key("init"))
    for number, there in ((1, ("c0", "c1", "c2")), (2, ("c1", "c2")), (3, ("c1",))):
        before = server.whole
        engine.begin_round(number, there)
        heard = Heard(engine)
        server, _ = HYFEM.round(server, heard, engine.key())
        after = server.whole

        for place, block in enumerate(BLOCKS):
            holding = [name for name in there if block in HELD[int(name[1])]]
            expected = before.columns[block]
            if holding:
                own = [heard.replies[name].columns[block] for name in holding]
                expected = np.average(own, axis=0, weights=[p[name] for name in holding])
            np.testing.assert_allclose(after.columns[block], expected, atol=1e-12, err_msg=place)
        sent = {name: split_rest(heard.replies[name].rest, (16, CLASSES)) for name in there}
        was, found = (split_rest(one.rest, (16, CLASSES)) for one in (before, after))
        own = [sent[name][0][0] for name in there]
        expected = np.average(own, axis=0, weights=[p[name] for name in there])
        np.testing.assert_allclose(found[0][0], expected, atol=1e-12)
        for label in range(CLASSES):
            counted = [n for n in there if unseen_rows == "averaged" or label in seen[n]]
            row, bias = was[1][0][label], was[0][1][label]
            if counted:
                by = [p[name] for name in counted]
                row = np.average([sent[n][1][0][label] for n in counted], axis=0, weights=by)
                bias = np.average([sent[n][0][1][label] for n in counted], weights=by)
            np.testing.assert_allclose(found[1][0][label], row, atol=1e-12)
            np.testing.assert_allclose(found[0][1][label], bias, atol=1e-12)


def test_a_clients_first_layer_sees_as_much_as_the_servers():
    blocks = federation(samples=6)
    schema = Schema.of(blocks, Labels("multiclass", tuple(map(str, range(CLASSES)))))
    assert composition_for(HyFEM(), schema, None).scale == 1.0
    assert composition_for(HyFEM(), schema, "c0").scale == 1.5
    assert composition_for(HyFEM(scaling=False), schema, "c0").scale == 1.0
    assert composition_for(HyFEM(shares="nothing"), schema, "c0").scale == 1.0
