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
# # Decode and serve
#
# How a trained model becomes a translation, and how a translation gets to those who ask for it:
# greedy search, beam search with its tree, the length penalty, the KV cache, n-best lists; then
# the SavedModel, its checks, a server, `curl` and the Python client. Everything runs offline, on a
# CPU, in a few minutes. [The first notebook](01_train_a_translator.ipynb) explains the training.

# %%
import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

import keras
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

import tf_transformer as tt
from tf_transformer.serving import Client

# %config InlineBackend.figure_formats = ["png"]

# CI sets this, to run all cells with hardly any training; the translations are poor then.
quick = "TF_TRANSFORMER_QUICK" in os.environ
keras.utils.set_random_seed(0)
tf.get_logger().setLevel("ERROR")

# %% [markdown]
# ## A model to ask
#
# German to English on the built-in phrasebook, with two layers and small batches so that it takes
# two minutes. It makes some mistakes still, which is good for what follows: a search has
# nothing to decide where the model is sure of everything. A section below needs the marks.

# %%
corpus = tt.phrasebook(num_train=2_000 if quick else 20_000)
marks = tt.Marks(4)
tokenizer = tt.SentencePieceTokenizer.train(
    [*corpus.train.sources, *corpus.train.targets],
    vocab_size=2_000,
    character_coverage=1.0,
    user_symbols=marks.symbols.all,
)
batches = tt.TokenBatches.from_text(
    corpus.train,
    tokenizer,
    tokenizer,
    batch_tokens=1024,
    seed=0,
    marks=marks,
    mark_practice=0.15,  # the part of the sentences in which they stand for words
)

config = tt.preset("tiny", tokenizer.vocab_size, tokenizer.vocab_size)
model = tt.Transformer(dataclasses.replace(config, num_layers=2, dropout_rate=0.0))
epochs, updates = (1, 10) if quick else (5, 125)  # updates in an epoch
model.compile(
    optimizer=tt.Adam(tt.TrapezoidSchedule(3e-3, epochs * updates, warmup_steps=50)),
    loss=tt.SmoothedCrossEntropy(),
    metrics=[tt.TokenAccuracy()],
)
history = model.fit(
    batches.dataset(), steps_per_epoch=updates, epochs=epochs, shuffle=False, verbose=0
)
print(f"{model.count_params():,} parameters, accuracy {history.history['accuracy'][-1]:.1%}")

# %% [markdown]
# `Translator` has the whole way from text to text in one graph. For now it only finds a sentence
# that is worth a closer look: the shortest one that it has not seen in training and that beam search
# translates right, without a length penalty and with the one that the translator has, and greedy
# search does not. (There are sentences of the other kind too.) The penalty has its own section below.

# %%
translator = tt.Translator.from_model(
    model, tokenizer, tokenizer, tt.Search(beam_size=4, length_penalty=1.0)
)
sources, references = zip(*corpus.validation, *corpus.test, strict=True)
if quick:
    sources, references = sources[:20], references[:20]
by_greedy = translator(sources, beam_size=1)
by_beam = translator(sources, beam_size=3, length_penalty=0.0)

rows = zip(sources, references, by_greedy, by_beam, translator(sources), strict=True)
better = [
    source for source, right, greedy, *beams in rows if beams == [right, right] and greedy != right
]
sentence = min(better, key=len, default=min(sources, key=len))
number = sources.index(sentence)
print("source   ", sentence)
print("greedy   ", by_greedy[number])
print("beam     ", by_beam[number])
print("reference", references[number])

# %% [markdown]
# ## Greedy search, step by step
#
# The model gives the probability of each next token (Vaswani et al. 2017, section 3), and greedy
# search takes the most probable one:
#
# $$y_t = \operatorname{argmax}_y P(y \mid y_1, \dots, y_{t-1}, X)$$
#
# A model translates by two methods. `start_decoding` encodes the source, once; `decode_step` takes
# the newest token and what the steps before have computed, the cache, and returns the logits of
# the next token. All searches of the package ask nothing more of a model, so they work with any
# architecture. A translation ends with the token `</s>`, or at a limit: the package stops at twice
# the source's tokens and ten, so that no translation goes on forever.

# %%
(source_tokens,) = tokenizer.encode([sentence])
source_ids = tf.constant([[*source_tokens, tokenizer.eos_id]])
limit = min(2 * len(source_tokens) + 10, 128)

