"""An outsider opens connections to the server's port, and says nothing; or a site opens many.

TLS waits a minute for each. Of a process that may have 1,024 files open a thousand took all. It
ended, with the jobs that it had, and again each time it was started again.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from types import SimpleNamespace

import pytest

pytest.importorskip("nvflare", reason="nvflare is not installed: pip install intarsia[nvflare]")

from nvflare.fuel.f3.drivers import aio_http_driver
from nvflare.fuel.f3.drivers.aio_http_driver import AioHttpDriver

from intarsia.engines.transports import handshakes, kits, nvflare

MOST, OPENED = 20, 100
NAMES = ("server", "bank", "shop")


@pytest.fixture(scope="module")
def startups(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificates")
    authority = kits.Authority._drawn("two")
    for name in NAMES:
        (kit := folder / name / "startup").mkdir(parents=True)
        authority.equip(kit, kits._parts(name, "localhost")[0])
    return {name: folder / name / "startup" for name in NAMES}


@pytest.fixture
def port(startups, monkeypatch):
    """Return the port at which a server's process listens, which has the component."""
    monkeypatch.setattr(handshakes, "_MOST", MOST)
    monkeypatch.setattr(handshakes, "_MOST_OF_ONE", MOST)
    monkeypatch.setattr(aio_http_driver, "web", aio_http_driver.web)
    handshakes.FewHandshakes()
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    own = startups["server"]
    where = {"host": "127.0.0.1", "port": port, "scheme": "https", "secure": True}
    files = {"ca_cert": own / "rootCA.pem", "server_cert": own / "server.crt"}
    params = {**where, **files, "server_key": own / "server.key"}
    driver = AioHttpDriver()
    given = (SimpleNamespace(params=params),)
    listening = threading.Thread(target=driver.listen, args=given, daemon=True)
    listening.start()
    end = time.monotonic() + 60
    while not reached(port) and time.monotonic() < end:
        time.sleep(0.01)
    yield port
    driver.aio_context.run_coro(driver._async_shutdown()).result(60)
    listening.join(60)


def reached(port):
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


def is_open(line):
    line.setblocking(False)
    try:
        return line.recv(1) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


def test_the_oldest_connections_without_a_certificate_give_way_and_a_site_is_let_in(startups, port):
    lines = [socket.create_connection(("127.0.0.1", port)) for _ in range(OPENED)]
    try:
        for one in lines[1::2]:
            one.sendall(b"\x16\x03\x01\x02\x00")  # the first bytes of a handshake, and no more
        end = time.monotonic() + 60
        while sum(map(is_open, lines)) > MOST and time.monotonic() < end:
            time.sleep(0.01)
        assert sum(map(is_open, lines)) == MOST
        context = outsider(startups["bank"])
        with contextlib.suppress(OSError):
            assert heard(port, context) == b""  # an outsider who speaks TLS
        context.load_cert_chain(*shown(startups["bank"]))
        assert heard(port, context) == b"HTTP/1.1 404"
        kept = [is_open(one) for one in lines]
        assert kept == [False] * kept.index(True) + [True] * sum(kept)
    finally:
        for one in lines:
            one.close()


def outsider(own):
    """Return what connects without a certificate."""
    context = ssl.create_default_context(cafile=own / "rootCA.pem")
    context.check_hostname = False
    return context


def shown(own):
    return own / "client.crt", own / "client.key"


def test_the_oldest_connections_of_one_certificate_give_way_and_another_s_stay(startups, port):
    contexts = {name: outsider(startups[name]) for name in ("bank", "shop")}
    for name, context in contexts.items():
        context.load_cert_chain(*shown(startups[name]))

    def opened(name):
        line = socket.create_connection(("127.0.0.1", port), timeout=60.0)
        return contexts[name].wrap_socket(line)

    other, lines = opened("shop"), [opened("bank") for _ in range(OPENED)]
    try:
        end = time.monotonic() + 60
        while sum(map(lasts, lines)) > MOST and time.monotonic() < end:
            time.sleep(0.01)
        assert [lasts(one) for one in lines] == [False] * (OPENED - MOST) + [True] * MOST
        assert lasts(other)
    finally:
        for one in (other, *lines):
            one.close()


def lasts(tls):
    """Return whether a connection with a certificate is open; what was sent is read."""
    tls.setblocking(False)
    try:
        while tls.recv(1000):
            pass
    except ssl.SSLWantReadError:
        return True
    except OSError:
        return False
    return False


def heard(port, context):
    """Return what the server answers to somebody who asks for a page."""
    with (
        socket.create_connection(("127.0.0.1", port), timeout=60.0) as line,
        context.wrap_socket(line) as tls,
    ):
        tls.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        return tls.recv(12)


def test_each_server_s_kit_has_the_component(startups, tmp_path, monkeypatch):
    monkeypatch.setattr(nvflare.spare, "component", lambda *_, **__: {"id": "a", "path": "b"})
    monkeypatch.setattr(nvflare.origins, "component", lambda *_, **__: {"id": "c", "path": "d"})
    found = {}
    for name in ("server", "bank"):
        kit = tmp_path / name
        (kit / "local").mkdir(parents=True)
        (kit / "local" / "resources.json.default").write_text("{}")
        (kit / "startup").mkdir()
        (kit / "startup" / "fed_server.json").write_text(
            '{"servers": [{"service": {"scheme": "http"}}]}'
        )
        nvflare._made_safe(kit, server=name == "server", ahead=False)
        found[name] = handshakes.COMPONENT in (kit / "local" / "resources.json").read_text()
    assert found == {"server": True, "bank": False}
