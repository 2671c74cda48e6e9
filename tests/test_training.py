"""Training with plain `compile` and `fit`: it learns, on one device or two, and ends when told."""

import json
import signal
import subprocess
import sys
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_transformer as tt
from tf_transformer.training import callbacks, endings, logs
from tf_transformer.training.checkpoints import Checkpoints
from tf_transformer.training.run_directory import RunDirectory

PIECES = 280  # 260 bytes and special ids, and enough for ten letters behind a space


def small_model(num_layers=1, d_model=16, dropout_rate=0.0, dtype=None):
    config = tt.TransformerConfig(
        PIECES,
        PIECES,
        num_layers=num_layers,
        d_model=d_model,
        num_heads=4,
        d_ff=2 * d_model,
        dropout_rate=dropout_rate,
    )
    return tt.Transformer(config, dtype=dtype)


@pytest.fixture(scope="module")
def corpus():
    return tt.copy_task(num_train=600, num_validation=40, num_test=0)


@pytest.fixture(scope="module")
def tokenizer(corpus):
    return tt.SentencePieceTokenizer.train(corpus.train.sources, PIECES)


@pytest.fixture(scope="module")
def batches(corpus, tokenizer):
    return tt.TokenBatches.from_text(
        corpus.train, tokenizer, tokenizer, batch_tokens=200, max_length=32, seed=0
    )


@pytest.fixture(scope="module")
def line_model():
    """The callbacks serve any Keras model, and the smallest is traced the fastest."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(tt.NoamSchedule(16, warmup_steps=100)), "mse")
    return model


@pytest.fixture
def fit(line_model):
    """Trains under callbacks, with 4 steps a period and no end but theirs."""
    line_model.optimizer.iterations.assign(0)
    data = tf.data.Dataset.from_tensors((np.ones((2, 1)), np.ones((2, 1)))).repeat()

    def run(*under_test, epochs=1000):
        line_model.fit(
            data,
            steps_per_epoch=4,
            epochs=epochs,
            shuffle=False,
            verbose=0,
            callbacks=list(under_test),
        )
        return line_model

    return run


# --- It learns ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make_task", "max_length", "seed"),
    [(tt.copy_task, 10, 0), (tt.copy_task, 10, 1), (tt.copy_task, 10, 2), (tt.reverse_task, 7, 0)],
)
def test_held_out_sequences_are_translated_exactly(make_task, max_length, seed):
    keras.utils.set_random_seed(seed)
    task = make_task(15_000, num_validation=1, num_test=500, max_length=max_length, seed=seed)
    tokenizer = tt.SentencePieceTokenizer.train(task.train.sources, PIECES)
    batches = tt.TokenBatches.from_text(
        task.train, tokenizer, tokenizer, batch_tokens=512, max_length=32, seed=seed
    )
    model = small_model(num_layers=1, d_model=64)
    model.compile(
        optimizer=keras.optimizers.Adam(
            tt.NoamSchedule(d_model=64, warmup_steps=100, factor=0.3),
            beta_2=0.98,
            epsilon=1e-9,
            # The mean of the last weights: a batch of one length pulls the others about.
            use_ema=True,
            ema_momentum=0.98,
        ),
        loss=tt.SmoothedCrossEntropy(label_smoothing=0.1),
    )
    model.fit(batches.dataset(), steps_per_epoch=1000, shuffle=False, verbose=0)
    translate = tt.Translator.from_model(model, tokenizer, tokenizer, max_length=32)
    translations = translate(list(task.test.sources))
    exact = sum(a == b for a, b in zip(translations, task.test.targets, strict=True))
    assert exact >= 0.99 * len(task.test)


def test_bfloat16_learns_and_stays_finite(batches):
    keras.utils.set_random_seed(0)
    model = small_model(dropout_rate=0.1, dtype="mixed_bfloat16")
    model.compile(keras.optimizers.Adam(1e-3), tt.SmoothedCrossEntropy())
    losses = model.fit(
        batches.dataset(), steps_per_epoch=25, epochs=4, shuffle=False, verbose=0
    ).history["loss"]
    assert np.isfinite(losses).all()
    assert losses == sorted(losses, reverse=True)
    assert {variable.dtype for variable in model.trainable_variables} == {"float32"}


# --- On two devices -------------------------------------------------------------------------

# TensorFlow makes its devices once a process, so this needs one of its own.
TWO_DEVICES = """
import json, keras, numpy as np, tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
import tf_transformer as tt
one, two = tf.distribute.get_strategy(), tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
random = np.random.default_rng(0)

