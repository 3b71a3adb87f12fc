"""What one row alone has tells its label by the weights of the model that the server reads.

A column that a party made of a rare code has a weight of its own, and so has the rare level of a
category. Both are left out where fewer than five training rows of a client have them. Rows count as
they train: a level of six rows of which one has a label is a rare one. Nor does the constant's
weight, less those of all levels, tell the one row that lacks a level.
"""

from __future__ import annotations

import numpy as np
import pytest

from intarsia.core.block import Block, Labels
from intarsia.core.schema import Schema
from intarsia.experiment import config as experiment
from intarsia.models.serialization import read_model
from intarsia.protocols.preprocessing.rare_values import without_rare
from intarsia.training import run as running

ROWS, CODES = 200, 30


def weights_of(tmp_path, standardise=True, label=("bank", "shop"), **more):
    """Return the weights of the model that `bank` and `shop` train, with more keys for each.

    `label`: who has labels. The constant's weight is that of "".
    """
    tree = {
        "experiment": {"rounds": 20, "yardsticks": False},
        "algorithm": {"name": "hyfdca", "loss": "logistic", "regularisation": 0.001},
        "privacy": {"mode": "masked"},
        "split": {"test": 0.0},
        "preprocessing": {"standardise": standardise},
        "client": [
            {"name": name, "path": f"{name}.csv", **more}
            | ({"label": "label"} if name in label else {})
            for name in ("bank", "shop")
        ],
    }
    running.run(experiment.from_dict(tree, tmp_path), out=tmp_path / "out")
    model = read_model(tmp_path / "out" / "model")
    weights = dict(zip(model.feature_names_in_, np.ravel(model.coef_), strict=True))
    return {**weights, "": float(np.ravel(model.intercept_)[0])}


@pytest.mark.parametrize("least_rows", [1, 5])
@pytest.mark.parametrize("sparse", [False, True])
def test_weights_of_columns_that_one_row_alone_has_tell_no_label(tmp_path, least_rows, sparse):
    rng = np.random.default_rng(0)
    x, codes = rng.normal(size=(ROWS, 4)), np.zeros((ROWS, CODES), int)
    labels = np.where(x[:, 0] + rng.normal(size=ROWS) > 0, "yes", "no")
    rows = rng.choice(ROWS, CODES, replace=False)
    codes[rows, np.arange(CODES)] = 1
    more = {"least_rows": least_rows}
    names = [*(f"x{place}" for place in range(4)), *(f"code{place}" for place in range(CODES))]
    for at, name in enumerate(("bank", "shop")):
        values, told = np.hstack([x, codes])[at::2], labels[at::2]
        if sparse:
            lines = [
                " ".join(
                    [
                        str(int(one == "yes")),
                        *(f"{c + 1}:{own[c]:.4f}" for c in np.flatnonzero(own)),
                    ]
                )
                for own, one in zip(values, told, strict=True)
            ]
            (tmp_path / f"{name}.csv").write_text("\n".join(lines))
            continue
        lines = [
            ",".join([*map("{:.4f}".format, own), one])
            for own, one in zip(values, told, strict=True)
        ]
        (tmp_path / f"{name}.csv").write_text("\n".join([",".join([*names, "label"]), *lines]))
    if sparse:
        weights = weights_of(tmp_path, format="libsvm", label=(), **more)
    else:
        weights = weights_of(tmp_path, **more)
    own = [*weights.values()][4 : 4 + CODES]
    if least_rows == 1:
        assert ["yes" if one > 0 else "no" for one in own] == labels[rows].tolist()
    else:
        assert own == [0.0] * CODES


@pytest.mark.parametrize("least_rows", [1, 5])
def test_rows_count_that_have_a_label_and_values_that_are_there(tmp_path, least_rows):
    rng = np.random.default_rng(0)
    x, towns = rng.normal(size=ROWS), rng.choice(["a", "b"], ROWS).astype("<U4")
    labels = np.where(x + rng.normal(size=ROWS) > 0, "yes", "no")
    towns[[7, *range(ROWS - 5, ROWS)]] = "tiny"  # of which the first alone has a label
    tests = np.full(ROWS, "", "<U4")
    tests[[11, 13]], labels[[7, 11, 13]] = ["3", "9"], ["no", "yes", "no"]
    lines = [f"{row},{x[row]:.4f},{towns[row]},{tests[row]}" for row in range(ROWS)]
    (tmp_path / "bank.csv").write_text("\n".join(["id,x,town,test", *lines]))
    lines = [f"{row},{rng.normal():.4f},{labels[row]}" for row in range(ROWS - 20)]
    (tmp_path / "shop.csv").write_text("\n".join(["id,z,label", *lines]))
    weights = weights_of(tmp_path, label=("shop",), id="id", least_rows=least_rows)
    told = np.sign([weights.get("town=tiny", 0.0), weights["test"]])
    assert told.tolist() == ([-1, -1] if least_rows == 1 else [0, 0])


