"""The paper's equations in NumPy float64, from the weights of a layer or a model."""

import math

import numpy as np

ACTIVATIONS = {
    "relu": lambda x: np.maximum(0, x),
    "gelu": lambda x: x * (1 + np.vectorize(math.erf)(x / np.sqrt(2))) / 2,
    "swish": lambda x: x / (1 + np.exp(-x)),
}


def sinusoids(positions, depth, layout="sinusoidal"):
    """Section 3.5 of Vaswani et al. 2017, a number at a time, in float64; sines may come first."""
    last = depth // 2 - 1 if layout == "sinusoidal_tensor2tensor" else depth / 2
    table = np.zeros((len(positions), depth))
    for row, position in enumerate(positions):
        for pair in range(depth // 2):
            angle = position / 10000 ** (pair / last)
            columns = (2 * pair, 2 * pair + 1)
            if layout != "sinusoidal":
                columns = (pair, depth // 2 + pair)
            table[row, columns] = np.sin(angle), np.cos(angle)
    return table


def softmax(scores):
    exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def attention(layer, query, context, allowed=None):
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
    inputs = ("query_projection", "key_value_projection", "query_key_value_projection")
    joint, bias = (
        np.concatenate([weights[f"{x}/{kind}"] for x in inputs if f"{x}/{kind}" in weights], -1)
        for kind in ("kernel", "bias")
    )
    queries, keys, values = (
        x @ joint[:, i * width : (i + 1) * width] + bias[i * width : (i + 1) * width]
        for i, x in enumerate((query, context, context))
    )
    heads, probabilities = [], []
    for head in range(layer.num_heads):
        columns = slice(head * size, (head + 1) * size)
        scores = np.einsum("btd,bsd->bts", queries[..., columns], keys[..., columns])
        scores = scores / np.sqrt(size)
        if allowed is not None:
            scores = np.where(allowed, scores, -np.inf)
        probabilities.append(softmax(scores))
        heads.append(probabilities[-1] @ values[..., columns])
    output = np.concatenate(heads, axis=-1) @ weights["output_projection/kernel"]
    output = output + weights["output_projection/bias"]
    return output, np.stack(probabilities, axis=1)


def logits(model, inputs):
    """The model of Vaswani et al. 2017 in NumPy float64: logits, and weights of each attention."""
    config = model.config
    context_allowed = (inputs["source_ids"] != config.pad_id)[:, None, :]
    scores = {"encoder": [], "decoder": [], "cross": []}

    def norm(layer, x):
        gamma, beta = (np.asarray(v, "float64") for v in layer.variables)
        variance = ((x - x.mean(-1, keepdims=True)) ** 2).mean(-1, keepdims=True)
        return (x - x.mean(-1, keepdims=True)) / np.sqrt(
            variance + config.layer_norm_epsilon
        ) * gamma + beta

    def sublayer(residual, x, function):
        if config.norm_first:
            return x + function(norm(residual.norm, x))
        return norm(residual.norm, x + function(x))

    def feed_forward(layer, x):
        w1, b1, w2, b2 = (np.asarray(v, "float64") for v in layer.variables)
        return ACTIVATIONS[config.activation](x @ w1 + b1) @ w2 + b2

    def attend(layer, kind, x, context, allowed):
        output, weights = attention(layer, x, context, allowed)
        scores[kind].append(weights)
        return output

    def embed(layer, ids):
        numbers = range(config.first_position, config.first_position + ids.shape[1])
        if config.positions == "learned":
            table = np.asarray(layer.position_embedding.embeddings, "float64")
            positions = table[: ids.shape[1]]
        else:
            positions = sinusoids(numbers, config.d_model, config.positions)
        matrix = np.asarray(layer.embedding.embeddings, "float64")
        return matrix[ids] * (np.sqrt(config.d_model) if config.scale_embeddings else 1) + positions

    def transform(layer, kind, x, allowed, context=None):
        x = sublayer(
            layer.self_residual, x, lambda h: attend(layer.self_attention, kind, h, h, allowed)
        )
        if context is not None:
            x = sublayer(
                layer.cross_residual, x,
                lambda h: attend(layer.cross_attention, "cross", h, context, context_allowed),
            )  # fmt: skip
        return sublayer(
            layer.feed_forward_residual, x, lambda h: feed_forward(layer.feed_forward, h)
        )

    def run(stack, kind, x, allowed, context=None):
        for layer in stack.layers:
            x = transform(layer, kind, x, allowed, context)
        return norm(stack.norm, x) if config.norm_first else x

    x = embed(model.source_embedding, inputs["source_ids"])
    context = run(model.encoder, "encoder", x, context_allowed)
    x = embed(model.target_embedding, inputs["target_ids"])
    triangle = np.tri(x.shape[1], dtype=bool)[None]
    x = run(model.decoder, "decoder", x, triangle, context)
    if config.tie_embeddings or config.tie_output:
        bias = np.asarray(model.output_projection.bias, "float64") if config.output_bias else 0
        matrix = np.asarray(model.target_embedding.embedding.embeddings, "float64")
        return x @ matrix.T + bias, scores
    kernel, bias = (np.asarray(v, "float64") for v in model.output_projection.variables)
    return x @ kernel + bias, scores
