"""pFedMe (Dinh, Tran and Nguyen, NeurIPS 2020, Algorithm 1), written anew in PyTorch.

R times:  θ by K steps on F_i(θ) + λ/2 ‖θ - w_i‖²,   w_i ← w_i - ηλ (w_i - θ)
w ← (1 - β) w + β mean w_i
"""

import copy

import pytest

torch = pytest.importorskip("torch")

import oracle_network as oracle  # noqa: E402
from intarsia.algorithms.personalised.pfedme import PFEDME, PFedMe  # noqa: E402

PULL, STEP, OUTER, INNER = 3.0, 0.05, 4, 3  # λ, η, R, K


@pytest.mark.parametrize("rows", [*oracle.ROWS])
@pytest.mark.parametrize("weights", ["samples", pytest.param("clients", marks=pytest.mark.slow)])
@pytest.mark.parametrize("mixing", [1.0, 0.4])
def test_two_rounds_are_the_paper_s(rows, weights, mixing):
    blocks = oracle.clients(oracle.ROWS[rows])
    own = {"pull": PULL, "local_rounds": OUTER, "steps": INNER, "step_size": STEP, "rate": 0.05}
    options = PFedMe(mixing=mixing, weights=weights, **own, **oracle.NETWORK)
    engine, server = oracle.begun(PFEDME, options, blocks)
    w = oracle.net_of_vector(server.start.shared)
    for number in (1, 2):
        server = oracle.one_round(PFEDME, engine, server, number)
        thetas, each = {}, []
        for name, block in blocks.items():
            mine, theta = copy.deepcopy(w), w
            for _ in range(OUTER):
                theta = oracle.fit(theta, block, INNER, "sgd", 0.05, pull=PULL, to=mine)
                with torch.no_grad():
                    for one, other in zip(mine.parameters(), theta.parameters(), strict=True):
                        one -= STEP * PULL * (one - other)
            thetas[name] = theta
            each.append(mine)
        average = oracle.average(each, oracle.weights_of(blocks, weights))
        w = oracle.average([w, average], [1 - mixing, mixing])
    for name, state in engine.get_states().items():
        oracle.close(state.parameters, thetas[name])
    oracle.close(oracle.shared_at_a_client(engine, server), w)
