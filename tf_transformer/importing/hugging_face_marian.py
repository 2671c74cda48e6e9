"""Marian models as Hugging Face publishes them, such as OPUS-MT's."""

import functools
import pathlib
from typing import Any

import numpy as np

from tf_transformer.importing.foreign_model import ForeignModel, table_tokenizer
from tf_transformer.importing.settings import by_id, config_of, not_carried_over, read_json
from tf_transformer.importing.tensors import ForeignModelError, Tensors, read_weights
from tf_transformer.importing.weights import NEVER, put, put_stack
from tf_transformer.layers.positions import sinusoidal_positions
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
_HALF = 5e-3  # the largest error of a sinusoid in bfloat16
_FILES = "generation_config.json", "vocab.json", "target_vocab.json", "source.spm", "target.spm"
_IDS = ("pad", "eos", "decoder_start")
# Settings of the search that an import drops. Older releases wrote them into config.json.
_OF_SEARCH = {  # with their neutral numbers
    "begin_suppress_tokens": 0, "num_beams": 1, "length_penalty": 1, "repetition_penalty": 1,
    "min_length": 0, "no_repeat_ngram_size": 0, "forced_bos_token_id": -1, "do_sample": 0,
    "temperature": 1, "early_stopping": 0, "num_beam_groups": 1, "min_new_tokens": 0,
    "max_new_tokens": 0, "top_k": 50, "top_p": 1,
}  # fmt: skip
# What an import keeps, and what changes no translation.
_KEPT = {
    "bad_words_ids", "suppress_tokens", "max_length", "pad_token_id", "eos_token_id",
    "bos_token_id", "decoder_start_token_id", "forced_eos_token_id", "transformers_version",
    "_from_model_config", "use_cache", "renormalize_logits",
}  # fmt: skip


def read_hugging_face_marian(folder: pathlib.Path) -> ForeignModel:
    """Read `config.json`, the weights, `source.spm`, `target.spm` and `vocab.json`.

    If there is a `generation_config.json`, the settings of the search are there alone.
    """
    path = folder / "config.json"
    theirs = read_json(path)
    of_search, search, dropped = path, theirs, _OF_SEARCH
    if (folder / "generation_config.json").is_file():
        of_search = folder / "generation_config.json"
        search = read_json(of_search)
        dropped = {name: _OF_SEARCH.get(name, 0) for name in search if name not in _KEPT}
    shares = theirs.get("share_encoder_decoder_embeddings", True)
    config, max_length = _config(path, theirs, shares), theirs.get("max_position_embeddings")
    if type(max_length) is not int or max_length < 2:
        raise ForeignModelError(f"{path}: max_position_embeddings is {max_length!r}, no number.")
    tensors, tokenizers = read_weights(folder), _tokenizers(folder, theirs, search, shares)
    never = [tokenizers[1].pad_id, *_never_produced(of_search, search, tokenizers[1].vocab_size)]
    fill = functools.partial(_fill, tensors, never, shares, max_length)
    read = [path, tensors.path, *(folder / name for name in _FILES if (folder / name).is_file())]
    notes = not_carried_over(of_search, search, dropped)
    # Of a search without a limit for short sources, only the largest length stays.
    return ForeignModel(config, *tokenizers, fill, True, max_length, float(max_length), read, notes)


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
    folder: pathlib.Path, theirs: dict[str, Any], search: dict[str, Any], shares: bool
) -> list[VocabularyTokenizer]:
    for name in (f"{name}_token_id" for name in _IDS):
        ours, of_search = map(_only, (theirs.get(name), search.get(name)))
        if None not in (ours, of_search) and ours != of_search:
            raise ForeignModelError(
                f"{folder}: {name} is {ours} in config.json, but {of_search} in "
                f"generation_config.json. Correct one of them."
            )
        theirs = {**theirs, name: of_search if ours is None else ours}
    tokenizers = []
    for side in ("source", "target"):
        path = folder / ("vocab.json" if side == "source" or shares else "target_vocab.json")
        subwords = by_id(path, read_json(path))
        ids = {name: theirs.get(f"{name}_token_id") for name in _IDS}
        if not all(isinstance(i, int) and 0 <= i < len(subwords) for i in ids.values()):
            raise ForeignModelError(f"{path}: lacks the special ids of config.json, {ids}.")
        pad, eos, bos = (subwords[index] for index in ids.values())
        special = {"pad": pad, "eos": eos, "bos": bos, "unk": "<unk>"}
        splitter, tags = folder / f"{side}.spm", tags_in(subwords)
        tokenizers.append(table_tokenizer(splitter, path, subwords, special, tags))
    return tokenizers


def _only(value: Any) -> Any:
    """Return the value of a list of one, and any other value as it is."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _never_produced(path: pathlib.Path, search: dict[str, Any], vocab_size: int) -> list[int]:
    words = search.get("bad_words_ids") or []
    if any(len(word) != 1 for word in words):
        raise ForeignModelError(f"{path}: bad_words_ids has a word of several tokens.")
    never = [*(word[0] for word in words), *(search.get("suppress_tokens") or [])]
    if wrong := [i for i in never if type(i) is not int or not 0 <= i < vocab_size]:
        raise ForeignModelError(f"{path}: {wrong[0]!r} is no id of the {vocab_size:,} subwords.")
    return never


def _fill(
    tensors: Tensors, never: list[int], shares: bool, max_length: int, model: Transformer
) -> None:
    def weights_of(side: str, index: int, name: str) -> tuple[np.ndarray, np.ndarray]:
        name = f"model.{side}.layers.{index}.{name}"
        # A linear layer of PyTorch has a kernel (outputs, inputs); .T leaves a norm's scale.
        return tensors.take(f"{name}.weight").T, tensors.take(f"{name}.bias")

    for stack in (model.encoder, model.decoder):
        put_stack(stack, _LAYER, weights_of)
    # A file may store a tied matrix under each of its names, and sinusoids.
    names = {side: [name] for side, name in _EMBEDDINGS.items()}
    if shares:
        names = {side: [_SHARED, *_EMBEDDINGS.values()] for side in names}
    if model.output_projection.embedding is not None:
        names["decoder"].append(_OUTPUT)
    for side, layer in (("encoder", model.source_embedding), ("decoder", model.target_embedding)):
        put(layer.embedding.weights, [tensors.take(*names[side])], names[side][0])
        waves = sinusoidal_positions(max_length, layer.d_model, sinusoids=layer.sinusoids)
        stored = f"model.{side}.embed_positions.weight"
        tensors.require_equal(stored, np.asarray(waves), "the sinusoids of Marian", _HALF)
    bias = tensors.take("final_logits_bias").reshape(-1)
    bias[never] = NEVER
    projection = model.output_projection
    put([projection.bias], [bias], "final_logits_bias")
    if projection.embedding is None:
        put([projection.kernel], [tensors.take(_OUTPUT).T], _OUTPUT)
    tensors.require_all_used()
