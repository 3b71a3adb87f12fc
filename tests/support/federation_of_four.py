"""Four sites and a server over NVIDIA FLARE on this machine, each a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil

import four_sites
import sites
from intarsia.deployment import server as federation_server
from intarsia.engines import codec
from intarsia.engines.remote.caller import RetryPolicy
from intarsia.experiment import config as experiment
from intarsia.results import result
from intarsia.training import run as running

TESTS = Path(__file__).parent
PATIENCE = RetryPolicy(seconds=15.0, deadline=45.0)


_TAKEN = []  # sockets by which other processes of tests know this one's ports


def free_port():
    """Return a port that is free, and the next one too; no other process of tests is given it.

    A server takes it seconds later, in which another one's would find it free as well.
    """
    for port in range(18700, 19700, 2):
        mark = socket.socket(type=socket.SOCK_DGRAM)  # no server's, which are of TCP
        try:
            mark.bind(("localhost", port))
            with socket.socket() as one, socket.socket() as two:
                one.bind(("localhost", port))
                two.bind(("localhost", port + 1))
        except OSError:
            mark.close()
            continue
        _TAKEN.append(mark)
        return port
    raise AssertionError("no port is free")


def intarsia(*words, allowed=(0,)):
    """Run a command of a federation; its exit status must be one that is allowed."""
    command = [sys.executable, "-m", "intarsia", "federation", *map(str, words)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode in allowed, done.stderr
    return done


def works_on(process, job):
    """Return whether a process is that of a job: by its command, or by its name."""
    began_ahead = process.name() == f"job-{job[:8]}"
    return began_ahead or any(job in word for word in process.cmdline())


class Federation:
    """The kits, and the processes that run from them.

    `place` runs a command where a client is: on this machine, or in a network of its own.
    """

    def __init__(self, folder, server="localhost", place=lambda name: []):
        self.folder, self.kits, self._place = folder, folder / "kits", place
        self.port = free_port()
        sites = "".join(f'[[site]]\nname = "{name}"\n' for name in four_sites.NAMES)
        (folder / "federation.toml").write_text(
            f'[federation]\nname = "four"\nserver = "{server}"\nport = {self.port}\n'
            f"[patience]\nseconds = 15.0\ndeadline = 45.0\n{sites}"
        )
        intarsia("provision", folder / "federation.toml", "-o", self.kits)
        self.processes = {}

    # -- processes

    def start(self, name, **environment):
        kind = "server" if name == "server" else "site"
        command = [sys.executable, "-m", "intarsia", "federation", kind, str(self.kits / name)]
        with (self.folder / f"{name}.out").open("ab") as out:
            self.processes[name] = subprocess.Popen(
                [*self._place(name), *command],
                stdout=out,
                stderr=out,
                env={**os.environ, **environment},
            )

    def start_all(self):
        self.describe("hyfdca")
        for name in ("server", *four_sites.NAMES):
            self.start(name)

    def kill(self, name):
        """Kill what keeps a kit running, and its parent process; workers are left behind."""
        keeper = psutil.Process(self.processes[name].pid)
        for process in (keeper, *keeper.children(recursive=True)):
            if process == keeper or not self._is_worker(process):
                with contextlib.suppress(psutil.Error):
                    process.kill()
        self.processes.pop(name).wait()

    def stop(self, name):
        """Stop what runs from a kit."""
        process = self.processes.pop(name)
        process.send_signal(signal.SIGTERM)
        process.wait(120)

    def stop_all(self):
        for process in self.processes.values():
            process.send_signal(signal.SIGTERM)
        for process in self.processes.values():
            process.wait(120)

    def worker(self, name, run, seconds=120):
        """Return the process that works on the present job of a run."""
        job, end = (
            self.kits / "server" / "local" / "runs" / run / "job.id",
            time.monotonic() + seconds,
        )
        while time.monotonic() < end:
            present = job.read_text() if job.is_file() else "no job"
            for process in psutil.process_iter():
                with contextlib.suppress(psutil.Error):
                    own = str(self.kits / name) in process.cmdline() and works_on(process, present)
                    if own and self._is_worker(process):
                        return process
            time.sleep(0.5)
        raise AssertionError(f"{name} works on no job of {run}")

    @staticmethod
    def _is_worker(process):
        with contextlib.suppress(psutil.Error):
            return any("r_process" in word for word in process.cmdline())
        return False

    # -- runs

    def describe(self, algorithm, more=""):
        """Let the sites have the tables for an algorithm; return what says how they are read."""
        self.tables = self.folder / algorithm
        described = four_sites.write_tables(algorithm, self.tables)
        for name, text in described.items():
            path = self.kits / name / "local" / "site.toml"
            path.write_text(four_sites.site_toml(name, text, self.tables, more))
        return described

    def submit(self, tree, patience=PATIENCE):
        """Ask for a run."""
        description = experiment.from_dict(tree, self.tables)
        local = self.kits / "server" / "local"
        federation_server.request(local, description, four_sites.NAMES, patience)

    def standing(self, name):
        found = federation_server.list_statuses(self.kits / "server" / "local")
        return next(one for one in found if one.name == name)

    def until(self, name, condition, seconds=300):
        end = time.monotonic() + seconds
        while not condition(found := self.standing(name)):
            assert found.state != "failed", found.problem
            server = self.processes.get("server")
            out = self.folder / "server.out"
            assert server is None or server.poll() is None, out.read_text()
            assert time.monotonic() < end, found
            time.sleep(0.3)

    def finished(self, name, seconds=400):
        self.until(name, lambda one: one.state == "finished", seconds)
        return result.load(self.out(name))

    def failed(self, name, seconds=300):
        """Return the sentence with which a run ends for good."""
        end = time.monotonic() + seconds
        while (found := self.standing(name)).state != "failed":
            assert found.state != "finished"
            assert time.monotonic() < end, found
            time.sleep(0.3)
        return found.problem

    def out(self, name):
        return self.kits / "server" / "local" / "runs" / name / "out"

    def shelf(self, site, name):
        """Return what a site has of a run."""
        run = json.loads((self.out(name) / "run.id").read_text())["run"]
        return self.kits / site / "local" / "runs" / run


class Reference:
    """The same run in one process, done when it is compared: then the sites' secrets are known."""

    def __init__(self, tree, folder):
        self._tree, self._tables = tree, folder
        folder.mkdir(exist_ok=True)
        # other modules' runs on these tables may be there too
        self.folder = Path(tempfile.mkdtemp(prefix="one-", dir=folder)) / "run"
        self.result = None

    def _run(self, secrets):
        kept = []
        trained = running.train_to_end

        def keeping(task):
            kept.append(trained(task))
            return kept[-1]

        running.train_to_end = keeping
        try:
            description = experiment.from_dict(self._tree, self._tables)
            self.result = running.run(description, out=self.folder, secrets=secrets)
        finally:
            running.train_to_end = trained
        self.conclusion = kept[0].conclusion

    def same(self, federation, name, traffic=True):
        """Check that a run over sites came to these bits; ciphertexts vary in length."""
        out = federation.out(name)
        if self.result is None:
            folders = {site: federation.kits / site / "local" for site in four_sites.NAMES}
            self._run(sites.in_run_of(out, folders))
        found = result.load(out)
        written = codec.decode((out / "conclusion.state").read_bytes())
        if self.conclusion.weights is not None:
            np.testing.assert_array_equal(written["weights"], self.conclusion.weights)
        if self.conclusion.network is not None:
            assert written["network"].keys() == self.conclusion.network.keys()
            for key, values in self.conclusion.network.items():
                np.testing.assert_array_equal(written["network"][key], values)
        assert found.certificate == self.result.certificate
        assert found.metrics == self.result.metrics
        if traffic:
            assert found.bytes == self.result.bytes
        left_out = {"seconds"} if traffic else {"seconds", "bytes"}
        assert history(out, left_out) == history(self.folder, left_out)


def history(folder, left_out=frozenset({"seconds"})):
    lines = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    return [{key: one for key, one in line.items() if key not in left_out} for line in lines]
