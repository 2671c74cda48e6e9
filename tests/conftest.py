"""What several test files share: quiet TensorFlow, and the paper's equations in NumPy float64."""

import json
import os
import subprocess
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import pytest
import tensorflow as tf

import tf_transformer as tt


def _randomise(layer, seed=0):
    """Gives every variable a random value: a zero bias would hide that it is never added."""
    rng = np.random.default_rng(seed)
    for variable in layer.variables:
        if variable.path.endswith("seed_generator_state"):
            continue
        # Post-norm layers with small gammas would let almost nothing of the input through.
        mean = 1.0 if variable.name == "gamma" else 0.0
        variable.assign(rng.normal(mean, 0.3, variable.shape))
    return layer


def _softmax(scores):
    exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def _attention(layer, query, context, allowed=None):
    """Equation 1 of Vaswani et al. 2017 one head at a time; weights of 0 where not allowed.

    Reads the layer's weights by their documented layout: columns `[Q | K | V]`, or `Q` and
    `[K | V]` apart, in each the heads side by side.
    """
    weights = {
        "/".join(v.path.split("/")[-2:]): np.asarray(v, "float64")
        for v in layer.variables
        if "seed" not in v.path
    }
    width = layer.d_model
    size = width // layer.num_heads
    joint, bias = (
        np.concatenate(
            [
                weights[name]
                for name in (
                    f"query_projection/{kind}",
                    f"key_value_projection/{kind}",
                    f"query_key_value_projection/{kind}",
                )
                if name in weights
            ],
            axis=-1,
        )
        for kind in ("kernel", "bias")
    )
    part = [slice(i * width, (i + 1) * width) for i in range(3)]
    queries = query @ joint[:, part[0]] + bias[part[0]]
    keys = context @ joint[:, part[1]] + bias[part[1]]
    values = context @ joint[:, part[2]] + bias[part[2]]
    heads, probabilities = [], []
    for head in range(layer.num_heads):
        columns = slice(head * size, (head + 1) * size)
        scores = np.einsum("btd,bsd->bts", queries[..., columns], keys[..., columns])
        scores = scores / np.sqrt(size)
        if allowed is not None:
            scores = np.where(allowed, scores, -np.inf)
        probabilities.append(_softmax(scores))
        heads.append(probabilities[-1] @ values[..., columns])
    output = np.concatenate(heads, axis=-1) @ weights["output_projection/kernel"]
    output = output + weights["output_projection/bias"]
    return output, np.stack(probabilities, axis=1)


def _logits(model, inputs):
    """The model of Vaswani et al. 2017 in NumPy float64: logits, and weights of each attention."""
    config = model.config
    context_allowed = (inputs["source_ids"] != config.pad_id)[:, None, :]
    scores = {"encoder": [], "decoder": [], "cross": []}

    def norm(layer, x):
        gamma, beta = (np.asarray(v, "float64") for v in layer.variables)
        variance = ((x - x.mean(-1, keepdims=True)) ** 2).mean(-1, keepdims=True)
        return (x - x.mean(-1, keepdims=True)) / np.sqrt(variance + 1e-6) * gamma + beta

    def sublayer(residual, x, function):
        if config.norm_first:
            return x + function(norm(residual.norm, x))
        return norm(residual.norm, x + function(x))

    def feed_forward(layer, x):
        w1, b1, w2, b2 = (np.asarray(v, "float64") for v in layer.variables)
        return np.maximum(0, x @ w1 + b1) @ w2 + b2

    def attend(layer, kind, x, context=None, allowed=None):
        output, weights = _attention(layer, x, x if context is None else context, allowed)
        scores[kind].append(weights)
        return output

    def embed(layer, ids):
        angles = np.arange(ids.shape[1])[:, None] / 10000 ** (
            np.arange(0, config.d_model, 2) / config.d_model
        )
        positions = np.stack([np.sin(angles), np.cos(angles)], -1).reshape(ids.shape[1], -1)
        matrix = np.asarray(layer.embedding.embeddings, "float64")
        return matrix[ids] * np.sqrt(config.d_model) + positions

    x = embed(model.source_embedding, inputs["source_ids"])
    for layer in model.encoder.layers:
        x = sublayer(
            layer.attention_residual, x,
            lambda h, at=layer: attend(at.self_attention, "encoder", h, None, context_allowed),
        )  # fmt: skip
        x = sublayer(
            layer.feed_forward_residual, x, lambda h, at=layer: feed_forward(at.feed_forward, h)
        )
    context = norm(model.encoder.norm, x) if config.norm_first else x
    x = embed(model.target_embedding, inputs["target_ids"])
    triangle = np.tril(np.ones((1, x.shape[1], x.shape[1]), bool))
    for layer in model.decoder.layers:
        x = sublayer(
            layer.self_residual, x,
            lambda h, at=layer: attend(at.self_attention, "decoder", h, None, triangle),
        )  # fmt: skip
        x = sublayer(
            layer.cross_residual, x,
            lambda h, at=layer: attend(at.cross_attention, "cross", h, context, context_allowed),
        )  # fmt: skip
        x = sublayer(
            layer.feed_forward_residual, x, lambda h, at=layer: feed_forward(at.feed_forward, h)
        )
    x = norm(model.decoder.norm, x) if config.norm_first else x
    if config.tie_embeddings:
        return x @ np.asarray(model.target_embedding.embedding.embeddings, "float64").T, scores
    kernel, bias = (np.asarray(v, "float64") for v in model.output_projection.variables)
    return x @ kernel + bias, scores


class _EchoModel:
    """A translation model whose every translation is its source, so that each answer is known."""

    weights = ()

    def __init__(self, vocab_size):
        self.vocab_size = vocab_size

    def start_decoding(self, source_ids, num_steps=None, beam_size=None):
        rows = source_ids if beam_size is None else tf.repeat(source_ids, beam_size, axis=0)
        return {"target": {"ids": rows}}

    def decode_step(self, token_ids, index, cache):
        source_ids = cache["target"]["ids"]
        column = tf.minimum(index, tf.shape(source_ids)[1] - 1)
        return tf.one_hot(source_ids[:, column], self.vocab_size), cache


def _result_of(script):
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def _write_copy_task(folder):
    corpus = tt.copy_task(num_train=60, num_validation=4, num_test=0, max_length=6)
    for part in ("train", "validation"):
        text = getattr(corpus, part)
        lines = [f"{s}\t{t}\n" for s, t in zip(text.sources, text.targets, strict=True)]
        (folder / part).write_text("".join(lines), encoding="utf-8")


# Session scope, because hypothesis calls a test many times with one fixture.
@pytest.fixture(scope="session")
def randomise():
    return _randomise


@pytest.fixture(scope="session")
def numpy_attention():
    return _attention


@pytest.fixture(scope="session")
def numpy_logits():
    return _logits


@pytest.fixture(scope="session")
def result_of():
    """Runs a script in a process of its own, without GPUs; returns the JSON it prints last."""
    return _result_of


@pytest.fixture(scope="session")
def write_copy_task():
    """Writes the copy task, smaller than the command line has it, as two TSV files of a folder."""
    return _write_copy_task


@pytest.fixture(scope="session")
def echo_model():
    """The class of the model that echoes, to make one of a vocabulary's size or derive another."""
    return _EchoModel
