"""What a call to four sites costs over NVIDIA FLARE: small ones, and 8 MB beside plain gRPC.

Four sites and a server on this machine, over mutual TLS, as `intarsia federation provision` sets
them up. `intarsia federation ping` calls all sites at once; plain gRPC does the same over TLS,
from one process to four servers, before and after it.

    python benchmarks/engines.py            # needs intarsia[nvflare]
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

import grpc

SITES = ("one", "two", "three", "four")
SIZE, CALLS, PORT = 8 << 20, 30, 19702
OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
METHOD = "/site/handle"


def main() -> None:
    if sys.argv[1:2] == ["--serve"]:
        serve(int(sys.argv[2]), Path(sys.argv[3]))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        provision(folder)
        before = plain(folder)
        found = over_flare(folder)
        after = plain(folder)
    small, large = (median(found["seconds"][size]) for size in ("small", "8 MB"))
    wire = median(before + after)
    print(f"{datetime.date.today()}, {platform.processor() or platform.machine()}, ", end="")
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {len(SITES)} sites, mutual TLS")
    print(f"small calls over NVIDIA FLARE: {1000 * small:.1f} ms, median of {CALLS}")
    print(f"8 MB over NVIDIA FLARE:        {1000 * large:.0f} ms")
    print(f"8 MB over plain gRPC and TLS:  {1000 * wire:.0f} ms; ratio {large / wire:.2f}")


def federation(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "intarsia", "federation", *map(str, words)]
    return subprocess.run(command, check=True, capture_output=True, text=True)


def provision(folder: Path) -> None:
    sites = "".join(f'[[site]]\nname = "{name}"\n' for name in SITES)
    (folder / "federation.toml").write_text(f'[federation]\nname = "f"\nport = {PORT}\n{sites}')
    federation("provision", folder / "federation.toml", "-o", folder / "kits")


@contextlib.contextmanager
def running(*commands: list[str]):
    processes = [subprocess.Popen(one, stdout=subprocess.DEVNULL) for one in commands]
    try:
        yield
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(60)


def over_flare(folder: Path) -> dict[str, dict[str, list[float]]]:
    """Return the seconds of calls to all sites at once."""
    start = [sys.executable, "-m", "intarsia", "federation"]
    kits = folder / "kits"
    with running(
        [*start, "server", str(kits / "server")],
        *([*start, "site", str(kits / name)] for name in SITES),
    ):
        time.sleep(5)
        return json.loads(federation("ping", kits / "server").stdout)


def plain(folder: Path) -> list[float]:
    """Return the seconds of 8 MB to four plain gRPC servers at once, over TLS both ways."""
    kit = folder / "kits" / SITES[0] / "startup"
    root, key, chain = ((kit / one).read_bytes() for one in FILES)
    credentials = grpc.ssl_channel_credentials(root, key, chain)
    ports = [PORT + 10 + number for number in range(len(SITES))]
    me = str(Path(__file__).resolve())
    server = str(folder / "kits" / "server" / "startup")
    with running(*([sys.executable, me, "--serve", str(port), server] for port in ports)):
        calls = []
        for port in ports:
            channel = grpc.secure_channel(f"localhost:{port}", credentials, OPTIONS)
            grpc.channel_ready_future(channel).result(30)
            calls.append(channel.unary_unary(METHOD))
        seconds = []
        with ThreadPoolExecutor(len(calls)) as pool:
            for _ in range(CALLS // 2):
                begin = time.perf_counter()
                for done in [pool.submit(call, bytes(SIZE)) for call in calls]:
                    done.result()
                seconds.append(time.perf_counter() - begin)
    return seconds


FILES = ("rootCA.pem", "client.key", "client.crt")


def serve(port: int, startup: Path) -> None:
    """Answer calls with a few bytes."""
    root, key, chain = (
        (startup / one).read_bytes() for one in ("rootCA.pem", "server.key", "server.crt")
    )
    handler = grpc.unary_unary_rpc_method_handler(lambda data, _: b"%d" % len(data))
    server = grpc.server(ThreadPoolExecutor(2), options=OPTIONS)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("site", {"handle": handler}),)
    )
    credentials = grpc.ssl_server_credentials([(key, chain)], root, True)
    server.add_secure_port(f"localhost:{port}", credentials)
    server.start()
    server.wait_for_termination()


if __name__ == "__main__":
    main()
