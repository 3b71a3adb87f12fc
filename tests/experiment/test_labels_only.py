"""A client with ids and labels only, and a label column that is a feature elsewhere."""

from __future__ import annotations

import numpy as np
import pandas
import pytest

import intarsia
from intarsia.errors import ExperimentError, FederationError, TableError
from intarsia.maths.linear import sdca
from intarsia.maths.linear.losses import LOGISTIC

SETTINGS = {"id": "id", "label": "default", "loss": "logistic", "regularisation": 1e-2}


@pytest.fixture(scope="module")
def tables():
    """A bank that knows the defaults of customers 0-119; a retailer with columns of 20-149."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(150, 3))
    late = (x @ [1.0, -2.0, 0.5] + 0.3 * rng.normal(size=150) > 0).astype(int)
    bank = pandas.DataFrame({"id": np.arange(120), "default": late[:120]})
    shop = pandas.DataFrame({"id": np.arange(20, 150), "a": x[20:, 0], "b": x[20:, 1]})
    return {"bank": bank, "shop": shop.assign(c=x[20:, 2])}


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("method", ["auto", "ascent"])
def test_labels_of_one_party_train_on_the_columns_of_another(tables, intercept, method):
    plain = {"test": 0.0, "standardise": False, "intercept": intercept, "method": method}
    found = intarsia.run(tables=tables, rounds=2000, **SETTINGS, **plain)
    assert found.finished == "tolerance"
    # the same table in one place: customers 0-19 have the intercept only
    both = tables["bank"].merge(tables["shop"], on="id", how="left").fillna(0.0)
    x = np.hstack([both[["a", "b", "c"]].to_numpy(), np.full((120, 1), float(intercept))])
    y = np.where(both["default"] == 1, 1.0, -1.0)[None, :]
    best = sdca.fit(
        x, y, loss=LOGISTIC, regularisation=1e-2, tolerance=1e-9, epochs=5000,
        rng=np.random.default_rng(0),
    )  # fmt: skip
    weight = dict(zip(found.model.feature_names_in_, found.model.coef_[0], strict=True))
    np.testing.assert_allclose([weight[n] for n in "abc"], best.w[0, :3], atol=2e-3)
    assert found.certificate.primal == pytest.approx(best.primal, rel=1e-6)


def test_what_the_baselines_cannot_do_they_say(tables):
    with pytest.raises(FederationError, match=r"cocoa needs the same features.*use \"hyfdca\""):
        intarsia.run(tables=tables, algorithm="cocoa", **SETTINGS)
    with pytest.raises(FederationError, match=r"No client with labels has a feature.*\"hyfdca\""):
        intarsia.run(tables=tables, algorithm="fedavg", **SETTINGS)


def test_columns_are_needed_somewhere_and_without_labels(tables):
    with pytest.raises(FederationError, match="No client has a feature column"):
        intarsia.run(tables={"bank": tables["bank"]}, **SETTINGS)
    with pytest.raises(TableError, match="a client without labels needs at least one"):
        intarsia.run(tables={**tables, "shop": tables["shop"][["id"]]}, **SETTINGS)


def test_a_label_column_that_is_a_feature_elsewhere_is_noted(tables):
    leak = tables["shop"].assign(default=1.0 * (tables["shop"]["b"] < 0))
    found = intarsia.run(
        tables={"bank": tables["bank"], "shop": leak},
        table_settings={"bank": {"label": "default"}},
        **{key: value for key, value in SETTINGS.items() if key != "label"},
    )
    notes = [note for note in found.notes if note.startswith("Column 'default' has the labels")]
    assert len(notes) == 1
    assert "is a feature at 'shop'" in notes[0]
    assert not any(
        "is a feature at" in one for one in intarsia.run(tables=tables, **SETTINGS).notes
    )


def test_a_wrong_column_lists_each_column_once(tables):
    with pytest.raises(ExperimentError) as raised:
        intarsia.run(tables=tables, **{**SETTINGS, "label": "zzz"})
    assert str(raised.value).endswith("use one of 'id', 'default', 'a', 'b', 'c'.")
