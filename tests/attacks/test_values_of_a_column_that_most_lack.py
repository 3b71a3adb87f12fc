"""A column of which a client has few values, as of a rare test: means and scales told these.

All that have a column open how many values it has over the federation, their sum, and that of their
squares. A client that follows the algorithm takes its own off: of one value of the others' it had
that, and of two both. So do the weights of the first step of training: at weights of zero each row
adds half of itself, by the side of its label.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import intarsia
from federations import BINARY
from intarsia.algorithms.hyfdca.newton import server as newton
from intarsia.core.block import INTERCEPT, Block
from intarsia.core.schema import Schema
from intarsia.engines.simulation import Simulation
from intarsia.privacy.secure_aggregation import setup as modes
from intarsia.privacy.settings import Privacy
from intarsia.protocols import preprocessing
from intarsia.protocols.preprocessing import few_values, standardisation
from intarsia.testing.toy_federations import initialise, secrets_of
from intarsia.training.registry import algorithm_named
from intarsia.training.setup import with_intercept

ROWS = 40


def tables(values):
    """Return the blocks of the bank and the clinic, which has values of the second column."""
    rng, blocks = np.random.default_rng(0), {}
    for number, name in enumerate(("bank", "clinic")):
        x = rng.normal(10.0, 3.0, size=(ROWS, 2))
        if name == "clinic":
            x[:, 1] = np.nan
            x[: len(values), 1] = values
        y = np.where(rng.random(ROWS) < 0.5, 1.0, -1.0)
        blocks[name] = Block(100 * number + np.arange(ROWS), ("age", "lab"), x, y)
    return blocks


def engine_of(blocks):
    """Return an engine over blocks whose sums are masked."""
    schema, settings = Schema.of(blocks, BINARY), Privacy(mode="masked")
    keys = modes.keys(settings, schema.clients, None, "t")
    sealing = modes.sealing(settings, schema.clients, keys)
    return Simulation({"train": (schema, blocks)}, 0, sealing, secrets=secrets_of(blocks))


def prepared(blocks, *, standardise=True):
    """Return the blocks that train."""
    engine = engine_of(blocks)
    schema = engine.schema("train")
    engine.make_states(lambda name: preprocessing.initial(name, engine.block(name), schema))
    preprocessing.prepare(engine, {"train": schema}, standardise=standardise)
    states = engine.get_states()
    return {
        name: preprocessing.prepared(states[name], "train", engine.block(name)) for name in blocks
    }


def trained(blocks, monkeypatch):
    """Return what the bank opens beside its own of λN times the weights of the first step."""
    found, measure = [], newton.measure_point

    def looked(point, block, message, rng):
        if block.samples[0] == 0:
            total = point.options.ridge * point.samples * np.asarray(message.w)
            found.append((total - point.alpha @ block.x)[0])
        return measure.call(point, block, message, rng)

    monkeypatch.setattr(newton, "measure_point", replace(measure, call=looked))
    algorithm = algorithm_named("hyfdca")
    options = algorithm.hyperparameters(loss="logistic", method="newton")
    engine = engine_of(blocks)
    engine.begin_round(1)
    algorithm.round(initialise(algorithm, options, engine), engine, engine.key())
    return found[0]


def opened(values, monkeypatch):
    """Return what the bank opens of the clinic's column beside its own: count, sum, squares.

    The clinic has the given values of it, of 40 rows.
    """
    blocks, found = tables(values), {}
    settle = standardisation.settle_scale.call

    def looked(state, block, message, rng):
        if block.samples[0] < 100:
            mean = state.mean[1]
            sums = standardisation._of_units(message.squares)[1]
            found["count"] = message.count[0, 1]
            found["sum"] = found["count"] * mean
            found["squares"] = sums + found["count"] * mean**2
        return settle(state, block, message, rng)

    fn = replace(standardisation.settle_scale, call=looked)
    monkeypatch.setattr(standardisation, "settle_scale", fn)
    prepared(blocks)
    own = blocks["bank"].x[:, 1]
    return found["count"] - ROWS, found["sum"] - own.sum(), found["squares"] - (own**2).sum()


@pytest.mark.parametrize("values", [[7.25], [7.25, 31.5], [7.25, 31.5, 4.0, 9.0]])
def test_moments_tell_no_value_of_a_column_that_most_rows_lack(values, monkeypatch):
    np.testing.assert_allclose(opened(values, monkeypatch), 0.0, atol=1e-6)


def test_moments_are_of_five_values_and_more(monkeypatch):
    values = np.array([7.25, 31.5, 4.0, 9.0, 1.0])
    found = opened(values, monkeypatch)
    np.testing.assert_allclose(found, [5, values.sum(), (values**2).sum()], atol=1e-6)


@pytest.mark.parametrize("standardise", [True, False])
@pytest.mark.parametrize("values", [[7.25], [7.25, 31.5, 4.0, 9.0], [7.25, 31.5, 4.0, 9.0, 1.0]])
def test_weights_tell_no_value_of_a_column_that_most_rows_lack(values, standardise, monkeypatch):
    blocks = tables(values)
    ready = prepared(blocks, standardise=standardise)
    _, told = trained(ready, monkeypatch)
    count, y = len(values), blocks["clinic"].y
    own = np.zeros(count)
    if count == 5:  # with the other's each has a mean and a deviation
        lab = blocks["bank"].x[:, 1]
        every = np.append(lab, values)
        own = (values - every.mean()) / every.std() if standardise else np.array(values)
    np.testing.assert_allclose(told, own @ y[:count] / 2, atol=1e-6)


@pytest.mark.parametrize("alone", [1, 4, 5])
def test_weights_tell_no_few_rows_that_one_has_beside_those_of_both(alone, monkeypatch):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(ROWS + alone, 2)), np.where(rng.random(ROWS + alone) < 0.5, 1.0, -1.0)
    rows = np.arange(ROWS + alone)
    blocks = {
        "bank": Block(rows[:ROWS], ("age", "lab"), x[:ROWS], y[:ROWS]),
        "clinic": Block(rows, ("age", "lab"), x, y),
    }
    told = trained(prepared(blocks, standardise=False), monkeypatch)
    told = told - (y[:ROWS] / 2) @ (x[:ROWS] / 2)  # of what both have each adds a half
    np.testing.assert_allclose(told, y[ROWS:] @ x[ROWS:] / 2 * (alone == 5), atol=1e-6)


def overlapping(shared, alone=0, *, works=False):
    """Return the blocks of three clients, and the rows that the bank lacks.

    The clinic and the post have some of these both, and the clinic some alone. What else they have
    is the bank's, too.
    """
    rng = np.random.default_rng(2)
    beside, mine = np.arange(ROWS, ROWS + shared), np.arange(ROWS + shared, ROWS + shared + alone)
    x = rng.normal(5.0, 2.0, size=(ROWS + shared + alone, 2))
    y = np.where(rng.random(len(x)) < 0.5, 1.0, -1.0)
    rows = {
        "bank": np.arange(ROWS),
        "clinic": np.r_[0:20, beside, mine],
        "post": np.r_[15:ROWS, beside],
    }
    blocks = {name: Block(own, ("age", "lab"), x[own], y[own]) for name, own in rows.items()}
    schema = Schema.of(blocks, BINARY)
    if not works:
        blocks = {n: few_values.without_few(one, n, schema) for n, one in blocks.items()}
    return blocks, x


def moments(blocks, monkeypatch):
    """Return what the bank opens of both columns: how many values, and their sums."""
    found, centre = [], standardisation.centre

    def looked(state, block, message, rng):
        found.append((message.count[0], standardisation._of_units(message.total)))
        return centre.call(state, block, message, rng)

    monkeypatch.setattr(standardisation, "centre", replace(centre, call=looked))
    return prepared(blocks), found[0]


@pytest.mark.parametrize("works", [False, True])
@pytest.mark.parametrize(("shared", "alone"), [(1, 0), (4, 0), (4, 1), (5, 0)])
def test_few_rows_that_two_clients_have_and_a_third_lacks_are_told_to_none(
    shared, alone, works, monkeypatch
):
    blocks, x = overlapping(shared, alone, works=works)
    ready, (count, total) = moments(blocks, monkeypatch)
    rows = range(ROWS, ROWS + shared) if works or shared == 5 else []
    np.testing.assert_allclose(count - ROWS, len(rows), atol=1e-6)
    np.testing.assert_allclose(total - x[:ROWS].sum(axis=0), x[rows].sum(axis=0), atol=1e-6)
    # and they do not train: they count as missing, with 0
    for name in ("clinic", "post"):
        trains = ready[name].x[np.isin(ready[name].samples, np.arange(ROWS, ROWS + shared))]
        assert (trains == 0).all() == (not len(rows))


def post_has_more(blocks, x):
    """Give the post six rows that nobody else has; return all rows' values."""
    x, first = np.concatenate([x, x[:6] + 9.0]), len(x)
    own = np.r_[blocks["post"].samples, first : first + 6]
    y = np.r_[blocks["post"].y, np.ones(3), -np.ones(3)]
    blocks["post"] = Block(own, ("age", "lab"), x[own], y)
    return x


