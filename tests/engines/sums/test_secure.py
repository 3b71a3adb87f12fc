"""Sealed totals give what plain totals give, and what they cannot give they refuse."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from federations import BINARY, block, rectangles, table
from intarsia.core.block import Array
from intarsia.core.client_functions import (
    Counts,
    PerFeature,
    PerSample,
    PerSelected,
    client_function,
    one_sender,
)
from intarsia.core.schema import Schema
from intarsia.engines import codec
from intarsia.engines.communication_log import RECORDS
from intarsia.engines.simulation import Simulation
from intarsia.engines.sums.secure import Combination
from intarsia.errors import RangeError, ReplayError, TamperedError
from intarsia.experiment import config as experiment
from intarsia.privacy.keys.shared_key import SharedKey
from intarsia.privacy.secure_aggregation import setup as modes
from intarsia.privacy.settings import Privacy
from intarsia.training.run import resume, run

UNIT = 2.0**-40  # of the words of the default range


@dataclass(frozen=True)
class Ask:
    """Ask for what the state holds."""


@dataclass(frozen=True)
class Sums:
    rows: PerSample
    columns: PerFeature  # (2, features)
    total: Array  # (3,)
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
    count: float


@dataclass(frozen=True)
class BackChosen:
    values: PerSelected


@dataclass(frozen=True)
class Number:
    value: float


@dataclass(frozen=True)
class Held:
    rows: Any
    columns: Any
    total: Any
    count: Any
    rounds: int


@dataclass(frozen=True)
class Kept:
    """A client's state: what it sends, and what it opened."""

    factor: float
    opened: Any = None


@client_function
def add_up(state, block, message, rng):
    x = block.x * state.factor
    columns = np.stack([x.sum(axis=0), x.sum(axis=0) * 2])
    return state, Sums(x.sum(axis=1), columns, np.full(3, x.sum()), float(x.sum()))


@client_function
def keep(state, block, message, rng):
    return replace(state, opened=message), Ask()


@client_function
def choose_odd(state, block, message, rng):
    """Select the odd ids of each cell; `factor` holds where the client's cells end."""
    odd = np.flatnonzero(block.samples % 2)
    counts = np.diff(np.searchsorted(odd, state.factor), prepend=0)
    return state, Chosen(block.x.sum(axis=1)[odd], counts.astype(np.int64))


@client_function
def send_state(state, block, message, rng):
    return state, Number(state.factor)


def overlapping():
    """Return three clients that share samples and features, and the pooled table."""
    x, y = table(9, 6)
    held = {"a": (range(6), [0, 1, 2]), "b": ([4, 5, 6, 7], [2, 3]), "c": (range(5, 9), [0, 3, 5])}
    return {name: block(x, y, list(r), c) for name, (r, c) in held.items()}


KEYS = modes.in_one_process(SharedKey(bytes(range(32)), "tests"))


def sealing_of(mode, clients, reach=2.0**22):
    options = Privacy(mode=mode, range=reach)
    if mode == "masked":
        return modes.sealing(options, clients, KEYS)
    from intarsia.privacy.secure_aggregation.ckks import CkksKeys
    from intarsia.privacy.secure_aggregation.ckks_parameters import parameters

    secret = CkksKeys.create(parameters(reach, len(clients))).secret_bytes()
    # every array that is laid out by an index goes into ciphertexts, if it is as short as one value
    keys = modes.in_one_process(KEYS.shared, secret)
    return replace(modes.sealing(options, clients, keys), long=1)


def engine_over(blocks, mode="masked", seed=0):
    sealing = None if mode == "plain" else sealing_of(mode, list(blocks))
    engine = Simulation({"train": (Schema.of(blocks, BINARY), blocks)}, seed, sealing)
    engine.set_states(dict.fromkeys(blocks, Kept(1.0)))
    return engine


def everyone(engine, message):
    return dict.fromkeys(engine.ids, message)


def opened(engine, **fields):
    """Return what each client opens of sealed fields."""
    engine.ask(keep, everyone(engine, Back(**fields)))
    return {name: state.opened for name, state in engine.get_states().items()}


