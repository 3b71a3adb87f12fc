"""What mkdocs does beside its own work when it builds the site of the documents.

A document may link to any file of the repository. The site has a copy of each such file outside of
docs, in its folder `repository`. The pages of the API are made here, too. A tutorial that was made
into a notebook links to it. GitHub wants a bar within code of a table escaped, and mkdocs does not.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files, InclusionLevel

sys.path.insert(0, str(Path(__file__).parent))
import api_pages  # beside this file, where mkdocs does not look

ROOT = Path(__file__).parents[2]
ELSEWHERE = "repository"
API = "reference/api"
NOTEBOOKS = ROOT / ".venv-docs" / "notebooks"
_LINK = re.compile(r"(\]\()([^)#\s]+)((?:#[^)]*)?\))")
_LOADED = re.compile(r'<(?:script|img|iframe)[^>]*\ssrc="https?:|<link[^>]*\shref="https?:')
_CODE = re.compile(r"`[^`\n]+`")
_FENCE = re.compile(r"(^ *```.*?^ *```)", re.DOTALL | re.MULTILINE)


def address(path: str) -> str:
    """Return where a file of the repository lies in the site's source."""
    return path.removeprefix("docs/") if path.startswith("docs/") else f"{ELSEWHERE}/{path}"


def repository_path(uri: str) -> str:
    """Return which file of the repository lies at an address: the inverse of `address`."""
    inside = uri.startswith(f"{ELSEWHERE}/")
    return uri.removeprefix(f"{ELSEWHERE}/") if inside else f"docs/{uri}"


def targets(text: str, path: str) -> list[str]:
    """Return the files of the repository that a document links to."""
    prose = "".join(_FENCE.split(text)[::2])
    found = (one[2] for one in _LINK.finditer(prose) if "://" not in one[2])
    return [os.path.normpath(Path(path).parent / one) for one in found]


def on_config(config: Any) -> None:
    """Name the pages of the API in the navigation."""
    (reference,) = (one["Reference"] for one in config.nav if "Reference" in one)
    reference.append({"API": [f"{API}/{name}" for name in api_pages.pages()]})


def on_files(files: Files, config: Any) -> None:
    """Add the pages of the API, the notebooks, and the files outside of docs that pages link to."""
    left = [repository_path(one.src_uri) for one in files.documentation_pages()]
    for path in NOTEBOOKS.glob("*.ipynb"):
        files.append(File.generated(config, f"tutorials/{path.name}", abs_src_path=str(path)))
    for name, text in api_pages.pages().items():
        files.append(File.generated(config, f"{API}/{name}", content=text))
    while left:
        path = left.pop()
        for target in targets((ROOT / path).read_text(encoding="utf-8"), path):
            uri = address(target)
            if files.get_file_from_path(uri) or not (ROOT / target).is_file():
                continue
            copy = File.generated(config, uri, abs_src_path=str(ROOT / target))
            copy.inclusion = InclusionLevel.NOT_IN_NAV
            files.append(copy)
            if target.endswith(".md"):
                left.append(target)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Let links to files of the repository lead to where they lie in the site; unescape bars."""
    path = repository_path(page.file.src_uri)
    home = Path(page.file.src_uri).parent

    def moved(link: re.Match[str]) -> str:
        if "://" in link[2]:
            return link[0]
        target = os.path.normpath(Path(path).parent / link[2])
        return f"{link[1]}{os.path.relpath(address(target), home)}{link[3]}"

    def unescaped(code: re.Match[str]) -> str:
        return code[0].replace(r"\|", "|")

    executed = NOTEBOOKS / f"{Path(path).stem}.ipynb"
    if path.startswith("docs/tutorials/") and executed.is_file():
        markdown += (
            f"\nThis page as a notebook that was executed: [{executed.name}]({executed.name}).\n"
        )
    parts = _FENCE.split(markdown)
    parts[::2] = (_CODE.sub(unescaped, _LINK.sub(moved, one)) for one in parts[::2])
    return "".join(parts)


def on_post_page(output: str, page: Any, **_: Any) -> None:
    """Refuse a page that loads something from elsewhere when it is read."""
    if found := _LOADED.search(output):
        raise PluginError(f"{page.file.src_uri} loads from elsewhere: {found[0]}")
