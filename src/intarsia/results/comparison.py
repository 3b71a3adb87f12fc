"""Compare results over seeds, test rows and algorithms, and write figures as text."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, overload

from intarsia.core.text_tables import as_html, as_text
from intarsia.experiment.config import to_dict
from intarsia.experiment.published import Published, matching
from intarsia.results import run_folder
from intarsia.results.figure_text import number
from intarsia.results.result import SKEWED, Result, Score

if TYPE_CHECKING:
    from intarsia.core.text_tables import Part


_ALIKE = 1e-6  # relative deviation of figures that are the same to six digits


@dataclass(frozen=True)
class Row:
    """One line of the three-way comparison."""

    name: str
    standalone: Score | None
    federated: Score | None
    centralised: Score | None

    @property
    def samples(self) -> int | None:
        """Return over how many samples the scores are, None where they are means of scores."""
        scores = (self.federated, self.standalone, self.centralised)
        return next((one.samples for one in scores if one is not None), None)


def three_way(result: Result) -> list[Row]:
    """Return stand-alone, federated and centralised scores: by client, their mean, the whole."""
    metrics = result.metrics
    names = dict.fromkeys([*metrics.clients, *metrics.standalone])
    rows = [
        Row(name, metrics.standalone.get(name), metrics.clients.get(name), None) for name in names
    ]
    if len(names) > 1:
        rows.append(Row("mean of clients", metrics.standalone_mean, metrics.clients_mean, None))
    rows.append(Row("all samples", None, metrics.server, metrics.centralised))
    return rows


FIGURES = {  # beside accuracy, R² and loss; by the words that a reader knows them by
    "auc": "AUC",
    "average_precision": "average precision",
    "ks": "Kolmogorov-Smirnov",
    "macro_f1": "macro-F1",
    "sensitivity": "sensitivity",
    "specificity": "specificity",
    "base_rate": "base rate",
    "majority": "commonest class",
    "brier": "Brier score",
    "calibration_error": "calibration error",
    "calibration_slope": "calibration slope",
    "calibration_intercept": "calibration intercept",
    "mae": "mean absolute error",
    "rmse": "root mean squared error",
    "deviance": "mean deviance",
    "d2": "share of the deviance explained",
    "coverage": "share of labels up to the prediction",
    "trained_classes": "accuracy on classes in training",
    "untrained_classes": "accuracy on other classes",
}
_MAJORITY: Final = list(FIGURES).index("majority")


@dataclass(frozen=True)
class FigureRow:
    """One figure of a result's models."""

    name: str
    alone: float | None  # the mean over the clients' own models
    clients: float | None  # federated, the mean over clients
    every: float | None  # federated, over all samples
    interval: tuple[float, float] | None  # of 95 %, of `every`
    centralised: float | None


def figure_rows(result: Result) -> list[FigureRow]:
    """Return the figures that some model of a result has, in the order of `FIGURES`.

    The accuracy is among them where the models are judged by the AUC, beside the commonest class.
    """
    metrics = result.metrics
    scores = (metrics.standalone_mean, metrics.clients_mean, metrics.server, metrics.centralised)
    rows = []
    names = FIGURES
    if judged_by(result) == "AUC":
        before, after = list(FIGURES.items())[:_MAJORITY], list(FIGURES.items())[_MAJORITY:]
        names = dict([*before, ("accuracy", "accuracy"), *after])
    for key, name in names.items():
        values = [figure_of(score, key) for score in scores]
        if any(value is not None for value in values):
            every = metrics.server if metrics.server and metrics.server.figures else None
            interval = every.figures.intervals.get(key) if every and every.figures else None
            alone, clients, all_samples, centralised = values
            rows.append(FigureRow(name, alone, clients, all_samples, interval, centralised))
    return rows


