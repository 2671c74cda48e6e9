"""Synthetic corpora, which any working model can learn."""

import random
import string
from typing import Any

from tf_transformer.data.text import Corpus, DataError, ParallelText


def copy_task(
    num_train: int = 20_000,
    num_validation: int = 500,
    num_test: int = 500,
    num_symbols: int = 10,
    min_length: int = 3,
    max_length: int = 10,
    seed: int = 0,
) -> Corpus:
    """Generates a corpus in which every target equals its source, such as `a c b` and `a c b`.

    No sentence occurs twice, within a part or across the parts; with `num_test=0` there is no test
    part. The symbols are the first letters of the alphabet, and the lengths are uniform as far as
    there are enough distinct short sentences. The same arguments give the same corpus. The usual
    smoke test in the literature is ten symbols and `min_length=10, max_length=10`.

    Raises:
        DataError: If more distinct sentences are asked for than exist.
    """
    sizes = (num_train, num_validation, num_test)
    num_possible = sum(num_symbols**length for length in range(min_length, max_length + 1))
    if sum(sizes) > num_possible:
        raise DataError(
            f"{sum(sizes)} distinct sentences are asked for, but {num_symbols} symbols in lengths "
            f"{min_length} to {max_length} make only {num_possible}; ask for fewer sentences"
        )
    generator = random.Random(seed)
    symbols = string.ascii_lowercase[:num_symbols]
    distinct: dict[str, None] = {}  # A set would have another order in each process.
    while len(distinct) < sum(sizes):
        length = generator.randint(min_length, max_length)
        distinct[" ".join(generator.choices(symbols, k=length))] = None
    sentences = list(distinct)
    # Short sentences run out first: unshuffled, the last parts would have fewer of them.
    generator.shuffle(sentences)
    parts = []
    for size in sizes:
        part, sentences = tuple(sentences[:size]), sentences[size:]
        parts.append(ParallelText(part, part) if part else None)
    return Corpus("copy", *parts)


def reverse_task(*arguments: int, **options: Any) -> Corpus:
    """Generates a corpus in which every target is its source reversed: `a c b` and `b c a`.

    The arguments and the sources are those of `copy_task`. Unlike copying, this cannot be learned
    without positional information.
    """
    copy = copy_task(*arguments, **options)
    # Every symbol is one letter, so reversing the characters reverses the symbols.
    parts = (
        part and ParallelText(part.sources, tuple(source[::-1] for source in part.sources))
        for part in (copy.train, copy.validation, copy.test)
    )
    return Corpus("reverse", *parts)
