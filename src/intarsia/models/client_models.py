"""The models that clients with features of their own end with, one for each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar, TypeVar

from intarsia.core.block import ClientId
from intarsia.errors import nearest

if TYPE_CHECKING:  # it imports scikit-learn, which runs that end with networks do without
    from intarsia.models.linear import LinearRegressor  # noqa: F401  by its name below

M = TypeVar("M")


class ClientModels(Mapping[ClientId, M]):
    """The models of all clients, by client."""

    kind: ClassVar[str] = "model"

    def __init__(self, algorithm: str, models: Mapping[ClientId, M]) -> None:
        self.algorithm = algorithm
        self._models = dict(models)

    def __getitem__(self, client: ClientId) -> M:
        if client not in self._models:
            raise KeyError(
                f"There is no {self.kind} of a client {client!r}; {nearest(client, self._models)}."
            )
        return self._models[client]

    def __iter__(self) -> Iterator[ClientId]:
        return iter(self._models)

    def __len__(self) -> int:
        return len(self._models)


class LinearModels(ClientModels["LinearRegressor"]):
    """The linear models of all clients, by client."""
