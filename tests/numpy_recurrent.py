"""The recurrent models in NumPy: one sentence, one token at a time, no batch and no padding."""

import numpy as np
from numpy_transformer import softmax


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def lstm(weights, x, states):
    """Hochreiter & Schmidhuber 1997 with forget gates; the gates as Keras orders them."""
    h, c = states
    gates = x @ weights["kernel"] + h @ weights["recurrent_kernel"] + weights["bias"]
    i, f, candidate, o = np.split(gates, 4)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(candidate)
    return sigmoid(o) * np.tanh(c), c


def gru(weights, x, h):
    """Cho et al. 2014, appendix A.1, with the reset gate after the recurrent product."""
    of_x, of_h = weights["bias"]
    z, r, candidate = np.split(x @ weights["kernel"] + of_x, 3)
    z_h, r_h, candidate_h = np.split(h @ weights["recurrent_kernel"] + of_h, 3)
    z = sigmoid(z + z_h)
    return z * h + (1 - z) * np.tanh(candidate + sigmoid(r + r_h) * candidate_h)


def maxout(weights, *parts):
    pairs = np.concatenate(parts) @ weights["projection/kernel"] + weights["projection/bias"]
    return np.maximum(pairs[::2], pairs[1::2])


def dense(weights, x):
    return x @ weights["kernel"] + weights["bias"]


class Parts:
    """The weights of a model by the paths of its layers."""

    def __init__(self, model):
        self.config = model.config
        self._weights = {
            weight.path.partition("/")[2]: np.asarray(weight, "float64") for weight in model.weights
        }

    def __getitem__(self, path):
        found = {
            name.removeprefix(path + "/"): value
            for name, value in self._weights.items()
            if name.startswith(path + "/")
        }
        assert found, path
        return found

    def embed(self, side, token):
        side = "target" if self.config.tie_embeddings else side
        return self[f"{side}_embedding"]["embeddings"][token] * self.config.d_model**0.5

    def logits(self, hidden):
        if self.config.tie_embeddings:
            return self["target_embedding"]["embeddings"] @ hidden
        return dense(self["output_projection"], hidden)


def additive(parts, query, context):
    keys = dense(parts["attention/key_projection"], context)
    hidden = np.tanh(query @ parts["attention/query_projection"]["kernel"] + keys)
    return (hidden @ parts["attention/score_projection"]["kernel"])[:, 0]


def gru_outputs(parts, source, target):
    """Cho et al. 2014, and Bahdanau et al. 2015, whose context is attended to at each step."""
    attends = "attention/key_projection/kernel" in parts._weights

    def read(cell, tokens):
        states = [np.zeros(parts.config.num_units)]
        for token in tokens:
            states.append(gru(parts[cell], parts.embed("source", token), states[-1]))
        return states[1:]

    if attends:
        cells = [f"encoder/layer_0/{way}_layer_0/gru_cell" for way in ("forward", "backward")]
        backward = read(cells[1], source[::-1])[::-1]
        context = np.concatenate([read(cells[0], source), backward], axis=1)
        h = np.tanh(dense(parts["first_state"], backward[0]))
    else:
        last = read("encoder/layer_0/gru_cell", source)[-1]
        c, weights = np.tanh(dense(parts["summary"], last)), None
        h = np.tanh(dense(parts["first_state"], c))
    for token in target:
        x = parts.embed("target", token)
        if attends:
            weights = softmax(additive(parts, h, context))
            c = weights @ context
        h = gru(parts["decoder/layer_0/gru_cell"], np.concatenate([x, c]), h)
        yield parts.logits(maxout(parts["readout"], h, x, c)), weights


def lstm_outputs(parts, source, target):
    """Sutskever et al. 2014, and Luong et al. 2015, where the top state attends."""
    config = parts.config

    def stack(name, x, states):
        for index in range(config.num_layers):
            x, c = lstm(parts[f"{name}/layer_{index}/lstm_cell"], x, states[index])
            states[index] = x, c
        return x

    order = list(range(len(source)))
    if config.reverse_source:
        order = order[-2::-1] + order[-1:]
    fed = np.zeros(config.d_model)
    states = [(fed, fed)] * config.num_layers
    context = np.array([stack("encoder", parts.embed("source", source[i]), states) for i in order])
    for token in target:
        x = parts.embed("target", token)
        h = stack("decoder", np.concatenate([x, fed]) if config.input_feeding else x, states)
        if config.attention_score is None:
            yield parts.logits(h), None
            continue
        if config.attention_score == "concat":
            scores = additive(parts, h, context)
        elif config.attention_score == "general":
            scores = context @ parts["attention/key_projection"]["kernel"] @ h
        else:
            scores = context @ h
        if config.attention_window is None:
            weights = softmax(scores)
        else:
            hidden = np.tanh(h @ parts["window/hidden"]["kernel"])
            centre = len(source) * sigmoid((hidden @ parts["window/centre"]["kernel"])[0])
            distances = np.abs(np.arange(len(source)) - centre)
            scores[distances > config.attention_window] = -np.inf
            sigma = config.attention_window / 2
            weights = softmax(scores) * np.exp(-(distances**2) / (2 * sigma**2))
        fed = np.tanh(np.concatenate([weights @ context, h]) @ parts["attentional"]["kernel"])
        in_order = np.zeros(len(source))
        in_order[order] = weights
        yield parts.logits(fed), in_order


def outputs(model, source, target):
    """Logits `(T, V)` and weights `(T, S)` or None of one sentence's tokens."""
    steps = {"gru": gru_outputs, "lstm": lstm_outputs}[model.config.cell]
    logits, weights = zip(*steps(Parts(model), source, target), strict=True)
    return np.array(logits), None if weights[0] is None else np.array(weights)
