"""A process that waits for the next job of a kit, and has imported what jobs need.

NVIDIA FLARE starts a process for each job at the server and at each site. Most of the time until it
works are imports, some three seconds of a core each. So `Launcher`, which a kit names in place of
the framework's own, starts the next job's process ahead. It gets its command and its credentials
when the job begins; before that it knows none. A job has one process, and a process one job.

A spare process ends when whoever started it does, killed or not: its input ends then.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import json
import logging
import os
import resource
import runpy
import shlex
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from signal import SIGABRT, SIGBUS, SIGKILL, SIGSEGV
from typing import Any, Final

from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_launcher_spec import JobHandleSpec, JobProcessArgs
from nvflare.app_common.job_launcher.process_launcher import ProcessHandle, ProcessJobLauncher
from nvflare.fuel.common.exit_codes import ProcessExitCode
from nvflare.utils.job_launcher_utils import (
    get_client_job_args,
    get_credential_env,
    get_server_job_args,
)
from nvflare.utils.process_utils import ProcessAdapter

from intarsia.engines.transports import connection

_FED: Final = "nvflare.private.fed.app"
# What a job's process runs, and whose process starts it. Each imports what it needs at a job.
_SERVER: Final = f"{_FED}.server.runner_process", f"{_FED}.server.server_train"
_SITE: Final = f"{_FED}.client.worker_process", f"{_FED}.client.client_train"
_NEEDED: Final = {
    _SERVER[0]: ("nvflare.collab.runtime.controller",),
    _SITE[0]: ("nvflare.collab.runtime.executor",),
}
_PAUSE: Final = 10.0  # seconds after a job's start, which takes all cores, until the next spare's
# By exit status: how a process is ended from without, for want of memory by the first.
_KILLED: Final = {-one: one.name for one in (SIGKILL, SIGSEGV, SIGBUS, SIGABRT)}
# of a job's process that ends itself, as the system gives it no more; EX_OSERR of sysexits.h
_REFUSED: Final = 71
# of a process whose modules cannot be imported, by Python's word and by the library's
_NOT_BEGUN: Final = 1, ProcessExitCode.CONFIG_ERROR
_ADDRESSES: Final = resource.RLIMIT_AS
_NO_THREAD: Final = "can't start new thread"  # what Python says, and no class of its own
_NAME_LETTERS: Final = 8  # of a job's id, by which ps and top call its process


def component(kit: Path, *, server: bool, ahead: bool = True) -> Mapping[str, Any]:
    """Return what a kit's resources say of the launcher; `ahead`: a process waits for a job."""
    return {
        "id": "process_launcher",
        "path": f"{__name__}.Launcher",
        "args": {"kit": str(kit), "server": server, "ahead": ahead},
    }


class Handle(ProcessHandle):  # type: ignore[misc]  # the library has no types
    """A job's process, of which it is written down if another than the library ends it."""

    def __init__(self, adapter: ProcessAdapter, kit: Path, job: str) -> None:
        super().__init__(process_adapter=adapter)
        self._kit, self._job, self._ended = kit, job, False

    def terminate(self) -> None:
        """End the process."""
        self._ended = True
        super().terminate()

    def wait(self) -> None:
        """Wait until the process has ended."""
        super().wait()
        status = self.adapter.poll()
        if status in _KILLED and not self._ended:
            connection.note_end(
                self._kit,
                f"The process of the job {self._job} was ended by {_KILLED[status]}; where that is "
                "the system's for want of memory, give this machine or its container more, or let "
                "fewer jobs run at a time. The server begins another job.",
            )
        elif status in _NOT_BEGUN and not self._ended:
            connection.note_end(
                self._kit,
                f"The process of the job {self._job} could not begin; the end of "
                f"{self._kit / 'console.log'} says why, as where a library is missing.",
            )
        elif status == _REFUSED and not self._ended:
            connection.note_end(
                self._kit,
                f"The process of the job {self._job} ended, as it got no more memory, or no more "
                f"threads, under {_limits()}; raise what is too low (a job without networks takes "
                "2 GB under ulimit -v, besides its table). The server begins another job.",
            )


