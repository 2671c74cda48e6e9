"""BLEU and chrF of translations, by sacreBLEU."""

import dataclasses
from collections.abc import Sequence

import sacrebleu


@dataclasses.dataclass(frozen=True)
class Scores:
    """Corpus metrics, with the signatures that make them comparable (Post 2018).

    Attributes:
        bleu: BLEU of raw text, 0 to 100 (Papineni et al. 2002).
        chrf: chrF2, 0 to 100 (Popović 2015).
        signature: sacreBLEU's signature of `bleu`.
        chrf_signature: sacreBLEU's signature of `chrf`.
        sentences: Number of sentences.
        tokens: Number of tokens in the translations, as sacreBLEU's tokenizer counts them.
        length_ratio: That number over the number of tokens in the references.
    """

    bleu: float
    chrf: float
    signature: str
    chrf_signature: str
    sentences: int
    tokens: int
    length_ratio: float


def bleu_signature() -> str:
    """sacreBLEU's signature of the BLEU that `score` computes, with the version installed."""
    bleu = sacrebleu.BLEU()
    bleu.corpus_score(["one"], [["one"]])  # before, it knows no number of references
    return str(bleu.get_signature())


def score(translations: Sequence[str], references: Sequence[str]) -> Scores:
    """Computes BLEU and chrF of translations against one reference each.

    Args:
        translations: Translated sentences, at least one.
        references: The reference of each.

    Raises:
        TypeError: If either is a str.
        ValueError: If the lengths differ, or there is nothing to score.
    """
    for name, texts in (("translations", translations), ("references", references)):
        if isinstance(texts, str):  # Its characters would be scored as sentences.
            raise TypeError(f"{name} must be a list of str, received a str; give [text]")
    if len(translations) != len(references):
        raise ValueError(
            f"{len(translations)} translations cannot be scored against "
            f"{len(references)} references; give one for each."
        )
    if not translations:
        raise ValueError("there is no translation to score; give at least one.")
    bleu, chrf = sacrebleu.BLEU(), sacrebleu.CHRF()
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
