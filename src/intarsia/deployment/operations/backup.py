"""A kit in one file, from which it is put back: of a site, or of the server with its runs."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from intarsia import __version__
from intarsia.core.files.atomic_files import UNFINISHED
from intarsia.core.files.json_text import parse_json
from intarsia.deployment.client_folder import note_put_back, read_settings
from intarsia.deployment.federation_file import check_kit, is_of_server
from intarsia.deployment.job_requests import Requests
from intarsia.deployment.operations.archive import unpacked, write_archive
from intarsia.deployment.process import PROCESS_FILES, at_rest
from intarsia.errors import ExperimentError
from intarsia.privacy.keys.keyring import KeyFolder

_ABOUT: Final = "backup.json"
_KIT: Final = "kit"  # its folder in the file


@dataclass(frozen=True)
class Backup:
    """What a file is the backup of."""

    name: str
    server: bool
    written: str  # when, in ISO 8601
    version: str  # of the package


def backup(kit: Path, file: Path) -> Mapping[str, Path]:
    """Write a kit that is not running into one file, which its owner alone reads.

    Returns
    -------
    What the kit needs and does not have in it, by what names it: files beside it.

    Raises
    ------
    ExperimentError
        If it is no kit, the file is there, or would lie in the kit.
    BusyError
        If it is running.
    """
    check_kit(kit)
    if file.exists() or file.resolve().is_relative_to(kit.resolve()):
        why = "is there already" if file.exists() else f"lies in {kit} itself"
        raise ExperimentError(f"{file} {why}; name another file.")
    server = is_of_server(kit)
    about = Backup(kit.name, server, datetime.now(UTC).isoformat(timespec="seconds"), __version__)

    def left_out(path: Path) -> bool:
        return path.name in PROCESS_FILES or path.name.endswith(UNFINISHED)

    with at_rest(kit):
        first = {_ABOUT: json.dumps(asdict(about)).encode()}
        write_archive(file, kit, left_out, below=Path(_KIT), first=first)
    return {} if server else _outside(kit)


def _outside(kit: Path) -> Mapping[str, Path]:
    settings = read_settings(kit / "local")
    table = "" if settings.table is None else str(settings.table.path or "")
    named = {"key": settings.key, "dictionary": settings.dictionary, "table": table}
    found = {what: Path(path).resolve() for what, path in named.items() if path}
    if settings.key:
        keys = KeyFolder(Path(settings.key).resolve().parent)
        more = {
            "identity": keys.identity_file,
            "cards of all": keys.cards_file,
            "CKKS key": keys.ckks_file,
        }
        found |= {what: path for what, path in more.items() if path.is_file()}
    return {what: path for what, path in found.items() if not path.is_relative_to(kit.resolve())}


@contextlib.contextmanager
def _folder_above(kit: Path) -> Iterator[None]:
    """Make the folders in which a kit is to lie; those that nothing came into are gone again."""
    made = [folder for folder in kit.parents if not folder.exists()]
    try:
        kit.parent.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for folder in made:
            with contextlib.suppress(OSError):  # somebody else put something there
                folder.rmdir()
        raise


def restore(file: Path, kit: Path, spent: float | None = None) -> Backup:
    """Put a kit back where nothing is, from a file of `backup`; return what that says.

    Parameters
    ----------
    spent
        The epsilons of the jobs with noise that began at the site since the backup, or went on,
        added up: the file does not count them. A server's kit needs none.

    Raises
    ------
    ExperimentError
        If something is there, the file is no whole backup, it is of a site of another name, or of
        a site and nobody says what was spent since then.
    """
    if spent is not None and not (math.isfinite(spent) and spent >= 0):
        raise ExperimentError(
            f"--spent-since is {spent}; give the epsilons of the jobs with noise, added up: a "
            "number of 0 or more."
        )
    if kit.exists():
        raise ExperimentError(
            f"{kit} is there already, and nothing is written over; give a folder that is not "
            "there, or move that one away."
        )
    with _folder_above(kit), unpacked(file, kit) as found:
        try:
            content: dict[str, Any] = parse_json((found / _ABOUT).read_bytes())
            about = Backup(**content)
            check_kit(found / _KIT)
            if about.server is not is_of_server(found / _KIT):
                raise ValueError("a site's kit, said to be the server's, or the other way round")
        except (OSError, ValueError, TypeError):
            raise ExperimentError(
                f"{file} is no backup; give a file that `intarsia federation backup` wrote."
            ) from None
        if not about.server and kit.name != about.name:
            raise ExperimentError(
                f"{file} is of the site {about.name!r}, and its folder must have that name, not "
                f"{kit.name!r}; write {kit.with_name(about.name)}."
            )
        if not about.server:
            if spent is None:
                raise ExperimentError(
                    f"{file} counts what {about.name} released with noise until {about.written}, "
                    "and nothing since then; add --spent-since EPSILON: the epsilons of the jobs "
                    "with noise that began or went on since then, added up (0: there was none)."
                )
            local = found / _KIT / "local"
            begun = Requests(local).with_noise() if spent else ()
            note_put_back(local, spent, about.written, begun)
        (found / _KIT).rename(kit)
    return about
