"""A stack of self-attention whose mask chooses the task, and which decodes after a prefix."""

from keras import ops

from tf_transformer.layers.attention import GlobalSelfAttention
from tf_transformer.layers.base import Tensor
from tf_transformer.layers.decoder import DecodingStack
from tf_transformer.layers.encoder import Encoder, EncoderLayer


class PrefixSelfAttention(GlobalSelfAttention):
    """Self-attention over a known prefix and a generated history.

    The mask of a call decides what is seen, so the layer serves encoders and causal, prefix and
    permutation language models (UniLM, Dong et al. 2019, section 2.2). Decoding keeps the
    projected prefix apart from the history, because only the history grows.

    Args, call arguments and returns: as in `GlobalSelfAttention`.

    Example:
        >>> attention = tt.PrefixSelfAttention(num_heads=2, d_model=8)
        >>> mask = tt.prefix_mask(np.array([[0, 0, 1, 1]]))
        >>> attention(np.ones((1, 4, 8)), attention_mask=mask).shape
        TensorShape([1, 4, 8])
    """

    def start_decoding(
        self, x: Tensor, attention_mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the output of a call, and the scaled keys and the values `(B, H, S, d_k)`."""
        heads, mask = self._project(x, x), self._mask(attention_mask, x, x)
        output, _ = self._attend(heads, mask, training=False, with_weights=False)
        return output, self._scaled(heads[1]), heads[2]

    def decode_step(
        self, x: Tensor, history: tuple[Tensor, ...], prefix: tuple[Tensor, ...]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Attend from the newest position of each row to the prefix and the row's own history.

        Takes the rows `x` `(N, D)`, the KV cache, and the prefix's keys and values `(N, H, S, d_k)`
        with the bias `(N, 1, 1, S)` that masks a part of the prefix. Returns the output `(N, D)`,
        and keys and values with the newest position.
        """
        queries, keys, values = self._append(x, *history)
        prefix_keys, prefix_values, prefix_bias = prefix
        # One softmax over both. Scores are small, but joining the keys would copy the prefix.
        of_prefix = self._scores(queries, prefix_keys, prefix_bias)
        of_history = self._scores(queries, keys)
        weights = ops.softmax(ops.concatenate([of_prefix, of_history], axis=-1), axis=-1)
        size = ops.shape(prefix_keys)[2]
        heads = ops.matmul(weights[..., :size], prefix_values)
        heads = heads + ops.matmul(weights[..., size:], values)
        return self._step_output(heads), keys, values


class PrefixLayer(EncoderLayer):
    """An `EncoderLayer` that can also decode after a prefix.

    Args, call arguments and returns: as in `EncoderLayer`.

    Example:
        >>> layer = tt.PrefixLayer(d_model=8, num_heads=2, d_ff=16)
        >>> layer(np.ones((1, 4, 8)), attention_mask=tt.causal_mask(4)).shape
        TensorShape([1, 4, 8])
    """

    self_attention_class = PrefixSelfAttention

    def start_decoding(self, x: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the output of a call, and the keys and values of `PrefixSelfAttention`."""
        x_in = self.self_residual.pre(x)
        attended, *prefix = self.self_attention.start_decoding(x_in, attention_mask)
        return self._transform(self.self_residual.post(x, attended)), *prefix

    def decode_step(
        self, x: Tensor, history: tuple[Tensor, ...], prefix: tuple[Tensor, ...]
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Compute the newest position of each row as in `DecoderLayer`, after a prefix."""
        x_in = self.self_residual.pre(x)
        attended, *history = self.self_attention.decode_step(x_in, history, prefix)
        return self._transform(self.self_residual.post(x, attended)), history


class PrefixStack(DecodingStack, Encoder):
    """A stack of `PrefixLayer`s, with a final norm where they are norm-first.

    In `start_decoding` the context is the prefix, and `attention_mask` its self-attention mask.

    Args, call arguments and returns: as in `Encoder`.

    Example:
        >>> stack = tt.PrefixStack([tt.PrefixLayer(d_model=8, num_heads=2, d_ff=16)])
        >>> prefix, mask = np.ones((1, 3, 8), "float32"), np.ones((1, 1, 3), bool)
        >>> cache = stack.start_decoding(prefix, mask)
        >>> hidden, cache = stack.decode_step(np.ones((1, 8), "float32"), cache)
        >>> hidden.shape
        TensorShape([1, 8])
    """
