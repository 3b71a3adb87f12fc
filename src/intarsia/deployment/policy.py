"""What a data owner allows at its site: the table [policy] of site.toml, which no job overrides.

A job that it forbids is refused in one sentence that names the key. The sentence stands in the
site's log and goes to the server's people; it has no value of the site's table.
"""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal

from intarsia.core.algorithm import Algorithm
from intarsia.core.files.atomic_files import write_atomically
from intarsia.core.plugins import Kind, Plugin, functions_in, installed
from intarsia.core.settings import (
    Count,
    CountOrZero,
    FractionBelowOne,
    NotNegative,
    check_ranges,
    hyperparameters,
    toml_text,
)
from intarsia.engines.remote.round_count import Rounds
from intarsia.engines.remote.wire import Call
from intarsia.errors import ExperimentError, PolicyError, RefusedError, nearest, several
from intarsia.experiment.config import Experiment

DIGEST: Final = 64  # hex digits of the digest of a job
SET_UPS: Final = 10  # that may begin for each job that may, as others may refuse a job
_ROUNDS: Final = "rounds.json"
_DAYS: Final = 8  # the last ones, whose rounds are known
_FEW: Final = 5  # labels, whose sums would tell them


# of an experiment, which a site with a table of its own reads
READ_TABLES: Final = (
    *("experiment", "split", "preprocessing", "algorithm", "labels", "alignment", "privacy"),
)


@dataclass(frozen=True, kw_only=True)
class Policy:
    """What the owner of a site allows.

    Raises
    ------
    ExperimentError
        If a value is outside its range, or two contradict each other.
    """

    algorithms: tuple[str, ...] = ()  # that may run; (): any
    least_clients: Count = 1  # a job's privacy.least_clients must be as many, and its clients
    # a job must add noise: its epsilon is above 0 and at most this; 0: noise is not asked for
    epsilon_most: NotNegative = 0.0
    # of a job, where epsilon_most or epsilon_total is set
    delta_most: FractionBelowOne = 1e-5
    epsilon_total: NotNegative = 0.0  # of all jobs that ever began, added up; 0: any
    # whether the server may read a model of this site alone; None: where plain sums are allowed
    models_readable: bool | None = None
    columns: tuple[str, ...] = ()  # names, or patterns such as "lab_*", that may take part; (): all
    # to train on, of the site's table, and in the change of a round: a model of fewer shows them,
    # and who names the split and the steps chooses
    least_rows: CountOrZero = 5
    # by which the rows of two jobs differ, if they do: totals of both tell those few; 0: any number
    least_changed: CountOrZero = 5
    most_rows: CountOrZero = 0  # of the site's table; 0: any number
    jobs_a_day: CountOrZero = 0  # that begin on a day, in UTC; 0: any number
    # that differ in more than their names, of all that ever began: on the same rows each tells more
    jobs_total: CountOrZero = 0  # 0: any number
    rounds_a_day: CountOrZero = 0  # of all jobs together; the end of a job is one more
    rounds_a_job: CountOrZero = 0  # that a job says at most; 0: any number
    # which jobs wait for the owner: each; those that are not listed; none
    approve: Literal["each", "listed", "all"] = "all"
    listed: tuple[str, ...] = ()  # algorithms, or digests of jobs, that need not wait

    def __post_init__(self) -> None:
        check_ranges(self, "[policy] ")
        names = *self.algorithms, *(one for one in self.listed if len(one) != DIGEST)
        if names:
            # half of what a site imports at its start, which others may be waiting for
            from intarsia.training.registry import algorithm_names

            known = algorithm_names()
            for name in names:
                if name not in known:
                    raise ExperimentError(
                        f"[policy] names the algorithm {name!r}; {nearest(name, known)}."
                    )
        if self.most_rows and self.most_rows < self.least_rows:
            raise ExperimentError(
                f"[policy] least_rows is {self.least_rows} and most_rows {self.most_rows}; no "
                "table has as many: raise most_rows, or leave it out."
            )
        if self.listed and self.approve != "listed":
            raise ExperimentError(
                f'[policy] listed is {toml_text(self.listed)} but approve is "{self.approve}", '
                'which asks for no list; set approve = "listed", or remove listed.'
            )


