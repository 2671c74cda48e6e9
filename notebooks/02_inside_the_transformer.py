# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#       jupytext_version: 1.19.6
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Inside the Transformer
#
# Sections 3 to 5 of ["Attention is all you need"](https://arxiv.org/abs/1706.03762) (Vaswani et al.
# 2017): the equation, the class that computes it, and a picture. Headings have the numbers of the
# paper's sections. You need the paper and some NumPy, but no data and no GPU.
#
# In shapes, B counts the sentences of a batch, T the queries or target tokens, S the keys or source
# tokens, D is $d_\text{model}$, H the number of heads, and V the size of the vocabulary. Layers
# take batches. Each `assert` checks a claim of the text.

# %%
# %matplotlib inline
# %config InlineBackend.figure_formats = ["png"]
import os
import statistics
import time

import keras
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

import tf_transformer as tt
import tf_transformer.visualization as show
from tf_transformer import Residual, RestrictedSelfAttention

# `make notebooks` sets this to train little; the pictures of trained models are then poor.
quick = "TF_TRANSFORMER_QUICK" in os.environ
keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
plt.rcParams.update({"figure.dpi": 80, "axes.spines.top": False, "axes.spines.right": False})

# %% [markdown]
# ## 1. Scaled dot-product attention (3.2.1)
#
# $$\mathrm{Attention}(Q, K, V) = \mathrm{softmax}\left(\frac{QK^\top}{\sqrt{d_k}}\right) V$$
#
# Attention is a soft dictionary look-up. A dot product compares a query with every key, the softmax
# turns these scores into weights, and the answer is the weighted mean of the values. Here the
# values of four keys are colours, as amounts of red, green and blue.


