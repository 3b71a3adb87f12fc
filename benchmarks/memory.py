"""Peak memory of a whole federation in one process, against its data, and seconds by part.

    python benchmarks/memory.py tables --write

measures tables of mixed columns with many levels, from CSV: to inspect them and to train on them.

    python benchmarks/memory.py million --write

measures runs on 1,000,000 samples of four organisations: seconds by part, and peak memory.

    python benchmarks/memory.py beyond --write

makes Parquet files of 5 GB, trains on them under a limit of memory and without, and inspects them.

    python benchmarks/memory.py networks --write

measures networks on tables with a category of thousands of levels, against a full matrix of them.
`python benchmarks/hyfdca.py memory` measures named data sets.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as arrow_parquet
from problems import PROBLEMS, deal, synthetic, value_bytes
from scipy.sparse import csr_array
from tables import number, show, write
from threadpoolctl import threadpool_limits

from intarsia.algorithms.hyfdca.algorithm import HYFDCA
from intarsia.algorithms.hyfdca.state import HyFDCA
from intarsia.core.block import Block, ClientId, Labels
from intarsia.core.client_functions import RandomKey
from intarsia.core.schema import Schema
from intarsia.engines.simulation import Simulation

__all__ = ["measure_all"]

_COLUMNS = (
    "problem",
    "data MB",
    "limit MB",
    "training MB",
    "dealing MB",
    "libraries MB",
    "of training file-backed MB",
    "gap",
    "within",
    "within, not file-backed",
    "within, over libraries",
)
_NOTES = (
    "Peak resident memory of a fresh process that reads all clients' blocks from files and trains "
    "to a relative gap of 1e-6 (blocks included); of the process before it, which reads the whole "
    "data set and deals it out; and of the libraries alone (imported, kernels loaded). "
    "File-backed: the libraries' code and constants, which are mapped from their files, at the end "
    "of training; processes share them, and the system drops them where memory is short. Limit: "
    "1.3 × the clients' values + 200 MB, held against training, against it less what is "
    "file-backed, and less the libraries."
)


def measure_all(arguments: argparse.Namespace) -> None:
    loss = arguments.loss[0]
    rows: list[list[str]] = []
    for name in arguments.data:
        with tempfile.TemporaryDirectory() as folder:
            found = _apart("deal", name, str(arguments.seed), folder)
            found |= _apart("train", name, str(arguments.seed), folder, loss)
        limit = 1.3 * found["data"] + 200e6
        peaks = [found[key] / 1e6 for key in ("training", "dealing", "libraries", "mapped")]
        rows.append(
            [
                name,
                number(found["data"] / 1e6),
                number(limit / 1e6, 4),
                *(number(peak, 4) for peak in peaks),
                f"{found['gap']:.0e}",
                "yes" if found["training"] <= limit else "no",
                "yes" if found["training"] - found["mapped"] <= limit else "no",
                "yes" if found["training"] - found["libraries"] <= limit else "no",
            ]
        )
    title = f"HyFDCA, peak memory, {loss}"
    show(title, _COLUMNS, rows)
    if arguments.write:
        write(title, _COLUMNS, rows, seed=arguments.seed, notes=_NOTES)


_TABLE_COLUMNS = ("task", "CSV MB", "dense MB", "limit MB", "peak MB", "seconds", "within")
_TABLE_NOTES = (
    "Two clients hold {rows:,} rows of 20 columns of numbers and 5 of categories each, with 2,000 "
    "levels in all. Peak resident memory of a fresh process for the whole command, libraries "
    "included, against 4 × the size of the files and 600 MB. Dense: the values if each level were "
    "a dense column."
)
_LEVELS = ((1000, 500, 200, 100, 50), (50, 25, 25, 25, 25))
_EXPERIMENT = """
[experiment]
name = "levels"
rounds = 100
yardsticks = {yardsticks}
[algorithm]
name = "hyfdca"
loss = "logistic"
regularisation = 1e-3
[[client]]
name = "west"
path = "0.csv"
id = "id"
label = "y"
categorical = ["c0", "c1", "c2", "c3", "c4"]
[[client]]
name = "east"
path = "1.csv"
id = "id"
categorical = ["c5", "c6", "c7", "c8", "c9"]
"""


def _measure_tables(arguments: argparse.Namespace) -> None:
    """Measure the commands on tables of mixed columns with many levels."""
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write_tables(folder, arguments.rows, arguments.seed)
        size = sum(one.stat().st_size for one in folder.glob("*.csv"))
        for yardsticks in (False, True):
            text = _EXPERIMENT.format(yardsticks=str(yardsticks).lower())
            (folder / f"{yardsticks}.toml").write_text(text)
        width = 40 + sum(map(sum, _LEVELS))
        limit = 4 * size + 600e6
        tasks = {
            "inspect": ("inspect", "False.toml"),
            "run": ("run", "False.toml"),
            "run with comparisons": ("run", "True.toml", "--overwrite"),
        }
        for task, words in tasks.items():
            began = time.monotonic()
            peak = _peak_of([sys.executable, "-m", "intarsia", *words], folder)
            figures = (size, arguments.rows * width * 8, limit, peak)
            rows.append(
                [
                    task,
                    *(number(one / 1e6, 4) for one in figures),
                    number(time.monotonic() - began),
                    "yes" if peak <= limit else "no",
                ]
            )
    title = "Tables with many levels, peak memory"
    show(title, _TABLE_COLUMNS, rows)
    if arguments.write:
        notes = _TABLE_NOTES.format(rows=arguments.rows)
        write(title, _TABLE_COLUMNS, rows, seed=arguments.seed, notes=notes)


_NETWORK_COLUMNS = (
    *("algorithm", "rows of a client", "its features", "full matrix MB", "libraries MB", "peak MB"),
    *("(peak - libraries) / full matrix", "training s", "evaluation s"),
)
_NETWORK_NOTES = (
    "Two clients with rows of their own, eight columns of numbers and a category of {levels:,} "
    "levels, a fifth of the rows for testing; `intarsia run` in one process, {rounds} round, no "
    "reference models. Full matrix: the training rows of one client in single precision. "
    "Libraries: the peak of the same command on 400 rows with four levels."
)
_NETWORK_EXPERIMENT = """
[experiment]
name = "payments"
rounds = {rounds}
workers = 1
yardsticks = false
[algorithm]
name = "{algorithm}"
"""
_NETWORK_CLIENT = """
[[client]]
name = "{name}"
path = "{name}.csv"
id = "id"
label = "fraud"
categorical = ["shop"]
"""
_NETWORK_LEVELS = 3000


def _measure_networks(arguments: argparse.Namespace) -> None:
    """Measure networks on tables with a category of many levels."""
    rows: list[list[str]] = []
    for algorithm in ("hyfem", "flic", "hetfedrep", "femam"):
        own: dict[str, float] = {}
        peaks: dict[int, int] = {}
        groups: list[Any] = []
        for count, levels in ((400, 4), (arguments.rows, _NETWORK_LEVELS)):
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                _write_payments(folder, count, levels, arguments.seed)
                text = _NETWORK_EXPERIMENT.format(rounds=1, algorithm=algorithm)
                text += "".join(_NETWORK_CLIENT.format(name=one) for one in "ab")
                (folder / "run.toml").write_text(text)
                command = [sys.executable, "-m", "intarsia", "run", "run.toml", "--out", "out"]
                peaks[count] = _peak_of(command, folder)
                own = json.loads((folder / "out/result.json").read_text())["seconds"]
                groups = json.loads((folder / "out/holdings.json").read_text())["features"]
        width = sum(features for _, features, _ in groups)  # both clients have all
        full = 4 * 0.8 * arguments.rows * width
        least, peak = peaks[400], peaks[arguments.rows]
        rows.append(
            [
                *(algorithm, f"{arguments.rows:,}", f"{width:,}"),
                *(number(one / 1e6, 4) for one in (full, least, peak)),
                number((peak - least) / full),
                *(number(own[part]) for part in ("training", "evaluation")),
            ]
        )
        show("Networks on a category of many levels", _NETWORK_COLUMNS, rows[-1:])
    if arguments.write:
        title = "Networks on a category of many levels, peak memory"
        notes = _NETWORK_NOTES.format(levels=_NETWORK_LEVELS, rounds=1)
        write(title, _NETWORK_COLUMNS, rows, seed=arguments.seed, notes=notes)


def _write_payments(folder: Path, rows: int, levels: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    risk = rng.normal(size=levels)
    for number_of, name in enumerate("ab"):
        amounts = rng.normal(size=(rows, 8)).round(3)
        shop = np.concatenate([np.tile(np.arange(levels), 5), rng.integers(0, levels, rows)])[:rows]
        score = risk[shop] + amounts[:, 0] - 1.0
        fraud = (rng.random(rows) < 1 / (1 + np.exp(-score))).astype(int)
        columns = {"id": np.arange(rows) + number_of * rows}
        columns |= {f"amount{at}": amounts[:, at] for at in range(8)}
        columns |= {"shop": np.char.add("shop ", shop.astype(str)), "fraud": fraud}
        arrow_csv.write_csv(pa.table(columns), folder / f"{name}.csv")


_PARTS = ("tables", "checkpoints", "preprocessing", "training", "evaluation", "model", "yardsticks")
_LARGE_COLUMNS = (
    *("table", "file MB", "read_csv s", "wall s", *(f"{part} s" for part in _PARTS)),
    *("rounds", "(tables + checkpoints) / training", "tables / read_csv", "peak MB"),
)
_LARGE_NOTES = (
    "Four clients: two halves of the rows × two halves of the columns of {rows:,} samples. "
    "`intarsia run` with HyFDCA, logistic loss, λ = {rate:g}, all else by default: 20 % of the "
    "samples for testing, checkpoints, reference models. Ids are text. Seconds by part as "
    "`result.json` has them; tables: reading, ids, encoding, the test part; checkpoints: the "
    "checksum of all tables too. read_csv: pandas reads the same files, in a process of its own "
    "just before. Mixed: 30 columns of numbers and 6 of categories; numeric: 36 of numbers; wide: "
    "6 of numbers and 6 of categories with 1,200 levels; fifty: 40 of numbers and 10 of categories."
)
_CPU_NOTES = (
    " Seconds are of the processor, not of the clock, which counts what others compute beside it; "
    "without reference models."
)
_ON_CPU = (
    "import time; time.perf_counter = time.process_time; from intarsia.cli.main import main; main()"
)
_LARGE_RATE = 1e-4
_LARGE = {  # columns of numbers, and the levels of the others
    "mixed": (30, (3, 5, 8, 12, 20, 50)),
    "numeric": (36, ()),
    "wide": (6, (500, 250, 200, 150, 75, 25)),
    "fifty": (40, (2, 3, 4, 5, 8, 12, 20, 50, 100, 150)),
}
_LARGE_EXPERIMENT = """
[experiment]
name = "million"
[algorithm]
name = "hyfdca"
loss = "logistic"
regularisation = {rate}
"""
_LOAD = """
import sys, time, pandas
began = time.{clock}()
tables = [pandas.read_{ending}(path) for path in sys.argv[1:]]
print(time.{clock}() - began)
"""
_LARGE_CLIENT = """
[[client]]
name = "{name}"
path = "{name}.{ending}"
id = "patient"
categorical = {categorical}
"""


def _measure_million(arguments: argparse.Namespace) -> None:
    """Measure runs on tables of many rows, part by part."""
    rows: list[list[str]] = []
    for table in arguments.tables:
        for ending in arguments.format:
            with tempfile.TemporaryDirectory() as name:
                rows.append(_million(Path(name), table, ending, arguments))
            show("A million rows", _LARGE_COLUMNS, rows[-1:])
    title = f"Tables of {arguments.rows:,} rows, by part"
    show(title, _LARGE_COLUMNS, rows)
    if arguments.write:
        notes = _LARGE_NOTES.format(rows=arguments.rows, rate=_LARGE_RATE)
        notes += _CPU_NOTES if arguments.cpu else ""
        write(title, _LARGE_COLUMNS, rows, seed=arguments.seed, notes=notes)


def _million(folder: Path, table: str, ending: str, arguments: argparse.Namespace) -> list[str]:
    files = _write_million(folder, table, ending, arguments.rows, arguments.seed)
    load = _LOAD.format(ending=ending, clock="process_time" if arguments.cpu else "perf_counter")
    command = [sys.executable, "-c", load, *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    read = float(done.stdout)
    began = time.monotonic()
    run = ["-c", _ON_CPU] if arguments.cpu else ["-m", "intarsia"]
    more = ["--no-yardsticks"] if arguments.cpu else []
    peak = _peak_of([sys.executable, *run, "run", "run.toml", *more], folder)
    wall = time.monotonic() - began
    (out,) = folder.glob("**/result.json")
    found = json.loads(out.read_text())
    spent = found["seconds"]
    outside = spent.get("tables", 0.0) + spent.get("checkpoints", 0.0)
    return [
        f"{table}, {ending}",
        number(sum(path.stat().st_size for path in files) / 1e6),
        *(number(one) for one in (read, wall, *(spent.get(part) for part in _PARTS))),
        str(found["rounds"]),
        number(outside / spent["training"]),
        number(spent["tables"] / read),
        number(peak / 1e6, 4),
    ]


def _write_million(folder: Path, table: str, ending: str, rows: int, seed: int) -> list[Path]:
    """Write the tables of four clients, and the experiment beside them; return their files."""
    rng = np.random.default_rng(seed)
    width, levels = _LARGE[table]
    columns: dict[str, Any] = {f"n{at}": rng.normal(size=rows).round(4) for at in range(width)}
    score = sum(columns[f"n{at}"] for at in range(0, width, 3))
    for at, many in enumerate(levels):
        codes = rng.integers(0, many, rows)
        names = pa.array([f"level {one}" for one in range(many)])
        columns[f"c{at}"] = pa.DictionaryArray.from_arrays(codes.astype(np.int32), names)
        score = score + rng.normal(size=many)[codes]
    columns["outcome"] = np.where(score + rng.normal(size=rows) > 0, "yes", "no")
    ids = np.char.add("P", (10_000_000 + rng.permutation(rows)).astype(str))
    order = [*(f"n{at}" for at in range(width)), *(f"c{at}" for at in range(len(levels)))]
    files: list[Path] = []
    text = _LARGE_EXPERIMENT.format(rate=_LARGE_RATE)
    for place, name in enumerate(("north west", "north east", "south west", "south east")):
        held = slice(rows // 2) if place < 2 else slice(rows // 2, rows)
        own = order[place % 2 :: 2] + (["outcome"] if place % 2 == 0 else [])
        shuffled = rng.permutation(np.arange(rows)[held])
        data = {"patient": ids, **{one: columns[one] for one in own}}
        made = pa.table({one: pa.array(values).take(shuffled) for one, values in data.items()})
        files.append(folder / f"{name}.{ending}")
        if ending == "csv":
            plain = [
                one.cast(pa.string()) if pa.types.is_dictionary(one.type) else one for one in made
            ]
            arrow_csv.write_csv(pa.table(plain, names=made.column_names), files[-1])
        else:
            arrow_parquet.write_table(made, files[-1])
        listed = json.dumps([one for one in own if one.startswith("c")])
        text += _LARGE_CLIENT.format(name=name, ending=ending, categorical=listed)
        text += 'label = "outcome"\n' if place % 2 == 0 else ""
    (folder / "run.toml").write_text(text)
    return files


_BEYOND_COLUMNS = (
    *("task", "memory", "limit GB", "wall s", "CPU s", "of it reading s", "of it training s"),
    *("peak of its own MB", "gap", "same model"),
)
_BEYOND_NOTES = (
    "Four clients, two halves of the rows × two halves of the columns: {rows:,} samples and "
    "{width} columns of numbers, {size:.3g} GB of {ending}. `intarsia run` with HyFDCA, logistic "
    "loss, λ = {rate:g}, all else by default, without reference models, in one process. The limit "
    "is of the memory that a process has of its own (RLIMIT_DATA: a larger allocation fails); "
    "what is mapped from files, which the system drops where memory is short, does not count. "
    "Peak: of resident memory that is no file's."
)
_BEYOND_WIDTH = 250
_LIMITED = """
import resource, sys
if limit := int(sys.argv.pop(1)):
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
from intarsia.__main__ import main
sys.exit(main())
"""


def _measure_beyond(arguments: argparse.Namespace) -> None:
    """Measure runs on tables that are larger than the memory."""
    rows: list[list[str]] = []
    width = arguments.width
    count = int(arguments.gigabytes * 1e9 / 8 / width)
    limit = arguments.limit
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        ending = arguments.format[0]
        size = _write_beyond(folder, count, width, ending, arguments.seed)
        models: list[bytes] = []
        for task, memory, most in (
            ("run", f"{limit}GB", limit),
            ("inspect", "0.5GB", 0.0),
            ("run", "1TB", 0.0),
        ):
            if task == "run" and not most and arguments.limited_only:
                continue
            out = f"out-{memory}"
            words = [task, "run.toml", "-c", f"experiment.memory={memory}"]
            words += ["--out", out, "--no-yardsticks"] if task == "run" else []
            command = [sys.executable, "-c", _LIMITED, str(int(most * 1e9)), *words]
            began = time.monotonic()
            peak, cpu = _own_peak_of(command, folder)
            cells = [task, memory, number(most), number(time.monotonic() - began), number(cpu)]
            if task == "inspect":
                cells += ["–", "–", number(peak / 1e6, 4), "–", "–"]
            else:
                found = json.loads((folder / out / "result.json").read_text())
                models.append((folder / out / "model" / "linear.json").read_bytes())
                spent = (found["seconds"][part] for part in ("tables", "training"))
                cells += [*map(number, spent), number(peak / 1e6, 4)]
                gap = found["certificate"]["gap_relative"]
                cells += [f"{gap:.0e}", "yes" if models[-1] == models[0] else "no"]
            rows.append(cells)
            show("beyond memory", _BEYOND_COLUMNS, rows[-1:])
    title = f"Tables beyond memory, {arguments.gigabytes:g} GB of {ending}"
    show(title, _BEYOND_COLUMNS, rows)
    if arguments.write:
        given = {"rows": count, "width": width, "size": size / 1e9, "rate": _LARGE_RATE}
        given["ending"] = ending
        notes = _BEYOND_NOTES.format(**given)
        write(title, _BEYOND_COLUMNS, rows, seed=arguments.seed, notes=notes)


def _write_beyond(folder: Path, rows: int, width: int, ending: str, seed: int) -> int:
    """Write the tables of four clients some rows at a time; return their size in bytes."""
    rng = np.random.default_rng(seed)
    ids, truth = rng.permutation(rows), rng.normal(size=width) / width**0.5
    names = [f"n{at}" for at in range(width)]
    text = _LARGE_EXPERIMENT.format(rate=_LARGE_RATE)
    text = text.replace("[algorithm]", "workers = 1\n[algorithm]")
    half = rows // 2
    for place, north in enumerate(("north", "south")):
        writers: dict[str, arrow_parquet.ParquetWriter | arrow_csv.CSVWriter] = {}
        for start in range(place * half, rows if place else half, 50_000):
            held = slice(start, min(start + 50_000, rows if place else half))
            x = rng.normal(size=(held.stop - held.start, width))
            x = x.round(4) if ending == "csv" else x
            label = x @ truth + 0.5 * rng.normal(size=len(x)) > 0
            for side, own in (("west", names[::2]), ("east", names[1::2])):
                columns = {
                    "patient": ids[held],
                    **dict(zip(own, x[:, side == "east" :: 2].T, strict=True)),
                }
                if side == "west":
                    columns["outcome"] = np.where(label, "yes", "no")
                table = pa.table({one: pa.array(values) for one, values in columns.items()})
                path = folder / f"{north} {side}.{ending}"
                if side not in writers and ending == "csv":
                    writers[side] = arrow_csv.CSVWriter(path, table.schema)
                elif side not in writers:
                    writers[side] = arrow_parquet.ParquetWriter(
                        path, table.schema, use_dictionary=["outcome"] if side == "west" else False
                    )
                writers[side].write_table(table)
        for side, writer in writers.items():
            writer.close()
            text += _LARGE_CLIENT.format(name=f"{north} {side}", ending=ending, categorical="[]")
            text += 'label = "outcome"\n' if side == "west" else ""
    (folder / "run.toml").write_text(text)
    return sum(path.stat().st_size for path in folder.glob(f"*.{ending}"))


def _own_peak_of(command: list[str], folder: Path) -> tuple[int, float]:
    """Return a command's peak resident memory that is no file's, in bytes, and its CPU seconds."""
    peak = 0
    with (folder / "said.txt").open("w+") as said:
        # Arrow's own allocator would claim 1 GiB at once, whatever it needs
        environment = {**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system"}
        process = subprocess.Popen(
            command, cwd=folder, stdout=subprocess.DEVNULL, stderr=said, env=environment
        )
        status = Path(f"/proc/{process.pid}/status")
        while True:
            done, code, used = os.wait4(process.pid, os.WNOHANG)
            if done:
                break
            lines = status.read_text().splitlines()
            own = (int(one.split()[1]) for one in lines if one.startswith("RssAnon:"))
            peak = max(peak, next(own, 0) * 1024)
            time.sleep(0.05)
        process.returncode = os.waitstatus_to_exitcode(code)
        if process.returncode:
            said.seek(0)
            raise SystemExit(f"{' '.join(command)} failed:\n{said.read()}")
    return peak, used.ru_utime + used.ru_stime


def _write_tables(folder: Path, rows: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    every = [rng.integers(0, levels, rows) for some in _LEVELS for levels in some]
    numbers = rng.normal(size=(40, rows)).round(2)
    score = numbers[:5].sum(axis=0) + every[0] % 7 - 3 + every[3] % 3
    label = (score + rng.normal(size=rows) > 1).astype(int)
    for client in range(2):
        names = [f"n{at}" for at in range(20 * client, 20 * client + 20)]
        columns = [numbers[at] for at in range(20 * client, 20 * client + 20)]
        names += [f"c{at}" for at in range(5 * client, 5 * client + 5)]
        texts = [
            np.char.add("l", every[at].astype(str)) for at in range(5 * client, 5 * client + 5)
        ]
        names += ["y"] if client == 0 else []
        columns += [*texts, label] if client == 0 else texts
        with (folder / f"{client}.csv").open("w") as file:
            file.write(",".join(["id", *names]) + "\n")
            for row, values in enumerate(zip(*columns, strict=True)):
                file.write(",".join([str(row), *map(str, values)]) + "\n")


def _peak_of(command: list[str], folder: Path) -> int:
    """Return the peak resident memory of a command, in bytes (Linux)."""
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        said = process.stderr.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed:\n{said}")
    return used.ru_maxrss * 1024


def _peak() -> int:
    """Return the peak resident memory since the last reset, in bytes (Linux)."""
    return _status("VmHWM")


def _status(key: str) -> int:
    """Return a number of bytes that the system keeps of this process (Linux)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"this system does not tell {key} in /proc/self/status")


