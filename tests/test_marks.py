"""Pieces that come out as they went in: what is found in texts, and what an export promises."""

import collections
import functools
import re

import letters
import numpy as np
import pytest
import tensorflow as tf
from graph_session import Server
from hypothesis import given
from hypothesis import strategies as st

import tf_transformer as tt
from tf_transformer.data.mark_practice import practise_marks
from tf_transformer.data.marks import MarkedText, Marks, seem_forced
from tf_transformer.data.pieces import VERBATIM
from tf_transformer.data.word_links import WordLinks
from tf_transformer.errors import ConfigError
from tf_transformer.inference.terms import insert_terms
from tf_transformer.tokenizers.additions import with_symbols
from tf_transformer.tokenizers.marks import RESERVED, MarkIds, MarkSymbols
from tf_transformer.tokenizers.vocabulary import VocabularyTokenizer, vocabulary_model

FEW = Marks(4)  # with two pairs
NAMES = dict(zip(MarkSymbols.first(4).all, ["0", "1", "2", "3", "A", "B", "a", "b"], strict=True))
# Texts, and what they are with marks: [0] for a plain one, [A] and [a] for those of a pair.
FOUND = {
    "Plain text.": "Plain text.",
    "Hi {name}, {0} {} of {n, number}!": "Hi [0], [1] [2] of [3]!",
    "{{x}} ${y} #{z} %{w}": "[0] [1] [2] [3]",
    "Delete {n, plural, one {a} other {{n} {k, select, x {y} other {z}} b}}?": "Delete [0]?",
    "{{{x}}} {!! x !!} ${x + 1} {0, 10:N2}": "[0] [1] [2] [3]",
    "{ x y } <% if a % b %>": "{ x y } [0]",
    "%s, %1$s, %(n)s and %5.2f": "[0], [1], [2] and [3]",
    "%<name>s, %<price>.2f, %1$,d or %1$tY": "[0], [1], [2] or [3]",
    "%#@files@, %I64d, %(имя)s, $t(a.b)": "[0], [1], [2], [3]",
    "%1 of %PRODUCTNAME %PATH% $(ARG1)": "[0] of [1] [2] [3]",
    "%PRODUCTNAME%VERSION %d%% %lu": "[0] [1][2] [3]",
    "50 % der 100%ig 50%, 100% of": "50 % der 100%ig 50%, 100% of",
    "US$ 20, $20, 5@3.50": "US$ 20, $20, 5@3.50",
    "$name $x$": "[0] [1]",
    "See https://a.b/c?x=1&y=(z). Or (http://x.y/z).": "See [0]. Or ([1]).",
    "www.example.org, a.b@example.org!": "[0], [1]!",
    "https://x.de/{id}/edit?a={b}, mailto:{c}.": "[0], [1].",
    "HTTPS://X.DE/Käse, sftp://a.de/хлеб.": "[0], [1].",
    "http://b.kr을 mailto:x": "[0]을 [1]",
    "发送至a@b.cn的邮箱，见http://b.cn/x。": "发送至[0]的邮箱，见[1]。",
    "<a_b> <x:y>": "[0] [1]",
    "AT&T &amp; &#160;x": "AT&T [0] [1]x",
    "Run `make all` now": "Run [0] now",
    "<b>Bold</b> text": "[A] Bold[a] text",
    "<b>a <i>b</i></b>": "[A] a [B] b[b][a]",
    "<b>a <b>b</b></b>": "[A] a [B] b[b][a]",
    "<i>a <b>b</i></b>": "[A] a [B] b[a][b]",
    "H<sub>2</sub>O": "H[A] 2[a]O",
    '<a href="x y">u</a><g id=1>v</g><b>w</b>': "[A] u[a][B] v[b][0]w[1]",
    '<input type="checkbox" checked> <a download href=\\"%s\\">x</a>': "[0] [A] x[a]",
    '<b @click="go" :a="b" [c]="d">x</b> <file name> <button disabled>y</button>': (
        "[A] x[a] <file name> [B] y[b]"
    ),
    "<br> <br/> </p>": "[0] [1] [2]",
    "<All files>, 1 < 2 > 0": "<All files>, 1 < 2 > 0",
    "<none selected> <file required> a <b (c = 5)> d": (
        "<none selected> <file required> a <b (c = 5)> d"
    ),
    "50 %<b>de</b>, {n}%<br>off": "50 %[A] de[a], [0]%[1]off",
    "《http://a.cn/x》很好 ‹https://a.b›¹ http://c.d→": "《[0]》很好 ‹[1]›¹ [2]→",
    "https://hi.wikipedia.org/wiki/हिन्दी https://he.b/a/שָׁ, x": "[0] [1], x",
    "https://ja.b/wiki/日本, http://例え.jp/?q=東京. x://": "[0], [1]. x://",
    "http://한국.kr/a/나라 見る": "[0] 見る",
    "见https://a.cn/下载，http://b.cn/x下载": "见[0]下载，[1]下载",
    "$tên {số, number} {tên, plural, one {a} other {b}} %<имя>s": "[0] [1] [2] [3]",
    r"_http://a.b/c_ \nhttp://a.b http://한국.kr": r"_[0] \n[1] [2]",
    "<none>": "<none>",
    "Hi <name>, <1>you</1>": "Hi [0], [A] you[a]",
    "%@ %dx%d {{ x }} { -brand } <%= y %>": "[0] [1]x[2] [3] { -brand } <%= y %>",
    "%50 indirim, 50%discount, 100%d'or": "%50 indirim, 50%discount, 100%d'or",
    "It`s mine and it`s yours, Ke$ha": "It`s mine and it`s yours, Ke$ha",
    "{1} {2} {3} {4} {5}": "[0] [1] [2] [3] {5}",
    "\uf500 and \uf5ff": "[0] and [1]",
    "{a}\n{b}": "[0]\n[1]",
}
PIECES = ["{name}", "%s", "%s", "<b>", "</b>", "<i>", "</i>", "https://a.b/?c.", "&amp;", "\uf500"]
ALPHABET = st.sampled_from([*PIECES, "a", " ", ".", ". ", "ß"])


