"""Tests of the phrasebook corpus."""

import os
import re
import subprocess
import sys

import pytest

from tf_transformer.data.parallel import DataError
from tf_transformer.data.phrasebook import phrasebook


def all_pairs(corpus):
    return [*corpus.train, *corpus.validation, *corpus.test]


@pytest.fixture(scope="module")
def corpus():
    return phrasebook()


@pytest.fixture(scope="module")
def many():
    """Much of what the grammar gives, as German to English."""
    return dict(all_pairs(phrasebook(99_000, 500, 500)))


def test_sizes_are_as_asked_and_no_sentence_occurs_twice(corpus):
    assert (corpus.name, len(corpus.train)) == ("phrasebook", 20_000)
    assert len(corpus.validation) == len(corpus.test) == 500
    for side in zip(*all_pairs(corpus), strict=True):
        assert len(side) == len(set(side)) == 21_000


def test_without_a_test_part():
    corpus = phrasebook(10, 5, 0)
    assert (len(corpus.train), len(corpus.validation), corpus.test) == (10, 5, None)


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_the_corpus_is_the_same_in_a_new_process(hash_seed):
    code = "from tf_transformer.data.phrasebook import phrasebook; print(ascii(phrasebook(300)))"
    env = {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", code]
    printed = subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout
    assert printed.strip() == ascii(phrasebook(300))


def test_another_seed_makes_another_corpus_of_the_same_language(many):
    first, second = phrasebook(2000, 50, 50, seed=1), phrasebook(60_000, 50, 50, seed=2)
    assert first != phrasebook(2000, 50, 50, seed=2)
    # Within one corpus no source occurs twice; only across seeds can a contradiction show.
    other = dict(all_pairs(first) + all_pairs(second))
    shared = [source for source in other if source in many]
    assert len(shared) > 10_000
    assert all(other[source] == many[source] for source in shared)


@pytest.mark.parametrize(
    ("sizes", "error", "message"),
    [
        ((0, 1, 1), ValueError, "num_train must be at least 1, received 0"),
        ((1, -1, 1), ValueError, "num_validation must be at least 1, received -1"),
        ((1, 1, -1), ValueError, "num_test must be at least 0, received -1"),
        ((249_000, 500, 501), DataError, "250001 pairs are asked for.*at most 250000.*ask for"),
    ],
)
def test_impossible_sizes_are_an_error(sizes, error, message):
    with pytest.raises(error, match=message):
        phrasebook(*sizes)


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
        (
            r"^Er ruft heute (?!Abend)[^,]+(?<!nicht) an\.$",
            r"^He is calling .+ today\.$",
        ),  # particle at the end
        (r"^Ich muss .+(?<!nicht) anrufen\.$", r"^I have to call .+\.$"),  # infinitive at the end
        (r"^Anna hat gestern .+(?<!nicht) abgeholt\.$", r"^Anna picked up .+ yesterday"),  # perfect
        (r"^Ich bin (?!.*nicht).+ gefahren\.$", r"^I went to .+\.$"),  # perfect with sein
        (r", weil (er|sie|ich) müde (ist|bin)\.$", r" because (he|she|I) (is|am) tired\.$"),
        (r"^Ich glaube, dass .+ einkauft\.$", r"^I think that .+ will shop .+\.$"),
        (r"^Wenn ich müde bin, trinke ich", r"^When I am tired, I drink"),
        (r", obwohl es kalt ist\.$", r" although it is cold\.$"),
        (r"^(Trinkt|Isst|Kauft) sie (oft|jede) .+\?$", r"^Does she (often )?(drink|eat|buy|shop) "),
        (r"^Was (hast du|haben Sie) gestern gekauft\?$", r"^What did you buy yesterday\?$"),
        (r"^Er kauft heute kein", r"^He is not buying (a|an|any) .+ today\.$"),
        (r"einundzwanzig Euro", r"twenty-one euros"),  # units before tens
        (r"^Es ist halb vier\.$", r"^It is half past three\.$"),
        (r"um Viertel vor acht", r"at quarter to eight"),
        (r"^Mach bitte .+(Fenster|Tür) auf!$", r"^Please open the .+!$"),
        (r"^Könnten Sie bitte .+ aufmachen\?$", r"^Could you please open .+\?$"),
        (r"^Ich hätte gern", r"^I would like"),
        (r"^Der Mann, der .+ hat, ist", r"^The man who .+ is"),
        (r"Koffer, den ich gestern gekauft habe", r"suitcase that I bought yesterday"),
        (r" (gefällt|gefallen) meiner Schwester\.$", r"^My sister likes "),  # roles change sides
        (r" gehört dem Lehrer\.$", r" belongs to the teacher\.$"),
        (r" ist größer als mein", r" is bigger than my"),
    ],
)
def test_phenomenon_is_covered(many, german, english):
    found = [pair for pair in many.items() if re.search(german, pair[0])]
    assert found
    assert [pair for pair in found if not re.search(english, pair[1])] == []


@pytest.mark.parametrize(
    ("side", "wrong"),
    [
        (0, r"^(Der|Das|Dein|Mein) (Frau|Ärztin|Tasche|Mutter|Lampe)\b"),
        (0, r"^(Die|Deine|Meine) (Mann|Koffer (ist|gehört)|Bruder|Handy)\b"),
        (0, r"\b(ein|kein|mein|dein|sein) \w+e (Koffer|Hut|Hemd|Buch|Auto)\b"),
        (0, r"\b(einen|keinen|den) (\w+en )?(Tasche|Buch|Hemd|Milch|Zeitung)\b"),
        (
            0,
            r"(?<!, )\b(der|die|das|dem|den) [a-zäöü]+(es|er) [A-ZÄÖÜ]",
        ),  # but relative ones
        (0, r"\b(mit|zum|im|am) (dem|der|den)\b(?! (Zug|Bus))"),
        (0, r"[^,] (weil|dass|obwohl|wenn) "),
        (0, r"\b(du|er|ich) (haben|sind|können)\b|\bich (hat|ist)\b"),
        (1, r"\ba [aeiou]|\ban [^aeiou]"),
        (1, r"^(He|She|(My|Your|Our|The) \w+er) (are|have|do|buy|drink|want|need)\b"),
        (1, r"\b(I|you|we|they) (is|has|does|buys|drinks|wants|needs)\b"),
        (1, r"\b(did|will|cannot|should|does|do) not \w+(s|ed|ing)\b(?<!need)"),
        (0, r"  | [.?!,]|[^.?!]$|^[^A-ZÄÖÜ]"),
        (1, r"  | [.?!,]|[^.?!]$|^[^A-Z]|\bi\b"),
    ],
)
def test_grammar_slip_never_occurs(many, side, wrong):
    assert [pair for pair in many.items() if re.search(wrong, pair[side])][:5] == []
