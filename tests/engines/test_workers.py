"""Several processes for the clients of a simulation: the bits of one, whatever happens to them."""

from __future__ import annotations

import itertools
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from federations import BINARY, rectangles, table
from intarsia import core as fl
from intarsia.algorithms.linear.fedavg import FEDAVG, FedAvg
from intarsia.cli.main import main
from intarsia.core.block import Block
from intarsia.core.client_functions import SecretKey, client_function, vectorised_function
from intarsia.core.disclosure import Release
from intarsia.core.schema import Schema
from intarsia.engines import client_host, codec, forks, simulation, workers
from intarsia.engines.client_states import Needs, States
from intarsia.engines.release_ledger import ReleaseLedger
from intarsia.engines.simulation import Simulation
from intarsia.errors import TableError, WorkerError
from intarsia.experiment.config import load
from intarsia.results import checkpoint
from intarsia.training.run import run
from tests.training.test_resume import EXPERIMENT, check_identical, write_tables

OPTIONS = FedAvg(regularisation=0.1)


@dataclass(frozen=True)
class Tell:
    values: fl.Array


@dataclass(frozen=True)
class Told:
    values: fl.Array


@dataclass(frozen=True)
class Count:
    calls: int


@client_function
def twice(state: Count, block, message: Tell, rng: fl.RandomKey) -> tuple[Count, Told]:
    if message.values[0] == -1:
        raise TableError("The value is -1; send another.")
    if message.values[0] == -2:
        raise ZeroDivisionError("not ours")
    if message.values[0] == -3:
        os.kill(os.getpid(), signal.SIGKILL)
    drawn = rng.generator().normal(size=message.values.shape)
    return Count(state.calls + 1), Told(2 * message.values + drawn)


@client_function
def slow(state: Count, block, message: Tell, rng: fl.RandomKey) -> tuple[Count, Told]:
    time.sleep(60)
    return state, Told(message.values)


@client_function
def unknown(state: Count, block, message: Tell, rng: fl.RandomKey) -> tuple[Count, Told]:
    return Count(state.calls + int(message.values[0])), Told(np.array([os.getpid()]))


def engine_over(clients: int, count: int | None = 1, **given) -> Simulation:
    x, y = table(40, 4)
    blocks = rectangles(x, y, clients, 1)
    secrets = {name: SecretKey(name.encode().ljust(32)) for name in blocks}
    schema = Schema.of(blocks, BINARY)
    return Simulation({"train": (schema, blocks)}, 0, secrets=secrets, workers=count, **given)


def counting(
    clients: int, count: int | None = 1, *, functions=(twice,), first=0, **given
) -> Simulation:
    """Return an engine whose clients count how often they were asked for `twice`."""
    engine = engine_over(clients, count, **given)
    engine.set_states(dict.fromkeys(engine.ids, Count(first)))
    algorithm = replace(
        FEDAVG, states=(Count,), disclosure=fl.Disclosure(sends=fl.asks(*functions))
    )
    engine.expect(algorithm)
    return engine


def tell(engine: Simulation, first: float = 1.0, size: int = 3):
    messages = {name: Tell(np.arange(size) + first + 10 * at) for at, name in enumerate(engine.ids)}
    return engine.ask(twice, messages)


@pytest.mark.parametrize("count", [2, 3, 9])
@pytest.mark.parametrize("piece", [None, 7, 100, 5_000])
def test_replies_and_states_are_those_of_one_process(count, piece, monkeypatch):
    if piece is not None:  # more than the memory holds waits until there is room again
        monkeypatch.setattr(forks, "_PIECE", piece)
        monkeypatch.setattr(forks, "_PIECES", 3)
        monkeypatch.setattr(codec, "_KEPT", 1000)
    alone, spread = counting(5), counting(5, count)
    for number in (1, 2):
        for engine in (alone, spread):
            engine.begin_round(number, engine.ids if number == 1 else engine.ids[1:4])
        one, other = tell(alone, size=300), tell(spread, size=300)
        assert list(one) == list(other)
        assert codec.encode(tuple(one.values())) == codec.encode(tuple(other.values()))
    assert list(spread.states) == list(alone.states)
    assert (
        spread.get_states()
        == alone.get_states()
        == {name: Count(1 + (0 < at < 4)) for at, name in enumerate(alone.get_states())}
    )
    assert spread.books.traffic == alone.books.traffic
    # files of a model are numbered in this order
    in_order = [f"r{at}c0" for at in range(5)]
    assert list(spread.last_states()) == list(alone.last_states()) == in_order


