"""Try hyperparameters on held-out samples, one trial after the other, and keep what each came to.

The values come from optuna (an extra): a tree-structured Parzen estimator, drawn from the
experiment's seed, the number of the trial and the place of the key, so that a search that was
stopped, or killed between two draws, goes on to the same trials. The first trial has the values of
the file, so that what is chosen is never worse than they are on the samples that it is chosen by.
On a path they are even steps of one key's range instead.

The folder has study.db (SQLite: all trials, with each fold that is done), tuning.json, tuning.png
and best.toml.
"""

from __future__ import annotations

import json
import math
import sqlite3
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, fields, replace
from itertools import chain
from pathlib import Path
from typing import Any, Final

import numpy as np

from intarsia.core.files.atomic_files import remove_unfinished, write_atomically
from intarsia.core.files.contained import check_contained
from intarsia.core.settings import toml_text
from intarsia.errors import (
    CheckpointError,
    ConvergenceError,
    ExperimentError,
    IntarsiaError,
    first_line,
    several,
)
from intarsia.experiment import config, federation, search
from intarsia.experiment.config import Experiment
from intarsia.experiment.search import OBJECTIVES, SCORES, Range, Search
from intarsia.plots.tuning import tuning_picture
from intarsia.protocols import evaluation_rows
from intarsia.results import run_folder
from intarsia.results.lock import alone
from intarsia.results.result import Result, Score
from intarsia.training import run as running
from intarsia.training.loop import Progress
from intarsia.training.registry import choose
from intarsia.tuning.choice import chosen, pareto_front

_STUDY: Final = "study.db"
_FILES: Final = (_STUDY, "tuning.json", "tuning.png", "best.toml", run_folder.PSEUDONYMS)
_PENALTY: Final = "algorithm.regularisation"  # λ
# what is tried of an algorithm where the file names no ranges
_DEFAULTS: Final[Mapping[str, Range]] = {
    "regularisation": Range(low=1e-6, high=1.0, log=True),
    "rate": Range(low=1e-4, high=1e-1, log=True),
}


@dataclass(frozen=True)
class Trial:
    """Values of hyperparameters, and what they came to."""

    number: int  # from 0
    values: Mapping[str, Any]  # "table.key" → value
    # objective → mean over the folds, of scores weighed by their samples; none: training diverged
    scores: Mapping[str, float]
    folds: tuple[Mapping[str, float], ...] = ()  # of each fold: objectives, and "samples"
    note: str = ""

    def error(self, objective: str) -> float | None:
        """Return the standard error of a score over the folds; None below two."""
        return standard_error([one[objective] for one in self.folds])


def standard_error(values: Sequence[float]) -> float | None:
    """Return that of the mean; None below two."""
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None


