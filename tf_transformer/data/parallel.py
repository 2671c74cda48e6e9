"""Parallel text and its readers: text files (plain or gzip), TSV and TensorFlow Datasets."""

import contextlib
import dataclasses
import functools
import hashlib
import logging
import os
import textwrap
import unicodedata
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from tf_transformer.data.lines import DataError, counted, read_lines, stream_aligned
from tf_transformer.errors import did_you_mean

# Unicode's categories of white space, controls and marks such as a zero width space.
_INVISIBLE = ("Cc", "Cf", "Zl", "Zp", "Zs")
_TFDS_CATALOG = "https://www.tensorflow.org/datasets/catalog/overview"


class Fingerprint(NamedTuple):
    """Identifies a text by its content; as str `"29,000 pairs, SHA-256 5f3c0a…"`.

    Attributes:
        num_pairs: Number of sentence pairs.
        sha256: Start of the digest of all pairs, in order.
    """

    num_pairs: int
    sha256: str

    @classmethod
    def of(cls, pairs: Iterable[tuple[str, str]]) -> "Fingerprint":
        """Reads all pairs once, without keeping them."""
        digest, number = hashlib.sha256(), 0
        for source, target in pairs:
            line = f"{source}\t{target}\n"
            if line.count("\t") > 1 or line.count("\n") > 1:
                # Other pairs have the same line; none begins as this one does now.
                line = f"\n{len(source)} {len(target)} {line}"
            digest.update(line.encode())
            number += 1
        return cls(number, digest.hexdigest()[:16])

    def __str__(self) -> str:
        """Returns both in a line, for messages and run metadata."""
        return f"{self.num_pairs:,} pairs, SHA-256 {self.sha256}"


