"""Faults one by one, in a federation over NVIDIA FLARE that is up: faults.md lists them."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import time
from pathlib import Path

import pytest

import four_sites
import intarsia as intarsia_package
from intarsia.engines.remote.caller import RetryPolicy

pytest.importorskip("nvflare", reason="nvflare is not installed: pip install intarsia[nvflare]")
from federation_of_four import PATIENCE, TESTS, Reference, history, intarsia

pytestmark = pytest.mark.slow

ROUNDS = {"rounds": 40, "evaluate_every": 10}


@pytest.fixture(scope="module")
def undisturbed(four):
    """Return the experiment and what it comes to in one process."""
    described = four.describe("hyfdca")
    tree = four_sites.tree("hyfdca", described, four.tables, **ROUNDS)
    tree["algorithm"]["method"] = "ascent"  # Newton's method is done after four rounds
    return tree, Reference(tree, four.tables)


@pytest.fixture
def begun(four, undisturbed):
    """Return a run that has done some rounds."""
    tree, _ = undisturbed

    def begin(name, patience=PATIENCE, after=3, **settings):
        own = {**tree, "experiment": {**tree["experiment"], "name": name, **settings}}
        four.submit(own, patience)
        four.until(name, lambda one: one.round >= after)

    return begin


KILLED = ["worker", "worker in the set-up", "site", "server worker", "server"]


@pytest.mark.parametrize("fault", KILLED)
def test_a_process_that_is_killed_changes_no_bit(four, undisturbed, begun, fault):
    name = fault.replace(" ", "-")
    begun(name, after=0 if fault == "worker in the set-up" else 3)
    if fault == "worker in the set-up":
        four.worker("telecom", name).kill()
        assert not (four.out(name) / "set-up.state").exists()
    elif fault == "worker":
        four.worker("telecom", name).kill()
    elif fault == "server worker":
        four.worker("server", name).kill()
    else:
        killed = "retailer" if fault == "site" else "server"
        four.kill(killed)
        four.start(killed)
    four.finished(name)
    undisturbed[1].same(four, name)


def connected(four, name):
    """Return whether the status says that a site is connected."""
    said = intarsia("status", four.kits / "server", "--json", "--sites").stdout
    return json.loads(said)["sites"][name]


@pytest.mark.parametrize("absent", ["wait", "continue"])
def test_a_run_goes_on_as_soon_as_a_site_that_was_killed_is_back(four, undisturbed, begun, absent):
    """The deadline is that of a user, ten minutes: nothing here waits for it."""
    name = f"back-{absent}"
    begun(name, RetryPolicy(absent=absent, quorum=3))
    worker = four.worker("retailer", name)
    four.kill("retailer")
    worker.kill()
    while connected(four, "retailer"):
        time.sleep(1)
    four.start("retailer")
    four.finished(name, 300)
    undisturbed[1].same(four, name)
    events = (four.kits / "server" / "events.log").read_text().splitlines()
    jobs = [line for line in events if f" {name}: job " in line]
    ended = [line for line in events if f"{name}: the job is ended, since 'retailer'" in line]
    assert (len(jobs), len(ended)) == (2, 1)


def test_a_site_that_is_frozen_for_a_while_changes_no_bit(four, undisturbed, begun):
    begun("frozen", RetryPolicy(seconds=5.0, deadline=120.0))
    worker = four.worker("telecom", "frozen")
    worker.suspend()
    time.sleep(12)  # longer than an attempt takes
    worker.resume()
    four.finished("frozen")
    undisturbed[1].same(four, "frozen")


def test_a_site_that_is_slow_beyond_the_deadline_is_named_and_waited_for(four, undisturbed, begun):
    begun("slow", RetryPolicy(seconds=10.0, deadline=30.0))
    worker = four.worker("telecom", "slow")
    worker.suspend()
    four.until("slow", lambda one: "telecom did not answer" in one.problem)
    worker.resume()
    four.finished("slow")
    undisturbed[1].same(four, "slow")


CONTINUE = RetryPolicy(seconds=10.0, deadline=20.0, absent="continue", quorum=3, probe=0.5)


@pytest.mark.parametrize(("fault", "rounds"), [("frozen", 5), ("offline", 50)])
def test_a_run_goes_on_without_a_site_which_catches_up(four, begun, fault, rounds):
    name = f"without-{fault}"
    begun(name, CONTINUE, after=1, rounds=400, evaluate_every=5, tolerance=1e-6)
    if fault == "frozen":
        worker = four.worker("retailer", name)
        worker.suspend()
    else:
        worker = four.worker("retailer", name)
        four.kill("retailer")
        worker.kill()
    four.until(name, lambda one: one.away == ("retailer",))
    before = four.standing(name).round
    four.until(name, lambda one: one.round >= before + rounds, 400)
    if fault == "frozen":
        worker.resume()
    else:
        four.start("retailer")
    found = four.finished(name)
    assert found.finished == "tolerance"
    assert found.certificate.gap_relative <= 1e-6
    # the objectives of rounds without a site are not known
    lines = history(four.out(name))
    assert len([one for one in lines if one["gap_relative"] is None]) >= rounds


def test_a_site_whose_disk_is_full_ends_the_run_by_name(four, begun):
    begun("full-site")
    four.worker("bank", "full-site").rlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    said = four.failed("full-site")
    assert re.search("At client 'bank' in .*could not read or write a file", said)


def test_a_server_whose_disk_is_full_goes_on_when_it_is_not(four, undisturbed, begun):
    begun("full-server")
    four.worker("server", "full-server").rlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    four.finished("full-server")
    undisturbed[1].same(four, "full-server")


def test_a_checkpoint_that_was_cut_is_passed_over(four, undisturbed, begun):
    begun("cut-checkpoint")
    four.stop("server")
    newest = max((four.out("cut-checkpoint") / "checkpoints").iterdir()) / "server.state"
    newest.write_bytes(newest.read_bytes()[:-9])
    four.start("server")
    four.finished("cut-checkpoint")
    undisturbed[1].same(four, "cut-checkpoint")


def test_a_state_of_a_site_that_was_cut_ends_the_run_by_name(four, begun):
    begun("cut-state")
    four.stop("bank")
    states = list(four.shelf("bank", "cut-state").glob("state-*"))
    for path in states:
        path.write_bytes(path.read_bytes()[:-3])
    four.start("bank")
    assert re.search(
        "At client 'bank' in .*folder of this run cannot be read", four.failed("cut-state")
    )
    assert states


def test_messages_that_are_lost_doubled_late_and_altered_change_no_bit(four, undisturbed, tmp_path):
    four.stop("server")
    path = os.pathsep.join(
        [str(TESTS / "faulty"), str(TESTS.parents[1] / "src"), os.environ.get("PYTHONPATH", "")]
    )
    four.start("server", PYTHONPATH=path, FAULTS=str(tmp_path / "faults"))
    tree, reference = undisturbed
    four.submit({**tree, "experiment": {**tree["experiment"], "name": "faulty"}})
    four.finished("faulty")
    four.stop("server")
    four.start("server")
    assert (tmp_path / "faults").read_text() == "0 1 2 3 4 5"
    reference.same(four, "faulty")


def test_a_site_with_another_schema_ends_the_run_by_name(four, undisturbed):
    table = four.tables / "retailer.csv"
    kept = table.read_text()
    rows = "".join(f"row {one},{one % 7},{'pq'[one % 2]}\n" for one in range(40))
    table.write_text(f"row,m1,kind\n{rows}")  # ids are text
    tree, _ = undisturbed
    four.submit({**tree, "experiment": {**tree["experiment"], "name": "schema"}})
    assert "whole numbers as sample ids and others text" in four.failed("schema")
    table.write_text(kept)


@pytest.mark.parametrize("version", ["0.2.0", "0.1.7"])
def test_a_site_of_another_version_ends_the_run_by_name_or_is_noted(
    four, undisturbed, tmp_path, version
):
    """The site's process has a package of that version; its kit stays."""
    package = tmp_path / "intarsia"
    shutil.copytree(Path(intarsia_package.__file__).parent, package)
    start = package / "__init__.py"
    text, here = start.read_text(encoding="utf-8"), f'"{intarsia_package.__version__}"'
    assert text.count(here) == 1
    start.write_text(text.replace(here, f'"{version}"'), encoding="utf-8")
    tree, reference = undisturbed
    name = f"version-{version}"
    four.stop("retailer")
    four.start("retailer", PYTHONPATH=f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    try:
        four.submit({**tree, "experiment": {**tree["experiment"], "name": name}})
        if version == "0.2.0":
            assert re.search(f"retailer.*{version}", four.failed(name))
            return
        notes = " ".join(four.finished(name).notes)
        assert re.search(f"retailer.*{version}", notes)
        reference.same(four, name)
    finally:
        four.stop("retailer")
        four.start("retailer")
