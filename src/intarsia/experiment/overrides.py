"""Keys of an experiment file that are set from the command line: `-c table.key=value`."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from intarsia.core.settings import toml_text
from intarsia.errors import ExperimentError
from intarsia.spelling import nearest

__all__ = ["overridden"]


def overridden(tree: Mapping[str, Any], override: str, tables: Sequence[str]) -> dict[str, Any]:
    """Return the tables of a file with one `key=value` set; `tables` are those that it may have.

    Raises
    ------
    ExperimentError
        If the text is not of that form, or names a table or a client that is not there.
    """
    key, equals, text = override.partition("=")
    parts = [part.strip() for part in key.split(".")]
    if parts == ["privacy"]:
        parts = ["privacy", "mode"]
    if not equals or len(parts) < 2 or not all(parts):
        raise ExperimentError(
            f"-c {override!r} is not of the form table.key=value; write e.g. -c "
            "experiment.rounds=50."
        )
    if parts[0] not in tables:
        raise ExperimentError(
            f"-c {override!r}: {parts[0]!r} is not a table; {nearest(parts[0], tables)}."
        )
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    if parts[0] == "privacy" and isinstance(tree.get("privacy"), str):
        tree = {**tree, "privacy": {"mode": tree["privacy"]}}
    if parts[0] != "client":
        return {**tree, parts[0]: _set(tree.get(parts[0], {}), parts[1:], value, override)}
    clients = list(tree.get("client", []))
    names = [str(client.get("name")) for client in clients]
    if parts[1] in names:
        position = names.index(parts[1])
    elif parts[1].isdecimal() and int(parts[1]) < len(clients):
        position = int(parts[1])
    else:
        raise ExperimentError(
            f"-c {override!r}: there is no client {parts[1]!r}; {nearest(parts[1], names)}."
        )
    if len(parts) < 3:
        raise ExperimentError(
            f"-c {override!r} names a client but no key; write e.g. -c "
            f"client.{parts[1]}.path=x.csv."
        )
    clients[position] = _set(clients[position], parts[2:], value, override)
    return {**tree, "client": clients}


def _set(table: Any, parts: Sequence[str], value: Any, override: str) -> dict[str, Any]:
    if not isinstance(table, Mapping):
        raise ExperimentError(
            f"-c {override!r} sets a key of {toml_text(table)}, which is not a table; shorten the "
            "key."
        )
    if len(parts) == 1:
        return {**table, parts[0]: value}
    return {**table, parts[0]: _set(table.get(parts[0], {}), parts[1:], value, override)}
