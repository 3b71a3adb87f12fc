"""A linear model's parameters as linear.json has them, without the library of its interface.

Importing scikit-learn takes as long as training on a small table. So what trains a model and writes
it has its parameters alone; the estimator is made when somebody asks for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from intarsia.core.block import Array
from intarsia.core.files.json_text import check_kind
from intarsia.errors import ExperimentError, several
from intarsia.maths.linear.losses import LOSSES, SHAPES, shape_of

if TYPE_CHECKING:
    from intarsia.models.feature_mapping import Levels
    from intarsia.models.linear import LinearClassifier, LinearRegressor

_NEEDED = ("kind", "loss", "regularisation", "gap", "classes", "features", "coef", "intercept")
_KINDS: Mapping[str, Any] = {
    "kind": Literal["classifier", "regressor"],
    "loss": str,
    **dict.fromkeys(SHAPES.values(), float),
    "regularisation": float,
    "gap": float | None,
    "classes": list[str | int | float | bool] | None,
    "features": list[str],
    "coef": list[list[float]],
    "intercept": list[float],
    "means": list[float],
    "centres": list[float],
}
# what a model may know of its errors, as a file names it; a model's attribute ends in _
ERRORS = ("errors", "intercept_errors", "zero_errors", "degrees_of_freedom")


@dataclass(frozen=True, eq=False, repr=False)
class LinearParameters:
    """The parameters of a linear model on tables as their owners have them."""

    loss: str
    regularisation: float
    coef: Array  # (outputs, features)
    intercept: Array  # (outputs,)
    means: Array  # (features,), the values of missing entries
    features: Sequence[str]
    classes: NDArray[Any] | None = None  # None: it predicts numbers
    gap: float = math.nan  # relative
    shape: Mapping[str, Any] = field(default_factory=dict[str, Any])  # the number of the loss
    levels: Levels = None
    # by name of `ERRORS`: (outputs, features), and thrice (outputs,)
    errors: Mapping[str, Array] = field(default_factory=dict[str, Array])
    # (features,), what training took off: 0 of what is not centred; None: the means
    centres: Array | None = None

    def __repr__(self) -> str:
        aim = "numbers" if self.classes is None else f"{len(self.classes):,} classes"
        columns = several(len(self.features), "column")
        return f"<LinearParameters: {columns}, {aim}, loss {self.loss!r}>"

    @classmethod
    def of(cls, model: LinearClassifier | LinearRegressor) -> LinearParameters:
        """Return those of a fitted model that a federation made, or that was read."""
        known = {name: getattr(model, f"{name}_", None) for name in ERRORS}
        return cls(
            loss=model.loss,
            regularisation=float(model.regularisation),
            coef=np.atleast_2d(model.coef_),
            intercept=np.atleast_1d(model.intercept_),
            means=model.means_,
            features=[str(name) for name in model.feature_names_in_],
            classes=getattr(model, "classes_", None),
            gap=model.gap_,
            shape={SHAPES[model.loss]: shape_of(model)} if model.loss in SHAPES else {},
            levels=getattr(model, "levels_", None),
            errors={name: values for name, values in known.items() if values is not None},
            centres=getattr(model, "centres_", None),
        )

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> LinearParameters:
        """Return those that a file has.

        Raises
        ------
        KeyError, TypeError, ValueError
            If the file is not what `to_dict` wrote.
        """
        for name, hint in _KINDS.items():
            if name in content or name in _NEEDED:
                check_kind(content[name], hint, name)
        coef = np.array(content["coef"], np.float64)
        intercept = np.array(content["intercept"], np.float64)
        means = np.array(content["means"], np.float64)
        names = content["features"]
        classes = content["classes"] if content["kind"] == "classifier" else ()
        outputs = len(classes) if len(classes) > 2 else 1
        centres = np.array(content.get("centres", content["means"]), np.float64)
        if (
            coef.shape != (outputs, len(names))
            or intercept.shape != (outputs,)
            or not means.shape == centres.shape == (len(names),)
        ):
            raise ValueError(
                f"coef has the shape {coef.shape}, intercept {intercept.shape}, means "
                f"{means.shape}, for {len(names)} features and {outputs} outputs"
            )
        if not all(np.isfinite(one).all() for one in (coef, intercept)):
            raise ValueError("coef or intercept holds what is no number")
        if content["kind"] == "classifier" and len({*classes}) < max(2, len(classes)):
            raise ValueError(f"classes are {str(classes)[:80]}")
        if content["loss"] not in LOSSES:
            raise ValueError(f"there is no loss {content['loss'][:80]!r}")
        errors: dict[str, Array] = {}
        for name in (one for one in ERRORS if one in content):
            known = np.array(content[name], np.float64)  # null: NaN
            if known.shape != (coef.shape if name == "errors" else (1, len(coef))):
                raise ValueError(f"{name} has the shape {known.shape}, for {coef.shape} of coef")
            errors[name] = known if name == "errors" else known[0]
        return cls(
            loss=content["loss"],
            regularisation=content["regularisation"],
            coef=coef,
            intercept=intercept,
            means=means,
            features=names,
            classes=np.array(classes) if content["kind"] == "classifier" else None,
            gap=math.nan if content["gap"] is None else content["gap"],
            shape={name: content[name] for name in SHAPES.values() if name in content},
            levels=levels_of(content.get("levels"), names),
            errors=errors,
            centres=centres if "centres" in content else None,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return them as JSON types; numbers that JSON lacks as null."""
        errors = {
            name: [
                [one if math.isfinite(one) else None for one in row]
                for row in np.atleast_2d(values).tolist()
            ]
            for name, values in self.errors.items()
        }
        return {
            "kind": "regressor" if self.classes is None else "classifier",
            "loss": self.loss,
            **self.shape,
            "regularisation": float(self.regularisation),
            "gap": float(self.gap) if math.isfinite(self.gap) else None,
            "classes": None if self.classes is None else self.classes.tolist(),
            "intercept": self.intercept.tolist(),
            "features": list(self.features),
            "means": self.means.tolist(),
            **({} if self.centres is None else {"centres": self.centres.tolist()}),
            "coef": self.coef.tolist(),
            **({} if self.levels is None else {"levels": as_lists(self.levels)}),
            **errors,
        }

    def estimator(self) -> LinearClassifier | LinearRegressor:
        """Return the fitted model with scikit-learn's interface."""
        from intarsia.models.linear import LinearClassifier, LinearRegressor

        model: LinearClassifier | LinearRegressor
        given: dict[str, Any] = {"loss": self.loss, "regularisation": self.regularisation}
        if self.classes is None:
            model = LinearRegressor(**given, **self.shape)
            model.coef_, model.intercept_ = self.coef[0], float(self.intercept[0])
        else:
            model = LinearClassifier(**given)
            model.coef_, model.intercept_ = self.coef, self.intercept
            model.classes_ = self.classes
        model.feature_names_in_ = np.array(self.features, object)
        model.n_features_in_ = len(self.features)
        model.means_, model.levels_, model.gap_ = self.means, self.levels, self.gap
        model.centres_ = self.centres
        for name, values in self.errors.items():
            setattr(model, f"{name}_", values)
        return model


