"""The pages of the API reference: one for each package, with the place of each public docstring.

What is public is what a package's `__init__.py` imports below TYPE_CHECKING. mkdocstrings puts the
docstrings in. A name that two packages have is described once, where a user meets it first. The
pages are made when the site is built, so that they never differ from the code.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"
_HEAD = """# The API

Every public name of every package, from its docstring. What most programs need is in `intarsia`
itself. The other packages are there for algorithms, engines and data sources of your own.

| package | what it is for |
|---|---|
"""


def pages() -> Mapping[str, str]:
    """Return the text of each page by its file's name, that of `intarsia` first."""
    contents, found = [_HEAD], {"index.md": ""}
    described: dict[str, str] = {}  # module and name → the page that describes it
    for path in sorted(SOURCE.glob("intarsia/**/__init__.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        package = ".".join(path.parent.relative_to(SOURCE).parts)
        names = _public(tree, package)
        if not names:
            continue
        sentence = (ast.get_docstring(tree) or "").partition("\n")[0]
        contents.append(f"| [{package}]({package}.md) | {sentence} |\n")
        parts = [f"# {package}\n\n{sentence}\n"]
        for name, home in sorted(names.items(), key=_place):
            page = described.setdefault(home, package)
            if page == package:
                parts.append(f"\n::: {package}.{name}\n")
            else:
                parts.append(f"\n- `{name}`: see [`{page}.{name}`]({page}.md#{page}.{name})\n")
        found[f"{package}.md"] = "".join(parts)
    return {**found, "index.md": "".join(contents)}


def _place(named: tuple[str, str]) -> tuple[bool, bool, str]:
    """Return where a name and its home stand: functions first, errors last."""
    return named[0].endswith("Error"), named[0][0].isupper(), named[0]


def _public(tree: ast.Module, package: str) -> Mapping[str, str]:
    """Return the names that a package imports as its own, with the module and name of each."""
    return {
        one.name: f"{line.module}.{one.name}"
        for line in ast.walk(tree)
        if isinstance(line, ast.ImportFrom) and str(line.module).startswith(package)
        for one in line.names
        if one.asname == one.name
    }
