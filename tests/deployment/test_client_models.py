"""What a run over sites leaves: the output folder of any run, and each site's own model."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pandas as pd
import pytest

import four_sites
import sites
from intarsia.deployment import client_models
from intarsia.deployment import run as remote_running
from intarsia.deployment.client_setup import site_in
from intarsia.engines.remote.caller import RetryPolicy
from intarsia.errors import CheckpointError
from intarsia.experiment import federation
from intarsia.inference.coefficients import coefficients
from intarsia.inference.predict import predict
from intarsia.training import run as running

PATIENCE = RetryPolicy(seconds=60.0, deadline=60.0)


def both(folder, algorithm, mode="masked", more="", prepare=lambda folder, description: None):
    """Return what the run over sites comes to, and the one in this process.

    `prepare` changes tables before sites read them.
    """
    described = four_sites.write_tables(algorithm, folder)
    for name, text in described.items():
        (folder / name).mkdir()
        written = four_sites.site_toml(name, text, folder, more)
        (folder / name / "site.toml").write_text(written)
    description = four_sites.experiment_of(algorithm, described, folder, mode=mode)
    prepare(folder, description)
    found = {name: site_in(folder / name) for name in described}
    over = folder / "sites"
    result = remote_running.run_over(
        description, sites.Lines(found), four_sites.NAMES, over, patience=PATIENCE
    )
    secrets = sites.in_run_of(over, {name: folder / name for name in found})
    return result, running.run(description, out=folder / "one", secrets=secrets)


def same(folder, result, expected):
    """Check that the output folders are of the same run."""
    assert result.metrics == expected.metrics
    assert result.bytes == expected.bytes
    assert result.certificate == expected.certificate
    one, over = folder / "one", folder / "sites"
    assert {path.name for path in one.iterdir()} - {"keys", "keys.json"} - {
        path.name for path in over.iterdir()
    } <= {"model"}
    lines = [
        [json.loads(line) for line in (place / "history.jsonl").read_text().splitlines()]
        for place in (one, over)
    ]
    for line in (*lines[0], *lines[1]):
        del line["seconds"]
    assert lines[0] == lines[1]
    assert (one / "audit.json").read_text() == (over / "audit.json").read_text()


def same_predictions(found, expected, folder, name, client=None):
    table = folder / f"{name}.csv"
    one, two = predict(found, table), predict(expected, table, client=client)
    assert list(one.rows) == list(two.rows)
    assert len(one.scores)


def test_each_site_keeps_its_part_and_the_server_predicts_where_all_give_their_scales(tmp_path):
    result, expected = both(tmp_path, "hyfdca", more="scales = true")
    same(tmp_path, result, expected)
    assert result.notes == expected.notes
    assert (tmp_path / "sites/model/linear.json").read_bytes() == (
        tmp_path / "one/model/linear.json"
    ).read_bytes()
    loaded = running.load(tmp_path / "sites")
    np.testing.assert_array_equal(loaded.model.coef_, expected.model.coef_)
    for name in four_sites.NAMES:
        same_predictions(tmp_path / "sites", tmp_path / "one", tmp_path, name)
        # of the columns that a table lacks the whole model takes the means, and so does a part
        own = predict(tmp_path / name / "models" / "hyfdca", tmp_path / f"{name}.csv")
        np.testing.assert_allclose(
            own.scores, predict(tmp_path / "one", tmp_path / f"{name}.csv").scores, atol=1e-12
        )


@pytest.fixture(scope="module")
def with_errors(tmp_path_factory):
    """Return the folder and the results of both runs with errors, of sites that keep their scales.

    Read only.
    """
    tree, folder = four_sites.tree, tmp_path_factory.mktemp("with-errors")

    def asking(*given, **settings):
        found = tree(*given, **settings)
        own = {**found["algorithm"], "loss": "logistic", "errors": True}
        return {**found, "algorithm": own}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(four_sites, "tree", asking)
        return folder, *both(folder, "hyfdca")


def test_each_site_has_the_errors_of_its_own_coefficients(with_errors):
    folder, result, expected = with_errors
    same(folder, result, expected)
    whole = {(row.feature, row.output): row for row in expected.model.summary().rows}
    for name in four_sites.NAMES:
        rows = coefficients(folder / name / "models" / "hyfdca").rows
        columns = (folder / f"{name}.csv").read_text().splitlines()[0].split(",")
        own = {row for row in rows if not row.feature.startswith("intercept")}
        assert {row.feature.split("=")[0] for row in own} <= set(columns)
        assert {(row.feature, row.output) for row in own} < whole.keys()
        for row in own:  # Newton's system is turned by fresh secrets: errors are rounded otherwise
            of_all = whole[row.feature, row.output]
            assert row.estimate == of_all.estimate
            assert row.error == pytest.approx(of_all.error, rel=1e-9)
        # the intercept is the site's part, and at the means that of all
        centred = [row for row in rows if row.feature.endswith("means")]
        assert centred
        for row in centred:
            of_all = whole[row.feature, row.output]
            assert row.estimate == pytest.approx(of_all.estimate, abs=1e-9)
            assert row.error == pytest.approx(of_all.error, rel=1e-9)


def test_a_site_that_keeps_its_scales_leaves_the_server_without_a_model(with_errors):
    folder, result, _ = with_errors
    assert result.model is None
    assert "'bank', 'branch', 'telecom', 'retailer' keep means and scales" in result.notes[-1]
    with pytest.raises(CheckpointError, match="each site has its own"):
        predict(folder / "sites", folder / "bank.csv")
    (note,) = predict(folder / "bank/models/hyfdca", folder / "bank.csv").notes
    assert "is the table of 'bank' in this run" in note


def test_a_name_of_an_experiment_is_no_path_at_a_site(tmp_path):
    described = four_sites.write_tables("hyfdca", tmp_path)
    description = four_sites.experiment_of("hyfdca", described, tmp_path)
    expected = running.run(description, out=None)
    odd = dataclasses.replace(description, name="../../.x/y")
    place = client_models.keep(expected.model, odd, tmp_path / "own", "0a")
    assert place == tmp_path / "own" / "models" / "_______x_y-35fda3b651cc3866"


def test_each_name_has_a_model_of_its_own_at_a_site(tmp_path):
    described = four_sites.write_tables("hyfdca", tmp_path)
    description = four_sites.experiment_of("hyfdca", described, tmp_path)
    model = running.run(description, out=None).model
    plain = ("v1.2", "v1_2", "v1-2", 99 * "a" + "1", 99 * "a" + "2")
    others = ("v1/2", "v1:2", "v1 2", "Kühe", "Kuhe!", 300 * "b", 301 * "b", "..", ".", "", "-x")
    for number, name in enumerate((*plain, *others)):
        named = dataclasses.replace(description, name=name)
        place = client_models.keep(model, named, tmp_path, f"{number:x}")
        assert place.parent == tmp_path / "models"
        assert place.name == name or name not in plain  # as docs/how-to/deployment.md says
    kept = [path for path in (tmp_path / "models").iterdir() if (path / "model").is_dir()]
    assert len(kept) == len(plain) + len(others)


def without_a_class_in_training(folder, description):
    """Leave out the labels of class r of the bank's training rows."""
    tested = federation.build(description).test["bank"].x[:, 0]
    table = pd.read_csv(folder / "bank.csv")
    known = np.isclose(table["l1"].to_numpy()[:, None], tested, rtol=0, atol=1e-9).any(axis=1)
    table.loc[(table["kind"] == "r") & ~known, "kind"] = None
    table.to_csv(folder / "bank.csv", index=False)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["flic", "femam", "hyfem"])
def test_each_site_keeps_its_network_and_the_server_its_own(tmp_path, algorithm):
    pytest.importorskip("torch")
    prepare = {"prepare": without_a_class_in_training} if algorithm == "hyfem" else {}
    result, expected = both(tmp_path, algorithm, more="scales = true", **prepare)
    same(tmp_path, result, expected)
    assert result.notes == expected.notes
    for name in four_sites.NAMES:
        same_predictions(
            tmp_path / name / "models" / algorithm, tmp_path / "one", tmp_path, name, name
        )
    if algorithm != "hyfem":
        assert result.model is None
        return
    shares = {name: one.figures.untrained_classes for name, one in result.metrics.clients.items()}
    told = {name for name, share in shares.items() if share is not None}
    assert told == {"bank"}  # the others have all classes in training
    four_sites.whole().to_csv(tmp_path / "all.csv", index=False)
    same_predictions(tmp_path / "sites", tmp_path / "one", tmp_path, "all", "server")
