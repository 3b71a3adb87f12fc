"""A server that names a job like an older one: the older one's model at a site was deleted.

The folder of a site's own model had the experiment's name, which is the server's to choose. A job
of that name removed what was there, even one that learned nothing.
"""

from __future__ import annotations

import copy
import dataclasses
import json

import pytest

import four_sites
import intarsia.training.run as running
from intarsia.deployment import client_models
from intarsia.models.serialization import read_model


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return an experiment on four tables, and its model."""
    folder = tmp_path_factory.mktemp("four")
    described = four_sites.write_tables("hyfdca", folder)
    description = four_sites.experiment_of("hyfdca", described, folder, mode="plain")
    return description, running.run(description, out=None).model


def contents(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def nothing(model):
    """Return a model that says nothing of anybody."""
    found = copy.copy(model)
    found.coef_ = 0 * model.coef_
    return found


def test_a_job_of_an_older_one_s_name_leaves_its_model(trained, tmp_path):
    description, model = trained
    first = client_models.keep(model, description, tmp_path, "aa11")
    before = contents(first.resolve())
    again = client_models.keep(nothing(model), description, tmp_path, "bb22")
    assert again == first  # the name leads to the last
    assert not read_model(first / "model").coef_.any()
    assert contents(tmp_path / "trained" / "aa11") == before
    old = read_model(tmp_path / "trained" / "aa11" / "model")
    assert old.coef_.tolist() == model.coef_.tolist()


@pytest.mark.parametrize(
    "name", ["aa11", "../trained/aa11", "trained", ".", "models", "before-bb22"]
)
def test_no_name_leads_into_the_folder_of_another_run(trained, tmp_path, name):
    description, model = trained
    client_models.keep(model, description, tmp_path, "aa11")
    before = contents(tmp_path / "trained" / "aa11")
    named = dataclasses.replace(description, name=name)
    place = client_models.keep(nothing(model), named, tmp_path, "bb22")
    assert place.parent == tmp_path / "models"
    assert contents(tmp_path / "trained" / "aa11") == before


def test_a_run_that_ends_twice_does_not_write_its_model_again(trained, tmp_path):
    description, model = trained
    client_models.keep(model, description, tmp_path, "aa11")
    before = contents(tmp_path / "trained" / "aa11")
    client_models.keep(nothing(model), description, tmp_path, "aa11")
    assert contents(tmp_path / "trained" / "aa11") == before


def test_a_model_of_an_earlier_version_stays(trained, tmp_path):
    description, model = trained
    old = tmp_path / "models" / description.name
    old.mkdir(parents=True)
    (old / "mine.json").write_text(json.dumps("kept"))
    client_models.keep(model, description, tmp_path, "aa11")
    assert json.loads((tmp_path / "trained/before-aa11/mine.json").read_text()) == "kept"
    assert (old / "model").is_dir()
