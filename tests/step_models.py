"""Models to search with: a simple one, which exists in NumPy too, and one of each kind."""

import dataclasses
import itertools
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from small_models import CONFIGS, GENERATING, architecture_of, has_setting

from tf_transformer.decoding.beam import beam_search
from tf_transformer.decoding.greedy import greedy_search
from tf_transformer.decoding.result import Hypotheses
from tf_transformer.models.architectures import ARCHITECTURES, build_model
from tf_transformer.models.seq2seq import Seq2Seq

PAD, BOS, EOS = 0, 2, 3
SPECIAL = {"pad_id": PAD, "bos_id": BOS, "eos_id": EOS}
VOCAB_SIZE = 9
LONGEST = 10  # the largest limit
NEG_INF = float("-inf")
MODELS = tuple(name for name in GENERATING if name in ARCHITECTURES)


class Markov:
    """Logits from a table of the last two tokens, plus biases of the source and of the position.

    `logits` is the same in NumPy without a cache: a function of one source and the tokens so far.
    """

    def __init__(self):
        random = np.random.default_rng(1)
        self.table = random.normal(size=(VOCAB_SIZE, VOCAB_SIZE, VOCAB_SIZE)).astype("float32")
        self.table[..., PAD] = -9.0
        self.table[BOS, BOS, EOS] = 0.0  # or most hypotheses would end at once
        self.by_position = random.normal(size=(40, VOCAB_SIZE)).astype("float32")
        self.by_position[:, [PAD, EOS]] = 0.0

    def sources(self, num_rows):
        sources = np.random.default_rng(2).normal(size=(num_rows, VOCAB_SIZE)).astype("float32")
        sources[:, PAD] = 0.0
        return sources

    def start_decoding(self, sources):
        size = tf.shape(sources)[0]
        state = {"previous": tf.fill([size], BOS), "steps": tf.zeros([size], tf.int32)}
        return {"source": {"bias": sources}, "target": {"state": state}}

    def decode_step(self, token_ids, index, cache):
        state = cache["target"]["state"]
        indices = tf.stack([state["previous"], token_ids], axis=1)
        logits = tf.gather_nd(self.table, indices)
        logits += cache["source"]["bias"]
        # Two counts of the same steps: the search's and the cache's.
        by_count = tf.gather(self.by_position, state["steps"])
        logits += (by_count + tf.gather(self.by_position, index)) / 2
        state = {"previous": token_ids, "steps": state["steps"] + 1}
        return logits, {"source": cache["source"], "target": {"state": state}}

    def logits(self, source, tokens):
        before = tokens[-2] if len(tokens) > 1 else BOS
        return self.table[before, tokens[-1]] + source + self.by_position[len(tokens) - 1]


def log_softmax(logits):
    logits = np.asarray(logits, "float64")
    return logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())


class Tables:
    """Logits from a table of all prefixes, one table for each sentence."""

    def start_decoding(self, tables):
        prefix = tf.zeros([tf.shape(tables)[0]], tf.int32)
        return {"source": {"tables": tables}, "target": {"prefix": prefix}}

    def decode_step(self, token_ids, index, cache):
        tables, prefix = cache["source"]["tables"], cache["target"]["prefix"]
        prefix = tf.where(index == 0, 0, prefix * tables.shape[2] + token_ids + 1)
        logits = tf.gather(tables, prefix, batch_dims=1)
        return logits, {"source": cache["source"], "target": {"prefix": prefix}}


def every_hypothesis(table, limit, length_penalty, eos_id):
    """All possible hypotheses as `{(ids, truncated): (log_prob, score)}`."""
    every = {}
    tokens = [i for i in range(table.shape[1]) if i != eos_id]
    for length in range(limit + 1):
        for ids in itertools.product(tokens, repeat=length):
            prefix, log_prob = 0, 0.0
            for i in ids:
                log_prob += log_softmax(table[prefix])[i]
                prefix = prefix * table.shape[1] + i + 1
            end = log_prob + log_softmax(table[prefix])[eos_id]
            if end > NEG_INF:
                every[ids, False] = end, end / ((5 + length + 1) / 6) ** length_penalty
            elif log_prob > NEG_INF and length == limit:
                every[ids, True] = log_prob, log_prob / ((5 + length) / 6) ** length_penalty
    return every


def make_model(name):
    config = dataclasses.replace(
        CONFIGS[name], source_vocab_size=11, target_vocab_size=VOCAB_SIZE, tie_embeddings=False
    )
    sizes = {"num_layers": 2, "d_model": 8, "num_heads": 2, "d_ff": 12, "num_units": 10}
    sizes["tie_output"] = False
    architecture = architecture_of(name)
    known = {size: sizes[size] for size in sizes if has_setting(architecture, size)}
    model = build_model(dataclasses.replace(config, **known))
    random = np.random.default_rng(6)
    for variable in model.trainable_variables:
        if len(variable.shape) > 1:
            variable.assign(random.normal(scale=0.7, size=variable.shape))
        else:  # biases and scales, which begin at 0 and 1
            variable.assign_add(random.normal(scale=0.1, size=variable.shape))
    # Makes the next token depend on the last one at least as much as on the source.
    [embeddings] = [v for v in model.trainable_variables if v.shape == (VOCAB_SIZE, 8)]
    embeddings.assign(3.0 * embeddings)
    if isinstance(model, Seq2Seq):  # whose gates would all be open or shut
        for layer in (model.source_embedding, model.target_embedding):
            layer.embeddings.assign(layer.embeddings / model.config.d_model**0.5)
    # These biases favour no token on average, so translations differ and end at any position; as
    # after training, padding is never chosen.
    target_ids = random.integers(0, VOCAB_SIZE, (16, 9))
    logits = model({"source_ids": padded_sources(), "target_ids": target_ids}).numpy()
    bias = -logits.mean(axis=(0, 1))
    bias[PAD] = -99.0
    model.output_projection.bias.assign_add(bias)
    return model


