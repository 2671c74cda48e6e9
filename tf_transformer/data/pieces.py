"""Expressions that find the pieces of a text, in the syntax of RE2, which has no look-ahead."""

_BRACKETS = r"""<>"'`«»“”‘’()\[\]{}（）【】「」『』"""
# Text in scripts without spaces follows an address at once.
_IN_LINK = rf"[^\s\p{{Z}}{_BRACKETS}\p{{Han}}\p{{Hiragana}}\p{{Katakana}}\p{{Thai}}、。，：；！？]"
_IN_BRACKETS = rf"\({_IN_LINK}*\)"
_LINK = rf"{_IN_LINK}|{_IN_BRACKETS}"
_LINK_END = rf"[A-Za-z0-9/#=&_~$%+-]|{_IN_BRACKETS}"
_CONVERSION = "[diouxXeEfFgGcpsn@]"
TAG_NAME = r"[A-Za-z0-9][\w:.-]*"
_ATTRIBUTE = r"""\s+[A-Za-z_:][\w:.-]*\s*=\s*(?:"[^"<]*"|'[^'<]*'|[^\s"'<>=`]+)"""
# What is kept in each text.
_PLACEHOLDERS = "|".join(
    (
        # Addresses, without the punctuation after them.
        rf"(?:(?:https?|ftps?|file)://|mailto:|www[.])(?:{_LINK})*(?:{_LINK_END})",
        r"[A-Za-z0-9_][\w.+-]{0,64}@[A-Za-z0-9-]+(?:[.][A-Za-z0-9-]+)*[.][A-Za-z]{2,}",
        r"\B`[^`\s](?:[^`\n]*[^`\s.!?])?`\B",  # code of Markdown
        # {{x}}, {%x%}, ${x}, #{x}, %{x}, {0}, {name}, and ICU's {n, number} and {when, date, short}
        r"\{\{[^{}\n]*\}\}|\{%[^{}\n]*%\}|[$#%@]?\{ ?[^{}\s]* ?\}|<%[^%\n]*%>",
        r"\{ ?\w+ ?, ?(?:number|date|time|ordinal|spellout|duration|list) ?(?:,[^{}'\n]*)?\}",
        r"\$\(\w+\)|\B\$[A-Za-z_]\w*\$?|\$\d\b",
        # %%, %1$s, %(name)s, %5.2f, %PATH%, %PRODUCTNAME, %s and %1
        rf"%%|%\d+\$[-+0#']*\d*(?:[.]\d+)?(?:hh?|ll?|[Lqjzt])?{_CONVERSION}",
        rf"%\(\w+\)[-+0#]*\d*(?:[.]\d+)?{_CONVERSION}",
        rf"%[-+0#']*(?:\d+|\*)?[.](?:\d+|\*)(?:hh?|ll?|[Lqjzt])?{_CONVERSION}\b",
        rf"%[-+0#']*\d*(?:hh?|ll?|[Lqjzt]){_CONVERSION}\b|%[-+0#']*\d+{_CONVERSION}\b|%[-+]d\b",
        rf"(?:%[A-Z][A-Z0-9_]+)+\b%?|%[A-Za-z]\w{{2,}}%|%[ds@]|%{_CONVERSION}\b|%L?\d\b",
        r"&(?:[A-Za-z][A-Za-z0-9]{1,31}|#\d{1,7}|#[xX][0-9A-Fa-f]{1,6});",
    )
)
TAG = rf"</?{TAG_NAME}\s*/?>"  # without attributes
PIECES = rf"{_PLACEHOLDERS}|<!--[^\n]*?-->|<{TAG_NAME}(?:{_ATTRIBUTE})+\s*/?>|{TAG}"
OPENING_TAG, CLOSING_TAG = rf"<{TAG_NAME}(?:{_ATTRIBUTE})*\s*>", rf"</{TAG_NAME}\s*>"
# Text in angle brackets that is no tag if it stands alone, such as <none>.
AMBIGUOUS = r"<[A-Za-z][A-Za-z-]*>"
HTML_TAG = (
    r"<(?i:a|abbr|b|big|br|cite|code|dd|del|dfn|div|dl|dt|em|font|h[1-6]|hr|i|img|ins|kbd|li|mark|"
    r"ol|p|pre|q|s|small|span|strike|strong|sub|sup|table|td|th|tr|tt|u|ul|var|wbr)>"
)