# %%
def softmax(x):
    exponentials = np.exp(x - x.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def attention(queries, keys, values):
    d_k = keys.shape[-1]
    weights = softmax(queries @ np.swapaxes(keys, -1, -2) / np.sqrt(d_k))
    return weights @ values, weights


colours = ["red", "yellow", "blue", "white"]
keys = np.eye(4)  # orthogonal: each key resembles itself only
values = np.array([[1, 0, 0], [1, 1, 0], [0, 0, 1], [1, 1, 1]])
questions = ["red", "red+blue", "any"]
queries = np.array([[10, 0, 0, 0], [10, 0, 10, 0], [0, 0, 0, 0]])

answers, weights = attention(queries, keys, values)
for question, answer in zip(questions, answers.round(2), strict=True):
    print(f"{question:8} → red {answer[0]:.2f}, green {answer[1]:.2f}, blue {answer[2]:.2f}")
show.plot_attention(weights, questions, colours)

# %% [markdown]
# Each row sums to 1. The first query gets almost pure red, the second a mixture of red and blue,
# and the third, which resembles all keys equally, the mean of all colours.
#
# The layer also projects its inputs and its output ($W^Q$, $W^K$, $W^V$ and $W^O$, from 3.2.2).
# Keys and values are projections of one array, the *context*. With one head, identity matrices and
# the colours as $W^V$, the layer computes the same.

# %%
layer = tt.MultiHeadAttention(num_heads=1, d_model=4)
layer.build((1, 3, 4), (1, 4, 4))  # makes the weights, for a query (B, T, D), a context (B, S, D)
identity, zeros = np.eye(4), np.zeros(4)
colour_table = np.hstack([values, zeros[:, None]])  # d_v = d_k = 4, so the last column is unused
layer.query_projection.set_weights([identity, zeros])
layer.key_value_projection.set_weights([np.hstack([identity, colour_table]), np.zeros(8)])
layer.output_projection.set_weights([identity, zeros])

output, layer_weights = layer(queries[None], context=keys[None], return_attention_scores=True)
np.testing.assert_allclose(output[0, :, :3], answers, atol=1e-6)
np.testing.assert_allclose(layer_weights[0, 0], weights, atol=1e-6)
print("output (B, T, D) =", output.shape, "and weights (B, H, T, S) =", layer_weights.shape)

# %% [markdown]
# ## 2. Why divide by √d_k? (3.2.1)
#
# If the components of a query $q$ and a key $k$ are independent, with mean 0 and variance 1, then
# their dot product has variance $d_k$ (footnote 4 of the paper). Large scores saturate the softmax:
# one weight is nearly 1, all others are nearly 0, and so is the gradient of the weights $p$ with
# respect to the scores $s$:
#
# $$\frac{\partial p_i}{\partial s_j} = p_i\,(\delta_{ij} - p_j)$$
#
# The figure shows, for 500 random queries of 10 random keys each, the mean of the largest weight
# and the median norm of $\partial p / \partial q$.

# %%
widths = 2 ** np.arange(0, 11)
powers = {"$q \\cdot k$": 0.0, "$q \\cdot k \\,/ \\sqrt{d_k}$": 0.5}  # of d_k, as divisors
largest, gradient = ({name: [] for name in powers} for _ in range(2))
for d_k in widths:
    q, k = rng.normal(size=(500, 1, d_k)), rng.normal(size=(500, 10, d_k))
    products = q @ k.swapaxes(1, 2)  # (500, 1, 10)
    assert abs(products.var() / d_k - 1) < 0.25
    for name, power in powers.items():
        p = softmax(products / d_k**power)[:, 0]
        by_scores = p[:, :, None] * (np.eye(10) - p[:, None, :])
        by_query = by_scores @ k / d_k**power  # (500, 10, d_k)
        largest[name].append(p.max(axis=-1).mean())
        gradient[name].append(np.median(np.linalg.norm(by_query, axis=(1, 2))))

fig, (left, right) = plt.subplots(1, 2, figsize=(9, 3))
for name, style in zip(powers, ("s--", "o-"), strict=True):
    left.plot(widths, largest[name], style, markersize=4, label=name)
    right.plot(widths, gradient[name], style, markersize=4, label=name)
left.set(xlabel="$d_k$", ylabel="largest of 10 weights", ylim=(0, 1))
right.set(xlabel="$d_k$", ylabel="norm of the gradient, median", ylim=(0, None))
right.legend(frameon=False)
for axes in (left, right):
    axes.set_xscale("log", base=2)
fig.tight_layout()

plain, scaled = gradient.values()
assert plain[-1] < 0.1 * scaled[-1] and largest["$q \\cdot k$"][-1] > 0.9

# %% [markdown]
# With the division, both hardly change with the width. Without it, most queries of a wide head have
# no gradient.
#
# ## 3. Multi-head attention (3.2.2)
#
# $$\mathrm{MultiHead}(Q, K, V) = \mathrm{Concat}(\mathrm{head}_1, \dots, \mathrm{head}_h)\,W^O
# \qquad \mathrm{head}_i = \mathrm{Attention}(QW_i^Q, KW_i^K, VW_i^V)$$
#
# with $d_k = d_v = d_\text{model} / h$. The layer keeps the $W_i^Q$ of all heads as the columns of
# one matrix (D, D), and all $W_i^K$ and $W_i^V$ in one matrix (D, 2 D). A reshape separates the
# heads. Unlike the paper's equation, the projections have a bias.

# %%
d_model, num_heads = 64, 4
layer = tt.MultiHeadAttention(num_heads, d_model)
query, context = (rng.normal(size=(1, length, d_model)).astype("float32") for length in (5, 7))
output, weights = layer(query, context, return_attention_scores=True)


def heads(x, num_heads):
    """From (B, T, D) to (B, H, T, d_k)."""
    return x.reshape(*x.shape[:2], num_heads, -1).transpose(0, 2, 1, 3)


W_q, b_q = layer.query_projection.get_weights()  # (D, D), (D,)
W_kv, b_kv = layer.key_value_projection.get_weights()  # (D, 2 D), (2 D,)
W_o, b_o = layer.output_projection.get_weights()  # (D, D), (D,)

queries = heads(query @ W_q + b_q, num_heads)
both = np.split(context @ W_kv + b_kv, 2, axis=-1)
keys, values = (heads(part, num_heads) for part in both)
by_hand, weights_by_hand = attention(queries, keys, values)  # the function of section 1
concatenated = by_hand.transpose(0, 2, 1, 3).reshape(query.shape)
np.testing.assert_allclose(output, concatenated @ W_o + b_o, atol=1e-5)
np.testing.assert_allclose(weights, weights_by_hand, atol=1e-6)

for h in (1, 8):
    layer = tt.MultiHeadAttention(h, 512)
    layer.build((None, None, 512), (None, None, 512))
    print(f"h = {h}: {layer.count_params():,} weights")
    assert layer.count_params() == 4 * (512 * 512 + 512)

show.plot_heads(
    [weights[0]],
    [f"q{i}" for i in range(5)],
    [f"k{j}" for j in range(7)],
    title="Four heads with random weights, on random vectors",
    largest=float(np.max(weights)),
)

# %% [markdown]
# Each head attends to something else. More heads have no more weights, because they share
# $d_\text{model}$.
#
# ## 4. Masks (3.2.3)
#
# A mask says which keys a query may attend to:
#
# $$\mathrm{softmax}\left(\frac{QK^\top}{\sqrt{d_k}} + M\right) V,
# \qquad M_{ij} = \begin{cases} 0 & \text{query } i \text{ may attend to key } j \\
# -\infty & \text{otherwise} \end{cases}$$
#
# In the code a mask is boolean, true where a query may attend. The layer adds $-10^9$ instead of
# $-\infty$, so a query that may attend to nothing gets equal weights and not NaN.
#
# The paper has the **causal** mask: a position of the decoder attends to itself and to the
# positions before it, because the rest is not written yet. Batches also need a **padding** mask,
# which hides the filling of shorter sentences. `&` combines them.

# %%
tokens = ["the", "cat", "sat", "down", "<pad>", "<pad>"]
token_ids = np.array([[0 if token == "<pad>" else 11 for token in tokens]])
padding = tt.padding_mask(token_ids, pad_id=0)  # (B, 1, S): the same for every query
causal = tt.causal_mask(len(tokens))  # (1, T, T)
np.testing.assert_array_equal(causal[0], np.tri(len(tokens), dtype=bool))
show.plot_masks(
    {"padding": padding, "causal": causal, "padding & causal": padding & causal}, tokens
)

# %% [markdown]
# The paper's three uses of attention are three classes:
#
# | use (3.2.3) | class | query | context | mask |
# |---|---|---|---|---|
# | self-attention of the encoder | `tt.GlobalSelfAttention` | `x` | `x` | padding |
# | self-attention of the decoder | `tt.CausalSelfAttention` | `x` | `x` | causal, built in |
# | encoder-decoder attention | `tt.CrossAttention` | decoder | encoder's output | padding |
#
# This is what both masks do to the weights of `CausalSelfAttention`, for random vectors:

# %%
x = rng.normal(size=(1, len(tokens), 32)).astype("float32")
causal_layer = tt.CausalSelfAttention(num_heads=1, d_model=32)
output, weights = causal_layer(x, attention_mask=padding, return_attention_scores=True)
visible = np.array(padding & causal)[0]
assert np.array(weights)[0, 0][~visible].max() < 1e-8
np.testing.assert_allclose(np.array(weights).sum(axis=-1), 1, atol=1e-6)

# The encoder's layer with this mask computes the same.
global_layer = tt.GlobalSelfAttention(num_heads=1, d_model=32)
global_layer.build(x.shape)
global_layer.set_weights(causal_layer.get_weights())
np.testing.assert_allclose(global_layer(x, attention_mask=padding & causal), output, atol=1e-6)

# If the end of the sentence changes, the outputs before it do not.
other_end = x.copy()
other_end[:, 4:] += 1
np.testing.assert_allclose(causal_layer(other_end)[:, :4], causal_layer(x)[:, :4], atol=1e-6)

show.plot_attention(weights[0, 0], tokens, title="attention weights, masked")

# %% [markdown]
# Hidden weights are 0, and each row sums to 1. The loss ignores the rows of `<pad>`.
#
# ## 5. Feed-forward networks (3.3)
#
# $$\mathrm{FFN}(x) = \max(0, xW_1 + b_1)\,W_2 + b_2$$
#
# The network is applied "to each position separately and identically", or as "two convolutions with
# kernel size 1". The code checks both.

# %%
feed_forward = tt.FeedForward(d_model=32, d_ff=128)
output = np.array(feed_forward(x))
(W_1, b_1), (W_2, b_2) = (
    part.get_weights() for part in (feed_forward.expand, feed_forward.contract)
)
np.testing.assert_allclose(output, np.maximum(0, x @ W_1 + b_1) @ W_2 + b_2, atol=1e-5)
np.testing.assert_allclose(feed_forward(x[:, ::-1]), output[:, ::-1], atol=1e-6)

expand, contract = keras.layers.Conv1D(128, 1, activation="relu"), keras.layers.Conv1D(32, 1)
contract(expand(x))  # the first call makes the weights
expand.set_weights([W_1[None], b_1])
contract.set_weights([W_2[None], b_2])
np.testing.assert_allclose(contract(expand(x)), output, atol=1e-5)

base = tt.FeedForward(512, 2048)
base.build((None, None, 512))
print(f"{base.count_params():,} weights at the paper's size, twice as many as attention has")
assert base.count_params() == 2_099_712

# %% [markdown]
# ## 6. Embeddings times √d_model (3.4)
#
# $$x_t = \sqrt{d_\text{model}}\;E_{w_t} + \mathrm{PE}_t$$
#
# $E_{w_t}$ is the embedding of the token $w_t$, and $\mathrm{PE}_t$ its position (section 7).
# Source, target and output layer share the matrix $E$. A plausible reason for the factor is that
# entries of about $1/\sqrt{d_\text{model}}$ suit the output layer, but would vanish beside the
# positions.

# %%
layer = tt.PositionalEmbedding(vocab_size=1000, d_model=512)
positions = np.array(tt.sinusoidal_positions(1000, 512))
output = np.array(layer(np.arange(1000)[None]))[0]
E = layer.embedding.get_weights()[0]
np.testing.assert_allclose(output, np.sqrt(512) * E + positions, atol=1e-5)
print(f"standard deviation: E {E.std():.3f}, times √512 {(np.sqrt(512) * E).std():.2f}, ", end="")
print(f"positions {positions.std():.2f}")

# %% [markdown]
# ## 7. Positional encoding (3.5)
#
# $$\mathrm{PE}_{(p, 2i)} = \sin(p\,\omega_i), \qquad \mathrm{PE}_{(p, 2i+1)} = \cos(p\,\omega_i),
# \qquad \omega_i = 10000^{-2i/d_\text{model}}$$
#
# Without a causal mask, neither attention nor the feed-forward network knows the order of the
# tokens: in another order, the outputs are the same in that order. So positions are added to the
# embeddings.

# %%
output = np.array(global_layer(x))  # the encoder's attention, from section 4
np.testing.assert_allclose(global_layer(x[:, ::-1]), output[:, ::-1], atol=1e-6)

pe = np.array(tt.sinusoidal_positions(100, 20))
np.testing.assert_allclose(pe[1, :4], [0.841471, 0.540302, 0.387674, 0.921796], atol=1e-6)
np.testing.assert_allclose(pe[10, 4:8], [0.999901, -0.014096, 0.589918, 0.807463], atol=1e-5)
fig, axes = plt.subplots(figsize=(7, 5))
image = axes.imshow(tt.sinusoidal_positions(100, 64), cmap="cividis", aspect="auto")
axes.set(title="a row is the encoding of a position", xlabel="dimension", ylabel="position")
colour_bar = fig.colorbar(image, ax=axes, label="value")

# %% [markdown]
# The dimensions on the left change fast, like the last digit of a number, and those on the right
# hardly at all.
#
# **A shift is a rotation.** By the angle sum identities each pair of dimensions turns by the angle
# $k\,\omega_i$ from $p$ to $p + k$, whatever $p$ is:
#
# $$\begin{pmatrix} \sin((p+k)\,\omega_i) \\ \cos((p+k)\,\omega_i) \end{pmatrix} =
# \begin{pmatrix} \cos k\omega_i & \sin k\omega_i \\ -\sin k\omega_i & \cos k\omega_i \end{pmatrix}
# \begin{pmatrix} \sin(p\,\omega_i) \\ \cos(p\,\omega_i) \end{pmatrix}$$


# %%
def rotation(k, d_model):
    """R_k, a matrix (D, D) of 2 by 2 rotations along its diagonal."""
    matrix = np.zeros((d_model, d_model))
    for i in range(0, d_model, 2):
        angle = k * 10000 ** (-i / d_model)
        cos, sin = np.cos(angle), np.sin(angle)
        matrix[i : i + 2, i : i + 2] = [[cos, sin], [-sin, cos]]
    return matrix


pe = np.array(tt.sinusoidal_positions(100, 64))
for k in (1, 7, 50):
    error = np.abs(pe[k:] - pe[:-k] @ rotation(k, 64).T).max()
    print(f"k = {k:2}: PE(p + k) = R_k PE(p) for all p, largest difference {error:.0e}")
    assert error < 1e-4  # the sinusoids are float32

fig, panels = plt.subplots(1, 3, figsize=(11, 3.4), layout="constrained")
for axes, i in zip(panels, (2, 7), strict=False):
    sines, cosines = pe[:13, 2 * i], pe[:13, 2 * i + 1]
    axes.plot(cosines, sines, "o-", color="0.7", markersize=4)
    for p, colour in ((0, "tab:red"), (6, "tab:blue")):
        for end in (p, p + 4):
            axes.plot([0, cosines[end]], [0, sines[end]], color=colour)
            where = 1.17 * cosines[end], 1.17 * sines[end]
            axes.annotate(end, where, color=colour, ha="center", va="center")
    axes.set(xlim=(-1.3, 1.3), ylim=(-1.3, 1.3), xlabel="cosine", ylabel="sine", aspect="equal")
    axes.set_title(f"$i$ = {i}: 4 steps turn by {np.degrees(4 * 10000 ** (-2 * i / 64)):.0f}°")
image = panels[2].imshow(pe @ pe.T / 32, cmap="cividis")  # each encoding has the norm √32
panels[2].set(xlabel="position", ylabel="position")
colour_bar = fig.colorbar(image, ax=panels[2], label="cosine similarity")

# %% [markdown]
# The circles show positions 0 to 12 for two pairs of dimensions. From 0 to 4 (red) is the same
# angle as from 6 to 10 (blue): a distance is the same rotation everywhere, so the paper
# hypothesises that the model can "easily learn to attend by relative positions". A rotation keeps
# angles, so the similarity of two positions depends on their distance only (right).
#
# ## 8. Residual connection and layer normalisation (3.1, 5.4)
#
# A residual connection and a layer norm surround every sub-layer $f$ (attention or feed-forward).
# The paper normalises last, **post-norm**; most later models, and this package by default,
# normalise first, **pre-norm** ([Xiong et al. 2020](https://arxiv.org/abs/2002.04745)):
#
# $$\text{post: } \mathrm{LayerNorm}(x + f(x)) \qquad\qquad
# \text{pre: } x + f(\mathrm{LayerNorm}(x))$$
#
# $$\mathrm{LayerNorm}(x) = \gamma\,\frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} + \beta,
# \quad \mu \text{ and } \sigma^2 \text{ over the } d_\text{model} \text{ numbers of one position}$$
#
# `Residual` does either, as `residual.post(x, f(residual.pre(x)))`, with the dropout of 5.4. The
# figure shows why it matters: gradients of the loss in an untrained model.


# %%
def layer_norm(x):  # gamma is 1 and beta 0 at first
    mean, variance = x.mean(axis=-1, keepdims=True), x.var(axis=-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + 1e-6)


for norm_first in (False, True):
    residual = Residual(32, norm_first=norm_first)
    residual.build(x.shape)
    output = residual.post(x, feed_forward(residual.pre(x)))
    if norm_first:
        expected = x + np.array(feed_forward(layer_norm(x)))
    else:
        expected = layer_norm(x + np.array(feed_forward(x)))
    np.testing.assert_allclose(output, expected, atol=1e-4)


def gradient_norms(norm_first):
    """Of W_2 in each layer of an untrained model: those of the encoder, those of the decoder."""
    keras.utils.set_random_seed(0)
    config = tt.TransformerConfig(
        1000, 1000, num_layers=6, d_model=128, num_heads=4, d_ff=512, norm_first=norm_first
    )
    model = tt.Transformer(config)
    source_ids, target_ids, labels = np.random.default_rng(0).integers(1, 1000, size=(3, 16, 20))
    stacks = model.encoder.layers, model.decoder.layers
    # `.value` is TensorFlow's variable, which the tape knows.
    kernels = [layer.feed_forward.contract.kernel.value for stack in stacks for layer in stack]
    with tf.GradientTape() as tape:
        loss = tt.SmoothedCrossEntropy()(labels, model((source_ids, target_ids)))
    norms = [float(tf.norm(gradient)) for gradient in tape.gradient(loss, kernels)]
    return norms[:6], norms[6:]


fig, panels = plt.subplots(1, 2, figsize=(9, 3), sharey=True)
norms = {"post-norm (the paper)": gradient_norms(False), "pre-norm": gradient_norms(True)}
for axes, stack, title in zip(panels, (0, 1), ("encoder", "decoder"), strict=True):
    for (name, stacks), style in zip(norms.items(), ("s--", "o-"), strict=True):
        axes.plot(range(1, 7), stacks[stack], style, markersize=4, label=name)
    axes.set(title=title, xlabel="layer (6 is the last)", ylim=(0, 0.8))
panels[0].set_ylabel("norm of the gradient of $W_2$")
panels[1].legend(frameon=False)
fig.tight_layout()

(_, post), (_, pre) = norms.values()  # of the decoder
assert post[-1] > 3 * post[0] and max(pre) < 2 * min(pre)

# %% [markdown]
# In the post-norm decoder the gradient of the last layer is several times that of the first, so one
# learning rate does not suit both. Xiong et al. explain the need for a warm-up (section 11) by
# this. In the pre-norm decoder all gradients are of about one size.
#
# ## 9. The whole model (3.1)
#
# Figure 1 of the paper is `tt.Transformer`. These are the sizes of the paper's base model:

# %%
config = tt.TransformerConfig(37_000, 37_000, norm_first=False)  # other defaults are the base's
model = tt.Transformer(config)
print(f"d_model {config.d_model}, N {config.num_layers}, h {config.num_heads}, d_ff {config.d_ff}")
parts = {
    "embedding matrix, shared by source, target and output": model.source_embedding,
    "encoder": model.encoder,
    "decoder": model.decoder,
}
for name, part in parts.items():
    print(f"{part.count_params():>12,}  {name}")
print(f"{model.count_params():>12,}  in all")
assert model.count_params() == 63_082_496 == sum(part.count_params() for part in parts.values())
del model

# %% [markdown]
# The paper's table 3 has $65 \times 10^6$, with a vocabulary of "about 37000 tokens".
#
# ## 10. Why self-attention (4)
#
# Table 1 of the paper, for $n$ positions of width $d$, kernels of size $k$, neighbourhoods of size
# $r$:
#
# | layer | operations | sequential operations | longest path |
# |---|---|---|---|
# | self-attention, `GlobalSelfAttention` | $O(n^2 \cdot d)$ | $O(1)$ | $O(1)$ |
# | recurrent, `keras.layers.LSTM` | $O(n \cdot d^2)$ | $O(n)$ | $O(n)$ |
# | convolution, `keras.layers.Conv1D` | $O(k \cdot n \cdot d^2)$ | $O(1)$ | $O(\log_k n)$ |
# | restricted, `RestrictedSelfAttention` | $O(r \cdot n \cdot d)$ | $O(1)$ | $O(n / r)$ |
#
# Restricted self-attention equals self-attention with a mask that hides distant positions, but it
# computes only the pairs that are near ($r$ is twice its `radius`, plus one).
#
# The **longest path** counts the steps that information takes from one position to another. Below,
# one input position at a time is changed, and layers of one kind are stacked until an output
# changes with it. For a recurrent layer the steps inside it are counted.


# %%
def layers_of(width, radius, kernel=3):
    return {
        "self-attention": tt.GlobalSelfAttention(4, width),
        "recurrent": keras.layers.LSTM(width, return_sequences=True),
        "convolution": keras.layers.Conv1D(width, kernel, padding="same"),
        "restricted": RestrictedSelfAttention(4, width, radius),
    }


x = rng.normal(size=(1, 100, 32)).astype("float32")
restricted, unrestricted = RestrictedSelfAttention(4, 32, radius=8), tt.GlobalSelfAttention(4, 32)
for layer in (restricted, unrestricted):
    layer.build(x.shape)
unrestricted.set_weights(restricted.get_weights())
masked = unrestricted(x, attention_mask=tt.local_mask(100, radius=8))
np.testing.assert_allclose(restricted(x), masked, atol=1e-5)

n = 16
x = rng.normal(size=(1, n, 32)).astype("float32")
longest = {}
fig, panels = plt.subplots(1, 4, figsize=(9, 2.9), sharey=True, layout="constrained")
for axes, (name, layer) in zip(panels, layers_of(32, radius=2).items(), strict=True):
    # Row 0 is as it was, and in row j + 1 position j is changed.
    batch = np.concatenate([x, x + np.eye(n, dtype="float32")[:, :, None]])
    steps = np.full((n, n), np.nan)  # from input to output position
    for depth in range(1, n):
        batch = np.array(layer(batch))
        reached = (batch[1:] != batch[:1]).any(axis=-1)
        steps[np.isnan(steps) & reached] = depth
    if name == "recurrent":
        distance = np.arange(n) - np.arange(n)[:, None]
        steps = np.where(steps == 1, np.maximum(distance, 1), np.nan)
    image = axes.imshow(steps.T, cmap="viridis_r", vmin=1, vmax=n - 1)
    longest[name] = int(np.nanmax(steps))
    axes.set(title=f"{name}: {longest[name]} at most", xlabel="input position")
    axes.title.set_fontsize(9)
panels[0].set_ylabel("output position")
colour_bar = fig.colorbar(image, ax=panels, label="steps")
assert [*longest.values()] == [1, n - 1, n - 1, n // 2]

# %% [markdown]
# Self-attention joins all positions in one step. A convolution of kernel 3 carries information one
# position a layer (the table's $\log_k n$ is for dilated ones), and restricted attention of radius
# 2 carries it two positions. The recurrent layer needs a step for each position, and knows nothing
# of the future (white).
#
# **Operations** are measured as the CPU time of a forward pass of one sequence, the median of
# several:

# %%
lengths = [32, 64, 128, 256] if quick else [32, 64, 128, 256, 512, 1024, 2048]
rounds = 3 if quick else 15
d, k, radius = 128, 3, 32
milliseconds = {name: [] for name in layers_of(d, radius, k)}
for length in lengths:
    x = tf.constant(rng.normal(size=(1, length, d)), "float32")
    # `tf.function` makes a graph of a layer, so that little of the time is Python's.
    calls = {name: tf.function(layer) for name, layer in layers_of(d, radius, k).items()}
    for call in calls.values():
        call(x)  # the first call makes the graph
    seconds = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            began = time.process_time()  # of all cores, and of this program only
            call(x).numpy()
            seconds[name].append(time.process_time() - began)
    for name in calls:
        milliseconds[name].append(1000 * statistics.median(seconds[name]))

n, r = np.array(lengths), 2 * radius + 1
operations = {
    "self-attention": ("$n^2 d$", n**2 * d),
    "recurrent": ("$n d^2$", n * d**2),
    "convolution": ("$k n d^2$", k * n * d**2),
    "restricted": ("$r n d$", r * n * d),
}
fig, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6))
for (name, (formula, count)), style in zip(
    operations.items(), ("o-", "s--", "^-.", "D:"), strict=True
):
    left.plot(n, count, style, markersize=4, label=f"{name}, {formula}")
    right.plot(n, milliseconds[name], style, markersize=4, label=name)
