"""A fitted linear model as a JSON file: no pickle, the same bits when it is read again."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from intarsia.checkpoint import write_atomically
from intarsia.errors import CheckpointError
from intarsia.linear import LinearClassifier, LinearRegressor

__all__ = ["NAME", "LinearModel", "read_model", "write_model"]

LinearModel = LinearClassifier | LinearRegressor

NAME = "linear.json"


def write_model(model: LinearModel, folder: Path) -> None:
    """Write a model that `from_weights` made into a folder, which is made if it is not there."""
    classes = isinstance(model, LinearClassifier)
    content: dict[str, Any] = {
        "kind": "classifier" if classes else "regressor",
        "loss": model.loss if isinstance(model, LinearClassifier) else "squared",
        "regularisation": float(model.regularisation),
        "gap": float(model.gap_) if math.isfinite(model.gap_) else None,
        "classes": model.classes_.tolist() if isinstance(model, LinearClassifier) else None,
        "intercept": np.atleast_1d(model.intercept_).tolist(),
        "features": [str(name) for name in model.feature_names_in_],
        "means": model.means_.tolist(),
        "coef": np.atleast_2d(model.coef_).tolist(),
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / NAME, json.dumps(content, ensure_ascii=False).encode())


def read_model(folder: Path) -> LinearModel:
    """Return the model that `write_model` wrote.

    Raises
    ------
    CheckpointError
        If there is none, or the file is not what was written.
    """
    path = folder / NAME
    if not path.is_file():
        raise CheckpointError(
            f"{path} does not exist; a finished run writes it: run or resume the experiment first."
        )
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        coef = np.array(content["coef"], np.float64)
        intercept = np.array(content["intercept"], np.float64)
        means = np.array(content["means"], np.float64)
        names = np.array(content["features"], object)
        if coef.shape != (len(intercept), len(names)) or means.shape != names.shape:
            raise ValueError(
                f"coef has the shape {coef.shape}, means {means.shape}, for {len(names)} features"
            )
        model: LinearModel
        if content["kind"] == "classifier":
            model = LinearClassifier(loss=content["loss"], regularisation=content["regularisation"])
            model.classes_ = np.array(content["classes"])
            model.coef_, model.intercept_ = coef, intercept
        else:
            model = LinearRegressor(regularisation=content["regularisation"])
            model.coef_, model.intercept_ = coef[0], float(intercept[0])
        model.feature_names_in_, model.n_features_in_ = names, len(names)
        model.means_ = means
        model.gap_ = math.nan if content["gap"] is None else content["gap"]
    except (ValueError, KeyError, TypeError, IndexError) as problem:
        raise CheckpointError(
            f"{path} is not a model that this version wrote ({type(problem).__name__}: {problem}); "
            "run the experiment again with --overwrite."
        ) from problem
    return model
