"""The commands `intarsia federation ...`: sites of organisations, each with its own table."""

from __future__ import annotations

import contextlib
import errno
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, get_args

import typer

from intarsia.cli import kits
from intarsia.cli.console import AsJson, put, say
from intarsia.cli.kits import Kit, over_nvflare
from intarsia.core.plugins import package_of
from intarsia.errors import ExperimentError, printable

if TYPE_CHECKING:
    from intarsia.deployment.job_requests import JobRequest, Requests
    from intarsia.deployment.policy import Policy
    from intarsia.deployment.process import KitProcess
    from intarsia.experiment.config import Experiment


app = typer.Typer(
    help="Run experiments across organisations, over NVIDIA FLARE and mutual TLS.",
    rich_markup_mode="rich",
    epilog="In this order: init and provision --keys-at-sites once; each site runs join, the "
    "server's people run sign, the site install; it runs table and site; the "
    "server's people run server, and then submit for each experiment.",
)

Described = Annotated[Path, typer.Argument(metavar="EXPERIMENT")]
JsonLogs = Annotated[
    bool,
    typer.Option(
        "--json-logs", help="Write what happens to standard output, an object of JSON a line."
    ),
]

Ahead = Annotated[
    bool,
    typer.Option(
        help="Keep a process that waits for the next job, which begins some seconds earlier by it; "
        "it takes some 210 MB."
    ),
]

_FEW: Final = 10  # runs, more than which are counted, too
_WATCHED: Final = 5.0  # seconds between looks
_ASKED: Final = 60.0  # seconds without a sign of life of a site's process after which it may hang
_STEADY: Final = 15.0  # seconds for which a site is without signs of life before that is told
_SHOWN: Final = timedelta(days=1)  # for which a second process of a site is
NOT_RUNNING: Final = 3  # exit status of `status`, as that of services has it
_HINDERED: Final = "as things are, it is refused even where it is approved: {why}"
_UNSEEN: Final = ("silent", "starting")  # so it seems, too, where signs of life cannot be written
_CONNECTION: Final = {  # how the server stands to a site
    "answers": "connected: the server answers",
    "silent": "not connected: the server does not answer; see intarsia federation logs {kit}, and "
    "ask whoever runs the server whether it is running",
    "refuses": "not connected: the server refuses the certificate of {name}, as it is revoked; ask "
    "whoever runs the server, and for a new one run intarsia federation join {name}",
    "frozen": "its process does nothing, stopped by Ctrl-Z or SIGSTOP; let it go on by fg in its "
    "terminal or by kill -CONT, or wait: it is started again after five minutes",
    "invalid": "not connected: the server's certificate has ended, or has not begun, by this "
    "machine's clock; set that, or if it is right, ask whoever runs the server to renew it",
    "unresolved": "not connected: the server's name has no address here; see to the DNS of this "
    "machine, or to the name (intarsia doctor {kit}): it is tried again every few seconds",
    "certificates": "nothing connects anew: by this machine's clock a certificate of this kit is "
    "not valid, see below",
    "starting": "its process does not answer: it is starting, or hangs and is started again after "
    "five minutes; see intarsia federation logs {kit}",
    "foreign": "not connected: what answers at the server's address has no certificate of this "
    "kit's federation; see whether the kit is the newest that came from there and its address is "
    "right (intarsia doctor {kit}), and whether a proxy on the way opens TLS",
}

Which = Annotated[
    str,
    typer.Argument(metavar="JOB", help="The start of its digest, or its name; default: the only."),
]


_OF_KITS = (kits.init, kits.provision, kits.join, kits.sign, kits.install, kits.renew, kits.revoke)
for command in (*_OF_KITS, kits.backup, kits.restore, kits.dashboard):
    app.command()(command)


