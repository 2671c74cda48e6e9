"""The layers of the models, in pure Keras 3."""

from tf_transformer.layers.attention import (
    CausalSelfAttention,
    CrossAttention,
    GlobalSelfAttention,
    MultiHeadAttention,
)
from tf_transformer.layers.decoder import Decoder, DecoderLayer
from tf_transformer.layers.encoder import Encoder, EncoderLayer
from tf_transformer.layers.feed_forward import FeedForward
from tf_transformer.layers.masks import (
    causal_mask,
    local_mask,
    padding_mask,
    permutation_mask,
    prefix_mask,
)
from tf_transformer.layers.maxout import Maxout
from tf_transformer.layers.output_projection import OutputProjection
from tf_transformer.layers.positions import PositionalEmbedding, sinusoidal_positions
from tf_transformer.layers.prefix_stack import PrefixLayer, PrefixSelfAttention, PrefixStack
from tf_transformer.layers.recurrent_attention import (
    AdditiveAttention,
    DotAttention,
    GeneralAttention,
    PredictedWindow,
)
from tf_transformer.layers.residual import Residual
from tf_transformer.layers.restricted_attention import (
    RestrictedCausalSelfAttention,
    RestrictedSelfAttention,
)

__all__ = [
    "AdditiveAttention",
    "CausalSelfAttention",
    "CrossAttention",
    "Decoder",
    "DecoderLayer",
    "DotAttention",
    "Encoder",
    "EncoderLayer",
    "FeedForward",
    "GeneralAttention",
    "GlobalSelfAttention",
    "Maxout",
    "MultiHeadAttention",
    "OutputProjection",
    "PositionalEmbedding",
    "PredictedWindow",
    "PrefixLayer",
    "PrefixSelfAttention",
    "PrefixStack",
    "Residual",
    "RestrictedCausalSelfAttention",
    "RestrictedSelfAttention",
    "causal_mask",
    "local_mask",
    "padding_mask",
    "permutation_mask",
    "prefix_mask",
    "sinusoidal_positions",
]
