"""The graph of a translator, as it is saved: tokenize, encode, search, detokenize."""

from collections.abc import Callable

import keras
import tensorflow as tf

# Registers the ops of SentencePiece, without which SavedModels that use them do not load.
import tensorflow_text  # noqa: F401

from tf_transformer.data.marks import NOTHING_TO_TRANSLATE, Marked, Marks, seem_forced
from tf_transformer.decoding.result import Hypotheses
from tf_transformer.decoding.translation_model import TranslationModel
from tf_transformer.inference.document import Rows, translate_sentences
from tf_transformer.inference.flags import Found, expected_chrf, flags_of, has_loop
from tf_transformer.inference.functions import function, not_inlined, shared_function
from tf_transformer.inference.results import MISSING_SCORE
from tf_transformer.inference.scoring import TeacherForcing, can_align, can_score
from tf_transformer.inference.search import BEAM, LENGTH_PENALTY, SEARCHED, ModelSearch, Search
from tf_transformer.inference.sentences import (
    BREAK,
    Sentences,
    has_several,
    split_lines,
    split_sentences,
)
from tf_transformer.inference.terms import insert_terms
from tf_transformer.inference.text_reader import TextReader, valid_utf8
from tf_transformer.tokenizers import GraphTokenizer
from tf_transformer.tokenizers.marks import RESERVED_PATTERN, MarkIds

_TEXTS_TOGETHER = 256  # bounds the memory of one search
_TEXT = tf.TensorSpec([None], tf.string, name="text")
_TERMS = tf.TensorSpec([None], tf.string, name="terms")
_PAIRS = tuple(tf.TensorSpec([None], tf.string, name=name) for name in ("source", "target"))
_TEXTS = tf.TensorSpec([None, None], tf.string)
_MARKED = Marked(tf.TensorSpec([None], tf.string), _TEXTS)
# The first three fields of `Found`, and the fields of `Marked`.
_OF_SOURCE = *(tf.TensorSpec([None], dtype) for dtype in (tf.string, tf.int32, tf.bool)), *_MARKED
Tensors = dict[str, tf.Tensor]


