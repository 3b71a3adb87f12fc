"""One client's turn in a matching: its neurons taken out and assigned anew, all others' kept.

A server neuron is a row of a hidden layer's totals S = Σ a w, in the server's coordinates. A client
has the same of its weights in each of its neurons, so that A = Σ a of a server weight follows from
who owns its ends, and is the same for all server neurons with the same owners. The rise of the
energy when a client's neuron w joins a server neuron,

    Σ ½ (a w² - (S + a w)²/(τ + A + a) + S²/(τ + A))  over the client's weights, and prices,

is then one product of matrices for all pairs, and a sum over each side.

What it costs that neurons of several clients are one neuron of the server.

Both costs are energies of a server neuron, a sum over its weights: with a the precision of a
client's weight w, A = Σa and S = Σaw over the clients that have the weight,

    min_θ Σ a/2 (w - θ)² + τ/2 θ²  =  ½ (Σ a w² - S²/(τ + A))

plus what it costs that the server has the weight, plus an energy of the number of its owners. So
every candidate for a client's neuron explains all the weights of that neuron: those that the
candidate's owners lack cost as much there as in a new neuron, and few common columns do not look
like a good match.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from scipy.special import gammaln

from intarsia.errors import ExperimentError
from intarsia.maths.matching.matched_classifiers import Classifier, Matching


class Cost(Protocol):
    """The constants of an energy."""

    @property
    def prior(self) -> float:
        """Return τ, the precision of a server weight's prior around 0."""
        ...

    def precisions(self, shares: Array) -> Array:
        """Return a of each client, (clients,), from weights p_m that sum to 1."""
        ...

    def weight_price(self, squares: float) -> float:
        """Return the unit of `held` in a layer with this mean of p_m w²."""
        ...

    def held(self, masses: Array, prices: Array) -> Array:
        """Return what server weights cost that clients of these A in all have."""
        ...

    def owners(self, clients: int) -> Array:
        """Return the energy of a server neuron with 0, 1, ... owners, (clients + 1,)."""
        ...


@dataclass(frozen=True, kw_only=True)
class SquaredDistance:
    """Σ_m p_m/2 ‖w_m - Π_m w_0‖², and a price for each weight of the server (equation (11))."""

    price: float = 4.0  # of a server weight, in halves of the layer's mean p_m w²

    def __post_init__(self) -> None:
        if not 0 <= self.price < np.inf:
            raise ExperimentError(
                f"The price of a neuron is {self.price}; set it to 0 or more, and the width to the "
                "largest client's where none is to be opened."
            )

    @property
    def prior(self) -> float:
        """Return τ."""
        return 0.0

    def precisions(self, shares: Array) -> Array:
        """Return p_m."""
        return shares

    def weight_price(self, squares: float) -> float:
        """Return the price of a server weight."""
        return self.price / 2 * squares

    def held(self, masses: Array, prices: Array) -> Array:
        """Return the price where any client has the weight."""
        return prices * (masses > 0)

    def owners(self, clients: int) -> Array:
        """Return zeros: any number of owners is as good."""
        return np.zeros(clients + 1)


@dataclass(frozen=True, kw_only=True)
class BetaBernoulli:
    """The negative logarithm of PFNM's posterior, up to a constant.

    Server neurons are atoms of a Beta process of mass γ, θ ~ N(0, σ0² I); a client has an atom with
    the atom's probability, and w ~ N(θ, σ²/(M p_m) I) where it has it
    (Yurochkin et al., "Bayesian Nonparametric Federated Learning of Neural Networks", ICML 2019).
    At its best value, as published, θ explains the weights of one client alone too well: noise
    σ = 0.3 σ0 is enough for most neurons to be thought the client's own, whatever γ. Integrated out
    (`marginal`), it adds ½ ln(1 + A/τ) for each weight, and they are told apart.

    The posterior is that of the set of atoms. The publication's term for the rank of a new neuron
    among a client's new ones counts the orders of one and the same set, and is left out: it belongs
    to no energy of all clients, so that passes could not be held to descent.
    """

    sigma2: float = 1.0  # σ²
    sigma02: float = 1.0  # σ0²
    gamma: float = 1.0  # γ
    marginal: bool = False  # θ integrated out, rather than at its best value

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name != "marginal" and not 0 < value < np.inf:
                raise ExperimentError(f"{name} is {value}; set it to a positive number.")

    @property
    def prior(self) -> float:
        """Return 1/σ0²."""
        return 1 / self.sigma02

    def precisions(self, shares: Array) -> Array:
        """Return M p_m/σ²."""
        return shares * (len(shares) / self.sigma2)

    def weight_price(self, squares: float) -> float:
        """Return 1."""
        return 1.0

    def held(self, masses: Array, prices: Array) -> Array:
        """Return ½ ln(1 + A/τ) if θ is integrated out; at its best value the prior is the price."""
        return prices * np.log1p(masses * self.sigma02) / 2 if self.marginal else 0.0 * masses

    def owners(self, clients: int) -> Array:
        """Return -ln(γ (m - 1)! (M - m)!/M!) for m owners of M clients, and 0 for none."""
        m = np.arange(1, clients + 1)
        some = gammaln(clients + 1) - gammaln(m) - gammaln(clients - m + 1) - np.log(self.gamma)
        return np.concatenate(([0.0], some))


