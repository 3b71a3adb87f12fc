"""A server that has rows weigh more than their noise was measured for.

With epsilon the noise is that of rows of one weight. A run with weights is refused. It used to be
refused at the server alone: one that departed had sites weigh a class of one row a million times
the others, or said nothing of the weights that a client's own rows have. That row then moved the
released model by as many times the sensitivity as there are rows, and sites stated the same
epsilon.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import expit

import four_sites
import sites
from intarsia.deployment import run as remote_running
from intarsia.deployment.client_setup import site_in
from intarsia.errors import ExperimentError, RefusedError
from intarsia.experiment import config as experiment
from intarsia.privacy import accounting
from intarsia.training import privacy_guarantee
from intarsia.training import run as running


def minimiser(x, y, weights, ridge):
    """Return where λ/2 w² + 1/N Σ c log(1 + exp(-y x w)) of one column is least."""

    def slope(w):
        return ridge * w - np.mean(weights * y * x * expit(-y * x * w))

    return brentq(slope, -1e3, 1e3, xtol=1e-12)


def test_a_row_of_a_large_weight_moves_the_minimiser_by_many_times_the_sensitivity():
    x, y, ridge, moved = np.full(100, 0.5), np.full(100, -1.0), 0.1, []
    y[0] = 1.0
    known = {"clip": 1.0, "regularisation": ridge, "samples": 100}
    bound = accounting.minimiser_sensitivity(1.0, **known)
    for weight in (1.0, 1e6):
        weights = np.where(y > 0, weight, 1.0)
        ends = []
        for one in (1.0, -1.0):
            x[0] = one
            ends.append(minimiser(x, y, weights / weights.mean(), ridge))
        moved.append(abs(ends[0] - ends[1]))
    assert moved[0] <= bound
    assert moved[1] > 10 * bound


def begin(folder, monkeypatch, table="", labels=None):
    """Run with noise over four sites whose owners ask for it, by a server that looks away."""

    def unweighted(description, algorithm, options, schema):
        known = SimpleNamespace(
            labels=replace(schema.labels, weighted=False),
            samples=schema.samples,
            clients=schema.clients,
        )
        return privacy_guarantee.guarantee(description, algorithm, options, known)

    looks_away = SimpleNamespace(guarantee=unweighted, notes=privacy_guarantee.notes)
    monkeypatch.setattr(running, "privacy_guarantee", looks_away)
    described = four_sites.write_tables("hyfdca", folder)
    for name, text in described.items():
        (folder / name).mkdir()
        own = four_sites.site_toml(name, text + table, folder)
        own = own.replace("[policy]", "[policy]\nepsilon_most = 5.0")
        (folder / name / "site.toml").write_text(own)
    tree = four_sites.tree("hyfdca", described, folder, tolerance=1e-4, rounds=20)
    tree["labels"] = labels or {"positive": "q"}
    tree["privacy"] |= {"epsilon": 5.0, "delta": 1e-5}
    tree["preprocessing"] = {"standardise": False}
    lines = sites.Lines({name: site_in(folder / name) for name in described})
    given = experiment.from_dict(tree, folder), lines, tuple(described), folder / "server"
    return remote_running.run_over(*given, patience=sites.HASTY)


def test_no_noise_is_added_where_classes_are_weighed(tmp_path, monkeypatch):
    weighed = {"positive": "q", "class_weight": {"q": 1e6}}
    with pytest.raises(ExperimentError, match="At client 'bank' in settle"):
        begin(tmp_path, monkeypatch, labels=weighed)
    assert "epsilon is 5 and rows have weights" in (tmp_path / "bank" / "errors.log").read_text()


def test_a_site_whose_rows_have_weights_is_not_told_of_labels_without(tmp_path, monkeypatch):
    agree, tables = remote_running._agree, four_sites.tables

    def silent(*given):
        found = agree(*given)
        return replace(found, labels=replace(found.labels, weighted=False))

    def weighed(algorithm):
        return {k: one.assign(c=1 + one["row"] % 3) for k, one in tables(algorithm).items()}

    monkeypatch.setattr(remote_running, "_agree", silent)
    monkeypatch.setattr(four_sites, "tables", weighed)
    with pytest.raises(RefusedError, match="At client 'bank' in encode"):
        begin(tmp_path, monkeypatch, table='weights = "c"\n')
    assert "The site's rows have weights" in (tmp_path / "bank" / "errors.log").read_text()
