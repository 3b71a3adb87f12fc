"""Whether the server answers a site, as the site's own process knows it, and whether that hangs.

The process asks the server every ten seconds, and connects again and again where it is not
connected. What came of that stands in a file of the kit, whose time stamp is that of the last word.
Of another file it changes the time stamp alone, connected or not: by that it is known to live.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal

from intarsia.core.files.atomic_files import write_atomically
from intarsia.errors import printable

# "foreign": what answers at the server's address is not the server, by its certificate;
# "invalid": the server's certificate has ended, or has not begun;
# "unresolved": the server's name has no address here, as where DNS does not answer;
# "starting": the site's own process gives no sign of life
State = Literal["answers", "silent", "refuses", "foreign", "invalid", "unresolved", "starting"]

_FILE: Final = "local/server"  # of a site's kit
_BEAT: Final = "local/alive"  # beside it
_ENDS: Final = "local/ends"  # beside it, at a server too: of processes of jobs
_BETWEEN: Final = 10.0  # seconds between signs of life
_PROGRAM: Final = "nvflare.private.fed.app.client.client_train"  # of a site, not of one of its jobs
_LOOK: Final = 2.0  # seconds that count between two looks: who looks may have stood still itself
_TOLD: Final[tuple[State, ...]] = (
    "refuses",
    "foreign",
    "invalid",
    "unresolved",
)  # that hold until something else is said
_STATES: Final[tuple[State, ...]] = ("answers", "silent", *_TOLD)
_NOT_VALID: Final = (9, 10)  # verdicts of OpenSSL: a certificate has not begun, or has ended
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
    for name in (_FILE, _BEAT):
        (kit / name).unlink(missing_ok=True)


def connection(kit: Path) -> State:
    """Return how the server stands to a site whose process runs."""
    state, since = _read(kit), _age(kit / _BEAT)
    if since is not None and since > _LATE:
        return "starting"
    since = _age(kit / _FILE)
    if state == "answers" and since is not None and since < _LATE:
        return "answers"
    return state if state in _TOLD else "silent"


def beat(kit: Path) -> None:
    """Give signs of life from now on, if this process is that of a site."""
    running = getattr(sys.modules["__main__"], "__spec__", None)
    if running is None or running.name != _PROGRAM:
        return  # a job's process reads the kit's resources, too

    def live() -> None:
        while True:
            with contextlib.suppress(OSError):
                (kit / _BEAT).touch()
            time.sleep(_BETWEEN)

    threading.Thread(target=live, name="signs of life", daemon=True).start()


class Silence:
    """Counts for how long a site's process has given no sign of life."""

    def __init__(self, kit: Path) -> None:
        self._kit, self._last, self._seconds = kit, 0, 0.0
        self._looked = time.monotonic()

    def seconds(self) -> float:
        """Return for how long; it is to be asked every second or so.

        What passed while this process stood still, by Ctrl-Z or as the machine slept, counts for
        nothing, and neither do clocks.
        """
        last, now = 0, time.monotonic()
        with contextlib.suppress(OSError):
            last = (self._kit / _BEAT).stat().st_mtime_ns
        passed, self._looked = min(now - self._looked, _LOOK), now
        self._seconds = self._seconds + passed if last and last == self._last else 0.0
        self._last = last
        return self._seconds


def note_end(kit: Path, sentence: str) -> None:
    """Write down how a process of a job ended, for whoever keeps the kit's process running."""
    with contextlib.suppress(OSError), (kit / _ENDS).open("a", encoding="utf-8") as ends:
        ends.write(f"{sentence}\n")


@contextlib.contextmanager
def telling_of_absent(kit: Path) -> Iterator[None]:
    """Write down, as `note_end` does, what a process of a job cannot import; it is raised, too."""
    try:
        yield
    except ImportError as problem:
        why = printable(" ".join(str(problem).split()))
        note_end(
            kit,
            f"A job cannot begin here, as Python cannot import what it needs ({why}); install "
            f'"intarsia[nvflare]" anew in {sys.prefix}.',
        )
        raise


def take_ends(kit: Path) -> list[str]:
    """Return what `note_end` wrote since the last time."""
    taken = kit / f"{_ENDS}.taken"
    with contextlib.suppress(OSError):
        (kit / _ENDS).rename(taken)
        return taken.read_text(encoding="utf-8", errors="replace").splitlines()
    return []


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
        except ClientSSLError as problem:
            if _read(kit) != "answers":  # a job has a connection of its own
                why = getattr(problem, "certificate_error", None)
                note(kit, "invalid" if is_of_time(why) else "foreign")
            raise
        except (ClientError, OSError) as problem:
            # whether it answers no more is not for one connection to say: a job has its own
            if not isinstance(getattr(problem, "os_error", None), socket.gaierror):
                note_silence(kit, *_TOLD)
            elif _read(kit) != "answers":
                note(kit, "unresolved")
            raise

    AioHttpDriver.connect = connect_noted


def is_of_time(problem: object) -> bool:
    """Return whether a certificate is refused since it has ended, or has not begun."""
    return isinstance(problem, ssl.SSLCertVerificationError) and problem.verify_code in _NOT_VALID


def _age(path: Path) -> float | None:
    """Return how many seconds ago, or ahead by a clock that was put back, a file was changed."""
    with contextlib.suppress(OSError):
        return abs(time.time() - path.stat().st_mtime)
    return None


def _read(kit: Path) -> State | None:
    """Return what was written down; None: nothing was."""
    with contextlib.suppress(OSError, ValueError):
        found = (kit / _FILE).read_text(encoding="utf-8")
        return next((one for one in _STATES if one == found), None)
    return None
