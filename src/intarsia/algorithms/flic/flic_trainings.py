"""How the parts of a network of FLIC train: which of them, on which terms, how long; see `flic`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from intarsia.algorithms.flic import flic_line
from intarsia.algorithms.flic.objective import Meta, draws_noise, misalignment, objective
from intarsia.algorithms.networks.client_network import training_of
from intarsia.algorithms.networks.parameter_sharing import Client
from intarsia.maths.training.local_training import LocalTraining, Loss

__all__ = ["Trainings", "trainings_of"]


@dataclass(frozen=True, eq=False)
class Trainings:
    """How the parts of a client's network train; kept, as compiled functions belong to them."""

    pretraining: LocalTraining
    realignment: LocalTraining
    local: LocalTraining
    final: LocalTraining
    shared: LocalTraining | None  # α, if it moves apart, and the anchors, if they are read
    anchors: LocalTraining | None


@lru_cache(maxsize=16)
def _trainings(options: Any, outputs: int, meta: Meta) -> Trainings:
    if outputs == 1:
        before = flic_line.misalignment(options)
        during = after = flic_line.objective(options)
    else:
        before, during = misalignment(options, meta), objective(options, meta)
        after = objective(options, meta, every=options.anchor_classes == "all")

    def over(loss: Loss, *parts: str, epochs: int) -> LocalTraining:
        first = loss is before
        noisy = draws_noise(options, pretraining=first)
        return training_of(
            options,
            outputs,
            loss,
            tuple(f"{part}.*" for part in parts),
            epochs=epochs,
            batch=options.pretraining_batch if first else options.batch,
            noise={"noise": (options.latent,)} if noisy else {},
        )

    drawn_to = options.calibration_weight > 0 or options.alignment_weight > 0
    anchors = ("anchors",) if drawn_to else ()
    head = ("classifier", "shared") if options.variant == "hl" else ("classifier",)
    own, layer = {
        "fedrep": (head[:1], head[1:]),
        "fedavg-ft": (head, ()),
        "l2gd": (head, ("common",)),
    }[options.scheme]
    own, epochs = ("embedding", *own), options.shared_epochs
    return Trainings(
        pretraining=over(before, "embedding", epochs=options.pretraining_epochs),
        realignment=over(before, "embedding", epochs=options.alignment_epochs),
        local=over(during, *own, epochs=options.local_epochs),
        final=over(during, *own, epochs=options.final_epochs),
        shared=over(after, *layer, *anchors, epochs=epochs) if layer or anchors else None,
        anchors=over(after, *anchors, epochs=epochs) if anchors else None,
    )


def trainings_of(client: Client) -> Trainings:
    """Return how the parts of a client's network train."""
    return _trainings(client.options, client.outputs, client.anchors)
