"""Kits of a server and a site for the console: runs in each state, a job and a site that wait."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

from intarsia.deployment.job_requests import Asked, Requests
from intarsia.deployment.policy import Policy
from intarsia.engines.remote.caller import RetryPolicy
from intarsia.engines.transports import kits
from intarsia.errors import PendingError

__all__ = ["watched_kits"]

FINISHED = Path(__file__).parents[1] / "fixtures/574201d/hyfdca"
_FILES = (("server", "fed_server.json"), ("bank", "fed_client.json"))


def watched_kits(folder: Path) -> tuple[Path, Path]:
    """Write a server's kit and the bank's into a folder; return both."""
    authority = kits.Authority._drawn("credit")
    for name, file in _FILES:
        startup = folder / name / "startup"
        startup.mkdir(parents=True)
        (folder / name / "local").mkdir()
        authority.equip(startup, kits._parts(name, "localhost")[0])
        (startup / file).write_text(json.dumps({"servers": [{"name": "credit"}]}))
    (folder / ".provisioning").mkdir()
    (folder / "shop.request").write_text("of the shop")
    _fill_server(server := folder / "server")
    _fill_site(bank := folder / "bank")
    return server, bank


def _fill_server(kit: Path) -> None:
    local = kit / "local"
    known = {"sites": ["bank", "shop", "branch"], "patience": vars(RetryPolicy())}
    (local / "federation.json").write_text(json.dumps(known))
    end = datetime.now(UTC) + timedelta(days=12, hours=1)
    (local / "certificates.json").write_text(json.dumps({"bank": end.isoformat()}))
    runs = local / "runs"
    shutil.copytree(FINISHED, runs / "heart" / "out")
    calm = runs / "calm" / "out"
    calm.mkdir(parents=True)
    lines = [
        {"round": n, "loss": 0.25 + 0.5**n, "gap_relative": 0.1**n, "bytes": 1000 * n}
        for n in range(1, 8)
    ]
    (calm / "history.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in lines))
    (runs / "calm" / "job.id").write_text("one")
    (calm / "pending.json").write_text(json.dumps({"bank": "bank: its owner has not decided."}))
    (runs / "early").mkdir()
    (runs / "early" / "silent.json").write_text(json.dumps(["<script>alert(1)</script>"]))


def _fill_site(kit: Path) -> None:
    (kit / "local" / "site.toml").write_text('[site]\nname = "bank"\nplain = true\n')
    asked = Asked(
        *("credit", "hyfdca", "masked", "pseudonyms", 50, 0.5, 1e-6, 3),
        *(("bank", "shop"), ("age", "income"), ("the loss (Totals.loss)",), ""),
        *(("the weights (Totals.weights)",), {}),
    )
    try:
        Requests(kit / "local").admit("run", asked, Policy(approve="each"))
    except PendingError:
        return
    raise AssertionError("the job does not wait for its owner")