def both(use, mode="masked", blocks=None):
    """Return what `use` makes of an engine in the clear and of one that seals."""
    blocks = blocks or overlapping()
    return use(engine_over(blocks, "plain")), use(engine_over(blocks, mode))


def check_alike(one, other, atol):
    for field in ("rows", "columns", "total", "count"):
        np.testing.assert_allclose(
            getattr(one, field), getattr(other, field), rtol=1e-12, atol=atol
        )
        assert np.shape(getattr(one, field)) == np.shape(getattr(other, field))


# -- sums and combinations


TOLERANCES = {"masked": 30 * UNIT, "ckks": 1e-3}


@pytest.mark.parametrize("mode", TOLERANCES)
def test_totals_open_to_those_of_the_plain_engine(mode):
    def use(engine):
        total = engine.sum(add_up, everyone(engine, Ask()))
        found = opened(
            engine, rows=total.rows, columns=total.columns, total=total.total, count=total.count
        )
        return found, engine.reveal(total)

    (plain, plain_whole), (sealed, sealed_whole) = both(use, mode)
    check_alike(plain_whole, sealed_whole, TOLERANCES[mode])
    assert isinstance(sealed_whole.count, float)
    for name, one in plain.items():
        check_alike(one, sealed[name], TOLERANCES[mode])


def test_under_ckks_masks_keep_what_one_client_alone_is_asked_for():
    engine = engine_over(overlapping(), "ckks")
    schema = engine.schema("train")
    for asked in (("a", "b", "c"), ("a", "b"), ("b",)):
        total = engine.sum(add_up, dict.fromkeys(asked, Ask()))
        for field, index in (("rows", schema.samples), ("columns", schema.features)):
            [(_, cells)] = getattr(total, field).content.terms
            for number, piece in cells.pieces.items():
                contributors = [name for name in index.cells[number].owners if name in asked]
                assert list(piece.contributors) == contributors
                assert isinstance(piece.content, np.ndarray) == (len(contributors) == 1)
    plain = engine_over(overlapping(), "plain")
    for asked in (("a", "b", "c"), ("b",)):
        found, expected = (
            each.reveal(each.sum(add_up, dict.fromkeys(asked, Ask()))) for each in (engine, plain)
        )
        check_alike(found, expected, TOLERANCES["ckks"])


def test_many_clients_total_to_what_they_do_in_the_clear():
    x, y = table(40, 3)
    held = {f"{k:02}": (range(k, k + 3), [k % 3, (k + 1) % 3]) for k in range(37)}
    blocks = {name: block(x, y, list(r), c) for name, (r, c) in held.items()}

    def use(engine):
        total = engine.sum(add_up, everyone(engine, Ask()))
        found = opened(
            engine, rows=total.rows, columns=total.columns, total=total.total, count=total.count
        )
        return found, engine.books.traffic.exchanges

    (plain, exchanges), (sealed, sealed_exchanges) = both(use, "masked", blocks)
    assert (len(plain), exchanges) == (37, sealed_exchanges)
    for name, one in plain.items():
        check_alike(one, sealed[name], TOLERANCES["masked"])


factors = st.floats(-8, 8, allow_nan=False).map(lambda value: round(value, 3))
steps = st.lists(
    st.tuples(st.sampled_from("+-*"), st.integers(0, 2), factors), min_size=1, max_size=9
)


def combined(engine, totals, plan):
    """Return a combination of totals, made in the order of a plan."""
    found = totals[0]
    for sign, which, factor in plan:
        if sign == "*":
            found = found * factor
        elif sign == "+":
            found = found + totals[which] * factor
        else:
            found = found - factor * totals[which]
    return found


