"""What each party is worth to each other: the runs of coalitions, one after the other, and figures.

Each coalition's run is kept in the output folder once it is done, so that the same call goes on
after a stop. Up to `MOST` parties all coalitions are trained, of more all parties, all but one, and
each alone.

The value of a coalition to a party of it is the measure on the party's own test rows. A party that
is in no coalition has what is said without a model: its commonest class, or its mean label.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from intarsia.core.block import Block, ClientId, Labels
from intarsia.core.files.atomic_files import remove_unfinished, write_atomically
from intarsia.core.files.contained import check_contained
from intarsia.core.files.json_text import parse_json
from intarsia.core.side_by_side import cores
from intarsia.core.text_tables import Part, as_html, as_text
from intarsia.engines import codec
from intarsia.engines.forks import can_fork, errands
from intarsia.errors import CheckpointError, ExperimentError, listed
from intarsia.experiment import config, federation
from intarsia.experiment.config import Experiment
from intarsia.maths.figures import THRESHOLD
from intarsia.plots.contribution import contribution_picture
from intarsia.protocols.evaluation_rows import LEAST_ROWS
from intarsia.results import run_folder
from intarsia.results.lock import alone
from intarsia.training.loop import Progress
from intarsia.training.registry import choose
from intarsia.training.setup import workers_of
from intarsia.valuation import coalitions, scores
from intarsia.valuation.coalitions import Coalition
from intarsia.valuation.scores import BY_TASK, MEASURES
from intarsia.valuation.shapley import left_out, shapley_values

Array = NDArray[np.float64]

MOST: Final = 5  # parties of which all coalitions are trained
OTHERS: Final = "the others, on average"
ALL: Final = "the federation"
_OF: Final = "study.json"  # what the coalitions in a folder are of
_RUNS: Final = "coalitions"
_TAIL: Final = (0.025, 0.975)


@dataclass(frozen=True)
class Worth:
    """A figure with its 95 % interval over the test rows."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Array) -> Worth | None:
        """Return the first of values with the percentiles of the others; None: it is no number."""
        if not math.isfinite(values[0]):
            return None
        known = values[1:][np.isfinite(values[1:])]
        low, high = np.quantile(known if len(known) else values[:1], _TAIL)
        return cls(float(values[0]), float(low), float(high))


Table = Mapping[str, Mapping[ClientId, Worth]]  # to whom → of whom


