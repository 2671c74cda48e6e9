"""The tables [data], [tokenizer] and [training] of run.toml, which are also options of `train`."""

import re
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, PositiveFloat, PositiveInt, model_validator
from pydantic.dataclasses import dataclass

from tf_transformer.config_fields import CHECKED, Trait, flag, optional, setting
from tf_transformer.errors import did_you_mean
from tf_transformer.models.model_configs import Rate

Fraction = Annotated[float, Field(gt=0, le=1)]
# Markup characters, escaped for a character class in a regular expression of `re` or RE2.
TAG_SIGNS = r"<>\[\]{}_@\\/"

# A list of which one value may be given alone.
_ONE_OR_MORE = BeforeValidator(lambda value: value if isinstance(value, list | tuple) else [value])
_CHOSEN, _WEIGHTS, _FREE, _LOCAL = Trait.CHOSEN, Trait.WEIGHTS, Trait.FREE, Trait.LOCAL
Texts = Annotated[tuple[str, ...], Field(min_length=1), _ONE_OR_MORE] | None
Weights = Annotated[tuple[PositiveFloat, ...], Field(min_length=1), _ONE_OR_MORE] | None


@dataclass(frozen=True, config=CHECKED)
class DataConfig:
    """The corpus of a run, and how its sentences are batched."""

    corpus: str | None = optional(
        "text, tsv, file, monolingual, phrasebook, copy, reverse or tfds:NAME (default: from the "
        "files)"
    )
    train_source: Texts = optional(
        "source sentences, one per line, plain or gzip; or a quoted pattern: 'train.*.en.gz'; "
        "repeat it for each of several corpora, as all options that name files",
        _LOCAL,
    )
    train_target: Texts = optional("their translations, file by file and line by line", _LOCAL)
    validation_source: Texts = optional(
        "source sentences for validation, of which the first file chooses the best checkpoint; "
        "default: a part of each corpus",
        _LOCAL,
    )
    validation_target: Texts = optional("translations of --validation-source", _LOCAL)
    train_tsv: Texts = optional("pairs as source TAB target, one per line", _LOCAL)
    validation_tsv: Texts = optional("validation pairs; default: a part of each corpus", _LOCAL)
    train_file: Texts = optional("pairs of a TMX, PO or XLIFF file", _LOCAL)
    validation_file: Texts = optional(
        "the same for validation; default: a part of each corpus", _LOCAL
    )
    train_text: Texts = optional(
        "sentences without translations, for a language model; plain or gzip; or a pattern", _LOCAL
    )
    validation_text: Texts = optional("for validation; default: a part of each corpus", _LOCAL)
    max_length: Annotated[int, Field(ge=2)] = setting(
        128,
        "most tokens of a sentence, its end included; longer pairs are dropped",
        _WEIGHTS | Trait.TRANSLATOR,
    )
    batch_tokens: PositiveInt | None = optional(
        "tokens of a batch on its longer side, padded", _CHOSEN | _WEIGHTS
    )
    row_length: Annotated[int, Field(ge=0)] | None = optional(
        "tokens of a row into which several pairs are packed, which suits GPUs; 0 for a row of its "
        "own for each pair",
        _CHOSEN | _WEIGHTS,
    )
    source_tag: str | None = optional(
        "token in front of every source, such as >>deu<<", _WEIGHTS | Trait.TRANSLATOR
    )
    source_noise: Rate | None = optional(
        "probability in each epoch that a source sentence loses its capitals or its final "
        "punctuation; a word is mistyped with half of this probability",
        _CHOSEN | _WEIGHTS,
    )
    marks: Annotated[int, Field(ge=0, le=64)] | None = optional(
        "placeholders, tags and the like of a sentence that are copied for certain; 0 for none",
        _CHOSEN | _WEIGHTS,
    )
    mark_pattern: str | None = optional(
        "regular expression (RE2) of what is copied; default: addresses, placeholders, tags, "
        "entities and code of Markdown",
        _WEIGHTS | Trait.TRANSLATOR,
    )
    mark_practice: Rate | None = optional(
        "probability in each epoch that words get marks in their place, before or around them",
        _CHOSEN | _WEIGHTS,
    )
    fold_capitals: bool | None = optional(
        "translate sentences in capitals as if in small letters", _CHOSEN | _FREE | Trait.TRANSLATOR
    )
    dotless_i: bool | None = optional(
        "then make ı of I, as in Turkish and Azeri", _CHOSEN | _FREE | Trait.TRANSLATOR
    )
    weight: Weights = optional("share of a corpus; default: by its number of pairs", _WEIGHTS)
    tag: Texts = optional("token before a corpus' sources, such as <BT>; '' for none", _WEIGHTS)
    validation_tag: Texts = optional("tag of each validation file; '' for none")
    max_length_ratio: PositiveFloat = setting(
        2.0,
        "limit of a translation's tokens: this number times those of its source, plus 10",
        _FREE | Trait.TRANSLATOR,
    )
    allow_unknown: bool = setting(
        True,
        "let translations have the token of unknown subwords, and line feeds and the like",
        Trait.TRANSLATOR,
    )
    repair_loops: bool = setting(
        True,
        "search once more, without repeated sequences, where a translation repeats itself",
        _FREE | Trait.TRANSLATOR,
    )
    data_cache: str | None = optional(
        "keep token ids in this folder instead of in memory", _FREE | _LOCAL
    )
    tfds_dir: str | None = optional("folder of data sets of TensorFlow Datasets", _LOCAL)
    tfds_download: bool = setting(False, "let TensorFlow Datasets download the data set", _LOCAL)

    # Each side of a corpus is a file for training and a file for validation.
    SIDES: ClassVar = {
        "text": ("source", "target"), "tsv": ("tsv",), "file": ("file",), "monolingual": ("text",)
    }  # fmt: skip
    # An imported run has the corpus "none".
    CORPORA: ClassVar = (*SIDES, "phrasebook", "copy", "reverse", "none")

    @model_validator(mode="after")
    def _check(self) -> "DataConfig":
        given = {
            f"{part}_{side}": corpus
            for part in ("train", "validation")
            for corpus, sides in self.SIDES.items()
            for side in sides
            if getattr(self, f"{part}_{side}") is not None
        }
        if self.corpus is None:
            object.__setattr__(self, "corpus", next(iter(given.values()), "text"))
        if self.corpus not in self.CORPORA and not self.corpus.startswith("tfds:"):
            hint = did_you_mean(self.corpus, [*self.CORPORA, "tfds:NAME"])
            raise ValueError(f"unknown corpus {self.corpus!r}: {hint}")
        training, validation = self.files("train"), self.files("validation")
        if useless := [name for name in given if name not in training + validation]:
            raise ValueError(f"{flag(useless[0])} does not fit corpus {self.corpus!r}. Omit one.")
        if missing := [name for name in training if name not in given]:
            raise ValueError(
                f"missing {', '.join(map(flag, missing))}. Give these files, or choose a corpus "
                f"that needs none: --corpus phrasebook."
            )
        if self.has_validation_files and not {*validation} <= {*given}:
            raise ValueError(
                f"give both {' and '.join(map(flag, validation))}, or neither, to hold out a part "
                f"of the training text for validation."
            )
        if self.batch_tokens is not None and self.max_length > self.batch_tokens:
            raise ValueError(
                f"max_length={self.max_length} is more than batch_tokens={self.batch_tokens}, and "
                f"every sentence must fit a batch. Lower max_length or raise batch_tokens."
            )
        if self.row_length and not self.max_length <= self.row_length <= (
            self.batch_tokens or self.row_length
        ):
            most = "" if self.batch_tokens is None else f"={self.batch_tokens}"
            raise ValueError(
                f"row_length={self.row_length} must be at least max_length={self.max_length}, and "
                f"at most batch_tokens{most}; 0 packs nothing."
            )
        self._check_lists()
        names = ("source_noise", "source_tag", "tag", "validation_tag", "marks")
        changes = [name for name in names if getattr(self, name)]
        if changes and not self.has_sources:
            raise ValueError(f"{changes[0]} changes sources, but this corpus has none. Omit it.")
        return self

    def _check_lists(self) -> None:
        """Check the settings of which each corpus has one."""
        for part, others in (("train", ("weight", "tag")), ("validation", ("validation_tag",))):
            names = [name for name in self.files(part) if getattr(self, name) is not None]
            given = [name for name in others if getattr(self, name) is not None]
            if given and not names:
                raise ValueError(f"{flag(given[0])} needs files, one for each value. Omit it.")
            counts = {flag(name): len(getattr(self, name)) for name in names + given}
            if len(set(counts.values())) > 1:
                listed = ", ".join(f"{count} {name}" for name, count in counts.items())
                raise ValueError(f"received {listed}. Give as many of one as of the other.")
        for tag in self.tags:
            if not re.fullmatch(rf"\S*[{TAG_SIGNS}]\S*", tag):
                raise ValueError(
                    f"the tag {tag!r} must be one word with a sign that no other word has, such as "
                    f"<BT> or >>deu<<."
                )
        if self.source_tag and any((*(self.tag or ()), *(self.validation_tag or ()))):
            raise ValueError(
                "source_tag stands in front of every source already, so omit tag and "
                "validation_tag, or set source_tag to ''."
            )

    @property
    def has_sources(self) -> bool:
        """Whether the corpus has translations, rather than text in only one language."""
        return self.corpus != "monolingual"

    @property
    def has_validation_files(self) -> bool:
        """Whether the validation text has files of its own."""
        return any(getattr(self, name) is not None for name in self.files("validation"))

    @property
    def validation_tags(self) -> tuple[str, ...] | None:
        """The tag of each validation text: a file, or a part that a training corpus holds out."""
        return self.validation_tag if self.has_validation_files else self.tag

    @property
    def tags(self) -> list[str]:
        """All tags, each of which must be one token."""
        tags = (self.source_tag, *(self.tag or ()), *(self.validation_tag or ()))
        return [*dict.fromkeys(filter(None, tags))]

    def files(self, part: str) -> list[str]:
        """Return the settings that name the files of a `part`, `"train"` or `"validation"`."""
        return [f"{part}_{side}" for side in self.SIDES.get(self.corpus, ())]

    def paths(self, part: str) -> list[tuple[str, ...]]:
        """Return the file of each side for each corpus of a `part`; none if none are given."""
        return list(zip(*(getattr(self, name) or () for name in self.files(part)), strict=True))


