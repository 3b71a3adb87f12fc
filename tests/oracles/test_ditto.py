"""Ditto (Li, Hu, Beirami and Smith, ICML 2021, Algorithm 1), written anew in PyTorch.

w_k by steps on F_k from w_t;   v_k by steps on F_k(v) + λ/2 ‖v - w_t‖²;   w_{t+1} = mean w_k
"""

import pytest

torch = pytest.importorskip("torch")

import oracle_network as oracle  # noqa: E402
from intarsia.algorithms.personalised.ditto import DITTO, Ditto  # noqa: E402


@pytest.mark.parametrize("rows", [*oracle.ROWS])
@pytest.mark.parametrize("weights", ["samples", pytest.param("clients", marks=pytest.mark.slow)])
@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_two_rounds_are_the_paper_s(rows, weights, optimiser):
    blocks = oracle.clients(oracle.ROWS[rows])
    training = {"local_epochs": 2, "own_epochs": 3, "optimiser": optimiser, "rate": 0.05}
    options = Ditto(pull=0.6, weights=weights, **training, **oracle.NETWORK)
    engine, server = oracle.begun(DITTO, options, blocks)
    w = oracle.net_of_vector(server.start.shared)
    v = dict.fromkeys(blocks, w)
    for number in (1, 2):
        server = oracle.one_round(DITTO, engine, server, number)
        for name, block in blocks.items():
            v[name] = oracle.fit(v[name], block, 3, optimiser, 0.05, pull=0.6, to=w)
        each = [oracle.fit(w, block, 2, optimiser, 0.05) for block in blocks.values()]
        w = oracle.average(each, oracle.weights_of(blocks, weights))
    for name, state in engine.get_states().items():
        oracle.close(state.parameters, v[name])
    oracle.close(oracle.shared_at_a_client(engine, server), w)
