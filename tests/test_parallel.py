"""Tests of parallel text and its readers. Nothing here touches the network."""

import codecs
import gzip
import logging
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow_datasets as tfds
from hypothesis import given, settings
from hypothesis import strategies as st

from tf_transformer import data
from tf_transformer.config import DataConfig
from tf_transformer.data.corpus import load_validation
from tf_transformer.data.parallel import (
    DataError,
    ParallelText,
    is_blank,
    load_tfds,
    read_lines,
    read_parallel,
    read_tsv,
)
from tf_transformer.data.text_files import TextFiles


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    """Fails any test that opens a connection or looks up a host."""

    def refuse(*arguments):
        pytest.fail(f"the network was touched: {arguments}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket.socket, "connect_ex", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.fixture
def write(tmp_path):
    """Returns a function that writes bytes to a new file and returns its path."""

    def write_file(name, content):
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return write_file


class TinyTranslation(tfds.core.GeneratorBasedBuilder):
    """A dataset `tiny_translation`, generated here instead of downloaded."""

    VERSION = tfds.core.Version("1.0.0")
    FEATURES = {"pt": tfds.features.Text(), "en": tfds.features.Text()}
    KEYS = ("pt", "en")
    PAIRS = {
        "train": [("um", "one"), ("dois\u2028 e meio", "two and a half"), ("três", " ")],
        "validation": [("quatro", "four")],
        "test": [("cinco", "five")],
    }

    def _info(self):
        features = tfds.features.FeaturesDict(self.FEATURES)
        return tfds.core.DatasetInfo(builder=self, features=features, supervised_keys=self.KEYS)

    def _split_generators(self, dl_manager):
        return {split: self._generate_examples(split) for split in self.PAIRS}

    def _generate_examples(self, split):
        for number, (source, target) in enumerate(self.PAIRS[split]):
            yield number, {"pt": source, "en": target}


class ForeignTranslation(TinyTranslation, skip_registration=True):
    """A dataset whose prepared files TFDS finds, but not its code."""

    FEATURES = tfds.features.Translation(("pt", "en"))


def assert_says(action, parts):
    """Asserts that the action raises a DataError of one line that holds all the parts."""
    with pytest.raises(DataError) as caught:
        action()
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert part in message


def test_parallel_text_has_a_length_and_gives_pairs():
    text = ParallelText(("a", "b"), ("A", "B"))
    assert len(text) == 2
    assert list(text) == [("a", "A"), ("b", "B")]
    assert text.num_blank == 0


def test_parallel_text_of_unequal_sides_is_an_error_with_both_counts():
    with pytest.raises(ValueError, match="received 2 sources and 3 targets"):
        ParallelText(("a", "b"), ("A", "B", "C"))


@pytest.mark.parametrize(
    ("sources", "targets", "name"),
    [("ab", ("A", "B"), "sources"), (("a", "b"), "AB", "targets")],
    ids=["sources", "targets"],
)
def test_a_text_in_place_of_sentences_is_an_error(sources, targets, name):
    with pytest.raises(TypeError, match=rf"{name} must be a tuple of str.*give \(text,\)"):
        ParallelText(sources, targets)


HEAVY = {"tensorflow", "tensorflow_datasets", "keras", "numpy"}


@pytest.mark.parametrize("module", ["lines", "parallel", "text_files"])
def test_the_readers_load_no_heavy_library(module):
    code = f"import sys, tf_transformer.data.{module}; assert not {HEAVY} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_package_loads_a_public_name_when_it_is_first_used():
    code = (
        "import sys, tf_transformer.data as data; "
        f"assert data.read_tsv and not {HEAVY} & set(sys.modules); "
        "assert data.TokenBatches and 'tensorflow' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", data.__all__)
def test_every_public_name_of_the_package_is_there(name):
    assert getattr(data, name).__name__ == name
    assert name in dir(data)


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"one\ntwo\n", ["one", "two"]),
        (b"one\ntwo", ["one", "two"]),
        (b"one\r\ntwo\r\n", ["one", "two"]),
        (b"one\r\ntwo\n", ["one", "two"]),
        (b"\xef\xbb\xbfone\ntwo\n", ["one", "two"]),
        (b"one\n\ntwo\n\n", ["one", "", "two", ""]),
        (b" one \t\n", [" one \t"]),
        (b"one\rstill one\n", ["one\rstill one"]),
        ("a\u2028b\nc\u2029d\n".encode(), ["a\u2028b", "c\u2029d"]),
        ("a\x85b\nc\x0bd\x0ce\x1cf\n".encode(), ["a\x85b", "c\x0bd\x0ce\x1cf"]),
        ("Grüße 你好 🙂\n".encode(), ["Grüße 你好 🙂"]),
    ],
)
@pytest.mark.parametrize("compress", [False, True])
def test_read_lines_ends_lines_at_newlines_only(write, content, lines, compress):
    assert read_lines(write("a.txt", gzip.compress(content) if compress else content)) == lines


