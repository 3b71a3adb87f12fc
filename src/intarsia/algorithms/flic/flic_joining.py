"""What a new client of FLIC learns from what a finished federation shares (S1.4 of its paper).

Its own are an embedding φ and a classifier β; the hidden layer α and the anchors stay as they are.

1. align: some epochs on φ, by the second term of `flic`'s objective alone
2. calibrate: some epochs on β, by the third term alone: it needs no row of the client
3. learn: some epochs on φ and β, by all three

Steps 1 and 3 are those of the federation's clients; step 2 is not in the paper, which does not say
how β starts. A client of the federation has had rounds for it, a new one starts with less.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from intarsia.algorithms.flic import flic_line
from intarsia.algorithms.flic.algorithm import Flic, personalise, pretrain
from intarsia.algorithms.flic.objective import Meta, calibration
from intarsia.algorithms.networks.client_network import training_of
from intarsia.algorithms.networks.parameter_sharing import Client, Shared, opened, trained
from intarsia.core.algorithm import Clients, Ready, Visit, cohort_function
from intarsia.core.block import Array
from intarsia.maths.training.local_training import LocalTraining

__all__ = ["join"]


@lru_cache(maxsize=16)
def _training(options: Flic, outputs: int, meta: Meta) -> LocalTraining:
    loss = flic_line.calibration(options) if outputs == 1 else calibration(options, meta)
    return training_of(
        options,
        outputs,
        loss,
        ("classifier.*",),
        epochs=options.pretraining_epochs,
        noise={"noise": (options.latent,)},
    )


@cohort_function
def calibrate(visits: Sequence[Visit]) -> list[tuple[Client, Ready]]:
    """Train β on samples of the anchors."""
    first = visits[0][0]
    training = _training(first.options, first.outputs, first.anchors)
    return [(one.client, Ready()) for one in trained(training, opened(visits), "local")]


def join(clients: Clients, options: Flic, shared: Array) -> None:
    """Let new clients learn from what all share; `final_epochs` are those of step 3."""
    told: dict[str, Any] = dict.fromkeys(clients.ids, Shared(shared=shared, round=0))
    if options.pretraining_epochs:
        clients.ask(pretrain, told)
        clients.ask(calibrate, told)
    clients.ask(personalise, told)
