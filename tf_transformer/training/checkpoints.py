"""Checkpoints: written atomically, checked when read, the best and the newest kept."""

import contextlib
import ctypes
import dataclasses
import errno
import json
import os
import pathlib
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras

from tf_transformer.errors import InputError
from tf_transformer.files import atomic_file, atomic_folder, sha256

WEIGHTS = "model.weights.h5"
STATE = "state.json"


class CheckpointError(InputError):
    """A checkpoint that cannot be written, read or used."""


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on disk.

    Attributes:
        path: Its folder.
        step: Updates made to the weights.
        batches_seen: Batches of training data consumed.
        metrics: The metrics of its validation; empty between validations.
        seeds: The states of the model's random numbers (dropout).
        best_step: The step of the best checkpoint when this one was written, or None.
        run_metadata: Settings that a run resumed from it must share.
        digest: SHA-256 of the file of weights.
        signatures: How metrics that can be computed in several ways were, by name.
        seconds: How long the run had taken.
    """

    path: pathlib.Path
    step: int
    batches_seen: int
    metrics: dict[str, float]
    seeds: list[list[int]]
    best_step: int | None
    run_metadata: dict[str, Any]
    digest: str
    signatures: dict[str, str]
    seconds: float

    def is_intact(self) -> bool:
        """Whether the file of weights holds the bytes that were written."""
        try:
            return self.digest == sha256(self.path / WEIGHTS)
        except OSError:  # it cannot be read
            return False

    def require(self, run_metadata: Mapping[str, Any]) -> None:
        """Raises a `CheckpointError` that names all differences from the run that wrote it.

        Args:
            run_metadata: What must be the same; keys that the checkpoint lacks are not compared.
        """
        differences = [
            f"{name} was {self.run_metadata[name]} and is {value}"
            for name, value in run_metadata.items()
            if self.run_metadata.get(name, value) != value
        ]
        if differences:
            raise CheckpointError(
                f"{self.path}: belongs to another run: {'; '.join(differences)}. "
                f"Restore the earlier values, or start a new run with another --run-dir."
            )

    def restore(self, model: keras.Model) -> None:
        """Loads weights and random seeds; of a compiled model also the optimizer.

        Raises:
            ValueError: The model has other weights than the checkpoint.
        """
        if getattr(model, "optimizer", None) is not None and not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        model.load_weights(self.path / WEIGHTS)
        for variable, value in zip(seeds_of(model), self.seeds, strict=True):
            variable.assign(value)


class Checkpoints:
    """The checkpoints of a run: the newest few, and always the best.

    Args:
        directory: Their folder; made when the first checkpoint is written.
        keep: How many of the newest to keep, and of the newest that were validated.
    """

    def __init__(self, directory: str | os.PathLike[str], keep: int = 5) -> None:
        self.directory = pathlib.Path(directory)
        self.keep = keep

    def all(self) -> list[Checkpoint]:
        """Every complete checkpoint, oldest first; of a step written twice, the later."""
        found = filter(None, map(_read, self._folders()))
        return list({checkpoint.step: checkpoint for checkpoint in found}.values())

    def latest(self) -> Checkpoint | None:
        """The newest complete checkpoint."""
        return next(reversed(self.all()), None)

    def best(self) -> Checkpoint | None:
        """The best checkpoint by validation; the newest where none was validated."""
        complete = self.all()
        if not complete:
            return None
        return next((c for c in complete if c.step == complete[-1].best_step), complete[-1])

    def intact(self, warn: Callable[[str], None]) -> Iterator[Checkpoint]:
        """The checkpoints whose weights are the bytes that were written, newest first.

        Args:
            warn: Called with a line for each checkpoint that is skipped.
        """
        steps = set()
        for folder in reversed(self._folders()):
            checkpoint = _read(folder)
            if checkpoint is None or not checkpoint.is_intact():
                warn(f"{folder}: is damaged, and skipped.")
            elif checkpoint.step not in steps:
                steps.add(checkpoint.step)
                yield checkpoint

    def latest_intact(self, warn: Callable[[str], None]) -> Checkpoint | None:
        """The newest intact checkpoint, or None where none was ever written.

        Raises:
            CheckpointError: There are checkpoints, and none of them is intact.
        """
        checkpoint = next(self.intact(warn), None)
        folders = self._folders()
        if checkpoint is None and folders:
            raise CheckpointError(
                f"{self.directory}: none of its {len(folders)} checkpoints can be read. Restore "
                f"one from a copy, or start a new run with another --run-dir."
            )
        return checkpoint

    def best_intact(self, warn: Callable[[str], None]) -> Checkpoint | None:
        """The best checkpoint if it is intact, otherwise as `latest_intact`."""
        best, latest = self.best(), self.latest()
        if best is not None and best.is_intact():
            if latest.best_step not in (None, best.step):
                warn(f"{self.directory}: the best checkpoint, step {latest.best_step}, is damaged.")
            return best
        if best is not None and best.path != latest.path:
            warn(f"{best.path}: is damaged, and skipped.")
        return self.latest_intact(warn)

    def named(self, name: str) -> Checkpoint | None:
        """The complete checkpoint in the folder of this name."""
        return _read(self.directory / name)

    def set_aside_after(self, checkpoint: Checkpoint) -> None:
        """Renames the newer folders, which are damaged, so that they no longer count as newest."""
        folders = self._folders()
        for folder in folders[folders.index(checkpoint.path) + 1 :]:
            folder.rename(folder.with_name(f"damaged-{folder.name}"))

    def write(
        self,
        model: keras.Model,
        step: int,
        metrics: Mapping[str, float],
        *,
        is_best: bool = False,
        batches_seen: int | None = None,
        run_metadata: Mapping[str, Any] | None = None,
        signatures: Mapping[str, str] | None = None,
        seconds: float = 0.0,
    ) -> None:
        """Writes a checkpoint atomically, then removes those that are no longer kept.

        Args:
            model: Its random seeds and, if it has one, its optimizer are saved with the weights.
            step: Updates made so far.
            metrics: The metrics of its validation.
            is_best: Whether this becomes the best one.
            batches_seen: Batches consumed so far; None where each update took one.
            run_metadata: See `Checkpoint.require`.
            signatures: How metrics were computed, such as sacreBLEU's signature, by name.
            seconds: How long the run has taken.

        Raises:
            CheckpointError: It cannot be written; earlier checkpoints are kept.
        """
        latest = self.latest()
        with self._disk_errors(step), atomic_folder(self._new_folder(step)) as folder:
            _require_space(folder, model)
            model.save_weights(folder / WEIGHTS)
            state = {
                "step": step,
                "batches_seen": step if batches_seen is None else batches_seen,
                **_with_signatures(metrics, signatures),
                # Keras does not write the seeds into its file of weights.
                "seeds": [variable.numpy().tolist() for variable in seeds_of(model)],
                "best_step": step if is_best else latest and latest.best_step,
                "run_metadata": dict(run_metadata or {}),
                "seconds": seconds,
                "weights_bytes": (folder / WEIGHTS).stat().st_size,
                "weights_sha256": sha256(folder / WEIGHTS),
            }
            (folder / STATE).write_text(json.dumps(state, indent=2) + "\n", encoding="utf-8")
        self._prune()

    def add_metrics(
        self,
        metrics: Mapping[str, float],
        *,
        is_best: bool,
        signatures: Mapping[str, str] | None = None,
        seconds: float = 0.0,
    ) -> None:
        """Adds the metrics of its validation to the newest checkpoint; the arguments of `write`."""
        latest = self.latest()
        state = json.loads((latest.path / STATE).read_text(encoding="utf-8"))
        state |= {**_with_signatures(metrics, signatures), "seconds": seconds}
        if is_best:
            state["best_step"] = latest.step
        with self._disk_errors(latest.step), atomic_file(latest.path / STATE) as temporary:
            temporary.write_text(json.dumps(state, indent=2) + "\n", encoding="utf-8")
        self._prune()

    @contextlib.contextmanager
    def _disk_errors(self, step: int) -> Iterator[None]:
        try:
            yield
        except (OSError, RuntimeError) as error:  # HDF5 raises both
            latest = self.latest()
            reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
            last = f"The last good one is of step {latest.step}" if latest else "There is none yet"
            raise CheckpointError(
                f"{self.directory}: the checkpoint of step {step} could not be written: {reason}. "
                f"{last}. Free some space and continue with --resume."
            ) from error

    def _folders(self) -> list[pathlib.Path]:
        """The folders of checkpoints, complete or not, oldest first."""
        numbered = ((_number(path), path) for path in self.directory.glob("step-*"))
        return [path for number, path in sorted(n for n in numbered if n[0])]

    def _new_folder(self, step: int) -> pathlib.Path:
        """`step-00000012`; where that exists `step-00000012.1`, and so on."""
        revisions = [n[1] for n in map(_number, self._folders()) if n[0] == step]
        suffix = f".{max(revisions) + 1}" if revisions else ""
        return self.directory / f"step-{step:08d}{suffix}"

    def _prune(self) -> None:
        complete = self.all()
        # Those between validations must not crowd out those that are averaged at the end.
        validated = [checkpoint for checkpoint in complete if checkpoint.metrics]
        newest = [*complete[-self.keep :], *validated[-self.keep :]]
        kept = {checkpoint.path for checkpoint in [*newest, self.best()]}
        for folder in self._folders():
            if folder not in kept and _read(folder) is not None:
                shutil.rmtree(folder)


def _read(folder: pathlib.Path) -> Checkpoint | None:
    """The checkpoint in a folder; None if it is incomplete."""
    try:
        state = json.loads((folder / STATE).read_text(encoding="utf-8"))
        if (folder / WEIGHTS).stat().st_size != state["weights_bytes"]:
            return None
        return Checkpoint(
            folder,
            state["step"],
            state["batches_seen"],
            state["metrics"],
            state["seeds"],
            state["best_step"],
            state["run_metadata"],
            state["weights_sha256"],
            state.get("signatures", {}),  # checkpoints of earlier versions have neither
            state.get("seconds", 0.0),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _number(folder: pathlib.Path) -> tuple[int, int] | None:
    """Step and revision in the name of a checkpoint's folder, or None for another name."""
    match = re.fullmatch(r"step-(\d+)(?:\.(\d+))?", folder.name)
    return match and (int(match[1]), int(match[2] or 0))