def batch(*lengths):
    target = np.zeros((len(lengths), max(lengths)), "int32")
    for row, length in zip(target, lengths):
        row[:length] = random.integers(4, 30, length)
    begun = np.concatenate([np.full((len(lengths), 1), 2), target[:, :-1]], axis=1)
    return {"source_ids": target[:, ::-1].copy(), "target_ids": begun.astype("int32")}, target

def dataset(batches, weights=None):
    # Each replica is given its half of the rows, the first the greater.
    ids = tf.TensorSpec([None, None], tf.int32)
    signature = ({"source_ids": ids, "target_ids": ids}, ids)
    if weights is not None:
        signature = (*signature, tf.TensorSpec([None], tf.float32))
        batches = [(*b, np.full(len(b[1]), w, "float32")) for b, w in zip(batches, weights)]
    data = tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=signature)
    return data.apply(tf.data.experimental.assert_cardinality(len(batches)))

def transformer():
    return tt.Transformer(tt.TransformerConfig(
        30, 30, num_layers=1, d_model=16, num_heads=4, d_ff=32, dropout_rate=0.0))

def small():
    # What is exact here is loss, metrics and optimizer; the smaller the model, the sooner traced.
    source = keras.Input([None], dtype="int32", name="source_ids")
    target = keras.Input([None], dtype="int32", name="target_ids")
    hidden = keras.layers.Embedding(30, 8)(target)
    return keras.Model({"source_ids": source, "target_ids": target},
                       keras.layers.Dense(30)(hidden))

def fit(strategy, data, make=small, optimizer=lambda: keras.optimizers.SGD(0.5), **options):
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = make()
        metrics = [tt.TokenLoss(), tt.TokenAccuracy(), tt.Perplexity()]
        model.compile(optimizer(), tt.SmoothedCrossEntropy(), metrics=metrics, jit_compile=False)
    start = [variable.numpy() for variable in model.trainable_variables]
    history = model.fit(data, shuffle=False, verbose=0, **options).history
    return start, [variable.numpy() for variable in model.trainable_variables], history

def apart(some, others):
    return max(float(abs(a - b).max()) for a, b in zip(some, others))

result = {"replicas": two.num_replicas_in_sync}
# Stock Keras needs a first batch that divides evenly among the replicas; a Transformer does not.
cases = {
    "even": (small, [batch(3, 7, 5, 2, 3, 7, 5, 2), batch(6, 4, 6, 4)]),
    "uneven tokens": (small, [batch(9, 8, 9, 1, 2, 1), batch(1, 2, 1, 10)]),
    "uneven rows": (small, [batch(2, 2, 8, 3), batch(4, 9, 1)]),
    "an empty replica": (small, [batch(2, 6), batch(7), batch(4)]),
    "a Transformer": (transformer, [batch(9, 8, 1), batch(5), batch(1, 2, 1, 10)]),
}
for name, (make, batches) in cases.items():
    data = dataset(batches)
    start, weights, history = fit(one, data, make, epochs=2, validation_data=data)
    _, others, other_history = fit(two, data, make, epochs=2, validation_data=data)
    result[name] = {"moved": apart(start, weights), "apart": apart(weights, others),
                    "figures": [history, other_history]}

# Batches whose union is one batch: rows padded to the same length, as many as fill the groups.
whole = batch(9, 1, 5, 12, 2, 1, 7, 3, 3, 3, 12, 1)
def parts(bounds):
    return [({k: v[a:b] for k, v in whole[0].items()}, whole[1][a:b])
            for a, b in zip(bounds, bounds[1:])]
start, union, _ = fit(one, dataset([whole, whole]))
result["accumulated"] = {"moved": apart(start, union)}
for bounds in ([0, 12], [0, 2, 12], [0, 2, 3, 12]):
    pieces = parts(bounds)
    tokens = [int((labels != 0).sum()) for _, labels in pieces]
    weights = [len(pieces) * count / sum(tokens) for count in tokens]
    for strategy in (one, two):
        optimizer = lambda: tt.GradientAccumulation(keras.optimizers.SGD(0.5), len(pieces))
        _, summed, _ = fit(strategy, dataset(pieces * 2, weights * 2), optimizer=optimizer)
        name = f"{len(pieces)} on {strategy.num_replicas_in_sync}"
        result["accumulated"][name] = apart(union, summed)