class EndWithoutMemory(logging.Handler):
    """Ends a job's process in which the library could do something for want of memory or threads.

    The library writes that into its log, and tries the same again, for as long as the job lasts.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """End the process if what is being handled is such a want; of words others may be authors.

        Without a limit a want of memory is of a size that somebody else may have made up.
        """
        running = getattr(sys.modules["__main__"], "__spec__", None)
        if running is None or running.name not in _NEEDED:
            return
        problem = sys.exception()
        wanted = isinstance(problem, MemoryError) or (
            isinstance(problem, OSError) and problem.errno == errno.ENOMEM
        )
        limited = resource.getrlimit(_ADDRESSES)[0] != resource.RLIM_INFINITY
        if (wanted and limited) or (
            isinstance(problem, RuntimeError) and _NO_THREAD in str(problem)
        ):
            os._exit(_REFUSED)


def _limits() -> str:
    """Return in words what the system gives this process, and those that it starts, at most."""
    memory, threads = (resource.getrlimit(one)[0] for one in (_ADDRESSES, resource.RLIMIT_NPROC))
    known = [] if memory == resource.RLIM_INFINITY else [f"{memory / 1e9:.2g} GB (ulimit -v)"]
    known += [] if threads == resource.RLIM_INFINITY else [f"{threads:,} threads (ulimit -u)"]
    return " and ".join(known) if known else "the limits of its container or service"


class Launcher(ProcessJobLauncher):  # type: ignore[misc]  # the library has no types
    """Starts the processes of jobs, each ahead of its job."""

    def __init__(self, kit: str, server: bool, ahead: bool = True) -> None:
        super().__init__()
        self._kit, self._server, self._ahead = kit, server, ahead
        self._module, starter = _SERVER if server else _SITE
        self._lock = threading.Lock()
        self._spare: Spare | None = None
        # a job's process reads the kit's resources, too, and starts nothing
        running = getattr(sys.modules["__main__"], "__spec__", None)
        if ahead and running is not None and running.name == starter:
            self._start()

    def get_command(self, job_meta: Any, fl_ctx: FLContext) -> str:
        """Return the command of a job's process, whose words may have blanks.

        The library's own has them as they are, and ends where a kit lies in such a folder.
        """
        given = fl_ctx.get_prop(FLContextKey.JOB_PROCESS_ARGS)
        words = [sys.executable]
        for name in get_server_job_args() if self._server else get_client_job_args():
            option, value = given.get(name) or ("", "")
            several = name == JobProcessArgs.OPTIONS
            words += [option, *(shlex.split(str(value)) if several else [str(value)])]
        return shlex.join(word for word in words if word)

    def launch_job(self, job_meta: Any, fl_ctx: FLContext) -> JobHandleSpec:
        """Give the job to the spare process, or start one for it where there is none."""
        job = str(job_meta.get("job_id", ""))
        with self._lock:
            spare, self._spare = self._spare, None
        if self._ahead:
            later = threading.Timer(_PAUSE, self._start)
            later.daemon = True
            later.start()
        if spare is not None:
            words = shlex.split(self.get_command(job_meta, fl_ctx))
            own = get_credential_env(fl_ctx.get_prop(FLContextKey.JOB_PROCESS_ARGS))
            with contextlib.suppress(OSError):  # it has ended
                spare.begin(words[3:], {**os.environ, **own}, job)
                return Handle(ProcessAdapter(process=spare.process), Path(self._kit), job)
        return Handle(super().launch_job(job_meta, fl_ctx).adapter, Path(self._kit), job)

    def _start(self) -> None:
        with self._lock, contextlib.suppress(OSError):  # for want of memory: a job starts its own
            if self._spare is None:
                self._spare = Spare(self._module, self._kit)


class Spare:
    """A process that waits to run a module with arguments that are not known yet."""

    def __init__(self, module: str, kit: str) -> None:
        # `process.py` knows a kit's processes by these words
        words = [sys.executable, "-u", "-m", __name__, module, kit]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, start_new_session=True)

    def begin(self, words: Sequence[str], environment: Mapping[str, str], job: str) -> None:
        """Let it run, with such arguments; OSError if it has ended."""
        assert self.process.stdin is not None  # as above
        given = {"words": list(words), "environment": dict(environment), "job": job}
        try:
            with self.process.stdin as line:
                line.write(json.dumps(given).encode() + b"\n")
        except OSError:
            self.process.wait()
            raise


def main() -> None:
    """Import what a job needs, wait for the job and run it; end if there is to be none."""
    module, kit = sys.argv[1:3]
    _name("spare")
    _import(module, Path(kit))
    line = sys.stdin.buffer.readline()
    if not line.endswith(b"\n"):
        return  # whoever started this has ended
    given = json.loads(line)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.update(given["environment"])
    _name(f"job-{given['job'][:_NAME_LETTERS]}")
    sys.argv = [module, *given["words"]]
    sys.modules.pop(module, None)  # it is run, as it would be by its name
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _import(module: str, kit: Path) -> None:
    """Import what a job's process does; what is absent is said before there is a job.

    Whatever else is wrong is said by the job that needs it.
    """
    with contextlib.suppress(Exception), connection.telling_of_absent(kit):
        from intarsia.engines.transports import nvflare

        nvflare.without_tensors()
        for name in (module, *_NEEDED.get(module, ())):
            importlib.import_module(name)
        nvflare.entry_point(Path("local"), "job")


def _name(name: str) -> None:
    """Let ps and top say what this process is for, where they can."""
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(name, encoding="utf-8")


if __name__ == "__main__":
    main()
