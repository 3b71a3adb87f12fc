"""Sites over NVIDIA FLARE on this machine: kits, mutual TLS, jobs, processes that die."""

from __future__ import annotations

import contextlib
import datetime
import gzip
import json
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import numpy as np
import psutil
import pytest

from intarsia import result, running
from intarsia.engines import codec
from intarsia.privacy.keys import SharedKey

pytest.importorskip("nvflare", reason="nvflare is not installed: pip install intarsia[nvflare]")
from intarsia.engines import nvflare

pytestmark = pytest.mark.slow

CREDIT = Path(__file__).parents[1] / "examples" / "data" / "credit"
PAY = 'categorical = ["PAY_2", "PAY_3", "PAY_4"]'
TABLES = {  # the bank's customers lie with two sites
    "bank": f'id = "customer"\nlabel = "default"\n{PAY}\n',
    "branch": f'id = "customer"\nlabel = "default"\n{PAY}\n',
    "telecom": 'id = "customer"\nlabel = "default"\n'
    'categorical = ["SEX", "EDUCATION", "MARRIAGE", "PAY_0"]\n',
    "retailer": 'id = "customer"\nlabel = "default"\ncategorical = ["SEX", "PAY_5", "PAY_6"]\n',
}
EXPERIMENT = """
[experiment]
name = "{name}"
tolerance = 1e-6
yardsticks = false
checkpoint_seconds = 0.0
[algorithm]
name = "hyfdca"
loss = "logistic"
regularisation = 1e-3
[labels]
task = "binary"
positive = "1"
[privacy]
mode = "masked"
key = "shared.key"
"""


def test_what_came_is_not_spelled_out_for_a_log() -> None:
    from nvflare.fuel.utils.buffer_list import ConsumableBufferList

    assert f"{ConsumableBufferList([bytes(1 << 20)] * 8)}" == "8 chunks"


def clients(folder):
    return "".join(
        f'[[client]]\nname = "{name}"\npath = "{folder}/{name}.csv"\n{table}'
        for name, table in TABLES.items()
    )


def write_tables(folder):
    for name in ("bank", "telecom", "retailer"):
        text = gzip.decompress((CREDIT / f"{name}.csv.gz").read_bytes()).decode()
        head, *rows = text.splitlines(keepends=True)
        if name == "bank":
            (folder / "branch.csv").write_text("".join([head, *rows[1::2]]))
            rows = rows[::2]
        (folder / f"{name}.csv").write_text("".join([head, *rows]))


def free_port():
    """Return a port that is free, and the next one too."""
    for port in range(18700, 19700, 2):
        with contextlib.suppress(OSError), socket.socket() as one, socket.socket() as two:
            one.bind(("localhost", port))
            two.bind(("localhost", port + 1))
            return port
    raise AssertionError("no port is free")


def intarsia(*words, **options):
    return subprocess.run(
        [sys.executable, "-m", "intarsia", "federation", *map(str, words)],
        check=True,
        capture_output=True,
        text=True,
        **options,
    )


