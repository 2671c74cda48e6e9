"""The language models: one stack of self-attention over source and target; its mask sets the task.

prefix_lm       the source sees itself, the target the source and its own past (UniLM)
causal_lm       every token sees those before it: the source is a prompt (GPT)
permutation_lm  a target token sees those generated before it, in any order (XLNet)
masked_lm       all tokens see each other; some target tokens are masked (BERT, masked_lm.py)
"""

from typing import ClassVar, NamedTuple

import keras
from keras import ops

from tf_transformer.layers.base import Int, Tensor, built
from tf_transformer.layers.kv_cache import Cache
from tf_transformer.layers.masks import causal_mask, permutation_mask, segment_mask
from tf_transformer.layers.norm import LayerNorm
from tf_transformer.layers.output import OutputTransform
from tf_transformer.layers.positions import token_embedding
from tf_transformer.layers.prefix_decoder import PrefixLayer, PrefixStack
from tf_transformer.models import model_configs
from tf_transformer.models.base import Inputs, SequenceModel, packed_sides, split_inputs

SOURCE, TARGET = 0, 1


class LanguageModel(SequenceModel):
    """A stack of self-attention over source and target, whose mask decides the task.

    In each row the positions of the target continue those of the source; the padding between the
    two is masked and not counted. With segments, each side has a learned vector that is added to
    its tokens (Devlin et al. 2019, section 3).

    Args, call arguments and returns: as in `SequenceModel`.
    """

    config: model_configs.LanguageModelConfig
    has_segments: ClassVar[bool] = True

    def _create_layers(self) -> None:
        config, policy, shared = self.config, self.dtype_policy, None
        if config.tie_embeddings:
            shared = token_embedding(config.target_vocab_size, config.d_model, dtype=policy)
        embedding, hidden = self._positional_embedding, (None, None, config.d_model)
        sizes, table = (config.source_vocab_size, config.target_vocab_size), self._position_table()
        self.source_embedding = embedding("source", sizes[0], shared, table)
        self.target_embedding = embedding("target", sizes[1], shared, table)
        if self.has_segments:
            scale = 1.0 if config.scale_embeddings else config.d_model**-0.5  # that of tokens
            start, name = keras.initializers.RandomNormal(stddev=scale), "segment_embedding"
            segments = keras.layers.Embedding(2, config.d_model, start, dtype=policy, name=name)
            self.segment_embedding = built(segments, (None,))
        if config.embedding_norm:
            norm = LayerNorm(epsilon=config.layer_norm_epsilon, dtype=policy, name="norm")
            self.embedding_norm = built(norm, hidden)
        self.dropout = keras.layers.Dropout(config.dropout_rate, dtype=policy)
        layers = self._transformer_layers(PrefixLayer, config.num_layers)
        stack = PrefixStack(layers, dtype=policy, name="stack")
        self.stack, transform = built(stack, hidden), None
        if config.output_transform:
            options = config.d_model, config.activation, config.layer_norm_epsilon
            transform = OutputTransform(*options, dtype=policy, name="output_transform")
        self.output_projection = self._output_projection(shared, transform)

    def _read(
        self, parts: list[Tensor], mask: Tensor, training: bool | None
    ) -> tuple[Tensor, list[Tensor]]:
        """Return hidden states of joined parts `(B, …, D)`, and attention weights by layer."""
        x = self.dropout(ops.concatenate(parts, axis=1), training=training)
        return self.stack(x, mask, training=training, return_attention_scores=True)

    def _is_real(self, token_ids: Tensor) -> Tensor:
        """Return where tokens are not padding, bool `(B, T)`."""
        return ops.not_equal(token_ids, self.config.pad_id)

    def _lengths(self, token_ids: Tensor) -> Tensor:
        """Return the number of real tokens in each row, int32 `(B,)`."""
        return ops.sum(ops.cast(self._is_real(token_ids), "int32"), axis=1)

    def _embed_source(self, source_ids: Tensor, positions: Tensor | None = None) -> Tensor:
        return self._in_segment(SOURCE, self.source_embedding(source_ids, positions))

    def _embed_target(self, target_ids: Tensor, first: Tensor) -> Tensor:
        """Embed target tokens `(B, T)`, whose rows start at the positions `first` `(B,)`."""
        positions = first[:, None] + ops.arange(ops.shape(target_ids)[1], dtype="int32")
        return self._in_segment(TARGET, self.target_embedding(target_ids, positions=positions))

    def _embed_sides(self, source_ids: Tensor, target_ids: Tensor) -> list[Tensor]:
        """Return the embedded source, and the embedded target at the positions after the source."""
        target = self._embed_target(target_ids, self._lengths(source_ids))
        return [self._embed_source(source_ids), target]

    def _in_segment(self, segment: int, x: Tensor) -> Tensor:
        """Add the vector of a segment to embedded tokens, and normalise the sum, if configured."""
        if self.has_segments:
            vector = self.segment_embedding(ops.full((1,), segment, "int32"))
            x = x + ops.cast(vector, self.compute_dtype)
        return self.embedding_norm(x) if self.config.embedding_norm else x


