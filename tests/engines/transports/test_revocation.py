"""A server refuses certificates that are revoked, over TLS, and ends what they hold open."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import socket
import ssl
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

pytest.importorskip("nvflare", reason="nvflare is not installed: pip install intarsia[nvflare]")

import aiohttp
from aiohttp import web
from nvflare.fuel.f3.drivers.aio_http_driver import AioHttpDriver

from intarsia.cli.main import main
from intarsia.deployment.federation_file import FederationFile, finish_kits
from intarsia.deployment.operations.archive import write_archive
from intarsia.engines.remote.caller import RetryPolicy
from intarsia.engines.transports import handshakes, kits, nvflare, revocation
from intarsia.errors import ExperimentError

NAMES = ("server", "bank", "shop")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Write certificates of a server and two sites, of an hour ago, and two more of the bank's."""
    folder = tmp_path_factory.mktemp("certificates")
    authority = kits.Authority._drawn("two")
    for name in (*NAMES, "later"):
        (kit := folder / name / "startup").mkdir(parents=True)
        (part,) = kits._parts("bank" if name == "later" else name, "localhost")[:1]
        with pytest.MonkeyPatch.context() as patch:
            if name != "later":
                hour_ago = datetime.now(UTC) - timedelta(hours=1)
                given = kits.generate_cert
                patch.setattr(
                    kits,
                    "generate_cert",
                    lambda *some, given=given, hour_ago=hour_ago, **more: given(
                        *some, not_valid_before=hour_ago, **more
                    ),
                )
            authority.equip(kit, part)
    (folder / "server" / "local").mkdir()
    return folder


@pytest.fixture
def kit(folder):
    (folder / "server" / "local" / "revoked.json").unlink(missing_ok=True)
    return folder / "server"


def context(folder, name, purpose):
    startup = folder / name / "startup"
    found = ssl.create_default_context(purpose, cafile=startup / "rootCA.pem")
    (certificate,) = startup.glob("*.crt")
    found.load_cert_chain(certificate, certificate.with_suffix(".key"))
    found.verify_mode = ssl.CERT_REQUIRED
    return found