@app.command()
def server(
    kit: Kit,
    metrics: Annotated[
        int | None,
        typer.Option(metavar="PORT", min=1, max=65535, help="Let Prometheus read at this port."),
    ] = None,
    metrics_at: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Where that port is; default: this machine only.")
    ] = "127.0.0.1",
    json_logs: JsonLogs = False,
    spare: Ahead = True,
) -> None:
    """Run the server of KIT and keep its runs going, until Ctrl-C or stop."""
    from intarsia.deployment.federation_file import sites_of

    nvflare = over_nvflare("nvflare")
    from intarsia.deployment.operations.answers import Answers
    from intarsia.deployment.operations.metrics import Standing, served
    from intarsia.deployment.operations.schedules import Daily
    from intarsia.deployment.process import check_access, is_running, running_original
    from intarsia.deployment.server import ENTRY_POINTS, supervise
    from intarsia.engines.transports.validity import check_certificates

    sites_of(kit)
    check_access(kit)
    check_certificates(kit)
    # what runs from it already, or from what it is a copy of, is said in its own words
    if not is_running(kit) and running_original(kit) is None:
        nvflare.check_ports(kit)
    command = partial(nvflare.parent_command, kit, ENTRY_POINTS, server=True, ahead=spare)
    process = _process_of(kit, command, json_logs=json_logs)
    with contextlib.ExitStack() as stack:
        jobs, asking = (
            stack.enter_context(contextlib.closing(nvflare.Jobs(kit / "admin"))) for _ in range(2)
        )
        answers = Answers(asking.sites)
        standing = None if metrics is None else Standing(kit, answers)
        stack.enter_context(process.running())
        if standing is not None and metrics is not None:
            stack.enter_context(served(standing, metrics_at, metrics))
            stack.enter_context(answers.asking())
            say(f"metrics for Prometheus: http://{metrics_at}:{metrics}/metrics")
        say(f"the server runs until Ctrl-C, or: intarsia federation stop {kit}")
        given = kit / "local", jobs, nvflare.write_job
        daily = Daily(kit, process.note)

        def look() -> None:
            process.silent(jobs.silence())
            daily.look()

        supervise(
            *given,
            stopped=process.stopped,
            note=process.note,
            each=look,
            arrived=partial(nvflare.newest_arrival, kit),
        )


@app.command()
def table(
    kit: Kit,
    named: Annotated[
        str,
        typer.Argument(
            metavar="TABLE", help="A file, or a database's table, as intarsia init takes it."
        ),
    ],
    id: Annotated[
        str | None, typer.Option("--id", metavar="COLUMN", help="Tells rows apart.")
    ] = None,
    label: Annotated[
        str | None,
        typer.Option("--label", metavar="COLUMN", help="Is to be predicted; default: by its name."),
    ] = None,
    no_label: Annotated[bool, typer.Option("--no-label", help="The site has no labels.")] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace what it says of another table.")
    ] = False,
) -> None:
    """Look at a TABLE, and write what it is into local/site.toml of the site's KIT."""
    from intarsia.cli.site_table import write_site_table

    if no_label and label is not None:
        raise ExperimentError("--label and --no-label say two things; give one of them.")
    ids, labels = ([id] if id else []), ([label] if label else [])
    write_site_table(kit, named, ids, None if no_label else labels, overwrite=overwrite)


