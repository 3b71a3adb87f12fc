"""What a site keeps of earlier jobs' rows, so that two jobs do not differ by few of them.

All that have a column open its mean over the federation, in each job: where the rows of two jobs
differ in one, the means tell its values.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from intarsia.core.block import ClientId
from intarsia.core.files.atomic_files import write_atomically
from intarsia.data.parsing import ascending
from intarsia.data.table import Category
from intarsia.deployment.policy import forbidden
from intarsia.engines import codec
from intarsia.errors import CodecError, ExperimentError, several

Sets = tuple[NDArray[np.uint64], NDArray[np.uint64]]  # rows, and of each the sets that have it
# and what stands for the rows of the jobs in which every row had one
Values = tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.uint64]]
# levels, and of each the sets of rows of which it was told
Levels = tuple[tuple[str, ...], NDArray[np.uint64]]
_NO_VALUES: Final[Values] = (np.zeros(0, np.uint64),) * 3
_NO_LEVELS: Final[Levels] = (), np.zeros(0, np.uint64)
_COUNTED: Final = ""  # stands for a level of which no row is: the column's were counted
_MOST_VALUES: Final = 20_000  # of a column at a site, which are compared with other jobs'
_SETS: Final = 64  # of rows that jobs trained on, the last ones that differ: a bit of a word each


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
            error = forbidden(
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
                error = forbidden(
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


class ToldLevels:
    """Knows which levels of text columns a site told, and of which rows, as `TrainedRows` does.

    A level is told once enough rows have it. Where two tables differ in one row, a level that is
    told of one of them alone is this row's.
    """

    def __init__(self, path: Path, least: int) -> None:
        self._path, self._least = path, least

    def settle(
        self, every: NDArray[np.uint64], columns: Mapping[str, Category]
    ) -> dict[str, tuple[str, ...]]:
        """Return the levels of each column to tell, which are kept by then.

        `every` are the `hashed` ids of the table's rows. Where few are others than at an earlier
        job, the levels are those that were told then. OSError: none may be told.
        """
        kept: tuple[Any, Any, dict[str, Levels]] = _kept(self._path) or (*_NO_VALUES[:2], {})
        known, sets, told = kept
        rows = np.unique(every)
        keys = {name: f"{one.least_rows} {name}" for name, one in columns.items()}
        changes = {bit: sum(both) for bit, both in _changes(known, sets, rows)}
        then = {name: self._then(changes, *told.get(key, _NO_LEVELS)) for name, key in keys.items()}
        same = [bit for bit, few in changes.items() if not few]
        if None in then.values() and not same:
            known, sets = _with_set((known, sets), rows)
            told = {key: _one_later(*own) for key, own in told.items()}
        bit, found = _bits(same or [_SETS - 1]), dict[str, tuple[str, ...]]()
        for name, category in columns.items():
            if (now := then[name]) is None:
                now = category.public_levels
                words = dict(zip(*told.get(keys[name], _NO_LEVELS), strict=True))
                words = {level: word & ~bit for level, word in words.items()}
                for level in (*now, _COUNTED):
                    words[level] = words.get(level, np.uint64(0)) | bit
                told[keys[name]] = tuple(words), np.array([*words.values()], np.uint64)
            found[name] = now
        content = codec.encode((known, sets, told))
        if not self._path.exists() or self._path.read_bytes() != content:
            write_atomically(self._path, content, private=True)
        return found

    def _then(
        self, changes: Mapping[int, int], levels: Sequence[str], words: NDArray[np.uint64]
    ) -> tuple[str, ...] | None:
        """Return the levels of a column as of the nearest table, if few rows are others; else None.

        `changes` says of each set of rows how many are others, and `words` of which of the sets a
        level was told.
        """
        told = dict(zip(levels, words, strict=True))
        counted = told.pop(_COUNTED, np.uint64(0))
        near = [(few, -bit) for bit, few in changes.items() if _bits([bit]) & counted]
        few, at = min(near, default=(0, 0))
        if not 0 < few < self._least:
            return None
        return ascending(level for level, word in told.items() if word & _bits([-at]))


def _one_later(levels: Sequence[str], words: NDArray[np.uint64]) -> Levels:
    """Return what is kept of a column's levels where one more set of rows comes."""
    words = words >> np.uint64(1)  # the oldest goes
    kept = words > 0
    return tuple(itertools.compress(levels, kept)), words[kept]


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
