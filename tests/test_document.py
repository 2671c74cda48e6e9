"""The signature `translate_document`: texts of any length, in eager Python and in a session."""

import itertools
import json
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import example, given, settings
from hypothesis import strategies as st
from letters import MAX_LENGTH, VOCAB_SIZE
from test_sentences import split

import tf_transformer as tt
from tf_transformer.inference.document import (
    Rows,
    cut_table,
    in_groups,
    split_long,
    translate_documents,
)
from tf_transformer.inference.saved_model import SavedModelError
from tf_transformer.serving import session as session_file

OUTPUTS = {"translation", "sentences", "sentence_translations", "truncated"}
# A lone surrogate stands for a byte that is not UTF-8.
BATCHES = {
    "no texts": [],
    "empty": [""],
    "white space": [" \n\u3000\r\n\t "],
    "not UTF-8": ["a \udcff b. Cd\udcfe\n\udcff"],
    "NULs": ["a\0b. Cd \0\n\0"],
    "no spaces": ["a" * 500 + "\n" + "b" * 500],
    "characters of bytes": ["🙂好é" * 100],
    "long": ["a b c d e " * 100 + ". " + "Abc def. " * 100],
    "several": ["", " \n", "a b. Cd ef!\n\n g", "\udcff", "\0", "a b " * 20, "", "Ab 。好！b"],
}


# Answers each line of standard input, texts as JSON, with a line of outputs.
SESSION = """
import importlib.util, json, sys
sys.modules["tf_transformer"] = None  # makes importing it an error
spec = importlib.util.spec_from_file_location("session", sys.argv[1])
session = importlib.util.module_from_spec(spec)
spec.loader.exec_module(session)
model = session.SavedModelSession(sys.argv[2], threads=1)

def decoded(value):
    return value.decode() if isinstance(value, bytes) else [decoded(v) for v in value]

for line in sys.stdin:
    texts = [text.encode("utf-8", "surrogateescape") for text in json.loads(line)]
    found = model.run("translate_document", {"text": texts})
    print(json.dumps({
        name: decoded(array) if array.dtype == object else array.tolist()
        for name, array in found.items()
    }), flush=True)
"""


def decoded(value):
    return value.decode() if isinstance(value, bytes) else [decoded(v) for v in value]


