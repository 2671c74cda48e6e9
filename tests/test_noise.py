"""Tests of noise: sentences of any script stay readable, and errors are as many as asked for."""

import itertools
import re
import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tf_transformer.data.noise import (
    add_noise,
    has_dotless_i,
    lower_case,
    robustness_variants,
    upper_case,
    with_typos,
    without_final_punctuation,
)


def typos(text, rate=1.0, seed=0):
    return with_typos(text, np.random.default_rng(seed), rate)


@pytest.mark.parametrize(
    ("text", "upper", "lower"),
    [
        ("", "", ""),
        ("Straße", "STRASSE", "straße"),
        ("İstanbul", "İSTANBUL", "istanbul"),
        ("%ProductName $(Arg) b2B f(x) Ab",
         "%ProductName $(Arg) b2B f(x) AB", "%ProductName $(Arg) b2B f(x) ab"),
        ("ﬁne ΟΔΟΣ 1 😀", "FINE ΟΔΟΣ 1 😀", "ﬁne οδος 1 😀"),
        ("你好。 مرحبا؟", "你好。 مرحبا؟", "你好。 مرحبا؟"),
        ("Привет", "ПРИВЕТ", "привет"),
    ],
)  # fmt: skip
def test_case(text, upper, lower):
    assert (upper_case(text), lower_case(text)) == (upper, lower)


# What follows the bar goes.
FINAL = [
    "", "A dog runs¦.", "A dog runs¦ . ", "Really¦?!", "« Un chien¦ !»", "他跑了¦。", "هل يركض¦؟",
    "कुत्ता दौड़ता है¦।", "A dog (e.g. a poodle) runs¦...", "It grew by 5 %¦.", "He learns C#¦.",
    "Open $(ARG1)¦.", "Open $(ARG1)", "Open (it¦)",
    # Nothing but punctuation stays, white space with it.
    "...", " ?! ", "<BT> ?", " ",
]  # fmt: skip


@pytest.mark.parametrize("marked", FINAL)
def test_final_punctuation(marked):
    kept, _, _ = marked.partition("¦")
    assert without_final_punctuation(marked.replace("¦", "")) == kept


def test_case_of_turkish():
    assert upper_case("sil, kaydı", dotless_i=True) == "SİL, KAYDI"
    assert lower_case("SİL, KAYDI", dotless_i=True) == "sil, kaydı"
    turkish = ["Kaydı sil", "Tamam", "İptal", "Sil"]
    assert has_dotless_i(turkish) and not has_dotless_i([*turkish, *["I will"] * 4])
    assert has_dotless_i([unicodedata.normalize("NFD", text) for text in turkish])
    assert lower_case("SI\u0307L", dotless_i=True) == "sil"
    assert robustness_variants(turkish)["upper case"] == ["KAYDI SİL", "TAMAM", "İPTAL", "SİL"]
    lower = [add_noise(["KAYDI SİL"], 1.0, np.random.default_rng(seed))[0] for seed in range(30)]
    assert any(text[0] == "k" for text in lower) and not any("\u0307" in text for text in lower)


def test_text_that_looks_the_same():
    """Decomposed letters, and characters without width, but not in markup."""
    variants = robustness_variants(["Größeren %PRODUCTNAME"])
    assert variants["decomposed accents (NFD)"] == ["Gro\u0308ßeren %PRODUCTNAME"]
    assert variants["soft hyphens"] == ["Grö\u00adßeren %PRODUCTNAME"]
    assert variants["zero-width spaces"] == ["Grö\u200bßeren %PRODUCTNAME"]


TAGS = [
    "%PRODUCTNAME", "$(ARG1)", "%1$s", "v2beta", "#anker", "f(xyz)", "<BT>", ">>deu<<", "<2DEU>",
    "de_DE", "__Quelle__", "[NEWS]", "@Anna", "https://A.org/B?",
]  # fmt: skip


