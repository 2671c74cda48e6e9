"""Users of TensorFlow's Transformer tutorial find its model and its training in our parts."""

import keras
import numpy as np
import tensorflow as tf
from tutorial_model import TutorialTransformer, copy_batch

import tf_transformer as tt


def test_the_tutorials_model_learns_to_copy_and_is_saved(tmp_path):
    keras.utils.set_random_seed(0)
    model = TutorialTransformer(d_model=32, d_ff=64, dropout_rate=0.1)
    model.compile(
        optimizer=keras.optimizers.Adam(tt.NoamSchedule(32, 40), 0.9, 0.98, 1e-9),
        loss=tt.SmoothedCrossEntropy(label_smoothing=0.0),
        metrics=[tt.TokenAccuracy(name="masked_accuracy")],
    )
    batches = [copy_batch(32, seed=seed) for seed in range(8)]
    data = tf.data.Dataset.from_generator(
        lambda: iter(batches),
        output_signature=((tf.TensorSpec([None, None], tf.int32),) * 2,
                          tf.TensorSpec([None, None], tf.int32)),
    ).repeat()  # fmt: skip
    history = model.fit(data, steps_per_epoch=20, epochs=6, shuffle=False, verbose=0).history
    losses = history["loss"]
    assert losses[0] > losses[2] > losses[-1] and losses[-1] < 0.6 * losses[0]
    assert history["masked_accuracy"][-1] > history["masked_accuracy"][0] + 0.2

    inputs, _ = copy_batch(seed=99)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded(inputs), model(inputs), atol=1e-6)


def test_padding_of_the_source_changes_no_logits():
    model = TutorialTransformer()
    (source, target), _ = copy_batch()
    padded = np.pad(source, ((0, 0), (0, 3)))
    np.testing.assert_allclose(model((padded, target)), model((source, target)), atol=1e-6)
