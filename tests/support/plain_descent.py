"""Gradient descent on a perceptron in plain PyTorch, on a table of its parameters by name."""

from __future__ import annotations

import torch


def forward(w, x):
    for layer in ("embedding.0", "embedding.2", "embedding.4"):
        x = x @ w[f"{layer}.weight"].T + w[f"{layer}.bias"]
        x = x.relu() if layer != "embedding.4" else x
    return x @ w["classifier.weight"].T + w["classifier.bias"]


def loss(w, x, y, base=0.0):
    return torch.nn.functional.cross_entropy(base + forward(w, x), y)


def stepped(w, x, y, steps, rate, *, pull=0.0, to=None, base=0.0, only="", plain=False):
    """Return parameters after steps on the loss and pull/2 times the squared distance to others.

    Those move whose names begin with `only`. `plain`: pull times each parameter's plain distance.
    """
    for _ in range(steps):
        w = {name: values.detach().requires_grad_() for name, values in w.items()}
        value = loss(w, x, y, base)
        for name, values in w.items() if pull else ():
            away = (values - to[name]).square().sum()
            value = value + (pull * away.sqrt() if plain and away > 0 else pull / 2 * away)
        moves = torch.autograd.grad(value, list(w.values()))
        w = {
            name: (values - rate * move * name.startswith(only)).detach()
            for (name, values), move in zip(w.items(), moves, strict=True)
        }
    return w


def mean(each, weights=None):
    weights = [1.0] * len(each) if weights is None else weights
    total = sum(weights)
    return {
        name: sum(weight * own[name] for weight, own in zip(weights, each, strict=True)) / total
        for name in each[0]
    }


def split(vector, like):
    """Return a vector of parameters, in the order of their names, as a table."""
    found, at = {}, 0
    for name in sorted(like):
        size = like[name].size
        found[name] = torch.from_numpy(vector[at : at + size].reshape(like[name].shape).copy())
        at += size
    return found


def flat(w):
    return torch.cat([w[name].flatten() for name in sorted(w)]).numpy()


def tensors(arrays):
    return {name: torch.from_numpy(values) for name, values in arrays.items()}
