"""Constraints: which tokens a search may choose, given those of each hypothesis so far."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from tf_transformer.tokenizers.marks import MarkIds

_OWED, _ABSENT = -1, -2  # in place of the step in which a mark was produced
_NOWHERE = 2**31 - 1


class Step(NamedTuple):
    """A step holds what a constraint sees of a search for N hypotheses."""

    logits: tf.Tensor  # float32 (N, V), minus infinity at what an earlier constraint forbids
    token_ids: tf.Tensor  # int32 (N,), the tokens at position `index`; begin tokens at 0
    index: tf.Tensor  # int32 ()
    limits: tf.Tensor  # int32 (N,), of translations


class Constraint(Protocol):
    """Something that forbids tokens; it changes no log-probability.

    Its state is a nested structure of tensors `(B, …)`, to which the axes rules of the part
    `"target"` of a cache apply; see `TranslationModel`. N = B * K hypotheses are searched.
    """

    def start(self) -> Any:
        """Return the state before the first token, a row for each sentence."""

    def step(self, now: Step, state: Any) -> tuple[tf.Tensor, Any]:
        """Return which tokens may follow, bool `(N, V)` or `(V,)`, and the next state."""


class Never:
    """Forbids the tokens of some ids."""

    def __init__(self, ids: Sequence[int]) -> None:
        self._ids = list(ids)

    def start(self) -> Any:
        """Return no state."""
        return ()

    def step(self, now: Step, state: Any) -> tuple[tf.Tensor, Any]:
        """See `Constraint`."""
        return tf.constant(~np.isin(np.arange(now.logits.shape[-1]), self._ids)), state


class MarksOnce:
    """Lets each hypothesis have every mark of its source exactly once, and pairs nested.

    A mark that is not owed is forbidden, and so is the end while one is owed. Only owed marks
    are allowed where the end is the most probable token, or where the room up to the limit equals
    their number. (A model that is only kept from ending says anything.) A closing mark may only
    close the pair that was opened last. Marks whose partner is in another part of a long source
    keep their order, outside of pairs. So every finished hypothesis has all marks, if its limit is
    at least their number.

    Args:
        source_ids: int32 `(B, S)`.
        source, target: The marks of the two vocabularies.
        eos_id: The id that ends a translation.
    """

    def __init__(
        self, source_ids: tf.Tensor, source: MarkIds, target: MarkIds, eos_id: int
    ) -> None:
        self._source_ids = source_ids
        # Mark k of one vocabulary is mark k of the other.
        pairs = [tuple(zip(*kinds, strict=False)) for kinds in zip(source, target, strict=True)]
        self._sizes = [len(kind) for kind in pairs]
        self._source, self._target = zip(*(ids for kind in pairs for ids in kind), strict=True)
        self._eos_id = eos_id

    def start(self) -> Any:
        """Return the state: when each mark was produced, or what it is instead, int32 `(B, M)`.

        The second part is the place of marks without a partner in the source, int32 `(B, M)`.
        """
        is_mark = self._source_ids[:, :, None] == list(self._source)
        has_mark = tf.reduce_any(is_mark, axis=1)
        plain, opening, closing = tf.split(has_mark, self._sizes, axis=1)
        is_alone = tf.concat([plain & False, opening & ~closing, closing & ~opening], axis=1)
        place = tf.argmax(tf.cast(is_mark, tf.int32), axis=1, output_type=tf.int32)
        return tf.where(has_mark, _OWED, _ABSENT), tf.where(is_alone, place, _NOWHERE)

    def step(self, now: Step, state: Any) -> tuple[tf.Tensor, Any]:
        """See `Constraint`."""
        state, place = state
        state = tf.where(now.token_ids[:, None] == list(self._target), now.index, state)
        owed = state == _OWED
        num_owed = tf.reduce_sum(tf.cast(owed, tf.int32), axis=1)
        _, opened, _ = tf.split(state, self._sizes, axis=1)
        is_alone = place != _NOWHERE
        next_place = tf.reduce_min(tf.where(owed, place, _NOWHERE), axis=1, keepdims=True)
        plain, opening, closing = tf.split(owed & ~is_alone, self._sizes, axis=1)
        is_open = (opened >= 0) & closing
        last = tf.reduce_max(tf.where(is_open, opened, -1), axis=1, keepdims=True)
        marks = tf.concat([plain, opening, is_open & (opened == last)], axis=1)
        marks |= owed & is_alone & (place == next_place) & (last < 0)
        may_end = num_owed == 0
        would_end = now.logits[:, self._eos_id] >= tf.reduce_max(now.logits, axis=1)
        may_go_on = may_end | (~would_end & (num_owed < now.limits - now.index))
        columns = [marks, may_end[:, None], may_go_on[:, None]]
        # The column of each token in a table of the marks, the end and all other tokens.
        column_of = [len(self._target) + 1] * now.logits.shape[-1]
        for column, token_id in enumerate((*self._target, self._eos_id)):
            column_of[token_id] = column
        return tf.gather(tf.concat(columns, axis=1), column_of, axis=1), (state, place)


class NoRepeats:
    """Forbids tokens that would repeat a sequence of `length` tokens of the same hypothesis.

    `applies`, bool `(B,)`, says in which sentences.
    """

    def __init__(self, applies: tf.Tensor, length: int) -> None:
        self._applies, self._length = applies, length

    def start(self) -> Any:
        """Return the state: whether it applies, and the tokens so far, int32 `(B, T)`."""
        return self._applies, tf.zeros([tf.size(self._applies), 0], tf.int32)

    def step(self, now: Step, state: Any) -> tuple[tf.Tensor, Any]:
        """See `Constraint`."""
        applies, ids = state
        ids = tf.concat([ids, now.token_ids[:, None]], axis=1)
        # Token j + length - 1 follows the sequence at j, which is equal to the last one.
        count = tf.maximum(tf.shape(ids)[1] - self._length + 1, 0)
        is_same = tf.fill([tf.shape(ids)[0], count], True) & applies[:, None]
        for offset in range(self._length - 1):
            last = ids[:, -(self._length - 1) + offset :][:, :1]
            is_same &= ids[:, offset : offset + count] == last
        rows = tf.where(is_same)  # hypotheses and positions, int64 (R, 2)
        tokens = tf.cast(tf.gather_nd(ids[:, self._length - 1 :], rows), tf.int64)
        is_allowed = tf.ones_like(now.logits, tf.bool)
        banned = tf.stack([rows[:, 0], tokens], axis=1)
        never = tf.zeros_like(tokens, tf.bool)
        return tf.tensor_scatter_nd_update(is_allowed, banned, never), (applies, ids)