cache = model.start_decoding(source_ids)
token, greedy_ids, steps = tokenizer.bos_id, [], []
for index in range(limit + 1):
    logits, cache = model.decode_step(tf.constant([token]), index, cache)
    probabilities = tf.nn.softmax(logits[0]).numpy()
    best = np.argsort(-probabilities)[:5]
    steps.append((tokenizer.subwords(best), probabilities[best]))
    token = int(best[0])
    if token == tokenizer.eos_id or index == limit:
        break
    greedy_ids.append(token)

print(*tokenizer.decode([greedy_ids]))

# %% [markdown]
# That is all of greedy search. `tt.greedy_search` is the same for many sentences at once, inside a
# TensorFlow graph.

# %%
special_ids = {name: getattr(tokenizer, name) for name in ("pad_id", "bos_id", "eos_id")}
found = tt.greedy_search(
    model.decode_step, model.start_decoding(source_ids), [limit], **special_ids
)
assert found.ids[0, 0].numpy().tolist() == greedy_ids

# %%
steps = steps[:24]
fig, axes = plt.subplots(figsize=(0.85 * len(steps) + 0.6, 2.6), dpi=80)
probabilities = np.array([step for _, step in steps]).T
axes.imshow(probabilities, cmap="Blues", vmin=0, vmax=1, aspect="auto")
for column, (subwords, step) in enumerate(steps):
    for rank, (subword, probability) in enumerate(zip(subwords, step, strict=True)):
        color = "white" if probability > 0.6 else "black"
        text = f"{subword}\n{probability:.2f}"
        axes.text(column, rank, text, ha="center", va="center", fontsize=8, color=color)
axes.set(xlabel="step", ylabel="rank", title="The five most probable tokens of each step")
axes.set(xticks=range(len(steps)), yticks=range(5), yticklabels=range(1, 6))
fig.tight_layout()

# %% [markdown]
# Each column is a step, and the upper row is what greedy search takes. `▁` is a space before a
# word. Where two tokens are almost equally probable, greedy search takes one of them, and cannot take
# it back when the next steps show that the other was right.

# %% [markdown]
# ## Beam search, step by step
#
# The probability of a translation is the product of those of its tokens:
#
# $$\log P(Y \mid X) = \sum_t \log P(y_t \mid y_1, \dots, y_{t-1}, X)$$
#
# The best translation need not begin with the most probable token. Beam search
# (Sutskever et al. 2014, section 3.2; here with $K$ = `beam_size`) keeps the $K$ best beginnings,
# its live hypotheses. In each step it
#
# 1. continues each live hypothesis with every token, and takes the $2K$ best continuations;
# 2. puts those of the first $K$ that end with `</s>` aside, as finished;
# 3. keeps the $K$ best of those that do not end.
#
# It stops at the limit, or when $K$ hypotheses are finished and the best live one would not be among
# the $K$ best if it were complete. The finished ones are ranked by a score, which divides by a power
# of the length; the section on it says why. Here the power is 0, so the score is $\log P$.
#
# The search below has this in about thirty lines. It keeps what it drops too, for the tree below.


# %%
def score_of(log_prob, length, length_penalty):
    return log_prob / ((5 + length) / 6) ** length_penalty


def search_beam(source_ids, limit, beam_size, length_penalty):
    """Finished hypotheses, best first, and dropped ones; of each its ids and log-probabilities."""
    cache = model.start_decoding(source_ids)
    live, finished, dropped = [((), ())], [], []

    def score(hypothesis):
        _, log_probs = hypothesis
        return score_of(sum(log_probs), len(log_probs), length_penalty)

    for index in range(limit + 1):
        last = [ids[-1] if ids else tokenizer.bos_id for ids, _ in live]
        logits, cache = model.decode_step(tf.constant(last), index, cache)
        step = tf.nn.log_softmax(logits).numpy()

        continuations = []
        for parent, (ids, log_probs) in enumerate(live):
            for token in np.argsort(-step[parent])[: 2 * beam_size]:
                log_prob = float(step[parent, token])
                continuations.append((parent, (*ids, int(token)), (*log_probs, log_prob)))
        continuations.sort(key=lambda continuation: -sum(continuation[2]))

        complete = [c for c in continuations[:beam_size] if c[1][-1] == tokenizer.eos_id]
        finished += [(ids, log_probs) for _, ids, log_probs in complete]
        going_on = [c for c in continuations[: 2 * beam_size] if c[1][-1] != tokenizer.eos_id]
        going_on = going_on[:beam_size] if index < limit else []
        followed = {parent for parent, _, _ in [*complete, *going_on]}
        dropped += [pair for parent, pair in enumerate(live) if parent not in followed]
        live = [(ids, log_probs) for _, ids, log_probs in going_on]
        finished.sort(key=score, reverse=True)
        is_full = len(finished) >= beam_size
        if not live or (is_full and score(live[0]) <= score(finished[beam_size - 1])):
            break
        # Hypothesis i continues another one than before, so it needs what that one has cached.
        parents = [parent for parent, _, _ in going_on]
        for part in ("source", "target"):
            cache[part] = {name: tf.gather(rows, parents) for name, rows in cache[part].items()}
    return finished[:beam_size], [*dropped, *live, *finished[beam_size:]]