def _apart(*arguments: str) -> dict[str, Any]:
    """Run a part of the measurement in a process of its own."""
    command = [sys.executable, __file__, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _deal(name: str, seed: int, folder: Path) -> dict[str, Any]:
    """Write the clients' blocks into a folder, each party's as a file."""
    _, labels, blocks = deal(name, PROBLEMS[name].grid, seed)
    (folder / "labels.json").write_text(json.dumps(asdict(labels)))
    for client, block in blocks.items():
        x = block.x
        sparse = isinstance(x, csr_array)
        parts = {"data": x.data, "indices": x.indices, "indptr": x.indptr} if sparse else {"x": x}
        names = np.frombuffer("\n".join(block.features).encode(), np.uint8)
        np.savez(folder / client, samples=block.samples, y=block.y, names=names, **parts)
    return {"dealing": _peak()}


def _read(path: Path) -> Block:
    """Return a block that `_deal` wrote."""
    with np.load(path, allow_pickle=False) as file:
        names = tuple(file["names"].tobytes().decode().split("\n"))
        if "x" in file.files:
            x: Any = file["x"]
        else:
            shape = len(file["samples"]), len(names)
            x = csr_array((file["data"], file["indices"], file["indptr"]), shape=shape)
        return Block(file["samples"], names, x, file["y"])


def _measure(name: str, seed: int, folder: Path, loss: str) -> dict[str, Any]:
    """Read the blocks and train on them."""
    tiny = synthetic(200, 12, loss=loss, regularisation=1e-2, grid=(2, 2), seed=0)
    _train(tiny.schema(), dict(tiny.blocks), loss, 1e-2, seed)
    del tiny
    libraries = _peak()
    labels = json.loads((folder / "labels.json").read_text())
    labels["classes"] = tuple(labels["classes"])
    blocks = {path.stem: _read(path) for path in sorted(folder.glob("*.npz"))}
    data = sum(value_bytes(block.x) for block in blocks.values())
    schema = Schema.of(blocks, Labels(**labels))
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    gap = _train(schema, blocks, loss, PROBLEMS[name].regularisation, seed)
    found = {"libraries": libraries, "training": _peak(), "mapped": _status("RssFile")}
    return {"data": data, "gap": gap, **found}


def _train(
    schema: Schema, blocks: dict[ClientId, Block], loss: str, rate: float, seed: int
) -> float:
    """Train to a gap of 1e-6, take the blocks, and return the gap."""
    engine = Simulation({"train": (schema, blocks)}, seed)
    blocks.clear()
    engine.count_once()
    options = HyFDCA(loss=loss, regularisation=rate)
    states = {
        client: HYFDCA.init_client(
            options, schema, client, engine.block(client), engine.client_key(client)
        )
        for client in engine.ids
    }
    engine.set_states(states)
    del states
    server = HYFDCA.init_server(options, schema, RandomKey((seed,)))
    server = HYFDCA.setup(server, engine, engine.key("setup"))
    gap = np.inf
    for turn in range(1, 3000):
        engine.begin_round(turn)
        server, info = HYFDCA.round(server, engine, engine.key())
        gap = np.inf if info.gap_relative is None else info.gap_relative
        if info.finished or gap <= 1e-6:
            break
    return float(gap)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=["tables", "million", "beyond", "networks"])
    parser.add_argument(
        "--rows",
        type=int,
        help="by default 100,000; of million, 1,000,000; of networks, of a client, 40,000",
    )
    parser.add_argument("--tables", nargs="+", choices=[*_LARGE], default=[*_LARGE])
    parser.add_argument("--format", nargs="+", choices=["csv", "parquet"])
    parser.add_argument("--gigabytes", type=float, default=5.0, help="of beyond: its tables")
    parser.add_argument("--width", type=int, default=_BEYOND_WIDTH, help="of beyond: its columns")
    parser.add_argument("--limit", type=float, default=1.5, help="of beyond: memory in GB")
    parser.add_argument("--limited-only", action="store_true", help="of beyond: not in memory")
    parser.add_argument("--folder", help="of beyond: where its tables lie for a while")
    parser.add_argument("--cpu", action="store_true", help="of million: seconds of the processor")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true", help="into RESULTS.md")
    found = parser.parse_args()
    by_default = {"tables": 100_000, "networks": 40_000}
    found.format = found.format or (["parquet"] if found.part == "beyond" else ["csv"])
    found.rows = found.rows or by_default.get(found.part, 1_000_000)
    return found


if __name__ == "__main__" and sys.argv[1:2] not in (["deal"], ["train"]):
    _given = _arguments()
    _parts = {
        "tables": _measure_tables,
        "million": _measure_million,
        "beyond": _measure_beyond,
        "networks": _measure_networks,
    }
    _parts[_given.part](_given)
elif __name__ == "__main__":
    with threadpool_limits(1):
        _part, _name, _seed, _folder = sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4])
        if _part == "deal":
            print(json.dumps(_deal(_name, _seed, _folder)))
        else:
            print(json.dumps(_measure(_name, _seed, _folder, sys.argv[5])))
