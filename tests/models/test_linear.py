"""The estimators: scikit-learn's own checks, its solvers as truth, and models from weights."""

import pickle

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.svm import LinearSVC
from sklearn.utils.estimator_checks import parametrize_with_checks

from federations import ON_SIGNS
from intarsia.core.block import Block
from intarsia.errors import ExperimentError, TableError
from intarsia.maths.linear.losses import LOSSES, value
from intarsia.models.linear import LinearClassifier, LinearRegressor

FEATURES = ["age", "income", "debt"]
MEANS = {"age": 40.0, "income": 3000.0, "debt": 0.0}
SCALES = {"age": 10.0, "income": 500.0, "debt": 2.0}
WEIGHTS = {"age": 1.0, "income": -2.0, "debt": 0.5}
ROWS = np.array([[50.0, 3000.0, 4.0], [30.0, 2500.0, 0.0], [40.0, 3500.0, -2.0]])
SCORES = [1.0 + 0.0 + 1.0 + 0.25, -1.0 + 2.0 + 0.0 + 0.25, 0.0 - 2.0 - 0.5 + 0.25]

# told of arrays whose columns the model knows by names
unnamed = pytest.mark.filterwarnings("ignore:The array has no column names:UserWarning")


# no check is exempted; some of scikit-learn's tables are not standardised on purpose, and the
# estimators warn there
@parametrize_with_checks(
    [
        *(LinearClassifier(loss=loss) for loss in ON_SIGNS),
        LinearClassifier(fit_intercept=False),
        LinearRegressor(),
        LinearRegressor(fit_intercept=False),
    ]
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_the_estimators_pass_scikit_learns_checks(estimator, check):
    check(estimator)


def table(samples=150, features=6, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(samples, features))
    y = np.where(x @ rng.normal(size=features) + 0.3 + rng.normal(size=samples) > 0, "yes", "no")
    return x, y


def objective(x, y, coef, intercept, loss, regularisation):
    w = np.append(coef, intercept)
    scores = np.column_stack([x, np.ones(len(x))]) @ w
    return value(LOSSES[loss], scores, y).mean() + 0.5 * regularisation * w @ w


@pytest.mark.parametrize(
    ("loss", "solver"),
    [
        ("hinge", LinearSVC(loss="hinge", tol=1e-10, max_iter=10**6)),
        ("squared_hinge", LinearSVC(tol=1e-10, max_iter=10**6)),
        ("logistic", LogisticRegression(solver="liblinear", tol=1e-10)),
    ],
)
def test_the_classifier_reaches_liblinears_objective(loss, solver):
    # liblinear regularises the weight of its constant feature as well (intercept_scaling = 1)
    x, y = table()
    ours = LinearClassifier(loss=loss, regularisation=0.02, tolerance=1e-9).fit(x, y)
    theirs = clone(solver).set_params(C=1 / (0.02 * len(y))).fit(x, y)
    signs = np.where(y == "yes", 1.0, -1.0)
    reached = objective(x, signs, ours.coef_, ours.intercept_, loss, 0.02)
    assert reached == pytest.approx(
        objective(x, signs, theirs.coef_, theirs.intercept_, loss, 0.02), rel=1e-6
    )
    assert ours.gap_ <= 1e-9
    assert np.array_equal(ours.predict(x), theirs.predict(x))
    if loss == "logistic":
        assert ours.predict_proba(x) == pytest.approx(theirs.predict_proba(x), abs=1e-4)


def test_the_regressor_is_ridge_with_a_constant_feature():
    x, _ = table()
    y = x @ np.arange(6.0) + 2.0
    ours = LinearRegressor(regularisation=0.05, tolerance=1e-12, max_epochs=5000).fit(x, y)
    with_constant = np.column_stack([x, np.ones(len(x))])
    theirs = Ridge(alpha=0.05 * len(y), fit_intercept=False).fit(with_constant, y)
    assert np.append(ours.coef_, ours.intercept_) == pytest.approx(theirs.coef_, abs=1e-5)


def test_three_classes_are_three_models_against_the_rest():
    x, _ = table()
    y = np.array(["a", "b", "c"])[np.argmax(x[:, :3], axis=1)]
    together = LinearClassifier(loss="logistic", tolerance=1e-9).fit(x, y)
    assert together.coef_.shape == (3, 6)
    for number, one in enumerate(together.classes_):
        alone = LinearClassifier(loss="logistic", tolerance=1e-9).fit(x, y == one)
        assert together.coef_[number] == pytest.approx(alone.coef_[0], abs=1e-2)
    probabilities = together.predict_proba(x)
    assert probabilities.sum(axis=1) == pytest.approx(np.ones(len(x)))
    assert np.array_equal(together.classes_[probabilities.argmax(axis=1)], together.predict(x))


def test_sparse_and_dense_tables_give_the_same_model():
    x, y = table()
    x[np.abs(x) < 0.7] = 0.0
    dense, sparse = LinearClassifier().fit(x, y), LinearClassifier().fit(csr_array(x), y)
    assert sparse.coef_ == pytest.approx(dense.coef_, abs=1e-8)
    assert sparse.decision_function(csr_array(x)) == pytest.approx(dense.decision_function(x))


def test_only_the_logistic_loss_has_probabilities():
    assert hasattr(LinearClassifier(loss="logistic"), "predict_proba")
    assert not hasattr(LinearClassifier(loss="hinge"), "predict_proba")


def test_a_training_that_stops_early_warns_with_its_gap():
    x, y = table()
    with pytest.warns(ConvergenceWarning, match="after 1 epochs at a relative duality gap"):
        model = LinearClassifier(max_epochs=1, tolerance=1e-12).fit(x, y)
    assert model.n_iter_ == 1
    assert model.gap_ > 1e-12


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ({"loss": "hinj"}, "use 'hinge'"),
        ({"regularisation": 0.0}, "regularisation is 0.0; it must be a positive"),
        ({"tolerance": 0.0}, "tolerance is 0.0; it must be positive"),
        ({"max_epochs": 0}, "max_epochs is 0; it must be at least 1"),
    ],
)
def test_a_wrong_hyperparameter_is_named(setting, sentence):
    x, y = table()
    with pytest.raises(ExperimentError, match=sentence):
        LinearClassifier(**setting).fit(x, y)