left.set(title="table 1", ylabel="operations, without constants")
right.set(title="measured", ylabel="milliseconds of CPU time")
left.legend(frameon=False, fontsize=8)
for axes in (left, right):
    axes.set(xlabel=f"length $n$ ($d$ = {d}, $k$ = {k}, $r$ = {r})", yscale="log")
    axes.set_xscale("log", base=2)
    axes.grid(True, color="0.9")
fig.tight_layout()
for name, times in milliseconds.items():
    growth = np.log(times[-1] / times[-3]) / np.log(4)
    print(f"{name:15} from n = {lengths[-3]} to {lengths[-1]} grows like n^{growth:.1f}")

# %% [markdown]
# The slope of a line is the power of $n$. Self-attention does not grow like $n^2$ yet, because its
# projections add $4 n d^2$ operations, which table 1 omits. Flat lines are the cost of the call
# itself. The recurrent layer is the slowest because its $n$ small products follow one another.
#
# ## 11. The learning rate (5.3)
#
# $$\mathit{lrate} = d_\text{model}^{-0.5} \cdot
# \min(\mathit{step}^{-0.5},\ \mathit{step} \cdot \mathit{warmup}^{-1.5})$$
#
# The rate rises linearly for `warmup_steps` updates and then falls with the inverse square root of
# the step (*Noam's schedule*).

