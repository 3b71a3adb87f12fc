"""Whether the certificates in a kit are valid by this machine's clock, and what renews them."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from intarsia.errors import ExperimentError

_SKEW: Final = timedelta(minutes=5)  # by which clocks of machines may differ at a kit's first start
_AUTHORITY: Final = "rootCA.pem"
_SERVERS: Final = "startup/server.crt"


def certificate_files(kit: Path) -> list[Path]:
    """Return the files with the certificates of a kit, and of the administrator's in a server's."""
    own, admin = kit / "startup", kit / "admin" / "startup"
    return sorted((*own.glob("*.crt"), *own.glob("*.pem"), *admin.glob("*.crt")))


def valid_in(path: Path) -> tuple[datetime, datetime]:
    """Return from when and until when a certificate is valid.

    Raises
    ------
    ExperimentError
        If the file is none.
    """
    from cryptography import x509  # here: it takes a while to import

    try:
        found = x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError):
        raise ExperimentError(f"{path} is no certificate; have a new request signed.") from None
    return found.not_valid_before_utc, found.not_valid_after_utc


def check_certificates(kit: Path) -> None:
    """Check by this machine's clock that the certificates in a kit are valid.

    Raises
    ------
    ExperimentError
        If one has not begun, or has ended: every connection would fail, and none would say why.
        One that begins within five minutes passes; a site tries until then.
    """
    now = datetime.now(UTC)
    for path in certificate_files(kit):
        begin, end = valid_in(path)
        if not begin - _SKEW <= now <= end:
            remedy = "set it, by NTP" if now < begin else f"if that is right, {renewal(kit, path)}"
            raise ExperimentError(
                f"The certificate {path} is valid from {begin:%Y-%m-%d %H:%M} to "
                f"{end:%Y-%m-%d %H:%M} UTC, and by this machine's clock it is "
                f"{now:%Y-%m-%d %H:%M}; {remedy}."
            )


def lets_connect(kit: Path) -> bool:
    """Return whether the certificates in a kit are valid by this machine's clock."""
    with contextlib.suppress(ExperimentError):
        check_certificates(kit)
        return True
    return False


def renewal(kit: Path, path: Path) -> str:
    """Return what gives a kit another certificate in the place of one."""
    if path.name == _AUTHORITY:
        return (
            "nothing that it signed is valid for longer: write all kits anew with intarsia "
            "federation provision --out into a folder that is empty, and give them out again"
        )
    if (kit / _SERVERS).exists():
        return (
            "renew it where the kits were written, by intarsia federation renew FILE server; copy "
            "kits/renewed/server over this kit, and start the server again"
        )
    return (
        f"renew it: intarsia federation join {kit.name} in the folder of the kit, let the "
        "server's people sign the request, install what comes back, and start the site again"
    )
