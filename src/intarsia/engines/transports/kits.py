"""Kits of NVIDIA FLARE: what it writes into them, and keys and certificates, which are ours.

Every certificate of a federation comes from `Authority.certify`, whether the key was made here with
the kit, here anew, or at the machine of its site. The framework's own builder is left out: it keeps
the keys of all that it writes for.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import shutil
import stat
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.x509.oid import NameOID
from nvflare.lighter.utils import Identity, generate_cert

from intarsia.core.block import ClientId
from intarsia.core.files.atomic_files import write_atomically
from intarsia.engines.transports.validity import certificate_files, valid_in
from intarsia.errors import ExperimentError
from intarsia.privacy.keys.shared_key import fingerprint

ADMIN: Final = "admin@intarsia.org"
_ORGANISATION: Final = "intarsia"  # in certificates; the framework wants one of each participant
_AUTHORITY_DAYS: Final = 3650  # for which a new certificate authority is valid
_DAYS: Final = 360  # for which what it signs is valid
_SOON_DAYS: Final = 30  # left to an authority, with which it signs no more
_KEY_BITS: Final = 2048  # of RSA, which the framework signs with
_KEY_BITS_MOST: Final = 8192
_NAME_LETTERS: Final = 64  # of a certificate; the framework cuts a longer name of a server, too
_ROOT: Final = "rootCA.pem"
_JOINING: Final = "joining"  # folder of a kit: the key that a request was made of
_KEY: Final = "client.key"
_CERTIFICATE: Final = "client.crt"
_SERVERS: Final = "server.crt"
# not as of certificates, so that neither is taken for the other
_PADDING: Final = padding.PSS(padding.MGF1(hashes.SHA256()), padding.PSS.DIGEST_LENGTH)

PrivateKey = rsa.RSAPrivateKey


def provisioned(
    name: str,
    host: str,
    ports: tuple[int, int],
    sites: Sequence[ClientId],
    folder: Path,
    *,
    keys: bool = True,
) -> Mapping[str, Path]:
    """Write a kit for the server, with the administrator's in it, and for each site.

    They hold keys and certificates. Kits that are there already stay as they are. Without `keys`
    the sites make their own (`requested`), and get no kit here.

    Raises
    ------
    ExperimentError
        If there are kits, and the certificate authority that signed them is not there; or if
        NVIDIA FLARE refuses to write kits.
    """
    owners = ("server", *sites) if keys else ("server",)
    known = [one for one in ("server", *sites) if (folder / one / "startup").exists()]
    kits = {one: folder / one for one in owners}
    authority = Authority.of(name, folder, known, new=not known)
    with _without_keys(name, host, ports, sites) as written:
        for owner, kit in kits.items():
            if not kit.exists():
                with _replaced(kit) as filling:
                    for part in _parts(owner, host):
                        own = filling / part.folder
                        _copy(written[part.participant], own)
                        authority.equip(own / "startup", part)
    return kits


def renewed(
    name: str, host: str, folder: Path, which: Collection[str], known: Collection[str]
) -> tuple[Path, datetime]:
    """Write new keys and certificates of kits, by the authority that signed those before.

    A server whose kit is in the folder keeps its key, and its certificate alone is new: with
    another key it would refuse what it signed for sites that are connected, until they are started
    again.

    Returns
    -------
    The folder of what is to be copied over each kit, and when the first of the certificates ends.

    Raises
    ------
    ExperimentError
        As `provisioned` does; and if the authority itself ends soon.
    """
    authority = Authority.of(name, folder, known)
    ends: list[datetime] = []
    for owner in which:
        with _replaced(folder / "renewed" / owner) as filling:
            for part in _parts(owner, host):
                startup = filling / part.folder / "startup"
                startup.mkdir(parents=True)
                own = folder / owner / part.folder / "startup"
                keeps = part.host is not None and (own / f"{part.file}.key").is_file()
                key = _key_in(own / f"{part.file}.crt") if keeps else None
                ends.append(authority.equip(startup, part, key).not_valid_after_utc)
    return folder / "renewed", min(ends)


def address_in(kit: Path) -> str:
    """Return where the server is by what NVIDIA FLARE wrote into a kit: its host and port."""
    files = (kit / "startup" / f"fed_{one}.json" for one in ("server", "client"))
    known = next(json.loads(path.read_bytes()) for path in files if path.is_file())
    return str(known["servers"][0]["service"]["target"])


def readdressed(
    name: str, host: str, ports: tuple[int, int], folder: Path, which: Sequence[str]
) -> None:
    """Write where the server is into kits; it keeps its key, with a certificate for its host.

    Raises
    ------
    ExperimentError
        As `renewed` does.
    """
    authority = Authority.of(name, folder, which) if "server" in which else None
    identity = host[:_NAME_LETTERS]
    address = {
        **{"target": f"{host}:{ports[0]}", "identity": identity},
        **{"admin_server": host, "admin_port": ports[1]},
        **{"host": host, "port": ports[1], "server_identity": identity},
    }
    for owner in which:
        for part in reversed(_parts(owner, host)):
            startup = folder / owner / part.folder / "startup"
            if part.host is not None and authority is not None:
                authority.equip(startup, part, _key_in(startup / f"{part.file}.crt"))
            for path in startup.glob("fed_*.json"):
                changed = _with(address, json.loads(path.read_bytes()))
                write_atomically(path, json.dumps(changed, indent=2).encode())


def _with(address: Mapping[str, Any], found: Any) -> Any:
    """Return what a file says, with the address in place of the one that it has."""
    if isinstance(found, dict):
        return {key: address.get(key, _with(address, one)) for key, one in found.items()}
    return [_with(address, one) for one in found] if isinstance(found, list) else found


def requested(name: ClientId, kit: Path) -> x509.CertificateSigningRequest:
    """Make a key for a site, which stays in its kit, and return the request for its certificate.

    A request that was made before and not signed yet is void: its key is replaced.
    """
    key = _new_key()
    request = x509.CertificateSigningRequestBuilder().subject_name(
        x509.Name(
            [
                x509.NameAttribute(NameOID.COMMON_NAME, name),
                x509.NameAttribute(NameOID.ORGANIZATION_NAME, _ORGANISATION),
            ]
        )
    )
    kit.mkdir(mode=0o700, exist_ok=True)
    (kit / _JOINING).mkdir(mode=0o700, exist_ok=True)
    write_atomically(kit / _JOINING / _KEY, _pem(key), private=True)
    return request.sign(key, hashes.SHA256())


def read_request(data: bytes, source: Path) -> x509.CertificateSigningRequest:
    """Return the request in a file; ExperimentError if it is none that can be signed."""
    try:
        found = x509.load_pem_x509_csr(data)
        key, sound = found.public_key(), found.is_signature_valid
        name_of(found.subject)
    except (ValueError, InvalidSignature, IndexError):
        raise ExperimentError(
            f"{source} is no request for a certificate; give the file that `intarsia federation "
            "join` wrote at the site."
        ) from None
    if not sound:
        raise ExperimentError(
            f"{source} is not signed with its own key; have the site make it anew."
        )
    if not isinstance(key, rsa.RSAPublicKey) or not _KEY_BITS <= key.key_size <= _KEY_BITS_MOST:
        raise ExperimentError(
            f"{source} has a key that is not one of RSA with {_KEY_BITS} to {_KEY_BITS_MOST} bits; "
            "have the site make it anew with `intarsia federation join`."
        )
    return found


def signed(
    name: str,
    host: str,
    ports: tuple[int, int],
    folder: Path,
    known: Collection[str],
    request: x509.CertificateSigningRequest,
    kit: Path,
) -> x509.Certificate:
    """Write a kit for a site that made its key itself; return its certificate.

    Raises
    ------
    ExperimentError
        As `renewed` does.
    """
    site, key = name_of(request.subject), request.public_key()
    assert isinstance(key, rsa.RSAPublicKey)  # as `read_request` sees to
    authority = Authority.of(name, folder, known)
    (part,) = _parts(site, host)
    with _without_keys(name, host, ports, [site]) as written, _replaced(kit) as filling:
        _copy(written[part.participant], filling)
        return authority.equip(filling / "startup", part, key)


def installed(kit: Path, written: Path) -> x509.Certificate:
    """Put what an operator signed into a site's kit, with the key that lies there.

    What is in `local` already stays as it is.

    Raises
    ------
    ExperimentError
        If the certificate is of another key, or of another authority than the kit's.
    """
    own, made = kit / "startup", waiting_key(kit)
    certificate, authority = certificate_in(written), authority_in(written)
    try:
        certificate.verify_directly_issued_by(authority)
        key = serialization.load_pem_private_key(made.read_bytes(), None)
    except (ValueError, TypeError, InvalidSignature):
        raise ExperimentError(
            f"The certificate for {kit.name!r} is not signed by the authority beside it, or the "
            "key here is damaged; have a new request signed."
        ) from None
    if key.public_key() != certificate.public_key():
        raise ExperimentError(
            f"The certificate for {kit.name!r} is not of the key in {made.parent}: it is of a "
            "request before the newest; have the newest one signed."
        )
    if (own / _ROOT).is_file() and authority_in(kit) != authority:
        raise ExperimentError(
            f"{kit} is of another certificate authority than what was signed; move the kit away to "
            "join another federation, or ask who signed it."
        )
    shutil.rmtree(filling := kit / ".filling", ignore_errors=True)
    try:
        _copy(written, filling)
        for path in (filling / "startup").glob("*.key"):
            path.unlink()  # never another's
        write_atomically(filling / "startup" / _KEY, made.read_bytes(), private=True)
        shutil.rmtree(own, ignore_errors=True)
        (filling / "startup").rename(own)
        for path in sorted(filling.rglob("*")):
            there = kit / path.relative_to(filling)
            if path.is_dir():
                there.mkdir(exist_ok=True)
            elif not there.exists():
                path.rename(there)
    finally:
        shutil.rmtree(filling, ignore_errors=True)
    shutil.rmtree(made.parent)
    return certificate


def signature_of(name: str, folder: Path, known: Collection[str], kit: Path) -> bytes:
    """Return by what the authority in `folder` vouches for all files of a kit; see `Authority.of`.

    A kit has programs that its site starts. They are sent over any channel, and what is read out is
    of the authority alone.
    """
    return Authority.of(name, folder, known).key.sign(_files_of(kit), _PADDING, hashes.SHA256())


def check_signature(kit: Path, signature: bytes) -> None:
    """Refuse a kit with other files than the authority in it vouches for."""
    key = authority_in(kit).public_key()
    try:
        if not isinstance(key, rsa.RSAPublicKey):
            raise InvalidSignature
        key.verify(signature, _files_of(kit), _PADDING, hashes.SHA256())
    except InvalidSignature:
        raise ExperimentError(
            "What was signed has other files than the authority vouches for: they were altered on "
            "their way, or an older version of intarsia signed them; have the request signed anew, "
            "by this version, and do not go on if it happens again."
        ) from None


def _files_of(kit: Path) -> bytes:
    """Return what tells the files of a kit from others: names, contents, and which are programs."""
    found = []
    for path in sorted(kit.rglob("*")):
        if path.is_symlink():
            content, kind = str(path.readlink()).encode(), "link"
        elif path.is_file():
            kind = "program" if path.stat().st_mode & stat.S_IXUSR else "file"
            content = path.read_bytes()
        else:
            continue
        name = path.relative_to(kit).as_posix()
        found.append((name, kind, hashlib.sha256(content).hexdigest()))
    return b"files of a kit 1\0" + json.dumps(found).encode()


def give_up(kit: Path) -> None:
    """Remove a key that waits for its certificate."""
    shutil.rmtree(kit / _JOINING, ignore_errors=True)


def key_waits(kit: Path) -> bool:
    """Return whether a kit has a key that waits for its certificate."""
    return (kit / _JOINING / _KEY).is_file()


def waiting_key(kit: Path) -> Path:
    """Return the key that waits for its certificate; ExperimentError if a kit has none."""
    path = kit / _JOINING / _KEY
    if not key_waits(kit):
        raise ExperimentError(
            f"{kit} has no key that waits for a certificate; make one with `intarsia federation "
            f"join {kit.name}`, and have that request signed."
        )
    return path


def certificate_in(kit: Path) -> x509.Certificate:
    """Return the certificate of a site in its kit."""
    return _read_certificate(kit / "startup" / _CERTIFICATE)


def owner_in(kit: Path, *, server: bool) -> str:
    """Return what the certificate in a kit calls its owner, a server by its host."""
    file = _SERVERS if server else _CERTIFICATE
    return name_of(_read_certificate(kit / "startup" / file).subject)


def authority_in(kit: Path) -> x509.Certificate:
    """Return the certificate of the authority in a kit."""
    return _read_certificate(kit / "startup" / _ROOT)


def ends_in(kit: Path) -> Mapping[str, datetime]:
    """Return when the certificates in a kit end, by file."""
    return {path.name: valid_in(path)[1] for path in certificate_files(kit)}


def print_of(found: x509.CertificateSigningRequest | x509.Certificate) -> str:
    """Return the fingerprint of a request's key, or of an authority's, for people to compare."""
    kind = "certificate" if isinstance(found, x509.Certificate) else "request"
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    key = found.public_key().public_bytes(serialization.Encoding.DER, form)
    return fingerprint(kind, name_of(found.subject), key)


def name_of(subject: x509.Name) -> str:
    """Return the name in a certificate or a request; IndexError if it has none."""
    return str(subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)


# -- certificates


@dataclass(frozen=True)
class _Part:
    """A participant of NVIDIA FLARE in a kit: in the server's there are two."""

    participant: str  # as its certificate calls it
    file: str  # what its key and certificate are called
    folder: str = ""  # within the kit
    host: str | None = None  # of a server
    role: str | None = None  # of an administrator


