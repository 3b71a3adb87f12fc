"""What a data owner allows at its site: the table [policy] of site.toml, which no job overrides.

A job that it forbids is refused in one sentence that names the key. The sentence stands in the
site's log and goes to the server's people; it has no value of the site's table.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from intarsia.core.algorithm import Algorithm
from intarsia.core.block import ClientId
from intarsia.core.files.atomic_files import write_atomically
from intarsia.core.settings import (
    Count,
    CountOrZero,
    FractionBelowOne,
    NotNegative,
    check_ranges,
    hyperparameters,
    toml_text,
)
from intarsia.engines import codec
from intarsia.engines.remote.round_count import Rounds
from intarsia.engines.remote.wire import Call
from intarsia.errors import CodecError, ExperimentError, PolicyError, nearest, several
from intarsia.experiment.config import Experiment

DIGEST: Final = 64  # hex digits of the digest of a job
SET_UPS: Final = 10  # that may begin for each job that may, as others may refuse a job
_ROUNDS: Final = "rounds.json"
_DAYS: Final = 8  # the last ones, whose rounds are known
_FEW: Final = 5  # labels, whose sums would tell them
Sets = tuple[NDArray[np.uint64], NDArray[np.uint64]]  # rows, and of each the sets that have it
# and what stands for the rows of the jobs in which every row had one
Values = tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.uint64]]
_NO_VALUES: Final[Values] = (np.zeros(0, np.uint64),) * 3
_MOST_VALUES: Final = 20_000  # of a column at a site, which are compared with other jobs'
_SETS: Final = 64  # of rows that jobs trained on, the last ones that differ: a bit of a word each


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
        raise _forbidden(
            "least_clients",
            f"asks for totals of {policy.least_clients} clients or more, and the job's "
            f"privacy.least_clients is {asked.least_clients}",
        )
    check_clients(policy, clients)
    if policy.epsilon_most and not 0 < asked.epsilon <= policy.epsilon_most:
        said = "adds no noise" if not asked.epsilon else f"has epsilon = {asked.epsilon:g}"
        raise _forbidden(
            "epsilon_most",
            f"asks for noise with an epsilon of at most {policy.epsilon_most:g}, and the job "
            f"{said}",
        )
    if (policy.epsilon_most or policy.epsilon_total) and asked.delta > policy.delta_most:
        raise _forbidden(
            "delta_most",
            f"asks for a delta of at most {policy.delta_most:g}, and the job has {asked.delta:g}",
        )
    if policy.epsilon_total and not asked.epsilon:
        raise _forbidden(
            "epsilon_total",
            f"asks that the epsilons of all jobs come to {policy.epsilon_total:g} at most, and the "
            "job adds no noise",
        )
    if policy.rounds_a_job and job.rounds > policy.rounds_a_job:
        raise _forbidden(
            "rounds_a_job",
            f"allows no more than {policy.rounds_a_job} in a job, and the job has {job.rounds}",
        )
    rows = algorithm.disclosure.rows(options)
    if rows is not None and rows < policy.least_rows:
        raise _forbidden(
            "least_rows",
            f"asks for {several(policy.least_rows, 'row')} or more in the change of a round, and "
            f"the job's steps take {rows}",
        )
    readable = plain if policy.models_readable is None else policy.models_readable
    told = algorithm.disclosure.server_reads(options)
    if not readable and (told or asked.mode == "plain"):
        what = told or "every contribution of this site, as its sums are not sealed"
        raise _forbidden(
            "models_readable",
            f"lets the server read no model of this site, and it would read {what}",
        )


def check_algorithm(policy: Policy, name: str) -> None:
    """Refuse a job by its algorithm's name, before anything of that algorithm is imported."""
    if policy.algorithms and name not in policy.algorithms:
        raise _forbidden(
            "algorithms", f"allows {', '.join(policy.algorithms)}, and the job is {name[:80]}"
        )


