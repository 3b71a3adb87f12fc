"""A run in Flower's simulation and the same in one process, as a program: prints what differs.

python flower_federation.py hyfdca|flic|hyfem|femam plain|masked|ckks context|FOLDER
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from flwr.serverapp import ServerApp
from flwr.simulation import run_simulation
from tests.algorithms.femam import test_femam
from tests.algorithms.hyfem import test_hyfem
from tests.engines.remote.test_server import OneByOne

import federations
import sites
from federations import BINARY, rectangles, table
from intarsia.core.block import Block
from intarsia.core.schema import Schema
from intarsia.engines import codec
from intarsia.engines.remote.caller import Caller, RetryPolicy
from intarsia.engines.remote.server import Remote
from intarsia.engines.remote.site import Site
from intarsia.engines.simulation import Simulation
from intarsia.engines.transports import flower
from intarsia.privacy.keys.shared_key import SharedKey
from intarsia.privacy.secure_aggregation import setup as modes
from intarsia.privacy.secure_aggregation.ckks import CkksKeys
from intarsia.privacy.secure_aggregation.ckks_parameters import parameters
from intarsia.privacy.secure_aggregation.protocol import Sealing
from intarsia.privacy.settings import Privacy
from intarsia.training.registry import kind_of

RUN = "ab"
ROUNDS = 4
SETTINGS = {
    "hyfdca": {"regularisation": 0.1},
    "flic": {"pretraining_epochs": 1, "hidden": 8, "latent": 4},
    "hyfem": test_hyfem.SMALL,
    "femam": {  # each level in a round
        **{"levels": ("global", 2, "personal", "shares"), "first_rounds": 1, "level_rounds": 1},
        **{"first_clustering": 1, "batch": 10, "hidden": 6, "latent": 4, "level_schedule": "paper"},
    },
}
LABELS = {"hyfem": test_hyfem.LABELS, "femam": test_femam.LABELS}


class Named:
    own_algorithm = None

    def __init__(self, algorithm: str) -> None:
        self.algorithm = algorithm


class Disk:
    """A shelf in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def read(self, name):
        path = self.folder / name
        return path.read_bytes() if path.exists() else None

    def write(self, name, data):
        (self.folder / "new").write_bytes(data)
        (self.folder / "new").rename(self.folder / name)

    def remove(self, name):
        (self.folder / name).unlink(missing_ok=True)


def blocks_of(name: str) -> dict[str, Block]:
    if name == "hyfdca":
        x, y = table(40, 6)
        return rectangles(x, y, 2, 2, shared_rows=2, shared_columns=1)
    if name in LABELS:
        return test_hyfem.clients() if name == "hyfem" else test_femam.clients()
    rng = np.random.default_rng(0)
    return {
        client: Block(
            np.arange(24) + 100 * k,
            federations.names(range(3 * k, 3 * k + 3)),
            rng.normal(size=(24, 3)),
            np.arange(24) % 2 * 2.0 - 1,
        )
        for k, client in enumerate(("one", "two"))
    }


def schema_of(name: str, blocks: dict[str, Block]) -> Schema:
    return Schema.of(blocks, LABELS.get(name, BINARY))


def secret_file(where: str) -> Path:
    """Return where the secret key of CKKS lies, beside the sites' folders."""
    return Path(where).with_name("ckks.secret")


def sealing_of(mode: str, clients: list[str], where: str) -> Sealing | None:
    if mode == "plain":
        return None
    secret = b"" if mode == "masked" else secret_file(where).read_bytes()
    keys = modes.in_one_process(SharedKey(bytes(range(32)), "test"), secret)
    made = modes.sealing(Privacy(mode=mode), clients, keys)
    # ciphertexts for arrays that a run would put under masks
    return made if mode == "masked" else replace(made, long=4)


def site(node: flower.Node, name: str, mode: str, where: str) -> Site:
    """Return the site of a node: the client whose number is the node's."""
    blocks = blocks_of(name)
    client = list(blocks)[int(node.context.node_config["partition-id"])]
    algorithm = kind_of(Named(name))
    schemas = {"train": schema_of(name, blocks)}
    options = algorithm.hyperparameters(**SETTINGS[name])

    def desk():
        own, sealing = {"train": blocks[client]}, sealing_of(mode, list(blocks), where)
        return sites.Desk(algorithm, options, client, schemas, own, 0, sealing)

    shelf = node.shelf if where == "context" else lambda run: Disk(Path(where) / client / run)
    return Site(client, shelf, desk, lambda: federations.secret_of(client), print)


