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
# `model.compile`, `model.fit`, curves, translations, SavedModel. Everything runs offline, on a
# CPU, in about ten minutes. `tf-transformer train` does the same from the command line, with settings that it
# chooses for your corpus and your time; here each step is in view.

# %%
import os
import tempfile

import keras
import matplotlib.pyplot as plt

import tf_transformer as tt
import tf_transformer.visualization as show

# `make notebooks` runs this with little training; the translations are poor then.
quick = "TF_TRANSFORMER_QUICK" in os.environ
keras.utils.set_random_seed(0)

# %% [markdown]
# ## Data
#
# Most of the phrasebook was drawn from a grammar: German and English sentences whose word order
# differs. The rest is what people say every day, some of it in small letters.

# %%
corpus = tt.phrasebook(num_train=2_000 if quick else 20_000)
for german, english in list(corpus.train)[:5]:
    print(f"{german}  →  {english}")

# %% [markdown]
# To train on your own text, change this cell; nothing below it knows where the sentences come from.
# Line n of one file is the translation of line n of the other, plain or gzip. TFDS reads a data set
# that is prepared on this machine, and uses the network only with `download=True`.

# %%
mine = None  # "my files" or "TFDS"
if mine == "my files":
    corpus = tt.Corpus(
        "mine",
        tt.read_parallel("train.de", "train.en"),
        tt.read_parallel("validation.de", "validation.en"),
        tt.read_parallel("test.de", "test.en"),
    )
elif mine == "TFDS":
    corpus = tt.load_tfds("ted_hrlr_translate/pt_to_en", data_dir="tensorflow_datasets")

# %% [markdown]
# How long the sentences are says how long a model must look, and what a batch can hold.

# %%
fig, axis = plt.subplots(figsize=(5, 2.5))
words = [[len(text.split()) for text in side] for side in zip(*corpus.train, strict=True)]
bins = range(1, max(map(max, words)) + 2)
axis.hist(words, bins, label=["source", "target"], color=["0.25", "tab:orange"], align="left")
axis.set(xlabel="words in a sentence", ylabel="training sentences")
axis.legend(frameon=False)
fig.tight_layout()

# %% [markdown]
# ## Tokenizer
#
# SentencePiece learns the subwords that words are made of, here one vocabulary for both languages.
# A character outside the vocabulary becomes bytes, so no character is lost.

# %%
tokenizer = tt.SentencePieceTokenizer.train(
    [text for pair in corpus.train for text in pair], vocab_size=1_000 if quick else 2_000
)
for text in ("Der Zug kommt um halb drei an.", "Ein Schmetterling 🦋"):
    (ids,) = tokenizer.encode([text])
    print(tokenizer.subwords(ids), "→", *tokenizer.decode([ids]))

# %% [markdown]
# ## Batches
#
# A batch has a budget of tokens, not a number of sentences; sentences of similar length are batched
# together, so that little is padding. An element is what Keras expects: inputs and labels. The
# decoder's input begins with the begin token, and the labels are the same tokens shifted by one.

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
# The learning rate warms up, stays, and falls to zero after the last update, which leaves the weights at
# rest. The paper's schedule (section 5.3) falls with the inverse square root of the step and has no
# end; `tt.NoamSchedule` is that one, drawn here with the same peak. The loss smooths labels (section
# 5.4) and counts real tokens only.

# %%
epochs, steps = (2, 10) if quick else (8, len(train))
schedule = tt.TrapezoidSchedule(3e-3, total_steps=epochs * steps, warmup_steps=epochs * steps // 10)
model.compile(
    optimizer=tt.Adam(schedule),
    loss=tt.SmoothedCrossEntropy(),
    metrics=[tt.TokenAccuracy(), tt.Perplexity()],
)

warmup = schedule.warmup_steps
noam = tt.NoamSchedule(config.d_model, warmup, factor=3e-3 * (config.d_model * warmup) ** 0.5)
updates = range(epochs * steps)
fig, axis = plt.subplots(figsize=(7, 3))
axis.plot(updates, [float(schedule(step)) for step in updates], label="trapezoid")
axis.plot(updates, [float(noam(step)) for step in updates], "--", label="Noam")
axis.set(xlabel="step", ylabel="learning rate")
axis.legend(frameon=False)
fig.tight_layout()

# %% [markdown]
# ## Training
#
# `TranslationBleu` translates the validation sentences after each epoch, with the graph that is
# saved below.

# %%
translator = tt.Translator.from_model(model, tokenizer, tokenizer)
history = model.fit(
    train.dataset(),
    steps_per_epoch=steps,
    epochs=epochs,
    validation_data=validation.dataset(num_epochs=1),
    callbacks=[tt.TranslationBleu(translator, corpus.validation)],
    shuffle=False,  # `TokenBatches` has shuffled them
    verbose=2,
)

# %%
passes = range(1, epochs + 1)
fig, (left, middle, right) = plt.subplots(1, 3, figsize=(10, 3), layout="constrained")
left.plot(passes, history.history["loss"], "o--", label="training")
left.plot(passes, history.history["val_loss"], "o-", label="validation")
left.set(title="loss", xlabel="epoch")
left.legend(frameon=False)
middle.plot(passes, history.history["val_bleu"], "o-")
middle.set(title="validation BLEU", xlabel="epoch", ylim=(0, 100))
right.semilogy(passes, history.history["val_perplexity"], "o-")
right.set(title="validation perplexity", xlabel="epoch")
for axis in (left, middle, right):
    axis.grid(True, color="0.9")

# %% [markdown]
# The training loss is that of a model with dropout, averaged over the epoch while it learns, so it
# may lie above the validation loss. In the last epochs, while the rate falls, both still improve.
# They cannot reach 0: labels are smoothed, and the least loss is their entropy
# ([section 12](02_inside_the_transformer.ipynb)). Perplexity is measured without smoothing.

# %% [markdown]
# ## Translations
#
# Of sentences that training never saw: the source, its translation, and the reference. A BLEU near
# 100 says that the sentences of a phrasebook can be learned; real text is another matter.

# %%
sources = list(corpus.test.sources)
translations = translator(sources)
for source, translation, reference in list(
    zip(sources, translations, corpus.test.targets, strict=True)
)[6:14]:
    print(f"{source}\n    {translation}\n    {reference}")
scores = tt.corpus_score(translations, corpus.test.targets)
print(f"\nBLEU {scores.bleu}, chrF {scores.chrf} ({scores.signature})")

# %% [markdown]
# Which source token each token of a translation looks at, by the attention of the last layer but
# one. German puts its verb last where English does not: the frames leave the diagonal there.

# %%
pairs = list(zip(sources, translations, strict=True))
example = min(pairs, key=lambda pair: abs(len(pair[0].split()) - 9))
(aligned,) = translator.align([example[0]], [example[1]])
show.plot_alignment(aligned.attention, aligned.source_subwords, aligned.target_subwords)

# %% [markdown]
# ## SavedModel
#
# Text in, text out: tokenizer, model and search in one graph, which TensorFlow Serving runs and
# which loads without this package.

# %%
path = tt.export_saved_model(translator, os.path.join(tempfile.mkdtemp(), "phrasebook"))
print(sorted(os.listdir(path)))

# %%
loaded = tt.Translator.load(path)
print(loaded("Wo ist der Bahnhof?"))
assert loaded(sources[:20]) == translations[:20]

# %% [markdown]
# Next: [what is inside](02_inside_the_transformer.ipynb), [how it searches and how it is
# served](03_decode_and_serve.ipynb), [what was there before](04_from_recurrence_to_attention.ipynb).