# %%
steps = np.arange(1, 20_001)
peaks = {
    (256, 4000): 9.8821e-4,
    (512, 4000): 6.9877e-4,  # the base model
    (512, 8000): 4.9411e-4,
    (1024, 4000): 4.9411e-4,  # the big model
}
fig, axes = plt.subplots(figsize=(7, 3.5))
styles = iter(("-", "--", "-.", ":"))
for (d_model, warmup_steps), peak in peaks.items():
    schedule = tt.NoamSchedule(d_model, warmup_steps)
    rates = np.array(schedule(steps - 1))  # Keras counts updates from 0
    label = f"d_model {d_model}, warm-up {warmup_steps}"
    axes.plot(steps, rates, next(styles), label=label)
    assert np.isclose(rates.max(), peak, rtol=1e-4) and rates.argmax() + 1 == warmup_steps
axes.set(xlabel="step", ylabel="learning rate")
axes.legend(frameon=False)
fig.tight_layout()

# %% [markdown]
# Twice the width divides all rates by $\sqrt{2}$. Twice the warm-up makes the peak later and lower.
#
# ## 12. Label smoothing (5.4)
#
# The true token gets the probability $1 - \epsilon$ (the paper has $\epsilon = 0.1$), and the $V-2$
# others share $\epsilon$, except padding.
#
# $$q_i = \begin{cases} 1 - \epsilon & i \text{ is the true token} \\ 0 & i \text{ is padding} \\
# \epsilon / (V - 2) & \text{otherwise} \end{cases}
# \qquad\qquad \mathrm{loss} = -\sum_i q_i \log p_i$$
#
# with $p$ the softmax of the logits. The gradient of the loss with respect to the logits is $p-q$,
# so $q$ can be read from it (left, for $\epsilon = 0.4$; the last label is padding). The right panel
# has the loss of a model that gives the true token the probability $p$ and three others equal shares
# of the rest.

