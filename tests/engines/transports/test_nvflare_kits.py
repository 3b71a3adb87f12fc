"""What a kit of NVIDIA FLARE names by dotted names is there, in kits of older versions too."""

from __future__ import annotations

import gc
import importlib
import json
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("nvflare", reason="nvflare is not installed: pip install intarsia[nvflare]")

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey, ReservedKey
from nvflare.apis.fl_context import FLContext
from nvflare.collab.runtime import controller
from nvflare.fuel.f3.streaming.byte_receiver import RxTask
from nvflare.private.fed.client import training_cmds

from intarsia.cli import doctor
from intarsia.cli.main import main
from intarsia.deployment import client_folder, client_setup, server
from intarsia.deployment.federation_file import FederationFile, finish_kits
from intarsia.engines.remote.caller import RetryPolicy
from intarsia.engines.transports import kits as kit_files
from intarsia.engines.transports import nvflare, validity
from intarsia.errors import ExperimentError

# as the version before the packages wrote it into local/resources.json
OLD = (
    "nvflare.collab.runtime.controller.CollabController",
    "nvflare.collab.runtime.executor.CollabExecutor",
    "intarsia.engines.nvflare.ServerSide",
    "intarsia.engines.nvflare.SiteSide",
)


def resolved(name: str) -> Any:
    module, _, last = name.rpartition(".")
    return getattr(importlib.import_module(module), last)


def class_paths(value: Any) -> Iterator[str]:
    """Yield the class paths anywhere in a configuration."""
    if isinstance(value, dict):
        for key, one in value.items():
            if key == "path" and isinstance(one, str) and one.startswith(("nvflare.", "intarsia.")):
                yield one
            yield from one if key == "class_allow_list" else class_paths(one)
    elif isinstance(value, list):
        for one in value:
            yield from class_paths(one)


