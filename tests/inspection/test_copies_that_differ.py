"""What `inspect` says of clients with other values of one sample."""

from __future__ import annotations

import numpy as np

from intarsia.core.block import Block, Labels
from intarsia.core.schema import Schema
from intarsia.inspection.overlap import notes_on_copies

X = np.arange(40.0).reshape(10, 4)
NAMES = ("age", "crp", "sex=f", "sex=m")


def block(x: np.ndarray, rows: list[int], columns: list[int]) -> Block:
    names = tuple(NAMES[one] for one in columns)
    levels = {"sex": ("f", "m")} if "sex=f" in names else {}
    return Block(np.array(rows), names, x[np.ix_(rows, columns)], levels=levels)


def notes(*blocks: Block) -> tuple[str, ...]:
    named = dict(zip("abc", blocks, strict=False))
    return notes_on_copies(named, Schema.of(named, Labels("regression")))


def test_columns_with_copies_that_differ_are_named_and_no_others():
    other = X.copy()
    other[[2, 5], 1] += 1.0  # crp of two samples
    other[5, 2] = -1.0  # the sex of one
    other[3, 0] = np.nan  # what is missing is no other value
    other[9, 0] += 1.0  # at one client alone
    first = block(X, [7, 5, 2, 3, 0], [0, 1, 2, 3])
    second = block(other, [2, 3, 5, 7, 9], [3, 2, 1, 0])
    assert notes(first, second) == (
        "Clients have different values of the same samples in 'crp' (2), 'sex' (1) (in brackets "
        "how many samples). A run takes their average: compare these tables, and rename a column "
        "that is another quantity there.",
    )
    assert notes(first, block(X, [2, 3, 5, 7, 9], [3, 2, 1, 0])) == ()
    assert notes(first) == ()


def test_a_third_client_is_compared_where_the_first_lacks_the_value():
    lacking, other = X.copy(), X.copy()
    lacking[4, 0] = np.nan
    other[4, 0] = 1.0
    [note] = notes(*(block(one, [4, 6], [0, 1]) for one in (lacking, X, other)))
    assert "in 'age' (1) (in brackets" in note


def test_a_client_that_lacks_a_level_of_many_has_no_other_value():
    levels, lacking = np.eye(4)[[0, 1, 2]], np.eye(4)[[0, 1, 2]]
    lacking[1] = 0.0
    here, there = (
        Block(np.arange(3), ("a", "b", "c", "d"), x, indicators=np.ones(4, np.intp))
        for x in (levels, lacking)
    )
    assert notes(here, there) == ()
    lacking[1, 3] = 1.0
    assert "in 'b' (1), 'd' (1)" in notes(here, there)[0]
