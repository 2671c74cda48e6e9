"""The grammar: all sentence patterns, and the corpus drawn from them."""

import itertools
from random import Random

from tf_transformer.data.parallel import Corpus, DataError, ParallelText
from tf_transformer.data.phrasebook.patterns import PATTERNS
from tf_transformer.data.phrasebook.templates import TEMPLATES

# Beyond it the small patterns have run out, and each new pair takes longer.
_MAX_PAIRS = 250_000
_RULES = PATTERNS | TEMPLATES


def phrasebook(
    num_train: int = 20_000, num_validation: int = 500, num_test: int = 500, seed: int = 0
) -> Corpus:
    """Generates the corpus of German sentences and their English translations.

    No sentence of either language occurs twice, within a part or across the parts: held-out
    sentences are new combinations of parts that occur in the training text.

    Args:
        num_train: Number of training pairs, at least 1.
        num_validation: Number of validation pairs, at least 1.
        num_test: Number of test pairs; with 0 the corpus has no test part.
        seed: Seed of the pairs; the same arguments give the same corpus.

    Returns:
        The corpus, named `phrasebook`.

    Raises:
        ValueError: If there are too few pairs in a part.
        DataError: If more pairs are asked for than the phrasebook has.
    """
    sizes = {"num_train": num_train, "num_validation": num_validation, "num_test": num_test}
    for name, size in sizes.items():
        least = 0 if name == "num_test" else 1
        if size < least:
            raise ValueError(f"{name} must be at least {least}, received {size}")
    num_wanted = sum(sizes.values())
    if num_wanted > _MAX_PAIRS:
        raise DataError(
            f"{num_wanted} pairs are asked for, but the phrasebook gives at most {_MAX_PAIRS}; "
            "ask for fewer, or read a corpus from files"
        )
    r, pairs, seen_en = Random(seed), {}, set()
    rules, weights = list(_RULES), list(_RULES.values())
    while len(pairs) < num_wanted:
        (rule,) = r.choices(rules, weights)
        de, en = (side[0].upper() + side[1:] for side in rule(r))
        if de not in pairs and en not in seen_en:
            pairs[de] = en
            seen_en.add(en)
    rows = list(pairs.items())
    r.shuffle(rows)  # Small patterns run out first: spread them over the parts.
    bounds = (0, num_train, num_train + num_validation, num_wanted)
    parts = [rows[start:stop] for start, stop in itertools.pairwise(bounds)]
    return Corpus(
        "phrasebook", *(ParallelText(*zip(*part, strict=True)) if part else None for part in parts)
    )