async def scene(folder, kit, play):
    """Let a server listen as NVIDIA FLARE's does, and play with a way to connect to it."""

    async def echo(driver, line):
        async for message in line:
            await line.send_bytes(message.data)

    driver = SimpleNamespace(_connection_handler=lambda line: echo(driver, line))

    async def handle(request):
        return await AioHttpDriver._websocket_handler(driver, request)

    app = web.Application()
    app.router.add_get("/f3", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    with socket.socket() as one:
        one.bind(("localhost", 0))
        port = one.getsockname()[1]
    at = web.TCPSite(
        runner, "localhost", port, ssl_context=context(folder, "server", ssl.Purpose.CLIENT_AUTH)
    )
    await at.start()
    try:
        lines = []
        async with aiohttp.ClientSession() as session:

            async def line(name):
                how = context(folder, name, ssl.Purpose.SERVER_AUTH)
                found = await session.ws_connect(f"https://localhost:{port}/f3", ssl=how)
                lines.append(found)
                await found.send_bytes(b"x")
                assert (await found.receive()).data == b"x"
                return found

            await play(line)
            for one in lines:
                await one.close()
                one._response.close()  # the library leaves that of a line which was cut
    finally:
        await runner.cleanup()


def end_of(folder, name):
    return kits.ends_in(folder / name)["client.crt"]


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(AioHttpDriver, "_websocket_handler", AioHttpDriver._websocket_handler)
    monkeypatch.setattr(revocation, "_PAUSE", 0.01)


def test_a_revoked_certificate_is_cut_off_and_refused_and_a_later_one_is_not(folder, kit, quick):
    revocation.Revocation(str(kit / "local" / "revoked.json"))

    async def play(line):
        bank, shop = await line("bank"), await line("shop")
        half_an_hour_ago = datetime.now(UTC) - timedelta(minutes=30)
        path = kit / "local" / "revoked.json"
        path.write_text(json.dumps({"bank": half_an_hour_ago.isoformat()}))
        ended = await asyncio.wait_for(bank.receive(), 60)
        assert ended.type in (aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.ERROR)
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await line("bank")
        assert refused.value.status == 403
        await shop.send_bytes(b"still here")
        assert (await shop.receive()).data == b"still here"
        assert revocation.ends_seen(kit)["bank"] == end_of(folder, "bank")
        await line("later")
        assert revocation.ends_seen(kit)["bank"] == end_of(folder, "later")
        assert not revocation.left_out(kit)

    asyncio.run(scene(folder, kit, play))
    assert set(revocation.ends_seen(kit)) == {"bank", "shop"}
    moment = revocation.revoke(kit, "bank")
    assert revocation.left_out(kit) == {"bank": moment}  # until it connects with another one
    assert set(revocation.ends_seen(kit)) == {"shop"}
    gc.collect()  # what is left open is told now, and not in another test


def test_a_certificate_that_ends_is_cut_off_and_refused(folder, kit, quick, monkeypatch):
    """Else its site counts as connected, and the processes of each new job are refused by TLS."""
    revocation.Revocation(str(kit / "local" / "revoked.json"))

    class Later(datetime):
        @classmethod
        def now(cls, zone=None):
            return end_of(folder, "bank") + timedelta(seconds=1)

    async def play(line):
        bank, later = await line("bank"), await line("later")
        await later.send_bytes(b"still here")
        assert (await later.receive()).data == b"still here"
        monkeypatch.setattr(revocation, "datetime", Later)
        ended = await asyncio.wait_for(bank.receive(), 60)
        assert ended.type in (aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.ERROR)
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await line("bank")
        assert refused.value.status == 403

    asyncio.run(scene(folder, kit, play))
    gc.collect()  # what is left open is told now, and not in another test


def test_revoking_counts_for_all_certificates_so_far(kit):
    moment = revocation.revoke(kit, "bank")
    assert revocation.revoked(kit) == {"bank": moment}
    assert abs(datetime.now(UTC) - moment) < timedelta(minutes=1)
    other = revocation.revoke(kit, "shop")
    assert revocation.revoked(kit) == {"bank": moment, "shop": other}
    looks = revocation.Revocation.__new__(revocation.Revocation)
    looks._file, looks._changed, looks._known = kit / "local" / "revoked.json", -1, {}
    for name, began, expected in (
        ("bank", moment, True),
        ("bank", moment + timedelta(seconds=1), False),
        ("post", moment, False),
    ):
        given = {
            "subject": ((("commonName", name),), (("organizationName", "intarsia"),)),
            "notBefore": f"{began:%b %d %H:%M:%S %Y} GMT",
        }
        assert looks.refuses(given) is expected


def test_revoking_counts_for_a_certificate_of_a_clock_that_was_ahead(folder, kit, capfd):
    """It was signed by a clock that is set since, and nobody has connected with it so far."""
    described = FederationFile(name="two", sites=("bank", "shop"), patience=RetryPolicy())
    finish_kits(described, {"server": kit})
    ahead = (datetime.now(UTC) + timedelta(hours=3)).replace(microsecond=0)
    given, (part,) = kits.generate_cert, kits._parts("bank", "localhost")
    for place, moment in ((folder / "made", ahead), (folder / "bank", ahead - timedelta(hours=1))):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                kits,
                "generate_cert",
                lambda *some, moment=moment, **more: given(*some, not_valid_before=moment, **more),
            )
            (place / "startup").mkdir(parents=True, exist_ok=True)
            kits.Authority._drawn("two").equip(place / "startup", part)
    write_archive(folder / "bank.signed", folder / "made")
    revoke = ["federation", "revoke", str(kit)]
    assert main([*revoke, "bank"]) == 0
    assert "signed by a clock that was ahead; sign for it after" in capfd.readouterr().err
    assert revocation.revoked(kit) == {"bank": ahead}
    with pytest.raises(ExperimentError, match="or sign after that moment"):
        revocation.check_taken(kit, "bank")
    (folder / "bank.signed").write_bytes(b"cut")  # keeps nobody from revoking
    assert main([*revoke, "bank"]) == 0
    assert revocation.revoked(kit) == {"bank": ahead - timedelta(hours=1)}
    assert main([*revoke, "shop"]) == 0
    assert "was ahead" not in capfd.readouterr().err.splitlines()[-1]
    assert revocation.revoked(kit)["shop"] <= datetime.now(UTC)


def test_a_damaged_list_stops_a_server_that_starts_and_none_that_runs(folder, kit, quick):
    path = kit / "local" / "revoked.json"
    revocation.revoke(kit, "bank")
    looks = revocation.Revocation(str(path))
    path.write_text("{")
    os.utime(path, (1, 1))
    given = {"subject": ((("commonName", "bank"),),), "notBefore": "Nov 26 12:00:00 2020 GMT"}
    assert looks.refuses(given)
    with pytest.raises(ExperimentError, match=r"revoked\.json is damaged"):
        revocation.Revocation(str(path))


def test_the_servers_kit_alone_has_the_component_and_no_job_may_name_it(kit):
    assert revocation.COMPONENT not in nvflare._ALLOWED
    startup = kit / "startup"
    for scheme in ("http", "grpc"):
        service = {"service": {"scheme": scheme, "target": "localhost:8702"}}
        (startup / "fed_server.json").write_text(json.dumps({"servers": [service]}))
        defaults = {"components": [{"id": "other", "path": "nvflare.other"}]}
        (kit / "local" / "resources.json.default").write_text(json.dumps(defaults))
        nvflare._made_safe(kit, server=True, ahead=True)
        written = json.loads((kit / "local" / "resources.json").read_text())
        paths = [one["path"] for one in written["components"]]
        launcher = "intarsia.engines.transports.spare.Launcher"
        arrivals = "intarsia.engines.nvflare.Arrivals"
        origins = "intarsia.engines.transports.origins.Origins"
        own = [launcher, revocation.COMPONENT, arrivals, handshakes.COMPONENT, origins]
        assert paths[1:] == own
        assert not {*paths[1:]} & {*written["class_allow_list"]}
    revocation.revoke(kit, "bank")
    with pytest.raises(ExperimentError, match="scheme 'grpc', where certificates"):
        nvflare._made_safe(kit, server=True, ahead=True)