@app.command()
def site(kit: Kit, json_logs: JsonLogs = False, spare: Ahead = True) -> None:
    """Run the site of KIT, until Ctrl-C or stop; local/site.toml names its table and keys."""
    from intarsia.deployment.client_folder import (
        ENTRY_POINTS,
        check_files,
        check_log,
        read_settings,
    )
    from intarsia.deployment.federation_file import unwritable
    from intarsia.deployment.process import check_access
    from intarsia.engines.transports.connection import Silence, connection
    from intarsia.engines.transports.replaced import STATUS
    from intarsia.engines.transports.validity import check_certificates, lets_connect

    nvflare = over_nvflare("nvflare")
    # what is wrong is said now, not in the first run
    check_access(kit)
    settings = read_settings(kit / "local", kit.name)
    if found := check_log(kit / "local"):
        say(f"warning: {found}")
    check_files(settings)
    check_certificates(kit)
    if settings.table is None:
        say(
            f"warning: site.toml has no [table], so that {kit.name} takes part only in jobs that "
            "name a data set; for jobs on its own rows run intarsia federation table"
        )
    command = partial(nvflare.parent_command, kit, ENTRY_POINTS, server=False, ahead=spare)
    ends = (
        f"Another process has connected to the server as {kit.name!r} since, with a copy of "
        f"{kit}, so that this one ends; let one of them alone run."
    )
    process = _process_of(kit, command, json_logs=json_logs, last={STATUS: ends})
    told, silence, seen = "", Silence(kit), time.monotonic()

    def look() -> None:
        nonlocal told, seen
        seconds = silence.seconds()
        if seconds > _ASKED and unwritable(kit) is None:  # else its signs of life are not seen
            process.silent(seconds)
        now = "frozen" if process.frozen() else connection(kit)
        if now != "answers" and not lets_connect(kit):
            return  # it is said by itself
        if now != told and now in _UNSEEN and unwritable(kit) is not None:
            return
        if now not in _UNSEEN:
            seen = time.monotonic()
        # a process that begins is not connected yet, and a clock that was set makes all signs old
        begins = not told or process.begins() or time.monotonic() - seen < _STEADY
        if now != told and not (now in _UNSEEN and begins):
            told = now
            process.tell(_CONNECTION[now].format(kit=kit, name=kit.name))

    with process.running():
        say(f"{kit.name} runs until Ctrl-C, or: intarsia federation stop {kit}")
        process.wait(look)
    if process.ended:
        say(f"error: {ends}")
        raise typer.Exit(process.ended)


@app.command()
def submit(
    kit: Kit,
    experiment: Described,
    overwrite: Annotated[bool, typer.Option(help="Replace a run of the same name.")] = False,
) -> None:
    """Ask the server of KIT to run an EXPERIMENT file; its paths are not used."""
    from intarsia.deployment.federation_file import sites_of
    from intarsia.deployment.process import check_user, is_running
    from intarsia.deployment.server import request

    sites, patience = sites_of(kit)
    check_user(kit)
    description, named = _read_for(sites, experiment)
    asked = kit / "local", description, named or sites, patience
    own = request(*asked, overwrite=overwrite, alive=is_running(kit))
    say(f"asked for {description.name}; its results will be in {own / 'out'}")


@app.command()
def schedule(
    kit: Kit,
    experiment: Described,
    at: Annotated[
        str, typer.Option("--at", metavar="HH:MM", help="When, by the server's clock.")
    ] = "02:00",
    keep: Annotated[
        int, typer.Option(metavar="N", min=0, help="Keep so many finished runs; 0: all.")
    ] = 0,
) -> None:
    """Let the server of KIT run an EXPERIMENT every day, on the tables of then."""
    from intarsia.deployment.federation_file import sites_of
    from intarsia.deployment.operations import schedules
    from intarsia.deployment.process import check_user

    sites, _ = sites_of(kit)
    check_user(kit)
    description, _ = _read_for(sites, experiment)
    made = schedules.add(kit, description, at, keep, datetime.now())
    say(f"runs {made.name} every day at {made.at}, from {made.since} on, as {made.name}-DATE")


@app.command()
def unschedule(kit: Kit, name: Annotated[str, typer.Argument(metavar="NAME")]) -> None:
    """Let the server of KIT run the experiment NAME no more every day; its runs stay."""
    from intarsia.deployment.federation_file import sites_of
    from intarsia.deployment.operations import schedules

    sites_of(kit)
    schedules.remove(kit, name)
    say(f"runs {name} no more every day")


def _read_for(sites: tuple[str, ...], file: Path) -> tuple[Experiment, tuple[str, ...]]:
    """Return the experiment in a file, and the clients that it names, which are the sites."""
    from intarsia.deployment.run import check_algorithm
    from intarsia.experiment import config as experiments

    description = experiments.load(file, parties=sites)
    check_algorithm(description)  # now, not in the night of the first run
    named = tuple(one.name for one in description.clients)
    if named and set(named) != set(sites):
        raise ExperimentError(
            f"The experiment's clients are {sorted(named)} but the federation's sites are "
            f"{sorted(sites)}; both must have the same names."
        )
    return description, named


