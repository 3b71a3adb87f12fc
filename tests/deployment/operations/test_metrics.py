"""What Prometheus reads of a server is what its runs' folders say."""

from __future__ import annotations

import contextlib
import http.client
import inspect
import json
import re
import socket
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("nvflare", reason="nvflare is not installed: pip install intarsia[nvflare]")
pytest.importorskip("prometheus_client", reason="pip install intarsia[metrics]")

from prometheus_client.parser import text_string_to_metric_families

from intarsia import __version__
from intarsia.cli import federation
from intarsia.cli.main import main
from intarsia.deployment.operations import metrics
from intarsia.deployment.operations.answers import Answers
from intarsia.engines.remote.caller import RetryPolicy
from intarsia.engines.transports import kits
from intarsia.errors import ExperimentError


@pytest.fixture(scope="module")
def kit(tmp_path_factory):
    """Write a server's kit with runs of three states, and its certificates."""
    kit = tmp_path_factory.mktemp("kits") / "server"
    runs = kit / "local" / "runs"
    (kit / "startup").mkdir(parents=True)
    kits.Authority._drawn("two").equip(kit / "startup", kits._parts("server", "localhost")[0])
    for name in ("calm", "done", "early", "ping"):
        (runs / name / "out").mkdir(parents=True)
    known = {"sites": ["bank", "shop"], "patience": vars(RetryPolicy())}
    (kit / "local" / "federation.json").write_text(json.dumps(known))
    line = {"round": 7, "loss": 0.25, "gap_relative": 1e-3, "bytes": 1234, "exchanges": 9}
    (runs / "calm" / "out" / "history.jsonl").write_text(json.dumps(line) + "\n")
    (runs / "calm" / "job.id").write_text("one")
    (runs / "calm" / "out" / "away.json").write_text('["shop"]')
    line = {"round": 3, "loss": None, "gap_relative": None, "bytes": 5}
    (runs / "done" / "out" / "history.jsonl").write_text(json.dumps(line) + "\n")
    seconds = {"total": 5.0, "newton": 3.0, "evaluation": 2.0}
    (runs / "done" / "out" / "result.json").write_text(json.dumps({"seconds": seconds}))
    measured = {"seconds": {"small": [0.1], "8 MB": [0.2]}, "sites": ["bank", "shop"]}
    (runs / "ping" / "out" / "result.json").write_text(json.dumps(measured))
    return kit


