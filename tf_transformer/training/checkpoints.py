"""Checkpoints: each appears whole or not at all, and the newest good one is found."""

import dataclasses
import json
import os
import pathlib
import shutil

WEIGHTS = "model.weights.h5"
STATE = "state.json"
BEST = "best.json"


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on disk.

    Attributes:
        path: `pathlib.Path` of its folder.
        step: int, updates made to the weights.
        scores: dict of str to float, what validation gave.
        seeds: list of lists of int, the states of the model's random numbers (dropout).
    """

    path: pathlib.Path
    step: int
    scores: dict
    seeds: list

    def restore(self, model):
        """Loads weights and random seeds; of a compiled model also the optimizer.

        Raises:
            ValueError: the model has other weights than the checkpoint.
        """
        if getattr(model, "optimizer", None) is not None and not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        model.load_weights(self.path / WEIGHTS)
        for variable, value in zip(_seeds(model), self.seeds, strict=True):
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
        """Every whole checkpoint, oldest first."""
        found = []
        for path in sorted(self.directory.glob("step-*")):
            try:
                state = json.loads((path / STATE).read_text(encoding="utf-8"))
                if (path / WEIGHTS).stat().st_size != state["weights_bytes"]:
                    continue  # torn
                found.append(Checkpoint(path, state["step"], state["scores"], state["seeds"]))
            except (OSError, ValueError, KeyError, TypeError):
                continue  # torn by something else than us; there are others
        return sorted(found, key=lambda checkpoint: checkpoint.step)

    def latest(self):
        """The newest `Checkpoint`, or None."""
        return next(reversed(self.all()), None)

    def best(self):
        """The best `Checkpoint` by validation, the newest where none was validated, or None."""
        try:
            step = json.loads((self.directory / BEST).read_text(encoding="utf-8"))["step"]
        except (OSError, ValueError, KeyError, TypeError):
            return self.latest()
        return next((c for c in self.all() if c.step == step), self.latest())

    def write(self, model, step, scores, is_best=False):
        """Writes a checkpoint beside the others, renames it into place, and removes old ones.

        Args:
            model: compiled `keras.Model`; its optimizer and seeds are saved with the weights.
            step: int, updates made so far.
            scores: dict of str to float.
            is_best: bool, whether this becomes the best one.
        """
        target = self.directory / f"step-{step:08d}"
        for leftover in self.directory.glob(".writing-*"):  # of a process that was killed
            shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
        temporary = self.directory / f".writing-{target.name}"
        temporary.mkdir(parents=True)
        model.save_weights(temporary / WEIGHTS)
        state = {
            "step": step,
            "scores": {name: float(value) for name, value in scores.items()},
            # Keras leaves the seeds out of its weights files.
            "seeds": [variable.numpy().tolist() for variable in _seeds(model)],
            "weights_bytes": (temporary / WEIGHTS).stat().st_size,
        }
        (temporary / STATE).write_text(json.dumps(state, indent=2) + "\n", encoding="utf-8")
        _sync(temporary)
        shutil.rmtree(target, ignore_errors=True)
        temporary.rename(target)
        if is_best:
            pointer = self.directory / f".writing-{BEST}"
            pointer.write_text(json.dumps(state) + "\n", encoding="utf-8")
            os.replace(pointer, self.directory / BEST)
        _sync(self.directory)
        self._prune()

    def _prune(self):
        kept = [checkpoint.path for checkpoint in self.all()[-self.keep :]]
        best = self.best()
        for checkpoint in self.all():
            if checkpoint.path not in kept and checkpoint.path != best.path:
                shutil.rmtree(checkpoint.path)


def _seeds(model):
    """The variables that hold the states of a model's random numbers."""
    return [v for v in model.variables if v.path.endswith("seed_generator_state")]


def _sync(folder):
    """Hands a folder and its files to the disk, so that a power cut finds them whole."""
    for path in [*folder.iterdir(), folder]:
        if path.is_file() or path == folder:
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
