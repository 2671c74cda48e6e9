"""The versions of a served model: a newer version replaces the loaded one without downtime."""

import gc
import logging
import os
import pathlib
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tf_transformer.errors import InputError
from tf_transformer.export import manifest
from tf_transformer.inference.versions import SAVED_MODEL, find_saved_model, versions
from tf_transformer.serving.session import SavedModelSession

_RETRY_SECONDS = 60.0

_logger = logging.getLogger(__name__)


class Version(NamedTuple):
    """A loaded version, its files' state as `_look` returned it before loading, its manifest."""

    number: int
    model: SavedModelSession
    look: object
    manifest: Mapping[str, Any]


class Versions:
    """A watcher that keeps the highest version of a folder loaded, as TensorFlow Serving does.

    A thread checks the folder every `poll_seconds` seconds. When the highest version has changed or
    another version is now the highest, the thread verifies, loads and warms up that version, and
    then lets it serve. For a moment two versions are in memory; the old version is freed after its
    last request. If a version cannot be served, the error is logged and the current version keeps
    serving. The thread tries the failed version again after a minute, or when its files change.

    Args:
        path: The folder of the versions, such as `saved_models/de_en`. The name of the folder is
            the name of the model.
        unverified: Whether a version without a manifest may be served. Files that differ from a
            manifest are never served.
        poll_seconds: The seconds between two checks of the folder.
        load: A function that loads the model from the folder of a version.

    Attributes:
        current: The version that serves; None before `start` and after `stop`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        unverified: bool = False,
        poll_seconds: float = 1.0,
        load: Callable[[pathlib.Path], Any] = lambda folder: SavedModelSession(folder, threads=1),
    ) -> None:
        self._path = pathlib.Path(path)
        self.name = self._path.resolve().name
        self.current: Version | None = None
        self._unverified = unverified
        self._poll_seconds = poll_seconds
        self._load = load
        self._seen: object = None  # result of `_look` at the last check
        self._tried: tuple[object, float] = (None, 0.0)  # result of `_look`, time to retry
        self._replaced: weakref.ref | None = None
        self._stopped = threading.Event()

    def start(self) -> None:
        """Load the highest version and start the thread that watches the folder.

        Raises:
            InputError: There is no version, or the highest cannot be served.
        """
        if (self._path / SAVED_MODEL).is_file():
            raise InputError(
                f"{self._path}: is one version of a model. Give the folder of its versions: "
                f"{self._path.resolve().parent}"
            )
        find_saved_model(self._path)
        number, folder = max(versions(self._path).items())
        self._replace(number, folder, _look(folder))
        # A daemon thread does not delay the exit of the process while a version is loading.
        threading.Thread(target=self._watch, name="versions", daemon=True).start()

    def stop(self) -> None:
        """Stop watching the folder and release the current version."""
        self._stopped.set()
        self.current = None
        gc.unfreeze()

    def check(self) -> None:
        """Check the folder once.

        A change takes effect only when two checks in a row see the same files, so that a version
        that is still being copied is not loaded.
        """
        if self._replaced and self._replaced() is None:
            self._replaced = None
            gc.unfreeze()
            gc.collect()  # a Python graph has reference cycles and uses much memory
            gc.freeze()
        try:
            number, folder = max(versions(self._path).items(), default=(None, self._path))
            look = _look(folder)
        except OSError:  # the version is being replaced
            return
        except InputError as error:  # two folders have one number
            if self._seen != str(error):
                _logger.error("%s Version %s stays.", error, self.current.number)
            self._seen = str(error)
            return
        has_settled = look == self._seen
        self._seen = look
        if number is None or not has_settled:
            return
        tried, retry_at = self._tried
        if look != self.current.look and (look != tried or time.monotonic() >= retry_at):
            try:
                self._replace(number, folder, look)
            except InputError as error:
                _logger.error("%s Version %s stays.", error, self.current.number)

    def _watch(self) -> None:
        while not self._stopped.wait(self._poll_seconds):
            try:
                self.check()
            except Exception:
                if not self._stopped.is_set():
                    _logger.exception("looking for versions in %s failed", self._path)

    def _replace(self, number: int, folder: pathlib.Path, look: object) -> None:
        """Verify, load and warm up a version, and make it the current one.

        Raises:
            InputError: The version cannot be served.
        """
        self._tried = look, time.monotonic() + _RETRY_SECONDS
        if not (folder / SAVED_MODEL).is_file():
            message = "holds no SavedModel, but a server takes the highest version. Remove it."
            raise InputError(f"{folder}: {message}")
        try:
            has_manifest = manifest.manifest_path(folder).is_file()
            if has_manifest or not self._unverified:
                if problems := manifest.verify_files(folder):
                    raise InputError(problems[0])
            known = manifest.read_manifest(folder) if has_manifest else {}
            model = self._load(folder)
            for signature, inputs in model.warm_up_requests():
                model.run(signature, inputs)
        except InputError:
            raise
        # Loading a damaged SavedModel can raise many unrelated classes of errors.
        except Exception as error:
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            raise InputError(
                f"{folder}: cannot be served ({reason[:200]}). "
                f"Copy the version again, or write it again with tf-transformer export."
            ) from error
        if self._stopped.is_set():
            return
        # A collection that looks at all objects of TensorFlow stops all threads for 0.2 seconds.
        gc.collect()
        gc.freeze()
        old, self.current = self.current, Version(number, model, look, known)
        if old:
            _logger.info("version %s serves in place of %s", number, old.number)
            self._replaced = weakref.ref(old.model)


def _look(folder: pathlib.Path) -> object:
    """Return the state of the files in a folder, which differs when the version is replaced."""
    stats = [(path, path.lstat()) for path in sorted(folder.rglob("*"))]
    found = [(path, s.st_ino, s.st_size, s.st_mtime_ns, s.st_mode) for path, s in stats]
    return folder, tuple(found)
