"""The description of one client's table: where it is, and what its columns mean."""

from __future__ import annotations

import codecs
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from intarsia.core.block import ClientId
from intarsia.data.parsing import number
from intarsia.errors import ExperimentError, TableError

Format = Literal["csv", "parquet", "libsvm", "npz", "sql"]
LEAST_ROWS = 5


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where one client's table is, and what its columns mean.

    Raises
    ------
    ExperimentError
        If two settings contradict each other.
    """

    name: ClientId
    path: str | None = None
    format: Format | None = None  # None: by the ending of the path
    separator: str | None = None  # csv; None: "," (tab for .tsv), or what divides the header
    encoding: str | None = None  # csv: a name that Python knows; None: UTF-8
    decimal: Literal[".", ","] = "."  # of numbers that are written as text
    thousands: str | None = None  # one character between groups of three digits; None: nothing is
    # days since 1970-01-01 in UTC, of texts that begin with the year, or with this; None: refused
    dates: Literal["days", "day first", "month first"] | None = None
    url: str | None = None  # sql: an SQLAlchemy url
    query: str | None = None  # sql
    id: str | None = None  # None: the rows belong to this client alone; libsvm, npz: "row"
    id_type: Literal["integer", "text"] | None = None  # None: integer if every id is a whole number
    label: str | None = None  # None: a client without labels (libsvm, npz: those of the file)
    weights: str | None = None  # column with the weight of each row's loss, beside the label
    # column whose rows of one value, such as a patient's, are held out together; the id's is one
    split_by: str | None = None
    # regular expression of the part of it that counts; None: all
    split_by_pattern: str | None = None
    # label as the table has it -> as all clients have it; others stay as they are
    label_map: Mapping[str, str | bool | int | float] = field(
        default_factory=dict[str, str | bool | int | float]
    )
    features: tuple[str, ...] | None = None  # None: every other column
    exclude: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    # a level of a text column that fewer rows have is called "other" outside of the client, and
    # what fewer training rows have does not train; None: 5, but 1 for the columns in
    # `categorical`, whose levels may be known
    least_rows: int | None = None
    missing: tuple[str, ...] = ("?", "")  # numbers among them do not hold for ids and labels
    # feature block -> its columns, or patterns of their names such as "lab_*"
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    # column -> its unit; where its numbers are texts with it, they are read without
    units: Mapping[str, str] = field(default_factory=dict[str, str])
    limits: tuple[str, ...] = ()  # columns of numbers in which "<5" counts as 5

    def __post_init__(self) -> None:
        if not self.name:
            raise ExperimentError("A client's name is ''; give every client a name.")
        if "\0" in self.name:
            raise ExperimentError(
                f"A client's name is {self.name[:40]!r}, with a NUL character; remove it."
            )
        where = f"Client {self.name!r}"
        if self.id is not None and self.id == self.label:
            raise ExperimentError(
                f"{where}: id and label are both {self.id!r}; name two different columns."
            )
        if self.weights is not None and self.weights in (self.id, self.label):
            raise ExperimentError(
                f"{where}: weights is {self.weights!r}, which is the id or the label column; name "
                "a column of its own."
            )
        self._check_split_by(where)
        if self.separator is not None and len(self.separator.encode()) != 1:
            raise ExperimentError(
                f'{where}: separator is {self.separator!r}; set one character, such as ";".'
            )
        self._check_numbers(where)
        if self.least_rows is not None and self.least_rows < 1:
            raise ExperimentError(
                f"{where}: least_rows is {self.least_rows}; set a whole number of at least 1, "
                "where 1 means that every level may be known."
            )
        for name in self.exclude:
            if self.features is not None and name in self.features:
                raise ExperimentError(
                    f"{where}: column {name!r} is in features and in exclude; "
                    "remove it from one of them."
                )
        owner: dict[str, str] = {}
        for group, names in self.groups.items():
            for name in names:
                if owner.setdefault(name, group) != group:
                    raise ExperimentError(
                        f"{where}: column {name!r} is in the groups {owner[name]!r} and {group!r}; "
                        "remove it from one of them."
                    )

    def _check_split_by(self, where: str) -> None:
        """Raise if rows cannot be split by a column, or by a part of it."""
        if self.split_by is not None and self.split_by in (self.label, self.weights):
            raise ExperimentError(
                f"{where}: split_by is {self.split_by!r}, the column of labels or of weights; name "
                "the one that says which rows belong together."
            )
        if self.split_by_pattern is None:
            return
        if self.split_by is None:
            raise ExperimentError(
                f"{where}: split_by_pattern is {self.split_by_pattern!r} and split_by is not set; "
                "set split_by to the column, such as that of the ids."
            )
        try:
            re.compile(self.split_by_pattern)
        except re.error as problem:
            raise ExperimentError(
                f"{where}: split_by_pattern is {self.split_by_pattern!r}, which is no regular "
                f"expression ({problem}); set one such as '[^-]+', what stands before the first -."
            ) from None

    def _check_numbers(self, where: str) -> None:
        """Raise if an encoding is unknown, or numbers could be read in two ways."""
        if self.encoding is not None:
            try:
                codecs.lookup(self.encoding)
                "".encode(self.encoding)  # such as "hex" is no encoding of text
            except (LookupError, ValueError):
                raise ExperimentError(
                    f"{where}: encoding is {self.encoding!r}, which is none that Python knows; set "
                    'one such as "utf-8", "cp1252" (Windows), "latin-1" or "utf-16".'
                ) from None
        mark = self.thousands
        if mark is not None and (len(mark) != 1 or mark.isalnum() or mark in "+-\u2212"):
            raise ExperimentError(
                f'{where}: thousands is {mark!r}; set one character, such as "," or " ".'
            )
        if mark == self.decimal:
            other = "," if mark == "." else "."
            raise ExperimentError(
                f"{where}: decimal and thousands are both {mark!r}, so that {'1' + mark + '234'!r} "
                f"could be two numbers; set decimal = {other!r}, or another character for one."
            )

    @property
    def least_of_numbers(self) -> int:
        """Return how many training rows must have another number than most have."""
        return LEAST_ROWS if self.least_rows is None else self.least_rows

    @property
    def missing_words(self) -> tuple[str, ...]:
        """Return what stands for a missing value in every column: all but finite numbers."""
        return tuple(text for text in self.missing if not self._is_number(text))

    def _is_number(self, text: str) -> bool:
        read = number(text.strip(), self.decimal, self.thousands)
        return read is not None and math.isfinite(read)

    @property
    def place(self) -> str:
        """Return the file or the database, as an error names it."""
        # neither a login nor what follows "?" may come to stand in an error
        return self.path or (self.url or "").split("@")[-1].split("?")[0]

    @property
    def where(self) -> str:
        """Return how an error names this source."""
        return f"Client {self.name!r}" + (f" ({self.place})" if self.place else "")

    def error(self, problem: str, advice: str, without_settings: str = "") -> TableError:
        """Return the error that this source's table has a problem."""
        return TableError(problem, advice, where=self.where, without_settings=without_settings)