def test_one_class_is_not_enough():
    with pytest.raises(TableError, match="1 class, 'no'"):
        LinearClassifier().fit(np.ones((3, 2)), ["no"] * 3)


def federated(**changes):
    given = {"means": MEANS, "scales": SCALES, "intercept": 0.25, "classes": ["no", "yes"]}
    return LinearClassifier.from_weights(WEIGHTS, **(given | changes))


@unnamed
def test_a_model_from_weights_scores_standardised_values():
    model = federated(gap=1e-7)
    assert model.decision_function(ROWS) == pytest.approx(SCORES)
    assert model.predict(ROWS).tolist() == ["yes", "yes", "no"]
    assert model.feature_names_in_.tolist() == FEATURES
    assert model.n_features_in_ == 3
    assert model.gap_ == 1e-7
    again = pickle.loads(pickle.dumps(model))
    assert np.array_equal(again.decision_function(ROWS), model.decision_function(ROWS))


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_columns_are_found_by_name_in_any_order(frame):
    columns = {name: ROWS[:, i] for i, name in enumerate(FEATURES)}
    shuffled = {"debt": columns["debt"], "name": ["x", "y", "z"], "income": columns["income"]}
    model = federated()
    assert model.decision_function(frame(shuffled | {"age": columns["age"]})) == pytest.approx(
        SCORES
    )
    # without the column age, every sample has the mean age
    assert model.decision_function(frame(shuffled)) == pytest.approx(
        np.array(SCORES) - (ROWS[:, 0] - 40.0) / 10.0
    )


@unnamed
@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame, np.asarray])
def test_a_missing_value_counts_as_the_mean(frame):
    rows = ROWS.copy()
    rows[0, 0] = np.nan
    given = rows if frame is np.asarray else frame(dict(zip(FEATURES, rows.T, strict=True)))
    expected = [SCORES[0] - 1.0, *SCORES[1:]]
    assert federated().decision_function(given) == pytest.approx(expected)


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_numbers_as_text_and_question_marks_are_read_as_from_a_file(frame):
    given = frame({"age": ["50", "?", ""], "debt": ["true", "false", "true"]})
    expected = np.array([1.0, 0.0, 0.0]) + 0.5 * np.array([0.5, 0.0, 0.5]) + 0.25
    assert federated().decision_function(given) == pytest.approx(expected)


def test_a_null_of_a_polars_column_counts_as_the_mean():
    frame = pl.DataFrame({"age": [50, None], "income": [3000, 3000]})
    assert federated().decision_function(frame) == pytest.approx([1.25, 0.25])


@unnamed
@pytest.mark.parametrize("layout", [np.asarray, csr_array], ids=["dense", "csr"])
def test_a_block_is_read_by_its_feature_names(layout):
    block = Block(np.arange(3), ("income", "other", "age"), layout(ROWS[:, [1, 2, 0]]))
    expected = np.array(SCORES) - 0.5 * ROWS[:, 2] / 2.0
    assert federated().decision_function(block) == pytest.approx(expected)
    assert federated().decision_function(csr_array(ROWS)) == pytest.approx(SCORES)


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_columns_of_categories_count_as_their_levels(frame):
    names = ["city=a=b", "city=c", "age", "p=n=1", "p=n=2"]  # "=" in a level, and in a name
    weights = dict(zip(names, [1.0, 2.0, 4.0, 8.0, 16.0], strict=True))
    means = dict(zip(names, [0.5, 0.25, 40.0, 0.125, 0.75], strict=True))
    model = LinearRegressor.from_weights(
        weights, means=means, scales=dict.fromkeys(names, 1.0), intercept=-1.0
    )
    given = {"p=n": [1, 2, 2, None], "city": ["c", "a=b", "else", None], "age": [40.0, 41, 40, 40]}
    city = [[-0.5, 2 * 0.75], [0.5, -2 * 0.25], [0.0, 0.0], [0.0, 0.0]]
    plan = [[8 * 0.875, -16 * 0.75], [-8 * 0.125, 16 * 0.25], [-8 * 0.125, 16 * 0.25], [0.0, 0.0]]
    expected = np.sum(city, axis=1) + np.sum(plan, axis=1) + [0, 4, 0, 0] - 1.0
    assert model.predict(frame(given)) == pytest.approx(expected)
    # columns of the levels go before the text that they came from
    coded = given | {"city=a=b": [0.5] * 4, "city=c": [0.25] * 4}
    assert model.predict(frame(coded)) == pytest.approx(expected - np.sum(city, axis=1))
    assert model.predict(frame(given)[:0]).shape == (0,)


