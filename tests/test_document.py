"""The signature `translate_document`: texts of any length, in a session."""

import functools
import itertools

import letters
import pytest
import tensorflow as tf
from graph_session import Server
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_sentences import split

import tf_transformer as tt
from tf_transformer.inference.document import between, in_sentences, split_long, translate_sentences
from tf_transformer.inference.sentences import split_sentences

# A lone surrogate stands for a byte that is not UTF-8.
BATCHES = {
    "no texts": [],
    "white space": [" \n\u3000\r\n\t "],
    "not UTF-8": ["a \udcff b. Cd\udcfe\n\udcff"],
    "NULs": ["a\0b. Cd \0\n\0"],
    "no spaces": ["a" * 500 + "\n" + "b" * 500],
    "characters of bytes": ["🙂好é" * 100],
    "long": ["a b c d e " * 100 + ". " + "Abc def. " * 100],
    "several": ["", " \n", "a b. Cd ef!\n\n g", "\udcff", "\0", "a b " * 20, "", "Ab 。好！b"],
}
OUTPUTS = ("translation", "sentences", "sentence_translations", "truncated")


@pytest.fixture(scope="module")
def translate(exported_version):
    """The signature of a random model in a session, from texts to lists."""
    return functools.partial(Server(str(exported_version)).run, "translate_document")


def rows_of(found):
    """The outputs of each text, without padding: what a batch adds."""
    assert set(found) == set(OUTPUTS)
    columns = [found[name] for name in OUTPUTS]
    for translation, sentences, sentence_translations, truncated in zip(*columns, strict=True):
        number = len([s for s in sentences if s])
        assert not any(sentences[number:]) and not any(sentence_translations[number:])
        yield translation, sentences[:number], sentence_translations[:number], truncated


@pytest.mark.parametrize("texts", BATCHES.values(), ids=BATCHES)
def test_every_text_comes_back_with_its_sentences(translate, texts):
    for text, row in zip(texts, rows_of(translate(texts)), strict=True):
        translation, sentences, sentence_translations, _ = row
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

    def joined(parts):
        # After an empty translation, only line breaks and tabs stay.
        pairs = zip(parts, layout, strict=True)
        spaces = [space if part or {*"\n\t"} & {*space} else "" for part, space in pairs]
        return "\n " + "".join(map("".join, zip(parts, [*spaces[:-1], layout[-1]], strict=True)))

    found = translate([joined(alone)])
    expected = in_memory(alone)
    assert len(set(expected)) > 40, "translations that differ, or equality says little"
    assert found["sentences"] == [alone]
    assert found["sentence_translations"] == [expected]
    assert found["translation"] == [joined(expected)]


def test_truncated_says_that_a_translation_met_its_limit(translate, in_memory, sentences):
    flags = [best.truncated for (best,) in in_memory.n_best(sentences, 1)]
    assert {*flags} == {True, False}
    assert translate(sentences)["truncated"] == flags
    ended = [s for s, flag in zip(sentences, flags, strict=True) if not flag]
    cut = sentences[flags.index(True)]
    texts = ["\n".join(ended), "\n".join([*ended, cut]), "", "\u200b", "\n".join([cut, *ended])]
    assert translate(texts)["truncated"] == [False, True, False, False, True]


def test_a_paragraph_without_an_end_is_not_cut_in_silence(in_memory):
    long = "a b c d e f g h " * 40
    for text in (long, f"Ab. {long}", f"{long}.ab! Ab", f"好。{long}"):
        [[best]] = in_memory.stream([text])
        assert best.source_truncated


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n", "\x85", "\u2028", "\u2029"])
def test_n_best_reports_every_line_break(in_memory, end):
    flags = [best.source_truncated for [best] in in_memory.n_best(["a", f"a{end}b", f"a{end}"], 1)]
    assert flags == [False, True, False]


def test_batches_concatenated_are_a_batch(translate):
    texts = [text for batch in BATCHES.values() for text in batch]
    together = list(rows_of(translate(texts)))
    apart = [rows_of(translate(texts[start : start + 3])) for start in range(0, len(texts), 3)]
    assert list(itertools.chain(*apart)) == together


def test_each_part_of_a_long_sentence_has_the_tag(letter_tokenizer):
    model = letters.EchoModel(letters.VOCAB_SIZE)
    translator = letters.translator_of(model, letter_tokenizer, source_tag="<a>")
    text = "b c d e f " * 20
    before, *parts = translator.document(text).split("<a>")
    assert before == "" and "".join(parts).split() == text.split()
    assert len(parts) > 4 and max(len(part.split()) for part in parts) < letters.MAX_LENGTH
    assert translator.document("Ab cd. Ef") == "<a> Ab cd. <a> Ef"


# --- Its parts ------------------------------------------------------------------------------


