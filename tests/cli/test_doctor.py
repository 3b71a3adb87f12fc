"""`intarsia doctor`: what is as it should be, and each thing that is not, with what to do."""

from __future__ import annotations

import datetime
import errno
import importlib.metadata
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import pytest

from command_line import one_error, said
from intarsia.cli import doctor, warm
from intarsia.cli.main import main
from intarsia.maths import jit

x509 = pytest.importorskip("cryptography.x509")

REQUIREMENTS = [
    "numpy>=2.0",
    'torch>=2.4; extra == "torch"',
    'optuna>=4.2; extra == "tune"',
]
VERSIONS = {"numpy": "2.1", "torch": "2.5"}


def states(name: str, found: list[doctor.Finding]) -> list[str]:
    return [one.state for one in found if one.name == name]


def line(name: str, found: list[doctor.Finding]) -> str:
    (one,) = [one for one in found if one.name == name]
    return str(one)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Pretend what is installed; the test may change it."""
    versions = dict(VERSIONS)

    def version(name: str) -> str:
        if name not in versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(doctor, "_version", lambda name: versions.get(name))
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: REQUIREMENTS)
    return versions


def test_this_installation_is_sound(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    assert main(["doctor", "--json"]) == 0
    out, err = said(capfd)
    found = json.loads(out)
    names = ["python", "versions", "extras", "plugins", "cache", "locks", "threads", "accelerator"]
    assert [one["name"] for one in found] == names
    assert {one["state"] for one in found} == {"ok"}
    assert [line.split(":")[0].split()[-1] for line in err.splitlines()] == names
    assert not list(tmp_path.iterdir())


def test_a_version_that_is_too_old_is_a_problem(installed):
    assert doctor._unmet(doctor._required("")[0]) == ""
    installed["numpy"] = "1.26.4"
    found = doctor._requirements()
    assert found.state == "problem"
    assert str(found).endswith(
        "versions: numpy is 1.26.4, where >=2.0 is needed; run pip install --upgrade intarsia"
    )
    del installed["numpy"]
    assert "numpy is not installed" in doctor._requirements().said
    assert [one.name for one in doctor._required("torch")] == ["torch"]
    installed["torch"] = "2.3"
    broken = [one for one in doctor._extras() if one.state == "problem"]
    assert [one.name for one in broken] == ["extra torch"]
    assert 'pip install --upgrade "intarsia[torch]"' in broken[0].remedy


def test_an_extra_that_is_absent_is_named_and_is_no_problem(installed):
    (found,) = doctor._extras()
    assert found.state == "ok"
    assert found.said.startswith("torch; not installed: tune")


def test_no_place_for_kernels_and_no_locks_are_problems(tmp_path, monkeypatch):
    monkeypatch.setattr(jit, "cache_folder", lambda: None)
    assert "set NUMBA_CACHE_DIR" in doctor._cache().remedy
    monkeypatch.chdir(tmp_path)
    assert doctor._locks().state == "ok"

    def no_locks(*_: object) -> None:
        raise OSError(os.strerror(95))

    monkeypatch.setattr("fcntl.flock", no_locks)
    with warnings.catch_warnings():
        found = doctor._locks()
    assert found.state == "problem"
    assert "has no locks" in found.said


# -- a kit


def certificate(path: Path, start: datetime.datetime, days: int) -> None:
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "bank")])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(start)
        .not_valid_after(start + datetime.timedelta(days=days))
        .sign(key, hashes.SHA256())
    )
    path.write_bytes(made.public_bytes(serialization.Encoding.PEM))


NOW = datetime.datetime.now(datetime.UTC)


@pytest.fixture
def kit(tmp_path: Path) -> Path:
    """A site's kit as provisioning writes it, whose server listens nowhere."""
    own = tmp_path / "bank"
    for folder in ("startup", "local"):
        (own / folder).mkdir(parents=True)
    own.chmod(0o700)
    with socket.socket() as one:  # a port that is free
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    servers = {"servers": [{"service": {"target": f"127.0.0.1:{port}"}, "admin_port": port}]}
    (own / "startup/fed_client.json").write_text(json.dumps(servers), encoding="utf-8")
    (own / "startup/client.key").write_bytes(b"secret")
    certificate(own / "startup/client.crt", NOW - datetime.timedelta(days=1), 300)
    table = 'path = "bank.csv"\nid = "customer"\n'
    text = f'[site]\nname = "bank"\nplain = true\n[table]\n{table}'
    (own / "local/site.toml").write_text(text, encoding="utf-8")
    (own / "local/bank.csv").write_text("customer,age\n1,2\n", encoding="utf-8")
    for private in ("startup/client.key", "local/site.toml"):
        (own / private).chmod(0o600)
    return own


