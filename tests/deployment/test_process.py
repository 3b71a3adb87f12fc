from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import threading
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from intarsia.cli.main import main
from intarsia.engines.transports.connection import note_end
from intarsia.errors import BusyError, ExperimentError
from intarsia.results import lock as alone

pytest.importorskip("psutil")

import psutil

from command_line import one_error
from intarsia.deployment import process as kit_process
from intarsia.deployment.federation_file import FederationFile, finish_kits
from intarsia.engines.remote.caller import RetryPolicy


def test_a_process_that_cannot_be_started_is_started_when_it_can(tmp_path, monkeypatch):
    monkeypatch.setattr(kit_process, "_LONGEST", 0.05)
    monkeypatch.setattr(kit_process, "_PAUSE", 0.05)
    (tmp_path / "transfer").write_text("no folder can be made here, as on a full disk")
    told, said = threading.Event(), []

    def report(sentence):
        said.append(sentence)
        told.set()
        raise OSError("what is said goes to the same disk")

    code = "import pathlib, time; pathlib.Path('runs').touch(); time.sleep(3600)"
    process = kit_process.KitProcess(tmp_path, lambda: [sys.executable, "-c", code], report)
    pause = threading.Event()
    with process.running():
        assert told.wait(600)
        assert not process.stopped()
        (tmp_path / "transfer").unlink()
        for _ in range(12_000):
            if (tmp_path / "runs").exists():
                break
            pause.wait(0.05)
        assert (tmp_path / "runs").exists()
    assert "could not be kept running ([Errno 17] File exists" in said[0]


def test_a_kit_on_a_full_disk_is_started_when_there_is_room(tmp_path, monkeypatch, capfd):
    pytest.importorskip("nvflare", reason="nvflare is not installed: pip install intarsia[nvflare]")
    monkeypatch.setattr(kit_process, "_LONGEST", 0.05)
    monkeypatch.setattr(kit_process, "_PAUSE", 0.05)
    kit, code = tmp_path / "bank", "import pathlib; pathlib.Path('runs').touch()"
    (kit / "local").mkdir(parents=True)
    (kit / "local" / "site.toml").write_text('[site]\nname = "bank"\nplain = true\n')
    full, write, tries = "No space left on device", Path.write_bytes, []

    def written(path, data):
        """Write as on a disk that has room from the third try on, and that is tried for ever."""
        if path.name == "intarsia.pid":
            tries.append(path)
            if len(tries) < 3:
                raise OSError(errno.ENOSPC, full)  # as of a write, which names no file
        return write(path, data)

    def command(*_, **__):
        if len(tries) < 4:
            raise OSError(errno.ENOSPC, full, str(kit / "local" / "resources.json"))
        return [sys.executable, "-c", code]

    def wait(*_):
        pause = threading.Event()
        while not (kit / "runs").exists():
            pause.wait(0.05)
        number, place = (kit / "intarsia.pid").read_text().split("\n", 1)
        assert (int(number.split()[0]), place) == (os.getpid(), f"{kit}\n")

    monkeypatch.setattr(Path, "write_bytes", written)
    monkeypatch.setattr("intarsia.engines.transports.nvflare.parent_command", command)
    monkeypatch.setattr(kit_process.KitProcess, "wait", wait)
    assert main(["federation", "site", str(kit)]) == 0
    said = capfd.readouterr().err
    what = f"The process of {kit} could not be kept running ([Errno 28] {full}"
    again = "); see to that: it is tried again every half a minute at the latest."
    assert said.count(what + again) == 2
    assert said.count(f"{what}: '{kit / 'local' / 'resources.json'}'{again}") == 1
    assert not (kit / "intarsia.pid").exists()


