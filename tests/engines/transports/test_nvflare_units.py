"""What units of systemd start, with what a unit leaves of a machine: no daemon is needed for it."""

from __future__ import annotations

import configparser
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import four_sites

pytest.importorskip("nvflare", reason="nvflare is not installed: pip install intarsia[nvflare]")
from federation_of_four import Federation
from intarsia.deployment.federation_file import load
from intarsia.deployment.operations.services import write_services

pytestmark = pytest.mark.slow

# Everything is read-only but what the unit names (ProtectSystem=strict), /tmp is the unit's own
# (PrivateTmp), and the cache is where the unit says. $1: the folder that stands for /srv/intarsia,
# $2: what may be written there, $3: an empty folder; then the command.
UNIT = r"""
set -e
here=$1; kit=$2; root=$3; shift 3
mount --make-rprivate /
mount --rbind / "$root"
mount -o remount,bind,ro "$root"
mount -t tmpfs tmpfs "$root/var/cache"
mkdir "$root/var/cache/intarsia"
mount -t tmpfs tmpfs "$root/tmp"
mkdir -p "$root$here"
mount --bind "$here" "$root$here"
mount -o remount,bind,ro "$root$here"
mount --bind "$kit" "$root$kit"
umask 0077
exec chroot "$root" setpriv --no-new-privs --bounding-set=-all --inh-caps=-all "$@"
"""
USER = {"HOME": "/srv/intarsia", "USER": "intarsia", "LOGNAME": "intarsia", "SHELL": "/bin/sh"}
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Units(Federation):
    """A federation whose processes are those of its units."""

    def __init__(self, folder):
        super().__init__(folder)
        program = folder / "intarsia"  # the command of this checkout, whatever is installed
        source = Path(__file__).parents[3] / "src"
        program.write_text(
            f'#!/bin/sh\nPYTHONPATH={source} exec {sys.executable} -m intarsia "$@"\n'
        )
        program.chmod(0o755)
        file = load(folder / "federation.toml")
        place = {"folder": str(self.kits), "program": str(program)}
        written = write_services(file, "systemd", folder, **place)
        self.units = dict(zip(("server", *file.sites), written, strict=True))

    def start(self, name, **environment):
        unit = configparser.ConfigParser(interpolation=None)
        unit.optionxform = str
        unit.read(self.units[name])
        service = unit["Service"]
        assert "WorkingDirectory" not in service  # so that it is /
        settings = [f"{key}={value}" for key, value in (USER | {"PATH": PATH}).items()]
        settings += service["Environment"].split()
        root = self.folder / f"root-{name}"
        root.mkdir()
        with (self.folder / f"{name}.out").open("ab") as out:
            self.processes[name] = subprocess.Popen(
                [
                    *("unshare", "--mount", "sh", "-c", UNIT, "unit", str(self.folder)),
                    *(service["ReadWritePaths"], str(root), "env", "-i", *settings),
                    *service["ExecStart"].split(),
                ],
                cwd="/",
                stdout=out,
                stderr=out,
            )


def may_mount():
    """Return whether this user may have mounts of his own, as systemd makes them."""
    if not all(map(shutil.which, ("unshare", "setpriv", "chroot"))):
        return False
    done = subprocess.run(["unshare", "--mount", "mount", "--make-rprivate", "/"], check=False)
    return os.geteuid() == 0 and done.returncode == 0


def test_a_run_passes_with_what_the_units_leave_to_its_processes(tmp_path):
    if not may_mount():
        pytest.skip("mounts are for root alone here")
    federation = Units(tmp_path)
    described = federation.describe("hyfdca")
    tree = four_sites.tree("hyfdca", described, federation.tables, name="units")
    # the caches of units are empty, and this has the fewest kernels to compile
    tree["algorithm"] = {"name": "fedavg", "loss": "logistic"}
    try:
        for name in federation.units:
            federation.start(name)
        federation.submit(tree)
        found = federation.finished("units")
    finally:
        federation.stop_all()
    assert (found.finished, found.rounds) == ("rounds", 4)
    for site in four_sites.NAMES:
        assert (federation.kits / site / "local" / "models" / "units").exists()
        assert "Traceback" not in (tmp_path / f"{site}.out").read_text()
