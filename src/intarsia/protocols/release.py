"""Release a trained model with noise: how private runs of HyFDCA and CoCoA end.

1. the model is certified; one that is farther from the optimum than the noise was measured for is
   not released
2. each client adds its share of the noise to its share of the weights: owners of a feature split
   the variance; the server gets the sealed total, and no total without the noise
3. the clients keep the weights with the noise, so that every later score is that of the released
   model; the server reads the same weights

The owners of a feature know its weight without the noise, from training. With the server they could
take the noise of their own features away; the weights of other features stay hidden.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from intarsia.core.algorithm import ClientFunction, Clients, Conclusion, Info, PerFeature, Release
from intarsia.core.block import Array
from intarsia.errors import ConvergenceError
from intarsia.protocols.noise import NoiseShare, spend

__all__ = ["NoisyWeights", "ShareOut", "conclude", "with_noise"]


@dataclass(frozen=True)
class ShareOut:
    """Ask for the client's share of the weights, with noise."""


@dataclass(frozen=True)
class NoisyWeights:
    """A client's share of the weights with its share of the noise, or their total: the model."""

    w: PerFeature


def conclude(
    info: Info,
    clients: Clients,
    release: Release,
    *,
    add_noise: ClientFunction,
    keep_noisy: ClientFunction,
) -> Conclusion:
    """Reveal the certified model with noise; its certificate does not hold for it and is left out.

    Raises
    ------
    ConvergenceError
        If the model is too far from the optimum.
    """
    assert info.primal is not None
    assert info.dual is not None
    gap = info.primal - info.dual
    if not gap <= release.gap:
        raise ConvergenceError(
            f"The model is not released: its duality gap is {gap:.2e} and the noise was measured "
            f"for {release.gap:.2e} at most; raise experiment.rounds, or experiment.tolerance "
            "(which adds noise)."
        )
    noisy = clients.sum(add_noise, dict.fromkeys(clients.ids, ShareOut()))
    clients.ask(keep_noisy, dict.fromkeys(clients.ids, NoisyWeights(noisy.w)))
    # discloses the model with noise: the server may predict with it
    return Conclusion(Info(phase=info.phase), clients.reveal(noisy.w))


def with_noise(w: Array, feature_share: Array, noise: NoiseShare) -> tuple[NoiseShare, Array]:
    """Return a client's share of weights and noise, (outputs, features), and the spent share.

    Parameters
    ----------
    w
        (outputs, features) the weights, equal at all owners.
    feature_share
        (features,) 1 / owners.
    noise
        The client's share.
    """
    spent, normal = spend(noise, w.shape)
    return spent, w * feature_share + noise.deviation * np.sqrt(feature_share) * normal