print(json.dumps(result))
"""


@pytest.fixture(scope="module")
def two_devices(result_of):
    return result_of(TWO_DEVICES)


REPLICAS = pytest.mark.parametrize(
    "case", ["even", "uneven tokens", "uneven rows", "an empty replica", "a Transformer"]
)


@REPLICAS
def test_two_devices_give_the_weights_of_one(two_devices, case):
    assert two_devices["replicas"] == 2
    assert two_devices[case]["moved"] > 0.01
    assert two_devices[case]["apart"] < 1e-6


@REPLICAS
def test_two_devices_report_the_figures_of_one(two_devices, case):
    one, two = two_devices[case]["figures"]
    names = ("loss", "accuracy", "perplexity")
    assert {*one} == {*two} == {*names, *(f"val_{name}" for name in names)}
    for name in one:
        assert two[name] == pytest.approx(one[name], rel=1e-5), name


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_accumulated_batches_give_the_weights_of_their_union(two_devices, steps, replicas):
    assert two_devices["accumulated"]["moved"] > 0.01
    assert two_devices["accumulated"][f"{steps} on {replicas}"] < 1e-6


# The command as on a machine with two devices: accumulation, validation, a checkpoint.
TRAIN_ON_TWO = """
import sys, tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
from tf_transformer import cli
sizes = "--num-layers=1 --d-model=16 --num-heads=2 --d-ff=32 --dropout-rate=0".split()
batches = "--corpus=copy --batch-tokens=512 --accumulation-steps=2 --validation-steps=2".split()
for devices in ("cpu:0", "cpu:0,cpu:1"):
    train = ["train", f"--run-dir={sys.argv[1]}/{devices}", f"--devices={devices}"]
    assert cli.main([*train, *sizes, *batches, "--steps=3"]) == 0
