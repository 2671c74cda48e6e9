"""Marian models as Hugging Face publishes them, such as OPUS-MT's."""

import functools
import pathlib
from typing import Any

import numpy as np

from tf_transformer.importing.foreign_model import ForeignModel, table_tokenizer
from tf_transformer.importing.settings import by_id, config_of, read_json
from tf_transformer.importing.tensors import ForeignModelError, Tensors, read_weights
from tf_transformer.importing.weights import NEVER, put, put_stack
from tf_transformer.models.model_configs import TransformerConfig
from tf_transformer.models.transformer import Transformer
from tf_transformer.tokenizers import VocabularyTokenizer
from tf_transformer.tokenizers.vocabulary import tags_in

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
# Old files store the sinusoids, too.
_SINUSOIDS = {f"model.{side}.embed_positions.weight" for side in _EMBEDDINGS}


def read_hugging_face_marian(folder: pathlib.Path) -> ForeignModel:
    """Read `config.json`, the weights, `source.spm`, `target.spm` and `vocab.json`.

    New releases write special ids into `generation_config.json`.
    """
    path, search = folder / "config.json", folder / "generation_config.json"
    theirs, others = read_json(path), read_json(search) if search.is_file() else {}
    shares = theirs.get("share_encoder_decoder_embeddings", True)
    config, max_length = _config(path, theirs, shares), theirs.get("max_position_embeddings")
    if type(max_length) is not int or max_length < 2:
        raise ForeignModelError(f"{path}: max_position_embeddings is {max_length!r}, no number.")
    tensors, tokenizers = read_weights(folder), _tokenizers(folder, {**others, **theirs}, shares)
    fill, files = functools.partial(_fill, tensors, shares), (path, tensors.path)
    # Of a search without a limit for short sources, only the largest length stays.
    return ForeignModel(config, *tokenizers, fill, True, max_length, float(max_length), files)


def _config(path: pathlib.Path, theirs: dict[str, Any], shares: bool) -> TransformerConfig:
    sizes = "attention_heads", "ffn_dim"
    same = {f"decoder_{size}": (theirs.get(f"encoder_{size}"),) for size in sizes}
    ties = theirs.get("tie_word_embeddings", True)
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


def _tokenizers(
    folder: pathlib.Path, theirs: dict[str, Any], shares: bool
) -> list[VocabularyTokenizer]:
    ids = {name: theirs.get(f"{name}_token_id") for name in ("pad", "eos", "decoder_start")}
    tokenizers = []
    for side in ("source", "target"):
        path = folder / ("vocab.json" if side == "source" or shares else "target_vocab.json")
        subwords = by_id(path, read_json(path))
        if not all(isinstance(i, int) and 0 <= i < len(subwords) for i in ids.values()):
            raise ForeignModelError(f"{path}: lacks the special ids of config.json, {ids}.")
        pad, eos, bos = (subwords[index] for index in ids.values())
        special = {"pad": pad, "eos": eos, "bos": bos, "unk": "<unk>"}
        splitter, tags = folder / f"{side}.spm", tags_in(subwords)
        tokenizers.append(table_tokenizer(splitter, path, subwords, special, tags))
    return tokenizers


def _fill(tensors: Tensors, shares: bool, model: Transformer) -> None:
    def weights_of(side: str, index: int, name: str) -> tuple[np.ndarray, np.ndarray]:
        name = f"model.{side}.layers.{index}.{name}"
        # A linear layer of PyTorch has a kernel (outputs, inputs); .T leaves a norm's scale.
        return tensors.take(f"{name}.weight").T, tensors.take(f"{name}.bias")

    for stack in (model.encoder, model.decoder):
        put_stack(stack, _LAYER, weights_of)
    # A file may store a tied matrix under each of its names.
    names = {side: [name] for side, name in _EMBEDDINGS.items()}
    if shares:
        names = {side: [_SHARED, *_EMBEDDINGS.values()] for side in names}
    if model.output_projection.embedding is not None:
        names["decoder"].append(_OUTPUT)
    for side, layer in (("encoder", model.source_embedding), ("decoder", model.target_embedding)):
        put(layer.embedding.weights, [tensors.take(*names[side])], names[side][0])
    bias = tensors.take("final_logits_bias").reshape(-1)
    bias[model.config.pad_id] = NEVER  # it is the one `bad_words_ids` of all these models
    projection = model.output_projection
    put([projection.bias], [bias], "final_logits_bias")
    if projection.embedding is None:
        put([projection.kernel], [tensors.take(_OUTPUT).T], _OUTPUT)
    tensors.require_all_used(_SINUSOIDS)
