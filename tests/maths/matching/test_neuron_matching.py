"""Matching against planted permutations, enumeration of all matchings, and published formulas."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import gammaln
from scipy.stats import multivariate_normal

from intarsia.errors import ExperimentError, FederationError
from intarsia.maths.matching.matched_classifiers import (
    Classifier,
    Matching,
    aggregate,
    project,
    same_order,
)
from intarsia.maths.matching.neuron_assignment import Arrangement, BetaBernoulli, SquaredDistance
from intarsia.maths.matching.neuron_matching import match

CLASSES = 5


def classifier(rng, hidden, blocks, per=2, classes=CLASSES, seen=None, scale=1.0):
    inputs = np.concatenate([block * per + np.arange(per) for block in blocks])
    widths = (len(inputs), *hidden, classes)
    return Classifier(
        tuple(scale * rng.normal(size=(b, a)) for a, b in itertools.pairwise(widths)),
        tuple(scale * rng.normal(size=b) for b in widths[1:]),
        inputs,
        np.ones(classes, bool) if seen is None else np.isin(np.arange(classes), seen),
    )


def shuffled(one, rng, noise=0.0):
    """Return a classifier with its hidden neurons in another order, and that order."""
    orders = [rng.permutation(width) for width in one.hidden]
    mixed = project(one, orders, np.arange(len(one.inputs)))
    moved = Classifier(
        tuple(w + noise * rng.normal(size=w.shape) for w in mixed.weights),
        tuple(b + noise * rng.normal(size=b.shape) for b in mixed.biases),
        one.inputs,
        one.outputs,
    )
    return moved, orders


def planted(hidden, noise, seed=0, views=4, per=32):
    """Return four clients with 3 of 4 views each of one classifier, and their orders."""
    rng = np.random.default_rng(seed)
    server = classifier(rng, hidden, range(views), per, 10)
    clients, orders = [], []
    for missing in range(views):
        columns = np.flatnonzero(np.arange(views * per) // per != missing)
        order = [rng.permutation(width) for width in hidden]
        part = project(server, order, columns)
        clients.append(
            Classifier(
                tuple(w + noise * rng.normal(size=w.shape) for w in part.weights),
                tuple(b + noise * rng.normal(size=b.shape) for b in part.biases),
                columns,
                part.outputs,
            )
        )
        orders.append(order)
    return clients, orders


def agreement(matching, orders, layer):
    """Return the part of pairs of clients' neurons that are one in the matching as they should."""
    found = [m[layer][np.argsort(o[layer])] for m, o in zip(matching.neurons, orders, strict=True)]
    pairs = [np.mean(a == b) for a, b in itertools.combinations(found, 2)]
    return np.mean(pairs)


@pytest.mark.parametrize("width", [50, 200, 800])
@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_planted_permutations_are_recovered(width, noise):
    clients, orders = planted((width,), noise)

    matching = match(clients)

    assert matching.widths == (width,)
    assert agreement(matching, orders, 0) >= 0.99


def test_with_its_weights_integrated_out_the_posterior_finds_the_width_too():
    """At their best value, as published, half of the neurons are thought a client's own."""
    clients, orders = planted((50,), 0.3)
    cost = {"sigma2": 0.09, "sigma02": 1.0, "gamma": 1.0}

    published = match(clients, cost=BetaBernoulli(**cost), widths=math.inf)
    marginal = match(clients, cost=BetaBernoulli(**cost, marginal=True), widths=math.inf)

    assert marginal.widths == (50,)
    assert agreement(marginal, orders, 0) == 1.0
    assert published.widths[0] > 60


def test_the_marginal_cost_is_the_gaussian_likelihood():
    """ln of the joint density of the owners' weights, by scipy, up to what each adds alone."""
    cost = BetaBernoulli(sigma2=0.3, sigma02=0.8, marginal=True)
    a = cost.precisions(np.full(3, 1 / 3))[0]
    for values in ([0.7], [0.7, -0.4], [0.7, -0.4, 1.9]):
        count, total = len(values), sum(values)
        spread = 0.8 * np.ones((count, count)) + 0.3 * np.eye(count)
        likelihood = multivariate_normal.logpdf(values, cov=spread)
        alone = count / 2 * math.log(2 * math.pi * 0.3) + np.square(values).sum() / 2 / 0.3
        held = cost.held(np.array([a * count]), np.ones(1))[0]
        energy = held - (a * total) ** 2 / (cost.prior + a * count) / 2
        assert energy == pytest.approx(-likelihood - alone)


FEDMA = {"cost": BetaBernoulli(), "widths": math.inf, "outgoing": False}


@pytest.mark.parametrize("settings", [{}, FEDMA])
def test_planted_permutations_of_three_layers_are_recovered(settings):
    clients, orders = planted((50, 40, 60), 0.3)

    matching = match(clients, **settings)

    assert [agreement(matching, orders, layer) >= 0.99 for layer in range(3)] == [True] * 3