@app.command()
def status(
    kit: Kit,
    as_json: AsJson = False,
    ask: Annotated[
        bool | None,
        typer.Option(
            "--sites/--no-sites",
            help="Ask the sites whether they are there; default: yes, but with --json no.",
        ),
    ] = None,
    watch: Annotated[
        bool, typer.Option(help="Show it again whenever it changes, until Ctrl-C.")
    ] = False,
) -> None:
    """Show whether KIT is running, and a server's sites and runs: round, loss, gap, bytes.

    Of a site it says whether the server answers it.

    The exit status is 3 where KIT is not running.
    """
    from intarsia.deployment.federation_file import check_kit, is_of_server
    from intarsia.deployment.process import is_running

    check_kit(kit)
    asks = is_of_server(kit) and (ask if ask is not None else not as_json)
    jobs = (
        over_nvflare("nvflare").Jobs(kit / "admin") if asks and (watch or is_running(kit)) else None
    )
    answering = None if jobs is None else jobs.sites
    shown: dict[str, Any] = {}
    try:
        while True:
            found = _standing(kit, answering)
            if found != shown and as_json:
                put(json.dumps(found))
            elif found != shown:
                if watch and sys.stderr.isatty():
                    typer.clear()
                _show(kit, found)
            shown = found
            if not watch:
                break
            time.sleep(_WATCHED)
    except KeyboardInterrupt:
        if not watch:
            raise
    finally:
        if jobs is not None:
            jobs.close()
    if not (watch or shown["running"]):
        raise typer.Exit(NOT_RUNNING)


def _standing(kit: Path, answering: Callable[[], Collection[str] | None] | None) -> dict[str, Any]:
    """Return how a kit stands, as `status --json` prints it.

    `answering` returns the sites that answer, None where that is not known, or raises OSError.
    """
    from intarsia.deployment.federation_file import is_of_server, sites_of, unwritable
    from intarsia.deployment.operations.schedules import held_up, schedules
    from intarsia.deployment.process import is_frozen, is_running
    from intarsia.deployment.server import PING, is_submitted, list_statuses
    from intarsia.engines.transports.connection import connection
    from intarsia.engines.transports.replaced import replaced
    from intarsia.engines.transports.revocation import revoked
    from intarsia.engines.transports.validity import lets_connect

    is_server = is_of_server(kit)
    runs, running = list_statuses(kit / "local") if is_server else [], is_running(kit)
    if not running:  # nor is what has a job
        goes_on = "goes on when the server is started"
        runs = [
            replace(one, state="waiting", problem=goes_on)
            if is_submitted(kit / "local", one.name)
            else one
            for one in runs
        ]
    found: dict[str, Any] = {
        "running": running,
        # a measurement that is done trained nothing
        "runs": [asdict(one) for one in runs if (one.name, one.state) != (PING, "finished")],
        "certificates": _of_certificates(kit),
    }
    disk = unwritable(kit) if running else None
    if disk is not None and disk.errno not in (errno.EACCES, errno.EPERM):  # of who asks alone
        found["disk"] = f"{kit} takes no files ({disk.strerror}), so that jobs end here"
    if is_server:
        refused = revoked(kit)
        found["revoked"] = {name: moment.isoformat() for name, moment in refused.items()}
        daily, found["damaged"] = schedules(kit)
        now = datetime.now()
        found["schedules"] = [{**asdict(one), "held_up": held_up(kit, one, now)} for one in daily]
        since = datetime.now(UTC) - _SHOWN
        known = replaced(kit).items()
        found["replaced"] = {name: one.isoformat() for name, one in known if one > since}
    frozen = running and is_frozen(kit)
    if frozen:
        found["server"] = "frozen"
    elif running and not lets_connect(kit) and (is_server or connection(kit) != "answers"):
        found["server"] = "certificates"
    elif running and not is_server:
        if (stands := connection(kit)) not in _UNSEEN or "disk" not in found:
            found["server"] = stands
    elif running and answering is not None:
        try:
            if (there := answering()) is not None:
                found["sites"] = {name: name in there for name in sites_of(kit)[0]}
        except OSError:
            found["server"] = "starting"
    return found