# %%
vocabulary = ["<pad>", "a", "b", "c", "d"]
labels = np.array([[2, 1, 0]])
loss = tt.SmoothedCrossEntropy(label_smoothing=0.4, pad_id=0)
logits = tf.zeros((1, 3, 5))
with tf.GradientTape() as tape:
    tape.watch(logits)
    value = loss(labels, logits)  # the mean over the two real tokens
gradient = 2 * tape.gradient(value, logits)[0].numpy()  # of their sum
real = labels[0] != 0
assert not gradient[~real].any()
q = np.where(real[:, None], softmax(logits.numpy()[0]) - gradient, 0)
third = 0.4 / 3
expected = [[0, third, 0.6, third, third], [0, 0.6, third, third, third], [0, 0, 0, 0, 0]]
np.testing.assert_allclose(q, expected, atol=1e-6)


def losses_of(probabilities, label_smoothing):
    """The loss of each probability of the true token, `a`."""
    p = np.array(probabilities)[:, None]
    others = np.repeat((1 - p) / 3, 3, axis=1)
    logits = np.log(np.hstack([np.full_like(p, 1e-30), p, others])).astype("float32")
    loss = tt.SmoothedCrossEntropy(label_smoothing)  # `call` is without the mean over tokens
    return np.array(loss.call(np.ones((1, len(p)), int), logits[None]))[0]


