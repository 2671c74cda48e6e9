"""Several corpora as one text: what each gives an epoch, their tags, and runs on them."""

import collections
import itertools

import numpy as np
import pytest
import tensorflow as tf
from commands import assert_refused, config_of, log_of
from hypothesis import given
from hypothesis import strategies as st
from test_token_batches import stream

from tf_transformer import cli
from tf_transformer.data.corpus import load_corpus, load_validation
from tf_transformer.data.lines import DataError
from tf_transformer.data.mixture import Mixture, TaggedText
from tf_transformer.data.text import ParallelText
from tf_transformer.data.token_batches import TokenBatches
from tf_transformer.evaluation import CHRF, corpus_score
from tf_transformer.inference.text_reader import TextReader
from tf_transformer.run_config import read_toml
from tf_transformer.run_tables import DataConfig
from tf_transformer.runs.checkpoints import Checkpoints
from tf_transformer.runs.compilation import validate
from tf_transformer.runs.data import batches_of, prepare_data
from tf_transformer.runs.restore import restore_model, search_of, translator_of
from tf_transformer.runs.run_directory import RunDirectory
from tf_transformer.tokenizers import SentencePieceTokenizer
from tf_transformer.training.workers import Workers


def text_of(name, size, words=1):
    """A text whose sources begin with its name and the number of the pair."""
    sources = [f"{name} {number}" + " x" * words for number in range(size)]
    return ParallelText(tuple(sources), tuple(source.upper() for source in sources))


# What is in an epoch


def rows_by_definition(sizes, counts, seed, epoch):
    """The next pairs of an endless stream of shuffled passes for each text."""
    rows = []
    for number, (size, count) in enumerate(zip(sizes, counts, strict=True)):
        stream = itertools.chain.from_iterable(
            np.random.default_rng((seed, number, each, 2)).permutation(size)
            for each in itertools.count()
        )
        part = itertools.islice(stream, epoch * count, (epoch + 1) * count)
        rows += [sum(sizes[:number]) + int(row) for row in part]
    return rows


sizes_and_weights = st.lists(
    st.tuples(st.integers(1, 9), st.floats(0.01, 9)), min_size=1, max_size=4
)


@given(parts=sizes_and_weights, seed=st.integers(0, 99), data=st.data())
def test_texts_give_what_their_weights_say_and_all_their_pairs_equally_often(parts, seed, data):
    sizes, weights = zip(*parts, strict=True)
    mixture = Mixture(tuple(text_of(n, size) for n, size in enumerate(sizes)), weights)
    assert len(mixture) == len(list(mixture)) == sum(sizes)
    counts = mixture.counts
    for count, weight in zip(counts, weights, strict=True):
        # In the order of `counts`: another one turned a tie of 2.5 into 2.5000000000000004.
        exact = weight * (sum(sizes) / sum(weights))
        assert abs(count - exact) <= 0.5 or (count == 1 and exact < 1)
    # Some pairs were too long. A text keeps at least its first.
    starts = np.cumsum([0, *sizes])
    others = sorted(set(range(sum(sizes))) - set(starts.tolist()))
    dropped = (
        data.draw(st.lists(st.sampled_from(others), unique=True).map(sorted)) if others else []
    )
    left = [
        size - sum(start <= row < start + size for row in dropped)
        for start, size in zip(starts, sizes, strict=False)
    ]
    rows_of_epoch = mixture.rows_of_epoch(dropped, seed)
    epochs = data.draw(st.permutations(range(5)))
    found = {epoch: rows_of_epoch(epoch).tolist() for epoch in epochs}
    for epoch, rows in found.items():
        assert rows == rows_by_definition(left, counts, seed, epoch)
    used = collections.Counter(itertools.chain.from_iterable(found.values()))
    for number, (size, count) in enumerate(zip(left, counts, strict=True)):
        times = [used[sum(left[:number]) + row] for row in range(size)]
        assert sum(times) == 5 * count and max(times) - min(times) <= 1


@pytest.fixture(scope="module")
def tokenizer():
    """A tokenizer of the texts of this file, which splits tags in characters."""
    text = Mixture((text_of("old", 90), text_of("new", 30, words=9)))
    return SentencePieceTokenizer.train(itertools.chain.from_iterable(text), 300)


def sources_of(batches, tokenizer, epoch):
    """The sources of an epoch, by the first word."""
    found = collections.defaultdict(list)
    for indices in batches.batch_indices(epoch):
        inputs, _ = batches.batch(indices, epoch)
        rows = inputs["source_ids"].tolist()
        special = (tokenizer.pad_id, tokenizer.eos_id)
        for text in tokenizer.decode([[i for i in row if i not in special] for row in rows]):
            found[text.split()[0]].append(text)
    return found


