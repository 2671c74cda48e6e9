"""What tests run in processes of their own: training on two devices, or as one of two workers.

TensorFlow makes its devices once in a process, so that the tests themselves have one.
"""

import copy
import pathlib

import keras
import numpy as np
import tensorflow as tf
from small_models import has_setting, small_config
from worker_processes import copy_task_options

import tf_transformer as tt
from tf_transformer import cli
from tf_transformer.machine import plain_graphs
from tf_transformer.models.architectures import build_model

RANDOM = np.random.default_rng(0)
VOCAB_SIZE = 30


def script(function, *arguments):
    """Source code that calls a function of this file, and prints what it returns as JSON."""
    folder = str(pathlib.Path(__file__).parent)
    return (
        f"import json, sys\nsys.path.insert(0, {folder!r})\nimport replicas\n"
        f"print(json.dumps(replicas.{function.__name__}(*{list(map(str, arguments))!r})))"
    )


def two_strategies():
    """Strategies of one device, and of two."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    return tf.distribute.get_strategy(), tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def batch(*lengths):
    """Inputs and labels, with a row of random ids for each length."""
    labels = np.zeros((len(lengths), max(lengths)), "int32")
    for row, length in zip(labels, lengths, strict=True):
        row[:length] = RANDOM.integers(4, VOCAB_SIZE, length)
    begun = np.concatenate([np.full((len(lengths), 1), 2), labels[:, :-1]], axis=1)
    return {"source_ids": labels.copy(), "target_ids": begun.astype("int32")}, labels


def union(batches):
    """One batch with the rows of all, padded to the same length."""
    length = max(labels.shape[1] for _, labels in batches)

    def joined(arrays):
        return np.concatenate([np.pad(a, ((0, 0), (0, length - a.shape[1]))) for a in arrays])

    inputs = {name: joined([x[name] for x, _ in batches]) for name in batches[0][0]}
    return inputs, joined([labels for _, labels in batches])


def dataset(batches):
    ids = tf.TensorSpec([None, None], tf.int32)
    # New arrays each time: a prefix model on two devices (TensorFlow 2.21) was seen to leave
    # zeros in an array that a generator had given.
    data = tf.data.Dataset.from_generator(
        lambda: iter(copy.deepcopy(batches)),
        output_signature=(dict.fromkeys(batches[0][0], ids), ids),
    )
    return data.apply(tf.data.experimental.assert_cardinality(len(batches)))


class Small(keras.Model):
    """Loss, metrics and optimizer are tested; a small model is traced sooner."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = keras.layers.Embedding(VOCAB_SIZE, 8), keras.layers.Dense(30)
        self.build()

    def build(self, input_shape=None):
        self.embedding.build()
        self.head.build((None, None, 8))

    def call(self, inputs):
        return self.head(self.embedding(inputs["target_ids"]))

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        pass  # as in `Transformer`: Keras builds no optimizer, and takes uneven first batches


def small_model(architecture, dropout_rate=0.0, **settings):
    """A model of one layer; a masked language model draws the same tokens on any device."""
    sizes = {"source_vocab_size": VOCAB_SIZE, "target_vocab_size": VOCAB_SIZE, **settings}
    if has_setting(architecture, "num_layers"):
        sizes["num_layers"] = 1
    model = build_model(small_config(architecture, dropout_rate=dropout_rate, **sizes))
    if hasattr(model, "_draw"):

        def draw(token_ids, is_token):
            # The first ones, as many as it would draw, and another share of them on each device.
            number = tf.reduce_sum(tf.cast(is_token, "float32"), axis=1, keepdims=True)
            number = tf.maximum(tf.floor(0.15 * number + 0.5), 1.0)
            drawn = is_token & (tf.cast(tf.range(tf.shape(token_ids)[1]), number.dtype) < number)
            masked = drawn & (token_ids % 2 == 0)
            return drawn, tf.where(masked, model.config.mask_id, token_ids)

        model._draw = draw
    return model


def sgd():
    return keras.optimizers.SGD(0.5)


def scaled_sgd():
    # The scale is a power of two, so that it does not change the updates.
    return tt.LossScaleOptimizer(sgd())


