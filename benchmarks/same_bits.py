"""Whether a change that only moves code leaves every result as it was, bit by bit.

    python benchmarks/same_bits.py record OUT_DIR [--only NAME ...] [--jobs N]
    python benchmarks/same_bits.py compare A B

Call `record` before the change and after it, each time with the package that is to be tried on
the path (PYTHONPATH=src) and into a folder of its own outside of the repository. Then `compare`
says for each run and file whether it is equal, shows the first key or line that differs with both
values, and ends with status 1 if one does. Both are to be recorded on one machine, with the same
libraries, as other processors and versions come to other last bits.

What a run came to: result.json and history.jsonl without times and environment, audit.json, the
checksum of every file and array of the model, and what `predict`, `inspect` and `audit` say. What
crosses module borders in other ways is not here: runs over sites (the tests have them), and runs
with differential privacy, whose noise the operating system draws anew in each. Masks and keys are
drawn too, but sums are exact under both seals and no result depends on them; under CKKS the number
of bytes does, and is left out.

Only the command line is used, and `intarsia.run` with its `progress` to stop a run after a round,
so that the script works as it is before and after a move. What is drawn from a machine's secret
comes from a fixed file, in a state folder (XDG_STATE_HOME) of the script's own.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

_EXPERIMENTS = Path(__file__).resolve().parent.parent / "experiments"
_HEART = _EXPERIMENTS.parent / "examples" / "data" / "heart"
_CREDIT = _EXPERIMENTS.parent / "examples" / "data" / "credit"
_APART = "seconds|environment|memory|started"  # keys of what differs from run to run
# The root of what simulated clients draw: 32 bytes, in the form of the package's secret files.
_SECRET = {
    "kind": "secret of simulations",
    "version": 1,
    "secret": "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=",
    "checksum": "ca766398f53be67ad6f4d701cc0e5aca4211d3f9c35d5612520a2cfc43c8ab7e",
}
_INTERRUPTED = 3  # the exit status of a run that was to stop, and did

# Ends the process after a round, as a crash would: its checkpoint is written, nothing else.
_STOP = f"""
import json, os, sys
import intarsia
file, out, stop, settings = sys.argv[1], sys.argv[2], int(sys.argv[3]), json.loads(sys.argv[4])
def progress(now):
    if now.round == stop:
        os._exit({_INTERRUPTED})