@pytest.mark.parametrize("label", ["yes", "no"])
@pytest.mark.parametrize(("towns", "standardise"), [(30, True), (30, False), (3, False)])
@pytest.mark.parametrize("least_rows", [1, 5])
def test_the_constant_and_the_levels_tell_no_label_of_the_only_row_without_one(
    tmp_path, label, towns, standardise, least_rows
):
    rng = np.random.default_rng(0)
    rows = 2 * ROWS
    x, own = rng.normal(size=rows), np.array([f"t{row % towns:02d}" for row in range(rows)])
    labels = np.where(x + rng.normal(size=rows) > 0, "yes", "no")
    own[7], labels[7] = "", label
    for at, name in enumerate(("bank", "shop")):
        lines = [f"{row},{x[row]:.4f},{own[row]},{labels[row]}" for row in range(at, rows, 2)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["id,x,town,label", *lines]))
    weights = weights_of(tmp_path, standardise, id="id", least_rows=least_rows)
    constant, told = weights[""], [name for name in weights if name.startswith("town=")]
    squares = dict.fromkeys(told, 1.0)  # of the scales
    if standardise:  # of which the model says how often each level is
        model = read_model(tmp_path / "out" / "model")
        squares = dict(zip(model.feature_names_in_, model.means_, strict=True))
        constant += weights["x"] * squares["x"]
        # rare levels of many are scaled as if more rows had them
        squares |= {name: max(squares[name], 0.05) for name in told if len(told) > 20}
    rest = constant - sum(weights[name] * squares[name] for name in told)
    sign = 1 if label == "yes" else -1
    assert (rest * sign > 1e-3) if least_rows == 1 else (abs(rest) < 1e-4)


@pytest.mark.parametrize("least", [1, 5])
@pytest.mark.parametrize("label", [-1.0, 1.0])
def test_who_has_all_but_one_of_the_rows_with_a_number_learns_no_label_of_that_one(label, least):
    """All that have a column open its weight: before the first step each row's label times it."""
    rows, told = np.arange(100), np.where(np.arange(100) % 2, 1.0, -1.0)
    told[10] = label
    x = np.isin(rows, [10, 60, 61, 62, 63, 64]).astype(np.float64)[:, None]
    blocks = {
        name: Block(own, ("code",), x[own], told[own], least_rows=np.array([least]))
        for name, own in {"bank": rows, "shop": rows[50:]}.items()
    }
    schema = Schema.of(blocks, Labels("binary", ("no", "yes")))
    aligned = {name: schema.align(name, one) for name, one in blocks.items()}
    trained = {n: without_rare(one, n, schema, standardise=True) for n, one in aligned.items()}
    total = sum(np.nansum(one.counted_once().x[:, 0] * one.y) for one in trained.values())
    known = np.nansum(trained["shop"].x[:, 0] * trained["shop"].y)
    assert total - known == (label if least == 1 else 0)


def test_columns_that_differ_in_one_row_tell_its_label(tmp_path):
    """Open: docs/explanations/privacy/few-rows.md says so."""
    rng = np.random.default_rng(0)
    x, rows = rng.normal(size=ROWS), rng.choice(ROWS, 20, replace=False)
    labels = np.where(x + rng.normal(size=ROWS) > 0, "yes", "no")
    towns = (rng.random((ROWS, 20)) < 0.3).astype(int)
    towns[rows, np.arange(20)] = 1
    codes = towns.copy()
    codes[rows, np.arange(20)] = 0
    names = [f"{kind}{place}" for kind in ("town", "code") for place in range(20)]
    for at, name in enumerate(("bank", "shop")):
        lines = [
            ",".join([f"{x[row]:.4f}", *map(str, (*towns[row], *codes[row])), labels[row]])
            for row in range(at, ROWS, 2)
        ]
        (tmp_path / f"{name}.csv").write_text("\n".join([",".join(["x", *names, "label"]), *lines]))
    weights = weights_of(tmp_path)
    model = read_model(tmp_path / "out" / "model")
    means = dict(zip(model.feature_names_in_, model.means_, strict=True))
    constant = weights[""] + sum(weights[one] * mean for one, mean in means.items())

    def of_rows(column):
        """Return the sum over the rows that have it, but for a factor that all columns share."""
        share = means[column]
        return share * (1 - share) * weights[column] + share * constant

    differ = [of_rows(f"town{place}") - of_rows(f"code{place}") for place in range(20)]
    assert ["yes" if one > 0 else "no" for one in differ] == labels[rows].tolist()


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
