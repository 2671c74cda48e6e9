"""The arguments of a translator: wrong types are errors before TensorFlow sees them; lines."""

import threading

import numpy as np
import pytest
import tensorflow as tf
from letters import MAX_LENGTH

import tf_transformer as tt
from tf_transformer.serving.session import SavedModelSession


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


# Each with its first sentence, as a search of the whole line finds it.
SEVERAL = {
    "Ab cd. Ef gh": "Ab cd.",
    "Ab cd!  Ef gh? \tIj kl. Mn op!": "Ab cd!",
    "好ab. Cd": "好ab.",
    "ab\n cd. Ef\n": "ab",
}


@pytest.fixture(params=["call", "stream", "signature", "session", "compiled"])
def way(request, first_sentence_version):
    """A way to translate texts with a model that translates the first sentence of a line."""
    loaded = tt.Translator.load(first_sentence_version, xla=request.param == "compiled")
    servable = SavedModelSession(first_sentence_version, threads=1)
    decoded = {
        "signature": lambda texts: loaded.module.translate(text=tf.constant(texts))["translation"],
        "session": lambda texts: servable.run("serving_default", {"text": texts})["translation"],
    }
    if request.param in decoded:
        return lambda texts: [t.decode() for t in np.array(decoded[request.param](texts)).tolist()]
    return {
        "stream": lambda texts: [best.text for (best,) in loaded.stream(texts, batch_size=3)],
    }.get(request.param, loaded)


def test_every_sentence_of_a_line_is_translated(way):
    for texts in (list(SEVERAL), ["ab"], [*SEVERAL, "ab", ""] * 60):
        assert way(texts) == [text.replace("\n ", "\n") for text in texts]


def test_a_search_for_n_best_is_of_the_whole_line(first_sentence_version):
    translator = tt.Translator.load(first_sentence_version)
    texts = {text: first for text, first in SEVERAL.items() if "\n" not in text}
    assert [best.text for (best,) in translator.n_best([*texts], 1)] == [*texts.values()]


def test_the_numbers_of_several_sentences_are_sums(in_memory, sentences):
    alone = [best for (best,) in in_memory.n_best(sentences, 1)]
    ended = [best.truncated for best in alone].index(False)
    cut = [best.truncated for best in alone].index(True)
    for indices in ([ended, ended], [ended, cut, ended]):
        ((best,),) = in_memory.stream(["\n".join(sentences[index] for index in indices)])
        parts = [alone[index] for index in indices]
        assert best.text == "\n".join(part.text for part in parts)
        for name in ("score", "log_prob", "length"):
            expected = sum(getattr(part, name) for part in parts)
            assert getattr(best, name) == pytest.approx(expected, abs=1e-4)
        assert (best.truncated, best.source_truncated) == (cut in indices, False)
    ((best,),) = in_memory.stream(["Ab. " + "ab " * MAX_LENGTH])
    assert best.source_truncated


def test_a_line_of_one_sentence_is_translated_as_it_is(in_memory, sentences):
    texts = [
        *sentences, "", " ab cd\t", "\u3000ab\xa0", "Ab cd. ", "Ab cd...", "ab. cd. ef", "Dr. Ab",
        "3.5 ab", "ab 3.", "„Ab!“", "ab! " * 30, "PROF. AB LEFT ST. CD.", "ab " * 200,
    ]  # fmt: skip
    expected = [best.text for (best,) in in_memory.n_best(texts, 1)]
    assert in_memory(texts) == expected
    found = in_memory.module.translate(text=tf.constant(texts))["translation"].numpy()
    assert [text.decode() for text in found] == expected


def test_a_model_of_prompts_gets_each_line_whole(first_sentence_model, letter_tokenizer, tmp_path):
    translator = tt.Translator.from_model(
        first_sentence_model, letter_tokenizer, letter_tokenizer, MAX_LENGTH, by_sentence=False
    )
    version = tt.export_saved_model(translator, tmp_path / "prompts")
    texts, expected = ["\n".join(SEVERAL), "ab"], ["\n".join([*SEVERAL.values(), "cd.", ""]), "ab"]
    for translate in (translator, tt.Translator.load(version)):
        assert translate(texts) == expected
        found = translate.module.translate(text=tf.constant(texts))["translation"].numpy()
        assert [text.decode() for text in found] == expected


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