beam_size, length_penalty = 3, 0.0
finished, dropped = search_beam(source_ids, limit, beam_size, length_penalty)
assert not finished or tokenizer.decode([finished[0][0]]) == [by_beam[number]]
for ids, log_probs in finished:
    score = score_of(sum(log_probs), len(ids), length_penalty)
    print(f"score {score:.3f}, log-probability {sum(log_probs):.3f}:", *tokenizer.decode([ids]))

# %% [markdown]
# `tt.beam_search` finds exactly these hypotheses. It does so for many sentences in one graph, and
# removes sentences from the batch once they are done.

# %%
found = tt.beam_search(
    model.decode_step,
    model.start_decoding(source_ids),
    [limit],
    beam_size=beam_size,
    n_best=beam_size,
    length_penalty=length_penalty,
    **special_ids,
)
# Those that reached the limit rank last, and the search above does not return them.
scores, truncated = found.scores[0].numpy(), found.truncated[0].numpy()
ended = [n for n in range(beam_size) if np.isfinite(scores[n]) and not truncated[n]]
assert [[*found.ids[0, n, : found.lengths[0, n]].numpy()] for n in ended] == [
    list(ids[:-1]) for ids, _ in finished
]
np.testing.assert_allclose(
    scores[ended],
    [score_of(sum(log_probs), len(ids), length_penalty) for ids, log_probs in finished],
    rtol=1e-4,
)


# %%
# Each prefix of a hypothesis is a branch of a tree, with the log-probability of its tokens.
branches = {}
for ids, log_probs in [*finished, *dropped]:
    for depth in range(1, len(ids) + 1):
        branches[ids[:depth]] = sum(log_probs[:depth])
notes = {ids: " ended" for ids, _ in finished} | {ids: " dropped" for ids, _ in dropped}
if finished:
    notes[finished[0][0]] = " ended, the result"


def grow(prefix=()):
    """Print the branches that continue a prefix, the most probable first."""
    longer = [ids for ids in branches if ids[:-1] == prefix]
    for ids in sorted(longer, key=branches.get, reverse=True):
        (subword,) = tokenizer.subwords(ids[-1:])
        print(f"{'  ' * len(prefix)}{subword}  {branches[ids]:.2f}{notes.get(ids, '')}")
        grow(ids)


print(sentence)
grow()

# %% [markdown]
# Each step to the right is a step of the search, with at most $K$ = 3 tokens that go on and the ends
# beside them. Behind a token stands $\log P$ of all tokens up to it. A hypothesis was dropped where
# nothing that continues it was good enough to be kept, or where it was still live when the search
# stopped. Somewhere on the way of the result another token was more probable, which is where greedy
# search has left it.

# %% [markdown]
# ## The length penalty
#
# Each token multiplies the probability by less than one, so $\log P$ prefers short translations,
# and a beam search, which looks for the best $\log P$, finds those that greedy search never sees.
# The score therefore divides by a power of the length (Wu et al. 2016, section 7; there the
# exponent is α, here $p$ = `length_penalty`; their coverage penalty is not used), with the end
# token counted in $|Y|$:
#
# $$\operatorname{score}(Y) = \frac{\log P(Y \mid X)}{\left((5 + |Y|) / 6\right)^{p}}$$
#
# With $p = 0$ it is $\log P$; with $p = 1$ nearly the mean of a token, times six. The model above
# knows single sentences, and of those it drops hardly anything. So that there is something to see, it gets
# two sentences in a row here, of which it has seen none in training:

