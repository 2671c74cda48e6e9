"""Callbacks: validation BLEU, checkpoints, log and progress of a run, the stop at a NaN."""

import json
import types

import keras
import numpy as np
import pytest
import small_runs
import tensorflow as tf
from small_runs import STARTED, a_run

import tf_transformer as tt
from tf_transformer.runs import callbacks
from tf_transformer.runs import run as run_module
from tf_transformer.runs.run import Position
from tf_transformer.runs.run_directory import RunDirectory


def metrics_of(name, *values):
    """Puts made-up values of a metric into the logs, one each period."""

    def put(epoch, logs):
        logs[name] = values[epoch]

    return keras.callbacks.LambdaCallback(on_epoch_end=put)


def test_run_log_has_a_line_of_metrics_for_each_validation(fit, step_clock, tmp_path, monkeypatch):
    monkeypatch.delattr(tf.summary, "scalar")  # without its package, TensorBoard writes nothing
    path = tmp_path / "log.jsonl"
    path.write_text('{"step": 0}\n', encoding="utf-8")
    progress = callbacks.Progress(
        a_run(tmp_path), Position(STARTED - 60, 9), validation_seconds=10.0
    )
    fit(metrics_of("val_bleu", 3.0, 5.5), step_clock, progress, epochs=2)
    first, *lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    assert first == {"step": 0}, "a resumed run appends"
    expected = {
        "step": (4, 8), "val_bleu": (3.0, 5.5), "minutes": (2.08, 3.17),  # 60 + 65, 60 + 130 s
        "validation_seconds": (25, 25), "validation_fraction": (0.28, 0.316),
        "learning_rate": (5 * 100**-1.5 / 4, 9 * 100**-1.5 / 4),  # of the step to come
        "padding_fraction": (0.0312, 0.0312), "criterion": ("val_bleu",) * 2,
        "signature": ("nrefs:1",) * 2,
        "left_out": (5, 1),  # 9 batches were seen
    }  # fmt: skip
    for name, values in expected.items():
        found = [line.pop(name) for line in lines]
        if name.startswith("learning_rate"):
            np.testing.assert_allclose(found, values, rtol=1e-3)
        else:
            assert found == list(values)
    assert all(np.isfinite(line["loss"]) for line in lines)
    points = [point for line in lines for point in line["training"]]
    assert [point["step"] for point in points] == [*range(1, 9)]
    rates = [25e-5 * (step + 1) for step in range(1, 9)]
    np.testing.assert_allclose([point["learning_rate"] for point in points], rates, rtol=1e-3)
    # 100 tokens in 10 s, and those of the first step do not count.
    assert [point.get("tokens_per_second") for point in points] == [None, *[10] * 7]
    assert all(point["gradient_norm"] > 0 and point["loss"] > 0 for point in points)


def test_further_validation_sets_are_in_the_logs(fit, line_model):
    texts = [tt.ParallelText((name,), ("a b c d e",)) for name in ("first", "second")]
    answers = {"first": "a b c d e", "second": "a b c d x"}
    bleus = [
        tt.TranslationBleu(lambda found: [answers[source] for source in found], text, suffix=suffix)
        for text, suffix in zip(texts, ("", "_2"), strict=True)
    ]
    sets = [
        tf.data.Dataset.from_tensors((np.ones((2, 1)), np.full((2, 1), size))) for size in (3, 5)
    ]
    logged, expected = {}, {}

    def note(epoch, logs):
        logged.update(logs)
        for number, dataset in enumerate(sets, 2):
            metrics = line_model.evaluate(dataset, verbose=0, return_dict=True)
            expected[f"val_loss_{number}"] = metrics["loss"]

    last = keras.callbacks.LambdaCallback(on_epoch_end=note)
    fit(callbacks.ValidateMore(sets), *bleus, last, epochs=1)
    for name, value in expected.items():
        assert logged[name] == pytest.approx(value)
    assert expected["val_loss_2"] != expected["val_loss_3"] and "loss" in logged
    assert logged["val_bleu"] == pytest.approx(100) and logged["val_bleu_2"] < 90
    assert logged["val_length_ratio"] == logged["val_length_ratio_2"] == 1


def test_checkpoints_between_validations_count_batches(fit, tmp_path):
    run, position = a_run(tmp_path, {"checkpoint_steps": 2}), Position(STARTED, batches_seen=100)
    fit(metrics_of("val_bleu", 7.0, 3.0), callbacks.SaveCheckpoints(run, position), epochs=2)
    found = [(c.step, c.batches_seen, c.metrics.get("val_bleu")) for c in run.checkpoints.all()]
    assert found == [(2, 102, None), (4, 104, 7.0), (6, 106, None), (8, 108, 3.0)]
    assert position.batches_seen == 108
    assert {checkpoint.run_metadata["seed"] for checkpoint in run.checkpoints.all()} == {1}
    assert run.checkpoints.latest().signatures == {"val_bleu": "nrefs:1"}


@pytest.mark.parametrize("num_bad", [49, 50])
def test_training_ends_if_no_gradient_is_finite_any_more(tmp_path, num_bad):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(tt.Adam(), "mse")
    run = a_run(tmp_path, {"checkpoint_steps": 1})
    save = callbacks.SaveCheckpoints(run, Position(STARTED))
    x = np.array([*[1] * 5, *[np.inf] * num_bad, 1])[:, None]

    def train():
        model.fit(x, np.ones(len(x)), batch_size=1, shuffle=False, verbose=0, callbacks=[save])

    if num_bad < 50:
        train()
        assert run.checkpoints.latest().step == 6
        return
    with pytest.raises(callbacks.DivergedError) as refusal:
        train()
    for part in ("step 5: the gradients of 50 updates are", "step-00000005", "--learning-rate"):
        assert part in str(refusal.value)
    assert run.checkpoints.latest().step == 5


