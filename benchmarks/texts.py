"""The sentences that benchmarks translate."""

import sys

from tf_transformer.data.text import DataError, read_lines


def read_texts(path: str | None) -> list[str]:
    """Returns the lines of a file, plain or gzip, or the phrasebook's test part."""
    if path:
        try:
            return read_lines(path)
        except DataError as error:
            sys.exit(str(error))
    from tf_transformer.data.phrasebook import phrasebook

    return list(phrasebook().test.sources)
