"""Write docs/hyperparameters.md: each algorithm's keys, from its code, and when to change them.

python docs/hyperparameters.py          # print the page
python docs/hyperparameters.py --write  # write it

Keys, defaults and ranges are those of the dataclass that an algorithm makes of `[algorithm]`. What
a key means and when to change it stands below, once for all algorithms that have it; a name with a
dot is of one algorithm alone.
"""

from __future__ import annotations

import dataclasses
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from intarsia.core import settings
from intarsia.training.registry import algorithm_named, algorithm_names

PAGE = Path(__file__).parent / "hyperparameters.md"
_HEAD = """# Hyperparameters

All keys of `[algorithm]` by algorithm: default, what is allowed, what it means, and when to change
it. The table is made from the code by `python docs/hyperparameters.py --write`. What an algorithm
does with its keys stands on its own page: [hyfdca](hyfdca.md), [flic](flic.md), [femam](femam.md),
[hyfem](hyfem.md), [own-networks](cohort.md). `intarsia tune` looks for values
([tuning.md](tuning.md)).
"""

# key, or algorithm.key → what it means; when to change it
SAID: dict[str, tuple[str, str]] = {
    "a": ("a of the rate a/(b + √t) in round t", "lower where the objective rises"),
    "aggregation": ("share of the rounds with a step to the mean", "lower to save traffic"),
    "alignment": ("distance of a class's points to its anchor", "see flic.md; costs differ"),
    "alignment_epochs": (
        "epochs on the alignment alone after each round",
        "1 where embeddings drift from the anchors between rounds",
    ),
    "alignment_weight": (
        "λ1 of the distance to the anchors",
        "raise where clients are few in rows and alike in classes; 0 leaves it out",
    ),
    "anchor_average": ("how learned covariances are averaged", "barycentre: the paper's mean"),
    "anchor_classes": ("classes of the third term in the shared step", "all: the authors' code"),
    "anchor_covariance": ("whether anchors' covariances are learned", "with many rows a class"),
    "anchor_scale": ("deviation that anchors are drawn with", "10 where classes mix"),
    "anchor_variance": ("e of the anchors' covariance e·I", "with the scale of the features"),
    "ascents": ("dual ascents in a round of shares, at most", "hardly ever"),
    "b": ("b of the rate a/(b + √t)", "raise where the first rounds overshoot"),
    "barycentre_steps": ("exchanges that find a barycentre in a round", "lower to save traffic"),
    "batch": ("rows of a gradient step", "lower for few rows a client; raise for speed"),
    "block_dropout": (
        "chance that a row's block is left out in a step",
        "0 where all clients hold the same blocks",
    ),
    "blocks": ("feature blocks that the networks take", "common: only what all clients hold"),
    "calibrated": ("whether scores are scaled before a level begins", "false: the paper"),
    "calibration_weight": (
        "λ2 of the classifier's loss on points of the anchors",
        "raise where clients lack classes; 0 leaves it out",
    ),
    "candidates": ('numbers of clusters that "auto" tries', "to the range that you expect"),
    "class_weights": (
        "weight of a client's rows by how many its class has",
        "balanced where few rows are of the class that matters",
    ),
    "cluster_on": ("parameters by which clients are clustered", "last: the authors' code"),
    "clustering": ("how clusters are found", "nearest: the paper; loss: IFCA, server reads none"),
    "clusters": ("number of clusters", "to how many groups you expect"),
    "combination": ("what is made of the levels' scores", "mean: the authors' code"),
    "cost": (
        "what a matching of neurons minimises",
        "pfnm, marginal: posteriors that open neurons",
    ),
    "criterion": ("what a level is to lower", "loss where classes are few and scores matter"),
    "decay": ("factor of the rate from round to round", "1 for few rounds; lower for many"),
    "device": (
        "auto, or where networks train as torch names it: cpu, cuda, cuda:1, mps",
        "auto where there is an accelerator",
    ),
    "dropout": ("chance that a unit of the embedding is left out", "0.5 where clients overfit"),
    "embedding": (
        "what takes features to the latent space: perceptron, convolutional; where the features are"
        " the same also linear, residual, residual-batch; or your own, module:name (cohort.md)",
        "convolutional, residual for images",
    ),
    "engine": (
        "how clients of this process train together",
        "loop to debug; compiled for long runs",
    ),
    "equal_starts": ("whether a level's models start alike", "false: each drawn for itself"),
    "errors": ("standard errors of the weights", "true for inference (coefficients.md)"),
    "evidence": ("standard errors by which a level must help", "raise to keep fewer levels"),
    "extractor": ("kind of the blocks' extractors", "where auto reads a block's shape wrongly"),
    "extractor_hidden": ("units of a perceptron extractor", "with the width of the blocks"),
    "extractors": ("kinds of single blocks, by name", "where blocks differ in kind"),
    "features": ("width of what an extractor gives", "raise for rich blocks"),
    "femam": ("table of femam's keys for the levels", "see femam"),
    "final_epochs": ("epochs at all clients after the last round", "0: no fine-tuning"),
    "first_clustering": ("round of a level that first finds clusters", "1: the paper"),
    "first_rounds": ("rounds of level 1", "so many that its loss is steady"),
    "flic": ("table of flic's keys for level 1", "see flic"),
    "frame": ("whether Newton's system is solved exactly, up to 512 features", "hardly ever"),
    "cocoa.gamma": ("share of the clients' steps that counts", "1/K averages: slower, steadier"),
    "hyfdca.gamma": ("fixed step, with step = fixed", "lower where training diverges"),
    "hyfem.gamma": ("γ, how readily posteriors open neurons", "raise to open more"),
    "gradient_clip": (
        "largest norm of a step's gradient; 0: no limit",
        "1 to 10 where the loss jumps",
    ),
    "groups": ("clusters that you name, for each client", "where you know who belongs together"),
    "growth": ("whether matching opens server neurons", "everybody where clients differ much"),
    "hidden": ("units of the hidden layers", "raise with rows and features"),
    "huber_delta": ("δ of the Huber loss, in the label's unit", "to the size of usual errors"),
    "iterations": ("iterations of the solver, at most", "raise where a note says so"),
    "keep_own": (
        "a client may keep a network that it trained alone",
        "true where clients differ so much that some are better off alone",
    ),
    "l1_ratio": ("share ρ of the ℓ1 penalty", "above 0 for weights that are exactly 0"),
    "label_bins": ("bins of numbers aligned together; 0: rows", "with many rows a client"),
    "label_smoothing": (
        "share of a label that all classes have alike",
        "0.1 where labels are noisy, or models too sure",
    ),
    "latent": ("width of the latent space", "raise with the number of classes"),
    "layer": ("a hidden layer between embedding and classifier", "where one layer says too little"),
    "level_rounds": ("rounds of each later level, at most", "so many that its accuracy is steady"),
    "level_schedule": (
        "adaptive: whole networks, each as long as it gains; paper: each learns what is left",
        "paper: for the published settings, shares, or levels over flic",
    ),
    "levels": ("models of each level", "to the structure that you expect (femam.md)"),
    "local_epochs": ("epochs of a client in a round", "lower where clients differ much"),
    "local_method": ("how a client ascends", "hardly ever (hyfdca.md)"),
    "local_rounds": ("R, steps of w in a round", "lower to save time"),
    "local_samples": ("share of a client's samples in a round", "lower to save time"),
    "local_steps": ("gradient steps of a client in a round", "lower where clients differ much"),
    "loss": (
        "hinge, squared_hinge, logistic; of numbers squared, huber, quantile, poisson, gamma",
        "to the labels: see hyfdca.md, losses",
    ),
    "margin": ("ε by which a level must help (prune = margin)", "0: the paper"),
    "matched_layers": ("whether hidden layers are matched together", "successive: PFNM's order"),
    "matching": ("whether the server matches neurons in every round", "rounds: the paper"),
    "meta_classes": ("groups of classes that share an anchor", "where classes are near or rare"),
    "method": ("Newton's method, dual ascent, or by the data", "hardly ever (hyfdca.md)"),
    "flic.mixing": ("ω, share of the common layers in a client's", "lower where clients differ"),
    "l2gd.mixing": (
        "how far a client steps to the mean; 1: all the way",
        "lower where they differ",
    ),
    "pfedme.mixing": ("β, how far w steps to the average", "lower where clients are few"),
    "model": ("your module, package.module:name", "always"),
    "models": ("modules of single clients", "where clients' networks differ"),
    "momentum": ("µ of the optimiser sgd", "0.9 for sgd, with a tenth of the rate"),
    "most_hidden": ("most units of the server's hidden layers", "to bound growth"),
    "mu1": ("μ1, pull of extractors to the server's", "raise where clients drift"),
    "mu2": ("μ2, pull of classifiers to the server's", "raise where clients drift"),
    "noise": ("normal numbers that your loss draws", "where your objective needs some"),
    "objective": ("your loss; empty: cross-entropy", "where the loss is your own"),
    "optimiser": ("adam or sgd, fresh in each round", "sgd as papers have it; then raise rate"),
    "own_epochs": ("epochs on the client's own network in a round", "as local_epochs"),
    "patience": ("rounds without better accuracy that end a level", "raise for noisy accuracy"),
    "passes": ("passes of a matching over clients, at most", "hardly ever"),
    "points": ("points whose kernels are compared", "raise for steadier kernels; traffic R²"),
    "precision": ("numbers that networks compute with", "double to compare runs"),
    "liblinear.precision": ("tolerance of the solver", "lower for more digits"),
    "pretraining_batch": ("rows of a step before the first round", "as batch"),
    "pretraining_epochs": ("epochs that align embeddings first", "lower to save time"),
    "price": ("price of a new neuron at the cost squared", "lower to open more"),
    "hyfdca.proximal": (
        "proximal term in rounds with clients away, over the mean of ‖x‖²",
        "raise where such rounds go back and forth",
    ),
    "proximal": ("pull to the shared or the cluster's model", "raise where clients drift"),
    "proximal_levels": ("levels that are pulled", "all: the authors' code"),
    "proximal_norm": ("squared or plain distance of the pull", "hardly ever"),
    "prune": ("what keeps a level at a client", "margin: the paper; never: keep all"),
    "pull": ("λ, pull of the own network to that of all", "lower where clients differ much"),
    "quantile": ("τ of the quantile loss", "to the quantile that you want"),
    "ragged": ("axes of your module that differ between clients", "to train them at once"),
    "rank": ("columns of the shared representation", "to the rank that you expect"),
    "rate": ("size of a step", "first of all: a tenth or ten times as much"),
    "regularisation": ("λ of the penalty λ/2 ‖w‖²", "raise for few rows, lower for many"),
    "scaled": ("entries scaled to deviation 1 before clustering", "true: the authors' code"),
    "scaling": ("first layer's input scaled by d₀/d_m", "false: the paper"),
    "schedule": ("how the rate falls from round to round", "cosine where the end is unsteady"),
    "schedule_factor": (
        "what the rate falls to (cosine), or by (step)",
        "lower for a steadier end",
    ),
    "schedule_rounds": (
        "rounds until the rate is there (cosine), or between falls (step)",
        "to experiment.rounds for cosine",
    ),
    "scheme": ("which layers all share", "fedavg-ft where clients are alike"),
    "separation": (
        "least mean silhouette of groups of clients that are taken",
        "lower where you know that there are groups",
    ),
    "shared": ("patterns of the parameters that all share", "to the layers to be averaged"),
    "shared_epochs": ("epochs on what is shared in a round", "1: the authors' code of flic"),
    "shared_from": ("round in which the shared layer begins to train", "21 of 50: their code"),
    "shared_layers": ("layers of the embedding that all share", "fewer where clients differ"),
    "shares": ("what clients share with the server", "nothing: each client alone, to compare"),
    "sigma": ("damping of clients' steps against others'", "hardly ever"),
    "sigma02": ("σ0² of the matching's prior", "hardly ever"),
    "sigma2": ("σ² of the matching's neurons", "hardly ever"),
    "similarity_weight": ("η of the kernels' similarity", "lower where it costs accuracy"),
    "softmax": ("classes of the softmax in training", "held where clients lack many classes"),
    "start": ("what models or classifiers start from", "see femam.md, hyfem.md"),
    "steadiness": ("variance of accuracy (percent) that is steady", "lower to train levels longer"),
    "hyfdca.step": ("how long ascents step: searched, or gamma", "fixed: the paper"),
    "flic-linear.step": ("η, size of a step", "lower where training diverges"),
    "step_size": ("η, step of w towards the own network", "raise for few rounds"),
    "steps": ("steps of a client in a round, or on one batch", "lower where clients differ much"),
    "system": ("how Newton's system is made", "hardly ever (hyfdca.md)"),
    "unseen_rows": ("output rows of classes that a client lacks", "averaged: the paper"),
    "validation": ("share of rows kept to judge levels or networks by", "raise for few rows"),
    "variant": ("the paper's variant", "see the algorithm's page"),
    "warm_up": ("rounds of level 1 before groups are looked for", "raise for few rows a client"),
    "weight_decay": ("decay of the layers behind the embedding", "1e-3 where clients overfit"),
    "weights": ("what clients count for in an average", "clients: small ones count as large ones"),
    "window": ("rounds that accuracy must be steady for; 0: never", "raise for noisy accuracy"),
}


