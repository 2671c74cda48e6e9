"""Figures, their texts and their files, without the windows and global state of pyplot."""

import functools
import textwrap
import unicodedata
from typing import Any

from matplotlib import font_manager
from matplotlib.figure import Figure

_LARGEST = 30.0  # inches: 4,500 pixels in a file
# matplotlib draws each character with the first of these fonts that has it.
_FONTS = (
    "Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans SC", "Noto Sans JP", "Noto Sans KR",
    "Noto Sans Arabic", "Noto Sans Hebrew", "Noto Sans Devanagari", "Noto Sans Bengali",
    "Noto Sans Tamil", "Noto Sans Thai", "WenQuanYi Zen Hei", "IPAexGothic", "NanumGothic",
    "PingFang SC", "Hiragino Sans", "Apple SD Gothic Neo", "Microsoft YaHei", "Yu Gothic",
    "Malgun Gothic", "Nirmala UI", "Leelawadee UI", "Arial Unicode MS",
)  # fmt: skip
_JOINERS = "\u200c\u200d"  # they choose between the shapes of a letter


def new_figure(width: float, height: float, title: str = "") -> Figure:
    """Make an empty figure of bounded size in inches, whose layout makes space for every label."""
    figure = Figure(figsize=(min(width, _LARGEST), min(height, _LARGEST)), layout="constrained")
    if title:
        lines = textwrap.fill(title, int(9 * figure.get_figwidth()), max_lines=4, placeholder="…")
        figure.suptitle(lines, **text_style())
    return figure


@functools.cache
def text_style() -> dict[str, Any]:
    """Return properties to draw any text: fonts of many scripts, and no formulas after `$`."""
    installed = font_manager.fontManager.get_font_names()
    fonts = [name for name in _FONTS if name in installed]
    return {"fontfamily": ["sans-serif", *fonts], "parse_math": False}


def spell(token: str, longest: int = 16) -> str:
    """Write spaces as `▁`, invisible characters as `<U+200B>`, and shorten a long token."""
    text = "".join(
        "▁" if c.isspace() else c if c.isprintable() or c in _JOINERS else f"<U+{ord(c):04X}>"
        for c in token
    )
    return text if len(text) <= longest else f"{text[: longest - 6]}…{text[-5:]}"


def width(text: str) -> int:
    """Count the columns of a text; a Chinese, Japanese or Korean character takes two."""
    return len(text) + sum(unicodedata.east_asian_width(character) in "WF" for character in text)
