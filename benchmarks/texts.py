"""The sentences that benchmarks translate."""

from tf_transformer.data.lines import stream_lines
from tf_transformer.data.phrasebook import phrasebook


def read_texts(path: str | None) -> list[str]:
    """Return the lines of a file, plain or gzip, or the phrasebook's test sentences."""
    return [*stream_lines(path)] if path else list(phrasebook().test.sources)