def rows(name: str) -> Iterator[tuple[str, str, str, str, str]]:
    """Yield key, default, range, meaning and advice of each hyperparameter."""
    cls: Any = algorithm_named(name).hyperparameters
    hints = typing.get_type_hints(cls, include_extras=True)
    for one in dataclasses.fields(cls):
        own = f"{name}.{one.name}"
        meaning, advice = SAID[own if own in SAID else one.name]
        yield one.name, _default(cls, one), _range(cls, one.name, hints[one.name]), meaning, advice


def _default(cls: Any, field: dataclasses.Field[Any]) -> str:
    if field.default is None:  # other keys say it: here their own defaults do
        return _whole(getattr(cls(), field.name))
    if field.default is not dataclasses.MISSING:
        return _whole(field.default)
    if field.default_factory is dataclasses.MISSING:
        return "none: it must be set"
    made = field.default_factory()
    return "its own defaults" if dataclasses.is_dataclass(made) else _whole(made)


def _whole(value: Any) -> str:
    """Return a value as a file writes it, with all entries of a list."""
    if isinstance(value, tuple):
        return "[" + ", ".join(map(settings.toml_text, value)) + "]"
    return settings.toml_text(value)


def _range(cls: type, key: str, hint: Any) -> str:
    allowed, words = settings._ranges(cls).get(key, (None, ()))
    if words and allowed is None:
        return ", ".join(words)
    if allowed is not None:
        return str(allowed)
    if dataclasses.is_dataclass(hint):
        return "a table"
    return settings._wording(hint).replace("typing.Any", "any value")


def page() -> str:
    """Return the page."""
    parts = [_HEAD]
    for name in algorithm_names():
        lines = [
            f"| `{key}` | {default} | {allowed} | {meaning} | {advice} |"
            for key, default, allowed, meaning, advice in rows(name)
        ]
        head = [
            "| key | default | allowed | meaning | when to change it |",
            "|---|---|---|---|---|",
        ]
        parts.append("\n".join([f"\n## {name}\n", *head, *lines, ""]))
    return "".join(parts)


def main() -> None:
    """Print the page, or write it."""
    made = page()
    if "--write" in sys.argv:
        PAGE.write_text(made, encoding="utf-8")
    else:
        sys.stdout.write(made)


if __name__ == "__main__":
    main()