fig, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2))
left.imshow(q, cmap="Greys", vmin=0, vmax=1)
for (row, column), probability in np.ndenumerate(q):
    colour = "white" if probability > 0.5 else "black"
    left.text(column, row, f"{probability:.2g}", ha="center", va="center", color=colour)
left.set_xticks(range(5), vocabulary)
left.set_yticks(range(3), [vocabulary[label] for label in labels[0]])
left.set(xlabel="token of the vocabulary", ylabel="true token")
probabilities = np.linspace(0.25, 0.999, 300)
for epsilon, style in ((0.0, "-"), (0.1, "--"), (0.4, "-.")):
    losses = losses_of(probabilities, epsilon)
    (line,) = right.plot(probabilities, losses, style, label=f"ε = {epsilon}")
    right.plot(probabilities[losses.argmin()], losses.min(), "o", color=line.get_color())
right.set(xlabel="predicted probability of the true token", ylabel="loss (nats)", ylim=(0, None))
right.legend(frameon=False)
fig.tight_layout()

# The least loss is the entropy of q, and what is above it KL(q ‖ p), for ε = 0.1.
entropy = -(0.9 * np.log(0.9) + 0.1 * np.log(0.1 / 3))
divergence = losses_of([1 / 4, 27 / 30, 99 / 102], 0.1) - entropy
np.testing.assert_allclose(divergence, [0.95135, 0, 0.05442], atol=2e-5)