@pytest.fixture(scope="module")
def kits(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("kits")
    return dict(kit_files.provisioned("two", "localhost", (18002, 18003), ["bank"], folder))


def certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def test_renewed_certificates_are_new_ones_of_the_same_authority(kits, monkeypatch):
    folder = kits["server"].parent
    given, known = ("two", "localhost", folder), ("server", "bank")
    kept = {path: path.read_bytes() for kit in kits.values() for path in kit.rglob("*.*")}
    monkeypatch.setattr(kit_files, "_DAYS", 361)  # a day later than those before
    written, end = kit_files.renewed(*given, ["bank"], known)
    assert {path: path.read_bytes() for path in kept} == kept  # the others go on
    assert sorted(path.relative_to(written).as_posix() for path in written.rglob("*.*")) == [
        "bank/startup/client.crt",
        "bank/startup/client.key",
        "bank/startup/rootCA.pem",
    ]
    before = certificate(kits["bank"] / "startup" / "client.crt")
    after = certificate(written / "bank" / "startup" / "client.crt")
    authority = certificate(kits["bank"] / "startup" / "rootCA.pem")
    after.verify_directly_issued_by(authority)
    assert (after.subject, after.issuer) == (before.subject, before.issuer)
    assert after.serial_number != before.serial_number
    assert after.public_key() != before.public_key()
    key = serialization.load_pem_private_key(
        (written / "bank" / "startup" / "client.key").read_bytes(), None
    )
    assert key.public_key() == after.public_key()
    assert before.not_valid_after_utc < after.not_valid_after_utc == end
    assert authority.not_valid_after_utc - end > timedelta(days=3000)
    kit_files.renewed(*given, ["server"], known)  # with the administrator's
    for path in ("server/startup/server.crt", "server/admin/startup/client.crt"):
        certificate(written / path).verify_directly_issued_by(authority)


def test_a_server_keeps_its_key_when_its_certificate_is_renewed(kits):
    """What it signed for sites that are connected is valid afterwards."""
    folder = kits["server"].parent
    written, _ = kit_files.renewed("two", "localhost", folder, ["server"], ("server", "bank"))
    before, after = (
        certificate(kit / "startup" / "server.crt") for kit in (kits["server"], written / "server")
    )
    assert after.serial_number != before.serial_number
    assert after.public_key() == before.public_key()
    assert not (written / "server" / "startup" / "server.key").exists()  # it stays in the kit
    assert (written / "server" / "admin" / "startup" / "client.key").is_file()


def test_keys_of_participants_lie_in_their_kits_alone(kits):
    folder = kits["server"].parent
    state = folder / ".provisioning" / "kits" / "two" / "state" / "cert.json"
    assert json.loads(state.read_text()).keys() == {"root_cert", "root_pri_key"}
    keys = [path for path in (folder / ".provisioning").rglob("*") if path.name.endswith(".key")]
    assert not keys


def test_an_authority_that_ends_soon_signs_nothing(kits, monkeypatch):
    folder = kits["server"].parent
    monkeypatch.setattr(kit_files, "_SOON_DAYS", 4000)
    with pytest.raises(ExperimentError, match=r"ends on 20\d\d-\d\d-\d\d, and no certificate is"):
        kit_files.renewed("two", "localhost", folder, ["bank"], ["server", "bank"])


def test_no_kit_is_added_where_who_signed_the_others_is_gone(kits):
    folder = kits["server"].parent
    authority = folder / ".provisioning" / "kits" / "two" / "state" / "cert.json"
    known, before = authority.read_bytes(), sorted(folder.rglob("*"))
    authority.unlink()
    with pytest.raises(ExperimentError, match=r"server, bank.*put the folder \.provisioning back"):
        kit_files.provisioned("two", "localhost", (18002, 18003), ["bank", "shop"], folder)
    assert not (folder / "shop").exists()
    authority.write_bytes(known)
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize(
    ("days", "remedy"),
    [(-1, "set it, by NTP"), (361, "if that is right, renew it"), (-0.003, None)],
)
def test_a_certificate_that_is_not_valid_by_the_clock_here_is_said(kits, monkeypatch, days, remedy):
    class Shifted(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(tz) + timedelta(days=days)

    validity.check_certificates(kits["bank"])
    monkeypatch.setattr(validity, "datetime", Shifted)
    for kit in kits.values():
        if remedy is None:
            validity.check_certificates(kit)
            continue
        with pytest.raises(ExperimentError, match=rf"\.(crt|pem) is valid from .*{remedy}"):
            validity.check_certificates(kit)


def test_doctor_names_at_a_server_whose_certificates_end_soon(tmp_path):
    given = "two", "localhost", (18002, 18003), ["bank"], tmp_path
    server = kit_files.provisioned(*given)["server"]
    described = FederationFile(name="two", sites=("bank",), patience=RetryPolicy())
    finish_kits(described, {"server": server})
    soon = datetime.now(UTC) + timedelta(days=9)
    for ends, count in ((soon, 1), (soon + timedelta(days=90), 0)):
        path = server / "local" / "certificates.json"
        path.write_text(json.dumps({"bank": ends.isoformat()}))
        said = [one.said for one in doctor.of_kit(server) if one.state == "problem"]
        assert said.count(f"that of bank ends on {soon:%Y-%m-%d}") == count


def test_nobody_is_asked_with_a_certificate_that_has_ended(kits, monkeypatch, capfd):
    """The framework would print where it failed, at each question."""

    class Later(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(tz) + timedelta(days=361)

    monkeypatch.setattr(validity, "datetime", Later)
    assert not validity.lets_connect(kits["bank"])
    monkeypatch.setattr(nvflare, "_opened", lambda kit: pytest.fail("a session was opened"))
    with socket.create_server(("localhost", 0)) as listens:
        known = {"host": "localhost", "port": listens.getsockname()[1]}
        monkeypatch.setattr(nvflare.json, "loads", lambda _: {"admin": known})
        with pytest.raises(ConnectionError, match="does not answer"):
            nvflare.Jobs(kits["server"] / "admin").sites()
    assert capfd.readouterr() == ("", "")


def test_what_the_framework_refuses_is_said_in_a_sentence(tmp_path):
    with pytest.raises(ExperimentError, match=r"wrote no kits: .*a b is ill-formatted"):
        kit_files.provisioned("two", "a b", (18002, 18003), ["bank"], tmp_path)


def test_a_site_whose_older_process_was_refused_is_shown_for_a_day(kits, capfd):
    server = kits["server"]
    (server / "local").mkdir(exist_ok=True)
    known = {"sites": ["bank"], "patience": vars(RetryPolicy())}
    (server / "local" / "federation.json").write_text(json.dumps(known))
    arrivals = nvflare.Arrivals(str(server / "local" / "arrivals"))
    context = FLContext()
    peer = FLContext()
    peer.set_prop(ReservedKey.IDENTITY_NAME, "another name than its token's")
    context.set_peer_context(peer)
    said = "Client ID already registered as a client: bank"
    context.set_prop(FLContextKey.COMMUNICATION_ERROR, said, sticky=False)
    arrivals.handle_event(EventType.CLIENT_HEARTBEAT_PROCESSED, context)
    assert main(["federation", "status", str(server), "--no-sites"]) == 3  # it is not running
    assert "bank: two processes have its kit, and that of before" in capfd.readouterr().err
    file = server / "local" / "replaced.json"
    file.write_text(json.dumps({"bank": "2026-01-01T00:00:00+00:00"}))
    for content in (file.read_text(), "{", "[]", "null"):
        file.write_text(content)
        assert main(["federation", "status", str(server), "--no-sites"]) == 3
        assert "two processes" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("lost", "waited"),
    [(1, [1.0, 5.0, 1.0, 5.0]), (2, [1.0, 5.0, 1.0, 5.0, 5.0, 5.0])],
)
def test_sites_that_answer_are_told_from_those_that_are_listed(
    tmp_path, monkeypatch, capfd, lost, waited
):
    statuses = [
        {"client_name": "bank", "app_name": "app", "job_id": "one", "status": "started"},
        {"client_name": "bank", "app_name": "app", "job_id": "two", "status": "started"},
        {"client_name": "post", "status": "no_jobs"},
        {"client_name": "odd", "app_name": "app", "job_id": ["one"], "status": {}},
        {"client_name": "shop", "status": "no_reply"},
    ]
    # a site that is starting loses questions, which are waited for in vain, and answers the next
    late, now, patience = {"client_name": "late", "status": "no_reply"}, [0.0], []
    known = {**late, "status": "no_jobs"}

    def ask():
        if len(patience) < 2 * lost:
            now[0] += patience[-1]
            return [*statuses, late]
        return [*statuses, known]

    def session(*given, **more):
        sys.stdout.write("a line of the framework\n")
        cell = SimpleNamespace(send_request=None)
        return SimpleNamespace(
            get_client_job_status=ask,
            set_timeout=patience.append,
            api=SimpleNamespace(cell=cell),
        )

    monkeypatch.setattr(nvflare.time, "monotonic", lambda: now[0])

    monkeypatch.setattr(nvflare, "new_secure_session", session)
    monkeypatch.setattr(nvflare.Jobs, "_knock", lambda self: None)
    found = {"bank": {"one", "two"}, "post": set(), "odd": {"['one']"}, "late": set()}
    assert nvflare.Jobs(tmp_path).sites() == found
    assert patience == waited  # the last of each two is for what is asked next
    assert capfd.readouterr() == ("", "")


class Held:
    """A session of which one method does not come back until it is let go."""

    def __init__(self, *held):
        self.held, self.free, self.closed = held, threading.Event(), threading.Event()

    def _come_to(self, name):
        if name in self.held:
            assert self.free.wait(60)

    def get_job_meta(self, job):
        self._come_to("get_job_meta")
        return {"status": "RUNNING"}

    def close(self):
        self._come_to("close")
        self.closed.set()


@pytest.mark.parametrize("held", [["get_job_meta"], ["get_job_meta", "close"], ["opened"]])
def test_a_question_that_does_not_come_back_is_given_up_and_the_next_has_a_new_session(
    tmp_path, monkeypatch, held
):
    monkeypatch.setattr(nvflare, "_GIVEN_UP", 0.2)
    monkeypatch.setattr(nvflare, "_ANSWER", 0.2)
    monkeypatch.setattr(nvflare.Jobs, "_knock", lambda self: None)
    first, second = Held(*held), Held()
    sessions = [second, first]

    def opened(kit):
        session = sessions.pop()
        session._come_to("opened")
        return session

    monkeypatch.setattr(nvflare, "_opened", opened)
    jobs = nvflare.Jobs(tmp_path)
    with pytest.raises(ConnectionError, match=r"does not answer \(TimeoutError\)"):
        jobs.status("job")
    monkeypatch.setattr(nvflare, "_GIVEN_UP", 60.0)
    assert jobs.status("job") == jobs.status("job") == "RUNNING"
    assert sessions == []
    assert not second.closed.is_set()
    first.free.set()
    assert first.closed.wait(60)  # one that is there too late is left, too


def test_a_server_that_answers_nothing_is_known_by_how_long(tmp_path, monkeypatch):
    now, asked, here = [0.0], [], [True]

    def opened(kit):
        if not here[0]:
            raise TimeoutError
        return SimpleNamespace(get_job_meta=ask, close=lambda: None)

    def ask(job):
        asked.append(job)
        if not here[0]:
            raise TimeoutError
        raise nvflare.JobNotFound(job)

    monkeypatch.setattr(nvflare.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(nvflare.Jobs, "_knock", lambda self: None)
    monkeypatch.setattr(nvflare, "_opened", opened)
    jobs, found = nvflare.Jobs(tmp_path), []
    for moment, answers in ((50.0, True), (70.0, True), (120.0, False), (200.0, False)):
        now[0], here[0] = moment, answers
        found.append(jobs.silence())
    assert found == [50.0, 0.0, 50.0, 130.0]
    assert len(asked) == 2  # where it was known already, nobody was asked


def test_a_job_that_could_not_begin_at_a_site_is_said_with_its_name(tmp_path, monkeypatch):
    """As the library writes it where the disk of a site is full."""
    full = "lab: exception_occurred: OSError: [Errno 28] No space left on device"
    detail = ["server: OK", "bank: OK", full, "num_ok_sites 1 < required_min_sites 2"]
    known = {
        "missed": {"status": "FINISHED:FAILED_TO_RUN", "job_deploy_detail": detail},
        "begun": {"status": "RUNNING", "job_deploy_detail": detail},  # at enough of them
        "other": {"status": "FINISHED:FAILED_TO_RUN"},
    }
    monkeypatch.setattr(nvflare.Jobs, "_knock", lambda self: None)
    session = SimpleNamespace(get_job_meta=known.__getitem__)
    monkeypatch.setattr(nvflare, "_opened", lambda kit: session)
    jobs = nvflare.Jobs(tmp_path)
    assert jobs.status("missed") == f"FINISHED:FAILED_TO_RUN, {full}"
    detail[2] = "lab: \x1b[2J" + "x" * 1000 + "\nbank: OSError"  # as a site that likes may say it
    said = jobs.status("missed")
    assert said.isprintable()
    assert len(said) < 300
    assert jobs.status("begun") == "RUNNING"
    assert jobs.status("other") == "FINISHED:FAILED_TO_RUN"


def test_a_site_whose_clock_lets_it_take_no_signature_is_said_with_what_to_do(
    tmp_path, monkeypatch
):
    """By the library's own words, as its source has them."""
    deployer = Path(training_cmds.__file__).read_text()
    assert 'f"app {app_name} does not pass signature verification"' in deployer
    detail = ["bank: OK", "lab: app app does not pass signature verification"]
    known = {"status": "FINISHED:FAILED_TO_RUN", "job_deploy_detail": detail}
    monkeypatch.setattr(nvflare.Jobs, "_knock", lambda self: None)
    session = SimpleNamespace(get_job_meta=lambda job: known)
    monkeypatch.setattr(nvflare, "_opened", lambda kit: session)
    said = nvflare.Jobs(tmp_path).status("one")
    assert "signature verification" not in said
    assert "lab: it takes no job's signature, as by its clock a certificate is not valid" in said
    assert "set the clock there" in said


def test_an_administrator_gives_memory_back_every_so_many_questions(tmp_path, monkeypatch):
    class Cycle:
        def __init__(self):
            self.own = self

    made = []

    def answer(job):
        made.append(weakref.ref(Cycle()))
        return {"status": "RUNNING"}

    monkeypatch.setattr(nvflare, "_ASKED", 3)
    monkeypatch.setattr(nvflare.Jobs, "_knock", lambda self: None)
    monkeypatch.setattr(nvflare, "_opened", lambda kit: SimpleNamespace(get_job_meta=answer))
    jobs, left = nvflare.Jobs(tmp_path), []
    gc.disable()
    try:
        for _ in range(6):
            jobs.status("job")
            left.append(sum(one() is not None for one in made))
    finally:
        gc.enable()
    assert left == [1, 2, 0, 1, 2, 0]


# What begins and ends jobs at a server, with a disk that is full.
RUNNER = """
import sys
from types import SimpleNamespace
from nvflare.private.fed.server.job_runner import JobRunner
from nvflare.private.fed.server.server_state import HotState
from intarsia.engines.transports.nvflare import Arrivals

def full(*_):
    raise OSError(28, "No space left on device")

Arrivals("arrivals")
runner = JobRunner("")
runner.log_debug = lambda *_: None
jobs = SimpleNamespace(get_jobs_to_schedule=full)
engine = SimpleNamespace(
    get_component=lambda name: jobs,
    server=SimpleNamespace(server_state=HotState()),
    get_clients=lambda: ["bank"],
)
context = SimpleNamespace(get_engine=lambda: engine, get_identity_name=lambda: "server")
if sys.argv[1] == "ends":
    jobs.get_jobs_to_schedule = lambda _: []
    runner.running_jobs = SimpleNamespace(keys=full)
runner.run(context)
"""


@pytest.mark.parametrize("what", ["begins", "ends"])
def test_a_server_ends_where_what_begins_or_ends_jobs_does_so_that_it_is_started_again(what):
    command = [sys.executable, "-c", RUNNER, what]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert found.returncode == 1
    assert "No space left on device" in found.stderr


def test_leaving_a_server_that_does_not_let_go_takes_no_longer_than_a_question(
    tmp_path, monkeypatch
):
    held = Held("close")
    monkeypatch.setattr(nvflare, "_GIVEN_UP", 0.2)
    monkeypatch.setattr(nvflare.Jobs, "_knock", lambda self: None)
    monkeypatch.setattr(nvflare, "_opened", lambda kit: held)
    jobs = nvflare.Jobs(tmp_path)
    jobs.status("job")
    jobs.close()
    jobs.close()
    assert not held.closed.is_set()
    held.free.set()
    assert held.closed.wait(60)


JOB = """
import sys
from nvflare.collab.runtime.controller import CollabController
from nvflare.fuel.utils.import_utils import optional_import
from intarsia.engines.remote.caller import RetryPolicy
from intarsia.engines.transports import kits as kit_files
from intarsia.engines.transports import nvflare
nvflare.{component}
_, found = optional_import(module="nvflare.app_opt.pt.decomposers", name="TensorDecomposer")
print(found, "torch" in sys.modules)
"""


@pytest.mark.parametrize("component", ["ServerSide('run')", "SiteSide()"])
def test_the_start_of_a_job_imports_no_torch(component):
    pytest.importorskip("torch")
    # as the library's controller and executor ask for it
    source = Path(controller.__file__).parent
    for name in ("controller.py", "executor.py"):
        assert '"nvflare.app_opt.pt.decomposers"' in (source / name).read_text()
    done = subprocess.run(
        [sys.executable, "-c", JOB.format(component=component)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["False", "False"]


def test_received_replies_are_removed_in_time_by_one_thread():
    tasks = [RxTask(number, "bank", cell=None, reliable=True) for number in range(200)]
    RxTask.rx_task_map.update(((one.origin, one.sid), one) for one in tasks)
    before = threading.active_count()
    kept = tasks.pop()
    kept._schedule_remove_task(3600.0)
    for one in tasks:
        one._schedule_remove_task(0.01)
    assert threading.active_count() <= before + 1
    end = time.monotonic() + 60
    while len(RxTask.rx_task_map) > 1 and time.monotonic() < end:
        time.sleep(0.01)
    assert list(RxTask.rx_task_map.values()) == [kept]
    kept._remove_task()
    assert not RxTask.rx_task_map


def test_every_class_that_a_kit_of_an_older_version_allows_is_there(kits):
    for kit in kits.values():
        local = kit / "local"
        found = json.loads((local / "resources.json.default").read_text())
        found |= {"class_list_enforcement_mode": "enforce", "class_allow_list": list(OLD)}
        (local / "resources.json").write_text(json.dumps(found))
        paths = [
            path
            for file in sorted(local.glob("*.json"))
            for path in class_paths(json.loads(file.read_text()))
        ]
        assert set(OLD) <= set(paths)
        for path in paths:
            assert isinstance(resolved(path), type), path


def test_a_job_names_nothing_that_a_kit_of_an_older_version_does_not_allow(tmp_path):
    job = nvflare.write_job(tmp_path / "job", "calm", ("bank",), 1)
    files = sorted((job / "app" / "config").glob("*.json"))
    named = [path for file in files for path in class_paths(json.loads(file.read_text()))]
    assert sorted(named) == sorted(OLD)


def test_what_a_job_runs_stands_in_the_kit_and_not_in_the_job(kits, tmp_path):
    given = {
        "server": (server.ENTRY_POINTS, server.run_in_job),
        "bank": (client_folder.ENTRY_POINTS, client_setup.site_of_kit),
    }
    for name, (entry_points, function) in given.items():
        nvflare.parent_command(kits[name], entry_points, server=name == "server")
        assert nvflare.entry_point(kits[name] / "local", "job") is function
        written = json.loads((kits[name] / "local" / "resources.json").read_text())
        assert written["class_allow_list"] == list(OLD)
    job = nvflare.write_job(tmp_path / "job", "calm", ("bank",), 1)
    text = "".join(file.read_text() for file in job.rglob("*.json"))
    assert server.ENTRY_POINTS["job"] not in text
    assert client_folder.ENTRY_POINTS["job"] not in text


@pytest.mark.parametrize(("number", "seconds"), [(3, 0.2), (20, 0.4), (100, 2.0), (300, 2.0)])
def test_sites_ask_often_while_a_job_is_set_up_but_not_all_together(tmp_path, number, seconds):
    sites = tuple(f"site-{one}" for one in range(number))
    job = nvflare.write_job(tmp_path / "job", "calm", sites, number)
    found = json.loads((job / "app" / "config" / "config_fed_server.json").read_text())
    assert found["server"]["task_request_interval"] == seconds


def test_the_server_s_process_notes_the_first_heart_beat_of_a_site_that_has_connected(kits):
    kit = kits["server"]
    nvflare.parent_command(kit, server.ENTRY_POINTS, server=True)
    resources = json.loads((kit / "local" / "resources.json").read_text())
    (named,) = (one for one in resources["components"] if one["id"] == "arrivals")
    component, heard = resolved(named["path"])(**named["args"]), []
    for event, site in [
        (EventType.CLIENT_HEARTBEAT_PROCESSED, "bank"),  # that of a process which is known
        (EventType.CLIENT_REGISTER_PROCESSED, "branch"),  # it would not answer yet
        (EventType.CLIENT_HEARTBEAT_PROCESSED, "bank"),
        (EventType.CLIENT_HEARTBEAT_PROCESSED, "branch"),
    ]:
        context, of_the_site = FLContext(), FLContext()
        of_the_site.set_prop(ReservedKey.IDENTITY_NAME, site, private=False)
        context.set_peer_context(of_the_site)
        component.handle_event(event, context)
        heard.append(nvflare.newest_arrival(kit) > 0)
    assert heard == [False, False, False, True]


def test_nothing_is_kept_of_connections_that_are_gone_nor_of_messages():
    from nvflare.fuel.f3.endpoint import Endpoint
    from nvflare.fuel.f3.sfm.conn_manager import ConnManager
    from nvflare.fuel.f3.sfm.sfm_conn import SfmConnection
    from nvflare.fuel.f3.stats_pool import StatsPoolManager

    def connected(name, number):
        gone = SimpleNamespace(
            name=f"CN{number}",
            get_conn_properties=dict,
            connector=SimpleNamespace(params={}),
            close=lambda: None,
        )
        line = SfmConnection(gone, manager.local_endpoint)
        manager.sfm_conns[gone.name] = line
        manager.update_endpoint(line, {"endpoint_name": name})
        return gone

    manager, told = ConnManager(Endpoint("server")), []
    manager.add_endpoint_monitor(SimpleNamespace(state_change=lambda one: told.append(one.state)))
    bank, job = connected("bank", 1), connected("bank.job", 2)
    manager.close_connection(job)
    assert list(manager.sfm_endpoints) == ["bank"]
    again = connected("bank", 3)  # takes the place of the first, whose end comes later
    manager.close_connection(bank)
    assert list(manager.sfm_endpoints) == ["bank"]
    manager.close_connection(again)
    assert not manager.sfm_endpoints
    connected("bank", 4)
    assert manager.find_endpoint("bank").state == told[-1]
    pool = StatsPoolManager.add_time_hist_pool("a pool of this test", "of times")
    pool.record_value("bank#heart_beat", 0.1)
    assert not pool.cat_bins
