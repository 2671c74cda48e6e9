"""Models as Marian itself writes them."""

import functools
import pathlib

import numpy as np
import yaml

from tf_transformer.importing.foreign_model import ForeignModel, subwords_of, table_tokenizer
from tf_transformer.importing.settings import by_id, config_of, not_carried_over, read_yaml
from tf_transformer.importing.tensors import ForeignModelError, Tensors, existing, read_npz
from tf_transformer.importing.weights import NEVER, put, put_stack
from tf_transformer.models.model_configs import TransformerConfig
from tf_transformer.models.transformer import Transformer
from tf_transformer.tokenizers.sentencepiece import naming
from tf_transformer.tokenizers.vocabulary import tags_in

_CONFIG = "special:model.yml"
# It leaves each value a text, because subwords such as no and 1 are keys. The loader in C is fast.
_LOADER = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
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
    "transformer-tied-layers": ([], ""),
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
_LAYER = {  # ours: theirs, with W and b, or scale and bias
    "self_attention.query_key_value_projection": ["self_{}q", "self_{}k", "self_{}v"],
    "self_attention.output_projection": ["self_{}o"],
    "self_residual.norm": ["self_Wo_ln_{}"],
    "feed_forward.expand": ["ffn_{}1"],
    "feed_forward.contract": ["ffn_{}2"],
    "feed_forward_residual.norm": ["ffn_ffn_ln_{}"],
    "cross_attention.query_projection": ["context_{}q"],
    "cross_attention.key_value_projection": ["context_{}k", "context_{}v"],
    "cross_attention.output_projection": ["context_{}o"],
    "cross_residual.norm": ["context_Wo_ln_{}"],
}
_OUTPUT, _SHARED = "decoder_ff_logit_out", "Wemb"
_MAX_LENGTH = 512
_BINARY = (1).to_bytes(8, "little")  # the version of the format
_OF_SEARCH = {  # with their neutral numbers
    "beam-size": 1, "normalize": 0, "word-penalty": 0, "shortlist": 0, "output-sampling": 0,
    "allow-special": 0,
}  # fmt: skip


def read_marian(folder: pathlib.Path, config: pathlib.Path | None = None) -> ForeignModel:
    """Read an `.npz` file and the vocabularies that a `decoder.yml` names.

    A vocabulary is a SentencePiece model, or a YAML file of ids beside `source.spm` and
    `target.spm`. The first input of Marian's decoder is a vector of zeros: here it is the embedding
    of one more subword, which is also padding and is never produced.

    Args:
        folder: The folder of the files.
        config: The `decoder.yml`; None for the only `*decoder.yml` of the folder.
    """
    found = [config] if config else sorted(folder.glob("*decoder.yml"))
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise ForeignModelError(f"{folder}: has {names}. Name one: --config {found[0]}")
    decoder = read_yaml(found[0], _LOADER) if found else {}
    models = _files(folder, decoder.get("models"), "*.npz") or sorted(folder.glob("*.bin"))
    others = (".optimizer.npz", "pytorch_model.bin")
    models = [path for path in models if not path.name.endswith(others)]
    if len(models) != 1:
        raise ForeignModelError(
            f"{folder}: has {len(models)} models of Marian (.npz files); one is needed. Hugging "
            f"Face's models have a config.json instead."
        )
    npz = existing(models[0])
    with npz.open("rb") as file:
        if file.read(len(_BINARY)) == _BINARY:
            raise ForeignModelError(
                f"{npz}: is a binary model. Give the .npz file of which marian-conv made it. "
                f"marian-conv also writes it: -f {npz.name} -t model.npz, unless it is quantised."
            )
    tensors = read_npz(npz)
    if _CONFIG not in tensors:
        raise ForeignModelError(f"{npz}: has no {_CONFIG}, so Marian did not write it.")
    ours = _config(npz, read_yaml(npz, _LOADER, tensors.text(_CONFIG)), tensors)
    vocabularies = _files(folder, decoder.get("vocabs"), "*.spm")
    if not vocabularies:
        raise ForeignModelError(f"{folder}: names no vocabulary: there is no decoder.yml or .spm.")
    paths = vocabularies[0], vocabularies[-1]
    tables = [_subwords(path) for path in paths]
    size = max(map(len, tables))
    tokenizers, splitters = [], []
    for side, path, table in zip(("source", "target"), paths, tables, strict=True):
        pad = "<pad>" if "<pad>" not in table else "<start>"
        unused = [f"<unused-{index}>" for index in range(len(table), size)]
        splitter = path if path.suffix == ".spm" else folder / f"{side}.spm"
        splitters.append(splitter)
        special = {"pad": pad, "bos": pad, "eos": "</s>", "unk": "<unk>"}
        # Marian gives whole lines to SentencePiece. Where ids are in YAML, a script had split the
        # lines, and put tags that SentencePiece does not know in front.
        tags = tags_in(table).difference(_subwords(splitter))
        subwords = [*table, *unused, pad]
        tokenizers.append(table_tokenizer(splitter, path, subwords, special, tags))
    fill = functools.partial(_fill, tensors, [len(table) for table in tables])
    allows, factor = decoder.get("allow-unk") == "true", decoder.get("max-length-factor", 3)
    if (ratio := float(factor)) <= 0:
        raise ForeignModelError(f"{found[0]}: max-length-factor is {factor}, and must be above 0.")
    read = [*found, npz, *dict.fromkeys((*paths, *splitters))]
    notes = not_carried_over(found[0], decoder, _OF_SEARCH) if found else []
    return ForeignModel(ours, *tokenizers, fill, allows, _MAX_LENGTH, ratio, read, notes)


