"""Time a client's step of federated averaging beside pfl and Flower's simulation, one thread each.

    python benchmarks/peers.py --python ~/peers/bin/python

The same network, data, steps and rounds everywhere: 100 clients of 100 samples, 32 features and 10
classes, two hidden layers of 64 units, an epoch of SGD in batches of 10, then the average of all.
`--python` is the interpreter that has `pfl` and `flwr[simulation]`; what it lacks is reported as
not installed. `--write` puts the table into RESULTS.md beside this file.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

CLIENTS, SAMPLES, FEATURES, CLASSES, HIDDEN = 100, 100, 32, 10, 64
RATE = 0.05
GOALS = {"pfl": 8.0, "flower": 30.0}
_COLUMNS = (
    "library",
    "version",
    "batch",
    "client-steps a round",
    "CPU µs each",
    "clock µs each",
    "CPU / ours",
    "goal",
    "loss",
)
_NOTES = (
    "Mean over the rounds after the first, all of a round included: messages, batches, training, "
    "averaging. CPU: of the process and all that it started (Flower's actors and the daemons of "
    "Ray). CPU / ours: over that of `intarsia compiled`, whose compiling is in its first round. "
    "Loss: cross-entropy of the average model on all clients' samples after the last round; the "
    "orders of samples differ, hence the last digits."
)


def client_data(client: int) -> tuple[Any, Any]:
    """Return a client's rows, (samples, features), and classes, (samples,)."""
    means = np.random.default_rng(0).normal(size=(CLASSES, FEATURES))
    rng = np.random.default_rng(client + 1)
    y = rng.integers(0, CLASSES, SAMPLES)
    return (means[y] + 2 * rng.normal(size=(SAMPLES, FEATURES))).astype(np.float32), y


def network() -> Any:
    import torch

    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(FEATURES, HIDDEN),
        torch.nn.ReLU(),
        torch.nn.Linear(HIDDEN, HIDDEN),
        torch.nn.ReLU(),
        torch.nn.Linear(HIDDEN, CLASSES),
    )


def loss_of(model: Any) -> float:
    """Return the cross-entropy on all clients' samples."""
    import torch

    parts = [client_data(client) for client in range(CLIENTS)]
    x = torch.from_numpy(np.concatenate([x for x, _ in parts]))
    y = torch.from_numpy(np.concatenate([y for _, y in parts]))
    with torch.no_grad():
        return float(torch.nn.functional.cross_entropy(model(x), y))


# ---- the libraries: each trains, calls `tick` after every round, and returns the loss


def intarsia(engine: str, rounds: int, batch: int, tick: Callable[[], None]) -> tuple[str, float]:
    from dataclasses import dataclass

    import torch

    from intarsia import __version__
    from intarsia.core.block import Block, Labels
    from intarsia.core.client_functions import vectorised_function
    from intarsia.core.schema import Schema
    from intarsia.engines.simulation import Simulation
    from intarsia.maths.training import vectorised
    from intarsia.maths.training.local_training import Learner, LocalTraining
    from intarsia.maths.training.optimisers import SGD

    @dataclass(frozen=True)
    class Weights:
        values: Any  # (parameters,)

    model = network()
    shapes = {name: values.shape for name, values in model.named_parameters()}

    def named(vector: Any) -> dict[str, Any]:
        parts = torch.from_numpy(vector).split([shape.numel() for shape in shapes.values()])
        return {name: part.view(shapes[name]) for name, part in zip(shapes, parts, strict=True)}

    training = LocalTraining(
        model=model,
        loss=lambda model, batch: torch.nn.functional.cross_entropy(
            model(batch["x"]), batch["y"], reduction="none"
        ),
        optimiser=SGD(rate=RATE),
        batch_size=batch,
    )

    @vectorised_function
    def train(visits: Any) -> Any:
        learners = [
            Learner(
                parameters=named(message.values),
                rows={
                    "x": torch.from_numpy(block.x).float(),
                    "y": torch.from_numpy(block.y).long(),
                },
                key=rng.integer(),
            )
            for _, block, message, rng in visits
        ]
        return [
            (None, Weights(torch.cat([one.parameters[n].ravel() for n in shapes]).numpy()))
            for one in vectorised.train(training, learners, engine=engine)
        ]

    names = tuple(f"f{k:02d}" for k in range(FEATURES))  # in the order of their names
    blocks = {}
    for client in range(CLIENTS):
        x, y = client_data(client)
        ids = np.arange(SAMPLES) + client * SAMPLES
        blocks[f"c{client}"] = Block(ids, names, x.astype(np.float64), y.astype(np.float64))
    labels = Labels("multiclass", tuple(str(k) for k in range(CLASSES)))
    clients = Simulation({"train": (Schema.of(blocks, labels), blocks)}, 0)
    weights = np.concatenate([v.detach().numpy().ravel() for v in model.parameters()])
    for number in range(rounds):
        clients.begin_round(number + 1)
        total = clients.sum(train, dict.fromkeys(clients.ids, Weights(weights)))
        weights = clients.reveal(total.values) / np.float32(CLIENTS)
        tick()
    model.load_state_dict(named(weights))
    return __version__, loss_of(model)


