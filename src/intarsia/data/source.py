"""The description of one client's table: where it is, and what its columns mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal

from intarsia.core.block import ClientId
from intarsia.errors import ExperimentError, TableError, listed, nearest

Format = Literal["csv", "parquet", "libsvm", "npz", "sql"]


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where one client's table is, and what its columns mean.

    Raises
    ------
    ExperimentError
        If two settings contradict each other.
    """

    name: ClientId
    path: str | None = None
    format: Format | None = None  # None: by the ending of the path
    separator: str | None = None  # csv; None: "," (tab for .tsv), or what divides the header
    url: str | None = None  # sql: an SQLAlchemy url
    query: str | None = None  # sql
    id: str | None = None  # None: the rows belong to this client alone; libsvm, npz: "row"
    id_type: Literal["integer", "text"] | None = None  # None: integer if every id is a whole number
    label: str | None = None  # None: a client without labels (libsvm, npz: those of the file)
    features: tuple[str, ...] | None = None  # None: every other column
    exclude: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    missing: tuple[str, ...] = ("?", "")
    # feature block -> its columns, or patterns of their names such as "lab_*"
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    units: Mapping[str, str] = field(default_factory=dict[str, str])  # feature column -> its unit

    def __post_init__(self) -> None:
        if not self.name:
            raise ExperimentError("A client's name is ''; give every client a name.")
        where = f"Client {self.name!r}"
        if self.id is not None and self.id == self.label:
            raise ExperimentError(
                f"{where}: id and label are both {self.id!r}; name two different columns."
            )
        if self.separator is not None and len(self.separator.encode()) != 1:
            raise ExperimentError(
                f'{where}: separator is {self.separator!r}; set one character, such as ";".'
            )
        for name in self.exclude:
            if self.features is not None and name in self.features:
                raise ExperimentError(
                    f"{where}: column {name!r} is in features and in exclude; "
                    "remove it from one of them."
                )
        owner: dict[str, str] = {}
        for group, names in self.groups.items():
            for name in names:
                if owner.setdefault(name, group) != group:
                    raise ExperimentError(
                        f"{where}: column {name!r} is in the groups {owner[name]!r} and {group!r}; "
                        "remove it from one of them."
                    )

    @property
    def where(self) -> str:
        """Return how an error names this source."""
        # neither a login nor what follows "?" may come to stand in an error
        place = self.path or (self.url.split("@")[-1].split("?")[0] if self.url else None)
        return f"Client {self.name!r}" + (f" ({place})" if place else "")

    def error(self, problem: str, advice: str, without_settings: str = "") -> TableError:
        """Return the error that this source's table has a problem."""
        return TableError(problem, advice, where=self.where, without_settings=without_settings)


def check_names(names: Sequence[str], source: Source) -> None:
    """Raise if two columns have one name, or one has none.

    Raises
    ------
    TableError
        Always with the column.
    """
    seen: set[str] = set()
    for position, name in enumerate(names):
        if not name.strip():
            raise source.error(
                f"the name of column {position + 1} is {name!r}",
                "give every column a name in the header line",
            )
        if name in seen:
            raise source.error(f"two columns have the name {name!r}", "rename one of them")
        seen.add(name)


def feature_columns(
    names: Sequence[str], source: Source, *, labelled: bool = False
) -> tuple[str, ...]:
    """Return the feature columns of a table with these columns; `labelled`: labels are beside them.

    Raises
    ------
    TableError
        If the source names a column that the table does not have, or no feature is left at a client
        without labels.
    """
    asked = {
        "id": () if source.id is None else (source.id,),
        "label": () if source.label is None else (source.label,),
        "features": source.features or (),
        "exclude": source.exclude,
        "categorical": source.categorical,
        **{
            f"groups.{group}": [name for name in some if not _is_pattern(name, names)]
            for group, some in source.groups.items()
        },
        "units": tuple(source.units),
    }
    known = set(names)
    for key, some in asked.items():
        for name in some:
            if name not in known:
                raise source.error(
                    f"{key} names the column {name!r}, which the table does not have",
                    f"{nearest(name, names)}",
                )
            if key not in ("id", "label", "exclude") and name in (source.id, source.label):
                role = "id" if name == source.id else "label"
                raise source.error(
                    f"{key} names the {role} column {name!r}",
                    f"a feature is neither id nor label: remove it from {key}",
                )
    left_out = {*source.exclude, source.id, source.label}
    wanted: Sequence[str] = names if source.features is None else source.features
    chosen = tuple(name for name in wanted if name not in left_out)
    if len(set(chosen)) < len(chosen):
        twice = next(name for name in chosen if chosen.count(name) > 1)
        raise source.error(f"features lists {twice!r} more than once", "remove the repeated entry")
    if not chosen and source.label is None and not labelled:
        raise source.error(
            f"no feature column is left (columns: {listed(names)})",
            "a client without labels needs at least one: add a column to features, or name its "
            "label column",
        )
    return chosen


def feature_groups(chosen: Sequence[str], source: Source) -> dict[str, tuple[str, ...]]:
    """Return the feature blocks; columns that no group names are in one named after the client.

    Raises
    ------
    TableError
        If a group names a column that is not a feature, a pattern fits none, or a column is in two
        groups.
    """
    groups: dict[str, tuple[str, ...]] = {}
    owner: dict[str, str] = {}
    for group, names in source.groups.items():
        found = [name for given in names for name in _meant(given, group, chosen, source)]
        groups[group] = tuple(dict.fromkeys(found))
        for name in groups[group]:
            if owner.setdefault(name, group) != group:
                raise source.error(
                    f"the column {name!r} is in the groups {owner[name]!r} "
                    f"({listed(source.groups[owner[name]])}) and {group!r} ({listed(names)})",
                    "a column is in one group: narrow a pattern, or name the columns",
                )
    rest = tuple(name for name in chosen if name not in owner)
    if rest:
        groups[source.name] = (*groups.get(source.name, ()), *rest)
    return groups


def _is_pattern(name: str, names: Sequence[str]) -> bool:
    """Return whether a group's entry is a pattern; a column of this very name is that column."""
    return any(sign in name for sign in "*?[") and name not in names


def _meant(given: str, group: str, chosen: Sequence[str], source: Source) -> Sequence[str]:
    """Return the features that an entry of a group means."""
    if not _is_pattern(given, chosen):
        if given not in chosen:
            raise source.error(
                f"groups.{group} names the column {given!r}, which is not among the features",
                f"{nearest(given, chosen)}",
            )
        return (given,)
    found = [name for name in chosen if fnmatchcase(name, given)]
    if not found:
        raise source.error(
            f"the pattern {given!r} of groups.{group} fits none of the features "
            f"({listed(chosen, 6)})",
            "correct it, or leave it out",
        )
    return found