@dataclass(frozen=True)
class Contribution:
    """What each party is worth to each other; `to_dict` is what stands in contribution.json."""

    experiment: str
    algorithm: str
    measure: str  # "auc", "accuracy", "r2" or "mae"; worth is a gain in it, of "mae" less of it
    parties: tuple[ClientId, ...]
    rows: Mapping[ClientId, int]  # labelled test rows; 0: it has none, and gives only
    baseline: Mapping[ClientId, float]  # without a model
    alone: Mapping[ClientId, Worth]  # trained alone
    together: Mapping[ClientId, Worth]  # with all
    left_out: Table  # to a party, to OTHERS, to ALL → what is lost without another
    shapley: Table | None  # likewise; None: there are more than `MOST` parties
    sums: Mapping[str, float]  # of Shapley values, to whom → v(all) - v(none)
    coalitions: tuple[Mapping[str, Any], ...]
    notes: tuple[str, ...] = ()
    folder: Path | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return JSON types."""
        found = asdict(self)
        del found["folder"]
        return found

    def parts(self) -> list[Part]:
        """Return the tables and lines that show it."""
        from intarsia.valuation.tables import contribution_parts  # here: it imports this module

        return contribution_parts(self)

    def __str__(self) -> str:
        return as_text(self.parts())

    def _repr_html_(self) -> str:
        return as_html(self.parts())


def contribution(
    description: Experiment | str | Path,
    *,
    tables: federation.Tables | None = None,
    measure: str | None = None,
    out: str | Path | None = "",
    overwrite: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> Contribution:
    """Return what each party is worth to each other, on test rows.

    Called again on the same folder it goes on with the coalitions that are left.

    Parameters
    ----------
    description
        An experiment with tables in this process, or its file.
    tables
        What a function makes, instead of the sources that the experiment names.
    measure
        One of `scores.MEASURES`; None: AUC of two classes, accuracy of more, R² of numbers.
    out
        The output folder; "": that of the experiment with "-contribution" behind its name; None:
        nothing is written.
    overwrite
        Remove what was found before in the folder.
    progress
        Called after every round of every run.

    Raises
    ------
    UserError
        If there is one party, or one whose table is not here, or the folder holds something else.
    ConvergenceError
        If training with all parties diverges.
    """
    described = config.load(description) if not isinstance(description, Experiment) else description
    folder = output_folder(described, out)
    _check(described, tables, folder)
    described = replace(described, yardsticks=False, tune=None)
    if tables is None and described.dataset is None:
        tables = federation.read_tables(described)
    elif callable(tables):
        tables = tables()
    if folder is not None:
        check_contained(folder)
    kept = None if folder is None or overwrite else run_folder.read_secret(folder)
    found = federation.build(described, tables, kept)
    parties = tuple(found.train)
    chosen = _measure(measure, found, parties, described)
    # a coalition may have labels that would be taken for something else
    described = replace(described, labels=replace(described.labels, task=found.labels.task))
    labelled = tuple(name for name in parties if _has_labels(found.train[name]))
    rows = {name: len(block.samples) for name, block in found.test.items()}
    work = _Work(described, tables, parties, labelled, found.labels, rows, found.secret, progress)
    if folder is None:
        return _contribution_of(work, _runs(work, None), found, chosen, None)
    tree = config.to_dict(described)
    for key in ("out", "workers", "ray"):  # which change nothing of what comes out
        tree["experiment"].pop(key, None)
    own = json.loads(json.dumps({"experiment": tree, "tables": found.fingerprint()}))
    folder.mkdir(parents=True, exist_ok=True)
    busy = f"Another process works on {folder}; wait until it is done."
    with alone(folder / "contribution.lock", busy):
        remove_unfinished(folder, _RUNS, "keys")
        _open(folder, own, found.secret, overwrite=overwrite)
        done = _contribution_of(work, _runs(work, folder / _RUNS), found, chosen, folder)
        contribution_picture(done, folder / "contribution.png")
        text = json.dumps(done.to_dict(), indent=2, ensure_ascii=False, allow_nan=False)
        write_atomically(folder / "contribution.json", f"{text}\n".encode())
    return done


def output_folder(described: Experiment, out: str | Path | None) -> Path | None:
    """Return where `contribution` writes; parameters as there."""
    place = f"{described.out}-contribution" if out == "" else out
    return None if place is None else Path(place).resolve()


def kept_coalitions(folder: Path) -> int:
    """Return how many coalitions a folder keeps, with which the same command goes on."""
    return len([*(folder / _RUNS).glob("*.npz")])


@dataclass(frozen=True, eq=False)
class _Work:
    """What is trained."""

    described: Experiment
    tables: Mapping[ClientId, Any] | None
    parties: tuple[ClientId, ...]
    labelled: tuple[ClientId, ...]  # those that have labels to train on
    labels: Labels
    rows: Mapping[ClientId, int]  # each party's test rows
    secret: bytes | None
    progress: Callable[[Progress], None] | None = field(default=None, repr=False)


def _check(described: Experiment, tables: federation.Tables | None, folder: Path | None) -> None:
    """Refuse before anything is read what cannot be trained without some of the parties."""
    elsewhere = [one.name for one in described.clients if not (one.path or one.url)]
    if tables is None and elsewhere:
        raise ExperimentError(
            f"The tables of {listed(elsewhere)} are not here, and each run without a party needs "
            "the agreement of the others at their sites; contribution is for tables that lie in "
            "one place: give each [[client]] its path."
        )
    if not choose(described)[0].federated:
        raise ExperimentError(
            f"algorithm.name is {described.algorithm!r}, a reference model that is no federation; "
            'set a federated one, such as "hyfdca".'
        )
    if described.privacy.epsilon:
        raise ExperimentError(
            f"[privacy] epsilon is {described.privacy.epsilon:g}, which the run of each coalition "
            "would spend again; set epsilon = 0 for tables that need no such protection."
        )
    if not described.split.test and not described.split.evaluated[1]:
        raise ExperimentError(
            "[split] test is 0, which leaves no rows to tell what a party is worth; set test = 0.2."
        )
    if folder is None:
        return
    if folder.exists() and not folder.is_dir():
        raise CheckpointError(
            f"{folder} is a file, and the output is a folder; choose another with --out."
        )
    if (folder / "experiment.json").is_file() or (folder / "study.db").is_file():
        raise CheckpointError(f"{folder} holds a run or a search; choose another with --out.")


def _measure(
    wanted: str | None,
    found: federation.Federation,
    parties: Sequence[ClientId],
    described: Experiment,
) -> str:
    """Return what is measured; refuse what the labels or the parties do not allow."""
    known = BY_TASK[found.labels.task]
    if wanted is not None and wanted not in known:
        raise ExperimentError(
            f"measure is {wanted!r}, which there is not of these labels ({found.labels.task}); use "
            f"{' or '.join(repr(one) for one in known)}."
        )
    if len(parties) < 2:
        raise ExperimentError(
            f"The experiment {described.name!r} has {len(parties)} party, which is worth nothing "
            "to others; describe two or more."
        )
    if not any(_truth(block)[1].size for block in found.test.values()):
        raise ExperimentError(
            "No test row has a label, by which the parties' worth would be told; raise test in "
            "[split]."
        )
    return wanted or known[0]


def _open(folder: Path, own: Mapping[str, Any], secret: bytes | None, *, overwrite: bool) -> None:
    """Begin in a folder, or go on there; `secret` is what pseudonyms come from."""
    kept = folder / _RUNS
    if not (folder / _OF).is_file() and kept.is_dir() and any(kept.iterdir()):
        raise CheckpointError(
            f"{kept} has files, and no {_OF} beside it says that this command wrote them; choose "
            "another folder with --out."
        )
    if overwrite:
        before_it = [path for path in kept.glob("*.npz") if path.stem.isdecimal()]
        for path in (*before_it, *(folder / f"contribution.{one}" for one in _ENDS)):
            path.unlink(missing_ok=True)
        for name in (_OF, run_folder.PSEUDONYMS):
            (folder / name).unlink(missing_ok=True)
    kept.mkdir(mode=0o700, exist_ok=True)
    if run_folder.read_secret(folder) is None:
        run_folder.keep_secret(folder, secret)  # whoever goes on holds out the same rows
    if not (folder / _OF).is_file():
        # it may hold the URLs of databases
        text = json.dumps(own, ensure_ascii=False)
        write_atomically(folder / _OF, text.encode(), private=True)
        return
    try:
        before = parse_json((folder / _OF).read_text(encoding="utf-8"))
    except ValueError:
        before = None
    if not isinstance(before, dict):
        raise CheckpointError(
            f"{folder / _OF} is damaged, and says not whose coalitions are kept here; put back a "
            "copy, or begin anew with --overwrite."
        )
    if before != own:
        differ = [key for key in own if own[key] != before.get(key)]
        words = {"experiment": "another experiment", "tables": "other tables"}
        raise CheckpointError(
            f"{folder} holds the coalitions of {' and '.join(words[one] for one in differ)}; "
            "choose another folder with --out, or replace them with --overwrite."
        )


_ENDS: Final = ("json", "png")


def _wanted(count: int) -> list[int]:
    """Return the coalitions to be trained, that of all parties first."""
    every = (1 << count) - 1
    if count > MOST:
        single = [1 << one for one in range(count)]
        return [every, *(every & ~one for one in single), *single]
    return sorted(range(1, every + 1), key=lambda one: (-one.bit_count(), one))


_LONG = 1.0  # seconds of a run after which others are made several at a time


def _runs(work: _Work, folder: Path | None) -> dict[int, Coalition]:
    """Return the runs of all coalitions: those that are kept, and those that are left.

    Where they take long they are made in several processes, each after another.
    """
    wanted, found = _wanted(len(work.parties)), dict[int, Coalition]()
    for number in wanted:
        kept = None if folder is None else coalitions.read(number, work.parties, folder, work.rows)
        if kept is not None:
            found[number] = kept
    left = {number: at for at, number in enumerate(wanted, 1) if number not in found}

    def keep(number: int, made: Coalition) -> None:
        found[number] = made
        del left[number]
        if folder is not None:
            coalitions.write(made, work.parties, folder)

    for number in [*left]:
        workers = _processes(work, found, len(left))
        if workers > 1:
            break
        show = partial(_show, work, f"{left[number]}/{len(wanted)}", number)
        keep(number, _trained(work, number, show))
    tasks = {number: partial(_trained, work, number) for number in left}
    names = {number: f"{at}/{len(wanted)}" for number, at in left.items()}

    def told(number: int, now: Progress) -> None:
        _show(work, names[number], number, now)

    if left:
        classes = *codec.classes_in(Coalition), *codec.classes_in(Progress)
        for number, made in errands("trained a coalition", tasks, workers, told, classes):
            keep(number, made)
    return {number: found[number] for number in wanted}


def _processes(work: _Work, found: Mapping[int, Coalition], left: int) -> int:
    """Return how many processes the runs that are left take."""
    whole = found.get(_all_parties(work.parties))
    if whole is None or whole.seconds < _LONG or work.described.ray:
        return 1
    if not can_fork(asked=work.described.workers > 1):
        return 1
    most = workers_of(work.described)
    return min(cores() if most is None else most, left)


def _show(work: _Work, at: str, number: int, now: Progress) -> None:
    if work.progress is None:
        return
    inside = coalitions.members(number, work.parties)
    without = [name for name in work.parties if name not in inside]
    who = f"without {without[0]}" if len(without) == 1 else " + ".join(inside)
    work.progress(replace(now, phase=f"{at} {who if without else 'all'}"))


def _trained(work: _Work, number: int, show: Callable[[Progress], None]) -> Coalition:
    if not set(coalitions.members(number, work.parties)) & set(work.labelled):
        return Coalition(number, False, note="no party has a label to train on")
    given = work.described, work.tables, number, work.parties, work.labels
    return coalitions.train(*given, secret=work.secret, progress=show)


def _has_labels(block: Block) -> bool:
    return block.y is not None and not np.isnan(block.y).all()


def _truth(block: Block) -> tuple[NDArray[np.intp], Array]:
    """Return the labelled rows of a table in the order of their ids, and their labels."""
    order = coalitions.order_of_ids(block)
    if block.y is None:
        return order[:0], np.zeros(0)
    y = block.y[order]
    known = np.flatnonzero(~np.isnan(y))
    return known, y[known]


@dataclass(frozen=True, eq=False)
class _Rows:
    """A party's labelled test rows."""

    known: NDArray[np.intp]  # which of its test rows, in the order of their ids
    truth: Array
    samples: NDArray[np.intp]  # which of all labelled test samples they are
    baseline: float  # what is said of each without a model


