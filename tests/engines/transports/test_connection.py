"""A site knows whether the server answers it, and whether it refuses its certificate."""

from __future__ import annotations

import json
import os
import shutil
import socket
import ssl
import sys
import threading
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace

import pytest

pytest.importorskip("nvflare", reason="nvflare is not installed: pip install intarsia[nvflare]")

import aiohttp
from nvflare.fuel.f3.cellnet.defs import ReturnCode
from nvflare.fuel.f3.cellnet.utils import make_reply
from nvflare.fuel.f3.drivers.aio_http_driver import AioHttpDriver
from nvflare.private.defs import CellChannelTopic
from nvflare.private.fed.client.communicator import Communicator

from intarsia.cli import doctor
from intarsia.cli.main import main
from intarsia.deployment.process import KitProcess
from intarsia.engines.transports import connection as connecting
from intarsia.engines.transports import kits as kit_files
from intarsia.engines.transports import nvflare
from intarsia.engines.transports.connection import Silence, beat, connection, forget, note

PROGRAM = "nvflare.private.fed.app.client.client_train"
REFUSED = (
    "not connected: the server refuses the certificate of bank, as it is revoked; ask whoever runs "
    "the server, and for a new one run intarsia federation join bank"
)


@pytest.fixture
def kit(tmp_path, monkeypatch):
    """Return a site's kit, in which its process begins; what that changes is put back."""
    kit = tmp_path / "bank"
    (kit / "local").mkdir(parents=True)
    (kit / "local" / "site.toml").write_text('[site]\nname = "bank"\nplain = true\n')
    monkeypatch.chdir(kit)
    monkeypatch.setattr(AioHttpDriver, "connect", AioHttpDriver.connect)

    def ask_once(own, *_):
        return own.cell.send_request(topic=CellChannelTopic.HEART_BEAT)

    monkeypatch.setattr(Communicator, "send_heartbeat", ask_once)
    nvflare.Replaced()
    return kit


def asked(code):
    """Ask the server once, which replies so."""
    cell = SimpleNamespace(send_request=lambda **_: make_reply(code))
    Communicator.send_heartbeat(SimpleNamespace(cell=cell))


def connects(port, **more):
    """Connect once to a port of this machine, as the library does."""
    connector = SimpleNamespace(params={"host": "localhost", "port": port, **more})
    AioHttpDriver().connect(connector)


def test_a_site_knows_whether_the_server_answers_its_questions(kit):
    assert connection(kit) == "silent"  # nothing was asked so far
    asked(ReturnCode.OK)
    assert connection(kit) == "answers"
    asked(ReturnCode.TARGET_UNREACHABLE)
    assert connection(kit) == "silent"
    asked(ReturnCode.OK)
    assert connection(kit) == "answers"
    long_ago = (kit / "local" / "server").stat().st_mtime - 60
    os.utime(kit / "local" / "server", (long_ago, long_ago))  # its process hangs
    assert connection(kit) == "silent"
    asked(ReturnCode.OK)
    forget(kit)  # another process begins
    assert connection(kit) == "silent"


@pytest.mark.filterwarnings("ignore:ssl_context is deprecated")  # as the library calls aiohttp
def test_a_site_knows_that_the_servers_name_has_no_address_here(kit, monkeypatch):
    def unknown(*_, **__):
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    with monkeypatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", unknown)
        for before, after in ((None, "unresolved"), ("answers", "answers")):
            if before:  # the connection of a job is one of its own
                note(kit, before)
            with pytest.raises(aiohttp.ClientConnectorError, match="Temporary failure in name"):
                connects(8702, host="fed.example.org")
            assert connection(kit) == after


def test_a_clock_that_was_put_back_makes_no_answer_last(kit):
    asked(ReturnCode.OK)
    ahead = (kit / "local" / "server").stat().st_mtime + 3600
    os.utime(kit / "local" / "server", (ahead, ahead))
    assert connection(kit) == "silent"