# %%
penalties = (0.0, 1.0) if quick else (0.0, 0.5, 1.0, 1.5, 2.0, 3.0)
first, second = slice(0, 200, 2), slice(1, 200, 2)
longer, wanted = (
    [" ".join(two) for two in zip(side[first], side[second], strict=True)]
    for side in (sources, references)
)


def length_of(texts):
    return sum(len(ids) for ids in tokenizer.encode(texts))


def search_all(beam_size, length_penalty):
    """The best hypothesis of each text."""
    found = translator.n_best(longer, 1, beam_size=beam_size, length_penalty=length_penalty)
    return [best for (best,) in found]


best = {(k, p): search_all(k, p) for k in (4, 16) for p in penalties}
greedy = [best.text for best in search_all(1, 0.0)]
fig, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), dpi=90, layout="constrained")
for k, style in ((4, "o-"), (16, "s--")):
    texts = [[hypothesis.text for hypothesis in best[k, p]] for p in penalties]
    ratios = [length_of(row) / length_of(wanted) for row in texts]
    bleu = [tt.corpus_score(row, wanted).bleu for row in texts]
    left.plot(penalties, ratios, style, markersize=4, label=f"beam {k}")
    right.plot(penalties, bleu, style, markersize=4, label=f"beam {k}")
    print(f"beam {k:2}, penalty 0: {ratios[0]:.2f} of the reference's tokens, {bleu[0]:.1f} BLEU")
left.axhline(length_of(greedy) / length_of(wanted), color="0.5", linestyle=":", label="greedy")
right.axhline(tt.corpus_score(greedy, wanted).bleu, color="0.5", linestyle=":", label="greedy")
left.legend(frameon=False)
for axes, name in ((left, "tokens / tokens of the reference"), (right, "BLEU")):
    axes.set(xlabel="length penalty p", ylabel=name)

# %% [markdown]
# Without a penalty the larger beam is the worse: it looks harder for a high $\log P$, and finds
# that leaving words out has one (Stahlberg & Byrne [2019](https://arxiv.org/abs/1908.10090) have
# found that the most probable translation of all is often the empty one). With a larger penalty
# both get longer, and better until the translations have more words than the reference. A penalty
# cannot mend what the model does not know: much of the second sentence stays missing, in greedy
# search too.
#
# One of these texts, its hypotheses, and their scores with three penalties; the best has a star.

# %%
few = (0.0, 1.0) if quick else (0.0, 1.0, 2.0)


def bleu_of(beam_size, length_penalty, n):
    return tt.corpus_score([best[beam_size, length_penalty][n].text], [wanted[n]]).bleu


chosen = max(range(len(wanted)), key=lambda n: bleu_of(4, few[-1], n) - bleu_of(4, 0.0, n))
print(f"source    {longer[chosen]}\nreference {wanted[chosen]}\n")
hypotheses = list({h.text: h for h in (best[4, p][chosen] for p in few)}.values())
scores = np.array(
    [[score_of(h.log_prob, h.length + (not h.truncated), p) for p in few] for h in hypotheses]
)
for p, found in zip(few, scores.max(axis=0), strict=True):
    assert abs(best[4, p][chosen].score - found) < 1e-3
for h, row, is_best in zip(hypotheses, scores, scores == scores.max(axis=0), strict=True):
    print(f"{h.text}\n    {h.length} tokens, log P {h.log_prob:.2f}", end="")
    for p, score, star in zip(few, row, is_best, strict=True):
        print(f"; penalty {p}: {score:.2f}{'*' if star else ''}", end="")
    print()

# %% [markdown]
# For sentences like those of the training text the penalty matters little, and a beam too: they
# are simple. On real text a beam is worth more, 0.2 and 1.6 BLEU in two runs on Multi30k (see the
# [log](../dev/LOG.md)). `tf-transformer export` chooses both on the validation text of the run.
# Measure it, always.

# %% [markdown]
# ## KV caches
#
# In self-attention the newest token attends to all before it. Their keys and values do not change,
# so `decode_step` keeps them: its cache has parts, and the part says what a search may do with it
# (see the [contract](../docs/architecture.md#kv-cache)).

# %%
cache = model.start_decoding(tf.repeat(source_ids, 4, axis=0))
for index in range(10):
    _, cache = model.decode_step(tf.fill([4], tokenizer.bos_id), index, cache)
