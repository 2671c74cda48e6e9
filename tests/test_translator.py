"""The translator: n texts in, n translations out, in order; sentence by sentence; and errors."""

import functools
import threading
import types

import letters
import numpy as np
import pytest
import tensorflow as tf
from commands import last_json, run_python
from graph_session import Server
from letters import MAX_LENGTH, VOCAB_SIZE, random_model, translator_of

import tf_transformer as tt
from tf_transformer import ExportTranslator


def called(signature, texts):
    """The translations of a signature."""
    found = signature(text=tf.constant(texts))["translation"].numpy()
    return [text.decode() for text in found]


@pytest.mark.parametrize("batch_size", [1, 7, 64])
def test_translations_come_back_in_the_order_of_their_texts(echo_translator, sentences, batch_size):
    # More than one group of batches is read.
    assert echo_translator(sentences * 3, batch_size) == sentences * 3


def test_neighbours_and_batch_size_change_no_translation(loaded, sentences):
    alone = [loaded(sentence) for sentence in sentences]
    assert loaded(sentences) == alone
    assert loaded(sentences[::-1], batch_size=9) == alone[::-1]


@pytest.mark.parametrize(("ratio", "num_tokens"), [(0.5, 15), (2.0, 20)])
def test_a_translation_has_as_many_tokens_as_the_ratio_allows(ratio, num_tokens):
    words = list("abcdefghij")
    tokenizer = tt.SentencePieceTokenizer.train(words, 280)
    model = letters.EchoModel(tokenizer.vocab_size)
    translate = translator_of(model, tokenizer, max_length=50, max_length_ratio=ratio)
    [[found]] = translate.n_best([" ".join(words)], 1)
    assert found.length == min(num_tokens, len(tokenizer.encode([" ".join(words)])[0]))


def test_hypotheses_of_the_same_text_are_one(letter_tokenizer):
    (a,), (b,) = letter_tokenizer.encode(["a", "b"])
    (byte,) = (i for i in range(VOCAB_SIZE) if letter_tokenizer.subwords([i]) == ["<0x61>"])

    class TwoSpellings(letters.EchoModel):
        def decode_step(self, token_ids, index, cache):
            ends = tf.math.log(tf.one_hot(tf.fill(tf.shape(token_ids), letters.EOS), VOCAB_SIZE))
            first = tf.math.log(tf.scatter_nd([[byte], [a], [b]], [0.5, 0.3, 0.2], [VOCAB_SIZE]))
            return tf.where(index == 0, first, ends), cache

    module = ExportTranslator(
        TwoSpellings(VOCAB_SIZE), *[letter_tokenizer] * 2, tt.Search(beam_size=3)
    )
    found = module.translate_nbest(tf.constant(["c", ""]))
    assert found["translations"].numpy().tolist() == [[b"a", b"b", b""], [b"", b"", b""]]
    scores, lengths = found["scores"].numpy().tolist(), found["lengths"].numpy().tolist()
    assert lengths == [[1, 1, 0], [0, 0, 0]]
    assert [score == -1e9 for row in scores for score in row] == [0, 0, 1, 0, 1, 1]
    (best, other), _ = tt.Translator(module).n_best(["c", ""], 3)
    # The more probable of the two spellings of "a".
    probabilities = np.exp([best.log_prob, other.log_prob])
    assert (best.text, other.text) == ("a", "b") and probabilities == pytest.approx([0.5, 0.2])