@pytest.mark.parametrize("compress", [False, True])
def test_a_byte_order_mark_changes_no_line(write, compress):
    # `tf-transformer evaluate` reads its sentences with this function.
    content = "Grüße\n\ufeffzwei\n".encode()
    plain, marked = (
        read_lines(write(name, gzip.compress(data) if compress else data))
        for name, data in (("plain", content), ("marked", codecs.BOM_UTF8 + content))
    )
    assert marked == plain == ["Grüße", "\ufeffzwei"]


def test_the_content_and_not_the_name_says_whether_a_file_is_gzip(write):
    assert read_lines(write("plain.gz", b"one\n")) == ["one"]
    two_members = gzip.compress(b"one\n") + gzip.compress(b"two\n")
    assert read_lines(write("packed.txt", two_members)) == ["one", "two"]


def test_read_parallel_drops_and_counts_pairs_with_a_blank_side(write):
    source_path = write("a.de", b"eins\n\nzwei\n \t\nvier\n\n")
    target_path = write("a.en", "one\nx\ntwo\ny\n\u2028\n\n".encode())
    expected = ParallelText(("eins", "zwei"), ("one", "two"), num_blank=4)
    assert read_parallel(str(source_path), target_path) == expected


def test_a_line_without_a_visible_character_is_blank(write):
    blank = ["\u200b", "\ufeff \u2060", "\xad", "\x00\x1b", "\u200e\u202e"]
    visible = ["\u200ba", "🙂\ufe0f", "\u200d्", ".", "\ue000", "\U0001faff"]
    texts = ["first", *blank, *visible]
    lines = "".join(f"{text}\n" for text in texts).encode()
    columns = "".join(f"{text}\t{text}\n" for text in texts).encode()
    for text in (
        read_parallel(write("a.de", lines), write("a.en", lines)),
        read_tsv(write("a.tsv", columns)),
        TextFiles(None, write("a.txt", lines)),
    ):
        assert [target for _, target in text] == ["first", *visible]
        assert text.num_blank == len(blank)
    assert read_tsv(write("b.tsv", "a\tb\n\u200b\n".encode())).num_blank == 1


def test_read_tsv_drops_and_counts_pairs_with_a_blank_side(write):
    path = write("a.tsv", b'eins\tone\n\nzwei\t \n\tthree\n"vier"\t\\four\r\n')
    assert read_tsv(path) == ParallelText(("eins", '"vier"'), ("one", "\\four"), num_blank=3)


# A line has any character but a line feed; a return before that would be part of the line end.
characters = st.characters(codec="utf-8", exclude_characters="\n\r")
sentences = st.text(characters).filter(lambda text: not is_blank(text))


@settings(deadline=None)  # No test fails because the machine is busy.
@given(
    pairs=st.lists(st.tuples(sentences, sentences), min_size=1), end=st.sampled_from(["\n", "\r\n"])
)
def test_aligned_files_are_read_back(tmp_path_factory, pairs, end):
    folder = tmp_path_factory.mktemp("aligned")
    sources, targets = zip(*pairs, strict=True)
    for name, side in (("source", sources), ("target", targets)):
        # With a byte order mark; a second one at the start of a sentence is text.
        text = "\ufeff" + "".join(sentence + end for sentence in side)
        (folder / name).write_bytes(text.encode())
    assert read_parallel(folder / "source", folder / "target") == ParallelText(sources, targets)


# The names are the tests' ids: gzip holds the time, and an id must be the same in every process.
UNREADABLE = {
    "empty": (b"", ["the file is empty"]),
    "byte order mark alone": (b"\xef\xbb\xbf", ["the file is empty"]),
    "empty gzip": (gzip.compress(b""), ["the file is empty"]),
    "not UTF-8": (b"one\ntwo\nthr\xffee\n", ["line 3", "not valid UTF-8"]),
    "character cut by a line end": (
        b"\xef\xbb\xbfone\n\xe2\x82\nthree\n",
        ["line 2", "not valid UTF-8"],
    ),
    "character cut by the end of gzip": (
        gzip.compress(b"one\n\xc3"),
        ["line 2", "not valid UTF-8"],
    ),
    "UTF-16": ("one\n".encode("utf-16"), ["line 1", "not valid UTF-8"]),
    "gzip without its end": (
        gzip.compress(b"one\n" * 100)[:-9],
        ["damaged or incomplete gzip"],
    ),
    "start of a gzip header": (gzip.compress(b"one\n" * 100)[:5], ["damaged or incomplete gzip"]),
    "gzip header before junk": (
        gzip.compress(b"one\n")[:10] + b"\xff" * 20,
        ["damaged or incomplete gzip"],
    ),
    "wrong gzip checksum": (
        gzip.compress(b"one\n")[:-8] + bytes(8),
        ["damaged or incomplete gzip"],
    ),
}
READERS = {
    "read_lines": read_lines,
    "read_tsv": read_tsv,
    "read_parallel": lambda path: read_parallel(path, path),
}


