"""The sizes of a Transformer: those of the presets, and those that cannot be."""

import dataclasses

import pytest
from configurations import refusal

from tf_transformer.config import ModelConfig, TransformerConfig
from tf_transformer.models.presets import PRESETS, preset, transformer_config


@pytest.mark.parametrize(
    ("changes", "need"),
    [
        ({"d_model": 510, "num_heads": 8}, "d_model must be a multiple of num_heads=8"),
        ({"d_model": 7, "num_heads": 7}, "d_model must be even"),
    ],
)
def test_a_width_that_does_not_divide(changes, need):
    message = refusal(TransformerConfig, 300, 300, **changes)
    assert message == f"{need}; received d_model={changes['d_model']}."


def test_tied_embeddings_need_one_vocabulary():
    message = refusal(TransformerConfig, 300, 301)
    assert "source_vocab_size=300" in message and "target_vocab_size=301" in message
    assert TransformerConfig(300, 301, tie_embeddings=False).target_vocab_size == 301


# num_layers, d_model, d_ff, num_heads; base and big: Vaswani et al. 2017, table 3.
TABLE = {
    "tiny": (4, 128, 256, 4),
    "small": (4, 128, 512, 8),
    "base": (6, 512, 2048, 8),
    "big": (6, 1024, 4096, 16),
}


@pytest.mark.parametrize("name", TABLE)
def test_the_presets_have_the_sizes_of_the_papers(name):
    config = preset(name, 300, 300)
    assert (config.num_layers, config.d_model, config.d_ff, config.num_heads) == TABLE[name]
    assert config.tie_embeddings
    assert not preset(name, 300, 301).tie_embeddings


def test_a_setting_may_be_every_preset_and_no_other():
    (field,) = [field for field in dataclasses.fields(ModelConfig) if field.name == "preset"]
    assert set(field.metadata["choices"]) == set(PRESETS) == set(TABLE)


def test_the_default_sizes_are_those_of_the_base_model():
    assert TransformerConfig(300, 300) == preset("base", 300, 300)


def test_a_run_changes_single_sizes_of_its_preset():
    model = ModelConfig(
        preset="small", d_ff=64, dropout_rate=0.3, attention_dropout_rate=0.2, norm_first=False
    )
    assert transformer_config(model, 300, 400, joint=False, pad_id=7) == TransformerConfig(
        source_vocab_size=300,
        target_vocab_size=400,
        num_layers=4,
        d_model=128,
        num_heads=8,
        d_ff=64,
        dropout_rate=0.3,
        attention_dropout_rate=0.2,
        norm_first=False,
        tie_embeddings=False,
        pad_id=7,
    )


@pytest.mark.parametrize("joint", [True, False])
@pytest.mark.parametrize("tie", [None, True, False])
def test_embeddings_are_tied_where_the_vocabulary_is_joint_unless_told(joint, tie):
    config = transformer_config(ModelConfig(tie_embeddings=tie), 300, 300, joint, pad_id=0)
    assert config.tie_embeddings is (joint if tie is None else tie)


def test_the_transformers_sizes_survive_as_plain_values():
    config = TransformerConfig(300, 400, d_model=8, num_heads=2, tie_embeddings=False, pad_id=3)
    assert TransformerConfig(**config.to_dict()) == config
    assert all(type(value) in (int, float, bool) for value in config.to_dict().values())
