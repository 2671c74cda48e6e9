"""Training text that differs a little in each epoch: subword regularisation and noise."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np

from tf_transformer.data.noise import SourceNoise
from tf_transformer.data.tokenized_text import TokenizedText, Tokenizer, chunks_of, encode_pairs


class SamplingTokenizer(Tokenizer, Protocol):
    """A tokenizer that can split one text in several ways."""

    def sample(self, texts: Sequence[str], dropout: float, seed: int) -> list[list[int]]:
        """Returns the token ids of one segmentation of each text, a function of the seed."""


@dataclasses.dataclass(frozen=True)
class Augmentation:
    """How an epoch's token ids differ from those of the text as it is.

    Attributes:
        bpe_dropout: Probability that a merge of BPE is left out, on both sides (Provilkov et al.
            2020, section 3).
        source_noise: Probability that a source sentence gets noise, see `SourceNoise`.
    """

    bpe_dropout: float = 0.0
    source_noise: float = 0.0

    def __bool__(self) -> bool:
        """Whether it changes anything."""
        return self.bpe_dropout > 0 or self.source_noise > 0

    def tokenize(
        self,
        parallel_text: Iterable[tuple[str, str]],
        source_tokenizer: SamplingTokenizer,
        target_tokenizer: SamplingTokenizer,
        max_length: int,
        seed: int,
        epoch: int,
    ) -> TokenizedText:
        """Tokenizes the text of one epoch; the ids are a function of seed and epoch.

        It has the pairs of `TokenizedText.build`, in their order: a pair that would become too
        long stays as it is.

        Args:
            parallel_text: The sentence pairs.
            source_tokenizer: Tokenizer of the source sentences.
            target_tokenizer: Tokenizer of the target sentences.
            max_length: Most tokens of a sentence, the end included.
            seed: Seed of the run.
            epoch: Number of the epoch, from 0.
        """
        random = np.random.default_rng((seed, epoch, 1))  # (seed, epoch) is that of the order
        add_noise = SourceNoise(self.source_noise, random)

        def sample(tokenizer: SamplingTokenizer, texts: Sequence[str]) -> list[list[int]]:
            return tokenizer.sample(texts, self.bpe_dropout, seed=int(random.integers(2**32)))

        def sample_sources(texts: Sequence[str]) -> list[list[int]]:
            return sample(source_tokenizer, add_noise(texts))

        def sample_targets(texts: Sequence[str]) -> list[list[int]]:
            return sample(target_tokenizer, texts)

        def pairs():
            for chunk in chunks_of(parallel_text):
                plain = encode_pairs(chunk, source_tokenizer.encode, target_tokenizer.encode)
                changed = encode_pairs(chunk, sample_sources, sample_targets)
                for pair, other in zip(plain, changed, strict=True):
                    if max(map(len, pair)) < max_length:
                        yield other if max(map(len, other)) < max_length else pair

        vocab_sizes = (source_tokenizer.vocab_size, target_tokenizer.vocab_size)
        return TokenizedText.of_pairs(pairs(), vocab_sizes)