def asked(ask):
    """Return what knows the sites that answered, once they were asked."""
    answers = Answers(ask)
    answers.look()
    return answers


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def read(port):
    """Return the samples at a port, by name and labels, as Prometheus' own parser reads them."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        text = answer.read().decode()
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_server_serves_how_its_federation_stands(kit):
    standing = metrics.Standing(kit, asked(lambda: {"bank": frozenset()}))
    with metrics.served(standing, "127.0.0.1", port := free_port()):
        found = read(port)
    (end,) = {
        moment.timestamp() for file, moment in kits.ends_in(kit).items() if file == "server.crt"
    }
    expected = {
        ("intarsia_info", ("version", __version__)): 1,
        ("intarsia_site_connected", ("site", "bank")): 1,
        ("intarsia_site_connected", ("site", "shop")): 0,
        ("intarsia_runs", ("state", "waiting")): 1,
        ("intarsia_runs", ("state", "running")): 1,
        ("intarsia_runs", ("state", "finished")): 1,
        ("intarsia_runs", ("state", "failed")): 0,
        ("intarsia_run_round", ("run", "calm")): 7,
        ("intarsia_run_round", ("run", "early")): 0,
        ("intarsia_run_loss", ("run", "calm")): 0.25,
        ("intarsia_run_gap", ("run", "calm")): 1e-3,
        ("intarsia_run_bytes_total", ("run", "calm")): 1234,
        ("intarsia_run_sites_away", ("run", "calm")): 1,
        ("intarsia_run_seconds_total", ("part", "newton"), ("run", "done")): 3.0,
        ("intarsia_run_seconds_total", ("part", "evaluation"), ("run", "done")): 2.0,
        ("intarsia_certificate_end_timestamp_seconds", ("file", "server.crt")): end,
    }
    assert {key: found.get(key) for key in expected} == expected
    absent = [("intarsia_run_loss", ("run", "done")), ("intarsia_run_gap", ("run", "early"))]
    assert not [key for key in absent if key in found]
    with pytest.raises(urllib.error.URLError):
        read(port)  # it ends with what it serves


def test_another_machine_reads_nothing_unless_it_is_asked_for():
    assert inspect.signature(federation.server).parameters["metrics_at"].default == "127.0.0.1"


def said_to(port, host):
    """Return whether metrics are told at a port to who says to have reached a host."""
    asked = http.client.HTTPConnection("127.0.0.1", port)
    asked.request("GET", "/metrics", headers={"Host": host})
    answer = asked.getresponse()
    told = "intarsia_" in answer.read().decode()
    asked.close()
    assert told == (answer.status == 200)
    return told


def test_a_page_whose_name_leads_to_this_machine_reads_no_metrics(kit):
    standing = metrics.Standing(kit, asked(dict))
    own = "127.0.0.1", "127.0.0.1:9464", "localhost", "localhost:9464"
    others = "evil.example", "evil.example:9464", "127.0.0.1.evil.example", "0.0.0.0", ":", "[::1]"
    with metrics.served(standing, "127.0.0.1", port := free_port()):
        assert [said_to(port, host) for host in own] == [True] * len(own)
        assert [said_to(port, host) for host in others] == [False] * len(others)


def test_an_address_that_others_reach_is_read_by_any_name(kit):
    standing = metrics.Standing(kit, asked(dict))
    with metrics.served(standing, "0.0.0.0", port := free_port()):
        assert said_to(port, "fed.example.org:9464")


def test_who_opens_connections_takes_few_threads_and_keeps_nobody_out(kit):
    standing, before = metrics.Standing(kit, asked(dict)), threading.active_count()
    with contextlib.ExitStack() as opened:
        with metrics.served(standing, "127.0.0.1", port := free_port()):
            every = []
            for _ in range(50):
                one = opened.enter_context(socket.create_connection(("127.0.0.1", port)))
                one.sendall(b"GET /metrics HTTP/1.1\r\nHost: ")  # and nothing more
                every.append(one)
            assert read(port)[("intarsia_runs", ("state", "running"))] == 1  # they take no turn
            every[0].settimeout(60)
            with contextlib.suppress(ConnectionResetError):
                assert every[0].recv(1) == b""  # the first one was sent away
            assert threading.active_count() - before <= metrics._AT_ONCE + 1
        with pytest.raises(urllib.error.URLError):
            read(port)  # it has ended in spite of them


def test_an_answer_is_not_cut_off_for_connections_that_ask_for_nothing(kit, monkeypatch):
    standing, asked_for, go_on = (
        metrics.Standing(kit, asked(dict)),
        threading.Event(),
        threading.Event(),
    )
    collect = metrics.Standing.collect

    def slow(self):
        asked_for.set()
        assert go_on.wait(60)
        return collect(self)

    monkeypatch.setattr(metrics.Standing, "collect", slow)
    go_on.set()  # a registry asks once as it takes it
    with (
        contextlib.ExitStack() as opened,
        metrics.served(standing, "127.0.0.1", port := free_port()),
        ThreadPoolExecutor() as threads,
    ):
        go_on.clear()
        asked_for.clear()
        answer = threads.submit(read, port)
        assert asked_for.wait(60)
        for _ in range(3 * metrics._AT_ONCE):
            one = opened.enter_context(socket.create_connection(("127.0.0.1", port)))
        one.sendall(b"GET /nothing HTTP/1.1\r\n\r\n")  # it is taken in after all others
        one.settimeout(60)
        assert one.recv(1)
        go_on.set()
        assert answer.result()[("intarsia_runs", ("state", "running"))] == 1


def test_sites_are_not_known_where_the_server_cannot_be_asked(kit):
    def refused():
        raise ConnectionError

    standing = metrics.Standing(kit, asked(refused))
    with metrics.served(standing, "127.0.0.1", port := free_port()):
        assert not [key for key in read(port) if key[0] == "intarsia_site_connected"]


def test_a_port_that_is_taken_is_said_in_a_sentence(kit):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        given = metrics.Standing(kit, asked(dict)), "127.0.0.1", taken.getsockname()[1]
        served = metrics.served(*given)
        with pytest.raises(ExperimentError, match="Metrics cannot be served at"), served:
            pass


def test_the_dashboard_asks_for_what_is_served(kit, capfd):
    assert main(["federation", "dashboard"]) == 0
    board = json.loads(capfd.readouterr().out)
    standing = metrics.Standing(kit, asked(lambda: {"bank": frozenset()}))
    with metrics.served(standing, "127.0.0.1", port := free_port()):
        served = {key[0] for key in read(port)}
    panels = board["panels"]
    assert len({one["id"] for one in panels}) == len(panels)
    queries = [target["expr"] for one in panels for target in one["targets"]]
    queries += [one["query"] for one in board["templating"]["list"]]
    names = {name for text in queries for name in re.findall(r"intarsia_\w+", text)}
    assert names <= served
    assert served - names == {"intarsia_info"}  # and everything that is served is shown