for part, tensors in cache.items():
    for name, tensor in tensors.items():
        if part != "constants" and not name.endswith("_1"):  # layer 1 is as layer 0
            print(f"{part:8} {name:10} {tensor.shape}")

# %% [markdown]
# `source` has the keys and values of the source, for cross-attention, projected once. `target` has
# those of the 10 steps, in a row for each of four hypotheses. When hypothesis 0 continues what
# hypothesis 2 began, the search copies row 2 to row 0.
#
# The promise that all this keeps: cached logits are those of the model called on the whole prefix.

# %%
target_ids = tf.constant([[tokenizer.bos_id, *greedy_ids]])
expected = model({"source_ids": source_ids, "target_ids": target_ids}, training=False)[0]
cache = model.start_decoding(source_ids)
for index in range(target_ids.shape[1]):
    logits, cache = model.decode_step(target_ids[:, index], index, cache)
    np.testing.assert_allclose(logits[0], expected[index], atol=1e-4)

# %% [markdown]
# What it saves: one step with the cache, against one call of the model on all tokens so far. Both
# are compiled to a graph, and each time is the processor time, the least of several.

# %%
longest = 64 if quick else 384
lengths = range(1, longest + 1, 8)
start = model.start_decoding(source_ids)
# Axes of size 0 grow, so the graph must not depend on their size.
growing = tf.nest.map_structure(
    lambda tensor: tf.TensorSpec([size or None for size in tensor.shape], tensor.dtype), start
)
one_token, one_prefix = tf.TensorSpec([1], tf.int32), tf.TensorSpec([1, None], tf.int32)
step = tf.function(
    model.decode_step,
    input_signature=[one_token, tf.TensorSpec([], tf.int32), growing],
    autograph=False,
)
whole = tf.function(
    lambda ids: model({"source_ids": source_ids, "target_ids": ids}, training=False)[:, -1],
    input_signature=[one_prefix],
    autograph=False,
)
ids = tf.fill([1, longest], tokenizer.bos_id)


def seconds(function, *arguments):
    """The result, and the processor time: other programs do not disturb it."""
    began = time.process_time()
    result = function(*arguments)
    return result, time.process_time() - began


cached, recomputed = [], []
for _ in range(3 if quick else 9):  # the first time compiles
    cache, times = start, []
    for index in range(longest):
        (_, cache), time_of_step = seconds(step, ids[:, index], tf.constant(index), cache)
        times.append(time_of_step)
    cached.append(times)
    recomputed.append([seconds(whole, ids[:, :length])[1] for length in lengths])
cached = 1e3 * np.min(cached[1:], axis=0)
recomputed = 1e3 * np.min(recomputed[1:], axis=0)

fig, (left, right) = plt.subplots(1, 2, figsize=(9, 3), dpi=90)
left.plot(lengths, recomputed, label="the whole prefix again")
left.plot(range(1, longest + 1), cached, label="with the KV cache")
left.set(xlabel="tokens so far", ylabel="ms for the next token", ylim=(0, None))
left.legend(frameon=False)
every = np.interp(range(1, longest + 1), lengths, recomputed)
right.plot(range(1, longest + 1), np.cumsum(every) / 1e3)
right.plot(range(1, longest + 1), np.cumsum(cached) / 1e3)
right.set(xlabel="tokens of the translation", ylabel="seconds for all of it", ylim=(0, None))
fig.tight_layout()
print(f"at {lengths[-1]} tokens: {recomputed[-1] / np.median(cached[-8:]):.1f} times faster a step")

# %% [markdown]
# Without the cache the time of a step grows with the length, and that of a translation faster than
# its length. With it a step costs nearly the same at any length here: the attention to more slots
# is little beside the projections, and those are of one token only. (The call without a cache
# encodes the source again too, which is part of its time from the first token on.) The price is
# memory:

# %%
cached_bytes = sum(tensor.numpy().nbytes for tensor in cache["target"].values())
assert cached_bytes == longest * 2 * model.config.num_layers * model.config.d_model * 4
print(f"{cached_bytes // longest:,} bytes a token of a hypothesis (keys and values, float32)")

# %% [markdown]
# ## N-best lists
#
# All that the beam has finished, with what a caller may want to know: the score, $\log P$, and
# whether something was truncated.

# %%
(n_best,) = translator.n_best([sentence], 4, beam_size=4)
for translation in n_best:
    print(f"{translation.score:7.3f} {translation.log_prob:7.3f}  {translation.text}")
