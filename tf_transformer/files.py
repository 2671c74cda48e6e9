"""Files and folders that are written atomically: readers see all of them or nothing.

A file or folder is written as `.writing-*`, and renamed when it is complete and on the disk. A
folder stays locked while it is written, so that the next writer can tell the leftovers of killed
processes, which it removes, from the folders of running ones.
"""

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path

_WRITING, _REPLACED = ".writing-", ".replaced-"
_HOST = socket.gethostname()


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def without_parents(path: str | os.PathLike[str]) -> Path:
    """Resolves a path with `..`, which TensorFlow would take out by its text, links or not."""
    return Path(path).resolve() if ".." in Path(path).parts else Path(path)


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yields a path to write to; the file replaces `path` when the block ends without an error."""
    temporary = path.with_name(f"{_WRITING}{path.name}")
    try:
        yield temporary
        _sync(temporary)
        temporary.replace(path)
        _sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_folder(path: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Yields an empty folder that becomes `path` when the block ends without an error.

    Args:
        path: The folder to make; its parents are made where they are missing.
        overwrite: Whether to replace a folder that exists by then.

    Raises:
        OSError: `path` exists by then and is not empty, or the disk cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(path.parent)
    # The name is unique on all machines that may share the parent.
    temporary = path.with_name(f"{_WRITING}{path.name}-{_HOST}-{uuid.uuid4().hex}")
    with _locked_folder(temporary):
        try:
            yield temporary
            _sync(*temporary.rglob("*"), temporary)
            _move(temporary, path, overwrite)
            _sync(path.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def remove_leftovers(folder: Path) -> None:
    """Removes leftovers of killed processes, and completes an interrupted replacement."""
    for entry in folder.glob(f"{_REPLACED}*"):
        original = folder / entry.name.removeprefix(_REPLACED).rpartition("-")[0]
        if original.exists():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):  # another process was faster
                entry.rename(original)
    # Locks may be invisible to other machines that share the folder.
    for entry in folder.glob(f"{_WRITING}*-{_HOST}-*"):
        if entry.is_dir():
            _remove_abandoned(entry)


def _move(new: Path, path: Path, overwrite: bool) -> None:
    """Renames a folder to `path`; where another writer puts one there again, it is replaced too."""
    replaced: list[Path] = []
    try:
        while True:
            try:
                new.rename(path)
                break
            except OSError as error:
                if not overwrite or error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
            aside = path.with_name(f"{_REPLACED}{path.name}-{uuid.uuid4().hex}")
            with contextlib.suppress(FileNotFoundError):  # another writer has moved it
                path.rename(aside)
                replaced.append(aside)
    except OSError:
        if replaced and not path.exists():
            replaced.pop().rename(path)
        raise
    finally:
        for folder in replaced:
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _locked_folder(path: Path) -> Iterator[None]:
    """Makes a folder and locks it until the block ends; the lock goes with the process."""
    while True:
        path.mkdir(exist_ok=True)
        # Another writer may remove it, as a leftover, before it is locked.
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(path, os.O_RDONLY)
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_ino == os.fstat(descriptor).st_ino:
                    break
            os.close(descriptor)
    try:
        yield
    finally:
        os.close(descriptor)


def _remove_abandoned(folder: Path) -> None:
    """Removes a folder, unless the process that writes it is alive."""
    with contextlib.suppress(OSError):  # it is gone, locked, or on a file system without locks
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder)
        finally:
            os.close(descriptor)


def _sync(*paths: Path) -> None:
    """Flushes files and folders to the disk, so that they are complete after a power cut."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