@pytest.mark.parametrize(("content", "expected"), UNREADABLE.values(), ids=UNREADABLE)
@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_unreadable_content_is_an_error_that_says_where(write, read, content, expected):
    assert_says(lambda: read(write("bad.txt", content)), ["bad.txt", *expected])


def test_a_missing_file_is_an_error_that_names_it(tmp_path):
    assert_says(lambda: read_lines(tmp_path / "no.txt"), [str(tmp_path / "no.txt"), "no such file"])


def test_a_directory_is_an_error_that_names_it(tmp_path):
    assert_says(lambda: read_lines(tmp_path), [str(tmp_path), "a directory"])


def test_a_path_through_a_file_is_an_error_that_names_it(write):
    path = write("a.txt", b"one\n") / "b.txt"
    assert_says(lambda: read_lines(path), [str(path), "cannot be read", "Not a directory"])


def test_a_file_without_read_permission_is_an_error_that_names_it(write, monkeypatch):
    path = write("secret.txt", b"one\n")

    def refuse(self, mode):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)  # Access rights do not stop root.
    assert_says(lambda: read_lines(path), [str(path), "no permission"])


@pytest.mark.parametrize(("content", "counted"), [(b"1\n2\n3\n", "3 lines"), (b"1\n", "1 line")])
def test_files_of_different_length_are_an_error_with_both_paths_and_counts(write, content, counted):
    source_path, target_path = write("a.de", content), write("a.en", b"1\n2\n")
    expected = [f"{source_path} has {counted} but", f"{target_path} has 2"]
    assert_says(lambda: read_parallel(source_path, target_path), expected)


def test_nothing_but_blank_pairs_is_an_error_with_their_number(write):
    source_path, target_path = write("a.de", b"\neins\n"), write("a.en", b"one\n \n")
    expected = ["a.de", "a.en", "no pair is left", "2 had a blank side"]
    assert_says(lambda: read_parallel(source_path, target_path), expected)
    expected = ["a.tsv", "no pair is left", "1 had a blank side"]
    assert_says(lambda: read_tsv(write("a.tsv", b"eins\t\n")), expected)


@pytest.mark.parametrize(
    ("line", "counted"),
    [("no tab", "1 column "), ("a\tb\tc", "3 columns "), ("a\tb\t", "3 columns ")],
)
def test_a_tsv_line_without_exactly_one_tab_is_an_error_that_says_where(write, line, counted):
    path = write("a.tsv", f"eins\tone\n\n{line}\n".encode())
    assert_says(lambda: read_tsv(path), ["a.tsv", "line 3", counted])


def expected_tiny_corpus(name):
    """`TinyTranslation.PAIRS` as they are read: the pair with a blank side is dropped."""
    train = [("um", "one"), ("dois\u2028 e meio", "two and a half")]
    return {
        "name": name,
        "train": sorted(train),
        "validation": [("quatro", "four")],
        "test": [("cinco", "five")],
        "num_blank": [1, 0, 0],
    }


def as_found(corpus):
    """A corpus in the form of `expected_tiny_corpus`; TFDS shuffles when it prepares."""
    return {
        "name": corpus.name,
        "train": sorted(corpus.train),
        "validation": list(corpus.validation),
        "test": list(corpus.test),
        "num_blank": [p.num_blank for p in (corpus.train, corpus.validation, corpus.test)],
    }


def test_load_tfds_downloads_when_told_and_then_reads_the_disk(tmp_path, monkeypatch):
    name = "tiny_translation"
    assert as_found(load_tfds(name, tmp_path, download=True)) == expected_tiny_corpus(name)
    monkeypatch.delattr(TinyTranslation, "_generate_examples")  # Nothing is generated again.
    again = load_tfds(name, tmp_path)
    assert as_found(again) == expected_tiny_corpus(name)
    assert again == load_tfds(name, tmp_path)  # In the same order, too.
    config = DataConfig(corpus=f"tfds:{name}", tfds_dir=str(tmp_path), tfds_download=True)
    assert load_validation(config) == again.validation