@dataclass(frozen=True, config=CHECKED)
class TokenizerConfig:
    """How SentencePiece splits text into subwords."""

    vocab_size: Annotated[int, Field(gt=260)] | None = optional(
        "size of a vocabulary, with 256 bytes and 4 special tokens", _CHOSEN
    )
    model_type: Literal["bpe", "unigram"] = setting("bpe", "SentencePiece's algorithm")
    joint: bool = setting(True, "use one vocabulary for source and target")
    character_coverage: Fraction = setting(
        0.9995, "share of the text whose characters have subwords; rarer characters become bytes"
    )
    normalization: Literal["nfc", "none"] = setting(
        "nfc", "nfc: compose letters and accents, and drop soft hyphens and zero-width spaces"
    )
    user_symbols: str | None = optional("tags that are one subword each, such as '<BT> <2de>'")


@dataclass(frozen=True, config=CHECKED)
class TrainingConfig:
    """The length of training, and how the model is trained."""

    minutes: PositiveFloat | None = optional(
        "train for this many minutes, start-up included", _FREE
    )
    epochs: PositiveInt | None = optional(
        "train for this many passes; chosen for the corpus if no length is given", _FREE
    )
    steps: PositiveInt | None = optional("train for this many updates", _FREE)
    initialize_from: str | None = optional(
        "begin with the best weights of this run, and keep its model and its tokenizers"
    )
    criterion: Literal["bleu", "chrf", "loss"] | None = optional(
        "validation metric that selects the best checkpoint; loss needs no translations", _CHOSEN
    )
    validation_steps: PositiveInt | None = optional("updates between validations", _CHOSEN)
    patience: PositiveInt | None = optional(
        "stop after this many validations without a better checkpoint, counted once the learning "
        "rate has fallen below its peak; default: never stop early",
        _FREE,
    )
    keep_checkpoints: PositiveInt = setting(5, "newest checkpoints to keep besides the best", _FREE)
    checkpoint_steps: PositiveInt | None = optional(
        "updates between checkpoints; default: one before each validation", _FREE
    )
    checkpoint_minutes: PositiveFloat = setting(
        15, "most minutes between checkpoints, whatever else is given", _FREE
    )
    learning_rate: PositiveFloat | None = optional("learning rate at its peak", _CHOSEN | _WEIGHTS)
    warmup_steps: PositiveInt | None = optional(
        "updates until the learning rate peaks", _CHOSEN | _WEIGHTS
    )
    schedule: Literal["trapezoid", "noam"] = setting(
        "trapezoid",
        "learning rate: warm-up, peak, decay to 0; noam: as in the Transformer paper",
        _WEIGHTS,
    )
    decay_fraction: Fraction = setting(
        0.4, "last part of training, in which the trapezoid decays", _WEIGHTS
    )
    label_smoothing: Rate = setting(
        0.1, "probability spread over all tokens except the true one", _WEIGHTS
    )
    weight_decay: Annotated[float, Field(ge=0, le=1)] | None = optional(
        "each update shrinks matrices by this times the learning rate; 0 for no decay",
        _CHOSEN | _WEIGHTS,
    )
    clip_norm: Annotated[float, Field(ge=0)] | None = optional(
        "limit of the gradients' norm; 0 for none", _CHOSEN | _WEIGHTS
    )
    accumulation_steps: PositiveInt = setting(
        1, "batches whose gradients make one update", _WEIGHTS
    )
    batch_parts: PositiveInt | None = optional(
        "parts of a batch that a CPU runs at once", _CHOSEN | _WEIGHTS
    )
    precision: Literal["float32", "mixed_bfloat16", "mixed_float16"] | None = optional(
        "precision of activations and matrix products; weights stay float32", _CHOSEN | _WEIGHTS
    )
    steps_per_execution: PositiveInt | None = optional(
        "most updates that run without a return to Python, which a fast GPU would wait for",
        _CHOSEN | _FREE,
    )
    xla: bool | None = optional(
        "let XLA compile the training step, once for each shape of a batch", _CHOSEN | _FREE
    )
    worker_seconds: PositiveFloat = setting(
        45, "seconds to wait for the other workers of a cluster", _FREE | _LOCAL
    )
    devices: str | None = optional(
        "a number of GPUs, gpu:0,gpu:1 or cpu; default: every GPU", _FREE | _LOCAL
    )
    seed: Annotated[int, Field(ge=0, lt=2**31)] = setting(
        0, "seed of weights, data and dropout", _WEIGHTS
    )
    tensorboard: bool = setting(
        False, "also log for TensorBoard; needs the package tensorboard", _FREE
    )
    deterministic: bool = setting(False, "give the same bits every time; slower on a GPU")

    LENGTHS: ClassVar = ("steps", "epochs", "minutes")

    @model_validator(mode="after")
    def _check(self) -> "TrainingConfig":
        lengths = [flag(name) for name in self.LENGTHS if getattr(self, name) is not None]
        if len(lengths) > 1:
            raise ValueError(f"{' and '.join(lengths)} each set when training ends. Give one.")
        return self
