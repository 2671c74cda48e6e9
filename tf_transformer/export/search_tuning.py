"""Choice of a search on validation text."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tf_transformer.data.text import ParallelText
from tf_transformer.evaluation import BLEU, LOSS, Metric, corpus_score, signatures

DEFAULT_BEAM_SIZE = 4  # and a penalty of 0.6: Vaswani et al. 2017, section 6.1
DEFAULT_LENGTH_PENALTY = 0.6
LENGTH_PENALTIES = tuple(6 * n / 10 for n in range(17))  # 0, 0.6, …, 9.6: a search takes up to 10
_FIRST_LENGTH_PENALTY = 1.2  # so a choice of 0 to 2.4 takes four beams at most
_MAX_PAIRS = 1000  # as many as a run holds out at most
_PAIRS_AT_A_TIME = 125  # the clock is read after each part


class SearchChoice(NamedTuple):
    """A search, and the scores by which it was chosen.

    Attributes:
        length_penalty: The penalty of the best beam, even for greedy search: n-best lists need it.
        scores: The `beam_size`, `length_penalty` and `score` of each search that was compared.
            Greedy search is the first and has the penalty None. Empty if nothing was compared.
        metric, signature: The metric of the scores (`"BLEU"` or `"chrF"`), sacreBLEU's signature.
        sentences: Number of sentences that were translated.
    """

    beam_size: int = DEFAULT_BEAM_SIZE
    length_penalty: float = DEFAULT_LENGTH_PENALTY
    scores: Sequence[Mapping[str, Any]] = ()
    metric: str = BLEU.label
    sentences: int = 0
    signature: str | None = None

    def __str__(self) -> str:
        """Return the choice and the scores in one line."""
        chosen = f"beam of {self.beam_size} with length penalty {self.length_penalty:g}"
        greedy, *beams = self.scores
        scores = ", ".join("{score:.2f} with {length_penalty:g}".format(**beam) for beam in beams)
        return (
            f"Search: {'greedy' if self.beam_size == 1 else chosen}. {self.metric} of "
            f"{self.sentences:,} validation sentences: greedy {greedy['score']:.2f}; "
            f"beam of {beams[0]['beam_size']}, by length penalty: {scores}."
        )


def choose_search(
    translator: Callable[..., list[str]],
    validation: ParallelText,
    beam_size: int = DEFAULT_BEAM_SIZE,
    max_seconds: float = 20.0,
    metric: Metric = BLEU,
) -> SearchChoice:
    """Choose greedy search, or a beam with one of `LENGTH_PENALTIES`, by BLEU or chrF.

    Greedy search, which is several times as fast, is chosen if no beam is better. The
    neighbours of the best penalty are tried, the larger one first, until none is better. Among
    penalties that are equally good, the one nearest to `DEFAULT_LENGTH_PENALTY` is chosen.

    Args:
        translator: A `Translator`; called with a list of str, `beam_size` and `length_penalty`.
        validation: Sentences and their translations, at least one pair. If there are more than
            1,000 pairs, a fixed sample from the whole text is used.
        max_seconds: Time limit of greedy search, after which no more sentences are used. Each beam
            takes two to four times as long as greedy search.
        metric: The metric of the run. BLEU replaces the loss, which does not depend on the search.

    Raises:
        ValueError: There is no pair, or `translator` cannot search with `beam_size`.
    """
    metric = BLEU if metric == LOSS else metric
    name = metric.label.lower()
    sources, targets, translations = [], [], []
    for part_sources, part_targets in _parts(validation, max_seconds):
        sources += part_sources
        targets += part_targets
        translations += translator(part_sources, beam_size=1)
    value = getattr(corpus_score(translations, targets), name)
    greedy = {"beam_size": 1, "length_penalty": None, "score": value}
    beams: dict[float, dict[str, Any]] = {}
    untried = {_FIRST_LENGTH_PENALTY}
    while untried:
        penalty = max(untried)
        translations = translator(sources, beam_size=beam_size, length_penalty=penalty)
        value = getattr(corpus_score(translations, targets), name)
        beams[penalty] = {"beam_size": beam_size, "length_penalty": penalty, "score": value}
        best = max(beams, key=lambda p: (beams[p]["score"], -abs(p - DEFAULT_LENGTH_PENALTY)))
        index = LENGTH_PENALTIES.index(best)
        untried = {*LENGTH_PENALTIES[max(0, index - 1) : index + 2]} - beams.keys()
    scores = [greedy, *(beams[penalty] for penalty in sorted(beams))]
    size = 1 if greedy["score"] >= beams[best]["score"] else beam_size
    facts = metric.label, len(sources), signatures(targets)[name]
    return SearchChoice(size, best, scores, *facts)


def _parts(validation: ParallelText, max_seconds: float) -> Iterator[tuple[list[str], list[str]]]:
    """Yield sources and targets of a sample, in parts that are each spread over the whole text.

    There is no further part once the time is over.
    """
    pairs, began = list(validation), time.monotonic()
    chosen = np.linspace(0, len(pairs), min(len(pairs), _MAX_PAIRS), endpoint=False).astype(int)
    num_parts = math.ceil(len(chosen) / _PAIRS_AT_A_TIME)
    for start in range(num_parts):
        sources, targets = zip(*(pairs[index] for index in chosen[start::num_parts]), strict=True)
        yield list(sources), list(targets)
        if time.monotonic() - began >= max_seconds:
            return
