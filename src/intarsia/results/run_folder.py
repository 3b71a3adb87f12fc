"""Claim, clear, start and reopen the output folder of a run.

A run writes experiment.json, tables.crc (a checksum of the clients' tables), holdings.json,
holdings.png, history.jsonl, checkpoints/, and when it is trained model/, structure.png (of an
algorithm that finds groups of clients) and result.json, which names the reference models that are
left to train.
Clients that join it later have folders of their own in joined/. A run over sites has run.id,
set-up.state, journal/, away.json and conclusion.state too. run.lock stays: it is held by the
process that works on the run.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from intarsia.core.block import ClientId
from intarsia.core.client_functions import SecretKey
from intarsia.core.files.atomic_files import remove_unfinished, write_atomically
from intarsia.core.files.contained import check_contained
from intarsia.core.files.json_text import check_kind, parse_json
from intarsia.core.plugins import check_allowed
from intarsia.engines.release_ledger import ReleaseLedger
from intarsia.errors import CheckpointError, KeyMaterialError, lacks, listed
from intarsia.experiment import config as experiment
from intarsia.experiment.config import Experiment
from intarsia.privacy.keys.secret_file import read_private, write_private
from intarsia.results.checkpoint import Checkpoints
from intarsia.results.lock import alone

RUN: Final = "run.id"  # of a run over sites: its id, and its clients in their order
SET_UP: Final = "set-up.state"  # what its set-up came to, until it has a result
JOURNAL: Final = "journal"  # what its sites answered
AWAY: Final = "away.json"  # sites that it goes on without, while there are some
PENDING: Final = "pending.json"  # sites whose owners are to decide about it, and what they say
TRACKED: Final = "trackers.json"  # under which ids trackers know the run
CONCLUSION: Final = "conclusion.state"  # the weights that its server has
PSEUDONYMS: Final = "keys/pseudonyms.key"  # what its pseudonyms come from


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Keep other processes from the run in a folder, which is made where it is not there.

    What processes that were killed left there half written is removed.

    Raises
    ------
    BusyError
        On entry, if another process works on the run and does not come to an end.
    CheckpointError
        If something in the folder leads out of it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    check_contained(folder)
    busy = (
        f"Another process works on the run in {folder}; wait until it is done, or end it and try "
        "again."
    )
    with alone(folder / "run.lock", busy):
        remove_unfinished(folder, *_FOLDERS)
        yield


def claim(folder: Path, settings: str = "--out") -> None:
    """Raise if the folder holds a run that a new one would replace.

    One in one place that was stopped before its first checkpoint left nothing to go on from, and
    may be replaced. `settings` are those by which the user chooses another folder.

    Raises
    ------
    CheckpointError
        If it holds a result or an unfinished run, or is no folder.
    """
    replace_it = "or replace it with --overwrite"
    if folder.exists() and not folder.is_dir():
        raise CheckpointError(
            f"{folder} is a file, and a run's output is a folder; choose another one with "
            f"{settings}."
        )
    if (folder / "result.json").is_file():
        raise CheckpointError(
            f"{folder} already holds a result; choose another folder with {settings}, {replace_it}."
        )
    saved = is_over_sites(folder) or Checkpoints(folder).rounds
    if saved and (folder / "experiment.json").is_file():
        raise CheckpointError(
            f"{folder} holds an unfinished run; go on with `intarsia resume {folder}`, "
            f"{replace_it}."
        )


def start(
    folder: Path,
    description: Experiment,
    fingerprint: str,
    *,
    overwrite: bool,
    sites: Mapping[str, Any] | None = None,
) -> Checkpoints:
    """Remove what a run before left in the folder, and write down what this one is.

    `sites` are the id and the clients of a run over sites.

    Raises
    ------
    CheckpointError
        If another process left a run there since the folder was claimed, but with `overwrite`; or
        if the folder holds no run, and folders of the names that a run writes.
    """
    if not overwrite:
        claim(folder)
    clear(folder)
    if sites is not None:
        write_atomically(folder / RUN, json.dumps(sites).encode())
    keep_description(folder, description, fingerprint)
    return Checkpoints(folder)


def keep_description(folder: Path, description: Experiment, fingerprint: str) -> None:
    """Write down what a run is: with this the folder is one that can be resumed."""
    tree = experiment.to_dict(description)
    tree["experiment"]["out"] = "."
    write_atomically(folder / _TABLES, fingerprint.encode())
    # last: it says that the run can be resumed
    text = json.dumps(tree, indent=2, ensure_ascii=False)
    # it says where tables and keys lie, and holds what a url holds
    write_atomically(folder / "experiment.json", text.encode(), private=True)


def change_description(folder: Path, description: Experiment) -> None:
    """Write down a setting of a run that was changed since it began; the tables stay."""
    keep_description(folder, description, _fingerprint_of_tables(folder))


def checksum_of_tables(folder: Path) -> str:
    """Return the checksum of a run's tables; "": the folder has none."""
    return _fingerprint_of_tables(folder) if (folder / _TABLES).is_file() else ""


