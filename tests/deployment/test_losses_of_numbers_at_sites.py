"""The losses of numbers over sites: as in one place, or refused in a sentence."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import four_sites
import sites
from intarsia.algorithms.hyfdca.newton import interior_point as newton_interior
from intarsia.algorithms.hyfdca.newton import server as newton
from intarsia.deployment import run as remote_running
from intarsia.deployment.client_setup import site_in
from intarsia.errors import IntarsiaError
from intarsia.experiment import config as experiment
from intarsia.training import run as running

AMOUNTS = {"p": 0.0, "q": 2.0, "r": 5.0}


def heavy_tails(rows):
    """Return a site's rows with heavy-tailed columns of sizes 0.01 to 100, and outlying labels."""
    rng, sizes = np.random.default_rng(3), 10 ** np.linspace(-2, 2, 7)
    names = [name for view in four_sites.VIEWS.values() for name in view]
    x = pd.DataFrame(rng.standard_t(1.5, (len(rows), 7)), columns=names)
    amounts = 20 + x @ rng.normal(size=7) + rng.standard_t(1.2, len(rows))
    own = [name for name in names if name in rows]
    return rows.assign(kind=amounts, **(x * sizes)[own])


def over_sites(folder, algorithm, mode, least, change=lambda rows: rows):
    """Return the experiment over four sites with amounts of `least` or more, and the sites."""
    described = four_sites.write_tables("hyfdca", folder)
    for name, table in described.items():
        path = folder / f"{name}.csv"
        rows = pd.read_csv(path)
        amounts = rows["kind"].map(AMOUNTS) + least + 0.25 * (rows["row"] % 7)
        change(rows.assign(kind=amounts)).to_csv(path, index=False)
        (folder / name).mkdir()
        more = "plain = true\n" if mode == "plain" else ""
        (folder / name / "site.toml").write_text(four_sites.site_toml(name, table, folder, more))
    tree = four_sites.tree("hyfdca", described, folder, mode=mode, rounds=90, tolerance=1e-7)
    tree["algorithm"] |= algorithm
    tree["preprocessing"] = {"standardise": change is not heavy_tails}
    tree["labels"] = {"task": "regression"}
    return experiment.from_dict(tree, folder), {name: site_in(folder / name) for name in described}


def run_over(description, found, folder):
    names = four_sites.NAMES
    return remote_running.run_over(
        description, sites.Lines(found), names, folder, patience=sites.HASTY
    )


@pytest.mark.parametrize(
    ("algorithm", "mode", "constant"),
    [
        pytest.param({"loss": "poisson"}, "masked", 1, marks=pytest.mark.slow),
        ({"loss": "gamma"}, "plain", 10),
        pytest.param({"loss": "huber", "huber_delta": 0.5}, "ckks", 1, marks=pytest.mark.slow),
        pytest.param({"loss": "quantile", "quantile": 0.8}, "masked", 10, marks=pytest.mark.slow),
    ],
)
def test_sites_come_to_the_model_of_tables_in_one_place(algorithm, mode, constant, tmp_path):
    description, found = over_sites(tmp_path, algorithm, mode, 0.5)
    prepared = replace(description.preprocessing, intercept=constant)
    description = replace(description, preprocessing=prepared)
    theirs = run_over(description, found, tmp_path / "sites")
    ours = running.run(description, out=tmp_path / "one")
    assert theirs.certificate.gap_relative <= 1e-7
    assert theirs.certificate.primal == pytest.approx(ours.certificate.primal, rel=1e-6)
    one, other = (found.metrics.server for found in (ours, theirs))
    assert other.loss == pytest.approx(one.loss, rel=1e-3)
    for name in ("deviance", "d2", "coverage"):
        known = getattr(one.figures, name)
        assert (known is None) == (getattr(other.figures, name) is None)
        if known is not None:
            assert getattr(other.figures, name) == pytest.approx(known, rel=1e-2)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["plain", "masked"])
def test_a_path_of_penalties_over_sites_has_the_bits_of_one_place(mode, monkeypatch, tmp_path):
    algorithm = {"loss": "huber", "regularisation": 1e-6, "system": "shares"}
    description, found = over_sites(tmp_path, algorithm, mode, 0.5, change=heavy_tails)
    # begin it at once, whatever bases the sites draw
    monkeypatch.setattr(newton, "_FLATS", 0)
    monkeypatch.setattr(newton, "LIFT", 64.0)
    lifts, lifted = [], newton._lift
    monkeypatch.setattr(newton, "_lift", lambda *given: lifts.append(given[2]) or lifted(*given))
    theirs = run_over(description, found, tmp_path / "sites")
    assert lifts == [64, 8, 1]
    assert theirs.certificate.gap_relative <= 1e-7
    secrets = sites.in_run_of(tmp_path / "sites", {name: tmp_path / name for name in found})
    ours = running.run(description, out=tmp_path / "one", secrets=secrets)
    assert theirs.certificate == ours.certificate
    assert theirs.metrics == ours.metrics


def test_sites_go_to_a_frame_within_the_interior_point_method(monkeypatch, tmp_path):
    algorithm = {"loss": "huber", "regularisation": 1e-6}
    description, found = over_sites(tmp_path, algorithm, "plain", 0.5, change=heavy_tails)
    # as of a wide sparse table
    begin, drawn, draw = newton.begin, [], newton_interior._draw_frame
    monkeypatch.setattr(newton, "MOST_FEATURES", 3)
    monkeypatch.setattr(newton, "begin", lambda *a, **terms: begin(*a, **terms | {"sparse": True}))
    monkeypatch.setattr(newton_interior, "_MANY", 2)
    monkeypatch.setattr(
        newton_interior,
        "_draw_frame",
        lambda state, *more: drawn.append(state) or draw(state, *more),
    )
    theirs = run_over(description, found, tmp_path / "sites")
    assert [type(state) for state in drawn] == [newton_interior.InteriorPoint]
    assert theirs.certificate.gap_relative <= 1e-7
    ours = running.run(description, out=tmp_path / "one")
    assert theirs.certificate.primal == pytest.approx(ours.certificate.primal, rel=1e-6)


@pytest.mark.parametrize(
    ("loss", "least", "said"),
    [
        ("poisson", -1.0, "are below 0 (the first: -1 in row 1), and the Poisson"),
        ("gamma", 0.0, "are 0 or below (the first: 0 in row"),
    ],
)
def test_a_site_refuses_labels_without_a_mean_and_tells_its_own_people_alone(
    loss, least, said, tmp_path
):
    description, found = over_sites(tmp_path, {"loss": loss}, "masked", least)
    with pytest.raises(IntarsiaError) as problem:
        run_over(description, found, tmp_path / "sites")
    logs = [path.read_text() for path in tmp_path.glob("*/errors.log")]
    assert any(said in text for text in logs)
    assert said not in str(problem.value)
    assert " in encode: " in str(problem.value)  # before any set-up, with the test rows
    assert str(problem.value).count(". ") == 0
