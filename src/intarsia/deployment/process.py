"""The process that a kit is for: started, started again when it dies, stopped with its children.

NVIDIA FLARE runs each job in processes of its own, which outlive a parent that was killed: a new
parent ends those before it begins, so that no two work on one site's folder.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pwd
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Final

import psutil

from intarsia import __version__
from intarsia.core.files.atomic_files import FULL, LONGER
from intarsia.deployment.federation_file import unwritable
from intarsia.engines.transports.connection import take_ends
from intarsia.errors import BusyError, ExperimentError, printable
from intarsia.results.lock import alone

_PID: Final = "intarsia.pid"
_LOCK: Final = "intarsia.lock"
PROCESS_FILES: Final = (_PID, _LOCK)  # of a kit, which say something only while it runs
_PAUSE: Final = 0.5  # seconds between looks at the process
_LONGEST: Final = 30.0  # seconds before a new start, at most
_MODULE: Final = "nvflare.private.fed"
EVENTS: Final = "events.log"  # what happened to a kit's process, and at a server to its runs
_CONSOLE: Final = "console.log"  # what the process printed since it was started
_LOGS: Final = (EVENTS, "audit.log", _CONSOLE)  # that nobody else keeps short
_MOST_BYTES: Final = 20_000_000  # of each of them
_JOB: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")  # a job, by its id
_JOBS: Final = (".", "storage/jobs-storage")  # where folders are of jobs: with logs, and as sent
_MOST_JOBS: Final = 20  # whose folders stay, and those of jobs that go on
_TIDIED: Final = 600.0  # seconds between two looks at what grows
_HUNG: Final = 300.0  # seconds without an answer after which a process is started again
_SAME: Final = 2.0  # seconds by which the begin of a process may differ, by when it is read
_BEGINS: Final = 45.0  # seconds in which a process becomes ready, and connects
_ROOM_SEEN: Final = 30.0  # seconds between two looks whether a kit can be written
_SPARE: Final = "intarsia.engines.transports.spare"  # waits for a job, whose name it then takes
_OTHERS: Final = (
    "{kit} is the user {name}'s, whose process could not read what root writes there; give the "
    "command as that user, by sudo -u {word} before it."
)


class KitProcess:
    """Keeps the process of a kit running until it is told to stop.

    Parameters
    ----------
    kit
        The kit.
    command
        Makes the kit fit to run where it is, and returns what runs its process.
    report
        Told in a sentence why the process could not be started; it is tried again. Told too where
        the kit's disk has no room while it runs, and when it has.
    events
        Told of what goes into events.log, as an object of JSON on one line: "time", "kit",
        "message".
    hindered
        Says whether the process can do nothing as things are, such as with a certificate that has
        ended: it is not started until it can, nor taken for one that hangs.
    warnings
        Returns in sentences what is to be seen to; each is told once.
    last
        Exit statuses of the process after which it is not started again, and what is said then.
    """

    def __init__(
        self,
        kit: Path,
        command: Callable[[], Sequence[str]],
        report: Callable[[str], None] = lambda _: None,
        events: Callable[[str], None] = lambda _: None,
        *,
        hindered: Callable[[], bool] = lambda: False,
        warnings: Callable[[], Sequence[str]] = lambda: (),
        last: Mapping[int, str] = MappingProxyType({}),
    ) -> None:
        self._kit, self._command, self._report, self._events = kit, command, report, events
        self._hindered, self._warnings, self._last = hindered, warnings, last
        self.ended = 0  # the status among them with which it ended
        self._full = False  # whether it was said that nothing can be written
        self._warned: set[str] = set()  # what was said that is to be seen to
        self._child: subprocess.Popen[bytes] | None = None
        self._since = time.monotonic()  # when it was started
        self._hangs = threading.Event()
        self._stop = threading.Event()

    def note(self, sentence: str) -> None:
        """Write down in the kit's events.log what happened."""
        now, said = datetime.now(UTC), printable(sentence)
        line = f"{now:%Y-%m-%d %H:%M:%S} {said}\n"
        # a full disk must not end what goes on without a log
        with contextlib.suppress(OSError), (self._kit / EVENTS).open("a", encoding="utf-8") as log:
            log.write(line)
        found = {"time": now.isoformat(timespec="milliseconds"), "kit": self._kit.name}
        with contextlib.suppress(OSError):  # as above
            self._events(json.dumps({**found, "message": said}, ensure_ascii=False))

    def tell(self, sentence: str) -> None:
        """Write down what happened, and report it."""
        self.note(sentence)
        # it may go to the same disk, or to a program that collects logs and has ended
        with contextlib.suppress(OSError):
            self._report(sentence)

    def stopped(self) -> bool:
        """Return whether the process is to stop."""
        return self._stop.is_set()

    def frozen(self) -> bool:
        """Return whether the process is there and does nothing, by SIGSTOP or Ctrl-Z."""
        child = self._child
        return child is not None and _does_nothing(child.pid)

    def begins(self) -> bool:
        """Return whether the process was started a moment ago."""
        return time.monotonic() - self._since < _BEGINS

    def silent(self, seconds: float) -> None:
        """Start the process again if it hangs: for so long it has answered nothing."""
        if min(seconds, time.monotonic() - self._since) > _HUNG and not self._hindered():
            self._hangs.set()

    def stop(self, *_: object) -> None:
        """Stop; fit for a signal."""
        self._stop.set()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Run the process while something else is done here; SIGTERM and Ctrl-C stop both.

        Raises
        ------
        BusyError
            If another process runs the kit, or that of which it is a copy.
        """
        if (first := running_original(self._kit)) is not None:
            raise BusyError(
                f"{self._kit} is a copy of the kit {first}, which is running; stop that with "
                f"`intarsia federation stop {first}`, as one of them runs at a time."
            )
        sentence = (
            f"{self._kit} is in use by another process; stop that with `intarsia federation stop "
            f"{self._kit}`."
        )
        with contextlib.ExitStack() as stack:
            for one in (signal.SIGTERM, signal.SIGINT):
                stack.callback(signal.signal, one, signal.signal(one, self.stop))
            command = self._begun(stack, sentence)
            keeper = threading.Thread(
                target=self._keep, args=[command], name=f"kit {self._kit.name}"
            )
            keeper.start()
            try:
                yield
            finally:
                self._stop.set()
                keeper.join()
                self.note("stopped")

    def _begun(self, stack: contextlib.ExitStack, sentence: str) -> Sequence[str]:
        """Take the kit for this process, as soon as its disk has room; return what is to run."""
        own, pause = os.fsencode(self._kit.resolve()), 1.0
        while not self._stop.is_set():
            try:
                with contextlib.ExitStack() as taken:
                    taken.enter_context(alone(self._kit / _LOCK, sentence))
                    taken.callback((self._kit / _PID).unlink, missing_ok=True)
                    known = os.getpid(), _begun_at(psutil.Process()), own
                    (self._kit / _PID).write_bytes(b"%d %.2f\n%s\n" % known)
                    command = self._command()
                    stack.push(taken.pop_all())
                    return command
            except OSError as problem:
                if problem.errno not in FULL:
                    raise
                pause = self._put_off(problem, pause)
        return ()

    def wait(self, each: Callable[[], None] = lambda: None) -> None:
        """Come back when it is stopped; do something now and then until that."""
        while not self._stop.wait(_PAUSE):
            each()

    def _keep(self, command: Sequence[str]) -> None:
        pause = 1.0
        while not self._stop.is_set():
            if self._hindered():
                self._warn()
                self._stop.wait(_LONGEST)
                continue
            begin = time.monotonic()
            try:
                self._serve(command)
            except OSError as problem:  # a full disk, or too many files: it may pass
                pause = self._put_off(problem, pause)
                continue
            # one that dies at once would else be started for ever
            pause = 1.0 if time.monotonic() - begin > _LONGEST else min(2 * pause, _LONGEST)
            self._stop.wait(pause)

    def _put_off(self, problem: OSError, pause: float) -> float:
        """Say what keeps the process from running, and wait; return for how long."""
        sentence = (
            f"The process of {self._kit} could not be kept running ({problem}); see to "
            "that: it is tried again every half a minute at the latest."
        )
        self.tell(sentence)
        pause = min(2 * pause, _LONGEST)
        self._stop.wait(pause)
        return pause

    def _serve(self, command: Sequence[str]) -> None:
        """Run the process until it ends or is to stop."""
        _end(_workers(self._kit))
        (self._kit / "transfer").mkdir(exist_ok=True)
        (self._kit / _CONSOLE).write_bytes(b"")
        tidied = seen = -_TIDIED
        ends = set[str]()  # of jobs that were told: what is absent, each of them says
        with (self._kit / _CONSOLE).open("ab") as log:
            child = subprocess.Popen(command, cwd=self._kit, stdout=log, stderr=subprocess.STDOUT)
            self._child, self._since = child, time.monotonic()
            self._hangs.clear()
            self.note(f"started, with intarsia {__version__}")
            while child.poll() is None and not (self._stop.wait(_PAUSE) or self._hangs.is_set()):
                for sentence in take_ends(self._kit):
                    if sentence not in ends:
                        self.tell(sentence)
                    ends.add(sentence)
                if (now := time.monotonic()) - tidied >= _TIDIED:
                    _tidy(self._kit)
                    tidied = now
                if now - seen >= _ROOM_SEEN:
                    self._look_for_room()
                    self._warn()
                    seen = now
            if child.returncode in self._last:
                self.ended = child.returncode
                self.note(self._last[child.returncode])
                self._stop.set()
            if child.poll() is not None and not self._stop.is_set():
                self.note(f"the process ended with status {child.returncode}; it is started again")
            if self._hangs.is_set() and child.poll() is None and not self._stop.is_set():
                minutes = f"{_HUNG / 60:g} minutes"
                self.tell(
                    f"The process of {self._kit} has answered nothing for {minutes}; it is "
                    "started again."
                )
                child.kill()
            if child.poll() is None:
                child.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(timeout=5)
        _end(_workers(self._kit))

    def _warn(self) -> None:
        """Say what is to be seen to, each time that it is something else."""
        found = set(self._warnings())
        for sentence in sorted(found - self._warned):
            self.tell(sentence)
        self._warned = found

    def _look_for_room(self) -> None:
        """Say that nothing can be written into the kit, and when it can be again."""
        problem = unwritable(self._kit)
        if (problem is not None) == self._full:
            return
        self._full = problem is not None
        sentence = f"{self._kit} has room again."
        if problem is not None:
            remedy = LONGER if problem.errno == errno.EFBIG else "see to its disk"
            sentence = (
                f"{self._kit} takes no files ({problem.strerror}), so that jobs end here and logs "
                f"have gaps; {remedy}."
            )
        self.tell(sentence)


def _tidy(kit: Path) -> None:
    """Keep what a process leaves in its kit from growing for as long as it runs."""
    for name in _LOGS:
        _put_by(kit / name)
    used = _jobs_in_use(kit)
    for place in _JOBS if used is not None else ():
        _clear_jobs(kit / place, used or frozenset())


def _put_by(log: Path) -> None:
    """Begin a log anew that has grown long, for those too who have it open; a copy stays."""
    with contextlib.suppress(OSError):
        if log.stat().st_size > _MOST_BYTES:
            shutil.copyfile(log, log.with_name(f"{log.name}.1"))
            os.truncate(log, 0)


def _jobs_in_use(kit: Path) -> frozenset[str] | None:
    """Return how the ids of jobs begin that go on in a kit, or are to; None: it cannot be told."""
    said = [path.read_text(encoding="utf-8") for path in (kit / "local").glob("runs/*/job.id")]
    for process in _workers(kit):
        with contextlib.suppress(psutil.Error):
            name, words = process.name(), process.cmdline()
            if _SPARE in words and not name.startswith(("spare", "job-")):
                return None  # the system takes no names of processes
            said += [name.removeprefix("job-"), *_JOB.findall(" ".join(words))]
    return frozenset(one[:8] for one in said)


def _clear_jobs(place: Path, used: Collection[str]) -> None:
    """Remove what the jobs before the newest left: their copies of logs and settings."""
    with contextlib.suppress(OSError):
        jobs = [path for path in place.iterdir() if _JOB.fullmatch(path.name) and path.is_dir()]
        jobs.sort(key=lambda path: path.stat().st_mtime)
        for path in jobs[:-_MOST_JOBS]:
            if path.name[:8] not in used:
                shutil.rmtree(path, ignore_errors=True)


def is_running(kit: Path) -> bool:
    """Return whether a process keeps a kit running, or works on after that one was killed."""
    return _keeper(kit) is not None or bool(_workers(kit))


def is_frozen(kit: Path) -> bool:
    """Return whether a process of a kit that runs does nothing, by SIGSTOP or Ctrl-Z."""
    keeper = _keeper(kit)
    return any(_does_nothing(one.pid) for one in (*_workers(kit), *([keeper] if keeper else [])))


def _does_nothing(number: int) -> bool:
    with contextlib.suppress(psutil.Error):
        return bool(psutil.Process(number).status() == psutil.STATUS_STOPPED)
    return False


def running_original(kit: Path) -> Path | None:
    """Return the running kit of which this one is a copy, taken while it ran; None: there is none.

    Both are the same party: two servers with one port, or two sites with one name.
    """
    _, first = _written(kit)
    return first if first != kit.resolve() and first.is_dir() and is_running(first) else None


@contextlib.contextmanager
def at_rest(kit: Path) -> Iterator[None]:
    """Keep a kit from being started while something is done with its files.

    Raises
    ------
    BusyError
        If it is running.
    """
    sentence = f"{kit} is running; stop it with `intarsia federation stop {kit}` first."
    if is_running(kit):
        raise BusyError(sentence)
    with alone(kit / _LOCK, sentence):
        yield


def check_user(kit: Path) -> None:
    """Refuse to write as root into a kit that another user runs, who could not read it.

    Raises
    ------
    ExperimentError
        If its process is another user's, or it does not run and its folder is.
    """
    if os.geteuid() or not kit.is_dir():
        return
    keeper, owner = _keeper(kit), kit.stat().st_uid
    with contextlib.suppress(psutil.Error):
        owner = owner if keeper is None else keeper.uids().effective
    if owner:
        name = _name_of(owner)
        word = f"'#{name}'" if name.isdecimal() else name
        raise ExperimentError(_OTHERS.format(kit=kit, name=name, word=word))


def check_access(kit: Path) -> None:
    """Refuse to start a kit for a user who may not use its files: its process would try for ever.

    Raises
    ------
    ExperimentError
        If another user's file is not to be read, or nothing to be written into a folder.
    """
    keys = [*kit.glob("startup/*.key"), *kit.glob("admin/startup/*.key")]
    wanted = [(one, os.W_OK | os.X_OK, "write into") for one in (kit, kit / "local")]
    wanted += [(one, os.R_OK, "read") for one in (kit / "local" / "site.toml", *keys)]
    for one, mode, verb in wanted:
        own = one.is_dir() or one.is_file()
        if own and not os.access(one, mode) and (owner := one.stat().st_uid) != os.geteuid():
            me, other = _name_of(os.geteuid()), _name_of(owner)
            raise ExperimentError(
                f"{one} is the user {other}'s, and {me} may not {verb} it; start the kit as "
                f"{other}, or give it to {me}: sudo chown -R {me} {kit}."
            )


def _name_of(user: int) -> str:
    """Return a user's name; of one of a container, or of another machine, the number."""
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)


