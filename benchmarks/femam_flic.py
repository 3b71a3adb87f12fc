"""FeMAM's levels over FLIC beside FLIC and each client alone, where groups have their habits.

    python benchmarks/femam_flic.py [--problems drawn,mfeat] [--seeds 0,1,2] [--tune] [--write]

Clients with columns of their own know what a row shows, one of five things, and write down one of
its three codes: the usual one at 60 %, the others at 25 and 15 %. Which one is usual is a habit of
the client's region, and nobody knows of the regions. A client has about 40 rows to learn from, so
that it sees its region's habits with much chance in them; the average of all regions has none.

drawn   24 clients, three regions; Gaussian things in 4 dimensions, that each client maps at random
        to 6 to 14 columns
mfeat   12 clients, two regions; handwritten digits from 0 to 4, of which each client of a region
        has another of six views. The digits are real, the codes are not.

--tune fits every setting in `CHOICES` on problems of seed 100 and says which is best; the one in
`BEST` is what the table is of.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

import numpy as np
import tables
from sklearn.metrics import adjusted_rand_score

import intarsia
from intarsia.datasets import registry as datasets

CLIENTS, REGIONS = {"drawn": 24, "mfeat": 12}, {"drawn": 3, "mfeat": 2}
THINGS, TRAINING = 5, 40
SHARES = (0.6, 0.25, 0.15)  # of a thing's codes, from usual to unusual
NETWORK = {"hidden": 32, "latent": 16}
TRAIN = {"rate": 5e-3, "batch": 100, "local_epochs": 5, "engine": "vmap"}
HEADS = {
    "level_schedule": "paper",
    "level_rounds": 20,
    "window": 0,
    "validation": 0.0,
    "prune": "never",
    "optimiser": "sgd",  # Adam's first steps hide by how much a head differs
    "rate": 0.05,
    "batch": 100,
    "local_epochs": 10,
}
# weight of the alignment, whether a thing's codes have an anchor together, rounds
FLICS = ((1e-3, False, 5), (1.0, False, 20), (1.0, True, 20), (3.0, True, 20))
ONE_HEAD = {"scheme": "fedavg-ft", "final_epochs": 0}

Tables = dict[str, tuple[np.ndarray, np.ndarray]]


def parties(problem: str, seed: int) -> tuple[Tables, float]:
    """Return the clients' tables, and the share of rows that are for testing."""
    rng = np.random.default_rng([seed, 0])
    habits = [
        [rng.permutation(len(SHARES)) for _ in range(THINGS)] for _ in range(REGIONS[problem])
    ]
    made = drawn(rng) if problem == "drawn" else digits(rng)
    found = {}
    for number, (x, shown) in enumerate(made):
        usual = rng.choice(len(SHARES), len(shown), p=SHARES)
        habit = habits[number % len(habits)]
        said = zip(shown, usual, strict=True)
        codes = [code(thing, habit[thing][place]) for thing, place in said]
        found[f"client{number:02d}"] = (x, np.array(codes))
    return found, 1 - TRAINING / len(made[0][1])


def code(thing: int, number: int) -> str:
    """Return the name of a code."""
    return f"{'abcde'[thing]}{number}"


