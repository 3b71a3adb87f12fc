"""The networks that clients with features of their own end with: each predicts on its own columns.

A network takes the values as the client's table has them: mean and scale of each feature are its
own. Features are found by name, and those that are missing count, as for `models.linear`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse
from scipy.special import expit

from intarsia.algorithms.networks.architecture import Arrays, TrainedArchitecture
from intarsia.core.block import Array, Block, ClientId, Labels
from intarsia.core.text_tables import Part
from intarsia.data.labels import as_in_tables
from intarsia.errors import ExperimentError
from intarsia.models.feature_mapping import Levels, Table, known_columns
from intarsia.models.serialization import ClientModels
from intarsia.protocols.untrained_levels import without_untrained

_MOST_CLASSES = 6  # that the one line of a network names


@dataclass(frozen=True, eq=False, repr=False)
class ClientNetwork:
    """One client's network, with the methods and attributes of scikit-learn's estimators.

    It is a classifier, or a regressor where the labels are numbers.
    """

    labels: Labels
    features: tuple[str, ...]
    means: Array  # (features,) the value of a missing entry
    scales: Array  # (features,) 0: the feature was constant in training and counts for nothing
    architecture: TrainedArchitecture
    parameters: Arrays  # by their dotted names; what all clients share is among them
    levels_: Levels = None  # of categorical columns; None: an older version did not record them
    # (features,) what training took off: 0 of what is not centred; None: the means
    centres_: Array | None = None

    def __repr__(self) -> str:
        columns = f"{self.n_features_in_:,} columns"
        names = ", ".join(map(repr, self.labels.classes[:_MOST_CLASSES]))
        more = ", …" if len(self.labels.classes) > _MOST_CLASSES else ""
        aim = "numbers" if self.labels.task == "regression" else f"classes {names}{more}"
        count = sum(int(np.size(one)) for one in self.parameters.values())
        return f"<ClientNetwork: {columns}, {aim}, {count:,} parameters>"

    @property
    def classes_(self) -> NDArray[Any]:
        """Return the class labels; with two, positive scores mean the second."""
        return np.asarray(as_in_tables(self.labels.classes))

    @property
    def centres(self) -> Array:
        """Return what is taken off each feature, (features,)."""
        return self.means if self.centres_ is None else self.centres_

    @property
    def trained_levels(self) -> Levels:
        """Return the levels of categorical columns that training had, by which tables are read."""
        if self.levels_ is None:
            return None
        scale = dict(zip(self.features, self.scales.tolist(), strict=True))
        found = dict(self.levels_)
        for column, levels in self.levels_.items():
            had = tuple(level for level in levels if scale[f"{column}={level}"] > 0)
            found[column] = had or levels
        return found

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
        found = self._predict(X)
        return found[0] if len(found) == 1 else found.T

    def transform(self, X: Table) -> Array:
        """Return the points of the common latent space, (samples, k).

        Raises
        ------
        ExperimentError
            If the network is a module of the user's own: only they know its latent space.
        """
        return self.architecture.embed(self.parameters, self.standardised(X))

    def predict(self, X: Table) -> NDArray[Any]:
        """Return the class of each sample, or the number, (samples,)."""
        if self.labels.task == "regression":
            return np.asarray(self._predict(X)[0])
        found = self.decision_function(X)
        best = (found > 0).astype(np.intp) if found.ndim == 1 else found.argmax(axis=1)
        return np.asarray(self.classes_[best])

    def predict_proba(self, X: Table) -> Array:
        """Return the probability of each class, (samples, classes)."""
        found = self.decision_function(X)
        return np.stack([expit(-found), expit(found)], axis=1) if found.ndim == 1 else expit(found)

    def score(self, X: Table, y: Sequence[Any], sample_weight: Array | None = None) -> float:
        """Return the accuracy on samples whose labels y are known, or R² where they are numbers."""
        from sklearn.metrics import accuracy_score, r2_score  # here: it takes a second to import

        how = r2_score if self.labels.task == "regression" else accuracy_score
        return float(how(y, self.predict(X), sample_weight=sample_weight))

    def first_layer(self, X: Table | None, blocks: Sequence[str]) -> dict[str, Array]:
        """Return what some feature blocks add to the first layer, each (units, samples).

        None: one sample whose values are the means.

        Raises
        ------
        ExperimentError
            If the network is not one over feature blocks.
        """
        means = Block(np.arange(1), self.features, self.means[None])
        table = self.standardised(means if X is None else X)
        return self.architecture.first_layer(self.parameters, blocks, table)

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
        return self.architecture.scores_of(self.parameters, total)

    def _predict(self, table: Table) -> Array:
        """Return the log-odds of the classes, or the numbers, (outputs, samples)."""
        return self.architecture.predict(self.parameters, self.standardised(table), self.labels)

    def standardised(self, table: Table) -> Block:
        """Return a table's values as the network takes them, on all of its features."""
        known, values, gaps = known_columns(table, list(self.features), self.levels_)
        x = values.toarray() if issparse(values) else values
        whole = np.full((len(x), len(self.features)), np.nan)
        whole[:, known] = x
        for columns, rows in gaps:
            whole[np.ix_(rows, known[columns])] = np.nan
        positive = self.scales > 0
        own = Block(np.arange(len(x)), self.features, whole, levels=self.levels_ or {})
        whole = without_untrained(own, positive).x
        whole = np.where(np.isnan(whole), self.means, whole)
        inverse = np.divide(1.0, self.scales, out=np.zeros(len(self.scales)), where=positive)
        return Block(np.arange(len(x)), self.features, (whole - self.centres) * inverse)


class Networks(ClientModels[ClientNetwork]):
    """The networks of all clients, by client; `server` is the server's, where it has one."""

    kind = "network"

    def __init__(
        self,
        algorithm: str,
        networks: Mapping[ClientId, ClientNetwork],
        server: ClientNetwork | None = None,
    ) -> None:
        super().__init__(algorithm, networks)
        self.server = server

    def parts(self) -> list[Part]:
        """Return what shows the networks: whose they are, and of how many features."""
        server = self.server
        own = [f"the server's, of {server.n_features_in_:,} features"] if server else []
        return [*super().parts(), *own]

    @property
    def labels(self) -> Labels:
        """Return what the labels mean, the same for all clients."""
        return self.any.labels

    @property
    def any(self) -> ClientNetwork:
        """Return one of the networks: the server's, where the clients' are with them alone."""
        found = next(iter(self._models.values()), self.server)
        assert found is not None
        return found

    @property
    def shared(self) -> Arrays:
        """Return the parameters that are the same at all clients of several."""
        if len(self._models) < 2:
            return {}
        first, *others = self._models
        found = dict(self._models[first].parameters)
        for other in others:
            own = self._models[other].parameters  # of one at a time: all may be beyond memory
            found = {
                name: one
                for name, one in found.items()
                if name in own and np.array_equal(own[name], one)
            }
        return found
