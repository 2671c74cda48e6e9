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
# # Train a translator
#
# From parallel text to a SavedModel that translates, in plain Keras: data, tokenizer, model,
# `model.compile`, `model.fit`, curves, translations, SavedModel. Everything runs offline, on a CPU,
# in a few minutes.

# %%
import os
import tempfile

import keras
import matplotlib.pyplot as plt

import tf_transformer as tt

# The tests run this notebook with little training; its translations are poor then.
quick = "TF_TRANSFORMER_QUICK" in os.environ
keras.utils.set_random_seed(0)

# %% [markdown]
# ## Data
#
# The phrasebook is made by a grammar: German and English sentences with real differences of order.
# For your own text: `tt.read_parallel("train.de", "train.en")`.

# %%
corpus = tt.phrasebook(num_train=2_000 if quick else 20_000)
for german, english in list(corpus.train)[:5]:
    print(f"{german}  →  {english}")

# %% [markdown]
# ## Tokenizer
#
# SentencePiece learns which pieces words are made of, here one vocabulary for both languages. What
# it does not know becomes bytes, so no character is ever lost.

# %%
tokenizer = tt.SentencePieceTokenizer.train(
    [*corpus.train.sources, *corpus.train.targets], vocab_size=1_000 if quick else 2_000
)
for text in ("Der Zug kommt um halb drei an.", "Ein Schmetterling 🦋"):
    (ids,) = tokenizer.encode([text])
    print(tokenizer.subwords(ids), "→", *tokenizer.decode([ids]))

# %% [markdown]
# ## Batches
#
# A batch is a budget of tokens, not a number of sentences; sentences of like length go together, so
# that little is padding. An element is what Keras expects: inputs and labels. The decoder's input
# begins with the begin id, and the labels are the same tokens one place on.

# %%
train = tt.TokenBatches.from_text(corpus.train, tokenizer, tokenizer, seed=0)
validation = tt.TokenBatches.from_text(corpus.validation, tokenizer, tokenizer)
print(f"{len(train)} batches an epoch, {train.padding_fraction:.1%} padding")
inputs, labels = next(iter(train.dataset()))
print({name: tuple(ids.shape) for name, ids in inputs.items()}, tuple(labels.shape))

# %% [markdown]
# ## Model
#
# The Transformer of "Attention is all you need" (Vaswani et al. 2017), in the size for small
# corpora.

# %%
config = tt.preset("tiny", tokenizer.vocab_size, tokenizer.vocab_size)
model = tt.Transformer(config)
print(f"{model.count_params():,} parameters")

# %% [markdown]
# Noam's schedule warms up and then decays; the loss smooths labels and counts real tokens only.

# %%
schedule = tt.NoamSchedule(config.d_model, warmup_steps=300, factor=0.7)
model.compile(
    optimizer=keras.optimizers.Adam(schedule, beta_1=0.9, beta_2=0.98, epsilon=1e-9),
    loss=tt.SmoothedCrossEntropy(),
    metrics=[tt.TokenAccuracy(), tt.Perplexity()],
)

fig, axis = plt.subplots(figsize=(5, 2.5))
axis.plot([float(schedule(step)) for step in range(2_000)])
axis.set(xlabel="step", ylabel="learning rate")
fig.tight_layout()

# %% [markdown]
# ## Training
#
# `TranslationBleu` translates the validation sentences after each epoch, with the very graph that
# is saved below.

# %%
translator = tt.Translator.from_model(model, tokenizer, tokenizer)
history = model.fit(
    train.dataset(),
    steps_per_epoch=10 if quick else len(train),
    epochs=2 if quick else 8,
    validation_data=validation.dataset(num_epochs=1),
    callbacks=[tt.TranslationBleu(translator, corpus.validation)],
    shuffle=False,  # the batches are in their order already
    verbose=2,
)

# %%
fig, (left, right) = plt.subplots(1, 2, figsize=(9, 3))
epochs = range(1, len(history.epoch) + 1)
left.plot(epochs, history.history["loss"], label="training")
left.plot(epochs, history.history["val_loss"], label="validation")
left.set(xlabel="epoch", ylabel="loss")
left.legend()
right.plot(epochs, history.history["val_bleu"], color="tab:green")
right.set(xlabel="epoch", ylabel="validation BLEU", ylim=(0, 100))
fig.tight_layout()

# %% [markdown]
# ## Translations
#
# Of sentences that training never saw.

# %%
sources = list(corpus.test.sources)
translations = translator(sources)
for source, translation, reference in list(
    zip(sources, translations, corpus.test.targets, strict=True)
)[:8]:
    print(f"{source}\n    {translation}\n    {reference}")
scores = tt.score(translations, corpus.test.targets)
print(f"\nBLEU {scores.bleu}, chrF {scores.chrf} ({scores.signature})")

# %% [markdown]
# ## SavedModel
#
# Text in, text out: tokenizer, model and search in one graph, which TensorFlow Serving runs and
# which loads where this package is not installed.

# %%
path = translator.save(os.path.join(tempfile.mkdtemp(), "phrasebook"))
print(sorted(os.listdir(path)))

# %%
loaded = tt.Translator.load(path)
print(loaded("Wo ist der Bahnhof?"))
assert loaded(sources[:20]) == translations[:20]