@pytest.mark.skipif(not Path("/proc/self/comm").exists(), reason="processes take no names here")
def test_what_a_process_leaves_is_kept_short_while_it_runs(tmp_path, monkeypatch):
    """A server runs for months; before, logs were cut and jobs removed when it was started."""
    monkeypatch.setattr(kit_process, "_PAUSE", 0.05)
    monkeypatch.setattr(kit_process, "_TIDIED", 0.1)
    monkeypatch.setattr(kit_process, "_MOST_BYTES", 1000)
    monkeypatch.setattr(kit_process, "_MOST_JOBS", 2)
    numbers = range(10, 18)
    names = [f"cd46f9{number}-21d4-4605-a065-203a415aafcc" for number in numbers]
    in_store, store = tmp_path / "local" / "runs" / "calm", tmp_path / "storage" / "jobs-storage"
    in_store.mkdir(parents=True)
    (in_store / "job.id").write_text(names[1])
    # one job goes on in a process that has taken its name, and one whose command has its id
    code = f"""
import subprocess, sys, time
from pathlib import Path
wait = "import time, sys; from pathlib import Path; comm = Path('/proc/self/comm'); "
wait += "comm.write_text(sys.argv[1]); Path(sys.argv[1]).touch(); time.sleep(3600)"
for name, module in (("job-{names[2][:8]}", "{kit_process._SPARE}"), ("python", "{names[3]}")):
    words = ["-c", wait, name, module, "nvflare.private.fed.app", {str(tmp_path)!r}]
    subprocess.Popen([sys.executable, *words])
while not (Path("job-{names[2][:8]}").exists() and Path("python").exists()):
    time.sleep(0.02)
for name in {names!r}:
    for place in (Path("."), Path("storage/jobs-storage")):
        (place / name).mkdir(parents=True)
    time.sleep(0.02)
while True:
    Path("audit.log").open("a").write("a" * 1001)
    print("b" * 1001, flush=True)
    time.sleep(0.3)
"""
    process = kit_process.KitProcess(tmp_path, lambda: [sys.executable, "-c", code])
    logs = [tmp_path / f"{name}.log" for name in ("audit", "console")]
    kept, pause = {*names[1:4], *names[-2:]}, threading.Event()
    with process.running():
        for _ in range(1200):
            there = [
                {path.name for path in place.iterdir()} & set(names)
                for place in (tmp_path, store)
                if place.is_dir()
            ]
            cut = all(log.with_name(f"{log.name}.1").is_file() for log in logs)
            if cut and there == [kept] * 2:
                break
            pause.wait(0.05)
        assert there == [kept] * 2
        assert cut
    assert all(log.stat().st_size < 3000 for log in logs)
    assert (tmp_path / "console.log.1").read_bytes().startswith(b"bbb")