def _with_signatures(
    metrics: Mapping[str, float], signatures: Mapping[str, str] | None
) -> dict[str, Any]:
    signed = {name: text for name, text in (signatures or {}).items() if name in metrics}
    return {"metrics": {n: float(v) for n, v in metrics.items()}, "signatures": signed}


def _require_space(folder: pathlib.Path, model: keras.Model) -> None:
    """Reserves the space of a checkpoint, since HDF5 crashes the process on a full disk.

    Raises:
        OSError: There is less.
    """
    optimizer = getattr(model, "optimizer", None)
    variables = [*model.variables, *(optimizer.variables if optimizer else [])]
    num_bytes = sum(4096 + variable.numpy().nbytes for variable in variables)
    # Twice, for HDF5's own needs, and for wrapped optimizers that Keras saves twice.
    num_bytes *= 2
    with (folder / "space").open("wb") as file:
        # `posix_fallocate` would write every block where the file system cannot reserve any.
        fallocate = getattr(ctypes.CDLL(None, use_errno=True), "fallocate", None)
        size = ctypes.c_int64(num_bytes)
        failed = fallocate and fallocate(file.fileno(), 0, ctypes.c_int64(0), size)
        number = ctypes.get_errno() if failed else 0
    (folder / "space").unlink()
    if failed != 0 and shutil.disk_usage(folder).free < num_bytes:
        number = errno.ENOSPC
    if number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        raise OSError(number, os.strerror(number))


def seeds_of(model: keras.Model) -> list[keras.Variable]:
    """The variables that hold the states of a model's random numbers."""
    return [v for v in model.variables if v.path.endswith("seed_generator_state")]