def _process_of(
    kit: Path,
    command: Callable[[], Sequence[str]],
    *,
    json_logs: bool,
    last: Mapping[int, str] | None = None,
) -> KitProcess:
    """Return what keeps a kit running; `last`: exit statuses after which it ends, and why."""
    from intarsia.deployment.process import KitProcess
    from intarsia.engines.transports.validity import lets_connect

    return KitProcess(
        kit,
        command,
        say,
        *([put] if json_logs else []),
        hindered=lambda: not lets_connect(kit),
        warnings=lambda: [f"certificates: {one}" for one in _of_certificates(kit)],
        last=last or {},
    )


def _of_certificates(kit: Path) -> list[str]:
    """Return which certificates have ended, or soon will, and what to do."""
    from intarsia.cli.doctor import certificates, certificates_of_sites
    from intarsia.deployment.federation_file import is_of_server

    found = certificates(kit) if (kit / "startup").is_dir() else []
    found += certificates_of_sites(kit) if is_of_server(kit) else []
    return [f"{one.said}; {one.remedy}" for one in found if one.state == "problem"]


def _show(kit: Path, found: dict[str, Any]) -> None:
    """Show how a kit stands."""
    from intarsia.deployment.server import RunStatus, State

    say(f"{kit.name} is {'running' if found['running'] else 'not running'}")
    if "server" in found:
        say(f"  {_CONNECTION[found['server']].format(kit=kit, name=kit.name)}")
    if "disk" in found:
        say(f"  disk: {found['disk']}; see to it")
    for warning in found["certificates"]:
        say(f"  certificates: {warning}")
    for name, moment in found.get("revoked", {}).items():
        when = datetime.fromisoformat(moment)
        say(f"  refused: certificates of {name} of before {when:%Y-%m-%d %H:%M:%S} UTC")
    for name, moment in found.get("replaced", {}).items():
        when = datetime.fromisoformat(moment)
        say(
            f"  {name}: two processes have its kit, and that of before {when:%Y-%m-%d %H:%M:%S} "
            "UTC was told to end; let one alone run"
        )
    for one in found.get("schedules", ()):
        say(f"  every day at {one['at']}: {one['name']}, from {one['since']} on")
        if one["held_up"]:
            say(f"    {one['held_up']}")
    for damaged in found.get("damaged", ()):
        say(f"  {damaged}")
    for there, words in ((True, "connected"), (False, "not connected")):
        names = [name for name, one in found.get("sites", {}).items() if one is there]
        if names:
            say(f"  {words}: {', '.join(names)}")
    if len(found["runs"]) > _FEW:
        counts = Counter(one["state"] for one in found["runs"])
        said = ", ".join(f"{counts[state]} {state}" for state in get_args(State) if counts[state])
        say(f"  {len(found['runs'])} runs: {said}")
    for one in found["runs"]:
        moment = one["ended"] and datetime.fromisoformat(one["ended"])
        say(f"  {RunStatus(**one)}" + (f", ended {moment:%Y-%m-%d %H:%M:%S} UTC" if moment else ""))


@app.command()
def console(
    kits: Annotated[
        list[Path],
        typer.Argument(
            metavar="KIT...", help="Folders of a server or of sites.", resolve_path=True
        ),
    ],
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Of this machine; 0: one that is free.")
    ] = 8704,
) -> None:
    """Show how KITs stand on pages in the browser of this machine, until Ctrl-C.

    Sites, runs with their reports, and what waits for somebody. Nothing can be changed there.
    """
    from intarsia.deployment.federation_file import check_kit, is_of_server
    from intarsia.deployment.operations.answers import Answers

    over = over_nvflare("nvflare")
    from intarsia.reports.console import Watched, served

    # it has no other end than Ctrl-C, whatever it is at
    with contextlib.suppress(KeyboardInterrupt), contextlib.ExitStack() as stack:
        watched = []
        for kit in dict.fromkeys(kits):
            check_kit(kit)
            answering = None
            if is_of_server(kit):
                jobs = stack.enter_context(contextlib.closing(over.Jobs(kit / "admin")))
                answers = Answers(jobs.sites)
                stack.enter_context(answers.asking())
                answering = answers.known
            watched.append(Watched(kit, partial(_standing, kit, answering)))
        address = stack.enter_context(served(watched, port))
        say(f"the console runs until Ctrl-C, for this machine alone: {address}")
        say("  whoever has the address reads the pages: do not pass it on")
        threading.Event().wait()


