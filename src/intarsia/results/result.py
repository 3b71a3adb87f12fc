"""The result of a run: certificate, scores, cost, and where it was made (result.json)."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal, Protocol, runtime_checkable

import numpy as np

from intarsia.core.block import ClientId
from intarsia.core.files.atomic_files import write_atomically
from intarsia.core.files.contained import check_contained
from intarsia.core.files.json_text import check_kind, parse_json
from intarsia.core.settings import frozen
from intarsia.core.text_tables import Part, as_html, as_text
from intarsia.errors import CheckpointError, lacks
from intarsia.maths.figures import (
    CalibrationBin,
    Figures,
    PredictionBin,
    difference_interval,
    figures_from,
    reduced,
    share_interval,
)
from intarsia.partition.client_clusters import Structure, Structures

_WAYS: Final = ("up", "down")  # of bytes
# a relative gap that sums of many terms may keep for good in float64
SUM_ROUNDING = 1e-10
_MOST_CLIENTS = 50  # whose scores `str` and a notebook show
_MOST_NAMED = 8  # clients in a sentence
Finished = Literal["tolerance", "rounds", "algorithm", "stalled", "early_stopping"]
Yardstick = Literal["centralised", "standalone"]


@dataclass(frozen=True)
class Score:
    """How well one model does on one set of samples."""

    loss: float  # mean over the samples, without the regularisation
    accuracy: float | None = None  # fraction of right classes; None for regression
    r2: float | None = None  # coefficient of determination; None for classes
    macro_f1: float | None = None  # mean over the classes that are true or predicted somewhere
    samples: int | None = None  # that it is over; None: a mean of scores, or of an older version
    figures: Figures | None = None  # AUC, calibration, confusion …; None: of an older version

    @classmethod
    def of(cls, found: Any) -> Score | None:
        """Return the score that an evaluation says; None: there is none."""
        return None if found is None else cls(**vars(found))


def mean(scores: Mapping[ClientId, Score]) -> Score | None:
    """Return the unweighted mean over clients, or None without a client."""
    return _over(scores, lambda values, _: float(np.mean(values))) if scores else None


def worst(scores: Mapping[ClientId, Score]) -> Score | None:
    """Return the worst of each figure over clients, or None without a client."""
    if not scores:
        return None
    return _over(scores, lambda values, sign: sign * min(sign * value for value in values))


def deciles(scores: Mapping[ClientId, Score]) -> tuple[Score, ...]:
    """Return each figure at 10 %, 20 % … 90 % of the clients, from the worst on; () below two."""
    if len(scores) < 2:
        return ()

    def at(share: float) -> Score:
        return _over(
            scores, lambda values, sign: sign * float(np.quantile(sign * np.array(values), share))
        )

    return tuple(at(tenth / 10) for tenth in range(1, 10))


def _over(
    scores: Mapping[ClientId, Score], reduce: Callable[[Sequence[float], int], float]
) -> Score:
    """Return one figure for each of the scores' figures; the sign is that of better."""

    def figure(name: str) -> float | None:
        known = [value for score in scores.values() if (value := getattr(score, name)) is not None]
        return reduce(known, 1) if known else None

    loss = reduce([score.loss for score in scores.values()], -1)
    figures = reduced([score.figures for score in scores.values()], reduce)
    return Score(loss, figure("accuracy"), figure("r2"), figure("macro_f1"), figures=figures)


@dataclass(frozen=True)
class Metrics:
    """The federated model beside its two baselines, on the test part where there is one."""

    server: Score | None = None  # the federated model on every client's columns
    clients: Mapping[ClientId, Score] = field(default_factory=dict[ClientId, Score])
    clients_mean: Score | None = None
    centralised: Score | None = None  # all data pooled
    standalone: Mapping[ClientId, Score] = field(default_factory=dict[ClientId, Score])
    standalone_mean: Score | None = None  # each client alone
    clients_worst: Score | None = None  # of each figure
    clients_deciles: tuple[Score, ...] = ()  # of each figure, from the worst on

    def beside(self, standalone: Mapping[ClientId, Score]) -> Metrics:
        """Return these beside the scores of each client alone.

        Macro-F1 is withheld from the federated scores of clients with few rows of a class. Their
        own is left out then, so that both means are of the same clients.
        """
        withheld = {name for name, one in self.clients.items() if one.macro_f1 is None}
        alike = {
            name: replace(one, macro_f1=None) if name in withheld else one
            for name, one in standalone.items()
        }
        return replace(self, standalone=alike, standalone_mean=mean(alike))


