"""Runs with moving averages of the weights."""

import numpy as np
import pytest
from small_runs import SETTINGS, same_checkpoints, train

from tf_transformer.training.checkpoints import Checkpoints
from tf_transformer.training.restore import restore_model
from tf_transformer.training.run_directory import RunDirectory

pytestmark = pytest.mark.usefixtures("use_small_copy_task")


def weights_in(run_dir):
    return [v.numpy() for v in restore_model(RunDirectory(run_dir)).model.trainable_variables]


@pytest.mark.slow
def test_a_run_checkpoints_the_averages_and_resumes_from_the_weights(
    tmp_path, monkeypatch, deterministic
):
    """The same run three times: without averages, with them, and with them and an interruption."""
    # Otherwise Adam makes steps of the noise of gradients that are zero, as of a key's bias.
    settings = [*SETTINGS, "--warmup-steps=10", "--validation-steps=4", deterministic]
    plain, averaged, resumed = (tmp_path / name for name in ("plain", "averaged", "resumed"))
    keep = ["--checkpoint-steps=1", "--keep-checkpoints=20"]
    train(plain, *settings, *keep, "--steps=6")
    train(averaged, *settings, "--ema-momentum=0.3", "--steps=6")
    train(resumed, *settings, "--ema-momentum=0.3", "--checkpoint-steps=3", "--steps=3")
    train(resumed, "--resume", "--steps=6")

    assert same_checkpoints(averaged, resumed)

    average = 0.0
    model = restore_model(RunDirectory(plain)).model
    for updates, checkpoint in enumerate(Checkpoints(plain / "checkpoints").all()):
        checkpoint.restore(model)
        kept = min(0.3, updates / (updates + 10))
        weights = np.concatenate([v.numpy().ravel() for v in model.trainable_variables])
        average = kept * average + (1 - kept) * weights.astype("float64")
    # `evaluate` and `export` read the best checkpoint; here let that be the last.
    monkeypatch.setattr(Checkpoints, "best", Checkpoints.latest)
    found = np.concatenate([w.ravel() for w in weights_in(averaged)])
    assert abs(average - weights).max() > 1e-3
    np.testing.assert_allclose(found, average, atol=1e-6)
