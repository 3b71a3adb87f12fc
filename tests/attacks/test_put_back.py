"""A site is put back from a backup, and a server has it release more than was accounted for.

What a run released since the backup is forgotten. So a run with noise does not go on there once
something was spent since, one that had released nothing yet least of all; and what was spent is a
number that sums and comparisons hold for.
"""

from __future__ import annotations

import json
import shutil

import pytest

from intarsia.deployment.client_folder import PutBack, ledger_of
from intarsia.deployment.job_requests import Asked, Requests
from intarsia.deployment.operations.backup import backup, restore
from intarsia.deployment.policy import Policy, check_spent
from intarsia.errors import CheckpointError, PendingError, PolicyError

NOISE, CALM, WAITING, LATER = (f"{number:032x}" for number in range(4))


@pytest.fixture
def site(tmp_path):
    """Return a site's kit that is put back: two jobs began before the backup, one waited."""
    kit = tmp_path / "bank"
    (kit / "startup").mkdir(parents=True)
    (kit / "local").mkdir()
    (kit / "local" / "site.toml").write_text('[site]\nname = "bank"\nplain = true\n')
    for run, epsilon in ((NOISE, 0.25), (CALM, 0.0)):
        begin(kit, run, epsilon)
    with pytest.raises(PendingError):
        Requests(kit / "local").admit(WAITING, asked_for(0.25), Policy(approve="each"))
    backup(kit, tmp_path / "kept.tar")
    shutil.rmtree(kit)
    restore(tmp_path / "kept.tar", kit, 0.5)
    return kit


def begin(kit, run, epsilon):
    known, policy = Requests(kit / "local"), Policy(epsilon_total=1.0)
    known.begin(run, known.admit(run, asked_for(epsilon), policy).digest, policy)


def asked_for(epsilon):
    return Asked(
        *("credit", "hyfdca", "masked", "pseudonyms", 50, epsilon, 1e-6, 1),
        *(("bank",), (), (), "", (), {}),
    )


def test_a_run_that_had_begun_and_released_nothing_is_closed(site):
    with pytest.raises(PolicyError, match="does not know what this run released"):
        ledger_of(site / "local", NOISE)
    # one without noise goes on; one that had not begun is counted when it begins
    for run in (CALM, WAITING, LATER):
        ledger_of(site / "local", run)
    begin(site, WAITING, 0.25)
    with pytest.raises(PolicyError, match=r"have spent 1, "):
        begin(site, LATER, 0.01)


@pytest.mark.parametrize("epsilon", ["NaN", "Infinity", "-Infinity", "-1", '"1"', "null", "true"])
def test_what_is_no_number_lets_no_job_in(site, epsilon):
    path = site / "local" / "put-back.json"
    path.write_text(f'{{"epsilon": {epsilon}, "closed": {{}}}}')
    with pytest.raises(CheckpointError, match=r"put-back\.json is damaged"):
        begin(site, LATER, 0.01)
    with pytest.raises(CheckpointError, match=r"put-back\.json is damaged"):
        ledger_of(site / "local", LATER)


@pytest.mark.parametrize("content", [[], {"closed": []}, {"closed": {"a": 1}}, {"more": 1}])
def test_a_note_of_another_kind_lets_no_job_in(site, content):
    (site / "local" / "put-back.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=r"put-back\.json is damaged"):
        PutBack.of(site / "local")


def test_no_sum_of_epsilons_that_is_no_number_is_less_than_what_is_allowed():
    for spent, epsilon, most in ((float("nan"), 0.1, 1.0), (0.1, float("nan"), 1.0)):
        with pytest.raises(PolicyError, match="epsilon_total"):
            check_spent(Policy(epsilon_total=most), spent, epsilon)
