"""Train our layers, which are pure Keras, in a jitted step on JAX."""

import time

STARTED = time.monotonic()

import dataclasses  # noqa: E402
from typing import Any  # noqa: E402

import engine  # noqa: E402
import jax  # noqa: E402
import keras  # noqa: E402
from synthetic_batches import PAD_ID, synthetic_batches  # noqa: E402

from tf_transformer.models.architectures import build_model, preset  # noqa: E402
from tf_transformer.training.losses import SmoothedCrossEntropy  # noqa: E402
from tf_transformer.training.schedules import NoamSchedule  # noqa: E402


def train(job: dict[str, Any]) -> dict[str, Any]:
    keras.utils.set_random_seed(job["seed"])
    config = preset(job["preset"], job["vocab_size"], job["vocab_size"])
    config = dataclasses.replace(config, **job["sizes"], dropout_rate=job["dropout"], pad_id=PAD_ID)
    model = build_model(config, "mixed_bfloat16")
    loss_of = SmoothedCrossEntropy(pad_id=PAD_ID)
    optimizer = keras.optimizers.Adam(
        NoamSchedule(config.d_model), beta_1=0.9, beta_2=0.98, epsilon=1e-9
    )
    optimizer.build(model.trainable_variables)

    def loss_and_rest(trainable, rest, source_ids, target_ids, labels):
        inputs = {"source_ids": source_ids, "target_ids": target_ids}
        logits, rest = model.stateless_call(trainable, rest, inputs, training=True)
        return loss_of(labels, logits), rest

    def step(state, batch):
        trainable, rest, moments = state
        gradient_of = jax.value_and_grad(loss_and_rest, has_aux=True)
        (loss, rest), gradients = gradient_of(trainable, rest, *batch)
        trainable, moments = optimizer.stateless_apply(moments, gradients, trainable)
        return (trainable, rest, moments), loss

    step = jax.jit(step, donate_argnums=0)
    # Copies, because the step donates its arguments and the model must keep its variables.
    state = jax.tree.map(
        lambda variable: jax.numpy.array(variable.value, copy=True),
        (model.trainable_variables, model.non_trainable_variables, optimizer.variables),
    )
    batches = [tuple(map(jax.numpy.asarray, batch)) for batch in synthetic_batches(job)]

    first_step, blocks, losses = None, [], []
    for block in range(job["blocks"] + 1):  # the first is the warm-up, which compiles
        before = time.monotonic()
        for index in range(job["steps"] if block else len(batches)):
            state, loss = step(state, batches[index % len(batches)])
            if first_step is None:
                jax.block_until_ready(loss)
                first_step = time.monotonic() - STARTED
        jax.block_until_ready((state, loss))
        blocks.append(time.monotonic() - before)
        losses.append(float(loss))
    return {
        "first_step": first_step,
        "block_seconds": blocks[1:],
        "losses": losses,
        "parameters": model.count_params(),
        "device": str(jax.devices()[0]),
    }


if __name__ == "__main__":
    engine.finish(train(engine.job()))
