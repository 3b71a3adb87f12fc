"""What a reader sees of a federation and of its results: advice, comparisons, figures as text."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from intarsia import run_folder
from intarsia.data import ClientId, Schema
from intarsia.errors import FederationError
from intarsia.experiment import to_dict
from intarsia.feature_blocks import doubled, feature_blocks
from intarsia.index_sets import Cell
from intarsia.labels import label_among_features
from intarsia.published import Published, matching
from intarsia.result import Result, Score

__all__ = [
    "Advice",
    "Group",
    "Row",
    "Spread",
    "advise",
    "compare",
    "duration",
    "gap",
    "measure_of",
    "number",
    "percent",
    "size",
    "three_way",
    "transferred",
    "value_of",
]


@dataclass(frozen=True)
class Advice:
    """Which algorithm fits what the parties hold, and why."""

    algorithm: str | None  # None: none of the available ones
    why: str
    remarks: tuple[str, ...] = ()


def advise(schema: Schema) -> Advice:
    """Return the algorithm that fits who holds what."""
    by_blocks = _by_blocks(schema)
    clients, remarks = schema.clients, _remarks(schema, networks=bool(by_blocks))
    if len(clients) == 1:
        return Advice(
            "hyfdca",
            f"{clients[0]} is the only client; on its table alone hyfdca is centralised dual "
            "coordinate ascent.",
            remarks,
        )
    if by_blocks:
        return Advice("hyfem", by_blocks, remarks)
    common_samples = [cell for cell in schema.samples.cells if len(cell.owners) > 1]
    common_features = [cell for cell in schema.features.cells if len(cell.owners) > 1]
    if not common_samples and not common_features:
        return _apart(schema, remarks)
    groups = _groups(schema)
    if not common_samples and len(groups) > 1 and _all_classes(schema):
        return Advice(
            "flic",
            f"the clients fall into {len(groups)} groups ({_names([some[0] for some in groups])} "
            "and those that share columns with them) without a row or a column in common, only "
            "what the labels mean; flic maps each client's own features into one space (it needs "
            "the library torch); hyfdca would learn from each group apart.",
            remarks,
        )
    same_samples = len(schema.samples.cells) == 1
    same_features = len(schema.features.cells) == 1
    if same_features and not common_samples:
        why = (
            "horizontal: all clients have the same columns and no row in common; hyfdca then needs "
            "no exchange over rows and is CoCoA (cocoa and fedavg are there as baselines). Where "
            "the clients' populations differ, femam finds groups of them and trains networks for "
            "all, for each group and for each client (it needs the library torch)."
        )
    elif same_samples and not common_features:
        why = (
            "vertical: all clients have the same rows and no column in common; hyfdca adds up "
            "their parts of each score without showing them."
        )
    elif same_samples and same_features:
        why = (
            "every client has the whole table: nothing is gained by a federation, but hyfdca "
            "trains on it and counts every entry once."
        )
    else:
        rows, columns = _count(common_samples), _count(common_features)
        why = (
            f"hybrid: {rows:,} of {len(schema.samples):,} rows and {columns:,} of "
            f"{len(schema.features):,} columns are held by more than one client; hyfdca trains a "
            "linear model to the centralised optimum on such parts and certifies it by the "
            "duality gap."
        )
    return Advice("hyfdca", why, remarks)


def _by_blocks(schema: Schema) -> str:
    """Return why networks over feature blocks fit; "": clients name none, or learn by others."""
    named = {
        name for client, held in schema.holdings.items() for name in held.groups if name != client
    }
    try:
        blocks = {name: one for name, one in feature_blocks(schema).items() if name in named}
    except FederationError:  # clients hold parts of blocks
        return ""
    several = [name for name, one in blocks.items() if len(one.owners) > 1]
    everywhere = all(len(one.owners) == len(schema.clients) for one in blocks.values())
    if not several or everywhere or not _all_classes(schema):
        return ""
    counts = [sum(client in one.owners for one in blocks.values()) for client in schema.clients]
    least, most = min(counts), max(counts)
    held = f"{least}" if least == most else f"{least} to {most}"
    return (
        f"the clients name feature blocks and hold {held} of {len(blocks)} "
        f"({_names(list(blocks))}); {len(several)} are with several clients; hyfem trains an "
        "extractor of each block at those that hold it, and a network of its own blocks for each "
        "client and of all blocks for the server, and needs no row in common (it needs the library "
        "torch); hyfdca would train one linear model on the columns."
    )


def _apart(schema: Schema, remarks: tuple[str, ...]) -> Advice:
    """Return what fits clients with no sample and no feature in common."""
    why = "no two clients have a sample or a feature in common"
    bare = [name for name, held in schema.holdings.items() if not held.labelled.any()]
    if bare:
        return Advice(
            None,
            f"{why}; flic, which maps each client's own features into one space, learns at each "
            f"client from its own labels, and {_names(bare)} has none.",
            remarks,
        )
    if schema.labels.task == "regression":
        least = min(len(held.features) for held in schema.holdings.values())
        return Advice(
            "flic-linear",
            f"{why}, only what the labels mean, and these are numbers to predict; flic-linear maps "
            "each client's own features into one space and learns what is linear there (set "
            f"algorithm.latent, at most {least:,}, and algorithm.rank); flic learns networks (it "
            "needs the library torch).",
            remarks,
        )
    return Advice(
        "flic",
        f"{why}, only what the labels mean; flic maps each client's own features into one space, "
        "where the classes are the same for all (it needs the library torch).",
        remarks,
    )


def _all_classes(schema: Schema) -> bool:
    """Return whether every client has classes as labels."""
    classes = schema.labels.task != "regression"
    return classes and all(held.labelled.any() for held in schema.holdings.values())


def _groups(schema: Schema) -> list[list[ClientId]]:
    """Return the clients by whom they share a row or a column with, also through others."""
    group = {name: [name] for name in schema.clients}
    for index in (schema.samples, schema.features):
        for cell in index.cells:
            first, *others = cell.owners
            for other in others:
                if group[other] is not group[first]:
                    group[first].extend(group[other])
                    for name in group[other]:
                        group[name] = group[first]
    found = {id(some): some for some in group.values()}
    order = {name: place for place, name in enumerate(schema.clients)}
    return [sorted(some, key=order.__getitem__) for some in found.values()]


def _count(cells: Sequence[Cell]) -> int:
    return sum(cell.stop - cell.start for cell in cells)


def _remarks(schema: Schema, *, networks: bool) -> tuple[str, ...]:
    remarks = [*label_among_features(schema), *doubled(schema)]
    linked: set[ClientId] = set()
    for index in (schema.samples, schema.features):
        for cell in index.cells:
            if len(cell.owners) > 1:
                linked.update(cell.owners)
    alone = [name for name in schema.clients if name not in linked]
    if alone and linked:
        share = f"{_names(alone)} {'shares' if len(alone) == 1 else 'share'} no row and no column"
        use = (
            "hyfem gives and takes the classifier behind the extractors, and no extractor."
            if networks
            else f"the federation neither helps {'it' if len(alone) == 1 else 'them'} nor is "
            f"helped by {'it' if len(alone) == 1 else 'them'}."
        )
        remarks.append(f"{share} with another client: {use}")
    unlabelled = int((schema.label_holders == 0).sum())
    if unlabelled:
        remarks.append(
            f"{unlabelled:,} of {len(schema.samples):,} samples have a label at no client; "
            "training leaves them out."
        )
    return tuple(remarks)


def _names(names: Sequence[str]) -> str:
    shown = ", ".join(names[:5])
    return f"{shown} and {len(names) - 5} more" if len(names) > 5 else shown


@dataclass(frozen=True)
class Row:
    """One line of the three-way comparison."""

    name: str
    standalone: Score | None
    federated: Score | None
    centralised: Score | None


def three_way(result: Result) -> list[Row]:
    """Return stand-alone, federated and centralised scores: by client, their mean, the whole."""
    metrics = result.metrics
    names = [
        *metrics.clients,
        *(name for name in metrics.standalone if name not in metrics.clients),
    ]
    rows = [
        Row(name, metrics.standalone.get(name), metrics.clients.get(name), None) for name in names
    ]
    if len(names) > 1:
        rows.append(Row("mean of clients", metrics.standalone_mean, metrics.clients_mean, None))
    rows.append(Row("all samples", None, metrics.server, metrics.centralised))
    return rows


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation of one figure over runs."""

    mean: float
    deviation: float | None  # None: one run

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Spread | None:
        """Return the spread of the figures that are known, or None."""
        known = [value for value in values if value is not None]
        if not known:
            return None
        return cls(statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else None)

    def __str__(self) -> str:
        if self.deviation is None:
            return number(self.mean)
        return f"{number(self.mean)} ± {number(self.deviation)}"


