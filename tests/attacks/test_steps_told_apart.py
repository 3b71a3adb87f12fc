"""A server that tells one client of other bins or steps than the others.

Where the others' rows all fall into one bin, counts by score are those of one client: each of its
scores with its label. What clients are told alike is bound into what they seal, so that parts do
not add up where it differs.
"""

from __future__ import annotations

import numpy as np
import pytest

import sites
from federations import BINARY, block, table
from intarsia.algorithms.hyfdca.newton import direction as newton_direction
from intarsia.algorithms.hyfdca.newton.client import gather_point, move_duals
from intarsia.engines import communication_log
from intarsia.engines.remote import site
from intarsia.engines.sums.secure import told_alike
from intarsia.errors import TamperedError
from intarsia.maths.linear import losses
from intarsia.privacy.secure_aggregation import setup as modes
from intarsia.privacy.settings import Privacy
from intarsia.protocols import certificate, evaluation
from intarsia.training.registry import ALGORITHMS
from intarsia.training.setup import declare_exchanges

FEDAVG = ALGORITHMS["fedavg"]
OPTIONS = FEDAVG.hyperparameters(loss="logistic", regularisation=0.1)
NAMES = ["a", "b", "c", "d"]
VICTIM = "c"


def told_apart(mode, trust):
    """Return what the server reads of bins that are of the victim's rows alone, and its truth."""
    x, y = table(400, 4)
    train = {n: block(x, y, range(50 * k, 50 * k + 50), range(4)) for k, n in enumerate(NAMES)}
    test = {
        n: block(x, y, range(200 + 30 * k, 230 + 30 * k), range(4)) for k, n in enumerate(NAMES)
    }
    keys = modes.keys(Privacy(mode=mode), ("a",), None, "test")
    made = sites.federation(
        *(FEDAVG, OPTIONS, train, BINARY),
        tested=test,
        complete=True,
        sealing=lambda: modes.sealing(Privacy(mode=mode, trust=trust), NAMES, keys),
        more=lambda schemas: declare_exchanges(FEDAVG, OPTIONS, schemas)[
            len(FEDAVG.disclosure.sends) :
        ],
    )
    engine = made.engine
    server = sites.begun(made, FEDAVG, OPTIONS)
    engine.begin_round(1)
    FEDAVG.round(server, engine, engine.key())
    schema = engine.schema("test")
    score = evaluation._partial_scores(FEDAVG.model.predict, schema, "test")
    z = engine.sum(score, dict.fromkeys(NAMES, evaluation.Ask())).z
    every = np.ones(len(schema.samples), bool)
    functions = evaluation._functions(
        evaluation._given_scores, losses.LOGISTIC, schema, every, "test", ""
    )
    bins = {
        name: evaluation.Binned(z, np.array([0.0 if name == VICTIM else 1e9]), np.ones(1))
        for name in NAMES
    }
    found = engine.reveal(engine.sum(functions.count_scores, bins))
    by_class = np.asarray(found.counts)[0, :, 1:].sum(axis=1)
    return by_class, [(test[VICTIM].y < 0).sum(), (test[VICTIM].y > 0).sum()]


@pytest.mark.parametrize(("mode", "trust"), [("masked", "clients"), ("masked", "pairs")])
def test_nothing_adds_up_where_clients_are_told_of_other_bins(mode, trust):
    with pytest.raises(TamperedError):
        told_apart(mode, trust)


@pytest.mark.parametrize("trust", ["clients", "pairs"])
def test_without_that_the_server_reads_the_scores_of_one_client(trust, monkeypatch):
    for module in (site, communication_log):
        monkeypatch.setattr(module, "told_alike", lambda *_: "")
    read, truth = told_apart("masked", trust)
    np.testing.assert_allclose(read, truth, atol=1e-6)


def test_a_server_that_says_that_all_were_told_alike_gets_words_that_say_nothing(monkeypatch):
    monkeypatch.setattr(site, "told_alike", told_alike)
    monkeypatch.setattr(communication_log, "told_alike", lambda *_: "")
    with pytest.raises(TamperedError):  # pieces carry what their clients were told
        told_apart("masked", "pairs")


def test_steps_of_newtons_method_are_told_alike():
    functions = (
        *(move_duals, gather_point, newton_direction.slope_along, newton_direction.curve),
        *(newton_direction.start_search, newton_direction.advance_search),
    )
    assert all(fn.alike for fn in functions)


def test_what_the_certificate_rounds_and_bounds_by_is_told_alike():
    """The bound's slope by the error of a sum tells of scores, and large steps round duals to 0."""
    functions = certificate.round_duals, certificate.score_both, certificate.bound_objectives
    assert all(fn.alike for fn in functions)


def test_what_is_told_is_told_from_anything_else():
    given = {"step": np.ones(1), "budget": 5, "gram": True}
    assert told_alike(move_duals, given) == told_alike(move_duals, dict(reversed(given.items())))
    for change in ({"step": np.array([2.0])}, {"budget": 6}, {"gram": False}, {"more": None}):
        assert told_alike(move_duals, given | change) != told_alike(move_duals, given)
