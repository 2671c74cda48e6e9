"""Models as Marian itself writes them."""

import json
import pathlib
import re

import numpy as np

from tf_transformer.importing.foreign_model import (
    NEVER,
    ForeignModel,
    config_of,
    put,
    put_stack,
    subwords_of,
    table_tokenizer,
)
from tf_transformer.importing.tensors import ForeignModelError, Tensors, read_npz
from tf_transformer.models.configs import TransformerConfig
from tf_transformer.models.transformer import Transformer

_CONFIG = "special:model.yml"
_SETTINGS = {  # ours: theirs
    "d_model": "dim-emb",
    "num_layers": "enc-depth",
    "decoder_layers": "dec-depth",
    "num_heads": "transformer-heads",
    "d_ff": "transformer-dim-ffn",
    "activation": "transformer-ffn-activation",
}
# The values of their settings that our model computes; d is dropout, a adds and n normalises.
_FIXED = {
    "type": ("transformer",),
    "transformer-preprocess": ("", "d"),
    "transformer-postprocess": ("dan", "an"),
    "transformer-postprocess-emb": ("d", ""),
    "transformer-postprocess-top": ("",),
    "transformer-decoder-autoreg": ("self-attention",),
    "transformer-attention-mask": ("default",),
    # Marian's own gelu is x * sigmoid(1.702 x).
    "transformer-ffn-activation": ("relu", "swish"),
    "transformer-ffn-depth": ("2",),
    "transformer-decoder-ffn-depth": ("0", "2"),
    "transformer-tied-layers": ("[]", ""),
    "lemma-dim-emb": ("0",),
    **dict.fromkeys(
        (
            "transformer-no-projection", "transformer-no-bias", "transformer-no-affine",
            "transformer-pool", "transformer-train-position-embeddings",
            "transformer-disable-position-embeddings", "right-left", "ulr",
        ),
        ("false",),
    ),
}  # fmt: skip
_ENCODER = {  # ours: theirs, with W and b, or scale and bias
    "self_attention.query_key_value_projection": ["self_{}q", "self_{}k", "self_{}v"],
    "self_attention.output_projection": ["self_{}o"],
    "self_residual.norm": ["self_Wo_ln_{}"],
    "feed_forward.expand": ["ffn_{}1"],
    "feed_forward.contract": ["ffn_{}2"],
    "feed_forward_residual.norm": ["ffn_ffn_ln_{}"],
}
_DECODER = {
    **_ENCODER,
    "cross_attention.query_projection": ["context_{}q"],
    "cross_attention.key_value_projection": ["context_{}k", "context_{}v"],
    "cross_attention.output_projection": ["context_{}o"],
    "cross_residual.norm": ["context_Wo_ln_{}"],
}
_OUTPUT, _SHARED = "decoder_ff_logit_out", "Wemb"
_MAX_LENGTH = 512


def read_marian(folder: pathlib.Path) -> ForeignModel:
    """Read an `.npz` file and the vocabularies that a `decoder.yml` names.

    A vocabulary is a SentencePiece model, or a YAML file of ids beside `source.spm` and
    `target.spm`. The first input of Marian's decoder is a vector of zeros: here it is the embedding
    of one more subword, which is also padding and is never produced.
    """
    decoder = _read_decoder(folder)
    npz = _only_file(folder, "*.npz", decoder.get("models"))
    tensors = read_npz(npz)
    if _CONFIG not in tensors:
        raise ForeignModelError(f"{npz}: has no {_CONFIG}, so Marian did not write it.")
    theirs = read_yaml(tensors.text(_CONFIG))
    config = _config(npz, theirs, tensors)
    names = decoder.get("vocabs") or [path.name for path in sorted(folder.glob("*.spm"))]
    if not names:
        raise ForeignModelError(f"{folder}: names no vocabulary: there is no decoder.yml or .spm.")
    paths = [folder / pathlib.PurePath(name).name for name in (names[0], names[-1])]
    tables = [_subwords(path) for path in paths]
    size = max(map(len, tables))
    tokenizers = []
    for side, path, table in zip(("source", "target"), paths, tables, strict=True):
        pad = "<pad>" if "<pad>" not in table else "<start>"
        unused = [f"<unused-{index}>" for index in range(len(table), size)]
        splitter = path if path.suffix == ".spm" else folder / f"{side}.spm"
        special = {"pad": pad, "bos": pad, "eos": "</s>", "unk": "<unk>"}
        tokenizers.append(table_tokenizer(splitter, path, [*table, *unused, pad], **special))

    def fill(model: Transformer) -> None:
        _fill(model, tensors, *map(len, tables))

    allows = decoder.get("allow-unk") == "true"
    return ForeignModel(config, *tokenizers, fill, allow_unknown=allows, max_length=_MAX_LENGTH)


_KEY = r"""("(?:[^"\\]|\\.)*"|'(?:[^']|'')*'|[^\s#].*?)"""


def read_yaml(text: str) -> dict[str, str | list[str]]:
    """Read the YAML that Marian writes: a key and a value a line, or a list below its key."""
    found: dict[str, str | list[str]] = {}
    key = ""
    for line in text.splitlines():
        if item := re.match(r"\s+- (.*)", line):
            found[key] = [*(found[key] or []), _unquoted(item[1])]
        elif pair := re.match(rf"{_KEY}\s*:(?: +(.*))?$", line):
            key = _unquoted(pair[1])
            found[key] = _unquoted(pair[2] or "")
    return found