"""


def test_the_command_trains_alike_on_two_devices(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", TRAIN_ON_TWO, tmp_path], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    runs = [RunDirectory.open(tmp_path / devices) for devices in ("cpu:0", "cpu:0,cpu:1")]
    one, two = (
        [[line[name] for name in ("step", "loss", "val_bleu")] for line in run.log()]
        for run in runs
    )
    assert [step for step, *_ in one] == [2, 3]
    np.testing.assert_allclose(one, two, rtol=1e-5)
    one, two = (run.load_model().model.get_weights() for run in runs)
    for weight, other in zip(one, two, strict=True):
        np.testing.assert_allclose(weight, other, atol=1e-5)


# --- Accumulated gradients ------------------------------------------------------------------


def test_an_accumulating_optimizer_counts_updates_and_keeps_a_part_of_a_group():
    variable = keras.Variable([0.0])
    schedule = tt.NoamSchedule(16, warmup_steps=100)
    optimizer = tt.GradientAccumulation(keras.optimizers.SGD(schedule), 3)
    reached = []
    for gradient in (1.0, 2.0, 6.0, 5.0, 1.0, 0.0, 9.0):
        optimizer.apply([tf.constant([gradient])], [variable])
        reached.append(float(variable.numpy()[0]))
    first = -3.0 * float(schedule(0))  # the mean of 1, 2 and 6
    second = first - 2.0 * float(schedule(1))
    expected = [0, 0, first, first, first, second, second]
    assert reached == pytest.approx(expected, rel=1e-5)
    assert int(optimizer.iterations) == 2
    assert float(optimizer.learning_rate) == float(schedule(2))


def test_an_accumulating_optimizer_makes_the_round_trip_of_its_configuration():
    optimizer = tt.GradientAccumulation(keras.optimizers.SGD(0.25, momentum=0.5), 4)
    twin = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert (twin.steps, twin.inner_optimizer.momentum) == (4, 0.5)
    assert twin.get_config() == optimizer.get_config()


def test_an_accumulating_optimizer_needs_a_step():
    with pytest.raises(ValueError, match="at least 1; received steps=0"):
        tt.GradientAccumulation(keras.optimizers.SGD(), 0)


def test_a_group_with_an_overflow_is_left_out_whole():
    variable = keras.Variable([0.0])
    inner = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0), initial_scale=8.0)
    optimizer = tt.GradientAccumulation(inner, 2)
    for gradient in (np.inf, 8.0, 8.0, 24.0):
        optimizer.apply([tf.constant([gradient])], [variable])
    # The overflow halves the scale to 4: the second group is (2 + 6) / 2.
    assert float(variable.numpy()[0]) == -4.0
    assert int(optimizer.iterations) == 1


# --- It ends --------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [1, 4, 6, 9])
def test_step_limit_ends_at_its_step_whatever_the_period(fit, steps):
    periods = []
    ended = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: periods.append(epoch))
    model = fit(endings.StepLimit(steps), ended)
    assert int(model.optimizer.iterations) == steps
    assert len(periods) == -(-steps // 4), "the last period is validated, whole or not"


def test_step_limit_counts_from_the_first_step_of_the_run(fit):
    fit(endings.StepLimit(5))
    model = fit(endings.StepLimit(7))
    assert int(model.optimizer.iterations) == 7


class Clock(keras.callbacks.Callback):
    """A clock on which a step takes 10 seconds and a validation 25."""

    def __init__(self):
        super().__init__()
        self.now = 1000.0

    def monotonic(self):
        return self.now

    def on_train_batch_end(self, batch, logs=None):
        self.now += 10

    def on_epoch_end(self, epoch, logs=None):
        self.now += 25


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    for module in (endings, logs):
        monkeypatch.setattr(module, "time", types.SimpleNamespace(monotonic=clock.monotonic))
    return clock


# Periods of 4 steps and a validation take 65 seconds.
@pytest.mark.parametrize(("seconds", "steps"), [(120, 7), (130, 8), (175, 10), (195, 12)])
def test_time_limit_is_met_with_the_last_validation(fit, clock, seconds, steps):
    model = fit(clock, endings.TimeLimit(seconds / 60, started=1000.0))
    assert int(model.optimizer.iterations) == steps
    assert clock.now == 1000 + seconds


@pytest.mark.parametrize(
    ("seconds", "steps"),
    [
        (1, 1),  # over before the first step was
        (60, 4),  # over after the first validation, which nobody could foresee
        (90, 4),  # not over, but another step and validation would end beyond
    ],
)
def test_time_limit_that_is_over_is_not_trained_beyond(fit, clock, seconds, steps):
    model = fit(clock, endings.TimeLimit(seconds / 60, started=1000.0))
    assert int(model.optimizer.iterations) == steps


class Interrupt(keras.callbacks.Callback):
    """Sends Ctrl-C in the middle of given steps, counted from 1."""

    def __init__(self, *steps):
        super().__init__()
        self._steps = steps

    def on_train_batch_begin(self, batch, logs=None):
        if int(self.model.optimizer.iterations) + 1 in self._steps:
            signal.raise_signal(signal.SIGINT)


def test_ctrl_c_ends_after_the_step_and_still_validates(fit, capfd):
    before = signal.getsignal(signal.SIGINT)
    validated = []
    stop = endings.StopOnSignal()
    ended = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: validated.append(epoch))
    model = fit(Interrupt(6), stop, ended, endings.StepLimit(50))
    assert stop.signal == signal.SIGINT
    assert int(model.optimizer.iterations) == 6
    assert validated == [0, 1]
    assert signal.getsignal(signal.SIGINT) is before
    assert "once more" in capfd.readouterr().err


@pytest.fixture
def python_handles_ctrl_c():
    """Python's own handler, which a shell takes from what it runs in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("python_handles_ctrl_c")
def test_a_second_ctrl_c_interrupts_at_once(fit):
    class Twice(Interrupt):
        def on_train_batch_begin(self, batch, logs=None):
            super().on_train_batch_begin(batch)
            super().on_train_batch_begin(batch)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        fit(endings.StopOnSignal(), Twice(2), endings.StepLimit(50))
    assert signal.getsignal(signal.SIGINT) is before


class Terminate(Interrupt):
    """Sends SIGTERM instead."""

    def on_train_batch_begin(self, batch, logs=None):
        if int(self.model.optimizer.iterations) + 1 in self._steps:
            signal.raise_signal(signal.SIGTERM)


def test_sigterm_ends_after_the_step_without_a_validation(fit, line_model):
    before = signal.getsignal(signal.SIGTERM)
    stop = endings.StopOnSignal()
    validated = []
    ended = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: validated.append(epoch))
    with pytest.raises(endings.Terminated):
        fit(Terminate(6), ended, stop)
    assert stop.signal == signal.SIGTERM
    assert int(line_model.optimizer.iterations) == 6
    assert validated == [0]
    stop.restore()
    assert signal.getsignal(signal.SIGTERM) is before