def _parts(owner: str, host: str) -> Sequence[_Part]:
    if owner != "server":
        return (_Part(owner, "client"),)
    admin = _Part(ADMIN, "client", "admin", role="project_admin")
    return _Part(host[:_NAME_LETTERS], "server", host=host), admin


@dataclass(frozen=True)
class Authority:
    """The certificate authority of a federation."""

    certificate: x509.Certificate
    key: PrivateKey

    @classmethod
    def of(cls, name: str, folder: Path, known: Collection[str], *, new: bool = False) -> Authority:
        """Return the authority in the folder of a federation's kits; make it if it may be `new`.

        Raises
        ------
        ExperimentError
            If it is not there, or ends soon.
        """
        path = folder / ".provisioning" / "kits" / name / "state" / "cert.json"
        if not path.is_file():
            if not new:
                there = f"kits ({', '.join(known)})" if known else "no kits"
                raise ExperimentError(
                    f"{folder} has {there}, and the certificate authority of the federation "
                    f"{name!r} that signs new ones is not there ({path}); put the folder "
                    ".provisioning back from its backup, or write all kits anew with --out into a "
                    "folder that is empty."
                )
            made = cls._drawn(name)
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            (folder / ".provisioning").chmod(0o700)
            root = made.certificate.public_bytes(serialization.Encoding.PEM).decode()
            text = {"root_cert": root, "root_pri_key": _pem(made.key).decode()}
            write_atomically(path, json.dumps(text).encode(), private=True)
            return made
        for left in path.parents[1].glob("prod_*"):
            shutil.rmtree(left)  # kits of a call of an older version that was broken off
        found = json.loads(path.read_text(encoding="utf-8"))
        # of an older version it has the keys of all participants, which are in their kits
        own = {key: one for key, one in found.items() if isinstance(one, str)}
        if own != found:
            write_atomically(path, json.dumps(own).encode(), private=True)
        key = serialization.load_pem_private_key(own["root_pri_key"].encode(), None)
        certificate = x509.load_pem_x509_certificate(own["root_cert"].encode())
        end = certificate.not_valid_after_utc
        if end - datetime.now(UTC) < timedelta(days=_SOON_DAYS):
            raise ExperimentError(
                f"The certificate authority {path} ends on {end:%Y-%m-%d}, and no certificate is "
                "valid for longer; write all kits anew with --out into a folder that is empty, and "
                "give them out again."
            )
        if not isinstance(key, rsa.RSAPrivateKey):
            raise ExperimentError(f"{path} has no key of RSA; put it back from its backup.")
        return cls(certificate, key)

    @classmethod
    def _drawn(cls, name: str) -> Authority:
        key = _new_key()
        given = Identity(name), Identity(name), key, key.public_key()
        return cls(generate_cert(*given, valid_days=_AUTHORITY_DAYS, ca=True), key)

    def certify(self, part: _Part, key: rsa.RSAPublicKey) -> x509.Certificate:
        """Return a certificate for a key, in the form that NVIDIA FLARE gives it."""
        made: x509.Certificate = generate_cert(
            Identity(part.participant, _ORGANISATION, part.role),
            Identity(name_of(self.certificate.subject)),
            self.key,
            key,
            server_default_host=part.host,
            not_valid_after=min(
                self.certificate.not_valid_after_utc, datetime.now(UTC) + timedelta(days=_DAYS)
            ),
        )
        return made

    def equip(
        self, startup: Path, part: _Part, key: rsa.RSAPublicKey | None = None
    ) -> x509.Certificate:
        """Write certificates into a kit, and a private key unless that of `key` is there already.

        It may be at the site that made it.
        """
        if key is None:
            own = _new_key()
            write_atomically(startup / f"{part.file}.key", _pem(own), private=True)
            key = own.public_key()
        made = self.certify(part, key)
        for name, one in ((f"{part.file}.crt", made), (_ROOT, self.certificate)):
            write_atomically(startup / name, one.public_bytes(serialization.Encoding.PEM))
        return made


