"""Errors that the user can correct. A message is one line: what is wrong, where, what to do."""

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Input that cannot be used.

    `status` is the exit status of a command that the error ends.
    """

    status = 2


class ConfigError(InputError):
    """An invalid setting."""


def did_you_mean(name: str, known: Iterable[str], otherwise: str | None = None) -> str:
    """Return advice for an unknown name: the most similar known name, or else `otherwise`.

    If `otherwise` is None, the advice lists all known names.
    """
    known = list(known)
    matches = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if matches:
        return f"did you mean {matches[0]!r}?"
    if otherwise is not None:
        return otherwise
    return f"known are {', '.join(sorted(known))}."