class Prefix(NamedTuple):
    """The embedded tokens that precede the target of a language model.

    Attributes:
        vectors: The embedded prefix, float `(B, P, D)`.
        is_real, is_seen: Where it is real, and what of it the target sees, bool `(B, P)`.
        start: The target's first position, int32 `(B,)`.
        first: The target's first input, float `(B, D)`; None for the begin token.
    """

    vectors: Tensor
    is_real: Tensor
    is_seen: Tensor
    start: Tensor
    first: Tensor | None = None


class GenerativeLanguageModel(LanguageModel):
    """A language model that decodes after a prefix.

    Subclasses implement `_embed_prefix`, given the source ids and the begin tokens `(B, 1)`.
    """

    prefix_is_causal: ClassVar[bool] = False

    def _after_begin(self, begin: Tensor, source_ids: Tensor, last: Tensor) -> Prefix:
        """Embed the begin tokens and the source, whose token at `last` is the target's first input.

        The target does not see this token in the prefix, too.
        """
        ids = ops.concatenate([ops.cast(begin, source_ids.dtype), source_ids], axis=1)
        prefix, columns = self._embed_source(ids), ops.arange(ops.shape(ids)[1], dtype="int32")
        is_last = (columns == last[:, None])[..., None]
        first = ops.sum(ops.where(is_last, prefix, ops.zeros_like(prefix)), axis=1)
        return Prefix(prefix, columns <= last[:, None], columns < last[:, None], last, first)

    def _call(
        self, inputs: Inputs, training: bool | None
    ) -> tuple[Tensor, dict[str, list[Tensor]]]:
        """Return the output of a call, and the attention weights from target to both sides."""
        sides = packed_sides(inputs) if self.config.packs else None
        if sides:
            source_ids = sides[0][0]
            *parts, mask = self._embed_packed(*sides)
        else:
            source_ids, target_ids = split_inputs(inputs)
            *parts, mask = self._embed_padded(source_ids, target_ids)
        hidden, weights = self._read(parts, mask, training)
        size = ops.shape(parts[0])[1]
        before = size - ops.shape(source_ids)[1]
        return self.output_projection(hidden[:, size:]), {
            "decoder": [layer[:, :, size:, size:] for layer in weights],
            "cross": [_distribution(layer[:, :, size:, before:size]) for layer in weights],
        }

    def _embed_padded(self, source_ids: Tensor, target_ids: Tensor) -> tuple[Tensor, ...]:
        """Return the embedded prefix and target of each pair, and the mask of both joined."""
        prefix, is_real, is_seen, start, first = self._embed_prefix(source_ids, target_ids[:, :1])
        target, size = self._embed_target(target_ids, start), ops.shape(prefix)[1]
        if first is not None:
            first = first[:, None][:, : ops.shape(target)[1]]  # there may be no target at all
            target = ops.concatenate([first, target[:, 1:]], axis=1)
        # Real target tokens come first, so the mask hides the target's padding from all of them.
        is_target = ops.ones_like(target_ids, "bool")
        of_prefix, of_target = (
            ops.concatenate([keys, is_target], axis=1)[:, None] for keys in (is_real, is_seen)
        )
        in_prefix = ops.arange(ops.shape(of_prefix)[2]) < size
        mask = causal_mask(ops.shape(of_prefix)[2])
        if not self.prefix_is_causal:
            mask = ops.logical_or(mask, in_prefix)
        mask = ops.logical_and(mask, ops.where(in_prefix[:, None], of_prefix, of_target))
        return prefix, target, mask

    def _embed_packed(self, of_source: list[Tensor], of_target: list[Tensor]) -> tuple[Tensor, ...]:
        """Return what `_embed_padded` does of rows of several pairs."""
        source_ids, source, source_positions = of_source
        target_ids, target, positions = of_target
        in_source, seen = segment_mask(source, source), segment_mask(target, source)
        start = ops.sum(ops.cast(seen, "int32"), axis=2)  # the tokens of the source
        if self.prefix_is_causal:
            # The begin token moves the source on by one, and its end falls out.
            moved = ops.roll(source_ids, 1, axis=1)
            source_ids = ops.where(ops.equal(source_positions, 0), self.config.bos_id, moved)
            in_source = ops.logical_and(in_source, causal_mask(ops.shape(source)[1]))
            start = ops.maximum(start - 1, 0)
            is_last = ops.equal(source_positions[:, None], start[..., None])
            is_last = ops.logical_and(seen, is_last)
            seen = ops.logical_and(seen, ops.logical_not(is_last))
        prefix = self._embed_source(source_ids, source_positions)
        x = self._in_segment(TARGET, self.target_embedding(target_ids, start + positions))
        if self.prefix_is_causal:  # the last token of the prompt is the target's first input
            column = ops.argmax(ops.cast(is_last, "int32"), axis=2)
            first = ops.take_along_axis(prefix, column[..., None], axis=1)
            is_first = ops.logical_and(ops.equal(positions, 0), ops.any(is_last, axis=2))
            x = ops.where(is_first[..., None], first, x)
        own = ops.logical_and(segment_mask(target, target), causal_mask(ops.shape(target)[1]))
        no_target = ops.zeros_like(ops.swapaxes(seen, 1, 2))
        rows = [ops.concatenate(row, axis=2) for row in ((in_source, no_target), (seen, own))]
        return prefix, x, ops.concatenate(rows, axis=1)

    def start_decoding(self, source_ids: Tensor) -> Cache:
        """Read the source and return the cache for the first step, as in `Transformer`."""
        begin = ops.full((ops.shape(source_ids)[0], 1), self.config.bos_id)
        prefix, is_real, is_seen, start, first = self._embed_prefix(source_ids, begin)
        mask = is_real[:, None]
        if self.prefix_is_causal:
            mask = ops.logical_and(mask, causal_mask(ops.shape(prefix)[1]))
        cache = self.stack.start_decoding(prefix, is_seen[:, None], mask)
        cache["source"]["lengths"] = start
        if first is not None:
            cache["source"]["last"] = first
        cache["constants"].update(self.output_projection.start_decoding())
        return cache

    def decode_step(self, token_ids: Tensor, index: Int, cache: Cache) -> tuple[Tensor, Cache]:
        """Predict the token after `token_ids` `(N,)`, as in `Transformer`."""
        source = cache["source"]
        x = self.target_embedding.decode_step(token_ids, source["lengths"] + index)
        x = self._in_segment(TARGET, x)
        if "last" in source:  # the last token of source or prompt replaces the begin token
            x = ops.where(ops.equal(index, 0), source["last"], x)
        hidden, cache = self.stack.decode_step(x, cache)
        return self.output_projection.decode_step(hidden, cache["constants"]), cache


