"""Read tabular data sets: a9a, heart disease, credit default, mfeat, 20 newsgroups and others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet
from numpy.typing import NDArray
from scipy.sparse import csr_array, vstack

from intarsia.data.dataset import Dataset
from intarsia.datasets.files import file_in, number_columns, whole_numbers


def bci(home: Path) -> Dataset:
    """Read the tangent features of FLIC's BCI-common, with subjects as clients."""
    with np.load(file_in(home, "bci_common.npz"), allow_pickle=False) as file:
        x, y, test = file["features"], file["label"].astype(np.int64), file["is_test"]
        clients = np.array([f"subject{number:02d}" for number in file["client"]])
    return Dataset(
        "bci",
        np.arange(len(y), dtype=np.int64),
        tuple(f"tangent{number}" for number in range(x.shape[1])),
        x,
        y,
        test=test,
        departures="FLIC's BCI-common, whose features were fitted on train and test part together",
        clients=clients,
    )


def covtype15k(home: Path) -> Dataset:
    """Read the balanced subset of the forest cover types."""
    table = number_columns(file_in(home, "covtype15k.csv.gz"))
    samples = table.pop("Id").astype(np.int64)
    y = table.pop("Cover_Type").astype(np.int64)
    return Dataset(
        "covtype15k",
        samples,
        tuple(table),
        whole_numbers(table, np.int16),
        y,
        departures="the balanced subset of 15,120 rows (2,160 per class), not the 581,012 rows",
    )


def credit_default(home: Path) -> Dataset:
    """Read the credit card clients of Taiwan."""
    table = number_columns(file_in(home, "credit_default.csv.gz"))
    samples = table.pop("ID").astype(np.int64)
    y = table.pop("default.payment.next.month").astype(np.int64)
    return Dataset("credit_default", samples, tuple(table), whole_numbers(table, np.int32), y)


def heart(home: Path) -> Dataset:
    """Read the four hospitals of the heart disease data; missing values are NaN."""
    names: list[str] = []
    parts: list[NDArray[np.float64]] = []
    columns: tuple[str, ...] = ()
    for hospital in ("cleveland", "hungarian", "switzerland", "va"):
        table = number_columns(file_in(home, f"{hospital}.csv"), missing=("?",))
        columns = tuple(table)
        part = np.column_stack(list(table.values()))
        parts.append(part)
        names += [f"{hospital}:{row}" for row in range(len(part))]
    x = np.concatenate(parts)
    target = columns.index("target")
    kept = [place for place in range(len(columns)) if place != target]
    features = tuple(columns[place] for place in kept)
    return Dataset("heart", np.array(names), features, x[:, kept], x[:, target].astype(np.int64))


def a9a(home: Path) -> Dataset:
    """Read the train part of a9a."""
    from sklearn.datasets import load_svmlight_file  # here: it takes a second to import

    x, y = load_svmlight_file(str(file_in(home, "a9a.libsvm.gz")), n_features=123)
    return Dataset(
        "a9a",
        np.arange(len(y), dtype=np.int64),
        tuple(f"f{number}" for number in range(1, 124)),
        csr_array(x),
        y.astype(np.int64),
        departures="the train part (32,561 rows)",
    )


def mfeat(home: Path) -> Dataset:
    """Read the handwritten digits in six views, each as a feature block."""
    with np.load(file_in(home, "mfeat.npz"), allow_pickle=False) as file:
        views = {name: file[name] for name in file.files if name != "label"}
        y = file["label"].astype(np.int64)
    groups = {
        name: tuple(f"{name}{number:03d}" for number in range(view.shape[1]))
        for name, view in views.items()
    }
    return Dataset(
        "mfeat",
        np.arange(len(y), dtype=np.int64),
        tuple(feature for names in groups.values() for feature in names),
        np.concatenate(list(views.values()), axis=1),
        y,
        groups=groups,
    )


def news(home: Path) -> Dataset:
    """Read 20 newsgroups as two classes of tf-idf rows.

    The classes are those of news20.binary: "technical" is comp.*, sci.* and misc.forsale (ten
    newsgroups), "other" the remaining ten. The vocabulary and the inverse document frequencies
    are those of the train part, with the defaults of scikit-learn's TfidfVectorizer; columns are
    in alphabetical order.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer  # here: it takes a second

    table = pyarrow.parquet.read_table(file_in(home, "20news.parquet")).to_pydict()
    test = np.array([part == "test" for part in table["split"]])
    documents = table["text"]
    vectoriser = TfidfVectorizer()
    train, held_out = np.flatnonzero(~test), np.flatnonzero(test)
    train_rows = vectoriser.fit_transform([documents[row] for row in train])
    test_rows = vectoriser.transform([documents[row] for row in held_out])
    order = np.concatenate([train, held_out])
    technical = [name.startswith(("comp.", "sci.", "misc.")) for name in table["label"]]
    return Dataset(
        "20news",
        order.astype(np.int64),
        tuple(vectoriser.get_feature_names_out().tolist()),
        csr_array(vstack([train_rows, test_rows], format="csr")),
        np.where(technical, "technical", "other")[order],
        test=test[order],
        departures="two-class tf-idf of 20 newsgroups by date; stands in for news20.binary",
    )


def breast_cancer(_: Path) -> Dataset:
    """Return the breast cancer data of scikit-learn."""
    from sklearn.datasets import load_breast_cancer  # here: it takes a second to import

    table = load_breast_cancer()
    return Dataset(
        "breast_cancer",
        np.arange(len(table.target), dtype=np.int64),
        tuple(str(name) for name in table.feature_names),
        table.data,
        table.target_names[table.target],
    )