class Federation:
    """Four sites and a server, each a process of its own."""

    def __init__(self, folder):
        self.folder, self.kits = folder, folder / "kits"
        write_tables(folder)
        SharedKey(bytes(range(32)), "credit").store(folder / "shared.key")
        sites = "".join(f'[[site]]\nname = "{name}"\n' for name in TABLES)
        (folder / "federation.toml").write_text(
            f'[federation]\nname = "four"\nport = {free_port()}\n'
            f"[patience]\nseconds = 15.0\ndeadline = 45.0\n{sites}"
        )
        intarsia("provision", folder / "federation.toml", "-o", self.kits)
        for name, table in TABLES.items():
            (self.kits / name / "local" / "site.toml").write_text(
                f'[site]\nname = "{name}"\nkey = "{folder}/shared.key"\n'
                f'[table]\npath = "{folder}/{name}.csv"\n{table}'
            )
        self.processes = {}

    def start(self, name):
        kind = "server" if name == "server" else "site"
        command = [sys.executable, "-m", "intarsia", "federation", kind, str(self.kits / name)]
        with (self.folder / f"{name}.out").open("ab") as out:
            self.processes[name] = subprocess.Popen(command, stdout=out, stderr=out)

    def kill(self, name):
        """Kill what keeps a kit running, and its parent process; workers are left behind."""
        keeper = psutil.Process(self.processes[name].pid)
        for process in (keeper, *keeper.children()):
            process.kill()
        self.processes.pop(name).wait()

    def kill_worker(self, name):
        """Kill the process that works on a job."""
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                words = process.cmdline()
                if str(self.kits / name) in words and any("r_process" in one for one in words):
                    process.kill()
                    return
        raise AssertionError(f"{name} works on no job")

    def submit(self, name):
        path = self.folder / f"{name}.toml"
        path.write_text(EXPERIMENT.format(name=name) + clients(self.folder))
        intarsia("submit", self.kits / "server", path)

    def standing(self, name):
        found = json.loads(intarsia("status", self.kits / "server", "--json").stdout)
        return next(one for one in found["runs"] if one["name"] == name)

    def until(self, name, condition, seconds):
        end = time.monotonic() + seconds
        while not condition(found := self.standing(name)):
            assert found["state"] != "failed", found["problem"]
            assert time.monotonic() < end, found
            time.sleep(1)

    def out(self, name):
        return self.kits / "server" / "local" / "runs" / name / "out"

    def stop(self):
        for process in self.processes.values():
            process.send_signal(signal.SIGTERM)
        for process in self.processes.values():
            process.wait(60)


@pytest.fixture(scope="module")
def expected(federation):
    """Return the result and the conclusion in one process."""
    kept = []
    trained = running.trained

    def keeping(task):
        kept.append(trained(task))
        return kept[-1]

    path = federation.folder / "one.toml"
    path.write_text(EXPERIMENT.format(name="one") + clients(federation.folder))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running, "trained", keeping)
        found = running.run(path, out=federation.folder / "one")
    return found, kept[0].conclusion


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    made = Federation(tmp_path_factory.mktemp("federation"))
    for name in ("server", *TABLES):
        made.start(name)
    yield made
    made.stop()


def history(folder):
    lines = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    return [{key: one for key, one in line.items() if key != "seconds"} for line in lines]


def same(federation, name, expected):
    """Check that a run over sites came to the bits of the one in one process."""
    result_, conclusion = expected
    out = federation.out(name)
    found = result.load(out)
    weights = codec.decode((out / "conclusion.state").read_bytes())["weights"]
    np.testing.assert_array_equal(weights, conclusion.weights)
    assert found.certificate == result_.certificate
    assert found.metrics == result_.metrics
    assert found.bytes == result_.bytes
    assert history(out) == history(federation.folder / "one")


def test_hyfdca_on_credit_over_four_sites_comes_to_the_bits_of_one_process(federation, expected):
    federation.submit("calm")
    federation.until("calm", lambda one: one["state"] == "finished", 540)
    same(federation, "calm", expected)
    assert expected[0].certificate.gap_relative <= 1e-6


@pytest.mark.parametrize("fault", ["worker", "site", "server worker", "server"])
def test_a_process_that_is_killed_changes_no_bit(federation, expected, fault):
    name = fault.replace(" ", "-")
    federation.submit(name)
    federation.until(name, lambda one: one["round"] >= 2, 300)
    if fault == "worker":
        federation.kill_worker("telecom")
    elif fault == "server worker":
        federation.kill_worker("server")
    else:
        killed = "retailer" if fault == "site" else "server"
        federation.kill(killed)
        federation.start(killed)
    federation.until(name, lambda one: one["state"] == "finished", 540)
    same(federation, name, expected)