@settings(max_examples=40)
@given(steps, st.sampled_from([None, ["a"], ["b", "c"]]))
def test_any_combination_opens_to_that_of_the_plain_engine(plan, third):
    """Totals over all clients, over some, and combinations of more terms than are forwarded."""

    def use(engine):
        names = third or list(engine.ids)
        totals = [
            engine.sum(add_up, everyone(engine, Ask())),
            engine.sum(add_up, {"b": Ask()}),
            engine.sum(add_up, dict.fromkeys(names, Ask())),
        ]
        fields = {
            field: combined(engine, [getattr(total, field) for total in totals], plan)
            for field in ("rows", "columns", "total", "count")
        }
        whole = Back(**{name: engine.reveal(value) for name, value in fields.items()})
        return opened(engine, **fields), whole

    (plain, plain_whole), (sealed, sealed_whole) = both(use)
    size = float(np.prod([max(1.0, abs(factor)) + 1 for _, _, factor in plan]))
    check_alike(plain_whole, sealed_whole, 60 * UNIT * size)
    for name, one in plain.items():
        check_alike(one, sealed[name], 60 * UNIT * size)


def test_cells_without_contributors_are_zeros():
    def use(engine):
        total = engine.sum(add_up, {"b": Ask()})
        return opened(
            engine, rows=total.rows, columns=total.columns, total=total.total, count=total.count
        ), engine.reveal(total)

    (plain, plain_whole), (sealed, sealed_whole) = both(use)
    check_alike(plain_whole, sealed_whole, 3 * UNIT)
    for name, one in sealed.items():
        check_alike(plain[name], one, 3 * UNIT)
    held = [int(sample) in range(4, 8) for sample in overlapping()["a"].samples]
    np.testing.assert_array_equal(sealed["a"].rows != 0, held)
    assert sealed["a"].columns.shape == (2, 3)


@client_function
def add_up_at_first(state, block, message, rng):
    state, sums = add_up.call(state, block, message, rng)
    if 0 in block.samples.tolist():  # at client a alone
        return state, sums
    return state, replace(sums, rows=None, total=None)


add_up_at_first = one_sender(add_up_at_first, "rows", "total")


def test_a_field_that_is_none_adds_nothing():
    def use(engine):
        total = engine.sum(add_up_at_first, everyone(engine, Ask()))
        alone = engine.sum(add_up, {"a": Ask()})
        whole = engine.sum(add_up, everyone(engine, Ask()))
        return [engine.reveal(one) for one in (total, alone, whole)]

    for mode in ("plain", "masked"):
        found, alone, whole = use(engine_over(overlapping(), mode))
        np.testing.assert_allclose(found.rows, alone.rows, atol=3 * UNIT)
        np.testing.assert_allclose(found.total, alone.total, atol=3 * UNIT)
        np.testing.assert_allclose(found.columns, whole.columns, atol=9 * UNIT)


@pytest.mark.parametrize("mode", TOLERANCES)
def test_selected_samples_are_added_cell_by_cell(mode):
    def use(engine):
        schema = engine.schema("train")
        ends = {
            name: Kept(np.array([cell[1] for cell in schema.samples.own_cells(name)]))
            for name in engine.ids
        }
        engine.set_states(ends)
        total = engine.sum(choose_odd, everyone(engine, Ask()))
        engine.ask(keep, everyone(engine, BackChosen(total.values)))
        whole = engine.reveal(total.values)
        states = engine.get_states().items()
        return {name: state.opened.values for name, state in states}, whole

    (plain, plain_whole), (sealed, sealed_whole) = both(use, mode)
    for name, values in plain.items():
        np.testing.assert_allclose(sealed[name], values, rtol=1e-12, atol=TOLERANCES[mode])
    assert sorted(plain_whole) == sorted(sealed_whole)
    for cell, values in plain_whole.items():
        np.testing.assert_allclose(sealed_whole[cell], values, atol=TOLERANCES[mode])


