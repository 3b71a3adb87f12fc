"""A server that makes rows or weights outgrow their noise: epsilon and delta hold no more.

Rows are clipped by exchanges and steps that the server asks for. It used to be free to leave the
measuring out, to tell another bound than the experiment's, and to have the columns scaled by their
deviations after rows were measured, or in a run that standardises nothing. Before the noise was
added it could take a million times the last step of the ascent.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

import four_sites
import sites
from intarsia.deployment import run as remote_running
from intarsia.deployment.client_setup import site_in
from intarsia.errors import RefusedError, StaleError
from intarsia.protocols import certified_release, differential_privacy, preprocessing

CLIP = differential_privacy.clip_rows
PREPARE = preprocessing.prepare
CONCLUDE = certified_release.conclude


def not_measured(monkeypatch):
    monkeypatch.setattr(differential_privacy, "clip_rows", lambda engine, clip: None)


def another_bound(monkeypatch):
    monkeypatch.setattr(differential_privacy, "clip_rows", lambda engine, clip: CLIP(engine, 1e6))


def no_bound(monkeypatch):
    told = float("nan")
    monkeypatch.setattr(differential_privacy, "clip_rows", lambda engine, clip: CLIP(engine, told))


def measured_too_soon(monkeypatch):
    def prepare(engine, schemas, **how):
        notes = PREPARE(engine, schemas, **how)
        CLIP(engine, 1.0)
        return notes

    not_measured(monkeypatch)
    monkeypatch.setattr(preprocessing, "prepare", prepare)


def standardised(monkeypatch):
    monkeypatch.setattr(
        preprocessing, "prepare", lambda *given, **how: PREPARE(*given, standardise=True)
    )


WAYS = {
    not_measured: "in transform",
    another_bound: "in transform",
    no_bound: "in transform",
    measured_too_soon: "in transform",
    standardised: "in preprocessing.measure_features",
}


def overstepped(monkeypatch):
    def conclude(server, clients, rng, **given):
        return CONCLUDE(replace(server, taken=1e6), clients, rng, **given)

    monkeypatch.setattr(certified_release, "conclude", conclude)


WAYS[overstepped] = "in hyfdca.aggregate_primal"


@pytest.mark.parametrize("way", WAYS, ids=lambda one: one.__name__)
def test_no_noise_is_added_for_rows_beyond_their_bound(way, tmp_path, monkeypatch):
    described = four_sites.write_tables("hyfdca", tmp_path)
    for name, text in described.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "site.toml").write_text(four_sites.site_toml(name, text, tmp_path))
    found = {name: site_in(tmp_path / name) for name in described}
    way(monkeypatch)
    description = four_sites.experiment_of("hyfdca", described, tmp_path, tolerance=1e-6)
    ascent = {**description.hyperparameters, "method": "ascent"}
    description = replace(description, hyperparameters=ascent)
    privacy = replace(description.privacy, epsilon=5.0, delta=1e-5)
    as_they_are = replace(description.preprocessing, standardise=False)
    description = replace(description, privacy=privacy, preprocessing=as_they_are)
    given = description, sites.Lines(found), tuple(described), tmp_path / "server"
    with pytest.raises((RefusedError, StaleError), match=f"At client '[a-z]+' {WAYS[way]}"):
        remote_running.run_over(*given, patience=sites.HASTY)
