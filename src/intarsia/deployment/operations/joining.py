"""How a site gets a kit whose private key it made itself, at its first time and at each renewal.

The site makes a key and a request; whoever has the federation's certificate authority signs that,
and the site puts what comes back beside its key. What is sent may go over any channel. Its
fingerprints are read out over another one, such as the telephone.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from intarsia.core.block import ClientId
from intarsia.core.files.atomic_files import write_atomically
from intarsia.deployment.federation_file import (
    FederationFile,
    check_name,
    finish_kits,
    is_of_server,
    sites_of,
)
from intarsia.deployment.operations.address import check_address
from intarsia.deployment.operations.archive import unpacked, write_archive
from intarsia.deployment.process import at_rest, check_user
from intarsia.engines.transports import kits
from intarsia.engines.transports.revocation import check_taken
from intarsia.engines.transports.validity import valid_in
from intarsia.errors import ExperimentError, listed, nearest

_REQUEST: Final = ".request"
SIGNED: Final = ".signed"
_SIGNATURE: Final = "signature"  # of all other files of what was signed


def join(name: str, out: Path, *, again: bool = False) -> tuple[Path, str]:
    """Make a site's key in its kit; return the file of its request, and the fingerprint.

    A kit that is there goes on with the key that it has until another one is installed.

    Raises
    ------
    ExperimentError
        If a key of the site waits for its certificate, and is not to be made `again`.
    """
    check_name(name)
    if kits.key_waits(out / name) and not again:
        raise ExperimentError(
            f"{out / name} has a key already that waits for its certificate: have "
            f"{name}{_REQUEST} signed, or add --again to replace both, which makes void what was "
            "signed for it."
        )
    request = kits.requested(name, out / name)
    path = out / f"{name}{_REQUEST}"
    try:
        write_atomically(path, request.public_bytes(serialization.Encoding.PEM))
    except OSError:
        kits.give_up(out / name)  # nobody can sign for it
        raise
    return path, kits.print_of(request)


def sign(
    description: FederationFile, request: Path, heard: str, folder: Path
) -> tuple[Path, str, datetime]:
    """Sign a site's request.

    Parameters
    ----------
    description
        What the federation's file says.
    request
        The file that came from the site.
    heard
        The fingerprint that somebody at the site read out.
    folder
        Of the federation's kits.

    Returns
    -------
    The file for the site, the fingerprint of the authority, and when the certificate ends.

    Raises
    ------
    ExperimentError
        If the federation has no such site, the fingerprint is another one, the authority is not
        there, the server's kit has another address than the federation's file, or its list of what
        is revoked would refuse the certificate.
    """
    asked = kits.read_request(request.read_bytes(), request)
    name = kits.name_of(asked.subject)
    if name not in description.sites:
        raise ExperimentError(
            f"{request} asks for the site {name!r}, and the federation has none of this name; "
            f"{nearest(name, description.sites)}."
        )
    _confirm(f"the request of {name!r}", asked, heard)
    check_address(description, folder)
    check_taken(folder / "server", name)
    given = description.name, description.server, description.ports, folder
    known = "server", *description.sites
    with tempfile.TemporaryDirectory(prefix="intarsia-") as made:
        kit = Path(made) / name
        certificate = kits.signed(*given, known, asked, kit)
        finish_kits(description, {name: kit})
        authority = kits.print_of(kits.authority_in(kit))
        vouched = kits.signature_of(description.name, folder, known, kit)
        write_archive(path := folder / f"{name}{SIGNED}", kit, first={_SIGNATURE: vouched})
    return path, authority, certificate.not_valid_after_utc


def check_keys(folder: Path, sites: Sequence[ClientId]) -> None:
    """Refuse to write kits with keys for sites that have theirs already, elsewhere.

    Raises
    ------
    ExperimentError
        If a site's kit is not in the folder of the federation's kits, and what was signed for it
        is, or the server has it among its sites.
    """
    server = folder / "server"
    before = sites_of(server)[0] if is_of_server(server) else ()
    joined = [name for name in sites if name in before or (folder / f"{name}{SIGNED}").exists()]
    if elsewhere := [name for name in joined if not (folder / name).exists()]:
        raise ExperimentError(
            f"{folder} has no kits of {listed(elsewhere)}, which are sites already, so that their "
            "keys are elsewhere, and others would let whoever has them act as these sites; add "
            "--keys-at-sites, or for trials write all kits with --out into a folder that is empty."
        )


def not_joined(kit: Path, sites: Sequence[ClientId]) -> dict[ClientId, str]:
    """Return what sites wait for that have no certificate, or ask for a new one, by site.

    It is known where the server's kit lies in the folder of the federation's kits, and requests
    beside the one or the other.
    """
    folder, found = kit.parent, {}
    if not (folder / ".provisioning").is_dir():
        return {}
    for name in sites:
        signed = folder / f"{name}{SIGNED}"
        since = signed.stat().st_mtime if signed.is_file() else 0.0
        requests = [place / f"{name}{_REQUEST}" for place in (folder, folder.parent)]
        waiting = [one for one in requests if one.is_file() and one.stat().st_mtime > since]
        if waiting:
            found[name] = (
                f"its request waits to be signed: intarsia federation sign FILE {waiting[0]} "
                f"--confirm FINGERPRINT -o {folder}"
            )
        elif not since and not (folder / name / "startup").is_dir():
            found[name] = "its request has not come: intarsia federation join there"
    return found


def newest_begin(folder: Path, name: ClientId) -> datetime | None:
    """Return when the last certificate begins that was signed for a site, as far as is known.

    It is later than now where the clock was ahead by which it was signed. None: none lies in the
    folder of the federation's kits.
    """
    begins, signed = list[datetime](), folder / f"{name}{SIGNED}"
    # what cannot be read keeps nobody from revoking
    with contextlib.suppress(OSError, ExperimentError):
        begins += [valid_in(path)[0] for path in (folder / name / "startup").glob("*.crt")]
    with contextlib.suppress(OSError, ExperimentError), unpacked(signed, signed) as kit:
        begins += [valid_in(path)[0] for path in (kit / "startup").glob("*.crt")]
    return max(begins, default=None)


def install(signed: Path, heard: str, out: Path) -> tuple[Path, datetime]:
    """Put what was signed into the kit that has its key; return the kit, and its certificate's end.

    `heard` is the fingerprint of the authority; "" where the kit is of that authority already.

    Raises
    ------
    ExperimentError
        If it does not fit the kit, has other files than the authority vouches for, or the kit is
        running.
    """
    with unpacked(signed, out / signed.name) as written:
        certificate = kits.certificate_in(written)
        name = kits.name_of(certificate.subject)
        check_name(name)
        kit = out / name
        if heard or not (kit / "startup").exists():
            _confirm("the authority in what was signed", kits.authority_in(written), heard)
        kits.waiting_key(kit)
        check_user(kit)
        signature = written / _SIGNATURE
        vouched = signature.read_bytes() if signature.is_file() else b""
        signature.unlink(missing_ok=True)
        kits.check_signature(written, vouched)
        with at_rest(kit):
            kits.installed(kit, written)
    return kit, certificate.not_valid_after_utc


def _confirm(
    what: str, found: x509.CertificateSigningRequest | x509.Certificate, heard: str
) -> None:
    """Raise unless a fingerprint is what was heard; the sentence does not give what would do."""
    if not heard:
        raise ExperimentError(
            f"Nobody has confirmed {what}, so that whoever forwarded it may have replaced it; let "
            "somebody there read its fingerprint to you by telephone, and add --confirm "
            "'FINGERPRINT'."
        )
    if "".join(heard.split()).lower() != "".join(kits.print_of(found).split()):
        raise ExperimentError(
            f"{what[0].upper()}{what[1:]} has another fingerprint than {heard!r}; it was replaced "
            "on its way, or the fingerprint misread: have it read again, and do not go on if it "
            "differs."
        )
