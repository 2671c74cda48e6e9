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
# # From recurrence to attention
#
# Six architectures, from the recurrent encoder-decoder of 2014 to a single stack under a mask, on
# one small corpus and through the same few lines, in about a quarter of an hour. What changes from
# one to the next is how the decoder learns about the source.
#
# So short a race shows what attention is worth. It does not show which of those that attend is
# best: after some hundred updates Bahdanau's model leads, which learns most from each. The
# Transformer's claim (Vaswani et al., table 2) is about cost, so it gets a second race below: with
# two layers and twice the updates it is nearly as good as Bahdanau's model, in less time.
#
# | | paper | the decoder knows of the source |
# |---|---|---|
# | `sutskever` | Sutskever et al. 2014 | the last state of an LSTM |
# | `cho` | Cho et al. 2014 | the last state of a GRU, again at every step |
# | `bahdanau` | Bahdanau et al. 2015 | all states, by additive attention |
# | `luong` | Luong et al. 2015 | all states, by multiplicative attention |
# | `transformer` | Vaswani et al. 2017 | all states, which attention made too |
# | `prefix_lm` | Dong et al. 2019 | it is in the same stack, before the target |

# %%
import dataclasses
import os
import random
import time

import keras
import matplotlib.pyplot as plt
import numpy as np
from matplotlib import ticker

import tf_transformer as tt
import tf_transformer.visualization as show

# `make notebooks` runs this with little training; the translations are poor then.
quick = "TF_TRANSFORMER_QUICK" in os.environ
ARCHITECTURES = ("sutskever", "cho", "bahdanau", "luong", "transformer", "prefix_lm")

# %% [markdown]
# ## A corpus with short and long sources
#
# The built-in phrasebook has short sentences, and the story is about long ones. So a text here is
# one to three sentences in a row, German to English. No sentence of the test occurs in training.

# %%
phrases = tt.phrasebook(num_train=2_000 if quick else 12_000)


def join(text, seed):
    """Puts one to three sentences in a row, with their translations."""
    numbers, pairs, joined = random.Random(seed), iter(text), []
    while len(rows := list(zip(range(numbers.randint(1, 3)), pairs, strict=False))) > 0:
        joined.append([" ".join(side) for side in zip(*(pair for _, pair in rows), strict=True)])
    return tt.ParallelText(*(tuple(side) for side in zip(*joined, strict=True)))


train, validation, test = (
    join(text, seed) for seed, text in enumerate((phrases.train, phrases.validation, phrases.test))
)
print(f"{len(train):,} texts to train on; one of them:")
print(*list(train)[3], sep="\n")

# %%
tokenizer = tt.SentencePieceTokenizer.train([*train.sources, *train.targets], vocab_size=1_500)
batches = tt.TokenBatches.from_text(train, tokenizer, tokenizer, batch_tokens=1_024, seed=0)
validation_batches = tt.TokenBatches.from_text(validation, tokenizer, tokenizer)
print(f"{len(batches)} batches an epoch")

# %% [markdown]
# ## The same few lines for each
#
# A name gives the configuration, the configuration a `keras.Model`, and from then on nobody asks
# which architecture it is: loss, schedule, training, search and export are the same. The presets
# `tiny` have one to two million parameters each here.

# %%
epochs = 1 if quick else 3
steps = 4 if quick else len(batches)


def train_one(name, epochs, **changes):
    """A trained model and its history; `changes` are those of the preset."""
    keras.utils.set_random_seed(0)
    config = tt.preset("tiny", tokenizer.vocab_size, tokenizer.vocab_size, architecture=name)
    model = tt.build_model(dataclasses.replace(config, **changes))
    schedule = tt.TrapezoidSchedule(3e-3, total_steps=epochs * steps, warmup_steps=60)
    model.compile(tt.Adam(schedule), loss=tt.SmoothedCrossEntropy(), metrics=[tt.Perplexity()])
    history = model.fit(
        batches.dataset(), epochs=epochs, steps_per_epoch=steps, shuffle=False, verbose=0,
        validation_data=validation_batches.dataset(num_epochs=1),
    )  # fmt: skip
    return model, history.history


models, histories, seconds = {}, {}, {}
for name in ARCHITECTURES:
    began = time.monotonic()
    models[name], histories[name] = train_one(name, epochs)
    seconds[name] = time.monotonic() - began
    perplexity = histories[name]["val_perplexity"][-1]
    print(f"{name:12} {seconds[name]:4.0f} s, validation perplexity {perplexity:.2f}")

