"""The search of a translator, compiled by XLA for batches of a few sizes."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_transformer.inference.flags import has_loop
from tf_transformer.inference.search import SEARCH_SPECS

_SHORTEST = 16  # tokens; shorter sources are padded to it, or XLA would compile four times more


def compiled_search(module: Any, beam_size: int, n_best: int) -> Callable:
    """Return the search of a translator for one beam size; XLA compiles it when it is called.

    The search takes `(text (B,), length_penalty, batch_size)` and returns what `module.beam` does.
    Batches are padded to a few shapes of at most `batch_size` rows; XLA compiles once for each.
    """

    @tf.function(input_signature=SEARCH_SPECS, jit_compile=True, autograph=False)
    def search(source_ids: tf.Tensor, limits: tf.Tensor, length_penalty: tf.Tensor) -> Any:
        if beam_size == 1:
            return module.fixed_greedy(source_ids, limits, length_penalty)
        return module.fixed_beam(source_ids, limits, beam_size, length_penalty, n_best)

    def translate(text: tf.Tensor, length_penalty: tf.Tensor, batch_size: tf.Tensor) -> Any:
        source_ids, limits, *of_source = module.tokenize(text)
        num_rows, length = tf.unstack(tf.shape(source_ids))
        padded_rows = tf.minimum(batch_size, _power_of_two(num_rows)) - num_rows
        padded_length = tf.maximum(_SHORTEST, _power_of_two(length)) - length
        paddings = [[0, padded_rows], [0, padded_length]]
        source_ids = tf.pad(source_ids, paddings, constant_values=module.settings["source_pad_id"])
        found = search(source_ids, tf.pad(limits, [[0, padded_rows]]), length_penalty)
        found = [field[:num_rows] for field in found]

        def in_the_graph() -> Any:
            if beam_size == 1:
                return module.greedy(text, length_penalty)
            return module.beam(text, beam_size, length_penalty, n_best)

        # The graph searches once more where a translation repeats itself.
        loops = tf.reduce_any(has_loop(found[0][:, 0], found[1][:, 0]))
        return tf.cond(loops, in_the_graph, lambda: module.detokenize(*found, *of_source))

    specs = tf.TensorSpec([None], tf.string), tf.TensorSpec([]), tf.TensorSpec([], tf.int32)
    return tf.function(translate, input_signature=specs, autograph=False)


def _power_of_two(size: tf.Tensor) -> tf.Tensor:
    """Return the smallest power of two that is not less than an int32 scalar tensor."""
    powers = tf.constant([1 << exponent for exponent in range(31)])
    return powers[tf.searchsorted(powers, size[None])[0]]