def fit(strategy, make, data, optimizer=sgd, step=None):
    """Trains; returns the weights before and after, and the metrics."""
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model, metrics = make(), [tt.TokenLoss(), tt.TokenAccuracy(), tt.Perplexity()]
        model.compile(optimizer(), tt.SmoothedCrossEntropy(), metrics=metrics, jit_compile=False)
        if step is not None:
            model.optimizer.build(model.trainable_variables)
            model.train_step = tt.TrainingStep(model, metrics, **step)
    start = [variable.numpy() for variable in model.trainable_variables]
    steps = len(data) // (step or {}).get("accumulation", 1)
    options = {"steps_per_epoch": steps, "validation_data": data, "shuffle": False, "verbose": 0}
    with plain_graphs():
        history = model.fit(data.repeat(), epochs=2, **options).history
    return start, [variable.numpy() for variable in model.trainable_variables], history


def apart(some, others):
    return max(float(abs(a - b).max()) for a, b in zip(some, others, strict=True))


def compare(strategy, make, batches, **options):
    """How far training moves the weights, and how far those of a strategy are from one device's.

    One device trains by Keras' own step, on the unions of accumulated batches.
    """
    _, weights, history = fit(strategy, make, dataset(batches), **options)
    number = options.pop("step", {}).get("accumulation", 1)
    unions = [union(batches[n : n + number]) for n in range(0, len(batches), number)]
    with tf.device("CPU:0"):
        start, expected, expected_history = fit(
            tf.distribute.get_strategy(), make, dataset(unions), **options
        )
    return {
        "moved": apart(start, expected), "apart": apart(weights, expected),
        "metrics": [history, expected_history],
        "weights": [weight.tobytes().hex() for weight in weights],
    }  # fmt: skip


def on_two_devices():
    """Compares two devices with one."""
    _, two = two_strategies()
    # Each replica gets half of the sentences, the first the larger half; one may get none.
    batches = [batch(9, 8, 1), batch(5), batch(1, 2, 1, 10)]
    result = {
        "uneven tokens": compare(two, Small, [batch(9, 8, 9, 1, 2, 1), batch(1, 2, 1, 10)]),
        "an empty replica": compare(two, Small, [batch(2, 6), batch(7), batch(4)]),
        # One of each family.
        "transformer": compare(two, lambda: small_model("transformer"), batches),
        "bahdanau": compare(two, lambda: small_model("bahdanau"), batches),
        "masked_lm": compare(two, lambda: small_model("masked_lm"), batches),
    }
    step = {"accumulation": 3}
    result["accumulated"] = compare(
        two, lambda: small_model("transformer"), batches, optimizer=scaled_sgd, step=step
    )
    return result


def dropout_on_two_devices():
    """The logits of two calls in training, of each replica of two devices and then of one."""
    from tf_transformer.training.distribution import seeds_of, separate_seeds

    def draws(strategy):
        keras.utils.set_random_seed(0)
        with strategy.scope():
            model = small_model("transformer", dropout_rate=0.5)
        local, ids = strategy.experimental_local_results, tf.fill([3, 5], 7)

        def states():
            return [[s.numpy().tolist() for s in local(v.value)] for v in seeds_of(model)]

        before = [v.numpy().tolist() for v in seeds_of(model)]
        separate_seeds(model)
        assert [v.numpy().tolist() for v in seeds_of(model)] == before, "what a checkpoint has"

        @tf.function
        def draw():
            return model({"source_ids": ids, "target_ids": ids}, training=True)

        logits = [local(strategy.run(draw)) for _ in range(2)]
        stood = states()
        for variable in seeds_of(model):
            variable.assign(variable.numpy())  # as a checkpoint restores it
        separate_seeds(model)
        assert states() == stood, "a run goes on as it would have"
        return [[replica.numpy().tolist() for replica in found] for found in logits]

    one, two = two_strategies()
    return [draws(two), draws(one)]


def xla_on_two_devices(architecture):
    """Compares the step compiled by XLA on two devices with Keras' own on one."""
    _, two = two_strategies()
    batches = [batch(9, 8, 1, 2), batch(9, 2, 1, 1), batch(3, 3, 3, 9)]

    def clipped():
        return tt.Adam(0.01, epsilon=1e-3, global_clipnorm=0.1)

    step, make = {"jit_compile": True}, lambda: small_model(architecture)
    return compare(two, make, batches, optimizer=clipped, step=step)


