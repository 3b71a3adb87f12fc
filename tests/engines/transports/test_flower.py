"""Runs over the nodes of a Flower federation, which is simulated in processes of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from intarsia.deployment.client_folder import read_settings
from intarsia.engines.remote.caller import RetryPolicy
from intarsia.errors import AbsentError, FederationError, SiteError
from intarsia.experiment import config as experiment

TESTS = Path(__file__).parents[2] / "support"
PROJECT = TESTS.parents[1]
SOURCE = PROJECT / "src" / "intarsia"


def test_the_example_over_flower_is_the_experiment_credit() -> None:
    root = PROJECT
    one = experiment.load(root / "experiments" / "credit.toml")
    app = root / "examples" / "flower-app"
    over = experiment.load(app / "credit_app" / "credit.toml")
    tables = {
        source.name: read_settings(app / "sites" / source.name).table for source in one.clients
    }
    assert [source.name for source in over.clients] == list(tables)
    assert tuple(tables.values()) == one.clients
    assert replace(over, clients=one.clients, out=one.out) == one


@pytest.mark.parametrize(
    ("sites", "wait", "attempt"), [("", 600.0, 120.0), ("", 20.0, 20.0), ("sites", 600.0, 600.0)]
)
def test_the_example_asks_a_site_again_in_two_minutes_unless_it_is_simulated(
    sites: str, wait: float, attempt: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flower may lose an answer, and simulated nodes lose none."""
    flower_app = pytest.importorskip("flwr.app")
    monkeypatch.syspath_prepend(str(PROJECT / "examples" / "flower-app"))
    from credit_app import server

    asked = []

    class Seen(Exception):  # noqa: N818 - not an error of anybody
        pass

    def run_over(*_: object, patience: RetryPolicy) -> None:
        asked.append(patience)
        raise Seen

    monkeypatch.setattr(server, "run_over", run_over)
    monkeypatch.setattr(server, "line_to", lambda *_: None)
    out = str(tmp_path / "out")
    config = {"clients": "bank", "nodes": "", "out": out, "sites": sites, "wait": wait}
    context = flower_app.Context(1, 1, {}, flower_app.RecordDict(), config)
    with pytest.raises(Seen):
        server.main(None, context)
    assert asked == [RetryPolicy(seconds=attempt, deadline=wait)]


class Silent:
    """A grid of Flower's whose server is gone from a call on: the library asks it for ever."""

    def __init__(self, gone: str) -> None:
        self.gone, self.free = gone, threading.Event()

    def get_node_ids(self) -> list[int]:
        return self._unless("get_node_ids", [7])

    def push_messages(self, messages: list[object]) -> list[str]:
        return self._unless("push_messages", ["a"] * len(messages))

    def pull_messages(self, waiting: object) -> list[object]:
        return self._unless("pull_messages", [])

    def _unless(self, name: str, found: list[Any]) -> list[Any]:
        if name == self.gone:
            assert self.free.wait(60)
        return found


