"""One stack of self-attention: its mask chooses the task, and it decodes after a prefix."""

import keras
from keras import ops

from tf_transformer.layers.attention import GlobalSelfAttention, attention_bias
from tf_transformer.layers.base import Tensor
from tf_transformer.layers.decoding_step import DecodingStep, no_steps, step_through
from tf_transformer.layers.encoder import Encoder, EncoderLayer
from tf_transformer.layers.masks import expand_mask


@keras.saving.register_keras_serializable(package="tf_transformer")
class PrefixSelfAttention(GlobalSelfAttention):
    """Self-attention over a prefix that is known and a history that is generated.

    A call sees what its mask allows, so the same layer is an encoder's, a causal, a prefix or a
    permutation language model's (UniLM, Dong et al. 2019, section 2.2). Decoding keeps the
    projected prefix apart from the history, for the hypotheses of a sentence share it.

    Args, call arguments and returns: as in `GlobalSelfAttention`.
    """

    def start_decoding(
        self, x: Tensor, attention_mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """As a call, and returns also the scaled keys and the values `(B, H, S, d_k)`."""
        mask = self._self_attention_mask(attention_mask, x)
        queries, keys, values = self._heads(self.query_key_value_projection, x, 3)
        output, _ = self._attend(queries, keys, values, mask, training=False)
        return output, self._scaled(keys), values

    def decode_step(
        self,
        x: Tensor,
        keys: Tensor,
        values: Tensor,
        prefix_keys: Tensor,
        prefix_values: Tensor,
        prefix_bias: Tensor,
        step: DecodingStep,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Attends from the newest position of each hypothesis to the prefix and its own history.

        Args:
            x: float tensor `(N, D)`.
            keys, values: float tensors `(B, H, t * K, d_k)`, the history.
            prefix_keys, prefix_values: float tensors `(B, H, S, d_k)`.
            prefix_bias: float tensor `(B, 1, 1, S)`, hides a part of the prefix.
            step: what the layers share in this step.

        Returns:
            output `(N, D)`, and the history's keys and values with the newest position.
        """
        queries, new_keys, new_values = self._step_heads(
            self.query_key_value_projection(x), 3, step.beams
        )
        keys = step.append(keys, self._scaled(new_keys))
        values = step.append(values, new_values)

        def scores(scaled_keys: Tensor, bias: Tensor | None) -> Tensor:
            products = ops.matmul(queries, ops.transpose(scaled_keys, (0, 1, 3, 2)))
            return products if bias is None else products + bias

        # One softmax over both. Scores are small; to join the keys would copy the prefix.
        both = [scores(prefix_keys, prefix_bias), scores(keys, step.bias)]
        weights = ops.softmax(ops.concatenate(both, axis=-1), axis=-1)
        size = ops.shape(prefix_keys)[2]
        heads = ops.matmul(weights[..., :size], prefix_values)
        heads = heads + ops.matmul(weights[..., size:], values)
        if step.beams is not None:
            heads = ops.transpose(heads, (0, 2, 1, 3))
        rows = ops.reshape(heads, (-1, self.d_model))
        return self.output_projection(rows), keys, values


@keras.saving.register_keras_serializable(package="tf_transformer")
class PrefixLayer(EncoderLayer):
    """Self-attention and a feed-forward network, as `EncoderLayer`, that can decode.

    Args, call arguments and returns: as in `EncoderLayer`; without `attention_radius`, for the mask
        says what is seen.

    Raises:
        ValueError: `attention_radius` is given.
    """

    def _create_sublayers(self) -> None:
        if self.attention_radius is not None:
            raise ValueError(
                f"PrefixLayer has no restricted attention; received attention_radius="
                f"{self.attention_radius}. Combine its mask with local_mask instead."
            )
        self.self_attention = self._attention(PrefixSelfAttention, "self_attention")
        self.attention_residual = self._residual("attention_residual")
        self.feed_forward = self._feed_forward("feed_forward")
        self.feed_forward_residual = self._residual("feed_forward_residual")

    def start_decoding(self, x: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """As a call, and returns also the prefix's keys and values, see `PrefixSelfAttention`."""
        attended, keys, values = self.self_attention.start_decoding(
            self.attention_residual.pre(x), attention_mask
        )
        return self._transform(x, attended), keys, values

    def decode_step(
        self,
        x: Tensor,
        keys: Tensor,
        values: Tensor,
        prefix_keys: Tensor,
        prefix_values: Tensor,
        prefix_bias: Tensor,
        step: DecodingStep,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Computes the newest position of each hypothesis; all as in `PrefixSelfAttention`."""
        attended, keys, values = self.self_attention.decode_step(
            self.attention_residual.pre(x), keys, values,
            prefix_keys, prefix_values, prefix_bias, step,
        )  # fmt: skip
        return self._transform(x, attended), keys, values


@keras.saving.register_keras_serializable(package="tf_transformer")
class PrefixStack(Encoder):
    """A stack of `PrefixLayer`s, with a final norm where they are norm-first.

    Args: as in `LayerStack`.

    Call arguments and returns: as in `Encoder`.
    """

    layer_class = PrefixLayer

    def start_decoding(
        self,
        x: Tensor,
        attention_mask: Tensor,
        visible: Tensor,
        num_steps: int | Tensor | None = None,
        beam_size: int | Tensor | None = None,
    ) -> dict[str, dict[str, Tensor]]:
        """Computes what depends on the prefix alone, and an empty history.

        Args:
            x: float tensor `(B, S, D)`, the prefix.
            attention_mask: bool tensor that broadcasts to `(B, S, S)`, what it sees of itself.
            visible: bool tensor `(B, 1, S)`, what the generated positions see of it.
            num_steps, beam_size: as in `Decoder.start_decoding`.

        Returns:
            the cache, see `Decoder.start_decoding`.
        """
        batch_size, layer = ops.shape(x)[0], self.layers[0]
        mask = expand_mask(visible, (x.shape[0], 1, 1, x.shape[1]))
        source = {"bias": attention_bias(mask, self.compute_dtype)}
        constants, target, positions = no_steps(batch_size, num_steps, beam_size)
        history = {}
        shape = (batch_size, layer.num_heads, positions, self.d_model // layer.num_heads)
        for number, layer in enumerate(self.layers):
            x, keys, values = layer.start_decoding(x, attention_mask)
            source[f"keys_{number}"], source[f"values_{number}"] = keys, values
            for name in ("keys", "values"):
                history[f"{name}_{number}"] = ops.zeros(shape, self.compute_dtype)
        return {"constants": constants, "source": source, "history": history, "target": target}

    def decode_step(
        self, x: Tensor, index: int | Tensor, cache: dict[str, dict[str, Tensor]]
    ) -> tuple[Tensor, dict[str, dict[str, Tensor]]]:
        """Computes the newest position of each hypothesis; all as in `Decoder.decode_step`."""
        x, cache = step_through(self.layers, x, index, cache, self.compute_dtype)
        return (x if self.norm is None else self.norm(x)), cache