def as_worker():
    """Trains with the other worker, and then alone, on the same batches."""
    from tf_transformer.training.cluster import Cluster
    from tf_transformer.training.distribution import strategy_for
    from tf_transformer.training.workers import Workers

    cluster = Cluster.from_environment()
    cluster.wait_for_workers()
    workers = Workers(strategy_for(None, cluster))
    # Uneven tokens, uneven batch sizes, a worker without a sentence, a smaller last batch.
    batches = [batch(9, 1, 8, 1, 9, 2), batch(2, 2, 8), batch(7), batch(4, 9)]
    shared = iter(workers.strategy.experimental_distribute_dataset(dataset(batches)))
    local = workers.strategy.experimental_local_results
    result = {
        "1": compare(workers.strategy, Small, batches),
        "2": compare(
            workers.strategy, lambda: small_model("transformer"), batches, step={"accumulation": 2}
        ),
        "mine": [local(next(shared)[1])[0].numpy().tolist() for _ in batches],
        "all": [labels.tolist() for _, labels in batches],
        "agreed": [
            workers.all_reduce_max([3, 7][workers.index]),
            workers.broadcast([b"chief", b""][workers.index]).decode(),
        ],
    }
    workers.all_reduce_max(0)  # or one would wait for the other, which has ended
    return result


def command_on_two_devices(folder):
    """Trains on one and on two devices, with the files of `write_copy_task` in a folder."""
    two_strategies()
    options = copy_task_options(
        pathlib.Path(folder), "--steps=3", "--dropout-rate=0", "--attention-dropout-rate=0",
        "--batch-tokens=512", "--accumulation-steps=2", "--validation-steps=2",
        # Gradients that are zero but for rounding (biases of keys) move weights by the rate.
        "--learning-rate=0.001", "--warmup-steps=100",
    )  # fmt: skip
    for devices, together in (("cpu:0", 1), ("cpu:0,cpu:1", 2)):
        train = ["train", f"--run-dir={folder}/{devices}", f"--devices={devices}"]
        assert cli.main([*train, *options, f"--steps-per-execution={together}"]) == 0


def optimizers_on_two_devices():
    """Updates a variable with the gradients that replicas make of their parts of each batch."""
    one, two = two_strategies()

    def trained(strategy, make, shape, batches, gradient_of):
        with strategy.scope():
            variable, optimizer = keras.Variable(np.zeros(shape)), make()
            optimizer.build([variable])

        @tf.function
        def step(batch):
            def replica():
                context = tf.distribute.get_replica_context()
                mine = slice(context.replica_id_in_sync_group, None, context.num_replicas_in_sync)
                optimizer.apply([gradient_of(batch, mine)], [variable])

            strategy.run(replica)

        for batch in batches:
            step(tf.constant(batch, "float32"))
        return variable, optimizer

    def total(batch, mine):
        return tf.reduce_sum(batch[mine], axis=0)

    def looked_up(strategy, dense=False):
        # Rows of one replica are some of the other's, and one twice.
        def gradient(batch, mine):
            rows = tf.reshape(tf.constant([[0, 1, 1], [1, 2, 0]])[mine], [-1])
            values = tf.reshape(batch[mine], [-1, 3])
            if dense:
                return tf.math.unsorted_segment_sum(values, rows, 4)
            return tf.IndexedSlices(values, rows, tf.constant([4, 3]))

        def make():
            return tt.Adam(0.1, weight_decay=0.5)

        batches = np.random.default_rng(1).normal(size=(4, 2, 3, 3))
        variable, _ = trained(strategy, make, (4, 3), batches, gradient)
        return variable.numpy().tolist()

    def after_overflow(replica, in_float16):
        # One update with an infinite gradient, and one without.
        def make():
            adam = tt.Adam(0.1, global_clipnorm=2.0)
            return tt.LossScaleOptimizer(adam, initial_scale=8.0) if in_float16 else adam

        good, bad = np.ones((2, 2, 2))
        bad[replica, 1] = np.inf
        found = []
        for batches in ([bad], [bad, good]):
            variable, optimizer = trained(two, make, 2, batches, total)
            weights = [w.numpy().tolist() for w in two.experimental_local_results(variable.value)]
            scale = float(optimizer.dynamic_scale.numpy()) if in_float16 else None
            found.append([weights, scale, int(optimizer.iterations.numpy())])
        return found

    return {
        "looked up": [looked_up(one, dense=True), looked_up(one), looked_up(two)],
        "overflow": [after_overflow(r, in_float16) for in_float16 in (1, 0) for r in (0, 1)],
    }
