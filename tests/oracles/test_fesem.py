"""FeSEM (Xie et al., World Wide Web 2023, Algorithm 1), written anew in PyTorch.

w_i by steps on F_i from Θ_{C(i)};   C(i) = argmin_k ‖w_i - Θ_k‖²;   Θ_k = Σ n_i w_i / Σ n_i
"""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import oracle_network as oracle  # noqa: E402
from intarsia.algorithms.femam.fesem import FESEM, FeSEM  # noqa: E402


@pytest.mark.parametrize("rows", [*oracle.ROWS])
@pytest.mark.parametrize("weights", ["samples", "clients"])
@pytest.mark.parametrize("pull", [0.0, 0.5])
def test_two_rounds_are_the_paper_s(rows, weights, pull):
    blocks = oracle.clients(oracle.ROWS[rows])
    training = {"local_epochs": 3, "optimiser": "sgd", "rate": 0.05, "proximal": pull}
    paper = {"clustering": "nearest", "first_clustering": 1, "equal_starts": False}
    options = FeSEM(clusters=2, weights=weights, **paper, **training, **oracle.NETWORK)
    engine, server = oracle.begun(FESEM, options, blocks, seed=5)
    centres = [oracle.net_of_vector(one) for one in server.levels[0].models]
    chosen = dict(server.levels[0].groups)  # drawn by chance
    for number in (1, 2):
        server = oracle.one_round(FESEM, engine, server, number)
        own = {}
        for name, block in blocks.items():
            at = centres[chosen[name]]
            own[name] = oracle.fit(at, block, 3, "sgd", 0.05, pull=pull, to=at)
        points = [oracle.vector_of(net) for net in centres]
        for name, net in own.items():
            away = [float(np.square(oracle.vector_of(net) - one).sum()) for one in points]
            chosen[name] = away.index(min(away))
        centres = oracle.centres_of(centres, own, chosen, blocks, weights)
    assert server.levels[0].groups == chosen
    assert len({*chosen.values()}) == 2
    engine.begin_round(3)
    FESEM.conclude(server, engine, engine.key())
    for name, state in engine.get_states().items():
        oracle.close(oracle.of_level(FESEM.model.network(state)), centres[chosen[name]])
