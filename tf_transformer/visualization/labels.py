"""Labels that can be read: characters that some installed font has, and few of them."""

import functools
import textwrap
import unicodedata
import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from tf_transformer.visualization.figures import require_matplotlib

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LONGEST_TOKEN, _LONGEST_NAME, _LONGEST_TITLE = 16, 48, 160
_TOFU = "□"
# They only join their neighbours or choose between two shapes, so where no font has them they
# are left out.
_JOINERS = frozenset("\u200c\u200d\ufe0e\ufe0f")
# Controls, formats, surrogates, private and unassigned characters, line and paragraph separators.
_INVISIBLE = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"))


def readable_tokens(*groups: Sequence[str]) -> tuple[list[list[str]], dict[str, Any]]:
    """What to write for the tokens of one figure, and how.

    A space is `▁`, a character that cannot be seen is its number, such as `<U+200B>`, the middle
    of a long token is `…`, and a character that no installed font has is `□`, with one warning.

    Args:
        groups: Lists of tokens.

    Returns:
        The lists, changed, and the properties of all of them as matplotlib's texts.
    """
    spelled = [[_spell(token, "▁") for token in group] for group in groups]
    table, style = _characters(token for group in spelled for token in group)
    return [
        [_shorten(token.translate(table), _LONGEST_TOKEN) for token in group] for group in spelled
    ], style


def readable_names(
    texts: Sequence[str], longest: int = _LONGEST_NAME
) -> tuple[list[str], dict[str, Any]]:
    """The same for names, such as those of curves, which keep their spaces."""
    spelled = [_spell(text, " ") for text in texts]
    table, style = _characters(spelled)
    return [_shorten(text.translate(table), longest) for text in spelled], style


def width(text: str) -> int:
    """How wide a text is, in letters; Chinese, Japanese and Korean ones count twice."""
    marks = sum(unicodedata.combining(character) != 0 for character in text)
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
    return len(text) - marks + wide


def set_title(axes: "Axes | Figure", title: str) -> None:
    """Writes a title of any text over axes, or over all of a figure, in lines that fit."""
    (title,), style = readable_names([title], _LONGEST_TITLE)
    figure = axes.get_figure()
    title = textwrap.fill(title, max(12, int(8 * figure.get_figwidth())))
    (axes.set_title if axes is not figure else axes.suptitle)(title, **style)


def checked_tokens(name: str, tokens: Iterable[str]) -> list[str]:
    """A list of str.

    Raises:
        ValueError: It is a str itself, or something in it is none.
    """
    if isinstance(tokens, str | bytes) or not isinstance(tokens, Iterable):
        raise ValueError(f"{name} must be a list of str; received {type(tokens).__name__}.")
    tokens = list(tokens)
    for index, token in enumerate(tokens):
        if not isinstance(token, str):
            raise ValueError(
                f"{name} must be a list of str; item {index} is {type(token).__name__}."
            )
    return tokens


def _spell(text: str, space: str) -> str:
    def spelled(character):
        category = unicodedata.category(character)
        if category == "Zs":
            return space
        if category in _INVISIBLE and character not in _JOINERS:
            return f"<U+{ord(character):04X}>"
        return character

    return "".join(map(spelled, text))


def _shorten(text: str, longest: int) -> str:
    if len(text) <= longest:
        return text
    tail = longest // 3
    return f"{text[: longest - tail - 1]}…{text[-tail:]}"


def _characters(texts: Iterable[str]) -> tuple[dict[int, str], dict[str, Any]]:
    """What to write for characters that no font has, and the properties of texts."""
    require_matplotlib()
    families, missing = _families(frozenset().union(*texts))
    if absent := sorted(missing - _JOINERS):
        warnings.warn(
            f"no installed font has {_listed(absent)}, so {_TOFU} is drawn instead. Install a "
            f"font that has, such as one of Noto Sans.",
            stacklevel=4,
        )
    # A `$` would begin a formula.
    style = {"fontfamily": list(families), "parse_math": False, "usetex": False}
    return {ord(c): "" if c in _JOINERS else _TOFU for c in missing}, style


def _listed(characters: list[str]) -> str:
    first = f"{characters[0]} (U+{ord(characters[0]):04X})"
    more = len(characters) - 1
    return first if not more else f"{first} and {more} other character{'s' * (more > 1)}"


@functools.lru_cache(maxsize=256)
def _families(characters: frozenset[str]) -> tuple[tuple[str, ...], frozenset[str]]:
    """The families of fonts that have the characters, the usual one first, and what none has."""
    from matplotlib import font_manager

    families = ["sans-serif"]
    usual = font_manager.findfont(font_manager.FontProperties(family=families))
    left = {character for character in characters if not _has(usual, character)}
    # The names of characters begin with their script, and so do those of fonts, nearly.
    scripts = {unicodedata.name(character, "?").split()[0] for character in left}

    def rank(font):
        family, _ = font
        is_named = any(script in family.upper() for script in scripts)
        # The same fonts for Chinese, Japanese and Korean differ in the shapes that they prefer.
        return not is_named, "Sans" not in family, "Mono" in family, family[-3:] != " SC", family

    for family, path in sorted(_installed(), key=rank) if left else ():
        found = {character for character in left if _has(path, character)}
        if found:
            families.append(family)
            left -= found
        if not left:
            break
    return tuple(families), frozenset(left)


def _installed() -> list[tuple[str, str]]:
    """Families and files of the upright fonts of usual weight."""
    from matplotlib import font_manager

    entries = font_manager.fontManager.ttflist
    upright = {
        entry.name: entry.fname
        for entry in entries
        # The last resort has a picture of the script for each character, and so says nothing.
        if entry.style == "normal" and entry.weight == 400 and "Last Resort" not in entry.name
    }
    return list(upright.items())


def _has(path: str, character: str) -> bool:
    from matplotlib import font_manager

    try:
        font = font_manager.get_font(path)
    except (OSError, RuntimeError):  # no font, or one of coloured pictures only
        return False
    return font.scalable and font.get_char_index(ord(character)) != 0