@settings(max_examples=25)
@given(
    st.integers(1, 3), st.integers(1, 3), st.integers(0, 2), st.integers(0, 2), st.integers(0, 9)
)
def test_overlapping_grids_are_summed_as_in_the_clear(rows, columns, more, wider, away):
    x, y = table(12, 6)
    blocks = rectangles(x, y, rows, columns, shared_rows=more, shared_columns=wider)
    there = [name for at, name in enumerate(blocks) if at != away] or list(blocks)

    def use(engine):
        return engine.reveal(engine.sum(add_up, dict.fromkeys(there, Ask())))

    check_alike(*both(use, blocks=blocks), atol=200 * UNIT)


# -- many terms


def test_a_moving_average_keeps_as_many_terms_as_there_are_totals():
    """mean + (value - mean)·w would double its terms in each round if they were not merged."""
    engine = engine_over(overlapping())
    plain = engine_over(overlapping(), "plain")

    def averaged(engine):
        value = engine.sum(add_up, everyone(engine, Ask())).rows
        mean = value
        for _ in range(30):
            value = value + engine.sum(add_up, everyone(engine, Ask())).rows * 0.5
            mean = mean + (value - mean) * 0.25
        return mean

    mean = averaged(engine)
    assert len(mean.content.terms) <= 31
    np.testing.assert_allclose(
        engine.reveal(mean), plain.reveal(averaged(plain)), rtol=1e-12, atol=1e-9
    )


def test_a_total_of_many_terms_is_sealed_anew_before_it_is_forwarded():
    engine = engine_over(overlapping())
    totals = [engine.sum(add_up, everyone(engine, Ask())) for _ in range(5)]
    few, many = totals[0].rows, totals[0].rows
    for total in totals[1:4]:
        few = few + total.rows
    for total in totals[1:]:
        many = many + total.rows
    back = {"columns": totals[0].columns, "total": totals[0].total, "count": totals[0].count}
    opened(engine, rows=few, **back)
    assert "Refresh" not in engine.books.traffic.up
    before = engine.books.traffic.exchanges
    found = opened(engine, rows=many, **back)
    assert engine.books.traffic.up["Refresh"] > 0
    assert engine.books.traffic.exchanges == before + 2
    for name, one in found.items():
        own = engine.schema("train").samples.own(name)
        expected = 5 * engine.reveal(totals[0].rows)[own]
        np.testing.assert_allclose(one.rows, expected, atol=30 * UNIT)
    # asked for again, it is there: nobody seals it twice
    size = engine.books.traffic.up["Refresh"]
    opened(engine, rows=many, **back)
    assert engine.books.traffic.up["Refresh"] == size


def test_a_settled_state_has_few_terms_and_the_same_values():
    engine = engine_over(overlapping())
    total = engine.sum(add_up, everyone(engine, Ask()))
    rows = total.rows
    for _ in range(9):
        rows = rows + engine.sum(add_up, everyone(engine, Ask())).rows
    state = Held(rows, total.columns, total.total, total.count, 7)
    settled = engine.books.settle(state)
    assert len(rows.content.terms) == 10  # what it was made from is as it was
    assert len(settled.rows.content.terms) == 1
    assert settled.columns.content is total.columns.content
    assert settled.rounds == 7
    np.testing.assert_allclose(engine.reveal(settled.rows), engine.reveal(rows), atol=UNIT)
    plain = engine_over(overlapping(), "plain")
    held = Held(plain.sum(add_up, everyone(plain, Ask())).rows, 1, 2, 3, 4)
    assert plain.books.settle(held) is held


def test_a_difference_of_a_total_and_itself_is_zero():
    engine = engine_over(overlapping())
    total = engine.sum(add_up, everyone(engine, Ask()))
    np.testing.assert_array_equal(engine.reveal(total.rows - total.rows), np.zeros(9))
    np.testing.assert_array_equal(engine.reveal(total.columns - total.columns), np.zeros((2, 5)))


