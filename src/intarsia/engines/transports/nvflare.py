"""Transport over NVIDIA FLARE: its Collab API carries bytes to sites and back over mutual TLS.

What is ours stays ours: a call is one published function that takes bytes and gives bytes; states,
repetitions, deadlines and going on after a crash are those of `engines.remote`. No code is sent: a
job names two classes of this file, and a kit allows no others and no code of a job's own
(`class_allow_list`, `byoc`). What these two run stands in the kit, not in the job: whoever starts
its process writes that there.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import importlib
import io
import json
import logging
import os
import queue
import shutil
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.collab import CollabCallError, collab
from nvflare.collab.api.exceptions import RunAborted
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.cellnet.utils import make_reply, new_cell_message
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming.byte_receiver import RxTask
from nvflare.fuel.flare_api.api_spec import JobNotFound, NoClientsAvailable
from nvflare.fuel.flare_api.flare_api import Session, new_secure_session
from nvflare.fuel.utils.buffer_list import ConsumableBufferList
from nvflare.private.defs import CellChannelTopic
from nvflare.private.fed.server.job_runner import JobRunner

from intarsia.core.block import ClientId
from intarsia.core.files.atomic_files import write_atomically
from intarsia.core.memory import give_back
from intarsia.engines.remote.given_up import within
from intarsia.engines.transports import (
    connection,
    handshakes,
    leftovers,
    origins,
    replaced,
    revocation,
    spare,
)
from intarsia.engines.transports.kits import ADMIN
from intarsia.engines.transports.validity import check_certificates
from intarsia.errors import ExperimentError, SiteError, printable

_COLLAB: Final = "nvflare.collab.runtime"
_HERE: Final = "intarsia.engines.nvflare"  # as jobs and kits of every version name this module
_CONTROLLER: Final = f"{_COLLAB}.controller.CollabController"
_EXECUTOR: Final = f"{_COLLAB}.executor.CollabExecutor"
_ALLOWED: Final = (_CONTROLLER, _EXECUTOR, f"{_HERE}.ServerSide", f"{_HERE}.SiteSide")
_ENTRY: Final = "entry_points.json"  # of a kit: dotted names of functions that a job calls
# What the Collab API calls the server's cell of a job; no site may have this name.
_SERVER: Final = "server"
# A kit's process listens for those of its jobs, within its machine. Whoever connects there shows
# the kit's certificate: any process of the machine could else call a site as the server, or have
# the server hand on what a site, whose token it has, says in another's name.
_WITHIN: Final = {
    "internal": {
        "scheme": "tcp",
        "resources": {"host": "localhost", "connection_security": "mtls"},
    }
}
_LOG_BYTES: Final = 2_000_000  # of a log file, of which there are three generations
_THREADS: Final = 16
_ANSWER: Final = 5.0  # seconds in which a site must say that it is there
# Seconds after which it is asked once more: one whose process is starting loses a question, or two
# on a machine that has much to do, and answers the next.
_SOON: Final = (1.0, 1.0)
_CALLS: Final = 200  # of a site, after which it gives memory back, and the server does
# Seconds after which a question of the administrator's is given up. Three tries to hear of all
# sites take 22; what hands in a job, and ends a connection, has no limit in the library.
_GIVEN_UP: Final = 60.0
_QUIET: Final = 60.0  # seconds without a question after which the server is asked whether it hangs
_ASKED: Final = 50  # questions of the administrator's, after which it gives memory back
_BEATS: Final = 100  # of sites, one in ten seconds of each, after which the server's process does
_CHANNEL, _CALL = "intarsia", "call"  # of calls that are one message
_SHORT: Final = 1 << 18  # bytes of a call, and of an answer, which go as one message
# Seconds after which a short call is made by a stream, whose reply is sent anew where a connection
# broke. A site that is still computing gives the stream the answer that it comes to.
_LOST: Final = 10.0
_TICK: Final = 0.5  # seconds between looks whether a job is to end
_ARRIVALS: Final = "arrivals"  # of a server's kit: touched when a site has connected anew
_NOT_BEGUN: Final = "FINISHED:FAILED_TO_RUN"  # status of a job that did not get to all sites
# What the library says of a site that takes no signature of the server's people, and what it means.
_UNSIGNED: Final = "app app does not pass signature verification"
_NOT_VALID: Final = (
    "it takes no job's signature, as by its clock a certificate is not valid; set the clock there, "
    "or see `intarsia federation doctor KIT` there"
)
_WORDS: Final = 200  # letters of what a site answers to that
_TAKEN: Final = "already registered"  # in what the library says of a name that another one has
# Seconds after which a site asks for its next task: while a job is set up, and from then on, when
# there is none left but to end. All sites together ask so many times a second at most.
_SET_UP, _AT_WORK = 0.2, 2.0
_QUESTIONS: Final = 50


def _chunks(self: Any) -> str:
    return f"{len(self)} chunks"


# The library formats what it receives for a line of its log, written or not: the digits of 8 MB
# take four times as long as carrying them.
ConsumableBufferList.__repr__ = _chunks


class _Removals:
    """Removes received replies when their time is over, all of them in one thread.

    The library keeps each for 65 seconds, in case that a part of it is sent again, in a thread of
    its own: 2,600 threads at 10 exchanges a second with 4 sites.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="removals", daemon=True).start()

    def schedule(self, task: RxTask, seconds: float | None = None) -> None:
        """Remove a reply after a time; does in its place what the library's method does."""
        with task.stop_lock:
            if task.cleanup_timer is None:
                task.cleanup_timer = self
                due = task.completed_task_ttl if seconds is None else seconds
                self._loop.call_soon_threadsafe(self._loop.call_later, due, task._remove_task)

    def cancel(self) -> None:
        """Do nothing, as what is removed already is not found when its time is over."""


