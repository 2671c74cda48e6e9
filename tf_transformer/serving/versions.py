"""The versions of a served model: the highest is loaded, and replaced while it serves."""

import gc
import logging
import os
import pathlib
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from tf_transformer.errors import InputError
from tf_transformer.export import manifest
from tf_transformer.inference.versions import SAVED_MODEL, find_saved_model, versions
from tf_transformer.serving.session import SavedModelSession

_RETRY_SECONDS = 60.0

_logger = logging.getLogger(__name__)


class Version(NamedTuple):
    """A version that is loaded, and what its files looked like, see `_look`."""

    number: int
    model: SavedModelSession
    look: object


class Versions:
    """Keeps the highest version of a folder loaded, as TensorFlow Serving does.

    A thread looks at the folder every second. It verifies, loads and warms up a version that is
    new, was replaced or is now the highest, and then lets it serve; so for a moment two versions
    are in memory. The old one is freed after its last request. A version that cannot be served is
    logged and tried again after a minute or a change, while the current one goes on.

    Args:
        path: Folder of the versions, such as `saved_models/de_en`; its name is the model's.
        unverified: Whether a version without a manifest may be served. Files that differ from a
            manifest are never served.
        poll_seconds: The time between two looks at the folder.
        load: Returns the model in the folder of a version.

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
        self._seen: object = None  # what the highest version looked like at the last look
        self._tried: tuple[object, float] = (None, 0.0)  # the last one, and when to try it again
        self._old: weakref.ref | None = None
        self._stopped = threading.Event()

    def start(self) -> None:
        """Loads the highest version, and begins to look for others.

        Raises:
            InputError: There is no version, or the highest cannot be served.
        """
        if (self._path / SAVED_MODEL).is_file():
            raise InputError(
                f"{self._path}: is one version of a model. Give the folder of its versions: "
                f"{self._path.resolve().parent}"
            )
        find_saved_model(self._path)
        number = versions(self._path)[-1]
        self._replace(number, _look(self._path / str(number)))
        # A daemon, because nobody should wait for a version that still loads at the end.
        threading.Thread(target=self._watch, name="versions", daemon=True).start()

    def stop(self) -> None:
        """Ends looking, and forgets the version."""
        self._stopped.set()
        self.current = None

    def check(self) -> None:
        """Looks at the folder once; a change counts when it has been seen twice."""
        if self._old and self._old() is None:
            self._old = None
            gc.collect()  # a graph in Python refers to itself, and its memory is large
        try:
            number = max(versions(self._path), default=None)
            look = _look(self._path / str(number))
        except OSError:  # it is being replaced
            return
        has_settled, self._seen = look == self._seen, look
        if number is None or not has_settled:
            return
        tried, retry_at = self._tried
        if look != self.current.look and (look != tried or time.monotonic() >= retry_at):
            try:
                self._replace(number, look)
            except InputError as error:
                _logger.error("%s Version %s stays.", error, self.current.number)

    def _watch(self) -> None:
        while not self._stopped.wait(self._poll_seconds):
            try:
                self.check()
            except Exception:
                if not self._stopped.is_set():
                    _logger.exception("looking for versions in %s failed", self._path)

    def _replace(self, number: int, look: object) -> None:
        """Verifies, loads and warms up a version, and lets it serve."""
        self._tried = look, time.monotonic() + _RETRY_SECONDS
        folder = self._path / str(number)
        try:
            if manifest.manifest_path(folder).is_file():
                manifest.verify(folder)
            elif not self._unverified:
                raise InputError(
                    f"{folder}: has no manifest, so its files cannot be checked. Copy or export it "
                    f"again, or serve it as it is with --unverified."
                )
            model = self._load(folder)
            for signature, inputs in model.warm_up_requests():
                model.run(signature, inputs)
        except InputError:
            raise
        # TensorFlow has as many classes of error as a SavedModel has files.
        except Exception as error:
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            raise InputError(
                f"{folder}: cannot be served ({reason[:200]}). "
                f"Copy it again, or write it again with tf-transformer export."
            ) from error
        if self._stopped.is_set():
            return
        old, self.current = self.current, Version(number, model, look)
        if old:
            _logger.info("version %s serves in place of %s", number, old.number)
            self._old = weakref.ref(old.model)


def _look(folder: pathlib.Path) -> object:
    """Returns what tells a version from another in the same place: files, sizes and times."""
    stats = [(path, path.lstat()) for path in sorted(folder.rglob("*"))]
    found = [(path, s.st_ino, s.st_size, s.st_mtime_ns, s.st_mode) for path, s in stats]
    return folder, tuple(found)
