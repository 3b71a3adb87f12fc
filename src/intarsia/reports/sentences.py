"""A run in plain sentences, for readers who do not know federated learning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from intarsia.core.block import ClientId
from intarsia.errors import several
from intarsia.reports.contents import Contents
from intarsia.results.audit import in_words, named
from intarsia.results.comparison import figure_of, figure_rows, judged_by, value_of
from intarsia.results.figure_text import duration, gap, number, percent, size
from intarsia.results.result import Difference, Result, Score, difference, one_class_each
from intarsia.results.tables import WHY

_NETWORKS = "a network of each client's own, of which a part is shared"
TRAINED: Final = {  # algorithm → what it trains, and its name
    "centralised": ("one linear model of all tables pooled", "centralised training"),
    "cocoa": ("one linear model for all", "CoCoA"),
    "ditto": ("a network for all and one for each client that stays near it", "Ditto"),
    "fedavg": ("one linear model for all", "federated averaging"),
    "fedavg-ft": (
        "a network for all that each client tunes on its rows",
        "FedAvg with fine-tuning",
    ),
    "fedhenn": ("a network of each client's own, alike in how it sees common points", "FedHeNN"),
    "fedprox": ("one network for all", "FedProx"),
    "fedrep": (_NETWORKS, "FedRep"),
    "femam": ("networks for all, for groups of clients and for each, that add up", "FeMAM"),
    "femam-flic": (
        "networks for all, for groups of clients and for each, that add up",
        "FeMAM-FLIC",
    ),
    "fesem": ("a network for each of several groups of clients", "FeSEM"),
    "flic": ("a network of each client's own columns, in one latent space", "FLIC"),
    "flic-linear": (
        "a linear model of each client's own columns in one latent space",
        "linear FLIC",
    ),
    "hetfedrep": (_NETWORKS, "HetFedRep"),
    "hyfdca": ("one linear model of all columns", "HyFDCA"),
    "hyfem": ("a network of all feature blocks, and one of each client's own blocks", "HyFEM"),
    "ifca": ("a network for each of several groups of clients", "IFCA"),
    "l2gd": ("a network for each client, drawn to their mean", "L2GD"),
    "liblinear": ("one linear model of all tables pooled", "scikit-learn's solvers"),
    "local": ("a network of each client's rows alone", "local training"),
    "own-networks": ("networks that the user wrote", "own networks"),
    "pfedme": ("a network for all and one for each client that stays near it", "pFedMe"),
    "standalone": ("a linear model of each client's rows alone", "stand-alone training"),
}

# figure, as tables name it → what it is
MEANINGS: Final = {
    "accuracy": "The share of rows whose class is named rightly.",
    "R²": "How much of the labels' variation the model explains. 1 is perfect; 0 is as good as "
    "always saying their mean, and less is worse.",
    "loss": "What training makes small, here of the held-out rows: less is better. Compare it with "
    "the others of this page alone.",
    "AUC": "How often a row of a class has a higher score than a row of another. 0.5 is chance, "
    "1 is perfect.",
    "average precision": "How many of the rows that the model finds are right, averaged over how "
    "many it is to find. 1 is perfect; chance is the share of the class.",
    "Kolmogorov-Smirnov": "The largest distance between the scores of both classes. 0 is chance, "
    "1 is perfect.",
    "macro-F1": "How well classes are found and told apart, each class counted alike. 1 is "
    "perfect.",
    "sensitivity": "The share of the positive class that is said right.",
    "specificity": "The share of the other class that is said right.",
    "base rate": "The share of rows that are of the positive class.",
    "commonest class": "The share of rows that are of the commonest class: the accuracy of always "
    "saying it.",
    "Brier score": "The mean squared error of the probabilities: 0 is perfect.",
    "calibration error": "How far probabilities are from what comes true, on average. 0 is "
    "perfect; 0.05 is five of a hundred cases.",
    "calibration slope": "1 is best. Below 1 the model is too sure of itself.",
    "calibration intercept": "0 is best. Above 0 the positive class comes more often than the "
    "model says.",
    "mean absolute error": "How far predictions are off on average, in the unit of the label.",
    "root mean squared error": "The same, with large errors counting more.",
    "mean deviance": "How far predictions are from the labels, by the loss of training. 0 is "
    "perfect.",
    "share of the deviance explained": "1 is perfect; 0 is as good as always saying the mean.",
    "share of labels up to the prediction": "It is to be the quantile that was asked for.",
    "accuracy on classes in training": "On rows of classes that a client has in training.",
    "accuracy on other classes": "On rows of classes that a client does not have in training.",
}

# loss of a linear model → what its score is
_SCORES: Final = {
    "logistic": "The score is the log-odds of a class: where it is 1 higher, the odds are 2.72 "
    "times as high.",
    **dict.fromkeys(("squared", "huber", "quantile"), "The score is the prediction itself."),
    **dict.fromkeys(
        ("poisson", "gamma"),
        "The score is the logarithm of the prediction: where it is 0.1 higher, the prediction is "
        "about 10 % higher.",
    ),
}

_POOLED = ("centralised", "liblinear")
_POOLED_SAID = "All tables were put together for it."


def summary(contents: Contents) -> str:
    """Return in one paragraph what was trained by whom, how good it is, and what it took."""
    result, clients = contents.result, contents.clients
    what, method = TRAINED.get(result.algorithm, ("a model", result.algorithm))
    pooled = result.algorithm in _POOLED
    aim = f" to predict “{contents.label}”" if contents.label else ""
    said = [
        f"{several(len(clients), 'client')} ({named(clients)}) trained "
        f"{what}{aim}, by {method}. {_POOLED_SAID if pooled else 'No row left its client.'}"
    ]
    measure, score, whose = headline(result)
    if score is not None:
        rows = "" if score.samples is None else f"{score.samples:,} "
        test = "held-out rows" if contents.held_out else "rows"
        on = f"On {rows}{test}" if rows else f"On the clients' {test}"
        said.append(f"{on} {whose} {_says(score, measure)}{_interval(score, measure)}.")
        said += _of_the_rare(contents, score) if measure == "AUC" else []
    said += _beside(result, measure)
    seconds = result.seconds.get("training", result.seconds.get("total"))
    rounds = several(result.rounds, "round")
    said.append(
        f"Training took {rounds} and {duration(seconds)}; it ended because {WHY[result.finished]}."
    )
    return " ".join(said)


def headline(result: Result) -> tuple[str, Score | None, str]:
    """Return by what a run is judged, the score of all rows or else the mean, and whose it is."""
    metrics = result.metrics
    score, whose = metrics.server, "the federated model"
    if score is None and metrics.clients_mean is not None:
        score, whose = metrics.clients_mean, "the federated models, as the mean of the clients,"
    return judged_by(result), score, whose


def meanings(result: Result) -> list[tuple[str, str]]:
    """Return the figures that a run tells, and what each is."""
    told = ["loss", *(row.name for row in figure_rows(result))]
    return [(name, MEANINGS[name]) for name in dict.fromkeys([judged_by(result), *told])]


def score_sentence(loss: str) -> str:
    """Return what the score of a linear model is; "" where its loss has none to be told."""
    return _SCORES.get(loss, "")


def shown(value: float | None, measure: str) -> str:
    """Return a figure as text: an accuracy in per cent."""
    if value is None:
        return "–"
    return percent(value) if measure == "accuracy" else number(value)


def interval_of(score: Score | None, measure: str) -> tuple[float, float] | None:
    """Return the 95 % interval of a score's measure; None: it is not told."""
    if score is None or score.figures is None:
        return None
    return score.figures.intervals.get({"R²": "r2", "AUC": "auc"}.get(measure, measure))