# %% [markdown]
# With smoothing the loss is lowest (dot) at $p = 1-\epsilon$, so a model that is surer pays: "this
# hurts perplexity, as the model learns to be more unsure, but improves accuracy and BLEU score".
# The lowest loss is not 0 but the entropy of $q$, and the rest is the Kullback-Leibler divergence
# $\mathrm{KL}(q \parallel p) = \sum_i q_i \log (q_i / p_i)$.
#
# ## 13. Training: the copy task (5)
#
# The translation of three to ten letters is the same letters. A token is a letter with the space
# before it, written `▁`. As in the paper (5.1), a batch has a budget of tokens, not of sentences. The
# labels are the target with `</s>` at its end; the decoder's input is the target with `<s>` at its
# beginning (figure 1: "outputs (shifted right)"). So at each position the decoder predicts the next
# token from the true tokens before it, and the causal mask hides the answer.

# %%
corpus = tt.copy_task(num_train=2_000 if quick else 20_000, num_validation=200, num_test=200)
# 256 bytes, 4 special tokens, the space `▁`, and ten letters with it and without
tokenizer = tt.SentencePieceTokenizer.train(corpus.train.sources, vocab_size=281)
train, validation = (  # one tokenizer for both sides
    tt.TokenBatches.from_text(
        text, tokenizer, tokenizer, batch_tokens=512, max_length=32, seed=seed
    )
    for text, seed in ((corpus.train, 0), (corpus.validation, None))
)
inputs, labels = next(iter(train.dataset()))
print("source ", tokenizer.subwords(inputs["source_ids"][0].numpy()))
print("target ", tokenizer.subwords(inputs["target_ids"][0].numpy()))
print("labels ", tokenizer.subwords(labels[0].numpy()))

# %% [markdown]
# Adam, schedule and label smoothing are the paper's, with a shorter warm-up and all rates
# multiplied by 0.3. Training takes about a minute.