@pytest.mark.parametrize("hidden", [(7,), (7, 5), (7, 5, 6)])
@pytest.mark.parametrize(
    "cost", [SquaredDistance(), BetaBernoulli(sigma2=0.1, sigma02=1.0, gamma=1.0)]
)
def test_with_equal_clients_the_permutation_is_recovered(hidden, cost):
    rng = np.random.default_rng(1)
    first = classifier(rng, hidden, range(3))
    others = [shuffled(first, rng) for _ in range(3)]

    matching = match([first, *(one for one, _ in others)], cost=cost, widths=math.inf)

    assert matching.widths == hidden
    for neurons, (_, orders) in zip(matching.neurons[1:], others, strict=True):
        for layer, order in enumerate(orders):
            assert np.array_equal(neurons[layer], matching.neurons[0][layer][order])


def test_the_order_of_a_clients_neurons_changes_nothing():
    clients, _ = planted((12, 9), 0.1)
    moved, _ = shuffled(clients[2], np.random.default_rng(3))
    servers = [
        aggregate(some, match(some), inputs=128)
        for some in (clients, [*clients[:2], moved, clients[3]])
    ]

    for one, other in zip(servers[0].weights, servers[1].weights, strict=True):
        assert np.allclose(one, other, rtol=0, atol=1e-12)


def naive_energy(clients, matching, shares, cost):
    """Return the objective, weight by weight, from who has which."""
    shares = np.asarray(shares) / np.sum(shares)
    a, layers = cost.precisions(shares), len(clients[0].weights)
    holders = [{} for _ in range(layers)], [{} for _ in range(layers)]
    sizes = [[[], []] for _ in range(layers)]
    for m, one in enumerate(clients):
        places = (one.inputs, *matching.neurons[m], np.arange(len(one.outputs)))
        for k in range(layers):
            for row, after in enumerate(places[k + 1]):
                if k + 1 == layers and not one.outputs[row]:
                    continue
                cells = [((after, c), one.weights[k][row, i]) for i, c in enumerate(places[k])]
                for kind, some in enumerate((cells, [(after, one.biases[k][row])])):
                    for cell, value in some:
                        holders[kind][k].setdefault(cell, []).append((a[m], value))
                        sizes[k][kind].append(shares[m] * value**2)
    energy = 0.0
    for k in range(layers):
        for kind in range(2):
            if kind == 1 and k + 1 == layers:
                continue  # output biases are no part of a neuron
            squares = np.mean(sizes[k][kind] or [0.0])
            for held in holders[kind][k].values():
                mass = sum(p for p, _ in held)
                theta = sum(p * w for p, w in held) / (cost.prior + mass)
                energy += sum(p / 2 * (w - theta) ** 2 for p, w in held)
                energy += cost.prior / 2 * theta**2
                if isinstance(cost, SquaredDistance):
                    energy += cost.price / 2 * squares
                elif cost.marginal:
                    energy += math.log((cost.prior + mass) / cost.prior) / 2
    for layer, width in enumerate(matching.widths):
        for neuron in range(width):
            owners = sum(neuron in neurons[layer] for neurons in matching.neurons)
            energy += cost.owners(len(clients))[owners]
    return energy