@pytest.mark.parametrize("mode", TOLERANCES)
def test_a_piece_in_the_place_of_another_is_refused(mode):
    """The server forwards the genuine piece of another exchange, field or cell."""
    engine = engine_over(overlapping(), mode)
    old = engine.sum(add_up, everyone(engine, Ask()))
    new = engine.sum(add_up, everyone(engine, Ask()))
    [(_, before)] = old.rows.content.terms
    [(_, cells)] = new.rows.content.terms
    first, second = sorted(cells.pieces)[:2]
    [(_, columns)] = new.columns.content.terms
    for found in (
        before.pieces,
        {**cells.pieces, first: cells.pieces[second]},
        {**cells.pieces, first: columns.pieces[sorted(columns.pieces)[0]]},
    ):
        new.rows.content.terms = ((1.0, replace(cells, pieces=found)),)
        said = r"^A piece of cell \d+ of '\w+\.\w+' in round \d+ \(.*\) came in place of cell"
        with pytest.raises(ReplayError, match=said):
            engine.reveal(new.rows)
    new.rows.content.terms = ((1.0, cells),)
    engine.reveal(new.rows)


# -- checkpoints


@pytest.mark.parametrize("mode", TOLERANCES)
def test_a_state_comes_back_from_a_checkpoint_to_the_same_values(mode):
    blocks = overlapping()
    engine = engine_over(blocks, mode)
    total = engine.sum(add_up, everyone(engine, Ask()))
    part = engine.sum(add_up, {"c": Ask()})
    state = Held(
        total.rows * 0.5 - part.rows, part.columns, total.total + part.total, total.count, 3
    )
    data = codec.encode(engine.books.seal(state))
    found = engine.books.unseal(codec.decode(data, Held, *RECORDS))
    assert found.rounds == 3
    expected = {name: engine.reveal(getattr(state, name)) for name in ("rows", "columns", "total")}
    for name, value in expected.items():
        np.testing.assert_array_equal(engine.reveal(getattr(found, name)), value)
    assert engine.reveal(found.count) == engine.reveal(state.count)
    # and it is still the same totals: their terms merge with those from before
    merged = (found.rows + total.rows).content.terms
    assert sorted(weight for weight, _ in merged) == [-1.0, 1.5]
    np.testing.assert_array_equal(
        engine.reveal(found.rows - state.rows), np.zeros_like(expected["rows"])
    )


def test_another_engine_with_the_clients_keys_opens_a_checkpoint():
    """A resumed run: a session of its own, the same keys."""
    blocks = overlapping()
    engine, other = engine_over(blocks), engine_over(blocks)
    total = engine.sum(add_up, everyone(engine, Ask()))
    state = Held(total.rows, total.columns, total.total, total.count, 0)
    sealed = codec.decode(codec.encode(engine.books.seal(state)), Held, *RECORDS)
    found = other.books.unseal(sealed)
    other.sum(add_up, everyone(other, Ask()))
    np.testing.assert_array_equal(other.reveal(found.rows), engine.reveal(total.rows))
    more = found.rows + other.sum(add_up, everyone(other, Ask())).rows
    np.testing.assert_allclose(
        other.reveal(more), 2 * engine.reveal(total.rows), rtol=1e-12, atol=UNIT
    )


def test_a_checkpoint_does_not_open_with_other_keys():
    blocks = overlapping()
    engine = engine_over(blocks)
    total = engine.sum(add_up, everyone(engine, Ask()))
    sealed = engine.books.seal(Held(total.rows, total.columns, total.total, total.count, 0))
    stranger = modes.in_one_process(SharedKey(bytes(32), "tests"))
    schema = Schema.of(blocks, BINARY)
    sealing = modes.sealing(Privacy(mode="masked"), list(blocks), stranger)
    other = Simulation({"train": (schema, blocks)}, 0, sealing)
    with pytest.raises(TamperedError):
        other.reveal(other.books.unseal(sealed).rows)


def test_the_server_s_bytes_hold_no_value_in_the_clear():
    blocks = overlapping()
    engine, plain = engine_over(blocks), engine_over(blocks, "plain")
    states = []
    for one in (plain, engine):
        total = one.sum(add_up, everyone(one, Ask()))
        state = Held(total.rows, total.columns, total.total, total.count, 0)
        states.append(codec.encode(one.books.seal(state)))
    values = plain.reveal(plain.sum(add_up, everyone(plain, Ask())).rows)
    for value in values:
        assert value.tobytes() in states[0]
        assert value.tobytes() not in states[1]
        assert np.int64(np.rint(value / UNIT)).tobytes() not in states[1]


