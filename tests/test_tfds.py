"""Tests of the reader of TensorFlow Datasets. Nothing here touches the network."""

import functools
import pickle
import socket

import pytest
import tensorflow_datasets as tfds
from commands import refusal

from tf_transformer.data.corpus import load_validation
from tf_transformer.data.lines import DataError
from tf_transformer.data.tfds import load_tfds
from tf_transformer.run_tables import DataConfig


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    """Fails any test that opens a connection or looks up a host."""

    def refuse(*arguments):
        pytest.fail(f"the network was touched: {arguments}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket.socket, "connect_ex", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


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


error_of = functools.partial(refusal, load_tfds, kind=DataError)


def assert_tiny(corpus):
    # TFDS shuffles when it prepares; the pair with a blank side is dropped.
    assert sorted(corpus.train) == [("dois\u2028 e meio", "two and a half"), ("um", "one")]
    assert list(corpus.validation) == [("quatro", "four")]
    assert list(corpus.test) == [("cinco", "five")]
    assert (corpus.train.num_blank, corpus.test.num_blank) == (1, 0)


def test_a_dataset_is_downloaded_when_told_and_then_read_from_the_disk(tmp_path, monkeypatch):
    name = "tiny_translation"
    assert_tiny(load_tfds(name, tmp_path, download=True))
    monkeypatch.delattr(TinyTranslation, "_generate_examples")  # Nothing is generated again.
    again = load_tfds(name, tmp_path)
    assert_tiny(again)
    other = load_tfds(name, tmp_path, download=True)  # In the same order, too.
    assert list(again.train) == list(again.train) == list(other.train)
    assert list(pickle.loads(pickle.dumps(again.train))) == list(again.train)
    assert again.train.fingerprint == other.train.fingerprint and len(again.train) == 2
    # Otherwise deleting an iterator that is over a minute old waits for another minute.
    assert again.train._examples.options().autotune.enabled is False
    config = DataConfig(corpus=f"tfds:{name}", tfds_dir=str(tmp_path), tfds_download=True)
    assert load_validation(config) == again.validation


def test_a_prepared_dataset_is_read_without_its_code(tmp_path):
    ForeignTranslation(data_dir=tmp_path).download_and_prepare()
    assert_tiny(load_tfds("foreign_translation", tmp_path))


def test_source_and_target_are_the_supervised_keys_in_their_order(tmp_path, monkeypatch):
    monkeypatch.setattr(TinyTranslation, "KEYS", ("en", "pt"))
    pairs = {"train": [("a", "b")], "validation": [("c", "d")]}
    monkeypatch.setattr(TinyTranslation, "PAIRS", pairs)
    corpus = load_tfds("tiny_translation", tmp_path, download=True)
    assert list(corpus.validation) == [("d", "c")] and corpus.test is None


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        ({"train": [("a", "b")], "test": [("c", "d")]}, "has no split validation; choose"),
        ({"train": [("a", " ")], "validation": [("c", "d")]}, "split train: no pair is left, 1"),
    ],
)
def test_a_dataset_without_the_pairs_is_an_error(tmp_path, monkeypatch, pairs, words):
    monkeypatch.setattr(TinyTranslation, "PAIRS", pairs)
    assert words in error_of("tiny_translation", tmp_path, download=True)


@pytest.mark.parametrize("keys", [None, ("pt", "number"), (("pt", "en"), "pt")])
def test_a_dataset_that_is_not_two_texts_is_an_error(tmp_path, monkeypatch, keys):
    features = {**TinyTranslation.FEATURES, "number": tfds.features.ClassLabel(num_classes=2)}
    monkeypatch.setattr(TinyTranslation, "FEATURES", features)
    monkeypatch.setattr(TinyTranslation, "KEYS", keys)
    message = error_of("tiny_translation", tmp_path)
    assert "not a translation dataset" in message and str(keys) in message


def test_a_failing_download_is_an_error_with_its_cause(tmp_path, monkeypatch):
    def fail(self, dl_manager):
        raise ConnectionError("the host\nis gone")

    monkeypatch.setattr(TinyTranslation, "_split_generators", fail)
    message = error_of("tiny_translation", tmp_path, download=True)
    assert "'tiny_translation'" in message and "ConnectionError: the host is gone" in message


def test_a_dataset_that_is_not_on_disk_is_an_error_that_says_how_to_get_it(tmp_path, caplog):
    name = "ted_hrlr_translate/pt_to_en"
    message = error_of(name, tmp_path)
    for words in (name, str(tmp_path / name), "--tfds-download", "data_dir"):
        assert words in message
    assert not list(tmp_path.iterdir())
    assert caplog.messages == [], "the error says all"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("xqzzyx", "no dataset 'xqzzyx'; see https://www.tensorflow.org"),
        ("ted_hrlr_translate/pt_to_en:9.9.9", "no dataset"),
        ("ted_hrlr_translate", "several configurations; name one, such as ted_hrlr_translate/az_"),
        ("huggingface:opus100/de-en", "belongs to a community"),
    ],
)
def test_an_unknown_or_ambiguous_name_is_an_error(tmp_path, name, words):
    assert words in error_of(name, tmp_path)
