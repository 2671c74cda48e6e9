"""The built-in corpus: German sentences of a phrasebook and their English translations.

Most pairs were drawn from a grammar of both languages. They cover the verb in second, first and
last place, separable verbs, perfect, modal verbs, agreement in gender, case and number, `kein` and
`nicht`, numbers, prices and clock times, English do-support, imperatives, subordinate and relative
clauses, dative verbs, comparison and possessives. About 2,900 training pairs are what people say
every day, from greetings to calls for help; a third of these have no final punctuation, and most of
that third no capitals. A German sentence determines its translation.
"""

from pathlib import Path

from tf_transformer.data.lines import DataError
from tf_transformer.data.text import Corpus, ParallelText, read_tsv

_SIZES = (20_000, 500, 500)


def phrasebook(num_train: int = 20_000, num_validation: int = 500, num_test: int = 500) -> Corpus:
    """Return the corpus, or the first pairs of its parts; with `num_test=0` it has no test part.

    No German sentence occurs twice. Training has no line of the other parts, in either language,
    not even with other capitals or other final punctuation. The test part begins with ten everyday
    sentences.

    Raises:
        DataError: If a part has fewer pairs than are asked for.

    Example:
        >>> corpus = tt.phrasebook(num_train=100)
        >>> len(corpus.train), len(corpus.test)
        (100, 500)
    """
    pairs = iter(read_tsv(Path(__file__).with_name("phrasebook.tsv.gz")))
    parts = []
    for size, most in zip((num_train, num_validation, num_test), _SIZES, strict=True):
        if size > most:
            raise DataError(f"{size} pairs are asked for where the phrasebook has {most}")
        part = [next(pairs) for _ in range(most)][:size]
        parts.append(ParallelText(*zip(*part, strict=True)) if part else None)
    return Corpus("phrasebook", *parts)
