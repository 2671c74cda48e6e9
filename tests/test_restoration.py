"""Training resumed from a checkpoint is, bit for bit, training without an interruption."""

import re

import keras
import numpy as np
import pytest

import tf_transformer as tt
from tf_transformer.runs.checkpoints import Checkpoints

BEFORE, AFTER = 5, 6


@pytest.fixture(scope="module")
def batches():
    corpus = tt.copy_task(num_train=60, num_validation=1, num_test=0)
    tokenizer = tt.SentencePieceTokenizer.train(corpus.train.sources, 280)
    batches = tt.TokenBatches.from_text(
        corpus.train, tokenizer, tokenizer, batch_tokens=100, max_length=32, seed=3
    )
    assert BEFORE < len(batches) < BEFORE + AFTER, "the next epoch should begin on the way"
    return batches


def new_transformer(seed):
    keras.utils.set_random_seed(seed)
    config = tt.TransformerConfig(
        280, 280, num_layers=1, d_model=16, num_heads=2, d_ff=32,
        dropout_rate=0.3, attention_dropout_rate=0.1,
    )  # fmt: skip
    model = tt.Transformer(config)
    schedule = tt.NoamSchedule(16, warmup_steps=4)
    model.compile(keras.optimizers.Adam(schedule, beta_2=0.98), tt.SmoothedCrossEntropy())
    return model


def train(model, batches, steps):
    """Trains for so many steps, with the data that follows the steps already made."""
    epoch, skip = divmod(int(model.optimizer.iterations), len(batches))
    data = batches.dataset(first_epoch=epoch, skip=skip)
    model.fit(data, steps_per_epoch=steps, shuffle=False, verbose=0)


def everything(model):
    """Every variable of model and optimizer, by index and name without Keras' counters."""
    state = {}
    for index, variable in enumerate([*model.variables, *model.optimizer.variables]):
        name = re.sub(r"(adam|seed_generator)_[0-9]+", r"\1", variable.path)
        state[f"{index} {name}"] = variable.numpy()
    return state


def test_a_resumed_training_ends_bitwise_like_the_other(tmp_path, batches):
    whole = new_transformer(seed=1)
    whole.fit(batches.dataset(), steps_per_epoch=BEFORE + AFTER, shuffle=False, verbose=0)

    checkpoints = Checkpoints(tmp_path)
    stopped = new_transformer(seed=1)
    train(stopped, batches, BEFORE)
    checkpoints.write(stopped, BEFORE, {})
    at_stop, end = everything(stopped), everything(whole)

    resumed = new_transformer(seed=2)  # other weights and dropout, all to be restored
    checkpoints.latest().restore(resumed)
    assert int(resumed.optimizer.iterations) == BEFORE
    for name in ("momentum", "velocity", "seed_generator"):
        assert any(name in path for path in at_stop)
    assert_same(everything(resumed), at_stop)
    unmoved = [path for path in at_stop if np.array_equal(at_stop[path], end[path])]
    assert not [path for path in unmoved if "kernel" in path or "seed" in path]

    train(resumed, batches, AFTER)
    assert int(resumed.optimizer.iterations) == BEFORE + AFTER
    assert_same(everything(resumed), end)


def assert_same(one, other):
    assert one.keys() == other.keys()
    assert not [path for path in one if not np.array_equal(one[path], other[path])]