@pytest.mark.filterwarnings("ignore:ssl_context is deprecated:DeprecationWarning")
@pytest.mark.parametrize("kind", ["a file of its own", "another class"])
def test_a_job_with_code_of_its_own_is_refused(federation, tmp_path, kind):
    jobs = nvflare.Jobs(federation.kits / "server" / "admin")
    connected(jobs)
    job = nvflare.write_job(tmp_path / "job", "code", tuple(TABLES), 4)
    if kind == "a file of its own":
        (job / "app" / "custom").mkdir()
        (job / "app" / "custom" / "own.py").write_text("print('here')")
    else:
        config = job / "app" / "config" / "config_fed_client.json"
        said = config.read_text()
        config.write_text(said.replace("intarsia.engines.nvflare.SiteSide", "os.getcwd"))
        assert config.read_text() != said
    found = jobs.submit(job)
    end = time.monotonic() + 60
    while not (status := jobs.status(found)).startswith("FINISHED"):
        assert time.monotonic() < end, status
        time.sleep(1)
    jobs.close()
    assert status != "FINISHED:COMPLETED"


def connected(jobs):
    """Wait until all sites are connected."""
    end = time.monotonic() + 120
    while True:
        with contextlib.suppress(ConnectionError):
            if set(jobs.clients()) == set(TABLES):
                return
        assert time.monotonic() < end
        time.sleep(1)


def handshake(federation, key, chain):
    """Return what a site hears that connects with a certificate, None if it is let in."""
    startup = federation.kits / "bank" / "startup"
    context = ssl.create_default_context(cafile=str(startup / "rootCA.pem"))
    context.load_cert_chain(chain, key)
    context.set_alpn_protocols(["h2"])  # else whoever connects is sent away
    port = tomllib.loads((federation.folder / "federation.toml").read_text())["federation"]["port"]
    try:
        with (
            socket.create_connection(("localhost", port), timeout=20) as raw,
            context.wrap_socket(raw, server_hostname="localhost") as line,
        ):
            line.settimeout(5)
            # a refusal comes after the handshake of TLS 1.3; of who is let in the server waits
            # for a first word
            return None if line.recv(1) else "closed"
    except TimeoutError:
        return None
    except OSError as problem:
        return str(problem)


@pytest.mark.filterwarnings("ignore:ssl_context is deprecated:DeprecationWarning")
def test_a_certificate_of_nobody_or_of_yesterday_is_refused(federation, tmp_path):
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    jobs = nvflare.Jobs(federation.kits / "server" / "admin")
    connected(jobs)
    jobs.close()
    startup = federation.kits / "bank" / "startup"
    assert handshake(federation, startup / "client.key", startup / "client.crt") is None
    state = federation.kits / ".provisioning" / "kits" / "four" / "state" / "cert.json"
    known = json.loads(state.read_text())
    authority = serialization.load_pem_private_key(known["root_pri_key"].encode(), None)
    issuer = x509.load_pem_x509_certificate(known["root_cert"].encode()).subject
    own = rsa.generate_private_key(65537, 2048)
    now = datetime.datetime.now(datetime.UTC)
    day = datetime.timedelta(days=1)
    for signer, end, said in (
        (authority, now + day, None),
        (authority, now - day, "expired|closed"),
        (own, now + day, "unknown|decrypt|signature|bad certificate|closed"),
    ):
        certificate = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "bank")]))
            .issuer_name(issuer)
            .public_key(own.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 2 * day)
            .not_valid_after(end)
            .sign(signer, hashes.SHA256())
        )
        chain, key = tmp_path / "client.crt", tmp_path / "client.key"
        chain.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        form = serialization.PrivateFormat.TraditionalOpenSSL
        none = serialization.NoEncryption()
        key.write_bytes(own.private_bytes(serialization.Encoding.PEM, form, none))
        found = handshake(federation, key, chain)
        assert (found is None) == (said is None), found
        assert said is None or re.search(said, found), found
