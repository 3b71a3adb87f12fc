"""The coefficients of a linear model as a table: on the scale of the tables, with their errors.

A linear model is trained on standardised features; a coefficient here is per unit of the column
as the table has it. With standard errors that were stored at the end of training
(`algorithm.errors` of hyfdca): intervals, and the p-value of the hypothesis that it is 0.

They are those of the penalised estimate: the diagonal of σ² (Xᵀ h X + λN I)⁻¹, the inverse of the
penalised Fisher information (Wahba 1983, Nychka 1988). The penalty draws coefficients to 0, so
that an interval is around a value that is too small; without it these are the errors of maximum
likelihood. σ² is 1 for the logistic loss (normal distribution), and for the squared loss it comes
of the residuals (Student's t with the degrees of freedom that are left).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Final, TextIO

import numpy as np
from rich.text import Text
from scipy.special import ndtr, ndtri, stdtr, stdtrit

from intarsia.core.text_tables import (
    Part,
    add_more,
    as_html,
    as_text,
    csv_writer,
    new_table,
    without_formula,
)
from intarsia.errors import ExperimentError
from intarsia.models.feature_mapping import RawColumns

if TYPE_CHECKING:
    from intarsia.models.serialization import LinearModel

_LEVEL: Final = 0.975  # of the 95 % interval
NO_ERRORS: Final = "no standard errors were stored; hyfdca stores them with errors = true."
INTERCEPT_ROW, CENTRED_ROW = "intercept", "intercept at the means"


@dataclass(frozen=True, kw_only=True)
class Scorecard:
    """How log-odds become points: base_score at base_odds, and so many more double the odds."""

    points: float = 20.0  # that double the odds; negative: that halve them
    base_score: float = 600.0
    base_odds: float = 50.0  # of the second class against the first

    def __post_init__(self) -> None:
        for name in ("points", "base_score", "base_odds"):
            if not math.isfinite(getattr(self, name)):
                raise ExperimentError(
                    f"The scorecard's {name} is {getattr(self, name)}; give a finite number."
                )
        if not self.points:
            raise ExperimentError(
                "The scorecard's points to double the odds are 0; give a number, such as 20."
            )
        if not self.base_odds > 0:
            raise ExperimentError(
                f"The scorecard's base odds are {self.base_odds:g}; give a number above 0, such "
                "as 50 (for 50 to 1)."
            )

    @property
    def factor(self) -> float:
        """Return the points of one unit of log-odds."""
        return self.points / math.log(2)

    @property
    def offset(self) -> float:
        """Return the points of even odds."""
        return self.base_score - self.factor * math.log(self.base_odds)


@dataclass(frozen=True)
class Coefficient:
    """One coefficient, per unit of its column."""

    feature: str
    unit: str | None
    output: str | None  # the class against the rest, where there are more than two
    estimate: float
    error: float | None = None  # standard error
    low: float | None = None  # of the 95 % interval
    high: float | None = None
    p: float | None = None  # two-sided, of being 0
    odds_ratio: float | None = None  # logistic loss: of one unit more
    odds_low: float | None = None
    odds_high: float | None = None
    points: float | None = None  # of a scorecard, for each unit


@dataclass(frozen=True)
class Summary:
    """The coefficients of a model; `str` of it is a table."""

    rows: tuple[Coefficient, ...]
    loss: str
    regularisation: float
    classes: tuple[Any, ...] = ()  # the coefficients speak for the second of two
    notes: tuple[str, ...] = ()

    @property
    def header(self) -> tuple[str, ...]:
        """Return the names of the columns that say something."""
        names = [one.name for one in fields(Coefficient)]
        given = {name for name in names for row in self.rows if getattr(row, name) is not None}
        return tuple(name for name in names if name in {*given, "feature", "estimate"})

    def cells(self) -> Iterator[tuple[Any, ...]]:
        """Yield the rows in the order of `header`; None where there is no number."""
        for row in self.rows:
            yield tuple(getattr(row, name) for name in self.header)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        return asdict(self)

    def write(self, file: TextIO) -> None:
        """Write the rows as CSV with a header; no number is an empty cell.

        A text that a spreadsheet would take for a formula has an apostrophe before it: names and
        levels are other clients'.
        """
        writer = csv_writer(file)
        writer.writerow(self.header)
        writer.writerows(map(without_formula, row) for row in self.cells())

    def parts(self, most: int | None = None) -> list[Part]:
        """Return a table of the coefficients, at most so many, and what is to be known of them."""
        left_out = ("low", "high", "odds_low", "odds_high")  # an interval is one column
        names = [name for name in self.header if name not in left_out]
        titles = [name.replace("_", " ") for name in names]
        interval = "low" in self.header
        title = f"{len(self.rows)} coefficient{'s' * (len(self.rows) != 1)}, loss {self.loss}"
        table = new_table(title, *titles, *(["95 % interval"] if interval else []))
        for row in self.rows[:most]:
            reach = "–" if row.low is None else f"{_text(row.low, 3)} to {_text(row.high, 3)}"
            own = {name: getattr(row, name) for name in names}
            cells = [
                _ratio(one) if name == "odds_ratio" and one is not None else _text(one)
                for name, one in own.items()
            ]
            table.add_row(*map(Text, (*cells, *([reach] if interval else []))))
        add_more(table, len(self.rows), len(self.rows) if most is None else most)
        return [table, *(f"note: {note}" for note in self.notes)]

    def __str__(self) -> str:
        return as_text(self.parts())

    def _repr_html_(self) -> str:
        return as_html(self.parts())


def _text(cell: Any, digits: int = 4) -> str:
    """Return what a cell shows; a large number is written out."""
    if cell is None:
        return "–"
    if not isinstance(cell, float):
        return str(cell)
    return f"{cell:,.0f}" if 1000 <= abs(cell) < 1e9 else f"{cell:.{digits}g}"


def _ratio(value: float) -> str:
    """Return a ratio with two digits of what it differs from 1 by, where that is little."""
    beyond = abs(value - 1)
    if not 0 < beyond < 0.01:
        return _text(value)
    return f"{value:.{1 - math.floor(math.log10(beyond))}f}"


def summarise(
    model: LinearModel,
    *,
    units: Mapping[str, str] | None = None,
    scorecard: Scorecard | None = None,
) -> Summary:
    """Return the coefficients of a fitted linear model, the intercept first.

    Parameters
    ----------
    units
        Of features, by name.
    scorecard
        Gives each coefficient its points; of a logistic model of two classes.

    Raises
    ------
    ExperimentError
        If there is a scorecard, and the model has no log-odds of two classes.
    """
    classes = tuple(getattr(model, "classes_", np.zeros(0)).tolist())
    loss = getattr(model, "loss", "squared")
    if scorecard is not None and not (loss == "logistic" and len(classes) == 2):
        raise ExperimentError(
            f"A scorecard is made of log-odds of two classes, and this model has the loss {loss!r} "
            f"and {len(classes)} classes; train with the logistic loss on two classes."
        )
    table = _Table(model, loss, classes, dict(units or {}), scorecard)
    own = ", the intercept too" if np.any(table.intercept) else ""
    drawn = f"regularisation {model.regularisation:g} draws them towards 0{own}"
    notes = [f"estimates are penalised: {drawn}."]
    zeros = int((table.coef == 0).sum())
    if zeros:
        left = table.coef.size - zeros
        notes.append(f"{left} of {table.coef.size} coefficients are not 0.")
    if classes and len(classes) == 2:
        notes.append(f"a positive coefficient speaks for {classes[1]!r} against {classes[0]!r}.")
    if table.errors is None:
        notes.append(NO_ERRORS)
    else:
        notes.append(
            "standard errors are of the penalised estimate: the inverse of the Fisher information "
            "plus regularisation times samples."
        )
        if table.levels:
            notes.append(
                f"all levels of {', '.join(table.categories)} stand beside the intercept, so that "
                "the data tell their differences alone: the errors of a level and of the intercept "
                "would be those of the penalty, and are left out; for an error write two levels as "
                "one column of 0 and 1, and more levels as such columns without one of them."
            )
    return Summary(tuple(table.rows()), loss, float(model.regularisation), classes, tuple(notes))


class _Table:
    """The rows of one model."""

    def __init__(
        self,
        model: LinearModel,
        loss: str,
        classes: tuple[Any, ...],
        units: Mapping[str, str],
        scorecard: Scorecard | None,
    ) -> None:
        self.coef = np.atleast_2d(model.coef_)
        self.intercept = np.atleast_1d(model.intercept_)
        taken = getattr(model, "centres_", None)  # the intercept's errors are where these are 0
        self.means = getattr(model, "means_", None) if taken is None else taken
        names = getattr(model, "feature_names_in_", None)
        width = self.coef.shape[1]
        self.names = [f"x{j}" for j in range(width)] if names is None else list(map(str, names))
        self.errors = getattr(model, "errors_", None)
        self.intercept_errors = getattr(model, "intercept_errors_", None)
        self.zero_errors = getattr(model, "zero_errors_", None)
        self.left = getattr(model, "degrees_of_freedom_", None)
        self.loss, self.units, self.scorecard = loss, units, scorecard
        several_levels = {}
        if np.any(self.intercept):
            columns = RawColumns.of(self.names, getattr(model, "levels_", None)).categories
            several_levels = {name: own for name, own in columns.items() if len(own) > 1}
        self.categories = sorted(several_levels)
        self.levels = {f"{name}={level}" for name, own in several_levels.items() for level in own}
        several = len(self.intercept) > 1
        self.outputs = [str(one) for one in classes] if several else [None]

    def rows(self) -> Iterator[Coefficient]:
        """Yield the intercept and the features of each output."""
        for c, output in enumerate(self.outputs):
            constant = self.intercept[c]
            own = None if self.intercept_errors is None else self.intercept_errors[c]
            centred = self.means is not None and bool(np.any(self.means))
            at_zero = None if self.zero_errors is None else self.zero_errors[c]
            if self.levels:
                own = at_zero = None
            yield self._row(INTERCEPT_ROW, c, output, constant, at_zero if centred else own)
            if centred and own is not None:
                value = constant + self.coef[c] @ self.means
                yield self._row(CENTRED_ROW, c, output, value, own)
            for j, name in enumerate(self.names):
                error = None
                if self.errors is not None and name not in self.levels:
                    error = self.errors[c, j]
                yield self._row(name, c, output, self.coef[c, j], error)

    def _row(
        self, name: str, c: int, output: str | None, estimate: float, error: float | None
    ) -> Coefficient:
        estimate = float(estimate)
        special = name in (INTERCEPT_ROW, CENTRED_ROW)
        found: dict[str, Any] = {}
        if error is not None and math.isfinite(error) and error > 0:
            ratio = abs(estimate) / float(error)
            if self.loss in ("squared", "gamma") and self.left is not None:  # Student's t
                quantile, below = stdtrit(self.left[c], _LEVEL), stdtr(self.left[c], -ratio)
            else:
                quantile, below = ndtri(_LEVEL), ndtr(-ratio)
            reach = float(quantile) * float(error)
            found = {"error": float(error), "low": estimate - reach, "high": estimate + reach}
            found["p"] = 2 * float(below)
        if self.loss == "logistic" and not special:
            found["odds_ratio"] = _power(estimate)
            if "low" in found:
                found |= {"odds_low": _power(found["low"]), "odds_high": _power(found["high"])}
        if self.scorecard is not None and name != CENTRED_ROW:
            found["points"] = self.scorecard.factor * estimate
            if special:
                found["points"] += self.scorecard.offset
        return Coefficient(
            name, None if special else self.units.get(name), output, estimate, **found
        )


def _power(value: float) -> float | None:
    """Return e to a power; None where no number is as large."""
    return math.exp(value) if value < 700 else None
