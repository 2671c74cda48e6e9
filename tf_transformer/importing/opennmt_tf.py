"""Models of OpenNMT-tf 2: a checkpoint, the description of the model and the settings of a run."""

import ast
import functools
import itertools
from pathlib import Path
from typing import Any

import numpy as np

from tf_transformer.importing.foreign_model import ForeignModel, table_tokenizer
from tf_transformer.importing.settings import config_of, not_carried_over, read_yaml
from tf_transformer.importing.tensors import ForeignModelError, Tensors, read_checkpoint
from tf_transformer.importing.weights import put, put_stack
from tf_transformer.models.model_configs import TransformerConfig
from tf_transformer.models.transformer import Transformer
from tf_transformer.tokenizers import VocabularyTokenizer

_HEADS = {  # of the models of their catalog that can be imported
    "TransformerBase": 8, "TransformerBaseSharedEmbeddings": 8, "Transformer": 8,
    "TransformerBig": 16, "TransformerBigSharedEmbeddings": 16, "TransformerTiny": 2,
}  # fmt: skip
_SETTINGS = {  # ours: theirs
    "num_heads": "num_heads",
    "activation": "ffn_activation",
    "dropout_rate": "dropout",
    "attention_dropout_rate": "attention_dropout",
}
_DEFAULTS = {"ffn_activation": "tf.nn.relu", "dropout": "0.1", "attention_dropout": "0.1"}
# What other values of these settings would compute, our model does not.
_FIXED = {
    "position_encoder_class": ("SinusoidalPositionEncoder",),
    "maximum_relative_position": ("None",),
}
_LAYER = {  # ours: theirs, of a norm with input or output
    "self_attention.query_key_value_projection": [
        f"self_attention/layer/linear_{x}" for x in ("queries", "keys", "values")
    ],
    "self_attention.output_projection": ["self_attention/layer/linear_output"],
    "self_residual.norm": ["self_attention/{}_layer_norm"],
    "feed_forward.expand": ["ffn/layer/inner"],
    "feed_forward.contract": ["ffn/layer/outer"],
    "feed_forward_residual.norm": ["ffn/{}_layer_norm"],
    "cross_attention.query_projection": ["attention/0/layer/linear_queries"],
    "cross_attention.key_value_projection": [
        f"attention/0/layer/linear_{x}" for x in ("keys", "values")
    ],
    "cross_attention.output_projection": ["attention/0/layer/linear_output"],
    "cross_residual.norm": ["attention/0/{}_layer_norm"],
}
_SOURCE, _TARGET = (f"examples_inputter/{x}_inputter/embedding" for x in ("features", "labels"))
_KERNEL, _BIAS = "decoder/output_layer/kernel", "decoder/output_layer/bias"
_BLANK, _BEGIN, _END = "<blank>", "<s>", "</s>"  # their ids are 0, 1 and 2
# The options with which their tokenizers split as SentencePiece does.
_PLAIN = {
    "mode", "sp_model_path", "sp_nbest_size", "sp_alpha", "spacer_annotate", "no_substitution",
    "model", "nbest_size", "alpha",
}  # fmt: skip
_MAX_LENGTH = 512
_OF_SEARCH = {  # with their neutral numbers
    "beam_width": 1, "length_penalty": 0, "coverage_penalty": 0, "minimum_decoding_length": 0,
    "maximum_decoding_length": _MAX_LENGTH, "sampling_topk": 1, "sampling_temperature": 1,
    "decoding_subword_token": 0, "replace_unknown_target": 0,
}  # fmt: skip


def read_opennmt_tf(folder: Path, config: Path | None = None) -> ForeignModel:
    """Read the latest checkpoint, `model_description.py`, and the files that the settings name.

    Args:
        folder: The folder of the checkpoint.
        config: The settings, whose table `data` names vocabularies and SentencePiece models; None
            for the only `.yml` file of the folder.
    """
    found = [config] if config else list(folder.glob("*.yml"))
    if len(found) != 1:
        raise ForeignModelError(
            f"{folder}: has {len(found)} files *.yml. Name the settings: --config data.yml"
        )
    settings = read_yaml(found[0])
    data, params = (settings.get(table) or {} for table in ("data", "params"))
    read: list[Path] = []
    sides = ("source", "target")
    tokenizers = [_tokenizer(side, folder, found[0], data, read) for side in sides]
    tensors = read_checkpoint(folder)
    ours = _config(folder / "model_description.py", tensors)
    fill = functools.partial(_fill, tensors)
    read = [found[0], tensors.path, *dict.fromkeys(read)]
    notes = not_carried_over(found[0], params, _OF_SEARCH)
    # Their limit does not depend on the source.
    return ForeignModel(ours, *tokenizers, fill, True, _MAX_LENGTH, float(_MAX_LENGTH), read, notes)


def _file(name: str, folder: Path, config: Path) -> Path:
    """Return a file that the settings name, which may have been moved into the folder."""
    path = Path(name)
    inside = [] if path.is_absolute() else [folder / path, path, config.parent / path]
    places = *inside, folder / path.name, path  # an absolute path may lead to another model
    if found := next((place for place in places if place.is_file()), None):
        return found
    raise ForeignModelError(f"{config}: names {name}, which is missing. Copy it into {folder}.")


