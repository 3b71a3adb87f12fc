"""Differential privacy of a run: from ε and δ to the noise, and to what the result guarantees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from intarsia.core.algorithm import Algorithm
from intarsia.core.block import ClientId
from intarsia.core.disclosure import Release
from intarsia.core.schema import Schema
from intarsia.errors import ExperimentError
from intarsia.experiment.config import Experiment
from intarsia.privacy import accounting
from intarsia.privacy.secure_aggregation.ckks_parameters import parameters
from intarsia.privacy.secure_aggregation.fixed_point import FixedPoint
from intarsia.privacy.settings import Privacy
from intarsia.protocols import differential_privacy
from intarsia.results.result import Guarantee
from intarsia.training.loop import fewest, present

_MORE = (
    "experiment.participation; [patience] quorum, where a federation goes on without those that do "
    "not answer"
)


def guarantee(
    description: Experiment, algorithm: Any, options: Any, schema: Schema
) -> tuple[Release | None, Guarantee]:
    """Return the terms of a private release (None: without noise) and what the result says.

    Parameters
    ----------
    algorithm
        An Algorithm, or a baseline, which has no private form.
    schema
        Of the training part.

    Raises
    ------
    ExperimentError
        If the algorithm, its loss or its tolerance allows no bound of what one unit can change.
    """
    settings = description.privacy
    if settings.epsilon == 0:
        return None, Guarantee(mode=settings.mode)
    if algorithm.private is None:
        raise ExperimentError(
            f"privacy.epsilon is {settings.epsilon:g} but {description.algorithm!r} adds no noise "
            'to what it releases; use "hyfdca", "cocoa", "fedavg" or "flic", or set epsilon = 0.'
        )
    if description.preprocessing.standardise:
        raise ExperimentError(
            f"privacy.epsilon is {settings.epsilon:g} but preprocessing.standardise is true: the "
            "means and scales come from the data, so that one sample moves every row and no noise "
            "was measured for that. Set standardise = false, and bring the features to like scales "
            "by constants that do not come from the data (factors of [alignment] dictionary)."
        )
    if getattr(options, "errors", False):
        raise ExperimentError(
            f"privacy.epsilon is {settings.epsilon:g} and algorithm.errors is true: standard "
            "errors would be released without noise; set errors = false, or epsilon = 0."
        )
    if getattr(options, "l1_ratio", 0.0):
        raise ExperimentError(
            f"privacy.epsilon is {settings.epsilon:g} and algorithm.l1_ratio is "
            f"{options.l1_ratio:g}: noise would move every weight that is 0; set l1_ratio = 0, or "
            "epsilon = 0."
        )
    if algorithm.model.kind == "networks" and schema.labels.task == "regression":
        raise ExperimentError(
            f"privacy.epsilon is {settings.epsilon:g} and the labels are numbers to predict: "
            f"{algorithm.name} brings them to one scale by their mean and deviation over all "
            "clients, which every client learns and no noise hides; set epsilon = 0."
        )
    if algorithm.disclosure.dp_unit == "client":
        return _averaged_updates(description, algorithm, schema)
    return _perturbed_output(description, options, schema)


def _perturbed_output(
    description: Experiment, options: Any, schema: Schema
) -> tuple[Release, Guarantee]:
    settings, outputs = description.privacy, schema.labels.outputs
    if not 0 < description.tolerance < 1:
        raise ExperimentError(
            f"experiment.tolerance is {description.tolerance:g}, and with privacy.epsilon it "
            "bounds how far the released model may be from the optimum; set it above 0 and below "
            "1, e.g. tolerance = 1e-8."
        )
    _check_rounding(settings, len(schema.clients))
    known = {"clip": settings.clip, "regularisation": options.regularisation}
    slope = accounting.largest_slope(options.loss, task=schema.labels.task, **known)
    gap = accounting.largest_gap(options.loss, tolerance=description.tolerance, outputs=outputs)
    sensitivity = accounting.minimiser_sensitivity(
        slope, samples=len(schema.samples), outputs=outputs, gap=gap, **known
    )
    noise = sensitivity * accounting.noise_multiplier(settings.epsilon, settings.delta)
    return Release(noise, settings.clip, gap=gap), Guarantee(
        **_terms(settings, noise, sensitivity, releases=1),
        mechanism="output perturbation with the analytic Gaussian mechanism",
        unit="sample",
        covers=("the weights in model/",),
        does_not_cover=(
            "the objectives, gaps and norms that the server reads in every round, and under HyFDCA "
            "Newton's system in secret bases, exact: history.jsonl, transcript.bin, and whether "
            "the tolerance was reached",
            "the states of the server and the clients in checkpoints/, which hold the model before "
            "the noise, and the secrets of the noise in keys/: delete them when the model is "
            "handed on",
            "what the clients see in training: owners of a feature know its weight without the "
            "noise, owners of a sample its dual variable and its scores; all the gap of the model",
            *_not_covered(description),
        ),
    )


def _averaged_updates(
    description: Experiment, algorithm: Algorithm, schema: Schema
) -> tuple[Release, Guarantee]:
    settings = description.privacy
    rounds = most_rounds(description, schema.clients)
    # another client's data: its update may be any other of norm up to the clip
    sensitivity = 2 * settings.clip
    noise = sensitivity * accounting.noise_multiplier(settings.epsilon, settings.delta, rounds)
    released: str = "the weights"
    own: tuple[str, ...] = ()
    if algorithm.model.kind != "linear":
        released = "what all clients share"
        own = ("each client's own network, which has no noise: model/ holds one for each client",)
    return Release(noise, settings.clip, releases=rounds), Guarantee(
        **_terms(settings, noise, sensitivity, releases=rounds),
        mechanism="Gaussian mechanism on the summed updates of each round, composed",
        unit="client",
        covers=(
            f"{released} in model/",
            f"{released} of every round, also against any one of the other clients",
        ),
        does_not_cover=(
            *own,
            "the objectives that the server reads whenever it evaluates, exact: history.jsonl, "
            "transcript.bin",
            "the secrets of the clients' noise in keys/: delete them when the model is handed on",
            "several clients that pool what they know of their own noise",
            *_not_covered(description),
        ),
    )


def _terms(settings: Privacy, noise: float, sensitivity: float, releases: int) -> dict[str, Any]:
    own = {name: getattr(settings, name) for name in ("mode", "epsilon", "delta", "clip")}
    return {**own, "noise": noise, "sensitivity": sensitivity, "releases": releases}


def _not_covered(description: Experiment) -> tuple[str, ...]:
    """Return what ε and δ say nothing of, in every private run."""
    found = (
        "the loss and accuracy of the model, counted exactly on the clients' labelled samples"
        + (", and those of the baselines, which have no noise" if description.yardsticks else ""),
        "which samples, features and labels each client holds; which values are missing; which "
        "copies differ",
        "the finite precision of the noise (Mironov 2012)",
        "other runs on the same data: their epsilons add up",
    )
    plain = (
        "whoever runs the server, who in the mode plain reads each client's contributions with or "
        "without noise"
    )
    return (plain, *found) if description.privacy.mode == "plain" else found


def keeps_apart(description: Experiment, algorithm: Any, options: Any) -> bool:
    """Return whether sealed totals are to tell no client's part.

    They are where least_clients counts and is above 1; and with noise, which was measured for one
    total of a round, not for the difference of two.
    """
    settings = description.privacy
    if settings.epsilon > 0:
        return settings.mode != "plain"
    return settings.least_clients > 1 and _counted(settings, algorithm, options)


def _counted(settings: Privacy, algorithm: Any, options: Any) -> bool:
    """Return whether least_clients counts: sealed sums, without noise, of what clients learned."""
    if settings.mode == "plain" or settings.epsilon > 0:
        return False
    found: bool = algorithm.disclosure.aggregates_all(options)
    return found


def check_summands(
    description: Experiment, algorithm: Any, options: Any, schema: Schema, quorum: int | None = None
) -> None:
    """Refuse rounds whose totals would tell a client what another one sent.

    `quorum` is how few clients a round may go on with where some do not answer; None: all.

    Raises
    ------
    ExperimentError
        If sums are sealed without noise, and a round has fewer clients than `least_clients`,
        fewer of those that have a part of the model together, or clients choose who these are.
    """
    settings = description.privacy
    if not _counted(settings, algorithm, options):
        return
    clients = schema.clients
    there = min(fewest(description, clients), len(clients) if quorum is None else quorum)
    if there >= settings.least_clients:
        _check_choice(settings, algorithm, options)
        _check_parts(description, algorithm, options, schema, quorum)
        return
    raise ExperimentError(
        f'privacy.mode is "{settings.mode}" and a round of {algorithm.name} can have {there} of '
        f"{len(clients)} clients, who open the total of what they learned: {_told(there)}. Let "
        f"{settings.least_clients} or more take part ({_MORE}), or accept it with "
        f"privacy.least_clients = {there}."
    )


def _check_choice(settings: Privacy, algorithm: Algorithm, options: Any) -> None:
    """Refuse clusters that clients choose, where more than one client is to be in each."""
    if not algorithm.disclosure.clients_choose_cluster(options) or settings.least_clients == 1:
        return
    raise ExperimentError(
        f'privacy.mode is "{settings.mode}" and clients of {algorithm.name} choose their clusters: '
        f"nobody knows beforehand that {settings.least_clients} or more will be in each. One that "
        "is alone in a cluster has its model opened by all others, who choose among the clusters' "
        'models. Use an algorithm without clusters, for example "fedavg-ft", or accept it with '
        "privacy.least_clients = 1."
    )


def _check_parts(
    description: Experiment, algorithm: Algorithm, options: Any, schema: Schema, quorum: int | None
) -> None:
    """Refuse rounds in which few are there of those that have a part of the model together."""
    clients, least = schema.clients, description.privacy.least_clients
    rounds = range(1, description.rounds + 1) if description.participation < 1 else range(1, 2)
    groups = {present(description, clients, number) or clients for number in rounds}
    for what, holders in algorithm.disclosure.groups(options, schema).items():
        counts = {_left_of(holders, there, quorum) for there in groups} - {0}
        fewest_holders = min(counts, default=least)
        if fewest_holders < least:
            more = "hold it" if len(holders) < least else f"take part ({_MORE})"
            raise ExperimentError(
                f'privacy.mode is "{description.privacy.mode}" and {what} is held by '
                f"{len(holders)} of {len(clients)} clients, of whom a round can have "
                f"{fewest_holders}: in the total that they open {_told(fewest_holders)}. Leave "
                f"it out, let more {more}, or accept it with privacy.least_clients = "
                f"{fewest_holders}."
            )


def _left_of(holders: Sequence[ClientId], there: Sequence[ClientId], quorum: int | None) -> int:
    """Return how few of some holders a round of `there` can have, where it has any of them."""
    held = len(set(holders).intersection(there))
    lost = 0 if quorum is None else max(0, len(there) - quorum)
    return min(held, max(1, held - lost))


def _told(there: int) -> str:
    """Return what a total over so many clients tells them."""
    return {
        1: "it is the one client's own part, for all that are there the next time to see",
        2: "each of the two gets the other's part, by subtracting its own",
    }.get(there, "few are left when those that pool what they know subtract theirs")


def most_rounds(description: Experiment, clients: Sequence[ClientId]) -> int:
    """Return in how many rounds the client that is there most often takes part.

    Who is there is drawn from the seed, which the server and the clients know: the draw hides
    nobody, so that it makes no round more private than the noise does.
    """
    counts = dict.fromkeys(clients, 0)
    for number in range(1, description.rounds + 1):
        for name in present(description, clients, number) or clients:
            counts[name] += 1
    return max(counts.values())


def notes(found: Guarantee, options: Any, samples: int, clients: int) -> tuple[str, ...]:
    """Return what a user should know before trusting the ε and δ of a result, or its model."""
    if found.epsilon is None or found.delta is None or found.noise is None:
        return ()
    units = samples if found.unit == "sample" else clients
    said = [
        f"Differential privacy covers {found.covers[0]} and not all else in the output folder: "
        "see privacy in result.json. The noise is drawn afresh in every run, whatever the seed."
    ]
    if found.delta * units >= 1:
        said.append(
            f"privacy.delta is {found.delta:g}, not below 1/{units:,}: a mechanism that publishes "
            f"one of the {units:,} {found.unit}s as it is would pass; lower it."
        )
    if found.unit == "sample":
        largest = accounting.largest_norm(options.loss, regularisation=options.regularisation)
        if found.noise > 0.1 * largest:
            said.append(
                f"The noise on each weight is {found.noise:.3g}, and all weights of a class "
                f"together have a norm of {largest:.3g} at most: the model may be of no use. Raise "
                "algorithm.regularisation or privacy.epsilon, or train on more samples."
            )
    return tuple(said)


def _check_rounding(settings: Privacy, clients: int) -> None:
    """Refuse a range for which a row's norm, which is a sealed sum, is known too coarsely."""
    error = 0.0
    if settings.mode == "masked":
        error = FixedPoint(range=settings.range, addends=clients).error(clients)
    elif settings.mode == "ckks":
        wanted = settings.error or None
        error = parameters(settings.range, clients, error=wanted).error(clients)
    if error > differential_privacy.SLACK * settings.clip**2:
        raise ExperimentError(
            f"privacy.range is {settings.range:g}, for which the squared norm of a row may be off "
            f"by {error:.1e}; that is too much to clip rows at privacy.clip = {settings.clip:g}: "
            "lower the range or raise the clip."
        )
