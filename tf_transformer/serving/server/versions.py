"""The versions of a model: the highest is loaded, and a new one takes its place while it serves."""

import gc
import logging
import os
import pathlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from tf_transformer.errors import InputError
from tf_transformer.export import manifest
from tf_transformer.inference.versions import SAVED_MODEL, find_saved_model, versions
from tf_transformer.serving import warm_up
from tf_transformer.serving.servable import Servable, Signature

LOADING, AVAILABLE, UNLOADING, END = "LOADING", "AVAILABLE", "UNLOADING", "END"
_POLL_SECONDS = 1.0  # as TensorFlow Serving

_logger = logging.getLogger(__name__)


class VersionError(InputError):
    """A version that cannot be served."""


class Version:
    """A version that is loaded, and how many requests use it.

    Attributes:
        number: Its number.
        servable: The model.
    """

    def __init__(self, number: int, servable: Servable) -> None:
        self.number = number
        self.servable = servable
        self.users = 0


class Versions:
    """Keeps the highest version of a folder loaded, as TensorFlow Serving does.

    Every second it looks at the folder. A version that is new, replaced or now the highest is
    verified, loaded and warmed up beside the current one, takes its place at once, and the other is
    closed when its last request has ended. One that cannot be served is logged, and the current one
    stays. So for a moment two are in memory.

    Args:
        path: Folder of the versions, such as `saved_models/de_en`; its name is the model's.
        unverified: Whether a version without a manifest may be served. Files that differ from a
            manifest are never served.
        poll_seconds: How often to look.
        load: Makes a `Servable` of a folder.

    Attributes:
        name: The model's name.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        unverified: bool = False,
        poll_seconds: float = _POLL_SECONDS,
        load: Callable[[pathlib.Path], Servable] = lambda folder: Servable(folder, threads=1),
    ) -> None:
        self._path = pathlib.Path(path)
        self.name = self._path.resolve().name
        self._unverified = unverified
        self._poll_seconds = poll_seconds
        self._load = load
        self._lock = threading.Lock()
        self._current: Version | None = None
        self._retired: list[Version] = []
        self._states: dict[int, tuple[str, str]] = {}
        # What the version that serves looked like, and the highest when it was tried and last seen.
        self._serves: object = None
        self._tried: object = None
        self._seen: object = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="versions", daemon=True)

    def start(self) -> None:
        """Loads the highest version, and begins to look for others.

        Raises:
            InputError: There is none, or it cannot be served.
        """
        if (self._path / SAVED_MODEL).is_file():
            raise VersionError(
                f"{self._path}: is one version of a model. Give the folder of its versions: "
                f"{self._path.resolve().parent}"
            )
        find_saved_model(self._path)
        number = versions(self._path)[-1]
        self._replace(number, _looks(self._path / str(number)))
        self._thread.start()

    def stop(self) -> None:
        """Ends looking, and closes what is loaded and unused."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()
        with self._lock:
            if self._current:
                self._retired.append(self._current)
                self._current = None
        self._close_unused()

    @property
    def current(self) -> Version | None:
        """The version that serves; None before the first and after the last."""
        return self._current

    def acquire(self, number: int | None = None) -> Version | None:
        """The version that serves, which stays loaded until it is released.

        Args:
            number: Which one is wanted; None is whichever serves.

        Returns:
            None if that one does not serve.
        """
        with self._lock:
            version = self._current
            if version is None or number not in (None, version.number):
                return None
            version.users += 1
            return version

    def release(self, version: Version) -> None:
        """Says that a request has ended with a version, once for each `acquire`."""
        with self._lock:
            version.users -= 1

    def states(self) -> dict[int, tuple[str, str]]:
        """For each version ever tried, highest first, its state and what is wrong with it."""
        with self._lock:
            return dict(sorted(self._states.items(), reverse=True))

    def check(self) -> None:
        """Looks at the folder once; a change counts when it has been seen twice."""
        self._close_unused()
        try:
            number = max(versions(self._path), default=None)
            looks = _looks(self._path / str(number))
        except OSError:  # it is being replaced
            return
        settled, self._seen = looks == self._seen, looks
        if number is None or not settled or looks in (self._tried, self._serves):
            return
        try:
            self._replace(number, looks)
        except InputError as error:
            current = self._current.number if self._current else "none"
            _logger.error("%s Version %s stays.", error, current)

    def _watch(self) -> None:
        while not self._stopped.wait(self._poll_seconds):
            try:
                self.check()
            except Exception:
                _logger.exception("looking for versions in %s failed", self._path)

    def _replace(self, number: int, looks: object) -> None:
        """Loads a version and lets it serve."""
        self._tried = looks
        self._set_state(number, LOADING)
        try:
            servable = self._open(self._path / str(number))
        except InputError as error:
            old = self._current
            serves = old is not None and old.number == number
            self._set_state(number, AVAILABLE if serves else END, str(error))
            raise
        with self._lock:
            old, self._current = self._current, Version(number, servable)
            if old:
                self._states[old.number] = (UNLOADING, "")
                self._retired.append(old)
            self._states[number] = (AVAILABLE, "")
        self._serves = looks
        if old:
            _logger.info("version %s serves in place of %s", number, old.number)

    def _open(self, folder: pathlib.Path) -> Servable:
        self._verify(folder)
        servable = None
        try:
            servable = self._load(folder)
            for signature, inputs in _warm_ups(folder, servable.signatures):
                servable.run(signature, inputs)
        # TensorFlow has as many classes of error as a SavedModel has files.
        except Exception as error:
            if servable:
                servable.close()
            reason = str(error).strip().splitlines() or [type(error).__name__]
            raise VersionError(
                f"{folder}: cannot be served ({reason[0][:200]}). "
                f"Copy it again, or write it again with tf-transformer export."
            ) from error
        return servable

    def _verify(self, folder: pathlib.Path) -> None:
        try:
            manifest.read_manifest(folder)
        except manifest.ManifestError as error:
            if self._unverified:
                return
            raise VersionError(f"{error} Or serve it as it is with --unverified.") from None
        except OSError as error:
            raise VersionError(f"{folder}: cannot be read ({error.strerror or error}).") from error
        try:
            manifest.verify(folder)
        except OSError as error:
            raise VersionError(f"{folder}: cannot be read ({error.strerror or error}).") from error

    def _close_unused(self) -> None:
        with self._lock:
            unused = [version for version in self._retired if not version.users]
            self._retired = [version for version in self._retired if version.users]
        while unused:
            version = unused.pop()
            version.servable.close()
            with self._lock:
                if self._states[version.number][0] == UNLOADING:  # it was not loaded again
                    self._states[version.number] = (END, "")
            del version
            gc.collect()  # a graph in Python refers to itself, and its memory is large

    def _set_state(self, number: int, state: str, error: str = "") -> None:
        with self._lock:
            self._states[number] = (state, error)


def _looks(folder: pathlib.Path) -> object:
    """What tells a version from another in the same place: its files, their sizes and times."""
    found = []
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        found.append((path, status.st_ino, status.st_size, status.st_mtime_ns, status.st_mode))
    return folder, tuple(found)


def _warm_ups(
    folder: pathlib.Path, signatures: dict[str, Signature]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The recorded requests of a version, else one for each signature."""
    path = folder / warm_up.FILE
    if not path.exists():
        for name, signature in signatures.items():
            yield name, {key: [b"1 2 3"] for key in signature.inputs}
        return
    records = warm_up.read_records(path)
    if len(records) > warm_up.MOST_RECORDS:
        raise ValueError(f"{warm_up.FILE} has more than {warm_up.MOST_RECORDS} records")
    for record in records:
        yield warm_up.request_of(record, signatures)
