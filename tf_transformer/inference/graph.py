"""The graph of a translator, as it is saved: tokenize, encode, search, detokenize."""

import dataclasses
import functools
from collections.abc import Callable

import keras
import tensorflow as tf

# Registers the ops of SentencePiece, without which SavedModels that use them do not load.
import tensorflow_text  # noqa: F401

from tf_transformer.decoding.beam import beam_search
from tf_transformer.decoding.greedy import greedy_search
from tf_transformer.decoding.result import Hypotheses, output_limits
from tf_transformer.decoding.translation_model import TranslationModel
from tf_transformer.errors import InputError
from tf_transformer.inference.document import translate_sentences
from tf_transformer.inference.folding import freeze
from tf_transformer.inference.results import MISSING_SCORE
from tf_transformer.inference.scoring import Alignment, TeacherForcing, can_align, can_score
from tf_transformer.inference.sentences import BREAK, has_several, split_lines, split_sentences
from tf_transformer.inference.text_reader import TextReader, valid_utf8
from tf_transformer.models.model_configs import ModelConfig
from tf_transformer.tokenizers import GraphTokenizer

_LARGEST_BEAM = 1024
_TEXTS_TOGETHER = 256
_TEXT = tf.TensorSpec([None], tf.string, name="text")
_PAIRS = tuple(tf.TensorSpec([None], tf.string, name=name) for name in ("source", "target"))
_SOURCE = (
    tf.TensorSpec([None, None], tf.int32, name="source_ids"),
    tf.TensorSpec([None], tf.int32, name="limits"),
)
_LENGTH_PENALTY = tf.TensorSpec([], tf.float32, name="length_penalty")
_BEAM = (
    tf.TensorSpec([], tf.int32, name="beam_size"),
    _LENGTH_PENALTY,
    tf.TensorSpec([], tf.int32, name="n_best"),
)
# The fields of `Hypotheses`, ids `(B, n, T)` and the others `(B, n)`.
_HYPOTHESES = (
    tf.TensorSpec([None, None, None], tf.int32),
    *(tf.TensorSpec([None, None], dtype) for dtype in (tf.int32, tf.float32, tf.float32, tf.bool)),
)
_NOT_INLINED = {"_noinline": True}
# The inputs of a search compiled by XLA, whose beam has a constant size.
SEARCH_SPECS = (*_SOURCE, _LENGTH_PENALTY)


@dataclasses.dataclass(frozen=True)
class Search:
    """How a translator reads sources and searches for their translations.

    Attributes:
        beam_size: Hypotheses to follow; 1 is greedy search.
        length_penalty: See `beam_score`.
        max_length: Tokens a source may have, its end included (the rest is dropped), and the limit
            of any translation.
        max_length_ratio: See `output_limits`.
        fold_capitals: Whether to apply `capitals.fold_capitals` to sources.
        dotless_i: Whether it then makes ı of I; None for texts with ı or İ.
        source_tag: Text in front of each source, such as `>>deu<<`, which names a language.
        allow_unknown: Whether translations may have the token of unknown subwords, `unk_id`, and
            bytes of control characters. Marian allows neither.
        by_sentence: Whether each sentence of a line is translated on its own. Otherwise each line
            is translated whole, as for the prompt of a language model.
        alignment: The attention that `align` returns; None for `default_alignment`.
    """

    beam_size: int = 1
    length_penalty: float = 0.6
    max_length: int = 128
    max_length_ratio: float = 2.0
    fold_capitals: bool = False
    dotless_i: bool | None = None
    source_tag: str = ""
    allow_unknown: bool = True
    by_sentence: bool = True
    alignment: Alignment | None = None


