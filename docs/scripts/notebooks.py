"""Make a notebook of each tutorial and execute it: its blocks are the cells.

python docs/scripts/notebooks.py FOLDER [TUTORIAL...]

A cell of commands begins with %%bash, and one that writes a file with %%writefile. What a page
shows as output is left out, as the notebook has its own. A notebook whose cells are what they were
is not executed again.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from traitlets.config import Config

sys.path.insert(0, str(Path(__file__).parent))
import pages

TUTORIALS = pages.ROOT / "docs" / "tutorials"
_PICTURE = re.compile(r"!\[([^\]]*)\]\([^)]+\)")
_LINK = re.compile(r"\[([^\]]+)\]\((?!https?:)[^)]+\)")
# a kernel asks commands for colours and progress bars, which a notebook would keep one by one
_PLAIN = (
    'import os; os.environ.pop("FORCE_COLOR", 0); os.environ |= {"TERM": "dumb", "NO_COLOR": "1"}'
)


def notebook(page: str) -> Any:
    """Return the notebook of a page, not executed."""
    made = nbformat.v4.new_notebook(cells=list(_cells(page)))
    for number, cell in enumerate(made.cells):
        cell.id = f"cell-{number}"  # the same each time
    made.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return made


def _cells(page: str) -> Iterator[Any]:
    for piece in pages.pieces(page):
        if isinstance(piece, str):
            text = _LINK.sub(r"\1", _PICTURE.sub(r"*\1*", piece)).strip()
            if text:
                yield nbformat.v4.new_markdown_cell(text)
        elif piece.title:
            folder = Path(piece.title).parent
            if folder != Path():
                yield nbformat.v4.new_code_cell(f"%%bash -e\nmkdir -p {folder}")
            yield nbformat.v4.new_code_cell(f"%%writefile {piece.title}\n{piece.text.rstrip()}")
        elif piece.runs:
            start = "%%bash -e\n" if piece.language == "sh" else ""
            yield nbformat.v4.new_code_cell(start + piece.text.strip())
        elif piece.language != "text":
            yield nbformat.v4.new_markdown_cell(f"```{piece.language}\n{piece.text}```")


def sources(made: Any) -> list[str]:
    """Return what the cells of a notebook say, without their outputs."""
    return [cell.source for cell in made.cells]


def execute(made: Any) -> None:
    """Execute a notebook in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as sockets:
        inside = {"transport": "ipc", "ip": f"{sockets}/kernel"}  # no port that others reach
        client = NotebookClient(
            made,
            config=Config(KernelManager=inside),
            timeout=600,
            resources={"metadata": {"path": folder}},
            extra_arguments=[f"--IPKernelApp.exec_lines={_PLAIN}"],
        )
        try:
            client.execute()
        finally:
            for kit in Path(folder).glob("kits/*"):  # what the page started
                subprocess.run(["intarsia", "federation", "stop", str(kit)], capture_output=True)


def main() -> None:
    """Write the notebooks that are missing, or whose pages have changed."""
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    names = sys.argv[2:] or [one.stem for one in TUTORIALS.glob("*.md") if one.stem != "index"]
    for name in sorted(names):
        made = notebook((TUTORIALS / f"{name}.md").read_text(encoding="utf-8"))
        path = target / f"{name}.ipynb"
        if path.is_file() and sources(nbformat.read(path, 4)) == sources(made):
            continue
        sys.stderr.write(f"executing {path.name}\n")
        execute(made)
        nbformat.write(made, path)


if __name__ == "__main__":
    main()
