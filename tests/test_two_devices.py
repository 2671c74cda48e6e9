"""Two devices give the weights and metrics of one, also with accumulated batches."""

import json
import subprocess
import sys

import numpy as np
import pytest
import uneven
from small_models import has_setting, small_config

from tf_transformer.runs.restore import restore_model
from tf_transformer.runs.run_directory import RunDirectory

pytestmark = pytest.mark.slow

# TensorFlow creates its devices once, so this needs a process of its own.
SETUP = (
    """
import copy, json, keras, numpy as np, tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
import tf_transformer as tt
one, two = tf.distribute.get_strategy(), tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
"""
    + uneven.TARGETS
    + """
def batch(*lengths):
    begun, labels = targets(*lengths)
    return {"source_ids": labels.copy(), "target_ids": begun}, labels

def dataset(batches, weights=None):
    # Each replica gets half of the sentences, the first the larger half.
    ids = tf.TensorSpec([None, None], tf.int32)
    signature = (dict.fromkeys(batches[0][0], ids), ids)
    if weights is not None:
        signature = (*signature, tf.TensorSpec([None], tf.float32))
        batches = [(*b, np.full(len(b[1]), w, "float32")) for b, w in zip(batches, weights)]
    # New arrays each time: a prefix model on two devices (TensorFlow 2.21) was seen to leave
    # zeros in an array that a generator had given.
    data = tf.data.Dataset.from_generator(lambda: iter(copy.deepcopy(batches)),
                                          output_signature=signature)
    return data.apply(tf.data.experimental.assert_cardinality(len(batches)))

def sgd():
    return keras.optimizers.SGD(0.5)

def fit(strategy, data, make, optimizer=sgd, scores=False, **options):
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = make()
        loss = tt.SmoothedCrossEntropy(from_statistics=scores)
        metrics = [metric(from_statistics=scores)
                   for metric in (tt.TokenLoss, tt.TokenAccuracy, tt.Perplexity)]
        model.compile(optimizer(), loss, metrics=metrics, jit_compile=False)
    start = [variable.numpy() for variable in model.trainable_variables]
    history = model.fit(data, shuffle=False, verbose=0, **options).history
    return start, [variable.numpy() for variable in model.trainable_variables], history

def apart(some, others):
    return max(float(abs(a - b).max()) for a, b in zip(some, others))
"""
)
LOSS_AND_OPTIMIZER = (
    SETUP
    + """
def transformer():
    return tt.Transformer(tt.TransformerConfig(
        30, 30, num_layers=1, d_model=16, num_heads=4, d_ff=32, dropout_rate=0.0))

def small():
    # The test is of loss, metrics and optimizer; a smaller model is traced sooner.
    source = keras.Input([None], dtype="int32", name="source_ids")
    target = keras.Input([None], dtype="int32", name="target_ids")
    hidden = keras.layers.Embedding(30, 8)(target)
    return keras.Model({"source_ids": source, "target_ids": target},
                       keras.layers.Dense(30)(hidden))

result = {"replicas": two.num_replicas_in_sync}
# Stock Keras needs a first batch that divides evenly among the replicas; a Transformer does not.
cases = {
    "uneven tokens": (small, [batch(9, 8, 9, 1, 2, 1), batch(1, 2, 1, 10)]),
    "an empty replica": (small, [batch(2, 6), batch(7), batch(4)]),
    # A model that is given the labels returns scores instead of logits.
    "a Transformer's scores": (transformer, [
        ({**inputs, "labels": labels}, labels)
        for inputs, labels in (batch(9, 8, 1), batch(5), batch(1, 2, 1, 10))]),
}
for name, (make, batches) in cases.items():
    data = dataset(batches)
    options = dict(epochs=2, validation_data=data, scores="labels" in batches[0][0])
    start, weights, history = fit(one, data, make, **options)
    _, others, other_history = fit(two, data, make, **options)
    result[name] = {"moved": apart(start, weights), "apart": apart(weights, others),
                    "metrics": [history, other_history]}

# Batches whose union is one batch: padded to the same length, as many as fill the groups.
whole = batch(9, 1, 5, 12, 2, 1, 7, 3, 3, 3, 12, 1)
def parts(bounds):
    return [({k: v[a:b] for k, v in whole[0].items()}, whole[1][a:b])
            for a, b in zip(bounds, bounds[1:])]
start, union, _ = fit(one, dataset([whole, whole]), small)
result["accumulated"] = {"moved": apart(start, union)}
for bounds in ([0, 2, 12], [0, 2, 3, 12]):
    batch_parts = parts(bounds)
    tokens = [int((labels != 0).sum()) for _, labels in batch_parts]
    weights = [len(batch_parts) * count / sum(tokens) for count in tokens]
    for strategy in (one, two):
        optimizer = lambda: tt.GradientAccumulation(sgd(), len(batch_parts))
        _, summed, _ = fit(strategy, dataset(batch_parts * 2, weights * 2), small, optimizer)
        name = f"{len(batch_parts)} on {strategy.num_replicas_in_sync}"
        result["accumulated"][name] = apart(union, summed)
print(json.dumps(result))
"""
)


METRICS = {f"{part}{name}" for part in ("", "val_") for name in ("loss", "accuracy", "perplexity")}


def assert_two_are_as_one(result):
    assert result["moved"] > 0.01
    assert result["apart"] < 1e-6
    one, two = result["metrics"]
    assert {*one} == {*two} == METRICS
    for name in one:
        assert two[name] == pytest.approx(one[name], rel=1e-5), name


