"""FLIC: clients with nothing in common but the labels, aligned in a latent space.

Rakotomamonjy, Vono, Medina Ruiz and Ralaivola, "Personalised Federated Learning On Heterogeneous
Feature Spaces", Transactions on Machine Learning Research 2024: Algorithm 1 with the local scheme
of FedRep. Client i has its own features, an embedding φ_i of them and a classifier β_i; all share
anchors µ_c = N(v_c, e·I), one for each class c, and in the variant "hl" a hidden layer α:

    F_i = 1/n_i Σ_j l(y_j, β_i∘α∘φ_i(x_j))
          + λ1 Σ_c W₂²(µ_c, N(m_c, S_c)) + λ2 Σ_c 1/J Σ_j l(c, β_i∘α(Z_c,j)),   Z_c,j ~ µ_c    (3)

m_c and S_c are mean and covariance of the embedded samples of class c in a batch, c runs over the
client's classes, l is the cross-entropy. Before the first round every client trains φ_i on the
second term alone. A round, at the clients that are there:

1. local training: open α and the v_c; some epochs on (φ_i, β_i), all else fixed
2. shared step: one step (or some epochs) on α and the v_c, all else fixed; send their change
3. the server averages the changes. It never reads α or an anchor: with a fixed covariance the
   Wasserstein barycentre of Gaussians is the average of their means, a sum over the clients

At the end all clients take the last α and v_c and go through step 1 once more.

In the variant "class" there is no α: anchors are all that is shared.

Departures from the paper
- Algorithm S2 has steps that are not those of (3): its sums over a batch are not divided by their
  number but times n_i, and its anchors' terms for α and β have the opposite sign and a second η.
  Here all steps descend (3).
- One standard normal number ξ_j for each sample serves all classes, Z_c,j = v_c + √e ξ_j; each
  term has the same distribution as with numbers of their own.
- W₂² of a batch has infinite slopes where S_c is singular, as it is for fewer samples than the
  latent space is wide; √(λ + 1e-4) stands for the roots √λ of its eigenvalues.

Where the authors' code (github.com/arakotom/flic) departs from the text, the default is the text:
- `alignment` = "sample": the statistics of a batch against those of a fresh sample of the anchors
  of the same size, which is larger by what the sample strays
- `anchor_scale` = 10, the "very large variance" of the text; 1 did better on BCI-common and is the
  default
- `weight_decay` = 1e-3 on α and β
- `shared_from` = 21 of 50 rounds: α stays as it was drawn until then
- `shared_epochs` = 1: an epoch on α and the anchors in place of one step
- `anchor_classes` = "all": step 2 takes the third term over all classes, not the client's own
- its further epoch on the second term, at all clients after every round, is not here: in a round
  there is nobody to ask but those who take part
- it takes a fresh optimiser (Adam) in each round, as is done here; the paper does not say
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from intarsia.algorithm import (
    Algorithm,
    Clients,
    Conclusion,
    Info,
    RandomKey,
    Visit,
    cohort_function,
    evolve,
)
from intarsia.algorithms import shared_parts
from intarsia.algorithms.client_network import (
    Architecture,
    check_clients,
    check_options,
    class_count,
    cross_entropy,
    training_of,
)
from intarsia.algorithms.embeddings import Kind
from intarsia.algorithms.shared_parts import (
    Change,
    Client,
    Ready,
    Server,
    Start,
    averaged,
    certify,
    change,
    concluded,
    init_client,
    network,
    opened,
    part_of_loss,
    predict,
    send_start,
    start,
    told,
    trained,
)
from intarsia.data import Schema
from intarsia.maths.gaussians import class_gaussians, factored_bures_squared, symmetric_root
from intarsia.maths.local_training import Batch, LocalTraining
from intarsia.maths.tensors import Tensor, nn, torch

__all__ = ["FLIC", "Flic"]

_SMOOTHING = 1e-4  # ε in √(λ + ε)


@dataclass(frozen=True, kw_only=True)
class Flic:
    """Hyperparameters, with the paper's meaning and, but for the anchors' scale, its defaults."""

    variant: Literal["class", "hl"] = "hl"  # hl: with a hidden layer α that all share
    alignment_weight: float = 1e-3  # λ1
    calibration_weight: float = 1e-3  # λ2
    local_epochs: int = 10  # M
    pretraining_epochs: int = 100  # of φ, before the first round
    shared_epochs: int = 0  # of α and the anchors after local training; 0: one step
    shared_from: int = 1  # the round in which α starts to train
    final_epochs: int = 10  # of φ and β at all clients after the last round
    rate: float = 1e-3  # of Adam
    weight_decay: float = 0.0  # on α and β
    batch: int = 100
    pretraining_batch: int = 100
    embedding: Kind = "perceptron"  # what φ is; "convolutional" for images
    hidden: int = 64  # units of a perceptron's two hidden layers
    latent: int = 64  # k, the width of the latent space
    anchor_scale: float = 1.0  # standard deviation that the v_c are drawn with
    anchor_variance: float = 1.0  # e
    anchor_classes: Literal["held", "all"] = "held"
    alignment: Literal["gaussian", "sample"] = "gaussian"
    precision: Literal["single", "double"] = "single"
    engine: Literal["auto", "loop", "vmap", "compiled"] = "auto"

    def __post_init__(self) -> None:
        check_options(
            self,
            counts=(
                "local_epochs",
                "shared_from",
                "batch",
                "pretraining_batch",
                "hidden",
                "latent",
            ),
            not_negative=(
                "alignment_weight",
                "calibration_weight",
                "pretraining_epochs",
                "shared_epochs",
                "final_epochs",
                "weight_decay",
                "anchor_scale",
                "anchor_variance",
            ),
        )

    @property
    def loss(self) -> str:
        """Return the loss that the scores are graded by: they are log-odds."""
        return "logistic"

    @property
    def architecture(self) -> Architecture:
        """Return what a client's network is made of."""
        layer = self.variant == "hl"
        return Architecture(
            embedding=self.embedding,
            hidden=self.hidden,
            latent=self.latent,
            layer=layer,
            anchors=True,
        )

    @property
    def shared_parts(self) -> tuple[str, ...]:
        """Return which parameters all clients share: the anchors' means, and α."""
        return ("anchors.*", "shared.*")


