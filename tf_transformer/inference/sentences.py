"""The sentences of a text, found by rules inside the graph."""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tf_transformer.data.parts import Parts, join_rows
from tf_transformer.data.pieces import PIECES, TAG, VERBATIM
from tf_transformer.inference.text_reader import valid_utf8
from tf_transformer.tokenizers.marks import RESERVED_PATTERN

# Bytes that never occur in UTF-8, so no text has them and no character class matches them.
_MARK = b"\xfe"  # stands around the white space between two sentences
_KEEP = _CUT = b"\xff"  # after a full stop that ends no sentence; around a piece

# Stands for a piece such as an address, whose stops end no sentence.
_PIECE = "\uf500"
_VERBATIM = rf"{VERBATIM[0]}[^{VERBATIM[1]}]*{VERBATIM[1]}|{RESERVED_PATTERN}"

_SPACE = r"\t-\r \x{85}\p{Z}"  # Unicode's white space, to be put in brackets
BREAK = "[\n-\r\x85\u2028\u2029]"
_W = f"[{_SPACE}]"
_W_IN_LINE = r"[\t\v-\r \x{85}\p{Z}]"
_LEFT = r"(?:^|[^\p{L}\p{M}\p{N}])"  # before a word
_NUMERAL = r"(?:\p{N}{1,3}|[IVXL]+)"

_STOP = "[.!?\u037e…‼⁇⁈⁉؟۔।॥։።፧᠃။។།]"
_BULLET = "•‣▪·●○◦■□►▸→"
_TAG = r"(?:</?\p{L}[^<>]*>)"
_FOOTNOTE = r"\[\p{N}+\]|[\p{No}†‡]"
_CLOSE = rf"""(?:["'*_`\p{{Pe}}\p{{Pf}}\p{{Pi}}\p{{Cf}}]|{_W}?[»›]|{_TAG}|{_FOOTNOTE})*"""
_SYMBOLS = r"\x{1F000}-\x{1FAFF}\x{2600}-\x{27BF}\x{FE0F}\x{200D}"
_EMOJI = rf"(?:{_W}*[{_SYMBOLS}]+)*"
# Dialogues have dashes; the letter after an opening question mark may be lower-case.
_OPEN = (
    rf"""(?:[–—{_BULLET}-]{_W}?)?(?:["'*_`\p{{Ps}}\p{{Pi}}\p{{Pf}}\p{{Cf}}]|«{_W}|{_TAG}{_W}?)*"""
)
_FIRST = rf"(?:[{_PIECE}\p{{Lu}}\p{{Lt}}\p{{Lo}}\p{{Georgian}}\p{{N}}\p{{Sc}}¿¡@#]|\p{{Ll}}\)|<a )"

_CJK_STOP = "[。！？｡][。！？｡.!?…]*"
_CJK_CLOSE = r"(?:[\p{Pe}\p{Pf}]|</\p{L}[^<>]*>)"
# No sentence ends before a comma, or between a quotation and a particle: 「行け！」と言った。
_CJK_GOES_ON = rf"{_SPACE}\p{{Pe}}\p{{Pf}}。！？｡.!?…、，､,*<{_SYMBOLS}"
# Letters of scripts without spaces, to be put in brackets; Katakana's ー belongs to no script.
CJK = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Bopomofo}\x{30A0}-\x{30FF}\x{FF66}-\x{FF9F}"
_WIDE_STOP = r"[\p{L}\p{N}\p{Pe}\p{Pf}][\p{L}\p{Pe}\p{Pf}]．"  # not in a number or after initials
# The next sentence may touch these; many write Chinese with the stops of English.
_TOUCHING_STOP = rf"(?:{_WIDE_STOP}|(?:[{CJK}]{{2}}|\p{{Pe}})[.!?]+|[।॥።။។])"
_LINE_TAG = r"(?i:<br ?/?>|</(?:p|li|div|h\d|t[dhr])>)"


def _any_of(words: str) -> str:
    return f"(?:{'|'.join(words.split()).replace('.', f'[.]{_W}?')})"


