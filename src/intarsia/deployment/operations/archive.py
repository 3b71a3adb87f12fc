"""A folder as one file: a tar file, written whole or not at all, and read without trust."""

from __future__ import annotations

import contextlib
import io
import os
import posixpath
import shutil
import tarfile
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Final

from intarsia.core.files.atomic_files import UNFINISHED, sync
from intarsia.errors import ExperimentError, printable

_EXECUTABLE: Final = 0o100
_DEEPEST: Final = 100  # folders in each other: of a thousand none can be taken away again
# what comes of names, lengths and times that no tar file of ours has, beside a TarError
_ODD: Final = (ValueError, OverflowError, RecursionError)


def write_archive(
    path: Path,
    folder: Path,
    left_out: Callable[[Path], bool] = lambda _: False,
    *,
    below: Path = Path(),
    first: Mapping[str, bytes] = {},
) -> None:
    """Write the files of a folder, but for what is left out, into one that its owner alone reads.

    `below` is the folder's place in the file, and `first` what goes before it, by name.

    Raises
    ------
    ExperimentError
        If something in the folder is neither a file nor a folder, such as a link out of it.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}{UNFINISHED}")
    try:
        temporary.unlink(missing_ok=True)
        with (
            os.fdopen(
                os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb"
            ) as file,
            tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive,
        ):
            for name, data in first.items():
                member = tarfile.TarInfo(name)
                member.size = len(data)
                archive.addfile(_bare(member), io.BytesIO(data))
            for one in _files(folder, folder, left_out):
                name = (below / one.relative_to(folder)).as_posix()
                archive.add(one, name, recursive=False, filter=_bare)
            archive.close()
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync(path.parent)
    except OSError as problem:
        problem.filename = problem.filename2 or str(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)


def _files(whole: Path, folder: Path, left_out: Callable[[Path], bool]) -> Iterator[Path]:
    for one in sorted(folder.iterdir()):
        if left_out(one):
            continue
        link = one.is_symlink()
        if not (_leads_inside(one, whole) if link else one.is_file() or one.is_dir()):
            raise ExperimentError(
                f"{one} is neither a file nor a folder; take it out of {whole}, as its content "
                "would not be kept."
            )
        yield one
        if one.is_dir() and not link:
            yield from _files(whole, one, left_out)


def _leads_inside(link: Path, folder: Path) -> bool:
    """Return whether a link names, from its own place, something that lies in a folder."""
    target = link.parent.resolve() / link.readlink()
    inside = target.exists() and target.resolve().is_relative_to(folder.resolve())
    return inside and str(link.readlink()) == os.path.relpath(
        target.resolve(), link.parent.resolve()
    )


def _bare(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Leave out whose it is, and let its owner alone read it."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mode = 0o700 if member.isdir() or member.mode & _EXECUTABLE else 0o600
    return member


@contextlib.contextmanager
def unpacked(path: Path, beside: Path) -> Iterator[Path]:
    """Unpack a file of `write_archive` into a folder beside another, which is gone at the end.

    Raises
    ------
    ExperimentError
        If it is no such file, is cut, or has a member that would lie elsewhere, or is a link or a
        device.
    """
    filling = beside.with_name(f".{beside.name}.{os.getpid()}{UNFINISHED}")
    shutil.rmtree(filling, ignore_errors=True)
    try:
        try:
            _unpack(path, filling)
        except ExperimentError:
            raise
        except (tarfile.TarError, EOFError, *_ODD):
            raise ExperimentError(
                f"{path} is no whole file of this package's; have it written anew."
            ) from None
        yield filling
    except OSError as problem:
        problem.filename = problem.filename or str(beside)  # a write names no file
        raise
    finally:
        shutil.rmtree(filling, ignore_errors=True)


def _unpack(path: Path, filling: Path) -> None:
    with tarfile.open(path, "r:") as archive:
        members = [*_members(archive)]
        files = {one.name for one in members if not one.issym()}
        for one in members:
            _check(one, path, files)
        if len({one.name for one in members}) < len(members):
            raise ExperimentError(f"{path} has two members of one name; have it written anew.")
        filling.mkdir(mode=0o700)
        for one in sorted(members, key=tarfile.TarInfo.issym):  # nothing goes through a link
            _extract(archive, one, filling / one.name)


def _members(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yield the members; one of a length below 0 leads back, and would be read for ever."""
    for one in archive:
        if one.size < 0:
            raise tarfile.ReadError
        yield one


def _extract(archive: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    mode = 0o700 if member.mode & _EXECUTABLE else 0o600
    for folder in reversed([path, *path.parents] if member.isdir() else path.parents):
        if not folder.exists():
            folder.mkdir(mode=0o700)
    if member.issym():
        path.symlink_to(member.linkname)
    if not member.isreg():
        return
    with (
        archive.extractfile(member) as content,  # type: ignore[union-attr]  # it is a file
        os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file,
    ):
        shutil.copyfileobj(content, file)
        if file.tell() != member.size:
            raise EOFError
    os.utime(path, (member.mtime, member.mtime))


def _check(member: tarfile.TarInfo, path: Path, files: Collection[str]) -> None:
    name = PurePosixPath(member.name)
    inside = (
        bool(name.parts)
        and not name.is_absolute()
        and ".." not in name.parts
        and "\\" not in member.name
        and len(name.parts) <= _DEEPEST
    )
    known = member.isreg() or member.isdir() or (member.issym() and _names_one(member, files))
    if not inside or not known or member.issparse():
        raise ExperimentError(
            f"{path} has {printable(member.name)[:80]!r}, which is a link, a device, a place "
            "outside of its folder or too deep in it; nothing was unpacked: ask who wrote the file."
        )


def _names_one(link: tarfile.TarInfo, files: Collection[str]) -> bool:
    """Return whether a link names one of the files or folders, by the shortest way to it."""
    place = posixpath.dirname(link.name)
    target = posixpath.normpath(posixpath.join(place, link.linkname))
    return target in files and posixpath.relpath(target, place) == link.linkname