@dataclass(frozen=True)
class Difference:
    """How a client's own model and the federated one differ on its rows, by one figure."""

    figure: str  # "accuracy", "R²", "AUC" or "loss": the first that tells them apart
    alone: float
    joined: float
    gain: float  # by joining; below 0 the own model is better
    certain: bool = False  # whether it is more than chance, by the 95 % intervals of both
    one_class: bool = False  # whether all rows are of one class


def difference(alone: Score, joined: Score) -> Difference:
    """Return how two models of the same rows differ.

    By accuracy or R²; where that is within chance by the AUC, and where nothing else differs by the
    loss. Where three of four rows are of one class, or a model says one class of all, the accuracy
    is little but that class's share: there the AUC counts alone, if there is one.
    """
    scores = alone, joined
    right = _difference("accuracy", "accuracy", scores, [one.accuracy for one in scores])
    ranked = _difference("AUC", "auc", scores, [_auc(one) for one in scores])
    squares = _difference("R²", "r2", scores, [one.r2 for one in scores])
    order = [ranked] if ranked is not None and any(map(_skewed, scores)) else [right, ranked]
    found: list[Difference] = [one for one in (*order, squares) if one is not None]
    by_loss = Difference("loss", alone.loss, joined.loss, alone.loss - joined.loss)
    one = next((one for one in found if one.certain), found[0] if found else by_loss)
    return replace(one, one_class=_only_class(scores) is not None)


def _difference(
    figure: str, key: str, scores: tuple[Score, Score], values: Sequence[float | None]
) -> Difference | None:
    """Return the difference by one figure; None: it is the same, or one of them lacks it."""
    own, other = values
    if own is None or other is None or own == other:
        return None
    before, after = (score_interval(one, key) for one in scores)
    certain = False
    if before is not None and after is not None:
        low, high = difference_interval(other, own, (after, before))
        certain = not low <= 0 <= high
    return Difference(figure, own, other, other - own, certain)


def score_interval(score: Score, key: str) -> tuple[float, float] | None:
    """Return the 95 % interval of a figure of a score; None: it has none."""
    if score.figures is not None and key in score.figures.intervals:
        return score.figures.intervals[key]
    if key == "accuracy" and score.accuracy is not None and score.samples:
        return share_interval(score.accuracy, score.samples)
    return None


SKEWED: Final = 0.75  # share of one class from which on the accuracy tells little else


def _skewed(score: Score) -> bool:
    """Return whether the accuracy of a score is mostly the share of one class."""
    found = score.figures
    if found is None:
        return False
    return found.only_class is not None or (found.majority or 0.0) >= SKEWED


def _only_class(scores: Sequence[Score | None]) -> int | None:
    """Return of which class all rows of some scores are; None: of several, or it is not told."""
    for score in scores:
        counts = None if score is None or score.figures is None else score.figures.confusion
        held = [place for place, row in enumerate(counts or ()) if sum(row) > 0]
        if len(held) == 1:
            return held[0]
    return None


def one_class_each(metrics: Metrics, positive: str | None = None) -> tuple[str, ...]:
    """Return a sentence where all rows of a client are of one class: what its accuracy says then.

    `positive` is the second of two classes.
    """
    pairs = {name: (metrics.standalone.get(name), one) for name, one in metrics.clients.items()}
    every = {name: _only_class(pair) for name, pair in {**_alone(metrics), **pairs}.items()}
    found = {name: place for name, place in every.items() if place is not None}
    if not found:
        return ()
    names = list(found)
    which, rate = "one class", "the share of that class that is said right"
    if {*found.values()} == {1} and positive is not None:
        which, rate = f"the class {positive!r}", f"{rate} (the sensitivity)"
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return (
        f"All evaluated rows of {', '.join(names[:_MOST_NAMED])}{more} are of {which}: the "
        f"accuracy there is {rate}. It tells nothing of rows of another class, and there is no "
        "AUC.",
    )


def _alone(metrics: Metrics) -> dict[ClientId, tuple[Score | None, ...]]:
    return {name: (one,) for name, one in metrics.standalone.items()}


def _auc(score: Score) -> float | None:
    return None if score.figures is None else score.figures.auc


