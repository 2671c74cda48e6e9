"""Beam search: the best of many hypotheses, K at a time."""

from typing import Any, NamedTuple

import tensorflow as tf

from tf_transformer.decoding.cache import append_ids, empty_ids, open_shapes, split_cache
from tf_transformer.decoding.compaction import decode_live, some_live
from tf_transformer.decoding.hypotheses import RankedHypotheses

_BLOCK = 64
NOTHING = float("-inf")  # the score of a hypothesis that is none


class _Live(NamedTuple):
    """Hypotheses that go on, best first."""

    log_probs: tf.Tensor  # float32 (B, K)
    token_ids: tf.Tensor  # int32 (B, K), the last token of each
    ids: tf.Tensor  # int32 (B, K, T), T is index where it grows


class _Finished(NamedTuple):
    """Hypotheses that ended, best first; their scores never change."""

    scores: tf.Tensor  # float32 (B, K), NOTHING where fewer than K have ended
    log_probs: tf.Tensor  # float32 (B, K)
    lengths: tf.Tensor  # int32 (B, K)
    ids: tf.Tensor  # int32 (B, K, T)


class _BeamState(NamedTuple):
    index: tf.Tensor  # int32 (), position of the live token_ids
    done: tf.Tensor  # bool (B,), nothing of the sentence changes any more
    live: _Live
    finished: _Finished
    cache: Any  # the parts that change


def length_penalty(lengths, alpha):
    """What a log-probability is divided by: `((5 + lengths) / 6) ** alpha` (Wu et al. 2016, 7).

    Args:
        lengths: int tensor, factors of the probability: the ids and the end id.
        alpha: float or float scalar tensor; 0 compares log-probabilities, 1 nearly their means.

    Returns:
        float32 tensor like `lengths`.
    """
    return ((5.0 + tf.cast(lengths, tf.float32)) / 6.0) ** alpha