@dataclasses.dataclass(frozen=True)
class ParallelText:
    """Aligned sentences: `targets[i]` is the translation of `sources[i]`.

    Attributes:
        sources: Sentences of the source language.
        targets: Sentences of the target language, as many as there are sources.
        num_blank: Number of pairs that the reader dropped because a side was blank.

    Raises:
        TypeError: If a side is one str.
        ValueError: If the sides are not equally long.
    """

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    num_blank: int = 0

    def __post_init__(self) -> None:
        """Checks that the sides are aligned sentences."""
        for name in ("sources", "targets"):
            if isinstance(getattr(self, name), str):  # Its characters would pass for sentences.
                raise TypeError(f"{name} must be a tuple of str, received a str; give (text,)")
        if len(self.sources) != len(self.targets):
            raise ValueError(
                f"sources and targets must be equally long, received {len(self.sources)} sources "
                f"and {len(self.targets)} targets; give one target for each source"
            )

    def __len__(self) -> int:
        """Returns the number of pairs."""
        return len(self.sources)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """Gives the pairs, (source, target)."""
        return zip(self.sources, self.targets, strict=True)

    @functools.cached_property
    def fingerprint(self) -> Fingerprint:
        """Identifies these sentences by their content."""
        return Fingerprint.of(self)


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Parallel text, split for training, validation and test.

    Attributes:
        name: Name of the corpus in messages.
        train: Training pairs: `ParallelText`, `TextFiles` that stay on disk, or the `Remainder` of
            either.
        validation: Pairs by which the best checkpoint is chosen.
        test: Pairs for the final evaluation, if there are any.
        notes: Lines about its files, for whoever trains.
    """

    name: str
    train: Iterable[tuple[str, str]]
    validation: ParallelText
    test: ParallelText | None = None
    notes: tuple[str, ...] = ()

    @property
    def unit(self) -> str:
        """What is counted: a `"pair"`, or a `"sentence"` where all sources are empty."""
        return "pair" if any(self.validation.sources) else "sentence"


def read_parallel(
    source_path: str | os.PathLike[str], target_path: str | os.PathLike[str]
) -> ParallelText:
    """Reads two files in which line i of one is the translation of line i of the other.

    Args:
        source_path: Sentences of the source language, see `stream_lines`.
        target_path: Sentences of the target language.

    Returns:
        The pairs without blank sides; `num_blank` counts the dropped ones.

    Raises:
        DataError: If a file cannot be read, the files differ in length, or no pair is left.
    """
    pairs = stream_aligned(source_path, target_path)
    return _drop_blanks(pairs, f"{source_path} and {target_path}")


def read_tsv(path: str | os.PathLike[str]) -> ParallelText:
    """Reads a file of lines `source TAB target`. Quotes and backslashes are ordinary characters.

    Args:
        path: The file, see `stream_lines`.

    Returns:
        The pairs without blank sides; `num_blank` counts the dropped ones, blank lines too.

    Raises:
        DataError: If the file cannot be read, a line has not exactly one tab, or no pair is left.
    """
    pairs = []
    for line_number, line in enumerate(read_lines(path), start=1):
        columns = ["", ""] if is_blank(line) else line.split("\t")
        if len(columns) != 2:
            raise DataError(
                f"{path}, line {line_number}: {counted(len(columns), 'column')} where 2 were "
                "expected; write source, one tab, target"
            )
        pairs.append((columns[0], columns[1]))
    return _drop_blanks(pairs, str(path))


def load_tfds(
    name: str, data_dir: str | os.PathLike[str] | None = None, download: bool = False
) -> Corpus:
    """Loads a translation corpus of TensorFlow Datasets.

    Args:
        name: Dataset and configuration, such as `"ted_hrlr_translate/pt_to_en"`.
        data_dir: Directory of prepared datasets; TFDS' default if None.
        download: Whether to download and prepare the dataset if it is not there. Otherwise the
            network is not used.

    Returns:
        The corpus. Source and target are the dataset's supervised keys, in their order.

    Raises:
        DataError: If the dataset is unknown, not prepared, or not of pairs of texts.
    """
    builder = _tfds_builder(name, data_dir, download)
    return Corpus(
        name=name,
        train=_read_tfds_split(builder, name, "train"),
        validation=_read_tfds_split(builder, name, "validation"),
        test=_read_tfds_split(builder, name, "test") if "test" in builder.info.splits else None,
    )


def load_tfds_validation(name: str, data_dir: str | os.PathLike[str] | None = None) -> ParallelText:
    """Loads the validation sentences of a corpus of TensorFlow Datasets that is prepared.

    Arguments and errors are those of `load_tfds`.
    """
    return _read_tfds_split(_tfds_builder(name, data_dir, download=False), name, "validation")


def _tfds_builder(name: str, data_dir: str | os.PathLike[str] | None, download: bool) -> Any:
    """The prepared dataset, which has pairs of texts for training and validation."""
    import tensorflow_datasets as tfds  # Slow to import, and only needed here.

    if name.partition(":")[2][:1].isalpha():
        raise DataError(
            f"TFDS dataset {name!r} belongs to a community, whose code TFDS would fetch from the "
            "network and run; export it to text files and read those"
        )
    try:
        builder = tfds.builder(name, data_dir=data_dir, try_gcs=False)
    except (ValueError, AssertionError) as error:  # TFDS has no common error class.
        raise DataError(_unknown_tfds_name(name)) from error
    if len(builder.builder_configs) > 1 and "/" not in name:
        # TFDS would silently take the first, for ted_hrlr_translate Azerbaijani.
        raise DataError(
            f"TFDS dataset {name!r} has several configurations; name one, such as "
            f"{name}/{builder.builder_config.name}"
        )
    keys = builder.info.supervised_keys or ()
    # A key may itself be a tuple or a dict of keys: such a dataset is not pairs of texts either.
    features = [builder.info.features[key] for key in keys if isinstance(key, str)]
    if [isinstance(feature, tfds.features.Text) for feature in features] != [True, True]:
        raise DataError(
            f"TFDS dataset {name!r} is not a translation dataset (its supervised keys are "
            f"{keys or None}); choose one whose supervised keys are two texts"
        )
    with _without_absl_warnings():
        is_prepared = builder.is_prepared()
    if not is_prepared:
        _prepare_tfds(builder, name, download)
    if not {"train", "validation"} <= set(builder.info.splits):
        raise DataError(
            f"TFDS dataset {name!r} has the splits {', '.join(builder.info.splits)}; "
            "choose one with train and validation"
        )
    return builder


def is_blank(text: str) -> bool:
    """Returns whether no character of a text is visible, such as U+200B or U+FEFF."""
    return all(unicodedata.category(character) in _INVISIBLE for character in text)


def has_text(pair: tuple[str, str]) -> bool:
    """Returns whether neither side of a pair is blank."""
    return not (is_blank(pair[0]) or is_blank(pair[1]))


def no_pair_left(where: str, num_blank: int) -> DataError:
    """Returns the error for a text without a usable pair."""
    return DataError(
        f"{where}: no pair is left, {num_blank} had a blank side; "
        "give at least one pair with text on both sides"
    )


def _drop_blanks(pairs: Iterable[tuple[str, str]], where: str) -> ParallelText:
    """Keeps the pairs with text on both sides, and raises if there is none."""
    pairs = list(pairs)
    kept = [pair for pair in pairs if has_text(pair)]
    num_blank = len(pairs) - len(kept)
    if not kept:
        raise no_pair_left(where, num_blank)
    return ParallelText(*zip(*kept, strict=True), num_blank)


@contextlib.contextmanager
def _without_absl_warnings() -> Iterator[None]:
    """Suppresses TFDS' warning of a missing directory, which our own error explains."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _unknown_tfds_name(name: str) -> str:
    """Returns the message for a dataset or configuration that TFDS does not know."""
    import tensorflow_datasets as tfds

    known = tfds.list_builders(with_community_datasets=False)  # The community's list is online.
    dataset, _, config = name.partition("/")
    what, prefix = "dataset", ""
    if dataset in known:
        what, prefix = "configuration or version", f"{dataset}/"
        dataset, known = config, tfds.builder_cls(dataset).builder_configs
    advice = did_you_mean(prefix + dataset, [prefix + k for k in known], f"see {_TFDS_CATALOG}")
    return f"TFDS has no {what} {name!r}; {advice}"


def _prepare_tfds(builder, name: str, download: bool) -> None:
    """Downloads a dataset that is not on disk; raises if `download` is False."""
    if not download:
        raise DataError(
            f"TFDS dataset {name!r} is not prepared in {builder.data_dir}; download it with "
            "--tfds-download (download=True), or say where it is with --tfds-dir (data_dir)"
        )
    try:
        builder.download_and_prepare()
    except Exception as error:  # The code of each dataset raises errors of its own.
        raise DataError(
            f"TFDS dataset {name!r} could not be downloaded to {builder.data_dir} "
            f"({type(error).__name__}: {textwrap.shorten(str(error), 200)}); check the network"
        ) from error


def _read_tfds_split(builder, name: str, split: str) -> ParallelText:
    """Reads one split of a prepared dataset, in the same order each time."""
    examples = builder.as_dataset(split=split, as_supervised=True, shuffle_files=False)
    pairs = []
    for number, (source, target) in enumerate(examples.as_numpy_iterator()):
        try:
            pairs.append((source.decode("utf-8"), target.decode("utf-8")))
        except UnicodeDecodeError as error:
            raise DataError(
                f"TFDS dataset {name!r}, split {split}, example {number}: not valid UTF-8; "
                "prepare the dataset again"
            ) from error
    return _drop_blanks(pairs, f"TFDS dataset {name!r}, split {split}")