@st.composite
def federations(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    layers, clients = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    some = [
        classifier(
            rng,
            tuple(draw(st.integers(1, 5)) for _ in range(layers)),
            draw(st.sets(st.integers(0, 3), min_size=1).map(sorted)),
            seen=draw(st.sets(st.integers(0, CLASSES - 1))),
            scale=draw(st.sampled_from([0.1, 1.0, 3.0])),
        )
        for _ in range(clients)
    ]
    shares = [draw(st.sampled_from([1.0, 2.5, 10.0])) for _ in range(clients)]
    cost = draw(
        st.sampled_from(
            [
                SquaredDistance(),
                SquaredDistance(price=0.0),
                SquaredDistance(price=1.0),
                BetaBernoulli(),
                BetaBernoulli(sigma2=0.2, sigma02=2.0, gamma=20.0),
                BetaBernoulli(sigma2=0.2, gamma=20.0, marginal=True),
            ]
        )
    )
    largest = max(width for one in some for width in one.hidden)
    widths = draw(st.sampled_from([None, largest + 2, math.inf]))
    return some, shares, cost, widths


@settings(max_examples=60, deadline=None)
@given(federations(), st.booleans())
def test_the_objective_never_rises_and_is_what_it_says(federation, cold):
    clients, shares, cost, widths = federation
    start = None if cold else same_order(clients)

    matching = match(clients, shares, cost=cost, widths=widths, start=start)

    found = np.array(matching.objectives)
    assert (np.diff(found) <= 1e-9 * np.abs(found[1:])).all()
    naive = naive_energy(clients, matching, shares, cost)
    assert found[-1] == pytest.approx(naive, rel=1e-9, abs=1e-9)
    if not cold:
        naive = naive_energy(clients, start, shares, cost)
        assert found[0] == pytest.approx(naive, rel=1e-9, abs=1e-9)


@settings(max_examples=40, deadline=None)
@given(federations(), st.booleans())
def test_every_server_neuron_has_an_owner_and_no_client_has_one_twice(federation, outgoing):
    clients, shares, cost, widths = federation

    matching = match(clients, shares, cost=cost, widths=widths, outgoing=outgoing)

    for layer, width in enumerate(matching.widths):
        places = [neurons[layer] for neurons in matching.neurons]
        assert np.array_equal(np.unique(np.concatenate(places)), np.arange(width))
        assert all(len(np.unique(some)) == len(some) for some in places)
        largest = max(map(len, places))
        assert width <= (largest if widths is None else max(widths, largest))


def all_matchings(sizes):
    """Yield every way to put clients' neurons together, one hidden layer."""

    def step(rest, used):
        if not rest:
            yield ()
            return
        size = rest[0]
        for choice in itertools.product([*range(used), None], repeat=size):
            taken = [c for c in choice if c is not None]
            if len(set(taken)) < len(taken):
                continue
            new = itertools.count(used)
            places = np.array([next(new) if c is None else c for c in choice])
            grown = used + len(choice) - len(taken)
            for others in step(rest[1:], grown):
                yield (places, *others)

    yield from step(sizes, 0)


def best_of_all(clients, shares, cost, limit=math.inf):
    energies = [
        naive_energy(clients, Matching(tuple((p,) for p in places), (width,)), shares, cost)
        for places in all_matchings([one.hidden[0] for one in clients])
        if (width := 1 + max(int(p.max()) for p in places)) <= limit
    ]
    return min(energies)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(
    "cost",
    [
        BetaBernoulli(sigma2=0.5, sigma02=1.0, gamma=3.0),
        BetaBernoulli(sigma2=2.0, sigma02=1.0, gamma=0.01),
        BetaBernoulli(sigma2=0.5, sigma02=1.0, gamma=3.0, marginal=True),
        SquaredDistance(price=1.0),
    ],
)
def test_two_clients_get_the_best_of_all_matchings(seed, cost):
    rng = np.random.default_rng(seed)
    clients = [
        classifier(rng, (3,), blocks, 1, 3, seen)
        for blocks, seen in (((0, 1, 2), (0, 1)), ((1, 2, 3), (1, 2)))
    ]
    shares = (1.0, 1.5)

    for limit in (3, 4, math.inf):
        matching = match(clients, shares, cost=cost, widths=limit)
        assert matching.objectives[-1] == pytest.approx(best_of_all(clients, shares, cost, limit))


@pytest.mark.parametrize("seed", range(4))
def test_pfnm_finds_the_posteriors_best_where_clients_are_alike(seed):
    rng = np.random.default_rng(seed)
    first = classifier(rng, (2,), range(2), 2, 3)
    clients = [first, *(shuffled(first, rng, 0.2)[0] for _ in range(2))]

    cost = BetaBernoulli(sigma2=0.1, sigma02=1.0, gamma=1.0)
    matching = match(clients, cost=cost, widths=math.inf)

    best = best_of_all(clients, (1, 1, 1), cost)
    assert matching.objectives[-1] == pytest.approx(best)


def test_the_beta_bernoulli_cost_is_pfnms():
    """Rise of the energy = half of the publication's cost, but for a new neuron's rank."""
    s2, s02, gamma, clients = 0.3, 0.8, 1.7, 5
    cost = BetaBernoulli(sigma2=s2, sigma02=s02, gamma=gamma)
    a = cost.precisions(np.full(clients, 1 / clients))[0]
    rng = np.random.default_rng(0)
    own, theirs = rng.normal(size=4), rng.normal(size=(3, 4))

    def energy(values):
        if not len(values):
            return 0.0
        total, mass = a * values.sum(axis=0), cost.prior + a * len(values)
        return -(total @ total) / mass / 2 + cost.owners(clients)[len(values)]

    def published(values):
        m, total = len(values), values.sum(axis=0) / s2
        joined = ((own / s2 + total) ** 2).sum() / (1 / s02 + (m + 1) / s2)
        apart = (total**2).sum() / (1 / s02 + m / s2)
        odds = math.log(m / (clients - m)) if m else math.log(gamma / clients)
        return -(joined - apart + 2 * odds)

    for values in (theirs[:0], theirs[:1], theirs):
        rise = energy(np.vstack([values, own])) - energy(values)
        assert 2 * rise == pytest.approx(published(values))
    m = np.arange(1, clients + 1)
    ways = np.log(gamma) + gammaln(m) + gammaln(clients - m + 1) - gammaln(clients + 1)
    assert np.allclose(cost.owners(clients)[1:], -ways)


@pytest.mark.parametrize("cost", [SquaredDistance(), BetaBernoulli(sigma2=0.1)])
def test_few_common_columns_do_not_look_like_a_good_match(cost):
    """The one with all blocks is nearly the same neuron; the other shares a column, exactly."""
    zero = np.zeros((1, 1))
    seen = np.zeros(1, bool)

    def lone(weights, inputs):
        return Classifier((np.array([weights]), zero), (zero[0], zero[0]), np.array(inputs), seen)

    own = lone([1.0, -1.0, 1.0, 1.0], range(4))
    alike = lone([1.1, -0.9, 1.1, 0.9], range(4))
    narrow = lone([1.0], [0])
    width = 2

    start = Matching(((np.array([0]),), (np.array([1]),), (np.array([1]),)), (width,))
    arrangement = Arrangement([alike, narrow, own], np.full(3, 1 / 3), cost, (width,), True)
    arrangement.place(start)
    arrangement.objective([0])
    arrangement.turn(2, [0])

    assert arrangement.places()[0][2][0].tolist() == [0]


def test_neurons_that_nobody_else_has_are_opened_if_the_price_allows():
    rng = np.random.default_rng(0)
    clients = [classifier(rng, (6,), (0, 1)) for _ in range(3)]

    assert match(clients, cost=SquaredDistance(price=0.0), widths=math.inf).widths == (18,)
    assert match(clients, cost=SquaredDistance(price=0.0), widths=10).widths == (10,)
    assert match(clients, cost=SquaredDistance(price=1e3), widths=math.inf).widths == (6,)
    assert match(clients, widths=math.inf).widths == (6,)


def test_a_warm_start_that_is_best_stays():
    clients, _ = planted((30, 20), 0.2)
    first = match(clients)

    again = match(clients, start=first)

    assert again.objectives == (first.objectives[-1],)
    for one, other in zip(first.neurons, again.neurons, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_a_common_start_stays_in_its_order():
    rng = np.random.default_rng(0)
    first = classifier(rng, (20,), (0, 1, 2))
    clients = [
        Classifier(
            tuple(w + 0.1 * rng.normal(size=w.shape) for w in first.weights),
            tuple(b + 0.1 * rng.normal(size=b.shape) for b in first.biases),
            first.inputs,
            first.outputs,
        )
        for _ in range(4)
    ]

    matching = match(clients, start=same_order(clients))

    assert all(np.array_equal(neurons[0], np.arange(20)) for neurons in matching.neurons)


def test_without_hidden_layers_there_is_nothing_to_match():
    rng = np.random.default_rng(0)
    clients = [classifier(rng, (), (0, block)) for block in (1, 2)]

    assert match(clients) == Matching(((), ()), (), (0.0,))


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"passes": -1}, ExperimentError, "number of passes is -1"),
        ({"widths": 3}, ExperimentError, r"may have \[3\] neurons"),
        ({"shares": [1.0, 0.0]}, ExperimentError, r"weights are \[1.0, 0.0\]"),
        ({"start": Matching(((np.arange(4),),), (4,))}, FederationError, "same clients"),
        (
            {"start": Matching(((np.arange(4),), (np.zeros(4, int),)), (4,))},
            FederationError,
            "each needs its own",
        ),
    ],
)
def test_what_cannot_be_matched_is_said_in_a_sentence(change, error, words):
    rng = np.random.default_rng(0)
    clients = [classifier(rng, (4,), (0, 1)) for _ in range(2)]

    with pytest.raises(error, match=words):
        match(clients, **change)


@pytest.mark.parametrize("cost", [SquaredDistance, BetaBernoulli])
def test_constants_of_a_cost_are_checked(cost):
    name = next(iter(cost.__dataclass_fields__))
    with pytest.raises(ExperimentError, match=r"-1\.0"):
        cost(**{name: -1.0})


@pytest.mark.parametrize("cost", [SquaredDistance(), BetaBernoulli(sigma2=0.3)])
def test_neurons_that_are_alike_are_not_swapped(cost):
    """Any order of the second client's neurons is as good: they stay in the one they have."""
    rng = np.random.default_rng(0)
    first = classifier(rng, (6,), range(4))
    second = Classifier(
        (np.repeat(first.weights[0][:1], 6, axis=0), np.repeat(first.weights[1][:, :1], 6, axis=1)),
        (np.repeat(first.biases[0][:1], 6), first.biases[1]),
        first.inputs,
        first.outputs,
    )

    for _ in range(5):
        order = rng.permutation(6)
        start = Matching(((np.arange(6),), (order,)), (6,))
        matching = match([first, second], cost=cost, start=start)
        assert np.array_equal(matching.neurons[1][0], order)
