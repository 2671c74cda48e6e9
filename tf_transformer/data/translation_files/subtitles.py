"""Subtitles in SRT files."""

import re

from tf_transformer.data.translation_files.document import Parts, TextFile, Unit
from tf_transformer.data.translation_files.markup import Markup, on_one_line

_TIMES = r"[ \t]*\d+:\d\d:\d\d[,.]\d+[ \t]*-->.*"
# The lines after the times, up to a blank line or the next cue, are the text.
_CUE = re.compile(rf"(?m)^\ufeff?{_TIMES}((?:\n(?![ \t]*\d+\s*\n{_TIMES})(?=.*\S).*)*)$")
_OTHER = re.compile(r"(?m)^(?![\ufeff \t]*\d+[ \t\r]*$)[ \t]*(\S.*)")
_LINE, _TAG = re.compile(".+"), re.compile(r"</?[a-zA-Z][^<>]*>|\{\\[^{}]*\}")
_SPEAKER = re.compile(rf"(?:\s|{_TAG.pattern})*[-–—]++(?!\d)[ \t]*")  # no minus
_ADVICE = "write 00:00:01,000 --> 00:00:02,000 above it, without a blank line between"


def read_srt(file: TextFile) -> list[Unit]:
    """Return a unit for each cue, or for each line of a cue in which several people speak."""
    units = []
    for _, cue in file.records(_CUE, _OTHER, _ADVICE):
        lines = [slice(*line.span()) for line in _LINE.finditer(file.text, *cue.span(1))]
        spoken = [_SPEAKER.match(file.text, line.start, line.stop) for line in lines]
        if lines and not all(spoken):
            lines = [slice(lines[0].start, lines[-1].stop)]
        elif not any(_TAG.search(match[0]) for match in spoken):
            lines = [
                slice(match.end(), line.stop) for match, line in zip(spoken, lines, strict=True)
            ]
        for line in lines:
            tags = [slice(*tag.span()) for tag in _TAG.finditer(file.text, line.start, line.stop)]
            text = Markup(file, line, tags, on_one_line, on_one_line)
            units += text.units(lambda translation, text=text: _wrapped(file, text, translation))
    return units


def _wrapped(file: TextFile, text: Markup, translation: str) -> Parts | None:
    """Return a translation on as many lines as its source, at most two of about equal length."""
    if not (parts := text.write(translation)):
        return None
    joined = "".join(file.text[part] if isinstance(part, slice) else part for part in parts)
    spaces = [match.start() for match in re.finditer(r" (?![^<]*>)", joined)]
    if spaces and "\n" in file.text[text.start : text.end]:
        middle = min(spaces, key=lambda space: abs(space - len(joined) / 2))
        joined = f"{joined[:middle]}\n{joined[middle + 1 :]}"
    return [joined]
