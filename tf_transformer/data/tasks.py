"""Synthetic corpora that any working translation model can learn."""

import random
import string
from typing import Any

from tf_transformer.data.lines import DataError
from tf_transformer.data.text import Corpus, ParallelText


def copy_task(
    num_train: int = 20_000,
    num_validation: int = 500,
    num_test: int = 500,
    num_symbols: int = 10,
    min_length: int = 3,
    max_length: int = 10,
    seed: int = 0,
) -> Corpus:
    """Generate a corpus in which every target equals its source, such as `a c b` for `a c b`.

    All sentences of the corpus are distinct, within a part and across the parts. With `num_test=0`
    the corpus has no test part. The symbols are the first letters of the alphabet. Lengths are
    drawn uniformly, but a short length becomes rare once most of its sentences are in the corpus.
    The same arguments give the same corpus. The usual smoke test in the literature has ten symbols
    and sentences of length 10: `num_symbols=10, min_length=10, max_length=10`.

    Example:
        >>> corpus = tt.copy_task(num_train=100, num_validation=10, num_test=0)
        >>> corpus.train.sources == corpus.train.targets
        True

    Raises:
        DataError: If fewer distinct sentences exist than were requested, or `num_symbols` is not
            from 1 to 26.
    """
    if not 1 <= num_symbols <= 26:
        raise DataError(f"num_symbols must be from 1 to 26, the letters; received {num_symbols}.")
    sizes = (num_train, num_validation, num_test)
    symbols = string.ascii_lowercase[:num_symbols]
    num_possible = sum(len(symbols) ** length for length in range(min_length, max_length + 1))
    if sum(sizes) > num_possible:
        raise DataError(
            f"{sum(sizes)} distinct sentences were requested, but {len(symbols)} symbols in "
            f"lengths {min_length} to {max_length} make only {num_possible}; request fewer."
        )
    generator = random.Random(seed)
    distinct: dict[str, None] = {}  # The order of a set differs between processes.
    while len(distinct) < sum(sizes):
        length = generator.randint(min_length, max_length)
        distinct[" ".join(generator.choices(symbols, k=length))] = None
    sentences = list(distinct)
    # Short sentences run out first, so without a shuffle the last parts would have fewer of them.
    generator.shuffle(sentences)
    parts = []
    for size in sizes:
        part, sentences = tuple(sentences[:size]), sentences[size:]
        parts.append(ParallelText(part, part) if part else None)
    return Corpus("copy", *parts)


def reverse_task(*arguments: int, **options: Any) -> Corpus:
    """Generate a corpus in which every target is its source reversed, such as `b c a` for `a c b`.

    The arguments and the sources are the same as in `copy_task`. Unlike the copy task, the reverse
    task cannot be learned without positional information.

    Example:
        >>> corpus = tt.reverse_task(num_train=100, num_validation=10, num_test=0)
        >>> corpus.train.sources[0][::-1] == corpus.train.targets[0]
        True
    """
    copy = copy_task(*arguments, **options)
    # Every symbol is one letter, so reversing the characters reverses the symbols.
    parts = (
        ParallelText(part.sources, tuple(source[::-1] for source in part.sources)) if part else None
        for part in (copy.train, copy.validation, copy.test)
    )
    return Corpus("reverse", *parts)
