"""A run that begins with the weights of another run, and what of that run it keeps."""

import dataclasses
import pathlib
import shutil

import commands
import numpy as np
import pytest
from commands import config_of, log_of, run_here
from small_runs import arrays_of, same_checkpoints, train

import tf_transformer as tt
from tf_transformer.errors import ConfigError
from tf_transformer.models.architectures import build_model, with_tokenizers
from tf_transformer.run_config import RunConfig
from tf_transformer.runs import recipe
from tf_transformer.runs.checkpoints import Checkpoints
from tf_transformer.runs.compilation import validate
from tf_transformer.runs.data import batches_of
from tf_transformer.runs.restore import best_checkpoint, restore_model, search_of
from tf_transformer.runs.run_directory import RunDirectory
from tf_transformer.training import translation_bleu

FIXTURES = pathlib.Path(__file__).parent / "fixtures"
TUNING = [
    "--corpus=copy", "--batch-tokens=60", "--steps=6", "--validation-steps=3", "--warmup-steps=2",
    "--dropout-rate=0.2",
]  # fmt: skip


@pytest.fixture(scope="module")
def origin(small_copy_task, randomise, tmp_path_factory):
    """A run with random weights and settings of its own, of which the first checkpoint is best."""
    run = RunDirectory(tmp_path_factory.mktemp("runs") / "origin")
    sentences = small_copy_task.train.sources
    tokenizer = tt.SentencePieceTokenizer.train(sentences, 280, user_symbols=["<a>"])
    config = RunConfig.from_dict({
        "data": {"corpus": "copy", "max_length": 30, "source_tag": "<a>", "allow_unknown": False},
        "tokenizer": {"vocab_size": tokenizer.vocab_size},
        "model": {
            "num_layers": 1, "d_model": 16, "num_heads": 2, "d_ff": 32, "activation": "gelu",
            "dropout_rate": 0.3, "attention_dropout_rate": 0.1,
        },
    })  # fmt: skip
    run.begin(config, (tokenizer, tokenizer))
    model = build_model(with_tokenizers(config.model, tokenizer, tokenizer))
    for step, bleu in ((3, 9.0), (7, 5.0)):
        randomise(model, seed=step)
        Checkpoints(run.checkpoints_path).write(
            model, step, {"val_bleu": bleu}, run_metadata=model.config.to_dict()
        )
    return run.path


