"""Refuse a folder that leads out of itself: whoever handed it over would have other files read.

A link in it may name a file of the user's, which a command would then read or write in its place. A
named pipe or a device may never come to an end.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from intarsia.errors import CheckpointError

_FOREIGN: Final = "wandb"


def check_contained(folder: Path) -> None:
    """Raise unless all in a folder is files, folders, and links to what is in it.

    The folder itself may be a link, which the user gave. What goes meanwhile is left out, and so is
    what Weights & Biases has in a folder of its own: there are links to its logs, and no command
    reads or writes there.

    Raises
    ------
    CheckpointError
        With the first entry that is not, in the order of names, and what it is.
    """
    own = folder.resolve()
    for place, folders, files in os.walk(own):
        folders.sort()
        if Path(place) == own and _FOREIGN in folders and not (own / _FOREIGN).is_symlink():
            folders.remove(_FOREIGN)
        for path in (Path(place, name) for name in sorted([*folders, *files])):
            try:
                mode = path.lstat().st_mode
            except FileNotFoundError:
                continue
            here = folder / path.relative_to(own)
            if stat.S_ISLNK(mode):
                target = _target(path)
                if target is None or not target.is_relative_to(own):
                    there = "in a circle" if target is None else f"out of it, to {target}"
                    raise CheckpointError(
                        f"{here} is a link that leads {there}; nothing in a run's folder may, so "
                        "that no other file is read or written: put a copy in its place, or remove "
                        "it."
                    )
            elif not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise CheckpointError(
                    f"{here} is neither a file nor a folder, and nothing else is in a run's "
                    "folder; remove it."
                )


def _target(link: Path) -> Path | None:
    try:
        return link.resolve()
    except (OSError, RuntimeError):  # a circle, by the version of Python
        return None