def _says(score: Score, measure: str) -> str:
    value = shown(value_of(score, measure), measure)
    if measure == "accuracy":
        return f"names the right class in {value} of cases"
    if measure == "loss":
        return f"has a mean loss of {value}"
    return f"has an {measure} of {value}"


def _of_the_rare(contents: Contents, score: Score) -> list[str]:
    """Return what an AUC means, and why the accuracy stands behind it."""
    rate, majority = figure_of(score, "base_rate"), figure_of(score, "majority") or 0.0
    share = f"The commonest class has {percent(majority)} of the rows"
    if rate is not None and contents.positive:
        share = f"{percent(rate)} of the rows are “{contents.positive}”"
    right = "" if score.accuracy is None else f", and {percent(score.accuracy)} are said right"
    return [
        "An AUC of 0.5 is chance, and 1 is perfect.",
        f"{share}{right}, where always naming the commonest class has {percent(majority)} right: "
        "the models are judged by the AUC.",
    ]


def _interval(score: Score, measure: str) -> str:
    ends = interval_of(score, measure)
    if ends is None:
        return ""
    return f" (95 % interval {shown(ends[0], measure)} to {shown(ends[1], measure)})"


def _beside(result: Result, measure: str) -> list[str]:
    metrics = result.metrics
    pooled, alone = (
        value_of(one, measure) for one in (metrics.centralised, metrics.standalone_mean)
    )
    joined = value_of(metrics.clients_mean, measure)
    evaluated, said = [*metrics.clients], []
    if pooled is not None:
        said.append(f"A model of all data in one place comes to {shown(pooled, measure)}.")
    if alone is not None and joined is not None:
        several_ = len(evaluated) > 1
        whom = "Averaged over the clients with labels" if several_ else f"For {evaluated[0]}"
        who = "each" if several_ else "it"
        said.append(
            f"{whom} it is {shown(joined, measure)}, against {shown(alone, measure)} where {who} "
            "trains alone."
        )
    if not said and result.algorithm not in (*_POOLED, "standalone"):
        said.append("No reference model was trained beside it.")
    return said