# -- numbers of any size


def scattered(values, mode="masked", reach=2.0**22):
    """Return the total of one number from each client."""
    x, y = table(4, 2)
    names = [f"p{at}" for at in range(len(values))]
    blocks = {name: block(x, y, range(4), [0, 1]) for name in names}
    schema = Schema.of(blocks, BINARY)
    engine = Simulation({"train": (schema, blocks)}, 0, sealing_of(mode, names, reach))
    engine.set_states({name: Kept(float(value)) for name, value in zip(names, values, strict=True)})
    return engine.reveal(engine.sum(send_state, everyone(engine, Ask())).value)


magnitudes = st.tuples(st.sampled_from([-1.0, 1.0]), st.floats(-9, 15)).map(
    lambda pair: pair[0] * 10.0 ** pair[1]
)


@settings(max_examples=60)
@given(
    st.lists(st.one_of(magnitudes, st.just(0.0)), min_size=1, max_size=9),
    st.sampled_from([2.0**10, 2.0**22, 2.0**30]),
)
def test_two_digits_hold_numbers_from_1e_minus_9_to_1e15(values, reach):
    """To half a unit for each number, and float64's rounding of the total."""
    unit = reach * 2.0**-62
    largest = max(map(abs, values))
    try:
        found = scattered(values, reach=reach)
    except RangeError:  # never a wrong number
        assert largest > reach * 2.0**40 / len(values) ** 2
        return
    allowed = len(values) * unit + sum(map(abs, values)) * 2.0**-51
    assert abs(found - np.sum(values, dtype=np.longdouble)) <= allowed


@pytest.mark.parametrize("clients", [1, 4, 16, 100])
def test_numbers_up_to_1e15_are_sealed_at_the_default_range(clients):
    assert scattered([1e15] * clients) == pytest.approx(clients * 1e15, rel=1e-15)
    assert scattered([1e15, *[1e-9] * clients][:clients]) == pytest.approx(1e15, rel=1e-15)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e40, -1e40])
@pytest.mark.parametrize("others", [[], [1.0, 2.0], [-np.inf]])
def test_a_number_that_has_no_room_is_an_error_and_not_another_number(bad, others):
    with pytest.raises(RangeError, match="cannot be sealed in send_state"):
        scattered([bad, *others])


@pytest.mark.parametrize("others", [[], [1e15, -3.0], [-np.inf], [1e17] * 3])
def test_a_bound_that_says_nothing_passes_as_such(others):
    """A dual outside its box has the value -inf; so has every sum with it."""
    assert scattered([-np.inf, *others]) == -np.inf
    finite = [value for value in others if np.isfinite(value)]
    if finite:
        assert np.isfinite(scattered([0.0, *finite]))


def test_two_clients_never_seal_under_one_stream():
    engine = engine_over(overlapping())
    seen = set()
    for _ in range(3):
        total = engine.sum(add_up, everyone(engine, Ask()))
        for field in (total.rows, total.columns, total.total, total.count):
            combination: Combination = field.content
            for _, cells in combination.terms:
                for piece in cells.pieces.values():
                    seen.add(piece.stream)
    parts = engine.schema("train")
    assert len(seen) == 3 * (len(parts.samples.cells) + len(parts.features.cells) + 2)


# -- whole runs


def described(folder, mode, algorithm, **more):
    columns = 1 if algorithm == "cocoa" else 2
    tree = {
        "experiment": {
            "rounds": more.pop("rounds", 60),
            "tolerance": 1e-6,
            "yardsticks": False,
            "checkpoint_seconds": more.pop("checkpoint_seconds", 10.0),
            "participation": more.pop("participation", 1.0),
            "out": str(folder),
        },
        "privacy": {"mode": mode},
        "algorithm": {"name": algorithm, "regularisation": 1e-2, **more},
        "dataset": {"name": "breast_cancer"},
        "partition": {"kind": "grid", "rows": 3, "columns": columns},
    }
    return experiment.from_dict(tree, folder)


