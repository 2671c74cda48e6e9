"""Files and folders that are written atomically: readers see all of them or nothing."""

import contextlib
import hashlib
import os
import re
import shutil
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path

_WRITING, _REPLACED = ".writing-", ".replaced-"
_HOST = socket.gethostname()


def sha256(path: Path) -> str:
    """Returns the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def without_parents(path: str | os.PathLike[str]) -> Path:
    """Resolves a path that has `..`, which TensorFlow removes without following links."""
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
    unique = uuid.uuid4().hex
    # Not `tempfile.mkdtemp`, whose folders only their owner can read.
    temporary = path.with_name(f"{_WRITING}{path.name}-{_HOST}-{os.getpid()}-{unique}")
    temporary.mkdir()
    try:
        yield temporary
        _sync(*temporary.rglob("*"), temporary)
        if overwrite and path.exists():
            path.rename(path.with_name(f"{_REPLACED}{path.name}-{unique}"))
        temporary.rename(path)
        _sync(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        remove_leftovers(path.parent)


def remove_leftovers(folder: Path) -> None:
    """Removes what killed processes left in a folder, and undoes a replacement they had begun."""
    for entry in folder.glob(f"{_REPLACED}*"):
        original = folder / entry.name.removeprefix(_REPLACED).rpartition("-")[0]
        if original.exists():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):  # another process was faster
                entry.rename(original)
    for entry in folder.glob(f"{_WRITING}*"):
        writer = re.search(rf"-{re.escape(_HOST)}-(\d+)-[0-9a-f]+$", entry.name)
        if writer and not _is_running(int(writer[1])):
            shutil.rmtree(entry, ignore_errors=True)


def _is_running(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)  # sends nothing
    except ProcessLookupError:
        return False
    except PermissionError:  # a process of another user
        pass
    return True


def _sync(*paths: Path) -> None:
    """Flushes files and folders to the disk, so that they are complete after a power cut."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