def padded_sources(num_rows=16):
    random = np.random.default_rng(6)
    source_ids = random.integers(4, 11, (num_rows, 7)).astype("int32")
    lengths = random.integers(1, 8, num_rows)
    source_ids[np.arange(7) >= lengths[:, None]] = PAD
    return source_ids


def varied_end(model):
    """The id that as the end token makes the translations of `padded_sources` differ most."""
    source_ids = padded_sources()
    target_ids = np.full((len(source_ids), 1), BOS, "int32")
    for _ in range(9):
        logits = model({"source_ids": source_ids, "target_ids": target_ids}).numpy()
        best = logits[:, -1].argmax(axis=-1).astype("int32")
        target_ids = np.concatenate([target_ids, best[:, None]], axis=1)
    rows = target_ids[:, 1:].tolist()
    return max(
        range(VOCAB_SIZE),
        key=lambda i: len({tuple(row[: row.index(i)]) for row in rows if i in row}),
    )


# Searches with any of these models, and their results


class Case(NamedTuple):
    """A model, sources to search with it, and its special ids."""

    model: Any
    sources: np.ndarray
    special: dict

    def search(self, sources, limits, beam_size=None, length_penalty=0.6, n_best=1, **more):
        """Beam search, or greedy search where there is no size of a beam."""
        cache = self.model.start_decoding(sources)
        options = {"length_penalty": length_penalty} | self.special | more
        if beam_size is None:
            return greedy_search(self.model.decode_step, cache, limits, **options)
        options |= {"beam_size": beam_size, "n_best": n_best}
        return beam_search(self.model.decode_step, cache, limits, **options)


def make_case(name):
    model = make_model(name)
    return Case(model, padded_sources(40), {**SPECIAL, "eos_id": varied_end(model)})


def arrays(found):
    assert isinstance(found, Hypotheses)
    found = Hypotheses(*(tensor.numpy() for tensor in found))
    dtypes = [array.dtype for array in found]
    assert dtypes == ["int32", "int32", "float32", "float32", "bool"]
    return found


def hypotheses_of(found, sentence):
    """The ids of each hypothesis and whether it was truncated, after a check of its padding."""
    hypotheses = []
    for ids, length, truncated in zip(
        found.ids[sentence], found.lengths[sentence], found.truncated[sentence], strict=True
    ):
        assert (ids[length:] == PAD).all()
        hypotheses.append((tuple(ids[:length].tolist()), bool(truncated)))
    return hypotheses


def search_loop(logits_of, limit, beam_size, length_penalty=0.6, eos_id=EOS):
    """All hypotheses of one sentence as (score, log_prob, ids, truncated), best first.

    It stops at the limit, or when K hypotheses are finished and no live one would be among them if
    it were complete, which is part of the algorithm.
    """
    live, finished = [(0.0, ())], []
    for index in range(limit + 1):
        continuations = [
            (log_prob + more, ids, token)
            for log_prob, ids in live
            for token, more in enumerate(log_softmax(logits_of([BOS, *ids])))
        ]
        continuations = sorted(continuations, key=lambda c: -c[0])[: 2 * beam_size]
        ending = [(p, ids) for p, ids, token in continuations[:beam_size] if token == eos_id]
        penalty = ((5 + index + 1) / 6) ** length_penalty
        finished += [(p / penalty, p, ids, False) for p, ids in ending]
        finished = sorted(finished, key=lambda f: -f[0])[:beam_size]
        if index < limit:
            live = [(p, (*ids, token)) for p, ids, token in continuations if token != eos_id]
            live = live[:beam_size]
            if len(finished) == beam_size and live[0][0] / penalty <= finished[-1][0]:
                return finished
    if len(finished) == beam_size:
        return finished
    penalty, ended = ((5 + limit) / 6) ** length_penalty, {ids for _, ids in ending}
    return finished + [(p / penalty, p, ids, True) for p, ids in live if ids not in ended]


def assert_found(found, expected):
    """Compares what a search found with the rows of `search_loop` for each sentence."""
    n_best = found.scores.shape[1]
    assert found.ids.shape == (len(expected), n_best, found.lengths.max(initial=0))
    for sentence, rows in enumerate(expected):
        rows = rows[:n_best]
        missing = [((), False)] * (n_best - len(rows))
        assert hypotheses_of(found, sentence) == [row[2:] for row in rows] + missing
        for column, values in enumerate((found.scores, found.log_probs)):
            wanted = [row[column] for row in rows] + [NEG_INF] * len(missing)
            np.testing.assert_allclose(values[sentence], wanted, atol=1e-4)
