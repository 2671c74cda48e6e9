"""PO files of gettext."""

import re
from functools import partial

from tf_transformer.data.translation_files.document import Edit, Parts, TextFile, Unit

_STRING = r'"(?:[^"\\\n]|\\.)*+"'
_FIELD = re.compile(
    rf"(?m)^[\ufeff \t]*(msgctxt|msgid_plural|msgid|msgstr(?:\[\d+\])?)\s*"
    rf"({_STRING}(?:\s*{_STRING})*)[ \t\r]*$"
)
_OTHER = re.compile(r"(?m)^[ \t]*([^#\s].*)")
_OBSOLETE, _FLAGS = re.compile(r"(?m)^[ \t]*#~.*"), re.compile(r"(?m)^[ \t]*#,")
_FUZZY, _PREVIOUS = re.compile(r"(?m)^[ \t]*#,(?:.*,)?\s*fuzzy\b"), re.compile(r"(?m)^[ \t]*#\|")
_CHARACTERS = dict(zip('ntrabfv"\\', '\n\t\r\a\b\f\v"\\', strict=True))
_ESCAPES = str.maketrans({character: f"\\{name}" for name, character in _CHARACTERS.items()})
_Entry = dict[str, re.Match[str]]  # the fields by keyword


def read_po(file: TextFile) -> list[Unit]:
    """Return the units of a PO file: one for each msgid and msgid_plural."""
    entries: list[tuple[int, _Entry]] = []
    for end, field in file.records(_FIELD, _OTHER, "check the file with msgfmt -c"):
        keyword, before = field[1], entries[-1][1] if entries else {}
        if keyword == "msgctxt" or (keyword == "msgid" and list(before) != ["msgctxt"]):
            entries.append((end, {}))
        elif keyword in before or ("msgid" not in before and keyword != "msgid"):
            raise file.error(field.start(1), f"did not expect {keyword}; check with msgfmt -c")
        entries[-1][1][keyword] = field
    units, num_plurals = [], 2
    for end, entry in entries:
        forms = [field for keyword, field in entry.items() if keyword.startswith("msgstr")]
        if "msgid" not in entry or not forms:
            start = next(iter(entry.values())).start(1)
            raise file.error(start, "an entry has no msgid or no msgstr; check with msgfmt -c")
        if _text(entry["msgid"]):
            units += _units(file, end, entry, forms, num_plurals)
        elif declared := re.search(r"nplurals\s*=\s*(\d+)", _text(forms[0])):
            num_plurals = int(declared[1])
    return units


def _units(
    file: TextFile, end: int, entry: _Entry, forms: list[re.Match[str]], num_plurals: int
) -> list[Unit]:
    """Return the unit of an entry, or the two of an entry with a plural."""
    start = next(iter(entry.values())).start(1)
    for obsolete in _OBSOLETE.finditer(file.text, end, start):
        end = obsolete.end()
    searched = (_FLAGS, _FUZZY, _PREVIOUS)
    flags, is_fuzzy, previous = (lines.search(file.text, end, start) for lines in searched)
    at = flags.end() if flags else previous.start() if previous else start
    flag = Edit(at, at, lambda _: [" fuzzy," if flags else "#, fuzzy\n"])
    sources = [_text(entry[keyword]) for keyword in ("msgid", "msgid_plural") if keyword in entry]
    missing = range(len(forms), num_plurals if len(sources) > 1 else 0)
    if len(forms) + len(missing) == 1:
        sources = sources[-1:]
    groups = [forms] if len(sources) == 1 else [forms[:1], forms[1:]]
    is_done = any(map(_text, forms)) or not any(map(str.isalpha, "".join(sources)))
    units = []
    for source, group in zip(sources, groups, strict=True):
        edits = [flag] * (not is_fuzzy)
        for form in group:
            edits.append(Edit(*form.span(2), lambda t, source=source: [_quoted(source, t)]))
        if missing and group is groups[-1]:
            edits.append(Edit(forms[-1].end(2), forms[-1].end(2), partial(_more, source, missing)))
        target, place = _text(group[0]).strip() if group else "", file.place(start)
        pair = (source, target) if target and not is_fuzzy else None
        edits = () if is_done else tuple(edits)
        units.append(Unit(source.strip(), place, edits, pair))
    return units


def _more(source: str, numbers: range, translation: str) -> Parts:
    return [f"\nmsgstr[{number}] {_quoted(source, translation)}" for number in numbers]


def _text(field: re.Match[str]) -> str:
    """Return the text of a field, without quotes and escapes."""
    text = "".join(string[1:-1] for string in re.findall(_STRING, field[2]))
    return re.sub(r"\\(.)", lambda match: _CHARACTERS.get(match[1], match[0]), text)


def _quoted(source: str, translation: str) -> str:
    """Return the string of a translation, with the white space around its source."""
    edges = re.fullmatch(r"(?s)(\s*)(?:.*\S)?(\s*)", source)
    lines = re.findall(r"[^\n]*\n|[^\n]+", edges[1] + translation + edges[2])
    strings = [f'"{line.translate(_ESCAPES)}"' for line in lines]
    return "\n".join(['""', *strings] if len(strings) > 1 else strings)
