"""A server that makes rows or weights outgrow their noise: epsilon and delta hold no more.

Rows are clipped by exchanges and steps that the server asks for. It used to be free to leave the
measuring out, to tell another bound than the experiment's, and to have the columns scaled by their
deviations after rows were measured, or in a run that standardises nothing. Before the noise was
added it could take a million times the last step of the ascent.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import four_sites
import sites
from federations import BINARY, block
from intarsia.core.schema import Schema
from intarsia.deployment import run as remote_running
from intarsia.deployment.client_setup import site_in
from intarsia.engines import client_host
from intarsia.engines.simulation import Simulation
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


def test_owners_of_a_sample_know_how_long_its_row_is(monkeypatch):
    """An open weakness: of the other's one column an owner has each value, but for its sign."""
    rng = np.random.default_rng(0)
    x, y, opened = rng.normal(size=(30, 3)), np.sign(rng.normal(size=30)), {}
    replies = client_host.Host.replies

    def watched(self, fn, messages, *given):
        if fn.name == "settle_rows":
            opened.update({name: one.squares[0] for name, one in messages.items()})
        return replies(self, fn, messages, *given)

    monkeypatch.setattr(client_host.Host, "replies", watched)
    blocks = {
        "bank": block(x, y, range(30), [0]),
        "shop": block(x, y, range(30), [1, 2], labels=False),
    }
    engine = Simulation({"train": (Schema.of(blocks, BINARY), blocks)}, 0)
    states = {name: preprocessing.initial(name, engine.block(name)) for name in engine.ids}
    engine.set_states(states)
    differential_privacy.clip_rows(engine, 1.0)
    found = np.sqrt(opened["shop"] - (x[:, 1:] ** 2).sum(axis=1))
    np.testing.assert_allclose(found, abs(x[:, 0]), atol=1e-9)


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