def shown(text):
    return "".join(f"[{NAMES[c]}]" if c in NAMES else c for c in text)


@pytest.mark.parametrize(("text", "expected"), FOUND.items())
def test_pieces_are_found(text, expected):
    marked = FEW.mark(tf.constant([text]))
    found = marked.text.numpy()[0].decode()
    assert shown(found) == expected
    assert FEW.unmark(tf.constant([[found]]), marked).numpy() == [[text.encode()]]


@given(st.lists(st.lists(ALPHABET, max_size=14), min_size=1))
def test_marks_become_the_pieces_again(texts):
    texts = ["".join(parts) for parts in texts]
    marked = FEW.mark(tf.constant(texts))
    back = [row.decode() for (row,) in FEW.unmark(marked.text[:, None], marked).numpy()]
    for text, found, again in zip(texts, marked.text.numpy(), back, strict=True):
        marks = [c for c in found.decode() if c in RESERVED]
        assert len(marks) == len({*marks}) and {*marks} <= {*FEW.symbols.all}
        # Only what is a mark itself and one too many is replaced, and pairs move spaces.
        if {*"AB"} & {*shown(found.decode())}:
            text, again = text.replace(" ", ""), again.replace(" ", "")
        assert again == text or ("\uf500" in text and "\ufffd" in again)


@pytest.mark.parametrize(
    ("text", "expected"),
    {"a<b> c</b>": "a [A] c[a]", "<b>a </b>c": "[A] a[a] c", "<b> 5 </b>": "[A] 5 [a]"}.items(),
)
def test_spaces_inside_of_a_pair_go_to_its_outside(text, expected):
    marked = FEW.mark(tf.constant([text]))
    assert shown(marked.text.numpy()[0].decode()) == expected