@pytest.mark.parametrize("gone", ["get_node_ids", "push_messages", "pull_messages"])
def test_a_server_of_flower_that_is_gone_is_not_waited_for_longer_than_was_said(
    gone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("flwr", reason="flwr is not installed")
    from intarsia.engines.transports import flower

    monkeypatch.setattr(flower, "_message", lambda *_, **__: "a message of an app")
    grid: Any = Silent(gone)
    with pytest.raises(AbsentError, match="No node answered for bank within"):
        flower.line_to(grid, ["bank"], 0.3)
    if gone != "get_node_ids":
        line = flower.GridLine(grid, {"bank": 7, "shop": 8})
        for client in ("bank", "shop"):  # nor by those that come behind it
            with pytest.raises(TimeoutError):
                line.send(client, b"", 0.3)
    grid.free.set()


def test_a_node_whose_site_cannot_begin_tells_the_server_the_class_of_the_error_alone(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("flwr", reason="flwr is not installed")
    from flwr.app import Context, Error, Message, RecordDict
    from flwr.supercore.task_identity import TaskIdentity

    from intarsia.engines.transports import flower

    def wrong(node: object) -> Any:
        raise ValueError("column hiv_status of /srv/own/table.csv")

    for name in ("_run_id", "_node_id", "_task_id"):  # of the process of an app
        monkeypatch.setattr(TaskIdentity, name, 1)
    question = flower._message(b"", 7, flower._NAME, 60.0)
    with pytest.raises(SiteError) as found:
        flower.client_app(wrong)(question, Context(1, 7, {}, RecordDict(), {}))
    said = "The site of a node cannot begin (ValueError); the node's own log says why."
    assert str(found.value) == said
    assert found.value.__suppress_context__
    assert "column hiv_status" in caplog.text

    class Failing(Silent):
        def pull_messages(self, waiting: object) -> list[Any]:
            return [Message(Error(2, said), reply_to=question)]

    grid: Any = Failing("")
    with pytest.raises(AbsentError) as absent:
        flower.line_to(grid, ["bank"], 1.0)
    assert str(absent.value) == (
        "No node answered for bank within 1 seconds (0 of 1 nodes did; 1 failed: "
        f"{said!r}); start these sites, then resume the run."
    )


@pytest.mark.parametrize(
    ("records", "why"),
    [
        ({}, "without the bytes"),
        ({"intarsia": {}}, "without the bytes"),
        ({"intarsia": {"data": 3}}, "without the bytes"),
        ({"intarsia": {"data": "bank"}}, "without the bytes"),
        ({"intarsia": {"data": b"\xff"}}, "utf-8"),
    ],
)
def test_a_node_that_answers_with_no_bytes_is_no_client_and_ends_no_run(
    records: dict[str, dict[str, Any]], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended the server's app by a traceback that named nobody."""
    pytest.importorskip("flwr", reason="flwr is not installed")
    from flwr.app import ConfigRecord, Message, RecordDict
    from flwr.supercore.task_identity import TaskIdentity

    from intarsia.engines.transports import flower

    for name in ("_run_id", "_node_id", "_task_id"):  # of the process of an app
        monkeypatch.setattr(TaskIdentity, name, 1)
    question = flower._message(b"", 7, flower._NAME, 60.0)
    content = RecordDict({name: ConfigRecord(own) for name, own in records.items()})

    class Odd(Silent):
        def pull_messages(self, waiting: object) -> list[Any]:
            return [Message(content, reply_to=question)]

    grid: Any = Odd("")
    with pytest.raises(AbsentError, match=rf"\(0 of 1 nodes did; 1 failed: .*{why}"):
        flower.line_to(grid, ["bank"], 1.0)
    if why != "utf-8":
        with pytest.raises(ConnectionError, match=why):
            flower.GridLine(grid, {"bank": 7}).send("bank", b"", 1.0)


class Answering:
    """A grid of Flower's whose nodes answer for clients, each after so many looks."""

    def __init__(self, nodes: dict[int, tuple[str, int]]) -> None:
        self.nodes, self.looks = nodes, 0
        self.asked: list[Any] = []

    def get_node_ids(self) -> list[int]:
        return list(self.nodes)

    def push_messages(self, messages: list[Any]) -> list[str]:
        self.asked += messages
        return [str(one.metadata.dst_node_id) for one in messages]

    def pull_messages(self, waiting: set[str]) -> list[Any]:
        from flwr.app import ConfigRecord, Message, RecordDict

        self.looks += 1
        found = []
        for question in self.asked:
            name, after = self.nodes[question.metadata.dst_node_id]
            if str(question.metadata.dst_node_id) in waiting and self.looks >= after:
                content = RecordDict({"intarsia": ConfigRecord({"data": name.encode()})})
                found.append(Message(content, reply_to=question))
                found[-1].metadata.__dict__["_reply_to_message_id"] = str(
                    question.metadata.dst_node_id
                )
        return found


@pytest.fixture
def of_an_app(monkeypatch: pytest.MonkeyPatch) -> Any:
    pytest.importorskip("flwr", reason="flwr is not installed")
    from flwr.supercore.task_identity import TaskIdentity

    from intarsia.engines.transports import flower

    for name in ("_run_id", "_node_id", "_task_id"):  # of the process of an app
        monkeypatch.setattr(TaskIdentity, name, 1)
    monkeypatch.setattr(flower, "_SLOWEST", 0.01)
    return flower.line_to


QUICKER = {7: ("bank", 5), 8: ("shop", 1), 9: ("bank", 1)}  # 7 is the bank's own


def test_a_node_that_answers_first_under_another_name_is_not_taken_for_that_client(
    of_an_app: Any,
) -> None:
    """Over a real superlink one got all that the bank was told, and the bank's own node nothing."""
    both = r"The nodes 9 and 7 both answer for the client 'bank'; .* in nodes which node each"
    with pytest.raises(FederationError, match=both):
        of_an_app(Answering(QUICKER), ["bank", "shop"], 60.0)


def test_where_the_node_of_each_client_is_said_no_other_is_asked(of_an_app: Any) -> None:
    grid = Answering(QUICKER)
    line = of_an_app(grid, ["bank", "shop"], 60.0, {"shop": 8, "bank": 7})
    assert line._nodes == {"bank": 7, "shop": 8}
    assert {one.metadata.dst_node_id for one in grid.asked} == {7, 8}
    said = "The node 8 is that of 'bank', and answers for 'shop'; see who runs it, or mend nodes."
    with pytest.raises(FederationError, match=said):
        of_an_app(Answering(QUICKER), ["bank", "shop"], 60.0, {"shop": 7, "bank": 8})
    with pytest.raises(FederationError, match="'shop' stand in one of them alone"):
        of_an_app(Answering(QUICKER), ["bank", "shop"], 60.0, {"bank": 7})


def test_which_node_each_client_is_is_read_from_a_text() -> None:
    pytest.importorskip("flwr", reason="flwr is not installed")
    from intarsia.engines.transports.flower import nodes_of

    assert nodes_of(" ") is None
    assert nodes_of("a=b=7 shop=8") == {"a=b": 7, "shop": 8}
    for odd in ("bank", "=7", "bank=x", "bank=-7", "bank="):
        with pytest.raises(FederationError, match=f"nodes has {odd!r}; give each client once"):
            nodes_of(f"shop=8 {odd}")
    with pytest.raises(FederationError, match="nodes has 'bank=8'"):
        nodes_of("bank=7 bank=8")


def test_a_node_that_does_not_answer_keeps_nobody_longer_than_was_said(of_an_app: Any) -> None:
    nodes = {7: ("bank", 1), 8: ("shop", 1), 9: ("", 10**9)}
    assert of_an_app(Answering(nodes), ["bank", "shop"], 0.5)._nodes == {"bank": 7, "shop": 8}
    del nodes[9]
    assert of_an_app(Answering(nodes), ["bank", "shop"], 3600.0)._nodes == {"bank": 7, "shop": 8}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "mode", "where"),
    [
        ("hyfdca", "plain", "context"),
        ("hyfdca", "masked", "disk"),
        ("hyfdca", "ckks", "disk"),
        ("flic", "plain", "disk"),
        ("hyfem", "plain", "disk"),
        ("femam", "plain", "disk"),
    ],
)
def test_flowers_simulation_comes_to_the_bits_of_the_in_process_engine(
    tmp_path: Path, name: str, mode: str, where: str
) -> None:
    pytest.importorskip("flwr", reason="flwr is not installed")
    pytest.importorskip("ray", reason="the simulation of flwr is not installed")
    pytest.importorskip("torch")
    place = "context" if where == "context" else str(tmp_path / "sites")
    path = [str(TESTS), str(PROJECT), str(SOURCE.parent), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, str(TESTS / "flower_federation.py"), name, mode, place],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path), "FLWR_TELEMETRY_ENABLED": "0"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["odd"] == []
    assert told["rounds"] == 4
    assert ("states" in told["compared"]) == (where == "disk")
