"""Clusters of clients, level by level: as data were dealt out, and as an algorithm found them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from intarsia.core.block import ClientId
from intarsia.errors import FederationError, listed


@dataclass(frozen=True)
class Structure:
    """Which clients form a group, at each of some levels.

    Groups are numbers that mean nothing beyond their level. None: the client has no part in the
    level, and so is in a group with nobody.

    Raises
    ------
    FederationError
        If a level does not have one group for each client.
    """

    clients: tuple[ClientId, ...]
    levels: Mapping[str, tuple[int | None, ...]]  # name of a level -> each client's group
    words: Mapping[str, str] = field(default_factory=dict[str, str])  # name -> what the level is

    def __post_init__(self) -> None:
        for name, groups in self.levels.items():
            if len(groups) != len(self.clients):
                raise FederationError(
                    f"The level {name!r} has groups of {len(groups)} clients and there are "
                    f"{len(self.clients)}; give one for each, None for those without a part in it."
                )

    def among(self, clients: tuple[ClientId, ...]) -> Structure:
        """Return the structure of some of the clients, in the given order.

        Raises
        ------
        FederationError
            If it does not have one of them.
        """
        place = {name: at for at, name in enumerate(self.clients)}
        unknown = [name for name in clients if name not in place]
        if unknown:
            raise FederationError(
                f"The structure has no client {unknown[0]!r}; it has {listed(self.clients)}."
            )
        return Structure(
            clients,
            {
                level: tuple(groups[place[name]] for name in clients)
                for level, groups in self.levels.items()
            },
            self.words,
        )

    def said(self, level: str) -> str:
        """Return a level's name, and what it is where that is known."""
        word = self.words.get(level)
        return level if word is None else f"{level} ({word})"


@dataclass(frozen=True)
class Structures:
    """The structure that a simulation has, and the one that an algorithm found."""

    truth: Structure | None = None  # None: not known
    learned: Structure | None = None  # None: the algorithm looks for none

    @property
    def agreement(self) -> dict[str, dict[str, float]]:
        """Return how alike each true level and each learned one are; {} where one is not known."""
        return self._agreement(members=False)

    @property
    def agreement_of_members(self) -> dict[str, dict[str, float]]:
        """Return the same of those clients alone that have a part in both levels."""
        return self._agreement(members=True)

    def _agreement(self, *, members: bool) -> dict[str, dict[str, float]]:
        if self.truth is None or self.learned is None:
            return {}
        return agreement(self.truth, self.learned, members=members)


def of_models(
    clients: tuple[ClientId, ...],
    levels: Sequence[Mapping[ClientId, int]],
    words: Sequence[str] = (),
) -> Structure | None:
    """Return the structure of clients by the model that each has at each level, None without one.

    A client that has no model at a level is left out there. `words` say what each level is.
    """
    if not levels:
        return None
    return Structure(
        clients,
        {
            f"level {at}": tuple(models.get(name) for name in clients)
            for at, models in enumerate(levels, 1)
        },
        {f"level {at}": word for at, word in enumerate(words, 1)},
    )


def agreement(
    truth: Structure, learned: Structure, *, members: bool = False
) -> dict[str, dict[str, float]]:
    """Return the adjusted Rand index of each true level with each learned one.

    It is 1 where both group the clients alike and 0 on average where one is drawn at random. A
    client without a part in a level is a group of its own there; or, with `members`, left out.
    Levels of fewer than two such clients are left out.

    Notes
    -----
    Hubert and Arabie (1985).

    Raises
    ------
    FederationError
        If the two are not of the same clients.
    """
    if set(truth.clients) != set(learned.clients):
        raise FederationError(
            f"The true structure is of {listed(truth.clients)} and the learned one of "
            f"{listed(learned.clients)}; compare structures of the same clients."
        )
    from sklearn.metrics import adjusted_rand_score  # here: it takes a second to import

    learned = learned.among(truth.clients)
    found: dict[str, dict[str, float]] = {}
    for true_name, groups in truth.levels.items():
        found[true_name] = {}
        for name, own in learned.levels.items():
            pairs = list(zip(groups, own, strict=True))
            if members:
                pairs = [(a, b) for a, b in pairs if a is not None and b is not None]
            else:
                pairs = list(zip(_numbered(groups), _numbered(own), strict=True))
            if len(pairs) > 1:
                found[true_name][name] = float(adjusted_rand_score(*zip(*pairs, strict=True)))
    return found


def _numbered(groups: tuple[int | None, ...]) -> list[int]:
    """Return groups with a number of its own for each client that has none."""
    free = 1 + max((group for group in groups if group is not None), default=-1)
    return [free + at if group is None else group for at, group in enumerate(groups)]