@pytest.fixture(scope="module")
def tuned(origin, small_copy_task, tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("runs") / "tuned"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tf_transformer.runs.data.load_corpus", lambda *_: small_copy_task)
        train(run_dir, f"--initialize-from={origin}", "--deterministic", *TUNING)
    return run_dir


@pytest.mark.usefixtures("use_small_copy_task")
def test_a_tuned_run_begins_with_what_the_other_has(origin, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr("tf_transformer.runs.training_run._fit", lambda *_, **__: 0)
    train(tmp_path / "run", f"--initialize-from={origin}", *TUNING)
    one, other = RunDirectory(origin), RunDirectory(tmp_path / "run")
    best, first = best_checkpoint(one), best_checkpoint(other)
    expected, found = (
        {n: a for n, a in arrays_of(each).items() if not n.startswith("optimizer")}
        for each in (best, first)
    )
    assert (best.step, first.step) == (3, 0)
    assert found == expected and len(found) > 20
    assert first.run_metadata["initialized from"] == f"{origin}, {best.path.name}"
    assert f"Beginning with the weights of {origin}, {best.path.name}." in capfd.readouterr().err
    for name in ("source.model", "target.model"):
        saved = [(run.tokenizers_path / name).read_bytes() for run in (one, other)]
        assert saved[0] == saved[1]
    before, after = one.config(), other.config()
    assert after.training.initialize_from == str(origin)
    assert after.tokenizer == before.tokenizer
    assert after.model == dataclasses.replace(before.model, dropout_rate=0.2)
    chosen = {"fold_capitals": True, "dotless_i": False}
    assert search_of(after.data) == dataclasses.replace(search_of(before.data), **chosen)
    assert after.training.learning_rate == pytest.approx(0.1 * 0.003 * 128 / 16)


@pytest.mark.slow
def test_the_first_validation_is_that_of_the_weights_of_the_other(origin, tuned, small_copy_task):
    first, *_, last = log_of(tuned)
    assert (first["step"], last["step"]) == (0, 6)
    model, *tokenizers, _ = restore_model(RunDirectory(origin))
    config, text = RunDirectory(tuned).config(), small_copy_task.validation
    batches = batches_of(text, tokenizers, config.data)
    expected = validate(model, config.training, batches)["loss"]
    assert first["val_loss"] == pytest.approx(expected, rel=1e-5) and last["val_loss"] < expected


@pytest.mark.slow
@pytest.mark.usefixtures("use_small_copy_task")
def test_a_tuned_run_resumes_exactly_and_without_the_other_run(
    origin, tuned, tmp_path, monkeypatch, deterministic
):
    copy, run_dir = shutil.copytree(origin, tmp_path / "copy"), tmp_path / "run"

    def fail(self, epoch, logs=None):
        raise ArithmeticError  # as good as any

    with monkeypatch.context() as patch, pytest.raises(ArithmeticError):
        patch.setattr(translation_bleu.TranslationBleu, "on_epoch_end", fail)
        train(run_dir, f"--initialize-from={copy}", deterministic, *TUNING)
    shutil.rmtree(copy)
    train(run_dir, "--resume")
    assert same_checkpoints(run_dir, tuned)
    steps = [line["step"] for line in log_of(run_dir)]
    assert steps == [line["step"] for line in log_of(tuned)] == [0, 3, 6]
    latest = Checkpoints(run_dir / "checkpoints").latest()
    assert latest.run_metadata["initialized from"].startswith(f"{copy}, step-")


def test_what_changes_no_weights_may_differ(origin, tmp_path):
    given = ["--corpus=copy", f"--initialize-from={origin}"]
    rates = ["--dropout-rate=0", "--attention-dropout-rate=0.5"]
    config = config_of(*given, *rates, "--max-length=20", "--source-tag=")
    assert (config.model.dropout_rate, config.model.attention_dropout_rate) == (0, 0.5)
    assert (config.data.max_length, config.data.source_tag) == (20, "")
    # A file can say it too, and the file of the other run repeats its settings.
    file = tmp_path / "run.toml"
    file.write_text(f'[training]\nseed = 3\ninitialize_from = "{origin}"\n', encoding="utf-8")
    config = config_of("--corpus=copy", f"--config={file}")
    assert (config.training.seed, config.model.activation) == (3, "gelu")
    assert config_of(f"--config={origin / 'config.toml'}", *given).model.activation == "gelu"
    file.write_text("[training]\ninitialize_from = 3\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"\[training\] initialize_from: input should be a valid"):
        config_of("--corpus=copy", f"--config={file}")


FACTS = recipe.Facts(29_000, 15.0, True, 2, 0)


def completed(model=None, **training):
    tables = {"data": {"corpus": "copy"}, "model": model or {}, "training": training}
    config = RunConfig.from_dict(tables)
    return recipe.with_choices(config, recipe.choose(config, FACTS), "")


def test_the_recipe_of_tuning_has_a_small_peak_and_few_passes():
    plain, tuned = completed(), completed(initialize_from="a")
    assert (plain.training.epochs, tuned.training.epochs) == (41, 4)
    assert (plain.training.weight_decay, tuned.training.weight_decay) == (0.1, 0)
    same = {"steps": 1000, "model": {"norm_first": False}}
    plain, tuned = completed(**same), completed(**same, initialize_from="a")
    assert tuned.training.learning_rate == pytest.approx(plain.training.learning_rate / 10)
    assert (plain.training.warmup_steps, tuned.training.warmup_steps) == (200, 50)
    assert (plain.tokenizer.vocab_size is None, tuned.tokenizer.vocab_size) == (False, None)
    for name in ("learning_rate", "warmup_steps"):
        assert tuned.chosen[f"training.{name}"]
    # Once the speed is measured, the tenth stays.
    measured = recipe.choose_by_updates(completed(minutes=9, initialize_from="a"), 1000)
    assert measured.training.learning_rate == pytest.approx(plain.training.learning_rate / 10)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "name", "options"),
    [("marian", "hugging_face/shared", ["--tag=>>nld<<"]), ("bert", "bert/plain", [])],
)
def test_an_imported_run_is_tuned(kind, name, options, tmp_path):
    imported, run_dir = tmp_path / "imported", tmp_path / "run"
    run_here("import", kind, FIXTURES / name, "--run-dir", imported, *options)
    lines = [f"Guten Abend, Anna {n}.\tGood evening, Anna {n}.\n" for n in range(40)]
    (tmp_path / "pairs").write_text("".join(lines), encoding="utf-8")
    options = [f"--train-tsv={tmp_path / 'pairs'}", f"--initialize-from={imported}", "--marks=0"]
    run_here("train", f"--run-dir={run_dir}", *options, "--steps=2", "--validation-steps=1")
    one, other = (RunDirectory.open(path) for path in (imported, run_dir))
    expected = restore_model(one)
    first = Checkpoints(other.checkpoints_path).all()[0]
    model = restore_model(other).model
    first.restore(model)
    np.testing.assert_equal(model.get_weights(), expected.model.get_weights())
    for path in one.tokenizers_path.iterdir():
        assert (other.tokenizers_path / path.name).read_bytes() == path.read_bytes()
    before, after = (search_of(run.config().data) for run in (one, other))
    assert (before.source_tag, before.allow_unknown) == (after.source_tag, after.allow_unknown)
    assert before.max_length == after.max_length
    assert other.config().model.source_vocab_size is None, "the tokenizers tell the sizes"
    shutil.rmtree(imported)
    run_here("train", f"--run-dir={run_dir}", "--resume", "--steps=3")


@pytest.mark.slow
def test_marks_and_tags_are_added_to_a_vocabulary_that_lacks_them(
    trained_run, copy_files, tmp_path
):
    """Their rows come after the old ones, which stay as they were before the first update."""
    old, run_dir = restore_model(RunDirectory.open(trained_run[0])), tmp_path / "run"
    options = "--tag=<BT>", "--steps=2", "--validation-steps=2"
    done = run_here(
        "train", "--run-dir", run_dir, "--initialize-from", trained_run[0], *options,
        *commands.files(copy_files),
    )  # fmt: skip
    run = RunDirectory.open(run_dir)
    model, source, target, _ = restore_model(run)
    assert f"The vocabulary of {trained_run[0]} gets the tag <BT>." in done.stderr
    size = old.source_tokenizer.vocab_size
    assert (source.vocab_size, target.vocab_size) == (size + 33, size + 33)
    assert len(source.mark_ids.plain) == 16 and source.subwords([size]) == ["<BT>"]
    checkpoint = next(c for c in Checkpoints(run.checkpoints_path).intact(print) if c.step == 0)
    checkpoint.restore(model)
    for new, before in zip(model.variables, old.model.variables, strict=True):
        kept = new.numpy()[tuple(map(slice, before.shape))]
        if "seed_generator" not in new.path:
            np.testing.assert_array_equal(kept, before.numpy())
    (tmp_path / "text").write_text("a {x} b <b>c</b>\n")
    done = run_here("translate", run_dir, "--input", tmp_path / "text")
    assert all(piece in done.stdout for piece in ("{x}", "<b>", "</b>"))
    fewer = ["train", "--run-dir", tmp_path / "fewer", "--initialize-from", run_dir, "--marks=4"]
    refused = run_here(*fewer, *options, *commands.files(copy_files), status=2)
    commands.assert_one_line(refused.stderr.splitlines()[-1], "has 16 marks, which stay")
