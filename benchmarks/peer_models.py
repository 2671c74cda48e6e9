"""Our weights in a file for Marian; `decode_opennmt.py` reads the same file."""

import pathlib
import shutil

import numpy as np

DEFAULT = (True, True, "relu", "sinusoidal")
PUBLISHED = (True, False, "swish", "sinusoidal_tensor2tensor")  # as `import` makes of Marian's


def write_peer_model(model, tokenizer, folder: str) -> None:
    """Write `marian.npz`, the tokenizer of both sides, and the subwords in the order of their ids.

    Marian has positions of its own and starts with a vector of zeros, so it would end its
    translations elsewhere. It never ends them: `decode_marian.py` sets their lengths.
    """
    config = model.config
    shape = config.tie_embeddings, config.norm_first, config.activation, config.positions
    if shape not in (DEFAULT, PUBLISHED):
        raise SystemExit("Marian and OpenNMT-tf can only be measured with a model of the default.")
    path = pathlib.Path(folder)
    tokenizer.save(path / "vocab.model")
    shutil.copy(path / "vocab.model", path / "vocab.spm")  # Marian goes by the end of the name
    weights = marian_weights(model)
    weights["decoder_ff_logit_out_b"][0, tokenizer.eos_id] = -1e9
    # A C string of bytes is how Marian keeps its options.
    options = "\n".join(f"{name}: {value}" for name, value in marian_options(config).items())
    weights["special:model.yml"] = np.frombuffer(f"{options}\0".encode(), np.int8)
    np.savez(path / "marian.npz", **weights)
    subwords = tokenizer.subwords(range(tokenizer.vocab_size))
    (path / "subwords").write_text("\n".join(subwords), encoding="utf-8")


def marian_options(config) -> dict[str, object]:
    """Return Marian's options of a model with the sizes of ours."""
    return {
        "type": "transformer",
        "version": "v1.12.42",
        "dim-vocabs": [config.source_vocab_size, config.target_vocab_size],
        "dim-emb": config.d_model,
        "enc-depth": config.num_layers,
        "dec-depth": config.num_layers,
        "transformer-heads": config.num_heads,
        "transformer-dim-ffn": config.d_ff,
        "transformer-ffn-activation": config.activation,
        "transformer-preprocess": "n" if config.norm_first else '""',
        "transformer-postprocess": "da" if config.norm_first else "dan",
        "transformer-postprocess-top": "n" if config.norm_first else '""',
        "tied-embeddings-all": "true",
    }


def marian_weights(model) -> dict[str, np.ndarray]:
    """Return the weights of a Transformer with one embedding, by Marian's names."""
    embeddings = np.array(model.source_embedding.embedding.embeddings)
    weights = {"Wemb": embeddings, "decoder_ff_logit_out_b": np.zeros((1, len(embeddings)), "f")}

    def dense(prefix, names, layer):
        kernels = np.split(np.array(layer.kernel), len(names), axis=1)
        biases = np.split(np.array(layer.bias)[None], len(names), axis=1)
        for name, kernel, bias in zip(names, kernels, biases, strict=True):
            weights[f"{prefix}_W{name}"], weights[f"{prefix}_b{name}"] = kernel, bias

    def norm(prefix, layer, suffix="_pre" if model.config.norm_first else ""):
        weights[f"{prefix}_ln_scale{suffix}"] = np.array(layer.gamma)[None]
        weights[f"{prefix}_ln_bias{suffix}"] = np.array(layer.beta)[None]

    for side in ("encoder", "decoder"):
        stack = getattr(model, side)
        for number, layer in enumerate(stack.layers, 1):
            prefix = f"{side}_l{number}"
            dense(f"{prefix}_self", "qkv", layer.self_attention.query_key_value_projection)
            dense(f"{prefix}_self", "o", layer.self_attention.output_projection)
            norm(f"{prefix}_self_Wo", layer.self_residual.norm)
            if side == "decoder":
                dense(f"{prefix}_context", "q", layer.cross_attention.query_projection)
                dense(f"{prefix}_context", "kv", layer.cross_attention.key_value_projection)
                dense(f"{prefix}_context", "o", layer.cross_attention.output_projection)
                norm(f"{prefix}_context_Wo", layer.cross_residual.norm)
            dense(f"{prefix}_ffn", "1", layer.feed_forward.expand)
            dense(f"{prefix}_ffn", "2", layer.feed_forward.contract)
            norm(f"{prefix}_ffn_ffn", layer.feed_forward_residual.norm)
        if model.config.norm_first:
            norm(f"{side}_top", stack.norm, "")
    return {name: np.ascontiguousarray(array) for name, array in weights.items()}