def test_of_a_kit_each_thing_is_looked_at(kit, capfd, monkeypatch):
    monkeypatch.chdir(kit.parent)
    found = doctor.of_kit(kit)
    names = ["kit", "settings", "permissions", "disk", "certificates", "clock", "ports"]
    assert [one.name for one in found] == names
    assert [one.name for one in found if one.state == "problem"] == ["ports"]
    assert "cannot be reached (Connection refused); start the server" in line("ports", found)
    assert "valid for 298 days" in line("certificates", found)
    assert main(["doctor", str(kit)]) == 1
    assert len(said(capfd)[0].splitlines()) == 15
    with socket.socket() as server:
        target = json.loads((kit / "startup/fed_client.json").read_bytes())["servers"][0]
        server.bind(("127.0.0.1", target["admin_port"]))
        server.listen()
        assert states("ports", doctor.of_kit(kit)) == ["ok"]


def test_what_is_wrong_with_a_kit_is_said_with_what_to_do(kit):
    (kit / "startup/client.key").chmod(0o644)
    kit.chmod(0o755)
    assert "others may read 'startup/client.key'; run chmod -R go= " in line(
        "permissions", doctor.of_kit(kit)
    )
    certificate(kit / "startup/client.crt", NOW - datetime.timedelta(days=400), 300)
    certificate(kit / "startup/rootCA.pem", NOW - datetime.timedelta(days=10), 30)
    found = [one for one in doctor.of_kit(kit) if one.name == "certificates"]
    assert [one.state for one in found] == ["problem", "problem"]
    assert re.search(r"client\.crt ended on [\d-]+ \d\d:\d\d UTC", found[0].said)
    assert found[0].remedy.startswith("renew it: intarsia federation join bank ")
    assert "rootCA.pem ends on" in found[1].said
    certificate(kit / "startup/client.crt", NOW + datetime.timedelta(hours=5), 300)
    behind = next(one for one in doctor.of_kit(kit) if one.name == "certificates")
    assert behind.remedy == "set this machine's clock"
    begins = f"{NOW + datetime.timedelta(hours=5):%Y-%m-%d %H:%M} UTC"
    # without the present minute: a log would have it each minute
    end = "on, and this machine's clock is behind that"
    assert behind.said == f"client.crt is valid from {begins} {end}"
    ahead = NOW.timestamp() + 3600
    os.utime(kit / "startup/client.key", (ahead, ahead))
    assert "minutes ahead; set this machine's clock, by NTP" in line("clock", doctor.of_kit(kit))
    (kit / "local/bank.csv").unlink()
    assert "where nothing is; put the file there" in line("settings", doctor.of_kit(kit))


@pytest.mark.parametrize(
    ("number", "where", "remedy"),
    [
        (errno.EROFS, "", "give whoever runs it a folder of a disk that can be written"),
        (errno.EACCES, "local", "give whoever runs it a folder of a disk that can be written"),
        (errno.ENOSPC, "local", "free some of its disk"),
        (errno.EFBIG, "local", "let files be longer (ulimit -f, or LimitFSIZE= of its service)"),
    ],
)
def test_a_kit_into_which_nothing_can_be_written_is_a_problem(
    number, where, remedy, kit, monkeypatch
):
    made = tempfile.TemporaryFile

    def refused(dir):
        if dir == kit / where:
            raise OSError(number, os.strerror(number), str(dir))
        return made(dir=dir)

    assert states("disk", doctor.of_kit(kit)) == ["ok"]
    monkeypatch.setattr(tempfile, "TemporaryFile", refused)
    why = f"nothing can be written into the kit's folder ({os.strerror(number)}); {remedy}"
    assert line("disk", doctor.of_kit(kit)) == f"problem  disk: {why}"