def beam_search(
    decode_step,
    cache,
    limits,
    *,
    beam_size,
    pad_id,
    bos_id,
    eos_id,
    alpha=0.6,
    n_best=1,
    num_steps=None,
):
    """Decodes with a step function, K hypotheses of each sentence at a time.

    In each step the 2 K most probable continuations of a sentence are looked at: those among the
    first K that end are finished, the first K that do not end live on, so that finishing takes
    nothing from the beam (Vaswani et al. 2018, tensor2tensor). A sentence is done when K
    hypotheses are finished, when no live one can come before the `n_best` best of them any more
    (its log-probability only falls, and its penalty cannot be larger than at the limit), or at
    its limit. With K = 1 this is greedy search, whatever `alpha` is.

    Args:
        decode_step: `(token_ids (N,), index, cache) -> (logits (N, V), cache)`, N = B * K, the
            hypotheses of a sentence in rows that follow one another.
        cache: what `start_decoding(…, beam_size=K)` returned. Its `"target"` `(N, …)` is
            re-ordered with the hypotheses, `"source"` and `"history"` `(B, …)` are not.
        limits: int32 `(B,)`, ids a hypothesis may have, the end id not counted.
        beam_size: int or int scalar tensor, K.
        pad_id, bos_id, eos_id: int.
        alpha: float or float scalar tensor, see `length_penalty`.
        n_best: int or int scalar tensor, hypotheses to return, at most K.
        num_steps: as in `greedy_search`.

    Returns:
        `RankedHypotheses`, `n_best` of each sentence.
    """
    fixed, moving = split_cache(cache)
    top_k = tf.math.top_k if num_steps is None else _maxima
    num_sentences, slots = tf.shape(limits)[0], tf.range(beam_size)
    empty = tf.fill([num_sentences, beam_size], NOTHING)
    no_ids = empty_ids([num_sentences, beam_size], num_steps, pad_id)
    start = _BeamState(
        index=tf.constant(0),
        done=tf.zeros([num_sentences], tf.bool),
        live=_Live(
            tf.where(slots == 0, 0.0, empty), tf.fill([num_sentences, beam_size], bos_id), no_ids
        ),
        finished=_Finished(empty, empty, tf.zeros([num_sentences, beam_size], tf.int32), no_ids),
        cache=moving,
    )
    shapes = open_shapes(start)

    def decode(state, fixed, limits, goes_on):
        """Steps of these sentences, as long as `goes_on(state)`."""
        # No hypothesis can be worth more than one that ends at the limit with what it has now.
        largest_penalty = length_penalty(limits + 1, alpha)

        def step(state):
            live, finished = state.live, state.finished
            logits, cache = decode_step(
                tf.reshape(live.token_ids, [-1]), state.index, {**fixed, **state.cache}
            )
            log_probs, parents, token_ids = _continuations(logits, live.log_probs, beam_size, top_k)
            ends = token_ids == eos_id
            # An end counts among the first K alone, or a beam of 1 would not be greedy.
            among_first = tf.range(tf.shape(log_probs)[1]) < beam_size
            ending = ends & among_first & (log_probs > NOTHING) & ~state.done[:, None]
            finished = _finish(
                finished, live, ending, log_probs, parents, state.index, alpha, top_k
            )

            log_probs, places = top_k(tf.where(ends, NOTHING, log_probs), beam_size)
            # At its limit a sentence keeps what lived until then, but for what has just ended.
            has_ended = tf.reduce_any(ending[..., None] & (parents[..., None] == slots), axis=1)
            stays = (state.done | (state.index >= limits))[:, None]
            log_probs = tf.where(stays, tf.where(has_ended, NOTHING, live.log_probs), log_probs)
            parents = tf.where(stays, slots, tf.gather(parents, places, batch_dims=1))
            token_ids = tf.where(stays, pad_id, tf.gather(token_ids, places, batch_dims=1))

            nth_score = tf.gather(finished.scores, n_best - 1, axis=1)
            attainable = log_probs[:, 0] / largest_penalty
            settled = (nth_score > NOTHING) & (nth_score >= attainable)
            full = finished.scores[:, -1] > NOTHING
            padding = tf.fill(tf.shape(token_ids), pad_id)
            state = _BeamState(
                index=state.index + 1,
                done=stays[:, 0] | settled | full | (log_probs[:, 0] == NOTHING),
                live=_Live(
                    log_probs,
                    token_ids,
                    append_ids(
                        tf.gather(live.ids, parents, batch_dims=1),
                        token_ids,
                        state.index,
                        num_steps,
                    ),
                ),
                finished=finished._replace(
                    ids=append_ids(finished.ids, padding, state.index, num_steps)
                ),
                cache=_reordered(split_cache(cache)[1], parents),
            )
            return (state,)

        return tf.while_loop(goes_on, step, [state], shape_invariants=[shapes])[0]

    def outcome(state, limits):
        return _ranked(state, limits, alpha, n_best, pad_id)

    if num_steps is not None:
        return outcome(decode(start, fixed, limits, some_live), limits)
    found = decode_live(decode, outcome, start, fixed, limits, pad_id, beam_size)
    longest = tf.reduce_max(tf.pad(tf.reshape(found.lengths, [-1]), [[1, 0]]))
    return found._replace(ids=found.ids[:, :, :longest])


def _continuations(logits, live_log_probs, beam_size, top_k):
    """The 2 K most probable continuations of each sentence, best first.

    Returns:
        log-probabilities, parents (slots of hypotheses) and token ids, each `(B, 2 K)`; fewer
        where the vocabulary has fewer.
    """
    # Of one hypothesis no more than 2 K can be among the first 2 K.
    of_each = tf.minimum(2 * beam_size, logits.shape[-1])
    best, token_ids = _top_k_of_many(logits, of_each, top_k)
    largest = best[:, :1]
    best = best - largest - tf.math.log(tf.reduce_sum(tf.exp(logits - largest), -1, keepdims=True))
    total = beam_size * of_each
    log_probs = live_log_probs[..., None] + tf.reshape(best, [-1, beam_size, of_each])
    log_probs, places = top_k(tf.reshape(log_probs, [-1, total]), tf.minimum(2 * beam_size, total))
    token_ids = tf.gather(tf.reshape(token_ids, [-1, total]), places, batch_dims=1)
    return log_probs, places // of_each, token_ids