intarsia.run(file, out=out, progress=progress, checkpoint_seconds=0.0, **settings)
"""


@dataclass(frozen=True)
class Run:
    """An experiment, what is changed of it, and what else is asked of its folder."""

    name: str
    file: str
    settings: tuple[str, ...] = ()
    # commands after it, with what they write or say: arguments, in which {run} is the run's folder,
    # {work} the folder of the tables and {out} a place for what they write
    after: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    stop: int | None = None  # run it once more, end it after this round, and resume it


_AUDIT = {"audit.txt": ("audit", "{run}")}
_NETWORK = ("algorithm.hidden=8", "algorithm.latent=6")
_EPOCHS = (*_NETWORK, "algorithm.local_epochs=2", "algorithm.batch=16")
_OWN = ("predict", "{run}", "{work}/north.csv", "--client", "north")


def _shared(name: str, *settings: str, stop: int | None = None) -> Run:
    """Return a run of networks of the columns that all clients have."""
    own = {"predictions.csv": _OWN}
    return Run(name, "shared.toml", (f"algorithm.name={name}", *settings), own, stop)


def _spread(name: str, *settings: str, stop: int | None = None) -> Run:
    """Return a run of two parties with columns of the same samples."""
    tables = ("bank={work}/bank.csv", "shop={work}/shop.csv")
    together = ("predict", "{run}", *tables, "--federated", "--absent", "mean")
    return Run(name, "spread.toml", settings, {"predictions.csv": together, **_AUDIT}, stop)


RUNS = (
    Run("hyfdca-a9a", "hyfdca-a9a.toml", ("experiment.yardsticks=false",)),
    Run(
        "fedavg-a9a-half",
        "hyfdca-a9a.toml",
        (
            *("algorithm.name=fedavg", "experiment.rounds=5", "experiment.yardsticks=false"),
            *("experiment.participation=0.5", "algorithm.local_steps=20"),
        ),
    ),
    Run(
        "heart",
        "heart.toml",
        after={
            "predictions.csv": ("predict", "{run}", str(_HEART / "cleveland.csv")),
            "inspect.json": ("inspect", "{file}", "--json", "-c", "experiment.out={out}"),
            **_AUDIT,
        },
        stop=2,
    ),
    Run(
        "heart-half",
        "heart.toml",
        ("experiment.participation=0.5", "experiment.rounds=12", "experiment.yardsticks=false"),
        stop=5,
    ),
    Run(
        "heart-cyclic",
        "heart.toml",
        (
            *("experiment.participation=0.5", 'experiment.participation_pattern="cyclic"'),
            *("experiment.rounds=12", "experiment.yardsticks=false", "algorithm.loss=hinge"),
        ),
    ),
    Run(
        "credit-masked",
        "credit.toml",
        ("privacy.mode=masked", "experiment.yardsticks=false"),
        {
            "predictions.csv": (
                *("predict", "{run}", "--federated", "--absent", "mean"),
                *(f"{name}={_CREDIT / name}.csv.gz" for name in ("bank", "telecom", "retailer")),
            ),
            **_AUDIT,
        },
    ),
    Run(
        "credit-ckks",
        "credit.toml",
        ("privacy.mode=ckks", "experiment.yardsticks=false"),
        _AUDIT,
    ),
    Run("flic-bci", "flic-bci.toml", ("experiment.rounds=5",)),
    Run("hyfem-mfeat", "hyfem-mfeat.toml", ("experiment.rounds=5",)),
    Run("femam-mnist-pair", "femam-mnist-pair.toml", ("experiment.rounds=5",)),
    _spread("spread-newton"),
    _spread("spread-hinge", "algorithm.loss=hinge", "experiment.yardsticks=true"),
    _spread("spread-ascent", "algorithm.method=ascent", stop=4),
    _spread("spread-masked", "privacy.mode=masked", stop=1),
    _spread("spread-ckks", "privacy.mode=ckks"),
    _spread("spread-fedavg", "algorithm.name=fedavg", "algorithm.local_steps=5", stop=2),
    Run("wide-newton", "wide.toml", ("algorithm.method=newton",), stop=2),
    Run("numbers-hyfdca", "numbers.toml", ("algorithm.name=hyfdca", "algorithm.loss=squared")),
    Run("numbers-cocoa", "numbers.toml", ("algorithm.name=cocoa", "algorithm.loss=squared")),
    Run(
        "numbers-flic-linear",
        "numbers.toml",
        ("algorithm.name=flic-linear", "algorithm.latent=3", "algorithm.rank=2"),
        stop=2,
    ),
    Run("shared-hyfdca", "shared.toml", ("algorithm.name=hyfdca", "experiment.tolerance=1e-6")),
    Run("shared-cocoa", "shared.toml", ("algorithm.name=cocoa",), stop=2),
    _shared("ditto", *_EPOCHS, "algorithm.own_epochs=2"),
    _shared("fedavg-ft", *_EPOCHS),
    _shared("fedprox", *_EPOCHS),
    _shared("fedrep", *_EPOCHS, stop=2),
    _shared("fesem", *_EPOCHS, "algorithm.clusters=2"),
    _shared("ifca", *_EPOCHS, "algorithm.clusters=2"),
    _shared("l2gd", *_EPOCHS),
    _shared("pfedme", *_NETWORK, "algorithm.local_rounds=3"),
    _shared(
        "femam",
        *_EPOCHS,
        "algorithm.level_schedule=paper",
        'algorithm.levels=["global", 2, "personal", "shares"]',
        *("algorithm.first_rounds=3", "algorithm.level_rounds=2", "algorithm.first_clustering=1"),
        "experiment.rounds=9",
        stop=4,
    ),
    *(
        Run(
            name,
            "own.toml",
            (f"algorithm.name={name}", *_EPOCHS, *settings),
            {"predictions.csv": _OWN, **join},
            stop,
        )
        for name, settings, join, stop in (
            ("local", (), {}, None),
            ("fedhenn", (), {}, None),
            ("hetfedrep", (), {}, None),
            (
                "flic",
                ("algorithm.pretraining_epochs=3",),
                {
                    "joined": (
                        *("join", "{run}", "{work}/new.csv", "--label", "kind", "--epochs", "3"),
                        *("--out", "{out}", "-q"),
                    ),
                    **_AUDIT,
                },
                2,
            ),
        )
    ),
    Run(
        "flic-masked",
        "own.toml",
        ("algorithm.name=flic", *_EPOCHS, "algorithm.pretraining_epochs=3", "privacy.mode=masked"),
        _AUDIT,
    ),
    Run(
        "hyfem",
        "blocks.toml",
        after={
            "predictions.csv": _OWN,
            "joined": (
                *("join", "{run}", "{work}/blocks.csv", "--label", "kind", "--epochs", "3"),
                *("--out", "{out}", "-q"),
            ),
        },
        stop=2,
    ),
    Run("hyfem-matched", "blocks.toml", ("algorithm.start=unmatched", "algorithm.matching=rounds")),
)


_SMALL = """
[experiment]
seed = 0
rounds = {rounds}
tolerance = {tolerance}
evaluate_every = 1
yardsticks = false