@functools.cache
def _removals() -> _Removals:
    return _Removals()


def _remove_later(task: RxTask, ttl: float | None = None) -> None:
    _removals().schedule(task, ttl)


RxTask._schedule_remove_task = _remove_later
leftovers.keep_none()


class _Freed:
    """Gives memory back every so many calls.

    Python and glibc put both off: 8 kB a call at a site and 1 kB at the server, as long as a job
    runs.
    """

    def __init__(self, every: int) -> None:
        self._every, self._calls, self._lock = every, 0, threading.Lock()

    def called(self) -> None:
        """Count a call that is over; any thread may."""
        with self._lock:
            self._calls += 1
            due = self._calls % self._every == 0
        if due:
            gc.collect()
            give_back()


class Lines:
    """Carries calls to the sites of a job."""

    def __init__(self, proxies: Sequence[Any]) -> None:  # what the Collab API gives for each site
        self._proxies = {proxy.name: proxy for proxy in proxies}
        self._freed = _Freed(_CALLS * max(1, len(proxies)))

    @property
    def clients(self) -> tuple[ClientId, ...]:
        """Return the sites of the job."""
        return tuple(self._proxies)

    def send(self, client: ClientId, data: bytes, seconds: float) -> bytes:
        """Return what a site answers; OSError if nothing came in time."""
        if client not in self._proxies:
            raise ConnectionError(f"{client} is not in this job")
        try:
            return self._sent(client, data, seconds)
        finally:
            self._freed.called()

    def _sent(self, client: ClientId, data: bytes, seconds: float) -> bytes:
        proxy, end = self._proxies[client], time.monotonic() + seconds
        if len(data) <= _SHORT:
            within = min(_LOST, seconds)
            if short := _sent_in_one(client, proxy.backend, data, within):
                return short
        if (left := end - time.monotonic()) <= 0.0:
            raise ConnectionError(f"{client} did not answer")
        try:
            found = proxy(timeout=left).handle(data)
        except CollabCallError as problem:
            raise ConnectionError(f"{client} did not answer") from problem
        return _bytes(found, client)


