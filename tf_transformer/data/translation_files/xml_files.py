"""XLIFF and TMX files."""

import dataclasses
import html
import re
from collections.abc import Iterator
from xml.parsers import expat

from tf_transformer.data.translation_files.document import Edit, Parts, TextFile, Unit
from tf_transformer.data.translation_files.markup import Markup, on_one_line

_CDATA = re.compile(r"<!\[CDATA\[((?s:.*?))\]\]>")
_CODES = ("bpt", "ept", "it", "ph")  # elements with native codes, which are copied as a whole
_TAG = re.compile(r"""<(?:"[^"]*"|'[^']*'|[^"'>])*+>""")
_PIECE = re.compile(rf"(?s){_CDATA.pattern}|<!--.*?-->|<\?.*?\?>|{_TAG.pattern}")
_STATE = re.compile(r"""\s+(?:state|subState)\s*=\s*(?:"[^"]*"|'[^']*')|\s*/?>\Z""")
_MACHINE = "tf-transformer:unreviewed"


@dataclasses.dataclass(slots=True)
class _Element:
    """An element without the prefix of its name, and where its tags start and end."""

    name: str
    attributes: dict[str, str]
    start: int
    inner: int
    close: int = 0
    end: int = 0
    children: "list[_Element]" = dataclasses.field(default_factory=list)

    def child(self, name: str) -> "_Element | None":
        return next((child for child in self.children if child.name == name), None)