@dataclass(frozen=True)
class Part:
    values: fl.PerSelected
    counts: fl.Counts


@client_function
def own_part(state: Tell, block, message: Told) -> tuple[Tell, Part]:
    """Send what the state holds itself."""
    return state, Part(state.values, np.array([state.values.shape[-1]]))


class Records(list):
    def record(self, crossed):
        self.append((crossed.client, crossed.type, codec.encode(crossed.fields)))


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("at_once", [None, 0])
def test_sums_of_other_processes_leave_what_clients_hold_as_it_is(at_once, recorded, monkeypatch):
    monkeypatch.setattr(codec, "_KEPT", 100)
    if at_once is not None:  # one client of each process after the other
        monkeypatch.setattr(simulation, "_AT_ONCE", at_once)
    x, y = table(40, 6)
    blocks = rectangles(x, y, 1, 5)  # five clients of the same rows
    schema = Schema.of(blocks, BINARY)
    rng = np.random.default_rng(0)
    held = {name: Tell(rng.normal(size=(2, 40))) for name in blocks}
    sums, records = [], []
    for count in (1, 2, 3):
        seen = Records()
        engine = Simulation(
            {"train": (schema, blocks)}, 0, workers=count, recorder=seen if recorded else None
        )
        engine.set_states(held)
        sends = fl.Disclosure(sends=fl.sums(own_part))
        engine.expect(replace(FEDAVG, states=(Tell,), disclosure=sends))
        engine.begin_round(1)
        for _ in range(2):
            total = engine.sum(own_part, Told(np.zeros(1))).by_field["values"]
            sums.append(codec.encode(engine.books.totals.held(total)))
        assert (engine._workers is not None) == (count > 1)
        assert codec.encode(engine.get_states()) == codec.encode(held)
        records.append([one for one in seen if one[0]])
    assert len(set(sums)) == 1
    expected = sum(held[name].values for name in schema.clients)
    np.testing.assert_array_equal(codec.decode(sums[0])["0"], expected)
    assert records[0] == records[1] == records[2]
    assert len(records[0]) == 10 * recorded


@vectorised_function
def companions(
    visits: Sequence[tuple[Count, Block, Tell, fl.RandomKey]],
) -> list[tuple[Count, Told]]:
    """Tell who is computed for at once: what a library makes of that may show in the last bits."""
    group = np.array([message.values[0] for _, _, message, _ in visits])
    return [(Count(state.calls + 1), Told(group)) for state, *_ in visits]


def test_clients_that_compute_at_once_do_so_with_the_same_others(monkeypatch):
    monkeypatch.setattr(client_host, "_TOGETHER", 3)
    rng = np.random.default_rng(0)
    engines = [counting(14, count, functions=(companions, twice)) for count in (1, 2, 3)]
    names = engines[0].ids
    for number in range(1, 8):
        present = [name for name in names if number == 1 or rng.random() < 0.6]
        found = []
        for engine in engines:
            engine.begin_round(number, present)
            messages = {name: Tell(np.array([float(names.index(name))])) for name in present}
            found.append(codec.encode(tuple(engine.ask(companions, messages).values())))
            tell(engine)
        assert found[0] == found[1] == found[2]
    states = [engine.get_states() for engine in engines]
    assert list(states[0]) == list(states[1]) == list(states[2]) == list(names)
    assert states[0] == states[1] == states[2]