def test_weights_that_are_not_finite_are_not_saved(tmp_path):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(tt.Adam(), "mse")
    run = a_run(tmp_path)
    save = callbacks.SaveCheckpoints(run, Position(STARTED))

    def poison(batch, logs):
        model.set_weights([np.full_like(weight, np.inf) for weight in model.get_weights()])

    spoil = keras.callbacks.LambdaCallback(on_train_batch_end=poison)
    with pytest.raises(callbacks.DivergedError, match="step 1: weights are no longer finite"):
        model.fit(np.ones((8, 1)), np.ones(8), batch_size=1, verbose=0, callbacks=[spoil, save])
    assert run.checkpoints.latest() is None


def test_metrics_that_are_not_finite_are_null_in_the_files_of_a_run(fit, tmp_path):
    run, position = a_run(tmp_path), Position(STARTED)
    spoil = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: logs.update(val_bleu=np.nan, loss=np.float32(np.inf))
    )
    save, progress = callbacks.SaveCheckpoints(run, position), callbacks.Progress(run, position)
    fit(spoil, save, progress, epochs=1)
    [state] = tmp_path.glob("checkpoints/*/state.json")
    for found in (
        json.loads(state.read_text())["metrics"],
        json.loads(run.directory.log_path.read_text()),
    ):
        assert (found["val_bleu"], found["loss"]) == (None, None)


def test_speed_and_time_left_wait_until_they_are_known(monkeypatch, tmp_path, capfd):
    clock = types.SimpleNamespace(now=STARTED, monotonic=lambda: clock.now)
    monkeypatch.setattr(callbacks, "time", clock)
    monkeypatch.setattr(run_module, "time", clock)
    run = a_run(tmp_path, {"minutes": 5.0}, total_steps=None)
    shown = callbacks.Progress(run, Position(STARTED))
    optimizer = types.SimpleNamespace(learning_rate=0.1, gradient_norm=tf.constant(1.0))
    shown.set_model(types.SimpleNamespace(optimizer=optimizer, train_step=None))
    shown.on_epoch_begin(0)
    # Each step has 100 target tokens; the first takes as long as the tracing.
    for step, seconds in ((1, 100), (2, 40), (3, 40)):
        clock.now += seconds
        optimizer.iterations = tf.constant(step)
        shown.on_train_batch_end(step - 1, {"loss": 2.5})
    shown.on_epoch_end(0, {"loss": 2.5})
    assert capfd.readouterr().err.splitlines() == [
        " 33%  step 1, loss 2.500, 0:01:40 elapsed",
        " 47%  step 2, loss 2.500, 2 tokens/s, 0:02:20 elapsed, 0:02:40 left",
        " 60%  step 3, loss 2.500, 2 tokens/s, 0:03:00 elapsed, 0:02:00 left",
        "step 3: loss 2.5",
    ]
    assert json.loads(run.directory.log_path.read_text("utf-8"))["tokens_per_second"] == 2.5


def test_measuring_the_speed_leaves_the_model_as_it_was(small_copy_task, monkeypatch):
    tokenizer = tt.SentencePieceTokenizer.train(small_copy_task.train.sources, 272)
    batches = tt.TokenBatches.from_text(
        small_copy_task.train, tokenizer, tokenizer, batch_tokens=100, seed=0
    )
    config = tt.TransformerConfig(272, 272, num_layers=1, d_model=16, num_heads=2, d_ff=16)
    model = tt.Transformer(config)
    model.compile(tt.Adam(0.01), tt.SmoothedCrossEntropy())
    model.optimizer.build(model.trainable_variables)
    variables = [*model.variables, *model.optimizer.variables]
    before = [variable.numpy() for variable in variables]
    traces, step = [], type(model).train_step

    def train_step(self, data):
        traces.append(data)
        return step(self, data)

    monkeypatch.setattr(type(model), "train_step", train_step)
    data = batches.dataset()
    run = types.SimpleNamespace(
        model=model,
        batches_from=lambda number: data,
        workers=types.SimpleNamespace(all_reduce_max=int),
    )
    assert run_module.Run.seconds_per_update(run, 4, Position(0.0)) > 0
    for variable, value in zip(variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value, err_msg=variable.path)
    model.fit(data, steps_per_epoch=4, shuffle=False, verbose=0)
    assert len(traces) == 1, "the graph is built once"
    assert model.optimizer.iterations.numpy() == 4


@pytest.mark.slow
@pytest.mark.parametrize("number", [4, 7])
def test_batches_that_run_together_give_the_run_of_single_ones(number, tmp_path):
    """Also where the validations, the accumulation and the end divide them unevenly."""
    runs = [tmp_path / "single", tmp_path / "together"]
    options = [*small_runs.SETTINGS, "--steps=11", "--validation-steps=4", "--checkpoint-steps=3"]
    small_runs.train(runs[0], *options)
    small_runs.train(runs[1], *options, f"--steps-per-execution={number}")
    assert small_runs.same_checkpoints(*runs)
    logs = [
        [(line["step"], line["loss"], line["val_loss"]) for line in RunDirectory.open(run).log()]
        for run in runs
    ]
    assert logs[0] == logs[1]
    assert [step for step, *_ in logs[0]] == [4, 8, 11]
