"""Tests of the corpus of a run: its files, what is held out, and text without translations."""

import collections
import gzip
import itertools
import json
import os
import tracemalloc

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import example, given
from hypothesis import strategies as st

from tf_transformer.data import text_files
from tf_transformer.data.corpus import (
    Candidates,
    Sample,
    default_vocab_size,
    load_corpus,
    load_validation,
    num_held_out,
)
from tf_transformer.data.lines import DataError
from tf_transformer.data.text import ParallelText
from tf_transformer.data.text_files import TextFiles
from tf_transformer.run_config import RunConfig
from tf_transformer.run_tables import DataConfig
from tf_transformer.runs.data import prepare_data
from tf_transformer.runs.run_directory import RunDirectory
from tf_transformer.training.workers import Workers

SIDES = ("source", "target")


def hold_out(text, where):
    candidates = Candidates()
    for pair in text:
        candidates.add(pair)
    return candidates.hold_out(text, where)


@pytest.fixture
def passes(monkeypatch):
    """The names of the files that were read, once for each pass."""
    found, stream = [], text_files.stream_aligned
    monkeypatch.setattr(
        text_files, "stream_aligned", lambda *paths: (found.append(paths), stream(*paths))[1]
    )
    return found


@pytest.mark.parametrize("corpus", ["copy", "reverse", "phrasebook"])
def test_a_built_in_corpus_has_validation_text_and_a_vocabulary_of_its_own(corpus):
    config = DataConfig(corpus=corpus)
    assert load_validation(config) == load_corpus(config).validation
    assert default_vocab_size(corpus, 10) == default_vocab_size(corpus, 10**6)


def write_files(folder, pairs):
    """Writes pairs into the files `source` and `target`, and into `both`."""
    sources, targets = zip(*pairs, strict=True)
    files = {"source": sources, "target": targets, "both": map("\t".join, pairs)}
    for name, lines in files.items():
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def test_validation_files_are_read_without_the_training_files(tmp_path):
    pairs = [("eins", "one"), ("zwei", "two")]
    write_files(tmp_path, pairs)
    text = {"train_source": "gone", "train_target": "gone"}
    text |= {f"validation_{side}": str(tmp_path / side) for side in ("source", "target")}
    tsv = {"train_tsv": "gone.tsv", "validation_tsv": str(tmp_path / "both")}
    for config in (DataConfig(**text), DataConfig(**tsv)):
        assert list(load_validation(config)) == pairs
    with pytest.raises(DataError, match=r"gone\.tsv: no such file"):
        load_corpus(DataConfig(**tsv))


def test_without_validation_files_a_part_of_the_training_text_is_held_out(tmp_path):
    pairs = [(f"Satz {i * i % 150}", f"sentence {i}") for i in range(300)]
    write_files(tmp_path, pairs)
    text = DataConfig(train_source=str(tmp_path / "source"), train_target=str(tmp_path / "target"))
    files, memory = (load_corpus(c) for c in (text, DataConfig(train_tsv=str(tmp_path / "both"))))
    assert (files.name, memory.name) == ("text", "tsv")
    assert files.validation == memory.validation == load_validation(text)
    assert list(files.train) == list(memory.train)
    assert files.train.fingerprint == memory.train.fingerprint
    assert files.train.num_same_source > 0 and {*files.train, *files.validation} < {*pairs}


# What is held out


def text_of(sources):
    """A text of these sources, in which each target tells the pair."""
    sources = tuple(sources)
    return ParallelText(sources, tuple(f"target {i}" for i in range(len(sources))), num_blank=3)


def test_the_held_out_pairs_are_like_the_whole_text():
    # In 20 parts of the text, each with its own templates.
    text = text_of(f"template {i // 1000} {i % 20}: {i}" for i in range(20_000))
    train, validation = hold_out(text, "")
    assert (len(train), len(validation), train.num_same_source) == (19_000, 1_000, 0)
    assert sorted([*train, *validation]) == sorted(text)
    for word in (1, 2):
        counts = collections.Counter(source.split()[word] for source in validation.sources)
        assert len(counts) == 20 and max(counts.values()) < 2 * min(counts.values())


# Few different sources, so that they repeat.
texts = st.lists(st.integers(0, 30), min_size=1, max_size=90).map(
    lambda numbers: text_of(f"source {n}" for n in numbers)
)


