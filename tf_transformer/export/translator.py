"""The translator: text in, text out, from a model in memory or a SavedModel on disk."""

import collections
import collections.abc
import concurrent.futures
import contextlib
import itertools
import os
import threading
from typing import NamedTuple

import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

from tf_transformer.decoding.hypotheses import RankedHypotheses
from tf_transformer.export.graph import (
    COMPILED_SPECS,
    MISSING_SCORE,
    SEARCH_SPECS,
    ExportTranslator,
    check_search,
)
from tf_transformer.export.saved_model import (
    find_saved_model,
    load_saved_model,
    write_saved_model,
)
from tf_transformer.export.versions import ExportError

_FEW_WEIGHTS = 8_000_000
_LONGEST_MIX = 16  # batches whose texts are sorted by length together


class Translation(NamedTuple):
    """One translation of a text.

    Attributes:
        text: str.
        score: float, `log_prob` over the length penalty.
        log_prob: float, sum of the log-probabilities of its pieces and its end.
        length: int, pieces.
        truncated: bool, whether the source was too long and cut, or the translation met its limit.
    """

    text: str
    score: float
    log_prob: float
    length: int
    truncated: bool


class Translator:
    """Translates a string or a list of strings.

    Make one with `Translator.load(path)` from a SavedModel, or with `Translator.from_model` from
    a model in memory; both run the same graph. Batches go through it side by side, one in each of
    `threads` threads, which costs less than to split each operation among them: where the process
    translates and does nothing else, call `run_in_callers_thread` first.

    Args:
        module: `ExportTranslator`, or what TensorFlow loads from a SavedModel of one.
        xla: bool, whether XLA compiles the search, once for each of the few sizes to which batches
            are then padded. It pays for the same process translating for long; greedy search
            gains most.
        threads: int, batches at a time; None is one for each core.
    """

    def __init__(self, module, *, xla=False, threads=None):
        self._module = module
        self._threads = threads or len(os.sched_getaffinity(0))
        self._settings = {name: value.numpy() for name, value in module.settings.items()}
        self._compiled = {} if xla else None
        self._compiling = threading.Lock()

    @classmethod
    def from_model(
        cls,
        model,
        source_tokenizer,
        target_tokenizer,
        max_length=128,
        beam_size=1,
        alpha=0.6,
        *,
        xla=False,
        threads=None,
    ):
        """A translator of a model in memory; it always uses the model's present weights.

        Args: as `ExportTranslator`; `xla` and `threads` as above.
        """
        module = ExportTranslator(
            model, source_tokenizer, target_tokenizer, max_length, beam_size, alpha
        )
        return cls(module, xla=xla, threads=threads)

    @classmethod
    def load(cls, path, *, xla=False, threads=None):
        """Loads a SavedModel.

        Args:
            path: a version, such as `saved_models/de_en/1`, or the folder of versions, of which
                the highest is taken.
            xla, threads: as above.

        Raises:
            ExportError: there is no SavedModel, it is damaged, or it is none of ours.
        """
        directory = find_saved_model(path)
        loaded = load_saved_model(directory)
        if not hasattr(loaded, "settings") or not hasattr(loaded, "fixed_beam"):
            raise ExportError(
                f"{directory}: the SavedModel is no translator of this version; "
                f"write one with tf-transformer export."
            )
        return cls(loaded, xla=xla, threads=threads)

    def save(self, path, version=None, manifest=None, overwrite=False):
        """Writes a SavedModel; the arguments, result and errors are `write_saved_model`'s.

        Raises:
            ExportError: this translator was itself loaded from a SavedModel.
        """
        if not isinstance(self._module, ExportTranslator):
            raise ExportError("this translator came from a SavedModel; copy that folder instead.")
        return write_saved_model(self._module, path, version, manifest, overwrite)

    def __call__(self, texts, batch_size=64, beam_size=None, alpha=None):
        """Translates.

        Args:
            texts: str or list of str; an empty one has an empty translation.
            batch_size: int, how many texts go through the graph at once. Texts of like length go
                together and come back in their order.
            beam_size: int, hypotheses to follow; 1 is greedy; None as exported.
            alpha: float, length penalty of the beam; None as exported.

        Returns:
            str for a str, list of str for a list.

        Raises:
            TypeError: something in `texts` is not a str.
            ValueError: a size is not positive, larger than the vocabulary or beyond all sense.
        """
        if isinstance(texts, str):
            return self([texts], batch_size, beam_size, alpha)[0]
        return [best.text for (best,) in self.stream(texts, 1, batch_size, beam_size, alpha)]

    def n_best(self, texts, n_best, batch_size=64, beam_size=None, alpha=None):
        """The best translations of each text.

        Args:
            texts: list of str.
            n_best: int, translations of each text, at most `beam_size`.
            batch_size, beam_size, alpha: as in a call.

        Returns:
            list of lists of `Translation`, best first; fewer than `n_best` where there are no
            more.

        Raises:
            TypeError, ValueError: as a call, and where `n_best` is more than `beam_size`.
        """
        return list(self.stream(texts, n_best, batch_size, beam_size, alpha))

    def stream(self, texts, n_best=1, batch_size=64, beam_size=None, alpha=None):
        """Translates an iterable of any length, in its order and in bounded memory.

        Args: as `n_best`, but `texts` may be any iterable of str.

        Returns:
            iterator of lists of `Translation`.

        Raises:
            TypeError, ValueError: as `n_best`.
        """
        beam_size = int(self._settings["beam_size"]) if beam_size is None else beam_size
        alpha = float(self._settings["alpha"]) if alpha is None else alpha
        self._check(n_best, batch_size, beam_size, alpha)

        def translate(batch):
            return self._translate(batch, n_best, batch_size, beam_size, alpha)

        return _in_order(_checked(texts), translate, batch_size, self._threads)

    def _check(self, n_best, batch_size, beam_size, alpha):
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1; received batch_size={batch_size}.")
        check_search(beam_size, alpha, int(self._settings["vocab_size"]))
        if not 1 <= n_best <= beam_size:
            raise ValueError(
                f"n_best must be from 1 to the size of the beam, {beam_size}; received "
                f"n_best={n_best}. Give a larger beam_size (--beam-size)."
            )

    def _translate(self, texts, n_best, batch_size, beam_size, alpha):
        """Lists of `Translation` of one batch."""
        batch = tf.constant([text.encode("utf-8", "replace") for text in texts])
        if self._compiled is not None:
            found = self._compiled_search(beam_size, n_best)(batch, alpha, batch_size)
        elif beam_size == 1:
            found = self._module.greedy(batch, alpha)
        else:
            found = self._module.beam(batch, beam_size, alpha, n_best)
        columns = ("translations", "scores", "log_probs", "lengths", "truncated")
        rows = zip(*(found[name].numpy().tolist() for name in columns), strict=True)
        translations = [
            [
                Translation(text.decode("utf-8"), *others)
                for text, *others in zip(*row, strict=True)
                if others[0] > MISSING_SCORE
            ]
            for row in rows
        ]
        if not all(translations):
            raise ValueError("the model gives no probabilities: its weights are not all numbers.")
        return translations

    def _compiled_search(self, beam_size, n_best):
        """`(text (B,), alpha, largest batch) -> ` what `beam` gives, its search compiled."""
        with self._compiling:
            if (beam_size, n_best) not in self._compiled:
                self._compiled[beam_size, n_best] = _compiled(
                    self._module, beam_size, n_best, self._has_constant_weights()
                )
            return self._compiled[beam_size, n_best]

    def _has_constant_weights(self):
        """Whether XLA may take the weights as constants: of a SavedModel, and a small one.

        A weight that is an argument costs 3 µs a call. Constants are copied for each shape.
        """
        if isinstance(self._module, ExportTranslator):
            return False
        return sum(weight.shape.num_elements() for weight in self._module.weights) <= _FEW_WEIGHTS


