"""Training text that differs a little in each epoch: subword regularisation and noise."""

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np

from tf_transformer.data.noise import SourceNoise
from tf_transformer.data.tokenized_text import (
    TokenizedText,
    Tokenizer,
    chunks_of,
    encode_pairs,
    fits,
)


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
        source_noise: Probability of noise in a source sentence, see `SourceNoise`.

    Raises:
        ValueError: If a probability is not from 0 to 1.
    """

    bpe_dropout: float = 0.0
    source_noise: float = 0.0

    def __post_init__(self) -> None:
        """Checks the probabilities."""
        for name, value in dataclasses.asdict(self).items():
            if not 0 <= value <= 1:
                raise ValueError(f"{name} must be from 0 to 1; received {name}={value}.")

    def __bool__(self) -> bool:
        """Whether it changes anything."""
        return self.bpe_dropout > 0 or self.source_noise > 0

    def tokenize(
        self,
        parallel_text: Iterable[tuple[str, str]],
        plain: TokenizedText,
        source_tokenizer: SamplingTokenizer,
        target_tokenizer: SamplingTokenizer,
        max_length: int,
        seed: int,
        epoch: int,
    ) -> TokenizedText:
        """Tokenizes the text of one epoch; the ids are a function of seed and epoch.

        It has the pairs of `plain`, in their order: a pair that would become too long stays as
        it is.

        Args:
            parallel_text: The sentence pairs.
            plain: Their ids without augmentation, by `TokenizedText.build` with the same
                tokenizers and `max_length`.
            source_tokenizer: Tokenizer of the source sentences.
            target_tokenizer: Tokenizer of the target sentences.
            max_length: Most tokens of a sentence, the end included.
            seed: Seed of the run.
            epoch: Number of the epoch, from 0.
        """
        random = np.random.default_rng((seed, epoch, 1))  # (seed, epoch) is that of the order
        add_noise = SourceNoise(self.source_noise, random)

        def sample(tokenizer: SamplingTokenizer, texts: list[str]) -> list[list[int]]:
            return tokenizer.sample(texts, self.bpe_dropout, seed=int(random.integers(2**32)))

        def kept(chunk: list[tuple[str, str]]) -> list[tuple[str, str]]:
            """The pairs that are in `plain`."""
            if not plain.num_too_long:
                return chunk
            ids = encode_pairs(chunk, source_tokenizer, target_tokenizer)
            return [texts for texts, pair in zip(chunk, ids, strict=True) if fits(pair, max_length)]

        def changed(chunk, as_is):
            sources, targets = ([texts[side] for texts in chunk] for side in (0, 1))
            noisy = add_noise(sources)
            if self.bpe_dropout:
                source_ids = sample(source_tokenizer, noisy)
                return zip(source_ids, sample(target_tokenizer, targets), strict=True)
            # Only sentences with noise have other ids.
            is_new = [text != source for text, source in zip(noisy, sources, strict=True)]
            new = iter(source_tokenizer.encode(list(itertools.compress(noisy, is_new))))
            return [
                (next(new), pair[1]) if its_new else pair
                for pair, its_new in zip(as_is, is_new, strict=True)
            ]

        def pairs():
            start = 0
            for chunk in map(kept, chunks_of(parallel_text)):
                numbers = range(start, start + len(chunk))
                as_is = [(plain.source(number), plain.target(number)) for number in numbers]
                for pair, other in zip(as_is, changed(chunk, as_is), strict=True):
                    yield other if fits(other, max_length) else pair
                start += len(chunk)

        vocab_sizes = (source_tokenizer.vocab_size, target_tokenizer.vocab_size)
        return TokenizedText.of_pairs(pairs(), vocab_sizes)