@dataclass(frozen=True)
class Tuned:
    """A search that is over; `to_dict` is what stands in tuning.json."""

    experiment: str
    algorithm: str
    objectives: tuple[str, ...]
    folds: int  # 0: models are evaluated on the validation part
    trials: tuple[Trial, ...]
    best: int  # number of the trial that is chosen
    front: tuple[int, ...]  # numbers of those that no other is better than
    folder: Path
    path: bool = False  # the values are steps of one key's range, after those of the file
    notes: tuple[str, ...] = ()  # which trials are as good as the chosen one

    @property
    def chosen(self) -> Trial:
        """Return the trial that is chosen."""
        return next(one for one in self.trials if one.number == self.best)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON types."""
        found = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "folder"}
        return found | {"trials": [asdict(one) for one in self.trials]}


def tune(
    description: Experiment | str | Path,
    *,
    tables: federation.Tables | None = None,
    objective: Sequence[str] = (),
    trials: int | None = None,
    path: bool = False,
    out: str | Path | None = None,
    overwrite: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> Tuned:
    """Look for the hyperparameters that are best on held-out training samples.

    The test part is not used. Called again on the same folder it goes on with the fold in which it
    was stopped, or with more trials.

    Parameters
    ----------
    description
        An experiment with tables in this process, or its file. Its table [tune] says which keys
        vary; without ranges they are the regularisation, or the rate of networks.
    tables
        What a function makes, instead of the sources that the experiment names; best.toml is not
        written then.
    objective, trials
        In place of those of [tune].
    path
        Try even steps of one key's range, also where [tune] does not say so.
    out
        The output folder; None: that of the experiment with "-tuning" behind its name.
    overwrite
        Remove what a search before left in the folder.
    progress
        Called after every round of every trial.

    Raises
    ------
    UserError
        If optuna is not installed, a range does not fit the algorithm,
        or the folder has the search of another experiment.
    ConvergenceError
        If training diverges in every trial.
    """
    described = config.load(description) if not isinstance(description, Experiment) else description
    how = described.tune or Search()
    how = replace(
        how,
        objective=tuple(objective) or how.objective,
        trials=how.trials if trials is None else trials,
        path=path or how.path,
    )
    described, how = _settled(described, how)
    folder = Path(f"{described.out}-tuning" if out is None else out).resolve()
    _check_folder(folder)
    _check_ranges(described, how)
    _optuna()
    check_contained(folder)
    secret = None if overwrite else run_folder.read_secret(folder)
    built = federation.build(described, tables, secret)  # reads and checks them
    checksum, secret = built.fingerprint(), built.secret
    del built
    folder.mkdir(parents=True, exist_ok=True)
    busy = f"Another process works on the search in {folder}; wait until it is done."
    with alone(folder / "tuning.lock", busy):
        remove_unfinished(folder, "keys")
        if overwrite:
            _clear(folder)
        if run_folder.read_secret(folder) is None:
            run_folder.keep_secret(folder, secret)  # all trials hold out the same rows
        with _undamaged(folder / _STUDY):
            study = _opened(folder, described, how, checksum)
        with _readable(folder / _STUDY):
            work = _Work(study, described, how, folder, tables, secret, progress)
            found = _tried(work)
        return _finished(found, work)


def _settled(described: Experiment, how: Search) -> tuple[Experiment, Search]:
    """Return the experiment of the trials, and a search with folds and ranges."""
    held = described.split.validation
    folds = how.folds if how.folds is not None else (0 if held else described.split.folds or 5)
    if folds and held:
        raise ExperimentError(
            f"[tune] folds is {folds} and [split] validation is {held}; remove one of them."
        )
    if not folds and not held:
        raise ExperimentError(
            "[tune] folds is 0 and [split] validation is 0, which leaves no samples to choose by; "
            "set one of them, such as folds = 5."
        )
    if described.privacy.epsilon:
        raise ExperimentError(
            f"[privacy] epsilon is {described.privacy.epsilon:g}, which each fold of each trial "
            "would spend again; search with epsilon = 0 on samples that need no such protection."
        )
    ranges = how.ranges
    if not ranges:
        known = {one.name for one in fields(choose(described)[0].hyperparameters)}
        ranges = {f"algorithm.{key}": one for key, one in _DEFAULTS.items() if key in known}
    if not ranges:
        raise ExperimentError(
            f"[tune] names no ranges, and {described.algorithm} has no regularisation and no rate; "
            "add a table [tune.ranges] with keys of [algorithm]."
        )
    plain = replace(
        described,
        yardsticks=False,
        tune=None,
        split=replace(described.split, folds=0, fold=0),
    )
    return plain, replace(how, folds=folds, ranges=ranges)


def _check_ranges(described: Experiment, how: Search) -> None:
    """Refuse values that the algorithm does not take, before anything is computed."""
    for key, one in how.ranges.items():
        for value in one.ends:
            try:
                choose(_with(described, {key: value}))
            except ExperimentError as problem:
                raise ExperimentError(
                    f"[tune.ranges] {key} goes to {toml_text(value)}, which is refused: {problem}"
                ) from None


def _with(described: Experiment, values: Mapping[str, Any]) -> Experiment:
    """Return the experiment with other values of some keys."""
    tree = config.to_dict(described)
    for key, value in values.items():
        table, _, name = key.partition(".")
        tree[table] = {**tree[table], name: value}
    made = config.from_dict(tree, ".", described.name)
    return replace(made, own_algorithm=described.own_algorithm)


def _check_folder(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise CheckpointError(
            f"{folder} is a file, and a search's output is a folder; choose another with --out."
        )
    if (folder / "experiment.json").is_file() or (folder / "result.json").is_file():
        raise CheckpointError(
            f"{folder} holds a run; choose another folder for the search with --out."
        )
    if (folder / "study.json").is_file():
        raise CheckpointError(
            f"{folder} holds what intarsia contribution found; choose another folder for the "
            "search with --out."
        )


def _clear(folder: Path) -> None:
    for name in _FILES:
        (folder / name).unlink(missing_ok=True)


def _optuna() -> Any:
    try:
        import optuna
    except ModuleNotFoundError:
        raise ExperimentError(
            "The search needs the library optuna, which is not installed; run "
            'pip install "intarsia[tune]".'
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


@contextmanager
def _undamaged(path: Path) -> Iterator[None]:
    """Say in a sentence that the file of the trials is none that a search wrote."""
    try:
        with _readable(path):
            yield
    except IntarsiaError:
        raise
    except Exception as problem:  # whatever optuna meets in a file that is not its own
        raise _damaged(path, f"{type(problem).__name__}: {first_line(problem)}") from problem


def _damaged(path: Path, why: str) -> CheckpointError:
    return CheckpointError(
        f"{path} is damaged ({why}); put back a copy, or begin the search anew with --overwrite."
    )


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Say in a sentence where the file of the trials cannot be read or written."""
    from sqlalchemy.exc import SQLAlchemyError  # here: optuna brings it along

    storage = _optuna().exceptions.StorageInternalError
    try:
        yield
    except (SQLAlchemyError, sqlite3.Error, storage, json.JSONDecodeError) as problem:
        cause = getattr(problem, "orig", None) or problem.__cause__ or problem
        raise CheckpointError(
            f"{path} cannot be read or written ({first_line(cause)}); make sure that the disk has "
            "room, and else put back a copy, or begin the search anew with --overwrite."
        ) from problem