def _new_key() -> PrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=_KEY_BITS)


def _key_in(path: Path) -> rsa.RSAPublicKey:
    key = _read_certificate(path).public_key()
    assert isinstance(key, rsa.RSAPublicKey)  # as `_new_key` makes them
    return key


def _pem(key: PrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )


def _read_certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError):
        raise ExperimentError(f"{path} is no certificate; have a new request signed.") from None


# -- what NVIDIA FLARE writes


@contextlib.contextmanager
def _replaced(folder: Path) -> Iterator[Path]:
    """Let a folder be filled, and put it in the place of the one before it as a whole."""
    filling = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(filling, ignore_errors=True)
    filling.mkdir(mode=0o700, parents=True)
    try:
        yield filling
        filling.chmod(0o700)  # what was copied into it brought its own
        shutil.rmtree(folder, ignore_errors=True)
        filling.rename(folder)
    finally:
        shutil.rmtree(filling, ignore_errors=True)


def _copy(source: Path, target: Path) -> None:
    """Copy what is in a folder; an error names the first file that could not be written."""
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted(source.rglob("*")):
        there = target / path.relative_to(source)
        if path.is_dir():
            there.mkdir(exist_ok=True)
            continue
        try:
            shutil.copy2(path, there)
        except OSError as problem:
            problem.filename, problem.filename2 = str(there), None
            raise


