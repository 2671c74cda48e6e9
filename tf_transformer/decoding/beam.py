"""Beam search: the best of K hypotheses of each sentence."""

import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tf_transformer.decoding.constraints import Constraint
from tf_transformer.decoding.result import (
    Hypotheses,
    beam_score,
    length_normalizer,
    require_possible,
)
from tf_transformer.decoding.search_loop import run_search
from tf_transformer.decoding.top_k import blockwise_top_k, largest_log_prob
from tf_transformer.decoding.translation_model import Cache, DecodeStep, split_cache

NEG_INF = float("-inf")  # the score and the log-probability of a missing hypothesis


class _LiveBeams(NamedTuple):
    """Hypotheses that have not ended, best first."""

    log_probs: tf.Tensor  # float32 (B, K)
    token_ids: tf.Tensor  # int32 (B, K), the last token of each
    ids: tf.Tensor  # int32 (B, K, T); T is index


class _FinishedBeams(NamedTuple):
    """Hypotheses that ended, best first; their scores never change."""

    scores: tf.Tensor  # float32 (B, K), NEG_INF where fewer than K have ended
    log_probs: tf.Tensor  # float32 (B, K)
    lengths: tf.Tensor  # int32 (B, K)
    ids: tf.Tensor  # int32 (B, K, T)


class _BeamState(NamedTuple):
    index: tf.Tensor  # int32 (), position of live.token_ids
    done: tf.Tensor  # bool (B,), whether the search of each sentence is over
    live: _LiveBeams
    finished: _FinishedBeams
    cache: Any  # the part `"target"` of the cache


def beam_search(
    decode_step: DecodeStep,
    cache: Cache,
    limits: tf.Tensor | Sequence[int],
    *,
    beam_size: int | tf.Tensor,
    pad_id: int,
    bos_id: int,
    eos_id: int,
    length_penalty: float | tf.Tensor = 0.6,
    n_best: int | tf.Tensor = 1,
    constraints: Sequence[Constraint] = (),
) -> Hypotheses:
    """Decode by following K hypotheses of each sentence, with any model that can decode.

    Each step ranks the 2 K most probable continuations of a sentence. Continuations that end are
    finished if they are among the first K. The first K that do not end stay live, so the number of
    live beams does not shrink (Vaswani et al. 2018, tensor2tensor). A sentence is done at its
    limit, when K hypotheses are finished and the best live one would not be among them if it
    were complete, or when no live hypothesis can still be one of the `n_best` best:
    log-probabilities only fall, and lengths are at most the limit. With K = 1 this is greedy search
    up to rounding, whatever `length_penalty` is.

    Args:
        decode_step: `(token_ids (N,), index, cache) -> (logits (N, V), cache)`, N = B * K; V must
            be known when a graph is traced.
        cache: The cache that `start_decoding` returned, with a row for each sentence; see
            `TranslationModel`.
        limits, pad_id, bos_id, eos_id, constraints: See `greedy_search`.
        beam_size: K.
        length_penalty: See `beam_score`.
        n_best: Number of hypotheses to return, at most K.

    Returns:
        `Hypotheses` with n = `n_best`.

    Raises:
        ValueError: As in `greedy_search`, or `n_best` is not from 1 to `beam_size`.

    Example:
        >>> ids = {name: getattr(tokenizer, name) for name in ("pad_id", "bos_id", "eos_id")}
        >>> cache = model.start_decoding(tf.constant([[7, 8, tokenizer.eos_id]]))
        >>> found = tt.beam_search(model.decode_step, cache, [5], beam_size=4, n_best=2, **ids)
        >>> found.log_probs.shape
        TensorShape([1, 2])
    """
    limits = tf.cast(limits, tf.int32)
    beam_size, n_best = (
        tf.cast(n, tf.int32) if tf.is_tensor(n) else operator.index(n) for n in (beam_size, n_best)
    )
    require_possible(limits, length_penalty, n_best, beam_size)
    decode_step, *parts = split_cache(decode_step, cache, limits, constraints)
    num_sentences, beams = tf.shape(limits)[0], tf.range(beam_size)
    rows = tf.repeat(tf.range(num_sentences), beam_size)
    source, target = tf.nest.map_structure(lambda tensor: tf.gather(tensor, rows), parts)

    missing = tf.fill([num_sentences, beam_size], NEG_INF)
    no_ids = tf.zeros([num_sentences, beam_size, 0], tf.int32)
    start = _BeamState(
        index=tf.constant(0),
        done=tf.zeros([num_sentences], tf.bool),
        live=_LiveBeams(
            # All beams of a sentence are equal at first, so only one of them is live.
            log_probs=tf.where(beams == 0, 0.0, missing),
            token_ids=tf.fill([num_sentences, beam_size], bos_id),
            ids=no_ids,
        ),
        finished=_FinishedBeams(
            missing, missing, tf.zeros([num_sentences, beam_size], tf.int32), no_ids
        ),
        cache=target,
    )

    def make_step(source: Any, limits: tf.Tensor) -> Callable:
        # A live hypothesis would score best if it ended at its limit without losing any more
        # probability; this is the normalizer of that score.
        largest_normalizer = length_normalizer(tf.cast(limits, tf.float32) + 1.0, length_penalty)

        def step(state: _BeamState) -> _BeamState:
            live, finished = state.live, state.finished
            logits, allowed, cache = decode_step(
                tf.reshape(live.token_ids, [-1]), state.index, source, state.cache
            )
            normalizers = largest_log_prob(logits) - tf.reduce_max(logits, axis=-1)
            # The 2 K most probable continuations of each sentence, best first; the vocabulary may
            # have fewer.
            offsets = tf.reshape(live.log_probs, [-1, 1]) + normalizers[:, None]
            vocab_size = allowed.shape[-1]
            count = tf.minimum(2 * beam_size, beam_size * vocab_size)
            log_probs, indices = blockwise_top_k(allowed, count, offsets, beam_size)
            parents, token_ids = indices // vocab_size, indices % vocab_size
            is_end = token_ids == eos_id
            # Only the first K may end; otherwise a beam of 1 would not be greedy search.
            among_first = tf.range(tf.shape(log_probs)[1]) < beam_size
            ended = is_end & among_first & (log_probs > NEG_INF) & ~state.done[:, None]
            scores = beam_score(log_probs, state.index + 1, length_penalty)
            scores = tf.where(ended, scores, NEG_INF)
            lengths = tf.fill(tf.shape(scores), state.index)
            ids = tf.gather(live.ids, parents, batch_dims=1)
            finished = _best_of(finished, _FinishedBeams(scores, log_probs, lengths, ids))

            log_probs, indices = tf.math.top_k(tf.where(is_end, NEG_INF, log_probs), beam_size)
            # At its limit a sentence keeps its live beams, except those that have just ended.
            has_ended = tf.reduce_any(ended[..., None] & (parents[..., None] == beams), axis=1)
            stopped = (state.done | (state.index >= limits))[:, None]
            kept_log_probs = tf.where(has_ended, NEG_INF, live.log_probs)
            log_probs = tf.where(stopped, kept_log_probs, log_probs)
            parents = tf.where(stopped, beams, tf.gather(parents, indices, batch_dims=1))
            token_ids = tf.where(stopped, pad_id, tf.gather(token_ids, indices, batch_dims=1))

            nth_score = tf.gather(finished.scores, n_best - 1, axis=1)
            attainable = log_probs[:, 0] / largest_normalizer
            no_better = (nth_score > NEG_INF) & (nth_score >= attainable)
            worst_score = finished.scores[:, -1]
            if_complete = beam_score(log_probs[:, 0], state.index + 1, length_penalty)
            all_finished = (worst_score > NEG_INF) & (worst_score >= if_complete)
            no_live = log_probs[:, 0] == NEG_INF
            ids = tf.gather(live.ids, parents, batch_dims=1)
            ids = tf.concat([ids, token_ids[..., None]], axis=2)
            padded = tf.pad(finished.ids, [[0, 0], [0, 0], [0, 1]], constant_values=pad_id)
            return _BeamState(
                index=state.index + 1,
                done=stopped[:, 0] | no_better | all_finished | no_live,
                live=_LiveBeams(log_probs, token_ids, ids),
                finished=finished._replace(ids=padded),
                cache=_reorder(cache, parents),
            )

        return step

    def results_of(state: _BeamState, limits: tf.Tensor) -> Hypotheses:
        return _rank(state, limits, length_penalty, n_best, pad_id)

    return Hypotheses(*run_search(make_step, results_of, start, source, limits, pad_id, beam_size))