def _opened(folder: Path, described: Experiment, how: Search, tables: str) -> Any:
    """Return the study in the folder, begun or gone on with; refuse that of something else."""
    optuna = _optuna()
    tree = config.to_dict(described)
    for key in ("out", "workers", "ray"):  # which change nothing of what comes out
        tree["experiment"].pop(key, None)
    ranges = search.to_table(how)
    if not how.path:
        del ranges["trials"]  # there may be more of them later
    own = {"experiment": tree, "tune": ranges, "tables": tables}
    path = folder / _STUDY
    path.touch(mode=0o600)  # the experiment in it may hold the URLs of databases
    _check_plain(path)

    def connect() -> sqlite3.Connection:  # a path as it is, whatever it means in a URL
        return sqlite3.connect(path, check_same_thread=False)

    study = optuna.create_study(
        study_name="tuning",
        storage=optuna.storages.RDBStorage(
            "sqlite:///study.db", engine_kwargs={"creator": connect}
        ),
        load_if_exists=True,
        directions=["maximize" if OBJECTIVES[one] else "minimize" for one in how.objectives],
    )
    before = study.user_attrs.get("of")
    own = json.loads(json.dumps(own))
    if before is None:
        study.set_user_attr("of", own)
    elif before != own:
        known = before if isinstance(before, dict) else {}
        differ = [key for key in own if own[key] != known.get(key)]
        words = {
            "experiment": "another experiment",
            "tune": "another [tune]",
            "tables": "other tables",
        }
        raise CheckpointError(
            f"{folder} holds a search over {' and '.join(words[one] for one in differ)}; choose "
            "another folder with --out, or replace it with --overwrite."
        )
    for one in study.trials:
        if why := _foreign(one, how):
            raise _damaged(path, f"trial {one.number + 1} {why}")
    return study


def _check_plain(path: Path) -> None:
    """Raise if a file of trials does something by itself when it is read or written."""
    # closed before optuna opens it
    with closing(sqlite3.connect(path)) as database:
        query = "select type, name, sql from sqlite_master"
        for kind, name, made in database.execute(query).fetchall():
            if kind in ("trigger", "view") or "virtual" in str(made).lower().split()[:2]:
                raise _damaged(path, f"it holds {name!r}, which a search does not make")