@contextlib.contextmanager
def no_room():
    """Let this process write no file of more than 1 MB."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_kit_whose_disk_is_full_says_so_itself_and_when_it_is_not(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(kit_process, "_PAUSE", 0.01)
    monkeypatch.setattr(kit_process, "_ROOM_SEEN", 0.01)
    for folder in ("bank/local", "bank/startup"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "bank/local/site.toml").write_text('[site]\nname = "bank"\nplain = true\n')
    monkeypatch.setattr(kit_process, "is_running", lambda kit: True)  # it is not this process
    said, heard = [], threading.Event()
    process = kit_process.KitProcess(
        tmp_path / "bank",
        lambda: [sys.executable, "-c", "import time; time.sleep(3600)"],
        lambda one: (said.append(one), heard.set()),
    )
    with process.running():
        with no_room():
            assert heard.wait(600)
            assert main(["federation", "status", str(tmp_path / "bank")]) == 0
            heard.clear()
        assert heard.wait(600)
    full = f"{tmp_path / 'bank'} takes no files (File too large), so that jobs end here"
    assert said == [
        f"{full} and logs have gaps; let files be longer (ulimit -f, or LimitFSIZE= of its "
        "service).",
        f"{tmp_path / 'bank'} has room again.",
    ]
    # whether the server answers is not known: the site's process could not write it down
    shown = capfd.readouterr().err.splitlines()
    assert f"  disk: {full}; see to it" in shown
    assert "connected" not in " ".join(shown)
    events = (tmp_path / "bank/events.log").read_text()
    assert all(one in events for one in said)


def test_a_full_disk_does_not_keep_a_kit_from_being_stopped(tmp_path):
    def command():
        raise OSError(errno.ENOSPC, "No space left on device")

    said = []
    process = kit_process.KitProcess(
        tmp_path, command, lambda one: (said.append(one), process.stop())
    )
    with process.running():
        process.wait()
    assert len(said) == 1
    assert not (tmp_path / "intarsia.pid").exists()


def test_a_kit_that_runs_is_not_run_a_second_time(tmp_path, monkeypatch):
    monkeypatch.setattr(alone, "_LONGEST", 0.0)
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    first = kit_process.KitProcess(tmp_path, lambda: command)
    second = kit_process.KitProcess(tmp_path, lambda: command)
    with first.running():
        refused = pytest.raises(BusyError, match="is in use by another process; stop that")
        with refused, second.running():
            pass
        first.stop()
    with second.running():  # the lock went with the first
        second.stop()


def test_what_a_kits_process_knows_of_the_end_of_a_job_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(kit_process, "_PAUSE", 0.01)
    (tmp_path / "local").mkdir()
    note_end(tmp_path, "The process of the job x was ended by SIGKILL.")
    said, told = [], threading.Event()
    process = kit_process.KitProcess(
        tmp_path,
        lambda: [sys.executable, "-c", "import time; time.sleep(3600)"],
        lambda one: (said.append(one), told.set()),
    )
    with process.running():
        assert told.wait(600)
    assert said == ["The process of the job x was ended by SIGKILL."]
    assert said[0] in (tmp_path / "events.log").read_text()


def test_what_is_absent_for_every_job_is_told_once(tmp_path, monkeypatch):
    monkeypatch.setattr(kit_process, "_PAUSE", 0.01)
    (tmp_path / "local").mkdir()
    said, told, last = [], threading.Event(), "The process of the job x was ended by SIGKILL."

    def report(sentence):
        said.append(sentence)
        if sentence == last:
            told.set()
        else:  # the next job comes to the same
            note_end(tmp_path, sentence)
            note_end(tmp_path, last)

    note_end(tmp_path, "A job cannot begin here.")
    command = [sys.executable, "-c", "import time; time.sleep(3600)"]
    process = kit_process.KitProcess(tmp_path, lambda: command, report)
    with process.running():
        assert told.wait(600)
    assert said == ["A job cannot begin here.", last]


def test_a_process_that_can_do_nothing_is_not_started_until_it_can(tmp_path, monkeypatch):
    monkeypatch.setattr(kit_process, "_LONGEST", 0.01)
    monkeypatch.setattr(kit_process, "_PAUSE", 0.01)
    monkeypatch.setattr(kit_process, "_HUNG", -1.0)
    code = "import pathlib, time; pathlib.Path('runs').open('a').write('x'); time.sleep(3600)"
    said, looks, hindered = [], threading.Semaphore(0), [True]

    def warnings():
        looks.release()
        return ["its certificate ended"] if hindered[0] else []

    process = kit_process.KitProcess(
        tmp_path,
        lambda: [sys.executable, "-c", code],
        said.append,
        hindered=lambda: hindered[0],
        warnings=warnings,
    )
    with process.running():
        for _ in range(3):
            assert looks.acquire(timeout=600)
        assert not (tmp_path / "events.log").read_text().count("started")
        hindered[0] = False
        for _ in range(12_000):
            if (tmp_path / "runs").exists():
                break
            looks.acquire(timeout=0.05)
        hindered[0] = True
        process.silent(3600.0)  # it answers nothing, and another one would do so, too
        assert not process._hangs.is_set()
        hindered[0] = False
        process.silent(3600.0)
        assert process._hangs.is_set()
    assert (tmp_path / "runs").read_text().startswith("x")
    assert said[0] == "its certificate ended"
    assert said.count("its certificate ended") == 1


def test_a_process_that_ends_for_good_is_not_started_again(tmp_path):
    code = "import pathlib, sys; pathlib.Path('runs').open('a').write('x'); sys.exit(75)"
    last = {75: "A newer process has this kit."}
    process = kit_process.KitProcess(tmp_path, lambda: [sys.executable, "-c", code], last=last)
    with process.running():
        process.wait()
    assert process.ended == 75
    assert (tmp_path / "runs").read_text() == "x"
    assert "A newer process has this kit.\n" in (tmp_path / "events.log").read_text()


@pytest.fixture
def kept(tmp_path):
    """Return the folder of a kit that a process of its own runs, which is killed at the end."""
    kit = tmp_path / "kits" / "server"
    kit.mkdir(parents=True)
    code = (
        "import pathlib, sys; from intarsia.deployment.process import KitProcess\n"
        "command = [sys.executable, '-c', 'import sys; sys.stdin.read()']\n"
        "process = KitProcess(pathlib.Path(sys.argv[1]), lambda: command)\n"
        "with process.running(): print(flush=True); process.wait()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code, kit], **pipes) as keeper:
        keeper.stdout.readline()  # it runs
        yield kit
        keeper.kill()


def test_a_process_that_hangs_is_started_again(tmp_path, monkeypatch):
    monkeypatch.setattr(kit_process, "_PAUSE", 0.01)
    monkeypatch.setattr(kit_process, "_HUNG", 0.2)
    (tmp_path / "local").mkdir()
    code = (
        "import os, signal, sys; print('x', file=open('runs', 'a'))\n"
        "len(open('runs').readlines()) < 2 and os.kill(os.getpid(), signal.SIGSTOP)\n"
        "import time; time.sleep(3600)"
    )
    said = []
    process = kit_process.KitProcess(tmp_path, lambda: [sys.executable, "-c", code], said.append)
    pause = threading.Event()
    with process.running():
        for _ in range(12_000):
            if process.frozen():
                break
            pause.wait(0.05)
        assert process.frozen()
        process.silent(0.1)  # that is not long
        pause.wait(0.3)
        assert not said
        process.silent(0.3)
        for _ in range(12_000):
            if (tmp_path / "runs").read_text() == "x\nx\n":
                break
            pause.wait(0.05)
        assert (tmp_path / "runs").read_text() == "x\nx\n"
        assert not process.frozen()
    hangs = f"The process of {tmp_path} has answered nothing for 0.00333333 minutes"
    assert said == [f"{hangs}; it is started again."]


def of_another_user(kit, monkeypatch):
    """Let a kit be somebody's who is not root, and this process root."""
    if os.geteuid():
        monkeypatch.setattr(os, "geteuid", lambda: 0)
    else:
        os.chown(kit, 65534, -1)


