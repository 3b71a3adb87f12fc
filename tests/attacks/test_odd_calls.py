"""A server that sends calls whose fields are of other kinds: each is answered, and written down.

What a site wrote into its log of such a call could not be written. It answered with an error of
Python's, which the library that carries calls tells the server, and its log said nothing. Names of
20 MB were written down six times as long: a few hundred such calls filled the disk.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from departures import Departing
from intarsia.engines import codec
from intarsia.engines.remote import wire
from intarsia.engines.remote.wire import Answer
from intarsia.results.chained_log import ChainedLog
from intarsia.training.registry import ALGORITHMS

FEDAVG = ALGORITHMS["fedavg"]
OPTIONS = FEDAVG.hyperparameters(loss="logistic", regularisation=0.1)
SITE = "r1c0"
ODD = [3, None, 1.5, True, {"a": 1}, (1, "a"), ("a", None), np.zeros(()), np.zeros(2), b"a"]


@pytest.fixture(scope="module")
def asked():
    """Return a federation after a round, and the last call of a function to a site; read only."""
    made = Departing(FEDAVG, OPTIONS, SITE)
    made.rounds(1)
    return made, made.of("fedavg.local_descent")[-1]


@pytest.mark.parametrize(
    "field", ["run", "sequence", "base", "anchor", "round", "exchange", "kind", "function", "part"]
)
def test_a_call_with_an_odd_field_is_refused_and_written_down(asked, tmp_path, field):
    kind = type(getattr(asked[1], field))
    check(asked, tmp_path, field, [one for one in ODD if type(one) is not kind])


@pytest.mark.parametrize("field", ["asked", "body"])
def test_a_call_with_odd_names_or_no_body_is_refused_and_written_down(asked, tmp_path, field):
    check(asked, tmp_path, field, [one for one in ODD if type(one) is not bytes])


@pytest.mark.parametrize("field", ["run", "kind", "function", "part", "asked"])
def test_of_a_call_with_long_names_little_is_written_down(asked, tmp_path, field):
    long = ["\1" * 5_000] if field != "asked" else [("\1" * 5_000,), ("\1" * 100,) * 20_000]
    check(asked, tmp_path, field, long)
    assert (tmp_path / "log").stat().st_size < 1_000 * len(long)


def check(asked, folder, field, values):
    made, call = asked
    site = made.made.lines.sites[SITE]
    log = ChainedLog(folder / "log", folder / "head")
    site._record = log.append
    for value in values:
        odd = codec.encode(replace(call, **{field: value}))
        answer = codec.decode(site.handle(odd), Answer)
        assert answer.error == "CodecError"
        assert (answer.run, answer.sequence, answer.body) == ("", 0, b"")
    lines = (folder / "log").read_text().splitlines()
    assert len(lines) == len(values)
    assert all("refused" in line for line in lines)


def test_a_call_as_it_is_has_no_odd_field(asked):
    _, call = asked
    assert wire.odd_field(call, wire.Call) == ""
