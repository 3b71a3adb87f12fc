"""Hosts with addresses of their own on one machine, joined by a wire that delays and loses packets.

Each host is a network namespace whose only way out is a device of type tun; this program carries
IP packets between them. It needs root, and neither a bridge nor the kernel's netem.

python lossy_network.py SECONDS LOSS NAMESPACE=ADDRESS...
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import heapq
import json
import os
import random
import selectors
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

TUN = Path("/dev/net/tun")
DEVICE = "wire0"
_SET_DEVICE, _PLAIN, _NEW_NETWORK = 0x400454CA, 0x1001, 0x40000000


def lacking():
    """Return what this machine lacks for such a network, "" if nothing."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "namespaces of networks need root on Linux"
    if shutil.which("ip") is None or not TUN.exists():
        return "there is no command ip, or no /dev/net/tun"
    name = f"ixt{os.getpid()}"
    if subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode:
        return "no namespace can be made"
    subprocess.run(["ip", "netns", "del", name], check=True)
    return ""


class Network:
    """A namespace for each name; `host` is the name of the first of them on the network."""

    def __init__(self, names, host, seconds=0.02, loss=0.05):
        self.spaces = {name: f"ix{os.getpid()}-{number}" for number, name in enumerate(names)}
        self.addresses = {name: f"10.77.0.{number}" for number, name in enumerate(names, 1)}
        self._wire, self._settings, self._host = None, (seconds, loss), host

    def __enter__(self):
        for name, space in self.spaces.items():
            ip("netns", "add", space)
            own = Path("/etc/netns") / space  # what the namespace sees in /etc
            own.mkdir(parents=True)
            first = next(iter(self.addresses.values()))
            (own / "hosts").write_text(f"127.0.0.1 localhost\n{first} {self._host}\n")
            ip("netns", "exec", space, "ip", "tuntap", "add", "dev", DEVICE, "mode", "tun")
            address = f"{self.addresses[name]}/24"
            ip("netns", "exec", space, "ip", "address", "add", address, "dev", DEVICE)
            for device in ("lo", DEVICE):
                ip("netns", "exec", space, "ip", "link", "set", device, "up")
        ends = [f"{space}={self.addresses[name]}" for name, space in self.spaces.items()]
        command = [sys.executable, __file__, *map(str, self._settings), *ends]
        self._wire = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._wire.stdout.readline() == "ready\n"
        return self

    def place(self, name):
        """Return the words before a command that is to run at a host."""
        return ["ip", "netns", "exec", self.spaces[name]]

    def close(self):
        """Return how many packets were carried, and how many were lost."""
        self._wire.send_signal(signal.SIGTERM)
        return json.loads(self._wire.communicate(timeout=30)[0])

    def __exit__(self, *_):
        if self._wire is not None:
            self._wire.kill()
            self._wire.wait()
        for space in self.spaces.values():
            with contextlib.suppress(subprocess.CalledProcessError):
                ip("netns", "del", space)
            shutil.rmtree(Path("/etc/netns") / space, ignore_errors=True)


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True)


# -- the wire, a process of its own


def end_in(space):
    """Return the file of the device in a namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    here = os.open("/proc/self/ns/net", os.O_RDONLY)
    there = os.open(f"/run/netns/{space}", os.O_RDONLY)
    try:
        if libc.setns(there, _NEW_NETWORK):
            raise OSError(ctypes.get_errno(), f"cannot enter {space}")
        file = os.open(TUN, os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(file, _SET_DEVICE, struct.pack("16sH22x", DEVICE.encode(), _PLAIN))
        return file
    finally:
        libc.setns(here, _NEW_NETWORK)
        os.close(here)
        os.close(there)


def carry(seconds, loss, ends):
    """Carry packets until the signal to end; return how many, and how many were lost."""
    ended, drawn = [], random.Random(0)
    signal.signal(signal.SIGTERM, lambda *_: ended.append(True))
    to = {socket.inet_aton(address): end_in(space) for space, address in ends.items()}
    watch = selectors.DefaultSelector()
    for file in to.values():
        watch.register(file, selectors.EVENT_READ)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    waiting, number, carried, lost = [], 0, 0, 0
    while not ended:
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            _, _, file, packet = heapq.heappop(waiting)
            with contextlib.suppress(OSError):  # its host is gone
                os.write(file, packet)
                carried += 1
        pause = max(0.0, waiting[0][0] - now) if waiting else 0.2
        for key, _ in watch.select(pause):
            with contextlib.suppress(BlockingIOError):
                while packet := os.read(key.fd, 65536):
                    file = to.get(packet[16:20]) if packet[0] >> 4 == 4 else None
                    if file is None:
                        continue
                    if drawn.random() < loss:
                        lost += 1
                        continue
                    number += 1
                    heapq.heappush(waiting, (time.monotonic() + seconds, number, file, packet))
    return {"carried": carried, "lost": lost}


if __name__ == "__main__":
    known = dict(word.split("=") for word in sys.argv[3:])
    counts = carry(float(sys.argv[1]), float(sys.argv[2]), known)
    sys.stdout.write(json.dumps(counts) + "\n")