# ---- the objective


def _misalignment(options: Flic, model: nn.Module, latent: Tensor, batch: Batch) -> Tensor:
    """Return Σ_c W₂²(µ_c, N(m_c, S_c)) over the classes in a batch."""
    means, y = model.anchors.means, batch["y"]
    classes = torch.arange(len(means), device=y.device)
    share = (y[:, None] == classes).to(latent.dtype) * batch["weight"][:, None]
    found, covariances = class_gaussians(latent, share)
    deviation = math.sqrt(options.anchor_variance)
    if options.alignment == "sample":
        sample = means[y] + deviation * batch["noise"]
        means, others = class_gaussians(sample, share)
        factor = symmetric_root(others.detach())  # a shift of the v_c does not change it
    else:
        factor = deviation * torch.eye(latent.shape[1], dtype=latent.dtype, device=y.device)
    away = (found - means).square().sum(-1)
    each = away + factored_bures_squared(covariances, factor, _SMOOTHING)
    return (each * (share.sum(0) > 0)).sum()


def _miscalibration(options: Flic, model: nn.Module, batch: Batch) -> Tensor:
    """Return Σ_c 1/J Σ_j l(c, β∘α(Z_c,j)) over the classes that are asked for."""
    noise = math.sqrt(options.anchor_variance) * batch["noise"]
    points = model.anchors.means + noise[:, None, :]  # (rows, classes, k)
    chances = model.scores(points).log_softmax(-1).diagonal(dim1=1, dim2=2)  # (rows, classes)
    weight = batch["weight"] / batch["weight"].sum()
    return -(weight @ chances * batch["classes"]).sum()


