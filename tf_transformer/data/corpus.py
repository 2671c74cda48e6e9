"""The corpus of a run, by its name in the configuration."""

from tf_transformer.config import DataConfig
from tf_transformer.data.held_out import hold_out, num_repeated
from tf_transformer.data.parallel import (
    Corpus,
    ParallelText,
    load_tfds,
    load_tfds_validation,
    read_parallel,
    read_tsv,
)
from tf_transformer.data.phrasebook import phrasebook
from tf_transformer.data.synthetic import copy_task, reverse_task
from tf_transformer.data.text_files import TextFiles

# The built-in corpora have few distinct subwords.
_VOCAB_SIZES = {"phrasebook": 2000, "copy": 280, "reverse": 280}
# Of other corpora: the fewest pairs for a vocabulary of so many subwords.
_VOCAB_SIZES_BY_PAIRS = {
    0: 400, 300: 1_000, 2_000: 2_000, 10_000: 4_000, 25_000: 8_000, 1_000_000: 16_000,
    5_000_000: 32_000,
}  # fmt: skip
_BUILT_IN = {"phrasebook": phrasebook, "copy": copy_task, "reverse": reverse_task}


def load_corpus(config: DataConfig) -> Corpus:
    """Reads or generates the sentences of a run.

    Returns:
        The corpus. Training text of `corpus="text"` and `corpus="monolingual"` stays in its files,
        and the sources of the latter are empty. Without validation files a part of the training
        text is held out, always the same.

    Raises:
        DataError: If the files cannot be read or are not aligned, or none can be held out.
    """
    if config.corpus in _BUILT_IN:
        return _BUILT_IN[config.corpus]()
    if config.corpus.startswith("tfds:"):
        name = config.corpus.removeprefix("tfds:")
        return load_tfds(name, config.tfds_dir, config.tfds_download)
    # The small text first: an error in it need not wait for the large one.
    validation = _read_validation(config) if config.has_validation_files else None
    paths = [getattr(config, name) for name in DataConfig.TRAINING_FILES[config.corpus]]
    if config.corpus == "tsv":
        train = read_tsv(*paths)
    else:
        train = TextFiles(*paths) if config.has_sources else TextFiles(None, *paths)
    notes = []
    if isinstance(train, TextFiles) and len(train.shards) > 1:
        first, last = (" with ".join(map(str, train.shards[index])) for index in (0, -1))
        where = " on each side" if config.has_sources else ""
        notes.append(f"{len(train.shards)} files{where}: {first}, …, {last}.")
    if validation is None:
        train, validation = hold_out(train, " and ".join(paths))
    elif number := num_repeated(train, validation):
        units = "pairs" if config.has_sources else "sentences"
        notes.append(
            f"Validation {units} that are training {units} too: {number:,} of "
            f"{len(validation):,}; their scores are too good."
        )
    return Corpus(config.corpus, train, validation, notes=tuple(notes))


def load_validation(config: DataConfig) -> ParallelText:
    """Reads or generates the validation sentences of a run alone, without the network.

    Raises:
        DataError: If the files cannot be read or are not aligned.
    """
    if config.corpus in _BUILT_IN:
        return _BUILT_IN[config.corpus]().validation
    if config.corpus.startswith("tfds:"):
        return load_tfds_validation(config.corpus.removeprefix("tfds:"), config.tfds_dir)
    if not config.has_validation_files:
        return load_corpus(config).validation
    return _read_validation(config)


def _read_validation(config: DataConfig) -> ParallelText:
    if config.corpus == "tsv":
        return read_tsv(config.validation_tsv)
    if not config.has_sources:
        text = TextFiles(None, config.validation_text)
        return ParallelText(*zip(*text, strict=True), text.num_blank)
    return read_parallel(config.validation_source, config.validation_target)


def default_vocab_size(corpus: str, num_pairs: int) -> int:
    """Returns a vocabulary size that suits a corpus.

    Args:
        corpus: Its name in `DataConfig`.
        num_pairs: Number of its training pairs.
    """
    if corpus in _VOCAB_SIZES:
        return _VOCAB_SIZES[corpus]
    return max(size for fewest, size in _VOCAB_SIZES_BY_PAIRS.items() if num_pairs >= fewest)
