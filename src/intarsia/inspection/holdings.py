"""Who holds what in counts, as a run's folder keeps it (holdings.json): no id, no value.

Samples with the same holders, and of whose labels the same clients know, are one part; so are
features with the same holders. All of it is public: the server knows the same from the schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import numpy as np

from intarsia.core.block import ClientId
from intarsia.inspection.overlap import (
    Parties,
    feature_index,
    holdings_of,
    neighbours,
    owners_of,
    sample_parts,
)

NAME: Final = "holdings.json"
MOST_CLIENTS: Final = 200  # whose parts are told
_MOST_NAMES = 5000  # features that are named


@dataclass(frozen=True)
class Part:
    """Samples, or features, with the same holders."""

    holders: tuple[ClientId, ...]
    entries: int  # how many they are
    labels: tuple[ClientId, ...] = ()  # of samples: who knows their labels
    features: tuple[str, ...] = ()  # their names; () of samples, and of very many features


@dataclass(frozen=True)
class Holdings:
    """Who holds what, part by part, in an order in which neighbours have holders in common."""

    clients: tuple[ClientId, ...]  # the first of them, where they are very many
    samples: tuple[Part, ...]
    features: tuple[Part, ...]
    others: int = 0  # clients beyond these

    @classmethod
    def of(cls, parties: Parties) -> Holdings:
        """Return what clients hold, from a schema or from their blocks.

        Raises
        ------
        FederationError
            If there is no client, or ids are text at one client and numbers at another.
        """
        everyone = holdings_of(parties)
        holdings = dict(islice(everyone.items(), MOST_CLIENTS))
        clients = tuple(holdings)
        index, owners, labels = sample_parts(holdings)
        rows = [
            Part(_named(clients, owners[at]), cell.stop - cell.start, _named(clients, labels[at]))
            for at in neighbours(owners, labels)
            for cell in [index.cells[at]]
        ]
        index = feature_index(holdings)
        owners = owners_of(index, clients)
        named = len(index) <= _MOST_NAMES
        columns = [
            Part(
                _named(clients, owners[at]),
                cell.stop - cell.start,
                features=tuple(map(str, index.ids[cell.start : cell.stop])) if named else (),
            )
            for at in neighbours(owners, np.zeros_like(owners))
            for cell in [index.cells[at]]
        ]
        return cls(clients, tuple(rows), tuple(columns), len(everyone) - len(clients))

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> Holdings:
        """Return what `to_dict` wrote.

        Raises
        ------
        KeyError, TypeError, ValueError
            If it is something else.
        """
        clients = tuple(map(str, found["clients"]))

        def named(places: Any) -> tuple[ClientId, ...]:
            return tuple(clients[int(at)] for at in places)

        rows = [Part(named(a), int(n), named(b)) for a, n, b in found["samples"]]
        columns = [Part(named(a), int(n), (), tuple(map(str, b))) for a, n, b in found["features"]]
        return cls(clients, tuple(rows), tuple(columns), int(found.get("others", 0)))

    def to_dict(self) -> dict[str, Any]:
        """Return JSON types: a part is its holders' places, its entries, and labels or names."""
        place = {name: at for at, name in enumerate(self.clients)}

        def places(names: tuple[ClientId, ...]) -> list[int]:
            return [place[name] for name in names]

        return {
            "clients": list(self.clients),
            "others": self.others,
            "samples": [[places(p.holders), p.entries, places(p.labels)] for p in self.samples],
            "features": [[places(p.holders), p.entries, list(p.features)] for p in self.features],
        }

    def counts(self) -> list[tuple[ClientId, int, int, int]]:
        """Return each client's samples, features and labels."""
        return [
            (
                name,
                sum(one.entries for one in self.samples if name in one.holders),
                sum(one.entries for one in self.features if name in one.holders),
                sum(one.entries for one in self.samples if name in one.labels),
            )
            for name in self.clients
        ]


def _named(clients: tuple[ClientId, ...], held: Any) -> tuple[ClientId, ...]:
    return tuple(clients[at] for at in np.flatnonzero(held))
