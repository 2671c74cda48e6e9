"""The sentences that benchmarks translate."""

from tf_transformer.data.phrasebook import phrasebook
from tf_transformer.data.text import read_lines


def read_texts(path: str | None) -> list[str]:
    """Returns the lines of a file, plain or gzip, or the phrasebook's test part."""
    return read_lines(path) if path else list(phrasebook().test.sources)
