"""The data of a run: corpus, tokenizers and batches."""

import dataclasses
import itertools
import json
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tf_transformer.data.corpus import load_corpus
from tf_transformer.data.marks import MarkedText, Marks, require_pattern
from tf_transformer.data.processes import map_in_processes
from tf_transformer.data.text import Corpus, SampledText, SentencePairs
from tf_transformer.data.token_batches import TokenBatches
from tf_transformer.errors import ConfigError
from tf_transformer.files import obstacle
from tf_transformer.machine import num_cores
from tf_transformer.models.architectures import with_tokenizers
from tf_transformer.run_config import RunConfig
from tf_transformer.run_tables import DataConfig, TokenizerConfig
from tf_transformer.runs.recipe import Facts, choose, with_choices
from tf_transformer.runs.restore import Tokenizers, restore_tokenizers
from tf_transformer.runs.run_directory import RunDirectory, say
from tf_transformer.tokenizers.additions import with_symbols
from tf_transformer.tokenizers.marks import MarkIds, MarkSymbols
from tf_transformer.tokenizers.sentencepiece import (
    MAX_SENTENCES,
    SentencePieceTokenizer,
    VocabularySizeError,
)
from tf_transformer.training.workers import Workers

_PAIRS_ON_DISK = 1_000_000  # from which on the ids are kept in the run directory


class RunData(NamedTuple):
    """The data of a run."""

    corpus: Corpus
    tokenizers: Tokenizers
    batches: TokenBatches
    validations: list[TokenBatches]

    @property
    def description(self) -> str:
        """A summary of the amount of data, in a few lines."""
        corpus, batches, units = self.corpus, self.batches, f"{self.corpus.unit}s"
        numbers = range(2, 1 + len(self.validations))
        names = ["training", "validation", *(f"validation_{number}" for number in numbers)]
        texts, parts = (corpus.train, *corpus.validations), (batches, *self.validations)
        lines = [
            f"{len(text) - part.num_too_long:,} {name} {units} of {corpus.name}; dropped: "
            f"{text.num_blank:,} blank, {part.num_too_long:,} too long."
            for name, text, part in zip(names, texts, parts, strict=True)
        ]
        lines.append(
            f"{len(batches):,} batches an epoch, {batches.num_target_tokens:,} target tokens, "
            f"{batches.padding_fraction:.1%} padding."
        )
        return "\n".join(lines)


def prepare_data(
    config: RunConfig, run: RunDirectory, workers: Workers, resume: bool, gpus: int | None = None
) -> tuple[RunConfig, RunData]:
    """Read, tokenize and batch the corpus of a run, and complete its configuration.

    The chief trains the tokenizers and sends them to all workers; a resumed run loads them from its
    directory, and a run that is initialized from another loads those of the other. The recipe and
    the vocabulary sizes complete the configuration. `gpus` is the number of GPUs that will train;
    None for those of the workers.
    """
    # Before the text is read, which may take minutes.
    if config.data.mark_pattern:
        require_pattern(config.data.mark_pattern)
    if problem := config.data.data_cache and obstacle(config.data.data_cache):
        raise ConfigError(problem)
    corpus = load_corpus(config.data, run.summary() if resume else ())
    if workers.is_chief:
        for note in corpus.notes:
            say(note)
    tokenizers, origin = None, config.training.initialize_from
    if resume or origin is not None:
        tokenizers = restore_tokenizers(run if resume else RunDirectory.open(origin))
        config = dataclasses.replace(config, model=with_tokenizers(config.model, *tokenizers))
    if origin is not None and not resume:
        _require_known_characters(tokenizers, corpus.sample, origin)
    gpus = workers.num_gpus if gpus is None else gpus
    if not resume:
        may_grow = config.tokenizer.vocab_size is None  # the recipe chooses the size
        facts = Facts.of(config, corpus, num_cores() * workers.count, gpus)
        facts = facts._replace(bfloat16=workers.have_bfloat16)
        # All workers use the chief's choices, because their numbers of cores may differ.
        content = json.dumps([facts.summary(config), choose(config, facts)]).encode()
        chosen_for, choices = json.loads(workers.broadcast(content))
        config = with_choices(config, choices, chosen_for)
    data = config.data
    if tokenizers is None:
        models = [b""] if config.tokenizer.joint else [b"", b""]
        if workers.is_chief:
            models = _train_tokenizers(config.tokenizer, data, corpus, may_grow)
        trained = [SentencePieceTokenizer(workers.broadcast(model)) for model in models]
        tokenizers = trained[0], trained[-1]
        size = max(tokenizer.vocab_size for tokenizer in trained)
        tokenizer = dataclasses.replace(config.tokenizer, vocab_size=size)
        config = dataclasses.replace(config, tokenizer=tokenizer)
        config = dataclasses.replace(config, model=with_tokenizers(config.model, *tokenizers))
    elif not resume:
        known = getattr(tokenizers[0], "user_symbols", data.tags)
        if new := [tag for tag in data.tags if tag not in known]:
            say(f"The vocabulary of {origin} gets the tag {', '.join(new)}.")
        num_marks = min(len(getattr(each, "mark_ids", MarkIds()).plain) for each in tokenizers)
        if data.marks < num_marks and "data.marks" not in config.chosen:
            raise ConfigError(f"{origin} has {num_marks} marks, which stay. Omit --marks.")
        symbols = [*data.tags, *MarkSymbols.first(data.marks).all]
        tokenizers = tuple(with_symbols(tokenizer, symbols) for tokenizer in tokenizers)
        config = dataclasses.replace(config, model=with_tokenizers(config.model, *tokenizers))
    is_large = len(corpus.train) >= _PAIRS_ON_DISK
    if data.data_cache is None and (is_large or run.ids_path.exists()):
        data = dataclasses.replace(data, data_cache=str(run.ids_path))
    batches = batches_of(corpus.train, tokenizers, data, config.training.seed, gpus > 0)
    validations = [batches_of(text, tokenizers, data) for text in corpus.validations]
    return config, RunData(corpus, tokenizers, batches, validations)


