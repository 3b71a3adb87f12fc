"""What the oracles share: a network and its training as PyTorch has them, and small clients.

Nothing here is of the package but what runs its side: the network is torch's own layers, a step
is torch.optim's, and an average is written out. Batches hold all rows of a client, so that no
order of rows has a part in it.
"""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import nn

import federations
from intarsia.algorithms.networks import parameter_sharing
from intarsia.core.block import Block, Labels

LABELS = Labels("multiclass", ("a", "b", "c"))
FEATURES, HIDDEN, LATENT = 4, 5, 3
ROWS = {"equal": (14, 14, 14), "unequal": (5, 12, 31)}  # of each client
NETWORK = {
    "hidden": HIDDEN, "latent": LATENT, "precision": "double", "engine": "loop", "batch": 1000,
}  # fmt: skip


class Net(nn.Module):
    """A perceptron with two hidden layers, and a linear classifier on what it gives."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Sequential(
            *(nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU()),
            nn.Linear(HIDDEN, LATENT),
        )
        self.classifier = nn.Linear(LATENT, 3)
        self.double()

    def forward(self, x):
        return self.classifier(self.embedding(x))


def clients(rows, features=FEATURES):
    """Return three clients with so many rows each, of populations that differ."""
    rng = np.random.default_rng(3)
    made = {}
    for number, count in enumerate(rows):
        y = np.arange(count) % 3
        x = rng.normal(size=(3, features))[y] + rng.normal(size=(count, features))
        names = tuple(f"f{j}" for j in range(features))
        made[f"c{number}"] = Block(100 * number + np.arange(count), names, x, y + 0.0)
    return made


def tensors(block):
    return torch.from_numpy(block.x), torch.from_numpy(block.y.astype(np.int64))


def begun(algorithm, options, blocks, seed=0):
    """Return the package's engine and server before the first round."""
    return federations.started(algorithm, options, blocks, LABELS, seed)


def one_round(algorithm, engine, server, number=1, there=None):
    engine.begin_round(number, there)
    return algorithm.round(server, engine, engine.key())[0]


def net_of(arrays):
    """Return a network with these parameters, by name."""
    net = Net()
    net.load_state_dict({name: torch.from_numpy(np.array(one)) for name, one in arrays.items()})
    return net


def net_of_vector(vector):
    """Return a network from one vector of parameters, in the order of their names."""
    net = Net()
    state, at = net.state_dict(), 0
    for name in sorted(state):
        size = state[name].numel()
        state[name] = torch.from_numpy(vector[at : at + size].copy()).view(state[name].shape)
        at += size
    net.load_state_dict(state)
    return net


def vector_of(net):
    state = net.state_dict()
    return torch.cat([state[name].flatten() for name in sorted(state)]).numpy()


def fit(net, block, steps, optimiser, rate, *, pull=0.0, to=None, parts=("",), more=None):
    """Return the network after steps on its mean cross-entropy and pull/2 ‖w - to‖².

    `parts` are the beginnings of the names of what moves; `more(net)` is added to the objective.
    """
    net = copy.deepcopy(net)
    moving = {n: p for n, p in net.named_parameters() if n.startswith(parts)}
    kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[optimiser]
    step, (x, y) = kind(moving.values(), lr=rate), tensors(block)
    for _ in range(steps):
        step.zero_grad()
        value = nn.functional.cross_entropy(net(x), y)
        if pull:
            there = dict(to.named_parameters())
            value = value + pull / 2 * sum(
                (own - there[name].detach()).square().sum() for name, own in moving.items()
            )
        if more is not None:
            value = value + more(net)
        value.backward()
        step.step()
    return net


def average(nets, weights):
    """Return the network of the weighted average of parameters."""
    total, made = sum(weights), copy.deepcopy(nets[0])
    states = [net.state_dict() for net in nets]
    made.load_state_dict(
        {
            name: sum(w * state[name] for w, state in zip(weights, states, strict=True)) / total
            for name in states[0]
        }
    )
    return made


def weights_of(blocks, kind):
    return [len(block.y) if kind == "samples" else 1.0 for block in blocks.values()]


def close(arrays, net, accuracy=1e-12):
    """Check that parameters by name are those of a network."""
    for name, own in net.state_dict().items():
        np.testing.assert_allclose(
            arrays[name], own.numpy(), rtol=accuracy, atol=accuracy, err_msg=name
        )


def split_vector(vector, module, prefix):
    """Return a module's parameters from one vector, in the order of their full names."""
    state, found, at = module.state_dict(), {}, 0
    for name in sorted(state, key=lambda own: prefix + own):
        size = state[name].numel()
        found[name] = torch.from_numpy(vector[at : at + size].copy()).view(state[name].shape)
        at += size
    return found


def centres_of(centres, own, chosen, blocks, weights):
    """Return the average over each cluster; that of a cluster without clients stays."""
    shares = dict(zip(blocks, weights_of(blocks, weights), strict=True))
    found = []
    for number, centre in enumerate(centres):
        members = [name for name in own if chosen[name] == number]
        nets, each = [own[name] for name in members], [shares[name] for name in members]
        found.append(average(nets, each) if members else centre)
    return found


def of_level(arrays):
    """Return the parameters of the one level of an additive network."""
    return {name.removeprefix("levels.1."): own for name, own in arrays.items()}


def shared_at_a_client(engine, server):
    """Return the parameters of what all share, as a client opens them after the rounds."""
    engine.begin_round(engine.books.round + 1)
    engine.ask(parameter_sharing.take_start, parameter_sharing.broadcast(server, engine))
    return next(iter(engine.get_states().values())).parameters