[split]
test = 0.25
"""
_ALL = [f"x{number}" for number in range(8)]
_COLUMNS = {  # where clients have columns of their own
    "north": _ALL[:5],
    "south": _ALL[2:],
    "east": _ALL[:3],
    "west": _ALL[4:],
}
_GROUPS = {"left": ["x0", "x1", "x2"], "middle": ["x3", "x4"], "right": ["x5", "x6", "x7"]}
_HELD = {  # feature blocks and classes of the clients, where they have some of each
    "north": (("left", "middle"), ("a", "b")),
    "south": (("middle", "right"), ("a", "b", "c")),
    "east": (("left", "right"), ("b", "c")),
    "west": (("left", "middle", "right"), ("a", "c")),
}


def _small_problems(work: Path) -> None:
    """Write tables of two hundred rows and the experiments on them."""
    generator = np.random.default_rng(0)

    def table(name: str, columns: dict[str, Any]) -> None:
        rows = zip(*columns.values(), strict=True)
        lines = [",".join(columns), *(",".join(str(value) for value in row) for row in rows)]
        (work / f"{name}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")

    def numbers(rows: int, names: Sequence[str]) -> dict[str, Any]:
        drawn = generator.normal(size=(rows, len(names)))
        return dict(zip(names, np.round(drawn, 4).T.tolist(), strict=True))

    centres = np.round(generator.normal(size=(3, 8)), 4)
    slope = generator.normal(size=8)
    for name in (*_COLUMNS, "new", "blocks"):
        kinds = generator.integers(3, size=60)
        x = np.round(centres[kinds] + 0.8 * generator.normal(size=(60, 8)), 4)
        own = dict(zip(_ALL, x.T.tolist(), strict=True))
        if name == "new":
            own = {column: own[column] for column in _ALL[1:5]}
        if name == "blocks":
            own = {column: own[column] for column in _GROUPS["left"] + _GROUPS["right"]}
        amount = np.round(x @ slope + 0.1 * generator.normal(size=60), 4).tolist()
        whole = {**own, "kind": ["abc"[kind] for kind in kinds]}
        table(name, {**whole, "amount": amount} if name in _COLUMNS else whole)
        if name in _HELD:
            kept = np.flatnonzero(np.isin(list(whole["kind"]), _HELD[name][1]))
            table(f"{name}-held", {key: [one[row] for row in kept] for key, one in whole.items()})

    signs = np.array(["no", "yes"])
    bank, shop = (
        numbers(120, [f"b{k}" for k in range(6)]),
        numbers(120, [f"s{k}" for k in range(6)]),
    )
    bad = np.array(bank["b0"]) - np.array(bank["b1"]) + 0.5 * generator.normal(size=120) > 0
    table("bank", {"id": range(120), **bank, "default": signs[bad.astype(int)]})
    table("shop", {"id": range(30, 150), **shop})
    left, right = (numbers(200, [f"{side}{k}" for k in range(300)]) for side in "lr")
    good = np.array(left["l0"]) + np.array(right["r0"]) > 0
    table("left", {"id": range(200), **left, "good": signs[good.astype(int)]})
    table("right", {"id": range(200), **right})

    def experiment(name: str, head: str, clients: dict[str, str]) -> None:
        parties = [f'[[client]]\nname = "{one}"\n{keys}\n' for one, keys in clients.items()]
        (work / f"{name}.toml").write_text("\n".join([head, *parties]), encoding="utf-8")

    plain = _SMALL.format(rounds=3, tolerance=0.0)
    # the algorithm of a run is one of its settings, and a file has to name one
    classes = f'{plain}\n[labels]\ntask = "multiclass"\n\n[algorithm]\nname = "cocoa"\n'
    binary = (
        _SMALL.format(rounds=8, tolerance=1e-6)
        + '\n[labels]\ntask = "binary"\npositive = "yes"\n'
        + '\n[algorithm]\nname = "hyfdca"\nloss = "logistic"\nregularisation = 0.01\n'
    )

    def excluding(columns: Sequence[str]) -> str:
        others = ["amount", *(one for one in _ALL if one not in columns)]
        return f'label = "kind"\nexclude = {json.dumps(others)}'

    experiment("shared", classes, {n: f'path = "{n}.csv"\n{excluding(_ALL)}' for n in _COLUMNS})
    experiment(
        "own", classes, {n: f'path = "{n}.csv"\n{excluding(own)}' for n, own in _COLUMNS.items()}
    )
    experiment(
        "numbers",
        f'{plain}\n[labels]\ntask = "regression"\n\n[algorithm]\nname = "cocoa"\n',
        {n: f'path = "{n}.csv"\nlabel = "amount"\nexclude = ["kind"]' for n in _COLUMNS},
    )
    hyfem = "steps = 4\nbatch = 16\nextractor_hidden = [8]\nfeatures = 4\nhidden = [8]\n"
    held = {}
    for name, (blocks, _) in _HELD.items():
        inside = {block: _GROUPS[block] for block in blocks}
        has = [column for columns in inside.values() for column in columns]
        groups = ", ".join(f"{block} = {json.dumps(one)}" for block, one in inside.items())
        lacks = [column for column in _ALL if column not in has]
        held[name] = (
            f'path = "{name}-held.csv"\nlabel = "kind"\nexclude = {json.dumps(lacks)}\n'
            f"groups = {{ {groups} }}"
        )
    experiment("blocks", classes.replace("cocoa", "hyfem") + hyfem, held)
    experiment(
        "spread",
        binary,
        {
            "bank": 'path = "bank.csv"\nid = "id"\nlabel = "default"',
            "shop": 'path = "shop.csv"\nid = "id"',
        },
    )
    experiment(
        "wide",
        binary,
        {
            "left": 'path = "left.csv"\nid = "id"\nlabel = "good"',
            "right": 'path = "right.csv"\nid = "id"',
        },
    )


# --- running ------------------------------------------------------------------------------------


class _RefusedError(Exception):
    """A command ended with another status than expected; what it said last."""


class _Recorder:
    """Runs experiments in a working folder and takes the digests of what they leave."""

    def __init__(self, work: Path) -> None:
        self._work = work
        state = work / "state" / "intarsia"
        state.mkdir(mode=0o700, parents=True)
        secret = state / "secret"
        secret.touch(mode=0o600)
        secret.write_text(json.dumps(_SECRET), encoding="utf-8")
        threads = ("OMP", "MKL", "OPENBLAS", "NUMBA", "VECLIB_MAXIMUM")
        self._environment = {
            **os.environ,
            **{f"{name}_NUM_THREADS": "1" for name in threads},
            "XDG_STATE_HOME": str(state.parent),
            "MPLBACKEND": "Agg",
            "COLUMNS": "120",
            "NO_COLOR": "1",
        }
        _small_problems(work)

    def digests(self, run: Run) -> dict[str, dict[str, Any]]:
        """Return the digest of a run, and of it resumed after a stop, by name."""
        near = self._work / run.file
        file = near if near.exists() else _EXPERIMENTS / run.file
        folder = self._work / "runs" / run.name
        changes = [word for one in run.settings for word in ("-c", one)]
        self._say("run", str(file), *changes, "-c", f"experiment.out={folder}", "-q")
        found = _of_folder(folder)
        for what, words in run.after.items():
            out = folder.with_name(f"{run.name}-{what}")
            places = {"run": folder, "work": self._work, "out": out, "file": file}
            said = self._say(*(word.format(**places) for word in words))
            if what == "joined":
                found |= {f"joined/{name}": one for name, one in _of_folder(out).items()}
            else:
                found[what] = self._of_text(said, json_=what.endswith(".json"))
        if run.stop is None:
            return {run.name: found}
        again = folder.with_name(f"{run.name}-resumed")
        settings = json.dumps(dict(_setting(one) for one in run.settings))
        stopped = (str(file), str(again), str(run.stop), settings)
        self._call(["-c", _STOP, *stopped], _INTERRUPTED)
        self._say("resume", str(again), "-q")
        return {run.name: found, f"{run.name}-resumed": _of_folder(again)}

    def _say(self, *words: str) -> str:
        return self._call(["-m", "intarsia", *words], 0)

    def _call(self, words: Sequence[str], expected: int) -> str:
        done = subprocess.run(
            [sys.executable, *words],
            env=self._environment,
            cwd=self._work,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != expected:
            lines = done.stderr.strip().splitlines() or ["(nothing was said)"]
            raise _RefusedError(f"status {done.returncode}, not {expected}: {lines[-1]}")
        return done.stdout

    def _of_text(self, said: str, *, json_: bool) -> Any:
        said = re.sub(rf"{re.escape(str(self._work))}[^\s\"',;]*", "…", said)
        if json_:
            return json.loads(said)
        lines = said.splitlines()
        return lines if len(lines) <= 500 else {"lines": len(lines), "sha256": _sha(said.encode())}


def _setting(text: str) -> tuple[str, Any]:
    """Return a setting of the command line as `intarsia.run` takes it."""
    key, _, value = text.partition("=")
    try:
        known = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        known = value
    table, _, name = key.partition(".")
    if (table, name) == ("algorithm", "name"):
        return "algorithm", known
    return ("privacy", known) if key == "privacy.mode" else (name, known)


# --- digests ------------------------------------------------------------------------------------


def _of_folder(folder: Path) -> dict[str, Any]:
    """Return what a run left, without what differs from one to the next."""
    found: dict[str, Any] = {}
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    # ciphertexts are compressed, and their lengths are as random as they are
    apart = re.compile(_APART + ("|^bytes$" if result["privacy"]["mode"] == "ckks" else ""))
    found["result.json"] = _without(result, apart)
    if (folder / "audit.json").is_file():
        found["audit.json"] = json.loads((folder / "audit.json").read_text(encoding="utf-8"))
    history = folder / "history.jsonl"
    if history.is_file():
        lines = history.read_text(encoding="utf-8").splitlines()
        found["history.jsonl"] = [_without(json.loads(line), apart) for line in lines]
    for path in sorted((folder / "model").rglob("*")):
        if path.is_file():
            found[path.relative_to(folder).as_posix()] = _of_file(path)
    return found


def _without(value: Any, apart: re.Pattern[str]) -> Any:
    if isinstance(value, dict):
        return {key: _without(one, apart) for key, one in value.items() if not apart.search(key)}
    return [_without(one, apart) for one in value] if isinstance(value, list) else value


def _of_file(path: Path) -> Any:
    """Return a file's checksum; of arrays that of each, as an archive holds times too."""
    if path.suffix != ".npz":
        return _sha(path.read_bytes())
    with np.load(path, allow_pickle=False) as arrays:
        return {
            name: f"{arrays[name].dtype.str}{list(arrays[name].shape)} "
            + _sha(np.ascontiguousarray(arrays[name]).tobytes())
            for name in sorted(arrays.files)
        }


