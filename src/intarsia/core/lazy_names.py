"""The public names of a package, each imported when it is first used.

So a package names what is public and yet costs nothing: importing one of its modules imports none
of the others, and no library that they need.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(
    package: str, modules: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package.

    `modules` has the public names of each module, separated by blanks. Type checkers read the
    imports below TYPE_CHECKING in the package's `__init__.py`, which are of the same names.
    """
    homes = {name: module for module, names in modules.items() for name in names.split()}

    def get_attribute(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{homes[name]}"), name)

    def list_names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return get_attribute, list_names, sorted(homes)
