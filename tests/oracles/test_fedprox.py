"""FedProx (Li et al., MLSys 2020, Algorithm 2) and, with μ = 0, FedAvg, written anew in PyTorch.

w_k = argmin F_k(w) + μ/2 ‖w - w_t‖²  by steps from w_t,   w_{t+1} = Σ_k p_k w_k / Σ_k p_k
"""

import pytest

torch = pytest.importorskip("torch")

import oracle_network as oracle  # noqa: E402
from intarsia.algorithms.personalised.fedrep import FEDPROX, FedProx  # noqa: E402


@pytest.mark.parametrize("rows", [*oracle.ROWS])
@pytest.mark.parametrize("weights", ["samples", "clients"])
@pytest.mark.parametrize(("optimiser", "pull"), [("sgd", 0.0), ("sgd", 0.7), ("adam", 0.7)])
def test_a_round_is_the_paper_s(rows, weights, optimiser, pull):
    blocks = oracle.clients(oracle.ROWS[rows])
    training = {"local_epochs": 3, "optimiser": optimiser, "rate": 0.05}
    options = FedProx(proximal=pull, weights=weights, **training, **oracle.NETWORK)
    engine, server = oracle.begun(FEDPROX, options, blocks)
    w = oracle.net_of_vector(server.start.shared)
    for number in (1, 2):
        server = oracle.one_round(FEDPROX, engine, server, number)
        own = [oracle.fit(w, one, 3, optimiser, 0.05, pull=pull, to=w) for one in blocks.values()]
        w = oracle.average(own, oracle.weights_of(blocks, weights))
    engine.begin_round(3)
    FEDPROX.conclude(server, engine, engine.key())
    for state in engine.get_states().values():
        oracle.close(state.parameters, w)