class PrefixLanguageModel(GenerativeLanguageModel):
    """A translation model of one stack (UniLM, Dong et al. 2019, section 2.3, "seq-to-seq LM").

    The source is a prefix that sees itself in both directions; a target token sees the source and
    the target's past. Training predicts each next token, as in the prefix models of Raffel et al.
    2020, section 3.2.1; UniLM predicts masked tokens. Training can start from the weights of a
    trained `MaskedLanguageModel` of the same sizes, as UniLM starts from BERT's:

        model = PrefixLanguageModel(config)
        model.set_weights(masked_language_model.get_weights())

    With `config.begin_source` a sequence is laid out as BERT's and UniLM's are: the begin token
    stands in front of the source, and the end token of the source is the input from which the
    first target token is predicted. Otherwise the begin token stands in front of the target.

    Args, call arguments and returns: as in `SequenceModel`, with a `PrefixLanguageModelConfig`. The
        inputs may be packed, see `Transformer`, but not with `begin_source`.
        With `return_attention_scores` a call also returns a dict of two lists with the weights of
        each layer: `decoder` `(B, H, T, T)`, from target to target, and `cross` `(B, H, T, S)`,
        from target to source. One softmax covers both, and `cross` is then scaled so that its rows
        sum to 1, if the source is not empty.

    Example:
        >>> config = tt.PrefixLanguageModelConfig(100, 100, num_layers=1, d_model=8, num_heads=2)
        >>> model = tt.PrefixLanguageModel(config)
        >>> model({"source_ids": np.array([[5, 6, 3]]), "target_ids": np.array([[2, 7]])}).shape
        TensorShape([1, 2, 100])
    """

    config_class = model_configs.PrefixLanguageModelConfig

    def call(
        self, inputs: Inputs, training: bool | None = None, return_attention_scores: bool = False
    ) -> Tensor | tuple[Tensor, dict[str, list[Tensor]]]:
        output, weights = self._call(inputs, training)
        return (output, weights) if return_attention_scores else output

    def _embed_prefix(self, source_ids: Tensor, begin: Tensor) -> Prefix:
        is_real, length = self._is_real(source_ids), self._lengths(source_ids)
        if self.config.begin_source:  # the source's end token is the target's first input
            return self._after_begin(begin, source_ids, length)
        return Prefix(self._embed_source(source_ids), is_real, is_real, length)