def _elements(file: TextFile, root: str) -> list[_Element]:
    """Return the elements of a file in order. No entity is expanded, and no other file is read."""
    inherited = {"translate": "yes", "xml:space": "default"}
    elements, path = [], [_Element("", inherited, 0, 0)]
    parser = expat.ParserCreate("UTF-16LE")

    def start(name: str, attributes: dict[str, str]) -> None:
        offset = parser.CurrentByteIndex // 2
        attributes = {name: path[-1].attributes[name] for name in inherited} | attributes
        inner = _TAG.match(file.text, offset).end()
        element = _Element(name.rpartition(":")[2], attributes, offset, inner)
        path[-1].children.append(element)
        path.append(element)
        elements.append(element)

    def end(_: str) -> None:
        element = path.pop()
        element.close = element.end = element.inner
        if not file.text.endswith("/>", element.start, element.inner):
            element.close = parser.CurrentByteIndex // 2
            element.end = _TAG.match(file.text, element.close).end()

    def refuse(*_: object) -> None:
        offset = parser.CurrentByteIndex // 2
        raise file.error(offset, "declares an entity, which is not safe; remove the DOCTYPE")

    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.EntityDeclHandler = refuse
    try:
        # With one code unit for each character, offsets of bytes tell those of characters.
        parser.Parse(re.sub("[^\0-\uffff]", "\ufffd", file.text).encode("utf-16-le"), True)
    except expat.ExpatError as error:
        reason = f"is not XML ({expat.ErrorString(error.code)}); xmllint tells more"
        raise file.error(parser.ErrorByteIndex // 2, reason) from None
    if elements[0].name != root:
        raise file.error(elements[0].start, f"has <{elements[0].name}> where <{root}> must be")
    return elements


def _protected(element: _Element) -> Iterator[slice]:
    """Yield the ranges of what is not to be translated in an element."""
    for child in element.children:
        is_no = child.name == "mrk" and child.attributes["translate"] == "no"
        if child.name in _CODES or is_no or child.attributes.get("mtype") == "protected":
            yield slice(child.start, child.end)
        else:
            yield from _protected(child)


def _markup(file: TextFile, element: _Element) -> Markup:
    pieces = _PIECE.finditer(file.text, element.inner, element.close)
    tags = [slice(*piece.span()) for piece in pieces if piece[1] is None]
    for whole in _protected(element):
        others = [tag for tag in tags if not whole.start <= tag.start < whole.stop]
        tags = sorted([*others, whole], key=lambda tag: tag.start)
    is_as_written = element.attributes["xml:space"] == "preserve"

    def decoded(text: str) -> str:
        text = text.replace("\r\n", "\n")
        parts = _CDATA.split(text if is_as_written else on_one_line(text))
        parts[::2] = map(html.unescape, parts[::2])
        return "".join(parts)

    return Markup(file, slice(element.inner, element.close), tags, decoded)


def read_xliff(file: TextFile) -> list[Unit]:
    """Return the units of an XLIFF file: one for each trans-unit (1.2) or segment (2.x)."""
    elements, units = _elements(file, "xliff"), []
    for element in elements:
        source, target = element.child("source"), element.child("target")
        if source is None or element.name not in ("trans-unit", "segment"):
            continue
        text, of_unit, place = _markup(file, source), element.attributes, file.place(element.start)
        state = (target.attributes if target else {}).get("state", of_unit.get("state", ""))
        if target and file.text[target.inner : target.close].strip():
            done = _markup(file, target)
            is_open = state in ("new", "initial") or state.startswith("needs-")
            is_pair = not is_open and of_unit.get("subState") != _MACHINE
            pair = (text.plain, done.plain) if is_pair else None
            units.append(Unit(text.source, place, (), pair))
        elif (
            of_unit["translate"] != "no"
            and of_unit.get("approved") != "yes"
            and state not in ("reviewed", "final", "signed-off")
        ):
            if element.name == "segment" and "trgLang" not in elements[0].attributes:
                raise file.error(elements[0].start, "has no trgLang; name the target language")
            edit = _edit(file, element, source, target, text)
            units += [unit._replace(place=place, edits=(edit,)) for unit in text.units()]
    return units


def _edit(
    file: TextFile, element: _Element, source: _Element, target: _Element | None, text: Markup
) -> Edit:
    """Return the edit that writes a target, and a state that tells that nobody reviewed it."""
    name = re.match(r"<([\w:.-]*)source", file.text[source.start : source.inner])[1] + "target"
    indentation = re.search(r"\s*\Z", file.text[element.inner : source.start])[0]
    start = end = (element.child("seg-source") or source).end
    tag = f"{indentation}<{name}>"
    if target:
        start, end, tag = target.start, target.end, file.text[target.start : target.inner]
    head = [_with_state(tag, ' state="needs-review-translation"')]
    if element.name == "segment":
        state = f' state="translated" subState="{_MACHINE}"'
        tag_of_segment = _with_state(file.text[element.start : element.inner], state)
        head = [tag_of_segment, slice(element.inner, start), _with_state(tag, "")]
        start = element.start

    def write(translation: str) -> Parts | None:
        parts = text.write(translation)
        edges = slice(source.inner, text.start), slice(text.end, source.close)
        return parts and [*head, edges[0], *parts, edges[1], f"</{name}>"]

    return Edit(start, end, write)


def _with_state(tag: str, state: str) -> str:
    """Return a start tag with another state."""
    return f"{_STATE.sub('', tag)}{state}>"


def read_tmx(file: TextFile) -> list[Unit]:
    """Return a unit for each tu of a TMX file: its source language and the first other one."""
    units, elements = [], _elements(file, "tmx")
    header = elements[0].child("header")
    for element in elements:
        # Version 1.1 has `lang` for `xml:lang`.
        segments = [
            ((tuv.attributes.get("xml:lang") or tuv.attributes.get("lang", "")).lower(), seg)
            for tuv in element.children
            if (seg := tuv.child("seg"))
        ]
        if element.name == "tu" and len(segments) > 1:
            of_unit = {**(header.attributes if header else {}), **element.attributes}
            language = of_unit.get("srclang", "").lower()
            source, target = (_markup(file, seg) for seg in _pair(segments, language))
            pair = source.plain, target.plain
            units.append(Unit(source.source, file.place(element.start), (), pair))
    return units


def _pair(segments: list[tuple[str, _Element]], language: str) -> tuple[_Element, _Element]:
    """Return the segment of a language, or of one of its regions, and the first of another one."""

    def is_near(segment: tuple[str, _Element]) -> bool:
        return re.split("[-_]", segment[0])[0] == re.split("[-_]", language)[0]

    source = min(segments, key=lambda segment: (segment[0] != language, not is_near(segment)))
    others = (segment for segment in segments if segment is not source)
    return source[1], min(others, key=is_near)[1]
