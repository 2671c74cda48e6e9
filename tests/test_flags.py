"""What a person should look at: loops, copies, lost pieces and lengths; and how sure a model is."""

from unicodedata import normalize

import letters
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

import tf_transformer as tt
from tf_transformer.export.calibration import calibrate, isotonic
from tf_transformer.inference.flags import Usual, expected_chrf, has_loop

ALPHABET = st.lists(st.integers(5, 7), max_size=24)


def is_loop(ids):
    """Whether a sequence of at most twenty tokens stands three times in a row, in four tokens."""
    return any(
        all(ids[i] == ids[i + period] for i in range(start, start + max(2 * period, 3)))
        for period in range(1, 21)
        for start in range(len(ids) - period - max(2 * period, 3) + 1)
    )


@given(st.lists(ALPHABET, min_size=1, max_size=8))
def test_loops_are_found(rows):
    rows.append([5, 6, 7, 8, 9, 10, 11, 12] * 3)
    ids = tf.ragged.constant(rows, tf.int32).to_tensor(5)  # padding is no part of a loop
    lengths = tf.constant([len(row) for row in rows])
    assert has_loop(ids, lengths).numpy().tolist() == list(map(is_loop, rows))


@pytest.mark.parametrize("beam_size", [1, 2])
def test_a_loop_is_searched_once_more_and_flagged(letter_tokenizer, beam_size):
    class Looping(letters.EchoModel):
        """Repeats the first token for ever; after eight steps the end is nearly as probable."""

        def decode_step(self, token_ids, index, cache):
            first = tf.one_hot(cache["target"]["ids"][:, 0], self.vocab_size)
            end = tf.one_hot(letters.EOS, self.vocab_size)
            return 8.0 * first + 3.0 * end * tf.cast(index > 7, tf.float32), cache

    model = Looping(letter_tokenizer.vocab_size)
    texts = ["a b c d", "b b b b b b b", "", "c"]  # the second repeats itself
    translator = letters.translator_of(model, letter_tokenizer, repair_loops=True)
    found = translator.n_best(texts, 1, beam_size=beam_size)
    assert [("loop" in best.flags) for (best,) in found] == [True, False, False, True]
    repeated = [
        best.text.split().count(text[:1]) for (best,), text in zip(found, texts, strict=True)
    ]
    assert max(repeated[0], repeated[3]) <= 7 < repeated[1]
    # What only loops need takes no time where it is not called.
    graph = translator.module.searches.greedy.get_concrete_function().graph
    functions = graph.as_graph_def().library.function
    apart = [f.signature.name for f in functions if f.attr["_noinline"].b]
    for name in ("repaired", "constrained"):
        assert any(name in each for each in apart)
    plain = letters.translator_of(model, letter_tokenizer).n_best(texts, 1, beam_size=beam_size)
    assert plain[0][0].text.split().count("a") > 7 and "loop" in plain[0][0].flags
    assert plain[1] == found[1]


def test_flags_tell_what_happened(echo_translator):
    texts = ["a b c d e f g h i j a b", "a b", "", "a", "a b\nc d"]
    found = echo_translator.n_best(texts, 1)
    assert [best.flags for (best,) in found] == [("copied",), (), (), (), ("truncated",)]


def test_a_lost_piece_is_flagged(first_sentence_model, letter_tokenizer):
    translator = letters.translator_of(first_sentence_model, letter_tokenizer)
    found = translator.n_best(["a {b}. c {d}", "a {b}", "a. b"], 1)
    assert [("piece" in best.flags) for (best,) in found] == [True, False, False]


def test_an_unusual_length_is_flagged_and_confidence_is_read_from_a_table(letter_tokenizer):
    usual = Usual((0.5, 0.9), ((-2.0, 10.0), (-1.0, 40.0), (-1.0, 40.0), (0.0, 90.0)))
    model = letters.EchoModel(letters.VOCAB_SIZE)
    [[best]] = letters.translator_of(model, letter_tokenizer, usual=usual).n_best(["a b"], 1)
    assert best.flags == ("length",)
    expected = np.interp(best.log_prob / (best.length + 1), *zip(*usual.chrf, strict=True))
    assert best.expected_chrf == pytest.approx(expected, abs=1e-3)


@given(st.lists(st.floats(-40, 3), min_size=1, max_size=9))
def test_expected_chrf_interpolates(log_probs):
    usual = Usual((0, 1), ((-5.0, 1.0), (-3.5, 1.0), (-2.0, 30.0), (-0.1, 99.0)))
    values, lengths = np.array([log_probs], "float32"), np.full((1, len(log_probs)), 4)
    found = expected_chrf(tf.constant(values), tf.constant(lengths, tf.int32), usual)
    np.testing.assert_allclose(found, np.interp(values / 5, *zip(*usual.chrf)), atol=1e-3)  # noqa: B905


@given(st.lists(st.floats(0, 100), min_size=1, max_size=20))
def test_isotonic_values_rise_and_keep_the_mean(values):
    found = isotonic(values)
    assert found == sorted(found) and len(found) == len(values)
    assert np.mean(found) == pytest.approx(np.mean(values), abs=1e-6)
    if values == sorted(values):
        assert found == pytest.approx(values)


def test_calibration_measures_lengths_and_chrf(in_memory, sentences):
    text = tt.ParallelText(tuple(sentences), tuple(sentences))
    usual = calibrate(in_memory, text)
    forms = (tuple(normalize(form, f"{each} é") for each in sentences) for form in ("NFC", "NFD"))
    one, other = (calibrate(in_memory, tt.ParallelText(text.sources, form)) for form in forms)
    assert one.chrf == other.chrf
    assert usual.ratios == (1.0, 1.0)
    assert list(usual.chrf) == sorted(usual.chrf) and len(usual.chrf) == 6
    few = tt.ParallelText(text.sources[:9], text.targets[:9])
    assert calibrate(in_memory, few) is None
