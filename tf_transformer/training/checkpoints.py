"""Checkpoints: each appears whole or not at all, and the newest good one is found."""

import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import re
import shutil

from tf_transformer.config import InputError

WEIGHTS = "model.weights.h5"
STATE = "state.json"


class CheckpointError(InputError):
    """A checkpoint that cannot be written, read or used."""


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on disk.

    Attributes:
        path: `pathlib.Path` of its folder.
        step: int, updates made to the weights.
        position: int, batches of training data used up so far.
        scores: dict of str to float, what validation gave; empty between validations.
        seeds: list of lists of int, the states of the model's random numbers (dropout).
        best_step: int or None, the step of the best checkpoint when this one was written.
        made_with: dict of str to plain values, what a run that goes on must share.
        digest: str or None, SHA-256 of the weights' file.
    """

    path: pathlib.Path
    step: int
    position: int
    scores: dict
    seeds: list
    best_step: int | None
    made_with: dict
    digest: str | None

    def is_intact(self):
        """Whether the weights' file holds the bytes that were written."""
        return self.digest in (None, _digest(self.path / WEIGHTS))

    def require(self, made_with):
        """Refuses to serve what is not like the run that wrote it.

        Args:
            made_with: dict of str to plain values; what this checkpoint does not know is not
                compared.

        Raises:
            CheckpointError: something is different; all of it is named.
        """
        differences = [
            f"{name} was {self.made_with[name]} and is {value}"
            for name, value in made_with.items()
            if self.made_with.get(name, value) != value
        ]
        if differences:
            raise CheckpointError(
                f"{self.path}: is the checkpoint of something else: {'; '.join(differences)}. "
                f"Put back what was, or start a new run with another --run-dir."
            )

    def restore(self, model):
        """Loads weights and random seeds; of a compiled model also the optimizer.

        Raises:
            ValueError: the model has other weights than the checkpoint.
        """
        if getattr(model, "optimizer", None) is not None and not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        model.load_weights(self.path / WEIGHTS)
        for variable, value in zip(seeds_of(model), self.seeds, strict=True):
            variable.assign(value)