class ExportTranslator(tf.Module):
    """The functions of a translator. All are saved; some of them are signatures.

    It holds the model's variables but no Keras objects, so its SavedModel loads wherever TensorFlow
    and the ops of TensorFlow Text are installed. `score` is None if `can_score` is false, `align`
    if `can_align` is false, and `translate_with_terms` if the vocabularies have no marks.

    Args:
        model: A translation model, built.
        source_tokenizer, target_tokenizer: Its tokenizers, such as `SentencePieceTokenizer`.
        search: The settings of the search; None means the defaults of `Search`.

    Raises:
        ValueError: The tokenizers are not those of the model, the model has too few positions, or
            a setting of the search is out of range.

    Example:
        >>> module = tt.ExportTranslator(model, tokenizer, tokenizer, tt.Search(max_length=16))
        >>> sorted(module.signatures())
        ['align', 'score', 'serving_default', 'translate_document', 'translate_nbest']
        >>> module.translate(tf.constant(["", "a"]))["translation"].shape
        TensorShape([2])
    """

    def __init__(
        self,
        model: TranslationModel,
        source_tokenizer: GraphTokenizer,
        target_tokenizer: GraphTokenizer,
        search: Search | None = None,
    ) -> None:
        super().__init__(name="translator")
        self.search = search = search or Search()
        search.require_fit(model, source_tokenizer, target_tokenizer)
        # Hold the variables of TensorFlow: for a `keras.Variable` in a module, Keras saves a second
        # variable, and a server would restore that instead of the one that the graph reads.
        self.weights = [w.value if isinstance(w, keras.Variable) else w for w in model.weights]
        self.assets = [source_tokenizer.graph_resource, target_tokenizer.graph_resource]
        self.marks = marks = Marks.of(source_tokenizer, target_tokenizer, search.mark_pattern)
        self._pieces = marks or Marks(0, search.mark_pattern)
        settings = {
            "beam_size": search.beam_size,
            "length_penalty": float(search.length_penalty),
            "vocab_size": target_tokenizer.vocab_size,
            "by_sentence": search.by_sentence,
            "mark_pattern": self._pieces.pattern,
        }
        self.settings = {n: tf.Variable(v, trainable=False) for n, v in settings.items()}

        # Objects that a SavedModel does not hold, since they are no modules.
        folding = search.fold_capitals, search.source_tag, search.dotless_i
        self.source = source = TextReader(source_tokenizer, search.max_length, *folding)
        self.target = target = TextReader(target_tokenizer, search.max_length)
        source_marks = source_tokenizer.mark_ids if marks else MarkIds()
        self.searches = ModelSearch(model, target_tokenizer, search, source_marks)
        if marks:  # each is called in several places
            self._mark = shared_function(_TEXT)(marks.mark)
            self._unmark = shared_function(_TEXTS, _MARKED)(marks.unmark)
        forced = TeacherForcing(model, source, target, marks)
        self.score = function(*_PAIRS)(forced.score) if can_score(model) else None
        functions = self._insert_terms, self._translate_with_terms
        with_terms = (function(_TEXT, _TERMS)(f) if marks else None for f in functions)
        self.insert_terms, self.translate_with_terms = with_terms
        is_aligning = can_align(model, source, target)
        self.align = function(*_PAIRS)(forced.align) if is_aligning else None

    def signatures(self) -> dict[str, Callable]:
        """Return the signatures of the SavedModel by name."""
        names = (
            "translate_nbest", "translate_document", "translate_with_terms", "score", "align"
        )  # fmt: skip
        functions = {"serving_default": self.translate} | {n: getattr(self, n) for n in names}
        return {name: function for name, function in functions.items() if function is not None}

    @function(_TEXT)
    def translate(self, text: tf.Tensor) -> Tensors:
        """Return the outputs of `serving_default`: only one, so that servers return a flat list."""

        # Inlined, it would cost a tenth of the time of one sentence.
        @not_inlined
        def in_sentences() -> tf.Tensor:
            sentences = split_lines(text, self.search.by_sentence, self._pieces.pattern)
            return self._translate_sentences(sentences, is_cut=True)["translation"]

        def whole() -> tf.Tensor:
            marked = self._marked(valid_utf8(text))
            found = self._translate_rows(self.source.first_tokens(marked.text)[0])[0]
            return self._unmarked(found[:, None], marked)[:, 0]

        # Translate whole texts where possible, because splitting and joining makes a short greedy
        # search 8 % slower. One search of many texts would need memory for all of them at once.
        several = tf.reduce_any(has_several(text)) | (tf.size(text) > _TEXTS_TOGETHER)
        return {"translation": tf.cond(several, in_sentences, whole)}

    def _insert_terms(self, text: tf.Tensor, terms: tf.Tensor) -> tf.Tensor:
        return insert_terms(text, terms, self.marks)

    def _translate_with_terms(self, text: tf.Tensor, terms: tf.Tensor) -> Tensors:
        found = self.translate_document(self._insert_terms(text, terms))
        return {"translation": found["translation"]}

    @function(_TEXT)
    def translate_nbest(self, text: tf.Tensor) -> Tensors:
        """Return the outputs of `translate_nbest`: the best hypotheses of each text, best first."""
        beam_size = self.search.beam_size
        n_best = beam_size if beam_size > 1 else min(4, self.target.tokenizer.vocab_size)
        found = self.beam(text, n_best, self.search.length_penalty, n_best)
        truncated = found["source_truncated"] | tf.reduce_any(found["truncated"], axis=1)
        names = ("translations", "scores", "lengths", "flags", "expected_chrf")
        outputs = {name: found[name] for name in names if name in found}
        return {**outputs, "truncated": truncated}

    @function(_TEXT)
    def translate_document(self, text: tf.Tensor) -> Tensors:
        """Return the outputs of `translate_document`: texts of any length, part by part."""
        sentences = split_sentences(text, self.search.by_sentence, self._pieces.pattern)
        return self._translate_sentences(sentences)

    @function(_TEXT, LENGTH_PENALTY)
    def greedy(self, text: tf.Tensor, length_penalty: tf.Tensor) -> Tensors:
        """Return what `detokenize` does of the hypotheses of greedy search."""
        source_ids, limits, *of_source = self.tokenize(text)
        found = self.searches.greedy(source_ids, limits, length_penalty)
        return self.detokenize(*found, *of_source)

    @function(_TEXT, *BEAM)
    def beam(
        self, text: tf.Tensor, beam_size: tf.Tensor, length_penalty: tf.Tensor, n_best: tf.Tensor
    ) -> Tensors:
        """Return what `detokenize` does of the hypotheses of beam search."""
        source_ids, limits, *of_source = self.tokenize(text)
        found = self.searches.beam(source_ids, limits, beam_size, length_penalty, n_best)
        return self.detokenize(*found, *of_source)

    @function(_TEXT)
    def tokenize(self, text: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Return source ids `(B, S)`, limits `(B,)`, and what `detokenize` needs of the source."""
        text = valid_utf8(text)
        marked = self._marked(text)
        tokens, truncated = self.source.first_tokens(marked.text)
        # A model trained on sentences often translates only the first of several lines.
        several_lines = tf.strings.regex_full_match(marked.text, rf"(?s).*\S.*{BREAK}.*\S.*")
        source_ids, limits = self._search_inputs(tokens)
        lengths = tf.cast(tokens.row_lengths(), tf.int32)
        return source_ids, limits, text, lengths, truncated | several_lines, *marked

    @function(*SEARCHED, *_OF_SOURCE)
    def detokenize(self, *fields: tf.Tensor) -> Tensors:
        """Return the texts of hypotheses with scores, lengths and flags, and what was truncated.

        Takes what a search returns, and the rest that `tokenize` returns. If several hypotheses
        have the same text in different subwords, only the best is kept.
        """
        hypotheses, loops = Hypotheses(*fields[:5]), fields[5]
        of_source, marked = fields[6:9], Marked(*fields[9:])
        ids, lengths = hypotheses.ids, hypotheses.lengths
        batch_size, n_best = tf.unstack(tf.shape(lengths))
        decoded = self._decoded(
            tf.reshape(ids, [batch_size * n_best, -1]), tf.reshape(lengths, [-1])
        )
        decoded = tf.reshape(decoded, [batch_size, n_best])
        texts = tf.strings.regex_replace(decoded, "\ufffd", "")  # bytes that form no character
        bytes_dropped = texts != decoded
        forced = seem_forced(texts, marked.text)
        texts = self._unmarked(texts, marked)
        ranks = tf.range(n_best)
        is_same = (texts[:, :, None] == texts[:, None]) & (ranks < ranks[:, None])
        repeats = tf.reduce_any(is_same, axis=2)
        truncated = hypotheses.truncated & (lengths > 0)
        usual = self.search.usual
        is_kept = tf.strings.regex_full_match(marked.text, NOTHING_TO_TRANSLATE)
        exists = hypotheses.scores > MISSING_SCORE
        found = Found(*of_source, is_kept, forced, loops, texts, ids, lengths, truncated, exists)

        def source_loops() -> tf.Tensor:
            tokens = self.source.first_tokens(marked.text)[0]
            return has_loop(self.source.padded(tokens), found.source_lengths)

        outputs = {
            "translations": tf.where(repeats, "", texts),
            "lengths": tf.where(repeats, 0, lengths),
            "truncated": truncated & ~repeats,
            "bytes_dropped": bytes_dropped & ~repeats,
            "flags": tf.where(repeats, "", flags_of(found, self._pieces, usual, source_loops)),
        }
        for name in ("scores", "log_probs"):
            values = tf.where(repeats, MISSING_SCORE, getattr(hypotheses, name))
            outputs[name] = tf.maximum(values, MISSING_SCORE)
        if usual is not None:
            chrf = expected_chrf(outputs["log_probs"], lengths, usual)
            outputs["expected_chrf"] = tf.where(outputs["scores"] > MISSING_SCORE, chrf, 0.0)
        order = tf.argsort(tf.cast(repeats, tf.int32), axis=1, stable=True)
        outputs = {name: tf.gather(f, order, batch_dims=1) for name, f in outputs.items()}
        return {**outputs, "source_truncated": found.is_lost}

    def _decoded(self, ids: tf.Tensor, lengths: tf.Tensor) -> tf.Tensor:
        """Return the texts of ids `(N, T)`."""
        return self.target.tokenizer.detokenize(tf.RaggedTensor.from_tensor(ids, lengths))

    def _marked(self, text: tf.Tensor) -> Marked:
        """Put marks in place of the pieces of texts, string `(B,)`, if the model has marks."""
        if self.marks is None:
            return Marked(text, tf.zeros([tf.size(text), 0], tf.string))

        def without() -> Marked:
            return Marked(text, tf.fill([tf.size(text), len(self.marks.symbols.all)], ""))

        has_pieces = tf.reduce_any(self.marks.has_pieces(text))
        return tf.cond(has_pieces, lambda: self._mark(text), without)

    def _unmarked(self, texts: tf.Tensor, marked: Marked) -> tf.Tensor:
        """Put the pieces of sources, of which each has n translations `(B, n)`, in their place."""
        if self.marks is None:
            return texts
        has_marks = tf.strings.regex_full_match(marked.text, f"(?s).*{RESERVED_PATTERN}.*")
        return tf.cond(tf.reduce_any(has_marks), lambda: self._unmark(texts, marked), lambda: texts)

    def _translate_sentences(self, sentences: Sentences, is_cut: bool = False) -> Tensors:
        """Return what `translate_sentences` does; with `is_cut`, long ones lose the rest."""
        marked = self._marked(sentences.sentences.flat_values)

        def unmark(texts: tf.Tensor) -> tf.Tensor:
            return self._unmarked(texts[:, None], marked)[:, 0]

        reader, text = self.source, marked.text
        tokens = reader.first_tokens(text)[0] if is_cut else reader.all_tokens(text)
        limits = reader.max_tokens, reader.tag_length
        return translate_sentences(sentences, tokens, self._translate_rows, *limits, unmark)

    def _translate_rows(self, tokens: tf.RaggedTensor) -> Rows:
        """Return translations of rows of tokens, with marks, and whether each was truncated."""
        inputs, search = self._search_inputs(tokens), self.search
        if search.beam_size == 1:
            *found, _ = self.searches.greedy(*inputs, search.length_penalty)
        else:
            *found, _ = self.searches.beam(*inputs, search.beam_size, search.length_penalty, 1)
        found = Hypotheses(*found)
        lengths = found.lengths[:, 0]
        texts = tf.strings.regex_replace(self._decoded(found.ids[:, 0], lengths), "\ufffd", "")
        return texts, found.truncated[:, 0] & (lengths > 0)

    def _search_inputs(self, tokens: tf.RaggedTensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return padded source ids `(B, S)` and limits `(B,)` of rows of tokens."""
        lengths = tf.cast(tokens.row_lengths(), tf.int32)
        source_ids = self.source.padded(self.source.with_end(tokens))
        # A limit of 0 gives a text without tokens an empty translation.
        return source_ids, tf.where(lengths == 0, 0, self.search.output_limits(lengths))