@app.command()
def ping(kit: Kit) -> None:
    """Measure how long calls to all sites take, small ones and 8 MB: JSON on standard output."""
    from statistics import median

    from intarsia.deployment import server as federation_server
    from intarsia.deployment.federation_file import sites_of
    from intarsia.deployment.process import check_user, is_running

    sites, patience = sites_of(kit)
    check_user(kit)
    if not is_running(kit):
        raise ExperimentError(f"{kit} is not running; start it with intarsia federation server.")
    path = federation_server.ping(kit / "local", sites, patience)
    end = time.monotonic() + patience.deadline
    while not path.is_file():
        if time.monotonic() > end:
            raise ExperimentError(
                f"There was no answer in {patience.deadline:g} seconds; see whether all sites are "
                f"running, and intarsia federation logs {kit}."
            )
        time.sleep(0.2)
    found = json.loads(path.read_text(encoding="utf-8"))
    for size, seconds in found["seconds"].items():
        say(f"  {size}: {1000 * median(seconds):.1f} ms (median of {len(seconds)})")
    put(json.dumps(found))


@app.command()
def logs(
    kit: Kit, lines: Annotated[int, typer.Option("--lines", "-n", help="How many.")] = 30
) -> None:
    """Print the last lines of the logs of KIT: what happened, warnings, and a site's own errors."""
    from intarsia.deployment.client_folder import ERRORS
    from intarsia.deployment.federation_file import check_kit
    from intarsia.deployment.process import EVENTS, is_running

    check_kit(kit)
    found = [
        one for one in (kit / EVENTS, kit / "log.txt", kit / "local" / ERRORS) if one.is_file()
    ]
    if not found:
        why = "nothing was started in it so far"
        if is_running(kit):
            why = "it runs, and nothing happened since its logs were moved"
        raise ExperimentError(f"{kit} has no log; {why}.")
    for path in found:
        text = path.read_text(encoding="utf-8", errors="replace")
        say(f"{path}{'' if text else ': empty'}")
        for line in text.splitlines()[-lines:]:
            put(printable(line))


@app.command()
def stop(
    kit: Kit, run: Annotated[str, typer.Option(metavar="NAME", help="Stop this run alone.")] = ""
) -> None:
    """Stop what runs from KIT; runs go on when it is started again. With --run: stop one run."""
    from intarsia.deployment.federation_file import check_kit
    from intarsia.deployment.process import stop as stop_process
    from intarsia.deployment.server import stop_run

    check_kit(kit)
    if run:
        stop_run(kit / "local", run)
        say(f"stops {run}; it goes on with intarsia federation resume {kit} {run}")
        return
    say(f"stopped {kit.name}" if stop_process(kit) else f"{kit.name} was not running")


@app.command()
def resume(kit: Kit, run: Annotated[str, typer.Argument(metavar="RUN")]) -> None:
    """Let a RUN of the server of KIT go on that was stopped, or failed and can go on now."""
    from intarsia.deployment.server import resume_run

    resume_run(kit / "local", run)
    say(f"{run} goes on when the server and the sites are running")


@app.command()
def requests(
    kit: Kit,
    as_json: AsJson = False,
    details: Annotated[
        bool, typer.Option("--details", help="Name each field that is read or opened, too.")
    ] = False,
) -> None:
    """Show which jobs asked to run at the site of KIT: what they ask for, and what was decided."""
    known, policy = _requests(kit)
    found = known.all()
    if as_json:
        put(json.dumps([asdict(one) for one in found], ensure_ascii=False))
        return
    if not found:
        say(f"no job has asked to run at {kit.name}")
    for one in found:
        say(f"{one.asked.name} (digest {one.short}): {one.state}{_why(one)}, asked {one.since}")
        if one.state in ("waiting", "approved") and (why := known.hindrance(one, policy)):
            say(f"  {_HINDERED.format(why=why)}")
        if one.state == "waiting":
            _show_request(kit, one, details=details)
    if policy.jobs_total:
        say(f"jobs that differ, of those that began: {len(known.kinds())} of {policy.jobs_total}")


