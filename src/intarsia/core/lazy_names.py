"""The public names of a package, each imported when it is first used.

So a package names what is public and yet costs nothing: importing one of its modules imports none
of the others, and no library that they need.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any


def lazy_names(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package.

    Its public names are those that its `__init__.py` imports below TYPE_CHECKING, so that they
    stand in one place for type checkers and for the interpreter.
    """
    folder = Path(str(sys.modules[package].__file__)).parent
    source = (folder / "__init__.py").read_text(encoding="utf-8")
    homes = {
        name.name: str(one.module)
        for one in ast.walk(ast.parse(source))
        if isinstance(one, ast.ImportFrom) and str(one.module).startswith(package)
        for name in one.names
        if name.asname == name.name
    }

    def get_attribute(name: str) -> Any:
        if name not in homes:
            if (folder / name / "__init__.py").is_file():
                return import_module(f"{package}.{name}")
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(homes[name]), name)

    def list_names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return get_attribute, list_names, sorted(homes)