@pytest.mark.parametrize(
    ("source", "found", "expected", "is_forced"),
    [
        ("{a} is {b} or <b>c</b>.", "[A] C[a] ist.[0][1]", "<b>C</b> ist. {a} {b}", True),
        ("{a}, {b} and {c}", "Das ist[0][1][2].", "Das ist {a} {b} {c}.", True),
        ("Open {a}", "Aç[0]", "Aç {a}", False),  # nobody knows
        ("Open {a} ({b}) now", "Öffne ([1])[0]", "Öffne ({b}) {a}", True),
        ("{a} files", "Dateien: [0]", "Dateien: {a}", False),
        ("{a} files", "Dateien ([0])", "Dateien ({a})", False),
        ("Open {a}", "»[0]« öffnen", "»{a}« öffnen", False),
        ("{a} 个文件", "打开[0]", "打开{a}", True),
        # The source is written so, too.
        ("%dx%d of {c}", "[2]: [0]x[1]", "{c}: %dx%d", False),
        ("{a}{b} files", "Dateien: [0][1]", "Dateien: {a}{b}", False),
        ("v{a} is here", "Hier ist v[0]", "Hier ist v{a}", False),
        ("1.%s", "1.[0]", "1.%s", False),
        ("%s.%s is missing", "Es fehlt [0].[1]", "Es fehlt %s.%s", False),
        # What would be read as one piece.
        ("%NAME of a@b.org", "von.[1]10[0]20 Grad", "von. a@b.org 10 %NAME 20 Grad", False),
        ("写书？%NAME 和 %VERSION", "好。[0][1]", "好。%NAME %VERSION", False),
        ("%d%% of %NAME at %HOST", "Zu [0][1] [2][3]", "Zu %d%% %NAME %HOST", False),
        ("{n} files", "%[0] dosya", "% {n} dosya", False),
        ("$(N) files", "%[0] dosya", "%$(N) dosya", False),
        ("{a} files", "[0]s Dateien", "{a}s Dateien", False),
        (f"a {VERBATIM[0]}file{VERBATIM[1]}", "[0]lar", "filelar", False),
    ],
)
def test_a_space_keeps_pieces_apart_from_what_only_the_translation_has_beside_them(
    source, found, expected, is_forced
):
    symbols = {name: symbol for symbol, name in NAMES.items()}
    found = tf.constant([[re.sub(r"\[(.)\]", lambda mark: symbols[mark[1]], found)]])
    marked = FEW.mark(tf.constant([source]))
    assert FEW.unmark(found, marked).numpy()[0, 0].decode() == expected
    assert bool(seem_forced(found, marked.text)) == is_forced


def test_pairs_have_marks_where_both_sides_have_a_piece_equally_often():
    expected = {
        ("{a} and {b}", "{b} und {a}"): ("[0] and [1]", "[1] und [0]"),
        ("{a} and {a}", "{a}"): ("{a} and {a}", "{a}"),
        ("%s of {a}", "{a} von {a}, %s"): ("[0] of {a}", "{a} von {a}, [0]"),
        ("<b>x</b> <i>y", "<b>X</b> Y"): ("[A] x[a] <i>y", "[A] X[a] Y"),
        ("no", "nein"): ("no", "nein"),
    }
    text = MarkedText(tt.ParallelText(*zip(*expected, strict=True)), FEW)
    assert [tuple(map(shown, pair)) for pair in text] == [*expected.values()]
    assert text.fingerprint != MarkedText(text.text, Marks(4, "x")).fingerprint


def test_an_own_pattern_may_find_percentages():
    marked = Marks(4, r"\d+%").mark(tf.constant(["Save 50% now"]))
    assert marked.pieces.numpy()[0, 0] == b"50%" and b"%" not in marked.text.numpy()[0]


@pytest.mark.parametrize(("pattern", "message"), [("(", "RE2"), ("x*", "matches an empty text")])
def test_an_unusable_pattern_is_refused(pattern, message):
    with pytest.raises(ConfigError, match=message):
        Marks(4, pattern)


def test_subwords_of_a_run_are_no_pieces():
    marks = Marks(4, None, ["{de}", "<BT>", "the"])
    assert marks.mark(tf.constant(["{de} {x}"])).text.numpy()[0].decode() == "{de} \uf500"


# Practice


@functools.cache
def links(phrases):
    return WordLinks.learn(phrases.train)