def _compiled(module, beam_size, n_best, constant_weights):
    names = RankedHypotheses._fields

    @tf.function(input_signature=SEARCH_SPECS, autograph=False)
    def search(source_ids, limits, alpha):
        if beam_size == 1:
            found = module.fixed_greedy(source_ids, limits, alpha)
        else:
            found = module.fixed_beam(source_ids, limits, beam_size, alpha, n_best)
        return [found[name] for name in names]

    if constant_weights:
        search = convert_variables_to_constants_v2(
            search.get_concrete_function(), lower_control_flow=False
        )
    compiled = tf.function(search, input_signature=SEARCH_SPECS, jit_compile=True, autograph=False)

    @tf.function(input_signature=COMPILED_SPECS, autograph=False)
    def translate(text, alpha, batch_size):
        source_ids, limits, cut = module.tokenize(text)
        num_rows, length = tf.unstack(tf.shape(source_ids))
        # XLA compiles for each shape anew; with these there are few.
        padded_rows = tf.minimum(batch_size, _power_of_two(num_rows)) - num_rows
        padded_length = tf.maximum(16, _power_of_two(length)) - length
        source_ids = tf.pad(source_ids, [[0, padded_rows], [0, padded_length]])
        found = compiled(source_ids, tf.pad(limits, [[0, padded_rows]]), alpha)
        found = {name: field[:num_rows] for name, field in zip(names, found, strict=True)}
        return module.finish(cut=cut, **found)

    return translate