def _sent_in_one(client: ClientId, backend: Any, data: bytes, seconds: float) -> bytes:
    """Return the answer to a short call; b"": it is long, late or lost, or the site takes none.

    The Collab API streams what is short, too, in parts that are acknowledged: that takes three
    times as long as one message and its reply.
    """
    found: queue.SimpleQueue[Any] = queue.SimpleQueue()
    message = new_cell_message({}, data)

    def ask() -> None:
        where = {"channel": _CHANNEL, "topic": _CALL, "target": backend.target_fqcn}
        try:
            found.put(
                backend.cell.core_cell.send_request(**where, request=message, timeout=seconds)
            )
        except Exception as problem:
            found.put(problem)

    # what waits for a site that is gone must not keep the process from ending
    threading.Thread(target=ask, name=f"short call to {client}", daemon=True).start()
    reply = None
    while reply is None:
        if backend.abort_signal.triggered:
            raise RunAborted("the job is to end")
        with contextlib.suppress(queue.Empty):
            reply = found.get(timeout=_TICK)
    if isinstance(reply, Exception):
        raise ConnectionError(f"{client} did not answer") from reply
    code = reply.get_header(MessageHeaderKey.RETURN_CODE)
    if code in (ReturnCode.TIMEOUT, ReturnCode.PROCESS_EXCEPTION):
        return b""  # a site of an older version has no such channel
    if code != ReturnCode.OK:
        raise ConnectionError(f"{client} did not answer ({code})")
    return _bytes(reply.payload, client)


def _bytes(found: object, sender: str) -> bytes:
    """Return what came as bytes; of a whole number `bytes` would make so many zeros."""
    if not isinstance(found, bytes | bytearray | memoryview | None):
        raise ConnectionError(f"{sender} sent a {type(found).__name__} where bytes were expected")
    return bytes(found or b"")


def without_tensors() -> None:
    """Keep the library from importing torch at the start of a job, which is for tensors in calls.

    Ours are bytes, and torch takes 250 MB in each process of a job, networks or not.
    """
    sys.modules["nvflare.app_opt.pt.decomposers"] = None  # type: ignore[assignment]  # none


def _import_ahead() -> None:
    """Import what a kit names while the library sets the job up: its processes wait for each other.

    What is absent is said at once, as the library only writes it into its log; whatever else is
    wrong is said when the entry point is called. A job's process begins in its kit.
    """

    def imported() -> None:
        with contextlib.suppress(Exception), connection.telling_of_absent(Path.cwd()):
            entry_point(Path("local"), "job")

    threading.Thread(target=imported, name="imports", daemon=True).start()


def _or_end(work: Callable[..., None]) -> Callable[..., None]:
    """Let the server's process end where one of its threads fails: it is started again.

    The library lets those that begin and end jobs die of a full disk; no job would begin any more.
    """

    @functools.wraps(work)
    def worked(*given: Any) -> None:
        try:
            work(*given)
        except Exception:
            with contextlib.suppress(OSError):  # of the same disk
                traceback.print_exc()
            os._exit(1)

    return worked


