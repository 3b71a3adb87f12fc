"""Processes that wait for the next job of a kit, and have imported what it needs."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import resource
import shlex
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

pytest.importorskip("nvflare", reason="nvflare is not installed: pip install intarsia[nvflare]")
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_launcher_spec import JobProcessArgs, JobReturnCode
from nvflare.app_common.job_launcher.process_launcher import ProcessJobLauncher

from intarsia.engines.transports import spare
from intarsia.engines.transports.connection import take_ends

JOB = "1b4e28ba-2fa1-11d2-883f-b9a761bde3fb"
TOKEN = "a token of this job"
# Says what it was run with, and whether it had been imported before; ends with a status of its own.
MODULE = """
import json, os, sys
if __name__ != "__main__":
    os.environ["AHEAD"] = "imported"
else:
    found = {"words": sys.argv[1:], "environment": dict(os.environ), "pid": os.getpid()}
    found["read"] = sys.stdin.read()
    open(sys.argv[1], "w").write(json.dumps(found))
    sys.exit(3)
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Let a module take the place of the framework's that runs a job."""
    (tmp_path / "of_a_job.py").write_text(MODULE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    monkeypatch.chdir(tmp_path)
    return "of_a_job"


def context(tmp_path):
    found = FLContext()
    words = {
        JobProcessArgs.EXE_MODULE: ("-m", "of_a_job"),
        JobProcessArgs.WORKSPACE: ("", str(tmp_path / "said.json")),
        JobProcessArgs.JOB_ID: ("-n", JOB),
        JobProcessArgs.AUTH_TOKEN: ("-t", TOKEN),
    }
    found.set_prop(FLContextKey.JOB_PROCESS_ARGS, words, private=True, sticky=False)
    return found


def launcher(tmp_path, monkeypatch, *, waits):
    monkeypatch.setattr(spare, "_PAUSE", 3600.0)
    found = spare.Launcher(str(tmp_path), server=False)
    assert found._spare is None  # this process starts no jobs
    if waits:
        found._module = "of_a_job"
        found._start()
    return found


@pytest.mark.parametrize("name", ["a folder", "Bürö's #1", 'of "quotes" $HOME'])
def test_a_kit_lies_in_a_folder_of_any_name(tmp_path, monkeypatch, module, name):
    own, folder = launcher(tmp_path, monkeypatch, waits=True), tmp_path / name
    folder.mkdir()
    given = context(folder)
    words = {
        **given.get_prop(FLContextKey.JOB_PROCESS_ARGS),
        JobProcessArgs.OPTIONS: ("--set", "secure_train=true org=intarsia"),
    }
    given.set_prop(FLContextKey.JOB_PROCESS_ARGS, words, private=True, sticky=False)
    own.launch_job({"job_id": JOB}, given).wait()
    said = json.loads((folder / "said.json").read_text())
    options = ["--set", "secure_train=true", "org=intarsia"]
    assert said["words"] == [str(folder / "said.json"), "-n", JOB, *options]
    # as the library takes it apart where no process waits
    command = shlex.split(own.get_command({}, given), comments=True)
    assert command == [sys.executable, "-m", module, *said["words"]]


def test_a_job_runs_in_the_process_that_waits_which_knows_nothing_of_it_before(
    tmp_path, monkeypatch, module
):
    own = launcher(tmp_path, monkeypatch, waits=True)
    waiting = psutil.Process(own._spare.process.pid)
    before = waiting.environ(), waiting.cmdline()
    handle = own.launch_job({"job_id": JOB}, context(tmp_path))
    handle.wait()
    said = json.loads((tmp_path / "said.json").read_text())
    assert said["pid"] == waiting.pid
    assert said["words"] == [str(tmp_path / "said.json"), "-n", JOB]
    assert TOKEN in said["environment"].values()
    assert said["environment"]["AHEAD"] == "imported"
    assert said["read"] == ""  # what gave it the job is not its input
    assert TOKEN not in str(before)
    assert own._spare is None  # a process has one job
    assert handle.adapter.poll() == 3
    assert handle.poll() == JobReturnCode.EXECUTION_ERROR


@pytest.mark.parametrize("waits", [False, True])
def test_a_job_for_which_no_process_waits_any_more_starts_its_own(
    tmp_path, monkeypatch, module, waits
):
    own = launcher(tmp_path, monkeypatch, waits=waits)
    if waits:
        own._spare.process.kill()
        own._spare.process.wait()
    monkeypatch.setattr(
        ProcessJobLauncher, "launch_job", lambda *given: SimpleNamespace(adapter=given[1:])
    )
    given = {"job_id": JOB}, context(tmp_path)
    assert own.launch_job(*given).adapter == given


@pytest.mark.parametrize("waits", [False, True])
def test_a_job_whose_process_the_system_ends_is_told_of_and_one_that_is_aborted_is_not(
    tmp_path, monkeypatch, module, waits
):
    """As where memory is short: nobody else would know of it at the site."""
    (tmp_path / "local").mkdir()
    (tmp_path / "of_a_job.py").write_text(
        'import time\nif __name__ == "__main__": time.sleep(3600)\n'
    )
    own, given = launcher(tmp_path, monkeypatch, waits=waits), context(tmp_path)
    no_code = SimpleNamespace(get_app_custom_dir=lambda job: "")
    given.set_prop(FLContextKey.WORKSPACE_OBJECT, no_code, private=True, sticky=False)
    handle = own.launch_job({"job_id": JOB}, given)
    psutil.Process(handle.adapter.pid).kill()
    handle.wait()
    (said,) = take_ends(tmp_path)
    assert said.startswith(f"The process of the job {JOB} was ended by SIGKILL; ")
    assert take_ends(tmp_path) == []
    handle = own.launch_job({"job_id": JOB}, given)
    handle.terminate()
    handle.wait()
    assert take_ends(tmp_path) == []


@pytest.mark.parametrize(
    ("worker", "limited", "problem", "ends"),
    [
        (spare._SITE[0], True, MemoryError(), True),
        (spare._SERVER[0], True, OSError(errno.ENOMEM, "Cannot allocate memory"), True),
        (spare._SITE[0], False, RuntimeError("can't start new thread"), True),
        # its size may be made up by whoever sent it, where this machine has no limit
        (spare._SITE[0], False, MemoryError(), False),
        # whoever is called may say such words
        (spare._SITE[0], True, ConnectionError("MemoryError: can't start new thread"), False),
        (spare._SITE[1], True, MemoryError(), False),  # of a kit, which starts jobs
    ],
)
def test_a_job_ends_where_the_library_goes_on_without_memory_or_threads(
    monkeypatch, worker, limited, problem, ends
):
    """It writes that into its log and tries again, without a word to anybody, for ever."""
    main, ended = SimpleNamespace(__spec__=SimpleNamespace(name=worker)), []
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setattr(spare.os, "_exit", ended.append)
    most = 10**9 if limited else resource.RLIM_INFINITY
    monkeypatch.setattr(spare.resource, "getrlimit", lambda one: (most, most))
    log = logging.Logger("Cell")
    log.addHandler(spare.EndWithoutMemory())
    try:
        raise problem
    except Exception as caught:
        log.error("exception sending request: %s", caught)
    assert ended == [71] * ends


@pytest.mark.parametrize(
    ("memory", "threads", "words"),
    [
        (10**9, 40, "1 GB (ulimit -v) and 40 threads (ulimit -u); raise"),
        (resource.RLIM_INFINITY, 40, "threads, under 40 threads (ulimit -u); raise"),
        (*[resource.RLIM_INFINITY] * 2, "under the limits of its container or service; raise"),
    ],
)
def test_a_job_that_ended_for_want_of_memory_is_told_of_with_the_limits(
    tmp_path, monkeypatch, module, memory, threads, words
):
    (tmp_path / "local").mkdir()
    (tmp_path / "of_a_job.py").write_text('if __name__ == "__main__": raise SystemExit(71)\n')
    own = launcher(tmp_path, monkeypatch, waits=True)
    known = {resource.RLIMIT_AS: memory, resource.RLIMIT_NPROC: threads}
    monkeypatch.setattr(spare.resource, "getrlimit", lambda one: (known[one], known[one]))
    own.launch_job({"job_id": JOB}, context(tmp_path)).wait()
    (said,) = take_ends(tmp_path)
    assert said.startswith(f"The process of the job {JOB} ended, as it got no more memory")
    assert words in said


@pytest.mark.parametrize(
    ("absent", "ends"),
    [("'numpie'", 1), ("'numpie'", 0), ("'a\x1b[31mb'", 0)],
    ids=["at the job, too", "before the job", "an odd name"],
)
def test_a_job_that_lacks_a_library_is_told_of_before_it_begins(
    tmp_path, monkeypatch, module, absent, ends
):
    """As after an upgrade that failed: the library writes it into its log, and tries again."""
    (tmp_path / "local").mkdir()
    lacking = f'raise ModuleNotFoundError("No module named {absent}")\n'
    (tmp_path / "of_a_job.py").write_text(
        lacking if ends else f'if __name__ != "__main__":\n    {lacking}'
    )
    own, end = launcher(tmp_path, monkeypatch, waits=True), time.monotonic() + 60
    while not (said := take_ends(tmp_path)):
        assert time.monotonic() < end
        time.sleep(0.05)
    why = "No module named " + absent.replace("\x1b", "\\x1b")
    install = f'install "intarsia[nvflare]" anew in {sys.prefix}.'
    assert said == [
        f"A job cannot begin here, as Python cannot import what it needs ({why}); {install}"
    ]
    own.launch_job({"job_id": JOB}, context(tmp_path)).wait()
    told = [
        f"The process of the job {JOB} could not begin; the end of {tmp_path / 'console.log'} says "
        "why, as where a library is missing."
    ]
    assert take_ends(tmp_path) == told * ends


def test_only_the_process_that_starts_jobs_has_one_waiting_and_the_next_a_pause_later(
    tmp_path, monkeypatch
):
    made, later = [], []

    def timer(seconds, act):
        later.append((seconds, act))
        return SimpleNamespace(start=lambda: None)

    monkeypatch.setattr(spare, "Spare", lambda *given: made.append(given) or "waits")
    monkeypatch.setattr(spare.threading, "Timer", timer)
    monkeypatch.setattr(
        ProcessJobLauncher, "launch_job", lambda *_: SimpleNamespace(adapter=SimpleNamespace())
    )
    for worker, starter in (spare._SITE, spare._SERVER):
        server = worker == spare._SERVER[0]
        for running in (worker, starter):
            main = SimpleNamespace(__spec__=SimpleNamespace(name=running))
            monkeypatch.setitem(sys.modules, "__main__", main)
            made.clear()
            own = spare.Launcher(str(tmp_path), server=server)
            assert made == [(worker, str(tmp_path))] * (running == starter)
    own._spare = None
    own.launch_job({}, None)
    ((seconds, act),) = later
    assert (seconds, len(made)) == (10.0, 1)
    act()
    act()  # two jobs began meanwhile: one process waits
    assert len(made) == 2


def test_a_process_that_waits_ends_with_the_one_that_started_it_however_that_ends(tmp_path, module):
    script = (
        "import sys, time; from intarsia.engines.transports.spare import Spare; "
        f"print(Spare('of_a_job', {str(tmp_path)!r}).process.pid, flush=True); time.sleep(3600)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as parent:
        try:
            waiting = psutil.Process(int(parent.stdout.readline()))
            end = time.monotonic() + 30
            # as `process.py` knows those of a kit; it has no words while it begins
            while str(tmp_path) not in waiting.cmdline():
                assert time.monotonic() < end
                time.sleep(0.05)
        finally:
            parent.kill()
    try:
        waiting.wait(120)
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            waiting.kill()
    assert not Path(tmp_path, "said.json").exists()
