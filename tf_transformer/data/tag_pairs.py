"""Tags of a text that form pairs."""

import tensorflow as tf

from tf_transformer.data.pieces import CLOSING_TAG, OPENING_TAG, TAG_NAME


def openers(pieces: tf.Tensor) -> tf.Tensor:
    """Return for each of the pieces `(B, P)` that closes a pair of tags which one opens it, or -1.

    The nesting of a tag is that of tags of its name: up to it if it opens, otherwise before it. A
    tag closes the last one that opens in the same nesting.
    """
    opens = tf.strings.regex_full_match(pieces, OPENING_TAG)
    closes = tf.strings.regex_full_match(pieces, CLOSING_TAG)
    names = tf.strings.regex_replace(pieces, rf"(?s)^</?({TAG_NAME}).*$", r"\1")
    is_same = (opens | closes)[:, None] & (names[:, :, None] == names[:, None])
    step = tf.cast(opens, tf.int32) - tf.cast(closes, tf.int32)
    before = tf.linalg.band_part(tf.where(is_same, step[:, None], 0), -1, 0)
    nesting = tf.reduce_sum(before, axis=2) + tf.cast(closes, tf.int32)
    is_pair = opens[:, :, None] & closes[:, None] & is_same
    is_pair &= nesting[:, :, None] == nesting[:, None]
    place = tf.range(tf.shape(pieces)[1])
    is_pair &= place[:, None] < place  # the first index is of the opening tag
    return tf.reduce_max(tf.where(is_pair, place[:, None], -1), axis=1)


def pairs_cross(pieces: tf.Tensor) -> tf.Tensor:
    """Return whether a pair of tags among pieces `(B, P)` crosses another one, bool `(B,)`."""
    opener, place = openers(pieces), tf.range(tf.shape(pieces)[1])
    first, second = opener[:, :, None], opener[:, None]
    is_crossed = (first >= 0) & (first < second) & (second < place[:, None])
    is_crossed &= place[:, None] < place
    return tf.reduce_any(is_crossed, axis=[1, 2])
