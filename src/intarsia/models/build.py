"""Build trained models, with scikit-learn's interface, from the states of an algorithm."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from intarsia.core.algorithm import FinalResult
from intarsia.core.block import INTERCEPT, Array, ClientId
from intarsia.core.schema import Schema
from intarsia.data.labels import as_in_tables
from intarsia.data.parsing import numbered
from intarsia.maths.linear.losses import SHAPES, shape_of
from intarsia.models.linear_parameters import LinearParameters, restore
from intarsia.protocols.preprocessing.preparation import Preparation

if TYPE_CHECKING:
    from intarsia.algorithms.networks.architecture import Arrays
    from intarsia.models.networks import ClientNetwork, Networks
    from intarsia.models.serialization import LinearModels

V = TypeVar("V")


class OnDemand(Mapping[ClientId, V]):
    """What is made for a client each time when it is asked for, and kept nowhere."""

    def __init__(self, clients: Collection[ClientId], make: Callable[[ClientId], V]) -> None:
        self._clients, self._make = dict.fromkeys(clients), make

    def __getitem__(self, client: ClientId) -> V:
        if client not in self._clients:
            raise KeyError(client)
        return self._make(client)

    def __iter__(self) -> Iterator[ClientId]:
        return iter(self._clients)

    def __len__(self) -> int:
        return len(self._clients)

    def __contains__(self, client: object) -> bool:
        return client in self._clients


def linear_model(
    schema: Schema, conclusion: FinalResult, scaling: Mapping[ClientId, Preparation], options: Any
) -> LinearParameters | None:
    """Return the model that was revealed, on the features as the clients' tables have them.

    It has the features of the clients in `scaling`: all of them, or a client's own.
    """
    if conclusion.weights is None:
        return None
    place = {str(name): at for at, name in enumerate(schema.features.ids)}
    centres, scales, means = _by_name(schema, scaling)
    untrained = _untrained(schema, scaling, scales)
    # a feature that is constant has no weight: rounding may have left one, for new tables to count
    weights = {
        name: conclusion.weights[:, place[name]] * (scales[name] > 0)
        for name in _in_tables(schema, scaling)
        if name not in untrained
    }
    errors = _errors(conclusion, place, list(weights), scales)
    scales = {name: scale or 1.0 for name, scale in scales.items()}
    intercept = np.zeros(len(conclusion.weights))
    if INTERCEPT in place:
        intercept = conclusion.weights[:, place[INTERCEPT]] / scales[INTERCEPT]
    numbers = schema.labels.task == "regression"
    shaped = numbers and options.loss in SHAPES
    coef, constant, centre = restore(weights, centres, scales, intercept)
    mean = np.array([means[name] for name in weights], np.float64)
    gap = conclusion.info.gap_relative
    return LinearParameters(
        loss=options.loss,
        regularisation=options.regularisation,
        coef=coef,
        intercept=constant,
        means=mean,
        features=list(weights),
        classes=None if numbers else np.asarray(as_in_tables(schema.labels.classes)),
        gap=math.nan if gap is None else gap,
        shape={SHAPES[options.loss]: shape_of(options)} if shaped else {},
        levels=_levels(schema, scaling, list(weights)),
        errors=errors,
        centres=_unless_alike(centre, mean),
    )


def _errors(
    conclusion: FinalResult,
    place: Mapping[str, int],
    names: Sequence[str],
    scales: Mapping[str, float],
) -> dict[str, Array]:
    """Return the errors of some features' weights in the units of their columns."""
    variation = conclusion.errors
    if variation is None:
        return {}

    def errors(*some: str) -> Array:
        # a feature that is constant has no direction in which samples vary, and no error
        factor = np.array([1 / scales[name] if scales[name] else np.nan for name in some])
        columns = np.array([place[name] for name in some], np.intp)
        found: Array = variation[:, columns] * factor
        return found

    found: dict[str, Array | None] = {
        "errors": errors(*names),
        "degrees_of_freedom": conclusion.degrees_of_freedom,
    }
    if INTERCEPT in place:
        found["intercept_errors"] = errors(INTERCEPT)[:, 0]
        found["zero_errors"] = conclusion.zero_errors
    return {name: values for name, values in found.items() if values is not None}


def client_models(
    algorithm: str,
    schema: Schema,
    weights: Mapping[ClientId, tuple[Array, float]],
    scaling: Mapping[ClientId, Preparation],
) -> LinearModels:
    """Return the clients' own linear models, on the features as their tables have them."""
    # here: it imports scikit-learn
    from intarsia.models.linear import LinearRegressor
    from intarsia.models.serialization import LinearModels

    found: dict[ClientId, LinearRegressor] = {}
    for client, (own, intercept) in weights.items():
        weight = dict(zip(_names(schema, client), own.tolist(), strict=True))
        centres, scales, means = _by_name(schema, {client: scaling[client]})
        untrained = _untrained(schema, [client], scales)
        found[client] = LinearRegressor.from_weights(
            {
                name: weight[name]
                for name in _in_tables(schema, [client], sort=False)
                if name not in untrained
            },
            means=centres,
            # a feature that is constant has no direction in which samples vary, and no weight
            scales={name: scale or 1.0 for name, scale in scales.items()},
            intercept=intercept + weight.get(INTERCEPT, 0.0) / scales.get(INTERCEPT, 1.0),
            regularisation=0.0,
        )
        own_model = found[client]
        own_model.levels_ = _levels(schema, [client], own_model.feature_names_in_.tolist())
        mean = np.array([means[str(name)] for name in own_model.feature_names_in_], np.float64)
        own_model.centres_, own_model.means_ = _unless_alike(own_model.means_, mean), mean
    return LinearModels(algorithm, found)


