"""The graph of a translator, as it is saved: tokenize, encode, search, detokenize."""

import dataclasses
import functools
from collections.abc import Callable

import keras
import tensorflow as tf

# Registers the ops of SentencePiece; a SavedModel that holds them does not load without.
import tensorflow_text  # noqa: F401

from tf_transformer.decoding import (
    Hypotheses,
    TranslationModel,
    beam_search,
    greedy_search,
    output_limits,
)
from tf_transformer.inference.document import translate_sentences
from tf_transformer.inference.results import MISSING_SCORE
from tf_transformer.inference.scoring import (
    Alignment,
    TeacherForcing,
    can_align,
    has_teacher_forcing,
)
from tf_transformer.inference.sentences import has_several, split_lines, split_sentences
from tf_transformer.inference.tokens import TextReader, valid_utf8
from tf_transformer.tokenizers import GraphTokenizer

_LARGEST_BEAM = 1024
_TEXTS_TOGETHER = 256
_TEXT = tf.TensorSpec([None], tf.string, name="text")
_PAIRS = tuple(tf.TensorSpec([None], tf.string, name=name) for name in ("source", "target"))
_SOURCE = (
    tf.TensorSpec([None, None], tf.int32, name="source_ids"),
    tf.TensorSpec([None], tf.int32, name="limits"),
)
_BEAM_SIZE = tf.TensorSpec([], tf.int32, name="beam_size")
_LENGTH_PENALTY = tf.TensorSpec([], tf.float32, name="length_penalty")
_N_BEST = tf.TensorSpec([], tf.int32, name="n_best")
_BEAM = (_BEAM_SIZE, _LENGTH_PENALTY, _N_BEST)
_HYPOTHESES = (
    tf.TensorSpec([None, None, None], tf.int32, name="ids"),
    tf.TensorSpec([None, None], tf.int32, name="lengths"),
    tf.TensorSpec([None, None], tf.float32, name="log_probs"),
    tf.TensorSpec([None, None], tf.float32, name="scores"),
    tf.TensorSpec([None, None], tf.bool, name="truncated"),
)
# What a search compiled by XLA takes, whose beam has a constant size.
SEARCH_SPECS = (*_SOURCE, _LENGTH_PENALTY)


@dataclasses.dataclass(frozen=True)
class Search:
    """How a translator reads sources and searches for their translations.

    Attributes:
        beam_size: Hypotheses to follow; 1 is greedy search.
        length_penalty: See `beam_score`.
        max_length: Tokens a source may have, its end included (the rest is dropped), and the limit
            of any translation.
        max_length_ratio: Limit of a translation in tokens for each token of its source, see
            `output_limits`.
        fold_capitals: Whether to lower the case of a source that is mostly in capitals, see
            `tokens.fold_capitals`.
        by_sentence: Whether each sentence of a line is translated on its own. Otherwise a line is
            one sentence, such as the prompt of a language model.
        alignment: The attention that `align` returns; None for `default_alignment`.
    """

    beam_size: int = 1
    length_penalty: float = 0.6
    max_length: int = 128
    max_length_ratio: float = 2.0
    fold_capitals: bool = False
    by_sentence: bool = True
    alignment: Alignment | None = None


