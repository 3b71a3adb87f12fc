"""How a federation stands, at a port of its server that Prometheus reads."""

from __future__ import annotations

import contextlib
import importlib.util
import ipaddress
import json
import socket
import threading
from collections.abc import Collection, Iterator
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any, Final, get_args
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from intarsia import __version__
from intarsia.deployment.federation_file import sites_of
from intarsia.deployment.operations.answers import Answers
from intarsia.deployment.server import PING, RunStatus, State, list_statuses
from intarsia.engines.transports import kits
from intarsia.errors import ExperimentError
from intarsia.results.checkpoint import Checkpoints

if TYPE_CHECKING:
    from prometheus_client import Metric

_RUN: Final = ("run",)
_AT_ONCE: Final = 8  # connections
_LONGEST: Final = 5.0  # seconds that an answer takes, where others wait


class Standing:
    """What Prometheus reads of a server: its sites, its runs, its certificates.

    Parameters
    ----------
    kit
        The server's.
    answers
        Knows which sites answer.

    Raises
    ------
    ExperimentError
        If the library is not installed.
    """

    def __init__(self, kit: Path, answers: Answers) -> None:
        if importlib.util.find_spec("prometheus_client") is None:
            raise ExperimentError(
                "The library prometheus_client is not installed; run pip install "
                '"intarsia[metrics]".'
            )
        self._kit, self._answers = kit, answers

    def collect(self) -> Iterator[Metric]:
        """Yield what Prometheus calls metrics, as they are now."""
        from prometheus_client.metrics_core import GaugeMetricFamily, InfoMetricFamily

        yield InfoMetricFamily("intarsia", "The package.", {"version": __version__})
        connected = GaugeMetricFamily(
            "intarsia_site_connected", "Whether a site answered just now.", labels=("site",)
        )
        if (there := self._answers.known()) is not None:  # else it is not known
            for name in sites_of(self._kit)[0]:
                connected.add_metric((name,), name in there)
        yield connected
        every = list_statuses(self._kit / "local")
        statuses = [one for one in every if one.name != PING]  # which trains nothing
        states = GaugeMetricFamily("intarsia_runs", "Runs by state.", labels=("state",))
        for state in get_args(State):
            states.add_metric((state,), sum(one.state == state for one in statuses))
        yield states
        yield from self._of_runs(statuses)
        ends = GaugeMetricFamily(
            "intarsia_certificate_end_timestamp_seconds",
            "When a certificate of the server ends.",
            labels=("file",),
        )
        for file, moment in kits.ends_in(self._kit).items():
            ends.add_metric((file,), moment.timestamp())
        yield ends

    def _of_runs(self, statuses: Collection[RunStatus]) -> Iterator[Metric]:
        from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

        current = {
            "round": GaugeMetricFamily("intarsia_run_round", "Rounds done.", labels=_RUN),
            "loss": GaugeMetricFamily("intarsia_run_loss", "Loss on training rows.", labels=_RUN),
            "gap": GaugeMetricFamily("intarsia_run_gap", "Relative duality gap.", labels=_RUN),
        }
        away = GaugeMetricFamily("intarsia_run_sites_away", "Sites gone on without.", labels=_RUN)
        total = CounterMetricFamily("intarsia_run_bytes", "Bytes sent both ways.", labels=_RUN)
        parts = CounterMetricFamily(
            "intarsia_run_seconds", "Seconds of the server by part.", labels=("run", "part")
        )
        for one in statuses:
            for key, metric in current.items():
                if (value := getattr(one, key)) is not None:
                    metric.add_metric((one.name,), value)
            away.add_metric((one.name,), len(one.away))
            total.add_metric((one.name,), one.bytes)
            for part, seconds in _seconds(self._kit / "local" / "runs" / one.name / "out").items():
                if part != "total":
                    parts.add_metric((one.name, part), seconds)
        yield from (*current.values(), away, total, parts)


