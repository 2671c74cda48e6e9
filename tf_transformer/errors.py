"""Errors that the user can mend: one line that says what, where and what to do."""

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Input that cannot be used; the message is one line that says what to do."""


class ConfigError(InputError):
    """An invalid setting."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns advice for an unknown name: the nearest known one, or all of them."""
    known = list(known)
    matches = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if matches:
        return f"did you mean {matches[0]!r}?"
    return f"known are {', '.join(sorted(known))}."
