"""Time this tree against another one, in runs that alternate.

    git worktree add /tmp/before 574201d
    taskset -c 1 python benchmarks/paired.py /tmp/before --data breast_cancer,a9a --repeats 40
    taskset -c 1 python benchmarks/paired.py /tmp/before --training compiled:10 --repeats 10
    taskset -c 1 python benchmarks/paired.py /tmp/before --experiment hyfem-mfeat --repeats 3

Each tree has a process of its own, with its kernels compiled and warm. They take turns, so that
both see the same load. Processes are started anew a few times: where one's memory lies makes up to
a tenth. Of HyFDCA: CPU seconds of set-up and rounds to a certified gap, with the
benchmark of each tree (`solvers.federated`). Of local training: those of one call of `train`. Of an
experiment: those of a round, as this tree's file says it; keys that the other tree has other
defaults of are set by `--set`, and those that it lacks by `--now`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import tomli_w

HERE = Path(__file__).resolve().parent

# what a tree's process does: it names no module that moved between the trees
_HYFDCA = """
import json, sys
from problems import problem
import hyfdca
from solvers import federated
name, loss, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])
one = problem(name, loss=loss, seed=seed)
options = hyfdca.HyFDCA(loss=loss, regularisation=one.regularisation)
hyfdca.warm_up([loss])
for _ in sys.stdin:
    run = federated(one, options, levels=(1e-3, 1e-6), best=None, seed=seed)
    found = [run.marks[level].seconds if level in run.marks else None for level in (1e-3, 1e-6)]
    print(json.dumps([found, run.exchanges, run.rounds, run.primal]), flush=True)
"""
_TRAINING = """
import gc, json, sys, time
import torch, local_training as bench
torch.set_num_threads(1)
engine, batch, seed = sys.argv[1].split(":")[0], int(sys.argv[1].split(":")[1]), int(sys.argv[3])
learners = bench.problem(100, seed)
once = sum(-(-one.samples // batch) for one in learners) / len(learners)
training = bench.LocalTraining(
    model=bench.Network(3), loss=bench.loss, optimiser=bench.Adam(rate=1e-3),
    epochs=max(1, round(60 / once)), batch_size=batch, decay={"classifier.*": 1e-3},
    noise={"noise": (bench.LATENT,)}, ragged={"x": 1, "embedding.0.weight": 1},
)
bench.train(training, learners, engine=engine, chunk=None)
for _ in sys.stdin:
    gc.collect()
    begin = time.process_time()
    found = bench.train(training, learners, engine=engine, chunk=None)
    spent = time.process_time() - begin
    total = sum(float(values.double().sum()) for one in found for values in one.parameters.values())
    print(json.dumps([[spent], 0, 0, total]), flush=True)
"""

# the second round on: the first compiles, and opens what the others keep
_ROUNDS = """
import json, sys, time
import intarsia
import torch
torch.set_num_threads(1)
for _ in sys.stdin:
    times = []
    file = f"{sys.argv[2]}/{sys.argv[3]}.toml"
    note = lambda told: times.append(time.process_time())
    result = intarsia.run(file, out=None, progress=note)
    rounds = len(times) - 2
    print(json.dumps([[(times[-1] - times[1]) / rounds], 0, rounds, result.metrics.server.loss]),
          flush=True)
"""
_EXPERIMENTS = HERE.parent / "experiments"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before", type=Path, help="the root of the other tree")
    parser.add_argument("--data", default="", help="problems, separated by commas")
    parser.add_argument("--training", default="", help="engine:batch, separated by commas")
    parser.add_argument("--experiment", default="", help="files of experiments/, likewise")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="of these")
    parser.add_argument("--now", nargs="*", default=[], metavar="KEY=VALUE", help="of this tree's")
    parser.add_argument("--rounds", type=int, default=8, help="of these")
    parser.add_argument("--loss", default="hinge")
    parser.add_argument("--repeats", type=int, default=20, help="of each process")
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    for code, names in ((_HYFDCA, arguments.data), (_TRAINING, arguments.training)):
        for name in filter(None, names.split(",")):
            given = [name, arguments.loss, str(arguments.seed)]
            times = arguments.repeats, arguments.processes
            compare(arguments.before.resolve(), code, given, *times)
    for name in filter(None, arguments.experiment.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            for tree in ("before", "now"):
                described = _described(name, arguments.rounds, [*arguments.set, *arguments.now])
                for key in arguments.now if tree == "before" else ():
                    table, _, last = key.partition("=")[0].partition(".")
                    del described[table][last]
                (Path(folder) / f"{tree}.toml").write_text(tomli_w.dumps(described))
            times = arguments.repeats, arguments.processes
            compare(arguments.before.resolve(), _ROUNDS, [name, folder], *times)


def _described(name: str, rounds: int, keys: list[str]) -> dict[str, Any]:
    """Return an experiment of some rounds without evaluations, as both trees read it."""
    tree = tomllib.loads((_EXPERIMENTS / f"{name}.toml").read_text(encoding="utf-8"))
    tree["experiment"] |= {"rounds": rounds, "evaluate_every": 0, "yardsticks": False}
    tree.pop("published", None)
    for given in keys:
        key, _, value = given.partition("=")
        table, _, last = key.partition(".")
        tree[table][last] = tomllib.loads(f"value = {value}")["value"]
    return tree


def compare(before: Path, code: str, given: list[str], repeats: int, processes: int) -> None:
    """Let both trees run in turn; print the least of each and the median of the pairs."""
    runs: list[list[Any]] = [[], []]
    for number in range(processes):
        places = [before, HERE.parent]
        trees = [
            _started(places[which], code, [*given, ("before", "now")[which]]) for which in (0, 1)
        ]
        for repeat in range(repeats + 1):
            for which in (0, 1) if (repeat + number) % 2 else (1, 0):
                answer = _asked(trees[which])
                if repeat:  # the first is not counted
                    runs[which].append(answer)
        for tree in trees:
            tree.stdin.close()
            tree.wait()
    count = f"{processes} times {repeats} pairs"
    print(f"{given[0]}: {count}, load {os.getloadavg()[0]:.1f}; before, now")
    print("  exchanges, rounds, outcome:", runs[0][-1][1:], runs[1][-1][1:])
    for level in range(len(runs[0][0][0])):
        old, new = ([one[0][level] for one in some] for some in runs)
        if None in old or None in new:
            print(f"  level {level}: not reached")
            continue
        ratio = statistics.median(b / a for a, b in zip(old, new, strict=True))
        least = min(new) / min(old) - 1
        print(
            f"  {min(old):.5f} {min(new):.5f} s: least {least:+.1%}, "
            f"median of pairs {ratio - 1:+.1%}",
            flush=True,
        )


def _started(tree: Path, code: str, given: list[str]) -> Any:
    paths = os.pathsep.join([str(tree / "src"), str(tree / "benchmarks")])
    kept = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", code, *given],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=kept,
    )


def _asked(tree: Any) -> Any:
    tree.stdin.write("\n")
    tree.stdin.flush()
    for line in tree.stdout:
        if line.startswith("[["):
            return json.loads(line)
    raise SystemExit("A tree's process ended before its run; its own error stands above.")


if __name__ == "__main__":
    main()
