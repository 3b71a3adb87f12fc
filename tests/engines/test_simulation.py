from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array

from federations import BINARY, block, rectangles, table
from intarsia.core.block import Array, Block
from intarsia.core.client_functions import (
    ClientFunction,
    Counts,
    PerFeature,
    PerSample,
    PerSelected,
    client_function,
    vectorised_function,
)
from intarsia.core.schema import Schema
from intarsia.engines import codec
from intarsia.engines.communication_log import RECORDS
from intarsia.engines.simulation import Simulation
from intarsia.engines.sums.sealed import SealedField
from intarsia.errors import SealedError, TableError


@dataclass(frozen=True)
class Ask:
    """Ask for a client's sums."""


@dataclass(frozen=True)
class Sums:
    rows: PerSample  # (samples,)
    columns: PerFeature  # (2, features)
    total: Array  # (1,)
    count: float


@dataclass(frozen=True)
class Chosen:
    values: PerSelected
    counts: Counts


@dataclass(frozen=True)
class Back:
    rows: PerSample
    columns: PerFeature
    total: Array
    number: int


@dataclass(frozen=True)
class BackChosen:
    values: PerSelected


@dataclass(frozen=True)
class Held:
    sealed: Any
    rounds: int


@client_function
def add_up(state, block, message, rng):
    columns = np.stack([block.x.sum(axis=0), block.x.sum(axis=0) * 2])
    return state, Sums(block.x.sum(axis=1), columns, np.array([block.x.sum()]), 1.0)


@client_function
def keep(state, block, message, rng):
    return message, Ask()


@client_function
def choose_odd(state, block, message, rng):
    """Select the odd ids of each cell; `state` holds where the client's cells end."""
    odd = np.flatnonzero(block.samples % 2)
    counts = np.diff(np.searchsorted(odd, state), prepend=0)
    return state, Chosen(block.x.sum(axis=1)[odd], counts.astype(np.int64))


@client_function
def draw(state, block, message, rng):
    return state, Sums(np.zeros(len(block.samples)), np.zeros((1, 0)), rng.generator().random(3), 1)


@client_function
def fail(state, block, message, rng):
    raise TableError("30 rows")


def engine_over(blocks, seed=0):
    return Simulation({"train": (Schema.of(blocks, BINARY), blocks)}, seed)


def overlapping():
    """Return three clients that share samples and features, and the pooled table."""
    x, y = table(9, 6)
    held = {"a": (range(6), [0, 1, 2]), "b": ([4, 5, 6, 7], [2, 3]), "c": (range(5, 9), [0, 3, 5])}
    return x, {name: block(x, y, list(r), c) for name, (r, c) in held.items()}


def everyone(engine, message):
    return dict.fromkeys(engine.ids, message)


def sums():
    x, blocks = overlapping()
    engine = engine_over(blocks)
    return x, blocks, engine, engine.sum(add_up, everyone(engine, Ask()))


# -- sums


def test_a_sum_is_laid_out_by_the_index_of_its_entries():
    x, blocks, engine, total = sums()
    rows, columns = np.zeros(9), np.zeros(6)
    for one in blocks.values():
        held = [int(name[1:]) for name in one.features]
        own = x[np.ix_(one.samples, held)]
        rows[one.samples] += own.sum(axis=1)
        columns[held] += own.sum(axis=0)
    schema = engine.schema("train")
    found = engine.reveal(total)
    names = [int(name[1:]) for name in schema.features.ids]
    np.testing.assert_allclose(found.rows, rows[schema.samples.ids], rtol=1e-14)
    np.testing.assert_allclose(found.columns, np.outer([1, 2], columns[names]), rtol=1e-14)
    assert found.total[0] == pytest.approx(columns.sum())
    assert found.count == 3.0


def test_a_client_finds_its_own_entries_of_a_total_in_a_message():
    _, blocks, engine, total = sums()
    message = Back(rows=total.rows, columns=total.columns, total=total.total, number=4)
    engine.ask(keep, everyone(engine, message))
    found, schema = engine.reveal(total), engine.schema("train")
    for name, kept in engine.get_states().items():
        np.testing.assert_array_equal(kept.rows, found.rows[schema.samples.own(name)])
        np.testing.assert_array_equal(kept.columns, found.columns[:, schema.features.own(name)])
        np.testing.assert_array_equal(kept.total, found.total)
        assert kept.number == 4
        assert len(kept.rows) == len(blocks[name].samples)


