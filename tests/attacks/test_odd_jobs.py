"""Jobs with values that no experiment has: a site refuses them in one sentence, and goes on.

Libraries that compute with very many threads end the process: a job of a network with 50,000 did.
A name of 30 MB took 120 MB of a site's disk.
"""

from __future__ import annotations

import json

import pytest

import four_sites
from intarsia.deployment import client_folder
from intarsia.deployment.client_setup import READ, Work
from intarsia.engines.remote.wire import PROTOCOL, Call
from intarsia.errors import ExperimentError, RefusedError
from intarsia.experiment import config as experiment
from key_folders import exchanged


@pytest.fixture
def read(tmp_path):
    """Return what has a site read a job, of which something is changed."""
    described = four_sites.write_tables("hyfdca", tmp_path)
    exchanged(tmp_path, tuple(described), "four")
    (tmp_path / "bank").mkdir()
    text = four_sites.site_toml("bank", described["bank"], tmp_path)
    (tmp_path / "bank" / "site.toml").write_text(text)
    job = four_sites.experiment_of("hyfdca", described, tmp_path)
    tree = {**experiment.to_dict(job), "protocol": PROTOCOL}
    settings = client_folder.read_settings(tmp_path / "bank")

    def reading(change):
        changed = json.loads(json.dumps(tree))
        change(changed)
        body, work = json.dumps(changed).encode(), Work(settings, tmp_path / "bank")
        work.enter(Call("ab" * 16, 1, 0, 0, 0, 0, "stage", READ, "", tuple(described), body))
        return work.stage(READ, None, body)

    return reading


@pytest.mark.parametrize("threads", [257, 50_000, 10**30])
def test_a_job_computes_with_no_more_threads_than_a_process_can_have(read, threads):
    read(lambda tree: tree["experiment"].update(threads=2))
    with pytest.raises(ExperimentError, match=r"threads is .*; it must be .* from 1 to 256"):
        read(lambda tree: tree["experiment"].update(threads=threads))


@pytest.mark.parametrize("name", ["experiment", "privacy", "alignment", "split", "labels"])
@pytest.mark.parametrize("value", [None, True, 1e308, "(a+)+$", [], [[]], [0.5]])
def test_a_job_whose_tables_are_none_is_refused(read, name, value):
    with pytest.raises(RefusedError, match=rf"experiment's {name} is .*; expected a table"):
        read(lambda tree: tree.update({name: value}))


def test_a_job_that_would_fill_the_site_s_disk_is_refused(read, tmp_path):
    read(lambda tree: tree["experiment"].update(name="a" * 1_000_000))
    before = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    with pytest.raises(RefusedError, match=r"has 6,00.,... bytes, .* at most 1,048,576"):
        read(lambda tree: tree["experiment"].update(name="\1" * 1_000_000))
    after = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    assert after == before