n_best[0]

# %% [markdown]
# Log-probabilities of different sources do not compare, but those of one source do: a small
# distance between the first and the second says that the model was in doubt.
#
# ## What must come out as it went in
#
# A placeholder is no word to translate, and a tag belongs around its words. A model that reads
# both as text loses some of them. So the tokenizer has reserved subwords, *marks*: the `Translator`
# puts them in place of what a regular expression finds, and puts the pieces back at the end.

# %%
text = "Guten Morgen, {name}! Wo ist der <b>Bahnhof</b>?"
(marked,) = marks.mark(tf.constant([text])).text.numpy()
names = {symbol: f"[{number}]" for number, symbol in enumerate(marks.symbols.all)}
subwords = tokenizer.subwords(*tokenizer.encode([marked.decode()]))
print(text, " ".join(names.get(subword, subword) for subword in subwords), sep="\n")
print(translator(text))

# %% [markdown]
# Training has shown the marks in place of words that correspond, before and around them. That
# teaches where they belong, and the search makes sure of them: it remembers which marks it still
# owes. The others have no probability, and neither has the end while there is one to come; where
# the model would end, only these have one. Here are sentences that the model has not seen, with two
# tags and a placeholder put between their words. All pieces are there, whatever a model of two
# minutes makes of the words around them:

