"""Write reference/hyperparameters.md: each algorithm's keys, and when to change them.

python docs/scripts/hyperparameters.py          # print the page
python docs/scripts/hyperparameters.py --write  # write it

Keys, defaults and ranges are those of the dataclass that an algorithm makes of `[algorithm]`. What
a key means and when to change it stands in `intarsia.training.key_meanings`.
"""

from __future__ import annotations

import dataclasses
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from intarsia.core import settings
from intarsia.training.key_meanings import SAID
from intarsia.training.registry import algorithm_named, algorithm_names

PAGE = Path(__file__).parents[1] / "reference" / "hyperparameters.md"
_HEAD = """# Hyperparameters

All keys of `[algorithm]` by algorithm: default, what is allowed, what it means, and when to change
it. The tables are made from the code by `python docs/scripts/hyperparameters.py --write`.

What an algorithm does with its keys stands on its own page:
[hyfdca](../explanations/hyfdca.md), [flic](../explanations/flic.md),
[femam](../explanations/femam.md), [hyfem](../explanations/hyfem.md),
[own-networks](../how-to/cohort.md). `intarsia tune` looks for values
([tuning.md](../how-to/tuning.md)).
"""


def rows(name: str) -> Iterator[tuple[str, str, str, str, str]]:
    """Yield key, default, range, meaning and advice of each hyperparameter."""
    cls: Any = algorithm_named(name).hyperparameters
    hints = typing.get_type_hints(cls, include_extras=True)
    for one in dataclasses.fields(cls):
        own = f"{name}.{one.name}"
        meaning, advice = SAID[own if own in SAID else one.name]
        yield one.name, _default(cls, one), _range(cls, one.name, hints[one.name]), meaning, advice


def _default(cls: Any, field: dataclasses.Field[Any]) -> str:
    if field.default is None:  # other keys say it: here their own defaults do
        return _whole(getattr(cls(), field.name))
    if field.default is not dataclasses.MISSING:
        return _whole(field.default)
    if field.default_factory is dataclasses.MISSING:
        return "none: it must be set"
    made = field.default_factory()
    return "its own defaults" if dataclasses.is_dataclass(made) else _whole(made)


def _whole(value: Any) -> str:
    """Return a value as a file writes it, with all entries of a list."""
    if isinstance(value, tuple):
        return "[" + ", ".join(map(settings.toml_text, value)) + "]"
    return settings.toml_text(value)


def _range(cls: type, key: str, hint: Any) -> str:
    allowed, words = settings._ranges(cls).get(key, (None, ()))
    if words and allowed is None:
        return ", ".join(words)
    if allowed is not None:
        return str(allowed)
    if dataclasses.is_dataclass(hint):
        return "a table"
    return settings._wording(hint).replace("typing.Any", "any value")


def page() -> str:
    """Return the page."""
    parts = [_HEAD]
    for name in algorithm_names():
        lines = [
            f"| `{key}` | {default} | {allowed} | {meaning} | {advice} |"
            for key, default, allowed, meaning, advice in rows(name)
        ]
        head = [
            "| key | default | allowed | meaning | when to change it |",
            "|---|---|---|---|---|",
        ]
        parts.append("\n".join([f"\n## {name}\n", *head, *lines, ""]))
    return "".join(parts)


def main() -> None:
    """Print the page, or write it."""
    made = page()
    if "--write" in sys.argv:
        PAGE.write_text(made, encoding="utf-8")
    else:
        sys.stdout.write(made)


if __name__ == "__main__":
    main()
