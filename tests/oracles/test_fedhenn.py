"""FedHeNN (Makhija, Han, Ho and Ghosh, ICML 2022), written anew in PyTorch.

    K_i = φ_i(X) φ_i(X)ᵀ,   K̄ = Σ w_i K_i,   F_i(w) + η (1 - CKA(K_i(w), K̄)) by steps

CKA is computed here by the definition of Kornblith et al. (ICML 2019): HSIC(K, L) / √(HSIC(K, K)
HSIC(L, L)) with HSIC(K, L) = tr(K H L H). The points X are what all clients draw from one key.
"""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import oracle_network as oracle  # noqa: E402
from intarsia.algorithms.personalised import fedhenn  # noqa: E402
from intarsia.algorithms.personalised.fedhenn import FEDHENN, FedHeNN  # noqa: E402

POINTS, ETA = 9, 0.8


def hsic(one, other):
    centre = torch.eye(POINTS, dtype=torch.float64) - 1 / POINTS
    return torch.trace(one @ centre @ other @ centre)


def kernel(net, points):
    latent = net.embedding(points)
    return latent @ latent.T


@pytest.mark.parametrize("rows", [*oracle.ROWS])
@pytest.mark.parametrize("weights", ["samples", "clients"])
def test_two_rounds_are_the_paper_s(rows, weights, monkeypatch):
    blocks = oracle.clients(oracle.ROWS[rows])
    drawn = {}  # the points of each key: random numbers, not a computation
    draw = fedhenn._points

    def points_of(options, features, key):
        drawn[key] = draw(options, features, key)
        return drawn[key]

    monkeypatch.setattr(fedhenn, "_points", points_of)
    training = {"local_epochs": 3, "final_epochs": 0, "rate": 0.05}
    options = FedHeNN(
        similarity_weight=ETA, points=POINTS, weights=weights, **training, **oracle.NETWORK
    )
    engine, server = oracle.begun(FEDHENN, options, blocks)
    own = {name: oracle.net_of(one.parameters) for name, one in engine.get_states().items()}
    shares = oracle.weights_of(blocks, weights)
    for number in (1, 2):
        drawn.clear()
        server = oracle.one_round(FEDHENN, engine, server, number)
        (points,) = drawn.values()
        points = torch.from_numpy(np.array(points))
        each = [kernel(net, points).detach() for net in own.values()]
        mean = sum(w * one for w, one in zip(shares, each, strict=True)) / sum(shares)

        def unlike(net, points=points, mean=mean):
            mine = kernel(net, points)
            return ETA * (1 - hsic(mine, mean) / (hsic(mine, mine) * hsic(mean, mean)).sqrt())

        own = {
            name: oracle.fit(own[name], block, 3, "adam", 0.05, more=unlike)
            for name, block in blocks.items()
        }
    for name, state in engine.get_states().items():
        oracle.close(state.parameters, own[name], accuracy=1e-11)
