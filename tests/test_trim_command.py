"""`tf-transformer trim`: a smaller run that translates given texts as before."""

import dataclasses
import functools
import gzip
import json
import re
import shutil

import numpy as np
import pytest
from commands import assert_refused, lines_of
from small_models import small_config
from small_runs import opened, write_run

import tf_transformer as tt
from tf_transformer import cli
from tf_transformer.models.architectures import build_model, with_tokenizers
from tf_transformer.run_tables import DataConfig
from tf_transformer.runs.run_directory import RunDirectory

pytestmark = pytest.mark.slow

VOCAB_SIZE = 500


@pytest.fixture(scope="module")
def run_of(phrases, phrase_tokenizer, randomise, request, tmp_path_factory):
    """Makes a run: of a trained model if it has one vocabulary, or else of random weights."""

    @functools.cache
    def run_of(name):
        if name == "joint":
            model, tokenizers = request.getfixturevalue("phrase_model"), [phrase_tokenizer] * 2
        else:
            train = tt.SentencePieceTokenizer.train
            texts = phrases.train.sources, phrases.train.targets
            tokenizers = [train(text, VOCAB_SIZE) for text in texts]
            config = small_config("transformer", tie_embeddings=False)
            model = randomise(build_model(with_tokenizers(config, *tokenizers)))
        path = tmp_path_factory.mktemp("runs") / "run"
        data = DataConfig("phrasebook", max_length=24, fold_capitals=True, repair_loops=False)
        return write_run(path, model, tokenizers, data)

    return run_of


@pytest.fixture
def source(tmp_path, phrases):
    return write(tmp_path / "source", [*phrases.test.sources[:19], ""])


def write(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def subwords_of(tokenizer, texts):
    return [tokenizer.subwords(row) for row in tokenizer.encode(texts)]


@pytest.fixture
def trim(tmp_path, capfd):
    """Trims a run; returns the new run and the numbers of the report, by what they are of."""

    def trim(run_dir, *options):
        new = tmp_path / "trimmed"
        assert cli.main(["trim", str(run_dir), str(new), *map(str, options)]) == 0
        rows = [
            re.fullmatch(r"(\S+) of (\S+) (.+)", r) for r in capfd.readouterr().out.splitlines()
        ]
        return new, {row[3]: (row[1].replace(",", ""), row[2].replace(",", "")) for row in rows}

    return trim


def test_greedy_translations_stay_and_the_vocabulary_shrinks(run_of, source, trim):
    new, report = trim(run_of("joint"), "--keep", source)
    before, model, tokenizer, _ = opened(run_of("joint"))
    after, smaller, *trimmed = opened(new)
    lines = lines_of(source)
    assert after(lines) == before(lines)
    assert len(set(after(lines))) > 10
    assert subwords_of(trimmed[0], lines) == subwords_of(tokenizer, lines)
    assert trimmed[0].model == trimmed[1].model
    assert trimmed[0].vocab_size < tokenizer.vocab_size
    assert report == {
        "translations changed": ("none", "20"),
        "subwords": (str(trimmed[0].vocab_size), str(VOCAB_SIZE)),
        "parameters": (str(smaller.count_params()), str(model.count_params())),
    }


def test_a_beam_keeps_its_hypotheses_and_changed_translations_are_counted(
    run_of, tmp_path, trim, phrases
):
    lines = phrases.test.sources[:2]
    options = ("--beam-size=3", "--length-penalty=1")
    new, report = trim(run_of("separate"), "--keep", write(tmp_path / "f", lines), *options)
    (before, *_, many), (after, *_, few) = map(opened, (run_of("separate"), new))
    pairs = zip(*(each(lines, 64, 3, 1.0) for each in (before, after)), strict=True)
    changed = sum(old != now for old, now in pairs)
    assert report["translations changed"] == (str(changed or "none"), "2")
    source_ids, limits, *_ = before.module.tokenize(lines)
    found = before.module.fixed_beam(source_ids, limits, 3, 1.0, 3)
    made = {many.pad_id, *np.ravel(found[0]).tolist()}
    assert len(made) > 5
    assert set(many.subwords(made)) <= set(few.subwords(range(few.vocab_size)))
    assert few.vocab_size < VOCAB_SIZE


def test_lines_are_kept_as_the_model_reads_them(run_of, tmp_path, trim, phrases):
    # In capitals, which are folded, and of several sentences.
    lines = ["WHERE IS THE STATION", "Where is the station? I am tired. Good morning!"]
    targets = list(phrases.test.targets)
    (tmp_path / "target.gz").write_bytes(gzip.compress("\n".join(targets).encode()))
    source = write(tmp_path / "f", lines)
    files = ("--keep", source, source, "--keep-target", tmp_path / "target.gz", source)
    new, report = trim(run_of("separate"), *files)
    before, after = (opened(run_dir) for run_dir in (run_of("separate"), new))
    assert after[0](lines) == before[0](lines)
    both = [lines[0], lines[0].lower()]
    assert subwords_of(after[2], both) == subwords_of(before[2], both)
    assert report.pop("translations changed") == ("none", "8")
    for side, few in zip(("source", "target"), after[2:], strict=True):
        assert report.pop(f"{side} subwords") == (str(few.vocab_size), str(VOCAB_SIZE))
        assert few.vocab_size < VOCAB_SIZE
    assert report.keys() == {"parameters"}
    assert subwords_of(after[3], targets) == subwords_of(before[3], targets)


def test_a_line_with_a_tag_of_its_own_is_kept_as_it_is_translated(run_of, tmp_path, trim):
    # Such a line is translated as a whole, because its later sentences have no tag.
    run = RunDirectory(shutil.copytree(run_of("separate"), tmp_path / "tagged"))
    files = ("train_source", "train_target", "validation_source", "validation_target")
    options = {"validation_tag": "<2en>", "max_length": 24, "repair_loops": False}
    data = DataConfig(**dict.fromkeys(files, "f"), **options)
    run.save_config(dataclasses.replace(run.config(), data=data))
    line = "<2en> Where is the station? I am tired. Good morning!"
    new, report = trim(run.path, "--keep", write(tmp_path / "f", [line]))
    assert report["translations changed"] == ("none", "1")
    assert opened(new)[0](line) == opened(run.path)[0](line)


def test_the_new_run_is_exported_and_not_resumed(trained_run, exported_run, tmp_path, trim, capfd):
    few = write(tmp_path / "few", ["a b c", "c b a"])
    new, _ = trim(trained_run[0], "--keep", few)
    assert cli.main(["export", str(new), str(tmp_path / "saved"), "--beam-size=1"]) == 0
    assert capfd.readouterr().out == f"{tmp_path / 'saved' / '1'}\n"
    both = exported_run[0], tmp_path / "saved"
    large, small = (tt.Translator.load(saved)(lines_of(few)) for saved in both)
    assert small == large
    state = json.loads(next(new.rglob("state.json")).read_text(encoding="utf-8"))
    assert state["metrics"] == {}
    words = ["trimmed: was written by trim and cannot be resumed", "trim it again"]
    assert_refused(["train", f"--run-dir={new}", "--resume", "--steps=9"], words, capfd, tmp_path)