def policy_of(table: Mapping[str, Any], where: str) -> Policy:
    """Return the policy that a table says; `epsilon_min` is read as `epsilon_most`.

    ε bounds what a model tells: the smaller, the more private. The least privacy that an owner
    accepts is thus the largest ε.

    Raises
    ------
    ExperimentError
        If a key or a value is wrong.
    """
    given = dict(table)
    if "epsilon_min" in given:
        if "epsilon_most" in given:
            raise ExperimentError(
                f"{where} has epsilon_most and epsilon_min, which are one key: the largest epsilon "
                "of a job; remove epsilon_min."
            )
        given["epsilon_most"] = given.pop("epsilon_min")
    try:
        return hyperparameters(Policy, given, where)
    except ExperimentError as problem:  # the policy's own checks do not know the file
        own = str(problem).removeprefix("[policy]")
        raise ExperimentError(f"{where}{own}" if own != str(problem) else own) from None


def check_job(
    policy: Policy, plain: bool, job: Experiment, algorithm: Algorithm, options: Any, clients: int
) -> None:
    """Refuse a job that the policy forbids, by what it says of itself.

    Parameters
    ----------
    plain
        Whether the site takes part in jobs whose sums the server can read.
    options
        The algorithm's hyperparameters.
    clients
        How many sites are asked to take part.

    Raises
    ------
    PolicyError
        With the key.
    """
    asked = job.privacy
    check_algorithm(policy, job.algorithm)
    if asked.least_clients < policy.least_clients:
        raise forbidden(
            "least_clients",
            f"asks for totals of {policy.least_clients} clients or more, and the job's "
            f"privacy.least_clients is {asked.least_clients}",
        )
    check_clients(policy, clients)
    if policy.epsilon_most and not 0 < asked.epsilon <= policy.epsilon_most:
        said = "adds no noise" if not asked.epsilon else f"has epsilon = {asked.epsilon:g}"
        raise forbidden(
            "epsilon_most",
            f"asks for noise with an epsilon of at most {policy.epsilon_most:g}, and the job "
            f"{said}",
        )
    if (policy.epsilon_most or policy.epsilon_total) and asked.delta > policy.delta_most:
        raise forbidden(
            "delta_most",
            f"asks for a delta of at most {policy.delta_most:g}, and the job has {asked.delta:g}",
        )
    if policy.epsilon_total and not asked.epsilon:
        raise forbidden(
            "epsilon_total",
            f"asks that the epsilons of all jobs come to {policy.epsilon_total:g} at most, and the "
            "job adds no noise",
        )
    if policy.rounds_a_job and job.rounds > policy.rounds_a_job:
        raise forbidden(
            "rounds_a_job",
            f"allows no more than {policy.rounds_a_job} in a job, and the job has {job.rounds}",
        )
    rows = algorithm.disclosure.rows(options)
    if rows is not None and rows < policy.least_rows:
        raise forbidden(
            "least_rows",
            f"asks for {several(policy.least_rows, 'row')} or more in the change of a round, and "
            f"the job's steps take {rows}",
        )
    readable = plain if policy.models_readable is None else policy.models_readable
    told = algorithm.disclosure.server_reads(options)
    if not readable and (told or asked.mode == "plain"):
        what = told or "every contribution of this site, as its sums are not sealed"
        raise forbidden(
            "models_readable",
            f"lets the server read no model of this site, and it would read {what}",
        )


def check_algorithm(policy: Policy, name: str) -> None:
    """Refuse a job by its algorithm's name, before anything of that algorithm is imported."""
    if policy.algorithms and name not in policy.algorithms:
        raise forbidden(
            "algorithms", f"allows {', '.join(policy.algorithms)}, and the job is {name[:80]}"
        )


_TO_NAME = "it to a list with that function if you know what it does"


