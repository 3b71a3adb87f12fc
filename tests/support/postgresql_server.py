"""A PostgreSQL server of the test's own, on loopback, with TLS and a read-only role."""

from __future__ import annotations

import datetime
import ipaddress
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

PROGRAMS = ("initdb", "pg_ctl", "postgres")
PASSWORD = "p@ss/w:rd %41 #1"  # every character that means something in a url

_TABLES = """
create table people (id integer primary key, age numeric(6, 2), sex text, member boolean,
                     born date, y text);
insert into people values (1, 20.00, 'F', true, '1990-01-31', 'no'),
  (2, null, ' M ', null, null, 'yes'), (3, 40.00, null, false, '1970-01-01', 'no'),
  (4, 50.00, 'M', true, '1960-12-24', null);
create table secrets (id integer);
create function forget() returns integer language sql as 'delete from people returning id';
create role reader login password {password};
grant select on people to reader;
grant execute on function forget() to reader;
grant delete on people to reader;
"""


@dataclass(frozen=True)
class Server:
    """A running server, and the folder with the certificate of its authority."""

    port: int
    folder: Path

    def url(self, host: str = "localhost", login: str = "reader:$BANK_PASSWORD", **parameters: str):
        given = {"sslrootcert": str(self.folder / "authority.pem"), **parameters}
        rest = "&".join(f"{key}={value}" for key, value in given.items())
        return f"postgresql://{login}@{host}:{self.port}/bank?{rest}"

    def people(self) -> int:
        with self.admin() as connection:
            return connection.execute("select count(*) from people").fetchone()[0]

    def admin(self, database: str = "bank") -> psycopg.Connection:
        return psycopg.connect(
            host="127.0.0.1", port=self.port, user="admin", dbname=database, password=PASSWORD
        )


@contextmanager
def running() -> Iterator[Server]:
    """Start a server with a fresh database, and stop it."""
    folder = Path(tempfile.mkdtemp(prefix="intarsia-postgresql-"))
    try:
        port = _free_port()
        as_user = _owner()
        _certificates(folder)
        (folder / "password").write_text(PASSWORD)
        data = folder / "data"
        data.mkdir()
        for path in (folder, *folder.iterdir()):
            if as_user:
                shutil.chown(path, as_user["user"], as_user["group"])
            path.chmod(0o700 if path.is_dir() else 0o600)
        folder.chmod(0o755)
        (folder / "authority.pem").chmod(0o644)
        login = ["-U", "admin", "-A", "scram-sha-256", f"--pwfile={folder / 'password'}"]
        _do(["initdb", "-D", data, *login, "-E", "UTF8", "--locale=C", "--no-sync"], as_user)
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": port,
            "unix_socket_directories": "",
            "fsync": "off",
            "shared_buffers": "1MB",
            "ssl": "on",
            "ssl_cert_file": folder / "server.pem",
            "ssl_key_file": folder / "server.key",
        }
        with (data / "postgresql.conf").open("a") as file:
            file.writelines(f"{name} = '{value}'\n" for name, value in settings.items())
        log = folder / "log"
        _do(["pg_ctl", "-D", data, "-l", log, "-w", "-t", "30", "start"], as_user)
        try:
            server = Server(port, folder)
            with server.admin("postgres") as connection:
                connection.autocommit = True
                connection.execute("create database bank")
            with server.admin() as connection:
                connection.execute(_TABLES.format(password=f"'{PASSWORD}'"))
            yield server
        finally:
            _do(["pg_ctl", "-D", data, "-w", "-m", "immediate", "stop"], as_user)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _owner() -> dict[str, str]:
    """Return who runs the server: PostgreSQL refuses to run as root."""
    if os.geteuid():
        return {}
    known = {one.pw_name for one in pwd.getpwall()}
    name = "postgres" if "postgres" in known else "nobody"
    return {"user": name, "group": pwd.getpwnam(name).pw_gid}


def _do(command: list[object], as_user: dict[str, str]) -> None:
    given = [str(one) for one in command]
    more = {"extra_groups": []} if as_user else {}
    done = subprocess.run(
        given, **as_user, **more, cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, timeout=60, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{given[0]} ended with {done.returncode}: {done.stdout}")


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def _certificates(folder: Path) -> None:
    """Write an authority's certificate, a server's for "localhost", and a stranger's."""
    key, authority = _certificate("authority", None, None)
    server_key, server = _certificate("localhost", authority, key)
    _, stranger = _certificate("stranger", None, None)
    pem = serialization.Encoding.PEM
    (folder / "authority.pem").write_bytes(authority.public_bytes(pem))
    (folder / "stranger.pem").write_bytes(stranger.public_bytes(pem))
    (folder / "server.pem").write_bytes(server.public_bytes(pem))
    plain = serialization.NoEncryption()
    kind = serialization.PrivateFormat.PKCS8
    (folder / "server.key").write_bytes(server_key.private_bytes(pem, kind, plain))


def _certificate(name, issuer, issuer_key):
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    day = datetime.timedelta(days=1)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - day)
        .not_valid_after(now + day)
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
    )
    if issuer is not None:
        names = [x509.DNSName(name), x509.IPAddress(ipaddress.ip_address("127.0.0.2"))]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return key, builder.sign(issuer_key or key, hashes.SHA256())
