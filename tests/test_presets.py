"""The sizes of a Transformer: the presets, the defaults, and invalid ones."""

import dataclasses
import json

import pytest
from configurations import refusal
from letters import VOCAB_SIZE

from tf_transformer.config import RunConfig, settings_by_table
from tf_transformer.models.architectures import ARCHITECTURES, preset, with_tokenizers
from tf_transformer.models.configs import TransformerConfig


@pytest.mark.parametrize(
    ("changes", "need"),
    [
        ({"d_model": 510, "num_heads": 8}, "d_model must be a multiple of num_heads=8"),
        ({"d_model": 7, "num_heads": 7}, "d_model must be even"),
    ],
)
def test_a_width_that_is_no_multiple_of_the_heads(changes, need):
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


def test_the_setting_allows_exactly_the_presets():
    (field,) = [field for field in settings_by_table()["model"] if field.name == "preset"]
    presets = ARCHITECTURES["transformer"].presets
    assert set(field.metadata["choices"]) == set(presets) == set(TABLE)


def test_the_default_sizes_are_those_of_the_base_model():
    assert TransformerConfig(300, 300) == preset("base", 300, 300)


def test_a_run_changes_single_sizes_of_its_preset():
    model = {"preset": "small", "d_ff": 64, "dropout_rate": 0.3, "attention_dropout_rate": 0.2,
             "norm_first": False}  # fmt: skip
    tables = {"data": {"corpus": "copy"}, "tokenizer": {"joint": False}, "model": model}
    assert RunConfig.from_dict(tables).model == TransformerConfig(
        num_layers=4,
        d_model=128,
        num_heads=8,
        d_ff=64,
        dropout_rate=0.3,
        attention_dropout_rate=0.2,
        norm_first=False,
        tie_embeddings=False,
    )


@pytest.mark.parametrize("joint", [True, False])
@pytest.mark.parametrize("tie", [None, True, False])
def test_embeddings_are_tied_where_the_vocabulary_is_joint_unless_told(joint, tie):
    model = {} if tie is None else {"tie_embeddings": tie}
    tables = {"data": {"corpus": "copy"}, "tokenizer": {"joint": joint}, "model": model}
    if tie and not joint:
        assert "tie_embeddings needs one vocabulary" in refusal(RunConfig.from_dict, tables)
    else:
        assert RunConfig.from_dict(tables).model.tie_embeddings is (joint if tie is None else tie)


def test_the_tokenizers_decide_vocabularies_and_padding(letter_tokenizer):
    config = with_tokenizers(preset("tiny"), letter_tokenizer, letter_tokenizer)
    assert (config.source_vocab_size, config.target_vocab_size) == (VOCAB_SIZE, VOCAB_SIZE)
    assert config == dataclasses.replace(preset("tiny", VOCAB_SIZE, VOCAB_SIZE), pad_id=0)


def test_a_config_of_plain_values_round_trips():
    config = TransformerConfig(300, 400, d_model=8, num_heads=2, tie_embeddings=False, pad_id=3)
    assert TransformerConfig(**config.to_dict()) == config
    assert json.loads(json.dumps(config.to_dict())) == config.to_dict()
