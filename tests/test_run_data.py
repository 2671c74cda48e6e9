"""Tests of a run's data: the vocabulary that a text allows, and the line on held-out pairs."""

import pytest
import tensorflow as tf

import tf_transformer as tt
from tf_transformer.config import RunConfig
from tf_transformer.errors import ConfigError
from tf_transformer.runs.run_data import prepare_data
from tf_transformer.runs.run_directory import RunDirectory
from tf_transformer.training.distribution import Workers

CHINESE = [chr(code) for code in range(0x4E00, 0x4E00 + 600)]


@pytest.fixture
def prepare(tmp_path, capfd):
    """Returns a function: configuration, data and printed lines of a run with these pairs."""

    def prepare_pairs(pairs, source_noise=None, data=None, **tokenizer):
        if data is None:
            path = tmp_path / "pairs.tsv"
            path.write_text("".join(f"{s}\t{t}\n" for s, t in pairs), encoding="utf-8")
            data = {"train_tsv": str(path)} | (
                {} if source_noise is None else {"source_noise": source_noise}
            )
        tables = {"data": data, "tokenizer": tokenizer}
        workers = Workers(tf.distribute.get_strategy())
        found = prepare_data(
            RunConfig.from_dict(tables), RunDirectory(tmp_path / "run"), workers, resume=False
        )
        return *found, capfd.readouterr().err.splitlines()

    return prepare_pairs


@pytest.fixture(scope="module")
def phrases():
    return list(tt.phrasebook(500, 1, 0).train)


def pairs_of(count):
    """So many pairs with few subwords, no source twice."""
    return [(f"a{i} b", f"c{i} d") for i in range(count)]


@pytest.mark.parametrize(("num_pairs", "held_out", "size"), [(50, 5, 400), (500, 50, 1_000)])
def test_small_corpora_have_a_default_vocabulary(prepare, phrases, num_pairs, held_out, size):
    config, data, printed = prepare(phrases[:num_pairs])
    assert printed == [
        f"Held out {held_out} of {num_pairs} pairs for validation; give --validation-tsv to "
        "choose them.",
        f"Training a tokenizer of {size:,} subwords on {num_pairs - held_out} sentence pairs.",
    ]
    assert config.tokenizer.vocab_size == data.source_tokenizer.vocab_size == size
    assert config.model.source_vocab_size == config.model.target_vocab_size == size
    assert (len(data.corpus.train), len(data.corpus.validation)) == (
        num_pairs - held_out,
        held_out,
    )


def test_a_default_vocabulary_shrinks_to_what_the_text_allows(prepare):
    pairs = pairs_of(8)
    config, data, printed = prepare(pairs)
    largest = data.source_tokenizer.vocab_size
    assert 260 < largest < 400
    assert printed[-1] == (
        f"The text allows at most {largest} subwords: training a tokenizer of {largest}."
    )
    assert config.chosen["tokenizer.vocab_size"] == "as many as the text allows"
    # The configuration of the run gives the same tokenizer again, and says so no more.
    again, same, printed = prepare(pairs, vocab_size=config.tokenizer.vocab_size)
    assert (
        again.tokenizer == config.tokenizer
        and same.source_tokenizer.model == data.source_tokenizer.model
    )
    assert not any("allows" in line for line in printed)
    with pytest.raises(ConfigError, match=f"={largest + 1} is more .* at most {largest}"):
        prepare(pairs, vocab_size=largest + 1)


def test_each_of_two_vocabularies_shrinks_alone(prepare):
    pairs = [(f"a{i}", f"some more words {i * i}") for i in range(8)]
    config, data, printed = prepare(pairs, joint=False)
    source, target = (t.vocab_size for t in (data.source_tokenizer, data.target_tokenizer))
    assert source < target < 400
    assert [line.partition(":")[0] for line in printed[-2:]] == [
        f"The source text allows at most {source} subwords",
        f"The target text allows at most {target} subwords",
    ]
    again, same, _ = prepare(pairs, **{"joint": False} | vocab_size_of(config))
    assert again == config and same.source_tokenizer.model == data.source_tokenizer.model


