"""Clients on a cluster of Ray with two nodes: the bits of one process, whatever happens to them."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import four_sites
from intarsia.algorithms.linear.fedavg import FEDAVG, FedAvg
from intarsia.cli.main import main
from intarsia.core.algorithm import Algorithm
from intarsia.core.disclosure import Release
from intarsia.engines import codec
from intarsia.engines.release_ledger import ReleaseLedger
from intarsia.errors import ExperimentError, WorkerError
from intarsia.training.run import run
from tests.engines.test_workers import engine_over
from tests.training.test_resume import lines_of

PROJECT = Path(__file__).parents[3]
SOURCE = PROJECT / "src" / "intarsia"
PATH = (SOURCE.parent, PROJECT, PROJECT / "tests" / "support")  # what nodes import


@pytest.fixture(scope="module")
def cluster():
    """Return a cluster of two nodes with a processor each."""
    if find_spec("ray") is None:
        pytest.skip("ray is not installed")
    with pytest.MonkeyPatch.context() as patch:  # before Ray is imported, which reads it
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        for wait in ("raylet_start_wait_time_s", "worker_register_timeout_seconds"):
            patch.setenv(f"RAY_{wait}", "300")  # machines may have much else to do
        patch.setenv("PYTHONPATH", os.pathsep.join(map(str, PATH)))
        from ray.cluster_utils import Cluster

        node = {"num_cpus": 1, "object_store_memory": 100_000_000, "include_dashboard": False}
        made = Cluster(initialize_head=True, head_node_args=node)
        made.add_node(num_cpus=1, object_store_memory=100_000_000)
        yield made
        made.shutdown()


def model_of(folder: Path) -> dict[str, bytes]:
    """Return the files of a run's model, the arrays of each archive apart."""
    found = {}
    for path in sorted((folder / "model").rglob("*")):
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as arrays:
                found |= {f"{path.name}/{one}": arrays[one].tobytes() for one in arrays.files}
        elif path.is_file():
            found[path.name] = path.read_bytes()
    return found


def check_identical(one: Path, two: Path) -> None:
    assert model_of(one)
    assert model_of(one) == model_of(two)
    assert lines_of(one) == lines_of(two)
    found, other = (json.loads((out / "result.json").read_text()) for out in (one, two))
    for key in ("rounds", "finished", "bytes", "exchanges", "metrics", "notes"):
        assert found[key] == other[key], key


def described(tmp_path: Path, algorithm: str, **settings):
    tables = four_sites.write_tables(algorithm, tmp_path / "tables")
    return four_sites.experiment_of(algorithm, tables, tmp_path / "tables", **settings)


@pytest.mark.parametrize(
    ("algorithm", "mode"),
    [
        ("hyfdca", "plain"),
        ("hyfdca", "masked"),
        ("flic", "plain"),
        ("hyfem", "plain"),
        ("femam", "plain"),
    ],
)
def test_a_run_comes_to_the_bits_of_one_process(
    cluster, tmp_path, capfd, monkeypatch, algorithm, mode
) -> None:
    import ray

    from intarsia.engines.transports.ray import RayCluster

    shared, begun = [], RayCluster.workers

    def watched(self, host, shares):
        shared.extend(shares)
        return begun(self, host, shares)

    monkeypatch.setattr(RayCluster, "workers", watched)
    how = {"mode": mode, "name": algorithm}
    run(described(tmp_path, algorithm, workers=1, **how), out=tmp_path / "alone")
    run(described(tmp_path, algorithm, ray=cluster.address, **how), out=tmp_path / "nodes")
    check_identical(tmp_path / "alone", tmp_path / "nodes")
    assert list(map(len, shared)) == [2, 2]
    assert not ray.is_initialized()
    assert capfd.readouterr().out == ""


def ascending(tmp_path: Path, **settings):
    """Return an experiment that takes all of its rounds."""
    found = described(tmp_path, "hyfdca", rounds=12, **settings)
    return replace(found, hyperparameters={**found.hyperparameters, "method": "ascent"})