def figure_of(score: Score | None, key: str) -> float | None:
    """Return one figure of a score, of `FIGURES` or by its name in a result; None: it has none."""
    if score is None:
        return None
    value: float | None = getattr(score if hasattr(score, key) else score.figures, key, None)
    return value


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation of one figure over runs."""

    mean: float
    deviation: float | None  # None: one run
    runs: int | None = field(default=None, compare=False)  # that have the figure; None: not known

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Spread | None:
        """Return the spread of the figures that are known, or None."""
        known = [value for value in values if value is not None]
        if not known:
            return None
        deviation = statistics.stdev(known) if len(known) > 1 else None
        return cls(statistics.fmean(known), deviation, len(known))

    def __str__(self) -> str:
        if self.deviation is None:
            return number(self.mean)
        return f"{number(self.mean)} ± {number(0.0 if self.alike else self.deviation)}"

    @property
    def alike(self) -> bool:
        """Return whether the figure is the same in all runs, to six digits."""
        return self.deviation is None or self.deviation <= _ALIKE * abs(self.mean)


@dataclass(frozen=True)
class FigureSpread:
    """A figure over all samples and its interval, over runs."""

    value: Spread
    interval: tuple[float, float] | None  # of 95 %; of several runs the mean of each end

    @classmethod
    def of(cls, scores: Iterable[Score | None], key: str) -> FigureSpread | None:
        """Return one figure of scores, None where none has it."""
        some = [score for score in scores if score is not None]
        value = Spread.of(figure_of(score, key) for score in some)
        if value is None:
            return None
        known = [score.figures.intervals.get(key) for score in some if score.figures is not None]
        ends = [one for one in known if one is not None]
        low, high = zip(*ends, strict=True) if ends else ((), ())
        return cls(value, (statistics.fmean(low), statistics.fmean(high)) if ends else None)


@dataclass(frozen=True)
class Group:
    """The runs of one experiment with one algorithm and its settings, over seeds and test rows."""

    experiment: str
    algorithm: str
    settings: Mapping[str, Any]  # those that differ between groups of this name
    seeds: tuple[int, ...]
    measure: str  # "accuracy", "R²" or "loss": what the three are
    standalone: Spread | None  # the mean over clients
    federated: Spread | None  # over all samples, pooled; of each client's network on its own
    centralised: Spread | None  # over all samples
    clients: Spread | None  # what is federated, as the mean over clients
    published: Published | None  # what others came to in this setting, as the mean over clients
    loss: Spread | None  # over all samples; as the mean over clients where that is all there is
    gap_relative: Spread | None
    rounds: Spread | None
    exchanges: Spread | None
    bytes: Spread | None
    seconds: Spread | None  # the training's
    worst: Spread | None = None  # what is federated, of the client for whom it is worst
    macro_f1: Spread | None = None  # the mean over clients
    samples: Spread | None = None  # that the scores over all samples are over
    salts: tuple[str, ...] = ()  # of each run: what its test rows were drawn by
    # accuracy, R² and those of `FIGURES`, federated, over all samples
    figures: Mapping[str, FigureSpread] = field(default_factory=dict[str, FigureSpread])


@dataclass(frozen=True)
class Comparison(Sequence[Group]):
    """Groups of runs beside each other; `str` of it is the terminal's tables."""

    groups: tuple[Group, ...]

    @overload
    def __getitem__(self, place: int) -> Group: ...

    @overload
    def __getitem__(self, place: slice) -> tuple[Group, ...]: ...

    def __getitem__(self, place: int | slice) -> Group | tuple[Group, ...]:
        return self.groups[place]

    def __len__(self) -> int:
        return len(self.groups)

    def parts(self) -> list[Part]:
        """Return the tables and notes that show it: scores, then costs."""
        from intarsia.results.tables import comparison_parts  # here: it imports this module

        return comparison_parts(self.groups)

    def __str__(self) -> str:
        return as_text(self.parts())

    def _repr_html_(self) -> str:
        return as_html(self.parts())


