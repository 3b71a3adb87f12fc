"""FeMAM where clients have few labelled rows, or none to spare, for validation."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

from intarsia.algorithms.femam.algorithm import FEMAM
from intarsia.algorithms.femam.hyperparameters import FeMAM
from intarsia.errors import FederationError
from tests.algorithms.femam.test_femam import LEVELS, clients, run, started

FEW = {**LEVELS, "validation": 0.1, "window": 2, "batch": 100}
LONE = ("c0", "c1")  # of one labelled row each, in `some_of_one_row`


def some_of_one_row():
    blocks = clients(5, samples=30)
    lone = {name: block.take(np.arange(1)) for name, block in blocks.items() if name in LONE}
    return {**blocks, **lone}


def test_of_a_few_labelled_rows_one_is_for_validation():
    """A tenth of 2 to 5 is none, rounded."""
    blocks = {f"c{n}": one.take(np.arange(n + 1)) for n, one in enumerate(clients(6).values())}
    engine, _ = started(FEMAM, FeMAM(level_schedule="paper", **FEW), blocks)
    held = {name: int(state.held_out.sum()) for name, state in engine.get_states().items()}
    assert held == {"c0": 0, "c1": 1, "c2": 1, "c3": 1, "c4": 1, "c5": 1}
    none, _ = started(
        FEMAM, FeMAM(level_schedule="paper", **{**FEW, "validation": 0.0, "prune": "never"}), blocks
    )
    assert not any(state.held_out.any() for state in none.get_states().values())


@pytest.mark.parametrize(("schedule", "most"), [("adaptive", 5), ("paper", 2)])
def test_the_adaptive_schedule_keeps_as_many_rows_as_a_client_needs_to_count(schedule, most):
    """A tenth of 19 and of 20 is two rows, and clients of fewer than five tell nothing."""
    blocks = {
        f"c{n}": one.take(np.arange(18 + n))
        for n, one in enumerate(clients(3, samples=30).values())
    }
    levels = ("global", "auto", "personal")
    engine, _ = started(FEMAM, FeMAM(level_schedule=schedule, levels=levels), blocks)
    held = [int(state.held_out.sum()) for state in engine.get_states().values()]
    assert held == [2, 2, most]


def test_a_federation_without_a_row_for_validation_is_refused():
    blocks = {name: block.take(np.arange(1)) for name, block in clients().items()}
    with pytest.raises(FederationError, match=r"no client has two labelled rows.*validation = 0"):
        run(FEMAM, FeMAM(level_schedule="paper", **FEW), blocks)
    run(
        FEMAM,
        FeMAM(
            level_schedule="paper",
            levels=("global",),
            **{**FEW, "validation": 0.0, "prune": "never"},
        ),
        blocks,
    )


def test_rounds_without_a_row_for_validation_do_not_end_a_level():
    options = FeMAM(level_schedule="paper", levels=("global", 1), **FEW)
    blocks = some_of_one_row()
    plan = {"present": lambda number: LONE if 4 < number < 9 else None}
    _, server, _ = run(FEMAM, options, blocks, 8, **plan)
    assert (server.levels[1].rounds, server.levels[1].accuracies) == (4, ())


def test_without_a_row_for_validation_the_fewest_clusters_are_taken():
    options = FeMAM(
        level_schedule="paper", levels=("global", "auto"), candidates=(1, 2), **{**FEW, "window": 0}
    )
    blocks = some_of_one_row()
    plan = {"present": lambda number: LONE if 4 < number < 9 else None}
    _, server, conclusion = run(FEMAM, options, blocks, 100, **plan)
    assert len(server.levels[1].models) == 1
    assert any(
        said.startswith("Level 2 has 1 cluster, the fewest of algorithm.candidates, as none")
        for said in conclusion.notes
    )


def test_who_has_rows_for_validation_weighs_a_level_that_others_closed_before():
    """Clients of one row each close level 2 first: what that is worth they cannot say."""
    levels = {"levels": ("global", "personal", "personal"), "evidence": 0.0}
    options = FeMAM(level_schedule="paper", **levels, **{**FEW, "window": 0, "level_rounds": 2})
    plan = {"present": lambda number: LONE if number == 7 else None}
    _, server, _ = run(FEMAM, options, some_of_one_row(), 8, **plan)
    assert server.levels[1].worth[0] == 3  # clients with such rows