def test_weights_without_a_seed_are_refused(tokenizer):
    mixture = Mixture((text_of("old", 9), text_of("new", 3)), (1.0, 2.0))
    with pytest.raises(ValueError, match="a mixture with weights needs a seed"):
        TokenBatches.from_text(mixture, tokenizer, tokenizer)
    with pytest.raises(ValueError, match="source_noise and mark_practice need a seed"):
        TokenBatches.from_text(text_of("old", 9), tokenizer, tokenizer, source_noise=0.1)


def test_batches_have_the_proportions_and_fill_the_budget(tokenizer):
    old, new = text_of("old", 90), text_of("new", 30, words=9)
    mixture = Mixture((old, new), (1.0, 2.0))
    options = {"batch_tokens": 200, "seed": 1}
    batches = TokenBatches.from_text(mixture, tokenizer, tokenizer, **options)
    alone = TokenBatches.from_text(new, tokenizer, tokenizer, **options)
    seen = collections.Counter()
    for epoch in range(3):
        found = sources_of(batches, tokenizer, epoch)
        assert {name: len(texts) for name, texts in found.items()} == {"old": 40, "new": 80}
        assert len(batches.batch_indices(epoch)) == len(batches) > 2.5 * len(alone)
        seen.update(found["old"])
    assert set(seen) == set(old.sources) and set(seen.values()) == {1, 2}, "120 of 90 pairs"
    assert set(found["new"]) == set(new.sources)
    made = [batches.batch(indices, 7) for indices in batches.batch_indices(7)]
    used = [max(inputs["source_ids"].size, labels.size) for inputs, labels in made]
    assert 0.8 * 200 < np.mean(used) and max(used) < 1.15 * 200
    num_tokens = sum((labels != tokenizer.pad_id).sum() for _, labels in made)
    assert batches.num_target_tokens == pytest.approx(num_tokens, rel=0.02)


def test_without_weights_a_mixture_is_one_text_after_the_other(tokenizer, tmp_path):
    old, new = text_of("old", 90), text_of("new", 30, words=9)
    one = ParallelText(old.sources + new.sources, old.targets + new.targets)
    mixture = Mixture((old, new))
    assert mixture.fingerprint == Mixture((old, new)).fingerprint != Mixture((new, old)).fingerprint
    assert mixture.counts == [90, 30]
    for cache in (None, tmp_path):
        options = {"batch_tokens": 100, "seed": 3, "source_noise": 0.3, "cache_dir": cache}
        first, second = (
            stream(TokenBatches.from_text(text, tokenizer, tokenizer, **options), num_epochs=2)
            for text in (one, mixture)
        )
        assert first == second
    assert len(list(tmp_path.iterdir())) == 2, "a cache for each"


def test_a_text_of_which_nothing_is_left_is_no_silent_loss(tokenizer):
    mixture = Mixture((text_of("old", 9), text_of("new", 9, words=90)))
    with pytest.raises(DataError, match="all pairs of corpus 2 have more tokens than max_length"):
        TokenBatches.from_text(mixture, tokenizer, tokenizer, max_length=30)


# The corpora of a run


@pytest.fixture
def corpora(tmp_path):
    """Files of three corpora, old, new and back; two of them have a validation file."""
    for name, size in (("old", 90), ("new", 30), ("back", 60), ("old.dev", 5), ("new.dev", 6)):
        text = text_of(name, size)
        for side, sentences in (("de", text.sources), ("en", text.targets)):
            lines = "".join(f"{sentence}\n" for sentence in sentences)
            (tmp_path / f"{name}.{side}").write_text(lines, encoding="utf-8")
    return tmp_path


def training(folder, *names):
    """The options for the corpora of these names."""
    sides = (("source", "de"), ("target", "en"))
    return [f"--train-{side}={folder / name}.{end}" for name in names for side, end in sides]


def validation(folder, *names):
    return [option.replace("train", "validation") for option in training(folder, *names)]


