"""The rules that find sentences: a table of texts in several languages, and what holds for any."""

import re

import pytest
import tensorflow as tf
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tf_transformer.inference.sentences import has_several, split_lines, split_sentences

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


# As manuals, changelogs, web pages and notes write. A | is where the next sentence begins.
FOUND_IN_DOCUMENTS = """
• Copies all files. |• Does it ask first?
• one is copied. |• two is kept. |‣ Three is gone.
* Added a table. |* removed the old one. |* [Unix] 1 * 2 * ... * N = N!
- Fixed a leak. |- Added a check (#12). |- `Run` is faster.
+ Sorts names. |+ keeps their order: 1 + 2 + … + N, N! + 1.
· One. |· Two.
1. Open the lid. |2. Turn the key. |3. Wait.
1) Open the lid. |2) Turn the key.
(a) It works. |(b) It fails.
He said *never.* |Then he left. |_Really?_ |Yes.
Run `make.` |Then `tar` follows. |**Note.** |`X` is set.
<p>It is raining.</p> |<p>We stay in.</p>
<b>It is raining.</b> |We stay in. |<i>All day!</i> |<a href="x.html">More</a> follows.
<li>First one.</li>|<li>Second one.</li>
A line ends here.<br>|Another begins.<br/>|<b>A third</b> too.
The town was founded in 1200.[1] |It grew.[12][13] |It fell.
You run a copy.\u200b |\u200bIt stays.\u200f |End.
The function is given by Eq. (2) and Fig. [3]. |It is smooth.
See Eqs. (3) and (4), Sec. A.2, Fig. S1 and Tab. B-3. |They agree.
Read vol. 2, no. 5, pp. 12 and ch. 7. |Then stop.
He worked at Yahoo! Inc. and at Yahoo! Japan. |It was fun!
Some installed Joomla! 4 there. |Do you use Yahoo! |The others do.
It runs on Linux, e.g. (but not only) Debian, i.e. (mostly) servers. |Good.
It was Smith vs. the State. |J. Smith won, and F. K. Miller lost.
Use version 2.0. |Version 1.9.3 is old, and v. 2.0 is new.
Edit foo.txt. |Then read /etc/bar.conf. |The file a.b.c stays.
Get it from https://example.org/a?b=cd. |Or ask me@example.org. |See .NET and Node.js.
It was done by A. Turing et al. in 1936. |Few knew it.
The file is named .bashrc. |It is read once... |And again?! |Yes!!! |No.
Ist das z. B. der Fall, d. h. immer? |Ja, bzw. Nein. |Vgl. (3) unten.
Am 3. Oktober, zur 2. Auflage, in einer 3. Runde und jedem 4. Fall. |Gut.
Montag, 22. Juli 2024. |Siehe Abb. (4), Nr. 7 und S. 19 oben. |Ende.
Il arrive ! |Vraiment ? |« Oui. » |Voir fig. (2), p. ex. ici.
Véase la fig. (1), pág. 3, p. ej. aquí. |¿Dónde? |¡Allí!
См. Раздел 12. |Это (см. Рис. 3) важно. |Да, т. е. Нет.
Дивіться текст (див. Розділ 2). |Це все. |Тобто (напр. Київ) так.
Zobacz opis (zob. Rozdział 3) i sieć (ang. Local Network). |Koniec, tzw. Finał.
Verze je nová, tj. Nejnovější, např. (2). |Konec.
Hij komt, d.w.z. Morgen, bijv. (1). |Goed.
● Copies all files. |● Asks first. |→ Stops.
The house is old.¹ |It fell.† |See Thm. (2), Def. (3) and Bsp. (4), etc. (5). |End.
Yahoo！日本へ。|Guess? Inc. sells them. |Good.
Τι κάνεις; |Καλά.
他走了。|“好！”|他说。|再见。
这是第一句．|这是第二句（真的）．|“这是第三句”．|完了
使用 LISTEN．|它是协议．|版本是３．５哦．|好
此選項很新.|它在此有效.|真的嗎?|是这样!|好的
按下按键(左键).|它会打开.|文件名是 a.txt 和 名称.txt
唯一的办法是ＡＢ．Ｃ 和 １．２ 版。|好。
ｱﾘｶﾞﾄｳ｡|ﾏﾀﾈ｡ |ﾊｲ｡
１．はじめに。|終わり。
一．总则。|二．范围。
太好了！😀 |走吧。|他说："停。"然后走了。|"走。"再说。**好。**然后
<p>你好。</p>|<p>再见。</p>|<b>好</b>！
यह घर है।|वह पेड़ है॥ |ठीक?
ខ្ញុំទៅ។|គាត់មក ។\u200b |ចប់
ང་འགྲོ། |ཁྱོད་འོང། |ཚར།
እሱ መጣ። |እሷ ሄደች፧ |አዎ።
ကျွန်တော်သွားသည်။ |သူလာသည်။|ပြီးပြီ။
هل جئت؟ |نعم. |وہ آیا۔ |اچھا!
Եկա՞ր։ |Այո։
진짜? |네. |「좋아요.」 |끝.
Really⁈ |Oh‼ |What⁇ |No…
""".strip().splitlines()  # fmt: skip


@pytest.mark.parametrize("marked", FOUND_IN_DOCUMENTS)
def test_sentences_of_documents_are_found(marked):
    text = marked.replace("\\u200b", "\u200b").replace("|", "")
    [(_, found)] = split(text)
    assert "|".join(s + after for s, after in found) == marked
    # Otherwise the graph would translate the text whole.
    assert has_several(tf.constant([text])).numpy()[0] or len(found) == 1


def test_every_line_break_ends_a_sentence():
    # Even where a full stop before it ends none.
    for text in ("a", "Mr.", "1.", "J.", "am 3.", "no."):
        for end in ("\n", "\r\n", "\r", "\n\n", " \n ", "\x85", "\u2028", "\u2029", "\v", "\f"):
            assert split(text + end + "x") == [("", [(text, end), ("x", "")])]


def test_pieces_of_an_own_pattern_stay_as_they_are():
    sentences = ["Ab [[cd \n ef. Gh]] <a title='I. Jk'>lm</a> no.", "Pq"]
    found = split_lines(tf.constant([" \n ".join(sentences)]), True, r"(?s)\[\[.*?\]\]|<b>")
    assert found.sentences.to_list() == [[sentence.encode() for sentence in sentences]]


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