class ExportTranslator(tf.Module):
    """The functions of a translator. All are saved; some of them are signatures.

    It holds the model's variables and nothing else of Keras, so a SavedModel of it loads wherever
    TensorFlow and the ops of TensorFlow Text are.

    Args:
        model: A translation model, built.
        source_tokenizer: Tokenizer of the source, such as a `SentencePieceTokenizer`.
        target_tokenizer: Tokenizer of the target.
        search: How it searches.

    Attributes:
        score: The signature `score`; None where the model has no teacher forcing.
        align: The signature `align`; None where model or tokenizers lack something, see
            `can_align`.
        settings: Scalar variables `beam_size`, `length_penalty`, `vocab_size` (the target's),
            `source_pad_id` and `by_sentence`.

    Raises:
        ValueError: The tokenizers are not those of the model, the model has too few positions, or
            the search is impossible.
    """

    def __init__(
        self,
        model: TranslationModel,
        source_tokenizer: GraphTokenizer,
        target_tokenizer: GraphTokenizer,
        search: Search | None = None,
    ) -> None:
        super().__init__(name="translator")
        search = search or Search()
        _require_fit(model, source_tokenizer, target_tokenizer, search)
        beam_size, length_penalty = search.beam_size, float(search.length_penalty)
        # The variables of TensorFlow: beside a `keras.Variable` that a module holds Keras saves
        # a second one, and a server would restore that and not the one that the graph reads.
        self.weights = [w.value if isinstance(w, keras.Variable) else w for w in model.weights]
        self.assets = [source_tokenizer.graph_resource, target_tokenizer.graph_resource]
        self.settings = {
            "beam_size": tf.Variable(beam_size, trainable=False),
            "length_penalty": tf.Variable(length_penalty, trainable=False),
            "vocab_size": tf.Variable(target_tokenizer.vocab_size, trainable=False),
            "source_pad_id": tf.Variable(source_tokenizer.pad_id, trainable=False),
            "by_sentence": tf.Variable(search.by_sentence, trainable=False),
        }
        source = TextReader(source_tokenizer, search.max_length, search.fold_capitals)
        target = TextReader(target_tokenizer, search.max_length)
        steps = _Steps(model, source, target_tokenizer, search)

        # The searches are functions of their own, so that a SavedModel holds each of them once.
        def searches(is_fixed):
            @_function(*_SOURCE, _LENGTH_PENALTY)
            def greedy(source_ids, limits, length_penalty):
                return steps.search(is_fixed, source_ids, limits, None, length_penalty)

            @_function(*_SOURCE, *_BEAM)
            def beam(source_ids, limits, beam_size, length_penalty, n_best):
                return steps.search(is_fixed, source_ids, limits, beam_size, length_penalty, n_best)

            return greedy, beam

        search_greedily, search_beam = searches(is_fixed=False)

        @_function(_TEXT, _LENGTH_PENALTY)
        def greedy(text, length_penalty):
            source_ids, limits, source_truncated = steps.tokenize(text)
            found = search_greedily(source_ids, limits, length_penalty)
            return steps.detokenize(Hypotheses(**found), source_truncated)

        @_function(_TEXT, *_BEAM)
        def beam(text, beam_size, length_penalty, n_best):
            source_ids, limits, source_truncated = steps.tokenize(text)
            found = search_beam(source_ids, limits, beam_size, length_penalty, n_best)
            return steps.detokenize(Hypotheses(**found), source_truncated)

        def translate_rows(tokens):
            source_ids, limits = steps.search_inputs(tokens)
            if beam_size == 1:
                found = search_greedily(source_ids, limits, length_penalty)
            else:
                found = search_beam(source_ids, limits, beam_size, length_penalty, 1)
            found = steps.detokenize(Hypotheses(**found), None)
            return found["translations"][:, 0], found["truncated"][:, 0]

        @_function(_TEXT)
        def translate(text):
            """The signature `serving_default`, with the one output that servers return flat."""

            def first_tokens(text):
                return source.first_tokens(text)[0]

            def in_sentences():
                sentences = split_lines(text, search.by_sentence)
                return translate_sentences(
                    sentences, first_tokens, translate_rows, source.max_tokens
                )["translation"]

            # Splitting and joining would cost a short greedy search 8 %, and one search of many
            # texts needs memory for all.
            several = tf.reduce_any(has_several(text)) | (tf.size(text) > _TEXTS_TOGETHER)
            translation = tf.cond(
                several, in_sentences, lambda: translate_rows(first_tokens(valid_utf8(text)))[0]
            )
            return {"translation": translation}

        n_best = beam_size if beam_size > 1 else min(4, target_tokenizer.vocab_size)

        @_function(_TEXT)
        def translate_nbest(text):
            """The signature `translate_nbest`: the best hypotheses, best first."""
            found = beam(text, n_best, length_penalty, n_best)
            truncated = found["source_truncated"] | tf.reduce_any(found["truncated"], axis=1)
            outputs = {name: found[name] for name in ("translations", "scores", "lengths")}
            return {**outputs, "truncated": truncated}

        @_function(_TEXT)
        def translate_document(text):
            """The signature `translate_document`: texts of any length, sentence by sentence."""
            return translate_sentences(
                split_sentences(text), source.all_tokens, translate_rows, source.max_tokens
            )

        self.translate, self.translate_nbest = translate, translate_nbest
        self.translate_document = translate_document
        self.score = self.align = None
        forced = TeacherForcing(model, source, target)
        if has_teacher_forcing(model):
            self.score = _function(*_PAIRS)(forced.score)
        if can_align(model, source, target):
            align = functools.partial(forced.align, alignment=search.alignment)
            self.align = _function(*_PAIRS)(align)
        # For those who call the loaded object: any beam, and the parts that XLA can compile.
        self.greedy, self.beam = greedy, beam
        self.fixed_greedy, self.fixed_beam = searches(is_fixed=True)
        self.tokenize = _function(_TEXT)(steps.tokenize)
        self.detokenize = _function(*_HYPOTHESES, tf.TensorSpec([None], tf.bool))(
            lambda *args: steps.detokenize(Hypotheses(*args[:-1]), args[-1])
        )

    def signatures(self) -> dict[str, Callable]:
        """Returns the signatures of its SavedModel."""
        signatures = {
            "serving_default": self.translate,
            "translate_nbest": self.translate_nbest,
            "translate_document": self.translate_document,
            "score": self.score,
            "align": self.align,
        }
        return {name: function for name, function in signatures.items() if function is not None}


