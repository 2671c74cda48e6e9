"""What a model says of a translation that is given: its probability, and its alignment."""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tf_transformer.decoding.contract import TranslationModel, has_attention_scores
from tf_transformer.inference.tokens import first_tokens, valid_utf8, with_end
from tf_transformer.tokenizers import GraphTokenizer


class Alignment(NamedTuple):
    """Which attention of a model aligns source and target.

    Attributes:
        layer: Index of the decoder layer.
        heads: Indices of the heads whose mean is taken.
        shifted: Whether a token is aligned by the attention with which the decoder reads it, one
            step after the attention that predicts it (Chen et al. 2020).
        agreement: On what fraction of the links of IBM Model 1 the attention is the highest; None
            where nothing was compared.
        pairs: How many pairs of sentences have such links.
    """

    layer: int
    heads: tuple[int, ...]
    shifted: bool
    agreement: float | None = None
    pairs: int = 0

    def require(self, num_layers: int, num_heads: int) -> None:
        """Raises a `ValueError` unless a model of this size has these heads."""
        if self.layer not in range(num_layers) or not self.heads:
            raise ValueError(
                f"alignment needs a layer from 0 to {num_layers - 1} and at least one head; "
                f"received layer={self.layer}, heads={self.heads}."
            )
        if not set(self.heads) <= set(range(num_heads)):
            raise ValueError(
                f"alignment needs heads from 0 to {num_heads - 1}; received heads={self.heads}."
            )


def default_alignment(num_layers: int, num_heads: int) -> Alignment:
    """All heads of the last layer but one, which align best as a rule (Garg et al. 2019)."""
    return Alignment(max(num_layers - 2, 0), tuple(range(num_heads)), shifted=False)


def can_align(
    model: TranslationModel, source_tokenizer: GraphTokenizer, target_tokenizer: GraphTokenizer
) -> bool:
    """Whether the model has attention scores and both tokenizers have `id_to_string`."""
    tokenizers = source_tokenizer, target_tokenizer
    return has_attention_scores(model) and all(hasattr(t, "id_to_string") for t in tokenizers)


class TargetProbability(NamedTuple):
    """The probability of a translation that was given.

    Attributes:
        log_prob: Sum of the log-probabilities of its tokens, in the tokenizer's own segmentation,
            and its end.
        num_tokens: How many those are, the end included.
        truncated: Whether source or target was too long and its end dropped.
    """

    log_prob: float
    num_tokens: int
    truncated: bool

    @classmethod
    def of_batch(cls, found: dict[str, tf.Tensor]) -> list["TargetProbability"]:
        """One for each pair, of what `TeacherForcing.score` returns for a batch."""
        columns = (found[name].numpy().tolist() for name in cls._fields)
        return [cls(*row) for row in zip(*columns, strict=True)]


class AlignedPair(NamedTuple):
    """How much each token of a translation attends to each token of its source.

    Attributes:
        source_subwords: The S subwords of the source, its end last.
        target_subwords: The T subwords of the target, without an end.
        attention: float32 `(T, S)`; each row sums to 1.
        truncated: Whether source or target was too long and its end dropped.
    """

    source_subwords: list[str]
    target_subwords: list[str]
    attention: np.ndarray
    truncated: bool

    @classmethod
    def of_batch(cls, found: dict[str, tf.Tensor]) -> list["AlignedPair"]:
        """One for each pair, of what `TeacherForcing.align` returns for a batch; no padding."""
        names = (*cls._fields, "source_lengths", "target_lengths")
        columns = (found[name].numpy() for name in names)
        return [
            cls(
                [word.decode("utf-8", "replace") for word in source[:num_sources]],
                [word.decode("utf-8", "replace") for word in target[:num_targets]],
                attention[:num_targets, :num_sources],
                bool(truncated),
            )
            for source, target, attention, truncated, num_sources, num_targets in zip(
                *columns, strict=True
            )
        ]


