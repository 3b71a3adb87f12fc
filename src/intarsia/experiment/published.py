"""Published results in an experiment file, `[[published]]`, to compare runs with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from intarsia.core.settings import (
    Fraction,
    check_ranges,
    frozen,
    hyperparameters,
    table_list,
    toml_text,
)
from intarsia.errors import ExperimentError, nearest

_IN_PERCENT = "divide percent by 100"
_CONDITIONS = ("algorithm", "dataset", "experiment", "partition")


@dataclass(frozen=True, kw_only=True)
class Published:
    """One figure: the accuracy of an algorithm, as the mean over clients, and where it stands."""

    algorithm: str  # of the runs that it is to be compared with
    accuracy: Annotated[Fraction, _IN_PERCENT]
    source: str  # such as "Rakotomamonjy et al. (2024), Table 3"
    deviation: Annotated[Fraction, _IN_PERCENT] | None = None  # over the published runs
    # table → key → value that a run has, so that the figure is one for it
    when: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])

    def __post_init__(self) -> None:
        check_ranges(self, f"[[published]] of {self.algorithm!r}: ")
        for table in self.when:
            if table not in _CONDITIONS:
                raise ExperimentError(
                    f"[[published]] when names the table {table!r}; {nearest(table, _CONDITIONS)}."
                )


def of_tables(tables: Any) -> tuple[Published, ...]:
    """Return the figures that tables [[published]] describe."""
    found = table_list("published", tables)
    figures = [hyperparameters(Published, one, "[[published]]") for one in found]
    seen: list[tuple[str, Any]] = []
    for one in figures:
        if (one.algorithm, one.when) in seen:
            raise ExperimentError(
                f"Two tables [[published]] are for {one.algorithm!r} with when = "
                f"{toml_text(one.when)}; leave one, or say in when which runs each is for."
            )
        seen.append((one.algorithm, one.when))
    return tuple(figures)


def matching(
    figures: Sequence[Published], algorithm: str, tables: Mapping[str, Mapping[str, Any]]
) -> Published | None:
    """Return the figure for a run with these settings: of several that with most conditions."""
    fitting = [
        one
        for one in figures
        if one.algorithm == algorithm
        and all(
            frozen(tables.get(table, {}).get(key)) == frozen(value)
            for table, keys in one.when.items()
            for key, value in keys.items()
        )
    ]
    return max(fitting, key=lambda one: sum(map(len, one.when.values())), default=None)
