"""Users of TensorFlow's Transformer tutorial find its model and its training in our parts."""

import keras
import numpy as np
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
    history = model.fit(*copy_batch(512), batch_size=32, epochs=8, verbose=0).history
    assert history["loss"][-1] < 0.6 * history["loss"][0]
    assert history["masked_accuracy"][-1] > history["masked_accuracy"][0] + 0.2

    inputs, _ = copy_batch(seed=99)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded(inputs), model(inputs), atol=1e-6)
