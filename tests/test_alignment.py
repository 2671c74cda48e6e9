"""The choice of the layer that aligns best, and what a translator aligns with it."""

import numpy as np
import pytest
import tensorflow as tf
from letters import MAX_LENGTH, random_model

from tf_transformer.export import alignment
from tf_transformer.export.alignment import choose_alignment, linked_tokens
from tf_transformer.inference.scoring import Alignment, TeacherForcing


@pytest.fixture(scope="module")
def untrained(randomise):
    return random_model(randomise)


def choose(model, tokenizer, pairs):
    return choose_alignment(model, tokenizer, tokenizer, pairs, MAX_LENGTH)


# A known dictionary; "zu" and "do" are in every sentence.
WORDS = {"das": "the", "Haus": "building", "Buch": "book", "ein": "a", "alt": "old", "rot": "red"}


def toy_corpus(num_pairs=60, seed=0):
    """Sentences of three words in random order on both sides, and the links between them."""
    rng = np.random.default_rng(seed)
    sources, targets, links = [], [], []
    for _ in range(num_pairs):
        words = [str(word) for word in rng.permutation(list(WORDS))[:3]]
        order = rng.permutation(3).tolist()
        sources.append([*words, "zu"])
        targets.append(["do", *(WORDS[words[index]] for index in order)])
        links.append({(3, 0), *((index, place + 1) for place, index in enumerate(order))})
    return sources, targets, links


def test_a_known_dictionary_is_found():
    sources, targets, links = toy_corpus()
    assert [set(found) for found in linked_tokens(sources, targets)] == links


def test_repeated_and_rare_tokens_and_empty_sentences_have_no_links():
    sources, targets, links = toy_corpus()
    # A name that comes once, a comma that one side has twice.
    sources[0], targets[0] = ["Anna", ",", *sources[0]], [*targets[0], ",", "Anna", ","]
    found = linked_tokens([*sources, [], ["das"]], [*targets, ["the"], []])
    assert set(found[0]) == {(source + 2, target) for source, target in links[0]}
    assert found[-2:] == [[], []]


@pytest.mark.parametrize(("layer", "shifted"), [(0, True), (1, False), (2, True)])
def test_the_planted_layer_is_found(untrained, letter_tokenizer, monkeypatch, layer, shifted):
    """One layer attends to the linked token when it predicts or reads it, others to the end."""
    sources, targets, links = toy_corpus()
    pairs = [(" ".join(s), " ".join(t)) for s, t in zip(sources, targets, strict=True)]

    def planted(forced, source, target):
        texts = ([text.decode() for text in side.numpy()] for side in (source, target))
        rows = [pairs.index(pair) for pair in zip(*texts, strict=True)]
        layers = np.zeros((3, len(rows), 5, 5))
        layers[..., 4] = 0.5
        for row, number in enumerate(rows):
            for source_place, target_place in links[number]:
                layers[layer, row, target_place + shifted, source_place] = 1
        lengths = tf.fill([len(rows)], 4)
        found = {
            "source_subwords": tf.constant([[w.encode() for w in sources[n]] for n in rows]),
            "target_subwords": tf.constant([[w.encode() for w in targets[n]] for n in rows]),
            "source_lengths": lengths + 1,
            "target_lengths": lengths,
        }
        return found, [*tf.constant(layers)]

    monkeypatch.setattr(TeacherForcing, "attend", planted)
    monkeypatch.setattr(tf, "function", lambda function, *_, **__: function)
    found = choose(untrained, letter_tokenizer, pairs)
    assert found == Alignment(layer, shifted, 1.0, sum(map(len, links)))


@pytest.mark.parametrize("pairs", [[], [("", "")], [("a b", "")], [("", "a")], [("a a", "b b b")]])
def test_without_links_the_default_is_taken(untrained, letter_tokenizer, pairs):
    assert choose(untrained, letter_tokenizer, pairs) == Alignment(0, False, None, 0)


def test_a_model_without_attention_scores_has_no_alignment(echo_model, letter_tokenizer):
    assert choose(echo_model(280), letter_tokenizer, [("a", "a")]) is None


def test_of_many_pairs_a_sample_of_all_parts_is_used(untrained, letter_tokenizer, monkeypatch):
    monkeypatch.setattr(alignment, "_MAX_PAIRS", 10)
    pairs = [("a", "a")] * 500 + [("a a", "a a")] * 500
    assert choose(untrained, letter_tokenizer, pairs).links == 5
