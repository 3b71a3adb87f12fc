"""Which algorithm is said to fit what the clients hold."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import intarsia


def houses(numbers):
    """Return clients with the same columns and other rules, whose labels are numbers or classes."""
    rng, tables = np.random.default_rng(0), {}
    for name, slope in (("north", 3.0), ("south", -3.0)):
        x = rng.normal(size=(120, 2))
        load = slope * x[:, 0] + 0.1 * rng.normal(size=120)
        y = load if numbers else np.where(load > 0, "high", "low")
        tables[name] = pd.DataFrame(x, columns=["cold", "wind"]).assign(load=y)
    return tables


@pytest.mark.parametrize(("numbers", "named"), [(True, "fedavg-ft"), (False, "femam")])
def test_where_clients_differ_an_algorithm_is_named_that_learns_their_labels(numbers, named):
    other = {"fedavg-ft", "femam"} - {named}
    how = {"label": "load", "loss": "squared" if numbers else "logistic"}
    advice = intarsia.inspect(tables=houses(numbers), **how).advice.why
    (note,) = (
        one for one in intarsia.run(tables=houses(numbers), **how).notes if "is worse than" in one
    )
    for text in (advice, note):
        assert f"{named} " in text
        assert not any(one in text for one in other)
