"""Optimizers under `MirroredStrategy` without `optimizer.build`, as Keras users do."""

import pytest

pytestmark = pytest.mark.slow

PLAIN = {"adam": "'adam'", "our Adam": "tt.Adam(0.1)"}
# The small model is traced sooner.
CASES = [
    ("Transformer", "our Adam", "tt.Adam(0.1, global_clipnorm=1.0)"),
    ("small", "Adam", "keras.optimizers.Adam(0.1)"),
    ("small", "LossScaleOptimizer",
     "keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))"),
]  # fmt: skip
# TensorFlow creates its devices once in a process, so this needs one of its own.
UNBUILT = f"""
import json, keras, numpy as np, tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
import tf_transformer as tt
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
ids = np.random.default_rng(0).integers(4, 16, (8, 5))
inputs = {{"source_ids": ids, "target_ids": ids}}

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

def fit(model):
    data = tf.data.Dataset.from_tensors((inputs, ids)).repeat(4)
    model.fit(data, shuffle=False, verbose=0)

def trained(make, optimizer, build):
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = make()
        model.compile(eval(optimizer), tt.SmoothedCrossEntropy(), jit_compile=False)
        if build:
            model.optimizer.build(model.trainable_variables)
    start = model.get_weights()
    fit(model)
    return start, model.get_weights(), int(model.optimizer.iterations.numpy())

def apart(some, others):
    return max(float(abs(a - b).max()) for a, b in zip(some, others))

result = {{}}
makers = {{"small": Small, "Transformer": transformer}}
for case, name, optimizer in {CASES}:
    optimizer = f"tt.GradientAccumulation({{optimizer}}, 2)"
    start, weights, updates = trained(makers[case], optimizer, build=False)
    result[f"{{case}}, {{name}}"] = {{"updates": updates, "moved": apart(start, weights)}}
    if case == "Transformer":
        _, expected, _ = trained(transformer, optimizer, build=True)
        result["apart"] = apart(weights, expected)
for name, optimizer in {PLAIN}.items():
    start, weights, updates = trained(transformer, optimizer, build=False)
    _, expected, _ = trained(transformer, optimizer, build=True)
    result[name] = {{"updates": updates, "moved": apart(start, weights),
                    "apart": apart(weights, expected)}}
print(json.dumps(result))
"""


@pytest.fixture(scope="module")
def unbuilt(result_of):
    return result_of(UNBUILT)


@pytest.mark.parametrize(("case", "name"), [case[:2] for case in CASES])
def test_an_unbuilt_optimizer_accumulates_on_two_replicas(unbuilt, case, name):
    found = unbuilt[f"{case}, {name}"]
    assert found["updates"] == 2
    assert found["moved"] > 0.01
    assert unbuilt["apart"] < 1e-6, "a built one makes the same updates"


@pytest.mark.parametrize("name", PLAIN)
def test_a_transformer_trains_with_an_unbuilt_optimizer(unbuilt, name):
    assert unbuilt[name]["updates"] == 4
    assert unbuilt[name]["moved"] > 0.001
    assert unbuilt[name]["apart"] < 1e-6