def _rows(found: federation.Federation, measure: str) -> tuple[dict[ClientId, _Rows], int]:
    """Return the labelled test rows of the parties that have some, and how many samples they are.

    A sample that several parties have is one, so that all of them draw it as often.
    """
    own = {name: _truth(block) for name, block in found.test.items()}
    ids = {
        name: found.test[name].samples[coalitions.order_of_ids(found.test[name])][known]
        for name, (known, _) in own.items()
        if len(known)
    }
    _, number = np.unique(np.concatenate(list(ids.values())), return_inverse=True)
    ends = np.cumsum([len(one) for one in ids.values()])
    places = dict(zip(ids, np.split(number, ends[:-1]), strict=True))
    rows = {}
    for name in ids:
        trained = found.train[name].y
        labels = own[name][1] if trained is None or np.isnan(trained).all() else trained
        rows[name] = _Rows(*own[name], places[name], scores.baseline(labels, measure))
    return rows, int(number.max()) + 1


def _values(
    runs: Mapping[int, Coalition],
    rows: Mapping[ClientId, _Rows],
    samples: int,
    labels: Labels,
    measure: str,
) -> tuple[dict[ClientId, dict[int, Array]], dict[ClientId, Array]]:
    """Return each coalition's value to each party of it, and that without a model.

    Each is (1 + replicates,), the first of the rows as they are.
    """
    sign = 1.0 if MEASURES[measure] else -1.0
    values: dict[ClientId, dict[int, list[Array]]] = {name: {} for name in rows}
    base: dict[ClientId, list[Array]] = {name: [] for name in rows}
    for drawn in scores.draws(samples):
        for name, own in rows.items():
            weights = drawn[:, own.samples]
            constant = np.full(len(own.truth), own.baseline)
            without = sign * scores.judged(constant, own.truth, weights, measure)
            base[name].append(without)
            for number, run in runs.items():
                found = without
                if name in run.said:
                    said = _named(run.said[name][own.known], labels, measure)
                    found = sign * scores.judged(said, own.truth, weights, measure)
                values[name].setdefault(number, []).append(found)
    return (
        {name: {at: np.concatenate(own[at]) for at in own} for name, own in values.items()},
        {name: np.concatenate(own) for name, own in base.items()},
    )


