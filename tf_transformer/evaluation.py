"""BLEU and chrF of translations by sacreBLEU, and the metrics that select a checkpoint."""

import dataclasses
import importlib.util
import itertools
import math
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import sacrebleu
from sacrebleu.significance import PairedTest

from tf_transformer.normalization import composed

_CHINESE = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f]")
_KANA = re.compile("[\u3040-\u30ff]")
# Thai, Lao, Tibetan, Burmese and Khmer.
_UNSPACED = re.compile("[\u0e00-\u109f\u1780-\u17ff]")


@dataclasses.dataclass(frozen=True)
class Scores:
    """Corpus metrics, with the signatures that make them comparable (Post 2018).

    Attributes:
        bleu: BLEU of raw text, 0 to 100, rounded to two decimals (Papineni et al. 2002).
        chrf: chrF2, 0 to 100, rounded to two decimals (Popović 2015).
        signature: sacreBLEU's signature of `bleu`.
        chrf_signature: sacreBLEU's signature of `chrf`.
        sentences: Number of sentences.
        tokens: Number of tokens in the translations, as sacreBLEU's tokenizer counts them.
        length_ratio: `tokens` divided by the number of tokens in the references, rounded to three
            decimals.
    """

    bleu: float
    chrf: float
    signature: str
    chrf_signature: str
    sentences: int
    tokens: int
    length_ratio: float

    def metrics(self, prefix: str = "") -> dict[str, float]:
        """Return `bleu` and `chrf` by their names after a prefix, as `signatures` does."""
        return {f"{prefix}bleu": self.bleu, f"{prefix}chrf": self.chrf}


class Comparison(NamedTuple):
    """Scores of two systems on one test set, and the probability that their order is chance.

    Attributes:
        metric: `"BLEU"` or `"chrF"`.
        signature: sacreBLEU's signature, with the seed and the number of resamples.
    """

    metric: str
    first: float
    second: float
    p_value: float
    signature: str


class Metric(NamedTuple):
    """A validation metric by which checkpoints are compared.

    Attributes:
        name: Its name in logs and checkpoints.
        label: Its name in messages, which show its values with `decimals` decimal places.
    """

    name: str
    label: str
    lower_is_better: bool = False
    decimals: int = 2

    def rank(self, value: float) -> float:
        """Return a number that is higher for a better value, and lowest for NaN."""
        if math.isnan(value):
            return -math.inf
        return -value if self.lower_is_better else value

    def text(self, value: float) -> str:
        """Return a value as messages show it."""
        return f"{value:.{self.decimals}f}"


BLEU = Metric("val_bleu", "BLEU")
CHRF = Metric("val_chrf", "chrF")
LOSS = Metric("val_loss", "loss", lower_is_better=True, decimals=3)


def bleu_tokenizer(texts: Iterable[str]) -> str:
    """Return the sacreBLEU tokenizer for the script of some texts.

    `13a` splits at spaces, so that BLEU would be 0 for text without them. Chinese has `zh`,
    Japanese `ja-mecab`, or `char` if MeCab is not installed. Thai, Lao, Tibetan, Burmese and Khmer
    have `char`, and all other scripts `13a`.
    """
    text = "".join(itertools.chain.from_iterable(text.split() for text in texts))
    chinese, kana, unspaced = (len(s.findall(text)) for s in (_CHINESE, _KANA, _UNSPACED))
    if 3 * (chinese + kana + unspaced) <= len(text):
        return "13a"
    if unspaced > chinese + kana:
        return "char"
    if 10 * kana < chinese:
        return "zh"
    has_mecab = all(map(importlib.util.find_spec, ("MeCab", "ipadic")))
    return "ja-mecab" if has_mecab else "char"


def signatures(references: Sequence[str], prefix: str = "") -> dict[str, str]:
    """Return sacreBLEU's signatures of the `bleu` and `chrf` of `corpus_score`, by name."""
    first = references[:1]
    scores = corpus_score(first, first, bleu_tokenizer(references))
    return {f"{prefix}bleu": scores.signature, f"{prefix}chrf": scores.chrf_signature}


def corpus_score(
    translations: Sequence[str], references: Sequence[str], tokenizer: str | None = None
) -> Scores:
    """Compute BLEU and chrF of translations against one reference each.

    Args:
        translations, references: Lists of the same length, with at least one text each. Letters
            are composed, and invisible characters do not count.
        tokenizer: sacreBLEU's tokenizer for BLEU; None means `bleu_tokenizer(references)`.

    Raises:
        TypeError: An argument is a str, whose characters would be scored as sentences.
        ValueError: The lengths differ, or there is nothing to score.

    Example:
        >>> translations = ["A dog runs.", "A cat sleeps."]
        >>> scores = tt.corpus_score(translations, ["A dog runs.", "The cat sleeps."])
        >>> scores.bleu, scores.chrf, scores.tokens
        (72.31, 83.63, 8)
    """
    if isinstance(translations, str) or isinstance(references, str):
        raise TypeError("translations and references must be lists of str, not a str; give [text]")
    if not len(translations) == len(references) > 0:
        raise ValueError(
            f"{len(translations)} translations cannot be scored against {len(references)} "
            f"references; give one for each, and at least one."
        )
    tokenizer = tokenizer or bleu_tokenizer(references)
    # A tokenizer writes composed letters, whatever the references have.
    translations, references = (list(map(composed, x)) for x in (translations, references))
    bleu, chrf = sacrebleu.BLEU(tokenize=tokenizer), sacrebleu.CHRF()
    bleu_score = bleu.corpus_score(translations, [references])
    chrf_score = chrf.corpus_score(translations, [references])
    return Scores(
        bleu=round(bleu_score.score, 2),
        chrf=round(chrf_score.score, 2),
        signature=str(bleu.get_signature()),
        chrf_signature=str(chrf.get_signature()),
        sentences=len(translations),
        tokens=bleu_score.sys_len,
        length_ratio=round(bleu_score.sys_len / max(1, bleu_score.ref_len), 3),
    )


def compare(
    first: Sequence[str], second: Sequence[str], references: Sequence[str]
) -> list[Comparison]:
    """Compare two systems by BLEU and chrF with sacreBLEU's paired bootstrap (Koehn 2004).

    The seed is fixed, so the same translations give the same result.

    Args:
        first, second: The translations of each system.
        references: A reference translation of each sentence.
    """
    first, second, references = (list(map(composed, x)) for x in (first, second, references))
    bleu = sacrebleu.BLEU(tokenize=bleu_tokenizer(references))
    metrics = {"BLEU": bleu, "chrF": sacrebleu.CHRF()}
    systems = [("first", first), ("second", second)]
    signatures, found = PairedTest(systems, metrics, [references], test_type="bs")()
    comparisons = []
    for label, name in zip(metrics, signatures, strict=True):
        one, two = found[name]
        # sacreBLEU takes the lack of any difference for certain, and also that of one sentence.
        p_value = 1.0 if one.score == two.score or len(references) < 2 else two.p_value
        scores = round(one.score, 2), round(two.score, 2)
        comparisons.append(Comparison(label, *scores, p_value, str(signatures[name])))
    return comparisons
