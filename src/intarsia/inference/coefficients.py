"""The coefficients of a finished run's linear model, with the units that its experiment names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

from intarsia.core.files.json_text import parse_json
from intarsia.errors import CheckpointError, ExperimentError
from intarsia.experiment import feature_dictionary
from intarsia.experiment.federation import NARROW
from intarsia.models.coefficients import NO_ERRORS, Scorecard, Summary, summarise
from intarsia.models.linear import LinearClassifier, LinearRegressor
from intarsia.models.serialization import read_model
from intarsia.results.run_folder import described

_WITHHELD: Final = "No standard errors (algorithm.errors)"  # how such a note of a run begins


def coefficients(folder: Path | str, scorecard: Scorecard | None = None) -> Summary:
    """Return the coefficients of the model in a run's folder, or in a site's folder of its own.

    A site has those of its own columns, and its own part of the intercept.

    Raises
    ------
    CheckpointError
        If the folder holds no finished run, or no model.
    ExperimentError
        If the model is not linear, or no scorecard can be made of it.
    """
    folder = Path(folder)
    model = read_model(folder / "model")
    if not isinstance(model, LinearClassifier | LinearRegressor):
        raise ExperimentError(
            f"The model in {folder} has no coefficients of all columns: it is "
            f"{'networks' if not hasattr(model, 'coef_') else type(model).__name__} or one model "
            'for each client; train a linear model, such as algorithm.name = "hyfdca".'
        )
    found = summarise(model, units=_units(folder), scorecard=scorecard)
    notes = _notes_of_run(folder)
    told = [note for note in notes if note.startswith(_WITHHELD)]
    if NO_ERRORS not in found.notes and any(NARROW in note for note in notes):
        told.append(NARROW)
    kept = [note for note in found.notes if not (told and note == NO_ERRORS)]
    return replace(found, notes=(*kept, *told))


def _notes_of_run(folder: Path) -> list[str]:
    """Return the notes of a run; none where the folder has no result."""
    path = folder / "result.json"
    try:
        tree = parse_json(path.read_bytes().decode("utf-8")) if path.is_file() else None
    except ValueError as problem:
        raise CheckpointError(
            f"{path} is no result ({problem}); run the experiment again with --overwrite."
        ) from None
    notes = tree.get("notes", ()) if isinstance(tree, dict) else ()
    notes = notes if isinstance(notes, list) else ()
    return [note for note in notes if isinstance(note, str)]


def _units(folder: Path) -> dict[str, str]:
    """Return the units of features: of the dictionary, where its file is there, else of clients.

    A folder without an experiment says none.
    """
    description = described(folder)
    if description is None:
        return {}
    path = description.alignment.dictionary
    dictionary = feature_dictionary.load(path if path and Path(path).is_file() else None)
    found: dict[str, str] = {}
    for client in description.clients:
        for name, unit in client.units.items():
            found[dictionary.column(client.name, name, {}).feature] = unit
    agreed = {name: one.unit for name, one in dictionary.features.items() if one.unit is not None}
    return {**found, **agreed}
