"""The JSON schema of the experiment file, by which editors complete and check it.

It is made from the code: keys, types, ranges and defaults from the dataclasses that the file is
read into, what a key means from the comment at its field, and of `[algorithm]` from `key_meanings`.
An algorithm whose library is not installed has its name alone, and any keys.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import math
import typing
from collections.abc import Mapping
from functools import cache
from typing import Any

from pydantic import ConfigDict, TypeAdapter

from intarsia import __version__
from intarsia.data.labels import LabelSettings
from intarsia.data.source import Source
from intarsia.datasets.registry import dataset_names
from intarsia.errors import UserError
from intarsia.experiment.config import (
    OF_FILES,
    Alignment,
    Experiment,
    Preprocessing,
    Split,
    experiment_keys,
)
from intarsia.experiment.published import Published
from intarsia.experiment.search import Range, Search
from intarsia.partition.registry import partition_kinds
from intarsia.privacy.settings import Privacy
from intarsia.training.key_meanings import SAID
from intarsia.training.registry import algorithm_named, algorithm_names

Schema = dict[str, Any]

_TABLES: Mapping[str, tuple[type, str]] = {
    "split": (Split, "Which samples are held out, by a hash of their ids."),
    "preprocessing": (Preprocessing, "What happens to the features before training."),
    "labels": (LabelSettings, "What the labels of all clients mean."),
    "alignment": (Alignment, "How clients find out which samples and features they share."),
}


def experiment_schema() -> Schema:
    """Return the schema (JSON Schema 2020-12) of the experiment file."""
    run = _object(Experiment, "The run as a whole.", keys=experiment_keys())
    run["properties"]["ray"]["enum"] = [*OF_FILES]  # addresses are none of a file's
    properties = {
        "experiment": run,
        "algorithm": _algorithms(),
        **{name: _object(cls, said) for name, (cls, said) in _TABLES.items()},
        "privacy": {
            "description": "How sums are kept from the server: a mode, or a table.",
            "anyOf": [
                _field(typing.get_type_hints(Privacy)["mode"]),
                _object(Privacy, "How sums are kept from the server, and what a model may tell."),
            ],
        },
        "client": {
            "type": "array",
            "description": "One table for each client.",
            "items": _object(Source, "A client's table."),
        },
        "dataset": _dataset(),
        "partition": {
            "type": "object",
            "description": "How the data set is split over simulated clients.",
            "properties": {"kind": {"enum": partition_kinds()}},
            "required": ["kind"],
        },
        "tune": _tune(),
        "published": {
            "type": "array",
            "description": "Figures of papers, which intarsia compare shows beside runs.",
            "items": _object(Published, "A figure of a paper."),
        },
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"Experiment file of intarsia {__version__}",
        "type": "object",
        "properties": properties,
        "required": ["algorithm"],
        "additionalProperties": False,
    }


def _object(cls: Any, said: str, *, keys: list[str] | None = None, algorithm: str = "") -> Schema:
    """Return the schema of a table that is read into a dataclass."""
    hints = typing.get_type_hints(cls, include_extras=True)
    comments = {} if algorithm else _comments(cls)
    properties, required = {}, []
    for one in dataclasses.fields(cls):
        if keys is not None and one.name not in keys:
            continue
        made = _field(hints[one.name], one.name if algorithm else "")
        meaning = comments.get(one.name, "")
        if algorithm:
            own = f"{algorithm}.{one.name}"
            meaning = "; change it: ".join(SAID.get(own, SAID.get(one.name, ())))
        if meaning:
            made = {**made, "description": meaning}
        default = _default(one)
        if default is dataclasses.MISSING:
            required.append(one.name)
        elif default is not None:
            made = {**made, "default": default}
        properties[one.name] = made
    return {
        "type": "object",
        "description": said,
        "properties": properties,
        **({"required": required} if required else {}),
        "additionalProperties": False,
    }


def _default(field: dataclasses.Field[Any]) -> Any:
    """Return a default as JSON has it; MISSING: the key is needed; None: nothing is set."""
    if field.default is not dataclasses.MISSING:
        return list(field.default) if isinstance(field.default, tuple) else field.default
    return dataclasses.MISSING if field.default_factory is dataclasses.MISSING else None


def _field(hint: Any, key: str = "") -> Schema:
    """Return the schema of a field's type; `key`: an algorithm's, whose keys a table has."""
    if dataclasses.is_dataclass(hint):
        return _object(hint, "A table.", algorithm=key)
    adapter: TypeAdapter[Any] = TypeAdapter(hint, config=ConfigDict(arbitrary_types_allowed=True))
    return dict(_as_in_toml(adapter.json_schema()))


def _as_in_toml(schema: Any) -> Any:
    """Return a schema without null, which TOML has not, and without infinite limits."""
    if isinstance(schema, list):
        return [_as_in_toml(one) for one in schema if one != {"type": "null"}]
    if not isinstance(schema, dict):
        return schema
    kept = {
        key: _as_in_toml(one)
        for key, one in schema.items()
        if not (isinstance(one, float) and math.isinf(one))
    }
    several = kept.get("anyOf")
    if isinstance(several, list) and len(several) == 1:
        return {**{key: one for key, one in kept.items() if key != "anyOf"}, **several[0]}
    return kept


def _algorithms() -> Schema:
    """Return the schema of `[algorithm]`: one of the algorithms by its name, with its own keys."""
    return {
        "type": "object",
        "description": "Which algorithm trains; all other keys are its own.",
        "properties": {"name": {"enum": algorithm_names()}},
        "required": ["name"],
        "anyOf": [_algorithm(name) for name in algorithm_names()],
    }


def _algorithm(name: str) -> Schema:
    chosen = {"const": name}
    try:
        cls = algorithm_named(name).hyperparameters
    except UserError:  # of an extra: its keys are known where that is installed
        return {"title": name, "properties": {"name": chosen}}
    made = _object(cls, f"The keys of {name}.", algorithm=name)
    made["properties"] = {"name": chosen, **made["properties"]}
    return {"title": name, **made}


def _dataset() -> Schema:
    """Return the schema of `[dataset]`: named sets with keys of their own, or a file."""
    names = {"enum": list(dataset_names())}
    source = _object(Source, "A file or a query.")
    del source["properties"]["name"], source["required"]
    named = {"anyOf": [names, {"type": "array", "items": names, "minItems": 1}]}
    return {
        "description": "The data of a simulation: named sets, or a file.",
        "anyOf": [
            {"type": "object", "properties": {"name": named}, "required": ["name"]},
            source,
        ],
    }


def _tune() -> Schema:
    """Return the schema of `[tune]`, whose ranges are written in short."""
    made = _object(Search, "What intarsia tune tries.")
    choices = {"type": "array", "minItems": 1}
    made["properties"]["ranges"] = {
        "type": "object",
        "description": "Key → its values: numbers from low to high, or a list of choices.",
        "additionalProperties": {"anyOf": [choices, _object(Range, "The values of one key.")]},
    }
    return made


@cache
def _comments(cls: type) -> Mapping[str, str]:
    """Return the comment at each field of a class: behind it, or in the lines above."""
    lines = [line.strip() for line in inspect.getsource(cls).splitlines()]
    tree = ast.parse(inspect.cleandoc("\n" + inspect.getsource(cls)))
    found: dict[str, str] = {}
    (body,) = (node.body for node in tree.body if isinstance(node, ast.ClassDef))
    for node in body:
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        last = lines[(node.end_lineno or node.lineno) - 1]
        behind = last.rpartition("  # ")[2] if "  # " in last else ""
        above: list[str] = []
        at = node.lineno - 2
        while at >= 0 and lines[at].startswith("# "):
            above.insert(0, lines[at][2:])
            at -= 1
        found[node.target.id] = " ".join([*above, behind]).strip()
    return found