def test_a_folder_that_is_no_kit_is_refused(tmp_path, capfd):
    assert main(["doctor", str(tmp_path)]) == 2
    assert "is no kit" in one_error(said(capfd)[1])


def test_status_says_which_certificates_end_soon(kit, capfd):
    assert main(["federation", "status", str(kit)]) == 3  # not running
    assert "certificate" not in said(capfd)[0]
    certificate(kit / "startup/client.crt", NOW - datetime.timedelta(days=300), 310)
    assert main(["federation", "status", str(kit)]) == 3  # not running
    words = r"certificates: client\.crt ends on \d{4}-\d\d-\d\d, in 9 days"
    assert re.search(words, said(capfd)[1])
    assert main(["federation", "status", str(kit), "--json"]) == 3
    (told,) = json.loads(said(capfd)[0])["certificates"]
    assert told.startswith("client.crt ends on")


def test_status_at_a_server_says_which_sites_certificates_end_soon(tmp_path, capfd):
    local = tmp_path / "server" / "local"
    local.mkdir(parents=True)
    known = {"sites": ["bank", "shop", "post", "branch"], "patience": {}}
    (local / "federation.json").write_text(json.dumps(known))
    days = {"bank": 9, "shop": -2, "post": 200, "localhost": 3}
    ends = {name: (NOW + datetime.timedelta(one)).isoformat() for name, one in days.items()}
    (local / "certificates.json").write_text(json.dumps(ends))
    words = ["federation", "status", str(tmp_path / "server"), "--json"]
    assert main(words) == 3  # not running
    first, second = json.loads(said(capfd)[0])["certificates"]
    assert re.match(r"that of bank ends on [\d-]+; let bank run intarsia federation join", first)
    assert re.match(r"that of shop ended on [\d-]+; let shop run", second)
    (local / "certificates.json").write_text("{")
    assert main(words) == 3
    (told,) = json.loads(said(capfd)[0])["certificates"]
    assert "certificates.json is damaged" in told


def test_warm_says_what_it_trains_and_where_nothing_can_be_kept(monkeypatch, capfd):
    first = next(warm.trees())
    monkeypatch.setattr(warm, "trees", lambda: iter([first]))
    assert main(["doctor", "--warm"]) == 0
    text, err = said(capfd)
    assert f"compiling: {first[0]}" in err
    assert "warm: 1 small federations were trained" in text
    monkeypatch.setattr(jit, "cache_folder", lambda: None)
    assert line("warm", [doctor.warmed(print)]).startswith("problem  warm: nothing was compiled")


@pytest.mark.slow
def test_after_warm_a_first_run_compiles_nothing(tmp_path):
    """Tables with numbers, few and many levels; a federation of numbers and one of classes."""
    cache = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache"), "MPLBACKEND": "Agg"}

    def intarsia(*words: str) -> set[str]:
        command = [sys.executable, "-m", "intarsia", *words]
        subprocess.run(command, env=cache, check=True, capture_output=True, cwd=tmp_path)
        return {one.name for one in (tmp_path / "cache").rglob("*.nbc")}

    known = intarsia("doctor", "--warm")
    assert len(known) > 40
    folder = Path(__file__).parents[2] / "experiments"
    for name in ("credit", "heart"):
        for mode in ("plain", "masked"):
            file = str(folder / f"{name}.toml")
            found = intarsia("run", file, "--out", f"{name}-{mode}", "-c", f"privacy.mode={mode}")
            assert found == known
