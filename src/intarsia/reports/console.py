"""How federations stand, on pages that this machine alone reaches: sites, runs, reports, approvals.

Nothing can be changed from them. Other users of the machine reach the port, too, and so do pages in
the browser. So whoever asks needs a path and a token that are drawn at each start. A browser sends
cookies to all ports of a machine: the one that is set here goes to that path alone, and holds a
value of its own. The pages load nothing, and show files of runs' folders alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import secrets
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from intarsia.deployment.federation_file import is_of_server, sites_of
from intarsia.deployment.job_requests import Requests
from intarsia.deployment.operations.joining import not_joined
from intarsia.deployment.server import PING, RunStatus, led_out, list_waiting
from intarsia.engines.transports import kits
from intarsia.engines.transports.revocation import ends_seen
from intarsia.errors import ExperimentError, UserError
from intarsia.reports.contents import Contents
from intarsia.reports.page import page_of, rounds_charts, templates
from intarsia.results.checkpoint import DAMAGE, damage
from intarsia.results.history import history_of
from intarsia.results.run_folder import described

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

ADDRESS: Final = "127.0.0.1"  # of this machine, which no other reaches
_HOSTS: Final = (ADDRESS, "localhost")  # that a browser may say it reached; a page elsewhere cannot
_COOKIE: Final = "intarsia_console"
_AT_ONCE: Final = 100  # connections
_SECONDS: Final = 10.0  # in which a request must have come
_HEADERS: Final = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


@dataclass(frozen=True)
class Watched:
    """A kit that pages show."""

    kit: Path
    standing: Callable[[], Mapping[str, Any]]  # as `intarsia federation status --json` prints it

    @property
    def federation(self) -> str:
        """Return the name of the kit's federation."""
        file = "fed_server.json" if is_of_server(self.kit) else "fed_client.json"
        found = json.loads((self.kit / "startup" / file).read_bytes())["servers"][0]
        return str(found["name"])


def _drawn() -> str:
    return secrets.token_urlsafe(32)


@dataclass(frozen=True)
class Entrance:
    """What whoever asks for a page has to know; it is drawn at each start."""

    home: str = field(default_factory=lambda: f"/{_drawn()}/")  # every path begins so
    token: str = field(default_factory=_drawn)  # of the address that is opened first
    cookie: str = field(default_factory=_drawn)  # of a browser that had the token


@contextlib.contextmanager
def served(watched: Sequence[Watched], port: int) -> Iterator[str]:
    """Serve pages about kits while something else is done; give their address, the whole one.

    Parameters
    ----------
    port
        Of this machine; 0: one that is free.

    Raises
    ------
    ExperimentError
        If the libraries are not installed, or the port cannot be had.
    """
    for name in ("starlette", "uvicorn"):
        if importlib.util.find_spec(name) is None:
            raise ExperimentError(
                f'The library {name} is not installed; run pip install "intarsia[console]".'
            )
    import uvicorn

    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind((ADDRESS, port))
            one.listen()
        except OSError as problem:
            raise ExperimentError(
                f"The console cannot have {ADDRESS}:{port} ({problem}); give another port with "
                "--port."
            ) from None
        port, entrance = one.getsockname()[1], Entrance()
        config = uvicorn.Config(
            application(watched, entrance),
            access_log=False,  # what is asked for has the token
            log_level="error",
            server_header=False,
            proxy_headers=False,
            lifespan="off",
            http=_bounded(),
            ws="none",
            timeout_graceful_shutdown=1,
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([one],), name="console")
        thread.start()
        try:
            yield f"http://{ADDRESS}:{port}{entrance.home}?token={entrance.token}"
        finally:
            server.should_exit = True
            thread.join()