def _unquoted(text: str) -> str:
    text = text.strip()
    if text.startswith('"'):
        # YAML's \xNN is \u00NN in JSON.
        return json.loads(re.sub(r"\\x(..)", r"\\u00\1", text))
    return text[1:-1].replace("''", "'") if text.startswith("'") else text


def _read_decoder(folder: pathlib.Path) -> dict[str, str | list[str]]:
    path = _only_file(folder, "*decoder.yml", None, required=False)
    return read_yaml(path.read_text(encoding="utf-8")) if path else {}


def _only_file(folder, pattern, names, required=True):
    """Return the one file of a pattern, or the first of `names`."""
    if names:
        path = folder / pathlib.PurePath(names[0]).name
        if not path.is_file():
            raise ForeignModelError(f"{path}: is missing. Copy it into the folder.")
        return path
    found = sorted(folder.glob(pattern))
    if required and len(found) != 1:
        raise ForeignModelError(f"{folder}: has {len(found)} files {pattern}; one is needed.")
    return found[0] if found else None


def _config(path: pathlib.Path, theirs: dict, tensors: Tensors) -> TransformerConfig:
    widths = ("0", theirs.get("transformer-dim-ffn"))
    for name, values in {**_FIXED, "transformer-decoder-dim-ffn": widths}.items():
        if theirs.get(name, values[0]) not in values:
            raise ForeignModelError(
                f"{path}: {name} is {theirs[name]!r}; only {values[0]!r} can be imported."
            )
    if missing := [name for name in _SETTINGS.values() if name not in theirs]:
        raise ForeignModelError(f"{path}: its {_CONFIG} lacks {missing[0]}.")
    is_tied = f"{_OUTPUT}_W" not in tensors and f"{_OUTPUT}_Wt" not in tensors
    return config_of(
        path,
        theirs,
        _SETTINGS,
        norm_first=False,
        positions="sinusoidal_tensor2tensor",
        tie_embeddings=is_tied and _SHARED in tensors,
        tie_output=is_tied and _SHARED not in tensors,
        output_bias=is_tied,
    )


def _subwords(path: pathlib.Path) -> list[str]:
    """Return the subwords of a vocabulary, in the order of their ids."""
    if not path.is_file():
        raise ForeignModelError(f"{path}: is missing. Copy the vocabulary into the folder.")
    if path.suffix == ".spm":
        try:
            return subwords_of(path.read_bytes())
        except RuntimeError:
            raise ForeignModelError(f"{path}: no SentencePiece model, or a damaged one.") from None
    table = read_yaml(path.read_text(encoding="utf-8"))
    subwords = {int(index): subword for subword, index in table.items()}
    if sorted(subwords) != list(range(len(table))):
        raise ForeignModelError(f"{path}: does not give each subword an id of its own from 0 on.")
    return [subwords[index] for index in range(len(table))]


def _fill(model: Transformer, tensors: Tensors, source_size: int, target_size: int) -> None:
    for stack, parts in ((model.encoder, _ENCODER), (model.decoder, _DECODER)):

        def weights_of(index: int, name: str, side: str = stack.name) -> list[np.ndarray]:
            kinds = ("scale", "bias") if "_ln_" in name else ("W", "b")
            names = [f"{side}_l{index + 1}_{name.format(kind)}" for kind in kinds]
            kernel, bias = map(tensors.take, names)
            return [kernel if kinds[0] == "W" else kernel.reshape(-1), bias.reshape(-1)]

        put_stack(stack, parts, weights_of)
    size = model.config.pad_id + 1
    for layer, side in ((model.source_embedding, "encoder"), (model.target_embedding, "decoder")):
        name = f"{side}_Wemb"
        matrix = tensors.take(_SHARED, name)
        _require_rows(matrix, source_size if side == "encoder" else target_size, tensors, name)
        put(layer.embedding.weights, [_padded(matrix, size, 0, 0.0)], name)
    bias = tensors.take(f"{_OUTPUT}_b").reshape(-1)
    projection = model.output_projection
    put([projection.bias], [_padded(bias, size, 0, NEVER)], f"{_OUTPUT}_b")
    if projection.embedding is None:
        is_transposed = f"{_OUTPUT}_Wt" in tensors
        kernel = tensors.take(f"{_OUTPUT}_W", f"{_OUTPUT}_Wt")
        kernel = kernel.T if is_transposed else kernel
        put([projection.kernel], [_padded(kernel, size, 1, 0.0)], f"{_OUTPUT}_W")
    tensors.require_all_used({_CONFIG})


def _padded(array: np.ndarray, size: int, axis: int, value: float) -> np.ndarray:
    widths = [(0, size - n if a == axis else 0) for a, n in enumerate(array.shape)]
    return np.pad(array, widths, constant_values=value)


def _require_rows(matrix: np.ndarray, size: int, tensors: Tensors, name: str) -> None:
    if len(matrix) != size:
        raise ForeignModelError(
            f"{tensors.path}: {name} has {len(matrix):,} rows, but the vocabulary {size:,} "
            f"subwords. Files of different models are mixed."
        )
