"""Training text that differs a little in each epoch, by noise."""

import dataclasses
import itertools
from collections.abc import Iterable

import numpy as np

from tf_transformer.data.noise import SourceNoise
from tf_transformer.data.tokenized_text import (
    TokenizedText,
    Tokenizer,
    chunks_of,
    encode_pairs,
    fits,
)


@dataclasses.dataclass(frozen=True)
class Augmentation:
    """How an epoch's token ids differ from those of the text as it is.

    Attributes:
        source_noise: Probability of noise in a source sentence, see `SourceNoise`.

    Raises:
        ValueError: If the probability is not from 0 to 1.
    """

    source_noise: float = 0.0

    def __post_init__(self) -> None:
        """Checks the probability."""
        value = self.source_noise
        if not 0 <= value <= 1:
            raise ValueError(f"source_noise must be from 0 to 1; received source_noise={value}.")

    def __bool__(self) -> bool:
        """Whether it changes anything."""
        return self.source_noise > 0

    def tokenize(
        self,
        parallel_text: Iterable[tuple[str, str]],
        plain: TokenizedText,
        source_tokenizer: Tokenizer,
        target_tokenizer: Tokenizer,
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

        def kept(chunk: list[tuple[str, str]]) -> list[tuple[str, str]]:
            """The pairs that are in `plain`."""
            if not plain.num_too_long:
                return chunk
            ids = encode_pairs(chunk, source_tokenizer, target_tokenizer)
            return [texts for texts, pair in zip(chunk, ids, strict=True) if fits(pair, max_length)]

        def changed(chunk, as_is):
            sources = [source for source, _ in chunk]
            noisy = add_noise(sources)
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
