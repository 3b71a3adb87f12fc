"""A server that tells one client of another model, or of another round, than the others.

A total of changes at one model, less a total at which one client alone was told another model, is
the difference of that client's changes: what the others sent drops out. And clients that are told
of a late round take steps of next to no length, so that the total is one client's change at once.
Who was told something else used to be found out for numbers in the clear alone, and in few sums.
"""

from __future__ import annotations

import numpy as np
import pytest

import sites
from federations import BINARY, block, table
from intarsia.algorithms.linear import fedavg
from intarsia.core.client_functions import RandomKey
from intarsia.engines import communication_log
from intarsia.engines.remote import site
from intarsia.engines.sums.secure import told_alike
from intarsia.errors import TamperedError
from intarsia.privacy.secure_aggregation import setup as modes
from intarsia.privacy.settings import Privacy
from intarsia.training.registry import ALGORITHMS, algorithm_named

FEDAVG = ALGORITHMS["fedavg"]
NAMES = ["a", "b", "c", "d"]
VICTIM = "c"
# one step on all rows: the same whenever it is asked for
OPTIONS = FEDAVG.hyperparameters(
    loss="logistic", regularisation=0.1, local_steps=1, batch=50, a=1.0, b=0.0
)


def told_apart(trust):
    """Return the difference of two totals, and of what the victim changes at both models."""
    x, y = table(200, 4)
    train = {n: block(x, y, range(50 * k, 50 * k + 50), range(4)) for k, n in enumerate(NAMES)}
    keys = modes.keys(Privacy(mode="masked"), ("a",), None, "test")
    made = sites.federation(
        *(FEDAVG, OPTIONS, train, BINARY),
        complete=True,
        sealing=lambda: modes.sealing(Privacy(mode="masked", trust=trust), NAMES, keys),
    )
    engine, server = made.engine, sites.begun(made, FEDAVG, OPTIONS)
    engine.begin_round(1)
    server, _ = FEDAVG.round(server, engine, engine.key())
    engine.begin_round(2)

    def change(**factors):
        # the server scales what it holds, and tells each what it likes
        messages = {
            name: fedavg.Descend(server.w * factors.get(name, 0.0), 2, tuple(NAMES))
            for name in NAMES
        }
        return engine.sum(fedavg.local_descent, messages).w

    totals = [change(**{VICTIM: 1.0}), change()]
    # once it read one of them no site trains any more
    at, still, weights = (np.asarray(engine.reveal(one)) for one in (*totals, server.w))
    read = at - still
    state, own = made.lines.sites[VICTIM]._run._states, made.lines.sites[VICTIM]._run._place
    (first, *_), rng = state.values(), RandomKey(("any",))
    both = [
        fedavg.local_descent.call(
            first, own.block("train"), fedavg.Descend(w, 2, tuple(NAMES)), rng
        )[1].w
        for w in (weights, 0 * weights)
    ]
    return read, both[0] - both[1]


@pytest.mark.parametrize("trust", ["clients", "pairs"])
def test_nothing_adds_up_where_clients_are_told_of_other_models(trust):
    with pytest.raises(TamperedError):
        told_apart(trust)


def test_without_that_the_server_reads_how_one_client_s_change_differs(monkeypatch):
    for module in (site, communication_log):
        monkeypatch.setattr(module, "told_alike", lambda *_: "")
    read, truth = told_apart("pairs")
    assert np.abs(truth).max() > 1e-3
    np.testing.assert_allclose(read, truth, atol=1e-9)


@pytest.mark.parametrize(("name", "functions"), [
    ("fedavg", ["local_descent", "part_of_objective"]),
    ("cocoa", ["local_dual_ascent", "objectives"]),
    ("hyfem", ["local_training", "part_of_loss"]),
    ("flic", ["local_training", "send_maps", "part_of_loss"]),
    ("fedrep", ["local_training"]), ("fedavg-ft", ["whole_training"]),
    ("ditto", ["train_both"]), ("pfedme", ["train_envelope"]), ("fedhenn", ["send_kernel"]),
    ("own-networks", ["local_training", "part_of_loss"]), ("flic-linear", ["descend"]),
    ("femam", ["calibrate"]),
])  # fmt: skip
def test_what_clients_send_of_one_model_is_bound_to_it(name, functions):
    pytest.importorskip("torch")
    known = {fn.name: fn for fn in algorithm_named(name).disclosure.functions}
    assert [one for one in functions if not known[one].alike] == []


def test_a_client_of_hyfem_is_told_of_no_other_round_than_the_others():
    """Late in a run its steps have next to no length, so that the total is the others'."""
    pytest.importorskip("torch")
    from intarsia.algorithms.hyfem.client import Told, local_training

    told = vars(Told(None, None, None, present=("a", "b"), number=3))
    assert told_alike(local_training, told) != told_alike(local_training, {**told, "number": 5000})
    own = {**told, "columns": {"left": np.zeros(1)}}  # of matched classifiers, which it reads
    assert told_alike(local_training, own) == told_alike(local_training, {**own, "columns": {}})