def test_columns_without_names_are_said_to_be_taken_in_the_models_order():
    with pytest.warns(UserWarning, match="taken for 'age', 'income', 'debt', in the order of feat"):
        federated().predict(ROWS)
    numbers = {f"x{at}": weight for at, weight in enumerate(WEIGHTS.values())}
    model = LinearRegressor.from_weights(
        numbers, means=dict.fromkeys(numbers, 0.0), scales=dict.fromkeys(numbers, 1.0), intercept=0
    )
    assert model.predict(ROWS) == pytest.approx(ROWS @ [1.0, -2.0, 0.5])


@unnamed
def test_a_model_of_three_classes_from_weights():
    model = LinearClassifier.from_weights(
        {"a": np.array([1.0, 0.0, -1.0]), "b": np.array([0.0, 2.0, 0.0])},
        means={"a": 0.0, "b": 0.0},
        scales={"a": 1.0, "b": 1.0},
        intercept=np.zeros(3),
        classes=[10, 20, 30],
    )
    rows = np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    assert model.decision_function(rows).shape == (3, 3)
    assert model.predict(rows).tolist() == [10, 20, 30]


@unnamed
def test_a_regressor_from_weights():
    model = LinearRegressor.from_weights(WEIGHTS, means=MEANS, scales=SCALES, intercept=0.25)
    assert model.predict(ROWS) == pytest.approx(SCORES)
    assert model.coef_.shape == (3,)
    assert isinstance(model.intercept_, float)


def test_training_anew_forgets_the_federations_means():
    model = federated().fit(np.eye(3), [0, 1, 0])
    with pytest.raises(ValueError, match="NaN"):
        model.predict(np.full((1, 3), np.nan))


@unnamed
@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (ROWS[:, :2], r"shape \(3, 2\)"),
        (ROWS[0], r"shape \(3,\)"),
        (pd.DataFrame({"colour": [1.0]}), "none of the model's 3 features"),
        (pd.DataFrame({"age": ["old"]}), "column 'age' has text .such as 'old'. but was numeric"),
        (
            pd.DataFrame({"age": ["old", "4"]}),
            "The table: column 'age' mixes .*; correct it, or re",
        ),
        (pd.DataFrame({"age": [pd.Timestamp(0)]}), "The table: column 'age' has dates or times"),
        (pd.DataFrame([[1.0, 2.0]], columns=["age", "age"]), "column 'age' appears more than once"),
        (pl.DataFrame({"age": [1.0]}).lazy(), "is a polars.LazyFrame; expected a DataFrame"),
        (
            pa.table({"age": [1.0]}),
            "is a pyarrow.Table; expected a DataFrame or an array: pass wha",
        ),
        (pd.DataFrame({"age": [1.0]}).loc[0], r"pandas.Series; .* of a row to_frame\(\)\.T\."),
        ({"age": [1.0]}, r"is a dict; expected a DataFrame or an array: pass pandas.DataFrame"),
        (np.array([["a", "b", "c"]]), "array is not numeric"),
        (np.full((1, 3), np.inf), "infinite"),
        (csr_array(np.full((1, 3), np.nan)), "NaN in a sparse array"),
    ],
)
def test_a_table_that_does_not_fit_the_model_is_a_clear_error(given, sentence):
    with pytest.raises(TableError, match=sentence):
        federated().predict(given)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"means": {"age": 1.0}}, "'income' has a weight but no mean"),
        ({"scales": SCALES | {"age": 0.0}}, "scale of the feature 'age' is 0.0"),
        ({"classes": ["a", "b", "c"]}, "1 outputs but there are 3 classes"),
        ({"intercept": np.zeros(2)}, r"\[1, 2\] outputs"),
        ({"loss": "log"}, "There is no loss 'log'"),
    ],
)
def test_weights_that_do_not_fit_together_are_a_clear_error(changes, sentence):
    with pytest.raises(ExperimentError, match=sentence):
        federated(**changes)


def test_a_regressor_has_one_output():
    with pytest.raises(ExperimentError, match="2 outputs; a regressor"):
        LinearRegressor.from_weights(
            {"a": np.ones(2)}, means={"a": 0.0}, scales={"a": 1.0}, intercept=np.zeros(2)
        )