def _maxima(values, k):
    """`tf.math.top_k` of `(N, M)` as the maximum, k times: XLA makes the original a slow sort."""
    columns, ranks = tf.range(tf.shape(values)[1]), tf.range(k)

    def step(rank, left, best, places):
        place = tf.argmax(left, axis=1, output_type=tf.int32)[:, None]
        here, now = columns == place, ranks == rank
        largest = tf.reduce_max(tf.where(here, values, NOTHING), axis=1, keepdims=True)
        return (
            rank + 1,
            tf.where(here, NOTHING, left),
            tf.where(now, largest, best),
            tf.where(now, place, places),
        )

    # What is nothing in itself still comes before what has been taken. (Half of the smallest
    # number, since `argmax` does not see the smallest.)
    left = tf.maximum(values, values.dtype.min / 2)
    nowhere = tf.zeros([tf.shape(values)[0], k], tf.int32)
    state = [tf.constant(0), left, tf.cast(nowhere, values.dtype), nowhere]
    _, _, best, places = tf.while_loop(lambda rank, *_: rank < k, step, state)
    return best, places


def _top_k_of_many(values, k, top_k):
    """`top_k` of `(N, V)`, a third of the time or less: by way of the best blocks.

    What is among the first k is in one of the k blocks with the largest maxima. Of equal values
    the first comes first, as in the original.
    """
    size = values.shape[-1]
    width = max(w for w in range(1, _BLOCK + 1) if size % w == 0)
    num_blocks = size // width
    if width * num_blocks < 8 * _BLOCK or width < _BLOCK // 4:
        return top_k(values, k)
    blocks = tf.reshape(values, [-1, num_blocks, width])
    k_blocks = tf.minimum(k, num_blocks)
    _, best_blocks = top_k(tf.reduce_max(blocks, axis=-1), k_blocks)
    best_blocks = tf.sort(best_blocks, axis=-1)
    candidates = tf.reshape(tf.gather(blocks, best_blocks, batch_dims=1), [-1, k_blocks * width])
    best, places = top_k(candidates, k)
    return best, tf.gather(best_blocks, places // width, batch_dims=1) * width + places % width


def _finish(finished, live, ending, log_probs, parents, index, alpha, top_k):
    """The best K of the finished hypotheses and of the continuations that are `ending`."""
    scores = tf.where(ending, log_probs / length_penalty(index + 1, alpha), NOTHING)
    new = _Finished(
        scores,
        log_probs,
        tf.fill(tf.shape(scores), index),
        tf.gather(live.ids, parents, batch_dims=1),
    )
    joined = _Finished(*(tf.concat(pair, axis=1) for pair in zip(finished, new, strict=True)))
    # Of equal scores the older comes first.
    _, places = top_k(joined.scores, tf.shape(finished.scores)[1])
    return _Finished(*(tf.gather(field, places, batch_dims=1) for field in joined))


def _reordered(cache, parents):
    """The cache with the `"target"` of each hypothesis its parent's."""
    num_sentences, beam_size = tf.unstack(tf.shape(parents))
    rows = tf.reshape(tf.range(num_sentences)[:, None] * beam_size + parents, [-1])
    target = tf.nest.map_structure(lambda tensor: tf.gather(tensor, rows), cache["target"])
    return {**cache, "target": target}


def _ranked(state, limits, alpha, n_best, pad_id):
    """The finished hypotheses, and behind them those that were cut off."""
    finished, limits = state.finished, limits[:, None]
    beam_size = tf.shape(finished.scores)[1]
    log_probs, order = tf.math.top_k(state.live.log_probs, beam_size)
    cut = _Finished(
        log_probs / length_penalty(limits, alpha),
        log_probs,
        tf.broadcast_to(limits, tf.shape(log_probs)),
        tf.gather(state.live.ids, order, batch_dims=1),
    )
    num_finished = tf.reduce_sum(
        tf.cast(finished.scores > NOTHING, tf.int32), axis=1, keepdims=True
    )
    ranks = tf.range(n_best)
    places = tf.where(ranks < num_finished, ranks, beam_size + ranks - num_finished)
    scores, log_probs, lengths, ids = (
        tf.gather(tf.concat(pair, axis=1), places, batch_dims=1)
        for pair in zip(finished, cut, strict=True)
    )
    exists = scores > NOTHING
    lengths = tf.where(exists, lengths, 0)
    ids = tf.where(tf.range(tf.shape(ids)[2]) < lengths[..., None], ids, pad_id)
    return RankedHypotheses(ids, lengths, log_probs, scores, exists & (ranks >= num_finished))