def _bounded() -> type[asyncio.Protocol]:
    """Return how requests are heard: of few connections at a time, each of which ends in time.

    Other users of this machine may open as many as they like, and send requests that never end.
    """
    from uvicorn.protocols.http.h11_impl import H11Protocol

    opened: list[asyncio.Transport] = []  # the oldest first

    class Bounded(H11Protocol):  # type: ignore[misc]  # the library is not looked at
        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            self.heard = None  # the newest request, when it was looked at last
            self.watch = self.loop.call_later(_SECONDS, self.look)
            opened.append(transport)
            if len(opened) > _AT_ONCE:
                opened.pop(0).abort()  # not the newest, which may be the console's user

        def connection_lost(self, problem: Exception | None) -> None:
            super().connection_lost(problem)
            self.watch.cancel()
            with contextlib.suppress(ValueError):  # another one took its place
                opened.remove(self.transport)

        def look(self) -> None:
            """End the connection if no request was answered meanwhile, nor is being answered."""
            waits = self.cycle is None or self.cycle.response_complete
            if waits and self.cycle is self.heard:
                self.transport.abort()
            else:
                self.heard = self.cycle
                self.watch = self.loop.call_later(_SECONDS, self.look)

    return Bounded


def application(watched: Sequence[Watched], entrance: Entrance) -> Starlette:
    """Return what answers requests for pages about kits."""
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.routing import Route

    pages = _Pages(watched, entrance.home)
    every = [
        ("", pages.overview),
        ("kits/{kit:int}/runs/{run}", pages.run),
        ("kits/{kit:int}/runs/{run}/report", pages.report),
    ]
    damaged: dict[Any, Any] = dict.fromkeys(DAMAGE, pages.damaged)
    return Starlette(
        routes=[Route(entrance.home + path, page, methods=["GET"]) for path, page in every],
        middleware=[
            Middleware(_WithHeaders),
            Middleware(TrustedHostMiddleware, allowed_hosts=_HOSTS, www_redirect=False),
            Middleware(_Door, entrance=entrance),
        ],
        exception_handlers={404: pages.nothing, UserError: pages.refused, **damaged},
    )