def _sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# --- the two commands ---------------------------------------------------------------------------


def record(out: Path, only: Sequence[str], jobs: int) -> int:
    """Run all, write the digests, and return the exit status."""
    known = [run.name for run in RUNS]
    for name in only:
        if name not in known:
            print(f"error: there is no run {name!r}; there are {', '.join(known)}.")
            return 2
    out.mkdir(parents=True, exist_ok=True)
    chosen = [run for run in RUNS if not only or run.name in only]
    with (
        tempfile.TemporaryDirectory(prefix="same-bits-") as work,
        ThreadPoolExecutor(jobs) as pool,
    ):
        recorder = _Recorder(Path(work))
        well = list(pool.map(lambda run: _record(recorder, run, out), chosen))
    return 0 if all(well) else 1


def _record(recorder: _Recorder, run: Run, out: Path) -> bool:
    """Write the digests of a run, say how long it took, and return whether all went well."""
    for name in (run.name, f"{run.name}-resumed"):
        (out / f"{name}.json").unlink(missing_ok=True)
    start = time.perf_counter()
    try:
        found = recorder.digests(run)
    except _RefusedError as refused:
        missing = "INTARSIA_DATA" in str(refused)
        print(f"{'skipped' if missing else 'FAILED':>9}  {run.name}: {refused}", flush=True)
        return missing
    for name, digest in found.items():
        text = json.dumps(digest, indent=1, ensure_ascii=False)
        (out / f"{name}.json").write_text(f"{text}\n", encoding="utf-8")
    print(f"{time.perf_counter() - start:7.1f} s  {run.name}", flush=True)
    if run.stop is None:
        return True
    resumed = found[f"{run.name}-resumed"]
    differences = [
        f"{name} {where}: {one} was {other} in one go"
        for name in resumed
        for where, one, other in _differences(resumed[name], found[run.name].get(name))
    ]
    if differences:
        print(f"  DIFFERS  {run.name} resumed after round {run.stop}: {differences[0]}", flush=True)
    return not differences