class Checkpoints:
    """The checkpoints of a run: the newest few, and always the best.

    Args:
        directory: path; made when the first checkpoint is written.
        keep: int, how many of the newest to keep.
    """

    def __init__(self, directory, keep=5):
        self.directory = pathlib.Path(directory)
        self.keep = keep

    def all(self):
        """Every whole checkpoint, oldest first; of a step written again, the last."""
        found = filter(None, map(_read, self._folders()))
        return list({checkpoint.step: checkpoint for checkpoint in found}.values())

    def latest(self):
        """The newest whole `Checkpoint`, or None."""
        return next(reversed(self.all()), None)

    def best(self):
        """The best `Checkpoint` by validation, the newest where none was validated, or None."""
        whole = self.all()
        if not whole:
            return None
        return next((c for c in whole if c.step == whole[-1].best_step), whole[-1])

    def readable(self, first, warn):
        """A checkpoint whose weights were read through and are those that were written.

        Args:
            first: `Checkpoint` to take if it is good, otherwise the newest that is; or None.
            warn: `(str) -> None`, is told what is passed over.

        Returns:
            `Checkpoint`; None where none was ever written.

        Raises:
            CheckpointError: there are checkpoints, and none of them is good.
        """
        folders = self._folders()
        for folder in [*([first.path] if first else []), *reversed(folders)]:
            checkpoint = _read(folder)
            if checkpoint is not None and checkpoint.is_intact():
                return checkpoint
            warn(f"{folder}: is damaged, and passed over.")
        if not folders:
            return None
        raise CheckpointError(
            f"{self.directory}: none of its {len(folders)} checkpoints can be read. Put back a "
            f"copy of one, or start a new run with another --run-dir."
        )

    def newest_intact(self, count, warn):
        """The newest checkpoints whose weights were read through and are those that were written.

        Args:
            count: int, how many at most.
            warn: `(str) -> None`, is told what is passed over.

        Returns:
            list of `Checkpoint`, oldest first, each of another step.
        """
        found = {}
        for folder in reversed(self._folders()):
            if len(found) == count:
                break
            checkpoint = _read(folder)
            if checkpoint is None or not checkpoint.is_intact():
                warn(f"{folder}: is damaged, and passed over.")
            else:
                found.setdefault(checkpoint.step, checkpoint)
        return [found[step] for step in sorted(found)]

    def write(self, model, step, scores, *, is_best=False, position=None, made_with=None):
        """Writes a checkpoint beside the others, renames it into place, and removes old ones.

        Nothing is removed before the new one stands on the disk, not even an older one of the same
        step.

        Args:
            model: `keras.Model`; its seeds and, if it has one, its optimizer are saved with the
                weights.
            step: int, updates made so far.
            scores: dict of str to float.
            is_best: bool, whether this becomes the best one.
            position: int, batches used up so far; None where each step took one.
            made_with: dict of str to plain values, see `Checkpoint.require`.

        Raises:
            CheckpointError: the disk refuses it; what was there before still is.
        """
        latest = self.latest()
        temporary = self.directory / f".writing-step-{step:08d}"
        try:
            for leftover in self.directory.glob(".writing-*"):  # of a process that was killed
                shutil.rmtree(leftover)
            temporary.mkdir(parents=True)
            _require_room(temporary, model)
            model.save_weights(temporary / WEIGHTS)
            state = {
                "step": step,
                "position": step if position is None else position,
                "scores": {name: float(value) for name, value in scores.items()},
                # Keras leaves the seeds out of its weights files.
                "seeds": [variable.numpy().tolist() for variable in seeds_of(model)],
                "best_step": step if is_best else latest and latest.best_step,
                "made_with": made_with or {},
                "weights_bytes": (temporary / WEIGHTS).stat().st_size,
                "weights_sha256": _digest(temporary / WEIGHTS),
            }
            (temporary / STATE).write_text(json.dumps(state, indent=2) + "\n", encoding="utf-8")
            sync(temporary / WEIGHTS, temporary / STATE, temporary)
            temporary.rename(self._free_folder(step))
            sync(self.directory)
            self._prune()
        except (OSError, RuntimeError) as error:  # HDF5 knows both
            shutil.rmtree(temporary, ignore_errors=True)
            reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
            last = f"The last good one is of step {latest.step}" if latest else "There is none yet"
            raise CheckpointError(
                f"{self.directory}: the checkpoint of step {step} could not be written: {reason}. "
                f"{last}. Make room and go on with --resume."
            ) from error

    def _folders(self):
        """The folders of checkpoints, whole or not, oldest first."""
        numbered = ((_number(path), path) for path in self.directory.glob("step-*"))
        return [path for number, path in sorted(n for n in numbered if n[0])]

    def _free_folder(self, step):
        """`step-00000012`; once that is there `step-00000012.1`, and so on."""
        revisions = [n[1] for n in map(_number, self._folders()) if n[0] == step]
        suffix = f".{max(revisions) + 1}" if revisions else ""
        return self.directory / f"step-{step:08d}{suffix}"

    def _prune(self):
        whole = self.all()
        kept = {checkpoint.path for checkpoint in [*whole[-self.keep :], self.best()]}
        for folder in self._folders():
            if folder not in kept and _read(folder) is not None:
                shutil.rmtree(folder)


def _read(folder):
    """The checkpoint in a folder; None if it is torn."""
    try:
        state = json.loads((folder / STATE).read_text(encoding="utf-8"))
        if (folder / WEIGHTS).stat().st_size != state["weights_bytes"]:
            return None
        return Checkpoint(
            folder,
            state["step"],
            state.get("position", state["step"]),  # the first version knew less
            state["scores"],
            state["seeds"],
            state.get("best_step"),
            state.get("made_with", {}),
            state.get("weights_sha256"),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _number(folder):
    """Step and revision in the name of a checkpoint's folder, or None for another name."""
    match = re.fullmatch(r"step-(\d+)(?:\.(\d+))?", folder.name)
    return match and (int(match[1]), int(match[2] or 0))


def _require_room(folder, model):
    """Asks the disk for the room of a checkpoint, since HDF5 crashes the process on a full one.

    Raises:
        OSError: there is not as much.
    """
    optimizer = getattr(model, "optimizer", None)
    variables = [*model.variables, *(optimizer.variables if optimizer else [])]
    num_bytes = sum(4096 + variable.numpy().nbytes for variable in variables)
    with (folder / "room").open("wb") as file:
        # Twice, for HDF5's own needs, and for wrapped optimizers that Keras saves twice.
        os.posix_fallocate(file.fileno(), 0, 2 * num_bytes)
    (folder / "room").unlink()


def _digest(path):
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def seeds_of(model):
    """The variables that hold the states of a model's random numbers."""
    return [v for v in model.variables if v.path.endswith("seed_generator_state")]


@contextlib.contextmanager
def replacing(path):
    """Gives the path beside `path` to write a file to, which takes its place when it is whole."""
    temporary = path.with_name(f".writing-{path.name}")
    yield temporary
    os.replace(temporary, path)


def sync(*paths):
    """Hands files and folders to the disk, so that a power cut finds them whole."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