def pfl(rounds: int, batch: int, tick: Callable[[], None]) -> tuple[str, float]:
    from importlib.metadata import version

    import torch
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = network()

        def loss(self, x: Any, y: Any) -> Any:
            return torch.nn.functional.cross_entropy(self.layers(x), y)

        def metrics(self, x: Any, y: Any) -> dict[str, Any]:
            return {}

    class Tick(TrainingProcessCallback):
        def after_central_iteration(self, *_: Any, **__: Any) -> tuple[bool, Any]:
            tick()
            return False, Metrics()

    users = [str(client) for client in range(CLIENTS)]
    held = {
        user: PyTorchTensorDataset([torch.from_numpy(one) for one in client_data(int(user))], user)
        for user in users
    }
    data = FederatedDataset(held.__getitem__, get_user_sampler("minimize_reuse", users))
    model = Model()
    wrapped = PyTorchModel(model, torch.optim.SGD, torch.optim.SGD(model.parameters(), 1.0))
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=10**9,
            train_cohort_size=CLIENTS,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=data, val_data=None),
        model=wrapped,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=RATE, local_batch_size=batch
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=None),
        callbacks=[Tick()],
    )
    return version("pfl"), loss_of(model.layers)


def flower(rounds: int, batch: int, tick: Callable[[], None]) -> tuple[str, float]:
    import flwr
    import torch
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    client_app, server_app, found = ClientApp(), ServerApp(), {}

    @client_app.train()
    def train(message: Any, context: Any) -> Any:
        torch.set_num_threads(1)
        model = network()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        x, y = (torch.from_numpy(p) for p in client_data(int(context.node_config["partition-id"])))
        optimiser = torch.optim.SGD(model.parameters(), RATE)
        for rows in torch.randperm(len(x)).split(batch):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            optimiser.step()
        records = {
            "arrays": ArrayRecord(model.state_dict()),
            "metrics": MetricRecord({"num-examples": len(x)}),
        }
        return Message(content=RecordDict(records), reply_to=message)

    @server_app.main()
    def main(grid: Any, context: Any) -> None:
        def after(number: int, arrays: Any) -> None:
            if number:
                tick()
            found["arrays"] = arrays

        FedAvg(fraction_train=1.0, fraction_evaluate=0.0).start(
            grid, ArrayRecord(network().state_dict()), num_rounds=rounds, evaluate_fn=after
        )

    run_simulation(
        server_app,
        client_app,
        CLIENTS,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": 1, "include_dashboard": False},
        },
    )
    model = network()
    model.load_state_dict(found["arrays"].to_torch_state_dict())
    return flwr.__version__, loss_of(model)


# ---- measuring


def _cpu() -> float:
    """Return the CPU seconds of this process and of all below it (Linux)."""
    spent: dict[int, float] = {}
    below: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        spent[int(folder.name)] = sum(int(fields[k]) for k in (11, 12, 13, 14))
        below.setdefault(int(fields[1]), []).append(int(folder.name))
    left, total = [os.getpid()], 0.0
    while left:
        process = left.pop()
        total += spent.get(process, 0.0)
        left += below.get(process, [])
    return total / os.sysconf("SC_CLK_TCK")


def _measured(library: str, rounds: int, batch: int) -> dict[str, Any]:
    import torch

    torch.set_num_threads(1)
    ticks: list[tuple[float, float]] = []

    def tick() -> None:
        ticks.append((_cpu(), time.perf_counter()))

    if library in ("pfl", "flower"):
        version, loss = {"pfl": pfl, "flower": flower}[library](rounds, batch, tick)
    else:
        version, loss = intarsia(library.split()[1], rounds, batch, tick)
    # the kernel counts in steps of 10 ms: the mean, not the median
    cpu, clock = np.diff(np.array(ticks), axis=0).mean(axis=0).tolist()
    return {"version": version, "loss": loss, "cpu": cpu, "clock": clock}


def _apart(library: str, python: str, rounds: int, batch: int) -> dict[str, Any] | None:
    command = [python, __file__, "--one", json.dumps([library, rounds, batch])]
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | quiet
    )
    if done.returncode:
        if "ModuleNotFoundError" in done.stderr:
            return None
        raise SystemExit(done.stderr[-4000:])
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    print(library, found, file=sys.stderr)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", default=sys.executable, help="interpreter with pfl and flwr")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--batch", default="10")
    parser.add_argument("--write", action="store_true", help="write into RESULTS.md")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(_measured(*json.loads(arguments.one))))
        return
    from tables import number, show, write

    rows: list[list[str]] = []
    for batch in (int(one) for one in arguments.batch.split(",")):
        ours: float | None = None
        steps = CLIENTS * -(-SAMPLES // batch)
        for library in ("intarsia compiled", "intarsia vmap", "intarsia loop", "pfl", "flower"):
            python = arguments.python if library in GOALS else sys.executable
            found = _apart(library, python, arguments.rounds, batch)
            if found is None:
                rows.append([library, "not installed", str(batch), *["–"] * 6])
                continue
            ours = ours or found["cpu"]
            rows.append(
                [
                    library,
                    found["version"],
                    str(batch),
                    str(steps),
                    number(1e6 * found["cpu"] / steps),
                    number(1e6 * found["clock"] / steps),
                    number(found["cpu"] / ours),
                    number(GOALS.get(library)),
                    number(found["loss"]),
                ]
            )
    title = "Federated averaging beside pfl and Flower"
    show(title, _COLUMNS, rows)
    if arguments.write:
        write(title, _COLUMNS, rows, seed=0, notes=_NOTES)


if __name__ == "__main__":
    main()
