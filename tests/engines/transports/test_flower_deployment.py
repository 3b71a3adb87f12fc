"""A federation of Flower on this machine: a server and four nodes over TLS, and a run killed."""

from __future__ import annotations

import contextlib
import datetime
import importlib.util
import ipaddress
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

import sites
from intarsia.experiment import config as experiment
from intarsia.results import result
from intarsia.training import run as running

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("flwr") is None, reason="flwr is not installed"),
]
ROOT = Path(__file__).parents[3]
APP = ROOT / "examples" / "flower-app"
PROGRAMS = Path(sys.executable).parent
SITES = ("bank", "branch", "telecom", "retailer")
DEADLINE = 1500.0
EXPERIMENT = """
[experiment]
name = "small"
rounds = 1
yardsticks = false
checkpoint_seconds = 0.0
[preprocessing]
standardise = false
[algorithm]
name = "hyfdca"
loss = "squared"
regularisation = 1e-2
[labels]
task = "regression"
"""


def tables(folder: Path) -> None:
    """Write a table for each site: two have the same columns, and each some rows and columns."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 6)), rng.normal(size=60)
    rows = {"bank": range(40), "branch": range(40, 60), "telecom": range(50), "retailer": range(60)}
    columns = {"bank": (0, 1), "branch": (0, 1), "telecom": (1, 2, 3), "retailer": (4, 5)}
    for name in SITES:
        own = folder / name
        own.mkdir(parents=True)
        head = ["id", *(f"x{k}" for k in columns[name]), "y"]
        lines = [",".join(head)] + [
            ",".join(
                [f"s{row}", *(repr(float(x[row, k])) for k in columns[name]), repr(float(y[row]))]
            )
            for row in rows[name]
        ]
        (own / "table.csv").write_text("\n".join(lines) + "\n")
        (own / "site.toml").write_text(
            f'[site]\nname = "{name}"\nplain = true\nids = true\n'
            '[table]\npath = "table.csv"\nid = "id"\nlabel = "y"\n'
        )


def certificates(folder: Path) -> None:
    """Write a certificate of 127.0.0.1, its key, and the authority that signed it."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    now = datetime.datetime.now(datetime.UTC)

    def made(name, public, signer, issuer, more):
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name if issuer is None else issuer)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
        )
        for extension in more:
            builder = builder.add_extension(extension, critical=False)
        return builder.sign(signer, hashes.SHA256())

    authority, server = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    place = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    root = made(
        "authority", authority.public_key(), authority, None, [x509.BasicConstraints(True, None)]
    )
    own = made("server", server.public_key(), authority, root.subject, [place])
    pem = serialization.Encoding.PEM
    (folder / "ca.crt").write_bytes(root.public_bytes(pem))
    (folder / "server.crt").write_bytes(own.public_bytes(pem))
    (folder / "server.key").write_bytes(
        server.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def environment(folder: Path) -> dict[str, str]:
    folder.mkdir(exist_ok=True)
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    # its processes are started by name
    found = os.pathsep.join([str(PROGRAMS), os.environ["PATH"]])
    more = {"FLWR_HOME": str(folder), "FLWR_TELEMETRY_ENABLED": "0", "PATH": found}
    return {**os.environ, **more, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


@contextlib.contextmanager
def federation(folder: Path):
    """Run a server and a node for each site; yield its folder, and what kills and restarts all."""
    certificates(folder)
    server, control, fleet, *ports = free_ports(3 + len(SITES))
    address = f"127.0.0.1:{server}"
    home = folder / "home"
    home.mkdir()
    (home / "config.toml").write_text(
        '[superlink]\ndefault = "trial"\n[superlink.trial]\n'
        f'address = "{address}"\nroot-certificates = "{folder / "ca.crt"}"\n'
    )
    given = {name: folder / f"{name}.log" for name in ("server", *SITES)}
    commands = {
        "server": [
            *("flower-superlink", "--ssl-ca-certfile", "ca.crt", "--ssl-certfile", "server.crt"),
            *("--ssl-keyfile", "server.key", "--host", "127.0.0.1", "--port", str(server)),
            *("--control-api-address", f"127.0.0.1:{control}"),
            *("--fleet-api-address", f"127.0.0.1:{fleet}"),
        ]
    }
    for name, port in zip(SITES, ports, strict=True):
        commands[name] = [
            *("flower-supernode", "--root-certificates", "ca.crt", "--superlink", address),
            *("--port", str(port), "--node-config", f'folder="{folder / "sites" / name}"'),
        ]
    processes = []

    def start_all():
        for name, (program, *words) in commands.items():
            own = home if name == "server" else folder / f"home-{name}"
            with given[name].open("a") as log:
                processes.append(
                    subprocess.Popen(
                        [str(PROGRAMS / program), *words],
                        cwd=folder,
                        env=environment(own),
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
                )
            if name == "server":
                listening(server)

    def kill_all():
        while processes:
            process = processes.pop()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(60)

    def restart():
        kill_all()
        start_all()

    try:
        start_all()
        yield home, restart
    finally:
        kill_all()


def listening(port: int) -> None:
    end = time.monotonic() + 120
    while time.monotonic() < end:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.2)
    pytest.fail("the server does not listen")


def start(folder: Path, home: Path) -> subprocess.Popen[bytes]:
    config = f"out='{folder / 'out'}' clients='{' '.join(SITES)}' wait=600"
    return subprocess.Popen(
        [str(PROGRAMS / "flwr"), "run", "app", "trial", "--stream", "--run-config", config],
        cwd=folder,
        env=environment(home),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def waited(folder: Path, done) -> None:
    end = time.monotonic() + DEADLINE
    while not done():
        if time.monotonic() > end:
            logs = [f"{path}:\n{path.read_text()[-1500:]}" for path in folder.glob("*.log")]
            pytest.fail("\n".join(["nothing came in time", *logs]))
        time.sleep(0.5)


def server_app(home: Path) -> psutil.Process | None:
    """Return the process of the server's app."""
    for process in psutil.process_iter(["cmdline", "environ"]):
        words = " ".join(process.info["cmdline"] or ())
        own = (process.info["environ"] or {}).get("FLWR_HOME")
        if "flwr-serverapp" in words and own == str(home):
            return process
    return None


def history(folder: Path) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    return [{key: one for key, one in line.items() if key != "seconds"} for line in lines]


def test_a_run_over_nodes_and_tls_that_is_killed_goes_on_to_the_same_bits(tmp_path):
    tables(tmp_path / "sites")
    shutil.copytree(APP, tmp_path / "app", ignore=shutil.ignore_patterns("sites"))
    (tmp_path / "app" / "credit_app" / "credit.toml").write_text(
        EXPERIMENT + "".join(f'[[client]]\nname = "{name}"\n' for name in SITES)
    )
    whole = tmp_path / "whole.toml"
    given = 'path = "sites/{0}/table.csv"\nid = "id"\nlabel = "y"\n'
    whole.write_text(
        EXPERIMENT
        + "".join(f'[[client]]\nname = "{name}"\n' + given.format(name) for name in SITES)
    )
    out = tmp_path / "out"
    with federation(tmp_path) as (home, restart):
        first = start(tmp_path, home)
        waited(tmp_path, (out / "set-up.state").is_file)
        killed = server_app(home)
        assert killed is not None
        killed.kill()
        first.kill()
        first.wait(60)
        assert not (out / "result.json").exists()
        restart()  # the server and all nodes, too
        second = start(tmp_path, home)
        waited(tmp_path, (out / "result.json").is_file)
        second.kill()
        second.wait(60)
    secrets = sites.in_run_of(out, {name: tmp_path / "sites" / name for name in SITES})
    expected = running.run(experiment.load(whole), out=tmp_path / "expected", secrets=secrets)
    found = result.load(out)
    assert found.certificate == expected.certificate
    assert found.metrics == expected.metrics
    assert (found.bytes, found.exchanges) == (expected.bytes, expected.exchanges)
    assert history(out) == history(tmp_path / "expected")
    audits = [(folder / "audit.json").read_bytes() for folder in (out, tmp_path / "expected")]
    assert json.loads(audits[0]) == json.loads(audits[1])