def _named(said: Array, labels: Labels, measure: str) -> Array:
    """Return what is judged: for the accuracy of two classes the one that a score says."""
    if labels.task == "binary" and measure == "accuracy":
        return np.where(said > THRESHOLD, 1.0, -1.0)
    return said


def _contribution_of(
    work: _Work,
    runs: Mapping[int, Coalition],
    found: federation.Federation,
    measure: str,
    folder: Path | None,
) -> Contribution:
    """Return what the values of the coalitions come to."""
    parties = work.parties
    rows, samples = _rows(found, measure)
    few = [name for name, own in rows.items() if len(own.truth) < LEAST_ROWS]
    told = {name: own for name, own in rows.items() if name not in few}
    if not told:
        raise ExperimentError(
            f"No party has {LEAST_ROWS} labelled test rows, and figures of fewer would tell their "
            "labels; raise test in [split]."
        )
    values, base = _values(runs, told, samples, work.labels, measure)
    # of one class there is no AUC, of equal numbers no R²
    none = [name for name in told if not math.isfinite(values[name][_all_parties(parties)][0])]
    values = {name: own for name, own in values.items() if name not in none}
    if not values:
        raise ExperimentError(
            f"There is no {measure} of the test rows of any party: their labels are all alike; "
            "raise test in [split], or choose another measure."
        )
    games = _games(values, base, parties, whole=len(parties) <= MOST)
    worth = {
        "left_out": {to: left_out(game, players) for to, (game, players) in games.items()},
        "shapley": {to: shapley_values(game, players) for to, (game, players) in games.items()}
        if len(parties) <= MOST
        else {},
    }
    tables = {name: _table(own, parties) for name, own in worth.items()}
    sums = {to: float(sum(own[at][0] for at in own)) for to, own in worth["shapley"].items()}
    if worth["shapley"]:
        sums[OTHERS] = float(sum(one.value for one in tables["shapley"][OTHERS].values()))
    sign = 1.0 if MEASURES[measure] else -1.0
    every, single = _all_parties(parties), {name: 1 << at for at, name in enumerate(parties)}
    return Contribution(
        *(work.described.name, work.described.algorithm, measure, parties),
        rows={name: len(rows[name].truth) if name in rows else 0 for name in parties},
        baseline={name: float(sign * base[name][0]) for name in values},
        alone={
            name: one
            for name, own in values.items()
            if single[name] in own and (one := Worth.of(np.asarray(sign * own[single[name]])))
        },
        together={
            name: one
            for name, own in values.items()
            if (one := Worth.of(np.asarray(sign * own[every])))
        },
        left_out=tables["left_out"],
        shapley=tables["shapley"] if worth["shapley"] else None,
        sums=sums,
        coalitions=tuple(_record(run, parties, values, sign) for run in runs.values()),
        notes=_notes(runs, parties, none, few),
        folder=folder,
    )