def test_corpora_are_read_with_their_tags_and_told_with_their_counts(corpora):
    given = training(corpora, "old", "new", "back")
    tags, weights = ["--tag=", "--tag=", "--tag=<BT>"], ["--weight=2", "--weight=1", "--weight=1"]
    sets = validation(corpora, "new.dev", "old.dev")
    config = config_of(*given, *tags, *weights, *sets)
    corpus = load_corpus(config.data)
    old, new, back = text_of("old", 90), text_of("new", 30), text_of("back", 60)
    assert list(corpus.train) == [*old, *new, *((f"<BT> {s}", t) for s, t in back)]
    assert corpus.train.counts == [90, 45, 45]
    assert corpus.notes == tuple(
        f"{corpora / name}.de and {corpora / name}.en: {size} pairs; an epoch has {count}."
        for name, size, count in (("old", 90, 90), ("new", 30, 45), ("back", 60, 45))
    )
    # Translations have no tag, so validation has none either.
    assert corpus.validation == load_validation(config.data) == text_of("new.dev", 6)
    assert corpus.more_validation == (text_of("old.dev", 5),)
    # A file says the same.
    file = corpora / "run.toml"
    file.write_text(config.to_toml(), encoding="utf-8")
    data = read_toml(file)["data"]
    assert data["weight"] == [2.0, 1.0, 1.0] and data["tag"] == ["", "", "<BT>"]
    assert config_of(f"--config={file}") == config


def test_each_corpus_holds_out_sentences_which_have_its_tag(corpora):
    tags = ["--tag=<1>", "--tag=<2>"]
    corpus = load_corpus(config_of(*training(corpora, "old", "new"), *tags).data)
    names = [{source.split()[1] for source in text.sources} for text in corpus.validations]
    tags = [{source.split()[0] for source in text.sources} for text in corpus.validations]
    assert (names, tags) == ([{"old"}, {"new"}], [{"<1>"}, {"<2>"}])
    assert [len(text) for text in corpus.train.texts] == [81, 27]
    assert not {*corpus.train} & {*corpus.validation, *corpus.more_validation}
    # What one held out, another may have.
    for side, sentences in zip(("de", "en"), zip(*text_of("old", 40), strict=True), strict=True):
        (corpora / f"part.{side}").write_text("".join(f"{s}\n" for s in sentences), "utf-8")
    corpus = load_corpus(config_of(*training(corpora, "old", "part")).data)
    number = sum(pair in {*corpus.train} for text in corpus.validations for pair in text)
    note = f"Validation pairs that are training pairs too: {number} of 13; their scores"
    assert number > 0 and note in "".join(corpus.notes)


def test_a_tag_of_all_sources_is_that_of_translations(corpora, tokenizer):
    options = [*training(corpora, "old", "new"), "--source-tag=<2en>", "--vocab-size=300"]
    config = config_of(*options, "--batch-tokens=256", *validation(corpora, "old.dev"))
    workers = Workers(tf.distribute.get_strategy())
    config, data = prepare_data(config, RunDirectory(corpora / "run"), workers, resume=False)
    made, _ = data.tokenizers
    tag = made.encode(["<2en>"])[0][-1]
    assert made.subwords([tag]) == ["<2en>"], "reserved where the tokenizer is trained"
    sources = ["old 1 x", "new 2 x"]
    read = TextReader(made, 128, tag="<2en>").all_tokens(tf.constant(sources))
    assert made.encode([f"<2en> {source}" for source in sources]) == read.to_list()
    for batches, size in ((data.batches, 120), (data.validations[0], 5)):
        rows = [
            row
            for indices in batches.batch_indices(0)
            for row in batches.batch(indices)[0]["source_ids"].tolist()
        ]
        assert len(rows) == size and all(row.count(tag) == 1 for row in rows)
    # The translator adds it, so the text that is translated has none.
    assert data.corpus.validation == text_of("old.dev", 5)
    assert not next(iter(data.corpus.train))[0].startswith("<2en> ")


@pytest.mark.parametrize(
    ("tags", "by_sentence"),
    [
        ({}, True),
        ({"source_tag": "<2en>"}, True),  # which the translator adds to each sentence
        ({"validation_tag": "<2en>"}, False),
        ({"validation_tag": ""}, True),  # none
    ],
)
def test_a_line_with_a_tag_of_its_own_is_not_split(tags, by_sentence):
    files = {"train_source": "a", "train_target": "b"}
    files |= {"validation_source": "c", "validation_target": "d"}
    assert search_of(DataConfig(**files, **tags)).by_sentence is by_sentence


def test_what_is_no_mixture_is_refused():
    one = ParallelText(("a",), ("b",))
    for weights in ((1.0,), (1.0, 0.0), (1.0, 2.0, 3.0)):
        with pytest.raises(ValueError, match="a positive number for each text"):
            Mixture((one, one), weights)
    with pytest.raises(ValueError, match="cannot be a part"):
        Mixture((Mixture((one, one), (1, 2)), one))


