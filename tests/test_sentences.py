"""The rules that find sentences: a table of texts in several languages, and what holds for any."""

import re

import tensorflow as tf
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tf_transformer.inference.sentences import split_sentences

# Unicode's white space; that of `str.isspace` has four control characters more.
SPACE = "\t\n\v\f\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
split_graph = tf.function(
    split_sentences, input_signature=[tf.TensorSpec([None], tf.string)], autograph=False
)


def split(*texts):
    """For each text what is before, and its sentences each with what follows."""
    found = split_graph(tf.constant([text.encode() for text in texts]))
    rows = zip(found.before.numpy(), found.sentences.to_list(), found.after.to_list(), strict=True)
    return [
        (before.decode(), [(s.decode(), a.decode()) for s, a in zip(sentences, after, strict=True)])
        for before, sentences, after in rows
    ]


# A ¦ is where the next sentence begins.
TEXTS = [
    # English
    "Hello. ¦World!  ¦How are you? ¦Fine… \t¦Thanks.",
    "Mr. Smith met Mrs. Jones and Dr. Brown. ¦They talked.",
    "J. R. R. Tolkien and George W. Bush met J. Smith. ¦Nobody saw it.",
    "He joined the U.S. Army. ¦She left the U.S. ¦The president stayed.",
    "It costs $3.50, or 1.000 yen. ¦No more.",
    "At 5 p.m. Monday they came. ¦At 5 p.m. ¦They left.",
    "Apple Inc. hired Apple Inc. CEO Tim Cook. ¦He works for Apple Inc. ¦The firm grew.",
    "Some, e.g. The Times, or i.e. Mr. Brown, vs. Mrs. Brown. ¦Yes.",
    "See Fig. 3, No. 5, vol. II and pp. 7. ¦No. ¦I do not.",
    "Jan. 5 was cold. ¦Dec. 25 was not.",
    "Shaw et al. (2018) said so. ¦Others, etc. ¦Nobody else.",
    '"Stop!" he said. ¦"Go!" ¦She went.',
    "“Stop!” he said. ¦“Go!” ¦She went.",
    "(He came. ¦He saw.) ¦He left [again]. ¦Then nothing.",
    "Wait... what? ¦Well ... nothing. ¦Oh … and you. ¦Oh!!! ¦What?! ¦Yes.",
    "I am 25. ¦John is 30. ¦Am I 20. ¦Perhaps.",
    "I can't. ¦Mary can. ¦Between you and I. ¦Bob knows. ¦So do I. ¦She too.",
    "It began in 1939. ¦In 1945 it ended. ¦April came.",
    "1. First. 2. Second. 3.1. Third.".replace(" 2", " ¦2").replace(" 3", " ¦3"),
    "1. First¦\n2. Second item. ¦More.¦\n  a. Third",
    "(1. First. ¦Second)",
    "Read Sec. 2. ¦Then go.",
    "Go to www.example.com. ¦Or write to me@example.com! ¦Version 2.1.3 is out.",
    "Great! 😀 ¦You? 👍🏽 ¦Yes.",
    "Hello! ¦@ann sees #this. ¦#that too. ¦$5 please.",
    "**Bold.** ¦*Slanted.* ¦_Both._ ¦Plain.",
    "St. Paul's is near Main St. ¦It is big.",
    "We ended. ¦- Next? ¦– Next! -- no",
    # German
    "Am 3. Oktober 1990 kam er. ¦Im 19. Jahrhundert nicht. ¦Der 2. Weltkrieg begann 1939.",
    "Vom 1. Stock zum 2. Stock. ¦Bis 5. Mai. ¦Es ist der 7. Jan. 2020.",
    "Der II. Weltkrieg. ¦Ludwig XIV. war König. ¦Er starb am 5. ¦Dann war Ruhe.",
    "Obst, z.B. Äpfel, z. B. Birnen, d.h. Die Sorten, u. a. Kirschen. ¦Gut.",
    "Prof. Dr. med. Müller und Dipl.-Ing. Meier wohnen bzw. Arbeiten hier. ¦Ja.",
    "Ca. 5 Mio. Euro, vgl. Abb. 3, S. 5, § 5 Abs. 2 Nr. 3 BGB. ¦Ende.",
    "„Komm!“, sagte er. ¦„Geh!“ ¦»Nein.« ¦›Doch.‹ ¦Er ging.",
    "»Was?«, fragte sie. ¦Er kam. ¦»Ja.«",
    "Äpfel usw. ¦Und Birnen. ¦Öl, usw. und Salz.",
    "Caesar starb 44 v. Chr. in Rom. ¦Die Größe M. ¦Das Kleid passt.",
    "Die Müller & Co. KG, Hauptstr. 5, e. V. ¦Er geht.",
    "Es regnet.¦\nEs schneit¦\r\nSonne.¦\n\n\nWind. ¦Ende",
    # French
    "Il dit : « Non ! » ¦Puis il partit. ¦« Oui. » ¦« Quoi ? » demanda-t-il.",
    "M. Dupont, Mme Durand et Mlle. Petit. ¦C’est vrai !\u202f¦Quoi\u202f? ¦Rien.",
    "En 52 av. J.-C. Alésia tomba. ¦P. ex. Paris. ¦Cf. La page 3, env. 5 km.",
    "— Viens. ¦— Non. ¦Émile rit.",
    # Spanish, Portuguese, Italian
    "¿Cómo estás? ¦¿y tú? ¦¡Bien! ¦¡Ay! ¦Ángel vino.",
    "El Sr. García y la Sra. Pérez, p. ej. En casa. ¦EE. UU. ganó. ¦Págs. 3.",
    "Vive na Av. Paulista. ¦A Dra. Ana, o Prof. Silva. ¦Óbvio.",
    "Il Sig. Rossi e il Dott. Verdi, pag. 3. ¦È vero? ¦Sì. ¦«Ciao.» ¦«Addio!» disse.",
    # Dutch, Nordic languages
    "Dhr. Jansen en mevr. De Vries, bijv. Anna, d.w.z. Niemand. ¦Ja.".replace("Dhr", "De dhr"),
    "Den 3. oktober kom han. ¦Bl.a. Norge, f.eks. Oslo, t.ex. Malmö. ¦Å ja.".replace("Bl", "I bl"),
    # Slavic languages, Greek, Turkish
    "Я живу в г. Москве на ул. Ленина. ¦И. В. Петров здесь. ¦Он родился в 1999 г. ¦Она тоже.",
    "— Да. ¦— Нет. ¦Это я. ¦Иван ушёл. ¦Т.е. Иван?".replace("Т.е", "И т.е"),
    "Mieszka na ul. Długiej, np. Pan Kowalski i p. Nowak. ¦Św. Jan. ¦Źle.".replace("Św", "Dla św"),
    "Ο κ. Παπαδόπουλος ήρθε. ¦Έφυγε. ¦Τι;",
    "Das ist i. d. R. Müll. ¦Es wiegt 10 z. B. Am Ende. ¦Es wiegt 5 g. ¦Otto wog es.",
    "2. Dünya Savaşı bitti. ¦Dr. Öz geldi. ¦Şimdi.",
    # Scripts without case
    "你好。¦我是学生！¦你呢？¦他说：“停！”¦然后（真的。）¦走了……还有，对吗",
    "我有３.５元。 ¦好！！¦真的？！ ¦嗯。",
    "「行け！」と言った。¦「はい。」¦彼は走った。\u3000¦次。",
    "「そう。」、「いいえ。」が答え。¦終わり。",
    "안녕하세요. ¦저는 학생입니다. ¦네!",
    "यह एक वाक्य है। ¦यह दूसरा है॥ ¦क्या? ¦हाँ।",
    "كيف حالك؟ ¦أنا بخير. ¦د. محمد هنا۔ ¦نعم!",
    "שלום. ¦מה שלומך? ¦טוב.",
    "გამარჯობა. ¦როგორ ხარ? ¦კარგად.",
    "Բարեւ։ ¦Ինչպես ես։ ¦Լավ։",
    "สวัสดีครับ ผมชื่อสมชาย",
    # Not much of a text
    "...",
    "? ! .",
    "A",
    ". ¦A",
    "a.b.c",
]  # fmt: skip