def _best_of(finished: _FinishedBeams, new: _FinishedBeams) -> _FinishedBeams:
    """Return the K best finished hypotheses, older and new ones."""
    joined = _FinishedBeams(*(tf.concat(pair, axis=1) for pair in zip(finished, new, strict=True)))
    # If scores are equal, the older hypothesis comes first.
    _, indices = tf.math.top_k(joined.scores, tf.shape(finished.scores)[1])
    return _FinishedBeams(*(tf.gather(field, indices, batch_dims=1) for field in joined))


def _reorder(cache: Any, parents: tf.Tensor) -> Any:
    """Give each hypothesis the state of its parent."""
    num_sentences, beam_size = tf.unstack(tf.shape(parents))
    indices = tf.reshape(tf.range(num_sentences)[:, None] * beam_size + parents, [-1])
    return tf.nest.map_structure(lambda tensor: tf.gather(tensor, indices), cache)


def _rank(
    state: _BeamState, limits: tf.Tensor, length_penalty: Any, n_best: Any, pad_id: int
) -> Hypotheses:
    """Return `Hypotheses`, in which finished ones rank before truncated ones."""
    finished, limits = state.finished, limits[:, None]
    beam_size = tf.shape(finished.scores)[1]
    log_probs, order = tf.math.top_k(state.live.log_probs, beam_size)
    truncated = _FinishedBeams(
        beam_score(log_probs, limits, length_penalty),
        log_probs,
        lengths=tf.broadcast_to(limits, tf.shape(log_probs)),
        ids=tf.gather(state.live.ids, order, batch_dims=1),
    )
    num_finished = tf.reduce_sum(
        tf.cast(finished.scores > NEG_INF, tf.int32), axis=1, keepdims=True
    )
    ranks = tf.range(n_best)
    indices = tf.where(ranks < num_finished, ranks, beam_size + ranks - num_finished)
    scores, log_probs, lengths, ids = (
        tf.gather(tf.concat(pair, axis=1), indices, batch_dims=1)
        for pair in zip(finished, truncated, strict=True)
    )
    exists = scores > NEG_INF
    lengths = tf.where(exists, lengths, 0)
    ids = tf.where(tf.range(tf.shape(ids)[2]) < lengths[..., None], ids, pad_id)
    return Hypotheses(ids, lengths, log_probs, scores, exists & (ranks >= num_finished))
