"""FedRep (Collins, Hassani, Mokhtari and Shakkottai, ICML 2021), written anew in PyTorch.

h_i by τ_h steps with φ fixed;   φ_i by τ_φ steps with h_i fixed;   φ = mean φ_i
"""

import pytest

torch = pytest.importorskip("torch")

import oracle_network as oracle  # noqa: E402
from intarsia.algorithms.personalised.fedrep import FEDREP, FedRep  # noqa: E402


@pytest.mark.parametrize("rows", [*oracle.ROWS])
@pytest.mark.parametrize("weights", ["samples", "clients"])
@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_two_rounds_are_the_paper_s(rows, weights, optimiser):
    blocks = oracle.clients(oracle.ROWS[rows])
    training = {"local_epochs": 3, "shared_epochs": 2, "final_epochs": 0}
    options = FedRep(weights=weights, optimiser=optimiser, rate=0.05, **training, **oracle.NETWORK)
    engine, server = oracle.begun(FEDREP, options, blocks)
    own = {name: oracle.net_of(one.parameters) for name, one in engine.get_states().items()}
    start = oracle.split_vector(server.start.shared, oracle.Net().embedding, "embedding.")
    for net in own.values():
        net.embedding.load_state_dict(start)
    for number in (1, 2):
        server = oracle.one_round(FEDREP, engine, server, number)
        for name, block in blocks.items():
            head = oracle.fit(own[name], block, 3, optimiser, 0.05, parts=("classifier.",))
            own[name] = oracle.fit(head, block, 2, optimiser, 0.05, parts=("embedding.",))
        common = oracle.average([*own.values()], oracle.weights_of(blocks, weights))
        for net in own.values():
            net.embedding.load_state_dict(common.embedding.state_dict())
    engine.begin_round(3)
    FEDREP.conclude(server, engine, engine.key())
    for name, state in engine.get_states().items():
        oracle.close(state.parameters, own[name])
