"""HTML pages."""

import html
import itertools
import re

from tf_transformer.data.translation_files.document import Parts, TextFile, Unit
from tf_transformer.data.translation_files.markup import EMPTY, Markup, escaped, on_one_line

_TOKEN = re.compile(
    r"(?s)<!--.*?(?:-->|\Z)|<[!?][^>]*>|<(?P<end>/?)(?P<name>[a-zA-Z][^\s/>]*)"
    r"""(?P<attributes>(?:=\s*"[^"]*"|=\s*'[^']*'|[^<>])*+)>"""
)
_ATTRIBUTE = re.compile(
    r"""(?<![^\s"'/])([^\s"'<>/=]++)\s*+=\s*+(?:"([^"]*)"|'([^']*)'|([^\s"'>]++))"""
)
_TRANSLATED = ("alt", "aria-label", "placeholder", "title")
_INLINE = set(
    "a abbr acronym area b bdi bdo big br cite code data del dfn em font i img input ins kbd map "
    "mark math q rb rp rt ruby s samp script small span strike strong style sub sup svg time tt u "
    "var wbr".split()
)
_RAW = {"script", "style", "textarea"}
_UNTOUCHED = {*_RAW, "code", "kbd", "math", "pre", "samp", "svg", "var"}


def read_html(file: TextFile) -> list[Unit]:
    """Return a unit for each run of text and inline elements, and for attributes that are read."""
    units, tags, start, position = [], [], 0, 0
    while token := _TOKEN.search(file.text, position):
        position, name = token.end(), (token["name"] or "").lower()
        if name and not token["end"]:
            attributes = _ATTRIBUTE.finditer(file.text, *token.span("attributes"))
            by_name = {attribute[1].lower(): attribute for attribute in attributes}
            translate = by_name.get("translate")
            no = translate and translate[translate.lastindex].lower() == "no"
            if (no or name in _UNTOUCHED) and name not in EMPTY:
                position = _end_of_element(token, name)
            if not no:
                found = [by_name[key] for key in _TRANSLATED if key in by_name]
                units += itertools.chain(*(_of_attribute(file, each) for each in found))
        tags.append(slice(token.start(), position))
        if name and name not in _INLINE:
            units += Markup(file, slice(start, tags.pop().start), tags, _decoded).units()
            tags, start = [], position
    return units + Markup(file, slice(start, len(file.text)), tags, _decoded).units()


def _end_of_element(token: re.Match[str], name: str) -> int:
    """Return where the element of a start tag ends; elements of the same name may be in it."""
    text, end, depth = token.string, token.end(), not token["attributes"].endswith("/")
    tags = re.compile(rf"(?i)<(/?){re.escape(name)}(?=[\s/>])[^>]*?(/?)>").finditer(text, end)
    while depth:
        if not (tag := next(tags, None)):
            # HTML allows leaving out some end tags. Such an element ends before the next block.
            others = _TOKEN.finditer(text, token.end()) if name not in _RAW else ()
            blocks = (t.start() for t in others if (t["name"] or "b").lower() not in _INLINE)
            return next(blocks, len(text))
        end, depth = tag.end(), depth + (-1 if tag[1] else not tag[2] and name not in _RAW)
    return end


def _of_attribute(file: TextFile, attribute: re.Match[str]) -> list[Unit]:
    quote = '"' if attribute[4] else ""

    def write(translation: str) -> Parts:
        return [f"{quote}{escaped(translation, quote=True)}{quote}"]

    return Markup(file, slice(*attribute.span(attribute.lastindex)), (), _decoded).units(write)


def _decoded(text: str) -> str:
    return html.unescape(on_one_line(text))
