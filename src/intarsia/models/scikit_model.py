"""A trained linear model as a pipeline of scikit-learn, which needs nothing of this package.

It takes a pandas DataFrame with the columns of the tables. A missing number, and a level that is
missing, "?", "" or unknown, count as the feature's mean in training, as `predict` has it; an
unknown level counts as "other" where training rows had that. Of a category each level is a column,
and so are what stands for a missing one, and what is unknown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import (
    GammaRegressor,
    HuberRegressor,
    LogisticRegression,
    PoissonRegressor,
    QuantileRegressor,
    Ridge,
    SGDClassifier,
)
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import LabelBinarizer, OneHotEncoder, OrdinalEncoder

from intarsia.maths.linear.losses import LOG_LINK, loss_code
from intarsia.models.feature_mapping import MISSING, RawColumns, counts_as

if TYPE_CHECKING:
    from intarsia.models.serialization import LinearModel

Array = NDArray[np.float64]


def scikit_pipeline(model: LinearModel) -> Pipeline:
    """Return a fitted pipeline with the model's predictions; it needs pandas."""
    features = [str(name) for name in model.feature_names_in_]
    raw = RawColumns.of(features, getattr(model, "levels_", None))
    order = raw.order(features)
    means, weights = model.means_[order], np.atleast_2d(model.coef_)[:, order]
    steps, coefficients = _columns(raw, means, weights)
    estimator = _classifier if hasattr(model, "classes_") else _regressor
    final = estimator(model, coefficients, np.atleast_1d(model.intercept_))
    return Pipeline([("columns", steps), ("model", final)])


def _columns(raw: RawColumns, means: Array, weights: Array) -> tuple[ColumnTransformer, Array]:
    """Return what makes features of a table, and their weights, (outputs, features)."""
    import pandas as pd

    numbers, rows = list(raw.numbers), max([len(one) for one in raw.categories.values()] or [1])
    frame = pd.DataFrame(np.tile(means[: len(numbers)], (rows, 1)), columns=numbers)
    parts: list[tuple[str, Any, list[str]]] = []
    found = [weights[:, : len(numbers)]]
    if numbers:
        parts.append(("numbers", SimpleImputer(keep_empty_features=True), numbers))
    at = len(numbers)
    for place, (name, levels) in enumerate(raw.categories.items()):
        frame[name] = np.resize(np.array(levels, object), rows)
        own, at = slice(at, at + len(levels)), at + len(levels)
        gaps = [*(text for text in MISSING if text not in levels), None, np.nan]
        last = len(levels) + len(gaps)
        known = OrdinalEncoder(
            categories=[np.array([*levels, *gaps], object)],
            handle_unknown="use_encoded_value",
            unknown_value=last,
            encoded_missing_value=-1,  # of None and NaN
        )
        each = OneHotEncoder(categories=[np.arange(-1.0, last + 1)], sparse_output=False)
        parts.append((f"category {place}", Pipeline([("level", known), ("each", each)]), [name]))
        mean, (_, new) = (weights[:, own] @ means[own])[:, None], counts_as(levels)
        unknown = mean if new < 0 else weights[:, own][:, [new]]
        found += [mean, weights[:, own], *(mean for _ in gaps), unknown]
    made = ColumnTransformer(parts).fit(frame)
    if numbers:
        made.named_transformers_["numbers"].statistics_ = means[: len(numbers)].copy()
    return made, np.hstack(found)


def _fitted(estimator: Any, weights: Array, intercept: Any, classes: Any = None) -> Any:
    """Return a linear estimator of scikit-learn with these coefficients."""
    estimator.coef_, estimator.intercept_ = weights, intercept
    estimator.n_features_in_ = weights.shape[-1]
    if classes is not None:
        estimator.classes_ = classes
    return estimator


def _classifier(model: LinearModel, weights: Array, intercept: Array) -> Any:
    classes = np.asarray(model.classes_)
    if model.loss != "logistic":
        loss = "squared_error" if model.loss == "squared" else model.loss
        return _fitted(SGDClassifier(loss=loss), weights, intercept, classes)
    if len(weights) == 1:
        return _fitted(LogisticRegression(), weights, intercept, classes)
    found = OneVsRestClassifier(LogisticRegression())
    found.estimators_ = [
        _fitted(LogisticRegression(), own[None], constant[None], np.array([0, 1]))
        for own, constant in zip(weights, intercept, strict=True)
    ]
    found.label_binarizer_ = LabelBinarizer(sparse_output=True).fit(classes)
    found.classes_, found.n_features_in_ = classes, weights.shape[1]
    return found


def _regressor(model: LinearModel, weights: Array, intercept: Array) -> Any:
    kinds = {
        "huber": HuberRegressor,
        "quantile": QuantileRegressor,
        "poisson": PoissonRegressor,
        "gamma": GammaRegressor,
    }
    found = _fitted(kinds.get(model.loss, Ridge)(), weights[0], float(intercept[0]))
    if model.loss == "huber":
        found.scale_ = 1.0
    if loss_code(model.loss) in LOG_LINK:
        found._base_loss = found._get_loss()
    return found