# No sentence ends with these: titles, and abbreviations that introduce what follows.
_NEVER_LAST = _any_of(
    "Mr MR Mrs MRS Ms Mx Dr DR Drs Prof PROF Gov Capt Lt Sgt Messrs Mt vs [Cc]f viz approx "
    "[Ee].g [Ii].e dvs tj ang tzw [Zz]ob См [Дд]ив нпр т.зв "
    "Hr Hrn Fr Frl Dipl Ing Mag med jur phil rer nat [Bb]zw [Cc]a [Ee]vtl [Gg]gf [Ii]nkl exkl zzgl "
    "[Bb]spw [Ss]og [Vv]gl insb [Zz].B [Dd].h [Uu].a [Uu].U [Ii].d.R [Oo].g Mio Mrd Tsd geb "
    "MM Mme Mmes Mlle Mlles Pr Mgr Ste env [Pp].ex c.-à-d "
    "Sra Srta Sres Srs Dra Dña Lic Gral Avda Av [Pp].ej EE Sig Sigg Dott Avv Arch [Pp].es "
    "dhr mevr drs bijv resp d.w.z f.eks t.ex bl.a np tzn tzv ul św sv inż mgr např pl dl dna "
    "ул вул проф акад напр тыс т.е т.к örn bkz TP"
)
# These are abbreviations before a number; elsewhere some of them are words.
_BEFORE_NUMBER = _any_of(
    "no nos nr nrn pp figs? abb abs art bd kap tab vols? sec(?:t|s)? chs? chap eqs? refs? pos "
    "tel max thm prop def ex app cor alg lem gl bsp etc "
    r"min núm p[aá]gs? \p{L}*str av apr cap jan feb mar mär jun jul aug sept? oct okt nov dec "
    "dez janv févr avr juil déc ene abr ago dic č рис стр гл табл"
)
# A sentence may end with one of these, or with initials; it does if one of `_STARTERS` follows.
_MAYBE_LAST = _any_of(
    "Inc Ltd Co Corp Bros Jr Sr St ST al Ave Blvd Gen Sen Rep Hon Rev Col Chr Jh Jhd Std Univ "
    "Cie см"
)
_STARTERS = _any_of(
    "The This That These Those It He She We They You I If But And So In On At As When While After "
    "There Here What Why How Who Where My His Her Our Their Its Not For From To With Then "
    "Der Die Das Den Dem Des Ein Eine Er Sie Es Wir Ihr Ich Dann Da Aber Und Auch Im Am Mit Nach "
    "Wenn Als Doch Diese Dieser Dieses Was Wer Wie Wo Warum Hier Jetzt Heute Nun "
    "Il Elle Ils Elles Nous Vous Je Ce Cette Cela Mais Et Puis Les Une Dans Él Ella Ellos Pero "
    "Este Esta En Una Ma Gli Questo Questa Ele Ela Mas Het Hij Zij Wij Ik Maar Han Hon Men "
    "Он Она Оно Они Мы Вы Я Это Этот Эта Но И А В На"
)
# German ordinals: "am 3. Oktober", "der 2. Weltkrieg". In English, "I am 30." ends a sentence.
_BEFORE_ORDINAL = (
    rf"(?:{_LEFT}(?:[Vv]om|[Zz]u[mr]|[Bb]eim|[IiBb]m|[Bb]is|[Aa]b|[Ss]eit|[Dd](?:er|ie|as|e[mns])"
    "|[Ee]ine[mnr]?|[Jj]ede[mnrs])"
    rf"|(?:^|[^I]{_W}|[^\p{{L}}\p{{M}}{_SPACE}])[Aa]m)"
)
_AFTER_ORDINAL = _any_of(
    "Januar Jan Jänner Februar Feb März Mär April Apr Mai Juni Jun Juli Jul August Aug September "
    "Sept? Oktober Okt November Nov Dezember Dez Jahrhunderts? Jh Jahrtausends? Weltkriegs? Stock "
    "Klasse Liga Auflage Platz Geburtstag Dünya"
)


def _keep(before: str, after: str = "") -> tuple[str, bytes]:
    """Return a rule by which no sentence ends between two patterns."""
    return f"({before})({after})", rb"\1" + _KEEP + rb"\2"


def _end(before: str, after: str, space: str = f"{_W}+") -> tuple[str, bytes]:
    """Return a rule by which a sentence ends between two patterns."""
    return f"({before})({space})({after})", rb"\1" + _MARK + rb"\2" + _MARK + rb"\3"


