"""The choice of beam and length penalty on validation text."""

import pytest

import tf_transformer as tt
from tf_transformer.evaluation import BLEU, CHRF, LOSS
from tf_transformer.export.search_tuning import LENGTH_PENALTIES, choose_search
from tf_transformer.inference.search import require_search

WORDS = tuple("abcdefghijkl")
CHINESE = tuple("两只棕色的狗在雪地里玩")


def sentence(words):
    return ("" if words[0] in CHINESE else " ").join(words)


def text(num_pairs, words=WORDS):
    return tt.ParallelText(tuple(map(str, range(num_pairs))), (sentence(words),) * num_pairs)


class Translator:
    """Translates all but the last words; how many depends on the search.

    Args:
        lacking: The number of words that are wrong, from a length penalty; None is greedy search.
        words: Those of each sentence.
    """

    def __init__(self, lacking, words=WORDS):
        self.lacking = lacking
        self.words = words
        self.calls = []

    def __call__(self, sources, beam_size, length_penalty=None):
        self.calls.append((beam_size, length_penalty, tuple(sources)))
        right = len(self.words) - self.lacking(None if beam_size == 1 else length_penalty)
        return [sentence([*self.words[:right], *"???"])] * len(sources)


def best_at(best, greedy=9):
    """Return what is lacking with a length penalty: the less, the nearer it is to `best`."""
    return lambda p: greedy if p is None else min(9, 1 + round(2 * abs(p - best)))


@pytest.mark.parametrize(
    ("lacking", "beam_size", "length_penalty", "words", "metric"),
    [
        (best_at(0.6), 4, 0.6, WORDS, CHRF),
        (best_at(2.4), 4, 2.4, CHINESE, BLEU),
        # Equals: the one nearest 0.6.
        (lambda p: 2, 1, 0.6, WORDS, LOSS),
        (lambda p: 5 if p is None or p < 1 else 2, 4, 1.2, WORDS, LOSS),
        # Greedy search where no beam is better.
        (best_at(2.4, greedy=1), 1, 2.4, WORDS, CHRF),
    ],
)
def test_the_best_search_is_chosen(lacking, beam_size, length_penalty, words, metric):
    validation = text(20, words)
    translator = Translator(lacking, words)
    choice = choose_search(translator, validation, metric=metric)
    assert choice.metric == ("chrF" if metric == CHRF else "BLEU")
    assert (choice.beam_size, choice.length_penalty) == (beam_size, length_penalty)
    assert choice.sentences == 20
    searches = [(found["beam_size"], found["length_penalty"]) for found in choice.scores]
    assert searches[0] == (1, None) and searches[1:] == sorted(searches[1:])
    assert sorted(searches[1:]) == sorted(call[:2] for call in translator.calls[1:])
    for search, found in zip(searches, choice.scores, strict=True):
        expected = tt.corpus_score(translator(validation.sources, *search), validation.targets)
        wanted = (expected.bleu, expected.signature)
        if metric == CHRF:
            wanted = (expected.chrf, expected.chrf_signature)
        assert (found["score"], choice.signature) == wanted
        assert f"{found['score']:.2f}" in str(choice)


@pytest.mark.parametrize(
    ("best", "found", "most_beams"),
    [
        (-1, 0, 4),
        (0.6, 0.6, 4),
        (1.4, 1.2, 3),
        (1.8, 1.8, 3),
        (2.4, 2.4, 4),
        (4.2, 4.2, 7),
        (20, 9.6, 15),
    ],
)
def test_no_neighbour_of_the_chosen_length_penalty_is_better(best, found, most_beams):
    words = [f"w{number}" for number in range(300)]
    translator = Translator(lambda p: 299 if p is None else 1 + int(5 * abs(p - best)), words)
    choice = choose_search(translator, text(2, words))
    assert choice.length_penalty == found
    require_search(choice.beam_size, choice.length_penalty, vocab_size=100)
    penalties = [penalty for _, penalty, _ in translator.calls[1:]]
    assert len(penalties) == len(set(penalties)) <= most_beams
    place = LENGTH_PENALTIES.index(found)
    assert set(LENGTH_PENALTIES[max(0, place - 1) : place + 2]) <= set(penalties)


@pytest.mark.parametrize(
    ("num_pairs", "max_seconds", "least", "most"),
    [(3500, 60, 1000, 1000), (12, 0, 12, 12), (3500, 0, 50, 150)],
)
def test_the_sentences_are_bounded_and_come_from_all_of_the_text(
    num_pairs, max_seconds, least, most
):
    validation = text(num_pairs)
    translator = Translator(lambda penalty: 2)
    choice = choose_search(translator, validation, max_seconds=max_seconds)
    assert least <= choice.sentences <= most
    by_search = {}
    for beam_size, penalty, sources in translator.calls:
        by_search.setdefault((beam_size, penalty), []).extend(sources)
    greedy, *beams = by_search.values()
    assert all(sources == greedy for sources in beams)
    assert len(set(greedy)) == len(greedy) == choice.sentences
    places = sorted(map(int, greedy))
    largest_gap = max(b - a for a, b in zip([-1, *places], [*places, num_pairs], strict=True))
    assert largest_gap <= 1.5 * num_pairs / len(places) + 1
    again = Translator(translator.lacking)
    assert choose_search(again, validation, max_seconds=max_seconds) == choice
    assert again.calls == translator.calls
