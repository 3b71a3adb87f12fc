"""A client that takes its own rows off the summed weights of classes: of one more it had the label.

Clients with labels open these sums, where classes or rows have weights. Two that label the same
rows know each other's part but for the rows that one has beside them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from federations import BINARY, block, table
from intarsia.core.schema import Schema
from intarsia.errors import TableError
from intarsia.protocols.preprocessing import preparation, standardisation

ROWS = 40
X, Y = table(ROWS + 5, 3)


def opened(alone, third=()):
    """Return what the bank opens of the classes beside what it knows: weights of no, and of yes.

    The clinic labels the bank's rows, and some more. A third client has some of these.
    """
    blocks = {"bank": block(X, Y, range(ROWS), range(3))}
    blocks["clinic"] = block(X, Y, range(ROWS + alone), range(3))
    if third:
        blocks["third"] = block(X, Y, third, range(3))
    schema = Schema.of(blocks, replace(BINARY, class_weights="balanced", weighted=True))
    (count, *_) = standardisation._weighing(schema)
    total = np.zeros(2)
    for name, one in blocks.items():
        state = preparation.initial(name, one, schema)
        total += count.call(state, one, standardisation.CountClasses(), None)[1].totals
    return total - [np.sum(Y[:ROWS] < 0), np.sum(Y[:ROWS] > 0)]


@pytest.mark.parametrize("works", [False, True])
@pytest.mark.parametrize("alone", [1, 4, 5])
def test_weights_of_classes_tell_no_few_labels_that_another_lacks(alone, works, monkeypatch):
    if works:
        monkeypatch.setattr(standardisation, "FEWEST", 0)
    own = Y[ROWS : ROWS + alone]
    told = [np.sum(own < 0), np.sum(own > 0)] if works or alone == 5 else [0, 0]
    np.testing.assert_allclose(opened(alone), told, atol=1e-12)


def test_nor_where_a_third_client_has_them_too():
    np.testing.assert_allclose(opened(2, third=(*range(8), ROWS, ROWS + 1)), 0, atol=1e-12)


def test_classes_whose_weights_nobody_is_told_are_refused():
    schema = Schema.of({"bank": block(X, Y, range(9), [0])}, BINARY)
    (_, settle) = standardisation._weighing(schema)
    with pytest.raises(TableError, match="fewer than 5 labels that another one lacks"):
        settle.call(None, None, standardisation.ClassTotals(np.zeros(2)), None)


def test_labels_of_two_clients_that_share_no_row_all_count():
    blocks = {"bank": block(X, Y, range(20), [0]), "clinic": block(X, Y, range(20, 40), [0])}
    schema = Schema.of(blocks, BINARY)
    for name in blocks:
        assert standardisation._labels_told(schema, name).all()