def drawn(rng: np.random.Generator) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return columns and things of each client, 340 rows."""
    centres, found = 2.0 * rng.normal(size=(THINGS, 4)), []
    for _ in range(CLIENTS["drawn"]):
        shown, width = rng.integers(0, THINGS, 340), int(rng.integers(6, 15))
        hidden = centres[shown] + 0.7 * rng.normal(size=(len(shown), 4))
        x = hidden @ rng.normal(size=(4, width)) / 2
        found.append((x + 0.5 * rng.normal(size=x.shape), shown))
    return found


def digits(rng: np.random.Generator) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return columns and digits of each client, 83 rows of one view, which one in a region has."""
    whole = datasets.load("mfeat")
    views = list(whole.groups.values())
    place = {name: number for number, name in enumerate(whole.features)}
    found = []
    few = rng.permutation(np.flatnonzero(whole.y < THINGS))[: 83 * CLIENTS["mfeat"]]
    for number, rows in enumerate(np.split(few, CLIENTS["mfeat"])):
        own = [place[name] for name in views[number // REGIONS["mfeat"]]]
        found.append((whole.x[np.ix_(rows, own)], whole.y[rows].astype(int)))
    return found


def groups() -> list[list[str]]:
    """Return the codes of each thing, which have an anchor together."""
    return [[code(thing, number) for number in range(len(SHARES))] for thing in range(THINGS)]


def choices() -> dict[str, dict[str, Mapping[str, Any]]]:
    """Return the settings that are tried of each method, by a name."""
    found: dict[str, dict[str, Mapping[str, Any]]] = {}
    local = {"algorithm": {"name": "local", "final_epochs": 0, **NETWORK, **TRAIN}}
    found["local"] = {f"{n} rounds": {**local, "rounds": n} for n in (3, 6, 10, 20)}
    apart = {"algorithm": {"name": "hetfedrep", "final_epochs": 5, **NETWORK, **TRAIN}}
    found["hetfedrep"] = {f"{n} rounds": {**apart, "rounds": n} for n in (5, 20)}
    found["flic"], found["femam-flic"] = {}, {}
    for weight, grouped, rounds in FLICS:
        first = {"alignment_weight": weight, "pretraining_epochs": 50, **NETWORK, **TRAIN}
        first |= {"variant": "hl", "anchor_scale": 1.0, "weight_decay": 0.0, "embedding_decay": 0.0}
        if grouped:
            first["meta_classes"] = groups()
        name = f"λ1 = {weight:g}, {'groups' if grouped else 'classes'}, {rounds} rounds"
        for scheme in ("fedrep", "fedavg-ft"):
            table = {"name": "flic", "scheme": scheme, "final_epochs": 5, **first}
            found["flic"][f"{scheme}, {name}"] = {"algorithm": table, "rounds": rounds}
        for last in (3, 5, "personal") if grouped else ():
            heads = {"levels": ["global", last], "first_rounds": rounds, **HEADS}
            table = {"name": "femam-flic", "flic": {**first, **ONE_HEAD}, "femam": heads}
            found["femam-flic"][f"{last}, {name}"] = {"algorithm": table, "rounds": 1000}
    return found


# what `--tune` found
BEST: Mapping[str, Mapping[str, str]] = {
    "drawn": {
        "local": "6 rounds",
        "hetfedrep": "20 rounds",
        "flic": "fedavg-ft, λ1 = 3, groups, 20 rounds",
        "femam-flic": "5, λ1 = 1, groups, 20 rounds",
    },
    "mfeat": {
        "local": "20 rounds",
        "hetfedrep": "20 rounds",
        "flic": "fedavg-ft, λ1 = 3, groups, 20 rounds",
        "femam-flic": "3, λ1 = 3, groups, 20 rounds",
    },
}


def fit(problem: str, setting: Mapping[str, Any], seed: int) -> tuple[float, float]:
    """Return the accuracy in percent, the mean over clients, and how well regions were found."""
    made, test = parties(problem, seed)
    result = intarsia.run(
        tables=made,
        test=test,
        evaluate_every=0,
        yardsticks=False,
        standardise=True,
        intercept=False,
        seed=seed,
        **setting,
    )
    found = result.structure.learned if result.structure is not None else None
    index = np.nan
    if found is not None and "level 2" in found.levels:
        index = adjusted_rand_score(
            np.arange(CLIENTS[problem]) % REGIONS[problem], found.levels["level 2"]
        )
    return 100 * result.metrics.clients_mean.accuracy, float(index)


def tune(problem: str) -> dict[str, str]:
    """Return the best setting of each method on the problem of seed 100."""
    best = {}
    for method, known in choices().items():
        scores = {}
        for name, setting in known.items():
            scores[name], index = fit(problem, setting, 100)
            print(f"{problem} {method} {name}: {scores[name]:.1f} {index:.2f}", flush=True)
        best[method] = max(scores, key=scores.__getitem__)
        print(f"{problem} {method}: {best[method]}", flush=True)
    return best


def spread(found: np.ndarray, digits: int) -> str:
    """Return mean and standard deviation over seeds."""
    deviation = found.std(ddof=1) if len(found) > 1 else np.nan
    return f"{found.mean():.{digits}f} ± {deviation:.{digits}f}"


def main() -> None:
    """Measure, show, and write the table if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--problems", default="drawn,mfeat")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    problems, seeds = given.problems.split(","), [int(one) for one in given.seeds.split(",")]
    if given.tune:
        for problem in problems:
            tune(problem)
        return
    columns = ("method", "setting", "accuracy, %", "above local", "regions, index")
    for problem in problems:
        rows, alone = [], np.zeros(0)
        for method, setting in BEST[problem].items():
            known = choices()[method][setting]
            found = np.array([fit(problem, known, seed) for seed in seeds])
            index = "–" if np.isnan(found[:, 1]).all() else spread(found[:, 1], 2)
            alone = found[:, 0] if method == "local" else alone
            more = spread(found[:, 0] - alone, 1)
            rows.append((method, setting, spread(found[:, 0], 1), more, index))
            print(rows[-1], np.round(found, 2).tolist(), flush=True)
        title = f"Levels over extractors, regions with habits of their own: {problem}"
        tables.show(title, columns, rows)
        if given.write:
            tables.write(
                title,
                columns,
                rows,
                seed=seeds[0],
                notes=f"Mean over {CLIENTS[problem]} clients with columns of their own, mean and "
                f"deviation over seeds {given.seeds}; index: adjusted Rand index of level 2's "
                "clusters and the regions. Settings are the best of each method on a problem of "
                "another seed (--tune). Problems: see the script; of mfeat the digits are real, "
                "the codes are not.",
            )


if __name__ == "__main__":
    main()
