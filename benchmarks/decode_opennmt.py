"""Translate with OpenNMT-tf, in an interpreter that has it and nothing of ours."""

import pathlib
from collections.abc import Callable
from typing import Any

import engine
import numpy as np
import opennmt
import pyonmttok
import tensorflow as tf

SPECIAL = [0, 2, 3]  # our ids of padding, start and end, in OpenNMT-tf's order


class Positions(opennmt.layers.PositionEncoder):
    """Our sinusoids: from position 0, sine and cosine interleaved."""

    def _encode(self, positions, depth):
        frequencies = 10000.0 ** -(np.arange(depth) // 2 * 2 / depth)
        phases = np.arange(depth) % 2 * (np.pi / 2)
        angles = tf.cast(positions, tf.float32)[..., None] - 1
        return tf.sin(angles * frequencies.astype("f") + phases.astype("f"))


def opened(job: dict[str, Any]) -> Callable[..., tuple[int, float]]:
    """Return a function that translates, counts tokens and takes its time."""
    translate = translator(job)
    return engine.timed(
        lambda texts, batch_size, beam_size, tokens: sum(
            length for _, length in translate(texts, batch_size, beam_size)
        )
    )


def translator(job: dict[str, Any]) -> Callable[[list[str], int, int], list[tuple[str, int]]]:
    """Return a function that translates texts, in any order, with the weights in a folder."""
    tf.config.threading.set_intra_op_parallelism_threads(job["threads"])
    folder = pathlib.Path(job["folder"])
    model = model_of(folder, job)
    load_weights(model, dict(np.load(folder / "marian.npz")))
    tokenizer = pyonmttok.SentencePieceTokenizer(str(folder / "vocab.model"))
    serve: dict[int, Callable] = {}

    def search(tokens, beam_size):
        lengths = [len(of_text) for of_text in tokens]
        padded = [of_text + [""] * (max(lengths) - len(of_text)) for of_text in tokens]
        found = serve[beam_size](
            {"tokens": tf.constant(padded), "length": tf.constant(lengths, tf.int32)}
        )
        best = zip(found["tokens"][:, 0].numpy(), found["length"][:, 0].numpy(), strict=True)
        return [[token.decode() for token in row[:length]] for row, length in best]

    def translate(texts, batch_size, beam_size):
        if beam_size not in serve:
            model.params["beam_width"] = beam_size
            serve[beam_size] = model.serve_function()
            search([["a"]], beam_size)  # traces the graph, which reads `params`
        tokens = [tokenizer(text) for text in texts]
        if batch_size > 1:
            tokens.sort(key=len, reverse=True)
        batches = [tokens[i : i + batch_size] for i in range(0, len(tokens), batch_size)]
        best = [row for batch in batches for row in search(batch, beam_size)]
        return [(tokenizer.detokenize(row), len(row)) for row in best]

    return translate


def transformer(sizes: dict[str, int], **options: Any) -> opennmt.models.Transformer:
    """Return a pre-norm Transformer with one embedding matrix."""
    return opennmt.models.Transformer(
        num_layers=sizes["num_layers"],
        num_units=sizes["d_model"],
        num_heads=sizes["num_heads"],
        ffn_inner_dim=sizes["d_ff"],
        share_embeddings=opennmt.models.EmbeddingsSharingLevel.ALL,
        **options,
    )


def model_of(folder: pathlib.Path, job: dict[str, Any]) -> opennmt.models.Transformer:
    """Return a model with variables."""
    subwords = (folder / "subwords").read_text(encoding="utf-8").split("\n")
    special = ["<blank>", "<s>", "</s>"]
    others = [subword for id, subword in enumerate(subwords) if id not in SPECIAL]
    (folder / "opennmt.vocab").write_text("\n".join(special + others) + "\n", encoding="utf-8")
    model = transformer(job["sizes"], position_encoder_class=Positions)
    max_length = int((folder / "max_length").read_text())
    vocabulary = str(folder / "opennmt.vocab")
    model.initialize(
        {
            "source_vocabulary": vocabulary,
            "target_vocabulary": vocabulary,
            "source_sequence_controls": {"end": True},
        },
        {"length_penalty": 0.6, "maximum_decoding_length": max_length},
    )
    model.create_variables()
    return model


def load_weights(model: opennmt.models.Transformer, weights: dict[str, np.ndarray]) -> None:
    """Set all weights to those that have Marian's names."""

    def dense(prefix, names, *layers):
        for name, layer in zip(names, layers, strict=True):
            layer.kernel.assign(weights[f"{prefix}_W{name}"])
            layer.bias.assign(weights[f"{prefix}_b{name}"][0])

    def norm(prefix, layer, suffix="_pre"):
        layer.gamma.assign(weights[f"{prefix}_ln_scale{suffix}"][0])
        layer.beta.assign(weights[f"{prefix}_ln_bias{suffix}"][0])
        layer.epsilon = 1e-6

    def attention(prefix, wrapper):
        linear = ("linear_queries", "linear_keys", "linear_values", "linear_output")
        dense(prefix, "qkvo", *(getattr(wrapper.layer, name) for name in linear))
        norm(f"{prefix}_Wo", wrapper.input_layer_norm)

    for side in ("encoder", "decoder"):
        stack = getattr(model, side)
        for number, layer in enumerate(stack.layers, 1):
            prefix = f"{side}_l{number}"
            attention(f"{prefix}_self", layer.self_attention)
            if side == "decoder":
                attention(f"{prefix}_context", layer.attention[0])
            dense(f"{prefix}_ffn", "12", layer.ffn.layer.inner, layer.ffn.layer.outer)
            norm(f"{prefix}_ffn_ffn", layer.ffn.input_layer_norm)
        norm(f"{side}_top", stack.layer_norm, "")
    embeddings = weights["Wemb"]
    unknown = 1  # the last row is of words outside the vocabulary
    order = [*SPECIAL, *(id for id in range(len(embeddings)) if id not in SPECIAL), unknown]
    model.labels_inputter.embedding.assign(embeddings[order])
    never = np.isin(np.arange(len(order)), [0, 1, len(order) - 1])
    model.decoder.output_layer.bias.assign(np.where(never, -1e9, 0))


if __name__ == "__main__":
    engine.answer(opened)
