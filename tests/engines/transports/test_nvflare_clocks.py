"""Sites whose clocks are off, and certificates that end and are renewed within a run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

import four_sites
import shifted_clock

pytest.importorskip("nvflare", reason="nvflare is not installed: pip install intarsia[nvflare]")
from federation_of_four import PATIENCE, Federation, Reference, intarsia
from intarsia.engines.remote.caller import RetryPolicy
from intarsia.engines.transports import kits as kit_files

pytestmark = pytest.mark.slow
needs_clock = pytest.mark.skipif(bool(shifted_clock.lacking()), reason=shifted_clock.lacking())


@needs_clock
def test_clocks_that_are_a_day_off_change_no_bit(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:  # the certificates are older than a day
        for name, value in shifted_clock.off_by(-2, tmp_path).items():
            patch.setenv(name, value)
        four = Federation(tmp_path)
    described = four.describe("hyfdca")
    days = dict(zip(("server", *four_sites.NAMES), (0, 1, -1, 0, 0), strict=True))
    try:
        for name, off in days.items():
            four.start(name, **(shifted_clock.off_by(off, tmp_path) if off else {}))
        tree = four_sites.tree("hyfdca", described, four.tables, name="clocks", rounds=10)
        reference = Reference(tree, four.tables)
        four.submit(tree)
        four.finished("clocks")
    finally:
        four.stop_all()
    reference.same(four, "clocks")


@needs_clock
def test_a_clock_behind_the_certificates_is_said_before_anything_starts(tmp_path):
    four = Federation(tmp_path)
    four.describe("hyfdca")
    behind = {**os.environ, **shifted_clock.off_by(-1, tmp_path)}
    for name in ("server", four_sites.NAMES[0]):
        kind = "server" if name == "server" else "site"
        command = [sys.executable, "-m", "intarsia", "federation", kind, str(four.kits / name)]
        done = subprocess.run(command, env=behind, capture_output=True, text=True, timeout=120)
        assert done.returncode == 2
        assert "by this machine's clock it is" in done.stderr
        assert "set it, by NTP" in done.stderr


def test_a_certificate_that_ends_within_a_run_and_is_renewed_changes_no_bit(
    four, tmp_path, monkeypatch
):
    """The deadline is that of a user; the run waits for the site, and for it alone."""
    described, name = four.describe("hyfdca"), four_sites.NAMES[1]
    tree = four_sites.tree("hyfdca", described, four.tables, name="renewed", rounds=40)
    tree["algorithm"]["method"] = "ascent"
    reference = Reference(tree, four.tables)
    asked = partial(intarsia, "status", four.kits / "server", "--json", "--sites")
    given = "four", "localhost", four.kits, [name], ("server", *four_sites.NAMES)

    def renew():
        shutil.copytree(kit_files.renewed(*given)[0] / name, four.kits / name, dirs_exist_ok=True)
        shutil.rmtree(four.kits / "renewed")

    four.stop(name)
    with monkeypatch.context() as patch:
        patch.setattr(kit_files, "_DAYS", 75 / 86400)
        renew()
    end = kit_files.ends_in(four.kits / name)["client.crt"]
    four.start(name)
    slow = RetryPolicy(seconds=PATIENCE.seconds)
    four.submit(tree, slow)
    four.until("renewed", lambda one: one.round >= 3)
    worker = four.worker(name, "renewed")
    worker.suspend()  # so that the run is not done when it ends
    time.sleep(max(0.0, (end - datetime.now(UTC) + timedelta(seconds=3)).total_seconds()))
    worker.resume()
    while json.loads(asked().stdout)["sites"][name]:
        time.sleep(1)
    assert four.standing("renewed").state == "running"
    four.stop(name)
    renew()
    four.start(name)
    four.finished("renewed", 300)
    reference.same(four, "renewed")
