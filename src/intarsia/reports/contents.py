"""What a run's folder has for a report: read once, checked, and nothing of the clients' tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from intarsia.core.files.json_text import parse_json
from intarsia.errors import CheckpointError, UserError
from intarsia.experiment.config import to_dict
from intarsia.inference.coefficients import coefficients
from intarsia.inspection.holdings import NAME as HOLDINGS
from intarsia.inspection.holdings import Holdings
from intarsia.models.coefficients import CENTRED_ROW, INTERCEPT_ROW, Summary
from intarsia.reports.anchors import Anchor, anchors_of
from intarsia.results import audit as audits
from intarsia.results import result as results
from intarsia.results.audit import Audit, in_words
from intarsia.results.history import Course, history_of
from intarsia.results.result import Result
from intarsia.results.run_folder import described

_SHOWN = ("experiment", "split", "preprocessing", "algorithm", "labels", "dataset", "partition")
# where something lies, or what tells rows apart; a page is handed on
_LEFT_OUT = {"out", "salt", "path", "folder", "file", "key", "dictionary", "url", "query"}
_MOST_COEFFICIENTS = 300


@dataclass(frozen=True)
class Contents:
    """A finished run, as its folder has it."""

    folder: Path
    result: Result
    settings: Mapping[str, Mapping[str, Any]]  # table → key → value; {}: the folder does not say
    label: str  # the column that is predicted; "": not known
    clients: tuple[str, ...]
    classes: tuple[str, ...]  # their names, in order; () of numbers, or where they are not known
    held: Holdings | None  # None: of an older version
    course: Course | None  # None: no rounds were written
    audit: Audit | None  # None: nothing crossed that was written down
    coefficients: Summary | None  # None: the model is not linear, or not there
    anchors: tuple[Anchor, ...]  # of classes, that networks share; (): there are none
    held_out: bool  # whether scores are of rows that were not trained on, as far as is known

    @classmethod
    def of(cls, folder: Path | str) -> Contents:
        """Read a run's folder.

        Raises
        ------
        CheckpointError
            If the folder holds no finished run, or a file in it cannot be read.
        """
        folder = Path(folder)
        result = results.load(folder)
        described_as = described(folder)
        tree: dict[str, Any] = {} if described_as is None else to_dict(described_as)
        model = _model(folder)
        labels = [one.get("label") for one in tree.get("client", ())]
        named = [str(one) for one in (model.get("label"), *labels) if one]
        settings = {
            table: {key: one for key, one in tree[table].items() if key not in _LEFT_OUT}
            for table in (*_SHOWN, "privacy")
            if tree.get(table)
        }
        if result.hyperparameters:
            settings["hyperparameters"] = dict(result.hyperparameters)
        held = _held(folder)
        audit = None
        if (folder / "audit.json").is_file():
            audit = audits.load(folder)
        clients = [str(one.get("name")) for one in tree.get("client", ())]
        known = clients or (list(held.clients) if held and not held.others else [])
        if not known and audit is not None:
            known = list(audit.clients)
        return cls(
            folder=folder,
            result=result,
            settings=settings,
            label=named[0] if named else "",
            clients=tuple(known or result.metrics.clients),
            classes=tuple(str(one) for one in model.get("classes") or ()),
            held=held,
            course=history_of(folder) if (folder / "history.jsonl").is_file() else None,
            audit=audit,
            coefficients=_coefficients(folder),
            anchors=anchors_of(folder, model),
            held_out=bool(described_as is None or described_as.split.test),
        )

    @property
    def positive(self) -> str:
        """Return the class of two that scores are of; "": there is none, or it is not known."""
        known: Any = getattr(self.result, "positive_class", None)
        if known is None and len(self.classes) == 2:
            known = self.classes[1]
        return "" if known is None else str(known)

    @property
    def by_holders(self) -> list[tuple[str, Summary]]:
        """Return the coefficients by who holds their columns; the first of very many."""
        if self.coefficients is None:
            return []
        rows = self.coefficients.rows[:_MOST_COEFFICIENTS]
        if self.held is None:
            return [("all columns", replace(self.coefficients, rows=rows, notes=()))]
        groups: dict[str, list[Any]] = {}
        holders = {name: one.holders for one in self.held.features for name in one.features}
        for row in rows:
            own = row.feature in (INTERCEPT_ROW, CENTRED_ROW)
            name = "the intercept" if own else _whose(holders.get(row.feature, ()))
            groups.setdefault(name, []).append(row)
        if "the intercept" in groups:  # last
            groups["the intercept"] = groups.pop("the intercept")
        return [
            (name, replace(self.coefficients, rows=tuple(some), notes=()))
            for name, some in groups.items()
        ]

    @property
    def left_out(self) -> int:
        """Return how many coefficients `by_holders` leaves out."""
        found = 0 if self.coefficients is None else len(self.coefficients.rows)
        return max(0, found - _MOST_COEFFICIENTS)


def _whose(holders: Sequence[str]) -> str:
    if not holders:
        return "columns of clients that the folder does not name"
    if len(holders) > 6:
        return f"columns that {len(holders)} clients hold"
    who = in_words(holders)
    return f"columns that {who} hold" if len(holders) > 1 else f"columns that only {who} holds"


def _held(folder: Path) -> Holdings | None:
    path = folder / HOLDINGS
    if not path.is_file():
        return None
    try:
        return Holdings.from_dict(parse_json(path.read_text(encoding="utf-8")))
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as problem:
        raise CheckpointError(
            f"{path} does not say who holds what ({type(problem).__name__}: {problem}); remove it "
            "for a report without, or run the experiment again with --overwrite."
        ) from None


def _model(folder: Path) -> Mapping[str, Any]:
    """Return what the model's file says of its labels; {}: nothing."""
    for name in ("linear.json", "networks.json"):
        path = folder / "model" / name
        if path.is_file():
            try:
                found = parse_json(path.read_text(encoding="utf-8"))
            except ValueError as problem:
                raise CheckpointError(
                    f"{path} is no model ({problem}); run the experiment again with --overwrite."
                ) from None
            known = found.get("classes") if isinstance(found, dict) else found
            if not isinstance(found, dict) or not isinstance(known or [], list):
                raise CheckpointError(
                    f"{path} is no model (classes is {known!r:.40}, not a list); run the "
                    "experiment again with --overwrite."
                )
            return found
    return {}


def _coefficients(folder: Path) -> Summary | None:
    if not (folder / "model" / "linear.json").is_file():
        return None
    try:
        return coefficients(folder)
    except CheckpointError:
        raise
    except UserError:  # such as of a folder that does not say what was trained
        return None
