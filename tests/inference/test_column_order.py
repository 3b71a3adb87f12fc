"""Tables whose columns have no names: which of a model's features an array's columns are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array
from sklearn.datasets import dump_svmlight_file, load_svmlight_file
from sklearn.linear_model import LogisticRegression

import intarsia
from intarsia.data.parsing import numbered
from intarsia.models.linear import LinearClassifier

WIDTH = 23  # more than ten: as text, "10" stands before "2"
WEIGHT = 1e-2


def drawn(rows: int = 240) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(7)
    x = rng.normal(size=(rows, WIDTH))
    return x, np.where(x @ np.linspace(-1, 2, WIDTH) > 0, 1, 0)


def trained(**settings):
    given = {"loss": "logistic", "regularisation": WEIGHT, "standardise": False, "test": 0.0}
    return intarsia.run(tolerance=1e-9, **{**given, **settings}).model


def check_against_scikit_learn(model: LinearClassifier, x: np.ndarray, y: np.ndarray) -> None:
    """Hold the scores of a table without names against those of a solver that knows no names."""
    design = np.hstack([x, np.ones((len(x), 1))])  # the intercept is regularised
    solver = LogisticRegression(C=1 / (WEIGHT * len(x)), fit_intercept=False, tol=1e-10)
    expected = solver.fit(design, y).decision_function(design)
    assert model.decision_function(x) == pytest.approx(expected, abs=1e-3)
    assert model.decision_function(csr_array(x)) == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("kind", ["libsvm", "npz"])
def test_files_without_names_train_a_model_of_their_columns(kind: str, tmp_path: Path) -> None:
    x, y = drawn()
    lines = ['algorithm = { name = "hyfdca" }']
    for name, rows in (("a", slice(100)), ("b", slice(100, None))):
        path = tmp_path / f"{name}.{kind}"
        if kind == "npz":
            np.savez(path, x=x[rows], y=y[rows])
        else:
            dump_svmlight_file(x[rows], y[rows], str(path), zero_based=False)
        lines.append(f'[[client]]\nname = "{name}"\npath = "{path.name}"')
    (tmp_path / "e.toml").write_text("\n".join(lines))
    model = trained(experiment=tmp_path / "e.toml", out=None)
    names = range(WIDTH) if kind == "npz" else range(1, WIDTH + 1)
    stem = "x" if kind == "npz" else ""
    assert list(model.feature_names_in_) == [f"{stem}{number}" for number in names]
    check_against_scikit_learn(model, x, y)
    if kind == "libsvm":
        again = load_svmlight_file(str(tmp_path / "b.libsvm"), n_features=WIDTH)[0]
        assert model.decision_function(again) == pytest.approx(model.decision_function(x[100:]))


@pytest.mark.parametrize("columns", [None, range(WIDTH)], ids=["array", "frame"])
def test_tables_in_memory_train_a_model_of_their_columns(columns: range | None) -> None:
    x, y = drawn()
    if columns is None:
        tables = {"a": (x[:100], y[:100]), "b": (x[100:], y[100:])}
        model = trained(tables=tables)
    else:
        frame = pd.DataFrame(x, columns=columns).assign(y=y)
        model = trained(tables={"a": frame[:100], "b": frame[100:]}, label="y")
    check_against_scikit_learn(model, x, y)


def test_a_data_set_cut_into_blocks_of_columns_comes_to_its_order(tmp_path: Path) -> None:
    x, y = drawn()
    np.savez(tmp_path / "all.npz", x=x, y=y)
    grid = '[partition]\nkind = "grid"\nrows = 2\ncolumns = 3\nshuffle_columns = true'
    (tmp_path / "e.toml").write_text(
        f'algorithm = {{ name = "hyfdca" }}\n[dataset]\npath = "all.npz"\n{grid}'
    )
    check_against_scikit_learn(trained(experiment=tmp_path / "e.toml", out=None), x, y)


@pytest.mark.filterwarnings("ignore:The array has no column names:UserWarning")
def test_names_go_in_the_order_of_the_tables() -> None:
    x, y = drawn()
    names = [f"{letter}{at}" for at, letter in enumerate("qwertzuiopasdfghjklyxcv")]
    frame = pd.DataFrame(x, columns=names).assign(label=y)
    check_against_scikit_learn(trained(tables={"all": frame}, label="label"), x, y)
    parts = {"a": frame[["label", *names[5:]]], "b": frame[names[:7]]}
    tables = {name: part.assign(row=range(len(x))) for name, part in parts.items()}
    model = trained(tables=tables, id="row", label="label")
    assert list(model.feature_names_in_) == [*names[5:], *names[:5]]
    check_against_scikit_learn(model, np.hstack([x[:, 5:], x[:, :5]]), y)


def test_a_table_with_another_order_of_numbers_keeps_it() -> None:
    x, y = drawn()
    names = [f"x{at}" for at in np.random.default_rng(1).permutation(WIDTH)]
    model = trained(tables={"all": pd.DataFrame(x, columns=names).assign(y=y)}, label="y")
    assert list(model.feature_names_in_) == names
    with pytest.warns(UserWarning, match="in the order of feature_names_in_"):
        check_against_scikit_learn(model, x, y)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["10", "2", "0"], {"10": 10, "2": 2, "0": 0}),
        (["x10", "x2"], {"x10": 10, "x2": 2}),
        (["x1", "y2"], None),
        (["x1", "2"], None),
        (["x01", "x2"], None),
        (["age"], None),
        ([], {}),
    ],
)
def test_names_that_are_numbers(names: list[str], expected: dict[str, int] | None) -> None:
    assert numbered(names) == expected
