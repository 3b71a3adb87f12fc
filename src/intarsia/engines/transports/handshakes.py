"""Connections to a server: few at once without a certificate, and few with one and the same.

Anybody who reaches the server's port may open one and say nothing. Each takes a file of the
server's process until its handshake is late, a minute. A thousand of them took all, 1,024 by
default, and the process ended as it could open no other. So a component of ours in the server's
process bounds them. Where there are too many the oldest gives way: a site's handshake takes less
time than to open as many.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from aiohttp import web

COMPONENT: Final = f"{__name__}.FewHandshakes"
_MOST: Final = 256  # at once, at each port
_MOST_OF_ONE: Final = 64  # with one certificate; a site has one, and one for each job that runs
_PAUSE: Final = 1.0  # seconds after which it is accepted again, where no file was free
_BACKLOG: Final = 128  # connections that wait to be accepted


class FewHandshakes:
    """Lets the ports of the process that has it be listened to by `Entrance`."""

    def __init__(self) -> None:
        from aiohttp import web
        from nvflare.fuel.f3.drivers import aio_http_driver

        aio_http_driver.web = SimpleNamespace(**{**vars(web), "TCPSite": Entrance})


class Entrance:
    """Listens at a port, as aiohttp's `TCPSite` does."""

    def __init__(
        self, runner: web.AppRunner, host: str, port: int, *, ssl_context: ssl.SSLContext | None
    ) -> None:
        self._runner, self._host, self._port, self._tls = runner, host, port, ssl_context
        self._waiting: dict[asyncio.Task[None], None] = {}  # for a certificate, the oldest first
        self._listening: list[asyncio.Task[None]] = []
        # those that have shown a certificate, by whom it is of, the oldest first
        self._shown: dict[str, list[asyncio.Transport]] = {}

    async def start(self) -> None:
        """Listen from now on; OSError if the port cannot be had."""
        loop = asyncio.get_running_loop()
        # it is bound as `asyncio` does that, which accepts nothing here
        bound = await loop.create_server(
            asyncio.Protocol, self._host, self._port, start_serving=False
        )
        for one in bound.sockets:
            own = one.dup()
            own.setblocking(False)
            own.listen(_BACKLOG)
            self._listening.append(loop.create_task(self._accept(own)))
        bound.close()

    async def stop(self) -> None:
        """Listen no more."""
        every = [*self._listening, *self._waiting]
        for one in every:
            one.cancel()
        await asyncio.gather(*every, return_exceptions=True)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with listener:
            while True:
                try:
                    line, _ = await loop.sock_accept(listener)
                except OSError:
                    await asyncio.sleep(_PAUSE)
                    continue
                while len(self._waiting) >= _MOST:
                    oldest = next(iter(self._waiting))
                    self._forget(oldest)
                    oldest.cancel()
                greeted = loop.create_task(self._greet(line))
                self._waiting[greeted] = None
                greeted.add_done_callback(self._forget)
                await asyncio.sleep(0)  # it begins, and closes the connection when it is cancelled

    def _forget(self, one: asyncio.Task[None]) -> None:
        self._waiting.pop(one, None)

    async def _greet(self, line: socket.socket) -> None:
        """Answer a connection once it has shown a certificate; one that shows none is ended."""
        served: Any = self._runner.server
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):  # of TLS, too, and where it is late
            transport, _ = await loop.connect_accepted_socket(served, line, ssl=self._tls)
            subject = (transport.get_extra_info("peercert") or {}).get("subject", ())
            known = self._shown.setdefault(repr(subject), [])
            known[:] = [one for one in known if not one.is_closing()]
            while len(known) >= _MOST_OF_ONE:
                known.pop(0).abort()
            known.append(transport)
