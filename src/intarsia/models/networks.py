"""The networks that clients with features of their own end with: each predicts on its own columns.

A network knows its features by name and takes the values as the client's table has them: mean and
scale of each are its own. A column that a table lacks, and NaN, count as the feature's mean (0
where training did not centre it); columns that the network does not know are left aside. An absent
entry of a sparse table is 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse
from scipy.special import expit

from intarsia.algorithms.hyfem import network as block_network
from intarsia.algorithms.hyfem.network import Composition
from intarsia.algorithms.networks import user_modules
from intarsia.algorithms.networks.architecture import Architecture
from intarsia.algorithms.networks.client_network import Arrays, Built, embedded, scores
from intarsia.algorithms.networks.targets import odds, said
from intarsia.algorithms.networks.user_modules import Named
from intarsia.core.block import Array, Block, ClientId, Labels
from intarsia.data.labels import as_in_tables
from intarsia.errors import ExperimentError, nearest
from intarsia.models.feature_mapping import Table, known_columns


@dataclass(frozen=True)
class _Built:
    """What a network of ours is made of."""

    architecture: Architecture


@dataclass(frozen=True, eq=False)
class ClientNetwork:
    """One client's network, with the methods and attributes of scikit-learn's estimators.

    It is a classifier, or a regressor where the labels are numbers.
    """

    labels: Labels
    features: tuple[str, ...]
    means: Array  # (features,) the value of a missing entry
    scales: Array  # (features,) 0: the feature was constant in training and counts for nothing
    architecture: Architecture | Named | Composition
    parameters: Arrays  # by their dotted names; what all clients share is among them

    @property
    def classes_(self) -> NDArray[Any]:
        """Return the class labels; with two, positive scores mean the second."""
        return np.asarray(as_in_tables(self.labels.classes))

    @property
    def feature_names_in_(self) -> NDArray[Any]:
        """Return the names of the features."""
        return np.array(self.features, object)

    @property
    def n_features_in_(self) -> int:
        """Return the number of features."""
        return len(self.features)

    def decision_function(self, X: Table) -> Array:
        """Return the log-odds: (samples,) of the second of two classes, or (samples, classes).

        Raises
        ------
        ExperimentError
            If the labels are numbers, which have no odds.
        """
        if self.labels.task == "regression":
            raise ExperimentError("The network predicts numbers, which have no odds; use predict.")
        found = self._said(X)
        return found[0] if len(found) == 1 else found.T

    def transform(self, X: Table) -> Array:
        """Return the points of the common latent space, (samples, k).

        Raises
        ------
        ExperimentError
            If the network is a module of the user's own: only they know its latent space.
        """
        return embedded(self._weights(), self._built(), self._standardised(X))

    def predict(self, X: Table) -> NDArray[Any]:
        """Return the class of each sample, or the number, (samples,)."""
        if self.labels.task == "regression":
            numbers: Array = self._said(X)[0]
            return numbers
        found = self.decision_function(X)
        best = (found > 0).astype(np.intp) if found.ndim == 1 else found.argmax(axis=1)
        return np.asarray(self.classes_[best])

    def predict_proba(self, X: Table) -> Array:
        """Return the probability of each class, (samples, classes)."""
        found = self.decision_function(X)
        return np.stack([expit(-found), expit(found)], axis=1) if found.ndim == 1 else expit(found)

    def first_layer(self, X: Table | None, blocks: Sequence[str]) -> dict[str, Array]:
        """Return what some feature blocks add to the first layer, each (units, samples).

        None: one sample whose values are the means.

        Raises
        ------
        ExperimentError
            If the network is not one over feature blocks.
        """
        made_of = self._composition()
        whole = block_network.numbered(made_of, self.parameters)
        columns = block_network.parts_of(made_of, whole).columns
        own: dict[str, NDArray[Any]] = {}
        for name, values in whole.items():
            part, slot, *inner = name.split(".")
            if part != "extractors":
                own[name] = values
            elif made_of.blocks[int(slot)] in blocks:
                place = list(blocks).index(made_of.blocks[int(slot)])
                own[".".join([part, str(place), *inner])] = values
        means = Block(np.arange(1), self.features, self.means[None])
        table = self._standardised(means if X is None else X)
        return block_network.first_layer(made_of.of(blocks, 1.0), own, columns, table)

    @property
    def first_units(self) -> int:
        """Return the units of the first layer of a network over feature blocks."""
        return len(self.parameters["classifier.0.bias"])

    def scores_of(self, total: Array) -> Array:
        """Return the log-odds, (outputs, samples), from the sum over all blocks of `first_layer`.

        Raises
        ------
        ExperimentError
            If the network is not one over feature blocks.
        """
        made_of = self._composition()
        rest = block_network.parts_of(
            made_of, block_network.numbered(made_of, self.parameters)
        ).rest
        units = (*made_of.hidden, made_of.outputs)
        return odds(block_network.from_first_layer(rest, units, made_of.scale * total))

    def _composition(self) -> Composition:
        if not isinstance(self.architecture, Composition):
            raise ExperimentError(
                "The network reads all its columns at once and adds up no feature blocks; predict "
                "a table that has them all."
            )
        return self.architecture

    def _said(self, table: Table) -> Array:
        """Return the log-odds of the classes, or the numbers, (outputs, samples)."""
        block = self._standardised(table)
        if isinstance(self.architecture, Named):
            own, classes = self.architecture.module, max(2, len(self.labels.classes))
            return odds(user_modules.scores(own, self.parameters, block, classes))
        if isinstance(self.architecture, Composition):
            numbered = block_network.numbered(self.architecture, self.parameters)
            return odds(block_network.scores(self.architecture, numbered, block))
        centre, spread = (
            float(self.parameters.get(f"labels.{name}", other))
            for name, other in (("centre", 0.0), ("spread", 1.0))
        )
        return said(scores(self._weights(), self._built(), block), centre, spread)

    def _weights(self) -> Arrays:
        """Return the parameters without what they say of the labels."""
        return {
            name: own for name, own in self.parameters.items() if not name.startswith("labels.")
        }

    def _built(self) -> Built:
        if isinstance(self.architecture, Composition):
            raise ExperimentError(
                f"The network is one over the feature blocks {', '.join(self.architecture.blocks)},"
                " which have a space each; a common one have the networks of flic."
            )
        if isinstance(self.architecture, Named):
            raise ExperimentError(
                f"The network is {self.architecture.module}, of which only you know the latent "
                "space; build it and load parameters into it."
            )
        return _Built(self.architecture)

    def _standardised(self, table: Table) -> Block:
        known, values = known_columns(table, list(self.features))
        x = values.toarray() if issparse(values) else values
        scales = self.scales[known]
        inverse = np.divide(1.0, scales, out=np.zeros(len(known)), where=scales > 0)
        x = (x - self.means[known]) * inverse
        whole = np.zeros((len(x), len(self.features)))
        whole[:, known] = np.nan_to_num(x)
        return Block(np.arange(len(x)), self.features, whole)


class Networks(Mapping[ClientId, ClientNetwork]):
    """The networks of all clients, by client; `server` is the server's, where it has one."""

    def __init__(
        self,
        algorithm: str,
        networks: Mapping[ClientId, ClientNetwork],
        server: ClientNetwork | None = None,
    ) -> None:
        self.algorithm = algorithm
        self.server = server
        self._networks = dict(networks)

    def __getitem__(self, client: ClientId) -> ClientNetwork:
        if client not in self._networks:
            raise KeyError(
                f"There is no network of a client {client!r}; {nearest(client, self._networks)}."
            )
        return self._networks[client]

    def __iter__(self) -> Iterator[ClientId]:
        return iter(self._networks)

    def __len__(self) -> int:
        return len(self._networks)

    @property
    def labels(self) -> Labels:
        """Return what the labels mean, the same for all clients."""
        return self.any.labels

    @property
    def any(self) -> ClientNetwork:
        """Return one of the networks: the server's, where the clients' are with them alone."""
        found = next(iter(self._networks.values()), self.server)
        assert found is not None
        return found

    @property
    def shared(self) -> Arrays:
        """Return the parameters that are the same at all clients of several."""
        if len(self._networks) < 2:
            return {}
        first, *others = [network.parameters for network in self._networks.values()]
        return {
            name: values
            for name, values in first.items()
            if all(name in one and np.array_equal(one[name], values) for one in others)
        }