Array = NDArray[Any]

_ROUNDING = 1e-12  # a better assignment is better by more than this part of what it costs


@dataclass
class _Layer:
    """One hidden layer: all clients' neurons, and which of the server's they are."""

    values: list[Array]  # of each client: (neurons, weights), incoming | bias | outgoing
    places: list[Array | None]  # of each client: (neurons,) server neurons; None: not yet there
    limit: int  # the most server neurons
    totals: Array  # (limit, server weights) S of the clients that are there
    prices: Array  # (server weights,) the units of what they cost


class Arrangement:
    """A matching that improves turn by turn."""

    def __init__(
        self,
        classifiers: Sequence[Classifier],
        shares: Array,
        cost: Cost,
        limits: Sequence[int],
        outgoing: bool,
    ) -> None:
        self.classifiers, self.cost, self.outgoing = classifiers, cost, outgoing
        self.precisions = cost.precisions(shares)
        self.owners = cost.owners(len(classifiers))
        self.counted = [np.flatnonzero(one.outputs) for one in classifiers]
        inputs = 1 + max(int(one.inputs.max(initial=-1)) for one in classifiers)
        self.widths = (inputs, *limits, len(classifiers[0].outputs))
        matrix_prices = [self._price(shares, k, rows=False) for k in range(len(limits) + 1)]
        bias_prices = [self._price(shares, k, rows=True) for k in range(len(limits))]
        self.layers = []
        for k, limit in enumerate(limits):
            prices = [np.full(self.widths[k], matrix_prices[k]), np.array([bias_prices[k]])]
            if outgoing:
                prices.append(np.full(self.widths[k + 2], matrix_prices[k + 1]))
            self.layers.append(
                _Layer(
                    [self._values(client, k) for client in range(len(classifiers))],
                    [None] * len(classifiers),
                    limit,
                    np.zeros((limit, sum(map(len, prices)))),
                    np.concatenate(prices),
                )
            )

    def _price(self, shares: Array, layer: int, rows: bool) -> float:
        """Return the price of a server weight (rows: of a bias) in a layer of weights."""
        squares, count = 0.0, 0
        for client, (one, share) in enumerate(zip(self.classifiers, shares, strict=True)):
            kept = self.counted[client] if layer + 1 == len(one.weights) else slice(None)
            values = (one.biases if rows else one.weights)[layer][kept]
            squares += float(share * np.square(values, dtype=float).sum())
            count += values.size
        return self.cost.weight_price(squares / max(count, 1))

    def _values(self, client: int, layer: int) -> Array:
        one = self.classifiers[client]
        parts = [one.weights[layer], one.biases[layer][:, None]]
        if self.outgoing:
            after = one.weights[layer + 1]
            last = layer + 2 == len(one.weights)
            parts.append(after[self.counted[client]].T if last else after.T)
        joined: Array = np.concatenate(parts, axis=1, dtype=float)
        return joined

    def _columns(self, client: int, layer: int) -> Array | None:
        """Return the server's numbers of a client's weights; None before it is there.

        Outgoing weights to neurons that have no place yet are at the end, and left out.
        """
        before = self.classifiers[client].inputs if layer == 0 else self._place(client, layer - 1)
        if before is None:
            return None
        start = self.widths[layer]
        parts = [before, np.array([start])]
        if self.outgoing:
            last = layer + 1 == len(self.layers)
            after = self.counted[client] if last else self._place(client, layer + 1)
            if after is not None:
                parts.append(start + 1 + after)
        return np.concatenate(parts).astype(np.intp)

    def _place(self, client: int, layer: int) -> Array | None:
        return self.layers[layer].places[client]

    def size(self, client: int, layers: Sequence[int]) -> int:
        """Return how many neurons a client has."""
        return sum(self.classifiers[client].hidden[layer] for layer in layers)

    def place(self, matching: Matching) -> None:
        """Put all clients where a matching has them."""
        for client, neurons in enumerate(matching.neurons):
            for layer, places in enumerate(neurons):
                self.layers[layer].places[client] = places

    def _total(self, layers: Iterable[int]) -> None:
        for layer in layers:
            self.layers[layer].totals[:] = 0.0
        for client in range(len(self.classifiers)):
            self._add(client, layers, 1.0)

    def _add(self, client: int, layers: Iterable[int], sign: float) -> None:
        for layer in layers:
            one, columns = self.layers[layer], self._columns(client, layer)
            places = one.places[client]
            if columns is not None and places is not None:
                values = one.values[client][:, : len(columns)]
                _add_cells(one.totals, places, columns, sign * self.precisions[client] * values)

    def turn(self, client: int, layers: Sequence[int]) -> bool:
        """Take a client's neurons out and assign them anew; say whether any has moved."""
        self._add(client, layers, -1.0)
        moved = [self._assign(client, layer) for layer in layers]
        self._add(client, layers, 1.0)
        return any(moved)

    def _assign(self, client: int, layer: int) -> bool:
        """Assign a client's neurons in one layer, given where it is in the others."""
        one, columns = self.layers[layer], self._columns(client, layer)
        assert columns is not None  # layers before this one are assigned first
        others = [k for k in range(len(one.places)) if k != client and one.places[k] is not None]
        owned = np.zeros((one.limit, len(others)), bool)
        for number, other in enumerate(others):
            owned[one.places[other], number] = True
        there = np.flatnonzero(owned.any(axis=1))
        values = one.values[client][:, : len(columns)]
        joined, opened = self._costs(client, layer, values, columns, others, owned[there], there)
        known = np.full(one.limit, -1)
        known[there] = np.arange(len(there))
        before = one.places[client]
        now = None if before is None else known[before]
        best = _best(joined, opened, one.limit - len(there), now)
        if now is not None and np.array_equal(best, now):
            return False
        one.places[client] = _slots(best, there, before, one.limit)
        return True

    def _costs(
        self,
        client: int,
        layer: int,
        values: Array,
        columns: Array,
        others: Sequence[int],
        owned: Array,
        there: Array,
    ) -> tuple[Array, Array]:
        """Return the energy of joining, (neurons, server neurons), and of a new one, (neurons,)."""
        one, a, tau = self.layers[layer], self.precisions[client], self.cost.prior
        prices = one.prices[columns]
        squares = values**2
        held = self.cost.held
        opened = (a * tau / (tau + a) / 2) * squares.sum(axis=1) + self.owners[1]
        opened += held(np.full(len(prices), a), prices).sum()
        # server neurons with the same owners have the same clients in each weight
        has = np.zeros((len(others), len(columns)))
        for number, other in enumerate(others):
            has[number] = self.precisions[other] * self._has(other, layer)[columns]
        patterns, kind = _patterns(owned)
        mass = patterns @ has
        after = 1 / (tau + mass + a)
        slope = np.divide(1, tau + mass, out=np.zeros_like(mass), where=tau + mass > 0) - after
        totals = one.totals[there][:, columns]
        count = owned.sum(axis=1)
        more = (held(mass + a, prices) - held(mass, prices)).sum(axis=1)
        of_server = more[kind] + self.owners[count + 1] - self.owners[count]
        of_client = (a / 2 * squares) @ (1 - a * after).T
        if len(patterns) == 1:  # one product, of which only the smaller factor is scaled
            of_server += totals**2 @ (slope[0] / 2)
            joined = (values * (-a * after)) @ totals.T
            joined += of_client
        else:
            of_server += np.einsum("gk,gk,gk->g", totals, totals, slope[kind]) / 2
            joined = values @ (totals * (-a * after)[kind]).T
            joined += of_client[:, kind]
        joined += of_server
        return joined, opened

    def _has(self, client: int, layer: int) -> Array:
        has = np.zeros(len(self.layers[layer].prices))
        columns = self._columns(client, layer)
        if columns is not None:
            has[columns] = 1.0
        return has

    def objective(self, layers: Sequence[int]) -> float:
        """Return the energy of the clients' weights in and around some layers."""
        self._total(layers)  # afresh: rounding does not add up over the turns
        return sum(self._energy(layer) for layer in layers)

    def _energy(self, layer: int) -> float:
        """Return a layer's energy: its own weights, and those to the outputs after the last."""
        one = self.layers[layer]
        end = None if layer + 1 == len(self.layers) else self.widths[layer] + 1
        mass, energy = np.zeros(one.totals[:, :end].shape), 0.0
        count = np.zeros(one.limit, int)
        for client, places in enumerate(one.places):
            columns = self._columns(client, layer)
            if places is None or columns is None:
                continue
            count[places] += 1
            kept = columns if end is None else columns[columns < end]
            mass[np.ix_(places, kept)] += self.precisions[client]
            values = one.values[client][:, : len(kept)]
            energy += self.precisions[client] / 2 * float(np.vdot(values, values))
        some = mass > 0
        explained = one.totals[:, :end][some] ** 2 / (self.cost.prior + mass[some])
        energy += float(self.cost.held(mass, one.prices[:end]).sum() - explained.sum() / 2)
        return energy + float(self.owners[count].sum())

    def places(self) -> tuple[tuple[tuple[Array, ...], ...], tuple[Array, ...]]:
        """Return each client's server neurons, without gaps, and the numbers that these had."""
        numbers, renumbered = [], []
        for one in self.layers:
            used = np.zeros(one.limit, bool)
            for places in one.places:
                used[places] = True
            numbers.append(np.flatnonzero(used))
            renumbered.append(np.cumsum(used) - 1)
        neurons = tuple(
            tuple(
                places[one.places[client]]
                for one, places in zip(self.layers, renumbered, strict=True)
            )
            for client in range(len(self.classifiers))
        )
        return neurons, tuple(numbers)


