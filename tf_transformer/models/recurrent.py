"""What the recurrent models share: reading the source, teacher forcing, and steps of decoding."""

from collections.abc import Callable, Mapping
from typing import Any

import keras
from keras import ops

from tf_transformer.layers.base import Tensor
from tf_transformer.layers.positions import token_embedding
from tf_transformer.models.base import Cache, SequenceModel, split_inputs

Tensors = dict[str, Tensor]


class RecurrentModel(SequenceModel):
    """A recurrent encoder and decoder.

    Subclasses create and build their layers and have `_encode`, `_decode` and `_step`. Dropout is
    that of Zaremba et al. 2014: of embeddings, between layers and of the hidden state before the
    output, never of a state that a layer passes to its own next step.

    Args: as in `SequenceModel`.

    Call arguments:
        inputs: dict of `source_ids` int `(B, S)` and `target_ids` int `(B, T)`, or a tuple or list
            of both; the target starts with the begin id, and both are padded with
            `config.pad_id`. A dict may have `labels` int `(B, T)` too: the call then returns their
            statistics instead of logits.
        training: whether dropout is applied.

    Returns:
        logits float32 `(B, T, V)`: those at `t` predict the token after `target_ids[:, t]`; or,
        with `labels`, their statistics float32 `(B, T, 3)`, see `layers.token_statistics`.

    Raises:
        ValueError: `inputs` is no such dict, tuple or list.
    """

    def _create_embeddings(self) -> None:
        """Creates the embeddings, the output that may share them, and dropout."""
        config, policy = self.config, self.dtype_policy

        def embedding(side: str, vocab_size: int) -> keras.layers.Embedding:
            name = f"{side}_embedding"
            return token_embedding(vocab_size, config.d_model, dtype=policy, name=name)

        self.target_embedding = embedding("target", config.target_vocab_size)
        shared = self.target_embedding if config.tie_embeddings else None
        self.source_embedding = shared or embedding("source", config.source_vocab_size)
        self.output_projection = self._output_projection(shared)
        self.dropout = keras.layers.Dropout(config.dropout_rate, dtype=policy)

    def _build_embeddings(self) -> None:
        for embedding in {
            id(e): e for e in (self.source_embedding, self.target_embedding)
        }.values():
            embedding.build((None, None))
        for layer in (self.output_projection, self.dropout):
            layer.build((None, None, self.config.d_model))

    def _encode(self, source_ids: Tensor, training: bool | None) -> tuple[Tensors, Tensors]:
        """What each step reads of the source `(B, …)`, and the decoder's first state `(B, …)`."""
        raise NotImplementedError

    def _decode(
        self, x: Tensor, state: Tensors, source: Tensors, training: bool | None
    ) -> tuple[Tensor, Tensor | None]:
        """Hidden states `(B, T, D)` of embedded targets, and attention weights `(B, T, S)`."""
        raise NotImplementedError

    def _step(
        self, x: Tensor, state: Tensors, source: Tensors, beams: Tensor | None
    ) -> tuple[Tensor, Tensors]:
        """The hidden state `(N, D)` of embedded tokens `(N, D)`, and the next state `(N, …)`."""
        raise NotImplementedError

    def call(
        self,
        inputs: Mapping[str, Tensor] | tuple[Tensor, Tensor] | list[Tensor],
        training: bool | None = None,
    ) -> Tensor:
        return self._force(inputs, training)[0]

    def _force(self, inputs: Any, training: bool | None) -> tuple[Tensor, Tensor | None]:
        """The output of a call, and attention weights `(B, T, S)` or None."""
        source_ids, target_ids, labels = split_inputs(type(self).__name__, inputs)
        source, state = self._encode(at_least_one_column(source_ids), training)
        x = self._embed(self.target_embedding, at_least_one_column(target_ids), training)
        hidden, weights = self._decode(x, state, source, training)
        hidden = self.dropout(hidden, training=training)[:, : ops.shape(target_ids)[1]]
        return self._output(hidden, labels), weights

    def start_decoding(
        self,
        source_ids: Tensor,
        num_steps: int | Tensor | None = None,
        beam_size: int | Tensor | None = None,
    ) -> Cache:
        """Encodes the source and returns the cache for the first step.

        Args:
            source_ids: int tensor `(B, S)`.
            num_steps: int or int scalar tensor, the maximum number of steps; all states have
                their final size anyway.
            beam_size: int or int scalar tensor, K hypotheses for each sentence, in consecutive
                rows (N = B * K); None for one row for each sentence (N = B).

        Returns:
            dict of flat dicts of tensors: `"constants"`, `"source"` `(B, …)`, what each step reads
            of the source, and `"target"` `(N, …)`, the decoder's state.
        """
        source, state = self._encode(at_least_one_column(source_ids), training=False)
        constants = {} if num_steps is not None else self._output_kernel()
        if beam_size is not None:
            constants["beams"] = ops.arange(beam_size)
            state = {name: ops.repeat(value, beam_size, axis=0) for name, value in state.items()}
        return {"constants": constants, "source": source, "target": state}

    def decode_step(
        self, token_ids: Tensor, index: int | Tensor, cache: Cache
    ) -> tuple[Tensor, Cache]:
        """Predicts the token after `token_ids`.

        Args:
            token_ids: int tensor `(N,)`.
            index: int or int scalar tensor, the position; a recurrent model does not need it.
            cache: as returned by `start_decoding` or the previous step.

        Returns:
            logits float32 `(N, V)`, and the cache for the next step.
        """
        constants = cache["constants"]
        x = self._embed(self.target_embedding, token_ids, training=False)
        hidden, state = self._step(x, cache["target"], cache["source"], constants.get("beams"))
        return self._step_logits(hidden, constants), {**cache, "target": state}

    def _embed(
        self, embedding: keras.layers.Embedding, token_ids: Tensor, training: bool | None
    ) -> Tensor:
        # Quantized embeddings are float32 under mixed policies (Keras 3.15.1). Scaled as in the
        # Transformer: rows small enough for the output would hardly move the gates.
        embedded = ops.cast(embedding(token_ids), self.compute_dtype) * self.config.d_model**0.5
        return self.dropout(embedded, training=training)

    def _token_mask(self, source_ids: Tensor) -> Tensor:
        """True at the tokens `(B, S)`, and always at the first: cuDNN reads no empty rows."""
        is_first = ops.arange(ops.shape(source_ids)[1]) == 0
        return ops.not_equal(source_ids, self.config.pad_id) | is_first