def _distribution(weights: Tensor) -> Tensor:
    """Scale rows to a sum of 1, in float32 because half precision may lose all of a small row."""
    exact = ops.cast(weights, "float32")
    sums = ops.sum(exact, axis=-1, keepdims=True)
    return ops.cast(exact / ops.maximum(sums, 1e-30), weights.dtype)


class CausalLanguageModel(GenerativeLanguageModel):
    """A left-to-right language model (Radford et al. 2018, section 3.1).

    The model reads the begin token, the source without its end token, and the target; each token
    sees the tokens before it. The source is thus a prompt, which a translation completes. With
    empty sources (only the end token) training is that of an ordinary language model. The loss is
    that of the target, not of the prompt.

    Args, call arguments and returns: as in `SequenceModel`, with a `CausalLanguageModelConfig`. The
        inputs may be packed, see `Transformer`. The target starts with `config.bos_id`, which is
        embedded as part of the prompt. The logits at 0 follow the prompt's last token, which is the
        begin token if the source is empty.

    Example:
        >>> config = tt.CausalLanguageModelConfig(100, 100, num_layers=1, d_model=8, num_heads=2)
        >>> model = tt.CausalLanguageModel(config)
        >>> model({"source_ids": np.array([[5, 6, 3]]), "target_ids": np.array([[2, 7]])}).shape
        TensorShape([1, 2, 100])
    """

    config_class = model_configs.CausalLanguageModelConfig
    has_segments, prefix_is_causal = False, True

    def call(self, inputs: Inputs, training: bool | None = None) -> Tensor:
        return self._call(inputs, training)[0]

    def _embed_prefix(self, source_ids: Tensor, begin: Tensor) -> Prefix:
        """Return the prompt: the begin token and the source without its end token."""
        last = ops.maximum(self._lengths(source_ids) - 1, 0)
        return self._after_begin(begin, source_ids[:, :-1], last)