def client_networks(
    algorithm: str,
    schema: Schema,
    architecture: Callable[[ClientId | None], Any],
    parameters: Mapping[ClientId, Arrays],
    scaling: Mapping[ClientId, Preparation],
    server: Arrays | None = None,
) -> Networks:
    """Return the clients' networks and the server's, on the features as the tables have them.

    `architecture` gives that of a client, or of the server (None). Where the parameters are made
    on demand, because they fill more memory than they may, so are the networks.
    """
    # here: it imports torch
    from intarsia.models.networks import ClientNetwork, Networks

    def network(client: ClientId) -> ClientNetwork:
        names = _names(schema, client)
        kept = np.array([name != INTERCEPT for name in names], bool)
        made_of = architecture(client)
        # an array without names is read in the order of the table: it is that of the array that
        # trained
        features = _in_tables(schema, [client], sort=False)
        place = {name: at for at, name in enumerate(names)}
        order = np.array([place[name] for name in features], np.intp)
        own = made_of.reordered(parameters[client], ~kept, np.cumsum(kept)[order] - 1)
        return ClientNetwork(
            labels=schema.labels,
            features=features,
            means=_average(scaling[client])[order],
            scales=scaling[client].scale[order],
            architecture=made_of.grown(own),
            parameters=own,
            levels_=_levels(schema, [client], features),
            centres_=_unless_alike(scaling[client].mean[order], _average(scaling[client])[order]),
        )

    found: Mapping[ClientId, ClientNetwork] = OnDemand(parameters, network)
    if not isinstance(parameters, OnDemand):
        found = dict(found)
    if server is None:
        return Networks(algorithm, found)
    return Networks(algorithm, found, server_network(schema, architecture(None), server, scaling))


def server_network(
    schema: Schema, architecture: Any, parameters: Arrays, scaling: Mapping[ClientId, Preparation]
) -> ClientNetwork:
    """Return the server's network of all columns, on the features as the tables have them."""
    from intarsia.models.networks import ClientNetwork  # here: it imports torch

    names = _in_tables(schema, scaling)
    centres, scales, means = (
        np.array([own[name] for name in names]) for own in _by_name(schema, scaling)
    )
    return ClientNetwork(
        labels=schema.labels,
        features=names,
        means=means,
        scales=scales,
        architecture=architecture.grown(parameters),
        parameters=parameters,
        levels_=_levels(schema, scaling, names),
        centres_=_unless_alike(centres, means),
    )


def _names(schema: Schema, client: ClientId) -> list[str]:
    """Return a client's features in the order of the schema."""
    return [str(name) for name in schema.features.ids[schema.features.own(client)]]


def _untrained(
    schema: Schema, clients: Iterable[ClientId], scales: Mapping[str, float]
) -> set[str]:
    """Return the levels of categories that no training row had; not where it had one or none.

    A model that lacks them takes them for new ones.
    """
    found: set[str] = set()
    for client in clients:
        for column, levels in schema.holdings[client].levels.items():
            names = [f"{column}={level}" for level in levels]
            if any(scales[name] > 0 for name in names):
                found.update(name for name in names if scales[name] == 0)
    return found


def _levels(
    schema: Schema, clients: Iterable[ClientId], features: Sequence[str]
) -> dict[str, tuple[str, ...]]:
    """Return the levels of the clients' categorical columns that are among some features."""
    origin = {
        f"{column}={level}": (column, level)
        for client in clients
        for column, own in schema.holdings[client].levels.items()
        for level in own
    }
    found: dict[str, list[str]] = {}
    for column, level in (origin[name] for name in features if name in origin):
        found.setdefault(column, []).append(level)
    return {column: tuple(own) for column, own in found.items()}


def _by_name(
    schema: Schema, scaling: Mapping[ClientId, Preparation]
) -> tuple[dict[str, float], dict[str, float], dict[str, float]]:
    """Return by name what is taken off some clients' features, their scales and their means."""
    found: tuple[dict[str, float], ...] = ({}, {}, {})
    for client, own in scaling.items():
        for one, values in zip(found, (own.mean, own.scale, _average(own)), strict=True):
            one.update(zip(_names(schema, client), values.tolist(), strict=True))
    centres, scales, means = found
    return centres, scales, means


def _average(scaling: Preparation) -> Array:
    """Return what missing values of a client's features count as, (features,)."""
    return scaling.mean if scaling.average is None else scaling.average


def _unless_alike(centres: Array, means: Array) -> Array | None:
    """Return what training took off, None where it is the means."""
    return None if np.array_equal(centres, means) else centres


def _in_tables(
    schema: Schema, clients: Iterable[ClientId], *, sort: bool = True
) -> tuple[str, ...]:
    """Return the features of some clients in the order that their tables have them.

    It is that of the first table, and after it what each of the others adds. With `sort` names that
    are numbers, or end in numbers alike, go by these where no table has them otherwise: what was
    cut into blocks of columns comes to its old order.
    """
    own = [
        [name for name in schema.holdings[client].features if name != INTERCEPT]
        for client in clients
    ]
    number = numbered({name for names in own for name in names}) if sort else None
    if number is not None:
        ordered = sorted(number, key=number.__getitem__)
        place = {name: at for at, name in enumerate(ordered)}
        if all(np.all(np.diff([place[name] for name in names]) > 0) for names in own):
            return tuple(ordered)
    return tuple(dict.fromkeys(name for names in own for name in names))