def _foreign(trial: Any, how: Search) -> str:
    """Return what a search over these ranges would not have put into a trial; "": nothing."""
    states = _optuna().trial.TrialState
    for key, value in trial.params.items():
        if key not in how.ranges or not how.ranges[key].holds(value):
            return f"has {key} = {value!r}, which is not in [tune.ranges]"
    if trial.state not in (states.COMPLETE, states.FAIL):
        return ""
    if missing := [key for key in how.ranges if key not in trial.params]:
        return f"has no {missing[0]}"
    folds = trial.user_attrs.get("folds", [])
    values = trial.values or () if trial.state == states.COMPLETE else ()
    wanted = len(how.objectives) * (trial.state == states.COMPLETE)
    rows = [(*(one[name] for name in how.objectives), one["samples"]) for one in folds]
    if len(values) != wanted or not np.isfinite([*values, *chain(*rows)]).all():
        return "has no finite scores"
    return "" if isinstance(trial.user_attrs.get("note", ""), str) else "has a note that is no text"


@dataclass(frozen=True, eq=False)
class _Work:
    """A search under way."""

    study: Any  # optuna's
    described: Experiment
    how: Search
    folder: Path
    tables: federation.Tables | None
    secret: bytes | None  # what pseudonyms come from
    progress: Callable[[Progress], None] | None


def _tried(work: _Work) -> tuple[Trial, ...]:
    """Run the trials that are left; return all."""
    optuna, study, how = _optuna(), work.study, work.how
    states = optuna.trial.TrialState
    over = (states.COMPLETE, states.FAIL)
    steps = _steps(how)
    count = how.trials if steps is None else 1 + len(steps)
    while sum(one.state in over for one in study.trials) < count:
        left = [one for one in study.trials if one.state == states.RUNNING]
        if left:  # a process was ended in it
            trial = optuna.trial.Trial(study, left[0]._trial_id)
        else:
            if not study.trials:
                study.enqueue_trial(_own_values(work.described, how))
            elif steps is not None and study.trials[-1].state in over:
                study.enqueue_trial(steps[len(study.trials) - 1])
            trial = study.ask()
        values = {}
        for place, (key, one) in enumerate(how.ranges.items()):
            # a sampler of its own for each value, which a process before may have drawn already
            drawn = np.random.default_rng([work.described.seed, trial.number, place])
            seed = int(drawn.bit_generator.seed_seq.generate_state(1)[0])
            study.sampler = optuna.samplers.TPESampler(seed=seed)
            values[key] = _value(trial, key, one)
        try:
            rows = _folds(work, trial, _with(work.described, values))
        except ConvergenceError as problem:
            trial.set_user_attr("note", str(problem))
            study.tell(trial, state=states.FAIL)
            continue
        study.tell(trial, [_mean(rows, one) for one in how.objectives])
    return tuple(_trial(one, how) for one in study.trials if one.state in over)


def _steps(how: Search) -> list[dict[str, Any]] | None:
    """Return the values of a path but the file's own, in their order; None: they are drawn."""
    if not how.path:
        return None
    ((key, one),) = how.ranges.items()
    return [{key: value} for value in one.steps(how.trials - 1)]


def _own_values(described: Experiment, how: Search) -> dict[str, Any]:
    """Return what the experiment itself has in place of the keys that vary, where it is in range.

    Of numbers outside of their range the nearer end is taken.
    """
    tree, options = config.to_dict(described), choose(described)[1]
    found: dict[str, Any] = {}
    for key, one in how.ranges.items():
        table, _, name = key.partition(".")
        value = tree[table].get(name, getattr(options, name, None))
        if one.choices:
            if value in one.choices:
                found[key] = value
        elif isinstance(value, int | float) and not isinstance(value, bool):
            low, high = one.ends
            inside = min(max(value, low), high)
            found[key] = round(inside) if one.whole else float(inside)
    return found


def _value(trial: Any, key: str, one: Range) -> Any:
    """Return the trial's value of a key: that which it has already, or a new one."""
    if one.choices:
        return trial.suggest_categorical(key, list(one.choices))
    if one.whole:
        return trial.suggest_int(key, one.low, one.high, log=one.log)
    return trial.suggest_float(key, one.low, one.high, log=one.log)