@dataclass(frozen=True)
class Group:
    """The runs of one experiment with one algorithm and its settings, over their seeds."""

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


@dataclass(frozen=True, eq=False)
class _Run:
    """A finished run, and what tells it from others of its experiment and algorithm."""

    result: Result
    tables: Mapping[str, Mapping[str, Any]]  # its settings
    figures: tuple[Published, ...]

    @classmethod
    def of(cls, result: Result) -> _Run:
        """Return a run with the settings that its folder holds."""
        described = None if result.folder is None else run_folder.described(result.folder)
        own: dict[str, Mapping[str, Any]] = {"algorithm": result.hyperparameters}
        if described is None:
            return cls(result, own, ())
        tree = to_dict(described)
        setting = {key: tree["experiment"][key] for key in ("rounds", "participation")}
        data = {name: tree[name] for name in _DATA_TABLES if name in tree}
        return cls(result, {**own, "experiment": setting, **data}, described.published)

    def setting(self, key: str) -> Any:
        table, _, name = key.rpartition(".")
        return self.tables.get(table or "algorithm", {}).get(name)

    @property
    def keys(self) -> list[str]:
        """Return the names of its settings; those of the algorithm without their table."""
        return [
            key if table == "algorithm" else f"{table}.{key}"
            for table, settings in self.tables.items()
            for key in settings
        ]


