"""Checkpoints: atomic writes, verification, and removal of old ones that are not the best."""

import contextlib
import dataclasses
import errno
import hashlib
import json
import math
import os
import pathlib
import shutil
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras

from tf_transformer.errors import InputError
from tf_transformer.evaluation import BLEU, Metric
from tf_transformer.files import atomic_file, atomic_folder, sha256
from tf_transformer.training.distribution import seeds_of

WEIGHTS = "model.weights.h5"
STATE = "state.json"


class CheckpointError(InputError):
    """A checkpoint that cannot be written, read or used."""


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A checkpoint folder with the weights, and with all attributes except `path` in `state.json`.

    Attributes:
        metrics: The validation metrics; empty if the checkpoint was not validated.
        seeds: States of the model's random generators (dropout), which Keras does not save.
        run_metadata: Settings that must be the same in a run that resumes from the checkpoint.
        signatures: How each metric was computed, such as sacreBLEU's signature, by metric name.
        seconds: Duration of the run so far.
    """

    path: pathlib.Path
    step: int
    metrics: dict[str, float]
    seeds: list[list[int]]
    weights_sha256: str
    batches_seen: int = 0
    run_metadata: dict[str, Any] = dataclasses.field(default_factory=dict)
    signatures: dict[str, str] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0

    def is_intact(self) -> bool:
        """Return whether the weights file still has the SHA-256 that was recorded."""
        try:
            return self.weights_sha256 == sha256(self.path / WEIGHTS)
        except OSError:
            return False

    def require(self, run_metadata: Mapping[str, Any]) -> None:
        """Raise a `CheckpointError` that lists all differences from `run_metadata`, if any.

        Keys that the checkpoint lacks are not compared.
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
        """Load the weights and random seeds, and the optimizer state if the model is compiled."""
        model.load_weights(self.path / WEIGHTS)
        for variable, value in zip(seeds_of(model), self.seeds, strict=True):
            variable.assign(value)

    def write_state(self) -> None:
        """Write `state.json` atomically."""
        state = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)[1:]}
        with atomic_file(self.path / STATE) as temporary:
            # Metrics may be NumPy numbers, which `json` cannot write.
            temporary.write_text(json.dumps(state, indent=2, default=float) + "\n", "utf-8")


