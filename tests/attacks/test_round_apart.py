"""Rounds that would tell one client's part: by their size, or since they begin again without it."""

from __future__ import annotations

import pytest

import four_sites
import sites
from intarsia.deployment import run as remote_running
from intarsia.deployment.client_setup import site_in
from intarsia.engines.remote.server import Remote
from intarsia.errors import ExperimentError
from intarsia.experiment import config as experiment


def set_up(folder, **privacy):
    described = four_sites.write_tables("flic", folder)
    for name, text in described.items():
        (folder / name).mkdir()
        (folder / name / "site.toml").write_text(four_sites.site_toml(name, text, folder))
    tree = four_sites.tree("flic", described, folder)
    tree["privacy"] |= privacy
    lines = sites.Lines({name: site_in(folder / name) for name in described})
    return experiment.from_dict(tree, folder), lines


def test_a_site_holds_rounds_against_least_clients_itself(tmp_path, monkeypatch):
    """The server does not: five clients where four are."""
    pytest.importorskip("torch")
    description, lines = set_up(tmp_path, least_clients=5)
    monkeypatch.setattr(remote_running.AtSites, "check", lambda self, plan: None)
    with pytest.raises(ExperimentError, match="At client '"):
        remote_running.run_over(
            description, lines, four_sites.NAMES, tmp_path / "out", patience=sites.HASTY
        )
    assert "privacy.least_clients = 4" in (tmp_path / "bank" / "errors.log").read_text()


@pytest.mark.parametrize(("least", "apart"), [(3, True), (1, False)])
def test_real_runs_keep_their_totals_apart(tmp_path, monkeypatch, least, apart):
    pytest.importorskip("torch")
    description, lines = set_up(tmp_path, least_clients=least)
    made = []

    class Ended(Exception):  # noqa: N818 - not an error of anybody
        pass

    def begin(self, algorithm, options):
        made.append(self._apart)
        raise Ended

    monkeypatch.setattr(Remote, "begin", begin)
    with pytest.raises(Ended):
        remote_running.run_over(
            description, lines, four_sites.NAMES, tmp_path / "out", patience=sites.HASTY
        )
    assert made == [apart]
