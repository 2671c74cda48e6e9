"""Two workers train exactly what one process does, played by two processes of this machine."""

import json

import pytest
import uneven
from worker_processes import end, start_pair

from tf_transformer.errors import ConfigError
from tf_transformer.training.distribution import Workers, strategy_for

# Each worker trains with the other, and then alone, on the same batches.
EXACT = (
    """
import json, keras, numpy as np, tensorflow as tf
from tf_transformer.training.cluster import Cluster
from tf_transformer.training.distribution import Workers, strategy_for
cluster = Cluster.from_environment()
cluster.wait_for_workers()
workers = Workers(strategy_for(None, cluster))
import tf_transformer as tt
index = workers.index
"""
    + uneven.TARGETS
    + """

# Uneven tokens, uneven batch sizes, a worker without a sentence, a smaller last batch.
batches = [targets(*lengths) for lengths in ([9, 1, 8, 1, 9, 2], [2, 2, 8], [7], [4, 9])]
ids = tf.TensorSpec([None, None], tf.int32)
data = tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=(ids, ids))
data = data.apply(tf.data.experimental.assert_cardinality(len(batches)))

# The weights that `TokenBatches` gives two batches of one update.
counts = [int((labels > 0).sum()) for _, labels in batches]
of_pair = np.repeat(np.add.reduceat(counts, [0, 2]), 2)
weights = [np.full(len(b[1]), 2 * n / m, "float32")
           for b, n, m in zip(batches, counts, of_pair)]
weighted = tf.data.Dataset.from_generator(
    lambda: ((*b, w) for b, w in zip(batches, weights)),
    output_signature=(ids, ids, tf.TensorSpec([None], tf.float32)))
weighted = weighted.apply(tf.data.experimental.assert_cardinality(len(batches)))

class Small(keras.Sequential):
    # As in Transformer; a smaller model is traced sooner.
    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        pass

def fit(strategy, optimizer=lambda: keras.optimizers.SGD(0.5), data=data):
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = Small([keras.Input([None]), keras.layers.Embedding(30, 8), keras.layers.Dense(30)])
        model.compile(optimizer(), tt.SmoothedCrossEntropy(), jit_compile=False,
                      metrics=[tt.TokenLoss(), tt.Perplexity()])
    start = [v.numpy() for v in model.trainable_variables]
    history = model.fit(data, shuffle=False, verbose=0, epochs=2, validation_data=data).history
    return start, [v.numpy() for v in model.trainable_variables], history

def after_overflow():
    # An infinite gradient on the second worker alone, in one of two updates.
    with workers.strategy.scope():
        variable = keras.Variable(0.0)
        optimizer = tt.LossScaleOptimizer(keras.optimizers.SGD(1.0), initial_scale=8.0)
        optimizer.build([variable])
    for gradient in (np.inf, 8.0):
        mine = tf.constant(gradient if index else 8.0)
        workers.strategy.run(tf.function(lambda: optimizer.apply([mine], [variable])))
    return [float(variable.numpy()), float(optimizer.dynamic_scale.numpy())]

def in_pairs(strategy):
    sgd = lambda: tt.GradientAccumulation(keras.optimizers.SGD(0.5), 2)
    return fit(strategy, sgd, weighted)

start, together, history = fit(workers.strategy)
_, accumulated, _ = in_pairs(workers.strategy)
mine = iter(workers.strategy.experimental_distribute_dataset(data))
local = workers.strategy.experimental_local_results
mine = [local(next(mine)[1])[0].numpy().tolist() for _ in batches]
overflowed = after_overflow()
agreed = [workers.all_reduce_max([3, 7][index]), workers.broadcast([b"chief", b""][index])]
with tf.device("CPU:0"):
    _, alone, of_one = fit(tf.distribute.get_strategy())
    _, accumulated_alone, _ = in_pairs(tf.distribute.get_strategy())
apart = lambda some, others: max(float(abs(a - b).max()) for a, b in zip(some, others))
print(json.dumps({
    "moved": {1: apart(start, alone), 2: apart(start, accumulated_alone)}, "agreed": str(agreed),
    "overflowed": overflowed,
    "apart": {1: apart(together, alone), 2: apart(accumulated, accumulated_alone)},
    "metrics": [history, of_one], "mine": mine, "all": [b[1].tolist() for b in batches],
    "weights": {n: [w.tobytes().hex() for w in found]
                for n, found in ((1, together), (2, accumulated))}}))
workers.all_reduce_max(0)
"""
)


@pytest.fixture(scope="module")
def exact():
    pair = start_pair(["-c", EXACT], ["-c", EXACT])
    return [json.loads(end(process, 0)[0].splitlines()[-1]) for process in pair]


@pytest.mark.slow
@pytest.mark.parametrize("batches_in_update", ["1", "2"])
def test_workers_have_the_weights_of_one_process(exact, batches_in_update):
    one, other = (worker["weights"][batches_in_update] for worker in exact)
    assert one == other
    for worker in exact:
        assert worker["moved"][batches_in_update] > 0.01
        assert worker["apart"][batches_in_update] < 1e-5


@pytest.mark.slow
def test_an_overflow_of_one_worker_drops_the_update_of_all(exact):
    # The second update, of which each worker has 8, at half the scale.
    assert [worker["overflowed"] for worker in exact] == [[-4.0, 4.0]] * 2


@pytest.mark.slow
def test_each_sentence_is_trained_by_one_worker(exact):
    # If both trained all of them, the weights would be the same, for twice the work.
    (one, other), batches = (worker["mine"] for worker in exact), exact[0]["all"]
    assert [sorted(a + b) for a, b in zip(one, other, strict=True)] == list(map(sorted, batches))
    assert [len(sentences) for sentences in one] == [3, 2, 1, 1]


@pytest.mark.slow
def test_workers_report_the_metrics_of_one_process_and_agree_on_values(exact):
    for worker in exact:
        together, alone = worker["metrics"]
        assert sorted(together) == ["loss", "perplexity", "val_loss", "val_perplexity"]
        for name, values in alone.items():
            assert together[name] == pytest.approx(values, abs=1e-4)
        assert worker["agreed"] == "[7, b'chief']"


def test_one_process_agrees_with_itself():
    workers = Workers(strategy_for("CPU:0"))
    assert (workers.index, workers.count, workers.is_chief, workers.num_gpus) == (0, 1, True, 0)
    assert workers.all_reduce_max(5) == 5 and workers.broadcast(b"chief") == b"chief"


@pytest.mark.parametrize("devices", ["7", "0", "cpu,gpu:9", "tpu", ""])
def test_missing_devices_are_refused(devices):
    with pytest.raises(ConfigError, match=r"--devices: no .* here, only cpu:0") as error:
        strategy_for(devices)
    assert "\n" not in str(error.value)
