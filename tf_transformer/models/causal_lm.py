"""The causal language model: the source is a prompt, the target completes it."""

from collections.abc import Mapping

import keras
from keras import ops

from tf_transformer.layers.base import Tensor
from tf_transformer.layers.masks import causal_mask
from tf_transformer.models.base import Cache, split_inputs
from tf_transformer.models.language_model import LanguageModel
from tf_transformer.models.language_model_configs import CausalLanguageModelConfig


@keras.saving.register_keras_serializable(package="tf_transformer")
class CausalLanguageModel(LanguageModel):
    """A left-to-right language model (Radford et al. 2018, section 3.1).

    It reads the begin token, the source without its end, and the target, each token seeing those
    before it. So the source is a prompt, and to translate is to complete it. With sources that are
    empty (their end alone) it is trained as an ordinary language model. The loss is that of the
    target; a prompt is not learned.

    Args: as in `SequenceModel`, with a `CausalLanguageModelConfig`.

    Call arguments:
        inputs: as of `Transformer`; the target starts with `config.bos_id`, which the embedding
            of the source embeds, as a part of the prompt.
        training: whether dropout is applied.

    Returns:
        logits float32 `(B, T, V)`, or with `labels` their statistics, as of `Transformer`. Those at
        0 follow the last token of the prompt, or the begin token where it is empty.

    Raises:
        ValueError: `inputs` is no such dict, tuple or list.
    """

    config_class = CausalLanguageModelConfig
    has_segments = False

    def call(
        self,
        inputs: Mapping[str, Tensor] | tuple[Tensor, Tensor] | list[Tensor],
        training: bool | None = None,
    ) -> Tensor:
        source_ids, target_ids, labels = split_inputs("CausalLanguageModel", inputs)
        x, last, columns = self._embed_prompt(source_ids, target_ids[:, :1])
        size, target_ids = ops.shape(x)[1], target_ids[:, 1:]
        x = ops.concatenate([x, self._embed_target(target_ids, last + 1)], axis=1)
        # Real tokens of a side come first, so the triangle hides padding from those of that side.
        visible = ops.concatenate(
            [columns <= last[:, None], ops.ones_like(target_ids, "bool")], axis=1
        )
        hidden = self.stack(
            self.dropout(x, training=training),
            attention_mask=ops.logical_and(causal_mask(ops.shape(x)[1]), visible[:, None]),
            training=training,
        )
        first = _at(hidden[:, :size], columns, last)[:, None]
        return self._output(ops.concatenate([first, hidden[:, size:]], axis=1), labels)

    def start_decoding(
        self,
        source_ids: Tensor,
        num_steps: int | Tensor | None = None,
        beam_size: int | Tensor | None = None,
    ) -> Cache:
        """Computes the prompt but its last token; as `Transformer`.

        The last token is the input of the first step, in place of the begin token.
        """
        begin = ops.full((ops.shape(source_ids)[0], 1), self.config.bos_id, source_ids.dtype)
        x, last, columns = self._embed_prompt(source_ids, begin)
        mask = causal_mask(ops.shape(x)[1])
        before_last = (columns < last[:, None])[:, None]
        cache = self.stack.start_decoding(x, mask, before_last, num_steps, beam_size)
        cache["source"].update(lengths=last, last=_at(x, columns, last))
        if num_steps is None:  # XLA transposes it once by itself
            cache["constants"].update(self._output_kernel())
        return cache

    def decode_step(
        self, token_ids: Tensor, index: int | Tensor, cache: Cache
    ) -> tuple[Tensor, Cache]:
        """Predicts the token after `token_ids` `(N,)`; as `Transformer`."""
        x = self._embed_step(token_ids, index, cache)
        x = ops.where(ops.equal(index, 0), cache["source"]["last"][:, None], x)
        return self._decode_embedded(x, index, cache)

    def _embed_prompt(self, source_ids: Tensor, begin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Embeds the begin tokens `(B, 1)` and the sources without their ends.

        Returns:
            embedded `(B, P, D)`, the last real position of each row `(B,)`, all positions `(P,)`.
        """
        last = ops.maximum(self._lengths(source_ids) - 1, 0)
        begin = ops.cast(begin, source_ids.dtype)
        prompt = ops.concatenate([begin, source_ids[:, :-1]], axis=1)
        return self._embed_source(prompt), last, ops.arange(ops.shape(prompt)[1], dtype="int32")


def _at(x: Tensor, columns: Tensor, indices: Tensor) -> Tensor:
    """Of each row of `(B, P, D)` the position at its index, `(B, D)`."""
    chosen = (columns == indices[:, None])[..., None]
    return ops.sum(ops.where(chosen, x, ops.zeros_like(x)), axis=1)
