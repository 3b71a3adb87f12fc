"""L2GD (Hanzely and Richtárik, 2020), local steps and the step to the mean, anew in PyTorch.

w_i by steps on F_i;   with probability p:  w_i ← w_i - m (w_i - w̄)
"""

import pytest

torch = pytest.importorskip("torch")

import oracle_network as oracle  # noqa: E402
from intarsia.algorithms.personalised.l2gd import L2GD, L2gd  # noqa: E402


@pytest.mark.parametrize("rows", [*oracle.ROWS])
@pytest.mark.parametrize("weights", ["samples", "clients"])
@pytest.mark.parametrize("mixing", [0.3, 1.0])
def test_two_rounds_are_the_paper_s(rows, weights, mixing):
    blocks = oracle.clients(oracle.ROWS[rows])
    training = {"local_epochs": 3, "final_epochs": 2, "rate": 0.05}
    options = L2gd(mixing=mixing, weights=weights, **training, **oracle.NETWORK)
    engine, server = oracle.begun(L2GD, options, blocks)
    own = {name: oracle.net_of(one.parameters) for name, one in engine.get_states().items()}
    for number in (1, 2):
        server = oracle.one_round(L2GD, engine, server, number)
        own = {name: oracle.fit(own[name], one, 3, "adam", 0.05) for name, one in blocks.items()}
        mean = oracle.average([*own.values()], oracle.weights_of(blocks, weights))
        own = {name: oracle.average([net, mean], [1 - mixing, mixing]) for name, net in own.items()}
    for name, state in engine.get_states().items():
        oracle.close(state.parameters, own[name])
    engine.begin_round(3)
    L2GD.conclude(server, engine, engine.key())
    for name, state in engine.get_states().items():
        oracle.close(state.parameters, oracle.fit(own[name], blocks[name], 2, "adam", 0.05))
