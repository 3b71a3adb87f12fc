"""A column of numbers that one row alone has, such as a code of 0 and 1: open. Of levels it is not.

A column that a party made of a rare code has a weight of its own in the model that the server
reads, which tells the row's label. docs/explanations/privacy/site-refusals.md says so. A rare level
of a category counts as "other", whose weight told the label where one row had any. Levels of fewer
than five training rows of a client, "other" too, count as missing there now.
"""

from __future__ import annotations

import numpy as np
import pytest

from intarsia.experiment import config as experiment
from intarsia.models.serialization import read_model
from intarsia.training import run as running

ROWS, CODES = 200, 30


def weights_of(tmp_path, **more):
    """Return the weights of the model that `bank` and `shop` train, with more keys for each."""
    tree = {
        "experiment": {"rounds": 20, "yardsticks": False},
        "algorithm": {"name": "hyfdca", "loss": "logistic", "regularisation": 0.001},
        "privacy": {"mode": "masked"},
        "split": {"test": 0.0},
        "client": [
            {"name": name, "path": f"{name}.csv", "label": "label", **more}
            for name in ("bank", "shop")
        ],
    }
    running.run(experiment.from_dict(tree, tmp_path), out=tmp_path / "out")
    model = read_model(tmp_path / "out" / "model")
    return dict(zip(model.feature_names_in_, np.ravel(model.coef_), strict=True))


def test_weights_of_columns_that_one_row_alone_has_tell_its_label(tmp_path):
    rng = np.random.default_rng(0)
    x, codes = rng.normal(size=(ROWS, 4)), np.zeros((ROWS, CODES), int)
    labels = np.where(x[:, 0] + rng.normal(size=ROWS) > 0, "yes", "no")
    rows = rng.choice(ROWS, CODES, replace=False)
    codes[rows, np.arange(CODES)] = 1
    header = [*(f"x{place}" for place in range(4)), *(f"code{place}" for place in range(CODES))]
    lines = [
        ",".join([*map("{:.4f}".format, own), *map(str, some), label])
        for own, some, label in zip(x, codes, labels, strict=True)
    ]
    for name, part in {"bank": lines[::2], "shop": lines[1::2]}.items():
        (tmp_path / f"{name}.csv").write_text("\n".join([",".join([*header, "label"]), *part]))
    weights = weights_of(tmp_path)
    told = ["yes" if weights[f"code{place}"] > 0 else "no" for place in range(CODES)]
    assert told == labels[rows].tolist()


@pytest.mark.parametrize("label", ["yes", "no"])
@pytest.mark.parametrize("least_rows", [1, 5])
def test_the_weight_of_a_level_tells_no_label_of_the_only_row_that_has_it(
    tmp_path, least_rows, label
):
    rng = np.random.default_rng(0)
    x, towns = rng.normal(size=ROWS), rng.choice(["a", "b"], ROWS).astype("<U4")
    labels = np.where(x + rng.normal(size=ROWS) > 0, "yes", "no")
    towns[7], labels[7] = "tiny", label
    for at, name in enumerate(("bank", "shop")):
        rows = range(at, ROWS, 2)
        lines = [f"{row},{x[row]:.4f},{towns[row]},{labels[row]}" for row in rows]
        (tmp_path / f"{name}.csv").write_text("\n".join(["id,x,town,label", *lines]))
    weights = weights_of(tmp_path, least_rows=least_rows)
    weight = weights.get("town=tiny" if least_rows == 1 else "town=other", 0.0)
    assert np.sign(weight) == (least_rows == 1) * (1 if label == "yes" else -1)