def check_clients(policy: Policy, clients: int) -> None:
    """Refuse a job with too few clients."""
    if clients < policy.least_clients:
        raise _forbidden(
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
            error = _forbidden("columns", "does not list a column that the site's table has")
            error.add_note(f"{', '.join(odd[:8])}: exclude it in [table], or list it")
            raise error
    check_rows(policy, rows)
    if policy.most_rows and rows > policy.most_rows:
        error = _forbidden("most_rows", "allows fewer rows than the site's table has")
        error.add_note(f"{several(rows, 'row')}, and {policy.most_rows} are the most")
        raise error


def check_rows(policy: Policy, rows: int, labelled: int = 0) -> None:
    """Refuse to train on too few rows, or on the site's labels of few of them; 0: it has none."""
    least = policy.least_rows
    for what, count, most in ("row", rows, least), ("labelled row", labelled, min(least, _FEW)):
        if count < most and (count or what == "row"):
            said = f"asks for more {what}s than would take part at the site"
            error = _forbidden("least_rows", said)
            error.add_note(f"{several(count, what)}, and {most} are the least")
            raise error


def check_evaluated(policy: Policy, part: str, rows: int) -> None:
    """Refuse metrics of too few rows of a part; 0: the site is not evaluated."""
    if 0 < rows < policy.least_rows:
        error = _forbidden(
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
        raise _forbidden(
            "jobs_a_day",
            f"allows no more than {policy.jobs_a_day} a day, and {begun} began today (UTC)",
        )


def check_different(policy: Policy, begun: int) -> None:
    """Refuse one more job that differs from all before, where so many ever began."""
    if policy.jobs_total and begun >= policy.jobs_total:
        raise _forbidden(
            "jobs_total",
            f"allows no more than {policy.jobs_total} that differ, and {begun} began before, each "
            "of which may run again",
        )


def check_set_ups(policy: Policy, begun: int) -> None:
    """Refuse to read the table for one more job where so many were let in today, begun or not."""
    most = SET_UPS * policy.jobs_a_day
    if most and begun >= most:
        raise _forbidden(
            "jobs_a_day",
            f"allows no more than {policy.jobs_a_day} a day, and the set-up of {begun} began today "
            "(UTC)",
        )


def check_spent(policy: Policy, spent: float, epsilon: float) -> None:
    """Refuse a job whose epsilon, with those of all that began before, is more than is allowed."""
    most = policy.epsilon_total
    # sums of decimals are not exact; what is no number is no less than anything
    if most and not spent + epsilon <= most * (1 + 1e-12):
        raise _forbidden(
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
            raise _forbidden(
                "rounds_a_day", f"allows no more than {self._most} a day, which are used up (UTC)"
            )
        days = dict([*{**days, day: after.count}.items()][-_DAYS:])
        content = {"day": day, "days": days, **asdict(after)}
        write_atomically(self._path, json.dumps(content).encode(), private=True)


class TrainedRows:
    """Knows which rows jobs trained on, as hashes of ids, in a file that goes back with no run.

    All that have a column open its mean over the federation, in each job: where the rows of two
    jobs differ in one, the means tell its values.
    """

    def __init__(self, path: Path, least: int) -> None:
        self._path, self._least = path, least

    def settle(self, every: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
        """Return the rows of a job, to keep once it begins, and which of them wait, (rows,).

        `every` are the `hashed` ids. Few rows that are new since an earlier job wait until there
        are more of them.
        """
        rows = _without_few(*self._read(), np.unique(every), self._least)
        return rows, ~np.isin(every, rows)

    def check(self, every: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Return the rows of a job, whose `hashed` ids these are, to keep as it begins.

        Raises
        ------
        PolicyError
            If they are others than an earlier job's, and by fewer than the owner asks for.
        """
        rows = np.unique(every)
        if few := self._few(rows):
            error = _forbidden(
                "least_changed",
                f"asks that the training rows of two jobs are the same, or differ by "
                f"{self._least} or more, as totals of both would tell them, and this job's differ "
                "from an earlier one's by fewer",
            )
            counted = "1 row" if few == 1 else f"{few} rows"
            error.add_note(f"{counted}; begin it again when there are more new ones")
            raise error
        return rows

    def settle_evaluated(
        self, every: NDArray[np.uint64]
    ) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
        """Return which rows a job evaluates, to keep once it begins, and which wait, (rows,).

        As `settle`; where few of an earlier job's are left out, all wait: none is evaluated.
        """
        rows, _ = self.settle(every)
        if self._few(rows):
            rows = rows[:0]
        return rows, ~np.isin(every, rows)

    def _few(self, rows: NDArray[np.uint64]) -> int:
        return _few(self._read(), rows, self._least)

    def keep(self, rows: NDArray[np.uint64]) -> None:
        """Keep the rows of a job, as it begins; OSError: then it may not."""
        before = self._read()
        if (after := _with_set(before, rows)) is not before:
            write_atomically(self._path, codec.encode(after), private=True)

    def jobs(self) -> Sets:
        """Return the rows of earlier jobs, and of each row which of them have it."""
        return self._read()

    def _read(self) -> Sets:
        known, sets = _kept(self._path) or _NO_VALUES[:2]
        return known, sets


class JoinedRows:
    """Knows which of a site's rows each other client had, too, in earlier jobs.

    A job names the rules by which ids are matched. By other rules a row of the site may become one
    of another client's, and each of their copies counts half: the means of both jobs tell it.
    """

    def __init__(self, path: Path, least: int) -> None:
        self._path, self._least = path, least

    def check(
        self, rules: Sequence[str], shared: Mapping[ClientId, NDArray[np.uint64]]
    ) -> dict[str, tuple[str, NDArray[np.uint64], NDArray[np.uint64]]]:
        """Return what to keep of a job once it begins.

        `shared` are the `hashed` ids of the rows that each other client has, too.

        Raises
        ------
        PolicyError
            If by other rules than in the last job with a client it has others, and by fewer than
            the owner asks for.
        """
        after, named = dict(_kept(self._path) or {}), " ".join(rules)
        for client, own in shared.items():
            rows = np.append(np.unique(own), np.uint64(0))  # a set, too, where there is none
            key = _stands_for(client)
            said, *sets = after.get(key, (named, *_NO_VALUES[:2]))
            before: Sets = (sets[0], sets[1])
            if said != named and (few := _few(before, rows, self._least)):
                error = _forbidden(
                    "least_changed",
                    "asks that rows which another client has, too, are the same by other rules "
                    f"of alignment.normalise, or differ by {self._least} or more, as totals of "
                    "both jobs would tell them, and this job's differ from an earlier one's by "
                    "fewer",
                )
                error.add_note(f"{several(few, 'row')} that {client} has; keep the earlier rules")
                raise error
            after[key] = named, *_with_set(before, rows)
        return after

    def keep(self, after: Mapping[str, tuple[str, NDArray[np.uint64], NDArray[np.uint64]]]) -> None:
        """Keep what `check` returned, as the job begins; OSError: then it may not."""
        content = codec.encode(dict(after))
        if not self._path.exists() or self._path.read_bytes() != content:
            write_atomically(self._path, content, private=True)


class TrainedValues:
    """Knows of which rows jobs trained on a value of a column, by its name, as `TrainedRows` does.

    Of rows that are added only one may have a value of a column that most lack. Of columns of which
    every row of a job had one it knows which job that was.
    """

    def __init__(self, path: Path, rows: TrainedRows, least: int) -> None:
        self._path, self._rows, self._least = path, rows, least

    def settle(
        self, every: NDArray[np.uint64], there: Mapping[str, NDArray[np.bool_]]
    ) -> tuple[dict[str, NDArray[np.uint64] | None], dict[str, NDArray[np.bool_]]]:
        """Return of each column the values to keep once the job begins, and which wait, (rows,).

        `every` are the `hashed` ids; `there` says of each column which rows have a value. Few that
        are new since an earlier job wait for more. Where few of an earlier job's are left out, all
        do. None is kept of a column of which all rows have a value, and had. One of very many
        values is not compared.
        """
        before, values = self._read(), dict[str, NDArray[np.uint64] | None]()
        waiting: dict[str, NDArray[np.bool_]] = {}
        jobs = self._rows.jobs()
        totals = _totals(jobs)
        for column, own in there.items():
            known, sets, whole = before.get(_stands_for(column), _NO_VALUES)
            if own.sum() > _MOST_VALUES:
                continue
            if own.all() and not len(known):
                values[column] = None
                continue
            held = [bit for bit, total in totals.items() if total in whole]
            kept = [(known, sets), (jobs[0], jobs[1] & _bits(held))]
            found = np.unique(every[own])
            for one in kept:
                found = _without_few(*one, found, self._least)
            few = [sum(changes) for one in kept for _, changes in _changes(*one, found)]
            if 0 < min(few, default=0) < self._least:
                found = found[:0]
            values[column], waiting[column] = found, own & ~np.isin(every, found)
        return values, waiting

    def keep(
        self, values: Mapping[str, NDArray[np.uint64] | None], rows: NDArray[np.uint64]
    ) -> None:
        """Keep the values of a job of these rows, which are kept, as it begins.

        OSError: then it may not.
        """
        before = self._read()
        after, total = {**before}, rows.sum()
        known = np.array([*_totals(self._rows.jobs()).values()], np.uint64)
        for column, own in values.items():
            *sets, whole = before.get(key := _stands_for(column), _NO_VALUES)
            if own is None and total not in whole:
                after[key] = sets[0], sets[1], np.append(np.intersect1d(whole, known), total)
            elif own is not None and (new := _with_set((sets[0], sets[1]), own))[0] is not sets[0]:
                after[key] = *new, whole
        if any(own is not before.get(key) for key, own in after.items()):
            write_atomically(self._path, codec.encode(after), private=True)

    def _read(self) -> dict[str, Values]:
        return {column: tuple(own) for column, own in (_kept(self._path) or {}).items()}


def _kept(path: Path) -> Any:
    """Return what is kept of earlier jobs in a file; None: nothing is."""
    try:
        return codec.decode(path.read_bytes())
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, CodecError):
        raise _damaged(path) from None


def _few(before: Sets, rows: NDArray[np.uint64], least: int) -> int:
    """Return by how many rows a job differs from an earlier one, if by few; 0: by none."""
    few = min((sum(changes) for _, changes in _changes(*before, rows)), default=0)
    return few if few < least else 0


def _damaged(path: Path) -> ExperimentError:
    return ExperimentError(
        f"{path} is damaged, which says what rows jobs trained on; put it back from a backup, or "
        "remove it to count anew."
    )


def _without_few(
    known: NDArray[np.uint64], sets: NDArray[np.uint64], rows: NDArray[np.uint64], least: int
) -> NDArray[np.uint64]:
    """Return the rows of a job; of one with few that are new, those of the newest one before."""
    changed = dict(_changes(known, sets, rows))
    if 0 < min(map(sum, changed.values()), default=0) < least:
        for bit, (added, left_out) in sorted(changed.items(), reverse=True):  # the newest first
            if not left_out and added < least:
                return known[_holds(sets, bit)]
    return rows


def _with_set(before: Sets, rows: NDArray[np.uint64]) -> Sets:
    """Return the sets with that of a job as the newest; as they were where one is the same."""
    known, sets = before
    if not len(rows) or any(not sum(changes) for _, changes in _changes(known, sets, rows)):
        return before
    both, newest = np.union1d(known, rows), np.uint64(1 << (_SETS - 1))
    after = np.zeros(len(both), np.uint64)
    after[np.searchsorted(both, known)] = sets >> np.uint64(1)  # the oldest goes
    after[np.searchsorted(both, rows)] |= newest
    return both[after > 0], after[after > 0]


def _totals(jobs: Sets) -> dict[int, np.uint64]:
    """Return of each set that is kept, by its bit, what stands for its rows: the sum of hashes."""
    found = {bit: jobs[0][_holds(jobs[1], bit)] for bit in range(_SETS)}
    return {bit: rows.sum() for bit, rows in found.items() if len(rows)}


def _bits(some: Iterable[int]) -> np.uint64:
    """Return the word of some bits."""
    return np.uint64(sum(1 << bit for bit in some))


def _stands_for(column: str) -> str:
    """Return what stands for a column in the file."""
    return hashlib.blake2b(column.encode(), digest_size=8).hexdigest()


def hashed(ids: NDArray[Any]) -> NDArray[np.uint64]:
    """Return what stands for ids in the files of `TrainedRows` and `TrainedValues`, (ids,)."""
    texts = ids.tolist() if ids.dtype.kind == "U" else map(str, ids.tolist())
    words = [hashlib.blake2b(one.encode(), digest_size=8).digest() for one in texts]
    return np.frombuffer(b"".join(words), np.uint64)


def _holds(sets: NDArray[np.uint64], bit: int) -> NDArray[np.bool_]:
    """Return which rows a set has that is kept."""
    return np.asarray(sets >> np.uint64(bit) & np.uint64(1) == 1)


def _changes(
    known: NDArray[np.uint64], sets: NDArray[np.uint64], rows: NDArray[np.uint64]
) -> Iterator[tuple[int, tuple[int, int]]]:
    """Yield for each set that is kept, by its bit, how many rows are new and how many left out."""
    there = np.isin(known, rows, assume_unique=True)
    for bit in range(_SETS):
        held = _holds(sets, bit)
        if held.any():
            both = int(there[held].sum())
            yield bit, (len(rows) - both, int(held.sum()) - both)


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


def _forbidden(key: str, says: str) -> PolicyError:
    return PolicyError(f"the owner {says} ([policy] {key} in site.toml).")
