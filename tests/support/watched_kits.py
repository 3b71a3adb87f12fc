"""Kits of a server and a site for the console, and who asks it; runs in each state, what waits."""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest import mock
from urllib.parse import parse_qs, urlsplit

from intarsia.deployment.job_requests import Asked, Requests
from intarsia.deployment.policy import Policy
from intarsia.engines.remote.caller import RetryPolicy
from intarsia.engines.transports import kits
from intarsia.errors import PendingError

__all__ = ["Browser", "served_kits", "watched_kits"]

FINISHED = Path(__file__).parents[1] / "fixtures/574201d/hyfdca"
_FILES = (("server", "fed_server.json"), ("bank", "fed_client.json"))


class Browser:
    """Asks the console with any path, header and verb, as no browser would."""

    def __init__(self, address: str) -> None:
        found = urlsplit(address)
        assert found.hostname == "127.0.0.1"
        self.port, self.token = found.port, parse_qs(found.query)["token"][0]
        self.home, self.cookie = found.path, ""

    def ask(self, path, verb="GET", *, host=None, cookie=None, whole=False, **headers):
        """Return the status, the headers and the text of an answer; `path` is below its home."""
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port)) as line:
            path = path if whole else self.home + path.removeprefix("/")
            line.putrequest(verb, path, skip_host=True)
            line.putheader("Host", f"127.0.0.1:{self.port}" if host is None else host)
            if sent := self.cookie if cookie is None else cookie:
                line.putheader("Cookie", sent)
            for name, value in headers.items():
                line.putheader(name, value)
            line.endheaders()
            answer = line.getresponse()
            return answer.status, answer.headers, answer.read().decode()

    def enter(self):
        """Come in as the address that is printed lets one in."""
        status, headers, _ = self.ask(f"?token={self.token}")
        assert (status, headers["location"]) == (303, self.home)
        self.cookie, *flags = headers["set-cookie"].split("; ")
        assert {"httponly", "samesite=strict"} <= {one.lower() for one in flags}
        return self


@contextlib.contextmanager
def served_kits(server: Path, bank: Path):
    """Serve a server with one site that answers, and that site's kit; give who came in."""
    from intarsia.cli.federation import _standing
    from intarsia.reports import console

    def standing():  # the process that would be asked is not there
        with mock.patch("intarsia.deployment.process.is_running", return_value=True):
            return {**_standing(server, None), "sites": {"bank": True}}

    watched = [
        console.Watched(server, standing),
        console.Watched(bank, lambda: _standing(bank, None)),
    ]
    with console.served(watched, 0) as address:
        yield Browser(address).enter()


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