@dataclass(frozen=True)
class Large(Count):
    @property
    def own_cost(self) -> float:
        return 0.0 if self.calls == 1 else math.inf  # not alone the second time


@vectorised_function
def process_of(visits: Sequence[fl.ClientCall[Tell]]) -> list[tuple[Large, Told]]:
    return [(Large(one[0].calls + 1), Told(np.array([len(visits), os.getpid()]))) for one in visits]


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("accelerated", [False, True])
def test_clients_that_gain_nothing_from_others_compute_alone(count, accelerated):
    engine = engine_over(5, count, accelerated=accelerated)
    engine.set_states(dict.fromkeys(engine.ids, Large(0)))
    sends = fl.Disclosure(sends=fl.asks(process_of))
    engine.expect(replace(FEDAVG, states=(Large,), disclosure=sends))
    messages = {name: Tell(np.zeros(1)) for name in engine.ids}
    for beside, processes in ((1, count), (5, 1), (1, count)):
        found = [one.values for one in engine.ask(process_of, messages).values()]
        if accelerated:  # a step takes as long for one
            beside, processes = 5, 1
        assert {int(number) for number, _ in found} == {beside}
        assert len({int(process) for _, process in found}) == processes


@pytest.mark.parametrize("most", [1, 1 << 26])
def test_a_checkpoint_has_the_bytes_of_one_process(most, tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "_CHUNK_BYTES", most)
    monkeypatch.setattr(checkpoint, "_AT_ONCE", 1)
    found = []
    for count in (1, 3):
        engine = counting(5, count)
        tell(engine)
        tell(engine)
        store = checkpoint.Checkpoints(tmp_path / f"{count}")
        store.save(1, 0, engine.states, {}, ahead=True)
        found.append((store.folder / "checkpoints/round-00000001/clients.state").read_bytes())
        assert set(engine.get_states().values()) == {Count(2)}
    assert found[0] == found[1]


@pytest.mark.parametrize(("fit", "expected"), [(0, [1] * 4), (3, [3, 1]), (9, [4])])
def test_no_more_states_are_brought_over_at_a_time_than_fit(fit, expected, monkeypatch):
    monkeypatch.setattr(workers, "_CHUNK_BYTES", fit * 8 * 64)
    engine, asked, fetch = counting(8, 2, first=np.zeros(64)), [], workers._Fetch
    tell(engine)

    def noted(clients, leave):
        asked.append(len(clients))
        return fetch(clients, leave)

    monkeypatch.setattr(workers, "_Fetch", noted)
    assert all((one.calls == 1).all() for one in engine.get_states().values())
    assert asked == expected


def test_what_workers_do_not_know_is_computed_here():
    engine = counting(4, 4)
    tell(engine)
    found = engine.ask(unknown, dict.fromkeys(engine.ids, Tell(np.array([5.0]))))
    assert {reply.values[0] for reply in found.values()} == {os.getpid()}
    tell(engine)
    assert set(engine.get_states().values()) == {Count(7)}


def test_states_that_lie_in_a_file_go_along(tmp_path):
    engine = counting(4, 2, states=States(0, tmp_path))
    tell(engine)
    engine.transform(lambda client, part, block: block)  # this process takes them over
    tell(engine)
    assert set(engine.get_states().values()) == {Count(2)}


def made_here(options, schema, client, block, rng) -> Count:
    if client in options:
        raise TableError(f"{client} cannot begin.")
    return Count(os.getpid())


@pytest.mark.parametrize("budget", [None, 0])
def test_each_process_makes_the_states_that_its_clients_begin_with(budget, tmp_path):
    algorithm = replace(
        FEDAVG,
        states=(Count,),
        init_client=made_here,
        disclosure=fl.Disclosure(sends=fl.asks(unknown)),
    )
    engine = engine_over(4, 2, states=States(budget, tmp_path))
    engine.set_states(dict.fromkeys(engine.ids, Count(0)))  # of an algorithm before
    engine.begin(algorithm, "")
    one, other = dict.fromkeys(state.calls for state in engine.get_states().values())
    assert os.getpid() in (one, other)
    # a client computes where its state was made
    engine.begin_round(1)
    replies = engine.ask(unknown, {name: Tell(np.zeros(1)) for name in engine.ids})
    assert {name: int(reply.values[0]) for name, reply in replies.items()} == {
        name: state.calls for name, state in engine.get_states().items()
    }


