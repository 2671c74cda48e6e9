"""The data of a run: the vocabulary that a text allows, and the line on held-out pairs."""

import numpy as np
import pytest
import tensorflow as tf

import tf_transformer as tt
from tf_transformer.data import text_files
from tf_transformer.errors import ConfigError
from tf_transformer.run_config import RunConfig
from tf_transformer.runs.data import prepare_data
from tf_transformer.runs.run_directory import RunDirectory
from tf_transformer.training.workers import Workers

CHINESE = [chr(code) for code in range(0x4E00, 0x4E00 + 600)]


@pytest.fixture
def prepare(tmp_path, capfd):
    """Returns a function: configuration, data and printed lines of a run with these pairs."""

    def prepare_pairs(pairs, data=None, **tokenizer):
        path = tmp_path / "pairs.tsv"
        path.write_text("".join(f"{s}\t{t}\n" for s, t in pairs), encoding="utf-8")
        tables = {"data": {"train_tsv": str(path), **(data or {})}, "tokenizer": tokenizer}
        workers = Workers(tf.distribute.get_strategy())
        found = prepare_data(
            RunConfig.from_dict(tables), RunDirectory(tmp_path / "run"), workers, resume=False
        )
        return *found, capfd.readouterr().err.splitlines()

    return prepare_pairs


@pytest.fixture(scope="module")
def phrases():
    return list(tt.phrasebook(500, 1, 0).train)


@pytest.mark.parametrize(("num_pairs", "held_out", "size"), [(50, 5, 400), (500, 50, 1_000)])
def test_small_corpora_have_a_default_vocabulary(prepare, phrases, num_pairs, held_out, size):
    config, data, _ = prepare(phrases[:num_pairs])
    assert config.tokenizer.vocab_size == data.tokenizers[0].vocab_size == size
    assert config.model.source_vocab_size == config.model.target_vocab_size == size
    assert len(data.corpus.train) == num_pairs - held_out
    assert len(data.corpus.validation) == held_out


@pytest.mark.parametrize("joint", [True, False])
def test_a_vocabulary_shrinks_to_what_the_text_allows(prepare, joint):
    pairs = [(f"a{i}", f"some more words {i * i}") for i in range(8)]
    config, data, printed = prepare(pairs, joint=joint)
    sizes = [tokenizer.vocab_size for tokenizer in data.tokenizers]
    assert 260 < sizes[0] <= sizes[1] < 400 and (sizes[0] == sizes[1]) == joint
    assert (data.tokenizers[0] is data.tokenizers[1]) == joint
    assert printed[-len(set(sizes)) :] == [
        f"The text has {size} different subwords." for size in dict.fromkeys(sizes)
    ]
    assert [config.model.source_vocab_size, config.model.target_vocab_size] == sizes
    # The configuration of the run gives the same tokenizers again, and so does a larger size.
    assert config.tokenizer.vocab_size == sizes[1]
    for vocab_size in (sizes[1], 999):
        again, same, _ = prepare(pairs, joint=joint, vocab_size=vocab_size)
        assert again.tokenizer == config.tokenizer and again.model == config.model
        assert [t.model for t in same.tokenizers] == [t.model for t in data.tokenizers]


@pytest.mark.parametrize("joint", [True, False])
def test_a_default_vocabulary_grows_where_the_text_has_many_characters(prepare, joint):
    pairs = [("".join(CHINESE[12 * i : 12 * i + 12]), f"the dog {i} runs home") for i in range(50)]
    config, data, printed = prepare(pairs, joint=joint)
    sides = [map("".join, data.corpus.train), (source for source, _ in data.corpus.train)]
    needed = 260 + len(set("".join(sides[not joint])) | {" "})
    assert f"The characters of the text alone need {needed:,} subwords." in printed
    tokenizer = data.tokenizers[0]
    assert tokenizer.vocab_size == config.model.source_vocab_size == needed + 200
    assert config.tokenizer.vocab_size == needed + 200
    ids = tokenizer.encode([pairs[0][0]])[0]
    assert not any(p.startswith("<0x") for p in tokenizer.subwords(ids))
    with pytest.raises(ConfigError, match=f"=400 is too small .* at least {needed}"):
        prepare(pairs, vocab_size=400, joint=joint)


def test_the_sources_of_an_epoch_have_the_noise_of_the_configuration(prepare, phrases):
    def sources(source_noise):
        _, data, _ = prepare(phrases, {"source_noise": source_noise})
        batches = [inputs["source_ids"].numpy() for inputs, *_ in data.batches.dataset(0, 1)]
        return {text for ids in batches for text in data.tokenizers[0].decode(ids.tolist())}

    plain = {source for source, _ in phrases}
    assert sources(0.0) <= plain and len(sources(0.5) - plain) > 200


def test_text_on_disk_is_read_once_for_each_purpose(prepare, phrases, tmp_path, monkeypatch):
    """To look at it, for the tokenizer, for the ids, and once for the noise of each epoch."""
    for side, lines in zip(("source", "target"), zip(*phrases, strict=True), strict=True):
        (tmp_path / side).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    passes, stream = [], text_files.stream_aligned
    monkeypatch.setattr(text_files, "stream_aligned", lambda *p: (passes.append(p), stream(*p))[1])
    names = {f"train_{side}": str(tmp_path / side) for side in ("source", "target")}
    config, data, _ = prepare([], {"train_tsv": None, **names, "source_noise": 0.1})
    assert len(passes) == 3
    first = next(data.batches.dataset(0, 1).as_numpy_iterator())
    assert len(passes) <= 5, "the noise of this epoch and of the next one"
    run = RunDirectory(tmp_path / "run")
    run.begin(config, data.tokenizers, data.corpus)
    passes.clear()
    workers = Workers(tf.distribute.get_strategy())
    _, again = prepare_data(config, run, workers, resume=True)
    assert len(passes) == 1
    assert again.corpus.train.fingerprint == data.corpus.train.fingerprint
    np.testing.assert_equal(next(again.batches.dataset(0, 1).as_numpy_iterator()), first)


def test_validation_pairs_that_are_trained_are_counted(prepare, tmp_path):
    (tmp_path / "validation.tsv").write_text("a1 b\tc1 d\na1  b\tc1 d \na2 b\tother\nnew\tnew")
    pairs = [(f"a{i} b", f"c{i} d") for i in range(11)]
    *_, printed = prepare(pairs, {"validation_tsv": f"{tmp_path}/validation.tsv"})
    assert printed[0] == (
        "Validation pairs that are training pairs too: 2 of 4; their scores are too good."
    )
