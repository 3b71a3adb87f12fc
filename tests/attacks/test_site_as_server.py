"""A site that calls another one as the server does: over NVIDIA FLARE any of a job could.

It also could with the server's name as the origin of its messages, by the token of a registration
before its last one: the library holds an origin against tokens that are registered alone. So a site
began jobs at the others, spent what their owners allow in a day, and ended runs. What they answered
went to the server. On a site's machine any process could do the same, without a kit: a site's own
process listened there to whoever connects.
"""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

import four_sites
from intarsia.deployment import client_folder
from intarsia.deployment.client_setup import READ
from intarsia.engines import codec
from intarsia.engines.remote.wire import PROTOCOL, Answer, Call
from intarsia.errors import SiteError
from intarsia.experiment import config as experiment

pytest.importorskip("nvflare", reason="nvflare is not installed: pip install intarsia[nvflare]")
from types import SimpleNamespace

from nvflare.apis.signal import Signal
from nvflare.apis.workspace import Workspace
from nvflare.collab.api.app import ClientApp, ServerApp
from nvflare.collab.api.proxy import Proxy
from nvflare.collab.runtime.defs import CallHeaderKey, CallReplyKey, ObjectCallKey
from nvflare.collab.runtime.dispatch import (
    CollabCallAuthorizer,
    _call_app_method,
    make_participant_map,
)
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, MessagePropKey
from nvflare.fuel.f3.drivers.net_utils import get_ssl_context
from nvflare.fuel.f3.drivers.socket_conn import ConnectionHandler
from nvflare.fuel.f3.drivers.tcp_driver import TcpDriver
from nvflare.fuel.f3.message import Message
from nvflare.fuel.utils.admin_name_utils import new_admin_client_name
from nvflare.private.defs import CellMessageHeaderKeys
from nvflare.private.fed.server import fed_server
from nvflare.private.fed.utils.identity_utils import IdentityAsserter, TokenVerifier

from intarsia.engines.transports import kits
from intarsia.engines.transports.nvflare import ServerSide, SiteSide, parent_command
from intarsia.engines.transports.origins import Origins, Within

TESTS = Path(__file__).parents[1] / "support"
JOB = "job"
CELLS = {"server": f"server.{JOB}", **{name: f"{name}.{JOB}" for name in four_sites.NAMES}}


@dataclass
class Client:
    """A client of a job, as FLARE describes it."""

    name: str

    def get_fqcn(self):
        return self.name


class Bank:
    """The bank's cell in a job, with the site of a folder behind it."""

    def __init__(self, folder):
        self._app = ClientApp(SiteSide())
        self._app.name = "bank"
        self._short = {}
        cell = SimpleNamespace(core_cell=SimpleNamespace(register_request_cb=self._take))
        lines = SimpleNamespace(cell=cell, target_fqcn=CELLS["server"])
        own = Proxy(self._app, "bank", "bank", None, {})
        server = Proxy(self._app, "server", "server", lines, {})
        self._app.setup(Workspace(str(folder.parent), "bank"), server, [own], Signal())
        self._app.initialize(self._app.new_context("bank", "bank", set_call_ctx=False))
        clients = [Client(name) for name in four_sites.NAMES]
        known = make_participant_map(CELLS["server"], JOB, clients)
        logger = logging.getLogger(__name__)
        self._authorizer = CollabCallAuthorizer(self._app, CELLS["bank"], known, logger)

    def _take(self, channel, topic, answer, *given):
        self._short[channel, topic] = lambda message: answer(message, *given)

    def answer_short(self, origin, data, says=None):
        """Return the reply to a call that is one message, as `answer` does to one that is not."""
        (answer,) = self._short.values()
        envelope = {MessageHeaderKey.ORIGIN: origin, CallHeaderKey.AUTHENTICATED_CALLER: says}
        return answer(Message(envelope, data)).payload

    def answer(self, origin, data, says=None):
        """Return the reply to a message from a cell; its sender writes that it is `says`."""
        envelope = {
            CallHeaderKey.PROTOCOL_VERSION: 1,
            CallHeaderKey.TARGET_NAME: "bank.client",
            CallHeaderKey.METHOD_NAME: "handle",
            CallHeaderKey.AUTHENTICATED_CALLER: says,
            MessageHeaderKey.ORIGIN: origin,
            MessageHeaderKey.DESTINATION: CELLS["bank"],
        }
        message = Message(envelope, {ObjectCallKey.KWARGS: {"data": data}})
        assert self._authorizer.authorize(message.headers) is None
        return _call_app_method(message, self._app, logging.getLogger(__name__)).payload