class Arrivals(FLComponent):  # type: ignore[misc]  # the library has no types
    """Notes in the server's process that a site has connected: its process is a new one.

    Whoever supervises runs then asks the sites at once, not when it is time to. It is noted with
    the first heart beat, which a site sends as soon as it can answer: one that has registered only
    loses a question, and would be asked again after seconds. That a process before it goes on is
    noted, too: two have the site's kit.
    """

    def __init__(self, file: str) -> None:
        super().__init__()
        self._file = Path(file)
        self._registered: set[str] = set()
        self._freed = _Freed(_BEATS)
        for name in ("run", "_job_complete_process"):
            setattr(JobRunner, name, _or_end(getattr(JobRunner, name)))

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Note a first heart beat; what cannot be written is seen when it is time to."""
        if event_type not in (
            EventType.CLIENT_REGISTER_PROCESSED,
            EventType.CLIENT_HEARTBEAT_PROCESSED,
        ):
            return
        self._freed.called()
        site = str(fl_ctx.get_peer_context().get_identity_name())
        refused = str(fl_ctx.get_prop(FLContextKey.COMMUNICATION_ERROR))
        if _TAKEN in refused:
            # of whom the server says it, by its token: a site may call itself by any name
            replaced.note(self._file.parent.parent, refused.rpartition(": ")[2])
        elif event_type == EventType.CLIENT_REGISTER_PROCESSED:
            self._registered.add(site)
        elif site in self._registered:
            self._registered.discard(site)
            with contextlib.suppress(OSError):
                self._file.touch()


class Replaced(FLComponent):  # type: ignore[misc]  # the library has no types
    """Ends a site's process when the server says that a newer one has the site's name.

    Two that work with one kit would take the connection from each other, and jobs would end.
    Whether the server answers is noted in the kit, in which the process begins.
    """

    def __init__(self) -> None:
        from nvflare.private.fed.client.communicator import Communicator

        super().__init__()
        kit, beat = Path.cwd(), Communicator.send_heartbeat
        connection.note_connecting(kit)
        connection.beat(kit)

        def beat_unless_replaced(own: Any, *given: Any) -> Any:
            send = own.cell.send_request

            def sent(*first: Any, **more: Any) -> Any:
                reply = send(*first, **more)
                said = str(reply.get_header(MessageHeaderKey.ERROR))
                if more.get("topic") == CellChannelTopic.HEART_BEAT and _TAKEN in said:
                    os._exit(replaced.STATUS)
                if reply.get_header(MessageHeaderKey.RETURN_CODE) == ReturnCode.OK:
                    connection.note(kit, "answers")
                else:
                    connection.note_silence(kit, "answers")
                return reply

            own.cell.send_request = sent
            return beat(own, *given)

        Communicator.send_heartbeat = beat_unless_replaced


def newest_arrival(kit: Path) -> int:
    """Return when a site connected to a server last, in nanoseconds; 0: none has so far."""
    try:
        return (kit / "local" / _ARRIVALS).stat().st_mtime_ns
    except FileNotFoundError:
        return 0


class ServerSide:
    """The server's component of a job."""

    def __init__(self, run: str) -> None:  # its name; its folder lies in the server's own
        self.run = run
        without_tensors()
        _import_ahead()

    @collab.main  # type: ignore[untyped-decorator]  # the library has no types
    def main(self) -> None:
        """Run the experiment, or go on with it."""
        context = collab.context
        proxies = list(context.clients)
        for proxy in proxies[:1]:  # all have the one engine
            proxy.backend.engine.server.runner_config.task_request_interval = _AT_WORK
        lines = Lines(proxies)
        folder = Path(context.workspace.get_site_config_dir())
        run = entry_point(folder, "job")
        gc.freeze()  # as a site does
        run(folder, self.run, lines)


class SiteSide:
    """A site's component of a job: hands bytes to the site whose configuration is in the kit.

    The API lets every participant of a job call every other, but a site answers the server alone.
    """

    def __init__(self) -> None:
        self._site: Any = None
        self._lock = threading.Lock()
        self._freed = _Freed(_CALLS)
        self._long: tuple[bytes, bytes] | None = None  # a short call, and its answer, which is not
        without_tensors()
        _import_ahead()

    @collab.init  # type: ignore[untyped-decorator]  # the library has no types
    def begin(self) -> None:
        """Take calls that are one message, too."""
        folder, server = Path(collab.workspace.get_site_config_dir()), collab.server.backend
        known = self._handle_short, folder, server.target_fqcn
        server.cell.core_cell.register_request_cb(_CHANNEL, _CALL, *known)

    @collab.publish  # type: ignore[untyped-decorator]  # likewise
    def handle(self, data: bytes) -> bytes:
        """Return the answer to a call.

        Raises
        ------
        SiteError
            If the caller is not the server.
        """
        folder = Path(collab.workspace.get_site_config_dir())
        # by the cell that a call comes from, which is bound to its certificate
        _check_caller(folder, collab.caller, _SERVER)
        return self._answer(folder, _bytes(data, _SERVER))

    def _handle_short(self, request: Message, folder: Path, server: str) -> Message:
        """Return the answer to a call that is one message; nothing, if it is asked for by `handle`.

        `server` is the server's cell in this job.
        """
        _check_caller(folder, request.get_header(MessageHeaderKey.ORIGIN), server)
        data = _bytes(request.payload, _SERVER)
        answer = self._answer(folder, data)
        if len(answer) > _SHORT:
            with self._lock:
                self._long = data, answer
            answer = b""
        return make_reply(ReturnCode.OK, body=answer)

    def _answer(self, folder: Path, data: bytes) -> bytes:
        with self._lock:
            long, self._long = self._long, None
            if long is not None and long[0] == data:
                return long[1]
            if self._site is None:
                self._site = entry_point(folder, "job")(folder)
                gc.freeze()  # a million objects of libraries, which would put off each collection
        answer: bytes = self._site.handle(data)
        self._freed.called()
        return answer