def test_root_is_told_whose_a_kit_is_before_it_writes_what_that_user_cannot_read(
    tmp_path, monkeypatch, capfd
):
    own, file = tmp_path / "server", tmp_path / "small.toml"
    (own / "local").mkdir(parents=True)
    (own / "local" / "site.toml").write_text('[site]\nname = "server"\n')
    described = FederationFile(name="two", sites=("bank",), patience=RetryPolicy())
    finish_kits(described, {"server": own})
    file.write_text('[experiment]\nname = "small"\n[algorithm]\nname = "hyfdca"\n')
    before = sorted(own.rglob("*"))
    of_another_user(own, monkeypatch)
    for words in (
        ("submit", own, file),
        ("schedule", own, file),
        ("revoke", own, "bank"),
        ("approve", own),
        ("deny", own),
        ("ping", own),
    ):
        assert main(["federation", *map(str, words)]) == 2
        said = one_error(capfd.readouterr().err)
        assert f"{own} is the user " in said
        assert "give the command as that user, by sudo -u " in said
    assert sorted(own.rglob("*")) == before


@pytest.mark.parametrize(
    ("file", "verb"),
    [
        (".", "write into"),
        ("local", "write into"),
        ("local/site.toml", "read"),
        ("startup/client.key", "read"),
        ("admin/startup/client.key", "read"),
    ],
)
@pytest.mark.parametrize("program", ["site", "server"])
def test_a_user_who_may_not_use_a_kits_files_is_told_whose_they_are(
    program, file, verb, tmp_path, monkeypatch, capfd
):
    kit = tmp_path / "bank"
    for folder in ("local", "startup", "admin/startup"):
        (kit / folder).mkdir(parents=True)
    for one in ("local/site.toml", "startup/client.key", "admin/startup/client.key"):
        (kit / one).write_text("")
    described = FederationFile(name="two", sites=("bank",), patience=RetryPolicy())
    finish_kits(described, {"server" if program == "server" else "bank": kit})
    kit_process.check_access(kit)
    access = os.access
    closed = kit / file
    monkeypatch.setattr(os, "access", lambda one, mode: one != closed and access(one, mode))
    kit_process.check_access(kit)  # of the user's own: what opens it says so
    monkeypatch.setattr(os, "geteuid", lambda: 123456)
    assert main(["federation", program, str(kit)]) == 2
    said = one_error(capfd.readouterr().err)
    assert said.startswith(f"error: {closed} is the user ")
    assert f"'s, and 123456 may not {verb} it; start the kit as " in said
    assert said.endswith(f", or give it to 123456: sudo chown -R 123456 {kit}.")


