"""Files and folders are written atomically, and leftovers of killed processes are removed."""

import errno
import fcntl
import os
import signal
import subprocess
import sys

import pytest

from tf_transformer import files
from tf_transformer.files import atomic_file, atomic_folder, remove_leftovers


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_replaces_the_old_one_when_it_is_complete(tmp_path):
    path = tmp_path / "config.toml"
    path.write_text("old")
    with pytest.raises(ValueError, match="full"), atomic_file(path) as temporary:
        temporary.write_text("half")
        raise ValueError("full")
    assert path.read_text() == "old"
    with atomic_file(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert names_in(tmp_path) == ["config.toml"]


def test_links_and_pipes_are_not_replaced(tmp_path):
    for name in ("target", "link", "pipe"):
        path = tmp_path / name
        if name == "link":
            path.symlink_to("target")
        elif name == "pipe":
            os.mkfifo(path)
            reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        with atomic_file(path) as temporary:
            temporary.write_text(f"into {name}")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "pipe").is_fifo()
    assert (tmp_path / "target").read_text() == "into link"
    assert os.read(reader, 100) == b"into pipe"
    os.close(reader)
    assert names_in(tmp_path) == ["link", "pipe", "target"]


@pytest.mark.parametrize("writer", [atomic_file, atomic_folder])
def test_an_error_of_the_disk_names_what_is_written(tmp_path, writer):
    for named in (None, "input"):
        with pytest.raises(OSError) as caught, writer(tmp_path / "config.toml"):
            raise OSError(errno.ENOSPC, "full", named)
        assert caught.value.filename == (named or tmp_path / "config.toml")
    assert names_in(tmp_path) == []


def write_folder(path, content, **options):
    with atomic_folder(path, **options) as temporary:
        (temporary / "nested").mkdir()
        (temporary / "nested" / "file").write_text(content)


def content_of(path):
    return (path / "nested" / "file").read_text()


def test_a_folder_appears_when_it_is_complete(tmp_path):
    path = tmp_path / "new" / "1"
    write_folder(path, "x")
    assert content_of(path) == "x"
    with pytest.raises(ValueError, match="full"), atomic_folder(path.with_name("2")):
        raise ValueError("full")
    assert names_in(path.parent) == ["1"]


def test_a_folder_that_exists_is_kept_unless_it_may_be_replaced(tmp_path):
    path = tmp_path / "1"
    write_folder(path, "old")
    with pytest.raises(OSError, match="1"), atomic_folder(path):
        pass
    with pytest.raises(ValueError, match="full"), atomic_folder(path, overwrite=True):
        raise ValueError("full")
    assert content_of(path) == "old"
    write_folder(path, "new", overwrite=True)
    assert content_of(path) == "new"
    assert names_in(tmp_path) == ["1"]


def test_a_folder_can_be_written_within_another(tmp_path):
    with atomic_folder(tmp_path / "run") as run:
        write_folder(run / "tokenizers", "inner", overwrite=True)
    assert content_of(tmp_path / "run" / "tokenizers") == "inner"
    assert names_in(tmp_path / "run") == ["tokenizers"]


KILLED = """
import os, pathlib, signal, sys
from tf_transformer.files import atomic_folder
with atomic_folder(pathlib.Path(sys.argv[1])) as temporary:
    (temporary / "file").write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_next_writer_removes_leftovers_of_a_killed_process(tmp_path):
    path = tmp_path / "1"
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)], timeout=60)
    assert done.returncode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".writing-1-")
    # It may also be a folder that is about to be locked, if somebody holds its parent.
    with files._locked(tmp_path, fcntl.LOCK_SH):
        remove_leftovers(tmp_path)
        assert left.is_dir()
    write_folder(path, "new")
    assert names_in(tmp_path) == ["1"]


def test_files_of_a_running_process_are_kept(tmp_path):
    with atomic_folder(tmp_path / "1") as temporary:
        (temporary / "file").write_text("x")
        remove_leftovers(tmp_path)
        write_folder(tmp_path / "2", "y")
        assert (temporary / "file").read_text() == "x"
    assert names_in(tmp_path) == ["1", "2"]


def test_an_interrupted_replacement_loses_nothing(tmp_path):
    # Killed between the two renames: the old folder is set aside, the new one not yet renamed.
    write_folder(tmp_path / "7", "old")
    (tmp_path / "7").rename(tmp_path / ".replaced-7-0123abcd")
    remove_leftovers(tmp_path)
    assert content_of(tmp_path / "7") == "old"
    # Killed after the second: the old folder is no longer needed.
    write_folder(tmp_path / ".replaced-7-4567cdef", "older")
    remove_leftovers(tmp_path)
    assert names_in(tmp_path) == ["7"]
