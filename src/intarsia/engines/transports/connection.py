"""Whether the server answers a site, as the site's own process knows it.

The process asks the server every ten seconds, and connects again and again where it is not
connected. What came of that stands in a file of the kit, whose time stamp is that of the last word.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Any, Final, Literal

from intarsia.core.files.atomic_files import write_atomically

# "foreign": what answers at the server's address is not the server, by its certificate
State = Literal["answers", "silent", "refuses", "foreign"]

_FILE: Final = "local/server"  # of a site's kit
_TOLD: Final[tuple[State, ...]] = ("refuses", "foreign")  # that hold until something else is said
_STATES: Final[tuple[State, ...]] = ("answers", "silent", *_TOLD)
_FORBIDDEN: Final = 403  # status of HTTP by which `revocation` refuses a certificate
_LATE: Final = 45.0  # seconds after which a server's answer holds no more; the next is due in ten


def note(kit: Path, state: State) -> None:
    """Write down how the server stands to a site, if that can be."""
    with contextlib.suppress(OSError):
        if _read(kit) == state:
            os.utime(kit / _FILE)
        else:
            write_atomically(kit / _FILE, state.encode())


def note_silence(kit: Path, *after: State) -> None:
    """Write down that the server is silent, if it stood so before that."""
    if _read(kit) in after:
        note(kit, "silent")


def forget(kit: Path) -> None:
    """Forget what a process before this one knew."""
    (kit / _FILE).unlink(missing_ok=True)


def connection(kit: Path) -> State:
    """Return how the server stands to a site whose process runs."""
    state = _read(kit)
    with contextlib.suppress(OSError):
        if state == "answers" and time.time() - (kit / _FILE).stat().st_mtime < _LATE:
            return "answers"
    return state if state in _TOLD else "silent"


def note_connecting(kit: Path) -> None:
    """Let this process write down what comes of each try to connect."""
    from aiohttp import ClientError, ClientSSLError, WSServerHandshakeError
    from nvflare.fuel.f3.drivers.aio_http_driver import AioHttpDriver

    connect = AioHttpDriver.connect

    def connect_noted(driver: AioHttpDriver, connector: Any) -> None:
        try:
            connect(driver, connector)
        except WSServerHandshakeError as problem:
            if problem.status == _FORBIDDEN:
                note(kit, "refuses")
            raise
        except ClientSSLError:
            if _read(kit) != "answers":  # a job has a connection of its own
                note(kit, "foreign")
            raise
        except (ClientError, OSError):
            # whether it answers no more is not for one connection to say: a job has its own
            note_silence(kit, *_TOLD)
            raise

    AioHttpDriver.connect = connect_noted


def _read(kit: Path) -> State | None:
    """Return what was written down; None: nothing was."""
    with contextlib.suppress(OSError, ValueError):
        found = (kit / _FILE).read_text(encoding="utf-8")
        return next((one for one in _STATES if one == found), None)
    return None