def test_root_goes_on_with_a_kit_that_root_runs_whosever_its_folder_is(kept, monkeypatch):
    of_another_user(kept, monkeypatch)
    if os.getuid():  # then so is what runs it
        with pytest.raises(ExperimentError, match="is the user"):
            kit_process.check_user(kept)
    else:
        kit_process.check_user(kept)


def test_a_kit_that_is_frozen_says_so_and_is_stopped_all_the_same(kept, capfd):
    (kept / "local").mkdir()
    keeper = psutil.Process(int((kept / "intarsia.pid").read_text().split()[0]))
    assert not kit_process.is_frozen(kept)
    keeper.suspend()
    pause = threading.Event()
    for _ in range(12_000):  # the system takes a moment
        if kit_process.is_frozen(kept):
            break
        pause.wait(0.05)
    assert kit_process.is_frozen(kept)
    (kept / "local/site.toml").write_text("")
    assert main(["federation", "status", str(kept)]) == 0
    assert "its process does nothing, stopped by Ctrl-Z or SIGSTOP" in capfd.readouterr().err
    assert kit_process.stop(kept)
    assert keeper.wait(0.1) == 0  # it has ended, by itself


@pytest.mark.parametrize("step", [3600, -3600])
def test_a_kit_is_stopped_whose_clock_was_set_since(kept, monkeypatch, step):
    """Such as by NTP, after the system has started the kit's process."""
    boot = psutil.boot_time()
    monkeypatch.setattr(psutil._psplatform, "boot_time", lambda: boot + step)
    assert kit_process.stop(kept)
    assert not kit_process.is_running(kept)


@pytest.mark.parametrize("begun", ["", " 12.50"])
def test_a_number_that_another_process_has_since_is_no_kit_s(kept, begun):
    file = kept / "intarsia.pid"
    own = file.read_text()
    number, place = own.split("\n", 1)
    file.write_text(f"{number.split()[0]}{begun}\n{place}")
    if not begun:  # as an earlier version wrote it, before that process began
        os.utime(file, (1e9, 1e9))
    assert not kit_process.is_running(kept)
    file.write_text(own)
    assert kit_process.is_running(kept)


