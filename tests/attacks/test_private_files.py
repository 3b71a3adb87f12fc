"""Another user of a site's machine, who reads what runs leave there.

A site's log of errors has sentences with values of the table (ids, labels, numbers that were out of
range), and was written so that all users could read it. What a site keeps of a run holds its model,
its duals and its secrets.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

import four_sites
import sites
from departing_server import NAMES, begin
from intarsia.deployment import client_folder
from intarsia.deployment import run as remote_running
from intarsia.deployment.client_setup import site_in
from intarsia.errors import TableError
from intarsia.training import run as running


@pytest.fixture(autouse=True)
def usual_mask():
    """Files are made as they are for most users: others may read them, if nobody says otherwise."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def readable(folder):
    """Return the files below a folder that another user can read, by their paths in it."""
    found = []
    for where, folders, files in os.walk(folder):
        here = Path(where)
        folders[:] = [one for one in folders if (here / one).stat().st_mode & stat.S_IXOTH]
        others = [here / one for one in files if (here / one).stat().st_mode & stat.S_IROTH]
        found += [str(one.relative_to(folder)) for one in others]
    return sorted(found)


def test_errors_of_a_site_are_for_its_own_people(tmp_path):
    report = client_folder.errors_in(tmp_path)
    report(TableError("The id 'Anna Roth' is there twice."))
    assert "Anna Roth" in (tmp_path / client_folder.ERRORS).read_text()
    assert readable(tmp_path) == []
    (tmp_path / client_folder.ERRORS).chmod(0o644)  # of an older version
    report(ValueError("17.5"))
    assert readable(tmp_path) == []


def test_a_site_in_the_middle_of_a_run_shows_others_its_settings_alone(tmp_path):
    begin(tmp_path / "run", "hyfdca", "hyfdca.slope_along")
    for name in NAMES:
        found = readable(tmp_path / "run" / name)
        assert set(found) <= {"site.toml", "site.lock"}, found


@pytest.mark.slow
def test_a_finished_site_shows_others_its_settings_alone(tmp_path):
    described = four_sites.write_tables("hyfdca", tmp_path)
    for name, text in described.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "site.toml").write_text(four_sites.site_toml(name, text, tmp_path))
    found = {name: site_in(tmp_path / name) for name in described}
    remote_running.run_over(
        *(four_sites.experiment_of("hyfdca", described, tmp_path), sites.Lines(found)),
        *(four_sites.NAMES, tmp_path / "out"),
        patience=sites.HASTY,
    )
    for name in NAMES:
        own = readable(tmp_path / name)
        assert set(own) <= {"site.toml", "site.lock"}, own


def test_a_run_s_folder_shows_others_no_key_no_state_and_no_client_s_model(tmp_path):
    described = four_sites.write_tables("hyfdca", tmp_path)
    out = tmp_path / "out"
    running.run(four_sites.experiment_of("hyfdca", described, tmp_path), out=out)
    private = ("keys/", "checkpoints/", "transcript", "model/clients/")
    assert not [one for one in readable(out) if one.startswith(private)]
