"""Tests of BLEU and chrF, against sacreBLEU's own command line."""

import dataclasses
import json
import math
import random
import re
import unicodedata

import numpy as np
import pytest
import sacrebleu
from commands import run_python

from tf_transformer.evaluation import BLEU, LOSS, bleu_tokenizer, compare, corpus_score, signatures


def noisy_corpus():
    """References, and translations with words lost, swapped and in the wrong case."""
    generator = random.Random(1)
    words = ["the", "a", "house", "green", "don't", "runs,", "“quoted”", "3.5", "größer", "日本語"]
    references, translations = [], []
    for _ in range(40):
        reference = generator.choices(words, k=generator.randint(1, 14))
        translation = [word for word in reference if generator.random() > 0.15]
        if len(translation) > 3 and generator.random() < 0.3:
            translation[1], translation[2] = translation[2], translation[1]
        references.append(" ".join(reference) + ".")
        translations.append(" ".join(translation).capitalize())
    translations[7] = ""  # A translation may be empty.
    return translations, references


CORPORA = {
    "noisy": noisy_corpus(),
    "nothing right": (["x y z"], ["The cat sat on the mat."]),
    "identical": (["The cat sat on the mat.", "Ça va?"], ["The cat sat on the mat.", "Ça va?"]),
}


@pytest.mark.parametrize("name", CORPORA)
def test_scores_and_signatures_are_those_of_the_command_line(name, tmp_path):
    translations, references = CORPORA[name]
    for file, lines in (("hyp", translations), ("ref", references)):
        (tmp_path / file).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    options = ["ref", "-i", "hyp", "-m", "bleu", "chrf", "-w", "2"]
    bleu, chrf = json.loads(run_python("-m", "sacrebleu", *options, cwd=tmp_path))
    assert dataclasses.asdict(corpus_score(translations, references)) == {
        "bleu": bleu["score"],
        "chrf": chrf["score"],
        "signature": bleu["signature"],
        "chrf_signature": chrf["signature"],
        "sentences": len(references),
        "tokens": int(re.search(r"hyp_len = (\d+)", bleu["verbose_score"])[1]),
        "length_ratio": float(re.search(r"ratio = ([\d.]+)", bleu["verbose_score"])[1]),
    }
    expected = {"bleu": bleu["signature"], "chrf": chrf["signature"]}
    assert signatures(references) == expected


# Sentences, a translation of each with one error, and the tokenizers that BLEU may have for them.
SCRIPTS = {
    "Chinese": ("两只棕色的狗在雪地里玩耍。", "两只棕色的狗在草地里玩耍。", {"zh"}),
    "Chinese and Latin": ("我用Python写了一个小程序。", "我用Python写了两个小程序。", {"zh"}),
    "Japanese": ("二匹の茶色い犬が雪の中で遊んでいます。", "二匹の黒い犬が雪の中で遊んでいます。",
                 {"char", "ja-mecab"}),
    "Thai": ("สุนัขสีน้ำตาลสองตัวเล่นในหิมะ", "สุนัขสีดำสองตัวเล่นในหิมะ", {"char"}),
    "Arabic": ("يلعب كلبان بنيان كبيران في الثلج الأبيض", "يلعب كلبان بنيان صغيران في الثلج الأبيض",
               {"13a"}),
    "Korean": ("갈색 개 두 마리가 하얀 눈 속에서 놀고 있다",
               "갈색 개 세 마리가 하얀 눈 속에서 놀고 있다",
               {"13a"}),
}  # fmt: skip


@pytest.mark.parametrize("name", SCRIPTS)
def test_bleu_tells_good_from_bad_in_every_script(name):
    reference, translation, tokenizers = SCRIPTS[name]
    assert bleu_tokenizer([reference]) in tokenizers
    # The same characters in another order: junk, of the right script and length.
    junk = "".join(random.Random(0).sample(reference, len(reference)))
    good, bad = corpus_score([translation], [reference]), corpus_score([junk], [reference])
    assert good.bleu > 40 and bad.bleu < 20
    assert f"tok:{bleu_tokenizer([reference])}" in good.signature