class _WithHeaders:
    """Says with each answer that a page may load nothing, and be kept and shown nowhere else."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                more = [(name.encode(), said.encode()) for name, said in _HEADERS.items()]
                message["headers"] = [*message["headers"], *more]
            await send(message)

        await self._app(scope, receive, with_headers)


class _Door:
    """Lets those in who had the token, to read alone; elsewhere it says nothing at all."""

    def __init__(self, app: ASGIApp, entrance: Entrance) -> None:
        self._app, self._entrance = app, entrance

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        from starlette.requests import Request

        refused = self._refusal(Request(scope))
        await (refused or self._app)(scope, receive, send)

    def _refusal(self, request: Request) -> Response | None:
        from starlette.responses import PlainTextResponse, RedirectResponse, Response

        home = self._entrance.home
        if not _same(request.scope["path"][: len(home)], home):
            return Response(status_code=404)
        if request.method not in ("GET", "HEAD"):
            said = "Nothing can be changed here."
            return PlainTextResponse(said, 405, {"allow": "GET, HEAD"})
        if "token" in request.query_params:
            if not _same(request.query_params["token"], self._entrance.token):
                return PlainTextResponse("This is not the token of this console.", 403)
            # without the token, which would stay in the list of pages that were visited
            answer = RedirectResponse(home, 303)
            value = self._entrance.cookie
            answer.set_cookie(_COOKIE, value, path=home, httponly=True, samesite="strict")
            return answer
        if not _same(request.cookies.get(_COOKIE, ""), self._entrance.cookie):
            said = "Open the address that intarsia federation console printed at its start."
            return PlainTextResponse(said, 401, {"www-authenticate": "Token"})
        return None


def _same(given: str, drawn: str) -> bool:
    return secrets.compare_digest(given.encode(errors="replace"), drawn.encode())


class _Pages:
    """The pages about some kits."""

    def __init__(self, watched: Sequence[Watched], home: str) -> None:
        self._watched, self._templates = watched, templates()
        self._templates.globals["home"] = home

    def overview(self, request: Request) -> Response:
        """Return the page of all kits."""
        return self._filled("overview.html", again=True, kits=[*map(_of_kit, self._watched)])

    def run(self, request: Request) -> Response:
        """Return the page of a run, which may be going on."""
        one, status, out = self._asked_for(request)
        course = history_of(out) if (out / "history.jsonl").is_file() else None
        return self._filled(
            "run.html",
            again=status.state in ("waiting", "running"),
            at=request.path_params,
            federation=one.federation,
            run=status,
            rounds=_most_rounds(out),
            charts=rounds_charts(course),
        )

    def report(self, request: Request) -> Response:
        """Return the report of a run that has finished."""
        from starlette.responses import HTMLResponse

        _, _, out = self._asked_for(request)
        return HTMLResponse(page_of([Contents.of(out)]))

    async def nothing(self, request: Request, problem: Exception) -> Response:
        """Say that there is no such page."""
        return self._filled("refused.html", 404, said="There is no such page.")

    async def refused(self, request: Request, problem: Exception) -> Response:
        """Say what is wrong with a file that a page needs, or that a run has no report."""
        return self._filled("refused.html", 404, said=str(problem))

    async def damaged(self, request: Request, problem: Exception) -> Response:
        """Say that a file that a page needs is none that a run writes."""
        return self._filled(
            "refused.html", 404, said=f"The page cannot be shown: {damage(problem)}."
        )

    def _filled(self, template: str, code: int = 200, **what: Any) -> Response:
        from starlette.responses import HTMLResponse

        now = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"
        page = self._templates.get_template(f"console/{template}")
        return HTMLResponse(page.render(again=what.pop("again", False), now=now, **what), code)

    def _asked_for(self, request: Request) -> tuple[Watched, RunStatus, Path]:
        """Return the run that is asked for: one of those that are there, not a path.

        Raises
        ------
        HTTPException
            If there is none, or something in its folder leads out of it.
        """
        from starlette.exceptions import HTTPException

        number, name = request.path_params["kit"], request.path_params["run"]
        if number < len(self._watched) and is_of_server(self._watched[number].kit):
            one = self._watched[number]
            runs = (one.kit / "local" / "runs").resolve()
            for run in one.standing()["runs"]:  # of which none runs where the server does not
                if run["name"] == name != PING and _keeps_inside(runs / name):
                    return one, RunStatus(**run), runs / name / "out"
        raise HTTPException(404)


def _keeps_inside(folder: Path) -> bool:
    """Return whether a folder is no link, and nothing in it leads out of it."""
    return led_out(folder, (folder, *folder.rglob("*"))) is None


def _of_kit(one: Watched) -> dict[str, Any]:
    """Return what the page says of a kit; of one whose files are damaged, what is wrong."""
    found: dict[str, Any] = {"name": one.kit.name, "problem": ""}
    try:
        ends = {file: f"{end:%Y-%m-%d}" for file, end in kits.ends_in(one.kit).items()}
        found |= {"federation": one.federation, "ends": ends, **one.standing()}
        found |= _of_server(one.kit, found) if is_of_server(one.kit) else _of_site(one.kit)
    except (UserError, *DAMAGE) as problem:
        found["problem"] = f"{damage(problem)}."
    return found


def _of_server(kit: Path, found: Mapping[str, Any]) -> dict[str, Any]:
    """Return a server's sites, runs, and what waits for somebody."""
    sites, _ = sites_of(kit)
    seen, there, now = ends_seen(kit), found.get("sites"), datetime.now(UTC)
    known = {True: "connected", False: "not connected", None: "not known"}
    local = kit / "local"
    runs = sorted(found["runs"], key=lambda run: run["ended"], reverse=True)
    return {
        "server": True,
        "sites": [
            {
                "name": name,
                "state": known[None if there is None else bool(there.get(name))],
                "end": f"{seen[name]:%Y-%m-%d}" if name in seen else "",
                "days": (seen[name] - now).days if name in seen else None,
                "refused": found["revoked"].get(name, ""),
            }
            for name in sites
        ],
        "runs": [
            {**run, "rounds": _most_rounds(local / "runs" / run["name"] / "out")}
            for run in sorted(runs, key=lambda run: bool(run["ended"]))  # first those that go on
            if run["name"] != PING
        ],
        "joining": not_joined(kit, sites),
        "waiting": list_waiting(local),
    }


def _of_site(kit: Path) -> dict[str, Any]:
    """Return what asked to run at a site, the newest first, and those first that wait."""
    every = Requests(kit / "local").all()
    newest = sorted(every, key=lambda one: one.since, reverse=True)
    return {"server": False, "requests": sorted(newest, key=lambda one: one.state != "waiting")}


def _most_rounds(out: Path) -> int | None:
    """Return how many rounds a run has at most, None where its folder does not say."""
    try:
        found = described(out)
    except (UserError, *DAMAGE):  # whoever goes on with the run is told
        return None
    return None if found is None else found.rounds