def vocab_size_of(config):
    return {k: v for k, v in config.to_dict()["tokenizer"].items() if k == "vocab_size"}


def test_a_default_vocabulary_grows_where_the_text_has_many_characters(prepare):
    pairs = [("".join(CHINESE[12 * i : 12 * i + 12]), f"the dog {i} runs home") for i in range(50)]
    config, data, printed = prepare(pairs)
    needed = 260 + len(set("".join(map("".join, data.corpus.train))) | {" "})
    assert printed[-1] == (
        f"The characters of the text alone need {needed:,} subwords: "
        f"training a tokenizer of {needed + 200:,}."
    )
    assert config.tokenizer.vocab_size == needed + 200
    assert config.chosen["tokenizer.vocab_size"] == "the text has so many characters"
    ids = data.source_tokenizer.encode([pairs[0][0]])[0]
    assert not any(p.startswith("<0x") for p in data.source_tokenizer.subwords(ids))
    with pytest.raises(ConfigError, match=f"=400 is too small .* at least {needed}"):
        prepare(pairs, vocab_size=400)


def test_the_sources_of_an_epoch_have_the_noise_of_the_configuration(prepare, phrases):
    def sources(**options):
        _, data, _ = prepare(phrases, **options)
        batches = [inputs["source_ids"].numpy() for inputs, *_ in data.batches.dataset(0, 1)]
        return {text for ids in batches for text in data.source_tokenizer.decode(ids.tolist())}

    plain = {source for source, _ in phrases}
    assert sources() <= plain and sources(source_noise=0.0) <= plain
    assert len(sources(source_noise=0.5) - plain) > 200


def test_pairs_dropped_for_their_source_are_counted(prepare):
    pairs = [(f"a{i % 25} b", f"c{i} d") for i in range(50)]
    _, data, printed = prepare(pairs)
    assert printed[0] == (
        "Held out 5 of 50 pairs for validation and dropped 5 with the same sources; "
        "give --validation-tsv to choose them."
    )
    assert data.description.startswith("40 training pairs of tsv; dropped: 0 blank")


def test_the_first_and_the_last_pair_of_files_are_named(prepare, tmp_path):
    for number, (source, target) in enumerate(pairs_of(11), 1):
        (tmp_path / f"part{number}.en").write_text(source)
        (tmp_path / f"fr-{number:02}.txt").write_text(target)
    patterns = f"{tmp_path}/part*.en", f"{tmp_path}/fr-*.txt"
    *_, printed = prepare(
        None, data=dict(zip(("train_source", "train_target"), patterns, strict=True))
    )
    assert printed[0] == (
        f"11 files on each side: {tmp_path}/part1.en with {tmp_path}/fr-01.txt, …, "
        f"{tmp_path}/part11.en with {tmp_path}/fr-11.txt."
    )


@pytest.mark.parametrize(
    ("validation", "expected"),
    [
        (
            ["a1 b\tc1 d", "a1  b\tc1 d ", "a2 b\tother", "new\tnew"],
            "Validation pairs that are training pairs too: 2 of 4; their scores are too good.",
        ),
        (["a1 b c1\td", "new\tnew"], None),
    ],
)
def test_validation_pairs_that_are_trained_are_counted(prepare, tmp_path, validation, expected):
    (tmp_path / "pairs.tsv").write_text("".join(f"{s}\t{t}\n" for s, t in pairs_of(11)))
    (tmp_path / "validation.tsv").write_text("\n".join(validation))
    files = {"train_tsv": f"{tmp_path}/pairs.tsv", "validation_tsv": f"{tmp_path}/validation.tsv"}
    *_, printed = prepare(None, data=files)
    assert [line for line in printed if "Training a tok" not in line and "allows" not in line] == (
        [expected] if expected else []
    )