def _check_caller(folder: Path, caller: str, server: str) -> None:
    """Refuse a call of another than the server, and report it to the site."""
    if caller != server:
        problem = SiteError(
            f"{caller!r} called this site, which answers only the server; ask the people at "
            f"{caller!r} what runs there."
        )
        entry_point(folder, "refused")(folder)(problem)
        raise problem


def entry_point(folder: Path, purpose: str) -> Any:
    """Return the function that a kit's configuration names for a purpose."""
    module, _, name = str(json.loads((folder / _ENTRY).read_bytes())[purpose]).rpartition(".")
    return getattr(importlib.import_module(module), name)


def write_job(folder: Path, run: str, sites: Sequence[ClientId], least: int) -> Path:
    """Write a job into a folder: names of classes and of the run, and no code.

    It begins when `least` of the sites are there.
    """
    shutil.rmtree(folder, ignore_errors=True)
    config = folder / "app" / "config"
    config.mkdir(parents=True)

    def component(name: str, path: str, **args: Any) -> dict[str, Any]:
        return {"id": name, "path": path, "args": args}

    threads = {"max_call_threads": _THREADS}
    controller = component("controller", _CONTROLLER, server_obj_id="server", **threads)
    executor = component("executor", _EXECUTOR, client_obj_id="site", **threads)
    server = {
        "format_version": 2,
        "server": {"task_request_interval": min(_AT_WORK, max(_SET_UP, len(sites) / _QUESTIONS))},
        "workflows": [controller],
        "components": [component("server", f"{_HERE}.ServerSide", run=run)],
    }
    client = {
        "format_version": 2,
        "executors": [{"tasks": ["*"], "executor": executor}],
        "components": [component("site", f"{_HERE}.SiteSide")],
    }
    meta = {
        "name": run,
        "resource_spec": {},
        "min_clients": least,
        "deploy_map": {"app": ["server", *sites]},
    }
    for path, content in (
        (config / "config_fed_server.json", server),
        (config / "config_fed_client.json", client),
        (folder / "meta.json", meta),
    ):
        path.write_text(json.dumps(content, indent=1), encoding="utf-8")
    return folder