# %%
figure, axes = plt.subplots(figsize=(7, 3.5))
for (name, history), marker in zip(histories.items(), "os^Dv*", strict=True):
    axes.plot(range(1, epochs + 1), history["val_perplexity"], marker=marker, label=name)
axes.set(xlabel="epoch", ylabel="validation perplexity", yscale="log")
axes.set_xticks(range(1, epochs + 1))
axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
axes.yaxis.set_major_formatter(ticker.ScalarFormatter())
axes.yaxis.set_minor_formatter(ticker.NullFormatter())
axes.legend(frameon=False)
figure.tight_layout()

# %% [markdown]
# The axis is logarithmic. All see the same batches in the same order, so the curves compare what
# an architecture learns from equal text. Equal *time* is another race. With two layers in encoder
# and decoder, instead of four, and without dropout, an update of the Transformer takes less than two
# thirds of the time, so there is time for twice as many:

# %%
began = time.monotonic()
shallow = "transformer, 2 layers"
models[shallow], history = train_one("transformer", 2 * epochs, num_layers=2, dropout_rate=0.0)
seconds[shallow] = time.monotonic() - began
perplexities = " → ".join(f"{value:.2f}" for value in history["val_perplexity"])
print(f"{seconds[shallow]:.0f} s, validation perplexity {perplexities}")

# %% [markdown]
# ## What they translate
#
# Greedy search, through the same graph that an export would have. Some of the texts have two or three
# sentences. A translator would translate these one by one, and no source would be long; with
# `by_sentence=False` a text is one source.

# %%
search = tt.Search(by_sentence=False)
translators = {
    name: tt.Translator.from_model(model, tokenizer, tokenizer, search)
    for name, model in models.items()
}
translations = {name: translate(test.sources) for name, translate in translators.items()}
scores = {name: tt.corpus_score(texts, test.targets) for name, texts in translations.items()}

print(f"{'':21} {'parameters':>11} {'seconds':>8} {'BLEU':>6} {'chrF':>6}")
for name, score in scores.items():
    count = models[name].count_params()
    print(f"{name:21} {count:11,} {seconds[name]:8.0f} {score.bleu:6.1f} {score.chrf:6.1f}")

# %%
example = max(range(40), key=lambda i: len(test.sources[i].split()))
print(f"source\n    {test.sources[example]}\nreference\n    {test.targets[example]}")
for name, texts in translations.items():
    print(f"{name}\n    {texts[example]}")

# %% [markdown]
# ## Where a single vector is not enough
#
# Sutskever et al. read the source, *reversed*, into the states of a deep LSTM, and a second LSTM
# starts from them:
#
# $$h_t = \mathrm{LSTM}(\tilde x_t, h_{t-1}), \qquad s_0 = h_S, \qquad
#   s_t = \mathrm{LSTM}(y_{t-1}, s_{t-1}), \qquad \tilde x = x_{S-1}, \ldots, x_1, x_S$$
#
# where $x_S$ is the end of the sentence.
#
# Reversed, the first words of source and target are near each other, and gradients have a short
# way between them (section 3.3). Cho et al. show a summary $c = \tanh(V h_S)$ to every step of the
# decoder instead: $s_t = \mathrm{GRU}([y_{t-1}; c], s_{t-1})$. In both the source must fit into a vector
# whose size does not grow with it. Figure 2 of Bahdanau et al. shows what comes of it: BLEU falls
# with the length of the source, and falls less with attention. The same figure for ours:

# %%
words = np.array([len(source.split()) for source in test.sources])
ranges = [(1, 5), (6, 8), (9, 12), (13, 17), (18, 99)]
groups = [np.flatnonzero((words >= low) & (words <= high)) for low, high in ranges]
labels = [f"{low}–{high}" for low, high in ranges[:-1]] + [f"{ranges[-1][0]} or more"]


def bleu_of(texts, rows):
    """BLEU of some sentences."""
    return tt.corpus_score([texts[i] for i in rows], [test.targets[i] for i in rows]).bleu


places = [f"{label}\nn = {len(rows)}" for label, rows in zip(labels, groups, strict=True)]
figure, axes = plt.subplots(figsize=(9, 4))
for (name, texts), marker in zip(translations.items(), "os^Dv<>", strict=False):
    axes.plot(places, [bleu_of(texts, rows) for rows in groups], marker=marker, label=name)
