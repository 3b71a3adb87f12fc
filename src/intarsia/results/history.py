"""Read a run's rounds from its history.jsonl."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from intarsia.core.files.contained import check_contained
from intarsia.core.files.json_text import check_kind, parse_json
from intarsia.errors import CheckpointError, ExperimentError, lacks
from intarsia.results.result import load
from intarsia.results.run_folder import described


@dataclass(frozen=True)
class Course:
    """How a run went."""

    name: str
    accuracy: Mapping[int, float]  # of the rounds after which the model was evaluated
    begun: Mapping[str, int]  # the first round of each phase, such as "level 2", in their order
    loss: Mapping[int, float] = field(default_factory=dict[int, float])  # of the training samples
    result: tuple[int, float] | None = None  # the last round, and the accuracy after all is done
    gap: Mapping[int, float] = field(default_factory=dict[int, float])  # relative, of the duality
    # the accuracy when a phase was evaluated last
    reached: Mapping[str, float] = field(default_factory=dict[str, float])

    @property
    def last(self) -> int:
        """Return the last round that is drawn."""
        return max([*self.accuracy, *([self.result[0]] if self.result else [])] or self.loss)


def course_of(folder: Path | str, name: str = "") -> Course:
    """Return how the run in an output folder went, which has something to draw.

    The name is by default the algorithm's.

    Raises
    ------
    CheckpointError
        If the folder holds no history, or something in it leads out of it.
    ExperimentError
        If no round of it was evaluated.
    """
    folder = Path(folder)
    found = history_of(folder, name)
    described_as = described(folder)
    every = 0 if described_as is None else described_as.evaluate_every
    # of numbers to predict, or where all clients' networks are their own, no round has an accuracy
    evaluated = every and any(number % every == 0 for number in found.loss)
    if not found.accuracy and not evaluated and not (found.loss and _predicts_numbers(folder)):
        raise ExperimentError(
            f"The run in {folder} has no round with an accuracy; set experiment.evaluate_every to "
            "1 or a few rounds."
        )
    return found


def _predicts_numbers(folder: Path) -> bool:
    """Return whether a run is finished whose labels are numbers."""
    if not (folder / "result.json").is_file():
        return False
    server = load(folder).metrics.server
    return server is not None and server.accuracy is None and server.r2 is not None


def _fits(value: Any, kind: type) -> bool:
    try:
        check_kind(value, kind)
    except ValueError:
        return False
    return True


def history_of(folder: Path, name: str = "") -> Course:
    """Return how the run in an output folder went; the name is by default the algorithm's.

    Raises
    ------
    CheckpointError
        If the folder holds no history, or something in it leads out of it.
    """
    path = folder / "history.jsonl"
    check_contained(folder)
    if not path.is_file():
        said = lacks(folder, "holds no history.jsonl")
        raise CheckpointError(f"{said}; give the output folder of a run.")
    known: dict[str, dict[int, float]] = {"accuracy": {}, "loss": {}, "gap_relative": {}}
    begun: dict[str, int] = {}
    reached: dict[str, float] = {}
    for raw in path.read_bytes().splitlines():
        try:
            text = raw.decode("utf-8")
            line = parse_json(text)
        except ValueError:  # damaged, or cut short: the run may be going on
            continue
        if not isinstance(line, dict) or not _fits(line.get("round"), int):
            continue
        for key, values in known.items():
            if line.get(key) is not None and _fits(line[key], float):
                values[line["round"]] = line[key]
        if line.get("phase") and _fits(line["phase"], str):
            begun.setdefault(line["phase"], line["round"])
            if line["round"] in known["accuracy"]:
                reached[line["phase"]] = known["accuracy"][line["round"]]
    accuracy, loss, gap = known.values()
    result = None
    if accuracy and (folder / "result.json").is_file():
        done = load(folder)
        if done.metrics.server is not None and done.metrics.server.accuracy is not None:
            result = done.rounds, done.metrics.server.accuracy
    described_as = described(folder)
    name = name or (folder.name if described_as is None else described_as.algorithm)
    return Course(name, accuracy, begun, loss, result, gap, reached)