def test_a_copy_that_one_leaves_out_counts_whole_at_who_has_enough(monkeypatch):
    blocks, x = overlapping(1, works=True)
    x = post_has_more(blocks, x)
    schema = Schema.of(blocks, BINARY)
    blocks = {n: few_values.without_few(one, n, schema) for n, one in blocks.items()}
    assert np.isnan(blocks["clinic"].x[-1]).all()
    _, (count, total) = moments(blocks, monkeypatch)
    np.testing.assert_allclose(count, len(x), atol=1e-6)
    np.testing.assert_allclose(total, x.sum(axis=0), atol=1e-6)


@pytest.mark.parametrize(("shared", "said"), [(4, 1), (5, 0)])
def test_a_note_says_which_copies_are_left_out(shared, said):
    blocks, _ = overlapping(shared, works=True)
    notes = few_values.notes_on_few(Schema.of(blocks, BINARY), {})
    wanted = (
        "Values of 4 training samples at 'clinic', 'post' count as missing there, in 'age', "
        "'lab': another client has these columns and lacks the samples, and would know sums "
        "over fewer than 5.",
    )
    assert notes == wanted[:said]
    assert not few_values.notes_on_few(Schema.of(blocks, BINARY), dict.fromkeys(blocks, True))


def test_of_many_clients_each_looks_at_its_own_rows_alone():
    """Each that looked at the rows of all made 1000 clients wait for 90 s."""
    rng, looked_at = np.random.default_rng(0), set()
    blocks = {
        f"c{number}": Block(np.arange(20 * number, 20 * number + 22), ("age",), x, None)
        for number, x in enumerate(rng.normal(size=(6, 22, 1)))  # two are the next one's, too
    }
    schema = Schema.of(blocks, BINARY)

    class Sets(tuple):
        def __getitem__(self, cell):
            looked_at.add(cell)
            return super().__getitem__(cell)

        def __iter__(self):
            looked_at.update(range(len(self)))
            return super().__iter__()

    vars(schema.samples)["owner_sets"] = Sets(schema.samples.owner_sets)
    found = few_values.without_few(blocks["c0"], "c0", schema)
    assert found is blocks["c0"]
    assert looked_at == set(schema.samples.cell_of[schema.samples.own("c0")])


