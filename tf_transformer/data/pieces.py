"""Expressions that find the pieces of a text, in the syntax of RE2, which has no look-ahead."""

# Signs around a piece that already is what it shall become, such as the translation of a term.
# They are characters of Unicode's private use area, as marks are.
VERBATIM = "\uf5c0", "\uf5c1"
SIGNS = f"[{''.join(VERBATIM)}]"

# No piece has signs and marks in it, so that these expressions find what is around them.
_NOT = "\uf500-\uf5ff"
_BRACKETS = rf"""<>"'`«»“”‘’()\[\]{{}}（）【】「」『』{_NOT}"""
# Text in scripts without spaces follows an address at once.
SOUTHEAST_ASIAN = r"\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
_UNSPACED = rf"\p{{Han}}\p{{Hiragana}}\p{{Katakana}}{SOUTHEAST_ASIAN}"
_IN_LINK = rf"[^\s\p{{Z}}{_BRACKETS}{_UNSPACED}、。，：；！？]"
_IN_BRACKETS = rf"\({_IN_LINK}*\)|\{{[^{{}}\s{_NOT}]*\}}"
_LINK = rf"{_IN_LINK}|{_IN_BRACKETS}"
# Particles of Korean follow an address at once, too.
_LINK_END = rf"[^\P{{L}}{_UNSPACED}\p{{Hangul}}]|[\p{{M}}\p{{Nd}}/#=&_~$%+-]|{_IN_BRACKETS}"
# In the name of a host, in a path below the first level and in a query they belong to it.
_CJK = r"[\p{Han}\p{Hiragana}\p{Katakana}ー\p{Hangul}]"
_CJK_END = rf"[/=]{_CJK}(?:(?:{_IN_LINK}|{_CJK})*(?:[\w/#=&~$%+-]|{_CJK}))?"
_SCHEME = "(?i:https?|s?ftps?|file|ssh|git|svn|ldaps?|wss?|irc|rtsp|smb)://"
_W = r"[\w\x{C0}-\x{52F}\x{1E00}-\x{1EFF}]"  # also Greek and Cyrillic; RE2's \w is ASCII
_CONVERSION = "[diouxXeEfFgGcpsn@]"
_SIZE = "(?:hh?|ll?|[Lqjzt]|I64|I32)"
_FORMAT = rf"[-+0#',]*\d*(?:[.]\d+)?(?:{_SIZE}?{_CONVERSION}|[tT][A-Za-z])"  # after a name
_FLAT = rf"[^{{}}\n{_NOT}]*"
_FORMS = _INSIDE = rf"[^{{}}{_NOT}]*"
for _ in range(4):  # braces in braces, as ICU's {n, plural, one {…} other {…}} has them
    _FORMS = rf"{_INSIDE}(?:\{{{_FORMS}\}}{_INSIDE})*"
