"""Files that hold a secret: readable by their owner only, whole or not there, and checked.

The text is JSON with the secret in base64 and a checksum. The checksum shows damage, not malice:
whoever can write the file can write another secret with its checksum.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import secrets
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, Final

from intarsia.core.files.atomic_files import unfinished
from intarsia.errors import KeyMaterialError

_VERSION: Final = 1
_OWNER_ONLY: Final = stat.S_IRUSR | stat.S_IWUSR


def write_private(path: Path, kind: str, public: Mapping[str, Any], secret: bytes) -> None:
    """Write a secret with what may be read beside it; the file has mode 0600 from the start.

    Raises
    ------
    KeyMaterialError
        If the file cannot be written.
    """
    _write(path, kind, public, secret, Path.replace)


def drawn_once(path: Path, kind: str, size: int) -> bytes:
    """Return the secret in a file, which is drawn from the system where the file is not there.

    Of two processes that draw one at once, both return that of the first.

    Raises
    ------
    KeyMaterialError
        If the file cannot be read or written, or others than its owner may read or write it.
    """
    if not path.exists():
        with contextlib.suppress(FileExistsError):
            _write(path, kind, {}, secrets.token_bytes(size), _link)
    return read_private(path, kind)[1]


def _write(
    path: Path,
    kind: str,
    public: Mapping[str, Any],
    secret: bytes,
    put: Callable[[Path, Path], object],
) -> None:
    """Write a secret into a file of another name, and put that in its place."""
    content = {**public, "kind": kind, "version": _VERSION}
    content["secret"] = base64.b64encode(secret).decode()
    content["checksum"] = _checksum(content)
    text = json.dumps(content, ensure_ascii=False, indent=1) + "\n"
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        with unfinished(temporary, mode=_OWNER_ONLY) as file:
            _fill(file, text.encode())
            put(temporary, path)
        _sync_folder(path.parent)
    except FileExistsError:
        raise
    except OSError as error:
        raise KeyMaterialError(
            f"The {kind} cannot be written to {path} ({error.strerror}); make room there, or "
            "choose a folder that exists and that you may write to."
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


def read_private(path: Path, kind: str) -> tuple[dict[str, Any], bytes]:
    """Return what is beside a secret in its file, and the secret.

    Raises
    ------
    KeyMaterialError
        If others than its owner may read or write the file, or it is not as it was written.
    """
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise KeyMaterialError(
                    f"The {kind} in {path} has file mode {mode:04o}: others may have read or "
                    f"changed it; replace it by a new one, or run `chmod 600 {path}` if nobody has."
                )
            raw = file.read()
    except OSError as error:
        raise KeyMaterialError(
            f"The {kind} in {path} cannot be read ({error.strerror}); name a file that was "
            "written by this package."
        ) from error
    return _checked(path, kind, raw)


def _checked(path: Path, kind: str, raw: bytes) -> tuple[dict[str, Any], bytes]:
    damaged = KeyMaterialError(
        f"{path} is not a {kind} as it was written ({len(raw)} bytes); take it from a backup or "
        "exchange keys again."
    )
    try:
        content = json.loads(raw)
    except ValueError as error:
        raise damaged from error
    if not isinstance(content, dict):
        raise damaged
    if (content.get("kind"), content.get("version")) != (kind, _VERSION):
        raise KeyMaterialError(
            f"{path} holds {str(content.get('kind'))[:60]!r} of version {content.get('version')!r};"
            f" expected {kind!r} of version {_VERSION}."
        )
    if content.pop("checksum", None) != _checksum(content):
        raise damaged
    return content, base64.b64decode(content.pop("secret"))


def _checksum(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _fill(file: IO[bytes], data: bytes) -> None:
    file.write(data)
    file.flush()
    os.fsync(file.fileno())


def _link(temporary: Path, path: Path) -> None:
    """Put a file in a place that is free; FileExistsError where it is not."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError:  # the file system has no links
        with unfinished(path, mode=_OWNER_ONLY) as file:
            _fill(file, temporary.read_bytes())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
