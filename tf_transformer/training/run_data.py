"""The data of a run: corpus, tokenizers and batches."""

import dataclasses
import itertools
import json
import sys
import time
from collections.abc import Iterable
from typing import NamedTuple

from tf_transformer.config import RunConfig, TokenizerConfig
from tf_transformer.data.augmentation import Augmentation
from tf_transformer.data.batching import TokenBatches
from tf_transformer.data.corpus import load_corpus
from tf_transformer.data.parallel import Corpus
from tf_transformer.models.architectures import with_tokenizers
from tf_transformer.tokenizers.sentencepiece import SentencePieceTokenizer
from tf_transformer.training.distribution import Workers
from tf_transformer.training.recipe import Facts, complete
from tf_transformer.training.restore import restore_tokenizers
from tf_transformer.training.run_directory import RunDirectory


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
    def description(self) -> str:
        """How much there is, in a few lines."""
        corpus, batches = self.corpus, self.batches
        lines = [
            f"{len(text) - part.num_too_long:,} {name} pairs of {corpus.name}; dropped: "
            f"{text.num_blank:,} blank, {part.num_too_long:,} too long."
            for name, text, part in (
                ("training", corpus.train, batches),
                ("validation", corpus.validation, self.validation),
            )
        ]
        rate = len(corpus.train) / self.seconds
        lines.append(f"Tokenized and batched in {self.seconds:.1f} s, {rate:,.0f} pairs/s.")
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
    if resume:
        tokenizers = restore_tokenizers(run)
    else:
        config = _completed(config, corpus, workers)
        if workers.is_chief:
            print(
                f"Training a tokenizer of {config.tokenizer.vocab_size:,} subwords "
                f"on {len(corpus.train):,} sentence pairs.",
                file=sys.stderr,
                flush=True,
            )
        tokenizers = _train_tokenizers(config.tokenizer, corpus.train, workers)
    config = dataclasses.replace(config, model=with_tokenizers(config.model, *tokenizers))
    began = time.monotonic()
    options = {"batch_tokens": config.data.batch_tokens, "max_length": config.data.max_length}
    batches = TokenBatches.from_text(
        corpus.train,
        *tokenizers,
        seed=config.training.seed,
        cache_dir=config.data.data_cache,
        augmentation=Augmentation(config.tokenizer.bpe_dropout, config.data.source_noise),
        **options,
    )
    validation = TokenBatches.from_text(corpus.validation, *tokenizers, **options)
    return config, RunData(corpus, *tokenizers, batches, validation, time.monotonic() - began)


def _train_tokenizers(
    config: TokenizerConfig, text: Iterable[tuple[str, str]], workers: Workers
) -> tuple[SentencePieceTokenizer, SentencePieceTokenizer]:
    """Trains them on the chief, and gives every worker the chief's."""
    sides: list[Iterable[str]] = [itertools.chain.from_iterable(text)]
    if not config.joint:
        sides = [(source for source, _ in text), (target for _, target in text)]
    trained = []
    for side in sides:
        content = b""
        if workers.is_chief:
            tokenizer = SentencePieceTokenizer.train(side, config.vocab_size, config.model_type)
            content = tokenizer.model
        trained.append(SentencePieceTokenizer(workers.broadcast(content)))
    return trained[0], trained[-1]


def _completed(config: RunConfig, corpus: Corpus, workers: Workers) -> RunConfig:
    """The configuration with the choices of the recipe, those of the chief."""
    facts = Facts.of(config, corpus)
    # The machines of other workers may have more cores.
    tables = workers.broadcast(json.dumps(complete(config, facts).to_dict()).encode())
    return RunConfig.from_dict(json.loads(tables))