axes.set(xlabel="source length (words)", ylabel="BLEU", ylim=(0, None))
axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
figure.tight_layout()

# %% [markdown]
# Without attention BLEU falls as sources grow; with attention it falls less. The order among those that
# attend is one of few updates, from one seed, with one learning rate for all: the Transformer of four
# layers is far behind `bahdanau`, and that of two, with twice the updates, is beside it after half of
# its time. Their sizes differ, as the table above shows, and the shortest group has few sentences.
# [docs/lineage.md](../docs/lineage.md) has other numbers from other text, and what 45 minutes do for
# the Transformer.

# %% [markdown]
# ## Attention, three ways
#
# A context $c_t = \sum_j \alpha_{tj} h_j$ of all states $h_j$ of the source, with weights
# $\alpha_{tj} = \mathrm{softmax}_j(e_{tj})$. The score $e_{tj}$ is what differs:
#
# | | score | asks with | class |
# |---|---|---|---|
# | Bahdanau et al., appendix A.1.2 | $v^\top \tanh(W s_{t-1} + U h_j)$ | the previous state | `AdditiveAttention` |
# | Luong et al., section 3.1 | $s_t^\top h_j$ or $s_t^\top W h_j$ | the present state | `DotAttention`, `GeneralAttention` |
# | Vaswani et al., section 3.2 | $(W_Q s_t)^\top (W_K h_j) / \sqrt{d_k}$, several heads | a layer's output | `CrossAttention` |
#
# The layers work alone, and return their weights. Here additive attention of one query over five
# states, beside the formula (with a bias, as `keras.layers.Dense` has):

# %%
layer = tt.AdditiveAttention(units=16)
query, states = keras.random.normal((1, 1, 8)), keras.random.normal((1, 5, 12))
context, weights = layer(query, states, return_attention_scores=True)

w, u, bias, v = (
    np.array(weight)
    for weight in (
        layer.query_projection.kernel,
        layer.key_projection.kernel,
        layer.key_projection.bias,
        layer.score_projection.kernel,
    )
)
scores_by_hand = (np.tanh(query @ w + states @ u + bias) @ v)[0, :, 0]
weights_by_hand = np.exp(scores_by_hand) / np.exp(scores_by_hand).sum()
print("layer  ", np.round(np.array(weights)[0, 0], 4))
print("by hand", np.round(weights_by_hand, 4))
np.testing.assert_allclose(weights[0, 0], weights_by_hand, atol=1e-6)

# %% [markdown]
# What each model looks at while it writes the same reference translation. Rows are what is written,
# columns what is read; a red frame marks where a row looks most.

# %%
chosen = min(range(len(words)), key=lambda i: abs(words[i] - 8))
pair = test.sources[chosen], test.targets[chosen]
aligned = {
    name: translators[name].align([pair[0]], [pair[1]])[0]
    for name in ("bahdanau", "luong", "transformer")
}
first = aligned["bahdanau"]
show.plot_alignments(
    {name: found.attention for name, found in aligned.items()},
    first.source_subwords,
    first.target_subwords,
)

# %% [markdown]
# All three look at the verb, which German puts last, while they write its translation. Other rows are
# less plain: a weight says which state predicts the next token, and that state knows its neighbours
# in the source too.

# %% [markdown]
# ## One stack, and a mask
#
# The prefix language model has no encoder and no cross-attention. Source and target stand in one
# row, and the mask says who sees whom: the source all of the source, the target the source and its
# own past (Dong et al. 2019, section 2.3). With the source hidden from itself in the same way it
# would be a causal language model.

# %%
tokens = ["wo", "ist", "er", "?", "where", "is", "he", "?"]
show.plot_mask(tt.prefix_mask(np.array([[0, 0, 0, 0, 1, 1, 1, 1]]))[0], tokens)

# %% [markdown]
# ## Further
#
# - `tf-transformer train --architecture bahdanau …` trains any of them from files, with settings
#   that fit your corpus, and `export` and `serve` work for each.
# - [docs/lineage.md](../docs/lineage.md) has the comparison on real text, and where we differ from
#   the papers.
# - [02_inside_the_transformer](02_inside_the_transformer.ipynb) takes the last step apart.