class PermutationLanguageModel(LanguageModel):
    """A language model that learns every order of the target (XLNet, Yang et al. 2019, 2.2, 2.3).

    In training each target is predicted in a new random order with its end token last; the source
    is a prefix that all tokens see. A content row knows a token and its position, and sees itself
    and the tokens generated before it. A query row knows only the position to predict, starts from
    a learned vector that all queries share, and sees the content of the tokens generated before.
    Both streams are in one sequence under one mask, in which no row sees a query. Outside training
    the order is left to right, so that the logits are those of a causal model.

    The model only scores text, without a decoding step. Unlike XLNet, it predicts all tokens of an
    order, and has absolute positions and no segment recurrence.

    Args, call arguments and returns: as in `SequenceModel`, with a
        `PermutationLanguageModelConfig`. In training, each call draws the orders at random.

    Example:
        >>> sizes = {"num_layers": 1, "d_model": 8, "num_heads": 2}
        >>> config = tt.PermutationLanguageModelConfig(100, 100, **sizes)
        >>> model = tt.PermutationLanguageModel(config)
        >>> model({"source_ids": np.array([[5, 6, 3]]), "target_ids": np.array([[2, 7]])}).shape
        TensorShape([1, 2, 100])
    """

    config_class = model_configs.PermutationLanguageModelConfig

    def _create_layers(self) -> None:
        super()._create_layers()
        # A vocabulary of one: the vector that queries start from, at the position to predict.
        positions = self.source_embedding.position_embedding
        self.query_embedding = self._positional_embedding("query", 1, None, positions)
        self.seed_generator = keras.random.SeedGenerator()

    def call(self, inputs: Inputs, training: bool | None = None) -> Tensor:
        source_ids, target_ids = split_inputs(inputs)
        size, length = ops.shape(source_ids)[1], ops.shape(target_ids)[1]
        in_order = ops.arange(length + 1, dtype="int32")[None]
        ranks = self._draw_ranks(target_ids) if training else in_order
        positions = self._lengths(source_ids)[:, None] + ops.arange(length, dtype="int32") + 1
        queries = self.query_embedding(ops.zeros_like(target_ids), positions=positions)
        parts = [*self._embed_sides(source_ids, target_ids), self._in_segment(TARGET, queries)]
        mask = two_stream_mask(self._is_real(source_ids), ranks)
        hidden, _ = self._read(parts, mask, training)
        return self.output_projection(hidden[:, size + length :])

    def _draw_ranks(self, target_ids: Tensor) -> Tensor:
        """Return random ranks of each row's tokens, the begin token first, end and padding last."""
        tokens = ops.arange(ops.shape(target_ids)[1], dtype="int32") + 1
        is_token = tokens <= self._lengths(target_ids[:, 1:])[:, None]
        noise = keras.random.uniform(ops.shape(target_ids), seed=self.seed_generator)
        keys = ops.where(is_token, noise, ops.cast(tokens, noise.dtype))  # the noise is below 1
        ranks = ops.cast(ops.argsort(ops.argsort(keys, axis=1), axis=1), "int32") + 1
        return ops.pad(ranks, [[0, 0], [1, 0]])


def two_stream_mask(is_source: Tensor, ranks: Tensor) -> Tensor:
    """Return the mask of source, content and queries joined, bool `(B, S + 2 T, S + 2 T)`.

    `is_source` `(B, S)` is true at the real tokens of the source; `ranks` `(B, T + 1)` or
    `(1, T + 1)` are as in `permutation_mask`.
    """
    size, length = ops.shape(is_source)[1], ops.shape(ranks)[1] - 1
    content = ranks[:, None, :-1] <= ranks[:, :-1, None]
    targets = ops.concatenate([content, permutation_mask(ranks)], axis=1)
    targets = ops.pad(targets, [[0, 0], [size, 0], [size, length]])
    return ops.logical_or(targets, ops.pad(is_source, [[0, 0], [0, 2 * length]])[:, None])