def _losing(metrics: Metrics) -> list[tuple[ClientId, Difference]]:
    """Return the clients whose federated model is worse than their own by more than chance."""
    both = [name for name in metrics.standalone if name in metrics.clients]
    found = [(name, difference(metrics.standalone[name], metrics.clients[name])) for name in both]
    return [(name, one) for name, one in found if one.gain < 0 and one.certain]


def better_alone(metrics: Metrics) -> tuple[str, ...]:
    """Return a sentence for each client whose federated model is worse than its own alone."""
    return tuple(
        f"{name} is better off alone on these rows: {one.figure} {one.alone:.4g} alone and "
        f"{one.joined:.4g} by joining{_said_of_class(one)}; more epochs on its own rows "
        "(--epochs) may make up for it."
        for name, one in _losing(metrics)
    )


def _said_of_class(found: Difference) -> str:
    return "; all these rows are of one class" if found.one_class else ""


def worse_by_joining(metrics: Metrics, remedies: Sequence[str] = ()) -> tuple[str, ...]:
    """Return a note that names each client whose federated model is worse than its own alone.

    Worse by more than chance: the 95 % interval of the difference, of both models' intervals as if
    they were independent, is below 0. `remedies` are sentences of what may serve them.
    """
    found = _losing(metrics)
    if not found:
        return ()
    named = []
    for name, one in found:
        before, after = _auc(metrics.standalone[name]), _auc(metrics.clients[name])
        rises = before is not None and after is not None and after > before
        ranked = f"; AUC {before:.4g} alone, {after:.4g} federated" if rises else ""
        named.append(
            f"{name} ({one.figure} {one.alone:.4g} alone, {one.joined:.4g} federated{ranked}"
            f"{_said_of_class(one)})"
        )
    count = len([one for one in metrics.standalone if one in metrics.clients])
    return (
        f"The federated model is worse than the own model of {len(found)} of {count} clients on "
        f"their rows, by more than chance: {', '.join(named)}. "
        + "".join(f"{one} " for one in remedies)
        + "See what each client adds with intarsia contribution, and look for better "
        "hyperparameters with intarsia tune.",
    )


_DEARER, _MOSTLY = 1.25, 0.75  # times the mean loss alone, and the clients where it is higher
_AS_RIGHT = 0.03  # of accuracy less, in the mean


def worse_probabilities(metrics: Metrics) -> tuple[str, ...]:
    """Return a note if networks are as right as the clients' own, and their losses far higher.

    So it is mostly after long training: probabilities near 0 and 1, where the class is wrong too.
    """
    both = [name for name in metrics.standalone if name in metrics.clients]
    alone, joined = mean(metrics.standalone), mean({name: metrics.clients[name] for name in both})
    if len(both) < 2 or alone is None or joined is None:
        return ()
    if alone.accuracy is None or joined.accuracy is None:
        return ()
    higher = sum(metrics.clients[one].loss > metrics.standalone[one].loss for one in both)
    if joined.loss <= _DEARER * alone.loss or higher < _MOSTLY * len(both):
        return ()
    if joined.accuracy < alone.accuracy - _AS_RIGHT:
        return ()
    return (
        "Federated networks are about as accurate as the clients' own, but their probabilities are "
        f"worse: the mean loss is {joined.loss:.4g} for {alone.loss:.4g} alone, and higher at "
        f"{higher} of {len(both)} clients. Mostly they trained for too long: early_stopping = 20 "
        "in [experiment] with stopping = 0.15 in [split] ends where the loss on rows held out no "
        "longer falls.",
    )


@dataclass(frozen=True)
class Certificate:
    """Bounds of the training objective: the optimum lies between dual and primal."""

    primal: float
    dual: float
    gap_relative: float  # (primal - dual) / |primal|

    @property
    def holds(self) -> bool:
        """Return whether the dual is below the primal, but for float64's rounding of sums.

        Where labels or columns are far from 0 their rounding may put it above: it bounds nothing.
        """
        return self.gap_relative >= -SUM_ROUNDING


@dataclass(frozen=True)
class Guarantee:
    """What was sealed, and what differential privacy holds for what was released."""

    mode: str = "plain"  # of the sums: "plain", "masked", "ckks"
    epsilon: float | None = None  # None: nothing was released with noise
    delta: float | None = None
    mechanism: str | None = None
    unit: str | None = None  # whose data may change: one "sample", or one "client"
    noise: float | None = None  # standard deviation, of each weight or each summed update
    sensitivity: float | None = None  # in the 2-norm, of one release
    clip: float | None = None  # largest norm of a row, or of an update
    releases: int | None = None  # that one unit had a part in
    covers: tuple[str, ...] = ()
    does_not_cover: tuple[str, ...] = ()


