"""The configurations of the language models: one stack of self-attention, one task each."""

from pydantic import NonNegativeInt, PositiveInt
from pydantic.dataclasses import dataclass

from tf_transformer.models.configs import CHECKED, AttentionConfig, setting


@dataclass(frozen=True, config=CHECKED)
class LanguageModelConfig(AttentionConfig):
    """What the configurations of the language models share."""

    num_layers: PositiveInt = setting(12, "layers")


@dataclass(frozen=True, config=CHECKED)
class PrefixLanguageModelConfig(LanguageModelConfig):
    """The configuration of a `PrefixLanguageModel`."""


@dataclass(frozen=True, config=CHECKED)
class CausalLanguageModelConfig(LanguageModelConfig):
    """The configuration of a `CausalLanguageModel`.

    Attributes:
        bos_id: The token that targets begin with; like `pad_id` it comes from the tokenizers.
    """

    bos_id: NonNegativeInt = 2


@dataclass(frozen=True, config=CHECKED)
class PermutationLanguageModelConfig(LanguageModelConfig):
    """The configuration of a `PermutationLanguageModel`."""


@dataclass(frozen=True, config=CHECKED)
class MaskedLanguageModelConfig(LanguageModelConfig):
    """The configuration of a `MaskedLanguageModel`.

    Both ids are of the target, and like `pad_id` they come from the tokenizers.

    Attributes:
        mask_id: What is shown in place of a masked token: an id that no text has, such as that of
            unknown tokens where the tokenizer falls back to bytes.
        eos_id: The token that targets end with.
    """

    mask_id: NonNegativeInt = 1
    eos_id: NonNegativeInt = 3
