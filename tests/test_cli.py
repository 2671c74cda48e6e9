"""The command line: a whole run in processes of its own, and every mistake answered in a line."""

import gzip
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest
import tensorflow as tf

import tf_transformer as tt
from tf_transformer import cli
from tf_transformer.config import read_toml
from tf_transformer.options import settings

SMALL = [
    "--vocab-size=280", "--num-layers=1", "--d-model=32", "--num-heads=2", "--d-ff=64",
    "--batch-tokens=512", "--max-length=32", "--warmup-steps=50",
]  # fmt: skip
PERIOD, STEPS, MORE_STEPS = 4, 6, 10


def command(*arguments):
    return [sys.executable, "-m", "tf_transformer.cli", *map(str, arguments)]


def run(*arguments, **options):
    return subprocess.run(
        command(*arguments), capture_output=True, text=True, timeout=300, **options
    )


def lines_of(path):
    return path.read_text(encoding="utf-8").splitlines()


def log_of(run_dir):
    return [json.loads(line) for line in lines_of(run_dir / "log.jsonl")]


def without_times(log):
    times = ("minutes", "tokens_per_second", "validation_seconds", "validation_share")
    return [{k: v for k, v in x.items() if k not in times} for x in log]


def checkpoints_in(run_dir):
    return sorted(path.name for path in (run_dir / "checkpoints").iterdir())


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Text files of the copy task; and where each test that shares them may leave nothing."""
    folder = tmp_path_factory.mktemp("data")
    corpus = tt.copy_task(num_train=300, num_validation=12, num_test=12)
    for name in ("train", "validation", "test"):
        text = getattr(corpus, name)
        for side, sentences in (("source", text.sources), ("target", text.targets)):
            path = folder / f"{name}.{side}"
            path.write_text("".join(f"{s}\n" for s in sentences), encoding="utf-8")
    return folder


def files(data, **others):
    """The four options that name text files."""
    names = [f"{part}_{side}" for part in ("train", "validation") for side in ("source", "target")]
    return [
        f"--{name.replace('_', '-')}={others.get(name, data / name.replace('_', '.'))}"
        for name in names
    ]


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    """A run of a few steps, made in a process of its own; and what that process printed."""
    run_dir = tmp_path_factory.mktemp("runs") / "new" / "run"
    lengths = [f"--steps={STEPS}", f"--validation-steps={PERIOD}"]
    done = run("train", "--run-dir", run_dir, *files(data), *SMALL, *lengths)
    assert done.returncode == 0, done.stderr
    return run_dir, done


@pytest.fixture(scope="module")
def resumed(trained, tmp_path_factory):
    """A copy of that run, gone on with."""
    run_dir = tmp_path_factory.mktemp("runs") / "resumed"
    shutil.copytree(trained[0], run_dir)
    done = run("train", "--run-dir", run_dir, "--resume", f"--steps={MORE_STEPS}")
    assert done.returncode == 0, done.stderr
    return run_dir, done


@pytest.fixture(scope="module")
def exported(trained, tmp_path_factory):
    """The SavedModel of that run, written by a process of its own; and what it printed."""
    saved = tmp_path_factory.mktemp("saved_models") / "demo"
    done = run("export", trained[0], saved)
    assert done.returncode == 0, done.stderr
    return saved, done


# --- train ----------------------------------------------------------------------------------


def test_a_run_leaves_configuration_tokenizers_checkpoints_and_log(trained):
    run_dir, _ = trained
    left = {path.name for path in run_dir.iterdir()}
    assert left == {"config.toml", "tokenizers", "checkpoints", "log.jsonl", ".lock"}
    assert {path.name for path in (run_dir / "tokenizers").iterdir()} == {
        "source.model",
        "target.model",
    }
    assert checkpoints_in(run_dir) == ["step-00000004", "step-00000006"]
    assert [line["step"] for line in log_of(run_dir)] == [PERIOD, STEPS]
    assert {"loss", "val_loss", "val_bleu", "minutes"} <= set(log_of(run_dir)[0])


def test_a_run_says_what_it_does_and_nothing_of_its_engine(trained):
    _, done = trained
    assert done.stdout == ""
    for word in (
        "Training a tokenizer of 280 pieces", "Tokenized and batched in ", " pairs/s.",
        "300 training pairs", "% padding", "Done at step 6",
    ):  # fmt: skip
        assert word in done.stderr
    for noise in ("Warning", "WARNING", "oneDNN", "cuda", "Traceback"):
        assert noise not in done.stderr


def test_the_configuration_of_a_run_repeats_it(trained, tmp_path):
    run_dir, _ = trained
    again = tmp_path / "again"
    assert cli.main(["train", "--config", str(run_dir / "config.toml"), f"--run-dir={again}"]) == 0
    assert read_toml(again / "config.toml") == read_toml(run_dir / "config.toml")
    for side in ("source", "target"):
        name = f"tokenizers/{side}.model"
        assert (again / name).read_bytes() == (run_dir / name).read_bytes()
    assert without_times(log_of(again)) == without_times(log_of(run_dir))


def test_the_command_line_wins_over_the_file(data, tmp_path):
    config = tmp_path / "run.toml"
    config.write_text("[model]\nd_model = 8\n[training]\nminutes = 9.0\n", encoding="utf-8")
    options = cli._parser().parse_args(
        ["train", "--run-dir=x", f"--config={config}", "--steps=3", "--no-norm-first"]
    )
    merged = cli._merged(read_toml(config), cli._given(options))
    assert merged == {"model": {"d_model": 8, "norm_first": False}, "training": {"steps": 3}}


def test_the_log_has_padding_and_traces(trained):
    run_dir, done = trained
    for line in log_of(run_dir):
        assert f"{line['padding_share']:.1%} padding" in done.stderr
        # Batches of many shapes, and one graph for all of them.
        assert line["traces"] == 1


@pytest.fixture(scope="module")
def shards(data, tmp_path_factory):
    """The training files of `data` in three parts each, packed."""
    folder = tmp_path_factory.mktemp("shards")
    for side in ("source", "target"):
        lines = lines_of(data / f"train.{side}")
        for part, (start, stop) in enumerate([(0, 7), (7, 200), (200, 300)]):
            text = "".join(f"{line}\n" for line in lines[start:stop])
            (folder / f"{part}.{side}.gz").write_bytes(gzip.compress(text.encode()))
    return folder


def test_shards_and_a_cache_train_what_two_files_in_memory_do(trained, data, shards, tmp_path):
    run_dir, cache = tmp_path / "run", tmp_path / "cache"
    pattern = {f"train_{side}": shards / f"*.{side}.gz" for side in ("source", "target")}
    lengths = [f"--steps={STEPS}", f"--validation-steps={PERIOD}"]
    given = [*files(data, **pattern), *SMALL, *lengths, f"--data-cache={cache}"]
    assert cli.main(["train", f"--run-dir={run_dir}", *given]) == 0
    assert without_times(log_of(run_dir)) == without_times(log_of(trained[0]))
    (ids,) = cache.iterdir()
    written = ids.stat().st_mtime_ns
    # It goes on with what it finds, there or elsewhere.
    assert cli.main(["train", f"--run-dir={run_dir}", "--resume", f"--steps={STEPS + 1}"]) == 0
    assert list(cache.iterdir()) == [ids] and ids.stat().st_mtime_ns == written
    moved = ["--resume", f"--steps={STEPS + 2}", f"--data-cache={tmp_path / 'other'}"]
    assert cli.main(["train", f"--run-dir={run_dir}", *moved]) == 0
    assert [path.name for path in (tmp_path / "other").iterdir()] == [ids.name]
    assert read_toml(run_dir / "config.toml")["data"]["data_cache"] == str(tmp_path / "other")


@pytest.mark.parametrize(
    ("source", "target", "words"),
    [
        ("*.sorce.gz", "*.target.gz", r"\*\.sorce\.gz: matches no file"),
        ("[01].source.gz", "*.target.gz", r"source\.gz matches 2 files but .*\.gz matches 3;"),
        ("[02].source.gz", "[01].target.gz", r"2\.source\.gz has 100 lines but .*1\..* has 193;"),
    ],
)
def test_bad_shards_are_named(data, shards, bad_files, capfd, source, target, words):
    given = files(data, train_source=shards / source, train_target=shards / target)
    arguments = ["train", f"--run-dir={bad_files / 'run'}", *given, *SMALL]
    assert_refused(arguments, [words], capfd, bad_files)


def test_resume_goes_on_where_the_run_ended(trained, resumed):
    (before, _), (run_dir, done) = trained, resumed
    log = log_of(run_dir)
    assert log[:2] == log_of(before)
    assert log[-1]["step"] == MORE_STEPS
    assert [line["step"] for line in log[2:]] == sorted({line["step"] for line in log[2:]})
    assert log[2]["step"] > STEPS
    assert "step-00000010" in checkpoints_in(run_dir)
    for noise in ("Warning", "Skipping", "Traceback"):
        assert noise not in done.stderr


def test_a_run_that_was_stopped_learns_what_the_other_does(data, resumed, tmp_path):
    # One period, and none of the stop: the states agree though the logs were cut elsewhere.
    whole = tmp_path / "whole"
    lengths = [f"--steps={MORE_STEPS}", f"--validation-steps={MORE_STEPS}"]
    assert cli.main(["train", f"--run-dir={whole}", *files(data), *SMALL, *lengths]) == 0
    validated = [name for name in log_of(whole)[-1] if name.startswith("val_")]
    assert {"val_loss", "val_bleu"} <= set(validated)
    for name in [*validated, "learning_rate"]:
        assert log_of(resumed[0])[-1][name] == pytest.approx(log_of(whole)[-1][name], rel=1e-5)


def test_resume_of_a_finished_run_changes_nothing(trained, tmp_path, capfd):
    run_dir = tmp_path / "run"
    shutil.copytree(trained[0], run_dir)
    before = {p: p.stat().st_mtime_ns for p in run_dir.rglob("*")}
    assert cli.main(["train", f"--run-dir={run_dir}", "--resume"]) == 0
    assert {p: p.stat().st_mtime_ns for p in run_dir.rglob("*")} == before
    assert "Nothing to do" in capfd.readouterr().err


def test_ctrl_c_leaves_a_checkpoint_and_resume_goes_on(data, tmp_path):
    run_dir = tmp_path / "run"
    process = subprocess.Popen(
        command("train", "--run-dir", run_dir, *files(data), *SMALL, "--steps=1000000",
                "--validation-steps=3"),
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 200
        while not (run_dir / "log.jsonl").is_file() and time.monotonic() < deadline:
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, printed = process.communicate(timeout=100)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "Stopped at step" in printed
    assert "Traceback" not in printed
    stopped = log_of(run_dir)[-1]["step"]
    assert f"step-{stopped:08d}" in checkpoints_in(run_dir)
    arguments = ["train", f"--run-dir={run_dir}", "--resume", f"--steps={stopped + 2}"]
    assert cli.main(arguments) == 0
    assert log_of(run_dir)[-1]["step"] == stopped + 2


# --- export, translate, evaluate ------------------------------------------------------------


def test_export_writes_the_next_version_with_a_manifest(trained, exported):
    saved, done = exported
    assert done.stdout.splitlines() == [str(saved / "1")]
    assert done.stderr == ""
    assert [path.name for path in saved.iterdir()] == ["1"]
    manifest = json.loads((saved / "1/assets.extra/tf_transformer.json").read_text("utf-8"))
    best = max(log_of(trained[0]), key=lambda line: line["val_bleu"])
    assert manifest["scores"]["val_bleu"] == best["val_bleu"]
    assert manifest["step"] == best["step"]
    assert manifest["config"] == read_toml(trained[0] / "config.toml")
    assert {"tensorflow", "keras", "tf_transformer"} <= set(manifest["versions"])


def test_a_saved_model_of_bfloat16_is_half_as_large_and_translates(trained, exported, tmp_path):
    done = run("export", trained[0], tmp_path / "saved", "--precision=bfloat16")
    assert done.returncode == 0, done.stderr
    manifest = json.loads((tmp_path / "saved/1/assets.extra/tf_transformer.json").read_text())
    assert manifest["precision"] == "bfloat16"
    sizes = [
        (saved / "1/variables/variables.data-00000-of-00001").stat().st_size
        for saved in (tmp_path / "saved", exported[0])
    ]
    assert sizes[0] < 0.55 * sizes[1]
    done = run("translate", tmp_path / "saved", input="eins\n\nzwei drei\n")
    assert done.returncode == 0 and len(done.stdout.splitlines()) == 3


@pytest.fixture(scope="module")
def moved(exported, tmp_path_factory):
    """The SavedModel alone, far from the run that it came from."""
    path = tmp_path_factory.mktemp("server") / "model"
    shutil.copytree(exported[0], path)
    return path


@pytest.fixture(scope="module")
def echo(echo_model, data, tmp_path_factory):
    """The SavedModel of a model whose every translation is its source."""
    tokenizer = tt.SentencePieceTokenizer.train(lines_of(data / "train.source"), 280)
    saved = tmp_path_factory.mktemp("saved_models") / "echo"
    tt.Translator.from_model(echo_model(280), tokenizer, tokenizer).save(saved)
    return saved


def test_translate_answers_line_by_line_in_order(echo, tmp_path):
    done = run("translate", echo, input="a b c\n\nd e\r\n   \nf\n", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "a b c\n\nd e\n\nf\n"
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"a b\n\nc d", b"a b\n\nc d\n"),  # no end of the last line
        (b"\n\n", b"\n\n"),
        (b"", b""),
        (b"a\nb \xff\nc\n", "a\nb \ufffd\nc\n".encode()),  # not UTF-8
        ("é\u2028ü\n日本\n".encode(), "é ü\n日本\n".encode()),  # one line to us, two to Python
        (b"a b\r\nc\r\n", b"a b\nc\n"),
    ],
)
def test_translate_reads_and_writes_files(echo, tmp_path, capfd, text, expected):
    source, output = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_bytes(text)
    arguments = ["translate", str(echo), f"--input={source}", f"--output={output}"]
    assert cli.main([*arguments, "--batch-size=2"]) == 0
    assert output.read_bytes() == expected
    assert capfd.readouterr() == ("", "")


def test_translate_of_more_lines_than_are_read_at_once_keeps_the_order(echo, tmp_path):
    source, output = tmp_path / "in.txt", tmp_path / "out.txt"
    texts = ["a", "b c d e", "", "f g", "h", "i j a b", "c"] * 9
    source.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    arguments = ["translate", str(echo), f"--input={source}", f"--output={output}"]
    assert cli.main([*arguments, "--batch-size=1", "--threads=3"]) == 0
    assert lines_of(output) == texts


@pytest.mark.parametrize("n_best", [[], ["--n-best=2", "--beam-size=3"]], ids=["best", "n-best"])
@pytest.mark.parametrize("kept", [0, 1, 3, 5], ids="kept {}".format)
def test_a_stopped_output_is_continued(echo, tmp_path, n_best, kept):
    source, output = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("a b\n\nc d e\nf\n", encoding="utf-8")
    arguments = ["translate", str(echo), f"--input={source}", f"--output={output}", *n_best]
    assert cli.main(arguments) == 0
    whole = output.read_bytes()
    lines = whole.splitlines(keepends=True)
    # A line that was not written to its end is written anew.
    output.write_bytes(b"".join(lines[:kept]) + (lines[kept][:1] if kept < len(lines) else b""))
    assert cli.main([*arguments, "--continue"]) == 0
    assert output.read_bytes() == whole


def test_a_source_of_a_hundred_thousand_characters_is_cut_and_named(echo, tmp_path, capfd):
    source, output = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("a b\n" + "c " * 50_000 + "\nd e\n", encoding="utf-8")
    assert cli.main(["translate", str(echo), f"--input={source}", f"--output={output}"]) == 0
    first, second, third = lines_of(output)
    assert (first, third) == ("a b", "d e")
    assert 0 < len(second) < 1000 and set(second) <= {"c", " "}
    assert "cut: line 2." in capfd.readouterr().err


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--beam-size=999", ["beam_size must be from 1 to 280", "received beam_size=999"]),
        ("--n-best=3", ["n_best must be from 1 to the size of the beam, 1", "--beam-size"]),
        ("--continue", ["--continue needs --input and --output"]),
    ],
)
def test_a_search_that_cannot_be_is_refused(echo, tmp_path, capfd, option, words):
    assert_refused(["translate", echo, option], words, capfd, tmp_path)


def test_translate_does_not_write_over_its_input(echo, bad_files, capfd):
    arguments = ["translate", echo, f"--input={bad_files / 'two'}", f"--output={bad_files / 'two'}"]
    assert_refused(arguments, ["two", "--output"], capfd, bad_files)
    assert lines_of(bad_files / "two") == ["a b", "c d"]


def test_a_line_end_that_the_model_makes_starts_no_line(echo_model, data, tmp_path):
    tokenizer = tt.SentencePieceTokenizer.train(lines_of(data / "train.source"), 280)

    class LineEndModel(echo_model):
        def decode_step(self, token_ids, index, cache):
            line_end = next(i for i in range(280) if tokenizer.pieces([i]) == ["<0x0A>"])
            says = tf.where(index == 1, line_end, tokenizer.encode(["a"])[0][0])
            ids = tf.where(index == 3, tokenizer.eos_id, says)
            return tf.one_hot(tf.fill(tf.shape(token_ids), ids), 280), cache

    tt.Translator.from_model(LineEndModel(280), tokenizer, tokenizer).save(tmp_path / "demo")
    source, output = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("b\nc\n", encoding="utf-8")
    arguments = ["translate", str(tmp_path / "demo"), f"--input={source}", f"--output={output}"]
    assert cli.main(arguments) == 0
    assert output.read_bytes().count(b"\n") == 2


def test_evaluate_scores_run_and_saved_model_alike(trained, moved, data, tmp_path, capfd):
    sources = lines_of(data / "test.source")
    translations = tt.Translator.load(moved)(sources)
    # So short a training scores nothing; let it be right in half of the sentences.
    pairs = zip(sources, translations, strict=True)
    references = [t if i % 2 else s for i, (s, t) in enumerate(pairs)]
    reference = tmp_path / "reference"
    reference.write_text("".join(f"{line}\n" for line in references), encoding="utf-8")
    expected = tt.score(translations, references)
    assert 0 < expected.chrf < 100
    for model in (trained[0], moved):
        arguments = [f"--source={data / 'test.source'}", f"--reference={reference}"]
        assert cli.main(["evaluate", str(model), *arguments]) == 0
        printed = capfd.readouterr()
        assert printed.err == ""
        first, *_, last = printed.out.splitlines()
        assert f"BLEU {expected.bleu:.2f}" in first
        assert expected.signature in first
        figures = json.loads(last)
        assert (figures["bleu"], figures["chrf"]) == (expected.bleu, expected.chrf)
        assert figures["signature"] == expected.signature
        assert figures["sentences"] == 12
        assert figures["tokens_per_second"] > 0


# --- Bad input ------------------------------------------------------------------------------


def assert_one_line(printed, *words):
    assert "Traceback" not in printed
    (line,) = printed.splitlines()
    assert line.startswith("tf-transformer")
    assert len(line) < 400
    for word in words:
        assert re.search(word, line), f"{word!r} is not in {line!r}"


def assert_refused(arguments, words, capfd, tmp_path):
    """Exit status 2, one line on stderr with these words, and no new file."""
    before = sorted(tmp_path.rglob("*"))
    try:
        status = cli.main([str(argument) for argument in arguments])
    except SystemExit as end:  # argparse
        status = end.code
    printed = capfd.readouterr()
    assert_one_line(printed.err, *words)
    assert printed.out == ""
    assert status == 2
    assert sorted(tmp_path.rglob("*")) == before


@pytest.fixture
def bad_files(tmp_path):
    (tmp_path / "two").write_text("a b\nc d\n", encoding="utf-8")
    (tmp_path / "three").write_text("a b\nc d\ne f\n", encoding="utf-8")
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "blank").write_text("\n \n\n", encoding="utf-8")
    (tmp_path / "latin1").write_bytes(b"a b\nd\xfcnn\ne f\n")
    (tmp_path / "torn.gz").write_bytes(b"\x1f\x8b\x08\x00torn")
    (tmp_path / "folder").mkdir()
    (tmp_path / "one_tab").write_text("a\tb\nc d\n", encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("two", [r"two has 2 ", r"validation\.target has 12\b"]),
        ("empty", ["empty: the file is empty"]),
        ("blank", ["has 3 "]),
        ("missing", ["missing: no such file"]),
        ("latin1", ["latin1, line 2: not valid UTF-8"]),
        ("torn.gz", ["torn.gz: damaged"]),
        ("folder", ["folder: a directory"]),
    ],
)
def test_a_bad_text_file_is_named(data, bad_files, capfd, name, words):
    given = files(data, validation_source=bad_files / name)
    arguments = ["train", f"--run-dir={bad_files / 'run'}", *given, *SMALL]
    assert_refused(arguments, words, capfd, bad_files)


def test_a_bad_line_of_a_tsv_file_is_named(bad_files, capfd):
    path = bad_files / "one_tab"
    arguments = [f"--train-tsv={path}", f"--validation-tsv={path}", "--corpus=tsv"]
    words = ["one_tab, line 2: 1 column "]
    assert_refused(["train", f"--run-dir={bad_files / 'run'}", *arguments], words, capfd, bad_files)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--corpus=phrasbook"], ["'phrasbook'", "'phrasebook'"]),
        (["--corpus=copy", "--train-source=x"], ["--train-source", "'copy'"]),
        ([], ["--train-source, --train-target", "--corpus phrasebook"]),
        (["--corpus=copy", "--preset=tniy"], ["'tniy'", "'tiny'"]),
        (["--corpus=copy", "--model-type=bep"], ["'bep'", "'bpe'"]),
        (["--corpus=copy", "--precision=bfloat16"], ["'bfloat16'", "'mixed_bfloat16'"]),
        (["--corpus=copy", "--steps=5", "--minutes=1"], ["--steps and --minutes each"]),
        (["--corpus=copy", "--steps=5", "--epochs=1"], ["--steps and --epochs each"]),
        (["--corpus=copy", "--steps=0"], ["steps=0"]),
        (["--corpus=copy", "--minutes=-1"], ["minutes=-1"]),
        (["--corpus=copy", "--dropout-rate=1"], ["dropout_rate=1"]),
        (["--corpus=copy", "--label-smoothing=2"], ["label_smoothing=2"]),
        (["--corpus=copy", "--max-length=1"], ["max_length=1"]),
        (["--corpus=copy", "--batch-tokens=9"], ["max_length", "batch_tokens=9"]),
        (["--corpus=copy", "--vocab-size=100"], ["vocab_size=100", "260"]),
        (["--corpus=copy", "--seed=-1"], ["seed=-1"]),
        (["--corpus=copy", "--steps=many"], ["--steps", "'many'"]),
        (["--corpus=copy", "--stesp=5"], ["--stesp"]),
        (["--corpus=copy", "--validation-steps=0"], ["validation_steps=0"]),
        (["--corpus=tfds:nothing_like_it"], ["nothing_like_it"]),
    ],
)
def test_a_bad_setting_is_named(tmp_path, capfd, options, words):
    arguments = ["train", f"--run-dir={tmp_path / 'run'}", *options]
    assert_refused(arguments, words, capfd, tmp_path)


# Refused after a line or two of what was done before; the last line is the one that counts.
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--vocab-size=5000"], [r"vocab_size=5000", r"at most \d+"]),
        (["--vocab-size=261"], [r"vocab_size=261", "too small"]),
        (["--vocab-size=280", "--d-model=30", "--num-heads=4"], ["d_model=30", "num_heads=4"]),
        (["--vocab-size=280", "--max-length=2"], ["max_length"]),
        (
            ["--vocab-size=280", "--no-joint", "--tie-embeddings"],
            ["tie_embeddings"],
        ),
    ],
)
def test_a_setting_that_does_not_fit_the_text_is_named(data, tmp_path, capfd, options, words):
    small = [option for option in SMALL if not option.startswith("--vocab")]
    given = [*files(data), *small, "--steps=1", *options]
    arguments = ["train", f"--run-dir={tmp_path / 'run'}", *given]
    assert cli.main(arguments) == 2
    *before, last = capfd.readouterr().err.splitlines()
    assert_one_line(last, *words)
    assert all(line.startswith("Training a tokenizer") for line in before)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("toml", "words"),
    [
        ("[model]\nnum_layer = 2\n", ["run.toml", r"\[model\]", "'num_layer'", "'num_layers'"]),
        ("[modle]\n", ["run.toml", r"\[modle\]", "'model'"]),
        ("[training]\nsteps = 'ten'\n", ["run.toml", "steps must be int", "'ten'"]),
        ("[training]\nsteps = true\n", ["run.toml", "steps must be int", "True"]),
        ("training = 3\n", ["run.toml", r"\[training\]"]),
        ("[model\n", ["run.toml", "is not TOML", "line 1"]),
        ("[model]\nd_model = 0\n", ["run.toml", "d_model=0"]),
        (None, ["run.toml", "No such file"]),
    ],
)
def test_a_bad_file_of_settings_is_named(tmp_path, capfd, toml, words):
    config = tmp_path / "run.toml"
    if toml is not None:
        config.write_text(toml, encoding="utf-8")
    arguments = ["train", "--corpus=copy", f"--config={config}", f"--run-dir={tmp_path / 'run'}"]
    assert_refused(arguments, words, capfd, tmp_path)


@pytest.mark.parametrize(
    ("table", "option"),
    [
        ("data", "--max-length=9"),
        ("tokenizer", "--vocab-size=280"),
        ("model", "--preset=tiny"),
        ("model", "--d-model=8"),
        ("training", "--steps=3"),
        ("training", "--seed=3"),
    ],
)
def test_a_table_that_is_none_is_named_though_an_option_belongs_in_it(
    tmp_path, capfd, table, option
):
    config = tmp_path / "run.toml"
    config.write_text(f"{table} = 3\n", encoding="utf-8")
    arguments = ["train", f"--config={config}", f"--run-dir={tmp_path / 'run'}", option]
    assert_refused(arguments, ["run.toml", rf"write \[{table}\]"], capfd, tmp_path)


@pytest.mark.parametrize("extra", [["--steps=99"], ["--corpus=copy"], []])
def test_a_run_is_not_overwritten(trained, data, capfd, extra):
    run_dir, _ = trained
    given = [] if "--corpus=copy" in extra else files(data)
    arguments = ["train", f"--run-dir={run_dir}", *given, *extra]
    assert_refused(arguments, ["holds a run already", "--resume"], capfd, run_dir)


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (["--d-model=64"], ["--d-model", "--steps"]),
        (["--seed=5", "--steps=99"], ["--seed"]),
        (["--config=run.toml"], ["--config"]),
        (["--no-joint"], ["--no-joint"]),
    ],
)
def test_resume_takes_no_other_setting(trained, capfd, extra, words):
    run_dir, _ = trained
    assert_refused(["train", f"--run-dir={run_dir}", "--resume", *extra], words, capfd, run_dir)


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "--resume", "--run-dir={}"],
        ["export", "{}", "{}/saved"],
    ],
)
@pytest.mark.parametrize("folder", ["missing", "folder"])
def test_a_folder_without_a_run_is_named(bad_files, capfd, arguments, folder):
    filled = [argument.format(bad_files / folder) for argument in arguments]
    assert_refused(filled, [f"{folder}: holds no run", "tf-transformer train"], capfd, bad_files)


def test_a_run_without_a_checkpoint_is_named(trained, tmp_path, capfd):
    run_dir = tmp_path / "run"
    shutil.copytree(trained[0], run_dir)
    shutil.rmtree(run_dir / "checkpoints")
    words = ["no checkpoint yet", "--resume"]
    assert_refused(["export", run_dir, tmp_path / "saved"], words, capfd, tmp_path)


def test_a_tokenizer_that_is_damaged_is_named(trained, tmp_path, capfd):
    run_dir = tmp_path / "run"
    shutil.copytree(trained[0], run_dir)
    (run_dir / "tokenizers" / "source.model").write_bytes(b"junk")
    for arguments in (
        ["export", run_dir, tmp_path / "saved"],
        ["train", f"--run-dir={run_dir}", "--resume", "--steps=99"],
    ):
        words = ["tokenizers/source.model: no SentencePiece model", "Restore"]
        assert_refused(arguments, words, capfd, tmp_path)


@pytest.mark.parametrize(
    ("before", "after", "difference"),
    [
        ("d_model = 32", "d_model = 64", "d_model was 32 and is 64"),
        ("d_ff = 64", "d_ff = 128", "d_ff was 64 and is 128"),
        ("num_layers = 1", "num_layers = 2", "num_layers was 1 and is 2"),
        ("num_heads = 2", "num_heads = 4", "num_heads was 2 and is 4"),
        ("norm_first = true", "norm_first = false", "norm_first was True and is False"),
        ("tie_embeddings = true", "tie_embeddings = false", "tie_embeddings was True and is False"),
        ("dropout_rate = 0.1", "dropout_rate = 0.0", "dropout_rate was 0.1 and is 0.0"),
    ],
)
def test_a_configuration_that_fits_no_checkpoint_is_named(
    trained, tmp_path, capfd, before, after, difference
):
    run_dir = tmp_path / "run"
    shutil.copytree(trained[0], run_dir)
    config = (run_dir / "config.toml").read_text(encoding="utf-8")
    assert f"\n{before}\n" in config
    changed = config.replace(f"\n{before}\n", f"\n{after}\n")
    (run_dir / "config.toml").write_text(changed, encoding="utf-8")
    words = [r"checkpoints/step-\d+: ", difference, "Put back"]
    for arguments in (
        ["export", run_dir, tmp_path / "saved"],
        ["train", f"--run-dir={run_dir}", "--resume", "--minutes=1"],
    ):
        assert_refused(arguments, words, capfd, tmp_path)


def test_weights_that_are_damaged_are_named(trained, tmp_path, capfd):
    run_dir = tmp_path / "run"
    shutil.copytree(trained[0], run_dir)
    for path in run_dir.glob("checkpoints/*/*.h5"):
        path.write_bytes(bytes(path.stat().st_size))
    for arguments in (
        ["export", run_dir, tmp_path / "saved"],
        ["train", f"--run-dir={run_dir}", "--resume", "--minutes=1"],
    ):
        assert cli.main(list(map(str, arguments))) == 2
        *warnings, error = capfd.readouterr().err.splitlines()
        assert warnings and all("is damaged, and passed over" in line for line in warnings)
        assert "can be read. Put back a copy" in error and str(run_dir) in error


@pytest.mark.parametrize("folder", ["missing", "folder", "two"])
def test_a_missing_saved_model_is_named(bad_files, capfd, folder):
    path = bad_files / folder
    words = [f"{folder}: no SavedModel there", "tf-transformer export"]
    source = f"--input={bad_files / 'two'}"
    output = f"--output={bad_files / 'out'}"
    assert_refused(["translate", path, source, output], words, capfd, bad_files)
    given = [f"--source={bad_files / 'two'}", f"--reference={bad_files / 'two'}"]
    assert_refused(["evaluate", path, *given], words, capfd, bad_files)


def test_an_output_of_another_input_is_not_continued(moved, tmp_path, capfd):
    (tmp_path / "in").write_text("eins\n")
    (tmp_path / "out").write_text("one\ntwo\n")
    given = [f"--input={tmp_path / 'in'}", f"--output={tmp_path / 'out'}", "--continue"]
    words = ["out: holds translations of 2 lines, more than", "another --output"]
    assert_refused(["translate", moved, *given], words, capfd, tmp_path)
    assert (tmp_path / "out").read_text() == "one\ntwo\n"


@pytest.mark.parametrize("option", ["--presett=tiny", "--step=3"])
def test_an_unknown_option_is_named_with_the_nearest(tmp_path, capfd, option):
    with pytest.raises(SystemExit) as caught:
        cli.main(["train", f"--run-dir={tmp_path / 'run'}", option])
    assert caught.value.code == 2
    (line,) = capfd.readouterr().err.splitlines()
    nearest = option.split("=")[0].removesuffix("t").replace("--step", "--steps")
    assert line.startswith(f"tf-transformer train: unknown {option}; did you mean {nearest}.")


def test_ctrl_c_in_a_library_that_makes_another_error_of_it_is_an_interruption(monkeypatch, capfd):
    def library(options, started):
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise SystemError("from C++") from None

    monkeypatch.setattr(cli, "_train", library)
    monkeypatch.setattr(signal, "getsignal", lambda number: signal.default_int_handler)
    assert cli.main(["train", "--run-dir=x"]) == 130
    assert capfd.readouterr().err == "tf-transformer: interrupted.\n"


def test_a_missing_input_is_named(moved, bad_files, capfd):
    arguments = ["translate", moved, f"--input={bad_files / 'missing'}"]
    assert_refused(arguments, ["missing: No such file"], capfd, bad_files)


def test_an_output_that_cannot_be_written_is_named(moved, bad_files, capfd):
    arguments = ["translate", moved, f"--input={bad_files / 'two'}", f"--output={bad_files}"]
    assert_refused(arguments, [f"{bad_files}: Is a directory"], capfd, bad_files)


def test_evaluation_files_of_different_length_are_named(moved, bad_files, capfd):
    given = [f"--source={bad_files / 'two'}", f"--reference={bad_files / 'three'}"]
    words = [r"two has 2 lines", r"three has 3\b"]
    assert_refused(["evaluate", moved, *given], words, capfd, bad_files)


@pytest.mark.parametrize(
    ("name", "words"), [("missing", ["no such file"]), ("latin1", ["latin1, line 2"])]
)
def test_a_bad_evaluation_file_is_named(moved, bad_files, capfd, name, words):
    given = [f"--source={bad_files / 'three'}", f"--reference={bad_files / name}"]
    assert_refused(["evaluate", moved, *given], words, capfd, bad_files)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--quantization=int8"], ["--quantization", "--format ctranslate2", "--precision"]),
        (["--format=ctranslate2", "--precision=bfloat16"], ["--precision", "--quantization"]),
        (["--precision=float16"], ["float16", "bfloat16"]),
        (["--format=ctranslate2", "--beam-size=4"], ["leave out --beam-size"]),
        (["--beam-size=99999"], ["from 1 to", "99999"]),
    ],
)
def test_an_option_that_the_export_cannot_have_is_named(trained, tmp_path, capfd, given, words):
    assert_refused(["export", trained[0], tmp_path / "saved", *given], words, capfd, tmp_path)


def test_a_version_that_exists_is_named(trained, exported, capfd):
    saved, _ = exported
    words = [r"demo/1 exists already", "--overwrite", "--version"]
    assert_refused(["export", trained[0], saved, "--version=1"], words, capfd, saved)


@pytest.mark.parametrize("version", ["0", "-3", "one"])
def test_a_version_that_is_no_number_from_one_on_is_named(trained, tmp_path, capfd, version):
    arguments = ["export", trained[0], tmp_path / "saved", f"--version={version}"]
    assert_refused(arguments, [version], capfd, tmp_path)


@pytest.mark.parametrize("size", ["0", "-1", "x"])
@pytest.mark.parametrize("name", ["translate", "evaluate"])
def test_a_batch_size_below_one_is_named(tmp_path, capfd, name, size):
    given = ["--source=x", "--reference=x"] if name == "evaluate" else []
    arguments = [name, "model", *given, f"--batch-size={size}"]
    assert_refused(arguments, ["--batch-size", f"'{size}'"], capfd, tmp_path)


@pytest.mark.parametrize("arguments", [[], ["trian"], ["train"], ["evaluate", "x"], ["export"]])
def test_a_wrong_command_is_answered_in_a_line(tmp_path, capfd, arguments):
    assert_refused(arguments, ["--help"], capfd, tmp_path)


def test_in_a_process_of_its_own_too_a_mistake_is_one_line(bad_files):
    given = files(bad_files, **{
        name: bad_files / "two"
        for name in ("train_source", "validation_source", "validation_target")
    }, train_target=bad_files / "three")  # fmt: skip
    done = run("train", f"--run-dir={bad_files / 'run'}", *given)
    assert done.returncode == 2
    assert_one_line(done.stderr, r"two has 2 ", r"three has 3\b")
    assert done.stdout == ""
    assert not (bad_files / "run").exists()


def test_the_installed_command_is_this_one(tmp_path):
    installed = shutil.which("tf-transformer", path=os.path.dirname(sys.executable))
    if installed is None:
        pytest.skip("the package is not installed in this environment")
    done = subprocess.run(
        [installed, "translate", "missing"], cwd=tmp_path, capture_output=True, text=True,
        stdin=subprocess.DEVNULL, timeout=120,
    )  # fmt: skip
    assert done.returncode == 2
    assert_one_line(done.stderr, "missing: no SavedModel there")


@pytest.mark.parametrize("name", [None, "train", "evaluate", "export", "translate"])
def test_help_is_given(capfd, name):
    with pytest.raises(SystemExit) as end:
        cli.main([name, "--help"] if name else ["--help"])
    assert end.value.code == 0
    printed = capfd.readouterr()
    assert printed.out.startswith("usage: tf-transformer")
    assert printed.err == ""
    if name is None:
        for other in ("train", "evaluate", "export", "translate"):
            assert re.search(rf"^ +{other} +\w", printed.out, re.MULTILINE)
    if name == "train":
        # Every setting has its option, with a word about it.
        for section, field in settings():
            assert field.metadata["help"], f"{section}.{field.name}"
            assert f"--{field.name.replace('_', '-')}" in printed.out