TAG_NAME = r"[A-Za-z0-9][\w:.-]*"
ICU_FORMS = rf"\s*[^{{}},\s{_NOT}]+\s*,\s*(?:plural|select|selectordinal)\s*,"  # before the forms
# Attributes with a value, also with names of frameworks such as @click and [value], and those
# without one of HTML's elements: <file required> is text.
_VALUED = (
    r"""\s+(?:[A-Za-z_:][\w:.-]*\s*=\s*(?:\\?"[^"<]*"|'[^'<]*'|[^\s"'<>=`]+)"""
    r"""|(?:[@:#*][A-Za-z_][\w:.-]*|\[[\w.-]+\]|\([\w.-]+\))=(?:"[^"<]*"|'[^'<]*'))"""
)
_BARE = (
    r"\s+(?i:allowfullscreen|async|autofocus|autoplay|checked|controls|default|defer|disabled|"
    r"download|hidden|inert|loop|multiple|muted|novalidate|open|readonly|required|reversed|selected)"
)
_ATTRIBUTE = rf"(?:{_VALUED}|{_BARE})"
_HAVE_BARE = (
    r"(?i:a|audio|b|button|details|dialog|div|em|fieldset|form|h[1-6]|i|iframe|img|input|li|ol|"
    r"optgroup|option|p|script|select|span|strong|table|t[dhr]|textarea|track|ul|video)"
)
TAGS = (
    rf"<{_HAVE_BARE}{_ATTRIBUTE}+\s*/?>|<{TAG_NAME}(?:{_VALUED}{_ATTRIBUTE}*)?\s*/?>"
    rf"|</{TAG_NAME}\s*>"
)
# What is kept in each text.
_PLACEHOLDERS = "|".join(
    (
        # Addresses, without the punctuation after them.
        rf"{_SCHEME}[^\s/{_BRACKETS}]+/(?:{_LINK})*{_CJK_END}",
        rf"(?:{_SCHEME}{_CJK}*|mailto:|www[.])(?:{_LINK})*(?:{_LINK_END})",
        r"[A-Za-z0-9_][\w.+-]{0,64}@[A-Za-z0-9-]+(?:[.][A-Za-z0-9-]+)*[.][A-Za-z]{2,}",
        rf"\B`[^`\s{_NOT}](?:[^`\n{_NOT}]*[^`\s.!?{_NOT}])?`\B",  # code of Markdown
        # {{x}}, {{{x}}}, {%x%}, ${x}, #{x}, %{x}, {0}, {name}, <%x%>, and ICU's {n, number},
        # {when, date, short} and, as a whole, {n, plural, one {…} other {…}}
        rf"\{{\{{(?:{_FLAT}|\{{{_FLAT}\}})\}}\}}|\{{%{_FLAT}%\}}|\{{!!{_FLAT}!!\}}|[$#%@]\{{{_FLAT}\}}",
        rf"\{{ ?[^{{}}\s{_NOT}]* ?\}}|\{{\d+[,:]{_FLAT}\}}|<%[^\n{_NOT}]*?%>",
        rf"\{{ ?[^{{}},\s{_NOT}]+ ?, ?(?:number|date|time|ordinal|spellout|duration|list)"
        r" ?(?:,[^{}'\n]*)?\}",
        rf"\{{{ICU_FORMS}{_FORMS}\}}",
        rf"\$t?\([\w.:-]+\)|\B\$[A-Za-z_]{_W}*\$?|\$\d\b",
        # %%, %1$s, %(name)s, %<name>s, %#@name@, %5.2f, %PATH%, %PRODUCTNAME, %s and %1
        rf"%%|%\d+\$(?:{_FORMAT}|#@[^@\s{_NOT}]+@)|%#@[^@\s{_NOT}]+@",
        rf"%\([^()\s{_NOT}]+\){_FORMAT}|%<[^<>\s{_NOT}]+>{_FORMAT}\b",
        rf"%[-+0#',]*(?:\d+|\*)?[.](?:\d+|\*){_SIZE}?{_CONVERSION}\b",
        rf"%[-+0#']*\d*{_SIZE}{_CONVERSION}\b|%[-+0#']*\d+{_CONVERSION}\b|%[-+',*]d\b",
        rf"(?:%[A-Z][A-Z0-9_]+)+\b%?|%[A-Za-z]\w{{2,}}%|%[ds@]|%{_CONVERSION}\b|%L?\d\b",
        r"&(?:[A-Za-z][A-Za-z0-9]{1,31}|#\d{1,7}|#[xX][0-9A-Fa-f]{1,6});",
    )
)
TAG = rf"</?{TAG_NAME}\s*/?>"  # without attributes
PIECES = rf"{_PLACEHOLDERS}|<!--[^\n{_NOT}]*?-->|{TAGS}"
OPENING_TAG, CLOSING_TAG = rf"<{TAG_NAME}{_ATTRIBUTE}*\s*>", rf"</{TAG_NAME}\s*>"
# Text in angle brackets that is no tag if it stands alone, such as <none>.
AMBIGUOUS = r"<[A-Za-z][A-Za-z-]*>"
HTML_TAG = (
    r"<(?i:a|abbr|b|big|br|cite|code|dd|del|dfn|div|dl|dt|em|font|h[1-6]|hr|i|img|ins|kbd|li|mark|"
    r"ol|p|pre|q|s|small|span|strike|strong|sub|sup|table|td|th|tr|tt|u|ul|var|wbr)>"
)