class Checkpoints:
    """The checkpoints of a run: the newest ones and the best one.

    The best checkpoint is chosen by `metric`, and a newer one wins a tie. The newest `keep`
    checkpoints are kept, too.
    """

    def __init__(self, directory: pathlib.Path, metric: Metric = BLEU, keep: int = 5) -> None:
        self.directory, self.metric, self.keep = directory, metric, keep

    def all(self) -> list[Checkpoint]:
        """Return the checkpoints whose state can be read, oldest first."""
        return [checkpoint for folder in self._folders() if (checkpoint := _read(folder))]

    def latest(self) -> Checkpoint | None:
        """Return the newest checkpoint, or None."""
        return next(reversed(self.all()), None)

    def rank(self, checkpoint: Checkpoint) -> tuple[float, int]:
        """Return a sort key, highest for the best checkpoint and lowest without the metric."""
        value = checkpoint.metrics.get(self.metric.name)
        return -math.inf if value is None else self.metric.rank(value), checkpoint.step

    def intact(self, warn: Callable[[str], None], best_first: bool = False) -> Iterator[Checkpoint]:
        """Yield the checkpoints with intact weights, newest or best first.

        `warn` is called with a line for each checkpoint that is skipped.

        Raises:
            CheckpointError: There are checkpoints, but all of them are damaged.
        """
        folders, found, num_intact = self._folders(), self.all(), 0
        for folder in sorted(set(folders).difference(checkpoint.path for checkpoint in found)):
            warn(f"{folder}: is damaged, and skipped.")
        for checkpoint in reversed(sorted(found, key=self.rank) if best_first else found):
            if checkpoint.is_intact():
                num_intact += 1
                yield checkpoint
            else:
                warn(f"{checkpoint.path}: is damaged, and skipped.")
        if folders and not num_intact:
            raise CheckpointError(
                f"{self.directory}: none of its {len(folders)} checkpoints can be read. Restore "
                f"one from a copy, or start a new run with another --run-dir."
            )

    def set_aside_after(self, checkpoint: Checkpoint) -> None:
        """Rename the newer folders, which are damaged, so that they no longer count as newest."""
        folders = self._folders()
        for folder in folders[folders.index(checkpoint.path) + 1 :]:
            aside = folder.with_name(f"damaged-{folder.name}")
            shutil.rmtree(aside, ignore_errors=True)
            folder.rename(aside)

    def write(
        self, model: keras.Model, step: int, metrics: Mapping[str, float], **state: Any
    ) -> None:
        """Write a checkpoint atomically, then remove checkpoints that are no longer kept.

        The checkpoint includes the random seeds and, if the model has one, the optimizer. `state`
        gives the other attributes of the `Checkpoint`. If writing raises a `CheckpointError`, the
        earlier checkpoints are unchanged.
        """
        target = self.directory / f"step-{step:08d}"
        seeds = [variable.numpy().tolist() for variable in seeds_of(model)]
        with self._disk_errors(step), atomic_folder(target, overwrite=True) as folder:
            _require_space(folder, model)
            model.save_weights(folder / WEIGHTS)
            digest = sha256(folder / WEIGHTS)
            Checkpoint(folder, step, dict(metrics), seeds, digest, **state).write_state()
        self._prune()

    def add_metrics(self, metrics: Mapping[str, float], **state: Any) -> None:
        """Add validation metrics to the newest checkpoint and update its `state`; see `write`."""
        latest = self.latest()
        with self._disk_errors(latest.step):
            dataclasses.replace(latest, metrics=dict(metrics), **state).write_state()
        self._prune()

    @contextlib.contextmanager
    def _disk_errors(self, step: int) -> Iterator[None]:
        try:
            yield
        except (OSError, RuntimeError) as error:  # HDF5 raises both
            latest = self.latest()
            reason = getattr(error, "strerror", None) or str(error).partition("\n")[0]
            last = f"The last good one is of step {latest.step}" if latest else "There is none yet"
            raise CheckpointError(
                f"{self.directory}: the checkpoint of step {step} could not be written: {reason}. "
                f"{last}. Free some space and continue with --resume."
            ) from error

    def _folders(self) -> list[pathlib.Path]:
        """Return the folders of checkpoints, readable or not, oldest first."""
        steps = {path: path.name.removeprefix("step-") for path in self.directory.glob("step-*")}
        return sorted((p for p in steps if steps[p].isdecimal()), key=lambda p: int(steps[p]))

    def _prune(self) -> None:
        found = self.all()
        kept = [*found[-self.keep :], max(found, key=self.rank)]
        for checkpoint in found:
            if checkpoint not in kept:
                shutil.rmtree(checkpoint.path)


def tokenizer_metadata(source_tokenizer: Any, target_tokenizer: Any) -> dict[str, str]:
    """Return the part of the run metadata that identifies the tokenizers."""
    return {
        f"{side} tokenizer": f"SHA-256 {hashlib.sha256(tokenizer.model).hexdigest()[:16]}"
        for side, tokenizer in (("source", source_tokenizer), ("target", target_tokenizer))
    }


def _read(folder: pathlib.Path) -> Checkpoint | None:
    """Return the checkpoint in a folder; None if its state cannot be read."""
    try:
        return Checkpoint(folder, **json.loads((folder / STATE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def _require_space(folder: pathlib.Path, model: keras.Model) -> None:
    """Raise an `OSError` if the disk is too full, because HDF5 would then crash the process."""
    optimizer = getattr(model, "optimizer", None)
    variables = [*model.variables, *(optimizer.variables if optimizer else [])]
    # Doubled for the overhead of HDF5 and for wrapped optimizers, which Keras saves twice.
    num_bytes = 2 * sum(4096 + 4 * math.prod(variable.shape) for variable in variables)
    if shutil.disk_usage(folder).free < num_bytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
