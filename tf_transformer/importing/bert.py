"""BERT as Hugging Face publishes it, read as a prefix language model (UniLM, Dong et al. 2019)."""

import dataclasses
import functools
import pathlib
from typing import Any

import numpy as np

from tf_transformer.importing.foreign_model import ForeignModel
from tf_transformer.importing.settings import config_of, read_json
from tf_transformer.importing.tensors import Tensors, existing, read_weights
from tf_transformer.importing.weights import put, put_stack
from tf_transformer.models.language_model import PrefixLanguageModel
from tf_transformer.models.model_configs import PrefixLanguageModelConfig
from tf_transformer.tokenizers import WordPieceTokenizer
from tf_transformer.tokenizers.sentencepiece import naming
from tf_transformer.tokenizers.wordpiece import wordpiece_model

_SETTINGS = {  # ours: theirs
    "d_model": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "d_ff": "intermediate_size",
    "activation": "hidden_act",
    "dropout_rate": "hidden_dropout_prob",
    "attention_dropout_rate": "attention_probs_dropout_prob",
    "layer_norm_epsilon": "layer_norm_eps",
    "max_positions": "max_position_embeddings",
}
# What other values of these settings would compute, our model does not.
_FIXED = {
    "model_type": ("bert",),
    "position_embedding_type": ("absolute",),
    "type_vocab_size": (2,),
    "tie_word_embeddings": (True,),
    "is_decoder": (False,),
}
_LAYER = {  # ours: theirs
    "self_attention.query_key_value_projection": [
        f"attention.self.{name}" for name in ("query", "key", "value")
    ],
    "self_attention.output_projection": ["attention.output.dense"],
    "self_residual.norm": ["attention.output.LayerNorm"],
    "feed_forward.expand": ["intermediate.dense"],
    "feed_forward.contract": ["output.dense"],
    "feed_forward_residual.norm": ["output.LayerNorm"],
}
_HEAD, _TRANSFORM = "cls.predictions.", "cls.predictions.transform."
# The heads for other tasks, which compute nothing here.
_OTHER_TASKS = "pooler.dense.", "bert.pooler.dense.", "cls.seq_relationship."


def read_bert(folder: pathlib.Path) -> ForeignModel:
    """Read `config.json`, the weights, `vocab.txt` and `tokenizer_config.json`.

    The head of the masked language model, if there is one, becomes the output layer. Otherwise the
    transposed embeddings are.
    """
    path = folder / "config.json"
    config = config_of(
        path,
        read_json(path),
        _SETTINGS,
        _FIXED,
        PrefixLanguageModelConfig,
        norm_first=False,
        positions="learned",
        scale_embeddings=False,
        embedding_norm=True,
        begin_source=True,
    )
    tokenizer, tensors = _tokenizer(folder), read_weights(folder)
    head = f"{_TRANSFORM}dense.weight", f"{_HEAD}bias"
    transform, bias = (name in tensors for name in head)
    config = dataclasses.replace(config, output_transform=transform, output_bias=bias)
    fill = functools.partial(_fill, tensors)
    # Source and target share the positions.
    max_length = (config.max_positions - 1) // 2
    read = [path, tensors.path]
    # The model of a sentence embedding has no limit of its own.
    return ForeignModel(config, tokenizer, tokenizer, fill, False, max_length, 2.0, read)


def _tokenizer(folder: pathlib.Path) -> WordPieceTokenizer:
    theirs, path = read_json(folder / "tokenizer_config.json"), folder / "vocab.txt"
    subwords = existing(path).read_text(encoding="utf-8-sig").removesuffix("\n").split("\n")
    lower_case, strip_accents = theirs.get("do_lower_case", True), theirs.get("strip_accents")
    with naming(path):
        model = wordpiece_model(
            subwords,
            lower_case=lower_case,
            strip_accents=lower_case if strip_accents is None else strip_accents,
            split_chinese=theirs.get("tokenize_chinese_chars", True),
        )
        return WordPieceTokenizer(model)


def _fill(tensors: Tensors, model: PrefixLanguageModel) -> None:
    prefix = "bert." if "bert.embeddings.word_embeddings.weight" in tensors else ""

    def pair(name: str) -> tuple[np.ndarray, np.ndarray]:
        # Old files name the weights of a norm gamma and beta. A linear layer of PyTorch has a
        # kernel (outputs, inputs); .T leaves the scale of a norm.
        kernel = tensors.take(f"{name}.weight", f"{name}.gamma").T
        return kernel, tensors.take(f"{name}.bias", f"{name}.beta")

    def put_pair(layer: Any, name: str) -> None:
        put(layer.weights, pair(name), name)

    put_stack(model.stack, _LAYER, lambda _, i, name: pair(f"{prefix}encoder.layer.{i}.{name}"))
    size, embedding = model.config.target_vocab_size, model.source_embedding
    table = f"{prefix}embeddings.{{}}_embeddings.weight".format
    # There may be rows without a subword, which make the size a multiple of some number.
    words = tensors.take(table("word"), f"{_HEAD}decoder.weight")[:size]
    put(embedding.embedding.weights, [words], table("word"))
    put(embedding.position_embedding.weights, [tensors.take(table("position"))], table("position"))
    put(model.segment_embedding.weights, [tensors.take(table("token_type"))], table("token_type"))
    positions = np.arange(model.config.max_positions, dtype=np.float32)[None]
    tensors.require_equal(f"{prefix}embeddings.position_ids", positions, "0, 1, 2, …")
    put_pair(model.embedding_norm, f"{prefix}embeddings.LayerNorm")
    projection = model.output_projection
    if projection.transform is not None:
        put_pair(projection.transform.dense, f"{_TRANSFORM}dense")
        put_pair(projection.transform.norm, f"{_TRANSFORM}LayerNorm")
    if projection.bias is not None:
        bias = tensors.take(f"{_HEAD}bias", f"{_HEAD}decoder.bias")
        put([projection.bias], [bias[:size]], f"{_HEAD}bias")
    tensors.require_all_used(*_OTHER_TASKS)
