"""A server that asks for scores by ever larger multiples of a total: it had rows of a client.

A value beyond the range cannot be sealed, and the server is told so. A site that went on after it
told by each further ask whether its largest score is above a limit, to many digits, and by the
slopes of that in several totals a row. So a site where an answer could not be made answers no more.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import sites
from federations import block, table
from intarsia.algorithms.linear import fedavg
from intarsia.core.block import Labels
from intarsia.engines.remote import site
from intarsia.engines.sums.secure import sealed
from intarsia.errors import IntarsiaError, RangeError, RefusedError
from intarsia.privacy.secure_aggregation import setup as modes
from intarsia.privacy.secure_aggregation.protocol import Parties, Stream
from intarsia.privacy.settings import Privacy
from intarsia.training.registry import ALGORITHMS

FEDAVG = ALGORITHMS["fedavg"]
OPTIONS = FEDAVG.hyperparameters(loss="squared", regularisation=1e-3, local_steps=10, batch=1)
NAMES = ["bank", "shop"]
PRIVACY, ROUNDS = Privacy(mode="masked"), 24
KEYS = modes.keys(PRIVACY, ("bank",), None, "test")
X, _ = table(60, 4)
Y = X @ [3.0, -1.0, 0.5, 0.0]


class Departing:
    """A server that trains, and then asks for scores by multiples of the last total."""

    def __init__(self):
        blocks = {
            "bank": block(X, Y, range(40), range(4)),
            "shop": block(X, Y, range(40, 60), range(4)),
        }
        self.made = sites.federation(
            *(FEDAVG, OPTIONS, blocks, Labels("regression")),
            complete=True,
            sealing=lambda: modes.sealing(PRIVACY, NAMES, KEYS),
        )
        self.engine, server = self.made.engine, sites.begun(self.made, FEDAVG, OPTIONS)
        w = server.w
        for number in range(1, ROUNDS + 1):
            self.engine.begin_round(number)
            told = fedavg.Descend(w, number, tuple(NAMES))
            self.last = self.engine.sum(fedavg.local_descent, told).w
            w = self.last * 8.0

    def scored(self, factor):
        """Return why no scores by so many times the last total are sealed; "": they are."""
        try:
            self.engine.sum(fedavg.part_of_scores, fedavg.Weights(self.last * factor))
        except IntarsiaError as error:
            return str(error)
        return ""


def test_a_site_answers_no_more_once_a_value_was_beyond_the_range():
    departing = Departing()
    assert departing.scored(1e-6) == ""
    assert "too large to be sealed" in departing.scored(8.0)
    for factor in (1e-6, 1.0):
        assert "The site refused" in departing.scored(factor)
    told = fedavg.Descend(departing.last, ROUNDS + 1, tuple(NAMES))
    departing.engine.begin_round(ROUNDS + 1)
    with pytest.raises(RefusedError):
        departing.engine.sum(fedavg.local_descent, told)
    assert "could not be made" in str(departing.made.errors[-1])


def test_no_site_tells_twice_whether_its_largest_score_is_above_a_limit(monkeypatch):
    def tried():
        departing = Departing()
        return [not departing.scored(factor) for factor in (8.0, 4.0, 1e-3, 2e-3)]

    assert not any(tried())

    def forgetting(one, **new):  # as sites that go on
        return dataclasses.replace(one, **{k: v for k, v in new.items() if k != "failed"})

    monkeypatch.setattr(site, "replace", forgetting)
    told, honest = tried(), Departing()
    scores = X @ np.ravel(honest.engine.reveal(honest.last))
    limit = modes.sealing(PRIVACY, NAMES, KEYS).digits.room
    own = [np.abs(scores[:40]).max(), np.abs(scores[40:]).max()]
    for one in own:
        assert [factor * one < limit for factor in (8.0, 4.0, 1e-3, 2e-3)] == told


LARGEST = 123.45678901  # of 5,000 values


def is_sealed(range, clients=2):
    """Return whether a client seals its values in a run of such a range."""
    names = [*NAMES, *map(str, np.arange(clients - 2))]
    privacy = Privacy(mode="masked", range=range)
    values = np.linspace(0.0, LARGEST, 5000)
    sealing = modes.sealing(privacy, names, modes.keys(privacy, names, None, "test"))
    stream, parties = (
        Stream("run", 1, 1, "measure_rows", "squares", 0),
        Parties(*[tuple(NAMES)] * 2),
    )
    try:
        sealed(sealing, "bank", stream, values, parties)
    except RangeError:
        return False
    return True


def bisected(told):
    """Return the largest value as it is told by the ranges of 40 runs."""
    low, high = 2.0, 2.0**22
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if told(middle) else (middle, high)
    return high / 2  # each of two clients may have half of the range


def test_by_the_ranges_of_many_runs_a_largest_value_is_told_to_half_its_size(monkeypatch):
    found = bisected(is_sealed)
    assert found == pytest.approx(64.0)  # it has room up to 128
    assert 1.9 * found < LARGEST
    for clients in (2, 3, 4):  # how many there are the server chooses, too
        ranges = clients * LARGEST * np.array([0.4, 0.9, 1.0, 1.1, 4.0])
        told = [is_sealed(one, clients) for one in ranges]
        assert told == [2.0 ** np.ceil(np.log2(one)) > clients * LARGEST for one in ranges]

    monkeypatch.setattr(modes, "replace", lambda fixed, **_: fixed)  # as it was before
    assert bisected(is_sealed) == pytest.approx(LARGEST, rel=1e-6)
