"""A column of numbers that one row alone has, such as a code of 0 and 1: open.

A rare level of a category counts as "other". A column that a party made of one has a weight of its
own in the model that the server reads, which tells the row's label. docs/explanations/privacy/
site-refusals.md says so.
"""

from __future__ import annotations

import numpy as np

from intarsia.experiment import config as experiment
from intarsia.models.serialization import read_model
from intarsia.training import run as running

ROWS, CODES = 200, 30


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
    tree = {
        "experiment": {"rounds": 20, "yardsticks": False},
        "algorithm": {"name": "hyfdca", "loss": "logistic", "regularisation": 0.001},
        "privacy": {"mode": "masked"},
        "split": {"test": 0.0},
        "client": [
            {"name": name, "path": f"{name}.csv", "label": "label"} for name in ("bank", "shop")
        ],
    }
    running.run(experiment.from_dict(tree, tmp_path), out=tmp_path / "out")
    model = read_model(tmp_path / "out" / "model")
    weights = dict(zip(model.feature_names_in_, np.ravel(model.coef_), strict=True))
    told = ["yes" if weights[f"code{place}"] > 0 else "no" for place in range(CODES)]
    assert told == labels[rows].tolist()
