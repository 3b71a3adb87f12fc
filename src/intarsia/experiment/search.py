"""The table `[tune]`: which values of which keys are tried, and by what they are judged."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

import numpy as np
from annotated_types import Ge

from intarsia.core.settings import Count, check_ranges, hyperparameters, toml_text
from intarsia.errors import ExperimentError, nearest

# objective → whether more of it is better
SCORES: Final = {  # on held-out samples
    "loss": False,
    "accuracy": True,
    "macro_f1": True,
    "auc": True,
    "r2": True,
}
COSTS: Final = {"rounds": False, "exchanges": False, "bytes": False, "seconds": False}
OBJECTIVES: Final[Mapping[str, bool]] = {**SCORES, **COSTS}

_TABLES = ("algorithm", "preprocessing", "experiment")
_OF_EXPERIMENT = ("rounds", "participation", "tolerance")  # keys of [experiment] that may vary


@dataclass(frozen=True, kw_only=True)
class Range:
    """The values of one key: numbers from `low` to `high`, or a list of choices.

    Whole numbers if both ends are. With `log` the logarithm is drawn evenly.
    """

    low: int | float | None = None
    high: int | float | None = None
    log: bool = False
    choices: tuple[int | float | str | bool, ...] = ()

    def __post_init__(self) -> None:
        given = (self.low, self.high)
        if self.choices:
            if given != (None, None) or self.log:
                raise ExperimentError(
                    f"it has choices = {toml_text(self.choices)} beside low, high or log; give "
                    "either the choices or low and high."
                )
            return
        if self.low is None or self.high is None:
            raise ExperimentError(
                f"low is {toml_text(self.low)} and high is {toml_text(self.high)}; give both, or "
                "choices = [...]."
            )
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ExperimentError(
                f"low is {self.low} and high is {self.high}; expected finite numbers, low below "
                "high."
            )
        if self.log and self.low <= 0:
            raise ExperimentError(
                f"low is {self.low} with log = true, and there is no logarithm of it; set low "
                "above 0, or log = false."
            )

    @property
    def whole(self) -> bool:
        """Return whether the values are whole numbers."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    @property
    def ends(self) -> tuple[Any, ...]:
        """Return the outermost values, or all choices."""
        return self.choices or (self.low, self.high)

    def holds(self, value: object) -> bool:
        """Return whether a value is one of these."""
        truth = isinstance(value, bool)
        if self.choices:
            return any(value == one and truth == isinstance(one, bool) for one in self.choices)
        if truth or not isinstance(value, int if self.whole else (int, float)):
            return False
        return bool(self.low <= value <= self.high)  # type: ignore[operator]

    def steps(self, count: int) -> tuple[float, ...]:
        """Return so many numbers in even steps, from the largest; whole ones once each."""
        if self.low is None or self.high is None:
            raise ValueError("there are no steps between choices")
        space = np.geomspace if self.log else np.linspace
        found: list[float] = space(self.high, self.low, count).tolist()
        found = [min(max(one, self.low), self.high) for one in found]
        return tuple(dict.fromkeys(round(one) for one in found)) if self.whole else tuple(found)