def _folds(work: _Work, trial: Any, described: Experiment) -> list[dict[str, float]]:
    """Train once for each fold that is left; return what each came to."""
    rows: list[dict[str, float]] = list(trial.user_attrs.get("folds", ()))
    folds = work.how.folds or 0
    for fold in range(len(rows), max(folds, 1)):
        one, at = described, f"trial {trial.number + 1}/{work.how.trials}"
        if folds:
            part = replace(described.split, folds=folds, fold=fold)
            one, at = replace(described, split=part), f"{at}, fold {fold + 1}/{folds}"

        def show(now: Progress, at: str = at) -> None:
            if work.progress is not None:
                work.progress(replace(now, phase=at))

        how: dict[str, Any] = {"tables": work.tables, "secret": work.secret}
        result = running.run(one, **how, out=None, progress=show)
        rows = [*rows, _figures(result, work, one)]
        trial.set_user_attr("folds", rows)  # from here on it is not run again
    return rows


def _figures(result: Result, work: _Work, tried: Experiment) -> dict[str, float]:
    """Return the objectives of a run of an experiment."""
    score = result.metrics.server or result.metrics.clients_mean
    if score is None:
        raise ExperimentError(
            "A run has no score on the held-out samples: no client has enough of them with a "
            "label; set folds lower in [tune], or validation higher in [split]."
        )
    found = {"samples": float(score.samples or 1)}
    for name in work.how.objectives:
        value = _figure(result, score, name)
        if value is None:
            others = [one for one in SCORES if _figure(result, score, one) is not None]
            raise ExperimentError(
                f"[tune] objective is {name!r}, which {_lacking(work, tried, name)}choose from "
                f"{', '.join(others)}."
            )
        found[name] = value
    return found


def _figure(result: Result, score: Score, objective: str) -> float | None:
    if objective == "auc":
        return None if score.figures is None else score.figures.auc
    if objective in SCORES:
        value: float | None = getattr(score, objective)
        return value
    if objective == "seconds":
        return float(result.seconds["training"])
    if objective == "bytes":
        return float(result.bytes["up"] + result.bytes["down"])
    return float(getattr(result, objective))


def _lacking(work: _Work, tried: Experiment, objective: str) -> str:
    """Return why scores lack an objective, by the held-out labels, and what else may help."""
    found = federation.build(tried, work.tables, work.secret)
    labels, schema = found.labels, found.test_schema
    numbers = labels.task == "regression"
    if numbers != (objective == "r2"):
        return "this experiment's scores lack; "
    evaluated = evaluation_rows.evaluated_clients(schema, evaluation_rows.rows_to_evaluate(schema))
    held = []
    for name in evaluated:
        own = found.test[name].y
        assert own is not None  # of evaluated rows
        each = [
            f"{count:,} of {f'{one:g}' if numbers else repr(labels.classes[max(int(one), 0)])}"
            for one, count in zip(*np.unique(own[~np.isnan(own)], return_counts=True), strict=True)
        ]
        held.append(f"{' and '.join(each)} at {name!r}")
    needs = "rows of different labels" if numbers else "rows of different classes"
    if len(evaluated) == 1 and not numbers:
        needs = f"{evaluation_rows.LEAST_ROWS} rows or more of each class"
    split, more = tried.split, "set folds lower in [tune]"
    where = f"fold {split.fold + 1} of {split.folds}"
    if not split.folds:
        where, more = "the validation part", "set validation higher in [split]"
    shown = "; ".join(held[:3]) + f"; and others at {several(len(held) - 3, 'client')}" * (
        len(held) > 3
    )
    return f"takes {needs}, and {where} has {shown}: {more}, or "


def _mean(rows: Sequence[Mapping[str, float]], objective: str) -> float:
    if objective in SCORES:
        return statistics.fmean([one[objective] for one in rows], [one["samples"] for one in rows])
    return statistics.fmean(one[objective] for one in rows)