def test_practice_gives_both_sides_the_same_marks(phrases):
    pairs, symbols = list(phrases.train), MarkSymbols.first(16)
    found = practise_marks(pairs, 0.5, np.random.default_rng(0), links(phrases), symbols)
    again = practise_marks(pairs, 0.5, np.random.default_rng(0), links(phrases), symbols)
    assert found == again
    changed = [(*pair, *old) for pair, old in zip(found, pairs, strict=True) if pair != old]
    assert len(changed) > 0.2 * len(pairs)
    used, num_before = collections.Counter(), 0
    plain, opening, closing = map("".join, symbols)
    no_space = re.compile(f"[{opening}][^ ]")
    for source, target, old, _ in changed:
        assert not no_space.search(source + target)
        words = re.sub(f"[{plain}{opening}] |[{closing}]", "", source)
        num_before += words == old and not {*plain}.isdisjoint(source)
        marks = [[c for c in side if c in RESERVED] for side in (source, target)]
        assert sorted(marks[0]) == sorted(marks[1]) and len(marks[0]) == len({*marks[0]})
        used.update(marks[0])
        order = [c for c in marks[0] if c in symbols.plain + symbols.opening]
        for kind in symbols.plain, symbols.opening:
            numbers = [c for c in order if c in kind]
            assert numbers == sorted(numbers)
    assert {*used} == {*symbols.all} and num_before > 0.02 * len(pairs)


def test_words_that_translate_each_other_are_found():
    colours = {"red": "rot", "green": "grün", "blue": "blau", "white": "weiß"}
    things = {"house": "Haus", "mouse": "Maus", "tree": "Baum", "door": "Tür"}
    pairs = [
        (f"the {c} {t} {n}", f"{n} {things[t]} ist {colours[c]}")
        for n in range(3) for c in colours for t in things
    ]  # fmt: skip
    found = WordLinks.learn(pairs).spans("the red tree 7", "7 Baum ist rot", longest=1)
    words = {("the red tree 7"[slice(*a)], "7 Baum ist rot"[slice(*b)]) for a, b in found}
    assert {("red", "rot"), ("tree", "Baum"), ("7", "7")} <= words
    assert WordLinks.learn(pairs).spans("", "x") == WordLinks.learn([]).spans("a", "b") == []


# Tokenizers


@pytest.fixture(scope="module")
def tokenizer(sentences):
    """The tokenizer of letters with eight marks and four pairs."""
    symbols = MarkSymbols.first(8).all
    return tt.SentencePieceTokenizer.train(sentences, 300, user_symbols=symbols)


@pytest.mark.parametrize("kind", ["sentencepiece", "table"])
def test_symbols_are_added_after_the_subwords(letter_tokenizer, kind):
    old = letter_tokenizer
    if kind == "table":
        special = {"pad": "<pad>", "unk": "<unk>", "bos": "<s>", "eos": "</s>"}
        subwords = old.subwords(range(old.vocab_size))[::-1]  # padding is the last one
        old = VocabularyTokenizer(vocabulary_model(subwords, old.splitter, special), old.splitter)
    symbols = ["<BT>", *MarkSymbols.first(4).all]
    new = with_symbols(old, symbols)
    assert new.vocab_size == old.vocab_size + len(symbols) and new.pad_id == old.pad_id
    assert new.encode(["a b c."]) == old.encode(["a b c."])
    assert new.mark_ids == MarkIds(*(tuple(ids) for ids in np.split(
        np.arange(old.vocab_size + 1, new.vocab_size), [4, 6])))  # fmt: skip
    for text in ("<BT> a", "a \uf500b"):
        assert new.tokenize([text]).to_list() == new.encode([text])
        assert new.decode(new.encode([text])) == [text]
    assert with_symbols(new, symbols).model == new.model
    assert {*symbols} <= {*new.user_symbols}


# An export with random weights, which translates nothing right, and keeps all pieces


@pytest.fixture(scope="module")
def server(randomise, tokenizer, tmp_path_factory):
    """A session with the SavedModel of a model of random weights; n-best searches with a beam."""
    model = letters.random_model(randomise, vocab_size=tokenizer.vocab_size)
    translator = letters.translator_of(model, tokenizer, beam_size=1, repair_loops=True)
    path = tt.export_saved_model(translator, tmp_path_factory.mktemp("saved_models") / "marks")
    return Server(str(path))


def counts(text, pieces):
    return {piece: text.count(piece) for piece in pieces}