def in_simulation(name: str, mode: str, where: str) -> dict[str, object]:
    """Return what the server has after a run over nodes that Flower simulates."""
    found: dict[str, object] = {}
    blocks = blocks_of(name)
    app = ServerApp()

    def main(grid, context) -> None:
        line = flower.line_to(grid, list(blocks), 300.0)
        patience = RetryPolicy(seconds=300.0, deadline=300.0)
        caller = Caller(RUN, tuple(blocks), line, patience)
        sealing = sealing_of(mode, list(blocks), where)
        added = None if sealing is None else sites.without_keys(sealing)
        engine = Remote(caller, {"train": schema_of(name, blocks)}, 0, added, algorithm=name)
        algorithm = kind_of(Named(name))
        options = algorithm.hyperparameters(**SETTINGS[name])
        engine.begin(algorithm, options)
        found.update(run(algorithm, options, engine))

    app.main()(main)
    client_app = flower.client_app(partial(site, name=name, mode=mode, where=where))
    resources = {"num_cpus": 1, "num_gpus": 0.0}
    run_simulation(app, client_app, len(blocks), backend_config={"client_resources": resources})
    return found


def in_process(name: str, mode: str, where: str) -> dict[str, object]:
    """Return what the server has after the same run in this process."""
    blocks = blocks_of(name)
    parts = {"train": (schema_of(name, blocks), blocks)}
    kind = Simulation if mode != "plain" or name == "hyfdca" else OneByOne
    sealing, secrets = sealing_of(mode, list(blocks), where), sites.in_run(blocks, RUN)
    engine = kind(parts, 0, sealing, secrets=secrets)
    algorithm = kind_of(Named(name))
    options = algorithm.hyperparameters(**SETTINGS[name])
    if algorithm.model.additive:
        engine.count_once()
    engine.begin(algorithm, options)
    found = run(algorithm, options, engine)
    found["states"] = {one: codec.encode(state) for one, state in engine.get_states().items()}
    return found


def run(algorithm, options, engine) -> dict[str, object]:
    server = algorithm.init_server(options, engine.schema("train"), engine.key("init"))
    server = algorithm.setup(server, engine, engine.key("init"))
    infos = []
    for number in range(1, ROUNDS + 1):
        engine.begin_round(number)
        server, info = algorithm.round(server, engine, engine.key())
        server = engine.books.settle(server)
        infos.append(repr(info))
    engine.begin_round(ROUNDS + 1)
    conclusion = algorithm.conclude(server, engine, engine.key("conclude"))
    weights = conclusion.weights
    return {
        "infos": infos,
        "conclusion": repr(conclusion.info),
        "weights": None if weights is None else weights.tobytes().hex(),
        "structure": repr(conclusion.structure),
        "network": repr(codec.encode(dict(conclusion.network or {}))),
        "traffic": repr(engine.books.traffic),
    }


def states_on(folder: Path) -> dict[str, bytes]:
    """Return the newest state on each client's disk."""
    found = {}
    for client in sorted(folder.iterdir()):
        states = client.glob(f"{RUN}/state-*")
        newest = max(states, key=lambda path: int(path.name.removeprefix("state-")))
        found[client.name] = newest.read_bytes()
    return found


def main(name: str, mode: str, where: str) -> None:
    if mode == "ckks":  # for the processes of the sites too
        secret_file(where).write_bytes(CkksKeys.create(parameters(2.0**22, 9)).secret_bytes())
    simulated, expected = in_simulation(name, mode, where), in_process(name, mode, where)
    if where != "context":
        simulated["states"] = states_on(Path(where))
    else:
        del expected["states"]
    if mode == "ckks":  # ciphertexts vary in length
        del expected["traffic"]
    odd = sorted(key for key in expected if simulated.get(key) != expected[key])
    size = {"rounds": len(simulated.get("infos", ())), "compared": sorted(expected)}
    sys.stdout.write(json.dumps({"odd": odd, **size}) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