def batches_of(
    text: SentencePairs,
    tokenizers: Tokenizers,
    config: DataConfig,
    seed: int | None = None,
    in_process: bool = False,
) -> TokenBatches:
    """Return the batches of a text to evaluate; with a seed, those of a text to train on."""
    for_training = {
        "seed": seed, "cache_dir": config.data_cache, "source_noise": config.source_noise,
        "mark_practice": config.mark_practice, "row_length": config.row_length or None,
        "in_process": in_process, "processes": num_cores() if len(text) >= _PAIRS_ON_DISK else 1,
    }  # fmt: skip
    return TokenBatches.from_text(
        text,
        *tokenizers,
        batch_tokens=config.batch_tokens,
        max_length=config.max_length,
        source_tag=config.source_tag or "",
        marks=Marks.of(*tokenizers, config.mark_pattern),
        **(for_training if seed is not None else {}),
    )


def _all_pairs(text: SentencePairs) -> list[tuple[str, str]]:
    return list(iter(text))  # without its length, which is not that of a sample


def _require_known_characters(
    tokenizers: Tokenizers, pairs: Sequence[tuple[str, str]], origin: str
) -> None:
    for side, tokenizer, texts in zip(
        ("source", "target"), tokenizers, zip(*pairs, strict=True), strict=True
    ):
        subwords = tokenizer.subwords(itertools.chain.from_iterable(tokenizer.encode(texts)))
        unknown = tokenizer.subwords([tokenizer.unk_id])[0]
        if 2 * sum(s == unknown or s.startswith("<0x") for s in subwords) > len(subwords):
            raise ConfigError(
                f"the {side} tokenizer of {origin} lacks most characters of the {side} text. Train "
                f"a new run, whose tokenizer has them."
            )


def _train_tokenizers(
    config: TokenizerConfig, data: DataConfig, corpus: Corpus, may_grow: bool
) -> list[bytes]:
    """Return one joint model or two; if `may_grow`, the size grows where the text needs it."""
    symbols = list(dict.fromkeys([*(config.user_symbols or "").split(), *data.tags]))
    units = "sentence pairs" if corpus.unit == "pair" else "sentences"
    say(f"Training a tokenizer of {config.vocab_size:,} subwords on {len(corpus.train):,} {units}.")
    sides = 2 if config.joint and data.has_sources else 1
    share = MAX_SENTENCES / (sides * len(corpus.train))
    text = SampledText(corpus.train, share) if share < 1 else corpus.train
    if data.marks:
        marks = Marks(data.marks, data.mark_pattern, symbols)
        text = MarkedText(text, marks)
        symbols += marks.symbols.all

    def pairs() -> Iterable[tuple[str, str]]:
        parts, processes = text.parts(), num_cores()
        if share >= 1 or min(len(parts), processes) == 1:
            return text
        return itertools.chain.from_iterable(map_in_processes(_all_pairs, parts, processes))

    def train(sentences: Iterable[str]) -> bytes:
        tokenizer = SentencePieceTokenizer.train(
            filter(None, sentences), config.vocab_size, config.model_type,
            config.character_coverage, symbols, config.normalization,
        )  # fmt: skip
        if tokenizer.vocab_size < config.vocab_size:
            say(f"The text has {tokenizer.vocab_size:,} different subwords.")
        return tokenizer.model

    try:
        if config.joint:
            return [train(itertools.chain.from_iterable(pairs()))]
        return [train(pair[side] for pair in pairs()) for side in (0, 1)]
    except VocabularySizeError as error:
        if not may_grow:
            raise
        say(f"The characters of the text alone need {error.smallest:,} subwords.")
        size = error.smallest + config.vocab_size // 2  # leaves room for words
        config = dataclasses.replace(config, vocab_size=size)
        return _train_tokenizers(config, data, corpus, may_grow)