@pytest.fixture
def bank(tmp_path):
    """Return the bank's folder, and a call by which the server begins a run."""
    described = four_sites.write_tables("hyfdca", tmp_path / "tables")
    folder = tmp_path / "bank" / "local"
    folder.mkdir(parents=True)
    (tmp_path / "bank" / "startup").mkdir()
    text = four_sites.site_toml("bank", described["bank"], tmp_path / "tables")
    (folder / "site.toml").write_text(text)
    parent_command(folder.parent, client_folder.ENTRY_POINTS, server=False)
    tree = experiment.to_dict(
        four_sites.experiment_of("hyfdca", described, tmp_path / "tables", mode="masked")
    )
    body = json.dumps({**tree, "protocol": PROTOCOL}).encode()
    asked = tuple(described)
    return folder, codec.encode(Call("ab" * 8, 1, 0, 0, 0, 0, "stage", READ, "", asked, body))


@pytest.mark.parametrize("says", [None, "telecom", "server"])
def test_a_call_of_another_site_is_refused_and_stands_in_the_log(bank, says):
    folder, call = bank
    found = Bank(folder).answer(CELLS["telecom"], call, says)
    assert CallReplyKey.RESULT not in found
    assert "'telecom' called this site, which answers only the server" in found[CallReplyKey.ERROR]
    assert "'telecom' called this site" in (folder / client_folder.ERRORS).read_text()
    assert not (folder / "runs").exists()


@pytest.mark.parametrize("says", [None, "telecom", "server"])
def test_a_short_call_of_another_site_is_refused_and_stands_in_the_log(bank, says):
    folder, call = bank
    said = rf"'telecom.{JOB}' called this site, which answers only the server"
    with pytest.raises(SiteError, match=said):
        Bank(folder).answer_short(CELLS["telecom"], call, says)
    assert f"'telecom.{JOB}' called this site" in (folder / client_folder.ERRORS).read_text()
    assert not (folder / "runs").exists()


def test_the_server_is_answered_short_calls(bank):
    folder, call = bank
    answer = codec.decode(Bank(folder).answer_short(CELLS["server"], call), Answer)
    assert (answer.client, answer.error) == ("bank", "")
    assert not (folder / client_folder.ERRORS).exists()


def test_the_server_is_answered(bank):
    folder, call = bank
    found = Bank(folder).answer(CELLS["server"], call)
    answer = codec.decode(found[CallReplyKey.RESULT], Answer)
    assert (answer.client, answer.error) == ("bank", "")
    assert not (folder / client_folder.ERRORS).exists()


def test_nobody_can_call_the_server():
    assert not any(ServerApp(ServerSide("run")).get_collab_interface().values())
    assert any(ClientApp(SiteSide()).get_collab_interface().values())


@pytest.fixture(scope="module")
def signed(tmp_path_factory):
    """Return a server's verifier, and what shows that the telecom registered there once."""
    startup = tmp_path_factory.mktemp("kits") / "server" / "startup"
    startup.mkdir(parents=True)
    authority, (part, *_) = kits.Authority._drawn("two"), kits._parts("server", "localhost")
    authority.equip(startup, part)
    own = IdentityAsserter(str(startup / "server.key"), str(startup / "server.crt"))
    token = "of a registration before the last one"
    return TokenVerifier(own.cert), {
        CellMessageHeaderKeys.CLIENT_NAME: "telecom",
        CellMessageHeaderKeys.TOKEN: token,
        CellMessageHeaderKeys.TOKEN_SIGNATURE: own.sign("telecom" + token, return_str=True),
    }