@dataclass(frozen=True, eq=False)
class _Run:
    """A finished run, and what tells it from others of its experiment and algorithm."""

    result: Result
    tables: Mapping[str, Mapping[str, Any]]  # its settings
    figures: tuple[Published, ...]
    checksum: str = ""  # of the clients' own tables; "": none says whether they differ

    @classmethod
    def of(cls, result: Result) -> _Run:
        """Return a run with the settings that its folder holds."""
        described = None if result.folder is None else run_folder.described(result.folder)
        own: dict[str, Mapping[str, Any]] = {"algorithm": result.hyperparameters}
        if described is None:
            return cls(result, own, ())
        tree = to_dict(described)
        setting = {key: tree["experiment"][key] for key in _OF_TRAINING}
        data = {name: tree[name] for name in _DATA_TABLES if name in tree}
        for table in tree.get("client", ()):
            data[f"client.{table['name']}"] = {
                key: value for key, value in table.items() if key not in _PLACES
            }
        # of tables that are dealt out it goes by the seed, of pseudonyms by their secret
        own_tables = described.dataset is None and described.alignment.ids == "plain"
        checksum = ""
        if result.folder is not None and own_tables:
            checksum = run_folder.checksum_of_tables(result.folder)
        return cls(result, {**own, "experiment": setting, **data}, described.published, checksum)

    @property
    def salt(self) -> str:
        return str(self.setting(_SALT) or "")

    def setting(self, key: str) -> Any:
        table, _, name = key.rpartition(".")
        return self.tables.get(table or "algorithm", {}).get(name)

    @property
    def keys(self) -> list[str]:
        """Return the names of its settings; those of the algorithm without their table."""
        tables = self.tables.items()
        names = [f"{table}.{key}" for table, settings in tables for key in settings]
        return [name.removeprefix("algorithm.") for name in names]


_DATA_TABLES = ("dataset", "partition", "split", "preprocessing", "labels", "alignment", "privacy")
_SALT = "split.salt"  # draws the test rows, as the seed draws the rest
_PLACES = ("name", "path", "url")  # of a client's table, which may be others on another machine
_OF_TRAINING = ("rounds", "participation", "participation_pattern", "early_stopping", "stop_by")


def compare(results: Iterable[Result]) -> Comparison:
    """Return mean and deviation over seeds and draws of the test rows, in the results' order.

    A group has one experiment, one algorithm and one set of hyperparameters; where the runs'
    folders are there, also one way of dealing the data out, and the figure published for it.
    """
    named: dict[tuple[str, str], list[_Run]] = {}
    for result in results:
        named.setdefault((result.experiment, result.algorithm), []).append(_Run.of(result))
    return Comparison(
        tuple(
            _group(key, settings, alike)
            for key, runs in named.items()
            for settings, some in _by_settings(runs)
            for own, alike in _by_tables(some)
            for settings in [{**settings, **own}]
        )
    )


def _by_settings(runs: Sequence[_Run]) -> list[tuple[dict[str, Any], list[_Run]]]:
    """Return runs with the same settings together, beside those that tell them apart."""
    every = dict.fromkeys(table for run in runs for table in run.tables)
    clients = [one for one in every if one.startswith("client.")]
    partly = [one for one in clients if any(one not in run.tables for run in runs)]
    values = {
        key: ["there" if key in one.tables else "not there" for one in runs] for key in partly
    }
    for key in dict.fromkeys(key for run in runs for key in run.keys if key != _SALT):
        own = [run.setting(key) for run in runs]
        table = key.rpartition(".")[0]
        those = [one for one, run in zip(own, runs, strict=True) if table in run.tables]
        # of a client that some lack: where the others' differ
        if table not in partly or any(one != those[0] for one in those):
            values[key] = own
    differing = [key for key, some in values.items() if any(one != some[0] for one in some)]
    groups: list[tuple[dict[str, Any], list[_Run]]] = []
    for at, run in enumerate(runs):
        settings = {key: values[key][at] for key in differing}
        alike = next((some for known, some in groups if known == settings), None)
        if alike is None:
            groups.append((settings, [run]))
        else:
            alike.append(run)
    return groups