def test_a_process_of_a_site_that_hangs_is_known_from_a_server_that_is_silent(kit, monkeypatch):
    """The process of a job reads the kit's resources, too, and gives no sign of life for it."""
    alive, pause = kit / "local" / "alive", threading.Event()
    beat(kit)
    assert not alive.exists()
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", SimpleNamespace(name=PROGRAM))
    monkeypatch.setattr(connecting, "_BETWEEN", 3600.0)  # it gives one
    nvflare.Replaced()
    for _ in range(12_000):
        if alive.exists():
            break
        pause.wait(0.005)
    asked(ReturnCode.OK)
    assert connection(kit) == "answers"
    for ago in (60, -3600):  # and if its clock was put back since
        moment = (kit / "local" / "server").stat().st_mtime - ago
        os.utime(alive, (moment, moment))
        assert connection(kit) == "starting"
    forget(kit)  # another process begins
    assert not alive.exists()
    assert connection(kit) == "silent"


def test_only_what_is_seen_of_a_silence_counts(kit, monkeypatch):
    now, alive = [0.0], kit / "local" / "alive"
    monkeypatch.setattr(connecting, "time", SimpleNamespace(monotonic=lambda: now[0]))
    silence = Silence(kit)

    def after(*steps):
        for step in steps:
            now[0] += step
            found = silence.seconds()
        return found

    assert after(*[1.0] * 400) == 0.0  # no process gave a sign of life so far
    alive.touch()
    assert after(1.0) == 0.0
    assert after(*[1.0] * 200) == 200.0
    assert after(3600.0) == 202.0  # who looks stood still
    os.utime(alive, (1e9, 1e9))  # another time, whatever the clock says
    assert after(1.0) == 0.0
    assert after(1.0) == 1.0


def test_a_site_whose_process_hangs_is_started_again_unless_its_folder_takes_no_files(
    kit, monkeypatch, capfd
):
    monkeypatch.setattr("intarsia.deployment.process._PAUSE", 0.01)
    monkeypatch.setattr("intarsia.deployment.process._HUNG", 0.05)
    monkeypatch.setattr("intarsia.cli.federation._ASKED", 0.0)
    asked, full = [], OSError(28, "No space left on device")
    problems = iter([full] * 20)

    def unwritable(kit):
        asked.append(kit)
        return next(problems, None)

    monkeypatch.setattr("intarsia.deployment.federation_file.unwritable", unwritable)
    monkeypatch.setattr("intarsia.engines.transports.connection.Silence.seconds", lambda _: 1.0)
    code = "import time; print('x', file=open('starts', 'a')); time.sleep(3600)"
    command = "intarsia.engines.transports.nvflare.parent_command"
    monkeypatch.setattr(command, lambda *_, **__: [sys.executable, "-c", code])
    tell = KitProcess.tell

    def told(process, sentence):
        assert len(asked) > 20
        tell(process, sentence)
        process.stop()

    monkeypatch.setattr(KitProcess, "tell", told)
    assert main(["federation", "site", str(kit)]) == 0
    said = f"The process of {kit} has answered nothing for"
    assert said in capfd.readouterr().err
    assert said in (kit / "events.log").read_text()


