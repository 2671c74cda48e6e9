"""Text with tags, of which the translator sees the text and the tags inside it."""

import collections
import html
import itertools
import re
from collections.abc import Callable, Iterable, Sequence

from tf_transformer.data.pieces import TAGS, VERBATIM
from tf_transformer.data.translation_files.document import Edit, Parts, TextFile, Unit

_BLANK = re.compile(r"(?i)(?:\s|&(?:nbsp|#(?:9|10|13|32|160|x9|xA|xD|x20|xA0));)*+")
_BLANK_END = re.compile(_BLANK.pattern + r"\Z")
# Elements of HTML without end tags.
EMPTY = set("area base br col embed hr img input link meta source track wbr".split())
_ONE_TAG = re.compile(TAGS, re.ASCII)  # as RE2 has it
_NO_CHARACTERS = re.compile("[\0-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")  # in XML


def escaped(text: str, quote: bool = False) -> str:
    """Return text as it is written in XML and HTML; with `quote`, in an attribute."""
    return html.escape(_NO_CHARACTERS.sub("", text), quote=quote)


def on_one_line(text: str) -> str:
    """Return text with a space for white space; a space that does not break stays."""
    return re.sub(r"[ \t\r\n\f]+", " ", text)


def is_balanced(tags: Iterable[str]) -> bool:
    """Return whether each start tag has its end tag, and the elements are nested."""
    names = []
    for tag in tags:
        match = re.match(r"<(/?)([\w:.-]+)", tag)
        if not match or match[2].lower() in EMPTY:
            continue
        name = match[2].lower()
        if match[1]:
            if not names or names.pop() != name:
                return False
        elif not re.search(rf"(?i)(?:/|</{re.escape(name)}\s*)>\Z", tag):
            names.append(name)
    return not names


class Markup:
    """A range of a file with tags, less the tags and the white space around the whole text.

    Args:
        file: The file.
        span: The range.
        tags: Slices of the file that the translator copies.
        decode, encode: Functions from text in the file to plain text, and back.

    Attributes:
        source: The text with its tags, and the signs `VERBATIM` around what is more than one tag,
            such as an element of code; empty if the text has no letter.
        plain: The text without tags.
        start, end: Where the text is.
    """

    def __init__(
        self,
        file: TextFile,
        span: slice,
        tags: Sequence[slice],
        decode: Callable[[str], str],
        encode: Callable[[str], str] = escaped,
    ) -> None:
        text, self._file, self._encode = file.text, file, encode
        cuts = [span.start, *(cut for tag in tags for cut in (tag.start, tag.stop)), span.stop]
        gaps = [slice(*cuts[i : i + 2]) for i in range(0, len(cuts), 2)]  # before and after tags
        full = [i for i, gap in enumerate(gaps) if not _BLANK.fullmatch(text[gap])] or [0]
        if not is_balanced(text[tag] for tag in tags[full[0] : full[-1]]):
            full = [0, len(tags)]
        gaps, tags = gaps[full[0] : full[-1] + 1], tags[full[0] : full[-1]]
        self.start = _BLANK.match(text, gaps[0].start, gaps[0].stop).end()
        gaps[0] = slice(self.start, gaps[0].stop)
        self.end = _BLANK_END.search(text, gaps[-1].start, gaps[-1].stop).start()
        gaps[-1] = slice(gaps[-1].start, self.end)
        texts, self._tags = [decode(text[gap]) for gap in gaps], [(text[tag], tag) for tag in tags]
        self.plain = "".join(texts)
        copied = (tag if _ONE_TAG.fullmatch(tag) else tag.join(VERBATIM) for tag, _ in self._tags)
        pieces = itertools.zip_longest(texts, copied, fillvalue="")
        self.source = "".join(map("".join, pieces)) if any(map(str.isalpha, self.plain)) else ""

    def units(self, write: Callable[[str], Parts | None] | None = None) -> list[Unit]:
        """Return the unit of a text without a translation; none if there is nothing to say."""
        edit = Edit(self.start, self.end, write or self.write)
        place = self._file.place(self.start)
        return [Unit(self.source, place, (edit,))] if self.source else []

    def write(self, translation: str) -> Parts | None:
        """Return the parts of a translation, or None if its tags are not those of the source.

        Each tag must be there as often as in the source, and be nested if its order is new.
        """
        slices, before = collections.defaultdict(list), [tag for tag, _ in self._tags]
        for tag, where in self._tags:
            slices[tag].append(where)
        expression = "|".join(map(re.escape, sorted(slices, key=len, reverse=True))) or "(?!)"
        parts = re.split(f"({expression})", translation)
        after = parts[1::2]
        if sorted(after) != sorted(before) or (after != before and not is_balanced(after)):
            return None
        parts[1::2] = [slices[tag].pop(0) for tag in after]
        parts[::2] = map(self._encode, parts[::2])
        return parts