@pytest.mark.parametrize("client", [0, 1, 2, 3])
def test_a_client_that_cannot_begin_is_named_as_in_one_process(client):
    engine = engine_over(4, 2)
    algorithm = replace(FEDAVG, states=(Count,), init_client=made_here)
    with pytest.raises(TableError, match=f"r{client}c0 cannot begin"):
        engine.begin(algorithm, {f"r{client}c0"})


@pytest.mark.parametrize("client", [0, 1, 2, 3])
def test_an_error_is_raised_as_in_one_process(client):
    engine, alone = counting(4, 3), counting(4)
    for first, kind in ((-1.0, TableError), (-2.0, ZeroDivisionError)):
        said = []
        for one in (engine, alone):
            with pytest.raises(kind) as caught:
                tell(one, first - 10 * client)
            said.append((str(caught.value), getattr(caught.value, "__notes__", [""])[0]))
        assert said[0][0] == said[1][0]
        assert kind is ZeroDivisionError or said[0][1] == said[1][1]
        tell(engine)  # it goes on


@pytest.mark.parametrize("at_once", [1 << 27, 1])  # all computed for at once, or one by one
@pytest.mark.parametrize("count", [1, 2, 3])
def test_of_clients_that_fail_the_first_is_named_whatever_the_number_of_workers(
    count, at_once, monkeypatch
):
    monkeypatch.setattr(simulation, "_AT_ONCE", at_once)
    engine = counting(5, count)
    for asked in (engine.ids, engine.ids[::2] + engine.ids[3:4], engine.ids[1:]):
        for failing in itertools.combinations(asked, 2):
            wrong = dict.fromkeys(failing, Tell(np.array([-1.0])))
            with pytest.raises(TableError) as caught:
                engine.ask(twice, dict.fromkeys(asked, Tell(np.ones(1))) | wrong)
            assert caught.value.__notes__ == [f"at client {failing[0]!r} in twice, round 0"]


@pytest.mark.parametrize("failing", [(0, 1), (1, 2), (1, 3), (2, 3)])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_of_clients_that_cannot_begin_the_first_is_named_whatever_the_number_of_workers(
    count, failing
):
    engine = engine_over(4, count)
    algorithm = replace(FEDAVG, states=(Count,), init_client=made_here)
    with pytest.raises(TableError, match=f"r{failing[0]}c0 cannot begin"):
        engine.begin(algorithm, {f"r{at}c0" for at in failing})


def test_a_process_that_is_killed_is_named_with_its_clients():
    engine = counting(4, 2)
    tell(engine)
    asked = dict.fromkeys(engine.ids, Tell(np.ones(1)))
    [away] = [one for one in engine.ids if engine._workers.has(one)][:1]
    with pytest.raises(WorkerError, match=f"'{away}'.*SIGKILL.*experiment.workers=1"):
        engine.ask(twice, {**asked, away: Tell(np.array([-3.0]))})


def test_a_process_goes_on_where_all_of_a_run_are_told_to_stop():
    """The one that asks stops at the end of the round, for which the others must be there."""
    engine = counting(4, 2)
    tell(engine)
    for process in multiprocessing.active_children():
        os.kill(process.pid, signal.SIGTERM)
    tell(engine)


