"""What trackers are told of a run: its settings, metrics by round, scores at the end, files.

No path, url or name of a column of a client's table is in the settings, nor any row, nor the salt
by which rows are held out.
"""

from __future__ import annotations

import json
import math
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from intarsia.core.files.atomic_files import write_atomically
from intarsia.core.files.json_text import parse_json
from intarsia.errors import IntarsiaError
from intarsia.experiment.config import Experiment, to_dict
from intarsia.results.comparison import FIGURES, figure_of
from intarsia.results.result import Result
from intarsia.results.run_folder import TRACKED
from intarsia.training.loop import Progress

_TABLES = ("experiment", "algorithm", "split", "preprocessing", "partition")
_FILES = ("result.json", "history.jsonl", "holdings.json", "audit.json")
_PICTURES = ("figures.png", "holdings.png", "structure.png")
_ROUND = ("loss", "gap_relative", "accuracy", "bytes", "exchanges", "seconds")


def settings_of(description: Experiment) -> dict[str, Any]:
    """Return an experiment's settings by table and key, and its clients' names."""
    tree = to_dict(description)
    tree["experiment"].pop("out", None)
    tree["split"].pop("salt", None)  # it tells which rows, to who knows their ids
    found = {
        f"{table}.{key}": value
        for table in _TABLES
        for key, value in tree.get(table, {}).items()
        if value not in (None, [], "")
    }
    found["privacy.mode"] = description.privacy.mode
    if description.clients:
        found["clients"] = ", ".join(one.name for one in description.clients)
    return found


def metrics_of(now: Progress) -> dict[str, float]:
    """Return a round's figures: those that are numbers."""
    return _finite({name: getattr(now, name) for name in _ROUND})


def scores_of(result: Result) -> dict[str, float]:
    """Return the scores at the end by model and figure, and what the run took."""
    metrics = result.metrics
    models = {
        "federated": metrics.server,
        "clients_mean": metrics.clients_mean,
        "centralised": metrics.centralised,
        "standalone_mean": metrics.standalone_mean,
    }
    found = {
        f"{model}.{figure}": figure_of(score, figure)
        for model, score in models.items()
        for figure in ("loss", "accuracy", "r2", *FIGURES)
    }
    for name, score in metrics.clients.items():
        for figure in ("loss", "accuracy", "r2", "auc"):
            found[f"client.{name}.{figure}"] = figure_of(score, figure)
    if result.certificate is not None:
        found["certificate.gap_relative"] = result.certificate.gap_relative
    found["seconds.total"] = result.seconds.get("total")
    return _finite(found)


def _finite(found: Mapping[str, float | None]) -> dict[str, float]:
    return {
        name: float(one) for name, one in found.items() if one is not None and math.isfinite(one)
    }


@contextmanager
def files_of(result: Result) -> Iterator[Path]:
    """Yield a folder with what a run left: figures, its report, and in model/ the model.

    A link in the run's folder that leads out of it is not followed. Where no model or report can
    be made, the rest is there, and the error comes at the end.
    """
    from intarsia.models.serialization import write_model
    from intarsia.reports.page import write_report

    with tempfile.TemporaryDirectory(prefix="intarsia-") as made:
        folder, own = Path(made), result.folder
        if own is None:
            result.write(folder)
        for name in (*_FILES, *_PICTURES):
            if own is not None and (own / name).is_file() and _is_in(own / name, own):
                shutil.copy(own / name, folder / name)
        problem: Exception | None = None
        try:
            if result.trained is not None:
                write_model(result.trained, folder / "model")
            write_report([own or folder], folder / "report.html")
        except (IntarsiaError, OSError) as one:
            problem = one
        yield folder
        if problem is not None:
            raise problem


def _is_in(path: Path, folder: Path) -> bool:
    return path.resolve().is_relative_to(folder.resolve())


def kept_id(folder: Path | None, tracker: str) -> str | None:
    """Return under which id a tracker knows the run in a folder; None: not yet."""
    path = None if folder is None else folder / TRACKED
    if path is None or not path.is_file():
        return None
    known = parse_json(path.read_text(encoding="utf-8"))
    found = known.get(tracker) if isinstance(known, dict) else None
    return found if isinstance(found, str) else None


def keep_id(folder: Path | None, tracker: str, own: str) -> None:
    """Keep under which id a tracker knows the run in a folder, for when it goes on."""
    if folder is None:
        return
    path = folder / TRACKED
    known = parse_json(path.read_text(encoding="utf-8")) if path.is_file() else {}
    known = known if isinstance(known, dict) else {}
    write_atomically(path, json.dumps({**known, tracker: own}).encode())


def folder_of(description: Experiment) -> Path | None:
    """Return the output folder that a callback is told, None where nothing is written."""
    return Path(description.out) if description.out else None
