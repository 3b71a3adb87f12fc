"""How a federation stands, at a port of its server that Prometheus reads."""

from __future__ import annotations

import contextlib
import importlib.util
import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, get_args

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
    from prometheus_client import CollectorRegistry, start_http_server

    registry = CollectorRegistry(auto_describe=False)
    registry.register(standing)
    try:
        server, thread = start_http_server(port, address, registry)
    except (OSError, OverflowError) as problem:
        raise ExperimentError(
            f"Metrics cannot be served at {address}:{port} ({problem}); give another port with "
            "--metrics, or another address with --metrics-at."
        ) from None
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