TEXTS = [
    "a {x} b %s c",
    "<b>a</b> <i>b %s</i>, <b>c</b>",
    "{x}",
    "{x}{y} http://a.b/?c=1. And b {z}. {x}",
    "%1 %2 %3 %4 %5 %6 %7 %8",
    "<b><i><u><s>a</s></u></i></b>",
    "a b c",
    "",
    "a\n{x}\nb {y}",
    " ".join(f"ab cd {{{n}}}" for n in range(8)),
    # Longer than max_length, too.
    *(f"{{a}} {'b c ' * n}<b>%s</b>" for n in range(12)),
    *(f"a b <b>c d <i>{'e f ' * n}</i> g</b> <u>h {'i ' * n}</u>" for n in range(5, 30, 3)),
]
KEPT = sorted({*re.findall(r"\{\w+\}|%\w|</?\w>|http\S*1", "".join(TEXTS))})


@pytest.mark.parametrize("signature", ["serving_default", "translate_document", "translate_nbest"])
def test_every_piece_is_in_every_translation(server, signature):
    found = server.run(signature, TEXTS)
    column = found["translations" if signature == "translate_nbest" else "translation"]
    for number, (text, translations) in enumerate(zip(TEXTS, column, strict=True)):
        if isinstance(translations, str):
            translations = [translations]
        if signature == "translate_nbest":
            if found["truncated"][number]:  # the source lost its end, or has several lines
                continue
            scores = zip(translations, found["scores"][number], strict=True)
            translations = [t for t, score in scores if score > -1e8]
        if signature == "serving_default" and len(text) > 40:
            continue  # what is beyond `max_length` is dropped
        for translation in translations:
            assert counts(translation, KEPT) == counts(text, KEPT)
            tags = "".join(re.findall(r"</?\w>", translation))
            while tags != (tags := re.sub(r"<(\w)></\1>", "", tags)):
                pass
            assert not tags


def test_both_sides_of_a_pair_are_marked_alike(server, tokenizer):
    texts = {"source": ["a {x} b", "{y}"], "target": ["{x} a", "{y}"]}
    assert server.run("score", texts)["num_tokens"] == [4, 3]  # a space, the mark, a, the end
    subwords = server.run("align", texts)
    for side in ("source", "target"):
        of_side = subwords[f"{side}_subwords"]
        assert "{x}" in of_side[0] and "{y}" in of_side[1], "one subword each"


def test_terms_are_honoured(server):
    long = "a File, the file name and files"
    rows = [  # texts, terms, and what is in a translation once
        (long, "file\tDATEI\nfile name\tNAME X.", ["DATEI", "NAME X."]),
        ("file", "file\tDATEI", ["DATEI"]),
        ("A. b File.\nc file name", "file name\tZ. Y\nFile\tF", ["F", "Z. Y"]),
        ("a {file}", "", ["{file}"]),
        ("", "x\ty", []),
    ]
    texts, terms, expected = zip(*rows, strict=True)
    found = server.run("translate_with_terms", {"text": texts, "terms": terms})["translation"]
    for translation, each in zip(found, expected, strict=True):
        assert counts(translation, each) == dict.fromkeys(each, 1)


@pytest.mark.parametrize(
    ("source", "text", "expected"),  # [x] is a term whose translation is x
    [
        ("<i>a <b>c</b></i>", "<i>a <b>c</i></b>", True),
        ("<i>a <b>c</b></i>", "<b>a</b> <i>c</i>", False),
        ("<i>a <b>c</i></b>", "<b>a <i>c</b></i>", False),  # as in the source
        ("<ul><li>a. b</li></ul>", "<ul><li>a</ul> b</li>", True),
        ("{a} {a}", "{a}", True),
        ("a", "{a}", True),
        ("[{y} loaf] {z}", "{z} {y} loaf", False),
        ("[{y} loaf] {z}", "{z} loaf", True),
        ("[a] [b] [c] [d] {e}", "a b c d {e}", True),  # more than four marks
        ("[a] [b] [c] {e}", "a b c {e}", False),
    ],
)
def test_what_differs_from_the_source(source, text, expected):
    source = source.translate(str.maketrans("[]", "".join(VERBATIM)))
    assert FEW.differ(tf.constant([source]), tf.constant([[text, text]])).numpy().tolist() == [
        [expected, expected]
    ]


