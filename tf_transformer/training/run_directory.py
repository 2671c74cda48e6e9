"""A run directory: everything one training run leaves behind.

config.toml            the complete configuration; it repeats the run
tokenizers/            source.model and target.model
test/                  source.txt and target.txt, where the corpus has a test part
checkpoints/           step-00000123/…, best.json
log.jsonl              a line of figures for each validation
"""

import collections
import os
import pathlib
from typing import NamedTuple

import h5py

from tf_transformer.config import InputError, RunConfig, read_toml
from tf_transformer.models.presets import transformer_config
from tf_transformer.models.transformer import Transformer
from tf_transformer.tokenizers.sentencepiece import SentencePieceTokenizer
from tf_transformer.training.checkpoints import WEIGHTS, Checkpoint, Checkpoints


class RunError(InputError):
    """A run directory that cannot be used."""


def build_model(config, source_tokenizer, target_tokenizer):
    """The untrained model of a run.

    Args:
        config: `RunConfig`.
        source_tokenizer, target_tokenizer: tokenizers.

    Returns:
        `Transformer`, in the run's precision.

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
    return Transformer(sizes, dtype=config.training.precision)


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
        self.config_path = self.path / "config.toml"
        self.log_path = self.path / "log.jsonl"
        self.checkpoints = Checkpoints(self.path / "checkpoints")

    @classmethod
    def create(cls, path):
        """A directory for a new run; `begin` makes it, so that a failed start leaves nothing.

        Raises:
            RunError: it holds a run already, or cannot be made.
        """
        run = cls(path)
        if run.config_path.exists() or run.checkpoints.directory.exists():
            raise RunError(
                f"{path}: holds a run already. Continue it with --resume, "
                f"or give another --run-dir."
            )
        existing = next(p for p in (run.path, *run.path.absolute().parents) if p.exists())
        if not existing.is_dir() or not os.access(existing, os.W_OK):
            raise RunError(f"{path}: cannot be made, since {existing} is no writable folder.")
        return run

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
                (self.path / "test" / f"{side}.txt").write_text(text, encoding="utf-8")
        self.save_config(config)

    def save_config(self, config):
        """Writes the complete configuration, whole or not at all."""
        temporary = self.path / ".writing-config.toml"
        config.save(temporary)
        os.replace(temporary, self.config_path)

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

    def load_model(self):
        """The model with the weights of the best checkpoint.

        Returns:
            `TrainedModel`.

        Raises:
            RunError: there is no checkpoint, or it does not fit the configuration.
        """
        checkpoint = self.checkpoints.best()
        if checkpoint is None:
            raise RunError(
                f"{self.checkpoints.directory}: there is no checkpoint yet. "
                f"Train with: tf-transformer train --run-dir {self.path} --resume"
            )
        config = self.config()
        source, target = self.tokenizers()
        model = build_model(config, source, target)
        self.restore(checkpoint, model)
        return TrainedModel(model, source, target, checkpoint)

    def restore(self, checkpoint, model):
        """Gives a model of this run's configuration the state of a checkpoint.

        Args:
            checkpoint: `Checkpoint` of this run.
            model: `Transformer`.

        Raises:
            RunError: the checkpoint is of other sizes than the configuration, or damaged.
        """
        try:
            difference = _difference(checkpoint.path / WEIGHTS, model)
            if difference is None:
                checkpoint.restore(model)
        except OSError:
            raise RunError(
                f"{checkpoint.path}: the weights are damaged. "
                f"Remove this folder; the newest of the others then takes its place."
            ) from None
        except ValueError:
            # Its weights agree; what is left are the seeds.
            difference = "it has other seeds of dropout, of which a rate of 0 has none"
        if difference is not None:
            raise RunError(
                f"{checkpoint.path}: does not fit {self.config_path}: {difference}. "
                f"Undo what was changed in config.toml."
            )


def _difference(path, model):
    """The first shape of which a weights file and a model hold unequal numbers, in words, or None.

    Keras itself would say nothing of what the file holds beyond the model; and it has its own
    names in the file, so that shapes are what can be compared.
    """
    found = collections.Counter()

    def count(name, item):
        if isinstance(item, h5py.Dataset) and not name.startswith("optimizer/"):
            found[item.shape] += 1

    with h5py.File(path) as file:
        file.visititems(count)
    expected = collections.Counter(tuple(variable.shape) for variable in model.weights)
    for shape in [*expected, *found]:
        if found[shape] != expected[shape]:
            return f"variables of shape {shape}: {found[shape]} here, {expected[shape]} there"
    return None