@pytest.mark.parametrize(("shared", "more"), [(1, False), (1, True), (5, False)])
def test_the_constant_of_few_such_rows_does_not_train_either(shared, more):
    """Its weight would tell their labels. All clients have it, and each column two of them."""
    blocks, x = overlapping(shared, works=True)
    if more:
        x = post_has_more(blocks, x)
    for name, column in (("bank", 0), ("post", 1)):
        one = blocks[name]
        own = one.features[column : column + 1], one.x[:, [column]]
        blocks[name] = Block(one.samples, *own, one.y)
    schema = with_intercept(Schema.of(blocks, BINARY))
    aligned = {name: schema.align(name, one, intercept=True) for name, one in blocks.items()}
    few = {name: few_values.without_few(one, name, schema) for name, one in aligned.items()}
    engine = Simulation({"train": (schema, few)}, 0, secrets=secrets_of(few), aligned=True)
    engine.make_states(lambda name: preprocessing.initial(name, engine.block(name), schema))
    preprocessing.prepare(engine, {"train": schema}, standardise=True)
    states, total = engine.get_states(), np.zeros(len(x))
    for name in few:
        one = preprocessing.prepared(states[name], "train", engine.block(name), once=True)
        total[one.samples] += one.x[:, list(one.features).index(INTERCEPT)]
    np.testing.assert_allclose(total[:ROWS], 1.0)  # of each row once, whoever has it
    np.testing.assert_allclose(total[ROWS:], float(more or shared == 5))


@pytest.mark.parametrize("works", [False, True])
def test_a_run_leaves_few_such_values_out(works, tmp_path, monkeypatch):
    """As in a simulation: means are in its model."""
    if works:
        monkeypatch.setattr(few_values, "without_few", lambda block, *_: block)
    blocks, x = overlapping(1, works=True)
    tables = {
        name: pd.DataFrame(one.x, columns=list(one.features)).assign(id=one.samples, y=one.y)
        for name, one in blocks.items()
    }
    how = {"id": "id", "label": "y", "loss": "logistic", "privacy": "masked", "test": 0.0}
    found = intarsia.run(tables=tables, rounds=2, yardsticks=False, **how)
    assert sum("Values of 1 training sample at" in note for note in found.notes) == 1
    rows = ROWS + works
    np.testing.assert_allclose(found.model.means_, x[:rows].mean(axis=0), atol=1e-6)