class ExportTranslator(tf.Module):
    """The functions of a translator. All are saved; some of them are signatures.

    It holds the model's variables but no Keras objects, so its SavedModel loads wherever TensorFlow
    and the ops of TensorFlow Text are installed. `score` is None if `can_score` is false, and
    `align` is None if `can_align` is false.

    Args:
        model: A translation model, built.
        source_tokenizer, target_tokenizer: Its tokenizers, such as `SentencePieceTokenizer`.
        search: The settings of the search; None means the defaults of `Search`.

    Raises:
        ValueError: The tokenizers are not those of the model, the model has too few positions, or
            a setting of the search is out of range.
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
        # Hold the variables of TensorFlow: for a `keras.Variable` in a module, Keras saves a second
        # variable, and a server would restore that instead of the one that the graph reads.
        self.weights = [w.value if isinstance(w, keras.Variable) else w for w in model.weights]
        self.assets = [source_tokenizer.graph_resource, target_tokenizer.graph_resource]
        settings = {
            "beam_size": search.beam_size,
            "length_penalty": float(search.length_penalty),
            "vocab_size": target_tokenizer.vocab_size,
            "source_pad_id": source_tokenizer.pad_id,
            "by_sentence": search.by_sentence,
        }
        self.settings = {n: tf.Variable(v, trainable=False) for n, v in settings.items()}

        self._steps = steps = _Steps(model, source_tokenizer, target_tokenizer, search)
        self.translate = _function(_TEXT)(steps.translate)
        self.translate_nbest = _function(_TEXT)(steps.translate_nbest)
        self.translate_document = _function(_TEXT)(steps.translate_document)
        self.score = self.align = None
        forced = TeacherForcing(model, steps.source, steps.target)
        if can_score(model):
            self.score = _function(*_PAIRS)(forced.score)
        if can_align(model, steps.source, steps.target):
            align = functools.partial(forced.align, alignment=search.alignment)
            self.align = _function(*_PAIRS)(align)
        # For callers of the loaded object: any beam size, and the parts that XLA can compile.
        self.greedy, self.beam = steps.greedy, steps.beam
        self.fixed_greedy, self.fixed_beam = steps.searches(is_fixed=True)
        self.tokenize = _function(_TEXT)(steps.tokenize)
        self.detokenize = _function(*_HYPOTHESES, tf.TensorSpec([None], tf.bool))(
            lambda *args: steps.detokenize(Hypotheses(*args[:-1])._asdict(), args[-1])
        )

    def frozen(self) -> "ExportTranslator":
        """Return a translator with the present weights, in the form that is exported."""
        steps = self._steps
        model = freeze(steps.model, steps.settings.max_length)
        if model is steps.model:
            return self
        tokenizers = steps.source.tokenizer, steps.target.tokenizer
        return ExportTranslator(model, *tokenizers, steps.settings)

    def signatures(self) -> dict[str, Callable]:
        """Return the signatures of the SavedModel by name."""
        names = ("translate_nbest", "translate_document", "score", "align")
        functions = {"serving_default": self.translate} | {n: getattr(self, n) for n in names}
        return {name: function for name, function in functions.items() if function is not None}


class _Steps:
    """The steps from text to text as functions of tensors; the object itself is not saved."""

    def __init__(self, model, source_tokenizer, target_tokenizer, search):
        self.model = model
        self.settings = search
        self._limits = search.max_length, search.max_length_ratio
        folding = search.fold_capitals, search.source_tag, search.dotless_i
        self.source = TextReader(source_tokenizer, search.max_length, *folding)
        self.target = TextReader(target_tokenizer, search.max_length)
        self._search_greedily, self._search_beam = self.searches(is_fixed=False)
        self._search_for_ids = _function(*_SOURCE)(
            lambda *inputs: self._search(False, *inputs, None, 0.0, log_probs=False)
        )
        self.greedy = _function(_TEXT, _LENGTH_PENALTY)(
            functools.partial(self._texts, self._search_greedily)
        )
        self.beam = _function(_TEXT, *_BEAM)(functools.partial(self._texts, self._search_beam))

    def translate(self, text):
        """Return the outputs of `serving_default`: only one, so that servers return a flat list."""

        def first_tokens(text):
            return self.source.first_tokens(text)[0]

        # If it were inlined, each of its operations would cost time where it is not called, too: a
        # tenth of the time of one sentence.
        @functools.partial(tf.function, autograph=False, experimental_attributes=_NOT_INLINED)
        def in_sentences():
            sentences = split_lines(text, self.settings.by_sentence)
            return self._translate_sentences(sentences, first_tokens)["translation"]

        def whole():
            return self._translate_rows(first_tokens(valid_utf8(text)))[0]

        # Translate whole texts where possible, because splitting and joining makes a short greedy
        # search 8 % slower. One search of many texts would need memory for all of them at once.
        several = tf.reduce_any(has_several(text)) | (tf.size(text) > _TEXTS_TOGETHER)
        return {"translation": tf.cond(several, in_sentences, whole)}

    def translate_nbest(self, text):
        """Return the outputs of `translate_nbest`: the best hypotheses of each text, best first."""
        beam_size = self.settings.beam_size
        n_best = beam_size if beam_size > 1 else min(4, self.target.tokenizer.vocab_size)
        found = self.beam(text, n_best, self.settings.length_penalty, n_best)
        truncated = found["source_truncated"] | tf.reduce_any(found["truncated"], axis=1)
        outputs = {name: found[name] for name in ("translations", "scores", "lengths")}
        return {**outputs, "truncated": truncated}

    def translate_document(self, text):
        """Return the outputs of `translate_document`: texts of any length, part by part."""
        sentences = split_sentences(text, self.settings.by_sentence)
        return self._translate_sentences(sentences, self.source.all_tokens)

    def _texts(self, search, text, *options):
        """Search for translations of texts, and return them as `detokenize` does."""
        source_ids, limits, source_truncated = self.tokenize(text)
        return self.detokenize(search(source_ids, limits, *options), source_truncated)

    def _translate_sentences(self, sentences, tokenize):
        limits = self.source.max_tokens, self.source.tag_length
        return translate_sentences(sentences, tokenize, self._translate_rows, *limits)

    def _translate_rows(self, tokens):
        """Return the best translations of rows of tokens, and whether each was truncated."""
        source_ids, limits = self._search_inputs(tokens)
        if self.settings.beam_size == 1:
            found = self._search_for_ids(source_ids, limits)
        else:
            options = self.settings.beam_size, self.settings.length_penalty, 1
            found = self._search_beam(source_ids, limits, *options)
        found = self.detokenize(found, None)
        return found["translations"][:, 0], found["truncated"][:, 0]

    def tokenize(self, text):
        """Return source ids `(B, S)`, limits `(B,)`, and whether text may be lost `(B,)`."""
        text = valid_utf8(text)
        tokens, truncated = self.source.first_tokens(text)
        # A model trained on sentences often translates only the first of several lines.
        several_lines = tf.strings.regex_full_match(text, rf"(?s).*\S.*{BREAK}.*\S.*")
        return *self._search_inputs(tokens), truncated | several_lines

    def _search_inputs(self, tokens):
        """Return padded source ids `(B, S)` and limits `(B,)` of rows of tokens."""
        lengths = tf.cast(tokens.row_lengths(), tf.int32)
        source_ids = self.source.padded(self.source.with_end(tokens))
        # A limit of 0 gives a text without tokens an empty translation.
        return source_ids, tf.where(lengths == 0, 0, output_limits(lengths, *self._limits))

    def searches(self, is_fixed):
        """Return greedy and beam search as `tf.function`s, which the signatures share."""

        def greedy(source_ids, limits, length_penalty):
            return self._search(is_fixed, source_ids, limits, None, length_penalty)

        beam = functools.partial(self._search, is_fixed)
        return _function(*SEARCH_SPECS)(greedy), _function(*_SOURCE, *_BEAM)(beam)

    def _search(
        self, is_fixed, source_ids, limits, beam_size, length_penalty, n_best=1, log_probs=True
    ):
        """Return the fields of `Hypotheses`, found by greedy search if `beam_size` is None."""
        model, tokenizer = self.model, self.target.tokenizer
        num_steps = None
        if is_fixed:  # XLA must derive the largest number of steps from a shape
            num_steps = output_limits(tf.shape(source_ids)[1], *self._limits) + 1
        options = {name: getattr(tokenizer, name) for name in ("pad_id", "bos_id", "eos_id")}
        options |= {"length_penalty": length_penalty, "num_steps": num_steps}
        cache = model.start_decoding(source_ids, num_steps=num_steps)
        if beam_size is None:
            options["with_log_probs"] = log_probs
            return greedy_search(self._decode_step, cache, limits, **options)._asdict()
        options |= {"beam_size": beam_size, "n_best": n_best}
        return beam_search(self._decode_step, cache, limits, **options)._asdict()

    def _decode_step(self, token_ids, index, cache):
        """Return the model's logits, lower for unknown subwords if they are not allowed."""
        logits, cache = self.model.decode_step(token_ids, index, cache)
        if not self.settings.allow_unknown:
            tokenizer = self.target.tokenizer
            never = [tokenizer.unk_id, *getattr(tokenizer, "control_ids", ())]
            one_hots = tf.one_hot(never, logits.shape[-1], 1e4, dtype=logits.dtype)
            logits -= tf.reduce_sum(one_hots, axis=0)
        return logits, cache

    def detokenize(self, hypotheses, source_truncated):
        """Return the texts of `Hypotheses` with scores and lengths, and what was truncated.

        If several hypotheses have the same text in different subwords, only the best is kept.
        """
        ids, lengths = hypotheses["ids"], hypotheses["lengths"]
        batch_size, n_best = tf.unstack(tf.shape(lengths))
        ids = tf.reshape(ids, [batch_size * n_best, tf.shape(ids)[2]])
        rows = tf.RaggedTensor.from_tensor(ids, tf.reshape(lengths, [-1]))
        decoded = tf.reshape(self.target.tokenizer.detokenize(rows), [batch_size, n_best])
        texts = tf.strings.regex_replace(decoded, "\ufffd", "")  # bytes that form no character
        ranks = tf.range(n_best)
        is_same = (texts[:, :, None] == texts[:, None]) & (ranks < ranks[:, None])
        repeats = tf.reduce_any(is_same, axis=2)
        found = {
            "translations": tf.where(repeats, "", texts),
            "lengths": tf.where(repeats, 0, lengths),
            "truncated": hypotheses["truncated"] & (lengths > 0) & ~repeats,
            "bytes_dropped": (texts != decoded) & ~repeats,
        }
        for name in ("scores", "log_probs"):
            values = tf.where(repeats, MISSING_SCORE, hypotheses[name])
            found[name] = tf.maximum(values, MISSING_SCORE)
        order = tf.argsort(tf.cast(repeats, tf.int32), axis=1, stable=True)
        found = {name: tf.gather(field, order, batch_dims=1) for name, field in found.items()}
        return {**found, "source_truncated": source_truncated}


