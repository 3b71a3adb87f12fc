"""The linear models that clients with features of their own end with, one for each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from intarsia.core.block import ClientId
from intarsia.errors import nearest

if TYPE_CHECKING:  # it imports scikit-learn, which runs that end with networks do without
    from intarsia.models.linear import LinearRegressor


class LinearModels(Mapping[ClientId, "LinearRegressor"]):
    """The models of all clients, by client."""

    def __init__(self, algorithm: str, models: Mapping[ClientId, LinearRegressor]) -> None:
        self.algorithm = algorithm
        self._models = dict(models)

    def __getitem__(self, client: ClientId) -> LinearRegressor:
        if client not in self._models:
            raise KeyError(
                f"There is no model of a client {client!r}; {nearest(client, self._models)}."
            )
        return self._models[client]

    def __iter__(self) -> Iterator[ClientId]:
        return iter(self._models)

    def __len__(self) -> int:
        return len(self._models)
