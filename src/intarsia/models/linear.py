"""Linear models with scikit-learn's interface: trained here centrally, or by a federation.

Both minimise λ/2 ‖w‖² + 1/N Σ l(wᵀx_i, y_i) by dual coordinate ascent. The intercept is the weight
of a constant feature 1 and is regularised like every other weight, as in a federation, where it
is one more feature.

A model that a federation made (`from_weights`) knows its features by name and the mean of each:
a column that a table lacks, and NaN, count as the feature's mean; columns that the model does not
know are left aside. An absent entry of a sparse table is 0, not missing.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array, hstack, issparse
from scipy.special import expit
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from intarsia.core.text_tables import MOST_LINES, Part, as_html, as_text
from intarsia.errors import ExperimentError, TableError
from intarsia.maths.linear import sdca
from intarsia.maths.linear.losses import (
    CLASSIFICATION,
    NUMBERS,
    check_labels,
    loss_code,
    mean_of,
    shape_of,
)
from intarsia.models.coefficients import Scorecard, Summary, summarise
from intarsia.models.feature_mapping import Table, known_columns
from intarsia.models.linear_parameters import ERRORS, restore

Array = NDArray[np.float64]


def _parts(model: LinearClassifier | LinearRegressor) -> list[Part]:
    """Return what shows a model: what it is, and of a fitted one its first coefficients."""
    if not hasattr(model, "coef_"):
        return [repr(model)]
    of = f"{type(model).__name__} of {model.n_features_in_:,} features"
    gap = f", relative duality gap {max(model.gap_, 0.0):.1e}" if np.isfinite(model.gap_) else ""
    return [
        f"{of}, regularisation {model.regularisation:g}{gap}",
        *model.summary().parts(MOST_LINES),
    ]


def _shown_in_a_line(model: LinearClassifier | LinearRegressor) -> str:
    if not hasattr(model, "coef_"):
        return str(BaseEstimator.__repr__(model))
    known = getattr(model, "classes_", None)
    aim = "numbers" if known is None else f"{len(known):,} classes"
    return (
        f"<{type(model).__name__}: {model.n_features_in_:,} columns, {aim}, loss {model.loss!r}, "
        f"regularisation {model.regularisation:g}>"
    )


def _shown_as_text(model: LinearClassifier | LinearRegressor) -> str:
    return as_text(_parts(model))


def _shown_as_html(model: LinearClassifier | LinearRegressor) -> str:
    return as_html(_parts(model))


def _shown_as_either(model: LinearClassifier | LinearRegressor, **_: Any) -> dict[str, str]:
    return {"text/plain": _shown_as_text(model), "text/html": _shown_as_html(model)}


@dataclass(kw_only=True, eq=False, repr=False)
class LinearClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # untyped library
    """Separate two classes by a linear function, or more by one against the rest.

    Parameters
    ----------
    loss : "hinge", "squared_hinge", "logistic" or "squared"
    regularisation : λ of the objective; scikit-learn's C is 1/(λN)
    tolerance : relative duality gap at which training stops
    max_epochs : passes over the samples after which it stops with a ConvergenceWarning
    fit_intercept : whether there is a constant feature; its weight is regularised
    random_state : seed of the order of the samples

    Attributes
    ----------
    coef_ : (outputs, features); one output for two classes, else one per class
    intercept_ : (outputs,)
    classes_ : the class labels, sorted; with two, positive scores mean the second
    gap_ : relative duality gap reached, an upper bound of the objective's relative error
    n_iter_ : passes over the samples
    means_ : (features,), the value of a missing entry; only after `from_weights`
    centres_ : (features,), what training took off, 0 where it did not centre; None: means_
    levels_ : of categorical columns, by name; None: the names of features say which are levels
    errors_ : (outputs, features), standard errors of coef_; only where training stored them
    intercept_errors_ : (outputs,), of the intercept at the features' means
    zero_errors_ : (outputs,), of intercept_, where all features are 0
    degrees_of_freedom_ : (outputs,), samples less what the weights take
    """

    loss: str = "logistic"
    regularisation: float = 1e-3
    tolerance: float = 1e-6
    max_epochs: int = 1000
    fit_intercept: bool = True
    random_state: Any = 0

    @classmethod
    def from_weights(
        cls,
        weights: Mapping[str, float | Array],
        *,
        means: Mapping[str, float],
        scales: Mapping[str, float],
        intercept: float | Array,
        classes: Sequence[Any],
        loss: str = "logistic",
        regularisation: float = 1e-3,
        gap: float | None = None,
    ) -> Self:
        """Return a fitted model from the weights of standardised features.

        The score is Σ weight·(value - mean)/scale + intercept. A weight is a number for two
        classes (the second is the positive one), else one number per class.

        Raises
        ------
        ExperimentError
            If a feature lacks a mean or a scale, a scale is not positive, or the weights do not
            fit the classes.
        """
        model = cls(loss=loss, regularisation=regularisation)
        loss_code(loss)
        model.classes_ = np.asarray(classes)
        model.coef_, model.intercept_ = _restore(model, weights, means, scales, intercept, gap)
        if len(model.coef_) != (1 if len(classes) == 2 else len(classes)):
            raise ExperimentError(
                f"The weights have {len(model.coef_)} outputs but there are {len(classes)} "
                "classes; give one number per feature for two classes and one per class for more."
            )
        return model

    def fit(self, X: Table, y: ArrayLike) -> Self:
        """Train on samples X (samples, features) and their classes y (samples,).

        Raises
        ------
        ExperimentError
            If a hyperparameter is out of its range.
        TableError
            If there is one class only.
        """
        code = loss_code(self.loss)
        if code in NUMBERS:
            raise ExperimentError(
                f"The loss {self.loss!r} is for numbers to predict, and a classifier has classes; "
                "use LinearRegressor, or the loss logistic, hinge, squared_hinge or squared."
            )
        X, y = validate_data(
            self, X, y, accept_sparse="csr", dtype=np.float64, order="C", accept_large_sparse=True
        )
        check_classification_targets(y)
        self.classes_ = np.unique(y)
        if len(self.classes_) < 2:
            raise TableError(
                f"The labels have 1 class, {str(self.classes_[0])!r}; "
                "a classifier needs samples of at least two."
            )
        positive = self.classes_[1:] if len(self.classes_) == 2 else self.classes_
        signs = np.where(y == positive[:, None], 1.0, -1.0)
        self.coef_, self.intercept_ = _train(self, X, signs, code)
        return self

    def decision_function(self, X: Table) -> Array:
        """Return the scores: (samples,) for two classes, else (samples, classes)."""
        scores = _scores(self, X)
        return scores.ravel() if len(scores) == 1 else scores.T

    def predict(self, X: Table) -> NDArray[Any]:
        """Return the class of each sample, (samples,)."""
        scores = self.decision_function(X)
        best = (scores > 0).astype(np.intp) if scores.ndim == 1 else scores.argmax(axis=1)
        return np.asarray(self.classes_[best])

    @available_if(lambda model: model.loss == "logistic")  # type: ignore[untyped-decorator]  # untyped library
    def predict_proba(self, X: Table) -> Array:
        """Return the probability of each class, (samples, classes); logistic loss only.

        For more than two classes these are the one-vs-rest probabilities divided by their sum.
        """
        scores = self.decision_function(X)
        if scores.ndim == 1:
            return np.stack([expit(-scores), expit(scores)], axis=1)
        each = np.maximum(expit(scores), np.finfo(float).tiny)
        return np.asarray(each / each.sum(axis=1, keepdims=True))

    def summary(
        self, *, units: Mapping[str, str] | None = None, scorecard: Scorecard | None = None
    ) -> Summary:
        """Return the coefficients per unit of each column, with errors where they were stored.

        Parameters are those of `intarsia.models.coefficients.summarise`.
        """
        check_is_fitted(self)
        return summarise(self, units=units, scorecard=scorecard)

    def __sklearn_tags__(self) -> Any:
        """Return scikit-learn's tags: sparse tables are accepted."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    __repr__ = _shown_in_a_line
    __str__ = _shown_as_text
    _repr_html_ = _shown_as_html
    _repr_mimebundle_ = _shown_as_either


