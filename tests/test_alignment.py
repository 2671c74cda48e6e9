"""IBM Model 1, and the choice of the attention heads that align best."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from letters import MAX_LENGTH, random_model

import tf_transformer as tt
from tf_transformer.inference.alignment import choose_alignment, choose_heads
from tf_transformer.inference.ibm_model import reliable_links, translation_probabilities
from tf_transformer.inference.scoring import Alignment

# A known dictionary; "zu" and "do" translate nothing.
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
        links.append({(index, place + 1) for place, index in enumerate(order)})
    return sources, targets, links


def as_sets(links):
    return [{(int(source), int(target)) for source, target in pair} for pair in links]


# --- IBM Model 1 ----------------------------------------------------------------------------


def slow_model_1(sources, targets, iterations):
    """The formulas of Brown et al. 1993, word by word."""
    null = None
    table = {}
    for source, target in zip(sources, targets, strict=True):
        table.update({(s, t): 1.0 for s in [null, *source] for t in target})
    for _ in range(iterations):
        counts, totals = dict.fromkeys(table, 0.0), dict.fromkeys([s for s, _ in table], 0.0)
        for source, target in zip(sources, targets, strict=True):
            for t in target:
                total = sum(table[s, t] for s in [null, *source])
                for s in [null, *source]:
                    counts[s, t] += table[s, t] / total
                    totals[s] += table[s, t] / total
        table = {(s, t): count / totals[s] for (s, t), count in counts.items()}
    return [
        [[table[s, t] for t in target] for s in [null, *source]]
        for source, target in zip(sources, targets, strict=True)
    ]


@pytest.mark.parametrize("iterations", [1, 2, 5])
def test_probabilities_are_those_of_the_formulas(iterations):
    sources, targets, _ = toy_corpus(8)
    sources, targets = [*sources, ["das"], ["ein", "ein"]], [*targets, ["the", "a", "the"], ["a"]]
    found = translation_probabilities(sources, targets, iterations)
    for array, expected in zip(found, slow_model_1(sources, targets, iterations), strict=True):
        np.testing.assert_allclose(array, expected, rtol=1e-9)


def test_a_known_dictionary_is_found():
    sources, targets, links = toy_corpus()
    found = as_sets(reliable_links(sources, targets))
    # What translates nothing is in every sentence, so its links are with each other.
    assert [pair - {(3, 0)} for pair in found] == links


def test_tokens_that_are_equal_are_linked_and_repeated_ones_are_not():
    sources, targets, links = toy_corpus()
    # A name that comes once, a comma that one side has twice.
    sources[0], targets[0] = ["Anna", ",", *sources[0]], [*targets[0], ",", "Anna", ","]
    found = as_sets(reliable_links(sources, targets))[0]
    assert (0, 5) in found
    assert not {(1, 4), (1, 6)} & found
    assert found - {(0, 5), (5, 0)} == {(source + 2, target) for source, target in links[0]}


def test_of_two_words_for_one_only_one_is_linked():
    sources, targets, _ = toy_corpus()
    sources = [source[:-1] for source in sources]  # only what translates something
    targets = [[part for word in target[1:] for part in (word, word + "s")] for target in targets]
    found = reliable_links(sources, targets)
    for source, target, links in zip(sources, targets, found, strict=True):
        words = [WORDS[source[i]] for i, _ in links]
        assert [target[j].removesuffix("s") for _, j in links] == words
        assert sorted(words) == sorted(WORDS[word] for word in source)


def test_empty_sentences_have_no_links():
    found = reliable_links([[], ["a"], [], ["b"]], [[], [], ["a"], ["b"]])
    assert as_sets(found) == [set(), set(), set(), {(0, 0)}]
    assert as_sets(reliable_links([[]], [[]])) == [set()]


# --- The choice -----------------------------------------------------------------------------


def planted(heads, layer, shifted, num_layers=3, num_heads=4, seed=0):
    """Attention in which the given heads of one layer have the links and all others noise.

    Each of `heads` has a part of the links, so that several are better than one.
    """
    rng = np.random.default_rng(seed)
    attention, links = [], []
    for _ in range(40):
        length, target_length = rng.integers(4, 9, size=2).tolist()
        number = min(length, target_length)
        sources = rng.permutation(length)[:number]
        targets = np.sort(rng.permutation(target_length)[:number])
        weights = rng.uniform(size=(target_length + 1, num_layers, num_heads, length))
        weights[:, layer, heads] = 1
        for count, (source, target) in enumerate(zip(sources, targets, strict=True)):
            row = target + int(shifted)
            weights[row, layer, heads[count % len(heads)], source] += 2
        attention.append((weights / weights.sum(-1, keepdims=True)).astype(np.float32))
        links.append(np.stack([sources, targets], axis=1))
    return attention, links


@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize(("layer", "heads"), [(0, [2]), (2, [0]), (1, [1, 3]), (2, [0, 1, 2])])
def test_the_planted_heads_are_found(layer, heads, shifted):
    attention, links = planted(heads, layer, shifted)
    expected = Alignment(layer, tuple(heads), shifted, 1.0, len(links))
    assert choose_heads(attention, links) == expected


def test_agreement_is_the_fraction_of_links_with_the_highest_attention():
    attention = np.zeros((3, 1, 1, 3), np.float32)  # two target tokens, three of the source
    attention[0, 0, 0, 1] = attention[1, 0, 0, 0] = attention[2, 0, 0, 0] = 1
    links = [np.array([[1, 0], [2, 1]]), np.empty((0, 2), int)]
    found = choose_heads([attention, attention], links)
    assert found == Alignment(0, (0,), shifted=False, agreement=0.5, pairs=1)


def test_without_a_link_nothing_is_chosen():
    attention, links = planted([0], 0, False)
    assert choose_heads(attention, [pair[:0] for pair in links]) is None


# --- With a model ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def untrained(randomise):
    return random_model(randomise)


def choose(model, tokenizer, pairs):
    return choose_alignment(model, tokenizer, tokenizer, pairs, MAX_LENGTH)


@pytest.mark.parametrize("pairs", [[], [("", "")], [("a b", "")], [("", "a")], [("a a", "b b b")]])
def test_without_links_the_default_is_taken(untrained, letter_tokenizer, pairs):
    assert choose(untrained, letter_tokenizer, pairs) == Alignment(0, (0, 1), False, None, 0)


def test_a_model_without_attention_scores_has_no_alignment(echo_model, letter_tokenizer):
    assert choose(echo_model(280), letter_tokenizer, [("a", "a")]) is None


def test_the_choice_is_the_same_each_time(untrained, letter_tokenizer, sentences):
    pairs = [(text, text) for text in sentences]
    found = choose(untrained, letter_tokenizer, pairs)
    assert found == choose(untrained, letter_tokenizer, pairs)
    assert 0 <= found.agreement <= 1 and found.layer == 0
    # Of the 60 those have links in which a letter comes once.
    assert 30 < found.pairs <= len(pairs)


def test_of_many_pairs_a_sample_of_all_parts_is_used(untrained, letter_tokenizer, monkeypatch):
    monkeypatch.setattr("tf_transformer.inference.alignment._MAX_PAIRS", 10)
    pairs = [("a", "a")] * 500 + [("a a", "a a")] * 500
    assert choose(untrained, letter_tokenizer, pairs).pairs == 5


def test_the_search_for_links_is_bounded(untrained, letter_tokenizer, monkeypatch):
    monkeypatch.setattr("tf_transformer.inference.alignment._MAX_CELLS", 50)
    assert choose(untrained, letter_tokenizer, [("a b", "a b")] * 500).pairs == 32


def trained(task):
    """A model that has learned most of a task, and its tokenizer."""
    keras.utils.set_random_seed(0)
    tokenizer = tt.SentencePieceTokenizer.train(task.train.sources, 280)
    batches = tt.TokenBatches.from_text(
        task.train, tokenizer, tokenizer, batch_tokens=512, max_length=MAX_LENGTH, seed=0
    )
    config = tt.TransformerConfig(280, 280, num_layers=1, d_model=64, num_heads=4, d_ff=128)
    model = tt.Transformer(config)
    model.compile(
        keras.optimizers.Adam(tt.NoamSchedule(64, 100, 0.3), 0.9, 0.98, 1e-9),
        tt.SmoothedCrossEntropy(),
    )
    model.fit(batches.dataset(), steps_per_epoch=500, shuffle=False, verbose=0)
    return model, tokenizer


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make_task", "places"),
    [(tt.copy_task, range), (tt.reverse_task, lambda length: range(length)[::-1])],
    ids=["copy", "reverse"],
)
def test_a_trained_model_aligns_on_the_diagonal_of_its_task(make_task, places):
    task = make_task(6000, num_validation=200, num_test=100, max_length=7)
    model, tokenizer = trained(task)
    alignment = choose(model, tokenizer, task.validation)
    assert alignment.agreement > 0.75
    translate = tt.Translator.from_model(model, tokenizer, tokenizer, alignment=alignment)
    found = translate.module.align(*map(tf.constant, (task.test.sources, task.test.targets)))
    highest = found["attention"].numpy().argmax(axis=2)
    right = []
    for row, target in zip(highest, tokenizer.encode(task.test.targets), strict=True):
        for place, source in enumerate(places(len(target))):
            if target.count(target[place]) == 1:  # the attention to others may be to either
                right.append(row[place] == source)
    assert np.mean(right) > 0.75


def test_a_translator_aligns_pairs_of_texts_without_padding(exported_run):
    translator = tt.Translator.load(exported_run[0])
    sources, targets = ["a b c", "a"], ["b c d e", ""]
    found = translator.align(sources, targets, batch_size=1)
    for pair, source, target in zip(found, sources, targets, strict=True):
        expected = translator.module.align(tf.constant([source]), tf.constant([target]))
        assert "".join(pair.source_subwords).replace("▁", " ").strip() == f"{source}</s>"
        assert "".join(pair.target_subwords).replace("▁", " ").strip() == target
        assert pair.attention.shape == (len(pair.target_subwords), len(pair.source_subwords))
        np.testing.assert_allclose(pair.attention, expected["attention"][0], atol=1e-6)
        assert pair.truncated is False
    for one, other in zip(found, translator.align(sources, targets), strict=True):
        assert (one.source_subwords, one.target_subwords) == other[:2]
        np.testing.assert_allclose(one.attention, other.attention, atol=1e-5)


def test_a_translator_without_alignment_says_why(echo_model, letter_tokenizer):
    translator = tt.Translator.from_model(echo_model(280), letter_tokenizer, letter_tokenizer)
    with pytest.raises(ValueError, match="no align: its model has no attention to the source"):
        translator.align(["a"], ["a"])