@dataclass(frozen=True, kw_only=True)
class Search:
    """How hyperparameters are looked for."""

    trials: Count = 30  # values that are tried, those of the file among them
    # parts of the training samples, each of which models are evaluated on once; 0: on those that
    # [split] validation holds out. Not set: those of [split], or 5; 0 where that has such a part
    folds: Annotated[int, Ge(0)] | None = None
    objective: tuple[str, ...] | str = ("loss",)
    # the values of one key in even steps from the largest to the smallest, instead of drawn ones
    path: bool = False
    ranges: Mapping[str, Range] = field(default_factory=dict[str, Range])  # "table.key" → values

    def __post_init__(self) -> None:
        check_ranges(self, "[tune] ")
        if self.path and (len(self.ranges) > 1 or any(r.choices for r in self.ranges.values())):
            varied_by = [f"{key}{' (choices)' * bool(r.choices)}" for key, r in self.ranges.items()]
            raise ExperimentError(
                f"[tune] path is true and the ranges are of {', '.join(varied_by)}; a path is over "
                "one key of numbers: leave the other keys out, or set path = false."
            )
        if self.folds == 1:
            raise ExperimentError(
                "[tune] folds is 1, which leaves nothing to train on; set it to at least 2, or to "
                "0 for the samples that [split] validation holds out."
            )
        for one in self.objectives:
            if one not in OBJECTIVES:
                raise ExperimentError(f"[tune] objective is {one!r}; {nearest(one, OBJECTIVES)}.")
        if not self.objectives or len(set(self.objectives)) < len(self.objectives):
            raise ExperimentError(
                f"[tune] objective is {toml_text(self.objective)}; name at least one of "
                f"{', '.join(OBJECTIVES)}, each once."
            )
        kinds = ("algorithm.loss", "algorithm.huber_delta", "algorithm.quantile")
        varied = next((key for key in kinds if key in self.ranges), None)
        if "loss" in self.objectives and varied:
            raise ExperimentError(
                f"[tune] objective is the loss while {varied} varies, and values of different "
                'losses cannot be compared; set objective = "accuracy".'
            )

    @property
    def objectives(self) -> tuple[str, ...]:
        """Return what is looked at."""
        return (self.objective,) if isinstance(self.objective, str) else self.objective


def of_table(table: Mapping[str, Any] | None) -> Search | None:
    """Return the search that a table [tune] describes; None if there is none."""
    if table is None:
        return None
    given = dict(table)
    ranges = given.pop("ranges", {})
    if not isinstance(ranges, Mapping):
        raise ExperimentError(
            f"[tune] ranges is {toml_text(ranges)}; expected a table [tune.ranges] of keys."
        )
    made = {_key(key, own): _range(key, own) for key, own in ranges.items()}
    return hyperparameters(Search, {**given, "ranges": made}, "[tune]")


def to_table(search: Search) -> dict[str, Any]:
    """Return the table that `of_table` makes the same search from."""
    ranges: dict[str, Any] = {}
    for key, one in search.ranges.items():
        if one.choices:
            ranges[key] = {"choices": list(one.choices)}
        else:
            ranges[key] = {"low": one.low, "high": one.high, "log": one.log}
    found: dict[str, Any] = {"trials": search.trials, "objective": list(search.objectives)}
    if search.folds is not None:
        found["folds"] = search.folds
    if search.path:
        found["path"] = True
    return {**found, "ranges": ranges}


def _key(key: str, values: Any) -> str:
    """Return a key with its table; that of [algorithm] need not be named."""
    table, dot, name = key.partition(".")
    if not dot:
        # "algorithm.rate" without quotation marks is a table in a table
        if table in _TABLES and isinstance(values, Mapping):
            first = next(iter(values), "regularisation")
            raise ExperimentError(
                f'[tune.ranges] has a table {key!r}; write the key in quotation marks: "{key}.'
                f'{first}" = {{...}}.'
            )
        table, name = "algorithm", key
    full = f"{table}.{name}"
    if table not in _TABLES or not name or full == "algorithm.name":
        raise ExperimentError(
            f"[tune.ranges] has {key!r}, which cannot vary; expected keys of [algorithm] but its "
            f"name, of [preprocessing], or {', '.join(_OF_EXPERIMENT)} of [experiment]."
        )
    if table == "experiment" and name not in _OF_EXPERIMENT:
        raise ExperimentError(
            f"[tune.ranges] has {key!r}, which does not make a model better; "
            f"{nearest(name, _OF_EXPERIMENT)}."
        )
    return full


def _range(key: str, values: Any) -> Range:
    where = f"[tune.ranges] {key}"
    if isinstance(values, list | tuple):
        values = {"choices": values}
    if not isinstance(values, Mapping):
        raise ExperimentError(
            f"{where} is {toml_text(values)}; expected {{ low = 1e-6, high = 1.0, log = true }}, "
            "or a list of choices."
        )
    try:
        return hyperparameters(Range, values, where)
    except ExperimentError as problem:
        said = str(problem)
        raise ExperimentError(said if said.startswith(where) else f"{where}: {said}") from None