def _files(folder: pathlib.Path, names: list[str] | None, pattern: str) -> list[pathlib.Path]:
    """Return the files of these names, wherever they were, or else those of a pattern."""
    named = [folder / pathlib.PurePath(name).name for name in names or []]
    return named or sorted(folder.glob(pattern))


def _config(path: pathlib.Path, theirs: dict, tensors: Tensors) -> TransformerConfig:
    widths = ("0", theirs.get("transformer-dim-ffn"))
    is_tied = f"{_OUTPUT}_W" not in tensors and f"{_OUTPUT}_Wt" not in tensors
    return config_of(
        path,
        theirs,
        _SETTINGS,
        {**_FIXED, "transformer-decoder-dim-ffn": widths},
        norm_first=False,
        positions="sinusoidal_tensor2tensor",
        tie_embeddings=is_tied and _SHARED in tensors,
        tie_output=is_tied and _SHARED not in tensors,
        output_bias=is_tied,
    )


def _subwords(path: pathlib.Path) -> list[str]:
    """Return the subwords of a vocabulary, in the order of their ids."""
    if path.suffix not in (".spm", ".yml", ".yaml", ".json"):
        raise ForeignModelError(
            f"{path}: a vocabulary of this kind cannot be imported, but only SentencePiece models "
            f"(.spm), or YAML beside source.spm and target.spm."
        )
    if path.suffix != ".spm":
        subwords = by_id(path, read_yaml(path, _LOADER))
        if not any("▁" in subword for subword in subwords):
            raise ForeignModelError(
                f"{path}: has words, or subwords that SentencePiece did not make; only "
                f"vocabularies of SentencePiece can be imported."
            )
        return subwords
    with naming(path):
        return subwords_of(existing(path).read_bytes())


def _fill(tensors: Tensors, sizes: list[int], model: Transformer) -> None:
    def weights_of(side: str, index: int, name: str) -> list[np.ndarray]:
        kinds = ("scale", "bias") if "_ln_" in name else ("W", "b")
        names = [f"{side}_l{index + 1}_{name.format(kind)}" for kind in kinds]
        return [np.squeeze(tensors.take(each)) for each in names]  # a vector is a matrix of one row

    for stack in (model.encoder, model.decoder):
        put_stack(stack, _LAYER, weights_of)
    padded_size = model.config.pad_id + 1
    layers = {"encoder_Wemb": model.source_embedding, "decoder_Wemb": model.target_embedding}
    for (name, layer), size in zip(layers.items(), sizes, strict=True):
        matrix = tensors.take(_SHARED, name)
        if len(matrix) != size:
            raise ForeignModelError(
                f"{tensors.path}: {name} has {len(matrix):,} rows, but the vocabulary {size:,} "
                f"subwords. Files of different models are mixed."
            )
        put(layer.embedding.weights, [_padded(matrix, padded_size, 0.0)], name)
    bias = tensors.take(f"{_OUTPUT}_b").reshape(-1)
    projection = model.output_projection
    put([projection.bias], [_padded(bias, padded_size, NEVER)], f"{_OUTPUT}_b")
    if projection.embedding is None:
        kernel = tensors.take(f"{_OUTPUT}_W", f"{_OUTPUT}_Wt")
        rows = kernel if f"{_OUTPUT}_Wt" in tensors else kernel.T
        put([projection.kernel], [_padded(rows, padded_size, 0.0).T], f"{_OUTPUT}_W")
    tensors.require_all_used(_CONFIG)


def _padded(rows: np.ndarray, size: int, value: float) -> np.ndarray:
    widths = [(0, size - len(rows)), *[(0, 0)] * (rows.ndim - 1)]
    return np.pad(rows, widths, constant_values=value)