def test_load_tfds_reads_a_prepared_dataset_without_its_code(tmp_path):
    ForeignTranslation(data_dir=tmp_path).download_and_prepare()
    name = "foreign_translation"
    assert as_found(load_tfds(name, tmp_path)) == expected_tiny_corpus(name)


def test_load_tfds_takes_source_and_target_from_the_supervised_keys(tmp_path, monkeypatch):
    monkeypatch.setattr(TinyTranslation, "KEYS", ("en", "pt"))
    corpus = load_tfds("tiny_translation", tmp_path, download=True)
    assert list(corpus.validation) == [("four", "quatro")]


def test_load_tfds_of_a_dataset_without_test_split_has_none(tmp_path, monkeypatch):
    monkeypatch.setattr(
        TinyTranslation, "PAIRS", {"train": [("a", "b")], "validation": [("c", "d")]}
    )
    assert load_tfds("tiny_translation", tmp_path, download=True).test is None


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        (
            {"train": [("a", "b")], "test": [("c", "d")]},
            ["the splits train, test", "train and validation"],
        ),
        (
            {"train": [("a", "b")], "validation": [("c", b"\xff")]},
            ["split validation, example 0", "not valid UTF-8"],
        ),
        (
            {"train": [("a", " ")], "validation": [("c", "d")]},
            ["split train", "no pair is left", "1 had a blank side"],
        ),
    ],
)
def test_a_tfds_dataset_that_cannot_be_used_is_an_error(tmp_path, monkeypatch, pairs, expected):
    monkeypatch.setattr(TinyTranslation, "PAIRS", pairs)
    expected = ["'tiny_translation'", *expected]
    assert_says(lambda: load_tfds("tiny_translation", tmp_path, download=True), expected)


@pytest.mark.parametrize("keys", [None, ("pt", "number"), (("pt", "en"), "pt")])
def test_a_tfds_dataset_that_is_not_two_texts_is_an_error(tmp_path, monkeypatch, keys):
    features = {**TinyTranslation.FEATURES, "number": tfds.features.ClassLabel(num_classes=2)}
    monkeypatch.setattr(TinyTranslation, "FEATURES", features)
    monkeypatch.setattr(TinyTranslation, "KEYS", keys)
    expected = ["'tiny_translation'", "not a translation dataset", str(keys)]
    assert_says(lambda: load_tfds("tiny_translation", tmp_path), expected)


def test_a_failing_tfds_download_is_an_error_with_its_cause(tmp_path, monkeypatch):
    def fail(self, dl_manager):
        raise ConnectionError("the host\nis gone")

    monkeypatch.setattr(TinyTranslation, "_split_generators", fail)
    expected = ["'tiny_translation'", str(tmp_path), "ConnectionError: the host is gone"]
    assert_says(lambda: load_tfds("tiny_translation", tmp_path, download=True), expected)


@pytest.mark.parametrize("name", ["ted_hrlr_translate/pt_to_en", "wmt14_translate/de-en"])
def test_a_tfds_dataset_that_is_not_on_disk_is_an_error_that_says_how_to_get_it(
    tmp_path, name, caplog
):
    expected = [name, str(tmp_path / name), "--tfds-download", "download=True", "data_dir"]
    level = logging.getLogger("absl").level
    assert_says(lambda: load_tfds(name, tmp_path), expected)
    assert not list(tmp_path.iterdir())
    assert caplog.messages == [], "the error says all"
    assert logging.getLogger("absl").level == level, "other warnings are still shown"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ted_hrlr_translat/pt_to_en", ["no dataset", "did you mean 'ted_hrlr_translate'?"]),
        ("xqzzyx", ["no dataset", "catalog"]),
        ("not a name!", ["no dataset", "catalog"]),
        ("ted_hrlr_translate/pt_to_e", ["no configuration", "'ted_hrlr_translate/pt_to_en'?"]),
        ("ted_hrlr_translate/pt_to_en:9.9.9", ["no configuration or version"]),
        ("ted_hrlr_translate", ["several configurations", "ted_hrlr_translate/az_to_en"]),
        ("huggingface:opus100/de-en", ["belongs to a community", "export it to text files"]),
    ],
)
def test_an_unknown_tfds_name_is_an_error_that_names_the_nearest(tmp_path, name, expected):
    assert_says(lambda: load_tfds(name, tmp_path), [repr(name), *expected])
