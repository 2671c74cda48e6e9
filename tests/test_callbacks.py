"""Callbacks: validation BLEU, the log, checkpoints, and the stop at a loss that is not finite."""

import json

import keras
import numpy as np
import pytest

import tf_transformer as tt
from tf_transformer.evaluation import LOSS, Criterion
from tf_transformer.runs.checkpoints import Checkpoints
from tf_transformer.training import callbacks


def test_translation_bleu_is_the_score_of_the_translations(copy_corpus, fit):
    # Half of the sentences are right, half truncated, so that BLEU is neither 0 nor 100.
    received, shown = [], []

    def translate(sources):
        received.append(sources)
        return [s if i % 2 else s[: len(s) // 2] for i, s in enumerate(sources)]

    history = []
    fit(
        tt.TranslationBleu(translate, copy_corpus.validation, num_samples=3, show=shown.append),
        keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: history.append(dict(logs))),
        epochs=2,
    )
    sources = list(copy_corpus.validation.sources)
    translations = translate(sources)
    expected = tt.score(translations, list(copy_corpus.validation.targets)).bleu
    assert 0 < expected < 100
    assert [logs["val_bleu"] for logs in history] == [expected, expected]
    assert received[:2] == [sources, sources]
    assert len(shown) == 6
    for line, source, translation in zip(shown[:3], sources, translations, strict=False):
        assert source in line
        assert translation in line


@pytest.mark.parametrize("translation", ["", " "])
def test_a_sample_without_a_translation_says_so(copy_corpus, fit, translation):
    shown = []
    fit(
        tt.TranslationBleu(
            lambda sources: [translation] * len(sources),
            copy_corpus.validation,
            num_samples=1,
            show=shown.append,
        ),
        epochs=1,
    )
    assert shown == [f"  {copy_corpus.validation.sources[0]}  →  (nothing)"]


def bleu_of(*values):
    """Puts made-up values of BLEU into the logs, one each period."""

    def put(epoch, logs):
        logs["val_bleu"] = values[epoch]

    return keras.callbacks.LambdaCallback(on_epoch_end=put)


def test_run_log_has_a_line_of_metrics_for_each_validation(fit, step_clock, tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text('{"step": 0}\n', encoding="utf-8")
    fit(bleu_of(3.0, 5.5), step_clock, callbacks.RunLog(path, 1000.0 - 60, 0.03125), epochs=2)
    first, *lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    assert first == {"step": 0}, "a resumed run appends"
    assert [line["step"] for line in lines] == [4, 8]
    assert [line["val_bleu"] for line in lines] == [3.0, 5.5]
    assert [line["minutes"] for line in lines] == [2.08, 3.17]  # 60 + 65 and 60 + 130 seconds
    assert [line["learning_rate"] for line in lines] == pytest.approx(
        [5 * 100**-1.5 / 4, 9 * 100**-1.5 / 4]
    ), "of the step to come"
    assert all(np.isfinite(line["loss"]) for line in lines)
    assert [line["padding_fraction"] for line in lines] == [0.0312, 0.0312]


def test_save_checkpoints_keeps_metrics_and_the_best_checkpoint(fit, tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=2)
    fit(bleu_of(1.0, 7.0, 7.0, 2.0, 3.0), callbacks.SaveCheckpoints(checkpoints), epochs=5)
    kept = {checkpoint.step: checkpoint.metrics["val_bleu"] for checkpoint in checkpoints.all()}
    assert kept == {12: 7.0, 16: 2.0, 20: 3.0}
    assert checkpoints.best().step == 12, "the last of two equals"
    assert checkpoints.latest().step == 20


def test_save_checkpoints_keeps_the_best_of_an_earlier_process(fit, tmp_path):
    # Every period here has a new callback and a new `Checkpoints`, as a new process would.
    for bleu, best in ((9.0, 4), (4.0, 4), (9.5, 12), (9.4, 12)):
        fit(bleu_of(bleu), callbacks.SaveCheckpoints(Checkpoints(tmp_path)), epochs=1)
        assert Checkpoints(tmp_path).best().step == best


def test_save_checkpoints_monitors_another_metric(fit, tmp_path):
    save = callbacks.SaveCheckpoints(Checkpoints(tmp_path), Criterion("val_chrf", "chrF"))

    def put(epoch, logs):
        logs.update(val_bleu=[1.0, 2.0][epoch], val_chrf=[2.0, 1.0][epoch])

    fit(keras.callbacks.LambdaCallback(on_epoch_end=put), save, epochs=2)
    assert Checkpoints(tmp_path).best().step == 4


def test_save_checkpoints_keeps_the_lowest_loss(fit, tmp_path):
    save = callbacks.SaveCheckpoints(Checkpoints(tmp_path), LOSS)

    def put(epoch, logs):
        logs.update(val_bleu=epoch, val_loss=[2.0, 1.0, 1.0, 1.5][epoch])

    fit(keras.callbacks.LambdaCallback(on_epoch_end=put), save, epochs=4)
    assert Checkpoints(tmp_path).best().step == 12


def test_without_the_metric_the_newest_checkpoint_is_the_best(fit, tmp_path):
    fit(callbacks.SaveCheckpoints(Checkpoints(tmp_path)), epochs=2)
    assert Checkpoints(tmp_path).best().step == 8


def test_checkpoints_between_validations_count_batches_and_keep_the_best(fit, tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=9)
    save = callbacks.SaveCheckpoints(
        checkpoints, every=2, batches_seen=100, run_metadata={"seed": 1}
    )
    fit(bleu_of(7.0, 3.0), save, epochs=2)
    found = [
        (c.step, c.batches_seen, c.metrics.get("val_bleu"), c.best_step) for c in checkpoints.all()
    ]
    assert found == [(2, 102, None, None), (4, 104, 7.0, 4), (6, 106, None, 4), (8, 108, 3.0, 4)]
    assert {checkpoint.run_metadata["seed"] for checkpoint in checkpoints.all()} == {1}
    assert not list(tmp_path.glob("*.1")), "where a validation is due, it alone saves"


@pytest.fixture
def poisoned(line_model):
    """Makes the weights NaN before a given step, and restores them after the test."""
    weights = line_model.get_weights()

    def before(step, value=np.nan):
        def poison(batch, logs):
            if int(line_model.optimizer.iterations) + 1 == step:
                line_model.set_weights([np.full_like(w, value) for w in weights])

        return keras.callbacks.LambdaCallback(on_train_batch_begin=poison)

    yield before
    line_model.set_weights(weights)
    for variable in line_model.optimizer.variables:
        variable.assign(np.zeros(variable.shape))


@pytest.mark.parametrize("value", [np.nan, 1e30])  # whose square is infinite
def test_a_loss_that_is_not_finite_stops_training_and_names_the_last_checkpoint(
    fit, poisoned, tmp_path, value
):
    checkpoints = Checkpoints(tmp_path)
    save = callbacks.SaveCheckpoints(checkpoints, every=1)
    with pytest.raises(callbacks.DivergedError) as refusal:
        fit(poisoned(6, value), callbacks.StopOnNan(checkpoints), save)
    for part in ("step 6: the loss is", "step-00000005", "--learning-rate"):
        assert part in str(refusal.value)
    assert checkpoints.latest().step == 5


def test_weights_that_are_not_finite_are_not_saved(fit, poisoned, tmp_path):
    checkpoints = Checkpoints(tmp_path)
    with pytest.raises(callbacks.DivergedError, match="step 6: weights are no longer finite"):
        fit(poisoned(6), callbacks.SaveCheckpoints(checkpoints, every=1))
    assert checkpoints.latest().step == 5
