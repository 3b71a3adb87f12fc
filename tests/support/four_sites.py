"""Four sites with small tables, for each kind of algorithm: files, site.toml, the experiment."""

from __future__ import annotations

import tomllib

import numpy as np
import pandas as pd

from intarsia.experiment import config as experiment
from key_folders import exchanged

NAMES = ("bank", "branch", "telecom", "retailer")
VIEWS = {"left": ["l1", "l2"], "middle": ["m1", "m2", "m3"], "right": ["r1", "r2"]}
HELD = {
    "bank": ["left", "middle"],
    "branch": ["middle", "right"],
    "telecom": ["left", "right"],
    "retailer": ["middle"],
}
SETTINGS = {
    "hyfdca": {"loss": "logistic", "regularisation": 0.01},
    "flic": {"pretraining_epochs": 2, "hidden": 8, "latent": 4, "engine": "loop"},
    "hyfem": {
        **{"features": 4, "extractor_hidden": [8], "hidden": [12], "steps": 8, "batch": 16},
        **{"rate": 0.2, "engine": "loop"},
    },
    "femam": {  # each level in a round
        **{"levels": ["global", 2, "personal", "shares"], "first_rounds": 1, "level_rounds": 1},
        **{"first_clustering": 1, "engine": "loop", "level_schedule": "paper"},
    },
}


def whole(rows=120):
    """Return a table of three classes, which each view tells apart but for noise."""
    rng = np.random.default_rng(0)
    y = np.arange(rows) % 3
    columns = [name for some in VIEWS.values() for name in some]
    x = 2 * rng.normal(size=(3, len(columns)))[y] + rng.normal(size=(rows, len(columns)))
    made = pd.DataFrame(5 + 3 * x, columns=columns)
    return made.assign(kind=np.array(["p", "q", "r"])[y], row=np.arange(rows))


def tables(algorithm):
    """Return each site's table.

    hyfdca and hyfem: all rows, some columns; flic: some rows, columns of its own; femam: some rows.
    """
    table = whole()
    found = {}
    for number, name in enumerate(NAMES):
        columns = [column for view in HELD[name] for column in VIEWS[view]]
        if algorithm in ("hyfdca", "hyfem"):
            found[name] = table[[*columns, "kind", "row"]]
        elif algorithm == "flic":
            own = {column: f"{name}_{column}" for column in columns}
            found[name] = table.iloc[number::4][[*columns, "kind", "row"]].rename(columns=own)
        else:
            found[name] = table.iloc[number::4]
    return found


def write_tables(algorithm, folder):
    """Write the sites' tables and their key; return what says of each how it is read."""
    folder.mkdir(exist_ok=True)
    exchanged(folder, NAMES, "four")
    found = {}
    for name, table in tables(algorithm).items():
        table.to_csv(folder / f"{name}.csv", index=False)
        groups = ", ".join(f"{view} = {VIEWS[view]}" for view in HELD[name]).replace("'", '"')
        more = f"groups = {{ {groups} }}\n" if algorithm == "hyfem" else ""
        path = folder / f"{name}.csv"
        found[name] = f'path = "{path}"\nid = "row"\nlabel = "kind"\n{more}'
    return found


def site_toml(name, described, folder, more=""):
    """Return what a site takes part with."""
    own = f'[site]\nname = "{name}"\nids = true\nkey = "{folder}/keys/{name}/shared.key"\n{more}'
    policy = "[policy]\nmodels_readable = true\n"  # femam has clusters, for which models are read
    return f"{own}\n{policy}\n[table]\n{described}"


def tree(algorithm, described, folder, name=None, mode="masked", **settings):
    """Return the experiment, with all tables in one place."""
    privacy = {"mode": mode}
    if mode != "plain":
        privacy["key"] = str(folder / "shared.key")
    if algorithm == "hyfem" and mode != "plain":
        privacy["least_clients"] = 2  # two of them have the left view
    return {
        "experiment": {
            **{"name": name or algorithm, "rounds": 4, "evaluate_every": 2, "tolerance": 0.0},
            **{"checkpoint_seconds": 0.0, "yardsticks": False, **settings},
        },
        "algorithm": {"name": algorithm, **SETTINGS[algorithm]},
        "privacy": privacy,
        "client": [{"name": one, **tomllib.loads(text)} for one, text in described.items()],
    }


def experiment_of(algorithm, described, folder, **settings):
    """Return the experiment."""
    return experiment.from_dict(tree(algorithm, described, folder, **settings), folder)
