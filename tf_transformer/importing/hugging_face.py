"""Marian models as Hugging Face publishes them, such as OPUS-MT's."""

import functools
import json
import pathlib
from typing import Any

import numpy as np

from tf_transformer.importing.foreign_model import (
    NEVER,
    ForeignModel,
    by_id,
    config_of,
    existing,
    put,
    put_stack,
    table_tokenizer,
)
from tf_transformer.importing.tensors import (
    ForeignModelError,
    Tensors,
    read_safetensors,
    read_torch,
)
from tf_transformer.models.configs import TransformerConfig
from tf_transformer.models.transformer import Transformer
from tf_transformer.tokenizers import VocabularyTokenizer

_READERS = {"model.safetensors": read_safetensors, "pytorch_model.bin": read_torch}
_SETTINGS = {  # ours: theirs
    "d_model": "d_model",
    "num_layers": "encoder_layers",
    "decoder_layers": "decoder_layers",
    "num_heads": "encoder_attention_heads",
    "d_ff": "encoder_ffn_dim",
    "activation": "activation_function",
    "scale_embeddings": "scale_embedding",
    "dropout_rate": "dropout",
    "attention_dropout_rate": "attention_dropout",
}
# What other values of these settings would compute, our model does not.
_FIXED = {
    "model_type": ("marian",),
    "normalize_before": (False,),
    "normalize_embedding": (False,),
    "static_position_embeddings": (True,),
}
_LAYER = {  # ours: theirs
    "self_attention.query_key_value_projection": [f"self_attn.{x}_proj" for x in "qkv"],
    "self_attention.output_projection": ["self_attn.out_proj"],
    "self_residual.norm": ["self_attn_layer_norm"],
    "feed_forward.expand": ["fc1"],
    "feed_forward.contract": ["fc2"],
    "feed_forward_residual.norm": ["final_layer_norm"],
    "cross_attention.query_projection": ["encoder_attn.q_proj"],
    "cross_attention.key_value_projection": [f"encoder_attn.{x}_proj" for x in "kv"],
    "cross_attention.output_projection": ["encoder_attn.out_proj"],
    "cross_residual.norm": ["encoder_attn_layer_norm"],
}
_SHARED = "model.shared.weight"
_EMBEDDINGS = {side: f"model.{side}.embed_tokens.weight" for side in ("encoder", "decoder")}
_OUTPUT = "lm_head.weight"
# A file may store tied matrices several times, and sinusoids.
_KNOWN = {
    _SHARED,
    *_EMBEDDINGS.values(),
    _OUTPUT,
    *(f"model.{side}.embed_positions.weight" for side in _EMBEDDINGS),
}


def read_hugging_face(folder: pathlib.Path) -> ForeignModel:
    """Read `config.json`, the weights, `source.spm`, `target.spm` and `vocab.json`."""
    path, of_search = folder / "config.json", folder / "generation_config.json"
    theirs = read_json(path)
    if of_search.is_file():  # newer releases write the ids of the search there
        theirs = {**read_json(of_search), **theirs}
    config = _config(path, theirs)
    tensors, tokenizers = read_weights(folder), _tokenizers(folder, theirs)
    fill = functools.partial(_fill, tensors=tensors, never=_never_produced(path, theirs))
    max_length = theirs["max_position_embeddings"]
    return ForeignModel(config, *tokenizers, fill, allow_unknown=True, max_length=max_length)


def read_weights(folder: pathlib.Path) -> Tensors:
    """Read the weights of a folder, in either of their formats."""
    for name, read in _READERS.items():
        if (folder / name).is_file():
            return read(folder / name)
    raise ForeignModelError(f"{folder}: has no {' or '.join(_READERS)}. Download one of them.")


def read_json(path: pathlib.Path) -> dict[str, Any]:
    """Read a JSON file that holds an object."""
    content = existing(path).read_bytes()
    try:
        return dict(json.loads(content))
    except (ValueError, TypeError):
        raise ForeignModelError(f"{path}: is no JSON object. Download it again.") from None


def _config(path: pathlib.Path, theirs: dict[str, Any]) -> TransformerConfig:
    same = {
        "decoder_attention_heads": (theirs.get("encoder_attention_heads"),),
        "decoder_ffn_dim": (theirs.get("encoder_ffn_dim"),),
    }
    ties = theirs.get("tie_word_embeddings", True)
    shares = theirs.get("share_encoder_decoder_embeddings", True)
    return config_of(
        path,
        theirs,
        _SETTINGS,
        {**_FIXED, **same},
        norm_first=False,
        positions="sinusoidal_halves",
        layer_norm_epsilon=1e-5,
        tie_embeddings=ties and shares,
        tie_output=ties and not shares,
        output_bias=ties,
    )


def _tokenizers(folder: pathlib.Path, theirs: dict[str, Any]) -> list[VocabularyTokenizer]:
    shares = theirs.get("share_encoder_decoder_embeddings", True)
    tokenizers = []
    for side in ("source", "target"):
        path = folder / ("vocab.json" if side == "source" or shares else "target_vocab.json")
        subwords = by_id(path, read_json(path))
        ids = {name: theirs.get(f"{name}_token_id") for name in ("pad", "eos", "decoder_start")}
        if not all(isinstance(i, int) and 0 <= i < len(subwords) for i in ids.values()):
            raise ForeignModelError(f"{path}: lacks the special ids of config.json, {ids}.")
        pad, eos, bos = (subwords[index] for index in ids.values())
        special = {"pad": pad, "eos": eos, "bos": bos, "unk": "<unk>"}
        tokenizers.append(table_tokenizer(folder / f"{side}.spm", path, subwords, **special))
    return tokenizers


def _never_produced(path: pathlib.Path, theirs: dict[str, Any]) -> list[int]:
    words = theirs.get("bad_words_ids") or []
    if any(len(word) != 1 for word in words):
        raise ForeignModelError(f"{path}: bad_words_ids has a word of several tokens.")
    return [theirs["pad_token_id"], *(word[0] for word in words)]


def _fill(model: Transformer, tensors: Tensors, never: list[int]) -> None:
    def weights_of(side: str, index: int, name: str) -> tuple[np.ndarray, np.ndarray]:
        name = f"model.{side}.layers.{index}.{name}"
        # A linear layer of PyTorch has a kernel (outputs, inputs); .T leaves a norm's scale.
        return tensors.take(f"{name}.weight").T, tensors.take(f"{name}.bias")

    for stack in (model.encoder, model.decoder):
        put_stack(stack, _LAYER, weights_of)
    config = model.config
    for side, layer, is_tied in (
        ("encoder", model.source_embedding, config.tie_embeddings),
        ("decoder", model.target_embedding, config.tie_embeddings or config.tie_output),
    ):
        names = [_SHARED, _EMBEDDINGS[side], *([_OUTPUT] if is_tied else [])]
        put(layer.embedding.weights, [tensors.take(*names)], names[1])
    bias = tensors.take("final_logits_bias").reshape(-1)
    bias[never] = NEVER
    projection = model.output_projection
    put([projection.bias], [bias], "final_logits_bias")
    if projection.embedding is None:
        put([projection.kernel], [tensors.take(_OUTPUT).T], _OUTPUT)
    tensors.require_all_used(_KNOWN)