class Jobs:
    """The jobs of a federation, as its administrator, whose kit this has, sees them."""

    def __init__(self, kit: Path) -> None:
        self._kit = kit
        self._session: Session | None = None
        self._answered = time.monotonic()  # when the server did so last
        self._freed = _Freed(_ASKED)
        # what is wrong is raised; Python shows warnings of a library that nobody else takes
        logging.getLogger("nvflare").addHandler(logging.NullHandler())

    def submit(self, job: Path) -> str:
        """Submit a job; return its id. OSError where the server is not there."""
        return str(self._asked(lambda session: session.submit_job(str(job))))

    def status(self, job: str) -> str:
        """Return the status of a job, "" if the server knows none of this id.

        It says where a job could not begin, and why.
        """
        try:
            found = self._asked(lambda session: session.get_job_meta(job))
        except JobNotFound:
            return ""
        status = str(found.get("status", ""))
        # of a site on which it could not begin, with what the library says of that
        missed = [
            printable(" ".join(one.split()))[:_WORDS].replace(_UNSIGNED, _NOT_VALID)
            for one in found.get("job_deploy_detail", ())
            if ": " in one and not one.endswith(": OK")
        ]
        return f"{status}, {'; '.join(missed)}" if missed and status == _NOT_BEGUN else status

    def abort(self, job: str) -> None:
        """End a job."""
        self._asked(lambda session: session.abort_job(job))

    def sites(self) -> Mapping[ClientId, frozenset[str]]:
        """Return the sites that answer now, each with the ids of the jobs that it works on.

        Every site is asked: the library lists one for ten minutes after its last word.
        """
        found: dict[ClientId, frozenset[str]] = {}
        for one in self._asked(_statuses):
            if one.get("status") not in ("no_reply", "error"):
                # as the site itself says it: what is no text is the id of no job
                jobs = {str(one["job_id"])} if "job_id" in one else set()
                found[one["client_name"]] = found.get(one["client_name"], frozenset()) | jobs
        return found

    def silence(self) -> float:
        """Return for how many seconds the server has answered nothing; it is asked now and then."""
        if time.monotonic() - self._answered > _QUIET:
            with contextlib.suppress(OSError):
                self.status("none")  # which no job has
        return time.monotonic() - self._answered

    def close(self) -> None:
        """Leave the server."""
        session, self._session = self._session, None
        if session is not None:
            with contextlib.suppress(TimeoutError):
                within(_GIVEN_UP, session.close)

    def _knock(self) -> None:
        """Raise if nobody is at the server's port, or nobody is let in with this certificate."""
        check_certificates(self._kit)
        known = json.loads((self._kit / "startup" / "fed_admin.json").read_bytes())["admin"]
        with socket.create_connection((known["host"], int(known["port"])), timeout=10.0):
            pass

    def _asked(self, ask: Callable[[Session], Any]) -> Any:
        session, over = self._session, threading.Event()

        def answer() -> Any:
            nonlocal session
            if session is None:
                self._knock()  # a session that found nobody would go on calling for ever
                session = _opened(self._kit)
            return session.close() if over.is_set() else ask(session)

        try:
            # what a session prints is not what our commands say
            with contextlib.redirect_stdout(io.StringIO()):
                found = within(_GIVEN_UP, answer)
            self._answered = time.monotonic()
            return found
        except JobNotFound:
            self._answered = time.monotonic()
            raise
        except Exception as problem:
            over.set()
            # a session does not outlive the server's process; the next one is a new one, and this
            # one's threads would keep ours from ending
            if session is not None:
                with contextlib.suppress(Exception):
                    within(_ANSWER, session.close)
            session = None
            kind = type(problem).__name__
            raise ConnectionError(f"the server does not answer ({kind})") from None
        finally:
            self._session = session
            self._freed.called()


def _opened(kit: Path) -> Session:
    """Return a session of a federation's administrator."""
    session = new_secure_session(ADMIN, str(kit), timeout=10.0, command_timeout=_ANSWER)
    # The server waits so long for sites, and the session for the server: it would give up just
    # before the server says which sites did not answer.
    cell = session.api.cell
    send = cell.send_request

    def patient(**given: Any) -> Any:
        return send(**given | {"timeout": given["timeout"] + _ANSWER})

    cell.send_request = patient
    return session


def _statuses(session: Session) -> Sequence[Mapping[str, str]]:
    """Return what each site answers of each of its jobs, or that it has none, or does not answer.

    A site whose process has ended is known as such at once; one that is cut off takes all the time.
    """
    found: Sequence[Mapping[str, str]] = ()
    for seconds in (*_SOON, _ANSWER):
        begin = time.monotonic()
        session.set_timeout(seconds)
        try:
            found = session.get_client_job_status() or ()
        except NoClientsAvailable:
            return ()
        finally:
            session.set_timeout(_ANSWER)
        if time.monotonic() - begin < seconds:
            break  # nobody was waited for in vain
    return found


