"""A translator translates every line and every sentence of a text on its own."""

import pytest
import tensorflow as tf
from graph_session import Server
from letters import MAX_LENGTH

import tf_transformer as tt


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

    def signature(texts):
        found = loaded.module.translate(text=tf.constant(texts))["translation"].numpy()
        return [text.decode() for text in found]

    def session(texts):
        server = Server(str(first_sentence_version))
        return server.run("serving_default", texts)["translation"]

    def stream(texts):
        return [best.text for (best,) in loaded.stream(texts, batch_size=3)]

    ways = {"signature": signature, "session": session, "stream": stream}
    return ways.get(request.param, loaded)


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


def test_a_model_of_prompts_gets_each_line_whole(first_sentence_model, letter_tokenizer, tmp_path):
    translator = tt.Translator.from_model(
        first_sentence_model, letter_tokenizer, letter_tokenizer,
        tt.Search(max_length=MAX_LENGTH, by_sentence=False),
    )  # fmt: skip
    version = tt.export_saved_model(translator, tmp_path / "prompts")
    texts, expected = ["\n".join(SEVERAL), "ab"], ["\n".join([*SEVERAL.values(), "cd.", ""]), "ab"]
    for translate in (translator, tt.Translator.load(version)):
        assert translate(texts) == expected
        found = translate.module.translate(text=tf.constant(texts))["translation"].numpy()
        assert [text.decode() for text in found] == expected


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
