"""A level of few rows is "other" outside of its client, unless somebody else sends its name.

So whoever guesses the name learns whether, and how often, the client has it: another client that
has it in five rows, or a server that says that one sent it.
privacy/site-refusals.md says so. An owner who lists the column in `exclude` tells nothing. A
name that nobody guesses stays hidden.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from intarsia.data.dataframe import table_from
from intarsia.data.encoding import encode, encoding_of

VALUES = ["Bob Sample", *["red"] * 20, *["blue"] * 20]


def tables(of_other=("red",) * 41):
    return {
        name: table_from(
            pd.DataFrame({"row": range(at, at + 41), "told": values, "y": [0, 1] * 20 + [0]}),
            client=name,
            id="row",
            label="y",
        )
        for name, at, values in (("bank", 0, VALUES), ("other", 41, list(of_other)))
    }


def features(encoding):
    return {name: encode(table, encoding) for name, table in tables().items()}


def test_a_name_that_nobody_guesses_is_in_no_feature():
    encoding = encoding_of(tables())
    assert encoding.levels["told"] == ("blue", "other", "red")
    assert not any("Bob" in name for one in features(encoding).values() for name in one.features)


@pytest.mark.parametrize("guessed", ["Bob Sample", "Ann Sample"])
def test_a_client_that_has_a_guess_often_learns_who_else_has_it(guessed):
    held = tables([guessed] * 6 + ["red"] * 35)
    encoding = encoding_of(held)
    column = encoding.levels["told"].index(guessed)
    counts = [encode(one, encoding).x[:, column].sum() for one in held.values()]
    # owners of a column open its total: less its own that is what the bank has
    assert sum(counts) - 6 == (guessed == "Bob Sample")


@pytest.mark.parametrize("guessed", ["Bob Sample", "Ann Sample"])
def test_a_server_that_makes_a_level_up_learns_whether_a_client_has_it(guessed):
    encoding = encoding_of(tables())
    levels = tuple(sorted((*encoding.levels["told"], guessed)))
    blocks = features(replace(encoding, levels={"told": levels}))
    # the server reads which columns are constant
    column = blocks["bank"].features.index(f"told={guessed}")
    assert np.ptp(blocks["bank"].x[:, column]) == (guessed == "Bob Sample")