@dataclass(frozen=True)
class Gain:
    """What one client has of federating."""

    client: ClientId
    samples: int | None
    by: Difference
    verdict: str


def gains(result: Result) -> list[Gain]:
    """Return what each client gains or loses, the largest gain first."""
    found = []
    for name, joined in result.metrics.clients.items():
        alone = result.metrics.standalone.get(name)
        if alone is None:
            continue
        by = difference(alone, joined)
        verdict = "gains" if by.gain > 0 else "loses" if by.gain < 0 else "neither"
        if by.gain:
            verdict += ", by more than chance" if by.certain else "; it may be chance"
        verdict += "; all its rows are of one class" if by.one_class else ""
        found.append(Gain(name, joined.samples, by, verdict))
    return sorted(found, key=lambda one: -one.by.gain)


def gain_sentence(found: Sequence[Gain]) -> str:
    """Return who gains and who loses by federating, in one or two sentences."""
    if not found:
        return (
            "No client was also trained alone beside this run, so that it cannot be said who gains "
            "and who loses by federating (experiment.yardsticks trains the reference models; of "
            "networks, report this run beside one with algorithm.name=local)."
        )
    parts = []
    for sign, verb in ((1, "gain"), (-1, "lose")):
        names = [one.client for one in found if one.by.certain and sign * one.by.gain > 0]
        if names:
            parts.append(f"{named(names)} {verb}{'s' * (len(names) == 1)}")
    rest = [one.client for one in found if not one.by.certain]
    if not parts:
        return "By federating no client gains or loses by more than chance, by the 95 % intervals."
    chance = f" What {named(rest)} may gain or lose is within chance." if rest else ""
    return f"By federating {in_words(parts)}, by more than chance.{chance}"


def verdict_sentences(result: Result) -> list[str]:
    """Return who gains and who loses, and by which figure where that is not plain."""
    found = gains(result)
    figures = {one.by.figure for one in found} - {judged_by(result)}
    said = [gain_sentence(found)]
    if "AUC" in figures:
        said.append(
            "The AUC is the figure where three of four rows of a client or more are of one class, "
            "and where the accuracy tells nothing beyond chance."
        )
    return [*said, *one_class_each(result.metrics, result.positive_class)]


def certificate_sentence(result: Result) -> str:
    """Return what is certain about the optimum, in one sentence."""
    found = result.certificate
    if found is None:
        return (
            "There is no certificate: the algorithm does not bound how far its objective is from "
            "the best one, and the scores above are what there is to judge it by."
        )
    if not found.holds:
        return (
            f"The training objective is {found.primal:.8g}. There is no certificate: rounding puts "
            f"its lower bound above that, at {found.dual:.8g}. A note says what helps."
        )
    return (
        f"The training objective is {found.primal:.8g}, and no model of this kind and these "
        f"settings comes below {found.dual:.8g}: it is certain to be within "
        f"{gap(found.gap_relative)} of the best, relatively."
    )


def cost_sentence(result: Result) -> str:
    """Return what the run took."""
    up, down = (result.bytes.get(way, 0) for way in ("up", "down"))
    return (
        f"The run took {duration(result.seconds.get('total'))} in all. The clients sent "
        f"{size(up)} to the server and received {size(down)}, in "
        f"{several(result.exchanges, 'exchange')}."
    )


def protection_sentences(result: Result) -> list[str]:
    """Return what sealed sums and differential privacy keep from the server, where they do."""
    found = result.privacy
    sealed = {
        "plain": "The sums were not sealed: whoever runs the server can read each contribution.",
        "masked": "The sums were sealed by masks that the server cannot take off.",
        "ckks": "The sums were encrypted (CKKS), and the server has no key.",
    }
    said = [sealed.get(found.mode, f"The sums had the mode {found.mode}.")]
    if found.epsilon is not None:
        said.append(
            f"What was released is differentially private: ε = {found.epsilon:g}, "
            f"δ = {found.delta:g} for each {found.unit}."
        )
        said += [f"It covers {one}." for one in found.covers]
        said += [f"It does not cover {one}." for one in found.does_not_cover]
    return said
