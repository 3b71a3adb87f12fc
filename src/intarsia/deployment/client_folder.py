"""What a site keeps on its own disk: its configuration, site.toml, and what it has of each run."""

from __future__ import annotations

import contextlib
import json
import os
import traceback
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from intarsia.core.client_functions import SecretKey
from intarsia.core.files.atomic_files import write_atomically
from intarsia.core.files.json_text import check_kind, parse_json
from intarsia.core.settings import hyperparameters, read_toml
from intarsia.data.reader import located
from intarsia.data.source import Source
from intarsia.deployment.policy import Policy, policy_of
from intarsia.engines.release_ledger import ReleaseLedger
from intarsia.engines.remote.wire import shown
from intarsia.errors import (
    CheckpointError,
    ExperimentError,
    IntarsiaError,
    PolicyError,
    lacks,
    printable,
)
from intarsia.privacy.keys.secret_file import drawn_once
from intarsia.privacy.settings import Trust
from intarsia.results.chained_log import ChainedLog, read_chain
from intarsia.results.lock import alone

ERRORS: Final = "errors.log"
_MOST_BYTES: Final = 2_000_000  # of that file
_LOCK: Final = "site.lock"
_SECRET: Final = "site.secret"
_RELEASES: Final = "releases"
_PUT_BACK: Final = "put-back.json"
LOG: Final = "log/site.log"  # of all calls
HEAD: Final = "site.head"  # number and hash of the last entry of it
# What a job runs at a site, and what writes of a call that is refused before the site is opened.
ENTRY_POINTS: Final = {
    "job": "intarsia.deployment.client_setup.site_of_kit",
    "refused": f"{__name__}.refusals_in",
}


@dataclass(frozen=True, kw_only=True)
class SiteSettings:
    """What a site's own folder says; the server never names a path."""

    name: str  # as the experiment calls this client
    plain: bool = False  # whether the server may read what this site contributes
    # "clients": sums may be sealed with one key that all clients have, any of which, together with
    # the server, opens what this site contributes
    trust: Trust = "pairs"
    ids: bool = False  # whether it may read the ids of this site's rows
    scales: bool = False  # whether it gets means and scales of the columns, for its model
    key: str = ""  # file: of the clients, where sums are sealed or ids are pseudonyms
    dictionary: str = ""  # file: which column is which feature, where the run uses a dictionary
    modules: tuple[str, ...] = ()  # "package.module:name": functions here that a run may name
    # as a [[client]] of an experiment; None: a simulation, whose data set the site deals itself
    table: Source | None = None
    policy: Policy = field(default_factory=Policy)  # what the owner allows


def read_settings(folder: Path, kit: str = "") -> SiteSettings:
    """Return the settings in a site's folder; ExperimentError if they are wrong, or absent.

    `kit` is the name of the kit that the folder is in, which must be the site's.
    """
    path = folder / "site.toml"
    if not path.exists():
        said = f"{folder} holds no site.toml"
        if not folder.parent.is_dir():  # of the kit
            said = lacks(folder.parent, "")
        raise ExperimentError(f"{said}; give the folder of a site that was set up for it.")
    tree = read_toml(path, "a site's file", ("site", "table", "policy"))
    own = dict(tree.get("site", {}))
    for file in ("key", "dictionary"):
        if own.get(file) and isinstance(own[file], str):
            own[file] = str((folder / own[file]).resolve())
    table = None
    if "table" in tree:
        table = table_of(tree["table"], own.get("name", ""), folder, path)
    for key in ("table", "policy"):
        if key in own:
            raise ExperimentError(
                f"{path}: {key} is no key of [site]; write it as a table [{key}] of its own."
            )
    own |= {"table": table, "policy": policy_of(tree.get("policy", {}), f"{path}: [policy]")}
    settings = hyperparameters(SiteSettings, own, f"{path}: [site]")
    if kit and settings.name != kit:
        raise ExperimentError(
            f"The kit {folder.parent} is {kit}'s but its site.toml has the name "
            f"{settings.name!r}; both must be the name that experiments use."
        )
    return settings


def table_of(given: Mapping[str, Any], site: str, folder: Path, path: Path) -> Source:
    """Return what a site's file, at `path` in its folder, says of the table; ExperimentError."""
    return located(hyperparameters(Source, {"name": site, **given}, f"{path}: [table]"), folder)


def check_files(settings: SiteSettings) -> None:
    """Check that what a site's settings name is there, before a run asks for it.

    Raises
    ------
    ExperimentError
        If a file is missing, or sums must be sealed and there is no key.
    """
    table = "" if settings.table is None else str(settings.table.path or "")
    for what, path in (
        ("[site] key", settings.key),
        ("[site] dictionary", settings.dictionary),
        ("[table] path", table),
    ):
        if path and not Path(path).exists():
            raise ExperimentError(
                f"site.toml: {what} is {path}, where nothing is; put the file there, or correct it."
            )
    if not settings.plain and not settings.key:
        raise ExperimentError(
            "site.toml: plain is false, so that sums must be sealed, and there is no key; set key "
            "to the clients' shared key (intarsia keys), or plain = true."
        )


