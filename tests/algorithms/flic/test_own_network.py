"""A client of FLIC keeps the network that it trained alone where that errs less on its rows."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from intarsia.algorithms.flic import algorithm as flic  # noqa: E402  after the skip
from intarsia.algorithms.flic import own_network  # noqa: E402
from intarsia.algorithms.flic.algorithm import FLIC, Flic  # noqa: E402
from intarsia.algorithms.networks import parameter_sharing as sharing  # noqa: E402
from intarsia.core.disclosure import Release  # noqa: E402
from intarsia.errors import ExperimentError  # noqa: E402
from tests.algorithms.flic.test_flic import (  # noqa: E402
    DOUBLE,
    FLIC_SMALL,
    clients,
    concluded,
    parameters,
    rounds,
    started,
)

OPTIONS = Flic(**{**FLIC_SMALL, **DOUBLE}, keep_own=True, validation=0.3)
# what draws all rows of a class to one point, so that their classes are lost
HARMFUL = dataclasses.replace(
    OPTIONS, alignment_weight=1e3, anchor_scale=0.0, local_epochs=10, final_epochs=5, rate=0.02
)


def trained(options, blocks):
    engine, server = started(FLIC, options, blocks)
    return engine, rounds(FLIC, engine, server)


def held_out(engine, name):
    return np.flatnonzero(engine.get_states()[name].held_out)


def test_rows_for_validation_train_nothing_until_the_network_is_chosen():
    blocks = clients()
    first = trained(OPTIONS, blocks)
    other = {}
    for name, block in blocks.items():
        rows, x = held_out(first[0], name), np.array(block.x)
        assert len(rows) == round(0.3 * len(x))
        x[rows] += 5.0
        other[name] = dataclasses.replace(block, x=x)
    second = trained(OPTIONS, other)
    for one, two in zip(*(parameters(run[0]).values() for run in (first, second)), strict=True):
        for key in one:
            np.testing.assert_array_equal(one[key], two[key])
    for engine, server in (first, second):
        concluded(FLIC, engine, server)
    ends = [parameters(run[0])["c0"]["classifier.weight"] for run in (first, second)]
    assert not np.array_equal(*ends)


def test_each_client_takes_the_network_that_errs_less_and_the_result_names_who_keeps_its_own():
    engine, server = trained(OPTIONS, clients())
    engine.begin_round(3)
    engine.ask(flic.personalise, sharing.broadcast(server, engine))
    total = engine.sum(own_network.train_own, sharing.broadcast(server, engine))
    fallen = []
    for name, state in engine.get_states().items():
        block, rows = engine.block(name), held_out(engine, name)
        wrong = []
        for network in (state.parameters, state.own):
            said = FLIC.model.predict(dataclasses.replace(state, parameters=network), block)
            wrong.append((said.argmax(axis=0) != block.y)[rows])
        fallen.append(wrong[0].astype(float) - wrong[1])
    rows = np.concatenate(fallen)
    told = np.asarray(engine.reveal(total.at))
    assert told[:2].tolist() == [4, len(rows)]
    assert told[3] == pytest.approx(rows.sum())
    replies = engine.ask(
        own_network.keep_better, dict.fromkeys(engine.ids, own_network.OwnCompared(told))
    )
    # what the clients' means differ by is chance: all go by the mean over all rows
    inner = sum(((one - one.mean()) ** 2).sum() for one in fallen) / (len(rows) - 4)
    own = bool(rows.mean() > np.sqrt(inner / len(rows)))
    assert {one.own for one in replies.values()} == {own}


def test_a_client_that_keeps_its_own_network_has_nothing_of_the_others():
    """Those of flic are drawn together, and every client is better off alone."""
    blocks = clients(samples=60, shift=3.0)
    engine, server = trained(HARMFUL, blocks)
    found = concluded(FLIC, engine, server)
    assert "4 of 4 clients keep the network that they trained alone" in found.notes[0]
    assert "'c0', 'c1', 'c2', 'c3'" in found.notes[0]
    other = {name: block if name == "c0" else dataclasses.replace(block, y=block.y[::-1].copy())
             for name, block in blocks.items()}  # fmt: skip
    again, server = trained(HARMFUL, other)
    concluded(FLIC, again, server)
    one, two = (parameters(run)["c0"] for run in (engine, again))
    for key in one:
        if not key.startswith("anchors."):
            np.testing.assert_array_equal(one[key], two[key])
    state = engine.get_states()["c0"]
    assert state.held_out is None
    assert not state.own
    assert (FLIC.model.predict(state, blocks["c0"]).argmax(0) == blocks["c0"].y).mean() > 0.7


def test_what_the_choice_would_need_is_said():
    with pytest.raises(ExperimentError, match="keep_own is true with final_epochs = 0"):
        dataclasses.replace(OPTIONS, final_epochs=0)
    with pytest.raises(ExperimentError, match=r"validation is 1\.0"):
        dataclasses.replace(OPTIONS, validation=1.0)
    private = FLIC.private(Release(1.0, 1.0))
    with pytest.raises(ExperimentError, match="whose noise does not cover"):
        started(private, OPTIONS)
