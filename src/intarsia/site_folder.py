"""What a site keeps on its own disk: its configuration, and what it has of each run.

```toml
[site]
name = "bank"               # as the experiment calls this client
plain = false               # whether the server may read what this site contributes
scales = false              # whether it gets means and scales of the columns, for its model
key = "keys/shared.key"     # of the clients, where sums are sealed or ids are pseudonyms
dictionary = "columns.toml" # which column is which feature, where the run uses a dictionary
modules = ["networks:Small"] # functions of this site's own Python that a run may name

[table]                     # as a [[client]] of an experiment, without the name
path = "bank.csv.gz"
id = "customer"
label = "default"
```
"""

from __future__ import annotations

import fcntl
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from intarsia.checkpoint import write_atomically
from intarsia.errors import BusyError, ExperimentError
from intarsia.hyperparameters import hyperparameters
from intarsia.sources import Source, located
from intarsia.spelling import nearest

__all__ = ["FolderShelf", "SiteSettings", "alone_in", "read_settings", "shelf_of"]

_LOCK: Final = "site.lock"
_LONGEST: Final = 2.0  # seconds in which whoever works there may come to an end


@dataclass(frozen=True, kw_only=True)
class SiteSettings:
    """What a site's own folder says; the server never names a path."""

    name: str
    plain: bool = False
    scales: bool = False
    key: str = ""  # file
    dictionary: str = ""  # file
    modules: tuple[str, ...] = ()  # "package.module:name", as experiments name functions
    table: Source | None = None  # None: a simulation, whose data set the site deals itself


def read_settings(folder: Path) -> SiteSettings:
    """Return the settings in a site's folder.

    Raises
    ------
    ExperimentError
        If there are none, or they are wrong.
    """
    path = folder / "site.toml"
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ExperimentError(
            f"{folder} holds no site.toml; give the folder of a site that was set up for it."
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise ExperimentError(f"{path} is no TOML ({problem}); correct it.") from None
    for key in tree:
        if key not in ("site", "table"):
            near = nearest(key, ["site", "table"])
            raise ExperimentError(f"{path}: [{key}] is not known; {near}.")
    own = dict(tree.get("site", {}))
    for file in ("key", "dictionary"):
        if own.get(file) and isinstance(own[file], str):
            own[file] = str((folder / own[file]).resolve())
    table = None
    if "table" in tree:
        source: Source = hyperparameters(
            Source, {"name": own.get("name", ""), **tree["table"]}, f"{path}: [table]"
        )
        table = located(source, folder)
    made: SiteSettings = hyperparameters(SiteSettings, {**own, "table": table}, f"{path}: [site]")
    return made


class FolderShelf:
    """A shelf in a folder: each thing is a file, replaced as a whole."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, name: str) -> bytes | None:
        """Return what lies under a name, None if nothing does."""
        try:
            return (self._folder / name).read_bytes()
        except FileNotFoundError:
            return None

    def write(self, name: str, data: bytes) -> None:
        """Put something under a name, and come back when it is durable."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(self._folder / name, data)

    def remove(self, name: str) -> None:
        """Take away what lies under a name, if anything does."""
        (self._folder / name).unlink(missing_ok=True)


def shelf_of(folder: Path, run: str) -> FolderShelf:
    """Return the shelf of a run in a site's folder."""
    return FolderShelf(folder / "runs" / run)


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Keep other processes from a site's folder, which the system ends where this one dies.

    Raises
    ------
    BusyError
        If another process works there and does not come to an end.
    """
    end = time.monotonic() + _LONGEST
    with (folder / _LOCK).open("wb") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    raise BusyError(
                        f"Another process works in {folder}; a site is served by one: end the "
                        "other, or wait until it is done."
                    ) from None
            time.sleep(0.02)
        yield
