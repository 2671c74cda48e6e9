"""The data of a run: corpus, tokenizers and batches."""

import dataclasses
import itertools
import json
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from tf_transformer.config import DataConfig, RunConfig, TokenizerConfig
from tf_transformer.data.augmentation import Augmentation
from tf_transformer.data.batching import TokenBatches
from tf_transformer.data.corpus import load_corpus
from tf_transformer.data.held_out import Remainder
from tf_transformer.data.parallel import Corpus
from tf_transformer.inference.ordered import num_cores
from tf_transformer.models.architectures import with_tokenizers
from tf_transformer.runs.recipe import Facts, choose, with_choices
from tf_transformer.runs.restore import restore_tokenizers
from tf_transformer.runs.run_directory import RunDirectory, say
from tf_transformer.settings import flag
from tf_transformer.tokenizers.sentencepiece import SentencePieceTokenizer, VocabularySizeError
from tf_transformer.training.distribution import Workers

Sentences = Callable[[], Iterable[str]]  # called again where they are needed again


class RunData(NamedTuple):
    """What a run learns from.

    Attributes:
        corpus: The sentences.
        source_tokenizer: Tokenizer of the source.
        target_tokenizer: Tokenizer of the target; the same where the vocabulary is joint.
        batches: The training batches.
        validation: The validation batches.
        seconds: What it took to tokenize and batch.
    """

    corpus: Corpus
    source_tokenizer: SentencePieceTokenizer
    target_tokenizer: SentencePieceTokenizer
    batches: TokenBatches
    validation: TokenBatches
    seconds: float

    @property
    def tokenizers(self) -> tuple[SentencePieceTokenizer, SentencePieceTokenizer]:
        """Those of source and target."""
        return self.source_tokenizer, self.target_tokenizer

    @property
    def description(self) -> str:
        """How much there is, in a few lines."""
        corpus, batches, units = self.corpus, self.batches, f"{self.corpus.unit}s"
        lines = [
            f"{len(text) - part.num_too_long:,} {name} {units} of {corpus.name}; dropped: "
            f"{text.num_blank:,} blank, {part.num_too_long:,} too long."
            for name, text, part in (
                ("training", corpus.train, batches),
                ("validation", corpus.validation, self.validation),
            )
        ]
        rate = len(corpus.train) / self.seconds
        lines.append(f"Tokenized and batched in {self.seconds:.1f} s, {rate:,.0f} {units}/s.")
        lines.append(
            f"{len(batches):,} batches an epoch, {batches.num_target_tokens:,} target tokens, "
            f"{batches.padding_fraction:.1%} padding."
        )
        return "\n".join(lines)


def prepare_data(
    config: RunConfig, run: RunDirectory, workers: Workers, resume: bool
) -> tuple[RunConfig, RunData]:
    """Reads, tokenizes and batches the corpus of a run.

    Args:
        config: The configuration of the run.
        run: Its directory, whose tokenizers a resumed run has.
        workers: The chief trains the tokenizers, and every worker gets the chief's.
        resume: Whether the run is resumed.

    Returns:
        The complete configuration, with what the recipe chose and the sizes of its vocabularies,
        and the data.

    Raises:
        InputError: With one line that says what to do.
    """
    corpus = load_corpus(config.data)
    if workers.is_chief:
        for note in corpus.notes:
            say(note)
        if isinstance(corpus.train, Remainder):
            say(_held_out_line(config.data, corpus))
    if resume:
        tokenizers = restore_tokenizers(run)
    else:
        may_differ = config.tokenizer.vocab_size is None
        config = _completed(config, corpus, workers)
        tokenizers = _train_tokenizers(config.tokenizer, corpus, workers, may_differ)
        config = _with_vocab_size(config, *tokenizers)
    config = dataclasses.replace(config, model=with_tokenizers(config.model, *tokenizers))
    began = time.monotonic()
    options = {"batch_tokens": config.data.batch_tokens, "max_length": config.data.max_length}
    batches = TokenBatches.from_text(
        corpus.train,
        *tokenizers,
        seed=config.training.seed,
        cache_dir=config.data.data_cache,
        augmentation=Augmentation(config.data.source_noise),
        **options,
    )
    validation = TokenBatches.from_text(corpus.validation, *tokenizers, **options)
    return config, RunData(corpus, *tokenizers, batches, validation, time.monotonic() - began)


