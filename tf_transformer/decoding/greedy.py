"""Greedy search: the most probable token at each step."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tf_transformer.decoding.constraints import Constraint
from tf_transformer.decoding.result import Hypotheses, beam_score, require_possible
from tf_transformer.decoding.search_loop import run_search
from tf_transformer.decoding.top_k import blockwise_argmax, largest_log_prob
from tf_transformer.decoding.translation_model import Cache, DecodeStep, split_cache


class _GreedyState(NamedTuple):
    index: tf.Tensor  # int32 (), position of token_ids
    token_ids: tf.Tensor  # int32 (B,), the last token of each sentence
    done: tf.Tensor  # bool (B,)
    log_probs: tf.Tensor  # float32 (B,)
    ids: tf.Tensor  # int32 (B, T), anything once a sentence is done; T is index
    cache: Any  # the part `"target"` of the cache


def greedy_search(
    decode_step: DecodeStep,
    cache: Cache,
    limits: tf.Tensor | Sequence[int],
    *,
    pad_id: int,
    bos_id: int,
    eos_id: int,
    length_penalty: float | tf.Tensor = 0.6,
    constraints: Sequence[Constraint] = (),
) -> Hypotheses:
    """Decode by taking the most probable token at each step, with any model that can decode.

    Args:
        decode_step: `(token_ids (B,), index, cache) -> (logits (B, V), cache)`.
        cache: The cache that `start_decoding` returned; see `TranslationModel`.
        limits: int32 `(B,)`, the maximum length of each hypothesis without the end token. A limit
            of 0 is allowed.
        pad_id, bos_id, eos_id: Special token ids.
        length_penalty: See `beam_score`. The length penalty changes only the scores.
        constraints: They forbid tokens, whose log-probabilities stay those of the model.

    Returns:
        `Hypotheses` with n = 1.

    Raises:
        ValueError: The limits are no vector or below 0, or `length_penalty` is not from 0 to 10, if
            they are known before the search runs; or the cache has an unknown part.

    Example:
        >>> ids = {name: getattr(tokenizer, name) for name in ("pad_id", "bos_id", "eos_id")}
        >>> cache = model.start_decoding(tf.constant([[7, 8, tokenizer.eos_id]]))
        >>> found = tt.greedy_search(model.decode_step, cache, limits=[5], **ids)
        >>> found.lengths.shape, bool(found.lengths[0, 0] <= 5)
        (TensorShape([1, 1]), True)
    """
    limits = tf.cast(limits, tf.int32)
    require_possible(limits, length_penalty)
    decode_step, source, target = split_cache(decode_step, cache, limits, constraints)

    num_sentences = tf.shape(limits)[0]
    start = _GreedyState(
        index=tf.constant(0),
        token_ids=tf.fill([num_sentences], bos_id),
        done=tf.zeros([num_sentences], tf.bool),
        log_probs=tf.zeros([num_sentences]),
        ids=tf.zeros([num_sentences, 0], tf.int32),
        cache=target,
    )

    def make_step(source: Any, limits: tf.Tensor) -> Callable:
        def step(state: _GreedyState) -> _GreedyState:
            arguments = state.token_ids, state.index, source, state.cache
            logits, allowed, cache = decode_step(*arguments)
            token_ids = blockwise_argmax(allowed)
            ended, at_limit = token_ids == eos_id, state.index >= limits
            # At its limit a sentence may still end; any other token truncates it.
            counts = ~state.done & (ended | ~at_limit)
            log_prob = tf.where(counts, largest_log_prob(logits, allowed), 0.0)
            return _GreedyState(
                index=state.index + 1,
                token_ids=token_ids,
                done=state.done | ended | at_limit,
                log_probs=state.log_probs + log_prob,
                ids=tf.concat([state.ids, token_ids[:, None]], axis=1),
                cache=cache,
            )

        return step

    def results_of(state: _GreedyState, limits: tf.Tensor) -> tuple[tf.Tensor, ...]:
        positions = tf.range(tf.shape(state.ids)[1])
        stops = (state.ids == eos_id) | (positions >= limits[:, None])
        stops = tf.cast(stops, tf.int32)
        before = tf.cumsum(stops, axis=1) == 0
        lengths = tf.reduce_sum(tf.cast(before, tf.int32), axis=1)
        ended = tf.reduce_any((state.ids == eos_id) & (positions == lengths[:, None]), axis=1)
        ids = tf.where(before, state.ids, pad_id)
        return ids, lengths, state.log_probs, ~ended

    found = run_search(make_step, results_of, start, source, limits, pad_id)
    ids, lengths, log_probs, truncated = found
    scores = beam_score(log_probs, lengths + tf.cast(~truncated, tf.int32), length_penalty)
    fields = Hypotheses(ids, lengths, log_probs, scores, truncated)
    return Hypotheses(*(field[:, None] for field in fields))