def test_a_process_that_ended_is_over_whether_its_parent_has_heard_of_it_or_not(tmp_path):
    """Such as process 1 of a container, which waits for nobody."""
    with subprocess.Popen(["sleep", "600"]) as child:
        begun = kit_process._begun_at(psutil.Process(child.pid))
        written = f"{child.pid} {begun:.2f}\n{tmp_path.resolve()}\n"
        (tmp_path / "intarsia.pid").write_text(written)
        assert kit_process.is_running(tmp_path)
        assert kit_process.stop(tmp_path, 30)
        assert child.returncode is None  # nobody has asked the system
        assert psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE
        assert not kit_process.is_running(tmp_path)


def test_a_kit_that_does_not_stop_is_not_said_to_have_stopped(kept, monkeypatch):
    monkeypatch.setattr(psutil.Process, "terminate", lambda self: None)
    with pytest.raises(BusyError, match="was told to stop, and has not come to its end in"):
        kit_process.stop(kept, 0.1)


def test_a_copy_takes_no_process_of_its_original_for_its_own(kept):
    copy = kept.with_name("other")
    shutil.copytree(kept, copy)
    assert kit_process.is_running(kept)
    assert not kit_process.is_running(copy)
    assert not kit_process.stop(copy)
    assert kit_process.is_running(kept)
    assert kit_process.stop(kept)
    assert not kit_process.is_running(kept)


def test_a_copy_is_not_run_while_its_original_runs(kept):
    copy = kept.with_name("other")
    shutil.copytree(kept, copy)
    process = kit_process.KitProcess(copy, lambda: [sys.executable, "-c", ""])
    with pytest.raises(BusyError) as refused, process.running():
        pass
    assert str(refused.value) == (
        f"{copy} is a copy of the kit {kept}, which is running; stop that with `intarsia "
        f"federation stop {kept}`, as one of them runs at a time."
    )
    assert kit_process.is_running(kept)
    kit_process.stop(kept)
    with process.running():  # what the file says of the original holds no more
        number, place = (copy / "intarsia.pid").read_text().split("\n", 1)
        assert (int(number.split()[0]), place) == (os.getpid(), f"{copy}\n")


def test_the_server_of_a_copy_is_refused_as_a_copy_rather_than_for_the_port(
    kept, capfd, monkeypatch
):
    pytest.importorskip("nvflare", reason="nvflare is not installed: pip install intarsia[nvflare]")
    # one that is not refused ends at once
    monkeypatch.setattr("intarsia.deployment.server.supervise", lambda *_, **__: None)
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        service = {"service": {"target": f"localhost:{port}"}, "admin_port": port}
        for name, known in (
            ("startup/fed_server.json", {"servers": [service]}),
            ("local/federation.json", {"sites": ["bank"], "patience": {}}),
        ):
            (kept / name).parent.mkdir()
            (kept / name).write_text(json.dumps(known))
        copy = kept.with_name("other")
        shutil.copytree(kept, copy)
        assert main(["federation", "server", str(copy)]) == 2
    assert f"{copy} is a copy of the kit {kept}, which is running" in capfd.readouterr().err


def test_a_kit_that_was_moved_or_was_started_by_an_earlier_version_is_found_running(kept):
    number = (kept / "intarsia.pid").read_text().split()[0]
    moved = kept.rename(kept.with_name("moved"))
    assert kit_process.is_running(moved)
    (moved / "intarsia.pid").write_text(f"{number}\n")
    assert kit_process.is_running(moved)
    assert kit_process.stop(moved)
    assert not kit_process.is_running(moved)


def test_what_happens_is_told_as_json_too_and_a_full_disk_ends_nothing(tmp_path):
    told = []

    def tell(line):
        told.append(json.loads(line))
        raise OSError(28, "No space left on device")

    process = kit_process.KitProcess(tmp_path, list, events=tell)
    process.note('a "name" with ü\x1b[2J')
    ((line,), (one,)) = (tmp_path / "events.log").read_text().splitlines(), told
    assert line.endswith(one["message"])
    assert "\x1b" not in one["message"]
    assert one["kit"] == tmp_path.name
    moment = datetime.fromisoformat(one["time"])
    assert moment.utcoffset() == timedelta(0)
    assert line.startswith(f"{moment:%Y-%m-%d %H:%M:%S} ")


