"""Parallel text of TensorFlow Datasets."""

import textwrap
from collections.abc import Callable, Iterator
from typing import Any

from tf_transformer.data.lines import DataError, FilePath
from tf_transformer.data.text import Corpus, ParallelText, StoredPairs

_CATALOG = "https://www.tensorflow.org/datasets/catalog/overview"
_PAIRS_TOGETHER = 1000  # of which each costs less than one alone


class TfdsText(StoredPairs):
    """A split of a prepared dataset.

    Raises:
        DataError: If there is no such split, if it is not prepared, or if no pair is left.
    """

    def __init__(self, builder: Any, split: str) -> None:
        import tensorflow as tf  # as the builder has done

        where = f"TFDS dataset {builder.info.full_name!r}"
        try:
            examples = builder.as_dataset(split=split, as_supervised=True, shuffle_files=False)
        except ValueError as error:
            raise DataError(f"{where} has no split {split}; choose one that has it") from error
        except AssertionError as error:
            raise DataError(
                f"{where} is not prepared in {builder.data_dir}; download it with --tfds-download "
                f"(download=True), or say where it is with --tfds-dir (data_dir)"
            ) from error
        self._place = builder.data_dir, split
        options = tf.data.Options()
        options.autotune.enabled = False  # see `TokenBatches.dataset`
        self._examples = examples.batch(_PAIRS_TOGETHER).with_options(options)
        _ = self.fingerprint  # counts the pairs
        self._require_pairs(f"{where}, split {split}")

    def __reduce__(self) -> tuple[Callable, tuple[str, str]]:
        """Pickle where the pairs are, since a dataset of TensorFlow belongs to a process."""
        return _split_in, self._place

    def _stored(self) -> Iterator[tuple[str, ...]]:
        for sides in self._examples.as_numpy_iterator():
            for source, target in zip(*sides, strict=True):
                yield source.decode(), target.decode()


def load_tfds(name: str, data_dir: FilePath | None = None, download: bool = False) -> Corpus:
    """Load a corpus of TensorFlow Datasets; its supervised keys are source and target.

    The training text stays on disk.

    Args:
        name: Dataset and configuration, such as `"ted_hrlr_translate/pt_to_en"`.
        data_dir: Directory of prepared datasets; TFDS' default if None.
        download: Whether to download and prepare the dataset if it is not there. If False, the
            network is not used.

    Raises:
        DataError: If the dataset is unknown, unavailable, or does not consist of pairs of texts.
    """
    builder = _builder_of(name, data_dir)
    if download:
        try:
            builder.download_and_prepare()
        except Exception as error:  # Each dataset has its own code and raises its own errors.
            raise DataError(
                f"TFDS dataset {name!r} could not be downloaded to {builder.data_dir} "
                f"({type(error).__name__}: {textwrap.shorten(str(error), 200)}); check the network"
            ) from error
    train, validation = TfdsText(builder, "train"), _in_memory(builder, "validation")
    test = _in_memory(builder, "test") if "test" in builder.info.splits else None
    return Corpus(name, train, validation, test)


def tfds_split(name: str, split: str, data_dir: FilePath | None = None) -> ParallelText:
    """Read one split of a prepared dataset; see `load_tfds`."""
    return _in_memory(_builder_of(name, data_dir), split)


def _builder_of(name: str, data_dir: FilePath | None) -> Any:
    """Return the builder of a dataset whose supervised keys are two texts."""
    import tensorflow_datasets as tfds  # Slow to import, and only needed here.

    if name.partition(":")[2][:1].isalpha():
        raise DataError(
            f"TFDS dataset {name!r} belongs to a community, whose code TFDS would fetch from the "
            f"network and run; export it to text files and read those"
        )
    try:
        builder = tfds.builder(name, data_dir=data_dir, try_gcs=False)
    except (ValueError, AssertionError) as error:  # TFDS has no common error class.
        raise DataError(f"TFDS has no dataset {name!r}; see {_CATALOG}") from error
    if len(builder.builder_configs) > 1 and "/" not in name:
        # TFDS would silently take the first, which is Azerbaijani for ted_hrlr_translate.
        raise DataError(
            f"TFDS dataset {name!r} has several configurations; name one, such as "
            f"{name}/{builder.builder_config.name}"
        )
    keys, features = builder.info.supervised_keys or (), builder.info.features
    # A key may be a tuple or a dict of keys.
    texts = [key for key in keys if isinstance(key, str)]
    if [isinstance(features[key], tfds.features.Text) for key in texts] != [True, True]:
        raise DataError(
            f"TFDS dataset {name!r} is not a translation dataset (its supervised keys are "
            f"{keys or None}); choose one whose supervised keys are two texts"
        )
    return builder


def _split_in(folder: str, split: str) -> TfdsText:
    import tensorflow_datasets as tfds

    return TfdsText(tfds.builder_from_directory(folder), split)


def _in_memory(builder: Any, split: str) -> ParallelText:
    text = TfdsText(builder, split)
    return ParallelText(*zip(*text, strict=True), text.num_blank)