def test_the_tokenizer_of_bleu_is_that_of_most_of_the_text():
    english = "Two dogs play in the snow, and one barks."
    assert bleu_tokenizer([english] * 9 + [SCRIPTS["Chinese"][0]]) == "13a"
    assert bleu_tokenizer([SCRIPTS["Chinese"][0]] * 9 + [english]) == "zh"
    assert bleu_tokenizer([]) == bleu_tokenizer(["", "!?"]) == "13a"
    assert "tok:intl" in corpus_score([english], [english], "intl").signature


@pytest.mark.parametrize(
    ("translations", "references", "error"),
    [(["a"] * 2, ["a"] * 3, ValueError), ([], [], ValueError), ("ab", ["a", "b"], TypeError),
     (["a", "b"], "ab", TypeError)],
)  # fmt: skip
def test_texts_that_do_not_pair_up_are_an_error(translations, references, error):
    with pytest.raises(error, match="translations"):
        corpus_score(translations, references)


def test_the_p_value_is_that_of_the_paired_bootstrap_by_its_definition():
    second, references = (texts[:12] for texts in noisy_corpus())
    first = [text[:-6] if number in (1, 4) else text for number, text in enumerate(second)]
    bleu = sacrebleu.BLEU(tokenize=bleu_tokenizer(references))

    def scores_of(rows):
        texts = ([texts[row] for row in rows] for texts in (first, second, references))
        one, two, of = texts
        return [bleu.corpus_score(system, [of]).score for system in (one, two)]

    difference = abs(np.subtract(*scores_of(range(12))))
    samples = np.random.default_rng(12345).choice(12, size=(1000, 12))
    differences = np.array([abs(np.subtract(*scores_of(rows))) for rows in samples])
    # How often a sample differs by more, once the mean is what chance alone makes.
    is_more = differences - differences.mean() > difference
    found, again = (compare(first, second, references) for _ in range(2))
    assert found == again
    assert found[0].p_value == pytest.approx((is_more.sum() + 1) / 1001)
    assert 0.001 < found[0].p_value < 0.5
    assert "bs:1000|seed:12345" in found[0].signature
    for row, name in zip(found, ("bleu", "chrf"), strict=True):
        values = [getattr(corpus_score(texts, references), name) for texts in (first, second)]
        assert [row.first, row.second] == values


def test_a_system_does_not_differ_from_itself_and_one_sentence_shows_nothing():
    translations, references = noisy_corpus()
    for texts in ((translations, translations, references), (["a b c"], ["a x c"], ["a b c"])):
        assert [row.p_value for row in compare(*texts)] == [1.0, 1.0]


@pytest.mark.parametrize(("metric", "values"), [(BLEU, (math.nan, 1, 2)), (LOSS, (math.nan, 2, 1))])
def test_a_better_value_has_a_higher_rank_and_nan_the_lowest(metric, values):
    ranks = [metric.rank(value) for value in values]
    assert ranks == sorted(ranks) and len({*ranks}) == 3


@pytest.mark.parametrize("spoil", ["NFD", "\u00ad", "\u200b"])
def test_references_that_look_the_same_score_the_same(spoil):
    """Translations have composed letters, and no characters without width."""
    texts = ["Schöne Grüße aus Köln für Jürgen.", "Die Äpfel und Öfen sind schön."]
    if spoil == "NFD":
        references = [unicodedata.normalize("NFD", text) for text in texts]
    else:
        references = [text.replace("ö", f"ö{spoil}") for text in texts]
    assert references != texts
    assert corpus_score(texts, references).bleu == corpus_score(texts, references).chrf == 100
    assert [row.first for row in compare(texts, texts, references)] == [100, 100]