class AttentionalModel(RecurrentModel):
    """A recurrent encoder and decoder with attention.

    Args: as in `SequenceModel`.

    Call arguments: as in `RecurrentModel`, and
        return_attention_scores: whether to return the attention weights too.

    Returns:
        as `RecurrentModel`; with `return_attention_scores` also a dict whose `cross` is a list of
        the weights `(B, 1, T, S)`, in the order of the source.
    """

    def call(
        self,
        inputs: Mapping[str, Tensor] | tuple[Tensor, Tensor] | list[Tensor],
        training: bool | None = None,
        return_attention_scores: bool = False,
    ) -> Tensor | tuple[Tensor, dict[str, list[Tensor]]]:
        output, weights = self._force(inputs, training)
        if not return_attention_scores:
            return output
        source_ids, target_ids, _ = split_inputs(type(self).__name__, inputs)
        weights = self._in_order(weights, at_least_one_column(source_ids))
        weights = weights[:, : ops.shape(target_ids)[1], : ops.shape(source_ids)[1]]
        return output, {"cross": [weights[:, None]]}

    def _in_order(self, weights: Tensor, source_ids: Tensor) -> Tensor:
        """The weights `(B, T, S)` in the order of the source, where the encoder has another."""
        return weights


def at_least_one_column(token_ids: Tensor) -> Tensor:
    """Ids `(B, T)` as they are, or a column where there is none: loops over time have a step.

    Only a batch without rows has no columns, so it does not matter what is in this one.
    """
    token_ids = ops.convert_to_tensor(token_ids)
    if token_ids.shape[1]:
        return token_ids
    column = ops.zeros((ops.shape(token_ids)[0], 1), dtype=token_ids.dtype)
    return ops.concatenate([token_ids, column], axis=1)[
        :, : ops.maximum(ops.shape(token_ids)[1], 1)
    ]


def reversed_order(token_mask: Tensor) -> Tensor:
    """Indices `(B, S)` that reverse the tokens of each row; its last token, the end, stays last.

    Applied twice they give the first order again.

    Args:
        token_mask: bool tensor `(B, S)`, True at the tokens, which come first.
    """
    last = ops.sum(ops.cast(token_mask, "int32"), axis=1, keepdims=True) - 1
    positions = ops.arange(ops.shape(token_mask)[1], dtype="int32")
    return ops.where(positions < last, last - 1 - positions, positions)


def by_sentence(rows: Tensor, beams: Tensor | None) -> Tensor:
    """The rows `(N, D)` of a step as the queries of each sentence, `(B, K, D)`."""
    if beams is None:
        return rows[:, None]
    return ops.reshape(rows, (-1, ops.shape(beams)[0], rows.shape[-1]))


class _Cell:
    """What `keras.layers.RNN` asks of a cell, around a function."""

    def __init__(self, step: Callable, state: list[Tensor], dtype: str) -> None:
        self.call = step
        self.state_size = [tensor.shape[-1] for tensor in state]
        self.compute_dtype = dtype

    def __call__(self, inputs: Tensor, state: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        return self.call(inputs, state)


def over_time(
    step: Callable[[Tensor, list[Tensor]], tuple[Tensor, Tensor, list[Tensor]]],
    state: list[Tensor],
    inputs: Tensor,
    dtype: str,
) -> tuple[Tensor, Tensor]:
    """Runs a step with attention at each position.

    Args:
        step: `(inputs (B, E), state) -> outputs (B, F), weights (B, S), state`.
        state: tensors `(B, D)`, before the first step.
        inputs: tensor `(B, T, E)`.
        dtype: dtype of all these tensors.

    Returns:
        the outputs `(B, T, F)` and the weights `(B, T, S)`.
    """
    sizes = []

    def joined(inputs, state):
        outputs, weights, state = step(inputs, state)
        sizes.append(outputs.shape[-1])
        return ops.concatenate([outputs, weights], axis=-1), state

    # Keras' loop and not `ops.scan`, whose gradients XLA does not compile (Keras 3.15.1).
    loop = keras.layers.RNN(_Cell(joined, state, dtype), return_sequences=True, dtype=dtype)
    both, size = loop(inputs, initial_state=state), sizes[0]
    # TensorFlow knows no size of a slice of S unknown.
    outputs = ops.reshape(both[..., :size], (-1, ops.shape(inputs)[1], size))
    return outputs, both[..., size:]