def test_two_devices_give_the_weights_and_metrics_of_one(result_of):
    result = result_of(LOSS_AND_OPTIMIZER)
    assert result.pop("replicas") == 2
    accumulated = result.pop("accumulated")
    assert len(result) == 3
    for case in result.values():
        assert_two_are_as_one(case)
    # Accumulated batches give the weights of their union.
    assert accumulated.pop("moved") > 0.01 and len(accumulated) == 4
    assert max(accumulated.values()) < 1e-6, accumulated


# Each architecture: a device with two sentences, one without any, and uneven ones.
ARCHITECTURE = (
    SETUP
    + """
from tf_transformer.models.architectures import ARCHITECTURES, build_model

def make():
    model = build_model(ARCHITECTURES[NAME].config(**CONFIG))
    if hasattr(model, "_draw"):
        # The same tokens on any device, and another share of them on each.
        def draw(token_ids, is_token):
            drawn = is_token & (token_ids % 3 < 2)
            return drawn, tf.where(drawn & (token_ids % 2 == 0), model.config.mask_id, token_ids)
        model._draw = draw
    return model

batches = [batch(9, 8, 1), batch(5), batch(1, 2, 1, 10)]
data = dataset(batches)
start, weights, history = fit(one, data, make, validation_data=data)
_, others, other_history = fit(two, data, make, validation_data=data)
result = {"moved": apart(start, weights), "apart": apart(weights, others),
          "metrics": [history, other_history]}

print(json.dumps(result))
"""
)


# One of each family but the Transformer, which is above.
@pytest.mark.parametrize("name", ["bahdanau", "masked_lm"])
def test_two_devices_train_other_architectures_as_one_does(result_of, name):
    sizes = {"source_vocab_size": 30, "target_vocab_size": 30, "dropout_rate": 0.0}
    if has_setting(name, "num_layers"):
        sizes["num_layers"] = 1
    config = json.dumps(small_config(name, **sizes).to_dict())
    given = f"NAME, CONFIG = {name!r}, json.loads({config!r})"
    result = result_of(f"import json\n{given}\n{ARCHITECTURE}")
    assert_two_are_as_one(result)


# Optimizers that are not built before `fit`, as Keras users have them.
UNBUILT = (
    SETUP
    + """
ids = np.random.default_rng(0).integers(4, 16, (8, 5))
inputs = {"source_ids": ids, "target_ids": ids}

class Small(keras.Model):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = keras.layers.Embedding(16, 8), keras.layers.Dense(16)
        self.build()
    def build(self, input_shape=None):
        self.embedding.build()
        self.head.build((None, None, 8))
    def call(self, inputs):
        return self.head(self.embedding(inputs["target_ids"]))
    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        pass  # as in `Transformer`: Keras builds no optimizer

def transformer():
    return tt.Transformer(tt.TransformerConfig(
        16, 16, num_layers=1, d_model=8, num_heads=2, d_ff=8, dropout_rate=0.0))

def trained(make, optimizer, build):
    keras.utils.set_random_seed(0)
    with two.scope():
        model = make()
        model.compile(optimizer(), tt.SmoothedCrossEntropy(), jit_compile=False)
        if build:
            model.optimizer.build(model.trainable_variables)
    start = model.get_weights()
    data = tf.data.Dataset.from_tensors((inputs, ids)).repeat(4)
    model.fit(data, shuffle=False, verbose=0)
    return start, model.get_weights(), int(model.optimizer.iterations.numpy())

def scaled():
    return keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))

result = {}
for name, make, optimizer in (
    ("accumulated", transformer, lambda: tt.GradientAccumulation(
        tt.Adam(0.1, global_clipnorm=1.0), 2)),
    ("scaled", Small, lambda: tt.GradientAccumulation(scaled(), 2)),
):
    start, weights, updates = trained(make, optimizer, build=False)
    _, expected, _ = trained(make, optimizer, build=True)
    result[name] = [updates, apart(start, weights), apart(weights, expected)]
print(json.dumps(result))
"""
)


def test_an_optimizer_that_is_not_built_makes_the_updates_of_one_that_is(result_of):
    result = result_of(UNBUILT)
    assert len(result) == 2
    for updates, moved, apart in result.values():
        assert updates == 2 and moved > 0.001 and apart < 1e-6


# The command on two devices: accumulation, validation, a checkpoint; there also with the logits
# computed in parts, which must make no difference.
TRAIN_ON_TWO = """
import sys, tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
from tf_transformer import cli
sizes = "--num-layers=1 --d-model=16 --num-heads=2 --d-ff=32".split()
sizes += "--dropout-rate=0 --attention-dropout-rate=0".split()
batches = "--corpus=copy --batch-tokens=512 --accumulation-steps=2 --validation-steps=2".split()
# Gradients that are zero but for rounding (biases of keys) move weights by the learning rate.
batches += ["--learning-rate=0.001", "--warmup-steps=100"]
for devices, logits in (("cpu:0", []), ("cpu:0,cpu:1", ["--chunked-logits"])):
    train = ["train", f"--run-dir={sys.argv[1]}/{devices}", f"--devices={devices}"]
    assert cli.main([*train, *sizes, *batches, *logits, "--steps=3"]) == 0
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
    one, two = (restore_model(run).model.get_weights() for run in runs)
    for weight, other in zip(one, two, strict=True):
        np.testing.assert_allclose(weight, other, atol=1e-5)