# `_LINES` mark the white space at the ends of a text and around its line breaks. `_RULES` are then
# applied to each line in this order. Rules only insert marks, so no part of a text is lost.
_LINES = (
    (f"^({_W}*)", rb"\1" + _MARK),
    (f"({_W}*)$", _MARK + rb"\1"),
    _end(f"[^{_SPACE}]", "", f"{_W}*{BREAK}{_W}*"),
)
_LETTERS = r"(?:(?:\p{L}{1,2}[.])+\p{L}{1,2}|[^\P{Lu}IЯ]|[^\P{Ll}я]|\p{Arabic}|\p{Hebrew})"
_NUMBER = rf"(?:[(\[]?(?:\p{{Lu}}[.-]?)?[{_PIECE}\p{{N}}+]|(?:[IVXL]{{2,}}|[VXL])\b|J[.]-?C)"
_LIST_NUMBER = rf"(?:{_NUMERAL}(?:[.]\p{{N}}{{1,3}})*|\p{{L}})"
_NAME = "(?:Yahoo|Yum|Joomla|Jeopardy)[!！]"  # firms, products
_SHORT = rf"(?:(?:\p{{Lu}}|\p{{N}}|[.{_SPACE}]\p{{Ll}}|\b{_MAYBE_LAST})[.]|{_NAME})"
_RULES = (
    _keep(f"{_LEFT}{_NEVER_LAST}[.]"),
    _keep(f"{_LEFT}(?i:{_BEFORE_NUMBER})[.]", f"{_W}*{_NUMBER}"),
    # Numbers of a list: "1. First", "2.1. Second", "a. Third".
    _keep(rf"^[^\p{{L}}\p{{N}}]{{0,4}}{_LIST_NUMBER}[.．]"),
    _keep(rf"{_STOP}{_W}+\p{{N}}{{1,3}}(?:[.]\p{{N}}{{1,3}})*[.]"),
    _end(f"{_SHORT}{_CLOSE}", f"{_STARTERS}{_W}"),
    _keep(f"{_LEFT}(?:{_MAYBE_LAST}[.]|{_NAME})"),
    _keep("[!?]", rf"{_W}(?:Inc|Ltd|Corp|LLC|GmbH|AG)\b"),
    # Units end a sentence ("5 m. Then", "в 1999 г. Он"), but not in "44 v. Chr.".
    _keep(rf"\p{{N}}{_W}?\p{{Ll}}[.]", rf"{_W}(?:\p{{L}}|Chr)[.]"),
    _end(rf"\p{{N}}{_W}?\p{{Ll}}[.]{_CLOSE}", _OPEN + _FIRST),
    # Initials and words abbreviated to letters: "J. Smith", "U.S. Army", "в г. Москве"; not the
    # end of a contraction ("can't.") or a pronoun ("and I.").
    _keep(rf"(?:^|[^\p{{L}}\p{{M}}\p{{N}}'’]){_LETTERS}[.]"),
    _keep(f"{_BEFORE_ORDINAL}{_W}+{_NUMERAL}[.]"),
    _keep(r"(?:^|[^\p{N}.,])\p{N}{1,2}[.]", rf"{_W}+{_AFTER_ORDINAL}\b"),
    # Where sentences end.
    _end(f"(?:{_STOP}+|{_WIDE_STOP}){_CLOSE}{_EMOJI}", _OPEN + _FIRST),
    # After a bullet a letter may be lower-case; but "1 + … + n", and "- Stop! - she said."
    _end(rf"(?:[^.{_SPACE}][.]|\p{{L}}{{2}}[!?]){_CLOSE}", f"[{_BULLET}*+]{_W}[^{_SPACE}]"),
    _end(f"{_STOP}{_TAG}*{_LINE_TAG}", f"{_TAG}*{_FIRST}", f"{_W}*"),
    _keep('"[^"]*', '"'),  # so that no 。 before a closing quotation mark ends a sentence
    _end(f"{_CJK_STOP}{_CJK_CLOSE}+", rf"[^{_CJK_GOES_ON}とっのがを]|<\p{{L}}", f"{_W}*"),
    _end(_CJK_STOP + _EMOJI, rf"[^{_CJK_GOES_ON}]|<\p{{L}}", f"{_W}*"),
    _end(_TOUCHING_STOP, r"[\p{Lo}（「『“《【]", ""),
)
# These match every text of several lines or sentences, and few others: `_SEVERAL` in TensorFlow,
# and `_MAY_BE_SEVERAL`, which matches more of the others, in Python.
_AFTER_STOP = rf"(?:{_TAG}|{_FOOTNOTE}|[^\p{{L}}\p{{N}}])*(?:{_W}|{_TAG}|\p{{Lo}})"
_SEVERAL = rf"(?s).*(?:(?:{_STOP}{_AFTER_STOP}|[。！？｡．]).*[^{_SPACE}]|{BREAK}).*"
_MAY_BE_SEVERAL = re.compile(f"(?s){_STOP}.|[。！？｡．].|{BREAK}")


class Sentences(NamedTuple):
    """Texts split into leading white space and sentences, each with the white space after it.

    `before + sentences[0] + after[0] + sentences[1] + …` is the text. No sentence is empty or
    begins or ends with white space.
    """

    before: tf.Tensor  # string (B,)
    sentences: tf.RaggedTensor  # string (B, None)
    after: tf.RaggedTensor  # string (B, None)


def split_sentences(text: tf.Tensor, within_lines: bool = True, pieces: str = PIECES) -> Sentences:
    """Split texts into sentences.

    A sentence ends at a line break; after `.`, `!`, `?`, `…` and similar signs of other scripts, if
    white space and an upper-case letter, a letter without case, a digit or a bullet follow; and
    after `。`, `！`, `？` and `．`. Tags of HTML may stand between. A sentence does not end after
    common abbreviations of European languages, initials, numbers of a list and German ordinals. In
    doubt the rules keep two sentences together, because half a sentence is harder to translate.

    Args:
        text: string `(B,)`. Bytes that are not UTF-8 become U+FFFD.
        within_lines: Whether a line may have several sentences; otherwise each line is one.
        pieces: A regular expression of RE2 that finds text in which no sentence ends, beside what
            `PIECES` finds.
    """
    return _sentences(*_hidden(valid_utf8(text), pieces), within_lines)