def test_totals_are_added_subtracted_and_scaled_without_being_read():
    _, _, engine, total = sums()
    found = engine.reveal(total)
    again = engine.reveal((total + total) * 0.25)
    np.testing.assert_allclose(again.columns, found.columns / 2)
    mixed = 3.0 * total.rows - total.rows + total.rows * 2.0
    np.testing.assert_allclose(engine.reveal(mixed), 4 * found.rows)
    np.testing.assert_allclose(engine.reveal(2.0 * total).total, 2 * found.total)


def test_selected_samples_are_added_cell_by_cell():
    x, blocks = overlapping()
    engine = engine_over(blocks)
    schema = engine.schema("train")
    stops = {name: np.array([c[1] for c in schema.samples.own_cells(name)]) for name in blocks}
    engine.set_states(stops)
    ends = {name: engine.block(name).samples for name in blocks}
    # the client looks its cells up by place, the selected ids by value
    total = engine.sum(choose_odd, everyone(engine, Ask()))
    engine.ask(keep, everyone(engine, BackChosen(values=total.values)))
    sums = np.zeros(9)
    for one in blocks.values():
        held = [int(name[1:]) for name in one.features]
        sums[one.samples] += x[np.ix_(one.samples, held)].sum(axis=1)
    for name, kept in engine.get_states().items():
        odd = ends[name][ends[name] % 2 == 1]
        np.testing.assert_allclose(kept.values, sums[odd], rtol=1e-14)


@given(st.integers(1, 4), st.integers(1, 3), st.integers(0, 2), st.integers(0, 2), st.booleans())
def test_sums_over_any_grid_are_those_of_the_pooled_table(rows, columns, more, wider, sparse):
    x, y = table(12, 6)
    blocks = rectangles(
        csr_array(x) if sparse else x, y, rows, columns, shared_rows=more, shared_columns=wider
    )
    engine = engine_over(blocks)
    engine.transform(lambda name, part, one: one.counted_once())
    found = engine.reveal(engine.sum(add_up, everyone(engine, Ask())))
    schema = engine.schema("train")
    names = [int(name[1:]) for name in schema.features.ids]
    np.testing.assert_allclose(found.rows, x.sum(axis=1)[schema.samples.ids], atol=1e-13)
    np.testing.assert_allclose(found.columns[0], x.sum(axis=0)[names], atol=1e-13)


def test_a_sum_over_some_clients_leaves_the_others_entries_at_zero():
    x, blocks = overlapping()
    engine = engine_over(blocks)
    found = engine.reveal(engine.sum(add_up, {"b": Ask()}))
    rows = dict(zip(engine.schema("train").samples.ids.tolist(), found.rows, strict=True))
    for sample in range(9):
        own = x[sample, [2, 3]].sum() if sample in blocks["b"].samples else 0.0
        assert rows[sample] == pytest.approx(own)


# -- seals