def _power_of_two(size):
    """The smallest power of two that is not less than an int32 scalar tensor."""
    powers = tf.constant([1 << exponent for exponent in range(31)])
    return powers[tf.searchsorted(powers, size[None])[0]]


def run_in_callers_thread():
    """Lets each operation run where it is called, on one core; several batches use the others.

    Small operations cost less so than handed from thread to thread. Where TensorFlow has run
    something in this process already, its threads are what they are, and this does nothing.
    """
    with contextlib.suppress(RuntimeError):
        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(-1)


def _checked(texts):
    if isinstance(texts, str | bytes) or not isinstance(texts, collections.abc.Iterable):
        raise TypeError(f"texts must be a list of str; received {type(texts).__name__}.")
    return _each_checked(texts)


def _each_checked(texts):
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(
                f"texts must be a str or a list of str; item {index} is {type(text).__name__}."
            )
        yield text


def _in_order(texts, translate, batch_size, threads):
    """Translates groups of texts, sorted by length into batches; yields in the texts' order."""
    texts = iter(texts)
    group = list(itertools.islice(texts, batch_size * _LONGEST_MIX))
    if 0 < len(group) <= batch_size:
        # A thread for one batch would take a millisecond, as long as a short translation.
        yield from translate(group)
        return
    texts = itertools.chain(group, texts)
    with _pool(threads) as pool:
        waiting = collections.deque()
        while True:
            group = list(itertools.islice(texts, batch_size * _LONGEST_MIX))
            if group:
                by_length = sorted(range(len(group)), key=lambda i: len(group[i]), reverse=True)
                batches = [
                    by_length[start : start + batch_size]
                    for start in range(0, len(group), batch_size)
                ]
                futures = [
                    pool.submit(translate, [group[row] for row in batch]) for batch in batches
                ]
                waiting.append((batches, futures))
            # One group is prepared while another is read, so that no thread waits.
            while len(waiting) > (1 if group else 0):
                batches, futures = waiting.popleft()
                places = sorted(
                    (row, batch, place)
                    for batch, rows in enumerate(batches)
                    for place, row in enumerate(rows)
                )
                results = [future.result() for future in futures]
                yield from (results[batch][place] for _, batch, place in places)
            if not group:
                return


@contextlib.contextmanager
def _pool(threads):
    """Threads; what waits for one when an error or Ctrl-C comes is never begun."""
    pool = concurrent.futures.ThreadPoolExecutor(threads)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