def check_experiment(
    policy: Policy, tree: Mapping[str, Any], modules: Collection[str], *, own_table: bool
) -> None:
    """Refuse an experiment that has a site open files, or run functions, that it does not name.

    Parameters
    ----------
    modules
        The functions that it names, as "module:function".
    own_table
        Whether it names a table.
    """
    for name in (*READ_TABLES, "dataset", "partition"):
        if not isinstance(tree.get(name, {}), Mapping):
            raise RefusedError(
                f"The experiment's {name} is {repr(tree[name])[:80]}; expected a table."
            )
    check_algorithm(policy, str(dict(tree.get("algorithm") or {}).get("name")))
    if own_table and "dataset" in tree:
        raise ExperimentError("The run is a simulation, and this site has a table of its own.")
    if {"path", "url"} & dict(tree.get("dataset") or {}).keys():
        raise ExperimentError(
            "The run's data set lies where the run says, and a site opens only files that its "
            "own folder names; give it as [table] in site.toml, or name a data set by name."
        )
    for name in functions_in(tree.get("algorithm")):
        if name not in modules:
            raise forbidden_by_site(
                "modules",
                f"runs only functions that it names, and the run uses {name[:80]!r}",
                _TO_NAME,
            )
    for one in _plugins_in(tree):
        if one.function not in modules:
            raise forbidden_by_site(
                "modules",
                f"runs only functions that it names, and the run's {one.kind} {one.name!r} is "
                f"{one.function!r} of the installed package {one.package}",
                _TO_NAME,
            )


def _plugins_in(tree: Mapping[str, Any]) -> Iterator[Plugin]:
    """Yield what the names in an experiment have a site import from other packages."""
    sets = dict(tree.get("dataset") or {}).get("name")
    asked: dict[Kind, Any] = {
        "algorithm": [dict(tree.get("algorithm") or {}).get("name")],
        "data set": sets if isinstance(sets, list) else [sets],
        "partition": [dict(tree.get("partition") or {}).get("kind")],
    }
    for kind, names in asked.items():
        yield from (one for one in installed(kind) if one.name in names)


def check_clients(policy: Policy, clients: int) -> None:
    """Refuse a job with too few clients."""
    if clients < policy.least_clients:
        raise forbidden(
            "least_clients",
            f"asks for {policy.least_clients} clients or more, and the job has {clients}",
        )


def check_table(policy: Policy, columns: Iterable[str], rows: int) -> None:
    """Refuse a table with columns or rows that may not take part; how many is not said outside."""
    if policy.columns:
        odd = [
            name
            for name in columns
            if not any(fnmatch.fnmatchcase(name, one) for one in policy.columns)
        ]
        if odd:
            error = forbidden("columns", "does not list a column that the site's table has")
            error.add_note(f"{', '.join(odd[:8])}: exclude it in [table], or list it")
            raise error
    check_rows(policy, rows)
    if policy.most_rows and rows > policy.most_rows:
        error = forbidden("most_rows", "allows fewer rows than the site's table has")
        error.add_note(f"{several(rows, 'row')}, and {policy.most_rows} are the most")
        raise error


def check_rows(policy: Policy, rows: int, labelled: int = 0) -> None:
    """Refuse to train on too few rows, or on the site's labels of few of them; 0: it has none."""
    least = policy.least_rows
    for what, count, most in ("row", rows, least), ("labelled row", labelled, min(least, _FEW)):
        if count < most and (count or what == "row"):
            said = f"asks for more {what}s than would take part at the site"
            error = forbidden("least_rows", said)
            error.add_note(f"{several(count, what)}, and {most} are the least")
            raise error


def check_evaluated(policy: Policy, part: str, rows: int) -> None:
    """Refuse metrics of too few rows of a part; 0: the site is not evaluated."""
    if 0 < rows < policy.least_rows:
        error = forbidden(
            "least_rows",
            f"asks for more labelled rows than the site would be evaluated on, of the {part} part",
        )
        error.add_note(
            f"{several(rows, 'row')}, and {policy.least_rows} are the least. Training rows are "
            "evaluated where split.test holds none out, and none that metrics of clients less each "
            "other would tell"
        )
        raise error