def handed_on(signed, certificate, origin):
    """Return whether a server hands on a message over the connection of a certificate."""
    verifier, headers = signed
    message = Message({**headers, MessageHeaderKey.ORIGIN: origin}, b"a call")
    message.set_prop(MessagePropKey.COMMON_NAME, certificate)
    refused = fed_server.validate_auth_headers(
        message=message,
        token_verifier=verifier,
        logger=logging.getLogger(__name__),
        client_fqcn_resolver=lambda name, token: None,  # the site has another token since
        local_cell_fqcn="server",
    )
    return refused is None


@pytest.mark.parametrize("works", [False, True])
def test_a_server_hands_on_no_message_of_a_site_in_the_name_of_another(signed, works, monkeypatch):
    monkeypatch.setattr(fed_server, "validate_auth_headers", fed_server.validate_auth_headers)
    monkeypatch.setattr(ConnectionHandler, "handle", ConnectionHandler.handle)
    if not works:
        Origins("localhost")
    for name in "telecom", "server":  # the server's own processes have its certificate
        shown = {"server": "localhost"}.get(name, name)
        assert all(handed_on(signed, shown, origin) for origin in (name, CELLS[name]))
        others = {"server", CELLS["server"], CELLS["telecom"], CELLS["bank"], "telecom2.job"}
        others |= {"server.telecom", "telecom.server", "localhost", ""}
        others = sorted(one for one in others if one.partition(".")[0] != name)
        assert [handed_on(signed, shown, one) for one in others] == [works] * len(others)
    for without in None, "N/A":  # a connection without a certificate
        assert handed_on(signed, without, CELLS["server"]) is works
    for name, fits in ((kits.ADMIN, True), ("telecom", works)):
        assert handed_on(signed, name, new_admin_client_name()) is fits


@pytest.mark.slow
def test_a_site_that_writes_the_servers_name_begins_no_job_at_the_others(four, tmp_path):
    """The telecom registers twice, and calls each other site by its first token."""
    four.stop("telecom")
    path = os.pathsep.join([str(TESTS / "forging"), os.environ.get("PYTHONPATH", "")])
    four.start("telecom", PYTHONPATH=path, HEARD=str(tmp_path))
    try:
        described = four.describe("hyfdca")
        four.submit(four_sites.tree("hyfdca", described, four.tables, name="forging"))
        four.finished("forging")
    finally:
        four.stop("telecom")
        four.start("telecom")
    assert (tmp_path / "token.json").is_file()
    assert (tmp_path / "called.json").is_file()
    for name in ("bank", "branch", "retailer"):
        local = four.kits / name / "local"
        assert not (local / "runs" / ("ab" * 8)).exists()
        assert "ab" * 8 not in (local / client_folder.LOG).read_text()


@pytest.mark.parametrize(("owner", "kind"), [("bank", "client"), ("server", "server")])
def test_within_its_machine_a_kit_s_process_listens_to_certificates_alone(tmp_path, owner, kind):
    startup = tmp_path / owner / "startup"
    startup.mkdir(parents=True)
    authority, (part, *_) = kits.Authority._drawn("two"), kits._parts(owner, "localhost")
    authority.equip(startup, part)
    (tmp_path / owner / "local").mkdir()
    parent_command(tmp_path / owner, client_folder.ENTRY_POINTS, server=owner == "server")
    written = json.loads((tmp_path / owner / "local" / "comm_config.json").read_text())
    internal = written["internal"]
    url, _ = TcpDriver.get_urls(internal["scheme"], internal["resources"])
    files = {"ca_cert": "rootCA.pem", f"{kind}_cert": f"{kind}.crt", f"{kind}_key": f"{kind}.key"}
    given = {key: str(startup / file) for key, file in files.items()}
    params = {**internal["resources"], **given, "scheme": url.partition(":")[0]}
    assert get_ssl_context(params, ssl_server=True).verify_mode is ssl.CERT_REQUIRED