def restore(
    weights: Mapping[str, float | Array] | Mapping[str, float],
    means: Mapping[str, float],
    scales: Mapping[str, float],
    intercept: float | Array,
) -> tuple[Array, Array, Array]:
    """Return coefficients and intercepts for values as they are in a table, and the means.

    Parameters
    ----------
    weights
        Of standardised features; the score is Σ weight·(value - mean)/scale + intercept.

    Raises
    ------
    ExperimentError
        If a feature lacks a mean or a scale, a scale is not positive, or outputs differ.
    """
    names = list(weights)
    for name in names:
        if name not in means or name not in scales:
            raise ExperimentError(
                f"The feature {name!r} has a weight but no mean or no scale; give all three."
            )
        if not scales[name] > 0.0:
            raise ExperimentError(
                f"The scale of the feature {name!r} is {scales[name]}; it must be positive "
                "(1 for a constant feature)."
            )
    mean = np.array([means[name] for name in names], np.float64)
    scale = np.array([scales[name] for name in names], np.float64)
    columns = [np.atleast_1d(np.asarray(weights[name], np.float64)) for name in names]
    constant = np.atleast_1d(np.asarray(intercept, np.float64))
    outputs = sorted({len(column) for column in [*columns, constant]})
    if len(outputs) > 1:
        raise ExperimentError(
            f"The weights and the intercept have {outputs} outputs; all must have the same."
        )
    coef = np.stack(columns, axis=1) / scale if names else np.zeros((len(constant), 0))
    return coef, constant - coef @ mean, mean


def as_lists(levels: Mapping[str, tuple[str, ...]]) -> dict[str, list[str]]:
    """Return the levels of categorical columns as JSON types."""
    return {name: list(own) for name, own in levels.items()}


def levels_of(stored: Any, features: Sequence[str]) -> Levels:
    """Return the levels of categorical columns; None where an older version wrote none.

    Raises
    ------
    TypeError, ValueError
        If they are not those of some of the features.
    """
    if stored is None:
        return None
    found = {str(name): tuple(map(str, own)) for name, own in dict(stored).items()}
    known = set(features)
    for name, own in found.items():
        for level in own:
            if f"{name}={level}" not in known:
                raise ValueError(f"the level {level[:80]!r} of {name[:80]!r} is no feature")
    return found
