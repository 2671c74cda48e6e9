"""Training steps that compute the parts of a batch at the same time, each on its own core."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_transformer.training.distribution import part_seed, seeds_of


def train_in_parts(
    model: keras.Model, metrics: Sequence[keras.metrics.Metric], num_parts: int
) -> None:
    """Let `fit` split each batch into parts, and add up their gradients and metrics.

    Operations of a small batch are too short to be shared among threads, but the parts are
    independent. Loss, gradients and metrics are those of the whole batch, but for rounding. A
    `MaskedLanguageModel` is the exception: its parts are weighted by their real tokens, not by
    those that they drew.

    Args:
        model: A compiled `SequenceModel` whose loss is a mean over real tokens.
        metrics: The compiled metrics. Their variables are sums over tokens.
        num_parts: Number of parts. Part i has every `num_parts`-th sentence from sentence i on.
    """
    seeds, sums = seeds_of(model), [v for metric in metrics for v in metric.variables]

    # Traced once for all parts. It assigns no variable, or the parts would wait for each other.
    @tf.function(autograph=False)
    def compute(data: Any, share: tf.Tensor, seed_values: list[tf.Tensor]) -> tuple[list, list]:
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        values = [*seed_values, *map(tf.zeros_like, sums)]
        with keras.StatelessScope(zip([*seeds, *sums], values, strict=True)) as scope:
            with tf.GradientTape() as tape:
                y_pred = model(x, training=True)
                loss = share * model.compute_loss(x, y, y_pred, sample_weight)
                loss = model.optimizer.scale_loss(loss)
            gradients = tape.gradient(loss, model.trainable_weights)
            model.compute_metrics(x, y, y_pred, sample_weight)
        gradients = [g if g is None else tf.convert_to_tensor(g) for g in gradients]
        return gradients, [scope.get_current_value(v) for v in (*seeds, *sums)]

    def train_step(data: Any) -> dict[str, Any]:
        parts = [
            tf.nest.map_structure(lambda t, i=i: t[i::num_parts], data) for i in range(num_parts)
        ]
        is_token = [tf.not_equal(part[1], model.config.pad_id) for part in parts]
        counts = tf.stack([tf.math.count_nonzero(each, dtype=tf.float32) for each in is_token])
        shares = tf.unstack(counts / tf.maximum(tf.reduce_sum(counts), 1.0))
        results = [
            compute(part, share, [part_seed(seed.value, i) for seed in seeds])
            for i, (part, share) in enumerate(zip(parts, shares, strict=True))
        ]
        gradients, states = zip(*results, strict=True)
        for seed, value in zip(seeds, states[0], strict=False):
            seed.assign(value)
        for total, *values in zip(sums, *(state[len(seeds) :] for state in states), strict=True):
            total.assign_add(tf.add_n(values))
        total = [None if g[0] is None else tf.add_n(g) for g in zip(*gradients, strict=True)]
        model.optimizer.apply(total, model.trainable_weights)
        return model.get_metrics_result()

    model.train_step = train_step