def _trial(one: Any, how: Search) -> Trial:
    scores = dict(zip(how.objectives, one.values or (), strict=False))
    attributes = one.user_attrs
    folds = tuple(attributes.get("folds", ()))
    return Trial(one.number, dict(one.params), scores, folds, attributes.get("note", ""))


def _finished(trials: tuple[Trial, ...], work: _Work) -> Tuned:
    """Choose, and write what the search came to."""
    described, how, folder = work.described, work.how, work.folder
    done = [one for one in trials if one.scores]
    if not done:
        raise ConvergenceError(
            f"Training diverged in all {len(trials)} trials, the first time so: {trials[0].note} "
            "Set other ranges in [tune.ranges]."
        )
    better = [OBJECTIVES[one] for one in how.objectives]
    table = [[one.scores[name] for name in how.objectives] for one in done]
    best = done[chosen(table, better)]
    notes: tuple[str, ...] = ()
    if len(how.objectives) == 1:
        best, notes = _among_equals(best, done, how)
    if described.alignment.ids != "plain" and described.alignment.key is None:
        notes += (
            "The best values were chosen without the test rows of this search. A run of them has "
            "pseudonyms of its own, and so other test rows; with a file in alignment.key all have "
            "the same.",
        )
    front = [one.number for one, on in zip(done, pareto_front(table, better), strict=True) if on]
    tuned = Tuned(
        *(described.name, described.algorithm, how.objectives, how.folds or 0, trials, best.number),
        *(tuple(front), folder, how.path, notes),
    )
    tuning_picture(tuned, folder / "tuning.png")
    if work.tables is None:
        best_toml = _best_toml(described, tuned).encode()  # may hold the URLs of databases
        write_atomically(folder / "best.toml", best_toml, private=True)
    text = json.dumps(tuned.to_dict(), indent=2, ensure_ascii=False, allow_nan=False)
    write_atomically(folder / "tuning.json", f"{text}\n".encode())
    return tuned


def _among_equals(best: Trial, done: Sequence[Trial], how: Search) -> tuple[Trial, tuple[str, ...]]:
    """Return which of the trials that are as good as the best one to take, and notes of them.

    It is the one with the largest λ, which is the simplest model, or without λ the first.
    """
    [name] = how.objectives
    notes = []
    equal = [one for one in done if math.isclose(one.scores[name], best.scores[name])]
    if len(equal) > 1:
        best, rule = equal[0], "the first of them is chosen"
        if _PENALTY in how.ranges:
            best = max(equal, key=lambda one: one.values[_PENALTY])  # of equals the first
            rule = f"of them that with the largest {_PENALTY.partition('.')[2]} is chosen"
        notes.append(f"{len(equal)} of {len(done)} trials have the same {name}; {rule}.")
    if len(best.folds) > 1 and name in SCORES:
        others = [one for one in done if one not in equal]
        near = [one for one in others if _within_error(one, best, name)]
        if near:
            notes.append(
                f"{len(near)} of {len(others)} other trials differ from the chosen one by no more "
                "than one standard error of the difference over the folds: between them it may "
                "be chance."
            )
    return best, tuple(notes)


def _within_error(one: Trial, other: Trial, objective: str) -> bool:
    """Return whether two trials, of the same folds, differ by no more than one standard error."""
    pairs = zip(one.folds, other.folds, strict=True)
    apart = [mine[objective] - theirs[objective] for mine, theirs in pairs]
    error = standard_error(apart)
    return error is not None and abs(statistics.fmean(apart)) <= error


def _best_toml(described: Experiment, tuned: Tuned) -> str:
    """Return the experiment with the chosen values, as a file that can be run."""
    best = _with(described, tuned.chosen.values)
    split = replace(best.split, validation=0.0)
    best = replace(best, yardsticks=True, out=str(tuned.folder / "best"), split=split)
    came = ", ".join(f"{name} {value:.6g}" for name, value in tuned.chosen.scores.items())
    values = ", ".join(f"{key} = {toml_text(one)}" for key, one in tuned.chosen.values.items())
    return (
        f"# The best of {len(tuned.trials)} trials: {values}\n# On held-out training samples: "
        f"{came}\n\n{config.to_toml(best)}"
    )