def _function(*specs):
    # Without AutoGraph, loops are `tf.while_loop`, and run time needs no source files.
    return lambda function: tf.function(function, input_signature=specs, autograph=False)


def _require_fit(model, source_tokenizer, target_tokenizer, search):
    """Raise a `ValueError` unless model, tokenizers and search fit together."""
    config = getattr(model, "config", None)
    for side, tokenizer in (("source", source_tokenizer), ("target", target_tokenizer)):
        for of_model, name in ((f"{side}_vocab_size", "vocab_size"), ("pad_id", "pad_id")):
            value = getattr(tokenizer, name)
            expected = getattr(config, of_model, value)
            if value != expected:
                raise InputError(
                    f"the {side} tokenizer has {name}={value}, but the model was trained with "
                    f"{name}={expected}; give the tokenizers that it was trained with."
                )
    if not search.allow_unknown and not hasattr(target_tokenizer, "unk_id"):
        raise InputError("allow_unknown=False needs a target tokenizer that has an unk_id.")
    if search.max_length < 2:  # a token and the end
        raise InputError(f"max_length must be at least 2; received {search.max_length}.")
    is_ours = isinstance(config, ModelConfig)
    if is_ours and (lack := config.lack_of_positions(search.max_length)):
        raise InputError(lack)
    require_search(search.beam_size, search.length_penalty, target_tokenizer.vocab_size)


def require_search(beam_size: int, length_penalty: float, vocab_size: int) -> None:
    """Raise a `ValueError` unless the beam size and the length penalty are in range."""
    largest = min(_LARGEST_BEAM, vocab_size)
    if not 1 <= beam_size <= largest:
        raise InputError(f"beam_size must be from 1 to {largest}; received {beam_size}.")
    if not 0 <= length_penalty <= 10:
        raise InputError(f"length_penalty must be from 0 to 10; received {length_penalty}.")