def _tokenizer(
    side: str, folder: Path, config: Path, data: dict[str, Any], read: list[Path]
) -> VocabularyTokenizer:
    def setting(name: str) -> Any:
        return data.get(f"{side}_{name}") or data.get(name)

    if not (vocabulary := setting("vocabulary")):
        raise ForeignModelError(f"{config}: its table data has no {side}_vocabulary.")
    table = _file(vocabulary, folder, config)
    subwords = table.read_text(encoding="utf-8-sig").removesuffix("\n").split("\n")
    if subwords[:3] != [_BLANK, _BEGIN, _END] or len({"", *subwords}) <= len(subwords):
        raise ForeignModelError(
            f"{table}: must begin with the lines {_BLANK}, {_BEGIN} and {_END}, and have each "
            f"subword once."
        )
    is_target = side == "target"
    controls = setting("sequence_controls") or {"start": is_target, "end": is_target}
    is_table = isinstance(controls, dict)
    has_start, has_end = (is_table and bool(controls.get(name)) for name in ("start", "end"))
    if not is_table or has_start != is_target or (is_target and not has_end):
        raise ForeignModelError(
            f"{config}: {side}_sequence_controls is {controls}, but only targets can have a start, "
            f"and they must have both."
        )
    tokenization = setting("tokenization") or {}
    if isinstance(tokenization, str):
        tokenization = read_yaml(_file(tokenization, folder, config))
    options = tokenization.get("params", tokenization)
    plain = options.get("mode") == "none" and options.get("sp_model_path")
    splitter = options.get("model") or plain
    if not splitter or not set(options) <= _PLAIN:
        raise ForeignModelError(
            f"{config}: {side}_tokenization is {tokenization or 'missing'}; only SentencePiece can "
            f"be imported: {{mode: none, sp_model_path: FILE}}"
        )
    unknown = "<unk>" if "<unk>" not in subwords else "<unknown>"
    # Without an end, padding is there, which no model reads.
    special = {"pad": _BLANK, "bos": _BEGIN, "eos": _END if has_end else _BLANK, "unk": unknown}
    path = _file(splitter, folder, config)
    read += table, path
    return table_tokenizer(path, table, [*subwords, unknown], special)


def _config(path: Path, tensors: Tensors) -> TransformerConfig:
    def layers(side: str) -> int:
        names = (f"{side}/layers/{n}/ffn/layer/inner/kernel" for n in itertools.count())
        return sum(1 for _ in itertools.takewhile(tensors.__contains__, names))

    d_model, d_ff = tensors.take("encoder/layers/0/ffn/layer/inner/kernel").shape
    is_tied, shares = _KERNEL not in tensors, _TARGET not in tensors
    return config_of(
        path,
        _description(path),
        _SETTINGS,
        _FIXED,
        d_model=d_model,
        d_ff=d_ff,
        num_layers=layers("encoder"),
        decoder_layers=layers("decoder"),
        norm_first="encoder/layer_norm/gamma" in tensors,
        positions="sinusoidal_tensor2tensor",
        first_position=1,
        layer_norm_epsilon=1e-3,
        tie_embeddings=is_tied and shares,
        tie_output=is_tied and not shares,
        output_bias=is_tied and _BIAS in tensors,
    )


def _description(path: Path) -> dict[str, str]:
    """Return the settings in the description of a model, which is Python and is not run."""
    try:
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    except FileNotFoundError:
        raise ForeignModelError(
            f"{path}: is missing. Copy the file there that you gave onmt-main as --model, or write "
            f'a line: model = lambda: models.get_model_from_catalog("TransformerBase")'
        ) from None
    except (SyntaxError, ValueError):
        raise ForeignModelError(f"{path}: is no Python.") from None
    texts = {node.value for node in nodes if isinstance(node, ast.Constant)}
    given = {node.arg: ast.unparse(node.value) for node in nodes if isinstance(node, ast.keyword)}
    heads = {str(_HEADS[name]) for name in texts & _HEADS.keys()}
    if "num_heads" not in given and len(heads) != 1:
        raise ForeignModelError(
            f"{path}: has neither num_heads=… nor one model of the catalog that can be imported: "
            f"{', '.join(_HEADS)}. Relative positions cannot."
        )
    theirs = {"num_heads": "".join(heads), **_DEFAULTS, **given}
    for name in _FIXED.keys() & given:  # may be the name of a class with its module
        theirs[name] = given[name].rpartition(".")[2]
    activation = theirs["ffn_activation"].removeprefix("tf.nn.")
    return {**theirs, "ffn_activation": "swish" if activation == "silu" else activation}


def _fill(tensors: Tensors, model: Transformer) -> None:
    def pair(name: str) -> list[np.ndarray]:
        kinds = ("gamma", "beta") if name.endswith("_norm") else ("kernel", "bias")
        return [tensors.take(f"{name}/{kind}") for kind in kinds]

    place = "input" if model.config.norm_first else "output"

    def weights_of(side: str, index: int, name: str) -> list[np.ndarray]:
        return pair(f"{side}/layers/{index}/{name.format(place)}")

    for stack in (model.encoder, model.decoder):
        put_stack(stack, _LAYER, weights_of)
        if stack.norm is not None:
            put(stack.norm.weights, pair(f"{stack.name}/layer_norm"), f"{stack.name}/layer_norm")
    put(model.source_embedding.embedding.weights, [tensors.take(_SOURCE)], _SOURCE)
    target = _TARGET if _TARGET in tensors else _SOURCE
    put(model.target_embedding.embedding.weights, [tensors.take(target)], target)
    projection = model.output_projection
    if projection.embedding is None:
        put([projection.kernel], [tensors.take(_KERNEL)], _KERNEL)
    if projection.bias is not None:  # a matrix that is not tied has one here in any case
        bias = tensors.take(_BIAS) if _BIAS in tensors else np.zeros(projection.bias.shape)
        put([projection.bias], [bias], _BIAS)
    tensors.require_all_used()