READS = {
    "array": np.asarray,
    "number": float,
    "truth": bool,
    "length": len,
    "list": list,
    "entry": lambda total: total[0],
    "equal": lambda total: total == 0,
    "unequal": lambda total: total != 0,
    "less": lambda total: total < 0,
    "more": lambda total: total >= 0,
    "sum": np.sum,
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
@pytest.mark.parametrize("part", ["total", "field"])
def test_reading_a_total_raises(read, part):
    *_, total = sums()
    with pytest.raises(SealedError, match=r"clients\.reveal\(total\)"):
        read(total if part == "total" else total.rows)


def test_a_total_is_no_key():
    *_, total = sums()
    with pytest.raises(TypeError, match="unhashable"):
        hash(total)


@pytest.mark.parametrize("write", [repr, str, "{}".format])
def test_printing_a_total_shows_nothing_of_it(write):
    *_, total = sums()
    assert write(total) == write(total.rows) == "<sealed total>"


def test_a_total_says_which_fields_it_has():
    *_, total = sums()
    with pytest.raises(AttributeError, match=r"a total of Sums has the fields .*not 'row'"):
        _ = total.row


def test_a_sealed_total_is_written_to_a_checkpoint_and_back():
    _, _, engine, total = sums()
    state = Held(sealed=Held(sealed=total.rows, rounds=1), rounds=2)
    written = codec.encode(engine.books.seal(state))
    back = engine.books.unseal(codec.decode(written, Held, *RECORDS))
    assert isinstance(back.sealed.sealed, SealedField)
    assert (back.rounds, back.sealed.rounds) == (2, 1)
    engine.ask(
        keep,
        everyone(
            engine,
            Back(rows=back.sealed.sealed, columns=total.columns, total=total.total, number=0),
        ),
    )
    schema, found = engine.schema("train"), engine.reveal(total)
    for name, kept in engine.get_states().items():
        np.testing.assert_array_equal(kept.rows, found.rows[schema.samples.own(name)])


# -- traffic


def test_bytes_are_those_of_the_written_messages():
    engine = engine_over(overlapping()[1])
    down, up = {}, {}

    def spying(fn):
        def call(state, block, message, rng):
            state, reply = fn.call(state, block, message, rng)
            for found, value in ((down, message), (up, reply)):
                name = type(value).__name__
                found[name] = found.get(name, 0) + len(codec.encode(value))
            return state, reply

        return ClientFunction(fn.name, call)

    total = engine.sum(spying(add_up), everyone(engine, Ask()))
    message = Back(rows=total.rows, columns=total.columns, total=total.total, number=1)
    engine.ask(spying(keep), everyone(engine, message))
    assert engine.books.traffic.down == down
    assert engine.books.traffic.up == up
    assert engine.books.traffic.exchanges == 2
    summary = engine.books.traffic.summary()
    assert summary["down"] == sum(down.values())
    assert summary["up"] == sum(up.values())
    assert summary["by_message"]["Ask"] == {"up": up["Ask"], "down": down["Ask"]}
    assert summary["by_message"]["Back"] == {"up": 0, "down": down["Back"]}


def test_unmetered_exchanges_leave_no_trace():
    _, _, engine, _ = sums()
    before = engine.books.traffic.summary()
    with engine.books.unmetered():
        engine.sum(add_up, everyone(engine, Ask()))
        assert engine.books.traffic.exchanges == 1
    assert engine.books.traffic.summary() == before
    assert engine.books.traffic.exchanges == 1


def test_traffic_goes_on_from_a_checkpoint():
    _, _, engine, _ = sums()
    other = engine_over(overlapping()[1])
    other.books.restore_traffic(
        {
            "up": dict(engine.books.traffic.up),
            "down": dict(engine.books.traffic.down),
            "exchanges": 1,
        }
    )
    assert other.books.traffic == engine.books.traffic


# -- rounds, random numbers, errors


def test_only_those_that_are_there_are_seen():
    engine = engine_over(overlapping()[1])
    assert tuple(engine.ids) == ("a", "b", "c")
    engine.begin_round(3, ["a", "c"])
    assert tuple(engine.ids) == ("a", "c")
    assert engine.books.round == 3
    engine.begin_round(4)
    assert tuple(engine.ids) == ("a", "b", "c")


def drawn(seed, number, exchange, clients=("a", "b", "c")):
    engine = engine_over(overlapping()[1], seed)
    engine.begin_round(number)
    for _ in range(exchange):
        found = engine.ask(draw, {name: Ask() for name in clients})
    return {name: tuple(reply.total) for name, reply in found.items()}


def test_random_numbers_depend_on_seed_round_exchange_and_client_alone():
    base = drawn(0, 1, 1)
    assert base == drawn(0, 1, 1)
    assert base == drawn(0, 1, 1, ("c", "a", "b"))
    assert drawn(0, 1, 1, ("b",)) == {"b": base["b"]}
    assert len({*base.values()}) == 3
    for other in (drawn(1, 1, 1), drawn(0, 2, 1), drawn(0, 1, 2)):
        assert not {*base.values()} & {*other.values()}


def test_keys_of_the_server_and_of_clients_differ():
    engine = engine_over(overlapping()[1])
    engine.begin_round(1)
    keys = [engine.key(), engine.key("owners"), engine.client_key("a"), engine.client_key("b")]
    assert len({key.integer() for key in keys}) == 4
    assert engine.key("owners") == engine.key().fold_in("owners")


def test_an_error_says_at_which_client_it_was():
    engine = engine_over(overlapping()[1])
    engine.begin_round(7)
    with pytest.raises(TableError) as raised:
        engine.ask(fail, everyone(engine, Ask()))
    assert raised.value.__notes__ == ["at client 'a' in fail, round 7"]


# -- blocks


def test_counting_once_keeps_the_whole_block_beside():
    x, blocks = overlapping()
    engine = engine_over(blocks)
    engine.count_once()
    own = engine.whole_block("a", "train")
    np.testing.assert_array_equal(own.x, x[np.ix_(own.samples, [int(n[1:]) for n in own.features])])
    shared = np.isin(own.samples, [5]), np.isin(own.features, ["f0000"])
    divided = engine.block("a").x
    assert (divided[np.ix_(*shared)] == own.x[np.ix_(*shared)] / 2).all()


def test_each_part_has_blocks_and_an_index_of_its_own():
    _, blocks = overlapping()
    later = {
        name: replace(one, samples=one.samples + 100).take(np.arange(2))
        for name, one in blocks.items()
    }
    engine = Simulation(
        {
            "train": (Schema.of(blocks, BINARY), blocks),
            "test": (Schema.of(later, BINARY), later),
        },
        0,
    )
    found = engine.reveal(engine.sum(replace(add_up, part="test"), everyone(engine, Ask())))
    assert len(found.rows) == len(engine.schema("test").samples)
    for name in blocks:
        assert isinstance(engine.block(name, "test"), Block)
        assert (engine.block(name, "test").samples >= 100).all()


@dataclass(frozen=True)
class Mean:
    mean: Array  # (1,)


def test_a_function_for_several_clients_gives_each_its_own_answer():
    calls = []

    @vectorised_function
    def own_mean(visits):
        calls.append(len(visits))
        found = []
        for state, own, message, rng in visits:
            if not isinstance(message, Ask):
                raise TableError("The message is another; send Ask.")
            drawn = rng.generator().normal()
            found.append(((state or 0) + len(own.samples), Mean(np.array([drawn]))))
        return found

    x, y = table(30, 4)
    blocks = rectangles(x, y, 3, 1)
    engines = [Simulation({"train": (Schema.of(blocks, BINARY), blocks)}, 0) for _ in range(2)]
    together = engines[0].ask(own_mean, dict.fromkeys(blocks, Ask()))
    apart = engines[1].ask(replace(own_mean, together=None), dict.fromkeys(blocks, Ask()))
    assert calls == [3, 1, 1, 1]
    assert together == apart
    assert engines[0].get_states() == engines[1].get_states() == dict.fromkeys(blocks, 10)
    assert engines[0].books.traffic == engines[1].books.traffic
    with pytest.raises(TableError) as caught:
        engines[0].ask(own_mean, dict.fromkeys(blocks, Mean(np.zeros(1))))
    assert "own_mean" in caught.value.__notes__[0]
    assert engines[0].get_states() == dict.fromkeys(blocks, 10)  # nobody's changed


def test_a_function_for_several_clients_gets_as_many_as_fit_into_memory(monkeypatch):
    calls = []

    @vectorised_function
    def numbered(visits):
        calls.append(len(visits))
        return [
            (np.zeros(10), Mean(np.array([float(len(block.samples))]))) for _, block, *_ in visits
        ]

    x, y = table(30, 4)
    blocks = rectangles(x, y, 3, 1)
    engine = Simulation({"train": (Schema.of(blocks, BINARY), blocks)}, 0)
    monkeypatch.setattr("intarsia.engines.client_host._TOGETHER_BYTES", 900)
    messages = dict.fromkeys(blocks, Ask())
    first = engine.ask(numbered, messages)  # blocks of 10 x 4 x 8 = 320 bytes
    assert calls == [2, 1]
    engine.ask(numbered, messages)  # and 80 bytes of state, which take 128
    assert calls == [2, 1, 2, 1]
    engine.set_states(dict.fromkeys(blocks, np.zeros(100)))
    engine.ask(numbered, messages)
    assert calls[4:] == [1, 1, 1]
    assert list(first) == list(blocks)
    assert all(reply.mean == 10.0 for reply in first.values())
    known = {"train": (Schema.of(blocks, BINARY), blocks)}
    Simulation(known, 0, accelerated=True).ask(numbered, messages)
    assert calls[7:] == [3]  # of 32 times the bytes
