"""Synthetic corpora, which any working model can learn."""

import itertools
import random
import string

from tf_transformer.data.parallel import Corpus, DataError, ParallelText


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

    No sentence occurs twice, within a part or across the parts. The usual smoke test in the
    literature is ten symbols and `min_length=10, max_length=10`.

    Args:
        num_train: Number of training sentences, at least 1.
        num_validation: Number of validation sentences, at least 1.
        num_test: Number of test sentences; with 0 the corpus has no test part.
        num_symbols: Number of distinct symbols, the first letters of a to z.
        min_length: Fewest symbols in a sentence, at least 1.
        max_length: Most symbols in a sentence. Lengths are uniform in this range, as far as there
            are enough distinct short sentences.
        seed: Seed of the sentences; the same arguments give the same corpus.

    Returns:
        The corpus, named `copy`.

    Raises:
        ValueError: If an argument is out of its range.
        DataError: If more distinct sentences are asked for than exist.
    """
    for name, value, low, high in (
        ("num_train", num_train, 1, None),
        ("num_validation", num_validation, 1, None),
        ("num_test", num_test, 0, None),
        ("num_symbols", num_symbols, 1, len(string.ascii_lowercase)),
        ("min_length", min_length, 1, max_length),
    ):
        if value < low or (high is not None and value > high):
            limits = f"at least {low}" if high is None else f"from {low} to {high}"
            raise ValueError(f"{name} must be {limits}, received {value}")
    bounds = (0, num_train, num_train + num_validation, num_train + num_validation + num_test)
    sentences = _draw_sentences(bounds[-1], num_symbols, min_length, max_length, seed)
    parts = (sentences[start:stop] for start, stop in itertools.pairwise(bounds))
    return Corpus("copy", *(ParallelText(part, part) if part else None for part in parts))


def reverse_task(
    num_train: int = 20_000,
    num_validation: int = 500,
    num_test: int = 500,
    num_symbols: int = 10,
    min_length: int = 3,
    max_length: int = 10,
    seed: int = 0,
) -> Corpus:
    """Generates a corpus in which every target is its source reversed: `a c b` and `b c a`.

    Unlike copying, this cannot be learned without positional information.

    Args:
        num_train: See `copy_task`, as for all arguments.
        num_validation: Number of validation sentences.
        num_test: Number of test sentences.
        num_symbols: Number of distinct symbols.
        min_length: Fewest symbols in a sentence.
        max_length: Most symbols in a sentence.
        seed: The same seed gives the same sources as in `copy_task`.

    Returns:
        The corpus, named `reverse`.

    Raises:
        ValueError: If an argument is out of its range.
        DataError: If more distinct sentences are asked for than exist.
    """
    copy = copy_task(num_train, num_validation, num_test, num_symbols, min_length, max_length, seed)
    # Every symbol is one letter, so reversing the characters reverses the symbols.
    reverse = (
        text and ParallelText(text.sources, tuple(source[::-1] for source in text.sources))
        for text in (copy.train, copy.validation, copy.test)
    )
    return Corpus("reverse", *reverse)


def _draw_sentences(
    num_wanted: int, num_symbols: int, min_length: int, max_length: int, seed: int
) -> tuple[str, ...]:
    """Draws distinct sentences, in random order."""
    num_possible = sum(num_symbols**length for length in range(min_length, max_length + 1))
    if num_wanted > num_possible:
        raise DataError(
            f"{num_wanted} distinct sentences are asked for, but {num_symbols} symbols in lengths "
            f"{min_length} to {max_length} make only {num_possible}; ask for fewer sentences, "
            "more symbols or longer sentences"
        )
    generator = random.Random(seed)
    symbols = string.ascii_lowercase[:num_symbols]
    distinct: dict[str, None] = {}  # A set would have another order in each process.
    while len(distinct) < num_wanted:
        length = generator.randint(min_length, max_length)
        distinct[" ".join(generator.choices(symbols, k=length))] = None
    sentences = list(distinct)
    # Short sentences run out first: unshuffled, the last parts would have fewer of them.
    generator.shuffle(sentences)
    return tuple(sentences)
