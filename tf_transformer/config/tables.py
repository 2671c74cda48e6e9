"""The tables of a run.toml but `[model]`'s sizes: frozen, validated dataclasses."""

import dataclasses
import typing

from tf_transformer.errors import ConfigError, did_you_mean
from tf_transformer.models.architectures import ARCHITECTURES, require_preset
from tf_transformer.settings import (
    flag,
    require,
    require_choices,
    require_positive,
    require_rate,
    setting,
)


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """Where sentences come from, and how they are batched."""

    corpus: str | None = setting(
        None,
        "text, tsv, monolingual, phrasebook, copy, reverse or tfds:NAME; default: text, tsv or "
        "monolingual, as the files are",
    )
    train_source: str | None = setting(
        None, "source sentences, one a line, plain or gzip; or a pattern in quotes, 'train.*.en.gz'"
    )
    train_target: str | None = setting(None, "their translations, line by line, file by file")
    validation_source: str | None = setting(
        None, "source sentences that choose the checkpoint; default: some of the training text"
    )
    validation_target: str | None = setting(None, "their translations")
    train_tsv: str | None = setting(None, "source TAB target, one pair a line")
    validation_tsv: str | None = setting(
        None, "the same, to choose the checkpoint; default: some of the training text"
    )
    train_text: str | None = setting(
        None,
        "sentences without translations, one a line, for a language model; plain or gzip, or a "
        "pattern in quotes",
    )
    validation_text: str | None = setting(
        None, "the same, to choose the checkpoint; default: some of the training text"
    )
    tfds_dir: str | None = setting(None, "folder of prepared TFDS data sets")
    tfds_download: bool = setting(False, "let TFDS use the network")
    data_cache: str | None = setting(
        None,
        "keep the token ids of the training text in this folder instead of in memory, for this and "
        "later runs; for text of millions of pairs",
    )
    max_length: int = setting(
        128, "subwords in a sentence, its end included; longer pairs are dropped"
    )
    max_length_ratio: float = setting(
        2.0,
        "most subwords of a translation for each of its source, besides 10; more for a target "
        "script that needs many, such as one of bytes",
    )
    source_noise: float | None = setting(
        None,
        "probability that a source sentence loses its capitals or its final punctuation in an "
        "epoch; half of it for a word of three letters or more to be mistyped",
        recipe=True,
    )
    fold_capitals: bool | None = setting(
        None,
        "translate a sentence that is mostly in capitals as if it were in small letters",
        recipe=True,
    )
    batch_tokens: int | None = setting(
        None, "tokens in a batch on its longer side, padding included", recipe=True
    )

    TRAINING_FILES: typing.ClassVar = {
        "text": ("train_source", "train_target"),
        "tsv": ("train_tsv",),
        "monolingual": ("train_text",),
    }
    VALIDATION_FILES: typing.ClassVar = {
        "text": ("validation_source", "validation_target"),
        "tsv": ("validation_tsv",),
        "monolingual": ("validation_text",),
    }
    FILES: typing.ClassVar = sum((*TRAINING_FILES.values(), *VALIDATION_FILES.values()), ())
    CORPORA: typing.ClassVar = (*TRAINING_FILES, "phrasebook", "copy", "reverse")

    def __post_init__(self) -> None:
        """Fills in the corpus of the files, and checks the values."""
        if self.corpus is None:
            object.__setattr__(self, "corpus", self._corpus_of_files())
        require_positive(self, "batch_tokens", "max_length_ratio")
        require_rate(self, "source_noise")
        require(self.max_length > 1, "max_length", self.max_length, "2 or more")
        require(
            self.batch_tokens is None or self.max_length <= self.batch_tokens,
            "max_length",
            self.max_length,
            f"at most batch_tokens={self.batch_tokens}, so that every sentence fits a batch",
        )
        if self.corpus not in self.CORPORA and not self.corpus.startswith("tfds:"):
            hint = did_you_mean(self.corpus, [*self.CORPORA, "tfds:NAME"])
            raise ConfigError(f"unknown corpus {self.corpus!r}: {hint}")
        training = self.TRAINING_FILES.get(self.corpus, ())
        validation = self.VALIDATION_FILES.get(self.corpus, ())
        for name in self.FILES:
            if name not in training + validation and getattr(self, name) is not None:
                raise ConfigError(
                    f"{flag(name)} has no use with the corpus {self.corpus!r}. "
                    f"Give one or the other."
                )
        if missing := [name for name in training if getattr(self, name) is None]:
            raise ConfigError(
                f"missing {', '.join(map(flag, missing))}. Give these files, "
                f"or choose a corpus that needs none: --corpus phrasebook."
            )
        missing = [name for name in validation if getattr(self, name) is None]
        if missing and len(missing) < len(validation):
            both = " and ".join(map(flag, validation))
            raise ConfigError(
                f"missing {', '.join(map(flag, missing))}. Give {both}, or neither: then a part of "
                f"the training text is held out for validation."
            )
        if self.source_noise and not self.has_sources:
            raise ConfigError(
                f"source_noise changes sources, which the corpus {self.corpus!r} has not. Omit it."
            )

    @property
    def has_sources(self) -> bool:
        """Whether the corpus is of sentences and their translations, not of text alone."""
        return self.corpus != "monolingual"

    @property
    def has_validation_files(self) -> bool:
        """Whether the validation text has files of its own."""
        names = self.VALIDATION_FILES.get(self.corpus, ())
        return any(getattr(self, name) is not None for name in names)

    def _corpus_of_files(self) -> str:
        for files in (self.TRAINING_FILES, self.VALIDATION_FILES):
            for corpus, names in files.items():
                if any(getattr(self, name) is not None for name in names):
                    return corpus
        return "text"


