"""The corpus of a run, by its name in the configuration."""

from tf_transformer.config import DataConfig
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

# Small corpora have few distinct subwords, and SentencePiece fails if it is asked for more.
_VOCAB_SIZES = {"phrasebook": 2000, "copy": 280, "reverse": 280}
_DEFAULT_VOCAB_SIZE = 8000
_BUILT_IN = {"phrasebook": phrasebook, "copy": copy_task, "reverse": reverse_task}


def load_corpus(config: DataConfig) -> Corpus:
    """Reads or generates the sentences of a run.

    Returns:
        The corpus. Training text of `corpus="text"` stays in its files.

    Raises:
        DataError: If the files cannot be read or are not aligned.
    """
    if config.corpus in _BUILT_IN:
        return _BUILT_IN[config.corpus]()
    if config.corpus.startswith("tfds:"):
        name = config.corpus.removeprefix("tfds:")
        return load_tfds(name, config.tfds_dir, config.tfds_download)
    if config.corpus == "tsv":
        return Corpus("tsv", read_tsv(config.train_tsv), read_tsv(config.validation_tsv))
    # The small text first: an error in it need not wait for the large one.
    validation = read_parallel(config.validation_source, config.validation_target)
    return Corpus("text", TextFiles(config.train_source, config.train_target), validation)


def load_validation(config: DataConfig) -> ParallelText:
    """Reads or generates the validation sentences of a run alone, without the network.

    Raises:
        DataError: If the files cannot be read or are not aligned.
    """
    if config.corpus in _BUILT_IN:
        return _BUILT_IN[config.corpus]().validation
    if config.corpus.startswith("tfds:"):
        return load_tfds_validation(config.corpus.removeprefix("tfds:"), config.tfds_dir)
    if config.corpus == "tsv":
        return read_tsv(config.validation_tsv)
    return read_parallel(config.validation_source, config.validation_target)


def default_vocab_size(corpus: str) -> int:
    """Returns a vocabulary size that suits a corpus, by its name in `DataConfig`."""
    return _VOCAB_SIZES.get(corpus, _DEFAULT_VOCAB_SIZE)