@pytest.mark.parametrize("threads", [False, True])
@pytest.mark.parametrize("workers_", [2, 3])
def test_noise_is_that_of_one_process_and_counted_once(workers_, threads, tmp_path, monkeypatch):
    if threads:
        large(monkeypatch)
    algorithm = FEDAVG.private(Release(1.0, 0.5, releases=3))
    states = []
    for count, path in ((1, tmp_path / "one"), (workers_, tmp_path / "several")):
        ledger = ReleaseLedger(path)
        ledger._nonce = b"of both runs...."
        engine = engine_over(4, count, ledger=ledger)
        key = engine.key("init")
        engine.begin(algorithm, OPTIONS)
        server = algorithm.init_server(OPTIONS, engine.schema("train"), key)
        server = algorithm.setup(server, engine, key)
        for number in (1, 2):
            engine.begin_round(number)
            server, _ = algorithm.round(server, engine, engine.key())
        states.append(codec.encode(engine.books.seal(server)))
        assert (engine._workers is not None) == (count > 1 and not threads)
        assert {len(own) for own in ledger._numbers.values()} == {2}
    assert states[0] == states[1]


def test_short_work_stays_in_one_process_and_long_work_does_not(monkeypatch):
    monkeypatch.setattr(workers, "cores", lambda: 2)
    engine = counting(4, None)
    for _ in range(20):
        tell(engine)
    assert engine._workers is None
    monkeypatch.setattr(workers, "_LONG", 0.0)
    tell(engine)
    assert engine._workers is None  # messages would take longer than the work
    monkeypatch.setattr(workers, "_TIMES", 0.0)
    tell(engine)
    assert engine._workers is not None
    assert set(engine.get_states().values()) == {Count(22)}


def test_clients_with_many_values_are_shared_out_at_once(monkeypatch):
    monkeypatch.setattr(workers, "cores", lambda: 2)
    engine = counting(4, None)
    own = sum(workers.sizes_of(engine._host.blocks).values())
    for fits, expected in ((own, False), (own - 1, True)):
        monkeypatch.setattr(workers, "_LARGE", fits)
        engine = counting(4, None)
        tell(engine)
        assert (engine._workers is not None) == expected
        assert set(engine.get_states().values()) == {Count(1)}
    # what runs for several at once may not be shared out at all: it is seen first
    engine = counting(4, None, functions=(companions, twice))
    tell(engine)
    assert engine._workers is None


@dataclass(frozen=True)
class Ends:
    """A client's product with its own table, and in which thread it was made."""

    values: fl.Array
    thread: fl.Array


def large(monkeypatch):
    """Have all tables taken as large."""
    monkeypatch.setattr(workers, "is_large", lambda x: True)


@client_function
def multiply(state: Count, block, message: Tell, rng: fl.RandomKey) -> tuple[Count, Ends]:
    if message.values[0] == -1:
        raise TableError("The value is -1; send another.")
    drawn = rng.generator().normal(size=block.shape[1])
    made = np.array([threading.get_ident()], np.float64)
    return Count(state.calls + 1), Ends(block.x @ drawn * message.values[0], made)


@pytest.mark.parametrize("count", [2, 3])
def test_clients_with_large_tables_compute_in_threads_to_the_same_bits(count, monkeypatch):
    one, answers = counting(4, functions=(multiply,)), {}
    large(monkeypatch)
    several = counting(4, count, functions=(multiply,))
    for engine in (one, several):
        for number in (1, 2):
            engine.begin_round(number)
            asked = {name: Tell(np.array([number + 0.5])) for name in engine.ids}
            told = engine.ask(multiply, asked)
            answers.setdefault(engine, []).append({k: v.values for k, v in told.items()})
            threads = {float(own.thread[0]) for own in told.values()}
            here = float(threading.get_ident())
            assert threads == {here} if engine is one else here not in threads
    np.testing.assert_equal(answers[one], answers[several])
    assert list(answers[several][0]) == list(one.ids)
    assert several._workers is None
    assert several.get_states() == one.get_states()
    assert several.books.traffic == one.books.traffic


def test_sealed_sums_and_functions_for_several_clients_at_once_take_no_threads(monkeypatch):
    large(monkeypatch)
    staff = workers.Staff(2)
    staff.look(engine_over(3)._host.blocks)
    assert staff.threads(twice) == 2
    assert staff.threads(companions) == 1
    sealed = workers.Staff(2, sealed=True)
    sealed.look(engine_over(3)._host.blocks)
    assert sealed.threads(twice) == 1