@app.command()
def approve(kit: Kit, which: Which = "") -> None:
    """Let a job run at the site of KIT; one that is changed afterwards asks again."""
    _decide(kit, which, approved=True)


@app.command()
def deny(
    kit: Kit,
    which: Which = "",
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Told to the server's people.")] = "",
) -> None:
    """Refuse a job at the site of KIT, one that runs too."""
    _decide(kit, which, approved=False, reason=reason)


def _decide(kit: Path, which: str, *, approved: bool, reason: str = "") -> None:
    from intarsia.deployment.process import check_user

    known, policy = _requests(kit)
    check_user(kit)
    one = known.find(which)
    known.decide(one, approved=approved, reason=reason)
    words = "approved" if approved else "denied"
    say(f"{words} {one.asked.name!r} (digest {one.digest}) at {kit.name}")
    if approved and (why := known.hindrance(one, policy)):
        say(f"  {_HINDERED.format(why=why)}")


def _requests(kit: Path) -> tuple[Requests, Policy]:
    """Return the requests at the site of a kit, and what its owner allows."""
    from intarsia.deployment.client_folder import log_of, read_settings
    from intarsia.deployment.job_requests import Requests

    settings = read_settings(kit / "local")  # says what is wrong with a folder that is no site's
    return Requests(kit / "local", log_of(kit / "local").append), settings.policy


def _why(one: JobRequest) -> str:
    said = one.reason if one.state == "denied" else one.why
    return f" ({said})" if said else ""


def _show_request(kit: Path, one: JobRequest, *, details: bool) -> None:
    """Show what a job asks for; `details`: with the names of messages, as the audit has them."""
    from intarsia.deployment.job_requests import without_names

    asked = one.asked
    read, opened = (
        "; ".join(them if details else without_names(them)) or "nothing"
        for them in (asked.server_reads, asked.clients_open)
    )
    labels = ", ".join(
        f"{key} {', '.join(map(str, value)) if isinstance(value, list) else value}"
        for key, value in asked.experiment.get("labels", {}).items()
        if value not in (None, [])
    )
    noise = f"epsilon {asked.epsilon:g}, delta {asked.delta:g}" if asked.epsilon else "no noise"
    tree = asked.experiment
    sealed, part = tree.get("privacy", {}), tree.get("experiment", {}).get("participation", 1.0)
    keys = {
        "pairs": "of each two clients, safe from the server with "
        f"{sealed.get('colluders')} clients",
        "clients": "one of all clients, any of which opens all together with the server",
    }
    trust = f'{keys.get(sealed.get("trust"), "not said")} (trust = "{sealed.get("trust")}")'
    waits = tree.get("absent", "wait") == "wait"
    package = package_of("algorithm", asked.algorithm)
    whose = f" of the installed package {package}" if package else ""
    for name, words in {
        "algorithm": f"{asked.algorithm}{whose}, {asked.rounds} rounds at most",
        "sums": f"{asked.mode}, least_clients {asked.least_clients} (counts for networks; totals "
        "of linear models are of the owners of a row or a column, who may be two)",
        "keys of sums": trust if asked.mode != "plain" else "none, the server reads all parts",
        "clients in a round": "all" if part == 1.0 else f"{part:g} of all (participation)",
        "clients that are away": "are waited for" if waits else "are left out of rounds",
        "privacy of the model": noise,
        "clients": ", ".join(asked.clients),
        "ids of rows": asked.ids,
        "columns": ", ".join(asked.columns) or "those of a data set that the job names",
        "labels": labels or "as the table has them",
        "the server reads": read,
        "of this site alone": asked.server_reads_models or "no model",
        "clients open": opened,
        "digest": one.digest,
    }.items():
        say(f"    {name}: {words}")
    if not details:
        say(f"  intarsia federation requests {kit} --details  (names of messages and fields)")
    say(f"  intarsia federation approve {kit} {one.short}")
    say(f"  intarsia federation deny {kit} {one.short} --reason TEXT")
