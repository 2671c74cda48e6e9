"""Scores of translations, by sacreBLEU."""

import dataclasses

import sacrebleu


@dataclasses.dataclass(frozen=True)
class Scores:
    """Corpus scores, with the signatures that make them comparable (Post 2018).

    Attributes:
        bleu: float, 0 to 100 (Papineni et al. 2002), on raw text.
        chrf: float, 0 to 100, chrF2 (Popović 2015).
        signature, chrf_signature: str, sacreBLEU's own.
        sentences: int.
        tokens: int, of the translations, as sacreBLEU's tokenizer counts them.
    """

    bleu: float
    chrf: float
    signature: str
    chrf_signature: str
    sentences: int
    tokens: int


def score(translations, references):
    """Scores translations against one reference each.

    Args:
        translations, references: sequences of str, of equal length and not empty.

    Returns:
        `Scores`.

    Raises:
        ValueError: the lengths differ, or there is nothing to score.
    """
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
    )