@pytest.mark.parametrize(
    ("text", "terms", "expected"),
    [
        ("Files and profile", "file\tX", "Files and profile"),
        ("ÖL und Öltank, öl", "öl\tOil", "[Oil] und Öltank, [Oil]"),
        ("NATO nato", "NATO\tNATO", "[NATO] nato"),
        ("C++ (x) a.b", "c++\tC++\n(x)\ty\na.b\tz", "[C++] [y] [z]"),
        ("打开文件", "打开\topen", "[open]文件"),
        ("เปิดไฟล์นี้", "ไฟล์\tfile", "เปิด[file]นี้"),
        ("ที่นี่ กรุงเทพ", "ที\tX\nกร\tY", "ที่นี่ กรุงเทพ"),
        ("file file\u00a0name", "file name\tN\nfile\tF", "[F] [N]"),
        (
            "Der Caf\u00e9-Gast, der Cafe\u0301-Gast",
            "Cafe\u0301\tC\nGast\tG",
            "Der [C]-[G], der [C]-[G]",
        ),
        ("10\u00a0km file  name", "10\u00a0km\tA\u00a0B\nfile  name\tN", "[A\u00a0B] [N]"),
        ("Brot_a, _Brot_ Brot-b", "\ufeffBrot\tB\tnote\nBrot\tC", "Brot_a, _[B]_ [B]-b"),
        ("সম\u09df", "সম\u09df\tX", "[X]"),  # which is not its own form NFC
        (
            "Bahn\u00adhof, می\u200cخواهم bahn",
            "bahn\tB\nخواهم\tX",
            "Bahn\u00adhof, می\u200cخواهم [B]",
        ),
        ("http://file/ {file} file", "file\tF", "http://file/ {file} [F]"),
        ("a b", "b\n\tx\na\tb\tc\n", "[b] b"),
    ],
)
def test_terms_are_whole_words_longest_first(text, terms, expected):
    begin, end = VERBATIM
    found = insert_terms(tf.constant([text]), tf.constant([terms]), FEW).numpy()[0].decode()
    assert found.replace(begin, "[").replace(end, "]") == expected


def test_models_without_marks_translate_with_pieces_as_text(echo_translator):
    text = "a {b} c"
    assert echo_translator.module.translate_with_terms is None
    assert echo_translator.n_best([text], 1)[0][0].text == text


@pytest.mark.slow
def test_a_translator_in_python_keeps_pieces_too(randomise, tokenizer):
    model = letters.random_model(randomise, vocab_size=tokenizer.vocab_size)
    search = tt.Search(max_length=letters.MAX_LENGTH)
    translator = tt.Translator.from_model(model, tokenizer, tokenizer, search)
    for text, translation in zip(TEXTS[:9], translator(TEXTS[:9]), strict=True):
        assert counts(translation, KEPT) == counts(text, KEPT)


def test_a_piece_may_have_signs_that_end_sentences(server):
    texts = [
        '<a title="A b. C d">a</a> b. <link>C d. A</link>',
        "<!-- A b. C d --> a b. C",
        "a `b. C` d. https://a.b/?c. A b",
    ]
    found = server.run("translate_document", texts)["translation"]
    pieces = [['<a title="A b. C d">', "<link>", "</link>"], ["<!-- A b. C d -->"], ["`b. C`"]]
    for translation, each in zip(found, pieces, strict=True):
        assert counts(translation, each) == dict.fromkeys(each, 1)


def test_a_neighbour_with_marks_changes_nothing(server):
    texts = ["a b c", "the quick brown fox", "\u200b", "Z", "dogs and cats."]
    alone = server.run("translate_nbest", texts)
    beside = server.run("translate_nbest", [*texts, "a {b} c"])
    for name in ("translations", "flags"):
        assert beside[name][:-1] == alone[name]
    for name in ("scores", "lengths"):
        np.testing.assert_allclose(beside[name][:-1], alone[name], rtol=1e-5)


def test_a_large_glossary_and_empty_terms(server):
    terms = "\n".join(f"word{n}\tTerm{n}" for n in range(10_000)) + "\na b\tX Y\nc\t\n"
    found = server.run("translate_with_terms", {"text": ["word7 a b c"], "terms": [terms]})
    assert counts(found["translation"][0], ["Term7", "X Y"]) == {"Term7": 1, "X Y": 1}
    assert RESERVED.isdisjoint(found["translation"][0])


def test_flags_are_not_for_what_stays_as_it_is(server):
    found = server.run("translate_nbest", ["{0}: {1}", "https://example.com/a/long/one", ""])
    assert {flags for row in found["flags"] for flags in row} == {""}