@pytest.mark.parametrize(
    ("algorithm", "more"),
    [
        ("hyfdca", {"loss": "squared_hinge"}),
        pytest.param("hyfdca", {"loss": "logistic"}, marks=pytest.mark.slow),
        pytest.param(
            "hyfdca",
            {"loss": "hinge", "method": "ascent", "regularisation": 1.0, "rounds": 500},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "cocoa",
            {"loss": "logistic", "regularisation": 1.0, "rounds": 300},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_masked_run_reaches_the_gap_of_the_plain_one(tmp_path, algorithm, more):
    plain = run(described(tmp_path / "plain", "plain", algorithm, **more))
    masked = run(described(tmp_path / "masked", "masked", algorithm, **more))
    assert plain.certificate.gap_relative <= 1e-6
    assert masked.certificate.gap_relative <= 1e-6
    # both within 1e-6 of the optimum, which lies between dual and primal
    assert masked.certificate.primal == pytest.approx(plain.certificate.primal, rel=2e-6)
    assert masked.metrics.server.accuracy == pytest.approx(plain.metrics.server.accuracy, abs=0.01)


@pytest.mark.parametrize("loss", [pytest.param("hinge", marks=pytest.mark.slow), "logistic"])
def test_a_masked_run_with_clients_away_has_the_certificate_of_the_plain_one(tmp_path, loss):
    more = {"loss": loss, "rounds": 12, "participation": 0.67}
    made = [run(described(tmp_path / mode, mode, "hyfdca", **more)) for mode in ("plain", "masked")]
    plain, masked = (one.certificate for one in made)
    assert masked.primal == pytest.approx(plain.primal, rel=1e-6)
    assert masked.dual == pytest.approx(plain.dual, rel=1e-6)
    assert 0 < masked.dual < masked.primal


def test_masked_federated_averaging_gives_the_weights_of_the_plain_run(tmp_path):
    made = [
        run(described(tmp_path / mode, mode, "fedavg", rounds=20)) for mode in ("plain", "masked")
    ]
    plain, masked = (one.model.coef_ for one in made)
    np.testing.assert_allclose(masked, plain, rtol=1e-6, atol=1e-9)
    assert made[0].metrics.server.loss == pytest.approx(made[1].metrics.server.loss, rel=1e-6)


class StoppedError(Exception):
    """Ends a run in a test."""


@pytest.mark.parametrize(
    ("algorithm", "at", "more"),
    [
        ("hyfdca", 2, {"loss": "squared_hinge"}),
        pytest.param(
            "hyfdca",
            7,
            {"method": "ascent", "loss": "logistic", "rounds": 11},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "hyfdca",
            6,
            {"loss": "squared", "rounds": 12, "participation": 0.67},
            marks=pytest.mark.slow,
        ),
        ("fedavg", 3, {"rounds": 5, "participation": 0.67}),
        pytest.param("cocoa", 7, {"rounds": 11}, marks=pytest.mark.slow),
    ],
)
def test_a_masked_run_that_was_stopped_goes_on_to_the_same_bits(tmp_path, algorithm, at, more):
    def stop(progress):
        if progress.round == at:
            raise StoppedError

    whole = run(described(tmp_path / "whole", "masked", algorithm, **more))
    settings = {**more, "checkpoint_seconds": 0.0}
    with pytest.raises(StoppedError):
        run(described(tmp_path / "stopped", "masked", algorithm, **settings), progress=stop)
    resumed = resume(tmp_path / "stopped")
    assert whole.rounds > at
    assert resumed.rounds == whole.rounds
    np.testing.assert_array_equal(resumed.model.coef_, whole.model.coef_)
    assert resumed.certificate == whole.certificate
    assert resumed.metrics == whole.metrics
    assert resumed.exchanges == whole.exchanges
    assert resumed.bytes == whole.bytes
