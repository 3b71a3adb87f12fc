"""What a call to four sites costs over NVIDIA FLARE: small ones, and 8 MB beside plain gRPC.

Four sites and a server on this machine, over mutual TLS, as `intarsia federation provision` sets
them up. `intarsia federation ping` calls all sites at once; plain gRPC does the same over TLS,
from one process to four servers, before and after it. Both several times in turn: what else the
machine does is for both the same.

    python benchmarks/engines.py [--repeats 3] [--write]           # needs intarsia[nvflare]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

import grpc
from tables import number, show, write

SITES = ("one", "two", "three", "four")
SIZE, CALLS, PORT = 8 << 20, 30, 19702
OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
METHOD = "/site/handle"
NOTES = (
    "By the clock, mutual TLS over loopback, to all sites at once: from the call until the last "
    "has answered. 8 MB go to each site, a few bytes come back. All processes (of FLARE: the "
    "server, its job, four sites and their jobs) share the cores of one machine, two here, with "
    "others; load {load:.0f} when it ended. Wanted: 25 ms for small ones, and a ratio of 1.2, "
    "which is missed: FLARE's server hands on what its job sends, so that every byte crosses two "
    "connections and is copied in Python in three processes, in frames of 1 MB. Of its transports "
    "the one in use, websockets, takes the least CPU time: sockets 1.1, gRPC 1.3 times as much "
    "(one run each); frames of 256 KB take longer, of 4 MB never arrive, and none was faster."
)


def main() -> None:
    if sys.argv[1:2] == ["--serve"]:
        serve(int(sys.argv[2]), Path(sys.argv[3]))
        return
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    small: list[float] = []
    large: list[float] = []
    wire: list[float] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        provision(folder)
        with federation_of(folder / "kits"):
            for _ in range(given.repeats):
                wire += plain(folder)
                found = json.loads(federation("ping", folder / "kits" / "server").stdout)
                small += found["seconds"]["small"]
                large += found["seconds"]["8 MB"]
                wire += plain(folder)
    ratios = [number(how(large) / how(wire)) for how in (median, min)]
    rows = [
        [name, *(number(1000 * how(seconds)) for how in (median, min)), *more]
        for name, seconds, more in (
            ("NVIDIA FLARE, small", small, ["–", "–"]),
            (
                "NVIDIA FLARE, 8 MB",
                large,
                ratios,
            ),
            ("plain gRPC, 8 MB", wire, ["1", "1"]),
        )
    ]
    title = f"A call to {len(SITES)} sites"
    columns = ["engine and size", "median ms", "least ms", "ratio", "ratio of least"]
    show(title, columns, rows)
    if given.write:
        write(title, columns, rows, seed=0, notes=NOTES.format(load=os.getloadavg()[0]))


def federation(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "intarsia", "federation", *map(str, words)]
    return subprocess.run(command, check=True, capture_output=True, text=True)


def provision(folder: Path) -> None:
    sites = "".join(f'[[site]]\nname = "{name}"\n' for name in SITES)
    (folder / "federation.toml").write_text(f'[federation]\nname = "f"\nport = {PORT}\n{sites}')
    federation("provision", folder / "federation.toml", "-o", folder / "kits")
    for name in SITES:  # no key: nothing is summed here
        own = folder / "kits" / name / "local" / "site.toml"
        own.write_text(own.read_text().replace("plain = false", "plain = true", 1))


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


@contextlib.contextmanager
def federation_of(kits: Path):
    """Run the server and all sites."""
    start = [sys.executable, "-m", "intarsia", "federation"]
    with running(
        [*start, "server", str(kits / "server")],
        *([*start, "site", str(kits / name)] for name in SITES),
    ):
        while not json.loads(federation("status", kits / "server", "--json").stdout)["running"]:
            time.sleep(0.5)
        yield


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