@contextlib.contextmanager
def _without_keys(
    name: str, host: str, ports: tuple[int, int], sites: Sequence[ClientId]
) -> Iterator[Mapping[str, Path]]:
    """Let NVIDIA FLARE write kits, by participant, which are gone afterwards."""
    from nvflare.lighter.constants import CtxKey
    from nvflare.lighter.impl.static_file import StaticFileBuilder
    from nvflare.lighter.impl.workspace import WorkspaceBuilder
    from nvflare.lighter.provision import prepare_project
    from nvflare.lighter.provisioner import Provisioner

    server, listening = host[:_NAME_LETTERS], {"fed_learn_port": ports[0], "admin_port": ports[1]}
    participants: list[dict[str, Any]] = [
        {"name": server, "type": "server", "default_host": host, **listening},
        *({"name": site, "type": "client"} for site in sites),
        {"name": ADMIN, "type": "admin", "role": "project_admin"},
    ]
    described = [{**one, "org": _ORGANISATION} for one in participants]
    project = {"api_version": 3, "name": name, "participants": described}
    builders = [
        WorkspaceBuilder(template_file=["master_template.yml"]),
        StaticFileBuilder(config_folder="config"),
    ]
    with tempfile.TemporaryDirectory(prefix="intarsia-") as work:
        said = io.StringIO()
        try:
            # it says what is wrong on both
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                made = Provisioner(work, builders).provision(prepare_project(project))
        except ValueError as problem:
            raise _refusal(str(problem)) from None
        if made.get(CtxKey.BUILD_ERROR):
            raise _refusal(said.getvalue().strip().splitlines()[-1])
        newest = Path(made[CtxKey.CURRENT_PROD_DIR])
        yield {one: newest / one for one in (server, *sites, ADMIN)}


def _refusal(said: str) -> ExperimentError:
    return ExperimentError(
        f"NVIDIA FLARE wrote no kits: {said[:300]}; change the federation's file."
    )
