"""Certificates that a server refuses before they end, and connections that outlive them.

NVIDIA FLARE has no list of revoked certificates. It has one of names that may not register, which
keeps out a name's next certificate, too. So the server's process has a component of ours. It looks
at the certificate of each connection when that begins, and once a second as long as it lasts, at
both ports of the server. Sites listen at none. When it ends is written down: the server has no
other way to know.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from intarsia.core.block import ClientId
from intarsia.core.files.atomic_files import write_atomically
from intarsia.errors import ExperimentError

if TYPE_CHECKING:
    from aiohttp import web

COMPONENT: Final = f"{__name__}.Revocation"
_FILE: Final = "local/revoked.json"  # of a server's kit: by name, until when certificates began
_SEEN: Final = "certificates.json"  # beside it: by name, when the newest that was seen ends
_PAUSE: Final = 1.0  # seconds between looks at that file
_SCHEME: Final = "http"  # WebSocket, over mutual TLS; what carries the connections of a kit


def revoke(kit: Path, name: ClientId, newest: datetime | None = None) -> datetime:
    """Let a server refuse all certificates that a site has so far; return until when they began.

    `newest` is when the last that is known of begins: later than now, if a clock was ahead.
    """
    now = datetime.now(UTC).replace(microsecond=0)
    until = now if newest is None else max(now, newest)
    known = {one: moment.isoformat() for one, moment in revoked(kit).items()}
    content = known | {name: until.isoformat()}
    write_atomically(kit / _FILE, json.dumps(content, indent=1).encode())
    with contextlib.suppress(ExperimentError):  # nothing is refused by what was seen
        seen = {one: moment.isoformat() for one, moment in ends_seen(kit).items() if one != name}
        write_atomically((kit / _FILE).with_name(_SEEN), json.dumps(seen, indent=1).encode())
    return until


def revoked(kit: Path) -> Mapping[ClientId, datetime]:
    """Return by name until when certificates began that a server refuses.

    Raises
    ------
    ExperimentError
        If the file that says so is damaged.
    """
    return _read(kit / _FILE)


def check_taken(kit: Path, name: ClientId) -> None:
    """Refuse to sign for a site what its server would refuse, as it is known in the server's kit.

    Raises
    ------
    ExperimentError
        If certificates are revoked that begin later than now: two clocks differ, or one was set.
    """
    now, moment = datetime.now(UTC), revoked(kit).get(name)
    if moment is not None and now.replace(microsecond=0) <= moment:
        raise ExperimentError(
            f"The server refuses certificates of {name!r} that begin before "
            f"{moment:%Y-%m-%d %H:%M:%S} UTC, and by this machine's clock it is "
            f"{now:%Y-%m-%d %H:%M:%S}, so that it would refuse one that is signed now; set the "
            "clocks, and where the server's was ahead, run `intarsia federation revoke "
            f"{kit} {name}` again, or sign after that moment."
        )


def left_out(kit: Path) -> Mapping[ClientId, datetime]:
    """Return what `revoked` does, of those who have connected with no other certificate since.

    Raises
    ------
    ExperimentError
        As that.
    """
    seen = ends_seen(kit)
    return {name: moment for name, moment in revoked(kit).items() if name not in seen}


def ends_seen(kit: Path) -> Mapping[ClientId, datetime]:
    """Return when the certificates end that those had who connected to a server last, by name.

    Raises
    ------
    ExperimentError
        If the file that says so is damaged.
    """
    return _read((kit / _FILE).with_name(_SEEN))


def component(kit: Path) -> Mapping[str, Any]:
    """Return what a server's kit says of the component that refuses.

    Raises
    ------
    ExperimentError
        If the kit's connections are of another kind than those that it looks at.
    """
    server = json.loads((kit / "startup" / "fed_server.json").read_bytes())["servers"][0]
    if (scheme := server["service"]["scheme"]) != _SCHEME and revoked(kit):
        raise ExperimentError(
            f"The kit {kit} has connections of the scheme {scheme!r}, where certificates that are "
            f'revoked cannot be refused; write "{_SCHEME}" into startup of all kits.'
        )
    return {"id": "revocation", "path": COMPONENT, "args": {"file": str(kit / _FILE)}}


class Revocation:
    """Refuses and ends the connections of revoked certificates, in the process that has it."""

    def __init__(self, file: str) -> None:
        from aiohttp import web
        from nvflare.fuel.f3.drivers.aio_http_driver import AioHttpDriver

        self._file = Path(file)
        self._changed = -1  # time stamp of the file when it was read; 0: there is none
        self._known: Mapping[ClientId, datetime] = {}
        self._read()
        accept = AioHttpDriver._websocket_handler

        async def accept_valid(driver: AioHttpDriver, request: web.Request) -> web.StreamResponse:
            tls = request.transport and request.transport.get_extra_info("ssl_object")
            certificate = tls.getpeercert() if tls else None
            if self.refuses(certificate):
                return web.Response(status=403, text="This certificate is revoked.")
            self._note_end(certificate)
            connection = asyncio.ensure_future(accept(driver, request))
            try:
                while not connection.done():
                    await asyncio.wait({connection}, timeout=_PAUSE)
                    if self.refuses(certificate) and request.transport is not None:
                        request.transport.abort()
                found: web.StreamResponse = connection.result()
                return found
            finally:
                connection.cancel()

        AioHttpDriver._websocket_handler = accept_valid

    def refuses(self, certificate: Mapping[str, Any] | None) -> bool:
        """Return whether a certificate, as `ssl` reads it, is revoked, or has ended since."""
        if not certificate:
            return False  # without one nobody comes through TLS
        if "notAfter" in certificate and _moment(certificate, "notAfter") < datetime.now(UTC):
            return True  # TLS refuses it from now on, and with it the processes of each new job
        self._read()
        began = _moment(certificate, "notBefore")
        return any(began <= self._known[one] for one in _names(certificate) if one in self._known)

    def _note_end(self, certificate: Mapping[str, Any] | None) -> None:
        """Write down when a certificate ends; what cannot be written does not keep a site out."""
        path = self._file.with_name(_SEEN)
        with contextlib.suppress(OSError, ExperimentError):
            known = {name: moment.isoformat() for name, moment in _read(path).items()}
            for name in _names(certificate or {}):
                end = _moment(certificate or {}, "notAfter").isoformat()
                if known.get(name) != end:
                    write_atomically(path, json.dumps(known | {name: end}, indent=1).encode())

    def _read(self) -> None:
        """Read the file if it is another one; one that is damaged later changes nothing."""
        try:
            changed = self._file.stat().st_mtime_ns
        except FileNotFoundError:
            changed = 0
        if changed == self._changed:
            return
        try:
            self._known = _read(self._file)
        except ExperimentError:
            if self._changed < 0:
                raise
        self._changed = changed


def _names(certificate: Mapping[str, Any]) -> list[str]:
    """Return whom a certificate, as `ssl` reads it, is of."""
    subject = certificate.get("subject", ())
    return [one[1] for part in subject for one in part if one[0] == "commonName"]


def _moment(certificate: Mapping[str, Any], key: str) -> datetime:
    return datetime.fromtimestamp(ssl.cert_time_to_seconds(certificate[key]), UTC)


def _read(file: Path) -> Mapping[ClientId, datetime]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        return {name: datetime.fromisoformat(moment) for name, moment in found.items()}
    except FileNotFoundError:
        return {}
    except (ValueError, AttributeError, TypeError) as problem:
        raise ExperimentError(
            f"{file} is damaged ({problem}); put it back from a backup, or delete it"
            + (" and revoke the same names again." if file.name == Path(_FILE).name else ".")
        ) from None
