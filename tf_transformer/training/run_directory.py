"""A run directory: everything one training run leaves behind.

config.toml            the complete configuration; it repeats the run
tokenizers/            source.model and target.model
test/                  source.txt and target.txt, where the corpus has a test part
checkpoints/           step-00000123/…
log.jsonl              a line of figures for each validation
log.csv                the same as a table
tensorboard/           the same for TensorBoard, where --tensorboard was given
.lock                  held by the process that trains
"""

import contextlib
import fcntl
import json
import pathlib
import shlex
import sys
from typing import NamedTuple

from tf_transformer.config import RunConfig, read_toml
from tf_transformer.models.presets import transformer_config
from tf_transformer.models.transformer import Transformer
from tf_transformer.tokenizers.sentencepiece import SentencePieceTokenizer
from tf_transformer.training.checkpoints import Checkpoint, Checkpoints, replacing, sync
from tf_transformer.training.new_run import CHECKPOINTS, CONFIG, RunError, require_new


def build_model(config, source_tokenizer, target_tokenizer, precision=None):
    """The untrained model of a run.

    Args:
        config: `RunConfig`.
        source_tokenizer, target_tokenizer: tokenizers.
        precision: a Keras dtype policy; None is the run's.

    Returns:
        `Transformer`.

    Raises:
        ConfigError: the sizes do not go together.
    """
    sizes = transformer_config(
        config.model,
        source_tokenizer.vocab_size,
        target_tokenizer.vocab_size,
        joint=config.tokenizer.joint,
        pad_id=target_tokenizer.pad_id,
    )
    return Transformer(sizes, dtype=precision or config.training.precision)


class TrainedModel(NamedTuple):
    """A model with the weights of a checkpoint, and the tokenizers it was trained with."""

    model: Transformer
    source_tokenizer: SentencePieceTokenizer
    target_tokenizer: SentencePieceTokenizer
    checkpoint: Checkpoint


