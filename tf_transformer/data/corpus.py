"""The corpus a run asks for, by name."""

from tf_transformer.data.parallel import Corpus, load_tfds, read_parallel, read_tsv
from tf_transformer.data.phrasebook import phrasebook
from tf_transformer.data.synthetic import copy_task, reverse_task
from tf_transformer.data.text_files import TextFiles

# Small corpora hold few different pieces; SentencePiece refuses to make up more.
_VOCAB_SIZES = {"phrasebook": 2000, "copy": 280, "reverse": 280}
_DEFAULT_VOCAB_SIZE = 8000
_BUILT_IN = {"phrasebook": phrasebook, "copy": copy_task, "reverse": reverse_task}


def load_corpus(config):
    """Reads or makes the sentences of a run.

    Args:
        config: `DataConfig`.

    Returns:
        `Corpus`. Training text stays in its files where these are plain text.

    Raises:
        DataError: the files cannot be read or do not fit together.
    """
    if config.corpus in _BUILT_IN:
        return _BUILT_IN[config.corpus]()
    if config.corpus.startswith("tfds:"):
        name = config.corpus.removeprefix("tfds:")
        return load_tfds(name, config.tfds_dir, config.tfds_download)
    if config.corpus == "tsv":
        return Corpus("tsv", read_tsv(config.train_tsv), read_tsv(config.validation_tsv))
    # First what is small: a mistake there need not wait for the large text.
    validation = read_parallel(config.validation_source, config.validation_target)
    return Corpus("text", TextFiles(config.train_source, config.train_target), validation)


def default_vocab_size(corpus):
    """Pieces of a vocabulary that suit a corpus, by its name in `DataConfig`."""
    return _VOCAB_SIZES.get(corpus, _DEFAULT_VOCAB_SIZE)