def _all_parties(parties: Sequence[ClientId]) -> int:
    """Return the number of the coalition of all parties."""
    return (1 << len(parties)) - 1


Game = tuple[dict[int, Array], list[int]]  # the value of each coalition; the players


def _games(
    values: Mapping[ClientId, Mapping[int, Array]],
    base: Mapping[ClientId, Array],
    parties: Sequence[ClientId],
    *,
    whole: bool,
) -> dict[str, Game]:
    """Return the games of the others for each party, and that of all parties.

    For a party the others are the players: none of them is the party alone. In that of all
    parties a coalition's value is the mean over the parties, of those outside without a model.
    """
    found: dict[str, Game] = {}
    for at, name in enumerate(parties):
        if name in values:
            own = 1 << at
            game = {number & ~own: one for number, one in values[name].items() if number & own}
            found[name] = game, [other for other in range(len(parties)) if other != at]
    numbers = next(iter(values.values()))
    every = {
        number: np.mean(
            [
                values[name][number] if number >> at & 1 else base[name]
                for at, name in enumerate(parties)
                if name in values
            ],
            axis=0,
        )
        for number in numbers
    }
    if whole:
        every[0] = np.mean([base[name] for name in values], axis=0)
    found[ALL] = every, list(range(len(parties)))
    return found