def errors_in(folder: Path) -> Callable[[Exception], None]:
    """Return what writes errors into errors.log of a site's folder, for the site's own people.

    The file before it is errors.log.1; both together have 4 MB at most.
    """
    path = folder / ERRORS

    def report(error: Exception) -> None:
        notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
        said = printable(f"{type(error).__name__}: {error}{notes}")
        text = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} {said}\n"
        if not isinstance(error, IntarsiaError):
            trace = "".join(traceback.format_exception(error))
            text += "".join(f"{printable(line)}\n" for line in trace.splitlines())
        with contextlib.suppress(OSError):  # a full disk must not hide what else there is to say
            if path.is_file() and path.stat().st_size > _MOST_BYTES:
                path.replace(path.with_name(f"{ERRORS}.1"))
            # sentences have values of the table: nobody else on the machine is to read them
            with open(path, "a", encoding="utf-8", opener=_for_the_owner) as file:
                os.fchmod(file.fileno(), 0o600)  # of an older version others could read it
                file.write(text)

    return report


def _for_the_owner(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def log_of(folder: Path) -> ChainedLog:
    """Return the log of all calls at a site; its head lies apart from it."""
    return ChainedLog(folder / LOG, folder / HEAD)


def check_log(folder: Path) -> str:
    """Return in a sentence what is wrong with a site's log, and write it into errors.log.

    It is empty where nothing is wrong. The site goes on all the same: what was done to its log
    stays to be found.
    """
    log, head = folder / LOG, folder / HEAD
    if not log.exists() and not head.exists():
        return ""
    try:
        faults = read_chain(log, head).faults
    except CheckpointError:
        faults = (f"{HEAD} is there, and the log is not.",)
    if not faults:
        return ""
    more = f" and {len(faults) - 1} more faults" if len(faults) > 1 else ""
    said = (
        f"The log {log} does not verify ({faults[0].rstrip('.')}{more}); see `intarsia audit`, and "
        "ask who could write it: the site goes on."
    )
    errors_in(folder)(CheckpointError(said))
    return said


def refusals_in(folder: Path) -> Callable[[Exception], None]:
    """Return what writes down that somebody was refused who is not the server."""
    report, log = errors_in(folder), log_of(folder)

    def refuse(error: Exception) -> None:
        report(error)
        with contextlib.suppress(OSError):  # as above
            said = {"error": type(error).__name__, "sentence": shown(str(error))}
            log.append({"event": "refused", **said})

    return refuse


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


@dataclass(frozen=True)
class PutBack:
    """What a site's folder does not count itself, as it was put back from backups."""

    epsilon: float = 0.0  # of jobs that began after a backup
    closed: Mapping[str, str] = field(default_factory=dict[str, str])  # run → the backup's moment

    @classmethod
    def of(cls, folder: Path) -> PutBack:
        """Return what is written down in a site's folder; CheckpointError if it is damaged."""
        path = folder / _PUT_BACK
        if not path.is_file():
            return cls()
        try:
            found = cls(**parse_json(path.read_bytes()))
            check_kind(found, cls)
            if not found.epsilon >= 0:  # nor is NaN
                raise ValueError(f"epsilon is {found.epsilon}")
        except (ValueError, TypeError) as problem:
            raise CheckpointError(
                f"{path} is damaged ({problem}), so that what the site has spent is not known; put "
                "the site back from its backup."
            ) from None
        return found


def note_put_back(folder: Path, epsilon: float, written: str, begun: Collection[str]) -> None:
    """Write down that a site's folder is as of a moment, and what was spent since then.

    Where something was spent, runs with noise of before are closed: how often they released
    something since then is not known. These are the runs that had released something, and those
    that had `begun` alone.
    """
    known = PutBack.of(folder)
    released = (path.name for path in (folder / _RELEASES).glob("*"))
    closed = (*released, *begun) if epsilon else ()
    found = PutBack(known.epsilon + epsilon, {**known.closed, **dict.fromkeys(closed, written)})
    write_atomically(folder / _PUT_BACK, json.dumps(asdict(found)).encode(), private=True)
    # what left since then is in the log that was lost
    log_of(folder).append({"event": "put back", "written": written, "spent": epsilon})


def ledger_of(folder: Path, run: str) -> ReleaseLedger:
    """Return what a site released with noise in a run; it lies apart from what goes back.

    Raises
    ------
    PolicyError
        If the folder was put back from a backup, and the run may have released more since then.
    """
    if (written := PutBack.of(folder).closed.get(run)) is not None:
        raise PolicyError(
            f"the site was put back from a backup of {written}, and does not know what this run "
            "released with noise since then: begin it anew."
        )
    return ReleaseLedger(folder / _RELEASES / run)


def secret_of(folder: Path) -> SecretKey:
    """Return a site's own secret, which it draws at its first start; no run and no server has it.

    Raises
    ------
    KeyMaterialError
        If the file cannot be read or written, or others may read it.
    """
    kind = "secret of the site's random numbers"
    return SecretKey(drawn_once(folder / _SECRET, kind, SecretKey.SIZE))


def alone_in(folder: Path) -> AbstractContextManager[None]:
    """Keep other processes from a site's folder; BusyError where one works there."""
    return alone(
        folder / _LOCK,
        f"Another process works in {folder}, and a site is served by one at a time: wait until it "
        "is done, as one of another job is, or end it where no other job runs.",
    )
