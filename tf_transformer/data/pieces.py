"""Expressions that find the pieces of a text, in the syntax of RE2, which has no look-ahead."""

# Signs around a piece that already is what it shall become, such as the translation of a term.
# They are characters of Unicode's private use area, as marks are.
VERBATIM = "\uf5c0", "\uf5c1"

_BRACKETS = r"""<>"'`«»“”‘’()\[\]{}（）【】「」『』"""
# Text in scripts without spaces follows an address at once.
_UNSPACED = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
_IN_LINK = rf"[^\s\p{{Z}}{_BRACKETS}{_UNSPACED}、。，：；！？]"
_IN_BRACKETS = rf"\({_IN_LINK}*\)|\{{[^{{}}\s]*\}}"
_LINK = rf"{_IN_LINK}|{_IN_BRACKETS}"
_LINK_END = rf"{_IN_LINK[:-1]}.,:;!?*@|^\\…–—؟،؛।]|{_IN_BRACKETS}"
_CONVERSION = "[diouxXeEfFgGcpsn@]"
_SIZE = "(?:hh?|ll?|[Lqjzt]|I64|I32)"
_FORMAT = rf"[-+0#',]*\d*(?:[.]\d+)?(?:{_SIZE}?{_CONVERSION}|[tT][A-Za-z])"  # after a name
_FLAT = _NESTED = r"[^{}\n]*"
for _ in range(4):  # braces in braces, as ICU's {n, plural, one {…} other {…}} has them
    _NESTED = rf"{_FLAT}(?:\{{{_NESTED}\}}{_FLAT})*"
TAG_NAME = r"[A-Za-z0-9][\w:.-]*"
# HTML's attributes without a value; those of frameworks have names such as @click and [value].
_BARE = (
    r"\s+(?i:allowfullscreen|async|autofocus|autoplay|checked|controls|default|defer|disabled|"
    r"download|hidden|inert|loop|multiple|muted|novalidate|open|readonly|required|reversed|selected)"
)
_VALUE = r"""(?:\\?"[^"<]*"|'[^'<]*'|[^\s"'<>=`]+)"""
ATTRIBUTE = rf"(?:\s+[@:#*(\[]*[A-Za-z_][\w:.\-)\]]*\s*=\s*{_VALUE}|{_BARE})"
# What is kept in each text.
_PLACEHOLDERS = "|".join(
    (
        # Addresses, without the punctuation after them.
        rf"(?:\b[A-Za-z][A-Za-z0-9+.-]*://|\bmailto:|\bwww[.])(?:{_LINK})*(?:{_LINK_END})",
        r"[A-Za-z0-9_][\w.+-]{0,64}@[A-Za-z0-9-]+(?:[.][A-Za-z0-9-]+)*[.][A-Za-z]{2,}",
        r"\B`[^`\s](?:[^`\n]*[^`\s.!?])?`\B",  # code of Markdown
        # {{x}}, {{{x}}}, {%x%}, ${x}, #{x}, %{x}, {0}, {name}, <%x%>, and ICU's {n, number},
        # {when, date, short} and, as a whole, {n, plural, one {…} other {…}}
        rf"\{{\{{(?:{_FLAT}|\{{{_FLAT}\}})\}}\}}|\{{%{_FLAT}%\}}|\{{!!{_FLAT}!!\}}|[$#%@]\{{{_FLAT}\}}",
        rf"\{{ ?[^{{}}\s]* ?\}}|\{{\d+[,:]{_FLAT}\}}|<%[^\n]*?%>",
        r"\{ ?\w+ ?, ?(?:number|date|time|ordinal|spellout|duration|list) ?(?:,[^{}'\n]*)?\}",
        rf"\{{ ?\w+ ?, ?(?:plural|select|selectordinal) ?,{_NESTED}\}}",
        r"\$t?\([\w.:-]+\)|\B\$[A-Za-z_]\w*\$?|\$\d\b",
        # %%, %1$s, %(name)s, %<name>s, %#@name@, %5.2f, %PATH%, %PRODUCTNAME, %s and %1
        rf"%%|%\d+\$(?:{_FORMAT}|#@\w+@)|%#@\w+@|%(?:\([^()\s]+\)|<\w+>){_FORMAT}",
        rf"%[-+0#',]*(?:\d+|\*)?[.](?:\d+|\*){_SIZE}?{_CONVERSION}\b",
        rf"%[-+0#']*\d*{_SIZE}{_CONVERSION}\b|%[-+0#']*\d+{_CONVERSION}\b|%[-+',*]d\b",
        rf"(?:%[A-Z][A-Z0-9_]+)+\b%?|%[A-Za-z]\w{{2,}}%|%[ds@]|%{_CONVERSION}\b|%L?\d\b",
        r"&(?:[A-Za-z][A-Za-z0-9]{1,31}|#\d{1,7}|#[xX][0-9A-Fa-f]{1,6});",
    )
)
TAG = rf"</?{TAG_NAME}\s*/?>"  # without attributes
PIECES = rf"{_PLACEHOLDERS}|<!--[^\n]*?-->|<{TAG_NAME}{ATTRIBUTE}+\s*/?>|{TAG}"
OPENING_TAG, CLOSING_TAG = rf"<{TAG_NAME}{ATTRIBUTE}*\s*>", rf"</{TAG_NAME}\s*>"
# Text in angle brackets that is no tag if it stands alone, such as <none>.
AMBIGUOUS = r"<[A-Za-z][A-Za-z-]*>"
HTML_TAG = (
    r"<(?i:a|abbr|b|big|br|cite|code|dd|del|dfn|div|dl|dt|em|font|h[1-6]|hr|i|img|ins|kbd|li|mark|"
    r"ol|p|pre|q|s|small|span|strike|strong|sub|sup|table|td|th|tr|tt|u|ul|var|wbr)>"
)