class TeacherForcing:
    """Runs a model on sources and their translations, as functions of tensors.

    Every function takes `source` and `target`, string `(B,)`, and drops the tokens of a text that
    are beyond `max_length - 1`. White space of any kind, line breaks too, separates words.

    Args:
        model: A model with a call, see `has_teacher_forcing`.
        source_tokenizer: Tokenizer of the source.
        target_tokenizer: Tokenizer of the target.
        max_length: Tokens that each side may have, its end included.
    """

    def __init__(
        self,
        model: TranslationModel,
        source_tokenizer: GraphTokenizer,
        target_tokenizer: GraphTokenizer,
        max_length: int,
    ) -> None:
        self._model = model
        self._source_tokenizer = source_tokenizer
        self._target_tokenizer = target_tokenizer
        self._max_length = max_length

    def score(self, source: tf.Tensor, target: tf.Tensor) -> dict[str, tf.Tensor]:
        """The probability of each target.

        Returns:
            `log_prob` float32 `(B,)`, the sum of the log-probabilities of the target's tokens, in
            the segmentation of the tokenizer, and its end: a search may have found the same text
            in other subwords. `num_tokens` int32 `(B,)`, how many those are; `truncated` bool
            `(B,)`, whether tokens of a side were dropped.
        """
        source, target, truncated = self._tokens(source, target)
        labels = with_end(target, self._target_tokenizer.eos_id)
        logits = self._model(self._inputs(source, target), training=False)
        log_probs = -tf.nn.sparse_softmax_cross_entropy_with_logits(
            labels.to_tensor(self._target_tokenizer.pad_id), tf.cast(logits, tf.float32)
        )
        num_tokens = tf.cast(labels.row_lengths(), tf.int32)
        is_token = tf.sequence_mask(num_tokens, tf.shape(log_probs)[1])
        log_prob = tf.reduce_sum(tf.where(is_token, log_probs, 0.0), axis=1)
        return {"log_prob": log_prob, "num_tokens": num_tokens, "truncated": truncated}

    def align(
        self, source: tf.Tensor, target: tf.Tensor, alignment: Alignment | None = None
    ) -> dict[str, tf.Tensor]:
        """How much each token of the target attends to each of the source.

        Args:
            source: string `(B,)`.
            target: string `(B,)`.
            alignment: Which attention is taken; None for `default_alignment`.

        Returns:
            `source_subwords` string `(B, S)`, the end last, and `target_subwords` string `(B, T)`,
            without an end; both are padded with empty strings. `attention` float32 `(B, T, S)`,
            whose rows sum to 1 and are 0 in the padding. `source_lengths` and `target_lengths`
            int32 `(B,)`. `truncated` bool `(B,)`, whether tokens of a side were dropped.
        """
        source, target, truncated = self._tokens(source, target)
        cross = self._cross_attention(source, target)
        if alignment is None:
            alignment = default_alignment(len(cross), cross[0].shape[1])
        alignment.require(len(cross), cross[0].shape[1])
        heads = tf.gather(tf.cast(cross[alignment.layer], tf.float32), alignment.heads, axis=1)
        attention = tf.reduce_mean(heads, axis=1)
        # Row t has token t - 1 as input, the begin first, and predicts token t.
        attention = attention[:, 1:] if alignment.shifted else attention[:, :-1]
        subwords = self._subwords(source, target)
        is_source = tf.sequence_mask(subwords["source_lengths"], tf.shape(attention)[2])
        is_target = tf.sequence_mask(subwords["target_lengths"], tf.shape(attention)[1])
        is_token = is_target[:, :, None] & is_source[:, None]
        attention = tf.where(is_token, attention, 0.0)
        # In bfloat16 the sum of a row is near 1 only.
        attention = tf.math.divide_no_nan(attention, tf.reduce_sum(attention, 2, keepdims=True))
        return {**subwords, "attention": attention, "truncated": truncated}

    def all_heads(self, source: tf.Tensor, target: tf.Tensor) -> dict[str, tf.Tensor]:
        """What `choose_alignment` chooses from.

        Returns:
            Subwords and lengths of both sides as of `align`; `attention` float32
            `(B, T + 1, layers, H, S)`, whose row t predicts token t of the target.
        """
        source, target, _ = self._tokens(source, target)
        cross = tf.stack(self._cross_attention(source, target), axis=1)
        attention = tf.cast(tf.transpose(cross, (0, 3, 1, 2, 4)), tf.float32)
        return {**self._subwords(source, target), "attention": attention}

    def _tokens(self, source, target):
        """Source ids with their ends and target ids without, ragged, and what was truncated."""
        # One text against many would be broadcast, and give numbers.
        same = tf.debugging.assert_equal(
            tf.size(source), tf.size(target), "source and target must have equally many texts"
        )
        with tf.control_dependencies([] if same is None else [same]):
            source = tf.identity(source)
        tokenizers = self._source_tokenizer, self._target_tokenizer
        (source, source_truncated), (target, target_truncated) = (
            first_tokens(valid_utf8(text), tokenizer, self._max_length)
            for text, tokenizer in zip((source, target), tokenizers, strict=True)
        )
        source = with_end(source, self._source_tokenizer.eos_id)
        return source, target, source_truncated | target_truncated

    def _subwords(self, source, target):
        """Subwords and lengths of both sides."""
        return {
            "source_subwords": self._source_tokenizer.id_to_string(source).to_tensor(""),
            "target_subwords": self._target_tokenizer.id_to_string(target).to_tensor(""),
            "source_lengths": tf.cast(source.row_lengths(), tf.int32),
            "target_lengths": tf.cast(target.row_lengths(), tf.int32),
        }

    def _inputs(self, source, target):
        begins = tf.fill([target.nrows(), 1], self._target_tokenizer.bos_id)
        target_ids = tf.concat([begins, target], axis=1)
        return {
            "source_ids": source.to_tensor(self._source_tokenizer.pad_id),
            "target_ids": target_ids.to_tensor(self._target_tokenizer.pad_id),
        }

    def _cross_attention(self, source, target):
        """The weights of each layer `(B, H, T + 1, S)`."""
        inputs = self._inputs(source, target)
        return self._model(inputs, training=False, return_attention_scores=True)[1]["cross"]