def _held_out_line(config: DataConfig, corpus: Corpus) -> str:
    held_out, same_source = len(corpus.validation), corpus.train.num_same_source
    total = len(corpus.train) + held_out + same_source
    same = "with the same sources" if corpus.unit == "pair" else "that repeat them"
    dropped = f" and dropped {same_source:,} {same}" if same_source else ""
    options = " and ".join(map(flag, config.VALIDATION_FILES[config.corpus]))
    return (
        f"Held out {held_out:,} of {total:,} {corpus.unit}s for validation{dropped}; "
        f"give {options} to choose them."
    )


def _train_tokenizers(
    config: TokenizerConfig,
    corpus: Corpus,
    workers: Workers,
    may_differ: bool,
) -> tuple[SentencePieceTokenizer, SentencePieceTokenizer]:
    """Trains them on the chief, and gives every worker the chief's.

    `may_differ` says whether another size may be taken where that of the configuration is not
    possible.
    """
    text = corpus.train
    # Of text alone the sources are empty.
    sides: dict[str, Sentences] = {
        "text": lambda: filter(None, itertools.chain.from_iterable(text))
    }
    if not config.joint:
        sides = {
            "source text": lambda: (source for source, _ in text),
            "target text": lambda: (target for _, target in text),
        }
    if workers.is_chief:
        units = "sentence pairs" if corpus.unit == "pair" else "sentences"
        say(f"Training a tokenizer of {config.vocab_size:,} subwords on {len(text):,} {units}.")
    trained = []
    for name, sentences in sides.items():
        content = b""
        if workers.is_chief:
            content = _train_tokenizer(config, may_differ, sentences, name).model
        trained.append(SentencePieceTokenizer(workers.broadcast(content)))
    return trained[0], trained[-1]


def _completed(config: RunConfig, corpus: Corpus, workers: Workers) -> RunConfig:
    """The configuration with the choices of the recipe, those of the chief."""
    facts = Facts.of(config, corpus, num_cores() * workers.count, workers.num_gpus)
    # The machines of other workers may have more cores.
    content = json.dumps([str(facts), choose(config, facts)]).encode()
    chosen_for, choices = json.loads(workers.broadcast(content))
    return with_choices(config, choices, chosen_for)


def _train_tokenizer(
    config: TokenizerConfig, may_differ: bool, sentences: Sentences, name: str
) -> SentencePieceTokenizer:
    """Trains one, of another size where that is not possible and it may differ."""
    try:
        return SentencePieceTokenizer.train(
            sentences(), config.vocab_size, config.model_type, config.character_coverage,
            (config.user_symbols or "").split(),
        )  # fmt: skip
    except VocabularySizeError as error:
        if not may_differ:
            raise
        possible, reason = error.nearest, f"The {name} allows at most {error.nearest:,} subwords"
        if error.nearest > config.vocab_size:
            possible += config.vocab_size // 2  # words need more than characters
            reason = f"The characters of the {name} alone need {error.nearest:,} subwords"
        say(f"{reason}: training a tokenizer of {possible:,}.")
    config = dataclasses.replace(config, vocab_size=possible)
    return _train_tokenizer(config, may_differ, sentences, name)


def _with_vocab_size(
    config: RunConfig,
    source_tokenizer: SentencePieceTokenizer,
    target_tokenizer: SentencePieceTokenizer,
) -> RunConfig:
    """The configuration that trains these tokenizers again."""
    sizes = {source_tokenizer.vocab_size, target_tokenizer.vocab_size}
    # Only a default may have given two sizes, and gives them again.
    vocab_size = sizes.pop() if len(sizes) == 1 else None
    if vocab_size == config.tokenizer.vocab_size:
        return config
    tokenizer = dataclasses.replace(config.tokenizer, vocab_size=vocab_size)
    notes, key = dict(config.chosen), "tokenizer.vocab_size"
    if vocab_size is None:
        notes.pop(key, None)
    elif key in notes:
        smaller = vocab_size < config.tokenizer.vocab_size
        notes[key] = "as many as the text allows" if smaller else "the text has so many characters"
    return dataclasses.replace(config, tokenizer=tokenizer, chosen=notes)