@pytest.mark.parametrize("beam_size", [1, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("favourite", ["⁇", "\n", "\x1f"])
def test_unknown_subwords_and_control_characters_may_be_forbidden(
    letter_tokenizer, beam_size, favourite
):
    control = f"<0x{ord(favourite) % 256:02X}>"
    subwords = letter_tokenizer.subwords(range(VOCAB_SIZE))
    index_of_favourite = subwords.index("<unk>" if favourite == "⁇" else control)

    class Unsure(letters.EchoModel):
        def decode_step(self, token_ids, index, cache):
            logits, cache = super().decode_step(token_ids, index, cache)
            return 9 * logits + 10 * tf.one_hot(index_of_favourite, VOCAB_SIZE), cache

    arguments, options = (Unsure(VOCAB_SIZE), letter_tokenizer), {"beam_size": beam_size}
    assert favourite in translator_of(*arguments, **options)("a b c")
    strict = translator_of(*arguments, **options, allow_unknown=False)
    assert strict(["a b c", "d"]) == ["a b c", "d"]


def test_a_long_text_is_truncated_and_changes_no_other(echo_translator):
    # MAX_LENGTH - 1 subwords and the end; a letter and the space before it are one subword.
    long = "a " * 50_000
    cut = echo_translator(long)
    assert cut == " ".join("a" * (MAX_LENGTH - 1))
    assert echo_translator(["b c", long, "d"]) == ["b c", cut, "d"]


@pytest.mark.parametrize(
    "text", ["", " \t", "\u3000\xa0", "\u200b\ufeff", "\x00\u2060\xad\x1b\x85"]
)
def test_a_text_without_words_has_an_empty_translation(echo_translator, loaded, text):
    for translate in (echo_translator, loaded):
        assert translate(text) == ""
    assert echo_translator(["a b", text, "c"]) == ["a b", "", "c"]
    assert echo_translator.document(f"a b.\n{text}\nc").split() == ["a", "b.", "c"]


def test_bytes_that_form_no_character_are_dropped_and_reported(echo_translator):
    raw = {b"c d": "c d", b"a\xffb": "ab", b"\xc3": "", b"\xf0\x9f\x99 a": " a"}
    assert called(echo_translator.module.translate, [*raw]) == [*raw.values()]
    found = echo_translator.stream(["c d", "a\ufffdb. c", ""])
    assert [(best.text, best.bytes_dropped) for (best,) in found] == [
        ("c d", False), ("ab. c", True), ("", False),
    ]  # fmt: skip


# --- Sentences and lines --------------------------------------------------------------------


@pytest.mark.parametrize("text", ["a b\nc d\ne", "a\n\nb", "a\n", "\na", "\n", "a b c d\n" * 40])
def test_each_line_of_a_text_is_translated_on_its_own(echo_translator, text):
    assert echo_translator(["x", text, "y"]) == ["x", text, "y"]


# Each with its first sentence, as a search of the whole line finds it.
SEVERAL = {
    "Ab cd. Ef gh": "Ab cd.",
    "Ab cd!  Ef gh? \tIj kl. Mn op!": "Ab cd!",
    "好ab. Cd": "好ab.",
    "ab\n cd. Ef\n": "ab",
}


@pytest.fixture(params=["call", "stream", "signature", "session"])
def way(request, first_sentence_version):
    """A way to translate texts with a model that translates the first sentence of a line."""
    if request.param == "session":
        server = Server(str(first_sentence_version))
        return lambda texts: server.run("serving_default", texts)["translation"]
    loaded = tt.Translator.load(first_sentence_version)
    if request.param == "signature":
        return functools.partial(called, loaded.module.translate)
    if request.param == "stream":
        return lambda texts: [best.text for (best,) in loaded.stream(texts, batch_size=3)]
    return loaded


def test_every_sentence_of_a_line_is_translated(way):
    for texts in (list(SEVERAL), ["ab"], [*SEVERAL, "ab", ""] * 60):
        assert way(texts) == [text.replace("\n ", "\n") for text in texts]


def test_the_numbers_of_several_sentences_are_sums(in_memory, sentences):
    alone = [best for (best,) in in_memory.n_best(sentences, 1)]
    assert not any(best.source_truncated for best in alone)
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


@pytest.mark.slow
def test_a_model_of_prompts_gets_each_line_whole(first_sentence_model, letter_tokenizer):
    translate = translator_of(first_sentence_model, letter_tokenizer, by_sentence=False)
    texts, expected = ["\n".join(SEVERAL), "ab"], ["\n".join([*SEVERAL.values(), "cd.", ""]), "ab"]
    texts.append("Ab. Cd\u2028Ef. Gh\rab")
    expected.append("Ab.\u2028Ef.\rab")
    assert translate(texts) == called(translate.module.translate, texts) == expected
    assert translate.document("Ab cd. Ef gh\n ab") == "Ab cd.\n ab"


def test_no_sentence_ends_in_a_piece_of_the_models_own_pattern(
    first_sentence_model, letter_tokenizer
):
    pattern = r"\[\[[^\]]*\]\]|<b>"
    translate = translator_of(first_sentence_model, letter_tokenizer, mark_pattern=pattern)
    text = "Ab [[cd. Ef]] gh. <b>Ij."
    expected = "Ab [[cd. <b>Ij."  # the first sentence of each part
    assert translate(text) == next(translate.stream([text]))[0].text == expected
    for way in (translate.module.translate, translate.module.translate_document):
        assert called(way, [text]) == [expected]


# --- Arguments ------------------------------------------------------------------------------


def test_any_iterable_of_texts_gives_a_list(echo_translator, loaded):
    assert echo_translator("a b") == "a b"
    for texts in (("a b", "c"), (text for text in ["a b", "c"])):
        assert echo_translator(texts, np.int64(1), np.int32(2), np.float64(0.5)) == ["a b", "c"]
    assert echo_translator([]) == loaded([]) == []
    assert echo_translator(["a", "\ud800", "é日🙂x\u0301"])[::2] == ["a", "é日🙂x\u0301"]


@pytest.mark.parametrize("texts", [["a", None], b"a b", None])
def test_what_is_no_text_is_refused(echo_translator, texts):
    for translate in (echo_translator, echo_translator.document):
        with pytest.raises((TypeError, AttributeError)):
            translate(texts)
    with pytest.raises(TypeError, match="texts must be a list of str; received str"):
        echo_translator.n_best("a b", 1)
    for texts, found in (
        ({"a": "b"}, "a list of str; received dict"),
        (["a", None], "str; received N"),
    ):
        with pytest.raises(TypeError, match=found):
            echo_translator(texts)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1; received 0"),
        ({"beam_size": VOCAB_SIZE + 1}, "beam_size must be from 1 to 280"),
        ({"length_penalty": -1}, "length_penalty must be from 0 to 10"),
        ({"n_best": 2}, "n_best must be from 1 to the size of the beam, 1"),
        ({"n_best": 2, "beam_size": 2}, "sentences have one translation each"),
    ],
)
def test_a_search_that_is_impossible_is_refused(echo_translator, options, message):
    with pytest.raises(ValueError, match=message):
        list(echo_translator.stream(["a"], **options))


