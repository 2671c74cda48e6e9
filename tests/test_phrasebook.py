"""Tests of the phrasebook corpus."""

import re

import pytest

from tf_transformer.data.phrasebook import phrasebook
from tf_transformer.data.text import DataError


@pytest.fixture(scope="module")
def corpus():
    return phrasebook()


def pairs_of(corpus):
    return [*corpus.train, *corpus.validation, *corpus.test]


def test_the_corpus_is_the_one_that_the_grammar_gave(corpus):
    assert corpus.name == "phrasebook"
    parts = (corpus.train, corpus.validation, corpus.test)
    assert [len(part) for part in parts] == [20_000, 500, 500]
    assert next(iter(corpus.train)) == (
        "Guten Abend, Anna, wie geht es dir?", "Good evening, Anna, how are you?",
    )  # fmt: skip
    for side in zip(*pairs_of(corpus), strict=True):
        assert len(side) == len(set(side)) == 21_000


def test_a_smaller_corpus_has_the_first_pairs_of_each_part(corpus):
    small = phrasebook(10, 5, 0)
    assert list(small.train) == list(corpus.train)[:10]
    assert list(small.validation) == list(corpus.validation)[:5] and small.test is None
    with pytest.raises(DataError, match="20001 pairs are asked for where the phrasebook has 20000"):
        phrasebook(20_001)


def test_every_held_out_word_occurs_often_in_training(corpus):
    for number in (0, 1):
        seen = {}
        for pair in corpus.train:
            for word in re.findall(r"[\w'-]+", pair[number].lower()):
                seen[word] = seen.get(word, 0) + 1
        for pair in [*corpus.validation, *corpus.test]:
            for word in re.findall(r"[\w'-]+", pair[number].lower()):
                assert seen.get(word, 0) >= 10, word


@pytest.mark.parametrize(
    ("german", "english"),
    [  # Whatever is like this in German must be like that in English.
        (r"^Morgen trinkt .+\.$", r"^Tomorrow .+ will drink .+\.$"),  # inversion
        (r"^Ich muss .+(?<!nicht) anrufen\.$", r"^I have to call .+\.$"),  # infinitive at the end
        (r", weil (er|sie|ich) müde (ist|bin)\.$", r" because (he|she|I) (is|am) tired\.$"),
        (r"^(Trinkt|Isst|Kauft) sie (oft|jede) .+\?$", r"^Does she (often )?(drink|eat|buy|shop) "),
        (r"^Könnten Sie bitte .+ aufmachen\?$", r"^Could you please open .+\?$"),
        (r" (gefällt|gefallen) meiner Schwester\.$", r"^My sister likes "),  # roles change sides
    ],
)
def test_phenomenon_is_covered(corpus, german, english):
    found = [pair for pair in pairs_of(corpus) if re.search(german, pair[0])]
    assert found
    assert [pair for pair in found if not re.search(english, pair[1])] == []