def test_a_site_knows_that_its_certificate_is_refused_until_it_is_not(kit):
    class Refuses(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_error(403)

        def log_message(self, *_):
            pass

    with HTTPServer(("localhost", 0), Refuses) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        with pytest.raises(aiohttp.WSServerHandshakeError):
            connects(server.server_port)
        server.shutdown()
        thread.join()
    assert connection(kit) == "refuses"
    asked(ReturnCode.TARGET_UNREACHABLE)  # as long as it is not connected
    assert connection(kit) == "refuses"
    with pytest.raises(aiohttp.ClientConnectorError):
        connects(server.server_port)  # it has ended
    assert connection(kit) == "silent"
    asked(ReturnCode.OK)
    with pytest.raises(aiohttp.ClientConnectorError):
        connects(server.server_port)  # for a job: the site's own connection is there
    assert connection(kit) == "answers"


class Line(HTTPServer):
    """A server over TLS, with the certificate in a kit."""

    def __init__(self, kit):
        super().__init__(("localhost", 0), BaseHTTPRequestHandler)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(*(kit / f"startup/server.{end}" for end in ("crt", "key")))

    def handle_error(self, *_):
        pass  # of a handshake that the other side ends

    def get_request(self):
        line, address = self.socket.accept()
        return self._context.wrap_socket(line, server_side=True), address


def secure_from(startup):
    """Return how a site with these certificates connects."""
    return {
        **{"scheme": "https", "secure": True, "ca_cert": str(startup / "rootCA.pem")},
        **{"client_cert": str(startup / "client.crt"), "client_key": str(startup / "client.key")},
    }


@pytest.mark.filterwarnings("ignore:ssl_context is deprecated")  # as the library calls aiohttp
def test_a_site_and_doctor_know_that_what_answers_is_another_federation(kit):
    """Or a proxy that opens TLS: its certificate is of another authority."""
    for name in ("ours", "theirs"):
        kit_files.provisioned("two", "localhost", (8702, 8703), ["bank"], kit.parent / name)
    own, theirs = (kit.parent / name for name in ("ours", "theirs"))
    startup = own / "bank" / "startup"
    with Line(theirs / "server") as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        port = server.server_port
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            connects(port, **secure_from(startup))
        (startup / "fed_client.json").write_text(
            json.dumps({"servers": [{"service": {"target": f"localhost:{port}"}}]})
        )
        found = doctor._way_to_server(own / "bank")
        shutil.copy(theirs / "bank/startup/rootCA.pem", startup)  # the server's
        well = doctor._way_to_server(own / "bank")
        server.shutdown()
        thread.join()
    assert connection(kit) == "foreign"
    assert str(found).startswith(f"problem  ports: what answers at localhost:{port} is not this")
    assert str(well) == f"ok       ports: localhost:{port} answers"
    with pytest.raises(aiohttp.ClientConnectorError):
        connects(port)  # it has ended
    assert connection(kit) == "silent"


@pytest.mark.filterwarnings("ignore:ssl_context is deprecated")  # as the library calls aiohttp
def test_a_site_and_doctor_know_that_the_servers_certificate_has_ended(kit, monkeypatch):
    given = "two", "localhost", (8702, 8703), ["bank"], kit.parent / "ours"
    with monkeypatch.context() as patch:
        patch.setattr(kit_files, "_DAYS", -1)
        patch.setattr(kit_files, "generate_cert", begun(kit_files.generate_cert, days=-2))
        server, bank = kit_files.provisioned(*given).values()
    with Line(server) as line:
        thread = threading.Thread(target=line.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        port = line.server_port
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            connects(port, **secure_from(bank / "startup"))
        (bank / "startup" / "fed_client.json").write_text(
            json.dumps({"servers": [{"service": {"target": f"localhost:{port}"}}]})
        )
        found = doctor._way_to_server(bank)
        line.shutdown()
        thread.join()
    assert connection(kit) == "invalid"
    assert f"certificate of the server at localhost:{port} has ended, or has not begun" in str(
        found
    )


def begun(given, *, days):
    """Return what makes certificates that begin so many days from now."""
    begin = datetime.now(UTC) + timedelta(days=days)
    return lambda *some, **more: given(*some, not_valid_before=begin, **more)


def test_a_site_whose_certificate_ends_says_that_and_does_not_blame_the_server(
    kit, monkeypatch, capfd
):
    (path := kit / "startup" / "client.crt").parent.mkdir()
    authority = kit_files.Authority._drawn("two")
    with monkeypatch.context() as patch:
        patch.setattr(kit_files, "_DAYS", 10)
        authority.equip(path.parent, *kit_files._parts("bank", "localhost"))
    states = iter(["answers", "silent", "silent"])
    command = "intarsia.engines.transports.nvflare.parent_command"
    monkeypatch.setattr(command, lambda *_, **__: [sys.executable, "-c", "input()"])
    monkeypatch.setattr("intarsia.deployment.process._PAUSE", 0.01)
    monkeypatch.setattr("intarsia.deployment.process._LONGEST", 0.01)
    monkeypatch.setattr("intarsia.deployment.process._ROOM_SEEN", 0.01)
    monkeypatch.setattr(KitProcess, "begins", lambda _: False)
    tell, heard = KitProcess.tell, threading.Event()

    def told(process, sentence):
        tell(process, sentence)
        if "client.crt ended on" in sentence:
            heard.set()

    def looks(process, each):
        assert not heard.is_set()
        each()  # it is connected
        with monkeypatch.context() as patch:
            patch.setattr(kit_files, "_DAYS", -1)
            patch.setattr(kit_files, "generate_cert", begun(kit_files.generate_cert, days=-2))
            authority.equip(path.parent, *kit_files._parts("bank", "localhost"))
        each()
        assert heard.wait(600)
        each()

    monkeypatch.setattr(KitProcess, "tell", told)
    monkeypatch.setattr(KitProcess, "wait", looks)
    monkeypatch.setattr("intarsia.engines.transports.connection.connection", lambda _: next(states))
    assert main(["federation", "site", str(kit)]) == 0
    said = capfd.readouterr().err
    assert "connected: the server answers" in said
    assert "does not answer" not in said
    log = (kit / "events.log").read_text()
    assert log.count("certificates: client.crt ended on") == 1
    assert "renew it: intarsia federation join bank" in log
    monkeypatch.setattr("intarsia.deployment.process.is_running", lambda _: True)
    monkeypatch.setattr("intarsia.engines.transports.connection.connection", lambda _: "silent")
    assert main(["federation", "status", str(kit), "--json"]) == 0
    shown = json.loads(capfd.readouterr().out)
    assert shown["server"] == "certificates"
    assert "client.crt ended on" in shown["certificates"][0]


@pytest.mark.parametrize(
    ("state", "told"),
    [
        ("foreign", "not connected: what answers at the server's address has no certificate of "),
        ("answers", "connected: the server answers"),
        ("silent", "not connected: the server does not answer; see intarsia federation logs "),
        ("refuses", REFUSED),
        ("unresolved", "not connected: the server's name has no address here; see to the DNS of "),
    ],
)
def test_the_status_of_a_site_says_how_the_server_stands(kit, monkeypatch, capfd, state, told):
    note(kit, state)
    words = ["federation", "status", str(kit)]
    assert main(words) == 3
    assert capfd.readouterr().err == "bank is not running\n"
    monkeypatch.setattr("intarsia.deployment.process.is_running", lambda _: True)
    assert main(words) == 0
    assert f"bank is running\n  {told}" in capfd.readouterr().err
    assert main([*words, "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["server"] == state


def test_a_site_goes_on_when_who_collects_its_logs_has_ended(kit, monkeypatch):
    states = iter(["answers", "refuses", "answers"])
    command = "intarsia.engines.transports.nvflare.parent_command"
    monkeypatch.setattr(command, lambda *_, **__: [sys.executable, "-c", "input()"])
    monkeypatch.setattr("intarsia.deployment.process._PAUSE", 0.01)
    told = []

    def say(sentence):
        if "connected: " in sentence:  # the pipe is open as it starts
            told.append(sentence)
            raise BrokenPipeError

    def standing(kit):
        if (now := next(states, None)) is None:
            process[0].stop()
        return now or "answers"

    wait, process = KitProcess.wait, []
    monkeypatch.setattr(
        KitProcess, "wait", lambda own, each: (process.append(own), wait(own, each))
    )
    monkeypatch.setattr("intarsia.cli.federation.say", say)
    monkeypatch.setattr("intarsia.engines.transports.connection.connection", standing)
    assert main(["federation", "site", str(kit)]) == 0
    assert told == ["connected: the server answers", REFUSED, "connected: the server answers"]
    log = (kit / "events.log").read_text()
    assert log.count("connected: the server answers") == 2
    assert log.count(REFUSED) == 1


def test_a_site_that_cannot_write_does_not_blame_the_server(kit, monkeypatch, capfd):
    states = iter(["answers", *["silent", "starting"] * 3, "refuses"])
    command = "intarsia.engines.transports.nvflare.parent_command"
    monkeypatch.setattr(command, lambda *_, **__: [sys.executable, "-c", "input()"])
    monkeypatch.setattr("intarsia.deployment.process._PAUSE", 0.01)
    monkeypatch.setattr(
        "intarsia.deployment.federation_file.unwritable", lambda _: OSError(30, "Read-only")
    )
    monkeypatch.setattr(KitProcess, "begins", lambda _: False)
    wait, process = KitProcess.wait, []

    def standing(kit):
        if (now := next(states, None)) is None:
            process[0].stop()
        return now or "refuses"

    monkeypatch.setattr(
        KitProcess, "wait", lambda own, each: (process.append(own), wait(own, each))
    )
    monkeypatch.setattr("intarsia.engines.transports.connection.connection", standing)
    assert main(["federation", "site", str(kit)]) == 0
    said = capfd.readouterr().err
    assert "connected: the server answers" in said
    assert REFUSED in said
    assert "does not answer" not in said


@pytest.mark.parametrize("steady", [0.0, 3600.0])
def test_a_clock_that_was_set_is_no_silence_and_what_lasts_is(kit, monkeypatch, capfd, steady):
    """Signs of life are as old as the clock says until the next ones, some seconds later."""
    states = iter(["answers", "starting", "silent", "answers"])
    command = "intarsia.engines.transports.nvflare.parent_command"
    monkeypatch.setattr(command, lambda *_, **__: [sys.executable, "-c", "input()"])
    monkeypatch.setattr("intarsia.deployment.process._PAUSE", 0.01)
    monkeypatch.setattr("intarsia.cli.federation._STEADY", steady)
    monkeypatch.setattr(KitProcess, "begins", lambda _: False)
    monkeypatch.setattr(KitProcess, "wait", lambda _, each: [each() for _ in range(4)])
    monkeypatch.setattr("intarsia.engines.transports.connection.connection", lambda _: next(states))
    assert main(["federation", "site", str(kit)]) == 0
    said = capfd.readouterr().err
    assert said.count("connected: the server answers") == (1 if steady else 2)
    assert ("does not answer" in said) != bool(steady)


def test_a_site_whose_process_is_started_again_does_not_blame_the_server(kit, monkeypatch, capfd):
    monkeypatch.setattr("intarsia.deployment.process._PAUSE", 0.01)
    code = (
        "import os, pathlib, time; place = pathlib.Path('local/server')\n"
        "if place.exists(): place.write_text('silent'); time.sleep(3600)\n"
        "place.write_text('answers'); time.sleep(1)"
    )
    command = "intarsia.engines.transports.nvflare.parent_command"
    monkeypatch.setattr(command, lambda *_, **__: [sys.executable, "-c", code])
    seen, wait = [], KitProcess.wait

    def looks(process, each):
        def look():
            each()
            seen.append(connection(kit))
            log = kit / "events.log"  # written soon after the process is there
            started = log.read_text().count("started, with") if log.exists() else 0
            if started == 2 and seen[-1] == "silent":
                process.stop()

        wait(process, look)

    monkeypatch.setattr(KitProcess, "wait", looks)
    assert main(["federation", "site", str(kit)]) == 0
    said = capfd.readouterr().err
    assert {"answers", "silent"} <= {*seen}
    assert "connected: the server answers" in said
    assert "the server does not answer" not in said


def test_a_site_says_in_its_terminal_and_its_log_that_it_is_refused(kit, monkeypatch, capfd):
    code = "import pathlib; pathlib.Path('local/server').write_text('refuses')"
    note_down = KitProcess.note

    def noted(process, sentence):
        note_down(process, sentence)
        if sentence == REFUSED:
            process.stop()

    monkeypatch.setattr(KitProcess, "note", noted)
    command = "intarsia.engines.transports.nvflare.parent_command"
    monkeypatch.setattr(command, lambda *_, **__: [sys.executable, "-c", code])
    assert main(["federation", "site", str(kit)]) == 0
    assert capfd.readouterr().err.count(f"{REFUSED}\n") == 1
    assert (kit / "events.log").read_text().count(f"{REFUSED}\n") == 1