def test_a_wrong_type_leaves_no_lock_to_other_threads(in_memory):
    """A float for the size of the beam left TensorFlow's lock held: other threads waited."""
    with pytest.raises(TypeError):
        in_memory("a b", beam_size=4.0)
    found = []
    thread = threading.Thread(target=lambda: found.append(in_memory("a b", beam_size=2)))
    thread.daemon = True  # else a failing test never ends
    thread.start()
    thread.join(timeout=60)
    assert found == [in_memory("a b", beam_size=2)]


@pytest.mark.parametrize(
    ("search", "message"),
    [
        ({"max_length": 1}, "max_length must be at least 2"),
        ({"max_length": 8, "max_length_ratio": np.nan}, "max_length_ratio must be above 0"),
        ({"max_length": 32}, "max_length=32 needs 33 positions, .* max_positions=32"),
        ({"beam_size": 0, "max_length": 8}, "beam_size must be from 1 to 13"),
        ({"allow_unknown": False}, "needs a target tokenizer that has an unk_id"),
    ],
)
def test_a_search_that_does_not_fit_the_model_is_refused(letter_tokenizer, search, message):
    tokenizer = types.SimpleNamespace(vocab_size=13, pad_id=0)
    config = tt.TransformerConfig(
        13, 13, num_layers=1, d_model=4, num_heads=1, d_ff=4, positions="learned", max_positions=32
    )
    make = functools.partial(tt.Translator.from_model, tt.Transformer(config))
    with pytest.raises(ValueError, match=message):
        make(tokenizer, tokenizer, tt.Search(**search))
    with pytest.raises(ValueError, match="source tokenizer has vocab_size=280"):
        make(letter_tokenizer, letter_tokenizer)


def test_weights_that_are_not_finite_are_named(randomise, letter_tokenizer):
    model = random_model(randomise)
    model.set_weights([weight * float("nan") for weight in model.get_weights()])
    translator = tt.Translator.from_model(model, letter_tokenizer, letter_tokenizer)
    with pytest.raises(ValueError, match="logits are not finite"):
        translator("a b")


# A process of its own, for a fork of this one would have its threads missing.
FORKED = """
import json, os, sys
import tf_transformer as tt

path, text = sys.argv[1:]
translate = tt.Translator.load(path)
expected = translate(text)
errors = []
for attempt in (lambda: translate(text), lambda: tt.Translator.load(path)):
    read, write = os.pipe()
    if os.fork() == 0:
        try:
            said = attempt()
        except RuntimeError as error:
            said = error
        os.write(write, str(said).encode())
        os._exit(0)
    os.wait()
    errors.append(os.read(read, 10_000).decode())
print(json.dumps({"errors": errors, "alive": translate(text) == expected}))
"""


@pytest.mark.slow
def test_a_forked_process_is_told_at_once(exported_version, sentences):
    found = last_json(run_python("-c", FORKED, exported_version, sentences[0]))
    assert found["alive"]
    for error in found["errors"]:
        assert "does not work after a fork" in error and "spawn" in error
