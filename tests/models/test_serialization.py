from __future__ import annotations

import json

import numpy as np
import pytest

from intarsia.core.block import Block
from intarsia.errors import CheckpointError
from intarsia.models.linear import LinearClassifier, LinearRegressor
from intarsia.models.serialization import NAME, read_model, write_model

X = np.random.default_rng(0).normal(size=(20, 2))
BLOCK = Block(np.arange(20), ("a", "b"), X)
KNOWN = {"means": {"a": 0.1, "b": -1 / 3}, "scales": {"a": 2.0, "b": 0.7}}


def test_a_classifier_comes_back_to_the_same_bits(tmp_path):
    model = LinearClassifier.from_weights(
        {"a": 1 / 3, "b": -np.pi}, intercept=0.1, classes=("no", "ja ✓"), gap=1e-7, **KNOWN
    )
    write_model(model, tmp_path / "model")
    found = read_model(tmp_path / "model")
    assert isinstance(found, LinearClassifier)
    assert (found.loss, found.gap_) == ("logistic", 1e-7)
    np.testing.assert_array_equal(
        found.decision_function(BLOCK), model.decision_function(BLOCK), strict=True
    )
    np.testing.assert_array_equal(found.predict_proba(BLOCK), model.predict_proba(BLOCK))
    assert found.predict(BLOCK).tolist() == model.predict(BLOCK).tolist()


def test_more_classes_and_numbers_come_back(tmp_path):
    weights = {"a": np.array([1.0, 2.0, 3.0]), "b": np.array([0.5, 0.0, -0.5])}
    many = LinearClassifier.from_weights(
        weights, intercept=np.zeros(3), classes=("x", "y", "z"), loss="hinge", **KNOWN
    )
    number = LinearRegressor.from_weights({"a": 1.5, "b": 2.5}, intercept=7.0, **KNOWN)
    for name, model in (("many", many), ("number", number)):
        write_model(model, tmp_path / name)
        found = read_model(tmp_path / name)
        assert type(found) is type(model)
        assert found.predict(BLOCK).tolist() == model.predict(BLOCK).tolist()


def test_of_a_folder_with_runs_one_is_named(tmp_path):
    for name in ("b", "a"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "result.json").touch()
    with pytest.raises(CheckpointError, match=r"is no run and has 2; name one: \S+/a\.$"):
        read_model(tmp_path / "model")


def test_a_missing_model_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"linear\.json does not exist"):
        read_model(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"coef": [[1.0]]},
        {"means": []},
        {"features": None},
        {"levels": {"town": ["oslo"]}},  # of which no feature is one
        {"levels": ["a"]},
    ],
)
def test_a_damaged_model_is_named(tmp_path, change):
    model = LinearRegressor.from_weights({"a": 1.5, "b": 2.5}, intercept=7.0, **KNOWN)
    write_model(model, tmp_path)
    content = json.loads((tmp_path / NAME).read_text())
    (tmp_path / NAME).write_text(json.dumps({**content, **change}))
    with pytest.raises(CheckpointError, match="is not a model that this version wrote"):
        read_model(tmp_path)
    (tmp_path / NAME).write_text("{")
    with pytest.raises(CheckpointError, match="JSONDecodeError"):
        read_model(tmp_path)