def test_where_one_table_has_nearly_all_values_threads_have_nothing_to_share(monkeypatch):
    staff, blocks = workers.Staff(2), engine_over(3)._host.blocks
    first = next(iter(blocks.values()))
    monkeypatch.setattr(workers, "is_large", lambda x: x is first["train"].x)
    staff.look(blocks)
    assert staff.threads(twice) == 1


def test_of_threads_too_the_first_client_that_fails_is_named(monkeypatch):
    large(monkeypatch)
    engine = counting(4, 2, functions=(multiply,))
    names = list(engine.ids)
    asked = {name: Tell(np.array([-1.0 if at in (1, 2) else 1.0])) for at, name in enumerate(names)}
    with pytest.raises(TableError, match="The value is -1") as caught:
        engine.ask(multiply, asked)
    assert caught.value.__notes__ == [f"at client {names[1]!r} in multiply, round 0"]
    # as in one process, those behind it did not compute
    assert [one.calls for one in engine.get_states().values()] == [1, 0, 0, 0]


@pytest.mark.parametrize(
    ("costs", "expected"),
    [
        ([0.0] * 6, [6]),
        ([0.6] * 6, [3, 3]),  # 4.6 for two groups are a quarter more than for one
        ([0.4] * 6, [6]),
        ([2.0] * 6, [2, 2, 2]),  # 15 for 13
        ([50.0] * 3, [1, 1, 1]),
        ([0.6, math.inf, 0.6, 0.6, 0.6, 0.6, 0.6], [1, 1, 4, 1]),
        ([0.01] * 130, [44, 44, 42]),
    ],
)
def test_few_clients_that_cost_much_are_work_for_several(costs, expected):
    needs = {f"c{number}": Needs(1, cost) for number, cost in enumerate(costs)}
    fn = companions
    groups = client_host.groups_of(fn, list(needs), needs.__getitem__)
    assert [len(group) for group in groups] == expected
    assert [client for group in groups for client in group] == list(needs)
    together = client_host.groups_of(fn, list(needs), needs.__getitem__, accelerated=True)
    assert len(together) == 1


def test_a_first_call_counts_as_long_as_the_next_takes(monkeypatch):
    clock = iter(
        [
            *(0.0, 2.0),  # compiles for up to 3 seconds
            *(2.0, 2.5),
            *(3.0, 3.25),
            *(4.0, 12.0),  # a function that takes much longer than compiling does
            *(12.0, 18.0),
        ]
    )
    monkeypatch.setattr(workers.time, "perf_counter", lambda: next(clock))
    staff = workers.Staff(None)
    for fn, clients in [
        *((twice, "a"), (twice, "b"), (twice, "a")),
        *((slow, "ab"), (slow, "cd")),
    ]:
        with staff.watch(fn, clients, alone=False):
            pass
    assert staff._seconds == {"a": 0.5 + 0.25 + 2.5, "b": 0.5 + 2.5, "c": 3.0, "d": 3.0}


def test_shares_are_about_equal_and_all_clients_are_in_one():
    x, y = table(60, 4)
    blocks = rectangles(x, y, 6, 1)
    held = {name: {"train": one} for name, one in blocks.items()}
    held["big"] = {"train": next(iter(rectangles(*table(150, 4), 1, 1).values()))}
    sizes = workers.sizes_of(held)
    shares = workers.shares_of(sizes, 3)
    assert sorted(itertools.chain(*shares)) == sorted(held)
    assert ["big"] in shares
    assert sorted(map(len, shares)) == [1, 3, 3]
    assert workers.shares_of({"a": 5.0}, 3) == [["a"]]
    assert workers.shares_of({"a": 3.0, "b": 1.0, "c": 1.0}, 2) == [["a"], ["b", "c"]]