_DATA_TABLES = ("dataset", "partition", "split", "preprocessing", "privacy")


def compare(results: Iterable[Result]) -> list[Group]:
    """Return mean and deviation over seeds, in the results' order.

    A group has one experiment, one algorithm and one set of hyperparameters; where the runs'
    folders are there, also one way of dealing the data out, and the figure published for it.
    """
    named: dict[tuple[str, str], list[_Run]] = {}
    for result in results:
        named.setdefault((result.experiment, result.algorithm), []).append(_Run.of(result))
    return [
        _group(key, settings, alike)
        for key, runs in named.items()
        for settings, alike in _by_settings(runs)
    ]


def _by_settings(runs: Sequence[_Run]) -> list[tuple[dict[str, Any], list[_Run]]]:
    """Return runs with the same settings together, beside those that tell them apart."""
    keys = dict.fromkeys(key for run in runs for key in run.keys)
    values = {key: [run.setting(key) for run in runs] for key in keys}
    differing = [key for key, some in values.items() if any(one != some[0] for one in some)]
    groups: list[tuple[dict[str, Any], list[_Run]]] = []
    for run in runs:
        settings = {key: run.setting(key) for key in differing}
        alike = next((some for known, some in groups if known == settings), None)
        if alike is None:
            groups.append((settings, [run]))
        else:
            alike.append(run)
    return groups


def measure_of(scores: Iterable[Score | None]) -> str:
    """Return what scores are best compared by: accuracy, R², or the loss where neither is known."""
    known = [score for score in scores if score is not None]
    if any(score.accuracy is not None for score in known):
        return "accuracy"
    return "R²" if any(score.r2 is not None for score in known) else "loss"


def value_of(score: Score | None, measure: str) -> float | None:
    """Return one figure of a score."""
    if score is None:
        return None
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
        measure=measure,
        standalone=spread(run.metrics.standalone_mean for run in runs),
        federated=spread(federated),
        centralised=spread(run.metrics.centralised for run in runs),
        clients=spread(run.metrics.clients_mean for run in runs),
        published=figures[0] if all(one == figures[0] for one in figures) else None,
        loss=Spread.of(value_of(score, "loss") for score in known),
        gap_relative=Spread.of(
            None if run.certificate is None else run.certificate.gap_relative for run in runs
        ),
        rounds=Spread.of(float(run.rounds) for run in runs),
        exchanges=Spread.of(float(run.exchanges) for run in runs),
        bytes=Spread.of(float(transferred(run.bytes)) for run in runs),
        seconds=Spread.of(run.seconds.get("training", run.seconds.get("total")) for run in runs),
        worst=spread(run.metrics.clients_worst for run in runs),
        macro_f1=Spread.of(
            None if run.metrics.clients_mean is None else run.metrics.clients_mean.macro_f1
            for run in runs
        ),
    )


def transferred(traffic: Mapping[str, float]) -> float:
    """Return the bytes in both directions."""
    return traffic.get("up", 0) + traffic.get("down", 0)


def number(value: float | None) -> str:
    """Return a figure with four significant digits."""
    if value is None or math.isnan(value):
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def percent(fraction: float) -> str:
    """Return a fraction in per cent, with two digits."""
    return f"{100 * fraction:.2f} %"


def gap(value: float | None) -> str:
    """Return a relative gap with two digits."""
    return "–" if value is None else f"{value:.1e}"


def size(count: float) -> str:
    """Return a number of bytes in a unit that suits it (1 kB = 1000 bytes)."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def duration(seconds: float | None) -> str:
    """Return a length of time: "0.42 s", "12 s", "3:05 min", "2:10 h"."""
    if seconds is None or not math.isfinite(seconds):
        return "–"
    if seconds < 10:
        return f"{seconds:.2g} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02} min"
    return f"{whole // 3600}:{whole % 3600 // 60:02} h"
