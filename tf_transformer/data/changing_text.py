"""Token ids of a text that changes from epoch to epoch, by noise and practice with marks."""

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np

from tf_transformer.data.mark_practice import practise_marks
from tf_transformer.data.marks import Marks
from tf_transformer.data.noise import add_noise
from tf_transformer.data.text import SentencePairs
from tf_transformer.data.tokenized_text import TokenizedText
from tf_transformer.data.word_links import WordLinks
from tf_transformer.tokenizers import GraphTokenizer


@dataclasses.dataclass(frozen=True)
class ChangingText:
    """The token ids of a text in an epoch; see `TokenBatches.from_text` for the arguments."""

    unchanged: TokenizedText
    pairs: SentencePairs
    tokenizers: tuple[GraphTokenizer, GraphTokenizer]
    max_length: int
    seed: int
    source_noise: float
    mark_practice: float
    marks: Marks | None

    def __call__(self, epoch: int) -> TokenizedText:
        # The order is seeded with (seed, epoch), so the changes need a different seed.
        seed = (self.seed, epoch, 1)
        arguments = self.pairs, *self.tokenizers, self.max_length, self._change, seed
        return self.unchanged.changed(*arguments)

    @functools.cached_property
    def _links(self) -> WordLinks:
        return WordLinks.learn(self.pairs)

    def _change(
        self, pairs: Sequence[tuple[str, str]], random: np.random.Generator
    ) -> list[tuple[str, str]]:
        if self.mark_practice and self.marks:
            symbols = self.marks.symbols
            pairs = practise_marks(pairs, self.mark_practice, random, self._links, symbols)
        if not self.source_noise:
            return pairs
        sources, targets = zip(*pairs, strict=True)
        return list(zip(add_noise(sources, self.source_noise, random), targets, strict=True))