def _seconds(out: Path) -> dict[str, float]:
    """Return the seconds of a run by part, as of its end or its newest checkpoint."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        found: dict[str, float] = json.loads((out / "result.json").read_bytes())["seconds"]
        return found
    held: dict[str, Any] = (Checkpoints(out).latest_extra() if out.is_dir() else None) or {}
    return dict(held.get("seconds", {}))


@contextlib.contextmanager
def served(standing: Standing, address: str, port: int) -> Iterator[None]:
    """Let Prometheus read at a port of this machine while something else is done.

    Raises
    ------
    ExperimentError
        If the port cannot be had.
    """
    from prometheus_client import CollectorRegistry, make_wsgi_app

    registry = CollectorRegistry(auto_describe=False)
    registry.register(standing)
    try:
        server = _Server(address, port)
    except (OSError, OverflowError) as problem:
        raise ExperimentError(
            f"Metrics cannot be served at {address}:{port} ({problem}); give another port with "
            "--metrics, or another address with --metrics-at."
        ) from None
    server.set_app(_for_own_hosts(make_wsgi_app(registry), str(server.server_address[0])))
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(WSGIRequestHandler):
    timeout = 10.0  # seconds without a byte

    def get_environ(self) -> Any:
        """Return what was asked for: from now on this connection is being answered."""
        server: Any = self.server
        server.begin_answer(self.connection)
        return super().get_environ()

    def log_message(self, *given: Any) -> None:
        """Say nothing: standard error is the federation's."""


class _Server(ThreadingMixIn, WSGIServer):
    """Answers few at a time: who opens connections takes nothing from the federation's process.

    Nor from who asks: where there are too many, the one ends that has been open for longest without
    asking. Where all have asked, one ends by itself within seconds, or the oldest is ended.
    """

    daemon_threads = True

    def __init__(self, address: str, port: int) -> None:
        found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family, self._free = found[0][0], threading.Semaphore(_AT_ONCE)
        self._open: list[Any] = []  # the oldest first
        self._answered: list[Any] = []  # those of which the request has come
        self._lock = threading.Lock()
        super().__init__(found[0][4][:2], _Handler)  # type: ignore[arg-type]  # a host and a port

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, in the place of an idle one where there are too many."""
        if not self._free.acquire(blocking=False):
            self._wait()
        with self._lock:
            self._open.append(request)
        super().process_request(request, client_address)

    def _wait(self) -> None:
        """Wait until there is room."""
        while not self._end_oldest(idle=True):
            if self._free.acquire(timeout=_LONGEST):
                return
            self._end_oldest(idle=False)
        self._free.acquire()

    def _end_oldest(self, *, idle: bool) -> bool:
        """End the oldest one that has not asked, or that has; return whether there is one."""
        with self._lock:
            some = [one for one in self._open if (one in self._answered) != idle]
            with contextlib.suppress(OSError):  # it has ended just now
                for one in some[:1]:
                    one.shutdown(socket.SHUT_RDWR)
        return bool(some)

    def begin_answer(self, request: Any) -> None:
        """Keep a connection from giving way to others: its request has come."""
        with self._lock:
            self._answered.append(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, and let another one in."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._lock:
                self._open.remove(request)
                self._answered = [one for one in self._answered if one is not request]
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of one that has gone, or took too long."""


def _for_own_hosts(app: Any, address: str) -> Any:
    """Let an address of this machine alone be reached by its own names alone.

    A page of the web that a browser here shows can have its own name lead to 127.0.0.1, and would
    read what is served there.
    """
    if not ipaddress.ip_address(address).is_loopback:
        return app

    def checked(environ: dict[str, Any], start_response: Any) -> Any:
        name, colon, number = environ.get("HTTP_HOST", "").rpartition(":")
        host = name if colon and number.isdigit() else environ.get("HTTP_HOST", "")
        if host.strip("[]") in (address, "localhost"):
            return app(environ, start_response)
        start_response("400 Bad Request", [("Content-Type", "text/plain")])
        return [f"This is {address}, which goes by no other name than localhost.\n".encode()]

    return checked
