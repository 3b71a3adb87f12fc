"""What a call to several sites costs over NVIDIA FLARE: small ones, and 8 MB beside plain gRPC.

Sites and a server on this machine, over mutual TLS, as `intarsia federation provision` sets them
up. A job calls all sites at once, as `intarsia federation ping` does: by what the framework has for
it, its Collab API, and as this package calls them, in turn. With four sites plain gRPC does the
same over TLS with 8 MB, from one process to four servers, before and after it. What else the
machine does is for all the same.

    python benchmarks/engines.py [--sites 4] [--repeats 3] [--write]   # needs intarsia[nvflare]
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
import psutil
from tables import number, show, write

SITES = [f"site-{one:02}" for one in range(1, 5)]
SIZE, CALLS, PORT = 8 << 20, 30, 19702
OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
METHOD = "/site/handle"
WANTED = {4: 15, 16: 30}  # ms of a small call
COLUMNS = ("engine and size", "median ms", "least ms", "CPU ms", "ratio", "ratio of least")
NOTES = (
    "Mutual TLS over loopback, to all sites at once: by the clock from the call until the last has "
    "answered; CPU of the server, its job, all sites and their jobs. They share the {cores} cores "
    "of one machine with others; load {load:.1f} when it ended. Small: no bytes go, and a version "
    "comes back. Alone: by the framework's Collab API, which streams what is short, too; what this "
    "package sends of up to 256 KiB is one message. Wanted of small ones: {wanted}."
)
LARGE = (
    " 8 MB go to each site, a few bytes come back. Wanted there was a ratio of 1.2, which is "
    "missed: FLARE's server hands on what its job sends, so that every byte crosses two "
    "connections and is copied in Python in three processes, in frames of 1 MB. Of its transports "
    "the one in use, websockets, takes the least CPU time: sockets 1.1, gRPC 1.3 times as much "
    "(one run each); frames of 256 KB take longer, of 4 MB never arrive, and none was faster."
)


def main() -> None:
    if sys.argv[1:2] == ["--serve"]:
        serve(int(sys.argv[2]), Path(sys.argv[3]))
        return
    parser = argparse.ArgumentParser()
    parser.add_argument("--sites", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    SITES[:] = [f"site-{one:02}" for one in range(1, given.sites + 1)]
    large = given.sites == 4
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # what is installed is compiled once
    os.environ["LARGE"] = str(int(large))
    own = str(Path(__file__).parent)  # for the job's `measured`
    os.environ["PYTHONPATH"] = os.pathsep.join([own, os.environ.get("PYTHONPATH", "")])
    found: dict[str, list[float]] = {}
    busy: dict[str, list[float]] = {}
    wire: list[float] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        provision(folder)
        with federation_of(folder / "kits"):
            entries = folder / "kits" / "server" / "local" / "entry_points.json"
            entries.write_text(json.dumps({"job": f"{Path(__file__).stem}.measured"}))
            for _ in range(given.repeats):
                wire += plain(folder) if large else []
                said = json.loads(federation("ping", folder / "kits" / "server").stdout)
                for way, seconds in said["seconds"].items():
                    found.setdefault(way, []).extend(seconds)
                    busy.setdefault(way, []).append(said["cpu"][way])
                wire += plain(folder) if large else []
    rows = []
    for way, seconds in found.items():
        times = [number(1000 * how(seconds)) for how in (median, min)]
        ratios = [number(how(seconds) / how(wire)) for how in (median, min)] if wire else []
        cpu = number(1000 * median(busy[way]))
        rows.append([way, *times, cpu, *(ratios if "8 MB" in way else ("–", "–"))])
    if wire:
        times = [number(1000 * how(wire)) for how in (median, min)]
        rows.append(["plain gRPC, 8 MB", *times, "–", "1", "1"])
    wanted = f"{WANTED[given.sites]} ms" if given.sites in WANTED else "nothing"
    about = {"cores": os.cpu_count(), "load": os.getloadavg()[0], "wanted": wanted}
    notes = NOTES.format(**about) + (LARGE if large else "")
    title = f"A call to {given.sites} sites"
    show(title, COLUMNS, rows)
    print(notes)
    if given.write:
        write(title, COLUMNS, rows, seed=0, notes=notes)


def measured(folder: Path, run: str, lines) -> None:
    """Measure calls: the main function of the server's job, in place of what `ping` runs there."""
    proxies = [lines._proxies[name] for name in lines.clients]

    def alone(data: bytes) -> None:
        list(pool.map(lambda one: one(timeout=60.0).handle(data), proxies))

    def ours(data: bytes) -> None:
        list(pool.map(lambda one: lines.send(one, data, 60.0), lines.clients))

    ways = {
        "NVIDIA FLARE alone, small": (alone, 0),
        "this package over it, small": (ours, 0),
        **({"this package over it, 8 MB": (ours, SIZE)} if os.environ["LARGE"] == "1" else {}),
    }
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    cpu = dict.fromkeys(ways, 0.0)
    with ThreadPoolExecutor(len(proxies)) as pool:
        for turn in range(4):
            for way, (call, size) in ways.items():
                data = bytes(size)
                call(data)
                before, count = _busy(folder.parents[1]), CALLS if not size else CALLS // 4
                for _ in range(count):
                    begin = time.perf_counter()
                    call(data)
                    if turn:  # in the first much is done for the first time
                        seconds[way].append(time.perf_counter() - begin)
                if turn:
                    cpu[way] += (_busy(folder.parents[1]) - before) / count / 3
    out = folder / "runs" / run / "out"
    out.mkdir(exist_ok=True)
    said = {"seconds": seconds, "cpu": cpu, "sites": list(lines.clients)}
    (out / "result.json").write_text(json.dumps(said))


def _busy(kits: Path) -> float:
    """Return the seconds for which the processes of all kits were at work."""
    found = 0.0
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if any(str(kits) in word for word in process.cmdline()):
                found += sum(process.cpu_times()[:2])
    return found


def federation(*words: object, check: bool = True) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "intarsia", "federation", *map(str, words)]
    return subprocess.run(command, check=check, capture_output=True, text=True)


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
        [*start, "server", str(kits / "server"), "--no-spare"],
        *([*start, "site", str(kits / name), "--no-spare"] for name in SITES),
    ):
        while federation("status", kits / "server", "--json", "--sites", check=False).returncode:
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
