"""A server of FeMAM that makes models has a client of one row for validation tell that row.

At a level whose clusters the server finds it may tell a client any model. What a client then says
of its rows for validation is of this model: whether it keeps the level, how many rows its network
names wrongly, and their losses with each factor by which scores are calibrated. Other clients in
the same total hide nothing, as scores of one client may be far beyond theirs.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch")

import federations
from intarsia.algorithms.femam import class_priors, state
from intarsia.algorithms.femam import client as at_client
from intarsia.algorithms.femam.algorithm import FEMAM
from intarsia.algorithms.femam.hyperparameters import FeMAM
from intarsia.algorithms.networks import client_network as networks
from intarsia.core.block import Block, Labels

PAPER = FeMAM(
    level_schedule="paper", levels=("global", 2, "personal"), embedding="linear", validation=0.1,
    precision="double", engine="loop", level_rounds=1, first_rounds=1, local_epochs=1,
)  # fmt: skip
ADAPTIVE = FeMAM(
    hidden=8, latent=6, validation=0.1, candidates=(2, 3), engine="loop", warm_up=1,
    first_rounds=1, levels=("global", "auto", "personal"),
)  # fmt: skip
COLUMNS, LARGE = 6, 1e4
ROWS = {"bank": 12, "shop": 60, "market": 60, "school": 60}
CLASSES = Labels("multiclass", ("a", "b", "c"))


def at_level_two(options, seed=0):
    """Return an engine at level 2, and the bank's row for validation: its values and label."""
    rng, blocks = np.random.default_rng(seed), {}
    for number, (name, rows) in enumerate(ROWS.items()):
        names = tuple(f"f{place}" for place in range(COLUMNS))
        x = rng.choice([0.0, 1.0], size=(rows, COLUMNS))
        y = rng.permutation(np.arange(rows) % 3) + 0.0
        blocks[name] = Block(1000 * number + np.arange(rows), names, x, y)
    engine, server = federations.started(FEMAM, options, blocks, CLASSES, seed)
    number = 0
    while engine.get_states()["bank"].level < 2:
        number += 1
        engine.begin_round(number)
        server, _ = FEMAM.round(server, engine, engine.key())
    [row] = np.flatnonzero(engine.get_states()["bank"].held_out)
    return engine, blocks["bank"].x[row], int(blocks["bank"].y[row])


def model(engine, **values):
    """Return a network with these numbers in its last layer, else zeros, as models are told."""
    start = engine.get_states()["bank"].start
    own = {name: np.zeros(one.shape) for name, one in start.items()}
    for name, one in values.items():
        own[f"classifier.{name}"] += one
    told = [networks.part_vector(one, ("*",)) for one in (own, start)]
    return told[0] - told[1]


@pytest.fixture(params=[False, True])
def works(request, monkeypatch):
    """Let clients answer by any rows for validation; return whether attacks work."""
    if request.param:
        monkeypatch.setattr(at_client, "LEAST_ROWS", 1)
    return request.param


def read_by_factors(engine):
    """Return the sum of yes-or-no columns, each by its own power of two, from one total."""
    weight = np.zeros((3, COLUMNS))
    weight[:2] = -LARGE * 2.0 ** np.arange(COLUMNS)  # the row is taken for class "c"
    told = model(engine, weight=weight)
    messages = {name: state.Latest(told if name == "bank" else None) for name in ROWS}
    engine.ask(at_client.open_level, messages)
    # that the mean fall of all rows is large, which the server says, lets all keep the level
    worth = np.array([4.0, 19.0, 109.0, 1900.0, 190000.0, 190001.0])
    engine.ask(
        at_client.close_level,
        {name: state.Closing(said.model, 2, worth) for name, said in messages.items()},
    )
    total = engine.reveal(engine.sum(at_client.calibrate, dict.fromkeys(ROWS, state.Ask())).at)
    return (total[-1] - total[-2]) / (1.5 - 1.25) / LARGE


def test_losses_by_factor_of_one_row_do_not_tell_its_columns(works):
    told = tried = 0
    for seed in range(6):
        engine, x, label = at_level_two(PAPER, seed)
        if label == 2:  # such a row errs by no factor
            continue
        found = round(read_by_factors(engine))
        tried += 1
        told += [found >> place & 1 for place in range(COLUMNS)] == list(x) and x.any()
    assert tried >= 3
    assert told == (tried if works else 0)


def test_losses_by_weight_of_class_shares_are_not_of_one_row(works):
    engine, _, _ = at_level_two(PAPER)
    prior = state.Prior(np.full(3, 50.0), np.array([173.0, 4.0, 60.0, 180.0]))
    total = engine.reveal(engine.sum(class_priors.try_offsets, {"bank": prior}).at)
    assert total.any() == works


def test_a_network_of_the_server_s_does_not_count_one_row(works):
    found = {}
    for label in range(3):
        engine, _, truth = at_level_two(ADAPTIVE)
        own = model(engine, bias=np.where(np.arange(3) == label, LARGE, 0.0))
        messages = {name: state.Latest(own) for name in ROWS}
        engine.ask(at_client.open_level, messages)
        looked = state.Groupings(np.zeros((1, own.size)), np.ones(1), 3)
        total = engine.sum(at_client.compare_groups, {"bank": looked})
        found[label] = list(engine.reveal(total.at)[:2])
    assert found == {n: [1.0, float(n != truth)] if works else [0.0, 0.0] for n in range(3)}


def keeps(options, label):
    """Return whether the bank keeps a level whose model takes each row for a class."""
    engine, _, truth = at_level_two(options)
    own = model(engine, bias=np.where(np.arange(3) == label, LARGE, 0.0))
    # clients differ much, as the server says, and so a client's own rows count
    worth = np.array([4.0, 19.0, 109.0, 0.0, 1e6, 1e6 + 1e-6])
    reply = engine.ask(at_client.close_level, {"bank": state.Closing(own, 2, worth)})["bank"]
    return reply.kept, truth


def test_keeping_a_level_does_not_tell_one_row_s_label(works):
    for options in (PAPER, replace(PAPER, prune="margin")):
        answers = [keeps(options, label) for label in range(3)]
        truth = answers[0][1]
        kept = [answer for answer, _ in answers]
        if works:
            assert kept == [label == truth for label in range(3)]
        else:
            assert len({*kept}) == 1
