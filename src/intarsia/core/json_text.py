"""Read JSON that somebody else may have written."""

from __future__ import annotations

import json
from typing import Any


def parse_json(text: str | bytes) -> Any:
    """Return what a JSON text says.

    Raises
    ------
    ValueError
        If it is none, or its values lie deeper in each other than can be read.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("its values lie too deep in each other") from None