def test_a_site_without_a_table_is_told_what_it_takes_part_in(tmp_path, monkeypatch, capfd):
    pytest.importorskip("nvflare", reason="nvflare is not installed: pip install intarsia[nvflare]")
    monkeypatch.setattr(alone, "_LONGEST", 0.0)
    (tmp_path / "bank" / "local").mkdir(parents=True)
    settings = tmp_path / "bank" / "local" / "site.toml"
    words = ["federation", "site", str(tmp_path / "bank")]
    (tmp_path / "table.csv").write_text("i,x\n1,2\n")
    table = f'[table]\npath = "{tmp_path / "table.csv"}"\nid = "i"\n'
    for more, told in ((table, 0), ("", 1)):
        settings.write_text(f'[site]\nname = "bank"\nplain = true\n{more}')
        with kit_process.at_rest(tmp_path / "bank"):  # so that nothing is started
            assert main(words) == 2
        said = capfd.readouterr().err
        assert "is in use by another process" in said
        assert said.count("warning: site.toml has no [table], so that bank takes part") == told


@pytest.mark.parametrize("when", ["begins", "ends"])
def test_ctrl_c_ends_the_console_whatever_it_is_at(tmp_path, monkeypatch, capfd, when):
    pytest.importorskip("nvflare", reason="nvflare is not installed: pip install intarsia[nvflare]")
    pytest.importorskip("starlette", reason="pip install intarsia[console]")
    from intarsia.reports import console

    @contextlib.contextmanager
    def served(*_):
        """Serve nothing, and be where somebody presses Ctrl-C, or presses it twice."""
        if when == "ends":
            yield "http://here"
        raise KeyboardInterrupt

    def wait(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(console, "served", served)
    monkeypatch.setattr(threading.Event, "wait", wait)
    (tmp_path / "bank" / "local").mkdir(parents=True)
    (tmp_path / "bank" / "local" / "site.toml").write_text('[site]\nname = "bank"\nplain = true\n')
    assert main(["federation", "console", str(tmp_path / "bank")]) == 0
    assert "stopped" not in capfd.readouterr().err


def test_what_the_library_says_of_a_lost_server_is_not_shown(tmp_path):
    """Nobody takes its warnings in our commands, and Python would write them to the terminal."""
    pytest.importorskip("nvflare", reason="nvflare is not installed: pip install intarsia[nvflare]")
    code = (
        "import pathlib\n"
        "from intarsia.engines.transports.nvflare import Jobs\n"
        "from nvflare.fuel.f3.cellnet import core_cell\n"
        "from nvflare.fuel.utils.log_utils import get_obj_logger\n"
        "Jobs(pathlib.Path('admin'))\n"
        "get_obj_logger(core_cell.CoreCell).warning('no connection to server')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")


def test_a_kit_is_told_from_one_of_the_same_name_elsewhere(tmp_path, monkeypatch):
    words = ["-m", "nvflare.private.fed.app.client.worker_process", "-n", "bank"]
    waiting = "import sys; print(flush=True); sys.stdin.read()"
    (tmp_path / "bank").mkdir()
    monkeypatch.chdir(tmp_path)
    for place, at_work in [("elsewhere/bank", False), (str(tmp_path / "bank"), True)]:
        command = [sys.executable, "-c", waiting, *words, "-w", place]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with subprocess.Popen(command, **pipes) as worker:
            worker.stdout.readline()  # it is there
            for kit in (Path("bank"), tmp_path / "bank"):
                assert kit_process.is_running(kit) == at_work
            worker.stdin.close()
