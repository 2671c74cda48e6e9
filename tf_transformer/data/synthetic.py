"""Toy corpora without files: a model that cannot learn these is broken."""

import random
import string
from collections.abc import Callable

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
    """Makes a corpus in which every target equals its source, such as `a c b` and `a c b`.

    No sentence occurs twice, within a part or across the parts. The smoke test in the
    literature is ten symbols and `min_length=10, max_length=10`.

    Args:
        num_train: Sentences to learn from, at least 1.
        num_validation: Held-out sentences for choosing the best checkpoint, at least 1.
        num_test: Held-out sentences for the final score; with 0 the corpus has no test part.
        num_symbols: How many of the letters a to z the sentences are made of.
        min_length: The fewest symbols in a sentence, at least 1.
        max_length: The most symbols in a sentence. Lengths are drawn evenly from this range,
            as far as there are enough distinct short sentences.
        seed: The same seed and arguments make the same corpus.

    Returns:
        The corpus, named `copy`.

    Raises:
        ValueError: If an argument is out of its range.
        DataError: If more distinct sentences are asked for than exist.
    """
    sentences = _draw_sentences(
        num_train, num_validation, num_test, num_symbols, min_length, max_length, seed
    )
    return _make_corpus("copy", sentences, num_train, num_validation, lambda source: source)


def reverse_task(
    num_train: int = 20_000,
    num_validation: int = 500,
    num_test: int = 500,
    num_symbols: int = 10,
    min_length: int = 3,
    max_length: int = 10,
    seed: int = 0,
) -> Corpus:
    """Makes a corpus in which every target is its source backwards, such as `a c b` and `b c a`.

    Unlike copying, this cannot be learned without positions.

    Args:
        num_train: See `copy_task`, as for all arguments.
        num_validation: Held-out sentences for choosing the best checkpoint.
        num_test: Held-out sentences for the final score.
        num_symbols: How many letters the sentences are made of.
        min_length: The fewest symbols in a sentence.
        max_length: The most symbols in a sentence.
        seed: The same seed makes the same sources as in `copy_task`.

    Returns:
        The corpus, named `reverse`.

    Raises:
        ValueError: If an argument is out of its range.
        DataError: If more distinct sentences are asked for than exist.
    """
    sentences = _draw_sentences(
        num_train, num_validation, num_test, num_symbols, min_length, max_length, seed
    )
    # Every symbol is one letter, so the characters' reverse is the symbols' reverse.
    return _make_corpus(
        "reverse", sentences, num_train, num_validation, lambda source: source[::-1]
    )


def _draw_sentences(
    num_train: int,
    num_validation: int,
    num_test: int,
    num_symbols: int,
    min_length: int,
    max_length: int,
    seed: int,
) -> list[str]:
    """Draws distinct sentences for all parts, in random order."""
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
    num_wanted = num_train + num_validation + num_test
    num_possible = sum(num_symbols**length for length in range(min_length, max_length + 1))
    if num_wanted > num_possible:
        raise DataError(
            f"{num_wanted} distinct sentences are asked for, but {num_symbols} symbols in lengths "
            f"{min_length} to {max_length} make only {num_possible}; ask for fewer sentences, "
            "more symbols or longer sentences"
        )
    generator = random.Random(seed)
    symbols = string.ascii_lowercase[:num_symbols]
    distinct: dict[str, None] = {}  # A set whose order does not change from run to run.
    while len(distinct) < num_wanted:
        length = generator.randint(min_length, max_length)
        distinct[" ".join(generator.choices(symbols, k=length))] = None
    sentences = list(distinct)
    # Short sentences run out first: unshuffled, the parts cut off the end would have fewer.
    generator.shuffle(sentences)
    return sentences


def _make_corpus(
    name: str,
    sentences: list[str],
    num_train: int,
    num_validation: int,
    translate: Callable[[str], str],
) -> Corpus:
    """Cuts the sentences into train, validation and test, and adds the targets."""
    parts = []
    first_test = num_train + num_validation
    for start, stop in ((0, num_train), (num_train, first_test), (first_test, len(sentences))):
        sources = tuple(sentences[start:stop])
        parts.append(ParallelText(sources, tuple(translate(source) for source in sources)))
    train, validation, test = parts
    return Corpus(name, train, validation, test if len(test) else None)