@pytest.fixture(scope="module")
def session(exported_version):
    """The signature in a session, in a process that cannot import this package."""
    command = [sys.executable, "-I", "-c", SESSION, session_file.__file__, str(exported_version)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as process:

        def translate(texts):
            process.stdin.write(json.dumps(texts) + "\n")
            return json.loads(process.stdout.readline())

        yield translate
        process.stdin.close()


@pytest.fixture(params=["eager", "session"])
def translate(request, in_memory):
    """The signature of a random model, from texts to lists."""
    if request.param == "session":
        return request.getfixturevalue("session")

    def translate(texts):
        batch = [text.encode("utf-8", "surrogateescape") for text in texts]
        found = in_memory.module.translate_document(tf.constant(batch, tf.string))
        arrays = {name: value.numpy() for name, value in found.items()}
        return {
            name: decoded(array) if array.dtype == object else array.tolist()
            for name, array in arrays.items()
        }

    return translate


def rows_of(found):
    """The outputs of each text, without padding: what a batch adds."""
    columns = [found[name] for name in sorted(OUTPUTS)]
    for sentence_translations, sentences, translation, truncated in zip(*columns, strict=True):
        number = len([s for s in sentences if s])
        assert not any(sentences[number:]) and not any(sentence_translations[number:])
        yield translation, sentences[:number], sentence_translations[:number], truncated


@pytest.mark.parametrize("texts", BATCHES.values(), ids=BATCHES)
def test_every_text_comes_back_with_its_sentences(translate, texts):
    found = translate(texts)
    assert set(found) == OUTPUTS
    rows = list(rows_of(found))
    assert len(rows) == len(texts)
    for text, (translation, sentences, sentence_translations, _) in zip(texts, rows, strict=True):
        [(before, expected)] = split(text.replace("\udcff", "\ufffd").replace("\udcfe", "\ufffd"))
        assert sentences == [sentence for sentence, _ in expected]
        rest = translation.removeprefix(before)
        for (_, after), one in zip(expected, sentence_translations, strict=True):
            assert rest.startswith(one + after)
            # Where sentences touch, their translations may be apart.
            rest = rest.removeprefix(one + after).removeprefix("" if after else " ")
        assert rest == ""


def test_a_sentence_is_translated_as_it_is_alone(translate, in_memory, sentences):
    # More than two groups, with white space of all kinds between them.
    alone = [f"{sentence.capitalize()}{end}" for end in "!?…" for sentence in sentences]
    layout = list(itertools.islice(itertools.cycle([" ", "\n", "  ", "\r\n\r\n\t", "\u3000"]), 180))
    text = "\n " + "".join(itertools.chain.from_iterable(zip(alone, layout, strict=True)))
    found = translate([text])
    expected = [in_memory(sentence) for sentence in alone]
    assert len(set(expected)) > 40, "translations that differ, or equality says little"
    assert found["sentences"] == [alone]
    assert found["sentence_translations"] == [expected]
    assert found["translation"] == [
        "\n " + "".join(itertools.chain.from_iterable(zip(expected, layout, strict=True)))
    ]


def test_truncated_says_that_a_translation_met_its_limit(translate, in_memory, sentences):
    flags = [best.truncated for (best,) in in_memory.n_best(sentences, 1)]
    assert {*flags} == {True, False}
    assert translate(sentences)["truncated"] == flags
    ended = [s for s, flag in zip(sentences, flags, strict=True) if not flag]
    cut = sentences[flags.index(True)]
    texts = ["\n".join(ended), "\n".join([*ended, cut]), "", "\n".join([cut, *ended])]
    assert translate(texts)["truncated"] == [False, True, False, True]


def test_batches_concatenated_are_a_batch(translate):
    texts = [text for batch in BATCHES.values() for text in batch]
    together = list(rows_of(translate(texts)))
    for size in (1, 3):
        apart = [
            row
            for start in range(0, len(texts), size)
            for row in rows_of(translate(texts[start : start + size]))
        ]
        assert apart == together


def test_a_batch_padded_by_repeated_rows_is_the_batch(translate):
    # As a server pads to one of its batch sizes.
    texts = BATCHES["several"]
    padded = translate([*texts, *[texts[-1]] * 24])
    assert {name: value[: len(texts)] for name, value in padded.items()} == translate(texts)


# --- Translator.document --------------------------------------------------------------------


def test_a_str_gives_a_str_and_a_list_a_list(echo_translator, loaded, in_memory):
    assert echo_translator.document(" a b. C d!\n\ne\n") == " a b. C d!\n\ne\n"
    assert echo_translator.document(["a", "", "b c"]) == ["a", "", "b c"]
    assert echo_translator.document([]) == []
    assert echo_translator.document(text for text in "ab") == ["a", "b"]
    assert loaded.document("a b. C d!\n") == in_memory.document("a b. C d!\n") != "a b. C d!\n"


def test_another_type_than_str_is_refused(echo_translator):
    with pytest.raises(TypeError, match="item 1 is NoneType"):
        echo_translator.document(["a", None])
    with pytest.raises(TypeError, match="received bytes"):
        echo_translator.document(b"a")


def test_a_saved_model_that_cannot_is_named(loaded):
    class Older:
        settings = loaded.module.settings

    with pytest.raises(SavedModelError, match="no signature translate_document; write it again"):
        tt.Translator(Older()).document("a")


@pytest.mark.parametrize(
    "text",
    ["a b c d e " * 200, "a" * 500, "🙂" * 100, "好" * 100 + "。", "a" * 40 + " b" + " 🙂好" * 30],
)
def test_nothing_of_a_long_sentence_is_lost(echo_translator, text):
    document = echo_translator.document(text)
    # Words, and a space where they are too long.
    assert document.replace(" ", "") == text.replace(" ", "")
    assert "\ufffd" not in document
    if max(map(len, text.split())) < MAX_LENGTH - 4:
        assert document.split() == text.split()


# --- Its parts ------------------------------------------------------------------------------


def touching(text, *replaced):
    """The document whose sentences are translated by replacing in them."""

    def translate(rows):
        texts = tf.strings.unicode_encode(rows, "UTF-8")
        for old, new in replaced:
            texts = tf.strings.regex_replace(texts, old, new)
        return Rows(texts, tf.zeros_like(texts, tf.bool))

    tokenize = tf.function(lambda texts: tf.strings.unicode_decode(texts, "UTF-8"))
    found = translate_documents(
        tf.constant([text]), tokenize, translate, np.ones(0x10000, np.int8), limit=20
    )
    return found["translation"].numpy()[0].decode()


def test_chinese_sentences_touch_and_their_translations_do_not():
    text = "你好。我是！ 对。\n他说：“停！”走。"
    assert touching(text) == text
    english = (("。", "."), ("！", "!"), ("\\p{Han}+", "ab"), ("：“", ': "'), ("”", '"'))
    assert touching(text, *english) == 'ab. ab! ab.\nab: "ab!" ab.'
    # An empty translation needs no space.
    assert touching("你好。我是！对。", *english, ("ab!", "")) == "ab. ab."


def test_chunks_are_joined_with_a_space_unless_one_is_empty():
    text = "a" * 20 + "b" * 20 + "c" * 20
    assert touching(text) == f"{'a' * 20} {'b' * 20} {'c' * 20}"
    assert touching(text, ("a+", "")) == f"{'b' * 20} {'c' * 20}"
    assert touching(text, ("b+", "")) == f"{'a' * 20} {'c' * 20}"
    assert touching(text, ("[a-c]+", "")) == ""


def test_a_chunk_may_begin_with_a_word_or_a_character(letter_tokenizer):
    cuts = cut_table(letter_tokenizer)
    assert cuts.shape == (VOCAB_SIZE,)
    [ids] = letter_tokenizer.encode(["a é 🙂"])
    assert letter_tokenizer.subwords(ids)[:3] == ["▁a", "▁", "<0xC3>"]
    assert cuts[ids].tolist() == [2, 2, 1, 0, 2, 1, 0, 0, 0]


def test_a_tokenizer_without_subwords_is_cut_anywhere(letter_tokenizer):
    class Other:
        vocab_size = 5

    assert cut_table(Other()).tolist() == [1] * 5


SENTENCES = st.lists(st.lists(st.sampled_from([0, 0, 1, 1, 1, 2]), max_size=40), max_size=5)


CHUNK_SPECS = [tf.TensorSpec([None], tf.int32), tf.TensorSpec([None], tf.int64)]


@tf.function(input_signature=[*CHUNK_SPECS, tf.TensorSpec([], tf.int64)], autograph=False)
def split_graph(tokens, lengths, limit):
    # Tokens are their own levels: 2 begins a word, 1 a character, 0 nothing.
    sentences = tf.RaggedTensor.from_row_lengths(tokens, lengths)
    return split_long(sentences, np.arange(3, dtype=np.int8), limit)


@settings(max_examples=150, deadline=None)
@example([], 1)
@example([[], [2] * 9, [], [0] * 9, []], 4)
@given(SENTENCES, st.integers(1, 12))
def test_chunks_fit_and_begin_as_well_as_they_can(sentences, limit):
    lengths = [len(sentence) for sentence in sentences]
    chunks, rows = split_graph(list(itertools.chain(*sentences)), lengths, limit)
    chunks, rows = chunks.to_list(), rows.numpy().tolist()
    assert rows == sorted(rows)
    for index, sentence in enumerate(sentences):
        own = [chunk for chunk, row in zip(chunks, rows, strict=True) if row == index]
        assert list(itertools.chain(*own)) == sentence
        assert len(own) == 1 or all(0 < len(chunk) <= limit for chunk in own)
        assert (len(own) == 1) == (len(sentence) <= limit)
        for chunk, following in itertools.pairwise(own):
            # What follows would have begun earlier had there been a better place.
            assert following[0] == 2 or 2 not in chunk[1:]
            assert following[0] >= 1 or 1 not in chunk[1:]


def test_chunks_have_like_lengths():
    chunks, _ = split_graph([2] * 130, [130], 127)
    assert chunks.row_lengths().numpy().tolist() == [65, 65]


@pytest.mark.parametrize("num_rows", [1, 64, 65, 200])
def test_groups_are_small_and_sorted_and_come_back_in_order(num_rows):
    lengths = np.random.default_rng(0).integers(0, 9, num_rows)
    rows = tf.RaggedTensor.from_row_lengths(np.repeat(np.arange(num_rows), lengths), lengths)
    groups = []

    def translate(group):
        groups.append(group.row_lengths().numpy().tolist())
        texts = tf.strings.reduce_join(tf.strings.as_string(group), axis=-1, separator=" ")
        return Rows(texts, group.row_lengths() > 5)

    found = in_groups(rows, translate)
    expected = [" ".join([str(row)] * length) for row, length in enumerate(lengths)]
    assert [text.decode() for text in found.texts.numpy()] == expected
    assert found.truncated.numpy().tolist() == (lengths > 5).tolist()
    assert all(len(group) == 64 for group in groups[:-1]) and len(groups[-1]) <= 64
    assert list(itertools.chain(*groups)) == sorted(lengths, reverse=True)


def test_many_lines_are_translated_like_few(loaded, sentences):
    lines = [sentences[index % len(sentences)] + " a" * (index % 7) for index in range(300)]
    translate = loaded.module.signatures["serving_default"]

    def translated(texts):
        return [text.decode() for text in translate(text=tf.constant(texts))["translation"].numpy()]

    [together] = translated(["\n".join(lines)])
    assert together == "\n".join(translated(lines[:200]) + translated(lines[200:]))
