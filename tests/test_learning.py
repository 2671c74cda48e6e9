"""Training with plain `compile` and `fit` learns held-out sequences, also in bfloat16."""

import keras
import numpy as np
import pytest

import tf_transformer as tt

pytestmark = pytest.mark.slow

VOCAB_SIZE = 280  # 260 bytes and special ids, and enough for ten letters behind a space


def small_model(num_layers=1, d_model=16, dropout_rate=0.0, dtype=None):
    config = tt.TransformerConfig(
        VOCAB_SIZE,
        VOCAB_SIZE,
        num_layers=num_layers,
        d_model=d_model,
        num_heads=4,
        d_ff=2 * d_model,
        dropout_rate=dropout_rate,
    )
    return tt.Transformer(config, dtype=dtype)


@pytest.fixture(scope="module")
def tokenizer(copy_corpus):
    return tt.SentencePieceTokenizer.train(copy_corpus.train.sources, VOCAB_SIZE)


@pytest.fixture(scope="module")
def batches(copy_corpus, tokenizer):
    return tt.TokenBatches.from_text(
        copy_corpus.train, tokenizer, tokenizer, batch_tokens=200, max_length=32, seed=0
    )


@pytest.mark.parametrize(
    ("make_task", "max_length", "seed"),
    [(tt.copy_task, 10, 0), (tt.copy_task, 10, 1), (tt.copy_task, 10, 2), (tt.reverse_task, 7, 0)],
)
def test_held_out_sequences_are_translated_exactly(make_task, max_length, seed):
    keras.utils.set_random_seed(seed)
    task = make_task(15_000, num_validation=1, num_test=500, max_length=max_length, seed=seed)
    tokenizer = tt.SentencePieceTokenizer.train(task.train.sources, VOCAB_SIZE)
    batches = tt.TokenBatches.from_text(
        task.train, tokenizer, tokenizer, batch_tokens=512, max_length=32, seed=seed
    )
    model = small_model(num_layers=1, d_model=64)
    model.compile(
        optimizer=keras.optimizers.Adam(
            tt.NoamSchedule(d_model=64, warmup_steps=100, factor=0.3),
            beta_2=0.98,
            epsilon=1e-9,
            # The mean of the last weights, because each batch has sentences of one length only.
            use_ema=True,
            ema_momentum=0.98,
        ),
        loss=tt.SmoothedCrossEntropy(label_smoothing=0.1),
    )
    model.fit(batches.dataset(), steps_per_epoch=1000, shuffle=False, verbose=0)
    translate = tt.Translator.from_model(model, tokenizer, tokenizer, max_length=32)
    translations = translate(list(task.test.sources))
    exact = sum(a == b for a, b in zip(translations, task.test.targets, strict=True))
    assert exact >= 0.99 * len(task.test)


def test_bfloat16_learns_and_stays_finite(batches):
    keras.utils.set_random_seed(0)
    model = small_model(dropout_rate=0.1, dtype="mixed_bfloat16")
    model.compile(keras.optimizers.Adam(1e-3), tt.SmoothedCrossEntropy())
    losses = model.fit(
        batches.dataset(), steps_per_epoch=25, epochs=4, shuffle=False, verbose=0
    ).history["loss"]
    assert np.isfinite(losses).all()
    assert losses == sorted(losses, reverse=True)
    assert {variable.dtype for variable in model.trainable_variables} == {"float32"}