def _fingerprint_of_tables(folder: Path) -> str:
    """Return the checksum of a run's tables; one that is damaged is that of no tables."""
    return (folder / _TABLES).read_text(encoding="utf-8", errors="replace")


_SECRET = "key of pseudonyms"
_CLIENT_SECRETS = "secrets of the clients' random numbers"
_CLIENTS = "clients.secret"  # their file
_FILES = (  # first those without which nobody goes on with the run
    "result.json",
    "experiment.json",
    RUN,
    SET_UP,
    AWAY,
    PENDING,
    CONCLUSION,
    "keys.json",
    "history.jsonl",
    "holdings.json",
    "holdings.png",
    "structure.png",
    "figures.png",
    "report.html",
    TRACKED,
    # of `intarsia export`
    *("model.onnx", "model.skops", "model.safetensors", "model.safetensors.json", "model.json"),
    "audit.json",
    "transcript.bin",
)
_TABLES = "tables.crc"  # the checksum of the clients' tables
_SIGNS = ("result.json", "experiment.json", RUN, _TABLES)  # that a run is, or was, in a folder
_FOLDERS = ("checkpoints", JOURNAL, "joined", "keys", "model")


def clear(folder: Path) -> None:
    """Remove what a run writes, and nothing else that may lie in the folder.

    The checksum of the tables goes last: while it is there, the rest is a run's.

    Raises
    ------
    CheckpointError
        If folders of these names are there and no run's.
    """
    there = [name for name in _FOLDERS if (folder / name).is_dir()]
    if there and not any((folder / name).is_file() for name in _SIGNS):
        raise CheckpointError(
            f"{folder} has {listed(there)} and holds no run, which would write under that name; "
            "choose another folder with --out."
        )
    for name in _FILES:
        (folder / name).unlink(missing_ok=True)
    for name in there:
        shutil.rmtree(folder / name)
    (folder / _TABLES).unlink(missing_ok=True)


def describe(folder: Path, allow_modules: Collection[str] | None = ()) -> Experiment:
    """Return the experiment of the run in a folder.

    Its algorithm names no module but those allowed; None: whatever it names, nothing of it is run,
    or the folder is the server's own.

    Raises
    ------
    CheckpointError
        If the folder holds no run, names another module, or something in it leads out of it.
    """
    path = folder / "experiment.json"
    check_contained(folder)
    if not path.is_file():
        said = lacks(folder, "holds no experiment.json")
        raise CheckpointError(f"{said}; give the output folder of a run that was stopped.")
    remedy = "run the experiment again with --overwrite"
    try:
        tree = parse_json(path.read_text(encoding="utf-8"))
    except ValueError as problem:
        raise CheckpointError(f"{path} is no JSON ({problem}); {remedy}.") from None
    if not isinstance(tree, dict):
        raise CheckpointError(f"{path} holds no tables of an experiment; {remedy}.")
    if allow_modules is not None:
        check_allowed(tree.get("algorithm"), allow_modules, folder)
    return replace(experiment.from_dict(tree, folder), out=str(folder))


def is_over_sites(folder: Path) -> bool:
    """Return whether a folder holds a run over sites that can go on: all of its start is there."""
    return all((folder / name).is_file() for name in (RUN, "experiment.json"))


def described(folder: Path) -> Experiment | None:
    """Return the experiment of the run in a folder, or None where the folder does not say."""
    return describe(folder, None) if (folder / "experiment.json").is_file() else None