def _table(
    worth: Mapping[str, Mapping[int, Array]], parties: Sequence[ClientId]
) -> dict[str, dict[ClientId, Worth]]:
    """Return the figures of a table with their intervals, and the mean over the other parties."""
    if not worth:
        return {}
    found: dict[str, dict[ClientId, Worth]] = {}
    others: dict[ClientId, Worth] = {}
    given = [to for to in worth if to != ALL]
    for at, name in enumerate(parties):
        if own := [worth[to][at] for to in given if at in worth[to]]:
            # so that the sum over the parties is the mean gain of the parties by joining
            mean = Worth.of(np.sum(own, axis=0) / len(given))
            others |= {} if mean is None else {name: mean}
    for to in [*given, ALL]:
        figures = {parties[at]: Worth.of(values) for at, values in worth[to].items()}
        found[to] = {name: one for name, one in figures.items() if one is not None}
        if to == given[-1]:
            found[OTHERS] = others
    return found


def _record(
    run: Coalition,
    parties: Sequence[ClientId],
    values: Mapping[ClientId, Mapping[int, Array]],
    sign: float,
) -> dict[str, Any]:
    """Return what contribution.json says of a coalition."""
    inside = coalitions.members(run.number, parties)
    own = {
        name: Worth.of(np.asarray(sign * values[name][run.number]))
        for name in inside
        if name in values
    }
    return {
        "parties": list(inside),
        "trained": run.trained,
        "note": run.note,
        "rounds": run.rounds,
        "seconds": run.seconds,
        "values": {name: asdict(one) for name, one in own.items() if one is not None},
    }


_NAMED = 6  # coalitions that a note names, at most


def _notes(
    runs: Mapping[int, Coalition],
    parties: Sequence[ClientId],
    none: Iterable[ClientId],
    few: Sequence[ClientId],
) -> tuple[str, ...]:
    notes = []
    if few:
        notes.append(
            f"No figures to {listed(few)} with fewer than {LEAST_ROWS} labelled test rows, whose "
            "labels they would tell; split.test holds more rows out."
        )
    if len(parties) > MOST:
        notes.append(
            f"There are {len(parties)} parties, of which all coalitions would be "
            f"{2 ** len(parties) - 1:,} runs: Shapley values are computed of up to {MOST} parties, "
            "and of more each party is left out once, and trained alone."
        )
    for name in none:
        notes.append(f"The labels of {name}'s test rows are all alike: it has no value here.")
    alike: dict[tuple[bool, str], list[str]] = {}
    for run in runs.values():
        if run.note:
            who = " + ".join(coalitions.members(run.number, parties))
            alike.setdefault((run.trained, run.note), []).append(who)
    for (trained, note), some in alike.items():
        untrained = "" if trained else "not trained, counts as without a model: "
        which = ", ".join(some[:_NAMED])
        if len(some) > _NAMED:
            which += f" and {len(some) - _NAMED} more of {len(runs)} coalitions"
        notes.append(f"{which}: {untrained}{note.rstrip('.')}.")
    return tuple(notes)