@given(text=texts)
@example(text=text_of(["Ja."] * 100))
@example(text=text_of(["Ja.", "Nein.", "Gut."] * 40))
def test_no_source_is_in_both_parts_and_half_of_the_text_is_kept(text):
    count = collections.Counter(text.sources)
    if min(count.values()) > len(text) // 2:
        with pytest.raises(DataError, match=rf"^a\.tsv: no line of {len(text)} is rare enough to"):
            hold_out(text, "a.tsv")
        return
    train, validation = hold_out(text, "a.tsv")
    held_out = set(validation.sources)
    assert 0 < len(validation) == len(held_out) <= num_held_out(len(text))
    assert set(validation) <= set(text)
    assert list(train) == list(train) == [pair for pair in text if pair[0] not in held_out]
    assert len(train) == len(list(train)) >= len(text) / 2
    assert train.num_same_source == len(text) - len(train) - len(validation)
    assert train.num_blank == text.num_blank
    again = hold_out(text, "")[0]
    assert train.fingerprint == again.fingerprint != text.fingerprint


def test_a_frequent_sentence_stays_in_the_training_text():
    text = text_of(f"source {i}" if i % 3 else f"Yes, {i % 60}." for i in range(1_000))
    train, validation = hold_out(text, "")
    assert not any("Yes" in source for source in validation.sources)
    assert train.num_same_source == 0 and len(validation) == 50


@pytest.mark.parametrize("has_sources", [True, False])
def test_pairs_that_differ_in_white_space_are_on_one_side(has_sources):
    plain = [f"ein Satz {i}" for i in range(500)]
    text = text_of([*plain, *(f"  ein\u00a0Satz \t{i} " for i in range(500))])
    if not has_sources:
        text = ParallelText(("",) * 1000, text.sources)
    train, validation = hold_out(text, "")
    seen, held_out = ({" ".join((s or t).split()) for s, t in part} for part in (train, validation))
    assert seen | held_out == set(plain) and not seen & held_out
    assert (len(train), len(validation), train.num_same_source) == (900, 50, 50)


@given(
    parts=st.lists(st.lists(st.integers(0, 30), max_size=40), max_size=5), most=st.integers(1, 9)
)
def test_candidates_of_parts_are_those_of_the_whole(parts, most):
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr("tf_transformer.data.corpus._MOST_HELD_OUT", most)
        merged, whole, numbers = Candidates(), Candidates(), itertools.count()
        for part in parts:
            of_part = Candidates()
            for source in part:
                pair = str(source), str(next(numbers))
                of_part.add(pair)
                whole.add(pair)
            merged.merge(of_part)
    assert sorted(merged._heap) == sorted(whole._heap)
    assert merged._occurrences == whole._occurrences


def test_few_pairs_of_a_large_text_are_in_memory(tmp_path):
    path = tmp_path / "large"
    path.write_text("".join(f"sentence {i} of some words\n" for i in range(30_000)), "utf-8")
    tracemalloc.start()
    try:
        train, validation = hold_out(TextFiles(path, path), "")
        assert sum(1 for _ in train) == len(train) == 29_000
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(validation) == 1_000
    assert peak < 3e6  # 2,000 candidates; all pairs would be 4.5 MB more


# Text without translations


@pytest.fixture
def text_file(tmp_path):
    """A file of 60 sentences, two of which are the same, and a blank line."""
    path = tmp_path / "text"
    lines = [f"Der Hund {i * i} läuft nach Hause." for i in range(59)]
    path.write_text("".join(f"{line}\n" for line in [*lines, lines[0], " "]), encoding="utf-8")
    return path


def config_of(path, **settings):
    tables = {"data": {"train_text": str(path)}, "model": {"architecture": "causal_lm"}}
    return RunConfig.from_dict({**tables, **settings})


def test_text_alone_has_empty_sources(tmp_path):
    (tmp_path / "a.1").write_bytes(b"eins\n\n \nzwei\tdrei")
    (tmp_path / "a.2").write_bytes(gzip.compress(b"vier\r\n"))
    text = TextFiles(None, tmp_path / "a.*")
    assert list(text) == list(text) == [("", "eins"), ("", "zwei\tdrei"), ("", "vier")]
    assert (len(text), text.num_blank) == (3, 2)
    (tmp_path / "v").write_text("ein Satz\n\nnoch einer\n", encoding="utf-8")
    config = DataConfig(train_text=f"{tmp_path}/a.*", validation_text=str(tmp_path / "v"))
    assert config.corpus == "monolingual"
    assert list(load_validation(config)) == [("", "ein Satz"), ("", "noch einer")]
    assert load_validation(config).num_blank == 1
    corpus = load_corpus(config)
    assert corpus.unit == "sentence"
    assert corpus.notes == (f"2 files: {tmp_path}/a.1, …, {tmp_path}/a.2.",)


