"""Several texts as one: a tag in front of the sources of each, and the weights of a mixture."""

import dataclasses
import functools
import itertools
from collections.abc import Collection, Iterator
from typing import Any

from tf_transformer.data.lines import DataError
from tf_transformer.data.text import ChangedText, RowsOfEpoch, SentencePairs


@dataclasses.dataclass(frozen=True)
class TaggedText(ChangedText):
    """The pairs of a text with a tag in front of each source that is not empty."""

    tag: str

    def __iter__(self) -> Iterator[tuple[str, str]]:
        for source, target in self.text:
            yield f"{self.tag} {source}" if self.tag and source else source, target

    @functools.cached_property
    def fingerprint(self) -> str:
        """Identifier of the text and its tag."""
        return self.derived_fingerprint(self.text.fingerprint, self.tag)


@dataclasses.dataclass(frozen=True)
class Mixture(SentencePairs):
    """The pairs of several texts, one text after the other, and the share of each in an epoch.

    An epoch has as many pairs as all texts together. With weights, each text gives a fixed number
    of pairs to every epoch, in proportion to its weight. A text is shuffled and read to its end
    before it is shuffled and read again, however many epochs that takes, so its pairs are all used
    equally often. Which pairs are in an epoch depends only on the seed and the epoch.

    Attributes:
        texts: The texts.
        weights: A positive number for each text; None if every pair is in every epoch once.

    Example:
        >>> old = tt.ParallelText(("ja", "nein", "danke"), ("yes", "no", "thanks"))
        >>> new = tt.ParallelText(("tschüs",), ("bye",))
        >>> tt.Mixture((old, new), weights=(1, 1)).counts
        [2, 2]
    """

    texts: tuple[SentencePairs, ...]
    weights: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if any(isinstance(text, Mixture) and text.weights for text in self.texts):
            raise ValueError("a mixture with weights cannot be a part of another one.")
        weights = self.weights
        if weights is not None and (len(weights) != len(self.texts) or min(weights) <= 0):
            raise ValueError(f"weights are a positive number for each text; received {weights}.")

    @property
    def num_blank(self) -> int:
        """Number of pairs that the texts dropped because a side is blank."""
        return sum(text.num_blank for text in self.texts)

    def __len__(self) -> int:
        return sum(map(len, self.texts))

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return itertools.chain.from_iterable(self.texts)

    @functools.cached_property
    def fingerprint(self) -> str:
        """Identifier of all texts."""
        return self.derived_fingerprint(*(text.fingerprint for text in self.texts))

    def parts(self) -> list[SentencePairs]:
        return [part for text in self.texts for part in text.parts()]

    @property
    def counts(self) -> list[int]:
        """Numbers of pairs that the texts give to each epoch, at least one."""
        if self.weights is None:
            return list(map(len, self.texts))
        unit = len(self) / sum(self.weights)
        return [max(1, round(weight * unit)) for weight in self.weights]

    def rows_of_epoch(self, dropped: Collection[int], seed: int | None) -> RowsOfEpoch | None:
        import numpy as np  # text can be read and mixed without it

        ends = np.cumsum([0, *map(len, self.texts)])
        ends -= np.searchsorted(np.asarray(dropped, np.int64), ends)
        sizes = np.diff(ends)
        if not sizes.all():
            raise DataError(
                f"all pairs of corpus {sizes.argmin() + 1} have more tokens than max_length "
                f"allows; raise it, or omit the corpus"
            )
        if self.weights is None:
            return None
        if seed is None:
            raise ValueError("a mixture with weights needs a seed to choose its pairs; give one.")

        def rows(epoch: int) -> Any:
            parts = []
            for number, (size, count) in enumerate(zip(sizes, self.counts, strict=True)):
                # The pairs from `start` on of one shuffled pass after the other.
                first_pass, start = divmod(epoch * count, size)
                passes = range(first_pass, first_pass + -(-(start + count) // size))
                seeds = [(seed, number, each, 2) for each in passes]
                stream = [np.random.default_rng(s).permutation(size) for s in seeds]
                parts.append(ends[number] + np.concatenate(stream)[start : start + count])
            return np.concatenate(parts)

        return rows