def test_a_run_whose_worker_is_killed_goes_on_to_the_same_bits(tmp_path, capfd):
    write_tables(tmp_path, wide=False)
    given = {"rounds": 40, "tolerance": 1e-12, "participation": 1.0}
    text = EXPERIMENT.format(loss="hinge", method="auto", out=tmp_path / "whole", **given)
    (tmp_path / "file.toml").write_text(text)
    run(load(tmp_path / "file.toml", ["experiment.workers=1"]))

    before = {*multiprocessing.active_children()}

    class Kills:
        def on_round(self, now):
            if now.round == 3:
                for child in {*multiprocessing.active_children()} - before:
                    os.kill(child.pid, signal.SIGKILL)

    cut = tmp_path / "cut"
    two = load(tmp_path / "file.toml", ["experiment.workers=2"])
    with pytest.raises(WorkerError, match="SIGKILL"):
        run(two, out=cut, callbacks=[Kills()])
    assert main(["resume", str(cut), "-q", "-c", "experiment.workers=two"]) == 2
    assert 'workers is "two"' in capfd.readouterr().err
    assert main(["resume", str(cut), "-q", "-c", "experiment.workers=1"]) == 0
    check_identical(tmp_path / "whole", cut)


SLEEPING = """
import os, sys, time
sys.path[:0] = {path!r}
from tests.engines.test_workers import Tell, counting, slow, tell, twice
import numpy as np
engine = counting(4, 3, functions=(twice, slow))
tell(engine)
print(*(one._process.pid for one in engine._workers._members), flush=True)
if {busy}:
    engine.ask(slow, dict.fromkeys(engine.ids, Tell(np.ones(1))))
time.sleep(60)
"""


@pytest.mark.parametrize("busy", [pytest.param(False, marks=pytest.mark.slow), True])
def test_processes_end_with_the_one_that_asks(busy):
    code = SLEEPING.format(busy=busy, path=[*sys.path, str(Path(__file__).parents[2])])
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        children = [int(one) for one in parent.stdout.readline().split()]
        assert len(children) == 2
        time.sleep(0.5 * busy)
        parent.kill()
    until = time.monotonic() + 20
    while any(map(lives, children)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(map(lives, children))


def lives(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_errands_are_done_several_at_a_time(monkeypatch):
    monkeypatch.setattr(forks, "_TELLING", 0.0)

    def square(number, tell):
        tell("begun", number)
        time.sleep(0.02 * (4 - number))
        return Told(np.full(3, float(number**2))), os.getpid()

    said, classes = [], (Told,)
    tasks = {f"n{number}": partial(square, number) for number in range(4)}
    found = dict(forks.errands("squared", tasks, 2, lambda *heard: said.append(heard), classes))
    assert {name: one.values[0] for name, (one, _) in found.items()} == {
        f"n{number}": number**2 for number in range(4)
    }
    assert len({process for _, process in found.values()} | {os.getpid()}) == 5
    assert sorted(said) == [(f"n{number}", "begun", number) for number in range(4)]


def fails(tell):
    raise TableError("The table is empty; give rows.")


def dies(tell):
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(
    ("task", "kind", "said"),
    [(fails, TableError, r"^The table is empty"), (dies, WorkerError, "that squared.*SIGKILL")],
)
def test_an_errand_that_fails_ends_all(task, kind, said):
    tasks = {"waits": lambda tell: time.sleep(60), "fails": task}
    began, before = time.monotonic(), multiprocessing.active_children()
    with pytest.raises(kind, match=said):
        dict(forks.errands("squared", tasks, 2, print, ()))
    assert time.monotonic() - began < 30
    assert {*multiprocessing.active_children()} <= {*before}  # those of engines that are kept


def test_an_errand_that_nobody_listens_to_goes_on(monkeypatch):
    monkeypatch.setattr(forks, "_TELLING", -1.0)

    def talks(tell):
        for number in range(20_000):
            tell("a word of some length", number)
        return "done"

    errand, heard = forks.Errand("talked", talks), []
    time.sleep(0.5)
    assert errand.result(lambda *said: heard.append(said)) == "done"
    assert 0 < len(heard) < 20_000
