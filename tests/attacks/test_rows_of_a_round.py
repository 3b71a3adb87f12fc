"""A server that follows the protocol, and whose experiment takes one row in a round: it reads it.

Where one client alone has a feature block, the server's network of that block changes by what this
client sends. A step on one row moves the first layer by the row, times a number for each unit. What
is trained on is the experiment's to say, and a site with a policy for few rows counted its table's.
"""

from __future__ import annotations

import numpy as np
import pytest

from intarsia.core.block import Block, Labels
from intarsia.deployment.policy import Policy, check_job
from intarsia.errors import PolicyError
from intarsia.experiment import config as experiment
from intarsia.training.loop import simulate
from intarsia.training.registry import algorithm_named, choose

pytest.importorskip("torch")
HYFEM = algorithm_named("hyfem")
OPTIONS = {
    **{"features": 3, "extractor_hidden": (5,), "hidden": (6,), "precision": "double"},
    **{"steps": 1, "batch": 1, "rate": 0.1, "block_dropout": 0.0, "engine": "loop"},
}


def blocks():
    """Return clients with the same rows, of which each has a feature block alone."""
    rng = np.random.default_rng(0)
    y = np.arange(30) % 3 + 0.0
    found = {}
    for name in ("a", "b", "c"):
        features = tuple(f"{name}{k}" for k in range(4))
        x = rng.normal(size=(30, 4)) + y[:, None]
        found[name] = Block(np.arange(30), features, x, y, {name: features})
    return found


def test_a_round_of_one_row_tells_that_row():
    own, options = blocks(), HYFEM.hyperparameters(**OPTIONS)
    labels = Labels("multiclass", ("p", "q", "r"))
    none = simulate(HYFEM, options, {"train": own}, labels, rounds=0, seed=0)
    one = simulate(HYFEM, options, {"train": own}, labels, rounds=1, seed=0)
    layer = "extractors.b.0.weight"  # (units, columns)
    moved = one.conclusion.network[layer] - none.conclusion.network[layer]
    read = moved[np.abs(moved).sum(axis=1).argmax()]
    alike = np.abs(own["b"].x @ read) / np.linalg.norm(own["b"].x, axis=1) / np.linalg.norm(read)
    assert alike.max() > 1 - 1e-9  # it is a multiple of one of the rows


@pytest.mark.parametrize(("name", "steps"), [
    ("hyfem", {"steps": 1, "batch": 1}), ("hyfem", {"steps": 2, "batch": 2}),
    ("fedavg", {"loss": "logistic", "regularisation": 0.1, "local_steps": 4}),
])  # fmt: skip
def test_a_site_takes_part_in_no_round_of_so_few_rows(name, steps):
    job = experiment.from_dict(
        {
            "experiment": {"name": "odd"},
            "algorithm": {"name": name, **steps},
            "client": [{"name": "a", "path": "a.csv"}],
            "privacy": {"mode": "masked", "least_clients": 1},
        }
    )
    algorithm, options = choose(job)
    given = job, algorithm, options, 3
    with pytest.raises(PolicyError, match=r"least_rows in site\.toml"):
        check_job(Policy(), False, *given)
    check_job(Policy(least_rows=1), False, *given)


def test_what_other_algorithms_send_of_a_round_is_of_all_rows():
    for name in ("flic", "femam", "fedavg-ft", "hyfdca", "cocoa"):
        algorithm = algorithm_named(name)
        assert algorithm.disclosure.rows(None) is None