def check_jobs(policy: Policy, begun: int) -> None:
    """Refuse one more job where so many have begun today."""
    if policy.jobs_a_day and begun >= policy.jobs_a_day:
        raise forbidden(
            "jobs_a_day",
            f"allows no more than {policy.jobs_a_day} a day, and {begun} began today (UTC)",
        )


def check_different(policy: Policy, begun: int) -> None:
    """Refuse one more job that differs from all before, where so many ever began."""
    if policy.jobs_total and begun >= policy.jobs_total:
        raise forbidden(
            "jobs_total",
            f"allows no more than {policy.jobs_total} that differ, and {begun} began before, each "
            "of which may run again",
        )


def check_set_ups(policy: Policy, begun: int) -> None:
    """Refuse to read the table for one more job where so many were let in today, begun or not."""
    most = SET_UPS * policy.jobs_a_day
    if most and begun >= most:
        raise forbidden(
            "jobs_a_day",
            f"allows no more than {policy.jobs_a_day} a day, and the set-up of {begun} began today "
            "(UTC)",
        )


def check_spent(policy: Policy, spent: float, epsilon: float) -> None:
    """Refuse a job whose epsilon, with those of all that began before, is more than is allowed."""
    most = policy.epsilon_total
    # sums of decimals are not exact; what is no number is no less than anything
    if most and not spent + epsilon <= most * (1 + 1e-12):
        raise forbidden(
            "epsilon_total",
            f"asks that the epsilons of all jobs come to {most:g} at most; those before have spent "
            f"{spent:g}, and the job has epsilon = {epsilon:g}",
        )


class RoundCount:
    """Counts the rounds of a day at a site, of all runs, in a file that goes back with no run."""

    def __init__(self, folder: Path, most: int) -> None:
        self._path, self._most = folder / _ROUNDS, most

    def begin(self, call: Call, *, repeats: bool = False) -> None:
        """Take note of a call; the round that it goes on with is counted already.

        `repeats`: the algorithm calls the function several times in a round.

        Raises
        ------
        PolicyError
            If the day has had as many as are allowed.
        OSError
            If it cannot be written; then the round may not begin.
        """
        if not self._most:
            return
        day, found = today(), _read(self._path)
        # a clock that was a day ahead for a while comes back to a day that has been counted
        days = {**found.get("days", {}), found.get("day", day): found.get("count", 0)}
        run, number = found.get("last", ("", 0))
        before = Rounds(
            days.get(day, 0),
            (run, number),
            found.get("anchor", 0),
            tuple(found.get("begun", ())),
            tuple(found.get("called", ())),
            found.get("sequence", 0),
        )
        after = before.after(call, repeats=repeats)
        if after is before:
            return
        if before.count < after.count > self._most:
            raise forbidden(
                "rounds_a_day", f"allows no more than {self._most} a day, which are used up (UTC)"
            )
        days = dict([*{**days, day: after.count}.items()][-_DAYS:])
        content = {"day": day, "days": days, **asdict(after)}
        write_atomically(self._path, json.dumps(content).encode(), private=True)


def today() -> str:
    """Return the day in UTC."""
    return datetime.now(UTC).date().isoformat()


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError:
        raise ExperimentError(
            f"{path} is damaged, which counts the rounds of a day; remove it to count anew."
        ) from None
    return found if isinstance(found, dict) else {}


def forbidden(key: str, says: str) -> PolicyError:
    """Return the refusal of a job by a key of [policy]: it goes to the server's people as it is."""
    return PolicyError(f"the owner {says} ([policy] {key} in site.toml).")


def forbidden_by_site(key: str, says: str, advice: str) -> PolicyError:
    """Return the refusal of a job by a key of [site]: it goes to the server's people as it is."""
    return PolicyError(f"the site {says} ([site] {key} in site.toml); set {advice}.")