@dataclass(kw_only=True, eq=False, repr=False)
class LinearRegressor(RegressorMixin, BaseEstimator):  # type: ignore[misc]  # untyped library
    """Predict a number by a linear function under the loss ½(z - y)² (ridge regression).

    Parameters
    ----------
    loss : "squared", "huber", "quantile", "poisson" or "gamma"
    huber_delta : δ of the Huber loss, in the unit of the targets
    quantile : τ of the quantile loss
    regularisation : λ of the objective; scikit-learn's Ridge has alpha = λN, its PoissonRegressor
        and GammaRegressor alpha = λ
    tolerance : relative duality gap at which training stops
    max_epochs : passes over the samples after which it stops with a ConvergenceWarning
    fit_intercept : whether there is a constant feature; its weight is regularised
    random_state : seed of the order of the samples

    Attributes
    ----------
    coef_ : (features,)
    intercept_ : number
    gap_ : relative duality gap reached, an upper bound of the objective's relative error
    n_iter_ : passes over the samples
    means_ : (features,), the value of a missing entry; only after `from_weights`
    centres_ : (features,), what training took off, 0 where it did not centre; None: means_
    levels_ : of categorical columns, by name; None: the names of features say which are levels
    errors_, intercept_errors_, zero_errors_, degrees_of_freedom_ : as of LinearClassifier, of one
        output
    """

    loss: str = "squared"
    huber_delta: float = 1.35
    quantile: float = 0.5
    regularisation: float = 1e-3
    tolerance: float = 1e-6
    max_epochs: int = 1000
    fit_intercept: bool = True
    random_state: Any = 0

    @classmethod
    def from_weights(
        cls,
        weights: Mapping[str, float],
        *,
        means: Mapping[str, float],
        scales: Mapping[str, float],
        intercept: float,
        loss: str = "squared",
        huber_delta: float = 1.35,
        quantile: float = 0.5,
        regularisation: float = 1e-3,
        gap: float | None = None,
    ) -> Self:
        """Return a fitted model from the weights of standardised features.

        The score is Σ weight·(value - mean)/scale + intercept, and the prediction is the score, or
        e to its power for the losses with the log link.

        Raises
        ------
        ExperimentError
            If there is no such loss, a feature lacks a mean or a scale, a scale is not positive,
            or a weight is not one number.
        """
        model = cls(
            loss=loss, huber_delta=huber_delta, quantile=quantile, regularisation=regularisation
        )
        loss_code(loss)
        coef, constant = _restore(model, weights, means, scales, intercept, gap)
        if len(coef) != 1:
            raise ExperimentError(
                f"The weights have {len(coef)} outputs; a regressor has one number per feature."
            )
        model.coef_, model.intercept_ = coef[0], float(constant[0])
        return model

    def fit(self, X: Table, y: ArrayLike) -> Self:
        """Train on samples X (samples, features) and their targets y (samples,).

        Raises
        ------
        ExperimentError
            If a hyperparameter is out of its range.
        TableError
            If the loss is not for such targets.
        """
        code = self._loss_code()
        X, y = validate_data(
            self, X, y, accept_sparse="csr", dtype=np.float64, order="C", y_numeric=True
        )
        targets = np.asarray(y, np.float64)
        check_labels(code, targets, "the table")
        coef, intercept = _train(self, X, targets[None, :], code, shape_of(self))
        self.coef_, self.intercept_ = coef[0], float(intercept[0])
        return self

    def predict(self, X: Table) -> Array:
        """Return the prediction for each sample, (samples,): with the log link its mean."""
        return mean_of(self._loss_code(), self.linear_predictor(X))

    def linear_predictor(self, X: Table) -> Array:
        """Return the scores, (samples,): with the log link the logarithms of the predictions."""
        return _scores(self, X).ravel()

    def _loss_code(self) -> int:
        code = loss_code(self.loss)
        if code in CLASSIFICATION or not (self.huber_delta > 0.0 and 0.0 < self.quantile < 1.0):
            raise ExperimentError(
                f"The loss is {self.loss!r}, huber_delta {self.huber_delta} and quantile "
                f"{self.quantile}; a regressor takes squared, huber, quantile, poisson or gamma, "
                "a huber_delta above 0 and a quantile between 0 and 1."
            )
        return code

    def summary(
        self, *, units: Mapping[str, str] | None = None, scorecard: Scorecard | None = None
    ) -> Summary:
        """Return the coefficients per unit of each column, with errors where they were stored.

        Parameters are those of `intarsia.models.coefficients.summarise`.
        """
        check_is_fitted(self)
        return summarise(self, units=units, scorecard=scorecard)

    def __sklearn_tags__(self) -> Any:
        """Return scikit-learn's tags: sparse tables are accepted."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    __repr__ = _shown_in_a_line
    __str__ = _shown_as_text
    _repr_html_ = _shown_as_html
    _repr_mimebundle_ = _shown_as_either


def _train(
    model: LinearClassifier | LinearRegressor, x: sdca.Rows, y: Array, loss: int, shape: float = 0.0
) -> tuple[Array, Array]:
    """Return coefficients (outputs, features) and intercepts (outputs,); note how it went."""
    if not model.tolerance > 0.0:
        raise ExperimentError(
            f"tolerance is {model.tolerance}; it must be positive, for example 1e-6."
        )
    if not model.max_epochs >= 1:
        raise ExperimentError(f"max_epochs is {model.max_epochs}; it must be at least 1.")
    if model.fit_intercept:
        ones = np.ones((x.shape[0], 1))
        x = hstack([x, csr_array(ones)], format="csr") if issparse(x) else np.hstack([x, ones])
    seed = check_random_state(model.random_state).randint(np.iinfo(np.int32).max)
    found = sdca.fit(
        x,
        y,
        loss=loss,
        shape=shape,
        regularisation=model.regularisation,
        tolerance=model.tolerance,
        epochs=int(model.max_epochs),
        rng=np.random.default_rng(seed),
    )
    if not found.converged:
        warnings.warn(
            f"Training stopped after {found.epochs} epochs at a relative duality gap of "
            f"{found.gap:.1e}, above the tolerance {model.tolerance:.1e}; standardise the "
            "features, raise max_epochs or raise the tolerance.",
            ConvergenceWarning,
            stacklevel=3,
        )
    model.gap_, model.n_iter_ = found.gap, found.epochs
    for name in ("means_", "centres_", "levels_", *(f"{one}_" for one in ERRORS)):
        if hasattr(model, name):
            delattr(model, name)  # trained anew: no longer a federation's model
    if model.fit_intercept:
        return np.ascontiguousarray(found.w[:, :-1]), found.w[:, -1].copy()
    return found.w, np.zeros(len(found.w))


def _restore(
    model: LinearClassifier | LinearRegressor,
    weights: Mapping[str, float | Array] | Mapping[str, float],
    means: Mapping[str, float],
    scales: Mapping[str, float],
    intercept: float | Array,
    gap: float | None,
) -> tuple[Array, Array]:
    """Return coefficients and intercepts for values as they are in a table; set the names."""
    coef, constant, model.means_ = restore(weights, means, scales, intercept)
    model.feature_names_in_ = np.array(list(weights), object)
    model.n_features_in_, model.levels_, model.centres_ = len(weights), None, None
    model.gap_ = np.nan if gap is None else gap
    return coef, constant


def _scores(model: LinearClassifier | LinearRegressor, table: Table) -> Array:
    """Return the scores, (outputs, samples)."""
    check_is_fitted(model)
    coef, intercept = np.atleast_2d(model.coef_), np.atleast_1d(model.intercept_)
    if hasattr(model, "means_"):
        known, x, gaps = known_columns(
            table, [str(name) for name in model.feature_names_in_], getattr(model, "levels_", None)
        )
        missing = np.setdiff1d(np.arange(len(model.means_)), known)
        intercept = intercept + coef[:, missing] @ model.means_[missing]
        coef = coef[:, known]
        if issparse(x):
            x.data = np.where(np.isnan(x.data), model.means_[known][x.indices], x.data)
        else:
            x = np.where(np.isnan(x), model.means_[known], x)
        scores = x @ coef.T + intercept
        for columns, rows in gaps:
            scores[rows] += coef[:, columns] @ model.means_[known][columns]
        return np.ascontiguousarray(scores.T)
    x = validate_data(model, table, accept_sparse="csr", dtype=np.float64, reset=False)
    return np.ascontiguousarray((x @ coef.T + intercept).T)