def check_ports(kit: Path) -> None:
    """Raise if another process of this machine has a port that the server of a kit needs.

    Raises
    ------
    ExperimentError
        With the port.
    """
    known = json.loads((kit / "startup" / "fed_server.json").read_bytes())["servers"][0]
    for port in (int(known["service"]["target"].rpartition(":")[2]), int(known["admin_port"])):
        with socket.socket() as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                one.bind(("", port))
            except OSError as problem:
                raise ExperimentError(
                    f"Port {port} of this machine cannot be used ({problem.strerror}), and the "
                    "server of this federation needs it; end what uses it, or set another "
                    "port in the federation's file and run the same `intarsia federation "
                    "provision` again."
                ) from None


def parent_command(
    kit: Path, entry_points: Mapping[str, str], *, server: bool, ahead: bool = True
) -> list[str]:
    """Return the command that runs the process which a kit is for; make the kit safe where it is.

    A kit has its place written into it, and comes from another machine. `entry_points` are the
    dotted names of what a job runs here ("job"): at the server (folder, run, lines) -> None, at a
    site (folder) -> site; and at a site of what reports a caller ("refused": folder -> report).
    `ahead` lets a process wait for the next job, see `spare`.
    """
    _made_safe(kit, server=server, ahead=ahead)
    connection.forget(kit)
    write_atomically(kit / "local" / _ENTRY, json.dumps(dict(entry_points)).encode())
    if server:
        module, config, more = "server.server_train", "fed_server.json", []
    else:
        module, config, more = "client.client_train", "fed_client.json", [f"uid={kit.name}"]
    return [
        *(sys.executable, "-u", "-m", f"nvflare.private.fed.app.{module}"),
        *("-m", str(kit), "-s", config, "--set", "secure_train=true", *more),
        *("org=intarsia", "config_folder=config"),
    ]


def _made_safe(kit: Path, *, server: bool, ahead: bool) -> None:
    """Let a kit run nothing but this package, keep its files to itself, and log little."""
    local = kit / "local"
    defaults = local / "resources.json.default"
    if defaults.is_file():
        resources = json.loads(defaults.read_text(encoding="utf-8"))
        resources["class_list_enforcement_mode"] = "enforce"
        resources["class_allow_list"] = list(_ALLOWED)
        # logs of sites stay with them
        components = resources.get("components", [])
        components = [one for one in components if ".logging." not in one["path"]]
        launcher = spare.component(kit, server=server, ahead=ahead)
        components = [one for one in components if one["id"] != launcher["id"]] + [launcher]
        resources["components"] = components
        if server:
            noted = {"file": str(local / _ARRIVALS)}
            arrivals = {"id": "arrivals", "path": f"{_HERE}.Arrivals", "args": noted}
            few = {"id": "handshakes", "path": handshakes.COMPONENT}
            resources["components"] += [revocation.component(kit), arrivals, few]
        else:
            resources["components"].append({"id": "replaced", "path": f"{_HERE}.Replaced"})
        resources["components"].append(origins.component(kit, server=server))
        text = json.dumps(resources, indent=1).replace("/tmp/nvflare", str(kit / "storage"))
        write_atomically(local / "resources.json", text.encode())
    write_atomically(local / "comm_config.json", json.dumps(_WITHIN, indent=1).encode())
    rights = local / "authorization.json.default"
    if rights.is_file():
        found = json.loads(rights.read_text(encoding="utf-8"))
        # "any" would let a job bring code of its own
        every = ("submit_job", "clone_job", "manage_job", "download_job", "view", "operate")
        found["permissions"] = {"project_admin": dict.fromkeys(every, "any") | {"byoc": "none"}}
        write_atomically(local / "authorization.json", json.dumps(found, indent=1).encode())
    logs = local / "log_config.json.default"
    if logs.is_file():
        found = json.loads(logs.read_text(encoding="utf-8"))
        for handler in found["handlers"].values():
            if "maxBytes" in handler:
                handler.update(maxBytes=_LOG_BYTES, backupCount=2)
        found["handlers"]["memory"] = {"class": f"{spare.__name__}.EndWithoutMemory"}
        found["loggers"]["root"]["level"] = "WARNING"
        found["loggers"]["root"]["handlers"].append("memory")
        write_atomically(local / "log_config.json", json.dumps(found, indent=1).encode())
