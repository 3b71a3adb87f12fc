"""Try the commands of an installed package, wrong ones too, in an empty folder.

python smoke.py [EXTRA...]   # those that are installed; environments.py runs it in each

It needs the standard library alone. The exit status is 1 where a command does not do as listed.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

DATABASE = """
algorithm = {{ name = "hyfdca", loss = "logistic" }}
[[client]]
name = "va"
url = "{url}"
query = "select * from patients"
label = "y"
"""


FLOWER = """
[partition]
kind = "flower"
partitioner = "IidPartitioner"
arguments = { num_partitions = 3 }
"""
# a few rows in the form of this data set
USPS = """
import h5py
with h5py.File("usps.h5", "w") as file:
    for part in ("train", "test"):
        file[part + "/data"] = [[(row + column) % 3 for column in range(256)] for row in range(40)]
        file[part + "/target"] = [row % 10 for row in range(40)]
"""


def commands(extras: set[str]) -> list[tuple[list[str], int, str]]:
    """Return the commands in their order: arguments, exit status, a part of what is said.

    With extras these are what they bring, and what that builds on.
    """
    short = ["--no-yardsticks", "-q", "-c", "experiment.rounds=3", "--overwrite"]
    torch, privacy = "torch" in extras, "privacy" in extras
    # what says nothing of extras, and is tried without any
    first = [
        (["--version"], 0, "intarsia "),
        (["--help"], 0, "--install-completion"),
        ([], 2, "Usage"),
        (["run"], 2, "Missing argument 'FILE'"),
        (["rum"], 2, "No such command 'rum'"),
        (["run", "x.toml", "--loud"], 2, "No such option"),
        (["run", "x.toml", "--out", ""], 2, "after '--out' is empty"),
        (["tune", "x.toml", "--trials", "many"], 2, "'--trials'"),
        (["run", "x.toml"], 2, "x.toml"),
        (["init"], 2, "No table is named"),
        (["init", "x.csv"], 2, "there is no such file"),
        (["federation", "site"], 2, "Missing argument"),
        (["keys", "nothing"], 2, "No such command"),
        (["predict", "nowhere", "x.csv"], 2, "'nowhere' is not a folder"),
        (["schema"], 0, "additionalProperties"),
    ]
    last = [
        (["inspect", "heart.toml", "--json"], 0, "hyfdca"),
        (["resume", "runs/heart", "--no-yardsticks"], 0, "heart"),
        (["audit", "runs/heart"], 0, "server"),
        (["coefficients", "runs/heart"], 0, "age"),
        (["predict", "runs/heart", "heart/va.csv"], 0, "id,score,label"),
        (["contribution", "mine.toml"], 0, "Shapley values"),
        (["compare", "runs/heart"], 0, "heart"),
        (["report", "runs/heart"], 0, "report.html"),
    ]
    lines = [
        (["doctor"], *((0, "python") if "HOME" in os.environ else (1, "set NUMBA_CACHE_DIR"))),
        (["init", "--example", "heart"], 0, "intarsia run heart.toml"),
        (["init", "heart/va.csv", "heart/cleveland.csv"], 0, "intarsia run mine.toml"),
        (["run", "heart.toml", *short, "--json"], 0, "certificate"),
        (["run", "mine.toml", *short], 0, ""),
        *[(["export", "runs/heart", "--format", kind],
           *((0, "made-up rows") if "export" in extras else (2, 'pip install "intarsia[export]"')))
          for kind in ("onnx", "skops") if (kind, extras) != ("skops", {"mlflow"})],  # brings it
        *[(["run", "mine.toml", *short, "-c", f'experiment.trackers=["{one}"]'],
           *((0, "") if one in extras else (2, f'pip install "intarsia[{one}]"')))
          for one in ("mlflow", "tensorboard", "wandb")],
        *[(["run", "heart.toml", *short, "-c", f"{key}={value}", "-o", value], 0, "")
          for key, value in (("privacy.mode", "masked"), ("algorithm.errors", "true"))
          if privacy or not extras],
        *[(["run", "heart.toml", *short, "-c", "privacy.mode=ckks", "-o", "ckks"],
           *((0, "") if privacy else (2, 'pip install "intarsia[privacy]"')))
          for _ in range(privacy or not extras)],
        (["run", "heart.toml", *short, "-c", "experiment.ray=local", "-o", "ray"],
         *((0, "") if "ray" in extras else (2, 'pip install "intarsia[ray]"'))),
        (["run", "heart.toml", *short, "-c", "algorithm.name=flik", "-o", "flic"], 2, "'flic'"),
        (["run", "flic.toml", *short],
         *((0, "") if torch else (2, 'pip install "intarsia[torch]"'))),
        (["tune", "heart.toml", "--trials", "1", "-q"],
         *((0, "best.toml") if "tune" in extras else (2, 'pip install "intarsia[tune]"'))),
        *[(["inspect", f"{extra}.toml"],
           *((0, "fits: hyfdca") if extra in extras else (2, f'pip install "intarsia[{extra}]"')))
          for extra in ("hdf5", "flower")],
        (["federation", "init"], 0, "wrote federation.toml"),
        *[(["federation", *words],
           *((0, said) if "nvflare" in extras else (2, 'pip install "intarsia[nvflare]"')))
          for words, said in (
              (["provision", "federation.toml", "--for", "kubernetes"], "wrote 4 kits"),
              (["join", "bank"], "made a key in bank"),
          )],
        (["federation", "dashboard"], 0, "intarsia_run_round"),
    ]  # fmt: skip
    for kind, packages in (("sqlite", ()), ("duckdb", ("duckdb",)), ("postgresql", ("psycopg",))):
        there = kind in extras
        if extras and not there:  # other extras bring sqlalchemy, too
            continue
        missing = 'pip install "intarsia['
        said = {
            "sqlite": "fits: hyfdca",
            "duckdb": "duckdb",
            "postgresql": "no server listens there",
        }[kind]
        # a database of SQLite is there, and none of the others
        lines.append(
            (
                ["inspect", f"{kind}.toml"],
                0 if there and not packages else 2,
                said if there else missing,
            )
        )
    return lines if extras else [*first, *lines, *last]


def prepare(folder: Path, extras: set[str]) -> None:
    """Write what the commands read, beside the example."""
    urls = {
        "sqlite": "sqlite:///va.sqlite",
        "duckdb": "duckdb:///va.duckdb",
        "postgresql": "postgresql://reader@127.0.0.1:1/va",
    }
    for kind, url in urls.items():
        (folder / f"{kind}.toml").write_text(DATABASE.format(url=url), encoding="utf-8")
    with sqlite3.connect(folder / "va.sqlite") as connection:
        connection.execute("create table patients (age real, pulse real, y int)")
        rows = [(40 + row % 30, 60 + row % 7, row % 2) for row in range(60)]
        connection.executemany("insert into patients values (?, ?, ?)", rows)
    connection.close()
    names = {"a": "age", "b": "pulse"}
    for name, column in names.items():
        lines = [f"{column},y", *(f"{row * 7 % 40},{row % 2}" for row in range(60))]
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    clients = [f'[[client]]\nname = "{one}"\npath = "{one}.csv"\nlabel = "y"\n' for one in names]
    text = '[algorithm]\nname = "flic"\npretraining_epochs = 1\n' + "".join(clients)
    (folder / "flic.toml").write_text(text, encoding="utf-8")
    dealt = 'algorithm = { name = "hyfdca", loss = "squared_hinge" }\n'
    for extra, what in (
        ("hdf5", '[dataset]\nname = "usps"\npath = "."\n[partition]\nkind = "iid"\nclients = 2\n'),
        ("flower", f"""[dataset]\nname = "digits"\n{FLOWER}"""),
    ):
        (folder / f"{extra}.toml").write_text(dealt + what, encoding="utf-8")
    if "hdf5" in extras:
        subprocess.run([sys.executable, "-c", USPS], cwd=folder, check=True)


def problem(arguments: list[str], status: int, part: str, folder: Path) -> str:
    """Run a command; return what is wrong with how it ended."""
    command = [sys.executable, "-m", "intarsia", *arguments]
    local = {**os.environ, "WANDB_MODE": "offline"}
    done = subprocess.run(
        command, cwd=folder, env=local, capture_output=True, text=True, check=False
    )
    said = " ".join((done.stdout + done.stderr).split())
    if "Traceback" in said:
        return f"a traceback: {said[-600:]}"
    if done.returncode != status:
        return f"status {done.returncode}, not {status}: {said[-600:]}"
    if part not in said:
        return f"does not say {part!r}: {said[-600:]}"
    lines = [one for one in done.stderr.splitlines() if one.strip() and "warning: " not in one]
    if status == 2 and arguments and (len(lines) != 1 or not lines[0].startswith("error: ")):
        return f"is no sentence: {done.stderr[-600:]}"
    return ""


def main() -> int:
    """Try all commands; print those that fail."""
    failed = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        extras = set(sys.argv[1:])
        prepare(folder, extras)
        listed = commands(extras)
        for arguments, status, part in listed:
            found = problem(arguments, status, part, folder)
            if found:
                failed[" ".join(arguments)] = found
    sys.stdout.write(json.dumps({"commands": len(listed), "failed": failed}, indent=1) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
