"""What a run validates and logs."""

import json
import math
import shutil

import pytest
import tensorflow as tf
from small_runs import SETTINGS, same_checkpoints, train

from tf_transformer import cli
from tf_transformer.data.token_batches import TokenBatches
from tf_transformer.evaluation import corpus_score
from tf_transformer.runs.checkpoints import Checkpoints
from tf_transformer.runs.restore import restore_model
from tf_transformer.runs.run_directory import RunDirectory
from tf_transformer.training import translation_bleu
from tf_transformer.training.losses import SmoothedCrossEntropy
from tf_transformer.training.optimizers import step_of

pytestmark = pytest.mark.usefixtures("use_small_copy_task")

# Updates run across epochs; several batches of validation.
WHOLE = [*SETTINGS, "--batch-tokens=30", "--accumulation-steps=5", "--validation-steps=3"]


@pytest.fixture(scope="module")
def whole(small_copy_task, tmp_path_factory):
    """A run of two epochs, and the translations of its validations."""
    translated = []

    def spy(translations, references, *tokenizer):
        if translations is not references:
            translated.append(translations)
        return corpus_score(translations, references, *tokenizer)

    run_dir = tmp_path_factory.mktemp("runs") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tf_transformer.runs.data.load_corpus", lambda *_: small_copy_task)
        patch.setattr(translation_bleu, "corpus_score", spy)
        train(run_dir, *WHOLE, "--epochs=2")
    return run_dir, translated


@pytest.mark.slow
def test_epochs_are_passes_of_the_text_also_where_updates_run_across_them(whole, small_copy_task):
    run = RunDirectory(whole[0])
    _, *tokenizers, _ = restore_model(run)
    batches = TokenBatches.from_text(
        small_copy_task.train, *tokenizers, batch_tokens=30, max_length=30
    )
    assert len(batches) % 5, "or every epoch ends with an update"
    assert run.log()[-1]["step"] == math.ceil(2 * len(batches) / 5)


def test_validation_has_the_loss_of_all_tokens_and_scores_what_evaluate_translates(
    whole, small_copy_task, tmp_path, monkeypatch, capfd
):
    run_dir, translated = whole
    first, *others = Checkpoints(run_dir / "checkpoints").all()
    lone = RunDirectory(shutil.copytree(run_dir, tmp_path / "run"))
    for checkpoint in others:
        shutil.rmtree(lone.checkpoints_path / checkpoint.path.name)
    model, *tokenizers, _ = restore_model(lone)
    text = small_copy_task.validation
    batches, one_batch = (
        TokenBatches.from_text(text, *tokenizers, batch_tokens=size) for size in (30, 1000)
    )
    assert len(batches) > len(one_batch) == 1
    ((inputs, labels),) = one_batch.dataset(num_epochs=1)
    expected = float(SmoothedCrossEntropy()(labels, model(inputs)))
    assert first.metrics["val_loss"] == pytest.approx(expected, rel=1e-5)

    evaluated = []

    def spy(translations, *others):
        evaluated.append(translations)
        return corpus_score(translations, *others)

    monkeypatch.setattr("tf_transformer.evaluation.corpus_score", spy)
    for side, sentences in (("source", text.sources), ("reference", text.targets)):
        (tmp_path / side).write_text("".join(f"{s}\n" for s in sentences), encoding="utf-8")
    files = [f"--{side}={tmp_path / side}" for side in ("source", "reference")]
    assert cli.main(["evaluate", str(lone.path), *files]) == 0
    assert translated[0] in evaluated and any(translated[0])
    evaluation = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert evaluation["bleu"] == first.metrics["val_bleu"]


@pytest.mark.slow
@pytest.mark.parametrize("lost", [3, None])
def test_a_lost_validation_loses_no_training_and_is_made_up_for(whole, tmp_path, monkeypatch, lost):
    """`lost` is the step whose validation ends the process; None is the last one."""
    logged = [line["step"] for line in RunDirectory(whole[0]).log()]
    lost = lost or logged[-1]
    validate = translation_bleu.TranslationBleu.on_epoch_end

    def fail(self, epoch, logs=None):
        if step_of(self.model) == lost:
            raise ArithmeticError  # as good as any
        validate(self, epoch, logs)

    with monkeypatch.context() as patch, pytest.raises(ArithmeticError):
        patch.setattr(translation_bleu.TranslationBleu, "on_epoch_end", fail)
        train(tmp_path / "stopped", *WHOLE, "--epochs=2")
    latest = Checkpoints(tmp_path / "stopped" / "checkpoints").latest()
    assert (latest.step, latest.metrics) == (lost, {}), "the training is saved"
    train(tmp_path / "stopped", "--resume")
    one, other = (
        [
            (c.step, c.metrics["val_loss"], c.metrics["val_bleu"])
            for c in Checkpoints(folder / "checkpoints").all()
        ]
        for folder in (whole[0], tmp_path / "stopped")
    )
    assert one == other
    assert same_checkpoints(tmp_path / "stopped", whole[0])
    assert [line["step"] for line in RunDirectory(tmp_path / "stopped").log()] == logged


