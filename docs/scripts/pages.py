"""The blocks of a document that are run, by a test and for the notebooks of the tutorials.

A page is a session: its blocks of commands (`sh`) and of Python are run in their order, in one
folder. Beside the fence stands what is special:

- ```` ```toml title="mine.toml" ````: a file of this content, which the blocks after it find.
- `<!-- run first: ... -->`: commands that a page needs and does not show.
- `<!-- tables of PAGE -->`: the first block of Python of another page, which makes its tables.
- `<!-- not run: reason -->`, in the line before the fence: what needs more than one machine.
- `<!-- part of FILE -->`, in the line before the fence: code that a file has, which is run there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

_PIECE = re.compile(
    r"^<!-- run first:\s(?P<first>.*?)-->$"
    r"|^<!-- tables of (?P<page>\S+) -->$"
    r"|^(?:<!-- not run: (?P<reason>[^\n]*?) -->\n)?"
    r"(?:<!-- part of (?P<source>\S+) -->\n)?"
    r"(?P<indent> *)```(?P<language>[\w-]*)(?: title=\"(?P<title>[^\"]+)\")?\n"
    r"(?P<text>.*?)^(?P=indent)```$",
    re.DOTALL | re.MULTILINE,
)
RUN = ("sh", "python")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page, or its commands that are not shown."""

    text: str
    language: str  # "sh" and "python" are run
    line: int
    title: str = ""  # of a file: its name
    reason: str = ""  # why it is not run
    source: str = ""  # the file that it is a part of
    shown: bool = True

    @property
    def runs(self) -> bool:
        """Return whether it is run, and not written to a file, left alone or a part of one."""
        return self.language in RUN and not (self.title or self.reason or self.source)


def pieces(page: str) -> Iterator[str | Block]:
    """Yield the prose of a page and its blocks, in their order."""
    end = 0
    for found in _PIECE.finditer(page):
        yield page[end : found.start()]
        end = found.end()
        line = page.count("\n", 0, found.start()) + 1
        if found["first"] is not None:
            yield Block(found["first"], "sh", line, shown=False)
            continue
        if found["page"] is not None:
            other = blocks((ROOT / found["page"]).read_text(encoding="utf-8"))
            text = next(one.text for one in other if one.language == "python")
            yield Block(text, "python", line, shown=False)
            continue
        text = re.sub(f"^{found['indent']}", "", found["text"], flags=re.MULTILINE)
        marks = (found[one] or "" for one in ("title", "reason", "source"))
        yield Block(text, found["language"], line, *marks)
    yield page[end:]


def blocks(page: str) -> list[Block]:
    """Return the blocks of a page, in their order."""
    return [one for one in pieces(page) if isinstance(one, Block)]