def test_sigterm_at_the_end_of_a_period_leaves_its_validation_to_be(fit):
    stop = endings.StopOnSignal()
    validated = []
    ended = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: validated.append(epoch))
    model = fit(Terminate(8), ended, stop)
    assert int(model.optimizer.iterations) == 8
    assert validated == [0, 1]


def test_a_second_sigterm_is_handled_as_before(fit):
    received = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
    try:

        class Twice(Terminate):
            def on_train_batch_begin(self, batch, logs=None):
                super().on_train_batch_begin(batch)
                super().on_train_batch_begin(batch)

        stop = endings.StopOnSignal()
        with pytest.raises(endings.Terminated):
            fit(Twice(2), stop)
        assert received == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_without_ctrl_c_nothing_is_stopped(fit):
    before = signal.getsignal(signal.SIGINT)
    stop = endings.StopOnSignal()
    model = fit(stop, endings.StepLimit(5))
    assert signal.getsignal(signal.SIGINT) is before
    assert not stop.signal
    assert int(model.optimizer.iterations) == 5


# --- What the callbacks leave ---------------------------------------------------------------


def test_translation_bleu_is_the_score_of_the_translations(corpus, fit):
    # Half of the sentences right, half cut short: neither 0 nor 100.
    received, shown = [], []

    def translate(sources):
        received.append(sources)
        return [s if i % 2 else s[: len(s) // 2] for i, s in enumerate(sources)]

    history = []
    fit(
        tt.TranslationBleu(translate, corpus.validation, num_samples=3, show=shown.append),
        keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: history.append(dict(logs))),
        epochs=2,
    )
    sources = list(corpus.validation.sources)
    translations = translate(sources)
    expected = tt.score(translations, list(corpus.validation.targets)).bleu
    assert 0 < expected < 100
    assert [logs["val_bleu"] for logs in history] == [expected, expected]
    assert received[:2] == [sources, sources]
    assert len(shown) == 6
    for line, source, translation in zip(shown[:3], sources, translations, strict=False):
        assert source in line
        assert translation in line


@pytest.mark.parametrize("translation", ["", " "])
def test_a_sample_without_a_translation_says_so(corpus, fit, translation):
    shown = []
    fit(
        tt.TranslationBleu(
            lambda sources: [translation] * len(sources),
            corpus.validation,
            num_samples=1,
            show=shown.append,
        ),
        epochs=1,
    )
    assert shown == [f"  {corpus.validation.sources[0]}  →  (nothing)"]


def scores_of(*values):
    """Puts a made-up BLEU into the logs of each period."""

    def put(epoch, logs):
        logs["val_bleu"] = values[epoch]

    return keras.callbacks.LambdaCallback(on_epoch_end=put)


def test_run_log_has_a_line_of_figures_for_each_validation(fit, clock, tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text('{"step": 0}\n', encoding="utf-8")
    fit(scores_of(3.0, 5.5), clock, logs.RunLog(path, 1000.0 - 60, 0.03125), epochs=2)
    first, *lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    assert first == {"step": 0}, "a resumed run appends"
    assert [line["step"] for line in lines] == [4, 8]
    assert [line["val_bleu"] for line in lines] == [3.0, 5.5]
    assert [line["minutes"] for line in lines] == [2.08, 3.17]  # 60 + 65 and 60 + 130 seconds
    assert [line["learning_rate"] for line in lines] == pytest.approx(
        [5 * 100**-1.5 / 4, 9 * 100**-1.5 / 4]
    ), "of the step to come"
    assert all(np.isfinite(line["loss"]) for line in lines)
    assert [line["padding_share"] for line in lines] == [0.0312, 0.0312]


def test_run_log_counts_the_traces_of_the_training_step(tmp_path):
    path = tmp_path / "log.jsonl"
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    log = logs.RunLog(path, 0.0, 0.0)

    def fit(rows):
        batch = (np.ones((rows, 1)), np.ones((rows, 1)))
        data = tf.data.Dataset.from_tensors(batch)
        model.fit(data, shuffle=False, epochs=2, verbose=0, callbacks=[log])

    fit(2)
    fit(2)
    fit(3)  # such a dataset says how many rows come: another graph
    lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    assert [line["traces"] for line in lines] == [1, 1, 1, 1, 2, 2]


def test_save_checkpoints_keeps_every_score_and_the_best(fit, tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=2)
    fit(scores_of(1.0, 7.0, 7.0, 2.0, 3.0), callbacks.SaveCheckpoints(checkpoints), epochs=5)
    kept = {checkpoint.step: checkpoint.scores["val_bleu"] for checkpoint in checkpoints.all()}
    assert kept == {12: 7.0, 16: 2.0, 20: 3.0}
    assert checkpoints.best().step == 12, "the last of two equals"
    assert checkpoints.latest().step == 20


def test_save_checkpoints_remembers_the_best_of_an_earlier_process(fit, tmp_path):
    # Every period here has a new callback and a new `Checkpoints`, as a new process would.
    for bleu, best in ((9.0, 4), (4.0, 4), (9.5, 12), (9.4, 12)):
        fit(scores_of(bleu), callbacks.SaveCheckpoints(Checkpoints(tmp_path)), epochs=1)
        assert Checkpoints(tmp_path).best().step == best


def test_save_checkpoints_takes_another_figure_to_monitor(fit, tmp_path):
    save = callbacks.SaveCheckpoints(Checkpoints(tmp_path), monitor="val_chrf")

    def put(epoch, logs):
        logs.update(val_bleu=[1.0, 2.0][epoch], val_chrf=[2.0, 1.0][epoch])

    fit(keras.callbacks.LambdaCallback(on_epoch_end=put), save, epochs=2)
    assert Checkpoints(tmp_path).best().step == 4


def test_checkpoints_without_any_score_take_the_newest_for_the_best(fit, tmp_path):
    fit(callbacks.SaveCheckpoints(Checkpoints(tmp_path)), epochs=2)
    assert Checkpoints(tmp_path).best().step == 8


def test_checkpoints_between_validations_carry_position_and_the_best_on(fit, tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=9)
    save = callbacks.SaveCheckpoints(checkpoints, every=2, position=100, made_with={"seed": 1})
    fit(scores_of(7.0, 3.0), save, epochs=2)
    found = [(c.step, c.position, c.scores.get("val_bleu"), c.best_step) for c in checkpoints.all()]
    assert found == [(2, 102, None, None), (4, 104, 7.0, 4), (6, 106, None, 4), (8, 108, 3.0, 4)]
    assert {checkpoint.made_with["seed"] for checkpoint in checkpoints.all()} == {1}
    assert not list(tmp_path.glob("*.1")), "where a validation is due, it alone saves"


@pytest.fixture
def poisoned(line_model):
    """Makes the weights no numbers before a step, and mends them in the end."""
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
def test_a_loss_that_is_no_number_ends_training_and_names_the_last_good_checkpoint(
    fit, poisoned, tmp_path, value
):
    checkpoints = Checkpoints(tmp_path)
    save = callbacks.SaveCheckpoints(checkpoints, every=1)
    with pytest.raises(callbacks.DivergedError) as refusal:
        fit(poisoned(6, value), callbacks.StopOnNan(checkpoints), save)
    for part in ("step 6: the loss is", "step-00000005", "--learning-rate-factor"):
        assert part in str(refusal.value)
    assert checkpoints.latest().step == 5


def test_weights_that_are_no_numbers_are_not_saved(fit, poisoned, tmp_path):
    checkpoints = Checkpoints(tmp_path)
    with pytest.raises(callbacks.DivergedError, match="step 6: weights are no longer finite"):
        fit(poisoned(6), callbacks.SaveCheckpoints(checkpoints, every=1))
    assert checkpoints.latest().step == 5


@pytest.mark.parametrize("ender", ["limit", "signal"])
def test_training_never_ends_between_the_batches_of_an_update(fit, clock, line_model, ender):
    adam = line_model.optimizer
    line_model.compile(tt.GradientAccumulation(keras.optimizers.SGD(0.1), 2), "mse")
    try:
        if ender == "limit":  # over after the 3rd batch of 10 seconds
            fit(clock, endings.TimeLimit(25 / 60, started=1000.0))
        else:  # in the 3rd batch
            begun = []

            def interrupt(batch, logs):
                begun.append(batch)
                if len(begun) == 3:
                    signal.raise_signal(signal.SIGINT)

            once = keras.callbacks.LambdaCallback(on_train_batch_begin=interrupt)
            fit(once, endings.StopOnSignal())
        assert int(line_model.optimizer.iterations) == 2
        assert int(line_model.optimizer.variables[0].numpy()) == 4
    finally:
        line_model.compile(adam, "mse")
