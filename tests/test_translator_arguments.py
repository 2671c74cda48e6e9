"""The arguments of a translator: wrong types are errors before TensorFlow sees them; lines."""

import threading

import numpy as np
import pytest
import tensorflow as tf
from letters import MAX_LENGTH


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("beam_size", 4.0),
        ("beam_size", "4"),
        ("beam_size", True),
        ("batch_size", 2.0),
        ("batch_size", None),
        ("length_penalty", "0.6"),
        ("length_penalty", True),
        ("length_penalty", [0.6]),
    ],
)
def test_a_number_of_a_wrong_type_is_named(echo_translator, name, value):
    with pytest.raises(TypeError, match=f"{name} must be .*; received {name}="):
        echo_translator(["a b"], **{name: value})


def test_a_wrong_type_leaves_no_lock_to_other_threads(in_memory):
    """A float for the size of the beam left TensorFlow's lock held: other threads waited."""
    with pytest.raises(TypeError, match="beam_size must be an int"):
        in_memory("a b", beam_size=4.0)
    found = []
    thread = threading.Thread(target=lambda: found.append(in_memory("a b", beam_size=2)))
    thread.daemon = True  # else a failing test never ends
    thread.start()
    thread.join(timeout=60)
    assert found == [in_memory("a b", beam_size=2)]


def test_numbers_of_numpy_are_numbers(echo_translator):
    texts = ["a b", "c"]
    found = echo_translator(texts, np.int64(1), np.int32(2), np.float64(0.5))
    assert found == echo_translator(texts, 1, 2, 0.5) == texts


@pytest.mark.parametrize(
    "texts", [{"a b": 1}, {"a b", "c"}, frozenset(["a"])], ids=["dict", "set", "frozenset"]
)
@pytest.mark.parametrize("method", ["__call__", "n_best", "stream"])
def test_a_collection_without_an_order_is_no_list_of_texts(echo_translator, texts, method):
    arguments = (texts,) if method == "__call__" else (texts, 1)
    with pytest.raises(TypeError, match="texts must be a list of str; received"):
        getattr(echo_translator, method)(*arguments)


# --- Lines ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["a b\nc d\ne", "a\n\nb", "a\n", "\na", "\n", "a b c d\n" * 40], ids=repr
)
def test_each_line_of_a_text_is_translated_on_its_own(echo_translator, text):
    assert echo_translator(text) == text
    assert echo_translator(["x", text, "y"]) == ["x", text, "y"]


def test_the_signature_translates_each_line_too(in_memory, sentences):
    texts = ["\n".join(sentences[:3]), sentences[3], "", "\n".join(["", *sentences[4:6], ""])]
    found = in_memory.module.translate(text=tf.constant(texts))["translation"].numpy()
    assert [text.decode() for text in found] == in_memory(texts)
    assert in_memory(texts)[0].split("\n") == in_memory(sentences[:3])


def test_a_search_takes_one_line(echo_translator):
    for method in (echo_translator.n_best, echo_translator.stream):
        with pytest.raises(ValueError, match="item 1 of texts has a line break"):
            list(method(["a", "b\nc"], 1))
    (best,) = echo_translator.n_best(["a b\n"], 1)[0]  # white space at the end is no line
    assert best.text == "a b"


def test_the_signature_of_n_best_says_that_a_line_was_not_translated(in_memory):
    found = in_memory.module.translate_nbest(text=tf.constant(["a", "a\nb", "a\n", "a " * 99]))
    source = in_memory.module.tokenize(tf.constant(["a", "a\nb", "a\n", "a " * 99]))[2]
    assert source.numpy().tolist() == [False, True, False, True]
    assert (found["truncated"].numpy() >= source.numpy()).all()


# --- What was dropped -----------------------------------------------------------------------


def test_a_translation_says_whether_its_source_or_itself_was_truncated(
    echo_translator, in_memory, sentences
):
    source = "a " * (MAX_LENGTH + 5)
    (short,), (long,) = echo_translator.n_best(["a b", source], 1)
    assert (short.source_truncated, short.truncated) == (False, False)
    assert long.source_truncated
    found = [best for (best,) in in_memory.n_best(sentences, 1)]
    assert not any(best.source_truncated for best in found)
    assert {best.truncated for best in found} == {True, False}
