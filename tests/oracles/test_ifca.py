"""IFCA (Ghosh, Chung, Yin and Ramchandran, NeurIPS 2020, Algorithm 1), written anew in PyTorch.

ĵ_i = argmin_j F_i(θ_j);   θ_i by steps on F_i from θ_ĵ;   θ_j = mean of the θ_i with ĵ_i = j
"""

import pytest

torch = pytest.importorskip("torch")

import oracle_network as oracle  # noqa: E402
from intarsia.algorithms.femam.fesem import IFCA, Ifca  # noqa: E402


@pytest.mark.parametrize("rows", [*oracle.ROWS])
@pytest.mark.parametrize("weights", ["samples", "clients"])
@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_two_rounds_are_the_paper_s(rows, weights, optimiser):
    blocks = oracle.clients(oracle.ROWS[rows])
    training = {"local_epochs": 3, "optimiser": optimiser, "rate": 0.05}
    options = Ifca(clusters=2, weights=weights, **training, **oracle.NETWORK)
    engine, server = oracle.begun(IFCA, options, blocks, seed=5)
    centres = [oracle.net_of_vector(one) for one in server.levels[0].models]
    for number in (1, 2):
        server = oracle.one_round(IFCA, engine, server, number)
        chosen, own = {}, {}
        for name, block in blocks.items():
            x, y = oracle.tensors(block)
            with torch.no_grad():
                losses = [torch.nn.functional.cross_entropy(net(x), y).item() for net in centres]
            chosen[name] = losses.index(min(losses))
            own[name] = oracle.fit(centres[chosen[name]], block, 3, optimiser, 0.05)
        centres = oracle.centres_of(centres, own, chosen, blocks, weights)
    assert server.levels[0].groups == chosen
    assert len({*chosen.values()}) == 2
    engine.begin_round(3)
    IFCA.conclude(server, engine, engine.key())
    for name, state in engine.get_states().items():
        oracle.close(oracle.of_level(IFCA.model.network(state)), centres[chosen[name]])


def test_the_paper_averages_over_clients_alike():
    assert Ifca().weights == "clients"