@runtime_checkable
class _Maker(Protocol):
    """What makes a model of a library that takes a second to import."""

    def estimator(self) -> Any: ...


@dataclass(frozen=True)
class Result:
    """A finished run; `to_dict` is what stands in result.json, `str` what the terminal shows."""

    algorithm: str
    experiment: str
    seed: int
    rounds: int
    finished: Finished  # why it stopped
    seconds: Mapping[str, float]  # "total" and by part
    bytes: Mapping[str, Any]  # "up", "down", "by_message"
    exchanges: int
    certificate: Certificate | None
    metrics: Metrics
    environment: Mapping[str, Any]  # version, commit, machine, threads, python, started, package
    hyperparameters: Mapping[str, Any]
    notes: tuple[str, ...] = ()
    trained: Any = None  # the model, or what makes it when asked; beside result.json, not in it
    folder: Path | None = None
    privacy: Guarantee = Guarantee()
    structure: Structures = field(default_factory=Structures)
    yardsticks_left: tuple[Yardstick, ...] = ()  # reference models that are still to be trained
    best_round: int | None = None  # whose model it is, by early stopping; None: the last one's
    # of two classes that for which scores and coefficients speak; None: there are not two, or an
    # earlier version did not say
    positive_class: str | None = None

    @cached_property
    def model(self) -> Any:
        """The fitted model, or the clients' by their names; None where there is none."""
        return self.trained.estimator() if isinstance(self.trained, _Maker) else self.trained

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON types; numbers that JSON lacks (NaN, infinity) as null."""
        last = ("privacy", "structure", "yardsticks_left", "notes")
        names = [one.name for one in fields(self) if one.name not in (*last, "trained", "folder")]
        return {name: _plain(getattr(self, name)) for name in (*names, *last)}

    def parts(self) -> list[Part]:
        """Return the tables and lines that show it; of very many clients the first."""
        from intarsia.results.tables import result_parts  # here: it imports this module

        return result_parts(self, most=_MOST_CLIENTS)

    def __str__(self) -> str:
        return as_text(self.parts())

    def _repr_html_(self) -> str:
        return as_html(self.parts())

    def write(self, folder: Path) -> None:
        """Write result.json into an existing folder: whole, or not at all."""
        text = json.dumps(self.to_dict(), indent=2, ensure_ascii=False, allow_nan=False)
        write_atomically(folder / "result.json", f"{text}\n".encode())


def with_total(seconds: Mapping[str, float]) -> dict[str, float]:
    """Return seconds by part, with "total"."""
    parts = {name: spent for name, spent in seconds.items() if name != "total"}
    return {**parts, "total": sum(parts.values())}


def _check(result: Result) -> None:
    """Raise ValueError where a value is of another kind than a run writes."""
    check_kind(result, Result, "result")
    known = result.bytes
    by_message = known.get("by_message", {})
    check_kind({key: known.get(key, 0) for key in _WAYS}, dict[str, int], "result.bytes")
    check_kind(by_message, dict[str, dict[str, int]], "result.bytes.by_message")
    if any(set(_WAYS) - one.keys() for one in by_message.values()):
        raise ValueError("result.bytes.by_message has messages without their bytes up and down")
    noise = result.privacy.epsilon, result.privacy.delta
    if None in noise and noise != (None, None):
        raise ValueError(f"result.privacy has the epsilon and delta {noise}")


def load(folder: Path | str) -> Result:
    """Return the result in an output folder, without its model.

    Raises
    ------
    CheckpointError
        If the folder holds no result, one that cannot be read, or what leads out of the folder.
    """
    folder = Path(folder)
    check_contained(folder)
    path = folder / "result.json"
    if not path.is_file():
        raise CheckpointError(_missing(folder))
    try:
        return of_dict(parse_json(path.read_text(encoding="utf-8")), folder)
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as problem:
        raise CheckpointError(
            f"{path} is not a result that this version wrote ({type(problem).__name__}: "
            f"{problem}); run the experiment again with --overwrite."
        ) from problem


def of_dict(found: Mapping[str, Any], folder: Path) -> Result:
    """Return the result that `Result.to_dict` wrote, without its model.

    Raises
    ------
    ValueError, LookupError, TypeError, AttributeError, ArithmeticError
        If it is not one.
    """
    others = {"certificate", "metrics", "notes", "trained", "folder", "privacy", "structure"}
    added = {"yardsticks_left", "best_round", "positive_class"}  # since the first version
    plain = [one.name for one in fields(Result) if one.name not in {*others, *added}]
    certificate, metrics = found["certificate"], found["metrics"]
    result = Result(
        **{key: found[key] for key in plain},
        certificate=None if certificate is None else Certificate(**certificate),
        metrics=Metrics(
            server=_score(metrics["server"]),
            clients={name: _known(score) for name, score in metrics["clients"].items()},
            clients_mean=_score(metrics["clients_mean"]),
            clients_worst=_score(metrics.get("clients_worst")),
            clients_deciles=tuple(_known(one) for one in metrics.get("clients_deciles", ())),
            centralised=_score(metrics["centralised"]),
            standalone={name: _known(score) for name, score in metrics["standalone"].items()},
            standalone_mean=_score(metrics["standalone_mean"]),
        ),
        notes=tuple(found["notes"]),
        privacy=Guarantee(**frozen(found.get("privacy", {}))),
        structure=_known_structures(found.get("structure")),
        yardsticks_left=tuple(found.get("yardsticks_left", ())),
        best_round=found.get("best_round"),
        positive_class=found.get("positive_class"),
        folder=folder,
    )
    _check(result)
    return result


def _missing(folder: Path) -> str:
    if not folder.is_dir():
        return f"{lacks(folder, '')}; give the output folder of a finished run."
    if (folder / "experiment.json").is_file():
        return f"{folder} holds an unfinished run; finish it first: intarsia resume {folder}"
    for name, what in _OTHERS.items():
        if (folder / name).is_file():
            return f"{folder} holds {what} and no run; give the output folder of a finished run."
    return f"{folder} holds no result.json; give the output folder of a finished run."


# what other commands write -> what the folder is then
_OTHERS: Final = {
    "study.db": "a search of intarsia tune",
    "study.json": "what intarsia contribution found",
    "site.toml": "the kit of a site",
}


def _structures(found: Structures) -> dict[str, Any] | None:
    """Return the structures with the groups in the order of the clients."""
    known = found.truth or found.learned
    if known is None:
        return None
    truth, learned = (
        None if one is None else _plain(one.among(known.clients).levels)
        for one in (found.truth, found.learned)
    )
    return {
        "clients": list(known.clients),
        "truth": truth,
        "learned": learned,
        "words": {} if found.learned is None else dict(found.learned.words),
        "agreement": found.agreement,  # the adjusted Rand index of each pair of levels
        "agreement_of_members": found.agreement_of_members,
    }


def _known_structures(found: Mapping[str, Any] | None) -> Structures:
    if found is None:
        return Structures()

    def one(levels: Mapping[str, Sequence[int | None]] | None) -> Structure | None:
        if levels is None:
            return None
        own = {name: tuple(groups) for name, groups in levels.items()}
        return Structure(tuple(found["clients"]), own)

    learned = one(found["learned"])
    if learned is not None:
        learned = replace(learned, words=found.get("words", {}))
    return Structures(one(found["truth"]), learned)


def _known(score: Mapping[str, Any]) -> Score:
    loss = math.nan if score["loss"] is None else score["loss"]
    figures = score.get("figures")
    return Score(
        *(loss, score["accuracy"], score["r2"], score.get("macro_f1"), score.get("samples")),
        None if figures is None else figures_from(figures),
    )


def _score(score: Mapping[str, Any] | None) -> Score | None:
    return None if score is None else _known(score)


def _plain(value: Any) -> Any:
    """Return records, mappings, sequences and NumPy scalars as JSON types."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, Structures):
        return _structures(value)
    if isinstance(value, Figures):  # of another task is left out
        found = {entry.name: getattr(value, entry.name) for entry in fields(value)}
        return {key: _plain(own) for key, own in found.items() if own is not None and own != {}}
    if isinstance(
        value, Score | Metrics | Certificate | Guarantee | CalibrationBin | PredictionBin
    ):
        return {entry.name: _plain(getattr(value, entry.name)) for entry in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "item"):  # a NumPy scalar
        return _plain(value.item())
    number = float(value)
    return number if math.isfinite(number) else None
