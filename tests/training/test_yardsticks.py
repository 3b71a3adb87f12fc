from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_array

from federations import BINARY, ON_SIGNS, in_order, objective, optimum, rectangles, started, table
from intarsia.algorithms.hyfdca.algorithm import HYFDCA
from intarsia.algorithms.hyfdca.state import HyFDCA
from intarsia.maths.linear import losses
from intarsia.training import baselines


@pytest.mark.parametrize("layout", [np.ascontiguousarray, csr_array])
@pytest.mark.parametrize("labels", ["all", "first"])
def test_the_pooled_table_holds_every_value_once(layout, labels):
    x, y = table(40, 6)
    blocks = rectangles(layout(x), y, 2, 2, shared_rows=5, shared_columns=1, labels=labels)
    engine, _ = started(HYFDCA, HyFDCA(), blocks)
    found = baselines.pooled(engine)
    values = found.x.toarray() if found.sparse else found.x
    rows = found.samples
    columns = [int(name[1:]) for name in found.features]
    np.testing.assert_allclose(values, x[np.ix_(rows, columns)], rtol=1e-14)
    np.testing.assert_array_equal(found.y, y[rows])


@pytest.mark.parametrize("loss", ON_SIGNS)
@pytest.mark.parametrize("epochs", [1, 5000], ids=["newton", "ascent"])
def test_the_centralised_optimum_is_that_of_other_libraries(loss, epochs):
    x, y = table(80, 6)
    engine, _ = started(HYFDCA, HyFDCA(), rectangles(x, y, 2, 2, shared_rows=5))
    found = baselines.optimum(
        baselines.pooled(engine),
        BINARY,
        loss=loss,
        regularisation=0.05,
        seed=0,
        tolerance=1e-7,
        epochs=epochs,
    )
    code = losses.loss_code(loss)
    w = in_order(engine.schema("train"), found.w)[0]
    best = optimum(x, y, loss=code, regularisation=0.05)
    mine, theirs = (objective(x, y, v, loss=code, regularisation=0.05) for v in (w, best))
    assert found.gap <= 1e-7
    assert found.primal == pytest.approx(mine, rel=1e-9)
    assert mine == pytest.approx(theirs, rel=1e-6)
