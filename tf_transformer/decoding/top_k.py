"""Functions that find the k largest values of each row faster than `tf.math.top_k` in a search."""

import tensorflow as tf

BLOCK_SIZE = 64  # the square root of 4,096 subwords: as many blocks as values in a block
_NEG_INF = float("-inf")


def blockwise_top_k(
    values: tf.Tensor, k: int | tf.Tensor, offsets: tf.Tensor, group: int | tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return `tf.math.top_k` of groups of rows with a large vocabulary, from their best blocks.

    The k largest values of a group lie in the k blocks with the largest maxima. If values are
    equal, the one with the lower index comes first, as in `tf.math.top_k`.

    Args:
        values: float `(N, V)`, V known.
        k: At most `group * V`.
        offsets: float `(N, 1)`, added to all values of a row.
        group: The number of consecutive rows in a group.

    Returns:
        the largest values, offsets included, and their indices among the `group * V` values, int32,
        both `(N / group, k)`.
    """
    blocks = _blocks(values)
    if blocks is None:
        return tf.math.top_k(tf.reshape(values + offsets, [-1, group * values.shape[-1]]), k)
    num_blocks, width = blocks.shape[1:]
    maxima = tf.reshape(tf.reduce_max(blocks, axis=-1) + offsets, [-1, group * num_blocks])
    k_blocks = tf.minimum(k, group * num_blocks)
    best_blocks = tf.sort(tf.math.top_k(maxima, k_blocks)[1], axis=-1)
    by_group = tf.reshape(blocks, [-1, group * num_blocks, width])
    candidates = tf.gather(by_group, best_blocks, batch_dims=1)
    offsets = tf.gather(tf.reshape(offsets, [-1, group]), best_blocks // num_blocks, batch_dims=1)
    candidates += offsets[..., None]
    best, indices = tf.math.top_k(tf.reshape(candidates, [-1, k_blocks * width]), k)
    in_blocks = tf.gather(best_blocks, indices // width, batch_dims=1) * width + indices % width
    size, padded = values.shape[-1], num_blocks * width
    if padded == size:
        return best, in_blocks
    return best, in_blocks // padded * size + tf.minimum(in_blocks % padded, size - 1)


def blockwise_argmax(values: tf.Tensor) -> tf.Tensor:
    """Return the index of the first maximum of each row, int32 `(N,)`.

    TensorFlow's `argmax` of values `(N, V)` takes three times as long.
    """
    blocks = _blocks(values)
    if blocks is None:
        return tf.argmax(values, axis=-1, output_type=tf.int32)
    maxima = tf.reduce_max(blocks, axis=-1)
    best_blocks = tf.argmax(maxima, axis=-1, output_type=tf.int32)
    candidates = tf.gather(blocks, best_blocks, batch_dims=1)
    return best_blocks * BLOCK_SIZE + tf.argmax(candidates, axis=-1, output_type=tf.int32)


def largest_log_prob(logits: tf.Tensor, allowed: tf.Tensor | None = None) -> tf.Tensor:
    """Return the log-probability of the most probable token of each row, float32 `(N,)`.

    `allowed` are the logits with minus infinity at tokens that are forbidden.
    """
    # oneDNN's softmax, which TensorFlow calls where it can, takes less time than exponentials.
    largest = tf.math.log(tf.reduce_max(tf.nn.softmax(logits), axis=-1))
    if allowed is None or allowed is logits:
        return largest
    return largest + tf.reduce_max(allowed, axis=-1) - tf.reduce_max(logits, axis=-1)


def _blocks(values: tf.Tensor) -> tf.Tensor | None:
    """Return values `(N, V)` in blocks of 64, padded with minus infinity; None if V is small."""
    size = values.shape[-1]
    if size is None or size < 8 * BLOCK_SIZE:
        return None
    if padding := -size % BLOCK_SIZE:
        values = tf.pad(values, [[0, 0], [0, padding]], constant_values=_NEG_INF)
    return tf.reshape(values, [-1, (size + padding) // BLOCK_SIZE, BLOCK_SIZE])
