"""The configurations of the recurrent models; the defaults are the sizes of the papers."""

from typing import Literal

from pydantic import PositiveInt
from pydantic.dataclasses import dataclass

from tf_transformer.models.configs import CHECKED, ModelConfig, setting


@dataclass(frozen=True, config=CHECKED)
class SutskeverConfig(ModelConfig):
    """The configuration of a deep LSTM encoder and decoder (Sutskever et al. 2014, section 3.4).

    Attributes:
        d_model: D, of embeddings and states.
        num_layers: LSTM layers of the encoder, and as many of the decoder.
        reverse_source: Whether the source is read from its last token to its first (section 3.3).

    Raises:
        ConfigError: As in `ModelConfig`.
    """

    d_model: PositiveInt = setting(1000, "width of embeddings and states")
    num_layers: PositiveInt = setting(4, "encoder layers, and as many decoder layers")
    reverse_source: bool = setting(True, "read the source from its last token to its first")


@dataclass(frozen=True, config=CHECKED)
class ChoConfig(ModelConfig):
    """The configuration of a GRU encoder and decoder (Cho et al. 2014, section 4.1).

    Attributes:
        d_model: Width of embeddings (100 in the paper) and of the maxout layer (500).
        num_units: Width of the states.

    Raises:
        ConfigError: As in `ModelConfig`.
    """

    d_model: PositiveInt = setting(500, "width of embeddings and of the layer before the output")
    num_units: PositiveInt = setting(1000, "width of states")


@dataclass(frozen=True, config=CHECKED)
class BahdanauConfig(ChoConfig):
    """The configuration of a model with additive attention (Bahdanau et al. 2015, appendix A.2.3).

    Attributes:
        d_model: Width of embeddings (620 in the paper) and of the maxout layer (500).
        num_units: Width of the states in each direction, of the decoder's and of the attention's
            hidden layer.

    Raises:
        ConfigError: As in `ModelConfig`.
    """

    d_model: PositiveInt = setting(620, "width of embeddings and of the layer before the output")


@dataclass(frozen=True, config=CHECKED)
class LuongConfig(SutskeverConfig):
    """The configuration of stacked LSTMs with attention (Luong et al. 2015, section 4.1).

    Attributes:
        attention_score: The score of query and key (section 3.1).
        attention_window: D of local attention (section 3.2, local-p), 10 in the paper; None for
            global attention.
        input_feeding: Whether each step reads the attentional vector of the last (section 3.3).

    Raises:
        ConfigError: As in `ModelConfig`, or `attention_score` is unknown.
    """

    attention_score: Literal["dot", "general", "concat"] = setting(
        "general", "score of query and key"
    )
    attention_window: PositiveInt | None = setting(
        None, "positions to each side of local attention; default: global attention"
    )
    input_feeding: bool = setting(True, "each step reads the attentional vector of the last")