def test_the_data_of_a_run(text_file, tmp_path, capfd):
    data = {"train_text": str(text_file), "data_cache": str(tmp_path / "cache")}
    config, run = config_of(text_file, data=data), RunDirectory(tmp_path / "run")
    workers = Workers(tf.distribute.get_strategy())
    config, found = prepare_data(config, run, workers, resume=False)
    printed = capfd.readouterr().err.splitlines()
    assert printed[0].startswith("Held out 6 of 60 sentences for validation; give --validation-tex")
    assert printed[1] == "Training a tokenizer of 400 subwords on 54 sentences."
    described = "54 training sentences of monolingual; dropped: 1 blank, 0 too long."
    assert found.description.startswith(described)
    tokenizer = found.tokenizers[0]
    sentences = [target for _, target in found.corpus.train]
    for epoch in (0, 1):
        seen = []
        for indices in found.batches.batch_indices(epoch):
            inputs, labels = found.batches.batch(indices, epoch)
            np.testing.assert_array_equal(inputs["source_ids"], [[tokenizer.eos_id]] * len(indices))
            assert inputs["source_ids"].dtype == np.int32
            special = (tokenizer.pad_id, tokenizer.eos_id)
            seen += tokenizer.decode([[i for i in r if i not in special] for r in labels.tolist()])
        assert sorted(seen) == sorted(sentences)
    (folder,) = (tmp_path / "cache").iterdir()
    before = folder.stat().st_mtime_ns
    prepare_data(config, run, workers, resume=False)
    assert folder.stat().st_mtime_ns == before


def test_text_files_are_read_once_and_known_to_a_later_process(tmp_path, passes):
    """Also what was held out, where a file is only touched, and where tags stand in front."""
    for name in ("old", "new"):
        for side in ("source", "target"):
            lines = (f"{name} {side} {number}\n" for number in range(300))
            (tmp_path / f"{name}.{side}").write_text("".join(lines))
    files = {f"train_{s}": [f"{tmp_path}/{n}.{s}" for n in ("old", "new")] for s in SIDES}
    for config, number in (
        (DataConfig(**{name: paths[0] for name, paths in files.items()}), 1),
        (DataConfig(**files, tag=["<old>", "<new>"], weight=[1, 2]), 4),  # searched for repetitions
    ):
        passes.clear()
        corpus = load_corpus(config)
        assert len(passes) == number
        names = ["old", "new"] if number > 1 else ["old"]
        assert [*corpus.sample] == [
            (f"{name} source {n}", f"{name} target {n}") for name in names for n in range(300)
        ]
        summary = json.loads(json.dumps(corpus.summary))
        os.utime(tmp_path / "old.source", ns=(1, 1))
        passes.clear()
        again = load_corpus(config, summary)
        assert load_validation(config, summary) == corpus.validation and not passes
        assert again.train.fingerprint == corpus.train.fingerprint
        assert again.validations == corpus.validations
        assert again.summary[0]["files"][f"{tmp_path}/old.source"][1] == 1
        assert list(again.train) == list(corpus.train)
        with (tmp_path / "old.target").open("a") as file:
            file.write("\n")
        passes.clear()
        assert load_validation(config, summary) == corpus.validation and not passes
        with pytest.raises(DataError, match="has 300 but"):
            load_corpus(config, summary)
        text = (tmp_path / "old.target").read_text()
        (tmp_path / "old.target").write_text("other\n" * 300)
        with pytest.raises(DataError, match=r"old[.]target: was changed since the run began"):
            load_corpus(config, summary)
        (tmp_path / "old.target").write_text(text.rstrip("\n") + "\n")


@pytest.mark.parametrize("sizes", [[1], [1999], [2000], [2001], [12_345], [9, 4096, 1, 2000, 0]])
def test_a_sample_is_spread_over_the_whole_text(sizes):
    sample, numbers = Sample(), itertools.count()
    for size in sizes:  # of parts
        part = Sample()
        for _ in range(size):
            part.add((str(next(numbers)), ""))
        sample.merge(part)
    found = [int(source) for source, _ in sample.pairs]
    steps = {after - before for before, after in itertools.pairwise(found)}
    if len(sizes) == 1:
        assert found[0] == 0 and len(steps) == (sizes[0] > 1)
    assert max(steps, default=1) <= 2 * sum(sizes) / 1000 + 1
    assert min(sum(sizes), 1000) <= len(found) < 2000


def test_a_pipe_is_no_text_of_a_run(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_text("a\n" * 9)
    names = ("train_source", "train_target", "validation_source", "validation_target")
    for name in names:
        paths = {**dict.fromkeys(names, f"{tmp_path}/file"), name: f"{tmp_path}/pipe"}
        with pytest.raises(DataError, match="pipe: can be read only once"):
            load_corpus(DataConfig(**paths))