def test_within_its_machine_a_kit_s_process_hears_its_own_certificate_alone(monkeypatch):
    heard = []
    monkeypatch.setattr(ConnectionHandler, "handle", lambda handler: heard.append(handler.name))
    Within("bank")
    for name in ("bank", "telecom", "localhost", None):
        subject = ((("organizationName", "intarsia"),), (("commonName", name),))
        certificate = {"subject": subject} if name else None
        request = SimpleNamespace(getpeercert=lambda certificate=certificate: certificate)
        ConnectionHandler.handle(SimpleNamespace(request=request, name=name))
    assert heard == ["bank"]


@pytest.mark.slow
@pytest.mark.parametrize(("owner", "kind"), [("bank", "client"), ("server", "server")])
def test_no_process_of_a_machine_connects_to_a_kit_s_own_without_a_certificate(four, owner, kind):
    described = four.describe("hyfdca")
    four.submit(four_sites.tree("hyfdca", described, four.tables, name=f"within-{owner}"))
    four.finished(f"within-{owner}")  # its own processes do
    keeper = psutil.Process(four.processes[owner].pid)
    ports = {
        one.laddr.port
        for process in keeper.children(recursive=True)
        for one in process.net_connections("tcp")
        if one.status == psutil.CONN_LISTEN
    } - {four.port, four.port + 1}
    assert len(ports) == 1
    (port,) = ports
    startup = four.kits / owner / "startup"
    context = ssl.create_default_context(cafile=startup / "rootCA.pem")
    context.check_hostname = False
    with pytest.raises((ssl.SSLError, ConnectionError)):
        heard(port, context)
    other = four.kits / "telecom" / "startup"
    context.load_cert_chain(other / "client.crt", other / "client.key")
    assert heard(port, context) == b""  # the connection is ended
    context.load_cert_chain(startup / f"{kind}.crt", startup / f"{kind}.key")
    with pytest.raises(TimeoutError):  # it is let in, and has sent no message
        heard(port, context)


def heard(port, context):
    """Return what a port says to whoever connects by TLS."""
    with (
        socket.create_connection(("localhost", port), timeout=10.0) as line,
        context.wrap_socket(line) as tls,
    ):
        tls.settimeout(3.0)
        tls.sendall(b"\0")
        return tls.recv(1)


@pytest.mark.slow
def test_a_site_that_calls_the_others_over_real_kits_learns_nothing(four, tmp_path):
    """The telecom plays the server towards each other site while a run goes on."""
    four.stop("telecom")
    heard = tmp_path / "heard.json"
    path = os.pathsep.join([str(TESTS / "acting"), os.environ.get("PYTHONPATH", "")])
    four.start("telecom", PYTHONPATH=path, HEARD=str(heard))
    try:
        described = four.describe("hyfdca")
        four.submit(four_sites.tree("hyfdca", described, four.tables, name="acting"))
        four.finished("acting")
    finally:
        four.stop("telecom")
        four.start("telecom")
    found = json.loads(heard.read_text())
    assert sorted(found) == ["bank", "branch", "retailer"]
    for name, said in found.items():
        assert said["answered"] == said["short"] == 0
        assert "'telecom' called this site" in said["refused"]
        errors = (four.kits / name / "local" / client_folder.ERRORS).read_text()
        assert "'telecom' called this site" in errors
        # short calls, by the name of the site's cell
        assert re.search(r"'telecom\.[\w-]+' called this site", errors)
        local = four.kits / name / "local"
        assert not (local / "runs" / ("ab" * 8)).exists()