def _by_tables(runs: Sequence[_Run]) -> list[tuple[dict[str, Any], list[_Run]]]:
    """Return runs of the same tables together, and their checksum where others have another.

    Runs that drew other test rows have another checksum of the same tables.
    """
    found: dict[str, list[_Run]] = {}
    for run in runs:
        found.setdefault(run.checksum, []).append(run)
    salts = {(run.salt, run.checksum) for run in runs if run.checksum}
    if len(salts) == len({salt for salt, _ in salts}):
        return [({}, list(runs))]
    return [({"tables.crc": checksum or None}, some) for checksum, some in found.items()]


def measure_of(scores: Iterable[Score | None]) -> str:
    """Return what scores are best compared by: accuracy, R², or the loss where neither is known."""
    known = [score for score in scores if score is not None]
    if any(score.accuracy is not None for score in known):
        return "accuracy"
    return "R²" if any(score.r2 is not None for score in known) else "loss"


def judged_by(result: Result) -> str:
    """Return what the models of a result are best judged by: `measure_of`, or the AUC.

    It is the AUC where three of four rows or more are of one class, as for `difference`.
    """
    metrics = result.metrics
    score = metrics.server or metrics.clients_mean
    majority = figure_of(score, "majority")
    if majority is not None and majority >= SKEWED and figure_of(score, "auc") is not None:
        return "AUC"
    both = (metrics.standalone_mean, metrics.clients_mean, metrics.server, metrics.centralised)
    return measure_of([*both, *metrics.clients.values(), *metrics.standalone.values()])


def value_of(score: Score | None, measure: str) -> float | None:
    """Return one figure of a score."""
    if score is None:
        return None
    if measure == "AUC":
        return figure_of(score, "auc")
    return {"accuracy": score.accuracy, "R²": score.r2, "loss": score.loss}[measure]


def _group(key: tuple[str, str], settings: Mapping[str, Any], group: Sequence[_Run]) -> Group:
    runs = [run.result for run in group]
    figures = [matching(run.figures, key[1], run.tables) for run in group]
    # Two figures, also of one model: in the one each row counts alike, in the other each client.
    federated = [run.metrics.server for run in runs]
    known = [run.metrics.server or run.metrics.clients_mean for run in runs]
    measure = measure_of(known)

    def spread(scores: Iterable[Score | None]) -> Spread | None:
        return Spread.of(value_of(score, measure) for score in scores)

    return Group(
        *key,
        settings=settings,
        seeds=tuple(run.seed for run in runs),
        salts=tuple(run.salt for run in group),
        measure=measure,
        standalone=spread(run.metrics.standalone_mean for run in runs),
        federated=spread(federated),
        centralised=spread(run.metrics.centralised for run in runs),
        clients=spread(run.metrics.clients_mean for run in runs),
        published=figures[0] if all(one == figures[0] for one in figures) else None,
        loss=Spread.of(value_of(score, "loss") for score in known),
        gap_relative=Spread.of(getattr(run.certificate, "gap_relative", None) for run in runs),
        rounds=Spread.of(float(run.rounds) for run in runs),
        exchanges=Spread.of(float(run.exchanges) for run in runs),
        bytes=Spread.of(float(run.bytes.get("up", 0) + run.bytes.get("down", 0)) for run in runs),
        seconds=Spread.of(run.seconds.get("training", run.seconds.get("total")) for run in runs),
        worst=spread(run.metrics.clients_worst for run in runs),
        macro_f1=Spread.of(getattr(run.metrics.clients_mean, "macro_f1", None) for run in runs),
        samples=Spread.of(
            getattr(run.metrics.server or run.metrics.centralised, "samples", None) for run in runs
        ),
        figures={
            key: one
            for key in ("accuracy", "r2", *FIGURES)
            if (one := FigureSpread.of(federated, key)) is not None
        },
    )
