"""Files and folders that are written atomically: readers see all of them or nothing.

A file or folder is written as `.writing-*`, and renamed when it is complete and on the disk. A
folder stays locked while it is written. The next writer removes folders without a lock, which are
leftovers of killed processes. The parent folder is locked while folders are made and renamed in it,
so that no writer removes a new folder before it is locked.
"""

import contextlib
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
_ALONE = fcntl.LOCK_EX | fcntl.LOCK_NB


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def without_parents(path: str | os.PathLike[str]) -> Path:
    """Resolve a path that has `..`, which TensorFlow removes without following links."""
    return Path(path).resolve() if ".." in Path(path).parts else Path(path)


def obstacle(folder: str | os.PathLike[str]) -> str:
    """Return a sentence on what keeps a folder from being made or written; empty if it can be."""
    places = Path(folder), *Path(folder).absolute().parents
    existing = next(place for place in places if os.path.lexists(place))
    if existing.is_dir() and os.access(existing, os.W_OK):
        return ""
    return f"{folder}: cannot be made, since {existing} is no writable folder."


@contextlib.contextmanager
def naming(path: str | os.PathLike[str] | None) -> Iterator[None]:
    """Let errors of the system that name no file, such as of a full disk, name this one."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or path
        raise


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a path to write to; the file replaces `path` when the block ends without an error.

    A link stays one, and a device or a pipe is written itself.
    """
    if path.exists() and not path.is_file():
        with naming(path):
            yield path
        return
    target = path.resolve() if path.is_symlink() else path
    temporary = target.with_name(f"{_WRITING}{target.name}")
    try:
        with naming(path):
            yield temporary
        if target.exists():
            shutil.copymode(target, temporary)
        _sync(temporary)
        temporary.replace(target)
        _sync(target.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_folder(path: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Yield an empty folder that becomes `path` when the block ends without an error.

    Missing parents are made. With `overwrite`, the new folder replaces one that exists by then.

    Raises:
        OSError: `path` exists by then and is not empty, or the disk cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(path.parent)
    unique = uuid.uuid4().hex
    temporary = path.with_name(f"{_WRITING}{path.name}-{_HOST}-{unique}")
    replaced = path.with_name(f"{_REPLACED}{path.name}-{unique}")
    with contextlib.ExitStack() as locks:
        with _locked(path.parent, fcntl.LOCK_SH):
            temporary.mkdir()
            locks.enter_context(_locked(temporary, fcntl.LOCK_SH))
        try:
            with naming(path):
                yield temporary
            _sync(*temporary.rglob("*"), temporary)
            with _locked(path.parent, fcntl.LOCK_SH):
                if overwrite and path.exists():
                    path.rename(replaced)
                temporary.rename(path)
            _sync(path.parent)
            shutil.rmtree(replaced, ignore_errors=True)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def remove_leftovers(folder: Path) -> None:
    """Remove leftovers of killed processes, and complete an interrupted replacement.

    It does nothing while another process makes or renames a folder there.
    """
    with _locked(folder, _ALONE) as is_alone:
        if not is_alone:
            return
        for entry in folder.glob(f"{_REPLACED}*"):
            original = folder / entry.name.removeprefix(_REPLACED).rpartition("-")[0]
            if original.exists():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                with contextlib.suppress(OSError):  # another machine was faster
                    entry.rename(original)
        # Locks may be invisible to other machines that share the folder.
        for entry in folder.glob(f"{_WRITING}*-{_HOST}-*"):
            with _locked(entry, _ALONE) as is_abandoned:
                if is_abandoned:
                    shutil.rmtree(entry, ignore_errors=True)


@contextlib.contextmanager
def _locked(folder: Path, operation: int) -> Iterator[bool]:
    """Lock a folder until the block or the process ends; yield whether this succeeded."""
    is_locked = False
    with contextlib.ExitStack() as stack:
        # The folder may be gone, another process may hold the lock, or there may be no locks.
        with contextlib.suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, operation)
            is_locked = True
        yield is_locked


def _sync(*paths: Path) -> None:
    """Flush files and folders to the disk, so that they are complete after a power cut."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