def without_constant(parameters: Arrays, constant: NDArray[np.bool_]) -> Arrays:
    """Return a network that has the weights of features that are always 1 in its first bias."""
    if not constant.any():
        return parameters
    found = dict(parameters)
    for first in _first_layers(parameters):
        weight = parameters[f"{first}.weight"]
        found[f"{first}.weight"] = np.ascontiguousarray(weight[:, ~constant])
        found[f"{first}.bias"] = parameters[f"{first}.bias"] + weight[:, constant].sum(axis=1)
    return found


def in_order(parameters: Arrays, order: NDArray[np.intp]) -> Arrays:
    """Return a network that reads its features in another order: first that of `order[0]`, ….

    One that reads pictures knows its pixels by their names, and stays as it is.
    """
    firsts = {f"{first}.weight" for first in _first_layers(parameters)}
    return {
        name: np.ascontiguousarray(values[:, order]) if name in firsts else values
        for name, values in parameters.items()
    }


def _first_layers(parameters: Arrays) -> list[str]:
    """Return the names of the layers that read the features, one for each level that does."""
    found: list[str] = []
    inner = any(re.match(r"(levels\.\d+\.)?embedding\.", name) for name in parameters)
    for name in parameters:
        whole = re.fullmatch(r"(levels\.\d+\.)?classifier\.bias", name)
        if whole is None:
            continue
        front = whole[1] or ""  # of one level of several
        # behind an embedding, that of level 1 too; else from the layer on, if there is one
        layers = ("embedding.0",) if inner else ("shared.0", "classifier")
        first = next(
            (f"{front}{one}" for one in layers if f"{front}{one}.weight" in parameters), ""
        )
        if first:
            found.append(first)
    return found
