"""Owners of sites over NVIDIA FLARE: what a policy forbids, what waits for a yes, and the logs."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest

import four_sites
from intarsia.deployment import site_log
from intarsia.deployment.job_requests import Requests

pytest.importorskip("nvflare", reason="nvflare is not installed: pip install intarsia[nvflare]")
from federation_of_four import PATIENCE, Reference, intarsia

pytestmark = pytest.mark.slow


def with_policy(four, name, text):
    path = four.kits / name / "local" / "site.toml"
    path.write_text(path.read_text().replace("[policy]\n", f"[policy]\n{text}\n"))


def audited(four, names):
    kits = [str(four.kits / name) for name in names]
    return subprocess.run(
        [sys.executable, "-m", "intarsia", "audit", *kits], capture_output=True, text=True
    )


def test_a_job_that_one_owner_forbids_is_refused_there_by_name_and_the_others_go_on(four):
    described = four.describe("hyfdca")
    with_policy(four, "telecom", 'algorithms = ["fedavg"]')
    four.submit(four_sites.tree("hyfdca", described, four.tables, name="forbidden"))
    problem = four.failed("forbidden")
    assert problem.startswith("Site 'telecom': the owner allows fedavg, and the job is hyfdca")
    assert "[policy] algorithms" in problem
    assert "[policy] algorithms" in (four.kits / "telecom" / "local" / "errors.log").read_text()
    # where the federation goes on without a site, it does so without this one
    going_on = dataclasses.replace(PATIENCE, absent="continue", quorum=3)
    tree = four_sites.tree("hyfdca", described, four.tables, name="without")
    four.submit(tree, going_on)
    found = four.finished("without")
    assert any("Site 'telecom': the owner allows fedavg" in note for note in found.notes)
    left = [one for one in tree["client"] if one["name"] != "telecom"]
    folder = four.folder / "without telecom"
    folder.mkdir()
    Reference({**tree, "client": left}, folder).same(four, "without")
    log = site_log.load(four.kits / "telecom" / "local")
    refused = [one for one in log.of("refused") if "the owner allows fedavg" in one["sentence"]]
    assert {one["error"] for one in refused} == {"PolicyError"}
    forbidden = {one["run"] for one in refused}
    assert len(forbidden) == 2
    assert not [one for one in log.of("answered") if one["run"] in forbidden]
    assert audited(four, [name for name in four_sites.NAMES if name != "telecom"]).returncode == 0


def test_a_job_waits_over_a_kill_until_it_is_approved_and_the_logs_agree(four):
    described = four.describe("hyfdca")
    with_policy(four, "bank", 'approve = "each"\nalgorithms = ["hyfdca"]\nleast_clients = 3')
    tree = four_sites.tree("hyfdca", described, four.tables, name="asked")
    reference = Reference(tree, four.tables)
    four.submit(tree)
    four.until("asked", lambda one: "Site 'bank': the owner has not decided" in one.problem)
    four.worker("bank", "asked").kill()
    four.kill("bank")
    (one,) = [one for one in Requests(four.kits / "bank" / "local").all() if one.state == "waiting"]
    assert one.asked.name == "asked"
    shown = intarsia("requests", four.kits / "bank").stderr
    assert f"intarsia federation approve {four.kits / 'bank'} {one.short}" in shown
    intarsia("approve", four.kits / "bank", one.short)
    four.start("bank")
    four.finished("asked")
    reference.same(four, "asked")
    found = audited(four, four_sites.NAMES)
    assert found.returncode == 0, found.stderr[-3000:]
    assert "The logs of bank, branch, telecom, retailer agree." in found.stdout
    # an entry that is edited afterwards is found, by the command too
    path = four.kits / "branch" / "local" / "log" / "site.log"
    text = path.read_text()
    path.write_text(text.replace('"function":"hyfdca.enter"', '"function":"hyfdca.other"', 1))
    assert audited(four, ["branch"]).returncode == 1
    path.write_text(text)


def test_a_denial_ends_the_job_with_its_reason(four):
    described = four.describe("hyfdca")
    with_policy(four, "retailer", 'approve = "each"')
    four.submit(four_sites.tree("hyfdca", described, four.tables, name="denied"))
    four.until("denied", lambda one: "Site 'retailer': the owner has not decided" in one.problem)
    intarsia("deny", four.kits / "retailer", "denied", "--reason", "not before May")
    problem = four.failed("denied")
    assert problem.startswith("Site 'retailer': the owner denied the job")
    assert "not before May" in problem
    four.describe("hyfdca")