@pytest.mark.parametrize("tag", TAGS)
def test_tags_have_no_noise(tag):
    """Whatever happens to the words around it."""
    for text in (f"{tag} Ein Hund.", f"Ein Hund {tag}", f"Ein {tag} Hund."):
        made = [add_noise([text], 1.0, np.random.default_rng(seed))[0] for seed in range(40)]
        assert any(noisy != text for noisy in made)
        made += [variant for [variant] in robustness_variants([text]).values()]
        assert {noisy.split().index(tag) for noisy in made} == {text.split().index(tag)}


@pytest.mark.parametrize("text", ["größer", "Привет", "你好世界", "مرحبا", "καλημέρα", "ǅabc"])
def test_a_word_of_any_script_gets_exactly_one_error(text):
    # Two neighbours are swapped, or one is omitted, doubled or replaced by a letter of the text.
    expected = {
        text[:i] + changed + text[i + 2 :]
        for i, (a, b) in enumerate(itertools.pairwise(text))
        for changed in (b + a, b, a + a + b, *(letter + b for letter in text))
    }
    results = {typos(text, seed=seed) for seed in range(200)}
    assert results <= expected
    assert {len(result) - len(text) for result in results} == {-1, 0, 1}


def test_words_without_three_letters_have_no_errors():
    short = "a bc 12345 a_b_c 1a2b3c 👩\u200d👧"
    assert typos(short) == short


@given(
    text=st.text(st.characters(exclude_categories=["Cs"]), max_size=40),
    rate=st.floats(0, 1),
    seed=st.integers(0, 2**31),
)
def test_typos_are_made_of_letters_and_keep_everything_else(text, rate, seed):
    def others(text):
        return [character for character in text if not character.isalnum()]

    result = typos(text, rate, seed)
    assert others(result) == others(text)
    assert set(result) <= set(text)
    assert typos(text, rate, seed) == result
    assert typos(text, 0.0, seed) == text
    # One error a word at most.
    assert abs(len(result) - len(text)) <= len(re.findall(r"[^\W\d_]{3,}", text))


SENTENCES = [f"The Dog number {number} runs across the Street." for number in range(2000)]


@pytest.mark.parametrize("probability", [0.0, 0.1, 1.0])
def test_noise_is_as_frequent_as_documented(probability):
    noisy, again, other = (
        add_noise(SENTENCES, probability, np.random.default_rng(seed)) for seed in (0, 0, 1)
    )
    assert noisy == again and (noisy == other) == (probability == 0)
    # Half as likely as another kind of noise is a typing error in each of seven words.
    changed = np.mean([a != b for a, b in zip(SENTENCES, noisy, strict=True)])
    expected = 1 - (1 - probability) * (1 - probability / 2) ** 7
    assert changed == pytest.approx(expected, abs=0.03)
    for kind in (str.islower, lambda text: not text.endswith(".")):
        assert np.mean(list(map(kind, noisy))) == pytest.approx(probability / 2, abs=0.03)
    words, given = (
        " ".join(texts).lower().replace(".", "").split() for texts in (noisy, SENTENCES)
    )
    mistyped = [a != b for a, b in zip(words, given, strict=True) if not b.isdigit()]
    # A few errors swap equal letters, or replace a letter by itself.
    assert 0.9 * probability / 2 <= np.mean(mistyped) <= 1.1 * probability / 2


def test_the_variants_are_the_same_each_time():
    texts = ["Ein großer Hund.", "", "...", "Die Katze läuft über das nasse Dach!"] * 20
    variants = robustness_variants(texts)
    assert variants == robustness_variants(texts) != robustness_variants(texts, seed=1)
    firsts = [found[0] for found in variants.values()]
    assert firsts[:3] == ["EIN GROSSER HUND.", "ein großer hund.", "Ein großer Hund"]
    mistyped = variants["5 % of words mistyped"]
    assert len(mistyped) == len(texts) and mistyped[1:3] == ["", "..."]
    assert 0 < sum(a != b for a, b in zip(mistyped, texts, strict=True)) < 40