class RunDirectory:
    """A training run on disk.

    Args:
        path: the directory; `create` or `open` checks what it holds.
    """

    def __init__(self, path):
        self.path = pathlib.Path(path)
        self.config_path = self.path / CONFIG
        self.log_path = self.path / "log.jsonl"
        self.csv_path = self.path / "log.csv"
        self.tensorboard_path = self.path / "tensorboard"
        self.checkpoints = Checkpoints(self.path / CHECKPOINTS)

    @classmethod
    def create(cls, path):
        """A directory for a new run; `begin` makes it, so that a failed start leaves nothing.

        Raises:
            RunError: it holds a run already, or cannot be made.
        """
        require_new(path)
        return cls(path)

    @classmethod
    def open(cls, path):
        """The directory of an earlier run.

        Raises:
            RunError: it holds none.
        """
        run = cls(path)
        if not run.config_path.is_file():
            raise RunError(
                f"{path}: holds no run (there is no config.toml). "
                f"Start one with tf-transformer train --run-dir {path}"
            )
        return run

    @classmethod
    def is_run(cls, path):
        """Whether a directory holds a run."""
        return cls(path).config_path.is_file()

    @contextlib.contextmanager
    def lock(self):
        """Keeps other processes from training here; the system frees it when this one ends.

        Raises:
            RunError: another process has it.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / ".lock").open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RunError(
                    f"{self.path}: another process is training there. Wait until it ends, or "
                    f"give another --run-dir."
                ) from None
            yield

    def config(self):
        """The run's `RunConfig`."""
        return RunConfig.from_dict(read_toml(self.config_path), str(self.config_path))

    def begin(self, config, source_tokenizer, target_tokenizer, test=None):
        """Writes the tokenizers (of a joint one, two copies), test sentences and configuration.

        The configuration comes last: what holds it is a run that can be resumed.

        Args:
            config: complete `RunConfig`.
            source_tokenizer, target_tokenizer: tokenizers.
            test: `ParallelText` that came with the corpus, or None.
        """
        folder = self.path / "tokenizers"
        folder.mkdir(parents=True, exist_ok=True)
        source_tokenizer.save(folder / "source.model")
        target_tokenizer.save(folder / "target.model")
        if test is not None:
            (self.path / "test").mkdir(exist_ok=True)
            for side, sentences in (("source", test.sources), ("target", test.targets)):
                text = "".join(f"{sentence}\n" for sentence in sentences)
                self._test_path(side).write_text(text, encoding="utf-8")
        self.save_config(config)

    def _test_path(self, side):
        return self.path / "test" / f"{side}.txt"

    def next_commands(self):
        """What to do with a run that has ended, as str; with its own test sentences, if any."""
        paths = [self._test_path(side) for side in ("source", "target")]
        source, reference = (shlex.quote(str(p)) if p.is_file() else "F" for p in paths)
        path = shlex.quote(str(self.path))
        return (
            f"tf-transformer export {path} saved_models/NAME, or "
            f"tf-transformer evaluate {path} --source {source} --reference {reference}"
        )

    def save_config(self, config):
        """Writes the complete configuration, whole or not at all."""
        with replacing(self.config_path) as temporary:
            config.save(temporary)
            sync(temporary)

    def forget_log_after(self, step):
        """Drops lines of the log that a run which goes on from `step` will write again."""
        if not self.log_path.is_file():
            return
        kept = []
        for line in self.log_path.read_text(encoding="utf-8").splitlines(keepends=True):
            # The last line may be cut short, where the process was killed.
            if not line.endswith("\n") or json.loads(line)["step"] > step:
                break
            kept.append(line)
        with replacing(self.log_path) as temporary:
            temporary.write_text("".join(kept), encoding="utf-8")

    def log(self):
        """The lines of the log, oldest first, as dicts of figures; none where nothing is logged.

        Raises:
            RunError: a line is not what `train` writes.
        """
        if not self.log_path.is_file():
            return []
        lines = self.log_path.read_text(encoding="utf-8").splitlines(keepends=True)
        found = []
        for number, line in enumerate(lines, 1):
            if not line.endswith("\n"):
                break  # cut short, where the process was killed
            try:
                figures = json.loads(line)
                figures["step"]
            except (ValueError, KeyError, TypeError):
                raise RunError(
                    f"{self.log_path}: line {number} is no line of figures. Remove that line."
                ) from None
            found.append(figures)
        return found

    def tokenizers(self):
        """The source and the target tokenizer.

        Raises:
            RunError: they are missing.
            TokenizerError: one of them is damaged.
        """
        folder = self.path / "tokenizers"
        try:
            return tuple(
                SentencePieceTokenizer.load(folder / f"{side}.model")
                for side in ("source", "target")
            )
        except OSError:
            raise RunError(
                f"{folder}: the tokenizers are missing; the run never began to train. "
                f"Remove {self.path} and start again."
            ) from None

    def load_model(self, precision=None):
        """The model with the weights of the best checkpoint.

        Args:
            precision: a Keras dtype policy; None is that of training.

        Returns:
            `TrainedModel`.

        Raises:
            RunError: there is no checkpoint.
            CheckpointError: none can be read, or it is of another model.
        """
        checkpoint = self.checkpoints.readable(self.checkpoints.best(), warn)
        if checkpoint is None:
            raise RunError(
                f"{self.checkpoints.directory}: there is no checkpoint yet. "
                f"Train with: tf-transformer train --run-dir {self.path} --resume"
            )
        config = self.config()
        source, target = self.tokenizers()
        model = build_model(config, source, target, precision)
        checkpoint.require(model.config.to_dict())
        checkpoint.restore(model)
        return TrainedModel(model, source, target, checkpoint)


def warn(line):
    """Tells the user what is not as it should be, and goes on."""
    print(f"tf-transformer: {line}", file=sys.stderr)