def touching(text, *replaced):
    """The document whose sentences are translated by replacing in them."""

    def translate(rows):
        texts = tf.strings.unicode_encode(rows, "UTF-8")
        for old, new in replaced:
            texts = tf.strings.regex_replace(texts, old, new)
        return texts, tf.zeros_like(texts, tf.bool)

    sentences = split_sentences([text])
    tokens = tf.strings.unicode_decode(sentences.sentences.flat_values, "UTF-8")
    found = translate_sentences(sentences, tokens, translate, limit=20)
    return found["translation"].numpy()[0].decode()


def test_chinese_sentences_touch_and_their_translations_do_not():
    text = "你好。我是！ 对。\n他说：“停！”走。"
    assert touching(text) == text.replace(" ", "")
    english = (("。", "."), ("！", "!"), ("\\p{Han}+", "ab"), ("：“", ': "'), ("”", '"'))
    assert touching(text, *english) == 'ab. ab! ab.\nab: "ab!" ab.'
    # An empty translation needs no space.
    assert touching("你好。我是！对。", *english, ("ab!", "")) == "ab. ab."


# Translations that touch, and those between which white space stays or a space is put.
TOUCHING = [
    ("你好。", " ", "我走。"), ("你好！", "\u3000 ", "“我走。”"), ("他说「好」", " ", "她来"),
    ("（真的。）", " ", "GNU 是"), ("走了……", " ", "3 天。"), ("走了……", " ", "三天。"),
    ("好的!", " ", "走吧"), ("データー", " ", "ｶﾅ｡"), ("好！😀", " ", "走。"), ("", "", "No."),
    ("你好。", "", "Hello."), ("我用 iPhone。", " ", "Android 好。"), ("123。", " ", "好。"),
]  # fmt: skip
APART = [
    ("好。", "\n\n", "走。"), ("好。", " \r\n", "走。"), ("表。", "\t", "列。"),
    ("用 GNU.", " ", "走。"), ("走吧", " ", "GNU"), ("네.", " ", "좋아요."), ("네.", "", "좋아요."),
    ("「네。」", " ", "좋아요."), ("ไปไหน", " ", "มาแล้ว"), ("ខ្ញុំទៅ។", " ", "គាត់"),
    ("Yes.", "", "No."), ("Yes.", "  ", "No."),
    # A full stop of Chinese within other text is no end of Chinese.
    ('He said "谢谢！"', " ", "Then he left."), ("Kaufen Sie 東京！", " ", "Das ist gut."),
]  # fmt: skip


def test_translations_decide_whether_a_space_is_between_them():
    left, spaces, right = map(list, zip(*TOUCHING, *APART, strict=True))
    expected = [""] * len(TOUCHING) + [space or " " for _, space, _ in APART]
    assert [found.decode() for found in between(left, right, spaces).numpy()] == expected


def test_chinese_sentences_touch_in_python_as_in_the_graph():
    chinese = {"One.": "一。", "Two.": "二。", "Three.": "GNU。", "Four.": "Four."}

    def translate(sentences):
        return ([tt.Translation(chinese[s], 0.0, 0.0, 1, False, False)] for s in sentences)

    texts = 300 * ["Four."] + ["One. Two. Three. Four. One.\n Two.", "Four. Four.", "One."]
    found = [best.text for (best,) in in_sentences(iter(texts), translate)]
    assert found == 300 * ["Four."] + ["一。二。GNU。Four. 一。\n二。", "Four. Four.", "一。"]


def test_chunks_of_chinese_touch():
    assert touching("好" * 50) == "好" * 50
    assert touching("a" * 50, ("a", "好")) == "好" * 50


def test_chunks_are_joined_with_a_space_unless_one_is_empty():
    text = "a" * 20 + "b" * 20 + "c" * 20
    assert touching(text) == f"{'a' * 20} {'b' * 20} {'c' * 20}"
    assert touching(text, ("b+", "")) == f"{'a' * 20} {'c' * 20}"
    assert touching(text, ("[a-c]+", "")) == ""


@tf.function(
    input_signature=[tf.TensorSpec([None], dtype) for dtype in (tf.int32, tf.int64)],
    autograph=False,
)
def split_graph(tokens, lengths):
    return split_long(tf.RaggedTensor.from_row_lengths(tokens, lengths), 4)


@settings(max_examples=40, deadline=None)
@example([])
@example([0, 9, 0, 4, 5, 0])
@given(st.lists(st.integers(0, 30), max_size=5))
def test_chunks_fit_and_have_like_lengths(lengths):
    sentences = [list(range(length)) for length in lengths]
    chunks, rows = split_graph(list(itertools.chain(*sentences)), lengths)
    rows = rows.numpy().tolist()
    assert rows == sorted(rows)
    for index, sentence in enumerate(sentences):
        own = [c for c, row in zip(chunks.to_list(), rows, strict=True) if row == index]
        assert list(itertools.chain(*own)) == sentence
        sizes = [len(chunk) for chunk in own]
        assert len(own) == max(1, -(-len(sentence) // 4)) and max(sizes) <= 4
        assert len(own) == 1 or (min(sizes) > 0 and len({*sizes[:-1]}) == 1)