# %%
pieces = ["<b>", "</b>", "{count}"]
inserted = []
for source in sources:
    first_word, *words = source.split()
    words.insert(len(words) // 2, pieces[2])
    inserted.append(" ".join([f"{pieces[0]}{first_word}{pieces[1]}", *words]))
translations = translator(inserted)
num_kept = sum(all(text.count(piece) == 1 for piece in pieces) for text in translations)
print(f"{num_kept} of {len(inserted)} translations have the three pieces, each of them once.")
assert num_kept == len(inserted)
for source, translation in zip(inserted[:3], translations, strict=False):
    print(f"{source}\n    {translation}")

# %% [markdown]
# A term of a glossary is a mark, too, whose piece is the translation that you want:

# %%
with_terms = tt.Translator(translator.module, terms={"Bahnhof": "railway station"})
for ask in (translator, with_terms):
    print(ask("Wo ist der Bahnhof?"))

# %% [markdown]
# [Translate a user interface](../docs/localization.md) has more of it: files, flags, and what a
# person should read first.
#
# ## Export
#
# `tt.export_saved_model` writes the graph of the `Translator`, tokenizer and search included, with
# beam and penalty as given above. After `tf-transformer train` it is `tf-transformer export RUN
# FOLDER`.

# %%
temporary = tempfile.TemporaryDirectory()
folder = pathlib.Path(temporary.name)
version = tt.export_saved_model(
    translator,
    folder / "saved_models" / "phrasebook",
    manifest={"corpus": "phrasebook", "updates": epochs * updates},
)
for path in sorted(folder.rglob("*")):
    if path.is_file():
        print(f"{path.stat().st_size:9,}  {path.relative_to(folder)}")

# %% [markdown]
# | | |
# |---|---|
# | `1/` | the version; a new export is `2/`, and a server takes the highest |
# | `saved_model.pb`, `variables/` | the graph with its tokenizers, and the weights |
# | `assets.extra/tf_transformer.json` | the manifest |
# | `assets.extra/tf_serving_warmup_requests` | requests to run before it is served |
# | `models.config`, `*.pbtxt`, `compose.yaml` | configuration of TensorFlow Serving |
#
# The manifest says what the model was made from and has the SHA-256 of each file. The local server
# and `doctor` refuse a version whose files differ from it.

# %%
manifest = json.loads((version / "assets.extra" / "tf_transformer.json").read_text("utf-8"))
short = {name: f"{digest[:8]}…" for name, digest in manifest["files"].items()}
print(json.dumps({**manifest, "files": short}, indent=1, ensure_ascii=False))
for name, digest in manifest["files"].items():
    assert hashlib.sha256((version / name).read_bytes()).hexdigest() == digest

# %% [markdown]
# ## Load it with TensorFlow alone
#
# A new process, which never imports this package. `tensorflow_text` has the operations of
# SentencePiece.

# %%
script = """
import sys
import tensorflow as tf, tensorflow_text

model = tf.saved_model.load("saved_models/phrasebook/1")
translate = model.signatures["serving_default"]
for text in translate(text=tf.constant(sys.argv[1:]))["translation"].numpy():
    print(text.decode("utf-8"))
print("signatures:", *model.signatures)
assert "tf_transformer" not in sys.modules
"""


def run(*command):
    """What a command prints; its working directory is the temporary folder."""
    done = subprocess.run(command, cwd=folder, capture_output=True, encoding="utf-8")
    return done.stdout or f"exit status {done.returncode}\n{done.stderr}"


answer = run(sys.executable, "-c", script, sentence, "Wo ist der Bahnhof?")
print(answer)
assert translator(sentence) in answer

# %% [markdown]
# ## Doctor
#
# Before an export is shipped: `tf-transformer doctor saved_models/phrasebook`. (Here and below
# `python -m tf_transformer.cli` stands for `tf-transformer`, so that it is that of this notebook's
# Python.) It checks the files against the manifest, replays the warm-up requests and calls every
# signature, in a process without this package.

# %%
tf_transformer = (sys.executable, "-m", "tf_transformer.cli")
report = run(*tf_transformer, "doctor", "saved_models/phrasebook").splitlines()
# Without what it says of this machine.
print("\n".join(line for line in report if not line[6:].startswith("python")))

# %% [markdown]
# The times are those of a busy machine. A line that begins with `FAIL` says what to do, and the
# exit status is 1 then: a step for the pipeline that deploys.
#
# ## Serve
#
# `tf-transformer serve saved_models/phrasebook` is a local server with TensorFlow Serving's REST
# API. It needs `pip install '.[serve]'`. Port 0 is any that is free; the server prints which one.
# The context manager stops it by SIGTERM, also after an error: what was asked is still answered.


# %%
@contextlib.contextmanager
def served(saved_model):
    process = subprocess.Popen(
        [*tf_transformer, "serve", saved_model, "--port", "0"],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8",
    )  # fmt: skip
    try:
        first_line = process.stdout.readline()  # once it listens: phrasebook, version 1: http://…
        if not first_line:
            raise RuntimeError(process.stderr.read())
        yield re.search(r"http://[^/]+", first_line)[0]
    finally:
        process.terminate()
        try:
            process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
    print("the server has ended with status", process.returncode)


# %% [markdown]
# While it runs, we ask by `curl`, as any program can, and by the package's client, which makes few
# requests of many texts, tries again where the server is busy, and loads no TensorFlow. Signatures
# are chosen by name; [docs/serving.md](../docs/serving.md#what-to-ask) has them all.


# %%
def curl(address, path, body=None):
    if shutil.which("curl") is None:
        return "curl is not installed"
    data = () if body is None else ("--data", json.dumps(body))
    return run("curl", "--silent", "--max-time", "60", *data, address + path)


with served("saved_models/phrasebook") as address:
    model_path = "/v1/models/phrasebook"
    print(curl(address, model_path))
    print(curl(address, model_path + ":predict", {"instances": [sentence, "Guten Morgen!"]}))
    pairs = [{"source": "Wo ist der Bahnhof?", "target": "Where is the station?"}]
    question = {"signature_name": "score", "instances": pairs}
    print(curl(address, model_path + ":predict", question))

    with Client(address + model_path) as client:
        translations = client.translate(sources[:8])
        served_n_best = client.translate_nbest(sentence)
        document = client.translate_document("Wo ist der Bahnhof? Danke!\n\nGuten Morgen!")
        print(client.status())

for source, translation in zip(sources[:3], translations, strict=False):
    print(f"{source}\n    {translation}")
print(document)

# %% [markdown]
# They are the answers of the model in memory:

# %%
assert translations == translator(sources[:8])
assert [h.text for h in served_n_best] == [h.text for h in n_best]
np.testing.assert_allclose([h.score for h in served_n_best], [h.score for h in n_best], rtol=1e-4)
temporary.cleanup()

# %% [markdown]
# ## From here to production
#
# - `docker compose --file saved_models/phrasebook/compose.yaml up --wait` runs TensorFlow Serving
#   itself, with the files that lie beside the versions; clients do not notice the difference.
# - A new version is an export more into the same folder; the way back is to remove it.
# - A server has no TLS and asks nobody who they are: put a proxy in front.
# - `/healthz` of the local server names the model and its version.
# - [docs/serving.md](../docs/serving.md) has all limits, errors and clients.
