"""Whether compressing messages between server and sites pays: ratio, speed, and up to which line.

    python benchmarks/compression.py [--write]

HyFDCA over three sites in this process, on the tables of the example credit; every call and answer
of 64 kB and more is compressed. Needs intarsia[privacy]; zstandard and lz4 are tried where they are
installed.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
import time
import zlib
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tables import number, show, write

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from intarsia.core.settings import toml_text
from intarsia.deployment import run as remote_running
from intarsia.deployment.client_setup import site_in
from intarsia.engines import codec
from intarsia.engines.remote.caller import RetryPolicy
from intarsia.engines.remote.wire import Call
from intarsia.experiment import config as experiment
from intarsia.testing.toy_sites import Lines
from key_folders import exchanged

ROOT = Path(__file__).parents[1]
LEAST = 64 << 10  # bytes of a message that is tried
CREDIT = ("bank", "telecom", "retailer")
COLUMNS = ("sums", "messages", "MB", "method", "left", "MB/s", "MB/s back", "pays below")
NOTES = (
    "HyFDCA, 3 rounds on the example credit. Calls and answers of 64 kB and more, as they cross; "
    "left: bytes after compression over those before; MB/s: of one core, of CPU time. Pays below: "
    "the speed of a line in Mbit/s below which a message arrives sooner compressed. Values under "
    "masks are random words."
)


@dataclass
class Kept:
    """Messages of one kind."""

    messages: list[bytes] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Return their bytes."""
        return sum(map(len, self.messages))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write a section of RESULTS.md")
    arguments = parser.parse_args()
    rows: list[list[str]] = []
    for mode, kept in measured():
        for kind, some in kept.items():
            for method, (squeeze, back) in methods().items():
                rows.append(row(mode, kind, some, method, squeeze, back))
    title = "Compressing messages"
    show(title, COLUMNS, rows)
    if arguments.write:
        write(title, COLUMNS, rows, seed=0, notes=NOTES)


def methods() -> dict[str, tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]]:
    """Return what is tried: how it compresses, and back."""
    found: dict[str, Any] = {
        "zlib 1": (lambda data: zlib.compress(data, 1), zlib.decompress),
    }
    try:
        zstd = importlib.import_module("zstandard")
        made = zstd.ZstdCompressor(level=1)
        found["zstd 1"] = (made.compress, zstd.ZstdDecompressor().decompress)
        lz4 = importlib.import_module("lz4.frame")
        found["lz4"] = (lz4.compress, lz4.decompress)
    except ImportError:
        pass
    return found


def row(
    mode: str,
    kind: str,
    some: Kept,
    method: str,
    squeeze: Callable[[bytes], bytes],
    back: Callable[[bytes], bytes],
) -> list[str]:
    """Return the row of a method on messages of a kind."""
    begin = time.process_time()
    made = [squeeze(one) for one in some.messages]
    spent = time.process_time() - begin
    begin = time.process_time()
    same = [back(one) for one in made]
    spent_back = time.process_time() - begin
    assert same == some.messages
    left, size = sum(map(len, made)) / some.size, some.size / 1e6
    pays = 8 * size * (1 - left) / (spent + spent_back) if left < 1 else 0.0
    told = [number(one) for one in (left, size / spent, size / spent_back, pays)]
    return [mode, kind, number(size), method, *told]


def measured() -> Any:
    """Yield the mode of sums of runs, and their large messages by kind."""
    for mode in ("plain", "masked"):
        yield mode, over(credit(mode), CREDIT)


def over(made: Callable[[Path], Any], names: tuple[str, ...]) -> dict[str, Kept]:
    """Run over sites; return the large calls and answers by the kind of call."""
    kept: dict[str, Kept] = defaultdict(Kept)

    def line(client: str, attempt: int, data: bytes, deliver: Any) -> bytes:
        answer: bytes = deliver(data)
        kind = codec.decode(data, Call).kind if data else ""
        for way, one in (("call", data), ("answer", answer)):
            if len(one) >= LEAST:
                kept[f"{kind}, {way}s"].messages.append(bytes(one))
        return answer

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        description = made(folder)
        sites = {one: site_in(folder / one) for one in names}
        patience = RetryPolicy(seconds=600.0, deadline=600.0, pause=0.001, probe=1.0)
        lines = Lines(sites, line)
        remote_running.run_over(description, lines, names, folder / "out", patience=patience)
    return dict(sorted(kept.items()))


def credit(mode: str) -> Callable[[Path], Any]:
    """Return what writes the sites of the data set credit, and gives the experiment."""

    def made(folder: Path) -> Any:
        exchanged(folder, CREDIT, "credit")
        given = experiment.load(ROOT / "experiments" / "credit.toml")
        tree = experiment.to_dict(given)
        for one in tree["client"]:
            text = "".join(f"{key} = {_toml(value)}\n" for key, value in one.items() if value)
            _write_site(folder, one["name"], text.replace(f'name = "{one["name"]}"\n', ""))
        tree["privacy"] = {"mode": mode, **({"key": "x"} if mode != "plain" else {})}
        tree["experiment"] |= {"rounds": 3, "yardsticks": False}
        return experiment.from_dict(tree, folder)

    return made


def _write_site(folder: Path, name: str, described: str) -> None:
    (folder / name).mkdir()
    own = f'[site]\nname = "{name}"\nids = true\nplain = true\n'
    own += f'key = "{folder}/keys/{name}/shared.key"\n'
    own += "[policy]\nmodels_readable = true\n"
    (folder / name / "site.toml").write_text(f"{own}[table]\n{described}", encoding="utf-8")


def _toml(value: Any) -> str:
    return toml_text(tuple(value) if isinstance(value, list) else value)


if __name__ == "__main__":
    main()
