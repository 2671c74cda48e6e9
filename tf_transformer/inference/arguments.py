"""Checks of what a translator is called with, before TensorFlow sees it."""

import operator
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Any


def to_integer(name: str, value: Any) -> int:
    """An int, NumPy's too; a `TypeError` for anything else."""
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an int; received {name}={value!r}.") from None


def to_number(name: str, value: Any) -> float:
    """A float, of any number; a `TypeError` for anything else."""
    try:
        if isinstance(value, bool | str | bytes):
            raise TypeError
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be a float; received {name}={value!r}.") from None


def checked_texts(texts: Iterable[str]) -> Iterator[str]:
    """The texts one after another; raises where it is not clear what they are, or their order."""
    if isinstance(texts, str | bytes | Mapping | Set) or not isinstance(texts, Iterable):
        raise TypeError(f"texts must be a list of str; received {type(texts).__name__}.")

    def each():
        for index, text in enumerate(texts):
            if not isinstance(text, str):
                raise TypeError(
                    f"texts must be a str or a list of str; item {index} is {type(text).__name__}."
                )
            yield text

    return each()


def to_batch_size(value: Any) -> int:
    """A batch size; a `TypeError` or a `ValueError` for what is none."""
    batch_size = to_integer("batch_size", value)
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1; received batch_size={batch_size}.")
    return batch_size


def single_lines(texts: Iterable[str]) -> Iterator[str]:
    """The texts, each of which must be one line."""

    def each(texts):
        for index, text in enumerate(texts):
            if "\n" in text.strip():
                raise ValueError(
                    f"item {index} of texts has a line break, and a search translates one line; "
                    f"give each line as a text of its own."
                )
            yield text

    return each(checked_texts(texts))