def compare(first: Path, second: Path) -> int:
    """Show run by run and file by file what is equal, and return the exit status."""
    names = sorted({path.stem for folder in (first, second) for path in folder.glob("*.json")})
    if not names:
        print(f"error: neither {first} nor {second} holds a digest; record them first.")
        return 2
    differing = 0
    for name in names:
        one, other = (_read(folder / f"{name}.json") for folder in (first, second))
        if one is None or other is None:
            print(f"{name:24} {'(all)':32} differs: only in {second if one is None else first}")
            differing += 1
            continue
        for file in sorted({*one, *other}):
            found = next(_differences(one.get(file), other.get(file)), None)
            if found is None:
                print(f"{name:24} {file:32} equal")
                continue
            differing += 1
            where, before, after = found
            print(f"{name:24} {file:32} differs at {where or 'the whole'}: {before} | {after}")
    print(f"{len(names)} runs; {differing or 'no'} files differ")
    return 1 if differing else 0


def _read(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def _differences(one: Any, other: Any, where: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield each place that differs, with both values."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in dict.fromkeys([*one, *other]):
            place = f"{where}.{key}" if where else key
            yield from _differences(one.get(key, "(none)"), other.get(key, "(none)"), place)
    elif isinstance(one, list) and isinstance(other, list):
        for number in range(max(len(one), len(other))):
            pair = (values[number] if number < len(values) else "(none)" for values in (one, other))
            yield from _differences(*pair, f"{where}[{number}]")
    elif one != other or type(one) is not type(other):
        yield where, repr(one), repr(other)


def main() -> int:
    """Run the command line and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record", help="run all and write what they came to")
    recording.add_argument("out", type=Path, metavar="OUT_DIR")
    recording.add_argument("--only", nargs="+", default=[], metavar="NAME")
    recording.add_argument("--jobs", type=int, default=2, help="runs at a time (default: 2)")
    comparing = commands.add_parser("compare", help="show what differs between two records")
    comparing.add_argument("first", type=Path, metavar="A")
    comparing.add_argument("second", type=Path, metavar="B")
    given = parser.parse_args()
    if given.command == "record":
        return record(given.out.resolve(), given.only, given.jobs)
    return compare(given.first, given.second)


if __name__ == "__main__":
    sys.exit(main())
