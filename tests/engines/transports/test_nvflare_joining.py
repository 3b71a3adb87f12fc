"""Real kits whose keys were made at the sites: they join, are revoked, and come back."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest

pytest.importorskip("nvflare", reason="nvflare is not installed: pip install intarsia[nvflare]")
from federation_of_four import free_port, intarsia
from intarsia.engines.transports import replaced

pytestmark = pytest.mark.slow


class Machines:
    """The operator's folder and one for each machine of a site, and what runs there."""

    def __init__(self, folder):
        self.folder, self.operator, self.running = folder, folder / "operator", []
        self.operator.mkdir()
        self.file, self.server = self.operator / "federation.toml", self.operator / "kits/server"
        self.file.write_text(
            f'[federation]\nname = "two"\nserver = "localhost"\nport = {free_port()}\n'
            '[[site]]\nname = "bank"\n[[site]]\nname = "shop"\n'
        )
        intarsia("provision", self.file, "-o", self.server.parent, "--keys-at-sites")

    def join(self, name):
        """Let a site get a certificate of a key of its own; return its kit."""
        own = self.folder / name
        own.mkdir(exist_ok=True)
        heard = self._heard(intarsia("join", name, "-o", own))
        given = self.file, own / f"{name}.request", "--confirm", heard, "-o", self.server.parent
        heard = self._heard(intarsia("sign", *given))
        signed = self.server.parent / f"{name}.signed"
        intarsia("install", signed, "--confirm", heard, "-o", own)
        settings = own / name / "local" / "site.toml"
        settings.write_text(f'[site]\nname = "{name}"\nplain = true\n')
        return own / name

    @staticmethod
    def _heard(done):
        return re.search("by telephone: ([0-9a-f ]+)", done.stderr)[1]

    def start(self, kind, kit):
        command = [sys.executable, "-m", "intarsia", "federation", kind, str(kit)]
        with (self.folder / "said.txt").open("ab") as said:
            self.running.append(subprocess.Popen(command, stdout=said, stderr=said))
        return self.running[-1]

    def connected(self, expected, seconds=120):
        """Wait until just these sites answer the server."""
        end, found = time.monotonic() + seconds, None
        while time.monotonic() < end:
            # 3: the server, which was started just now, does not run yet
            said = intarsia("status", self.server, "--json", "--sites", allowed=(0, 3)).stdout
            sites = json.loads(said).get("sites", {})
            found = {name for name, there in sites.items() if there}
            if found == expected:
                return
        raise AssertionError(f"{found} are connected, not {expected}")

    def stop(self):
        for process in self.running:
            process.send_signal(signal.SIGTERM)
        for process in self.running:
            process.wait(120)


@pytest.fixture(scope="module")
def machines(tmp_path_factory):
    made = Machines(tmp_path_factory.mktemp("machines"))
    made.kits = {name: made.join(name) for name in ("bank", "shop")}
    made.start("server", made.server)
    for kit in made.kits.values():
        made.start("site", kit)
    made.connected({"bank", "shop"})
    yield made
    made.stop()


def test_sites_go_on_when_the_certificate_of_the_server_is_renewed(machines):
    kits = machines.server.parent
    intarsia("renew", machines.file, "server", "-o", kits)
    shutil.copytree(kits / "renewed" / "server", machines.server, dirs_exist_ok=True)
    shutil.rmtree(kits / "renewed")
    intarsia("stop", machines.server)
    machines.start("server", machines.server)
    machines.connected({"bank", "shop"})
    assert json.loads(intarsia("ping", machines.server).stdout)["sites"] == ["bank", "shop"]


def test_of_two_processes_with_one_kit_the_newer_stays_and_the_other_says_so(machines, tmp_path):
    copied = tmp_path / "shop"
    intarsia("stop", machines.kits["shop"])
    shutil.copytree(machines.kits["shop"], copied)  # at rest, so that nothing tells it is a copy
    first = machines.start("site", machines.kits["shop"])
    machines.connected({"bank", "shop"})
    second = machines.start("site", copied)
    assert first.wait(180) == replaced.STATUS
    said = "Another process has connected to the server as 'shop'"
    assert said in (machines.kits["shop"] / "events.log").read_text()
    machines.connected({"bank", "shop"})
    told = intarsia("status", machines.server).stderr
    assert re.search("  shop: two processes have its kit, and that of before .* told to end", told)
    assert json.loads(intarsia("ping", machines.server).stdout)["sites"] == ["bank", "shop"]
    assert second.poll() is None
    intarsia("stop", copied)
    machines.start("site", machines.kits["shop"])
    machines.connected({"bank", "shop"})


def test_a_site_is_revoked_and_comes_back_with_another_key(machines):
    kits = machines.kits
    intarsia("revoke", machines.server, "bank")
    machines.connected({"shop"})
    intarsia("stop", machines.server)  # what is refused stays so
    machines.start("server", machines.server)
    machines.connected({"shop"})
    assert "403" in (kits["bank"] / "log.txt").read_text()

    stolen = machines.folder / "elsewhere" / "bank"
    shutil.copytree(kits["bank"], stolen)
    intarsia("stop", kits["bank"])
    machines.join("bank")
    machines.start("site", stolen)
    machines.start("site", kits["bank"])
    machines.connected({"bank", "shop"})
    assert json.loads(intarsia("ping", machines.server).stdout)["sites"] == ["bank", "shop"]
    assert "403" in (stolen / "console.log").read_text()