def test_a_run_of_which_a_node_ends_goes_on_to_the_same_bits(cluster, tmp_path, capfd) -> None:
    import psutil
    import ray

    run(ascending(tmp_path, workers=1), out=tmp_path / "alone")
    third = cluster.add_node(num_cpus=1, object_store_memory=100_000_000)

    killed = []

    class Kills:
        def on_round(self, now) -> None:
            if now.round == 3:
                # all of a machine ends at once; raylets alone leave their actors some seconds
                [daemon] = third.all_processes["raylet"]
                found = psutil.Process(daemon.process.pid).children(recursive=True)
                killed.extend(one.cmdline()[0] for one in found)
                cluster.remove_node(third, allow_graceful=False)
                for one in found:
                    with suppress(psutil.NoSuchProcess):
                        one.kill()
                psutil.wait_procs(found)
                while sum(one["Alive"] for one in ray.nodes()) > 2:
                    time.sleep(0.05)  # until the cluster knows

    three = ascending(tmp_path, ray=cluster.address, workers=3)
    cut = tmp_path / "cut"
    with pytest.raises(WorkerError, match=r"that computed for '.*is gone.*experiment.ray="):
        run(three, out=cut, callbacks=[Kills()])
    assert "ray::Node" in killed
    assert not ray.is_initialized()
    there = ["resume", str(cut), "-q", "-c", f"experiment.ray={cluster.address}"]
    assert main(there) == 2
    said = capfd.readouterr().err
    assert "workers is 3, and the Ray cluster has 2 processors" in said
    assert main([*there, "-c", "experiment.workers=0"]) == 0
    check_identical(tmp_path / "alone", cut)


def private(made_of: bytes) -> Algorithm:
    return FEDAVG.private(codec.decode(made_of, Release))


def test_noise_is_that_of_one_process(cluster, tmp_path) -> None:
    from intarsia.engines.transports.ray import RayCluster

    release, states = Release(1.0, 0.5, releases=3), []
    where = f"{__name__}:private"
    nodes = RayCluster(cluster.address, 2, where, codec.encode(release))
    algorithm, options = FEDAVG.private(release), FedAvg(regularisation=0.1)
    with nodes.connected():
        for number, given in enumerate(({}, {"cluster": nodes})):
            ledger = ReleaseLedger(tmp_path / str(number))
            ledger._nonce = b"of both runs...."
            engine = engine_over(4, ledger=ledger, **given)
            key = engine.key("init")
            engine.begin(algorithm, options)
            server = algorithm.begin(options, engine.schema("train"), key)
            server = algorithm.setup(server, engine, key)
            for round_ in (1, 2):
                engine.begin_round(round_)
                server, _ = algorithm.round(server, engine, engine.key())
            states.append(codec.encode((engine.books.seal(server), engine.get_states())))
            assert (engine._workers is not None) == bool(given)
    assert states[0] == states[1]


def test_what_cannot_be_is_said_in_a_sentence(cluster, tmp_path) -> None:
    many = described(tmp_path, "hyfdca", ray=cluster.address, workers=9)
    with pytest.raises(ExperimentError, match="workers is 9, and the Ray cluster has 2 processors"):
        run(many, out=tmp_path / "out")
    assert not (tmp_path / "out" / "experiment.json").exists()
    nobody = described(tmp_path, "hyfdca", ray="127.0.0.1:9")
    with pytest.raises(
        ExperimentError, match=r"ray is '127.0.0.1:9', and no cluster could be used"
    ):
        run(nobody, out=tmp_path / "out")


@pytest.mark.parametrize(
    ("says", "why"),
    [(b"", "timed out"), (b"HTTP/1.1 400 Bad", "what answers there is no cluster of Ray")],
)
def test_what_is_no_cluster_is_said_soon(tmp_path, monkeypatch, says, why) -> None:
    if find_spec("ray") is None:
        pytest.skip("ray is not installed")
    from intarsia.engines.transports import ray as over_ray

    monkeypatch.setattr(over_ray, "_KNOCKING", 0.5)

    def answer(server: socket.socket) -> None:
        line, _ = server.accept()
        with line:
            line.sendall(says)
            line.recv(1 << 10)
            line.recv(1 << 10)  # until the other side closes

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=answer, args=[server])
        thread.start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(ExperimentError, match=f"no cluster could be used there .{why}"):
            run(described(tmp_path, "hyfdca", ray=address), out=tmp_path / "out")
        thread.join()


@pytest.mark.parametrize("address", ["10.0.0.1", "ray://10.0.0.1:10001", "host:port"])
def test_an_address_that_is_none_is_refused(tmp_path, address) -> None:
    with pytest.raises(ExperimentError, match=r"ray is .*\"HOST:PORT\" of a cluster"):
        described(tmp_path, "hyfdca", ray=address)


def test_threads_and_algorithms_that_nodes_do_not_have_are_refused(tmp_path, monkeypatch) -> None:
    with pytest.raises(ExperimentError, match="threads is 2 and ray is 'local'"):
        described(tmp_path, "hyfdca", ray="local", threads=2)
    local = described(tmp_path, "hyfdca", ray="local")
    own = replace(FEDAVG, name="mine")
    with pytest.raises(ExperimentError, match="'mine' is given as an object"):
        run(replace(local, own_algorithm=own, hyperparameters={}), out=tmp_path / "out")
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "intarsia.engines.transports.ray", raising=False)
    with pytest.raises(ExperimentError, match=r"ray is not installed; run .*intarsia\[ray\]"):
        run(local, out=tmp_path / "out")