def reopen(folder: Path, fingerprint: str) -> Checkpoints:
    """Return a stopped run's checkpoints; CheckpointError if its tables changed since it began."""
    if not (folder / _TABLES).is_file() or _fingerprint_of_tables(folder) != fingerprint:
        raise CheckpointError(
            f"The tables of {folder} are not those the run was started with, or another version of "
            "intarsia prepared them; put them back, or start again with --overwrite."
        )
    return Checkpoints(folder)


def keep_secret(folder: Path, secret: bytes | None) -> None:
    """Keep what the pseudonyms of a folder come from, for the clients alone; None: of nothing."""
    if secret is not None:
        _keys(folder)
        write_private(folder / PSEUDONYMS, _SECRET, {}, secret)


def read_secret(folder: Path) -> bytes | None:
    """Return what `keep_secret` kept."""
    path = folder / PSEUDONYMS
    return read_private(path, _SECRET)[1] if path.is_file() else None


def keep_client_secrets(folder: Path, found: Mapping[ClientId, SecretKey]) -> None:
    """Keep the simulated clients' own secrets: a run that goes on has the same ones."""
    whole = b"".join(one.to_file() for one in found.values())
    write_private(_keys(folder) / _CLIENTS, _CLIENT_SECRETS, {"clients": list(found)}, whole)


def read_client_secrets(folder: Path) -> dict[ClientId, SecretKey] | None:
    """Return what `keep_client_secrets` kept; None: nothing, as in runs of earlier versions."""
    path = folder / "keys" / _CLIENTS
    if not path.is_file():
        return None
    public, whole = read_private(path, _CLIENT_SECRETS)
    starts = range(0, len(whole), SecretKey.SIZE)
    own = [SecretKey(whole[start : start + SecretKey.SIZE]) for start in starts]
    return dict(zip(public["clients"], own, strict=True))


def release_ledger(folder: Path) -> ReleaseLedger:
    """Return what the simulated clients released with noise, for a run that goes on too."""
    return ReleaseLedger(folder / "keys" / "releases")


def _keys(folder: Path) -> Path:
    """Return the folder of a run's secrets, which is made where it is not there."""
    own = folder / "keys"
    own.mkdir(mode=0o700, exist_ok=True)
    return own


def keep_fingerprints(folder: Path, description: Experiment) -> None:
    """Note which keys a run was started with, by their fingerprints."""
    files = _key_files(folder, description).items()
    found = {name: _fingerprint(file) for name, file in files if file.is_file()}
    if found:
        write_atomically(folder / "keys.json", f"{json.dumps(found, indent=2)}\n".encode())


def check_fingerprints(folder: Path, description: Experiment) -> None:
    """Refuse (KeyMaterialError) to go on with other keys than a run was started with, or none."""
    path = folder / "keys.json"
    if not path.is_file():
        return
    try:
        started = parse_json(path.read_text(encoding="utf-8"))
        check_kind(started, dict[str, str], "it")
    except ValueError as problem:
        raise CheckpointError(
            f"{path} does not say which keys the run was started with ({problem}); bring the file "
            "back, or start a new run."
        ) from None
    for name, file in _key_files(folder, description).items():
        if name not in started:
            continue
        if not file.is_file():
            raise KeyMaterialError(
                f"{file} is gone, the key that the run in {folder} was started with; what it "
                "sealed cannot be opened without it: bring the file back, or start a new run."
            )
        found = _fingerprint(file)
        if found != started[name]:
            raise KeyMaterialError(
                f"The key in {file} has the fingerprint {found}, but the run in {folder} was "
                f"started with {started[name]}; go on with that key, or start a new run."
            )


def _key_files(folder: Path, description: Experiment) -> dict[str, Path]:
    """Return where the keys of a run lie, by the setting that names them."""
    found: dict[str, Path] = {}
    if description.privacy.mode != "plain":
        found["privacy.key"] = Path(description.privacy.key or folder / "keys" / "shared.key")
    if description.alignment.key is not None:
        found["alignment.key"] = Path(description.alignment.key)
    return found


def _fingerprint(file: Path) -> str:
    from intarsia.privacy.keys.shared_key import SharedKey  # here: it imports cryptography

    return SharedKey.load(file).fingerprint