def _add_cells(totals: Array, rows: Array, columns: Array, values: Array) -> None:
    """Add to cells of a matrix; a block's columns lie together, and runs of columns are quick."""
    chosen = totals[rows]
    starts = np.concatenate(([0], np.flatnonzero(np.diff(columns) != 1) + 1, [len(columns)]))
    if 4 * len(starts) < len(columns):
        for start, end in pairwise(starts.tolist()):
            chosen[:, columns[start] : columns[start] + end - start] += values[:, start:end]
    else:
        chosen[:, columns] += values
    totals[rows] = chosen


def _patterns(owned: Array) -> tuple[Array, Array]:
    """Return the different rows of a matrix of booleans, and which of them each row is."""
    if owned.all():  # as where all clients are as wide as the server
        return np.ones((1, owned.shape[1])), np.zeros(len(owned), np.intp)
    packed = np.packbits(owned, axis=1)
    _, first, kind = np.unique(packed, axis=0, return_index=True, return_inverse=True)
    return owned[first].astype(float), kind.reshape(-1)


def _best(joined: Array, opened: Array, free: int, now: Array | None) -> Array:
    """Return which server neuron each of a client's is best, (neurons,); -1 for a new one.

    Where it is `now` stays unless the best is better by more than rounding.
    """
    neurons, there = joined.shape
    gain = joined - opened[:, None]
    fits = there + min(free, neurons)
    if free >= neurons:
        gain = np.minimum(gain, 0.0)
    elif free:
        gain = np.concatenate((gain, np.zeros((neurons, fits - there))), axis=1)
    rows = np.arange(neurons)
    if now is not None:
        old = now >= 0
        standing = np.zeros(neurons)
        standing[old] = joined[rows[old], now[old]] - opened[old]
        if (standing <= gain.min(axis=1, initial=0.0 if free else np.inf)).all():
            return now  # each neuron has its own best place already
    best = np.full(neurons, -1)
    row, column = linear_sum_assignment(gain)
    kept = (column < there) & ((gain[row, column] < 0) | (free < neurons))
    best[row[kept]] = column[kept]
    if now is not None:
        found = gain[row, column].sum()
        scale = np.abs(joined[rows[best >= 0], best[best >= 0]]).sum() + np.abs(opened).sum()
        if found >= standing.sum() - _ROUNDING * scale:
            return now
    return best


def _slots(best: Array, there: Array, before: Array | None, limit: int) -> Array:
    """Return server neurons for an assignment; a new one keeps the place that it had alone."""
    free = np.ones(limit, bool)
    free[there] = False
    new = best < 0
    places = np.full(len(best), -1)
    places[~new] = there[best[~new]]
    if before is not None:
        stays = new & free[before]
        places[stays] = before[stays]
        free[before[stays]] = False
    homeless = places < 0
    places[homeless] = np.flatnonzero(free)[: homeless.sum()]
    return places