@dataclasses.dataclass(frozen=True)
class TokenizerConfig:
    """How SentencePiece splits text into subwords."""

    vocab_size: int | None = setting(
        None, "subwords in a vocabulary, 256 bytes and 4 special ids among them", recipe=True
    )
    model_type: str = setting("bpe", "how subwords are chosen", ("bpe", "unigram"))
    joint: bool = setting(True, "one vocabulary for both sides")
    character_coverage: float = setting(
        0.9995,
        "part of the text whose characters have subwords of their own; the rare others are bytes",
    )
    user_symbols: str | None = setting(
        None, "texts that are one subword each, such as tags, with spaces between: '<BT> <2de>'"
    )

    def __post_init__(self) -> None:
        """Checks the values."""
        require(
            self.vocab_size is None or self.vocab_size > 260, "vocab_size", self.vocab_size,
            "more than 260, the 256 bytes and 4 special ids that it always holds",
        )  # fmt: skip
        require_choices(self)
        need = "greater than 0 and at most 1"
        require(
            0 < self.character_coverage <= 1, "character_coverage", self.character_coverage, need
        )


@dataclasses.dataclass(frozen=True)
class TrainingConfig:
    """How long and how the model is trained."""

    steps: int | None = setting(None, "train for this many updates")
    epochs: int | None = setting(
        None, "train for this many passes; chosen for the corpus if no length is given"
    )
    minutes: float | None = setting(None, "train for this long, from the start of the command")
    seed: int = setting(0, "of weights, data order and dropout")
    schedule: str = setting(
        "trapezoid",
        "of the learning rate: warm-up, peak, decay to 0 at the end; or the paper's",
        ("trapezoid", "noam"),
    )
    learning_rate: float | None = setting(None, "at its peak", recipe=True)
    warmup_steps: int | None = setting(None, "updates until the learning rate peaks", recipe=True)
    decay_fraction: float = setting(
        0.4, "the last part of training, in which the rate of the trapezoid falls to 0"
    )
    label_smoothing: float = setting(0.1, "probability of all tokens but the true one")
    criterion: str | None = setting(
        None,
        "what makes a checkpoint the best: bleu, chrf, or loss, for which nothing is translated",
        ("bleu", "chrf", "loss"),
        recipe=True,
    )
    validation_steps: int | None = setting(None, "updates between validations", recipe=True)
    checkpoint_steps: int | None = setting(
        None, "updates between checkpoints; default: one before each validation"
    )
    keep_checkpoints: int = setting(
        5,
        "newest checkpoints to keep, besides the best; the validated ones are averaged at the end",
    )
    patience: int | None = setting(
        None,
        "validations that are not better by the criterion after which to stop; counted once the "
        "learning rate has fallen below its peak; default: never stop early",
    )
    accumulation_steps: int = setting(1, "batches whose gradients are accumulated for one update")
    clip_norm: float | None = setting(None, "limit of the norm of all gradients; default: none")
    tensorboard: bool = setting(
        False, "write the metrics for TensorBoard too; needs the package tensorboard"
    )
    chunked_logits: bool = setting(
        False,
        "compute the logits of a batch in parts: less memory, more time for large vocabularies",
    )
    deterministic: bool = setting(False, "ops that give the same bits every time; slower on a GPU")
    precision: str = setting(
        "float32",
        "of activations and matrix products; weights stay float32",
        ("float32", "mixed_bfloat16", "mixed_float16"),
    )
    devices: str | None = setting(
        None, "a number of GPUs, or devices by name: gpu:0,gpu:1 or cpu; default: every GPU"
    )

    LENGTHS: typing.ClassVar = ("steps", "epochs", "minutes")

    def __post_init__(self) -> None:
        """Checks the values."""
        require_positive(
            self, "steps", "epochs", "minutes", "learning_rate", "warmup_steps",
            "validation_steps", "checkpoint_steps", "keep_checkpoints", "accumulation_steps",
            "patience", "clip_norm",
        )  # fmt: skip
        require(0 <= self.seed < 2**31, "seed", self.seed, "at least 0 and less than 2^31")
        require_rate(self, "label_smoothing")
        need = "greater than 0 and at most 1"
        require(0 < self.decay_fraction <= 1, "decay_fraction", self.decay_fraction, need)
        lengths = [n for n in self.LENGTHS if getattr(self, n) is not None]
        if len(lengths) > 1:
            raise ConfigError(
                f"{' and '.join(map(flag, lengths))} each set when training ends. Give one of them."
            )
        require_choices(self)


@dataclasses.dataclass(frozen=True)
class ModelChoice:
    """The keys of `[model]` that choose the architecture and the preset."""

    architecture: str = setting("transformer", "which model", tuple(ARCHITECTURES))
    preset: str = setting("tiny", "a table of sizes")

    def __post_init__(self) -> None:
        """Checks the values."""
        require_choices(self)
        require_preset(self.preset, self.architecture)
