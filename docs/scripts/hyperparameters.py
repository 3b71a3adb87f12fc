"""Write reference/hyperparameters.md: each algorithm's keys, and when to change them.

python docs/scripts/hyperparameters.py          # print the page
python docs/scripts/hyperparameters.py --write  # write it

Keys, defaults and ranges are those of the dataclass that an algorithm makes of `[algorithm]`. What
a key means and when to change it stands in `intarsia.training.key_meanings`.
"""

from __future__ import annotations

import dataclasses
import sys
import textwrap
import typing
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from intarsia.core import settings
from intarsia.training.key_meanings import SAID
from intarsia.training.registry import algorithm_named, algorithm_names

PAGE = Path(__file__).parents[1] / "reference" / "hyperparameters.md"
MOST_APART = 2  # a key that more algorithms have is described once, at the head of the page
_HEAD = """# Hyperparameters

The keys of `[algorithm]`. All have a default but `model` of `own-networks`, and `rank` and
`latent` of `flic-linear`. Change these first:

- networks: `rate`, ten times up and down; then `local_epochs`, and `weight_decay` where clients
  overfit
- linear models: `loss`, to fit the labels; then `regularisation`
- everything else only where its line names what you see

`intarsia tune` looks for values ([tuning.md](../how-to/tuning.md)). Why an algorithm has a key
stands on its page: [hyfdca](../explanations/hyfdca.md), [flic](../explanations/flic.md),
[femam](../explanations/femam.md), [hyfem](../explanations/hyfem.md),
[own-networks](../how-to/cohort.md). The page is made from the code by
`python docs/scripts/hyperparameters.py --write`.
"""
_TABLE = [
    "| key | default | allowed | what it does | when to change it |",
    "|---|---|---|---|---|",
]
_COMMON = [
    "## Common keys",
    "",
    "Keys that three algorithms or more have, with the usual default. Each algorithm below says",
    "which of them it has, and where its default is another.",
    "",
]
_USUAL = "[Common keys](#common-keys): "
_OTHER = "Common keys with another default: "


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


def common() -> dict[tuple[str, str], tuple[str, str]]:
    """Return the usual default and range of each key that is described once."""
    found: dict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)
    for name in algorithm_names():
        for key, default, allowed, meaning, _ in rows(name):
            found[key, meaning].append((default, allowed))
    return {
        one: Counter(seen).most_common(1)[0][0]
        for one, seen in found.items()
        if len(seen) > MOST_APART
    }


def page() -> str:
    """Return the page."""
    shared, described, parts = common(), dict[str, str](), list[str]()
    for name in algorithm_names():
        own, usual, other = list[str](), list[str](), list[str]()
        for key, default, allowed, meaning, advice in rows(name):
            most = shared.get((key, meaning))
            if most is None:
                own.append(f"| `{key}` | {default} | {allowed} | {meaning} | {advice} |")
                continue
            described[key] = f"| `{key}` | {most[0]} | {most[1]} | {meaning} | {advice} |"
            values = f" ({allowed})" if allowed != most[1] else ""
            if default == most[0] and not values:
                usual.append(f"`{key}`")
            else:
                other.append(f"`{key}` {default}{values}")
        told = [_USUAL + ", ".join(usual)] if usual else []
        told += [_OTHER + ", ".join(other)] if other else []
        lines = "\n".join([*_TABLE, *own, ""]) if own else ""
        parts += [f"## {name}\n", lines, *(textwrap.fill(one, 100) + "\n" for one in told)]
    head = "\n".join([*_COMMON, *_TABLE, *described.values(), ""])
    return "\n".join([_HEAD, head, *filter(None, parts)])


def main() -> None:
    """Print the page, or write it."""
    made = page()
    if "--write" in sys.argv:
        PAGE.write_text(made, encoding="utf-8")
    else:
        sys.stdout.write(made)


if __name__ == "__main__":
    main()
