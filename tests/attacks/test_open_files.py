"""experiment.json, which may hold what a url holds, was open to all until its mode was changed.

So could the copy of it at a site, what was asked of the server of a federation, and errors.log.
"""

from __future__ import annotations

import os
import stat

import numpy as np
import pandas as pd
import pytest

from federations import table
from intarsia.core.files import atomic_files
from intarsia.core.files.atomic_files import write_atomically
from intarsia.data.source import Source
from intarsia.deployment import client_folder, client_models, federation_file, server
from intarsia.engines.remote.caller import RetryPolicy
from intarsia.experiment.config import Experiment
from intarsia.models.linear import LinearRegressor
from intarsia.results import run_folder

ASKED = Experiment(name="a", algorithm="hyfdca", clients=(Source(name="one", path="/one.csv"),))


@pytest.fixture
def opened(monkeypatch):
    """Return the modes of files, by name, at the moment when they are made."""
    found, real = {}, os.open

    def watched(path, flags, mode=0o777, **how):
        made = real(path, flags, mode, **how)
        if flags & os.O_CREAT:
            name = os.fspath(path).rpartition("/")[2].removeprefix(".").partition(".json")[0]
            found[name.split(".")[0]] = stat.S_IMODE(os.fstat(made).st_mode)
        return made

    before = os.umask(0)
    monkeypatch.setattr(os, "open", watched)
    yield found
    os.umask(before)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_a_run_s_experiment_is_its_owner_s_from_the_start(tmp_path, opened):
    run_folder.keep_description(tmp_path, ASKED, "crc")
    assert opened["experiment"] == mode(tmp_path / "experiment.json") == 0o600
    assert mode(tmp_path / "tables.crc") == 0o666  # others are as the user's mask says


def test_a_site_s_copy_is_its_owner_s_from_the_start(tmp_path, opened):
    x, y = table(20, 2)
    model = LinearRegressor(regularisation=1.0).fit(pd.DataFrame(x, columns=["a", "b"]), y)
    model.means_ = np.zeros(2)
    place = client_models.keep(model, ASKED, tmp_path, "0a")
    assert opened["experiment"] == mode(place / "experiment.json") == 0o600


def test_what_is_asked_of_a_server_is_its_owner_s_from_the_start(tmp_path, opened):
    asked = ASKED, ("one",), RetryPolicy()
    own = server.request(tmp_path, *asked, overwrite=False, alive=True)
    [path] = own.glob("*.json")
    assert opened[path.stem] == mode(path) == 0o600


def test_a_site_s_settings_and_errors_are_its_owner_s_from_the_start(tmp_path, opened):
    for name in ("server", "bank"):
        (tmp_path / name / "local").mkdir(parents=True)
    known = federation_file.FederationFile(name="f", sites=("bank",))
    federation_file.finish_kits(known, {name: tmp_path / name for name in ("server", "bank")})
    assert opened["site"] == mode(tmp_path / "bank" / "local" / "site.toml") == 0o600
    client_folder.errors_in(tmp_path)(ValueError("42"))
    assert opened["errors"] == mode(tmp_path / "errors.log") == 0o600


def test_what_another_left_under_the_name_is_not_written_into(tmp_path):
    """A file of the temporary name that others may read would be given the secret."""
    own = tmp_path / f".secret.{os.getpid()}{atomic_files.UNFINISHED}"
    own.touch(mode=0o666)
    own.chmod(0o666)
    theirs = own.open("rb")
    write_atomically(tmp_path / "secret", b"mine", private=True)
    assert mode(tmp_path / "secret") == 0o600
    assert theirs.read() == b""
    theirs.close()
    own.symlink_to(tmp_path / "elsewhere")
    write_atomically(tmp_path / "secret", b"mine", private=True)
    assert not (tmp_path / "elsewhere").exists()
    assert (tmp_path / "secret").read_bytes() == b"mine"