def test_an_empty_source_has_no_tag():
    tagged = TaggedText(ParallelText(("", "a"), ("b", "c")), "<t>")
    assert list(tagged) == [("", "b"), ("<t> a", "c")]


BAD = {
    "a target less": (["old:source"], ["2 --train-source, 1 --train-target"]),
    "a weight less": (["--weight=1"], ["2 --train-source, 2 --train-target, 1 --weight"]),
    "a tag more": (["--tag=<a>"] * 3, ["2 --train-source, .* 3 --tag"]),
    "no weight": (["--weight=1", "--weight=0"], [r"\[data\] weight: .* greater than 0", "'0'"]),
    "no number": (["--weight=1", "--weight=x"], [r"\[data\] weight: .* number", "'x'"]),
    "words": (["--tag=", "--tag=<a> b"], ["'<a> b' must be one word"]),
    "no sign": (["--tag=deu", "--tag="], ["'deu' must be one word with a sign"]),
    "two tags": (["--tag=<a>", "--tag=", "--source-tag=<b>"], ["source_tag stands in front"]),
    "a tag of nothing": (["--validation-tag=<a>"], ["--validation-tag needs files"]),
}


@pytest.mark.parametrize(("options", "words"), BAD.values(), ids=BAD)
def test_bad_lists_are_one_line(corpora, capfd, options, words):
    given = training(corpora, "old", "new")
    given = given[:3] if options == ["old:source"] else [*given, *options]
    assert_refused(["train", f"--run-dir={corpora / 'run'}", *given], words, capfd, corpora)


def test_explain_names_the_corpora(corpora, capfd):
    options = [*training(corpora, "old", "new"), "--weight=3", "--weight=1", "--explain"]
    sets = validation(corpora, "old.dev")
    assert cli.main(["train", f"--run-dir={corpora / 'run'}", *options, *sets]) == 0
    first, second, third, *_ = capfd.readouterr().out.splitlines()
    assert first.endswith(f"old.de and {corpora}/old.en: 90 pairs; an epoch has 90.")
    assert second.endswith("new.en: 30 pairs; an epoch has 30.")
    assert third.startswith("For 120 pairs, ")


# Runs


@pytest.mark.slow
def test_every_validation_set_has_metrics_and_the_first_chooses(small_copy_task, tmp_path, capfd):
    train, first = small_copy_task.train, small_copy_task.validation
    second = ParallelText(train.sources[:9], train.targets[:9])
    for name, text in (("train", train), ("first", first), ("second", second)):
        lines = [f"{source}\t{target}\n" for source, target in text]
        (tmp_path / name).write_text("".join(lines), encoding="utf-8")
    files = [f"--train-tsv={tmp_path / 'train'}", f"--validation-tsv={tmp_path / 'first'}"]
    files += [f"--validation-tsv={tmp_path / 'second'}", "--criterion=chrf"]
    sizes = ["--num-layers=1", "--d-model=16", "--num-heads=2", "--d-ff=32", "--vocab-size=272"]
    options = [*files, *sizes, "--steps=4", "--validation-steps=2", "--learning-rate=0.1"]
    run = RunDirectory(tmp_path / "run")
    assert cli.main(["train", f"--run-dir={run.path}", *options]) == 0
    printed = capfd.readouterr().err
    assert "9 validation_2 pairs of tsv; dropped: 0 blank, 0 too long." in printed
    for line in log_of(run.path):
        names = {name for name in line if name.startswith("val_") and not name.endswith("_2")}
        assert len(names) == 6 and {f"{name}_2" for name in names} < line.keys()
        assert line["criterion"] == "val_chrf"
    checkpoints = Checkpoints(run.checkpoints_path, CHRF)
    best = next(checkpoints.intact(pytest.fail, best_first=True))
    assert best.metrics["val_chrf"] == max(c.metrics["val_chrf"] for c in checkpoints.all())
    model, *tokenizers, _ = restore_model(run)
    best.restore(model)
    config = run.config()
    translate = translator_of(config.data, model, *tokenizers)
    for text, suffix in ((first, ""), (second, "_2")):
        scores = corpus_score(translate(list(text.sources)), list(text.targets)).metrics("val_")
        batches = batches_of(text, tokenizers, config.data)
        scores["val_loss"] = validate(model, config.training, batches)["loss"]
        for name, value in scores.items():
            assert best.metrics[f"{name}{suffix}"] == pytest.approx(value, rel=1e-5)
    assert best.metrics["val_loss_2"] != best.metrics["val_loss"]