def _sentences(text: tf.Tensor, hidden: tf.Tensor, within_lines: bool) -> Sentences:
    """Split texts, of which pieces are hidden, into sentences, and show the pieces again."""
    lines = tf.strings.split(_rewritten(text, _LINES), _MARK)
    lines = _rewritten(lines, _RULES if within_lines else ())
    parts = tf.strings.split(lines, _MARK).merge_dims(1, 2)
    parts = parts.with_flat_values(join_rows(tf.strings.split(parts.flat_values, _KEEP)))
    # Every text is now white space, sentence, white space, …, sentence, white space.
    before, sentences, after = parts[:, :1].flat_values, parts[:, 1::2], parts[:, 2::2].flat_values
    # Drop the empty sentence of a text that is only white space.
    kept = tf.where(sentences.flat_values != "")
    rows = tf.gather_nd(sentences.value_rowids(), kept), sentences.nrows()
    shown = _shown(tf.gather_nd(sentences.flat_values, kept), hidden)
    sentences = tf.RaggedTensor.from_value_rowids(shown, *rows, validate=False)
    return Sentences(before, sentences, sentences.with_flat_values(tf.gather_nd(after, kept)))


def _hidden(text: tf.Tensor, pieces: str) -> tuple[tf.Tensor, tf.Tensor]:
    """Return texts `(B,)` with a sign in place of pieces, and all pieces in order.

    Tags without attributes stay, since the rules know them.
    """
    pieces = pieces if pieces == PIECES else f"(?:{pieces})|{PIECES}"
    found = tf.strings.regex_replace(text, f"({_VERBATIM}|{pieces})", _CUT + rb"\1" + _CUT)
    parts = Parts(tf.strings.split(found, _CUT))
    is_hidden = parts.is_piece & ~tf.strings.regex_full_match(parts.flat, TAG)
    return parts.joined(tf.where(is_hidden, _PIECE, parts.flat)), parts.flat[is_hidden]


def _shown(text: tf.Tensor, pieces: tf.Tensor) -> tf.Tensor:
    """Return texts `(B,)` with all pieces in the place of their signs."""
    parts = tf.strings.split(text, _PIECE)
    num_parts, ends = tf.size(parts.flat_values, tf.int64), parts.row_limits()
    is_last = tf.scatter_nd(ends[:, None] - 1, tf.ones_like(ends, tf.bool), [num_parts])
    after = tf.tensor_scatter_nd_update(tf.fill([num_parts], ""), tf.where(~is_last), pieces)
    return join_rows(parts.with_flat_values(parts.flat_values + after))


def split_lines(text: tf.Tensor, within_lines: bool = True, pieces: str = PIECES) -> Sentences:
    r"""Split texts as `split_sentences`, without white space at their ends and around `"\n"`."""
    ends = rf"{_W_IN_LINE}*(?:^|(\n)|$){_W_IN_LINE}*"
    text, hidden = _hidden(valid_utf8(text), pieces)
    return _sentences(tf.strings.regex_replace(text, ends, r"\1"), hidden, within_lines)


def has_several(text: tf.Tensor) -> tf.Tensor:
    """Return whether texts, string `(B,)`, may have several lines or sentences, bool `(B,)`."""
    return tf.strings.regex_full_match(valid_utf8(text), _SEVERAL)


def parts_of(
    texts: Sequence[str], within_lines: bool = True, pieces: str = PIECES
) -> list[list[tuple[str, str]]]:
    """Return one or more sentences of each text by `split_lines`, with the space after each."""
    if not any(map(_MAY_BE_SEVERAL.search, texts)):
        return [[(text, "")] for text in texts]
    encoded = tf.constant([text.encode("utf-8", "replace") for text in texts])
    found = _split(encoded, within_lines, pieces)
    rows = zip(found.before.numpy(), found.sentences.to_list(), found.after.to_list(), strict=True)
    pairs = (zip([b"", *row], [before, *after], strict=True) for before, row, after in rows)
    return [[(s.decode(), a.decode()) for s, a in row if s or a] or [("", "")] for row in pairs]


_split = tf.function(split_lines, autograph=False, reduce_retracing=True)


def _rewritten(text: Any, rules: Sequence[tuple[str, bytes]]) -> Any:
    for pattern, rewrite in rules:
        text = tf.strings.regex_replace(text, pattern, rewrite)
    return text