def stop(kit: Path, seconds: float = 90.0) -> bool:
    """Stop what keeps a kit running; return whether anything did.

    Raises
    ------
    BusyError
        If it has not come to its end in time.
    """
    keeper = _keeper(kit)
    if keeper is None:
        left = _workers(kit)  # of a keeper that was killed
        _end(left)
        return bool(left)
    keeper.terminate()
    with contextlib.suppress(psutil.Error):
        keeper.resume()  # one that is frozen is told of nothing
    end = time.monotonic() + seconds
    while not _is_over(keeper):
        if time.monotonic() > end:
            raise BusyError(
                f"{kit} was told to stop, and has not come to its end in {seconds:g} seconds; see "
                f"`intarsia federation logs {kit}`, and end the process {keeper.pid} if that stays "
                "so."
            )
        time.sleep(0.1)
    return True


def _is_over(process: psutil.Process) -> bool:
    """Return whether a process has ended, also where who started it has not heard of it yet."""
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def _written(kit: Path) -> tuple[tuple[int, float | None] | None, Path]:
    """Return what intarsia.pid says: the number of a process and its begin, and the kit it runs.

    Earlier versions wrote no begin, or the number alone: the kit is then the one with the file.
    """
    try:
        own, _, place = (kit / _PID).read_bytes().partition(b"\n")
        number, *begun = own.split()
        process = int(number), float(begun[0]) if begun else None
        return process, Path(os.fsdecode(place.removesuffix(b"\n"))) if place else kit.resolve()
    except (OSError, ValueError):
        return None, kit.resolve()


def _begun_at(process: psutil.Process) -> float:
    """Return when a process began, in seconds since the system did: clocks are set meanwhile."""
    return float(process.create_time() - psutil.boot_time())


def _keeper(kit: Path) -> psutil.Process | None:
    written, place = _written(kit)
    # a copy has the file of the kit that it was taken from; one that was moved has its own
    if written is None or (place != kit.resolve() and place.is_dir()):
        return None
    number, begun = written
    try:
        found = psutil.Process(number)
        # a number may be given to another process since
        if begun is None:
            ours = found.create_time() <= (kit / _PID).stat().st_mtime
        else:
            ours = abs(_begun_at(found) - begun) < _SAME
    except (OSError, ValueError, psutil.Error):
        return None
    return found if ours and found.pid != os.getpid() and not _is_over(found) else None


def _workers(kit: Path) -> list[psutil.Process]:
    """Return the processes that work in a kit: their command has its whole path as a word.

    Its name alone is a word of any federation's that has a site of this name.
    """
    place, found = str(kit.resolve()), list[psutil.Process]()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            words = process.cmdline()
            if place in words and any(word.startswith(_MODULE) for word in words):
                found.append(process)
    return found


def _end(processes: Sequence[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(processes, timeout=10)
