"""An honest server that lists a client's labels: whole numbers, by three sums that it was told.

With the losses of Poisson and Gamma a client told the sum of its labels, of their squares and of
their logarithms, for the share of the deviance that is explained. The last has 53 bits: of six to
ten labels from 0 to 30 one list alone came to all three, in each of ten tables. Clients with fewer
than 50 evaluated rows tell no logarithms now.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

import sites
from federations import block
from intarsia.core.block import Labels
from intarsia.maths.linear import losses
from intarsia.privacy.secure_aggregation import setup as modes
from intarsia.privacy.settings import Privacy
from intarsia.protocols import evaluation
from intarsia.training.registry import ALGORITHMS
from intarsia.training.setup import declare_exchanges

HYFDCA = ALGORITHMS["hyfdca"]
NAMES, TESTED, LARGEST = ["bank", "shop"], 8, 30
KEYS = modes.keys(Privacy(mode="masked"), ("bank",), None, "test")


def lists(rows, total, squares, logarithms):
    """Return the lists of labels, the largest first, that three sums are of; two at most.

    Without the last sum it is NaN.
    """
    found = []

    def go(most, left, sums, taken):
        if len(found) == 2:
            return
        if not left:
            near = math.isnan(sums[2]) or abs(sums[2]) < 1e-9
            if sums[:2] == (0, 0) and near:
                found.append(taken)
            return
        for label in range(min(most, sums[0]), -1, -1):
            rest = sums[0] - label, sums[1] - label**2
            if rest[1] < 0 or rest[1] > rest[0] * label:
                continue  # others are no larger
            if rest[0] > label * (left - 1) or rest[0] ** 2 > rest[1] * (left - 1):
                continue
            more = label * math.log(label) if label else 0.0
            go(label, left - 1, (*rest, sums[2] - more), (*taken, label))

    go(LARGEST, rows, (total, squares, logarithms), ())
    return found


def told(seed, loss="poisson", tested=TESTED):
    """Return what the server reads of the bank's rows for the test at the end, and its labels."""
    rng = np.random.default_rng(seed)
    count = 40 + tested
    x = rng.normal(size=(2 * count, 4))
    y = rng.integers(loss == "gamma", LARGEST + 1, 2 * count).astype(np.float64)
    parts = []
    for start, stop in ((0, 40), (40, count)):
        rows = [range(k * count + start, k * count + stop) for k in range(2)]
        parts.append({n: block(x, y, rows[k], range(4)) for k, n in enumerate(NAMES)})
    train, test = parts
    labels, options = Labels("regression"), HYFDCA.hyperparameters(loss=loss, regularisation=1.0)
    made = sites.federation(
        *(HYFDCA, options, train, labels),
        complete=True,
        tested=test,
        sealing=lambda: modes.sealing(Privacy(mode="masked"), NAMES, KEYS),
        more=lambda schemas: declare_exchanges(HYFDCA, options, schemas)[
            len(HYFDCA.disclosure.sends) :
        ],
    )
    engine, server = made.engine, sites.begun(made, HYFDCA, options)
    engine.begin_round(1)
    HYFDCA.round(server, engine, engine.key())
    schema, replies, ask = engine.schema("test"), {}, engine.ask

    def asked(fn, messages):
        found = ask(fn, messages)
        if fn.name == "send_metrics":
            replies.update(found)
        return found

    engine.ask = asked
    how = engine, schema, HYFDCA.model.predict, losses.loss_code(loss)
    whole, own = evaluation.evaluate(*how, part="test", with_figures=True)
    return replies["bank"], test["bank"].y, own["bank"], whole


@pytest.mark.parametrize("works", [False, True])
def test_a_list_of_few_labels_is_not_told(works, monkeypatch):
    if works:
        monkeypatch.setattr(evaluation, "_LEAST_LOGARITHMS", 0)
    right = 0
    for seed in range(4):
        sums, y, *_ = told(seed)
        known = round(sums.label[0]), round(sums.square[0]), float(sums.term[0])
        found = lists(TESTED, *known)
        right += found == [tuple(sorted(y.astype(int).tolist(), reverse=True))]
    assert right == (4 if works else 0)


@pytest.mark.parametrize("loss", ["poisson", "gamma"])
@pytest.mark.parametrize("tested", [49, 50])
def test_clients_of_many_rows_have_the_share_of_the_deviance(tested, loss):
    sums, _, own, whole = told(0, loss, tested)
    assert np.isnan(sums.term).all() == (tested < 50)
    assert (own.figures.d2 is None) == (whole.figures.d2 is None) == (tested < 50)
    assert own.figures.deviance == pytest.approx(2 * own.loss)
