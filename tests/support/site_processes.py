"""Sites that are processes of their own, each of which answers on this machine's loopback.

python site_processes.py FOLDER serves the site in a folder, as a kit's process does without
NVIDIA FLARE around it.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
from pathlib import Path

from intarsia.core.files.atomic_files import write_atomically
from intarsia.deployment.client_setup import site_in

PORT = "site.port"  # the file that says where a site answers


def serve(folder: Path) -> None:
    """Answer calls, one after the other, until the process is killed."""
    site = site_in(folder)
    with socket.create_server(("127.0.0.1", 0)) as server:
        write_atomically(folder / PORT, str(server.getsockname()[1]).encode())
        while True:
            line, _ = server.accept()
            with line, contextlib.suppress(OSError):  # who waits no longer asks again
                line.sendall(site.handle(read(line)))


def read(line: socket.socket) -> bytes:
    """Return what the other side says until it has said all."""
    return b"".join(iter(lambda: line.recv(1 << 20), b""))


class SiteProcesses:
    """A process for each site, whose folder has its name."""

    def __init__(self, folder: Path, names: tuple[str, ...]) -> None:
        self._folder, self._running = folder, {}
        for name in names:
            self.start(name)

    def start(self, name: str) -> None:
        """Start a site."""
        own = self._folder / name
        (own / PORT).unlink(missing_ok=True)
        self._running[name] = subprocess.Popen([sys.executable, __file__, str(own)])

    def kill(self, name: str) -> None:
        """End a site by SIGKILL, wherever it is."""
        process = self._running.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def __enter__(self) -> SiteProcesses:
        return self

    def __exit__(self, *_: object) -> None:
        for name in [*self._running]:
            self.kill(name)


class Sockets:
    """Carries the server's calls to site processes; OSError where one is not there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def send(self, client: str, data: bytes, seconds: float) -> bytes:
        """Return a site's answer."""
        port = int((self._folder / client / PORT).read_text())
        with socket.create_connection(("127.0.0.1", port), timeout=seconds) as line:
            line.sendall(data)
            line.shutdown(socket.SHUT_WR)
            return read(line)  # what was cut is no answer, and is asked for again


if __name__ == "__main__":
    serve(Path(sys.argv[1]).resolve())
