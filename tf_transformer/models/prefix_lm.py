"""The prefix language model: UniLM's sequence-to-sequence mask on one stack."""

from collections.abc import Mapping

import keras
from keras import ops

from tf_transformer.layers.base import Tensor
from tf_transformer.layers.masks import padding_mask, prefix_mask
from tf_transformer.models.base import Cache, split_inputs
from tf_transformer.models.language_model import LanguageModel
from tf_transformer.models.language_model_configs import PrefixLanguageModelConfig


@keras.saving.register_keras_serializable(package="tf_transformer")
class PrefixLanguageModel(LanguageModel):
    """A translation model of one stack (UniLM, Dong et al. 2019, section 2.3, "seq-to-seq LM").

    The source is a prefix that sees itself in both directions; a target token sees the source and
    the target's past. It learns to predict each next token, as the prefix models of Raffel et al.
    2020, section 3.2.1; UniLM learns to predict masked ones. To begin with the weights of a trained
    `MaskedLanguageModel` of the same sizes, as UniLM does with BERT's:

        model = PrefixLanguageModel(config)
        model.set_weights(masked_language_model.get_weights())

    Args: as in `SequenceModel`, with a `PrefixLanguageModelConfig`.

    Call arguments:
        inputs: as of `Transformer`.
        training: whether dropout is applied.
        return_attention_scores: whether to return the attention weights too.

    Returns:
        logits float32 `(B, T, V)`, or with `labels` their statistics, as of `Transformer`. With
        `return_attention_scores` also a dict with a list of each layer's weights: `decoder`
        `(B, H, T, T)`, the target's attention to the target, and `cross` `(B, H, T, S)`, that to
        the source. One softmax is over both; `cross` is scaled so that its rows sum to 1.

    Raises:
        ValueError: `inputs` is no such dict, tuple or list.
    """

    config_class = PrefixLanguageModelConfig

    def call(
        self,
        inputs: Mapping[str, Tensor] | tuple[Tensor, Tensor] | list[Tensor],
        training: bool | None = None,
        return_attention_scores: bool = False,
    ) -> Tensor | tuple[Tensor, dict[str, list[Tensor]]]:
        source_ids, target_ids, labels = split_inputs("PrefixLanguageModel", inputs)
        is_source = self._is_real(source_ids)
        x = [
            self._embed_source(source_ids),
            self._embed_target(target_ids, self._lengths(source_ids)),
        ]
        # Real target tokens come first, so the mask hides the target's padding from all of them.
        is_target = ops.ones_like(target_ids, "bool")
        segment_ids = ops.concatenate([ops.zeros_like(source_ids), ops.ones_like(target_ids)], 1)
        visible = ops.concatenate([is_source, is_target], axis=1)[:, None]
        hidden, weights = self.stack(
            self.dropout(ops.concatenate(x, axis=1), training=training),
            attention_mask=ops.logical_and(prefix_mask(segment_ids), visible),
            training=training,
            return_attention_scores=True,
        )
        size = ops.shape(source_ids)[1]
        output = self._output(hidden[:, size:], labels)
        if not return_attention_scores:
            return output
        return output, {
            "decoder": [layer[:, :, size:, size:] for layer in weights],
            "cross": [_distribution(layer[:, :, size:, :size]) for layer in weights],
        }

    def start_decoding(
        self,
        source_ids: Tensor,
        num_steps: int | Tensor | None = None,
        beam_size: int | Tensor | None = None,
    ) -> Cache:
        """Computes the source and returns the cache for the first step; as `Transformer`."""
        mask = padding_mask(source_ids, self.config.pad_id)
        x = self._embed_source(source_ids)
        cache = self.stack.start_decoding(x, mask, mask, num_steps, beam_size)
        cache["source"]["lengths"] = self._lengths(source_ids)
        if num_steps is None:  # XLA transposes it once by itself
            cache["constants"].update(self._output_kernel())
        return cache

    def decode_step(
        self, token_ids: Tensor, index: int | Tensor, cache: Cache
    ) -> tuple[Tensor, Cache]:
        """Predicts the token after `token_ids` `(N,)`; as `Transformer`."""
        return self._decode_embedded(self._embed_step(token_ids, index, cache), index, cache)


def _distribution(weights: Tensor) -> Tensor:
    """Scales rows to a sum of 1; in float32, for a half float may lose all of a small row."""
    exact = ops.cast(weights, "float32")
    sums = ops.sum(exact, axis=-1, keepdims=True)
    return ops.cast(exact / ops.maximum(sums, 1e-30), weights.dtype)