class _Steps:
    """The steps from text to text, as functions of tensors; not tracked, so not saved."""

    def __init__(self, model, source, target_tokenizer, search):
        self._model = model
        self._source = source
        self._target_tokenizer = target_tokenizer
        self._limits = search.max_length, search.max_length_ratio
        names = ("pad_id", "bos_id", "eos_id")
        self._special_ids = {name: getattr(target_tokenizer, name) for name in names}

    def tokenize(self, text):
        """Source ids `(B, S)`, limits `(B,)`, and whether text was dropped `(B,)`."""
        text = valid_utf8(text)
        tokens, truncated = self._source.first_tokens(text)
        # A model of sentences translates the first of several lines, and often no more.
        several_lines = tf.strings.regex_full_match(text, r"(?s).*\S.*\n.*\S.*")
        return *self.search_inputs(tokens), truncated | several_lines

    def search_inputs(self, tokens):
        """Source ids `(B, S)`, padded, and limits `(B,)`, of rows of tokens."""
        lengths = tf.cast(tokens.row_lengths(), tf.int32)
        source_ids = self._source.padded(self._source.with_end(tokens))
        # A text without a token has an empty translation.
        return source_ids, tf.where(lengths == 0, 0, output_limits(lengths, *self._limits))

    def search(self, is_fixed, source_ids, limits, beam_size, length_penalty, n_best=1):
        """The fields of `Hypotheses`, by greedy search where `beam_size` is None."""
        num_steps = None
        if is_fixed:  # XLA needs to know the most steps from the shape
            num_steps = output_limits(tf.shape(source_ids)[1], *self._limits) + 1
        options = {"length_penalty": length_penalty, "num_steps": num_steps, **self._special_ids}
        model = self._model
        cache = model.start_decoding(source_ids, num_steps=num_steps, beam_size=beam_size)
        if beam_size is None:
            return greedy_search(model.decode_step, cache, limits, **options)._asdict()
        options |= {"beam_size": beam_size, "n_best": n_best}
        return beam_search(model.decode_step, cache, limits, **options)._asdict()

    def detokenize(self, hypotheses, source_truncated):
        """The texts of hypotheses `(B, n)`, and what is known of them.

        Only the best of several hypotheses with the same text, in other subwords, is kept.
        """
        batch_size, n_best = tf.unstack(tf.shape(hypotheses.lengths))
        ids = tf.reshape(hypotheses.ids, [batch_size * n_best, tf.shape(hypotheses.ids)[2]])
        rows = tf.RaggedTensor.from_tensor(ids, tf.reshape(hypotheses.lengths, [-1]))
        texts = self._target_tokenizer.detokenize(rows)
        texts, ranks = tf.reshape(texts, [batch_size, n_best]), tf.range(n_best)
        is_same = (texts[:, :, None] == texts[:, None]) & (ranks < ranks[:, None])
        repeats = tf.reduce_any(is_same, axis=2)
        scores, log_probs = (
            tf.maximum(tf.where(repeats, MISSING_SCORE, values), MISSING_SCORE)
            for values in (hypotheses.scores, hypotheses.log_probs)
        )
        order = tf.argsort(tf.cast(repeats, tf.int32), axis=1, stable=True)
        found = {
            "translations": tf.where(repeats, "", texts),
            "scores": scores,
            "log_probs": log_probs,
            "lengths": tf.where(repeats, 0, hypotheses.lengths),
            "truncated": hypotheses.truncated & (hypotheses.lengths > 0) & ~repeats,
        }
        found = {name: tf.gather(field, order, batch_dims=1) for name, field in found.items()}
        return {**found, "source_truncated": source_truncated}


def _function(*specs):
    # Without AutoGraph: loops are `tf.while_loop`, and no source file is needed at run time.
    return lambda function: tf.function(function, input_signature=specs, autograph=False)


def _require_fit(model, source_tokenizer, target_tokenizer, search):
    """Raises a `ValueError` where model, tokenizers and search do not go together."""
    config = getattr(model, "config", None)
    for side, tokenizer in (("source", source_tokenizer), ("target", target_tokenizer)):
        for of_model, name in ((f"{side}_vocab_size", "vocab_size"), ("pad_id", "pad_id")):
            value = getattr(tokenizer, name)
            expected = getattr(config, of_model, value)
            if value != expected:
                raise ValueError(
                    f"the {side} tokenizer has {name}={value}, but the model was made for "
                    f"{name}={expected}; give the tokenizers with which it was trained."
                )
    if search.max_length < 2:
        raise ValueError(
            f"max_length must be at least 2, a token and the end; received {search.max_length}."
        )
    # A search gives the decoder the begin token and max_length tokens after it.
    limit = getattr(config, "position_limit", None)
    if limit is not None and search.max_length >= limit:
        raise ValueError(
            f"max_length must be less than max_positions={limit}, the positions that the model "
            f"learned; received max_length={search.max_length}."
        )
    require_search(search.beam_size, search.length_penalty, target_tokenizer.vocab_size)


def require_search(beam_size: int, length_penalty: float, vocab_size: int) -> None:
    """Raises a `ValueError` unless a vocabulary can be searched with these values."""
    largest = min(_LARGEST_BEAM, vocab_size)
    if not 1 <= beam_size <= largest:
        raise ValueError(f"beam_size must be from 1 to {largest}; received {beam_size}.")
    if not 0 <= length_penalty <= 10:
        raise ValueError(f"length_penalty must be from 0 to 10; received {length_penalty}.")
