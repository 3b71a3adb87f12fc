"""What few training rows of a client have trains as what most have, or as a missing value."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.sparse import csr_array

import intarsia
from intarsia.core.block import Block, Labels
from intarsia.core.schema import Schema
from intarsia.protocols.preprocessing import few_values
from intarsia.protocols.preprocessing.rare_values import without_rare

ROWS = 100
LABELS = Labels("binary", ("no", "yes"))


def block_of(x, least=5, start=0):
    features = tuple(f"x{column}" for column in range(x.shape[1]))
    y = np.where(np.arange(len(x) if isinstance(x, np.ndarray) else x.shape[0]) % 2, 1.0, -1.0)
    samples = np.arange(start, start + len(y))
    return Block(samples, features, x, y, least_rows=np.full(x.shape[1], least))


def trained(*, standardise=True, client="bank", **blocks):
    schema = Schema.of(blocks, LABELS)
    own = schema.align(client, blocks[client])
    return own, without_rare(own, client, schema, standardise=standardise)


def columns(**values):
    """Return a table of a column for each number, which most rows have, and what others have."""
    made = []
    for usual, others in values.values():
        made.append(np.full(ROWS, usual))
        made[-1][10 : 10 + len(others)] = others
    return np.stack(made, axis=1)


NONE = float("nan")
COLUMNS = columns(
    one=(0.0, [1.0]),
    four=(7.0, [8.0, 8.0, 9.0, 6.0]),
    five=(0.0, [1.0] * 5),
    half=(0.0, [1.0] * 50),
    few=(NONE, [1.0, 2.0]),
    some_lack=(0.0, [NONE] * 50 + [1.0]),
    lacks=(49.0, [NONE]),
)


@pytest.mark.parametrize("standardise", [True, False])
def test_numbers_of_few_rows_are_those_of_all_others(standardise):
    _, found = trained(bank=block_of(COLUMNS), standardise=standardise)
    expected = COLUMNS.copy()
    expected[10, 0], expected[10:14, 1] = 0.0, 7.0
    expected[10:12, 4] = NONE if standardise else 0.0  # all others are 0 there
    expected[60, 5] = 0.0
    if not standardise:
        expected[10, 6] = 49.0  # a missing one would be 0 alone
    np.testing.assert_array_equal(found.x, expected)


def test_numbers_that_are_not_stored_are_0():
    x = np.nan_to_num(COLUMNS)
    _, found = trained(bank=block_of(csr_array(x)))
    x[10, 0], x[10:14, 1], x[10:12, 4], x[60, 5], x[10, 6] = 0.0, 7.0, 0.0, 0.0, 49.0
    np.testing.assert_array_equal(found.x.toarray(), x)


@pytest.mark.parametrize(("least", "rows"), [(1, ROWS), (5, 4)])
def test_a_table_whose_owner_says_so_or_of_few_rows_stays_as_it_is(least, rows):
    before, found = trained(bank=block_of(COLUMNS[8 : 8 + rows], least))
    assert found is before


def test_a_number_of_few_rows_that_another_client_has_too_is_the_others():
    """Each has two rows with a 1: the first of the bank's is at the shop, which has five more."""
    bank, shop = np.zeros((ROWS, 1)), np.zeros((ROWS, 1))
    bank[[60, 10]] = shop[[10, 70, 71, 72, 73, 74]] = 1.0  # the shop's row 10 is the bank's 60
    _, found = trained(bank=block_of(bank), shop=block_of(shop, start=50))
    assert np.isnan(found.x[60, 0])
    assert found.x[10, 0] == 0.0
    assert not found.x[np.arange(ROWS) != 60].any()


def test_what_became_missing_is_left_out_once():
    """Where columns are not centred a missing number counts as 0, which is not what most have."""
    bank = np.full((ROWS, 1), 7.0)
    bank[60] = 8.0
    blocks = {"bank": block_of(bank), "shop": block_of(bank[50:], start=50)}
    _, found = trained(**blocks, standardise=False)
    assert np.isnan(found.x[60, 0])
    assert (np.delete(found.x[:, 0], 60) == 7.0).all()


@pytest.mark.parametrize("standardise", [True, False])
def test_values_that_are_rare_by_turns_are_left_out_in_the_end(standardise):
    """What most rows have differs by which of several others lacks them."""
    for seed in range(40):
        rng = np.random.default_rng(seed)
        x = (rng.random((23, 6)) < 0.5) * 1.0
        drawn = {client: np.sort(rng.choice(23, 18, replace=False)) for client in "abc"}
        blocks = {
            client: replace(block_of(csr_array(x[rows])), samples=rows)
            for client, rows in drawn.items()
        }
        for client in blocks:
            _, found = trained(**blocks, client=client, standardise=standardise)
            assert found.shape == (18, 6)


def test_a_client_that_shares_no_row_is_compared_with_nobody(monkeypatch):
    """A comparison takes as long as there are clients: of 100,000 all would take hours."""

    def compared(*_):
        raise AssertionError("compared")

    monkeypatch.setattr(few_values, "_Copies", compared)
    blocks = {"bank": block_of(COLUMNS), "shop": block_of(COLUMNS, start=ROWS)}
    _, found = trained(**blocks)
    assert found.x[10, 0] == 0.0
    schema = Schema.of(blocks, LABELS)
    assert few_values.notes_on_few(schema, {}) == ()
    assert not few_values.few_everywhere(schema, 0)
    with pytest.raises(AssertionError, match="compared"):
        trained(bank=block_of(COLUMNS), shop=block_of(COLUMNS, start=ROWS - 1))


@pytest.mark.parametrize("kind", [np.asarray, csr_array])
def test_rows_count_that_another_client_lacks(kind):
    """Six of the bank's rows have a 1, of which the shop has five: it would know the sixth's."""
    x = np.zeros((ROWS, 1))
    x[[10, 60, 61, 62, 63, 64]] = 1.0
    other = np.zeros((ROWS, 1))
    other[10:15] = 1.0
    blocks = {"bank": block_of(kind(x.copy())), "shop": block_of(kind(other), start=50)}
    _, found = trained(**blocks)
    x[10] = 0.0
    np.testing.assert_array_equal(stored(found), x)
    _, alone = trained(bank=blocks["bank"])
    assert stored(alone).sum() == 6


def stored(block):
    return block.x.toarray() if block.sparse else block.x


@pytest.mark.parametrize("stored", [np.asarray, csr_array])
def test_a_note_names_where_rare_numbers_do_not_train_that_train_elsewhere(stored):
    y = np.arange(ROWS) % 2
    rare, many, other = np.zeros((3, ROWS))
    rare[:3], many[::3] = 1.0, 1.0
    other[::4] = 1.0

    def table(flag, alone):
        return stored(np.stack([flag, other, alone], axis=1)), y

    names = {"bank": ["flag", "other", "own"], "shop": ["flag", "other", "its"]}
    found = intarsia.run(
        tables={"bank": table(rare, rare), "shop": table(many, many)},
        table_settings={name: {"names": own} for name, own in names.items()},
        loss="logistic",
        test=0,
        yardsticks=False,
    )
    notes = [one for one in found.notes if "count as that one there" in one]
    assert len(notes) == 1
    assert ": 'flag' at 'bank'." in notes[0]  # 'own' trains nowhere, which another note says
