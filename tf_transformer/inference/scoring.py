"""The probability and the alignment that a model gives to a translation."""

import dataclasses
import inspect
from collections.abc import Collection

import tensorflow as tf

from tf_transformer.data.marks import Marked, Marks
from tf_transformer.decoding.translation_model import TranslationModel
from tf_transformer.inference.functions import shared_function
from tf_transformer.inference.text_reader import TextReader, valid_pairs


def can_score(model: TranslationModel) -> bool:
    """Return whether a model can be called with source and target, as in training."""
    return "training" in _call_arguments(model)


def can_align(model: TranslationModel, *readers: TextReader) -> bool:
    """Return whether the model returns attention and the tokenizers have `id_to_string`."""
    are_readable = all(hasattr(reader.tokenizer, "id_to_string") for reader in readers)
    return are_readable and "return_attention_scores" in _call_arguments(model)


def _call_arguments(model: TranslationModel) -> Collection[str]:
    call = getattr(model, "call", model)  # `__call__` of a Keras model takes anything
    return inspect.signature(call).parameters if callable(call) else ()


@dataclasses.dataclass(frozen=True)
class TeacherForcing:
    """Forward passes of a model on sources and their given translations.

    Every function takes `source` and `target`, string `(B,)`, and drops the tokens of a text beyond
    the limit of its reader. White space of any kind, including line breaks, separates words.
    With `marks`, pieces that both sides have equally often are one subword each.
    """

    model: TranslationModel
    source: TextReader
    target: TextReader
    marks: Marks | None = None

    def score(self, source: tf.Tensor, target: tf.Tensor) -> dict[str, tf.Tensor]:
        """Compute the probability of each target.

        Returns:
            `log_prob` float32 `(B,)`, `num_tokens` int32 `(B,)` and `truncated` bool `(B,)`; see
            `TargetProbability`.
        """
        source, target, truncated, _ = self._tokens(source, target)
        labels = self.target.with_end(target)
        logits = self.model(self._inputs(source, target), training=False)
        log_probs = -tf.nn.sparse_softmax_cross_entropy_with_logits(
            self.target.padded(labels), tf.cast(logits, tf.float32)
        )
        num_tokens = tf.cast(labels.row_lengths(), tf.int32)
        is_token = tf.sequence_mask(num_tokens, tf.shape(log_probs)[1])
        log_prob = tf.reduce_sum(tf.where(is_token, log_probs, 0.0), axis=1)
        return {"log_prob": log_prob, "num_tokens": num_tokens, "truncated": truncated}

    def align(self, source: tf.Tensor, target: tf.Tensor) -> dict[str, tf.Tensor]:
        """Compute how much each target token attends to each source token, when it is predicted.

        Returns:
            `source_subwords` string `(B, S)`, the end last, `target_subwords` string `(B, T)`,
            without an end (both padded with empty strings), `source_lengths` and `target_lengths`
            int32 `(B,)`, `truncated` bool `(B,)`, and the `attention`, float32 `(B, T, S)`, whose
            rows sum to 1 and are 0 in the padding: the mean of all heads of all layers but the
            first, which hardly aligns where there are others. It was better than any one layer of
            five models.
        """
        source, target, truncated, pieces = self._tokens(source, target)
        inputs = self._inputs(source, target)
        cross = self.model(inputs, training=False, return_attention_scores=True)[1]["cross"]
        layers = [tf.reduce_mean(tf.cast(scores, tf.float32), axis=1) for scores in cross]
        # Row t predicts token t; its input is token t - 1, or the begin token in row 0.
        attention = tf.reduce_mean(tf.stack(layers[1:] or layers), axis=0)[:, :-1]
        is_source = tf.sequence_mask(source.row_lengths(), tf.shape(attention)[2])
        is_target = tf.sequence_mask(target.row_lengths(), tf.shape(attention)[1])
        attention = tf.where(is_target[:, :, None] & is_source[:, None], attention, 0.0)
        # In bfloat16 the rows sum only approximately to 1.
        attention = tf.math.divide_no_nan(attention, tf.reduce_sum(attention, 2, keepdims=True))
        return {
            "source_subwords": self._subwords(self.source, source, pieces),
            "target_subwords": self._subwords(self.target, target, pieces),
            "attention": attention,
            "source_lengths": tf.cast(source.row_lengths(), tf.int32),
            "target_lengths": tf.cast(target.row_lengths(), tf.int32),
            "truncated": truncated,
        }

    def _tokens(
        self, source: tf.Tensor, target: tf.Tensor
    ) -> tuple[tf.RaggedTensor, tf.RaggedTensor, tf.Tensor, tf.Tensor | None]:
        """Return ragged source ids with end tokens, target ids without, what was truncated.

        Last come the pieces for which marks stand, string `(B, M)`; None without marks.
        """
        source, target = valid_pairs(source, target, "source and target")
        pieces = None
        if self.marks is not None:
            (source, pieces), (target, _) = self._mark_pairs(source, target)
        source, source_truncated = self.source.first_tokens(source)
        target, target_truncated = self.target.first_tokens(target)
        return self.source.with_end(source), target, source_truncated | target_truncated, pieces

    @shared_function(*2 * [tf.TensorSpec([None], tf.string)])
    def _mark_pairs(self, source: tf.Tensor, target: tf.Tensor) -> tuple[Marked, Marked]:
        return self.marks.mark_pairs(source, target)

    def _subwords(
        self, reader: TextReader, ids: tf.RaggedTensor, pieces: tf.Tensor | None
    ) -> tf.Tensor:
        """Return the subwords of ragged ids, string `(B, S)`, with the pieces of marks."""
        subwords = reader.tokenizer.id_to_string(ids).to_tensor("")
        return subwords if self.marks is None else self.marks.put_back(subwords, pieces)

    def _inputs(self, source: tf.RaggedTensor, target: tf.RaggedTensor) -> dict[str, tf.Tensor]:
        begins = tf.fill([target.nrows(), 1], self.target.tokenizer.bos_id)
        target_ids = tf.concat([begins, self.target.padded(target)], axis=1)
        return {"source_ids": self.source.padded(source), "target_ids": target_ids}
