"""Recurrent encoders and decoders: one model, and its variants from four papers."""

import functools
from typing import Any

import keras
from keras import ops

from tf_transformer.layers.base import Int, Tensor, built, on_rows
from tf_transformer.layers.kv_cache import Cache
from tf_transformer.layers.masks import attention_bias
from tf_transformer.layers.positions import token_embedding
from tf_transformer.layers.recurrent import Maxout, RecurrentStack, States, over_time
from tf_transformer.layers.recurrent_attention import (
    AdditiveAttention,
    DotAttention,
    GeneralAttention,
    PredictedWindow,
)
from tf_transformer.models import model_configs
from tf_transformer.models.base import Inputs, SequenceModel, split_inputs


class Seq2Seq(SequenceModel):
    """A recurrent encoder and decoder; for the structures that it can have see `Seq2SeqConfig`.

    Dropout follows Zaremba et al. 2014: it applies to embeddings, between layers and to the hidden
    state before the output, but never to a state that a layer passes to its own next step.

    Args, call arguments and returns: as in `SequenceModel`, with a `Seq2SeqConfig`.
    """

    config: model_configs.Seq2SeqConfig

    def _create_layers(self) -> None:
        config, policy = self.config, self.dtype_policy
        width, units, score = config.d_model, config.num_units, config.attention_score

        def embedding(side: str, vocab_size: int) -> keras.layers.Embedding:
            layer = token_embedding(vocab_size, width, dtype=policy, name=f"{side}_embedding")
            return built(layer, (None, None))

        def dense(size: int, num_inputs: int, name: str, use_bias: bool = True) -> Any:
            layer = keras.layers.Dense(size, "tanh", use_bias, dtype=policy, name=name)
            return built(layer, (None, num_inputs))

        self.target_embedding = embedding("target", config.target_vocab_size)
        shared = self.target_embedding if config.tie_embeddings else None
        self.source_embedding = shared or embedding("source", config.source_vocab_size)
        self.dropout = keras.layers.Dropout(config.dropout_rate, dtype=policy)
        sizes = config.cell, config.num_layers, units, config.dropout_rate
        encoder = RecurrentStack(*sizes, config.bidirectional, dtype=policy, name="encoder")
        self.encoder = built(encoder, (None, None, width))
        fed = width if config.input_feeding else 0
        if config.context_feeding:
            fed = encoder.width
            self.first_state = dense(units, units, "first_state")
            readout = Maxout(width, dtype=policy, name="readout")
            self.readout = built(readout, (None, None, units + width + fed))
            if score is None:
                self.source_summary = dense(units, units, "summary")
        elif score is not None:
            self.attentional = dense(width, encoder.width + units, "attentional", False)
        decoder = RecurrentStack(*sizes, dtype=policy, name="decoder")
        self.decoder = built(decoder, (None, None, width + fed))
        shapes = (None, None, units), (None, None, encoder.width)
        if score is not None:
            concat = functools.partial(AdditiveAttention, units)
            kinds = {"concat": concat, "dot": DotAttention, "general": GeneralAttention}
            self.attention = built(kinds[score](dtype=policy, name="attention"), *shapes)
        self.window = None
        if config.attention_window is not None:
            window = PredictedWindow(config.attention_window, units, dtype=policy, name="window")
            self.window = built(window, *shapes)
        self.output_projection = self._output_projection(shared)

    def call(self, inputs: Inputs, training: bool | None = None) -> Tensor:
        return self._call(inputs, training)[0]

    def _call(self, inputs: Inputs, training: bool | None) -> tuple[Tensor, Tensor | None]:
        """Return the output of a call, and attention weights `(B, T, S)` or None."""
        source_ids, target_ids = split_inputs(inputs)
        source, state = self._encode(_at_least_one_column(source_ids), training)
        x = self._embed(self.target_embedding, _at_least_one_column(target_ids), training)
        outputs, weights = self._decode(x, state, source, training)
        hidden = self.dropout(self._read_out(outputs), training=training)
        return self.output_projection(hidden[:, : ops.shape(target_ids)[1]]), weights

    def start_decoding(self, source_ids: Tensor) -> Cache:
        """Encode the source and return the cache for the first step, as in `Transformer`.

        `"source"` is what each step reads of the source, and `"target"` is the decoder's state.
        """
        source, state = self._encode(_at_least_one_column(source_ids), training=False)
        constants = self.output_projection.start_decoding()
        return {"constants": constants, "source": source, "target": state}

    def decode_step(self, token_ids: Tensor, index: Int, cache: Cache) -> tuple[Tensor, Cache]:
        """Predict the token after `token_ids` `(N,)`, as in `Transformer`."""
        constants = cache["constants"]
        x = self._embed(self.target_embedding, token_ids, training=False)
        outputs, state, _ = self._step(x, cache["target"], cache["source"])
        logits = self.output_projection.decode_step(self._read_out(outputs), constants)
        return logits, {**cache, "target": state}

    def _embed(self, embedding: keras.Layer, token_ids: Tensor, training: bool | None) -> Tensor:
        # Cast, as quantized embeddings are float32 under mixed policies (Keras 3.15.1). Scale as in
        # the Transformer, because rows small enough for the output would hardly move the gates.
        embedded = ops.cast(embedding(token_ids), self.compute_dtype) * self.config.d_model**0.5
        return self.dropout(embedded, training=training)

    def _token_mask(self, source_ids: Tensor) -> Tensor:
        """Return the mask `(B, S)` of real tokens; cuDNN requires that it include the first."""
        is_first = ops.arange(ops.shape(source_ids)[1]) == 0
        return ops.not_equal(source_ids, self.config.pad_id) | is_first

    def _encode(self, source_ids: Tensor, training: bool | None) -> tuple[States, States]:
        """Return what a step reads of the source, and the decoder's first state, both `(B, …)`."""
        config, mask, source = self.config, self._token_mask(source_ids), {}
        if config.reverse_source:
            source_ids = ops.take_along_axis(source_ids, reversed_order(mask), axis=1)
        x = self._embed(self.source_embedding, source_ids, training)
        context, state = self.encoder(x, token_mask=mask, training=training)
        if config.context_feeding:
            last = self.encoder.top(state)
            if config.attention_score is None:
                last = self.source_summary(last)
            state = dict.fromkeys(state, self.first_state(last))
            if config.attention_score is None:
                state["summary"] = last
        if config.input_feeding:
            state["attentional"] = ops.zeros_like(x[:, 0])
        if config.attention_score is not None:
            source["context"], source["keys"] = context, self.attention.project_keys(context)
            source["bias"] = attention_bias(mask[:, None], self.compute_dtype)
        if self.window is not None:
            source["mask"] = mask[:, None]
        return source, state

    def _decode(
        self, x: Tensor, state: States, source: States, training: bool | None
    ) -> tuple[Tensor, Tensor | None]:
        """Return the input of `_read_out` `(B, T, E)`, and the weights `(B, T, S)` or None."""
        config, attends = self.config, self.config.attention_score is not None
        if not config.input_feeding and not (config.context_feeding and attends):
            # No step reads what another attends to: the decoder runs over all positions at once.
            if config.context_feeding:
                summaries = ops.repeat(state["summary"][:, None], ops.shape(x)[1], axis=1)
                x = ops.concatenate([x, summaries], axis=-1)
            h, _ = self.decoder(x, states=state, training=training)
            if config.context_feeding:
                return ops.concatenate([h, x], axis=-1), None
            return self._attentional(h, source) if attends else (h, None)
        # Draw dropout before the loop, which should have few operations and no random state.
        number = config.num_layers - 1 if training else 0
        factors = [self.dropout(ops.ones_like(x), training=True) for _ in range(number)]

        def step(inputs: Tensor, states: list[Tensor]) -> tuple[Tensor, Tensor, list[Tensor]]:
            x, *factors = ops.split(inputs, inputs.shape[-1] // config.d_model, axis=-1)
            before = dict(zip(state, states, strict=True))
            outputs, after, weights = self._step(x, before, source, factors=factors)
            return outputs, weights, [after[name] for name in state]

        inputs = ops.concatenate([x, *factors], axis=-1)
        return over_time(step, list(state.values()), inputs, self.compute_dtype)

    def _step(
        self, x: Tensor, state: States, source: States, factors: list[Tensor] | None = None
    ) -> tuple[Tensor, States, Tensor | None]:
        """Run one step of the decoder on embedded tokens `(N, D)`; see `RecurrentStack.step`.

        Returns:
            what `_read_out` reads `(N, E)`, the next state, and the weights `(N, S)` or None.
        """
        config, weights = self.config, None
        if config.context_feeding:
            context = state.get("summary")
            if context is None:
                context, weights = self._attend(self.decoder.top(state), source)
            x = ops.concatenate([x, context], axis=-1)
        elif config.input_feeding:
            x = ops.concatenate([x, state["attentional"]], axis=-1)
        h, after = self.decoder.step(x, state, factors)
        state = {**state, **after}
        if config.context_feeding:
            return ops.concatenate([h, x], axis=-1), state, weights
        if config.attention_score is not None:
            h, weights = self._attentional(h, source)
        if config.input_feeding:
            state["attentional"] = h
        return h, state, weights

    def _attend(self, states: Tensor, source: States) -> tuple[Tensor, Tensor]:
        """Return the contexts of states, `(B, T, D)` or in a step `(N, D)`, and the weights."""
        in_step = len(states.shape) == 2
        query, factors = states[:, None] if in_step else states, None
        if self.window is not None:
            factors = self.window(query, source["context"], attention_mask=source["mask"])
        attended, weights = self.attention.attend(
            query, source["keys"], source["context"], source["bias"], factors
        )
        return (attended[:, 0], weights[:, 0]) if in_step else (attended, weights)

    def _attentional(self, states: Tensor, source: States) -> tuple[Tensor, Tensor]:
        """Return the vectors `tanh(W [c; h])` of states h and their contexts c, and the weights."""
        attended, weights = self._attend(states, source)
        return on_rows(self.attentional, ops.concatenate([attended, states], axis=-1)), weights

    def _read_out(self, outputs: Tensor) -> Tensor:
        """Return the hidden state that predicts a token, `(..., D)`."""
        return self.readout(outputs) if self.config.context_feeding else outputs


class Sutskever(Seq2Seq):
    """A deep LSTM that reads the reversed source, and another that writes the target.

    Sutskever, Vinyals & Le 2014. Each decoder layer starts from the last states of the encoder
    layer at the same height; the decoder knows nothing else about the source.

    Example:
        >>> model = tt.Sutskever(tt.SutskeverConfig(100, 100, d_model=8, num_layers=1))
        >>> model({"source_ids": np.array([[5, 6, 3]]), "target_ids": np.array([[2, 7]])}).shape
        TensorShape([1, 2, 100])
    """

    config_class = model_configs.SutskeverConfig


class Cho(Seq2Seq):
    """The RNN encoder-decoder of GRUs (Cho et al. 2014, section 2.2 and appendix A).

    The summary `c = tanh(V h)` of the encoder's last state h gives the decoder its first state
    `tanh(V' c)`. Each step and the maxout output also read c, on which the reset gate does not act;
    the gate acts after the recurrent product, see `RecurrentStack`.

    Example:
        >>> model = tt.Cho(tt.ChoConfig(100, 100, d_model=8, num_units=8))
        >>> model({"source_ids": np.array([[5, 6, 3]]), "target_ids": np.array([[2, 7]])}).shape
        TensorShape([1, 2, 100])
    """

    config_class = model_configs.ChoConfig


class AttentionalSeq2Seq(Seq2Seq):
    """A recurrent encoder and decoder with attention.

    Args, call arguments and returns: as in `Seq2Seq`. With `return_attention_scores` a call also
        returns a dict whose `cross` is a list of one tensor of weights `(B, 1, T, S)`, in the
        source's original order.
    """

    def call(
        self, inputs: Inputs, training: bool | None = None, return_attention_scores: bool = False
    ) -> Tensor | tuple[Tensor, dict[str, list[Tensor]]]:
        output, weights = self._call(inputs, training)
        if not return_attention_scores:
            return output
        source_ids, target_ids = split_inputs(inputs)
        if self.config.reverse_source:
            order = reversed_order(self._token_mask(_at_least_one_column(source_ids)))
            weights = ops.take_along_axis(weights, order[:, None], axis=2)
        weights = weights[:, : ops.shape(target_ids)[1], : ops.shape(source_ids)[1]]
        return output, {"cross": [weights[:, None]]}


class Bahdanau(AttentionalSeq2Seq):
    """A bidirectional GRU encoder, and a GRU decoder that attends to it at each step.

    Bahdanau, Cho & Bengio 2015. The state before a step is the query of an additive score; the GRU
    reads the context and the token's embedding. The maxout output reads the state after the step,
    as in the paper's formula 4, and not the state before the step, as in appendix A.2.2.

    Example:
        >>> model = tt.Bahdanau(tt.BahdanauConfig(100, 100, d_model=8, num_units=8))
        >>> inputs = {"source_ids": np.array([[5, 6, 3]]), "target_ids": np.array([[2, 7]])}
        >>> logits, weights = model(inputs, return_attention_scores=True)
        >>> logits.shape, weights["cross"][0].shape
        (TensorShape([1, 2, 100]), TensorShape([1, 1, 2, 3]))
    """

    config_class = model_configs.BahdanauConfig


class Luong(AttentionalSeq2Seq):
    """The model of Sutskever et al. with attention (Luong, Pham & Manning 2015).

    The top state h after a step is the query. State and context c give the attentional vector
    `tanh(W [c; h])`, which predicts the token and, with input feeding, enters the next step.
    Local attention counts positions in the order in which the encoder reads the source.

    Example:
        >>> model = tt.Luong(tt.LuongConfig(100, 100, d_model=8, num_layers=1))
        >>> model({"source_ids": np.array([[5, 6, 3]]), "target_ids": np.array([[2, 7]])}).shape
        TensorShape([1, 2, 100])
    """

    config_class = model_configs.LuongConfig


def reversed_order(token_mask: Tensor) -> Tensor:
    """Return indices `(B, S)` that reverse the tokens of each row except the end token.

    Applying the indices twice restores the order. `token_mask` `(B, S)` is true at real tokens.
    """
    last = ops.sum(ops.cast(token_mask, "int32"), axis=1, keepdims=True) - 1
    positions = ops.arange(ops.shape(token_mask)[1], dtype="int32")
    return ops.where(positions < last, last - 1 - positions, positions)


def _at_least_one_column(token_ids: Tensor) -> Tensor:
    """Return ids `(B, T)`, with one column if they have none, as loops over time need a step.

    Only a batch without rows has no columns, so the values of the added column do not matter.
    """
    token_ids = ops.convert_to_tensor(token_ids)
    if token_ids.shape[1]:
        return token_ids
    column = ops.zeros((ops.shape(token_ids)[0], 1), dtype=token_ids.dtype)
    length = ops.maximum(ops.shape(token_ids)[1], 1)
    return ops.concatenate([token_ids, column], axis=1)[:, :length]