def _objective(options: Flic, *, pretraining: bool) -> Callable[[nn.Module, Batch], Any]:
    """Return F_i of a batch, or its second term alone."""

    def aligned(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        latent = model.embedding(batch["x"])
        return torch.zeros_like(batch["weight"]), _misalignment(options, model, latent, batch)

    def complete(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        latent = model.embedding(batch["x"])
        each = cross_entropy(model.scores(latent), batch["y"])
        penalty = torch.zeros_like(each.sum())
        if options.alignment_weight > 0:
            away = _misalignment(options, model, latent, batch)
            penalty = penalty + options.alignment_weight * away
        if options.calibration_weight > 0:
            unsure = _miscalibration(options, model, batch)
            penalty = penalty + options.calibration_weight * unsure
        return each, penalty

    return aligned if pretraining else complete


@dataclass(frozen=True, eq=False)
class _Trainings:
    """How the parts of a client's network train; kept, as compiled functions belong to them."""

    pretraining: LocalTraining | None
    local: LocalTraining
    final: LocalTraining | None
    shared: LocalTraining | None  # α and the anchors, of these what the objective reads
    anchors: LocalTraining | None


@lru_cache(maxsize=16)
def _trainings(options: Flic, outputs: int) -> _Trainings:
    def over(*parts: str, epochs: int, pretraining: bool = False) -> LocalTraining:
        sampled = options.alignment == "sample" and (pretraining or options.alignment_weight > 0)
        noisy = sampled or (options.calibration_weight > 0 and not pretraining)
        return training_of(
            options,
            outputs,
            _objective(options, pretraining=pretraining),
            tuple(f"{part}.*" for part in parts),
            epochs=epochs,
            batch=options.pretraining_batch if pretraining else options.batch,
            noise={"noise": (options.latent,)} if noisy else {},
        )

    before, after, last = options.pretraining_epochs, options.final_epochs, options.shared_epochs
    drawn_to = options.alignment_weight > 0 or options.calibration_weight > 0
    anchors = ("anchors",) if drawn_to else ()
    layer = ("shared",) if options.variant == "hl" else ()
    own = ("embedding", "classifier")
    return _Trainings(
        pretraining=over("embedding", epochs=before, pretraining=True) if before else None,
        local=over(*own, epochs=options.local_epochs),
        final=over(*own, epochs=after) if after else None,
        shared=over(*layer, *anchors, epochs=last) if layer or anchors else None,
        anchors=over(*anchors, epochs=last) if anchors else None,
    )


# ---- at the clients


@cohort_function
def pretrain(visits: Sequence[Visit]) -> list[tuple[Client, Ready]]:
    """Align the embeddings with the anchors."""
    training = _trainings(visits[0][0].options, visits[0][0].outputs).pretraining
    return [(one.client, Ready()) for one in trained(training, opened(visits), "local", _held)]


@cohort_function
def local_training(visits: Sequence[Visit]) -> list[tuple[Client, Change]]:
    """Train φ and β, then take the step on α and the anchors; send the change of these."""
    options = visits[0][0].options
    trainings = _trainings(options, visits[0][0].outputs)
    # step 1: local training
    local = trained(trainings.local, opened(visits), "local", _held)
    # step 2: shared step
    moves = visits[0][2].round >= options.shared_from
    shared = trainings.shared if moves else trainings.anchors
    asked = _every if options.anchor_classes == "all" else _held
    moved = trained(shared, local, "shared", asked)
    return [(one.client, change(one, after)) for one, after in zip(local, moved, strict=True)]


@cohort_function
def personalise(visits: Sequence[Visit]) -> list[tuple[Client, Ready]]:
    """Train φ and β to the last α and anchors."""
    training = _trainings(visits[0][0].options, visits[0][0].outputs).final
    return [(one.client, Ready()) for one in trained(training, opened(visits), "local", _held)]


def _held(client: Client) -> Mapping[str, Tensor]:
    """Return the classes whose anchors the classifier is to know: the client's own."""
    kind = client.parameters["classifier.bias"].dtype
    return {"classes": torch.from_numpy(client.held.astype(kind))}


def _every(client: Client) -> Mapping[str, Tensor]:
    """Return all classes, as those whose anchors the classifier is to know."""
    return {"classes": torch.ones_like(_held(client)["classes"])}


# ---- at the server


def init_server(options: Flic, schema: Schema, rng: RandomKey) -> Server:
    """Return the server's state before the set-up.

    Raises
    ------
    FederationError
        If clients have samples in common, or one has no labels.
    """
    check_clients(schema, "flic")
    normal = rng.fold_in("anchors").generator().normal(size=(class_count(schema), options.latent))
    means = options.anchor_scale * normal
    return start(options, schema, rng, given={"anchors.means": means})


def setup(server: Server, clients: Clients, rng: RandomKey) -> Server:
    """Start from what the server drew; align the embeddings with the anchors."""
    server = shared_parts.setup(server, clients, rng)
    if server.options.pretraining_epochs:
        clients.ask(pretrain, told(server, clients))
    return server


def round(server: Server, clients: Clients, rng: RandomKey) -> tuple[Server, Info]:
    """Let the clients that are there train; average the changes of what all share."""
    server = evolve(server, rounds=server.rounds + 1)
    # steps 1 and 2: local training, shared step
    total = clients.sum(local_training, told(server, clients))
    # step 3: averages
    return averaged(server, total, clients), Info(phase="averaging")


def conclude(server: Server, clients: Clients, rng: RandomKey) -> Conclusion:
    """Let every client train to what all share at the end; the networks stay at the clients."""
    return concluded(server, clients, personalise)


FLIC = Algorithm(
    name="flic",
    hyperparameters=Flic,
    init_server=init_server,
    init_client=init_client,
    setup=setup,
    round=round,
    certify=certify,
    conclude=conclude,
    predict=predict,
    additive=False,
    linear=False,
    network=network,
    client_functions=(send_start, pretrain, local_training, personalise, part_of_loss),
    states=(Server, Client, Flic, Start),
)