# %%
keras.utils.set_random_seed(0)
V = tokenizer.vocab_size
config = tt.TransformerConfig(
    V, V, num_layers=2, d_model=64, num_heads=4, d_ff=256, dropout_rate=0.0
)
model = tt.Transformer(config)
print(f"{model.count_params():,} weights")
schedule = tt.NoamSchedule(config.d_model, warmup_steps=100, factor=0.3)
model.compile(
    optimizer=keras.optimizers.Adam(schedule, beta_1=0.9, beta_2=0.98, epsilon=1e-9),
    loss=tt.SmoothedCrossEntropy(0.1),
    metrics=[tt.TokenAccuracy()],
)
updates_an_epoch, epochs = (10, 2) if quick else (100, 10)
history = model.fit(
    train.dataset(),
    validation_data=validation.dataset(num_epochs=1),
    steps_per_epoch=updates_an_epoch,
    epochs=epochs,
    shuffle=False,  # `TokenBatches` has shuffled them
    verbose=0,
).history

floor = -(0.9 * np.log(0.9) + 0.1 * np.log(0.1 / (V - 2)))
fig, (left, right) = plt.subplots(1, 2, figsize=(9, 3))
updates = updates_an_epoch * np.arange(1, 1 + epochs)
for axes, name in ((left, "loss"), (right, "accuracy")):
    axes.plot(
        updates, history[name], "s--", markersize=4, label="training, mean since the last point"
    )
    axes.plot(updates, history[f"val_{name}"], "o-", markersize=4, label="validation")
    axes.set(xlabel="updates", ylabel=name, ylim=(0, None))
left.axhline(floor, color="0.5", linestyle=":", label="entropy of the smoothed labels")
left.legend(frameon=False, fontsize=8)
fig.tight_layout()

# %% [markdown]
# The loss ends near the least that is possible (section 12). Now the model translates new sentences
# without a true target: it takes the most probable token, gets it as its next input, and so on until
# `</s>` (greedy search; the paper's beam search, 6.1, is `translator(texts, beam_size=4)`). The last
# sentence is longer than any in training: the paper hopes that sinusoids "may allow the model to
# extrapolate" (3.5).

# %%
translator = tt.Translator.from_model(model, tokenizer, tokenizer, tt.Search(max_length=32))
copies = translator(list(corpus.test.sources))
exact = sum(copy == source for copy, source in zip(copies, corpus.test.sources, strict=True))
print(f"validation loss {history['val_loss'][-1]:.3f}; the entropy of the labels is {floor:.3f}")
print(f"{exact} of {len(copies)} copies are exact, such as {copies[0]}")
longer = "c f a j b e h d g i c a j f b"
print(f"{longer} becomes {translator(longer)}")
if not quick:
    assert exact >= 0.95 * len(copies)

# %% [markdown]
# It does not extrapolate here: soon after the positions that training has seen, it loses its place, and
# it does not find the end.
#
# ## 14. What the heads attend to
#
# On request a model returns its attention weights: `encoder` and `decoder` are the self-attentions,
# `cross` is the encoder-decoder attention. A row of panels is a layer. The target of this new
# sentence is given, as in training, and the predictions are printed.

# %%
sentence = "b a d c a g e h"
assert sentence not in set(corpus.train.sources), "choose one that training has not seen"
(ids,) = tokenizer.encode([sentence])
source_ids = np.array([[*ids, tokenizer.eos_id]])
target_ids = np.array([[tokenizer.bos_id, *ids]])
logits, attention_weights = model((source_ids, target_ids), return_attention_scores=True)
for name, layers in attention_weights.items():
    print(f"{name:8}", [tuple(weights.shape) for weights in layers])


def letters(ids):
    return [token.replace("▁", "") for token in tokenizer.subwords(ids)]


source_tokens, target_tokens = letters(source_ids[0]), letters(target_ids[0])
predicted_tokens = letters(np.argmax(logits[0], axis=-1))
print("predicted:", *predicted_tokens)

encoder, decoder, cross = (
    [weights[0] for weights in attention_weights[name]] for name in ("encoder", "decoder", "cross")
)
show.plot_heads(encoder, source_tokens, title="self-attention of the encoder")

# %%
show.plot_heads(decoder, target_tokens, title="masked self-attention of the decoder")

# %%
show.plot_heads(
    cross, target_tokens, source_tokens, title="encoder-decoder attention: to the source"
)

# %% [markdown]
# The decoder's weights are triangles, by the causal mask. The encoder-decoder attention is a
# diagonal in nearly every head: it looks at the letter that comes next. So with rows named after the
# predicted tokens, the mean of these heads is an alignment of source and target. A red frame marks
# the largest weight of a row.

# %%
mean = np.mean([np.mean(weights, axis=0) for weights in cross], axis=0)  # (T, S)
if not quick:
    diagonal = (mean.argmax(axis=-1) == np.arange(len(source_tokens))).all()
    assert diagonal, "the model knows 3 to 10 of the letters a to j, with spaces between"
show.plot_alignment(mean, source_tokens, predicted_tokens, title="mean of all heads and layers")

# %% [markdown]
# Nobody told the model that letters correspond: it found that from pairs of sequences.
#
# ## Further
#
# [01_train_a_translator](01_train_a_translator.ipynb) translates German,
# [03_decode_and_serve](03_decode_and_serve.ipynb) searches with a beam and serves, and
# [04_from_recurrence_to_attention](04_from_recurrence_to_attention.ipynb) has what came before and
# after. [docs/glossary.md](../docs/glossary.md) maps the paper's terms to classes and files, and
# [docs/code.md](../docs/code.md) follows a training step.