@pytest.mark.slow
def test_the_time_of_a_resumed_run_goes_on(early_stopped_run):
    for line in RunDirectory(early_stopped_run).log():
        assert 0 < line["validation_seconds"] <= 60 * line["minutes"] + 1
        assert 0 < line["validation_fraction"] < 1
    minutes = [line["minutes"] for line in RunDirectory(early_stopped_run).log()]
    assert minutes == sorted(minutes) and minutes[0] > 0
    seconds = [c.seconds for c in Checkpoints(early_stopped_run / "checkpoints").all()]
    assert seconds == sorted(seconds)
    # The log's line is written just before its checkpoint.
    assert seconds[-1] / 60 == pytest.approx(minutes[-1], abs=0.05)


def test_a_resumed_run_has_only_the_rest_of_its_minutes(early_stopped_run, tmp_path, capfd):
    run_dir = shutil.copytree(early_stopped_run, tmp_path / "run")
    states = sorted(run_dir.glob("checkpoints/*/state.json"))
    state = json.loads(states[-1].read_text("utf-8"))
    states[-1].write_text(json.dumps({**state, "seconds": 3600.0}), "utf-8")
    config = (run_dir / "config.toml").read_text("utf-8")
    assert cli.main(["train", f"--run-dir={run_dir}", "--resume", "--minutes=60"]) == 0
    printed = capfd.readouterr().err
    assert "Nothing to do: its 60 minutes are over; give more --minutes." in printed
    assert "The changed settings are not saved" in printed
    assert (run_dir / "config.toml").read_text("utf-8") == config, "it says what was trained"
    shutil.rmtree(run_dir / "checkpoints")
    assert cli.main(["train", f"--run-dir={run_dir}", "--resume", "--minutes=0.001"]) == 2
    last = capfd.readouterr().err.splitlines()[-1]
    assert "nothing is trained yet" in last and "give more --minutes" in last


def test_tensorboard_has_the_metrics_of_the_log(early_stopped_run):
    found = {}
    for file in sorted((early_stopped_run / "tensorboard").iterdir()):
        for event in tf.compat.v1.train.summary_iterator(str(file)):
            for value in event.summary.value:
                found[value.tag, event.step] = tf.make_ndarray(value.tensor).item()
    for line in RunDirectory(early_stopped_run).log():
        for name in ("loss", "val_loss", "val_bleu", "learning_rate"):
            assert found[name, line["step"]] == pytest.approx(line[name], rel=1e-6)


@pytest.mark.parametrize(("seconds", "warmup_steps"), [(0.5, 28), (1e9, None)])
def test_the_number_of_updates_is_measured(tmp_path, monkeypatch, capfd, seconds, warmup_steps):
    """Six hundred seconds, of which at least nine tenths are training; an update is two batches."""

    def stop(*_, **__):
        written.update(RunDirectory(tmp_path / "run").config().to_dict()["training"])
        raise ArithmeticError  # as good as any

    written = {}
    monkeypatch.setattr("tf_transformer.runs.run.Run.seconds_per_update", lambda *_: 2 * seconds)
    monkeypatch.setattr("tf_transformer.runs.training_run._fit", stop)
    command = ["train", f"--run-dir={tmp_path / 'run'}", *SETTINGS, "--minutes=10"]
    if warmup_steps is None:
        assert cli.main(command) == 2
        last = capfd.readouterr().err.splitlines()[-1]
        assert "have time for 0 updates" in last and "Nothing was written" in last
        assert not (tmp_path / "run").exists(), "the same command with more minutes trains"
        return
    for _ in range(2):  # the run has no checkpoint, so the command may be repeated
        with pytest.raises(ArithmeticError):
            cli.main(command)
    assert written["warmup_steps"] == pytest.approx(warmup_steps, abs=2)
    # Ten validations.
    assert written["validation_steps"] == pytest.approx(28 / seconds, rel=0.1)
