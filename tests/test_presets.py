"""Model configurations: presets, defaults, the ids of the tokenizers, and invalid values."""

import dataclasses

import pytest
from commands import refusal
from letters import VOCAB_SIZE
from pydantic import ValidationError
from small_models import small_config

from tf_transformer.models.architectures import preset, with_tokenizers
from tf_transformer.models.model_configs import TransformerConfig
from tf_transformer.run_config import RunConfig


def test_the_default_sizes_are_those_of_the_base_model_and_one_vocabulary_is_tied():
    assert TransformerConfig(300, 300) == preset("base", 300, 300)
    assert not preset("base", 300, 301).tie_embeddings


@pytest.mark.parametrize("joint", [True, False])
@pytest.mark.parametrize("tie", [None, True, False])
def test_embeddings_are_tied_where_the_vocabulary_is_joint_unless_told(joint, tie):
    model = {} if tie is None else {"tie_embeddings": tie}
    tables = {"data": {"corpus": "copy"}, "tokenizer": {"joint": joint}, "model": model}
    if tie and not joint:
        assert "tie_embeddings needs one vocabulary" in refusal(RunConfig.from_dict, tables)
    else:
        assert RunConfig.from_dict(tables).model.tie_embeddings is (joint if tie is None else tie)


def test_the_tokenizers_decide_vocabularies_and_special_ids(letter_tokenizer):
    config = with_tokenizers(preset("tiny"), letter_tokenizer, letter_tokenizer)
    assert config == dataclasses.replace(preset("tiny", VOCAB_SIZE, VOCAB_SIZE), pad_id=0)
    masked = with_tokenizers(small_config("masked_lm", mask_id=9), *[letter_tokenizer] * 2)
    assert (masked.mask_id, masked.eos_id) == (letter_tokenizer.unk_id, letter_tokenizer.eos_id)
    causal = with_tokenizers(small_config("causal_lm", bos_id=9), *[letter_tokenizer] * 2)
    assert causal.bos_id == letter_tokenizer.bos_id


INVALID = {
    "transformer": [
        ({"num_heads": 5}, "num_heads=5"),
        ({"d_model": 7, "num_heads": 7}, "d_model=7 is not even"),
        ({"target_vocab_size": 14}, "source_vocab_size=13, target_vocab_size=14"),
        ({"attention_dropout_rate": -0.1}, "attention_dropout_rate"),
        ({"activation": "gelus"}, "'gelu'"),
        ({"pad_id": 13}, "pad_id=13"),
        ({"source_vocab_size": 0}, "source_vocab_size"),
    ],
    "masked_lm": [({"mask_id": 13}, "mask_id=13")],
    "luong": [({"attention_window": 0}, "attention_window")],
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "changes", "words"), [(name, *row) for name, rows in INVALID.items() for row in rows]
)
def test_an_invalid_value_is_named(name, changes, words):
    with pytest.raises(ValidationError, match=words):
        small_config(name, **changes)