def test_sentences_are_found():
    for marked, (_, found) in zip(TEXTS, split(*(t.replace("¦", "") for t in TEXTS)), strict=True):
        assert [sentence for sentence, _ in found] == [part.strip() for part in marked.split("¦")]


def test_every_line_break_ends_a_sentence():
    # Even where a full stop before it ends none.
    for text in ("a", "Mr.", "1.", "J.", "am 3.", "no."):
        for end in ("\n", "\r\n", "\r", "\n\n", " \n ", "\x85", "\u2028", "\u2029", "\v", "\f"):
            assert split(text + end + "x") == [("", [(text, end), ("x", "")])]


def test_bytes_that_are_not_utf8_are_replaced():
    # These two are the marks that the rules work with.
    found = split_graph(tf.constant([b"A\xfe Bc. C\xff\xfe\0. \0", b"\xff"]))
    sentences = [[s.decode() for s in row] for row in found.sentences.to_list()]
    assert sentences == [["A\ufffd Bc.", "C\ufffd\ufffd\0. \0"], ["\ufffd"]]


WORDS = (
    "Mr.|z. B.|am |3.|19. |Der |Jahrhundert |The |J.|p.|No.|Inc.|II.|5 m.|a|B|я|Г|好|と|é|x\u0301"
)
OTHERS = " \n\r\xa0\u3000\u2028\0\x1e\u200d\ufffd\ufffe😀.!?…。！？।*«»„“”\"'()「」¿-–"
ATOMS = st.sampled_from([*WORDS.split("|"), *OTHERS, "  ", "\r\n"])
TEXT = st.lists(ATOMS, max_size=30).map("".join) | st.text(max_size=30)


@settings(max_examples=100, deadline=None)
@example(["\n\n", " a \n", "A.\nB。 C"])
@given(st.lists(TEXT, min_size=1, max_size=3))
def test_nothing_of_a_text_is_lost(texts):
    found = split(*texts)
    for text, (before, sentences) in zip(texts, found, strict=True):
        assert before + "".join(s + after for s, after in sentences) == text
        for sentence, after in sentences:
            assert re.fullmatch(f"[^{SPACE}]|[^{SPACE}].*[^{SPACE}]", sentence, re.DOTALL)
            assert not re.search("[\n-\r\x85\u2028\u2029]", sentence)
            assert re.fullmatch(f"[{SPACE}]*", after)
    # A text's sentences are its own.
    assert found == [row for text in texts for row in split(text)]
